// SPDX-License-Identifier: MIT

//! The interface's layout, written down by hand and asserted at compile time.
//!
//! A structure may grow at its end, in a new version of the interface and nowhere else; so what
//! stands here is only ever added to. Each line is a member with its type and offset. Refused as
//! well are a member that is not listed, a hole between two members, and a structure whose size is
//! not a multiple of 8.

use core::mem::{offset_of, size_of};

use crate::*;

/// A bit for each element of an array.
type Bits = [u64; 16];

macro_rules! layout {
    ($($name:ident: $size:literal { $($member:ident: $type:ident @ $offset:literal;)* })*) => {
        $(const _: () = {
            // Every member is listed, and has this type.
            const fn _listed(value: $name) {
                let $name { $($member,)* } = value;
                $(let _: $type = $member;)*
            }
            $(assert!(offset_of!($name, $member) == $offset);)*
            assert!(size_of::<$name>() == $size && $size % 8 == 0);
            assert!(0 $(+ size_of::<$type>())* == $size);
        };)*

        /// Every structure of the interface with its size in bytes, in the header's order.
        pub const STRUCTURES: &[(&str, usize)] = &[$((stringify!($name), $size)),*];
    };
}

layout! {
    drm_skua_array: 16 {
        stride: u32 @ 0;
        count: u32 @ 4;
        pointer: u64 @ 8;
    }
    drm_skua_sync: 16 {
        flags: u32 @ 0;
        handle: u32 @ 4;
        point: u64 @ 8;
    }
    drm_skua_query: 16 {
        type_: u32 @ 0;
        size: u32 @ 4;
        pointer: u64 @ 8;
    }
    drm_skua_device_info: 72 {
        hw_version: u32 @ 0;
        engine_count: u32 @ 4;
        va_start: u64 @ 8;
        va_end: u64 @ 16;
        page_size_mask: u64 @ 24;
        tick_hz: u64 @ 32;
        max_group_threads: u32 @ 40;
        wave_threads: u32 @ 44;
        max_shared_bytes: u32 @ 48;
        max_bind_ops: u32 @ 52;
        max_buffers: u32 @ 56;
        max_syncs: u32 @ 60;
        graphics_preemption: u32 @ 64;
        compute_preemption: u32 @ 68;
    }
    drm_skua_engine_info: 8 {
        index: u32 @ 0;
        kind: u32 @ 4;
    }
    drm_skua_region_info: 48 {
        id: u32 @ 0;
        kind: u32 @ 4;
        size: u64 @ 8;
        used: u64 @ 16;
        cpu_visible_size: u64 @ 24;
        page_size: u32 @ 32;
        aperture_page_size: u32 @ 36;
        aperture_size: u64 @ 40;
    }
    drm_skua_bo_create: 40 {
        size: u64 @ 0;
        flags: u32 @ 8;
        placements: u32 @ 12;
        handle: u32 @ 16;
        vm: u32 @ 20;
        preferred: u32 @ 24;
        eviction_set: u32 @ 28;
        priority: u32 @ 32;
        pad: u32 @ 36;
    }
    drm_skua_bo_mmap_offset: 16 {
        handle: u32 @ 0;
        pad: u32 @ 4;
        offset: u64 @ 8;
    }
    drm_skua_bo_info: 48 {
        handle: u32 @ 0;
        pad: u32 @ 4;
        size: u64 @ 8;
        flags: u32 @ 16;
        placements: u32 @ 20;
        region: u32 @ 24;
        imported: u32 @ 28;
        content_lost: u32 @ 32;
        reserved: u32 @ 36;
        preferred: u32 @ 40;
        eviction_set: u32 @ 44;
    }
    drm_skua_bo_handle: 8 {
        handle: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_bo_destroy: 24 {
        flags: u32 @ 0;
        pad: u32 @ 4;
        handles: drm_skua_array @ 8;
    }
    drm_skua_make_resident: 48 {
        flags: u32 @ 0;
        device: u32 @ 4;
        handles: drm_skua_array @ 8;
        syncs: drm_skua_array @ 24;
        bytes_to_trim: u64 @ 40;
    }
    drm_skua_evict: 24 {
        flags: u32 @ 0;
        device: u32 @ 4;
        handles: drm_skua_array @ 8;
    }
    drm_skua_bo_lock: 16 {
        handle: u32 @ 0;
        flags: u32 @ 4;
        offset: u64 @ 8;
    }
    drm_skua_bo_unlock: 8 {
        handle: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_bo_priority: 8 {
        handle: u32 @ 0;
        priority: u32 @ 4;
    }
    drm_skua_bo_set_priority: 24 {
        flags: u32 @ 0;
        pad: u32 @ 4;
        objects: drm_skua_array @ 8;
    }
    drm_skua_bo_offer: 24 {
        flags: u32 @ 0;
        priority: u32 @ 4;
        handles: drm_skua_array @ 8;
    }
    drm_skua_bo_reclaim: 152 {
        flags: u32 @ 0;
        pad: u32 @ 4;
        handles: drm_skua_array @ 8;
        discarded: Bits @ 24;
    }
    drm_skua_device_create: 8 {
        flags: u32 @ 0;
        device: u32 @ 4;
    }
    drm_skua_device_destroy: 8 {
        device: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_device_state: 48 {
        device: u32 @ 0;
        pad: u32 @ 4;
        flags: u32 @ 8;
        status: u32 @ 12;
        resident: u64 @ 16;
        budget: u64 @ 24;
        system_used: u64 @ 32;
        system_limit: u64 @ 40;
    }
    drm_skua_device_mark_error: 8 {
        device: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_event_trim: 24 {
        base: drm_event @ 0;
        device: u32 @ 8;
        reserved: u32 @ 12;
        bytes_to_trim: u64 @ 16;
    }
    drm_skua_vm_create: 16 {
        flags: u32 @ 0;
        device: u32 @ 4;
        vm: u32 @ 8;
        pad: u32 @ 12;
    }
    drm_skua_vm_destroy: 8 {
        vm: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_bind_op: 40 {
        type_: u32 @ 0;
        flags: u32 @ 4;
        handle: u32 @ 8;
        pad: u32 @ 12;
        offset: u64 @ 16;
        va: u64 @ 24;
        size: u64 @ 32;
    }
    drm_skua_vm_bind: 48 {
        vm: u32 @ 0;
        flags: u32 @ 4;
        context: u32 @ 8;
        pad: u32 @ 12;
        ops: drm_skua_array @ 16;
        syncs: drm_skua_array @ 32;
    }
    drm_skua_context_create: 16 {
        vm: u32 @ 0;
        engine: u32 @ 4;
        flags: u32 @ 8;
        context: u32 @ 12;
    }
    drm_skua_context_destroy: 8 {
        context: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_context_set_priority: 16 {
        context: u32 @ 0;
        priority: i32 @ 4;
        flags: u32 @ 8;
        pad: u32 @ 12;
    }
    drm_skua_set_priority_class: 8 {
        priority_class: u32 @ 0;
        flags: u32 @ 4;
    }
    drm_skua_context_alloc: 56 {
        vm: u32 @ 0;
        context: u32 @ 4;
        flags: u32 @ 8;
        pad: u32 @ 12;
        size: u64 @ 16;
        alignment: u64 @ 24;
        placements: u32 @ 32;
        preferred: u32 @ 36;
        eviction_set: u32 @ 40;
        handle: u32 @ 44;
        va: u64 @ 48;
    }
    drm_skua_context_free: 8 {
        handle: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_context_state: 64 {
        context: u32 @ 0;
        pad: u32 @ 4;
        status: u32 @ 8;
        reason: u32 @ 12;
        address: u64 @ 16;
        command: u64 @ 24;
        access: u32 @ 32;
        detail: u32 @ 36;
        pc: u32 @ 40;
        reserved: u32 @ 44;
        ticks: u64 @ 48;
        completed: u64 @ 56;
    }
    drm_skua_buffer: 16 {
        va: u64 @ 0;
        size: u32 @ 8;
        flags: u32 @ 12;
    }
    drm_skua_submit: 40 {
        context: u32 @ 0;
        flags: u32 @ 4;
        buffers: drm_skua_array @ 8;
        syncs: drm_skua_array @ 24;
    }
    drm_skua_fence_create: 24 {
        device: u32 @ 0;
        flags: u32 @ 4;
        value: u64 @ 8;
        fence: u32 @ 16;
        pad: u32 @ 20;
    }
    drm_skua_fence_destroy: 8 {
        fence: u32 @ 0;
        pad: u32 @ 4;
    }
    drm_skua_fence_export: 16 {
        fence: u32 @ 0;
        flags: u32 @ 4;
        fd: i32 @ 8;
        pad: u32 @ 12;
    }
    drm_skua_fence_import: 16 {
        device: u32 @ 0;
        pad: u32 @ 4;
        fd: i32 @ 8;
        fence: u32 @ 12;
    }
    drm_skua_fence_value: 16 {
        fence: u32 @ 0;
        pad: u32 @ 4;
        value: u64 @ 8;
    }
    drm_skua_fence_signal: 24 {
        flags: u32 @ 0;
        pad: u32 @ 4;
        values: drm_skua_array @ 8;
    }
    drm_skua_fence_wait: 40 {
        flags: u32 @ 0;
        pad: u32 @ 4;
        values: drm_skua_array @ 8;
        timeout_ns: u64 @ 24;
        index: u32 @ 32;
        reserved: u32 @ 36;
    }
    drm_skua_fence_eventfd: 24 {
        flags: u32 @ 0;
        eventfd: i32 @ 4;
        values: drm_skua_array @ 8;
    }
}

/// An ioctl's number, as `_IOWR('d', DRM_COMMAND_BASE + id, type)` makes it on every architecture
/// that uses the generic encoding.
const fn number(id: u32, size: u32) -> u32 {
    (3 << 30) | (size << 16) | ((DRM_IOCTL_BASE as u32) << 8) | (DRM_COMMAND_BASE + id)
}

macro_rules! ioctls {
    ($($number:ident: $id:literal, $size:literal;)*) => {
        $(const _: () = assert!($number == number($id, $size));)*

        /// Every ioctl of the interface with its number, in the order of their ids.
        pub const IOCTLS: &[(&str, u32)] = &[$((stringify!($number), $number)),*];
    };
}

ioctls! {
    DRM_IOCTL_SKUA_QUERY: 0, 16;
    DRM_IOCTL_SKUA_BO_CREATE: 1, 40;
    DRM_IOCTL_SKUA_BO_MMAP_OFFSET: 2, 16;
    DRM_IOCTL_SKUA_BO_INFO: 3, 48;
    DRM_IOCTL_SKUA_VM_CREATE: 4, 16;
    DRM_IOCTL_SKUA_VM_DESTROY: 5, 8;
    DRM_IOCTL_SKUA_VM_BIND: 6, 48;
    DRM_IOCTL_SKUA_CONTEXT_CREATE: 7, 16;
    DRM_IOCTL_SKUA_CONTEXT_DESTROY: 8, 8;
    DRM_IOCTL_SKUA_CONTEXT_STATE: 9, 64;
    DRM_IOCTL_SKUA_SUBMIT: 10, 40;
    DRM_IOCTL_SKUA_BO_DESTROY: 11, 24;
    DRM_IOCTL_SKUA_MAKE_RESIDENT: 12, 48;
    DRM_IOCTL_SKUA_EVICT: 13, 24;
    DRM_IOCTL_SKUA_BO_LOCK: 14, 16;
    DRM_IOCTL_SKUA_BO_UNLOCK: 15, 8;
    DRM_IOCTL_SKUA_BO_SET_PRIORITY: 16, 24;
    DRM_IOCTL_SKUA_DEVICE_CREATE: 17, 8;
    DRM_IOCTL_SKUA_DEVICE_DESTROY: 18, 8;
    DRM_IOCTL_SKUA_DEVICE_STATE: 19, 48;
    DRM_IOCTL_SKUA_BO_OFFER: 20, 24;
    DRM_IOCTL_SKUA_BO_RECLAIM: 21, 152;
    DRM_IOCTL_SKUA_FENCE_CREATE: 22, 24;
    DRM_IOCTL_SKUA_FENCE_DESTROY: 23, 8;
    DRM_IOCTL_SKUA_FENCE_EXPORT: 24, 16;
    DRM_IOCTL_SKUA_FENCE_IMPORT: 25, 16;
    DRM_IOCTL_SKUA_FENCE_SIGNAL: 26, 24;
    DRM_IOCTL_SKUA_FENCE_WAIT: 27, 40;
    DRM_IOCTL_SKUA_FENCE_EVENTFD: 28, 24;
    DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY: 29, 16;
    DRM_IOCTL_SKUA_DEVICE_MARK_ERROR: 30, 8;
    DRM_IOCTL_SKUA_SET_PRIORITY_CLASS: 31, 8;
    DRM_IOCTL_SKUA_CONTEXT_ALLOC: 32, 56;
    DRM_IOCTL_SKUA_CONTEXT_FREE: 33, 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure or an ioctl that was added to the header must be added here.
    #[test]
    fn nothing_of_the_header_is_missing() {
        let header = include_str!("../../../include/uapi/drm/skua_drm.h");
        let defined: Vec<&str> = header
            .lines()
            .filter_map(|l| l.strip_prefix("struct ")?.strip_suffix(" {"))
            .collect();
        let listed: Vec<&str> = STRUCTURES.iter().map(|(name, _)| *name).collect();
        assert_eq!(defined, listed);

        let numbered: Vec<&str> = header
            .lines()
            .filter_map(|l| {
                l.strip_prefix("\tDRM_IOCTL_SKUA_")
                    .and(l.trim().strip_suffix(" ="))
            })
            .collect();
        let listed: Vec<&str> = IOCTLS.iter().map(|(name, _)| *name).collect();
        assert_eq!(numbered, listed);
    }

    /// The DRM core's numbers, from the kernel's documentation of its ioctls.
    #[test]
    fn numbers_of_the_core() {
        assert_eq!(DRM_IOCTL_VERSION, 0xc040_6400);
        assert_eq!(DRM_IOCTL_GEM_CLOSE, 0x4008_6409);
        assert_eq!(DRM_IOCTL_PRIME_HANDLE_TO_FD, 0xc00c_642d);
        assert_eq!(DRM_IOCTL_SYNCOBJ_CREATE, 0xc008_64bf);
        assert_eq!(DRM_IOCTL_SYNCOBJ_EVENTFD & 0xffff, 0x64cf);
        assert_eq!(SYNC_IOC_FILE_INFO, 0xc038_3e04);
    }
}
