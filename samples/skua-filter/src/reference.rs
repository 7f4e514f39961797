// SPDX-License-Identifier: MIT

//! The filters on the CPU, in plain Rust, to compare the GPU's results with.
//!
//! They are written from what the filters promise (the comments at the top of `filters/*.s`), over
//! the whole image at once, and have nothing in common with the programs but the formulas.

use crate::filter::Filter;
use crate::picture::Picture;
use crate::plan::shift;
use crate::weights::gaussian;

/// The image filtered; `radius` is the blur's.
pub fn apply(filter: Filter, radius: u32, picture: &Picture) -> Picture {
    match filter {
        Filter::Grayscale => pointwise(picture, |p| with_colour(p, [luma(p); 3])),
        Filter::Invert => pointwise(picture, |p| with_colour(p, rgb(p).map(|c| 255 - c))),
        Filter::Sepia => pointwise(picture, |p| with_colour(p, sepia(rgb(p)))),
        Filter::Edge => neighbours(picture, edge),
        Filter::Sharpen => neighbours(picture, sharpen),
        Filter::Emboss => neighbours(picture, emboss),
        Filter::Blur => blur(picture, &gaussian(radius)),
        Filter::Equalize => equalize(picture),
    }
}

fn rgb(pixel: u32) -> [i32; 3] {
    let [r, g, b, _] = pixel.to_le_bytes();
    [r, g, b].map(i32::from)
}

/// The pixel with other colours, which are held to the range; alpha stays.
fn with_colour(pixel: u32, colour: [i32; 3]) -> u32 {
    // CAST: clamped to a byte.
    let [r, g, b] = colour.map(|c| c.clamp(0, 255) as u8);
    let [.., alpha] = pixel.to_le_bytes();
    u32::from_le_bytes([r, g, b, alpha])
}

fn luma(pixel: u32) -> i32 {
    let [r, g, b] = rgb(pixel);
    (77 * r + 150 * g + 29 * b + 128) / 256
}

/// A picture of what `result` makes of each position.
fn positions(picture: &Picture, result: impl Fn(i64, i64) -> u32) -> Picture {
    let (width, height) = (i64::from(picture.width()), i64::from(picture.height()));
    let pixels = (0..height)
        .flat_map(|y| (0..width).map(move |x| (x, y)))
        .map(|(x, y)| result(x, y))
        .collect();
    // There is a pixel for each position.
    Picture::new(picture.width(), picture.height(), pixels).unwrap_or_else(|| picture.clone())
}

fn pointwise(picture: &Picture, result: impl Fn(u32) -> u32) -> Picture {
    positions(picture, |x, y| result(picture.nearest(x, y)))
}

/// Calls `result` with the nine pixels around each position, row by row.
fn neighbours(picture: &Picture, result: impl Fn([[u32; 3]; 3]) -> u32) -> Picture {
    positions(picture, |x, y| {
        result([-1, 0, 1].map(|dy| [-1, 0, 1].map(|dx| picture.nearest(x + dx, y + dy))))
    })
}

fn sepia([r, g, b]: [i32; 3]) -> [i32; 3] {
    const MATRIX: [[f32; 3]; 3] = [
        [0.393, 0.769, 0.189],
        [0.349, 0.686, 0.168],
        [0.272, 0.534, 0.131],
    ];
    // CAST: bytes are exact as floats, and the sum is rounded down into the range.
    let [r, g, b] = [r, g, b].map(|c| c as f32);
    MATRIX.map(|[cr, cg, cb]| {
        let sum = r.mul_add(cr, g.mul_add(cg, b * cb));
        (sum + 0.5).min(255.0) as i32
    })
}

fn edge(pixels: [[u32; 3]; 3]) -> u32 {
    let [[a, b, c], [d, _, f], [g, h, i]] = pixels.map(|row| row.map(luma));
    let x = (c + 2 * f + i) - (a + 2 * d + g);
    let y = (g + 2 * h + i) - (a + 2 * b + c);
    let length = (x * x + y * y).isqrt();
    with_colour(pixels[1][1], [length; 3])
}

fn sharpen([[_, above, _], [left, pixel, right], [_, below, _]]: [[u32; 3]; 3]) -> u32 {
    let others = [above, below, left, right].map(rgb);
    let mut colour = rgb(pixel).map(|c| 5 * c);
    for (i, c) in colour.iter_mut().enumerate() {
        *c -= others.iter().map(|o| o[i]).sum::<i32>();
    }
    with_colour(pixel, colour)
}

fn emboss(pixels: [[u32; 3]; 3]) -> u32 {
    let (lit, dark) = (rgb(pixels[2][2]), rgb(pixels[0][0]));
    let colour = [0, 1, 2].map(|i| 128 + lit[i] - dark[i]);
    with_colour(pixels[1][1], colour)
}

/// A channel at a time and a line at a time, so that a photo takes seconds and not minutes: the
/// sums of a line's pixels grow by one distance after the other.
fn blur(picture: &Picture, weights: &[u32]) -> Picture {
    // CAST: lengths and indices of lines that are in memory.
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let reach = weights.len() - 1;
    let blurred = [0, 1, 2].map(|channel| {
        let plane: Vec<u8> = picture
            .pixels()
            .iter()
            .map(|p| p.to_le_bytes()[channel])
            .collect();
        // Along each row, with the border's pixels repeated beyond it.
        let mut rows = Vec::with_capacity(plane.len());
        for row in plane.chunks_exact(width) {
            let mut long = vec![row[0]; reach];
            long.extend_from_slice(row);
            long.resize(width + 2 * reach, row[width - 1]);
            let shifted = |by: usize| &long[by..by + width];
            rows.extend(weighted(weights, |d| {
                (shifted(reach - d), shifted(reach + d))
            }));
        }
        // Along each column: whole rows at once.
        let row = |y: usize| &rows[y * width..(y + 1) * width];
        let line = |y: usize| {
            weighted(weights, |d| {
                (row(y.saturating_sub(d)), row((y + d).min(height - 1)))
            })
        };
        (0..height).flat_map(line).collect::<Vec<u8>>()
    });
    let pixels = picture.pixels().iter().enumerate();
    let pixels = pixels
        .map(|(i, p)| with_colour(*p, [0, 1, 2].map(|c| i32::from(blurred[c][i]))))
        .collect();
    // There is a pixel for each position.
    Picture::new(picture.width(), picture.height(), pixels).unwrap_or_else(|| picture.clone())
}

