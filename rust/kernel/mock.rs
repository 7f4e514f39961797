// SPDX-License-Identifier: GPL-2.0

//! What the KUnit suites of this folder need: user memory, and a DRM device without hardware.
//!
//! The device is on the faux bus and uses everything that [`ext`](super) gives, as the driver does;
//! its "device memory" does not exist, so it places objects in system memory only.

use super::{
    devres::DevresSet,
    drm_driver::{
        self,
        DebugfsFile,
        DriverExt,
        Vtable, //
    },
    fault::{
        FaultError,
        VmFault, //
    },
    gem::{
        self,
        Backing,
        GemExt,
        Placement, //
    },
    pages::{
        Caching,
        Pages, //
    },
    printer::{
        MemoryStats,
        Printer,
        SeqPrinter, //
    },
    resv::{
        Reservation,
        Reserved, //
    },
    shim,
    uapi, //
};
use core::fmt::Write as _;
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    drm::{
        self,
        gem::{
            DriverObject,
            IntoGEMObject,
            Object, //
        },
        Registered, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    faux,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Jiffies,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// Two pages of user memory of the running test, followed by nothing.
pub(super) struct UserMemory(usize);

impl UserMemory {
    /// Gives the test's thread an address space, if it has none, and maps memory in it.
    pub(super) fn new() -> Result<Self> {
        let at = map(
            core::ptr::null_mut(),
            3 * PAGE_SIZE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            0,
        )?;
        munmap(at + 2 * PAGE_SIZE, PAGE_SIZE)?;
        Ok(Self(at))
    }

    /// The address of its first byte, that of a page.
    pub(super) fn address(&self) -> u64 {
        self.0 as u64
    }

    /// Its bytes, two pages; nothing is mapped behind.
    pub(super) fn size(&self) -> u64 {
        2 * PAGE_SIZE as u64
    }

    /// Writes to it as a client would.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        user_write(self.0 + offset, bytes)
    }
}

// `include/uapi/asm-generic/mman-common.h`, which the kernel crate does not have.
const PROT_READ_WRITE: usize = 0x1 | 0x2;
const MAP_SHARED: usize = 0x1;
const MAP_PRIVATE: usize = 0x2;
const MAP_ANONYMOUS: usize = 0x20;

/// Copies `bytes` to the address `at` of this process. `EFAULT`.
pub(super) fn user_write(at: usize, bytes: &[u8]) -> Result {
    UserSlice::new(UserPtr::from_addr(at), bytes.len())
        .writer()
        .write_slice(bytes)
}

/// Copies from the address `at` of this process to all of `bytes`. `EFAULT`.
pub(super) fn user_read(at: usize, bytes: &mut [u8]) -> Result {
    UserSlice::new(UserPtr::from_addr(at), bytes.len())
        .reader()
        .read_slice(bytes)
}

/// Maps `file`, or memory if null, into the test's address space. KUnit unmaps it with the thread.
fn map(file: *mut bindings::file, len: usize, flags: usize, offset: usize) -> Result<usize> {
    // SAFETY: KUnit runs a test in a kernel thread of its own; this gives it an address space,
    // once. KUnit means the thread's end to undo that, but that leaves the reference that
    // `kthread_use_mm()` takes for `kthread_unuse_mm()`; it is dropped here. The thread's own keeps
    // the address space until the end.
    unsafe {
        let task = kernel::current!().as_ptr();
        if (*task).mm.is_null() {
            to_result(bindings::kunit_attach_mm())?;
            bindings::mmdrop((*task).mm);
        }
    }
    // SAFETY: `file` is null or valid; the thread has an address space.
    let at = unsafe { bindings::vm_mmap(file, 0, len, PROT_READ_WRITE, flags, offset) };
    from_err_ptr(at as *mut c_void).map(|at| at as usize)
}

