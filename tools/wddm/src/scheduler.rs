// SPDX-License-Identifier: MIT

//! The contexts and fences of a device.
//!
//! Work goes to the kernel at once, with the values that it waits for and signals: what waits for a
//! value that nobody has submitted the kernel holds. Each context has a fence of its own, its
//! **progress**: packet *n* signals value *n*. By it everybody tells, without a system call, what
//! is done ([`crate::Allocation::map`]).
//!
//! ```text
//! submit ─▶ SKUA_SUBMIT {waits F≥5; commands; signals G=2, progress=n} ─▶ held ─▶ engine ─▶ values
//! update ─▶ VM_BIND {waits F≥5; operations; signals F=6, over=n} ─▶ held ─▶ page tables ─▶ values
//! ```
//!
//! A context that was destroyed is kept until the work that the kernel has of it is over, unless
//! something of it may be held, which would wait on. Its progress is signalled as a whole then.
//!
//! Locks: `order`, which each context has, is held over its submissions, so that they are accepted
//! in order; under it what has values of their fences [promised](Fence::promise); under that
//! `state`, which guards everything else here, is locked in turn, and the usage of allocations.
//! Under `state` only the views of fences are locked, and what a bind needs. A submission may wait
//! for room with the first two locked: so who destroys the context, which would make room, leaves
//! the rest to it. With any other lock held nothing waits for the GPU.

use std::{
    collections::{hash_map::Entry, HashMap},
    os::fd::{AsFd, OwnedFd},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc, Mutex, MutexGuard, TryLockError,
    },
    time::Duration,
};

use libskua::{ClientDevice, ContextStatus, Deadline, DeviceStatus, ErrorKind, Residency};
use rustix::io::Errno;

use crate::{
    adapter::{crowded, Adapter},
    device::DeviceState,
    fence::{Fence, MonitoredFence, Signallers},
    gpu_va::Update,
    lock,
    memory::{Memory, ValueView},
    page_tables::{PageTables, PastUpdate, Updates},
    status::{Result, Status},
    trim::TrimCallbacks,
    usage::{Access, Usage},
};

/// Waits of a context that are kept for its next submission.
const MAX_WAITS: usize = 64;
/// How long what the kernel has no memory for is left alone.
const RETRY: Duration = Duration::from_millis(20);

/// A fence, and a value of it.
pub(crate) type Point = (Arc<Fence>, u64);

/// What the scheduler knows of a context.
#[derive(Debug)]
struct Queue {
    /// The kernel's context, in which its packets run; who submits has it, too.
    raw: Arc<libskua::Context>,
    /// How important its work is, among that of all and among that of its process.
    priorities: Priorities,
    /// As in `order`.
    progress: Arc<Fence>,
    /// What is submitted in its order.
    order: Arc<Mutex<Order>>,
    /// Whether it is gone as soon as nobody has its order locked.
    is_destroyed: bool,
}

/// The work of a context, locked by who adds to it.
#[derive(Debug)]
struct Order {
    /// Its value is the number of the last packet that is done.
    progress: Arc<Fence>,
    /// What the next packet waits for.
    waits: Vec<Point>,
    /// What packets before it waited for, as far as the kernel may hold them.
    holds: Vec<Point>,
    /// The last change of the address space that its work waits for.
    bound: u64,
    /// Its updates of addresses, from the first one on.
    updates: Option<Updates>,
}

/// Among whose work a context's has a priority.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Among {
    /// The work of all processes.
    All,
    /// That of its own process, where that of all is the same.
    Process,
}

/// The priorities of a context, -7 to 7.
#[derive(Debug, Default)]
struct Priorities {
    /// Among the work of all processes.
    all: i32,
    /// Among the work of its own process, where that of all is the same.
    process: i32,
}

/// A context that was destroyed.
#[derive(Debug)]
struct Gone {
    /// Kept for its work to end, and to tell how.
    raw: Option<Arc<libskua::Context>>,
    /// Its progress, and the value that that has when all is over.
    last: Point,
    /// Its last update of addresses, until all is cancelled.
    update: Option<PastUpdate>,
}

/// What is under [`Scheduler::state`].
#[derive(Debug)]
struct State {
    /// Changes once, and once more to [`DeviceState::Destroyed`].
    execution: DeviceState,
    /// The contexts that are not gone, by their numbers.
    queues: HashMap<u64, Queue>,
    /// Contexts that were destroyed, until their work is over.
    gone: Vec<Gone>,
    /// The fences that are not destroyed, by their numbers.
    fences: HashMap<u64, Arc<Fence>>,
}

