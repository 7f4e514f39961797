// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where the operating system's part of the driver meets the miniport's.
//!
//! WDDM splits a driver in two: the system's core (memory manager and scheduler) decides, a
//! *miniport* knows the GPU. Here both are one module, and what separates them is [`Miniport`]
//! ([`AdapterInfo`] for what is asked before there is one): the decisions of this crate, and the
//! rooms `memory` and `submit` of the driver, have the GPU do things through it; the room
//! `hardware` implements it; a recording one in this crate's tests shows what the core asks for,
//! and in which order, without a guest. What the GPU only reports (ticks, fault records, counters)
//! is read where it is.
//!
//! A function carries the name of the DDI whose part it has, where WDDM has one; [`Miniport`]'s
//! table tells. None of them waits: what the GPU acknowledges later is a [`Miniport::Request`], and
//! how long to wait for it is the core's to decide. Those on the way to a fence's signal allocate
//! nothing; they say so.

use super::{
    buddy::PageRange, page_plan::PhysPiece, paging::MultipassOffset, segments::SegmentFlags,
};
use crate::spec::{
    address::{BusAddr, GpuPhys, GpuVa},
    mmu::Entry,
    number::{Asid, ContextSlot, EngineIndex},
};

/// What memory a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The implicit segment of system memory, of which the miniport says nothing more.
    System,
    /// Memory of the GPU's own.
    Memory {
        /// GPU-physical address of its first byte.
        base: GpuPhys,
        /// Size of the segment in bytes.
        bytes: u64,
        /// Bytes, from the first on, that the CPU reaches through a BAR.
        cpu_visible: u64,
        /// The window of the CPU on the rest, if there is one.
        host_aperture: Option<HostAperture>,
    },
    /// A window of the GPU that shows system memory, page by page, or a dummy page.
    Aperture {
        /// GPU-physical address of the window's first byte.
        base: GpuPhys,
        /// Its size in pages, of which the first `own` are not for memory of clients.
        pages: u64,
        /// Pages that the miniport has for itself.
        own: u64,
    },
}

/// A CPU host aperture (`DXGK_CPUHOSTAPERTURE`): a BAR, of which each page shows a page of a
/// segment, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAperture {
    /// Pages that the BAR has.
    pub pages: u32,
    /// Size of a page in bytes, of the aperture as of the segment.
    pub page_bytes: u64,
}

/// A page of a CPU host aperture, and what it shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AperturePage {
    /// The page, by its number in the aperture.
    pub aperture: u32,
    /// What it shows, by its number in the segment, counted in pages of this size.
    pub segment: u64,
}

/// Number of the implicit segment, system memory.
pub const SYSTEM_SEGMENT: u32 = 0;
/// Number of the segment of VRAM.
pub const VRAM_SEGMENT: u32 = 1;

/// Number of the aperture segment, of which there is one.
pub const APERTURE_SEGMENT: u32 = 2;

/// A segment (`DXGK_SEGMENTDESCRIPTOR4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number; 0 is the implicit one.
    pub id: u32,
    /// What it can do; [`segments::check`](super::segments::check) says what goes together.
    pub flags: SegmentFlags,
    /// What memory it is, and where.
    pub kind: SegmentKind,
}

/// A paging operation (`DXGK_OPERATION_*`) that an engine does, however large: in as many passes as
/// it takes ([`PagingOperation::pass`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagingOperation<'a> {
    /// `DXGK_OPERATION_VIRTUAL_FILL`: write zeroes.
    Fill {
        /// The segment of the memory.
        segment: u32,
        /// The memory, in pages of the segment.
        blocks: &'a [PageRange],
    },
    /// `DXGK_OPERATION_VIRTUAL_TRANSFER` between a memory segment and system memory.
    Transfer {
        /// The memory segment's number; the other end is in system memory.
        segment: u32,
        /// Whether the segment is what is read, and system memory what is written.
        out: bool,
        /// Whether the CPU has the system memory cached, so that the GPU has to snoop (row 0.28).
        cached: bool,
        /// What is copied, each on its own.
        pieces: &'a [TransferPiece],
    },
    /// `DXGK_OPERATION_DISCARD_CONTENT`: nobody wants what is in the memory any more. Has no steps:
    /// what a miniport keeps about the content goes, and its paging buffer may be empty.
    Discard {
        /// The segment of the memory.
        segment: u32,
        /// The memory, in pages of the segment.
        blocks: &'a [PageRange],
    },
    /// `DXGK_OPERATION_INIT_CONTEXT_RESOURCE`: write what a context allocation begins with, once,
    /// when it has its first memory, which is all zero (row 2.10).
    InitContextResource(ContextPage),
}

