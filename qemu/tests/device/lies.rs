// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lies to order: each says what its table says, and the device is honest again afterwards.

use std::time::{Duration, Instant};

use skua_gpu::lie::{Lie, TABLE};
use skua_gpu::vram;
use skua_spec::address::GpuPhys;
use skua_spec::command::Command;
use skua_spec::fault::{Reason, Record};
use skua_spec::mmu::{PageSize, Target};
use skua_spec::number::EngineIndex;
use skua_spec::register::Reset;
use skua_spec::regs::{self, engine, Decoded};
use skua_spec::status::{self, Counter, EngineState};
use skua_testbed::{Gpu, ASID, COMPUTE, COPY, DATA, DATA_VA, STATUS};

/// Bits of an engine's control register.
const ENABLE: u32 = 1;
const RESET: u32 = 2;

fn lie(gpu: &Gpu, names: &[&str]) {
    let lies: Vec<Lie> = names.iter().map(|name| name.parse().unwrap()).collect();
    gpu.device.lie(&lies).unwrap();
}

fn fence(fence: u64) -> Command {
    Command::Fence {
        fence,
        interrupt: true,
    }
}

/// Runs a job and waits until the engine is done with it, whatever it says of that.
fn run(gpu: &mut Gpu, engine: EngineIndex, id: u64) {
    gpu.start(engine, &[fence(id)]);
    gpu.wait_for("the end of the ring", |gpu| {
        gpu.read(engine::STATUS.of(engine)) == EngineState::Idle as u32
            && gpu.read(engine::HEAD.of(engine)) == gpu.tail(engine)
    });
}

fn completed(gpu: &Gpu, engine: EngineIndex) -> u64 {
    gpu.engine64(engine, status::engine::COMPLETED_FENCE)
}

/// The page of the manual and the program agree on names and values.
#[test]
fn the_manual_lists_every_lie() {
    let page = include_str!("../../../Documentation/gpu/skua/lies.rst");
    let mut listed: Vec<(String, Option<u64>)> = Vec::new();
    for line in page.lines().skip_while(|line| !line.starts_with("lie ")) {
        let mut words = line.split_whitespace();
        let name = words.next().and_then(|word| word.strip_prefix("``"));
        if let Some(name) = name.and_then(|name| name.strip_suffix("``")) {
            let value = words.next().unwrap();
            let value = (value != "—").then(|| {
                let lie: Lie = format!("{name}={value}").parse().unwrap();
                lie.value
            });
            listed.push((name.to_owned(), value));
        }
    }
    let known: Vec<_> = TABLE
        .iter()
        .map(|(_, name, value, _)| ((*name).to_owned(), *value))
        .collect();
    assert_eq!(listed, known);
}

#[test]
fn registers() {
    let gpu = Gpu::new();
    let cases: [(_, u32, _); 16] = [
        ("id", regs::ID.into(), 0),
        ("version", regs::VERSION.into(), 0x2_0000),
        ("engines", regs::CAPS.into(), 8),
        ("engine-kind", engine::INFO.of(COPY), 7),
        ("mmu-caps", regs::MMU_CAPS.into(), 0),
        ("vram-size", regs::VRAM_SIZE.into(), 1 << 51),
        ("vram-base", regs::VRAM_BASE.into(), 0x800),
        ("vram-visible", regs::VRAM_VISIBLE.into(), 1 << 40),
        ("gart-base", regs::GART_BASE.into(), vram::BASE),
        ("gart-pages", regs::GART_MAX_PAGES.into(), 0),
        ("tick-hz", regs::TICK_HZ.into(), 0),
        ("aperture-caps", regs::APERTURE_CAPS.into(), 63),
        ("aperture-pages", regs::APERTURE_PAGES.into(), 1 << 20),
        ("paging-va", regs::PAGING_VA.into(), 1 << 31),
        ("scheduling", regs::SCHEDULING.into(), 4),
        ("never-ready", regs::DEVICE_STATUS.into(), 0),
    ];
    let pair = |at: u32| u64::from(gpu.read(at)) | u64::from(gpu.read(at + 4)) << 32;
    for (name, at, value) in cases {
        let honest = pair(at);
        lie(&gpu, &[name]);
        // A single register has a neighbour that is not lied about.
        assert!(
            [value, value | honest & !0xffff_ffff].contains(&pair(at)),
            "{name}: {:#x}",
            pair(at)
        );
        assert_ne!(pair(at), honest, "{name}");
        lie(&gpu, &[]);
        assert_eq!(pair(at), honest, "{name}");
    }
}

