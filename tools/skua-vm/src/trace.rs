// SPDX-License-Identifier: MIT

//! `skua-vm trace`: runs one program in a guest and shows what driver and device did meanwhile; and
//! the same for `skua-vm run`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Args;
use skua_guest::job::{Job, Task, TRACE};
use skua_guest::ktap::Verdict;
use skua_trace::{device, guest, page, perfetto, Timeline};

use crate::gdb;
use crate::guest::{boot, Boot, Watch};
use crate::machine::{claim, Config};
use crate::plan::{self, Guest};
use crate::report::{Suite, Test};
use crate::test::module;
use crate::Parts;

/// The device's record, beside the logs.
pub(crate) const RECORD: &str = "device.events";
/// What is made of it and of the guest's trace, beside the results: for Perfetto, and the page.
const SHOWN: [&str; 2] = ["trace.pftrace", "trace.html"];

/// Options of `skua-vm trace`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// A kselftest, which gets the guest that it wants; or any other program of the products.
    #[arg(long)]
    program: String,
    /// Only its tests whose `suite/name` contains this.
    #[arg(long)]
    pattern: Option<String>,
    /// Where trace.pftrace, trace.html and the logs go.
    #[arg(long, default_value = "out/trace")]
    output: PathBuf,
}

/// Shows the program's words and results.
struct Shown {
    /// A test ran, or what is none.
    ran: bool,
}

impl Watch for Shown {
    fn words(&mut self, line: &str) {
        println!("{line}");
    }

    fn ended(&mut self, test: Test) {
        self.ran |= test.result != Verdict::Skip && test.suite != Suite::Guest;
        println!("{:?}: {}", test.result, test.test);
    }
}

/// Runs the program; returns whether it was content.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let parts = options.parts.pin()?;
    let (guest, task) = wanted(&parts.products, options)?;
    let mut shown = Shown {
        ran: matches!(task, Task::Command { .. }),
    };
    let _claim = claim(&options.output)?;
    let logs = options.output.join("log");
    fs::create_dir_all(&logs)?;
    let mut gpu = guest.gpu.clone();
    gpu.extend(prepare(&logs, &options.output)?);
    let job = Job {
        module: Some(module(&guest, parts.patience)),
        task,
        patience: parts.patience,
        symbols: parts.symbols(),
        trace: true,
    };
    let config = Config {
        gpu,
        cmdline: guest.cmdline.clone(),
        iommu: guest.iommu,
        second_gpu: guest.second_gpu,
        machine: guest.machine.clone(),
        may_die_of: guest.may_die_of.clone(),
        output: logs.clone(),
        ..Config::default()
    };
    if parts.gdb.is_some() {
        gdb::announce(&parts, &logs)?;
    }
    let end = boot(&parts, &config, &job, &mut shown)?;
    let well = conclude(&end, &logs, Some(&options.output))?;
    if !shown.ran {
        bail!("no test ran that had to: that is not a success");
    }
    Ok(well)
}

/// The guest that the program wants, and what it is to do there.
fn wanted(products: &Path, options: &Options) -> Result<(Guest, Task)> {
    let program = &options.program;
    if program.is_empty() {
        bail!("PROGRAM=: a kselftest, schedule for one, or an example, first for one");
    }
    let entry = |entry: &&String| entry.split(':').next_back() == Some(program);
    let guests = plan::read(&products.join("kselftest"))?;
    for guest in guests {
        if let Some(entry) = guest.programs.iter().find(entry) {
            if guest.sleeps {
                bail!("PROGRAM={program}: a guest that sleeps can leave no trace");
            }
            let task = Task::Tests {
                programs: vec![entry.clone()],
                filter: options
                    .pattern
                    .clone()
                    .filter(|pattern| !pattern.is_empty()),
                kunit: false,
                evict: false,
                points: None,
                sleeps: false,
            };
            return Ok((guest, task));
        }
    }
    if program.contains('/') || !products.join("bin").join(program).exists() {
        bail!("PROGRAM={program}: neither a kselftest nor a program of the guest");
    }
    let argv = vec![program.clone()];
    Ok((Guest::default(), Task::Command { argv }))
}

/// Options of the GPU server with which it leaves its record beside the logs. An older one, and
/// what an older guest has left, are gone then.
pub(crate) fn record(logs: &Path) -> Result<[String; 2]> {
    remove(logs, &[RECORD, TRACE])?;
    let path = logs.canonicalize()?.join(RECORD);
    Ok(["--events".to_owned(), path.display().to_string()])
}

