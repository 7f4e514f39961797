// SPDX-License-Identifier: MIT

//! The picture that is drawn where none is given: a skua over the sea in the evening.
//!
//! It has what filters show their work on: soft gradients (banding), silhouettes (edges), fine
//! regular detail (a zone plate, in which blurs and aliases become visible), letters, and noise on
//! the water. Everything is integer arithmetic, so the picture is the same everywhere.

use crate::picture::Picture;

/// Columns.
pub const WIDTH: u32 = 960;
/// Rows.
pub const HEIGHT: u32 = 540;

/// Row at which the sea begins.
const HORIZON: i32 = 340;
/// Centre of the sun.
const SUN: (i32, i32) = (660, 222);

/// A colour: red, green, blue, 0 to 255 each.
type Colour = [i32; 3];

/// Draws the picture.
pub fn picture() -> Picture {
    // CAST: both are small.
    let (width, height) = (WIDTH as i32, HEIGHT as i32);
    let pixels: Vec<u32> = (0..height)
        .flat_map(|y| (0..width).map(move |x| word(point(x, y))))
        .collect();
    // PANIC: there is a pixel for each position.
    Picture::new(WIDTH, HEIGHT, pixels).expect("WIDTH * HEIGHT pixels")
}

fn word(colour: Colour) -> u32 {
    // CAST: clamped to a byte.
    let [r, g, b] = colour.map(|c| c.clamp(0, 255) as u8);
    u32::from_le_bytes([r, g, b, 255])
}

/// The colour at a position: what is nearest to the eye of what is there.
fn point(x: i32, y: i32) -> Colour {
    if let Some(colour) = letters(x, y).or_else(|| plate(x, y)) {
        return colour;
    }
    for (cx, cy, span) in [
        (330, 150, 150),
        (520, 92, 54),
        (596, 118, 38),
        (468, 70, 30),
    ] {
        if bird(x - cx, y - cy, span) {
            return [24, 20, 34];
        }
    }
    if y >= HORIZON {
        return sea(x, y);
    }
    // Two ranges of hills before the sky; the nearer one is darker.
    let far = 268 - ridge(x, 7, 240, 70) / 4;
    let near = 318 - ridge(x + 400, 19, 170, 90) / 4 + (x - 480).abs() / 12;
    if y > near {
        let mist = (y - near).min(60);
        return mix([30, 26, 48], [62, 46, 70], mist * 256 / 90);
    }
    if y > far {
        let mist = (y - far).clamp(0, 70);
        return mix([84, 60, 96], [190, 118, 104], mist * 256 / 100);
    }
    sky(x, y)
}

fn mix(a: Colour, b: Colour, share: i32) -> Colour {
    let share = share.clamp(0, 256);
    [0, 1, 2].map(|i| a[i] + ((b[i] - a[i]) * share) / 256)
}

fn add(a: Colour, b: Colour, share: i32) -> Colour {
    [0, 1, 2].map(|i| a[i] + b[i] * share.clamp(0, 256) / 256)
}

fn sky(x: i32, y: i32) -> Colour {
    const STOPS: [(i32, Colour); 5] = [
        (0, [18, 20, 58]),
        (110, [58, 44, 104]),
        (200, [150, 72, 112]),
        (270, [238, 128, 88]),
        (HORIZON, [255, 208, 130]),
    ];
    let mut colour = STOPS[0].1;
    for pair in STOPS.windows(2) {
        let ((from, a), (to, b)) = (pair[0], pair[1]);
        if (from..to).contains(&y) {
            colour = mix(a, b, (y - from) * 256 / (to - from));
        }
    }
    // Stars, where it is dark enough.
    let random = hash(x, y, 3);
    if y < 130 && random % 900 == 0 {
        let bright = (130 - y) * 256 / 130;
        colour = add(
            colour,
            [200, 200, 220],
            bright * (64 + random / 900 % 192) / 256,
        );
    }
    // Streaks of cloud.
    let cloud = noise(x * 256 / 220 + y * 3, y / 9, 11) + noise(x * 256 / 70, y / 4, 12) / 2;
    let band = (80 - (y - 190).abs()).max(0);
    colour = add(colour, [120, 60, 30], (cloud - 210) * band / 60);
    // The sun and its glow.
    let (dx, dy) = (x - SUN.0, y - SUN.1);
    let distance = (dx * dx + dy * dy).isqrt();
    if distance < 44 {
        return mix([255, 250, 220], [255, 226, 150], distance * 256 / 44);
    }
    let glow = (244 - distance).max(0);
    add(colour, [150, 96, 40], glow * glow / 180)
}

