// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints, and functions that Rust can call: declare_trace!() of the
 * kernel crate reaches in-tree tracepoints only.
 */
#include <linux/types.h>

#include "shim.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

void skua_trace_submit(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
		       u64 fence_seqno)
{
	trace_skua_submit(dev, engine, context, fence_context, fence_seqno);
}

void skua_trace_start(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
		      u64 fence_seqno)
{
	trace_skua_start(dev, engine, context, fence_context, fence_seqno);
}

void skua_trace_paging(struct drm_device *dev, u32 engine, u64 fence_context, u64 fence_seqno,
		       u64 piece, u64 page, bool idle, bool last)
{
	trace_skua_paging(dev, engine, fence_context, fence_seqno, piece, page, idle, last);
}

void skua_trace_resume(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
		       u64 fence_seqno)
{
	trace_skua_resume(dev, engine, context, fence_context, fence_seqno);
}

void skua_trace_preempt(struct drm_device *dev, u32 engine)
{
	trace_skua_preempt(dev, engine);
}

void skua_trace_reset(struct drm_device *dev, u32 engine)
{
	trace_skua_reset(dev, engine);
}

void skua_trace_preempted(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
			  u64 fence_seqno, u32 stop)
{
	trace_skua_preempted(dev, engine, context, fence_context, fence_seqno, stop);
}

void skua_trace_done(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
		     u64 fence_seqno, int error)
{
	trace_skua_done(dev, engine, context, fence_context, fence_seqno, error);
}

void skua_trace_fault(struct drm_device *dev, u32 engine, u32 context, u32 reason, u64 address)
{
	trace_skua_fault(dev, engine, context, reason, address);
}

bool skua_trace_no_room_is_on(void)
{
	return trace_skua_no_room_enabled();
}

void skua_trace_no_room(struct drm_device *dev, const char *region, u64 bytes, bool needed,
			const unsigned long long *held)
{
	trace_skua_no_room(dev, region, bytes, needed, held);
}
