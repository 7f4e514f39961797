// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads, stores and atomics in a group's shared memory.
//!
//! The waves of a group run in turn on one thread: nothing here needs to be atomic.

use skua_spec::fault::Reason;
use skua_spec::isa::{Instruction, Op};

use crate::fault::Fault;
use crate::program::wave::{lanes, Wave};

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

/// Executes a load from the group's memory for all active threads.
pub(crate) fn load(
    shared: &mut [u8],
    wave: &mut Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let base = *wave.register(i.ra);
    for l in lanes(mask) {
        let at = base[l].wrapping_add(i.imm);
        // CAST: sign extension.
        let value = match i.op {
            Op::LdsU8 => u32::from(slot::<1>(shared, at)?[0]),
            Op::LdsS8 => i32::from(slot::<1>(shared, at)?[0] as i8) as u32,
            Op::LdsU16 => u32::from(u16::from_le_bytes(*slot(shared, at)?)),
            Op::LdsS16 => i32::from(i16::from_le_bytes(*slot(shared, at)?)) as u32,
            Op::Lds64 => {
                let value = u64::from_le_bytes(*slot(shared, at)?);
                // CAST: halves.
                wave.register_mut(i.rd + 1)[l] = (value >> 32) as u32;
                value as u32
            }
            _ => u32::from_le_bytes(*slot(shared, at)?),
        };
        wave.register_mut(i.rd)[l] = value;
    }
    Ok(())
}

/// As [`load`].
pub(crate) fn store(
    shared: &mut [u8],
    wave: &Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let (base, value) = (wave.register(i.ra), wave.register(i.rd));
    for l in lanes(mask) {
        let at = base[l].wrapping_add(i.imm);
        // CAST: the low bits are stored.
        match i.op {
            Op::Sts8 => *slot(shared, at)? = [value[l] as u8],
            Op::Sts16 => *slot(shared, at)? = (value[l] as u16).to_le_bytes(),
            Op::Sts64 => {
                let high = wave.register(i.rd + 1)[l];
                let both = u64::from(value[l]) | (u64::from(high) << 32);
                *slot(shared, at)? = both.to_le_bytes();
            }
            _ => *slot(shared, at)? = value[l].to_le_bytes(),
        }
    }
    Ok(())
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
