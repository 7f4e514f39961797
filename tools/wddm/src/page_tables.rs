// SPDX-License-Identifier: MIT

//! What a device's work reaches: the kernel's device, and its page tables.
//!
//! An opening of an adapter has one space of addresses ([`crate::address_space`]), and each device
//! has page tables of its own, in which only that device maps. So an address means one thing at
//! most there, while no device's work reaches what is another's, which could not be resident for
//! it.
//!
//! Of an explicit device of the kernel's, work finds in VRAM alone what is resident for it.
//!
//! Lock order: the scheduler's state, then the adapter's space, then the binds.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Mutex,
    },
};

use libskua::{
    Access, Bind, ClientDevice, Errno, ErrorKind, MonitoredFence, OnFailure, Residency, Syncobj, Vm,
};
use rustix::event::{PollFd, PollFlags};
use skua_policy::interval_map::Span;

use crate::{
    adapter::{crowded, Adapter},
    fence, lock,
    memory::Memory,
    scheduler::Point,
    status::Result,
};

/// A device of the kernel's, and its address space.
pub(crate) struct PageTables {
    /// Whose space of addresses it is, one for all devices of the opening.
    adapter: Adapter,
    /// What `kernel` has mapped.
    vm: Vm,
    /// What the kernel accounts residency, a budget and failures to.
    kernel: ClientDevice,
    /// Lost when the device fails. Until then it counts ends that the sleepers of the device are to
    /// look for.
    life: MonitoredFence,
    /// Which changes of `vm` were asked for.
    binds: Binds,
    /// A timeline: point *n* is signalled when the *n*-th bind is performed.
    bound: Syncobj,
    /// Addresses that work may still use, in the order in which they went.
    retired: Mutex<VecDeque<(Vec<Point>, Retired)>>,
}

/// Addresses of what is destroyed, and may still be bound there.
#[derive(Debug)]
pub(crate) struct Retired {
    /// The first.
    pub(crate) va: u64,
    /// Bytes that were bound.
    pub(crate) size: u64,
}

impl std::fmt::Debug for PageTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageTables")
            .field("vm", &self.vm)
            .field("kernel", &self.kernel)
            .field("binds", &self.binds)
            .finish_non_exhaustive()
    }
}

impl PageTables {
    /// The page tables of a new device with explicit residency, in which nothing is mapped.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if there are too many; NO_MEMORY; DEVICE_REMOVED.
    pub(crate) fn create(adapter: &Adapter) -> Result<Arc<Self>> {
        let skua = adapter.libskua();
        let kernel = ClientDevice::create(skua, Residency::Explicit).map_err(crowded)?;
        Ok(Arc::new(Self {
            adapter: adapter.clone(),
            vm: kernel.create_vm().map_err(crowded)?,
            life: MonitoredFence::create_for(&kernel, 0, OnFailure::Lost).map_err(crowded)?,
            kernel,
            binds: Binds::default(),
            bound: Syncobj::create(skua)?,
            retired: Mutex::default(),
        }))
    }

    /// Gives addresses back when the `uses` have ended, which are all that is queued: at the
    /// latest when somebody looks for addresses then.
    pub(crate) fn retire(&self, uses: Vec<Point>, retired: Retired) {
        lock(&self.retired).push_back((uses, retired));
        self.sweep();
    }

    /// Gives back what is not used any more.
    pub(crate) fn sweep(&self) {
        loop {
            let next = {
                let mut retired = lock(&self.retired);
                // Who went later is used as long at least.
                let is_over = retired.front_mut().is_some_and(|(uses, _)| {
                    uses.retain(|(fence, value)| !fence.is_over(*value));
                    uses.is_empty() || self.is_lost()
                });
                if is_over {
                    retired.pop_front()
                } else {
                    None
                }
            };
            let Some((uses, next)) = next else {
                return;
            };
            if self.give_back(&next).is_err() {
                // Another time.
                lock(&self.retired).push_front((uses, next));
                return;
            }
        }
    }

    /// Gives back everything: nothing of the device runs any more.
    pub(crate) fn sweep_all(&self) {
        let all = std::mem::take(&mut *lock(&self.retired));
        for (_, retired) in all {
            let _ = self.give_back(&retired);
        }
    }

    /// Gives addresses back at which nothing is bound from then on. As the kernel, if it cannot
    /// unbind: they must not become another's.
    fn give_back(&self, retired: &Retired) -> Result<()> {
        let (va, size) = (retired.va, retired.size);
        let unbound = self.bind_for(false, |bind| bind.unmap(va, size));
        if !self.is_lost() {
            unbound?;
        }
        self.adapter.give_all_back(va, size);
        Ok(())
    }

    pub(crate) const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    pub(crate) const fn vm(&self) -> &Vm {
        &self.vm
    }

