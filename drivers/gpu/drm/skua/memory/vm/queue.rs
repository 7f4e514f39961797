// SPDX-License-Identifier: GPL-2.0

//! The queue of an address space: binds that were accepted, which are done in that order.
//!
//! A bind whose turn it is when it is queued, as it is of most, is done in the ioctl's own thread,
//! the wait for the TLBs included; otherwise in a worker, when a gate opens. One thread at a time
//! does the binds of an address space.
//!
//! Lock: `binds` of the [`Vm`], a spin lock.

use crate::{
    ext::fence::Signalling,
    fences::{
        gate::Wake,
        hold::Holder, //
    },
    memory::vm::{
        bind::Bind,
        Vm,
        QUEUE, //
    },
    quota::count_out, //
};
use core::mem::take;
use kernel::{
    list::List,
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

/// Binds that are not done.
pub(super) struct Binds {
    /// In the order in which they were accepted.
    pub(super) queue: List<Bind>,
    /// How many are in `queue`, or accepted and on their way there: as many as were held, and
    /// others as long as these are less than
    /// [`MAX_REQUESTS`](crate::fences::hold::MAX_REQUESTS) together.
    pub(super) len: u32,
    /// A thread is at one, which it has taken out of `queue`.
    busy: bool,
    /// Userspace has no handle any more.
    pub(super) destroyed: bool,
    /// Contexts that work in it.
    pub(super) contexts: u32,
    /// Nothing is accepted, and what waits is finished with this error: the device is lost, or the
    /// client gone.
    pub(super) end: Option<Error>,
}

impl Binds {
    /// The binds of an address space that is new: none.
    pub(super) fn new() -> Self {
        Self {
            queue: List::new(),
            len: 0,
            busy: false,
            destroyed: false,
            contexts: 0,
            end: None,
        }
    }

    /// Whether nothing is left for which the address space is in the device's table.
    pub(super) fn is_over(&self) -> bool {
        self.destroyed && !self.busy && self.len == 0 && self.contexts == 0
    }
}

impl Vm {
    /// Does the bind whose turn it is, and leaves what is behind it to the worker: who does a bind
    /// for himself does not do all that others bring meanwhile, nor does a worker for one address
    /// space keep the CPU. If all is to end, that is done at once. Process context; one thread at a
    /// time does the work.
    pub(super) fn process(self: &Arc<Self>) {
        let _signalling = Signalling::begin();
        loop {
            let (bind, end) = {
                let mut binds = self.binds.lock();
                if binds.busy {
                    // Who is at work looks again after it.
                    return;
                }
                let end = binds.end;
                let mut cursor = binds.queue.cursor_front();
                let Some(first) = cursor.peek_next() else {
                    break;
                };
                let due = end.is_some() || first.gate.is_open();
                if !due && first.gate.is_armed() {
                    break;
                }
                let bind = first.remove();
                binds.busy = true;
                if due {
                    count_out(&mut binds.len, 1);
                    (bind, end)
                } else {
                    drop(binds);
                    // Whoever opens it from now on leads here again.
                    bind.gate.arm();
                    let mut binds = self.binds.lock();
                    binds.queue.push_front(bind);
                    binds.busy = false;
                    continue;
                }
            };
            let result = match end {
                None => self.perform(&bind, false),
                // What it would have unmapped is not held any longer: nobody must reach it.
                Some(ECANCELED) => self.perform(&bind, true).and(Err(ECANCELED)),
                Some(error) => Err(error),
            };
            // Before the signal: who waits for it may count on the memory.
            let (fence, mut promises) = {
                let mut end = bind.end.lock();
                let promises = take(&mut end.promises);
                (end.fence.take(), promises)
            };
            bind.gate.close();
            self.dev.reapers.binds.bury(bind.into_arc());
            let how = self.ended(result);
            // Of what they are for only memory may go with them, which waits for nothing.
            promises.iter_mut().for_each(|promise| promise.keep(how));
            if let Some(fence) = fence {
                // That it does not answer is the device's loss.
                fence.signal(result.map_err(|error| if error == EIO { ENODEV } else { error }));
            }
            let goes_on = {
                let mut binds = self.binds.lock();
                binds.busy = false;
                binds.end.is_some() || binds.queue.is_empty()
            };
            if !goes_on {
                Wake::wake(self);
                return;
            }
        }
        if self.binds.lock().is_over() {
            self.leave();
        }
    }

    /// What waits is finished with `error`, in order, and nothing more is accepted: the device is
    /// lost (`ENODEV`), or the client gone (`ECANCELED`). The first error counts.
    pub(crate) fn end(self: &Arc<Self>, error: Error) {
        self.binds.lock().end.get_or_insert(error);
        self.process();
        Self::look_again(self.clone());
    }
}

impl Wake for Vm {
    fn wake(this: &Arc<Self>) {
        // Refused if it is queued already: then it will run and look.
        let _ = QUEUE.enqueue::<_, 0>(this.clone());
    }
}

impl WorkItem for Vm {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.process();
        let dev = this.dev.clone();
        dev.reapers.vms.bury(this);
    }
}
