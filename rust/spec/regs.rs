// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers in BAR0 (manual section 2): the one table of them.
//!
//! All registers are 32 bits wide and are accessed whole and aligned; a 64-bit quantity is a pair
//! with the low half first. An access of another size or alignment, or to an offset that is not
//! listed, reads as zero, is ignored when written, and is counted
//! ([`super::status::Counter::BadRegisterAccess`]). Registers are for set-up, doorbells and reset
//! only: what a running system needs to read is in the status page ([`super::status`]).
//!
//! A register's name is that of the manual, and stands for two things: the type of its values, and
//! the constant that says where it is ([`Location`]). [`super::register`] tells how the table is
//! written.
//!
//! # Examples
//!
//! ```
//! use skua_spec::number::EngineIndex;
//! use skua_spec::register::{Access, Register, Reset};
//! use skua_spec::regs::{self, engine, DeviceRegister};
//!
//! // A value says its register: two accesses for a pair, the low half first.
//! let status = regs::STATUS::new().with_address(skua_spec::address::BusAddr(0x1_2345_6000));
//! let mut writes = Vec::new();
//! status.write(regs::Device, |offset, word| writes.push((offset, word)));
//! assert_eq!(writes, [(0x50, 0x2345_6000), (0x54, 1)]);
//!
//! // One register of each engine.
//! let engine = EngineIndex::ALL[1];
//! assert_eq!(engine::DOORBELL.of(engine), 0x111c);
//! assert!(engine::CTRL::from_bits(2).reset());
//!
//! // All that there is to say of a register, to be walked through.
//! let info = DeviceRegister::STATUS_CTRL.info();
//! assert_eq!((info.offset, info.access, info.reset), (0x58, Access::ReadWrite, Reset::Value(0)));
//! ```

#![expect(non_camel_case_types, reason = "the manual's names")]

use super::address::{BusAddr, GpuPhys};
use super::bits;
use super::number::{Asid, EngineIndex};
use super::register::{
    Access, Block, Field, Half, Info, Location, Readable, Register, Reset, Writable,
};

/// Major version that this specification describes; another major version is another manual.
pub const VERSION_MAJOR: u16 = 1;
/// Minor version that this specification describes; a higher minor version only adds.
pub const VERSION_MINOR: u16 = 8;

