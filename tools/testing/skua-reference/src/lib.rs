// SPDX-License-Identifier: MIT

//! A plain reference of what compute programs do, written from the manual (section 9) for tests.
//!
//! Tests compare what it computes with what the device model, the GPU and the filters do. Nothing
//! that is shipped uses it. It has nothing of the device: no waves, no page tables, no decoded
//! programs. One thread runs at a time, from its start or last barrier to the next barrier or its
//! end; when all threads of a group wait or have ended, the waiting ones go on. Groups run one
//! after the other. A program whose result does not depend on the order of its threads therefore
//! has the same result here and on the device, and that is what tests compare. A program in which a
//! thread waits for another one without a barrier does not end here, and is cut by the limit of
//! instructions.

pub mod draw;

use skua_spec::command::Dispatch;
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::{Form, Instruction, Op, Special, IMMEDIATE, REGISTERS};

/// The result of float operations that is not a number: there is one only.
const NOT_A_NUMBER: u32 = 0x7fc0_0000;

/// Global memory as a program sees it, by GPU virtual address.
pub trait Memory {
    /// Reads all of `bytes`.
    ///
    /// # Errors
    ///
    /// Why the address cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Reason>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    ///
    /// Why the address cannot be written.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Reason>;
}

/// Memory made of buffers that lie anywhere.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    /// Address and contents of each.
    buffers: Vec<(u64, Vec<u8>)>,
}

impl Buffers {
    /// Adds a buffer at an address. Where buffers overlap, the first one is used.
    pub fn add(&mut self, address: u64, bytes: Vec<u8>) {
        self.buffers.push((address, bytes));
    }

