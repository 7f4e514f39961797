// SPDX-License-Identifier: MIT

//! Contexts: queues of work for an engine.

use std::sync::{
    atomic::{AtomicU64, Ordering},
    Arc, OnceLock,
};

use skua_spec::fault;
use skua_uapi as uapi;

use crate::{
    client_device::ClientDevice,
    command_buffer::CommandBuffer,
    device::{Engine, File},
    error::{Error, Result},
    monitored_fence::MonitoredFence,
    sync::{array, Deadline, Syncs},
    syncobj::Syncobj,
    vm::Vm,
};

/// A context; its handle is destroyed when dropped. Work that has not started by then is cancelled,
/// work that runs is left to end.
#[derive(Debug)]
pub struct Context {
    /// The device that the context was created on, for its engines and limits.
    device: crate::Device,
    /// Whose it is, if not the file's own, which would take its handle along.
    _client_device: Option<ClientDevice>,
    /// Its handle, and what timelines keep of it.
    record: Arc<Record>,
}

/// What the timelines that a context signals keep of it, to know whether all its work ended well.
#[derive(Debug)]
pub(crate) struct Record {
    /// Keeps `handle` meaningful.
    file: Arc<File>,
    /// Of the context; asks the kernel while it lives.
    handle: u32,
    /// How many submissions it took.
    submitted: AtomicU64,
    /// Whether all of them had ended well when it was destroyed.
    sound: OnceLock<bool>,
}

impl Record {
    fn state(&self) -> Result<ContextState> {
        let mut a = uapi::drm_skua_context_state {
            context: self.handle,
            ..Default::default()
        };
        self.file.call(&mut a)?;
        state(&a)
    }

    /// Whether none of its work that has ended ended badly; false if nobody knows any more.
    pub(crate) fn is_sound(&self) -> bool {
        let active = |state: ContextState| state.status == ContextStatus::Active;
        self.ended().unwrap_or_else(|| {
            let state = self.state();
            // If it was destroyed meanwhile that was the state of nothing, or of another.
            self.ended().unwrap_or_else(|| state.is_ok_and(active))
        })
    }

    /// Whether all of its work had ended well when it was destroyed, if it is.
    pub(crate) fn ended(&self) -> Option<bool> {
        self.sound.get().copied()
    }

    /// Its context is about to be destroyed.
    fn end(&self) {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let sound = self
            .state()
            .is_ok_and(|s| s.status == ContextStatus::Active && s.completed >= submitted);
        // It ends once.
        let _ = self.sound.set(sound);
    }
}

/// Whether a context takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextStatus {
    /// Submissions are accepted.
    Active,
    /// Not any more: its work faulted.
    Faulted(Fault),
    /// Not any more: its work was cut by the watchdog.
    TimedOut,
    /// Not any more: the device was lost.
    Lost,
    /// Not any more: the GPU was reset, because of others' work or of nobody's.
    Reset,
}

/// What is known of a fault; see section 8 of the hardware manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why the engine stopped; a number without a name is one of newer hardware.
    pub reason: Result<fault::Reason, u32>,
    /// What was tried at the address.
    pub access: Result<fault::Access, u32>,
    /// The GPU virtual address accessed; 0 if it was no access.
    pub address: u64,
    /// GPU virtual address of the command.
    pub command: u64,
    /// What the manual lists for the reason, like the number of a TRAP.
    pub detail: u32,
    /// Index of the instruction, if a program was running.
    pub pc: Option<u32>,
}

/// What is known of a context at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextState {
    /// Whether it takes work, and why not.
    pub status: ContextStatus,
    /// Engine time that it used, in ticks.
    pub ticks: u64,
    /// Submissions that ended, with or without error.
    pub completed: u64,
}

