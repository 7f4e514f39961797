// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A miniport without a GPU, for tests: it records what is asked of it, holds the rings and page
//! tables, and refuses what a GPU could not bear.

use super::{
    buddy::{PageRange, PAGE_BYTES},
    miniport::{
        AdapterInfo, AperturePage, Built, Completion, ContextPage, Flush, Miniport,
        PagingOperation, Pass, Preemption, RingSpan, Segment, SegmentKind, Task,
    },
    page_plan::PhysPiece,
    paging::{MultipassOffset, PagingSpace, Step, MIB, WINDOWS},
    segments::SegmentFlags,
};
use crate::spec::{
    address::{BusAddr, GpuPhys, GpuVa, PAGE_SIZE},
    mmu::{self, Entry, PageSize, Target, ENTRIES, ROOT_LEVEL},
    number::{Asid, ContextSlot, EngineIndex},
};
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec::Vec;

/// What the core asked for, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Start,
    Build {
        /// Where the pass began.
        from: MultipassOffset,
        /// What [`Pass::idle`] was.
        idle: bool,
        /// What the core was told by that, and goes by.
        built: Built,
        /// What the paging buffer does, in its order.
        steps: Vec<Step>,
    },
    Submit {
        /// The task, without what it borrowed.
        what: What,
        /// How its end was to be told.
        completion: Completion,
        /// Whether it was submitted before, and withdrawn.
        resubmission: bool,
    },
    Doorbell,
    Retire {
        /// The slot behind the packet, which [`Ring::head`] is from then on.
        end: u32,
    },
    Preempt(u64),
    Cancel(ContextSlot, GpuVa, u32),
    Withdraw,
    Reset,
}

/// A task, without what it borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Virtual(ContextSlot, GpuVa, u32, bool),
    Fill(u32, MultipassOffset),
    Transfer(u32, bool, MultipassOffset, Flush),
    Null(Flush),
    Discard(u32, Vec<PageRange>, Flush),
    Init(ContextPage),
    Switch,
}

/// The GPU was gone when it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// A ring of slots, each as long as any task.
pub(crate) struct Ring {
    /// How many there are; one stays free, so that a full ring is told from an empty one.
    pub(crate) slots: u32,
    /// The first slot that is not retired.
    pub(crate) head: u32,
    /// The next slot to be written.
    pub(crate) tail: u32,
    /// The tail that the GPU was last told.
    told: u32,
    /// Paging buffers that were built.
    buffers: u32,
    /// The pass that was built and not submitted.
    built: Option<MultipassOffset>,
    /// By fence id, the passes that are in the ring, or were withdrawn.
    paging: BTreeMap<u64, MultipassOffset>,
}

impl Ring {
    pub(crate) fn new(slots: u32) -> Self {
        Ring {
            slots,
            head: 0,
            tail: 0,
            told: 0,
            buffers: 0,
            built: None,
            paging: BTreeMap::new(),
        }
    }

    fn used(&self) -> u32 {
        (self.tail + self.slots - self.head) % self.slots
    }
}

/// The memory of one page table.
#[derive(Clone)]
pub(crate) struct Memory {
    /// Its bus address, a multiple of [`PAGE_SIZE`]; no other table has it.
    address: u64,
    /// Its entries, [`ENTRIES`] of them, shared with the recorder, which walks them.
    words: Rc<RefCell<Vec<Entry>>>,
}

type Watcher = Box<dyn Fn(&Recorder)>;

