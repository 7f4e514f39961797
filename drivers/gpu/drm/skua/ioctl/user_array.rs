// SPDX-License-Identifier: GPL-2.0

//! Arrays in user memory, by the rules of `struct drm_skua_array`, whose elements have had the same
//! size since the first version.

use crate::ext::{
    uapi,
    user_array::UserArray, //
};
use kernel::prelude::*;

/// Calls `f` with each of at most `max` elements, in order, each read once.
///
/// `EINVAL` for stride, count or pointer; `E2BIG` for an unknown byte that is not zero; `EFAULT`;
/// what `f` says.
pub(crate) fn for_each<T>(
    array: &uapi::drm_skua_array,
    max: u32,
    f: impl FnMut(T) -> Result,
) -> Result
where
    T: FromBytes + IntoBytes,
{
    UserArray::from(array).for_each(size_of::<T>(), max, f)
}

/// The same elements as a list; also `ENOMEM`.
pub(crate) fn read<T>(array: &uapi::drm_skua_array, max: u32) -> Result<KVVec<T>>
where
    T: FromBytes + IntoBytes,
{
    UserArray::from(array).read(size_of::<T>(), max)
}
