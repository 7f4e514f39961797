// SPDX-License-Identifier: MIT

//! The order of a device's work, and what happens when it ends.
//!
//! Each context has a **queue** of packets: work, and waits for fences. A packet goes to the kernel
//! as soon as all before it has gone and the values that it waits for are submitted, which means
//! that the kernel has a fence for them and orders the rest by itself. Until then it stays here,
//! because the kernel takes no wait for a value that nobody has submitted (and could not: such a
//! wait has no end that can be promised). What submits the value, on whichever thread, goes on
//! with the queues that wait for it.
//!
//! ```text
//!   submit ─▶ queue ─▶ [wait F≥5] [work 1, signal G=2] [work 2] ──pump──▶ SKUA_SUBMIT ─▶ engine
//!                          │                                                                │
//!     signal F=5 ──────────┘                     progress of the context ◀── SIGNAL ────────┘
//! ```
//!
//! Each context has a fence of its own, its **progress**: packet *n* signals value *n* behind its
//! commands. By it everybody tells, without a system call, what is done
//! ([`crate::Allocation::map`]).
//!
//! The **keeper** ([`keeper`]) is the device's only thread. It notices that work failed, signals
//! for the CPU what must come after the GPU's signals, and gives back what was destroyed while
//! queued work could use it.
//!
//! A packet that was accepted is done, or the device is in error. All that it needs of this library
//! is made before it is queued. If the kernel has no memory for a packet that was held back, the
//! keeper tries again; if it refuses one for good, the device goes to error.
//!
//! Locks: `state` guards everything here, and is held over the kernel's submission so that points
//! come in order. Under it only the usage of allocations and the sleepers of fences are locked.
//! With a lock held nothing waits for the GPU, and nothing changes the address space.

mod keeper;
mod slots;
mod uevents;

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc, Mutex, MutexGuard,
    },
};

use libskua::{ContextStatus, DeviceStatus, Error, ErrorKind};
use rustix::event::EventfdFlags;

pub(crate) use self::keeper::Point;
use self::{
    keeper::{fire, CellGuard, Dying, Event, Rest},
    slots::{Slot, Slots},
};
use crate::{
    adapter::{crowded, Adapter},
    device::DeviceState,
    fence::{Cell, Fence, MonitoredFence, Page},
    gpu_va::Update,
    lock,
    page_tables::PageTables,
    status::{Result, Status},
    trim::TrimCallbacks,
    usage::{Access, Usage},
};

/// The most waits that a kernel submission is given; below any limit of a driver.
const MAX_WAITS: usize = 60;

/// A packet of work: commands, a signal, or both.
#[derive(Debug)]
struct Run {
    /// GPU virtual address and bytes of the client's commands.
    commands: Option<(u64, u32)>,
    /// The fence and value that the packet signals behind its commands.
    signal: Option<(Arc<Fence>, u64)>,
    /// Its number in the context.
    point: u64,
    /// Where the commands go that signal.
    slot: Slot,
}

#[derive(Debug)]
enum Packet {
    Wait(Arc<Fence>, u64),
    /// Only in the paging context of a context.
    Update(Update),
    Run(Run),
}

/// Why a packet did not go to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The context takes no more work, or the GPU is gone.
    Removed,
    /// There is no memory for it now.
    Later(Status),
    /// Nothing will change this.
    Never(Status),
}

impl From<Status> for Refusal {
    /// Of a bind, whose error number is known by its status alone.
    fn from(status: Status) -> Self {
        match status {
            Status::DEVICE_REMOVED | Status::OBJECT_NAME_INVALID => Self::Removed,
            Status::NO_MEMORY | Status::GRAPHICS_NO_VIDEO_MEMORY => Self::Later(status),
            _ => Self::Never(status),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Gone | ErrorKind::Dead => Self::Removed,
            ErrorKind::NoMemory | ErrorKind::NoSpace => Self::Later(error.into()),
            _ => Self::Never(error.into()),
        }
    }
}

