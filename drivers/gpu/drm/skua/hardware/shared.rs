// SPDX-License-Identifier: GPL-2.0

//! Memory that driver and device share: status page, GART table, rings, context descriptors and
//! queues.
//!
//! All of it is coherent system memory, allocated at probe and freed when the device is unbound;
//! access goes through [`Devres::try_access`](kernel::devres::Devres::try_access), which is `None`
//! afterwards.
//!
//! The status page, the GART table and the CPU host aperture's are at bus addresses (the device
//! must find them before it can translate); rings, descriptors and queues are seen by the engines
//! through the GART window:
//!
//! ```text
//! GART window   page 0..16            16..144            16 for each engine   the rest
//!               context descriptors   contexts' queues   rings                the aperture segment
//! ```
//!
//! What the engines do for the driver itself they do in an address space of its own ([`Paging`]).
//!
//! What is read from here was written by the device and is believed by nobody: each reader checks
//! it.

use crate::{
    hardware::{
        caps::{
            Caps,
            GART_PAGES, //
        },
        paging::Paging, //
    },
    policy::{
        aperture_table::{
            Refusal,
            Table, //
        },
        paging::PagingSpace, //
    },
    spec::{
        address::{
            BusAddr,
            GpuPhys,
            PAGE_SIZE, //
        },
        aperture,
        context::{
            Buffer,
            Descriptor,
            Queue,
            SaveArea, //
        },
        fault,
        layout::half,
        mmu::Entry,
        number::{
            Asid,
            ContextSlot,
            EngineIndex, //
        },
        pci::MAX_ENGINES,
        status, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::Coherent,
    io::{
        io_read,
        io_write, //
    },
    prelude::*,
    sync::barrier, //
};

/// Contexts that clients can have at a time.
pub(crate) const MAX_CONTEXTS: u32 = 1023;
/// The place of the paging process' descriptor, behind those of clients.
pub(crate) const PAGING_CONTEXT: ContextSlot = ContextSlot(MAX_CONTEXTS);
/// The identifier of the paging process' address space; those of clients are higher.
pub(crate) const PAGING_ASID: Asid = Asid(1);
/// Bytes of each engine's ring.
pub(crate) const RING_SIZE: u32 = 64 * 1024;
/// Places of a context's queue: no more packets of one are with an engine, or come back from it, at
/// a time.
pub(crate) const QUEUE_PACKETS: u32 = 32;

const CONTEXT_PAGES: u32 = 16;
const QUEUE_PAGES: u32 = 128;
/// Pages of queues that are contiguous on the bus.
const QUEUE_CHUNK: u32 = 16;
const QUEUE_BYTES: u64 = QUEUE_PACKETS as u64 * Buffer::SIZE;
const RING_PAGES: u32 = 16;
/// What is read where nothing is mapped in the GART window: no address, and unlike what is likely.
const DUMMY_WORD: u64 = 0xd0d0_9a9e_d0d0_9a9e;
const DESCRIPTOR_WORDS: usize = (Descriptor::SIZE / 8) as usize;

const _: () = {
    assert!((MAX_CONTEXTS as u64 + 1) * Descriptor::SIZE == CONTEXT_PAGES as u64 * PAGE_SIZE);
    assert!((MAX_CONTEXTS as u64 + 1) * QUEUE_BYTES == QUEUE_PAGES as u64 * PAGE_SIZE);
    assert!(RING_SIZE as u64 == RING_PAGES as u64 * PAGE_SIZE);
    assert!(CONTEXT_PAGES + QUEUE_PAGES + MAX_ENGINES * RING_PAGES == GART_PAGES);
};

/// All memory that driver and device share, but for page tables and buffer objects.
pub(crate) struct Shared {
    /// The status page, [`status::SIZE`] bytes, which the device alone writes, unless it is reset.
    status: Coherent<[u64]>,
    /// The GART table. The first [`GART_PAGES`] entries are written at probe.
    gart: Coherent<[u64]>,
    /// A page of [`DUMMY_WORD`], read only for the device, behind each page of the window without a
    /// use.
    dummy: Coherent<[u64]>,
    /// Whether the device counts who reads that.
    counts_dummy: bool,
    /// [`MAX_CONTEXTS`] descriptors and that of paging, by place. The driver writes one when its
    /// context is made, and the tail of its queue; the engine adds up ticks and packets in it.
    contexts: Coherent<[u64]>,
    /// Their queues, [`QUEUE_CHUNK`] pages in each, which the driver writes.
    queues: KVec<Coherent<[u64]>>,
    /// By engine, [`RING_SIZE`] bytes each, which the driver writes.
    rings: KVec<Coherent<[u32]>>,
    /// The CPU host aperture's table, of an entry for each page, if there is one.
    aperture: Option<Coherent<[u64]>>,
    /// The address space in which memory is moved.
    pub(crate) paging: Paging,
}

/// The CPU host aperture's, of which a flush has the device read what was written.
impl Table for Shared {
    type Error = Error;

    fn entry(&self, page: u32) -> Result<aperture::Entry> {
        let table = self.aperture.as_ref().ok_or(EINVAL)?;
        let index = usize::try_from(page)?;
        Ok(aperture::Entry(io_read!(table, [try: index])))
    }

    fn set_entry(&self, page: u32, entry: aperture::Entry) -> Result {
        let table = self.aperture.as_ref().ok_or(EINVAL)?;
        let index = usize::try_from(page)?;
        io_write!(table, [try: index], entry.0);
        Ok(())
    }
}

impl From<Refusal<Error>> for Error {
    fn from(refusal: Refusal<Error>) -> Self {
        match refusal {
            Refusal::Page => EINVAL,
            Refusal::Table(error) => error,
        }
    }
}

/// How many 64-bit words `bytes` bytes are, a multiple of 8.
const fn words(bytes: u64) -> usize {
    // CAST: all areas are small.
    (bytes / 8) as usize
}

impl Shared {
    /// Allocates all of it, zeroed, and fills the GART table. `ENOMEM`.
    pub(crate) fn new(dev: &Device<Bound>, caps: &Caps, paging: PagingSpace) -> Result<Self> {
        let mut rings = KVec::with_capacity(caps.engines.len(), GFP_KERNEL)?;
        for _ in 0..caps.engines.len() {
            // CAST: 64 KiB.
            let ring = Coherent::zeroed_slice(dev, RING_SIZE as usize / 4, GFP_KERNEL)?;
            rings.push(ring, GFP_KERNEL)?;
        }
        // CAST: few pages.
        let chunks = (QUEUE_PAGES / QUEUE_CHUNK) as usize;
        let mut queues = KVec::with_capacity(chunks, GFP_KERNEL)?;
        for _ in 0..chunks {
            let len = words(u64::from(QUEUE_CHUNK) * PAGE_SIZE);
            queues.push(Coherent::zeroed_slice(dev, len, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let aperture = match &caps.aperture {
            Some(aperture) => {
                // Made of whole pages.
                let bytes = u64::from(aperture.pages) * aperture::Entry::SIZE;
                let len = words(bytes.next_multiple_of(PAGE_SIZE));
                Some(Coherent::zeroed_slice(dev, len, GFP_KERNEL)?)
            }
            None => None,
        };
        let shared = Self {
            status: Coherent::zeroed_slice(dev, words(status::SIZE), GFP_KERNEL)?,
            gart: Coherent::zeroed_slice(
                dev,
                words((u64::from(caps.gart_pages) * 8).next_multiple_of(PAGE_SIZE)),
                GFP_KERNEL,
            )?,
            dummy: Coherent::zeroed_slice(dev, words(PAGE_SIZE), GFP_KERNEL)?,
            counts_dummy: caps.version.minor() >= 2,
            contexts: Coherent::zeroed_slice(
                dev,
                words(u64::from(CONTEXT_PAGES) * PAGE_SIZE),
                GFP_KERNEL,
            )?,
            queues,
            rings,
            aperture,
            paging: Paging::new(dev, paging)?,
        };
        let process = Descriptor {
            root: shared.paging.root()?,
            asid: PAGING_ASID,
            // What is in the ring itself has none, and this is the same to all.
            context_id: 0,
            // What it does is not stopped in the midst.
            save: None,
        };
        shared.write_descriptor(PAGING_CONTEXT, process, None)?;

        for word in 0..words(PAGE_SIZE) {
            io_write!(&shared.dummy, [try: word], DUMMY_WORD);
        }
        for page in 0..caps.gart_pages {
            shared.unmap_gart(page)?;
        }
        shared.map_area(0, CONTEXT_PAGES, shared.contexts.dma_address())?;
        let mut page = CONTEXT_PAGES;
        for queues in &shared.queues {
            shared.map_area(page, QUEUE_CHUNK, queues.dma_address())?;
            page = page.checked_add(QUEUE_CHUNK).ok_or(EINVAL)?;
        }
        for ring in &shared.rings {
            shared.map_area(page, RING_PAGES, ring.dma_address())?;
            page = page.checked_add(RING_PAGES).ok_or(EINVAL)?;
        }
        Ok(shared)
    }

    /// Has page `page` of the GART window show the system page at `bus`, which the CPU has
    /// `cached`.
    pub(crate) fn map_gart(&self, page: u32, bus: u64, cached: bool) -> Result {
        self.write_gart(page, Entry::gart(BusAddr(bus), true, cached))
    }

    /// Has page `page` of the GART window show the dummy page, read only: a stray read is harmless,
    /// and found by its counter and by what it reads; a stray write is a fault.
    pub(crate) fn unmap_gart(&self, page: u32) -> Result {
        let dummy = BusAddr(self.dummy.dma_address());
        self.write_gart(
            page,
            match self.counts_dummy {
                true => Entry::dummy(dummy),
                false => Entry::gart(dummy, false, true),
            },
        )
    }

    fn write_gart(&self, page: u32, entry: Entry) -> Result {
        let index = usize::try_from(page)?;
        io_write!(&self.gart, [try: index], entry.0);
        Ok(())
    }

    /// The entry of page `page` of the GART window, as last written.
    pub(crate) fn gart_entry(&self, page: u32) -> Result<Entry> {
        let index = usize::try_from(page)?;
        Ok(Entry(io_read!(&self.gart, [try: index])))
    }

    fn map_area(&self, first: u32, pages: u32, bus: u64) -> Result {
        for page in 0..pages {
            let at = bus.checked_add(u64::from(page) * PAGE_SIZE).ok_or(EINVAL)?;
            self.map_gart(first.checked_add(page).ok_or(EINVAL)?, at, true)?;
        }
        Ok(())
    }

    /// Bus address of the status page.
    pub(crate) fn status_address(&self) -> BusAddr {
        BusAddr(self.status.dma_address())
    }

    /// Bus address of the GART table.
    pub(crate) fn gart_address(&self) -> BusAddr {
        BusAddr(self.gart.dma_address())
    }

    /// Bus address of the CPU host aperture's table, if there is one.
    pub(crate) fn aperture_address(&self) -> Option<BusAddr> {
        let table = self.aperture.as_ref()?;
        Some(BusAddr(table.dma_address()))
    }

    /// What the reset count of an engine is in [`Self::engine32`] before the device has written its
    /// block.
    pub(crate) const NO_BLOCK: u32 = u32::MAX;

    /// Has the status page say nothing: the device, which was reset, counts from zero, and does not
    /// write to it yet.
    pub(crate) fn forget_counts(&self) -> Result {
        for word in 0..words(status::COUNTERS) {
            io_write!(&self.status, [try: word], 0);
        }
        for engine in EngineIndex::ALL {
            let field = status::of_engine(engine, status::engine::RESET_ACK);
            let value = half(field).replace(0, Self::NO_BLOCK);
            io_write!(&self.status, [try: words(field)], value);
        }
        barrier::dma_mb(barrier::Write);
        Ok(())
    }

    /// The 8 bytes at `offset` of the status page.
    fn status64(&self, offset: u64) -> Result<u64> {
        let index = usize::try_from(offset / 8)?;
        Ok(io_read!(&self.status, [try: index]))
    }

    /// The 4 bytes at `offset` of the status page.
    fn status32(&self, offset: u64) -> Result<u32> {
        Ok(half(offset).of(self.status64(offset)?))
    }

    /// The 8-byte field `field` (one of [`status::engine`]) of `engine`.
    pub(crate) fn engine64(&self, engine: EngineIndex, field: u64) -> Result<u64> {
        let value = self.status64(status::of_engine(engine, field));
        // What the device wrote before this field is read after it.
        barrier::dma_mb(barrier::Read);
        value
    }

    /// The 4-byte field `field` (one of [`status::engine`]) of `engine`.
    pub(crate) fn engine32(&self, engine: EngineIndex, field: u64) -> Result<u32> {
        let value = self.status32(status::of_engine(engine, field));
        barrier::dma_mb(barrier::Read);
        value
    }

    /// Fault records that the device has written, modulo 2^32.
    pub(crate) fn fault_put(&self) -> Result<u32> {
        let value = self.status32(status::FAULT_PUT);
        barrier::dma_mb(barrier::Read);
        value
    }

    /// Counter snapshots that the device has taken, modulo 2^32.
    pub(crate) fn snapshot_ack(&self) -> Result<u32> {
        let value = self.status32(status::SNAPSHOT_ACK);
        barrier::dma_mb(barrier::Read);
        value
    }

    /// Flushes of the CPU host aperture that hold, modulo 2^32.
    pub(crate) fn aperture_ack(&self) -> Result<u32> {
        let value = self.status32(status::APERTURE_ACK);
        barrier::dma_mb(barrier::Read);
        value
    }

    /// Entries of the CPU host aperture that the device has refused, modulo 2^32.
    pub(crate) fn aperture_refused(&self) -> Result<u32> {
        self.status32(status::APERTURE_REFUSED)
    }

    /// Counter `number` of the last snapshot.
    pub(crate) fn counter(&self, number: u32) -> Result<u64> {
        self.status64(status::counter(number))
    }

    /// Fault record `number`, or `None` if what stands there is not that record.
    pub(crate) fn fault(&self, number: u32) -> Result<Option<fault::Record>> {
        let mut words = [0; 8];
        for (offset, word) in (status::fault(number)..).step_by(8).zip(&mut words) {
            *word = self.status64(offset)?;
        }
        Ok(fault::Record::from_words(words)
            .filter(|(_, found)| *found == number)
            .map(|(record, _)| record))
    }

    /// GPU-physical address of context descriptor `slot`.
    pub(crate) fn descriptor_address(caps: &Caps, slot: ContextSlot) -> Result<GpuPhys> {
        caps.gart_base
            .checked_add(u64::from(slot.get()) * Descriptor::SIZE)
            .ok_or(EINVAL)
    }

    /// The queue of the context with descriptor `slot`.
    pub(crate) fn queue(caps: &Caps, slot: ContextSlot) -> Result<Queue> {
        let at = u64::from(CONTEXT_PAGES) * PAGE_SIZE + u64::from(slot.get()) * QUEUE_BYTES;
        Ok(Queue {
            base: caps.gart_base.checked_add(at).ok_or(EINVAL)?,
            packets: QUEUE_PACKETS,
        })
    }

    /// The words of place `number` of a queue: where they are in [`Self::queues`].
    fn place(&self, slot: ContextSlot, number: u32) -> Result<(&Coherent<[u64]>, usize)> {
        let place = u64::from(number % QUEUE_PACKETS) * Buffer::SIZE;
        let at = u64::from(slot.get()) * QUEUE_BYTES + place;
        let chunk = u64::from(QUEUE_CHUNK) * PAGE_SIZE;
        let queues = self.queues.get(usize::try_from(at / chunk)?);
        Ok((queues.ok_or(EINVAL)?, words(at % chunk)))
    }

    /// The number of the word at byte `offset` of descriptor `slot`.
    fn descriptor_word(slot: ContextSlot, offset: u64) -> Result<usize> {
        Ok(usize::try_from(slot.get())? * DESCRIPTOR_WORDS + words(offset))
    }

    /// Has packet `number` be in the queue of descriptor `slot`: behind the others, or it was put
    /// there before and has not ended since. `EIO` if it can be neither.
    pub(crate) fn enqueue(&self, slot: ContextSlot, number: u32, packet: Buffer) -> Result {
        let word = Self::descriptor_word(slot, Descriptor::TAIL)?;
        // With the save area's size.
        let value = io_read!(&self.contexts, [try: word]);
        let tail = half(Descriptor::TAIL);
        match tail.of(value).wrapping_sub(number) {
            0 => (),
            1..=QUEUE_PACKETS => return Ok(()),
            _ => return Err(EIO),
        }
        let (queues, first) = self.place(slot, number)?;
        for (word, value) in (first..).zip(packet.to_words()) {
            io_write!(queues, [try: word], value);
        }
        barrier::dma_mb(barrier::Write);
        let value = tail.replace(value, number.wrapping_add(1));
        io_write!(&self.contexts, [try: word], value);
        Ok(())
    }

    /// The packet of the queue of descriptor `slot` that has `before` in front of it which have not
    /// ended, with its number, if there is one; for reports.
    pub(crate) fn queued(&self, slot: ContextSlot, before: u32) -> Result<Option<(u32, Buffer)>> {
        let (_, ended) = self.descriptor_usage(slot)?;
        let word = Self::descriptor_word(slot, Descriptor::TAIL)?;
        let tail = half(Descriptor::TAIL).of(io_read!(&self.contexts, [try: word]));
        // Modulo 2^32.
        let head = half(Descriptor::PACKETS).of(ended);
        let waiting = tail.wrapping_sub(head);
        if before >= waiting || waiting > QUEUE_PACKETS {
            return Ok(None);
        }
        let number = head.wrapping_add(before);
        let (queues, first) = self.place(slot, number)?;
        let second = first.checked_add(1).ok_or(EINVAL)?;
        let words = [
            io_read!(queues, [try: first]),
            io_read!(queues, [try: second]),
        ];
        Ok(Buffer::from_words(words)
            .ok()
            .map(|packet| (number, packet)))
    }

    /// The slot of the descriptor of the context that `engine` holds, if it holds one.
    pub(crate) fn held(&self, caps: &Caps, engine: EngineIndex) -> Result<Option<ContextSlot>> {
        let held = self.status64(status::context_of(engine))?;
        if held == 0 {
            return Ok(None);
        }
        let offset = held.checked_sub(caps.gart_base.0).ok_or(EIO)?;
        Ok(Some(ContextSlot(u32::try_from(offset / Descriptor::SIZE)?)))
    }

    /// GPU-physical address of the ring of `engine`.
    pub(crate) fn ring_address(caps: &Caps, engine: EngineIndex) -> Result<GpuPhys> {
        let rings = u64::from(CONTEXT_PAGES + QUEUE_PAGES);
        let page = rings + u64::from(engine.get()) * u64::from(RING_PAGES);
        caps.gart_base.checked_add(page * PAGE_SIZE).ok_or(EINVAL)
    }

    /// Writes context descriptor `slot`, with an empty `queue` if it has one; its engine-written
    /// part starts as zero.
    pub(crate) fn write_descriptor(
        &self,
        slot: ContextSlot,
        descriptor: Descriptor,
        queue: Option<Queue>,
    ) -> Result {
        let first = Self::descriptor_word(slot, 0)?;
        let words = descriptor
            .words()
            .with_queue(queue.map_or(0, Queue::to_word));
        for (word, value) in (first..).zip(words.0) {
            io_write!(&self.contexts, [try: word], value);
        }
        barrier::dma_mb(barrier::Write);
        Ok(())
    }

    /// Gives descriptor `slot`, which no packet has named yet, a save area.
    pub(crate) fn set_save_area(&self, slot: ContextSlot, area: SaveArea) -> Result {
        let base = Self::descriptor_word(slot, Descriptor::SAVE_BASE)?;
        let size = Self::descriptor_word(slot, Descriptor::SAVE_SIZE)?;
        io_write!(&self.contexts, [try: base], area.base.0);
        // With a tail of zero.
        let value = half(Descriptor::SAVE_SIZE).replace(0, area.bytes);
        io_write!(&self.contexts, [try: size], value);
        barrier::dma_mb(barrier::Write);
        Ok(())
    }

    /// Engine time in ticks, and packets, that descriptor `slot` has counted: the latter modulo
    /// 2^32 are the head of its queue.
    pub(crate) fn descriptor_usage(&self, slot: ContextSlot) -> Result<(u64, u64)> {
        let ticks = Self::descriptor_word(slot, Descriptor::TICKS)?;
        let packets = Self::descriptor_word(slot, Descriptor::PACKETS)?;
        Ok((
            io_read!(&self.contexts, [try: ticks]),
            io_read!(&self.contexts, [try: packets]),
        ))
    }

    /// Whether the save area of descriptor `slot` has the state of a packet.
    pub(crate) fn is_saved(&self, slot: ContextSlot) -> Result<bool> {
        let saved = Self::descriptor_word(slot, Descriptor::SAVED)?;
        Ok(half(Descriptor::SAVED).of(io_read!(&self.contexts, [try: saved])) != 0)
    }

    /// Writes `words` into the ring of `engine` at byte offset `at`.
    pub(crate) fn write_ring(&self, engine: EngineIndex, at: u32, words: &[u32]) -> Result {
        let ring = self.rings.get(engine.index()).ok_or(EINVAL)?;
        let first = usize::try_from(at / 4)?;
        for (word, value) in (first..).zip(words) {
            io_write!(ring, [try: word], *value);
        }
        Ok(())
    }

    /// Word `word` of the ring of `engine`, for reports.
    pub(crate) fn ring_word(&self, engine: EngineIndex, word: usize) -> Result<u32> {
        let ring = self.rings.get(engine.index()).ok_or(EINVAL)?;
        Ok(io_read!(ring, [try: word]))
    }
}
