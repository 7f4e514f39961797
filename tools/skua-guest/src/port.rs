// SPDX-License-Identifier: MIT

//! The writing end of the second serial port ([`skua_guest::wire`]).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use nix::errno::Errno;
use nix::sys::termios::{cfmakeraw, tcdrain, tcgetattr, tcsetattr, SetArg};
use skua_guest::wire::{Message, PORT};

/// A virtio port to the host; messages are lines.
pub(crate) struct Port(File);

impl Port {
    /// Opens [`PORT`], which may be open several times.
    pub(crate) fn open() -> io::Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(PORT)
            .map(Self)
    }

    /// Writes a message as one line, in one piece.
    pub(crate) fn say(&mut self, message: &Message) -> io::Result<()> {
        self.write_all(format!("{message}\n").as_bytes())
    }
}

/// What is written at once stays whole among other writers.
impl Write for Port {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    /// Waits until the host has all that was written.
    fn flush(&mut self) -> io::Result<()> {
        loop {
            match tcdrain(&self.0) {
                // A guest that wakes from sleep interrupts its processes.
                Err(Errno::EINTR) => (),
                drained => return Ok(drained?),
            }
        }
    }
}

/// Makes the port carry bytes as they are, without echo.
pub(crate) fn make_raw() -> anyhow::Result<()> {
    let port = Port::open()?;
    let mut settings = tcgetattr(&port.0)?;
    cfmakeraw(&mut settings);
    tcsetattr(&port.0, SetArg::TCSANOW, &settings)?;
    // Held open by nobody else, the port would fall back to its defaults.
    std::mem::forget(port);
    Ok(())
}
