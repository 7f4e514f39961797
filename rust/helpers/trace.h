/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of a submission's life, of memory's moves, of faults and resets, and of what clients
 * are refused. The fields are those of the stable gpu_scheduler events: dev, engine,
 * fence=context:seqno.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM skua

#if !defined(SKUA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define SKUA_TRACE_H

#include <linux/sched.h>
#include <linux/tracepoint.h>

#include <drm/drm_device.h>

DECLARE_EVENT_CLASS(skua_job,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u32, context)
		__field(u64, fence_context)
		__field(u64, fence_seqno)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->context = context;
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
	),
	TP_printk("dev=%s, engine=%u, context=%u, fence=%llu:%llu", __get_str(dev),
		  __entry->engine, __entry->context, __entry->fence_context,
		  __entry->fence_seqno)
);

/* Accepted: the fence is published, the work waits in its context's queue. */
DEFINE_EVENT(skua_job, skua_submit,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno)
);

/* Written to an engine's ring. */
DEFINE_EVENT(skua_job, skua_start,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno)
);

/*
 * A pass of a paging operation, written to an engine's ring: where it begins,
 * whether the memory was idle, and whether it is the last.
 */
TRACE_EVENT(skua_paging,
	TP_PROTO(struct drm_device *drm, u32 engine, u64 fence_context, u64 fence_seqno,
		 u64 piece, u64 page, bool idle, bool last),
	TP_ARGS(drm, engine, fence_context, fence_seqno, piece, page, idle, last),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u64, piece)
		__field(u64, page)
		__field(bool, idle)
		__field(bool, last)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->piece = piece;
		__entry->page = page;
		__entry->idle = idle;
		__entry->last = last;
	),
	TP_printk("dev=%s, engine=%u, fence=%llu:%llu, piece=%llu, page=%llu, idle=%d, last=%d",
		  __get_str(dev), __entry->engine, __entry->fence_context,
		  __entry->fence_seqno, __entry->piece, __entry->page, __entry->idle,
		  __entry->last)
);

/* Written to an engine's ring again, to go on where it was preempted. */
DEFINE_EVENT(skua_job, skua_resume,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno)
);

DECLARE_EVENT_CLASS(skua_engine,
	TP_PROTO(struct drm_device *drm, u32 engine),
	TP_ARGS(drm, engine),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
	),
	TP_printk("dev=%s, engine=%u", __get_str(dev), __entry->engine)
);

/*
 * A packet written to an engine's ring, of a portion's first or a later part: packet is the
 * fence id that the engine has for it; again if the engine was given that part before.
 */
TRACE_EVENT(skua_packet,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno, u64 packet, bool again),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno, packet, again),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u32, context)
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u64, packet)
		__field(bool, again)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->context = context;
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->packet = packet;
		__entry->again = again;
	),
	TP_printk("dev=%s, engine=%u, context=%u, fence=%llu:%llu, packet=%llu, again=%d",
		  __get_str(dev), __entry->engine, __entry->context, __entry->fence_context,
		  __entry->fence_seqno, __entry->packet, __entry->again)
);

/* What is submitted with a fence waits for another one. */
TRACE_EVENT(skua_depend,
	TP_PROTO(struct drm_device *drm, u64 fence_context, u64 fence_seqno, u64 on_context,
		 u64 on_seqno),
	TP_ARGS(drm, fence_context, fence_seqno, on_context, on_seqno),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u64, on_context)
		__field(u64, on_seqno)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->on_context = on_context;
		__entry->on_seqno = on_seqno;
	),
	TP_printk("dev=%s, fence=%llu:%llu, on=%llu:%llu", __get_str(dev),
		  __entry->fence_context, __entry->fence_seqno, __entry->on_context,
		  __entry->on_seqno)
);

/*
 * A value of a monitored fence was promised, and is signalled when the fence is; 0:0 if the CPU
 * signals it now.
 */
