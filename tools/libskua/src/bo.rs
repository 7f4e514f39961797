// SPDX-License-Identifier: MIT

//! Buffer objects: memory, in VRAM or in system memory.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use skua_uapi as uapi;

use crate::{
    device::{Device, File, Placements},
    error::{Errno, Error, Result},
    mapping::Mapping,
    monitored_fence::MonitoredFence,
    segment_sets::SegmentSets,
    sync::{array, Deadline, Syncs},
    syncobj::Syncobj,
    sys::{self, Exchange, Map},
    vm::Vm,
};

bitflags::bitflags! {
    /// Flags of a buffer object.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BoFlags: u32 {
        /// The CPU can map it.
        const CPU_ACCESS = uapi::DRM_SKUA_BO_CPU_ACCESS;
        /// The CPU's mappings are cached: it can access it in system memory alone, while it is
        /// locked ([`Bo::lock`]); in VRAM, too, where the CPU host aperture is cached.
        const CACHED = uapi::DRM_SKUA_BO_CACHED;
        /// The CPU's mappings are write-combined wherever it is, and the GPU does not snoop.
        const WRITE_COMBINED = uapi::DRM_SKUA_BO_WRITE_COMBINED;
    }
}

bitflags::bitflags! {
    /// How a buffer object is destroyed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DestroyFlags: u32 {
        /// Nothing that was submitted uses it; what does faults.
        const ASSUME_NOT_IN_USE = uapi::DRM_SKUA_BO_DESTROY_ASSUME_NOT_IN_USE;
        /// Return when its memory is free.
        const SYNCHRONOUS = uapi::DRM_SKUA_BO_DESTROY_SYNCHRONOUS;
    }
}

/// How soon content goes that was offered ([`Device::offer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum OfferPriority {
    /// Before all else that is offered.
    Low = uapi::DRM_SKUA_OFFER_LOW,
    /// Behind what is offered as [`OfferPriority::Low`].
    Normal = uapi::DRM_SKUA_OFFER_NORMAL,
    /// Behind all else that is offered.
    High = uapi::DRM_SKUA_OFFER_HIGH,
    /// By the priority of residency ([`Bo::set_priority`]).
    Auto = uapi::DRM_SKUA_OFFER_AUTO,
}

/// A buffer object; its handle is closed when dropped.
///
/// Its mappings, by GPU and CPU, hold the memory by themselves: a `Bo` may be dropped as soon as it
/// is bound and mapped. [`Bo::destroy`] takes them along.
#[derive(Debug)]
pub struct Bo {
    /// The file in which `handle` names it.
    file: Arc<File>,
    /// GEM's; counted in `file`, for an import may have made it a second time.
    handle: u32,
    /// Bytes, a multiple of a page.
    size: u64,
}

/// What is known of a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoInfo {
    /// Bytes, a multiple of 4096.
    pub size: u64,
    /// The flags that it was created with.
    pub flags: BoFlags,
    /// Regions that may hold it, as at creation.
    pub sets: SegmentSets,
    /// Number of the region that holds it now.
    pub region: u32,
    /// Whether it is another driver's.
    pub imported: bool,
    /// Whether the GPU was reset while it was in VRAM, at any time: its content was zero then.
    pub content_lost: bool,
}

impl Bo {
    /// Creates a buffer object of `size` bytes, all zero, in the first region of `sets` that has
    /// room: in VRAM, if that is among them and nothing else is preferred.
    ///
    /// # Errors
    ///
    /// EINVAL if `size` is 0, not a multiple of 4096 or above 2^40, or if no region is supported,
    /// one does not exist, one is preferred that is not supported, or twice, or is in the eviction
    /// set and no way out of VRAM; ENOSPC if VRAM alone is allowed and has no room; ENOMEM if
    /// system memory has none.
    pub fn create(
        device: &Device,
        size: u64,
        sets: impl Into<SegmentSets>,
        flags: BoFlags,
    ) -> Result<Self> {
        Self::create_for(device, 0, size, sets.into(), flags, 0)
    }

    /// Creates one that can be mapped in the address space `vm` only, and not be exported, which
    /// makes it cheaper to move.
    ///
    /// # Errors
    ///
    /// As [`Bo::create`].
    pub fn create_in(
        vm: &Vm,
        size: u64,
        sets: impl Into<SegmentSets>,
        flags: BoFlags,
    ) -> Result<Self> {
        Self::create_in_with_priority(vm, size, sets, flags, 0)
    }

