// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A set of small integers with a fast "which is next".
//!
//! A tree of words: bit *i* of a word of level 0 is a member, bit *i* of a word of a level above
//! says whether word *i* below it is not zero. Asking, inserting, removing and finding the next
//! member at or after a value touch at most one word per level (two when finding), that is O(log₆₄
//! n).
//!
//! Words exist from when [`BitTree::prepare`] was first called for a member in them, so that memory
//! follows what is used of the range, not its size: 1.6 bits for each possible member of it, if
//! they are neighbours. Everything else allocates nothing.
//!
//! **Why not a bitmap.** The kernel's (`BitmapVec`) has a bit for each integer of the range, used
//! or not, and looks for the next member word by word: the free blocks of a large VRAM are few and
//! far apart. An XArray may have to allocate when a member is inserted, as where memory is freed.
//!
//! Invariants: bits at and beyond the size are zero; a bit of a level above is set if and only if
//! the word below it exists and is not zero.
//!
//! # Examples
//!
//! ```
//! use skua_policy::{bit_tree::BitTree, std_heap::StdHeap};
//!
//! let mut tree = BitTree::<StdHeap>::new(1 << 40)?;
//! tree.prepare(1 << 39)?;
//! assert!(tree.insert(1 << 39));
//! assert_eq!(tree.next(5), Some(1 << 39));
//! # Ok::<(), skua_policy::heap::OutOfMemory>(())
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};

#[cfg(test)]
mod tests;

/// log2 of the bits of a word.
const WORD_SHIFT: u32 = 6;
const WORD_BITS: usize = 1 << WORD_SHIFT;
/// Enough for 2^48 members.
const MAX_LEVELS: u32 = 8;
/// Stands for a word that is not allocated.
const NONE: u32 = u32::MAX;

/// A word of a level above 0.
struct Branch {
    /// Which of the words below are not zero.
    set: u64,
    /// Their indices in `leaves` or `branches`, or [`NONE`].
    below: [u32; WORD_BITS],
}

/// A set of integers below a size fixed at creation.
pub struct BitTree<H: Heap> {
    /// The words of level 0.
    leaves: H::Vec<u64>,
    /// Those of the levels above. The first of all is the root: here, or in `leaves` if that is the
    /// only level.
    branches: H::Vec<Branch>,
    /// At least 1; a level has a bit for each word of the one below.
    levels: u32,
    /// Members are below this.
    size: u64,
}

/// The number of the bit on the way to `member` in a word of `level`.
fn digit(member: u64, level: u32) -> usize {
    // CAST: below 64.
    (member >> (WORD_SHIFT * level)) as usize % WORD_BITS
}

impl<H: Heap> BitTree<H> {
    /// An empty set of integers below `size`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], also if `size` is above 2^48.
    pub fn new(size: u64) -> Result<Self, OutOfMemory> {
        let mut levels = 1;
        while levels < MAX_LEVELS && size > 1 << (WORD_SHIFT * levels) {
            levels += 1;
        }
        if size > 1 << (WORD_SHIFT * levels) {
            return Err(OutOfMemory);
        }
        let mut tree = BitTree {
            leaves: FallibleVec::new(),
            branches: FallibleVec::new(),
            levels,
            size,
        };
        tree.add_word(levels - 1)?;
        Ok(tree)
    }

