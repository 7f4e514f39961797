// SPDX-License-Identifier: MIT

//! Bands, buffers and dispatches for one image.
//!
//! A plan says what to do, and not where: whoever runs it gives it addresses ([`Layout`]) and does
//! the transfers. For each stage in order, and each band if the stage is banded: the rows
//! `band.source` of the image go to the layout's source, then the dispatches run in order, then, if
//! the stage writes, the rows `band.target` of the result are in the layout's target. The histogram
//! must be zero before the first stage.
//!
//! Two bands may be under way at once, if each has its own source, target and intermediate: only
//! the histogram and the table are shared, and the first is only added to.

use std::fmt;
use std::ops::Range;

use skua_asm::{BindError, Program};
use skua_spec::command::Dispatch;

use crate::filter::{Cover, Filter, Pass, Stage};
use crate::weights::{self, MAX_RADIUS};

/// Bytes of a pixel.
const PIXEL: u64 = 4;
/// Most pixels of a band's source: the programs' indices have 32 bits, and their rows and columns
/// are compared with a sign.
const MAX_PIXELS: u64 = 1 << 30;
/// Most work of a band: its pixels times (8 + halo), which a dispatch's instructions grow with. It
/// keeps a submission to seconds at the most, far from what a driver takes for a hang.
const MAX_WORK: u64 = 1 << 25;
/// Most groups of a dispatch in one direction.
const MAX_GROUPS: u32 = 0xffff;
/// Bytes of the histogram and of the table.
const TABLE: u64 = 256 * 4;

/// Rows of the image that are processed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Rows of the image that are read.
    pub source: Range<u32>,
    /// Rows of the result.
    pub target: Range<u32>,
}

/// Bytes that the buffers of a layout need; 0 where the filter does not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// A band's source.
    pub source: u64,
    /// A band's target.
    pub target: u64,
    /// A band between two passes.
    pub intermediate: u64,
    /// The blur's weights.
    pub weights: u64,
    /// The histogram.
    pub histogram: u64,
    /// The table made of it.
    pub table: u64,
}

impl Sizes {
    /// Bytes that each band under way needs for itself.
    pub const fn band(&self) -> u64 {
        self.source + self.target + self.intermediate
    }
}

/// GPU virtual addresses, each a multiple of 8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Of each program, in the order of [`Plan::programs`].
    pub programs: Vec<u64>,
    /// A band's source.
    pub source: u64,
    /// A band's target.
    pub target: u64,
    /// A band between two passes.
    pub intermediate: u64,
    /// The weights, [`Plan::weights`].
    pub weights: u64,
    /// The histogram, zero at first.
    pub histogram: u64,
    /// The table made of it.
    pub table: u64,
}

/// How an image is filtered.
pub struct Plan {
    filter: Filter,
    /// Of a blur, in pixels.
    radius: u32,
    /// Pixels of a row of the image.
    width: u32,
    /// Rows of the image.
    height: u32,
    /// From top to bottom, together the whole image.
    bands: Vec<Band>,
    /// Of all passes, in order.
    programs: Vec<Program>,
    /// Of a blur of `radius`.
    weights: Vec<u32>,
    /// Of a band's buffers; the last band may need less.
    sizes: Sizes,
    /// Bands in VRAM at the same time: 2, or 1 if there is only one.
    slots: u32,
}

