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

fn blur(picture: &Picture, weights: &[u32]) -> Picture {
    let rows = blur_along(picture, weights, 1, 0);
    blur_along(&rows, weights, 0, 1)
}

/// The weighted mean along one direction.
fn blur_along(picture: &Picture, weights: &[u32], dx: i64, dy: i64) -> Picture {
    positions(picture, |x, y| {
        let mut sums = [1u32 << 15; 3];
        let mut add = |distance: i64, weight: u32| {
            let pixel = picture.nearest(x + dx * distance, y + dy * distance);
            let [r, g, b, _] = pixel.to_le_bytes();
            for (sum, c) in sums.iter_mut().zip([r, g, b]) {
                *sum += weight * u32::from(c);
            }
        };
        for (distance, &weight) in (0i64..).zip(weights) {
            add(distance, weight);
            if distance > 0 {
                add(-distance, weight);
            }
        }
        // CAST: at most 255.
        with_colour(picture.nearest(x, y), sums.map(|sum| (sum >> 16) as i32))
    })
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
        // Two luma values, as often: the darkest goes to 0 and the brightest to 255.
        let two = Picture::new(2, 1, vec![grey(100), grey(110)]).expect("pixels");
        assert_eq!(
            apply(Filter::Equalize, 0, &two).pixels(),
            [grey(0), grey(255)]
        );
    }
}
