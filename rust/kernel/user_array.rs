// SPDX-License-Identifier: GPL-2.0

//! Arrays of extensible structures in user memory: `struct drm_skua_array`.
//!
//! # Contract
//!
//! Userspace says how large it believes an element is (the stride), so both sides can grow; the
//! rules are those of panthor's `panthor_drv.c`, made exact in `skua_drm.h`:
//!
//! - The stride is at least the size that the element had at first (`min`), a multiple of 8, and at
//!   most [`MAX_STRIDE`]; or 0 if there are no elements: `EINVAL`.
//! - There are at most as many elements as the caller says: `EINVAL`. If there are none, the
//!   pointer is 0: `EINVAL`.
//! - An element shorter than the driver's is extended by zeros. What one has beyond the driver's
//!   must be zero: `E2BIG`.
//! - Memory that cannot be read, also because it wraps around: `EFAULT`. `ENOMEM`.
//!
//! Everything is copied once; what was checked is what is used.
//!
//! # Examples
//!
//! ```ignore
//! // Elements that had 24 bytes in the first version, and have more now.
//! let ops: KVVec<drm_skua_bind_op> = UserArray::from(&args.ops).read(24, 1024)?;
//! ```

use super::uapi;
use kernel::{
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// The largest stride that is accepted, in bytes.
pub(crate) const MAX_STRIDE: u32 = 4096;

/// An array in user memory as an ioctl's argument describes it. Nothing is checked yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UserArray {
    /// Bytes from one element to the next.
    pub(crate) stride: u32,
    /// Number of elements.
    pub(crate) count: u32,
    /// Address of the first element, in the memory of the process that called.
    pub(crate) pointer: u64,
}

impl From<&uapi::drm_skua_array> for UserArray {
    fn from(array: &uapi::drm_skua_array) -> Self {
        Self {
            stride: array.stride,
            count: array.count,
            pointer: array.pointer,
        }
    }
}

impl UserArray {
    /// The address of element `index`.
    fn at(&self, index: u32) -> Result<UserPtr> {
        let offset = u64::from(index) * u64::from(self.stride);
        let address = self.pointer.checked_add(offset).ok_or(EFAULT)?;
        Ok(UserPtr::from_addr(
            usize::try_from(address).map_err(|_| EFAULT)?,
        ))
    }

    /// Checks what can be checked without touching user memory: see the contract above.
    pub(crate) fn check(&self, min: usize, max_count: u32) -> Result {
        let stride = usize::try_from(self.stride)?;
        let valid = stride >= min && stride % 8 == 0 && self.stride <= MAX_STRIDE;
        if self.count == 0 {
            return if (valid || stride == 0) && self.pointer == 0 {
                Ok(())
            } else {
                Err(EINVAL)
            };
        }
        if !valid || self.count > max_count {
            return Err(EINVAL);
        }
        let len = u64::from(self.count) * u64::from(self.stride);
        self.pointer.checked_add(len).ok_or(EFAULT)?;
        Ok(())
    }

    /// Reads all elements. `min` is the size of `T` at first; at most `max_count` are accepted.
    pub(crate) fn read<T>(&self, min: usize, max_count: u32) -> Result<KVVec<T>>
    where
        T: FromBytes + IntoBytes,
    {
        self.check(min, max_count)?;
        let mut out = KVVec::with_capacity(usize::try_from(self.count)?, GFP_KERNEL_ACCOUNT)?;
        self.for_each(min, max_count, |element| {
            Ok(out.push(element, GFP_KERNEL_ACCOUNT)?)
        })?;
        Ok(out)
    }

    /// Calls `f` with each element as soon as it is read, until `f` fails.
    pub(crate) fn for_each<T>(
        &self,
        min: usize,
        max_count: u32,
        mut f: impl FnMut(T) -> Result,
    ) -> Result
    where
        T: FromBytes + IntoBytes,
    {
        self.check(min, max_count)?;
        for index in 0..self.count {
            f(self.read_one(index)?)?;
        }
        Ok(())
    }

    fn read_one<T>(&self, index: u32) -> Result<T>
    where
        T: FromBytes + IntoBytes,
    {
        let stride = usize::try_from(self.stride)?;
        let known = stride.min(size_of::<T>());
        let mut reader = UserSlice::new(self.at(index)?, stride).reader();
        let mut value = T::new_zeroed();
        reader.read_slice(value.as_mut_bytes().get_mut(..known).ok_or(EINVAL)?)?;
        while !reader.is_empty() {
            let mut rest = [0u8; 64];
            let len = reader.len().min(rest.len());
            let rest = rest.get_mut(..len).ok_or(EINVAL)?;
            reader.read_slice(rest)?;
            if rest.iter().any(|byte| *byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(value)
    }
}

#[kunit_tests(skua_user_array)]
mod tests {
    use super::super::mock::UserMemory;
    use super::*;

    /// An element of the first version has `a` only.
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes)]
    struct Element {
        a: u64,
        b: u64,
    }

    const MIN: usize = 8;

    fn array(stride: u32, count: u32, pointer: u64) -> UserArray {
        UserArray {
            stride,
            count,
            pointer,
        }
    }

    #[test]
    fn strides_counts_and_pointers_are_checked() -> Result {
        let cases: [(u32, u32, u64, Result); 14] = [
            (0, 0, 0, Ok(())),
            (8, 0, 0, Ok(())),
            (16, 0, 0, Ok(())),
            (4, 0, 0, Err(EINVAL)),
            (12, 0, 0, Err(EINVAL)),
            (4104, 0, 0, Err(EINVAL)),
            (8, 0, 1, Err(EINVAL)),
            (0, 1, 4096, Err(EINVAL)),
            (7, 1, 4096, Err(EINVAL)),
            (20, 1, 4096, Err(EINVAL)),
            (4096, 3, 4096, Ok(())),
            (8, 4, 4096, Err(EINVAL)),
            (8, 3, u64::MAX - 23, Err(EFAULT)),
            (8, 3, u64::MAX - 24, Ok(())),
        ];
        for (stride, count, pointer, expected) in cases {
            assert!(array(stride, count, pointer).check(MIN, 3) == expected);
        }
        Ok(())
    }

    #[test]
    fn elements_grow_both_ways() -> Result {
        let memory = UserMemory::new()?;
        memory.write(0, [1u64, 2, 3, 0].map(u64::to_le_bytes).as_flattened())?;

        let short = array(8, 3, memory.address()).read::<Element>(MIN, 9)?;
        assert_eq!(short.len(), 3);
        assert!(short[2] == Element { a: 3, b: 0 });
        let same = array(16, 2, memory.address()).read::<Element>(MIN, 9)?;
        assert!(same[0] == Element { a: 1, b: 2 });
        assert!(same[1] == Element { a: 3, b: 0 });
        // 3 is not known, 0 does not matter.
        assert!(array(24, 1, memory.address()).read::<Element>(MIN, 9).err() == Some(E2BIG));
        let long = array(24, 1, memory.address() + 8).read::<Element>(MIN, 9)?;
        assert!(long[0] == Element { a: 2, b: 3 });
        Ok(())
    }

    #[test]
    fn bad_memory_is_efault() -> Result {
        let memory = UserMemory::new()?;
        let end = memory.address() + memory.size();
        assert!(array(16, 1, end).read::<Element>(MIN, 9).err() == Some(EFAULT));
        assert!(array(16, 2, end - 16).read::<Element>(MIN, 9).err() == Some(EFAULT));
        // The kernel's half of the address space.
        assert!(array(16, 1, u64::MAX - 4095).read::<Element>(MIN, 9).err() == Some(EFAULT));
        Ok(())
    }
}
