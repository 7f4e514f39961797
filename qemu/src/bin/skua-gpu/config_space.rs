// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI configuration space (manual section 1).
//!
//! QEMU emulates the BARs' sizing and the MSI-X table; what the guest writes still comes here.

use std::ops::Range;

use skua_spec::config::{
    Config, ConfigRegister, PowerState, BAR2, BAR4, COMMAND, DEVICE_CONTROL, MSIX, POWER_CONTROL,
    RESIZABLE, RESIZABLE_CONTROL, RESIZABLE_SIZES, SIZE,
};
use skua_spec::pci::BAR_VRAM;
use skua_spec::register::{Info, Register, Reset};

/// What a write asks the device for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the device may access the bus now: bus master, and not asleep.
    pub(crate) master: bool,
    /// A reset of the function: asked for, or because it comes back from D3hot.
    pub(crate) reset: bool,
}

/// What the guest configures through PCI; it is reset with the function.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    /// What the guest reads.
    bytes: [u8; SIZE],
    /// Bits that the guest can write.
    writable: [u8; SIZE],
    /// What `bytes` holds after a reset.
    reset: [u8; SIZE],
}

impl ConfigSpace {
    /// The space of a device with `vectors` vectors (1 to 2048), `vram` visible bytes of VRAM and
    /// `aperture` bytes of BAR4 (powers of two, or 0 if it is not there; VRAM's from 1 MiB).
    pub(crate) fn new(vectors: u32, vram: u64, aperture: u64) -> Self {
        let mut space = Self {
            bytes: [0; SIZE],
            writable: [0; SIZE],
            reset: [0; SIZE],
        };
        for info in ConfigRegister::ALL.iter().map(|r| r.info()) {
            put(&mut space.writable, info, info.held());
            if let Reset::Value(value) = info.reset {
                put(&mut space.bytes, info, value);
            }
        }
        // It is seen once, as a reset clears it.
        let control = DEVICE_CONTROL::from_bits(DEVICE_CONTROL::INFO.held()).with_flr(true);
        put(&mut space.writable, DEVICE_CONTROL::INFO, control.bits());
        for (bar, size) in [(BAR2::INFO, vram), (BAR4::INFO, aperture)] {
            // Of one that is not there, nothing.
            let mask = size.wrapping_neg();
            put(&mut space.writable, bar, bar.held() & mask);
        }
        // CAST: at most 2048.
        space.set(MSIX::of(vectors as u16));
        if vram != 0 {
            space.set(BAR2::PRESENT);
            // Of the sizes that there could be, the present one.
            space.set(RESIZABLE::PRESENT);
            space.set(RESIZABLE_SIZES::of(vram));
            space.set(RESIZABLE_CONTROL::of(BAR_VRAM, vram));
        }
        if aperture != 0 {
            space.set(BAR4::PRESENT);
        }
        space.reset = space.bytes;
        space
    }

    fn get<R: Register<Block = Config>>(&self) -> R {
        R::from_bits(get(&self.bytes, R::ID.info()))
    }

    fn set<R: Register<Block = Config>>(&mut self, value: R) {
        put(&mut self.bytes, R::ID.info(), value.bits());
    }

    /// Everything takes its reset value.
    pub(crate) fn reset(&mut self) {
        self.bytes = self.reset;
    }

    /// Reads; what is beyond the space reads as zero.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let start = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        for (byte, value) in data.iter_mut().zip(&self.bytes[start..]) {
            *byte = *value;
        }
    }

    /// Writes, and says what the device has to do for it. `stays_master` is asked whether bus
    /// mastering stays on where it would be turned off.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        stays_master: impl Fn() -> bool,
    ) -> Effect {
        let start = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let (command, power): (COMMAND, POWER_CONTROL) = (self.get(), self.get());
        let slept = !self.is_awake();
        for (at, value) in (start..SIZE).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask) | (value & mask);
        }
        let written: COMMAND = self.get();
        if command.master() && !written.master() && stays_master() {
            self.set(written.with_master(true));
        }
        // What is not there is not taken.
        if self.get::<POWER_CONTROL>().state().is_none() {
            self.set(power);
        }
        let mut reset = self.get::<DEVICE_CONTROL>().flr();
        reset |= slept && self.is_awake();
        if reset {
            self.reset();
        }
        Effect {
            master: self.get::<COMMAND>().master() && self.is_awake(),
            reset,
        }
    }

    /// Whether the function is in D0. In D3hot it answers to its configuration space only.
    pub(crate) fn is_awake(&self) -> bool {
        self.get::<POWER_CONTROL>().state() == Some(PowerState::D0)
    }
}

/// The bytes in which a register lies.
fn range(info: &Info) -> Range<usize> {
    // CAST: in 4096 bytes.
    let (start, bits) = (info.offset as usize, info.bits as usize);
    start..start + bits / 8
}

fn get(bytes: &[u8; SIZE], info: &Info) -> u64 {
    let mut value = [0; 8];
    let range = range(info);
    value[..range.len()].copy_from_slice(&bytes[range]);
    u64::from_le_bytes(value)
}

