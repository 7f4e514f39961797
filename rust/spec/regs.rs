// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers in BAR0 (manual section 2).
//!
//! All registers are 32 bits wide and are accessed whole and aligned; a 64-bit quantity is a pair
//! with the low half first. An access of another size or alignment, or to an offset that is not
//! listed, reads as zero, is ignored when written, and is counted
//! ([`super::status::Counter::BadRegisterAccess`]). Registers are for set-up, doorbells and reset
//! only: what a running system needs to read is in the status page ([`super::status`]).

/// Reads as [`ID_VALUE`].
pub const ID: u32 = 0x0000;
/// Value of [`ID`]: "SKUA" in memory order.
pub const ID_VALUE: u32 = u32::from_le_bytes(*b"SKUA");
/// Hardware version: major in bits 31:16, minor in bits 15:0.
pub const VERSION: u32 = 0x0004;
/// Major version that this specification describes; another major version is another manual.
pub const VERSION_MAJOR: u32 = 1;
/// Minor version that this specification describes; a higher minor version only adds.
pub const VERSION_MINOR: u32 = 0;
/// Capabilities: number of engines in bits 7:0, other bits zero.
pub const CAPS: u32 = 0x0008;
/// Translation capabilities: bits of a GPU virtual address in 7:0, bits of a bus address in 15:8,
/// log2 of the number of address space identifiers in 23:16.
pub const MMU_CAPS: u32 = 0x000c;
/// Bytes of VRAM, low half.
pub const VRAM_SIZE_LO: u32 = 0x0010;
/// Bytes of VRAM, high half.
pub const VRAM_SIZE_HI: u32 = 0x0014;
/// GPU-physical address of the first byte of VRAM, low half. It is not the bus address of BAR2.
pub const VRAM_BASE_LO: u32 = 0x0018;
/// GPU-physical address of the first byte of VRAM, high half.
pub const VRAM_BASE_HI: u32 = 0x001c;
/// Bytes of VRAM, from its start, that BAR2 shows, low half.
pub const VRAM_VISIBLE_LO: u32 = 0x0020;
/// Bytes of VRAM, from its start, that BAR2 shows, high half.
pub const VRAM_VISIBLE_HI: u32 = 0x0024;
/// GPU-physical address of the first byte of the GART window, low half.
pub const GART_BASE_LO: u32 = 0x0028;
/// GPU-physical address of the first byte of the GART window, high half.
pub const GART_BASE_HI: u32 = 0x002c;
/// Most 4 KiB pages that the GART window can have.
pub const GART_MAX_PAGES: u32 = 0x0030;
/// Dispatch limits: threads of a group in bits 15:0, threads of a wave in 23:16.
pub const DISPATCH_CAPS: u32 = 0x0034;
/// Most bytes of shared memory that a group can have.
pub const SHARED_CAPS: u32 = 0x0038;
/// Nominal ticks of engine time in a second; see the manual for what a tick is.
pub const TICK_HZ: u32 = 0x003c;

/// Write [`DEVICE_CTRL_RESET`] to reset the adapter: every engine stops, every register takes its
/// reset value, VRAM is lost. Reads as zero.
pub const DEVICE_CTRL: u32 = 0x0040;
/// Starts an adapter reset.
pub const DEVICE_CTRL_RESET: u32 = 1 << 0;
/// State of the adapter.
pub const DEVICE_STATUS: u32 = 0x0044;
/// The adapter accepts set-up. Clear while a reset is under way.
pub const DEVICE_STATUS_READY: u32 = 1 << 0;
/// Holds what was last written to it; has no other effect. Reset value 0.
pub const SCRATCH: u32 = 0x0048;