impl Context {
    /// Creates a context for one engine in one address space.
    ///
    /// # Errors
    ///
    /// EINVAL if there is no such engine; ENOSPC if there are too many contexts.
    pub fn create(vm: &Vm, engine: Engine) -> Result<Self> {
        let mut argument = uapi::drm_skua_context_create {
            vm: vm.handle(),
            engine: engine.index,
            flags: 0,
            context: 0,
        };
        vm.file().call(&mut argument)?;
        Ok(Self {
            device: vm.device().clone(),
            _client_device: vm.client_device().cloned(),
            record: Arc::new(Record {
                file: vm.file().clone(),
                handle: argument.context,
                submitted: AtomicU64::new(0),
                sound: OnceLock::new(),
            }),
        })
    }

    /// Says how important its work is: -7 to 7, 0 at first. What is queued already counts, too.
    ///
    /// # Errors
    ///
    /// EINVAL for another priority; EACCES for one above 0 without `CAP_SYS_NICE`.
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        self.prioritise(priority, 0)
    }

    /// Says how important its work is among that of the contexts of this [`Device`](crate::Device)
    /// that have the same priority: -7 to 7, 0 at first. It goes before theirs in their turns;
    /// others notice nothing, and no right is needed.
    ///
    /// # Errors
    ///
    /// EINVAL for another priority.
    pub fn set_in_process_priority(&self, priority: i32) -> Result<()> {
        self.prioritise(priority, uapi::DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS)
    }

    fn prioritise(&self, priority: i32, flags: u32) -> Result<()> {
        let mut argument = uapi::drm_skua_context_set_priority {
            context: self.record.handle,
            priority,
            flags,
            pad: 0,
        };
        self.file().call(&mut argument)?;
        Ok(())
    }

    /// The device that it is on.
    pub const fn device(&self) -> &crate::Device {
        &self.device
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        self.device.file()
    }

    /// The handle, for [`crate::raw`].
    pub fn handle(&self) -> u32 {
        self.record.handle
    }

    /// Asks the kernel how it is.
    ///
    /// # Errors
    ///
    /// ENODEV, EIO.
    pub fn state(&self) -> Result<ContextState> {
        self.record.state()
    }

    /// Starts a submission, which does nothing before it is submitted.
    pub const fn submission(&self) -> Submission<'_> {
        Submission {
            context: self,
            buffers: Vec::new(),
            syncs: Syncs::new(self.file()),
        }
    }

    /// Runs the commands of a buffer and waits until they are done.
    ///
    /// # Errors
    ///
    /// As [`Submission::submit`]; ETIME if `deadline` comes first (the commands go on);
    /// [`Error::Work`] if they did not end well: [`Context::state`] then tells more.
    pub fn run(&self, commands: &CommandBuffer, deadline: impl Into<Deadline>) -> Result<()> {
        self.submission().commands(commands).run(deadline)
    }
}

fn state(a: &uapi::drm_skua_context_state) -> Result<ContextState> {
    let status = match a.status {
        uapi::DRM_SKUA_CONTEXT_ACTIVE => ContextStatus::Active,
        uapi::DRM_SKUA_CONTEXT_FAULTED => ContextStatus::Faulted(Fault {
            reason: fault::Reason::from_u32(a.reason).ok_or(a.reason),
            access: fault::Access::from_u32(a.access).ok_or(a.access),
            address: a.address,
            command: a.command,
            detail: a.detail,
            pc: (a.pc != fault::Record::NO_PC).then_some(a.pc),
        }),
        uapi::DRM_SKUA_CONTEXT_TIMED_OUT => ContextStatus::TimedOut,
        uapi::DRM_SKUA_CONTEXT_LOST => ContextStatus::Lost,
        uapi::DRM_SKUA_CONTEXT_RESET => ContextStatus::Reset,
        _ => return Err(Error::Answer("status of a context")),
    };
    Ok(ContextState {
        status,
        ticks: a.ticks,
        completed: a.completed,
    })
}

impl Drop for Context {
    fn drop(&mut self) {
        if Arc::strong_count(&self.record) > 1 {
            self.record.end();
        }
        self.file().destroy(uapi::drm_skua_context_destroy {
            context: self.handle(),
            pad: 0,
        });
    }
}

