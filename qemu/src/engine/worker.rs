// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The thread of an engine.
//!
//! ```text
//!            enable            doorbell           WAIT not yet true
//! Disabled ---------> Idle ------------> Running <-----------------> Waiting
//!     ^                ^  <------------     |                          |
//!     |                     head == tail    | fault                    |
//!     +---- reset (from every state) ----- Faulted <-------------------+
//! ```
//!
//! A command is a chain of bounded chunks. Between two chunks the engine holds no
//! [`crate::bus::BusGuard`] and calls `Worker::attend`, which drops translations that were
//! invalidated and says [`Halt::Stop`] if a reset waits.

use std::ops::Range;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use skua_spec::address::{GpuPhys, PAGE_SIZE};
use skua_spec::command::{Command, EngineKind, Opcode, MAX_WORDS};
use skua_spec::fault::{self, Access, Reason, Record};
use skua_spec::number::Asid;
use skua_spec::regs::engine::{RING_MAX, RING_MIN};
use skua_spec::status::{self, Counter, EngineState};

use crate::command::transfer::Rows;
use crate::counters::Tally;
use crate::device::Hub;
use crate::engine::{Engine, Mail, Ring};
use crate::fault::{Fault, Halt};
use crate::gart;
use crate::memory::Memory;
use crate::mmu::{Mmu, Space};
use crate::program::cache::ProgramCache;
use crate::program::machine::Machine;
use crate::status::Page;

/// Ticks after which a running engine writes its time to the status page. A chunk of work is far
/// shorter than the difference to the 65,536 that the manual promises.
const PUBLISH_TICKS: u64 = 32768;

/// Most words of a command: what the length field can say.
const LONGEST: usize = 0xffff;

/// Who a command works for: what a fault record says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Current {
    pub(crate) asid: Asid,
    pub(crate) context_id: u32,
    pub(crate) fence: u64,
    pub(crate) command: u64,
    /// Whether the command stands in a buffer, so that its addresses are virtual.
    pub(crate) in_buffer: bool,
}

/// An engine's thread.
pub(crate) struct Worker {
    pub(crate) hub: Arc<Hub>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) mmu: Mmu,
    pub(crate) programs: ProgramCache,
    pub(crate) machine: Machine,
    pub(crate) tally: Tally,
    pub(crate) current: Current,
    pub(crate) ticks: u64,
    pub(crate) completed_fence: u64,
    ring: Option<Ring>,
    head: u32,
    next_head: u32,
    published_ticks: u64,
    state: EngineState,
    invalidate_ack: u32,
    reset_ack: u32,
    words: Vec<u32>,
}

impl Worker {
    pub(crate) fn new(hub: Arc<Hub>, engine: Arc<Engine>) -> Self {
        Self {
            hub,
            engine,
            mmu: Mmu::default(),
            programs: ProgramCache::default(),
            machine: Machine::default(),
            tally: Tally::default(),
            current: Current::default(),
            ticks: 0,
            completed_fence: 0,
            ring: None,
            head: 0,
            next_head: 0,
            published_ticks: 0,
            state: EngineState::Disabled,
            invalidate_ack: 0,
            reset_ack: 0,
            words: vec![0; LONGEST],
        }
    }

    /// The thread: until the device ends.
    pub(crate) fn run(mut self) {
        loop {
            let (state, head) = (self.state, self.head);
            self.engine.sleep_until(|tail| match state {
                // The mailbox came between the last command and the look at the tail.
                EngineState::Running => true,
                EngineState::Idle => tail != head,
                _ => false,
            });
            if self.engine.has_attention() && !self.read_mailbox() {
                return;
            }
            while matches!(self.state, EngineState::Idle | EngineState::Running)
                && !self.engine.has_attention()
            {
                if self.engine.tail() == self.head {
                    self.rest();
                    break;
                }
                if let Err(Halt::Fault(fault)) = self.ring_command() {
                    self.fault(fault);
                }
                self.tally.flush(&self.hub.counters);
            }
            self.tally.flush(&self.hub.counters);
        }
    }

