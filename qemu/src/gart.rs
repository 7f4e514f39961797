// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The GART: the window of the GPU-physical space that shows system memory (manual section 5).

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use skua_spec::address::PAGE_SIZE;

/// GPU-physical address of the first byte of the window.
pub const BASE: u64 = 0xc_0000_0000_0000;
/// 4 KiB pages of the window. A device may have entries for fewer of them.
pub const MAX_PAGES: u32 = 65536;

/// How far into the window a GPU-physical `address` is, if it is there.
pub fn inside(address: u64) -> Option<u64> {
    address
        .checked_sub(BASE)
        .filter(|inside| *inside < u64::from(MAX_PAGES) * PAGE_SIZE)
}

/// Where the GART's table is, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Bus address of the first entry, 4 KiB aligned.
    pub address: u64,
    /// Entries, at most [`MAX_PAGES`]; 0 turns the GART off.
    pub pages: u32,
}

/// The GART's table as it was last latched.
#[derive(Debug, Default)]
pub struct Gart {
    /// Replaced as a whole by the registers' thread; read-locked over every step of an engine.
    table: RwLock<Table>,
}

impl Gart {
    /// Latches a table. When it returns, nothing is read of the old one any more; what a TLB keeps
    /// of that stays until it is flushed.
    pub fn latch(&self, table: Table) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    /// The table as it is latched now, and stays until the guard is dropped.
    pub fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_table_is_latched_when_nobody_reads_the_old_one() {
        let (gart, latched) = (&Gart::default(), &AtomicBool::new(false));
        let table = Table {
            address: 0x1000,
            pages: 1,
        };
        thread::scope(|scope| {
            let old = gart.table();
            scope.spawn(move || {
                gart.latch(table);
                latched.store(true, Ordering::Release);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!latched.load(Ordering::Acquire) && *old == Table::default());
        });
        assert_eq!(*gart.table(), table);
    }
}