/// Has the fault at `at` handled once, whatever comes of it.
pub(super) fn fault(at: usize) -> Result {
    // SAFETY: The thread has an address space, since it has mapped `at`. Its mmap_lock is taken as
    // the function demands, which may give it up and take it again.
    to_result(unsafe {
        let mm = (*kernel::current!().as_ptr()).mm;
        bindings::down_read(&raw mut (*mm).__bindgen_anon_1.mmap_lock);
        let mut unlocked = false;
        let ret = bindings::fixup_user_fault(
            mm,
            at,
            bindings::fault_flag_FAULT_FLAG_WRITE,
            &mut unlocked,
        );
        bindings::up_read(&raw mut (*mm).__bindgen_anon_1.mmap_lock);
        ret
    })
}

/// Whether there is a page at `at` now.
pub(super) fn is_mapped(at: usize) -> bool {
    let mut byte = 0u8;
    let to = core::ptr::from_mut(&mut byte).cast();
    // SAFETY: `to` is one byte; any address may be asked about.
    unsafe { bindings::copy_from_user_nofault(to, at as *const c_void, 1) == 0 }
}

/// A driver of a device without hardware.
pub(super) struct Mock;

/// What the device keeps count of.
#[pin_data]
pub(super) struct MockData {
    /// Objects that exist.
    pub(super) objects: Atomic<u32>,
    /// Faults that the driver was asked about.
    pub(super) faults: Atomic<u32>,
    /// What its objects have mapped.
    pub(super) resources: DevresSet,
}

/// What a client of the mock device owns: nothing.
pub(super) struct MockFile;

/// What is in an object.
#[pin_data]
pub(super) struct MockObject {
    /// Where its memory is, with nothing of the driver's beside it.
    backing: Backing<(), (), ()>,
    /// Counts it among its `objects` until it is released.
    dev: ARef<drm::Device<Mock>>,
    /// Times that it was to be attached.
    pub(super) attached: Atomic<u32>,
    /// Pins held.
    pub(super) pins: Atomic<u32>,
    /// Tables that importers of [`DmaBuf::export_watched`] have mapped and not unmapped.
    pub(super) mapped: Atomic<u32>,
    /// If not 0, the CPU may not map it.
    pub(super) hidden: Atomic<u32>,
    /// Faults that have the memory moved before it can be mapped.
    pub(super) moves: Atomic<u32>,
}

impl drm::file::DriverFile for MockFile {
    type Driver = Mock;

    fn open(_dev: &drm::Device<Mock>) -> Result<Pin<KBox<Self>>> {
        Ok(KBox::new(Self, GFP_KERNEL)?.into())
    }
}

impl DriverObject for MockObject {
    type Driver = Mock;
    /// The reservation that it shares.
    type Args = Option<Arc<Reservation>>;

    fn new(dev: &drm::Device<Mock>, _size: usize, shared: Self::Args) -> impl PinInit<Self, Error> {
        dev.objects.add(1, Relaxed);
        try_pin_init!(MockObject {
            backing: Backing::new(0, shared),
            dev: dev.into(),
            attached: Atomic::new(0),
            pins: Atomic::new(0),
            mapped: Atomic::new(0),
            hidden: Atomic::new(0),
            moves: Atomic::new(0),
        })
    }
}

impl MockObject {
    fn populate(obj: &Object<Self>, reserved: &mut Reserved<'_>) -> Result {
        if let Placement::Nowhere = gem::placement(obj, reserved)? {
            let pages = Pages::get(obj, Caching::WriteBack)?;
            gem::replace(obj, reserved, Placement::System(pages, ()))?;
        }
        Ok(())
    }
}

impl GemExt for MockObject {
    type Device = ();
    type System = ();
    type Resting = ();

    fn backing(&self) -> &Backing<(), (), ()> {
        &self.backing
    }

    fn check_mmap(obj: &Object<Self>) -> Result {
        if obj.hidden.load(Relaxed) != 0 {
            return Err(EPERM);
        }
        Ok(())
    }

    fn fault(
        obj: &Object<Self>,
        dev: &drm::Device<Mock, Registered>,
        reserved: &mut Reserved<'_>,
        fault: &VmFault<'_>,
    ) -> Result<(), FaultError> {
        dev.faults.add(1, Relaxed);
        if obj.moves.load(Relaxed) > 0 {
            obj.moves.fetch_sub(1, Relaxed);
            return Err(FaultError::Again);
        }
        Self::populate(obj, reserved)?;
        gem::map_system(obj, reserved, fault, 0)
    }