    /// Does what the mailbox says, between commands. `false` ends the thread.
    fn read_mailbox(&mut self) -> bool {
        let mail = self.engine.take();
        if mail.shutdown {
            return false;
        }
        if mail.stops() {
            self.mmu.tlb.flush(None);
            self.programs.clear();
            self.current = Current::default();
            self.ring = None;
            self.head = 0;
            self.state = EngineState::Disabled;
            self.reset_ack = self.reset_ack.wrapping_add(mail.resets);
        }
        if mail.adapter_reset {
            (self.ticks, self.published_ticks) = (0, 0);
            self.completed_fence = 0;
            self.invalidate_ack = 0;
            self.show();
            // The last engine to get here ends the reset.
            self.hub.engine_was_reset();
        } else {
            if !mail.invalidations.is_empty() {
                self.drop_translations(&mail);
            }
            if mail.stops() || mail.publish {
                self.publish_block();
            }
        }
        if let Some(ring) = mail.enable {
            self.current = Current::default();
            if self.ring_is_valid(ring) {
                self.ring = Some(ring);
                self.set_state(EngineState::Idle);
            } else {
                self.fault(Fault::plain(Reason::BadRing));
            }
        }
        true
    }

    /// Between two chunks of work: drops what was invalidated, writes the time.
    ///
    /// # Errors
    ///
    /// [`Halt::Stop`] if a reset waits.
    pub(crate) fn attend(&mut self) -> Result<(), Halt> {
        if self.ticks - self.published_ticks >= PUBLISH_TICKS {
            self.publish_ticks();
        }
        if !self.engine.has_attention() {
            return Ok(());
        }
        let mail = self.engine.take_at_work().ok_or(Halt::Stop)?;
        if !mail.invalidations.is_empty() {
            self.drop_translations(&mail);
        }
        if mail.publish {
            self.publish_block();
        }
        Ok(())
    }

    fn drop_translations(&mut self, mail: &Mail) {
        for asid in &mail.invalidations {
            self.mmu.tlb.flush(*asid);
        }
        self.invalidate_ack = mail.invalidate_count;
        let ack = self.invalidate_ack;
        self.write_status(|page, block| {
            page.write_u32(block + status::engine::INVALIDATE_ACK, ack);
        });
    }

    /// Counts work done.
    pub(crate) fn tick(&mut self, ticks: u64) {
        self.ticks = self.ticks.wrapping_add(ticks);
    }

    fn ring_is_valid(&self, ring: Ring) -> bool {
        let size = u64::from(ring.size);
        let inside = |start: u64, end: u64| {
            ring.base >= start && ring.base.checked_add(size).is_some_and(|e| e <= end)
        };
        let vram = self.hub.vram.window();
        let gart_end = gart::BASE + u64::from(gart::MAX_PAGES) * PAGE_SIZE;
        ring.size.is_power_of_two()
            && (RING_MIN..=RING_MAX).contains(&ring.size)
            && GpuPhys(ring.base).is_aligned(PAGE_SIZE)
            && (inside(vram.start, vram.end) || inside(gart::BASE, gart_end))
    }

