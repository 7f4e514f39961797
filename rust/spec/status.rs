// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The status page (manual section 3).
//!
//! One 4 KiB page of system memory that the device writes and the driver reads, so that a running
//! driver reads no register. All fields are little endian and are written whole. Counters only grow
//! (modulo their width): there is nothing to acknowledge and nothing to lose when several causes
//! come together.
//!
//! | offset | what |
//! |---|---|
//! | 0x000 | 8 engine blocks of 64 bytes |
//! | 0x200 | the device block |
//! | 0x240 | for each engine the context that it holds, 8 bytes |
//! | 0x400 | 67 counters of 8 bytes, written on request |
//! | 0x800 | 32 fault records of 64 bytes |
//!
//! # Examples
//!
//! ```
//! use skua_spec::number::EngineIndex;
//! use skua_spec::status::{self, EngineState};
//!
//! // Where the copy engine's fence is.
//! let copy = EngineIndex::ALL[1];
//! assert_eq!(status::of_engine(copy, status::engine::COMPLETED_FENCE), 0x40);
//! assert_eq!(status::engine_field(0x48), Some((copy, status::engine::TICKS)));
//! assert_eq!(status::fault(33), status::FAULTS + 64);
//! assert_eq!(EngineState::from_u32(3), Some(EngineState::Waiting));
//! ```

use super::fault::{Reason, Record};
use super::layout;
use super::number::EngineIndex;

/// Bytes of the status page, and its alignment.
pub const SIZE: u64 = 4096;

/// Bytes of an engine's block; engine `e` has its block at `e * ENGINE_SIZE`.
pub const ENGINE_SIZE: u64 = 64;

/// Offsets in an engine's block.
pub mod engine {
    use super::super::layout;

    layout! {
        /// The fields of a block.
        FIELDS {
            /// Fence id of the last EXEC, RUN or FENCE that ended and had one.
            COMPLETED_FENCE(8) @ 0x00;
            /// Engine time since the last adapter reset in ticks; written when a packet ends and at
            /// least every 65,536 ticks while one runs.
            TICKS(8) @ 0x08;
            /// Offset in the ring of the next command; written when a command was consumed.
            HEAD(4) @ 0x10;
            /// State, see [`super::EngineState`].
            STATE(4) @ 0x14;
            /// Invalidation requests that hold for this engine.
            INVALIDATE_ACK(4) @ 0x18;
            /// Resets of this engine; not cleared by an adapter reset.
            RESET_ACK(4) @ 0x1c;
            /// Fence id of the packet that runs; 0 if none.
            CURRENT_FENCE(8) @ 0x20;
            /// Fence id of the last preemption. It and the three below are a
            /// [`Record`](super::super::preemption::Record).
            PREEMPT_FENCE(8) @ 0x28;
            /// [`COMPLETED_FENCE`] when the engine stopped for it.
            PREEMPT_COMPLETED(8) @ 0x30;
            /// What the engine was at then.
            PREEMPT_CAUSE(4) @ 0x38;
            /// Preemptions since the last adapter reset; written last.
            PREEMPT_SEQ(4) @ 0x3c;
        }
    }
}

/// Fault records that the ring has room for.
pub const FAULT_RECORDS: u32 = 32;

layout! {
    /// The fields behind the engines' blocks.
    FIELDS {
        /// Fault records ever written.
        FAULT_PUT(4) @ 0x200;
        /// Fault records dropped because the driver had not consumed older ones.
        FAULTS_DROPPED(4) @ 0x204;
        /// Counter snapshots taken.
        SNAPSHOT_ACK(4) @ 0x208;
        /// Aperture flushes that hold.
        APERTURE_ACK(4) @ 0x20c;
        /// Aperture entries refused; written before [`APERTURE_ACK`].
        APERTURE_REFUSED(4) @ 0x210;
        /// GPU-physical address of the descriptor of the context that the first engine holds, 0 if
        /// it holds none; those of the others follow. Each is written before the engine's
        /// [`engine::CURRENT_FENCE`].
        CONTEXTS(8 * 8) @ 0x240;
        /// The first counter; the others follow.
        COUNTERS(8 * 67) @ 0x400;
        /// The first place for a fault record; the others follow.
        FAULTS(64 * 32) @ 0x800;
    }
}

