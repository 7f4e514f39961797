// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A wave: 32 threads that one instruction is issued for.
//!
//! Each thread has a program counter. The threads that stand at the lowest counter run together
//! until they meet others, branch apart, end or wait at a barrier: so threads that took different
//! ways meet again at the first instruction that both ways lead to, and a wave that never diverges
//! pays nothing for it.
//!
//! The interpreter is compiled for the least host and for one with wide vectors; [`Arch`] chooses
//! when it runs. What it calls for each instruction is inlined for that, but for accesses to
//! memory, so that the loop keeps what it needs in the host's registers. It runs stretches, of
//! which is known before how long they are at most. What all threads have the same of is computed
//! once.

use pulp::{Arch, Simd, WithSimd};
use skua_spec::fault::Reason;
use skua_spec::isa::{Instruction, Op, Special, IMMEDIATE, REGISTERS};

use crate::fault::Fault;
use crate::program::arithmetic as f;
use crate::program::window::Surroundings;
use crate::program::{global, shared};

/// Threads of a wave.
pub(crate) const LANES: usize = skua_spec::command::WAVE_THREADS as usize;

/// A register of all threads.
pub(crate) type Lanes = [u32; LANES];

/// The registers of a wave, none across more of the host's cache lines than it needs.
#[repr(align(64))]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registers([Lanes; REGISTERS as usize]);

/// Index of a register; decoding has checked the number.
const fn at(register: u8) -> usize {
    (register & (REGISTERS - 1)) as usize
}

/// The numbers of the threads in `mask`.
#[inline]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

/// What `f` says of each lane, in a loop that becomes one of vectors.
#[inline(always)]
pub(crate) fn each(f: impl Fn(usize) -> u32) -> Lanes {
    let mut value = [0; LANES];
    for (l, value) in value.iter_mut().enumerate() {
        *value = f(l);
    }
    value
}

/// The threads of which `f` holds.
#[inline(always)]
fn bits(f: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).fold(0, |all, l| all | u32::from(f(l)) << l)
}

/// The lowest of the threads in `mask`, [`u32::MAX`] if there is none.
#[inline(always)]
fn lowest(values: &Lanes, mask: u32) -> u32 {
    (0..LANES).fold(u32::MAX, |least, l| {
        least.min(values[l] | (mask >> l & 1).wrapping_sub(1))
    })
}

/// Whether there are all threads that a wave can have, and each one has `step` more than the one
/// before it.
#[inline(always)]
pub(crate) fn ascend(values: &Lanes, mask: u32, step: usize) -> bool {
    // That it is thread 0 is not known to the compiler, which would leave that one out and have
    // vectors begin between those that were stored.
    let first = values[mask.trailing_zeros() as usize % LANES];
    let mut differs = !mask;
    for (l, value) in values.iter().enumerate() {
        // CAST: below 256.
        differs |= value.wrapping_sub(first) ^ (l * step) as u32;
    }
    differs == 0
}

/// All ones for each thread in `mask`.
#[inline(always)]
fn spread(mask: u32) -> Lanes {
    each(|l| (mask >> l & 1).wrapping_neg())
}

/// Where control goes after an instruction.
enum Flow {
    Next,
    Jump(u32),
    /// These threads go there, the others to the next instruction.
    Split(u32, u32),
    Exit,
    Barrier,
    /// As `Next`, after an access through a GPU address, which may have taken time.
    Access,
}

/// How a run of a wave ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The budget is used up, or the step is to end.
    Budget,
    /// Every thread has ended or waits at a barrier.
    Blocked,
}

/// Who an instruction is issued for. Accesses to memory borrow it: each field was just written by
/// itself, and the host would wait for all of them to read the whole at once.
#[derive(Clone, Copy)]
pub(crate) struct Issue<'a> {
    /// The threads, a bit for each.
    pub(crate) mask: u32,
    /// The same, all ones for each.
    pub(crate) lanes: &'a Lanes,
    /// Whether these are all of the wave.
    pub(crate) all: bool,
    /// Whether these are all of the wave and get the same: it is computed once.
    pub(crate) once: bool,
}

