// SPDX-License-Identifier: MIT

//! The weights of the blur.

/// The largest radius; the programs' shared memory has room for it.
pub const MAX_RADIUS: u32 = 64;

/// What all weights together are: 1, as a 16-bit fraction.
pub const ONE: u32 = 1 << 16;

/// Weights of a Gaussian blur whose reach is `radius` (at most [`MAX_RADIUS`]): the pixel's own,
/// then those of both pixels at distance 1, 2 and so on. Each is a 16-bit fraction, and they sum to
/// exactly [`ONE`], so that an even area stays as it is. The deviation is half the radius.
pub fn gaussian(radius: u32) -> Vec<u32> {
    let radius = radius.min(MAX_RADIUS);
    let deviation = (f64::from(radius) / 2.0).max(0.5);
    let bell = |d: u32| (-(f64::from(d) / deviation).powi(2) / 2.0).exp();
    let sum: f64 = bell(0) + (1..=radius).map(|d| 2.0 * bell(d)).sum::<f64>();
    // CAST: floats from 0 to 65536, rounded down.
    let mut weights: Vec<u32> = (0..=radius)
        .map(|d| (bell(d) / sum * f64::from(ONE)) as u32)
        .collect();
    // What rounding lost goes to the middle.
    let others: u32 = weights.iter().skip(1).map(|w| 2 * w).sum();
    weights[0] = ONE - others;
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_sum_to_one_and_fall() {
        assert_eq!(gaussian(0), [ONE]);
        for radius in 0..=MAX_RADIUS {
            let weights = gaussian(radius);
            assert_eq!(weights.len(), radius as usize + 1);
            let sum = weights[0] + 2 * weights[1..].iter().sum::<u32>();
            assert_eq!(sum, ONE, "radius {radius}");
            assert!(weights.windows(2).all(|w| w[0] >= w[1]), "radius {radius}");
            assert!(weights.iter().all(|w| *w > 0), "radius {radius}");
        }
    }
}
