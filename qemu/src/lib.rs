// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Skua GPU: a device model, and a vfio-user server around it.
