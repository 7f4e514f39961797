// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PCI configuration space (manual section 1).
//!
//! QEMU emulates sizing of BARs, the MSI-X table and masking; what it asks here is identity, the kinds of the BARs,
//! and the MSI-X capability, and what it tells is the command register.

use skua_spec::pci;

/// Bytes of configuration space.
pub(crate) const SIZE: usize = 256;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const MSIX: usize = 0x40;

/// Bits of the command register that can be written: memory space, bus master, INTx disable.
const COMMAND_WRITABLE: u16 = 0x0406;
const COMMAND_MASTER: u16 = 1 << 2;

/// Configuration space.
#[derive(Debug)]
pub(crate) struct Config {
    bytes: [u8; SIZE],
}

impl Config {
    /// Configuration space of a device with `vectors` MSI-X vectors.
    pub(crate) fn new(vectors: u32) -> Self {
        let mut config = Self { bytes: [0; SIZE] };
        config.put(0x00, &pci::VENDOR.to_le_bytes());
        config.put(0x02, &pci::DEVICE.to_le_bytes());
        // Status: there is a list of capabilities.
        config.put(0x06, &0x0010u16.to_le_bytes());
        config.put(0x08, &[pci::REVISION]);
        let class = pci::CLASS.to_le_bytes();
        config.put(0x09, class.get(..3).unwrap_or(&[]));
        // BAR2: 64 bits wide, prefetchable. BAR0: 32 bits, not prefetchable: zero.
        config.put(BAR0 + 8, &[0x0c]);
        config.put(0x2c, &pci::VENDOR.to_le_bytes());
        config.put(0x2e, &pci::DEVICE.to_le_bytes());
        config.put(0x34, &[MSIX as u8]);
        let control = u16::try_from(vectors.saturating_sub(1)).unwrap_or(0);
        config.put(MSIX, &[0x11, 0]);
        config.put(MSIX + 2, &control.to_le_bytes());
        config.put(MSIX + 4, &(pci::MSIX_TABLE | pci::BAR_REGS).to_le_bytes());
        config.put(MSIX + 8, &(pci::MSIX_PBA | pci::BAR_REGS).to_le_bytes());
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Reads; zeroes beyond the end.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        for (i, byte) in (0u64..).zip(data) {
            let at = offset.checked_add(i).and_then(|at| usize::try_from(at).ok());
            *byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes what can be written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        for (i, byte) in (0u64..).zip(data) {
            let Some(at) = offset.checked_add(i).and_then(|at| usize::try_from(at).ok()) else {
                return;
            };
            let command = COMMAND_WRITABLE.to_le_bytes();
            let mask = match at.checked_sub(COMMAND) {
                Some(i) if i < command.len() => command[i],
                // The interrupt line, which is software's.
                _ if at == 0x3c => 0xff,
                _ => 0,
            };
            if let Some(place) = self.bytes.get_mut(at) {
                *place = (*place & !mask) | (byte & mask);
            }
        }
    }

    /// Whether the device may access the bus.
    pub(crate) fn is_bus_master(&self) -> bool {
        let command = u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]]);
        command & COMMAND_MASTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_and_capability() {
        let config = Config::new(3);
        let mut word = [0; 4];
        config.read(0, &mut word);
        assert_eq!(u32::from_le_bytes(word), 0x10f5_1af4);
        config.read(0x40, &mut word);
        assert_eq!(word, [0x11, 0, 2, 0]);
    }

    #[test]
    fn only_the_command_register_is_written() {
        let mut config = Config::new(3);
        let before = config.bytes;
        config.write(0, &[0xff; SIZE + 8]);
        let changed: Vec<_> = (0..SIZE)
            .filter(|at| config.bytes[*at] != before[*at])
            .collect();
        assert_eq!(changed, [COMMAND, COMMAND + 1, 0x3c]);
        assert!(config.is_bus_master());
        config.write(4, &[0, 0]);
        assert!(!config.is_bus_master());
    }
}
