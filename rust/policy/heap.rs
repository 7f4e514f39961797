// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where memory comes from.
//!
//! The modules of this crate do not allocate by themselves: they are generic over a [`Heap`], which
//! names a vector type whose every growth can fail, and a box type. In the driver those are the
//! kernel's `KVVec` and `KBox`, on the host `std`'s, which fail on request.
//!
//! A vector keeps its capacity until it is dropped. Code that must not fail later reserves first
//! ([`FallibleVec::reserve`]); [`FallibleVec::try_push`] does not allocate, hence cannot fail,
//! within the capacity.
//!
//! # Examples
//!
//! ```
//! use skua_policy::heap::{FallibleVec, Heap, OutOfMemory};
//! use skua_policy::std_heap::{fail_at, StdHeap};
//!
//! /// What allocates comes first, and may fail; what changes something comes last, and may not.
//! fn append<H: Heap>(to: &mut H::Vec<u32>, values: &[u32]) -> Result<(), OutOfMemory> {
//!     to.reserve(values.len())?;
//!     for value in values {
//!         to.try_push(*value)?;
//!     }
//!     Ok(())
//! }
//!
//! let mut numbers = FallibleVec::new();
//! append::<StdHeap>(&mut numbers, &[1, 2])?;
//! // The host's heap fails on request: nothing has changed then.
//! fail_at(Some(0));
//! assert_eq!(append::<StdHeap>(&mut numbers, &[3; 1000]), Err(OutOfMemory));
//! assert_eq!(numbers.as_slice(), [1, 2]);
//! # Ok::<(), OutOfMemory>(())
//! ```

use core::ops::DerefMut;

/// There is no memory. The driver answers `ENOMEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// A family of vectors, and of boxes.
pub trait Heap {
    /// The vector type for elements of type `T`.
    type Vec<T>: FallibleVec<T>;
    /// The box type for one `T`.
    type Box<T>: DerefMut<Target = T>;

    /// Puts `value` into memory of its own.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; `value` is dropped.
    fn boxed<T>(value: T) -> Result<Self::Box<T>, OutOfMemory>;
}

/// A vector that asks before it grows.
#[cfg_attr(
    not(MODULE),
    expect(clippy::len_without_is_empty, reason = "nobody asks for it")
)]
pub trait FallibleVec<T>: Sized {
    /// An empty vector without capacity; allocates nothing.
    fn new() -> Self;

    /// Makes room for `additional` elements beyond the present ones.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; the vector is unchanged.
    fn reserve(&mut self, additional: usize) -> Result<(), OutOfMemory>;

    /// Appends `value`, growing if the capacity is used up.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; the vector is unchanged and `value` is dropped. Never within the capacity.
    fn try_push(&mut self, value: T) -> Result<(), OutOfMemory>;

    /// Takes the last element out.
    fn pop(&mut self) -> Option<T>;

    /// The elements in the order in which they were pushed.
    fn as_slice(&self) -> &[T];

    /// As [`Self::as_slice`], to change elements in place.
    fn as_mut_slice(&mut self) -> &mut [T];

    /// The number of elements.
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// An empty vector with room for `capacity` elements.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    fn with_capacity(capacity: usize) -> Result<Self, OutOfMemory> {
        let mut vec = Self::new();
        vec.reserve(capacity)?;
        Ok(vec)
    }

    /// A vector of `len` elements, each made by `make`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    fn filled_with(len: usize, mut make: impl FnMut() -> T) -> Result<Self, OutOfMemory> {
        let mut vec = Self::with_capacity(len)?;
        for _ in 0..len {
            vec.try_push(make())?;
        }
        Ok(vec)
    }
}
