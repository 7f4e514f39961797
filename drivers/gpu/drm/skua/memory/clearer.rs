// SPDX-License-Identifier: GPL-2.0

//! Clearing VRAM that is free, while the engine for paging has nothing to do.
//!
//! ```text
//! memory is freed, dirty ─▶ the engine is idle? ─ no ─▶ when it is ─┐
//!             ▲                      │ yes ◀────────────────────────┘
//!             │                      ▼
//!             │       some dirty blocks are taken out ─▶ the engine writes zeroes ─▶ its fence
//!             │                                                                        │
//!             └── failed ◀────── the reaper gives them back ◀───────────────────────────┘
//!                                      └─▶ done: clean; the next, if the engine is idle
//! ```
//!
//! What is taken at a time is one pass of the engine: less than a millisecond, which is what
//! anything else may have to wait for it. It is put into an empty ring or not at all.
//!
//! What nobody has had since the device was bound is left alone: that is cleared for its first
//! owner, and VRAM that nobody uses is not written.
//!
//! Nobody gets memory that is being cleared. It counts as free: who finds no room waits until it
//! is given back, and until then nothing more is taken ([`Pause`]). A device that is reset clears
//! it anew; one that is lost does not any more, and it is dirty.

use crate::{
    ext::queue::{
        Alarm,
        AlarmHandler,
        Nice,
        Order,
        OwnedQueue, //
    },
    gpu::SkuaDevice,
    memory::{
        eviction::patience,
        vram::{
            self,
            BlockList, //
        }, //
    },
    policy::{
        buddy::{
            PageCount,
            PageRange,
            PAGE_BYTES, //
        },
        heap::FallibleVec, //
    }, //
};
use kernel::{
    new_condvar,
    new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

/// How long it waits for memory to describe what is to be done, in milliseconds.
const RETRY_MS: u32 = 100;

/// What is known of the clearing of free memory.
#[pin_data]
pub(crate) struct Clearer {
    /// What is being cleared, and who waits for it.
    #[pin]
    state: SpinLock<State>,
    /// Notified when memory is given back.
    #[pin]
    changed: CondVar,
    /// 1 while somebody is to tell when the engine is idle.
    is_waiting: Atomic<u32>,
    /// From the end of [`Gpu::start`](crate::gpu::Gpu::start) to the beginning of
    /// [`Gpu::stop`](crate::gpu::Gpu::stop).
    #[pin]
    alarm: SpinLock<Option<Alarm<Clears>>>,
}

/// What is under the lock.
struct State {
    /// Whether some memory is being cleared.
    is_out: bool,
    /// How many [`Pause`]s there are: nothing more is taken as long as there is one.
    pauses: u32,
    /// Whether debugfs `clearing` has turned it off: nothing more is taken.
    is_off: bool,
}

impl Clearer {
    /// One of a device that was not started.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_spinlock!(State {
                is_out: false,
                pauses: 0,
                is_off: false,
            }),
            changed <- new_condvar!("Clearer::changed"),
            is_waiting: Atomic::new(0),
            alarm <- new_spinlock!(None),
        })
    }

    /// The device works: clears what it has. `ENOMEM`.
    pub(crate) fn start(dev: &SkuaDevice) -> Result {
        let queue = OwnedQueue::new(c"skua-clears", Order::Ordered, Nice::Normal)?;
        let alarm = Alarm::new(Arc::new(queue, GFP_KERNEL)?, Clears { dev: dev.into() })?;
        *dev.clearer.alarm.lock() = Some(alarm);
        dev.clearer.kick();
        Ok(())
    }

    /// Takes nothing any more. Process context, not from what is on the way to a fence's signal.
    pub(crate) fn stop(&self) {
        let alarm = self.alarm.lock().take();
        drop(alarm);
    }

    /// Memory may be dirty, or the engine idle: has the worker look whether there is something to
    /// do. Any context.
    pub(crate) fn kick(&self) {
        if let Some(alarm) = &*self.alarm.lock() {
            alarm.kick();
        }
    }

    /// Whether somebody is to call [`Self::engine_is_idle`] when the engine is.
    pub(crate) fn waits_for_engine(&self) -> bool {
        self.is_waiting.load(Relaxed) != 0
    }

    /// Goes on, if that is what it has waited for. Any context.
    pub(crate) fn engine_is_idle(&self) {
        if self.is_waiting.xchg(0, Full) != 0 {
            self.kick();
        }
    }

    /// The device is lost: nobody is to wait for what is kept.
    pub(crate) fn wake(&self) {
        // Who looked before that waits by now.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Has nothing that is free be clean, nor be cleared, from now on, or, called again, not any
    /// more; whether it is cleared now. `EINTR` if a signal arrives.
    pub(crate) fn toggle(dev: &SkuaDevice) -> Result<bool> {
        let _pause = Pause::new(dev, &mut patience())?;
        let mut state = dev.clearer.state.lock();
        state.is_off = !state.is_off;
        let is_off = state.is_off;
        drop(state);
        if is_off {
            dev.vram.lock().forget_clean();
        }
        Ok(!is_off)
    }

    /// Whether there is dirty memory that is being cleared, or will be when the engine is idle.
    pub(crate) fn has_work(dev: &SkuaDevice) -> bool {
        let is_off = dev.clearer.state.lock().is_off;
        let vram = dev.vram.lock();
        !is_off && dev.check_health().is_ok() && vram.dirty_pages().0 > 0
    }

    /// Whether some memory may be taken now, which counts as taken then.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let may = !state.is_out && state.pauses == 0 && !state.is_off;
        state.is_out |= may;
        may
    }

    /// Ends what [`Self::begin`] has begun: the allocator has the memory again.
    fn end(&self) {
        self.state.lock().is_out = false;
        self.changed.notify_all();
    }
}

