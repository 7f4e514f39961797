// SPDX-License-Identifier: MIT

//! What can go wrong.
//!
//! An [`Error`] tells where something failed; [`Error::kind`] tells what a program can do about it,
//! and [`Error::errno`] what the kernel said. Which call returns which errno, and when, is the
//! business of the uAPI's header.

use std::path::PathBuf;

use crate::sync::Outcome;

/// The kernel's error number.
pub use rustix::io::Errno;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call of this crate failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An ioctl failed.
    #[error("{name}: {errno}")]
    Ioctl {
        /// The ioctl's name, as in the header.
        name: &'static str,
        /// The kernel's error number.
        errno: Errno,
    },
    /// Another system call failed.
    #[error("{name}: {errno}")]
    System {
        /// The system call's name.
        name: &'static str,
        /// The kernel's error number.
        errno: Errno,
    },
    /// A device node or a file of sysfs could not be opened or read.
    #[error("{}: {errno}", path.display())]
    Path {
        /// The file that was to be opened or read.
        path: PathBuf,
        /// The kernel's error number.
        errno: Errno,
    },
    /// No device of ours is here, or the driver is not loaded.
    #[error("no Skua GPU found: is the driver loaded?")]
    NoDevice,
    /// The file is not a node of the skua driver.
    #[error("the node belongs to the driver {driver:?}")]
    OtherDriver {
        /// The driver that it belongs to.
        driver: String,
    },
    /// The driver answered with what this version of the library does not understand.
    #[error("the driver's answer has no meaning: {0}")]
    Answer(&'static str),
    /// An access outside of a mapping, not aligned for its type, or a write to what is read-only.
    #[error("{bytes} bytes at {offset:#x} are not accessible in a mapping of {len:#x} bytes")]
    Range {
        /// Bytes from the start of the mapping.
        offset: usize,
        /// Bytes that were to be accessed.
        bytes: usize,
        /// Bytes of the mapping.
        len: usize,
    },
    /// The commands do not fit into the buffer.
    #[error("no room for {bytes} bytes of commands: {left} bytes are left")]
    Full {
        /// Bytes that the command needs.
        bytes: usize,
        /// Bytes left in the buffer.
        left: usize,
    },
    /// More would be resident for a client's device than its budget.
    #[error("{bytes} bytes more than the device's budget")]
    OverBudget {
        /// Bytes that would exceed it.
        bytes: u64,
    },
    /// Work ended, but not well.
    #[error("the work failed: {0}")]
    Work(Outcome),
    /// An argument that cannot be passed on to the driver.
    #[error("{0}")]
    Argument(&'static str),
}

/// What a program can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such device or node (ENOENT on a path, no device found).
    NoDevice,
    /// The device is gone for good: open it anew once it is back (ENODEV).
    Gone,
    /// The device does not answer any more; an administrator must rebind it (EIO).
    Dead,
    /// No such handle (ENOENT).
    NotFound,
    /// An argument is out of its range (EINVAL, E2BIG, EFAULT, and errors of this library).
    Invalid,
    /// VRAM or another resource of the device has no room (ENOSPC).
    NoSpace,
    /// No system memory (ENOMEM).
    NoMemory,
    /// The context takes no more work: see its state (ECANCELED).
    Cancelled,
    /// The time is up (ETIME, ETIMEDOUT).
    TimedOut,
    /// Not permitted for this object or user (EPERM, EACCES).
    Denied,
    /// The driver or the kernel has no such operation (EOPNOTSUPP, ENOTTY).
    NotSupported,
    /// Work failed; the [`Outcome`] tells how.
    Work,
    /// What has no kind of its own.
    Other,
}

impl Error {
    /// What the kernel said, where it was the kernel.
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Ioctl { errno, .. } | Self::System { errno, .. } | Self::Path { errno, .. } => {
                Some(*errno)
            }
            _ => None,
        }
    }

    /// What can be done about it.
    pub fn kind(&self) -> ErrorKind {
        let errno = match self {
            Self::NoDevice | Self::OtherDriver { .. } => return ErrorKind::NoDevice,
            Self::Answer(_) => return ErrorKind::NotSupported,
            Self::Range { .. } | Self::Full { .. } | Self::Argument(_) => {
                return ErrorKind::Invalid
            }
            Self::Work(_) => return ErrorKind::Work,
            Self::OverBudget { .. } => return ErrorKind::NoMemory,
            Self::Path {
                errno: Errno::NOENT,
                ..
            } => return ErrorKind::NoDevice,
            Self::Ioctl { errno, .. } | Self::System { errno, .. } | Self::Path { errno, .. } => {
                *errno
            }
        };
        match errno {
            Errno::NODEV | Errno::NXIO => ErrorKind::Gone,
            Errno::IO => ErrorKind::Dead,
            Errno::NOENT => ErrorKind::NotFound,
            Errno::INVAL | Errno::TOOBIG | Errno::FAULT => ErrorKind::Invalid,
            Errno::NOSPC => ErrorKind::NoSpace,
            Errno::NOMEM => ErrorKind::NoMemory,
            Errno::CANCELED => ErrorKind::Cancelled,
            Errno::TIME | Errno::TIMEDOUT => ErrorKind::TimedOut,
            Errno::PERM | Errno::ACCESS => ErrorKind::Denied,
            Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS => ErrorKind::NotSupported,
            _ => ErrorKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_header() {
        let ioctl = |errno| {
            Error::Ioctl {
                name: "SUBMIT",
                errno,
            }
            .kind()
        };
        assert_eq!(ioctl(Errno::NODEV), ErrorKind::Gone);
        assert_eq!(ioctl(Errno::IO), ErrorKind::Dead);
        assert_eq!(ioctl(Errno::NOENT), ErrorKind::NotFound);
        assert_eq!(ioctl(Errno::CANCELED), ErrorKind::Cancelled);
        assert_eq!(ioctl(Errno::NOSPC), ErrorKind::NoSpace);
        assert_eq!(ioctl(Errno::MFILE), ErrorKind::Other);
    }

    #[test]
    fn a_missing_node_is_no_missing_handle() {
        let error = Error::Path {
            path: "/dev/dri/renderD128".into(),
            errno: Errno::NOENT,
        };
        assert_eq!(error.kind(), ErrorKind::NoDevice);
        assert_eq!(error.errno(), Some(Errno::NOENT));
    }
}
