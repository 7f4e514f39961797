// SPDX-License-Identifier: GPL-2.0

//! What clients' memory is, where it is, and at which addresses the GPU finds it.
//!
//! Uses [`crate::hardware`] and [`crate::fences`]; what is submitted to engines it does not know.

pub(crate) mod bo;
pub(crate) mod installed;
pub(crate) mod page_table;
pub(crate) mod vm;
pub(crate) mod vram;
