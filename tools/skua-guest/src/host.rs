// SPDX-License-Identifier: MIT

//! Requests to the host that runs this guest, for tests that need a hand outside it; and what its
//! test runner is told of errors to come.
//!
//! | request | what happens | answer |
//! |---|---|---|
//! | `ping` | nothing | `ok` |
//! | `gpu-kill` | SIGKILL to the GPU server while the guest stands still: a surprise removal | `ok` when it is gone |
//! | `gpu-stop` | SIGSTOP: a hung bus; a register read stops the CPU | `ok` when it stands still |
//! | `gpu-cont` | SIGCONT | `ok` |
//! | `gpu-lie NAME[=VALUE]…` | from now on it tells these lies; none: no more | `ok` when it does |
//! | `gpu-told` | nothing | `ok NAME=COUNT…`: how often each of these lies was told since |
//! | `gpu-steps SEED` | engines look behind random numbers of ticks whether they are to stop; 0: as seldom as they may | `ok` when they do |
//! | `gpu-gart PAGE` | nothing | `ok ENTRY WORD`: the GART's entry for the page of its window, and the first 8 bytes that the GPU finds there |
//! | `gpu-pause MS` | SIGSTOP, and SIGCONT by itself after MS milliseconds | `ok` at once |
//! | `wake` | from now on the guest is woken when it sleeps (S3); no `gpu-kill` is to be had then | `ok COUNT`: how often it was |
//!
//! The device cannot be unplugged from outside: QEMU 11.1 aborts when it takes a
//! `vfio-user-pci` device apart. What a guest sees of a removal is had by `gpu-kill`, after which
//! every register reads as ones, and by `remove` of the device in sysfs.
//!
//! After the last test of a program that killed the server there is no GPU in this guest: such
//! tests belong in a program of their own, with a guest of its own (`guests.json`).

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::clock::Clock;
use crate::wire::{Message, PORT};

/// How long the host may take to answer, of the time that it lets the guest run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the requests of a process apart.
static SEQUENCE: AtomicU32 = AtomicU32::new(0);

/// What a kernel message that announces errors says before them.
pub const EXPECT: &str = "skua-expect: ";

/// Announces that the running test program makes the driver complain in these words, at error
/// level; no words are any. An error that is not announced fails the test that runs.
///
/// # Errors
///
/// If the kernel's log cannot be written to.
pub fn expect_error(words: &str) -> io::Result<()> {
    std::fs::write("/dev/kmsg", format!("<6>{EXPECT}{words}\n"))
}

/// Lies that the device tells while this lives: a test that fails with it leaves it to none behind.
#[must_use]
#[derive(Debug)]
pub struct Lies(());

impl Lies {
    /// Has it tell these, and no others.
    ///
    /// # Errors
    ///
    /// As [`request`].
    pub fn tell(lies: &str) -> io::Result<Self> {
        let told = Self(());
        request(&format!("gpu-lie {lies}")).map(|_| told)
    }

    /// Has it tell others instead.
    ///
    /// # Errors
    ///
    /// As [`request`].
    pub fn change(&self, lies: &str) -> io::Result<()> {
        request(&format!("gpu-lie {lies}")).map(drop)
    }

    /// How often it has told one of them; 0 if that is none of them. Lies that come by themselves,
    /// from time to time, are not counted.
    ///
    /// # Errors
    ///
    /// As [`request`].
    pub fn told(&self, lie: &str) -> io::Result<u64> {
        let told = request("gpu-told")?;
        let mut counts = told.split(' ').filter_map(|word| word.split_once('='));
        let count = counts.find(|(name, _)| *name == lie);
        Ok(count.and_then(|(_, count)| count.parse().ok()).unwrap_or(0))
    }
}

impl Drop for Lies {
    fn drop(&mut self) {
        // Without an answer there is no device that could lie.
        let _ = request("gpu-lie ");
    }
}

/// Engines that look behind random numbers of ticks whether they are to stop, while this lives.
#[must_use]
#[derive(Debug)]
pub struct RandomSteps(());

impl RandomSteps {
    /// The numbers of a seed, which is not 0.
    ///
    /// # Errors
    ///
    /// As [`request`].
    pub fn of(seed: u64) -> io::Result<Self> {
        request(&format!("gpu-steps {seed}")).map(|_| Self(()))
    }
}

impl Drop for RandomSteps {
    fn drop(&mut self) {
        // Without an answer there is no device.
        let _ = request("gpu-steps 0");
    }
}

/// Asks the host and returns what follows `ok`, usually nothing.
///
/// Requests of all processes of the guest are answered one at a time.
///
/// # Errors
///
/// [`io::ErrorKind::TimedOut`] without an answer within a minute, [`io::ErrorKind::Other`] with
/// the host's words if it refuses, else what the serial port returned.
pub fn request(request: &str) -> io::Result<String> {
    let file = OpenOptions::new().read(true).write(true).open(PORT)?;
    let mut port = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let id = format!(
        "{}.{}",
        std::process::id(),
        SEQUENCE.fetch_add(1, Ordering::Relaxed)
    );
    let question = Message::Ask {
        id: id.clone(),
        request: request.replace(['\r', '\n'], " "),
    };
    port.write_all(format!("{question}\n").as_bytes())?;

    let mut clock = Clock::of_guest();
    let mut line = Vec::new();
    loop {
        if clock.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut ready = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(1000u16)) {
            // A guest that wakes from sleep interrupts its processes.
            Ok(0) | Err(Errno::EINTR) => continue,
            ready => ready?,
        };
        let mut byte = [0];
        if port.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if byte[0] != b'\n' {
            line.push(byte[0]);
            continue;
        }
        let text = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
        // An answer to somebody who gave up waiting is dropped.
        if let Some(Message::Answer { id: of, answer }) = Message::parse(&text) {
            if of == id {
                return match answer.strip_prefix("ok") {
                    Some(rest) => Ok(rest.trim().to_owned()),
                    None => Err(io::Error::other(answer)),
                };
            }
        }
    }
}
