// SPDX-License-Identifier: MIT

//! Memory that the GPU sees at an address of its own: what allocations are made of.
//!
//! Binding does not wait. A bind of video memory may take as long as the copy engine is busy, since
//! it clears the memory first; so submissions wait for the binds before them
//! ([`PageTables::last_map`]), and not the program.

use std::sync::{
    mpsc::{self, Sender},
    Arc, OnceLock,
};

use libskua::{Access, Bo, BoFlags, DestroyFlags, Error, Mapping, MonitoredFence, SegmentSets};
use rustix::io::Errno;

use crate::{
    address_space::PAGE,
    page_tables::{PageTables, Retired},
    scheduler::Point,
    status::{Result, Status},
};

/// A buffer object that is bound at one address for its whole life.
///
/// Who drops the last reference to it destroys it: see [`Memory::destroy`].
#[derive(Debug)]
pub(crate) struct Memory {
    /// The page tables in which it is bound at `va`.
    tables: Arc<PageTables>,
    /// The kernel's object, which is the memory.
    bo: Bo,
    /// Its GPU virtual address, for its whole life.
    va: u64,
    /// How it is destroyed; not before, if there is none.
    end: OnceLock<End>,
}

/// How memory is destroyed.
#[derive(Debug)]
pub(crate) enum End {
    /// At once: what uses it all the same faults.
    AtOnce,
    /// When work is done that was queued before. Its addresses are free when these values are
    /// reached, or later.
    Behind(Vec<Point>),
    /// At once, by who gets it in place of its being dropped, and waits for it to be free.
    Synchronous(Sender<Memory>),
}

impl Memory {
    /// Memory that is all zero, bound. As BO_CREATE and a bind; INVALID_PARAMETER if it could never
    /// be locked.
    pub(crate) fn create(
        tables: &Arc<PageTables>,
        size: u64,
        sets: impl Into<SegmentSets>,
        flags: BoFlags,
        priority: u32,
        access: Access,
    ) -> Result<Self> {
        let bo = Bo::create_in_with_priority(tables.vm(), size, sets, flags, priority);
        let bo = bo.map_err(refused)?;
        let va = tables.adapter().space().take(size)?;
        if let Err(status) = tables.bind(|b| b.map(&bo, 0, va, size, access)) {
            tables.adapter().space().give_back(va, size);
            return Err(status);
        }
        Ok(Self {
            tables: tables.clone(),
            bo,
            va,
            end: OnceLock::new(),
        })
    }

    pub(crate) const fn va(&self) -> u64 {
        self.va
    }

    pub(crate) const fn bo(&self) -> &Bo {
        &self.bo
    }