    /// As [`Bo::create_in`], with this priority from the first on ([`Bo::set_priority`]); 0 is
    /// `DRM_SKUA_PRIORITY_NORMAL`.
    ///
    /// # Errors
    ///
    /// As [`Bo::create`].
    pub fn create_in_with_priority(
        vm: &Vm,
        size: u64,
        sets: impl Into<SegmentSets>,
        flags: BoFlags,
        priority: u32,
    ) -> Result<Self> {
        let (device, vm) = (vm.device(), vm.handle());
        Self::create_for(device, vm, size, sets.into(), flags, priority)
    }

    fn create_for(
        device: &Device,
        vm: u32,
        size: u64,
        sets: SegmentSets,
        flags: BoFlags,
        priority: u32,
    ) -> Result<Self> {
        let file = device.file();
        let mut argument = uapi::drm_skua_bo_create {
            size,
            flags: flags.bits(),
            placements: sets.supported.bits(),
            vm,
            handle: 0,
            preferred: sets.preferred,
            eviction_set: sets.eviction.bits(),
            priority,
            pad: 0,
        };
        file.call(&mut argument)?;
        file.adopt(argument.handle);
        Ok(Self {
            file: file.clone(),
            handle: argument.handle,
            size,
        })
    }

    /// Imports a dma-buf. One that this file exported is the same buffer object again.
    ///
    /// # Errors
    ///
    /// EBADF or EINVAL if the descriptor is no dma-buf.
    pub fn import(device: &Device, dma_buf: BorrowedFd<'_>) -> Result<Self> {
        let file = device.file();
        let handle = file.share(|| {
            sys::fd_to_handle(file.as_fd(), Exchange::Bo, dma_buf, 0, 0).map_err(|errno| {
                Error::Ioctl {
                    name: "PRIME_FD_TO_HANDLE",
                    errno,
                }
            })
        })?;
        let mut bo = Self {
            file: file.clone(),
            handle,
            size: 0,
        };
        bo.size = bo.info()?.size;
        Ok(bo)
    }

    /// Exports it as a dma-buf, readable and writable.
    ///
    /// # Errors
    ///
    /// EMFILE, ENOMEM; EPERM if it was created for one address space.
    pub fn export(&self) -> Result<OwnedFd> {
        sys::handle_to_fd(self.file.as_fd(), Exchange::Bo, self.handle, EXPORT_FLAGS).map_err(
            |errno| Error::Ioctl {
                name: "PRIME_HANDLE_TO_FD",
                errno,
            },
        )
    }

    /// The handle, for [`crate::raw`].
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// In bytes, a multiple of 4096.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// What is known of it, where it is among that.
    ///
    /// # Errors
    ///
    /// ENODEV, EIO.
    pub fn info(&self) -> Result<BoInfo> {
        let mut argument = uapi::drm_skua_bo_info {
            handle: self.handle,
            ..Default::default()
        };
        self.file.call(&mut argument)?;
        Ok(BoInfo {
            size: argument.size,
            flags: BoFlags::from_bits_retain(argument.flags),
            sets: SegmentSets {
                supported: Placements::from_bits(argument.placements),
                preferred: argument.preferred,
                eviction: Placements::from_bits(argument.eviction_set),
            },
            region: argument.region,
            imported: argument.imported != 0,
            content_lost: argument.content_lost != 0,
        })
    }

    /// Maps all of it, to read and to write.
    ///
    /// # Errors
    ///
    /// EPERM if it was created without [`BoFlags::CPU_ACCESS`] and is not locked; EOPNOTSUPP if it
    /// is imported: map the dma-buf ([`crate::DmaBuf`]).
    pub fn map(&self) -> Result<Mapping> {
        self.map_range(0, self.size, true)
    }

    /// Maps all of it, to read only.
    ///
    /// # Errors
    ///
    /// As [`Bo::map`].
    pub fn map_read_only(&self) -> Result<Mapping> {
        self.map_range(0, self.size, false)
    }

