// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The context descriptor, and a context's image (manual section 6).
//!
//! What an engine must know to run a buffer for a process. It lies at a GPU-physical address that
//! is a multiple of [`Descriptor::SIZE`]; [`super::command::Command::Exec`] names it. The engine
//! reads the identity when it starts the packet and adds the ticks and the count when it ends it;
//! the driver changes the identity only while no packet that names the descriptor is in a ring, and
//! no engine holds the context.
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

use super::address::{GpuVa, PAGE_SIZE};
use super::bits::{hi, lo, pair, wide};
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
    /// Offset of the engine time that packets of this context used, in ticks, 8 bytes. Written by
    /// the engine.
    pub const TICKS: u64 = 0x20;
    /// Offset of the number of packets that ended, 8 bytes. Written by the engine.
    pub const PACKETS: u64 = 0x28;
    /// Offset of the bytes of the state in the save area, 4 bytes; 0 if there is none. Written by
    /// the engine, with 4 bytes of zero behind it.
    pub const SAVED: u64 = 0x30;

    /// The first 32 bytes of the descriptor, which the driver writes, as little-endian words; the
    /// rest starts as zero.
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
    /// reserved word is not zero. How large the area is, and where it may lie, the device knows.
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
