// SPDX-License-Identifier: MIT

//! One client cannot take what all need, nor hold up the driver's own work.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use nix::unistd::{seteuid, Uid};
use skua_selftests::cases::Cases;
use skua_selftests::cgroup::MemoryGroup;
use skua_selftests::client::{map, signal, signal_value, wait, wait_value as wait_for_value};
use skua_selftests::events::Trace;
use skua_selftests::function::{Function, Unbound};
use skua_selftests::moving::{alone, both, evict_all, press, while_again};
use skua_selftests::race::Hold;
use skua_selftests::raw::Child;
use skua_selftests::rig::{fill, wait_value, write};
use skua_selftests::software_timeline::SoftwareTimeline;
use skua_selftests::suite::eventually;
use skua_selftests::witness::quiet;
use skua_selftests::{suite, tests, Client, Engine, Errno, Place, Rig};
use skua_uapi::{drm_skua_bind_op, DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY, DRM_SKUA_OFFER_NORMAL};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        what_is_refused_is_traced: 60,
        contexts_of_one_client_are_limited: 60,
        address_spaces_of_one_client_are_limited: 60,
        one_user_leaves_others_as_much: 60,
        one_user_leaves_others_pending_residency: 60 at_rest,
        system_memory_of_one_client_is_limited: 60,
        one_user_leaves_others_system_memory: 120 at_rest,
        evictions_of_several_users_are_limited: 120 at_rest,
        submissions_that_wait_are_limited: 120,
        binds_that_wait_are_limited: 120,
        what_a_client_has_made_is_charged_to_it: 120,
        nobody_waits_for_who_is_throttled: 240 at_rest,
        nobody_waits_for_who_is_throttled_for_pages: 240 at_rest,
        nobody_waits_for_the_turn_of_who_is_throttled: 240 at_rest,
        no_worker_sleeps_for_who_is_throttled: 240 at_rest,
        no_unbind_waits_for_who_is_throttled: 240 at_rest,
        destructions_behind_held_work_are_limited: 60,
        waits_do_not_hold_up_the_drivers_own_work: 120,
        vram_in_thousands_of_pieces_is_cleared: 240 at_rest,
    ])
}

/// Makes as many as it can; how many, and why no more.
fn until_refused(mut make: impl FnMut() -> Result<u32, Errno>) -> (Vec<u32>, Errno) {
    let mut made = Vec::new();
    loop {
        match make() {
            Ok(handle) => made.push(handle),
            Err(errno) => return (made, errno),
        }
        assert!(made.len() < 100_000, "there is no limit");
    }
}

fn what_is_refused_is_traced() {
    quiet();
    let node = Function::first().node().expect("a render node");
    fs::set_permissions(node, Permissions::from_mode(0o666)).expect("chmod");
    let trace = Trace::of(&["skua_no_quota"]);
    // The last refusal: of which quota, whose, units, used and excess.
    let told = |what: &str| {
        let events = trace.events();
        let event = events.last().unwrap_or_else(|| panic!("{what}: no event"));
        println!("# {what}: {event:?}");
        assert_eq!(event.get("dev"), Function::first().address);
        assert_eq!(event.get("pid"), std::process::id().to_string(), "{what}");
        let names = ["quota", "of"].map(|name| event.get(name).to_owned());
        let numbers = ["units", "used", "excess"].map(|name| event.get(name).parse::<u64>());
        (names, numbers.map(|number| number.expect("a number")))
    };
    let client = Client::new();
    let (fences, errno) = until_refused(|| client.fence_create(0));
    assert_eq!(errno, Errno::ENOSPC);
    let names = |what: &str, of: &str| [what, of].map(str::to_owned);
    let most = fences.len() as u64;
    assert_eq!(told("fences"), (names("fences", "client"), [1, most, 1]));
    let (vms, errno) = until_refused(|| client.vm_create());
    assert_eq!(errno, Errno::ENOSPC);
    let most = vms.len() as u64;
    assert_eq!(told("a client"), (names("vms", "client"), [1, most, 1]));
    // Of a user of whose clients none has too many.
    let vm = |client: &Client| client.vm_create();
    let (clients, taken) = take_all(65533, Errno::ENOSPC, &vm);
    let expected = (names("vms", "user"), [1, taken as u64, 1]);
    assert_eq!(told("a user"), expected);
    drop(clients);
    let bytes = client.region(Place::System).size + 4096;
    let refused = client.try_bo(Place::System, bytes).err();
    assert_eq!(refused, Some(Errno::ENOMEM));
    let (names, [units, used, excess]) = told("system memory");
    assert_eq!(names, ["system", "client"]);
    let most = (bytes - 4096) / 2;
    assert_eq!((units, excess), (bytes, used + bytes - most));
}