/// Work for a context, and what it waits for and signals.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Submission<'a> {
    /// Whose engine runs the commands, behind those that were submitted to it before.
    context: &'a Context,
    /// Commands, in the order in which they run.
    buffers: Vec<uapi::drm_skua_buffer>,
    /// Fences that it waits for before the first of them, and signals after the last.
    syncs: Syncs<'a>,
}

impl<'a> Submission<'a> {
    /// Adds the commands that a buffer holds now. What is recorded later is not run, and what is
    /// overwritten before the GPU read it is.
    pub fn commands(self, commands: &'a CommandBuffer) -> Self {
        // CAST: the length of a command buffer is below 2^32.
        self.buffer(commands.va(), commands.bytes() as u32)
    }

    /// Adds commands by their GPU virtual address and size in bytes, multiples of 8.
    pub fn buffer(mut self, va: u64, size: u32) -> Self {
        self.buffers
            .push(uapi::drm_skua_buffer { va, size, flags: 0 });
        self
    }

    /// Waits for a syncobj before anything runs; `point` 0 is a binary one. If its work failed, so
    /// does this ([`crate::Outcome::Cancelled`]).
    pub fn wait(mut self, syncobj: &'a Syncobj, point: u64) -> Self {
        self.syncs.wait(syncobj, point);
        self
    }

    /// Signals a syncobj when all has run; `point` 0 is a binary one.
    pub fn signal(mut self, syncobj: &'a Syncobj, point: u64) -> Self {
        self.syncs.signal(syncobj, point);
        self
    }

    /// Waits until a monitored fence has a value before anything runs, whether or not somebody has
    /// promised to signal it.
    pub fn wait_value(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.syncs.value(uapi::DRM_SKUA_SYNC_WAIT, fence, value);
        self
    }

    /// Signals a value of a monitored fence when all has run.
    pub fn signal_value(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.syncs.value(uapi::DRM_SKUA_SYNC_SIGNAL, fence, value);
        self
    }

    /// Hands the submission to the driver; it does not wait. It runs when all work before it in the
    /// context is done.
    ///
    /// # Errors
    ///
    /// EINVAL if an address or size is out of its range, a point to wait for has no fence, or there
    /// are more buffers or syncobjs than the device's limits; [`Error::Argument`] for something of
    /// another file; ECANCELED if the context is not active.
    pub fn submit(self) -> Result<()> {
        let syncs = self.syncs.as_array()?;
        let record = &self.context.record;
        // Before, so that nobody can ask for a point and miss who signals it.
        for timeline in self.syncs.timelines() {
            timeline.keep(record);
        }
        record.file.call(&mut uapi::drm_skua_submit {
            context: record.handle,
            flags: 0,
            buffers: array(&self.buffers),
            syncs,
        })?;
        record.submitted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Hands the submission to the driver, and waits until it is done.
    ///
    /// # Errors
    ///
    /// As [`Context::run`].
    pub fn run(self, deadline: impl Into<Deadline>) -> Result<()> {
        let done = Syncobj::create(&self.context.device)?;
        // Does not outlive this call.
        let this: Submission<'_> = self;
        this.signal(&done, 0).submit()?;
        done.wait_done(0, deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let mut a = uapi::drm_skua_context_state {
            ticks: 5,
            completed: 2,
            ..Default::default()
        };
        let active = state(&a).unwrap();
        assert_eq!(active.status, ContextStatus::Active);
        assert_eq!((active.ticks, active.completed), (5, 2));

        a.status = uapi::DRM_SKUA_CONTEXT_FAULTED;
        a.reason = fault::Reason::NotPresent as u32;
        a.access = 99;
        a.address = 0x1000;
        a.pc = fault::Record::NO_PC;
        let ContextStatus::Faulted(fault) = state(&a).unwrap().status else {
            panic!("not faulted");
        };
        assert_eq!(fault.reason, Ok(fault::Reason::NotPresent));
        assert_eq!(fault.access, Err(99));
        assert_eq!((fault.address, fault.pc), (0x1000, None));

        a.status = 77;
        assert!(state(&a).is_err());
    }
}