fn sea(x: i32, y: i32) -> Colour {
    let depth = y - HORIZON;
    let base = mix([214, 146, 112], [20, 30, 66], 40 + depth * 2);
    // Waves become longer and higher towards the eye.
    let length = 12 + depth;
    let wave = noise(x * 256 / length, depth * 40 / (10 + depth), 21)
        + noise(x * 640 / length + 99, depth * 90 / (10 + depth), 22)
        - 256;
    let mut colour = add(base, [70, 80, 96], 100 * wave / 128 - 20);
    // The sun's path.
    let spread = 20 + depth / 2;
    let off = (x - SUN.0).abs() + wave / 6;
    if off < spread {
        let glitter = wave + 90 - off * 150 / spread;
        colour = add(colour, [255, 190, 110], glitter * 2);
    }
    colour
}

/// A bird in flight, seen from the side, `span` pixels from tip to tip: whether it covers the
/// position relative to its middle.
fn bird(dx: i32, dy: i32, span: i32) -> bool {
    let half = span / 2;
    let out = dx.abs();
    // The body: an ellipse, with a tail and a beak along it.
    let along = dx * 10 / (span / 4).max(1);
    let across = dy * 10 / (span / 14).max(1);
    if along * along + across * across < 100 {
        return true;
    }
    if out > half {
        return false;
    }
    // The wings: up to the wrist at a third of the way, then down to the tips.
    let rise = span / 6;
    let wrist = half / 3;
    let middle = if out < wrist {
        -rise * out / wrist.max(1)
    } else {
        -rise + (out - wrist) * (out - wrist) * rise / ((half - wrist) * (half - wrist)).max(1)
    };
    let thickness = (half - out) * span / (half * 14).max(1) + 1;
    (dy - middle).abs() * 2 <= thickness * 2 - thickness / 2
}

/// A plate of rings that become finer outwards, in the lower right corner.
fn plate(x: i32, y: i32) -> Option<Colour> {
    let (dx, dy) = (x - 868, y - 448);
    let square = dx * dx + dy * dy;
    if square > 72 * 72 {
        return None;
    }
    if square > 69 * 69 {
        return Some([240, 232, 220]);
    }
    // The phase grows with the square of the distance: at the rim a ring is two pixels wide.
    let phase = square * 256 / 280 % 256;
    let wave = (phase - 128).abs() * 2;
    Some(mix([20, 22, 36], [244, 238, 226], wave))
}

/// The name, and a line of small print below.
fn letters(x: i32, y: i32) -> Option<Colour> {
    let big = text("SKUA", x - 48, y - 420, 9);
    let small = text("A GPU OF ITS OWN 0123456789", x - 50, y - 496, 2);
    let tiny = text("PIXEL BY PIXEL, AND BACK AGAIN", x - 50, y - 518, 1);
    if big || small || tiny {
        return Some([250, 240, 222]);
    }
    // The shadow of the large letters.
    text("SKUA", x - 52, y - 424, 9).then_some([14, 16, 34])
}

