// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A set of small integers with a fast "which is next".
//!
//! A bitmap with summaries: bit *i* of level *l + 1* says whether word *i* of level *l* is not zero,
//! up to a level of one word. Asking, inserting, removing and finding the next member at or after a
//! value touch at most one word per level (two when finding), that is O(log₆₄ n).
//!
//! All memory is allocated by [`BitTree::new`]: 1 bit and 1/63 per possible member.
//!
//! Invariants: bits at and beyond the size are zero in every level; a summary bit is set if and only
//! if its word is not zero.

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

const WORD_BITS: u64 = 64;
/// Enough for 2^48 members.
const MAX_LEVELS: usize = 8;

/// A set of integers below a size fixed at creation.
pub struct BitTree<H: Heap> {
    /// All levels, level 0 (the members) first.
    words: H::Vec<u64>,
    /// Where each level begins in `words`; `bounds[levels]` is the end of the last.
    bounds: [usize; MAX_LEVELS + 1],
    levels: usize,
    size: u64,
}

impl<H: Heap> BitTree<H> {
    /// An empty set of integers below `size`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], also if `size` is so large that no memory could hold it.
    pub fn new(size: u64) -> Result<Self, OutOfMemory> {
        let mut bounds = [0; MAX_LEVELS + 1];
        let mut levels = 0;
        let mut end = 0usize;
        let mut bits = size;
        loop {
            let words = bits.div_ceil(WORD_BITS).max(1);
            end = usize::try_from(words)
                .ok()
                .and_then(|words| end.checked_add(words))
                .ok_or(OutOfMemory)?;
            levels += 1;
            *bounds.get_mut(levels).ok_or(OutOfMemory)? = end;
            if words == 1 {
                break;
            }
            bits = words;
        }
        Ok(BitTree {
            words: FallibleVec::filled_with(end, || 0)?,
            bounds,
            levels,
            size,
        })
    }

    /// Integers from this one on cannot be members.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether `member` is in the set.
    pub fn contains(&self, member: u64) -> bool {
        self.word(0, member / WORD_BITS) & bit(member) != 0
    }

    /// Inserts `member`; says whether the set changed. Outside the size, it does not.
    pub fn insert(&mut self, member: u64) -> bool {
        if member >= self.size || self.contains(member) {
            return false;
        }
        let mut at = member;
        for level in 0..self.levels {
            let Some(word) = self.word_mut(level, at / WORD_BITS) else {
                break;
            };
            let was = *word;
            *word |= bit(at);
            if was != 0 {
                break;
            }
            at /= WORD_BITS;
        }
        true
    }

    /// Removes `member`; says whether the set changed.
    pub fn remove(&mut self, member: u64) -> bool {
        if !self.contains(member) {
            return false;
        }
        let mut at = member;
        for level in 0..self.levels {
            let Some(word) = self.word_mut(level, at / WORD_BITS) else {
                break;
            };
            *word &= !bit(at);
            if *word != 0 {
                break;
            }
            at /= WORD_BITS;
        }
        true
    }

    /// The smallest member.
    pub fn first(&self) -> Option<u64> {
        self.next(0)
    }

    /// The smallest member that is `from` or larger.
    pub fn next(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for level in 0..self.levels {
            // Up, until something is set at or after `at` ...
            let rest = self.word(level, at / WORD_BITS) & (u64::MAX << (at % WORD_BITS));
            if rest != 0 {
                at = at / WORD_BITS * WORD_BITS + u64::from(rest.trailing_zeros());
                // ... and down to its first member.
                for below in (0..level).rev() {
                    let first = u64::from(self.word(below, at).trailing_zeros());
                    at = at * WORD_BITS + first;
                }
                return Some(at);
            }
            at = at / WORD_BITS + 1;
        }
        None
    }

    fn place(&self, level: usize, word: u64) -> Option<usize> {
        let begin = *self.bounds.get(level)?;
        let end = *self.bounds.get(level + 1)?;
        let place = begin.checked_add(usize::try_from(word).ok()?)?;
        (place < end).then_some(place)
    }

    /// A word of a level; zero beyond its end.
    fn word(&self, level: usize, word: u64) -> u64 {
        self.place(level, word)
            .and_then(|place| self.words.as_slice().get(place))
            .map_or(0, |word| *word)
    }

    fn word_mut(&mut self, level: usize, word: u64) -> Option<&mut u64> {
        let place = self.place(level, word)?;
        self.words.as_mut_slice().get_mut(place)
    }
}

fn bit(at: u64) -> u64 {
    1 << (at % WORD_BITS)
}
