// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints, and functions that Rust can call: declare_trace!() of the
 * kernel crate reaches in-tree tracepoints only.
 */
#include <linux/dma-fence-array.h>
#include <linux/dma-fence-chain.h>
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

void skua_trace_packet(struct drm_device *dev, u32 engine, u32 context, u64 fence_context,
		       u64 fence_seqno, u64 packet, bool again)
{
	trace_skua_packet(dev, engine, context, fence_context, fence_seqno, packet, again);
}

bool skua_trace_depend_is_on(void)
{
	return trace_skua_depend_enabled();
}

/* A point of a timeline, and several fences in one, by what they stand for. */
void skua_trace_depend(struct drm_device *dev, u64 fence_context, u64 fence_seqno,
		       struct dma_fence *on)
{
	struct dma_fence *fence = dma_fence_chain_contained(on);
	struct dma_fence_array *array = to_dma_fence_array(fence);
	unsigned int count = array ? array->num_fences : 1;

	for (unsigned int i = 0; i < count; i++) {
		struct dma_fence *one = array ? array->fences[i] : fence;

		trace_skua_depend(dev, fence_context, fence_seqno, one->context, one->seqno);
	}
}

void skua_trace_signal(struct drm_device *dev, u64 fence_context, u64 fence_seqno, u64 monitored,
		       u64 value)
{
	trace_skua_signal(dev, fence_context, fence_seqno, monitored, value);
}

void skua_trace_await(struct drm_device *dev, u64 fence_context, u64 fence_seqno, u64 monitored,
		      u64 value, u64 held)
{
	trace_skua_await(dev, fence_context, fence_seqno, monitored, value, held);
}

void skua_trace_move(struct drm_device *dev, u64 fence_context, u64 fence_seqno, const char *from,
		     const char *to, u64 bytes, bool clean)
{
	trace_skua_move(dev, fence_context, fence_seqno, from, to, bytes, clean);
}

void skua_trace_memory(struct drm_device *dev, const char *region, u64 used, u64 size)
{
	trace_skua_memory(dev, region, used, size);
}

void skua_trace_preempt(struct drm_device *dev, u32 engine)
{
	trace_skua_preempt(dev, engine);
}

void skua_trace_reset(struct drm_device *dev, u32 engine)
{
	trace_skua_reset(dev, engine);
}

void skua_trace_adapter_reset(struct drm_device *dev)
{
	trace_skua_adapter_reset(dev);
}

void skua_trace_lost(struct drm_device *dev)
{
	trace_skua_lost(dev);
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

void skua_trace_no_quota(struct drm_device *dev, const char *quota, const char *of, u64 units,
			 u64 used, u64 excess)
{
	trace_skua_no_quota(dev, quota, of, units, used, excess);
}