TRACE_EVENT(skua_signal,
	TP_PROTO(struct drm_device *drm, u64 fence_context, u64 fence_seqno, u64 monitored,
		 u64 value),
	TP_ARGS(drm, fence_context, fence_seqno, monitored, value),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u64, monitored)
		__field(u64, value)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->monitored = monitored;
		__entry->value = value;
	),
	TP_printk("dev=%s, fence=%llu:%llu, monitored=%llu, value=%llu", __get_str(dev),
		  __entry->fence_context, __entry->fence_seqno, __entry->monitored,
		  __entry->value)
);

/*
 * What is submitted with a fence has waited for a value of a monitored fence: it was held for that
 * and others for so many microseconds, 0 if it was not.
 */
TRACE_EVENT(skua_await,
	TP_PROTO(struct drm_device *drm, u64 fence_context, u64 fence_seqno, u64 monitored,
		 u64 value, u64 held),
	TP_ARGS(drm, fence_context, fence_seqno, monitored, value, held),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u64, monitored)
		__field(u64, value)
		__field(u64, held)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->monitored = monitored;
		__entry->value = value;
		__entry->held = held;
	),
	TP_printk("dev=%s, fence=%llu:%llu, monitored=%llu, value=%llu, held=%llu",
		  __get_str(dev), __entry->fence_context, __entry->fence_seqno,
		  __entry->monitored, __entry->value, __entry->held)
);

/*
 * Bytes begin to move from one segment to another, which is over with the fence:
 * system, vram0, aperture; to nowhere if they are thrown away.
 */
TRACE_EVENT(skua_move,
	TP_PROTO(struct drm_device *drm, u64 fence_context, u64 fence_seqno, const char *from,
		 const char *to, u64 bytes, bool clean),
	TP_ARGS(drm, fence_context, fence_seqno, from, to, bytes, clean),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__string(from, from)
		__string(to, to)
		__field(u64, bytes)
		__field(bool, clean)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__assign_str(from);
		__assign_str(to);
		__entry->bytes = bytes;
		__entry->clean = clean;
	),
	TP_printk("dev=%s, fence=%llu:%llu, from=%s, to=%s, bytes=%llu, clean=%d",
		  __get_str(dev), __entry->fence_context, __entry->fence_seqno,
		  __get_str(from), __get_str(to), __entry->bytes, __entry->clean)
);

/*
 * How much of a segment is in use, in bytes: of system memory at each submission, of others when
 * that has changed.
 */
TRACE_EVENT(skua_memory,
	TP_PROTO(struct drm_device *drm, const char *region, u64 used, u64 size),
	TP_ARGS(drm, region, used, size),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__string(region, region)
		__field(u64, used)
		__field(u64, size)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(region);
		__entry->used = used;
		__entry->size = size;
	),
	TP_printk("dev=%s, region=%s, used=%llu, size=%llu", __get_str(dev),
		  __get_str(region), __entry->used, __entry->size)
);

/* An engine was asked to stop. */
DEFINE_EVENT(skua_engine, skua_preempt,
	TP_PROTO(struct drm_device *drm, u32 engine),
	TP_ARGS(drm, engine)
);

/* It was asked to forget what it does. */
DEFINE_EVENT(skua_engine, skua_reset,
	TP_PROTO(struct drm_device *drm, u32 engine),
	TP_ARGS(drm, engine)
);

DECLARE_EVENT_CLASS(skua_adapter,
	TP_PROTO(struct drm_device *drm),
	TP_ARGS(drm),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
	),
	TP_fast_assign(
		__assign_str(dev);
	),
	TP_printk("dev=%s", __get_str(dev))
);

/* All of the device was: the reset of an engine did not help, or would not. */
DEFINE_EVENT(skua_adapter, skua_adapter_reset,
	TP_PROTO(struct drm_device *drm),
	TP_ARGS(drm)
);

/* Nor did that, or the device is gone: it is given up. Not one that is unbound. */
DEFINE_EVENT(skua_adapter, skua_lost,
	TP_PROTO(struct drm_device *drm),
	TP_ARGS(drm)
);

/*
 * An engine has stopped, and this is back in its context's queue. stop: 0 it had
 * not begun, 1 it is to be resumed, 2 the same, and it waits for a value.
 */
