// SPDX-License-Identifier: MIT

//! A straight line through measured points: what one object more costs.
//!
//! One difference of two readings has the noise of both in it (pages come in batches, slabs hold
//! many objects). The slope of a least squares fit through many readings has much less, and the
//! largest distance of a point from the line tells how much there was.

/// A line `offset + slope * x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Growth of y for each x.
    pub slope: f64,
    /// y at x = 0.
    pub offset: f64,
    /// Largest distance of a point from the line, in units of y.
    pub deviation: f64,
}

impl Line {
    /// The line with the least squares through `(x, y)`; `None` if there are fewer than two
    /// different x.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
        let (x0, y0) = (mean(|p| p.0), mean(|p| p.1));
        let sxx: f64 = points.iter().map(|(x, _)| (x - x0).powi(2)).sum();
        let sxy: f64 = points.iter().map(|(x, y)| (x - x0) * (y - y0)).sum();
        if points.is_empty() || sxx == 0.0 {
            return None;
        }
        let slope = sxy / sxx;
        let offset = y0 - slope * x0;
        let deviation = points
            .iter()
            .map(|(x, y)| (offset + slope * x - y).abs())
            .fold(0.0, f64::max);
        Some(Self {
            slope,
            offset,
            deviation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_line_is_found() {
        let points: Vec<_> = (0..10)
            .map(|i| (f64::from(i * 100), f64::from(5000 + i * 100 * 384)))
            .collect();
        let line = Line::through(&points).expect("a line");
        assert!((line.slope - 384.0).abs() < 1e-9);
        assert!((line.offset - 5000.0).abs() < 1e-6);
        assert!(line.deviation < 1e-6);
    }

    #[test]
    fn steps_of_pages_average_out() {
        // 100-byte objects, 40 on a page: what a reading of pages sees.
        let points: Vec<_> = (0_u32..=16)
            .map(|i| {
                let objects = i * 250;
                (f64::from(objects), f64::from(objects.div_ceil(40) * 4096))
            })
            .collect();
        let line = Line::through(&points).expect("a line");
        assert!((line.slope - 102.4).abs() < 0.5, "{}", line.slope);
        assert!(line.deviation < 4096.0);
    }

    #[test]
    fn one_place_is_no_line() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }
}
