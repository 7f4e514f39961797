// SPDX-License-Identifier: GPL-2.0

//! Access to the registers, manual section 2.
//!
//! A running driver writes at most one register for a submission (the doorbell, or a request to
//! stop) and reads none: what it wants to know is in the status page ([`crate::hardware::shared`]).
//! Reads are for probe and recovery. Both are counted, so that a benchmark can hold the driver to
//! it.
//!
//! The mapping is gone once the device is unbound; an access then is `ENODEV`.

use crate::spec::{
    number::EngineIndex,
    pci::BAR_REGS_SIZE,
    register::{
        Location,
        Readable,
        Writable, //
    },
    regs::Device, //
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
const BAR_SIZE: usize = BAR_REGS_SIZE as usize;

/// The register BAR, and how often it was used.
pub(crate) struct Registers {
    /// The mapping, all of BAR0; revoked at unbind.
    bar: DevresBar<BAR_SIZE>,
    /// 32-bit reads since probe.
    reads: Atomic<u64>,
    /// 32-bit writes since probe.
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

    /// Reads a register in `block`: one access, or two for a pair, the low half first.
    // Inline, so that the offset is known when this is compiled.
    #[inline(always)]
    fn read_in<R: Readable>(&self, block: R::Block) -> Result<R> {
        let bar = self.bar.try_access().ok_or(ENODEV)?;
        let bar = &*bar;
        let mut result = Ok(());
        let value = R::read(block, |offset| {
            self.reads.fetch_add(1, Relaxed);
            // CAST: within the BAR.
            let word = bar.try_read32(offset as usize);
            result = result.and(word.map(|_| ()));
            word.unwrap_or(0)
        });
        result.map(|()| value)
    }

    /// Writes a register in `block`: one access, or two for a pair, the low half first.
    #[inline(always)]
    fn write_in<R: Writable>(&self, block: R::Block, value: R) -> Result {
        let bar = self.bar.try_access().ok_or(ENODEV)?;
        let bar = &*bar;
        let mut result = Ok(());
        value.write(block, |offset, word| {
            self.writes.fetch_add(1, Relaxed);
            // CAST: within the BAR.
            result = result.and(bar.try_write32(word, offset as usize));
        });
        result
    }

    /// Reads a register of the device. `ENODEV` when the device is unbound.
    pub(crate) fn read<R>(&self, _: Location<R>) -> Result<R>
    where
        R: Readable<Block = Device>,
    {
        self.read_in(Device)
    }

    /// Writes a register of the device. `ENODEV` when the device is unbound.
    pub(crate) fn write<R>(&self, value: R) -> Result
    where
        R: Writable<Block = Device>,
    {
        self.write_in(Device, value)
    }

    /// Reads a register of `engine`. `ENODEV` when the device is unbound.
    pub(crate) fn read_engine<R>(&self, engine: EngineIndex, _: Location<R>) -> Result<R>
    where
        R: Readable<Block = EngineIndex>,
    {
        self.read_in(engine)
    }

    /// Writes a register of `engine`. `ENODEV` when the device is unbound.
    pub(crate) fn write_engine<R>(&self, engine: EngineIndex, value: R) -> Result
    where
        R: Writable<Block = EngineIndex>,
    {
        self.write_in(engine, value)
    }

    /// 32-bit register reads since probe.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// 32-bit register writes since probe.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }
}