register! {
    /// The registers that the device has once.
    pub enum DeviceRegister of Device;

    /// Tells a Skua GPU: [`ID::SKUA`]. All ones if the device is gone.
    ID(32) @ 0x0000, ReadOnly, fixed {
        /// Four letters in memory order.
        31:0 letters, with_letters => u32;
    }

    /// Hardware version.
    VERSION(32) @ 0x0004, ReadOnly, fixed {
        /// Another one is another manual: [`VERSION_MAJOR`].
        31:16 major, with_major => u16;
        /// A higher one only adds: [`VERSION_MINOR`].
        15:0 minor, with_minor => u16;
    }

    /// Capabilities of the device.
    CAPS(32) @ 0x0008, ReadOnly, fixed {
        /// Number of engines, 1 to [`super::pci::MAX_ENGINES`].
        7:0 engines, with_engines => u8;
    }

    /// Capabilities of translation.
    MMU_CAPS(32) @ 0x000c, ReadOnly, fixed {
        /// Bits of a GPU virtual address.
        7:0 va_bits, with_va_bits => u8;
        /// Bits of a bus address.
        15:8 bus_bits, with_bus_bits => u8;
        /// log2 of the number of address space identifiers.
        23:16 asid_bits, with_asid_bits => u8;
    }

    /// Size of VRAM.
    VRAM_SIZE(64) @ 0x0010, ReadOnly, fixed {
        /// Bytes, a multiple of 2 MiB.
        63:0 bytes, with_bytes => u64;
    }

    /// Where VRAM is for the GPU. It is not the bus address of BAR2.
    VRAM_BASE(64) @ 0x0018, ReadOnly, fixed {
        /// GPU-physical address of the first byte.
        63:0 address, with_address @=> GpuPhys;
    }

    /// What BAR2 shows of VRAM.
    VRAM_VISIBLE(64) @ 0x0020, ReadOnly, fixed {
        /// Bytes, from the start of VRAM: a power of two, or 0.
        63:0 bytes, with_bytes => u64;
    }

    /// Where the GART window is for the GPU.
    GART_BASE(64) @ 0x0028, ReadOnly, fixed {
        /// GPU-physical address of the first byte.
        63:0 address, with_address @=> GpuPhys;
    }

    /// Size of the GART window.
    GART_MAX_PAGES(32) @ 0x0030, ReadOnly, fixed {
        /// Pages of 4 KiB for which there can be entries, 65536 at most.
        31:0 pages, with_pages => u32;
    }

    /// Limits of DISPATCH.
    DISPATCH_CAPS(32) @ 0x0034, ReadOnly, fixed {
        /// Most threads of a group.
        15:0 group_threads, with_group_threads => u16;
        /// Threads of a wave.
        23:16 wave_threads, with_wave_threads => u8;
    }

    /// Limit of a group's shared memory.
    SHARED_CAPS(32) @ 0x0038, ReadOnly, fixed {
        /// Bytes, at most.
        31:0 bytes, with_bytes => u32;
    }

    /// Unit of engine time; the manual says what a tick is.
    TICK_HZ(32) @ 0x003c, ReadOnly, fixed {
        /// Ticks in a nominal second, not 0.
        31:0 hz, with_hz => u32;
    }

    /// Control of the adapter.
    DEVICE_CTRL(32) @ 0x0040, WriteOnly, nothing {
        /// Resets the adapter: every engine stops, every register takes its reset value, VRAM is
        /// lost.
        0:0 reset, with_reset => bool, WriteOne;
    }

    /// State of the adapter.
    DEVICE_STATUS(32) @ 0x0044, ReadOnly, 1 {
        /// The adapter accepts set-up: no reset is under way.
        0:0 ready, with_ready => bool;
    }

    /// Holds what was written; no other effect.
    SCRATCH(32) @ 0x0048, ReadWrite, 0 {
        /// What was written last.
        31:0 value, with_value => u32;
    }

    /// Where the status page is; latched when [`STATUS_CTRL::enable`] becomes set.
    STATUS(64) @ 0x0050, ReadWrite, 0 {
        /// Bus address, a multiple of 4096.
        63:12 address, with_address @=> BusAddr;
    }

    /// Control of the status page.
    STATUS_CTRL(32) @ 0x0058, ReadWrite, 0 {
        /// The device writes to the status page.
        0:0 enable, with_enable => bool;
    }

    /// Where the GART's table is; latched when [`struct@GART_PAGES`] is written.
    GART_TABLE(64) @ 0x0060, ReadWrite, 0 {
        /// Bus address, a multiple of 4096.
        63:12 address, with_address @=> BusAddr;
    }

    /// Size of the GART's table. Writing it latches [`struct@GART_TABLE`].
    GART_PAGES(32) @ 0x0068, ReadWrite, 0 {
        /// Entries; 0 turns the GART off, more than [`struct@GART_MAX_PAGES`] are taken as that.
        31:0 pages, with_pages => u32;
    }

    /// Drops translations, of one address space or of all.
    ///
    /// Each write is one request, counted from the last adapter reset. An engine that no longer
    /// uses a translation, or a table entry, read before the n-th request writes at least n to its
    /// `invalidate_ack` in the status page.
    INVALIDATE(32) @ 0x0070, WriteOnly, nothing {
        /// All address spaces, the system's included, whatever the other bits are.
        31:31 all, with_all => bool;
        /// The address space, unless all are meant.
        15:0 asid, with_asid => Asid;
    }

    /// How far the driver has read the fault records; see [`super::status`].
    FAULT_GET(32) @ 0x0074, ReadWrite, 0 {
        /// Records consumed, modulo 2^32.
        31:0 records, with_records => u32;
    }

    /// Writing anything has the device copy its counters to the status page and then add one to
    /// `snapshot_ack` there.
    SNAPSHOT(32) @ 0x0078, WriteOnly, nothing {
        /// Anything.
        31:0 value, with_value => u32;
    }

    /// Capabilities of the CPU host aperture; see [`super::aperture`].
    APERTURE_CAPS(32) @ 0x0080, ReadOnly, fixed {
        /// log2 of the bytes of a page: 12 or 16; 0 if there is no aperture.
        7:0 page_shift, with_page_shift => u8;
        /// The CPU may have it cached: the device keeps caches coherent. Only if none of VRAM is
        /// visible.
        8:8 cached, with_cached => bool;
    }

    /// Pages of the CPU host aperture.
    APERTURE_PAGES(32) @ 0x0084, ReadOnly, fixed {
        /// At most [`super::aperture::MAX_PAGES`]; 0 if there is no aperture.
        31:0 pages, with_pages => u32;
    }

    /// Where the aperture's table is; read when [`struct@APERTURE_FLUSH`] is written.
    APERTURE_TABLE(64) @ 0x0088, ReadWrite, 0 {
        /// Bus address, a multiple of 4096.
        63:12 address, with_address @=> BusAddr;
    }

    /// Has the aperture's pages show what their entries say, and then adds one to `aperture_ack` in
    /// the status page.
    APERTURE_FLUSH(32) @ 0x0090, WriteOnly, nothing {
        /// Number of the first of these pages.
        31:16 first, with_first => u16;
        /// Pages from there on; those that there are not are left out.
        15:0 count, with_count => u16;
    }

    /// How large the address space is to be in which a driver moves memory.
    PAGING_VA(32) @ 0x0094, ReadOnly, fixed {
        /// In MiB; 0 if the operating system is to decide.
        31:0 megabytes, with_megabytes => u32;
    }

    /// What a context's save area must have room for.
    SAVE_SIZE(32) @ 0x0098, ReadOnly, fixed {
        /// The image, and the most that a state takes.
        31:0 bytes, with_bytes => u32;
    }

    /// What scheduling the device is made for; the numbers of the bits are those of
    /// `DXGK_VIDSCHCAPS`.
    SCHEDULING(32) @ 0x009c, ReadOnly, fixed {
        /// Each engine has a ring and a block in the status page of its own.
        0:0 multi_engine, with_multi_engine => bool;
        /// Engines can be asked to stop; without it the levels in [`struct@engine::INFO`] mean
        /// nothing.
        2:2 preemption, with_preemption => bool;
        /// All addresses in commands are virtual.
        3:3 no_patching, with_no_patching => bool;
        /// What was withdrawn need not come back.
        4:4 cancel, with_cancel => bool;
    }
}

