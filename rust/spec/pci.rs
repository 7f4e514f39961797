// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PCI identity, BARs and interrupt vectors (manual section 1).

/// PCI vendor: Red Hat (Qumranet), whose range 0x10f0-0x10ff is left for experiments by QEMU.
pub const VENDOR: u16 = 0x1af4;
/// PCI device.
pub const DEVICE: u16 = 0x10f5;
/// PCI revision: the major hardware version.
pub const REVISION: u8 = 1;
/// PCI class code: display controller, other (0x0380), programming interface 0.
pub const CLASS: u32 = 0x03_80_00;

/// BAR of the registers and the MSI-X table; 32 bit, not prefetchable.
pub const BAR_REGS: u32 = 0;
/// Size of [`BAR_REGS`] in bytes.
pub const BAR_REGS_SIZE: u64 = 0x1_0000;
/// BAR of visible VRAM; 64 bit, prefetchable, its size is that of the visible part. Not present if
/// nothing is visible.
pub const BAR_VRAM: u32 = 2;
/// BAR of the CPU host aperture; 64 bit, prefetchable. Not present without one.
pub const BAR_HOST_APERTURE: u32 = 4;

/// Offset of the MSI-X table in [`BAR_REGS`].
pub const MSIX_TABLE: u32 = 0x8000;
/// Offset of the MSI-X pending bits in [`BAR_REGS`].
pub const MSIX_PBA: u32 = 0x9000;

/// Engines that the register map has room for.
pub const MAX_ENGINES: u32 = 8;

/// The MSI-X vector that reports faults of a device with `engines` engines.
///
/// Vectors `0..engines` belong to the engines, in order.
///
/// # Examples
///
/// ```
/// use skua_spec::pci::fault_vector;
///
/// let (vectors, engines) = (4, 3);
/// assert_eq!(fault_vector(engines), vectors - 1);
/// ```
pub const fn fault_vector(engines: u32) -> u32 {
    engines
}
