// SPDX-License-Identifier: GPL-2.0

//! What [`kernel::drm::gem::Object`] lacks: mmap, PRIME, and something to do before it is freed.
//!
//! # Model
//!
//! A driver's object implements [`GemExt`] besides [`DriverObject`], contains a [`Backing`] and is
//! made by [`create`], in place of [`Object::new`]. Its C functions are then those of [`Object`]
//! plus mmap with page faults, pinning and the scatter-gather table for export, and a `free` that
//! calls [`GemExt::release`] while the object is still whole.
//!
//! Where an object's memory is, is its [`Placement`]. It is protected by the object's reservation
//! lock and changes only by [`replace`], which removes the CPU's mappings first. That is the whole
//! protocol between moving memory and page faults, see [`fault`](super::fault).
//!
//! An imported object has [`Placement::Nowhere`]; its memory is the exporter's, and mmap is the
//! exporter's too. Where the device finds it tells [`Backing::import`].
//!
//! # Locks
//!
//! Under the reservation lock: `fault`, `pin`, `unpin`, the table for export. Under none:
//! `attach`, `detached`, `release`.
//!
//! # Examples
//!
//! ```ignore
//! // New memory for an object, which the device clears before anybody sees it:
//! let bo = gem::create::<BoData>(dev, size, args)?;
//! let mut reserved = resv::lock(&*bo)?;
//! gem::replace(&bo, &mut reserved, Placement::Device(range.clone()))?;
//! let mut room = reserved.reserve(1)?;
//! paging.clear(&range, |fence| room.add(fence, Usage::Kernel))?;
//! ```
//!
//! Upstream's counterpart: `gem/shmem.rs`, for system memory only. C header:
//! `include/drm/drm_gem.h`.

use super::{
    attachment::{
        Attachment,
        ImportMap, //
    },
    device,
    devres::{
        DevresItem,
        DevresSet, //
    },
    drm_driver::DriverExt,
    fault::{
        self,
        DummyPage,
        FaultError,
        VmFault, //
    },
    fence::Signalling,
    pages::{
        segments,
        Pages, //
    },
    resv::{
        self,
        Reservation,
        Reserved,
        Usage, //
    },
    shim, //
};
use core::{
    cell::UnsafeCell,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    drm::{
        self,
        gem::{
            BaseObject,
            DriverAllocImpl,
            DriverFile,
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
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Jiffies, //
    },
    types::Opaque, //
};

/// Where an object's memory is. `D` is the driver's handle of device memory, `S` what it keeps with
/// system pages, `R` what of that is left when these were given back.
pub(crate) enum Placement<D, S, R> {
    /// Nowhere yet, or with the exporter.
    Nowhere,
    /// In its own system pages.
    System(Arc<Pages>, S),
    /// In its inode of shmem alone, swapped out or not.
    Resting(R),
    /// In device memory.
    Device(D),
}

/// Bytes of a word.
const WORD: usize = size_of::<usize>();

/// Whether the content of an object may be thrown away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Its content may not be thrown away.
    Not,
    /// It may, after that of objects with lower numbers, which are the driver's.
    At(u8),
    /// The content was thrown away; reading finds zeroes.
    Gone,
}

/// The placement of an object of `T`.
pub(crate) type PlacementOf<T> =
    Placement<<T as GemExt>::Device, <T as GemExt>::System, <T as GemExt>::Resting>;

/// An object's placement, protected by its reservation lock.
///
/// # Invariants
///
/// - `place` is 0, or the value is part of a GEM object and begins so many words behind its
///   beginning.
/// - `placement` is accessed only with that object's reservation lock held, mutably only through a
///   `&mut Reserved` of it; or with no other reference to the object left.
pub(crate) struct Backing<D, S, R> {
    /// Where the memory is now.
    placement: UnsafeCell<Placement<D, S, R>>,
    /// The inode of shmem that has its pages, a reference; null before it is needed. Set once.
    inode: UnsafeCell<*mut bindings::inode>,
    /// What the CPU sees when the memory is gone with the device; allocated at the first fault.
    dummy: DummyPage,
    /// Where the device finds an imported object's memory; set once, at the import.
    import: SetOnce<DevresItem<ImportMap>>,
    /// Ties this value to one object, so that no other object's lock opens it.
    place: Atomic<i8>,
    /// Below [`ATTACHING`], how often it is pinned: importers have its pages' addresses; changed
    /// with the reservation locked. From there on, modulo 256, how many are about to pin it.
    pins: Atomic<u32>,
    /// Whether a dma-buf of it was ever asked for, or it had a second handle.
    exported: Atomic<bool>,
    /// Its [`Offer`]: 0, the number plus 1, or -1. Changed with the reservation locked.
    offer: Atomic<i8>,
    /// In which of the driver's lists it is, when it is in one ([`super::lru`]).
    rank: Atomic<i8>,
    /// The reservation that the object shares with others instead of having its own.
    shared: Option<Arc<Reservation>>,
}

// SAFETY: `placement` is protected by the reservation lock, by the type invariant; an inode may be
// let go of by any thread.
unsafe impl<D: Send, S: Send, R: Send> Send for Backing<D, S, R> {}
// SAFETY: As above; the reservation lock is a mutex, so `D`, `S` and `R` are handed from thread to
// thread, and shared references to them exist only under the lock. `inode` is set by atomic
// operations.
unsafe impl<D: Send + Sync, S: Send + Sync, R: Send + Sync> Sync for Backing<D, S, R> {}

impl<D, S, R> Backing<D, S, R> {
    /// Memory nowhere, of no object yet; [`create`] ties it to the object it is in.
    ///
    /// Its rank is `rank`. An object with a `shared` reservation is locked, and its fences are
    /// filed, together with all others that have it. It is never exported.
    pub(crate) const fn new(rank: u8, shared: Option<Arc<Reservation>>) -> Self {
        Self {
            placement: UnsafeCell::new(Placement::Nowhere),
            place: Atomic::new(0),
            inode: UnsafeCell::new(ptr::null_mut()),
            dummy: DummyPage::new(),
            import: SetOnce::new(),
            pins: Atomic::new(0),
            exported: Atomic::new(false),
            offer: Atomic::new(0),
            rank: Atomic::new(rank.cast_signed()),
            shared,
        }
    }

    /// Of which of the driver's lists it is, when it is in one ([`super::lru`]).
    pub(crate) fn rank(&self) -> u8 {
        self.rank.load(Relaxed).cast_unsigned()
    }

    /// Has it be of another list the next time it is [used](super::lru::use_now).
    pub(crate) fn set_rank(&self, rank: u8) {
        self.rank.store(rank.cast_signed(), Relaxed);
    }

    /// Whether the content may be thrown away. For good as long as the reservation is locked, but
    /// that it may be gone.
    pub(crate) fn offer(&self) -> Offer {
        match self.offer.load(Acquire) {
            0 => Offer::Not,
            at => u8::try_from(at).map_or(Offer::Gone, |at| Offer::At(at.saturating_sub(1))),
        }
    }

    /// Whether the content may be thrown away from now on. With the reservation locked.
    pub(crate) fn set_offer(&self, offer: Offer) {
        let value = match offer {
            Offer::Not => 0,
            Offer::At(at) => at.saturating_add(1).cast_signed(),
            Offer::Gone => -1,
        };
        self.offer.store(value, Release);
    }

