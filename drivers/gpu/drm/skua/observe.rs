// SPDX-License-Identifier: GPL-2.0

//! What can be seen from outside: fdinfo, debugfs. Reads, and changes nothing.

pub(crate) mod debugfs;
pub(crate) mod fdinfo;