    fn is_settled(_obj: &Object<Self>, _reserved: &Reserved<'_>) -> bool {
        false
    }

    fn rouse(_obj: &Object<Self>, _reserved: &mut Reserved<'_>) -> Result {
        Ok(())
    }

    fn may_share(_obj: &Object<Self>, _reserved: &Reserved<'_>) -> Result {
        Ok(())
    }

    fn attach(
        obj: &Object<Self>,
        _dev: &drm::Device<Mock, Registered>,
        _left: &mut Jiffies,
    ) -> Result {
        obj.attached.add(1, Relaxed);
        Ok(())
    }

    fn detached(_obj: &Object<Self>, _dev: &drm::Device<Mock, Registered>) {}

    fn pin(obj: &Object<Self>, reserved: &mut Reserved<'_>) -> Result {
        Self::populate(obj, reserved)?;
        obj.pins.add(1, Relaxed);
        Ok(())
    }

    fn unpin(obj: &Object<Self>, _reserved: &mut Reserved<'_>) {
        obj.pins.fetch_sub(1, Relaxed);
    }

    fn release(obj: &Object<Self>, _placement: Placement<(), (), ()>) {
        obj.dev.objects.fetch_sub(1, Relaxed);
    }
}

static VTABLE: Vtable = Vtable::new();

impl DriverExt for Mock {
    type Gem = MockObject;

    fn vtable() -> &'static Vtable {
        &VTABLE
    }

    const DEBUGFS: &'static [DebugfsFile<Self>] = &[DebugfsFile {
        name: c"mock",
        show: |dev, out| mock_show(dev, out),
    }];

    fn show_fdinfo(
        _dev: &drm::Device<Self, Registered>,
        _file: &drm::File<MockFile>,
        printer: &mut Printer<'_>,
    ) {
        let _ = writeln!(printer, "drm-engine-mock:\t{} ns", 7);
        printer.memory_stats(c"mock", &MemoryStats::default());
    }

    fn resources(dev: &drm::Device<Self>) -> &DevresSet {
        &dev.resources
    }

    fn import(dev: &drm::Device<Self>, size: usize) -> Result<ARef<Object<MockObject>>> {
        gem::create(dev, size, None)
    }
}

fn mock_show(dev: &drm::Device<Mock, Registered>, out: &mut SeqPrinter<'_>) -> Result {
    writeln!(out, "objects {}", dev.objects.load(Relaxed)).map_err(|_| EINVAL)
}

#[vtable]
impl drm::Driver for Mock {
    type Data = MockData;
    type RegistrationData<'a> = u32;
    type File = MockFile;
    type Object = Object<MockObject>;
    type ParentDevice<Ctx: kernel::device::DeviceContext> = faux::Device<Ctx>;

    const INFO: drm::DriverInfo = drm::DriverInfo {
        major: 1,
        minor: 0,
        patchlevel: 0,
        name: c"skua-mock",
        desc: c"KUnit mock of skua",
    };
    const FEAT_RENDER: bool = true;

    crate::declare_skua_ioctls! {
        (SKUA_QUERY, drm_skua_query, drm::ioctl::RENDER_ALLOW, mock_query),
    }
}

fn mock_query(
    _dev: &drm::Device<Mock, Registered>,
    reg_data: &u32,
    data: &mut uapi::drm_skua_query,
    _file: &drm::File<MockFile>,
) -> Result<u32> {
    data.size = *reg_data;
    Ok(0)
}

