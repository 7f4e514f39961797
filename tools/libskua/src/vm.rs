// SPDX-License-Identifier: MIT

//! Address spaces of the GPU.
//!
//! A [`Vm`] maps ranges of GPU virtual addresses to ranges of buffer objects. Which addresses is
//! the program's choice, within [`crate::DeviceInfo::va`] and in multiples of 4096; the driver
//! uses large pages where addresses, offsets and memory allow it.

use std::sync::Arc;

use skua_uapi as uapi;

use crate::{
    bo::Bo,
    client_device::ClientDevice,
    context::Context,
    device::{Device, File},
    error::Result,
    monitored_fence::MonitoredFence,
    sync::{array, Deadline, Syncs},
    syncobj::Syncobj,
};

/// What the GPU may do through a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only: a write is a fault.
    Read,
    /// Read and write.
    #[default]
    ReadWrite,
}

/// An address space; its handle is destroyed when dropped, while contexts made on it keep it.
#[derive(Debug)]
pub struct Vm {
    /// The device on whose file it is, kept open.
    device: Device,
    /// Whose it is, if not the file's own, which would take its handle along.
    client_device: Option<ClientDevice>,
    /// The driver's, of the address space.
    handle: u32,
}

impl Vm {
    /// Creates an address space with nothing in it.
    ///
    /// # Errors
    ///
    /// ENOSPC if there are too many address spaces.
    pub fn create(device: &Device) -> Result<Self> {
        Self::create_for(device, None)
    }

    /// For a device that the client has created, or the file's own.
    pub(crate) fn create_for(
        device: &Device,
        client_device: Option<&ClientDevice>,
    ) -> Result<Self> {
        let mut argument = uapi::drm_skua_vm_create {
            device: client_device.map_or(0, ClientDevice::handle),
            ..Default::default()
        };
        device.file().call(&mut argument)?;
        Ok(Self {
            device: device.clone(),
            client_device: client_device.cloned(),
            handle: argument.vm,
        })
    }

    /// The device that it is on.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) const fn client_device(&self) -> Option<&ClientDevice> {
        self.client_device.as_ref()
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        self.device.file()
    }

    /// The handle, for [`crate::raw`].
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// Starts a bind: operations that are performed in order, together with what they wait for and
    /// signal.
    pub const fn bind(&self) -> Bind<'_> {
        Bind {
            vm: self,
            context: None,
            ops: Vec::new(),
            syncs: Syncs::new(self.file()),
        }
    }

    /// Maps all of a buffer object, and waits until it is done.
    ///
    /// # Errors
    ///
    /// As [`Bind::submit`], and [`crate::Error::Work`] if the device was lost.
    pub fn map(&self, bo: &Bo, va: u64, access: Access) -> Result<()> {
        self.bind()
            .map(bo, 0, va, bo.size(), access)
            .submit_and_wait()
    }

    /// Unmaps whatever is mapped in a range, and waits until it is done.
    ///
    /// # Errors
    ///
    /// As [`Bind::submit`], and [`crate::Error::Work`] if the device was lost.
    pub fn unmap(&self, va: u64, size: u64) -> Result<()> {
        self.bind().unmap(va, size).submit_and_wait()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.file().destroy(uapi::drm_skua_vm_destroy {
            vm: self.handle,
            pad: 0,
        });
    }
}

/// Changes to an address space that are performed together, or not at all.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Bind<'a> {
    /// Whose mappings it changes.
    vm: &'a Vm,
    /// In whose order it is held, if not in the address space's.
    context: Option<&'a Context>,
    /// What is to be done, in this order.
    ops: Vec<uapi::drm_skua_bind_op>,
    /// Fences that it waits for before the first of them, and signals when all are done.
    syncs: Syncs<'a>,
}

impl<'a> Bind<'a> {
    /// Maps `size` bytes of a buffer object from `offset` on at `va`, all multiples of 4096. What
    /// was mapped there before is unmapped.
    pub fn map(mut self, bo: &'a Bo, offset: u64, va: u64, size: u64, access: Access) -> Self {
        self.syncs.expect(bo.file());
        self.ops.push(uapi::drm_skua_bind_op {
            type_: uapi::DRM_SKUA_BIND_MAP,
            flags: match access {
                Access::Read => uapi::DRM_SKUA_BIND_READONLY,
                Access::ReadWrite => 0,
            },
            handle: bo.handle(),
            pad: 0,
            offset,
            va,
            size,
        });
        self
    }

