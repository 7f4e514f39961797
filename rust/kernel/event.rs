// SPDX-License-Identifier: GPL-2.0

//! Events that a client reads from its file: `struct drm_pending_event`.
//!
//! # Contract
//!
//! Room for an event is set aside in a client's file ([`PendingEvent::reserve`]), which has room
//! for 4096 bytes of them; from then on it can be sent from anywhere, whether or not the file is
//! still open. What is not sent is given back on drop.
//!
//! # Examples
//!
//! ```ignore
//! // In an ioctl:
//! let trim = PendingEvent::reserve(dev, file, drm_skua_event_trim::default())?;
//!
//! // Anywhere, once:
//! trim.send(|event| event.bytes_to_trim = excess);
//! ```

use super::{
    device,
    file,
    uapi, //
};
use kernel::{
    bindings,
    drm::{
        self,
        Device,
        Driver, //
    },
    error::to_result,
    prelude::*,
    sync::aref::ARef, //
};
use zerocopy::IntoBytes;

/// An event of the uAPI: a structure that begins with its header.
pub(crate) trait Event: IntoBytes + Send {
    /// The header with which the event begins, which says its type and length.
    fn header(&mut self) -> &mut uapi::drm_event;
    /// [`uapi::drm_event::type_`] of such an event.
    const TYPE: u32;
}

/// The event as the DRM core wants it: its own part first, all in one piece of `kmalloc` memory.
#[repr(C)]
struct Inner<E> {
    /// The core's part, by which the event is in lists of its file, under the device's event lock.
    base: bindings::drm_pending_event,
    /// What the client reads, from the header on. Its owner writes it before it is sent, nobody
    /// after.
    event: E,
}

/// An event for which a client's file has set room aside.
pub(crate) struct PendingEvent<D: Driver, E: Event> {
    /// The device of the file.
    dev: ARef<Device<D>>,
    /// Owned, until it is sent.
    inner: core::ptr::NonNull<Inner<E>>,
}

// SAFETY: The core's part is changed under the device's event lock only, `E` is [`Send`], and
// whoever has the event owns it.
unsafe impl<D: Driver, E: Event> Send for PendingEvent<D, E> where ARef<Device<D>>: Send {}

impl<D: Driver, E: Event> PendingEvent<D, E> {
    /// Sets room aside in `file`, a file of `dev`, for an event as `event` is now, but for its
    /// header, which is written here. `ENOMEM`, also if the file has no room left.
    pub(crate) fn reserve<F: drm::file::DriverFile<Driver = D>>(
        dev: &Device<D>,
        file: &drm::File<F>,
        mut event: E,
    ) -> Result<Self> {
        write_header(&mut event);
        let inner = KBox::new(
            Inner {
                base: bindings::drm_pending_event::default(),
                event,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let inner = core::ptr::NonNull::from(KBox::leak(inner));
        let raw = inner.as_ptr();
        // SAFETY: Device and file are valid, and the file is open as long as it is borrowed. The
        // event is in memory of `kmalloc()` with the core's part first, as
        // `drm_event_reserve_init()` wants it, and begins with the header that it gets, both by
        // `Event` and `Inner`.
        let reserved = to_result(unsafe {
            bindings::drm_event_reserve_init(
                device::as_raw(dev),
                file::as_raw(file),
                raw.cast(),
                (&raw mut (*raw).event).cast(),
            )
        });
        if let Err(error) = reserved {
            // SAFETY: It came from `KBox::leak()`, and nobody else knows it.
            drop(unsafe { KBox::from_raw(raw) });
            return Err(error);
        }
        Ok(Self {
            dev: dev.into(),
            inner,
        })
    }

    /// Sends it, after `change` has written what is known only now.
    pub(crate) fn send(self, change: impl FnOnce(&mut E)) {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: The event is owned by `this`, which is not used any more, and is not sent: the
        // core reads it under its lock, after `drm_send_event()` has linked it, not before.
        unsafe {
            let event = &mut (*this.inner.as_ptr()).event;
            change(event);
            write_header(event);
            bindings::drm_send_event(device::as_raw(&*this.dev), this.inner.as_ptr().cast());
        }
        // SAFETY: `this` is not dropped, so the reference is taken out of it once.
        drop(unsafe { core::ptr::read(&this.dev) });
    }
}

/// As the core reads it: how much it copies to the client is in it.
fn write_header<E: Event>(event: &mut E) {
    *event.header() = uapi::drm_event {
        type_: E::TYPE,
        // CAST: few bytes.
        length: size_of::<E>() as u32,
    };
}

impl<D: Driver, E: Event> Drop for PendingEvent<D, E> {
    fn drop(&mut self) {
        // SAFETY: It was initialised by `drm_event_reserve_init()` of this device and was not sent;
        // it is not used after this.
        unsafe {
            bindings::drm_event_cancel_free(device::as_raw(&*self.dev), self.inner.as_ptr().cast());
        }
    }
}