    /// Maps `size` bytes from `offset` on, a multiple of 4096.
    ///
    /// # Errors
    ///
    /// As [`Bo::map`], and EINVAL of mmap() for ranges that are not in the buffer object.
    pub fn map_range(&self, offset: u64, size: u64, writable: bool) -> Result<Mapping> {
        let start = self
            .mmap_offset()?
            .checked_add(offset)
            .ok_or(Error::Argument("the range ends behind the address space"))?;
        let len = usize::try_from(size)
            .map_err(|_| Error::Argument("the range is larger than the address space"))?;
        Map::new(self.file.as_fd(), start, len, writable)
            .map(Mapping::new)
            .map_err(|errno| Error::System {
                name: "mmap",
                errno,
            })
    }

    /// Locks it for the CPU, once more (Lock2): at once, or when it has left VRAM, where it then
    /// does not come before it is unlocked, if the CPU cannot access it there.
    ///
    /// # Errors
    ///
    /// EPERM if it was created without [`BoFlags::CPU_ACCESS`] and for VRAM alone, and is there or
    /// others may have it; EOPNOTSUPP if it is imported; EBUSY if it is offered, or being
    /// destroyed; EMFILE if 16384 clients lock it; ENOSPC if it is in use for long; ENOMEM.
    pub fn lock(&self) -> Result<()> {
        self.file
            .call(&mut uapi::drm_skua_bo_lock {
                handle: self.handle,
                ..Default::default()
            })
            .map(|_| ())
    }

    /// Takes one [`Bo::lock`] back.
    ///
    /// # Errors
    ///
    /// EINVAL if it is not locked.
    pub fn unlock(&self) -> Result<()> {
        self.file
            .call(&mut uapi::drm_skua_bo_unlock {
                handle: self.handle,
                ..Default::default()
            })
            .map(|_| ())
    }

    /// Says how important it is that it is in VRAM: any number but 0; `DRM_SKUA_PRIORITY_*` are
    /// some. A hint, for all clients.
    ///
    /// # Errors
    ///
    /// EINVAL for 0.
    pub fn set_priority(&self, priority: u32) -> Result<()> {
        set_priorities(&self.file, &[self.with_priority(priority)])
    }

    /// Says that nobody needs its content for now ([`Device::offer`]).
    ///
    /// # Errors
    ///
    /// As [`Device::offer`].
    pub fn offer(&self, priority: OfferPriority) -> Result<()> {
        offer(&self.file, vec![self.element()], priority)
    }

    /// Takes [`Bo::offer`] back; whether the content was thrown away ([`Device::reclaim`]).
    ///
    /// # Errors
    ///
    /// As [`Device::reclaim`].
    pub fn reclaim(&self) -> Result<bool> {
        Ok(reclaim(&self.file, vec![self.element()])? == [true])
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// It, if it is a device's; otherwise its handle means nothing there.
    fn of(&self, device: &Device) -> Result<&Self> {
        match Arc::ptr_eq(&self.file, device.file()) {
            true => Ok(self),
            false => Err(Error::Argument("a buffer object of another file")),
        }
    }

    /// Its handle, as ioctls take it in an array.
    const fn element(&self) -> uapi::drm_skua_bo_handle {
        uapi::drm_skua_bo_handle {
            handle: self.handle,
            pad: 0,
        }
    }

    /// The same with a priority.
    const fn with_priority(&self, priority: u32) -> uapi::drm_skua_bo_priority {
        uapi::drm_skua_bo_priority {
            handle: self.handle,
            priority,
        }
    }

    /// Takes it out, and leaves one that is as if it were [destroyed](Bo::destroy).
    #[must_use = "its handle is closed when it is dropped"]
    pub fn take(&mut self) -> Self {
        Self {
            file: self.file.clone(),
            handle: std::mem::take(&mut self.handle),
            size: self.size,
        }
    }

    /// Destroys it, when the work is done that was submitted before: its memory is free then, and
    /// mapped nowhere; the CPU's mappings are a bus error. With
    /// [`DestroyFlags::ASSUME_NOT_IN_USE`] that is at once. One that was exported or is imported
    /// is unmapped, and lives as long as others have it.
    ///
    /// # Errors
    ///
    /// ENOENT if it is destroyed already; [`Error::Argument`] if another `Bo` of the same file has
    /// it.
    pub fn destroy(&mut self, flags: DestroyFlags) -> Result<()> {
        let element = self.element();
        self.file.end(self.handle, || {
            self.file
                .call(&mut uapi::drm_skua_bo_destroy {
                    flags: flags.bits(),
                    pad: 0,
                    handles: array(std::slice::from_ref(&element)),
                })
                .map(|_| ())
        })?;
        self.handle = 0;
        Ok(())
    }

    /// The offset at which mmap() of the device's file shows it, for what [`Bo::map`] cannot do.
    ///
    /// # Errors
    ///
    /// As [`Bo::map`].
    pub fn mmap_offset(&self) -> Result<u64> {
        let mut argument = uapi::drm_skua_bo_mmap_offset {
            handle: self.handle,
            ..Default::default()
        };
        self.file.call(&mut argument)?;
        Ok(argument.offset)
    }
}

/// Buffer objects that are made resident together, or none of them.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct MakeResident<'a> {
    /// The device whose file the kernel is asked by.
    device: &'a Device,
    /// The client's device for which they are to be resident; 0 is the file's own.
    client_device: u32,
    /// All that are to be resident, each once.
    bos: &'a [&'a Bo],
    /// `DRM_SKUA_MAKE_RESIDENT_*`.
    flags: u32,
    /// What is signalled when they are where they are to be.
    syncs: Syncs<'a>,
}

