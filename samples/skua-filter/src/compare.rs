// SPDX-License-Identifier: MIT

//! Finding differences between what was computed and what should have been.

use std::fmt;

use crate::picture::Picture;

/// Two images are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// They have not the same size.
    Size {
        /// Width and height that were expected.
        expected: (u32, u32),
        /// Width and height that are there.
        got: (u32, u32),
    },
    /// Pixels differ.
    Pixels {
        /// Of all pixels.
        count: u64,
        /// Column of the first one, row by row from the top.
        x: u32,
        /// Its row.
        y: u32,
        /// The pixel that was expected there, see [`crate::picture`].
        expected: u32,
        /// The pixel that is there.
        got: u32,
    },
}

/// The first difference between two images, if there is one.
pub fn difference(expected: &Picture, got: &Picture) -> Option<Difference> {
    let size = |p: &Picture| (p.width(), p.height());
    if size(expected) != size(got) {
        return Some(Difference::Size {
            expected: size(expected),
            got: size(got),
        });
    }
    let mut different = (0u64..)
        .zip(expected.pixels().iter().zip(got.pixels()))
        .filter(|(_, (e, g))| e != g);
    let (index, (e, g)) = different.next()?;
    let width = u64::from(expected.width());
    Some(Difference::Pixels {
        // CAST: a column and a row of an image whose sides are 32-bit numbers.
        x: (index % width) as u32,
        y: (index / width) as u32,
        expected: *e,
        got: *g,
        count: 1 + different.count() as u64,
    })
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { expected, got } => write!(
                f,
                "expected an image of {}x{}, got one of {}x{}",
                expected.0, expected.1, got.0, got.1
            ),
            Self::Pixels {
                count,
                x,
                y,
                expected,
                got,
            } => {
                let [er, eg, eb, ea] = expected.to_le_bytes();
                let [gr, gg, gb, ga] = got.to_le_bytes();
                write!(
                    f,
                    "{count} pixels differ, first at x {x}, y {y}: expected \
                     rgba({er}, {eg}, {eb}, {ea}), got rgba({gr}, {gg}, {gb}, {ga})"
                )
            }
        }
    }
}

impl std::error::Error for Difference {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let a = Picture::new(3, 2, vec![0; 6]).expect("pixels");
        assert_eq!(difference(&a, &a), None);
        let mut pixels = vec![0; 6];
        pixels[4] = 0x0403_0201;
        pixels[5] = 1;
        let b = Picture::new(3, 2, pixels).expect("pixels");
        let told = difference(&a, &b).expect("they differ").to_string();
        assert_eq!(
            told,
            "2 pixels differ, first at x 1, y 1: expected rgba(0, 0, 0, 0), got rgba(1, 2, 3, 4)"
        );
        let c = Picture::new(2, 3, vec![0; 6]).expect("pixels");
        assert!(matches!(difference(&a, &c), Some(Difference::Size { .. })));
    }
}
