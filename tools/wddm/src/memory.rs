// SPDX-License-Identifier: MIT

//! Memory that the GPU sees at an address of its own: what allocations are made of.
//!
//! Binding does not wait. A bind of video memory may take as long as the copy engine is busy, since
//! it clears the memory first; so submissions wait for the binds before them
//! ([`PageTables::last_map`]), and not the program.

use std::sync::Arc;

use libskua::{Access, Bo, BoFlags, DestroyFlags, Mapping, SegmentSets};
use rustix::io::Errno;

use crate::{
    address_space::PAGE,
    page_tables::PageTables,
    status::{Result, Status},
};

/// A buffer object that is bound at one address for its whole life.
///
/// Who drops it says that nothing uses it: see [`Memory::destroy`].
#[derive(Debug)]
pub(crate) struct Memory {
    /// Where it is bound.
    tables: Arc<PageTables>,
    /// The kernel's object.
    bo: Bo,
    /// Where the GPU sees it.
    va: u64,
}

impl Memory {
    pub(crate) fn create(
        tables: &Arc<PageTables>,
        size: u64,
        sets: impl Into<SegmentSets>,
        flags: BoFlags,
        priority: u32,
        access: Access,
    ) -> Result<Self> {
        let bo = Bo::create_in_with_priority(tables.vm(), size, sets, flags, priority)?;
        let va = tables.adapter().space().take(size)?;
        if let Err(status) = tables.bind(|b| b.map(&bo, 0, va, size, access)) {
            tables.adapter().space().give_back(va, size);
            return Err(status);
        }
        Ok(Self {
            tables: tables.clone(),
            bo,
            va,
        })
    }

    /// A page of zeroes that the GPU can read, and the CPU's way to it.
    pub(crate) fn word(tables: &Arc<PageTables>) -> Result<(Self, Mapping)> {
        let system = tables.adapter().system().placements();
        let memory = Self::create(tables, PAGE, system, BoFlags::CPU_ACCESS, 0, Access::Read)?;
        let cpu = memory.map()?;
        Ok((memory, cpu))
    }

    pub(crate) const fn va(&self) -> u64 {
        self.va
    }

    pub(crate) const fn bo(&self) -> &Bo {
        &self.bo
    }

    /// Locks it in the kernel, which moves it where the CPU can access it. INVALID_PARAMETER if
    /// that is nowhere.
    pub(crate) fn lock(&self) -> Result<()> {
        match self.bo.lock() {
            Err(error) if error.errno() == Some(Errno::PERM) => Err(Status::INVALID_PARAMETER),
            result => Ok(result?),
        }
    }

    /// Takes [`Memory::lock`] back.
    pub(crate) fn unlock(&self) -> Result<()> {
        match self.bo.unlock().map_err(Status::from) {
            // With the device its locks are gone.
            Err(Status::DEVICE_REMOVED) => Ok(()),
            result => result,
        }
    }

    pub(crate) fn map(&self) -> Result<Mapping> {
        Ok(self.bo.map()?)
    }

    /// Destroys it: what uses it all the same faults. If it is to be `synchronous`, its memory is
    /// free on return.
    pub(crate) fn destroy(mut self, synchronous: bool) -> Result<()> {
        self.end(synchronous)
    }

    fn end(&mut self, synchronous: bool) -> Result<()> {
        let mut flags = DestroyFlags::empty();
        // What a device that has failed still runs the kernel alone knows.
        flags.set(DestroyFlags::ASSUME_NOT_IN_USE, !self.tables.is_lost());
        flags.set(DestroyFlags::SYNCHRONOUS, synchronous);
        self.bo.destroy(flags)?;
        // What is bound there from now on is bound behind what the kernel has still to unbind.
        self.tables.adapter().give_all_back(self.va, self.bo.size());
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.tables.adapter().is_inherited() {
            // It may be destroyed. If it cannot be, it may still be bound: its addresses must not
            // become another's.
            let _ = self.end(false);
        }
    }
}
