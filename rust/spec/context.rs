// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The context descriptor, a context's queue, and its image (manual section 6).
//!
//! What an engine must know to run a buffer for a process. It lies at a GPU-physical address that
//! is a multiple of [`Descriptor::SIZE`]; [`super::command::Command::Exec`] and
//! [`super::command::Command::Run`] name it. The engine reads the identity when it starts the
//! packet and adds the ticks and the count when it ends it; the driver changes the identity only
//! while no packet that names the descriptor is in a ring, and no engine holds the context.
//!
//! A context can have a [`Queue`] of packets, each a [`Buffer`], which RUN has an engine take in
//! order. A packet stays there until it has ended, however often it is preempted.
//!
//! The context's save area begins with its [`Image`], which an engine loads when it begins a packet
//! of a context that it does not hold, and writes when it leaves the one that it holds. Behind it a
//! packet that is preempted (section 11) leaves its state.
//!
//! # Examples
//!
//! ```
//! use skua_spec::address::GpuPhys;
//! use skua_spec::context::Descriptor;
//! use skua_spec::mmu::{Entry, Target};
//! use skua_spec::number::Asid;
//!
//! let descriptor = Descriptor {
//!     root: Entry::table(Target::Vram(GpuPhys(0x8_0000_0000_1000))),
//!     asid: Asid(7),
//!     context_id: 3,
//!     save: None,
//! };
//! let words = descriptor.to_words();
//! assert_eq!(words[1], 0x3_0000_0007);
//! assert_eq!(Descriptor::from_words(words), Some(descriptor));
//! // The system's address space is no process'.
//! let system = Descriptor { asid: Asid::SYSTEM, ..descriptor };
//! assert_eq!(Descriptor::from_words(system.to_words()), None);
//! ```

use super::address::{GpuPhys, GpuVa, PAGE_SIZE};
use super::bits::{hi, lo, pair, wide};
use super::fault::Reason;
use super::mmu::Entry;
use super::number::Asid;

/// Bytes of a context's [`Image`]; the state of a preempted packet follows.
pub const IMAGE_SIZE: u32 = 256;
/// What an image begins with. The driver writes it once, and zeroes the rest.
pub const IMAGE_FORMAT: u32 = 0x534b_5541;
/// Registers of a context, of 64 bits each.
pub const REGISTERS: u32 = 16;

/// The part of a context descriptor that the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Root table, see [`Entry::table`].
    pub root: Entry,
    /// Address space that tags the translations; not [`Asid::SYSTEM`].
    pub asid: Asid,
    /// Chosen by the driver; repeated in fault records.
    pub context_id: u32,
    /// Without one its packets are preempted at their ends only.
    pub save: Option<SaveArea>,
}

/// Where the context's image is, and the state of a preempted packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveArea {
    /// In the context's address space: a multiple of 4096, not 0.
    pub base: GpuVa,
    /// At least [`SAVE_SIZE`](struct@super::regs::SAVE_SIZE).
    pub bytes: u32,
}

impl Descriptor {
    /// Bytes of a descriptor, and its alignment.
    pub const SIZE: u64 = 64;
    /// Offset of the root table's entry, 8 bytes.
    pub const ROOT: u64 = 0x00;
    /// Offset of the address space identifier, 4 bytes, of which the upper two are zero.
    pub const ASID: u64 = 0x08;
    /// Offset of the context's number, 4 bytes.
    pub const CONTEXT_ID: u64 = 0x0c;
    /// Offset of the save area's virtual address, 8 bytes; 0 if there is none.
    pub const SAVE_BASE: u64 = 0x10;
    /// Offset of the save area's bytes, 4 bytes.
    pub const SAVE_SIZE: u64 = 0x18;
    /// Offset of the queue's tail, 4 bytes: how many packets the driver has put there, modulo 2^32.
    /// Without a queue it is 0.
    pub const TAIL: u64 = 0x1c;
    /// Offset of the engine time that packets of this context used, in ticks, 8 bytes. Written by
    /// the engine.
    pub const TICKS: u64 = 0x20;
    /// Offset of the number of packets that ended, 8 bytes: modulo 2^32 the queue's head. Written
    /// by the engine.
    pub const PACKETS: u64 = 0x28;
    /// Offset of the bytes of the state in the save area, 4 bytes; 0 if there is none. Written by
    /// the engine, with 4 bytes of zero behind it.
    pub const SAVED: u64 = 0x30;
    /// Offset of the [`Queue`], 8 bytes; 0 if there is none.
    pub const QUEUE: u64 = 0x38;