fn contexts_of_one_client_are_limited() {
    let (greedy, modest) = (Client::new(), Client::new());
    let vm = greedy.vm_create().expect("VM_CREATE");
    let (contexts, errno) = until_refused(|| greedy.context_create(vm, 0));
    println!("{} contexts", contexts.len());
    assert_eq!(errno, Errno::ENOSPC);
    let other = modest.vm_create().expect("VM_CREATE");
    let (others, errno) = until_refused(|| modest.context_create(other, 0));
    assert_eq!((others.len(), errno), (contexts.len(), Errno::ENOSPC));
    // What is given back can be taken again, when it is gone.
    assert_eq!(greedy.context_destroy(contexts[0]), Ok(()));
    let again = suite::eventually(|| greedy.context_create(vm, 0).ok());
    assert!(
        again.is_some(),
        "a context was destroyed and none can be made"
    );
}

fn address_spaces_of_one_client_are_limited() {
    let (greedy, modest) = (Client::new(), Client::new());
    let (vms, errno) = until_refused(|| greedy.vm_create());
    println!("{} address spaces", vms.len());
    assert_eq!(errno, Errno::ENOSPC);
    let (others, errno) = until_refused(|| modest.vm_create());
    assert_eq!((others.len(), errno), (vms.len(), Errno::ENOSPC));
    assert_eq!(greedy.vm_destroy(vms[0]), Ok(()));
    let again = suite::eventually(|| greedy.vm_create().ok());
    assert!(again.is_some(), "one was destroyed and none can be made");
}

/// Clients of a user, as many as it takes until it gets no more; how many each of them got.
fn take_all(
    uid: u32,
    why: Errno,
    make: &dyn Fn(&Client) -> Result<u32, Errno>,
) -> (Vec<Client>, usize) {
    as_user(uid, || {
        let (mut clients, mut taken) = (Vec::new(), 0);
        loop {
            let client = Client::new();
            let (made, errno) = until_refused(|| make(&client));
            assert_eq!(errno, why);
            clients.push(client);
            taken += made.len();
            if made.is_empty() {
                return (clients, taken);
            }
        }
    })
}

/// Does `f` as another user, without the rights of root.
fn as_user<T>(uid: u32, f: impl FnOnce() -> T) -> T {
    seteuid(Uid::from_raw(uid)).expect("seteuid");
    let result = f();
    seteuid(Uid::from_raw(0)).expect("seteuid");
    result
}

