// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket: lies to order while the guest runs.
//!
//! A request is a line, `lie` and the lies that are told from then on, none for an honest device:
//! `lie fence-never vram-size=2^40`. The answer is a line, `ok` when it holds, or `error` and why.

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
            Ok(()) => "ok\n".to_owned(),
            Err(error) => format!("error {error:#}\n"),
        };
        let mut stream = stream;
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn obey(request: &str, device: &Weak<Device>) -> Result<()> {
    let mut words = request.split_whitespace();
    if words.next() != Some("lie") {
        bail!("no such request: {request}");
    }
    let lies = words.map(str::parse).collect::<Result<Vec<Lie>, _>>()?;
    let device = device.upgrade().context("the device has ended")?;
    device.lie(&lies)?;
    tracing::info!(request);
    Ok(())
}