    /// Maps the page with the value of a monitored fence at `va`, a multiple of 4096, for the GPU
    /// to read. It stays when the fence is dropped.
    pub fn map_fence(mut self, fence: &'a MonitoredFence, va: u64) -> Self {
        self.syncs.expect(fence.file());
        self.ops.push(uapi::drm_skua_bind_op {
            type_: uapi::DRM_SKUA_BIND_MAP_FENCE,
            handle: fence.handle(),
            va,
            size: 4096,
            ..Default::default()
        });
        self
    }

    /// Unmaps whatever is mapped in a range, if anything.
    pub fn unmap(mut self, va: u64, size: u64) -> Self {
        self.ops.push(uapi::drm_skua_bind_op {
            type_: uapi::DRM_SKUA_BIND_UNMAP,
            va,
            size,
            ..Default::default()
        });
        self
    }

    /// Maps in `size` bytes at `va` what is mapped in as many at `from`, all multiples of 4096, as
    /// the operations before leave the two, which may overlap.
    pub fn copy(mut self, from: u64, va: u64, size: u64) -> Self {
        self.ops.push(uapi::drm_skua_bind_op {
            type_: uapi::DRM_SKUA_BIND_COPY,
            offset: from,
            va,
            size,
            ..Default::default()
        });
        self
    }

    /// Has it be held behind what is held of the binds of a context of the address space, and not
    /// behind those of the address space, nor these behind it ([`Bind::wait_value`]).
    pub fn in_order_of(mut self, context: &'a Context) -> Self {
        self.syncs.expect(context.file());
        self.context = Some(context);
        self
    }

    /// Waits until a monitored fence has a value before anything is performed, whether or not
    /// somebody has promised to signal it.
    pub fn wait_value(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.syncs.value(uapi::DRM_SKUA_SYNC_WAIT, fence, value);
        self
    }

    /// Waits for a syncobj before anything is performed; `point` 0 is a binary one.
    pub fn wait(mut self, syncobj: &'a Syncobj, point: u64) -> Self {
        self.syncs.wait(syncobj, point);
        self
    }

    /// Signals a syncobj when all is performed; `point` 0 is a binary one.
    pub fn signal(mut self, syncobj: &'a Syncobj, point: u64) -> Self {
        self.syncs.signal(syncobj, point);
        self
    }

    /// Signals a value of a monitored fence when all is performed.
    pub fn signal_value(mut self, fence: &'a MonitoredFence, value: u64) -> Self {
        self.syncs.value(uapi::DRM_SKUA_SYNC_SIGNAL, fence, value);
        self
    }

    /// Hands the bind to the driver; it does not wait.
    ///
    /// # Errors
    ///
    /// EINVAL if an operation is out of its range, there is none, or there are more operations or
    /// syncobjs than the device's limits; EBUSY for a buffer object that is offered; ENOSPC if too
    /// many wait or are held; E2BIG if copies come to too many mappings; ECANCELED if the context
    /// takes no work; [`crate::Error::Argument`] for something of another file. Nothing is
    /// performed then.
    pub fn submit(self) -> Result<()> {
        let syncs = self.syncs.as_array()?;
        // What fails is a bind that waits for what failed, or that is cancelled with its context.
        if self.syncs.waits() || self.context.is_some() {
            self.syncs.timelines().iter().for_each(|t| t.doubt());
        }
        self.vm
            .file()
            .call(&mut uapi::drm_skua_vm_bind {
                vm: self.vm.handle,
                flags: 0,
                context: self.context.map_or(0, Context::handle),
                pad: 0,
                ops: array(&self.ops),
                syncs,
            })
            .map(|_| ())
    }

    /// Hands the bind to the driver, and waits until it is performed.
    ///
    /// # Errors
    ///
    /// As [`Bind::submit`], and [`crate::Error::Work`] if the device was lost.
    pub fn submit_and_wait(self) -> Result<()> {
        let done = Syncobj::create(&self.vm.device)?;
        // Does not outlive this call.
        let this: Bind<'_> = self;
        this.signal(&done, 0).submit()?;
        done.wait_done(0, Deadline::NEVER)
    }
}