impl Plan {
    /// Plans a filter for an image of `width` by `height` pixels. `radius` is the blur's, and
    /// ignored by other filters. `budget` is how many bytes the buffers of bands may have together.
    ///
    /// An image that fits, and is not too much work for one submission, is one band. Otherwise the
    /// bands are as high as both allow for two bands at once.
    ///
    /// # Errors
    ///
    /// [`PlanError`].
    pub fn new(
        filter: Filter,
        radius: u32,
        width: u32,
        height: u32,
        budget: u64,
    ) -> Result<Self, PlanError> {
        if width == 0 || height == 0 {
            return Err(PlanError::Empty);
        }
        let radius = if filter == Filter::Blur { radius } else { 0 };
        if radius > MAX_RADIUS {
            return Err(PlanError::Radius(radius));
        }
        let halo = filter.halo(radius);
        let passes = || filter.stages().iter().flat_map(|s| s.passes);
        let programs = passes()
            .map(|p| p.source.assemble().map_err(PlanError::Program))
            .collect::<Result<Vec<_>, _>>()?;
        let (tile_x, tile_y) = passes()
            .filter(|p| p.cover != Cover::One)
            .fold((u32::MAX, u32::MAX), |(x, y), p| {
                (x.min(p.tile[0]), y.min(p.tile[1]))
            });
        if width.div_ceil(tile_x) > MAX_GROUPS {
            return Err(PlanError::Width(width));
        }
        // The bytes of a band, and of two.
        let sizes = |rows: u32| sizes(filter, radius, width, height, rows);
        let most_rows = u32::try_from(MAX_PIXELS / u64::from(width))
            .unwrap_or(u32::MAX)
            .min(MAX_GROUPS.saturating_mul(tile_y))
            .saturating_sub(2 * halo);
        let most_rows = u32::try_from(MAX_WORK / (u64::from(width) * (8 + u64::from(halo))))
            .unwrap_or(u32::MAX)
            .clamp(1, most_rows.max(1));
        let (rows, slots) = if height <= most_rows && sizes(height).band() <= budget {
            (height, 1)
        } else {
            let fits = |rows: u32| 2 * sizes(rows).band() <= budget;
            // The largest that fits: `fits` holds up to some number, and then no more.
            let (mut low, mut high) = (0, most_rows.min(height));
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            if low == 0 {
                return Err(PlanError::Budget {
                    needed: 2 * sizes(1).band(),
                    budget,
                });
            }
            (low, 2)
        };
        let step = usize::try_from(rows).map_err(|_| PlanError::Width(width))?;
        let bands = (0..height)
            .step_by(step)
            .map(|start| {
                let target = start..height.min(start.saturating_add(rows));
                Band {
                    source: target.start.saturating_sub(halo)
                        ..height.min(target.end.saturating_add(halo)),
                    target,
                }
            })
            .collect();
        Ok(Self {
            filter,
            radius,
            width,
            height,
            bands,
            programs,
            weights: weights::gaussian(radius),
            sizes: sizes(rows),
            slots,
        })
    }

    /// The stages, in order.
    pub fn stages(&self) -> &'static [Stage] {
        self.filter.stages()
    }

    /// The bands, from the top.
    pub fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// The programs of all passes, in order.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// What the buffer of weights holds.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// Bytes of the buffers.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Bands that the budget lets be under way at once: 1 or 2.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a row.
    pub fn pitch(&self) -> u64 {
        u64::from(self.width) * PIXEL
    }

    /// The dispatches of one stage on one band, in order; each one needs the results of those
    /// before it. A stage that is not banded ignores the band.
    ///
    /// # Errors
    ///
    /// [`BindError`] if a program declares an argument that no filter has: a mistake in this crate.
    pub fn dispatches(
        &self,
        stage: usize,
        band: &Band,
        layout: &Layout,
    ) -> Result<Vec<Dispatch>, BindError> {
        let before: usize = self
            .stages()
            .iter()
            .take(stage)
            .map(|s| s.passes.len())
            .sum();
        let passes = self.stages().get(stage).map_or(&[][..], |s| s.passes);
        passes
            .iter()
            .enumerate()
            .map(|(i, pass)| {
                let program = &self.programs[before + i];
                let address = layout.programs.get(before + i).copied().unwrap_or(0);
                program.dispatch(address, self.groups(pass, band), |name| {
                    self.argument(name, pass, band, layout)
                })
            })
            .collect()
    }

    fn groups(&self, pass: &Pass, band: &Band) -> [u32; 3] {
        let rows = match pass.cover {
            Cover::Source => band.source.len(),
            Cover::Target => band.target.len(),
            Cover::One => return [1; 3],
        };
        // CAST: rows of a band, which are 32-bit numbers.
        let rows = rows as u32;
        [
            self.width.div_ceil(pass.tile[0]),
            rows.div_ceil(pass.tile[1]),
            1,
        ]
    }

    /// The value of a program's argument.
    fn argument(&self, name: &str, pass: &Pass, band: &Band, layout: &Layout) -> Option<u64> {
        let rows = |range: &Range<u32>| u64::from(range.end - range.start);
        // The first of two passes writes what the second one reads.
        let is_first_of_two = pass.cover == Cover::Source;
        Some(match name {
            "source" => layout.source,
            "target" if is_first_of_two => layout.intermediate,
            "target" => layout.target,
            "intermediate" => layout.intermediate,
            "weights" => layout.weights,
            "histogram" => layout.histogram,
            "table" => layout.table,
            "width" => self.width.into(),
            "rows" if is_first_of_two => rows(&band.source),
            "rows" => rows(&band.target),
            "source_rows" => rows(&band.source),
            "first" => u64::from(band.target.start - band.source.start),
            "radius" => self.radius.into(),
            "shift" => shift(u64::from(self.width) * u64::from(self.height)).into(),
            _ => return None,
        })
    }
}