    /// The buffer that was added at `address`.
    pub fn get(&self, address: u64) -> Option<&[u8]> {
        self.buffers
            .iter()
            .find(|(base, _)| *base == address)
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// Buffer and range in it of an access that lies in one buffer.
    fn find(&self, address: u64, bytes: usize) -> Result<(usize, usize), Reason> {
        self.buffers
            .iter()
            .enumerate()
            .find_map(|(i, (base, buffer))| {
                let at = usize::try_from(address.checked_sub(*base)?).ok()?;
                (at.checked_add(bytes)? <= buffer.len()).then_some((i, at))
            })
            .ok_or(Reason::NotPresent)
    }
}

impl Memory for Buffers {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Reason> {
        let (i, at) = self.find(address, bytes.len())?;
        bytes.copy_from_slice(&self.buffers[i].1[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Reason> {
        let (i, at) = self.find(address, bytes.len())?;
        self.buffers[i].1[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Why a dispatch stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A fault, as the device would report it.
    Fault {
        /// As the device's record would have it.
        reason: Reason,
        /// As the device's record would have it.
        access: Access,
        /// The address, for accesses to global memory; else 0.
        address: u64,
        /// More about the reason: the argument's index, or the code of a trap.
        detail: u32,
        /// Index of the instruction.
        pc: u32,
    },
    /// The instructions allowed were used up.
    Limit,
}

/// Runs a dispatch. `program` is what lies at its address; `limit` bounds the instructions of all
/// threads together. Returns the instructions executed.
///
/// # Errors
///
/// [`Stop`]. What was written until then stays written.
pub fn run(
    program: &[u8],
    dispatch: &Dispatch,
    memory: &mut dyn Memory,
    limit: u64,
) -> Result<u64, Stop> {
    let instructions = decode(program)?;
    let mut left = limit;
    let [gx, gy, gz] = dispatch.groups;
    for z in 0..gz {
        for y in 0..gy {
            for x in 0..gx {
                let mut group = Group {
                    instructions: &instructions,
                    dispatch,
                    memory,
                    group: [x, y, z],
                    shared: vec![0; dispatch.shared_bytes as usize],
                    left: &mut left,
                };
                group.run()?;
            }
        }
    }
    Ok(limit - left)
}

fn decode(program: &[u8]) -> Result<Vec<Instruction>, Stop> {
    (0u32..)
        .zip(program.chunks_exact(8))
        .map(|(pc, chunk)| {
            let bits = chunk
                .iter()
                .rev()
                .fold(0, |bits, byte| (bits << 8) | u64::from(*byte));
            Instruction::decode(bits).ok_or_else(|| plain(Reason::BadInstruction, pc))
        })
        .collect()
}

fn plain(reason: Reason, pc: u32) -> Stop {
    Stop::Fault {
        reason,
        access: Access::None,
        address: 0,
        detail: 0,
        pc,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    Ended,
}

struct Thread {
    /// Position in the group.
    position: [u32; 3],
    /// Number in the group, x first.
    flat: u32,
    registers: [u32; REGISTERS as usize],
    /// Index of the next instruction.
    pc: u32,
    state: State,
}

impl Thread {
    fn get(&self, register: u8) -> u32 {
        self.registers[usize::from(register)]
    }

    fn set(&mut self, register: u8, value: u32) {
        self.registers[usize::from(register)] = value;
    }

    fn pair(&self, register: u8) -> u64 {
        u64::from(self.get(register)) | (u64::from(self.get(register + 1)) << 32)
    }

    fn set_pair(&mut self, register: u8, value: u64) {
        self.set(register, low(value));
        self.set(register + 1, low(value >> 32));
    }

    /// Operand B.
    fn b(&self, i: &Instruction) -> u32 {
        if i.rb == IMMEDIATE {
            i.imm
        } else {
            self.get(i.rb)
        }
    }

    /// Operand B of 64 bits.
    fn b_pair(&self, i: &Instruction) -> u64 {
        if i.rb == IMMEDIATE {
            sign_extended(i.imm)
        } else {
            self.pair(i.rb)
        }
    }
}

struct Group<'a> {
    instructions: &'a [Instruction],
    dispatch: &'a Dispatch,
    memory: &'a mut dyn Memory,
    /// Coordinates of the thread group: x, y and z.
    group: [u32; 3],
    shared: Vec<u8>,
    /// Instructions that may still be executed, by all groups together.
    left: &'a mut u64,
}

impl Group<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let [nx, ny, nz] = self.dispatch.threads;
        let mut threads = Vec::new();
        for z in 0..nz {
            for y in 0..ny {
                for x in 0..nx {
                    threads.push(Thread {
                        position: [x, y, z],
                        flat: (z * ny + y) * nx + x,
                        registers: [0; REGISTERS as usize],
                        pc: 0,
                        state: State::Ready,
                    });
                }
            }
        }
        self.finish(threads).map(|_| ())
    }

    /// Runs threads to their ends.
    fn finish(&mut self, mut threads: Vec<Thread>) -> Result<Vec<Thread>, Stop> {
        while threads.iter().any(|t| t.state != State::Ended) {
            for thread in &mut threads {
                if thread.state == State::AtBarrier {
                    thread.state = State::Ready;
                }
                while thread.state == State::Ready {
                    self.step(thread)?;
                }
            }
        }
        Ok(threads)
    }

    fn step(&mut self, t: &mut Thread) -> Result<(), Stop> {
        let pc = t.pc;
        let i = *self
            .instructions
            .get(pc as usize)
            .ok_or_else(|| plain(Reason::PcRange, pc))?;
        *self.left = self.left.checked_sub(1).ok_or(Stop::Limit)?;
        t.pc = pc + 1;
        match i.op.form() {
            Form::Bare => match i.op {
                Op::Exit => t.state = State::Ended,
                Op::Bar => t.state = State::AtBarrier,
                _ => {}
            },
            Form::Code => {
                return Err(Stop::Fault {
                    reason: Reason::Trap,
                    access: Access::None,
                    address: 0,
                    detail: i.imm,
                    pc,
                })
            }
            Form::Index => {
                let value = if i.op == Op::Sr {
                    self.special(t, i.imm)
                } else {
                    self.argument(i.imm, pc)?
                };
                t.set(i.rd, value);
            }
            Form::Unary => t.set(i.rd, unary(i.op, t.b(&i))),
            Form::Binary => t.set(i.rd, binary(i.op, t.get(i.ra), t.b(&i))),
            Form::UnaryPair => t.set_pair(i.rd, t.b_pair(&i)),
            Form::BinaryPair => {
                let (a, b) = (t.pair(i.ra), t.b_pair(&i));
                let value = match i.op {
                    Op::Sub64 => a.wrapping_sub(b),
                    _ => a.wrapping_add(b),
                };
                t.set_pair(i.rd, value);
            }
            Form::Widen => t.set_pair(i.rd, u64::from(t.get(i.ra)) * u64::from(t.b(&i))),
            Form::Scale => {
                let scaled = u64::from(t.get(i.rb)) << i.imm;
                t.set_pair(i.rd, t.pair(i.ra).wrapping_add(scaled));
            }
            Form::Ternary => {
                let (a, b, c) = (t.get(i.ra), t.get(i.rb), t.get(c(&i)));
                let value = match i.op {
                    Op::Sel if a != 0 => b,
                    Op::Sel => c,
                    _ => bits(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c))),
                };
                t.set(i.rd, value);
            }
            Form::Jump | Form::Branch | Form::CompareBranch => {
                if taken(i.op, t.get(i.ra), t.get(i.rb)) {
                    t.pc = i.imm;
                }
            }
            Form::Load | Form::LoadPair => {
                let address = t.pair(i.ra).wrapping_add(sign_extended(i.imm));
                let value = self.load(address, width(i.op), Access::Read, pc)?;
                store_loaded(t, &i, value);
            }
            Form::Store | Form::StorePair => {
                let address = t.pair(i.ra).wrapping_add(sign_extended(i.imm));
                self.store(address, width(i.op), stored(t, &i), Access::Write, pc)?;
            }
            Form::LoadShared | Form::LoadSharedPair => {
                let offset = t.get(i.ra).wrapping_add(i.imm);
                let value = self.shared(offset, width(i.op), None, pc)?;
                store_loaded(t, &i, value);
            }
            Form::StoreShared | Form::StoreSharedPair => {
                let offset = t.get(i.ra).wrapping_add(i.imm);
                self.shared(offset, width(i.op), Some(stored(t, &i)), pc)?;
            }
            Form::Atomic | Form::CompareSwap => {
                let address = t.pair(i.ra);
                let old = self.load(address, 4, Access::Atomic, pc)?;
                let operand = u64::from(t.get(i.rb));
                let new = atomic(i.op, old, operand, u64::from(t.get(c(&i))));
                self.store(address, 4, new, Access::Atomic, pc)?;
                t.set(i.rd, low(old));
            }
            Form::AtomicPair | Form::CompareSwapPair => {
                let address = t.pair(i.ra);
                let old = self.load(address, 8, Access::Atomic, pc)?;
                let new = atomic(i.op, old, t.pair(i.rb), t.pair(c(&i)));
                self.store(address, 8, new, Access::Atomic, pc)?;
                t.set_pair(i.rd, old);
            }
            Form::AtomicShared | Form::CompareSwapShared => {
                let offset = t.get(i.ra);
                let old = self.shared(offset, 4, None, pc)?;
                let operand = u64::from(t.get(i.rb));
                let new = atomic(i.op, old, operand, u64::from(t.get(c(&i))));
                self.shared(offset, 4, Some(new), pc)?;
                t.set(i.rd, low(old));
            }
        }
        Ok(())
    }