    /// The first 32 bytes of the descriptor, which the driver writes, as little-endian words; the
    /// rest starts as zero, but for the queue.
    pub const fn to_words(self) -> [u64; 4] {
        let (base, bytes) = match self.save {
            Some(area) => (area.base.0, area.bytes),
            None => (0, 0),
        };
        let identity = pair(self.asid.0 as u32, self.context_id);
        [self.root.0, identity, base, wide(bytes)]
    }

    /// The descriptor in `words` (the first 32 bytes), or `None` where the manual forbids it: the
    /// root is not valid or malformed, the identifier is the system's or wider than 16 bits, one of
    /// the save area's base and size is zero and the other is not, the base is not aligned, or the
    /// tail, which the words of a context with a queue are to be given without, is not zero. How
    /// large the area is, and where it may lie, the device knows.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        let root = Entry(words[0]);
        let asid = Asid::try_from(lo(words[1])).ok()?;
        if !root.is_valid()
            || root.is_malformed(super::mmu::ROOT_LEVEL)
            || asid == Asid::SYSTEM
            || words[2] % PAGE_SIZE != 0
            || (words[2] == 0) != (words[3] == 0)
            || hi(words[3]) != 0
        {
            return None;
        }
        let area = SaveArea {
            base: GpuVa(words[2]),
            bytes: lo(words[3]),
        };
        Some(Self {
            root,
            asid,
            context_id: hi(words[1]),
            save: (words[2] != 0).then_some(area),
        })
    }
}

/// Where a context's packets are until they have ended: a ring of places for them, of which the
/// packet with number `n` has place `n` modulo their count.
///
/// # Examples
///
/// ```
/// use skua_spec::address::GpuPhys;
/// use skua_spec::context::Queue;
///
/// let queue = Queue { base: GpuPhys(0x8_0000_0002_0040), packets: 16 };
/// assert_eq!(queue.to_word(), 0x8_0000_0002_0044);
/// assert_eq!(Queue::from_word(queue.to_word()), Some(queue));
/// // Numbers go on behind the last place.
/// assert_eq!(queue.place(17), Some(GpuPhys(0x8_0000_0002_0050)));
/// assert_eq!(Queue::from_word(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Of the first place: a multiple of 64.
    pub base: GpuPhys,
    /// Places, a power of two from 2 to 2^15.
    pub packets: u32,
}

impl Queue {
    /// Low bits of the word, which the base has not.
    const PACKETS_LOG2: u64 = 0x3f;

    /// The queue as the descriptor has it: log2 of the places in bits 5:0, the base above.
    pub const fn to_word(self) -> u64 {
        // CAST: at most 32.
        self.base.0 | self.packets.trailing_zeros() as u64
    }

    /// The queue in the descriptor's `word`, if there is one of a size that there may be.
    pub const fn from_word(word: u64) -> Option<Self> {
        match word & Self::PACKETS_LOG2 {
            log2 @ 1..=15 => Some(Self {
                base: GpuPhys(word & !Self::PACKETS_LOG2),
                packets: 1 << log2,
            }),
            _ => None,
        }
    }

    /// Where packet `number` is; `None` if that is no address.
    pub fn place(&self, number: u32) -> Option<GpuPhys> {
        let place = number & (self.packets - 1);
        self.base.checked_add(u64::from(place) * Buffer::SIZE)
    }
}