/// Where the first page of a context allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextPage {
    /// In this memory segment: its number there.
    Segment(u32, u64),
    /// In system memory, which the CPU has cached: its bus address.
    System(BusAddr),
}

/// What of a paging operation one paging buffer is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass<'a> {
    /// The whole operation, the same for all of its passes.
    pub operation: PagingOperation<'a>,
    /// Where it goes on (`MultipassOffset`): all zeroes at first, then what [`Built::Full`] says.
    pub from: MultipassOffset,
    /// Whether no ring has anything to do with the operation's memory
    /// (`DXGK_TRANSFERFLAGS::AllocationIsIdle`).
    pub idle: bool,
}

/// What a miniport says that a paging buffer was built for. All else is fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// It is the operation's last: it does all that was left of it (`STATUS_SUCCESS`).
    Last,
    /// It is full, and the next one goes on there (`STATUS_GRAPHICS_INSUFFICIENT_DMA_BUFFER`).
    Full(MultipassOffset),
    /// Nothing was built, as long as the memory is not idle (`STATUS_GRAPHICS_ALLOCATION_BUSY`).
    Busy,
}

/// Memory of a segment, and the system memory that its content goes to or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferPiece {
    /// The memory, in pages of the segment.
    pub block: PageRange,
    /// Bus address of as many contiguous pages.
    pub bus: BusAddr,
}

/// Whose translations all nodes are to have forgotten before an engine goes on
/// (`DXGK_OPERATION_FLUSH_TLB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Translations of no address space.
    Nothing,
    /// The translations of one address space are dropped.
    Of(Asid),
    /// Translations of all address spaces.
    All,
}

impl Flush {
    /// Also those of `asid`; more than one address space is all.
    pub fn and(self, asid: Asid) -> Self {
        match self {
            Self::Nothing => Self::Of(asid),
            Self::Of(other) if other == asid => self,
            Self::Of(_) | Self::All => Self::All,
        }
    }

    /// What of it the pass of an operation needs that begins at `from`: it goes before all that the
    /// operation reads.
    pub fn before(self, from: MultipassOffset) -> Self {
        if from == MultipassOffset::default() {
            self
        } else {
            Self::Nothing
        }
    }
}

/// What one packet has an engine do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// A buffer of commands, by its virtual address in a context (`DxgkDdiSubmitCommandVirtual`).
    Virtual {
        /// The context in whose address space it is.
        context: ContextSlot,
        /// How many the context was given before it, modulo 2^32: the same whenever it comes again,
        /// in this order (`HwQueueProgressFenceId` of a queue that is a context's).
        number: u32,
        /// Its first command, a multiple of 8.
        va: GpuVa,
        /// Its length, a multiple of 8, not 0.
        bytes: u32,
        /// Whether it goes on where it was preempted, with the context's save area.
        resume: bool,
    },
    /// A pass of a paging operation, in the system's context: the paging buffer that was built last
    /// (`DxgkDdiSubmitCommand`, `DXGK_SUBMITCOMMANDFLAGS::Paging`), behind a flush.
    Paging(Pass<'a>, Flush),
    /// Only a flush and the completion (`DXGK_SUBMITCOMMANDFLAGS::NullRendering`).
    Null(Flush),
    /// The engine leaves the context that it holds, and holds none: an empty buffer with
    /// `DXGK_SUBMITCOMMANDFLAGS::ContextSwitch` (row 2.07).
    Switch,
}

/// What an engine tells at a packet's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The fence id (`SubmissionFenceId`) that [`Miniport::query_current_fence`] then returns.
    pub fence: u64,
    /// Whether the engine interrupts, too.
    pub interrupt: bool,
}

