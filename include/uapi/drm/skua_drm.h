/* SPDX-License-Identifier: MIT */
/* Copyright The Skua developers */
#ifndef _SKUA_DRM_H_
#define _SKUA_DRM_H_

#include "drm.h"

#if defined(__cplusplus)
extern "C" {
#endif

/**
 * DOC: Introduction
 *
 * This header is the specification of the interface between the skua driver and
 * userspace. It is used as it is by the driver, by userspace in C, and, through
 * bindgen, by userspace in Rust.
 *
 * Rules that hold for all of it:
 *
 * - Only __u32, __s32 and __u64. Every structure is a multiple of 8 bytes, has no
 *   holes, and every 64-bit member is 64-bit aligned.
 * - A member called pad or reserved must be zero, unless it says that it is
 *   returned, a flag without a meaning must not be set, and an enumeration's value
 *   must be a listed one: -EINVAL.
 * - Structures and arrays of structures grow at the end, and zero in a new
 *   member means what the driver did before it existed. The size of an ioctl's
 *   argument is in its number: a shorter one is filled up with zeroes, and what
 *   the driver does not know of a longer one is left alone, so that a client asks
 *   for the driver's version before it uses a new member. The size of an array's
 *   element is in &drm_skua_array.stride, that of a query's answer in
 *   &drm_skua_query.size.
 * - An ioctl that fails changes nothing that userspace can see, but where only its
 *   argument cannot be written to in the end (-EFAULT), or where it says otherwise; and but for
 *   what it may have done first: page tables, which an address space keeps, memory for what a
 *   context saves, and moves of objects. The argument is copied once, and what can fail is checked
 *   before anything changes; which of several errors is returned is not promised.
 * - No ioctl of this header waits for fences or for work of the GPU, but
 *   DRM_IOCTL_SKUA_BO_CREATE, DRM_IOCTL_SKUA_CONTEXT_ALLOC,
 *   DRM_IOCTL_SKUA_MAKE_RESIDENT and DRM_IOCTL_SKUA_SUBMIT where they make room,
 *   DRM_IOCTL_SKUA_BO_LOCK where it moves the buffer object, DRM_IOCTL_SKUA_BO_RECLAIM where
 *   content is just being thrown away, DRM_IOCTL_SKUA_BO_DESTROY if it is to, and
 *   DRM_IOCTL_SKUA_FENCE_WAIT, which is for that. DRM_IOCTL_SKUA_VM_BIND has the GPU forget
 *   translations, and DRM_IOCTL_SKUA_QUERY of regions what was just freed be counted: neither
 *   waits for work. To wait for work, use a syncobj.
 * - The node is the render node; every ioctl has DRM_RENDER_ALLOW.
 *
 * Errors that every ioctl can return, and that are not repeated below:
 *
 * - -EFAULT: a pointer cannot be read or written.
 * - -EINTR: a signal came first; call again with the same argument.
 * - -ENODEV: the device is gone.
 * - -EIO: the device does not answer any more and waits for being rebound.
 * - -ENOMEM: no memory for the driver's own use.
 *
 * DOC: Objects
 *
 * A **buffer object** (BO, WDDM: allocation) is memory, in VRAM or in system
 * memory, and is named by a GEM handle. An **address space** (VM) maps ranges of
 * 48-bit GPU virtual addresses to ranges of buffer objects. A **context** runs
 * buffers of commands on one engine in one address space, in the order of their
 * submission. A **device** is what VMs, and so contexts, are made of: it has a list of
 * buffer objects that are resident for it, and a way in which that list is used. Handles
 * of devices, VMs and contexts are numbers that mean something in
 * one open file only, are never zero, and may be used again once destroyed.
 *
 * Each file has a device of its own, which is meant where the number of a device is 0.
 * There is memory for what its work needs as long as there is for that alone
 * (DRM_IOCTL_SKUA_SUBMIT). Of a device that was created with
 * DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY work reaches in VRAM what the client has made
 * resident for it, and nothing else has to be there.
 *
 * Objects stay alive while something uses them: destroying a VM's handle does
 * not disturb contexts made on it, and closing a BO's handle does not disturb its
 * mappings (DRM_IOCTL_SKUA_BO_DESTROY takes them along). All objects of a file are destroyed when
 * the file is closed; work that has not started by then is cancelled (-ECANCELED).
 *
 * DOC: Synchronisation
 *
 * All of it is explicit, by syncobjs (binary and timeline) that an ioctl waits for
 * before it acts, and signals when it is done. The fence that a signal
 * operation puts into a syncobj carries the outcome, as SYNC_IOC_FILE_INFO shows:
 *
 * - 0: done.
 * - -EFAULT: the work accessed an address that it may not access.
 * - -EINVAL: a command or program was malformed, or executed TRAP.
 * - -ETIME: it used up its time, see the module parameter job_timeout_ms.
 * - -ECANCELED: it did not start, or not all of it, because its context is not active any more, was
 *   destroyed, or what it waited for failed; or the GPU was reset.
 * - -ENODEV: the device was unplugged or stopped answering.
 * - What DRM_IOCTL_SKUA_VM_BIND can return, of a bind that was held.
 *
 * A binary syncobj and a sync file keep the outcome. A timeline keeps that of a
 * point only until a later point has a fence: from then on the DRM core may drop
 * a fence that is signalled, with its error, and the point counts as done for
 * whoever asks or waits for it. So what must not run after a failure waits for a
 * binary syncobj, and who wants to know how work ended asks one. That a context
 * has failed, DRM_IOCTL_SKUA_CONTEXT_STATE tells in any case.
 *
 * DOC: Monitored fences
 *
 * A **monitored fence** is a 64-bit value that only grows. It can be waited for before anybody
 * has promised to signal it, which a syncobj's fence cannot; so the kernel promises nothing of
 * when such a wait ends.
 *
 * Its handle is a number like a context's. A descriptor of it (DRM_IOCTL_SKUA_FENCE_EXPORT) goes to
 * other processes, which make handles of their own of it, and can be mapped: MAP_SHARED, one page
 * at most, to read only, for good. The value is the first 8 bytes of the page, and is there as long
 * as the mapping is, whatever is closed. The GPU reads it where it is mapped in an address space
 * (DRM_SKUA_BIND_MAP_FENCE). The fence lives as long as something uses it.
 *
 * Each handle belongs to a device, as contexts do. When that fails, so when one of its contexts
 * does or the GPU is lost, the fence's value becomes DRM_SKUA_FENCE_LOST, for all who share it,
 * unless it was created with DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR. Then nothing else can be
 * signalled any more. Of the device that each file has contexts stand for themselves: it fails with
 * the GPU.
 *
 * A value can be signalled if it is above the fence's and above all that were promised before.
 * What is promised first is signalled first.
 *
 * DOC: Resets of the GPU
 *
 * A GPU that cannot be helped otherwise is reset (WDDM: TDR of the adapter), at most as often as
 * the module parameters tdr_limit_count and tdr_limit_time say; then it is lost (-EIO). So it is
 * when its bus has reset it (a function level reset, as by sysfs).
 *
 * All that clients have on it has failed then (DRM_SKUA_CONTEXT_RESET): devices with an address
 * space, but for those that each file has, and all contexts. Work ends with -ECANCELED, but for
 * that which is to blame. New devices, and new contexts of the device that each file has, take
 * work; address spaces of that, and what is mapped in them, are as they were.
 *
 * Buffer objects, and the CPU's mappings of them, stay. What was in VRAM is zero
 * (&drm_skua_bo_info.content_lost) before any fence or status tells of the reset, and nobody writes
 * it after that but clients.
 */

/**
 * enum drm_skua_ioctl_id - Numbers of the ioctls, from DRM_COMMAND_BASE
 *
 * New ones are added at the end.
 */
enum drm_skua_ioctl_id {
	/** @DRM_SKUA_QUERY: Query the device. */
	DRM_SKUA_QUERY = 0,
	/** @DRM_SKUA_BO_CREATE: Create a buffer object. */
	DRM_SKUA_BO_CREATE,
	/** @DRM_SKUA_BO_MMAP_OFFSET: Get the offset to mmap a buffer object at. */
	DRM_SKUA_BO_MMAP_OFFSET,
	/** @DRM_SKUA_BO_INFO: Get what is known of a buffer object. */
	DRM_SKUA_BO_INFO,
	/** @DRM_SKUA_VM_CREATE: Create an address space. */
	DRM_SKUA_VM_CREATE,
	/** @DRM_SKUA_VM_DESTROY: Destroy an address space. */
	DRM_SKUA_VM_DESTROY,
	/** @DRM_SKUA_VM_BIND: Map and unmap in an address space. */
	DRM_SKUA_VM_BIND,
	/** @DRM_SKUA_CONTEXT_CREATE: Create a context. */
	DRM_SKUA_CONTEXT_CREATE,
	/** @DRM_SKUA_CONTEXT_DESTROY: Destroy a context. */
	DRM_SKUA_CONTEXT_DESTROY,
	/** @DRM_SKUA_CONTEXT_STATE: Get the state of a context. */
	DRM_SKUA_CONTEXT_STATE,
	/** @DRM_SKUA_SUBMIT: Submit work to a context. */
	DRM_SKUA_SUBMIT,
	/** @DRM_SKUA_BO_DESTROY: Destroy buffer objects. */
	DRM_SKUA_BO_DESTROY,
	/** @DRM_SKUA_MAKE_RESIDENT: Have buffer objects in VRAM. */
	DRM_SKUA_MAKE_RESIDENT,
	/** @DRM_SKUA_EVICT: Take that back. */
	DRM_SKUA_EVICT,
	/** @DRM_SKUA_BO_LOCK: Lock a buffer object for the CPU. */
	DRM_SKUA_BO_LOCK,
	/** @DRM_SKUA_BO_UNLOCK: Take that back. */
	DRM_SKUA_BO_UNLOCK,
	/** @DRM_SKUA_BO_SET_PRIORITY: Say how important it is that buffer objects are in VRAM. */
	DRM_SKUA_BO_SET_PRIORITY,
	/** @DRM_SKUA_DEVICE_CREATE: Create a device of the client's. */
	DRM_SKUA_DEVICE_CREATE,
	/** @DRM_SKUA_DEVICE_DESTROY: Destroy one. */
	DRM_SKUA_DEVICE_DESTROY,
	/** @DRM_SKUA_DEVICE_STATE: Get the state of one. */
	DRM_SKUA_DEVICE_STATE,
	/** @DRM_SKUA_BO_OFFER: Say that the content of buffer objects may be thrown away. */
	DRM_SKUA_BO_OFFER,
	/** @DRM_SKUA_BO_RECLAIM: Take that back. */
	DRM_SKUA_BO_RECLAIM,
	/** @DRM_SKUA_FENCE_CREATE: Create a monitored fence. */
	DRM_SKUA_FENCE_CREATE,
	/** @DRM_SKUA_FENCE_DESTROY: Destroy the handle of one. */
	DRM_SKUA_FENCE_DESTROY,
	/** @DRM_SKUA_FENCE_EXPORT: Make a descriptor of one. */
	DRM_SKUA_FENCE_EXPORT,
	/** @DRM_SKUA_FENCE_IMPORT: Make a handle of a descriptor. */
	DRM_SKUA_FENCE_IMPORT,
	/** @DRM_SKUA_FENCE_SIGNAL: Signal values by the CPU. */
	DRM_SKUA_FENCE_SIGNAL,
	/** @DRM_SKUA_FENCE_WAIT: Wait for values. */
	DRM_SKUA_FENCE_WAIT,
	/** @DRM_SKUA_FENCE_EVENTFD: Have an eventfd signalled with values. */
	DRM_SKUA_FENCE_EVENTFD,
	/** @DRM_SKUA_CONTEXT_SET_PRIORITY: Say how important the work of a context is. */
	DRM_SKUA_CONTEXT_SET_PRIORITY,
	/** @DRM_SKUA_DEVICE_MARK_ERROR: Have a device of the client's fail. */
	DRM_SKUA_DEVICE_MARK_ERROR,
	/** @DRM_SKUA_SET_PRIORITY_CLASS: Say how important the work of all contexts is. */
	DRM_SKUA_SET_PRIORITY_CLASS,
	/** @DRM_SKUA_CONTEXT_ALLOC: Create a context allocation. */
	DRM_SKUA_CONTEXT_ALLOC,
	/** @DRM_SKUA_CONTEXT_FREE: Destroy one. */
	DRM_SKUA_CONTEXT_FREE,
};

/**
 * struct drm_skua_array - An array of structures in userspace
 */
struct drm_skua_array {
	/**
	 * @stride: Bytes from an element to the next.
	 *
	 * At least the size that the structure had when it was introduced, and a
	 * multiple of 8; at most 4096. -EINVAL otherwise, also if @count is 0 and
	 * @stride is neither 0 nor valid. Bytes of an element that the driver does not
	 * know must be zero: -E2BIG.
	 */
	__u32 stride;

	/** @count: Elements. The limit is that of the member it stands in: -EINVAL. */
	__u32 count;

	/** @pointer: Address of the first element; must be 0 if @count is 0. */
	__u64 pointer;
};

/**
 * enum drm_skua_sync_flags - Flags of a &struct drm_skua_sync
 */
enum drm_skua_sync_flags {
	/** @DRM_SKUA_SYNC_WAIT: Wait for the syncobj before acting. */
	DRM_SKUA_SYNC_WAIT = 1 << 0,
	/** @DRM_SKUA_SYNC_SIGNAL: Signal the syncobj when done. */
	DRM_SKUA_SYNC_SIGNAL = 1 << 1,
	/** @DRM_SKUA_SYNC_TIMELINE: The syncobj is a timeline. */
	DRM_SKUA_SYNC_TIMELINE = 1 << 2,
	/**
	 * @DRM_SKUA_SYNC_MONITORED: It is a monitored fence. It can be waited for by
	 * DRM_IOCTL_SKUA_SUBMIT and DRM_IOCTL_SKUA_VM_BIND alone: -EINVAL.
	 */
	DRM_SKUA_SYNC_MONITORED = 1 << 3,
};

/**
 * struct drm_skua_sync - A syncobj or a monitored fence to wait for or to signal
 *
 * Exactly one of DRM_SKUA_SYNC_WAIT and DRM_SKUA_SYNC_SIGNAL is set, and at most one of
 * DRM_SKUA_SYNC_TIMELINE and DRM_SKUA_SYNC_MONITORED: -EINVAL.
 */
struct drm_skua_sync {
	/** @flags: See &enum drm_skua_sync_flags. */
	__u32 flags;

	/** @handle: Handle of the syncobj or monitored fence: -ENOENT if there is none. */
	__u32 handle;

	/**
	 * @point: The point of a timeline, not 0; 0 for a binary syncobj: -EINVAL. The value of a
	 * monitored fence.
	 *
	 * To be waited for, a syncobj or its point must have a fence already: -EINVAL. Points are
	 * signalled in the order in which they are added. To be signalled, a value must be above
	 * all that its fence has or was promised, before it in the array, too, and below
	 * DRM_SKUA_FENCE_LOST: -EINVAL.
	 */
	__u64 point;
};

/**
 * enum drm_skua_query_type - What to query
 */
enum drm_skua_query_type {
	/** @DRM_SKUA_QUERY_DEVICE: One &struct drm_skua_device_info. */
	DRM_SKUA_QUERY_DEVICE = 0,
	/**
	 * @DRM_SKUA_QUERY_ENGINES: &struct drm_skua_engine_info for each engine that clients can
	 * use; of several copy engines the driver keeps one for itself. Numbers may have gaps.
	 */
	DRM_SKUA_QUERY_ENGINES,
	/** @DRM_SKUA_QUERY_REGIONS: &struct drm_skua_region_info for each memory region. */
	DRM_SKUA_QUERY_REGIONS,
};

/**
 * struct drm_skua_query - Argument of DRM_IOCTL_SKUA_QUERY
 *
 * With @pointer 0, sets @size to the bytes of the answer and writes nothing else.
 * Otherwise writes at most @size bytes of the answer and sets @size to what was
 * written; a shorter buffer gets the first elements, which may be cut.
 */
struct drm_skua_query {
	/** @type: See &enum drm_skua_query_type. */
	__u32 type;

	/** @size: Bytes at @pointer; bytes of the answer when the ioctl returns. */
	__u32 size;

	/** @pointer: Where to write the answer, or 0. */
	__u64 pointer;
};

/**
 * struct drm_skua_device_info - The device
 */
struct drm_skua_device_info {
	/** @hw_version: Hardware version: major in bits 31:16, minor in bits 15:0. */
	__u32 hw_version;

	/** @engine_count: Engines that clients can use: elements of DRM_SKUA_QUERY_ENGINES. */
	__u32 engine_count;

	/** @va_start: First GPU virtual address that can be bound. */
	__u64 va_start;

	/** @va_end: Address behind the last one that can be bound. */
	__u64 va_end;

	/**
	 * @page_size_mask: Sizes of GPU pages, one bit each; bit 12 is 4 KiB.
	 *
	 * The driver uses the largest that addresses, offset and memory allow.
	 */
	__u64 page_size_mask;

	/** @tick_hz: Ticks of engine time in a nominal second. */
	__u64 tick_hz;

	/** @max_group_threads: Most threads of a thread group. */
	__u32 max_group_threads;

	/** @wave_threads: Threads that share one instruction. */
	__u32 wave_threads;

	/** @max_shared_bytes: Most bytes of shared memory of a thread group. */
	__u32 max_shared_bytes;

	/** @max_bind_ops: Most operations of one &drm_skua_vm_bind. */
	__u32 max_bind_ops;

	/** @max_buffers: Most buffers of one &drm_skua_submit. */
	__u32 max_buffers;

	/** @max_syncs: Most syncs of one ioctl. */
	__u32 max_syncs;

	/**
	 * @graphics_preemption: How finely commands that draw can be preempted.
	 *
	 * The number of WDDM's D3DKMDT_GRAPHICS_PREEMPTION_GRANULARITY: 0 not at all,
	 * 100 behind a buffer, 200 a primitive, 300 a triangle, 400 a pixel, 500 an
	 * instruction; of all engines that can run such the least.
	 */
	__u32 graphics_preemption;

	/**
	 * @compute_preemption: How finely all other commands can be preempted.
	 *
	 * The number of WDDM's D3DKMDT_COMPUTE_PREEMPTION_GRANULARITY: 0 not at all,
	 * 100 behind a buffer, 200 a dispatch, 300 a thread group, 400 a thread, 500 an
	 * instruction; of all engines that can run dispatches the least.
	 */
	__u32 compute_preemption;
};

/**
 * enum drm_skua_engine_kind - Kinds of engines
 */
enum drm_skua_engine_kind {
	/** @DRM_SKUA_ENGINE_COMPUTE: Graphics and compute: all commands. */
	DRM_SKUA_ENGINE_COMPUTE = 0,
	/** @DRM_SKUA_ENGINE_COPY: Copy and paging: all commands but DISPATCH and DRAW. */
	DRM_SKUA_ENGINE_COPY,
};

/**
 * struct drm_skua_engine_info - An engine
 */
struct drm_skua_engine_info {
	/** @index: The engine's number, as &drm_skua_context_create.engine. */
	__u32 index;

	/** @kind: See &enum drm_skua_engine_kind. */
	__u32 kind;
};

/**
 * enum drm_skua_region_kind - Kinds of memory regions
 */
enum drm_skua_region_kind {
	/**
	 * @DRM_SKUA_REGION_SYSTEM: System memory; cached and coherent but for
	 * DRM_SKUA_BO_WRITE_COMBINED.
	 */
	DRM_SKUA_REGION_SYSTEM = 0,
	/** @DRM_SKUA_REGION_VRAM: The GPU's own memory. */
	DRM_SKUA_REGION_VRAM,
	/**
	 * @DRM_SKUA_REGION_APERTURE: System memory as the GPU sees it through a window of its
	 * own (WDDM: aperture segment): in one piece, and behind a second translation. It
	 * counts as system memory as well.
	 */
	DRM_SKUA_REGION_APERTURE,
};

/**
 * struct drm_skua_region_info - A memory region (WDDM: segment)
 */
struct drm_skua_region_info {
	/** @id: The region's number: its bit in &drm_skua_bo_create.placements. */
	__u32 id;

	/** @kind: See &enum drm_skua_region_kind. */
	__u32 kind;

	/** @size: Bytes that buffer objects can have here together. */
	__u64 size;

	/** @used: Bytes that buffer objects and page tables have here now, of all clients. */
	__u64 used;

	/**
	 * @cpu_visible_size: Bytes of @size, from the first on, that the CPU reaches all the
	 * time.
	 */
	__u64 cpu_visible_size;

	/** @page_size: The granularity of placement in bytes. */
	__u32 page_size;

	/**
	 * @aperture_page_size: Bytes of a page of the CPU host aperture: 4096 or 65536; 0 if
	 * there is none.
	 */
	__u32 aperture_page_size;

	/**
	 * @aperture_size: Bytes of the CPU host aperture, through which the CPU reaches the
	 * rest of @size, so much of it at a time: what was mapped longest ago has to wait for
	 * its next access. 0 if there is none.
	 */
	__u64 aperture_size;
};

/**
 * enum drm_skua_bo_flags - Flags of a buffer object
 */
enum drm_skua_bo_flags {
	/** @DRM_SKUA_BO_CPU_ACCESS: The buffer object can be mapped by the CPU. */
	DRM_SKUA_BO_CPU_ACCESS = 1 << 0,
	/**
	 * @DRM_SKUA_BO_CACHED: The CPU's mappings of it are cached.
	 *
	 * So it can be accessed in system memory alone, while it is locked
	 * (DRM_IOCTL_SKUA_BO_LOCK), and is never seen in VRAM, unless the CPU host aperture is
	 * cached (WDDM: SupportsCachedCpuHostAperture) and system memory is among its placements:
	 * then it is seen there as others are.
	 */
	DRM_SKUA_BO_CACHED = 1 << 1,
	/**
	 * @DRM_SKUA_BO_WRITE_COMBINED: The CPU's mappings of it are write-combined, in system
	 * memory as in VRAM, and the GPU does not snoop the CPU's caches for it; but in VRAM
	 * through a CPU host aperture that is cached they are cached, and coherent.
	 */
	DRM_SKUA_BO_WRITE_COMBINED = 1 << 2,
};

/**
 * struct drm_skua_bo_create - Argument of DRM_IOCTL_SKUA_BO_CREATE
 *
 * The content is zero for whoever sees it first.
 *
 * Where VRAM has no room, other buffer objects are moved out of it, and count as their
 * client's system memory from then on, even beyond what the client may have. Where what may
 * be in the aperture alone has no room there, others leave it that may be elsewhere. The
 * call waits until what uses them is done, for ten seconds at most.
 *
 * What is in VRAM is charged to the caller's control group (dmem). Where that may have no
 * more, VRAM has no room but what other buffer objects of the group leave.
 *
 * Errors: -ENOENT for @vm; -EINVAL for @size 0 or not a multiple of 4096 or above
 * 2^40, @flags, DRM_SKUA_BO_CACHED or DRM_SKUA_BO_WRITE_COMBINED without
 * DRM_SKUA_BO_CPU_ACCESS, or both of them, @placements, @preferred, @eviction_set or @pad;
 * -EOPNOTSUPP for what could never be locked: if VRAM alone is allowed,
 * DRM_SKUA_BO_CACHED, and DRM_SKUA_BO_CPU_ACCESS where the CPU sees no VRAM
 * (&drm_skua_region_info.cpu_visible_size); -ENOSPC if VRAM is allowed and system memory
 * is not, or the aperture alone is, and no room can be made there in time, or none that
 * other control groups give up; -ENOMEM if system memory has no room and VRAM has none, or is not
 * allowed, or one client would have more than half of it, or its user, as of &struct
 * drm_skua_vm_create, more than is left for others, or has already.
 */
struct drm_skua_bo_create {
	/** @size: Bytes: a multiple of 4096. */
	__u64 size;

	/** @flags: See &enum drm_skua_bo_flags. */
	__u32 flags;

	/**
	 * @placements: Regions that may hold it, one bit for each region's id.
	 *
	 * At least one, and only ones that exist (WDDM: SupportedSegmentSet). Of several, the first
	 * in the order of &preferred is taken that has room. VRAM has if room can be made, where
	 * the CPU can map it if it is to map the object:
	 * in &drm_skua_region_info.cpu_visible_size, or, if system memory is named, too, anywhere
	 * if there is a CPU host aperture (&drm_skua_region_info.aperture_size). The
	 * aperture (DRM_SKUA_REGION_APERTURE) has if it is free in one piece. Where none has and
	 * system memory is not named, others leave the aperture that may be elsewhere, or in the
	 * end VRAM, though they are resident.
	 *
	 * Where others need the room, an object in VRAM is moved to system memory, under
	 * the same addresses of CPU and GPU, and back (DRM_IOCTL_SKUA_MAKE_RESIDENT,
	 * DRM_IOCTL_SKUA_SUBMIT). The
	 * CPU reaches it in both places, the GPU in those that are named: if that is not system
	 * memory, the object is moved back before work runs in an address space that maps
	 * it (DRM_IOCTL_SKUA_SUBMIT).
	 *
	 * What leaves VRAM goes where &eviction_set says. What is in the aperture
	 * leaves it without being copied: its pages stay, and the GPU reaches them directly.
	 * What may be nowhere else stays there.
	 *
	 * While the device of another driver, or another GPU, has it attached it is in system
	 * memory: an import there waits for that, up to ten seconds, and is refused where it may
	 * not be there (-EOPNOTSUPP).
	 */
	__u32 placements;

	/** @handle: Returned handle, not 0. */
	__u32 handle;

	/**
	 * @vm: The only address space in which it can be bound, or 0.
	 *
	 * What uses such a buffer object is known from what uses the address space, which
	 * makes it cheaper for the driver to move. It cannot be exported (-EPERM).
	 */
	__u32 vm;

	/**
	 * @preferred: The regions that are tried first, in their order (WDDM: PreferredSegment).
	 *
	 * Bits 7:0 are the bit of the first one, as in @placements, bits 15:8 that of the second,
	 * bits 23:16 that of the third; 0: there is none, and none behind. Only such that
	 * @placements has, and each once. Those that are not here are tried behind these: VRAM,
	 * then the aperture, then system memory, which is the order of all where this is 0.
	 *
	 * The buffer object is created in the first one that has room, and is brought back to
	 * that (DRM_IOCTL_SKUA_MAKE_RESIDENT, DRM_IOCTL_SKUA_SUBMIT). What prefers another
	 * region to VRAM does not come there because that has room: the GPU reaches it where it
	 * is.
	 */
	__u32 preferred;

	/**
	 * @eviction_set: Regions for which it leaves VRAM, one bit each (WDDM: EvictionSegmentSet).
	 *
	 * The aperture, if @placements has that, system memory, whether or not it has that, or
	 * both; none of what may not be in VRAM. It goes to the first of these, in the order of
	 * @preferred, that has room, or else to system memory. 0 means all but VRAM that
	 * @placements has.
	 */
	__u32 eviction_set;

	/**
	 * @priority: How important it is that it is in VRAM, see &enum drm_skua_priority; 0 means
	 * DRM_SKUA_PRIORITY_NORMAL. DRM_IOCTL_SKUA_BO_SET_PRIORITY changes it.
	 */
	__u32 priority;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_bo_mmap_offset - Argument of DRM_IOCTL_SKUA_BO_MMAP_OFFSET
 *
 * A mapping of VRAM is write-combined, or cached where the CPU host aperture is, one of system
 * memory is cached unless the buffer object is DRM_SKUA_BO_WRITE_COMBINED. It stays
 * usable when the device is gone: what was in VRAM is then one page under all of its addresses,
 * zero until somebody writes it.
 *
 * What is in VRAM and is not seen there (DRM_SKUA_BO_CACHED), or not DRM_SKUA_BO_CPU_ACCESS,
 * is a bus error to access: lock it (DRM_IOCTL_SKUA_BO_LOCK).
 *
 * Errors: -ENOENT for @handle; -EINVAL for @pad; -EPERM for a buffer object without
 * DRM_SKUA_BO_CPU_ACCESS that nobody has locked; -EOPNOTSUPP for an imported one: map its
 * dma-buf.
 */
struct drm_skua_bo_mmap_offset {
	/** @handle: Handle of the buffer object. */
	__u32 handle;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @offset: Returned offset for mmap() on the same file, MAP_SHARED: -EINVAL. */
	__u64 offset;
};

/**
 * struct drm_skua_bo_info - Argument of DRM_IOCTL_SKUA_BO_INFO
 *
 * Errors: -ENOENT for @handle; -EINVAL for @pad.
 */
struct drm_skua_bo_info {
	/** @handle: Handle of the buffer object. */
	__u32 handle;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @size: Returned size in bytes. */
	__u64 size;

	/** @flags: Returned flags, as at creation. */
	__u32 flags;

	/** @placements: Returned regions that may hold it. */
	__u32 placements;

	/** @region: Returned number of the region that holds it now. */
	__u32 region;

	/** @imported: Returned 1 if it is another driver's dma-buf, else 0. */
	__u32 imported;

	/**
	 * @content_lost: Returned 1 if the GPU was reset while it was in VRAM, or on its way out,
	 * at any time, else 0.
	 *
	 * Its content was zero then.
	 */
	__u32 content_lost;

	/** @reserved: Returned zero. */
	__u32 reserved;

	/** @preferred: Returned regions that are tried first, as at creation. */
	__u32 preferred;

	/** @eviction_set: Returned regions for which it leaves VRAM, as at creation. */
	__u32 eviction_set;
};

/**
 * enum drm_skua_bo_destroy_flags - Flags of a destruction
 */
enum drm_skua_bo_destroy_flags {
	/**
	 * @DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE: Nothing that was submitted uses them.
	 *
	 * Work that does all the same faults (-EFAULT).
	 */
	DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE = 1 << 0,
	/**
	 * @DRM_SKUA_BO_DESTROY_SYNCHRONOUS: Return when their memory is free.
	 *
	 * If a signal arrives before, nothing has changed.
	 */
	DRM_SKUA_BO_DESTROY_SYNCHRONOUS = 1 << 1,
};

/**
 * struct drm_skua_bo_handle - A buffer object in an array
 */
struct drm_skua_bo_handle {
	/** @handle: Handle of the buffer object. */
	__u32 handle;
	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_bo_destroy - Argument of DRM_IOCTL_SKUA_BO_DESTROY
 *
 * Destroys buffer objects (WDDM: DestroyAllocation2), all of them or none. Their handles are gone
 * when the ioctl returns. Their memory is free, and mapped nowhere in the client's address spaces,
 * when all work is done that was submitted before in an address space that maps them; if contexts
 * of the client hold work then, also what they hold, wherever that is, or, if all of the objects
 * are private to address spaces, in these. Until that is released the objects are moved as any
 * others, and stay resident for the devices of these contexts. With
 * DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE all of this is at once, unless the driver itself is
 * clearing or moving them: then when that is done. No other bind waits for that, and a bind that
 * was queued before and is not done by then maps nothing in their place. An access by the CPU is a
 * bus error from then on.
 *
 * Of a buffer object that was exported, had a second handle or is imported, only handle
 * and mappings go, with those that the client makes of it by another handle until then: it lives as
 * long as others have it.
 *
 * Errors: -ENOENT for a handle; -EINVAL for @flags, @pad, the number of @handles, or
 * one that is there twice; -ENOSPC if 4096 calls of the client for what others may have wait
 * for what is held; -EAGAIN if the work was not done after a second: call again with the same
 * argument.
 */
struct drm_skua_bo_destroy {
	/** @flags: See &enum drm_skua_bo_destroy_flags. */
	__u32 flags;
	/** @pad: Must be zero. */
	__u32 pad;
	/** @handles: Array of &struct drm_skua_bo_handle, 1 to 1024. */
	struct drm_skua_array handles;
};

/**
 * enum drm_skua_make_resident_flags - Flags of a &struct drm_skua_make_resident
 */
enum drm_skua_make_resident_flags {
	/**
	 * @DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER: The client needs all that, and has nothing
	 * to evict for it: succeed beyond the device's budget, as far as there is VRAM at all.
	 * For devices with explicit residency.
	 */
	DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER = 1 << 0,
	/**
	 * @DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED: The client cannot go on without: where there is no
	 * memory for the objects, or no room, the device fails with DRM_SKUA_CONTEXT_OUT_OF_MEMORY
	 * (-ECANCELED).
	 * Only together with DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER.
	 */
	DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED = 1 << 1,
};

/**
 * struct drm_skua_make_resident - Argument of DRM_IOCTL_SKUA_MAKE_RESIDENT
 *
 * Makes buffer objects resident for a device (WDDM: MakeResident), all of them or none:
 * those that rather are to be in VRAM than where they are (&drm_skua_bo_create.preferred) move
 * there, as far as it has room, or room can be
 * made by moving out what is resident for nobody, or idle, of a lower priority and may be in system
 * memory; and stay there, unless such an object of a higher priority takes the room, or work needs
 * it for an object that may be in VRAM alone. Likewise to the aperture from system memory, as far
 * as that has room. What is in a region that it prefers to these is resident there. The device
 * counts how often each was made resident; that ends with the handle.
 *
 * Of the file's own device this is advice: its work runs without, too. Of a device with explicit
 * residency, what may be in VRAM alone is there when the device's work runs if and only if it is
 * resident for it. Together with what may be in VRAM or in the aperture alone that is to be no more
 * than the device's budget: its share of VRAM, which is what other devices with explicit residency
 * do not have resident, and the same as they get if they have more. What would exceed it is refused
 * (-ENOMEM), unless the client says that it can trim no further; &bytes_to_trim is what is too
 * much. Budgets change with what others make resident, see &struct drm_skua_event_trim.
 *
 * Content and addresses stay. All work that is submitted after the call waits for the
 * moves by itself, but work of this device if it has explicit residency: what that uses of
 * the buffer objects that may not be in system memory, and were not resident for the device, is
 * there for work that is submitted behind the signals of @syncs (WDDM: paging fence); an access
 * before that faults. What is private to an address space is waited for in any case.
 * The signals of @syncs follow when all moves of them are done, with the
 * error of one that is not; then a monitored fence is lost as if its device had failed. Where the
 * call makes room, it waits as DRM_IOCTL_SKUA_BO_CREATE does, as long in all. What other clients
 * have, too, and are using just now, stays where it is.
 *
 * What may be in VRAM alone, or has no room in the aperture, and was locked by the CPU while it was
 * out (DRM_IOCTL_SKUA_BO_LOCK), does not move while it is locked. If values of monitored fences are
 * to be signalled, it moves when it is unlocked, unless it was evicted meanwhile, and they are
 * signalled after that; work of a device with explicit residency does not need it before. If the
 * device fails or is destroyed before, the fences are lost. A syncobj's fence cannot wait for what
 * a client may do (-EBUSY). If nothing is to be signalled, it moves when work needs it.
 *
 * Errors: -EMFILE for 32768 devices for which one is resident; -ENOENT for @device, a handle
 * or a syncobj; -EINVAL for @flags, a flag of explicit residency for another device,
 * @bytes_to_trim, the number of @handles, one that is there twice, or a wait among @syncs;
 * -ENOSPC if 1024 calls of the file are to signal values of monitored fences still, 64 of them
 * wait for an unlock, or too many of all files do; -EBUSY for a handle if it is offered, or a
 * syncobj to signal if one is out and locked; -ENOMEM also if all that is resident and may not be
 * in system memory is more than VRAM; -ECANCELED if the device has failed for want of memory
 * (DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED); -EOVERFLOW for 2^32 of one handle.
 */
struct drm_skua_make_resident {
	/** @flags: See &enum drm_skua_make_resident_flags. */
	__u32 flags;
	/** @device: The device, or 0. */
	__u32 device;
	/** @handles: Array of &struct drm_skua_bo_handle, 1 to 1024. */
	struct drm_skua_array handles;
	/** @syncs: Array of &struct drm_skua_sync, up to &drm_skua_device_info.max_syncs. */
	struct drm_skua_array syncs;
	/**
	 * @bytes_to_trim: Must be zero; returned bytes by which the device exceeds its budget,
	 * or would, if the call fails for want of memory (WDDM: NumBytesToTrim). 0 for a device
	 * without explicit residency.
	 */
	__u64 bytes_to_trim;
};

/**
 * struct drm_skua_evict - Argument of DRM_IOCTL_SKUA_EVICT
 *
 * Takes one DRM_IOCTL_SKUA_MAKE_RESIDENT of each buffer object back (WDDM: Evict), of all
 * of them or of none. What is resident for nobody moves when its room is needed.
 *
 * For a device with explicit residency what may not be in system memory and is not resident any
 * more is as if it were not mapped (unless it is private to an address space): its content is as
 * the work leaves it that was submitted before the call, but what is held for monitored fences;
 * work is held until a syncobj that it signals has a fence. Other work does not wait when it moves,
 * nor is it waited for, and may not access it.
 *
 * Errors: -ENOENT for @device or a handle; -EINVAL for @flags, the number of @handles, one
 * that is there twice, or one that is not resident for the device.
 */
struct drm_skua_evict {
	/** @flags: Must be zero. */
	__u32 flags;
	/** @device: The device, or 0. */
	__u32 device;
	/** @handles: Array of &struct drm_skua_bo_handle, 1 to 1024. */
	struct drm_skua_array handles;
};

/**
 * struct drm_skua_bo_lock - Argument of DRM_IOCTL_SKUA_BO_LOCK
 *
 * Locks all of a buffer object for the CPU (WDDM: Lock2), which maps it at @offset. Memory
 * is linear: there is nothing swizzled that a lock would have to make so. What
 * the CPU can access wherever it is stays where it is, and may be moved under the lock,
 * which nobody notices; but in VRAM that it reaches through the CPU host aperture no more is
 * locked than that has pages for: what exceeds it leaves VRAM until it is unlocked, as
 * &drm_skua_bo_create.eviction_set says. What it cannot access in VRAM (DRM_SKUA_BO_CACHED that is
 * not seen there, or no DRM_SKUA_BO_CPU_ACCESS) leaves that likewise if it is there, and does not
 * come to VRAM before it is unlocked, whoever makes it resident. What may be in VRAM alone does not
 * move for a lock: it can be locked while it is moved out, unless others may have it, and work
 * that needs it is refused (-EBUSY), as is its export, until it is unlocked. What is resident of it
 * comes then (DRM_IOCTL_SKUA_MAKE_RESIDENT).
 *
 * Work of the GPU is not waited for, unless the buffer object has to move: then for all
 * that was submitted before and may use it, for ten seconds at most. What several clients
 * have mapped moves only while nobody works with it. The client counts how often it has
 * locked each; that ends with the handle.
 *
 * Errors: -ENOENT for @handle; -EINVAL for @flags; -EOPNOTSUPP for an imported buffer
 * object: map its dma-buf; -EPERM for what the CPU cannot access in VRAM and may be nowhere else
 * if it is there, or was exported or had a second handle; -EMFILE for 16384 clients that lock
 * one; -ENOSPC if it is in use for long, or others may have it and the aperture, where alone the
 * GPU would find it, has no room; -ENOMEM if system memory has no room; -EBUSY if it is offered,
 * or being destroyed.
 */
struct drm_skua_bo_lock {
	/** @handle: Handle of the buffer object. */
	__u32 handle;
	/** @flags: Must be zero: a lock has no flags. */
	__u32 flags;
	/** @offset: Returned offset for mmap() on the same file. */
	__u64 offset;
};

/**
 * struct drm_skua_bo_unlock - Argument of DRM_IOCTL_SKUA_BO_UNLOCK
 *
 * Takes one DRM_IOCTL_SKUA_BO_LOCK of the client back (WDDM: Unlock2).
 *
 * Errors: -ENOENT for @handle; -EINVAL for @pad, or what the client has not locked.
 */
struct drm_skua_bo_unlock {
	/** @handle: Handle of the buffer object. */
	__u32 handle;
	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_priority - Priorities of residency
 *
 * Those that have a name (WDDM: D3DDDI_ALLOCATIONPRIORITY_*). Any number but 0 is one, and
 * counts as the highest of these that is not above it, or as the lowest.
 */
enum drm_skua_priority {
	/** @DRM_SKUA_PRIORITY_MINIMUM: What goes first. */
	DRM_SKUA_PRIORITY_MINIMUM = 0x28000000,
	/** @DRM_SKUA_PRIORITY_LOW: What goes next. */
	DRM_SKUA_PRIORITY_LOW = 0x50000000,
	/** @DRM_SKUA_PRIORITY_NORMAL: What buffer objects have that are created without one. */
	DRM_SKUA_PRIORITY_NORMAL = 0x78000000,
	/** @DRM_SKUA_PRIORITY_HIGH: What stays before others. */
	DRM_SKUA_PRIORITY_HIGH = 0xa0000000,
	/** @DRM_SKUA_PRIORITY_MAXIMUM: What goes last. */
	DRM_SKUA_PRIORITY_MAXIMUM = 0xc8000000,
};

/**
 * struct drm_skua_bo_priority - A buffer object in an array, and its priority
 */
struct drm_skua_bo_priority {
	/** @handle: Handle of the buffer object. */
	__u32 handle;
	/** @priority: Its priority from now on; see &enum drm_skua_priority. */
	__u32 priority;
};

/**
 * struct drm_skua_bo_set_priority - Argument of DRM_IOCTL_SKUA_BO_SET_PRIORITY
 *
 * Sets priorities of residency (WDDM: SetAllocationPriority), of all or of none; but with
 * -EINTR the first ones may have changed: call again. A
 * priority is a hint. Of what could leave VRAM because others need the room, and is not
 * resident for somebody (DRM_IOCTL_SKUA_MAKE_RESIDENT), the buffer objects of the lowest
 * priority go first; of these, those that are idle; of these, those that were not used for
 * longest. For what rather is to be in VRAM, what is resident leaves, too, if it has a lower
 * priority, is idle, and may be in system memory. A buffer object has one priority, for all
 * clients.
 *
 * Errors: -ENOENT for a handle; -EINVAL for @flags, @pad, the number of @objects, a handle
 * that is there twice, or priority 0.
 */
struct drm_skua_bo_set_priority {
	/** @flags: Must be zero. */
	__u32 flags;
	/** @pad: Must be zero. */
	__u32 pad;
	/** @objects: Array of &struct drm_skua_bo_priority, 1 to 1024. */
	struct drm_skua_array objects;
};

/**
 * enum drm_skua_offer_priority - How soon what is offered goes
 *
 * The numbers are WDDM's (D3DDDI_OFFER_PRIORITY_*).
 */
enum drm_skua_offer_priority {
	/** @DRM_SKUA_OFFER_LOW: First. */
	DRM_SKUA_OFFER_LOW = 1,
	/** @DRM_SKUA_OFFER_NORMAL: Next. */
	DRM_SKUA_OFFER_NORMAL = 2,
	/** @DRM_SKUA_OFFER_HIGH: Last of what is offered. */
	DRM_SKUA_OFFER_HIGH = 3,
	/**
	 * @DRM_SKUA_OFFER_AUTO: By the priority of residency that it has then: low up to
	 * DRM_SKUA_PRIORITY_LOW, high from DRM_SKUA_PRIORITY_HIGH on.
	 */
	DRM_SKUA_OFFER_AUTO = 4,
};

/**
 * struct drm_skua_bo_offer - Argument of DRM_IOCTL_SKUA_BO_OFFER
 *
 * Says of buffer objects that nobody needs their content for now (WDDM: OfferAllocations), of
 * all or of none. Where memory is short, in VRAM or in the system, it is thrown away, without
 * being copied or swapped out, and before anything leaves that is not offered; of what is offered,
 * that of the lowest priority first. What protects a control group's memory protects this, too.
 * What may be in the aperture alone is kept.
 *
 * Until it is reclaimed (DRM_IOCTL_SKUA_BO_RECLAIM), a buffer object is not to be used. An access
 * by the CPU is a bus error. What DRM_IOCTL_SKUA_VM_BIND is to map, DRM_IOCTL_SKUA_MAKE_RESIDENT,
 * DRM_IOCTL_SKUA_BO_LOCK and an export are refused (-EBUSY). Mappings of the GPU stay, and lead to
 * the content as long as there is one, and nowhere when it is gone: work that goes there faults.
 * Work that was submitted before is waited for before anything is thrown away; for work that is
 * submitted later nothing is brought back to VRAM. It counts as its client's memory as before, or
 * as system memory when it was thrown away in VRAM.
 *
 * What is offered already has the new priority from then on.
 *
 * Errors: -ENOENT for a handle; -EINVAL for @flags, @priority, the number of @handles, or one that
 * is there twice; -EOPNOTSUPP for an imported buffer object; -EPERM for one that was exported
 * or had a second handle; -EBUSY for one that is locked, is resident for a device, or is being
 * destroyed.
 */
struct drm_skua_bo_offer {
	/** @flags: Must be zero. */
	__u32 flags;
	/** @priority: See &enum drm_skua_offer_priority. */
	__u32 priority;
	/** @handles: Array of &struct drm_skua_bo_handle, 1 to 1024. */
	struct drm_skua_array handles;
};

/**
 * struct drm_skua_bo_reclaim - Argument of DRM_IOCTL_SKUA_BO_RECLAIM
 *
 * Takes DRM_IOCTL_SKUA_BO_OFFER back (WDDM: ReclaimAllocations2), for all buffer objects or for
 * none, and says of each whether its content was thrown away: it is zero then. Each is used as
 * before when the call returns, under the same addresses of CPU and GPU. Of what was not offered
 * nothing was thrown away.
 *
 * What was thrown away is in system memory, or out, as if it had been moved there.
 *
 * Errors: -ENOENT for a handle; -EINVAL for @flags, @pad, the number of @handles, or one that is
 * there twice; -EAGAIN if content is just being thrown away, and the work that is waited for was
 * not done after a second: call again with the same argument.
 */
struct drm_skua_bo_reclaim {
	/** @flags: Must be zero. */
	__u32 flags;
	/** @pad: Must be zero. */
	__u32 pad;
	/** @handles: Array of &struct drm_skua_bo_handle, 1 to 1024. */
	struct drm_skua_array handles;
	/**
	 * @discarded: Returned bits, one for each of @handles: bit n % 64 of word n / 64 is 1 if
	 * the content of number n was thrown away since it was offered.
	 */
	__u64 discarded[16];
};

/**
 * enum drm_skua_device_flags - Flags of a device
 */
enum drm_skua_device_flags {
	/**
	 * @DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY: Work finds in VRAM alone what is resident for
	 * the device (DRM_IOCTL_SKUA_MAKE_RESIDENT). Without it the driver brings in all that
	 * is mapped.
	 */
	DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY = 1 << 0,
};

/**
 * struct drm_skua_device_create - Argument of DRM_IOCTL_SKUA_DEVICE_CREATE
 *
 * Errors: -EINVAL for @flags; -ENOSPC if the client has 16; with explicit residency also if there
 * are 1024 of these, the client has 16, with those that were destroyed and whose address spaces or
 * contexts are still in use, or its user as many as are free for others, as of &struct
 * drm_skua_vm_create.
 */
struct drm_skua_device_create {
	/** @flags: See &enum drm_skua_device_flags. */
	__u32 flags;

	/** @device: Returned handle, not 0. */
	__u32 device;
};

/**
 * struct drm_skua_device_destroy - Argument of DRM_IOCTL_SKUA_DEVICE_DESTROY
 *
 * Destroys all that was made of it: contexts, what was allocated for them
 * (DRM_IOCTL_SKUA_CONTEXT_ALLOC), address spaces and handles of monitored fences, as if the file
 * was closed. Their handles may be given out again. Nothing is resident for it any more.
 *
 * Errors: -ENOENT for @device, also 0; -EINVAL for @pad.
 */
struct drm_skua_device_destroy {
	/** @device: Handle of the device. */
	__u32 device;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_device_state - Argument of DRM_IOCTL_SKUA_DEVICE_STATE
 *
 * Errors: -ENOENT for @device; -EINVAL for @pad.
 */
struct drm_skua_device_state {
	/** @device: The device, or 0. */
	__u32 device;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @flags: Returned flags, as at creation. */
	__u32 flags;

	/**
	 * @status: Returned status, see &enum drm_skua_context_status: that of the first of its
	 * contexts that failed, also one that was destroyed; from before a fence says so. A
	 * created device that is not active takes no work any more:
	 * its contexts' is cancelled (-ECANCELED). Contexts of the file's own device stand for
	 * themselves; it fails when the GPU is lost.
	 */
	__u32 status;

	/** @resident: Returned bytes that are resident for it and may not be in system memory. */
	__u64 resident;

	/**
	 * @budget: Returned bytes that these are to be at most, just now; all of VRAM for a
	 * device without explicit residency.
	 */
	__u64 budget;

	/**
	 * @system_used: Returned bytes of system memory that count as the client's, whatever the
	 * device: buffer objects that are there, fences that the GPU has mapped, and page tables.
	 */
	__u64 system_used;

	/**
	 * @system_limit: Returned bytes that these may be at most when the client makes more. Where
	 * others have the rest of system memory, it gets less.
	 */
	__u64 system_limit;
};

/**
 * struct drm_skua_device_mark_error - Argument of DRM_IOCTL_SKUA_DEVICE_MARK_ERROR
 *
 * The device fails with DRM_SKUA_CONTEXT_LOST, unless it has failed already (WDDM:
 * MarkDeviceAsError): for who finds out that its work cannot go on. What its contexts have
 * not completed and no engine has to do just then is cancelled (-ECANCELED), they take no more, and
 * its monitored fences get their largest value, but those that keep theirs
 * (DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR).
 *
 * Errors: -ENOENT for @device, also 0; -EINVAL for @pad.
 */
struct drm_skua_device_mark_error {
	/** @device: Handle of the device. */
	__u32 device;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * DRM_SKUA_EVENT_TRIM - &struct drm_event.type of a &struct drm_skua_event_trim
 */
#define DRM_SKUA_EVENT_TRIM 0x80000000

/**
 * struct drm_skua_event_trim - What can be read from the file when a device is to trim
 *
 * Comes when what others have made resident leaves a device with explicit residency less
 * of a budget than what is resident for it (WDDM: trim notification). It is advice: nothing
 * happens to a client that does not follow, but that its work waits for its
 * memory to be brought back in turn with others'. The next one for a device comes only after
 * the client has called DRM_IOCTL_SKUA_MAKE_RESIDENT, DRM_IOCTL_SKUA_EVICT or
 * DRM_IOCTL_SKUA_DEVICE_STATE for it. Nor does one come where the file has no room for it: 4096
 * bytes of events that were not read.
 */
struct drm_skua_event_trim {
	/** @base: DRM_SKUA_EVENT_TRIM, and the size of this structure. */
	struct drm_event base;

	/** @device: The device's handle. */
	__u32 device;

	/** @reserved: Zero. */
	__u32 reserved;

	/** @bytes_to_trim: Bytes by which it exceeds its budget. */
	__u64 bytes_to_trim;
};

/**
 * struct drm_skua_vm_create - Argument of DRM_IOCTL_SKUA_VM_CREATE
 *
 * Errors: -ENOENT for @device; -EINVAL for @flags or @pad; -ECANCELED for a device that is
 * not active; -ENOSPC if there are too many address spaces, or the
 * client has 256, or its user as many as are free for others, those counted that are destroyed but
 * still in use. The user is the effective one that opened the file; there is no such limit for
 * who has CAP_SYS_RESOURCE when it calls.
 */
struct drm_skua_vm_create {
	/** @flags: Must be zero. */
	__u32 flags;

	/** @device: The device that it and its contexts are of, or 0. */
	__u32 device;

	/** @vm: Returned handle, not 0. */
	__u32 vm;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_vm_destroy - Argument of DRM_IOCTL_SKUA_VM_DESTROY
 *
 * Errors: -ENOENT for @vm; -EINVAL for @pad.
 */
struct drm_skua_vm_destroy {
	/** @vm: Handle of the address space. */
	__u32 vm;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_bind_op_type - What a bind operation does
 */
enum drm_skua_bind_op_type {
	/**
	 * @DRM_SKUA_BIND_MAP: Map a range of a buffer object.
	 *
	 * What was mapped in the range before is unmapped.
	 */
	DRM_SKUA_BIND_MAP = 0,
	/** @DRM_SKUA_BIND_UNMAP: Unmap whatever is mapped in the range, if anything. */
	DRM_SKUA_BIND_UNMAP,
	/**
	 * @DRM_SKUA_BIND_MAP_FENCE: Map the page with the value of a monitored fence.
	 *
	 * The GPU can read it, and sees each change, as the CPU does that has mapped a descriptor
	 * (WDDM: FenceValueGPUVirtualAddress). It is there as long as the mapping is, which keeps
	 * nobody able to signal the fence. Each such operation counts as a page of the client's
	 * system memory, from the ioctl until what it has mapped is unmapped and forgotten. What was
	 * mapped in the range before is unmapped.
	 *
	 * A WAIT for it keeps its engine busy; a sync of a submission that waits does not.
	 */
	DRM_SKUA_BIND_MAP_FENCE,
	/**
	 * @DRM_SKUA_BIND_COPY: Map in the range what is mapped in another one.
	 *
	 * As the operations before in the bind, and the binds before, leave the two, which may
	 * overlap. What was mapped in the range before is unmapped, also where nothing is mapped
	 * in the other. Mappings of objects that are offered are copied, too. A held bind looks
	 * when it is let go.
	 */
	DRM_SKUA_BIND_COPY,
};

/**
 * enum drm_skua_bind_op_flags - Flags of a bind operation
 */
enum drm_skua_bind_op_flags {
	/** @DRM_SKUA_BIND_READONLY: The GPU cannot write through the mapping. */
	DRM_SKUA_BIND_READONLY = 1 << 0,
};

/**
 * struct drm_skua_bind_op - One operation of a bind
 */
struct drm_skua_bind_op {
	/** @type: See &enum drm_skua_bind_op_type. */
	__u32 type;

	/** @flags: See &enum drm_skua_bind_op_flags; zero unless it maps a buffer object. */
	__u32 flags;

	/** @handle: Handle of the buffer object, or fence (-ENOENT); zero for others. */
	__u32 handle;

	/** @pad: Must be zero. */
	__u32 pad;

	/**
	 * @offset: First byte in the buffer object, or first GPU virtual address of the range that
	 * is copied: a multiple of 4096; zero for a fence, and for an unmap.
	 */
	__u64 offset;

	/** @va: First GPU virtual address: a multiple of 4096. */
	__u64 va;

	/**
	 * @size: Bytes: a multiple of 4096, not 0; 4096 for a fence.
	 *
	 * Both ranges must lie in their space whole: -EINVAL.
	 */
	__u64 size;
};

/**
 * struct drm_skua_vm_bind - Argument of DRM_IOCTL_SKUA_VM_BIND
 *
 * Performs @ops in order, when all binds before in this address space are done and
 * all waits of @syncs are. Signals of @syncs follow when no engine uses an old
 * translation any more. The whole bind is refused if one operation is not valid.
 *
 * The ioctl does not wait for fences: work that needs the mappings waits for a signal.
 * A bind that waits for nothing may be performed before the ioctl returns, which then
 * takes as long as the engines take to drop old translations.
 *
 * If a fence that it waits for has an error, the bind is performed all the same.
 *
 * A bind that waits for a value of a monitored fence that is not reached is held, as a
 * submission is (DRM_IOCTL_SKUA_SUBMIT), and so is what comes behind it in its address
 * space: syncobjs that it is to signal have no fence for it yet, and what it maps is not
 * mapped in any respect. A buffer object that is destroyed meanwhile is not mapped. While an
 * object that it maps is offered, a held bind waits, however long that takes. If there is
 * no memory for it when the value is reached, for ten seconds, the bind fails, and values that
 * it was to signal are lost. Held binds are cancelled when the address space is destroyed.
 *
 * With @context, a bind is held behind what is held of the context's binds, and neither behind
 * others nor these behind it (WDDM: UpdateGpuVirtualAddress). From when it is let go it has its
 * place behind the binds of the address space as any other. Submissions of the context do not wait
 * for it. It is cancelled when the context is destroyed, or takes no more work, before it is let
 * go. If it cannot be done then, the context fails with DRM_SKUA_CONTEXT_LOST, as by a failure of
 * its work.
 *
 * Errors: -ENOENT for @vm, @context or a handle; -EBUSY for a buffer object to map that is offered
 * (DRM_IOCTL_SKUA_BO_OFFER); -EINVAL for anything else out of its range, and for a buffer object or
 * context that is another address space's; -ENOMEM also if page tables or pages of fences would
 * take the client, or its user, above its part of system memory (see &struct drm_skua_bo_create);
 * -EOPNOTSUPP to map a fence where the GPU does not reach all memory; -ENOSPC if 4096 binds of the
 * address space wait or are held, with those of @context that are, and with what is unmapped since
 * it was destroyed; -E2BIG if copies come to more than 4096 mappings, of those that are there
 * before the bind or that it makes; -ECANCELED if the device was destroyed meanwhile, or @context
 * takes no more work.
 */
struct drm_skua_vm_bind {
	/** @vm: Handle of the address space. */
	__u32 vm;

	/** @flags: Must be zero. */
	__u32 flags;

	/** @context: Handle of a context of the address space in whose order it is held, or zero. */
	__u32 context;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @ops: Array of &struct drm_skua_bind_op, 1 to &drm_skua_device_info.max_bind_ops. */
	struct drm_skua_array ops;

	/** @syncs: Array of &struct drm_skua_sync, up to &drm_skua_device_info.max_syncs. */
	struct drm_skua_array syncs;
};

/**
 * struct drm_skua_context_create - Argument of DRM_IOCTL_SKUA_CONTEXT_CREATE
 *
 * On the address space of a device that is not active the call succeeds, and the context is
 * DRM_SKUA_CONTEXT_LOST from the start.
 *
 * Errors: -ENOENT for @vm; -EINVAL for @engine or @flags; -ENOSPC if there are too
 * many contexts, or the client has 256, or its user as many as are free for others (see
 * &drm_skua_vm_create), those counted that are destroyed but have work that has not ended.
 */
struct drm_skua_context_create {
	/** @vm: Handle of the address space. */
	__u32 vm;

	/** @engine: Number of the engine. */
	__u32 engine;

	/** @flags: Must be zero. */
	__u32 flags;

	/** @context: Returned handle. */
	__u32 context;
};

/**
 * struct drm_skua_context_destroy - Argument of DRM_IOCTL_SKUA_CONTEXT_DESTROY
 *
 * Work that has not started is cancelled, and of a submission with more buffers than the engine was
 * given, the rest. What runs is left to end. What is cancelled signals after what ran before it:
 * fences of a context signal in order, but those of what was held.
 *
 * Errors: -ENOENT for @context; -EINVAL for @pad.
 */
struct drm_skua_context_destroy {
	/** @context: Handle of the context. */
	__u32 context;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_context_priority_flags - What a priority of a context is about
 */
enum drm_skua_context_priority_flags {
	/**
	 * @DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS: The contexts of this file that have the same
	 * scheduling priority (WDDM: in-process scheduling priority). The more important one
	 * goes first, and where the engine can be preempted, makes another one of the file
	 * stop; it uses up the turns that this one has. All others notice nothing, and nobody
	 * needs a right for it.
	 */
	DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS = 1 << 0,
};

/**
 * struct drm_skua_context_set_priority - Argument of DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY
 *
 * Of contexts whose work can start those with the highest priority (WDDM: context
 * scheduling priority) go first, and where the engine can be preempted, work that
 * runs makes room for them. Contexts of equal priority get equal shares of the
 * engine. Nobody starves: a context of a lower priority has a turn now and then.
 * The class of its file may move it up or down (DRM_IOCTL_SKUA_SET_PRIORITY_CLASS).
 *
 * It holds for what is queued already, too, unless that runs.
 *
 * Errors: -ENOENT for @context; -EINVAL for @flags, @pad, @priority; -EACCES if @priority is
 * above 0, is not the one within the file, and the caller has not CAP_SYS_NICE.
 */
struct drm_skua_context_set_priority {
	/** @context: Handle of the context. */
	__u32 context;

	/** @priority: -7 to 7; 0 at first. */
	__s32 priority;

	/** @flags: See &enum drm_skua_context_priority_flags. */
	__u32 flags;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_priority_class - How important the work of all contexts of a file is
 *
 * The numbers are WDDM's (D3DKMT_SCHEDULINGPRIORITYCLASS). The priority of each context, -7 to
 * 7, counts as so many more, but never as more than 7 or less than -7.
 */
enum drm_skua_priority_class {
	/** @DRM_SKUA_PRIORITY_CLASS_IDLE: 14 less: every context stands at -7. */
	DRM_SKUA_PRIORITY_CLASS_IDLE = 0,
	/** @DRM_SKUA_PRIORITY_CLASS_BELOW_NORMAL: 3 less. */
	DRM_SKUA_PRIORITY_CLASS_BELOW_NORMAL,
	/** @DRM_SKUA_PRIORITY_CLASS_NORMAL: As it is; what a file has at first. */
	DRM_SKUA_PRIORITY_CLASS_NORMAL,
	/** @DRM_SKUA_PRIORITY_CLASS_ABOVE_NORMAL: 3 more. */
	DRM_SKUA_PRIORITY_CLASS_ABOVE_NORMAL,
	/** @DRM_SKUA_PRIORITY_CLASS_HIGH: 6 more. */
	DRM_SKUA_PRIORITY_CLASS_HIGH,
	/** @DRM_SKUA_PRIORITY_CLASS_REALTIME: 14 more: every context stands at 7. */
	DRM_SKUA_PRIORITY_CLASS_REALTIME,
};

/**
 * struct drm_skua_set_priority_class - Argument of DRM_IOCTL_SKUA_SET_PRIORITY_CLASS
 *
 * Holds for the contexts that the file has, and for those that it makes (WDDM: scheduling
 * priority class of a process). Their own priorities (&struct drm_skua_context_set_priority)
 * stay what they are, and need the rights that they need. It holds for what is queued already,
 * too, unless that runs.
 *
 * Errors: -EINVAL for @priority_class, @flags; -EACCES if @priority_class is above
 * DRM_SKUA_PRIORITY_CLASS_NORMAL and the caller has not CAP_SYS_NICE.
 */
struct drm_skua_set_priority_class {
	/** @priority_class: See &enum drm_skua_priority_class. */
	__u32 priority_class;

	/** @flags: Must be zero. */
	__u32 flags;
};

/**
 * enum drm_skua_context_alloc_flags - Flags of a context allocation
 */
enum drm_skua_context_alloc_flags {
	/**
	 * @DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS: It is for all contexts of the address
	 * space, and so of the device that this is of, those included that are created later.
	 */
	DRM_SKUA_CONTEXT_ALLOC_SHARED_ACROSS_CONTEXTS = 1 << 0,
};

/**
 * struct drm_skua_context_alloc - Argument of DRM_IOCTL_SKUA_CONTEXT_ALLOC
 *
 * Creates memory that a context has as long as an engine has the context (WDDM:
 * DxgkCbCreateContextAllocation), mapped where nothing else can be bound. Its content is at first
 * that of a context that has not worked (section 6 of the manual): 0x534b5541 in its first four
 * bytes, and zero behind. It is where the GPU is to reach it before work of the context runs, of a
 * device with explicit residency, too, and nothing that others need takes it from there before the
 * engine has left the context for another one or for none. If it is moved, address and content
 * stay.
 *
 * It counts as the client's memory, as a buffer object does. It is in system memory first, but
 * that of which the aperture is allowed and system memory is not: that may be there. To VRAM, if
 * that is preferred, it comes at once if there is free room; if the GPU is not to reach it
 * elsewhere, with the next work that is submitted in the address space, as a buffer object that was
 * moved out does, with the same errors (DRM_IOCTL_SKUA_SUBMIT).
 *
 * Its handle is a number like a context's. It is destroyed with its handle, and with the context
 * that it is for. DRM_IOCTL_SKUA_VM_DESTROY takes the handle along, and leaves it to the contexts
 * that still work there.
 *
 * Errors: -ENOENT for @vm or @context, also if it is destroyed meanwhile; -EINVAL for a @context
 * of another address space, or one where @flags say that it is for all, or none where they do not;
 * -EINVAL for @flags, @pad, @size, @alignment, @placements, @preferred or @eviction_set; -ECANCELED
 * if the context or the device is not active; -ENOSPC if the client has 256, or there are no
 * addresses left, or VRAM is allowed alone and is smaller than @size, or the aperture alone is and
 * no room can be made there in time; -ENOMEM if system memory has no room, or the client or its
 * user would have more than they may, or has already.
 */
struct drm_skua_context_alloc {
	/** @vm: The address space. */
	__u32 vm;

	/** @context: The context that it is for, one of @vm; 0 if it is for all of these. */
	__u32 context;

	/** @flags: See &enum drm_skua_context_alloc_flags. */
	__u32 flags;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @size: Bytes: a multiple of 4096, not 0, at most 2^31. */
	__u64 size;

	/** @alignment: Of @va: a power of two from 4096 to 2^21; 0 means 4096. */
	__u64 alignment;

	/** @placements: As &drm_skua_bo_create.placements. */
	__u32 placements;

	/** @preferred: As &drm_skua_bo_create.preferred. */
	__u32 preferred;

	/** @eviction_set: As &drm_skua_bo_create.eviction_set. */
	__u32 eviction_set;

	/** @handle: Returned handle, not 0. */
	__u32 handle;

	/** @va: Returned GPU virtual address, above &drm_skua_device_info.va_end. */
	__u64 va;
};

/**
 * struct drm_skua_context_free - Argument of DRM_IOCTL_SKUA_CONTEXT_FREE
 *
 * Destroys a context allocation (WDDM: DxgkCbDestroyContextAllocation), at any time: its memory is
 * free when all work is done that was submitted before in its address space, and the engines have
 * left who it is for. Work that is submitted later, or is held for monitored fences, may fault
 * where it was (-EFAULT).
 *
 * Errors: -ENOENT for @handle, also if another thread destroys it just now; -EINVAL for @pad.
 */
struct drm_skua_context_free {
	/** @handle: Handle of the context allocation. */
	__u32 handle;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_context_status - Status of a context
 */
enum drm_skua_context_status {
	/** @DRM_SKUA_CONTEXT_ACTIVE: It accepts work. */
	DRM_SKUA_CONTEXT_ACTIVE = 0,
	/** @DRM_SKUA_CONTEXT_FAULTED: Its work faulted; it takes no more. */
	DRM_SKUA_CONTEXT_FAULTED,
	/** @DRM_SKUA_CONTEXT_TIMED_OUT: Its work was cut by the watchdog; it takes no more. */
	DRM_SKUA_CONTEXT_TIMED_OUT,
	/**
	 * @DRM_SKUA_CONTEXT_LOST: The GPU was lost, the device that it is of has failed, or work
	 * that was held could not be done; it takes no more.
	 */
	DRM_SKUA_CONTEXT_LOST,
	/**
	 * @DRM_SKUA_CONTEXT_RESET: The GPU was reset, because of others' work or of nobody's; it
	 * takes no more.
	 */
	DRM_SKUA_CONTEXT_RESET,
	/**
	 * @DRM_SKUA_CONTEXT_OUT_OF_MEMORY: Of a device: what it cannot go on without was not made
	 * resident (DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED).
	 */
	DRM_SKUA_CONTEXT_OUT_OF_MEMORY,
};

/**
 * struct drm_skua_context_state - Argument of DRM_IOCTL_SKUA_CONTEXT_STATE
 *
 * The members from @reason to @pc are those of the fault record of the hardware manual
 * if @status is DRM_SKUA_CONTEXT_FAULTED, and zero otherwise. Of a fault in memory of
 * the driver's own @address and @command are zero, too.
 *
 * Errors: -ENOENT for @context; -EINVAL for @pad.
 */
struct drm_skua_context_state {
	/** @context: Handle of the context. */
	__u32 context;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @status: Returned status, see &enum drm_skua_context_status. */
	__u32 status;

	/** @reason: Returned reason of the fault, as section 8 of the manual numbers them. */
	__u32 reason;

	/** @address: Returned GPU virtual address of the access. */
	__u64 address;

	/** @command: Returned GPU virtual address of the command; all ones where it was none's. */
	__u64 command;

	/** @access: Returned kind of access, as section 8 of the manual numbers them. */
	__u32 access;

	/** @detail: Returned detail of the reason. */
	__u32 detail;

	/** @pc: Returned index of the instruction, or 0xffffffff. */
	__u32 pc;

	/** @reserved: Returned zero. */
	__u32 reserved;

	/** @ticks: Returned engine time that the context used, in ticks. */
	__u64 ticks;

	/** @completed: Returned number of submissions that ended, with or without error. */
	__u64 completed;
};

/**
 * struct drm_skua_buffer - A buffer of commands (WDDM: DMA buffer)
 */
struct drm_skua_buffer {
	/**
	 * @va: GPU virtual address of the first command: a multiple of 8.
	 *
	 * The buffer must lie between &drm_skua_device_info.va_start and
	 * &drm_skua_device_info.va_end whole.
	 */
	__u64 va;

	/** @size: Bytes: a multiple of 8, not 0. */
	__u32 size;

	/** @flags: Must be zero. */
	__u32 flags;
};

/**
 * struct drm_skua_submit - Argument of DRM_IOCTL_SKUA_SUBMIT
 *
 * Runs @buffers one after the other, when all work before in this context is done
 * and all waits of @syncs are; then signals. Without buffers it only waits and
 * signals. If a fence that it waits for has an error, the work is cancelled; for
 * timelines see "Synchronisation" above.
 *
 * What is mapped in the address space when the call is made, and may be in VRAM alone, is
 * there when the work runs, and stays until the work is done; of a device with explicit
 * residency, if it is resident for that, and else may be an address that faults. What was
 * moved out is moved back, for which the work waits; where room has to be made the call itself
 * waits: behind other calls that make room, as long as these take, and then as
 * DRM_IOCTL_SKUA_BO_CREATE does. Its ten seconds begin anew whenever less is out than before; it
 * ends, too, if that has not been so for twenty. Work without @buffers needs no memory.
 *
 * What may be in system memory, too, and would rather be in VRAM (&drm_skua_bo_create.preferred),
 * but had to leave it for others or found no room when it was made, comes back where there is free
 * room by now; of a device with explicit residency, if it is resident for that. Nobody leaves for
 * it, nor is it moved while something works with it, or it is locked, or others may have it (which
 * DRM_IOCTL_SKUA_MAKE_RESIDENT is for). Each call that is not held, see below, has a few such
 * objects move, and its work waits for that.
 *
 * With a value of a monitored fence to wait for that is not reached, the work is **held**: it is
 * submitted in place of the client when it is, and so is then what comes behind it in its context.
 * Until then nothing that it needs is brought in, what it is to signal is not promised, and a
 * syncobj that it is to signal has no fence of it, which DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT
 * waits for. What could fail the call then fails the context, which is lost
 * (DRM_SKUA_CONTEXT_LOST): want of memory or room after ten seconds, anything else at once. What
 * the CPU has locked is waited for, however long that takes.
 *
 * A value that was overtaken while the call was made, or the work was held, is not signalled any
 * more.
 *
 * Values of monitored fences are signalled when the work is done. If it fails, or is
 * cancelled but for the client's having destroyed the context, their fences are lost like those of
 * a device that fails ("Monitored fences" above).
 *
 * Errors: -ENOENT for @context or a syncobj; -ECANCELED if the context is not active;
 * -ENOSPC if 4096 submissions of the context wait or are held, or, for its first one with
 * @buffers, if there is no room among addresses for the area that the context is saved in; -ENOMEM
 * also if that area would take the client, or its user, above its part of system memory, or if what
 * is mapped and may be in VRAM alone does not fit there all together, or no room can be made in
 * time, and -EBUSY if some of it is out and locked by the CPU (DRM_IOCTL_SKUA_BO_LOCK): the
 * context stays active; -EINVAL for anything else out of its range.
 */
struct drm_skua_submit {
	/** @context: Handle of the context. */
	__u32 context;

	/** @flags: Must be zero. */
	__u32 flags;

	/** @buffers: Array of &struct drm_skua_buffer, up to &drm_skua_device_info.max_buffers. */
	struct drm_skua_array buffers;

	/** @syncs: Array of &struct drm_skua_sync, up to &drm_skua_device_info.max_syncs. */
	struct drm_skua_array syncs;
};

/**
 * DRM_SKUA_FENCE_LOST - The value of a monitored fence of a device that has failed
 */
#define DRM_SKUA_FENCE_LOST ((__u64)-1)

/**
 * enum drm_skua_fence_flags - Flags of a monitored fence
 */
enum drm_skua_fence_flags {
	/**
	 * @DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR: When a device fails the value stays what it
	 * is. Waits of the CPU by that device's handles (DRM_IOCTL_SKUA_FENCE_WAIT,
	 * DRM_IOCTL_SKUA_FENCE_EVENTFD) end all the same.
	 */
	DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR = 1 << 0,
};

/**
 * struct drm_skua_fence_create - Argument of DRM_IOCTL_SKUA_FENCE_CREATE
 *
 * Errors: -ENOENT for @device; -EINVAL for @flags, @value or @pad; -ECANCELED for a device that is
 * not active; -ENOSPC if the client has 1024 handles of fences.
 */
struct drm_skua_fence_create {
	/** @device: The device that the handle is of, or 0. */
	__u32 device;

	/** @flags: See &enum drm_skua_fence_flags. */
	__u32 flags;

	/** @value: The value at first; not DRM_SKUA_FENCE_LOST. */
	__u64 value;

	/** @fence: Returned handle, not 0. */
	__u32 fence;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_fence_destroy - Argument of DRM_IOCTL_SKUA_FENCE_DESTROY
 *
 * What waits for the fence already goes on to wait, and what is to signal it does.
 *
 * Errors: -ENOENT for @fence; -EINVAL for @pad.
 */
struct drm_skua_fence_destroy {
	/** @fence: Handle of the fence. */
	__u32 fence;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * enum drm_skua_fence_export_flags - Flags of a descriptor
 */
enum drm_skua_fence_export_flags {
	/** @DRM_SKUA_FENCE_EXPORT_CLOEXEC: It is closed by execve(), as with O_CLOEXEC. */
	DRM_SKUA_FENCE_EXPORT_CLOEXEC = 1 << 0,
};

/**
 * struct drm_skua_fence_export - Argument of DRM_IOCTL_SKUA_FENCE_EXPORT
 *
 * Errors: -ENOENT for @fence; -EINVAL for @flags or @pad; -EMFILE, -ENFILE.
 */
struct drm_skua_fence_export {
	/** @fence: Handle of the fence. */
	__u32 fence;

	/** @flags: See &enum drm_skua_fence_export_flags. */
	__u32 flags;

	/** @fd: Returned descriptor. */
	__s32 fd;

	/** @pad: Must be zero. */
	__u32 pad;
};

/**
 * struct drm_skua_fence_import - Argument of DRM_IOCTL_SKUA_FENCE_IMPORT
 *
 * The fence may be another GPU's.
 *
 * Errors: -ENOENT for @device; -EINVAL for @pad; -EBADF if there is no @fd, -EINVAL if it is
 * no fence's; -ECANCELED for a device that is not active; -ENOSPC if the client has 1024 handles.
 */
struct drm_skua_fence_import {
	/** @device: The device that the handle is of, or 0. */
	__u32 device;

	/** @pad: Must be zero. */
	__u32 pad;

	/** @fd: The descriptor, which can be closed then. */
	__s32 fd;

	/** @fence: Returned handle, not 0; a new one each time. */
	__u32 fence;
};

/**
 * struct drm_skua_fence_value - A value of a fence
 */
struct drm_skua_fence_value {
	/** @fence: Handle of the fence: -ENOENT. */
	__u32 fence;

	/** @pad: Must be zero: -EINVAL. */
	__u32 pad;

	/** @value: The value. */
	__u64 value;
};

/**
 * struct drm_skua_fence_signal - Argument of DRM_IOCTL_SKUA_FENCE_SIGNAL
 *
 * Signals all of @values, or none; each as soon as what was promised before for its fence is
 * signalled.
 *
 * Errors: -EINVAL for @flags, @pad, the number of @values, a value that is not above all
 * that its fence has or was promised, DRM_SKUA_FENCE_LOST, and a fence that is there twice;
 * -ECANCELED for a device that is not active.
 */
struct drm_skua_fence_signal {
	/** @flags: Must be zero. */
	__u32 flags;

	/** @pad: Must be zero. */
	__u32 pad;

	/**
	 * @values: Array of &struct drm_skua_fence_value, 1 to &drm_skua_device_info.max_syncs.
	 */
	struct drm_skua_array values;
};

/**
 * enum drm_skua_fence_wait_flags - How to wait, or have an eventfd wait
 */
enum drm_skua_fence_wait_flags {
	/** @DRM_SKUA_FENCE_WAIT_ANY: For one of the values, not for all. */
	DRM_SKUA_FENCE_WAIT_ANY = 1 << 0,
};

/**
 * struct drm_skua_fence_wait - Argument of DRM_IOCTL_SKUA_FENCE_WAIT
 *
 * Waits until fences have at least their values; one may be there several times. Does not
 * keep a device from being unbound.
 *
 * Errors: -EINVAL for @flags, @pad, @index, @reserved or the number of @values; -ETIME if they have
 * not when @timeout_ns is past; -EBUSY, unless it is, for a value that DRM_IOCTL_SKUA_MAKE_RESIDENT
 * is to signal when the client unlocks what it has locked: it might wait for itself; -ECANCELED if
 * a handle's device is not active, or ceases to be.
 */
struct drm_skua_fence_wait {
	/** @flags: See &enum drm_skua_fence_wait_flags. */
	__u32 flags;

	/** @pad: Must be zero. */
	__u32 pad;

	/**
	 * @values: Array of &struct drm_skua_fence_value, 1 to &drm_skua_device_info.max_syncs.
	 */
	struct drm_skua_array values;

	/** @timeout_ns: When to give up, in nanoseconds of CLOCK_MONOTONIC; 0 does not wait. */
	__u64 timeout_ns;

	/**
	 * @index: Must be zero; returned index of a value that sufficed, 0 where all are waited
	 * for.
	 */
	__u32 index;

	/** @reserved: Must be zero. */
	__u32 reserved;
};

/**
 * struct drm_skua_fence_eventfd - Argument of DRM_IOCTL_SKUA_FENCE_EVENTFD
 *
 * Adds 1 to an eventfd, once, soon after fences have at least their values, of which @flags and
 * @values say the same as in &struct drm_skua_fence_wait; or what it waits for is over otherwise:
 *
 * - the device of a handle has failed or is destroyed, as all are with the file;
 * - nobody can signal one of the fences any more, or, with DRM_SKUA_FENCE_WAIT_ANY, any of them: it
 *   has no handle, no descriptor and no mapping of the CPU's, and no work that is to signal it.
 *
 * The handles may be destroyed meanwhile.
 *
 * Errors: -EINVAL for @flags or the number of @values; -EBADF if there is no @eventfd, -EINVAL if
 * it is another file; -ECANCELED if a handle's device is not active; -ENOSPC if the client's
 * eventfds would wait for more than 4096 values, those of one call for one fence counting as one,
 * and one that is there already, too, or a fence has 8192 waits.
 */
struct drm_skua_fence_eventfd {
	/** @flags: See &enum drm_skua_fence_wait_flags. */
	__u32 flags;

	/** @eventfd: The descriptor, which can be closed then. */
	__s32 eventfd;

	/**
	 * @values: Array of &struct drm_skua_fence_value, 1 to &drm_skua_device_info.max_syncs.
	 */
	struct drm_skua_array values;
};

/**
 * DRM_IOCTL_SKUA() - Build the number of an ioctl
 * @__access: Access type. Must be R, W or RW.
 * @__id: One of the DRM_SKUA_xxx ids, without the prefix.
 * @__type: Suffix of the type of the argument.
 */
#define DRM_IOCTL_SKUA(__access, __id, __type) \
	DRM_IO ## __access(DRM_COMMAND_BASE + DRM_SKUA_ ## __id, \
			   struct drm_skua_ ## __type)

enum {
	DRM_IOCTL_SKUA_QUERY =
		DRM_IOCTL_SKUA(WR, QUERY, query),
	DRM_IOCTL_SKUA_BO_CREATE =
		DRM_IOCTL_SKUA(WR, BO_CREATE, bo_create),
	DRM_IOCTL_SKUA_BO_MMAP_OFFSET =
		DRM_IOCTL_SKUA(WR, BO_MMAP_OFFSET, bo_mmap_offset),
	DRM_IOCTL_SKUA_BO_INFO =
		DRM_IOCTL_SKUA(WR, BO_INFO, bo_info),
	DRM_IOCTL_SKUA_VM_CREATE =
		DRM_IOCTL_SKUA(WR, VM_CREATE, vm_create),
	DRM_IOCTL_SKUA_VM_DESTROY =
		DRM_IOCTL_SKUA(WR, VM_DESTROY, vm_destroy),
	DRM_IOCTL_SKUA_VM_BIND =
		DRM_IOCTL_SKUA(WR, VM_BIND, vm_bind),
	DRM_IOCTL_SKUA_CONTEXT_CREATE =
		DRM_IOCTL_SKUA(WR, CONTEXT_CREATE, context_create),
	DRM_IOCTL_SKUA_CONTEXT_DESTROY =
		DRM_IOCTL_SKUA(WR, CONTEXT_DESTROY, context_destroy),
	DRM_IOCTL_SKUA_CONTEXT_STATE =
		DRM_IOCTL_SKUA(WR, CONTEXT_STATE, context_state),
	DRM_IOCTL_SKUA_SUBMIT =
		DRM_IOCTL_SKUA(WR, SUBMIT, submit),
	DRM_IOCTL_SKUA_BO_DESTROY =
		DRM_IOCTL_SKUA(WR, BO_DESTROY, bo_destroy),
	DRM_IOCTL_SKUA_MAKE_RESIDENT =
		DRM_IOCTL_SKUA(WR, MAKE_RESIDENT, make_resident),
	DRM_IOCTL_SKUA_EVICT =
		DRM_IOCTL_SKUA(WR, EVICT, evict),
	DRM_IOCTL_SKUA_BO_LOCK =
		DRM_IOCTL_SKUA(WR, BO_LOCK, bo_lock),
	DRM_IOCTL_SKUA_BO_UNLOCK =
		DRM_IOCTL_SKUA(WR, BO_UNLOCK, bo_unlock),
	DRM_IOCTL_SKUA_BO_SET_PRIORITY =
		DRM_IOCTL_SKUA(WR, BO_SET_PRIORITY, bo_set_priority),
	DRM_IOCTL_SKUA_DEVICE_CREATE =
		DRM_IOCTL_SKUA(WR, DEVICE_CREATE, device_create),
	DRM_IOCTL_SKUA_DEVICE_DESTROY =
		DRM_IOCTL_SKUA(WR, DEVICE_DESTROY, device_destroy),
	DRM_IOCTL_SKUA_DEVICE_STATE =
		DRM_IOCTL_SKUA(WR, DEVICE_STATE, device_state),
	DRM_IOCTL_SKUA_BO_OFFER =
		DRM_IOCTL_SKUA(WR, BO_OFFER, bo_offer),
	DRM_IOCTL_SKUA_BO_RECLAIM =
		DRM_IOCTL_SKUA(WR, BO_RECLAIM, bo_reclaim),
	DRM_IOCTL_SKUA_FENCE_CREATE =
		DRM_IOCTL_SKUA(WR, FENCE_CREATE, fence_create),
	DRM_IOCTL_SKUA_FENCE_DESTROY =
		DRM_IOCTL_SKUA(WR, FENCE_DESTROY, fence_destroy),
	DRM_IOCTL_SKUA_FENCE_EXPORT =
		DRM_IOCTL_SKUA(WR, FENCE_EXPORT, fence_export),
	DRM_IOCTL_SKUA_FENCE_IMPORT =
		DRM_IOCTL_SKUA(WR, FENCE_IMPORT, fence_import),
	DRM_IOCTL_SKUA_FENCE_SIGNAL =
		DRM_IOCTL_SKUA(WR, FENCE_SIGNAL, fence_signal),
	DRM_IOCTL_SKUA_FENCE_WAIT =
		DRM_IOCTL_SKUA(WR, FENCE_WAIT, fence_wait),
	DRM_IOCTL_SKUA_FENCE_EVENTFD =
		DRM_IOCTL_SKUA(WR, FENCE_EVENTFD, fence_eventfd),
	DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY =
		DRM_IOCTL_SKUA(WR, CONTEXT_SET_PRIORITY, context_set_priority),
	DRM_IOCTL_SKUA_DEVICE_MARK_ERROR =
		DRM_IOCTL_SKUA(WR, DEVICE_MARK_ERROR, device_mark_error),
	DRM_IOCTL_SKUA_SET_PRIORITY_CLASS =
		DRM_IOCTL_SKUA(WR, SET_PRIORITY_CLASS, set_priority_class),
	DRM_IOCTL_SKUA_CONTEXT_ALLOC =
		DRM_IOCTL_SKUA(WR, CONTEXT_ALLOC, context_alloc),
	DRM_IOCTL_SKUA_CONTEXT_FREE =
		DRM_IOCTL_SKUA(WR, CONTEXT_FREE, context_free),
};

#if defined(__cplusplus)
}
#endif

#endif /* _SKUA_DRM_H_ */
