// SPDX-License-Identifier: MIT

//! Sleep of the whole guest, for programs whose guest is made for that (`"sleeps"` in
//! `guests.json`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use skua_guest::host::request;

/// How far the machine goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Its devices lose their power, and it stays awake: userspace is frozen, devices are
    /// suspended, and what can be in D3hot is put there (`pm_test` of the kernel, level
    /// `platform`).
    Devices,
    /// All of it does but the memory (S3 of ACPI): its host wakes it, by way of its firmware, and
    /// resets every device.
    Machine,
}

/// Where QEMU's q35 has its bridge to ISA.
const BRIDGE: &str = "/sys/bus/pci/devices/0000:00:1f.0/config";

/// What the bridge is told of the ports of ACPI's power management: where they are, and that they
/// are there.
const PORTS: u64 = 0x40;

impl Sleep {
    /// Sends the machine to sleep, and has it woken.
    ///
    /// # Errors
    ///
    /// What the kernel says if it does not sleep; `EBUSY` if a device stays awake.
    ///
    /// # Panics
    ///
    /// If this kernel, or this machine, cannot sleep.
    #[track_caller]
    pub fn fall(self) -> io::Result<()> {
        match self {
            Self::Devices => {
                fs::write("/sys/power/pm_test", "platform").expect("pm_test");
                fs::write("/sys/power/state", "freeze")
            }
            Self::Machine => fall_deep(),
        }
    }
}

#[track_caller]
fn fall_deep() -> io::Result<()> {
    let woken = || {
        request("wake")
            .expect("wake")
            .parse::<u32>()
            .expect("a count")
    };
    let bridge = File::options().read(true).write(true).open(BRIDGE);
    let bridge = bridge.expect("the bridge");
    let mut ports = [0; 8];
    bridge.read_exact_at(&mut ports, PORTS).expect("its ports");
    let before = woken();
    fs::write("/sys/power/state", "mem")?;
    // SeaBIOS forgets to, and without them the machine neither sleeps again nor can be turned off.
    bridge.write_all_at(&ports, PORTS).expect("its ports");
    assert_eq!(woken(), before + 1, "it was not asleep");
    Ok(())
}
