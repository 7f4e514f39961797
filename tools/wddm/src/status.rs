// SPDX-License-Identifier: MIT

//! Status codes: what WDDM's calls return.
//!
//! A [`Status`] is an NTSTATUS, the 32-bit number that the D3DKMT functions return; those from 0
//! to `0x7fffffff` are successes. This file holds the table of the codes that this library returns
//! and the only translation between them and the kernel's error numbers:
//!
//! ```text
//!   ioctl ── errno ──▶ libskua::Error ── From ──▶ Status ── to_errno ──▶ a caller that wants errno
//! ```
//!
//! The pairs that go both ways, by [`Status::from_errno`] and [`Status::to_errno`], are those of
//! the public libdxg, which D3DKMT clients on Linux know, with one addition: a lack of video memory
//! has an errno of its own (ENOSPC), as DRM drivers have it, where libdxg's table merges it with
//! ENOMEM. What else DRM drivers say, and this library's other statuses, are next to what they
//! resemble, and do not come back as what they were.

use std::fmt;

use libskua::{Errno, Error, ErrorKind, Outcome};

/// What a call gives, or the code that WDDM has for why not.
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// A status code (NTSTATUS).
///
/// ```
/// use wddm::Status;
///
/// assert_eq!(Status::INVALID_PARAMETER.value(), 0xc000_000d_u32 as i32);
/// assert_eq!(Status::INVALID_PARAMETER.name(), "STATUS_INVALID_PARAMETER");
/// assert!(Status::PENDING.is_success() && !Status::NO_MEMORY.is_success());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u32);

macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[doc = $doc])* pub const $name: Self = Self($value);)*

            /// All codes that have a name here.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name that WDDM's headers give it; empty if it has none here.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    /// The call did what it was to do.
    SUCCESS = 0x0000_0000, "STATUS_SUCCESS";
    /// The time was up first. A success code in NTSTATUS's terms; functions of this library
    /// return it as an error, since what was waited for is not there.
    TIMEOUT = 0x0000_0102, "STATUS_TIMEOUT";
    /// It will be done when a fence says so.
    PENDING = 0x0000_0103, "STATUS_PENDING";
    /// It failed for a reason without a code of its own.
    UNSUCCESSFUL = 0xc000_0001, "STATUS_UNSUCCESSFUL";
    /// The handle names nothing, or not any more.
    INVALID_HANDLE = 0xc000_0008, "STATUS_INVALID_HANDLE";
    /// An argument is out of its range, a reserved bit is set, or objects do not belong together.
    INVALID_PARAMETER = 0xc000_000d, "STATUS_INVALID_PARAMETER";
    /// No system memory.
    NO_MEMORY = 0xc000_0017, "STATUS_NO_MEMORY";
    /// The driver has no such operation: what libdxg makes of EOPNOTSUPP.
    ILLEGAL_INSTRUCTION = 0xc000_001d, "STATUS_ILLEGAL_INSTRUCTION";
    /// Not permitted for this user.
    ACCESS_DENIED = 0xc000_0022, "STATUS_ACCESS_DENIED";
    /// The buffer is too small for the answer.
    BUFFER_TOO_SMALL = 0xc000_0023, "STATUS_BUFFER_TOO_SMALL";
    /// The handle names an object of another type.
    OBJECT_TYPE_MISMATCH = 0xc000_0024, "STATUS_OBJECT_TYPE_MISMATCH";
    /// No object or node of this name.
    OBJECT_NAME_INVALID = 0xc000_0033, "STATUS_OBJECT_NAME_INVALID";
    /// An object of this name exists.
    OBJECT_NAME_COLLISION = 0xc000_0035, "STATUS_OBJECT_NAME_COLLISION";
    /// Too many objects of a kind.
    INSUFFICIENT_RESOURCES = 0xc000_009a, "STATUS_INSUFFICIENT_RESOURCES";
    /// Not supported for this object.
    NOT_SUPPORTED = 0xc000_00bb, "STATUS_NOT_SUPPORTED";
    /// The device is in error or gone: it takes no more work. [`crate::Device::state`] tells why.
    DEVICE_REMOVED = 0xc000_02b6, "STATUS_DEVICE_REMOVED";
    /// Video memory has no room.
    GRAPHICS_NO_VIDEO_MEMORY = 0xc01e_0100, "STATUS_GRAPHICS_NO_VIDEO_MEMORY";
    /// The allocation cannot be made accessible to the CPU where it is.
    GRAPHICS_CANT_LOCK_MEMORY = 0xc01e_0101, "STATUS_GRAPHICS_CANT_LOCK_MEMORY";
    /// The allocation is in use.
    GRAPHICS_ALLOCATION_BUSY = 0xc01e_0102, "STATUS_GRAPHICS_ALLOCATION_BUSY";
    /// The allocation is locked too many times.
    GRAPHICS_TOO_MANY_REFERENCES = 0xc01e_0103, "STATUS_GRAPHICS_TOO_MANY_REFERENCES";
    /// The GPU is not done with the allocation. An HRESULT (`DXGI_ERROR_WAS_STILL_DRAWING`) and
    /// not an NTSTATUS, since it never leaves the user-mode driver; a failure in both.
    WAS_STILL_DRAWING = 0x887a_000a, "DXGI_ERROR_WAS_STILL_DRAWING";
}

