// SPDX-License-Identifier: GPL-2.0

//! What ioctls do with address spaces; and the operations of a bind, as an ioctl gives them,
//! checked.

use crate::{
    ext::uapi::*,
    fences::hold::{
        self,
        Holder, //
    },
    ioctl::{
        context_allocation::ContextAllocation,
        fence::FenceHandle,
        file::{
            remove_one,
            Data,
            Device,
            File,
            SkuaFile, //
        },
        syncs::{
            self,
            Values, //
        },
        user_array, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoRef, //
        },
        vm::{
            BindRequest,
            Vm,
            Wanted,
            VA_END,
            VA_START, //
        }, //
    },
    policy::interval_map::Span,
    spec::address::PAGE_SIZE,
    submit::context::updates::Updates, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::Arc, //
};

/// Address spaces of one client at a time, those counted that are destroyed and not gone yet.
pub(crate) const CLIENT_VMS: u64 = 256;
/// Most operations of one bind.
pub(crate) const MAX_OPERATIONS: u32 = 1024;

/// What an operation maps.
enum Mapped {
    /// A buffer object.
    Bo(BoRef),
    /// The value of a fence, to read.
    Fence(Arc<FenceHandle>),
}

/// Reads the operations of a bind. `EINVAL` for what the uAPI forbids, `ENOENT` for a handle,
/// `EBUSY` for an object that is offered; for a fence as [`bo::for_fence`].
fn read_operations(
    dev: &Device,
    parent: &device::Device<Bound>,
    file: &SkuaFile,
    vm: &Vm,
    array: &drm_skua_array,
) -> Result<KVVec<Wanted>> {
    if array.count == 0 {
        return Err(EINVAL);
    }
    let ops: KVVec<drm_skua_bind_op> = user_array::read(array, MAX_OPERATIONS)?;
    let mut operations = KVVec::with_capacity(ops.len(), client_flags())?;
    for op in &ops {
        operations.push(operation(dev, parent, file, vm, op)?, client_flags())?;
    }
    Ok(operations)
}

/// Addresses that a client can bind something at. `EINVAL` for others, or none.
fn addresses(va: u64, size: u64) -> Result<Span> {
    let span = Span::with_len(va, size).ok_or(EINVAL)?;
    let are_theirs = VA_START <= span.start && span.end <= VA_END;
    (are_theirs && !span.is_empty())
        .then_some(span)
        .ok_or(EINVAL)
}

fn operation(
    dev: &Device,
    parent: &device::Device<Bound>,
    file: &SkuaFile,
    vm: &Vm,
    op: &drm_skua_bind_op,
) -> Result<Wanted> {
    let flags = match op.type_ {
        DRM_SKUA_BIND_MAP => DRM_SKUA_BIND_READONLY,
        DRM_SKUA_BIND_UNMAP | DRM_SKUA_BIND_MAP_FENCE | DRM_SKUA_BIND_COPY => 0,
        _ => return Err(EINVAL),
    };
    if op.flags & !flags != 0 {
        return Err(EINVAL);
    }
    // What it maps, and its bytes.
    let mapped = match op.type_ {
        DRM_SKUA_BIND_MAP => {
            let bo = Bo::lookup_handle(file, op.handle)?;
            let bytes = u64::try_from(bo.size())?;
            Some((Mapped::Bo(bo.into()), bytes))
        }
        DRM_SKUA_BIND_MAP_FENCE => {
            let fence = file.inner().fence(op.handle)?;
            Some((Mapped::Fence(fence), PAGE_SIZE))
        }
        _ if op.handle != 0 => return Err(EINVAL),
        DRM_SKUA_BIND_UNMAP if op.offset != 0 => return Err(EINVAL),
        _ => None,
    };
    let aligned = (op.offset | op.va | op.size) % PAGE_SIZE == 0;
    let span = addresses(op.va, op.size)?;
    if op.pad != 0 || !aligned {
        return Err(EINVAL);
    }
    let Some((mapped, bytes)) = mapped else {
        return Ok(match op.type_ {
            DRM_SKUA_BIND_COPY => Wanted::Copy(addresses(op.offset, op.size)?, span),
            _ => Wanted::Unmap(span),
        });
    };
    let end = op.offset.checked_add(op.size);
    if end.is_none_or(|end| end > bytes) {
        return Err(EINVAL);
    }
    let (bo, write) = match mapped {
        Mapped::Bo(bo) if !bo.may_be_mapped_in(vm.reservation()) => return Err(EINVAL),
        Mapped::Bo(bo) if bo.is_offered() => return Err(EBUSY),
        Mapped::Bo(bo) => (bo, op.flags & DRM_SKUA_BIND_READONLY == 0),
        Mapped::Fence(handle) => {
            let (quota, value) = (&file.inner().system_quota, handle.fence().value());
            let bo = bo::for_fence(dev, parent, quota, value, vm.reservation())?;
            (bo.into(), false)
        }
    };
    Ok(Wanted::Map {
        span,
        bo,
        offset: op.offset,
        write,
    })
}