fn one_user_leaves_others_as_much() {
    let node = Function::first().node().expect("a render node");
    fs::set_permissions(node, Permissions::from_mode(0o666)).expect("chmod");
    let mut cases = Cases::new();
    let vm = |client: &Client| client.vm_create();
    let context = |client: &Client| client.context_create(1, 0);
    let with_vm = |client: &Client| match context(client) {
        Err(Errno::ENOENT) => client.vm_create().and_then(|_| context(client)),
        made => made,
    };
    let explicit = |client: &Client| client.device_create(DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY);
    type Make<'a> = &'a dyn Fn(&Client) -> Result<u32, Errno>;
    for (what, make) in [
        ("address spaces", &vm as Make<'_>),
        ("contexts", &with_vm),
        ("explicit devices", &explicit),
    ] {
        // What is left of others before is not free.
        quiet();
        let (first, taken) = take_all(65533, Errno::ENOSPC, make);
        cases.holds(
            &format!("{what} of one"),
            (500..=512).contains(&taken),
            taken,
        );
        let (second, others) = take_all(65534, Errno::ENOSPC, make);
        cases.holds(
            &format!("{what} of another"),
            (250..=260).contains(&others),
            others,
        );
        // Who may override limits takes the rest.
        let (all, rest) = take_all(0, Errno::ENOSPC, make);
        cases.holds(
            &format!("{what} of root"),
            (200..=257).contains(&rest),
            rest,
        );
        drop(all);
        // What is given back can be taken again, when it is gone.
        drop(first);
        let again = as_user(65533, || eventually(|| make(&Client::new()).ok()).is_some());
        cases.holds(&format!("{what}: again"), again, ());
        drop(second);
    }
    cases.finish();
}

/// Clients of a user, each with an object that is locked out of VRAM, and as many MAKE_RESIDENTs
/// that wait for its unlock as it gets; how many those are.
fn take_all_pending(uid: u32) -> (Vec<(Client, u32, u32)>, usize) {
    let (mut clients, mut taken) = (Vec::new(), 0);
    loop {
        let client = as_user(uid, Client::new);
        let vram = 1 << client.region(Place::Vram).id;
        let handle = client.bo_create(4096, 0, vram).expect("BO_CREATE");
        evict_all();
        assert!(client.lock(handle).is_ok());
        let fence = client.fence(0);
        let mut value = 0;
        let (made, errno) = as_user(uid, || {
            until_refused(|| {
                value += 1;
                let syncs = [signal_value(fence, value)];
                let begun = client.begin_resident_for(0, 0, &[handle], &syncs);
                begun.map(|_| 0).map_err(|(errno, _)| errno)
            })
        });
        assert_eq!(errno, Errno::ENOSPC);
        clients.push((client, handle, fence));
        taken += made.len();
        if made.is_empty() {
            return (clients, taken);
        }
    }
}

/// Whoever has to wake what waits for an unlock looks at all of it, and workers that all share go
/// on with it then.
fn one_user_leaves_others_pending_residency() {
    let node = Function::first().node().expect("a render node");
    fs::set_permissions(node, Permissions::from_mode(0o666)).expect("chmod");
    let (first, taken) = take_all_pending(65533);
    let (second, others) = take_all_pending(65534);
    println!("{taken} of one, {others} of another");
    assert_eq!((taken, others), (512, 256));
    // Each client has its own limit, too.
    assert_eq!(first.len(), 512 / 64 + 1);
    // They are over when it is unlocked, or their client is gone, and there may be others then.
    let (client, handle, fence) = &first[0];
    assert_eq!(client.unlock(*handle), Ok(()));
    assert!(client.fence_gets(*fence, 64));
    drop(second);
    // 448 are left, and half of what was.
    let more = eventually(|| Some(take_all_pending(65533).1).filter(|more| *more == 64));
    assert!(more.is_some(), "nothing was given back");
}

fn system_memory_of_one_client_is_limited() {
    let (greedy, modest) = (Client::new(), Client::new());
    let size = greedy.region(Place::System).size;
    let before = greedy.region(Place::System).used;
    let (bos, errno) = until_refused(|| greedy.try_bo(Place::System, 8 << 20));
    let used = greedy.region(Place::System).used - before;
    println!("{} objects, {used} of {size} bytes", bos.len());
    assert_eq!(errno, Errno::ENOMEM);
    assert!(used <= size / 2, "one client has more than half");
    modest.bo(Place::System, 8 << 20);
}

fn one_user_leaves_others_system_memory() {
    let node = Function::first().node().expect("a render node");
    fs::set_permissions(node, Permissions::from_mode(0o666)).expect("chmod");
    quiet();
    let memory = Client::new().region(Place::System);
    let free = memory.size - memory.used;
    let piece = memory.size / 64;
    let make = |client: &Client| client.try_bo(Place::System, piece);
    // What each of them has first is a client's limit.
    let (first, taken) = take_all(65533, Errno::ENOMEM, &make);
    assert!(first.len() > 1, "one client alone had all");
    let (second, others) = take_all(65534, Errno::ENOMEM, &make);
    let [taken, others] = [taken, others].map(|pieces| pieces as u64 * piece);
    println!("{free} bytes: {taken}, {others}");
    // The pieces that each of them tried, and page tables.
    let about = |bytes: u64| bytes.saturating_sub(3 * piece)..=bytes;
    assert!(
        about(free / 2).contains(&taken),
        "one has {taken} of {free}"
    );
    let half = (free - taken) / 2;
    assert!(
        about(half).contains(&others),
        "another has {others} of {half}"
    );
    // Who may override limits takes of the rest.
    make(&Client::new()).expect("BO_CREATE");
    // What is given back can be taken again, when it is gone.
    drop(first);
    let again = as_user(65533, || eventually(|| make(&Client::new()).ok()));
    assert!(again.is_some(), "nothing was given back");
    drop(second);
}

/// What makes room for others counts beyond what all may have, by no more than VRAM has twice, and
/// once for each user.
fn evictions_of_several_users_are_limited() {
    const PIECE: u64 = 16 << 20;
    let node = Function::first().node().expect("a render node");
    fs::set_permissions(node, Permissions::from_mode(0o666)).expect("chmod");
    quiet();
    let witness = Client::new();
    let [memory, vram] = [Place::System, Place::Vram].map(|place| witness.region(place));
    let make = |client: &Client| client.bo_create(PIECE, 0, both(client));
    let hogs: [_; 3] = [65531, 65532, 65533].map(|user| take_all(user, Errno::ENOMEM, &make));
    let used = witness.region(Place::System).used;
    println!("{used} bytes of {}, and {} of VRAM", memory.size, vram.size);
    assert!(used <= memory.size + (2 + hogs.len() as u64) * vram.size);
    // Who has nothing there goes on.
    let new = as_user(65534, || make(&Client::new()));
    assert!(new.is_ok(), "{new:?}");
    drop(hogs);
}

fn submissions_that_wait_are_limited() {
    let rig = Rig::new();
    let line = SoftwareTimeline::new();
    let gate = rig.syncobj_of(line.fence(1));
    let (queued, errno) = until_refused(|| rig.submit(rig.copy, &[], &[wait(gate)]).map(|()| 0));
    println!("{} submissions", queued.len());
    assert_eq!(errno, Errno::ENOSPC);
    // Other contexts have their own limit.
    assert_eq!(rig.run(Engine::Compute, &[]), Ok(()));
    line.advance(1);
    // Now there is room again, and the fences are in order.
    let last = suite::eventually(|| {
        let done = rig.syncobj();
        rig.submit(rig.copy, &[], &[signal(done)])
            .ok()
            .map(|()| done)
    });
    assert_eq!(rig.wait(last.expect("room in the queue")), Ok(()));
}

fn binds_that_wait_are_limited() {
    let client = Client::new();
    let vm = client.vm_create().expect("VM_CREATE");
    let bo = client.bo(Place::System, 4096);
    let line = SoftwareTimeline::new();
    let gate = client.syncobj_of(line.fence(1));
    let op = [map(bo, 0, 1 << 32, 4096)];
    let (queued, errno) = until_refused(|| client.bind(vm, &op, &[wait(gate)]).map(|()| 0));
    println!("{} binds", queued.len());
    assert_eq!(errno, Errno::ENOSPC);
    line.advance(1);
    let room = suite::eventually(|| client.bind_and_wait(vm, &op).ok());
    assert!(room.is_some(), "no room in the queue");
}

/// What a group has is told in pages, and late: so there are many of each thing.
fn what_a_client_has_made_is_charged_to_it() {
    quiet();
    let group = MemoryGroup::enter();
    let rig = Rig::new().having_worked();
    // More than one of them may have.
    let clients: Vec<_> = (0..16).map(|_| Client::new()).collect();
    let spaces = clients.iter().map(|client| client.vm_create());
    let spaces: Vec<u32> = spaces.map(|vm| vm.expect("VM_CREATE")).collect();
    let line = SoftwareTimeline::new();
    let gate = rig.syncobj_of(line.fence(1));
    let fences: Vec<_> = clients.iter().map(|client| client.fence(0)).collect();
    let event = EventFd::new().expect("eventfd");
    let shared: Vec<_> = clients
        .iter()
        .map(|it| it.bo(Place::System, 4096))
        .collect();
    let gates: Vec<_> = clients
        .iter()
        .map(|it| it.syncobj_of(line.fence(1)))
        .collect();
    // One page of two.
    let op = |n: usize| map(shared[n % 16], 0, (1 << 32) + 8192 * n as u64, 4096);
    type Make<'a> = &'a dyn Fn(usize) -> Result<(), Errno>;
    let [submit, context, make_fence, eventfd, object, mapping, bind]: [Make<'_>; 7] = [
        &|_| rig.submit(rig.copy, &[], &[wait(gate)]),
        &|n| clients[n % 16].context_create(spaces[n % 16], 0).map(drop),
        &|n| clients[n % 16].fence_create(0).map(drop),
        &|n| clients[n % 16].fence_eventfd(fences[n % 16], 1, &event),
        &|n| clients[n % 16].try_bo(Place::Vram, 4096).map(drop),
        &|n| clients[n % 16].bind_and_wait(spaces[n % 16], &[op(n)]),
        &|n| clients[n % 16].bind(spaces[n % 16], &[op(n)], &[wait(gates[n % 16])]),
    ];
    let mut cases = Cases::new();
    // How many, and bytes of the least that each of them must be.
    for (what, count, least, make) in [
        ("submissions that wait", 4000, 640, submit),
        ("contexts", 960, 960, context),
        ("fences", 8000, 4320, make_fence),
        ("eventfds that wait", 8000, 150, eventfd),
        ("objects in VRAM", 4000, 400, object),
        ("mappings", 8000, 40, mapping),
        ("binds that wait", 8000, 400, bind),
    ] {
        let count = suite::rounds(count) as usize;
        // Of what was made before: the kernel sums that up every two seconds.
        thread::sleep(Duration::from_millis(2200));
        let before = group.kernel_bytes();
        let made = (0..count).map(make);
        let made = made.take_while(|made| *made == Ok(())).count();
        cases.expect(&format!("{what}: how many"), made, count);
        let each = group.kernel_bytes_since(before, least * count as u64) / count as u64;
        println!("# {what}: {each} bytes each");
        cases.holds(what, each >= least, each);
    }
    line.advance(1);
    cases.finish();
}

/// Its control group has a client wait for each of many tables, with its address space's map to
/// itself; meanwhile objects of that are given up, a client's and the driver's own.
fn nobody_waits_for_who_is_throttled() {
    const SIZE: u64 = 64 << 20;
    let victim = Client::new();
    let rig = alone();
    let gate = rig.buffer(Place::System, 4096);
    let small = rig.bo(Place::System, 4096);
    let doomed = rig.bo(Place::System, SIZE);
    rig.bound_at_will(doomed, SIZE);
    let context = rig.context_having_worked(Engine::Compute);
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    assert_eq!(rig.destroy(&[doomed], 0), Ok(()));
    let (before, with) = (mappings(), victim.region(Place::System).used);

    let group = MemoryGroup::enter();
    let directory = format!("/sys/fs/cgroup/skua-{}", std::process::id());
    let ops = many_tables(small);
    let charged = group.current();
    let throttled = Child::start(|| {
        fs::write(directory + "/memory.high", "0").expect("memory.high");
        rig.bind(rig.vm, &ops, &[]).is_ok()
    });
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    let goes_on = |charged: u64, bytes: u64| {
        let more = || (group.current() > charged + bytes).then_some(());
        eventually(more).is_some()
    };
    // More than it needs before it has the map.
    assert!(goes_on(charged, 1 << 20), "it binds nothing");

    assert_eq!(rig.context_destroy(context), Ok(()));
    gate.cpu.write(0, 1);
    let is_free = || (victim.region(Place::System).used < with - SIZE / 2).then_some(());
    assert!(eventually(is_free).is_some(), "its memory is kept");
    // More than it needs to end.
    let goes_on = goes_on(group.current(), 1 << 20);
    assert!(goes_on, "others had to wait for it");
    assert_eq!(job.wait(), Ok(()));
    throttled.kill();
    throttled.wait();
    // Whether or not it was bound.
    let is_forgotten = || [before - 1, before + 1023].contains(&mappings());
    let is_forgotten = eventually(|| is_forgotten().then_some(()));
    assert!(is_forgotten.is_some(), "{before}, then {}", mappings());
}

/// As above, with the reservation of an address space, for each page of what was thrown away.
fn nobody_waits_for_who_is_throttled_for_pages() {
    const SIZE: u64 = 48 << 20;
    let victim = Client::new();
    let rig = alone();
    let gate = rig.buffer(Place::System, 4096);
    let system = 1 << rig.region(Place::System).id;
    let private = || {
        let handle = rig.bo_create_in(rig.vm, SIZE, 0, system);
        let handle = handle.expect("BO_CREATE");
        rig.bound_at_will(handle, SIZE);
        handle
    };
    let offered = private();
    assert_eq!(rig.offer(&[offered], DRM_SKUA_OFFER_NORMAL), Ok(()));
    let discarded = || {
        let [bytes] = Function::first().counters(["driver_discarded_bytes"]);
        bytes
    };
    let before = discarded();
    // Not while somebody has it locked.
    let is_thrown_away = eventually(|| {
        press();
        (discarded() >= before + SIZE).then_some(())
    });
    assert!(is_thrown_away.is_some(), "{before}, {}", discarded());
    let doomed = private();
    let job = rig.start(Engine::Copy, &[wait_value(gate.va, 1)]);
    assert_eq!(rig.destroy(&[doomed], 0), Ok(()));
    let with = victim.region(Place::System).used;

    let group = MemoryGroup::enter();
    let directory = format!("/sys/fs/cgroup/skua-{}", std::process::id());
    let charged = group.current();
    let throttled = Child::start(|| {
        fs::write(directory + "/memory.high", "0").expect("memory.high");
        rig.reclaim(&[offered]) == Ok(vec![true])
    });
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    let comes = || (group.current() > charged + (2 << 20)).then_some(());
    assert!(eventually(comes).is_some(), "it reclaims nothing");

    gate.cpu.write(0, 1);
    let is_free = || (victim.region(Place::System).used < with - SIZE / 2).then_some(());
    assert!(eventually(is_free).is_some(), "others' memory is kept");
    assert_eq!(job.wait(), Ok(()));
    assert!(throttled.wait(), "BO_RECLAIM");
}

/// As above, with its map, while its own work is to have its turn to page in.
fn nobody_waits_for_the_turn_of_who_is_throttled() {
    let rigs = [(); 3].map(|()| Rig::new().having_worked());
    let vram = rigs[0].region(Place::Vram);
    let size = vram.size * 3 / 5 / 4096 * 4096;
    // One of these is in VRAM at a time: the last.
    let [first, second, _] = rigs.each_ref().map(|rig| {
        let handle = rig.bo_create(size, 0, 1 << vram.id).expect("BO_CREATE");
        rig.bound_at_will(handle, size)
    });
    let small = rigs[0].bo(Place::System, 4096);
    let ops: Vec<_> = (1..=4096)
        .map(|n| map(small, 0, (1 << 40) + (n << 30), 4096))
        .collect();
    let group = MemoryGroup::enter();
    let directory = format!("/sys/fs/cgroup/skua-{}", std::process::id());
    let charged = group.current();
    let throttled = Child::start(|| {
        fs::write(directory + "/memory.high", "0").expect("memory.high");
        let mut parts = ops.chunks(1024);
        parts.all(|ops| rigs[0].bind(rigs[0].vm, ops, &[]).is_ok())
    });
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    let goes_on = |charged: u64, bytes: u64| {
        let more = || (group.current() > charged + bytes).then_some(());
        eventually(more).is_some()
    };
    assert!(goes_on(charged, 2 << 20), "it binds nothing");

    let own = Child::start(|| rigs[0].run(Engine::Copy, &[write(first, 1)]) == Ok(()));
    thread::sleep(Duration::from_millis(500) * suite::patience());
    assert_eq!(rigs[1].run(Engine::Copy, &[write(second, 1)]), Ok(()));
    let goes_on = goes_on(group.current(), 1 << 20);
    assert!(goes_on, "others had to wait for it");
    throttled.kill();
    throttled.wait();
    assert!(own.wait(), "its own work");
}

/// Its control group would have a client wait for each of many tables of these.
fn many_tables(small: u32) -> Vec<drm_skua_bind_op> {
    (1..=1024)
        .map(|n| map(small, 0, (1 << 40) + (n << 30), 4096))
        .collect()
}

/// What a worker has called that sleeps for a control group which has much.
fn throttled_worker() -> Option<String> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let read = |process: &Path, file: &str| fs::read_to_string(process.join(file)).ok();
    processes.map(|process| process.path()).find_map(|process| {
        read(&process, "comm").filter(|name| name.starts_with("kworker"))?;
        read(&process, "stack").filter(|stack| stack.contains("mem_cgroup_handle_over_high"))
    })
}

