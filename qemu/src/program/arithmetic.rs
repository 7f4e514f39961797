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

/// By 64-bit floats, which hosts divide several of at once: both numbers are exact, and so is what
/// is before the point of their quotient, which is nearer to no whole number than it is precise.
#[inline(always)]
pub(crate) fn divu(a: u32, b: u32) -> u32 {
    // Above it a float has no bits behind the point, and the whole number in its low ones.
    const WHOLE: f64 = (1_u64 << 52) as f64;
    let quotient = f64::from(a) / f64::from(b);
    let nearest = quotient + WHOLE;
    let above = nearest - WHOLE > quotient;
    // CAST: the low bits.
    let whole = (nearest.to_bits() as u32).wrapping_sub(above.into());
    if b == 0 {
        u32::MAX
    } else {
        whole
    }
}

#[inline(always)]
pub(crate) fn divs(a: u32, b: u32) -> u32 {
    // CAST: registers as signed numbers, and the sign that the quotient has.
    let magnitude = divu((a as i32).unsigned_abs(), (b as i32).unsigned_abs());
    let sign = ((a ^ b) as i32 >> 31) as u32;
    if b == 0 {
        u32::MAX
    } else {
        (magnitude ^ sign).wrapping_sub(sign)
    }
}

#[inline(always)]
pub(crate) fn remu(a: u32, b: u32) -> u32 {
    a.wrapping_sub(divu(a, b).wrapping_mul(b))
}

#[inline(always)]
pub(crate) fn rems(a: u32, b: u32) -> u32 {
    a.wrapping_sub(divs(a, b).wrapping_mul(b))
}

/// `a + b` of pairs, each with its low half first, modulo 2^64.
#[inline(always)]
pub(crate) fn add64(a: (u32, u32), b: (u32, u32)) -> (u32, u32) {
    let low = a.0.wrapping_add(b.0);
    (low, a.1.wrapping_add(b.1).wrapping_add((low < a.0).into()))
}

/// `a - b` of pairs, as [`add64`].
#[inline(always)]
pub(crate) fn sub64(a: (u32, u32), b: (u32, u32)) -> (u32, u32) {
    let high = a.1.wrapping_sub(b.1).wrapping_sub((a.0 < b.0).into());
    (a.0.wrapping_sub(b.0), high)
}

/// The pair of a number that is sign extended.
#[inline(always)]
pub(crate) fn extended(value: u32) -> (u32, u32) {
    // CAST: a register as a signed number.
    (value, (value as i32 >> 31) as u32)
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

/// `a * b + c`, rounded once.
///
/// A host without the instruction would call a function for each thread. This is the same by the
/// means of 64-bit floats, which a compiler can do for several threads at once: the product is
/// exact, and a sum rounded to odd keeps enough to be rounded to nearest afterwards (Boldo and
/// Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
#[inline(always)]
pub(crate) fn fma(a: u32, b: u32, c: u32) -> u32 {
    let product = f64::from(float(a)) * f64::from(float(b));
    let addend = f64::from(float(c));
    let sum = product + addend;
    // What rounding took away, exactly; not a number where the sum is infinite or none.
    let part = sum - product;
    let error = (product - (sum - part)) + (addend - part);
    let bits = sum.to_bits();
    // False for what is not a number.
    let inexact = error.abs() > 0.0;
    let away = (error > 0.0) == (sum > 0.0);
    let odd = if !inexact || bits & 1 != 0 {
        bits
    } else if away {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    // CAST: to nearest even.
    result(f64::from_bits(odd) as f32)
}

/// As [`fma`], for a host that has the instruction.
#[inline(always)]
pub(crate) fn fused(a: u32, b: u32, c: u32) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bits of a float near `a * b` but for the sign, where the sum nearly vanishes.
    fn near(a: u32, b: u32, off: u32) -> u32 {
        (-(float(a) * float(b))).to_bits().wrapping_add(off)
    }

    fn check(a: u32, b: u32, c: u32) {
        assert_eq!(fma(a, b, c), fused(a, b, c), "{a:#x} {b:#x} {c:#x}");
    }

    #[test]
    fn fma_of_what_is_special() {
        let values = [
            0,
            1,
            2,
            0x007f_ffff,
            0x0080_0000,
            0x0080_0001,
            0x3f7f_ffff,
            0x3f80_0000,
            0x3f80_0001,
            0x4b7f_ffff,
            0x4b80_0001,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7fc0_0000,
            0x7f80_0001,
            0x1a80_0001,
            0x2500_0001,
            0x3300_0001,
            0x3380_0000,
            0x0c80_0000,
        ];
        let signed = || values.into_iter().flat_map(|v: u32| [v, v | 1 << 31]);
        for a in signed() {
            for b in signed() {
                for c in signed() {
                    check(a, b, c);
                }
            }
        }
    }

    fn check_division(a: u32, b: u32) {
        let (x, y) = (a as i32, b as i32);
        let unsigned = (a.checked_div(b), a.checked_rem(b));
        let expected = (unsigned.0.unwrap_or(u32::MAX), unsigned.1.unwrap_or(a));
        assert_eq!((divu(a, b), remu(a, b)), expected, "{a} / {b}");
        let signed = match y {
            0 => (-1, x),
            _ => (x.wrapping_div(y), x.wrapping_rem(y)),
        };
        let found = (divs(a, b) as i32, rems(a, b) as i32);
        assert_eq!(found, signed, "{x} / {y}");
    }

    #[test]
    fn division_of_what_is_special() {
        let powers =
            (0..32).flat_map(|n| [-1, 0, 1].map(|off| (1_u32 << n).wrapping_add_signed(off)));
        let values: Vec<u32> = powers.flat_map(|v| [v, v.wrapping_neg()]).collect();
        for a in &values {
            for b in &values {
                check_division(*a, *b);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000, failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn quotients_are_whole(a in any::<u32>(), b in any::<u32>(), shift in 0_u32..32) {
            let b = b >> shift;
            check_division(a, b);
            // Where the quotient is nearly the next one.
            let multiple = divu(a, b).wrapping_mul(b);
            check_division(multiple, b);
            check_division(multiple.wrapping_sub(1), b);
        }

        #[test]
        fn fma_is_rounded_once(
            a in any::<u32>(), b in any::<u32>(), c in any::<u32>(),
            off in 0_u32..64, shift in 0_u32..24,
        ) {
            check(a, b, c);
            check(a, b, near(a, b, off.wrapping_sub(32)));
            // Ties: few bits set, and addends of half a unit.
            let few = |v: u32| v & (u32::MAX << shift);
            check(few(a), few(b), c);
            check(few(a), few(b), few(c));
            let product = (float(few(a)) * float(few(b))).to_bits();
            let unit = (product & 0x7f80_0000).wrapping_sub(24 << 23);
            check(few(a), few(b), unit);
            check(few(a), few(b), unit | 1);
            check(few(a), few(b), unit.wrapping_sub(1));
        }
    }
}
