// SPDX-License-Identifier: MIT

//! Assembler and disassembler of the Skua GPU's programs.
//!
//! The instruction set is [`skua_spec::isa`]: mnemonics, operand forms, special registers and
//! encodings come from there, and this crate adds only how they are written. The syntax is
//! described in `Documentation/gpu/skua/assembler.rst`.
//!
//! | module | what it is |
//! |---|---|
//! | `source` | a source and what it includes to lines |
//! | `token` | characters to tokens, each with its column |
//! | `expression` | integer constant expressions |
//! | `assembler` | lines to instructions and metadata |
//! | `disassembler` | instructions to lines |
//! | `program` | what an assembled program is, and how commands that run it are made |
//! | `error` | what is wrong in a source, and where |
//!
//! # Examples
//!
//! ```
//! let program = skua_asm::assemble(
//!     "
//!     .threads 64, 1, 1
//!     .arg64 data
//!         sr    r0, flat
//!         arg   r2, data
//!         arg   r3, data.hi
//!         lea   r2, r2, r0, 2     // data + flat * 4
//!         st.32 [r2], r0
//!         exit
//!     ",
//! )
//! .map_err(|errors| errors[0].to_string())?;
//! assert_eq!(program.instructions().len(), 6);
//! let dispatch = program.dispatch(0x1_0000, [1, 1, 1], |name| match name {
//!     "data" => Some(0x20_0000),
//!     _ => None,
//! })?;
//! assert_eq!(dispatch.threads, [64, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembler;
mod disassembler;
mod error;
mod expression;
mod program;
mod source;
mod token;

pub use assembler::{assemble, assemble_with};
pub use disassembler::{disassemble, BadInstruction};
pub use error::Error;
pub use program::{Argument, BindCause, BindError, Program};