    /// Whether the object's reservation is `other`.
    pub(crate) fn shares(&self, other: &Arc<Reservation>) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| Arc::ptr_eq(shared, other))
    }

    /// Whether the object shares its reservation.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Where the device finds an imported object's memory, until it is unbound; [`None`] for an
    /// object of our own.
    pub(crate) fn import(&self) -> Option<&DevresItem<ImportMap>> {
        self.import.as_ref()
    }

    fn is_of(&self, obj: *mut bindings::drm_gem_object) -> bool {
        let words = usize::from(self.place.load(Acquire).cast_unsigned());
        words > 0 && obj.addr().checked_add(words * WORD) == Some(ptr::from_ref(self).addr())
    }
}

/// What a driver's object adds to [`DriverObject`].
pub(crate) trait GemExt: DriverObject + Sized
where
    Self::Driver: drm::Driver<Object = Object<Self>>,
{
    /// The driver's handle of a piece of device memory; dropped, it is free again.
    type Device: Send + Sync;

    /// What the driver keeps with an object's system pages: where the device finds them.
    type System: Send + Sync;

    /// What is left of that when the pages were given back.
    type Resting: Send + Sync;

    /// The [`Backing`] that is a field of `self`.
    fn backing(&self) -> &Backing<Self::Device, Self::System, Self::Resting>;

    /// Whether the CPU may map `obj`, through the node or through its dma-buf; the error is the
    /// client's.
    fn check_mmap(obj: &Object<Self>) -> Result;

    /// Whether `obj`'s memory is where its placement says, with its content. If it shares its
    /// reservation, kernel fences that are pending are then those of others, which the CPU need not
    /// wait for.
    fn is_settled(obj: &Object<Self>, reserved: &Reserved<'_>) -> bool;

    /// The CPU accesses a page of `obj`: map it, by [`map_system`] or [`VmFault::map_bar`]. No
    /// kernel fence is pending, or none that is its own ([`Self::is_settled`]).
    ///
    /// If the memory is where that is not possible, have it moved: file the move's fence under
    /// [`Usage::Kernel`](super::resv::Usage) and return [`FaultError::Again`]. The fence is waited
    /// for, and this is called again. May allocate; may not wait for the GPU.
    fn fault(
        obj: &Object<Self>,
        dev: &drm::Device<Self::Driver, Registered>,
        reserved: &mut Reserved<'_>,
        fault: &VmFault<'_>,
    ) -> Result<(), FaultError>;

    /// If `obj` is [`Placement::Resting`], get it its pages back: they are needed. The device may
    /// be gone. Called before `fault` and `pin`. `ENOMEM`.
    fn rouse(obj: &Object<Self>, reserved: &mut Reserved<'_>) -> Result;

    /// Whether others than its client may have `obj`, once for all: a dma-buf of it is asked for.
    fn may_share(obj: &Object<Self>, reserved: &Reserved<'_>) -> Result;

    /// Another device is about to [`Self::pin`] `obj`: have it in system pages, and wait until it
    /// is there, as long as there is time `left`, from which that takes.
    fn attach(
        obj: &Object<Self>,
        dev: &drm::Device<Self::Driver, Registered>,
        left: &mut Jiffies,
    ) -> Result;

    /// No device uses `obj` any more that was [attached](Self::attach). Called without a lock, with
    /// whatever its importer holds; is not to wait.
    fn detached(obj: &Object<Self>, dev: &drm::Device<Self::Driver, Registered>);

    /// Another device is going to use `obj` until `unpin`: keep it in system pages. Calls nest.
    /// `EBUSY` if it has moved since [`Self::attach`], which is then called again.
    fn pin(obj: &Object<Self>, reserved: &mut Reserved<'_>) -> Result;

    /// The end of one [`Self::pin`].
    fn unpin(obj: &Object<Self>, reserved: &mut Reserved<'_>);

    /// The last reference to `obj` is gone: no handle, mapping or dma-buf is left, but the object's
    /// reservation and pages are still there. May sleep.
    ///
    /// `placement` is where its memory was; dropping it frees it.
    fn release(obj: &Object<Self>, placement: PlacementOf<Self>);
}

/// What [`Backing::pins`] counts somebody as who is about to pin; there are fewer pins.
const ATTACHING: u32 = 1 << 24;
/// How long an attachment waits for an object that is in use, or that others have move away again:
/// at the end of their attachments, for one.
const PATIENCE_MS: u32 = 10_000;
/// How much of that it waits at once for what moves just now.
const MOMENT_MS: u32 = 1000;

/// The C functions of an object of `T`. Those of [`Object`], and ours.
struct Funcs<T>(core::marker::PhantomData<T>);

impl<T: GemExt> Funcs<T>
where
    T::Driver: DriverExt<Gem = T>,
{
    const VM_OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(bindings::drm_gem_vm_open),
        close: Some(bindings::drm_gem_vm_close),
        fault: Some(fault_callback::<T>),
        pfn_mkwrite: Some(mkwrite_callback),
        ..pin_init::zeroed()
    };

    const FUNCS: bindings::drm_gem_object_funcs = bindings::drm_gem_object_funcs {
        free: Some(free_callback::<T>),
        open: Some(open_callback::<T>),
        close: Some(close_callback::<T>),
        pin: Some(pin_callback::<T>),
        unpin: Some(unpin_callback::<T>),
        export: Some(export_callback::<T>),
        get_sg_table: Some(get_sg_table_callback::<T>),
        mmap: Some(mmap_callback::<T>),
        vm_ops: &Self::VM_OPS,
        ..pin_init::zeroed()
    };

    const FUNCS_REF: &'static bindings::drm_gem_object_funcs = &Self::FUNCS;
}

/// An [`Object`] as the kernel crate lays it out: `repr(C)`, of these fields, in this order, and
/// one of no size.
#[repr(C)]
#[pin_data]
struct Layout<T> {
    /// The C object, by whose address the C code knows the whole.
    obj: Opaque<bindings::drm_gem_object>,
    /// The driver's part, in which its [`Backing`] is.
    #[pin]
    data: T,
}

/// Makes an object of `size` bytes, whose memory is nowhere yet. It takes none for system pages
/// before it first [gets](Pages::get) some, which most of what is elsewhere never does.
///
/// It holds its device, and has an offset in the node from now on, by which [`unmap`] finds its
/// mappings, those of its dma-buf too. It is charged to the memory cgroup of who asks for it, which
/// those of [`Object::new`] are not; and they have a file of shmem.
///
/// `EINVAL` unless `size` is a positive multiple of the page size; `ENOMEM`.
pub(crate) fn create<T: GemExt>(
    dev: &drm::Device<T::Driver>,
    size: usize,
    args: T::Args,
) -> Result<ARef<Object<T>>>
where
    T::Driver: DriverExt<Gem = T>,
{
    const {
        assert!(size_of::<Layout<T>>() == size_of::<Object<T>>());
        assert!(align_of::<Layout<T>>() == align_of::<Object<T>>());
    }
    // A size that is no multiple of the page size is a `BUG_ON()` in the C code; one beyond
    // `loff_t` shmem refuses.
    if size == 0 || size % PAGE_SIZE != 0 || isize::try_from(size).is_err() {
        return Err(EINVAL);
    }
    let obj: Pin<KBox<Layout<T>>> = KBox::pin_init(
        try_pin_init!(Layout {
            obj: Opaque::new(bindings::drm_gem_object::default()),
            data <- T::new(dev, size, args),
        }? Error),
        GFP_KERNEL_ACCOUNT,
    )?;
    let raw = obj.obj.get();
    let backing = obj.data.backing();
    let start = raw.addr();
    let end = start.checked_add(size_of::<Layout<T>>()).ok_or(EINVAL)?;
    let at = ptr::from_ref(backing).addr();
    if at <= start || at >= end || (at - start) % WORD != 0 {
        return Err(EINVAL);
    }
    let place = u8::try_from((at - start) / WORD)?.cast_signed();
    if backing.place.cmpxchg(0, place, kernel::sync::atomic::Full) != Ok(0) {
        return Err(EINVAL);
    }

    // SAFETY: The device is valid, and the object new, zero and ours; the size is one of whole
    // pages. The functions are static, and expect an object that is embedded in an `Object<T>`,
    // which this one is from now on. `free_callback()` gives the reference to the device up.
    unsafe {
        bindings::drm_gem_private_object_init(device::as_raw(dev), raw, size);
        (*raw).funcs = Funcs::<T>::FUNCS_REF;
        bindings::drm_dev_get((*raw).dev);
    }
    if let Some(shared) = &backing.shared {
        // SAFETY: Nobody else has seen the object yet, and its own reservation is not locked. The
        // other one is kept by the object's data, which `free_callback()` drops after
        // `drm_gem_object_release()`, the last user.
        unsafe { (*raw).resv = shared.as_raw() };
    }
    // SAFETY: It is not moved: `ARef` gives out shared references alone.
    let obj = KBox::into_raw(unsafe { Pin::into_inner_unchecked(obj) });
    // SAFETY: It is what `Object::new()` would have made: both are `repr(C)` with the same fields,
    // as compared above, and its own invariant is that the first is a valid `drm_gem_object`, of a
    // device that is as this one. The first reference is the one that
    // `drm_gem_private_object_init()` has counted.
    let obj: ARef<Object<T>> = unsafe { ARef::from_raw(NonNull::new_unchecked(obj.cast())) };
    obj.create_mmap_offset()?;
    Ok(obj)
}

/// The inode of shmem of `obj`, which is not imported; made now if it has none. `ENOMEM`.
pub(super) fn inode<T: GemExt>(obj: &Object<T>) -> Result<NonNull<bindings::inode>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let place = T::backing(obj).inode.get();
    // SAFETY: What is there is null or the inode that the object holds; all set it by this.
    let inode = from_err_ptr(unsafe { shim::skua_inode_at(place, u64::try_from(obj.size())?) });
    // What shmem says where there is no memory for an inode.
    NonNull::new(inode.map_err(|error| if error == ENOSPC { ENOMEM } else { error })?).ok_or(EINVAL)
}

/// A reference to an object that may be sent to, and shared with, other threads.
///
/// [`Object`] does not say that it is `Send` and `Sync`, as a `drm_gem_object` is.
pub(crate) struct ObjectRef<T: GemExt>(ARef<Object<T>>)
where
    T::Driver: drm::Driver<Object = Object<T>>;

// SAFETY: GEM objects are reference counted atomically and freed from any thread; all that can be
// done with a shared one is synchronised by the C code or by the reservation lock. `T` is dropped
// with the last reference, on any thread, and shared: it must be both.
unsafe impl<T: GemExt + Send + Sync> Send for ObjectRef<T> where
    T::Driver: drm::Driver<Object = Object<T>>
{
}
// SAFETY: As above.
unsafe impl<T: GemExt + Send + Sync> Sync for ObjectRef<T> where
    T::Driver: drm::Driver<Object = Object<T>>
{
}

impl<T: GemExt> From<ARef<Object<T>>> for ObjectRef<T>
where
    T::Driver: DriverExt<Gem = T>,
{
    fn from(obj: ARef<Object<T>>) -> Self {
        Self(obj)
    }
}

impl<T: GemExt> Clone for ObjectRef<T>
where
    T::Driver: DriverExt<Gem = T>,
{
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: GemExt> core::ops::Deref for ObjectRef<T>
where
    T::Driver: DriverExt<Gem = T>,
{
    type Target = Object<T>;

    fn deref(&self) -> &Object<T> {
        &self.0
    }
}

/// Where the memory of `obj` is. `EINVAL` unless `reserved` is its lock.
pub(crate) fn placement<'a, T: GemExt>(
    obj: &'a Object<T>,
    reserved: &'a Reserved<'_>,
) -> Result<&'a PlacementOf<T>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let backing = T::backing(obj);
    if !reserved.guards(obj) || !backing.is_of(IntoGEMObject::as_raw(obj)) {
        return Err(EINVAL);
    }
    // SAFETY: The lock is held as long as the result exists, and changes need `&mut Reserved` of
    // the same lock, of which there is no second.
    Ok(unsafe { &*backing.placement.get() })
}

/// The driver's handle of the device memory of `obj`, if it is there, to be changed without moving
/// it. `EINVAL` unless `reserved` is its lock.
pub(crate) fn device_mut<'a, T: GemExt>(
    obj: &'a Object<T>,
    reserved: &'a mut Reserved<'_>,
) -> Result<Option<&'a mut T::Device>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let backing = T::backing(obj);
    if !reserved.guards(obj) || !backing.is_of(IntoGEMObject::as_raw(obj)) {
        return Err(EINVAL);
    }
    // SAFETY: The lock is held exclusively (`&mut Reserved`) as long as the result exists, so there
    // is no other reference.
    Ok(match unsafe { &mut *backing.placement.get() } {
        Placement::Device(device) => Some(device),
        _ => None,
    })
}

