// SPDX-License-Identifier: GPL-2.0

//! Lists that mostly have one element or none, as those of what a submission waits for and signals.
//! One element needs no memory of its own; more are a `KVVec`, charged to the client
//! ([`client_flags`]).

use crate::kernel_heap::client_flags;
use core::{
    iter::{
        Chain,
        Flatten, //
    },
    mem,
    ops::{
        Deref,
        DerefMut, //
    },
    option,
    slice, //
};
use kernel::{
    alloc::{
        allocator::KVmalloc,
        kvec, //
    },
    prelude::*, //
};

/// Such a list, in the order in which its elements came.
#[derive(Default)]
pub(crate) enum Few<T> {
    #[default]
    Empty,
    /// One element, which needs no memory of its own.
    One(T),
    /// Any number of them.
    Many(KVVec<T>),
}

impl<T> Few<T> {
    /// Adds an element at the end. `ENOMEM`, and nothing has changed.
    pub(crate) fn push(&mut self, value: T) -> Result {
        match self {
            Self::Empty => *self = Self::One(value),
            Self::Many(all) => all.push(value, client_flags())?,
            Self::One(_) => {
                let mut all = KVVec::with_capacity(4, client_flags())?;
                if let Self::One(first) = mem::take(self) {
                    all.push(first, client_flags())?;
                }
                all.push(value, client_flags())?;
                *self = Self::Many(all);
            }
        }
        Ok(())
    }

    /// Drops those that `keep` is false of.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        match self {
            Self::Empty => (),
            Self::Many(all) => all.retain(keep),
            Self::One(one) => {
                if !keep(one) {
                    *self = Self::Empty;
                }
            }
        }
    }

    /// The same elements once more. `ENOMEM`.
    pub(crate) fn try_clone(&self) -> Result<Self>
    where
        T: Clone,
    {
        let mut clone = Self::Empty;
        for element in &**self {
            clone.push(element.clone())?;
        }
        Ok(clone)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Empty => &[],
            Self::One(one) => slice::from_ref(one),
            Self::Many(all) => all,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Empty => &mut [],
            Self::One(one) => slice::from_mut(one),
            Self::Many(all) => all,
        }
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter =
        Chain<option::IntoIter<T>, Flatten<option::IntoIter<kvec::IntoIter<T, KVmalloc>>>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::Empty => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Many(all) => (None, Some(all.into_iter())),
        };
        Iterator::chain(one.into_iter(), many.into_iter().flatten())
    }
}
