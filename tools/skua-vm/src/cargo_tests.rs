// SPDX-License-Identifier: MIT

//! The host's tests: cargo builds them, each runs in a process of its own, so that it has a
//! duration, a time limit and an output to itself. Doc tests are rustdoc's to run.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::Value;

use crate::report::{Outcome, Report, Suite, Test};

/// How long one test may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A test program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    executable: PathBuf,
    /// The package's directory: where cargo would run it.
    dir: PathBuf,
    /// Prefix of its tests' names: the crate, and the target if it is another.
    name: String,
}

/// Builds and runs every wanted test of the workspace.
///
/// # Errors
///
/// If cargo cannot be run. Tests that do not build are a failed test.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    let programs = match build(report)? {
        Ok(programs) => programs,
        Err(words) => {
            let test = Test::new(Suite::Cargo, "build", Outcome::Fail, Duration::ZERO);
            report.add(test.with_output(words));
            return Ok(());
        }
    };
    let mut queue = VecDeque::new();
    for program in &programs {
        for (name, ignored) in list(program)? {
            let full = full_name(program, &name);
            if ignored {
                let test = Test::new(Suite::Cargo, &full, Outcome::Skip, Duration::ZERO);
                report.add(test.with_output("SKIP ignored".into()));
            } else if report.wants(&format!("cargo/{full}")) {
                queue.push_back((program, name, full));
            }
        }
    }
    let queue = Mutex::new(queue);
    let (sender, ended) = channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || loop {
                let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
                let Some((program, name, full)) = next else {
                    return;
                };
                if sender.send(one(program, &name, &full)).is_err() {
                    return;
                }
            });
        }
        drop(sender);
        for test in ended {
            report.progress(&test.id());
            report.add(test);
        }
    });
    docs(report)
}

/// Builds the tests; the inner error is what the compiler said.
fn build(report: &mut Report) -> Result<Result<Vec<Program>, String>> {
    let mut cargo = Command::new("cargo")
        .args(["test", "--workspace", "--locked", "--no-run", "--quiet"])
        .arg("--message-format=json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cargo")?;
    let stdout = cargo.stdout.take().context("cargo's output")?;
    let stderr = cargo.stderr.take().context("cargo's output")?;
    let errors = thread::spawn(move || {
        let mut text = String::new();
        // What cargo could not say is not to be had.
        let _ = BufReader::new(stderr).read_to_string(&mut text);
        text
    });
    let mut programs = Vec::new();
    let mut words = String::new();
    for line in BufReader::new(stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
            words.push_str(message["message"]["rendered"].as_str().unwrap_or_default());
        }
        if let Some(name) = message["target"]["name"].as_str() {
            report.progress(&format!("building the host's tests: {name}"));
        }
        programs.extend(program(&message));
    }
    let success = cargo.wait()?.success();
    words.push_str(&errors.join().unwrap_or_default());
    Ok(if success { Ok(programs) } else { Err(words) })
}

/// The test program that a message of cargo announces.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = message["executable"].as_str()?.into();
    let dir = Path::new(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let target = message["target"]["name"].as_str()?;
    // path+file:///…/qemu#skua-gpu@0.1.0, or …/skua-vm#0.1.0 if the directory has its name.
    let id = message["package_id"].as_str()?;
    let package = match id.rsplit_once('#')?.1.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => dir.file_name()?.to_string_lossy().into_owned(),
    };
    let name = if target.replace('_', "-") == package.replace('_', "-") {
        package
    } else {
        format!("{package}::{target}")
    };
    Some(Program {
        executable,
        dir,
        name,
    })
}

fn full_name(program: &Program, test: &str) -> String {
    format!("{}::{test}", program.name)
}

/// The tests of a program, and whether each is ignored.
fn list(program: &Program) -> Result<Vec<(String, bool)>> {
    let ask = |more: &[&str]| -> Result<Vec<String>> {
        let output = Command::new(&program.executable)
            .args(["--list", "--format", "terse"])
            .args(more)
            .current_dir(&program.dir)
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!("{}: has no list of tests", program.name);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests.map(str::to_owned).collect())
    };
    let ignored = ask(&["--ignored"])?;
    let all = ask(&[])?;
    Ok(all
        .into_iter()
        .map(|name| (name.clone(), ignored.contains(&name)))
        .collect())
}

/// Runs one test.
fn one(program: &Program, name: &str, full: &str) -> Test {
    let begin = Instant::now();
    let (outcome, words) = match supervise(program, name) {
        Ok((true, _)) => (Outcome::Pass, String::new()),
        Ok((false, words)) => (Outcome::Fail, words),
        Err(error) => (Outcome::Fail, format!("{error:#}")),
    };
    Test::new(Suite::Cargo, full, outcome, begin.elapsed()).with_output(words)
}

