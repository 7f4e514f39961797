// SPDX-License-Identifier: MIT

//! `skua-init`: the guest's first process.
//!
//! It mounts what programs expect and the host's shares, and starts itself a second time, with
//! an argument, to do the [job](skua_guest::job) while the first reaps orphans, as PID 1 must.
//! Whatever happens, the guest says `@skua exit STATUS` and powers off.

#![forbid(unsafe_code)]

mod evictor;
mod kernel_log;
mod kselftest;
mod kunit;
mod memory_root;
mod mounts;
mod port;
mod trace;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use nix::kmod::{finit_module, ModuleInitFlags};
use nix::sys::reboot::{reboot, RebootMode};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{getpid, Pid};
use skua_guest::job::{Job, Task, BROKEN, FILE, MODULE_GDB, OUTPUT, PRODUCTS};
use skua_guest::ktap::Verdict;
use skua_guest::wire::Message;

use crate::kernel_log::KernelLog;
use crate::port::Port;

fn main() -> ExitCode {
    if getpid() == Pid::from_raw(1) {
        let status = first().unwrap_or_else(|error| {
            eprintln!("skua-init: {error:#}");
            BROKEN
        });
        if let Ok(mut port) = Port::open() {
            // Nothing is left to do about a deaf host but to power off.
            let _ = port.say(&Message::Exit(status)).and_then(|()| port.flush());
        }
        nix::unistd::sync();
        let Err(error) = reboot(RebootMode::RB_POWER_OFF);
        eprintln!("skua-init: power off: {error}");
        return ExitCode::FAILURE;
    }
    match job() {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)),
        Err(error) => {
            eprintln!("skua-init: {error:#}");
            if let Ok(mut port) = Port::open() {
                let words = format!("# skua-init: {error:#}").replace('\n', " ");
                let _ = writeln!(port, "{words}");
            }
            ExitCode::from(u8::try_from(BROKEN).unwrap_or(u8::MAX))
        }
    }
}

/// PID 1: mounts, then reaps until the second process has done the job.
fn first() -> Result<i32> {
    mounts::system()?;
    if std::env::args().nth(1).as_deref() != Some(memory_root::ARGUMENT) {
        mounts::output()?;
        if let Task::Tests {
            programs,
            sleeps: true,
            ..
        } = read_job()?.task
        {
            memory_root::enter(&programs)?;
        }
    }
    port::make_raw()?;
    let child = Command::new("/proc/self/exe")
        .arg("job")
        .env("PATH", format!("{PRODUCTS}/bin:/usr/bin:/usr/sbin"))
        .env("HOME", "/tmp")
        .env("LANG", "C.UTF-8")
        .spawn()
        .context("the second process")?;
    let child = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        match waitpid(None, None)? {
            WaitStatus::Exited(pid, status) if pid == child => return Ok(status),
            WaitStatus::Signaled(pid, signal, _) if pid == child => {
                anyhow::bail!("the second process died of {signal}")
            }
            _ => {}
        }
    }
}

fn read_job() -> Result<Job> {
    let path = Path::new(OUTPUT).join(FILE);
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).context("the job")
}

/// The second process: does the job and returns the guest's exit status.
fn job() -> Result<i32> {
    let job = read_job()?;
    let suites = kunit::suites();
    // Before the driver says anything.
    let log = KernelLog::open()?;
    let mut loaded = job.module.as_deref().map_or(Ok(()), load);
    if let (Ok(()), Some(symbols)) = (&loaded, &job.symbols) {
        loaded = tell_debugger(symbols);
    }
    if loaded.is_ok() && job.trace {
        loaded = trace::start();
    }
    let traced = job.trace && loaded.is_ok();
    let status = task(&job, &suites, log, loaded)?;
    if traced {
        trace::finish()?;
    }
    Ok(status)
}

/// Does the job with the driver, if it could be loaded; the guest's exit status.
fn task(job: &Job, suites: &kunit::Suites, log: KernelLog, loaded: Result<()>) -> Result<i32> {
    match &job.task {
        Task::Tests {
            programs,
            filter,
            kunit,
            evict,
            points,
            ..
        } => {
            let (filter, count) = (filter.as_deref(), programs.len());
            let mut run = kselftest::Run::new(log, job.patience, filter, count, *kunit, *evict)?;
            run.points = *points;
            if let Err(error) = loaded {
                run.report("module", Verdict::Fail, &format!("{error:#}"))?;
                return Ok(1);
            }
            if *kunit {
                run.kunit(suites)?;
            }
            let mut all = || programs.iter().try_for_each(|program| run.program(program));
            match evict {
                true => evictor::beside(all),
                false => all(),
            }?;
            run.kmemleak()?;
            Ok(i32::from(run.failed()))
        }
        Task::Command { argv } => {
            loaded?;
            kselftest::command(argv)
        }
        Task::Shell { size, term } => {
            if let Err(error) = loaded {
                eprintln!("skua-init: {error:#}");
            }
            shell(*size, term)
        }
    }
}

/// Loads the driver.
fn load(parameters: &str) -> Result<()> {
    let path = Path::new(PRODUCTS).join("skua.ko");
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    let parameters = std::ffi::CString::new(parameters)?;
    finit_module(&file, &parameters, ModuleInitFlags::empty()).context("skua.ko does not load")
}

/// Leaves a script for GDB with the module's addresses.
fn tell_debugger(symbols: &Path) -> Result<()> {
    let sections = Path::new("/sys/module/skua/sections");
    let mut script = format!("add-symbol-file {}", symbols.display());
    for section in fs::read_dir(sections).context("the module's sections")? {
        let section = section?;
        let address = fs::read_to_string(section.path())?;
        let name = section.file_name().to_string_lossy().into_owned();
        if name.ends_with("strtab") || name.ends_with("symtab") {
            continue;
        }
        script.push_str(&format!(" -s {name} {}", address.trim()));
    }
    Ok(fs::write(
        Path::new(OUTPUT).join(MODULE_GDB),
        script + "\n",
    )?)
}

/// An interactive shell on the console's terminal, in a session of its own.
fn shell(size: (u16, u16), term: &str) -> Result<i32> {
    let tty = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/ttyS0")?;
    let (rows, columns) = size;
    let status = Command::new("/usr/bin/setsid")
        .args(["--ctty", "--wait", "/bin/sh", "-c"])
        .arg(format!(
            "stty rows {rows} cols {columns}; cd /mnt/out; exec /bin/bash --norc -i"
        ))
        .env("TERM", term)
        .env("PS1", "skua:\\w# ")
        .stdin(Stdio::from(tty.try_clone()?))
        .stdout(Stdio::from(tty.try_clone()?))
        .stderr(Stdio::from(tty))
        .status()
        .context("the shell")?;
    Ok(status.code().unwrap_or(BROKEN))
}
