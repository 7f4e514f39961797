// SPDX-License-Identifier: MIT

//! The GPU as a PCI function, as tools see it in sysfs.

use std::fs;
use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::rig::expect_working;
use skua_selftests::{suite, tests};
use skua_spec::config::{CAPABILITIES, DEVICE_CAPS, EXPRESS, MSIX, POWER, POWER_CONTROL};
use skua_spec::pci::BAR_VRAM;

pub(crate) fn main() -> ExitCode {
    suite::main(tests![
        the_configuration_space_has_its_capabilities,
        its_memory_is_write_combined,
        a_function_level_reset: 60,
    ])
}

/// The bytes of sysfs/config: the first 256 at least.
fn config() -> Vec<u8> {
    fs::read(Function::first().sysfs().join("config")).expect("config")
}

/// All of VRAM that is visible: what a processor makes of a mapping of it is said once for its
/// addresses, not by who maps it.
fn its_memory_is_write_combined() {
    Function::first().expect_write_combined(BAR_VRAM);
}

fn word(config: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(config[at..at + 4].try_into().expect("four bytes")).into()
}

/// Where the capability with this identifier is, found as tools find it.
fn capability(config: &[u8], id: u8) -> Option<usize> {
    // CAST: a byte's offset, below 256.
    let first = CAPABILITIES::INFO.offset as usize;
    let mut at = CAPABILITIES::from_bits(word(config, first)).first();
    // As many as there is room for: a list that is a circle ends.
    for _ in 0..48 {
        // All begin like this one.
        let header = POWER::from_bits(word(config, at.into()));
        match at {
            0 => return None,
            at if header.id() == id => return Some(at.into()),
            _ => at = header.next(),
        }
    }
    panic!("the list of capabilities has no end");
}

fn the_configuration_space_has_its_capabilities() {
    let config = config();
    let express = capability(&config, EXPRESS::ID).expect("PCI Express");
    let header = EXPRESS::from_bits(word(&config, express));
    assert_eq!(header.version(), 2);
    // An endpoint, on the root bus one of the root complex.
    assert!(matches!(header.port(), 0x0 | 0x9), "type {header:?}");
    let caps = DEVICE_CAPS::from_bits(word(&config, express + 4));
    assert!(caps.flr(), "no function level reset");
    let power = capability(&config, POWER::ID).expect("power management");
    // In D0, and coming back to it is a reset: no bit says that it is not.
    let control = POWER_CONTROL::from_bits(word(&config, power + 4));
    assert_eq!(control, POWER_CONTROL::new());
    let msix = capability(&config, MSIX::ID).expect("MSI-X");
    // One vector for each of the three engines and one for faults, enabled by the driver.
    let msix = MSIX::from_bits(word(&config, msix));
    assert_eq!(msix.last(), 3);
    assert!(msix.enable(), "MSI-X is not enabled");
    assert_eq!(capability(&config, 0x05), None, "there is no MSI");
}

/// The kernel resets the function while no driver has it, by the means of its choice.
fn a_function_level_reset() {
    let function = Function::first();
    let methods = fs::read_to_string(function.sysfs().join("reset_method")).expect("reset_method");
    assert_eq!(methods.split_whitespace().next(), Some("flr"), "{methods}");
    function.unbind().expect("unbind");
    fs::write(function.sysfs().join("reset"), "1").expect("reset");
    function.bind().expect("bind");
    expect_working();
}