/// The client's bind is done by a worker, when the client has gone on.
fn no_worker_sleeps_for_who_is_throttled() {
    let rig = Rig::new();
    let ops = many_tables(rig.bo(Place::System, 4096));
    let fence = rig.fence(0);
    let before = mappings();
    let group = MemoryGroup::enter();
    let directory = format!("/sys/fs/cgroup/skua-{}", std::process::id());
    let throttled = Child::start(|| {
        fs::write(directory + "/memory.high", "0").expect("memory.high");
        let held = rig.bind(rig.vm, &ops, &[wait_for_value(fence, 1)]);
        held.is_ok()
    });
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    assert!(throttled.wait(), "VM_BIND");
    let charged = group.current();
    let look = || assert_eq!(throttled_worker(), None);
    while_again(look, || {
        assert_eq!(rig.fence_signal(fence, 1), Ok(()));
        let are_bound = || (mappings() == before + 1024).then_some(());
        assert!(eventually(are_bound).is_some(), "{before}, {}", mappings());
    });
    // It was for that group.
    assert!(group.current() > charged + (4 << 20), "{charged}");
}

fn no_unbind_waits_for_who_is_throttled() {
    let rig = Rig::new();
    let ops = many_tables(rig.bo(Place::System, 4096));
    let group = MemoryGroup::enter();
    let directory = format!("/sys/fs/cgroup/skua-{}", std::process::id());
    let charged = group.current();
    let throttled = Child::start(|| {
        fs::write(directory + "/memory.high", "0").expect("memory.high");
        rig.bind(rig.vm, &ops, &[]) == Err(Errno::ENODEV)
    });
    fs::write("/sys/fs/cgroup/cgroup.procs", "0").expect("cgroup.procs");
    let begun = eventually(|| (group.current() > charged + (1 << 20)).then_some(()));
    assert!(begun.is_some(), "it binds nothing");
    let unbound = Unbound::first();
    assert!(throttled.wait(), "it went on to the end");
    drop(unbound);
}

