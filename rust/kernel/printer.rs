// SPDX-License-Identifier: GPL-2.0

//! Text output to fdinfo and to debugfs, and fdinfo's memory keys.
//!
//! Both printers are [`fmt::Write`]: `writeln!(p, …)` works. Output that does not fit makes the C
//! code call again with a larger buffer, so a printer never reports an error.
//!
//! # Examples
//!
//! ```ignore
//! // In `DriverExt::show_fdinfo()`:
//! let _ = writeln!(printer, "drm-engine-copy:\t{} ns", busy);
//! printer.memory_stats(c"vram0", &MemoryStats { private: bytes, resident: bytes, ..stats });
//! ```
//!
//! C headers: `include/drm/drm_print.h`, `include/linux/seq_file.h`, `include/drm/drm_file.h`.

use super::shim;
use core::marker::PhantomData;
use kernel::{
    bindings,
    fmt,
    prelude::*,
    types::NotThreadSafe, //
};

/// A `drm_printer`, as fdinfo gives it.
///
/// # Invariants
///
/// `raw` is valid for `'a`.
pub(crate) struct Printer<'a> {
    /// Of the C caller, which adds text to a file's output by it.
    raw: *mut bindings::drm_printer,
    /// Borrowed alone: two would mix their output.
    _life: PhantomData<&'a mut bindings::drm_printer>,
    /// The C caller does not expect it on another thread.
    _not_send: NotThreadSafe,
}

impl Printer<'_> {
    /// Wraps a C printer.
    ///
    /// # Safety
    ///
    /// `raw` must be valid and used by nobody else as long as the result lives.
    pub(super) unsafe fn from_raw(raw: *mut bindings::drm_printer) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            raw,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }

    /// Prints the `drm-{total,shared,active,resident,purgeable}-<region>` keys of one memory region
    /// (`drm-usage-stats.rst`).
    pub(crate) fn memory_stats(&mut self, region: &CStr, stats: &MemoryStats) {
        let raw = bindings::drm_memory_stats {
            shared: stats.shared,
            private: stats.private,
            resident: stats.resident,
            purgeable: stats.purgeable,
            active: stats.active,
        };
        let supported = bindings::drm_gem_object_status_DRM_GEM_OBJECT_RESIDENT
            | bindings::drm_gem_object_status_DRM_GEM_OBJECT_PURGEABLE
            | bindings::drm_gem_object_status_DRM_GEM_OBJECT_ACTIVE;
        // SAFETY: The printer is valid by the type invariant, the others are for the call.
        unsafe {
            bindings::drm_print_memory_stats(self.raw, &raw, supported, region.as_char_ptr());
        }
    }
}

impl fmt::Write for Printer<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.write_fmt(kernel::prelude::fmt!("{}", s))
    }

    fn write_fmt(&mut self, args: fmt::Arguments<'_>) -> fmt::Result {
        // SAFETY: The printer is valid by the type invariant; `%pA` takes a `fmt::Arguments`.
        unsafe {
            shim::drm_printf(
                self.raw,
                c"%pA".as_char_ptr().cast(),
                core::ptr::from_ref(&args).cast::<c_void>(),
            );
        }
        Ok(())
    }
}

/// What one client has in one memory region, in bytes. See `struct drm_memory_stats`.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryStats {
    /// Size of objects that others have handles to as well.
    pub(crate) shared: u64,
    /// Size of objects that only this client has handles to.
    pub(crate) private: u64,
    /// Of those, what is backed by memory of the region now.
    pub(crate) resident: u64,
    /// Of the resident, what may be thrown away.
    pub(crate) purgeable: u64,
    /// Of those, what the GPU works on now.
    pub(crate) active: u64,
}

/// A `seq_file`, as debugfs gives it.
///
/// # Invariants
///
/// `raw` is valid for `'a`.
pub(crate) struct SeqPrinter<'a> {
    /// Of the C caller, which calls again with more room if the text has overrun it.
    raw: *mut bindings::seq_file,
    /// As in [`Printer`].
    _life: PhantomData<&'a mut bindings::seq_file>,
    /// Likewise.
    _not_send: NotThreadSafe,
}

impl SeqPrinter<'_> {
    /// Wraps a C seq_file.
    ///
    /// # Safety
    ///
    /// `raw` must be valid and used by nobody else as long as the result lives.
    pub(super) unsafe fn from_raw(raw: *mut bindings::seq_file) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            raw,
            _life: PhantomData,
            _not_send: NotThreadSafe,
        }
    }
}

impl fmt::Write for SeqPrinter<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.write_fmt(kernel::prelude::fmt!("{}", s))
    }

    fn write_fmt(&mut self, args: fmt::Arguments<'_>) -> fmt::Result {
        // SAFETY: The file is valid by the type invariant; `%pA` takes a `fmt::Arguments`.
        unsafe {
            bindings::seq_printf(
                self.raw,
                c"%pA".as_char_ptr(),
                core::ptr::from_ref(&args).cast::<c_void>(),
            );
        }
        Ok(())
    }
}