    /// Fetches and executes the command at the head.
    fn ring_command(&mut self) -> Result<(), Halt> {
        let Some(ring) = self.ring else {
            return Err(Halt::Stop);
        };
        self.current = Current {
            command: u64::from(self.head),
            ..Current::default()
        };
        let tail = self.engine.tail();
        if tail >= ring.size || tail % 8 != 0 {
            return Err(Fault::plain(Reason::BadRing).into());
        }
        self.set_state(EngineState::Running);
        let end = if tail > self.head { tail } else { ring.size };
        let available = (end - self.head) / 4;
        let address = ring.base + u64::from(self.head);
        let start_ticks = self.ticks;
        let (command, words) = self.fetch(Space::System, address, available)?;
        self.tally.add(Counter::RingCommand, 1);
        self.tick(1);
        tracing::trace!(target: "skua_gpu::command", engine = self.engine.index.get(),
            head = self.head, ?command, "ring");
        // CAST: at most `available`.
        let next = self.head + words as u32 * 4;
        self.next_head = if next == ring.size { 0 } else { next };
        match command {
            Command::Exec { .. } => self.exec(command, start_ticks)?,
            Command::Fence { fence, interrupt } => {
                self.consume();
                self.complete(fence, interrupt);
            }
            Command::FlushTlb { asid } => {
                self.mmu.tlb.flush(asid);
                self.consume();
            }
            other => {
                self.execute(Space::System, &other)?;
                self.consume();
            }
        }
        self.attend()
    }

    /// Fetches the command at `address`, of which `available` words stand there.
    pub(crate) fn fetch(
        &mut self,
        space: Space,
        address: u64,
        available: u32,
    ) -> Result<(Command, usize), Halt> {
        self.read_words(space, address, 0..2.min(available as usize))?;
        let opcode = Opcode::from_u8((self.words[0] >> 24) as u8);
        if opcode == Some(Opcode::Dispatch) && self.engine.kind != EngineKind::Compute {
            return Err(Fault::plain(Reason::BadOpcode).into());
        }
        let length = (self.words[0] & 0xffff) as usize;
        // The header is there in any case: what is wrong with it comes before its length.
        let length = length.max(2).min(available as usize);
        // What stands behind the header of a NOP may be anything, absent memory too.
        if opcode.is_some_and(|o| o != Opcode::Nop) && length <= MAX_WORDS && length > 2 {
            self.read_words(space, address, 2..length)?;
        }
        Command::decode(&self.words[..length]).map_err(|reason| Fault::plain(reason).into())
    }

