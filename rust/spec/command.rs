// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands (manual section 7).
//!
//! A command is an even number of 32-bit little-endian words that starts at a multiple of 8 bytes.
//! Word 0 is the header: opcode in bits 31:24, flags in 23:16, length in words, header included, in
//! 15:0. Reserved words and flags are zero. A 64-bit operand is a pair of words, low half first.
//!
//! The same commands stand in two places. In an engine's **ring** they come from the driver and
//! their addresses are GPU-physical ([`super::address::GpuPhys`]). In a **buffer**, which EXEC in
//! the ring names, or a packet of the queue that RUN names, they come from userspace, and addresses
//! are virtual ([`super::address::GpuVa`]).
//! A command that may stand in one of the two only is a fault in the other.
//!
//! | opcode | command | words | only in a |
//! |---|---|---|---|
//! | 0x00 | NOP | any even | |
//! | 0x01 | FILL | 6 | |
//! | 0x02 | COPY | 8 | |
//! | 0x03 | COPY_2D | 10 | |
//! | 0x10 | DISPATCH (graphics/compute engine) | 12 + arguments | |
//! | 0x11 | DRAW (graphics/compute engine) | 18 + arguments | |
//! | 0x20 | WAIT | 6 | |
//! | 0x21 | SIGNAL | 6 | |
//! | 0x22 | SET_REGISTER | 4 | buffer |
//! | 0x23 | STORE_REGISTER | 4 | buffer |
//! | 0x30 | FLUSH_TLB | 2 | ring |
//! | 0x31 | FLUSH_CACHE | 2 | |
//! | 0x32 | INVALIDATE | 2 | ring |
//! | 0x40 | EXEC | 10 | ring |
//! | 0x41 | FENCE | 4 | ring |
//! | 0x42 | RUN | 6 | ring |
//!
//! # Examples
//!
//! ```
//! use skua_spec::command::Command;
//! use skua_spec::fault::Reason;
//!
//! let fence = Command::Fence { fence: 5, interrupt: true };
//! let encoded = fence.encode();
//! assert_eq!(encoded.words(), [0x4102_0004, 0, 5, 0]);
//! assert_eq!(Command::decode(encoded.words()), Ok((fence, 4)));
//! assert!(fence.opcode().is_ring_only());
//!
//! // A reserved word that is not zero.
//! assert_eq!(Command::decode(&[0x4102_0004, 1, 5, 0]), Err(Reason::BadFlags));
//! ```

use super::address::GpuVa;
use super::bits::{self, hi, lo};
use super::context::{Buffer, Descriptor, REGISTERS};
use super::fault::Reason;
use super::number::Asid;
use super::register::{Access, Field};
use super::regs::INVALIDATE;

/// Kind of an engine, as in [`super::regs::engine::INFO::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EngineKind {
    /// Graphics and compute: all commands.
    Compute = 0,
    /// Copy and paging: all commands but DISPATCH and DRAW.
    Copy = 1,
}

impl EngineKind {
    /// The kind with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Compute),
            1 => Some(Self::Copy),
            _ => None,
        }
    }
}

/// Flag of EXEC and RUN: write the fence id to the status page at the end.
pub const FLAG_FENCE: u8 = 1 << 0;
/// Flag of EXEC, RUN and FENCE: raise the engine's interrupt at the end. In the first two only
/// together with [`FLAG_FENCE`].
pub const FLAG_INTERRUPT: u8 = 1 << 1;
/// Flag of EXEC and RUN: go on where the buffer was preempted.
pub const FLAG_RESUME: u8 = 1 << 2;
/// Flag of EXEC: run nothing, and leave the context that the engine holds.
pub const FLAG_SWITCH: u8 = 1 << 3;
/// Flag of DRAW: vertices are named by indices.
pub const FLAG_INDEXED: u8 = 1 << 0;

