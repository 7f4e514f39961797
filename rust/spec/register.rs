// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a register is: where it lies, who may access it how, what a reset makes of it.
//!
//! [`super::regs`] says this of each register, once, in a `register!` table; the macro makes of
//! every entry a type whose values are the register's (a getter and a `with_…` setter for each
//! field), a constant of the same name that says where the register is, and an [`Info`] to be
//! walked through. No one else shifts or masks.
//!
//! ```text
//! register! {
//!     pub enum EngineRegister of EngineIndex;      all registers of a block, as an enum
//!
//!     INFO(32) @ 0x00, ReadOnly, fixed {           name(bits) @ offset, access, reset value
//!         7:0 kind, with_kind ?=> EngineKind;      bits, getter, setter, type
//!     }
//!     CTRL(32) @ 0x20, ReadWrite, 0 {
//!         0:0 enable, with_enable => bool, WriteOneToSet;     its own access
//!     }
//! }
//! ```
//!
//! `=>` is followed by `bool`, by the integer that is as wide as the field, or by a number of
//! [`super::number`]; `?=>` by an enum, of which the getter finds `None` where the value has no
//! meaning; `@=>` by an address of [`super::address`], whose bits stand in the register where they
//! stand in the address (those below the field are dropped); `<=` by an integer that is wider than
//! the field (the setter drops its upper bits). A reset value that is computed stands in brackets.
//!
//! # Examples
//!
//! ```
//! use skua_spec::number::EngineIndex;
//! use skua_spec::register::{Half, Register};
//! use skua_spec::regs::{self, engine, DeviceRegister};
//!
//! // A value, of its fields and taken apart again.
//! let version = regs::VERSION::new().with_major(1).with_minor(7);
//! assert_eq!((version.bits(), version.major()), (0x1_0007, 1));
//!
//! // It is read by words, from where its block is.
//! let memory = |offset: u32| offset + 1;
//! let fence = engine::PREEMPT_FENCE::read(EngineIndex::ALL[1], memory);
//! let offset = engine::PREEMPT_FENCE.of(EngineIndex::ALL[1]);
//! assert_eq!(fence.bits(), u64::from(offset + 5) << 32 | u64::from(offset + 1));
//!
//! // Who has an offset finds the register and the half of it.
//! let size = DeviceRegister::VRAM_SIZE;
//! assert_eq!(DeviceRegister::at(size.info().offset + 4), Some((size, Half::High)));
//! ```

use super::bits;
use core::marker::PhantomData;

/// What the driver may do with a register or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// RO: a write is ignored.
    ReadOnly,
    /// WO: reads as zero.
    WriteOnly,
    /// RW: holds what was written.
    ReadWrite,
    /// W1: writing 1 starts something, writing 0 does nothing; reads as zero.
    WriteOne,
    /// W1S: writing 1 sets it, writing 0 does nothing; only the device clears it.
    WriteOneToSet,
}

impl Access {
    /// The manual's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "RO",
            Self::WriteOnly => "WO",
            Self::ReadWrite => "RW",
            Self::WriteOne => "W1",
            Self::WriteOneToSet => "W1S",
        }
    }
}

/// What a register holds after a reset of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reset {
    /// The value that it has then, on every device.
    Value(u64),
    /// What the hardware is: no reset changes it.
    Fixed,
    /// Nothing: it is only written.
    Nothing,
}

/// A field of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The getter's name; the manual has it in capitals.
    pub name: &'static str,
    /// Inclusive, below the register's bits.
    pub high: u32,
    /// At most `high`.
    pub low: u32,
    /// What the driver may do with it.
    pub access: Access,
}

impl Field {
    /// The field's bits in the register.
    pub const fn mask(&self) -> u64 {
        bits::mask(self.high, self.low)
    }
}

/// What there is to say of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// As the manual has it, in capitals.
    pub name: &'static str,
    /// Bytes from the start of its block.
    pub offset: u32,
    /// 32, or 64 for a pair of words, the low half first.
    pub bits: u32,
    /// What the driver may do with it; a field may differ.
    pub access: Access,
    /// What it holds after a reset.
    pub reset: Reset,
    /// Its fields, which do not overlap; all other bits are reserved.
    pub fields: &'static [Field],
}

impl Info {
    /// The bits that hold what the driver wrote; a write does not change the others.
    pub const fn held(&self) -> u64 {
        let mut mask = 0;
        let mut rest = self.fields;
        while let [field, others @ ..] = rest {
            if matches!(field.access, Access::ReadWrite) {
                mask |= field.mask();
            }
            rest = others;
        }
        mask
    }

    /// The half of the register that lies at `offset` of its block.
    pub const fn half_at(&self, offset: u32) -> Option<Half> {
        if offset == self.offset {
            Some(Half::Low)
        } else if self.bits == 64 && offset == self.offset + 4 {
            Some(Half::High)
        } else {
            None
        }
    }
}

