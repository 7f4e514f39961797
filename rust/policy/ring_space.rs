// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where in a ring the next command goes.
//!
//! A ring is a power of two of bytes that the driver fills and an engine empties. *Tail* is the
//! offset where the driver writes next, *head* that of the next command the engine will read; equal
//! means empty, so one unit (the alignment of commands) always stays free, or a full ring would
//! look empty.
//!
//! A command does not wrap, and is at most half as long as the ring: one that would not fit before
//! the end begins at 0, and what is left before the end is padding that the driver fills with
//! no-operations ([`Slot::pad`]).
//!
//! Writing has two steps: [`RingSpace::reserve`] says where, [`RingSpace::commit`] moves the tail
//! when the bytes are written. The head comes from memory that the device writes, so it is believed
//! only if it lies between the last one and the tail ([`RingSpace::advance`]).
//!
//! Invariant: head and tail are multiples of the unit below the size.
//!
//! # Examples
//!
//! ```
//! use skua_policy::ring_space::RingSpace;
//!
//! let mut ring = RingSpace::new(64, 8)?;
//! let slot = ring.reserve(32)?;
//! assert_eq!((slot.at, slot.pad), (0, 0));
//! ring.commit(slot)?;
//! // The engine has read it.
//! ring.advance(32).expect("between head and tail");
//! let slot = ring.reserve(24)?;
//! ring.commit(slot)?;
//! // 8 bytes are left before the end: the next one goes to the start.
//! let slot = ring.reserve(16)?;
//! assert_eq!((slot.pad_at, slot.pad, slot.at), (56, 8, 0));
//! # Ok::<(), skua_policy::ring_space::RingError>(())
//! ```

#[cfg(test)]
mod tests;

/// Accounting of one ring; the memory itself is the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpace {
    /// Bytes, a power of two.
    size: u32,
    /// Alignment of commands in bytes, a power of two.
    unit: u32,
    /// What the device was last seen at; below `size`.
    head: u32,
    /// Where the next command goes; below `size`.
    tail: u32,
}

/// A place for a command.
#[must_use = "the tail moves with `commit`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Offset of the padding that comes before, if [`Slot::pad`] is not 0.
    pub pad_at: u32,
    /// Bytes of padding, up to the end of the ring.
    pub pad: u32,
    /// Offset of the command.
    pub at: u32,
    /// The command's bytes, as they were asked for.
    pub len: u32,
    /// The tail once it is written.
    pub tail: u32,
}

/// Why there is no place, or no such ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Size or unit is not a power of two, or the size less than two units.
    Invalid,
    /// The length is zero or not a multiple of the unit.
    Misaligned,
    /// Longer than half the ring: with padding it might not fit even into the empty ring.
    TooLong,
    /// Not now: commands must complete first.
    Full,
    /// The slot was not reserved at the present tail.
    Stale,
}

/// The device reported a head that it cannot have. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BogusHead {
    /// Not a multiple of the unit, or not among what is queued.
    pub reported: u32,
}

impl RingSpace {
    /// An empty ring of `size` bytes with commands that are multiples of `unit` bytes.
    ///
    /// # Errors
    ///
    /// [`RingError::Invalid`].
    pub fn new(size: u32, unit: u32) -> Result<Self, RingError> {
        if !size.is_power_of_two() || !unit.is_power_of_two() || size / 2 < unit {
            return Err(RingError::Invalid);
        }
        Ok(RingSpace {
            size,
            unit,
            head: 0,
            tail: 0,
        })
    }

    /// The size in bytes.
    #[cfg(test)]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The last believed head.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// What the doorbell is to be told.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Whether the engine has read all.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Bytes that the engine has not read.
    pub fn used(&self) -> u32 {
        self.distance(self.head, self.tail)
    }

    /// Bytes that can be written, wrapping around; a command does not wrap, and may have fewer.
    pub fn space(&self) -> u32 {
        // `used` is at most `size - unit`.
        self.size - self.unit - self.used()
    }

    /// Bytes from the tail to the end of the ring.
    pub fn room_before_wrap(&self) -> u32 {
        self.size - self.tail
    }

    /// The longest command that has a place now.
    #[cfg(test)]
    pub fn longest(&self) -> u32 {
        let (space, room) = (self.space(), self.room_before_wrap());
        room.min(space)
            .max(space.saturating_sub(room))
            .min(self.size / 2)
    }

    /// Where a command of `len` bytes goes next. Nothing changes before [`Self::commit`]: what is
    /// reserved is the caller's until another slot is committed.
    ///
    /// # Errors
    ///
    /// [`RingError::Misaligned`], [`RingError::TooLong`], [`RingError::Full`].
    pub fn reserve(&self, len: u32) -> Result<Slot, RingError> {
        if len == 0 || len.checked_rem(self.unit) != Some(0) {
            return Err(RingError::Misaligned);
        }
        if len > self.size / 2 {
            return Err(RingError::TooLong);
        }
        let room = self.room_before_wrap();
        // Padding is shorter than the command, so both fit once the ring is empty.
        let pad = if len <= room { 0 } else { room };
        if pad.checked_add(len).is_none_or(|all| all > self.space()) {
            return Err(RingError::Full);
        }
        let at = if pad == 0 { self.tail } else { 0 };
        Ok(Slot {
            pad_at: self.tail,
            pad,
            at,
            len,
            tail: self.wrap(at, len),
        })
    }

    /// Counts `slot` as written and returns the new tail, for the doorbell.
    ///
    /// # Errors
    ///
    /// [`RingError::Stale`]: since [`Self::reserve`] another slot was committed or the ring was
    /// reset.
    pub fn commit(&mut self, slot: Slot) -> Result<u32, RingError> {
        if self.reserve(slot.len) != Ok(slot) {
            return Err(RingError::Stale);
        }
        self.tail = slot.tail;
        Ok(self.tail)
    }

    /// Takes the head that the device reports and returns how many bytes that frees.
    ///
    /// # Errors
    ///
    /// [`BogusHead`]: outside the ring, not a multiple of the unit, before the last head or behind
    /// the tail.
    pub fn advance(&mut self, reported: u32) -> Result<u32, BogusHead> {
        if reported >= self.size || reported.checked_rem(self.unit) != Some(0) {
            return Err(BogusHead { reported });
        }
        let freed = self.distance(self.head, reported);
        if freed > self.used() {
            return Err(BogusHead { reported });
        }
        self.head = reported;
        Ok(freed)
    }

    /// The ring as after [`Self::new`]: the engine was reset and starts at 0.
    pub fn reset(&mut self) {
        self.head = 0;
        self.tail = 0;
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & (self.size - 1)
    }

    fn wrap(&self, at: u32, len: u32) -> u32 {
        at.wrapping_add(len) & (self.size - 1)
    }
}
