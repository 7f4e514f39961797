// SPDX-License-Identifier: MIT

//! The vocabulary of synchronisation: deadlines, outcomes of work, and what an ioctl waits for and
//! signals.

use std::{fmt, sync::Arc, time::Duration};

use rustix::{io::Errno, time::ClockId};
use skua_uapi as uapi;

use crate::{
    device::File,
    error::{Error, Result},
    monitored_fence::MonitoredFence,
    syncobj::Syncobj,
};

/// A moment of CLOCK_MONOTONIC up to which to wait.
///
/// Absolute, so that a wait that a signal interrupts goes on to the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(i64);

impl Deadline {
    /// Already past: to look, and not to wait.
    pub const NOW: Self = Self(0);
    /// The last moment that the kernel can tell, some 292 years after the first.
    pub const NEVER: Self = Self(i64::MAX);

    /// The moment after this much time.
    pub fn after(time: Duration) -> Self {
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Self(Self::clock().saturating_add(time))
    }

    /// The moment at which CLOCK_MONOTONIC shows this many nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds of CLOCK_MONOTONIC.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Time until then, zero if it is past.
    pub fn left(self) -> Duration {
        // Not negative after `max`.
        Duration::from_nanos(
            u64::try_from(self.0.saturating_sub(Self::clock()).max(0)).unwrap_or(0),
        )
    }

    /// What CLOCK_MONOTONIC shows, in nanoseconds.
    pub fn clock() -> i64 {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        now.tv_sec
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec)
    }
}

impl From<Duration> for Deadline {
    fn from(time: Duration) -> Self {
        Self::after(time)
    }
}

/// How work ended, or that it did not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The work has not ended yet.
    Pending,
    /// All its work was done, without a fault.
    Done,
    /// It accessed an address that it may not access (EFAULT).
    Fault,
    /// A command or a program was malformed, or executed TRAP (EINVAL).
    Malformed,
    /// It used up its time and was cut (ETIME).
    TimedOut,
    /// It did not start: its context is not active, was destroyed, or what it waited for failed
    /// (ECANCELED).
    Cancelled,
    /// The device was unplugged or stopped answering (ENODEV).
    DeviceLost,
    /// It ended, and the kernel has forgotten how; it may have failed. Only a point of a timeline
    /// that is followed by another ends like this: see [`Syncobj::outcome`].
    Unknown,
    /// It failed in a way that the header does not list.
    Other(Errno),
}

impl Outcome {
    /// The outcome with the status of a fence, as SYNC_IOC_FILE_INFO shows it: 0 active, 1
    /// signalled, negative failed.
    pub fn from_status(status: i32) -> Self {
        if status == 0 {
            return Self::Pending;
        }
        if status > 0 {
            return Self::Done;
        }
        match Errno::from_raw_os_error(status.saturating_neg()) {
            Errno::FAULT => Self::Fault,
            Errno::INVAL => Self::Malformed,
            Errno::TIME => Self::TimedOut,
            Errno::CANCELED => Self::Cancelled,
            Errno::NODEV => Self::DeviceLost,
            errno => Self::Other(errno),
        }
    }

    /// Whether the work ended, one way or another.
    pub const fn has_ended(self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// The errno that the fence carries; none if it is done, pending or unknown.
    pub const fn errno(self) -> Option<Errno> {
        Some(match self {
            Self::Pending | Self::Done | Self::Unknown => return None,
            Self::Fault => Errno::FAULT,
            Self::Malformed => Errno::INVAL,
            Self::TimedOut => Errno::TIME,
            Self::Cancelled => Errno::CANCELED,
            Self::DeviceLost => Errno::NODEV,
            Self::Other(errno) => errno,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "it has not ended",
            Self::Done => "it is done",
            Self::Fault => "it accessed an address that it may not access",
            Self::Malformed => "a command or program was malformed, or executed TRAP",
            Self::TimedOut => "it used up its time",
            Self::Cancelled => "it was cancelled before it started",
            Self::DeviceLost => "the device was lost",
            Self::Unknown => "it ended, and the kernel has forgotten how",
            Self::Other(errno) => return write!(f, "{errno}"),
        })
    }
}

/// What an ioctl waits for before it acts, and signals when it is done.
#[derive(Clone, Debug)]
pub(crate) struct Syncs<'a> {
    /// The file that is asked. Handles of another's name nothing there, or something else.
    file: &'a Arc<File>,
    /// Whether all are of that file.
    sound: bool,
    /// Waits and signals, as ioctls take them.
    all: Vec<uapi::drm_skua_sync>,
    /// Of those that it signals, the timelines.
    timelines: Vec<&'a Syncobj>,
}

