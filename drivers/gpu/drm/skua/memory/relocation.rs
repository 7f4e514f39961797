// SPDX-License-Identifier: GPL-2.0

//! Having an object move between VRAM, system memory and the aperture, under the addresses at which
//! CPU and GPU find it (rows 1.11, 1.12, 1.16, 1.17).
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
//! The ioctl's part is here; what follows the publication is in [`moves`](super::moves).
//!
//! Between the aperture and direct access nothing is copied: the pages stay, page tables lead to
//! them another way. What is [offered](super::offer) may move to nowhere: nothing is copied, page
//! tables lead nowhere. Which of these a move is, [`policy::relocation`](crate::policy::relocation)
//! says.
//!
//! Whoever comes after the publication waits for the fence: CPU accesses and binds, which look at
//! the object, and submissions, which look at their address space. What came before is waited for
//! by the move. So nobody sees memory that is being moved, and nothing is lost. Apart from that is
//! work of devices with explicit residency for which the object is not resident, or not yet
//! ([`ClientDevice::has_evicted`]): it goes on beside the move, and finds no way to the object.
//!
//! A move that waits for work waits in a context of the driver's own for whose work that is
//! ([`Mover`]), or in one of its own if no address space has it ([`MoveContext`]): what one client
//! has queued delays no other's clears and moves. What it waits for may fail: then it is over, too.
//!
//! The [context allocation](super::save_areas) that an engine saves to moves when its context has
//! nothing queued, and the engine has left it. Others of the address space do not use it: it waits
//! for that context alone, and that context alone for it.

use crate::{
    ext::{
        exec::Exec,
        fence::Fence,
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
        Gpu,
        Mover,
        SkuaDevice, //
    },
    kernel_heap::client_flags,
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
        move_contexts::MoveContext,
        moves::{
            Content,
            Move,
            Transfer, //
        },
        save_areas,
        vm::{
            for_each_user,
            Vm, //
        }, //
    },
    policy::{
        miniport::Flush,
        relocation::{
            way,
            Facts,
            Place,
            Way, //
        }, //
    },
    spec::number::ContextSlot, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Where `memory` is, in the policy's terms; nowhere if there is none.
fn place_of(memory: Option<&Memory>) -> Place {
    match memory {
        Some(Memory::Vram(_)) => Place::Vram,
        Some(Memory::System(_)) => Place::System,
        Some(Memory::Aperture(_)) => Place::Aperture,
        Some(Memory::Imported(_) | Memory::Fence(_)) => Place::Imported,
        None => Place::Nowhere,
    }
}

/// Why an object moves.
#[derive(Clone, Copy)]
pub(crate) enum Reason<'a> {
    /// Others are to have its room in VRAM.
    NoRoom,
    /// For the device of a client, which has asked for that, and is told when it is over.
    Asked(&'a ClientDevice),
    /// None of these.
    Other,
}

/// An object that is to move and all address spaces in which it is mapped, locked.
struct Locked {
    /// First: the locks go before what they are of.
    exec: Exec,
    /// The object's own reservation.
    own: Handle,
    /// The address spaces, behind those of earlier rounds: one of these may be the last reference,
    /// with a lock of its own.
    users: KVVec<Arc<Vm>>,
    /// How many of them are from earlier rounds.
    old_users: usize,
    /// Whose work goes on beside the move.
    apart: Apart,
}

/// Reservations of address spaces whose work does not wait for a move of an object; each with
/// whether the move does not wait for that work, either.
struct Apart(KVVec<(Handle, bool)>);

impl Apart {
    /// Of the address spaces `users` of `bo`. Who has asked for the move is told when it is over.
    fn new(bo: &BoRef, users: &[Arc<Vm>], reason: Reason<'_>) -> Result<Self> {
        let mut apart = KVVec::new();
        if !bo.is_reached_if_resident() {
            return Ok(Self(apart));
        }
        for vm in users {
            let device = vm.device();
            let has_evicted = device.has_evicted(bo);
            let is_told = matches!(reason, Reason::Asked(it) if it.id() == device.id())
                && device.is_explicit()
                && device.residents().has_once(bo);
            if has_evicted || is_told {
                let handle = vm.reservation().handle();
                apart.push((handle, has_evicted), client_flags())?;
            }
        }
        Ok(Self(apart))
    }

    /// Whether work of `handle`'s address space waits for the move.
    fn is_told_of(&self, handle: &Handle) -> bool {
        !self.0.iter().any(|(other, _)| other == handle)
    }

