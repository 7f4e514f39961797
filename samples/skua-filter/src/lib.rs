// SPDX-License-Identifier: MIT

//! Image filters on the Skua GPU, and the same filters on the CPU to compare with.
//!
//! A filter is one or more compute programs (`filters/*.s`) that run over an image in **stages**.
//! What does not fit the working memory is cut into **bands** of rows; a band's source has as many
//! rows more at both ends (its halo) as the filter looks far. The plan of stages, bands and
//! dispatches is made without a GPU, so that the tests run the same plan on the reference
//! interpreter and on the device model that the program runs on the GPU.
//!
//! | module | what it is |
//! |---|---|
//! | [`picture`] | an image in memory; PNG and JPEG |
//! | [`sample`] | the picture that is drawn where none is given |
//! | [`filter`] | the filters: names, programs, stages |
//! | [`weights`] | the weights of the blur |
//! | [`plan`] | bands, buffers and dispatches for one image |
//! | [`gpu`] | carrying a plan out on the GPU |
//! | [`counters`] | what device and driver counted meanwhile |
//! | [`urgent`] | a second client, whose work goes first |
//! | [`mod@reference`] | the filters on the CPU, in plain Rust |
//! | [`compare`] | finding differences |
//! | [`report`] | what is written down about a run |

pub mod compare;
pub mod counters;
pub mod filter;
pub mod gpu;
pub mod picture;
pub mod plan;
pub mod reference;
pub mod report;
pub mod sample;
pub mod urgent;
pub mod weights;
