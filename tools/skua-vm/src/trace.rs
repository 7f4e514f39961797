// SPDX-License-Identifier: MIT

//! `skua-vm trace`: runs one program in a guest and shows what driver and device did meanwhile; and
//! the same for `skua-vm run`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Args;
use skua_guest::job::{Job, Task, TRACE};
use skua_trace::{device, guest, page, perfetto, Timeline};

use crate::gdb;
use crate::guest::{boot, Watch};
use crate::machine::{claim, Config};
use crate::plan::{self, Guest};
use crate::report::Test;
use crate::test::module;
use crate::Parts;

/// The device's record, beside the logs.
pub(crate) const RECORD: &str = "device.events";

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
struct Shown;

impl Watch for Shown {
    fn words(&mut self, line: &str) {
        println!("{line}");
    }

    fn ended(&mut self, test: Test) {
        println!("{:?}: {}", test.result, test.test);
    }
}

/// Runs the program; returns whether it was content.
pub(crate) fn main(options: &Options) -> Result<bool> {
    let parts = options.parts.pin()?;
    let (guest, task) = wanted(&parts.products, options)?;
    let _claim = claim(&options.output)?;
    let logs = options.output.join("log");
    fs::create_dir_all(&logs)?;
    let mut gpu = guest.gpu.clone();
    gpu.extend(record(&logs)?);
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
        may_die_of: guest.may_die_of.clone(),
        output: logs.clone(),
        ..Config::default()
    };
    if parts.gdb.is_some() {
        gdb::announce(&parts, &logs)?;
    }
    let end = boot(&parts, &config, &job, &mut Shown)?;
    for complaint in &end.broken {
        eprintln!("skua-vm: {complaint}");
    }
    let Some(exit) = end.exit else {
        bail!("the guest did not finish: {}/console.log", logs.display());
    };
    show(&logs, &options.output)?;
    Ok(exit == 0 && end.broken.is_empty())
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
    for old in [RECORD, TRACE] {
        match fs::remove_file(logs.join(old)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| old.to_owned());
            }
            _ => {}
        }
    }
    let path = logs.canonicalize()?.join(RECORD);
    Ok(["--events".to_owned(), path.display().to_string()])
}

/// Makes of both records what can be looked at, in `output`, and says where.
pub(crate) fn show(logs: &Path, output: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = logs.join(name);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        // A task's name may be any bytes.
        anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let record = device::parse(&read(RECORD)?).context("the device's record")?;
    let timeline = Timeline::new(&record, &guest::parse(&read(TRACE)?));
    if timeline.lost != 0 {
        eprintln!(
            "skua-vm: the guest lost {} events of the trace",
            timeline.lost
        );
    }
    if timeline.full {
        eprintln!("skua-vm: the device's record was full before the run was over");
    }
    for (name, bytes) in [
        ("trace.pftrace", perfetto::encode(&timeline)),
        ("trace.html", page::render(&timeline)?.into_bytes()),
    ] {
        let path = output.join(name);
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        println!("trace:   {}", path.display());
    }
    Ok(())
}
