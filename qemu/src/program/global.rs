// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads, stores and atomics through GPU addresses.
//!
//! The threads of a wave access memory in the order of their numbers; the first one at fault ends
//! the program, and what lower ones have stored stays. Every access is aligned to its size and is
//! one access of the host's, so that other engines and the CPU never see a part of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use skua_spec::address::PAGE_SIZE;
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::{Instruction, Op};
use skua_spec::ticks;
use vm_memory::{ByteValued, VolatileArrayRef, VolatileMemory, VolatileSlice};

use crate::fault::Fault;
use crate::program::wave::{lanes, Issue, Lanes, Wave, LANES};
use crate::program::window::Windows;

#[cfg(target_endian = "big")]
compile_error!("the device is little endian and passes the host's words through");

/// Offset of an address in its page.
const fn inside(address: u64) -> usize {
    // CAST: below 4096.
    (address & (PAGE_SIZE - 1)) as usize
}

/// The offset that an instruction adds to addresses.
fn offset(i: &Instruction) -> u64 {
    // CAST: sign extended.
    i64::from(i.imm as i32) as u64
}

/// The addresses that an instruction names; an atomic one has no `offset`.
#[inline(always)]
fn addresses(wave: &Wave, i: &Instruction, offset: u64) -> [u64; LANES] {
    let mut at = [0; LANES];
    for (l, at) in at.iter_mut().enumerate() {
        *at = wave.joined(i.ra, l).wrapping_add(offset);
    }
    at
}

/// Bytes that a thread loads or stores.
const fn width(op: Op) -> u64 {
    match op {
        Op::LdU8 | Op::LdS8 | Op::St8 => 1,
        Op::LdU16 | Op::LdS16 | Op::St16 => 2,
        Op::Ld64 | Op::St64 => 8,
        _ => 4,
    }
}

/// The threads of `rest` that follow each other from the first one on, at `address`, and access the
/// same page, with good alignment.
#[inline(always)]
fn run(at: &[u64; LANES], rest: u32, address: u64, bytes: u64) -> u32 {
    let mut strays = 0;
    for (l, at) in at.iter().enumerate() {
        let differs = (at ^ address) & !(PAGE_SIZE - 1) | at & (bytes - 1);
        strays |= u32::from(differs != 0) << l;
    }
    match (strays & rest).trailing_zeros() {
        u32::BITS => rest,
        end => rest & ((1 << end) - 1),
    }
}

/// Has `f` do, for each run of threads of `mask` on a page, what these do there: it is told the
/// page, and the threads.
#[inline(always)]
fn for_each_run(
    windows: &mut Windows<'_>,
    at: &[u64; LANES],
    mask: u32,
    bytes: u64,
    access: Access,
    mut f: impl FnMut(&VolatileSlice<'_>, u32),
) -> Result<(), Fault> {
    let mut rest = mask;
    while rest != 0 {
        let address = at[rest.trailing_zeros() as usize];
        if address % bytes != 0 {
            return Err(Fault::access(Reason::Misaligned, access, address));
        }
        let (page, place) = windows.find(address, access)?;
        let run = run(at, rest, address, bytes);
        f(&page, run);
        windows.count(place, access, u64::from(run.count_ones()) * bytes);
        rest &= !run;
    }
    Ok(())
}

/// Where the first of all threads of a wave accesses memory, if each one accesses what is behind
/// the one before it, all with good alignment in one page.
#[inline(always)]
fn stream(wave: &Wave, i: &Instruction, mask: u32, bytes: u64) -> Option<u64> {
    if mask != u32::MAX {
        return None;
    }
    let (lo, hi) = wave.pair(i.ra);
    // CAST: below 256, as well as what it is multiplied by.
    let step = bytes as u32;
    let mut differs = 0;
    for l in 0..LANES {
        let behind = lo[l].wrapping_sub(lo[0]) ^ (l as u32 * step);
        differs |= behind | (hi[l] ^ hi[0]);
    }
    let last = (LANES as u32 - 1) * step;
    let address = wave.joined(i.ra, 0).wrapping_add(offset(i));
    let fits = inside(address) as u64 + LANES as u64 * bytes <= PAGE_SIZE;
    (differs == 0 && lo[0].checked_add(last).is_some() && address % bytes == 0 && fits)
        .then_some(address)
}

/// What threads access of a page: they are checked together, and each access is still one of the
/// host's.
trait Accesses {
    /// Loads what each thread does.
    fn load<T: ByteValued>(&self, put: impl FnMut(usize, T));

    /// Stores what each thread does, in their order.
    fn store<T: ByteValued>(&self, value: impl Fn(usize) -> T);

    /// Loads the word that each thread does.
    #[inline(always)]
    fn load_words(&self, put: impl FnMut(usize, u32)) {
        self.load(put);
    }

    /// Stores the word that each thread does, in their order.
    #[inline(always)]
    fn store_words(&self, value: impl Fn(usize) -> u32) {
        self.store(value);
    }
}

/// All threads of a wave, one behind the other from this offset on.
struct Stream<'a, 'm>(&'a VolatileSlice<'m>, usize);

impl Stream<'_, '_> {
    /// The words of two threads each, of which no access sees a part either.
    #[inline(always)]
    fn pairs(&self) -> Option<VolatileArrayRef<'_, u64>> {
        let pairs = self.0.get_array_ref(self.1, LANES / 2);
        pairs.ok().filter(|_| self.1 % 8 == 0)
    }
}

