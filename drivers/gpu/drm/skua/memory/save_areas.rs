// SPDX-License-Identifier: GPL-2.0

//! Where the engines put what contexts are in the midst of when they are preempted.
//!
//! A context that submits work has a save area in its address space, in the part that clients cannot
//! bind: area number *n* begins at [`VA_END`] + *n* × [`STRIDE`]. Areas are system memory, and belong
//! to the address space like its page tables: they are mapped once, stay until it goes, and are freed
//! with the tables. A context that goes leaves its area to the next one. What stands there is then
//! nobody's, as its descriptor says that nothing is saved.
//!
//! Commands of the client can read and write the areas, and can do nothing with them but what they
//! can anyway: an engine checks a state before it goes on with it.

use crate::{
    gpu::SkuaDevice,
    hardware::{
        caps::MAX_SAVE_SIZE,
        miniport::Hardware, //
    },
    kernel_heap::client_flags,
    memory::{
        clean_copy,
        page_table::PageTable,
        vm::VA_END, //
    },
    policy::{
        page_plan::Run,
        page_table::{
            Access,
            Reach, //
        }, //
    },
    quota::Share,
    spec::{
        address::{
            GpuVa,
            PAGE_SIZE,
            VA_BITS, //
        },
        context::SaveArea,
        mmu::PageSize, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::Coherent,
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        Mutex,
        SpinLock, //
    }, //
};

/// From one area to the next.
const STRIDE: u64 = MAX_SAVE_SIZE as u64;
/// How many there is room for.
const MOST: u64 = ((1 << VA_BITS) - VA_END) / STRIDE;

/// Where area `number` is, of `bytes` bytes.
pub(crate) fn place(number: u32, bytes: u32) -> SaveArea {
    SaveArea {
        // No overflow: below `MOST`.
        base: GpuVa(VA_END + u64::from(number) * STRIDE),
        bytes,
    }
}

/// One area: its pages, and their part of the quotas of system memory.
struct Area {
    _pages: KVVec<Coherent<[u64]>>,
    _shares: [Share; 2],
}

/// The memory of an address space's areas, by number. Live while the device is bound.
#[pin_data]
pub(crate) struct SaveAreas {
    /// Held by an ioctl that makes one.
    #[pin]
    areas: Mutex<KVVec<Area>>,
}

impl SaveAreas {
    /// None so far.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            areas <- new_mutex!(KVVec::new()),
        }? Error)
    }

    /// Makes one more, zeroed, mapped in `tables`, and known to `numbers`; its number. `ENOMEM`;
    /// `ENOSPC` if there are too many; `ENODEV`, `EIO`.
    pub(crate) fn add(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        tables: &PageTable,
        numbers: &Numbers,
    ) -> Result<u32> {
        let mut areas = self.areas.lock();
        let number = u32::try_from(areas.len())?;
        if u64::from(number) >= MOST {
            return Err(ENOSPC);
        }
        let area = place(number, dev.hw.caps.save_size);
        let bytes = u64::from(area.bytes).next_multiple_of(PAGE_SIZE);
        let shares = clean_copy::take_shares(dev, tables.quota(), bytes).ok_or(ENOMEM)?;
        let mut pages = KVVec::new();
        for _ in (0..bytes).step_by(PAGE_SIZE as usize) {
            pages.push(Hardware::page(parent)?, client_flags())?;
        }
        areas.reserve(1, client_flags())?;
        numbers.make_room(areas.len() + 1)?;
        tables.prepare(dev, parent, area.base.0, bytes, 0)?;
        let access = Access {
            reach: Reach::Bus { cached: true },
            write: true,
        };
        let mut result = Ok(());
        for (va, page) in (area.base.0..).step_by(PAGE_SIZE as usize).zip(&pages) {
            let run = Run {
                size: PageSize::Size4K,
                va,
                phys: page.dma_address(),
                count: 1,
            };
            // Nothing was mapped there, so no engine has to forget anything.
            result = result.and_then(|()| tables.map(dev, &run, access).map(|_| ()));
        }
        // Whatever of it can be reached stays.
        let area = Area {
            _pages: pages,
            _shares: shares,
        };
        kernel::warn_on!(areas.push_within_capacity(area).is_err());
        result.map(|()| number)
    }
}

/// Which areas of an address space are no context's.
#[pin_data]
pub(crate) struct Numbers {
    /// With room for all.
    #[pin]
    free: SpinLock<KVVec<u32>>,
}

impl Numbers {
    /// There are none.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            free <- new_spinlock!(KVVec::new()),
        })
    }

    /// Takes one.
    pub(crate) fn take(&self) -> Option<u32> {
        self.free.lock().pop()
    }

    /// Gives one back that no packet in a ring can need. Allocates nothing.
    pub(crate) fn give(&self, number: u32) {
        kernel::warn_on!(self.free.lock().push_within_capacity(number).is_err());
    }

    /// Sees to it that `count` can be given back. `ENOMEM`.
    fn make_room(&self, count: usize) -> Result {
        let mut more = KVVec::with_capacity(count.next_power_of_two(), client_flags())?;
        let mut free = self.free.lock();
        if free.capacity() < count {
            for number in &*free {
                more.push_within_capacity(*number).map_err(|_| ENOMEM)?;
            }
            core::mem::swap(&mut *free, &mut more);
        }
        drop(free);
        // What was there goes when the lock is not held.
        drop(more);
        Ok(())
    }
}
