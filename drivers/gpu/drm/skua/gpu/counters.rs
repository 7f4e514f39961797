// SPDX-License-Identifier: GPL-2.0

//! What is counted, for who looks: by the driver ([`Counters`]), and by the device, whose counters
//! are read from its snapshot.

use crate::{
    gpu::Gpu,
    spec::status::Counter, //
};
use kernel::{
    prelude::*,
    sync::atomic::Atomic, //
};

/// What the driver counts, for debugfs.
pub(crate) struct Counters {
    /// SUBMIT ioctls that succeeded.
    pub(crate) submissions: Atomic<u64>,
    /// VM_BIND ioctls that succeeded.
    pub(crate) binds: Atomic<u64>,
    /// Runs of interrupt threads, engines' and the one for faults.
    pub(crate) interrupts: Atomic<u64>,
    /// Engine resets requested, whether or not they were acknowledged.
    pub(crate) engine_resets: Atomic<u64>,
    /// Adapter resets that the device has survived.
    pub(crate) adapter_resets: Atomic<u64>,
    /// Requests to an engine to stop, whether or not it did.
    pub(crate) preemptions: Atomic<u64>,
    /// Requests to flush TLBs, each to all engines.
    pub(crate) tlb_flushes: Atomic<u64>,
    /// Objects that were moved out of VRAM, or are on their way.
    pub(crate) evictions: Atomic<u64>,
    /// Objects that were moved to VRAM, or are on their way.
    pub(crate) promotions: Atomic<u64>,
    /// Moves of context allocations, none of which are in these two.
    pub(crate) context_moves: Atomic<u64>,
    /// Context allocations that were initialised (row 2.10).
    pub(crate) context_inits: Atomic<u64>,
    /// Packets that entered a hardware queue while a context allocation that they use was not where
    /// the GPU reaches it, and areas that were taken from where it reaches them while an engine
    /// could have saved to them: 0, unless the driver is wrong (row 2.08).
    pub(crate) context_not_resident: Atomic<u64>,
    /// System pages of idle objects that were given back when memory was short.
    pub(crate) pages_given_back: Atomic<u64>,
    /// Bytes of objects whose content was thrown away since they were offered, or is about to be.
    pub(crate) discarded_bytes: Atomic<u64>,
    /// Bytes that left VRAM without being copied, or are on their way.
    pub(crate) clean_bytes: Atomic<u64>,
    /// Bytes of clean copies that are kept just now.
    pub(crate) clean_kept: Atomic<u64>,
    /// Bytes of clean copies that were dropped before they were used.
    pub(crate) clean_dropped: Atomic<u64>,
    /// Times that free memory was cleared in the background.
    pub(crate) background_clears: Atomic<u64>,
    /// How many bytes that was in all.
    pub(crate) background_clear_bytes: Atomic<u64>,
    /// Objects that were created in VRAM that was clean.
    pub(crate) clean_creations: Atomic<u64>,
    /// Pages of the CPU host aperture that were mapped.
    pub(crate) aperture_maps: Atomic<u64>,
    /// Pages of the CPU host aperture that were taken back for others to be mapped.
    pub(crate) aperture_reclaims: Atomic<u64>,
    /// Parts of the aperture segment that were mapped.
    pub(crate) segment_maps: Atomic<u64>,
    /// Parts of the aperture segment that were unmapped.
    pub(crate) segment_unmaps: Atomic<u64>,
}

impl Counters {
    /// Nothing was counted yet.
    pub(super) fn new() -> Self {
        Self {
            submissions: Atomic::new(0),
            binds: Atomic::new(0),
            interrupts: Atomic::new(0),
            engine_resets: Atomic::new(0),
            adapter_resets: Atomic::new(0),
            preemptions: Atomic::new(0),
            tlb_flushes: Atomic::new(0),
            evictions: Atomic::new(0),
            context_moves: Atomic::new(0),
            context_inits: Atomic::new(0),
            context_not_resident: Atomic::new(0),
            promotions: Atomic::new(0),
            pages_given_back: Atomic::new(0),
            discarded_bytes: Atomic::new(0),
            clean_bytes: Atomic::new(0),
            clean_kept: Atomic::new(0),
            clean_dropped: Atomic::new(0),
            background_clears: Atomic::new(0),
            background_clear_bytes: Atomic::new(0),
            clean_creations: Atomic::new(0),
            aperture_maps: Atomic::new(0),
            aperture_reclaims: Atomic::new(0),
            segment_maps: Atomic::new(0),
            segment_unmaps: Atomic::new(0),
        }
    }
}

impl Gpu {
    /// Copies the device's counters to where [`Self::counters`] finds them.
    pub(crate) fn snapshot(&self) -> Result {
        let taken = || self.hw.shared()?.snapshot_ack();
        let (generation, before) = (self.hw.generation(), taken()?);
        self.hw.take_snapshot()?;
        // A reset forgets it.
        self.wait_for(|| Ok(taken()? != before || self.hw.generation() != generation))
    }

    /// Calls `f` with the name and value of each of the device's counters, as of the last snapshot.
    pub(crate) fn counters(&self, mut f: impl FnMut(&str, u64)) -> Result {
        for &(counter, name) in &Counter::ALL {
            // Not over a call that may sleep.
            let value = self.hw.shared()?.counter(counter as u32)?;
            f(name, value);
        }
        Ok(())
    }
}
