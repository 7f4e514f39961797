// SPDX-License-Identifier: MIT

//! Two clients that share nothing reach nothing of each other, on no way.
//!
//! Handles of other files are in `bad_input`, dma-bufs, which are for sharing, in `prime`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use skua_selftests::client::{map, unmap, PATIENCE};
use skua_selftests::mapping::Mapping;
use skua_selftests::rig::{copy, fill, write};
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};

const CANARY: u32 = 0xc0ff_ee11;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        offsets_of_other_files_cannot_be_mapped,
        offsets_of_closed_objects_cannot_be_mapped,
        addresses_of_other_clients_lead_nowhere: 60,
        every_other_address_leads_nowhere: 60,
        vram_of_others_is_not_seen_by_the_cpu: 120,
        vram_of_others_is_not_seen_by_the_gpu: 120,
        vram_in_many_pieces_shows_nothing_of_others: 120 at_rest,
        system_memory_of_others_is_not_seen: 120,
        the_end_of_an_odd_object_shows_nothing: 60,
        contexts_do_not_leave_registers_behind,
    ])
}

fn offsets_of_other_files_cannot_be_mapped() {
    let (theirs, ours) = (Client::new(), Client::new());
    for place in Place::ALL {
        let handle = theirs.bo(place, 4096);
        theirs.map(handle).write(0, u64::from(CANARY));
        let offset = theirs.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        let mapped = Mapping::new(&ours, offset, 4096).map(drop);
        assert_eq!(mapped, Err(Errno::EACCES), "{place:?}");
        // And all offsets near it, of which one might be ours.
        for near in (0..64).map(|n| (offset & !0x3_ffff) + n * 4096) {
            assert!(
                Mapping::new(&ours, near, 4096).is_err(),
                "{place:?}: {near:#x}"
            );
        }
    }
}

fn offsets_of_closed_objects_cannot_be_mapped() {
    let client = Client::new();
    for place in Place::ALL {
        let handle = client.bo(place, 4096);
        let offset = client.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        assert_eq!(client.close(handle), Ok(()));
        assert!(Mapping::new(&client, offset, 4096).is_err(), "{place:?}");
    }
}

fn addresses_of_other_clients_lead_nowhere() {
    let theirs = Rig::new();
    let ours = Rig::new();
    let out = ours.buffer(Place::System, 4096);
    for place in Place::ALL {
        // Where we have nothing.
        let handle = theirs.bo(place, 4096);
        let va = 1 << 44;
        assert_eq!(
            theirs.bind_and_wait(theirs.vm, &[map(handle, 0, va, 4096)]),
            Ok(())
        );
        let cpu = theirs.map(handle);
        // The translation is in the engines' TLBs, for them.
        for engine in Engine::ALL {
            assert_eq!(theirs.run(engine, &[fill(CANARY, va, 4096)]), Ok(()));
            let context = ours.new_context(engine);
            let read = ours.start_in(context, &[copy(va, out.va, 4096)]);
            assert_eq!(
                read.wait(),
                Err(Errno::EFAULT),
                "{place:?} {engine:?}: read"
            );
            let context = ours.new_context(engine);
            let written = ours.start_in(context, &[write(va, 1)]);
            assert_eq!(
                written.wait(),
                Err(Errno::EFAULT),
                "{place:?} {engine:?}: written"
            );
        }
        out.cpu.expect("nothing was read", |_| 0);
        let whole = u64::from(CANARY) << 32 | u64::from(CANARY);
        cpu.expect("nothing was written", |_| whole);
    }
}

fn every_other_address_leads_nowhere() {
    let theirs = Rig::new();
    let _filled = theirs.buffer(Place::Vram, 8 << 20);
    let ours = Rig::new();
    let out = ours.buffer(Place::System, 4096);
    // A process' addresses are virtual: GPU-physical and bus addresses are none of them.
    let mut addresses: Vec<u64> = (0..48).map(|bit| 1 << bit).collect();
    addresses.extend((0..32).map(|n| n << 20));
    // Of the driver's part only what the contexts of this address space are saved to leads
    // anywhere.
    let stride = 4 << 20;
    let behind = ours.device.va_end + stride;
    addresses.extend([
        (1 << 48) - 4096,
        behind - 4096,
        behind + 64 * stride,
        0xfee0_0000,
    ]);
    for va in addresses {
        if ours.uses(va) {
            continue;
        }
        let context = ours.new_context(Engine::Copy);
        let result = ours.start_in(context, &[copy(va, out.va, 8)]).wait();
        assert_eq!(
            result,
            Err(Errno::EFAULT),
            "{va:#x}: {:#x}",
            out.cpu.read(0)
        );
        assert_eq!(ours.context_destroy(context), Ok(()));
    }
}

