// SPDX-License-Identifier: GPL-2.0

//! Arrays of extensible structures in user memory: `{stride, count, pointer}`.
//!
//! # Contract
//!
//! Userspace says how large it believes an element is (`stride`), so both sides can grow (the rules are
//! panthor's, `panthor_drv.c`): an element shorter than ours is extended by zeros, down to the size it
//! had in the first version (`min`); one longer than ours is accepted if all it has beyond is zero,
//! and is `E2BIG` otherwise. Errors: `EINVAL` for a stride below `min` or a count above the limit,
//! `EFAULT` for bad memory, `EOVERFLOW`, `ENOMEM`. Everything is copied once.

use kernel::{
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};
use zerocopy::Immutable;

/// An array in user memory as an ioctl structure describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserArray {
    /// Bytes from one element to the next.
    pub(crate) stride: u32,
    /// Number of elements.
    pub(crate) count: u32,
    /// Address of the first.
    pub(crate) pointer: u64,
}

impl UserArray {
    /// The address of element `index`.
    fn at(&self, index: u32) -> Result<UserPtr> {
        let offset = u64::from(index)
            .checked_mul(u64::from(self.stride))
            .ok_or(EOVERFLOW)?;
        let address = self.pointer.checked_add(offset).ok_or(EOVERFLOW)?;
        Ok(UserPtr::from_addr(usize::try_from(address)?))
    }

    /// Checks stride and count, and that the array does not wrap around the address space.
    fn check(&self, min: usize, max_count: u32) -> Result {
        if self.count == 0 {
            return Ok(());
        }
        if usize::try_from(self.stride)? < min || self.count > max_count {
            return Err(EINVAL);
        }
        let len = u64::from(self.count)
            .checked_mul(u64::from(self.stride))
            .ok_or(EOVERFLOW)?;
        self.pointer.checked_add(len).ok_or(EOVERFLOW)?;
        Ok(())
    }

    /// Reads all elements. `min` is the size of `T` in the first version, at most `max_count` elements
    /// are accepted.
    pub(crate) fn read<T>(&self, min: usize, max_count: u32) -> Result<KVVec<T>>
    where
        T: FromBytes + IntoBytes + Default,
    {
        self.check(min, max_count)?;
        let mut out = KVVec::with_capacity(usize::try_from(self.count)?, GFP_KERNEL)?;
        let stride = usize::try_from(self.stride)?;
        let known = stride.min(size_of::<T>());
        for index in 0..self.count {
            let mut reader = UserSlice::new(self.at(index)?, stride).reader();
            let mut value = T::default();
            // Not all zero by default? What userspace does not pass is.
            let bytes = value.as_mut_bytes();
            bytes.fill(0);
            reader.read_slice(bytes.get_mut(..known).ok_or(EINVAL)?)?;
            while !reader.is_empty() {
                let mut rest = [0u8; 64];
                let len = reader.len().min(rest.len());
                let rest = rest.get_mut(..len).ok_or(EINVAL)?;
                reader.read_slice(rest)?;
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(E2BIG);
                }
            }
            out.push(value, GFP_KERNEL)?;
        }
        Ok(out)
    }

    /// Writes `values` to the elements, as many as there are: each as much of it as fits the stride,
    /// zeros for what is beyond `T`. `ENOSPC` if there are more values than elements.
    pub(crate) fn write<T>(&self, min: usize, values: &[T]) -> Result
    where
        T: IntoBytes + Immutable,
    {
        self.check(min, u32::MAX)?;
        if u32::try_from(values.len())? > self.count {
            return Err(ENOSPC);
        }
        for (index, value) in (0..self.count).zip(values) {
            self.write_one(index, value)?;
        }
        Ok(())
    }

    /// Writes `value` to element `index`, `EINVAL` beyond the end.
    pub(crate) fn write_one<T>(&self, index: u32, value: &T) -> Result
    where
        T: IntoBytes + Immutable,
    {
        if index >= self.count {
            return Err(EINVAL);
        }
        let stride = usize::try_from(self.stride)?;
        let mut writer = UserSlice::new(self.at(index)?, stride).writer();
        let bytes = value.as_bytes();
        let known = stride.min(bytes.len());
        writer.write_slice(bytes.get(..known).ok_or(EINVAL)?)?;
        while !writer.is_empty() {
            let zeros = [0u8; 64];
            let len = writer.len().min(zeros.len());
            writer.write_slice(zeros.get(..len).ok_or(EINVAL)?)?;
        }
        Ok(())
    }
}