/// Bus address of the status page, low half; 4 KiB aligned. Latched when [`STATUS_CTRL_ENABLE`] is
/// set.
pub const STATUS_LO: u32 = 0x0050;
/// Bus address of the status page, high half.
pub const STATUS_HI: u32 = 0x0054;
/// Control of the status page.
pub const STATUS_CTRL: u32 = 0x0058;
/// The device writes to the status page while this is set.
pub const STATUS_CTRL_ENABLE: u32 = 1 << 0;

/// Bus address of the GART table, low half; 4 KiB aligned.
pub const GART_TABLE_LO: u32 = 0x0060;
/// Bus address of the GART table, high half.
pub const GART_TABLE_HI: u32 = 0x0064;
/// Entries of the GART table, 0 to [`GART_MAX_PAGES`]; 0 turns the GART off. Writing it latches the
/// table's address.
pub const GART_PAGES: u32 = 0x0068;

/// Write to drop translations: an address space identifier in bits 15:0, or [`INVALIDATE_ALL`].
///
/// Each write is one request, counted from the last adapter reset. An engine that no longer uses a
/// translation, or a table entry, read before the n-th request writes at least n to its
/// `invalidate_ack` in the status page.
pub const INVALIDATE: u32 = 0x0070;
/// All address spaces, including the system's.
pub const INVALIDATE_ALL: u32 = 1 << 31;
/// Fault records that the driver has consumed, modulo 2^32; see [`super::status`].
pub const FAULT_GET: u32 = 0x0074;
/// Write anything: the device copies its counters to the status page, then adds one to
/// `snapshot_ack` there.
pub const SNAPSHOT: u32 = 0x0078;

/// Offset of the first engine's registers.
pub const ENGINE_BASE: u32 = 0x1000;
/// Distance between two engines' registers.
pub const ENGINE_STRIDE: u32 = 0x100;

/// Offsets of an engine's registers from the start of its block.
pub mod engine {
    /// Kind of engine in bits 7:0, see [`super::super::command::EngineKind`].
    pub const INFO: u32 = 0x00;
    /// State of the engine, see [`super::super::status::EngineState`].
    pub const STATUS: u32 = 0x04;
    /// GPU-physical address of the ring, low half; 4 KiB aligned, in VRAM or in the GART window.
    pub const RING_BASE_LO: u32 = 0x08;
    /// GPU-physical address of the ring, high half.
    pub const RING_BASE_HI: u32 = 0x0c;
    /// Bytes of the ring: a power of two, [`RING_MIN`] to [`RING_MAX`].
    pub const RING_SIZE: u32 = 0x10;
    /// Offset of the next command to be fetched. Read only.
    pub const HEAD: u32 = 0x14;
    /// Offset behind the last command made ready. Read only.
    pub const TAIL: u32 = 0x18;
    /// Write the new tail: the commands before it may now be fetched. Reads as zero.
    pub const DOORBELL: u32 = 0x1c;
    /// Control of the engine.
    pub const CTRL: u32 = 0x20;

    /// Latches the ring's base and size, sets head and tail to 0, and starts fetching. Cleared by a
    /// reset.
    pub const CTRL_ENABLE: u32 = 1 << 0;
    /// Resets this engine alone: it stops at the next instruction or 64 KiB of transfer, forgets
    /// what it ran, is disabled, drops its translations, and adds one to `reset_ack` in the status
    /// page. Reads as zero.
    pub const CTRL_RESET: u32 = 1 << 1;

    /// Smallest ring in bytes.
    pub const RING_MIN: u32 = 0x1000;
    /// Largest ring in bytes.
    pub const RING_MAX: u32 = 0x10_0000;
}

/// Offset in BAR0 of register `reg` (one of [`engine`]) of engine `index`.
pub const fn engine_reg(index: u32, reg: u32) -> u32 {
    // OVERFLOW: `index` is below MAX_ENGINES wherever an engine exists; masked so that no caller
    // can overflow.
    ENGINE_BASE
        + (index & (super::pci::MAX_ENGINES - 1)) * ENGINE_STRIDE
        + (reg & (ENGINE_STRIDE - 1))
}