/// An unregistered mock device and its parent, which must be the only one of its name.
pub(super) fn device(name: &CStr) -> Result<(faux::Registration, drm::UnregisteredDevice<Mock>)> {
    let parent = faux::Registration::new(name, None)?;
    let bound: &Device<Bound> = parent.as_ref().as_ref();
    let bus = core::ptr::from_ref(bound)
        .cast_mut()
        .cast::<bindings::device>();
    // SAFETY: `Device` is a transparent wrapper of the C structure, and nobody else uses it yet.
    // This is `dma_coerce_mask_and_coherent()`, which drivers of the faux bus call for the lack of
    // a bus that knows.
    unsafe {
        (*bus).dma_mask = &raw mut (*bus).coherent_dma_mask;
        to_result(bindings::dma_set_mask(bus, u64::MAX))?;
    }
    let drm = drm::UnregisteredDevice::new(
        parent.as_ref(),
        try_pin_init!(MockData {
            objects: Atomic::new(0),
            faults: Atomic::new(0),
            resources: DevresSet::new(bound)?,
        }),
    )?;
    drm_driver::extend(&drm)?;
    Ok((parent, drm))
}

/// The render node of a registered device, opened by the test as a client would.
pub(super) struct Client(core::ptr::NonNull<bindings::file>);

impl Client {
    /// Opens `/dev/dri/renderD<minor>`.
    pub(super) fn open(dev: &drm::Device<Mock>) -> Result<Self> {
        // SAFETY: The device is registered, so it has a render node.
        let index = unsafe { (*(*super::device::as_raw(dev)).render).index };
        let path = kernel::str::CString::try_from_fmt(fmt!("/dev/dri/renderD{}", index))?;
        // SAFETY: The path is a valid string.
        let file = from_err_ptr(unsafe {
            shim::skua_kunit_open(path.as_char_ptr(), bindings::O_RDWR as c_int)
        })?;
        core::ptr::NonNull::new(file).map(Self).ok_or(ENOENT)
    }

    /// What the DRM core keeps for the file.
    pub(super) fn drm(&self) -> &drm::File<MockFile> {
        // SAFETY: The file was opened through the DRM core, of a device of the mock driver.
        unsafe { drm::File::from_raw((*self.0.as_ptr()).private_data.cast()) }
    }

    /// Maps `len` bytes at the offset `at` of the node, shared or private.
    pub(super) fn mmap(&self, at: u64, len: usize, shared: bool) -> Result<usize> {
        let flags = if shared { MAP_SHARED } else { MAP_PRIVATE };
        map(self.0.as_ptr(), len, flags, usize::try_from(at)?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: The file is ours; a second close does not happen.
        unsafe { bindings::filp_close(self.0.as_ptr(), core::ptr::null_mut()) };
    }
}

/// What a test that maps must do last: unmaps, so that mappings do not outlive the test's device.
pub(super) fn munmap(at: usize, len: usize) -> Result {
    // SAFETY: The range was mapped by this test.
    to_result(unsafe { bindings::vm_munmap(at, len) })
}

/// Has files that were closed be released: a kernel thread leaves that to a work item.
pub(super) fn release_files() {
    // A client's file closes those of its dma-bufs, and this one's release the next file; what the
    // work item closes, while it runs, it leaves to its next run, for which nobody waits here.
    for _ in 0..4 {
        // SAFETY: Process context; no requirements otherwise.
        unsafe { bindings::flush_delayed_fput() };
    }
}

/// Registers a mock device with userspace; `value` is what `SKUA_QUERY` returns.
pub(super) fn register(
    parent: &Device<Bound>,
    drm: drm::UnregisteredDevice<Mock>,
    value: u32,
) -> Result<drm::Registration<'_, Mock>> {
    // SAFETY: The suites of this folder, for which alone this is, forget no registration.
    unsafe { drm::Registration::new(parent, drm, Ok::<_, Error>(value), 0) }
}

/// A reference to the dma-buf of a mock object.
pub(super) struct DmaBuf(core::ptr::NonNull<bindings::dma_buf>);

