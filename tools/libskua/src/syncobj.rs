// SPDX-License-Identifier: MIT

//! Syncobjs: the DRM core's objects to wait for and to signal.
//!
//! A **binary** syncobj holds one fence or none; its point is 0. A **timeline** holds a fence for
//! each of a growing sequence of 64-bit points. Which one it is depends on what is put into it:
//! everything here takes a `point`, and 0 means the binary one.
//!
//! | to | call |
//! |---|---|
//! | let the GPU signal it | [`crate::Submission::signal`], [`crate::Bind::signal`] |
//! | let the GPU wait for it | [`crate::Submission::wait`], [`crate::Bind::wait`] |
//! | signal it from the CPU | [`Syncobj::signal`] |
//! | block until it is signalled | [`Syncobj::wait`], [`Syncobj::wait_many`] |
//! | get woken by a reactor | [`Syncobj::eventfd`] |
//! | know how the work ended | [`Syncobj::outcome`] |
//!
//! A wait ends when the work ended, well or not, and says nothing about how.
//!
//! # Where errors are kept
//!
//! A binary syncobj and a sync file keep how their work ended. A timeline does so only until a
//! later point has a fence: then the kernel drops fences that are signalled, with their errors,
//! takes such a point for done, and runs what waits for it. So [`Syncobj::outcome`] does not
//! believe it, and asks the contexts that signal the timeline. What must run only if other work
//! succeeded waits for a binary syncobj.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};
use skua_uapi as uapi;

use crate::{
    context::Record,
    device::{Device, File},
    error::{Error, Result},
    sync::{Deadline, Outcome},
    sync_file::SyncFile,
    sys::{self, Exchange},
};

bitflags::bitflags! {
    /// How to wait for several points.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct WaitFlags: u32 {
        /// Until all are signalled, and not just one.
        const ALL = uapi::DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL;
        /// Also for points that have no fence yet; without it they are EINVAL.
        const FOR_SUBMIT = uapi::DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT;
        /// Only until there is a fence, signalled or not.
        const AVAILABLE = uapi::DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE;
    }
}

/// A syncobj; its handle is destroyed when dropped, while what uses its fences goes on.
#[derive(Debug)]
pub struct Syncobj {
    /// Where `handle` means something.
    file: Arc<File>,
    /// DRM's; destroyed by drop.
    handle: u32,
    /// Whom to ask how points ended that the kernel has forgotten.
    signallers: Mutex<Signallers>,
}

/// Who signals points of a timeline.
#[derive(Clone, Debug, Default)]
struct Signallers {
    /// Each once; those that were destroyed with all their work done are dropped.
    contexts: Vec<Arc<Record>>,
    /// Others, too: how they fare cannot be asked.
    others: bool,
}

impl Syncobj {
    fn new(file: &Arc<File>, handle: u32, others: bool) -> Self {
        Self {
            file: file.clone(),
            handle,
            signallers: Mutex::new(Signallers {
                contexts: Vec::new(),
                others,
            }),
        }
    }

    fn signallers(&self) -> MutexGuard<'_, Signallers> {
        self.signallers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A context signals a point. Contexts that are destroyed are forgotten.
    pub(crate) fn keep(&self, context: &Arc<Record>) {
        let Signallers { contexts, others } = &mut *self.signallers();
        contexts.retain(|other| {
            let ended = other.ended();
            *others |= ended == Some(false);
            ended.is_none() && !Arc::ptr_eq(other, context)
        });
        contexts.push(context.clone());
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Something that cannot be asked signals a point.
    pub(crate) fn doubt(&self) {
        self.signallers().others = true;
    }
    /// Creates a syncobj, without a fence.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn create(device: &Device) -> Result<Self> {
        Self::with_flags(device, 0)
    }

