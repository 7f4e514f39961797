// SPDX-License-Identifier: GPL-2.0

//! What userspace can ask: the device, its engines, its memory regions, the state of a context or
//! a device.

use crate::{
    ext::uapi::*,
    gpu::SkuaDevice,
    ioctl::{
        file::{
            Data,
            Device,
            File,
            SkuaFile, //
        },
        syncs::MAX_SYNCS,
        vm::MAX_OPERATIONS, //
    },
    memory::{
        device::ClientDevice,
        eviction,
        vm::{
            VA_END,
            VA_START, //
        }, //
    },
    policy::miniport::{
        Miniport,
        Segment,
        SegmentKind, //
    },
    quota::Quota,
    spec::{
        address::PAGE_SIZE,
        command::EngineKind,
        fault::{
            Record,
            Space, //
        }, //
    },
    submit::{
        context::{
            Context,
            Status, //
        },
        submission::MAX_BUFFERS, //
    }, //
};
use kernel::{
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};
use zerocopy::Immutable;

/// Sizes of GPU pages: 4 KiB, 64 KiB, 2 MiB.
const PAGE_SIZES: u64 = (1 << 12) | (1 << 16) | (1 << 21);

/// Writes as much of the answer as there is room for.
fn query(dev: &SkuaDevice, args: &mut drm_skua_query) -> Result {
    let mut answer = KVec::new();
    match args.type_ {
        DRM_SKUA_QUERY_DEVICE => append(&mut answer, &device(dev)?)?,
        DRM_SKUA_QUERY_ENGINES => {
            for (index, engine) in dev.client_engines() {
                let kind = match engine.kind() {
                    EngineKind::Compute => DRM_SKUA_ENGINE_COMPUTE,
                    EngineKind::Copy => DRM_SKUA_ENGINE_COPY,
                };
                let index = index.get();
                append(&mut answer, &drm_skua_engine_info { index, kind })?;
            }
        }
        DRM_SKUA_QUERY_REGIONS => {
            // What is unmapped and closed is free.
            dev.destroyer.settle(dev, &mut eviction::moment())?;
            for segment in dev.hw.query_segments() {
                append(&mut answer, &region(dev, segment))?;
            }
        }
        _ => return Err(EINVAL),
    }
    if args.pointer == 0 {
        args.size = u32::try_from(answer.len())?;
        return Ok(());
    }
    let len = answer.len().min(usize::try_from(args.size)?);
    let pointer = UserPtr::from_addr(usize::try_from(args.pointer)?);
    UserSlice::new(pointer, len)
        .writer()
        .write_slice(answer.get(..len).ok_or(EINVAL)?)?;
    args.size = u32::try_from(len)?;
    Ok(())
}

fn append<T: IntoBytes + Immutable>(answer: &mut KVec<u8>, value: &T) -> Result {
    answer.extend_from_slice(value.as_bytes(), GFP_KERNEL)?;
    Ok(())
}

fn device(dev: &SkuaDevice) -> Result<drm_skua_device_info> {
    let caps = &dev.hw.caps;
    let [graphics_preemption, compute_preemption] = caps.preemption().map(|level| level.wddm());
    Ok(drm_skua_device_info {
        hw_version: caps.version.word(),
        engine_count: u32::try_from(dev.client_engines().count())?,
        va_start: VA_START,
        va_end: VA_END,
        page_size_mask: PAGE_SIZES,
        tick_hz: caps.tick_hz.into(),
        max_group_threads: caps.group_threads,
        wave_threads: caps.wave_threads,
        max_shared_bytes: caps.shared_bytes,
        max_bind_ops: MAX_OPERATIONS,
        max_buffers: MAX_BUFFERS,
        max_syncs: MAX_SYNCS,
        graphics_preemption,
        compute_preemption,
    })
}

fn region(dev: &SkuaDevice, segment: Segment) -> drm_skua_region_info {
    let (size, used) = dev.region_usage(segment.id);
    let (kind, visible, aperture) = match segment.kind {
        SegmentKind::Memory {
            cpu_visible,
            host_aperture,
            ..
        } => (DRM_SKUA_REGION_VRAM, cpu_visible.min(size), host_aperture),
        SegmentKind::System => (DRM_SKUA_REGION_SYSTEM, size, None),
        // By its system pages.
        SegmentKind::Aperture { .. } => (DRM_SKUA_REGION_APERTURE, size, None),
    };
    let aperture_page = aperture.map_or(0, |aperture| aperture.page_bytes);
    let aperture_pages = aperture.map_or(0, |aperture| aperture.pages);
    drm_skua_region_info {
        id: segment.id,
        kind,
        size,
        used,
        cpu_visible_size: visible,
        // CAST: 4 KiB.
        page_size: PAGE_SIZE as u32,
        // CAST: 64 KiB at most.
        aperture_page_size: aperture_page as u32,
        aperture_size: aperture_page.saturating_mul(aperture_pages.into()),
    }
}

/// Fills in the state of a client's device, and what it has of `system` memory.
pub(crate) fn device_state(
    dev: &SkuaDevice,
    device: &ClientDevice,
    system: &Quota,
    args: &mut drm_skua_device_state,
) {
    let lost = match dev.check_health() {
        Ok(()) => DRM_SKUA_CONTEXT_ACTIVE,
        Err(_) => DRM_SKUA_CONTEXT_LOST,
    };
    *args = drm_skua_device_state {
        device: args.device,
        pad: 0,
        flags: match device.is_explicit() {
            true => DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY,
            false => 0,
        },
        status: match device.failure() {
            0 => lost,
            status => status,
        },
        resident: device.residents().bytes(),
        budget: device.budget(),
        system_used: system.used(),
        system_limit: system.limit(),
    };
}

/// Fills in the state of a context.
pub(crate) fn context_state(context: &Context, args: &mut drm_skua_context_state) {
    let status = context.status();
    *args = drm_skua_context_state {
        context: args.context,
        status: status.code(),
        ticks: context.ticks(),
        completed: context.finished(),
        ..Default::default()
    };
    if let Status::Faulted(Record {
        reason,
        access,
        detail,
        space,
        address,
        command,
        pc,
        ..
    }) = status
    {
        args.reason = reason as u32;
        args.access = access as u32;
        args.detail = detail;
        args.pc = pc;
        // Where things lie in the driver's own memory is nobody else's business.
        if space != Space::GpuPhysical {
            args.address = address;
            args.command = command;
        }
    }
}

impl File {
    /// `DRM_IOCTL_SKUA_QUERY`
    pub(crate) fn query(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_query,
        _file: &SkuaFile,
    ) -> Result<u32> {
        query(dev, args)?;
        Ok(0)
    }
}
