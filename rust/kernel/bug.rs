// SPDX-License-Identifier: GPL-2.0

//! What cannot be, told once.
//!
//! Upstream's counterpart: `rust/kernel/bug.rs`, which warns each time.

/// Warns in the kernel's log if `condition` holds, of each place in the code the first time alone
/// (`WARN_ON_ONCE()`): whatever a client can bring about again and again does not flood the log.
/// Returns the condition.
///
/// # Examples
///
/// ```ignore
/// // There is room for as many as there are engines.
/// crate::warn_on_once!(all.push_within_capacity(one).is_err());
/// ```
#[macro_export]
macro_rules! warn_on_once {
    ($condition:expr) => {{
        let condition: bool = $condition;
        if condition {
            const ONCE: u32 = ::kernel::bindings::BUGFLAG_ONCE
                | ::kernel::bug::bugflag_taint(::kernel::bindings::TAINT_WARN);
            ::kernel::warn_flags!(::core::file!(), ONCE);
        }
        condition
    }};
}