#[test]
fn fences_and_heads() {
    let mut gpu = Gpu::new();
    run(&mut gpu, COPY, 5);
    lie(&gpu, &["fence-ahead"]);
    run(&mut gpu, COPY, 6);
    assert_eq!(completed(&gpu, COPY), 1006);
    lie(&gpu, &["fence-never"]);
    run(&mut gpu, COPY, 7);
    assert_eq!(completed(&gpu, COPY), 1006);
    lie(&gpu, &["fence-back"]);
    for (id, said) in [(8, 8), (9, 7), (10, 10)] {
        run(&mut gpu, COPY, id);
        assert_eq!(completed(&gpu, COPY), said);
    }
    let head = gpu.head(COPY);
    lie(&gpu, &["head-never"]);
    run(&mut gpu, COPY, 17);
    assert_eq!((completed(&gpu, COPY), gpu.head(COPY)), (17, head));
    lie(&gpu, &["head-out"]);
    run(&mut gpu, COPY, 18);
    assert_eq!((completed(&gpu, COPY), gpu.head(COPY)), (18, 0x10_0000));
    lie(&gpu, &[]);
    gpu.wait_for("honesty", |gpu| gpu.head(COPY) == gpu.tail(COPY));
}

#[test]
fn preemptions() {
    let mut gpu = Gpu::new();
    let number = |gpu: &Gpu| gpu.preempted(COPY).number;
    let late = Duration::from_millis(100);
    run(&mut gpu, COPY, 5);
    lie(&gpu, &["preempt-late=100"]);
    let since = Instant::now();
    assert_eq!(gpu.preempt(COPY, 1).fence, 1);
    assert!(since.elapsed() >= late);
    // Of another engine, of this one.
    lie(&gpu, &["preempt-never=1"]);
    assert_eq!(gpu.preempt(COPY, 1).number, 2);
    lie(&gpu, &["preempt-never=2"]);
    gpu.ask_to_preempt(COPY, 2);
    std::thread::sleep(late);
    assert_eq!((number(&gpu), gpu.counter(Counter::Preempt)), (2, 2));
    lie(&gpu, &[]);
    gpu.wait_for("a record", |gpu| number(gpu) == 3);
    for (fence, (name, said)) in (3..).zip([
        ("preempt-completed-ahead", 1005),
        ("preempt-completed-ahead=7", 12),
        ("preempt-completed-behind=2", 3),
        ("interrupt-lost", 5),
    ]) {
        lie(&gpu, &[name]);
        let record = gpu.preempt(COPY, fence);
        assert_eq!(
            (record.completed, completed(&gpu, COPY)),
            (said, 5),
            "{name}"
        );
    }
    for (name, count) in [
        ("preempt-interrupt-lost", 0),
        ("preempt-interrupt-doubled", 2),
    ] {
        // Those before were raised when the engine has done something else.
        lie(&gpu, &[name]);
        run(&mut gpu, COPY, 5);
        let before = gpu.lines.count(1);
        gpu.preempt(COPY, 9);
        run(&mut gpu, COPY, 5);
        assert_eq!(gpu.lines.count(1), before + count + 1, "{name}");
    }
    // A reset forgets what was asked for, as that of an honest device does.
    lie(&gpu, &["preempt-never"]);
    gpu.ask_to_preempt(COPY, 10);
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    let before = number(&gpu);
    lie(&gpu, &[]);
    std::thread::sleep(late);
    assert_eq!(number(&gpu), before);
}

/// Of those that are told now, since they are.
#[test]
fn what_was_told_is_counted() {
    let mut gpu = Gpu::new();
    lie(&gpu, &["preempt-never", "fence-stays=2", "interrupt-lost"]);
    let expect = |gpu: &Gpu, counts| {
        let names = ["preempt-never", "fence-stays", "interrupt-lost"];
        let expected: Vec<(&str, u64)> = names.into_iter().zip(counts).collect();
        assert_eq!(gpu.device.told(), expected);
    };
    expect(&gpu, [0, 0, 0]);
    gpu.ask_to_preempt(COPY, 1);
    expect(&gpu, [1, 0, 0]);
    run(&mut gpu, COPY, 5);
    expect(&gpu, [1, 1, 1]);
    run(&mut gpu, COPY, 6);
    expect(&gpu, [1, 2, 2]);
    lie(&gpu, &[]);
    gpu.wait_for("an answer", |gpu| gpu.preempted(COPY).number == 1);
    lie(&gpu, &["preempt-interrupt-doubled", "preempt-late=1"]);
    gpu.preempt(COPY, 2);
    let told = gpu.device.told();
    assert_eq!(
        told,
        [("preempt-interrupt-doubled", 1), ("preempt-late", 1)]
    );
    lie(&gpu, &[]);
    assert_eq!(gpu.device.told(), []);
}

