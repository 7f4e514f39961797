// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The vfio-user server, as a client such as QEMU sees it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command as Process};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use skua_spec::address::{BusAddr, VramOffset};
use skua_spec::aperture::Entry;
use skua_spec::command::Command;
use skua_spec::config::{Config, PowerState, COMMAND, DEVICE_CONTROL, POWER_CONTROL};
use skua_spec::layout::half;
use skua_spec::number::EngineIndex;
use skua_spec::pci::{BAR_HOST_APERTURE, BAR_VRAM};
use skua_spec::preemption::{Cause, Level, Record};
use skua_spec::register::{Location, Readable, Writable};
use skua_spec::regs::{self, engine};
use skua_spec::status::{self, Counter, EngineState};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Longer than anything takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of VRAM of these tests.
const VRAM: usize = 4 << 20;
/// Bus address and bytes of system memory.
const BUS: u64 = 0x8000_0000;
const SYSTEM: usize = 16 << 20;

/// The engine that the tests use.
const COPY: EngineIndex = EngineIndex::ALL[1];

struct Server {
    child: Child,
    /// What it says, which is nothing as long as no request is answered with an error.
    log: PathBuf,
    client: Client,
    vram: MmapRegion,
    file: File,
    system: MmapRegion,
}

fn start(name: &str) -> Server {
    start_with(name, &[])
}

/// A server with more options, which are about VRAM.
fn start_with(name: &str, options: &[&str]) -> Server {
    let socket =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let log = socket.with_extension("log");
    let child = Process::new(env!("CARGO_BIN_EXE_skua-gpu"))
        .arg("--socket")
        .arg(&socket)
        .args(["--vram-size", "4M"])
        .args(if options.contains(&"--log") {
            [].iter()
        } else {
            ["--log", "error"].iter()
        })
        .args(options)
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let client = loop {
        match Client::new(&socket) {
            Ok(client) => break client,
            Err(error) => assert!(since.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let vram = map_bar(&client, BAR_VRAM);
    let expected = if options.is_empty() {
        Some(VRAM)
    } else {
        vram.as_ref().map(MmapRegion::size)
    };
    assert_eq!(vram.as_ref().map(MmapRegion::size), expected);
    // Where BAR2 is not memory, the test does not use it.
    let vram = vram.unwrap_or_else(|| MmapRegion::new(0x1000).unwrap());
    let file = File::from(memfd_create("system", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(SYSTEM as u64).unwrap();
    let system =
        MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), SYSTEM).unwrap();
    Server {
        child,
        log,
        client,
        vram,
        file,
        system,
    }
}

/// Maps a BAR as QEMU does: all of it, if it is memory.
fn map_bar(client: &Client, bar: u32) -> Option<MmapRegion> {
    let region = client.region(bar)?;
    let [area] = region.sparse_areas[..] else {
        assert!(region.sparse_areas.is_empty() && region.file_offset.is_none());
        return None;
    };
    assert_eq!((area.offset, area.size), (0, region.size));
    let file = region.file_offset.as_ref()?.file().try_clone().unwrap();
    let file = FileOffset::new(file, 0);
    Some(MmapRegion::from_file(file, region.size as usize).unwrap())
}

impl Server {
    fn read(&mut self, offset: u32) -> u32 {
        let mut data = [0; 4];
        self.client
            .region_read(0, offset.into(), &mut data)
            .unwrap();
        u32::from_le_bytes(data)
    }

    fn write(&mut self, offset: u32, value: u32) {
        let data = value.to_le_bytes();
        self.client.region_write(0, offset.into(), &data).unwrap();
    }

    fn get<R: Readable<Block = regs::Device>>(&mut self, _: Location<R>) -> R {
        R::read(regs::Device, |offset| self.read(offset))
    }

    fn engine<R: Readable<Block = EngineIndex>>(&mut self, _: Location<R>) -> R {
        R::read(COPY, |offset| self.read(offset))
    }

    fn set<R: Writable<Block = regs::Device>>(&mut self, value: R) {
        value.write(regs::Device, |offset, word| self.write(offset, word));
    }

    /// Writes a register of the copy engine.
    fn set_engine<R: Writable<Block = EngineIndex>>(&mut self, value: R) {
        value.write(COPY, |offset, word| self.write(offset, word));
    }

    /// Writes a register of the configuration space.
    fn configure<R: Writable<Block = Config>>(&mut self, value: R) {
        let region = VFIO_PCI_CONFIG_REGION_INDEX;
        value.write(Config, |offset, word| {
            let data = word.to_le_bytes();
            let written = self.client.region_write(region, offset.into(), &data);
            written.unwrap();
        });
    }

    fn sleep_state(&mut self, state: PowerState) {
        self.configure(POWER_CONTROL::new().with_state(state));
    }

    fn status64(&self, field: u64) -> u64 {
        self.system.get_ref::<u64>(field as usize).unwrap().load()
    }

    fn status32(&self, field: u64) -> u32 {
        half(field).of(self.status64(field / 8 * 8))
    }

    fn wait(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let since = Instant::now();
        while !condition(self) {
            assert!(since.elapsed() < LIMIT, "{what} does not come");
            std::thread::yield_now();
        }
    }

    /// Bus mastering, status page, and a ring at the start of VRAM for the copy engine.
    fn set_up(&mut self) {
        self.configure(COMMAND::new().with_memory(true).with_master(true));
        self.set(regs::STATUS::new().with_address(BusAddr(BUS)));
        self.set(regs::STATUS_CTRL::new().with_enable(true));
        let base = self.get(regs::VRAM_BASE).address();
        self.set_engine(engine::RING_BASE::new().with_address(base));
        self.set_engine(engine::RING_SIZE::new().with_bytes(0x1000));
        self.set_engine(engine::CTRL::new().with_enable(true));
    }

    /// Puts a command at the start of the ring.
    fn run(&mut self, command: Command) {
        let encoded = command.encode();
        let words = encoded.words();
        for (i, word) in words.iter().enumerate() {
            self.vram.get_ref::<u32>(i * 4).unwrap().store(*word);
        }
        self.set_engine(engine::DOORBELL::new().with_tail(words.len() as u32 * 4));
    }

    fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).unwrap().count()
    }

    /// Mappings of the memory that the client gave it.
    fn mappings(&self) -> usize {
        let path = format!("/proc/{}/maps", self.child.id());
        let maps = std::fs::read_to_string(path).unwrap();
        let system = |line: &&str| line.contains("/memfd:system");
        maps.lines().filter(system).count()
    }

    /// The server ends with its connection, and well.
    fn end(mut self) {
        self.client.shutdown().unwrap();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(&self.log).unwrap(), "");
        std::fs::remove_file(&self.log).unwrap();
    }
}