/// A packet of a queue: the buffer to be run, in the context's address space.
///
/// # Examples
///
/// ```
/// use skua_spec::address::GpuVa;
/// use skua_spec::context::Buffer;
/// use skua_spec::fault::Reason;
///
/// let buffer = Buffer { base: GpuVa(0x10_0000), start: 8, end: 0x48 };
/// assert_eq!(buffer.to_words(), [0x10_0000, 0x48_0000_0008]);
/// assert_eq!(Buffer::from_words(buffer.to_words()), Ok(buffer));
/// assert_eq!(Buffer::from_words([0x10_0000, 8]), Err(Reason::BadOperand));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// A multiple of 8.
    pub base: GpuVa,
    /// Offset of the first command, a multiple of 8.
    pub start: u32,
    /// Offset behind the last command, a multiple of 8, not below `start`; with the base it does
    /// not wrap.
    pub end: u32,
}

impl Buffer {
    /// Bytes of a packet in a queue.
    pub const SIZE: u64 = 16;

    /// The packet as it stands in memory, as little-endian words.
    pub const fn to_words(self) -> [u64; 2] {
        [self.base.0, pair(self.start, self.end)]
    }

    /// The packet in `words`.
    ///
    /// # Errors
    ///
    /// As of [`Self::check`].
    pub fn from_words(words: [u64; 2]) -> Result<Self, Reason> {
        let buffer = Self {
            base: GpuVa(words[0]),
            start: lo(words[1]),
            end: hi(words[1]),
        };
        buffer.check().map(|()| buffer)
    }

    /// Whether it is as the manual wants it.
    ///
    /// # Errors
    ///
    /// [`Reason::BadOperand`], [`Reason::Misaligned`].
    pub fn check(&self) -> Result<(), Reason> {
        if self.start > self.end {
            return Err(Reason::BadOperand);
        }
        if (u64::from(self.start | self.end) | self.base.0) % 8 != 0 {
            return Err(Reason::Misaligned);
        }
        match self.base.0.checked_add(self.end.into()) {
            Some(_) => Ok(()),
            None => Err(Reason::BadOperand),
        }
    }
}

/// What of a context is in memory while no engine holds it.
///
/// ```
/// use skua_spec::context::{Image, IMAGE_FORMAT};
///
/// let image = Image { left: 3, ticks: 1000, registers: [7; 16] };
/// let words = image.to_words();
/// assert_eq!((words[0], words[1]), (IMAGE_FORMAT.into(), 3));
/// assert_eq!(Image::from_words(words), Some(image));
/// // One that the driver has not made.
/// assert_eq!(Image::from_words([0; Image::WORDS]), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// How often an engine has left the context, modulo 2^64.
    pub left: u64,
    /// The time of the engine that left it last, in its ticks.
    pub ticks: u64,
    /// What the packets that ended have left in them.
    pub registers: [u64; REGISTERS as usize],
}

impl Image {
    /// Offset of [`IMAGE_FORMAT`], 4 bytes.
    pub const FORMAT: u64 = 0x00;
    /// Offset of [`Self::left`], 8 bytes.
    pub const LEFT: u64 = 0x08;
    /// Offset of [`Self::ticks`], 8 bytes.
    pub const TICKS: u64 = 0x10;
    /// Offset of the registers, 8 bytes each.
    pub const REGISTERS: u64 = 0x40;
    /// Little-endian words of an image.
    pub const WORDS: usize = IMAGE_SIZE as usize / 8;

    /// The image as it stands in memory.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[0] = wide(IMAGE_FORMAT);
        (words[1], words[2]) = (self.left, self.ticks);
        words[8..8 + REGISTERS as usize].copy_from_slice(&self.registers);
        words
    }

    /// The image in `words`, or `None` if it is none. What has no meaning is ignored.
    pub fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        if lo(words[0]) != IMAGE_FORMAT {
            return None;
        }
        let mut registers = [0; REGISTERS as usize];
        registers.copy_from_slice(&words[8..8 + REGISTERS as usize]);
        Some(Self {
            left: words[1],
            ticks: words[2],
            registers,
        })
    }
}
