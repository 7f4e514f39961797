// SPDX-License-Identifier: GPL-2.0

//! A PCI driver of a DRM device.
//!
//! # Model
//!
//! A DRM registration and interrupt handlers may borrow from the bound device, and are not to
//! outlive that: whoever could have one as a value could forget it, so that making one is `unsafe`.
//! A driver gets neither. It says what they are made of ([`Parts`]) and what they call
//! ([`PciDriver`]); they are made here, belong to the bus as the device's private data, and the bus
//! drops that at unbind, always.
//!
//! ```text
//! probe   PciDriver::probe ─▶ interrupts ─▶ PciDriver::start ─▶ registration
//! unbind  PciDriver::stop ─▶ handlers return ─▶ registration ─▶ interrupts ─▶ devres
//! ```
//!
//! A probe that fails after [`PciDriver::probe`] gives the vectors back and stops the device.
//!
//! The kernel crate fills in what a driver is called for at probe and removal. That the system
//! sleeps is told here: its table of callbacks is added before the driver is registered.
//!
//! Whoever maps or allocates memory for DMA must have seen the device bound. The one way to that is
//! [`Probe::limit_dma`], so that what it sets is set before, once.
//!
//! # Examples
//!
//! ```ignore
//! impl PciDriver for MyDriver {
//!     const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;
//!
//!     fn probe<'bound>(probe: Probe<'bound, '_>) -> Result<Parts<'bound, Self>> {
//!         let regs = probe.map::<BAR_SIZE>(0, c"my-registers")?;
//!         let pdev = probe.limit_dma(48)?;
//!         let data = MyData::new(pdev, regs)?;
//!         Ok(Parts {
//!             drm: drm::UnregisteredDevice::new(pdev, data)?,
//!             data: (),
//!             vectors: 1,
//!         })
//!     }
//!
//!     // …
//! }
//!
//! // In the module structure:
//! _driver <- ext::pci::Registration::<MyDriver>::new(<Self as ModuleMetadata>::NAME, module),
//! ```
//!
//! Upstream's counterpart: `rust/kernel/pci.rs`.

use super::{
    drm_driver::{
        self,
        DriverExt, //
    },
    irq::Interrupts, //
};
use core::{
    marker::PhantomData,
    mem::offset_of, //
};
use kernel::{
    bindings,
    device::{
        Bound,
        Core,
        CoreInternal,
        Device, //
    },
    dma::{
        Device as _,
        DmaMask, //
    },
    driver,
    drm,
    error::from_result,
    irq::{
        IrqReturn,
        ThreadedHandler, //
    },
    pci::{
        self,
        DevresBar, //
    },
    prelude::*,
    sync::aref::ARef,
    types::{
        Opaque,
        ScopeGuard, //
    }, //
};

/// What a driver does with its devices. Its [`drm::Driver::ParentDevice`] is [`pci::Device`].
pub(crate) trait PciDriver: DriverExt {
    /// The devices that it drives.
    const ID_TABLE: pci::IdTable<()>;

    /// Gets a device ready, as far as nothing runs on it yet. Its BARs are enabled.
    fn probe<'bound>(probe: Probe<'bound, '_>) -> Result<Parts<'bound, Self>>;

    /// Starts the device: interrupts are handled, and userspace comes after this.
    fn start(dev: &drm::Device<Self>) -> Result;

    /// Interrupt vector `vector` was raised. In a thread of the vector's own.
    fn interrupt(dev: &drm::Device<Self>, vector: u32);

    /// The device is about to be unbound, and userspace may be at work; or probing it has failed,
    /// and [`Self::start`] with it, or was not called. Undoes what it did. Is called once more when
    /// userspace is about to find no device.
    fn stop(dev: &drm::Device<Self>);

    /// The system is about to sleep, and the device to lose its power: userspace is frozen, and
    /// interrupts are still handled. An error keeps the system awake.
    fn sleep(dev: &drm::Device<Self>) -> Result;

    /// The device has its power, and what its configuration space held, after [`Self::sleep`] was
    /// called without an error. An error is logged.
    fn wake(dev: &drm::Device<Self>) -> Result;

    /// The bus is about to reset the device (FLR, as by sysfs), after which it calls
    /// [`Self::reset_done`]; userspace may be at work. Nobody answers in between.
    fn reset_prepare(dev: &drm::Device<Self>);

    /// The bus has reset the device, and restored its configuration space.
    fn reset_done(dev: &drm::Device<Self>);
}

/// What a bound device consists of.
pub(crate) struct Parts<'bound, D: PciDriver> {
    /// The DRM device, to be registered when it was started.
    pub(crate) drm: drm::UnregisteredDevice<D>,
    /// What ioctls and faults get while it is registered.
    pub(crate) data: D::RegistrationData<'bound>,
    /// How many MSI-X vectors it has.
    pub(crate) vectors: u32,
}

