// SPDX-License-Identifier: MIT

//! The kernel's own tools see the driver: function tracer, kprobes, perf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use skua_selftests::{skip, suite, tests, Engine, Rig};

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_tracers_are_there,
        the_function_tracer_follows_a_submission,
        a_kprobe_on_c_of_the_driver_fires,
        a_kprobe_on_rust_of_the_driver_fires,
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
    let event = format!("skua_{kind}_{}", std::process::id());
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
    append(&format!("p:kprobes/{event} skua:{function}\n"));
    let instance = Instance::new();
    instance.set(&format!("events/kprobes/{event}/enable"), "1");
    submit();
    instance.set(&format!("events/kprobes/{event}/enable"), "0");
    let trace = instance.trace();
    drop(instance);
    append(&format!("-:kprobes/{event}\n"));
    assert!(trace.contains(&event), "{trace}");
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