/// How far the equalisation shifts counts of pixels so that 255 times a count fits 32 bits.
pub(crate) fn shift(pixels: u64) -> u32 {
    (0..).find(|s| pixels >> s < 1 << 24).unwrap_or(0)
}

/// Bytes of the buffers, for bands of at most `rows` rows.
fn sizes(filter: Filter, radius: u32, width: u32, height: u32, rows: u32) -> Sizes {
    let pitch = u64::from(width) * PIXEL;
    let target = u64::from(rows);
    let source = (target + 2 * u64::from(filter.halo(radius))).min(height.into());
    let uses = |filter_that_does: Filter, bytes: u64| {
        if filter == filter_that_does {
            bytes
        } else {
            0
        }
    };
    Sizes {
        source: source * pitch,
        target: target * pitch,
        intermediate: uses(Filter::Blur, source * pitch),
        weights: uses(Filter::Blur, (u64::from(radius) + 1) * 4),
        histogram: uses(Filter::Equalize, TABLE),
        table: uses(Filter::Equalize, TABLE),
    }
}

/// A filter cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The image has no pixels.
    Empty,
    /// The radius is above [`MAX_RADIUS`].
    Radius(u32),
    /// The image has more columns than a dispatch can cover.
    Width(u32),
    /// Two bands of one row each need more than the budget.
    Budget {
        /// Bytes that they need.
        needed: u64,
        /// Bytes of the budget.
        budget: u64,
    },
    /// A program of this crate does not assemble.
    Program(String),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the image has no pixels"),
            Self::Radius(radius) => {
                write!(f, "the radius {radius} is above {MAX_RADIUS}")
            }
            Self::Width(width) => write!(f, "an image {width} pixels wide is too wide"),
            Self::Budget { needed, budget } => write!(
                f,
                "the smallest bands need {needed} bytes of GPU memory, and there are {budget}"
            ),
            Self::Program(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for PlanError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_fits_is_one_band() {
        let plan = Plan::new(Filter::Blur, 8, 100, 50, 100 * 50 * 4 * 3).expect("it fits");
        assert_eq!(
            plan.bands(),
            [Band {
                source: 0..50,
                target: 0..50
            }]
        );
        assert_eq!((plan.slots(), plan.sizes().band()), (1, 60_000));
    }

    #[test]
    fn bands_have_halos_and_keep_to_the_budget() {
        for budget in [8_000, 20_000, 59_999] {
            let plan = Plan::new(Filter::Edge, 0, 100, 80, budget).expect("it can be planned");
            assert!(plan.bands().len() > 1);
            assert_eq!(plan.slots(), 2);
            assert!(2 * plan.sizes().band() <= budget);
            let mut row = 0;
            for band in plan.bands() {
                assert_eq!(band.target.start, row);
                assert_eq!(band.source.start, row.saturating_sub(1));
                row = band.target.end;
                assert_eq!(band.source.end, (row + 1).min(80));
                assert!(band.source.len() as u64 * 400 <= plan.sizes().source);
                assert!(band.target.len() as u64 * 400 <= plan.sizes().target);
            }
            assert_eq!(row, 80);
        }
    }

    #[test]
    fn what_cannot_be_planned() {
        let error = |filter, radius, width, height, budget| {
            Plan::new(filter, radius, width, height, budget).err()
        };
        assert_eq!(
            error(Filter::Invert, 0, 0, 1, 1 << 20),
            Some(PlanError::Empty)
        );
        assert_eq!(
            error(Filter::Blur, 65, 9, 9, 1 << 20),
            Some(PlanError::Radius(65))
        );
        assert_eq!(error(Filter::Invert, 65, 9, 9, 1 << 20), None);
        assert_eq!(
            error(Filter::Invert, 0, 100, 9, 1599),
            Some(PlanError::Budget {
                needed: 1600,
                budget: 1599
            })
        );
        assert_eq!(error(Filter::Invert, 0, 100, 9, 1600), None);
        assert_eq!(
            error(Filter::Invert, 0, u32::MAX, 9, u64::MAX),
            Some(PlanError::Width(u32::MAX))
        );
        // The largest images are cut where indices would no longer fit.
        let plan = Plan::new(Filter::Blur, 64, 1 << 20, 1 << 20, u64::MAX / 4);
        let plan = plan.expect("it can be planned");
        assert!(plan.sizes().source / 4 <= MAX_PIXELS);
    }

    #[test]
    fn shifts() {
        assert_eq!(shift(1), 0);
        assert_eq!(shift((1 << 24) - 1), 0);
        assert_eq!(shift(1 << 24), 1);
        assert_eq!(shift(1 << 32), 9);
    }
}