/// A word of a register: the CPU accesses one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// Bits 31:0.
    Low,
    /// Bits 63:32.
    High,
}

impl Half {
    /// The 32 bits of a 64-bit `value` that this half is.
    pub const fn of(self, value: u64) -> u32 {
        match self {
            Self::Low => bits::lo(value),
            Self::High => bits::hi(value),
        }
    }

    /// `value` with this word replaced.
    pub const fn replace(self, value: u64, word: u32) -> u64 {
        match self {
            Self::Low => bits::pair(word, bits::hi(value)),
            Self::High => bits::pair(bits::lo(value), word),
        }
    }
}

/// A run of registers in BAR0.
pub trait Block: Copy {
    /// The registers in it.
    type Id: Copy;

    /// Offset in BAR0 of the block.
    fn base(self) -> u32;
}

/// The values of a register.
pub trait Register: Copy {
    /// The block of registers that it lies in.
    type Block: Block;
    /// The register's name among those of its block, as a value.
    const ID: <Self::Block as Block>::Id;
    /// Bytes from the start of its block.
    const OFFSET: u32;
    /// Whether it is a pair of words.
    const IS_PAIR: bool;

    /// The value with these bits. Bits of no field are kept, for who wants to show them.
    fn from_bits(bits: u64) -> Self;

    /// Its bits; 63:32 are zero unless it is a pair.
    fn bits(self) -> u64;

    /// Reads the register with `read`, which is given the offset in BAR0 of each word, in order.
    #[inline(always)]
    fn read(block: Self::Block, mut read: impl FnMut(u32) -> u32) -> Self {
        let offset = block.base() + Self::OFFSET;
        let low = read(offset);
        let high = if Self::IS_PAIR { read(offset + 4) } else { 0 };
        Self::from_bits(bits::pair(low, high))
    }

    /// Writes the value with `write`, which is given the offset in BAR0 of each word and the word,
    /// in order.
    #[inline(always)]
    fn write(self, block: Self::Block, mut write: impl FnMut(u32, u32)) {
        let offset = block.base() + Self::OFFSET;
        write(offset, bits::lo(self.bits()));
        if Self::IS_PAIR {
            write(offset + 4, bits::hi(self.bits()));
        }
    }
}

/// A register that the driver may read.
pub trait Readable: Register {}

/// A register that the driver may write.
pub trait Writable: Register {}

/// Where a register is: the constant of its name.
#[derive(Clone, Copy, Debug)]
pub struct Location<R>(PhantomData<R>);

impl<R: Register> Location<R> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }

    /// Offset in BAR0 of the register in `block`: of its low half if it is a pair.
    pub fn of(self, block: R::Block) -> u32 {
        block.base() + R::OFFSET
    }
}