/// Says where the memory of `obj` is from now on, and returns where it was.
///
/// The CPU's mappings are removed first: the next access faults, and waits for the lock. `EINVAL`
/// unless `reserved` is the object's lock; `EBUSY` if it is pinned.
pub(crate) fn replace<T: GemExt>(
    obj: &Object<T>,
    reserved: &mut Reserved<'_>,
    new: PlacementOf<T>,
) -> Result<PlacementOf<T>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let backing = T::backing(obj);
    if !reserved.guards(obj) || !backing.is_of(IntoGEMObject::as_raw(obj)) {
        return Err(EINVAL);
    }
    if is_pinned(obj) {
        return Err(EBUSY);
    }
    unmap(obj);
    // SAFETY: The lock is held exclusively (`&mut Reserved`), so there is no other reference.
    Ok(unsafe { backing.placement.get().replace(new) })
}

/// Removes all CPU mappings of `obj`; the next access faults. Call it with the reservation lock
/// held if faults are to wait for it.
pub(crate) fn unmap<O: IntoGEMObject>(obj: &O) {
    // SAFETY: The object and its device are valid.
    unsafe { shim::skua_gem_unmap(obj.as_raw()) };
}

/// Removes the CPU mappings of `bytes` bytes at `offset` of the node of `dev`, where
/// [`create_mmap_offset`](BaseObject::create_mmap_offset) says that an object begins. The object
/// may be gone: then nothing is removed, or what another one has there, which faults again.
///
/// May be called in a fault: neither `mmap_lock` nor a reservation lock is taken. `EINVAL`.
pub(crate) fn unmap_at<D: drm::Driver>(dev: &drm::Device<D>, offset: u64, bytes: u64) -> Result {
    let (offset, bytes) = (offset.try_into()?, bytes.try_into()?);
    // SAFETY: The device is valid.
    unsafe { shim::skua_gem_unmap_at(device::as_raw(dev), offset, bytes) };
    Ok(())
}

