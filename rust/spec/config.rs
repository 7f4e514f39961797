// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI configuration space, of PCI Express' 4 KiB what the device has (manual section 1).
//!
//! It is read and written by bytes, words or dwords; the registers here are dwords, and the BARs of
//! 64 bits pairs of them. Where the reset value is `fixed`, what can be written becomes zero; all
//! that is in no register is zero and stays so.
//!
//! # Examples
//!
//! ```
//! use skua_spec::config::{PowerState, COMMAND, MSIX, POWER_CONTROL};
//!
//! // What a host writes to have the function access its memory.
//! let command = COMMAND::new().with_memory(true).with_master(true);
//! assert_eq!((COMMAND::INFO.offset, command.word()), (0x04, 0x6));
//!
//! assert_eq!(POWER_CONTROL::from_bits(3).state(), Some(PowerState::D3hot));
//! assert_eq!(POWER_CONTROL::from_bits(1).state(), None);
//! assert_eq!(MSIX::of(4).last(), 3);
//! ```

#![expect(non_camel_case_types, reason = "the manual's names")]

use super::address::BusAddr;
use super::bits;
use super::pci;
use super::register::{
    Access, Block, Field, Half, Info, Location, Readable, Register, Reset, Writable,
};

/// Bytes of the space.
pub const SIZE: usize = 4096;

/// The configuration space of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config;

impl Block for Config {
    type Id = ConfigRegister;

    fn base(self) -> u32 {
        0
    }
}

/// Power states that the function has; D1 and D2 it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PowerState {
    /// It works.
    D0 = 0,
    /// It answers to its configuration space alone, and comes back reset.
    D3hot = 3,
}

impl PowerState {
    /// The state with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::D0),
            3 => Some(Self::D3hot),
            _ => None,
        }
    }
}

