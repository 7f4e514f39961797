// SPDX-License-Identifier: MIT

//! Breaks one rule of the tree at a time, and sees whether the test that is said to prove it fails.
//!
//! - [`table`]: `mutants.toml`, what is to be broken and which test must fail;
//! - [`place`]: where a test is, by its name: on the host, in a guest;
//! - [`scratch`]: a copy of the tree, and commands in it;
//! - [`verdict`]: what a report says of a mutant;
//! - [`known`]: what earlier runs found out about the same tree;
//! - [`table_run`], [`host_run`]: the two things that `make mutants` does.

#![forbid(unsafe_code)]

pub mod host_run;
pub mod known;
pub mod place;
pub mod scratch;
pub mod table;
pub mod table_run;
pub mod verdict;
