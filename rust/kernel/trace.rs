// SPDX-License-Identifier: GPL-2.0

//! The tracepoints of `rust/helpers/trace.h`: `skua:skua_submit`, `_start`, `_paging`, `_resume`,
//! `_packet`, `_depend`, `_signal`, `_await`, `_move`, `_memory`, `_preempt`, `_preempted`,
//! `_reset`, `_adapter_reset`, `_lost`, `_done`, `_fault`, `_no_room`, `_no_quota`.
//!
//! A tracepoint that is off costs a call and a static branch.
//!
//! # Examples
//!
//! ```ignore
//! let fence = line.fence(memory);
//! trace::submit(dev, engine.get(), context.id(), fence.fence());
//! // echo 1 > /sys/kernel/tracing/events/skua/skua_submit/enable
//! ```

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

/// A pass of a paging operation, whose fence is public, was written to an engine's ring: it begins
/// at `page` of `piece`, and is the operation's `last`. Whether the memory was `idle`.
pub(crate) fn paging<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    fence: &Fence,
    piece: usize,
    page: u64,
    idle: bool,
    last: bool,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_paging(
            device::as_raw(dev),
            engine,
            fence.context(),
            fence.seqno(),
            // CAST: `usize` has 64 bits.
            piece as u64,
            page,
            idle,
            last,
        );
    }
}

/// A portion was written to an engine's ring again, to go on where it was preempted.
pub(crate) fn resume<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_resume(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
        );
    }
}

/// A packet was written to an engine's ring, which knows it by the fence id `packet`, `again` or
/// for the first time.
pub(crate) fn packet<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
    packet: u64,
    again: bool,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_packet(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
            packet,
            again,
        );
    }
}

/// What was submitted with `fence` waits for all of `on`.
pub(crate) fn depend<D: drm::Driver>(dev: &drm::Device<D>, fence: &Fence, on: &[Fence]) {
    // SAFETY: It only looks.
    if !unsafe { shim::skua_trace_depend_is_on() } {
        return;
    }
    for on in on {
        // SAFETY: The device is valid, and so is the fence by its type invariant.
        unsafe {
            shim::skua_trace_depend(
                device::as_raw(dev),
                fence.context(),
                fence.seqno(),
                on.as_raw(),
            );
        }
    }
}

/// Monitored fence number `monitored` gets `value` when `fence` signals, or from the CPU now.
pub(crate) fn signal<D: drm::Driver>(
    dev: &drm::Device<D>,
    fence: Option<&Fence>,
    monitored: u64,
    value: u64,
) {
    let (context, seqno) = fence.map_or((0, 0), |fence| (fence.context(), fence.seqno()));
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_signal(device::as_raw(dev), context, seqno, monitored, value) };
}

/// What was submitted with `fence` has waited for `value` of monitored fence number `monitored`; it
/// was held for so many microseconds, 0 if it was not.
pub(crate) fn awaited<D: drm::Driver>(
    dev: &drm::Device<D>,
    fence: &Fence,
    monitored: u64,
    value: u64,
    held_us: u64,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_await(
            device::as_raw(dev),
            fence.context(),
            fence.seqno(),
            monitored,
            value,
            held_us,
        );
    }
}

/// `bytes` bytes begin to move from one segment to another, which is over with `fence`; nothing is
/// copied if the other one has them, `clean`.
pub(crate) fn moved<D: drm::Driver>(
    dev: &drm::Device<D>,
    fence: &Fence,
    from: &CStr,
    to: &CStr,
    bytes: usize,
    clean: bool,
) {
    // SAFETY: The device is valid, and the names are strings.
    unsafe {
        shim::skua_trace_move(
            device::as_raw(dev),
            fence.context(),
            fence.seqno(),
            from.as_char_ptr(),
            to.as_char_ptr(),
            // CAST: `usize` has 64 bits.
            bytes as u64,
            clean,
        );
    }
}

/// So many bytes of `size` are in use in `region`.
pub(crate) fn memory<D: drm::Driver>(dev: &drm::Device<D>, region: &CStr, used: u64, size: u64) {
    // SAFETY: The device is valid, and the name is a string.
    unsafe { shim::skua_trace_memory(device::as_raw(dev), region.as_char_ptr(), used, size) };
}

/// An engine was asked to stop.
pub(crate) fn preempt<D: drm::Driver>(dev: &drm::Device<D>, engine: u32) {
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_preempt(device::as_raw(dev), engine) };
}

/// An engine was asked to forget what it does.
pub(crate) fn reset<D: drm::Driver>(dev: &drm::Device<D>, engine: u32) {
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_reset(device::as_raw(dev), engine) };
}

/// The device was asked to forget all that it does.
pub(crate) fn adapter_reset<D: drm::Driver>(dev: &drm::Device<D>) {
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_adapter_reset(device::as_raw(dev)) };
}

/// The device is given up, and was not unbound.
pub(crate) fn lost<D: drm::Driver>(dev: &drm::Device<D>) {
    // SAFETY: The device is valid.
    unsafe { shim::skua_trace_lost(device::as_raw(dev)) };
}

/// An engine has stopped, and a portion is back in its context's queue; `stop` is 0 if it had not
/// begun, 1 if it is to be resumed, 2 if it waits for a value as well.
pub(crate) fn preempted<D: drm::Driver>(
    dev: &drm::Device<D>,
    engine: u32,
    context: u32,
    fence: &Fence,
    stop: u32,
) {
    // SAFETY: The device is valid.
    unsafe {
        shim::skua_trace_preempted(
            device::as_raw(dev),
            engine,
            context,
            fence.context(),
            fence.seqno(),
            stop,
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

/// Whether anybody wants to know of [`no_room`]: what it says takes a while to find out.
pub(crate) fn wants_no_room() -> bool {
    // SAFETY: It only looks.
    unsafe { shim::skua_trace_no_room_is_on() }
}

/// In `region` no room could be made for `bytes` bytes, which were `needed` there or merely better
/// off. In bytes, too: what is free, and what pinned objects hold, those of whose turn it is, those
/// kept by control groups, resident ones, busy ones and idle ones.
pub(crate) fn no_room<D: drm::Driver>(
    dev: &drm::Device<D>,
    region: &CStr,
    bytes: u64,
    needed: bool,
    held: &[u64; 7],
) {
    // SAFETY: The device is valid, the name is a string, and the numbers are as many as are read.
    unsafe {
        shim::skua_trace_no_room(
            device::as_raw(dev),
            region.as_char_ptr(),
            bytes,
            needed,
            held.as_ptr(),
        );
    }
}

/// The running process asked for `units` more of the quota `of` somebody of `what`, of which `used`
/// are used already; that would be `excess` too many.
pub(crate) fn no_quota<D: drm::Driver>(
    dev: &drm::Device<D>,
    what: &CStr,
    of: &CStr,
    units: u64,
    used: u64,
    excess: u64,
) {
    // SAFETY: The device is valid, and the names are strings.
    unsafe {
        shim::skua_trace_no_quota(
            device::as_raw(dev),
            what.as_char_ptr(),
            of.as_char_ptr(),
            units,
            used,
            excess,
        );
    }
}
