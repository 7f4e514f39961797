// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults (manual section 8).
//!
//! An engine that meets anything malformed writes one [`Record`] to the fault ring of the status
//! page, raises the fault vector, and stays in [`super::status::EngineState::Faulted`] until it is
//! reset. The other engines go on.
//!
//! # Examples
//!
//! ```
//! use skua_spec::fault::{Access, Reason, Record, Space};
//! use skua_spec::number::{Asid, EngineIndex};
//!
//! // The third record: a page that is not there, which a COPY wanted to write to.
//! let record = Record {
//!     engine: EngineIndex::ALL[1],
//!     reason: Reason::NotPresent,
//!     asid: Asid(7),
//!     context_id: 3,
//!     access: Access::Write,
//!     detail: 0,
//!     space: Space::Virtual,
//!     address: 0x7f00_0000_0000,
//!     fence: 12,
//!     command: 0x10_0000,
//!     pc: Record::NO_PC,
//! };
//! let words = record.to_words(2);
//! assert_eq!(Record::from_words(words), Some((record, 2)));
//! ```

use super::layout;
use super::number::{Asid, EngineIndex};

/// Why an engine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Reason {
    /// The ring's base, size, tail or the doorbell's value breaks the rules of section 2.
    BadRing = 1,
    /// The opcode is not one of section 7, or not one that this engine has.
    BadOpcode = 2,
    /// The length does not fit the opcode, or runs over the end of the buffer or ring.
    BadLength = 3,
    /// A flag or reserved bit is set that has no meaning.
    BadFlags = 4,
    /// The command may stand in the ring only.
    Privileged = 5,
    /// An operand is out of its range: a size, a count, an address that wraps.
    BadOperand = 6,
    /// An address, offset or size is not aligned as the command or instruction needs.
    Misaligned = 7,
    /// The address is beyond 48 bits, or in neither window of the GPU-physical space.
    AddressRange = 8,
    /// No valid entry translates the address; `detail` is the level.
    NotPresent = 9,
    /// A write or atomic access through an entry without the write bit.
    ReadOnly = 10,
    /// A valid entry breaks the rules of section 5; `detail` is the level.
    BadEntry = 11,
    /// Nothing answered at the bus address, or the entry points outside VRAM.
    BusError = 12,
    /// The context descriptor breaks the rules of section 6.
    BadContext = 13,
    /// The program has an instruction that section 9 does not define, reached or not; `pc` tells
    /// which.
    BadInstruction = 14,
    /// Control left the program; `pc` tells where to.
    PcRange = 15,
    /// An access to shared memory outside what the dispatch asked for.
    SharedRange = 16,
    /// An argument that the dispatch did not give; `detail` is its index.
    ArgumentRange = 17,
    /// The program executed TRAP; `detail` is its code.
    Trap = 18,
    /// The context's save area has no image; or a packet is to resume, and it has no state of its
    /// buffer.
    BadSave = 19,
    /// An index of a DRAW names a vertex that there is not; `detail` is the index.
    BadIndex = 20,
}

impl Reason {
    /// In the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::BadRing,
        Self::BadOpcode,
        Self::BadLength,
        Self::BadFlags,
        Self::Privileged,
        Self::BadOperand,
        Self::Misaligned,
        Self::AddressRange,
        Self::NotPresent,
        Self::ReadOnly,
        Self::BadEntry,
        Self::BusError,
        Self::BadContext,
        Self::BadInstruction,
        Self::PcRange,
        Self::SharedRange,
        Self::ArgumentRange,
        Self::Trap,
        Self::BadSave,
        Self::BadIndex,
    ];

    /// The reason with this number.
    pub fn from_u32(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|r| *r as u32 == value)
    }
}

/// What the engine wanted to do at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Access {
    /// No memory access was under way.
    None = 0,
    /// A load or the source of a copy.
    Read = 1,
    /// A store, the destination of a copy or fill, or a fence.
    Write = 2,
    /// An atomic read-modify-write.
    Atomic = 3,
    /// Fetching commands, descriptors or programs.
    Fetch = 4,
}

impl Access {
    /// The access with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::None,
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::Atomic,
            4 => Self::Fetch,
            _ => return None,
        })
    }
}

/// Which kind of address a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Space {
    /// There is no address: the access is [`Access::None`].
    None = 0,
    /// Virtual, in the address space that the record names.
    Virtual = 1,
    /// GPU-physical: commands in the ring and what they name, context descriptors.
    GpuPhysical = 2,
}