    fn special(&self, t: &Thread, number: u32) -> u32 {
        let d = self.dispatch;
        // Decoding found that the number exists.
        match Special::from_u32(number).unwrap_or(Special::Lane) {
            Special::TidX => t.position[0],
            Special::TidY => t.position[1],
            Special::TidZ => t.position[2],
            Special::GidX => self.group[0],
            Special::GidY => self.group[1],
            Special::GidZ => self.group[2],
            Special::NtidX => d.threads[0],
            Special::NtidY => d.threads[1],
            Special::NtidZ => d.threads[2],
            Special::NgidX => d.groups[0],
            Special::NgidY => d.groups[1],
            Special::NgidZ => d.groups[2],
            Special::Flat => t.flat,
            Special::Lane => t.flat % skua_spec::command::WAVE_THREADS,
        }
    }

    fn argument(&self, index: u32, pc: u32) -> Result<u32, Stop> {
        let given = &self.dispatch.arguments[..self.dispatch.argument_count];
        given.get(index as usize).copied().ok_or(Stop::Fault {
            reason: Reason::ArgumentRange,
            access: Access::None,
            address: 0,
            detail: index,
            pc,
        })
    }

    fn load(&self, address: u64, width: usize, access: Access, pc: u32) -> Result<u64, Stop> {
        let mut bytes = [0; 8];
        check(address, width)
            .and_then(|()| self.memory.read(address, &mut bytes[..width]))
            .map_err(|reason| fault(reason, access, address, pc))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(
        &mut self,
        address: u64,
        width: usize,
        value: u64,
        access: Access,
        pc: u32,
    ) -> Result<(), Stop> {
        check(address, width)
            .and_then(|()| self.memory.write(address, &value.to_le_bytes()[..width]))
            .map_err(|reason| fault(reason, access, address, pc))
    }

    /// Reads shared memory, and writes it if there is a value.
    fn shared(
        &mut self,
        offset: u32,
        width: usize,
        value: Option<u64>,
        pc: u32,
    ) -> Result<u64, Stop> {
        let at = offset as usize;
        if at % width != 0 {
            return Err(plain(Reason::Misaligned, pc));
        }
        let place = self
            .shared
            .get_mut(at..at + width)
            .ok_or_else(|| plain(Reason::SharedRange, pc))?;
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(place);
        if let Some(value) = value {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Ok(u64::from_le_bytes(bytes))
    }
}

fn fault(reason: Reason, access: Access, address: u64, pc: u32) -> Stop {
    Stop::Fault {
        reason,
        access,
        address,
        detail: 0,
        pc,
    }
}

fn check(address: u64, width: usize) -> Result<(), Reason> {
    if address % width as u64 != 0 {
        return Err(Reason::Misaligned);
    }
    if !skua_spec::address::GpuVa(address).range_is_valid(width as u64) {
        return Err(Reason::AddressRange);
    }
    Ok(())
}

/// Register C.
fn c(i: &Instruction) -> u8 {
    // CAST: decoding found that it is below 64, or unused and zero.
    i.imm as u8
}

/// The low half.
fn low(value: u64) -> u32 {
    // CAST: as said.
    value as u32
}

fn sign_extended(value: u32) -> u64 {
    // CAST: to the signed value of the same bits, and back.
    i64::from(value as i32) as u64
}

fn signed(value: u32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}

fn unsigned(value: i32) -> u32 {
    u32::from_ne_bytes(value.to_ne_bytes())
}

/// A float's bits; there is one pattern that is not a number.
fn bits(value: f32) -> u32 {
    if value.is_nan() {
        NOT_A_NUMBER
    } else {
        value.to_bits()
    }
}

fn unary(op: Op, b: u32) -> u32 {
    let f = f32::from_bits(b);
    match op {
        Op::Clz => b.leading_zeros(),
        Op::Popc => b.count_ones(),
        Op::FSqrt => bits(f.sqrt()),
        Op::FFloor => bits(f.floor()),
        Op::FAbs => b & 0x7fff_ffff,
        Op::FNeg => b ^ 0x8000_0000,
        // CAST: the conversions of the instructions are those of `as`.
        Op::CvtFS => bits(signed(b) as f32),
        Op::CvtFU => bits(b as f32),
        Op::CvtSF => unsigned(f as i32),
        Op::CvtUF => f as u32,
        // MOV.
        _ => b,
    }
}

fn binary(op: Op, a: u32, b: u32) -> u32 {
    let (sa, sb) = (signed(a), signed(b));
    let (fa, fb) = (f32::from_bits(a), f32::from_bits(b));
    match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Mul => a.wrapping_mul(b),
        Op::MulHu => low((u64::from(a) * u64::from(b)) >> 32),
        // CAST: the high half of the product's bits.
        Op::MulHs => ((i64::from(sa) * i64::from(sb)) >> 32) as u32,
        Op::DivU => a.checked_div(b).unwrap_or(u32::MAX),
        Op::DivS if sb == 0 => u32::MAX,
        Op::DivS => unsigned(sa.wrapping_div(sb)),
        Op::RemU => a.checked_rem(b).unwrap_or(a),
        Op::RemS if sb == 0 => a,
        Op::RemS => unsigned(sa.wrapping_rem(sb)),
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Shl => a << (b % 32),
        Op::Shr => a >> (b % 32),
        Op::Sar => unsigned(sa >> (b % 32)),
        Op::MinU => a.min(b),
        Op::MaxU => a.max(b),
        Op::MinS => unsigned(sa.min(sb)),
        Op::MaxS => unsigned(sa.max(sb)),
        Op::FAdd => bits(fa + fb),
        Op::FSub => bits(fa - fb),
        Op::FMul => bits(fa * fb),
        Op::FDiv => bits(fa / fb),
        Op::FMin => extreme(fa, fb, std::cmp::Ordering::Less),
        Op::FMax => extreme(fa, fb, std::cmp::Ordering::Greater),
        Op::SetEq => (a == b).into(),
        Op::SetNe => (a != b).into(),
        Op::SetLtU => (a < b).into(),
        Op::SetLeU => (a <= b).into(),
        Op::SetLtS => (sa < sb).into(),
        Op::SetLeS => (sa <= sb).into(),
        Op::FSetEq => (fa == fb).into(),
        Op::FSetNe => (fa != fb).into(),
        Op::FSetLt => (fa < fb).into(),
        Op::FSetLe => (fa <= fb).into(),
        // No other operation has this form.
        _ => 0,
    }
}

/// The lesser or greater of two floats, with -0 below +0; a number is preferred to none.
fn extreme(a: f32, b: f32, wanted: std::cmp::Ordering) -> u32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => bits(b),
        (_, true) => bits(a),
        _ if a.total_cmp(&b) == wanted => a.to_bits(),
        _ => b.to_bits(),
    }
}

fn taken(op: Op, a: u32, b: u32) -> bool {
    match op {
        Op::Bnz => a != 0,
        Op::Bz => a == 0,
        Op::Beq => a == b,
        Op::Bne => a != b,
        Op::BltU => a < b,
        Op::BgeU => a >= b,
        Op::BltS => signed(a) < signed(b),
        Op::BgeS => signed(a) >= signed(b),
        // BRA.
        _ => true,
    }
}

/// Bytes that a load or store moves.
fn width(op: Op) -> usize {
    match op {
        Op::LdU8 | Op::LdS8 | Op::St8 | Op::LdsU8 | Op::LdsS8 | Op::Sts8 => 1,
        Op::LdU16 | Op::LdS16 | Op::St16 | Op::LdsU16 | Op::LdsS16 | Op::Sts16 => 2,
        Op::Ld64 | Op::St64 | Op::Lds64 | Op::Sts64 => 8,
        _ => 4,
    }
}

/// Puts what was loaded into `rd`.
fn store_loaded(t: &mut Thread, i: &Instruction, value: u64) {
    match i.op {
        Op::Ld64 | Op::Lds64 => t.set_pair(i.rd, value),
        // CAST: to the signed value of that width, which is then extended.
        Op::LdS8 | Op::LdsS8 => t.set(i.rd, unsigned(i32::from(value as i8))),
        Op::LdS16 | Op::LdsS16 => t.set(i.rd, unsigned(i32::from(value as i16))),
        _ => t.set(i.rd, low(value)),
    }
}

/// What a store writes, before it is cut to the width.
fn stored(t: &Thread, i: &Instruction) -> u64 {
    match i.op {
        Op::St64 | Op::Sts64 => t.pair(i.rd),
        _ => t.get(i.rd).into(),
    }
}

/// The new value of an atomic operation; `compared` is for compare-and-swap.
fn atomic(op: Op, old: u64, operand: u64, compared: u64) -> u64 {
    match op {
        // A 32-bit sum is cut when it is stored.
        Op::AtomAdd | Op::AtomAdd64 | Op::AtomsAdd => old.wrapping_add(operand),
        Op::AtomMinU | Op::AtomMinU64 | Op::AtomsMinU => old.min(operand),
        Op::AtomMaxU | Op::AtomMaxU64 | Op::AtomsMaxU => old.max(operand),
        Op::AtomAnd | Op::AtomAnd64 | Op::AtomsAnd => old & operand,
        Op::AtomOr | Op::AtomOr64 | Op::AtomsOr => old | operand,
        Op::AtomXor | Op::AtomXor64 | Op::AtomsXor => old ^ operand,
        Op::AtomCas | Op::AtomCas64 | Op::AtomsCas if old != compared => old,
        // Exchange, and compare-and-swap of equal values.
        _ => operand,
    }
}
