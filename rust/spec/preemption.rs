// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Preemption (manual section 11): how finely an engine can be stopped, what it says when it was,
//! and how the state begins that it has saved.
//!
//! # Examples
//!
//! ```
//! use skua_spec::preemption::{Cause, Level, Record};
//!
//! assert_eq!(Level::ThreadGroup.wddm(), 300);
//! // The coarser one of two engines.
//! assert_eq!(Level::Instruction.min(Level::Dispatch), Level::Dispatch);
//!
//! let record = Record { fence: 9, completed: 7, cause: Cause::Within, number: 1 };
//! assert_eq!(record.to_words(), [9, 7, 0x1_0000_0002]);
//! assert_eq!(Record::from_words(record.to_words()), Some(record));
//! ```

use super::address::GpuVa;
use super::layout;

/// Where an engine can stop: the higher, the finer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Level {
    /// When its ring is empty: what is pending cannot be held back.
    None = 0,
    /// At the end of a packet.
    DmaBuffer = 1,
    /// Behind a command of a buffer; of graphics, behind a DRAW: its triangles are a primitive.
    Dispatch = 2,
    /// Behind a group of a dispatch; of graphics, behind a triangle.
    ThreadGroup = 3,
    /// Where a wave ends or waits at a barrier; of graphics, behind a wave of pixels.
    Thread = 4,
    /// Behind any instruction, and within a transfer.
    #[default]
    Instruction = 5,
}

impl Level {
    /// All of them, the coarsest first, with the names that they have for compute and for graphics.
    pub const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::None, "none", "none"),
        (Self::DmaBuffer, "dma-buffer", "dma-buffer"),
        (Self::Dispatch, "dispatch", "primitive"),
        (Self::ThreadGroup, "thread-group", "triangle"),
        (Self::Thread, "thread", "pixel"),
        (Self::Instruction, "instruction", "instruction"),
    ];

    /// The level with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::None,
            1 => Self::DmaBuffer,
            2 => Self::Dispatch,
            3 => Self::ThreadGroup,
            4 => Self::Thread,
            5 => Self::Instruction,
            _ => return None,
        })
    }

    /// The number that WDDM has for it.
    pub const fn wddm(self) -> u32 {
        self as u32 * 100
    }
}

/// What an engine was at when it stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Cause {
    /// Nothing: its ring was empty.
    #[default]
    Idle = 0,
    /// Nothing that had begun: what was withdrawn from the ring is to be submitted again.
    Between = 1,
    /// A packet, whose state was saved.
    Within = 2,
    /// A WAIT in a packet, whose state was saved.
    Waiting = 3,
}

impl Cause {
    /// The cause with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Idle,
            1 => Self::Between,
            2 => Self::Within,
            3 => Self::Waiting,
            _ => return None,
        })
    }

    /// Whether the packet at the head is to be resumed.
    pub const fn is_saved(self) -> bool {
        matches!(self, Self::Within | Self::Waiting)
    }
}

/// What an engine's block of the status page says of its last preemption: 24 bytes from
/// [`PREEMPT_FENCE`](super::status::engine::PREEMPT_FENCE) on, three little-endian words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Number of the request that is answered.
    pub fence: u64,
    /// `completed_fence` when the engine stopped.
    pub completed: u64,
    /// What the engine was at when it stopped.
    pub cause: Cause,
    /// Records since the last adapter reset, this one included, modulo 2^32.
    pub number: u32,
}

impl Record {
    /// The record as it stands in the block.
    pub const fn to_words(self) -> [u64; 3] {
        let words = RecordWords::new().with_fence(self.fence);
        let words = words.with_completed(self.completed);
        let words = words.with_cause(self.cause as u32);
        words.with_number(self.number).0
    }

    /// The record in `words`, or `None` where the cause has no meaning.
    pub const fn from_words(words: [u64; 3]) -> Option<Self> {
        let words = RecordWords(words);
        let Some(cause) = Cause::from_u32(words.cause()) else {
            return None;
        };
        Some(Self {
            fence: words.fence(),
            completed: words.completed(),
            cause,
            number: words.number(),
        })
    }
}

layout! {
    Record,
    /// A record as it stands in the block.
    RecordWords[3] {
        /// See [`Record::fence`].
        FENCE(8) @ 0x00 fence, with_fence;
        /// See [`Record::completed`].
        COMPLETED(8) @ 0x08 completed, with_completed;
        /// See [`Record::cause`].
        CAUSE(4) @ 0x10 cause, with_cause;
        /// See [`Record::number`].
        NUMBER(4) @ 0x14 number, with_number;
    }
}

/// How a saved state begins, behind the context's image ([`super::context::Image`]): whose it is.
/// What follows is the device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the state, the header included.
    pub bytes: u32,
    /// Virtual address of the buffer, as EXEC or the packet in the queue named it.
    pub base: GpuVa,
    /// As `base`.
    pub start: u32,
    /// As `base`.
    pub end: u32,
}

impl Header {
    /// Bytes of the header.
    pub const SIZE: u32 = 32;
    /// "SAVE" in memory order.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"SAVE");
    /// The form of what follows: a device reads no other than its own.
    pub const FORMAT: u32 = 1;

    /// The header as it stands in memory.
    pub const fn to_words(self) -> [u64; 4] {
        HeaderWords::new()
            .with_magic(Self::MAGIC)
            .with_format(Self::FORMAT)
            .with_bytes(self.bytes)
            .with_base(self.base.0)
            .with_start(self.start)
            .with_end(self.end)
            .0
    }

    /// The header in `words`, or `None` if it is none of this form.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        let view = HeaderWords(words);
        let header = Self {
            bytes: view.bytes(),
            base: GpuVa(view.base()),
            start: view.start(),
            end: view.end(),
        };
        (header.to_words() == words).then_some(header)
    }
}

layout! {
    HeaderWords,
    /// The header of a state as it stands in memory.
    HeaderWords[4] {
        /// [`Header::MAGIC`].
        MAGIC(4) @ 0x00 magic, with_magic;
        /// [`Header::FORMAT`].
        FORMAT(4) @ 0x04 format, with_format;
        /// See [`Header::bytes`].
        BYTES(4) @ 0x08 bytes, with_bytes;
        /// See [`Header::base`].
        BASE(8) @ 0x10 base, with_base;
        /// See [`Header::start`].
        START(4) @ 0x18 start, with_start;
        /// See [`Header::end`].
        END(4) @ 0x1c end, with_end;
    }
}
