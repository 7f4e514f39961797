// SPDX-License-Identifier: MIT

//! A GPU with work for it that starts when it is told to.
//!
//! All work runs in one context of the copy engine, and each submission signals the next point of
//! one timeline. The first buffer of a [`Batch`] waits in the engine for the gate, a word of
//! memory:
//!
//! ```text
//!   WAIT gate >= n;  SIGNAL done = n        then buffers with one NOP
//! ```
//!
//! [`Rig::submit`] hands a batch to the driver, with the gate closed; [`Rig::finish`] has the
//! [`Companion`] open it, and sleeps until the last point is signalled. There is never more than
//! one batch.
//!
//! Ioctls are called as they are ([`libskua::raw`]), with arguments made before: what a library
//! does around them is measured by itself.

use std::ops::Range;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result};
use libskua::{
    raw, uapi, Access, Bo, BoFlags, CommandBuffer, Context, Device, EngineKind, Mapping, Syncobj,
    Vm, WaitFlags,
};

use crate::clock::Clock;
use crate::companion::Companion;
use crate::counters::{Counters, Source};

/// Bytes of a page, which all buffers here are.
const PAGE: u64 = 4096;
/// Where the GPU sees the gate, and 8 bytes behind it the word that says how far it came.
const GATE: u64 = 0x1000_0000;
/// Where it sees the commands that wait.
const WAITING: u64 = 0x1001_0000;
/// Where it sees the commands that do nothing.
const NOTHING: u64 = 0x1002_0000;
/// Byte of the word that says how far the GPU came, from the gate.
const DONE: usize = 8;
/// How many are submitted at once, where it is more than one.
pub const MANY: usize = 32;

/// What is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One submission with one buffer.
    One,
    /// One submission with [`MANY`] buffers.
    Buffers,
    /// [`MANY`] submissions with one buffer each.
    Queue,
}

impl Shape {
    /// The word that stands for it in the names of rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Buffers => "buffers",
            Self::Queue => "queue",
        }
    }

    /// Buffers in all of it.
    pub const fn buffers(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Buffers | Self::Queue => MANY as u64,
        }
    }
}

/// The GPU, and what measuring needs.
#[derive(Debug)]
pub struct Rig {
    /// The first that the system has.
    pub device: Device,
    /// Has the gate and both command buffers mapped.
    pub vm: Vm,
    /// Of the copy engine; all work runs in it.
    pub context: Context,
    /// What all submissions signal.
    pub timeline: Syncobj,
    /// Calibrated before anything is measured.
    pub clock: Clock,
    /// What device, driver and kernel count of `device`.
    pub counters: Source,
    /// What opens the gate and keeps the CPU busy.
    pub companion: Companion,
    /// Waits for the gate, then writes `point` behind it.
    waiting: CommandBuffer,
    /// A buffer with a single NOP: the least work that there is.
    nothing: CommandBuffer,
    /// The gate, and at [`DONE`] how far the GPU came.
    memory: Mapping,
    /// The last point that a batch was given, and the value that opens the gate to it.
    point: u64,
}

/// Work that was not submitted yet: the arguments of the ioctls.
#[derive(Debug)]
pub struct Batch {
    submissions: Vec<uapi::drm_skua_submit>,
    /// What `submissions` points to, as `_syncs`.
    _buffers: Vec<Vec<uapi::drm_skua_buffer>>,
    _syncs: Vec<Vec<uapi::drm_skua_sync>>,
}

impl Rig {
    /// Opens the first device.
    ///
    /// # Errors
    ///
    /// If there is none, or it does not do what every device does.
    pub fn new() -> Result<Self> {
        let nodes = Device::enumerate()?;
        let node = nodes.first().context("there is no Skua GPU")?;
        let device = node.open()?;
        let engine = device
            .engine(EngineKind::Copy)
            .context("there is no copy engine")?;
        let vm = Vm::create(&device)?;
        let context = Context::create(&vm, engine)?;
        let timeline = Syncobj::create(&device)?;
        let gate = Bo::create(&device, PAGE, device.system(), BoFlags::CPU_ACCESS)?;
        vm.map(&gate, GATE, Access::ReadWrite)?;
        let waiting = CommandBuffer::create(&vm, WAITING, PAGE)?;
        let mut nothing = CommandBuffer::create(&vm, NOTHING, PAGE)?;
        nothing.nop(2)?;
        Ok(Self {
            counters: Source::new(&node.bus_id),
            companion: Companion::start(gate.map()?)?,
            clock: Clock::new(),
            memory: gate.map()?,
            device,
            vm,
            context,
            timeline,
            waiting,
            nothing,
            point: 0,
        })
    }