impl ID {
    /// What every Skua GPU says: "SKUA".
    pub const SKUA: Self = Self::new().with_letters(u32::from_le_bytes(*b"SKUA"));
}

impl VERSION {
    /// What a device says that is as this specification describes it.
    pub const CURRENT: Self = Self::new()
        .with_major(VERSION_MAJOR)
        .with_minor(VERSION_MINOR);
}

impl DEVICE_STATUS {
    /// Whether there is no device: all bits are set, reserved ones as well.
    pub const fn is_absent(self) -> bool {
        self.word() == u32::MAX
    }
}

impl INVALIDATE {
    /// The request for one address space, or for all (`None`).
    pub const fn of(asid: Option<Asid>) -> Self {
        match asid {
            Some(asid) => Self::new().with_asid(asid),
            None => Self::new().with_all(true),
        }
    }

    /// Whose translations the request drops; `None` for all.
    pub const fn target(self) -> Option<Asid> {
        if self.all() {
            None
        } else {
            Some(self.asid())
        }
    }
}

/// Offset of the first engine's registers.
pub const ENGINE_BASE: u32 = 0x1000;
/// Distance between two engines' registers.
pub const ENGINE_STRIDE: u32 = 0x100;

pub use engine::EngineRegister;

/// The registers of an engine.
pub mod engine {
    use super::super::command::EngineKind;
    use super::super::preemption::Level;
    use super::super::status::EngineState;
    use super::*;

    /// Smallest ring in bytes.
    pub const RING_MIN: u32 = 0x1000;
    /// Largest ring in bytes.
    pub const RING_MAX: u32 = 0x10_0000;

    register! {
        /// The registers that each engine has.
        pub enum EngineRegister of EngineIndex;

        /// What the engine is.
        INFO(32) @ 0x00, ReadOnly, fixed {
            /// Kind of the engine.
            7:0 kind, with_kind ?=> EngineKind;
            /// Where commands that draw can be preempted.
            15:8 graphics, with_graphics ?=> Level;
            /// Where all other commands can be preempted.
            23:16 compute, with_compute ?=> Level;
        }

        /// What the engine does, as in the status page.
        STATUS(32) @ 0x04, ReadOnly, 0 {
            /// State of the engine.
            31:0 state, with_state ?=> EngineState;
        }

        /// Where the ring is; latched when the engine is enabled.
        RING_BASE(64) @ 0x08, ReadWrite, 0 {
            /// GPU-physical address: a multiple of 4096, in VRAM or in the GART window.
            63:0 address, with_address @=> GpuPhys;
        }

        /// Size of the ring; latched when the engine is enabled.
        RING_SIZE(32) @ 0x10, ReadWrite, 0 {
            /// Bytes: a power of two, [`RING_MIN`] to [`RING_MAX`].
            31:0 bytes, with_bytes => u32;
        }

        /// How far the engine is.
        HEAD(32) @ 0x14, ReadOnly, 0 {
            /// Offset in the ring of the next command to be fetched.
            31:0 offset, with_offset => u32;
        }

        /// How far the engine may go.
        TAIL(32) @ 0x18, ReadOnly, 0 {
            /// What [`struct@DOORBELL`] was last given.
            31:0 offset, with_offset => u32;
        }

        /// Lets the engine fetch what was written into the ring.
        DOORBELL(32) @ 0x1c, WriteOnly, nothing {
            /// The new tail: offset in the ring behind the last command made ready.
            31:0 tail, with_tail => u32;
        }

        /// Control of the engine.
        CTRL(32) @ 0x20, ReadWrite, 0 {
            /// Latches the ring's base and size, sets head and tail to 0, and starts fetching.
            /// Cleared by a reset.
            0:0 enable, with_enable => bool, WriteOneToSet;
            /// Resets this engine alone: it stops within 4096 instructions or 64 KiB of transfer,
            /// forgets what it ran, is disabled, drops its translations, and adds one to
            /// `reset_ack` in the status page. Latches [`struct@RESET_FENCE`].
            1:1 reset, with_reset => bool, WriteOne;
        }

        /// Names the preemption that [`struct@PREEMPT`] asks for.
        PREEMPT_FENCE(64) @ 0x28, ReadWrite, 0 {
            /// Repeated in the record.
            63:0 fence, with_fence => u64;
        }

        /// Preemption of what is in the ring.
        PREEMPT(32) @ 0x30, WriteOnly, nothing {
            /// Asks the engine to stop where it can, to withdraw what is left in its ring, and to
            /// write a record. Latches [`struct@PREEMPT_FENCE`]. Ignored while an earlier request
            /// has no record.
            0:0 request, with_request => bool, WriteOne;
        }

        /// How long the interrupt of a packet's end may wait for others; latched when the engine is
        /// enabled. With all zero it does not wait.
        MODERATION(32) @ 0x34, ReadWrite, 0 {
            /// Ticks from the first end that waits, at most; up to 4096 more pass.
            15:0 ticks, with_ticks => u16;
            /// Ends that wait, at most; 0 is any number.
            23:16 ends, with_ends => u8;
        }

        /// For whose sake a reset by [`struct@CTRL`] is.
        RESET_FENCE(64) @ 0x38, ReadWrite, 0 {
            /// Where `completed_fence` has reached it, the engine goes on, and nothing but
            /// `reset_ack` tells of the reset. 0: it is reset in any case.
            63:0 fence, with_fence => u64;
        }
    }
}