fn is_raised(fd: &OwnedFd, time: i64) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let time = Timespec {
        tv_sec: time,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&time)).unwrap() == 1
}

#[test]
fn a_fence_and_its_interrupt() {
    let mut server = start("fence");
    assert_eq!(server.get(regs::ID), regs::ID::SKUA);
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    let events: Vec<OwnedFd> = (0..3)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap())
        .collect();
    let raw: Vec<_> = events.iter().map(AsRawFd::as_raw_fd).collect();
    let eventfds = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let msix = VFIO_PCI_MSIX_IRQ_INDEX;
    server.client.set_irqs(msix, eventfds, 0, 3, &raw).unwrap();
    server.set_up();
    server.run(Command::Fence {
        fence: 0x1234,
        interrupt: true,
    });
    assert!(is_raised(&events[1], 20));
    assert!(!is_raised(&events[0], 0) && !is_raised(&events[2], 0));
    let completed = status::of_engine(COPY, status::engine::COMPLETED_FENCE);
    assert_eq!(server.status64(completed), 0x1234);
    // All vectors are taken away: an interrupt is lost, the fence is not.
    rustix::io::read(&events[1], &mut [0; 8]).unwrap();
    let none = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    server.client.set_irqs(msix, none, 0, 0, &[]).unwrap();
    server.set_engine(engine::CTRL::new().with_reset(true));
    server.wait("the reset", |s| {
        s.status32(status::of_engine(COPY, status::engine::RESET_ACK)) == 1
    });
    server.set_up();
    server.run(Command::Fence {
        fence: 0x5678,
        interrupt: true,
    });
    server.wait("the fence", |s| s.status64(completed) == 0x5678);
    assert!(!is_raised(&events[1], 0));
    server.end();
}