/// Does what [`unmap`] does to every object that a client of `dev` has a handle of; to how many,
/// counted once for each handle.
pub(crate) fn unmap_all<D: drm::Driver>(dev: &drm::Device<D>) -> usize {
    // SAFETY: The device is valid.
    unsafe { shim::skua_gem_unmap_all(device::as_raw(dev)) }
}

/// Whether importers have the addresses of the pages of `obj`. For good as long as its reservation
/// is locked.
pub(crate) fn is_pinned<T: GemExt>(obj: &Object<T>) -> bool
where
    T::Driver: DriverExt<Gem = T>,
{
    T::backing(obj).pins.load(Relaxed) % ATTACHING != 0
}

/// Whether somebody attaches `obj`: it is to leave device memory, and not to come back meanwhile.
pub(crate) fn is_attached_now<T: GemExt>(obj: &Object<T>) -> bool
where
    T::Driver: DriverExt<Gem = T>,
{
    T::backing(obj).pins.load(Relaxed) >= ATTACHING
}

/// Whether the memory of `obj` is another driver's.
pub(crate) fn is_imported<O: IntoGEMObject>(obj: &O) -> bool {
    // SAFETY: The object is valid; the field is set before the object is published.
    unsafe { !(*obj.as_raw()).import_attach.is_null() }
}

/// Whether others than the client that made it may have `obj`: a dma-buf of it was asked for, it
/// has had a second handle, or it is another driver's. Once true, for good.
pub(crate) fn is_foreign<T: GemExt>(obj: &Object<T>) -> bool
where
    T::Driver: DriverExt<Gem = T>,
{
    is_imported(obj) || T::backing(obj).exported.load(Relaxed)
}

/// Frees the system pages of `obj`, which has had some, those that are swapped out, too; those that
/// a [`Pages`] still holds are freed with that. What the next [`Pages::get`] finds is zero.
pub(crate) fn discard<T: GemExt>(obj: &Object<T>)
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: What is there is null or an inode of shmem that the object holds.
    unsafe { shim::skua_inode_discard(T::backing(obj).inode.get()) };
}

/// The inode of shmem of `obj` if that is [`Placement::Resting`] and may be used, and has had
/// pages: what was thrown away in VRAM rests, and may never have had any. With its reservation
/// locked.
fn rests<T: GemExt>(obj: &Object<T>, reserved: &Reserved<'_>) -> Option<NonNull<bindings::inode>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let backing = T::backing(obj);
    let is_resting = matches!(placement(obj, reserved), Ok(Placement::Resting(_)));
    if backing.offer() != Offer::Not || !is_resting {
        return None;
    }
    // SAFETY: What is there is null or an inode of shmem, and stays as long as the object.
    NonNull::new(unsafe { shim::skua_inode_get(backing.inode.get()) })
}

/// Locks the reservation of `obj`. If it rests its pages were brought into memory before, so that
/// nobody waits for that who wants the lock, which others may share; they may have left again.
/// `EINTR` if a signal arrives.
pub(crate) fn lock_brought<T: GemExt>(obj: &Object<T>) -> Result<Reserved<'_>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let reserved = resv::lock(obj)?;
    let Some(inode) = rests(obj, &reserved) else {
        return Ok(reserved);
    };
    drop(reserved);
    let size = u64::try_from(obj.size())?;
    // SAFETY: The object holds its inode.
    unsafe { shim::skua_inode_bring(inode.as_ptr(), size) };
    resv::lock(obj)
}