#[derive(Default)]
pub(crate) struct Recorder {
    /// All of them that are recorded, the first one first; a test may empty it.
    pub(crate) calls: RefCell<Vec<Call>>,
    /// What [`Miniport::query_current_fence`] answers.
    pub(crate) reported: Cell<u64>,
    /// Whether memory has to be idle to be paged, or that is not enough either.
    pub(crate) wants_idle: Cell<Option<bool>>,
    /// What [`Miniport::query_preemption`] answers.
    pub(crate) preempted: Cell<Option<Preemption>>,
    /// Whether nothing answers any more.
    pub(crate) gone: Cell<bool>,
    /// By page of the CPU host aperture, the page of the segment that it shows.
    pub(crate) aperture: RefCell<BTreeMap<u32, u64>>,
    /// By page of the aperture segment's window, the bus address of what it shows instead of the
    /// dummy page, and whether that is snooped.
    pub(crate) gart: RefCell<BTreeMap<u64, (u64, bool)>>,
    /// All page tables that were made, by their bus address.
    tables: RefCell<BTreeMap<u64, Memory>>,
    /// Tables with entries that a walk may see later than what is written now.
    unordered: RefCell<Vec<u64>>,
    /// Called after each write to a page table: a GPU may walk at that moment.
    pub(crate) watcher: RefCell<Option<Watcher>>,
}

impl Recorder {
    /// A zeroed page table.
    pub(crate) fn table(&self) -> Memory {
        let mut tables = self.tables.borrow_mut();
        let address = (tables.len() as u64 + 1) * PAGE_SIZE;
        let memory = Memory {
            address,
            words: Rc::new(RefCell::new([Entry::INVALID; ENTRIES].to_vec())),
        };
        tables.insert(address, memory.clone());
        memory
    }

    /// What `va` translates to below `root`, by the rules of the manual's section 5.
    pub(crate) fn walk(&self, root: Entry, va: GpuVa) -> Option<(Target, bool)> {
        let mut entry = root;
        for level in (0..=ROOT_LEVEL).rev() {
            let Target::System(address) = entry.target() else {
                panic!("a table in VRAM: {entry:?}");
            };
            let tables = self.tables.borrow();
            let table = tables.get(&address.0).expect("a table");
            entry = table.words.borrow()[mmu::index(va, level)];
            if !entry.is_valid() {
                return None;
            }
            assert!(!entry.is_malformed(level), "level {level}: {entry:?}");
            if level == 1 && entry.is_large() {
                return Some(inside(entry, va, PageSize::Size2M));
            }
        }
        let size = if entry.is_large() {
            PageSize::Size64K
        } else {
            PageSize::Size4K
        };
        Some(inside(entry, va, size))
    }

    fn ask(&self) -> Result<(), Gone> {
        if self.gone.get() {
            return Err(Gone);
        }
        Ok(())
    }
}

/// Where the page of 4 KiB at `va` is in the page of `size` that `entry` maps, and whether it can
/// be written.
fn inside(entry: Entry, va: GpuVa, size: PageSize) -> (Target, bool) {
    let offset = va.0 & (size.bytes() - 1) & !(PAGE_SIZE - 1);
    let target = match entry.target() {
        Target::Vram(start) => Target::Vram(GpuPhys(start.0 + offset)),
        Target::System(start) => Target::System(BusAddr(start.0 + offset)),
    };
    (target, entry.is_writable())
}

impl AdapterInfo for Recorder {
    type Error = Gone;

    fn query_paging_va(&self, adapter: u32) -> Result<u32, Gone> {
        if adapter == 0 {
            Ok(1)
        } else {
            Err(Gone)
        }
    }

    fn query_scheduling_caps(&self) -> u32 {
        0
    }
}

impl Miniport for Recorder {
    type Error = Gone;
    type Ring = Ring;
    type Table = Memory;
    type Request = ();

    fn query_segments(&self) -> [Segment; 3] {
        let kind = SegmentKind::System;
        let flags = SegmentFlags::NONE;
        [0, 1, 2].map(|id| Segment { id, flags, kind })
    }

    fn start_node(&self, _: EngineIndex, ring: &mut Ring, _: u64) -> Result<(), Gone> {
        self.ask()?;
        (ring.head, ring.tail, ring.told) = (0, 0, 0);
        ring.built = None;
        self.calls.borrow_mut().push(Call::Start);
        Ok(())
    }

    fn has_room(&self, ring: &Ring, _task: &Task<'_>) -> bool {
        ring.used() + 1 < ring.slots
    }