register! {
    /// The registers of the configuration space.
    pub enum ConfigRegister of Config;

    /// Tells a Skua GPU from other functions.
    IDENTITY(32) @ 0x000, ReadOnly, (IDENTITY::SKUA.bits()) {
        /// [`pci::VENDOR`].
        15:0 vendor, with_vendor => u16;
        /// [`pci::DEVICE`].
        31:16 device, with_device => u16;
    }

    /// Command, and status in the upper half.
    COMMAND(32) @ 0x004, ReadWrite, 0x10_0000 {
        /// BARs answer.
        1:1 memory, with_memory => bool;
        /// Bus master: the function may access memory and raise interrupts.
        2:2 master, with_master => bool;
        /// INTx, of which there is none, is off.
        10:10 intx_off, with_intx_off => bool;
        /// There is a list of capabilities.
        20:20 capabilities, with_capabilities => bool, ReadOnly;
    }

    /// What kind of function it is.
    CLASS(32) @ 0x008, ReadOnly, (CLASS::SKUA.bits()) {
        /// [`pci::REVISION`].
        7:0 revision, with_revision => u8;
        /// [`pci::CLASS`].
        31:8 class, with_class <= u32;
    }

    /// Where [`pci::BAR_REGS`] is.
    BAR0(32) @ 0x010, ReadWrite, 0 {
        /// Bus address, a multiple of [`pci::BAR_REGS_SIZE`].
        31:16 address, with_address @=> BusAddr;
    }

    /// Where [`pci::BAR_VRAM`] is; zero if it is not there.
    BAR2(64) @ 0x018, ReadWrite, fixed {
        /// The address has 64 bits.
        2:2 wide, with_wide => bool, ReadOnly;
        /// Reads change nothing, and writes can be merged.
        3:3 prefetchable, with_prefetchable => bool, ReadOnly;
        /// Bus address. Of it can be written what is not below the size.
        63:20 address, with_address @=> BusAddr;
    }

    /// Where [`pci::BAR_HOST_APERTURE`] is; zero if it is not there.
    BAR4(64) @ 0x020, ReadWrite, fixed {
        /// As in [`struct@BAR2`].
        2:2 wide, with_wide => bool, ReadOnly;
        /// As in [`struct@BAR2`].
        3:3 prefetchable, with_prefetchable => bool, ReadOnly;
        /// As in [`struct@BAR2`].
        63:12 address, with_address @=> BusAddr;
    }

    /// The same as [`struct@IDENTITY`].
    SUBSYSTEM(32) @ 0x02c, ReadOnly, (IDENTITY::SKUA.bits()) {
        /// [`pci::VENDOR`].
        15:0 vendor, with_vendor => u16;
        /// [`pci::DEVICE`].
        31:16 device, with_device => u16;
    }

    /// Where the list of capabilities begins.
    CAPABILITIES(32) @ 0x034, ReadOnly, 0x40 {
        /// Offset of [`struct@POWER`].
        7:0 first, with_first => u8;
    }

    /// For the host's use.
    INTERRUPT(32) @ 0x03c, ReadWrite, 0 {
        /// Holds what was written; no other effect.
        7:0 line, with_line => u8;
    }

    /// The capability of power management: D0 and D3hot, which loses all state, and no PME.
    POWER(32) @ 0x040, ReadOnly, 0x3_5001 {
        /// What capability it is.
        7:0 id, with_id => u8;
        /// Offset of [`struct@MSIX`].
        15:8 next, with_next => u8;
        /// 3: that of the specification 1.2.
        18:16 version, with_version <= u8;
    }

    /// Control of power management.
    POWER_CONTROL(32) @ 0x044, ReadWrite, 0 {
        /// State of the function. One that is not there is not taken.
        1:0 state, with_state ?=> PowerState;
    }

    /// The capability of MSI-X, and its control in the upper half.
    MSIX(32) @ 0x050, ReadWrite, fixed {
        /// What capability it is.
        7:0 id, with_id => u8, ReadOnly;
        /// Offset of [`struct@EXPRESS`].
        15:8 next, with_next => u8, ReadOnly;
        /// Number of the last vector.
        26:16 last, with_last <= u16, ReadOnly;
        /// All vectors are masked.
        30:30 masked, with_masked => bool;
        /// Interrupts are MSI-X.
        31:31 enable, with_enable => bool;
    }

    /// Where the table of MSI-X is.
    MSIX_TABLE(32) @ 0x054, ReadOnly, (pci::MSIX_TABLE | pci::BAR_REGS) {
        /// Offset in the BAR; the BAR's number in bits 2:0.
        31:0 place, with_place => u32;
    }

    /// Where the pending bits of MSI-X are.
    MSIX_PENDING(32) @ 0x058, ReadOnly, (pci::MSIX_PBA | pci::BAR_REGS) {
        /// As in [`struct@MSIX_TABLE`].
        31:0 place, with_place => u32;
    }

    /// The capability of PCI Express, the last of the list.
    EXPRESS(32) @ 0x060, ReadOnly, 0x2_0010 {
        /// What capability it is.
        7:0 id, with_id => u8;
        /// 0: none follows.
        15:8 next, with_next => u8;
        /// Version of the capability.
        19:16 version, with_version <= u8;
        /// 0: an endpoint. On the root bus QEMU makes it 9, one of the root complex.
        23:20 port, with_port <= u8;
    }

    /// What the function can do on PCI Express.
    DEVICE_CAPS(32) @ 0x064, ReadOnly, 0x1000_8000 {
        /// Error reporting is role-based, which is not optional.
        15:15 role_based, with_role_based => bool;
        /// There is the function level reset.
        28:28 flr, with_flr => bool;
    }

    /// How the function accesses PCI Express.
    DEVICE_CONTROL(32) @ 0x068, ReadWrite, 0x2810 {
        /// Errors that are reported: correctable, not fatal, fatal, unsupported requests.
        3:0 errors, with_errors <= u8;
        /// Relaxed ordering is allowed.
        4:4 relaxed, with_relaxed => bool;
        /// No snoop is allowed.
        11:11 no_snoop, with_no_snoop => bool;
        /// Largest read: 2 is 512 bytes.
        14:12 read, with_read <= u8;
        /// Function level reset.
        15:15 flr, with_flr => bool, WriteOne;
    }

    /// What the link can do: one lane of 2.5 GT/s.
    LINK_CAPS(32) @ 0x06c, ReadOnly, 0x40_0011 {
        /// Best speed: 1 is 2.5 GT/s.
        3:0 speed, with_speed <= u8;
        /// Most lanes.
        9:4 lanes, with_lanes <= u8;
        /// That there is no power management of the link can be told.
        22:22 aspm_optional, with_aspm_optional => bool;
    }

    /// What the link does.
    LINK_STATUS(32) @ 0x070, ReadOnly, 0x11_0000 {
        /// As in [`struct@LINK_CAPS`].
        19:16 speed, with_speed <= u8;
        /// As in [`struct@LINK_CAPS`].
        25:20 lanes, with_lanes <= u8;
    }

    /// What more the function can do on PCI Express.
    DEVICE_CAPS_2(32) @ 0x084, ReadOnly, 0x10 {
        /// Time-outs of completions can be turned off.
        4:4 no_timeout, with_no_timeout => bool;
    }

    /// How the function accesses PCI Express, too.
    DEVICE_CONTROL_2(32) @ 0x088, ReadWrite, 0 {
        /// Completions have no time-out.
        4:4 no_timeout, with_no_timeout => bool;
    }

    /// What more the link can do.
    LINK_CAPS_2(32) @ 0x08c, ReadOnly, 0x2 {
        /// A bit for each speed: the first is 2.5 GT/s.
        7:1 speeds, with_speeds <= u8;
    }

    /// What the link is to do.
    LINK_CONTROL_2(32) @ 0x090, ReadOnly, 1 {
        /// As in [`struct@LINK_CAPS`].
        3:0 speed, with_speed <= u8;
    }

    /// The extended capability of resizable BARs, the only one; zero if there is no
    /// [`struct@BAR2`], and so are the two registers behind it.
    RESIZABLE(32) @ 0x100, ReadOnly, fixed {
        /// What capability it is.
        15:0 id, with_id => u16;
        /// Version of the capability.
        19:16 version, with_version <= u8;
    }

    /// Sizes that [`struct@BAR2`] could have.
    RESIZABLE_SIZES(32) @ 0x104, ReadOnly, fixed {
        /// A bit for each power of two: the first is 1 MiB.
        31:4 sizes, with_sizes <= u32;
    }

    /// The BAR that can be resized.
    RESIZABLE_CONTROL(32) @ 0x108, ReadOnly, fixed {
        /// Number of the BAR.
        2:0 bar, with_bar <= u8;
        /// How many BARs there are that can be resized: 1.
        7:5 bars, with_bars <= u8;
        /// Its size: number of the bit in [`struct@RESIZABLE_SIZES`].
        13:8 size, with_size <= u8;
    }
}