/// Offset of the `field` (one of [`self::engine`]) of `engine`.
pub const fn of_engine(engine: EngineIndex, field: u64) -> u64 {
    engine.get() as u64 * ENGINE_SIZE + field
}

/// Whose field, and which, is at `offset`, if it is in an engine's block.
pub fn engine_field(offset: u64) -> Option<(EngineIndex, u64)> {
    let engine = u32::try_from(offset / ENGINE_SIZE).ok()?;
    Some((EngineIndex::new(engine)?, offset % ENGINE_SIZE))
}

/// Offset of the context that `engine` holds.
pub const fn context_of(engine: EngineIndex) -> u64 {
    CONTEXTS + engine.get() as u64 * 8
}

/// Offset of counter number `number`.
pub const fn counter(number: u32) -> u64 {
    COUNTERS + number as u64 * 8
}

/// Offset of the place of fault record `number`.
pub const fn fault(number: u32) -> u64 {
    FAULTS + (number % FAULT_RECORDS) as u64 * Record::SIZE
}

/// State of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EngineState {
    /// Not enabled since the last reset.
    Disabled = 0,
    /// Head equals tail.
    Idle = 1,
    /// Executing a command.
    Running = 2,
    /// In WAIT for a value in memory.
    Waiting = 3,
    /// Stopped by a fault; only a reset helps.
    Faulted = 4,
}

impl EngineState {
    /// The state with this number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Disabled,
            1 => Self::Idle,
            2 => Self::Running,
            3 => Self::Waiting,
            4 => Self::Faulted,
            _ => return None,
        })
    }
}

