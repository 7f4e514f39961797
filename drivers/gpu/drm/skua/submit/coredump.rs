// SPDX-License-Identifier: GPL-2.0

//! Core dumps: what a device that failed looked like, for who wants to know why.
//!
//! It is a text of lines, each with a name, a colon and words; a line that begins with a space is
//! about the one before. `skua-coredump` shows it to a person, with the commands by their names.
//!
//! | line | what it says |
//! |---|---|
//! | `skua-coredump:` | the format's number |
//! | `device:` | what it is |
//! | `failure:` | what happened, from the device's record or by the watchdog |
//! | `guilty:` | whose work it was |
//! | `engine N` | [`report::rings`], before the engine was reset |
//! | `context N:`, `queue N:` | [`report::contexts`], at the same time |
//! | `tables:` | pages that the guilty one's address space leads to, when the dump is published |
//!
//! It is written where fences signal, into memory that was set aside, and
//! [published](crate::herald) elsewhere. The kernel keeps the first one until it is read and
//! cleared, or for some minutes.

use crate::{
    ext::{
        coredump,
        device, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    memory::vm::Vm,
    policy::node::Cause,
    spec::{
        mmu::{
            Entry,
            Target, //
        },
        number::EngineIndex, //
    },
    submit::{
        context::Context,
        report, //
    }, //
};
use core::fmt::{
    self,
    Write, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Bytes of what is written where nothing can be allocated.
const BYTES: usize = 128 << 10;
/// Bytes of what is added later.
const TABLE_BYTES: usize = 64 << 10;
/// Page tables that are read for that, under a lock that moves of the guilty one's memory wait for.
const TABLES: u32 = 64;

/// Why a dump is written.
pub(crate) enum Failure<'a> {
    /// This engine is recovered, for this cause.
    Work(EngineIndex, &'a Cause),
    /// The device is to be reset, whoever did it.
    Adapter,
    /// The device is given up.
    Lost,
}

/// A dump, or memory for one. What does not fit is left out.
pub(crate) struct Coredump {
    /// As large as memory was found for, written from its start; never grows.
    text: VVec<u8>,
    /// Of the guilty one, buried when the dump is published.
    vm: Option<Arc<Vm>>,
}

impl Write for Coredump {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.text.capacity().saturating_sub(self.text.len());
        let fits = text.as_bytes().get(..room).unwrap_or(text.as_bytes());
        // Nothing is allocated: there is room.
        let written = self.text.extend_from_slice(fits, GFP_NOWAIT);
        match written.is_ok() && fits.len() == text.len() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

impl Coredump {
    /// Memory for one. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            text: VVec::with_capacity(BYTES, GFP_KERNEL)?,
            vm: None,
        })
    }

    /// Writes down what can be seen of `dev` at the time of `failure`. Allocates nothing; takes
    /// engines' locks.
    pub(crate) fn write(&mut self, dev: &SkuaDevice, failure: &Failure<'_>) -> fmt::Result {
        let caps = &dev.hw.caps;
        writeln!(self, "skua-coredump: 1")?;
        writeln!(
            self,
            "device: version {}.{} vram {} visible {} engines {}",
            caps.version.major(),
            caps.version.minor(),
            caps.vram_size,
            caps.vram_visible,
            caps.engines.len()
        )?;
        if let Some(guilty) = self.write_failure(dev, failure)? {
            let context = guilty.id();
            write!(self, "guilty: context {context}")?;
            if let Some((vm, process)) = guilty.vm().zip(guilty.process()) {
                write!(self, " vm {} pid {} task ", vm.asid(), process.pid())?;
                // It is the client's to choose.
                for letter in process.name().escape_default() {
                    self.write_char(letter)?;
                }
                self.vm = Some(vm.clone());
            }
            writeln!(self)?;
            dev.reapers.contexts.bury(guilty);
        }
        report::rings(dev, self)?;
        report::contexts(dev, self)
    }

    /// Writes what happened; whose work it was.
    fn write_failure(
        &mut self,
        dev: &SkuaDevice,
        failure: &Failure<'_>,
    ) -> core::result::Result<Option<Arc<Context>>, fmt::Error> {
        let (index, cause) = match failure {
            Failure::Work(index, cause) => (index, cause),
            Failure::Adapter => return writeln!(self, "failure: adapter").map(|()| None),
            Failure::Lost => return writeln!(self, "failure: lost").map(|()| None),
        };
        match cause {
            Cause::Fault(record) => writeln!(
                self,
                "failure: fault engine {index} context {} fence {} reason {:?} access {:?} \
                 space {:?} address {:#x} command {:#x} pc {:#x} detail {:#x}",
                record.context_id,
                record.fence,
                record.reason,
                record.access,
                record.space,
                record.address,
                record.command,
                record.pc,
                record.detail
            )?,
            Cause::Endless(fence) => {
                writeln!(self, "failure: endless engine {index} fence {fence}")?;
            }
            Cause::Unanswered(request) => {
                writeln!(self, "failure: unanswered engine {index} request {request}")?;
            }
        }
        let Ok(engine) = dev.engine(*index) else {
            return Ok(None);
        };
        let state = engine.state.lock();
        let mut packets = state.node.iter();
        let guilty = packets.find(|(id, packet)| match cause {
            Cause::Fault(record) => packet.submission.context().id() == record.context_id,
            Cause::Endless(fence) => id == fence,
            Cause::Unanswered(_) => false,
        });
        Ok(guilty.map(|(_, packet)| packet.submission.context().clone()))
    }

    /// Adds what the guilty one's address space leads to, and gives the dump to userspace. Process
    /// context; allocates.
    pub(crate) fn publish(mut self, dev: &SkuaDevice) {
        if let Some(vm) = self.vm.take() {
            // Without memory, what there is has to do.
            if self.text.reserve(TABLE_BYTES, GFP_KERNEL).is_ok() {
                let _ = self.write_tables(dev, &vm);
            }
            dev.reapers.vms.bury(vm);
        }
        coredump::publish(dev, self.text);
    }

    fn write_tables(&mut self, dev: &SkuaDevice, vm: &Vm) -> fmt::Result {
        let Some(bound) = device::enter(dev) else {
            return Ok(());
        };
        writeln!(self, "tables: vm {}", vm.asid())?;
        let mut run = None;
        let mut result = Ok(());
        let seen = vm.each_page(gpu::parent(&bound), TABLES, &mut |va, bytes, entry| {
            let page = Run::new(va, bytes, entry);
            run = match run.take() {
                Some(run) => match page.continues(&run) {
                    true => Some(Run {
                        bytes: run.bytes.saturating_add(bytes),
                        ..run
                    }),
                    false => {
                        result = result.and(self.write_run(&run));
                        Some(page)
                    }
                },
                None => Some(page),
            };
        });
        let last = run.map_or(Ok(()), |run| self.write_run(&run));
        seen.map_err(|_| fmt::Error)?;
        result.and(last)
    }

    fn write_run(&mut self, run: &Run) -> fmt::Result {
        let (name, at) = match run.target {
            Target::Vram(at) => ("vram", at.0),
            Target::System(at) => ("system", at.0),
        };
        writeln!(
            self,
            " {:#x}: bytes {:#x} {name} {at:#x} writable {} snooped {}",
            run.va, run.bytes, run.writable, run.snooped
        )
    }
}

/// Pages that lie one behind the other, on both sides.
struct Run {
    /// GPU address of the first page.
    va: u64,
    /// Of all of its pages together.
    bytes: u64,
    /// Where the first page leads to.
    target: Target,
    /// What the entries of all of its pages say: the GPU may write to them.
    writable: bool,
    /// Likewise: accesses snoop the CPU's caches.
    snooped: bool,
}

impl Run {
    fn new(va: u64, bytes: u64, entry: Entry) -> Self {
        Self {
            va,
            bytes,
            target: entry.target(),
            writable: entry.is_writable(),
            snooped: entry.is_snooped(),
        }
    }

    /// Whether it is what `before` goes on with.
    fn continues(&self, before: &Self) -> bool {
        let follows = match (before.target, self.target) {
            (Target::Vram(a), Target::Vram(b)) => a.0.wrapping_add(before.bytes) == b.0,
            (Target::System(a), Target::System(b)) => a.0.wrapping_add(before.bytes) == b.0,
            _ => false,
        };
        follows
            && before.va.wrapping_add(before.bytes) == self.va
            && (before.writable, before.snooped) == (self.writable, self.snooped)
    }
}