/// Glyphs of 5 by 7 pixels, a row in each number, the leftmost pixel in bit 4.
const GLYPHS: [(char, [u8; 7]); 37] = [
    ('A', [14, 17, 17, 31, 17, 17, 17]),
    ('B', [30, 17, 17, 30, 17, 17, 30]),
    ('C', [14, 17, 16, 16, 16, 17, 14]),
    ('D', [30, 17, 17, 17, 17, 17, 30]),
    ('E', [31, 16, 16, 30, 16, 16, 31]),
    ('F', [31, 16, 16, 30, 16, 16, 16]),
    ('G', [14, 17, 16, 23, 17, 17, 15]),
    ('H', [17, 17, 17, 31, 17, 17, 17]),
    ('I', [14, 4, 4, 4, 4, 4, 14]),
    ('J', [7, 2, 2, 2, 2, 18, 12]),
    ('K', [17, 18, 20, 24, 20, 18, 17]),
    ('L', [16, 16, 16, 16, 16, 16, 31]),
    ('M', [17, 27, 21, 21, 17, 17, 17]),
    ('N', [17, 25, 21, 19, 17, 17, 17]),
    ('O', [14, 17, 17, 17, 17, 17, 14]),
    ('P', [30, 17, 17, 30, 16, 16, 16]),
    ('Q', [14, 17, 17, 17, 21, 18, 13]),
    ('R', [30, 17, 17, 30, 20, 18, 17]),
    ('S', [15, 16, 16, 14, 1, 1, 30]),
    ('T', [31, 4, 4, 4, 4, 4, 4]),
    ('U', [17, 17, 17, 17, 17, 17, 14]),
    ('V', [17, 17, 17, 17, 17, 10, 4]),
    ('W', [17, 17, 17, 21, 21, 21, 10]),
    ('X', [17, 17, 10, 4, 10, 17, 17]),
    ('Y', [17, 17, 10, 4, 4, 4, 4]),
    ('Z', [31, 1, 2, 4, 8, 16, 31]),
    (',', [0, 0, 0, 0, 12, 4, 8]),
    ('0', [14, 17, 19, 21, 25, 17, 14]),
    ('1', [4, 12, 4, 4, 4, 4, 14]),
    ('2', [14, 17, 1, 2, 4, 8, 31]),
    ('3', [31, 2, 4, 2, 1, 17, 14]),
    ('4', [2, 6, 10, 18, 31, 2, 2]),
    ('5', [31, 16, 30, 1, 1, 17, 14]),
    ('6', [6, 8, 16, 30, 17, 17, 14]),
    ('7', [31, 1, 2, 4, 8, 8, 8]),
    ('8', [14, 17, 17, 14, 17, 17, 14]),
    ('9', [14, 17, 17, 15, 1, 2, 12]),
];

/// Whether a line of text covers the position relative to its upper left corner.
fn text(line: &str, x: i32, y: i32, scale: i32) -> bool {
    let (column, row) = (x.div_euclid(scale), y.div_euclid(scale));
    let (Ok(row), Ok(column)) = (usize::try_from(row), usize::try_from(column)) else {
        return false;
    };
    // Glyphs are six pixels apart.
    let Some(letter) = line.chars().nth(column / 6) else {
        return false;
    };
    let bits = GLYPHS
        .iter()
        .find(|(c, _)| *c == letter)
        .and_then(|(_, rows)| rows.get(row));
    bits.is_some_and(|bits| column % 6 < 5 && bits >> (4 - column % 6) & 1 == 1)
}

/// The height of a range of hills, about 0 to 256.
fn ridge(x: i32, seed: u32, period: i32, detail: i32) -> i32 {
    noise(x * 256 / period, 0, seed) * 3 / 4
        + noise(x * 256 / detail, 1, seed) / 5
        + noise(x * 256 / 12, 2, seed) / 24
}

/// Smooth noise along `x`, in 256ths of its period, from row `row`: 0 to 255.
fn noise(x: i32, row: i32, seed: u32) -> i32 {
    let (cell, at) = (x.div_euclid(256), x.rem_euclid(256));
    let value = |cell: i32| hash(cell, row, seed) % 256;
    // 3 t^2 - 2 t^3
    let share = at * at * (768 - 2 * at) / 65536;
    value(cell) + (value(cell + 1) - value(cell)) * share / 256
}

/// Any number from 0 up that looks random.
fn hash(x: i32, y: i32, seed: u32) -> i32 {
    let bits = |v: i32| u32::from_ne_bytes(v.to_ne_bytes());
    let mut h = bits(x).wrapping_mul(0x9e37_79b1)
        ^ bits(y).wrapping_mul(0x85eb_ca77)
        ^ seed.wrapping_mul(0xc2b2_ae3d);
    h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
    h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    // CAST: one bit less fits.
    ((h ^ (h >> 15)) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_always_the_same_and_not_dull() {
        let picture = picture();
        assert_eq!(picture, super::picture());
        assert_eq!((picture.width(), picture.height()), (WIDTH, HEIGHT));
        let mut colours = picture.pixels().to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert!(colours.len() > 10_000, "{} colours", colours.len());
        assert!(picture.pixels().iter().all(|p| p >> 24 == 255));
    }
}
