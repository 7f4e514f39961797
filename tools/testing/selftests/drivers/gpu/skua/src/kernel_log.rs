// SPDX-License-Identifier: MIT

//! The kernel's log, as `/dev/kmsg` has it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

/// The log from some time on.
pub struct KernelLog(File);

/// A record of the log.
pub struct Record {
    /// From 0 (an emergency) to 7 (for debugging); 4 is a warning.
    pub level: u32,
    /// Its text.
    pub message: String,
}

impl KernelLog {
    /// From now on.
    #[track_caller]
    pub fn from_now() -> Self {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open("/dev/kmsg")
            .expect("/dev/kmsg");
        file.seek(SeekFrom::End(0)).expect("the end of the log");
        Self(file)
    }

    /// What was logged since the last call. Panics if some of it was overwritten: that is a flood.
    #[track_caller]
    pub fn records(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => return records,
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&record[..bytes]);
                    let (prefix, message) = text.split_once(';').expect("a prefix");
                    let priority = prefix.split(',').next().and_then(|n| n.parse::<u32>().ok());
                    records.push(Record {
                        level: priority.expect("a number") & 7,
                        message: message.lines().next().unwrap_or_default().to_owned(),
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return records,
                Err(error) => panic!("/dev/kmsg: {error}"),
            }
        }
    }
}
