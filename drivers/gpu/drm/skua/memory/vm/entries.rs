// SPDX-License-Identifier: GPL-2.0

//! The entries of page tables, and the records of what they lead to: a bind installs, who moves an
//! object has them lead nowhere and then elsewhere, who destroys it takes them out.
//!
//! Lock: `installing` of the [`Vm`], a mutex, so that records and entries say the same. Signals
//! wait for it: nothing is allocated under it.

use crate::{
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoRef,
            Memory, //
        },
        installed::Installed,
        vm::Vm, //
    },
    policy::{
        interval_map::Span,
        page_plan::{
            PagePlan,
            Sizes, //
        },
        page_table::{
            Access,
            Changed, //
        }, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::atomic::Acquire, //
};

impl Vm {
    /// Whether what was mapped just now may have led to something that is being destroyed, or
    /// moved, and whose flush is still to come.
    pub(super) fn may_be_known(&self) -> bool {
        self.dev.unflushed.load(Acquire) != 0 || self.dev.moves.have_withdrawn()
    }

    /// Has nothing that is installed of `bo` lead anywhere. The TLBs are to be flushed before its
    /// memory is another's: whatever was cleared here, since a bind may have removed what led
    /// there, and not have flushed it yet. Allocates nothing; nobody uses the object. `ENODEV`,
    /// `EIO`.
    pub(crate) fn withdraw(&self, parent: &Device<Bound>, bo: &BoRef) -> Result {
        let tables = self.reached.tables.access(parent)?;
        let _installing = self.installing.lock();
        self.set_absent(bo, true);
        let mut from = self.site(0);
        while let Some((site, installed)) = bo.sites.next(from) {
            // No overflow: what is installed does not end before it begins.
            let len = installed.end.saturating_sub(site.start);
            tables.clear(&self.dev, site.start, len)?;
            from = self.site(installed.end);
        }
        Ok(())
    }

    /// Has all that is installed of `bo`, and led nowhere, lead to `memory`, which its
    /// [`Sites`](crate::memory::installed) have now, or nowhere still. Allocates nothing; nobody
    /// uses the object, but by what a bind has installed meanwhile: no TLB knows of that any more,
    /// nor of what was since taken out again and not flushed yet. `ENODEV`, `EIO`.
    pub(crate) fn reinstall(
        &self,
        parent: &Device<Bound>,
        bo: &BoRef,
        memory: Option<&Memory>,
    ) -> Result {
        let tables = self.reached.tables.access(parent)?;
        let installing = self.installing.lock();
        let mut changed = match *installing || self.dev.unflushed.load(Acquire) != 0 {
            true => Changed::Stale,
            false => Changed::Fresh,
        };
        let mut from = self.site(0);
        while let Some((site, installed)) = bo.sites.next(from) {
            // No overflow: what is installed does not end before it begins.
            let len = installed.end.saturating_sub(site.start);
            // What a bind has installed meanwhile.
            changed = changed.and(tables.clear(&self.dev, site.start, len)?);
            if let Some(memory) = memory {
                // A table that a large page takes the place of was flushed, too: an engine that has
                // been there since has faulted, and is reset.
                let replaced = &mut Changed::Fresh;
                self.install(parent, site.start, installed, bo, memory, replaced)?;
            }
            from = self.site(installed.end);
        }
        self.set_absent(bo, memory.is_none_or(|memory| is_out(bo, memory)));
        drop(installing);
        match changed {
            Changed::Stale => self.dev.invalidate(Some(self.asid())),
            Changed::Fresh => Ok(()),
        }
    }

    /// Has nothing of what is installed at and behind `from` lead to `bo`, for `room` ranges at
    /// most; of both is then what is left. Which these were, as far as there is memory to say so.
    /// The TLBs are to be flushed, as after [`Vm::withdraw`]. `ENODEV`, `EIO`.
    pub(crate) fn uninstall(
        &self,
        parent: &Device<Bound>,
        bo: &BoRef,
        from: &mut u64,
        room: &mut usize,
    ) -> Result<KVVec<Span>> {
        let tables = self.reached.tables.access(parent)?;
        let mut spans = KVVec::new();
        while *room > 0 {
            // Not under the lock, which signals wait for.
            let is_told = spans.reserve(1, client_flags()).is_ok();
            let _installing = self.installing.lock();
            let Some((site, installed)) = bo.sites.next(self.site(*from)) else {
                break;
            };
            *room -= 1;
            let span = Span::new(site.start, installed.end);
            tables.clear(&self.dev, span.start, span.len())?;
            bo.sites.remove(site);
            *from = span.end;
            if is_told {
                let pushed = spans.push_within_capacity(span);
                crate::warn_on_once!(pushed.is_err());
            }
        }
        Ok(spans)
    }

    /// Whether nothing of `bo` is installed at and behind `from`.
    pub(crate) fn has_none_of(&self, bo: &BoRef, from: u64) -> bool {
        bo.sites.next(self.site(from)).is_none()
    }

    /// Writes the entries of a range from `start` on, of `bo` with `memory`; none if that is out.
    /// What of that needs a flush is in `changed`, also if it fails.
    pub(super) fn install(
        &self,
        parent: &Device<Bound>,
        start: u64,
        installed: Installed,
        bo: &BoRef,
        memory: &Memory,
        changed: &mut Changed,
    ) -> Result {
        if is_out(bo, memory) {
            return Ok(());
        }
        if !memory.is_cleared() {
            return Err(EIO);
        }
        let access = Access {
            reach: memory.reach(),
            write: installed.write,
        };
        let tables = self.reached.tables.access(parent)?;
        let len = installed.end.saturating_sub(start);
        memory.with_pieces(parent, installed.offset, |pieces| {
            let plan = PagePlan::new(start, len, Sizes::ALL, pieces);
            for run in plan.map_err(|_| EIO)? {
                *changed = changed.and(tables.map(&self.dev, &run.map_err(|_| EIO)?, access)?);
            }
            Ok(())
        })
    }
}

/// Whether the GPU does not reach `bo` in `memory`.
fn is_out(bo: &Bo, memory: &Memory) -> bool {
    bo.needs_vram() && matches!(memory, Memory::System(_))
}
