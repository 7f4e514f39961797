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
use super::bits;
use super::fault::Reason;
use super::layout;
use super::mmu::Entry;
use super::number::Asid;
use super::register::{Access, Field, Half};

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

    /// The first 32 bytes of the descriptor, which the driver writes, as little-endian words; the
    /// rest starts as zero, but for the queue.
    pub const fn to_words(self) -> [u64; 4] {
        let [root, ids, base, sizes, ..] = self.words().0;
        [root, ids, base, sizes]
    }

    /// All of the descriptor as it stands in memory at first, without a queue.
    pub const fn words(self) -> DescriptorWords {
        let (base, bytes) = match self.save {
            Some(area) => (area.base.0, area.bytes),
            None => (0, 0),
        };
        DescriptorWords::new()
            .with_root(self.root.0)
            .with_asid(self.asid.0 as u32)
            .with_context_id(self.context_id)
            .with_save_base(base)
            .with_save_size(bytes)
    }

    /// The descriptor in `words` (the first 32 bytes), or `None` where the manual forbids it: the
    /// root is not valid or malformed, the identifier is the system's or wider than 16 bits, one of
    /// the save area's base and size is zero and the other is not, the base is not aligned, or the
    /// tail, which the words of a context with a queue are to be given without, is not zero. How
    /// large the area is, and where it may lie, the device knows.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        let [root, ids, base, sizes] = words;
        let words = DescriptorWords([root, ids, base, sizes, 0, 0, 0, 0]);
        words.identity().filter(|_| words.tail() == 0)
    }
}

layout! {
    Descriptor,
    /// A descriptor as it stands in memory: little-endian words.
    DescriptorWords[8] {
        /// The root table's [`Entry`].
        ROOT(8) @ 0x00 root, with_root;
        /// Address space identifier, of which the upper two bytes are zero.
        ASID(4) @ 0x08 asid, with_asid;
        /// The context's number.
        CONTEXT_ID(4) @ 0x0c context_id, with_context_id;
        /// Virtual address of the save area; 0 if there is none.
        SAVE_BASE(8) @ 0x10 save_base, with_save_base;
        /// Bytes of the save area; 0 if there is none.
        SAVE_SIZE(4) @ 0x18 save_size, with_save_size;
        /// The queue's tail: how many packets the driver has put there, modulo 2^32. Without a
        /// queue it is 0.
        TAIL(4) @ 0x1c tail, with_tail;
        /// Engine time that packets of this context used, in ticks. Written by the engine.
        TICKS(8) @ 0x20 ticks, with_ticks;
        /// Packets that ended: modulo 2^32 the queue's head. Written by the engine.
        PACKETS(8) @ 0x28 packets, with_packets;
        /// Bytes of the state in the save area; 0 if there is none. Written by the engine, with 4
        /// bytes of zero behind it.
        SAVED(4) @ 0x30 saved, with_saved;
        /// The [`Queue`]; 0 if there is none.
        QUEUE(8) @ 0x38 queue, with_queue;
    }
}

impl DescriptorWords {
    /// What the driver has written there, but for tail and queue: see [`Descriptor::from_words`].
    pub fn identity(self) -> Option<Descriptor> {
        let root = Entry(self.root());
        let asid = Asid::try_from(self.asid()).ok()?;
        if !root.is_valid()
            || root.is_malformed(super::mmu::ROOT_LEVEL)
            || asid == Asid::SYSTEM
            || self.save_base() % PAGE_SIZE != 0
            || (self.save_base() == 0) != (self.save_size() == 0)
        {
            return None;
        }
        let area = SaveArea {
            base: GpuVa(self.save_base()),
            bytes: self.save_size(),
        };
        Some(Descriptor {
            root,
            asid,
            context_id: self.context_id(),
            save: (self.save_base() != 0).then_some(area),
        })
    }

    /// The queue's head: the packets that ended, modulo 2^32.
    pub const fn head(self) -> u32 {
        Half::Low.of(self.packets())
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

word! {
    /// [`Descriptor::QUEUE`].
    QueueWord(64) {
        /// GPU-physical address of the first place.
        63:6 base, with_base @=> GpuPhys;
        /// log2 of the places.
        5:0 log2, with_log2 => QueueLog2;
    }
}

/// Six bits of a [`QueueWord`]: log2 of the places, 1 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLog2(pub u8);

impl QueueLog2 {
    const BITS: u32 = 6;

    const fn from_bits(bits: u64) -> Self {
        // CAST: six bits.
        Self(bits as u8)
    }

    const fn into_bits(self) -> u64 {
        self.0 as u64
    }
}

impl Queue {
    /// The queue as the descriptor has it: log2 of the places in bits 5:0, the base above.
    pub const fn to_word(self) -> u64 {
        // CAST: at most 32.
        let log2 = QueueLog2(self.packets.trailing_zeros() as u8);
        QueueWord::new().with_base(self.base).with_log2(log2).bits()
    }

    /// The queue in the descriptor's `word`, if there is one of a size that there may be.
    pub const fn from_word(word: u64) -> Option<Self> {
        let word = QueueWord::from_bits(word);
        match word.log2() {
            QueueLog2(log2 @ 1..=15) => Some(Self {
                base: word.base(),
                packets: 1 << log2,
            }),
            QueueLog2(_) => None,
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
    /// Virtual address of the buffer, a multiple of 8.
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
        let words = BufferWords::new().with_base(self.base.0);
        words.with_start(self.start).with_end(self.end).0
    }

    /// The packet in `words`.
    ///
    /// # Errors
    ///
    /// As of [`Self::check`].
    pub fn from_words(words: [u64; 2]) -> Result<Self, Reason> {
        let words = BufferWords(words);
        let buffer = Self {
            base: GpuVa(words.base()),
            start: words.start(),
            end: words.end(),
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

layout! {
    Buffer,
    /// A packet as it stands in its place of a queue.
    BufferWords[2] {
        /// See [`Buffer::base`].
        BASE(8) @ 0x00 base, with_base;
        /// See [`Buffer::start`].
        START(4) @ 0x08 start, with_start;
        /// See [`Buffer::end`].
        END(4) @ 0x0c end, with_end;
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
    /// Little-endian words of an image.
    pub const WORDS: usize = IMAGE_SIZE as usize / 8;
    /// Which of them are the registers.
    const REGISTER_WORDS: core::ops::Range<usize> = {
        let first = Self::REGISTERS as usize / 8;
        first..first + REGISTERS as usize
    };

    /// The image as it stands in memory.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let words = ImageWords::new().with_format(IMAGE_FORMAT);
        let mut words = words.with_left(self.left).with_ticks(self.ticks).0;
        words[Self::REGISTER_WORDS].copy_from_slice(&self.registers);
        words
    }

    /// The image in `words`, or `None` if it is none. What has no meaning is ignored.
    pub fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        let view = ImageWords(words);
        if view.format() != IMAGE_FORMAT {
            return None;
        }
        let mut registers = [0; REGISTERS as usize];
        registers.copy_from_slice(&words[Self::REGISTER_WORDS]);
        Some(Self {
            left: view.left(),
            ticks: view.ticks(),
            registers,
        })
    }
}

layout! {
    Image,
    /// An image as it stands in memory.
    ImageWords[32] {
        /// [`IMAGE_FORMAT`].
        FORMAT(4) @ 0x00 format, with_format;
        /// See [`Image::left`].
        LEFT(8) @ 0x08 left, with_left;
        /// See [`Image::ticks`].
        TICKS(8) @ 0x10 ticks, with_ticks;
        /// See [`Image::registers`].
        REGISTERS(8 * 16) @ 0x40;
    }
}