/// Objects that others have, too, can be had and destroyed again, behind work that is held.
fn destructions_behind_held_work_are_limited() {
    let rig = Rig::new();
    let shared = rig.bo(Place::System, 4096);
    let shared = rig.export(shared).expect("PRIME_HANDLE_TO_FD");
    let fence = rig.fence(0);
    let held = rig.start_after(rig.copy, &[], &[wait_for_value(fence, 1)]);
    let held = held.expect("SUBMIT");
    let (destroyed, errno) = until_refused(|| {
        let handle = rig.import(&shared).expect("PRIME_FD_TO_HANDLE");
        rig.destroy(&[handle], 0).map(|()| handle)
    });
    assert_eq!((destroyed.len(), errno), (4096, Errno::ENOSPC));
    // What was refused has its handle still.
    let handle = rig.import(&shared).expect("PRIME_FD_TO_HANDLE");
    assert!(rig.info(handle).is_ok());
    assert_eq!(rig.fence_signal(fence, 1), Ok(()));
    assert_eq!(held.wait(), Ok(()));
    let again = || rig.destroy(&[handle], 0).ok();
    assert_eq!(eventually(again), Some(()));
}

/// How many mappings all clients have.
fn mappings() -> u64 {
    let vms = Function::first().debugfs("vms").expect("debugfs");
    let words: Vec<&str> = vms.split_whitespace().collect();
    let counts = words.windows(2).filter(|words| words[0] == "mappings");
    counts
        .map(|words| words[1].parse::<u64>().expect(&vms))
        .sum()
}