    /// The last point that was submitted.
    pub const fn point(&self) -> u64 {
        self.point
    }

    /// Goes to the next point, for a submission that is not made of a batch: of [`Rig::waiting`].
    /// The work before must be finished.
    ///
    /// # Errors
    ///
    /// As [`CommandBuffer::push`].
    pub fn advance(&mut self) -> Result<u64> {
        self.point += 1;
        self.close()?;
        Ok(self.point)
    }

    /// The commands that wait for the gate.
    pub const fn waiting(&self) -> &CommandBuffer {
        &self.waiting
    }

    /// Has the waiting commands wait for what the point now is.
    fn close(&mut self) -> Result<()> {
        let done = GATE + DONE as u64;
        self.waiting
            .reset()
            .wait(GATE, self.point)?
            .signal(done, self.point)?;
        Ok(())
    }

    /// Makes a batch. The one before must be finished.
    ///
    /// # Errors
    ///
    /// As [`CommandBuffer::push`].
    pub fn batch(&mut self, shape: Shape) -> Result<Batch> {
        let (submissions, buffers) = match shape {
            Shape::One => (1, 1),
            Shape::Buffers => (1, MANY),
            Shape::Queue => (MANY, 1),
        };
        self.batch_of(submissions, buffers, true)
    }

    /// Makes a batch of so many submissions with so many buffers each. If they do not `signal`, no
    /// object but the job itself stands for them; then nothing waits for them either.
    ///
    /// # Errors
    ///
    /// As [`CommandBuffer::push`].
    pub fn batch_of(&mut self, submissions: usize, buffers: usize, signal: bool) -> Result<Batch> {
        let first_point = self.point + 1;
        self.point += submissions as u64;
        self.close()?;
        let of = |commands: &CommandBuffer| uapi::drm_skua_buffer {
            va: commands.va(),
            // CAST: at most a page.
            size: commands.bytes() as u32,
            flags: 0,
        };
        let nothing = of(&self.nothing);
        let mut all_buffers = vec![vec![nothing; buffers]; submissions];
        if let Some(first) = all_buffers.first_mut().and_then(|list| list.first_mut()) {
            *first = of(&self.waiting);
        }
        let sync = |point| uapi::drm_skua_sync {
            flags: uapi::DRM_SKUA_SYNC_SIGNAL | uapi::DRM_SKUA_SYNC_TIMELINE,
            handle: self.timeline.handle(),
            point,
        };
        let all_syncs: Vec<Vec<_>> = (first_point..)
            .take(submissions)
            .map(|point| signal.then(|| sync(point)).into_iter().collect())
            .collect();
        let submissions = all_buffers.iter().zip(&all_syncs);
        Ok(Batch {
            submissions: submissions
                .map(|(buffers, syncs)| uapi::drm_skua_submit {
                    context: self.context.handle(),
                    flags: 0,
                    buffers: array(buffers),
                    syncs: array(syncs),
                })
                .collect(),
            _buffers: all_buffers,
            _syncs: all_syncs,
        })
    }

    /// Submits a batch: one ioctl for each submission, and nothing else.
    ///
    /// # Errors
    ///
    /// As SUBMIT.
    pub fn submit(&self, batch: &mut Batch) -> Result<()> {
        self.call(&mut batch.submissions)
    }

    /// Submits a part of a batch.
    ///
    /// # Errors
    ///
    /// As SUBMIT.
    pub fn submit_range(&self, batch: &mut Batch, range: Range<usize>) -> Result<()> {
        let part = batch.submissions.get_mut(range);
        self.call(part.context("the batch is smaller")?)
    }

    fn call(&self, submissions: &mut [uapi::drm_skua_submit]) -> Result<()> {
        for submission in submissions {
            raw::call(self.device.as_fd(), submission).context("SUBMIT")?;
        }
        Ok(())
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.companion.open(self.point);
    }