#[test]
fn ends_that_are_late() {
    let mut gpu = Gpu::new();
    let late = Duration::from_millis(100);
    lie(&gpu, &["end-late=100"]);
    let since = Instant::now();
    run(&mut gpu, COPY, 5);
    gpu.wait_for("an end", |gpu| completed(gpu, COPY) == 5);
    assert!(since.elapsed() >= late);
    let since = Instant::now();
    assert_eq!(gpu.preempt(COPY, 1).fence, 1);
    assert!(since.elapsed() >= late);
    assert_eq!(gpu.device.told(), [("end-late", 2)]);
}

#[test]
fn time_that_creeps() {
    let mut gpu = Gpu::new();
    let ticks = gpu.ticks(COPY);
    lie(&gpu, &["ticks-creep"]);
    run(&mut gpu, COPY, 5);
    gpu.wait_for("ticks", |gpu| gpu.ticks(COPY) >= ticks + 3);
    assert_eq!((completed(&gpu, COPY), gpu.head(COPY)), (0, 0));
    lie(&gpu, &[]);
    gpu.wait_for("honesty", |gpu| completed(gpu, COPY) == 5);
}

#[test]
fn acknowledgements() {
    let mut gpu = Gpu::new();
    let late = Duration::from_millis(100);
    let invalidated = |gpu: &Gpu| gpu.engine32(COPY, status::engine::INVALIDATE_ACK);
    let reset = |gpu: &Gpu| gpu.engine32(COPY, status::engine::RESET_ACK);
    let snapshot = |gpu: &Gpu| gpu.system32(STATUS + status::SNAPSHOT_ACK);
    type Field = fn(&Gpu) -> u32;
    let fields: [(&str, Field, u32, u32); 3] = [
        ("invalidate", invalidated, regs::INVALIDATE.into(), 1 << 31),
        ("reset", reset, engine::CTRL.of(COPY), RESET),
        ("snapshot", snapshot, regs::SNAPSHOT.into(), 1),
    ];
    for (name, field, register, value) in fields {
        let before = field(&gpu);
        lie(&gpu, &[&format!("{name}-ack-late=100")]);
        let since = Instant::now();
        gpu.write(register, value);
        gpu.wait_for(name, |gpu| field(gpu) == before + 1);
        assert!(since.elapsed() >= late, "{name}");
        lie(&gpu, &[&format!("{name}-ack-never")]);
        gpu.write(register, value);
        std::thread::sleep(late);
        assert_eq!(field(&gpu), before + 1, "{name}");
        lie(&gpu, &[]);
        gpu.wait_for(name, |gpu| field(gpu) == before + 2);
    }
    for (name, field, register, value, ahead) in [
        (
            "invalidate-ack-ahead",
            fields[0].1,
            fields[0].2,
            fields[0].3,
            1000,
        ),
        ("reset-ack-ahead", fields[1].1, fields[1].2, fields[1].3, 5),
    ] {
        let before = field(&gpu);
        lie(&gpu, &[name]);
        gpu.write(register, value);
        gpu.wait_for(name, |gpu| field(gpu) == before + 1 + ahead);
        lie(&gpu, &[]);
        gpu.wait_for(name, |gpu| field(gpu) == before + 1);
    }
    gpu.start_engine(COPY);
}

/// An engine that is told to stop and does not goes on writing, and stops with the lie.
#[test]
fn invalidations_of_another_address_space() {
    let mut gpu = Gpu::new();
    let va = DATA_VA + 0x10_0000;
    let place = |page: u64| Target::Vram(GpuPhys(vram::BASE + DATA + page * 0x1000));
    let signal = |value| Command::Signal { address: va, value };
    gpu.map_page(va, place(1), PageSize::Size4K, true);
    gpu.run_buffer(COMPUTE, &[signal(1)]);
    gpu.map_page(va, place(2), PageSize::Size4K, true);
    lie(&gpu, &["invalidate-other"]);
    // By the CPU, and by another engine.
    gpu.invalidate(Some(ASID));
    gpu.run(COPY, &[Command::Invalidate { asid: Some(ASID) }]);
    gpu.run_buffer(COMPUTE, &[signal(2)]);
    assert_eq!(gpu.vram64(DATA + 0x1000), 2);
    // All means all, and the system's its own.
    gpu.invalidate(None);
    gpu.run_buffer(COMPUTE, &[signal(3)]);
    assert_eq!(gpu.vram64(DATA + 0x2000), 3);
}

