// SPDX-License-Identifier: GPL-2.0

//! What [`drm::Device`] and the bus device do not offer a driver that has no `unsafe`.

use super::{
    fence::Signalling,
    shim, //
};
use kernel::{
    bindings,
    device::Bound,
    drm,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        barrier::{
            smp_mb,
            Read, //
        }, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The C structure of a DRM device.
pub(super) fn as_raw<D: drm::Driver, C: drm::DeviceContext>(
    dev: &drm::Device<D, C>,
) -> *mut bindings::drm_device {
    // CAST: `drm::Device` is `repr(C)` and begins with `Opaque<drm_device>`, whose content may be
    // written through a shared reference.
    core::ptr::from_ref(dev)
        .cast_mut()
        .cast::<bindings::drm_device>()
}

/// Keeps the device from being unregistered and unbound, from anywhere: work items, faults, timers.
///
/// [`None`] before registration and once unplugging has begun. Unplugging waits until the guard is
/// dropped, so do not wait for the GPU with it; it is not to be taken in interrupt handlers that
/// cannot be delayed, but it never sleeps.
///
/// # Examples
///
/// ```ignore
/// // In a work item:
/// let Some(bound) = device::enter(&dev) else {
///     return;
/// };
/// let map = DmaMap::new(&dev.resources, parent(&bound), &pages)?;
/// ```
pub(crate) fn enter<D: drm::Driver>(dev: &drm::Device<D>) -> Option<drm::RegistrationGuard<'_, D>> {
    // SAFETY:
    // - The pointer is that of a valid reference, embedded in a `drm::Device<D>`.
    // - The `Ioctl` context promises that the device has been registered at some point. The only
    //   use made of it before that is checked below is `drm_dev_enter()`, which is valid on any
    //   device.
    let ioctl: &drm::Device<D, drm::Ioctl> = unsafe { drm::Device::from_raw(as_raw(dev)) };
    let guard = ioctl.registration_guard()?;
    Signalling::renew();

    // An unregistered device lets `drm_dev_enter()` pass. `registered` is set once, by
    // `drm_dev_register()`, after the registration data has been stored; it is cleared by
    // `drm_dev_unplug()` only after it has waited for sections like this one.
    //
    // SAFETY: The device is valid; the field is a plain `bool` that another CPU may be setting.
    let registered = unsafe { (&raw const (*as_raw(dev)).registered).read_volatile() };
    smp_mb(Read);
    registered.then_some(guard)
}

/// Waits until a device is registered whose node can be opened: `drm_dev_register()` shows nodes
/// before it says so, and until then nobody can [`enter`].
///
/// Sleeps, a second at most. `ENODEV` if it is not registered then, or is being unplugged.
pub(crate) fn wait_until_registered<D: drm::Driver>(dev: &drm::Device<D>) -> Result {
    for _ in 0..1000 {
        if enter(dev).is_some() {
            return Ok(());
        }
        if is_unplugged(dev) {
            break;
        }
        fsleep(Delta::from_millis(1));
    }
    Err(ENODEV)
}

/// Whether the device is being unplugged, or was. A hint: see [`enter`] for a guarantee.
pub(crate) fn is_unplugged<D: drm::Driver>(dev: &drm::Device<D>) -> bool {
    let mut index = 0;
    // SAFETY: The device is valid.
    if unsafe { bindings::drm_dev_enter(as_raw(dev), &mut index) } {
        // SAFETY: `index` is from the successful enter.
        unsafe { bindings::drm_dev_exit(index) };
        false
    } else {
        true
    }
}

/// Has `dev` and its data live for ever. It is no leak, and neither is what they lead to.
pub(crate) fn keep<D: drm::Driver>(dev: &drm::Device<D>) {
    core::mem::forget(ARef::from(dev));
    // SAFETY: The device is valid; it is where its allocation begins.
    unsafe { shim::skua_not_leak(as_raw(dev).cast()) };
}

/// The right of a PCI device to access memory by itself (bus mastering).
///
/// # Examples
///
/// ```ignore
/// let bus = BusMaster::new(pdev);
/// bus.turn_on();
/// // Before memory that the device knows goes back to the system:
/// if !bus.turn_off() {
///     keep(memory);
/// }
/// ```
pub(crate) struct BusMaster(ARef<pci::Device>);

impl BusMaster {
    /// For `pdev`, which cannot access memory yet.
    pub(crate) fn new(pdev: &pci::Device<Bound>) -> Self {
        let pdev: &pci::Device = pdev;
        Self(pdev.into())
    }

    fn as_raw(&self) -> *mut bindings::pci_dev {
        // CAST: `pci::Device` is `repr(transparent)` over `Opaque<pci_dev>`.
        core::ptr::from_ref(&*self.0)
            .cast_mut()
            .cast::<bindings::pci_dev>()
    }

    /// Lets the device access memory.
    pub(crate) fn turn_on(&self) {
        // SAFETY: The device is valid, as a reference to it is held.
        unsafe { bindings::pci_set_master(self.as_raw()) };
    }

    /// Takes the right away. Whether it is known to be gone: the device says so, or does not answer
    /// at all, as one that was unplugged. A read of the device's configuration, so that what the
    /// device has begun is over (PCIe 4.0, 2.4.1: a completion pushes posted writes).
    ///
    /// Not after the device was unbound: another driver may have it then.
    pub(crate) fn turn_off(&self) -> bool {
        let mut command = u16::MAX;
        // SAFETY: The device is valid, as a reference to it is held; `command` receives the
        // register.
        unsafe {
            bindings::pci_clear_master(self.as_raw());
            bindings::pci_read_config_word(
                self.as_raw(),
                // CAST: 4.
                bindings::PCI_COMMAND as c_int,
                &mut command,
            );
        }
        command == u16::MAX || u32::from(command) & bindings::PCI_COMMAND_MASTER == 0
    }
}
