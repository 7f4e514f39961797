// SPDX-License-Identifier: GPL-2.0

//! The miniport: what the rest of the driver asks of this GPU, in terms of its registers, rings and
//! tables.
//!
//! Nothing here decides, waits, or takes a lock but those of the counts of flushes.

use crate::{
    ext::devres::{
        Lasting,
        Refuge, //
    },
    hardware::{
        caps::{
            Caps,
            GART_PAGES, //
        },
        registers::Registers,
        shared::{
            Shared,
            PAGING_ASID,
            PAGING_CONTEXT,
            RING_SIZE, //
        }, //
    },
    kernel_heap::client_flags,
    policy::{
        aperture_table,
        buddy::PageRange,
        miniport::{
            AperturePage,
            Built,
            Completion,
            ContextPage,
            Flush,
            Miniport,
            PagingOperation,
            Pass,
            Preemption,
            RingSpan,
            Segment,
            Stop,
            Task,
            APERTURE_SEGMENT,
            VRAM_SEGMENT, //
        },
        page_plan::PhysPiece,
        paging::{
            Action,
            PagingSpace,
            WINDOWS, //
        },
        ring_space::RingSpace, //
    },
    spec::{
        address::{
            BusAddr,
            GpuPhys,
            GpuVa,
            PAGE_SIZE, //
        },
        command::Command,
        context::{
            Buffer,
            Descriptor,
            IMAGE_FORMAT, //
        },
        fault,
        mmu::{
            Entry,
            Target,
            ENTRIES, //
        },
        number::{
            Asid,
            ContextSlot,
            EngineIndex, //
        },
        preemption,
        regs,
        status, //
    }, //
};
use core::ops::Range;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    dma::Coherent,
    io::{
        io_read,
        io_write, //
    },
    new_mutex,
    new_spinlock,
    prelude::*,
    revocable::RevocableGuard,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        barrier,
        Arc,
        Mutex,
        SpinLock, //
    }, //
};

/// Ends of packets that share an interrupt at most: the engine goes on meanwhile with as many.
const MODERATED_ENDS: u8 = 8;
/// By how much of a second an interrupt may come later for that.
const MODERATED_SHARE: u32 = 2_000_000;
/// The longest ring command, in bytes.
const LONGEST: u32 = 40;
/// How many entries of the aperture's table between two that have changed are read again rather
/// than asked for by another request: 512 bytes of them.
const FLUSHED_BETWEEN: u32 = 64;

/// The device as this driver reaches it.
#[pin_data]
pub(crate) struct Hardware {
    /// What the device said of itself at probe.
    pub(crate) caps: Caps,
    /// Written for work, read for probe and recovery only.
    regs: Registers,
    /// Status page, rings, descriptors; revoked at unbind.
    shared: Devres<Lasting<Shared>>,
    /// Where these are from unbind on, if the device may still reach them.
    refuge: Arc<Refuge<Shared>>,
    /// Flushes requested since the adapter was reset, modulo 2^32: the number of the last one, as
    /// the device counts them. Held over the register write, so that numbers and writes have one
    /// order.
    #[pin]
    flushes: SpinLock<u32>,
    /// The same for flushes of the CPU host aperture, whose table is changed under it. Taken before
    /// that.
    #[pin]
    aperture_flushes: Mutex<u32>,
    /// Twice how often the adapter was reset, and one less from the beginning of a reset until it
    /// has restarted: then no flush of TLBs is requested, as nothing is kept. Changed under both of
    /// these.
    generation: Atomic<u32>,
    /// Number of the fault record that is read next, modulo 2^32.
    next_fault: Atomic<u32>,
    /// Entries of page tables that were written since probe.
    pub(crate) entries: Atomic<u64>,
    /// Whether memory has to be idle to be paged. This GPU bears it if not: a knob of debugfs.
    pub(crate) wants_idle: Atomic<bool>,
    /// How often a paging buffer was refused since memory that had to be idle was not.
    pub(crate) busy: Atomic<u64>,
    /// Buffers of commands that were cancelled before an engine was given them.
    pub(crate) cancelled: Atomic<u64>,
}