/// Maps up to `ahead + 1` pages from the one that `fault` is about, from the object's system pages.
///
/// [`FaultError::Sigbus`] if it has none or the access is beyond its end.
pub(crate) fn map_system<T: GemExt>(
    obj: &Object<T>,
    reserved: &Reserved<'_>,
    vmf: &VmFault<'_>,
    ahead: usize,
) -> Result<(), FaultError>
where
    T::Driver: DriverExt<Gem = T>,
{
    if !vmf.is_of(IntoGEMObject::as_raw(obj)) {
        return Err(FaultError::Sigbus);
    }
    let Placement::System(pages, _) = placement(obj, reserved)? else {
        return Err(FaultError::Sigbus);
    };
    let count = fault::window(vmf, obj.size(), ahead.saturating_add(1));
    if count == 0 {
        return Err(FaultError::Sigbus);
    }
    for i in 0..count {
        // SAFETY: The pages leave the placement only by `replace()`, which unmaps the object.
        let ret = unsafe { vmf.map_pages(i, pages, vmf.page() + i) };
        match ret {
            Ok(()) => (),
            // What is mapped ahead is a guess.
            Err(_) if i > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The object that embeds `raw`.
///
/// # Safety
///
/// `raw` must be the GEM object within an `Object<T>` that lives for `'a`.
unsafe fn object<'a, T: DriverObject>(raw: *mut bindings::drm_gem_object) -> &'a Object<T> {
    // SAFETY: By the safety requirements.
    unsafe { <Object<T> as IntoGEMObject>::from_raw(raw) }
}

/// `vm_operations_struct.fault`.
///
/// # Safety
///
/// To be called by the memory management on a mapping of an object of `T` that [`create`] has made.
unsafe extern "C" fn fault_callback<T: GemExt>(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: `drm_gem_mmap_obj()` and `drm_gem_prime_mmap()` set `vm_private_data` to the object
    // whose `vm_ops` these are, of which the vma holds a reference.
    let raw = unsafe { (*(*vmf).__bindgen_anon_1.vma).vm_private_data }.cast();

    // SAFETY: Fault and object are valid.
    let ret = unsafe { shim::skua_fault_reserve(vmf, raw) };
    if ret != 0 {
        return ret;
    }
    // SAFETY: The object is an `Object<T>`: only these have this function.
    let obj = unsafe { object::<T>(raw) };
    // SAFETY: The lock was taken above and is this value's to release. The object outlives it.
    let mut owner = unsafe { Reserved::owned((*raw).resv) };
    if let Some(inode) = rests(obj, &owner) {
        // It is unlocked there.
        core::mem::forget(owner);
        // SAFETY: Fault and object are valid, the lock is held, and the inode is the object's.
        let mut ret = unsafe { shim::skua_fault_bring(vmf, raw, inode.as_ptr()) };
        if ret == 0 {
            // SAFETY: Fault and object are valid: who may not retry still has the vma.
            ret = unsafe { shim::skua_fault_reserve(vmf, raw) };
        }
        if ret != 0 {
            return ret;
        }
        // SAFETY: As above.
        owner = unsafe { Reserved::owned((*raw).resv) };
    }
    loop {
        // What moves beside it may wait for work, and that for this access.
        if T::backing(obj).shared.is_none() || !T::is_settled(obj, &owner) {
            // SAFETY: Fault and object are valid, and the lock is held.
            let ret = unsafe { shim::skua_fault_wait_kernel(vmf, raw) };
            if ret != 0 {
                // It is not held any more, and the object may be gone.
                core::mem::forget(owner);
                return ret;
            }
        }
        // SAFETY: A pfn mapping of `obj`, see `skua_gem_mmap()`, and the locks are held. The device
        // is checked before the driver sees the fault.
        let fault = unsafe { VmFault::new(vmf, raw) };
        // Not the owner, which could be dropped.
        //
        // SAFETY: The lock is held as long as `owner`.
        let mut reserved = unsafe { Reserved::borrowed((*raw).resv) };
        let roused = T::rouse(obj, &mut reserved);
        let result = match device::enter(obj.dev()) {
            _ if roused.is_err() => roused.map_err(FaultError::from),
            Some(dev) => T::fault(obj, &dev, &mut reserved, &fault),
            None if device::is_unplugged(obj.dev()) => fault_unplugged(obj, &reserved, &fault),
            // Its registration is under way: the access is done again until that is over.
            None => Err(FaultError::NoPage),
        };
        return match result {
            Err(FaultError::Again) => continue,
            Ok(()) | Err(FaultError::NoPage) => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
            Err(FaultError::Sigbus) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
            Err(FaultError::Oom) => bindings::vm_fault_reason_VM_FAULT_OOM,
        };
    }
}

/// `vm_operations_struct.pfn_mkwrite`: a page is written that was mapped read-only. The access is
/// done again, as the fault on a page that is not mapped.
///
/// # Safety
///
/// To be called by the memory management on a mapping of an object that [`create`] has made.
unsafe extern "C" fn mkwrite_callback(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: As in `fault_callback()`; the object lives as long as the vma, which is locked. All
    // mappings of it may be removed at any time, without a lock.
    unsafe { shim::skua_gem_unmap((*(*vmf).__bindgen_anon_1.vma).vm_private_data.cast()) };
    bindings::vm_fault_reason_VM_FAULT_NOPAGE
}

/// `drm_gem_object_funcs.mmap`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with a mapping that is being made of it.
unsafe extern "C" fn mmap_callback<T: GemExt>(
    raw: *mut bindings::drm_gem_object,
    vma: *mut bindings::vm_area_struct,
) -> c_int
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: Called on objects that have this function, alive.
    let obj = unsafe { object::<T>(raw) };
    if let Err(error) = T::check_mmap(obj) {
        return error.to_errno();
    }
    // SAFETY: As the C code calls this.
    unsafe { shim::skua_gem_mmap(raw, vma) }
}

/// The device is gone: what is in system pages stays, the rest is a dummy page.
fn fault_unplugged<T: GemExt>(
    obj: &Object<T>,
    reserved: &Reserved<'_>,
    vmf: &VmFault<'_>,
) -> Result<(), FaultError>
where
    T::Driver: DriverExt<Gem = T>,
{
    if let Placement::System(..) = placement(obj, reserved)? {
        return map_system(obj, reserved, vmf, 0);
    }
    map_dummy(obj, reserved, vmf)
}

/// Answers a fault with the object's dummy page: for memory that nobody can reach any more.
///
/// [`FaultError::Sigbus`] if the fault is another object's, or beyond this one's end.
pub(crate) fn map_dummy<T: GemExt>(
    obj: &Object<T>,
    reserved: &Reserved<'_>,
    vmf: &VmFault<'_>,
) -> Result<(), FaultError>
where
    T::Driver: DriverExt<Gem = T>,
{
    if !vmf.is_of(IntoGEMObject::as_raw(obj)) || !reserved.guards(obj) {
        return Err(FaultError::Sigbus);
    }
    if vmf.page() >= obj.size() / PAGE_SIZE {
        return Err(FaultError::Sigbus);
    }
    // SAFETY: The dummy page is part of the object that is mapped, whose lock is held.
    unsafe { vmf.map_dummy(&T::backing(obj).dummy) }
}

/// `drm_gem_object_funcs.pin`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with its reservation lock held.
unsafe extern "C" fn pin_callback<T: GemExt>(raw: *mut bindings::drm_gem_object) -> c_int
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: Called on objects that have this function, alive, with the reservation lock held by
    // this thread (`drm_gem_map_attach()`).
    let (obj, mut reserved) = unsafe { (object::<T>(raw), Reserved::borrowed((*raw).resv)) };
    let pins = &T::backing(obj).pins;
    match T::rouse(obj, &mut reserved).and_then(|()| T::pin(obj, &mut reserved)) {
        Ok(()) if pins.load(Relaxed).wrapping_add(1) % ATTACHING == 0 => ENOMEM.to_errno(),
        Ok(()) => {
            pins.add(1, Relaxed);
            0
        }
        Err(error) => error.to_errno(),
    }
}

/// `drm_gem_object_funcs.unpin`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with its reservation lock held.
unsafe extern "C" fn unpin_callback<T: GemExt>(raw: *mut bindings::drm_gem_object)
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As in `pin_callback()`, from `drm_gem_map_detach()`.
    let (obj, mut reserved) = unsafe { (object::<T>(raw), Reserved::borrowed((*raw).resv)) };
    T::backing(obj).pins.fetch_sub(1, Relaxed);
    T::unpin(obj, &mut reserved);
}

/// Others have `obj` from now on, if it may be so.
fn share<T: GemExt>(obj: &DriverAllocImpl<T>) -> Result
where
    T::Driver: DriverExt<Gem = T>,
{
    // Who does what is not done to what others have asks under the lock, too.
    let reserved = resv::lock(obj)?;
    T::may_share(obj, &reserved)?;
    T::backing(obj).exported.store(true, Relaxed);
    Ok(())
}

/// `drm_gem_object_funcs.export`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive.
unsafe extern "C" fn export_callback<T: GemExt>(
    raw: *mut bindings::drm_gem_object,
    flags: c_int,
) -> *mut bindings::dma_buf
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As in `pin_callback()`, from `drm_gem_prime_handle_to_dmabuf()`.
    let obj = unsafe { object::<T>(raw) };
    if T::backing(obj).is_shared() {
        // Who waits for the dma-buf's fences would wait for others'.
        return EPERM.to_ptr();
    }
    let Some(ops) = T::Driver::vtable().dma_buf() else {
        return ENODEV.to_ptr();
    };
    if let Err(error) = share::<T>(obj) {
        return error.to_ptr();
    }
    // SAFETY: The object and its device are valid; the table, which is static, is for a buffer
    // whose `priv` is an object of `T`. What `drm_gem_prime_export()` does.
    unsafe {
        let dev = (*raw).dev;
        let mut info = bindings::dma_buf_export_info {
            exp_name: (*(*dev).driver).name,
            owner: (*(*(*dev).driver).fops).owner,
            ops,
            size: (*raw).size,
            flags,
            resv: (*raw).resv,
            priv_: raw.cast(),
        };
        bindings::drm_gem_dmabuf_export(dev, &mut info)
    }
}

