// SPDX-License-Identifier: GPL-2.0

//! What [`drm::Driver`] cannot say in 7.3: syncobjs, fdinfo, debugfs, PRIME import.
//!
//! # Model
//!
//! The DRM core looks at `drm_device.driver` when it needs it, so a device can be given another
//! table of functions until it is registered; the kernel crate itself does that
//! (`rust/kernel/drm/device.rs`). [`extend`] copies the table that
//! [`UnregisteredDevice::new`](drm::UnregisteredDevice::new) installed, adds to it, and installs
//! the copy. There is one copy for a driver, in a [`Vtable`] static: files in use point into it,
//! and they keep the module, through `fops.owner`.
//!
//! # Safety of the approach
//!
//! - `UnregisteredDevice` is not `Send` and its device is not registered: nobody else looks.
//! - Features may be added before registration: render and GEM were set up at allocation and stay;
//!   syncobj state is made per file at open.
//! - [`extend`] checks that the device is what it believes it to be, and fails otherwise.
//! - Concurrent probes write the same content; one of them writes, the others wait.
//!
//! C header: `include/drm/drm_drv.h`.

use super::{
    device,
    devres::DevresSet,
    gem::{
        self,
        GemExt, //
    },
    printer::{
        Printer,
        SeqPrinter, //
    },
    shim, //
};
use core::ptr;
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    drm::{
        self,
        gem::Object,
        Registered, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        SetOnce, //
    }, //
};

/// What a driver adds to [`drm::Driver`].
///
/// # Examples
///
/// ```ignore
/// static VTABLE: Vtable = Vtable::new();
///
/// impl DriverExt for MyDriver {
///     type Gem = MyObject;
///
///     fn vtable() -> &'static Vtable {
///         &VTABLE
///     }
///
///     fn show_fdinfo(
///         dev: &drm::Device<Self, Registered>,
///         file: &drm::File<MyFile>,
///         printer: &mut Printer<'_>,
///     ) {
///         let _ = writeln!(printer, "drm-engine-copy:\t{} ns", file.inner().busy());
///     }
///
///     fn resources(dev: &drm::Device<Self>) -> &DevresSet {
///         &dev.resources
///     }
///
///     fn import(dev: &drm::Device<Self>, size: usize) -> Result<ARef<Object<MyObject>>> {
///         gem::create(dev, size, ())
///     }
/// }
/// ```
pub(crate) trait DriverExt:
    drm::Driver<Object = Object<Self::Gem>> + Sized + 'static
{
    /// What is in the driver's objects.
    type Gem: GemExt<Driver = Self>;

    /// A static of the driver, its own.
    fn vtable() -> &'static Vtable;

    /// Files in the device's debugfs directory.
    const DEBUGFS: &'static [DebugfsFile<Self>] = &[];

    /// Prints the driver's keys of `file` to fdinfo (`drm-usage-stats.rst`). The core has printed
    /// driver, client and device. The device is registered; may sleep, not for the GPU.
    fn show_fdinfo(
        dev: &drm::Device<Self, Registered>,
        file: &drm::File<Self::File>,
        printer: &mut Printer<'_>,
    );

    /// Called before each ioctl of the driver's, but those that [wait](crate::declare_skua_ioctls).
    fn before_ioctl(_dev: &drm::Device<Self, Registered>) {}

    /// What the device's objects have that ends with the bus device's driver.
    fn resources(dev: &drm::Device<Self>) -> &DevresSet;

    /// Makes an object for memory of another driver: `size` bytes (whole pages), which the device
    /// finds where [`gem::Backing::import`] tells, once this has returned. The object is made by
    /// [`gem::create`](super::gem::create) with that size, and stays [`gem::Placement::Nowhere`].
    fn import(dev: &drm::Device<Self>, size: usize) -> Result<ARef<Object<Self::Gem>>>;
}

/// A file that shows text in debugfs.
pub(crate) struct DebugfsFile<D: DriverExt> {
    /// The file's name in the device's directory.
    pub(crate) name: &'static CStr,
    /// Writes its content. The device is registered.
    pub(crate) show: fn(&drm::Device<D, Registered>, &mut SeqPrinter<'_>) -> Result,
}

/// Room for a driver's extended tables: `static VTABLE: Vtable = Vtable::new();`.
pub(crate) struct Vtable {
    /// The DRM core's table of the driver, extended.
    driver: SetOnce<Table<bindings::drm_driver>>,
    /// The node's file operations, extended.
    fops: SetOnce<Table<bindings::file_operations>>,
    /// What the driver's exported buffers do, and are known by.
    dma_buf: SetOnce<Table<bindings::dma_buf_ops>>,
}

impl Vtable {
    /// Room without tables, until the driver is registered first.
    pub(crate) const fn new() -> Self {
        Self {
            driver: SetOnce::new(),
            fops: SetOnce::new(),
            dma_buf: SetOnce::new(),
        }
    }