/// A device's contexts and fences.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Contexts and fences; the head of this file says what is locked under it.
    state: Mutex<State>,
    /// Not active, for a look without the lock.
    ended: AtomicBool,
    /// Number of the next context or fence.
    next: AtomicU64,
    /// A device of the kernel's that goes when this is destroyed, once an eventfd is to learn that.
    life: Mutex<Option<ClientDevice>>,
    /// Whom it tells that it is to trim.
    pub(crate) trims: Arc<TrimCallbacks>,
    /// What the work reaches; dropped when the contexts are.
    tables: Arc<PageTables>,
}

impl Scheduler {
    pub(crate) fn new(adapter: &Adapter) -> Result<Arc<Self>> {
        let tables = PageTables::create(adapter)?;
        let trims = TrimCallbacks::new()?;
        Ok(Arc::new(Self {
            state: Mutex::new(State {
                execution: DeviceState::Active,
                queues: HashMap::new(),
                gone: Vec::new(),
                fences: HashMap::new(),
            }),
            ended: AtomicBool::new(false),
            next: AtomicU64::new(1),
            life: Mutex::default(),
            trims,
            tables,
        }))
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        self.tables.adapter()
    }

    pub(crate) const fn tables(&self) -> &Arc<PageTables> {
        &self.tables
    }