/// What the miniport keeps of a window of the paging process' address space, with its buffer.
#[derive(Clone, Copy, Default)]
struct WindowUse {
    /// The fence id of the packet that has it; 0 if none has.
    fence: u64,
    /// What is mapped of the segment, and of system memory: first address and bytes.
    mapped: [(u64, u64); 2],
    /// Bytes of commands in its paging buffer.
    bytes: u32,
}

/// What the miniport keeps of a node's ring, under the engine's lock.
pub(crate) struct Ring {
    /// Which bytes the engine may still have to read, and where the next command goes.
    space: RingSpace,
    /// The tail that the engine was told last, in bytes.
    told: u32,
    /// The windows, of the one node that pages.
    windows: [WindowUse; WINDOWS as usize],
    /// The window whose buffer was built and not submitted.
    built: Option<u32>,
    /// Number of the preemption that was asked for last, modulo 2^32.
    preemption: u32,
}

impl Ring {
    /// The ring of an engine that was not started. `EINVAL`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            space: RingSpace::new(RING_SIZE, 8).map_err(|_| EINVAL)?,
            told: 0,
            windows: Default::default(),
            built: None,
            preemption: 0,
        })
    }

    /// Offsets of what the engine has still to read, as far as it is known, for reports.
    pub(crate) fn bounds(&self) -> (u32, u32) {
        (self.space.head(), self.space.tail())
    }
}

/// What the device acknowledges.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    /// The reset of an engine, whose count of resets was this.
    Reset(EngineIndex, u32),
    /// The flush with this number, by all engines.
    Flush {
        /// [`Hardware::generation`] when it was asked for: a reset has done it, too.
        generation: u32,
        /// Its number among all that were asked for, modulo 2^32.
        flush: u32,
    },
    /// The flush of the CPU host aperture with this number, before which so many entries had been
    /// refused.
    Aperture {
        /// [`Hardware::generation`] when it was asked for: a reset has done it, too.
        generation: u32,
        /// Its number among all that were asked for, modulo 2^32.
        flush: u32,
        /// Operations that the device has refused so far, modulo 2^32.
        refused: u32,
    },
}

impl Hardware {
    /// Takes the device over, with a paging process that has `paging`. `ENOMEM`.
    pub(crate) fn new(
        parent: &Device<Bound>,
        regs: Registers,
        caps: Caps,
        paging: PagingSpace,
    ) -> Result<impl PinInit<Self, Error>> {
        let refuge = Refuge::new()?;
        let shared = Lasting::new(Shared::new(parent, &caps, paging)?, &refuge);
        let shared = Devres::new(parent, Ok::<_, Error>(shared))?;
        Ok(try_pin_init!(Self {
            caps,
            regs,
            shared,
            refuge,
            flushes <- new_spinlock!(0),
            aperture_flushes <- new_mutex!(0),
            generation: Atomic::new(0),
            next_fault: Atomic::new(0),
            entries: Atomic::new(0),
            wants_idle: Atomic::new(false),
            busy: Atomic::new(0),
            cancelled: Atomic::new(0),
        }))
    }