/// The weighted mean of lines, element by element, rounded to nearest. `lines` gives the two at a
/// distance, which are the same one at distance 0.
fn weighted<'a>(weights: &[u32], lines: impl Fn(usize) -> (&'a [u8], &'a [u8])) -> Vec<u8> {
    let mut sums: Vec<u32> = lines(0)
        .0
        .iter()
        .map(|c| (1 << 15) + weights[0] * u32::from(*c))
        .collect();
    for (distance, weight) in weights.iter().enumerate().skip(1) {
        let (a, b) = lines(distance);
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += weight * (u32::from(*a) + u32::from(*b));
        }
    }
    // CAST: the weights sum to 1 << 16, so the mean is a byte.
    sums.into_iter().map(|sum| (sum >> 16) as u8).collect()
}

fn equalize(picture: &Picture) -> Picture {
    let mut counts = [0u64; 256];
    for pixel in picture.pixels() {
        // CAST: luma is 0 to 255.
        counts[luma(*pixel) as usize] += 1;
    }
    let all: u64 = counts.iter().sum();
    let shift = shift(all);
    let darkest = counts.iter().copied().find(|c| *c > 0).unwrap_or(0);
    let divisor = (all - darkest) >> shift;
    let mut sum = 0;
    let table: Vec<i32> = (0..256)
        .zip(counts)
        .map(|(value, count)| {
            sum += count;
            if divisor == 0 {
                return value;
            }
            let share = sum.saturating_sub(darkest) >> shift;
            // CAST: at most 255.
            ((share * 255 + divisor / 2) / divisor) as i32
        })
        .collect();
    pointwise(picture, |p| {
        let old = luma(p);
        // CAST: luma is 0 to 255.
        let change = table[old as usize] - old;
        with_colour(p, rgb(p).map(|c| c + change))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(filter: Filter, pixel: u32) -> u32 {
        let picture = Picture::new(1, 1, vec![pixel]).expect("a pixel");
        apply(filter, 3, &picture).pixels()[0]
    }

    /// Results worked out by hand.
    #[test]
    fn known_pixels() {
        let pixel = u32::from_le_bytes([200, 100, 50, 128]);
        let expect = |r, g, b| u32::from_le_bytes([r, g, b, 128]);
        // 77 * 200 + 150 * 100 + 29 * 50 + 128 = 31978; / 256 = 124.9
        assert_eq!(one(Filter::Grayscale, pixel), expect(124, 124, 124));
        assert_eq!(one(Filter::Invert, pixel), expect(55, 155, 205));
        // 78.6 + 76.9 + 9.45 = 164.95; 69.8 + 68.6 + 8.4 = 146.8; 54.4 + 53.4 + 6.55 = 114.35
        assert_eq!(one(Filter::Sepia, pixel), expect(165, 147, 114));
        assert_eq!(
            one(Filter::Sepia, u32::MAX),
            u32::from_le_bytes([255, 255, 239, 255])
        );
        assert_eq!(one(Filter::Edge, pixel), expect(0, 0, 0));
        assert_eq!(one(Filter::Sharpen, pixel), pixel);
        assert_eq!(one(Filter::Emboss, pixel), expect(128, 128, 128));
        assert_eq!(one(Filter::Blur, pixel), pixel);
        assert_eq!(one(Filter::Equalize, pixel), pixel);
    }

    #[test]
    fn known_neighbourhoods() {
        let grey = |v: u8| u32::from_le_bytes([v, v, v, 255]);
        let step = Picture::new(3, 1, vec![grey(10), grey(10), grey(40)]).expect("pixels");
        // In the middle gx is 4 * (40 - 10); at the right border the nearest pixel counts.
        assert_eq!(
            apply(Filter::Edge, 0, &step).pixels(),
            [grey(0), grey(120), grey(120)]
        );
        // 5 c - 2 c - left - right
        assert_eq!(
            apply(Filter::Sharpen, 0, &step).pixels(),
            [grey(10), grey(0), grey(70)]
        );
        assert_eq!(
            apply(Filter::Emboss, 0, &step).pixels(),
            [grey(128), grey(158), grey(158)]
        );
        // Radius 1: the weights are 51576 and twice 6980 of 65536.
        assert_eq!(gaussian(1), [51576, 6980]);
        // 10 + 30 * 6980 / 65536 = 13.2; 40 - 30 * 6980 / 65536 = 36.8
        assert_eq!(
            apply(Filter::Blur, 1, &step).pixels(),
            [grey(10), grey(13), grey(37)]
        );
        // Two luma values, as often: the darkest goes to 0 and the brightest to 255.
        let two = Picture::new(2, 1, vec![grey(100), grey(110)]).expect("pixels");
        assert_eq!(
            apply(Filter::Equalize, 0, &two).pixels(),
            [grey(0), grey(255)]
        );
    }
}