    /// Fails unless the device takes work; makes no system call.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.ended.load(Ordering::Acquire) {
            return match self.tables.is_lost() {
                true => Err(Status::DEVICE_REMOVED),
                false => Ok(()),
            };
        }
        self.alive().map(drop)
    }

    fn alive(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        self.check(&state)?;
        Ok(state)
    }

    fn check(&self, state: &State) -> Result<()> {
        match state.execution {
            DeviceState::Destroyed => Err(Status::INVALID_HANDLE),
            DeviceState::Active if !self.tables.is_lost() => Ok(()),
            _ => Err(Status::DEVICE_REMOVED),
        }
    }

    // Fences

    pub(crate) fn create_fence(
        &self,
        make: impl FnOnce(&PageTables) -> libskua::Result<libskua::MonitoredFence>,
        by: Signallers,
    ) -> Result<Arc<Fence>> {
        self.check_alive()?;
        let fence = self.new_fence(make, by)?;
        let mut state = self.alive()?;
        state.fences.insert(fence.id, fence.clone());
        Ok(fence)
    }

    fn new_fence(
        &self,
        make: impl FnOnce(&PageTables) -> libskua::Result<libskua::MonitoredFence>,
        by: Signallers,
    ) -> Result<Arc<Fence>> {
        let raw = make(&self.tables).map_err(crowded)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Fence::new(id, raw, by)))
    }

    pub(crate) fn share_fence(&self, fence: &Fence) -> Result<OwnedFd> {
        let _state = lock(&self.state);
        fence.share()
    }

    pub(crate) fn destroy_fence(&self, fence: &Arc<Fence>) {
        let mut state = lock(&self.state);
        if state.fences.remove(&fence.id).is_some() {
            fence.end(&self.tables);
            if let Some(view) = fence.take_view() {
                view.retire(Self::uses_of(&state));
            }
            // Others have it, or its end comes behind what was promised before.
            if !fence.reached(MonitoredFence::END) {
                self.tables.wake_sleepers();
            }
        }
    }

    /// A handle of a fence by which waits end when the device is destroyed, whoever has the fence.
    pub(crate) fn mortal(&self, fence: &Fence) -> Result<libskua::MonitoredFence> {
        let device = {
            let mut life = lock(&self.life);
            // Who destroys the device says so before it takes this lock.
            self.check_alive()?;
            match &*life {
                Some(device) => device.clone(),
                None => {
                    let device =
                        ClientDevice::create(self.adapter().libskua(), Residency::Implicit);
                    life.insert(device.map_err(crowded)?).clone()
                }
            }
        };
        let descriptor = fence.raw.export().map_err(crowded)?;
        libskua::MonitoredFence::import_for(&device, descriptor.as_fd()).map_err(crowded)
    }

    /// Where the GPU reads a fence's value, from now on until it is destroyed.
    pub(crate) fn value_va(&self, fence: &Fence) -> Result<u64> {
        self.check_alive()?;
        if let Some(va) = fence.value_va() {
            return Ok(va);
        }
        // Binds, which nobody else shall wait for.
        let view = ValueView::create(&self.tables, &fence.raw)?;
        let (shown, spare) = match self.alive() {
            Ok(_state) if !fence.is_closed() => {
                let (va, spare) = fence.show(view);
                (Ok(va), spare)
            }
            alive => (alive.and(Err(Status::INVALID_HANDLE)), Some(view)),
        };
        if let Some(view) = spare {
            view.retire(Vec::new());
        }
        shown
    }

    pub(crate) fn signal_from_cpu(&self, fence: &Arc<Fence>, value: u64) -> Result<()> {
        self.check_alive()?;
        Self::check_signal(fence, value)
            .and_then(|()| Ok(fence.raw.signal(value)?))
            .map_err(|status| match fence.is_closed() {
                true => Status::INVALID_HANDLE,
                false => status,
            })
            .map_err(|status| self.verdict(lock(&self.state), status))
    }

    /// Whether a value can be signalled, as far as that is known here.
    fn check_signal(fence: &Fence, value: u64) -> Result<()> {
        if fence.is_closed() {
            return Err(Status::INVALID_HANDLE);
        }
        if fence.paging || !fence.accepts(value) {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(())
    }

    // Contexts

    pub(crate) fn create_context(&self, node: u32) -> Result<u64> {
        // First: the kernel counts those whose work is over as long as they are here.
        self.alive()?.prune();
        let ordinal = usize::try_from(node).map_err(|_| Status::INVALID_PARAMETER)?;
        let engines = self.adapter().libskua().engines();
        let engine = *engines.get(ordinal).ok_or(Status::INVALID_PARAMETER)?;
        let raw = libskua::Context::create(self.tables.vm(), engine).map_err(crowded)?;
        let progress = self.new_fence(|tables| tables.fence(0, false), Signallers::Client)?;
        let id = progress.id;
        progress.queued.store(0, Ordering::Release);
        let queue = Queue {
            raw: Arc::new(raw),
            priorities: Priorities::default(),
            progress: progress.clone(),
            order: Arc::new(Mutex::new(Order {
                progress,
                waits: Vec::new(),
                holds: Vec::new(),
                bound: 0,
                updates: None,
            })),
            is_destroyed: false,
        };
        self.alive()?.queues.insert(id, queue);
        Ok(id)
    }

    /// Says how important the work of a context is.
    pub(crate) fn set_priority(&self, id: u64, of: Among, priority: i32) -> Result<()> {
        let mut state = self.alive()?;
        let queue = state.queue(id)?;
        match of {
            Among::All => {
                queue.raw.set_priority(priority)?;
                queue.priorities.all = priority;
            }
            Among::Process => {
                queue.raw.set_in_process_priority(priority)?;
                queue.priorities.process = priority;
            }
        }
        Ok(())
    }

    /// What was said of that last, or 0.
    pub(crate) fn priority(&self, id: u64, of: Among) -> Result<i32> {
        let mut state = self.alive()?;
        let queue = state.queue(id)?;
        Ok(match of {
            Among::All => queue.priorities.all,
            Among::Process => queue.priorities.process,
        })
    }

    /// Destroys a context: what the kernel has is left to end, unless something of it may be held.
    pub(crate) fn destroy_context(&self, id: u64) {
        let mut state = lock(&self.state);
        state.prune();
        state.destroy(id, &self.tables);
    }

    /// Has something done in the order of a context that signals these values, with nothing locked
    /// that other calls need.
    fn in_order(
        &self,
        context: u64,
        signals: &[(&Arc<Fence>, u64)],
        act: impl FnOnce(&libskua::Context, &mut Order) -> Result<()>,
    ) -> Result<()> {
        let order = self.alive()?.queue(context)?.order.clone();
        let mut order = lock(&order);
        let promising = Fence::promise(signals);
        let check = || {
            let mut signals = signals.iter();
            signals.try_for_each(|(fence, value)| Self::check_signal(fence, *value))
        };
        let attempt = || {
            // It may have been destroyed meanwhile.
            let raw = self.alive()?.queue(context)?.raw.clone();
            check()?;
            // And so may a fence be from here on.
            act(&raw, &mut order).map_err(|status| check().err().unwrap_or(status))
        };
        let result = attempt();
        drop(promising);
        let mut state = lock(&self.state);
        state.release(context, order, &self.tables);
        result.map_err(|status| self.verdict(state, status))
    }

    /// Hands commands, and signals behind them, to the kernel; all or nothing.
    pub(crate) fn submit(
        &self,
        context: u64,
        commands: Option<(u64, u32)>,
        signals: &[(&Arc<Fence>, u64)],
        uses: &[(Arc<Mutex<Usage>>, Access)],
    ) -> Result<()> {
        self.in_order(context, signals, |raw, order| {
            order.send(raw, &self.tables, commands, signals)?;
            let (progress, queued) = order.progress.last();
            for (usage, access) in uses {
                lock(usage).record(&progress, queued, *access);
            }
            Ok(())
        })
    }

    /// Lets what is queued in a context from now on wait for values.
    pub(crate) fn wait_from_gpu(&self, context: u64, waits: &[Point]) -> Result<()> {
        self.in_order(context, &[], |raw, order| {
            if waits.iter().any(|(fence, _)| fence.is_closed()) {
                return Err(Status::INVALID_HANDLE);
            }
            if order.waits.len() >= MAX_WAITS {
                order.send(raw, &self.tables, None, &[])?;
            }
            add(&mut order.waits, waits.iter().cloned());
            Ok(())
        })
    }

    /// What is queued now in any context.
    fn uses_of(state: &State) -> Vec<Point> {
        let queues = state.queues.values();
        let queued = queues.map(|queue| queue.progress.last());
        let gone = state.gone.iter().map(|gone| gone.last.clone());
        let all = queued.chain(gone);
        all.filter(|(fence, value)| !fence.is_done(*value))
            .collect()
    }

    /// Destroys memory behind everything that is queued now.
    pub(crate) fn destroy_memory(&self, memory: Arc<Memory>) {
        let uses = Self::uses_of(&lock(&self.state));
        memory.destroy(Some(uses));
    }

    // Updates of addresses

    /// Has the kernel do an update of addresses, which `make` makes, in the order of a context:
    /// behind a value of a fence, if it `waits`, and before the next one, which it signals.
    pub(crate) fn update(
        &self,
        context: u64,
        make: impl FnOnce() -> Result<Update>,
        fence: Option<(&Arc<Fence>, u64)>,
        waits: bool,
    ) -> Result<()> {
        self.alive()?.queue(context)?;
        // Looks at allocations, which look whether the device is alive.
        let update = make()?;
        let signal = match fence {
            Some((_, u64::MAX)) => return Err(Status::INVALID_PARAMETER),
            Some((fence, value)) => Some((fence, value + 1)),
            None => None,
        };
        let wait = fence.filter(|_| waits);
        let [wait, next] = [wait, signal].map(|at| at.map(|(fence, value)| (&**fence, value)));
        self.in_order(context, signal.as_slice(), |raw, order| {
            let updates = match &mut order.updates {
                Some(updates) => updates,
                none => none.insert(Updates::new(&self.tables)?),
            };
            update.submit(&self.tables, (raw, updates), wait, next)
        })
    }

    // Errors, and the end

    /// Why the device takes no work, if it does not.
    pub(crate) fn execution(&self) -> DeviceState {
        let mut state = lock(&self.state);
        // It has failed before its fences say so.
        self.find_error_locked(&mut state);
        state.execution
    }

    /// The kernel has refused something or ended a wait: finds out whether the device has failed.
    pub(crate) fn find_error(&self) {
        self.find_error_locked(&mut lock(&self.state));
    }

    fn find_error_locked(&self, state: &mut State) {
        if state.execution == DeviceState::Active {
            let cause = self.cause(state);
            self.set_execution(state, cause);
        }
    }

    fn set_execution(&self, state: &mut State, execution: DeviceState) {
        state.execution = execution;
        let ended = execution != DeviceState::Active;
        self.ended.store(ended, Ordering::Release);
    }

    /// The status of a call that failed with this one, on a device that may have failed.
    fn verdict(&self, mut state: MutexGuard<'_, State>, status: Status) -> Status {
        self.find_error_locked(&mut state);
        self.check(&state).err().unwrap_or(status)
    }

    /// What the kernel says of the device.
    fn cause(&self, state: &State) -> DeviceState {
        match self.tables.kernel().state().map(|state| state.status) {
            Ok(DeviceStatus::Active) => DeviceState::Active,
            Ok(DeviceStatus::TimedOut) => DeviceState::Hung,
            Ok(DeviceStatus::Lost) => DeviceState::Stopped,
            Ok(DeviceStatus::Reset) => DeviceState::Reset,
            Ok(DeviceStatus::OutOfMemory) => DeviceState::OutOfMemory,
            Ok(DeviceStatus::Faulted) => Self::fault(state),
            Err(error) => match error.kind() {
                ErrorKind::Gone | ErrorKind::Dead => DeviceState::Stopped,
                _ => DeviceState::Active,
            },
        }
    }

    /// The fault of one of the contexts, also of one that is destroyed.
    fn fault(state: &State) -> DeviceState {
        let gone = state.gone.iter().filter_map(|gone| gone.raw.as_ref());
        let queues = state.queues.values().map(|queue| &queue.raw);
        let fault = queues
            .chain(gone)
            .find_map(|raw| match raw.state().ok()?.status {
                ContextStatus::Faulted(fault) => Some(DeviceState::of_fault(fault)),
                _ => None,
            });
        fault.unwrap_or(DeviceState::Stopped)
    }

    /// Puts the device in error, in the kernel as well.
    pub(crate) fn mark_as_error(&self) {
        let mut state = lock(&self.state);
        if state.execution == DeviceState::Active {
            // If that fails the GPU is gone, and the device with it.
            let _ = self.tables.kernel().mark_error();
            // The kernel may have had another reason before.
            self.find_error_locked(&mut state);
        }
    }

    /// Begins to destroy the device: nothing is accepted any more, what has not started is
    /// cancelled, who sleeps is woken, and what runs is waited for, or is just being submitted.
    pub(crate) fn shut_down(&self) {
        let mut state = lock(&self.state);
        self.set_execution(&mut state, DeviceState::Destroyed);
        let orders = state.orders();
        let contexts: Vec<_> = state.queues.keys().copied().collect();
        for context in contexts {
            state.destroy(context, &self.tables);
        }
        for gone in &mut state.gone {
            gone.end(&self.tables);
        }
        // Where the GPU sees their values, too: work that waits there goes on.
        for fence in state.fences.values() {
            fence.end(&self.tables);
        }
        self.tables.wake_sleepers();
        drop(state);
        drop(lock(&self.life).take());
        orders.iter().for_each(|order| drop(lock(order)));
        let uses = Self::uses_of(&lock(&self.state));
        self.wait_for_all(&uses);
    }

    /// Ends what the device has beside work; nothing of it runs any more.
    pub(crate) fn stop(&self) {
        self.trims.stop();
        let state = lock(&self.state);
        let views: Vec<_> = state
            .fences
            .values()
            .filter_map(|fence| fence.take_view())
            .collect();
        drop(state);
        for view in views {
            view.retire(Vec::new());
        }
        self.tables.sweep_all();
    }

    /// Waits until everything that is queued now is done, well or not, or was cancelled.
    pub(crate) fn settle(&self) {
        let state = lock(&self.state);
        let (orders, gone) = (state.orders(), state.gone.iter());
        let mut uses: Vec<_> = gone.map(|gone| gone.last.clone()).collect();
        drop(state);
        // Behind what is just being submitted, and may be refused yet.
        uses.extend(orders.iter().map(|order| lock(order).progress.last()));
        self.wait_for_all(&uses);
    }

    /// The end of the device ends this, too.
    fn wait_for_all(&self, uses: &[Point]) {
        for uses in uses.chunks(crate::fence::MAX_AT_ONCE) {
            let waits: Vec<_> = uses.iter().map(|(f, value)| (&f.raw, *value)).collect();
            let how = libskua::WaitFor::All;
            persist(|| libskua::MonitoredFence::wait_many(&waits, how, Deadline::NEVER));
        }
    }
}

