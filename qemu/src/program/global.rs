// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads, stores and atomics through GPU addresses.
//!
//! The threads of a wave access memory in the order of their numbers; the first one at fault ends
//! the program, and what lower ones have stored stays. Every access is aligned to its size and is
//! one access of the host's, so that other engines and the CPU never see a part of it.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

use skua_spec::address::PAGE_SIZE;
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::{Instruction, Op};
use skua_spec::ticks;
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::fault::Fault;
use crate::program::wave::{lanes, Lanes, Wave, LANES};
use crate::program::window::Windows;

#[cfg(target_endian = "big")]
compile_error!("the device is little endian and passes the host's words through");

/// Offset of an address in its page.
const fn inside(address: u64) -> usize {
    // CAST: below 4096.
    (address & (PAGE_SIZE - 1)) as usize
}

/// The addresses that an instruction names.
fn addresses(wave: &Wave, i: &Instruction) -> [u64; LANES] {
    let (lo, hi) = wave.pair(i.ra);
    // CAST: a signed offset.
    let offset = i64::from(i.imm as i32) as u64;
    std::array::from_fn(|l| (u64::from(lo[l]) | (u64::from(hi[l]) << 32)).wrapping_add(offset))
}

/// Addresses of an atomic, which has no offset.
fn plain_addresses(wave: &Wave, i: &Instruction) -> [u64; LANES] {
    let (lo, hi) = wave.pair(i.ra);
    std::array::from_fn(|l| u64::from(lo[l]) | (u64::from(hi[l]) << 32))
}

/// Runs `f` for every thread of `mask` on its page.
#[inline(always)]
fn for_each(
    windows: &mut Windows<'_>,
    addresses: &[u64; LANES],
    mask: u32,
    bytes: u64,
    access: Access,
    mut f: impl FnMut(usize, &VolatileSlice<'_>, usize),
) -> Result<(), Fault> {
    let mut rest = mask;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let address = addresses[first];
        if address % bytes != 0 {
            return Err(Fault::access(Reason::Misaligned, access, address));
        }
        let window = windows.find(address, access)?;
        // The threads that follow on the same page use the same window.
        let mut count = 0;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let here = addresses[lane];
            if (here ^ address) >= PAGE_SIZE || here % bytes != 0 {
                break;
            }
            f(lane, &window.slice, inside(here));
            count += 1;
            rest &= rest - 1;
        }
        windows.count(window.place, access, count * bytes);
    }
    Ok(())
}

macro_rules! load {
    ($atomic:ty, $slice:expr, $at:expr) => {
        $slice
            .get_atomic_ref::<$atomic>($at)
            .map_or(0, |a| a.load(Ordering::Relaxed))
    };
}

macro_rules! store {
    ($atomic:ty, $slice:expr, $at:expr, $value:expr) => {
        if let Ok(slot) = $slice.get_atomic_ref::<$atomic>($at) {
            slot.store($value, Ordering::Relaxed);
        }
    };
}

/// Executes a load for all active threads, in the order of their numbers.
pub(crate) fn load(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let at = addresses(wave, i);
    let mut out = *wave.register(i.rd);
    let read = Access::Read;
    // CAST: sign extension, and halves of a 64-bit value.
    match i.op {
        Op::LdU8 => for_each(windows, &at, mask, 1, read, |l, s, o| {
            out[l] = load!(AtomicU8, s, o).into();
        }),
        Op::LdS8 => for_each(windows, &at, mask, 1, read, |l, s, o| {
            out[l] = i32::from(load!(AtomicU8, s, o) as i8) as u32;
        }),
        Op::LdU16 => for_each(windows, &at, mask, 2, read, |l, s, o| {
            out[l] = load!(AtomicU16, s, o).into();
        }),
        Op::LdS16 => for_each(windows, &at, mask, 2, read, |l, s, o| {
            out[l] = i32::from(load!(AtomicU16, s, o) as i16) as u32;
        }),
        Op::Ld64 => {
            let mut high = *wave.register(i.rd + 1);
            for_each(windows, &at, mask, 8, read, |l, s, o| {
                let value = load!(AtomicU64, s, o);
                (out[l], high[l]) = (value as u32, (value >> 32) as u32);
            })?;
            *wave.register_mut(i.rd + 1) = high;
            Ok(())
        }
        _ => for_each(windows, &at, mask, 4, read, |l, s, o| {
            out[l] = load!(AtomicU32, s, o);
        }),
    }?;
    *wave.register_mut(i.rd) = out;
    Ok(())
}

