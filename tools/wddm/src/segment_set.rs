// SPDX-License-Identifier: MIT

//! Sets of segments, with WDDM's bits.
//!
//! Segment 0 is system memory, which is implicit: it is in no mask. Bit 0 is segment 1. The
//! kernel's masks have a bit for system memory, too:
//!
//! ```text
//! segment              0 system memory   1 video memory   2 aperture   n
//! WDDM's mask          no bit            bit 0            bit 1        bit n - 1
//! the uAPI's mask      bit 0             bit 1            bit 2        bit n
//! ```
//!
//! This is the only place where one becomes the other.

use std::ops::BitOr;

use libskua::Placements;

/// A set of segments (`SupportedSegmentSet`, `EvictionSegmentSet`), with or without system memory.
///
/// ```
/// use wddm::SegmentSet;
///
/// let [memory, aperture] = [1, 2].map(|bits| SegmentSet::from_bits(bits));
/// assert!(memory.contains(1) && aperture.contains(2) && !memory.contains(0));
/// // What may be in system memory as well has no bit more.
/// assert_eq!((memory | SegmentSet::SYSTEM).bits(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SegmentSet {
    /// The segments but 0, as WDDM's masks have them: bit n is segment n + 1.
    segments: u32,
    /// Whether segment 0 is among them.
    system: bool,
}

impl SegmentSet {
    /// No segment.
    pub const NONE: Self = Self {
        segments: 0,
        system: false,
    };
    /// Segment 0.
    pub const SYSTEM: Self = Self {
        segments: 0,
        system: true,
    };

    /// The segments of a mask of WDDM's: bit 0 is segment 1.
    pub const fn from_bits(segments: u32) -> Self {
        Self {
            segments,
            system: false,
        }
    }

    /// WDDM's mask, in which there is no system memory.
    pub const fn bits(self) -> u32 {
        self.segments
    }

    /// Whether a segment is in the set.
    pub const fn contains(self, id: u32) -> bool {
        match id.checked_sub(1) {
            None => self.system,
            Some(bit) => bit < u32::BITS && self.segments >> bit & 1 != 0,
        }
    }

    /// The segments of a mask of the kernel's.
    pub(crate) const fn of(placements: Placements) -> Self {
        let bits = placements.bits();
        Self {
            segments: bits >> 1,
            system: bits & 1 != 0,
        }
    }

    /// The kernel's mask. Segment 32, which that has no bit for, is 31 there: neither exists.
    pub(crate) const fn placements(self) -> Placements {
        let last = self.segments & 1 << 31;
        // CAST: a bit.
        Placements::from_bits(self.segments << 1 | last | self.system as u32)
    }
}

impl BitOr for SegmentSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            segments: self.segments | other.segments,
            system: self.system || other.system,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways.
    #[test]
    fn bit_0_is_segment_1() {
        for (wddm, system, kernel) in [
            (0, false, 0),
            (0, true, 1),
            (1, false, 2),
            (2, false, 4),
            (3, true, 7),
            (1 << 30, false, 1 << 31),
        ] {
            let implicit = [SegmentSet::NONE, SegmentSet::SYSTEM][usize::from(system)];
            let set = SegmentSet::from_bits(wddm) | implicit;
            assert_eq!(set.placements().bits(), kernel, "{set:?}");
            let back = SegmentSet::of(Placements::from_bits(kernel));
            assert_eq!((back, back.bits()), (set, wddm));
            assert!((0..40).all(|id| set.contains(id) == set.placements().contains(id)));
        }
    }

    #[test]
    fn what_has_no_bit_stays_wrong() {
        assert_ne!(SegmentSet::from_bits(1 << 31).placements().bits() >> 31, 0);
    }
}
