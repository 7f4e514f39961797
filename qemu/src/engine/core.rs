// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The core of an engine: commands in, memory and [`Outcome`]s out.
//!
//! ```text
//!            enable            doorbell           WAIT not yet true
//! Disabled ---------> Idle ------------> Running <-----------------> Waiting
//!     ^                ^  <------------     |                          |
//!     |                     head == tail    | fault                    |
//!     +---- reset (from every state) ----- Faulted <-------------------+
//! ```
//!
//! A core is a value that nobody shares: no thread, lock or mailbox is in it. [`Core::step`] does a
//! bounded amount of work on the [`Memory`] that it is lent and says what came of it; between two
//! steps everything that was begun and has not ended is data, [`Progress`], which can be taken out,
//! kept and given to this or another core of the kind. How the work is cut into steps changes
//! nothing: memory, ticks and counters are the same. What takes longer than a step has left is done
//! at once and owed: nothing more happens, and nobody hears of it, before its time has passed.
//!
//! What must be seen outside before more happens ends a step: the caller writes [`Core::shown`] to
//! the status page, raises interrupts, wakes who waits. [`super::worker`] does so on a thread for
//! each core or for all, a test or a fuzz target by plain calls.

use std::ops::Range;
use std::sync::atomic::{fence, Ordering};

use skua_spec::address::{GpuPhys, PAGE_SIZE};
use skua_spec::command::{Command, EngineKind, Header, Opcode, MAX_WORDS, TRANSFER_CHUNK};
use skua_spec::context::Descriptor;
use skua_spec::fault::{self, Access, Reason, Record};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::preemption::{Cause, Level};
use skua_spec::regs::engine::{RING_MAX, RING_MIN};
use skua_spec::status::{Counter, EngineState};
use skua_spec::ticks;

use crate::command::draw::Drawing;
use crate::command::transfer::{Moved, Rows, Tile};
use crate::engine::held::Held;
use crate::engine::packet::Packet;
use crate::engine::Ring;
use crate::fault::Fault;
use crate::gart;
use crate::memory::Memory;
use crate::mmu::{Mmu, Space};
use crate::options::Preemption;
use crate::program::cache::ProgramCache;
use crate::program::machine::Machine;

/// Most words of a command: what the length field can say.
const LONGEST: usize = 0xffff;

/// What a step has come to, and what the worker does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is more to do.
    Busy,
    /// A SIGNAL was executed: who waits for a value may look again. There may be more to do.
    Signalled,
    /// A fence's value is in [`Shown::completed_fence`]. There may be more to do.
    Completed {
        /// Raise the engine's interrupt when the value can be seen.
        interrupt: bool,
    },
    /// WAIT's value is not there: the next step looks again.
    Waiting,
    /// INVALIDATE: all other engines are to drop translations of an address space, or of all
    /// (`None`), and then [`Core::invalidated`] is to be called. Until then each step asks again.
    Invalidate(Option<Asid>),
    /// The engine has stopped for [`Core::preempt`], is idle, and can be seen to be: the record is
    /// to be written and the interrupt raised.
    Preempted {
        /// Number of the preemption request that is answered.
        fence: u64,
        /// What the engine was at when it stopped.
        cause: Cause,
    },
    /// Nothing to do before [`Core::enable`] or [`Core::ring_doorbell`].
    Idle,
    /// The engine is faulted. The record is for the fault ring.
    Faulted(Record),
}

/// What the status page and the registers show of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Engine time since the last adapter reset.
    pub ticks: u64,
    /// Offset in the ring of the next command.
    pub head: u32,
    /// As it is from the step's end on.
    pub state: EngineState,
    /// Fence id of the packet that runs, 0 if none.
    pub current_fence: u64,
    /// Fence id that was last completed.
    pub completed_fence: u64,
    /// GPU-physical address of the descriptor of the context that is held, 0 if none.
    pub context: u64,
}