    /// Bytes of the words that exist.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.leaves.as_slice()) + size_of_val(self.branches.as_slice())
    }

    /// Has the words that `member` needs exist, so that it can be inserted; those of all integers
    /// with the same quotient by 64 are the same. Does nothing outside the size.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; the set is as before.
    pub fn prepare(&mut self, member: u64) -> Result<(), OutOfMemory> {
        if member >= self.size {
            return Ok(());
        }
        let mut at = 0;
        for level in (1..self.levels).rev() {
            at = match self.below(at, member, level) {
                Some(below) => below,
                None => {
                    let new = self.add_word(level - 1)?;
                    let branch = self.branches.as_mut_slice().get_mut(at);
                    let place =
                        branch.and_then(|branch| branch.below.get_mut(digit(member, level)));
                    // CAST: add_word() saw that it fits.
                    *place.ok_or(OutOfMemory)? = new as u32;
                    new
                }
            };
        }
        Ok(())
    }

    /// Adds an empty word of `level` that nothing leads to; its index.
    fn add_word(&mut self, level: u32) -> Result<usize, OutOfMemory> {
        let index = if level == 0 {
            self.leaves.len()
        } else {
            self.branches.len()
        };
        if index >= NONE as usize {
            return Err(OutOfMemory);
        }
        if level == 0 {
            self.leaves.try_push(0)?;
        } else {
            self.branches.try_push(Branch {
                set: 0,
                below: [NONE; WORD_BITS],
            })?;
        }
        Ok(index)
    }

    /// Whether `member` is in the set.
    pub fn contains(&self, member: u64) -> bool {
        let Some(path) = self.path(member) else {
            return false;
        };
        self.word(0, path[0]) & bit(member, 0) != 0
    }

    /// Inserts `member`; says whether the set changed. Outside the size, and where nothing was
    /// prepared, it does not.
    pub fn insert(&mut self, member: u64) -> bool {
        let Some(path) = self.path(member) else {
            return false;
        };
        for (level, at) in (0..self.levels).zip(path) {
            let Some(word) = self.word_mut(level, at) else {
                break;
            };
            let was = *word;
            *word |= bit(member, level);
            if level == 0 && *word == was {
                return false;
            }
            if was != 0 {
                break;
            }
        }
        true
    }

    /// Removes `member`; says whether the set changed.
    pub fn remove(&mut self, member: u64) -> bool {
        if !self.contains(member) {
            return false;
        }
        let Some(path) = self.path(member) else {
            return false;
        };
        for (level, at) in (0..self.levels).zip(path) {
            let Some(word) = self.word_mut(level, at) else {
                break;
            };
            *word &= !bit(member, level);
            if *word != 0 {
                break;
            }
        }
        true
    }

    /// The smallest member.
    pub fn first(&self) -> Option<u64> {
        self.next(0)
    }

    /// The smallest member that is `from` or larger.
    pub fn next(&self, from: u64) -> Option<u64> {
        if from >= self.size {
            return None;
        }
        // Down along `from`, as far as there is something at or behind it; the last word that has
        // something behind it is where to turn.
        let mut turn = None;
        let (mut level, mut at) = (self.levels - 1, 0);
        loop {
            let word = self.word(level, at);
            let digit = digit(from, level);
            let behind = word & (u64::MAX << digit << 1);
            if behind != 0 {
                turn = Some((level, at, behind));
            }
            if word & bit(from, level) == 0 {
                break;
            }
            if level == 0 {
                return Some(from);
            }
            at = self.below(at, from, level)?;
            level -= 1;
        }
        // From there on always the first.
        let (mut level, mut at, behind) = turn?;
        let mut digit = behind.trailing_zeros();
        let mut found = from >> (WORD_SHIFT * level) & !(WORD_BITS as u64 - 1) | u64::from(digit);
        while level > 0 {
            at = self.child(at, digit as usize)?;
            level -= 1;
            digit = self.word(level, at).trailing_zeros();
            found = found << WORD_SHIFT | u64::from(digit);
        }
        Some(found)
    }

    /// The indices of the words that lead to `member`, by level; `None` if it cannot be one or its
    /// words do not exist.
    fn path(&self, member: u64) -> Option<[usize; MAX_LEVELS as usize]> {
        if member >= self.size {
            return None;
        }
        let mut path = [0; MAX_LEVELS as usize];
        let mut at = 0;
        for level in (1..self.levels).rev() {
            at = self.below(at, member, level)?;
            *path.get_mut(level as usize - 1)? = at;
        }
        Some(path)
    }

    /// The index of the word under word `at` of `level` on the way to `member`.
    fn below(&self, at: usize, member: u64, level: u32) -> Option<usize> {
        self.child(at, digit(member, level))
    }

    /// The index of word `digit` under branch `at`.
    fn child(&self, at: usize, digit: usize) -> Option<usize> {
        let below = *self.branches.as_slice().get(at)?.below.get(digit)?;
        (below != NONE).then_some(below as usize)
    }

    /// A word of a level; zero if it does not exist.
    fn word(&self, level: u32, at: usize) -> u64 {
        if level == 0 {
            self.leaves.as_slice().get(at).copied().unwrap_or(0)
        } else {
            let branch = self.branches.as_slice().get(at);
            branch.map_or(0, |branch| branch.set)
        }
    }

    fn word_mut(&mut self, level: u32, at: usize) -> Option<&mut u64> {
        if level == 0 {
            self.leaves.as_mut_slice().get_mut(at)
        } else {
            let branch = self.branches.as_mut_slice().get_mut(at);
            branch.map(|branch| &mut branch.set)
        }
    }
}

fn bit(member: u64, level: u32) -> u64 {
    1 << digit(member, level)
}