/// Fills all memory of a place, `limit` bytes at most, with the canary, and gives it back.
fn leave_canaries(place: Place, limit: u64) {
    let rig = Rig::new();
    // What has left VRAM meanwhile leaves room there, and work needs it as well.
    let limit = limit.min(rig.region(place).size);
    let mut total = 0;
    let mut buffers = Vec::new();
    for size in [4 << 20, 64 << 10, 4096] {
        while total + size <= limit {
            let Ok(handle) = rig.try_bo_in_free(place, size) else {
                break;
            };
            buffers.push((rig.bound_at_will(handle, size), size));
            total += size;
        }
    }
    println!("# canaries in {total:#x} bytes of {place:?}");
    assert!(total > limit / 2, "only {total:#x} bytes of {place:?}");
    for chunk in buffers.chunks(32) {
        let work: Vec<_> = chunk
            .iter()
            .map(|(va, size)| fill(CANARY, *va, *size))
            .collect();
        assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    }
}

const PIECE: u64 = 1 << 20;

/// New objects that are all of VRAM, if none of them leaves it.
fn all_of_vram(client: &Client) -> impl Iterator<Item = u32> + '_ {
    let size = client.region(Place::Vram).size;
    assert_eq!(size % PIECE, 0);
    (0..size / PIECE).map(|_| client.bo(Place::Vram, PIECE))
}

fn vram_of_others_is_not_seen_by_the_cpu() {
    quiet();
    leave_canaries(Place::Vram, u64::MAX);
    quiet();
    let client = Client::new();
    let all: Vec<u32> = all_of_vram(&client).collect();
    for handle in all {
        client.map(handle).expect("VRAM", |_| 0);
    }
}

fn vram_of_others_is_not_seen_by_the_gpu() {
    quiet();
    leave_canaries(Place::Vram, u64::MAX);
    quiet();
    let rig = Rig::new();
    let out = rig.buffer(Place::System, PIECE);
    for (number, handle) in all_of_vram(&rig).enumerate() {
        let va = rig.bound_at_will(handle, PIECE);
        out.cpu.write(0, u64::MAX);
        assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, PIECE)]), Ok(()));
        out.cpu.expect(&format!("piece {number}"), |_| 0);
    }
}

fn vram_in_many_pieces_shows_nothing_of_others() {
    let pieces = 400;
    quiet();
    leave_canaries(Place::Vram, u64::MAX);
    quiet();
    let rig = Rig::new();
    let used = || rig.region(Place::Vram).used;
    let size = rig.region(Place::Vram).size;
    let free = || size - used();
    // All is taken, the last of it page by page; then every other of these pages is free.
    let mut kept = Vec::new();
    while free() > 4 * pages(pieces) {
        let size = (free() - 4 * pages(pieces)).min(1 << 20);
        kept.push(rig.bo(Place::Vram, size));
    }
    let mut single = Vec::new();
    while let Ok(handle) = rig.try_bo_in_free(Place::Vram, 4096) {
        single.push(handle);
    }
    let holes: Vec<u32> = single.iter().copied().step_by(2).collect();
    for chunk in holes.chunks(64) {
        let work: Vec<_> = chunk
            .iter()
            .map(|handle| fill(CANARY, rig.bound_at_will(*handle, 4096), 4096))
            .collect();
        assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    }
    // Where the rig puts its buffers.
    let all = unmap(1 << 32, rig.device.va_end - (1 << 32));
    assert_eq!(rig.bind_and_wait(rig.vm, &[all]), Ok(()));
    for handle in &holes {
        assert_eq!(rig.close(*handle), Ok(()));
    }
    let end = Instant::now() + PATIENCE * suite::patience();
    while free() < pages(2 * pieces) {
        assert!(Instant::now() < end, "{:#x} bytes came back", free());
        std::thread::sleep(Duration::from_millis(5));
    }
    // No two of its pages are neighbours.
    let ours = Client::new();
    let map = ours.map(ours.bo(Place::Vram, pages(pieces)));
    map.expect("by the CPU", |_| 0);
    let handle = rig.bo(Place::Vram, pages(pieces));
    let out = rig.buffer(Place::System, pages(pieces));
    out.cpu.fill(|_| u64::MAX);
    let va = rig.bound_at_will(handle, pages(pieces));
    let work = [copy(va, out.va, pages(pieces))];
    assert_eq!(rig.run(Engine::Copy, &work), Ok(()));
    out.cpu.expect("by the GPU", |_| 0);
}