/// Words of the longest command but NOP.
pub const MAX_WORDS: usize = DISPATCH_WORDS + MAX_ARGUMENTS;
/// Words of DISPATCH without arguments.
pub const DISPATCH_WORDS: usize = 12;
/// Most arguments of DISPATCH.
pub const MAX_ARGUMENTS: usize = 32;
/// Words of DRAW without arguments.
pub const DRAW_WORDS: usize = 18;
/// Most arguments of DRAW.
pub const MAX_DRAW_ARGUMENTS: usize = MAX_WORDS - DRAW_WORDS;
/// Most attributes of a vertex.
pub const MAX_ATTRIBUTES: u32 = 8;
/// Most triangles of a DRAW.
pub const MAX_TRIANGLES: u32 = (1 << 24) - 1;
/// Parts of a pixel in a vertex' coordinates.
pub const SUBPIXELS: u32 = 256;
/// Most bytes of a program.
pub const MAX_PROGRAM: u32 = 64 * 1024;
/// Most threads of a group.
pub const MAX_GROUP_THREADS: u32 = 1024;
/// Threads of a wave: those that one instruction is issued for.
pub const WAVE_THREADS: u32 = 32;
/// Most bytes of a group's shared memory.
pub const MAX_SHARED: u32 = 32 * 1024;
/// Bytes that FILL and COPY move in one tick, all of them in VRAM.
pub const BYTES_PER_TICK: u64 = 64;
/// Bytes that an engine moves at most before it looks for a reset or an invalidation.
pub const TRANSFER_CHUNK: u64 = 64 * 1024;

word! {
    /// Word 0 of a command.
    Header(32) {
        /// Which command: an [`Opcode`], if it is any.
        31:24 opcode, with_opcode => u8;
        /// Such as [`FLAG_FENCE`].
        23:16 flags, with_flags => u8;
        /// Words of the command, the header included.
        15:0 words, with_words => u16;
    }
}

word! {
    /// A corner of DRAW's scissor.
    Point(32) {
        /// Row.
        31:16 y, with_y => u16;
        /// Column.
        15:0 x, with_x => u16;
    }
}

/// The first of a [`Header`]'s fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// See [`Command::Nop`].
    Nop = 0x00,
    /// See [`Command::Fill`].
    Fill = 0x01,
    /// See [`Command::Copy`].
    Copy = 0x02,
    /// See [`Command::Copy2d`].
    Copy2d = 0x03,
    /// See [`Command::Dispatch`].
    Dispatch = 0x10,
    /// See [`Command::Draw`].
    Draw = 0x11,
    /// See [`Command::Wait`].
    Wait = 0x20,
    /// See [`Command::Signal`].
    Signal = 0x21,
    /// See [`Command::SetRegister`].
    SetRegister = 0x22,
    /// See [`Command::StoreRegister`].
    StoreRegister = 0x23,
    /// See [`Command::FlushTlb`].
    FlushTlb = 0x30,
    /// See [`Command::FlushCache`].
    FlushCache = 0x31,
    /// See [`Command::Invalidate`].
    Invalidate = 0x32,
    /// See [`Command::Exec`] and [`Command::Switch`].
    Exec = 0x40,
    /// See [`Command::Fence`].
    Fence = 0x41,
    /// See [`Command::Run`].
    Run = 0x42,
}

impl Opcode {
    /// In the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Nop,
        Self::Fill,
        Self::Copy,
        Self::Copy2d,
        Self::Dispatch,
        Self::Draw,
        Self::Wait,
        Self::Signal,
        Self::SetRegister,
        Self::StoreRegister,
        Self::FlushTlb,
        Self::FlushCache,
        Self::Invalidate,
        Self::Exec,
        Self::Fence,
        Self::Run,
    ];

    /// The opcode with this number.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|o| *o as u8 == value)
    }

    /// Whether the command may stand in the ring only.
    pub const fn is_ring_only(self) -> bool {
        matches!(
            self,
            Self::FlushTlb | Self::Invalidate | Self::Exec | Self::Fence | Self::Run
        )
    }

    /// Whether the command may stand in a buffer only: the ring does not have its opcode.
    pub const fn is_buffer_only(self) -> bool {
        matches!(self, Self::SetRegister | Self::StoreRegister)
    }

    /// Whether the command runs a program, which a copy engine cannot.
    pub const fn has_program(self) -> bool {
        matches!(self, Self::Dispatch | Self::Draw)
    }

    /// Flags that have a meaning.
    const fn flags(self) -> u8 {
        match self {
            Self::Exec => FLAG_FENCE | FLAG_INTERRUPT | FLAG_RESUME | FLAG_SWITCH,
            Self::Run => FLAG_FENCE | FLAG_INTERRUPT | FLAG_RESUME,
            Self::Fence => FLAG_INTERRUPT,
            Self::Draw => FLAG_INDEXED,
            _ => 0,
        }
    }
}