    /// The memory that is shared with the device: no unbind ends while it is looked at, so nobody
    /// sleeps meanwhile. `ENODEV` once it is gone.
    pub(crate) fn shared(&self) -> Result<RevocableGuard<'_, Lasting<Shared>>> {
        self.shared.try_access().ok_or(ENODEV)
    }

    /// Has what is shared with the device stay when that is unbound: it may still reach it.
    pub(crate) fn keep_shared(&self) {
        self.refuge.keep();
    }

    /// How many registers were read since probe, and written.
    pub(crate) fn register_accesses(&self) -> (u64, u64) {
        (self.regs.reads(), self.regs.writes())
    }

    /// Whether something answers at the registers, and it is this device. Reads a register.
    pub(crate) fn is_present(&self) -> bool {
        self.regs.read(regs::ID) == Ok(regs::ID::SKUA)
    }

    /// Has the device copy its counters to where [`Shared::counter`] finds them;
    /// [`Shared::snapshot_ack`] changes then, and a reset forgets it. `ENODEV`.
    pub(crate) fn take_snapshot(&self) -> Result {
        self.regs.write(regs::SNAPSHOT::new())
    }

    /// The next fault record, with its number, if there is one: [`None`] in place of one that makes
    /// no sense. The device may write others in its place then. `ENODEV`. By one caller at a time.
    pub(crate) fn next_fault(&self) -> Result<Option<(u32, Option<fault::Record>)>> {
        let number = self.next_fault.load(Relaxed);
        let record = {
            let shared = self.shared()?;
            if shared.fault_put()? == number {
                return Ok(None);
            }
            shared.fault(number)?
        };
        let read = number.wrapping_add(1);
        self.next_fault.store(read, Relaxed);
        self.regs.write(regs::FAULT_GET::new().with_records(read))?;
        Ok(Some((number, record)))
    }

    /// Changes when the adapter is reset, and when it has restarted.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Whether what was asked for at an earlier `generation` is done by a reset; none if there was
    /// no reset.
    fn is_done_by_reset(&self, generation: u32) -> Option<bool> {
        match self.generation().wrapping_sub(generation) {
            0 => (generation % 2 == 1).then_some(false),
            later => Some(later > 1 || generation % 2 == 1),
        }
    }

    /// Tells the device where the memory is that it shares with the driver. `ENODEV`.
    fn share(&self) -> Result {
        let (status, gart, aperture) = {
            let shared = self.shared()?;
            (
                shared.status_address(),
                shared.gart_address(),
                shared.aperture_address(),
            )
        };
        self.regs.write(regs::STATUS::new().with_address(status))?;
        self.regs
            .write(regs::STATUS_CTRL::new().with_enable(true))?;
        if let Some(address) = aperture {
            self.regs
                .write(regs::APERTURE_TABLE::new().with_address(address))?;
        }
        self.regs
            .write(regs::GART_TABLE::new().with_address(gart))?;
        self.regs
            .write(regs::GART_PAGES::new().with_pages(self.caps.gart_pages))
    }

    /// GPU-physical address of a segment's first byte. `EINVAL` for one without addresses.
    fn base(&self, segment: u32) -> Result<GpuPhys> {
        match segment {
            VRAM_SEGMENT => Ok(self.caps.vram_base),
            _ => Err(EINVAL),
        }
    }

    /// What the aperture can show of a segment. `EINVAL` if there is none, or it shows nothing of
    /// that.
    fn aperture_layout(&self, segment: u32) -> Result<aperture_table::Layout> {
        let aperture = self.caps.aperture.ok_or(EINVAL)?;
        match segment {
            VRAM_SEGMENT => Ok(aperture_table::Layout {
                pages: aperture.pages,
                page: aperture.page,
                hidden: self.caps.vram_visible..self.caps.vram_size,
            }),
            _ => Err(EINVAL),
        }
    }

    /// `EINVAL` unless these pages are all of the aperture segment.
    fn check_segment_pages(&self, segment: u32, pages: PageRange) -> Result {
        let own = u64::from(GART_PAGES);
        match pages.end() {
            Some(end)
                if segment == APERTURE_SEGMENT
                    && pages.start.0 >= own
                    && end.0 <= self.caps.gart_pages.into() =>
            {
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Has the device look at the entries of `pages`, which were written before; with the fewest
    /// requests if they are in order. `flushes` is [`Self::aperture_flushes`], which is held.
    fn flush_aperture(
        &self,
        flushes: &mut u32,
        pages: impl Iterator<Item = u32>,
    ) -> Result<Request> {
        let generation = self.generation();
        if generation % 2 == 1 && *flushes == 0 {
            // All of the table is looked at later.
            return Ok(Request::Aperture {
                generation,
                flush: 0,
                refused: 0,
            });
        }
        let refused = {
            let shared = self.shared()?;
            shared.aperture_refused()?
        };
        barrier::dma_mb(barrier::Write);
        let mut flush = |pages: Range<u32>| -> Result {
            self.regs.write(
                regs::APERTURE_FLUSH::new()
                    .with_first(u16::try_from(pages.start)?)
                    .with_count(u16::try_from(pages.len())?),
            )?;
            *flushes = flushes.wrapping_add(1);
            Ok(())
        };
        // Those that are near each other together: what is between them stays as it is.
        let mut run: Option<Range<u32>> = None;
        for page in pages {
            let end = page.checked_add(1).ok_or(EINVAL)?;
            run = match run {
                Some(run)
                    if (run.end..=run.end.saturating_add(FLUSHED_BETWEEN)).contains(&page) =>
                {
                    Some(run.start..end)
                }
                Some(run) => {
                    flush(run)?;
                    Some(page..end)
                }
                None => Some(page..end),
            };
        }
        if let Some(run) = run {
            flush(run)?;
        }
        Ok(Request::Aperture {
            generation,
            flush: *flushes,
            refused,
        })
    }

    /// Closes the windows of the packets up to fence id `last`.
    fn close_windows(&self, ring: &mut Ring, last: u64) -> Result {
        let taken = ring.windows.iter_mut();
        for window in taken.filter(|window| (1..=last).contains(&window.fence)) {
            let shared = self.shared()?;
            for (va, bytes) in window.mapped {
                shared.paging.clear(va, bytes)?;
            }
            *window = WindowUse::default();
        }
        Ok(())
    }

    /// Says what names the next request to stop: now, so that who makes it, on the way of a
    /// submission, writes one register.
    fn name_preemption(&self, node: EngineIndex, fence: u64) -> Result {
        let name = regs::engine::PREEMPT_FENCE::new().with_fence(fence);
        self.regs.write_engine(node, name)
    }

    /// The context that `node` holds, if it holds one; its own for paging is one. What it left it
    /// does not write to any more. `ENODEV`, `EIO`.
    pub(crate) fn held(&self, node: EngineIndex) -> Result<Option<ContextSlot>> {
        let shared = self.shared()?;
        shared.held(&self.caps, node)
    }

    /// A zeroed page, for a table. `ENOMEM`.
    pub(crate) fn page(parent: &Device<Bound>) -> Result<Coherent<[u64]>> {
        Coherent::zeroed_slice(parent, ENTRIES, client_flags())
    }
}

/// Writes `command` where the ring goes on.
fn emit(shared: &Shared, node: EngineIndex, space: &mut RingSpace, command: &Command) -> Result {
    let encoded = command.encode();
    let words = encoded.words();
    let slot = space
        .reserve(u32::try_from(words.len() * 4)?)
        .map_err(|_| EIO)?;
    if slot.pad > 0 {
        let nop = Command::Nop {
            words: u16::try_from(slot.pad / 4)?,
        };
        let nop = nop.encode();
        // What it skips is not read.
        shared.write_ring(node, slot.pad_at, nop.words().get(..2).ok_or(EIO)?)?;
    }
    shared.write_ring(node, slot.at, words)?;
    space.commit(slot).map_err(|_| EIO)?;
    Ok(())
}

/// Has all engines drop translations in the ring's order: what comes behind it finds that they
/// have.
fn invalidate(flush: Flush, mut emit: impl FnMut(&Command) -> Result) -> Result {
    let asid = match flush {
        Flush::Nothing => return Ok(()),
        Flush::Of(asid) => Some(asid),
        Flush::All => None,
    };
    emit(&Command::Invalidate { asid })
}

/// Adds `[va, va + bytes)`, behind what is there already, to a range.
fn extend(range: &mut (u64, u64), va: u64, bytes: u64) {
    if range.1 == 0 {
        range.0 = va;
    }
    // No overflow: within a window.
    range.1 = va.saturating_add(bytes).saturating_sub(range.0);
}

impl Miniport for Hardware {
    type Error = Error;
    type Ring = Ring;
    type Table = Coherent<[u64]>;
    type Request = Request;

    fn query_segments(&self) -> [Segment; 3] {
        self.caps.segments()
    }

    fn start_node(&self, node: EngineIndex, ring: &mut Ring, preemption: u64) -> Result {
        ring.space.reset();
        ring.told = 0;
        ring.built = None;
        ring.preemption = {
            let shared = self.shared()?;
            shared.engine32(node, status::engine::PREEMPT_SEQ)?
        };
        self.name_preemption(node, preemption)?;
        let address = Shared::ring_address(&self.caps, node)?;
        let regs = &self.regs;
        regs.write_engine(node, regs::engine::RING_BASE::new().with_address(address))?;
        regs.write_engine(node, regs::engine::RING_SIZE::new().with_bytes(RING_SIZE))?;
        if self.caps.has_queues {
            let ticks = self.caps.tick_hz / MODERATED_SHARE;
            let moderation = regs::engine::MODERATION::new().with_ends(MODERATED_ENDS);
            let ticks = u16::try_from(ticks).unwrap_or(u16::MAX);
            regs.write_engine(node, moderation.with_ticks(ticks))?;
        }
        regs.write_engine(node, regs::engine::CTRL::new().with_enable(true))
    }

    fn has_room(&self, ring: &Ring, task: &Task<'_>) -> bool {
        let commands = match task {
            Task::Virtual { .. } | Task::Switch => 1,
            // The flush.
            Task::Null(_) => 2,
            // The flushes, and the buffer in a window of its own.
            Task::Paging(..) if ring.windows.iter().all(|window| window.fence != 0) => {
                return false
            }
            Task::Paging(..) => 3,
        };
        // And as much padding as the longest command.
        ring.space.space() >= (commands + 1) * LONGEST
    }

    fn build_paging_buffer(
        &self,
        _node: EngineIndex,
        ring: &mut Ring,
        pass: &Pass<'_>,
    ) -> Result<Built> {
        if !pass.idle && self.wants_idle.load(Relaxed) {
            self.busy.fetch_add(1, Relaxed);
            return Ok(Built::Busy);
        }
        let operation = &pass.operation;
        let shared = self.shared()?;
        let paging = &shared.paging;
        let mut windows = (0..).zip(&mut ring.windows);
        let (number, taken) = windows.find(|(_, taken)| taken.fence == 0).ok_or(EIO)?;
        let base = match *operation {
            PagingOperation::Fill { segment, .. }
            | PagingOperation::Transfer { segment, .. }
            | PagingOperation::Discard { segment, .. }
            | PagingOperation::InitContextResource(ContextPage::Segment(segment, _)) => {
                self.base(segment)?
            }
            PagingOperation::InitContextResource(ContextPage::System(_)) => GpuPhys(0),
        };
        let out = matches!(operation, PagingOperation::Transfer { out: true, .. });
        let cached = matches!(operation, PagingOperation::Transfer { cached: true, .. });
        let [ref mut segment_mapped, ref mut system_mapped] = taken.mapped;
        let mut end = 0;
        let rest = operation.pass(pass.from, paging.space.window(number), |step| {
            let (va, bytes) = (step.va.0, step.bytes());
            let offset = step.block.start.0.saturating_mul(PAGE_SIZE);
            let memory = base.checked_add(offset).ok_or(EINVAL)?;
            let (target, snoops) = match step.action {
                Action::InitContextResource(Some(bus)) => (Target::System(bus), true),
                _ => (Target::Vram(memory), false),
            };
            paging.map(va, bytes, target, !out, snoops)?;
            extend(segment_mapped, va, bytes);
            let command = match step.action {
                Action::InitContextResource(_) => Command::Fill {
                    pattern: IMAGE_FORMAT,
                    address: va,
                    // The word that tells that it is one.
                    bytes: 4,
                },
                Action::Fill => Command::Fill {
                    pattern: 0,
                    address: va,
                    bytes,
                },
                Action::Transfer(bus, system) => {
                    paging.map(system.0, bytes, Target::System(bus), out, cached)?;
                    extend(system_mapped, system.0, bytes);
                    let (source, destination) = if out { (va, system.0) } else { (system.0, va) };
                    Command::Copy {
                        source,
                        destination,
                        bytes,
                    }
                }
            };
            let encoded = command.encode();
            paging.write_buffer(number, end, encoded.words())?;
            end += u32::try_from(encoded.words().len() * 4)?;
            Ok::<(), Error>(())
        })?;
        // Before the command that has it looked at.
        barrier::dma_mb(barrier::Write);
        taken.bytes = end;
        ring.built = Some(number);
        Ok(rest.map_or(Built::Last, Built::Full))
    }

    fn submit_command(
        &self,
        node: EngineIndex,
        ring: &mut Ring,
        task: &Task<'_>,
        completion: Completion,
        resubmission: bool,
    ) -> Result<RingSpan> {
        let shared = self.shared()?;
        let start = ring.space.tail();
        let Completion { fence, interrupt } = completion;
        let mut emit = |command: &Command| emit(&shared, node, &mut ring.space, command);
        match *task {
            Task::Virtual {
                context,
                number,
                va,
                bytes,
                resume,
            } => {
                let descriptor = Shared::descriptor_address(&self.caps, context)?.0;
                let (base, start, end) = (va, 0, bytes);
                emit(&if self.caps.has_queues {
                    shared.enqueue(context, number, Buffer { base, start, end })?;
                    Command::Run {
                        context: descriptor,
                        number,
                        fence: Some(fence),
                        interrupt,
                        resume,
                    }
                } else {
                    Command::Exec {
                        context: descriptor,
                        base: base.0,
                        start,
                        end,
                        fence: Some(fence),
                        interrupt,
                        resume,
                    }
                })?;
            }
            Task::Paging(_, flush) => {
                invalidate(flush, &mut emit)?;
                let mut windows = (0..).zip(&mut ring.windows);
                let (number, taken) = match resubmission {
                    true => windows.find(|(_, taken)| taken.fence == fence),
                    false => windows.find(|(number, _)| ring.built == Some(*number)),
                }
                .ok_or(EIO)?;
                ring.built = None;
                taken.fence = fence;
                let bytes = taken.bytes;
                if bytes == 0 {
                    // Nothing for an engine to do.
                    emit(&Command::Fence { fence, interrupt })?;
                } else {
                    emit(&Command::FlushTlb {
                        asid: Some(PAGING_ASID),
                    })?;
                    emit(&Command::Exec {
                        context: Shared::descriptor_address(&self.caps, PAGING_CONTEXT)?.0,
                        base: shared.paging.space.window(number).buffer().0,
                        start: 0,
                        end: bytes,
                        fence: Some(fence),
                        interrupt,
                        resume: false,
                    })?;
                }
            }
            Task::Null(flush) => {
                invalidate(flush, &mut emit)?;
                emit(&Command::Fence { fence, interrupt })?;
            }
            Task::Switch => emit(&Command::Switch {
                fence: Some(fence),
                interrupt,
            })?,
        }
        Ok(RingSpan {
            start,
            end: ring.space.tail(),
        })
    }

    fn ring_doorbell(&self, node: EngineIndex, ring: &mut Ring) -> Result<bool> {
        let tail = ring.space.tail();
        if tail == ring.told {
            return Ok(false);
        }
        let doorbell = regs::engine::DOORBELL::new().with_tail(tail);
        self.regs.write_engine(node, doorbell)?;
        ring.told = tail;
        Ok(true)
    }

    fn retire(&self, _: EngineIndex, ring: &mut Ring, span: RingSpan, fence: u64) -> Result {
        ring.space.advance(span.end).map_err(|_| EIO)?;
        self.close_windows(ring, fence)
    }

    fn query_current_fence(&self, node: EngineIndex) -> Result<u64> {
        let shared = self.shared()?;
        shared.engine64(node, status::engine::COMPLETED_FENCE)
    }

    fn cancel_command(&self, _: EngineIndex, _: ContextSlot, _: GpuVa, _: u32) {
        // What stands in a context's queue in memory was started.
        self.cancelled.fetch_add(1, Relaxed);
    }

    fn preempt_command(&self, node: EngineIndex, ring: &mut Ring, _: u64) -> Result {
        ring.preemption = ring.preemption.wrapping_add(1);
        let request = regs::engine::PREEMPT::new().with_request(true);
        self.regs.write_engine(node, request)
    }

    fn query_preemption(&self, node: EngineIndex, ring: &Ring) -> Result<Option<Preemption>> {
        let shared = self.shared()?;
        if shared.engine32(node, status::engine::PREEMPT_SEQ)? != ring.preemption {
            return Ok(None);
        }
        let cause = shared.engine32(node, status::engine::PREEMPT_CAUSE)?;
        Ok(Some(Preemption {
            fence: shared.engine64(node, status::engine::PREEMPT_FENCE)?,
            completed: shared.engine64(node, status::engine::PREEMPT_COMPLETED)?,
            stop: match preemption::Cause::from_u32(cause).ok_or(EIO)? {
                preemption::Cause::Idle | preemption::Cause::Between => Stop::Between,
                preemption::Cause::Within => Stop::Within,
                preemption::Cause::Waiting => Stop::Waiting,
            },
        }))
    }

    fn withdraw(&self, node: EngineIndex, ring: &mut Ring, preemption: u64) -> Result {
        let tail = ring.space.tail();
        ring.space.advance(tail).map_err(|_| EIO)?;
        self.name_preemption(node, preemption)
    }

    fn reset_engine(&self, node: EngineIndex, fence: u64) -> Result<Request> {
        let before = {
            let shared = self.shared()?;
            shared.engine32(node, status::engine::RESET_ACK)?
        };
        let name = regs::engine::RESET_FENCE::new().with_fence(fence);
        self.regs.write_engine(node, name)?;
        let reset = regs::engine::CTRL::new().with_reset(true);
        self.regs.write_engine(node, reset)?;
        Ok(Request::Reset(node, before))
    }

    fn reset_from_timeout(&self) -> Result {
        let mut aperture_flushes = self.aperture_flushes.lock();
        let mut flushes = self.flushes.lock();
        (*flushes, *aperture_flushes) = (0, 0);
        // Not twice, if the last one did not end.
        let generation = self.generation() | 1;
        self.generation.store(generation, Release);
        self.regs.write(regs::DEVICE_CTRL::new().with_reset(true))
    }

    fn is_reset(&self) -> Result<bool> {
        let status = self.regs.read(regs::DEVICE_STATUS)?;
        if status.is_absent() {
            return Err(ENODEV);
        }
        Ok(status.ready())
    }

    fn restart_from_timeout(&self) -> Result {
        self.shared()?.forget_counts()?;
        self.next_fault.store(0, Relaxed);
        self.share()?;
        let Some(aperture) = self.caps.aperture else {
            return Ok(());
        };
        let mut flushes = self.aperture_flushes.lock();
        for first in (0..aperture.pages).step_by(usize::from(u16::MAX)) {
            self.regs.write(
                regs::APERTURE_FLUSH::new()
                    .with_first(u16::try_from(first)?)
                    .with_count(u16::MAX),
            )?;
            *flushes = flushes.wrapping_add(1);
        }
        Ok(())
    }

    fn has_restarted(&self) -> Result<bool> {
        let aperture_flushes = self.aperture_flushes.lock();
        let _flushes = self.flushes.lock();
        let shared = self.shared()?;
        if shared.aperture_ack()? != *aperture_flushes {
            return Ok(false);
        }
        for (node, _) in EngineIndex::ALL.into_iter().zip(&self.caps.engines) {
            if shared.engine32(node, status::engine::RESET_ACK)? == Shared::NO_BLOCK {
                return Ok(false);
            }
        }
        let generation = self.generation();
        // Even: what is asked for from now on is not done by this reset.
        self.generation
            .store(generation.wrapping_add(generation % 2), Release);
        Ok(true)
    }

    fn set_root_page_table(&self, context: ContextSlot, root: Entry, asid: Asid) -> Result {
        let descriptor = Descriptor {
            root,
            asid,
            context_id: context.get().checked_add(1).ok_or(EOVERFLOW)?,
            save: None,
        };
        let queue = match self.caps.has_queues {
            true => Some(Shared::queue(&self.caps, context)?),
            false => None,
        };
        let shared = self.shared()?;
        shared.write_descriptor(context, descriptor, queue)
    }

    fn page_table_address(&self, table: &Coherent<[u64]>) -> BusAddr {
        BusAddr(table.dma_address())
    }

    fn read_page_table(&self, table: &Coherent<[u64]>, index: usize) -> Result<Entry> {
        Ok(Entry(io_read!(table, [try: index])))
    }

    fn update_page_table(&self, table: &Coherent<[u64]>, index: usize, entry: Entry) -> Result {
        io_write!(table, [try: index], entry.0);
        self.entries.fetch_add(1, Relaxed);
        Ok(())
    }

    fn order_page_tables(&self) {
        barrier::dma_mb(barrier::Write);
    }

    fn flush_tlb(&self, asid: Option<Asid>) -> Result<Request> {
        let mut flushes = self.flushes.lock();
        let generation = self.generation();
        if generation % 2 == 0 {
            self.regs.write(regs::INVALIDATE::of(asid))?;
            *flushes = flushes.wrapping_add(1);
        }
        Ok(Request::Flush {
            generation,
            flush: *flushes,
        })
    }

    fn map_aperture_segment(
        &self,
        segment: u32,
        pages: PageRange,
        pieces: &mut dyn Iterator<Item = PhysPiece>,
        cached: bool,
    ) -> Result {
        self.check_segment_pages(segment, pages)?;
        let shared = self.shared()?;
        let mut left = (pages.start.0..).take(usize::try_from(pages.pages.0)?);
        for piece in pieces {
            // CAST: 4 KiB.
            for inside in (0..piece.len).step_by(PAGE_SIZE as usize) {
                let page = u32::try_from(left.next().ok_or(EINVAL)?)?;
                let bus = piece.start.checked_add(inside).ok_or(EINVAL)?;
                shared.map_gart(page, bus, cached)?;
            }
        }
        match left.next() {
            // Before the register write that has it looked at.
            None => barrier::dma_mb(barrier::Write),
            Some(_) => return Err(EINVAL),
        }
        Ok(())
    }

    fn unmap_aperture_segment(&self, segment: u32, pages: PageRange) -> Result {
        self.check_segment_pages(segment, pages)?;
        let shared = self.shared()?;
        for page in (pages.start.0..).take(usize::try_from(pages.pages.0)?) {
            shared.unmap_gart(u32::try_from(page)?)?;
        }
        barrier::dma_mb(barrier::Write);
        Ok(())
    }

    fn map_cpu_host_aperture(&self, segment: u32, pages: &[AperturePage]) -> Result<Request> {
        let mut flushes = self.aperture_flushes.lock();
        let layout = self.aperture_layout(segment)?;
        layout.map(&**self.shared()?, pages)?;
        self.flush_aperture(&mut flushes, pages.iter().map(|page| page.aperture))
    }

    fn unmap_cpu_host_aperture(&self, segment: u32, pages: &[u32]) -> Result<Request> {
        let mut flushes = self.aperture_flushes.lock();
        let layout = self.aperture_layout(segment)?;
        layout.unmap(&**self.shared()?, pages)?;
        self.flush_aperture(&mut flushes, pages.iter().copied())
    }

    fn is_done(&self, request: Request) -> Result<bool> {
        let shared = self.shared()?;
        match request {
            Request::Reset(node, before) => {
                Ok(shared.engine32(node, status::engine::RESET_ACK)? != before)
            }
            Request::Flush { generation, flush } => {
                if let Some(done) = self.is_done_by_reset(generation) {
                    return Ok(done);
                }
                for (node, _) in EngineIndex::ALL.into_iter().zip(&self.caps.engines) {
                    let ack = shared.engine32(node, status::engine::INVALIDATE_ACK)?;
                    // Modulo 2^32: at most half of it behind.
                    if ack.wrapping_sub(flush) >= 1 << 31 {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Request::Aperture {
                generation,
                flush,
                refused,
            } => {
                if let Some(done) = self.is_done_by_reset(generation) {
                    return Ok(done);
                }
                if shared.aperture_ack()?.wrapping_sub(flush) >= 1 << 31 {
                    return Ok(false);
                }
                // Said before it was acknowledged.
                if shared.aperture_refused()? != refused {
                    return Err(EIO);
                }
                Ok(true)
            }
        }
    }
}
