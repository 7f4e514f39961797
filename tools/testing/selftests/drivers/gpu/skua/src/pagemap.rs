// SPDX-License-Identifier: MIT

//! Which physical page is behind a virtual address: `Documentation/admin-guide/mm/pagemap.rst`.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The physical address behind an address of this process; `None` if no page is there. It needs
/// the rights of root.
///
/// # Panics
///
/// If it cannot be read.
#[track_caller]
pub fn physical(address: usize) -> Option<u64> {
    let file = File::open("/proc/self/pagemap").expect("/proc/self/pagemap");
    let mut entry = [0; 8];
    let index = (address as u64) / 4096;
    file.read_exact_at(&mut entry, index * 8)
        .expect("an entry of pagemap");
    let entry = u64::from_ne_bytes(entry);
    let present = entry >> 63 == 1;
    let frame = entry & ((1 << 55) - 1);
    assert!(!present || frame != 0, "pagemap does not tell frames");
    present.then_some(frame * 4096 + (address as u64) % 4096)
}

/// Whether a physical address is the machine's own memory, as `/proc/iomem` says.
///
/// # Panics
///
/// If it cannot be read.
#[track_caller]
pub fn is_ram(address: u64) -> bool {
    let text = std::fs::read_to_string("/proc/iomem").expect("/proc/iomem");
    text.lines()
        .filter(|line| line.ends_with(": System RAM"))
        .filter_map(|line| line.split_once(" : ")?.0.trim().split_once('-'))
        .any(|(start, end)| {
            let number = |text| u64::from_str_radix(text, 16);
            matches!((number(start), number(end)), (Ok(start), Ok(end)) if (start..=end).contains(&address))
        })
}