/// A call of [`Wave::interpret`].
struct Run<'r, 'a, 'm> {
    wave: &'r mut Wave,
    around: &'r mut Surroundings<'a, 'm>,
    /// Instructions after which it returns.
    budget: u64,
    issued: &'r mut u64,
}

impl WithSimd for Run<'_, '_, '_> {
    type Output = Result<End, Fault>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        self.wave
            .interpret(simd, self.around, self.budget, self.issued)
    }
}

/// An instruction that accesses memory.
struct Reach<'r, 'a, 'm> {
    wave: &'r mut Wave,
    around: &'r mut Surroundings<'a, 'm>,
    i: &'r Instruction,
    issue: &'r Issue<'r>,
}

impl WithSimd for Reach<'_, '_, '_> {
    type Output = Result<Flow, Fault>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Self::Output {
        self.wave.access(self.around, self.i, self.issue)
    }
}

/// Has the vectors of the caller, and is not part of it: what accesses need of the host's registers
/// would be missing where nearly all instructions are executed.
#[inline(never)]
fn reach<S: Simd>(simd: S, reach: Reach<'_, '_, '_>) -> Result<Flow, Fault> {
    simd.vectorize(reach)
}

/// 32 threads of a group and their registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wave {
    /// By register, then by lane.
    registers: Box<Registers>,
    /// Program counters, by lane.
    pub(crate) counters: Lanes,
    /// Registers, by bit, that are known to hold the same for all threads of the wave.
    uniform: u64,
    /// Threads that exist and have not ended.
    pub(crate) alive: u32,
    /// Threads that wait at a barrier.
    pub(crate) parked: u32,
    /// Threads that the wave has at the start of a group.
    pub(crate) present: u32,
    /// Number of thread 0 in the group.
    first: u32,
    /// The threads' places in the group, x, y and z.
    places: [Lanes; 3],
    /// The group, x, y and z.
    pub(crate) group: [u32; 3],
}

impl Wave {
    /// The wave whose thread 0 is number `first` of a group of `threads`.
    pub(crate) fn new(first: u32, threads: [u32; 3]) -> Self {
        let mut places = [[0; LANES]; 3];
        let total = threads[0] * threads[1] * threads[2];
        let mut present = 0;
        for (l, number) in (first..total).take(LANES).enumerate() {
            present |= 1 << l;
            places[0][l] = number % threads[0];
            places[1][l] = number / threads[0] % threads[1];
            places[2][l] = number / threads[0] / threads[1];
        }
        Self {
            registers: Box::new(Registers([[0; LANES]; REGISTERS as usize])),
            counters: [0; LANES],
            uniform: 0,
            alive: 0,
            parked: 0,
            present,
            first,
            places,
            group: [0; 3],
        }
    }

    /// Forgets what another program has left: all registers are `value`.
    pub(crate) fn clear(&mut self, value: u32) {
        self.registers.0.fill([value; LANES]);
        self.counters = [value; LANES];
    }

    /// Starts the wave's threads of a group. `used` are the registers that the program names, by
    /// bit: the others are never seen.
    pub(crate) fn start(&mut self, group: [u32; 3], used: u64) {
        let behind = u64::BITS - used.leading_zeros();
        self.registers
            .0
            .iter_mut()
            .take(behind as usize)
            .for_each(|register| *register = [0; LANES]);
        self.counters = [0; LANES];
        self.uniform = used;
        self.alive = self.present;
        self.parked = 0;
        self.group = group;
    }