/// A context: what it has to do, and how far it is.
#[derive(Debug)]
struct Queue {
    /// Taken away when the device goes to error, which cancels what has not started.
    raw: Option<libskua::Context>,
    /// Its value is the number of the last packet that is done, and what is submitted of it that of
    /// the last one that the kernel has.
    progress: Arc<Fence>,
    /// Number of the last packet.
    queued: u64,
    /// Those that the kernel does not have yet, in order.
    packets: VecDeque<Packet>,
    /// What the next packet that goes to the kernel waits for.
    waits: Vec<(Arc<Fence>, u64)>,
    /// The library's own commands.
    slots: Slots,
    /// The point that the keeper watches.
    watched: Option<u64>,
    /// The last change of the address space that its work waits for.
    bound: u64,
    /// The last change that it has made itself, which what follows waits for.
    updated: u64,
    /// Where `progress` has its value.
    _cell: CellGuard,
}

/// A fence that is not destroyed, and who uses it.
#[derive(Debug)]
struct Line {
    /// Also held by waits under way.
    fence: Arc<Fence>,
    /// The context whose work signals the last value that was submitted; none if the CPU did.
    signaller: Option<u64>,
    /// Contexts whose first packet waits until a larger value is submitted.
    parked: Vec<u64>,
    /// Where `fence` has its value.
    cell: CellGuard,
}

#[derive(Debug)]
struct State {
    /// Changes once, and once more to [`DeviceState::Destroyed`].
    execution: DeviceState,
    /// The contexts that are not destroyed, by their numbers.
    queues: HashMap<u64, Queue>,
    /// The fences that are not destroyed, by their numbers.
    lines: HashMap<u64, Line>,
    /// Values that the CPU signals when the GPU has signalled the smaller ones, by the fence's
    /// number. What signals a larger one is held back until then.
    late: HashMap<u64, u64>,
    /// What is destroyed and may still be used.
    dying: Vec<Dying>,
    /// Whom to tell by an eventfd, and of what.
    events: Vec<Event>,
    /// Contexts with a packet that the kernel had no memory for.
    refused: Vec<u64>,
    /// There was no memory for something: the keeper tries again after a while.
    again: bool,
    /// The device is destroyed; the keeper ends when nothing runs any more.
    stopping: bool,
}

/// A device's queues and fences.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// All queues and fences.
    state: Mutex<State>,
    /// Not active, for a look without the lock.
    ended: AtomicBool,
    /// Those that no fence uses.
    cells: Arc<Mutex<Vec<Cell>>>,
    /// Number of the next context or fence.
    next: AtomicU64,
    /// An eventfd: makes the keeper look at everything.
    kick: OwnedFd,
    /// The kernel has said that the device is to trim.
    trimmed: AtomicBool,
    /// Whom the keeper tells that.
    pub(crate) trims: TrimCallbacks,
    /// What the work reaches; dropped when the contexts are.
    tables: Arc<PageTables>,
}

impl Scheduler {
    pub(crate) fn new(adapter: &Adapter) -> Result<Self> {
        Ok(Self {
            tables: PageTables::create(adapter)?,
            trimmed: AtomicBool::new(false),
            trims: TrimCallbacks::default(),
            state: Mutex::new(State {
                execution: DeviceState::Active,
                queues: HashMap::new(),
                lines: HashMap::new(),
                dying: Vec::new(),
                late: HashMap::new(),
                events: Vec::new(),
                refused: Vec::new(),
                again: false,
                stopping: false,
            }),
            ended: AtomicBool::new(false),
            cells: Arc::default(),
            next: AtomicU64::new(1),
            kick: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(Status::from_errno)?,
        })
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        self.tables.adapter()
    }

    pub(crate) const fn tables(&self) -> &Arc<PageTables> {
        &self.tables
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Fails unless the device takes work.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(match lock(&self.state).execution {
            DeviceState::Destroyed => Status::INVALID_HANDLE,
            _ => Status::DEVICE_REMOVED,
        })
    }

    fn alive(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        match state.execution {
            DeviceState::Active => Ok(state),
            DeviceState::Destroyed => Err(Status::INVALID_HANDLE),
            _ => Err(Status::DEVICE_REMOVED),
        }
    }

    pub(crate) fn execution(&self) -> DeviceState {
        lock(&self.state).execution
    }

    // Fences