impl Status {
    /// The code as the C interface has it.
    pub const fn value(self) -> i32 {
        // CAST: the same bits, signed as NTSTATUS is.
        self.0 as i32
    }

    /// The code with this value, whether it has a name here or not.
    pub const fn from_value(value: i32) -> Self {
        // CAST: the same bits.
        Self(value as u32)
    }

    /// Whether it is a success (`NT_SUCCESS`): not negative.
    pub const fn is_success(self) -> bool {
        self.value() >= 0
    }

    /// What an error number of the kernel means.
    ///
    /// ```
    /// use libskua::Errno;
    /// use wddm::Status;
    ///
    /// assert_eq!(Status::from_errno(Errno::NODEV), Status::DEVICE_REMOVED);
    /// assert_eq!(Status::from_errno(Errno::NOSPC), Status::GRAPHICS_NO_VIDEO_MEMORY);
    /// ```
    pub const fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::EXIST => Self::OBJECT_NAME_COLLISION,
            Errno::NOMEM => Self::NO_MEMORY,
            Errno::INVAL => Self::INVALID_PARAMETER,
            Errno::NOENT => Self::OBJECT_NAME_INVALID,
            Errno::AGAIN => Self::TIMEOUT,
            Errno::OVERFLOW => Self::BUFFER_TOO_SMALL,
            Errno::NODEV => Self::DEVICE_REMOVED,
            Errno::ACCESS => Self::ACCESS_DENIED,
            Errno::NOSYS | Errno::PERM => Self::NOT_SUPPORTED,
            Errno::OPNOTSUPP => Self::ILLEGAL_INSTRUCTION,
            Errno::BADF => Self::INVALID_HANDLE,
            Errno::INPROGRESS => Self::GRAPHICS_ALLOCATION_BUSY,
            Errno::PROTOTYPE => Self::OBJECT_TYPE_MISMATCH,
            // Not in libdxg's table.
            Errno::NOSPC => Self::GRAPHICS_NO_VIDEO_MEMORY,
            Errno::BUSY => Self::GRAPHICS_ALLOCATION_BUSY,
            // What DRM says, which has no way back: a device that does not answer, a context that
            // takes no more work, time that is up, arguments that cannot be read or are too new.
            Errno::IO | Errno::CANCELED => Self::DEVICE_REMOVED,
            Errno::TIME | Errno::TIMEDOUT => Self::TIMEOUT,
            Errno::FAULT | Errno::TOOBIG => Self::INVALID_PARAMETER,
            _ => Self::UNSUCCESSFUL,
        }
    }

    /// The error number for callers that want one; `None` for a success.
    ///
    /// [`Status::TIMEOUT`] is EAGAIN, although it is a success: that is libdxg's table.
    pub const fn to_errno(self) -> Option<Errno> {
        Some(match self {
            Self::OBJECT_NAME_COLLISION => Errno::EXIST,
            Self::NO_MEMORY | Self::INSUFFICIENT_RESOURCES => Errno::NOMEM,
            Self::INVALID_PARAMETER => Errno::INVAL,
            Self::OBJECT_NAME_INVALID => Errno::NOENT,
            Self::TIMEOUT => Errno::AGAIN,
            Self::BUFFER_TOO_SMALL => Errno::OVERFLOW,
            Self::DEVICE_REMOVED => Errno::NODEV,
            Self::ACCESS_DENIED => Errno::ACCESS,
            Self::NOT_SUPPORTED | Self::GRAPHICS_CANT_LOCK_MEMORY => Errno::PERM,
            Self::ILLEGAL_INSTRUCTION => Errno::OPNOTSUPP,
            Self::INVALID_HANDLE => Errno::BADF,
            Self::GRAPHICS_ALLOCATION_BUSY
            | Self::GRAPHICS_TOO_MANY_REFERENCES
            | Self::WAS_STILL_DRAWING => Errno::INPROGRESS,
            Self::OBJECT_TYPE_MISMATCH => Errno::PROTOTYPE,
            Self::GRAPHICS_NO_VIDEO_MEMORY => Errno::NOSPC,
            _ if self.is_success() => return None,
            // Not EIO: what has no errno of its own does not say that the device is gone.
            _ => Errno::REMOTEIO,
        })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "" => write!(f, "{:#010x}", self.0),
            name => f.write_str(name),
        }
    }
}

