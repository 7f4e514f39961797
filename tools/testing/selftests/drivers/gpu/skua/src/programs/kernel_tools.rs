// SPDX-License-Identifier: MIT

//! The kernel's own tools see the driver: function tracer, kprobes, perf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use skua_selftests::moving::{alone, evict_all, movable_in_vram, place, resident};
use skua_selftests::{skip, suite, tests, Engine, Place, Rig};
use skua_uapi::*;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_tracers_are_there,
        the_function_tracer_follows_a_submission,
        a_kprobe_on_c_of_the_driver_fires,
        a_kprobe_on_rust_of_the_driver_fires,
        row_0_16_row_1_11_mappings_are_of_the_type_of_their_memory at_rest,
        perf_counts_and_samples,
    ])
}

const TRACING: &str = "/sys/kernel/tracing";

fn the_tracers_are_there() {
    let text = fs::read_to_string(Path::new(TRACING).join("available_tracers")).expect("tracers");
    println!("available tracers: {}", text.trim());
    for tracer in ["function", "function_graph", "nop"] {
        assert!(
            text.split_whitespace().any(|name| name == tracer),
            "{tracer}"
        );
    }
}

/// An instance of tracing, gone at the end.
struct Instance(PathBuf);

impl Instance {
    fn new() -> Self {
        let name = format!("skua-tools-{}", std::process::id());
        let dir = Path::new(TRACING).join("instances").join(name);
        fs::create_dir(&dir).expect("an instance of tracing");
        Self(dir)
    }

    #[track_caller]
    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn trace(&self) -> String {
        fs::read_to_string(self.0.join("trace")).expect("trace")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn submit() {
    let rig = Rig::new();
    assert_eq!(rig.start(Engine::Copy, &[]).wait(), Ok(()));
}

/// A function of the driver that every submission comes through. The function tracer takes its C
/// only, for rustc has no `-mfentry`; kprobe events take both.
const FUNCTION: &str = "skua_trace_submit";

fn the_function_tracer_follows_a_submission() {
    let instance = Instance::new();
    instance.set("set_ftrace_filter", &format!("drm_ioctl {FUNCTION}"));
    instance.set("current_tracer", "function");
    submit();
    instance.set("tracing_on", "0");
    let trace = instance.trace();
    instance.set("current_tracer", "nop");
    for function in ["drm_ioctl", FUNCTION] {
        assert!(trace.contains(&format!(": {function} ")), "{trace}");
    }
}

fn a_kprobe_on_c_of_the_driver_fires() {
    fires("c", FUNCTION);
}

fn a_kprobe_on_rust_of_the_driver_fires() {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let mut ours = symbols.lines().filter_map(|line| {
        let (symbol, module) = line.split_once('\t')?;
        (module == "[skua]").then(|| symbol.rsplit(' ').next())?
    });
    let publish = ours.find(|name| name.ends_with("10Submission7publish"));
    fires("rust", publish.expect("Submission::publish"));
}

/// A submission meets a probe at the begin of a function of the driver.
fn fires(kind: &str, function: &str) {
    let trace = probed(kind, &format!("skua:{function}"), submit);
    assert!(trace.contains(&event(kind)), "{trace}");
}

/// The name of a probe's event.
fn event(kind: &str) -> String {
    format!("skua_{kind}_{}", std::process::id())
}

/// What is traced while there is a probe in the kernel's words.
fn probed(kind: &str, place: &str, during: impl FnOnce()) -> String {
    let event = event(kind);
    let probes = Path::new(TRACING).join("kprobe_events");
    let append = |line: &str| {
        use std::io::Write;
        fs::OpenOptions::new()
            .append(true)
            .open(&probes)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| {
                let log = fs::read_to_string(Path::new(TRACING).join("error_log"));
                panic!("{line}: {error}: {}", log.unwrap_or_default())
            });
    };
    append(&format!("p:kprobes/{event} {place}\n"));
    let instance = Instance::new();
    instance.set(&format!("events/kprobes/{event}/enable"), "1");
    during();
    instance.set(&format!("events/kprobes/{event}/enable"), "0");
    let trace = instance.trace();
    drop(instance);
    append(&format!("-:kprobes/{event}\n"));
    trace
}

/// Of an entry of x86's page tables what the kernel names memory types by: PWT, PCD and PAT. None
/// of them is write-back, PWT alone is write-combined.
const TYPE: u64 = 1 << 3 | 1 << 4 | 1 << 7;
const WRITE_BACK: u64 = 0;
const WRITE_COMBINED: u64 = 1 << 3;

/// A mapping, once it has faulted, by what the kernel was told to enter into its page table.
fn row_0_16_row_1_11_mappings_are_of_the_type_of_their_memory() {
    let rig = alone();
    let made = |flags: u32, placements: u32| {
        let made = rig.bo_create(4096, DRM_SKUA_BO_CPU_ACCESS | flags, placements);
        made.expect("BO_CREATE")
    };
    let [vram, system] = [Place::Vram, Place::System].map(|place| 1 << rig.region(place).id);
    let moved = movable_in_vram(&rig, 4096);
    let locked = made(DRM_SKUA_BO_CACHED, vram | system);
    assert!(rig.lock(locked).is_ok(), "BO_LOCK");
    let objects = [
        ("in VRAM", made(0, vram), WRITE_COMBINED),
        ("in system memory", made(0, system), WRITE_BACK),
        ("cached, locked", locked, WRITE_BACK),
        (
            "combined",
            made(DRM_SKUA_BO_WRITE_COMBINED, system),
            WRITE_COMBINED,
        ),
        ("to be moved", moved, WRITE_COMBINED),
    ];
    let expect_types = |objects: &[(&str, u32, u64)]| {
        for (what, handle, expected) in objects {
            let mapping = rig.map(*handle);
            let probe = "vmf_insert_pfn_prot address=%si prot=%cx";
            let trace = probed("types", probe, || _ = mapping.read(0));
            let address = format!("address={:#x} prot=", mapping.address());
            let prot = trace.split_once(&address).and_then(|(_, rest)| {
                let hex = rest.split_whitespace().next()?.strip_prefix("0x")?;
                u64::from_str_radix(hex, 16).ok()
            });
            assert_eq!(
                prot.map(|prot| prot & TYPE),
                Some(*expected),
                "{what}: {trace}"
            );
        }
    };
    expect_types(&objects);
    // It changes with where the object is, and back.
    evict_all();
    expect_types(&[("moved out", moved, WRITE_BACK)]);
    resident(&rig, &[moved]);
    assert_eq!(place(&rig, moved), Place::Vram);
    expect_types(&[("come back", moved, WRITE_COMBINED)]);
}

fn perf_counts_and_samples() {
    let run = |arguments: &[&str]| {
        let mut perf = Command::new("perf");
        match perf.args(arguments).current_dir("/tmp").output() {
            Err(error) => skip(&format!("perf: {error}")),
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(output.status.success(), "{arguments:?}: {text}");
                text
            }
        }
    };
    let text = run(&[
        "stat",
        "-x,",
        "-e",
        "context-switches",
        "--",
        "sleep",
        "0.1",
    ]);
    let count = text
        .lines()
        .find(|line| line.contains("context-switches"))
        .and_then(|line| line.split(',').next())
        .and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "{text}");
    run(&[
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-o",
        "skua.perf",
        "--",
        "ls",
        "-lR",
        "/sys/bus",
    ]);
    let report = run(&[
        "report",
        "-i",
        "skua.perf",
        "--stdio",
        "--percent-limit",
        "1",
    ]);
    assert!(report.contains("cpu-clock"), "{report}");
}