/// A launch of a compute program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Address of the program, a multiple of 8.
    pub program: u64,
    /// Bytes of the program: a multiple of 8, 8 to [`MAX_PROGRAM`].
    pub program_bytes: u32,
    /// Bytes of shared memory of each group, 0 to [`MAX_SHARED`]; zero when a group starts.
    pub shared_bytes: u32,
    /// Groups in x, y and z, each 1 to 65535.
    pub groups: [u32; 3],
    /// Threads of a group in x, y and z, at least 1 each, at most [`MAX_GROUP_THREADS`] together.
    pub threads: [u32; 3],
    /// Arguments; those beyond `argument_count` are zero.
    pub arguments: [u32; MAX_ARGUMENTS],
    /// How many arguments there are: even, 0 to [`MAX_ARGUMENTS`].
    pub argument_count: usize,
}

/// What becomes of a colour and the one that the target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Blend {
    /// The new one takes the place of the old one, which is not read.
    #[default]
    Replace = 0,
    /// The new one covers the old one as far as its alpha says.
    Over = 1,
    /// Their sum, at most 255 in each channel.
    Add = 2,
}

impl Blend {
    /// The mode with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Replace,
            1 => Self::Over,
            2 => Self::Add,
            _ => return None,
        })
    }
}

/// A rectangle of pixels; `right` and `bottom` are the first ones outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rectangle {
    /// First column.
    pub left: u16,
    /// First row.
    pub top: u16,
    /// Column behind the last one, above `left`.
    pub right: u16,
    /// Row behind the last one, above `top`.
    pub bottom: u16,
}

/// Triangles, and a program for each pixel of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Address of the program, a multiple of 8.
    pub program: u64,
    /// Bytes of the program: a multiple of 8, 8 to [`MAX_PROGRAM`].
    pub program_bytes: u32,
    /// How what the program computes gets into the target.
    pub blend: Blend,
    /// Words of a vertex behind its x and y, 0 to [`MAX_ATTRIBUTES`].
    pub attributes: u32,
    /// Address of the vertices, a multiple of 4.
    pub vertices: u64,
    /// How many vertices there are; without indices, three for each triangle at least.
    pub vertex_count: u32,
    /// Triangles, 1 to [`MAX_TRIANGLES`].
    pub triangles: u32,
    /// Address of three indices for each triangle, a multiple of 4; `None`: the vertices follow
    /// each other.
    pub indices: Option<u64>,
    /// Address of the pixel in column 0 of row 0, a multiple of 4.
    pub target: u64,
    /// Bytes from a row of the target to the next: a multiple of 4.
    pub pitch: u32,
    /// The pixels that may be drawn; a row of the target has all of its columns.
    pub scissor: Rectangle,
    /// Arguments; those beyond `argument_count` are zero.
    pub arguments: [u32; MAX_DRAW_ARGUMENTS],
    /// How many arguments there are: even, 0 to [`MAX_DRAW_ARGUMENTS`].
    pub argument_count: usize,
}

impl Draw {
    /// Words of a vertex.
    pub const fn vertex_words(&self) -> u32 {
        2 + self.attributes
    }
}

