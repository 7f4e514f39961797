// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers that name things, each with a type of its own: none is taken for another.
//!
//! | type | names | range | who gives it out |
//! |---|---|---|---|
//! | [`EngineIndex`] | an engine | 0 to [`MAX_ENGINES`] - 1 | the hardware |
//! | [`Asid`] | an address space, to the TLBs | 0, the system's, to 0xffff | the driver |
//! | [`ContextSlot`] | a place for a context descriptor | the driver's | the driver |
//!
//! # Examples
//!
//! ```
//! use skua_spec::number::{Asid, EngineIndex};
//!
//! let engine = EngineIndex::new(1).expect("there is room for eight");
//! assert_eq!((engine.get(), engine.index()), (1, 1));
//! assert_eq!(EngineIndex::new(8), None);
//! assert_eq!(Asid::from(7).get(), 7);
//! assert!(Asid::SYSTEM.is_system());
//! ```

use super::pci::MAX_ENGINES;
use core::fmt;

/// Number of an engine, below [`MAX_ENGINES`]: it names the engine's registers, its block of the
/// status page and its MSI-X vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EngineIndex(u32);

impl EngineIndex {
    /// All that there can be, in order. A device has the first of them.
    pub const ALL: [Self; MAX_ENGINES as usize] = {
        let mut all = [Self(0); MAX_ENGINES as usize];
        let mut index = 0;
        while index < MAX_ENGINES {
            all[index as usize] = Self(index);
            index += 1;
        }
        all
    };

    /// Engine number `index`, or `None` where no device has so many.
    pub const fn new(index: u32) -> Option<Self> {
        if index < MAX_ENGINES {
            Some(Self(index))
        } else {
            None
        }
    }

    /// The number, below [`MAX_ENGINES`].
    #[inline(always)]
    pub const fn get(self) -> u32 {
        // It changes nothing, and tells the compiler the range.
        self.0 & (MAX_ENGINES - 1)
    }

    /// The number as an index of an array.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.get() as usize
    }
}

impl fmt::Display for EngineIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl From<EngineIndex> for u32 {
    fn from(engine: EngineIndex) -> Self {
        engine.get()
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($type:ident)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            /// The number as registers, descriptors and records have it.
            pub const fn get(self) -> $type {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$type> for $name {
            fn from(number: $type) -> Self {
                Self(number)
            }
        }

        impl From<$name> for $type {
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

number! {
    /// Address space identifier: tags what a TLB keeps. All contexts with one identifier have the
    /// same root table; before it is given to another process, all engines flush it.
    Asid(u16)
}

impl TryFrom<u32> for Asid {
    type Error = core::num::TryFromIntError;

    /// The identifier in a field of four bytes, of which the upper two are to be zero.
    fn try_from(number: u32) -> Result<Self, Self::Error> {
        u16::try_from(number).map(Self)
    }
}

impl From<Asid> for u32 {
    fn from(asid: Asid) -> Self {
        asid.0.into()
    }
}

impl Asid {
    /// The system's: ring commands, whose addresses are GPU-physical. No context has it.
    pub const SYSTEM: Self = Self(0);

    /// Bits of a field that holds one.
    pub(super) const BITS: u32 = u16::BITS;

    /// Whether it is the system's.
    pub const fn is_system(self) -> bool {
        self.0 == Self::SYSTEM.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        // CAST: an identifier's field has 16 bits.
        Self(bits as u16)
    }

    pub(super) const fn into_bits(self) -> u64 {
        self.0 as u64
    }
}

number! {
    /// Place of a context descriptor in the driver's array of them: the descriptor lies at the
    /// array's GPU-physical address plus this times [`super::context::Descriptor::SIZE`].
    ContextSlot(u32)
}