fn pages(count: u64) -> u64 {
    count * 4096
}

fn system_memory_of_others_is_not_seen() {
    quiet();
    leave_canaries(Place::System, 96 << 20);
    quiet();
    let rig = Rig::new();
    let out = rig.buffer(Place::System, 4 << 20);
    for n in 0..24 {
        let handle = rig.bo(Place::System, 4 << 20);
        if n % 2 == 0 {
            rig.map(handle).expect("by the CPU", |_| 0);
        } else {
            let va = rig.bound_at_will(handle, 4 << 20);
            assert_eq!(rig.run(Engine::Copy, &[copy(va, out.va, 4 << 20)]), Ok(()));
            out.cpu.expect("by the GPU", |_| 0);
        }
    }
}

fn the_end_of_an_odd_object_shows_nothing() {
    quiet();
    leave_canaries(Place::Vram, u64::MAX);
    quiet();
    let rig = Rig::new();
    let out = rig.buffer(Place::System, 4096);
    for pages in [1, 3, 5, 17, 31, 33, 513] {
        // Memory may be given out in larger blocks than asked for.
        let handle = rig.bo(Place::Vram, pages * 4096);
        let va = rig.bound_at_will(handle, pages * 4096);
        let offset = rig.mmap_offset(handle).expect("BO_MMAP_OFFSET");
        let len = usize::try_from(pages * 4096).expect("a size");
        assert_eq!(
            Mapping::new(&*rig, offset, len + 4096).map(drop),
            Err(Errno::EINVAL),
            "{pages} pages"
        );
        let context = rig.new_context(Engine::Copy);
        let beyond = rig.start_in(context, &[copy(va + pages * 4096, out.va, 8)]);
        assert_eq!(
            beyond.wait(),
            Err(Errno::EFAULT),
            "{pages} pages: {:#x}",
            out.cpu.read(0)
        );
        let too_much = [map(handle, 0, va, (pages + 1) * 4096)];
        assert_eq!(
            rig.bind(rig.vm, &too_much, &[]),
            Err(Errno::EINVAL),
            "{pages} pages"
        );
    }
}

fn contexts_do_not_leave_registers_behind() {
    use skua_selftests::program::{address, op, op_imm, EXIT};
    use skua_selftests::rig::dispatch;
    use skua_spec::isa::Op;
    // One client's program leaves values in every register and in shared memory, another's program
    // stores what it finds there.
    let mut leave: Vec<u64> = (0..64).map(|r| op_imm(Op::Mov, r, 0, CANARY)).collect();
    leave.push(op_imm(Op::Mov, 1, 0, 0));
    leave.extend((0..64).map(|n| op(Op::Sts32, 2, 1, 0, 4 * n)));
    leave.push(EXIT);
    let mut look = vec![op(Op::Arg, 62, 0, 0, 0), op(Op::Arg, 63, 0, 0, 1)];
    look.extend((0..62).map(|r| op(Op::St32, r, 62, 0, 4 * u32::from(r))));
    for n in 0..64 {
        look.push(op(Op::Lds32, 0, 61, 0, 4 * n));
        look.push(op(Op::St32, 0, 62, 0, 1024 + 4 * n));
    }
    look.push(EXIT);
    let with_shared = |command| match command {
        skua_spec::command::Command::Dispatch(dispatch) => {
            skua_spec::command::Command::Dispatch(skua_spec::command::Dispatch {
                shared_bytes: 256,
                ..dispatch
            })
        }
        other => other,
    };
    let (theirs, ours) = (Rig::new(), Rig::new());
    let (leaving, looking) = (theirs.program(&leave), ours.program(&look));
    let out = ours.buffer(Place::System, 4096);
    out.cpu.fill(|_| u64::MAX);
    for _ in 0..4 {
        let work = [with_shared(dispatch(&leaving, &leave, &[CANARY; 8]))];
        assert_eq!(theirs.run(Engine::Compute, &work), Ok(()));
        let work = [with_shared(dispatch(&looking, &look, &address(out.va)))];
        assert_eq!(ours.run(Engine::Compute, &work), Ok(()));
        for register in 0..62 {
            assert_eq!(out.cpu.read32(4 * register), 0, "register {register}");
        }
        for word in 0..64 {
            assert_eq!(
                out.cpu.read32(1024 + 4 * word),
                0,
                "word {word} of shared memory"
            );
        }
    }
}