impl Accesses for Stream<'_, '_> {
    #[inline(always)]
    fn load<T: ByteValued>(&self, mut put: impl FnMut(usize, T)) {
        if let Ok(values) = self.0.get_array_ref::<T>(self.1, LANES) {
            (0..LANES).for_each(|l| put(l, values.load(l)));
        }
    }

    #[inline(always)]
    fn store<T: ByteValued>(&self, value: impl Fn(usize) -> T) {
        if let Ok(values) = self.0.get_array_ref::<T>(self.1, LANES) {
            (0..LANES).for_each(|l| values.store(l, value(l)));
        }
    }

    #[inline(always)]
    fn load_words(&self, mut put: impl FnMut(usize, u32)) {
        let Some(pairs) = self.pairs() else {
            return self.load(put);
        };
        for l in 0..LANES / 2 {
            let value = pairs.load(l);
            // CAST: halves.
            put(2 * l, value as u32);
            put(2 * l + 1, (value >> 32) as u32);
        }
    }

    #[inline(always)]
    fn store_words(&self, value: impl Fn(usize) -> u32) {
        let Some(pairs) = self.pairs() else {
            return self.store(value);
        };
        for l in 0..LANES / 2 {
            let high = u64::from(value(2 * l + 1)) << 32;
            pairs.store(l, u64::from(value(2 * l)) | high);
        }
    }
}

