// SPDX-License-Identifier: GPL-2.0

//! Making room in VRAM: objects that may be elsewhere move to system memory (row 1.16).
//!
//! ```text
//! an ioctl, nothing locked     system pages ─▶ lock the object and all its users' reservations
//!                              ─▶ plan ─▶ CPU mappings removed ─▶ fence published: a kernel fence
//!                              of all these ─▶ the placement is the new one
//! driver's context, its turn   who used the memory is done ─▶ the copy engine copies
//! worker                       page tables lead to the new memory, TLBs flushed ─▶ the old memory
//!                              to the reaper ─▶ fence signalled
//! ```
//!
//! Whoever comes after the publication waits for the fence: CPU accesses and binds, which look at
//! the object, and submissions, which look at their address space. What came before is waited for
//! by the move. So nobody sees memory that is being moved, and nothing is lost (row 1.12).
//!
//! A move that waits for work waits in a line of the driver's own for the address space
//! ([`Gpu::mover`]): what one client has queued delays no other's clears and moves. What it waits
//! for may fail: then it is over, too.
//!
//! Nothing moves back yet.

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
            Placement, //
        },
        lru,
        resv::{
            self,
            Handle,
            Usage, //
        }, //
    },
    gpu::{
        self,
        Gpu,
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
            Memory,
            REGION_VRAM, //
        },
        vm::{
            for_each_user,
            Vm, //
        },
        vram::{
            Part,
            VramRange, //
        }, //
    },
    policy::{
        buddy::PAGE_BYTES,
        transfer_plan::{
            TransferError,
            TransferPlan, //
        }, //
    },
    quota::Quota,
    reaper::{
        self,
        Reapable, //
    },
    spec::number::Asid, //
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
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed,
        Arc,
        SpinLock, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    warn_on,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// A move that was published: what is to be done when the copy is over.
#[pin_data]
pub(crate) struct Move {
    /// The device that copies.
    dev: ARef<SkuaDevice>,
    /// What moves.
    bo: BoRef,
    /// Where its content goes.
    new: Memory,
    /// Where it came from: given back when nobody can reach it any more.
    old: Memory,
    /// The address space in whose line it waits, which keeps that.
    _user: Option<Arc<Vm>>,
    /// From the end of the copy until all is installed.
    #[pin]
    fence: SpinLock<Option<DriverFence>>,
    /// Installs, in a worker: page tables may be many.
    #[pin]
    work: Work<Self>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
}