/// What a node did when it was asked to stop (`DXGK_INTERRUPT_DMA_PREEMPTED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The number of the request that is answered.
    pub fence: u64,
    /// What [`Miniport::query_current_fence`] returned at that moment: what is behind that packet
    /// was withdrawn.
    pub completed: u64,
    /// Where it was then: between packets, or within one.
    pub stop: Stop,
}

/// Where a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stop {
    /// Nothing of what was withdrawn had begun.
    Between,
    /// Within the first packet that was withdrawn, which is to be resumed.
    Within,
    /// As that, where it waited for a value.
    Waiting,
}

/// Which part of a node's ring a packet lies in: byte offsets.
///
/// # Examples
///
/// ```
/// use skua_policy::miniport::RingSpan;
///
/// // A packet that goes on at the beginning of a ring of 4 KiB.
/// let span = RingSpan { start: 0xff0, end: 0x20 };
/// assert!(span.contains(0xff8) && span.contains(0) && !span.contains(0x20));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingSpan {
    /// Where its first command begins, padding before it included.
    pub start: u32,
    /// Where its last command ends; below `start` if it goes on at the ring's beginning.
    pub end: u32,
}

impl RingSpan {
    /// Whether the command at `offset` is the packet's.
    pub fn contains(&self, offset: u64) -> bool {
        let (start, end) = (u64::from(self.start), u64::from(self.end));
        if start <= end {
            (start..end).contains(&offset)
        } else {
            offset >= start || offset < end
        }
    }
}

/// What a miniport says of itself before it is set up (`DxgkDdiQueryAdapterInfo`).
pub trait AdapterInfo {
    /// Why the miniport does not say it.
    type Error;

    /// How many MiB the address space of the paging process is to have
    /// (`DXGKQAITYPE_PAGINGPROCESSGPUVASIZE`), on the physical adapter with the number `adapter`,
    /// which is 0 unless adapters are linked; 0 leaves it to the core. An error for an adapter that
    /// there is not.
    fn query_paging_va(&self, adapter: u32) -> Result<u32, Self::Error>;

    /// What scheduling it is made for (`DXGKQAITYPE_DRIVERCAPS`): the bits of `DXGK_VIDSCHCAPS`,
    /// which the core checks ([`SchedulingCaps`](super::scheduling_caps::SchedulingCaps)).
    fn query_scheduling_caps(&self) -> u32;
}

/// The part of a driver that knows the GPU.
///
/// Which DDI of WDDM's a function has the part of; the first two are of [`AdapterInfo`]:
///
/// ```text
/// query_paging_va         DxgkDdiQueryAdapterInfo (DXGKQAITYPE_PAGINGPROCESSGPUVASIZE)
/// query_scheduling_caps   DxgkDdiQueryAdapterInfo (DXGKQAITYPE_DRIVERCAPS)
/// query_segments          DxgkDdiQueryAdapterInfo (DXGKQAITYPE_QUERYSEGMENT4)
/// build_paging_buffer     DxgkDdiBuildPagingBuffer (DXGK_OPERATION_VIRTUAL_FILL,
///                         _VIRTUAL_TRANSFER, _DISCARD_CONTENT, _INIT_CONTEXT_RESOURCE)
/// submit_command          DxgkDdiSubmitCommandVirtual; of a paging buffer DxgkDdiSubmitCommand
/// cancel_command          DxgkDdiCancelCommand
/// query_current_fence     DxgkDdiQueryCurrentFence
/// preempt_command         DxgkDdiPreemptCommand
/// reset_engine            DxgkDdiResetEngine
/// reset_from_timeout      DxgkDdiResetFromTimeout
/// restart_from_timeout    DxgkDdiRestartFromTimeout
/// set_root_page_table     DxgkDdiSetRootPageTable
/// update_page_table       DXGK_OPERATION_UPDATE_PAGE_TABLE, done by the CPU
/// flush_tlb               DXGK_OPERATION_FLUSH_TLB
/// map_aperture_segment    DXGK_OPERATION_MAP_APERTURE_SEGMENT, done by the CPU
/// unmap_aperture_segment  DXGK_OPERATION_UNMAP_APERTURE_SEGMENT, done by the CPU
/// map_cpu_host_aperture   DxgkDdiMapCpuHostAperture
/// unmap_cpu_host_aperture DxgkDdiUnmapCpuHostAperture
/// ```
pub trait Miniport {
    /// Why something cannot be done: the device is gone or broken, for good.
    type Error;
    /// What it keeps of a node's ring. Its lock is the core's.
    type Ring;
    /// The memory of one page table of [`ENTRIES`](crate::spec::mmu::ENTRIES) entries.
    type Table;
    /// Something that the GPU acknowledges.
    type Request: Copy;

