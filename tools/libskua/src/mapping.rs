// SPDX-License-Identifier: MIT

//! Memory of a buffer object in the CPU's address space.
//!
//! The GPU and other processes may write the same bytes at any time. So a [`Mapping`] gives no
//! slice: it copies words in and out, each word whole (of 1, 2, 4 or 8 bytes, aligned), in
//! increasing order of addresses. Whether the other side is done is what syncobjs are for.
//!
//! A mapping holds the memory by itself: it outlives the buffer object's handle, the device's file
//! and the device. When the device is gone it shows memory of no meaning.
//!
//! VRAM is write-combined: writes are fast in order, reads are slow, and what was written is there
//! for the GPU when a submission's ioctl returns. System memory is cached and coherent.

use crate::{
    error::{Error, Result},
    sys::{Map, Word},
};

/// A shared mapping; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The memory; unmapped when this is dropped.
    map: Map,
}

impl Mapping {
    pub(crate) const fn new(map: Map) -> Self {
        Self { map }
    }

    /// In bytes: an access must lie below.
    pub const fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether it has no bytes: never.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it may be written to: else a write is [`Error::Range`].
    pub const fn is_writable(&self) -> bool {
        self.map.is_writable()
    }

    /// Address of the first byte, for what this type does not offer. It is valid as long as `self`
    /// lives, and what the head of this module says of other writers is then the caller's concern.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    /// Reads a word at a byte offset that is a multiple of its size.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if the word is not in the mapping or not aligned.
    pub fn read<T: Word>(&self, offset: usize) -> Result<T> {
        self.map
            .read(offset)
            .ok_or_else(|| self.range::<T>(offset, 1))
    }

    /// Writes a word at a byte offset that is a multiple of its size.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if the word is not in the mapping or not aligned, or if the mapping is
    /// read-only.
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<()> {
        self.map
            .write(offset, value)
            .ok_or_else(|| self.range::<T>(offset, 1))
    }

    /// Copies words from the mapping, from a byte offset that is a multiple of their size.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if one word is not in the mapping, or they are not aligned; nothing is
    /// copied then.
    pub fn copy_to_slice<T: Word>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        self.map
            .copy_to(offset, to)
            .ok_or_else(|| self.range::<T>(offset, to.len()))
    }

    /// Copies words to the mapping, to a byte offset that is a multiple of their size.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if one word is not in the mapping, they are not aligned, or the mapping is
    /// read-only; nothing is copied then.
    pub fn copy_from_slice<T: Word>(&self, offset: usize, from: &[T]) -> Result<()> {
        self.map
            .copy_from(offset, from)
            .ok_or_else(|| self.range::<T>(offset, from.len()))
    }

    /// Copies bytes from the mapping, in words as large as the offset allows.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if not all of it is in the mapping; nothing is copied then.
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len())?;
        let head = to.len().min(offset.next_multiple_of(8) - offset);
        let (head, rest) = to.split_at_mut(head);
        self.copy_to_slice(offset, head)?;
        let mut at = offset + head.len();
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.read::<u64>(at)?.to_ne_bytes());
            at += 8;
        }
        self.copy_to_slice(at, words.into_remainder())
    }

    /// Copies bytes to the mapping, in words as large as the offset allows.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if not all of it is in the mapping, or the mapping is read-only; nothing is
    /// copied then.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        let head = from.len().min(offset.next_multiple_of(8) - offset);
        let (head, rest) = from.split_at(head);
        self.copy_from_slice(offset, head)?;
        let mut at = offset + head.len();
        let mut words = rest.chunks_exact(8);
        for word in &mut words {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            self.write(at, u64::from_ne_bytes(bytes))?;
            at += 8;
        }
        self.copy_from_slice(at, words.remainder())
    }

    /// Copies bytes from the mapping to a vector.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if not all of it is in the mapping.
    pub fn to_vec(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        self.check(offset, bytes)?;
        let mut to = vec![0; bytes];
        self.read_bytes(offset, &mut to)?;
        Ok(to)
    }

    /// Writes `count` times the same word.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] as for [`Mapping::copy_from_slice`]; nothing is written then.
    pub fn fill<T: Word>(&self, offset: usize, count: usize, value: T) -> Result<()> {
        let error = || self.range::<T>(offset, count);
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(error)?;
        self.check(offset, bytes)?;
        if offset % size_of::<T>() != 0 {
            return Err(error());
        }
        for i in 0..count {
            self.write(offset + i * size_of::<T>(), value)?;
        }
        Ok(())
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(self.range::<u8>(offset, bytes)),
        }
    }

    fn range<T: Word>(&self, offset: usize, count: usize) -> Error {
        Error::Range {
            offset,
            bytes: count.saturating_mul(size_of::<T>()),
            len: self.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn mapping(writable: bool) -> Mapping {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        Mapping::new(Map::new(file.as_fd(), 0, 4096, writable).unwrap())
    }

    #[test]
    fn words_are_where_they_were_put() {
        let m = mapping(true);
        m.write(8, 0x0102_0304_0506_0708_u64).unwrap();
        assert_eq!(m.read::<u32>(8).unwrap(), 0x0506_0708);
        assert_eq!(m.read::<u8>(15).unwrap(), 1);
        m.fill(16, 3, 1.5_f32).unwrap();
        let mut words = [0.0_f32; 4];
        m.copy_to_slice(16, &mut words).unwrap();
        assert_eq!(words, [1.5, 1.5, 1.5, 0.0]);
    }

    #[test]
    fn bytes_at_every_alignment() {
        let m = mapping(true);
        let data: Vec<u8> = (1..=61).collect();
        for offset in 0..16 {
            for len in [0, 1, 7, 8, 9, 30, 61] {
                m.fill(0, 4096, 0_u8).unwrap();
                m.write_bytes(offset, &data[..len]).unwrap();
                assert_eq!(m.to_vec(offset, len).unwrap(), data[..len]);
                assert!(m.to_vec(0, offset).unwrap().iter().all(|b| *b == 0));
                assert!(m.to_vec(offset + len, 16).unwrap().iter().all(|b| *b == 0));
            }
        }
    }

    #[test]
    fn nothing_outside_is_reached() {
        let m = mapping(true);
        let range = |r: Result<()>| assert!(matches!(r, Err(Error::Range { .. })));
        range(m.read::<u64>(4096).map(|_| ()));
        range(m.read::<u64>(4).map(|_| ()));
        range(m.read::<u8>(usize::MAX).map(|_| ()));
        range(m.write(4093, 0_u32));
        range(m.copy_from_slice(4088, &[0_u64; 2]));
        range(m.write_bytes(4000, &[0; 97]));
        range(m.write_bytes(usize::MAX - 3, &[0; 16]));
        range(m.to_vec(1, usize::MAX).map(|_| ()));
        range(m.fill(0, usize::MAX, 0_u64));
        m.write_bytes(4096, &[]).unwrap();
    }

    #[test]
    fn what_is_read_only_is_not_written() {
        let m = mapping(false);
        assert_eq!(m.read::<u64>(0).unwrap(), 0);
        assert!(m.write(0, 1_u8).is_err());
        assert!(m.copy_from_slice(0, &[1_u8]).is_err());
        assert!(m.fill(0, 1, 1_u8).is_err());
    }
}