impl Shown {
    /// Whether only the ticks differ.
    pub(crate) const fn is_but_for_time(&self, other: &Self) -> bool {
        self.head == other.head
            && self.state as u32 == other.state as u32
            && self.current_fence == other.current_fence
            && self.completed_fence == other.completed_fence
            && self.context == other.context
    }
}

/// All that an engine has begun and not ended, and the context that it holds. Whatever else a core
/// has is its time, its last fence, and what it may forget: translations and decoded programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// As the status page will show it.
    pub(crate) state: EngineState,
    /// The ring that the engine fetches from; `None` while it is disabled.
    ring: Option<Ring>,
    /// Offset of the command that runs or comes next.
    head: u32,
    /// What the doorbell was last given.
    tail: u32,
    /// The EXEC or RUN that runs, if the command is not the ring's.
    pub(crate) packet: Option<Packet>,
    /// The command that was fetched last, in the packet or in the ring, until it ends.
    pub(crate) command: Option<Begun>,
    /// Ticks that what was done has taken, beyond the end of the step.
    pub(crate) owed: u64,
    /// Of these, the first that no packet is charged for.
    pub(crate) overhead: u64,
    /// What the step has come to, told when no tick of it is owed any more.
    reached: Option<Result<Option<Outcome>, Fault>>,
    /// The fence id of a request to stop, until its record.
    pub(crate) preempt: Option<u64>,
    /// The last command of a buffer that was begun is one that draws.
    pub(crate) draws: bool,
    /// The context whose packet began last, unless it was left since.
    pub(crate) held: Option<Box<Held>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            state: EngineState::Disabled,
            ring: None,
            head: 0,
            tail: 0,
            packet: None,
            command: None,
            owed: 0,
            overhead: 0,
            reached: None,
            preempt: None,
            draws: false,
            held: None,
        }
    }
}

/// A command that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The command, decoded.
    pub(crate) command: Command,
    /// Its bytes: the next command is behind them.
    pub(crate) bytes: u32,
    /// Ticks that fetching it took.
    pub(crate) ticks: u64,
    /// What of its work is done.
    pub(crate) work: Work,
}

impl Begun {
    /// Whether GRAPHICS says where it can be stopped.
    pub(crate) const fn draws(&self) -> bool {
        matches!(self.command, Command::Draw(_))
    }

    /// Address and bytes of the program that it runs.
    pub(crate) const fn program(&self) -> Option<(u64, u32)> {
        match &self.command {
            Command::Dispatch(d) => Some((d.program, d.program_bytes)),
            Command::Draw(d) => Some((d.program, d.program_bytes)),
            _ => None,
        }
    }
}

/// How far a command has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Work {
    /// No effect of it is visible yet.
    #[default]
    Fetched,
    /// FILL, COPY or COPY_2D.
    Transfer(Moved),
    /// DISPATCH, with its groups' threads.
    Dispatch(Box<Machine>),
    /// DRAW, with the pixels that are at work.
    Draw(Box<Drawing>),
    /// WAIT, whose first look was counted.
    Wait,
    /// INVALIDATE, which has asked the other engines.
    Invalidate,
    /// INVALIDATE, of which nothing is left to do.
    Invalidated,
}

/// Where control goes after some of a command's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The command has ended.
    End,
    /// The step's budget is used up.
    Pause,
    /// As `End`, and a value was signalled.
    Signal,
    /// The value that WAIT waits for is not there.
    Wait,
    /// Other engines have still to drop translations.
    Invalidate(Option<Asid>),
    /// As `End`; the fence's value is to be seen.
    Fence {
        /// Whether an interrupt is raised when the value can be seen.
        interrupt: bool,
    },
    /// The packet has begun.
    Packet,
}