    fn build_paging_buffer(
        &self,
        _node: EngineIndex,
        ring: &mut Ring,
        pass: &Pass<'_>,
    ) -> Result<Built, Gone> {
        self.ask()?;
        assert_eq!(ring.built, None, "what was built before is not submitted");
        let Pass { from, idle, .. } = *pass;
        let wants_idle = self.wants_idle.get();
        if wants_idle.is_some_and(|even_then| even_then || !idle) {
            return Ok(Built::Busy);
        }
        let window = PagingSpace::new(MIB)
            .expect("a size")
            .window(ring.buffers % WINDOWS);
        ring.buffers += 1;
        ring.built = Some(from);
        let mut steps = Vec::new();
        let rest = pass.operation.pass(from, window, |step| {
            steps.push(step);
            Ok::<(), Gone>(())
        })?;
        let built = rest.map_or(Built::Last, Built::Full);
        self.calls.borrow_mut().push(Call::Build {
            from,
            idle,
            built,
            steps,
        });
        Ok(built)
    }

    fn submit_command(
        &self,
        _node: EngineIndex,
        ring: &mut Ring,
        task: &Task<'_>,
        completion: Completion,
        resubmission: bool,
    ) -> Result<RingSpan, Gone> {
        self.ask()?;
        assert!(
            self.has_room(ring, task),
            "what the engine has not read is written over"
        );
        let start = ring.tail;
        ring.tail = (ring.tail + 1) % ring.slots;
        let what = match *task {
            Task::Virtual {
                context,
                va,
                bytes,
                resume,
                ..
            } => What::Virtual(context, va, bytes, resume),
            Task::Paging(pass, flush) => {
                let from = pass.from;
                let built = match resubmission {
                    true => ring.paging.get(&completion.fence).copied(),
                    false => ring.built.take(),
                };
                assert_eq!(built, Some(from), "another pass was built");
                ring.paging.insert(completion.fence, from);
                match pass.operation {
                    PagingOperation::Fill { segment, .. } => What::Fill(segment, from),
                    PagingOperation::Transfer { segment, out, .. } => {
                        What::Transfer(segment, out, from, flush)
                    }
                    PagingOperation::Discard { segment, blocks } => {
                        What::Discard(segment, blocks.to_vec(), flush)
                    }
                    PagingOperation::InitContextResource(page) => What::Init(page),
                }
            }
            Task::Null(flush) => What::Null(flush),
            Task::Switch => What::Switch,
        };
        self.calls.borrow_mut().push(Call::Submit {
            what,
            completion,
            resubmission,
        });
        Ok(RingSpan {
            start,
            end: ring.tail,
        })
    }

    fn ring_doorbell(&self, _node: EngineIndex, ring: &mut Ring) -> Result<bool, Gone> {
        self.ask()?;
        if ring.told == ring.tail {
            return Ok(false);
        }
        ring.told = ring.tail;
        self.calls.borrow_mut().push(Call::Doorbell);
        Ok(true)
    }

    fn retire(
        &self,
        _node: EngineIndex,
        ring: &mut Ring,
        span: RingSpan,
        fence: u64,
    ) -> Result<(), Gone> {
        ring.head = span.end;
        ring.paging.retain(|submitted, _| *submitted > fence);
        self.calls.borrow_mut().push(Call::Retire { end: span.end });
        Ok(())
    }

    fn cancel_command(&self, _: EngineIndex, context: ContextSlot, va: GpuVa, bytes: u32) {
        self.calls
            .borrow_mut()
            .push(Call::Cancel(context, va, bytes));
    }

    fn query_current_fence(&self, _node: EngineIndex) -> Result<u64, Gone> {
        self.ask()?;
        Ok(self.reported.get())
    }

    fn preempt_command(&self, _: EngineIndex, ring: &mut Ring, fence: u64) -> Result<(), Gone> {
        self.ask()?;
        assert_eq!(ring.told, ring.tail, "the engine does not know of all");
        self.preempted.set(None);
        self.calls.borrow_mut().push(Call::Preempt(fence));
        Ok(())
    }

    fn query_preemption(&self, _: EngineIndex, _: &Ring) -> Result<Option<Preemption>, Gone> {
        self.ask().map(|()| self.preempted.get())
    }

