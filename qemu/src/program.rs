// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs, of DISPATCH and of DRAW (manual section 9).
//!
//! | module | what |
//! |---|---|
//! | [`cache`] | programs in decoded form |
//! | [`machine`] | a dispatch: groups one after the other, their waves in turn |
//! | [`wave`] | 32 threads: registers, control flow, divergence |
//! | [`arithmetic`] | what an instruction computes for one thread |
//! | [`window`] | translated pages for one step |
//! | [`global`] | loads, stores and atomics through GPU addresses |
//! | [`shared`] | the same in a group's shared memory |

pub mod arithmetic;
pub mod cache;
pub mod global;
pub mod machine;
pub mod shared;
pub mod wave;
pub mod window;