/// The core of an engine.
#[derive(Debug)]
pub struct Core {
    /// The engine's number, by which it has its ring, its vector and its block of the status page.
    index: EngineIndex,
    /// Without compute, what has a program is a bad opcode.
    pub(crate) kind: EngineKind,
    /// Where it stops when it is asked to.
    pub(crate) preemption: Preemption,
    /// Translates what commands and programs access, with the engine's TLB.
    pub(crate) mmu: Mmu,
    /// The same for save areas, so that these displace nothing in the other.
    pub(crate) areas: Mmu,
    /// Forgotten by packets and FLUSH_CACHE.
    pub(crate) programs: ProgramCache,
    /// Engine time since the last adapter reset.
    ticks: u64,
    /// Fence id that was completed last; 0 until the first one.
    pub(crate) completed_fence: u64,
    /// Taken out and put back between steps by tests.
    pub(crate) progress: Progress,
    /// The context of the packet that began last, once it was read: for who watches.
    pub(crate) context: Option<Descriptor>,
    /// Words of the command that is being fetched.
    words: Vec<u32>,
    /// The pattern that FILL wrote last, many times.
    pub(crate) tile: Box<Tile>,
    /// A dispatch's memory, for the next one.
    pub(crate) machine: Option<Box<Machine>>,
    /// Bytes that transfers may still move in this step, programs be read, and shared memory be
    /// cleared: who wants an engine to stop, or takes memory away, waits for its end.
    pub(crate) chunk: u64,
}

impl Core {
    /// Engine `index`, disabled.
    pub fn new(index: EngineIndex, kind: EngineKind, preemption: Preemption) -> Self {
        Self {
            index,
            kind,
            preemption,
            mmu: Mmu::default(),
            areas: Mmu::default(),
            programs: ProgramCache::default(),
            ticks: 0,
            completed_fence: 0,
            progress: Progress::default(),
            context: None,
            words: vec![0; LONGEST],
            tile: Box::default(),
            machine: None,
            chunk: 0,
        }
    }

    /// What the engine shows of itself.
    pub fn shown(&self) -> Shown {
        let packet = self.progress.packet.as_ref();
        Shown {
            ticks: self.ticks,
            head: self.progress.head,
            state: self.progress.state,
            current_fence: packet
                .filter(|p| p.begun)
                .and_then(|p| p.fence)
                .unwrap_or(0),
            completed_fence: self.completed_fence,
            context: self.progress.held.as_ref().map_or(0, |held| held.context),
        }
    }