/// The engines' one thread is woken by doorbells and resets, and the record has times of the clock.
#[test]
fn engines_that_work_by_the_clock() {
    let record = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("deterministic.events");
    let path = record.to_str().unwrap();
    let mut server = start_with("deterministic", &["--deterministic", "--events", path]);
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    let completed = status::of_engine(COPY, status::engine::COMPLETED_FENCE);
    for round in 1..=3 {
        server.set_up();
        server.run(Command::Fence {
            fence: round,
            interrupt: false,
        });
        server.wait("the fence", |s| s.status64(completed) == round);
        server.set_engine(engine::CTRL::new().with_reset(true));
        server.wait("the reset", |s| {
            u64::from(s.status32(status::of_engine(COPY, status::engine::RESET_ACK))) == round
        });
    }
    server.end();
    let mut expected = "# skua-events 1 engines=compute,copy,copy\n".to_owned();
    for n in 1..=3 {
        expected += &format!("{n} 1 {n} fence packet={n}\n{n} 1 {n} reset packet=0\n");
    }
    assert_eq!(std::fs::read_to_string(&record).unwrap(), expected);
}

#[test]
fn memory_in_single_pages_takes_one_mapping_and_no_descriptor() {
    let mut server = start("pages");
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, 0x1000, fd).unwrap();
    let (descriptors, mappings) = (server.descriptors(), server.mappings());
    // As behind an IOMMU: each page by itself, in another order than in the file.
    let pages = SYSTEM as u64 / 0x1000 - 1;
    for i in 0..pages {
        let (offset, address) = ((pages - i) * 0x1000, BUS + 0x1_0000_0000 + i * 0x1000);
        server.client.dma_map(offset, address, 0x1000, fd).unwrap();
    }
    assert_eq!(server.descriptors(), descriptors);
    assert_eq!(server.mappings(), mappings);
    // And it is the right memory: an entry of the GART in one page, its target in another.
    server.set_up();
    let entry = skua_spec::mmu::Entry::gart(BusAddr(BUS + 0x1_0000_0000), true, true);
    let table = SYSTEM - 2 * 0x1000;
    server.system.get_ref::<u64>(table).unwrap().store(entry.0);
    server.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + 0x1_0000_1000)));
    server.set(regs::GART_PAGES::new().with_pages(1));
    let gart = server.get(regs::GART_BASE).address().0;
    server.run(Command::Signal {
        address: gart + 8,
        value: 0x77,
    });
    let target = SYSTEM - 0x1000 + 8;
    server.wait("the signal", |s| {
        s.system.get_ref::<u64>(target).unwrap().load() == 0x77
    });
    for i in 0..pages {
        let address = BUS + 0x1_0000_0000 + i * 0x1000;
        server.client.dma_unmap(address, 0x1000).unwrap();
    }
    server.end();
}

#[test]
fn resets_of_the_function() {
    let ways: [fn(&mut Server); 3] = [
        |server| server.client.reset().unwrap(),
        // FLR.
        |server| server.configure(DEVICE_CONTROL::new().with_flr(true)),
        // To D3hot and back.
        |server| {
            server.sleep_state(PowerState::D3hot);
            server.sleep_state(PowerState::D0);
        },
    ];
    let mut server = start("resets");
    let fd = server.file.as_raw_fd();
    for reset in ways {
        server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
        server.set_up();
        server.set(regs::SCRATCH::new().with_value(5));
        server.run(Command::Nop { words: 2 });
        reset(&mut server);
        let since = Instant::now();
        while !server.get(regs::DEVICE_STATUS).ready() {
            assert!(since.elapsed() < LIMIT);
        }
        assert_eq!(server.get(regs::SCRATCH).value(), 0);
        assert_eq!(server.read(engine::CTRL.of(COPY)), 0);
        let mut command = [0; 4];
        let (region, at) = (VFIO_PCI_CONFIG_REGION_INDEX, COMMAND.of(Config).into());
        let read = server.client.region_read(region, at, &mut command);
        read.unwrap();
        let command = COMMAND::from_bits(u32::from_le_bytes(command).into());
        assert!(!command.memory() && !command.master());
        server.client.dma_unmap(BUS, SYSTEM as u64).unwrap();
    }
    server.end();
}

