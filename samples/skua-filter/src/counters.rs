// SPDX-License-Identifier: MIT

//! What device and driver counted while a filter ran.
//!
//! Engine time is in the client's own fdinfo, which everyone may read. The other counters are in
//! debugfs, for those who may read it; they are the whole device's, so other clients' work is in
//! them as well.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use wddm::libskua::Device;

/// Counters at one moment, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads what can be read now. `bus_id` is the device's name on its bus.
    ///
    /// Names are those of fdinfo (`drm-cycles-…`: engine time of this client in ticks) and of the
    /// debugfs file `counters`.
    pub fn read(device: &Device, bus_id: &str) -> Self {
        let mut counters = BTreeMap::new();
        let fdinfo = format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd());
        let debugfs = Path::new("/sys/kernel/debug/dri")
            .join(bus_id)
            .join("counters");
        for path in [Path::new(&fdinfo), &debugfs] {
            // What cannot be read is not reported.
            if let Ok(text) = fs::read_to_string(path) {
                counters.extend(parse(&text));
            }
        }
        Self(counters)
    }

    /// By how much a counter has grown since `earlier`; `None` where it could not be read.
    pub fn since(&self, earlier: &Self, name: &str) -> Option<u64> {
        let now = self.0.get(name)?;
        Some(now.wrapping_sub(*earlier.0.get(name)?))
    }
}

/// Lines of `name: number`; all others are left out.
fn parse(text: &str) -> impl Iterator<Item = (String, u64)> + '_ {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_compared() {
        let read = |text: &str| Counters(parse(text).collect());
        let before = read("pos:\t0\nflags:\t02100002\ndrm-driver:\tskua\ndrm-cycles-copy:\t7\n");
        let after = read("drm-cycles-copy:\t12\npacket: 3\n");
        assert_eq!(after.since(&before, "drm-cycles-copy"), Some(5));
        assert_eq!(after.since(&before, "packet"), None);
        assert_eq!(before.since(&before, "drm-driver"), None);
    }
}