/// Makes the registers of a block from a table: see the module.
macro_rules! register {
    (
        $(#[$enum_doc:meta])*
        pub enum $enum:ident of $block:ident;
        $(
            $(#[$doc:meta])*
            $name:ident($bits:literal) @ $offset:literal, $access:ident, $reset:tt {
                $(
                    $(#[$field_doc:meta])*
                    $high:literal : $low:literal $field:ident, $with:ident
                    $(=> $type:ident)? $(?=> $try:ident)? $(@=> $address:ident)?
                    $(<= $wide:ident)? $(, $field_access:ident)?;
                )+
            }
        )+
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum {
            $(
                #[doc = concat!("[`struct@", stringify!($name), "`]")]
                $name,
            )+
        }

        impl $enum {
            /// All of them, in the order of their offsets.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What there is to say of it.
            pub const fn info(self) -> &'static Info {
                match self {
                    $(Self::$name => $name::INFO,)+
                }
            }

            /// The register, and the word of it, at `offset` of the block.
            pub fn at(offset: u32) -> Option<(Self, Half)> {
                Self::ALL
                    .iter()
                    .find_map(|register| Some((*register, register.info().half_at(offset)?)))
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $name {
                bits: u64,
            }

            #[doc = concat!("Where [`struct@", stringify!($name), "`] is.")]
            pub const $name: Location<$name> = Location::new();

            impl $name {
                /// What there is to say of the register.
                pub const INFO: &'static Info = &Info {
                    name: stringify!($name),
                    offset: $offset,
                    bits: $bits,
                    access: Access::$access,
                    reset: register!(@reset $reset),
                    fields: &[$(
                        Field {
                            name: stringify!($field),
                            high: $high,
                            low: $low,
                            access: register!(@access $access $($field_access)?),
                        },
                    )+],
                };

                register!(@value);

                $(
                    register!(
                        @field [$(#[$field_doc])*] $high, $low, $field, $with,
                        $(=> $type)? $(?=> $try)? $(@=> $address)? $(<= $wide)?
                    );
                )+
            }

            impl Register for $name {
                type Block = $block;
                const ID: $enum = $enum::$name;
                const OFFSET: u32 = $offset;
                const IS_PAIR: bool = $bits == 64;

                #[inline(always)]
                fn from_bits(bits: u64) -> Self {
                    Self { bits }
                }

                #[inline(always)]
                fn bits(self) -> u64 {
                    self.bits
                }
            }

            register!(@marker $access $name);
        )+
    };

    (@field [$(#[$doc:meta])*] $high:literal, $low:literal, $field:ident, $with:ident,
        $op:tt $type:ident) =>
    {
        $(#[$doc])*
        #[inline(always)]
        pub const fn $field(self) -> $type {
            const { register!(@width $op $type, $high - $low + 1) };
            register!(@get $type, (self.bits & bits::mask($high, $low)) >> $low)
        }

        $(#[$doc])*
        #[inline(always)]
        pub const fn $with(self, value: $type) -> Self {
            let value = register!(@put $type, value);
            register!(@set self, $high, $low, value << $low)
        }
    };
    (@field [$(#[$doc:meta])*] $high:literal, $low:literal, $field:ident, $with:ident,
        ?=> $type:ident) =>
    {
        $(#[$doc])*
        ///
        /// `None` where the field's value has no meaning.
        #[inline(always)]
        pub const fn $field(self) -> Option<$type> {
            $type::from_u32(bits::lo((self.bits & bits::mask($high, $low)) >> $low))
        }

        $(#[$doc])*
        #[inline(always)]
        pub const fn $with(self, value: $type) -> Self {
            register!(@set self, $high, $low, bits::wide(value as u32) << $low)
        }
    };
    (@field [$(#[$doc:meta])*] $high:literal, $low:literal, $field:ident, $with:ident,
        @=> $type:ident) =>
    {
        $(#[$doc])*
        #[inline(always)]
        pub const fn $field(self) -> $type {
            $type(self.bits & bits::mask($high, $low))
        }

        $(#[$doc])*
        #[inline(always)]
        pub const fn $with(self, address: $type) -> Self {
            register!(@set self, $high, $low, address.0)
        }
    };

    (@set $self:ident, $high:literal, $low:literal, $bits:expr) => {{
        let mask = bits::mask($high, $low);
        Self {
            bits: ($self.bits & !mask) | ($bits & mask),
        }
    }};

    // A field's type is as wide as the field, so that no value is cut, unless the table says so.
    (@width => bool, $bits:expr) => { assert!($bits == 1) };
    (@width => $type:ident, $bits:expr) => { assert!($bits == $type::BITS) };
    (@width <= $type:ident, $bits:expr) => { assert!($bits < $type::BITS) };

    // CAST: of as many bits as the field has.
    (@get bool, $bits:expr) => { $bits != 0 };
    (@get u8, $bits:expr) => { ($bits) as u8 };
    (@get u16, $bits:expr) => { ($bits) as u16 };
    (@get u32, $bits:expr) => { bits::lo($bits) };
    (@get u64, $bits:expr) => { $bits };
    (@get $type:ident, $bits:expr) => { $type::from_bits($bits) };

    (@put bool, $value:ident) => { $value as u64 };
    (@put u8, $value:ident) => { $value as u64 };
    (@put u16, $value:ident) => { $value as u64 };
    (@put u32, $value:ident) => { $value as u64 };
    (@put u64, $value:ident) => { $value };
    (@put $type:ident, $value:ident) => { $value.into_bits() };

    (@reset fixed) => { Reset::Fixed };
    (@reset nothing) => { Reset::Nothing };
    (@reset $value:literal) => { Reset::Value($value) };
    (@reset ($value:expr)) => { Reset::Value($value as u64) };

    // Of a value that is a `bits: u64`, here and in `word!`.
    (@value) => {
        /// The value whose fields are all zero.
        #[inline(always)]
        pub const fn new() -> Self {
            Self { bits: 0 }
        }

        /// The value with these bits; those of no field are kept.
        #[inline(always)]
        pub const fn from_bits(bits: u64) -> Self {
            Self { bits }
        }

        /// The value's bits.
        #[inline(always)]
        pub const fn bits(self) -> u64 {
            self.bits
        }

        /// Bits 31:0: all of them unless it is a pair.
        #[inline(always)]
        pub const fn word(self) -> u32 {
            bits::lo(self.bits)
        }
    };

    (@access $register:ident) => { Access::$register };
    (@access $register:ident $field:ident) => { Access::$field };

    (@marker ReadOnly $name:ident) => {
        impl Readable for $name {}
    };
    (@marker WriteOnly $name:ident) => {
        impl Writable for $name {}
    };
    (@marker ReadWrite $name:ident) => {
        impl Readable for $name {}
        impl Writable for $name {}
    };
}