/// `dma_buf_ops.attach`.
///
/// # Safety
///
/// To be called by the C code of dma-buf on a buffer that [`export_callback`] has made for an
/// object of `T`.
unsafe extern "C" fn attach_callback<T: GemExt>(
    buf: *mut bindings::dma_buf,
    attach: *mut bindings::dma_buf_attachment,
) -> c_int
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: The buffer holds the object.
    let obj = unsafe { object::<T>((*buf).priv_.cast()) };
    T::backing(obj).pins.add(ATTACHING, Relaxed);
    let attached = || {
        let mut left = msecs_to_jiffies(PATIENCE_MS);
        loop {
            // Of a device that is gone, what is in system pages can still be had.
            if let Some(dev) = device::enter(obj.dev()) {
                T::attach(obj, &dev, &mut left)?;
            }
            // SAFETY: As this is called.
            let result = to_result(unsafe { bindings::drm_gem_map_attach(buf, attach) });
            if result == Err(EBUSY) && device::is_unplugged(obj.dev()) {
                // Nobody has it move any more.
                return Err(ENODEV);
            }
            if result != Err(EBUSY) || left == 0 {
                return result;
            }
            // It moves, or somebody is about to have it move.
            let moment = msecs_to_jiffies(MOMENT_MS).min(left);
            match resv::wait(obj, Usage::Kernel, moment) {
                Err(error) if error != ETIME => return Err(error),
                _ if current!().signal_pending() => return Err(ERESTARTSYS),
                _ => fsleep(Delta::from_millis(1)),
            }
            left = left.saturating_sub(moment);
        }
    };
    let result = attached();
    T::backing(obj).pins.fetch_sub(ATTACHING, Relaxed);
    if result.is_err() {
        let_go(obj);
    }
    result.map_or_else(|error| error.to_errno(), |()| 0)
}

/// An importer does not have `obj` attached any more, or never had.
fn let_go<T: GemExt>(obj: &Object<T>)
where
    T::Driver: DriverExt<Gem = T>,
{
    if is_pinned(obj) || is_attached_now(obj) {
        return;
    }
    if let Some(dev) = device::enter(obj.dev()) {
        T::detached(obj, &dev);
    }
}

/// `dma_buf_ops.detach`.
///
/// # Safety
///
/// To be called by the C code of dma-buf on a buffer that [`export_callback`] has made for an
/// object of `T`, for what [`attach_callback`] has attached.
unsafe extern "C" fn detach_callback<T: GemExt>(
    buf: *mut bindings::dma_buf,
    attach: *mut bindings::dma_buf_attachment,
) where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As this is called.
    unsafe { bindings::drm_gem_map_detach(buf, attach) };
    // SAFETY: The buffer holds the object, and its importer the buffer until this is over.
    let_go(unsafe { object::<T>((*buf).priv_.cast()) });
}

/// `drm_driver.gem_prime_import` of a driver whose objects are ours: a buffer that an object of the
/// same device was exported as is that object.
///
/// # Safety
///
/// To be called by the C code of DRM.
pub(super) unsafe extern "C" fn import_callback<T: GemExt>(
    dev: *mut bindings::drm_device,
    buf: *mut bindings::dma_buf,
) -> *mut bindings::drm_gem_object
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: The buffer is valid; that it has this driver's table says that it was made for an
    // object of `T`.
    unsafe {
        let is_ours = T::Driver::vtable()
            .dma_buf()
            .is_some_and(|ops| ptr::eq(ops, (*buf).ops));
        let raw: *mut bindings::drm_gem_object = (*buf).priv_.cast();
        if is_ours && ptr::eq((*raw).dev, dev) {
            bindings::drm_gem_object_get(raw);
            return raw;
        }
    }
    // SAFETY: The core calls this for a valid device of this driver.
    let importer = unsafe { drm::Device::<T::Driver>::from_raw(dev) };
    // Nothing is mapped for it when it is unbound, nor outlives that.
    let Some(_bound) = device::enter(importer) else {
        return ENODEV.to_ptr();
    };
    // SAFETY: As this is called.
    unsafe { bindings::drm_gem_prime_import(dev, buf) }
}

/// What buffers of objects of `T` do: as those of `drm_gem_prime_export()`, but for what comes
/// before the pinning. One static of the driver has it, by which they are known.
pub(super) const fn dma_buf_ops<T: GemExt>() -> bindings::dma_buf_ops
where
    T::Driver: DriverExt<Gem = T>,
{
    bindings::dma_buf_ops {
        attach: Some(attach_callback::<T>),
        detach: Some(detach_callback::<T>),
        pin: None,
        unpin: None,
        map_dma_buf: Some(bindings::drm_gem_map_dma_buf),
        unmap_dma_buf: Some(bindings::drm_gem_unmap_dma_buf),
        release: Some(bindings::drm_gem_dmabuf_release),
        begin_cpu_access: None,
        end_cpu_access: None,
        mmap: Some(bindings::drm_gem_dmabuf_mmap),
        vmap: Some(bindings::drm_gem_dmabuf_vmap),
        vunmap: Some(bindings::drm_gem_dmabuf_vunmap),
    }
}

/// `drm_gem_object_funcs.get_sg_table`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with its reservation lock held.
unsafe extern "C" fn get_sg_table_callback<T: GemExt>(
    raw: *mut bindings::drm_gem_object,
) -> *mut bindings::sg_table
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As in `pin_callback()`, from `drm_gem_map_dma_buf()`.
    let (obj, reserved) = unsafe { (object::<T>(raw), Reserved::borrowed((*raw).resv)) };
    let table = match placement(obj, &reserved) {
        // SAFETY: The object is valid.
        Ok(Placement::System(pages, _)) => pages.sg_table(unsafe { (*raw).dev }),
        // Pinned objects are in system pages; this one is not pinned.
        Ok(_) => Err(EBUSY),
        Err(error) => Err(error),
    };
    table.unwrap_or_else(|error| error.to_ptr())
}

/// `drm_gem_object_funcs.open`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with a file of the same driver.
unsafe extern "C" fn open_callback<T: GemExt>(
    raw: *mut bindings::drm_gem_object,
    file: *mut bindings::drm_file,
) -> c_int
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: Called with a valid file of this driver and an object that has this function.
    let (obj, file) = unsafe { (object::<T>(raw), DriverFile::<T>::from_raw(file)) };
    let obj: &DriverAllocImpl<T> = obj;
    // What has a global name has that as long as anybody has a handle: others may have let go of
    // theirs since this one was counted.
    //
    // SAFETY: The object is valid; this handle is counted already, and nobody's is counted twice.
    let is_others = unsafe {
        (&raw const (*raw).handle_count).read_volatile() > 1
            || (&raw const (*raw).name).read_volatile() != 0
    };
    let exported = &T::backing(obj).exported;
    // By its global name, which needs no dma-buf.
    let shared = match is_others && !exported.load(Relaxed) {
        true => share::<T>(obj),
        false => Ok(()),
    };
    let opened = shared.and_then(|()| T::open(obj, file));
    opened.map_or_else(Error::to_errno, |()| 0)
}

/// `drm_gem_object_funcs.close`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// with a file of the same driver.
unsafe extern "C" fn close_callback<T: GemExt>(
    raw: *mut bindings::drm_gem_object,
    file: *mut bindings::drm_file,
) where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As in `open_callback()`.
    let (obj, file) = unsafe { (object::<T>(raw), DriverFile::<T>::from_raw(file)) };
    let obj: &DriverAllocImpl<T> = obj;
    T::close(obj, file);
}

