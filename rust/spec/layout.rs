// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a structure that driver and device share lies in memory: which bytes are which field.
//!
//! As [`super::register`] has it of registers, each is said once, in a `layout!` table, of which
//! the macro makes an offset for each field, the list of them, and where it is taken apart a view
//! of its words with a getter and a `with_…` setter for each field. `word!` does so for bits of one
//! word. No one else shifts or masks.
//!
//! ```text
//! layout! {
//!     Record, RecordWords[8] {                 what has the offsets, the view and its words
//!         ENGINE(4) @ 0x00 engine, with_engine;    name(bytes) @ offset, getter, setter
//!         ADDRESS(8) @ 0x18 address, with_address;
//!     }
//! }
//!
//! layout! {
//!     FIELDS {                                 in a module: offsets, and the list of this name
//!         FAULT_PUT(4) @ 0x200;
//!         COUNTERS(8 * 67) @ 0x400;            that many of 8 bytes, one behind the other
//!     }
//! }
//!
//! word! {
//!     Header(32) {                             a word and its bits, as in a register
//!         31:24 opcode, with_opcode => u8;
//!     }
//! }
//! ```
//!
//! # Examples
//!
//! ```
//! use skua_spec::context::{Descriptor, DescriptorWords};
//! use skua_spec::layout::half;
//!
//! let words = DescriptorWords::new().with_asid(7).with_context_id(3);
//! assert_eq!(words.0[1], 0x3_0000_0007);
//! assert_eq!((words.asid(), words.context_id()), (7, 3));
//! // Who has one word of eight bytes finds the field of four in it.
//! assert_eq!(half(Descriptor::CONTEXT_ID).of(words.0[1]), 3);
//! assert_eq!(half(Descriptor::ASID).replace(words.0[1], 9), 0x3_0000_0009);
//! ```

use super::register::Half;

/// A field of a structure in memory, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The offset's name; the manual has it in small letters.
    pub name: &'static str,
    /// Bytes from the start of the structure, a multiple of `bytes` up to 8.
    pub offset: u64,
    /// Bytes of it, or of each of them.
    pub bytes: u64,
    /// How many there are, one behind the other.
    pub count: u64,
}

impl Field {
    /// Offset of the first byte behind it.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes * self.count
    }
}

/// Where the four bytes at `offset` are in the word of eight bytes that they lie in.
pub const fn half(offset: u64) -> Half {
    match offset % 8 {
        0 => Half::Low,
        _ => Half::High,
    }
}

/// The bits of word `number` that belong to one of `fields`, each of 4 or 8 bytes.
pub const fn used(fields: &[Field], number: u64) -> u64 {
    let mut mask = 0;
    let mut rest = fields;
    while let [field, others @ ..] = rest {
        if number >= field.offset / 8 && number * 8 < field.end() {
            mask |= match field.bytes {
                4 => half(field.offset).replace(0, u32::MAX),
                _ => u64::MAX,
            };
        }
        rest = others;
    }
    mask
}

/// Makes offsets, and a view of the words, from a table: see the module.
macro_rules! layout {
    ($target:ident, $(#[$doc:meta])* $words:ident[$count:literal] {
        $(
            $(#[$field_doc:meta])*
            $name:ident($bytes:tt $(* $times:expr)?) @ $offset:literal $($get:ident, $with:ident)?;
        )+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $words(pub [u64; $count]);

        impl $target {
            layout! {
                /// The fields, in the order of their offsets.
                FIELDS {
                    $(
                        $(#[$field_doc])*
                        $name($bytes $(* $times)?) @ $offset;
                    )+
                }
            }
        }

        impl $words {
            /// All of them zero.
            pub const fn new() -> Self {
                Self([0; $count])
            }

            $(layout!(@view [$(#[$field_doc])*] $bytes, $offset $(, $get, $with)?);)+
        }
    };

    ($(#[$doc:meta])* $list:ident {
        $(
            $(#[$field_doc:meta])*
            $name:ident($bytes:tt $(* $times:expr)?) @ $offset:literal;
        )+
    }) => {
        $(
            $(#[$field_doc])*
            #[doc = concat!("(", stringify!($bytes $(* $times)?), " bytes at this offset.)")]
            pub const $name: u64 = $offset;
        )+

        $(#[$doc])*
        pub const $list: &'static [layout::Field] = &[$(
            layout::Field {
                name: stringify!($name),
                offset: $offset,
                bytes: $bytes,
                count: 1 $(* $times)?,
            },
        )+];
    };

    (@view $doc:tt $bytes:tt, $offset:literal) => {};
    (@view [$(#[$doc:meta])*] $bytes:tt, $offset:literal, $get:ident, $with:ident) => {
        $(#[$doc])*
        pub const fn $get(self) -> layout!(@type $bytes) {
            layout!(@get $bytes, self.0[$offset / 8], $offset)
        }

        $(#[$doc])*
        pub const fn $with(mut self, value: layout!(@type $bytes)) -> Self {
            layout!(@put $bytes, self.0[$offset / 8], value, $offset);
            self
        }
    };

    (@type 4) => { u32 };
    (@type 8) => { u64 };
    (@get 4, $word:expr, $offset:literal) => { layout::half($offset).of($word) };
    (@get 8, $word:expr, $offset:literal) => { $word };
    (@put 4, $word:expr, $value:ident, $offset:literal) => {
        $word = layout::half($offset).replace($word, $value)
    };
    (@put 8, $word:expr, $value:ident, $offset:literal) => { $word = $value };
}

/// Makes the values of a word from a table of its bits: see the module.
macro_rules! word {
    (
        $(#[$doc:meta])*
        $name:ident($bits:literal) {
            $(
                $(#[$field_doc:meta])*
                $high:literal : $low:literal $field:ident, $with:ident
                $(=> $type:ident)? $(?=> $try:ident)? $(@=> $address:ident)?;
            )+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            bits: u64,
        }

        impl $name {
            /// How many bits it has: the rest of 64 are zero.
            pub const BITS: u32 = $bits;

            /// Its fields, which do not overlap; all other bits are reserved.
            pub const FIELDS: &'static [Field] = &[$(
                Field {
                    name: stringify!($field),
                    high: $high,
                    low: $low,
                    access: Access::ReadWrite,
                },
            )+];

            register!(@value);

            /// The value of 32 bits.
            #[inline(always)]
            pub const fn of(word: u32) -> Self {
                Self::from_bits(bits::wide(word))
            }

            $(
                register!(
                    @field [$(#[$field_doc])*] $high, $low, $field, $with,
                    $(=> $type)? $(?=> $try)? $(@=> $address)?
                );
            )+
        }
    };
}