    pub(crate) const fn kernel(&self) -> &ClientDevice {
        &self.kernel
    }

    /// A fence of the kernel's device, which keeps its value when that fails, or is lost.
    pub(crate) fn fence(&self, initial: u64, keeps: bool) -> libskua::Result<MonitoredFence> {
        let on_failure = match keeps {
            true => OnFailure::Kept,
            false => OnFailure::Lost,
        };
        MonitoredFence::create_for(&self.kernel, initial, on_failure)
    }

    /// Whether the device has failed; makes no system call.
    pub(crate) fn is_lost(&self) -> bool {
        self.life.value() == MonitoredFence::LOST
    }

    /// Bytes by which what is resident for the device exceeds its budget. To ask has the kernel say
    /// so again, when it is so again because of others.
    pub(crate) fn excess(&self) -> Result<u64> {
        let state = self.kernel.state()?;
        Ok(state.resident.saturating_sub(state.budget))
    }

    /// A value, and a fence that has the next one when [`PageTables::wake_sleepers`] is called
    /// after this.
    pub(crate) fn wakes(&self) -> (&MonitoredFence, u64) {
        (&self.life, self.life.value())
    }

    /// Has those who sleep look at what they wait for; called with the fences of the device locked.
    pub(crate) fn wake_sleepers(&self) {
        let (life, wakes) = self.wakes();
        // Refused if the device has failed, which wakes them, too.
        if life.signal(wakes.saturating_add(1)).is_err() {
            let _ = self.kernel.mark_error();
        }
    }

    /// Gives a fence of the device its last value ([`PageTables::reach`]).
    pub(crate) fn end_fence(&self, ending: &MonitoredFence) {
        self.reach(ending, fence::MonitoredFence::END);
    }

    /// Gives a fence of the device a value, unless it has that or is lost: nothing else ends the
    /// waits for it. Without memory for that the device fails, and so they do.
    pub(crate) fn reach(&self, signalled: &MonitoredFence, value: u64) {
        let reached = signalled.signal(value);
        // Refused with one of these if it has it, or if the device has failed.
        let is_over = [Some(Errno::INVAL), Some(Errno::CANCELED)];
        if reached.is_err_and(|error| !is_over.contains(&error.errno())) {
            // If that fails the GPU is gone.
            let _ = self.kernel.mark_error();
        }
    }

    /// Sleeps until an eventfd that does not block was added to, or the kernel has something to say
    /// to a device of the opening, which is passed on.
    pub(crate) fn wait_for_events(&self, kick: &OwnedFd) {
        let mut fds = vec![PollFd::new(kick, PollFlags::IN)];
        // Of a GPU that is gone there is nothing to read.
        if !self.is_lost() {
            fds.push(PollFd::new(self.adapter.libskua(), PollFlags::IN));
        }
        if rustix::event::poll(&mut fds, None).is_err() {
            // The kernel lacks memory, or it is a signal.
            std::thread::yield_now();
        }
        // Nothing to read is no error here.
        let _ = rustix::io::read(kick, &mut [0; 8]);
        self.adapter.read_events();
    }

    /// Maps behind all binds before; it does not wait. INSUFFICIENT_RESOURCES if too many do; as
    /// the kernel.
    pub(crate) fn bind<'a>(&'a self, operation: impl FnOnce(Bind<'a>) -> Bind<'a>) -> Result<()> {
        self.bind_for(true, operation)
    }

    fn bind_for<'a>(
        &'a self,
        own: bool,
        operation: impl FnOnce(Bind<'a>) -> Bind<'a>,
    ) -> Result<()> {
        self.binds.next(own, |point| {
            operation(self.vm.bind())
                .signal(&self.bound, point)
                .submit()
        })
    }

    /// The timeline syncobj whose points are the numbers of binds that are done.
    pub(crate) const fn bound(&self) -> &Syncobj {
        &self.bound
    }

    /// The number of the last bind that all work waits for; does not wait for one under way.
    pub(crate) fn last_map(&self) -> u64 {
        self.binds.mapped()
    }

    /// Has the kernel change what a client has mapped in a range of its own: memory from a byte on,
    /// or nothing. The client says by itself what waits for it.
    pub(crate) fn change(
        &self,
        span: Span,
        to: Option<(&Memory, u64, Access)>,
        signal: Option<(&MonitoredFence, u64)>,
    ) -> Result<()> {
        self.bind_for(false, |mut bind| {
            if let Some((fence, value)) = signal {
                bind = bind.signal_value(fence, value);
            }
            match to {
                Some((memory, offset, access)) => {
                    bind.map(memory.bo(), offset, span.start, span.len(), access)
                }
                None => bind.unmap(span.start, span.len()),
            }
        })
    }

