// SPDX-License-Identifier: GPL-2.0

//! Access to the registers, manual section 2.
//!
//! A running driver writes one register for a submission (the doorbell) and reads none: what it wants to
//! know is in the status page ([`crate::hardware::shared`]). Reads are for probe and recovery. Both are counted, so
//! that a benchmark can hold the driver to it.
//!
//! The mapping is gone once the device is unbound; an access then is `ENODEV`.

use crate::spec::{
    pci::BAR_REGS_SIZE,
    regs, //
};
use kernel::{
    io::Io,
    pci::DevresBar,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Bytes of the BAR as the type parameter of its mapping.
// CAST: 64 KiB.
pub(crate) const BAR_SIZE: usize = BAR_REGS_SIZE as usize;

/// The register BAR.
pub(crate) struct Registers {
    bar: DevresBar<BAR_SIZE>,
    reads: Atomic<u64>,
    writes: Atomic<u64>,
}

impl Registers {
    /// Takes over the mapped BAR.
    pub(crate) fn new(bar: DevresBar<BAR_SIZE>) -> Self {
        Self {
            bar,
            reads: Atomic::new(0),
            writes: Atomic::new(0),
        }
    }

    /// Reads the register at `offset`. `ENODEV` when the device is unbound.
    pub(crate) fn read(&self, offset: u32) -> Result<u32> {
        self.reads.fetch_add(1, Relaxed);
        let bar = self.bar.try_access().ok_or(ENODEV)?;
        let bar = &*bar;
        bar.try_read32(usize::try_from(offset)?)
    }

    /// Reads the pair of registers whose low half is at `offset`.
    pub(crate) fn read_pair(&self, offset: u32) -> Result<u64> {
        let low = self.read(offset)?;
        let high = self.read(offset.checked_add(4).ok_or(EINVAL)?)?;
        Ok(u64::from(low) | (u64::from(high) << 32))
    }

    /// Writes the register at `offset`. `ENODEV` when the device is unbound.
    pub(crate) fn write(&self, offset: u32, value: u32) -> Result {
        self.writes.fetch_add(1, Relaxed);
        let bar = self.bar.try_access().ok_or(ENODEV)?;
        let bar = &*bar;
        bar.try_write32(value, usize::try_from(offset)?)
    }

    /// Writes the pair of registers whose low half is at `offset`, low half first.
    pub(crate) fn write_pair(&self, offset: u32, value: u64) -> Result {
        // CAST: the two halves.
        self.write(offset, value as u32)?;
        self.write(offset.checked_add(4).ok_or(EINVAL)?, (value >> 32) as u32)
    }

    /// Reads register `register` (one of [`regs::engine`]) of engine `index`.
    pub(crate) fn read_engine(&self, index: u32, register: u32) -> Result<u32> {
        self.read(regs::engine_reg(index, register))
    }

    /// Writes register `register` (one of [`regs::engine`]) of engine `index`.
    pub(crate) fn write_engine(&self, index: u32, register: u32, value: u32) -> Result {
        self.write(regs::engine_reg(index, register), value)
    }

    /// Register reads since probe.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Register writes since probe.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }
}
