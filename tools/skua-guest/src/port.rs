// SPDX-License-Identifier: MIT

//! The writing end of the second serial port ([`skua_guest::wire`]).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use nix::sys::termios::{cfmakeraw, tcgetattr, tcsetattr, SetArg};
use skua_guest::wire::{Message, PORT};

/// An open port.
pub(crate) struct Port(File);

impl Port {
    /// Opens it.
    pub(crate) fn open() -> io::Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(PORT)
            .map(Self)
    }

    /// Writes a line, whole among other writers.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        let mut text = String::with_capacity(line.len() + 1);
        text.push_str(line);
        text.push('\n');
        self.0.write_all(text.as_bytes())
    }

    /// Writes a message.
    pub(crate) fn say(&mut self, message: &Message) -> io::Result<()> {
        self.line(&message.to_string())
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