    /// The operations of the driver's exported buffers, from the first registration on.
    pub(super) fn dma_buf(&'static self) -> Option<&'static bindings::dma_buf_ops> {
        self.dma_buf.as_ref().map(|table| &table.0)
    }
}

#[repr(transparent)]
struct Table<T>(T);

// SAFETY: The tables hold pointers to functions and to static data and are not written once stored.
unsafe impl<T> Send for Table<T> {}
// SAFETY: As above.
unsafe impl<T> Sync for Table<T> {}

/// Stores `new` in `cell`, or waits until who came first has done so.
fn store<T>(cell: &'static SetOnce<Table<T>>, new: T) -> &'static T {
    cell.populate(Table(new));
    loop {
        if let Some(table) = cell.as_ref() {
            return &table.0;
        }
        // Another probe is between claiming the cell and having filled it: a copy away.
        //
        // SAFETY: Probe is process context and may sleep.
        unsafe { bindings::schedule_timeout_uninterruptible(1) };
    }
}

/// Extends `dev` by what `D` adds, before it is registered.
///
/// `EINVAL` if the device is not laid out as expected (another kernel than this was written for),
/// or if [`DriverExt::vtable`] is another driver's.
pub(super) fn extend<D: DriverExt>(dev: &drm::UnregisteredDevice<D>) -> Result {
    let raw = device::as_raw::<D, _>(dev);

    // SAFETY: `raw` is the device of a valid reference, not registered, thus private to this
    // thread. What is read here is only compared.
    let (parent, stock) = unsafe { ((*raw).dev, (*raw).driver) };
    let expected: &D::ParentDevice<kernel::device::Normal> = (**dev).as_ref();
    let expected: &kernel::device::Device = expected.as_ref();
    if !ptr::eq(parent, ptr::from_ref(expected).cast_mut().cast()) || stock.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: The parent is as expected, so this is a `drm_device`, and `driver` is the static
    // table that `UnregisteredDevice::new()` has installed.
    let stock = unsafe { &*stock };
    if !is_of::<D>(stock)
        || stock.fops.is_null()
        || stock.show_fdinfo.is_some()
        || stock.debugfs_init.is_some()
    {
        return Err(EINVAL);
    }

    // SAFETY: `fops` is a static of the stock table. The structure is plain data.
    let mut fops = unsafe { ptr::read(stock.fops) };
    fops.show_fdinfo = Some(bindings::drm_show_fdinfo);
    let fops = store(&D::vtable().fops, fops);
    store(&D::vtable().dma_buf, gem::dma_buf_ops::<D::Gem>());

    // SAFETY: The structure is plain data.
    let mut driver = unsafe { ptr::read(stock) };
    driver.driver_features |= bindings::drm_driver_feature_DRIVER_SYNCOBJ
        | bindings::drm_driver_feature_DRIVER_SYNCOBJ_TIMELINE;
    driver.show_fdinfo = Some(fdinfo_callback::<D>);
    driver.gem_prime_import = Some(gem::import_callback::<D::Gem>);
    driver.gem_prime_import_sg_table = Some(import_callback::<D>);
    driver.fops = fops;
    let driver = store(&D::vtable().driver, driver);
    if !is_of::<D>(driver) {
        return Err(EINVAL);
    }

    // SAFETY: The device is private to this thread; `driver` is static.
    unsafe { (*raw).driver = driver };

    for file in D::DEBUGFS {
        // SAFETY: The device is valid and not registered; the name and the entry are static. The
        // function gives the entry to `debugfs_callback::<D>` and lets go of both when the device
        // is unregistered.
        unsafe {
            shim::skua_debugfs_add_file(
                raw,
                file.name.as_char_ptr().cast(),
                Some(debugfs_callback::<D>),
                ptr::from_ref(file).cast_mut().cast(),
            );
        }
    }
    Ok(())
}

/// Whether `table` is one of `D`, or a copy of it. Constants have no address of their own to tell.
fn is_of<D: DriverExt>(table: &bindings::drm_driver) -> bool {
    // SAFETY: The name of a table is a string that stays.
    let name = unsafe { CStr::from_char_ptr(table.name) };
    name == D::INFO.name && usize::try_from(table.num_ioctls) == Ok(D::IOCTLS.len())
}

/// `drm_driver.show_fdinfo`.
///
/// # Safety
///
/// To be called by the DRM core, for a file of a device of `D`.
unsafe extern "C" fn fdinfo_callback<D: DriverExt>(
    printer: *mut bindings::drm_printer,
    file: *mut bindings::drm_file,
) {
    // SAFETY: `drm_show_fdinfo()` passes a valid file of a device of this driver. The device has
    // been registered, since it was opened.
    let (dev, file) = unsafe {
        let dev = drm::Device::<D>::from_raw((*(*file).minor).dev);
        (dev, drm::File::<D::File>::from_raw(file))
    };
    // SAFETY: The printer is valid for this call and used by nobody else.
    let mut printer = unsafe { Printer::from_raw(printer) };
    if let Some(dev) = device::enter(dev) {
        D::show_fdinfo(&dev, file, &mut printer);
    }
}

/// `drm_debugfs_info.show`.
///
/// # Safety
///
/// To be called by the DRM core, for a file that [`extend::<D>`](extend) has added.
unsafe extern "C" fn debugfs_callback<D: DriverExt>(
    m: *mut bindings::seq_file,
    _unused: *mut c_void,
) -> c_int {
    // SAFETY: The core calls this for files added by `extend::<D>()`: the device is a valid one of
    // this driver, and the data is a `&'static DebugfsFile<D>`. debugfs keeps the file, and thereby
    // the device, from being removed during the call.
    let (dev, file, mut printer) = unsafe {
        (
            drm::Device::<D>::from_raw(shim::skua_debugfs_dev(m)),
            &*shim::skua_debugfs_data(m).cast::<DebugfsFile<D>>(),
            SeqPrinter::from_raw(m),
        )
    };
    let Some(dev) = device::enter(dev) else {
        return ENODEV.to_errno();
    };
    (file.show)(&dev, &mut printer).map_or_else(Error::to_errno, |()| 0)
}

/// `drm_driver.gem_prime_import_sg_table`.
///
/// # Safety
///
/// To be called by the DRM core, for a device of `D`.
unsafe extern "C" fn import_callback<D: DriverExt>(
    dev: *mut bindings::drm_device,
    attach: *mut bindings::dma_buf_attachment,
    table: *mut bindings::sg_table,
) -> *mut bindings::drm_gem_object {
    // SAFETY: The core calls this for a valid device of this driver.
    let dev = unsafe { drm::Device::<D>::from_raw(dev) };
    let Some(guard) = device::enter(dev) else {
        return ENODEV.to_ptr();
    };
    let parent: &D::ParentDevice<Bound> = (*guard).as_ref();
    let parent: &Device<Bound> = parent.as_ref();
    let set = D::resources(dev);
    // SAFETY: This is that callback; its arguments are as the core passes them. A set of another
    // device refuses `parent`.
    let obj =
        unsafe { gem::import::<D::Gem>(set, parent, attach, table, |size| D::import(dev, size)) };
    obj.unwrap_or_else(|error| error.to_ptr())
}

#[kunit_tests(skua_driver)]
mod tests {
    use super::super::{
        gem::Placement,
        mock,
        pages,
        resv, //
    };
    use super::*;
    use kernel::{
        drm::gem::BaseObject,
        page::PAGE_SIZE,
        sync::atomic::Relaxed, //
    };

    #[test]
    fn the_table_is_extended_once() -> Result {
        let (_a, a) = mock::device(c"skua-mock-a")?;
        let (_b, b) = mock::device(c"skua-mock-b")?;
        let (a, b) = (device::as_raw(&*a), device::as_raw(&*b));
        // SAFETY: Both devices are valid, their tables static.
        let (a, b) = unsafe { (&*(*a).driver, &*(*b).driver) };
        assert!(ptr::eq(a, b));
        let features = bindings::drm_driver_feature_DRIVER_SYNCOBJ
            | bindings::drm_driver_feature_DRIVER_SYNCOBJ_TIMELINE
            | bindings::drm_driver_feature_DRIVER_GEM
            | bindings::drm_driver_feature_DRIVER_RENDER;
        assert_eq!(a.driver_features, features);
        assert!(a.show_fdinfo.is_some());
        // SAFETY: The table's file operations are static.
        assert!(unsafe { (*a.fops).show_fdinfo.is_some() && (*a.fops).open.is_some() });
        Ok(())
    }

    #[test]
    fn extending_twice_is_refused() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        assert!(extend(&dev) == Err(EINVAL));
        Ok(())
    }

    #[test]
    fn enter_only_while_registered() -> Result {
        let (parent, dev) = mock::device(c"skua-mock")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*dev).into();
        assert!(device::enter(&held).is_none());
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, dev, 7)?;
        {
            let guard = device::enter(&held).ok_or(ENODEV)?;
            assert_eq!(guard.registration_data_with(|data| *data), 7);
        }
        drop(registration);
        assert!(device::enter(&held).is_none());
        assert!(device::is_unplugged(&held));
        Ok(())
    }