/// As long as it lives no memory is being cleared.
pub(crate) struct Pause<'a>(&'a SkuaDevice);

impl<'a> Pause<'a> {
    /// Waits until what is being cleared is given back, as long as there is `left`, from which it
    /// takes. `EINTR` if a signal arrives.
    pub(crate) fn new(dev: &'a SkuaDevice, left: &mut Jiffies) -> Result<Self> {
        let clearer = &dev.clearer;
        let mut state = clearer.state.lock();
        // No wrap: threads.
        state.pauses = state.pauses.wrapping_add(1);
        while state.is_out && *left > 0 && dev.check_health().is_ok() {
            *left = match clearer
                .changed
                .wait_interruptible_timeout(&mut state, *left)
            {
                CondVarTimeoutResult::Signal { .. } => {
                    drop(state);
                    drop(Self(dev));
                    return Err(EINTR);
                }
                CondVarTimeoutResult::Timeout => 0,
                CondVarTimeoutResult::Woken { jiffies } => jiffies,
            };
        }
        drop(state);
        Ok(Self(dev))
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut state = self.0.clearer.state.lock();
        state.pauses = state.pauses.wrapping_sub(1);
        let is_last = state.pauses == 0;
        drop(state);
        if is_last {
            self.0.clearer.kick();
        }
    }
}

/// Free memory that is being cleared.
pub(crate) struct FreeBlocks {
    /// The device whose VRAM they are of.
    dev: ARef<SkuaDevice>,
    /// What the allocator gets back.
    blocks: BlockList,
    /// Whether the engine is done with it, or never got it.
    is_over: Atomic<bool>,
    /// Whether all of it is zero.
    is_clean: Atomic<bool>,
}

impl FreeBlocks {
    /// Takes what one pass of the engine can clear; nothing if all is clean. There is no other.
    /// `ENOMEM`, `ENODEV`.
    fn take(dev: &SkuaDevice) -> Result<Self> {
        let most = {
            let shared = dev.hw.shared()?;
            shared.paging.space.fill_pages()
        };
        let mut taken = Self {
            dev: dev.into(),
            blocks: BlockList::new(),
            is_over: Atomic::new(false),
            is_clean: Atomic::new(false),
        };
        let mut vram = dev.vram.lock();
        let result = vram.take_dirty(PageCount(most), &mut taken.blocks);
        // Not under the lock, which giving back takes.
        drop(vram);
        result.map_err(vram::errno)?;
        Ok(taken)
    }

    /// What is to be cleared.
    pub(crate) fn blocks(&self) -> &[PageRange] {
        self.blocks.as_slice()
    }

    /// What was begun has ended: all of it is zero if that is `Ok`. Allocates nothing.
    pub(crate) fn finish(&self, result: Result) {
        self.is_over.store(true, Relaxed);
        self.is_clean.store(result.is_ok(), Relaxed);
    }
}

impl Drop for FreeBlocks {
    fn drop(&mut self) {
        let is_clean = self.is_clean.load(Relaxed);
        // First: who sees that it is clean finds it counted.
        if is_clean {
            let counters = &self.dev.counters;
            let pages = self.blocks.as_slice().iter().map(|block| block.pages.0);
            let bytes = pages
                .fold(0, u64::saturating_add)
                .saturating_mul(PAGE_BYTES);
            counters.background_clears.fetch_add(1, Relaxed);
            counters.background_clear_bytes.fetch_add(bytes, Relaxed);
        }
        {
            let mut vram = self.dev.vram.lock();
            for block in self.blocks.as_slice() {
                // Ours since `take()`.
                crate::warn_on_once!(vram.give_back(*block, is_clean).is_err());
            }
        }
        // Who has looked meanwhile has not found it.
        self.dev.vram_frees.fetch_add(1, Relaxed);
        self.dev.clearer.end();
        if self.is_over.load(Relaxed) {
            self.dev.clearer.kick();
        }
    }
}

/// Looks whether there is something to do.
struct Clears {
    /// The device whose VRAM is cleared.
    dev: ARef<SkuaDevice>,
}

impl Clears {
    /// Has some memory be cleared if the engine is idle; when that is over, this is looked at
    /// again. `ENOMEM`; `ENODEV`, `EIO` if the device is lost; `EBUSY` if the engine has something
    /// to do.
    fn clear(&self) -> Result {
        let dev = &*self.dev;
        let clearer = &dev.clearer;
        let engine = dev.engine(dev.paging_engine()?)?;
        // First: an engine that becomes idle after that has this called again.
        clearer.is_waiting.store(1, Relaxed);
        if !engine.is_idle() {
            return Err(EBUSY);
        }
        clearer.is_waiting.store(0, Relaxed);
        if !clearer.begin() {
            // Something is being cleared: its end has this called again.
            return Ok(());
        }
        let taken = FreeBlocks::take(dev).inspect_err(|_| clearer.end())?;
        match taken.blocks().is_empty() {
            true => Ok(()),
            false => dev.paging()?.clear_free(taken),
        }
    }
}

impl AlarmHandler for Clears {
    fn run(&self) -> Option<Jiffies> {
        // With `EBUSY` the engine calls when it is idle.
        let is_short = self.clear() == Err(ENOMEM);
        is_short.then(|| msecs_to_jiffies(RETRY_MS))
    }
}
