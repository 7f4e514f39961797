// SPDX-License-Identifier: MIT

//! Memory that the GPU sees at an address of its own: what allocations, fence pages and the
//! library's own commands are made of.

use libskua::{Access, Bo, BoFlags, Mapping, Placements};

use crate::{
    adapter::Adapter,
    status::{Result, Status},
};

/// A buffer object, bound. Dropping it unbinds it, which waits for the engines to drop old
/// translations; so it is dropped where no lock is held, after the GPU is done with it.
#[derive(Debug)]
pub(crate) struct Memory {
    adapter: Adapter,
    bo: Bo,
    va: u64,
}

impl Memory {
    pub(crate) fn create(
        adapter: &Adapter,
        size: u64,
        placements: Placements,
        flags: BoFlags,
        access: Access,
    ) -> Result<Self> {
        let bo = Bo::create(adapter.libskua(), size, placements, flags)?;
        let va = adapter.take_addresses(size)?;
        if let Err(error) = adapter.vm().map(&bo, va, access) {
            adapter.give_addresses_back(va, size);
            return Err(error.into());
        }
        Ok(Self {
            adapter: adapter.clone(),
            bo,
            va,
        })
    }

    pub(crate) const fn va(&self) -> u64 {
        self.va
    }

    pub(crate) const fn size(&self) -> u64 {
        self.bo.size()
    }

    pub(crate) const fn bo(&self) -> &Bo {
        &self.bo
    }

    pub(crate) fn map(&self) -> Result<Mapping> {
        Ok(self.bo.map()?)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.adapter.vm().unmap(self.va, self.size()) {
            // What is bound of a device that is gone is never used again.
            Ok(()) => {}
            Err(error) if Status::from(error.clone()) == Status::DEVICE_REMOVED => {}
            // It may still be bound: its addresses must not become another's.
            Err(_) => return,
        }
        self.adapter.give_addresses_back(self.va, self.size());
    }
}