impl<'a> Syncs<'a> {
    pub(crate) const fn new(file: &'a Arc<File>) -> Self {
        Self {
            file,
            sound: true,
            all: Vec::new(),
            timelines: Vec::new(),
        }
    }

    pub(crate) fn wait(&mut self, syncobj: &Syncobj, point: u64) {
        self.push(uapi::DRM_SKUA_SYNC_WAIT, syncobj, point);
    }

    pub(crate) fn signal(&mut self, syncobj: &'a Syncobj, point: u64) {
        self.push(uapi::DRM_SKUA_SYNC_SIGNAL, syncobj, point);
        if point != 0 {
            self.timelines.push(syncobj);
        }
    }

    /// A value of a monitored fence.
    pub(crate) fn value(&mut self, flag: u32, fence: &MonitoredFence, value: u64) {
        self.expect(fence.file());
        self.all.push(uapi::drm_skua_sync {
            flags: flag | uapi::DRM_SKUA_SYNC_MONITORED,
            handle: fence.handle(),
            point: value,
        });
    }

    /// Something that the ioctl names is of this file.
    pub(crate) fn expect(&mut self, file: &Arc<File>) {
        self.sound &= Arc::ptr_eq(self.file, file);
    }

    /// Whether it waits for anything.
    pub(crate) fn waits(&self) -> bool {
        let is_wait = |sync: &uapi::drm_skua_sync| sync.flags & uapi::DRM_SKUA_SYNC_WAIT != 0;
        self.all.iter().any(is_wait)
    }

    /// The timelines that it signals.
    pub(crate) fn timelines(&self) -> &[&'a Syncobj] {
        &self.timelines
    }

    fn push(&mut self, flags: u32, syncobj: &Syncobj, point: u64) {
        self.expect(syncobj.file());
        let timeline = if point == 0 {
            0
        } else {
            uapi::DRM_SKUA_SYNC_TIMELINE
        };
        self.all.push(uapi::drm_skua_sync {
            flags: flags | timeline,
            handle: syncobj.handle(),
            point,
        });
    }

    /// As ioctls take them. [`Error::Argument`] if something is of another file.
    pub(crate) fn as_array(&self) -> Result<uapi::drm_skua_array> {
        match self.sound {
            true => Ok(array(&self.all)),
            false => Err(Error::Argument("something of another file")),
        }
    }
}

/// An array as ioctls take it. It must live until the ioctl was called.
pub(crate) fn array<T>(elements: &[T]) -> uapi::drm_skua_array {
    uapi::drm_skua_array {
        // CAST: the size of a structure of the interface, and a count that the driver refuses long
        // before it reaches 2^32.
        stride: size_of::<T>() as u32,
        count: u32::try_from(elements.len()).unwrap_or(u32::MAX),
        pointer: if elements.is_empty() {
            0
        } else {
            elements.as_ptr().expose_provenance() as u64
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_those_of_the_header() {
        for (status, outcome) in [
            (0, Outcome::Pending),
            (1, Outcome::Done),
            (-14, Outcome::Fault),
            (-22, Outcome::Malformed),
            (-62, Outcome::TimedOut),
            (-125, Outcome::Cancelled),
            (-19, Outcome::DeviceLost),
            (-5, Outcome::Other(Errno::IO)),
        ] {
            assert_eq!(Outcome::from_status(status), outcome);
            if let Some(errno) = outcome.errno() {
                assert_eq!(errno.raw_os_error(), -status);
            }
        }
    }

    #[test]
    fn deadlines_are_absolute() {
        assert_eq!(Deadline::NOW.left(), Duration::ZERO);
        assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
        let soon = Deadline::after(Duration::from_secs(60));
        assert!(soon.left() <= Duration::from_secs(60) && soon.left() > Duration::from_secs(30));
    }

    #[test]
    fn empty_arrays_have_no_address() {
        let empty = array::<uapi::drm_skua_buffer>(&[]);
        assert_eq!((empty.stride, empty.count, empty.pointer), (16, 0, 0));
    }
}