    /// Locks it in the kernel, which moves it where the CPU can access it: that may wait for work,
    /// ten seconds at most. INVALID_PARAMETER if that is nowhere; GRAPHICS_ALLOCATION_BUSY if it is
    /// in use for longer, or offered; GRAPHICS_TOO_MANY_REFERENCES; NO_MEMORY.
    pub(crate) fn lock(&self) -> Result<()> {
        self.bo.lock().map_err(not_locked)
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

    /// Destroys it when nobody else has it any more, behind the work of `uses`, which is all that
    /// is queued, or at once; does not wait.
    pub(crate) fn destroy(self: Arc<Self>, uses: Option<Vec<Point>>) {
        // It is destroyed once.
        let _ = self.end.set(uses.map_or(End::AtOnce, End::Behind));
    }

    /// Destroys it at once when nobody else has it any more: it is free on return. One caller may
    /// say that, with no lock held that others need to let go of it.
    pub(crate) fn destroy_synchronously(self: Arc<Self>) -> Result<()> {
        let (heir, inheritance) = mpsc::channel();
        let _ = self.end.set(End::Synchronous(heir));
        drop(self);
        match inheritance.recv() {
            Ok(mut memory) => memory.end(true, None),
            // It is the parent's.
            Err(_) => Ok(()),
        }
    }

    /// Destroys it: behind the work of `uses`, which is all that is queued, or at once.
    fn end(&mut self, synchronous: bool, uses: Option<Vec<Point>>) -> Result<()> {
        let (va, size) = (self.va, self.bo.size());
        let mut flags = DestroyFlags::empty();
        // What a device that has failed still runs the kernel alone knows.
        let at_once = uses.is_none() && !self.tables.is_lost();
        flags.set(DestroyFlags::ASSUME_NOT_IN_USE, at_once);
        flags.set(DestroyFlags::SYNCHRONOUS, synchronous);
        self.bo.destroy(flags)?;
        match uses {
            Some(uses) => self.tables.retire(uses, Retired { va, size }),
            // What is bound there from now on is bound behind what the kernel has unbound.
            None => self.tables.adapter().give_all_back(va, size),
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.tables.adapter().is_inherited() {
            return;
        }
        // If it cannot be destroyed it may still be bound: its addresses must not become another's.
        match self.end.take() {
            // It is there: it waits.
            Some(End::Synchronous(heir)) => drop(heir.send(Self {
                tables: self.tables.clone(),
                bo: self.bo.take(),
                va: self.va,
                end: OnceLock::new(),
            })),
            Some(End::Behind(uses)) => _ = self.end(false, Some(uses)),
            Some(End::AtOnce) | None => _ = self.end(false, None),
        }
    }
}

/// The page with the value of a fence, where the GPU reads it.
#[derive(Debug)]
pub(crate) struct ValueView {
    /// The page tables in which it is bound at `va`.
    tables: Arc<PageTables>,
    /// Its GPU virtual address.
    va: u64,
}

impl ValueView {
    /// The value of a fence, bound. As a bind.
    pub(crate) fn create(tables: &Arc<PageTables>, fence: &MonitoredFence) -> Result<Self> {
        let va = tables.adapter().space().take(PAGE)?;
        if let Err(status) = tables.bind(|bind| bind.map_fence(fence, va)) {
            tables.adapter().space().give_back(va, PAGE);
            return Err(status);
        }
        Ok(Self {
            tables: tables.clone(),
            va,
        })
    }

    pub(crate) const fn va(&self) -> u64 {
        self.va
    }

    /// Nobody needs it when these values are reached; until then the GPU may read there.
    pub(crate) fn retire(self, uses: Vec<Point>) {
        let (va, size) = (self.va, PAGE);
        self.tables.retire(uses, Retired { va, size });
    }
}

/// The status for what BO_CREATE has failed with.
fn refused(error: Error) -> Status {
    match error.errno() {
        // It could never be locked (row 0.18).
        Some(Errno::OPNOTSUPP) => Status::INVALID_PARAMETER,
        _ => error.into(),
    }
}

/// The status for what BO_LOCK has failed with.
fn not_locked(error: Error) -> Status {
    match error.errno() {
        Some(Errno::PERM) => Status::INVALID_PARAMETER,
        // What uses it does not end.
        Some(Errno::NOSPC) => Status::GRAPHICS_ALLOCATION_BUSY,
        Some(Errno::MFILE) => Status::GRAPHICS_TOO_MANY_REFERENCES,
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, errno: Errno) -> Error {
        Error::Ioctl { name, errno }
    }

    #[test]
    fn a_lock_has_statuses_of_its_own() {
        for (errno, status) in [
            (Errno::PERM, Status::INVALID_PARAMETER),
            (Errno::NOSPC, Status::GRAPHICS_ALLOCATION_BUSY),
            (Errno::BUSY, Status::GRAPHICS_ALLOCATION_BUSY),
            (Errno::MFILE, Status::GRAPHICS_TOO_MANY_REFERENCES),
            (Errno::NOMEM, Status::NO_MEMORY),
            (Errno::NODEV, Status::DEVICE_REMOVED),
        ] {
            assert_eq!(not_locked(of("BO_LOCK", errno)), status, "{errno}");
        }
    }

    #[test]
    fn what_could_never_be_locked_is_no_parameter() {
        for (errno, status) in [
            (Errno::OPNOTSUPP, Status::INVALID_PARAMETER),
            (Errno::NOSPC, Status::GRAPHICS_NO_VIDEO_MEMORY),
        ] {
            assert_eq!(refused(of("BO_CREATE", errno)), status, "{errno}");
        }
    }
}
