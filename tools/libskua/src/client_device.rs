// SPDX-License-Identifier: MIT

//! Devices of a client (WDDM: device): what address spaces and contexts are of.
//!
//! Each open [`Device`] has one of its own. One that is created beside that has a list of what is
//! resident for it, a budget if it asks for one, and an end of its own: when a context of it fails,
//! all of its contexts do.

use std::{os::fd::AsFd, sync::Arc};

use rustix::io::Errno;
use skua_uapi as uapi;

use crate::{
    bo::{Bo, MakeResident},
    device::Device,
    error::{Error, Result},
    sync::Deadline,
    syncobj::poll,
    vm::Vm,
};

/// What becomes of what is resident for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residency {
    /// It is advice: work finds all that is mapped.
    #[default]
    Implicit,
    /// Work finds in VRAM alone what is resident, and nothing else has to be there.
    Explicit,
}

/// Whether a device takes work, and why not: the first failure of a context of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceStatus {
    /// Submissions are accepted.
    Active,
    /// Work of the device faulted: no more of it is accepted.
    Faulted,
    /// Its work was cut by the watchdog.
    TimedOut,
    /// The GPU was lost.
    Lost,
    /// The GPU was reset, because of others' work or of nobody's.
    Reset,
    /// What it could not go on without was not made resident ([`MakeResident::must_succeed`]).
    OutOfMemory,
}

/// What is known of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientDeviceState {
    /// How it was created, for good.
    pub residency: Residency,
    /// Whether it takes work, and if not, why.
    pub status: DeviceStatus,
    /// Bytes that are resident for it and may be in VRAM alone.
    pub resident: u64,
    /// Bytes that these are to be at most, just now.
    pub budget: u64,
    /// Bytes of system memory that count as the client's, whatever the device.
    pub system_used: u64,
    /// Bytes that these may be when the client makes more.
    pub system_limit: u64,
}

/// Advice to evict something: others leave a device less than is resident for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The [`ClientDevice::handle`].
    pub device: u32,
    /// Bytes by which it exceeds its budget.
    pub bytes: u64,
}

/// A device that a client has created; destroyed when the last clone is dropped, and the last
/// address space, context and fence that was made of it.
#[derive(Clone, Debug)]
pub struct ClientDevice(Arc<Inner>);

/// When a device is destroyed the driver takes along the handles of all that is of it, and gives
/// their numbers to others: so what has one keeps this.
#[derive(Debug)]
struct Inner {
    /// The device on whose file it is, kept open.
    device: Device,
    /// The driver's, of the device.
    handle: u32,
}