/// As [`load`].
pub(crate) fn store(
    windows: &mut Windows<'_>,
    wave: &Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let at = addresses(wave, i);
    let value = wave.register(i.rd);
    let write = Access::Write;
    // CAST: the low bits are stored.
    match i.op {
        Op::St8 => for_each(windows, &at, mask, 1, write, |l, s, o| {
            store!(AtomicU8, s, o, value[l] as u8);
        }),
        Op::St16 => for_each(windows, &at, mask, 2, write, |l, s, o| {
            store!(AtomicU16, s, o, value[l] as u16);
        }),
        Op::St64 => {
            let (lo, hi) = wave.pair(i.rd);
            for_each(windows, &at, mask, 8, write, |l, s, o| {
                store!(AtomicU64, s, o, u64::from(lo[l]) | (u64::from(hi[l]) << 32));
            })
        }
        _ => for_each(windows, &at, mask, 4, write, |l, s, o| {
            store!(AtomicU32, s, o, value[l]);
        }),
    }
}

/// How many threads of `mask` name an address that a lower one names too.
fn contended(addresses: &[u64; LANES], mask: u32) -> u64 {
    let active = || lanes(mask).map(|l| addresses[l]);
    let pairs = || active().zip(active().skip(1));
    // Nearly always all differ, and ascend, or all are one.
    if pairs().all(|(a, b)| a < b) {
        return 0;
    }
    if pairs().all(|(a, b)| a == b) {
        return u64::from(mask.count_ones()) - 1;
    }
    let mut sorted: Vec<u64> = active().collect();
    sorted.sort_unstable();
    sorted.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64
}

/// Adds the time that threads of an atomic operation wait for each other.
fn contend(windows: &Windows<'_>, addresses: &[u64; LANES], mask: u32) {
    let time = contended(addresses, mask) * ticks::CONTENDED;
    windows.memory().tally().spend(time);
}

/// Executes an atomic operation on 32 bits.
pub(crate) fn atomic(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let at = plain_addresses(wave, i);
    contend(windows, &at, mask);
    let value = *wave.register(i.rb);
    // CAST: decoding has checked that the field is a register where it is used.
    let compared = *wave.register(i.imm as u8);
    let mut old: Lanes = [0; LANES];
    let op = i.op;
    for_each(windows, &at, mask, 4, Access::Atomic, |l, s, o| {
        let Ok(slot) = s.get_atomic_ref::<AtomicU32>(o) else {
            return;
        };
        let order = Ordering::AcqRel;
        old[l] = match op {
            Op::AtomAdd => slot.fetch_add(value[l], order),
            Op::AtomMinU => slot.fetch_min(value[l], order),
            Op::AtomMaxU => slot.fetch_max(value[l], order),
            Op::AtomAnd => slot.fetch_and(value[l], order),
            Op::AtomOr => slot.fetch_or(value[l], order),
            Op::AtomXor => slot.fetch_xor(value[l], order),
            Op::AtomXchg => slot.swap(value[l], order),
            _ => slot
                .compare_exchange(compared[l], value[l], order, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        };
    })?;
    for l in lanes(mask) {
        wave.register_mut(i.rd)[l] = old[l];
    }
    Ok(())
}

/// Executes an atomic operation on 64 bits.
pub(crate) fn atomic_pair(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let at = plain_addresses(wave, i);
    contend(windows, &at, mask);
    let join = |(lo, hi): (&Lanes, &Lanes)| -> [u64; LANES] {
        std::array::from_fn(|l| u64::from(lo[l]) | (u64::from(hi[l]) << 32))
    };
    let value = join(wave.pair(i.rb));
    // CAST: as above.
    let compared = join(wave.pair(i.imm as u8));
    let mut old = [0; LANES];
    let op = i.op;
    for_each(windows, &at, mask, 8, Access::Atomic, |l, s, o| {
        let Ok(slot) = s.get_atomic_ref::<AtomicU64>(o) else {
            return;
        };
        let order = Ordering::AcqRel;
        old[l] = match op {
            Op::AtomAdd64 => slot.fetch_add(value[l], order),
            Op::AtomMinU64 => slot.fetch_min(value[l], order),
            Op::AtomMaxU64 => slot.fetch_max(value[l], order),
            Op::AtomAnd64 => slot.fetch_and(value[l], order),
            Op::AtomOr64 => slot.fetch_or(value[l], order),
            Op::AtomXor64 => slot.fetch_xor(value[l], order),
            Op::AtomXchg64 => slot.swap(value[l], order),
            _ => slot
                .compare_exchange(compared[l], value[l], order, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        };
    })?;
    for l in lanes(mask) {
        // CAST: halves.
        wave.register_mut(i.rd)[l] = old[l] as u32;
        wave.register_mut(i.rd + 1)[l] = (old[l] >> 32) as u32;
    }
    Ok(())
}