/// What the device counts; counter `c` is the 8 bytes at [`counter`]`(c)` after a snapshot.
///
/// All count from the start of the device (an adapter reset does not clear them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Counter {
    /// Register reads by the CPU.
    RegisterRead = 0,
    /// Register writes by the CPU, doorbells included.
    RegisterWrite = 1,
    /// Doorbell writes.
    Doorbell = 2,
    /// Accesses to BAR0 that no register answers.
    BadRegisterAccess = 3,
    /// Interrupts raised by engines.
    EngineInterrupt = 4,
    /// Interrupts raised for faults.
    FaultInterrupt = 5,
    /// Ring commands executed.
    RingCommand = 6,
    /// Commands executed in buffers.
    BufferCommand = 7,
    /// Packets (EXEC, RUN) that ended.
    Packet = 8,
    /// Thread groups that ended.
    ThreadGroup = 9,
    /// Instructions issued, one for a wave.
    Instruction = 10,
    /// Bytes written by FILL.
    FillBytes = 11,
    /// Bytes written by COPY and COPY_2D.
    CopyBytes = 12,
    /// Bytes read from system memory.
    SystemRead = 13,
    /// Bytes written to system memory.
    SystemWrite = 14,
    /// Bytes read from VRAM by engines.
    VramRead = 15,
    /// Bytes written to VRAM by engines.
    VramWrite = 16,
    /// Translations found in a TLB.
    TlbHit = 17,
    /// Translations that needed a table walk.
    TlbMiss = 18,
    /// Invalidation requests.
    Invalidate = 19,
    /// Faults.
    Fault = 20,
    /// Engine resets.
    EngineReset = 21,
    /// Adapter resets.
    DeviceReset = 22,
    /// Bus errors: accesses to bus addresses at which nothing answers.
    BusError = 23,
    /// Walks that began at a table which the page-walk cache named.
    WalkHit = 24,
    /// Entries for tables that a walk read, as the page-walk cache did not have them.
    WalkMiss = 25,
    /// Those of `CopyBytes` from VRAM to VRAM.
    CopyVramToVram = 26,
    /// Those of `CopyBytes` from VRAM to system memory.
    CopyVramToSystem = 27,
    /// Those of `CopyBytes` from system memory to VRAM.
    CopySystemToVram = 28,
    /// Those of `CopyBytes` from system memory to system memory.
    CopySystemToSystem = 29,
    /// Faults of [`Reason::BadRing`].
    FaultBadRing = 30,
    /// Faults of [`Reason::BadOpcode`].
    FaultBadOpcode = 31,
    /// Faults of [`Reason::BadLength`].
    FaultBadLength = 32,
    /// Faults of [`Reason::BadFlags`].
    FaultBadFlags = 33,
    /// Faults of [`Reason::Privileged`].
    FaultPrivileged = 34,
    /// Faults of [`Reason::BadOperand`].
    FaultBadOperand = 35,
    /// Faults of [`Reason::Misaligned`].
    FaultMisaligned = 36,
    /// Faults of [`Reason::AddressRange`].
    FaultAddressRange = 37,
    /// Faults of [`Reason::NotPresent`].
    FaultNotPresent = 38,
    /// Faults of [`Reason::ReadOnly`].
    FaultReadOnly = 39,
    /// Faults of [`Reason::BadEntry`].
    FaultBadEntry = 40,
    /// Faults of [`Reason::BusError`].
    FaultBusError = 41,
    /// Faults of [`Reason::BadContext`].
    FaultBadContext = 42,
    /// Faults of [`Reason::BadInstruction`].
    FaultBadInstruction = 43,
    /// Faults of [`Reason::PcRange`].
    FaultPcRange = 44,
    /// Faults of [`Reason::SharedRange`].
    FaultSharedRange = 45,
    /// Faults of [`Reason::ArgumentRange`].
    FaultArgumentRange = 46,
    /// Faults of [`Reason::Trap`].
    FaultTrap = 47,
    /// Reads of BAR2, where they are trapped.
    VramBarRead = 48,
    /// Writes of BAR2, where they are trapped.
    VramBarWrite = 49,
    /// Reads of BAR4, where they are trapped.
    ApertureRead = 50,
    /// Writes of BAR4, where they are trapped.
    ApertureWrite = 51,
    /// Accesses of aperture pages that show nothing, where they are trapped; else pages that were
    /// written while they showed nothing.
    ApertureUnmapped = 52,
    /// Aperture flushes.
    ApertureFlush = 53,
    /// Translations that lead through an entry of the GART with
    /// [`DUMMY`](super::mmu::Entry::DUMMY).
    GartDummy = 54,
    /// Bytes of states that were saved.
    SavedBytes = 55,
    /// Bytes of states that were restored.
    RestoredBytes = 56,
    /// Requests for preemption that were taken.
    Preempt = 57,
    /// Preemptions that met an empty ring.
    PreemptIdle = 58,
    /// Requests for preemption that were ignored.
    PreemptIgnored = 59,
    /// Faults of [`Reason::BadSave`].
    FaultBadSave = 60,
    /// Faults of [`Reason::BadIndex`].
    FaultBadIndex = 61,
    /// Triangles of DRAWs that ended.
    Triangle = 62,
    /// Pixels for which a program ended, those that it discarded included.
    Pixel = 63,
    /// Images of contexts that were loaded.
    ContextLoad = 64,
    /// Images of contexts that were written because their engine left them.
    ContextLeave = 65,
    /// Switches to no context that found one.
    NullSwitch = 66,
}

