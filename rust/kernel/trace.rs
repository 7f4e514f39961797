// SPDX-License-Identifier: GPL-2.0

//! The tracepoints of `rust/helpers/trace.h`: `skua:skua_submit`, `_start`, `_done`, `_fault`.
//!
//! A tracepoint that is off costs a call and a static branch.

use super::{
    device,
    fence::Fence,
    shim, //
};
use kernel::{
    drm,
    prelude::*, //
};

/// A submission was accepted; its fence is public.
pub(crate) fn submit<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_submit(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
        );
    }
}

/// A submission was written to an engine's ring.
pub(crate) fn start<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_start(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
        );
    }
}

/// A submission is over, with `result`.
pub(crate) fn done<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
    result: Result,
) {
    let error = result.map_or_else(Error::to_errno, |()| 0);
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_done(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
            error,
        );
    }
}

/// The device reported a fault of `engine` in `context`; `reason` is the manual's code.
pub(crate) fn fault<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    reason: u32,
    address: u64,
) {
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_fault(device::as_raw(dev), engine, context, reason, address) };
}