impl State {
    /// Forgets contexts whose work is over.
    fn prune(&mut self) {
        // While it is not known why the device failed, its contexts are kept to tell.
        let known = self.execution != DeviceState::Active;
        self.gone.retain(|Gone { last, update, .. }| {
            let (fence, value) = last;
            let is_over = match known {
                true => fence.reached(*value),
                false => fence.is_done(*value),
            };
            !is_over || update.as_ref().is_some_and(|update| !update.is_over())
        });
    }

    /// A context that is not destroyed.
    fn queue(&mut self, id: u64) -> Result<&mut Queue> {
        let queue = self.queues.get_mut(&id);
        let queue = queue.filter(|queue| !queue.is_destroyed);
        queue.ok_or(Status::INVALID_HANDLE)
    }

    /// The orders of all contexts.
    fn orders(&self) -> Vec<Arc<Mutex<Order>>> {
        let queues = self.queues.values();
        queues.map(|queue| queue.order.clone()).collect()
    }

    /// Destroys a context, now or when what is just being submitted is.
    fn destroy(&mut self, id: u64, tables: &PageTables) {
        let Ok(queue) = self.queue(id) else {
            return;
        };
        queue.is_destroyed = true;
        let order = queue.order.clone();
        match order.try_lock() {
            Ok(order) => self.release(id, order, tables),
            Err(TryLockError::Poisoned(order)) => self.release(id, order.into_inner(), tables),
            // Who has it locked releases it.
            Err(TryLockError::WouldBlock) => (),
        };
    }

