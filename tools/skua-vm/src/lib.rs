// SPDX-License-Identifier: MIT

//! Boots a guest with a Skua GPU and reports what it did.
