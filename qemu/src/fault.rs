// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults inside the device, before they become records (manual section 8).

use skua_spec::fault::{Access, Reason, Record};

/// What went wrong, without where the engine was: the engine knows that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason, which the record has as it is.
    pub reason: Reason,
    /// [`Access::None`] where memory has nothing to do with it.
    pub access: Access,
    /// As [`Record::detail`], whose meaning the reason says; else 0.
    pub detail: u32,
    /// The address, 0 without an access.
    pub address: u64,
    /// The instruction, or [`Record::NO_PC`].
    pub pc: u32,
    /// Whether the address is a virtual one though no command of a buffer is at fault: in a save
    /// area. The record is of no command.
    pub in_save_area: bool,
    /// Whether a context was to be left: the record is of that one.
    pub leaving: bool,
}

impl Fault {
    /// A fault that has to do with no memory access.
    pub const fn plain(reason: Reason) -> Self {
        Self {
            reason,
            access: Access::None,
            detail: 0,
            address: 0,
            pc: Record::NO_PC,
            in_save_area: false,
            leaving: false,
        }
    }

    /// A fault of an access to `address`.
    pub const fn access(reason: Reason, access: Access, address: u64) -> Self {
        Self {
            reason,
            access,
            detail: 0,
            address,
            pc: Record::NO_PC,
            in_save_area: false,
            leaving: false,
        }
    }

    /// The same fault with this [`Self::detail`].
    pub const fn with_detail(mut self, detail: u32) -> Self {
        self.detail = detail;
        self
    }

    /// The same in a context's save area.
    pub const fn in_save_area(mut self) -> Self {
        self.in_save_area = true;
        self
    }

    /// The same in the save area of the context that was to be left.
    pub const fn leaving(mut self) -> Self {
        self.leaving = true;
        self.in_save_area()
    }

    /// The same at an instruction.
    pub const fn at(mut self, pc: u32) -> Self {
        self.pc = pc;
        self
    }
}
