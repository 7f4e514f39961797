// SPDX-License-Identifier: GPL-2.0

//! Context allocations: where contexts have what an engine keeps of them when it does not hold
//! them, and what they were in the midst of when they were preempted (rows 2.07 to 2.10).
//!
//! ```text
//! first submission   an object, all zero ─▶ initialised, once ─▶ mapped ─▶ in the descriptor
//! it is used         moved to VRAM, with the next submission
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
//! ([`Context::leave`](crate::submit::context::Context::leave)), and all that the context may have in
//! a ring is over by then. What other contexts of the address space do goes on beside the move.
//!
//! Commands of the client can read and write the areas, and can do nothing with them but what they
//! can anyway: an engine checks a state before it goes on with it.

use crate::{
    ext::resv::{
        self,
        Usage, //
    },
    gpu::SkuaDevice,
    memory::{
        bo::{
            self,
            BoArgs,
            BoRef,
            Memory, //
        },
        destruction,
        vm::Vm, //
    },
    policy::{
        miniport::{
            ContextPage,
            VRAM_SEGMENT, //
        },
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
        context::SaveArea, //
    }, //
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
    let args = BoArgs {
        flags: 0,
        sets: SegmentSets::new(VRAM | SYSTEM, 0, 0).ok_or(EINVAL)?,
        users: Some(vm.reservation().clone()),
        saves_context: true,
    };
    let size = u64::from(bytes).next_multiple_of(PAGE_SIZE);
    let bo = BoRef::from(bo::create(dev, parent, quota, size, args)?);
    initialise(dev, parent, &bo)?;
    match vm.map_own(parent, &bo, size) {
        Ok(va) => {
            let base = GpuVa(va);
            Ok(Some((bo, SaveArea { base, bytes })))
        }
        Err(error) => {
            // What of it is mapped.
            let _ = destruction::destroy_own(dev, vm.client(), &bo);
            Err(error)
        }
    }
}

/// Has the beginning of `bo` written, once (`DXGK_OPERATION_INIT_CONTEXT_RESOURCE`, row 2.10). All
/// that is submitted to its address space from now on waits for that, as for moves. Errors as of
/// [`create`].
fn initialise(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef) -> Result {
    let mut reserved = resv::lock(&**bo)?;
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
    let start = memory.with_pieces(parent, 0, |pieces| Ok(pieces.next().ok_or(EIO)?.start))?;
    match memory {
        Memory::Vram(range) => {
            let block = range.blocks().first().ok_or(EIO)?;
            Ok(ContextPage::Segment(VRAM_SEGMENT, block.start.0))
        }
        _ => Ok(ContextPage::System(BusAddr(start))),
    }
}