    /// Takes a cell for a new fence; called with no lock held.
    fn cell(&self) -> Result<CellGuard> {
        let free = lock(&self.cells).pop();
        let cell = match free {
            Some(cell) => cell,
            None => {
                let page = Arc::new(Page::create(&self.tables)?);
                let cell = |index| Cell {
                    page: page.clone(),
                    index,
                };
                lock(&self.cells).extend((1..Page::VALUES).rev().map(cell));
                cell(0)
            }
        };
        Ok(CellGuard {
            cell,
            free: self.cells.clone(),
        })
    }

    fn new_fence(&self, initial: u64, paging: bool) -> Result<(Arc<Fence>, CellGuard)> {
        let guard = self.cell()?;
        let cell = guard.cell.clone();
        let fence = Fence::new(self.number(), self.adapter(), cell, initial, paging)?;
        Ok((Arc::new(fence), guard))
    }

    pub(crate) fn create_fence(&self, initial: u64, paging: bool) -> Result<Arc<Fence>> {
        let (fence, cell) = self.new_fence(initial, paging)?;
        let line = Line {
            fence: fence.clone(),
            signaller: None,
            parked: Vec::new(),
            cell,
        };
        self.alive()?.lines.insert(fence.id, line);
        Ok(fence)
    }

    pub(crate) fn destroy_fence(&self, fence: &Arc<Fence>) {
        let mut state = lock(&self.state);
        let Some(line) = state.lines.remove(&fence.id) else {
            return;
        };
        state.late.remove(&fence.id);
        fence.closed.store(true, Ordering::Release);
        Self::release(fence);
        self.retire(
            &mut state,
            Dying {
                uses: vec![(fence.clone(), fence.submitted())],
                memory: Vec::new(),
                rest: Rest::Cell(line.cell),
            },
        );
        self.go_on(&mut state, line.parked);
    }

    /// Wakes who sleeps until a fence that is lost has a value.
    fn release(fence: &Fence) {
        // The kernel keeps it after what is submitted. Without memory for it they sleep until their
        // time is up; if the GPU is gone, the kernel has signalled everything that was submitted.
        let _ = fence.syncobj.signal(MonitoredFence::LOST);
        fence.wake();
    }

    pub(crate) fn signal_from_cpu(&self, fence: &Arc<Fence>, value: u64) -> Result<()> {
        let mut state = self.alive()?;
        Self::check_signal(&state, fence, value)?;
        if fence.value() >= fence.submitted() {
            return self.signal_now(&mut state, fence, value);
        }
        // The GPU has yet to write a smaller value, and must not do so after this.
        if !state.late.contains_key(&fence.id) {
            fence.syncobj.notify(fence.submitted(), self.kick.as_fd())?;
        }
        state.late.insert(fence.id, value);
        Ok(())
    }

    /// Signals a value of a fence whose submitted values are all there.
    fn signal_now(&self, state: &mut State, fence: &Arc<Fence>, value: u64) -> Result<()> {
        fence.set(value);
        fence.syncobj.signal(value)?;
        state.late.remove(&fence.id);
        fence.set_submitted(value);
        let line = state.lines.get_mut(&fence.id);
        let parked = line.map_or_else(Vec::new, |line| {
            line.signaller = None;
            std::mem::take(&mut line.parked)
        });
        self.go_on(state, parked);
        Ok(())
    }

    // Paging queues

    /// Has the keeper look when the kernel signals a point that nobody has submitted yet.
    pub(crate) fn watch_paging(&self, fence: &Fence, point: u64) -> Result<()> {
        Ok(fence.syncobj.notify(point, self.kick.as_fd())?)
    }

    /// The kernel has been given a point of a paging queue's fence to signal; tells whether it has.
    pub(crate) fn paged(&self, fence: &Arc<Fence>, point: u64) -> Result<bool> {
        let mut state = self.alive()?;
        let line = state.lines.get_mut(&fence.id);
        let parked = std::mem::take(&mut line.ok_or(Status::INVALID_HANDLE)?.parked);
        fence.set_submitted(point);
        Self::settle_paging_of(&state);
        self.go_on(&mut state, parked);
        if !state.events.is_empty() {
            self.kick();
        }
        Ok(fence.reached(point))
    }