impl IDENTITY {
    /// What every Skua GPU says.
    pub const SKUA: Self = Self::new()
        .with_vendor(pci::VENDOR)
        .with_device(pci::DEVICE);
}

impl CLASS {
    /// What every Skua GPU says.
    pub const SKUA: Self = Self::new()
        .with_revision(pci::REVISION)
        .with_class(pci::CLASS);
}

impl BAR2 {
    /// What a function says that has it.
    pub const PRESENT: Self = Self::new().with_wide(true).with_prefetchable(true);
}

impl BAR4 {
    /// What a function says that has it.
    pub const PRESENT: Self = Self::new().with_wide(true).with_prefetchable(true);
}

impl POWER {
    /// What tells the capability.
    pub const ID: u8 = 0x01;
}

impl MSIX {
    /// What tells the capability.
    pub const ID: u8 = 0x11;

    /// That of a function with `vectors` vectors, 1 to 2048.
    pub const fn of(vectors: u16) -> Self {
        Self::new()
            .with_id(Self::ID)
            // CAST: in the list's 256 bytes.
            .with_next(EXPRESS::INFO.offset as u8)
            .with_last(vectors - 1)
    }
}

impl EXPRESS {
    /// What tells the capability.
    pub const ID: u8 = 0x10;
}

impl RESIZABLE {
    /// What a function says that has it.
    pub const PRESENT: Self = Self::new().with_id(0x15).with_version(1);
}

impl RESIZABLE_SIZES {
    /// This size alone: a power of two from 1 MiB to 128 TiB.
    pub const fn of(bytes: u64) -> Self {
        Self::new().with_sizes(1 << megabytes_log2(bytes))
    }
}

impl RESIZABLE_CONTROL {
    /// The BAR with this number and size, the only one.
    pub const fn of(bar: u32, bytes: u64) -> Self {
        // CAST: a BAR's number is below 6, and the size is that of a bit.
        Self::new()
            .with_bar(bar as u8)
            .with_bars(1)
            .with_size(megabytes_log2(bytes) as u8)
    }
}

const fn megabytes_log2(bytes: u64) -> u32 {
    bytes.ilog2() - 20
}
