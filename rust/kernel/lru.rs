// SPDX-License-Identifier: GPL-2.0

//! `drm_gem_lru`: objects of a device in the order in which they were last used.
//!
//! A list belongs to its device, in whose data it is. It keeps no references: an object that is
//! freed leaves it by itself. A device may have several, for objects of several *ranks*.
//!
//! Lock: the device's `gem_lru_mutex`, innermost of all that sleep; nothing is allocated under it.
//!
//! # Examples
//!
//! ```ignore
//! lru::use_now(&bo);
//! // The one of the lowest rank that was not used for longest; of that rank it is asked for last
//! // from now on.
//! let candidate = lru::next::<BoData>(&dev, 0);
//! ```
//!
//! C header: `include/drm/drm_gem.h`.

use super::{
    device,
    drm_driver::DriverExt,
    gem::{
        GemExt,
        ObjectRef, //
    },
    shim, //
};
use core::marker::PhantomData;
use kernel::{
    bindings,
    drm::{
        self,
        gem::{
            IntoGEMObject,
            Object, //
        }, //
    },
    prelude::*,
    sync::aref::ARef,
    types::Opaque, //
};

/// A list of objects of `T`, in the data of their device.
///
/// # Invariants
///
/// All objects in the list are `Object<T>` that [`gem::create`](super::gem::create) has made, of
/// the device in whose data it is.
#[pin_data]
pub(crate) struct Lru<T> {
    #[pin]
    list: Opaque<bindings::drm_gem_lru>,
    _objects: PhantomData<fn(T)>,
}

// SAFETY: All access is under the device's `gem_lru_mutex`.
unsafe impl<T> Send for Lru<T> {}
// SAFETY: As above.
unsafe impl<T> Sync for Lru<T> {}

/// Objects that have lists, one for each rank.
pub(crate) trait Listed: GemExt
where
    Self::Driver: DriverExt<Gem = Self>,
{
    /// The list of the objects of `dev` with `rank`, which the driver has given to one of them:
    /// always the same one.
    fn lru(dev: &drm::Device<Self::Driver>, rank: u8) -> &Lru<Self>;
}

impl<T> Lru<T> {
    /// The C structure.
    pub(super) fn as_raw(&self) -> *mut bindings::drm_gem_lru {
        self.list.get()
    }
}

impl<T: Listed> Lru<T>
where
    T::Driver: DriverExt<Gem = T>,
{
    /// An empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        // INVARIANT: There are no objects in it.
        pin_init!(Self {
            // SAFETY: The function initialises the slot, which is pinned.
            list <- Opaque::ffi_init(|list| unsafe { bindings::drm_gem_lru_init(list) }),
            _objects: PhantomData,
        })
    }
}

/// Says that `obj` was used just now: it is in the list of its [rank](super::gem::Backing::rank),
/// behind all others.
pub(crate) fn use_now<T: Listed>(obj: &Object<T>)
where
    T::Driver: DriverExt<Gem = T>,
{
    put(obj, T::backing(obj).rank());
}

/// Has `obj` be in the list of `rank`, behind all others, and in no other.
pub(crate) fn put<T: Listed>(obj: &Object<T>, rank: u8)
where
    T::Driver: DriverExt<Gem = T>,
{
    let lru = T::lru(obj.dev(), rank);
    // SAFETY: Object and device are valid. The list is part of the device's data, which lives
    // until the last object of it is freed, and an object that is freed leaves the list
    // (`drm_gem_object_release()`).
    //
    // INVARIANT: An object of this type and device.
    unsafe { bindings::drm_gem_lru_move_tail(lru.list.get(), IntoGEMObject::as_raw(obj)) };
}

/// Takes `obj` out of the list that it is in, if any.
pub(crate) fn forget<T: Listed>(obj: &Object<T>)
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: Object and device are valid.
    unsafe { bindings::drm_gem_lru_remove(IntoGEMObject::as_raw(obj)) };
}

/// The object of `dev` with `rank` that was not used for longest, which counts as used now.
pub(crate) fn next<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8) -> Option<ObjectRef<T>>
where
    T::Driver: DriverExt<Gem = T>,
{
    let lru = T::lru(dev, rank);
    // SAFETY: Device and list are valid.
    let raw = unsafe { shim::skua_gem_lru_next(device::as_raw(dev), lru.list.get()) };
    let raw = core::ptr::NonNull::new(raw)?;
    // SAFETY: By the type invariant the object is an `Object<T>`; the reference is ours.
    let obj = unsafe {
        let obj = <Object<T> as IntoGEMObject>::from_raw(raw.as_ptr());
        ARef::from_raw(core::ptr::NonNull::from(obj))
    };
    Some(obj.into())
}

/// How many pages the objects in the list of `dev` for `rank` have, at about this moment.
pub(crate) fn pages<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8) -> u64
where
    T::Driver: DriverExt<Gem = T>,
{
    let list = T::lru(dev, rank).list.get();
    // SAFETY: The list is valid; what it counts others may change meanwhile, so it is read once.
    let count = unsafe { (&raw const (*list).count).read_volatile() };
    u64::try_from(count).unwrap_or(0)
}