impl std::error::Error for Status {}

impl From<Error> for Status {
    /// Where the kernel gave a number, [`Status::from_errno`] of it; otherwise by the kind of
    /// error.
    fn from(error: Error) -> Self {
        if let Error::Work(outcome) = &error {
            return match outcome {
                Outcome::Pending => Self::PENDING,
                Outcome::Done => Self::SUCCESS,
                // The device is in error.
                _ => Self::DEVICE_REMOVED,
            };
        }
        match (error.errno(), error.kind()) {
            (Some(errno), _) => Self::from_errno(errno),
            (None, ErrorKind::NoDevice) => Self::OBJECT_NAME_INVALID,
            (None, ErrorKind::Invalid) => Self::INVALID_PARAMETER,
            (None, ErrorKind::NotSupported) => Self::NOT_SUPPORTED,
            // More than a device's budget.
            (None, ErrorKind::NoMemory) => Self::NO_MEMORY,
            (None, _) => Self::UNSUCCESSFUL,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_has_one_name() {
        let names: HashSet<_> = Status::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(names.len(), Status::ALL.len());
        assert!(!names.contains(""));
        assert_eq!(Status::from_value(0x7654).to_string(), "0x00007654");
    }

    #[test]
    fn the_table_goes_both_ways() {
        for errno in [
            Errno::EXIST,
            Errno::NOMEM,
            Errno::INVAL,
            Errno::NOENT,
            Errno::AGAIN,
            Errno::OVERFLOW,
            Errno::NODEV,
            Errno::ACCESS,
            Errno::PERM,
            Errno::OPNOTSUPP,
            Errno::BADF,
            Errno::INPROGRESS,
            Errno::PROTOTYPE,
            Errno::NOSPC,
        ] {
            let status = Status::from_errno(errno);
            assert_ne!(status, Status::UNSUCCESSFUL, "{errno}");
            assert_eq!(status.to_errno(), Some(errno), "{status}");
        }
        assert_eq!(Status::from_errno(Errno::NOSYS), Status::NOT_SUPPORTED);
        assert_eq!(Status::from_errno(Errno::XDEV), Status::UNSUCCESSFUL);
    }

    #[test]
    fn failures_have_an_errno_and_successes_none() {
        for status in Status::ALL {
            let wants = !status.is_success() || *status == Status::TIMEOUT;
            assert_eq!(status.to_errno().is_some(), wants, "{status}");
        }
    }

    #[test]
    fn what_has_no_errno_of_its_own_tells_of_no_removed_device() {
        for status in Status::ALL {
            let back = status.to_errno().map(Status::from_errno);
            let is_removed = back == Some(Status::DEVICE_REMOVED);
            assert_eq!(is_removed, *status == Status::DEVICE_REMOVED, "{status}");
        }
    }

    #[test]
    fn work_that_failed_is_a_removed_device() {
        for outcome in [Outcome::Fault, Outcome::TimedOut, Outcome::Cancelled] {
            assert_eq!(Status::from(Error::Work(outcome)), Status::DEVICE_REMOVED);
        }
    }
}
