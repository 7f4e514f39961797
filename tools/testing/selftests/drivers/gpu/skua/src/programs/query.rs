// SPDX-License-Identifier: MIT

//! QUERY: what the driver says of the device.

use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::{suite, tests, Client, Errno, Place};
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_driver_names_itself,
        the_device_is_described,
        engines_are_numbered,
        regions_are_numbered,
        vram_is_as_large_as_its_bar,
        sizes_are_told_without_a_buffer,
        short_buffers_get_the_beginning,
        long_buffers_get_no_more,
        used_bytes_follow_buffer_objects at_rest,
    ])
}

fn the_driver_names_itself() {
    let client = Client::new();
    let mut name = [0_u8; 16];
    let mut version = drm_version {
        name_len: 16,
        name: name.as_mut_ptr().cast(),
        ..Default::default()
    };
    assert_eq!(client.call(DRM_IOCTL_VERSION, &mut version), Ok(()));
    assert_eq!(
        &name[..version.name_len.try_into().expect("a length")],
        b"skua"
    );
    assert!(
        version.version_major >= 1,
        "version {}",
        version.version_major
    );
    for (capability, name) in [
        (u64::from(DRM_CAP_SYNCOBJ), "SYNCOBJ"),
        (u64::from(DRM_CAP_SYNCOBJ_TIMELINE), "SYNCOBJ_TIMELINE"),
    ] {
        let mut cap = drm_get_cap {
            capability,
            value: 0,
        };
        assert_eq!(client.call(DRM_IOCTL_GET_CAP, &mut cap), Ok(()), "{name}");
        assert_eq!(cap.value, 1, "{name}");
    }
}

fn the_device_is_described() {
    let device = Client::new().device;
    let version = skua_spec::regs::VERSION::from_bits(device.hw_version.into());
    assert_eq!(version.major(), skua_spec::regs::VERSION_MAJOR);
    assert!(device.engine_count >= 2, "{} engines", device.engine_count);
    assert!(device.va_start >= 4096, "null can be bound");
    assert_eq!(device.va_start % 4096, 0);
    assert_eq!(device.va_end % 4096, 0);
    assert!(device.va_start < device.va_end && device.va_end <= 1 << 48);
    assert_eq!(device.page_size_mask & (1 << 12), 1 << 12);
    assert!(device.tick_hz > 0);
    assert!(
        device.max_group_threads > 0
            && device.max_group_threads <= skua_spec::command::MAX_GROUP_THREADS
    );
    assert_eq!(device.wave_threads, skua_spec::command::WAVE_THREADS);
    assert!(device.max_shared_bytes <= skua_spec::command::MAX_SHARED);
    let preemption = [device.graphics_preemption, device.compute_preemption];
    assert_eq!(preemption, [500, 500]);
    for (what, limit) in [
        ("max_bind_ops", device.max_bind_ops),
        ("max_buffers", device.max_buffers),
        ("max_syncs", device.max_syncs),
    ] {
        assert!((1..=1 << 16).contains(&limit), "{what} is {limit}");
    }
}

fn engines_are_numbered() {
    let client = Client::new();
    assert_eq!(
        client.engines.len(),
        usize::try_from(client.device.engine_count).expect("a count")
    );
    for (index, engine) in (0..).zip(&client.engines) {
        assert_eq!(engine.index, index);
        assert!(engine.kind <= DRM_SKUA_ENGINE_COPY, "kind {}", engine.kind);
    }
    client.engine(DRM_SKUA_ENGINE_COMPUTE);
    client.engine(DRM_SKUA_ENGINE_COPY);
}

fn regions_are_numbered() {
    let client = Client::new();
    let regions = client.regions();
    for (id, region) in (0..).zip(&regions) {
        assert_eq!(region.id, id);
        assert!(region.size > 0 && region.size % 4096 == 0, "{region:?}");
        assert!(region.used <= region.size, "{region:?}");
        assert!(region.cpu_visible_size <= region.size, "{region:?}");
        assert!(
            region.page_size.is_power_of_two() && region.page_size >= 4096,
            "{region:?}"
        );
    }
    assert_eq!(client.region(Place::System).kind, DRM_SKUA_REGION_SYSTEM);
}