/// A device in probe.
///
/// # Invariants
///
/// Nobody has been given the device as a bound one since its probe has begun.
pub(crate) struct Probe<'bound, 'core>(&'bound pci::Device<Core<'core>>);

impl<'bound> Probe<'bound, '_> {
    /// The device, for the log.
    pub(crate) fn device(&self) -> &Device {
        self.0.as_ref()
    }

    /// Maps all of `bar`, until the device is unbound.
    pub(crate) fn map<const SIZE: usize>(
        &self,
        bar: u32,
        name: &'static CStr,
    ) -> Result<DevresBar<SIZE>> {
        self.0.iomap_region_sized::<SIZE>(bar, name)?.into_devres()
    }

    /// Says that DMA addresses, streaming and coherent, have `bits` bits, and that a segment may be
    /// as long as it likes: the device has page tables, and no limit of its own.
    ///
    /// `EIO` if the platform cannot do it, `EINVAL` for more than 64 bits.
    pub(crate) fn limit_dma(self, bits: u32) -> Result<&'bound pci::Device<Bound>> {
        let mask = DmaMask::try_new(bits)?;
        // SAFETY: Mapping and allocating asks for the bound device, which by the type invariant
        // nobody has.
        unsafe {
            self.0.dma_set_max_seg_size(u32::MAX);
            self.0.dma_set_mask_and_coherent(mask)?;
        }
        Ok(self.0)
    }
}

/// The handler of one interrupt vector.
struct Vector<D: PciDriver> {
    /// The device whose driver is told.
    dev: ARef<drm::Device<D>>,
    /// The number of the MSI-X vector.
    index: u32,
}

impl<D: PciDriver> ThreadedHandler for Vector<D> {
    fn handle_threaded(&self) -> IrqReturn {
        D::interrupt(&self.dev, self.index);
        IrqReturn::Handled
    }
}

/// The private data of a bound device. Fields are dropped in the order of their declaration.
struct Running<'bound, D: PciDriver> {
    /// Ends first: no ioctl comes any more.
    registration: drm::Registration<'bound, D>,
    /// End when no handler runs.
    interrupts: Interrupts<'bound, Vector<D>>,
}

impl<'bound, D: PciDriver> Running<'bound, D> {
    /// Has the driver probe `pdev`, and registers its interrupts and its node.
    ///
    /// # Safety
    ///
    /// The result must be dropped before `'bound` ends.
    unsafe fn new(pdev: &'bound pci::Device<Core<'_>>) -> Result<Self> {
        pdev.enable_device_mem()?;
        // INVARIANT: This is the begin of its probe.
        let Parts { drm, data, vectors } = D::probe(Probe(pdev))?;
        drm_driver::extend(&drm)?;
        let dev: ARef<drm::Device<D>> = (&*drm).into();
        let stop = ScopeGuard::new_with_data(dev.clone(), |dev| D::stop(&dev));
        let handler = |index| Vector {
            dev: dev.clone(),
            index,
        };
        // SAFETY: Dropped here, or with the result.
        let interrupts = unsafe { Interrupts::new(pdev, vectors, D::INFO.name, handler) }
            .inspect_err(|_| dev_err!(pdev, "no {} interrupt vectors\n", vectors))?;
        D::start(&dev)?;
        // SAFETY: As above.
        let registration =
            unsafe { drm::Registration::new(pdev.as_ref(), drm, Ok::<_, Error>(data), 0) }?;
        stop.dismiss();
        Ok(Self {
            registration,
            interrupts,
        })
    }
}

impl<D: PciDriver> Running<'_, D> {
    /// Has the driver stop the device. No handler that saw it run runs then.
    fn stop(&self) {
        D::stop(self.registration.device());
        self.interrupts.synchronize();
    }
}

/// After [`Bus::unbind`], before what devres holds; without it where the bus has no memory for it
/// after a probe.
impl<D: PciDriver> Drop for Running<'_, D> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the bus calls for a driver. Private, so that nobody else gets what its probe makes.
struct Bus<D>(PhantomData<D>);

impl<D: PciDriver> pci::Driver for Bus<D> {
    type IdInfo = ();
    type Data<'bound> = Running<'bound, D>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = D::ID_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        // SAFETY: The bus, who alone calls this, drops it at unbind.
        unsafe { Running::new(pdev) }
    }

    /// As long as the bus keeps the device awake: when it drops `running`, the bridge above it may
    /// have lost its power (`pci_device_remove()`).
    fn unbind<'bound>(_: &'bound pci::Device<Core<'_>>, running: Pin<&Running<'bound, D>>) {
        running.stop();
    }
}

/// [`pci::Adapter`] of a driver that is told when the system sleeps, and of resets.
struct Adapter<D>(PhantomData<D>);

