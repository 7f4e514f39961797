// SPDX-License-Identifier: GPL-2.0

//! A table with a fixed number of places, for objects that the hardware names by small numbers.
//!
//! A place is reserved before its object is made, holds a reference while userspace has a handle of
//! the object, and is free again when the object is gone. All memory is allocated at creation. With
//! it the device finds all contexts and address spaces when it is lost.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// A place.
enum Place<T> {
    Free,
    /// In use; userspace has no handle.
    Reserved,
    /// In use.
    Filled(Arc<T>),
}

/// The table.
#[pin_data]
pub(crate) struct Slots<T> {
    #[pin]
    places: SpinLock<KVVec<Place<T>>>,
}

impl<T> Slots<T> {
    /// A table of `count` free places. `ENOMEM`.
    pub(crate) fn new(count: u32) -> Result<impl PinInit<Self, Error>> {
        let mut places = KVVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(Place::Free, GFP_KERNEL)?;
        }
        Ok(try_pin_init!(Self {
            places <- new_spinlock!(places),
        }))
    }

    /// Takes the first free place. `ENOSPC` if there is none.
    pub(crate) fn reserve(&self) -> Result<u32> {
        let mut places = self.places.lock();
        for (index, place) in places.iter_mut().enumerate() {
            if let Place::Free = place {
                *place = Place::Reserved;
                return Ok(u32::try_from(index)?);
            }
        }
        Err(ENOSPC)
    }

    fn set(&self, index: u32, new: Place<T>) -> Option<Arc<T>> {
        let mut places = self.places.lock();
        let place = usize::try_from(index)
            .ok()
            .and_then(|index| places.get_mut(index))?;
        match core::mem::replace(place, new) {
            Place::Filled(object) => Some(object),
            Place::Free | Place::Reserved => None,
        }
    }

    /// Puts an object into its place, which was reserved for it.
    pub(crate) fn fill(&self, index: u32, object: Arc<T>) {
        kernel::warn_on!(self.set(index, Place::Filled(object)).is_some());
    }

    /// Takes the object out; the place stays taken. What is returned may be the last reference.
    #[must_use = "it may be the last reference"]
    pub(crate) fn empty(&self, index: u32) -> Option<Arc<T>> {
        self.set(index, Place::Reserved)
    }

    /// Gives the place back: the object is gone.
    pub(crate) fn release(&self, index: u32) {
        kernel::warn_on!(self.set(index, Place::Free).is_some());
    }

    /// The object in a place.
    pub(crate) fn get(&self, index: u32) -> Option<Arc<T>> {
        let places = self.places.lock();
        match places.get(usize::try_from(index).ok()?)? {
            Place::Filled(object) => Some(object.clone()),
            _ => None,
        }
    }

    /// Calls `f` with a reference to each object, which may become the last one; with no lock held.
    pub(crate) fn for_each(&self, mut f: impl FnMut(Arc<T>)) {
        let count = self.places.lock().len();
        for index in 0..count {
            let object = u32::try_from(index).ok().and_then(|index| self.get(index));
            if let Some(object) = object {
                f(object);
            }
        }
    }
}