fn vram_is_as_large_as_its_bar() {
    let client = Client::new();
    let bar = Function::first().bar_size(skua_spec::pci::BAR_VRAM);
    let vram = client.region(Place::Vram);
    assert!(bar > 0);
    assert!(
        vram.size <= bar,
        "{:#x} bytes of VRAM in a BAR of {bar:#x}",
        vram.size
    );
    // The driver keeps some for itself, but not much.
    assert!(
        vram.size >= bar / 4 * 3,
        "{:#x} bytes of {bar:#x}",
        vram.size
    );
}

fn sizes_are_told_without_a_buffer() {
    let client = Client::new();
    for (kind, size) in [
        (DRM_SKUA_QUERY_DEVICE, size_of::<drm_skua_device_info>()),
        (
            DRM_SKUA_QUERY_ENGINES,
            size_of::<drm_skua_engine_info>() * client.engines.len(),
        ),
        (
            DRM_SKUA_QUERY_REGIONS,
            size_of::<drm_skua_region_info>() * client.regions().len(),
        ),
    ] {
        assert_eq!(client.query_size(kind), Ok(size), "type {kind}");
    }
}

fn short_buffers_get_the_beginning() {
    let client = Client::new();
    let mut whole = [0; 64];
    let size = client
        .query(DRM_SKUA_QUERY_DEVICE, &mut whole)
        .expect("QUERY");
    for words in [0, 1, 2, 5, size / 4 - 1] {
        let mut cut = [0xaaaa_aaaa; 64];
        let mut query = drm_skua_query {
            type_: DRM_SKUA_QUERY_DEVICE,
            size: u32::try_from(4 * words).expect("a size"),
            pointer: cut.as_mut_ptr() as u64,
        };
        assert_eq!(client.call(DRM_IOCTL_SKUA_QUERY, &mut query), Ok(()));
        assert_eq!(query.size, u32::try_from(4 * words).expect("a size"));
        assert_eq!(cut[..words], whole[..words]);
        assert!(
            cut[words..].iter().all(|word| *word == 0xaaaa_aaaa),
            "{cut:x?}"
        );
    }
}

fn long_buffers_get_no_more() {
    let client = Client::new();
    let mut buffer = [0xaaaa_aaaa; 256];
    let size = client
        .query(DRM_SKUA_QUERY_DEVICE, &mut buffer)
        .expect("QUERY");
    assert_eq!(size, size_of::<drm_skua_device_info>());
    assert!(buffer[size / 4..].iter().all(|word| *word == 0xaaaa_aaaa));
    // However long it claims to be.
    let mut query = drm_skua_query {
        type_: DRM_SKUA_QUERY_DEVICE,
        size: u32::MAX,
        pointer: buffer.as_mut_ptr() as u64,
    };
    assert_eq!(client.call(DRM_IOCTL_SKUA_QUERY, &mut query), Ok(()));
    assert_eq!(query.size as usize, size);
}

fn used_bytes_follow_buffer_objects() {
    skua_selftests::witness::quiet();
    let client = Client::new();
    for place in Place::ALL {
        let before = client.region(place).used;
        let handle = client.bo(place, 3 << 20);
        let with = client.region(place).used;
        // VRAM may be given out in larger blocks.
        assert!(
            with >= before + (3 << 20) && with <= before + (4 << 20),
            "{place:?}: {before:#x}, then {with:#x}"
        );
        assert_eq!(client.close(handle), Ok(()));
        let end = std::time::Instant::now() + skua_selftests::client::PATIENCE * suite::patience();
        while client.region(place).used != before {
            assert!(
                std::time::Instant::now() < end,
                "{place:?}: {:#x}",
                client.region(place).used
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    assert_eq!(client.close(1), Err(Errno::EINVAL));
}