    /// Unlocks the order of a context; if that is destroyed, it is gone.
    fn release(&mut self, id: u64, order: MutexGuard<'_, Order>, tables: &PageTables) {
        let Entry::Occupied(queue) = self.queues.entry(id) else {
            return;
        };
        if !queue.get().is_destroyed {
            return;
        }
        let queue = queue.remove();
        let holds_updates = order.updates.as_ref().is_some_and(Updates::may_hold);
        let mut holds = order.holds.iter();
        let may_hold = holds.any(|(fence, value)| !fence.reached(*value)) || holds_updates;
        let mut gone = Gone {
            raw: Some(queue.raw),
            last: order.progress.last(),
            update: order.updates.as_ref().map(Updates::last),
        };
        if may_hold || self.execution == DeviceState::Destroyed {
            gone.end(tables);
        }
        self.gone.push(gone);
    }
}

impl Gone {
    /// Cancels what has not started.
    fn end(&mut self, tables: &PageTables) {
        self.raw = None;
        let (progress, last) = &mut self.last;
        // Comes behind what was promised and is not withdrawn.
        tables.end_fence(&progress.raw);
        *last = MonitoredFence::END;
        progress.queued.store(*last, Ordering::Release);
        self.update = None;
    }
}

impl Order {
    /// Hands a packet to the kernel, with all that it waits for. INSUFFICIENT_RESOURCES if too many
    /// are queued.
    fn send(
        &mut self,
        raw: &libskua::Context,
        tables: &PageTables,
        commands: Option<(u64, u32)>,
        signals: &[(&Arc<Fence>, u64)],
    ) -> Result<()> {
        for points in [&mut self.waits, &mut self.holds] {
            points.retain(|(fence, value)| !fence.reached(*value));
        }
        // What is mapped by now. Later packets of the context come behind it anyway.
        let bound = tables.last_map();
        let mut submission = raw.submission();
        for (fence, value) in &self.waits {
            submission = submission.wait_value(&fence.raw, *value);
        }
        if bound > self.bound {
            submission = submission.wait(tables.bound(), bound);
        }
        if let Some((va, bytes)) = commands {
            submission = submission.buffer(va, bytes);
        }
        for (fence, value) in signals {
            submission = submission.signal_value(&fence.raw, *value);
        }
        // First: what it uses and is destroyed meanwhile waits for it.
        let point = self.progress.queued.fetch_add(1, Ordering::AcqRel) + 1;
        let submission = submission.signal_value(&self.progress.raw, point);
        if let Err(error) = submission.submit() {
            self.progress.queued.store(point - 1, Ordering::Release);
            return Err(crowded(error));
        }
        add(&mut self.holds, self.waits.drain(..));
        self.bound = bound;
        Ok(())
    }
}

/// Adds points, of each fence the largest.
fn add(points: &mut Vec<Point>, others: impl Iterator<Item = Point>) {
    for (fence, value) in others {
        match points.iter_mut().find(|(f, _)| f.id == fence.id) {
            Some((_, largest)) => *largest = value.max(*largest),
            None => points.push((fence, value)),
        }
    }
}

/// Waits, and again as long as the kernel has no memory for that: what is waited for is not over
/// then. Any other error says that it is, with its device.
fn persist<T>(mut wait: impl FnMut() -> libskua::Result<T>) {
    while wait().is_err_and(|error| error.errno() == Some(Errno::NOMEM)) {
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use libskua::Error;

    use super::*;

    #[test]
    fn a_wait_that_the_kernel_has_no_memory_for_is_not_over() {
        let refused = |errno| {
            Err(Error::Ioctl {
                name: "SKUA_FENCE_WAIT",
                errno,
            })
        };
        for end in [Ok(0), refused(Errno::NODEV), refused(Errno::IO)] {
            let mut answers = vec![end, refused(Errno::NOMEM), refused(Errno::NOMEM)];
            persist(|| answers.pop().expect("nobody waits for what is over"));
            assert!(answers.is_empty(), "{answers:?}");
        }
    }
}