    /// Creates a binary syncobj that is signalled already.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn create_signaled(device: &Device) -> Result<Self> {
        Self::with_flags(device, uapi::DRM_SYNCOBJ_CREATE_SIGNALED)
    }

    fn with_flags(device: &Device, flags: u32) -> Result<Self> {
        let mut argument = uapi::drm_syncobj_create { handle: 0, flags };
        device.file().call(&mut argument)?;
        Ok(Self::new(device.file(), argument.handle, false))
    }

    /// The handle, for [`crate::raw`].
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// Signals a point from the CPU.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn signal(&self, point: u64) -> Result<()> {
        if point == 0 {
            sys::syncobj_array(
                self.file.as_fd(),
                uapi::DRM_IOCTL_SYNCOBJ_SIGNAL,
                &[self.handle],
            )
            .map_err(error("SYNCOBJ_SIGNAL"))
        } else {
            sys::syncobj_timeline_signal(self.file.as_fd(), &[self.handle], &mut [point])
                .map_err(error("SYNCOBJ_TIMELINE_SIGNAL"))
        }
    }

    /// Takes the fence out; points start anew.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn reset(&self) -> Result<()> {
        sys::syncobj_array(
            self.file.as_fd(),
            uapi::DRM_IOCTL_SYNCOBJ_RESET,
            &[self.handle],
        )
        .map_err(error("SYNCOBJ_RESET"))
    }

    /// The last point of the timeline that is signalled; 0 if none is.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn query(&self) -> Result<u64> {
        self.query_with(0)
    }

    /// The last point of the timeline that has a fence; 0 if none has.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn query_submitted(&self) -> Result<u64> {
        self.query_with(uapi::DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED)
    }

    fn query_with(&self, flags: u32) -> Result<u64> {
        sys::syncobj_query(self.file.as_fd(), &[self.handle], flags)
            .map_err(error("SYNCOBJ_QUERY"))?
            .first()
            .copied()
            .ok_or(Error::Answer("a query of one syncobj gave no point"))
    }

    /// Blocks, without polling, until `point` is signalled, whether it has a fence already or not.
    ///
    /// # Errors
    ///
    /// ETIME ([`crate::ErrorKind::TimedOut`]) if `deadline` comes first.
    pub fn wait(&self, point: u64, deadline: impl Into<Deadline>) -> Result<()> {
        let flags = WaitFlags::ALL | WaitFlags::FOR_SUBMIT;
        Self::wait_many(&[(self, point)], flags, deadline).map(|_| ())
    }

    /// Blocks, without polling, until points of several syncobjs of one device are signalled; tells
    /// the index of one that is. Without syncobjs it returns 0 at once.
    ///
    /// # Errors
    ///
    /// ETIME if `deadline` comes first; EINVAL if a point has no fence and `flags` is without
    /// [`WaitFlags::FOR_SUBMIT`]; [`Error::Argument`] if they are not all of the same device.
    pub fn wait_many(
        waits: &[(&Syncobj, u64)],
        flags: WaitFlags,
        deadline: impl Into<Deadline>,
    ) -> Result<usize> {
        let Some(((first, _), rest)) = waits.split_first() else {
            return Ok(0);
        };
        if rest.iter().any(|(s, _)| !Arc::ptr_eq(&s.file, &first.file)) {
            return Err(Error::Argument("syncobjs of several devices in one wait"));
        }
        let handles: Vec<u32> = waits.iter().map(|(s, _)| s.handle).collect();
        let points: Vec<u64> = waits.iter().map(|(_, point)| *point).collect();
        let mut argument = uapi::drm_syncobj_timeline_wait {
            handles: handles.as_ptr().expose_provenance() as u64,
            points: points.as_ptr().expose_provenance() as u64,
            timeout_nsec: deadline.into().as_nanos(),
            count_handles: u32::try_from(handles.len())
                .map_err(|_| Error::Argument("too many syncobjs"))?,
            flags: flags.bits(),
            ..Default::default()
        };
        first.file.call(&mut argument)?;
        let all = flags.contains(WaitFlags::ALL);
        Ok(if all {
            0
        } else {
            argument.first_signaled as usize
        })
    }

    /// Whether `point` is signalled.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn is_signaled(&self, point: u64) -> Result<bool> {
        match self.wait(point, Deadline::NOW) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::TIME) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How the work that signals `point` ended.
    ///
    /// Exact for a binary syncobj and for the last point of a timeline. Of a point that is followed
    /// by another the kernel may have forgotten how it ended: it is [`Outcome::Done`] if every
    /// context that signals the timeline is active, or was with all its work done when it was
    /// dropped, and [`Outcome::Unknown`] otherwise, or if somebody else may signal it: another
    /// process ([`Syncobj::export`]), or a bind that waits. A submission whose outcome matters
    /// takes a binary syncobj of its own.
    ///
    /// # Errors
    ///
    /// EINVAL if the point has no fence yet.
    pub fn outcome(&self, point: u64) -> Result<Outcome> {
        let outcome = self.export_sync_file(point)?.outcome()?;
        if outcome != Outcome::Done || point == 0 || self.query_submitted()? <= point {
            return Ok(outcome);
        }
        let signallers = self.signallers().clone();
        Ok(match signallers {
            Signallers { others: true, .. } => Outcome::Unknown,
            Signallers { contexts, .. } if contexts.iter().all(|c| c.is_sound()) => Outcome::Done,
            Signallers { .. } => Outcome::Unknown,
        })
    }

    /// Blocks until the work that signals `point` ended, and fails if it did not end well.
    ///
    /// # Errors
    ///
    /// As [`Syncobj::wait`], and [`Error::Work`], also with [`Outcome::Unknown`].
    pub fn wait_done(&self, point: u64, deadline: impl Into<Deadline>) -> Result<()> {
        self.wait(point, deadline)?;
        match self.outcome(point)? {
            Outcome::Done => Ok(()),
            outcome => Err(Error::Work(outcome)),
        }
    }

    /// Copies the fence of a point to a point of another syncobj of the same device.
    ///
    /// # Errors
    ///
    /// EINVAL if `point` has no fence; [`Error::Argument`] for a syncobj of another device.
    pub fn transfer(&self, point: u64, to: &Syncobj, to_point: u64) -> Result<()> {
        if !Arc::ptr_eq(&self.file, &to.file) {
            return Err(Error::Argument("a transfer to a syncobj of another device"));
        }
        let follow = || {
            if to_point != 0 {
                let from = self.signallers().clone();
                from.contexts.iter().for_each(|context| to.keep(context));
                to.signallers().others |= from.others;
            }
        };
        // Before, so that nobody can ask for a point and miss who signals it.
        follow();
        self.file.call(&mut uapi::drm_syncobj_transfer {
            src_handle: self.handle,
            dst_handle: to.handle,
            src_point: point,
            dst_point: to_point,
            flags: 0,
            pad: 0,
        })?;
        // The point may have come meanwhile, of work that was submitted behind that.
        follow();
        Ok(())
    }

    /// The syncobj as a descriptor, for [`Syncobj::import`] in another process.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn export(&self) -> Result<OwnedFd> {
        self.doubt();
        sys::handle_to_fd(self.file.as_fd(), Exchange::Syncobj, self.handle, 0)
            .map_err(error("SYNCOBJ_HANDLE_TO_FD"))
    }

    /// The syncobj behind a descriptor.
    ///
    /// # Errors
    ///
    /// EINVAL if it is none.
    pub fn import(device: &Device, fd: BorrowedFd<'_>) -> Result<Self> {
        let file = device.file();
        let handle = sys::fd_to_handle(file.as_fd(), Exchange::Syncobj, fd, 0, 0)
            .map_err(error("SYNCOBJ_FD_TO_HANDLE"))?;
        Ok(Self::new(file, handle, true))
    }

    /// The fence of a point as a sync file.
    ///
    /// # Errors
    ///
    /// EINVAL if the point has no fence yet; EMFILE.
    pub fn export_sync_file(&self, point: u64) -> Result<SyncFile> {
        if point == 0 {
            return sys::handle_to_fd(
                self.file.as_fd(),
                Exchange::Syncobj,
                self.handle,
                uapi::DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE,
            )
            .map(SyncFile::from)
            .map_err(error("SYNCOBJ_HANDLE_TO_FD"));
        }
        // Kernels before 6.16 export the fence of a binary syncobj only.
        let mut argument = uapi::drm_syncobj_create::default();
        self.file.call(&mut argument)?;
        let binary = Self::new(&self.file, argument.handle, false);
        self.transfer(point, &binary, 0)?;
        binary.export_sync_file(0)
    }

    /// Replaces the fence of the binary syncobj by that of a sync file.
    ///
    /// # Errors
    ///
    /// EINVAL if it is no sync file.
    pub fn import_sync_file(&self, sync_file: &SyncFile) -> Result<()> {
        sys::fd_to_handle(
            self.file.as_fd(),
            Exchange::Syncobj,
            sync_file.as_fd(),
            self.handle,
            uapi::DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE,
        )
        .map(|_| ())
        .map_err(error("SYNCOBJ_FD_TO_HANDLE"))
    }

    /// A descriptor that becomes readable once, when `point` is signalled: for any reactor.
    ///
    /// # Errors
    ///
    /// EMFILE, ENOMEM.
    pub fn eventfd(&self, point: u64) -> Result<SyncEvent> {
        let event = SyncEvent {
            fd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(
                |errno| Error::System {
                    name: "eventfd",
                    errno,
                },
            )?,
        };
        self.notify(point, event.fd.as_fd())?;
        Ok(event)
    }

    /// Adds 1 to an eventfd of the caller's when `point` is signalled.
    ///
    /// # Errors
    ///
    /// EINVAL if it is no eventfd.
    pub fn notify(&self, point: u64, eventfd: BorrowedFd<'_>) -> Result<()> {
        use std::os::fd::AsRawFd;
        self.file
            .call(&mut uapi::drm_syncobj_eventfd {
                handle: self.handle,
                flags: 0,
                point,
                fd: eventfd.as_raw_fd(),
                pad: 0,
            })
            .map(|_| ())
    }
}

