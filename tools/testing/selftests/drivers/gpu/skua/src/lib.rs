// SPDX-License-Identifier: MIT

//! What the kselftests of the Skua driver share.
//!
//! Each program of `src/bin` is a family of tests and prints KTAP. A test is a function without
//! arguments that panics, having printed what it saw, if something does not hold; it runs in a
//! process of its own ([`child`]). Names never change; those that start with `row_S_RR_` prove
//! that row of `Documentation/gpu/skua/conformance.rst`, and that table names them.
//!
//! - [`suite`], [`child`], [`document`]: running and reporting;
//! - [`cases`]: tables of cases.

#![forbid(unsafe_code)]

pub mod cases;
pub mod child;
pub mod document;
pub mod suite;

pub use cases::Cases;
pub use child::skip;
