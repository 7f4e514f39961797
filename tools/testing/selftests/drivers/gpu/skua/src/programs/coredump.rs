// SPDX-License-Identifier: MIT

//! Core dumps: the first failure is kept, as the device was before it was reset.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use skua_selftests::client::map;
use skua_selftests::function::Function;
use skua_selftests::rig::{wait_value, write};
use skua_selftests::suite::eventually;
use skua_selftests::{suite, tests, Engine, Errno, Place, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        a_fault_is_kept,
        a_hang_is_kept: 60,
        what_is_far_apart_is_kept_in_part,
        the_first_is_kept_until_it_is_cleared,
    ])
}

/// Has the kernel keep none, and the driver ready for the next failure.
#[track_caller]
fn clear() {
    for (file, _) in skua_coredump::dumps().expect("sysfs") {
        // It may go by itself.
        let _ = skua_coredump::clear(&file);
    }
    let gone = eventually(|| dumps().is_empty().then_some(()));
    assert!(gone.is_some(), "{:?}", dumps());
    pause();
}

/// Waits until the driver writes another one.
fn pause() {
    thread::sleep(Duration::from_millis(1100));
}

fn dumps() -> Vec<(PathBuf, String)> {
    skua_coredump::dumps().expect("sysfs")
}

/// The one that the kernel keeps.
#[track_caller]
fn dump() -> (PathBuf, String) {
    let dump = eventually(|| dumps().pop());
    dump.expect("a core dump")
}

/// The first line that begins so.
#[track_caller]
fn line<'a>(dump: &'a str, start: &str) -> &'a str {
    let found = dump.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no {start}: {dump}"))
}

/// Whether the words `name value` stand in a line.
#[track_caller]
fn expect(line: &str, name: &str, value: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let found = words.windows(2).any(|pair| pair == [name, value]);
    assert!(found, "{name} {value}: {line}");
}

/// What a dump says of whose work it was: this process, with a context of `rig`.
#[track_caller]
fn expect_guilty(dump: &str, context: &str) {
    let guilty = line(dump, "guilty:");
    let name = fs::read_to_string("/proc/self/comm").expect("procfs");
    expect(guilty, "context", context);
    expect(guilty, "pid", &std::process::id().to_string());
    expect(guilty, "task", name.trim());
}

/// The word behind `name` in a line.
#[track_caller]
fn word<'a>(line: &'a str, name: &str) -> &'a str {
    let mut words = line.split_whitespace().skip_while(|word| *word != name);
    let found = words.nth(1);
    found.unwrap_or_else(|| panic!("no {name}: {line}"))
}

