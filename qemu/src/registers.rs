// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the registers hold (manual section 2).
//!
//! The table of [`skua_spec::regs`] says which there are, what a reset makes of them and which of
//! their bits a write changes; this file keeps the values. What a write does besides, and what a
//! read finds that is not kept, is in [`crate::device`].

use skua_spec::number::EngineIndex;
use skua_spec::register::{Half, Info, Register, Reset};
use skua_spec::regs::{Decoded, Device, DeviceRegister, EngineRegister};

/// The values of all registers. A register that is only written has none, and reads as zero.
#[derive(Clone, Debug)]
pub struct File {
    /// The values of the device's registers, by [`DeviceRegister`].
    device: [u64; DeviceRegister::ALL.len()],
    /// The values of each engine's registers, by [`EngineRegister`].
    engines: Vec<[u64; EngineRegister::ALL.len()]>,
    /// Requests in [`struct@skua_spec::regs::INVALIDATE`], modulo 2^32.
    pub invalidations: u32,
    /// Requests in [`struct@skua_spec::regs::SNAPSHOT`], modulo 2^32.
    pub snapshots: u32,
    /// Requests in [`struct@skua_spec::regs::APERTURE_FLUSH`], modulo 2^32.
    pub aperture_flushes: u32,
    /// Entries of the aperture's table that were refused, modulo 2^32.
    pub aperture_refused: u32,
}

/// The value after a reset, of what does not depend on the device.
fn reset(info: &Info) -> u64 {
    match info.reset {
        Reset::Value(value) => value,
        Reset::Fixed | Reset::Nothing => 0,
    }
}

impl File {
    /// The reset values of a device with `engines` engines. Those that say what the device is are
    /// for the caller to set.
    pub fn new(engines: usize) -> Self {
        let engine = std::array::from_fn(|i| reset(EngineRegister::ALL[i].info()));
        Self {
            device: std::array::from_fn(|i| reset(DeviceRegister::ALL[i].info())),
            engines: vec![engine; engines],
            invalidations: 0,
            snapshots: 0,
            aperture_flushes: 0,
            aperture_refused: 0,
        }
    }

    fn slot(&mut self, register: Decoded) -> &mut u64 {
        match register {
            Decoded::Device(register) => &mut self.device[register as usize],
            Decoded::Engine(engine, register) => {
                &mut self.engines[engine.index()][register as usize]
            }
        }
    }

    /// The value of a register of the device.
    pub fn get<R: Register<Block = Device>>(&self) -> R {
        R::from_bits(self.device[R::ID as usize])
    }

    /// Sets a register of the device.
    pub fn set<R: Register<Block = Device>>(&mut self, value: R) {
        self.device[R::ID as usize] = value.bits();
    }

    /// The value of a register of an engine that the device has.
    pub fn engine<R: Register<Block = EngineIndex>>(&self, engine: EngineIndex) -> R {
        R::from_bits(self.engines[engine.index()][R::ID as usize])
    }

    /// Sets a register of an engine that the device has.
    pub fn set_engine<R: Register<Block = EngineIndex>>(&mut self, engine: EngineIndex, value: R) {
        self.engines[engine.index()][R::ID as usize] = value.bits();
    }

    /// The value that is stored of a register. Of those whose value is the state of an engine it is
    /// not what is read.
    pub fn held(&self, register: Decoded) -> u64 {
        match register {
            Decoded::Device(register) => self.device[register as usize],
            Decoded::Engine(engine, register) => self.engines[engine.index()][register as usize],
        }
    }

    /// Takes a word that the driver wrote, as far as the register holds it. Returns what the driver
    /// wanted the register to be.
    pub fn write(&mut self, register: Decoded, half: Half, word: u32) -> u64 {
        let held = register.info().held();
        let slot = self.slot(register);
        let wanted = half.replace(*slot, word);
        *slot = (*slot & !held) | (wanted & held);
        wanted
    }
}
