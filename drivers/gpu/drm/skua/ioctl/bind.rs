// SPDX-License-Identifier: GPL-2.0

//! The operations of a bind, as an ioctl gives them, checked.

use crate::{
    ext::uapi::*,
    ioctl::{
        file::SkuaFile,
        user_array, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoRef, //
        },
        vm::{
            Vm,
            Wanted,
            VA_END,
            VA_START, //
        }, //
    },
    policy::interval_map::Span,
    spec::address::PAGE_SIZE, //
};
use kernel::{
    drm::gem::BaseObject,
    prelude::*, //
};

/// Most operations of one bind.
pub(crate) const MAX_OPERATIONS: u32 = 1024;

/// Reads the operations. `EINVAL` for what the uAPI forbids, `ENOENT` for a handle, `EBUSY` for an
/// object that is offered.
pub(crate) fn read(file: &SkuaFile, vm: &Vm, array: &drm_skua_array) -> Result<KVVec<Wanted>> {
    if array.count == 0 {
        return Err(EINVAL);
    }
    let ops: KVVec<drm_skua_bind_op> = user_array::read(array, MAX_OPERATIONS)?;
    let mut operations = KVVec::with_capacity(ops.len(), client_flags())?;
    for op in &ops {
        operations.push(operation(file, vm, op)?, client_flags())?;
    }
    Ok(operations)
}

fn operation(file: &SkuaFile, vm: &Vm, op: &drm_skua_bind_op) -> Result<Wanted> {
    let map = match op.type_ {
        DRM_SKUA_BIND_MAP => true,
        DRM_SKUA_BIND_UNMAP => false,
        _ => return Err(EINVAL),
    };
    let flags = if map { DRM_SKUA_BIND_READONLY } else { 0 };
    if op.flags & !flags != 0 || (!map && op.handle != 0) {
        return Err(EINVAL);
    }
    let bo = if map {
        Some(Bo::lookup_handle(file, op.handle)?)
    } else {
        None
    };
    if op.pad != 0 || (!map && op.offset != 0) {
        return Err(EINVAL);
    }
    let aligned = (op.offset | op.va | op.size) % PAGE_SIZE == 0;
    let span = Span::with_len(op.va, op.size).ok_or(EINVAL)?;
    if !aligned || span.is_empty() || span.start < VA_START || span.end > VA_END {
        return Err(EINVAL);
    }
    let Some(bo) = bo else {
        return Ok(Wanted::Unmap(span));
    };
    let end = op.offset.checked_add(op.size).ok_or(EINVAL)?;
    if end > u64::try_from(bo.size())? || !bo.may_be_mapped_in(vm.reservation()) {
        return Err(EINVAL);
    }
    let bo: BoRef = bo.into();
    if bo.is_offered() {
        return Err(EBUSY);
    }
    Ok(Wanted::Map {
        span,
        bo,
        offset: op.offset,
        write: op.flags & DRM_SKUA_BIND_READONLY == 0,
    })
}