    /// Unmaps what is mapped in a range of a client's, if anything.
    pub(crate) fn unmap(&self, span: Span) -> Result<()> {
        self.change(span, None, None)
    }
}

/// The updates of addresses of a context.
#[derive(Debug)]
pub(crate) struct Updates {
    /// A timeline: point *n* is signalled when the *n*-th is over, done or not. They are over in
    /// order.
    over: Arc<Syncobj>,
    /// The number of the last one.
    last: u64,
    /// The number of the last one that the kernel may hold.
    held: u64,
}

impl Updates {
    /// Of a context that has had none. NO_MEMORY; DEVICE_REMOVED.
    pub(crate) fn new(tables: &PageTables) -> Result<Self> {
        Ok(Self {
            over: Arc::new(Syncobj::create(tables.adapter().libskua())?),
            last: 0,
            held: 0,
        })
    }

    /// Makes the next one, which the kernel may hold if it `may_wait`, or if it may hold one
    /// before. INSUFFICIENT_RESOURCES if too many wait; as the kernel.
    pub(crate) fn bind<'a>(
        &mut self,
        tables: &'a PageTables,
        context: &'a libskua::Context,
        may_wait: bool,
        fill: impl FnOnce(Bind<'a>) -> Bind<'a>,
    ) -> Result<()> {
        let may_be_held = may_wait || self.may_hold();
        let number = self.last + 1;
        let bind = fill(tables.vm.bind().in_order_of(context));
        bind.signal(&self.over, number).submit().map_err(crowded)?;
        self.last = number;
        if may_be_held {
            self.held = number;
        }
        Ok(())
    }

    /// Whether the kernel may hold one.
    pub(crate) fn may_hold(&self) -> bool {
        !self.past(self.held).is_over()
    }

    /// The last one.
    pub(crate) fn last(&self) -> PastUpdate {
        self.past(self.last)
    }

    fn past(&self, number: u64) -> PastUpdate {
        PastUpdate {
            over: self.over.clone(),
            number,
        }
    }
}

/// An update that the kernel has, with all those of its context before it.
#[derive(Clone, Debug)]
pub(crate) struct PastUpdate {
    /// As of its context's [`Updates`].
    over: Arc<Syncobj>,
    /// Its number among them.
    number: u64,
}

impl PastUpdate {
    /// Whether it changes nothing from now on.
    pub(crate) fn is_over(&self) -> bool {
        self.number == 0
            || match self.over.query() {
                Ok(last) => last >= self.number,
                Err(error) => matches!(error.kind(), ErrorKind::Gone | ErrorKind::Dead),
            }
    }

    /// Whether both are of one context.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.over, &other.over)
    }
}

/// The number of the last bind.
#[derive(Debug, Default)]
struct Binds {
    /// Locked over a bind, so that points come in order.
    last: Mutex<u64>,
    /// The number of the last one that all work waits for; can be asked while another is under way.
    mapped: AtomicU64,
}

impl Binds {
    /// Makes the next bind. Work that is submitted later waits for it if it is the library's `own`,
    /// and otherwise if the client says so.
    fn next(&self, own: bool, bind: impl FnOnce(u64) -> libskua::Result<()>) -> Result<()> {
        let mut last = lock(&self.last);
        let point = *last + 1;
        bind(point).map_err(crowded)?;
        *last = point;
        if own {
            self.mapped.store(point, Ordering::Release);
        }
        Ok(())
    }

    fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::status::Status;

    #[test]
    fn a_bind_under_way_keeps_nobody_from_asking_for_the_last() {
        let binds = Arc::new(Binds::default());
        let during = |expected| {
            // In a thread, which may be stuck.
            let (answer, answers) = mpsc::channel();
            let asked = binds.clone();
            std::thread::spawn(move || answer.send(asked.mapped()));
            let last = answers.recv_timeout(Duration::from_secs(60));
            assert_eq!(last, Ok(expected));
            Ok(())
        };
        assert_eq!(binds.next(true, |_| during(0)), Ok(()));
        assert_eq!(binds.next(true, |_| during(1)), Ok(()));
        let refused = binds.next(true, |_| Err(libskua::Error::NoDevice));
        assert_eq!(refused, Err(Status::OBJECT_NAME_INVALID));
        assert_eq!(binds.next(false, |_| during(2)), Ok(()));
        assert_eq!(binds.next(true, |_| during(2)), Ok(()));
        assert_eq!(binds.mapped(), 4);
    }

    #[test]
    fn binds_that_wait_are_counted() {
        let full = |_| {
            let (name, errno) = ("SKUA_VM_BIND", Errno::NOSPC);
            Err(libskua::Error::Ioctl { name, errno })
        };
        let refused = Binds::default().next(true, full);
        assert_eq!(refused, Err(Status::INSUFFICIENT_RESOURCES));
    }
}
