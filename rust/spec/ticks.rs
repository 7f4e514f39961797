// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What work takes, in ticks (manual section 3, "Time").
//!
//! # Examples
//!
//! ```
//! use skua_spec::command::BYTES_PER_TICK;
//! use skua_spec::ticks;
//!
//! // A page of VRAM filled through a translation that nothing was kept of, the last table's entry
//! // and the page's in system memory.
//! let miss = ticks::TLB_MISS + 3 * ticks::WALK + 2 * ticks::SYSTEM;
//! assert_eq!(ticks::COMMAND + miss + 4096 / BYTES_PER_TICK, 91);
//! ```

/// A command that was decoded.
pub const COMMAND: u64 = 1;
/// An instruction that was issued for a wave.
pub const INSTRUCTION: u64 = 1;
/// [`super::command::BYTES_PER_TICK`] bytes of FILL or COPY, or the rest of a row.
pub const LINE: u64 = 1;
/// A triangle of DRAW that was read.
pub const TRIANGLE: u64 = 1;
/// A row of a triangle in which pixels were looked for, for each wave of them.
pub const ROW: u64 = 1;
/// A wave of pixels that was written.
pub const PIXELS: u64 = 1;
/// That an access is to system memory, for each 64 bytes of it or the rest: so much more.
pub const SYSTEM: u64 = 3;
/// A translation that the TLB did not have.
pub const TLB_MISS: u64 = 8;
/// An entry for a table that the page-walk cache did not have.
pub const WALK: u64 = 4;
/// An atomic operation on what a lower thread operates on in the same instruction: so much more.
pub const CONTENDED: u64 = 4;

/// The part of an access that [`SYSTEM`] is for.
pub const SYSTEM_BYTES: u64 = 64;
