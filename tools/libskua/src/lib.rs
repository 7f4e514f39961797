// SPDX-License-Identifier: MIT

//! Safe access to a Skua GPU through its render node.
