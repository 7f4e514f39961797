// SPDX-License-Identifier: GPL-2.0

//! Moving objects between VRAM, system memory and the aperture, under the addresses at which CPU
//! and GPU find them (rows 1.11, 1.12, 1.16, 1.17).
//!
//! ```text
//! an ioctl, nothing locked     memory to go to ─▶ lock the object and all its users' reservations
//!                              ─▶ plan ─▶ CPU mappings removed ─▶ fence published: a kernel fence
//!                              of all these ─▶ the placement is the new one
//! driver's context, its turn   who used the memory is done ─▶ page tables lead nowhere ─▶ the copy
//!                              engine has all drop their translations, and copies
//! worker                       page tables lead to the new memory ─▶ the old memory to the reaper
//!                              ─▶ fence signalled
//! ```
//!
//! When the copy begins no engine can reach the old memory but the one that copies, whatever works
//! in these address spaces; and none keeps anything of where entries are not valid. So nothing is
//! left to be flushed when page tables lead to the new memory, and nobody waits for the TLBs; but
//! where a bind has led to the old memory meanwhile ([`Vm::reinstall`]).
//!
//! Between the aperture and direct access nothing is copied: the pages stay, page tables lead to
//! them another way. What is [offered](super::offer) may move to nowhere: nothing is copied, page
//! tables lead nowhere.
//!
//! Whoever comes after the publication waits for the fence: CPU accesses and binds, which look at
//! the object, and submissions, which look at their address space. What came before is waited for
//! by the move. So nobody sees memory that is being moved, and nothing is lost. Apart from that is
//! work of devices with explicit residency for which the object is not resident, or not yet
//! ([`ClientDevice::has_evicted`]): it goes on beside the move, and finds no way to the object.
//!
//! A move that waits for work waits in a line of the driver's own for whose work that is
//! ([`Mover`]): what one client has queued delays no other's clears and moves. What it waits for may
//! fail: then it is over, too.
//!
//! The [context allocation](super::save_areas) that an engine saves to moves when its context has
//! nothing queued, and the engine has left it. Others of the address space do not use it: it waits
//! for that context alone, and that context alone for it.

use crate::{
    ext::{
        device,
        exec::Exec,
        fence::{
            DriverFence,
            Fence,
            FenceContext,
            Signalling, //
        },
        gem::{
            self,
            GemExt,
            Placement, //
        },
        resv::{
            Handle,
            Usage, //
        },
        trace, //
    },
    few::Few,
    gpu::{
        self,
        Gpu,
        Mover,
        SkuaDevice,
        QUEUE,
        WEDGED, //
    },
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::{
            self,
            BoData,
            BoRef,
            ContextUse,
            Memory, //
        },
        clean_copy::CleanCopy,
        device::ClientDevice,
        evicted,
        save_areas,
        vm::{
            for_each_user,
            Vm, //
        }, //
    },
    policy::{
        miniport::Flush,
        transfer_plan::{
            TransferError,
            TransferPlan, //
        }, //
    },
    reaper::Reapable,
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListLinks, //
    },
    new_condvar,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        SpinLock, //
    },
    time::Jiffies,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// A move that was published: what is to be done when the copy is over.
#[pin_data(PinnedDrop)]
pub(crate) struct Move {
    /// The device that copies.
    dev: ARef<SkuaDevice>,
    /// The object that moves.
    bo: BoRef,
    /// Where its content goes; none if it is thrown away.
    new: Option<Memory>,
    /// Where it came from: given back when nobody can reach it any more.
    old: Memory,
    /// Whether the old memory is kept as a [`CleanCopy`], if that is not dropped.
    keeps: bool,
    /// The address space in whose line it waits, which keeps that.
    _user: Option<Arc<Vm>>,
    /// Nothing leads to the old memory any more.
    is_done: Atomic<bool>,
    /// The [generation](Gpu::vram_generation) in which the copy was over.
    generation: Atomic<u32>,
    /// Whether it was copied.
    is_copied: bool,
    /// From the end of the copy until all is installed.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    /// Installs, in a worker: page tables may be many.
    #[pin]
    work: Work<Self>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
    /// Last: when it says that the move is over, the old memory is free.
    _under_way: UnderWay,
}