/// The same for a run that is to be shown in `output`: so is what an older one was shown as.
pub(crate) fn prepare(logs: &Path, output: &Path) -> Result<[String; 2]> {
    remove(output, &SHOWN)?;
    record(logs)
}

/// Removes those of a directory's files that are there.
pub(crate) fn remove(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| (*name).to_owned());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Says what is wrong with a guest that is off, and shows in `traced`, if it was, what was
/// recorded, whatever came of the run. Returns whether its job is done and all is well with it.
pub(crate) fn conclude(end: &Boot, logs: &Path, traced: Option<&Path>) -> Result<bool> {
    for complaint in &end.broken {
        eprintln!("skua-vm: {complaint}");
    }
    let shown = traced.map_or(Ok(()), |output| show(logs, output));
    let Some(exit) = end.exit else {
        bail!("the guest did not finish: {}/console.log", logs.display());
    };
    shown?;
    Ok(exit == 0 && end.broken.is_empty())
}

/// Makes of both records what can be looked at, in `output`, and says where. Of a guest that died
/// there is the device's alone.
fn show(logs: &Path, output: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = logs.join(name);
        // A task's name may be any bytes.
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    };
    let record = read(RECORD)?.context("the device left no record")?;
    let record = device::parse(&record).context("the device's record")?;
    let trace = read(TRACE)?.unwrap_or_else(|| {
        eprintln!("skua-vm: the guest left no trace: the device's record is shown alone");
        String::new()
    });
    let timeline = Timeline::new(&record, &guest::parse(&trace));
    if timeline.lost != 0 {
        eprintln!(
            "skua-vm: the guest lost {} events of the trace",
            timeline.lost
        );
    }
    if timeline.full {
        eprintln!("skua-vm: the device's record was full before the run was over");
    }
    let made = [
        perfetto::encode(&timeline),
        page::render(&timeline)?.into_bytes(),
    ];
    for (name, bytes) in SHOWN.iter().zip(made) {
        let path = output.join(name);
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        println!("trace:   {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a packet that an engine has begun, and that the driver has written.
    const RECORDS: [(&str, &str); 2] = [
        (
            RECORD,
            "# skua-events 1 engines=copy\n1 0 2 begin packet=1 context=1 asid=2 resume=0\n",
        ),
        (
            TRACE,
            "prog-7 [000] ..... 2.000001: skua_packet: dev=d, engine=0, fence=9:1, packet=1\n",
        ),
    ];

    fn page(output: &Path) -> Option<String> {
        fs::read_to_string(output.join("trace.html")).ok()
    }

    #[test]
    fn a_run_that_failed_is_shown_too() {
        let output = tempfile::tempdir().expect("a directory");
        let output = output.path();
        for (exit, records) in [(Some(0), 2), (Some(1), 2), (None, 2), (None, 1)] {
            prepare(output, output).expect("options");
            for (name, text) in &RECORDS[..records] {
                fs::write(output.join(name), text).expect("a record");
            }
            let mut end = Boot::default();
            end.exit = exit;
            let well = conclude(&end, output, Some(output));
            assert_eq!(well.ok(), exit.map(|exit| exit == 0));
            let page = page(output).expect("a page");
            assert_eq!(page.contains("\"fence\":\"9:1\""), records == 2, "{exit:?}");
            assert!(output.join("trace.pftrace").exists());
        }
        // Not one without a record, nor where none was asked for.
        prepare(output, output).expect("options");
        let mut end = Boot::default();
        end.exit = Some(0);
        assert!(conclude(&end, output, Some(output)).is_err());
        assert!(conclude(&end, output, None).is_ok_and(|well| well));
        assert_eq!(page(output), None);
    }

    #[test]
    fn what_an_older_run_has_left_is_gone() {
        let output = tempfile::tempdir().expect("a directory");
        let logs = output.path().join("log");
        fs::create_dir(&logs).expect("a directory");
        let mut old = [RECORD, TRACE].map(|name| logs.join(name)).to_vec();
        old.extend(SHOWN.map(|name| output.path().join(name)));
        for path in &old {
            fs::write(path, "old").expect("a file");
        }
        let options = prepare(&logs, output.path()).expect("options");
        assert!(options[1].ends_with("/log/device.events"), "{options:?}");
        assert_eq!(old.iter().filter(|path| path.exists()).count(), 0);
    }
}
