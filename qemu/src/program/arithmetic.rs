// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an instruction computes for one thread.
//!
//! Floats are IEEE 754 binary32 to nearest even with subnormals. A result that is not a number is
//! always [`NAN`], whatever the host would make of the operands' payloads; only the sign operations
//! (fabs, fneg) pass bits through.

/// The one result that is not a number.
pub const NAN: u32 = 0x7fc0_0000;

#[inline(always)]
fn float(bits: u32) -> f32 {
    f32::from_bits(bits)
}

#[inline(always)]
fn result(value: f32) -> u32 {
    if value.is_nan() {
        NAN
    } else {
        value.to_bits()
    }
}

#[inline(always)]
pub(crate) fn mulhu(a: u32, b: u32) -> u32 {
    // CAST: the high half.
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

#[inline(always)]
pub(crate) fn mulhs(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers; the high half.
    ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
}

#[inline(always)]
pub(crate) fn divu(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(u32::MAX)
}

#[inline(always)]
pub(crate) fn divs(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers.
    let (a, b) = (a as i32, b as i32);
    if b == 0 {
        u32::MAX
    } else {
        a.wrapping_div(b) as u32
    }
}

#[inline(always)]
pub(crate) fn remu(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

#[inline(always)]
pub(crate) fn rems(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers.
    let (x, y) = (a as i32, b as i32);
    if y == 0 {
        a
    } else {
        x.wrapping_rem(y) as u32
    }
}

#[inline(always)]
pub(crate) fn sar(a: u32, b: u32) -> u32 {
    // CAST: a register as a signed number.
    (a as i32).wrapping_shr(b) as u32
}

#[inline(always)]
pub(crate) fn mins(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers.
    (a as i32).min(b as i32) as u32
}

#[inline(always)]
pub(crate) fn maxs(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers.
    (a as i32).max(b as i32) as u32
}

#[inline(always)]
pub(crate) fn fadd(a: u32, b: u32) -> u32 {
    result(float(a) + float(b))
}

#[inline(always)]
pub(crate) fn fsub(a: u32, b: u32) -> u32 {
    result(float(a) - float(b))
}

#[inline(always)]
pub(crate) fn fmul(a: u32, b: u32) -> u32 {
    result(float(a) * float(b))
}

#[inline(always)]
pub(crate) fn fdiv(a: u32, b: u32) -> u32 {
    result(float(a) / float(b))
}

#[inline(always)]
pub(crate) fn fma(a: u32, b: u32, c: u32) -> u32 {
    result(float(a).mul_add(float(b), float(c)))
}

#[inline(always)]
pub(crate) fn fmin(a: u32, b: u32) -> u32 {
    let (x, y) = (float(a), float(b));
    if x < y || y.is_nan() {
        result(x)
    } else if y < x || x.is_nan() {
        result(y)
    } else {
        // Equal: the same bits, or zeros of which one may be negative.
        a | b
    }
}

#[inline(always)]
pub(crate) fn fmax(a: u32, b: u32) -> u32 {
    let (x, y) = (float(a), float(b));
    if x > y || y.is_nan() {
        result(x)
    } else if y > x || x.is_nan() {
        result(y)
    } else {
        a & b
    }
}

#[inline(always)]
pub(crate) fn fsqrt(b: u32) -> u32 {
    result(float(b).sqrt())
}

#[inline(always)]
pub(crate) fn ffloor(b: u32) -> u32 {
    result(float(b).floor())
}

#[inline(always)]
pub(crate) fn cvt_fs(b: u32) -> u32 {
    // CAST: to nearest even, as section 9 says.
    (b as i32 as f32).to_bits()
}

#[inline(always)]
pub(crate) fn cvt_fu(b: u32) -> u32 {
    // CAST: to nearest even, as section 9 says.
    (b as f32).to_bits()
}

#[inline(always)]
pub(crate) fn cvt_sf(b: u32) -> u32 {
    // CAST: towards zero, held to the range, 0 for what is not a number, as section 9 says.
    float(b) as i32 as u32
}

#[inline(always)]
pub(crate) fn cvt_uf(b: u32) -> u32 {
    // CAST: as above.
    float(b) as u32
}

#[inline(always)]
pub(crate) fn fseq(a: u32, b: u32) -> u32 {
    u32::from(float(a) == float(b))
}

#[inline(always)]
pub(crate) fn fsne(a: u32, b: u32) -> u32 {
    u32::from(float(a) != float(b))
}

#[inline(always)]
pub(crate) fn fslt(a: u32, b: u32) -> u32 {
    u32::from(float(a) < float(b))
}

#[inline(always)]
pub(crate) fn fsle(a: u32, b: u32) -> u32 {
    u32::from(float(a) <= float(b))
}
