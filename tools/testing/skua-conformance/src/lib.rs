// SPDX-License-Identifier: MIT

//! Checks `Documentation/gpu/skua/conformance.rst` against the report of a test run.
//!
//! [`table`] reads the document, [`report`] the report, [`verdict`] compares; [`mutants`] wants a
//! change that breaks each proven row.

#![forbid(unsafe_code)]

pub mod mutants;
pub mod report;
pub mod row;
pub mod table;
pub mod verdict;