    /// The segments, by their numbers, the implicit one first.
    fn query_segments(&self) -> [Segment; 3];

    /// Has a node fetch from its ring, which is empty from now on: at first and after each reset.
    /// Paging buffers that were submitted stay, as of [`Self::withdraw`]. `preemption` names the
    /// next request to stop. Allocates nothing.
    fn start_node(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        preemption: u64,
    ) -> Result<(), Self::Error>;

    /// Whether the ring takes `task` now.
    fn has_room(&self, ring: &Self::Ring, task: &Task<'_>) -> bool;

    /// Builds `pass`: writes a paging buffer that is free, for which [`Self::has_room`] says that
    /// there is one, and maps what it names in the paging process' address space.
    ///
    /// It is submitted next, by [`Self::submit_command`], unless the miniport wants the memory to
    /// be idle, and it is not: then it is asked again when it is. Allocates nothing.
    fn build_paging_buffer(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        pass: &Pass<'_>,
    ) -> Result<Built, Self::Error>;

    /// Writes `task` into the ring, which has room for it, and says where. The engine does not see
    /// it before [`Self::ring_doorbell`]. Allocates nothing.
    ///
    /// `resubmission`: the node was given it before, and has withdrawn it, or was reset
    /// (`DXGK_SUBMITCOMMANDFLAGS::Resubmission`, row 2.14). Then its paging buffer is the one that
    /// was submitted with this fence id.
    fn submit_command(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        task: &Task<'_>,
        completion: Completion,
        resubmission: bool,
    ) -> Result<RingSpan, Self::Error>;

    /// A buffer of commands that no node was given is not run any more: what is kept of it can go
    /// (row 2.23). Once for each, if the miniport
    /// [wants to know](super::scheduling_caps::SchedulingCaps::is_cancel_command_aware). Allocates
    /// nothing.
    fn cancel_command(&self, node: EngineIndex, context: ContextSlot, va: GpuVa, bytes: u32);

    /// Tells the engine of what was written since the last time, if there is anything, by one
    /// register write. Whether there was. Allocates nothing.
    fn ring_doorbell(&self, node: EngineIndex, ring: &mut Self::Ring) -> Result<bool, Self::Error>;

    /// The ring up to the end of `span` can be written over: the packets up to the one there,
    /// whose fence id is `fence`, have ended. What was mapped for their paging operations is not
    /// any more. Allocates nothing.
    fn retire(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        span: RingSpan,
        fence: u64,
    ) -> Result<(), Self::Error>;

    /// The fence id that a node reported last; nobody has checked it. No register is read.
    fn query_current_fence(&self, node: EngineIndex) -> Result<u64, Self::Error>;

    /// Asks a node to stop where it can and to withdraw what it has not done. Until it has, nothing
    /// is written into its ring, and it is not asked again. `fence` names the request, as
    /// [`Self::start_node`] or [`Self::withdraw`] was told. Allocates nothing.
    fn preempt_command(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        fence: u64,
    ) -> Result<(), Self::Error>;

    /// What became of the request that was made last, once it has stopped; nobody has checked it.
    /// No register is read.
    fn query_preemption(
        &self,
        node: EngineIndex,
        ring: &Self::Ring,
    ) -> Result<Option<Preemption>, Self::Error>;

    /// A node has withdrawn what is in its ring, all of which can be written over. Paging buffers
    /// that were submitted stay: their tasks are submitted again, with the same fence ids
    /// (row 2.14). `preemption` names the next request to stop. Allocates nothing.
    fn withdraw(
        &self,
        node: EngineIndex,
        ring: &mut Self::Ring,
        preemption: u64,
    ) -> Result<(), Self::Error>;

    /// Has a node stop and forget what it was doing, unless it has ended the packet with fence id
    /// `fence` by then: then it goes on. 0: in any case. When that is acknowledged, a node that has
    /// stopped does nothing until [`Self::start_node`], and all its faults are reported.
    fn reset_engine(&self, node: EngineIndex, fence: u64) -> Result<Self::Request, Self::Error>;

    /// Has the whole adapter stop and forget, memory segments included. What it does in memory is
    /// over when [`Self::is_reset`] says so. What it was asked for before that is done when it has
    /// [restarted](Self::has_restarted), and so is what it is asked for until then.
    fn reset_from_timeout(&self) -> Result<(), Self::Error>;

    /// Whether an adapter reset is over. An error if nothing answers any more.
    fn is_reset(&self) -> Result<bool, Self::Error>;

    /// The adapter was reset: has it use what it shares with the driver, and show by its apertures
    /// what they showed. Nodes are started after that. Allocates nothing.
    fn restart_from_timeout(&self) -> Result<(), Self::Error>;

    /// Whether it uses and shows all that [`Self::restart_from_timeout`] has told it of.
    fn has_restarted(&self) -> Result<bool, Self::Error>;

    /// Says which address space a context's work runs in, before it first has any.
    fn set_root_page_table(
        &self,
        context: ContextSlot,
        root: Entry,
        asid: Asid,
    ) -> Result<(), Self::Error>;

    /// Bus address of a page table, which never changes.
    fn page_table_address(&self, table: &Self::Table) -> BusAddr;

    /// Entry number `index` of a page table, as last written.
    fn read_page_table(&self, table: &Self::Table, index: usize) -> Result<Entry, Self::Error>;

    /// Writes an entry of a page table, whole: a GPU that walks at any moment sees the old one or
    /// the new one. Allocates nothing.
    fn update_page_table(
        &self,
        table: &Self::Table,
        index: usize,
        entry: Entry,
    ) -> Result<(), Self::Error>;

    /// What was written to page tables before is seen before what is written after.
    fn order_page_tables(&self);

    /// Has all nodes forget the translations of an address space, or of all.
    fn flush_tlb(&self, asid: Option<Asid>) -> Result<Self::Request, Self::Error>;

    /// Has pages of an aperture segment's window, which show the dummy page, show the system memory
    /// of `pieces`, in order, as much as they are; `cached` if the CPU has that cached: the GPU
    /// snoops (`DXGK_MAPAPERTUREFLAGS::CacheCoherent`). The GPU sees it when the system's
    /// translations are flushed after that. Allocates nothing.
    fn map_aperture_segment(
        &self,
        segment: u32,
        pages: PageRange,
        pieces: &mut dyn Iterator<Item = PhysPiece>,
        cached: bool,
    ) -> Result<(), Self::Error>;

    /// Has pages of an aperture segment's window show the miniport's dummy page. The memory behind
    /// them is not reached when the system's translations are flushed after that. Allocates
    /// nothing.
    fn unmap_aperture_segment(&self, segment: u32, pages: PageRange) -> Result<(), Self::Error>;

    /// Has pages of the CPU host aperture, which show nothing, show pages of a segment, which no
    /// other page of it shows: all of them, or none. They do when that is acknowledged, until they
    /// are unmapped.
    fn map_cpu_host_aperture(
        &self,
        segment: u32,
        pages: &[AperturePage],
    ) -> Result<Self::Request, Self::Error>;

    /// Has pages of the CPU host aperture, of which the CPU has no mapping any more, show nothing.
    /// When that is acknowledged, what the CPU wrote is in the segment.
    fn unmap_cpu_host_aperture(
        &self,
        segment: u32,
        pages: &[u32],
    ) -> Result<Self::Request, Self::Error>;

    /// Whether the GPU has acknowledged a request. No register is read.
    fn is_done(&self, request: Self::Request) -> Result<bool, Self::Error>;
}