fn put(bytes: &mut [u8; SIZE], info: &Info, value: u64) {
    let range = range(info);
    bytes[range.clone()].copy_from_slice(&value.to_le_bytes()[..range.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(space: &mut ConfigSpace, at: u64, data: &[u8]) -> Effect {
        space.write(at, data, || false)
    }

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// All that is not zero, by hand from the specifications: dwords by their offset.
    fn dwords(space: &ConfigSpace) -> Vec<(u64, u32)> {
        let all = (0..SIZE as u64).step_by(4).map(|at| (at, word(space, at)));
        all.filter(|(_, value)| *value != 0).collect()
    }

    #[test]
    fn capabilities() {
        let common = [
            (0x00, 0x10f5_1af4),
            (0x04, 0x0010_0000),
            (0x08, 0x0380_0001),
            (0x2c, 0x10f5_1af4),
            (0x34, 0x40),
            (0x40, 0x0003_5001),
            (0x50, 0x0002_6011),
            (0x54, 0x8000),
            (0x58, 0x9000),
            (0x60, 0x0002_0010),
            (0x64, 0x1000_8000),
            (0x68, 0x2810),
            (0x6c, 0x0040_0011),
            (0x70, 0x0011_0000),
            (0x84, 0x10),
            (0x8c, 0x2),
            (0x90, 0x1),
        ];
        for (vram, aperture, own) in [
            // BAR2 is resizable, of this size and no other.
            (
                64 << 20,
                0,
                &[
                    (0x18, 0xc),
                    (0x100, 0x0001_0015),
                    (0x104, 1 << 10),
                    (0x108, 0x622),
                ][..],
            ),
            (
                1 << 40,
                1 << 20,
                &[
                    (0x18, 0xc),
                    (0x20, 0xc),
                    (0x100, 0x0001_0015),
                    (0x104, 1 << 24),
                    (0x108, 0x1422),
                ],
            ),
            (0, 1 << 20, &[(0x20, 0xc)]),
        ] {
            let mut expected = [&common[..], own].concat();
            expected.sort_unstable();
            assert_eq!(dwords(&ConfigSpace::new(3, vram, aperture)), expected);
        }
    }

    #[test]
    fn a_function_asleep_is_no_bus_master_and_wakes_reset() {
        let mut space = ConfigSpace::new(3, 64 << 20, 0);
        assert!(write(&mut space, 4, &[6]).master);
        assert!(!write(&mut space, 0x44, &[3]).master);
        assert!(!space.is_awake());
        // There is no D1.
        write(&mut space, 0x44, &[1]);
        assert_eq!(word(&space, 0x44), 3);
        let effect = write(&mut space, 0x44, &[0]);
        assert_eq!((effect.master, effect.reset), (false, true));
        assert_eq!((word(&space, 4) & 0xffff, word(&space, 0x44)), (0, 0));
        assert!(!write(&mut space, 0x44, &[0]).reset, "it was awake");
    }

    #[test]
    fn bars_can_be_sized() {
        let mut space = ConfigSpace::new(3, 64 << 20, 0);
        for at in [0x10, 0x18, 0x1c] {
            write(&mut space, at, &[0xff; 4]);
        }
        assert_eq!(word(&space, 0x10), 0xffff_0000);
        assert_eq!(word(&space, 0x18), 0xfc00_000c);
        assert_eq!(word(&space, 0x1c), 0xffff_ffff);
        // What is not there has no bits.
        let bars = [0x18, 0x1c, 0x20, 0x24];
        for (vram, aperture, expected) in [
            (64 << 20, 0, [0xfc00_000c, 0xffff_ffff, 0, 0]),
            (0, 1 << 20, [0, 0, 0xfff0_000c, 0xffff_ffff]),
        ] {
            let mut space = ConfigSpace::new(3, vram, aperture);
            for at in bars {
                write(&mut space, at, &[0xff; 4]);
            }
            assert_eq!(bars.map(|at| word(&space, at)), expected);
        }
    }

    #[test]
    fn command_and_function_level_reset() {
        let mut space = ConfigSpace::new(3, 64 << 20, 0);
        let effect = write(&mut space, 4, &[0xff, 0xff]);
        assert_eq!((effect.master, effect.reset), (true, false));
        assert_eq!(word(&space, 4) & 0xffff, 0x0406);
        write(&mut space, 0x68, &[0x1f, 0x08]);
        assert_eq!(word(&space, 0x68), 0x081f);
        let effect = write(&mut space, 0x68, &[0x10, 0xa8]);
        assert_eq!((effect.master, effect.reset), (false, true));
        assert_eq!(word(&space, 4) & 0xffff, 0);
        assert_eq!(word(&space, 0x68), 0x2810);
    }

    #[test]
    fn beyond_the_end() {
        let mut space = ConfigSpace::new(3, 64 << 20, 0);
        write(&mut space, 4094, &[1, 2, 3, 4]);
        write(&mut space, u64::MAX, &[1, 2]);
        let mut bytes = [9; 4];
        space.read(4094, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn bus_mastering_that_stays_can_be_read() {
        let mut space = ConfigSpace::new(3, 64 << 20, 0);
        assert!(space.write(4, &[6], || true).master);
        assert!(space.write(4, &[2], || true).master);
        assert_eq!(word(&space, 4) & 0xffff, 6);
        assert!(!space.write(4, &[2], || false).master);
        assert_eq!(word(&space, 4) & 0xffff, 2);
    }
}
