// SPDX-License-Identifier: MIT

//! What `/proc/PID/fdinfo` tells of a client: `Documentation/gpu/drm-usage-stats.rst`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

/// The `drm-*` keys of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fdinfo {
    /// Values as they stand there, with their units.
    keys: BTreeMap<String, String>,
}

impl Fdinfo {
    /// Those of a file of this process.
    ///
    /// # Panics
    ///
    /// If they cannot be read.
    #[track_caller]
    pub fn of(file: impl AsFd) -> Self {
        let path = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
        Self::parse(&std::fs::read_to_string(path).expect("fdinfo"))
    }

    fn parse(text: &str) -> Self {
        Self {
            keys: text
                .lines()
                .filter_map(|line| line.split_once(':'))
                .filter(|(key, _)| key.starts_with("drm-"))
                .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
                .collect(),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.keys.get(key).map(String::as_str)
    }

    /// In alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// A number of bytes: plain, in KiB or in MiB.
    pub fn bytes(&self, key: &str) -> Option<u64> {
        let mut words = self.get(key)?.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        let unit = match words.next() {
            None => 1,
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some(_) => return None,
        };
        number.checked_mul(unit)
    }

    /// A time in nanoseconds.
    pub fn nanoseconds(&self, key: &str) -> Option<u64> {
        self.get(key)?.strip_suffix(" ns")?.parse().ok()
    }

    /// A number without a unit; `None` also if it has one.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        let info = Fdinfo::parse(
            "pos:\t0\ndrm-driver:\tskua\ndrm-total-vram:\t64 MiB\ndrm-total-system:\t12 KiB\n\
             drm-resident-system:\t0\ndrm-engine-copy:\t1234 ns\ndrm-client-id:\t7\n",
        );
        assert_eq!(info.get("drm-driver"), Some("skua"));
        assert_eq!(info.get("pos"), None);
        assert_eq!(info.bytes("drm-total-vram"), Some(64 << 20));
        assert_eq!(info.bytes("drm-total-system"), Some(12 << 10));
        assert_eq!(info.bytes("drm-resident-system"), Some(0));
        assert_eq!(info.bytes("drm-engine-copy"), None);
        assert_eq!(info.nanoseconds("drm-engine-copy"), Some(1234));
        assert_eq!(info.number("drm-client-id"), Some(7));
    }
}