/// `drm_gem_object_funcs.free`.
///
/// # Safety
///
/// To be called by the C code of DRM on an object of `T` that [`create`] has made, which is alive,
/// and to which no reference is left.
unsafe extern "C" fn free_callback<T: GemExt>(raw: *mut bindings::drm_gem_object)
where
    T::Driver: DriverExt<Gem = T>,
{
    crate::warn_on_once!(Signalling::is_inside());
    // First, so that who finds it in a list finds it whole.
    // SAFETY: The object is valid.
    unsafe { bindings::drm_gem_lru_remove(raw) };
    {
        // SAFETY: The object is whole, and this is the only reference left.
        let obj = unsafe { object::<T>(raw) };
        let backing = T::backing(obj);
        let placement = if backing.is_of(raw) {
            // SAFETY: There is no other reference to the object, so none to its placement.
            unsafe { backing.placement.get().replace(Placement::Nowhere) }
        } else {
            Placement::Nowhere
        };
        T::release(obj, placement);
        // SAFETY: It is null or a reference of the object's, which is given up here, once.
        unsafe { bindings::iput(*backing.inode.get()) };
    }
    // SAFETY: The object is valid.
    let dev = unsafe { (*raw).dev };

    // SAFETY: The object is valid; an attachment of it was put there by `drm_gem_prime_import()`.
    let attach = unsafe { (*raw).import_attach };
    let attachment = (!attach.is_null()).then(|| {
        // SAFETY: `import()` stored its reference there, which is given up here, once. This stands
        // in for `drm_prime_gem_destroy()`.
        unsafe { Arc::from_raw((*attach).importer_priv.cast::<Attachment>()) }
    });

    // What follows is `drm::gem::Object::free_callback()`, which we stand in for.
    //
    // SAFETY: The last reference is gone and the object is initialised.
    unsafe { bindings::drm_gem_object_release(raw) };
    // SAFETY: `create()` made the object as a pinned `KBox` of the layout of `Object<T>`, whose
    // first field is the GEM object (`repr(C)`), and gave it up to its reference count.
    drop(unsafe { KBox::from_raw(raw.cast::<Object<T>>()) });
    // After what the object had mapped of it.
    drop(attachment);
    // SAFETY: This is the reference that `create()` took.
    unsafe { bindings::drm_dev_put(dev) };
}

/// The `gem_prime_import_sg_table` of a driver whose objects are ours.
///
/// # Safety
///
/// To be used as that callback, for devices of `T::Driver`, whose parent is `parent`, the device of
/// `set`.
pub(super) unsafe fn import<T: GemExt>(
    set: &DevresSet,
    parent: &Device<Bound>,
    attach: *mut bindings::dma_buf_attachment,
    table: *mut bindings::sg_table,
    make: impl FnOnce(usize) -> Result<ARef<Object<T>>>,
) -> Result<*mut bindings::drm_gem_object>
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: The attachment and its buffer are valid.
    let size = unsafe { (*(*attach).dmabuf).size };
    let mut total: u64 = 0;
    // SAFETY: The table is mapped as long as the attachment holds it, beyond this call.
    for segment in unsafe { segments(table) } {
        total = total.checked_add(segment.len).ok_or(EOVERFLOW)?;
    }
    if size == 0 || size % PAGE_SIZE != 0 || total < u64::try_from(size)? {
        return Err(EINVAL);
    }

    let obj = make(size)?;
    let raw = IntoGEMObject::as_raw(&*obj);
    // SAFETY: The object is valid.
    let handles = unsafe { (*raw).handle_count };
    // The object must be new and ours, so that its `free` undoes what follows.
    if !T::backing(&obj).is_of(raw) || is_imported(&*obj) || handles != 0 || obj.size() != size {
        return Err(EINVAL);
    }
    let (Some(held), Some(table)) = (NonNull::new(attach), NonNull::new(table)) else {
        return Err(EINVAL);
    };
    // SAFETY: The attachment is valid, and stays so until it is dropped: by the core if this fails,
    // else when it is owned.
    let attachment = unsafe { Attachment::new(held)? };
    // SAFETY: The table is the one of the attachment, which is of `parent`; that stays bound in
    // this call.
    let map = unsafe { ImportMap::new(set, parent, table, &attachment)? };
    if !T::backing(&obj).import.populate(map) {
        return Err(EINVAL);
    }
    // From here on nothing fails, and the core gives up the attachment, its table and the buffer.
    // SAFETY: As just said.
    unsafe { attachment.own() };
    // A static attachment leaves this field to the importer; `free_callback()` takes the reference
    // back.
    // SAFETY: The attachment is valid and, so far, this call's only.
    unsafe { (*attach).importer_priv = Arc::into_raw(attachment).cast_mut().cast() };
    // The core sets `import_attach` and takes over the reference.
    let _: NonNull<Object<T>> = ARef::into_raw(obj);
    Ok(raw)
}

#[kunit_tests(skua_gem)]
mod tests {
    use super::{
        super::{
            mock::{
                self,
                DmaBuf, //
            },
            pages::{
                Caching,
                DmaMap, //
            },
        },
        *, //
    };
    use kernel::sync::atomic::Relaxed;

    fn imported_bytes(obj: &Object<mock::MockObject>, dev: &Device<Bound>) -> Result<u64> {
        let map = mock::MockObject::backing(obj).import().ok_or(ENODEV)?;
        let segments = map.access(dev)?.segments();
        Ok(segments.map(|segment| segment.len).sum())
    }

    fn size(pages: usize) -> Result<u64> {
        Ok(u64::try_from(pages * PAGE_SIZE)?)
    }

    #[test]
    fn objects_may_share_a_reservation() -> Result {
        let (_a, a) = mock::device(c"skua-mock-shared")?;
        let shared = Reservation::new()?;
        let make = |shared| create::<mock::MockObject>(&a, PAGE_SIZE, shared);
        let (one, two) = (make(Some(shared.clone()))?, make(Some(shared.clone()))?);
        let other = make(None)?;
        assert!(resv::same(&*one, &*two));
        assert!(!resv::same(&*one, &*other));
        assert!(mock::MockObject::backing(&one).shares(&shared));
        assert!(!mock::MockObject::backing(&other).shares(&shared));
        {
            let lock = shared.lock()?;
            // It is the lock of what is in both, and of nothing else.
            assert!(placement(&*one, &lock).is_ok() && placement(&*two, &lock).is_ok());
            assert!(placement(&*other, &lock).is_err());
            assert!(resv::trylock(&*one).is_none());
            assert!(resv::trylock(&*other).is_some());
        }
        assert!(DmaBuf::export(&one).is_err());
        assert!(DmaBuf::export(&other).is_ok());
        // The objects keep it.
        drop(shared);
        drop(resv::lock(&*two)?);
        Ok(())
    }

