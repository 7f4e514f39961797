// SPDX-License-Identifier: MIT

//! Assembler and disassembler of the Skua GPU's programs.
