// SPDX-License-Identifier: MIT

//! The PCI function: what sysfs and debugfs know of the GPU.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use skua_spec::pci::{DEVICE, VENDOR};

use crate::mapping::Mapping;
use crate::suite::eventually;

/// Where PCI functions are.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Where the driver is.
const DRIVER: &str = "/sys/bus/pci/drivers/skua";

/// A Skua GPU as a PCI function, with or without a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address: domain, bus, device and function.
    pub address: String,
}

impl Function {
    /// All of them, in the order of their addresses.
    pub fn all() -> Vec<Self> {
        let is = |dir: &Path, file: &str, id: u16| {
            fs::read_to_string(dir.join(file)).is_ok_and(|text| text.trim() == format!("{id:#06x}"))
        };
        let mut all: Vec<Self> = fs::read_dir(DEVICES)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                is(&entry.path(), "vendor", VENDOR) && is(&entry.path(), "device", DEVICE)
            })
            .map(|entry| Self {
                address: entry.file_name().to_string_lossy().into_owned(),
            })
            .collect();
        all.sort_by(|a, b| a.address.cmp(&b.address));
        all
    }

    /// The one with the lowest address; there must be one. It is looked for once: it comes back to
    /// its address, and most of what tests ask begins with it.
    ///
    /// # Panics
    ///
    /// If there is none: a machine without a GPU proves nothing.
    pub fn first() -> Self {
        static FIRST: LazyLock<Function> = LazyLock::new(|| {
            let first = Function::all().into_iter().next();
            first.expect("this machine has no Skua GPU")
        });
        FIRST.clone()
    }

    /// Directory of the function in sysfs, bound or not.
    pub fn sysfs(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.address)
    }

    /// Its render node, if a driver has made one.
    pub fn node(&self) -> Option<PathBuf> {
        self.node_of("renderD")
    }

    /// Its primary node, on which global names of objects can be had.
    pub fn primary_node(&self) -> Option<PathBuf> {
        self.node_of("card")
    }

    fn node_of(&self, prefix: &str) -> Option<PathBuf> {
        fs::read_dir(self.sysfs().join("drm"))
            .ok()?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .find(|name| name.starts_with(prefix))
            .map(|name| Path::new("/dev/dri").join(name))
    }

    /// Opens the render node, which may take a moment to appear after a bind.
    ///
    /// # Errors
    ///
    /// If it does not appear, or cannot be opened.
    pub fn open(&self) -> io::Result<File> {
        let end = Instant::now() + Duration::from_secs(5 * u64::from(crate::suite::patience()));
        loop {
            let result = match self.node() {
                Some(node) => OpenOptions::new().read(true).write(true).open(node),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < end => {
                    crate::suite::pause();
                }
                result => return result,
            }
        }
    }

    /// Whether the driver is bound.
    pub fn is_bound(&self) -> bool {
        fs::read_link(self.sysfs().join("driver"))
            .is_ok_and(|path| path.file_name() == Path::new(DRIVER).file_name())
    }

    /// Whether it may access memory by itself, as its command register says.
    ///
    /// # Panics
    ///
    /// If there is no such register.
    pub fn is_bus_master(&self) -> bool {
        let config = fs::read(self.sysfs().join("config")).expect("config space");
        config[4] & 1 << 2 != 0
    }

    /// Binds the driver.
    ///
    /// # Errors
    ///
    /// What sysfs says.
    pub fn bind(&self) -> io::Result<()> {
        fs::write(Path::new(DRIVER).join("bind"), &self.address)
    }

    /// Takes the driver off.
    ///
    /// # Errors
    ///
    /// What sysfs says.
    pub fn unbind(&self) -> io::Result<()> {
        fs::write(Path::new(DRIVER).join("unbind"), &self.address)
    }

    /// The bytes of a BAR.
    pub fn bar_size(&self, bar: u32) -> u64 {
        self.bar(bar).map_or(0, |(start, end)| end - start + 1)
    }

    /// The first and the last bus address of a BAR.
    pub fn bar(&self, bar: u32) -> Option<(u64, u64)> {
        let text = fs::read_to_string(self.sysfs().join("resource")).ok()?;
        let line = text.lines().nth(usize::try_from(bar).ok()?)?;
        let mut numbers = line
            .split_whitespace()
            .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        match (numbers.next(), numbers.next()) {
            (Some(Ok(start)), Some(Ok(end))) if end > start => Some((start, end)),
            _ => None,
        }
    }

    /// All of a BAR is write-combined, for whoever maps it.
    ///
    /// # Panics
    ///
    /// If it is not, or this kernel does not tell.
    #[track_caller]
    pub fn expect_write_combined(&self, bar: u32) {
        self.expect_type(bar, "write-combining");
    }

    /// The same, cached.
    ///
    /// # Panics
    ///
    /// Likewise.
    #[track_caller]
    pub fn expect_write_back(&self, bar: u32) {
        self.expect_type(bar, "write-back");
    }

    #[track_caller]
    fn expect_type(&self, bar: u32, name: &str) {
        let (start, end) = self.bar(bar).expect("a BAR");
        let list = fs::read_to_string("/sys/kernel/debug/x86/pat_memtype_list").expect("PAT");
        let entry = format!("[mem {start:#018x}-{:#018x}] {name}", end + 1);
        assert!(list.contains(&entry), "BAR{bar}: no {entry} in {list}");
    }

    /// The whole of a BAR, as sysfs shows it: without the driver.
    ///
    /// # Panics
    ///
    /// If it cannot be mapped.
    pub fn map_bar(&self, bar: u32) -> Mapping {
        let path = self.sysfs().join(format!("resource{bar}"));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let size = usize::try_from(self.bar_size(bar)).expect("a size");
        Mapping::new(file, 0, size).expect("mmap of a BAR")
    }

    /// A file of its directory in debugfs.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn debugfs(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.debugfs_path().join(file))
    }

    /// Counters of driver and device, by their names in debugfs.
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    #[track_caller]
    pub fn counters<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        let text = self.debugfs("counters").expect("debugfs");
        names.map(|name| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
                .unwrap_or_else(|| panic!("there is no counter {name}: {text}"))
        })
    }

    /// Whether memory is kept because the device may still reach it, as while it is being reset,
    /// and how many objects wait to be freed. The driver alone is asked, not a device that does not
    /// answer.
    ///
    /// # Panics
    ///
    /// If debugfs does not tell.
    #[track_caller]
    pub fn quarantine(&self) -> (bool, u64) {
        let [kept, dying, ..] = self.quarantined();
        (kept == 1, dying)
    }

    /// Bytes of buffer objects that those which wait to be freed hold, and bytes that unbound
    /// devices keep for good.
    ///
    /// # Panics
    ///
    /// If debugfs does not tell.
    #[track_caller]
    pub fn quarantined_bytes(&self) -> (u64, u64) {
        let [_, _, bytes, for_good] = self.quarantined();
        (bytes, for_good)
    }

    #[track_caller]
    fn quarantined(&self) -> [u64; 4] {
        let text = self.debugfs("quarantine").expect("debugfs");
        let numbers = text.lines();
        let numbers: Vec<u64> = numbers
            .filter_map(|line| line.split_once(": ")?.1.parse().ok())
            .collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{text}"))
    }

    /// Bytes of VRAM that are free and clean, and whether more are being cleared.
    ///
    /// # Panics
    ///
    /// If debugfs does not tell.
    #[track_caller]
    pub fn clean(&self) -> (u64, bool) {
        let text = self.debugfs("regions").expect("debugfs");
        let clean = text.lines().find_map(|l| l.strip_prefix("vram0: clean "));
        let clean = clean.unwrap_or_else(|| panic!("{text}"));
        let (bytes, more) = clean.split_once(", being cleared").unwrap_or((clean, "no"));
        (bytes.parse().expect("a number"), more.is_empty())
    }

    /// Waits until driver and device have nothing to do any more: what earlier clients had and
    /// what is new is cleared in the background, and its interrupts come later still.
    ///
    /// # Panics
    ///
    /// If they do not come to rest.
    #[track_caller]
    pub fn at_rest(&self) {
        let seen = || {
            self.counters([
                "driver_register_reads",
                "driver_register_writes",
                "driver_interrupts",
            ])
        };
        let rest = eventually(|| {
            let [reads, writes, interrupts] = seen();
            std::thread::sleep(Duration::from_millis(100));
            // Asking for the counters writes one register.
            (seen() == [reads, writes + 1, interrupts] && !self.clean().1).then_some(())
        });
        rest.unwrap_or_else(|| panic!("no rest: {:?}", seen()));
    }

    /// Directory of the function's device in debugfs.
    pub fn debugfs_path(&self) -> PathBuf {
        Path::new("/sys/kernel/debug/dri").join(&self.address)
    }
}

/// A GPU without its driver, for a moment: bound again at the end, also that of a failed
/// test.
#[derive(Debug)]
pub struct Unbound(Function);

impl Unbound {
    /// Takes the driver off the first one.
    ///
    /// # Panics
    ///
    /// If it cannot be taken off.
    #[track_caller]
    pub fn first() -> Self {
        Self::of(Function::first())
    }

    /// Takes the driver off.
    ///
    /// # Panics
    ///
    /// If it cannot be taken off.
    #[track_caller]
    pub fn of(function: Function) -> Self {
        function.unbind().expect("unbind");
        assert!(!function.is_bound());
        Self(function)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        if let Err(error) = self.0.bind() {
            println!("bind: {error}");
            std::process::exit(1);
        }
    }
}

/// Whether this kernel looks after DMA mappings: it complains of a driver that keeps some for good.
pub fn watches_dma_mappings() -> bool {
    let disabled = fs::read_to_string("/sys/kernel/debug/dma-api/disabled");
    disabled.is_ok_and(|is| is.trim() == "N")
}
