// SPDX-License-Identifier: MIT

//! What can be seen from outside of what a client has: for calls that must change nothing.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::function::Function;
use crate::suite::{patience, pause};

/// A moment's sight of the device and of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Bytes in use in each memory region.
    pub used: Vec<u64>,
    /// The client's, as its fdinfo shows it.
    pub memory: Vec<(String, String)>,
    /// All address spaces of the device, as debugfs tells of them.
    pub vms: String,
    /// All contexts of the device with their status.
    pub contexts: String,
}

impl Witness {
    /// Takes the sight: of what there is, not of work that was done.
    #[track_caller]
    pub fn of(client: &Client) -> Self {
        let fdinfo = client.fdinfo();
        let memory = fdinfo
            .keys()
            .filter(|key| {
                ["-total-", "-shared-", "-resident-"]
                    .iter()
                    .any(|part| key.contains(part))
            })
            .map(|key| {
                let value = fdinfo.get(key).unwrap_or_default();
                (key.to_owned(), value.to_owned())
            })
            .collect();
        let (vms, contexts) = objects();
        // Not what they have done: that is work, and happens by itself.
        let contexts = contexts
            .lines()
            .map(|line| line.split(" ended ").next().unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        Self {
            used: client.regions().iter().map(|region| region.used).collect(),
            memory,
            vms,
            contexts,
        }
    }

    /// Looks until the same is seen for a while: work of clients that are gone may go on.
    #[track_caller]
    pub fn settled(client: &Client) -> Self {
        let end = Instant::now() + Duration::from_secs(20) * patience();
        let a_while = (Duration::from_millis(300) * patience()).max(Duration::from_secs(1));
        let mut seen = (Self::of(client), Instant::now());
        while seen.1.elapsed() < a_while && Instant::now() < end {
            pause();
            let now = Self::of(client);
            if now != seen.0 {
                seen = (now, Instant::now());
            }
        }
        seen.0
    }

    /// What of the client and the device is not as it was, after a while in which what is given
    /// back late may be given back.
    pub fn changes(&self, client: &Client) -> Option<String> {
        let end = Instant::now() + Duration::from_secs(20) * patience();
        loop {
            let now = Self::of(client);
            if now == *self {
                return None;
            }
            if Instant::now() > end {
                return Some(format!("was {self:?}, is {now:?}"));
            }
            pause();
        }
    }

    /// Asserts that nothing changed.
    #[track_caller]
    pub fn expect_unchanged(&self, client: &Client) {
        if let Some(changes) = self.changes(client) {
            panic!("{changes}");
        }
    }
}

/// The device's address spaces and contexts in debugfs.
#[track_caller]
pub fn objects() -> (String, String) {
    let function = Function::first();
    let read = |file: &str| {
        function
            .debugfs(file)
            .unwrap_or_else(|error| panic!("debugfs {file}: {error}"))
    };
    (read("vms"), read("contexts"))
}

/// How many submissions are held.
///
/// # Panics
///
/// If the kernel does not tell.
#[track_caller]
#[must_use]
pub fn held() -> u32 {
    let contexts = Function::first().debugfs("contexts").expect("debugfs");
    let of = |line: &str| line.split_once(" held ")?.1.trim().parse::<u32>().ok();
    let lines = contexts.lines().filter(|line| line.starts_with("context "));
    let held: Option<Vec<_>> = lines.map(of).collect();
    held.unwrap_or_else(|| panic!("{contexts}")).iter().sum()
}

/// Bytes of the device's memory regions that are in use, as debugfs tells of them.
#[track_caller]
fn used() -> Vec<u64> {
    let text = Function::first().debugfs("regions").expect("debugfs");
    text.lines()
        .filter(|line| line.contains(": size "))
        .filter_map(|line| line.split_once(" used ")?.1.parse().ok())
        .collect()
}

/// Waits until earlier clients' objects are gone: they are given back after their file is closed,
/// and what is moving when it has moved; and until what they had in VRAM is cleared.
#[track_caller]
pub fn quiet() {
    let end = Instant::now() + Duration::from_secs(20) * patience();
    loop {
        let (vms, contexts) = objects();
        let used = used();
        assert_eq!(used.len(), 3, "regions");
        let is_empty = vms.is_empty() && contexts.is_empty();
        if is_empty && used.iter().all(|bytes| *bytes == 0) && !Function::first().clean().1 {
            return;
        }
        let left = format!("{vms}{contexts}, bytes {used:?}");
        assert!(Instant::now() < end, "left by others: {left}");
        pause();
    }
}

/// Asserts that no packet has entered a hardware queue without its context allocations, and that
/// none of these was taken from an engine that could save to it (row 2.08).
#[track_caller]
pub fn expect_areas() {
    let [without] = Function::first().counters(["driver_context_not_resident"]);
    assert_eq!(without, 0, "driver_context_not_resident");
}

/// Bytes of shared memory that the machine has in use, at about this moment.
///
/// # Panics
///
/// If the kernel does not tell.
pub fn shmem() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = info.lines().find(|line| line.starts_with("Shmem:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: u64 = number.and_then(|n| n.parse().ok()).expect("Shmem");
    kib << 10
}
