// SPDX-License-Identifier: GPL-2.0

//! Telling userspace what became of the device, away from where fences signal: an event allocates.
//!
//! ```text
//! recovery, loss ── tell ─▶ what is to be told ─▶ work item, in the reapers' queue ─▶ dump, uevent
//! ```
//!
//! A [dump](crate::submit::coredump) comes before the events, a client that was cut before a loss.
//! Of several failures before the first is told of, that one is; of several clients that are cut on
//! an engine, likewise.

use crate::{
    ext::{
        device,
        wedged::{
            self,
            Process,
            Recovery, //
        }, //
    },
    gpu::SkuaDevice,
    reaper,
    spec::number::EngineIndex,
    submit::coredump::{
        Coredump,
        Failure, //
    }, //
};
use kernel::{
    impl_has_work,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        SpinLock, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// What there is to tell.
struct News {
    /// The device; none if there is nothing.
    dev: Option<ARef<SkuaDevice>>,
    /// What it looked like when it failed.
    dump: Option<Coredump>,
    /// By engine, the process whose work was cut there, of which userspace is to be told.
    cut: [Option<Process>; EngineIndex::ALL.len()],
    /// Whether the adapter was reset.
    reset: bool,
    /// Whether the device is lost.
    lost: bool,
}

/// What there is for the next dump.
struct Blank {
    /// Memory, unless there is a dump to be told of.
    memory: Option<Coredump>,
    /// Somebody writes a dump, or has, and it is not told of yet: there is to be no second one.
    is_out: bool,
    /// When the last one was written, if there was one.
    last: Option<Instant<Monotonic>>,
}

/// Milliseconds from one dump to the next: while one is written the engine waits.
const PAUSE_MS: i64 = 1000;

/// Tells userspace; a device has one.
#[pin_data]
pub(crate) struct Herald {
    /// What userspace has not been told yet.
    #[pin]
    news: SpinLock<News>,
    /// Memory for the next core dump, allocated before there is anything to dump.
    #[pin]
    blank: SpinLock<Blank>,
    /// Tells userspace, where sleeping and allocating are possible.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Herald { self.work }
}

impl Herald {
    /// One that has nothing to tell. `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let memory = Some(Coredump::new()?);
        Arc::pin_init(
            pin_init!(Self {
                blank <- new_spinlock!(Blank {
                    memory,
                    is_out: false,
                    last: None,
                }),
                news <- new_spinlock!(News {
                    dev: None,
                    dump: None,
                    cut: [const { None }; EngineIndex::ALL.len()],
                    reset: false,
                    lost: false,
                }),
                work <- new_work!("Herald::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Work of `client` on `engine` of `dev` was cut, and the device goes on.
    pub(crate) fn tell_of_cut(
        self: &Arc<Self>,
        dev: &SkuaDevice,
        engine: EngineIndex,
        client: Process,
    ) {
        self.tell(dev, |news| {
            if let Some(cut) = news.cut.get_mut(engine.index()) {
                cut.get_or_insert(client);
            }
        });
    }

    /// Has userspace be told that `dev` was reset, and goes on.
    pub(crate) fn tell_of_reset(self: &Arc<Self>, dev: &SkuaDevice) {
        self.tell(dev, |news| news.reset = true);
    }

    /// Has userspace be told that `dev` is lost: it does not come back by itself.
    pub(crate) fn tell_of_loss(self: &Arc<Self>, dev: &SkuaDevice) {
        self.tell(dev, |news| news.lost = true);
    }

    /// `dev` fails. Called before that changes what there is to be seen.
    pub(crate) fn tell_of_failure(self: &Arc<Self>, dev: &SkuaDevice, failure: &Failure<'_>) {
        let memory = {
            let mut blank = self.blank.lock();
            let pause = Delta::from_millis(PAUSE_MS);
            let memory = match blank.last {
                Some(last) if last.elapsed() < pause => None,
                _ => blank.memory.take(),
            };
            if memory.is_some() {
                blank.is_out = true;
                blank.last = Some(Instant::now());
            }
            memory
        };
        if let Some(mut dump) = memory {
            // What did not fit is not in it.
            let _ = dump.write(dev, failure);
            self.tell(dev, |news| news.dump = Some(dump));
        }
    }

    fn tell(self: &Arc<Self>, dev: &SkuaDevice, what: impl FnOnce(&mut News)) {
        {
            let mut news = self.news.lock();
            what(&mut news);
            news.dev.get_or_insert_with(|| dev.into());
        }
        // Refused if it is queued already: then it will run and look.
        let _ = reaper::QUEUE.enqueue(self.clone());
    }
}

impl WorkItem for Herald {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let (dev, dump, cut, reset, lost) = {
            let mut news = this.news.lock();
            let reset = core::mem::take(&mut news.reset);
            let lost = core::mem::take(&mut news.lost);
            let cut = news.cut.each_mut().map(Option::take);
            (news.dev.take(), news.dump.take(), cut, reset, lost)
        };
        let is_told = dump.is_some();
        if let Some((dump, dev)) = dump.zip(dev.as_ref()) {
            dump.publish(dev);
        }
        let is_missing = {
            let mut blank = this.blank.lock();
            blank.is_out &= !is_told;
            blank.memory.is_none() && !blank.is_out
        };
        if is_missing {
            // Without memory there is no other, until it is looked for again.
            let memory = Coredump::new().ok();
            // There was none: this alone puts some there.
            this.blank.lock().memory = memory;
        }
        // Of one that is unplugged nobody has a node.
        let Some(registered) = dev.as_ref().and_then(|dev| device::enter(dev)) else {
            return;
        };
        let send = |recovery, process| {
            if wedged::send(&registered, recovery, process).is_err() {
                dev_warn!(registered.as_ref(), "no memory for an event\n");
            }
        };
        if reset && cut.iter().all(Option::is_none) {
            send(Recovery::None, None);
        }
        for process in cut.iter().flatten() {
            send(Recovery::None, Some(process));
        }
        if lost {
            send(Recovery::Rebind, None);
        }
    }
}