impl<'a> MakeResident<'a> {
    pub(crate) const fn new(device: &'a Device, client_device: u32, bos: &'a [&'a Bo]) -> Self {
        Self {
            device,
            client_device,
            bos,
            flags: 0,
            syncs: Syncs::new(device.file()),
        }
    }

    /// The client has nothing to evict for it: it may exceed the budget, as far as there is VRAM.
    pub const fn cannot_trim_further(mut self) -> Self {
        self.flags |= uapi::DRM_SKUA_MAKE_RESIDENT_CANT_TRIM_FURTHER;
        self
    }

    /// The client cannot go on without, and can trim no further: where memory is short its device
    /// fails, with [`DeviceStatus::OutOfMemory`](crate::DeviceStatus::OutOfMemory).
    pub const fn must_succeed(mut self) -> Self {
        self.flags |= uapi::DRM_SKUA_MAKE_RESIDENT_MUST_SUCCEED;
        self.cannot_trim_further()
    }

    /// Signals a syncobj when all are where they are to be; `point` 0 is a binary one.
    pub fn signal(mut self, syncobj: &'a Syncobj, point: u64) -> Self {
        self.syncs.signal(syncobj, point);
        self
    }

    /// Signals a value of a monitored fence when all are where they are to be.
    pub fn signal_value(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.syncs.value(uapi::DRM_SKUA_SYNC_SIGNAL, fence, value);
        self
    }

    /// Hands it to the driver, which may wait for room; not for the moves. The bytes by which the
    /// client's device exceeds its budget then.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for something of another file; EINVAL if there is none, one is there
    /// twice, or there are more than 1024; EBUSY if one is offered, or is out and locked by
    /// the CPU and a syncobj is to be signalled; [`Error::OverBudget`]; ECANCELED if the client's
    /// device has failed for it.
    pub fn submit(self) -> Result<u64> {
        let handles = elements(self.device, self.bos)?;
        let mut argument = uapi::drm_skua_make_resident {
            flags: self.flags,
            device: self.client_device,
            handles: array(&handles),
            syncs: self.syncs.as_array()?,
            bytes_to_trim: 0,
        };
        match self.device.file().call(&mut argument) {
            Err(Error::Ioctl {
                errno: Errno::NOMEM,
                ..
            }) if argument.bytes_to_trim > 0 => Err(Error::OverBudget {
                bytes: argument.bytes_to_trim,
            }),
            result => result.map(|_| argument.bytes_to_trim),
        }
    }

    /// Hands it to the driver, and waits for the moves.
    ///
    /// # Errors
    ///
    /// As [`MakeResident::submit`], and [`Error::Work`] if the device was lost.
    pub fn submit_and_wait(self) -> Result<u64> {
        let done = Syncobj::create(self.device)?;
        // Does not outlive this call.
        let this: MakeResident<'_> = self;
        let excess = this.signal(&done, 0).submit()?;
        done.wait_done(0, Deadline::NEVER)?;
        Ok(excess)
    }
}

impl Device {
    /// Begins to make buffer objects resident: those that may be in VRAM move there, as far as
    /// there is room, and stay before others do. Counted for each, until [`Device::evict`].
    pub const fn make_resident<'a>(&'a self, bos: &'a [&'a Bo]) -> MakeResident<'a> {
        MakeResident::new(self, 0, bos)
    }

    /// Takes one [`Device::make_resident`] of each back, or of none.
    ///
    /// # Errors
    ///
    /// As [`MakeResident::submit`]; EINVAL if one is not resident.
    pub fn evict(&self, bos: &[&Bo]) -> Result<()> {
        self.evict_for(0, bos)
    }

    /// Says of buffer objects that nobody needs their content for now, of all or of none: where
    /// memory is short it is thrown away, before anything else leaves. They are not to be used
    /// until they are [reclaimed](Device::reclaim): an access by the CPU is a bus error, and work
    /// that goes there may fault.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a buffer object of another file; EINVAL if there is none, one is
    /// there twice, or there are more than 1024; EBUSY if one is locked or resident; EPERM if
    /// others may have it; EOPNOTSUPP if it is imported.
    pub fn offer(&self, bos: &[&Bo], priority: OfferPriority) -> Result<()> {
        offer(self.file(), elements(self, bos)?, priority)
    }

    /// Takes [`Device::offer`] back, for all or for none, also of what is not offered: of each,
    /// whether its content was thrown away, and is zero. Waits for work that still uses what is
    /// just being thrown away.
    ///
    /// # Errors
    ///
    /// As [`Device::offer`] for the list; ENOMEM.
    pub fn reclaim(&self, bos: &[&Bo]) -> Result<Vec<bool>> {
        reclaim(self.file(), elements(self, bos)?)
    }

    /// Says of each how important it is that it is in VRAM ([`Bo::set_priority`]), of all or of
    /// none.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a buffer object of another file; EINVAL for priority 0, if there is
    /// none, one is there twice, or there are more than 1024.
    pub fn set_priorities(&self, priorities: &[(&Bo, u32)]) -> Result<()> {
        let elements: Vec<_> = priorities
            .iter()
            .map(|(bo, priority)| Ok(bo.of(self)?.with_priority(*priority)))
            .collect::<Result<_>>()?;
        set_priorities(self.file(), &elements)
    }

    /// For the client's device of this handle.
    pub(crate) fn evict_for(&self, client_device: u32, bos: &[&Bo]) -> Result<()> {
        let handles = elements(self, bos)?;
        self.file()
            .call(&mut uapi::drm_skua_evict {
                flags: 0,
                device: client_device,
                handles: array(&handles),
            })
            .map(|_| ())
    }
}