/// What cannot be mapped is a bus error when it is used, and not the end of the connection.
#[test]
fn ranges_that_cannot_be_mapped() {
    let mut server = start("unmappable");
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("read-only-{}", std::process::id()));
    std::fs::write(&path, vec![7; 0x2000]).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let short = File::from(memfd_create("short", MemfdFlags::CLOEXEC).unwrap());
    short.set_len(0x1000).unwrap();
    let place = BUS + 0x1_0000_0000;
    // Longer than its file; to be written, but open for reading only; over what is there.
    for (address, size, fd) in [
        (place, 0x2000, short.as_raw_fd()),
        (place, 0x2000, file.as_raw_fd()),
        (BUS, 0x1000, fd),
    ] {
        server.client.dma_map(0, address, size, fd).unwrap();
    }
    server.set_up();
    assert_eq!(server.get(regs::ID), regs::ID::SKUA);
    let entry = skua_spec::mmu::Entry::gart(BusAddr(place), true, true);
    server.system.get_ref::<u64>(0x1000).unwrap().store(entry.0);
    server.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + 0x1000)));
    server.set(regs::GART_PAGES::new().with_pages(1));
    let gart = server.get(regs::GART_BASE).address().0;
    server.run(Command::Signal {
        address: gart,
        value: 1,
    });
    server.wait("the fault", |s| s.status32(status::FAULT_PUT) == 1);
    let reason = server.status32(status::FAULTS + skua_spec::fault::Record::REASON);
    assert_eq!(reason, skua_spec::fault::Reason::BusError as u32);
    server.end();
}

/// Behind an IOMMU a guest has as many ranges refused as it likes: the log grows ever more slowly.
#[test]
fn a_guest_does_not_fill_the_log() {
    let mut server = start_with("refused", &["--log", "warn"]);
    let fd = server.file.as_raw_fd();
    for _ in 0..1025 {
        server.client.dma_map(0, BUS, 0x1000, fd).unwrap();
    }
    server.client.shutdown().unwrap();
    assert!(server.child.wait().unwrap().success());
    let log = std::fs::read_to_string(&server.log).unwrap();
    std::fs::remove_file(&server.log).unwrap();
    let told = log.lines().filter(|line| line.contains("not mapped"));
    // The first, and then as often as their number has doubled.
    assert_eq!(told.count(), 11, "{log}");
}

