// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a move of an object has to do, whether there can be one, and what is kept for the next one.

/// Where an object's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a memory segment.
    Vram,
    /// In system pages of the object's own, by their bus addresses.
    System,
    /// In such pages, by the window of the aperture segment.
    Aperture,
    /// In memory of another driver, which has exported it.
    Imported,
    /// Thrown away: the object is offered.
    Nowhere,
}

impl Place {
    /// Whether system pages of the object's own are what has the content.
    pub fn has_pages(self) -> bool {
        matches!(self, Self::System | Self::Aperture)
    }
}

/// What becomes of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An engine copies it.
    Copied,
    /// It is there already: in system pages that nobody can have had other than VRAM since.
    Clean,
    /// It stays in its pages, to which page tables lead another way.
    Stays,
    /// Nobody wants it any more.
    Discarded,
}

/// An object that is to move, and the memory that it is to move to.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Where its content is.
    pub from: Place,
    /// Where its content is to be, in the memory that it is to move to.
    pub to: Place,
    /// Whether a copy of what is in VRAM is kept in system pages.
    pub has_copy: bool,
    /// Whether what is in VRAM was lost there when the device was reset, and is not what the copy
    /// is any more.
    pub is_lost: bool,
    /// Whether the system pages that it is in, or has the copy in, are those that it goes to.
    pub same_pages: bool,
    /// Whether the system pages that it goes to are not its own any more.
    pub is_stale: bool,
    /// Whether no move of it is under way.
    pub is_settled: bool,
    /// Whether its client has offered it.
    pub is_offered: bool,
    /// Whether the CPU has locked it where VRAM cannot be reached (row 0.21).
    pub is_held_out: bool,
    /// Whether it is still on its way to VRAM, and its system pages are about to be given back.
    pub is_arriving: bool,
}

/// What has to be done for a move; [`None`] if it cannot be made now: the object has been moved by
/// somebody else since the caller has looked, or may not go there.
///
/// # Examples
///
/// ```
/// use skua_policy::relocation::{way, Facts, Place, Way};
///
/// let idle = Facts {
///     from: Place::Vram,
///     to: Place::System,
///     has_copy: false,
///     is_lost: false,
///     same_pages: false,
///     is_stale: false,
///     is_settled: true,
///     is_offered: false,
///     is_held_out: false,
///     is_arriving: false,
/// };
/// assert_eq!(way(&idle), Some(Way::Copied));
/// let clean = Facts { has_copy: true, same_pages: true, ..idle };
/// assert_eq!(way(&clean), Some(Way::Clean));
/// // The copy was dropped since, or the device was reset.
/// assert_eq!(way(&Facts { is_stale: true, ..idle }), None);
/// assert_eq!(way(&Facts { is_lost: true, ..clean }), None);
/// ```
pub fn way(facts: &Facts) -> Option<Way> {
    let may_arrive = match facts.to {
        // What is offered is to take nobody's room.
        Place::Vram => !facts.is_offered && !facts.is_held_out,
        _ => !(facts.from == Place::Vram && facts.is_arriving),
    };
    let is_own = !facts.is_stale && facts.same_pages;
    let way = match (facts.from, facts.to) {
        (Place::Vram, to) if facts.has_copy => {
            (to.has_pages() && is_own && !facts.is_lost).then_some(Way::Clean)
        }
        (Place::Vram, Place::System | Place::Aperture) => (!facts.is_stale).then_some(Way::Copied),
        (Place::System | Place::Aperture, Place::Vram) => Some(Way::Copied),
        (Place::System, Place::Aperture) => is_own.then_some(Way::Stays),
        // With two such moves under way it would look as if there were none in between.
        (Place::Aperture, Place::System) => (is_own && facts.is_settled).then_some(Way::Stays),
        (Place::Vram | Place::System, Place::Nowhere) => facts.is_offered.then_some(Way::Discarded),
        _ => None,
    };
    way.filter(|_| may_arrive)
}

/// Whether the system pages from which an object comes to VRAM are kept as its clean copy. Not if
/// somebody may write it there, whom nobody sees do it, nor if its client has too much of system
/// memory.
pub fn keeps_copy(has_writer: bool, is_too_much: bool) -> bool {
    !has_writer && !is_too_much
}

#[cfg(test)]
mod tests;
