// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI configuration space (manual section 1).
//!
//! QEMU emulates the BARs' sizing and the MSI-X table; what the guest writes still comes here.

use skua_spec::pci;

/// Bytes of the configuration space: PCI Express gives a function 4 KiB.
pub(crate) const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const COMMAND_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u8 = 1 << 4;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;
const BAR4: usize = 0x20;
/// A BAR of 64 bits, prefetchable.
const BAR_64_PREFETCHABLE: u32 = 0xc;
const CAPABILITIES: usize = 0x34;
/// Power management, version 1.2 of its specification: D0 and D3hot.
const POWER: usize = 0x40;
const POWER_ID: u8 = 0x01;
const POWER_VERSION: u16 = 0x3;
const POWER_CONTROL: usize = POWER + 4;
const POWER_CONTROL_STATE: u8 = 0x3;
const MSIX: usize = 0x50;
const MSIX_ID: u8 = 0x11;
/// PCI Express, version 2 of the capability.
const EXPRESS: usize = 0x60;
const EXPRESS_ID: u8 = 0x10;
const EXPRESS_ENDPOINT_V2: u16 = 0x0002;
/// Role-based error reporting, which is not optional, and function level reset.
const EXPRESS_DEVICE_CAPS: u32 = 1 << 15 | 1 << 28;
const EXPRESS_DEVICE_CONTROL: usize = EXPRESS + 0x08;
/// Relaxed ordering and no snoop allowed, reads of 512 bytes.
const EXPRESS_DEVICE_CONTROL_RESET: u16 = 0x2810;
/// Error reporting, relaxed ordering, no snoop, size of reads.
const EXPRESS_DEVICE_CONTROL_WRITABLE: u16 = 0x781f;
/// In the upper byte of the device control.
const EXPRESS_DEVICE_CONTROL_FLR: u8 = 1 << 7;
/// One lane of 2.5 GT/s, no power management of the link.
const EXPRESS_LINK_CAPS: u32 = 1 << 22 | 1 << 4 | 1;
const EXPRESS_LINK_STATUS: u16 = 1 << 4 | 1;
/// Completion time-outs can be disabled.
const EXPRESS_DEVICE_CAPS_2: u32 = 1 << 4;
const EXPRESS_DEVICE_CONTROL_2_WRITABLE: u16 = 1 << 4;
const EXPRESS_LINK_CAPS_2: u32 = 1 << 1;
const EXPRESS_LINK_CONTROL_2: u16 = 1;
/// Resizable BAR, version 1, the last extended capability.
const RESIZABLE: usize = 0x100;
const RESIZABLE_ID: u32 = 1 << 16 | 0x15;
/// Resizable BAR control: the number of BARs that can be resized, 1.
const RESIZABLE_CONTROL: u32 = 1 << 5;

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
        for (bar, size) in [(BAR2, vram), (BAR4, aperture)] {
            if size != 0 {
                put(bar, &BAR_64_PREFETCHABLE.to_le_bytes());
            }
        }
        put(0x2c, &pci::VENDOR.to_le_bytes());
        put(0x2e, &pci::DEVICE.to_le_bytes());
        // CAST: constants below 256.
        put(CAPABILITIES, &[POWER as u8]);
        put(POWER, &[POWER_ID, MSIX as u8]);
        put(POWER + 2, &POWER_VERSION.to_le_bytes());
        // CAST: at most 2047.
        let size = (vectors - 1) as u16;
        put(MSIX, &[MSIX_ID, EXPRESS as u8]);
        put(MSIX + 2, &size.to_le_bytes());
        put(MSIX + 4, &(pci::MSIX_TABLE | pci::BAR_REGS).to_le_bytes());
        put(MSIX + 8, &(pci::MSIX_PBA | pci::BAR_REGS).to_le_bytes());
        put(EXPRESS, &[EXPRESS_ID, 0]);
        put(EXPRESS + 0x02, &EXPRESS_ENDPOINT_V2.to_le_bytes());
        put(EXPRESS + 0x04, &EXPRESS_DEVICE_CAPS.to_le_bytes());
        put(
            EXPRESS_DEVICE_CONTROL,
            &EXPRESS_DEVICE_CONTROL_RESET.to_le_bytes(),
        );
        put(EXPRESS + 0x0c, &EXPRESS_LINK_CAPS.to_le_bytes());
        put(EXPRESS + 0x12, &EXPRESS_LINK_STATUS.to_le_bytes());
        put(EXPRESS + 0x24, &EXPRESS_DEVICE_CAPS_2.to_le_bytes());
        put(EXPRESS + 0x2c, &EXPRESS_LINK_CAPS_2.to_le_bytes());
        put(EXPRESS + 0x30, &EXPRESS_LINK_CONTROL_2.to_le_bytes());
        if vram != 0 {
            // Of the sizes that there could be, the present one: bits from 4 on are 1 MiB and up.
            let size = vram.ilog2() - 20;
            let control = RESIZABLE_CONTROL | size << 8 | pci::BAR_VRAM;
            put(RESIZABLE, &RESIZABLE_ID.to_le_bytes());
            put(RESIZABLE + 4, &(1_u32 << (size + 4)).to_le_bytes());
            put(RESIZABLE + 8, &control.to_le_bytes());
        }

        let mut allow =
            |at: usize, mask: &[u8]| writable[at..at + mask.len()].copy_from_slice(mask);
        // Memory, bus master; INTx disable.
        allow(COMMAND, &[0x06, 0x04]);
        // CAST: 64 KiB.
        let regs = !(pci::BAR_REGS_SIZE as u32 - 1);
        allow(BAR0, &regs.to_le_bytes());
        for (bar, size) in [(BAR2, vram), (BAR4, aperture)] {
            if size != 0 {
                allow(bar, &(!(size - 1)).to_le_bytes());
            }
        }
        // Interrupt line.
        allow(0x3c, &[0xff]);
        // Function mask and enable.
        allow(MSIX + 3, &[0xc0]);
        allow(POWER_CONTROL, &[POWER_CONTROL_STATE]);
        allow(
            EXPRESS_DEVICE_CONTROL,
            &EXPRESS_DEVICE_CONTROL_WRITABLE.to_le_bytes(),
        );
        allow(
            EXPRESS + 0x28,
            &EXPRESS_DEVICE_CONTROL_2_WRITABLE.to_le_bytes(),
        );
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

    /// Writes, and says what the device has to do for it. `stays_master` is asked whether bus
    /// mastering stays on where it would be turned off.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        stays_master: impl Fn() -> bool,
    ) -> Effect {
        let start = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let mut reset = false;
        let slept = !self.is_awake();
        for (at, value) in (start..SIZE).zip(data) {
            let mask = self.writable[at];
            // D1 and D2 are not there: asked for, the state stays.
            if at == POWER_CONTROL && !matches!(value & POWER_CONTROL_STATE, 0 | 3) {
                continue;
            }
            let old = self.bytes[at];
            self.bytes[at] = (old & !mask) | (value & mask);
            if at == COMMAND && old & !value & COMMAND_MASTER != 0 && stays_master() {
                self.bytes[at] |= COMMAND_MASTER;
            }
            reset |= at == EXPRESS_DEVICE_CONTROL + 1 && value & EXPRESS_DEVICE_CONTROL_FLR != 0;
        }
        reset |= slept && self.is_awake();
        if reset {
            self.reset();
        }
        Effect {
            master: self.bytes[COMMAND] & COMMAND_MASTER != 0 && self.is_awake(),
            reset,
        }
    }

    /// Whether the function is in D0. In D3hot it answers to its configuration space only.
    pub(crate) fn is_awake(&self) -> bool {
        self.bytes[POWER_CONTROL] & POWER_CONTROL_STATE == 0
    }
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

    #[test]
    fn identity() {
        let space = ConfigSpace::new(3, 64 << 20, 0);
        assert_eq!(word(&space, 0), 0x10f5_1af4);
        assert_eq!(word(&space, 8), 0x0380_0001);
    }

    /// The list as tools walk it: identifiers in order, none overlapping the next.
    #[test]
    fn capabilities() {
        let space = ConfigSpace::new(3, 64 << 20, 0);
        assert_ne!(word(&space, 4) & 1 << 20, 0, "there is a list");
        let sizes = [(0x01, 8), (0x11, 12), (0x10, 0x3c)];
        let mut at = u64::from(word(&space, 0x34) & 0xff);
        let mut free = 0x40;
        for (id, size) in sizes {
            assert!(
                at >= free && at % 4 == 0,
                "capability {id:#x} is at {at:#x}"
            );
            let header = word(&space, at);
            assert_eq!(header & 0xff, id);
            (at, free) = (u64::from(header >> 8 & 0xff), at + size);
        }
        assert_eq!(at, 0);
        // Power management: version 3, what is in D3hot loses its state.
        assert_eq!(word(&space, 0x40) >> 16, 0x0003);
        assert_eq!(word(&space, 0x44), 0);
        assert_eq!(word(&space, 0x50) >> 16, 2);
        assert_eq!(word(&space, 0x54), 0x8000);
        assert_eq!(word(&space, 0x58), 0x9000);
        // An endpoint with function level reset, on a link that works.
        assert_eq!(word(&space, 0x60) >> 16, 0x0002);
        assert_eq!(word(&space, 0x64), 0x1000_8000);
        assert_eq!(word(&space, 0x68), 0x2810);
        assert_eq!(word(&space, 0x6c) & 0x3ff, word(&space, 0x70) >> 16 & 0x3ff);
        // One extended capability: BAR2 is resizable, of 64 MiB and no other size.
        assert_eq!(word(&space, 0x100), 0x0001_0015);
        assert_eq!(word(&space, 0x104), 1 << 10);
        assert_eq!(word(&space, 0x108), 0x622);
        let space = ConfigSpace::new(3, 1 << 40, 0);
        assert_eq!(
            (word(&space, 0x104), word(&space, 0x108)),
            (1 << 24, 0x1422)
        );
        let space = ConfigSpace::new(3, 0, 1 << 20);
        assert_eq!(word(&space, 0x100), 0);
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