    fn withdraw(&self, _: EngineIndex, ring: &mut Ring, _: u64) -> Result<(), Gone> {
        self.ask()?;
        ring.head = ring.tail;
        self.calls.borrow_mut().push(Call::Withdraw);
        Ok(())
    }

    fn reset_engine(&self, _node: EngineIndex, _fence: u64) -> Result<(), Gone> {
        self.ask()?;
        self.calls.borrow_mut().push(Call::Reset);
        Ok(())
    }

    fn reset_from_timeout(&self) -> Result<(), Gone> {
        self.ask()
    }

    fn is_reset(&self) -> Result<bool, Gone> {
        self.ask().map(|()| true)
    }

    fn restart_from_timeout(&self) -> Result<(), Gone> {
        self.ask()
    }

    fn has_restarted(&self) -> Result<bool, Gone> {
        self.ask().map(|()| true)
    }

    fn set_root_page_table(&self, _: ContextSlot, _: Entry, _: Asid) -> Result<(), Gone> {
        self.ask()
    }

    fn page_table_address(&self, table: &Memory) -> BusAddr {
        BusAddr(table.address)
    }

    fn read_page_table(&self, table: &Memory, index: usize) -> Result<Entry, Gone> {
        self.ask()?;
        Ok(table.words.borrow()[index])
    }

    fn update_page_table(&self, table: &Memory, index: usize, entry: Entry) -> Result<(), Gone> {
        self.ask()?;
        if let Target::System(BusAddr(below)) = entry.target() {
            let ordered = !self.unordered.borrow().contains(&below);
            let is_table = self.tables.borrow().contains_key(&below) && !entry.is_large();
            assert!(ordered || !is_table, "a table is shown before it is filled");
        }
        table.words.borrow_mut()[index] = entry;
        self.unordered.borrow_mut().push(table.address);
        if let Some(watcher) = &*self.watcher.borrow() {
            watcher(self);
        }
        Ok(())
    }

    fn order_page_tables(&self) {
        self.unordered.borrow_mut().clear();
    }

    fn flush_tlb(&self, _asid: Option<Asid>) -> Result<(), Gone> {
        self.ask()
    }

    fn map_aperture_segment(
        &self,
        _segment: u32,
        pages: PageRange,
        pieces: &mut dyn Iterator<Item = PhysPiece>,
        cached: bool,
    ) -> Result<(), Gone> {
        self.ask()?;
        let mut gart = self.gart.borrow_mut();
        let mut page = pages.start.0;
        for piece in pieces {
            for at in (0..piece.len).step_by(PAGE_BYTES as usize) {
                let old = gart.insert(page, (piece.start + at, cached));
                assert_eq!(old, None, "page {page} shows something else");
                page += 1;
            }
        }
        assert_eq!(Some(page), pages.end().map(|end| end.0), "not all of it");
        Ok(())
    }

    fn unmap_aperture_segment(&self, _segment: u32, pages: PageRange) -> Result<(), Gone> {
        self.ask()?;
        for page in (pages.start.0..).take(pages.pages.0 as usize) {
            let old = self.gart.borrow_mut().remove(&page);
            assert!(old.is_some(), "page {page} shows the dummy page");
        }
        Ok(())
    }

    fn map_cpu_host_aperture(&self, _segment: u32, pages: &[AperturePage]) -> Result<(), Gone> {
        self.ask()?;
        let mut shown = self.aperture.borrow_mut();
        for page in pages {
            assert!(
                shown.values().all(|segment| *segment != page.segment),
                "{page:?} is shown twice"
            );
            let old = shown.insert(page.aperture, page.segment);
            assert_eq!(old, None, "{page:?} shows something else");
        }
        Ok(())
    }

    fn unmap_cpu_host_aperture(&self, _segment: u32, pages: &[u32]) -> Result<(), Gone> {
        self.ask()?;
        let mut shown = self.aperture.borrow_mut();
        for page in pages {
            assert!(shown.remove(page).is_some(), "{page} shows nothing");
        }
        Ok(())
    }

    fn is_done(&self, (): ()) -> Result<bool, Gone> {
        self.ask().map(|()| true)
    }
}