/// Each context's first job waits for good; together they fill the copy engine's ring.
fn waits_do_not_hold_up_the_drivers_own_work() {
    let attacker = Rig::new();
    let never = attacker.buffer(Place::System, 4096);
    let jobs: Vec<_> = (0..32)
        .map(|_| attacker.new_context(Engine::Copy))
        .map(|context| attacker.start_in(context, &[wait_value(never.va, 1)]))
        .collect();
    let victim = Client::new();
    for _ in 0..4 {
        let mapping = victim.map(victim.bo(Place::Vram, 64 << 10));
        // Waits until it is cleared.
        mapping.expect("new memory", |_| 0);
    }
    let ended = jobs.iter().filter(|job| job.has_ended()).count();
    assert_eq!(ended, 0, "the waits had to be cut first");
    // Nor does work that never ends.
    let hold = Hold::new(&attacker);
    let endless = attacker.start(Engine::Compute, &[hold.command()]);
    victim
        .map(victim.bo(Place::Vram, 4096))
        .expect("new memory", |_| 0);
    assert!(!endless.has_ended(), "the loop had to be cut first");
    hold.release();
    never.cpu.write(0, 1);
}

/// An object of more pieces than there is room for in a ring; of fewer on a slow kernel.
fn vram_in_thousands_of_pieces_is_cleared() {
    let wanted = u64::from(suite::rounds(1900));
    let rig = Rig::new();
    let free = |rig: &Rig| {
        let region = rig.region(Place::Vram);
        (region.size - region.used) / 4096
    };
    // Nothing is left that could be had in one piece.
    while free(&rig) > 2 * wanted + 256 {
        let pages = (free(&rig) - 2 * wanted - 256).min(256);
        let handle = rig.bo(Place::Vram, pages * 4096);
        let va = rig.bound_at_will(handle, pages * 4096);
        assert_eq!(rig.run(Engine::Copy, &[fill(!0, va, pages * 4096)]), Ok(()));
    }
    let (pieces, errno) = until_refused(|| rig.try_bo_in_free(Place::Vram, 4096));
    assert_eq!(errno, Errno::ENOSPC);
    println!("{} objects of a page", pieces.len());
    let all: Vec<_> = (0..)
        .zip(&pieces)
        .map(|(n, handle)| map(*handle, 0, (1 << 40) + n * 4096, 4096))
        .collect();
    for ops in all.chunks(1024) {
        rig.bind_and_wait(rig.vm, ops).expect("VM_BIND");
    }
    let bytes = pieces.len() as u64 * 4096;
    assert_eq!(rig.run(Engine::Copy, &[fill(!0, 1 << 40, bytes)]), Ok(()));
    rig.bind_and_wait(rig.vm, &[skua_selftests::client::unmap(1 << 40, bytes)])
        .expect("VM_BIND");
    for handle in pieces.iter().step_by(2) {
        assert_eq!(rig.close(*handle), Ok(()));
    }
    let big = suite::eventually(|| rig.try_bo_in_free(Place::Vram, wanted * 4096).ok())
        .unwrap_or_else(|| panic!("{} pages are free, and {wanted} cannot be had", free(&rig)));
    rig.map(big).expect("memory in pieces", |_| 0);
    // And the engine goes on, for this client and others.
    for engine in Engine::ALL {
        assert_eq!(Rig::new().run(engine, &[]), Ok(()), "{engine:?}");
    }
    assert!(rig.signals_within(
        rig.start(Engine::Copy, &[]).syncobj,
        0,
        Duration::from_secs(10)
    ));
}