impl DmaBuf {
    /// Exports `obj` as `PRIME_HANDLE_TO_FD` does.
    pub(super) fn export(obj: &Object<MockObject>) -> Result<Self> {
        let raw = IntoGEMObject::as_raw(obj);
        // SAFETY: `funcs` was set by `gem::create()` to a static.
        let export = unsafe { (*(*raw).funcs).export }.ok_or(ENODEV)?;
        // As `drm_gem_prime_handle_to_dmabuf()` does.
        //
        // SAFETY: The object is valid; the buffer takes its own reference.
        let buf = from_err_ptr(unsafe { export(raw, bindings::O_RDWR as c_int) })?;
        core::ptr::NonNull::new(buf).map(Self).ok_or(ENOMEM)
    }

    /// Exports `obj`, and has it count what importers map.
    pub(super) fn export_watched(obj: &Object<MockObject>) -> Result<Self> {
        let buf = Self::export(obj)?;
        // SAFETY: Nobody else has seen the buffer yet; the operations are static.
        unsafe { (*buf.0.as_ptr()).ops = &raw const WATCHED };
        Ok(buf)
    }

    /// Imports it to `dev` as `PRIME_FD_TO_HANDLE` does.
    pub(super) fn import(&self, dev: &drm::Device<Mock>) -> Result<ARef<Object<MockObject>>> {
        // SAFETY: Device and buffer are valid.
        let raw = from_err_ptr(unsafe {
            let dev = super::device::as_raw(dev);
            let import = (*(*dev).driver).gem_prime_import.ok_or(ENODEV)?;
            import(dev, self.0.as_ptr())
        })?;
        // SAFETY: The object is one of the device's, and the reference is given to us.
        Ok(unsafe {
            let obj: &Object<MockObject> = IntoGEMObject::from_raw(raw);
            ARef::from_raw(obj.into())
        })
    }

    /// Maps its first `len` bytes.
    pub(super) fn mmap(&self, len: usize) -> Result<usize> {
        // SAFETY: The buffer is valid and has a file.
        map(unsafe { (*self.0.as_ptr()).file }, len, MAP_SHARED, 0)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: The reference is ours.
        unsafe { bindings::dma_buf_put(self.0.as_ptr()) };
    }
}

/// The operations of a buffer of GEM's, which count.
static WATCHED: bindings::dma_buf_ops = bindings::dma_buf_ops {
    attach: Some(bindings::drm_gem_map_attach),
    detach: Some(bindings::drm_gem_map_detach),
    map_dma_buf: Some(watched_map),
    unmap_dma_buf: Some(watched_unmap),
    release: Some(bindings::drm_gem_dmabuf_release),
    ..pin_init::zeroed()
};

/// What counts the mappings of `attach`.
///
/// # Safety
///
/// `attach` must be a valid attachment to a buffer of a mock object.
unsafe fn mapped<'a>(attach: *mut bindings::dma_buf_attachment) -> &'a Atomic<u32> {
    // SAFETY: By the safety requirements; the buffer keeps its object.
    let obj: &Object<MockObject> =
        unsafe { IntoGEMObject::from_raw((*(*attach).dmabuf).priv_.cast()) };
    &obj.mapped
}

/// `dma_buf_ops.map_dma_buf`.
///
/// # Safety
///
/// To be called by the C code, for a buffer of a mock object.
unsafe extern "C" fn watched_map(
    attach: *mut bindings::dma_buf_attachment,
    dir: bindings::dma_data_direction,
) -> *mut bindings::sg_table {
    // SAFETY: Called as GEM's own is, which this stands in for.
    let table = unsafe { bindings::drm_gem_map_dma_buf(attach, dir) };
    if from_err_ptr(table).is_ok() {
        // SAFETY: By the safety requirements.
        unsafe { mapped(attach) }.add(1, Relaxed);
    }
    table
}

/// `dma_buf_ops.unmap_dma_buf`.
///
/// # Safety
///
/// As of [`watched_map`].
unsafe extern "C" fn watched_unmap(
    attach: *mut bindings::dma_buf_attachment,
    table: *mut bindings::sg_table,
    dir: bindings::dma_data_direction,
) {
    // SAFETY: By the safety requirements.
    unsafe { mapped(attach) }.fetch_sub(1, Relaxed);
    // SAFETY: Called as GEM's own is.
    unsafe { bindings::drm_gem_unmap_dma_buf(attach, table, dir) };
}
