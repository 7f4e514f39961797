// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads, stores and atomics in a group's shared memory.
//!
//! The waves of a group run in turn on one thread: nothing here needs to be atomic.

use skua_spec::fault::Reason;
use skua_spec::isa::{Instruction, Op};

use crate::fault::Fault;
use crate::program::wave::{ascend, lanes, Issue, Lanes, Wave, LANES};

/// The range of an access of `N` bytes at `offset`. A fault names no address: the offset is none.
fn slot<const N: usize>(shared: &mut [u8], offset: u32) -> Result<&mut [u8; N], Fault> {
    if offset as usize % N != 0 {
        return Err(Fault::plain(Reason::Misaligned));
    }
    shared
        .get_mut(offset as usize..)
        .and_then(|rest| rest.first_chunk_mut::<N>())
        .ok_or(Fault::plain(Reason::SharedRange))
}

/// What the threads access, if there are all that a wave can have and each one accesses what is
/// behind the one before it, all with good alignment.
#[inline(always)]
fn stream<'s, const N: usize>(
    shared: &'s mut [u8],
    base: &Lanes,
    i: &Instruction,
    mask: u32,
) -> Option<&'s mut [u8]> {
    let first = base[0].wrapping_add(i.imm) as usize;
    if !ascend(base, mask, N) || first % N != 0 {
        return None;
    }
    shared.get_mut(first..first + LANES * N)
}

/// Loads `N` bytes for each thread: `put` writes `rd`, or the pair it is the low half of.
#[inline(always)]
fn load_each<const N: usize>(
    shared: &mut [u8],
    wave: &mut Wave,
    i: &Instruction,
    issue: &Issue<'_>,
    put: impl Fn(&mut u32, &mut u32, [u8; N]),
) -> Result<(), Fault> {
    let base = wave.register(i.ra);
    if issue.once {
        let value = *slot(shared, base[0].wrapping_add(i.imm))?;
        let (out, high) = wave.results(i);
        (0..LANES).for_each(|l| put(&mut out[l], &mut high[l], value));
    } else if let Some(all) = stream::<N>(shared, base, i, issue.mask) {
        let (out, high) = wave.results(i);
        for (l, chunk) in all.chunks_exact(N).enumerate() {
            if let Some(value) = chunk.first_chunk() {
                put(&mut out[l], &mut high[l], *value);
            }
        }
    } else {
        let base = *base;
        let (out, high) = wave.results(i);
        for l in lanes(issue.mask) {
            let value = slot(shared, base[l].wrapping_add(i.imm))?;
            put(&mut out[l], &mut high[l], *value);
        }
    }
    Ok(())
}

/// Stores what each thread of `mask` has, as [`load_each`].
#[inline(always)]
fn store_each<const N: usize>(
    shared: &mut [u8],
    base: &Lanes,
    i: &Instruction,
    mask: u32,
    value: impl Fn(usize) -> [u8; N],
) -> Result<(), Fault> {
    if let Some(all) = stream::<N>(shared, base, i, mask) {
        for (l, slot) in all.chunks_exact_mut(N).enumerate() {
            slot.copy_from_slice(&value(l));
        }
        return Ok(());
    }
    for l in lanes(mask) {
        *slot(shared, base[l].wrapping_add(i.imm))? = value(l);
    }
    Ok(())
}

/// Executes a load from the group's memory for all active threads.
#[inline(always)]
pub(crate) fn load(
    shared: &mut [u8],
    wave: &mut Wave,
    i: &Instruction,
    issue: &Issue<'_>,
) -> Result<(), Fault> {
    // CAST: sign extension, and halves of a 64-bit value.
    match i.op {
        Op::LdsU8 => load_each(shared, wave, i, issue, |out, _, value| {
            *out = u8::from_le_bytes(value).into();
        }),
        Op::LdsS8 => load_each(shared, wave, i, issue, |out, _, value| {
            *out = i32::from(i8::from_le_bytes(value)) as u32;
        }),
        Op::LdsU16 => load_each(shared, wave, i, issue, |out, _, value| {
            *out = u16::from_le_bytes(value).into();
        }),
        Op::LdsS16 => load_each(shared, wave, i, issue, |out, _, value| {
            *out = i32::from(i16::from_le_bytes(value)) as u32;
        }),
        Op::Lds64 => load_each(shared, wave, i, issue, |out, high, value| {
            let value = u64::from_le_bytes(value);
            (*out, *high) = (value as u32, (value >> 32) as u32);
        }),
        _ => load_each(shared, wave, i, issue, |out, _, value| {
            *out = u32::from_le_bytes(value);
        }),
    }
}

/// Executes a store to the group's memory for all active threads, as [`load`].
#[inline(always)]
pub(crate) fn store(
    shared: &mut [u8],
    wave: &Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let (base, value) = (wave.register(i.ra), wave.register(i.rd));
    // CAST: the low bits are stored.
    match i.op {
        Op::Sts8 => store_each(shared, base, i, mask, |l| [value[l] as u8]),
        Op::Sts16 => store_each(shared, base, i, mask, |l| (value[l] as u16).to_le_bytes()),
        Op::Sts64 => store_each(shared, base, i, mask, |l| {
            wave.joined(i.rd, l).to_le_bytes()
        }),
        _ => store_each(shared, base, i, mask, |l| value[l].to_le_bytes()),
    }
}

/// Executes an atomic operation.
pub(crate) fn atomic(
    shared: &mut [u8],
    wave: &mut Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let (base, value) = (*wave.register(i.ra), *wave.register(i.rb));
    // CAST: decoding has checked that the field is a register where it is used.
    let compared = *wave.register(i.imm as u8);
    for l in lanes(mask) {
        let slot = slot::<4>(shared, base[l])?;
        let old = u32::from_le_bytes(*slot);
        let new = match i.op {
            Op::AtomsAdd => old.wrapping_add(value[l]),
            Op::AtomsMinU => old.min(value[l]),
            Op::AtomsMaxU => old.max(value[l]),
            Op::AtomsAnd => old & value[l],
            Op::AtomsOr => old | value[l],
            Op::AtomsXor => old ^ value[l],
            Op::AtomsXchg => value[l],
            _ if old == compared[l] => value[l],
            _ => old,
        };
        *slot = new.to_le_bytes();
        wave.register_mut(i.rd)[l] = old;
    }
    Ok(())
}