// SAFETY: That of the adapter within, whose private data this has.
unsafe impl<D: PciDriver> driver::DriverLayout for Adapter<D> {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = Running<'bound, D>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(Self::DriverType, driver);
}

// SAFETY: `unregister()` undoes what the adapter within has registered.
unsafe impl<D: PciDriver> driver::RegistrationOps for Adapter<D> {
    unsafe fn register(
        driver: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: Nobody else knows of it before it is registered.
        unsafe {
            (*driver.get()).driver.pm = Self::SLEEP;
            (*driver.get()).err_handler = Self::RESET;
        }
        // SAFETY: As promised by the caller.
        unsafe { pci::Adapter::<Bus<D>>::register(driver, name, module) }
    }

    unsafe fn unregister(driver: &Opaque<Self::DriverType>) {
        // SAFETY: As promised by the caller.
        unsafe { pci::Adapter::<Bus<D>>::unregister(driver) }
    }
}

impl<D: PciDriver> Adapter<D> {
    /// What the bus calls when the system sleeps.
    const SLEEP: &'static bindings::dev_pm_ops = &bindings::dev_pm_ops {
        suspend: Some(Self::suspend),
        resume: Some(Self::resume),
        // An image of the system is made: what a device has of its own is in none.
        freeze: Some(Self::suspend),
        thaw: Some(Self::resume),
        poweroff: Some(Self::suspend),
        restore: Some(Self::resume),
        ..pin_init::zeroed()
    };

    /// `dev_pm_ops.suspend`, `freeze` and `poweroff`.
    ///
    /// # Safety
    ///
    /// As for [`Adapter::tell`].
    unsafe extern "C" fn suspend(dev: *mut bindings::device) -> c_int {
        // SAFETY: As promised by the caller.
        unsafe { Self::tell(dev, D::sleep) }
    }

    /// `dev_pm_ops.resume`, `thaw` and `restore`.
    ///
    /// # Safety
    ///
    /// As for [`Adapter::tell`].
    unsafe extern "C" fn resume(dev: *mut bindings::device) -> c_int {
        // SAFETY: As promised by the caller.
        unsafe { Self::tell(dev, D::wake) }
    }

    /// What the bus calls when it resets a device.
    const RESET: &'static bindings::pci_error_handlers = &bindings::pci_error_handlers {
        reset_prepare: Some(Self::reset_prepare),
        reset_done: Some(Self::reset_done),
        ..pin_init::zeroed()
    };

    /// `pci_error_handlers.reset_prepare`.
    ///
    /// # Safety
    ///
    /// As for [`Adapter::tell`], `pdev` being the PCI device.
    unsafe extern "C" fn reset_prepare(pdev: *mut bindings::pci_dev) {
        let reset_prepare = |dev: &drm::Device<D>| {
            D::reset_prepare(dev);
            Ok(())
        };
        // SAFETY: As promised by the caller.
        unsafe { Self::tell(&raw mut (*pdev).dev, reset_prepare) };
    }

    /// `pci_error_handlers.reset_done`.
    ///
    /// # Safety
    ///
    /// As for [`Adapter::tell`], `pdev` being the PCI device.
    unsafe extern "C" fn reset_done(pdev: *mut bindings::pci_dev) {
        let reset_done = |dev: &drm::Device<D>| {
            D::reset_done(dev);
            Ok(())
        };
        // SAFETY: As promised by the caller.
        unsafe { Self::tell(&raw mut (*pdev).dev, reset_done) };
    }

    /// Has the driver of `dev` do `what`; 0, or the negative errno.
    ///
    /// # Safety
    ///
    /// `dev` must be bound to the driver, and locked (`device_lock()`), as the bus calls the
    /// callbacks of a driver (`drivers/base/power/main.c`, `pci_dev_save_and_disable()`): its probe
    /// is over, and no unbind has begun.
    unsafe fn tell(dev: *mut bindings::device, what: fn(&drm::Device<D>) -> Result) -> c_int {
        // SAFETY: A bound device; `Device` is `repr(transparent)` over it.
        let dev = unsafe { &*dev.cast::<Device<CoreInternal<'_>>>() };
        // SAFETY: Set by the adapter within when the probe was over, with the data of `Bus<D>`.
        let running = unsafe { dev.drvdata_borrow::<Running<'_, D>>() };
        from_result(|| what(running.registration.device()).map(|()| 0))
    }
}

/// The registration of a driver with the bus.
#[pin_data]
pub(crate) struct Registration<D: PciDriver> {
    /// With the bus, until this is dropped.
    #[pin]
    driver: driver::Registration<Adapter<D>>,
}

impl<D: PciDriver> Registration<D> {
    /// Registers driver `name` of `module`. From then on devices are probed.
    pub(crate) fn new(
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            driver <- driver::Registration::new(name, module),
        })
    }
}