/// A command with its operands. Addresses are GPU-physical in the ring and virtual in a buffer.
// A `Dispatch` or `Draw` is much larger than the rest; commands live on the stack for a moment
// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Does nothing; `words` is its length, header included.
    Nop {
        /// Words that the command takes: even, 2 to 65534.
        words: u16,
    },
    /// Writes a 32-bit pattern.
    Fill {
        /// What is written to every word.
        pattern: u32,
        /// Address of the first word that is written, a multiple of 4.
        address: u64,
        /// Bytes: a multiple of 4.
        bytes: u64,
    },
    /// Copies bytes. Where source and destination overlap, the destination holds afterwards what
    /// the source held before.
    Copy {
        /// Where from, of any alignment.
        source: u64,
        /// Where to, of any alignment; may overlap the source.
        destination: u64,
        /// May be 0, which does nothing.
        bytes: u64,
    },
    /// Copies `rows` rows of `bytes` bytes.
    Copy2d {
        /// Where the first row comes from.
        source: u64,
        /// Where the first row goes to.
        destination: u64,
        /// Bytes of a row.
        bytes: u32,
        /// Bytes from a row of the source to the next.
        source_pitch: u32,
        /// Bytes from a row of the destination to the next.
        destination_pitch: u32,
        /// May be 0, which does nothing.
        rows: u32,
    },
    /// Runs a compute program for every thread of every group, then goes on.
    Dispatch(Dispatch),
    /// Draws triangles, running a program for each pixel, then goes on.
    Draw(Draw),
    /// Waits until the 64-bit value at `address` is at least `value`, unsigned.
    Wait {
        /// A multiple of 8.
        address: u64,
        /// What memory must reach, unsigned.
        value: u64,
    },
    /// Writes the 64-bit `value` to `address` when all that stands before is done and visible.
    Signal {
        /// A multiple of 8.
        address: u64,
        /// The value that is written.
        value: u64,
    },
    /// Sets a register of the context.
    SetRegister {
        /// Below [`REGISTERS`].
        index: u32,
        /// What it holds from there on.
        value: u64,
    },
    /// Writes what a register of the context holds.
    StoreRegister {
        /// Below [`REGISTERS`].
        index: u32,
        /// Address that is written, a multiple of 8.
        address: u64,
    },
    /// Drops this engine's translations of one address space, or of all (`None`).
    FlushTlb {
        /// The address space; `None` is all of them.
        asid: Option<Asid>,
    },
    /// Drops what the engine keeps of programs, and orders the accesses before it before those
    /// behind it.
    FlushCache,
    /// Drops translations of one address space, or of all (`None`), in every engine, and ends when
    /// all have.
    Invalidate {
        /// `None`: all of them.
        asid: Option<Asid>,
    },
    /// Runs the commands of a buffer.
    Exec {
        /// GPU-physical address of the context descriptor.
        context: u64,
        /// Virtual address of the buffer, a multiple of 8.
        base: u64,
        /// Offset in the buffer of the first command, a multiple of 8.
        start: u32,
        /// Offset behind the last command, a multiple of 8, not below `start`.
        end: u32,
        /// Fence id; written at the end if `Some`.
        fence: Option<u64>,
        /// Raise the engine's interrupt after the fence was written.
        interrupt: bool,
        /// Go on where this buffer was when it was preempted, by the state in the context's save
        /// area.
        resume: bool,
    },
    /// EXEC of no context: leaves the one that the engine holds, if any.
    Switch {
        /// Fence id; written at the end if `Some`.
        fence: Option<u64>,
        /// Raise the engine's interrupt after the fence was written.
        interrupt: bool,
    },
    /// Runs the packet at the head of a context's queue.
    Run {
        /// GPU-physical address of the context descriptor.
        context: u64,
        /// What the packet has to be: how many of the queue ended before it, modulo 2^32.
        number: u32,
        /// Fence id; written at the end if `Some`.
        fence: Option<u64>,
        /// Raise the engine's interrupt after the fence was written.
        interrupt: bool,
        /// Go on where this packet was when it was preempted, by the state in the context's save
        /// area.
        resume: bool,
    },
    /// Writes a fence id, as EXEC does at its end, without running anything.
    Fence {
        /// What the status page then shows as completed.
        fence: u64,
        /// Raise the engine's interrupt after the fence was written.
        interrupt: bool,
    },
}

/// A command as it stands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The first `len` count.
    words: [u32; MAX_WORDS],
    /// Words of the command; a NOP may have more than the array.
    len: usize,
}

impl Encoded {
    /// The words of the command. A [`Command::Nop`] that is longer than the array is cut to it: its
    /// header still has the whole length, and the rest may hold anything.
    pub fn words(&self) -> &[u32] {
        self.words.get(..self.len).unwrap_or(&self.words)
    }
}

const fn pair(words: &[u32; MAX_WORDS], at: usize) -> u64 {
    bits::pair(words[at], words[at + 1])
}

/// Whose translations a command drops: of the form that the register has.
fn decode_target(word: u32) -> Result<Option<Asid>, Reason> {
    let request = INVALIDATE::from_bits(word.into());
    if request != INVALIDATE::of(request.target()) {
        return Err(Reason::BadOperand);
    }
    Ok(request.target())
}

