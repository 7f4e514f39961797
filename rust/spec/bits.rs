// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Words and bits of 64, in constant functions.

/// A word in 64 bits.
pub(crate) const fn wide(value: u32) -> u64 {
    value as u64
}

/// Bits 31:0.
pub(crate) const fn lo(value: u64) -> u32 {
    // CAST: the low half is meant.
    value as u32
}

/// Bits 63:32.
pub(crate) const fn hi(value: u64) -> u32 {
    // CAST: the high half is meant.
    (value >> 32) as u32
}

/// Two words as the halves of 64 bits.
pub(crate) const fn pair(lo: u32, hi: u32) -> u64 {
    wide(lo) | (wide(hi) << 32)
}

/// Bits `high:low`, both included, both below 64.
pub(crate) const fn mask(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - (high - low))) << low
}