TRACE_EVENT(skua_preempted,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno, u32 stop),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno, stop),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u32, context)
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(u32, stop)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->context = context;
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->stop = stop;
	),
	TP_printk("dev=%s, engine=%u, context=%u, fence=%llu:%llu, stop=%u", __get_str(dev),
		  __entry->engine, __entry->context, __entry->fence_context,
		  __entry->fence_seqno, __entry->stop)
);

/* Finished: error is what the fence carries, 0 or a negative errno. */
TRACE_EVENT(skua_done,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u64 fence_context,
		 u64 fence_seqno, int error),
	TP_ARGS(drm, engine, context, fence_context, fence_seqno, error),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u32, context)
		__field(u64, fence_context)
		__field(u64, fence_seqno)
		__field(int, error)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->context = context;
		__entry->fence_context = fence_context;
		__entry->fence_seqno = fence_seqno;
		__entry->error = error;
	),
	TP_printk("dev=%s, engine=%u, context=%u, fence=%llu:%llu, error=%d", __get_str(dev),
		  __entry->engine, __entry->context, __entry->fence_context,
		  __entry->fence_seqno, __entry->error)
);

/* A fault record of the device. reason is the manual's code. */
TRACE_EVENT(skua_fault,
	TP_PROTO(struct drm_device *drm, u32 engine, u32 context, u32 reason, u64 address),
	TP_ARGS(drm, engine, context, reason, address),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__field(u32, engine)
		__field(u32, context)
		__field(u32, reason)
		__field(u64, address)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->engine = engine;
		__entry->context = context;
		__entry->reason = reason;
		__entry->address = address;
	),
	TP_printk("dev=%s, engine=%u, context=%u, reason=%u, address=0x%llx", __get_str(dev),
		  __entry->engine, __entry->context, __entry->reason, __entry->address)
);

/*
 * No room could be made for bytes: how much is free, and what holds the rest, in
 * bytes.
 */
TRACE_EVENT(skua_no_room,
	TP_PROTO(struct drm_device *drm, const char *region, u64 bytes, bool needed,
		 const unsigned long long *held),
	TP_ARGS(drm, region, bytes, needed, held),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__string(region, region)
		__field(u64, bytes)
		__field(bool, needed)
		__array(u64, held, SKUA_HELD)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(region);
		__entry->bytes = bytes;
		__entry->needed = needed;
		memcpy(__entry->held, held, sizeof(__entry->held));
	),
	TP_printk("dev=%s, region=%s, bytes=%llu, needed=%d, free=%llu, pinned=%llu, turn=%llu, group=%llu, resident=%llu, busy=%llu, idle=%llu",
		  __get_str(dev), __get_str(region), __entry->bytes, __entry->needed,
		  __entry->held[0], __entry->held[1], __entry->held[2], __entry->held[3],
		  __entry->held[4], __entry->held[5], __entry->held[6])
);

/*
 * More units of a quota were asked for than are left: what it is of, whose it is (client, user or
 * all), the process that asked, how much is used, and by how much that would be too much.
 */
TRACE_EVENT(skua_no_quota,
	TP_PROTO(struct drm_device *drm, const char *quota, const char *of, u64 units, u64 used,
		 u64 excess),
	TP_ARGS(drm, quota, of, units, used, excess),
	TP_STRUCT__entry(
		__string(dev, dev_name(drm->dev))
		__string(quota, quota)
		__string(of, of)
		__field(int, pid)
		__field(u64, units)
		__field(u64, used)
		__field(u64, excess)
	),
	TP_fast_assign(
		__assign_str(dev);
		__assign_str(quota);
		__assign_str(of);
		__entry->pid = task_tgid_nr(current);
		__entry->units = units;
		__entry->used = used;
		__entry->excess = excess;
	),
	TP_printk("dev=%s, quota=%s, of=%s, pid=%d, units=%llu, used=%llu, excess=%llu",
		  __get_str(dev), __get_str(quota), __get_str(of), __entry->pid, __entry->units,
		  __entry->used, __entry->excess)
);

#endif /* SKUA_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
