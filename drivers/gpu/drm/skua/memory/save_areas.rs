// SPDX-License-Identifier: GPL-2.0

//! Context allocations: where contexts have what an engine keeps of them when it does not hold
//! them, and what they were in the midst of when they were preempted (rows 2.07 to 2.10).
//!
//! ```text
//! first submission   an object, all zero ─▶ initialised, once ─▶ mapped ─▶ in the descriptor
//! it was saved to    moved to VRAM, with the next submission, where there is room
//! eviction           what the context has queued ─▶ its engine leaves it (Task::Switch) ─▶ a move
//!                      ─▶ what the context is given to do meanwhile
//! end of the context its engine leaves it ─▶ destroyed
//! ```
//!
//! Each client's context that submits commands has an object of its own, private to its address
//! space and mapped there in the part that clients cannot bind, one behind the other from
//! [`VA_END`](super::vm::VA_END) on. Nobody has a handle of it. It is system memory until an engine
//! has saved something there: most contexts are never preempted, and need no VRAM. Then it moves as
//! others do, and its content goes with it.
//!
//! An engine holds the context that it last worked for, and writes to its save area when it leaves
//! that for another one. So what is held is not moved, and not freed, before the engine has left it
//! ([`Context::leave`](crate::submit::context::Context::leave)), and all that the context may have
//! in a ring is over by then. What other contexts of the address space do goes on beside the move.
//!
//! Commands of the client can read and write the areas, and can do nothing with them but what they
//! can anyway: an engine checks a state before it goes on with it.
//!
//! Clients [ask for](allocate) more of them, of one context or for all contexts of an address space
//! (row 2.08), by handles that are not GEM's. Those are where their segment sets say, in a window
//! of addresses of their own, and begin in system memory, too: from there they are brought in like
//! any object that is out, whatever the device's residency is. They are treated as if engines wrote
//! them: before they move, or go, the engines leave the context, or all contexts of the address
//! space.

use crate::{
    ext::{
        fence::Fence,
        gem::{
            self,
            GemExt, //
        },
        resv::{
            self,
            Usage, //
        }, //
    },
    few::Few,
    gpu::SkuaDevice,
    memory::{
        bo::{
            self,
            BoArgs,
            BoData,
            BoRef,
            ContextUse,
            Memory, //
        },
        destruction,
        device::look_again,
        residency,
        vm::{
            Vm,
            ASKED_FOR,
            OWN, //
        },
        vram::Part, //
    },
    policy::{
        interval_map::Span,
        miniport::{
            ContextPage,
            VRAM_SEGMENT, //
        },
        priority::Level,
        segment_sets::{
            Segment,
            SegmentSets, //
        }, //
    },
    quota::Quota,
    spec::{
        address::{
            BusAddr,
            GpuVa,
            PAGE_SIZE, //
        },
        context::SaveArea,
        number::ContextSlot, //
    },
    submit::context::Context, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    }, //
};

/// Bytes that one which a client asks for has at most.
pub(crate) const MOST: u64 = ASKED_FOR.end - ASKED_FOR.start;

/// Makes one, mapped in `vm`, and has it initialised before the next work of that; it counts
/// against `quota`. [`None`] if the device has none.
///
/// `ENOMEM`; `ENOSPC` if there are too many; `ENODEV`, `EIO`; `EINTR` if a signal arrives.
pub(crate) fn create(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Arc<Vm>,
    quota: &Arc<Quota>,
) -> Result<Option<(BoRef, SaveArea)>> {
    let bytes = dev.hw.caps.save_size;
    if bytes == 0 {
        return Ok(None);
    }
    const VRAM: u32 = Segment::Vram.bit();
    const SYSTEM: u32 = Segment::System.bit();
    let sets = SegmentSets::new(VRAM | SYSTEM, 0, 0).ok_or(EINVAL)?;
    let size = u64::from(bytes).next_multiple_of(PAGE_SIZE);
    let bo = make(dev, parent, vm, quota, size, sets, ContextUse::Engine)?;
    let va = map(dev, parent, vm, &bo, size, OWN, PAGE_SIZE)?;
    let base = GpuVa(va);
    Ok(Some((bo, SaveArea { base, bytes })))
}

