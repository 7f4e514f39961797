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

use libskua::{Access, Bo, BoFlags, DestroyFlags, Error, Mapping, SegmentSets};
use rustix::io::Errno;

use crate::{
    address_space::PAGE,
    page_tables::PageTables,
    status::{Result, Status},
};

/// A buffer object that is bound at one address for its whole life.
///
/// Who drops the last reference to it says that nothing uses it: see [`Memory::destroy`].
#[derive(Debug)]
pub(crate) struct Memory {
    /// The page tables in which it is bound at `va`.
    tables: Arc<PageTables>,
    /// The kernel's object, which is the memory.
    bo: Bo,
    /// Its GPU virtual address, for its whole life.
    va: u64,
    /// Who gets it in place of its being dropped, and waits for that.
    heir: OnceLock<Sender<Self>>,
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
            heir: OnceLock::new(),
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

    /// Destroys it when nobody else has it any more: what uses it all the same faults. If it is to
    /// be `synchronous`, which one caller may say, its memory is free on return; called with no
    /// lock held that others need to let go of it.
    pub(crate) fn destroy(self: Arc<Self>, synchronous: bool) -> Result<()> {
        if !synchronous {
            return Arc::into_inner(self).map_or(Ok(()), |mut memory| memory.end(false));
        }
        let (heir, inheritance) = mpsc::channel();
        let _ = self.heir.set(heir);
        drop(self);
        match inheritance.recv() {
            Ok(mut memory) => memory.end(true),
            // It is the parent's.
            Err(_) => Ok(()),
        }
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
        if self.tables.adapter().is_inherited() {
            return;
        }
        match self.heir.take() {
            // It is there: it waits.
            Some(heir) => drop(heir.send(Self {
                tables: self.tables.clone(),
                bo: self.bo.take(),
                va: self.va,
                heir: OnceLock::new(),
            })),
            // It may be destroyed. If it cannot be, it may still be bound: its addresses must not
            // become another's.
            None => _ = self.end(false),
        }
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
