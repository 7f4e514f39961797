// SPDX-License-Identifier: GPL-2.0

//! Arrays in user memory, by the rules of `struct drm_skua_array`.

use crate::ext::{
    uaccess::UserArray,
    uapi, //
};
use kernel::prelude::*;

/// Largest stride in bytes.
const MAX_STRIDE: u32 = 4096;

/// Reads an array of at most `max` elements, which had today's size in the first version.
///
/// `EINVAL` for stride, count or pointer; `E2BIG` for an unknown byte that is not zero; `EFAULT`;
/// `ENOMEM`.
pub(crate) fn read<T>(array: &uapi::drm_skua_array, max: u32) -> Result<KVVec<T>>
where
    T: FromBytes + IntoBytes + Default,
{
    let min = size_of::<T>();
    let stride_is_valid = usize::try_from(array.stride)? >= min
        && array.stride % 8 == 0
        && array.stride <= MAX_STRIDE;
    if array.count == 0 {
        if array.pointer != 0 || (array.stride != 0 && !stride_is_valid) {
            return Err(EINVAL);
        }
        return Ok(KVVec::new());
    }
    if !stride_is_valid {
        return Err(EINVAL);
    }
    let array = UserArray {
        stride: array.stride,
        count: array.count,
        pointer: array.pointer,
    };
    array.read(min, max)
}
