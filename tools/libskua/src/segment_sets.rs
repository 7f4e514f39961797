// SPDX-License-Identifier: MIT

//! Where a buffer object may be, and in which order that is tried.

use crate::device::Placements;

/// The regions for a buffer object (WDDM: segment sets). Those that may hold it are enough: VRAM is
/// tried first then, the aperture next, system memory last.
///
/// ```no_run
/// # use libskua::{Bo, BoFlags, Device, SegmentSets};
/// # fn f(device: &Device) -> libskua::Result<()> {
/// // In system memory, and in VRAM only if that is full; what leaves VRAM goes back there.
/// let sets = SegmentSets::new(device.vram() | device.aperture() | device.system())
///     .preferring(&[device.system(), device.vram()])
///     .evicted_to(device.system());
/// let bo = Bo::create(device, 4096, sets, BoFlags::CPU_ACCESS)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SegmentSets {
    /// Regions that may hold it.
    pub(crate) supported: Placements,
    /// The uAPI's: a byte for each that is tried first.
    pub(crate) preferred: u32,
    /// Regions for which it leaves VRAM.
    pub(crate) eviction: Placements,
}

impl SegmentSets {
    /// These may hold it (SupportedSegmentSet).
    pub const fn new(supported: Placements) -> Self {
        Self {
            supported,
            preferred: 0,
            eviction: Placements::NONE,
        }
    }

    /// These are tried first, in their order (PreferredSegment): each one region, up to three.
    /// Others are refused when the buffer object is created.
    #[must_use]
    pub fn preferring(mut self, order: &[Placements]) -> Self {
        let byte = |region: &Placements| u8::try_from(region.bits()).unwrap_or(u8::MAX);
        let mut bytes = [0; 4];
        for (to, region) in bytes.iter_mut().zip(order) {
            *to = byte(region);
        }
        self.preferred = u32::from_le_bytes(bytes);
        self
    }

    /// For these it leaves VRAM (EvictionSegmentSet): the aperture, system memory or both.
    #[must_use]
    pub const fn evicted_to(mut self, regions: Placements) -> Self {
        self.eviction = regions;
        self
    }

    /// The regions that may hold it.
    pub const fn supported(self) -> Placements {
        self.supported
    }

    /// Those that are tried first, in their order.
    pub fn preferred(self) -> Vec<Placements> {
        let bytes = self.preferred.to_le_bytes().into_iter();
        let bytes = bytes.take_while(|byte| *byte != 0);
        bytes
            .map(|byte| Placements::from_bits(byte.into()))
            .collect()
    }

    /// Those for which it leaves VRAM.
    pub const fn eviction(self) -> Placements {
        self.eviction
    }
}

impl From<Placements> for SegmentSets {
    fn from(supported: Placements) -> Self {
        Self::new(supported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_a_byte_for_each() {
        let regions = [1, 4, 2].map(Placements::from_bits);
        let sets = SegmentSets::new(Placements::from_bits(7)).preferring(&regions);
        assert_eq!(sets.preferred, 0x02_04_01);
        assert_eq!(sets.preferred(), regions);
        let none = sets.preferring(&[]);
        assert_eq!((none.preferred, none.preferred()), (0, vec![]));
    }

    #[test]
    fn what_is_no_order_stays_none() {
        let sets = SegmentSets::default();
        for (order, preferred) in [
            (&[0x100][..], 0xff),
            (&[3], 0x03),
            (&[0, 1], 0x01_00),
            (&[1, 2, 4, 1, 1], 0x01_04_02_01),
        ] {
            let order: Vec<_> = order.iter().copied().map(Placements::from_bits).collect();
            assert_eq!(sets.preferring(&order).preferred, preferred);
        }
    }
}