impl Space {
    /// The kind with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::None,
            1 => Self::Virtual,
            2 => Self::GpuPhysical,
            _ => return None,
        })
    }
}

/// A fault record: 64 bytes, eight little-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which one stopped, until it is reset.
    pub engine: EngineIndex,
    /// Tells what [`Self::detail`] means.
    pub reason: Reason,
    /// Address space: the context's, or [`Asid::SYSTEM`] for the ring itself.
    pub asid: Asid,
    /// The context's number; 0 for the ring itself.
    pub context_id: u32,
    /// [`Access::None`]: `address` says nothing.
    pub access: Access,
    /// More about the reason; 0 where the reason says nothing of it.
    pub detail: u32,
    /// Kind of the address.
    pub space: Space,
    /// The address accessed, as `space` says; 0 if `access` is none.
    pub address: u64,
    /// Fence id of the packet that was running; 0 if none.
    pub fence: u64,
    /// Address of the command: offset in the ring where `asid` is 0 or `space` is GPU-physical,
    /// virtual in a buffer otherwise; [`Self::NO_COMMAND`] where a save area could not be accessed.
    pub command: u64,
    /// Index of the instruction, or [`Record::NO_PC`].
    pub pc: u32,
}

impl Record {
    /// Bytes of a record.
    pub const SIZE: u64 = 64;
    /// `command` where no command is at fault.
    pub const NO_COMMAND: u64 = u64::MAX;
    /// `pc` where no program was running.
    pub const NO_PC: u32 = u32::MAX;

    /// The record as it stands in memory. `number` is the count of records before it, modulo 2^32.
    pub const fn to_words(self, number: u32) -> [u64; 8] {
        RecordWords::new()
            .with_engine(self.engine.get())
            .with_reason(self.reason as u32)
            .with_asid(self.asid.0 as u32)
            .with_context_id(self.context_id)
            .with_access(self.access as u32)
            .with_detail(self.detail)
            .with_address(self.address)
            .with_fence(self.fence)
            .with_command(self.command)
            .with_pc(self.pc)
            .with_space(self.space as u32)
            .with_number(number)
            .0
    }

    /// The record in `words` and its number, or `None` where a field has no meaning.
    pub fn from_words(words: [u64; 8]) -> Option<(Self, u32)> {
        let words = RecordWords(words);
        if words.reserved() != 0 {
            return None;
        }
        let record = Self {
            engine: EngineIndex::new(words.engine())?,
            reason: Reason::from_u32(words.reason())?,
            asid: Asid::try_from(words.asid()).ok()?,
            context_id: words.context_id(),
            access: Access::from_u32(words.access())?,
            detail: words.detail(),
            space: Space::from_u32(words.space())?,
            address: words.address(),
            fence: words.fence(),
            command: words.command(),
            pc: words.pc(),
        };
        Some((record, words.number()))
    }
}

layout! {
    Record,
    /// A record as it stands in memory, whatever its fields hold.
    RecordWords[8] {
        /// See [`Record::engine`].
        ENGINE(4) @ 0x00 engine, with_engine;
        /// See [`Record::reason`].
        REASON(4) @ 0x04 reason, with_reason;
        /// See [`Record::asid`].
        ASID(4) @ 0x08 asid, with_asid;
        /// See [`Record::context_id`].
        CONTEXT_ID(4) @ 0x0c context_id, with_context_id;
        /// See [`Record::access`].
        ACCESS(4) @ 0x10 access, with_access;
        /// See [`Record::detail`].
        DETAIL(4) @ 0x14 detail, with_detail;
        /// See [`Record::address`].
        ADDRESS(8) @ 0x18 address, with_address;
        /// See [`Record::fence`].
        FENCE(8) @ 0x20 fence, with_fence;
        /// See [`Record::command`].
        COMMAND(8) @ 0x28 command, with_command;
        /// See [`Record::pc`].
        PC(4) @ 0x30 pc, with_pc;
        /// See [`Record::space`].
        SPACE(4) @ 0x34 space, with_space;
        /// Number of the record, from 0, modulo 2^32.
        NUMBER(4) @ 0x38 number, with_number;
        /// Zero.
        RESERVED(4) @ 0x3c reserved, with_reserved;
    }
}
