// SPDX-License-Identifier: MIT

//! Repetitions of one count.

use serde::Serialize;

/// What repetitions of one count were.
///
/// Counts of instructions differ only where an interrupt came in between or a cache of the
/// allocator ran dry: the median is the usual path, the minimum the undisturbed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Repetitions.
    pub count: usize,
    /// The least.
    pub min: u64,
    /// The middle one, of an even number the lower.
    pub median: u64,
    /// The greatest.
    pub max: u64,
}

impl Sample {
    /// Of these values; `None` if there are none.
    pub fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        Some(Self {
            count: values.len(),
            min: *values.first()?,
            median: *values.get((values.len() - 1) / 2)?,
            max: *values.last()?,
        })
    }

    /// The same with each value divided, rounding to the nearest.
    pub fn per(self, divisor: u64) -> Self {
        let divide = |value: u64| value.saturating_add(divisor / 2) / divisor.max(1);
        Self {
            count: self.count,
            min: divide(self.min),
            median: divide(self.median),
            max: divide(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter() {
        let sample = Sample::of(vec![9, 1, 5, 7]).expect("values");
        assert_eq!(
            sample,
            Sample {
                count: 4,
                min: 1,
                median: 5,
                max: 9
            }
        );
        assert_eq!(Sample::of(vec![3]).map(|s| (s.min, s.max)), Some((3, 3)));
        assert_eq!(Sample::of(Vec::new()), None);
    }

    #[test]
    fn division_rounds() {
        let sample = Sample::of(vec![95, 96, 112, 113]).expect("values").per(32);
        assert_eq!((sample.min, sample.median, sample.max), (3, 3, 4));
    }
}