fn supervise(program: &Program, name: &str) -> Result<(bool, String)> {
    // A file, not a pipe: nobody need read it while the test runs.
    let mut log: File = tempfile::tempfile()?;
    let mut child = Command::new(&program.executable)
        .args(["--exact", name, "--test-threads", "1"])
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .spawn()?;
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    let (status, late) = loop {
        if let Some(status) = child.try_wait()? {
            break (status, false);
        }
        if begin.elapsed() > LIMIT {
            child.kill()?;
            break (child.wait()?, true);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let mut bytes = Vec::new();
    log.rewind()?;
    log.read_to_end(&mut bytes)?;
    let mut words = String::from_utf8_lossy(&bytes).into_owned();
    if late {
        words.push_str(&format!("\nTIMEOUT {} seconds", LIMIT.as_secs()));
    } else if !status.success() {
        words.push_str(&format!("\n{status}"));
    }
    // Exit status 0 without the test having run would prove nothing.
    let ran = words.contains("test result: ok. 1 passed");
    Ok((status.success() && ran, words))
}

/// Runs the doc tests.
fn docs(report: &mut Report) -> Result<()> {
    if !report.wants("cargo/doc::") && !report.wants("cargo/doc::tools/") {
        return Ok(());
    }
    report.progress("doc tests");
    let begin = Instant::now();
    let output = Command::new("cargo")
        .args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"])
        .stdin(Stdio::null())
        .output()
        .context("cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut failed = false;
    for line in text.lines() {
        if let Some((name, outcome)) = doc_result(line) {
            failed |= outcome == Outcome::Fail;
            let name = format!("doc::{name}");
            let test = Test::new(Suite::Cargo, &name, outcome, Duration::ZERO);
            report.add(test.with_output(doc_output(&text, &name)));
        }
    }
    if !output.status.success() && !failed {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let test = Test::new(Suite::Cargo, "doc::build", Outcome::Fail, begin.elapsed());
        report.add(test.with_output(words));
    }
    Ok(())
}

/// A result line of rustdoc's test program.
fn doc_result(line: &str) -> Option<(&str, Outcome)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match result.split(',').next()? {
        "ok" => Outcome::Pass,
        "FAILED" => Outcome::Fail,
        "ignored" => Outcome::Skip,
        _ => return None,
    };
    // `compile fail` and such follow the name.
    let name = name.split(" - compile").next().unwrap_or(name);
    Some((name.trim(), outcome))
}

/// What a failed doc test printed.
fn doc_output(text: &str, name: &str) -> String {
    let head = format!("---- {} stdout ----", name.trim_start_matches("doc::"));
    text.split(&head)
        .nth(1)
        .map(|rest| rest.split("\n---- ").next().unwrap_or(rest))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn artifact(id: &str, target: &str) -> Value {
        json!({
            "reason": "compiler-artifact",
            "package_id": id,
            "manifest_path": "/x/qemu/Cargo.toml",
            "target": { "name": target },
            "profile": { "test": true },
            "executable": "/x/deps/gpu-1",
        })
    }

    #[test]
    fn programs_are_named_after_package_and_target() {
        let name = |id, target| program(&artifact(id, target)).map(|program| program.name);
        let id = "path+file:///x/qemu#skua-gpu@0.1.0";
        assert_eq!(name(id, "skua_gpu").as_deref(), Some("skua-gpu"));
        assert_eq!(name(id, "faults").as_deref(), Some("skua-gpu::faults"));
        let id = "path+file:///x/qemu#0.1.0";
        assert_eq!(name(id, "qemu").as_deref(), Some("qemu"));
    }

    #[test]
    fn other_messages_are_no_programs() {
        let mut library = artifact("path+file:///x/qemu#0.1.0", "qemu");
        library["profile"]["test"] = json!(false);
        assert_eq!(program(&library), None);
        assert_eq!(program(&json!({ "reason": "build-finished" })), None);
    }

    #[test]
    fn doc_results_are_read() {
        assert_eq!(
            doc_result("test tools/x.rs - a::b (line 3) ... ok"),
            Some(("tools/x.rs - a::b (line 3)", Outcome::Pass))
        );
        assert_eq!(
            doc_result("test x.rs - a (line 3) - compile fail ... FAILED"),
            Some(("x.rs - a (line 3)", Outcome::Fail))
        );
        assert_eq!(doc_result("test result: ok. 1 passed"), None);
        let text = "---- x.rs - a (line 3) stdout ----\nbad\n\n---- y stdout ----\nother";
        assert_eq!(doc_output(text, "doc::x.rs - a (line 3)"), "bad");
    }

    #[test]
    fn a_test_program_that_is_not_one_fails() {
        let program = Program {
            executable: "/usr/bin/true".into(),
            dir: "/".into(),
            name: "true".into(),
        };
        // It exits with 0 and has run nothing.
        assert_eq!(one(&program, "x", "true::x").result, Outcome::Fail);
    }
}
