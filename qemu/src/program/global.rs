// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads, stores and atomics through GPU addresses.
//!
//! The threads of a wave access memory in the order of their numbers; the first one at fault ends
//! the program, and what lower ones have stored stays. Every access is aligned to its size and is
//! one access of the host's, so that other engines and the CPU never see a part of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use skua_spec::address::PAGE_SIZE;
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::{Form, Instruction, Op};
use skua_spec::ticks;
use vm_memory::{ByteValued, VolatileArrayRef, VolatileMemory, VolatileSlice};

use crate::fault::Fault;
use crate::program::wave::{each, lanes, Issue, Lanes, Wave, LANES};
use crate::program::window::Windows;

#[cfg(target_endian = "big")]
compile_error!("the device is little endian and passes the host's words through");

/// Offset of an address in its page.
const fn inside(address: u64) -> usize {
    // CAST: below 4096.
    (address & (PAGE_SIZE - 1)) as usize
}

/// Where the threads of an instruction access memory.
struct Places {
    /// Low halves of the addresses.
    low: Lanes,
    /// What is added to the pair `ra` for them.
    offset: u32,
}

impl Places {
    #[inline(always)]
    fn new(wave: &Wave, i: &Instruction, offset: u32) -> Self {
        let lo = wave.register(i.ra);
        Self {
            low: each(|l| lo[l].wrapping_add(offset)),
            offset,
        }
    }

    /// The address of a thread.
    #[inline(always)]
    fn address(&self, wave: &Wave, i: &Instruction, lane: usize) -> u64 {
        // CAST: sign extended.
        wave.joined(i.ra, lane)
            .wrapping_add(self.offset as i32 as u64)
    }

    #[inline(always)]
    fn addresses(&self, wave: &Wave, i: &Instruction) -> [u64; LANES] {
        let mut at = [0; LANES];
        for (l, at) in at.iter_mut().enumerate() {
            *at = self.address(wave, i, l);
        }
        at
    }
}

/// Bytes that a thread accesses.
const fn width(op: Op) -> u64 {
    match op {
        Op::LdU8 | Op::LdS8 | Op::St8 => 1,
        Op::LdU16 | Op::LdS16 | Op::St16 => 2,
        Op::Ld64 | Op::St64 => 8,
        _ => match op.form() {
            Form::AtomicPair | Form::CompareSwapPair => 8,
            _ => 4,
        },
    }
}

/// How the places of threads lie to each other.
enum Lie<'w, 'm> {
    /// One behind the other from this offset in a page on, of all threads that a wave can have.
    Stream(&'w VolatileSlice<'m>, usize),
    /// On a page, all with good alignment.
    Page(&'w VolatileSlice<'m>),
    /// On several pages, or not aligned: each thread's access is looked up on its own.
    Apart,
}

/// Looks at all places together. If they are on one page, it is found, and the access counted.
#[inline(always)]
fn find<'w, 'm>(
    windows: &'w mut Windows<'m>,
    wave: &Wave,
    i: &Instruction,
    places: &Places,
    issue: &Issue<'_>,
    access: Access,
) -> Result<Lie<'w, 'm>, Fault> {
    let bytes = width(i.op);
    let ((lo, hi), low) = (wave.pair(i.ra), &places.low);
    // CAST: below 32.
    let first = issue.mask.trailing_zeros() as usize % LANES;
    // CAST: they are far shorter than 2^32.
    let (page, alignment) = (!(PAGE_SIZE as u32 - 1), bytes as u32 - 1);
    let (mut apart, mut spaced) = (0, 0);
    for l in 0..LANES {
        // Where low halves wrap between two threads, the highest bits of these differ.
        let strays = (low[l] ^ low[first]) & page | low[l] & alignment;
        let wraps = hi[l] ^ hi[first] | (lo[l] ^ lo[first]) & 1 << 31;
        apart |= (strays | wraps) & issue.lanes[l];
        // CAST: below 256.
        spaced |= low[l].wrapping_sub(low[0]) ^ (l as u64 * bytes) as u32;
    }
    if apart != 0 {
        return Ok(Lie::Apart);
    }
    let address = places.address(wave, i, first);
    let memory = *windows.memory();
    let window = windows.find(address, access)?;
    window.count(&memory, access, u64::from(issue.mask.count_ones()) * bytes);
    Ok(if spaced == 0 && issue.mask == u32::MAX {
        Lie::Stream(window.slice(), inside(address))
    } else {
        Lie::Page(window.slice())
    })
}