    /// Whether all threads have ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.alive == 0
    }

    /// Whether no thread can run before the barrier opens.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.alive & !self.parked == 0
    }

    /// Lets go those who wait at the barrier: all of the group are there.
    pub(crate) fn release(&mut self) {
        self.parked = 0;
    }

    /// A register of all lanes, those that have ended included.
    #[inline(always)]
    pub(crate) fn register(&self, register: u8) -> &Lanes {
        &self.registers.0[at(register)]
    }

    /// A register to write, of each thread for itself.
    #[inline(always)]
    pub(crate) fn register_mut(&mut self, register: u8) -> &mut Lanes {
        self.uniform &= !(1 << at(register));
        &mut self.registers.0[at(register)]
    }

    /// A pair: the low and the high halves.
    #[inline(always)]
    pub(crate) fn pair(&self, register: u8) -> (&Lanes, &Lanes) {
        (self.register(register), self.register(register + 1))
    }

    /// The register `rd`, and the other one of its pair.
    #[inline(always)]
    pub(crate) fn results(&mut self, i: &Instruction) -> (&mut Lanes, &mut Lanes) {
        let (first, second) = self.registers.0.split_at_mut(at(i.rd | 1));
        let (even, odd) = (&mut first[at(i.rd & !1)], &mut second[0]);
        if i.rd % 2 == 0 {
            (even, odd)
        } else {
            (odd, even)
        }
    }

    /// A pair of one lane: the low and the high half.
    #[inline(always)]
    fn halves(&self, register: u8, lane: usize) -> (u32, u32) {
        let (lo, hi) = self.pair(register);
        (lo[lane], hi[lane])
    }

    /// A pair of one lane.
    #[inline(always)]
    pub(crate) fn joined(&self, register: u8, lane: usize) -> u64 {
        let (lo, hi) = self.halves(register, lane);
        u64::from(lo) | (u64::from(hi) << 32)
    }

    /// Issues up to `budget` instructions; adds those issued to `issued`.
    pub(crate) fn run(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        budget: u64,
        issued: &mut u64,
    ) -> Result<End, Fault> {
        Arch::new().dispatch(Run {
            wave: self,
            around,
            budget,
            issued,
        })
    }

    /// As [`Self::run`], with the vectors of the caller.
    #[inline(always)]
    fn interpret<S: Simd>(
        &mut self,
        simd: S,
        around: &mut Surroundings<'_, '_>,
        budget: u64,
        issued: &mut u64,
    ) -> Result<End, Fault> {
        // Kept where the compiler finds them without a look at memory: what an instruction stores
        // could be any of it.
        let (mut left, mut uniform, program) = (budget, self.uniform, around.program);
        let end = 'run: loop {
            let ready = self.alive & !self.parked;
            if ready == 0 {
                break Ok(End::Blocked);
            }
            // The threads at the lowest counter, and the lowest counter of the others.
            let mut pc = lowest(&self.counters, ready);
            let mask = ready & bits(|l| self.counters[l] == pc);
            let meet = lowest(&self.counters, ready & !mask);
            let (alone, all) = (mask == ready, mask == self.present);
            let lanes = spread(mask);
            while left > 0 && (alone || pc < meet) {
                let ahead = program.get(pc as usize..).unwrap_or_default();
                if ahead.is_empty() {
                    break 'run Err(Fault::plain(Reason::PcRange).at(pc));
                }
                // What these issue unless one of them says otherwise.
                let most = left.min(u64::from(meet - pc)).min(ahead.len() as u64);
                let (mut done, mut flow) = (0_u32, Ok(Flow::Next));
                for decoded in &ahead[..most as usize] {
                    done += 1;
                    let (i, written) = (decoded.instruction, decoded.written);
                    let once = all && decoded.uniform && decoded.read & !uniform == 0;
                    let issue = Issue {
                        mask,
                        lanes: &lanes,
                        all,
                        once,
                    };
                    uniform = uniform & !written | if once { written } else { 0 };
                    if self.compute::<S>(i, issue) {
                        continue;
                    }
                    flow = self.step(simd, around, &decoded.instruction, issue);
                    let rest = most - u64::from(done);
                    match flow {
                        Ok(Flow::Next) => {}
                        // What took time has left enough of the step for the rest.
                        Ok(Flow::Access) if around.left(*issued + u64::from(done)) >= rest => {}
                        _ => break,
                    }
                }
                *issued += u64::from(done);
                left = (left - u64::from(done)).min(around.left(*issued));
                // The program is far shorter than 2^32.
                pc += done;
                match flow {
                    Ok(Flow::Next | Flow::Access) => {}
                    Ok(Flow::Jump(to)) => pc = to,
                    Ok(Flow::Split(taken, to)) => {
                        self.set_counters(mask & !taken, pc);
                        self.set_counters(taken, to);
                        continue 'run;
                    }
                    Ok(Flow::Exit) => {
                        self.alive &= !mask;
                        continue 'run;
                    }
                    Ok(Flow::Barrier) => {
                        self.parked |= mask;
                        break;
                    }
                    Err(fault) => break 'run Err(fault.at(pc - 1)),
                }
            }
            self.set_counters(mask, pc);
            // A barrier may have been the last one.
            if left == 0 && !self.is_blocked() {
                break Ok(End::Budget);
            }
        };
        self.uniform = uniform;
        end
    }

    fn set_counters(&mut self, mask: u32, pc: u32) {
        let lanes = spread(mask);
        self.counters = each(|l| self.counters[l] & !lanes[l] | pc & lanes[l]);
    }

    /// Writes a register of the threads. Where these are all of the wave, so may be the lanes that
    /// have no thread, which nobody sees.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        register: u8,
        Issue { lanes, all, .. }: Issue<'_>,
        value: &Lanes,
    ) {
        let target = &mut self.registers.0[at(register)];
        if all {
            *target = *value;
        } else {
            *target = each(|l| target[l] & !lanes[l] | value[l] & lanes[l]);
        }
    }

    /// Writes what `value` says of each lane to a register. Where an operand comes from decides
    /// before this, so that vectors stay in the host's registers.
    #[inline(always)]
    fn put(&mut self, register: u8, issue: Issue<'_>, value: impl Fn(&Self, usize) -> u32) {
        if issue.once {
            self.registers.0[at(register)] = [value(self, 0); LANES];
        } else {
            let value = each(|l| value(self, l));
            self.write(register, issue, &value);
        }
    }

    #[inline(always)]
    fn unary(&mut self, i: Instruction, issue: Issue<'_>, f: impl Fn(u32) -> u32) {
        if i.rb == IMMEDIATE {
            self.put(i.rd, issue, |_, _| f(i.imm));
        } else {
            self.put(i.rd, issue, |wave, l| f(wave.register(i.rb)[l]));
        }
    }

    #[inline(always)]
    fn binary(&mut self, i: Instruction, issue: Issue<'_>, f: impl Fn(u32, u32) -> u32) {
        if i.rb == IMMEDIATE {
            self.put(i.rd, issue, |wave, l| f(wave.register(i.ra)[l], i.imm));
        } else {
            let (a, b) = (i.ra, i.rb);
            self.put(i.rd, issue, |wave, l| {
                f(wave.register(a)[l], wave.register(b)[l])
            });
        }
    }

    #[inline(always)]
    fn ternary(&mut self, i: Instruction, issue: Issue<'_>, f: impl Fn(u32, u32, u32) -> u32) {
        self.put(i.rd, issue, |wave, l| {
            let (a, b) = (wave.register(i.ra), wave.register(i.rb));
            // CAST: decoding has checked that the field is a register.
            f(a[l], b[l], wave.register(i.imm as u8)[l])
        });
    }

    /// As [`Self::put`], of the pair `rd`: low and high half.
    #[inline(always)]
    fn put_pair(
        &mut self,
        i: Instruction,
        issue: Issue<'_>,
        value: impl Fn(&Self, usize) -> (u32, u32),
    ) {
        if issue.once {
            let value = value(self, 0);
            let (lo, hi) = self.results(&i);
            (*lo, *hi) = ([value.0; LANES], [value.1; LANES]);
        } else {
            let (mut lo, mut hi) = ([0; LANES], [0; LANES]);
            for l in 0..LANES {
                (lo[l], hi[l]) = value(self, l);
            }
            self.write(i.rd, issue, &lo);
            self.write(i.rd + 1, issue, &hi);
        }
    }

    #[inline(always)]
    fn binary_pair(
        &mut self,
        i: Instruction,
        issue: Issue<'_>,
        f: impl Fn((u32, u32), (u32, u32)) -> (u32, u32),
    ) {
        if i.rb == IMMEDIATE {
            let b = f::extended(i.imm);
            self.put_pair(i, issue, |wave, l| f(wave.halves(i.ra, l), b));
        } else {
            let (a, b) = (i.ra, i.rb);
            self.put_pair(i, issue, |wave, l| f(wave.halves(a, l), wave.halves(b, l)));
        }
    }

    /// Goes to `imm` where the condition holds.
    #[inline(always)]
    fn branch(&self, i: Instruction, issue: Issue<'_>, f: impl Fn(u32, u32) -> bool) -> Flow {
        let (a, b) = (self.register(i.ra), self.register(i.rb));
        if issue.once {
            return if f(a[0], b[0]) {
                Flow::Jump(i.imm)
            } else {
                Flow::Next
            };
        }
        match bits(|l| f(a[l], b[l])) & issue.mask {
            0 => Flow::Next,
            all if all == issue.mask => Flow::Jump(i.imm),
            some => Flow::Split(some, i.imm),
        }
    }

    fn special(&self, around: &Surroundings<'_, '_>, number: u32) -> Lanes {
        let all = |value: u32| [value; LANES];
        match Special::from_u32(number) {
            Some(Special::TidX) => self.places[0],
            Some(Special::TidY) => self.places[1],
            Some(Special::TidZ) => self.places[2],
            Some(Special::GidX) => all(self.group[0]),
            Some(Special::GidY) => all(self.group[1]),
            Some(Special::GidZ) => all(self.group[2]),
            Some(Special::NtidX) => all(around.threads[0]),
            Some(Special::NtidY) => all(around.threads[1]),
            Some(Special::NtidZ) => all(around.threads[2]),
            Some(Special::NgidX) => all(around.groups[0]),
            Some(Special::NgidY) => all(around.groups[1]),
            Some(Special::NgidZ) => all(around.groups[2]),
            // CAST: below 32.
            Some(Special::Flat) => std::array::from_fn(|l| self.first + l as u32),
            Some(Special::Lane) => std::array::from_fn(|l| l as u32),
            // Decoding has checked the number.
            None => all(0),
        }
    }

    /// Executes an instruction that computes something from registers; whether it is one. Most are,
    /// and what comes after them is always the same: so they are told from others first.
    #[inline(always)]
    fn compute<S: Simd>(&mut self, i: Instruction, issue: Issue<'_>) -> bool {
        match i.op {
            Op::Nop => {}
            Op::Mov => self.unary(i, issue, |b| b),
            Op::Add => self.binary(i, issue, u32::wrapping_add),
            Op::Sub => self.binary(i, issue, u32::wrapping_sub),
            Op::Mul => self.binary(i, issue, u32::wrapping_mul),
            Op::MulHu => self.binary(i, issue, f::mulhu),
            Op::MulHs => self.binary(i, issue, f::mulhs),
            Op::DivU => self.binary(i, issue, f::divu),
            Op::DivS => self.binary(i, issue, f::divs),
            Op::RemU => self.binary(i, issue, f::remu),
            Op::RemS => self.binary(i, issue, f::rems),
            Op::And => self.binary(i, issue, |a, b| a & b),
            Op::Or => self.binary(i, issue, |a, b| a | b),
            Op::Xor => self.binary(i, issue, |a, b| a ^ b),
            Op::Shl => self.binary(i, issue, u32::wrapping_shl),
            Op::Shr => self.binary(i, issue, u32::wrapping_shr),
            Op::Sar => self.binary(i, issue, f::sar),
            Op::MinU => self.binary(i, issue, |a, b| a.min(b)),
            Op::MaxU => self.binary(i, issue, |a, b| a.max(b)),
            Op::MinS => self.binary(i, issue, f::mins),
            Op::MaxS => self.binary(i, issue, f::maxs),
            Op::Clz => self.unary(i, issue, u32::leading_zeros),
            Op::Popc => self.unary(i, issue, u32::count_ones),
            Op::Add64 => self.binary_pair(i, issue, f::add64),
            Op::Sub64 => self.binary_pair(i, issue, f::sub64),
            Op::MulWu => {
                let product = |a: u32, b| (a.wrapping_mul(b), f::mulhu(a, b));
                if i.rb == IMMEDIATE {
                    self.put_pair(i, issue, |w, l| product(w.register(i.ra)[l], i.imm));
                } else {
                    let (a, b) = (i.ra, i.rb);
                    self.put_pair(i, issue, |w, l| product(w.register(a)[l], w.register(b)[l]));
                }
            }
            Op::Lea => {
                let shift = i.imm & 7;
                self.put_pair(i, issue, |wave, l| {
                    let index = wave.register(i.rb)[l];
                    let scaled = (index << shift, index >> 1 >> (31 - shift));
                    f::add64(wave.halves(i.ra, l), scaled)
                });
            }
            Op::Mov64 => {
                if i.rb == IMMEDIATE {
                    self.put_pair(i, issue, |_, _| f::extended(i.imm));
                } else {
                    self.put_pair(i, issue, |wave, l| wave.halves(i.rb, l));
                }
            }

            Op::FAdd => self.binary(i, issue, f::fadd),
            Op::FSub => self.binary(i, issue, f::fsub),
            Op::FMul => self.binary(i, issue, f::fmul),
            Op::FDiv => self.binary(i, issue, f::fdiv),
            Op::FMin => self.binary(i, issue, f::fmin),
            Op::FMax => self.binary(i, issue, f::fmax),
            Op::FSqrt => self.unary(i, issue, f::fsqrt),
            Op::FFloor => self.unary(i, issue, f::ffloor),
            // Whatever has wide vectors multiplies and adds in one instruction.
            Op::FMa if S::IS_SCALAR => self.ternary(i, issue, f::fma),
            Op::FMa => self.ternary(i, issue, f::fused),
            Op::FAbs => self.unary(i, issue, |b| b & 0x7fff_ffff),
            Op::FNeg => self.unary(i, issue, |b| b ^ 0x8000_0000),
            Op::CvtFS => self.unary(i, issue, f::cvt_fs),
            Op::CvtFU => self.unary(i, issue, f::cvt_fu),
            Op::CvtSF => self.unary(i, issue, f::cvt_sf),
            Op::CvtUF => self.unary(i, issue, f::cvt_uf),

            Op::SetEq => self.binary(i, issue, |a, b| u32::from(a == b)),
            Op::SetNe => self.binary(i, issue, |a, b| u32::from(a != b)),
            Op::SetLtU => self.binary(i, issue, |a, b| u32::from(a < b)),
            Op::SetLeU => self.binary(i, issue, |a, b| u32::from(a <= b)),
            // CAST: registers as signed numbers.
            Op::SetLtS => self.binary(i, issue, |a, b| u32::from((a as i32) < b as i32)),
            Op::SetLeS => self.binary(i, issue, |a, b| u32::from(a as i32 <= b as i32)),
            Op::FSetEq => self.binary(i, issue, f::fseq),
            Op::FSetNe => self.binary(i, issue, f::fsne),
            Op::FSetLt => self.binary(i, issue, f::fslt),
            Op::FSetLe => self.binary(i, issue, f::fsle),
            Op::Sel => self.ternary(i, issue, |a, b, c| if a != 0 { b } else { c }),
            _ => return false,
        }
        true
    }

    /// Executes an instruction that does something else.
    #[inline(always)]
    fn step<S: Simd>(
        &mut self,
        simd: S,
        around: &mut Surroundings<'_, '_>,
        i: &Instruction,
        issue: Issue<'_>,
    ) -> Result<Flow, Fault> {
        let flow = match i.op {
            Op::Sr => {
                let value = self.special(around, i.imm);
                self.write(i.rd, issue, &value);
                Flow::Next
            }
            Op::Arg => {
                let value = around
                    .arguments
                    .get(i.imm as usize)
                    .ok_or(Fault::plain(Reason::ArgumentRange).with_detail(i.imm))?;
                self.write(i.rd, issue, &[*value; LANES]);
                Flow::Next
            }
            Op::Exit => Flow::Exit,
            Op::Bar => Flow::Barrier,
            Op::Trap => return Err(Fault::plain(Reason::Trap).with_detail(i.imm)),

            Op::Bra => Flow::Jump(i.imm),
            Op::Bnz => self.branch(*i, issue, |a, _| a != 0),
            Op::Bz => self.branch(*i, issue, |a, _| a == 0),
            Op::Beq => self.branch(*i, issue, |a, b| a == b),
            Op::Bne => self.branch(*i, issue, |a, b| a != b),
            Op::BltU => self.branch(*i, issue, |a, b| a < b),
            Op::BgeU => self.branch(*i, issue, |a, b| a >= b),
            // CAST: registers as signed numbers.
            Op::BltS => self.branch(*i, issue, |a, b| (a as i32) < b as i32),
            Op::BgeS => self.branch(*i, issue, |a, b| a as i32 >= b as i32),
            _ => {
                let access = Reach {
                    wave: self,
                    around,
                    i,
                    issue: &issue,
                };
                return reach(simd, access);
            }
        };
        Ok(flow)
    }

    /// Executes an instruction that accesses memory.
    #[inline(always)]
    fn access(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        i: &Instruction,
        issue: &Issue<'_>,
    ) -> Result<Flow, Fault> {
        let mask = issue.mask;
        match i.op {
            Op::LdU8 | Op::LdS8 | Op::LdU16 | Op::LdS16 | Op::Ld32 | Op::Ld64 => {
                global::load(&mut around.windows, self, i, issue)?;
            }
            Op::St8 | Op::St16 | Op::St32 | Op::St64 => {
                global::store(&mut around.windows, self, i, issue)?;
            }
            Op::LdsU8 | Op::LdsS8 | Op::LdsU16 | Op::LdsS16 | Op::Lds32 | Op::Lds64 => {
                shared::load(around.shared, self, i, issue)?;
                return Ok(Flow::Next);
            }
            Op::Sts8 | Op::Sts16 | Op::Sts32 | Op::Sts64 => {
                shared::store(around.shared, self, i, mask)?;
                return Ok(Flow::Next);
            }
            Op::AtomAdd
            | Op::AtomMinU
            | Op::AtomMaxU
            | Op::AtomAnd
            | Op::AtomOr
            | Op::AtomXor
            | Op::AtomXchg
            | Op::AtomCas => {
                global::atomic(&mut around.windows, self, i, issue)?;
            }
            Op::AtomAdd64
            | Op::AtomMinU64
            | Op::AtomMaxU64
            | Op::AtomAnd64
            | Op::AtomOr64
            | Op::AtomXor64
            | Op::AtomXchg64
            | Op::AtomCas64 => {
                global::atomic_pair(&mut around.windows, self, i, issue)?;
            }
            Op::AtomsAdd
            | Op::AtomsMinU
            | Op::AtomsMaxU
            | Op::AtomsAnd
            | Op::AtomsOr
            | Op::AtomsXor
            | Op::AtomsXchg
            | Op::AtomsCas => {
                shared::atomic(around.shared, self, i, mask)?;
                return Ok(Flow::Next);
            }
            // Others do not.
            _ => {}
        }
        Ok(Flow::Access)
    }
}
