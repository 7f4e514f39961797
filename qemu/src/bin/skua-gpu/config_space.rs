// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI configuration space (manual section 1).
//!
//! QEMU emulates the BARs' sizing and the MSI-X table; what the guest writes still comes here.

use skua_spec::pci;

/// Bytes of the configuration space.
pub(crate) const SIZE: usize = 256;

const COMMAND: usize = 0x04;
const COMMAND_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u8 = 1 << 4;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;
/// A BAR of 64 bits, prefetchable.
const BAR_64_PREFETCHABLE: u32 = 0xc;
const CAPABILITIES: usize = 0x34;
const MSIX: usize = 0x40;
const MSIX_ID: u8 = 0x11;
/// Advanced features: the function level reset of a conventional device.
const ADVANCED: usize = 0x50;
const ADVANCED_ID: u8 = 0x13;
/// Transactions pending and function level reset.
const ADVANCED_CAPS: u8 = 0x3;
const ADVANCED_CONTROL: usize = ADVANCED + 4;
const ADVANCED_CONTROL_FLR: u8 = 1 << 0;

/// What a write asks the device for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the device may access the bus now.
    pub(crate) master: bool,
    /// A function level reset.
    pub(crate) reset: bool,
}

/// The configuration space.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: [u8; SIZE],
    /// Bits that the guest can write.
    writable: [u8; SIZE],
    reset: [u8; SIZE],
}

impl ConfigSpace {
    /// The space of a device with `vectors` vectors (1 to 2048) and `vram` visible bytes of VRAM
    /// (a power of two).
    pub(crate) fn new(vectors: u32, vram: u64) -> Self {
        let mut bytes = [0; SIZE];
        let mut writable = [0; SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0x00, &pci::VENDOR.to_le_bytes());
        put(0x02, &pci::DEVICE.to_le_bytes());
        put(STATUS, &[STATUS_CAPABILITIES]);
        put(
            0x08,
            &((pci::CLASS << 8) | u32::from(pci::REVISION)).to_le_bytes(),
        );
        put(BAR2, &BAR_64_PREFETCHABLE.to_le_bytes());
        put(0x2c, &pci::VENDOR.to_le_bytes());
        put(0x2e, &pci::DEVICE.to_le_bytes());
        // CAST: constants below 256.
        put(CAPABILITIES, &[MSIX as u8]);
        // CAST: at most 2047.
        let size = (vectors - 1) as u16;
        put(MSIX, &[MSIX_ID, ADVANCED as u8]);
        put(MSIX + 2, &size.to_le_bytes());
        put(MSIX + 4, &(pci::MSIX_TABLE | pci::BAR_REGS).to_le_bytes());
        put(MSIX + 8, &(pci::MSIX_PBA | pci::BAR_REGS).to_le_bytes());
        put(ADVANCED, &[ADVANCED_ID, 0, 6, ADVANCED_CAPS]);

        let mut allow =
            |at: usize, mask: &[u8]| writable[at..at + mask.len()].copy_from_slice(mask);
        // Memory, bus master; INTx disable.
        allow(COMMAND, &[0x06, 0x04]);
        // CAST: 64 KiB.
        let regs = !(pci::BAR_REGS_SIZE as u32 - 1);
        allow(BAR0, &regs.to_le_bytes());
        allow(BAR2, &(!(vram - 1)).to_le_bytes());
        // Interrupt line.
        allow(0x3c, &[0xff]);
        // Function mask and enable.
        allow(MSIX + 3, &[0xc0]);
        Self {
            bytes,
            writable,
            reset: bytes,
        }
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

    /// Writes, and says what the device has to do for it.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let start = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let mut reset = false;
        for (at, value) in (start..SIZE).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask) | (value & mask);
            reset |= at == ADVANCED_CONTROL && value & ADVANCED_CONTROL_FLR != 0;
        }
        if reset {
            self.reset();
        }
        Effect {
            master: self.bytes[COMMAND] & COMMAND_MASTER != 0,
            reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity() {
        let space = ConfigSpace::new(3, 64 << 20);
        assert_eq!(word(&space, 0), 0x10f5_1af4);
        assert_eq!(word(&space, 8), 0x0380_0001);
        assert_eq!(word(&space, 0x40), 0x0002_5011);
        assert_eq!(word(&space, 0x44), 0x8000);
        assert_eq!(word(&space, 0x48), 0x9000);
        assert_eq!(word(&space, 0x50), 0x0306_0013);
    }

    #[test]
    fn bars_can_be_sized() {
        let mut space = ConfigSpace::new(3, 64 << 20);
        for at in [0x10, 0x18, 0x1c] {
            space.write(at, &[0xff; 4]);
        }
        assert_eq!(word(&space, 0x10), 0xffff_0000);
        assert_eq!(word(&space, 0x18), 0xfc00_000c);
        assert_eq!(word(&space, 0x1c), 0xffff_ffff);
    }

    #[test]
    fn command_and_function_level_reset() {
        let mut space = ConfigSpace::new(3, 64 << 20);
        let effect = space.write(4, &[0xff, 0xff]);
        assert_eq!((effect.master, effect.reset), (true, false));
        assert_eq!(word(&space, 4) & 0xffff, 0x0406);
        let effect = space.write(0x54, &[1]);
        assert_eq!((effect.master, effect.reset), (false, true));
        assert_eq!(word(&space, 4) & 0xffff, 0);
        assert_eq!(word(&space, 0x54), 0);
    }

    #[test]
    fn beyond_the_end() {
        let mut space = ConfigSpace::new(3, 64 << 20);
        space.write(254, &[1, 2, 3, 4]);
        space.write(u64::MAX, &[1, 2]);
        let mut bytes = [9; 4];
        space.read(254, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }
}
