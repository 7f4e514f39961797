// SPDX-License-Identifier: GPL-2.0

//! What is known of a buffer object beside where it is: marks, a bit each; for how many devices it
//! is resident, and how many clients have locked it.

use crate::memory::{
    bo::{
        Bo,
        BoData,
        Memory, //
    },
    host_aperture, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    }, //
};

/// In [`BoData::marks`]: its destruction was asked for, it stays where it is.
const DYING: i8 = 1 << 0;
/// In [`BoData::marks`]: content of it that left VRAM since was lost there.
const CONTENT_LOST: i8 = 1 << 1;
/// A client has said that it is to be destroyed.
const CLAIMED: i8 = 1 << 2;
/// It moves to VRAM, or is thrown away, or its old pages are not gone yet.
const ARRIVING: i8 = 1 << 3;
/// It is not resident any more for a device whose work was not filed with it then.
const GIVEN_UP: i8 = 1 << 4;
/// It is a context allocation, and a move has taken it from where the GPU reached it.
const ABSENT: i8 = 1 << 5;
/// It is in VRAM, and has a [clean copy](crate::memory::clean_copy).
const CLEAN: i8 = 1 << 6;

/// It is not in VRAM, where it would rather be, for want of room.
const DISPLACED: i8 = i8::MIN;

/// In [`BoData::lockers`]: it is locked in VRAM through the aperture.
const HAS_HOST_APERTURE: i16 = 1 << 14;

/// Counts `more` clients. `EMFILE`, never for fewer.
fn count(clients: &Atomic<i16>, more: i16) -> Result {
    let mut count = clients.load(Relaxed);
    loop {
        let new = count.checked_add(more).ok_or(EMFILE)?;
        match clients.cmpxchg(count, new, Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => count = now,
        }
    }
}

impl BoData {
    /// It is destroyed with a handle, or about to be; whether nobody has said so before.
    pub(crate) fn claim(&self) -> bool {
        !self.mark(CLAIMED, true)
    }

    /// Takes [`BoData::claim`] back, for who has called that.
    pub(crate) fn unclaim(&self) {
        self.mark(CLAIMED, false);
    }

    /// Has it stay where it is from now on. The caller holds its reservation lock: a move was
    /// published before, or never will be.
    pub(crate) fn mark_dying(&self) {
        self.mark(DYING, true);
    }

    /// Sets a mark, or clears it; whether it was set.
    fn mark(&self, mark: i8, is_set: bool) -> bool {
        let mut marks = self.marks.load(Relaxed);
        loop {
            let new = if is_set { marks | mark } else { marks & !mark };
            match self.marks.cmpxchg(marks, new, Release) {
                Ok(_) => return marks & mark != 0,
                Err(now) => marks = now,
            }
        }
    }

    /// Takes [`BoData::mark_dying`] back, for who has called that.
    pub(crate) fn unmark_dying(&self) {
        self.mark(DYING, false);
    }

    /// Whether it is to be destroyed, and stays where it is until then. For good as long as its
    /// reservation is locked.
    pub(crate) fn is_dying(&self) -> bool {
        self.marks.load(Relaxed) & DYING != 0
    }

    /// It is about to move to VRAM, or its content to be thrown away. Not to leave where it is
    /// then, nor to get other pages, before [`BoData::end_arrival`].
    pub(crate) fn begin_arrival(&self) {
        self.mark(ARRIVING, true);
    }

    /// Nothing of it is left where it came from.
    pub(crate) fn end_arrival(&self) {
        self.mark(ARRIVING, false);
    }

    /// Whether it is on its way to VRAM, or its content to nowhere, or was just now.
    pub(crate) fn is_arriving(&self) -> bool {
        self.marks.load(Acquire) & ARRIVING != 0
    }

    /// What it had in VRAM was lost when the device was reset, and it has left that since.
    pub(crate) fn set_content_lost(&self) {
        self.mark(CONTENT_LOST, true);
    }

