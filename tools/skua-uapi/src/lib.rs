// SPDX-License-Identifier: MIT

//! The Skua uAPI in Rust, generated from the header.