    #[test]
    fn a_mapping_faults_in_and_survives_unplug() -> Result {
        let (parent, dev) = mock::device(c"skua-mock")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*dev).into();
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, dev, 0)?;
        let client = mock::Client::open(&held)?;

        let obj = gem::create::<mock::MockObject>(&held, 2 * PAGE_SIZE, None)?;
        let empty = gem::create::<mock::MockObject>(&held, PAGE_SIZE, None)?;
        let handle = obj.create_handle(client.drm())?;
        empty.create_handle(client.drm())?;
        assert!(handle > 0);
        let mut seen = 0;
        super::super::file::for_each_object(client.drm(), |obj, shared| {
            assert!(!shared);
            seen += obj.size();
        });
        assert_eq!(seen, 3 * PAGE_SIZE);

        // A private writable mapping of page frames is a BUG_ON() in the kernel: refused.
        let offset = obj.create_mmap_offset()?;
        assert!(client.mmap(offset, PAGE_SIZE, false).err() == Some(EINVAL));
        let at = client.mmap(offset, 2 * PAGE_SIZE, true)?;
        let other = client.mmap(empty.create_mmap_offset()?, PAGE_SIZE, true)?;

        // New memory is zero; a write goes to the object's pages.
        let mut bytes = [1u8; 8];
        mock::user_read(at, &mut bytes)?;
        assert!(bytes == [0; 8]);
        mock::user_write(at + PAGE_SIZE, b"skua")?;
        assert_eq!(held.faults.load(Relaxed), 2);
        {
            let mut lock = resv::lock(&*obj)?;
            let Placement::System(pages, ()) = gem::placement(&obj, &lock)? else {
                return Err(EINVAL);
            };
            let mut word = [0u8; 4];
            pages.read(PAGE_SIZE, &mut word)?;
            assert!(&word == b"skua");
            // Another object's lock is not good enough.
            assert!(gem::placement(&empty, &lock).is_err());

            // Out of memory and back: the mapping faults again and finds the same content.
            gem::replace(&obj, &mut lock, Placement::Nowhere)?;
        }
        let mut word = [0u8; 4];
        mock::user_read(at + PAGE_SIZE, &mut word)?;
        assert!(&word == b"skua");
        assert_eq!(held.faults.load(Relaxed), 3);

        // Unplugged: system pages stay, what was nowhere is a zeroed page; both without the driver.
        drop(registration);
        mock::user_read(at + PAGE_SIZE, &mut word)?;
        assert!(&word == b"skua");
        let mut bytes = [1u8; 8];
        mock::user_read(other, &mut bytes)?;
        assert!(bytes == [0; 8]);
        mock::user_write(other, b"gone")?;
        assert_eq!(held.faults.load(Relaxed), 3);
        assert!(client.mmap(offset, PAGE_SIZE, true).err() == Some(ENODEV));

        mock::munmap(at, 2 * PAGE_SIZE)?;
        mock::munmap(other, PAGE_SIZE)?;
        assert_eq!(held.objects.load(Relaxed), 2);
        drop((obj, empty));
        // The client's handles are the last references.
        assert_eq!(held.objects.load(Relaxed), 2);
        drop(client);
        mock::release_files();
        assert_eq!(held.objects.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn objects_are_freed_and_bad_sizes_refused() -> Result {
        let (_parent, dev) = mock::device(c"skua-mock")?;
        for size in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1, usize::MAX] {
            assert!(gem::create::<mock::MockObject>(&dev, size, None).err() == Some(EINVAL));
        }
        let obj = gem::create::<mock::MockObject>(&dev, PAGE_SIZE, None)?;
        assert_eq!(dev.objects.load(Relaxed), 1);
        {
            let mut lock = resv::lock(&*obj)?;
            assert!(resv::trylock(&*obj).is_none());
            let pages = pages::Pages::get(&*obj, pages::Caching::WriteBack)?;
            gem::replace(&obj, &mut lock, Placement::System(pages, ()))?;
        }
        assert!(resv::trylock(&*obj).is_some());
        drop(obj);
        assert_eq!(dev.objects.load(Relaxed), 0);
        Ok(())
    }
}