    /// Opens the gate, and sleeps until all is done: one ioctl, if no signal comes.
    ///
    /// # Errors
    ///
    /// As SYNCOBJ_TIMELINE_WAIT.
    pub fn finish(&self) -> Result<()> {
        self.open();
        self.wait()
    }

    /// Waits until all is done: one ioctl.
    ///
    /// # Errors
    ///
    /// As SYNCOBJ_TIMELINE_WAIT.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(&[self.timeline.handle()], &[self.point])
    }

    /// Waits for as many points as there are in both: one ioctl.
    ///
    /// # Errors
    ///
    /// As SYNCOBJ_TIMELINE_WAIT.
    pub fn wait_for(&self, timelines: &[u32], points: &[u64]) -> Result<()> {
        anyhow::ensure!(timelines.len() == points.len(), "a point for each timeline");
        let flags = WaitFlags::ALL | WaitFlags::FOR_SUBMIT;
        let mut argument = uapi::drm_syncobj_timeline_wait {
            handles: address(timelines),
            points: address(points),
            timeout_nsec: i64::MAX,
            count_handles: u32::try_from(points.len())?,
            flags: flags.bits(),
            ..Default::default()
        };
        raw::call(self.device.as_fd(), &mut argument).context("SYNCOBJ_TIMELINE_WAIT")?;
        Ok(())
    }

    /// Waits until the GPU has written that all is done, by looking: no ioctl.
    ///
    /// # Errors
    ///
    /// None: the word is there.
    pub fn poll(&self) -> Result<()> {
        while self.memory.read::<u64>(DONE)? < self.point {}
        Ok(())
    }

    /// Submits and finishes batches; how far the counters grew by that.
    ///
    /// # Errors
    ///
    /// If something of it cannot be done.
    pub fn counted(&mut self, shape: Shape, batches: usize) -> Result<Counters> {
        let cost = self.counters.cost()?;
        let before = self.counters.read()?;
        for _ in 0..batches {
            let mut batch = self.batch(shape)?;
            self.submit(&mut batch)?;
            self.finish()?;
        }
        Ok(self.counters.read()?.since(&before).since(&cost))
    }

    /// Fails if the work so far did not end well: counts of work that failed mean nothing.
    ///
    /// # Errors
    ///
    /// If it did not.
    pub fn check(&self) -> Result<()> {
        let state = self.context.state()?;
        anyhow::ensure!(
            state.status == libskua::ContextStatus::Active,
            "the work failed: {:?}",
            state.status
        );
        Ok(())
    }

    /// Calls an ioctl that does next to nothing.
    ///
    /// GET_CAP goes all the way of an ioctl of the driver through the DRM core (the number is
    /// looked up, rights are checked, the argument is copied in and out), and then returns a
    /// constant.
    ///
    /// # Errors
    ///
    /// As GET_CAP.
    pub fn null_ioctl(&self) -> Result<()> {
        let mut argument = uapi::drm_get_cap {
            capability: uapi::DRM_CAP_TIMESTAMP_MONOTONIC.into(),
            value: 0,
        };
        raw::call(self.device.as_fd(), &mut argument).context("GET_CAP")?;
        Ok(())
    }

    /// Calls an ioctl of the driver that looks a context up and tells what it finds in memory.
    ///
    /// # Errors
    ///
    /// As CONTEXT_STATE.
    pub fn driver_ioctl(&self) -> Result<()> {
        let mut argument = uapi::drm_skua_context_state {
            context: self.context.handle(),
            ..Default::default()
        };
        raw::call(self.device.as_fd(), &mut argument).context("CONTEXT_STATE")?;
        Ok(())
    }
}

/// An array as ioctls of the driver take it.
fn array<T>(elements: &[T]) -> uapi::drm_skua_array {
    uapi::drm_skua_array {
        // CAST: both are small.
        stride: size_of::<T>() as u32,
        count: elements.len() as u32,
        pointer: if elements.is_empty() {
            0
        } else {
            address(elements)
        },
    }
}

fn address<T>(elements: &[T]) -> u64 {
    elements.as_ptr().expose_provenance() as u64
}
