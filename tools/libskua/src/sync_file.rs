// SPDX-License-Identifier: MIT

//! A fence as a file: what crosses to other drivers and processes, and what knows how work ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{
    error::{Error, Result},
    sync::{Deadline, Outcome},
    syncobj::poll,
    sys,
};

/// A file with one fence or several, readable when all are signalled.
#[derive(Debug)]
pub struct SyncFile {
    /// The descriptor of the sync file.
    fd: OwnedFd,
}

impl SyncFile {
    /// How the work behind it ended: the first failure of several, or pending if one is.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] if the descriptor is no sync file.
    pub fn outcome(&self) -> Result<Outcome> {
        let fences = sys::sync_file_fences(self.fd.as_fd()).map_err(|errno| Error::Ioctl {
            name: "SYNC_FILE_INFO",
            errno,
        })?;
        let mut outcome = Outcome::Done;
        for fence in fences {
            match Outcome::from_status(fence.status) {
                Outcome::Done => {}
                Outcome::Pending => outcome = Outcome::Pending,
                failed => return Ok(failed),
            }
        }
        Ok(outcome)
    }

    /// Blocks, without polling, until all its fences are signalled.
    ///
    /// # Errors
    ///
    /// ETIME if `deadline` comes first.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        poll(self.fd.as_fd(), deadline)
    }
}

impl From<OwnedFd> for SyncFile {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<SyncFile> for OwnedFd {
    fn from(file: SyncFile) -> Self {
        file.fd
    }
}

impl AsFd for SyncFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
