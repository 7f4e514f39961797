// SPDX-License-Identifier: MIT

//! The host's tests: cargo builds them, each runs in a process of its own, so that it has a
//! duration, a time limit and an output to itself. Doc tests are rustdoc's to run.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde_json::Value;
use skua_guest::ktap::Verdict;
use skua_guest::process::{self, End, Time};

use crate::report::{Report, Suite, Test};

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
            let test = Test::new(Suite::Cargo, "build", Verdict::Fail, Duration::ZERO);
            report.add(test.with_output(words))?;
            return Ok(());
        }
    };
    let mut queue = VecDeque::new();
    for program in &programs {
        for (name, ignored) in list(program)? {
            let full = full_name(program, &name);
            if ignored {
                let test = Test::new(Suite::Cargo, &full, Verdict::Skip, Duration::ZERO);
                report.add(test.with_output("SKIP ignored".into()))?;
            } else if report.wants(&format!("cargo/{full}")) {
                queue.push_back((program, name, full));
            }
        }
    }
    let queue = Mutex::new(queue);
    let (sender, ended) = channel();
    thread::scope(|scope| -> Result<()> {
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
            report.add(test)?;
        }
        Ok(())
    })?;
    docs(report)
}

/// A command's end, and the lines that it said.
fn output(command: Command, limit: Option<Duration>) -> Result<(End, Vec<String>)> {
    let mut lines = Vec::new();
    let limit = limit.map(|limit| (limit, Time::OfProcess));
    let end = process::run(command, limit, |line| lines.push(line.to_owned()))?;
    Ok((end, lines))
}

/// Builds the tests; the inner error is what the compiler said.
fn build(report: &mut Report) -> Result<Result<Vec<Program>, String>> {
    let mut command = Command::new("cargo");
    command
        .args(["test", "--workspace", "--locked", "--no-run", "--quiet"])
        .arg("--message-format=json");
    let (mut programs, mut words) = (Vec::new(), String::new());
    let end = process::run(command, None, |line| {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            words.push_str(line);
            words.push('\n');
            return;
        };
        if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
            words.push_str(message["message"]["rendered"].as_str().unwrap_or_default());
        }
        if let Some(name) = message["target"]["name"].as_str() {
            report.progress(&format!("building the host's tests: {name}"));
        }
        programs.extend(program(&message));
    })
    .context("cargo")?;
    Ok(if end.is_success() {
        Ok(programs)
    } else {
        Err(words)
    })
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
        let mut command = Command::new(&program.executable);
        command
            .args(["--list", "--format", "terse"])
            .args(more)
            .current_dir(&program.dir);
        let (end, lines) = output(command, Some(LIMIT))?;
        ensure!(end.is_success(), "{}: has no list of tests", program.name);
        let tests = lines.iter().filter_map(|line| line.strip_suffix(": test"));
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
        Ok((true, _)) => (Verdict::Pass, String::new()),
        Ok((false, words)) => (Verdict::Fail, words),
        Err(error) => (Verdict::Fail, format!("{error:#}")),
    };
    Test::new(Suite::Cargo, full, outcome, begin.elapsed()).with_output(words)
}

fn supervise(program: &Program, name: &str) -> Result<(bool, String)> {
    let mut command = Command::new(&program.executable);
    command
        .args(["--exact", name, "--test-threads", "1"])
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir);
    let (end, mut lines) = output(command, Some(LIMIT))?;
    // Exit status 0 without the test having run would prove nothing.
    let ran = lines
        .iter()
        .any(|line| line.starts_with("test result: ok. 1 passed"));
    if !end.is_success() {
        lines.push(end.to_string());
    }
    Ok((end.is_success() && ran, lines.join("\n")))
}

/// Runs the doc tests.
fn docs(report: &mut Report) -> Result<()> {
    if !report.wants("cargo/doc::") && !report.wants("cargo/doc::tools/") {
        return Ok(());
    }
    report.progress("doc tests");
    let begin = Instant::now();
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    let (end, lines) = output(command, None).context("cargo")?;
    let text = lines.join("\n");
    let mut failed = false;
    for line in &lines {
        if let Some((name, outcome)) = doc_result(line) {
            failed |= outcome == Verdict::Fail;
            let name = format!("doc::{name}");
            let test = Test::new(Suite::Cargo, &name, outcome, Duration::ZERO);
            report.add(test.with_output(doc_output(&text, &name)))?;
        }
    }
    if !end.is_success() && !failed {
        let test = Test::new(Suite::Cargo, "doc::build", Verdict::Fail, begin.elapsed());
        report.add(test.with_output(text))?;
    }
    Ok(())
}

/// A result line of rustdoc's test program.
fn doc_result(line: &str) -> Option<(&str, Verdict)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match result.split(',').next()? {
        "ok" => Verdict::Pass,
        "FAILED" => Verdict::Fail,
        "ignored" => Verdict::Skip,
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
            Some(("tools/x.rs - a::b (line 3)", Verdict::Pass))
        );
        assert_eq!(
            doc_result("test x.rs - a (line 3) - compile fail ... FAILED"),
            Some(("x.rs - a (line 3)", Verdict::Fail))
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
        assert_eq!(one(&program, "x", "true::x").result, Verdict::Fail);
    }
}