/// What is held in the order of a context of `vm`. `ENOENT`; `EINVAL` if it is another's;
/// `ECANCELED` if the context takes no more work.
fn updates(file: &SkuaFile, handle: u32, vm: &Arc<Vm>) -> Result<Arc<Updates>> {
    let context = file.inner().context(handle)?;
    let is_its_own = context.works_in(vm);
    let updates = context.updates().filter(|_| is_its_own).ok_or(EINVAL)?;
    match updates.is_active() {
        true => Ok(updates.clone()),
        false => Err(ECANCELED),
    }
}

impl File {
    /// `DRM_IOCTL_SKUA_VM_CREATE`
    pub(crate) fn vm_create(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_vm_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let this = file.inner();
        let device = this.device(args.device)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        device.check()?;
        let place = this.vm_quota.take(dev, 1).ok_or(ENOSPC)?;
        let vm = Vm::new(dev, data.parent(), &device, place, &this.system_quota)?;
        let handle = this.vms.lock().insert(vm.clone());
        if handle.is_err() {
            vm.destroy();
        }
        args.vm = handle?;
        // It may have been destroyed meanwhile, without this one.
        if let Err(error) = device.check() {
            remove_one(&this.vms, |other| Arc::ptr_eq(other, &vm));
            vm.end(ECANCELED);
            vm.destroy();
            return Err(error);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_VM_DESTROY`
    pub(crate) fn vm_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_vm_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let vm = this.vms.lock().remove(args.vm, args.pad)?;
        vm.destroy();
        for context in this.contexts.lock().iter().filter(|it| it.works_in(&vm)) {
            if let Some(updates) = context.updates() {
                // What binds it holds is cancelled.
                Holder::look_again(updates.clone());
            }
        }
        let is_its_own = |it: &Arc<ContextAllocation>| Arc::ptr_eq(it.vm(), &vm);
        while remove_one(&this.allocations, is_its_own).is_some() {}
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_VM_BIND`
    pub(crate) fn vm_bind(
        dev: &Device,
        data: &Data<'_>,
        args: &mut drm_skua_vm_bind,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let vm = file.inner().vm(args.vm)?;
        if args.flags != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        let updates = match args.context {
            0 => None,
            handle => Some(updates(file, handle, &vm)?),
        };
        let operations = read_operations(dev, data.parent(), file, &vm, &args.ops)?;
        let mut values = Values::new(match &updates {
            Some(updates) => updates.clone(),
            None => vm.clone(),
        });
        let (waits, signals) = syncs::read(file, &args.syncs, Some(&mut values))?;
        let request = BindRequest {
            operations,
            waits,
            signals,
        };
        let values = values.into_waits();
        match &updates {
            Some(updates) => hold::submit(updates, request, values)?,
            None => hold::submit(&vm, request, values)?,
        }
        dev.counters
            .binds
            .fetch_add(1, kernel::sync::atomic::Relaxed);
        Ok(0)
    }
}