    /// Takes away all that was begun. The engine is disabled then.
    pub fn take_progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    /// Goes on where an engine of the same kind was when its progress was taken.
    pub fn set_progress(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Starts an engine that is disabled at the start of `ring`.
    pub fn enable(&mut self, memory: &Memory<'_>, ring: Ring) -> Outcome {
        if !ring_is_valid(memory, ring) {
            return self.fault(memory, Fault::plain(Reason::BadRing));
        }
        self.progress = Progress {
            state: EngineState::Idle,
            ring: Some(ring),
            ..Progress::default()
        };
        Outcome::Busy
    }

    /// A new tail, checked when the engine next fetches a command.
    pub fn ring_doorbell(&mut self, tail: u32) {
        self.progress.tail = tail;
    }

    /// Asks the engine to stop where it can; [`Outcome::Preempted`] tells when it has. Ignored
    /// while it is disabled or faulted. The caller asks once at a time.
    pub fn preempt(&mut self, fence: u64) {
        if self.progress.ring.is_some() {
            self.progress.preempt = Some(fence);
        }
    }

    /// The level at which the packet that runs is to stop.
    pub(crate) fn stops_at(&self) -> Option<Level> {
        let packet = self.progress.packet.filter(Packet::can_be_saved);
        packet.and(self.progress.preempt)?;
        Some(self.level())
    }

    /// The level that counts now.
    pub(crate) const fn level(&self) -> Level {
        if self.progress.draws {
            self.preemption.graphics
        } else {
            self.preemption.compute
        }
    }

    /// Drops the translations of one address space, or of all (`None`).
    pub fn invalidate(&mut self, asid: Option<Asid>) {
        self.mmu.flush(asid);
        self.areas.flush(asid);
    }

    /// All other engines have dropped what [`Outcome::Invalidate`] asked for.
    pub fn invalidated(&mut self) {
        if let Some(begun) = &mut self.progress.command {
            if begun.work == Work::Invalidate {
                begun.work = Work::Invalidated;
            }
        }
    }

    /// An engine reset: what was begun is forgotten, but the time that a packet has used is its
    /// context's.
    pub fn reset(&mut self, memory: &Memory<'_>) {
        self.charge(memory);
        self.forget();
    }

    /// The engine's part of an adapter reset.
    pub fn reset_adapter(&mut self) {
        self.forget();
        (self.ticks, self.completed_fence) = (0, 0);
    }

    fn forget(&mut self) {
        self.invalidate(None);
        self.programs.clear();
        self.machine = None;
        self.progress = Progress::default();
    }

    /// Works for up to `budget` ticks, at least 1: less if something must be seen outside, or if it
    /// took many accesses.
    pub fn step(&mut self, memory: &Memory<'_>, budget: u64) -> Outcome {
        let limit = self.ticks.wrapping_add(budget);
        self.chunk = TRANSFER_CHUNK;
        self.spend(memory, 0, limit);
        while self.progress.owed == 0 {
            let reached = match (self.progress.reached.take(), self.boundary()) {
                (Some(reached), _) => reached,
                (None, Some(cause)) => self.stop(memory, cause),
                (None, None) if self.left(limit) == 0 => break,
                // Where it can be stopped anywhere it is as soon as it has begun.
                (None, None) if self.is_to_stop_within() => {
                    self.advance(memory, self.ticks.wrapping_add(1))
                }
                (None, None) => self.advance(memory, limit),
            };
            self.spend(memory, 0, limit);
            if self.progress.owed != 0 {
                self.progress.reached = Some(reached);
                break;
            }
            match reached {
                Ok(Some(outcome)) => {
                    if matches!(outcome, Outcome::Preempted { .. }) {
                        self.withdraw();
                    }
                    return outcome;
                }
                Ok(None) => {}
                Err(fault) => return self.fault(memory, fault),
            }
        }
        Outcome::Busy
    }

    /// Goes on with what is next, until it ends or the engine's time is `limit`, which it is not
    /// yet. `None` if nothing came of it that must be seen outside.
    fn advance(&mut self, memory: &Memory<'_>, limit: u64) -> Result<Option<Outcome>, Fault> {
        let state = self.progress.state;
        let Some(begun) = &mut self.progress.command else {
            return match self.progress.packet {
                Some(_) => self.run_packet(memory),
                None => self.run_ring(memory),
            };
        };
        let (bytes, mut work) = (begun.bytes, std::mem::take(&mut begun.work));
        let flow = self.execute(memory, &mut work, limit)?;
        match (flow, &mut self.progress.command) {
            (Flow::Pause | Flow::Wait | Flow::Invalidate(_), Some(begun)) => begun.work = work,
            (Flow::Packet, command) => *command = None,
            (_, command) => {
                *command = None;
                self.consume(bytes);
            }
        }
        Ok(match flow {
            Flow::Wait => Some(Outcome::Waiting),
            Flow::Invalidate(asid) => Some(Outcome::Invalidate(asid)),
            Flow::Signal => Some(Outcome::Signalled),
            Flow::Fence { interrupt } => Some(Outcome::Completed { interrupt }),
            // In a packet a command's end shows nowhere.
            Flow::End if self.progress.packet.is_some() && self.progress.state == state => None,
            Flow::End | Flow::Pause | Flow::Packet => Some(Outcome::Busy),
        })
    }

    /// Whether the ring is empty.
    pub(crate) const fn is_done(&self) -> bool {
        self.progress.head == self.progress.tail
    }

    /// Whether the ring can have the tail.
    pub(crate) fn has_good_tail(&self) -> bool {
        let tail = self.progress.tail;
        tail % 8 == 0 && self.progress.ring.is_some_and(|ring| tail < ring.size)
    }

    /// Takes back what is left in the ring: the engine was preempted.
    fn withdraw(&mut self) {
        // Where the doorbell was given what cannot be, the next look finds it.
        if self.has_good_tail() {
            self.progress.head = self.progress.tail;
        }
        (self.progress.preempt, self.progress.state) = (None, EngineState::Idle);
        self.progress.draws = false;
    }

    /// Fetches the command at the head.
    fn run_ring(&mut self, memory: &Memory<'_>) -> Result<Option<Outcome>, Fault> {
        let Progress {
            ring, head, tail, ..
        } = self.progress;
        let Some(ring) = ring else {
            return Ok(Some(Outcome::Idle));
        };
        if tail == head {
            self.progress.state = EngineState::Idle;
            return Ok(Some(Outcome::Idle));
        }
        if !self.has_good_tail() {
            return Err(Fault::plain(Reason::BadRing));
        }
        if self.progress.state != EngineState::Running {
            self.progress.state = EngineState::Running;
            return Ok(Some(Outcome::Busy));
        }
        let end = if tail > head { tail } else { ring.size };
        let address = ring.base + u64::from(head);
        self.fetch(memory, Space::System, address, (end - head) / 4)?;
        memory.tally().add(Counter::RingCommand, 1);
        Ok(None)
    }

    /// Fetches the command at `address`, of which `available` words stand there.
    pub(crate) fn fetch(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        available: u32,
    ) -> Result<(), Fault> {
        self.read_words(memory, space, address, 0..2.min(available as usize))?;
        let header = Header::of(self.words[0]);
        let opcode = Opcode::from_u8(header.opcode());
        let lacks = |opcode: Opcode| {
            opcode.has_program() && self.kind != EngineKind::Compute
                || opcode.is_buffer_only() && space == Space::System
        };
        if opcode.is_some_and(lacks) {
            return Err(Fault::plain(Reason::BadOpcode));
        }
        // The header is there in any case: what is wrong with it comes before its length.
        let length = usize::from(header.words()).max(2).min(available as usize);
        // What stands behind the header of a NOP may be anything, absent memory too.
        if opcode.is_some_and(|o| o != Opcode::Nop) && length <= MAX_WORDS && length > 2 {
            self.read_words(memory, space, address, 2..length)?;
        }
        let (command, words) = Command::decode(&self.words[..length]).map_err(Fault::plain)?;
        tracing::trace!(target: "skua_gpu::command", engine = self.index.get(),
            asid = space.asid().get(), address, ?command);
        memory.tally().spend(ticks::COMMAND);
        self.progress.command = Some(Begun {
            command,
            // CAST: at most LONGEST words.
            bytes: words as u32 * 4,
            ticks: memory.tally().time(),
            work: Work::Fetched,
        });
        Ok(())
    }

    /// Reads words of a command into the same place of `words`.
    fn read_words(
        &mut self,
        memory: &Memory<'_>,
        space: Space,
        address: u64,
        range: Range<usize>,
    ) -> Result<(), Fault> {
        let mut bytes = [0; MAX_WORDS * 4];
        let bytes = &mut bytes[..range.len() * 4];
        let from = address.wrapping_add(range.start as u64 * 4);
        self.mmu.read(memory, space, from, bytes, Access::Fetch)?;
        for (word, bytes) in self.words[range].iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    /// Goes on with the command until the engine's time is `limit`.
    fn execute(&mut self, memory: &Memory<'_>, work: &mut Work, limit: u64) -> Result<Flow, Fault> {
        let packet = self.progress.packet.as_ref();
        let space = packet.map_or(Space::System, Packet::space);
        let Some(begun) = &self.progress.command else {
            return Ok(Flow::End);
        };
        if packet.is_some() && begun.command.opcode().is_ring_only() {
            return Err(Fault::plain(Reason::Privileged));
        }
        match begun.command {
            Command::Nop { .. } => Ok(Flow::End),
            Command::Fill {
                pattern,
                address,
                bytes,
            } => self.fill(memory, space, pattern, address, bytes, work, limit),
            Command::Copy {
                source,
                destination,
                bytes,
            } => {
                let rows = Rows {
                    source,
                    destination,
                    bytes,
                    source_pitch: 0,
                    destination_pitch: 0,
                    rows: 1,
                };
                self.copy(memory, space, rows, work, limit)
            }
            Command::Copy2d {
                source,
                destination,
                bytes,
                source_pitch,
                destination_pitch,
                rows,
            } => {
                let rows = Rows {
                    source,
                    destination,
                    bytes: u64::from(bytes),
                    source_pitch: u64::from(source_pitch),
                    destination_pitch: u64::from(destination_pitch),
                    rows,
                };
                self.copy(memory, space, rows, work, limit)
            }
            Command::Dispatch(dispatch) => self.dispatch(memory, space, &dispatch, work, limit),
            Command::Draw(draw) => self.draw(memory, space, &draw, work, limit),
            Command::Wait { address, value } => self.wait(memory, space, address, value, work),
            Command::Signal { address, value } => self.signal(memory, space, address, value),
            Command::SetRegister { index, value } => Ok(self.set_register(index, value)),
            Command::StoreRegister { index, address } => {
                self.store_register(memory, space, index, address)
            }
            Command::FlushCache => {
                self.programs.clear();
                fence(Ordering::SeqCst);
                Ok(Flow::End)
            }
            Command::FlushTlb { asid } => {
                self.invalidate(asid);
                Ok(Flow::End)
            }
            Command::Invalidate { .. } if *work == Work::Invalidated => Ok(Flow::End),
            Command::Invalidate { asid } => {
                // Each time: this core may have gone on where another one was.
                self.invalidate(asid);
                if std::mem::replace(work, Work::Invalidate) != Work::Invalidate {
                    memory.tally().add(Counter::Invalidate, 1);
                }
                Ok(Flow::Invalidate(asid))
            }
            // The time that leaving takes passes before the fence is seen.
            Command::Switch { .. } if self.progress.held.is_some() => {
                memory.tally().add(Counter::NullSwitch, 1);
                self.leave(memory)?;
                Ok(Flow::Pause)
            }
            Command::Switch { fence: None, .. } => Ok(Flow::End),
            Command::Fence { fence, interrupt }
            | Command::Switch {
                fence: Some(fence),
                interrupt,
            } => {
                self.completed_fence = fence;
                Ok(Flow::Fence { interrupt })
            }
            Command::Exec {
                context,
                base,
                start,
                end,
                fence,
                interrupt,
                resume,
            } => {
                let packet = Packet {
                    base,
                    start,
                    end,
                    fence,
                    interrupt,
                    resume,
                    ..Packet::new(context, begun)
                };
                Ok(self.begin_packet(packet))
            }
            Command::Run {
                context,
                number,
                fence,
                interrupt,
                resume,
            } => {
                let packet = Packet {
                    number: Some(number),
                    fence,
                    interrupt,
                    resume,
                    ..Packet::new(context, begun)
                };
                Ok(self.begin_packet(packet))
            }
        }
    }

    /// A packet is under way, whose context is read next.
    fn begin_packet(&mut self, packet: Packet) -> Flow {
        self.context = None;
        self.progress.packet = Some(packet);
        Flow::Packet
    }

    /// A command of `bytes` bytes has ended.
    pub(crate) fn consume(&mut self, bytes: u32) {
        if let Some(packet) = &mut self.progress.packet {
            packet.at += bytes;
        } else if let Some(ring) = self.progress.ring {
            // No command reaches over the end.
            self.progress.head = (self.progress.head + bytes) % ring.size;
        }
    }

    /// What was done has taken `ticks`, and the accesses for it what `memory` tells: they pass, but
    /// not beyond the time `limit`. What is owed then passes in the next steps, before anything
    /// else.
    pub(crate) fn spend(&mut self, memory: &Memory<'_>, ticks: u64, limit: u64) {
        let owed = self.progress.owed + ticks + memory.tally().take_time();
        let passed = owed.min(self.left(limit));
        self.progress.owed = owed - passed;
        self.tick(passed);
    }

    /// Adds to the engine's time and to the packet's.
    fn tick(&mut self, ticks: u64) {
        self.ticks = self.ticks.wrapping_add(ticks);
        let overhead = self.progress.overhead.min(ticks);
        self.progress.overhead -= overhead;
        if let Some(packet) = &mut self.progress.packet {
            packet.ticks = packet.ticks.wrapping_add(ticks - overhead);
        }
    }

    /// Whether what was done has still to take some time: nobody is to hear of it yet.
    pub(crate) const fn owes(&self) -> bool {
        self.progress.owed != 0
    }

    /// Ticks to the time `limit`, which was not passed.
    pub(crate) const fn left(&self, limit: u64) -> u64 {
        limit.wrapping_sub(self.ticks)
    }

    pub(crate) fn set_state(&mut self, state: EngineState) {
        self.progress.state = state;
    }

    /// Stops with a fault.
    fn fault(&mut self, memory: &Memory<'_>, fault: Fault) -> Outcome {
        let packet = self.progress.packet.as_ref();
        let held = self.progress.held.take();
        let (descriptor, command, fence) = match held.filter(|_| fault.leaving) {
            Some(left) => (Some(left.descriptor), None, None),
            None => (
                packet.and_then(|p| p.descriptor),
                packet.and_then(Packet::command),
                packet.and_then(|p| p.fence),
            ),
        };
        let record = Record {
            engine: self.index,
            reason: fault.reason,
            asid: descriptor.map_or(Asid::SYSTEM, |d| d.asid),
            context_id: descriptor.map_or(0, |d| d.context_id),
            access: fault.access,
            detail: fault.detail,
            space: match fault.access {
                Access::None => fault::Space::None,
                _ if command.is_some() || fault.in_save_area => fault::Space::Virtual,
                _ => fault::Space::GpuPhysical,
            },
            address: fault.address,
            fence: fence.unwrap_or(0),
            command: match fault.in_save_area {
                true => Record::NO_COMMAND,
                false => command.unwrap_or(u64::from(self.progress.head)),
            },
            pc: fault.pc,
        };
        tracing::debug!(?record, "fault");
        self.charge(memory);
        memory.tally().add(Counter::Fault, 1);
        memory.tally().add(Counter::of_fault(fault.reason), 1);
        self.progress.state = EngineState::Faulted;
        (self.progress.packet, self.progress.command) = (None, None);
        // Nothing is fetched any more, and nothing preempted.
        (self.progress.ring, self.progress.preempt) = (None, None);
        Outcome::Faulted(record)
    }
}

/// Whether the bytes lie in one of the windows.
fn is_mapped(memory: &Memory<'_>, base: u64, bytes: u64) -> bool {
    let inside = |start: u64, end: u64| {
        base >= start && base.checked_add(bytes).is_some_and(|behind| behind <= end)
    };
    let vram = memory.vram().window();
    let gart_end = gart::BASE + u64::from(gart::MAX_PAGES) * PAGE_SIZE;
    inside(vram.start, vram.end) || inside(gart::BASE, gart_end)
}

fn ring_is_valid(memory: &Memory<'_>, ring: Ring) -> bool {
    ring.size.is_power_of_two()
        && (RING_MIN..=RING_MAX).contains(&ring.size)
        && GpuPhys(ring.base).is_aligned(PAGE_SIZE)
        && is_mapped(memory, ring.base, ring.size.into())
}
