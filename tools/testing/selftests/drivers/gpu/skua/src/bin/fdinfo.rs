// SPDX-License-Identifier: MIT

//! fdinfo: what monitors like gputop read, by `Documentation/gpu/drm-usage-stats.rst`.

use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::rig::{copy, fill, wait_value};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

fn main() -> ExitCode {
    suite::main(tests![
        the_client_is_named,
        every_key_is_there_and_well_formed,
        engine_time_is_the_work_done,
        engine_time_of_destroyed_contexts_stays,
        clients_have_their_own_time,
        memory_is_counted_where_it_is,
        shared_memory_is_told_apart,
        active_memory_is_in_use,
        other_processes_can_read_it,
    ])
}

/// The region's name in fdinfo.
fn region(place: Place) -> &'static str {
    match place {
        Place::System => "memory",
        Place::Vram => "vram0",
    }
}

fn engine(engine: Engine) -> &'static str {
    match engine {
        Engine::Compute => "compute",
        Engine::Copy => "copy",
    }
}

fn the_client_is_named() {
    let (one, two) = (Client::new(), Client::new());
    let (first, second) = (one.fdinfo(), two.fdinfo());
    assert_eq!(first.get("drm-driver"), Some("skua"));
    assert_eq!(first.get("drm-pdev"), Some(&*Function::first().address));
    let id = first.number("drm-client-id");
    assert!(
        id.is_some() && id != second.number("drm-client-id"),
        "{id:?}"
    );
    // A duplicate is the same client.
    let duplicate = skua_selftests::fdinfo::Fdinfo::of(one.duplicate());
    assert_eq!(duplicate.number("drm-client-id"), id);
}

fn every_key_is_there_and_well_formed() {
    let rig = Rig::new();
    let info = rig.fdinfo();
    for one in Engine::ALL.map(engine) {
        let key = format!("drm-engine-{one}");
        assert!(
            info.nanoseconds(&key).is_some(),
            "{key}: {:?}",
            info.get(&key)
        );
        let key = format!("drm-cycles-{one}");
        assert!(info.number(&key).is_some(), "{key}: {:?}", info.get(&key));
    }
    for place in Place::ALL.map(region) {
        for part in ["total", "shared", "resident", "active"] {
            let key = format!("drm-{part}-{place}");
            assert!(info.bytes(&key).is_some(), "{key}: {:?}", info.get(&key));
        }
    }
    // Nothing else, but what the core prints.
    for key in info.keys() {
        let known = ["drm-driver", "drm-client-id", "drm-pdev", "drm-client-name"].contains(&key)
            || [
                "drm-engine-",
                "drm-cycles-",
                "drm-total-",
                "drm-shared-",
                "drm-resident-",
                "drm-active-",
                "drm-purgeable-",
            ]
            .iter()
            .any(|prefix| key.starts_with(prefix));
        assert!(known, "{key}");
    }
}

fn engine_time_is_the_work_done() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 1 << 20);
    for one in Engine::ALL {
        let before = rig.fdinfo();
        let cycles = format!("drm-cycles-{}", engine(one));
        let time = format!("drm-engine-{}", engine(one));
        let mut last = before.number(&cycles).expect("cycles");
        for _ in 0..4 {
            assert_eq!(rig.run(one, &[fill(1, buffer.va, 1 << 20)]), Ok(()));
            let info = rig.fdinfo();
            let now = info.number(&cycles).expect("cycles");
            let least = (1 << 20) / skua_spec::command::BYTES_PER_TICK;
            assert!(now >= last + least, "{one:?}: {last}, then {now}");
            last = now;
            let expected = u128::from(now) * 1_000_000_000 / u128::from(rig.device.tick_hz);
            assert_eq!(
                info.nanoseconds(&time).map(u128::from),
                Some(expected),
                "{one:?}"
            );
        }
        let ticks = rig.state(rig.context(one)).expect("CONTEXT_STATE").ticks;
        assert_eq!(last, ticks, "{one:?}: the context's time is the client's");
    }
}