impl Command {
    /// What its header begins with.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Nop { .. } => Opcode::Nop,
            Self::Fill { .. } => Opcode::Fill,
            Self::Copy { .. } => Opcode::Copy,
            Self::Copy2d { .. } => Opcode::Copy2d,
            Self::Dispatch(_) => Opcode::Dispatch,
            Self::Draw(_) => Opcode::Draw,
            Self::Wait { .. } => Opcode::Wait,
            Self::Signal { .. } => Opcode::Signal,
            Self::SetRegister { .. } => Opcode::SetRegister,
            Self::StoreRegister { .. } => Opcode::StoreRegister,
            Self::FlushTlb { .. } => Opcode::FlushTlb,
            Self::FlushCache => Opcode::FlushCache,
            Self::Invalidate { .. } => Opcode::Invalidate,
            Self::Exec { .. } | Self::Switch { .. } => Opcode::Exec,
            Self::Fence { .. } => Opcode::Fence,
            Self::Run { .. } => Opcode::Run,
        }
    }

    /// Encodes the command. Operands are not checked: what breaks a rule is found by the device.
    pub fn encode(&self) -> Encoded {
        let mut words = [0; MAX_WORDS];
        let mut flags = 0;
        let len = match *self {
            Self::Nop { words } => words as usize,
            Self::Fill {
                pattern,
                address,
                bytes,
            } => {
                words[1] = pattern;
                (words[2], words[3]) = (lo(address), hi(address));
                (words[4], words[5]) = (lo(bytes), hi(bytes));
                6
            }
            Self::Copy {
                source,
                destination,
                bytes,
            } => {
                (words[2], words[3]) = (lo(source), hi(source));
                (words[4], words[5]) = (lo(destination), hi(destination));
                (words[6], words[7]) = (lo(bytes), hi(bytes));
                8
            }
            Self::Copy2d {
                source,
                destination,
                bytes,
                source_pitch,
                destination_pitch,
                rows,
            } => {
                words[1] = bytes;
                (words[2], words[3]) = (lo(source), hi(source));
                (words[4], words[5]) = (lo(destination), hi(destination));
                words[6] = source_pitch;
                words[7] = destination_pitch;
                words[8] = rows;
                10
            }
            Self::Dispatch(ref d) => {
                words[1] = d.shared_bytes;
                (words[2], words[3]) = (lo(d.program), hi(d.program));
                words[4] = d.program_bytes;
                words[5..8].copy_from_slice(&d.groups);
                words[8..11].copy_from_slice(&d.threads);
                words[DISPATCH_WORDS..].copy_from_slice(&d.arguments);
                DISPATCH_WORDS + d.argument_count.min(MAX_ARGUMENTS)
            }
            Self::Draw(ref d) => {
                words[1] = d.blend as u32;
                (words[2], words[3]) = (lo(d.program), hi(d.program));
                (words[4], words[5]) = (d.program_bytes, d.attributes);
                (words[6], words[7]) = (lo(d.vertices), hi(d.vertices));
                (words[8], words[9]) = (d.vertex_count, d.triangles);
                if let Some(indices) = d.indices {
                    flags |= FLAG_INDEXED;
                    (words[10], words[11]) = (lo(indices), hi(indices));
                }
                (words[12], words[13]) = (lo(d.target), hi(d.target));
                words[14] = d.pitch;
                let point = |x: u16, y: u16| Point::new().with_x(x).with_y(y).word();
                words[16] = point(d.scissor.left, d.scissor.top);
                words[17] = point(d.scissor.right, d.scissor.bottom);
                words[DRAW_WORDS..].copy_from_slice(&d.arguments);
                DRAW_WORDS + d.argument_count.min(MAX_DRAW_ARGUMENTS)
            }
            Self::Wait { address, value } | Self::Signal { address, value } => {
                (words[2], words[3]) = (lo(address), hi(address));
                (words[4], words[5]) = (lo(value), hi(value));
                6
            }
            Self::SetRegister {
                index,
                value: operand,
            }
            | Self::StoreRegister {
                index,
                address: operand,
            } => {
                words[1] = index;
                (words[2], words[3]) = (lo(operand), hi(operand));
                4
            }
            Self::FlushTlb { asid } | Self::Invalidate { asid } => {
                words[1] = INVALIDATE::of(asid).word();
                2
            }
            Self::FlushCache => 2,
            Self::Exec {
                context,
                base,
                start,
                end,
                fence,
                interrupt,
                resume,
            } => {
                (words[2], words[3]) = (lo(context), hi(context));
                (words[4], words[5]) = (lo(base), hi(base));
                (words[6], words[7]) = (start, end);
                flags |= Self::end_flags(fence, interrupt, resume);
                let fence = fence.unwrap_or(0);
                (words[8], words[9]) = (lo(fence), hi(fence));
                10
            }
            Self::Switch { fence, interrupt } => {
                flags |= FLAG_SWITCH | Self::end_flags(fence, interrupt, false);
                let fence = fence.unwrap_or(0);
                (words[8], words[9]) = (lo(fence), hi(fence));
                10
            }
            Self::Run {
                context,
                number,
                fence,
                interrupt,
                resume,
            } => {
                words[1] = number;
                (words[2], words[3]) = (lo(context), hi(context));
                flags |= Self::end_flags(fence, interrupt, resume);
                let fence = fence.unwrap_or(0);
                (words[4], words[5]) = (lo(fence), hi(fence));
                6
            }
            Self::Fence { fence, interrupt } => {
                if interrupt {
                    flags |= FLAG_INTERRUPT;
                }
                (words[2], words[3]) = (lo(fence), hi(fence));
                4
            }
        };
        let header = Header::new().with_opcode(self.opcode() as u8);
        // CAST: at most 65535 for a NOP, and MAX_WORDS for the rest.
        words[0] = header.with_flags(flags).with_words(len as u16).word();
        Encoded {
            words,
            len: len.min(MAX_WORDS),
        }
    }

    /// Decodes the command at the start of `words`, and tells its length in words.
    ///
    /// All that can be told from the command alone is checked, in the order of manual section 7:
    /// opcode, length, flags, reserved words, operands. Whether the command may stand here, and
    /// whether its addresses translate, is for the engine to find.
    ///
    /// # Errors
    ///
    /// [`Reason::BadOpcode`], [`Reason::BadLength`] (also if `words` is shorter than the command),
    /// [`Reason::BadFlags`], [`Reason::BadOperand`], [`Reason::Misaligned`].
    pub fn decode(words: &[u32]) -> Result<(Self, usize), Reason> {
        let header = Header::of(*words.first().ok_or(Reason::BadLength)?);
        let opcode = Opcode::from_u8(header.opcode()).ok_or(Reason::BadOpcode)?;
        let (flags, len) = (header.flags(), usize::from(header.words()));
        let exact = match opcode {
            Opcode::Nop => len >= 2,
            Opcode::Fill | Opcode::Wait | Opcode::Signal | Opcode::Run => len == 6,
            Opcode::Copy => len == 8,
            Opcode::Copy2d | Opcode::Exec => len == 10,
            Opcode::Dispatch => (DISPATCH_WORDS..=MAX_WORDS).contains(&len),
            Opcode::Draw => (DRAW_WORDS..=MAX_WORDS).contains(&len),
            Opcode::FlushTlb | Opcode::FlushCache | Opcode::Invalidate => len == 2,
            Opcode::Fence | Opcode::SetRegister | Opcode::StoreRegister => len == 4,
        };
        if !exact || len % 2 != 0 || len > words.len() {
            return Err(Reason::BadLength);
        }
        if flags & !opcode.flags() != 0 {
            return Err(Reason::BadFlags);
        }
        if let Opcode::Nop = opcode {
            // CAST: `len` came from 16 bits.
            return Ok((Self::Nop { words: len as u16 }, len));
        }
        let mut w = [0; MAX_WORDS];
        w[..len].copy_from_slice(&words[..len]);
        Self::decode_operands(opcode, flags, &w, len).map(|c| (c, len))
    }

    fn decode_operands(
        opcode: Opcode,
        flags: u8,
        w: &[u32; MAX_WORDS],
        len: usize,
    ) -> Result<Self, Reason> {
        let reserved_word = match opcode {
            Opcode::Nop
            | Opcode::Fill
            | Opcode::SetRegister
            | Opcode::StoreRegister
            | Opcode::FlushTlb
            | Opcode::Invalidate
            | Opcode::Run => 0,
            Opcode::Copy2d => w[9],
            Opcode::Dispatch => w[11],
            Opcode::Draw if flags & FLAG_INDEXED == 0 => w[10] | w[11] | w[15],
            Opcode::Draw => w[15],
            _ => w[1],
        };
        if reserved_word != 0 {
            return Err(Reason::BadFlags);
        }
        let aligned = |value: u64, align: u64| {
            if value % align == 0 {
                Ok(value)
            } else {
                Err(Reason::Misaligned)
            }
        };
        let register = |index: u32| {
            if index < REGISTERS {
                Ok(index)
            } else {
                Err(Reason::BadOperand)
            }
        };
        let ends = |start: u64, bytes: u64| {
            start
                .checked_add(bytes)
                .map(|_| ())
                .ok_or(Reason::BadOperand)
        };
        Ok(match opcode {
            // CAST: `len` came from 16 bits.
            Opcode::Nop => Self::Nop { words: len as u16 },
            Opcode::Fill => {
                let (address, bytes) = (aligned(pair(w, 2), 4)?, aligned(pair(w, 4), 4)?);
                ends(address, bytes)?;
                Self::Fill {
                    pattern: w[1],
                    address,
                    bytes,
                }
            }
            Opcode::Copy => {
                let (source, destination, bytes) = (pair(w, 2), pair(w, 4), pair(w, 6));
                ends(source, bytes)?;
                ends(destination, bytes)?;
                Self::Copy {
                    source,
                    destination,
                    bytes,
                }
            }
            Opcode::Copy2d => {
                let (source, destination) = (pair(w, 2), pair(w, 4));
                let (bytes, source_pitch, destination_pitch, rows) = (w[1], w[6], w[7], w[8]);
                if rows > 1 && (source_pitch < bytes || destination_pitch < bytes) {
                    return Err(Reason::BadOperand);
                }
                // Below 2^32 * 2^32: cannot overflow.
                let last = u64::from(rows.saturating_sub(1));
                let span = |pitch: u32| last * u64::from(pitch) + u64::from(bytes);
                ends(source, span(source_pitch))?;
                ends(destination, span(destination_pitch))?;
                Self::Copy2d {
                    source,
                    destination,
                    bytes,
                    source_pitch,
                    destination_pitch,
                    rows,
                }
            }
            Opcode::Dispatch => Self::Dispatch(Self::decode_dispatch(w, len)?),
            Opcode::Draw => Self::Draw(Self::decode_draw(flags, w, len)?),
            Opcode::Wait => Self::Wait {
                address: aligned(pair(w, 2), 8)?,
                value: pair(w, 4),
            },
            Opcode::Signal => Self::Signal {
                address: aligned(pair(w, 2), 8)?,
                value: pair(w, 4),
            },
            Opcode::SetRegister => Self::SetRegister {
                index: register(w[1])?,
                value: pair(w, 2),
            },
            Opcode::StoreRegister => Self::StoreRegister {
                index: register(w[1])?,
                address: aligned(pair(w, 2), 8)?,
            },
            Opcode::FlushTlb => Self::FlushTlb {
                asid: decode_target(w[1])?,
            },
            Opcode::FlushCache => Self::FlushCache,
            Opcode::Invalidate => Self::Invalidate {
                asid: decode_target(w[1])?,
            },
            Opcode::Exec => {
                let (fence, interrupt) = Self::decode_end(flags, pair(w, 8))?;
                if flags & FLAG_SWITCH != 0 {
                    if flags & FLAG_RESUME != 0 || w[2..8].iter().any(|word| *word != 0) {
                        return Err(Reason::BadFlags);
                    }
                    return Ok(Self::Switch { fence, interrupt });
                }
                let buffer = Buffer {
                    base: GpuVa(pair(w, 4)),
                    start: w[6],
                    end: w[7],
                };
                buffer.check()?;
                Self::Exec {
                    context: aligned(pair(w, 2), Descriptor::SIZE)?,
                    base: buffer.base.0,
                    start: buffer.start,
                    end: buffer.end,
                    fence,
                    interrupt,
                    resume: flags & FLAG_RESUME != 0,
                }
            }
            Opcode::Fence => Self::Fence {
                fence: pair(w, 2),
                interrupt: flags & FLAG_INTERRUPT != 0,
            },
            Opcode::Run => {
                let (fence, interrupt) = Self::decode_end(flags, pair(w, 4))?;
                Self::Run {
                    context: aligned(pair(w, 2), Descriptor::SIZE)?,
                    number: w[1],
                    fence,
                    interrupt,
                    resume: flags & FLAG_RESUME != 0,
                }
            }
        })
    }

    /// The flags of EXEC and RUN that say how a packet begins and ends.
    const fn end_flags(fence: Option<u64>, interrupt: bool, resume: bool) -> u8 {
        let mut flags = 0;
        if fence.is_some() {
            flags |= FLAG_FENCE;
        }
        if interrupt {
            flags |= FLAG_INTERRUPT;
        }
        if resume {
            flags |= FLAG_RESUME;
        }
        flags
    }

    /// What EXEC and RUN do at a packet's end: the fence, whose operand is `id`, and the interrupt.
    fn decode_end(flags: u8, id: u64) -> Result<(Option<u64>, bool), Reason> {
        let fence = (flags & FLAG_FENCE != 0).then_some(id);
        let interrupt = flags & FLAG_INTERRUPT != 0;
        match fence {
            None if interrupt || id != 0 => Err(Reason::BadFlags),
            _ => Ok((fence, interrupt)),
        }
    }

    fn decode_dispatch(w: &[u32; MAX_WORDS], len: usize) -> Result<Dispatch, Reason> {
        let mut d = Dispatch {
            program: pair(w, 2),
            program_bytes: w[4],
            shared_bytes: w[1],
            groups: [w[5], w[6], w[7]],
            threads: [w[8], w[9], w[10]],
            arguments: [0; MAX_ARGUMENTS],
            argument_count: len - DISPATCH_WORDS,
        };
        d.arguments.copy_from_slice(&w[DISPATCH_WORDS..]);
        if d.program % 8 != 0 || d.program_bytes % 8 != 0 {
            return Err(Reason::Misaligned);
        }
        let in_range = (8..=MAX_PROGRAM).contains(&d.program_bytes)
            && d.shared_bytes <= MAX_SHARED
            && d.groups.iter().all(|g| (1..=0xffff).contains(g))
            && d.threads
                .iter()
                .all(|t| (1..=MAX_GROUP_THREADS).contains(t));
        // At most 2^30: cannot overflow.
        if !in_range || d.threads[0] * d.threads[1] * d.threads[2] > MAX_GROUP_THREADS {
            return Err(Reason::BadOperand);
        }
        if d.program.checked_add(d.program_bytes.into()).is_none() {
            return Err(Reason::BadOperand);
        }
        Ok(d)
    }

    fn decode_draw(flags: u8, w: &[u32; MAX_WORDS], len: usize) -> Result<Draw, Reason> {
        let (first, end) = (Point::of(w[16]), Point::of(w[17]));
        let (left, top, right, bottom) = (first.x(), first.y(), end.x(), end.y());
        let mut d = Draw {
            program: pair(w, 2),
            program_bytes: w[4],
            blend: Blend::Replace,
            attributes: w[5],
            vertices: pair(w, 6),
            vertex_count: w[8],
            triangles: w[9],
            indices: (flags & FLAG_INDEXED != 0).then_some(pair(w, 10)),
            target: pair(w, 12),
            pitch: w[14],
            scissor: Rectangle {
                left,
                top,
                right,
                bottom,
            },
            arguments: [0; MAX_DRAW_ARGUMENTS],
            argument_count: len - DRAW_WORDS,
        };
        d.arguments.copy_from_slice(&w[DRAW_WORDS..]);
        let indices = d.indices.unwrap_or(0);
        if d.program % 8 != 0
            || d.program_bytes % 8 != 0
            || (d.vertices | indices | d.target | u64::from(d.pitch)) % 4 != 0
        {
            return Err(Reason::Misaligned);
        }
        d.blend = Blend::from_u32(w[1]).ok_or(Reason::BadOperand)?;
        // None of these products can overflow: 24 and 32 bits by 2, 4 and 16.
        let corners = u64::from(d.triangles) * 3;
        let in_range = (8..=MAX_PROGRAM).contains(&d.program_bytes)
            && d.attributes <= MAX_ATTRIBUTES
            && (1..=MAX_TRIANGLES).contains(&d.triangles)
            && (d.indices.is_some() || corners <= d.vertex_count.into())
            && left < right
            && top < bottom
            && d.pitch >= u32::from(right) * 4;
        if !in_range {
            return Err(Reason::BadOperand);
        }
        let vertices = u64::from(d.vertex_count) * u64::from(d.vertex_words()) * 4;
        let rows = u64::from(d.pitch) * u64::from(bottom - 1) + u64::from(right) * 4;
        let ranges = [
            (d.program, d.program_bytes.into()),
            (d.vertices, vertices),
            (indices, corners * 4),
            (d.target, rows),
        ];
        if ranges
            .iter()
            .any(|(at, bytes)| at.checked_add(*bytes).is_none())
        {
            return Err(Reason::BadOperand);
        }
        Ok(d)
    }
}
