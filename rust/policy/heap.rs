// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where memory comes from.
//!
//! The modules of this crate do not allocate by themselves: they are generic over a [`Heap`], which
//! names a vector type whose every growth can fail. In the driver that is the kernel's `KVVec`, on
//! the host a `std` vector that fails on request.
//!
//! A vector keeps its capacity until it is dropped. Code that must not fail later reserves first
//! ([`FallibleVec::reserve`]); [`FallibleVec::try_push`] does not allocate, hence cannot fail,
//! within the capacity.

/// There is no memory. The driver answers `ENOMEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// A family of vectors.
pub trait Heap {
    /// The vector type for elements of type `T`.
    type Vec<T>: FallibleVec<T>;
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

    /// Appends `value`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; the vector is unchanged and `value` is dropped. Never within the capacity.
    fn try_push(&mut self, value: T) -> Result<(), OutOfMemory>;

    /// Takes the last element out.
    fn pop(&mut self) -> Option<T>;

    /// The elements.
    fn as_slice(&self) -> &[T];

    /// The elements, to change.
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
