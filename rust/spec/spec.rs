// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua GPU's hardware specification as code.