/// The registers that the device has once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device;

impl Block for Device {
    type Id = DeviceRegister;

    #[inline(always)]
    fn base(self) -> u32 {
        0
    }
}

impl Block for EngineIndex {
    type Id = EngineRegister;

    #[inline(always)]
    fn base(self) -> u32 {
        ENGINE_BASE + self.get() * ENGINE_STRIDE
    }
}

impl<R: Register<Block = Device>> From<Location<R>> for u32 {
    fn from(location: Location<R>) -> Self {
        location.of(Device)
    }
}

/// A register somewhere in BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decoded {
    /// A register of the device.
    Device(DeviceRegister),
    /// A register of this engine.
    Engine(EngineIndex, EngineRegister),
}

impl Decoded {
    /// The register, and the word of it, at `offset` of BAR0, or `None` where nothing answers.
    ///
    /// Which engines the device has is for the caller to look at.
    ///
    /// # Examples
    ///
    /// ```
    /// use skua_spec::number::EngineIndex;
    /// use skua_spec::register::Half;
    /// use skua_spec::regs::{Decoded, DeviceRegister, EngineRegister};
    ///
    /// let high = (Decoded::Device(DeviceRegister::STATUS), Half::High);
    /// assert_eq!(Decoded::at(0x54), Some(high));
    /// let ctrl = Decoded::Engine(EngineIndex::ALL[1], EngineRegister::CTRL);
    /// assert_eq!(Decoded::at(0x1120), Some((ctrl, Half::Low)));
    /// assert_eq!(Decoded::at(0x4c), None);
    /// ```
    pub fn at(offset: u32) -> Option<(Self, Half)> {
        let Some(inside) = offset.checked_sub(ENGINE_BASE) else {
            let (register, half) = DeviceRegister::at(offset)?;
            return Some((Self::Device(register), half));
        };
        let engine = EngineIndex::new(inside / ENGINE_STRIDE)?;
        let (register, half) = EngineRegister::at(inside % ENGINE_STRIDE)?;
        Some((Self::Engine(engine, register), half))
    }

    /// All registers of a device with `engines` engines, in the order of their offsets.
    pub fn all(engines: u32) -> impl Iterator<Item = Self> {
        let device = DeviceRegister::ALL.iter().map(|r| Self::Device(*r));
        let engines = (0..engines)
            .filter_map(EngineIndex::new)
            .flat_map(|engine| {
                EngineRegister::ALL
                    .iter()
                    .map(move |register| Self::Engine(engine, *register))
            });
        device.chain(engines)
    }

    /// What there is to say of it.
    pub const fn info(self) -> &'static Info {
        match self {
            Self::Device(register) => register.info(),
            Self::Engine(_, register) => register.info(),
        }
    }

    /// Offset in BAR0 of the register: of its low half if it is a pair.
    pub fn offset(self) -> u32 {
        let base = match self {
            Self::Device(_) => Device.base(),
            Self::Engine(engine, _) => engine.base(),
        };
        base + self.info().offset
    }
}
