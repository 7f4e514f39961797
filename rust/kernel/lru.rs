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
//! // The one of the lowest rank that was not used for longest.
//! let candidate = lru::walk::<BoData>(&dev, 0).next();
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
            BaseObject,
            IntoGEMObject,
            Object, //
        }, //
    },
    error::from_err_ptr,
    page::PAGE_SIZE,
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
    /// Initialised; its lock is that of all lists of the device.
    #[pin]
    list: Opaque<bindings::drm_gem_lru>,
    /// Of what the objects are made; the list owns none.
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
    /// The C structure, valid as long as `self`.
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

/// The objects of `dev` with `rank`, what was not used for longest first; nothing counts as used by
/// that.
pub(crate) fn walk<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8) -> Walk<'_, T>
where
    T::Driver: DriverExt<Gem = T>,
{
    Walk {
        dev,
        rank,
        back: false,
        last: None,
        before: None,
        seen: 0,
        left: pages::<T>(dev, rank).saturating_mul(ROUNDS),
    }
}

/// The `many` objects of `dev` with `rank` that were used last, if there are so many; the last one
/// first.
pub(crate) fn walk_back<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8, many: u64) -> Walk<'_, T>
where
    T::Driver: DriverExt<Gem = T>,
{
    Walk {
        back: true,
        left: many,
        ..walk(dev, rank)
    }
}

/// How often a [`walk`] sees as many pages as there are, at most.
const ROUNDS: u64 = 4;

/// A [`walk`] through a list that others change. It sees all that is there all the time, and may
/// see the same again and again if that is used meanwhile.
pub(crate) struct Walk<'a, T: Listed>
where
    T::Driver: DriverExt<Gem = T>,
{
    dev: &'a drm::Device<T::Driver>,
    rank: u8,
    /// Whether it goes from the end to the beginning.
    back: bool,
    /// The object that it has found last; none before the first.
    last: Option<ObjectRef<T>>,
    /// Where it was before, if that object has stayed: where it is has perhaps left the list.
    before: Option<ObjectRef<T>>,
    /// How many pages the objects have that it has seen since it began, or began again, and that
    /// have stayed.
    seen: u64,
    /// How many pages the objects have that it sees at most; if it goes back, how many objects.
    left: u64,
}

impl<T: Listed> Walk<'_, T>
where
    T::Driver: DriverExt<Gem = T>,
{
    /// The object behind the last one. `ENOENT` if that is not there any more.
    fn behind(&self) -> Result<Option<ObjectRef<T>>> {
        let lru = T::lru(self.dev, self.rank);
        let last = self.last.as_ref();
        let last = last.map_or(core::ptr::null_mut(), |last| IntoGEMObject::as_raw(&**last));
        // SAFETY: Device, list and object are valid.
        let raw = from_err_ptr(unsafe {
            shim::skua_gem_lru_behind(device::as_raw(self.dev), lru.list.get(), last, self.back)
        })?;
        let Some(raw) = core::ptr::NonNull::new(raw) else {
            return Ok(None);
        };
        // SAFETY: By the type invariant the object is an `Object<T>`; the reference is ours.
        let obj = unsafe {
            let obj = <Object<T> as IntoGEMObject>::from_raw(raw.as_ptr());
            ARef::from_raw(core::ptr::NonNull::from(obj))
        };
        Ok(Some(obj.into()))
    }
}

/// The size of `obj` in pages, whether or not it has them.
fn pages_of<T: Listed>(obj: &Object<T>) -> u64
where
    T::Driver: DriverExt<Gem = T>,
{
    // CAST: at most 64 bits.
    (obj.size() / PAGE_SIZE) as u64
}

impl<T: Listed> Iterator for Walk<'_, T>
where
    T::Driver: DriverExt<Gem = T>,
{
    type Item = ObjectRef<T>;

    fn next(&mut self) -> Option<ObjectRef<T>> {
        if self.left == 0 {
            return None;
        }
        loop {
            match self.behind() {
                Ok(Some(found)) => {
                    self.before = self.last.replace(found.clone());
                    let pages = pages_of(&*found);
                    self.seen = self.seen.saturating_add(pages);
                    self.left = self.left.saturating_sub(if self.back { 1 } else { pages });
                    return Some(found);
                }
                // Where it was has been used meanwhile: what was behind that has not been seen.
                Ok(None) => {
                    self.last.take().filter(|_| !self.back)?;
                    if self.seen >= pages::<T>(self.dev, self.rank) {
                        return None;
                    }
                    (self.before, self.seen) = (None, 0);
                }
                Err(_) => {
                    let gone = self.last.take()?;
                    self.seen = self.seen.saturating_sub(pages_of(&*gone));
                    self.last = self.before.take();
                }
            }
        }
    }
}

/// How many pages the objects in the list of `dev` for `rank` have. Takes the lists' lock.
fn pages<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8) -> u64
where
    T::Driver: DriverExt<Gem = T>,
{
    let list = T::lru(dev, rank).list.get();
    // SAFETY: Device and list are valid.
    let count = unsafe { shim::skua_gem_lru_pages(device::as_raw(dev), list) };
    u64::try_from(count).unwrap_or(0)
}

/// The same at about this moment: what is used just now may be missing.
pub(crate) fn pages_about<T: Listed>(dev: &drm::Device<T::Driver>, rank: u8) -> u64
where
    T::Driver: DriverExt<Gem = T>,
{
    let list = T::lru(dev, rank).list.get();
    // SAFETY: The list is valid; what it counts others may change meanwhile, so it is read once.
    let count = unsafe { (&raw const (*list).count).read_volatile() };
    u64::try_from(count).unwrap_or(0)
}