    /// Reads words of a command into the same place of `words`.
    fn read_words(&mut self, space: Space, address: u64, range: Range<usize>) -> Result<(), Halt> {
        let mut bytes = [0; MAX_WORDS * 4];
        let bytes = &mut bytes[..range.len() * 4];
        let memory = Memory::enter(&self.hub.vram, &self.hub.gart, &self.hub.bus, &self.tally);
        let from = address.wrapping_add(range.start as u64 * 4);
        self.mmu.read(&memory, space, from, bytes, Access::Fetch)?;
        for (word, bytes) in self.words[range].iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    /// Executes a command that may stand anywhere.
    pub(crate) fn execute(&mut self, space: Space, command: &Command) -> Result<(), Halt> {
        match *command {
            Command::Nop { .. } => Ok(()),
            Command::Fill {
                pattern,
                address,
                bytes,
            } => self.fill(space, pattern, address, bytes),
            Command::Copy {
                source,
                destination,
                bytes,
            } => self.copy(space, source, destination, bytes),
            Command::Copy2d {
                source,
                destination,
                bytes,
                source_pitch,
                destination_pitch,
                rows,
            } => self.copy_rows(
                space,
                Rows {
                    source,
                    destination,
                    bytes: u64::from(bytes),
                    source_pitch: u64::from(source_pitch),
                    destination_pitch: u64::from(destination_pitch),
                    rows,
                },
            ),
            Command::Dispatch(ref dispatch) => self.dispatch(space, dispatch),
            Command::Wait { address, value } => self.wait(space, address, value),
            Command::Signal { address, value } => self.signal(space, address, value),
            Command::FlushCache => {
                self.programs.clear();
                fence(Ordering::SeqCst);
                Ok(())
            }
            Command::FlushTlb { .. } | Command::Exec { .. } | Command::Fence { .. } => {
                Err(Fault::plain(Reason::Privileged).into())
            }
        }
    }

    /// The command at the head is done.
    pub(crate) fn consume(&mut self) {
        self.head = self.next_head;
        self.show();
        let head = self.head;
        self.write_status(|page, block| page.write_u32(block + status::engine::HEAD, head));
    }

    /// Writes a fence's value after all that was done, then raises the interrupt.
    pub(crate) fn complete(&mut self, fence: u64, interrupt: bool) {
        self.completed_fence = fence;
        // Who sees the fence sees what it cost.
        self.tally.flush(&self.hub.counters);
        self.write_status(|page, block| {
            page.write_u64(block + status::engine::COMPLETED_FENCE, fence);
        });
        if interrupt {
            self.hub.counters.add(Counter::EngineInterrupt, 1);
            self.hub.interrupts.raise(self.engine.index.get());
        }
    }

    /// Head has met tail.
    fn rest(&mut self) {
        if self.published_ticks != self.ticks {
            self.publish_ticks();
        }
        self.tally.flush(&self.hub.counters);
        self.set_state(EngineState::Idle);
    }

    /// Stops with a fault.
    fn fault(&mut self, fault: Fault) {
        let space = match fault.access {
            Access::None => fault::Space::None,
            _ if self.current.in_buffer => fault::Space::Virtual,
            _ => fault::Space::GpuPhysical,
        };
        let record = Record {
            engine: self.engine.index,
            reason: fault.reason,
            asid: self.current.asid,
            context_id: self.current.context_id,
            access: fault.access,
            detail: fault.detail,
            space,
            address: fault.address,
            fence: self.current.fence,
            command: self.current.command,
            pc: fault.pc,
        };
        tracing::debug!(?record, "fault");
        self.current = Current::default();
        self.tally.add(Counter::Fault, 1);
        self.tally.flush(&self.hub.counters);
        self.state = EngineState::Faulted;
        self.publish_block();
        self.hub.report_fault(record);
    }

    pub(crate) fn set_state(&mut self, state: EngineState) {
        if self.state != state {
            self.state = state;
            self.show();
            self.write_status(|page, block| {
                page.write_u32(block + status::engine::STATE, state as u32);
            });
        }
    }

    /// Shows state and head in the registers.
    fn show(&self) {
        self.engine
            .state
            .store(self.state as u32, Ordering::Release);
        self.engine.head.store(self.head, Ordering::Release);
    }

    pub(crate) fn publish_ticks(&mut self) {
        let ticks = self.ticks;
        self.published_ticks = ticks;
        self.write_status(|page, block| page.write_u64(block + status::engine::TICKS, ticks));
    }

    /// Writes the whole block; the acknowledgements last.
    fn publish_block(&mut self) {
        self.show();
        self.published_ticks = self.ticks;
        let (ticks, head, state) = (self.ticks, self.head, self.state);
        let (completed, current) = (self.completed_fence, self.current.fence);
        let (invalidate_ack, reset_ack) = (self.invalidate_ack, self.reset_ack);
        self.write_status(|page, block| {
            page.write_u64(block + status::engine::TICKS, ticks);
            page.write_u32(block + status::engine::HEAD, head);
            page.write_u64(block + status::engine::CURRENT_FENCE, current);
            page.write_u64(block + status::engine::COMPLETED_FENCE, completed);
            page.write_u32(block + status::engine::STATE, state as u32);
            page.write_u32(block + status::engine::INVALIDATE_ACK, invalidate_ack);
            page.write_u32(block + status::engine::RESET_ACK, reset_ack);
        });
    }

    /// Runs `f` on the status page and the offset of this engine's block. Not inside a chunk.
    pub(crate) fn write_status(&self, f: impl FnOnce(Page<'_>, u64)) {
        let block = u64::from(self.engine.index.get()) * status::ENGINE_SIZE;
        self.hub
            .status
            .with(&self.hub.bus, &self.hub.counters, |page| f(page, block));
    }
}
