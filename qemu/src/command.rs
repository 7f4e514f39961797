// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the commands do (manual section 7); what they look like is in [`skua_spec::command`].

pub mod dispatch;
pub mod draw;
pub mod semaphore;
pub mod transfer;
pub mod triangle;
