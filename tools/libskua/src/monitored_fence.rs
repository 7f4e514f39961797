// SPDX-License-Identifier: MIT

//! Monitored fences: 64-bit values that grow, to wait for before anybody has promised them.
//!
//! | to | call |
//! |---|---|
//! | let the GPU signal a value | [`crate::Submission::signal_value`] |
//! | let the GPU wait for one | [`crate::Submission::wait_value`] |
//! | signal it from the CPU | [`MonitoredFence::signal`] |
//! | block until it is there | [`MonitoredFence::wait`], [`MonitoredFence::wait_many`] |
//! | get woken by a reactor | [`MonitoredFence::notify`], [`MonitoredFence::notify_many`] |
//! | look, without a system call | [`MonitoredFence::value`] |
//! | share it with another process | [`MonitoredFence::export`], [`MonitoredFence::import`] |

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        atomic::{fence, Ordering},
        Arc,
    },
};

use skua_uapi as uapi;

use crate::{
    client_device::ClientDevice,
    device::{Device, File},
    error::{Error, Result},
    sync::{array, Deadline},
    sys::{self, Map},
};

/// Bytes of the mapping of a fence's value, which is in its first 8.
const PAGE: usize = 4096;

/// What becomes of a fence when its device fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Its value becomes [`MonitoredFence::LOST`].
    #[default]
    Lost,
    /// The value of the fence stays as it is.
    Kept,
}

/// How many of several values a wait needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// All of the values have to be reached.
    All,
    /// One of the values has to be reached.
    Any,
}

impl WaitFor {
    const fn flags(self) -> u32 {
        match self {
            Self::All => 0,
            Self::Any => uapi::DRM_SKUA_FENCE_WAIT_ANY,
        }
    }
}

/// A handle of a monitored fence, and a mapping of its value; destroyed when dropped, while what
/// waits for it or signals it goes on.
#[derive(Debug)]
pub struct MonitoredFence {
    /// The file in which `handle` names it.
    file: Arc<File>,
    /// Whose it is, if not the file's own, which would take its handle along.
    _client_device: Option<ClientDevice>,
    /// The driver's number for it, not 0.
    handle: u32,
    /// The page that has the value, to read.
    map: Map,
}

impl MonitoredFence {
    /// The value of a fence of a device that has failed.
    pub const LOST: u64 = u64::MAX;

    /// Creates a fence that is lost with the GPU alone.
    ///
    /// # Errors
    ///
    /// EINVAL for [`MonitoredFence::LOST`]; ENOSPC if there are too many.
    pub fn create(device: &Device, value: u64) -> Result<Self> {
        Self::make(device, None, value, OnFailure::Lost)
    }

    /// Creates a fence of a device that a client has created.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::create`]; ECANCELED if the device is not active.
    pub fn create_for(device: &ClientDevice, value: u64, on_failure: OnFailure) -> Result<Self> {
        Self::make(device.device(), Some(device), value, on_failure)
    }

    fn make(
        device: &Device,
        owner: Option<&ClientDevice>,
        value: u64,
        on_failure: OnFailure,
    ) -> Result<Self> {
        let mut argument = uapi::drm_skua_fence_create {
            device: owner.map_or(0, ClientDevice::handle),
            flags: match on_failure {
                OnFailure::Lost => 0,
                OnFailure::Kept => uapi::DRM_SKUA_FENCE_NO_SIGNAL_MAX_VALUE_ON_TDR,
            },
            value,
            ..Default::default()
        };
        device.file().call(&mut argument)?;
        Self::of(device, owner, argument.fence)
    }

    /// Makes a handle of a descriptor.
    ///
    /// # Errors
    ///
    /// EBADF, EINVAL if it is no fence's; ENOSPC.
    pub fn import(device: &Device, descriptor: BorrowedFd<'_>) -> Result<Self> {
        Self::open(device, None, descriptor)
    }

    /// Makes a handle of a descriptor, of a device that a client has created.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::import`]; ECANCELED if the device is not active.
    pub fn import_for(device: &ClientDevice, descriptor: BorrowedFd<'_>) -> Result<Self> {
        Self::open(device.device(), Some(device), descriptor)
    }

    fn open(
        device: &Device,
        owner: Option<&ClientDevice>,
        descriptor: BorrowedFd<'_>,
    ) -> Result<Self> {
        let mut argument = uapi::drm_skua_fence_import {
            device: owner.map_or(0, ClientDevice::handle),
            fd: descriptor.as_raw_fd(),
            ..Default::default()
        };
        device.file().call(&mut argument)?;
        Self::of(device, owner, argument.fence)
    }

