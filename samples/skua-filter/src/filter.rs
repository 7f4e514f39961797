// SPDX-License-Identifier: MIT

//! The filters: names, programs, stages.

use skua_asm::Program;

/// What is done to an image, in one pass or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Luma only.
    Grayscale,
    /// The negative.
    Invert,
    /// A brown tone.
    Sepia,
    /// Sobel's edges.
    Edge,
    /// Sharper, by the Laplacian.
    Sharpen,
    /// A relief.
    Emboss,
    /// Gaussian blur with a radius.
    Blur,
    /// The histogram of luma made even.
    Equalize,
}

/// A compute program of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Name of the file without its ending.
    pub name: &'static str,
    /// Assembly, without what it includes.
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source {
            name: $name,
            text: include_str!(concat!("../filters/", $name, ".s")),
        }
    };
}

macro_rules! includes {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../filters/", $name)))),*]
    };
}

/// What the programs share: names and texts.
const INCLUDES: &[(&str, &str)] = includes![
    "blur_begin.inc" "blur_end.inc" "channels.inc" "group.inc" "luma.inc" "neighbours.inc"
    "point.inc" "store.inc"
];

impl Source {
    /// Assembles the program.
    ///
    /// # Errors
    ///
    /// The assembler's first error, with the file's name: a mistake in this crate.
    pub fn assemble(&self) -> Result<Program, String> {
        let include = |name: &str| {
            let file = INCLUDES.iter().find(|(other, _)| *other == name);
            file.map(|(_, text)| (*text).to_owned())
        };
        skua_asm::assemble_with(self.text, include).map_err(|errors| {
            let file = format!("{}.s", self.name);
            errors
                .first()
                .map_or_else(|| file.clone(), |e| e.display(&file).to_string())
        })
    }
}

/// Which rows of a band a pass covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cover {
    /// Those of the source, halo included.
    Source,
    /// Those of the target.
    Target,
    /// None: one group does it all.
    One,
}

/// One dispatch for each band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// What each thread of the pass runs.
    pub source: Source,
    /// The rows it covers.
    pub cover: Cover,
    /// Columns and rows that a group covers.
    pub tile: [u32; 2],
}

/// Passes that run one after the other on each band, before the next stage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// In order; each reads what the one before wrote.
    pub passes: &'static [Pass],
    /// It runs on every band, which is uploaded for it; else it runs once, without an image.
    pub banded: bool,
    /// The bands of the result are complete and are downloaded.
    pub writes: bool,
}

macro_rules! pass {
    ($name:literal, $cover:ident, $tile:expr) => {
        Pass {
            source: source!($name),
            cover: Cover::$cover,
            tile: $tile,
        }
    };
}

macro_rules! simple {
    ($name:literal) => {
        &[Stage {
            passes: &[pass!($name, Target, [32, 8])],
            banded: true,
            writes: true,
        }]
    };
}

impl Filter {
    /// All filters.
    pub const ALL: [Self; 8] = [
        Self::Grayscale,
        Self::Invert,
        Self::Sepia,
        Self::Edge,
        Self::Sharpen,
        Self::Emboss,
        Self::Blur,
        Self::Equalize,
    ];

    /// The name that the user gives.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grayscale => "grayscale",
            Self::Invert => "invert",
            Self::Sepia => "sepia",
            Self::Edge => "edge",
            Self::Sharpen => "sharpen",
            Self::Emboss => "emboss",
            Self::Blur => "blur",
            Self::Equalize => "equalize",
        }
    }

    /// What it does, in a few words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Grayscale => "shades of grey by luma",
            Self::Invert => "the negative",
            Self::Sepia => "a brown tone, in floats",
            Self::Edge => "edges by Sobel's operator, with a tile in shared memory",
            Self::Sharpen => "sharper, by the Laplacian",
            Self::Emboss => "a relief, lit from above and the left",
            Self::Blur => "Gaussian blur in two passes, with --radius",
            Self::Equalize => "an even histogram of luma, counted with atomics",
        }
    }

    /// The filter with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Rows that a result depends on above and below its own; `radius` is the blur's.
    pub const fn halo(self, radius: u32) -> u32 {
        match self {
            Self::Edge | Self::Sharpen | Self::Emboss => 1,
            Self::Blur => radius,
            Self::Grayscale | Self::Invert | Self::Sepia | Self::Equalize => 0,
        }
    }

    /// The stages, in order.
    pub const fn stages(self) -> &'static [Stage] {
        match self {
            Self::Grayscale => simple!("grayscale"),
            Self::Invert => simple!("invert"),
            Self::Sepia => simple!("sepia"),
            Self::Edge => simple!("edge"),
            Self::Sharpen => simple!("sharpen"),
            Self::Emboss => simple!("emboss"),
            Self::Blur => &[Stage {
                passes: &[
                    pass!("blur_rows", Source, [64, 4]),
                    pass!("blur_columns", Target, [32, 16]),
                ],
                banded: true,
                writes: true,
            }],
            Self::Equalize => &[
                Stage {
                    passes: &[pass!("histogram", Source, [256, 16])],
                    banded: true,
                    writes: false,
                },
                Stage {
                    passes: &[pass!("equalize_table", One, [1, 1])],
                    banded: false,
                    writes: false,
                },
                Stage {
                    passes: &[pass!("equalize", Target, [32, 8])],
                    banded: true,
                    writes: true,
                },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_assemble() {
        for filter in Filter::ALL {
            assert_eq!(Filter::from_name(filter.name()), Some(filter));
            for pass in filter.stages().iter().flat_map(|s| s.passes) {
                let program = pass.source.assemble().unwrap_or_else(|e| panic!("{e}"));
                // Each file says how large its groups are; the histogram's have several rows a
                // thread, and the table's group has a thread for each luma.
                let [x, y, _] = program.threads();
                match pass.source.name {
                    "histogram" => assert_eq!([x, y], [256, 1]),
                    "equalize_table" => assert_eq!([x, y], [256, 1]),
                    name => assert_eq!([x, y], pass.tile, "{name}"),
                }
            }
        }
    }
}
