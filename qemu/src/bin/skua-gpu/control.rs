// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket: lies to order while the guest runs, and looks at what the device sees.
//!
//! A request is a line, and so is the answer: `ok`, or `error` and why.
//!
//! | request | what happens | answer |
//! |---|---|---|
//! | `lie NAME[=VALUE]…` | these lies are told from now on; none: it is honest | `ok` |
//! | `told` | nothing | `ok NAME=COUNT…`: how often each of them was told since |
//! | `steps SEED` | engines look behind random numbers of ticks whether they are to stop; 0: as seldom as they may | `ok` |
//! | `gart PAGE` | nothing | `ok ENTRY WORD`: the GART's entry, and what is first in that page |

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};

use anyhow::{bail, Context, Result};
use skua_gpu::device::Device;
use skua_gpu::lie::Lie;

/// Listens on `path` for as long as `device` is there.
pub(crate) fn listen(path: &Path, device: &Arc<Device>) -> Result<()> {
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
    let device = Arc::downgrade(device);
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            for stream in listener.incoming() {
                if let Err(error) = stream.and_then(|stream| serve(&stream, &device)) {
                    tracing::warn!(%error, "control");
                }
            }
        })?;
    Ok(())
}

/// Answers the requests of one connection.
fn serve(stream: &UnixStream, device: &Weak<Device>) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let answer = match obey(&line?, device) {
            Ok(answer) => format!("{}\n", format!("ok {answer}").trim_end()),
            Err(error) => format!("error {error:#}\n"),
        };
        let mut stream = stream;
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn obey(request: &str, device: &Weak<Device>) -> Result<String> {
    let mut words = request.split_whitespace();
    let verb = words.next();
    let device = device.upgrade().context("the device has ended")?;
    match verb {
        Some("lie") => {
            device.lie(&words.map(str::parse).collect::<Result<Vec<Lie>, _>>()?)?;
            tracing::info!(request);
            Ok(String::new())
        }
        Some("told") => {
            let told = device.told();
            let told = told.iter().map(|(name, times)| format!("{name}={times}"));
            Ok(told.collect::<Vec<_>>().join(" "))
        }
        Some("steps") => {
            device.draw_steps(words.next().context("a seed")?.parse()?);
            Ok(String::new())
        }
        Some("gart") => {
            let page = words.next().context("a page")?.parse()?;
            let (entry, word) = device.look_at_gart(page).context("there is no page")?;
            Ok(format!("{:#x} {word:#x}", entry.0))
        }
        _ => bail!("no such request: {request}"),
    }
}
