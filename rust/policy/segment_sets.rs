// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where an allocation may be, and in which order that is tried (`DXGK_ALLOCATIONINFO`).
//!
//! ```text
//! supported      all segments in which the GPU reaches it       SupportedSegmentSet
//! preferred      those of them that are tried first, in order   PreferredSegment
//! eviction       where it goes when it leaves VRAM              EvictionSegmentSet
//! ```
//!
//! What is supported and not preferred is tried behind that: VRAM, the aperture, system memory.
//! One order says where an object is made, which place it comes back to, and which of its eviction
//! segments it leaves for. System memory holds whatever leaves, whether or not the GPU reaches it
//! there.

use super::{
    eviction::Need,
    miniport::{APERTURE_SEGMENT, SYSTEM_SEGMENT, VRAM_SEGMENT},
};

#[cfg(test)]
pub(super) mod tests;

/// A segment in which an allocation can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The GPU's own memory.
    Vram,
    /// System pages, through the GART's window.
    Aperture,
    /// System pages, directly.
    System,
}

impl Segment {
    /// All, in the order in which those are tried of which nobody has said otherwise.
    pub const ALL: [Self; 3] = [Self::Vram, Self::Aperture, Self::System];
    /// The bits of all.
    pub const BITS: u32 = Self::Vram.bit() | Self::Aperture.bit() | Self::System.bit();

    /// Its bit in sets.
    pub const fn bit(self) -> u32 {
        1 << match self {
            Self::Vram => VRAM_SEGMENT,
            Self::Aperture => APERTURE_SEGMENT,
            Self::System => SYSTEM_SEGMENT,
        }
    }
}

/// One place to be tried for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The segment in which memory is tried to be had.
    pub segment: Segment,
    /// Who has to leave for it: of the aperture nobody for who merely prefers that, of system
    /// memory nobody in any case.
    pub need: Need,
}

/// The segment sets of an allocation, in a word of [`Self::WORD_BITS`].
///
/// # Examples
///
/// ```
/// use skua_policy::segment_sets::{Segment, SegmentSets};
///
/// let [vram, system] = [Segment::Vram.bit(), Segment::System.bit()];
/// let sets = SegmentSets::new(vram | system, system, 0).unwrap();
/// assert!(sets.order().eq([Segment::System, Segment::Vram]));
/// assert!(!sets.prefers(Segment::Vram, Segment::System));
/// // The eviction set has no place for VRAM.
/// assert_eq!(SegmentSets::new(vram | system, 0, vram), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSets(u16);

/// Where the eviction set begins in the word, in bits.
const EVICTION_SHIFT: u32 = 3;
/// Where the first preferred segment stands in the word, in bits.
const PREFERRED_SHIFT: u32 = 6;
/// Bits of one preferred segment in the word: its number plus 1, or 0 for none.
const CHOICE_BITS: u32 = 2;
const CHOICE_MASK: u32 = (1 << CHOICE_BITS) - 1;
/// Bits of a preferred segment where it comes from.
const BYTE: u32 = 8;

impl SegmentSets {
    /// How many bits of its word are used, from the lowest on.
    pub const WORD_BITS: u32 = 12;

    /// Sets with a bit for each segment; byte n of `preferred` has the bit of the segment that is
    /// tried n-th, and no other one.
    ///
    /// [`None`] if nothing or what does not exist is `supported`; if what is `preferred` is not
    /// supported, is there twice or behind a gap; or if the `eviction` set has VRAM or an aperture
    /// that is not supported, or is not empty though VRAM is not supported.
    pub fn new(supported: u32, preferred: u32, eviction: u32) -> Option<Self> {
        let is_vram = supported & Segment::Vram.bit() != 0;
        let exits = match is_vram {
            true => supported & Segment::Aperture.bit() | Segment::System.bit(),
            false => 0,
        };
        if supported == 0 || supported & !Segment::BITS != 0 || eviction & !exits != 0 {
            return None;
        }
        let (mut word, mut left) = (supported | eviction << EVICTION_SHIFT, supported);
        let (mut rest, mut shift) = (preferred, PREFERRED_SHIFT);
        while rest != 0 {
            let bit = rest & 0xff;
            if !bit.is_power_of_two() || left & bit == 0 {
                return None;
            }
            left &= !bit;
            word |= (bit.trailing_zeros() + 1) << shift;
            (rest, shift) = (rest >> BYTE, shift + CHOICE_BITS);
        }
        Some(Self(u16::try_from(word).ok()?))
    }