    #[test]
    fn export_pins_and_import_is_undone() -> Result {
        let (_a, a) = mock::device(c"skua-mock-a")?;
        let (parent, b) = mock::device(c"skua-mock-b")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*b).into();
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, b, 0)?;
        let b = held;
        let obj = create::<mock::MockObject>(&a, 3 * PAGE_SIZE, None)?;

        let buf = DmaBuf::export(&obj)?;
        // Into the device it comes from: the same object.
        let same = buf.import(&a)?;
        assert!(ptr::eq(&*same, &*obj));
        assert_eq!(a.objects.load(Relaxed), 1);
        assert_eq!(obj.pins.load(Relaxed), 0);
        drop(same);

        // Into another: an object of its own, with addresses, and no memory of its own.
        let other = buf.import(&b)?;
        assert!(is_imported(&*other));
        assert!(!is_imported(&*obj));
        assert_eq!(other.size(), 3 * PAGE_SIZE);
        assert_eq!(imported_bytes(&other, bound)?, size(3)?);
        assert_eq!(obj.pins.load(Relaxed), 1);
        assert!(resv::same(&*obj, &*other));
        assert!(Pages::get(&*other, Caching::WriteBack).err() == Some(EINVAL));

        // The importer is what keeps buffer and exporter.
        drop(buf);
        assert_eq!(a.objects.load(Relaxed), 1);
        drop(other);
        mock::release_files();
        assert_eq!(b.objects.load(Relaxed), 0);
        assert_eq!(obj.pins.load(Relaxed), 0);
        drop(obj);
        assert_eq!(a.objects.load(Relaxed), 0);
        drop(registration);
        Ok(())
    }

    #[test]
    fn an_import_is_unmapped_when_its_device_is_unbound() -> Result {
        let (_a, a) = mock::device(c"skua-mock-a")?;
        let (parent, b) = mock::device(c"skua-mock-b")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*b).into();
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, b, 0)?;
        let obj = create::<mock::MockObject>(&a, 3 * PAGE_SIZE, None)?;
        let buf = DmaBuf::export_watched(&obj)?;
        let other = buf.import(&held)?;
        drop(buf);
        assert_eq!(imported_bytes(&other, bound)?, size(3)?);
        assert_eq!(obj.mapped.load(Relaxed), 1);

        drop(registration);
        drop(parent);
        assert_eq!(obj.mapped.load(Relaxed), 0);
        let map = mock::MockObject::backing(&other).import().ok_or(EINVAL)?;
        assert!(map.is_released());
        // The buffer is the object's still.
        assert_eq!(a.objects.load(Relaxed), 1);
        assert_eq!(obj.pins.load(Relaxed), 1);
        drop(other);
        mock::release_files();
        assert_eq!(held.objects.load(Relaxed), 0);
        assert_eq!(obj.pins.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn an_unbound_device_imports_nothing() -> Result {
        let (_a, a) = mock::device(c"skua-mock-a")?;
        let (_b, b) = mock::device(c"skua-mock-b")?;
        let obj = create::<mock::MockObject>(&a, PAGE_SIZE, None)?;
        let buf = DmaBuf::export(&obj)?;
        assert!(buf.import(&b).err() == Some(ENODEV));
        assert_eq!(obj.pins.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_dma_buf_and_an_imported_object_can_be_mapped() -> Result {
        let (parent, a) = mock::device(c"skua-mock-a")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*a).into();
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, a, 0)?;
        let (parent_b, b) = mock::device(c"skua-mock-b")?;
        let held_b: ARef<drm::Device<mock::Mock>> = (&*b).into();
        let bound_b: &kernel::device::Device<kernel::device::Bound> = parent_b.as_ref().as_ref();
        let registration_b = mock::register(bound_b, b, 0)?;

        let obj = create::<mock::MockObject>(&held, PAGE_SIZE, None)?;
        let buf = DmaBuf::export(&obj)?;
        let at = buf.mmap(PAGE_SIZE)?;
        mock::user_write(at, b"here")?;

        let client = mock::Client::open(&held_b)?;
        let imported = buf.import(&held_b)?;
        imported.create_handle(client.drm())?;
        let there = client.mmap(imported.create_mmap_offset()?, PAGE_SIZE, true)?;
        let mut word = [0u8; 4];
        mock::user_read(there, &mut word)?;
        assert!(&word == b"here");
        // Both mappings are the exporter's: it unmaps both.
        let faults = held.faults.load(Relaxed);
        unmap(&*obj);
        mock::user_read(at, &mut word)?;
        mock::user_read(there, &mut word)?;
        assert_eq!(held.faults.load(Relaxed), faults + 2);
        assert_eq!(held_b.faults.load(Relaxed), 0);

        mock::munmap(at, PAGE_SIZE)?;
        mock::munmap(there, PAGE_SIZE)?;
        drop((client, imported, buf, obj));
        mock::release_files();
        assert_eq!(held.objects.load(Relaxed), 0);
        assert_eq!(held_b.objects.load(Relaxed), 0);
        drop((registration, registration_b));
        Ok(())
    }

    #[test]
    fn hidden_objects_are_mapped_in_no_way() -> Result {
        let (parent, a) = mock::device(c"skua-mock")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*a).into();
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, a, 0)?;
        let client = mock::Client::open(&held)?;
        let obj = create::<mock::MockObject>(&held, PAGE_SIZE, None)?;
        obj.create_handle(client.drm())?;
        let offset = obj.create_mmap_offset()?;
        let buf = DmaBuf::export(&obj)?;
        obj.hidden.store(1, Relaxed);
        assert!(client.mmap(offset, PAGE_SIZE, true).err() == Some(EPERM));
        assert!(buf.mmap(PAGE_SIZE).err() == Some(EPERM));
        obj.hidden.store(0, Relaxed);
        let at = client.mmap(offset, PAGE_SIZE, true)?;
        mock::user_write(at, b"seen")?;
        mock::munmap(at, PAGE_SIZE)?;
        drop((client, buf, obj));
        mock::release_files();
        assert_eq!(held.objects.load(Relaxed), 0);
        drop(registration);
        Ok(())
    }

    #[test]
    fn a_fault_looks_again_after_a_move() -> Result {
        let (parent, a) = mock::device(c"skua-mock")?;
        let held: ARef<drm::Device<mock::Mock>> = (&*a).into();
        let obj = create::<mock::MockObject>(&held, PAGE_SIZE, None)?;
        let buf = DmaBuf::export(&obj)?;
        let at = buf.mmap(PAGE_SIZE)?;
        // Nothing is mapped before the device is registered, and nothing refused.
        assert_eq!(mock::fault(at), Ok(()));
        assert!(!mock::is_mapped(at));
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let registration = mock::register(bound, a, 0)?;
        obj.moves.store(3, Relaxed);
        assert_eq!(mock::fault(at), Ok(()));
        assert!(mock::is_mapped(at));
        assert_eq!(held.faults.load(Relaxed), 4);
        mock::munmap(at, PAGE_SIZE)?;
        drop((buf, obj));
        mock::release_files();
        drop(registration);
        Ok(())
    }

    #[test]
    fn pages_keep_their_content_and_a_device_finds_them() -> Result {
        let (parent, dev) = mock::device(c"skua-mock")?;
        let bound: &kernel::device::Device<kernel::device::Bound> = parent.as_ref().as_ref();
        let size = 5 * PAGE_SIZE;
        let obj = create::<mock::MockObject>(&dev, size, None)?;
        let pages = Pages::get(&*obj, Caching::WriteBack)?;
        let mut bytes = [1u8; 16];
        pages.read(PAGE_SIZE - 8, &mut bytes)?;
        assert!(bytes == [0; 16]);
        pages.write(PAGE_SIZE - 8, &[7; 16])?;

        // Unpinned and got again, also when the object is no more.
        drop(pages);
        let pages = Pages::get(&*obj, Caching::WriteBack)?;
        let map = DmaMap::new(&dev.resources, bound, &pages)?;
        let total: u64 = map
            .access(bound)?
            .segments()
            .map(|segment| segment.len)
            .sum();
        assert_eq!(total, size as u64);
        drop(obj);
        assert_eq!(dev.objects.load(Relaxed), 0);
        pages.read(PAGE_SIZE - 8, &mut bytes)?;
        assert!(bytes == [7; 16]);
        Ok(())
    }
}