fn a_fault_is_kept() {
    clear();
    let rig = Rig::new();
    // Large pages that lie one behind the other.
    let buffer = rig.buffer(Place::Vram, 128 << 10);
    let nowhere = rig.reserve(4096);
    let context = rig.new_context(Engine::Compute);
    let job = rig.start_in(context, &[write(buffer.va, 1), write(nowhere, 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let (file, dump) = dump();
    let device = fs::canonicalize(file.with_file_name("failing_device")).expect("sysfs");
    assert_eq!(
        device,
        fs::canonicalize(Function::first().sysfs()).expect("sysfs")
    );
    // What happened.
    let failure = line(&dump, "failure: fault");
    for (name, value) in [
        ("reason", "NotPresent"),
        ("access", "Write"),
        ("address", &format!("{nowhere:#x}")),
    ] {
        expect(failure, name, value);
    }
    expect_guilty(&dump, word(failure, "context"));
    // Before the reset: the engine had stopped, and the packet was in its ring.
    let engine = format!("engine {} ", word(failure, "engine"));
    expect(line(&dump, &engine), "device", "Some(Faulted)");
    let fence = word(failure, "fence");
    let packet = line(&dump, &format!(" packet {fence}:"));
    expect(packet, "context", word(failure, "context"));
    let shown = skua_coredump::show(&dump);
    let fence = format!("fence: Some({fence})");
    let is_run = |l: &&str| l.contains(": Run {") && l.contains(&fence);
    let run = shown.lines().find(is_run);
    let run = run.unwrap_or_else(|| panic!("{fence}: {shown}"));
    // What the ring has it run is in its context's queue.
    let (_, number) = run.split_once("number: ").expect(run);
    let (number, _) = number.split_once(',').expect(run);
    let packet = line(&dump, &format!(" queue {number}:"));
    expect(packet, "start", "0x0");
    // Where its memory is.
    let page = line(&dump, &format!(" {:#x}:", buffer.va));
    for (name, value) in [("bytes", "0x20000"), ("writable", "true")] {
        expect(page, name, value);
    }
    assert!(page.contains(" vram 0x"), "{page}");
    assert!(!dump.contains(&format!("\n {nowhere:#x}:")), "{dump}");
    clear();
}

fn a_hang_is_kept() {
    clear();
    // It stays in its line, whatever a process calls itself.
    fs::write("/proc/self/comm", "hang\nfailure:").expect("procfs");
    let rig = Rig::new();
    let never = rig.buffer(Place::System, 4096);
    let context = rig.new_context(Engine::Copy);
    let job = rig.start_in(context, &[wait_value(never.va, 1)]);
    assert_eq!(job.wait(), Err(Errno::ETIME));
    let (_, dump) = dump();
    let failure = line(&dump, "failure: endless");
    let packet = line(&dump, &format!(" packet {}:", word(failure, "fence")));
    expect(line(&dump, "guilty:"), "context", word(packet, "context"));
    expect(line(&dump, "guilty:"), "task", r"hang\nfailure:");
    let engine = line(&dump, &format!("engine {} ", word(failure, "engine")));
    expect(engine, "device", "Some(Waiting)");
    assert!(line(&dump, &format!(" {:#x}:", never.va)).contains(" system 0x"));
    clear();
}

/// Tables are read under a lock that others wait for, so that there is an end to it.
fn what_is_far_apart_is_kept_in_part() {
    const MAPPED: u64 = 100;
    clear();
    let rig = Rig::new();
    let object = rig.bo(Place::System, 4096);
    // A table of its own for each.
    let at = |n: u64| (1 << 40) + (n << 21);
    let maps: Vec<_> = (0..MAPPED).map(|n| map(object, 0, at(n), 4096)).collect();
    assert_eq!(rig.bind_and_wait(rig.vm, &maps), Ok(()));
    let nowhere = rig.reserve(4096);
    let job = rig.start(Engine::Compute, &[write(nowhere, 1)]);
    assert_eq!(job.wait(), Err(Errno::EFAULT));
    let (_, dump) = dump();
    let kept = |n: &u64| dump.contains(&format!("\n {:#x}: bytes 0x1000 ", at(*n)));
    let kept: Vec<u64> = (0..MAPPED).filter(kept).collect();
    // The first ones, and some tables are above them.
    assert_eq!(kept, Vec::from_iter(0..kept.len() as u64));
    assert!((32..64).contains(&kept.len()), "{}", kept.len());
    clear();
}

fn the_first_is_kept_until_it_is_cleared() {
    clear();
    let rig = Rig::new();
    let fail = |address: u64| {
        let nowhere = rig.reserve(4096) + address;
        let context = rig.new_context(Engine::Compute);
        let job = rig.start_in(context, &[write(nowhere, 1)]);
        assert_eq!(job.wait(), Err(Errno::EFAULT));
        assert_eq!(rig.context_destroy(context), Ok(()));
        format!("address {nowhere:#x} ")
    };
    let first = fail(0);
    let (file, kept) = dump();
    assert!(kept.contains(&first), "{first}: {kept}");
    pause();
    let second = fail(8);
    // It would have come by then: dumps come from where memory is given back.
    rig.regions();
    assert_eq!(fs::read_to_string(&file).expect("sysfs"), kept);
    assert_eq!(dumps().len(), 1);
    assert!(!kept.contains(&second));
    clear();
    let third = fail(16);
    let (_, kept) = dump();
    assert!(kept.contains(&third), "{third}: {kept}");
    clear();
}