/// Some threads, by their addresses in the page.
struct Scattered<'a, 'm>(&'a VolatileSlice<'m>, &'a [u64; LANES], u32);

impl Scattered<'_, '_> {
    /// Which value of the page a thread's is.
    #[inline(always)]
    fn index<T>(&self, lane: usize) -> usize {
        inside(self.1[lane]) / size_of::<T>()
    }
}

impl Accesses for Scattered<'_, '_> {
    #[inline(always)]
    fn load<T: ByteValued>(&self, mut put: impl FnMut(usize, T)) {
        let all = PAGE_SIZE as usize / size_of::<T>();
        if let Ok(values) = self.0.get_array_ref::<T>(0, all) {
            lanes(self.2).for_each(|l| put(l, values.load(self.index::<T>(l))));
        }
    }

    #[inline(always)]
    fn store<T: ByteValued>(&self, value: impl Fn(usize) -> T) {
        let all = PAGE_SIZE as usize / size_of::<T>();
        if let Ok(values) = self.0.get_array_ref::<T>(0, all) {
            lanes(self.2).for_each(|l| values.store(self.index::<T>(l), value(l)));
        }
    }
}

/// What a load does to `rd`, and to the register behind it if it is one of a pair.
#[inline(always)]
fn load_from(accesses: &impl Accesses, op: Op, out: &mut Lanes, high: &mut Lanes) {
    // CAST: sign extension, and halves of a 64-bit value.
    match op {
        Op::LdU8 => accesses.load(|l, value: u8| out[l] = value.into()),
        Op::LdS8 => accesses.load(|l, value: i8| out[l] = i32::from(value) as u32),
        Op::LdU16 => accesses.load(|l, value: u16| out[l] = value.into()),
        Op::LdS16 => accesses.load(|l, value: i16| out[l] = i32::from(value) as u32),
        Op::Ld64 => accesses.load(|l, value: u64| {
            (out[l], high[l]) = (value as u32, (value >> 32) as u32);
        }),
        _ => accesses.load_words(|l, value| out[l] = value),
    }
}

/// Executes a load for all active threads, in the order of their numbers.
#[inline(always)]
pub(crate) fn load(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    issue: Issue,
) -> Result<(), Fault> {
    let (bytes, read, mask) = (width(i.op), Access::Read, issue.mask);
    if issue.once {
        let address = wave.joined(i.ra, 0).wrapping_add(offset(i));
        if address % bytes != 0 {
            return Err(Fault::access(Reason::Misaligned, read, address));
        }
        let (page, place) = windows.find(address, read)?;
        let (out, high) = wave.results(i);
        load_from(&Scattered(&page, &[address; LANES], 1), i.op, out, high);
        *out = [out[0]; LANES];
        if i.op == Op::Ld64 {
            *high = [high[0]; LANES];
        }
        windows.count(place, read, u64::from(mask.count_ones()) * bytes);
        return Ok(());
    }
    if let Some(address) = stream(wave, i, mask, bytes) {
        let (page, place) = windows.find(address, read)?;
        let (out, high) = wave.results(i);
        load_from(&Stream(&page, inside(address)), i.op, out, high);
        windows.count(place, read, LANES as u64 * bytes);
        return Ok(());
    }
    let at = addresses(wave, i, offset(i));
    let (out, high) = wave.results(i);
    // Behind a fault nobody reads registers.
    for_each_run(windows, &at, mask, bytes, read, |page, run| {
        load_from(&Scattered(page, &at, run), i.op, out, high);
    })
}

/// What a store does to memory.
#[inline(always)]
fn store_to(accesses: &impl Accesses, wave: &Wave, i: &Instruction) {
    let value = wave.register(i.rd);
    // CAST: the low bits are stored.
    match i.op {
        Op::St8 => accesses.store(|l| value[l] as u8),
        Op::St16 => accesses.store(|l| value[l] as u16),
        Op::St64 => accesses.store(|l| wave.joined(i.rd, l)),
        _ => accesses.store_words(|l| value[l]),
    }
}

/// As [`load`].
#[inline(always)]
pub(crate) fn store(
    windows: &mut Windows<'_>,
    wave: &Wave,
    i: &Instruction,
    mask: u32,
) -> Result<(), Fault> {
    let (bytes, write) = (width(i.op), Access::Write);
    if let Some(address) = stream(wave, i, mask, bytes) {
        let (page, place) = windows.find(address, write)?;
        store_to(&Stream(&page, inside(address)), wave, i);
        windows.count(place, write, LANES as u64 * bytes);
        return Ok(());
    }
    let at = addresses(wave, i, offset(i));
    for_each_run(windows, &at, mask, bytes, write, |page, run| {
        store_to(&Scattered(page, &at, run), wave, i);
    })
}

/// Has `f` do the atomic operation of each thread of `mask`, on its page.
fn for_each(
    windows: &mut Windows<'_>,
    at: &[u64; LANES],
    mask: u32,
    bytes: u64,
    mut f: impl FnMut(usize, &VolatileSlice<'_>),
) -> Result<(), Fault> {
    for_each_run(windows, at, mask, bytes, Access::Atomic, |page, run| {
        lanes(run).for_each(|l| f(l, page));
    })
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
    let at = addresses(wave, i, 0);
    contend(windows, &at, mask);
    let value = *wave.register(i.rb);
    // CAST: decoding has checked that the field is a register where it is used.
    let compared = *wave.register(i.imm as u8);
    let mut old: Lanes = [0; LANES];
    let op = i.op;
    for_each(windows, &at, mask, 4, |l, page| {
        let Ok(slot) = page.get_atomic_ref::<AtomicU32>(inside(at[l])) else {
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
    let at = addresses(wave, i, 0);
    contend(windows, &at, mask);
    let join = |(lo, hi): (&Lanes, &Lanes)| -> [u64; LANES] {
        std::array::from_fn(|l| u64::from(lo[l]) | (u64::from(hi[l]) << 32))
    };
    let value = join(wave.pair(i.rb));
    // CAST: as above.
    let compared = join(wave.pair(i.imm as u8));
    let mut old = [0; LANES];
    let op = i.op;
    for_each(windows, &at, mask, 8, |l, page| {
        let Ok(slot) = page.get_atomic_ref::<AtomicU64>(inside(at[l])) else {
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