fn engine_time_of_destroyed_contexts_stays() {
    let rig = Rig::new();
    let buffer = rig.buffer(Place::System, 1 << 20);
    let context = rig.new_context(Engine::Copy);
    assert_eq!(
        rig.start_in(context, &[fill(1, buffer.va, 1 << 20)]).wait(),
        Ok(())
    );
    let before = rig.fdinfo().number("drm-cycles-copy");
    assert_eq!(rig.context_destroy(context), Ok(()));
    assert_eq!(rig.fdinfo().number("drm-cycles-copy"), before);
    assert!(before > Some(0));
}

fn clients_have_their_own_time() {
    let (busy, idle) = (Rig::new(), Rig::new());
    let buffer = busy.buffer(Place::System, 1 << 20);
    let before = idle.fdinfo();
    for one in Engine::ALL {
        assert_eq!(busy.run(one, &[fill(1, buffer.va, 1 << 20)]), Ok(()));
    }
    assert_eq!(idle.fdinfo(), before);
}

fn memory_is_counted_where_it_is() {
    let client = Client::new();
    for place in Place::ALL {
        let total = format!("drm-total-{}", region(place));
        let resident = format!("drm-resident-{}", region(place));
        let other = match place {
            Place::System => "drm-total-vram0",
            Place::Vram => "drm-total-memory",
        };
        let before = client.fdinfo();
        let handle = client.bo(place, 3 << 20);
        let with = client.fdinfo();
        assert_eq!(
            with.bytes(&total),
            before.bytes(&total).map(|bytes| bytes + (3 << 20))
        );
        assert_eq!(
            with.bytes(&resident),
            before.bytes(&resident).map(|bytes| bytes + (3 << 20))
        );
        assert_eq!(with.bytes(other), before.bytes(other));
        assert_eq!(client.close(handle), Ok(()));
        assert_eq!(client.fdinfo().bytes(&total), before.bytes(&total));
    }
}

fn shared_memory_is_told_apart() {
    let (one, two) = (Client::new(), Client::new());
    for place in Place::ALL {
        let key = format!("drm-shared-{}", region(place));
        let handle = one.bo(place, 1 << 20);
        assert_eq!(one.fdinfo().bytes(&key), Some(0), "{place:?}");
        let shared = one.export(handle).expect("PRIME_HANDLE_TO_FD");
        let there = two.import(&shared).expect("PRIME_FD_TO_HANDLE");
        drop(shared);
        for client in [&one, &two] {
            assert_eq!(client.fdinfo().bytes(&key), Some(1 << 20), "{place:?}");
        }
        assert_eq!(two.close(there), Ok(()));
        assert_eq!(two.fdinfo().bytes(&key), Some(0), "{place:?}");
        assert_eq!(one.close(handle), Ok(()));
        assert_eq!(one.fdinfo().bytes(&key), Some(0), "{place:?}");
    }
}

fn active_memory_is_in_use() {
    quiet();
    let rig = Rig::new();
    let gate = rig.buffer(Place::System, 4096);
    let source = rig.buffer(Place::Vram, 1 << 20);
    assert_eq!(rig.fdinfo().bytes("drm-active-vram0"), Some(0));
    let work = [wait_value(gate.va, 1), copy(source.va, source.va + 8, 8)];
    let job = rig.start(Engine::Copy, &work);
    // The driver does not know what a job uses; active is at most what is resident.
    let info = rig.fdinfo();
    assert!(info.bytes("drm-active-vram0") <= info.bytes("drm-resident-vram0"));
    gate.cpu.write(0, 1);
    assert_eq!(job.wait(), Ok(()));
    assert_eq!(rig.fdinfo().bytes("drm-active-vram0"), Some(0));
    assert_eq!(rig.close(77), Err(Errno::EINVAL));
}

fn other_processes_can_read_it() {
    use std::os::fd::{AsFd, AsRawFd};
    let client = Client::new();
    let _handle = client.bo(Place::Vram, 1 << 20);
    let path = format!(
        "/proc/{}/fdinfo/{}",
        std::process::id(),
        client.as_fd().as_raw_fd()
    );
    let read = skua_selftests::raw::in_child(|| {
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("drm-driver:\tskua"))
    });
    assert!(read, "{path}");
}