impl ClientDevice {
    /// Creates a device with nothing in it; `residency` holds for all its address spaces.
    ///
    /// # Errors
    ///
    /// ENOSPC if the client has 16, or there are too many.
    pub fn create(device: &Device, residency: Residency) -> Result<Self> {
        let mut argument = uapi::drm_skua_device_create {
            flags: match residency {
                Residency::Implicit => 0,
                Residency::Explicit => uapi::DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY,
            },
            device: 0,
        };
        device.file().call(&mut argument)?;
        Ok(Self(Arc::new(Inner {
            device: device.clone(),
            handle: argument.device,
        })))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// The handle, for [`crate::raw`] and [`Trim::device`]; not 0.
    pub fn handle(&self) -> u32 {
        self.0.handle
    }

    /// Creates an address space of this device with nothing in it; contexts on it are of the
    /// device, too.
    ///
    /// # Errors
    ///
    /// ENOSPC if there are too many address spaces; ECANCELED if the device is not active.
    pub fn create_vm(&self) -> Result<Vm> {
        Vm::create_for(self.device(), Some(self))
    }

    /// What is known of it now. The next [`Trim`] of it may come after this.
    ///
    /// # Errors
    ///
    /// ENODEV if the GPU is gone; [`Error::Answer`] for a status of a newer driver.
    pub fn state(&self) -> Result<ClientDeviceState> {
        let mut argument = uapi::drm_skua_device_state {
            device: self.handle(),
            ..Default::default()
        };
        self.device().file().call(&mut argument)?;
        Ok(ClientDeviceState {
            residency: match argument.flags & uapi::DRM_SKUA_DEVICE_EXPLICIT_RESIDENCY {
                0 => Residency::Implicit,
                _ => Residency::Explicit,
            },
            status: match argument.status {
                uapi::DRM_SKUA_CONTEXT_ACTIVE => DeviceStatus::Active,
                uapi::DRM_SKUA_CONTEXT_FAULTED => DeviceStatus::Faulted,
                uapi::DRM_SKUA_CONTEXT_TIMED_OUT => DeviceStatus::TimedOut,
                uapi::DRM_SKUA_CONTEXT_LOST => DeviceStatus::Lost,
                uapi::DRM_SKUA_CONTEXT_RESET => DeviceStatus::Reset,
                uapi::DRM_SKUA_CONTEXT_OUT_OF_MEMORY => DeviceStatus::OutOfMemory,
                _ => return Err(Error::Answer("the status of a device")),
            },
            resident: argument.resident,
            budget: argument.budget,
            system_used: argument.system_used,
            system_limit: argument.system_limit,
        })
    }

    /// Has it fail, unless it has: what has not started is cancelled, and it takes no more work.
    ///
    /// # Errors
    ///
    /// ENODEV if the GPU is gone.
    pub fn mark_error(&self) -> Result<()> {
        let mut argument = uapi::drm_skua_device_mark_error {
            device: self.handle(),
            pad: 0,
        };
        self.device().file().call(&mut argument)?;
        Ok(())
    }

    /// Begins to make buffer objects resident for this device, as [`Device::make_resident`] does
    /// for the client's own. With explicit residency, work that uses those that may be in VRAM
    /// alone has to wait for what this signals: an access before that is a fault.
    pub fn make_resident<'a>(&'a self, bos: &'a [&'a Bo]) -> MakeResident<'a> {
        MakeResident::new(self.device(), self.handle(), bos)
    }

    /// Takes one [`ClientDevice::make_resident`] of each back, or of none. With explicit residency,
    /// what may be in VRAM alone and is not resident any more is of no use to work from now on; its
    /// content is as work leaves it that was submitted before and is not held.
    ///
    /// # Errors
    ///
    /// As [`MakeResident::submit`]; EINVAL if one is not resident.
    pub fn evict(&self, bos: &[&Bo]) -> Result<()> {
        self.device().evict_for(self.handle(), bos)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.file().destroy(uapi::drm_skua_device_destroy {
            device: self.handle,
            pad: 0,
        });
    }
}

impl Device {
    /// Waits for advice to trim one of the client's devices with explicit residency; none if there
    /// is none until then. Of a descriptor that blocks ([`Device::from_fd`]) it is for one thread
    /// at a time: another could wait for longer.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn next_trim(&self, deadline: Deadline) -> Result<Option<Trim>> {
        let mut event = [0; size_of::<uapi::drm_skua_event_trim>()];
        let read = loop {
            match poll(self.as_fd(), deadline) {
                Err(error) if error.errno() == Some(Errno::TIME) => return Ok(None),
                polled => polled?,
            }
            match rustix::io::read(self.as_fd(), &mut event) {
                // Another thread was faster.
                Err(Errno::AGAIN | Errno::INTR) => {}
                read => {
                    break read.map_err(|errno| Error::System {
                        name: "read",
                        errno,
                    })?
                }
            }
        };
        let word = |n: usize| {
            let bytes = event.get(4 * n..4 * n + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let known = read == event.len() && word(0) == Some(uapi::DRM_SKUA_EVENT_TRIM);
        let (Some(device), Some(low), Some(high), true) = (word(2), word(4), word(5), known) else {
            return Err(Error::Answer("an event"));
        };
        Ok(Some(Trim {
            device,
            bytes: u64::from(high) << 32 | u64::from(low),
        }))
    }
}
