// SPDX-License-Identifier: GPL-2.0

//! A table with a fixed number of places, for objects that the hardware names by small numbers.
//!
//! A place is reserved before its object is made, holds a reference while userspace has a handle of
//! the object, or something else needs to find it, and is free again when the object is gone. All
//! memory is allocated at creation. With it the device finds all contexts and address spaces when
//! it is lost.

use core::marker::PhantomData;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// What a number of the hardware stands for.
enum Slot<T> {
    /// Nothing: the next object may have it.
    Free,
    /// An object that is being made, or that userspace has no handle of and that is not freed.
    Reserved,
    /// An object that is found here.
    Filled(Arc<T>),
}

/// The table, for numbers of the type `K`.
#[pin_data]
pub(crate) struct Slots<K, T> {
    /// By number; as many as at creation.
    #[pin]
    places: SpinLock<KVVec<Slot<T>>>,
    /// A table of one kind of number takes no other kind.
    _key: PhantomData<fn(K)>,
}

impl<K: Into<u32>, T> Slots<K, T> {
    /// A table of `count` free places. `ENOMEM`.
    pub(crate) fn new(count: u32) -> Result<impl PinInit<Self, Error>> {
        let mut places = KVVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(Slot::Free, GFP_KERNEL)?;
        }
        Ok(try_pin_init!(Self {
            places <- new_spinlock!(places),
            _key: PhantomData,
        }))
    }

    /// Takes the first free place. `ENOSPC` if there is none.
    pub(crate) fn reserve(&self) -> Result<K>
    where
        K: TryFrom<u32>,
    {
        let mut places = self.places.lock();
        for (index, place) in places.iter_mut().enumerate() {
            if let Slot::Free = place {
                *place = Slot::Reserved;
                return K::try_from(u32::try_from(index)?).map_err(|_| ENOSPC);
            }
        }
        Err(ENOSPC)
    }

    fn set(&self, key: K, new: Slot<T>) -> Option<Arc<T>> {
        let mut places = self.places.lock();
        let place = places.get_mut(usize::try_from(key.into()).ok()?)?;
        match core::mem::replace(place, new) {
            Slot::Filled(object) => Some(object),
            Slot::Free | Slot::Reserved => None,
        }
    }

    /// Puts an object into its place, which was reserved for it.
    pub(crate) fn fill(&self, key: K, object: Arc<T>) {
        crate::warn_on_once!(self.set(key, Slot::Filled(object)).is_some());
    }

    /// Puts an object into a place that is free; what is there then.
    pub(crate) fn fill_if_free(&self, key: K, object: Arc<T>) -> Option<Arc<T>> {
        let mut places = self.places.lock();
        let place = places.get_mut(usize::try_from(key.into()).ok()?)?;
        if let Slot::Free = place {
            *place = Slot::Filled(object.clone());
        }
        match place {
            Slot::Filled(there) => Some(there.clone()),
            // `object` goes when the lock has.
            _ => None,
        }
    }

    /// Takes the object out; the place stays taken. What is returned may be the last reference.
    #[must_use = "it may be the last reference"]
    pub(crate) fn empty(&self, key: K) -> Option<Arc<T>> {
        self.set(key, Slot::Reserved)
    }

    /// Gives the place back: the object is gone.
    pub(crate) fn release(&self, key: K) {
        crate::warn_on_once!(self.set(key, Slot::Free).is_some());
    }

    /// The object in the place `key`; none if the place is free, reserved, or not in the table.
    pub(crate) fn find(&self, key: K) -> Option<Arc<T>> {
        self.get(usize::try_from(key.into()).ok()?)
    }

    /// The first object that `f` takes, which looks under the lock.
    pub(crate) fn find_by(&self, f: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let places = self.places.lock();
        let object = places.iter().find_map(|place| match place {
            Slot::Filled(object) if f(object) => Some(object.clone()),
            _ => None,
        });
        object
    }

    fn get(&self, index: usize) -> Option<Arc<T>> {
        match self.places.lock().get(index)? {
            Slot::Filled(object) => Some(object.clone()),
            _ => None,
        }
    }

    /// Calls `f` with a reference to each object, which may become the last one; with no lock held.
    pub(crate) fn for_each(&self, mut f: impl FnMut(Arc<T>)) {
        let count = self.places.lock().len();
        for index in 0..count {
            if let Some(object) = self.get(index) {
                f(object);
            }
        }
    }
}
