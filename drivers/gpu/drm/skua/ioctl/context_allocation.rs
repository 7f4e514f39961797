// SPDX-License-Identifier: GPL-2.0

//! Handles of context allocations, and what ioctls do with them.

use crate::{
    ext::uapi::*,
    fences::hold::Holder,
    ioctl::file::{
        remove_one,
        Data,
        Device,
        File,
        SkuaFile, //
    },
    memory::{
        bo::BoRef,
        save_areas::{
            self,
            AllocationArgs, //
        },
        vm::Vm, //
    },
    policy::context_allocation::{
        self,
        Request, //
    },
    quota::Share,
    spec::number::Asid,
    submit::context::{
        Context,
        UNLIMITED, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Handles of context allocations of one client at a time.
pub(crate) const MAX_CONTEXT_ALLOCATIONS: u64 = 256;

const _: () = assert!(
    DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS == context_allocation::SHARED_ACROSS_CONTEXTS
);

/// A context allocation, as a handle of its client names it.
pub(crate) struct ContextAllocation {
    /// Its memory, which the address space has, too.
    bo: BoRef,
    /// The address space in which it is mapped, which it keeps.
    vm: Arc<Vm>,
    /// The handle's part of the client's quota of context allocations: 1.
    _share: Share,
}

impl ContextAllocation {
    /// The address space in which it is.
    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// Whether its memory is `bo`.
    fn is(&self, bo: &BoRef) -> bool {
        core::ptr::eq(&*self.bo, &**bo)
    }
}

impl File {
    /// Frees what is only for `context`, which is about to be destroyed, or was just now. Without
    /// memory for that it goes with the address space.
    pub(crate) fn free_allocations(&self, context: &Context) {
        let (Some(vm), Some(slot)) = (context.vm(), context.slot()) else {
            return;
        };
        while let Some(bo) = vm.claim_owned(slot) {
            remove_one(&self.allocations, |it| it.is(&bo));
            // For want of memory: as said above.
            let _ = save_areas::free(&self.dev, vm, &bo);
        }
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_ALLOC`
    pub(crate) fn context_alloc(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_context_alloc,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let this = file.inner();
        let vm = this.vm(args.vm)?;
        let context = match args.context {
            0 => None,
            handle => Some(this.context(handle)?),
        };
        if args.pad != 0 {
            return Err(EINVAL);
        }
        let space = |context: &Arc<Context>| context.vm().map_or(Asid::SYSTEM, |vm| vm.asid());
        let request = Request {
            space: vm.asid(),
            context: context.as_ref().map(space),
            flags: args.flags,
            size: args.size,
            alignment: args.alignment,
            supported: args.placements,
            preferred: args.preferred,
            eviction: args.eviction_set,
        };
        let (_, alignment, sets) = request.check(save_areas::MOST).map_err(|_| EINVAL)?;
        vm.device().check()?;
        if let Some(context) = &context {
            context.check(UNLIMITED)?;
        }
        let share = this.allocation_quota.take(dev, 1).ok_or(ENOSPC)?;
        let owner = context.as_ref().and_then(|context| context.slot());
        let wanted = AllocationArgs {
            size: args.size,
            alignment,
            sets,
        };
        let (parent, quota) = (data.parent(), &this.system_quota);
        let (bo, va) = save_areas::allocate(dev, parent, &vm, quota, owner, &wanted)?;
        let made = ContextAllocation {
            bo: bo.clone(),
            vm: vm.clone(),
            _share: share,
        };
        let handle = Arc::new(made, GFP_KERNEL_ACCOUNT)
            .map_err(Error::from)
            .and_then(|made| this.allocations.lock().insert(made));
        // They may have been destroyed meanwhile, without this one.
        bo.unclaim();
        let is_gone = |context: Arc<Context>| {
            let found = dev.contexts.find_by(|it| core::ptr::eq(it, &*context));
            let is_gone = found.is_none();
            found
                .into_iter()
                .for_each(|it| dev.reapers.contexts.bury(it));
            is_gone
        };
        let handle = match !vm.is_active() || context.is_some_and(is_gone) {
            true => handle.and(Err(ENOENT)),
            false => handle,
        };
        match handle {
            Ok(handle) => (args.handle, args.va) = (handle, va),
            Err(error) => {
                remove_one(&this.allocations, |it| it.is(&bo));
                if bo.claim() {
                    // Or it goes with the address space.
                    let _ = save_areas::free(dev, &vm, &bo);
                }
                return Err(error);
            }
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_FREE`
    pub(crate) fn context_free(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_free,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let gone = this.allocations.lock().get(args.handle)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        // Another thread may be at it.
        if !gone.bo.claim() {
            return Err(ENOENT);
        }
        save_areas::free(dev, &gone.vm, &gone.bo).inspect_err(|_| gone.bo.unclaim())?;
        remove_one(&this.allocations, |it| it.is(&gone.bo));
        Ok(0)
    }
}