/// What a context allocation is made from.
pub(crate) struct AllocationArgs {
    /// Bytes: whole pages, up to [`MOST`].
    pub(crate) size: u64,
    /// Of the address, in bytes: a power of two, up to that of the largest page.
    pub(crate) alignment: u64,
    /// The segments in which it may be.
    pub(crate) sets: SegmentSets,
}

/// Makes one that a client has asked for, of the context in `owner` or of all contexts of `vm`, and
/// where it is mapped there; [claimed](BoData::claim) by the caller. As [`create`]; `ENOSPC` also
/// if it is for VRAM alone and larger than that, or the aperture, which alone it is for else, has
/// no room.
pub(crate) fn allocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Arc<Vm>,
    quota: &Arc<Quota>,
    owner: Option<ContextSlot>,
    args: &AllocationArgs,
) -> Result<(BoRef, u64)> {
    let AllocationArgs {
        size,
        alignment,
        sets,
    } = *args;
    if sets.supported() == Segment::Vram.bit() && size > Part::Any.bytes(dev) {
        return Err(ENOSPC);
    }
    let of = owner.map_or(ContextUse::Device, |_| ContextUse::Context);
    let bo = make(dev, parent, vm, quota, size, sets, of)?;
    // Nobody else destroys it before the caller has a handle.
    bo.claim();
    if let Some(slot) = owner {
        // Before somebody moves it.
        vm.set_owner(&bo, slot)?;
    }
    let va = map(dev, parent, vm, &bo, size, ASKED_FOR, alignment);
    let va = va.inspect_err(|_| vm.forget_owner(&bo))?;
    // What needs to be there comes with the first work.
    residency::come_back(dev, parent, &bo, true);
    Ok((bo, va))
}

/// An object for one, initialised before the next work of `vm`.
fn make(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Vm,
    quota: &Arc<Quota>,
    size: u64,
    sets: SegmentSets,
    of: ContextUse,
) -> Result<BoRef> {
    let args = BoArgs {
        flags: 0,
        sets,
        users: Some(vm.reservation().clone()),
        level: Level::Normal,
        context_of: Some(of),
    };
    let bo = BoRef::from(bo::create(dev, parent, quota, size, args)?);
    initialise(dev, parent, &bo)?;
    Ok(bo)
}

/// Maps all of `bo` in `window`; where. If that fails it is destroyed.
fn map(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Arc<Vm>,
    bo: &BoRef,
    size: u64,
    window: Span,
    alignment: u64,
) -> Result<u64> {
    let va = vm.map_own(parent, bo, size, window, alignment);
    va.inspect_err(|_| {
        // What of it is mapped; for want of memory it goes with the address space.
        let _ = destruction::destroy_own(dev, vm.client(), bo, Few::Empty);
    })
}

/// Destroys one that [`allocate`] has made in `vm`, when all is over that was submitted there and
/// engines have left who it is for. `ENOMEM`, `ENODEV`: nothing has changed then, but that an
/// engine may leave a context.
pub(crate) fn free(dev: &SkuaDevice, vm: &Vm, bo: &BoRef) -> Result {
    let mut waits = Few::Empty;
    {
        let reserved = resv::lock_uninterruptible(&**bo)?;
        if let Some(fence) = reserved.singleton(Usage::Bookkeep)? {
            waits.push(fence)?;
        }
        leave(dev, bo, &mut waits)?;
    }
    let begun = destruction::destroy_own(dev, vm.client(), bo, waits);
    match begun {
        Ok(()) => {
            vm.forget_owner(bo);
            vm.forget_absent(bo);
        }
        Err(_) => bo.unmark_dying(),
    }
    // In this order: work that does not wait for it any more does not miss it.
    look_again(dev, bo);
    begun
}