impl Drop for Syncobj {
    fn drop(&mut self) {
        self.file.destroy(uapi::drm_syncobj_destroy {
            handle: self.handle,
            pad: 0,
        });
    }
}

/// A descriptor that becomes readable when a point is signalled.
///
/// It does not block and belongs to no reactor; register it with any. With tokio:
///
/// ```ignore
/// let event = tokio::io::unix::AsyncFd::new(fence.eventfd(7)?)?;
/// let _ = event.readable().await?;
/// ```
#[derive(Debug)]
pub struct SyncEvent {
    /// An eventfd, to which the kernel adds 1 when the point is signalled.
    fd: OwnedFd,
}

impl SyncEvent {
    /// Blocks, without a reactor and without polling in a loop, until the point is signalled.
    ///
    /// # Errors
    ///
    /// ETIME if `deadline` comes first.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Result<()> {
        poll(self.fd.as_fd(), deadline.into())
    }

    /// Whether the point is signalled.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn is_signaled(&self) -> Result<bool> {
        match self.wait(Deadline::NOW) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::TIME) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for SyncEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::os::fd::AsRawFd for SyncEvent {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

/// Blocks until the descriptor is readable.
pub(crate) fn poll(fd: BorrowedFd<'_>, deadline: Deadline) -> Result<()> {
    loop {
        // A time too long for the kernel is as good as none.
        let left = Timespec::try_from(deadline.left()).ok();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let errno = match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => Errno::TIME,
            Ok(_) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => errno,
        };
        return Err(Error::System {
            name: "poll",
            errno,
        });
    }
}

fn error(name: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Ioctl { name, errno }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_poll_ends_at_its_deadline_or_when_readable() {
        let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let timed_out = poll(fd.as_fd(), Deadline::after(Duration::from_millis(1)));
        assert_eq!(timed_out.unwrap_err().errno(), Some(Errno::TIME));
        rustix::io::write(&fd, &1_u64.to_ne_bytes()).unwrap();
        poll(fd.as_fd(), Deadline::NEVER).unwrap();
    }
}
