// SPDX-License-Identifier: MIT

//! What device, driver and kernel have counted.
//!
//! | from | names |
//! |---|---|
//! | the device, through debugfs (manual section 3) | `doorbell`, `engine_interrupt`, … |
//! | the driver, through debugfs | `driver_interrupts`, … |
//! | `/proc/interrupts`: interrupts that the CPUs took for the driver | `cpu_interrupts` |
//!
//! Reading debugfs has the driver write a register, for the device to copy its counters out:
//! [`Source::cost`] is that, to be taken off.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

/// Where a device's counters are.
#[derive(Clone, Debug)]
pub struct Source {
    /// The device's directory.
    debugfs: PathBuf,
}

/// Counters at one moment, or their growth, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

/// Interrupts that the CPUs took.
pub const CPU_INTERRUPTS: &str = "cpu_interrupts";

impl Source {
    /// Of the device with this name on its bus.
    pub fn new(bus_id: &str) -> Self {
        Self {
            debugfs: Path::new("/sys/kernel/debug/dri").join(bus_id),
        }
    }

    /// What a file of the device says; reading some has it do something.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn file(&self, name: &str) -> Result<String> {
        let path = self.debugfs.join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Waits until nothing that was freed is being cleared in the background.
    ///
    /// # Errors
    ///
    /// If that cannot be read.
    pub fn rest(&self) -> Result<()> {
        while self.file("regions")?.contains(", being cleared") {
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ticks that all engines together have worked.
    ///
    /// # Errors
    ///
    /// If that cannot be read.
    pub fn ticks(&self) -> Result<u64> {
        self.ticks_of("")
    }

    /// Ticks that the engines of this kind have worked; of one at work they are some 10,000 late.
    ///
    /// # Errors
    ///
    /// As [`Self::ticks`].
    pub fn ticks_of(&self, kind: &str) -> Result<u64> {
        let ticks = |line: &str| line.rsplit_once(" ticks ")?.1.trim().parse::<u64>().ok();
        let rings = self.file("rings")?;
        let lines = rings.lines().filter(|line| line.starts_with("engine "));
        let lines = lines.filter(|line| line.contains(&format!("({kind}")));
        let all: Option<Vec<u64>> = lines.map(ticks).collect();
        let all = all.filter(|all| !all.is_empty()).context("no ticks")?;
        Ok(all.iter().sum())
    }

    /// As they are now; see [`Self::cost`].
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn read(&self) -> Result<Counters> {
        let text = self.file("counters")?;
        let mut counters: BTreeMap<_, _> = parse(&text).collect();
        let text = fs::read_to_string("/proc/interrupts").context("/proc/interrupts")?;
        counters.insert(CPU_INTERRUPTS.to_owned(), interrupts(&text, "skua"));
        Ok(Counters(counters))
    }

    /// What reading them adds to them.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn cost(&self) -> Result<Counters> {
        let first = self.read()?;
        Ok(self.read()?.since(&first))
    }
}

impl Counters {
    /// By how much they have grown since `earlier`; those that were not there then are left out.
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = |(name, now): (&String, &u64)| {
            let before = earlier.0.get(name)?;
            Some((name.clone(), now.wrapping_sub(*before)))
        };
        Self(self.0.iter().filter_map(grown).collect())
    }

    /// By the name of the line in debugfs, or [`CPU_INTERRUPTS`].
    ///
    /// # Errors
    ///
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> Result<u64> {
        let value = self.0.get(name).copied();
        value.with_context(|| format!("there is no counter {name}"))
    }
}

/// Lines of `name: number`; all others are left out.
fn parse(text: &str) -> impl Iterator<Item = (String, u64)> + '_ {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    })
}

/// The sum over all CPUs of the interrupts whose action has `name` in its name.
fn interrupts(text: &str, name: &str) -> u64 {
    text.lines()
        .filter(|line| line.contains(name))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(_, rest)| {
            rest.split_whitespace()
                .map_while(|word| word.parse::<u64>().ok())
        })
        .fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_by_name() {
        let read = |text: &str| Counters(parse(text).collect());
        let before = read("driver_binds: 3\ndoorbell: 7\nnonsense\n");
        let after = read("driver_binds: 3\ndoorbell: 12\npacket: 9\n");
        let grown = after.since(&before);
        assert_eq!(grown.get("doorbell").ok(), Some(5));
        assert_eq!(grown.get("driver_binds").ok(), Some(0));
        assert!(grown.get("packet").is_err());
    }

    #[test]
    fn interrupts_are_summed_over_cpus_and_vectors() {
        let text = "            CPU0       CPU1\n  \
             24:          5         10  PCI-MSIX-0000:00:03.0    0-edge      skua\n  \
             25:          0          2  PCI-MSIX-0000:00:03.0    1-edge      skua\n  \
             26:         70          0  PCI-MSIX-0000:00:04.0    1-edge      virtio1\n\
             NMI:          1          1   Non-maskable interrupts\n";
        assert_eq!(interrupts(text, "skua"), 17);
    }
}