    /// Writes the values of paging queues' fences of which the kernel has signalled more.
    pub(crate) fn settle_paging(&self) {
        Self::settle_paging_of(&lock(&self.state));
    }

    fn settle_paging_of(state: &State) {
        if state.execution != DeviceState::Active {
            return;
        }
        for Line { fence, .. } in state.lines.values().filter(|line| line.fence.paging) {
            let (value, submitted) = (fence.value(), fence.submitted());
            if value < submitted {
                // If the kernel does not answer, the GPU is gone, which others notice.
                let done = fence.syncobj.query().unwrap_or(0).min(submitted);
                fence.set(value.max(done));
            }
        }
    }

    /// Takes the device out of service, as an error does.
    pub(crate) fn give_up(&self, execution: DeviceState) {
        self.fail(&mut lock(&self.state), execution);
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

    // Contexts

    pub(crate) fn create_context(&self, node: u32) -> Result<u64> {
        let ordinal = usize::try_from(node).map_err(|_| Status::INVALID_PARAMETER)?;
        let engines = self.adapter().libskua().engines();
        let engine = *engines.get(ordinal).ok_or(Status::INVALID_PARAMETER)?;
        let raw = libskua::Context::create(self.tables.vm(), engine).map_err(crowded)?;
        let (progress, cell) = self.new_fence(0, false)?;
        let id = self.number();
        let queue = Queue {
            raw: Some(raw),
            progress,
            queued: 0,
            packets: VecDeque::new(),
            waits: Vec::new(),
            slots: Slots::default(),
            watched: None,
            bound: 0,
            updated: 0,
            _cell: cell,
        };
        self.alive()?.queues.insert(id, queue);
        Ok(id)
    }

    /// Fails unless the context takes work.
    pub(crate) fn check_context(&self, id: u64) -> Result<()> {
        match self.alive()?.queues.contains_key(&id) {
            true => Ok(()),
            false => Err(Status::INVALID_HANDLE),
        }
    }

    /// Says how important the work of a context is.
    pub(crate) fn set_priority(&self, id: u64, priority: i32) -> Result<()> {
        let state = self.alive()?;
        let queue = state.queues.get(&id).ok_or(Status::INVALID_HANDLE)?;
        let raw = queue.raw.as_ref().ok_or(Status::DEVICE_REMOVED)?;
        Ok(raw.set_priority(priority)?)
    }

    /// Destroys a context: what the kernel has is left to end, what it does not have is dropped.
    pub(crate) fn destroy_context(&self, id: u64) {
        let mut state = lock(&self.state);
        self.retire_context(&mut state, id);
    }

    fn retire_context(&self, state: &mut State, id: u64) {
        let Some(mut queue) = state.queues.remove(&id) else {
            return;
        };
        Self::cancel(&mut queue);
        let memory = queue.slots.take_memory();
        self.retire(
            state,
            Dying {
                uses: vec![(queue.progress.clone(), queue.progress.submitted())],
                memory,
                rest: Rest::Queue(Box::new(queue)),
            },
        );
    }

    /// Drops what the kernel does not have yet.
    fn cancel(queue: &mut Queue) {
        queue.packets.clear();
        queue.waits.clear();
        let sent = queue.progress.submitted();
        if queue.queued > sent {
            queue.progress.limit.store(sent, Ordering::Release);
            // For the keeper, which looks when later packets are done: behind what the kernel has.
            let _ = queue.progress.syncobj.signal(queue.queued);
            queue.queued = sent;
            queue.progress.wake();
        }
    }

    /// Queues commands, and behind them signals, and hands to the kernel what can go there; all or
    /// nothing.
    pub(crate) fn submit(
        &self,
        context: u64,
        commands: Option<(u64, u32)>,
        signals: &[(&Arc<Fence>, u64)],
        uses: &[(Arc<Mutex<Usage>>, Access)],
    ) -> Result<()> {
        let (mut state, slots) = self.alive_with_slots(context, signals.len().max(1))?;
        let state = &mut *state;
        let checked = signals
            .iter()
            .try_for_each(|(fence, value)| Self::check_signal(state, fence, *value));
        let queue = state.queues.get_mut(&context);
        let queue = queue.ok_or(Status::INVALID_HANDLE)?;
        if checked.is_err() {
            slots
                .into_iter()
                .for_each(|slot| queue.slots.give_back(slot));
            return checked;
        }
        let before = queue.queued;
        let progress = queue.progress.clone();
        for (n, slot) in slots.into_iter().enumerate() {
            queue.queued += 1;
            queue.packets.push_back(Packet::Run(Run {
                commands: commands.filter(|_| n == 0),
                signal: signals
                    .get(n)
                    .map(|(fence, value)| ((*fence).clone(), *value)),
                point: queue.queued,
                slot,
            }));
        }
        let last = queue.queued;
        let result = self.pump(state, vec![context], Some((context, before + 1)));
        if result.is_err() {
            // As if it had not been called, unless the device's end has taken them already.
            if let Some(queue) = state.queues.get_mut(&context) {
                while queue.queued > before {
                    let Some(Packet::Run(run)) = queue.packets.pop_back() else {
                        break;
                    };
                    queue.slots.give_back(run.slot);
                    queue.queued -= 1;
                }
            }
            return result;
        }
        for (usage, access) in uses {
            lock(usage).record(&progress, last, *access);
        }
        Ok(())
    }

    /// Locks the state, if the device takes work, and takes slots of a context's.
    fn alive_with_slots(
        &self,
        context: u64,
        count: usize,
    ) -> Result<(MutexGuard<'_, State>, Vec<Slot>)> {
        loop {
            let mut state = self.alive()?;
            let queue = state.queues.get_mut(&context);
            let queue = queue.ok_or(Status::INVALID_HANDLE)?;
            if let Some(slots) = queue.slots.take(count, queue.progress.value()) {
                return Ok((state, slots));
            }
            drop(state);
            // Binds memory, which nobody else shall wait for.
            let chunk = Slots::new_chunk(&self.tables)?;
            let mut state = self.alive()?;
            match state.queues.get_mut(&context) {
                Some(queue) => queue.slots.add(chunk),
                None => {
                    drop(state);
                    return Err(Status::INVALID_HANDLE);
                }
            }
        }
    }

    /// Whether a value can be signalled.
    fn check_signal(state: &State, fence: &Fence, value: u64) -> Result<()> {
        if !state.lines.contains_key(&fence.id) {
            return Err(Status::INVALID_HANDLE);
        }
        let last = Self::last_signal(state, fence);
        if fence.paging || value <= last || value == MonitoredFence::LOST {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(())
    }

    /// The largest value that is signalled, or will be without anybody doing more for it.
    fn last_signal(state: &State, fence: &Fence) -> u64 {
        let late = state.late.get(&fence.id).copied();
        fence.submitted().max(late.unwrap_or(0))
    }

    /// Lets what is queued in a context from now on wait for values.
    pub(crate) fn wait_from_gpu(&self, context: u64, waits: &[(Arc<Fence>, u64)]) -> Result<()> {
        let mut state = self.alive()?;
        if !waits.iter().all(|(f, _)| state.lines.contains_key(&f.id)) {
            return Err(Status::INVALID_HANDLE);
        }
        let queue = state
            .queues
            .get_mut(&context)
            .ok_or(Status::INVALID_HANDLE)?;
        let packets = waits
            .iter()
            .map(|(f, value)| Packet::Wait(f.clone(), *value));
        queue.packets.extend(packets);
        self.pump(&mut state, vec![context], None)
    }

    /// Hands to the kernel what can go there: of some contexts, then of those that waited for what
    /// was thereby submitted, and so on.
    ///
    /// # Errors
    ///
    /// Why the packet `own` of a context was refused, which is then still queued; DEVICE_REMOVED if
    /// the device has gone to error over this.
    fn pump(&self, state: &mut State, mut ready: Vec<u64>, own: Option<(u64, u64)>) -> Result<()> {
        let mut result = Ok(());
        while let Some(id) = ready.pop() {
            while let Some(packet) = Self::next_packet(state, id) {
                let sent = match &packet {
                    Packet::Run(run) => self.send(state, id, run),
                    Packet::Update(update) => self.update(state, id, update),
                    Packet::Wait(fence, value) => {
                        let (fence, value) = (fence.clone(), *value);
                        if let Some(queue) = state.queues.get_mut(&id) {
                            match queue.waits.iter_mut().find(|(f, _)| f.id == fence.id) {
                                Some((_, largest)) => *largest = value.max(*largest),
                                None => queue.waits.push((fence, value)),
                            }
                        }
                        continue;
                    }
                };
                let refusal = match sent {
                    Ok(woken) => {
                        ready.extend(woken);
                        continue;
                    }
                    Err(refusal) => refusal,
                };
                let is_own = matches!(&packet, Packet::Run(run) if own == Some((id, run.point)));
                if let Some(queue) = state.queues.get_mut(&id) {
                    queue.packets.push_front(packet);
                }
                match refusal {
                    Refusal::Removed => {
                        self.find_error_locked(state);
                        result = Err(Status::DEVICE_REMOVED);
                    }
                    Refusal::Later(status) | Refusal::Never(status) if is_own => {
                        result = Err(status);
                    }
                    Refusal::Later(_) => {
                        state.refused.push(id);
                        state.again = true;
                        self.kick();
                    }
                    Refusal::Never(status) => {
                        self.fail(state, DeviceState::of_status(status));
                        result = Err(Status::DEVICE_REMOVED);
                    }
                }
                break;
            }
        }
        result
    }

    /// Takes the first packet out of a queue, if what it needs is submitted; otherwise the context
    /// is parked.
    fn next_packet(state: &mut State, id: u64) -> Option<Packet> {
        let queue = state.queues.get_mut(&id)?;
        loop {
            let packet = queue.packets.pop_front()?;
            let fence = match &packet {
                Packet::Wait(fence, value) => {
                    if fence.reached(*value) || fence.is_closed() {
                        continue;
                    }
                    (fence.submitted() < *value).then_some(fence)
                }
                // Behind a smaller value that the CPU is to signal.
                Packet::Run(run) => run.signal.as_ref().and_then(|(fence, value)| {
                    let late = state.late.get(&fence.id)?;
                    (late < value).then_some(fence)
                }),
                Packet::Update(_) => None,
            };
            let Some(line) = fence.and_then(|fence| state.lines.get_mut(&fence.id)) else {
                return Some(packet);
            };
            if !line.parked.contains(&id) {
                line.parked.push(id);
            }
            queue.packets.push_front(packet);
            return None;
        }
    }

    /// Goes on with contexts that waited. Whose call this is has nothing to do with how it ends.
    fn go_on(&self, state: &mut State, contexts: Vec<u64>) {
        let _ = self.pump(state, contexts, None);
    }

    /// Hands one packet to the kernel; tells which contexts waited for what it signals.
    fn send(&self, state: &mut State, id: u64, run: &Run) -> Result<Vec<u64>, Refusal> {
        // A signal that others have overtaken is reached by them; a destroyed fence has none.
        let signal = run.signal.as_ref().filter(|(fence, value)| {
            state.lines.contains_key(&fence.id) && *value > Self::last_signal(state, fence)
        });
        let queue = state.queues.get_mut(&id).ok_or(Refusal::Removed)?;
        let raw = queue.raw.as_ref().ok_or(Refusal::Removed)?;
        let mut signals = Vec::with_capacity(2);
        if let Some((fence, value)) = signal {
            signals.push((fence.va(), *value));
        }
        signals.push((queue.progress.va(), run.point));

        // What is mapped by now, the slot too. Later packets of the context come behind it anyway.
        let bound = self.tables.last_map().max(queue.updated);
        let (va, bytes) = queue
            .slots
            .write(run.slot, &signals)
            .map_err(Refusal::Never)?;
        // From here on what fails puts them back.
        let mut waits = std::mem::take(&mut queue.waits);
        if let Some((fence, _)) = signal {
            // Behind the smaller values that others signal.
            if let Some(line) = state.lines.get(&fence.id) {
                let submitted = fence.submitted();
                if line.signaller.is_some_and(|other| other != id) && !fence.reached(submitted) {
                    waits.push((fence.clone(), submitted));
                }
            }
        }
        let sent = (|| -> Result<(), Error> {
            // More than one submission can take: some that wait and do nothing before.
            while waits.len() > MAX_WAITS {
                let some = waits.split_off(waits.len() - MAX_WAITS);
                let submission = some
                    .iter()
                    .fold(raw.submission(), |s, (f, point)| s.wait(&f.syncobj, *point));
                submission.submit()?;
            }
            let mut submission = waits
                .iter()
                .fold(raw.submission(), |s, (f, point)| s.wait(&f.syncobj, *point));
            if bound > queue.bound {
                submission = submission.wait(self.tables.bound(), bound);
            }
            if let Some((commands, bytes)) = run.commands {
                submission = submission.buffer(commands, bytes);
            }
            submission = submission
                .buffer(va, bytes)
                .signal(&queue.progress.syncobj, run.point);
            if let Some((fence, value)) = signal {
                submission = submission.signal(&fence.syncobj, *value);
            }
            submission.submit()
        })();
        if let Err(error) = sent {
            queue.waits = waits;
            return Err(error.into());
        }
        queue.slots.use_until(run.point, run.slot);
        queue.progress.set_submitted(run.point);
        queue.bound = bound;
        self.watch(queue);

        let mut woken = Vec::new();
        if let Some((fence, value)) = signal {
            if let Some(line) = state.lines.get_mut(&fence.id) {
                fence.set_submitted(*value);
                line.signaller = Some(id);
                woken = std::mem::take(&mut line.parked);
            }
        }
        Ok(woken)
    }

    /// Hands one update of addresses to the kernel.
    fn update(&self, state: &mut State, id: u64, update: &Update) -> Result<Vec<u64>, Refusal> {
        let queue = state.queues.get_mut(&id).ok_or(Refusal::Removed)?;
        let points: Vec<_> = queue
            .waits
            .iter()
            .map(|(fence, point)| (&*fence.syncobj, *point))
            .collect();
        let bound = update.perform(&self.tables, &points)?;
        queue.updated = bound.unwrap_or(queue.updated);
        queue.waits.clear();
        Ok(Vec::new())
    }

    /// Queues an update of addresses in a paging context: behind a value of a fence, if it is to
    /// wait, and before the next one, which it signals. Tells the packet behind it.
    pub(crate) fn queue_update(
        &self,
        context: u64,
        update: Update,
        fence: Option<(&Arc<Fence>, u64)>,
        waits: bool,
    ) -> Result<Point> {
        let signal = match fence {
            Some((fence, value)) => {
                let next = value.checked_add(1).ok_or(Status::INVALID_PARAMETER)?;
                Some((fence.clone(), next))
            }
            None => None,
        };
        let (mut state, mut slots) = self.alive_with_slots(context, 1)?;
        let state = &mut *state;
        let checked = match &signal {
            Some((fence, value)) => Self::check_signal(state, fence, *value),
            None => Ok(()),
        };
        let queue = state.queues.get_mut(&context);
        let queue = queue.ok_or(Status::INVALID_HANDLE)?;
        let slot = slots.pop().ok_or(Status::UNSUCCESSFUL)?;
        if let Err(status) = checked {
            queue.slots.give_back(slot);
            return Err(status);
        }
        if let Some((fence, value)) = fence.filter(|_| waits) {
            queue.packets.push_back(Packet::Wait(fence.clone(), value));
        }
        queue.packets.push_back(Packet::Update(update));
        queue.queued += 1;
        queue.packets.push_back(Packet::Run(Run {
            commands: None,
            signal,
            point: queue.queued,
            slot,
        }));
        let point = (queue.progress.clone(), queue.queued);
        self.pump(state, vec![context], None)?;
        Ok(point)
    }

    /// Lets the keeper look at a context when what the kernel has now is done.
    fn watch(&self, queue: &mut Queue) {
        let point = queue.progress.submitted();
        if queue.watched.is_none() && point > 0 {
            // Without memory for it, the next submission tries again.
            if queue
                .progress
                .syncobj
                .notify(point, self.kick.as_fd())
                .is_ok()
            {
                queue.watched = Some(point);
            }
        }
    }

    // Errors, and the end

    /// Work has failed: finds out how.
    pub(crate) fn find_error(&self) {
        self.find_error_locked(&mut lock(&self.state));
    }

    fn find_error_locked(&self, state: &mut State) {
        if state.execution != DeviceState::Active {
            return;
        }
        // A point was signalled without its value; whatever the kernel says, it will not come.
        let found = self.cause(state).unwrap_or(DeviceState::Stopped);
        self.fail(state, found);
    }

    /// What the kernel says is the matter with the device, if anything is.
    fn cause(&self, state: &State) -> Option<DeviceState> {
        match self.tables.kernel().state().map(|state| state.status) {
            Ok(DeviceStatus::Active) => None,
            Ok(DeviceStatus::TimedOut) => Some(DeviceState::Hung),
            Ok(DeviceStatus::Lost) => Some(DeviceState::Stopped),
            Ok(DeviceStatus::Reset) => Some(DeviceState::Reset),
            Ok(DeviceStatus::Faulted) => Some(Self::fault(state)),
            Err(error) => is_gone(&error).then_some(DeviceState::Stopped),
        }
    }

    /// The fault of one of the contexts, also of one that is destroyed and not given back.
    fn fault(state: &State) -> DeviceState {
        let dying = state.dying.iter().filter_map(Dying::queue);
        let mut queues = state.queues.values().chain(dying);
        let fault = queues.find_map(|queue| match queue.raw.as_ref()?.state().ok()?.status {
            ContextStatus::Faulted(fault) => Some(DeviceState::of_fault(fault)),
            _ => None,
        });
        fault.unwrap_or(DeviceState::Stopped)
    }

    /// Takes the device out of service: nothing is accepted any more, what has not started is
    /// cancelled, and who waits is woken.
    fn fail(&self, state: &mut State, execution: DeviceState) {
        if state.execution != DeviceState::Active {
            return;
        }
        state.execution = execution;
        self.ended.store(true, Ordering::Release);
        for queue in state.queues.values_mut() {
            Self::cancel(queue);
            queue.raw = None;
        }
        state.late.clear();
        Self::lose_fences(state);
        for line in state.lines.values() {
            Self::release(&line.fence);
        }
        for event in state.events.drain(..) {
            let _ = fire(event.fd.as_fd());
        }
        self.kick();
    }

    /// Gives all fences the value of a device in error. Work that ran when the device failed may
    /// still write its own, so the keeper does this again when it is done.
    fn lose_fences(state: &State) {
        for line in state.lines.values() {
            line.fence.set(MonitoredFence::LOST);
        }
    }

    /// Begins to destroy the device: nothing is accepted any more, what has not started is
    /// cancelled.
    pub(crate) fn shut_down(&self) {
        let mut state = lock(&self.state);
        self.fail(&mut state, DeviceState::Destroyed);
        state.execution = DeviceState::Destroyed;
    }

    /// Destroys the contexts; the keeper ends when nothing of the device runs any more.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        let ids: Vec<u64> = state.queues.keys().copied().collect();
        for id in ids {
            self.retire_context(&mut state, id);
        }
        self.kick();
    }

    /// The kernel has said that the device is to trim.
    pub(crate) fn trim(&self) {
        self.trimmed.store(true, Ordering::Release);
        self.kick();
    }

    fn kick(&self) {
        let _ = fire(self.kick.as_fd());
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Gone | ErrorKind::Dead)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_lack_of_memory_is_not_for_good() {
        let refusal = |errno| {
            Refusal::from(Error::Ioctl {
                name: "SKUA_SUBMIT",
                errno,
            })
        };
        assert_eq!(refusal(Errno::NOMEM), Refusal::Later(Status::NO_MEMORY));
        assert!(matches!(refusal(Errno::NOSPC), Refusal::Later(_)));
        let parameter = Refusal::Never(Status::INVALID_PARAMETER);
        assert_eq!(refusal(Errno::INVAL), parameter);
        for errno in [Errno::CANCELED, Errno::NODEV, Errno::IO] {
            assert_eq!(refusal(errno), Refusal::Removed, "{errno}");
        }
    }
}