impl_has_work! {
    impl HasWork<Self> for Move { self.work }
}

/// Moves that are under way, for who waits for the room that they leave, or for what cannot move
/// again before.
#[pin_data]
pub(crate) struct Moves {
    /// How many are under way.
    #[pin]
    counts: SpinLock<Counts>,
    /// Notified when one is over.
    #[pin]
    changed: CondVar,
}

/// How many moves there are.
struct Counts {
    /// Moves that have begun and are not over.
    under_way: u32,
    /// What is to leave VRAM without a move, when the work with it is over.
    leaving: u32,
    /// How many of both are over since probe, modulo 2^32.
    over: u32,
}

impl Moves {
    /// Of a device that has moved nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            counts <- new_spinlock!(Counts {
                under_way: 0,
                leaving: 0,
                over: 0,
            }),
            changed <- new_condvar!("Moves::changed"),
        })
    }

    /// Whether there is one that is not over.
    pub(crate) fn any(&self) -> bool {
        self.counts.lock().under_way > 0
    }

    /// How many are over, for [`Moves::wait`].
    pub(crate) fn over(&self) -> u32 {
        self.counts.lock().over
    }

    /// Waits until more are over than were once, as long as there is `patience`, from which it
    /// takes; whether they are: not if none is under way. `EINTR` if a signal arrives.
    pub(crate) fn wait(&self, over: u32, patience: &mut Jiffies) -> Result<bool> {
        let mut counts = self.counts.lock();
        let any = counts.under_way > 0 || counts.leaving > 0;
        if counts.over == over && any && *patience > 0 {
            match self
                .changed
                .wait_interruptible_timeout(&mut counts, *patience)
            {
                CondVarTimeoutResult::Signal { .. } => return Err(EINTR),
                CondVarTimeoutResult::Timeout => *patience = 0,
                CondVarTimeoutResult::Woken { jiffies } => *patience = jiffies,
            }
        }
        Ok(counts.over != over)
    }

    /// The device is lost: nobody is to wait for what does not end.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }
}

/// A move that is not over, or not begun: who needs room waits for it before giving up.
pub(crate) struct UnderWay {
    dev: ARef<SkuaDevice>,
    /// Which count it is in.
    count: fn(&mut Counts) -> &mut u32,
}

impl UnderWay {
    /// Counts a move as under way, until this is dropped.
    pub(crate) fn new(dev: &SkuaDevice) -> Self {
        Self::counted(dev, |counts| &mut counts.under_way)
    }

    /// Counts something as leaving VRAM, without a move, until this is dropped.
    pub(crate) fn leaving(dev: &SkuaDevice) -> Self {
        Self::counted(dev, |counts| &mut counts.leaving)
    }

    fn counted(dev: &SkuaDevice, count: fn(&mut Counts) -> &mut u32) -> Self {
        {
            let counts = &mut dev.moves.counts.lock();
            // No wrap: each is in memory.
            *count(counts) = count(counts).wrapping_add(1);
        }
        let dev = dev.into();
        Self { dev, count }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let moves = &self.dev.moves;
        {
            let counts = &mut moves.counts.lock();
            *(self.count)(counts) = (self.count)(counts).wrapping_sub(1);
            counts.over = counts.over.wrapping_add(1);
        }
        moves.wake();
    }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Move { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Move { using ListLinks { self.links }; }
}

impl Reapable for Move {}

/// The copying of an object's memory between VRAM and system memory, if that is where it moves, and
/// the move that it is for.
#[pin_data]
pub(crate) struct Transfer {
    /// What is copied; none if the pages stay.
    pub(crate) plan: Option<TransferPlan<KernelHeap>>,
    /// Whether it is from VRAM, or else to it.
    pub(crate) out: bool,
    /// Whether the CPU has the system memory cached.
    pub(crate) cached: bool,
    /// Which address spaces may lead to the old memory.
    pub(crate) flush: Flush,
    /// Whether no page table does any more.
    is_withdrawn: Atomic<bool>,
    /// Of its fence alone: moves end in any order.
    line: FenceContext,
    /// Until the copy is over.
    #[pin]
    moved: SpinLock<Option<Arc<Move>>>,
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Unequal => EIO,
            TransferError::OutOfMemory => ENOMEM,
        }
    }
}