    /// Whether the move waits for work of `handle`'s address space.
    fn is_waited_for(&self, handle: &Handle) -> bool {
        let mut over = self.0.iter().filter(|(_, is_over)| *is_over);
        !over.any(|(other, _)| other == handle)
    }
}

impl Locked {
    /// Locks `bo` and its users, each with room for a fence; unless it `may_wait`, `bo` at once.
    /// `EBUSY`, `ENOMEM`; `EINTR` if a signal arrives.
    fn new(dev: &SkuaDevice, bo: &BoRef, may_wait: bool, reason: Reason<'_>) -> Result<Self> {
        let own = Handle::of(&**bo);
        let mut users: KVVec<Arc<Vm>> = KVVec::new();
        let mut old_users = 0;
        let exec = Exec::lock_all(|exec| {
            old_users = users.len();
            if may_wait {
                exec.lock(&own)?;
            } else if !exec.try_lock(&own)? {
                // Somebody has it, a page fault for one: it is not idle.
                return Err(EBUSY);
            }
            for_each_user(dev, bo, |vm| {
                users.push(vm.clone(), client_flags())?;
                exec.lock(&vm.reservation().handle())
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
        let apart = Apart::new(bo, users.get(old_users..).unwrap_or_default(), reason)?;
        Ok(Self {
            exec,
            own,
            users,
            old_users,
            apart,
        })
    }

    /// The address spaces in which it is mapped, or whose it is.
    fn users(&self) -> &[Arc<Vm>] {
        self.users.get(self.old_users..).unwrap_or_default()
    }

    /// Whether work of these uses it for which a move would wait.
    fn is_in_use(&self) -> bool {
        let is_waited_for = |handle: &Handle| self.apart.is_waited_for(handle);
        !self.exec.is_idle(Usage::Bookkeep, is_waited_for)
    }
}

/// A move that can be made.
struct Plan {
    /// The memory that the object has now, and would leave.
    old: Memory,
    /// What becomes of its content.
    way: Way,
    /// Whether no move of it is under way.
    is_settled: bool,
}

/// Looks at an object that is locked, whether it can move `to` memory, or nowhere, `from` VRAM
/// range number `from`, if that is said; its `new` placement keeps the copy that is clean then.
/// `EBUSY` as [`relocate`]; `ENOMEM`, `EINTR`.
fn plan(
    dev: &SkuaDevice,
    bo: &BoRef,
    locked: &mut Locked,
    new: &mut gem::PlacementOf<BoData>,
    to: Option<&Memory>,
    from: Option<u32>,
) -> Result<Plan> {
    let mut reserved = locked.exec.reserved(&locked.own)?;
    let comes = to.is_some_and(Memory::is_vram) && !bo.needs_vram();
    let is_attached = gem::is_pinned(&**bo) || comes && gem::is_attached_now(&**bo);
    if is_attached || bo.is_dying() {
        return Err(EBUSY);
    }
    BoData::rouse(bo, &mut reserved)?;
    let placement = gem::placement(bo, &reserved)?;
    if let Placement::Device(site) = new {
        site.keep(CleanCopy::of(dev, bo, &reserved)?);
    }
    let (copy, is_lost) = match placement {
        Placement::Device(site) => (site.copy(), site.range.is_lost()),
        _ => (None, false),
    };
    let old = bo::memory_of(placement).ok_or(EBUSY)?;
    if matches!(&old, Memory::Vram(range) if Some(range.number()) != from) {
        return Err(EBUSY);
    }
    let is_settled = bo::is_settled(bo, &reserved)?;
    let pages = old.system().or(copy.map(|(_, memory)| memory));
    let new_pages = to.and_then(Memory::system);
    let facts = Facts {
        from: place_of(Some(&old)),
        to: place_of(to),
        has_copy: copy.is_some(),
        is_lost,
        same_pages: pages
            .zip(new_pages)
            .is_some_and(|(old, new)| Arc::ptr_eq(old, new)),
        is_stale: new_pages.is_some_and(|pages| pages.is_stale()),
        is_settled,
        is_offered: bo.is_offered(),
        is_held_out: BoData::is_held_out(bo),
        is_arriving: bo.is_arriving(),
    };
    let way = way(&facts).ok_or(EBUSY)?;
    // Last: it may take a part of the aperture.
    if matches!(to, Some(Memory::Vram(range)) if !BoData::may_be_locked_in(bo, range)) {
        return Err(EBUSY);
    }
    Ok(Plan {
        old,
        way,
        is_settled,
    })
}

/// The context that an engine saves to `bo`, if it is such an area: nobody else uses that.
fn saver_of(dev: &SkuaDevice, bo: &BoRef) -> Option<ContextSlot> {
    if bo.context_of() != Some(ContextUse::Engine) {
        return None;
    }
    let context = dev.contexts.find_by(|context| context.is_saved_in(bo))?;
    let slot = context.slot();
    dev.reapers.contexts.bury(context);
    slot
}

/// Whether no work reaches what needs VRAM where it is.
fn is_unreached(bo: &BoRef, memory: &Memory) -> bool {
    bo.needs_vram() && matches!(memory, Memory::System(_))
}

/// What is to be over before a move that is `planned` begins. `EBUSY` if it is a context's save
/// area that moves already; `ENOMEM`.
fn waits(
    dev: &SkuaDevice,
    bo: &BoRef,
    locked: &mut Locked,
    planned: &Plan,
    saver: Option<ContextSlot>,
) -> Result<Few<Fence>> {
    let mut waits = Few::Empty;
    if saver.is_some() {
        if !planned.is_settled {
            return Err(EBUSY);
        }
    } else if is_unreached(bo, &planned.old) {
        let reserved = locked.exec.reserved(&locked.own)?;
        if let Some(fence) = reserved.singleton(Usage::Kernel)? {
            waits.push(fence)?;
        }
    } else {
        let (exec, apart) = (&locked.exec, &locked.apart);
        let is_waited_for = |handle: &Handle| apart.is_waited_for(handle);
        exec.collect(Usage::Bookkeep, is_waited_for, |fence| waits.push(fence))?;
    }
    if bo.saves_context() {
        // Row 2.07: nothing more of the contexts comes as long as these are locked.
        save_areas::leave(dev, bo, &mut waits)?;
    }
    Ok(waits)
}

/// Which address spaces may lead to the `old` memory.
fn flush(bo: &BoRef, old: &Memory, users: &[Arc<Vm>]) -> Flush {
    if is_unreached(bo, old) {
        return Flush::Nothing;
    }
    users
        .iter()
        .filter(|vm| bo.sites.is_user(vm.asid()))
        .fold(Flush::Nothing, |flush, vm| flush.and(vm.asid()))
}

/// Tells `vm`, which may be among the users of `bo`, that it is out, or displaced, with memory for
/// that, or is not any more.
fn list(bo: &BoRef, vm: &Vm, out: Option<evicted::Node>) {
    let is_out = out.is_some();
    // First: a user that goes meanwhile takes it back if it is told.
    if let Some(node) = out {
        vm.list_for(bo).add(bo, node);
    }
    let was_out = bo.sites.set_listed(vm.asid(), is_out);
    let has_changed = was_out == Some(!is_out);
    if has_changed != is_out {
        vm.list_for(bo).remove(bo);
    }
}

/// Counts a move from VRAM, or to it.
fn count(dev: &SkuaDevice, bo: &BoRef, from: Place, to: Place, way: Way) {
    let counters = &dev.counters;
    if bo.saves_context() {
        counters.context_moves.fetch_add(1, Relaxed);
    } else if from == Place::Vram {
        counters.evictions.fetch_add(1, Relaxed);
        if way == Way::Clean {
            // CAST: `usize` has 64 bits.
            counters.clean_bytes.fetch_add(bo.size() as u64, Relaxed);
        }
    } else if to == Place::Vram {
        counters.promotions.fetch_add(1, Relaxed);
    }
}

/// A fence for all that a move of `bo` would wait for now. `ENOMEM`; `EINTR` if a signal arrives.
pub(crate) fn work(dev: &SkuaDevice, bo: &BoRef) -> Result<Fence> {
    let locked = Locked::new(dev, bo, true, Reason::Other)?;
    let mut work = KVVec::new();
    let is_waited_for = |handle: &Handle| locked.apart.is_waited_for(handle);
    let collect = |fence| Ok(work.push(fence, client_flags())?);
    locked
        .exec
        .collect(Usage::Bookkeep, is_waited_for, collect)?;
    Fence::all(work)
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
/// or has asked for the move, did not have the object resident before, and is told when it is over.
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
    reason: Reason<'_>,
) -> Result<Fence> {
    // None if it is thrown away.
    let memory = bo::memory_of(&new);
    if may_wait {
        // Before the locks: what rests may have been swapped out.
        drop(gem::lock_brought(&**bo)?);
    }
    let mut locked = Locked::new(dev, bo, may_wait, reason)?;
    let planned = plan(dev, bo, &mut locked, &mut new, memory.as_ref(), from)?;
    if !may_wait && locked.is_in_use() {
        return Err(EBUSY);
    }
    let saver = saver_of(dev, bo);
    let waits = waits(dev, bo, &mut locked, &planned, saver)?;
    let Plan { old, way, .. } = planned;
    let (from, to) = (place_of(Some(&old)), place_of(memory.as_ref()));
    let is_out = |memory: &Memory| is_unreached(bo, memory);
    let is_displaced = matches!(reason, Reason::NoRoom) && bo.may_be_displaced();
    let mut nodes = KVVec::new();
    if is_displaced || (bo.needs_vram() && memory.as_ref().is_none_or(is_out)) {
        for _ in locked.users() {
            nodes.push(evicted::Node::new(client_flags())?, client_flags())?;
        }
    }
    let waited_for = |vm: &&Arc<Vm>| locked.apart.is_waited_for(&vm.reservation().handle());
    let user = locked.users().iter().find(waited_for);
    let user = user.or(locked.users().first());
    let paging = dev.paging()?;
    let mover = match (saver, user) {
        (Some(slot), _) => Some(Mover::SaveArea(slot)),
        (None, Some(vm)) if waited_for(&vm) => Some(Mover::Users(vm.asid())),
        (None, Some(vm)) => Some(Mover::Evicted(vm.asid())),
        (None, None) => None,
    };
    let is_own = waits.iter().all(|fence| paging.is_own(fence));
    let often = bo.sites.are_many();
    let mut alone = None;
    let line = match mover {
        // It delays nobody.
        _ if is_own && !often => paging,
        Some(mover) => Gpu::mover(dev, mover)?,
        None => alone.insert(MoveContext::new(dev)?).context().clone(),
    };
    let content = match (way, &old, &memory) {
        (Way::Copied, Memory::Vram(range), Some(other)) => {
            Content::copied(parent, range, other, true)?
        }
        (Way::Copied, other, Some(Memory::Vram(range))) => {
            Content::copied(parent, range, other, false)?
        }
        (Way::Discarded, Memory::Vram(range), _) => Content::Discarded(range.clone()),
        _ => Content::Stays,
    };
    let names = (old.name(), memory.as_ref().map_or(c"nowhere", Memory::name));
    let flush = flush(bo, &old, locked.users());
    let keeps = matches!(&new, Placement::Device(site) if site.copy().is_some());
    let is_copied = way == Way::Copied;
    let moved = Move::new(
        dev,
        bo,
        (old, memory),
        is_copied,
        keeps,
        user.cloned(),
        alone,
    )?;
    let transfer = Transfer::new(content, flush, often, moved)?;
    // What the CPU has stored is there before the copy starts: it has no mapping any more, and the
    // register write that starts the copy does not pass stores to the same device.
    gem::unmap(&**bo);
    let mut published = None;
    if matches!(to, Place::Vram | Place::Nowhere) {
        // It may have arrived before the next line. If nothing becomes of it, the move ends this.
        bo.begin_arrival();
    }
    let Locked { exec, apart, .. } = &mut locked;
    line.transfer(transfer, waits, |fence| {
        let usage = match saver {
            Some(_) => Usage::Bookkeep,
            None => Usage::Kernel,
        };
        let filed = exec.add_fence(fence, usage, |handle| apart.is_told_of(handle));
        crate::warn_on_once!(filed.is_err());
        if let Some(context) = saver.and_then(|slot| dev.contexts.find(slot)) {
            // Or the next one that has the place, which then waits for nothing of its own.
            context.area_moves(fence);
            dev.reapers.contexts.bury(context);
        }
        published = Some(fence.clone());
    })?;
    // The locks are held all the time: to others this is one step.
    let replaced = bo::replace(bo, &mut locked.exec.reserved(&locked.own)?, new);
    crate::warn_on_once!(replaced.is_err());
    bo.set_clean(keeps);
    if to == Place::Nowhere {
        BoData::set_discarded(bo);
    }
    if from == Place::Vram || to == Place::Vram {
        bo.set_displaced(is_displaced);
    }
    if bo.needs_vram() || is_displaced || to == Place::Vram {
        for vm in locked.users() {
            list(bo, vm, nodes.pop());
        }
    }
    bo::renew(bo);
    let (from_name, to_name) = names;
    if let Some(fence) = &published {
        trace::moved(dev, fence, from_name, to_name, bo.size(), way == Way::Clean);
    }
    count(dev, bo, from, to, way);
    published.ok_or(EIO)
}
