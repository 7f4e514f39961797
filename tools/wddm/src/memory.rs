// SPDX-License-Identifier: MIT

//! Memory that the GPU sees at an address of its own: what allocations, fence pages and the
//! library's own commands are made of.
//!
//! Binding and unbinding do not wait. A bind of video memory may take as long as the copy engine is
//! busy, since it clears the memory first; so submissions wait for the binds before them
//! ([`Adapter::last_map`]), and not the program. Addresses are given back, and the memory is, when
//! the unbind is performed, which is when no engine uses an old translation any more.

use libskua::{Access, Bo, BoFlags, Deadline, Mapping, Placements};

use crate::{
    adapter::Adapter,
    status::{Result, Status},
};

/// A buffer object that is bound at one address for its whole life.
///
/// Dropping it unbinds it and waits for that, unless [`Memory::unbind`] was called and what it
/// returned was waited for.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Has the address space.
    adapter: Adapter,
    /// The kernel's object.
    bo: Bo,
    /// Where the GPU sees it.
    va: u64,
    /// What drop has still to do.
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Bound,
    /// Or nearly so: the change has this number.
    Unbound(u64),
    /// The device is gone, and uses nothing of it any more.
    Lost,
    /// It may still be bound: its addresses must not become another's.
    Stuck,
}

impl Memory {
    pub(crate) fn create(
        adapter: &Adapter,
        size: u64,
        placements: Placements,
        flags: BoFlags,
        access: Access,
    ) -> Result<Self> {
        let bo = Bo::create_in(adapter.vm(), size, placements, flags)?;
        let va = adapter.take_addresses(size)?;
        if let Err(status) = adapter.bind(true, |b| b.map(&bo, 0, va, size, access)) {
            adapter.give_addresses_back(va, size);
            return Err(status);
        }
        Ok(Self {
            adapter: adapter.clone(),
            bo,
            va,
            state: State::Bound,
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

    /// Begins to unbind it. Tells which change of the address space to wait for, if any, before it
    /// is dropped.
    pub(crate) fn unbind(&mut self) -> Option<u64> {
        if matches!(self.state, State::Bound) {
            let (va, size) = (self.va, self.size());
            self.state = match self.adapter.bind(false, |b| b.unmap(va, size)) {
                Ok(point) => State::Unbound(point),
                Err(Status::DEVICE_REMOVED) => State::Lost,
                Err(_) => State::Stuck,
            };
        }
        match self.state {
            State::Unbound(point) => Some(point),
            _ => None,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.adapter.is_inherited() {
            return;
        }
        if matches!(self.state, State::Bound) {
            if let Some(point) = self.unbind() {
                if self.adapter.bound().wait(point, Deadline::NEVER).is_err() {
                    self.state = State::Stuck;
                }
            }
        }
        if !matches!(self.state, State::Stuck) {
            self.adapter.give_addresses_back(self.va, self.size());
        }
    }
}