impl_has_work! {
    impl HasWork<Self> for Move { self.work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Move { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Move { using ListLinks { self.links }; }
}

impl Reapable for Move {}

/// The copying of an object's memory from VRAM to system memory, and the move that it is for.
#[pin_data]
pub(crate) struct Transfer {
    /// What is copied.
    pub(crate) plan: TransferPlan<KernelHeap>,
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

    /// The copy is over, or will not be made: `fence` is signalled when that can be seen. Called
    /// once; allocates nothing.
    pub(crate) fn finish(&self, fence: DriverFence, result: Result) {
        let moved = self.moved.lock().take();
        match (moved, result) {
            (Some(moved), Ok(())) => {
                *moved.fence.lock() = Some(fence);
                let queued = QUEUE.enqueue(moved);
                warn_on!(queued.is_err());
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
    /// Has all page tables lead to the new memory. `ENODEV`, `EIO`.
    fn install(&self) -> Result {
        let dev = &*self.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&bound);
        // `self` holds it.
        drop(self.bo.sites.set_memory(self.new.clone()));
        let mut result = Ok(());
        for_each_user(dev, &self.bo, |vm| {
            result = result.and(vm.reinstall(parent, &self.bo, &self.new));
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

/// How long, in all, a client waits for room.
const PATIENCE_MS: u32 = 10_000;
/// How often it looks whether what was being cleared is free.
const CLEAR_WAITS: u32 = 5;

/// Allocates `bytes` bytes of a `part` of VRAM, a multiple of the page size, not cleared yet; if
/// there is no room, some is made.
///
/// It is for a client with `quota`. `ENOSPC` if what is there has to stay, or is in use for long;
/// `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn allocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    part: Part,
    bytes: u64,
) -> Result<Arc<VramRange>> {
    let mut patience = msecs_to_jiffies(PATIENCE_MS);
    let mut waits = 0;
    loop {
        match VramRange::new(dev, quota, part, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        // Perhaps there is room in what is about to be freed.
        reaper::flush();
        match VramRange::new(dev, quota, part, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        if make_room(dev, parent, part, bytes, &mut patience)? {
            continue;
        }
        // Or in what is to be destroyed when the work before that is done.
        if let Some(fence) = dev.destroyer.obstacle(part) {
            wait(&fence, &mut patience)?;
            continue;
        }
        // Or in what nobody has any more, but that is still being cleared.
        let Some(fence) = dev.last_clear().filter(|_| waits < CLEAR_WAITS) else {
            return Err(ENOSPC);
        };
        wait(&fence, &mut patience)?;
        waits += 1;
    }
}

/// Waits for `fence`, as long as there is patience, and takes from that. `ENOSPC` if none is left.
fn wait(fence: &Fence, patience: &mut Jiffies) -> Result {
    match fence.wait_timeout(*patience) {
        Ok(left) => *patience = left,
        Err(error) if error == ETIME => return Err(ENOSPC),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Moves objects out of a `part` of VRAM, until there is room for `bytes` more, and waits until it is
/// there. Whether there may be more room now.
fn make_room(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    bytes: u64,
    patience: &mut Jiffies,
) -> Result<bool> {
    let mut missing = bytes.saturating_sub(part.free_bytes(dev));
    if missing == 0 {
        return Ok(true);
    }
    let evictable = lru::pages::<BoData>(dev).saturating_mul(PAGE_BYTES);
    if evictable < missing || part.bytes(dev) < bytes {
        // Nobody is to lose their place in vain.
        return Ok(false);
    }
    let mut moves = KVVec::new();
    // What is idle goes first: it can go at once.
    for victim in [Victim::Idle, Victim::Any] {
        missing = sweep(dev, parent, part, victim, missing, &mut moves)?;
    }
    finish(&moves, patience)?;
    Ok(!moves.is_empty())
}

/// Has objects that are in `part` of VRAM and are `victim`s move, as many as it takes to leave
/// `missing` bytes; appends their fences. How many bytes are missing then. `ENOMEM`, `ENODEV`;
/// `EINTR` if a signal arrives.
fn sweep(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    victim: Victim,
    mut missing: u64,
    moves: &mut KVVec<Fence>,
) -> Result<u64> {
    let mut skipped: Option<BoRef> = None;
    // Others change the list, too.
    for _ in 0..lru::pages::<BoData>(dev) {
        if current!().signal_pending() {
            return Err(EINTR);
        }
        let Some(bo) = lru::next::<BoData>(dev).filter(|_| missing > 0) else {
            break;
        };
        match &skipped {
            // All were looked at.
            Some(first) if core::ptr::eq(&**first, &*bo) => break,
            // It is not in the list any more.
            Some(first) if first.region() != REGION_VRAM => skipped = None,
            _ => (),
        }
        if !is_in(&bo, part) {
            skipped.get_or_insert(bo);
            continue;
        }
        match evict(dev, parent, &bo, victim) {
            Ok(fence) => {
                moves.push(fence, GFP_KERNEL)?;
                missing = missing.saturating_sub(u64::try_from(bo.size())?);
            }
            Err(error) if error == EINTR || error == ENODEV => return Err(error),
            Err(_) => _ = skipped.get_or_insert(bo),
        }
    }
    Ok(missing)
}

/// Waits until `moves` are done and what they left is free, as long as there is patience.
fn finish(moves: &[Fence], patience: &mut Jiffies) -> Result {
    for fence in moves {
        wait(fence, patience)?;
    }
    reaper::flush();
    Ok(())
}

/// Has `bo`, which may be there, move to system memory, and waits until it is there: another device
/// is to use it. `ENOMEM`, `ENODEV`; `ENOSPC` if it is in use for long; `EINTR` if a signal arrives.
pub(crate) fn move_out(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    match evict(dev, parent, bo, Victim::Wanted) {
        Ok(fence) => wait(&fence, &mut msecs_to_jiffies(PATIENCE_MS)),
        // Somebody else has moved it; who maps it waits for that.
        Err(error) if error == EBUSY => Ok(()),
        Err(error) => Err(error),
    }
}

/// Which objects may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One that nobody is working with.
    Idle,
    /// Any.
    Any,
    /// This one, for its own client.
    Wanted,
}

/// Whether some of `bo` is in `part` of VRAM, as it looks without its lock.
fn is_in(bo: &BoRef, part: Part) -> bool {
    matches!(bo.sites.memory(), Some(Memory::Vram(range)) if range.touches(part))
}

/// Whether nobody works with `bo`, as it looks without any lock.
fn is_idle(dev: &SkuaDevice, bo: &BoRef) -> bool {
    let busy_user = for_each_user(dev, bo, |vm| {
        match vm.reservation().is_idle(Usage::Bookkeep) {
            true => Ok(()),
            false => Err(EBUSY),
        }
    });
    busy_user.is_ok() && resv::is_idle(&**bo, Usage::Bookkeep)
}

/// Has `bo` move from VRAM to system memory; the fence of that.
///
/// `EBUSY` if it is not in VRAM, or pinned, or about to be destroyed, or no `victim`; `ENOMEM`, also if all clients together,
/// or of a wanted one its own, have too much system memory; `ENODEV`; `EINTR` if a signal arrives.
/// Nothing has changed then.
fn evict(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef, victim: Victim) -> Result<Fence> {
    // Not before it is worth the memory.
    if bo.region() != REGION_VRAM || (victim == Victim::Idle && !is_idle(dev, bo)) {
        return Err(EBUSY);
    }
    let bytes = u64::try_from(bo.size())?;
    let Some(Memory::Vram(range)) = bo.sites.memory() else {
        return Err(EBUSY);
    };
    let own = match victim {
        Victim::Wanted => range.quota().take(bytes).ok_or(ENOMEM)?,
        // The client did not ask for it: its own quota does not keep it in VRAM.
        _ => range.quota().charge(bytes),
    };
    let shares = [own, dev.system.take(bytes).ok_or(ENOMEM)?];
    let (pages, system) = bo::system_memory(dev, parent, bo, shares)?;
    let new = Placement::System(pages, system);
    let memory = bo::memory_of(&new).ok_or(EIO)?;

    let handle = Handle::of(&**bo);
    // Held longer than the locks: one of them may be the last reference.
    let mut users: KVVec<Arc<Vm>> = KVVec::new();
    // How many of them are from earlier rounds.
    let mut old_users = 0;
    let mut exec = Exec::lock_all(|exec| {
        old_users = users.len();
        if victim != Victim::Idle {
            exec.lock(&handle)?;
        } else if !exec.try_lock(&handle)? {
            // Somebody has it, a page fault for one: it is not idle.
            return Err(EBUSY);
        }
        for_each_user(dev, bo, |vm| {
            let handle = vm.reservation().handle();
            users.push(vm, GFP_KERNEL)?;
            exec.lock(&handle)
        })?;
        // Nothing of it is mapped, but what it waits for is that address space's.
        if users.len() == old_users {
            if let Some(vm) = bo.home(dev) {
                users.push(vm, GFP_KERNEL)?;
            }
        }
        exec.reserve_fences()
    })?;
    let old = {
        let reserved = exec.reserved(&handle)?;
        match gem::placement(bo, &reserved)? {
            Placement::Device(_) if gem::is_pinned(&**bo) || bo.is_doomed() => return Err(EBUSY),
            Placement::Device(range) => range.clone(),
            _ => return Err(EBUSY),
        }
    };
    if victim == Victim::Idle && !exec.is_idle(Usage::Bookkeep) {
        return Err(EBUSY);
    }
    let mut waits = KVVec::new();
    exec.collect(Usage::Bookkeep, |fence| {
        waits.push(fence, client_flags()).map_err(Error::from)
    })?;
    let user = users.get(old_users);
    let paging = dev.paging()?;
    let line = match user {
        // It delays nobody.
        _ if waits.iter().all(|fence| paging.is_own(fence)) => paging,
        Some(vm) => Gpu::mover(dev, vm.asid())?,
        None => Gpu::mover(dev, Asid::SYSTEM)?,
    };
    let plan = memory.with_pieces(parent, 0, |pieces| {
        Ok(TransferPlan::new(old.blocks(), pieces)?)
    })?;
    let moved = Arc::pin_init(
        pin_init!(Move {
            dev: dev.into(),
            bo: bo.clone(),
            new: memory,
            old: Memory::Vram(old),
            _user: user.cloned(),
            fence <- new_spinlock!(None),
            work <- new_work!("Move::work"),
            links <- ListLinks::new(),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    let transfer = Arc::pin_init(
        pin_init!(Transfer {
            plan,
            line: FenceContext::new(c"skua", c"move"),
            moved <- new_spinlock!(Some(moved)),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    // What the CPU has stored is there before the copy starts: it has no mapping any more, and the
    // register write that starts the copy does not pass stores to the same device.
    gem::unmap(&**bo);
    let mut published = None;
    line.transfer(transfer, waits, |fence| {
        warn_on!(exec.add_fence(fence, Usage::Kernel).is_err());
        published = Some(fence.clone());
    })?;
    // The locks are held all the time: to others this is one step.
    let replaced = bo::replace(bo, &mut exec.reserved(&handle)?, new);
    warn_on!(replaced.is_err());
    lru::forget(&**bo);
    dev.counters.evictions.fetch_add(1, Relaxed);
    published.ok_or(EIO)
}

/// Has everything move out of VRAM that may, and waits until it has; how many objects did. For
/// debugfs.
pub(crate) fn evict_all(dev: &SkuaDevice, parent: &Device<Bound>) -> Result<usize> {
    let mut moves = KVVec::new();
    sweep(dev, parent, Part::Any, Victim::Any, u64::MAX, &mut moves)?;
    finish(&moves, &mut msecs_to_jiffies(PATIENCE_MS))?;
    Ok(moves.len())
}