    /// Whether the device was reset while its content was in VRAM.
    pub(crate) fn has_lost_content(&self) -> bool {
        let is_lost = matches!(self.sites.memory(), Some(Memory::Vram(range)) if range.is_lost());
        is_lost || self.marks.load(Relaxed) & CONTENT_LOST != 0
    }

    /// It will not be resident any more for a device whose work may use it still, and nobody has
    /// filed that with its own reservation.
    pub(crate) fn set_given_up(&self) {
        self.mark(GIVEN_UP, true);
    }

    /// Whether [`BoData::set_given_up`] was ever called.
    pub(crate) fn was_given_up(&self) -> bool {
        self.marks.load(Relaxed) & GIVEN_UP != 0
    }

    /// Says whether the GPU does not reach the context allocation, which it did once, and returns
    /// whether it did not.
    pub(crate) fn set_absent(&self, is_absent: bool) -> bool {
        self.mark(ABSENT, is_absent)
    }

    /// Whether the GPU does not reach the context allocation, which it did once.
    pub(crate) fn is_absent(&self) -> bool {
        self.marks.load(Relaxed) & ABSENT != 0
    }

    /// Says whether it has a clean copy from now on. The caller holds its reservation lock.
    pub(crate) fn set_clean(&self, is_clean: bool) {
        self.mark(CLEAN, is_clean);
    }

    /// Whether it had a clean copy just now, for who only wants to know what its leaving costs. The
    /// copy may be one of what is lost.
    pub(crate) fn is_clean(&self) -> bool {
        self.marks.load(Relaxed) & CLEAN != 0
    }

    /// Says whether it is rather to be in VRAM, and is not for want of room. The caller holds its
    /// reservation lock, or nobody else knows it.
    pub(crate) fn set_displaced(&self, is_displaced: bool) {
        self.mark(DISPLACED, is_displaced);
    }

    /// Whether there was no room for it in VRAM, where it would rather be than where it is. For
    /// good as long as its reservation is locked.
    pub(crate) fn is_displaced(&self) -> bool {
        self.marks.load(Relaxed) & DISPLACED != 0
    }

    /// Whether it is resident for some device.
    pub(crate) fn is_resident(&self) -> bool {
        self.residents.load(Relaxed) != 0
    }

    /// It is resident for so many `more` devices, or fewer. `EMFILE`, never for fewer.
    pub(crate) fn count_residents(bo: &Bo, more: i16) -> Result {
        count(&bo.residents, more)
    }

    /// `more` clients, or fewer, have locked it. `EMFILE`, never for fewer.
    pub(crate) fn count_lockers(bo: &Bo, more: i16) -> Result {
        let mut lockers = bo.lockers.load(Relaxed);
        loop {
            let clients = (lockers & !HAS_HOST_APERTURE).checked_add(more);
            let clients = clients.filter(|clients| *clients < HAS_HOST_APERTURE);
            let new = match clients.ok_or(EMFILE)? {
                0 => 0,
                clients => clients | lockers & HAS_HOST_APERTURE,
            };
            match bo.lockers.cmpxchg(lockers, new, Relaxed) {
                Ok(_) if new == 0 && lockers & HAS_HOST_APERTURE != 0 => {
                    host_aperture::unclaim(bo.dev(), bo);
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                Err(now) => lockers = now,
            }
        }
    }

    /// Whether some client has locked it.
    pub(crate) fn is_locked(&self) -> bool {
        self.lockers.load(Relaxed) != 0
    }

    /// Whether it is locked, and has a part of the aperture for that.
    pub(crate) fn has_host_aperture(&self) -> bool {
        self.lockers.load(Relaxed) & HAS_HOST_APERTURE != 0
    }

    /// Notes that it has pages of the host aperture, as long as it is locked; whether that is new.
    /// Not if it is not locked any more.
    pub(crate) fn set_host_aperture(&self) -> bool {
        let mut lockers = self.lockers.load(Relaxed);
        while lockers != 0 && lockers & HAS_HOST_APERTURE == 0 {
            match self
                .lockers
                .cmpxchg(lockers, lockers | HAS_HOST_APERTURE, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => lockers = now,
            }
        }
        false
    }
}
