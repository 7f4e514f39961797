// SPDX-License-Identifier: MIT

//! `skua-vm shell`: an interactive guest, the terminal handed through to its console.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{bail, Result};
use clap::Args;
use nix::sys::termios::{cfmakeraw, tcgetattr, tcsetattr, SetArg, Termios};
use skua_guest::job::{Job, Task};
use skua_guest::wire::Message;

use crate::gdb;
use crate::machine::{claim, Config, Machine};
use crate::Parts;

/// Options of `skua-vm shell`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    parts: Parts,
    /// The directory that the guest sees as /mnt/out.
    #[arg(long, default_value = "out/shell")]
    output: PathBuf,
    /// Rows and columns of the terminal.
    #[arg(long, num_args = 2, default_values_t = [24, 80])]
    size: Vec<u16>,
    /// More options of the GPU server.
    #[arg(last = true)]
    gpu_options: Vec<String>,
}

/// The terminal without line editing and signals of its own, until dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn new() -> Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is no better terminal to fall back to.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Runs the shell; returns whether the guest ended in order.
pub(crate) fn main(options: &Options) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("a shell wants a terminal");
    }
    let _claim = claim(&options.output)?;
    let parts = options.parts.pin()?;
    let job = Job {
        module: Some(String::new()),
        task: Task::Shell {
            size: (options.size[0], options.size[1]),
            term: std::env::var("TERM").unwrap_or_else(|_| "vt100".into()),
        },
        patience: parts.patience,
        symbols: parts.symbols(),
        trace: false,
    };
    let config = Config {
        gpu: options.gpu_options.clone(),
        interactive: true,
        output: options.output.clone(),
        ..Config::default()
    };
    if parts.gdb.is_some() {
        gdb::announce(&parts, &options.output)?;
    }
    println!("a guest with the driver loaded: `exit` turns it off, /mnt/out is out/shell");
    let terminal = RawTerminal::new()?;
    let mut machine = Machine::start(&parts, &config, &job)?;
    let mut control = machine.control()?;
    let mut exit = None;
    // Until the guest closes the port by being off.
    for line in BufReader::new(machine.control()?).lines() {
        match Message::parse(&line?) {
            Some(Message::Exit(status)) => exit = Some(status),
            Some(Message::Ask { id, request }) => {
                let answer = machine.answer(&request);
                writeln!(control, "{}", Message::Answer { id, answer })?;
            }
            _ => {}
        }
    }
    let end = machine.end();
    drop(terminal);
    println!();
    if let Some(words) = end {
        bail!(words);
    }
    Ok(exit.is_some())
}