    fn of(device: &Device, owner: Option<&ClientDevice>, handle: u32) -> Result<Self> {
        let file = device.file().clone();
        let map = sys::fence_export(file.as_fd(), handle)
            .and_then(|descriptor| Map::new(descriptor.as_fd(), 0, PAGE, false));
        match map {
            Ok(map) => Ok(Self {
                file,
                _client_device: owner.cloned(),
                handle,
                map,
            }),
            Err(errno) => {
                file.destroy(uapi::drm_skua_fence_destroy {
                    fence: handle,
                    pad: 0,
                });
                Err(Error::System {
                    name: "mmap of a fence",
                    errno,
                })
            }
        }
    }

    /// The handle, for [`crate::raw`].
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// A descriptor of it, closed by execve(): for other processes.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE.
    pub fn export(&self) -> Result<OwnedFd> {
        sys::fence_export(self.file.as_fd(), self.handle).map_err(|errno| Error::Ioctl {
            name: "SKUA_FENCE_EXPORT",
            errno,
        })
    }

    /// The value now; makes no system call. What was done before it was signalled is seen after
    /// this.
    pub fn value(&self) -> u64 {
        let value = self.map.read(0);
        fence(Ordering::Acquire);
        // The first word of the page is there.
        value.unwrap_or(0)
    }

    /// Where the value is mapped, to read only, as long as `self` lives.
    pub const fn as_ptr(&self) -> *const u64 {
        self.map.as_ptr().cast()
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    fn at(&self, value: u64) -> uapi::drm_skua_fence_value {
        uapi::drm_skua_fence_value {
            fence: self.handle,
            pad: 0,
            value,
        }
    }

    /// Signals a value from the CPU, behind all that were promised.
    ///
    /// # Errors
    ///
    /// EINVAL if it is not above all that the fence has or was promised; ECANCELED if its device is
    /// not active.
    pub fn signal(&self, value: u64) -> Result<()> {
        let values = [self.at(value)];
        self.file.call(&mut uapi::drm_skua_fence_signal {
            values: array(&values),
            ..Default::default()
        })?;
        Ok(())
    }

    /// Sleeps until the fence has a value.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::wait_many`].
    pub fn wait(&self, value: u64, deadline: impl Into<Deadline>) -> Result<()> {
        Self::wait_many(&[(self, value)], WaitFor::All, deadline).map(drop)
    }

    /// Sleeps until fences of one device have their values; tells the index of one that sufficed, 0
    /// where all are waited for.
    ///
    /// # Errors
    ///
    /// ETIME if `deadline` comes first; ECANCELED if the device of one is not active;
    /// [`Error::Argument`] if there is none, or one is of another file.
    pub fn wait_many(
        waits: &[(&Self, u64)],
        how: WaitFor,
        deadline: impl Into<Deadline>,
    ) -> Result<usize> {
        let (file, values) = Self::values(waits)?;
        let mut argument = uapi::drm_skua_fence_wait {
            flags: how.flags(),
            values: array(&values),
            timeout_ns: u64::try_from(deadline.into().as_nanos()).unwrap_or(0),
            ..Default::default()
        };
        file.call(&mut argument)?;
        Ok(argument.index as usize)
    }

    /// The file that all of them are of, and what it is told.
    fn values<'a>(
        waits: &[(&'a Self, u64)],
    ) -> Result<(&'a File, Vec<uapi::drm_skua_fence_value>)> {
        let (first, _) = waits.first().ok_or(Error::Argument("a wait for nothing"))?;
        let is_foreign = |(fence, _): &(&Self, u64)| !Arc::ptr_eq(&fence.file, &first.file);
        if waits.iter().any(is_foreign) {
            return Err(Error::Argument("a fence of another file"));
        }
        let values = waits.iter().map(|(fence, value)| fence.at(*value));
        Ok((&first.file, values.collect()))
    }

    /// Adds 1 to an eventfd, once, when the fence has a value, its device fails, or nobody can
    /// signal it any more.
    ///
    /// # Errors
    ///
    /// As [`MonitoredFence::notify_many`].
    pub fn notify(&self, value: u64, eventfd: BorrowedFd<'_>) -> Result<()> {
        Self::notify_many(&[(self, value)], WaitFor::All, eventfd)
    }

    /// Adds 1 to an eventfd, once, when fences of one device have their values, the device of one
    /// fails, or they cannot have them any more, as nobody can signal a fence. They can be dropped
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// EINVAL if it is no eventfd; ENOSPC if eventfds wait for 4096 values already; ECANCELED if
    /// the device of one is not active; [`Error::Argument`] if there is none, or one is of another
    /// file.
    pub fn notify_many(
        waits: &[(&Self, u64)],
        how: WaitFor,
        eventfd: BorrowedFd<'_>,
    ) -> Result<()> {
        let (file, values) = Self::values(waits)?;
        file.call(&mut uapi::drm_skua_fence_eventfd {
            flags: how.flags(),
            eventfd: eventfd.as_raw_fd(),
            values: array(&values),
        })?;
        Ok(())
    }
}

impl Drop for MonitoredFence {
    fn drop(&mut self) {
        self.file.destroy(uapi::drm_skua_fence_destroy {
            fence: self.handle,
            pad: 0,
        });
    }
}
