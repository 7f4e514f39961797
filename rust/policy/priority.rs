// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How likely an allocation is to stay resident (`D3DDDI_ALLOCATIONPRIORITY_*`, row 2.25).
//!
//! A priority is a hint: of those who could make room, the ones of the lowest level go first. What
//! it is not: a reason to fail, or to keep something that all others need.

/// The levels, from the first to go to the last.
///
/// # Examples
///
/// ```
/// use skua_policy::priority::Level;
///
/// assert_eq!(Level::of(0x7800_0000), Some(Level::Normal));
/// assert!(Level::of(1) < Level::of(u32::MAX));
/// assert_eq!(Level::of(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// `D3DDDI_ALLOCATIONPRIORITY_MINIMUM`.
    Minimum,
    /// `D3DDDI_ALLOCATIONPRIORITY_LOW`.
    Low,
    /// `D3DDDI_ALLOCATIONPRIORITY_NORMAL`, which allocations have at first.
    Normal,
    /// `D3DDDI_ALLOCATIONPRIORITY_HIGH`.
    High,
    /// `D3DDDI_ALLOCATIONPRIORITY_MAXIMUM`.
    Maximum,
}

impl Level {
    /// Every level, from what leaves first to what leaves last.
    pub const ALL: [Self; 5] = [
        Self::Minimum,
        Self::Low,
        Self::Normal,
        Self::High,
        Self::Maximum,
    ];

    /// The lowest priority of the level: what WDDM calls by its name.
    pub const fn priority(self) -> u32 {
        match self {
            Self::Minimum => 0x2800_0000,
            Self::Low => 0x5000_0000,
            Self::Normal => 0x7800_0000,
            Self::High => 0xa000_0000,
            Self::Maximum => 0xc800_0000,
        }
    }

    /// The level of a priority: the highest that is not above it, or the lowest. `None` for 0,
    /// which is no priority.
    pub fn of(priority: u32) -> Option<Self> {
        if priority == 0 {
            return None;
        }
        let reached = |level: &&Self| level.priority() <= priority;
        let level = Self::ALL.iter().rev().find(reached);
        Some(level.copied().unwrap_or(Self::Minimum))
    }
}

/// How soon the content of an allocation that was offered is thrown away
/// (`D3DDDI_OFFER_PRIORITY_*`): before that of any that was not.
///
/// # Examples
///
/// ```
/// use skua_policy::priority::{Level, Offer};
///
/// assert_eq!(Offer::of(1, Level::Normal), Some(Offer::Low));
/// assert_eq!(Offer::of(Offer::AUTO, Level::Maximum), Some(Offer::High));
/// assert_eq!(Offer::of(0, Level::Normal), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Offer {
    /// `D3DDDI_OFFER_PRIORITY_LOW`: first.
    Low,
    /// `D3DDDI_OFFER_PRIORITY_NORMAL`.
    Normal,
    /// `D3DDDI_OFFER_PRIORITY_HIGH`: last.
    High,
}

impl Offer {
    /// All, in the order in which they go.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];
    /// `D3DDDI_OFFER_PRIORITY_AUTO`: the one that goes with the priority of residency.
    pub const AUTO: u32 = 4;

    /// The one with WDDM's number, for an allocation of `level`. `None` if there is none.
    pub fn of(number: u32, level: Level) -> Option<Self> {
        match (number, level) {
            (1, _) | (Self::AUTO, Level::Minimum | Level::Low) => Some(Self::Low),
            (2, _) | (Self::AUTO, Level::Normal) => Some(Self::Normal),
            (3, _) | (Self::AUTO, Level::High | Level::Maximum) => Some(Self::High),
            _ => None,
        }
    }
}

/// Objects that leave where they are when others need the room, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// What is offered, with this priority.
    Offered(Offer),
    /// What is not offered, by the level of its priority.
    Kept(Level),
}

impl Rank {
    /// Every rank, from what leaves first to what leaves last.
    pub const ALL: [Self; 8] = [
        Self::Offered(Offer::Low),
        Self::Offered(Offer::Normal),
        Self::Offered(Offer::High),
        Self::Kept(Level::Minimum),
        Self::Kept(Level::Low),
        Self::Kept(Level::Normal),
        Self::Kept(Level::High),
        Self::Kept(Level::Maximum),
    ];

    /// Its name for people, as debugfs shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offered(Offer::Low) => "OfferedLow",
            Self::Offered(Offer::Normal) => "OfferedNormal",
            Self::Offered(Offer::High) => "OfferedHigh",
            Self::Kept(Level::Minimum) => "Minimum",
            Self::Kept(Level::Low) => "Low",
            Self::Kept(Level::Normal) => "Normal",
            Self::Kept(Level::High) => "High",
            Self::Kept(Level::Maximum) => "Maximum",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_begins_with_its_priority() {
        for (level, below) in Level::ALL
            .into_iter()
            .zip([Level::Minimum].into_iter().chain(Level::ALL))
        {
            assert_eq!(Level::of(level.priority()), Some(level));
            assert_eq!(Level::of(level.priority() - 1), Some(below));
        }
    }

    #[test]
    fn an_offer_has_four_numbers() {
        for level in Level::ALL {
            for (number, offer) in (1..).zip(Offer::ALL) {
                assert_eq!(Offer::of(number, level), Some(offer));
            }
            for number in [0, 5, 6, u32::MAX] {
                assert_eq!(Offer::of(number, level), None);
            }
        }
        let of = |level| Offer::of(Offer::AUTO, level);
        assert!(Level::ALL.is_sorted_by_key(|level| of(*level)));
        assert_eq!(of(Level::Minimum), Some(Offer::Low));
        assert_eq!(of(Level::Normal), Some(Offer::Normal));
        assert_eq!(of(Level::Maximum), Some(Offer::High));
    }

    #[test]
    fn what_is_offered_goes_first() {
        assert!(Rank::ALL.is_sorted());
        let kept = Rank::ALL
            .iter()
            .filter(|rank| matches!(rank, Rank::Kept(_)));
        assert_eq!(kept.count(), Level::ALL.len());
        assert_eq!(Rank::ALL.len(), Level::ALL.len() + Offer::ALL.len());
    }

    #[test]
    fn every_number_but_0_is_a_priority() {
        assert_eq!(Level::of(0), None);
        assert_eq!(Level::of(1), Some(Level::Minimum));
        assert_eq!(Level::of(u32::MAX), Some(Level::Maximum));
    }
}