/// What threads access, each in one access of the host's.
trait Accesses {
    /// Loads what each thread does.
    fn load<T: ByteValued>(&mut self, put: impl FnMut(usize, T)) -> Result<(), Fault>;

    /// Stores what each thread does, in their order.
    fn store<T: ByteValued>(&mut self, value: impl Fn(usize) -> T) -> Result<(), Fault>;
}

/// All threads of a wave, one behind the other from this offset on.
struct Stream<'a, 'm>(&'a VolatileSlice<'m>, usize);

impl Stream<'_, '_> {
    /// All of it in words of eight bytes, of which no access sees a part either, if that is where
    /// it begins.
    #[inline(always)]
    fn words<T>(&self) -> Option<VolatileArrayRef<'_, u64>> {
        let words = self
            .0
            .get_array_ref(self.1, LANES * size_of::<T>() / size_of::<u64>());
        words.ok().filter(|_| self.1 % size_of::<u64>() == 0)
    }
}

impl Accesses for Stream<'_, '_> {
    #[inline(always)]
    fn load<T: ByteValued>(&mut self, mut put: impl FnMut(usize, T)) -> Result<(), Fault> {
        let each = size_of::<u64>() / size_of::<T>();
        if let Some(words) = self.words::<T>() {
            for w in 0..LANES / each {
                let word = words.load(w);
                let values = word.as_slice().chunks_exact(size_of::<T>());
                for (l, value) in (w * each..).zip(values.map(T::from_slice)) {
                    if let Some(value) = value {
                        put(l, *value);
                    }
                }
            }
        } else if let Ok(values) = self.0.get_array_ref::<T>(self.1, LANES) {
            for l in 0..LANES {
                put(l, values.load(l));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn store<T: ByteValued>(&mut self, value: impl Fn(usize) -> T) -> Result<(), Fault> {
        let each = size_of::<u64>() / size_of::<T>();
        if let Some(words) = self.words::<T>() {
            for w in 0..LANES / each {
                let mut word = 0_u64;
                let values = word.as_mut_slice().chunks_exact_mut(size_of::<T>());
                for (l, slot) in (w * each..).zip(values) {
                    slot.copy_from_slice(value(l).as_slice());
                }
                words.store(w, word);
            }
        } else if let Ok(values) = self.0.get_array_ref::<T>(self.1, LANES) {
            for l in 0..LANES {
                values.store(l, value(l));
            }
        }
        Ok(())
    }
}

/// All values of a page.
#[inline(always)]
fn values<'a, T: ByteValued>(page: &'a VolatileSlice<'_>) -> Option<VolatileArrayRef<'a, T>> {
    page.get_array_ref(0, PAGE_SIZE as usize / size_of::<T>())
        .ok()
}

/// Which value of its page is at an address.
#[inline(always)]
fn index<T>(address: u64) -> usize {
    inside(address) / size_of::<T>()
}

/// Some threads, on a page, by the low bits of their addresses.
struct OnPage<'a, 'm>(&'a VolatileSlice<'m>, &'a Lanes, u32);

impl Accesses for OnPage<'_, '_> {
    #[inline(always)]
    fn load<T: ByteValued>(&mut self, mut put: impl FnMut(usize, T)) -> Result<(), Fault> {
        let Some(values) = values(self.0) else {
            return Ok(());
        };
        let at = |l: usize| index::<T>(self.1[l].into());
        if self.2 == u32::MAX {
            for l in 0..LANES {
                put(l, values.load(at(l)));
            }
        } else {
            for l in lanes(self.2) {
                put(l, values.load(at(l)));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn store<T: ByteValued>(&mut self, value: impl Fn(usize) -> T) -> Result<(), Fault> {
        let Some(values) = values(self.0) else {
            return Ok(());
        };
        let at = |l: usize| index::<T>(self.1[l].into());
        if self.2 == u32::MAX {
            for l in 0..LANES {
                values.store(at(l), value(l));
            }
        } else {
            for l in lanes(self.2) {
                values.store(at(l), value(l));
            }
        }
        Ok(())
    }
}

/// Some threads, by their addresses.
struct Apart<'a, 'm> {
    windows: &'a mut Windows<'m>,
    at: &'a [u64; LANES],
    mask: u32,
    access: Access,
}

impl Apart<'_, '_> {
    /// Has `f` access `bytes` bytes for each thread, told its number, its page and its address.
    #[inline(always)]
    fn each(
        &mut self,
        bytes: u64,
        mut f: impl FnMut(usize, &VolatileSlice<'_>, u64),
    ) -> Result<(), Fault> {
        let mut rest = self.mask;
        while rest != 0 {
            let first = self.at[rest.trailing_zeros() as usize];
            if first % bytes != 0 {
                return Err(Fault::access(Reason::Misaligned, self.access, first));
            }
            // The page is looked for once for those who follow each other on it.
            let memory = *self.windows.memory();
            let window = self.windows.find(first, self.access)?;
            let before = rest;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                let address = self.at[lane];
                if (address ^ first) & !(PAGE_SIZE - 1) | address & (bytes - 1) != 0 {
                    break;
                }
                f(lane, window.slice(), address);
                rest &= rest - 1;
            }
            let count = u64::from((before ^ rest).count_ones());
            window.count(&memory, self.access, count * bytes);
        }
        Ok(())
    }
}

impl Accesses for Apart<'_, '_> {
    #[inline(always)]
    fn load<T: ByteValued>(&mut self, mut put: impl FnMut(usize, T)) -> Result<(), Fault> {
        self.each(size_of::<T>() as u64, |l, page, address| {
            if let Some(values) = values(page) {
                put(l, values.load(index::<T>(address)));
            }
        })
    }

    #[inline(always)]
    fn store<T: ByteValued>(&mut self, value: impl Fn(usize) -> T) -> Result<(), Fault> {
        self.each(size_of::<T>() as u64, |l, page, address| {
            if let Some(values) = values(page) {
                values.store(index::<T>(address), value(l));
            }
        })
    }
}

/// What a load does to `rd`, and to the register behind it if it is one of a pair. Behind a fault
/// nobody reads registers.
#[inline(always)]
fn load_from(accesses: &mut impl Accesses, wave: &mut Wave, i: &Instruction) -> Result<(), Fault> {
    let (out, high) = wave.results(i);
    // CAST: sign extension, and halves of a 64-bit value.
    match i.op {
        Op::LdU8 => accesses.load(|l, value: u8| out[l] = value.into()),
        Op::LdS8 => accesses.load(|l, value: i8| out[l] = i32::from(value) as u32),
        Op::LdU16 => accesses.load(|l, value: u16| out[l] = value.into()),
        Op::LdS16 => accesses.load(|l, value: i16| out[l] = i32::from(value) as u32),
        Op::Ld64 => accesses.load(|l, value: u64| {
            (out[l], high[l]) = (value as u32, (value >> 32) as u32);
        }),
        _ => accesses.load(|l, value: u32| out[l] = value),
    }
}

/// Executes a load for all active threads, in the order of their numbers.
#[inline(always)]
pub(crate) fn load(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    issue: &Issue<'_>,
) -> Result<(), Fault> {
    let (access, mask) = (Access::Read, issue.mask);
    let places = Places::new(wave, i, i.imm);
    match find(windows, wave, i, &places, issue, access)? {
        Lie::Stream(page, at) => load_from(&mut Stream(page, at), wave, i),
        Lie::Page(page) if issue.once => {
            load_from(&mut OnPage(page, &places.low, 1), wave, i)?;
            let (out, high) = wave.results(i);
            *out = [out[0]; LANES];
            if i.op == Op::Ld64 {
                *high = [high[0]; LANES];
            }
            Ok(())
        }
        Lie::Page(page) => load_from(&mut OnPage(page, &places.low, mask), wave, i),
        Lie::Apart => {
            let mut apart = Apart {
                windows,
                at: &places.addresses(wave, i),
                mask,
                access,
            };
            load_from(&mut apart, wave, i)
        }
    }
}

/// What a store does to memory.
#[inline(always)]
fn store_to(accesses: &mut impl Accesses, wave: &Wave, i: &Instruction) -> Result<(), Fault> {
    let value = wave.register(i.rd);
    // CAST: the low bits are stored.
    match i.op {
        Op::St8 => accesses.store(|l| value[l] as u8),
        Op::St16 => accesses.store(|l| value[l] as u16),
        Op::St64 => accesses.store(|l| wave.joined(i.rd, l)),
        _ => accesses.store(|l| value[l]),
    }
}

/// Executes a store to memory for all active threads, as [`load`].
#[inline(always)]
pub(crate) fn store(
    windows: &mut Windows<'_>,
    wave: &Wave,
    i: &Instruction,
    issue: &Issue<'_>,
) -> Result<(), Fault> {
    let (access, mask) = (Access::Write, issue.mask);
    let places = Places::new(wave, i, i.imm);
    match find(windows, wave, i, &places, issue, access)? {
        Lie::Stream(page, at) => store_to(&mut Stream(page, at), wave, i),
        Lie::Page(page) => store_to(&mut OnPage(page, &places.low, mask), wave, i),
        Lie::Apart => {
            let mut apart = Apart {
                windows,
                at: &places.addresses(wave, i),
                mask,
                access,
            };
            store_to(&mut apart, wave, i)
        }
    }
}

/// How many threads of `mask` name an address that a lower one names too.
fn contended(addresses: &[u64; LANES], mask: u32) -> u64 {
    let active = || lanes(mask).map(|l| addresses[l]);
    // Nearly always all differ, or all are one. Those that differ here do so there.
    let mut seen = [0_u64; 64];
    let mut differ = true;
    for address in active() {
        let (word, bit) = (address >> 8 & 63, 1 << (address >> 2 & 63));
        differ &= seen[word as usize] & bit == 0;
        seen[word as usize] |= bit;
    }
    let first = addresses[mask.trailing_zeros() as usize % LANES];
    if differ {
        0
    } else if active().all(|address| address == first) {
        u64::from(mask.count_ones()) - 1
    } else {
        let mut sorted: Vec<u64> = active().collect();
        sorted.sort_unstable();
        sorted.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64
    }
}

/// Has `f` do an atomic operation for each thread: it is told its number, its page and its offset
/// there. Threads wait for each other where they operate on the same.
#[inline(always)]
fn operate(
    windows: &mut Windows<'_>,
    wave: &Wave,
    i: &Instruction,
    issue: &Issue<'_>,
    mut f: impl FnMut(usize, &VolatileSlice<'_>, usize),
) -> Result<(), Fault> {
    let (access, mask, memory) = (Access::Atomic, issue.mask, *windows.memory());
    let places = Places::new(wave, i, 0);
    let lie = find(windows, wave, i, &places, issue, access);
    let at = places.addresses(wave, i);
    if !matches!(lie, Ok(Lie::Stream(..))) {
        let time = contended(&at, mask) * ticks::CONTENDED;
        memory.tally().spend(time);
    }
    match lie? {
        Lie::Stream(page, _) | Lie::Page(page) => {
            for l in lanes(mask) {
                f(l, page, inside(at[l]));
            }
            Ok(())
        }
        Lie::Apart => {
            let mut apart = Apart {
                windows,
                at: &at,
                mask,
                access,
            };
            apart.each(width(i.op), |l, page, address| f(l, page, inside(address)))
        }
    }
}

/// Executes an atomic operation on 32 bits.
pub(crate) fn atomic(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    issue: &Issue<'_>,
) -> Result<(), Fault> {
    let value = *wave.register(i.rb);
    // CAST: decoding has checked that the field is a register where it is used.
    let compared = *wave.register(i.imm as u8);
    let mut old: Lanes = [0; LANES];
    let op = i.op;
    operate(windows, wave, i, issue, |l, page, at| {
        let Ok(slot) = page.get_atomic_ref::<AtomicU32>(at) else {
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
    wave.write(i.rd, *issue, &old);
    Ok(())
}

/// Executes an atomic operation on 64 bits.
pub(crate) fn atomic_pair(
    windows: &mut Windows<'_>,
    wave: &mut Wave,
    i: &Instruction,
    issue: &Issue<'_>,
) -> Result<(), Fault> {
    let join = |(lo, hi): (&Lanes, &Lanes)| -> [u64; LANES] {
        std::array::from_fn(|l| u64::from(lo[l]) | (u64::from(hi[l]) << 32))
    };
    let value = join(wave.pair(i.rb));
    // CAST: as above.
    let compared = join(wave.pair(i.imm as u8));
    let mut old = [0; LANES];
    let op = i.op;
    operate(windows, wave, i, issue, |l, page, at| {
        let Ok(slot) = page.get_atomic_ref::<AtomicU64>(at) else {
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
    // CAST: halves.
    wave.write(i.rd, *issue, &each(|l| old[l] as u32));
    wave.write(i.rd + 1, *issue, &each(|l| (old[l] >> 32) as u32));
    Ok(())
}