impl Counter {
    /// All counters in order, with the names that debugfs shows.
    pub const ALL: [(Self, &'static str); 67] = [
        (Self::RegisterRead, "register_read"),
        (Self::RegisterWrite, "register_write"),
        (Self::Doorbell, "doorbell"),
        (Self::BadRegisterAccess, "bad_register_access"),
        (Self::EngineInterrupt, "engine_interrupt"),
        (Self::FaultInterrupt, "fault_interrupt"),
        (Self::RingCommand, "ring_command"),
        (Self::BufferCommand, "buffer_command"),
        (Self::Packet, "packet"),
        (Self::ThreadGroup, "thread_group"),
        (Self::Instruction, "instruction"),
        (Self::FillBytes, "fill_bytes"),
        (Self::CopyBytes, "copy_bytes"),
        (Self::SystemRead, "system_read_bytes"),
        (Self::SystemWrite, "system_write_bytes"),
        (Self::VramRead, "vram_read_bytes"),
        (Self::VramWrite, "vram_write_bytes"),
        (Self::TlbHit, "tlb_hit"),
        (Self::TlbMiss, "tlb_miss"),
        (Self::Invalidate, "invalidate"),
        (Self::Fault, "fault"),
        (Self::EngineReset, "engine_reset"),
        (Self::DeviceReset, "device_reset"),
        (Self::BusError, "bus_error"),
        (Self::WalkHit, "walk_hit"),
        (Self::WalkMiss, "walk_miss"),
        (Self::CopyVramToVram, "copy_vram_to_vram"),
        (Self::CopyVramToSystem, "copy_vram_to_system"),
        (Self::CopySystemToVram, "copy_system_to_vram"),
        (Self::CopySystemToSystem, "copy_system_to_system"),
        (Self::FaultBadRing, "fault_bad_ring"),
        (Self::FaultBadOpcode, "fault_bad_opcode"),
        (Self::FaultBadLength, "fault_bad_length"),
        (Self::FaultBadFlags, "fault_bad_flags"),
        (Self::FaultPrivileged, "fault_privileged"),
        (Self::FaultBadOperand, "fault_bad_operand"),
        (Self::FaultMisaligned, "fault_misaligned"),
        (Self::FaultAddressRange, "fault_address_range"),
        (Self::FaultNotPresent, "fault_not_present"),
        (Self::FaultReadOnly, "fault_read_only"),
        (Self::FaultBadEntry, "fault_bad_entry"),
        (Self::FaultBusError, "fault_bus_error"),
        (Self::FaultBadContext, "fault_bad_context"),
        (Self::FaultBadInstruction, "fault_bad_instruction"),
        (Self::FaultPcRange, "fault_pc_range"),
        (Self::FaultSharedRange, "fault_shared_range"),
        (Self::FaultArgumentRange, "fault_argument_range"),
        (Self::FaultTrap, "fault_trap"),
        (Self::VramBarRead, "vram_bar_read"),
        (Self::VramBarWrite, "vram_bar_write"),
        (Self::ApertureRead, "aperture_read"),
        (Self::ApertureWrite, "aperture_write"),
        (Self::ApertureUnmapped, "aperture_unmapped"),
        (Self::ApertureFlush, "aperture_flush"),
        (Self::GartDummy, "gart_dummy"),
        (Self::SavedBytes, "saved_bytes"),
        (Self::RestoredBytes, "restored_bytes"),
        (Self::Preempt, "preempt"),
        (Self::PreemptIdle, "preempt_idle"),
        (Self::PreemptIgnored, "preempt_ignored"),
        (Self::FaultBadSave, "fault_bad_save"),
        (Self::FaultBadIndex, "fault_bad_index"),
        (Self::Triangle, "triangle"),
        (Self::Pixel, "pixel"),
        (Self::ContextLoad, "context_load"),
        (Self::ContextLeave, "context_leave"),
        (Self::NullSwitch, "null_switch"),
    ];

    /// The counter of the faults of a reason, which [`Self::Fault`] counts as well.
    pub const fn of_fault(reason: Reason) -> Self {
        match reason {
            Reason::BadRing => Self::FaultBadRing,
            Reason::BadOpcode => Self::FaultBadOpcode,
            Reason::BadLength => Self::FaultBadLength,
            Reason::BadFlags => Self::FaultBadFlags,
            Reason::Privileged => Self::FaultPrivileged,
            Reason::BadOperand => Self::FaultBadOperand,
            Reason::Misaligned => Self::FaultMisaligned,
            Reason::AddressRange => Self::FaultAddressRange,
            Reason::NotPresent => Self::FaultNotPresent,
            Reason::ReadOnly => Self::FaultReadOnly,
            Reason::BadEntry => Self::FaultBadEntry,
            Reason::BusError => Self::FaultBusError,
            Reason::BadContext => Self::FaultBadContext,
            Reason::BadInstruction => Self::FaultBadInstruction,
            Reason::PcRange => Self::FaultPcRange,
            Reason::SharedRange => Self::FaultSharedRange,
            Reason::ArgumentRange => Self::FaultArgumentRange,
            Reason::Trap => Self::FaultTrap,
            Reason::BadSave => Self::FaultBadSave,
            Reason::BadIndex => Self::FaultBadIndex,
        }
    }
}
