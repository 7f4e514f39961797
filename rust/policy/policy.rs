// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua driver's decisions, free of kernel types.