/// The handles of buffer objects of a device, as ioctls take them.
fn elements(device: &Device, bos: &[&Bo]) -> Result<Vec<uapi::drm_skua_bo_handle>> {
    bos.iter().map(|bo| Ok(bo.of(device)?.element())).collect()
}

/// Calls `BO_SET_PRIORITY` once, for all of `elements`.
fn set_priorities(file: &File, elements: &[uapi::drm_skua_bo_priority]) -> Result<()> {
    file.call(&mut uapi::drm_skua_bo_set_priority {
        objects: array(elements),
        ..Default::default()
    })
    .map(|_| ())
}

/// Calls `BO_OFFER` once, for all of `handles`.
fn offer(
    file: &File,
    handles: Vec<uapi::drm_skua_bo_handle>,
    priority: OfferPriority,
) -> Result<()> {
    file.call(&mut uapi::drm_skua_bo_offer {
        flags: 0,
        priority: priority as u32,
        handles: array(&handles),
    })
    .map(|_| ())
}

/// `BO_RECLAIM`: whether the content was thrown away, of each.
fn reclaim(file: &File, handles: Vec<uapi::drm_skua_bo_handle>) -> Result<Vec<bool>> {
    let mut argument = uapi::drm_skua_bo_reclaim {
        handles: array(&handles),
        ..Default::default()
    };
    file.call(&mut argument)?;
    let bits = argument.discarded.iter().flat_map(|word| {
        let word = *word;
        (0..u64::BITS).map(move |bit| word >> bit & 1 != 0)
    });
    Ok(bits.take(handles.len()).collect())
}

/// `DRM_CLOEXEC | DRM_RDWR`, which are O_CLOEXEC and O_RDWR.
const EXPORT_FLAGS: u32 = rustix::fs::OFlags::CLOEXEC
    .union(rustix::fs::OFlags::RDWR)
    .bits();

impl Drop for Bo {
    /// Closes the handle, if no other `Bo` of the same file has it.
    fn drop(&mut self) {
        self.file.release(self.handle);
    }
}