/// Has the engines leave whom `bo` is for, when all that these have queued is over (row 2.07), and
/// adds the fences of that to `waits`. `EBUSY` if it is the area of a context that is being made,
/// or goes; `ENOMEM`; `ENODEV`.
pub(crate) fn leave(dev: &SkuaDevice, bo: &BoRef, waits: &mut Few<Fence>) -> Result {
    let mut leave = |context: Arc<Context>| {
        let left = context.leave();
        dev.reapers.contexts.bury(context);
        match left? {
            Some(fence) => waits.push(fence),
            None => Ok(()),
        }
    };
    let is_in = |context: &Context| {
        let vm = context.vm();
        vm.is_some_and(|vm| bo.may_be_mapped_in(vm.reservation()))
    };
    if bo.context_of() == Some(ContextUse::Device) {
        let mut result = Ok(());
        dev.contexts
            .for_each(|context| match is_in(&context) && result.is_ok() {
                true => result = leave(context),
                // Not dropped here: that takes the lock which the caller has.
                false => dev.reapers.contexts.bury(context),
            });
        return result;
    }
    if bo.context_of() == Some(ContextUse::Engine) {
        let context = dev.contexts.find_by(|context| context.is_saved_in(bo));
        return leave(context.ok_or(EBUSY)?);
    }
    let slot = bo.home(dev).and_then(|vm| {
        let slot = vm.owner(bo);
        dev.reapers.vms.bury(vm);
        slot
    });
    let is_owner = |context: &Context| slot.is_some() && context.slot() == slot && is_in(context);
    match dev.contexts.find_by(is_owner) {
        Some(context) => leave(context),
        // It goes, and is left for that; there is no other one.
        None => Ok(()),
    }
}

/// Counts that page tables are to lead nowhere from `bo`, the area of a context, if its engine
/// needs that (row 2.08).
pub(crate) fn expect_left(dev: &SkuaDevice, bo: &BoRef) {
    let context = dev.contexts.find_by(|context| context.is_saved_in(bo));
    // Of one that goes nobody asks.
    if let Some(context) = context {
        let engine = dev.engine(context.engine());
        if engine.is_ok_and(|engine| engine.needs_area(&context)) {
            dev.counters.context_not_resident.fetch_add(1, Relaxed);
        }
        dev.reapers.contexts.bury(context);
    }
}

/// Has the beginning of `bo` written, once (`DXGK_OPERATION_INIT_CONTEXT_RESOURCE`, row 2.10). All
/// that is submitted to its address space from now on waits for that, as for moves. Errors as of
/// [`create`].
fn initialise(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    let mut reserved = gem::lock_brought(&**bo)?;
    // Nobody uses it: it may have given its pages back.
    BoData::rouse(bo, &mut reserved)?;
    let memory = bo::installable(bo).ok_or(ENODEV)?;
    let page = first_page(parent, &memory)?;
    let mut room = reserved.reserve(1)?;
    dev.paging()?.init_context_resource(memory, page, |fence| {
        crate::warn_on_once!(room.add(fence, Usage::Kernel).is_err());
    })?;
    dev.counters.context_inits.fetch_add(1, Relaxed);
    Ok(())
}

fn first_page(parent: &Device<Bound>, memory: &Memory) -> Result<ContextPage> {
    if let Memory::Vram(range) = memory {
        let block = range.blocks().first().ok_or(EIO)?;
        return Ok(ContextPage::Segment(VRAM_SEGMENT, block.start.0));
    }
    // Whether or not the GPU is to reach them through the aperture.
    let pages = memory.system().ok_or(EIO)?;
    let start = pages.with_pieces(parent, 0, |pieces| Ok(pieces.next().ok_or(EIO)?.start))?;
    Ok(ContextPage::System(BusAddr(start)))
}