impl Transfer {
    /// The line that its fence is of.
    pub(crate) fn line(&self) -> &FenceContext {
        &self.line
    }

    /// Whether no page table leads to the old memory any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Acquire)
    }

    /// Has no page table lead to the old memory, which nobody uses any more. Process context;
    /// allocates nothing.
    pub(crate) fn withdraw(&self) {
        // None if it was cancelled meanwhile.
        let moved = self.moved.lock().clone();
        if let Some(moved) = moved {
            // An error is the device's loss: then it cannot be installed either.
            let _ = moved.withdraw();
            let dev = moved.dev.clone();
            dev.reapers.moves.bury(moved);
        }
        self.is_withdrawn.store(true, Release);
    }

    /// The copy is over, or will not be made: `fence` is signalled when that can be seen. Called
    /// once; allocates nothing.
    pub(crate) fn finish(&self, fence: DriverFence, result: Result) {
        let moved = self.moved.lock().take();
        match (moved, result) {
            (Some(moved), Ok(())) => {
                // Before a reset, or after it: this is not called meanwhile.
                let generation = moved.dev.vram_generation.load(Relaxed);
                moved.generation.store(generation, Relaxed);
                *moved.fence.lock() = Some(fence);
                let queued = QUEUE.enqueue(moved);
                crate::warn_on_once!(queued.is_err());
            }
            (moved, result) => {
                if let Some(moved) = moved {
                    let dev = moved.dev.clone();
                    dev.reapers.moves.bury(moved);
                }
                fence.signal(result);
            }
        }
    }
}

impl Move {
    /// Has no page table lead to the old memory. `ENODEV`, `EIO`.
    fn withdraw(&self) -> Result {
        let dev = &*self.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        if self.bo.context_of() == Some(ContextUse::Engine) {
            save_areas::expect_left(dev, &self.bo);
        }
        let mut result = Ok(());
        for_each_user(dev, &self.bo, |vm| {
            result = result.and(vm.withdraw(gpu::parent(&bound), &self.bo));
            dev.reapers.vms.bury(vm);
            Ok(())
        })?;
        result
    }

    /// Has all page tables lead to the new memory. `ENODEV`, `EIO`.
    fn install(&self) -> Result {
        let dev = &*self.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&bound);
        let generation = self.generation.load(Relaxed);
        match (&self.old, &self.new) {
            // The copy has written all of it.
            (_, Some(Memory::Vram(range))) => range.set_cleared(generation),
            (Memory::Vram(range), _) if self.is_copied && range.is_lost_in(generation) => {
                self.bo.set_content_lost();
            }
            _ => (),
        }
        // `self` holds it.
        drop(match &self.new {
            Some(new) => self.bo.sites.set_memory(new.clone()),
            None => self.bo.sites.forget_memory(),
        });
        let mut result = Ok(());
        for_each_user(dev, &self.bo, |vm| {
            result = result.and(vm.reinstall(parent, &self.bo, self.new.as_ref()));
            dev.reapers.vms.bury(vm);
            Ok(())
        })?;
        result
    }
}

impl WorkItem for Move {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let signalling = Signalling::begin();
        let fence = this.fence.lock().take();
        let dev = this.dev.clone();
        let result = this.install();
        this.is_done.store(result.is_ok(), Relaxed);
        if result.is_err() {
            // It does not answer, or is unbound: what the old memory was for may still reach it.
            dev.doubt(WEDGED);
        }
        // Before the signal: who waits for it may count on the memory.
        dev.reapers.moves.bury(this);
        if let Some(fence) = fence {
            fence.signal(result.map_err(|_| ENODEV));
        }
        // `dev` may be the last reference.
        drop(signalling);
    }
}

#[pinned_drop]
impl PinnedDrop for Move {
    fn drop(self: Pin<&mut Self>) {
        if self.new.as_ref().is_none_or(Memory::is_vram) {
            if self.is_done.load(Relaxed) && !self.keeps {
                // What was in them is in VRAM, or nobody's. Before this it does not come back to
                // them.
                gem::discard(&*self.bo);
            }
            self.bo.end_arrival();
        }
    }
}