    /// All three sets in one word, of [`Self::WORD_BITS`].
    pub const fn word(self) -> u16 {
        self.0
    }

    /// The sets whose [`Self::word`] is `word`.
    pub const fn from_word(word: u16) -> Self {
        Self(word)
    }

    /// The segments in which the GPU reaches it.
    pub fn supported(self) -> u32 {
        u32::from(self.0) & Segment::BITS
    }

    /// The eviction set, as given.
    pub fn eviction(self) -> u32 {
        u32::from(self.0) >> EVICTION_SHIFT & Segment::BITS
    }

    /// The preferred segments, as given.
    pub fn preferred(self) -> u32 {
        let shifted = self.choices().zip([0, BYTE, 2 * BYTE]);
        shifted.fold(0, |all, (segment, shift)| all | segment.bit() << shift)
    }

    fn choices(self) -> impl Iterator<Item = Segment> {
        let mut rest = u32::from(self.0) >> PREFERRED_SHIFT;
        core::iter::from_fn(move || {
            let number = (rest & CHOICE_MASK).checked_sub(1)?;
            rest >>= CHOICE_BITS;
            let is_it = |segment: &Segment| segment.bit() == 1 << number;
            Segment::ALL.into_iter().find(is_it)
        })
    }

    /// Whether the GPU reaches the allocation in `segment`.
    pub fn supports(self, segment: Segment) -> bool {
        self.supported() & segment.bit() != 0
    }

    /// All supported segments, in the order in which they are tried.
    pub fn order(self) -> impl Iterator<Item = Segment> {
        let is_other = move |segment: &Segment| {
            self.supports(*segment) && !self.choices().any(|choice| choice == *segment)
        };
        self.choices()
            .chain(Segment::ALL.into_iter().filter(is_other))
    }

    /// Whether `segment` is supported, and tried before `other`, or the GPU does not reach it in
    /// that.
    pub fn prefers(self, segment: Segment, other: Segment) -> bool {
        self.order()
            .take_while(|at| *at != other)
            .any(|at| at == segment)
    }

    /// Where a place is looked for, one after the other. Who may be in system memory has others
    /// leave only what these do not need; who may not is given room by force in the end, first
    /// where nothing is copied for that.
    pub fn attempts(self) -> impl Iterator<Item = Attempt> {
        let is_free = self.supports(Segment::System);
        let is_alone = self.order().nth(1).is_none();
        let first = self.order().filter(move |_| is_free || !is_alone);
        let forced = [Segment::Aperture, Segment::Vram].into_iter();
        let forced = forced.filter(move |segment| !is_free && self.supports(*segment));
        let attempt = |need| move |segment| Attempt { segment, need };
        first
            .map(attempt(Need::Prefers))
            .chain(forced.map(attempt(Need::Needs)))
    }

    /// Where it goes that leaves VRAM, the first of these that has room: of the eviction set, or,
    /// if that is empty, of all that is supported but VRAM. System memory always has, as far as
    /// segments are concerned, and is the last.
    pub fn exits(self) -> impl Iterator<Item = Segment> {
        let set = match self.eviction() {
            0 => Segment::Aperture.bit() | Segment::System.bit(),
            set => set,
        };
        self.order()
            .filter(move |segment| set & segment.bit() != 0)
            .take_while(|segment| *segment != Segment::System)
            .chain([Segment::System])
    }
}