/// A debugger, or a host under load, may stop the server for long: nobody on its side gives up.
#[test]
fn a_stopped_server_goes_on() {
    use rustix::process::{kill_process, Pid, Signal};
    let mut server = start("stopped");
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    server.set_up();
    let flag = 0x2000;
    let gart = server.get(regs::GART_BASE).address().0;
    let entry = skua_spec::mmu::Entry::gart(BusAddr(BUS + 0x2000), true, true);
    server.system.get_ref::<u64>(0x1000).unwrap().store(entry.0);
    server.set(regs::GART_TABLE::new().with_address(BusAddr(BUS + 0x1000)));
    server.set(regs::GART_PAGES::new().with_pages(1));
    // Longer than QEMU's own patience is by default, and in the middle of a command.
    server.run(Command::Wait {
        address: gart,
        value: 1,
    });
    let [head, state] =
        [status::engine::HEAD, status::engine::STATE].map(|field| status::of_engine(COPY, field));
    server.wait("WAIT", |s| s.status32(state) == EngineState::Waiting as u32);
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(7));
    server.system.get_ref::<u64>(flag).unwrap().store(1);
    kill_process(pid, Signal::CONT).unwrap();
    server.wait("the end of WAIT", |s| {
        s.status32(state) == EngineState::Idle as u32 && s.status32(head) == 24
    });
    assert_eq!(server.get(regs::ID), regs::ID::SKUA);
    server.end();
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let socket =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("stale-{}", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let server = || {
        Process::new(env!("CARGO_BIN_EXE_skua-gpu"))
            .arg("--socket")
            .arg(&socket)
            .args(["--vram-size", "2M"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut first = server();
    let since = Instant::now();
    let client = loop {
        match Client::new(&socket) {
            Ok(client) => break client,
            Err(error) => assert!(since.elapsed() < LIMIT, "{error}"),
        }
    };
    assert!(!server().wait().unwrap().success());
    client.shutdown().unwrap();
    assert!(first.wait().unwrap().success());
}

/// Bytes of a BAR, and whether it is memory.
fn bar(server: &Server, bar: u32) -> (u64, bool) {
    let size = server.client.region(bar).map_or(0, |region| region.size);
    (size, map_bar(&server.client, bar).is_some())
}

/// Flushes a page of the aperture and returns the acknowledgement.
fn flush(server: &mut Server, first: u16, offset: Option<u64>) -> u32 {
    const TABLE: u64 = 0x1000;
    let entry = offset.map_or(Entry::NONE, |offset| Entry::page(VramOffset(offset)));
    let at = TABLE + u64::from(first) * Entry::SIZE;
    let slot = server.system.get_ref::<u64>(at as usize).unwrap();
    slot.store(entry.0);
    server.set(regs::APERTURE_TABLE::new().with_address(BusAddr(BUS + TABLE)));
    let flush = regs::APERTURE_FLUSH::new().with_first(first);
    server.set(flush.with_count(1));
    // A read pushes it.
    server.get(regs::ID);
    server.status32(status::APERTURE_ACK)
}

fn counter(server: &mut Server, counter: Counter) -> u64 {
    server.set(regs::SNAPSHOT::new());
    server.get(regs::ID);
    server.status64(status::counter(counter as u32))
}

#[test]
fn an_aperture_in_memory() {
    let options = [
        "--vram-visible",
        "1M",
        "--aperture",
        "1M",
        "--paging-va",
        "3",
        "--gart-pages",
        "300",
    ];
    let mut server = start_with("aperture", &options);
    assert_eq!(bar(&server, BAR_VRAM), (1 << 20, true));
    assert_eq!(bar(&server, BAR_HOST_APERTURE), (1 << 20, true));
    assert_eq!(server.get(regs::VRAM_VISIBLE).bytes(), 1 << 20);
    assert_eq!(server.get(regs::APERTURE_PAGES).pages(), 256);
    assert_eq!(server.get(regs::PAGING_VA).megabytes(), 3);
    assert_eq!(server.get(regs::GART_MAX_PAGES).pages(), 300);
    let aperture = map_bar(&server.client, BAR_HOST_APERTURE).unwrap();
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    server.set_up();
    let word = |at: usize| aperture.get_ref::<u64>(at).unwrap();
    assert_eq!(word(0xf_fff8).load(), u64::MAX);
    // The CPU writes what the engine copies, and sees what it fills.
    assert_eq!(flush(&mut server, 3, Some(0x20_0000)), 1);
    word(0x3008).store(0x1234_5678);
    let base = server.get(regs::VRAM_BASE).address().0;
    server.run(Command::Copy {
        source: base + 0x20_0008,
        destination: base + 0x20_0010,
        bytes: 8,
    });
    server.wait("the copy", |_| word(0x3010).load() == 0x1234_5678);
    // Hidden, moved to another page, and back: the bytes come along.
    assert_eq!(flush(&mut server, 3, None), 2);
    assert_eq!(
        (word(0x3008).load(), word(0x3010).load()),
        (u64::MAX, u64::MAX)
    );
    assert_eq!(flush(&mut server, 255, Some(0x20_0000)), 3);
    assert_eq!(word(0xf_f010).load(), 0x1234_5678);
    // What is written to a page that shows nothing goes nowhere, and is found.
    word(0x3008).store(7);
    assert_eq!(counter(&mut server, Counter::ApertureUnmapped), 0);
    assert_eq!(flush(&mut server, 3, None), 4);
    assert_eq!(word(0x3008).load(), u64::MAX);
    assert_eq!(counter(&mut server, Counter::ApertureUnmapped), 1);
    word(0x3008).store(7);
    assert_eq!(flush(&mut server, 3, Some(0x20_1000)), 5);
    assert_eq!(word(0x3008).load(), 0xa5a5_a5a5_a5a5_a5a5);
    assert_eq!(counter(&mut server, Counter::ApertureUnmapped), 2);
    assert_eq!(counter(&mut server, Counter::ApertureRead), 0);
    // A reset hides and loses all of it.
    server.client.reset().unwrap();
    let since = Instant::now();
    while !server.get(regs::DEVICE_STATUS).ready() {
        assert!(since.elapsed() < LIMIT);
    }
    assert_eq!(
        (word(0x3008).load(), word(0xf_f010).load()),
        (u64::MAX, u64::MAX)
    );
    server.end();
}

#[test]
fn strict_bars() {
    let options = [
        "--vram-visible",
        "2M",
        "--aperture",
        "256K",
        "--aperture-page",
        "64K",
    ];
    let mut server = start_with("strict", &[&options[..], &["--strict"]].concat());
    assert_eq!(bar(&server, BAR_VRAM), (2 << 20, false));
    assert_eq!(bar(&server, BAR_HOST_APERTURE), (256 << 10, false));
    assert_eq!(server.get(regs::APERTURE_CAPS).page_shift(), 16);
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    server.set_up();
    let mut data = [0; 8];
    server.client.region_write(BAR_VRAM, 8, &[1, 2]).unwrap();
    server.client.region_read(BAR_VRAM, 6, &mut data).unwrap();
    assert_eq!(data, [0xa5, 0xa5, 1, 2, 0xa5, 0xa5, 0xa5, 0xa5]);
    assert_eq!(flush(&mut server, 2, Some(0x20_0000)), 1);
    let bar = BAR_HOST_APERTURE;
    server.client.region_write(bar, 0x2_0000, &[5; 8]).unwrap();
    server.client.region_read(bar, 0x1_fffc, &mut data).unwrap();
    assert_eq!(data, [0xff, 0xff, 0xff, 0xff, 5, 5, 5, 5]);
    server.client.region_write(bar, 0x3_0000, &[5; 8]).unwrap();
    for (what, count) in [
        (Counter::VramBarRead, 1),
        (Counter::VramBarWrite, 1),
        (Counter::ApertureRead, 1),
        (Counter::ApertureWrite, 2),
        (Counter::ApertureUnmapped, 2),
        (Counter::ApertureFlush, 1),
    ] {
        assert_eq!(counter(&mut server, what), count, "{what:?}");
    }
    // Asleep, nothing is seen.
    server.sleep_state(PowerState::D3hot);
    server.client.region_write(bar, 0x2_0000, &[6; 8]).unwrap();
    server.client.region_read(bar, 0x2_0000, &mut data).unwrap();
    assert_eq!(data, [0xff; 8]);
    server.end();
}

#[test]
fn vram_of_which_nothing_is_visible() {
    let mut server = start_with("hidden", &["--vram-visible", "0"]);
    assert_eq!(bar(&server, BAR_VRAM), (0, false));
    assert_eq!(bar(&server, BAR_HOST_APERTURE), (0, false));
    assert_eq!(server.get(regs::VRAM_VISIBLE).bytes(), 0);
    assert_eq!(server.get(regs::VRAM_SIZE).bytes(), 4 << 20);
    server.end();
}

/// What the options say of preemption is in the registers, and a request has its record and
/// interrupt.
#[test]
fn a_preemption() {
    let mut server = start("preempt");
    let info = server.engine(engine::INFO);
    assert_eq!(info.compute(), Some(Level::Instruction));
    server.end();
    let levels = [
        "--preempt-compute",
        "thread-group",
        "--preempt-graphics",
        "pixel",
    ];
    let mut server = start_with("preempt-levels", &[&levels[..], &["--save-full"]].concat());
    let info = server.engine(engine::INFO);
    assert_eq!(info.compute(), Some(Level::ThreadGroup));
    // A copy engine draws nothing.
    assert_eq!(info.graphics(), Some(Level::None));
    assert!(server.get(regs::SAVE_SIZE).bytes() % 4096 == 0);
    let fd = server.file.as_raw_fd();
    server.client.dma_map(0, BUS, SYSTEM as u64, fd).unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let eventfds = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let msix = VFIO_PCI_MSIX_IRQ_INDEX;
    let raw = [event.as_raw_fd()];
    server.client.set_irqs(msix, eventfds, 1, 1, &raw).unwrap();
    server.set_up();
    server.set_engine(engine::PREEMPT_FENCE::new().with_fence(0x1_0000_0007));
    server.set_engine(engine::PREEMPT::new().with_request(true));
    assert!(is_raised(&event, 20));
    let at = status::of_engine(COPY, status::engine::PREEMPT_FENCE);
    let words = [0, 8, 16].map(|offset| server.status64(at + offset));
    let record = Record {
        fence: 0x1_0000_0007,
        completed: 0,
        cause: Cause::Idle,
        number: 1,
    };
    assert_eq!(Record::from_words(words), Some(record));
    assert_eq!(counter(&mut server, Counter::Preempt), 1);
    server.end();
}