/// Tells `vm`, which may be among the users of `bo`, that it is out, with memory for that, or is
/// not any more.
fn list(bo: &BoRef, vm: &Vm, out: Option<evicted::Node>) {
    let is_out = out.is_some();
    // First: a user that goes meanwhile takes it back if it is told.
    if let Some(node) = out {
        vm.evicted.add(bo, node);
    }
    let was_out = bo.sites.set_listed(vm.asid(), is_out);
    let has_changed = was_out == Some(!is_out);
    if has_changed != is_out {
        vm.evicted.remove(bo);
    }
}

/// Has `bo` move to `new` memory, in VRAM or of the system, or to the aperture or out of it with
/// the pages that it has, or, if `new` is [`Placement::Resting`] and it is offered, to nowhere; the
/// fence of that. Unless it `may_wait`, nobody may be using it.
///
/// Who has it leave VRAM says [from where](super::vram::VramRange::number), and has seen it arrived
/// there before getting `new` pages: when it has been elsewhere since, these were discarded.
///
/// An address space is *apart* if its work does not wait for the move, nor the move for that: work
/// of a device with explicit residency that has [evicted](ClientDevice::has_evicted) the object,
/// or `asks` for the move, did not have the object resident before, and is told when it is over.
///
/// `EBUSY` if it is there already or on its way, or pinned, or about to be destroyed, or locked out
/// of VRAM, or not where it is said to come `from`, or not offered and to go nowhere, or to leave
/// the aperture before it has come there, or in use and it may not wait; `ENOMEM`, `ENODEV`;
/// `EINTR` if a signal arrives. Nothing has changed then, but that an engine may leave a context.
pub(crate) fn relocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    mut new: gem::PlacementOf<BoData>,
    from: Option<u32>,
    may_wait: bool,
    asks: Option<&ClientDevice>,
) -> Result<Fence> {
    // None if it is thrown away.
    let memory = bo::memory_of(&new);
    let handle = Handle::of(&**bo);
    // Held longer than the locks: one of them may be the last reference, with a lock of its own.
    let mut users: KVVec<Arc<Vm>> = KVVec::new();
    // How many of them are from earlier rounds.
    let mut old_users = 0;
    let mut exec = Exec::lock_all(|exec| {
        old_users = users.len();
        if may_wait {
            exec.lock(&handle)?;
        } else if !exec.try_lock(&handle)? {
            // Somebody has it, a page fault for one: it is not idle.
            return Err(EBUSY);
        }
        for_each_user(dev, bo, |vm| {
            if let Err(error) = users.reserve(1, client_flags()) {
                // Not under the locks, if it is the last reference.
                dev.reapers.vms.bury(vm);
                return Err(error.into());
            }
            let handle = vm.reservation().handle();
            users.push(vm, client_flags())?;
            exec.lock(&handle)
        })?;
        // Nothing of it is mapped, but what it waits for is that address space's.
        if users.len() == old_users {
            users.reserve(1, client_flags())?;
            if let Some(vm) = bo.home(dev) {
                users.push(vm, client_flags())?;
            }
        }
        exec.reserve_fences()
    })?;
    let users = users.get(old_users..).unwrap_or_default();
    // With whether the move does not wait for its work, nor only the work for the move.
    let mut apart = KVVec::new();
    if bo.is_reached_if_resident() {
        for vm in users {
            let device = vm.device();
            let has_evicted = device.has_evicted(bo);
            let is_told = asks.is_some_and(|it| it.id() == device.id())
                && device.is_explicit()
                && device.residents().has_once(bo);
            if has_evicted || is_told {
                let handle = vm.reservation().handle();
                apart.push((handle, has_evicted), client_flags())?;
            }
        }
    }
    let is_told_of = |handle: &Handle| {
        !apart
            .iter()
            .any(|(other, _): &(Handle, bool)| other == handle)
    };
    let is_waited_for = |handle: &Handle| {
        !apart
            .iter()
            .any(|(other, is_over)| *is_over && other == handle)
    };
    let (old, clean, is_settled) = {
        let mut reserved = exec.reserved(&handle)?;
        let comes = matches!(new, Placement::Device(_)) && !bo.needs_vram();
        let is_attached = gem::is_pinned(&**bo) || comes && gem::is_attached_now(&**bo);
        if is_attached || bo.is_dying() {
            return Err(EBUSY);
        }
        BoData::rouse(bo, &mut reserved)?;
        let placement = gem::placement(bo, &reserved)?;
        if let Placement::Device(site) = &mut new {
            site.keep(CleanCopy::of(dev, bo, &reserved)?);
        }
        let copy = match placement {
            // The caller has looked before the device was reset.
            Placement::Device(site) if site.copy().is_some() && site.range.is_lost() => {
                return Err(EBUSY);
            }
            Placement::Device(site) => site.copy(),
            _ => None,
        };
        // Nobody has had a way to write what is in VRAM, and will have one before this is over.
        let is_clean = match (copy, memory.as_ref().and_then(Memory::system)) {
            (Some((_, copy)), Some(system)) if Arc::ptr_eq(copy, system) => true,
            // It was dropped since the caller has looked, or came since.
            (copy, system) if copy.is_some() || system.is_some_and(|it| it.is_stale()) => {
                return Err(EBUSY);
            }
            _ => false,
        };
        let old = bo::memory_of(placement).ok_or(EBUSY)?;
        (old, is_clean, bo::is_settled(bo, &reserved)?)
    };
    if matches!(&old, Memory::Vram(range) if Some(range.number()) != from) {
        return Err(EBUSY);
    }
    let copied = match (&old, &memory) {
        _ if clean => None,
        (Memory::Vram(range), Some(to)) => to.system().map(|system| (range, system)),
        (from, Some(Memory::Vram(range))) => from.system().map(|system| (range, system)),
        _ => None,
    };
    let stays = match (&old, &memory) {
        (Memory::System(pages), Some(Memory::Aperture(range))) => {
            Arc::ptr_eq(range.memory(), pages)
        }
        // With two such moves under way it would look as if there were none in between.
        (Memory::Aperture(range), Some(Memory::System(pages))) => {
            is_settled && Arc::ptr_eq(range.memory(), pages)
        }
        (Memory::Vram(_) | Memory::System(_), None) => bo.is_offered(),
        _ => false,
    };
    if copied.is_none() && !stays && !clean {
        // Somebody else was faster.
        return Err(EBUSY);
    }
    let to_vram = memory.as_ref().is_some_and(Memory::is_vram);
    let (from_vram, is_lost) = (old.is_vram(), memory.is_none());
    let (from, to) = (old.name(), memory.as_ref().map_or(c"nowhere", Memory::name));
    // Where no work reaches it, if it may be in VRAM alone.
    let is_direct = |memory: &Memory| matches!(memory, Memory::System(_));
    let is_out_then = memory.as_ref().is_none_or(is_direct);
    let may_arrive = match &memory {
        Some(Memory::Vram(range)) => {
            // What is offered since the caller has looked is to take nobody's room.
            !bo.is_offered() && !bo.is_held_out() && BoData::may_be_locked_in(bo, range)
        }
        // Those of its system pages that the caller has may be about to be discarded.
        _ => !(from_vram && bo.is_arriving()),
    };
    if !may_arrive || (!may_wait && !exec.is_idle(Usage::Bookkeep, is_waited_for)) {
        return Err(EBUSY);
    }
    // Whose own context allocation it is: nobody else uses that.
    let saver = match bo.context_of() {
        Some(ContextUse::Engine) => dev.contexts.find_by(|context| context.is_saved_in(bo)),
        _ => None,
    };
    let saver = saver.and_then(|context| {
        let slot = context.slot();
        dev.reapers.contexts.bury(context);
        slot
    });
    let mut waits = Few::Empty;
    if saver.is_some() {
        if !is_settled {
            return Err(EBUSY);
        }
    } else if bo.needs_vram() && is_direct(&old) {
        // No work reaches it where it is.
        if let Some(fence) = exec.reserved(&handle)?.singleton(Usage::Kernel)? {
            waits.push(fence)?;
        }
    } else {
        exec.collect(Usage::Bookkeep, is_waited_for, |fence| waits.push(fence))?;
    }
    if bo.saves_context() {
        // Row 2.07: nothing more of the contexts comes as long as these are locked.
        save_areas::leave(dev, bo, &mut waits)?;
    }
    let waited_for = |vm: &&Arc<Vm>| is_waited_for(&vm.reservation().handle());
    let user = users.iter().find(waited_for).or(users.first());
    let mut nodes = KVVec::new();
    if bo.needs_vram() && is_out_then {
        for _ in users {
            nodes.push(evicted::Node::new(client_flags())?, client_flags())?;
        }
    }
    let flush = match bo.needs_vram() && is_direct(&old) {
        // No page table leads there.
        true => Flush::Nothing,
        false => users
            .iter()
            .filter(|vm| bo.sites.is_user(vm.asid()))
            .fold(Flush::Nothing, |flush, vm| flush.and(vm.asid())),
    };
    let paging = dev.paging()?;
    let mover = match (saver, user) {
        (Some(slot), _) => Mover::SaveArea(slot),
        (None, Some(vm)) if waited_for(&vm) => Mover::Users(vm.asid()),
        (None, Some(vm)) => Mover::Evicted(vm.asid()),
        (None, None) => Mover::Others,
    };
    let line = match waits.iter().all(|fence| paging.is_own(fence)) {
        // It delays nobody.
        true => paging,
        false => Gpu::mover(dev, mover)?,
    };
    let cached = copied.is_none_or(|(_, system)| system.is_cached());
    let plan = copied.map(|(range, system)| {
        system.with_pieces(parent, 0, |pieces| {
            Ok::<_, Error>(TransferPlan::new(range.blocks(), pieces)?)
        })
    });
    let plan = plan.transpose()?;
    let is_copied = plan.is_some();
    let keeps = matches!(&new, Placement::Device(site) if site.copy().is_some());
    let moved = Arc::pin_init(
        pin_init!(Move {
            dev: dev.into(),
            bo: bo.clone(),
            new: memory,
            old,
            keeps,
            _user: user.cloned(),
            is_done: Atomic::new(false),
            generation: Atomic::new(0),
            is_copied,
            fence <- new_spinlock!(None),
            work <- new_work!("Move::work"),
            links <- ListLinks::new(),
            _under_way: UnderWay::new(dev),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    let is_withdrawn = flush == Flush::Nothing;
    let transfer = Arc::pin_init(
        pin_init!(Transfer {
            plan,
            out: from_vram,
            cached,
            flush,
            is_withdrawn: Atomic::new(is_withdrawn),
            line: FenceContext::new(c"skua", c"move"),
            moved <- new_spinlock!(Some(moved)),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    // What the CPU has stored is there before the copy starts: it has no mapping any more, and the
    // register write that starts the copy does not pass stores to the same device.
    gem::unmap(&**bo);
    let mut published = None;
    if to_vram || is_lost {
        // It may have arrived before the next line. If nothing becomes of it, the move ends this.
        bo.begin_arrival();
    }
    line.transfer(transfer, waits, |fence| {
        let usage = match saver {
            Some(_) => Usage::Bookkeep,
            None => Usage::Kernel,
        };
        let filed = exec.add_fence(fence, usage, is_told_of);
        crate::warn_on_once!(filed.is_err());
        if let Some(context) = saver.and_then(|slot| dev.contexts.find(slot)) {
            // Or the next one that has the place, which then waits for nothing of its own.
            context.area_moves(fence);
            dev.reapers.contexts.bury(context);
        }
        published = Some(fence.clone());
    })?;
    // The locks are held all the time: to others this is one step.
    let replaced = bo::replace(bo, &mut exec.reserved(&handle)?, new);
    crate::warn_on_once!(replaced.is_err());
    if is_lost {
        BoData::set_discarded(bo);
    }
    if bo.needs_vram() {
        for vm in users {
            list(bo, vm, nodes.pop());
        }
    }
    bo::renew(bo);
    if let Some(fence) = &published {
        trace::moved(dev, fence, from, to, bo.size(), clean);
    }
    if bo.saves_context() {
        dev.counters.context_moves.fetch_add(1, Relaxed);
    } else if from_vram {
        dev.counters.evictions.fetch_add(1, Relaxed);
        if clean {
            // CAST: `usize` has 64 bits.
            dev.counters
                .clean_bytes
                .fetch_add(bo.size() as u64, Relaxed);
        }
    } else if to_vram {
        dev.counters.promotions.fetch_add(1, Relaxed);
    }
    published.ok_or(EIO)
}
