// SPDX-License-Identifier: MIT

//! The GPU as a PCI function, as tools see it in sysfs.

use std::fs;
use std::process::ExitCode;

use skua_selftests::function::Function;
use skua_selftests::rig::expect_working;
use skua_selftests::{suite, tests};
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

fn word(config: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(config[at..at + 4].try_into().expect("four bytes"))
}

/// Where the capability with this identifier is.
fn capability(config: &[u8], id: u8) -> Option<usize> {
    let mut at = usize::from(config[0x34]);
    // As many as there is room for: a list that is a circle ends.
    for _ in 0..48 {
        match at {
            0 => return None,
            at if config[at] == id => return Some(at),
            _ => at = usize::from(config[at + 1]),
        }
    }
    panic!("the list of capabilities has no end");
}

fn the_configuration_space_has_its_capabilities() {
    let config = config();
    let express = capability(&config, 0x10).expect("PCI Express");
    let flags = word(&config, express) >> 16;
    // Version 2; an endpoint, on the root bus one of the root complex.
    assert_eq!(flags & 0xf, 2);
    assert!(matches!(flags >> 4 & 0xf, 0x0 | 0x9), "type {flags:#x}");
    assert_ne!(
        word(&config, express + 4) & 1 << 28,
        0,
        "no function level reset"
    );
    let power = capability(&config, 0x01).expect("power management");
    // In D0, and coming back to it is a reset.
    assert_eq!(word(&config, power + 4) & 0xb, 0);
    let msix = capability(&config, 0x11).expect("MSI-X");
    // One vector for each of the three engines and one for faults, enabled by the driver.
    assert_eq!(word(&config, msix) >> 16 & 0x7ff, 3);
    assert_ne!(word(&config, msix) & 1 << 31, 0, "MSI-X is not enabled");
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