#[test]
fn resets_that_do_not_begin() {
    for (name, register, value) in [
        ("engine-reset", engine::CTRL.of(COMPUTE), RESET),
        ("adapter-reset", regs::DEVICE_CTRL.into(), 1),
    ] {
        for (end, late) in [
            ("late=50", Some(Duration::from_millis(50))),
            ("never", None),
        ] {
            let mut gpu = Gpu::new();
            let source = format!(
                "mov r2, {}\n mov r3, {}\nagain: add r4, r4, 1\n st.32 [r2], r4\n bra again",
                DATA_VA as u32,
                DATA_VA >> 32
            );
            let program = skua_asm::assemble(&source).unwrap();
            gpu.set_vram(DATA + 0x1000, &program.bytes());
            let dispatch = program.dispatch(DATA_VA + 0x1000, [1; 3], |_| None);
            let (exec, _) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch.unwrap())]);
            lie(&gpu, &[&format!("{name}-{end}")]);
            gpu.start(COMPUTE, &[exec]);
            gpu.wait_for("work", |gpu| gpu.vram32(DATA) != 0);
            gpu.wait_state(COMPUTE, EngineState::Running);
            let since = Instant::now();
            gpu.write(register, value);
            if late.is_none() {
                let seen = gpu.vram32(DATA);
                gpu.wait_for("more work", |gpu| gpu.vram32(DATA) != seen);
                lie(&gpu, &[]);
            }
            gpu.wait_for("the end", |gpu| {
                gpu.device.is_ready()
                    && gpu.read(engine::STATUS.of(COMPUTE)) == EngineState::Disabled as u32
            });
            assert!(late.is_none_or(|late| since.elapsed() >= late), "{name}");
            let seen = gpu.vram32(DATA);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(gpu.vram32(DATA), seen, "{name}-{end}");
        }
    }
}

#[test]
fn faults() {
    let gpu = Gpu::new();
    lie(&gpu, &["fault-flood"]);
    // As many as there is room for, then as many as are read.
    gpu.wait_for("a full ring", |gpu| gpu.fault_put() == 32);
    // There is no catching up with it.
    gpu.write(regs::FAULT_GET, 20);
    assert_eq!(gpu.fault_put(), 52);
    lie(&gpu, &[]);
    for (name, sense, count) in [
        ("fault-stale", true, 1),
        ("fault-nobody", true, 1),
        ("fault-garbage", false, 1),
        ("fault-ahead", false, 1000),
    ] {
        let mut gpu = Gpu::new();
        gpu.write(engine::CTRL.of(COPY), RESET);
        gpu.wait_for("a reset", |gpu| {
            gpu.engine32(COPY, status::engine::RESET_ACK) == 1
        });
        // A ring that cannot be is a true fault.
        gpu.write(engine::RING_SIZE.of(COPY), 1);
        gpu.write(engine::CTRL.of(COPY), ENABLE);
        assert_eq!(gpu.wait_fault().reason, Reason::BadRing);
        lie(&gpu, &[name]);
        gpu.wait_for(name, |gpu| gpu.fault_put() > count);
        lie(&gpu, &[]);
        let record = gpu.fault(1).filter(|(_, number)| *number == 1);
        assert_eq!(record.is_some(), sense, "{name}: {record:?}");
        if name == "fault-stale" {
            assert_eq!(record.unwrap().0.reason, Reason::BadRing);
        }
    }
}

#[test]
fn reasons() {
    let mut gpu = Gpu::new();
    let fault = |gpu: &mut Gpu, resets: u32| {
        gpu.write(engine::CTRL.of(COPY), RESET);
        gpu.wait_for("a reset", |gpu| {
            gpu.engine32(COPY, status::engine::RESET_ACK) == resets
        });
        gpu.write(engine::RING_SIZE.of(COPY), 1);
        gpu.write(engine::CTRL.of(COPY), ENABLE);
        gpu.wait_fault()
    };
    let honest = fault(&mut gpu, 1);
    assert_eq!(honest.reason, Reason::BadRing);
    for (resets, name, reason) in [
        (2, "fault-reason", Reason::BusError),
        (3, "fault-reason=18", Reason::Trap),
    ] {
        lie(&gpu, &[name]);
        let expected = Record { reason, ..honest };
        assert_eq!(fault(&mut gpu, resets), expected, "{name}");
    }
    lie(&gpu, &[]);
    assert_eq!(fault(&mut gpu, 4), honest);
}

#[test]
fn interrupts() {
    let mut gpu = Gpu::new();
    for (name, count) in [("interrupt-lost", 0), ("interrupt-doubled", 2)] {
        let before = gpu.lines.count(1);
        lie(&gpu, &[name]);
        run(&mut gpu, COPY, 5);
        assert_eq!(gpu.lines.count(1), before + count, "{name}");
    }
    lie(&gpu, &["interrupt-storm"]);
    for vector in 0..3 {
        gpu.wait_for("a storm", |gpu| gpu.lines.count(vector) > 100);
    }
}

#[test]
fn memory() {
    let gpu = Gpu::new();
    lie(&gpu, &["status-scribble"]);
    let unused = STATUS + 0x3f8;
    gpu.wait_for("scribbles", |gpu| gpu.system64(unused) != 0);
    lie(&gpu, &["status-stays"]);
    gpu.write(regs::STATUS_CTRL, 0);
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.device.is_ready());
    gpu.set_system64(STATUS + status::COUNTERS, 0);
    gpu.wait_for("a page that stays on", |gpu| {
        gpu.system64(STATUS + status::COUNTERS) != 0
    });
    lie(&gpu, &[]);
    gpu.write(regs::SNAPSHOT, 1);
    // What was begun may be written once more.
    gpu.wait_for("a page that is off", |gpu| {
        gpu.set_system64(STATUS + status::COUNTERS, 0);
        std::thread::sleep(Duration::from_millis(20));
        gpu.system64(STATUS + status::COUNTERS) == 0
    });

    let mut gpu = Gpu::new();
    lie(&gpu, &["ring-scribble"]);
    gpu.wait_for("an overwritten ring", |gpu| {
        gpu.vram64(gpu.ring_at(COPY) + 0x800) == u64::MAX
    });
    gpu.doorbell(COPY);
    gpu.start(COPY, &[Command::Nop { words: 2 }]);
    gpu.wait_for("what came of it", |gpu| {
        gpu.counter(Counter::Fault) == 1 || gpu.head(COPY) == 8
    });
}

/// All registers have their reset values while the engines have not come to the reset.
#[test]
fn registers_of_engines_that_are_not_reset_yet() {
    let mut gpu = Gpu::new();
    gpu.run_buffer(COPY, &[]);
    gpu.wait_idle(COPY);
    lie(&gpu, &["adapter-reset-never"]);
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    assert!(!gpu.device.is_ready());
    for register in Decoded::all(2) {
        let reset = register.info().reset;
        if let (Decoded::Engine(..), Reset::Value(value)) = (register, reset) {
            assert_eq!(gpu.register(register), value, "{register:?}");
        }
    }
    lie(&gpu, &[]);
    gpu.wait_for("READY", |gpu| gpu.device.is_ready());
}

/// A ring that is no engine's is a page of anybody's: one that ENABLE was not heeded for, or that
/// cannot be one, and one whose engine was reset.
#[test]
fn rings_that_are_not_enabled_are_left_alone() {
    let mut gpu = Gpu::new();
    let enable = |gpu: &Gpu, at, size| {
        let base = GpuPhys(vram::BASE + at);
        gpu.set_engine(COPY, engine::RING_BASE::new().with_address(base));
        gpu.set_engine(COPY, engine::RING_SIZE::new().with_bytes(size));
        gpu.set_engine(COPY, engine::CTRL::new().with_enable(true));
    };
    let scribbled = |gpu: &Gpu, at| gpu.vram64(at) == u64::MAX;
    let places = [DATA, DATA + 0x1000, gpu.ring_at(COPY)];
    places.iter().for_each(|at| gpu.set_vram64(*at, 1));
    // It is enabled already.
    enable(&gpu, DATA, 0x1000);
    gpu.reset_engine(COPY);
    enable(&gpu, DATA + 0x1000, 0x1800);
    assert_eq!(gpu.wait_fault().reason, Reason::BadRing);
    lie(&gpu, &["ring-scribble"]);
    // The other one's is overwritten again and again.
    for _ in 0..3 {
        gpu.set_vram64(gpu.ring_at(COMPUTE), 0);
        gpu.wait_for("an overwritten ring", |gpu| {
            scribbled(gpu, gpu.ring_at(COMPUTE))
        });
    }
    for at in places {
        assert!(!scribbled(&gpu, at), "{at:#x}");
    }
    gpu.reset_engine(COMPUTE);
    gpu.set_vram64(gpu.ring_at(COMPUTE), 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!scribbled(&gpu, gpu.ring_at(COMPUTE)));
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.device.is_ready());
    gpu.set_up();
    gpu.wait_for("an overwritten ring", |gpu| {
        scribbled(gpu, gpu.ring_at(COMPUTE))
    });
}
