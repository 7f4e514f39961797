// SPDX-License-Identifier: MIT

//! Adapters: the GPUs of the machine, and this process on one of them.
//!
//! An open [`Adapter`] is what WDDM has as the pair of process and adapter: one open render node,
//! one space of GPU addresses, shared by all devices that are made on it; each of them maps there
//! by itself. A process that opens it twice ([`AdapterInfo::open`]) has two spaces, which may give
//! out the same address, and each opening has limits and a priority class of its own;
//! [`crate::Process`] opens it once. It is cheap to clone, and is closed when the last clone and
//! the last object made on it are gone.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use libskua::{ClientDevice, Deadline, EngineKind, Errno, RegionInfo, Residency};
use skua_policy::interval_map::Span;

use crate::{
    address_space::AddressSpace,
    lock,
    page_tables::PageTables,
    scheduler::Scheduler,
    segment_set::SegmentSet,
    status::{Result, Status},
};

/// Locally unique identifier of an adapter (LUID).
///
/// Made of the PCI address, so it stays the same as long as the GPU stays in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Luid {
    /// Bus, device and function, as in a PCI address.
    pub low: u32,
    /// The PCI domain, plus 1.
    pub high: i32,
}

impl Luid {
    /// The LUID of `dddd:bb:ss.f`.
    fn of_bus_id(bus_id: &str) -> Option<Self> {
        let (domain, rest) = bus_id.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        Some(Self {
            low: (hex(bus)? << 8) | (hex(slot)? << 3) | hex(function)?,
            // Never 0 as a whole, which is no adapter.
            high: i32::try_from(hex(domain)?.checked_add(1)?).ok()?,
        })
    }
}

/// How important the work of an adapter's opening is (`D3DKMT_SCHEDULINGPRIORITYCLASS`): its
/// contexts' priorities count as more, or less, but never as more than 7 or less than -7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PriorityClass {
    /// Its contexts stand at priority -7, whatever their own is.
    Idle = 0,
    /// Its contexts count as of a priority that is 3 less than their own.
    BelowNormal = 1,
    /// Its contexts count as what they are; so it is at first.
    #[default]
    Normal = 2,
    /// Its contexts count as of a priority that is 3 more than their own.
    AboveNormal = 3,
    /// Its contexts count as of a priority that is 6 more than their own.
    High = 4,
    /// Its contexts stand at priority 7, whatever their own is.
    Realtime = 5,
}

/// An adapter that was found, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// The same as long as the GPU stays in its slot.
    pub luid: Luid,
    /// Its address on the bus, like `0000:00:03.0`.
    pub bus_id: String,
    /// The render node that [`AdapterInfo::open`] opens.
    pub path: PathBuf,
}

impl AdapterInfo {
    /// Opens it (`D3DKMTOpenAdapterFromLuid`).
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_INVALID if it is gone; ACCESS_DENIED; NO_MEMORY.
    pub fn open(&self) -> Result<Adapter> {
        let device = libskua::Device::open(&self.path)?;
        Ok(Adapter(Arc::new(Inner {
            info: self.clone(),
            space: Mutex::new(AddressSpace::new(device.info())),
            devices: Mutex::default(),
            reader: Mutex::default(),
            device,
        })))
    }
}

/// How finely work can be preempted (`D3DKMDT_PREEMPTION_CAPS`), of all nodes that can run it the
/// least: 0 not at all, 100 behind a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionCaps {
    /// `D3DKMDT_GRAPHICS_PREEMPTION_GRANULARITY`: 200 behind a primitive, 300 a triangle, 400 a
    /// pixel, 500 an instruction.
    pub graphics: u32,
    /// `D3DKMDT_COMPUTE_PREEMPTION_GRANULARITY`: 200 behind a dispatch, 300 a thread group, 400 a
    /// thread, 500 an instruction.
    pub compute: u32,
}

/// An open adapter: what is made on it shares one space of GPU addresses.
#[derive(Clone, Debug)]
pub struct Adapter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Queried once, when it was opened.
    info: AdapterInfo,
    /// The render node that the adapter was opened by.
    device: libskua::Device,
    /// The GPU addresses that this library has given out.
    space: Mutex<AddressSpace>,
    /// Those that are not dropped. A scheduler that is dropped gives addresses back.
    devices: Mutex<Vec<(Weak<PageTables>, Weak<Scheduler>)>>,
    /// Locked by who reads events.
    reader: Mutex<()>,
}

impl Adapter {
    /// Finds the adapters (`D3DKMTEnumAdapters2`), in the order of their nodes' names.
    ///
    /// # Errors
    ///
    /// Those of reading sysfs.
    pub fn enumerate() -> Result<Vec<AdapterInfo>> {
        Ok(libskua::Device::enumerate()?
            .into_iter()
            .filter_map(|node| {
                Some(AdapterInfo {
                    luid: Luid::of_bus_id(&node.bus_id)?,
                    bus_id: node.bus_id,
                    path: node.path,
                })
            })
            .collect())
    }

    /// Opens the adapter whose node has the first name.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_INVALID if there is none; as [`AdapterInfo::open`].
    pub fn open_first() -> Result<Self> {
        Self::enumerate()?
            .first()
            .ok_or(Status::OBJECT_NAME_INVALID)?
            .open()
    }

    /// What enumeration said of the adapter before it was opened.
    pub fn info(&self) -> &AdapterInfo {
        &self.0.info
    }

    /// The memory segments, as full as they are now.
    ///
    /// # Errors
    ///
    /// DEVICE_REMOVED.
    pub fn segments(&self) -> Result<Vec<RegionInfo>> {
        Ok(self.0.device.regions()?)
    }

    /// The nodes: which kind of engine each is, by its ordinal.
    pub fn nodes(&self) -> Vec<EngineKind> {
        self.0.device.engines().iter().map(|e| e.kind).collect()
    }

    /// The ordinal of the first node of a kind.
    pub fn node(&self, kind: EngineKind) -> Option<u32> {
        self.nodes()
            .iter()
            .position(|node| *node == kind)
            .and_then(|ordinal| u32::try_from(ordinal).ok())
    }

    /// How finely its work can be preempted (`D3DKMTQueryAdapterInfo(KMTQAITYPE_WDDM_1_2_CAPS)`).
    pub fn preemption_caps(&self) -> PreemptionCaps {
        let info = self.0.device.info();
        PreemptionCaps {
            graphics: info.graphics_preemption,
            compute: info.compute_preemption,
        }
    }

    /// Says how important the work of all contexts of this opening is
    /// (`D3DKMTSetProcessSchedulingPriorityClass`): of those that there are, and of new ones. Their
    /// own priorities ([`crate::Context::set_scheduling_priority`]) stay what they are, and so does
    /// the class of the process' other openings.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED above [`PriorityClass::Normal`] without `CAP_SYS_NICE`; DEVICE_REMOVED.
    pub fn set_process_scheduling_priority_class(&self, class: PriorityClass) -> Result<()> {
        // CAST: the numbers are the kernel's.
        Ok(self.0.device.set_priority_class(class as u32)?)
    }

    /// The set of video memory's segments, for [`crate::AllocationDesc`].
    pub fn vram(&self) -> SegmentSet {
        SegmentSet::of(self.0.device.vram())
    }

    /// The set of aperture segments, for [`crate::AllocationDesc`].
    pub fn aperture(&self) -> SegmentSet {
        SegmentSet::of(self.0.device.aperture())
    }

    /// The set of system memory's segments, for [`crate::AllocationDesc`].
    pub fn system(&self) -> SegmentSet {
        SegmentSet::of(self.0.device.system())
    }

    /// The libskua device below, for what has no name in WDDM.
    pub fn libskua(&self) -> &libskua::Device {
        &self.0.device
    }

    /// Whether this process got the adapter from its parent by fork(), with all that was made on
    /// it: it is the parent's to destroy.
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.device.is_inherited()
    }

    /// Whether more can be made on it: it is this process', and the GPU is not gone.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_inherited() && self.segments().err() != Some(Status::DEVICE_REMOVED)
    }

    /// Has events and changes of addresses reach a device.
    pub(crate) fn register(&self, device: &Arc<Scheduler>) {
        let mut devices = lock(&self.0.devices);
        devices.retain(|(tables, _)| tables.strong_count() > 0);
        devices.push((Arc::downgrade(device.tables()), Arc::downgrade(device)));
    }

    /// The page tables of all devices.
    fn page_tables(&self) -> Vec<Arc<PageTables>> {
        let devices = lock(&self.0.devices);
        devices.iter().filter_map(|(t, _)| t.upgrade()).collect()
    }

    /// Passes on what the kernel has to say to devices; called with no lock held.
    pub(crate) fn read_events(&self) {
        let _reader = lock(&self.0.reader);
        while let Ok(Some(trim)) = self.0.device.next_trim(Deadline::NOW) {
            let devices: Vec<_> = {
                let devices = lock(&self.0.devices);
                devices.iter().filter_map(|(_, s)| s.upgrade()).collect()
            };
            for device in devices {
                if device.tables().kernel().handle() == trim.device {
                    device.trims.tell();
                }
            }
        }
    }

    /// What this opening uses of a segment group, and may use (`D3DKMTQueryVideoMemoryInfo`).
    ///
    /// The budget of video memory is what is resident for all devices of this opening together, and
    /// what that device may have more that may have most; with no device, what one would have.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if there is no device, and can be none more to ask; NO_MEMORY;
    /// DEVICE_REMOVED.
    pub fn query_video_memory_info(&self, group: MemorySegmentGroup) -> Result<VideoMemoryInfo> {
        let devices = self.page_tables();
        let states = devices.iter().map(|tables| tables.kernel().state());
        let mut states = states.collect::<libskua::Result<Vec<_>>>()?;
        if states.is_empty() {
            let device = ClientDevice::create(&self.0.device, Residency::Explicit);
            states.push(device.map_err(crowded)?.state()?);
        }
        let (budget, current_usage) = match group {
            MemorySegmentGroup::Local => {
                let budgets = states.iter().map(|state| (state.budget, state.resident));
                budget_of(budgets)
            }
            // All say the same, but for the time.
            MemorySegmentGroup::NonLocal => states
                .last()
                .map_or((0, 0), |state| (state.system_limit, state.system_used)),
        };
        Ok(VideoMemoryInfo {
            budget,
            current_usage,
            current_reservation: 0,
            available_for_reservation: 0,
        })
    }

    /// Who has which addresses, without what is not used any more; locked over binds of clients'
    /// ranges, so that they come in order.
    pub(crate) fn space(&self) -> MutexGuard<'_, AddressSpace> {
        self.page_tables().iter().for_each(|tables| tables.sweep());
        let mut space = lock(&self.0.space);
        space.sweep(|span| self.unmap(span).is_ok());
        space
    }

    /// Gives back the addresses of memory that is destroyed, with the ranges that clients got for
    /// it.
    pub(crate) fn give_all_back(&self, va: u64, size: u64) {
        let mut space = lock(&self.0.space);
        for span in space.owned(va) {
            // Something else may be mapped there by now. Without memory for it the range stays
            // taken.
            if self.unmap(span).is_ok() {
                space.free(span);
            }
        }
        space.give_back(va, size);
    }

    /// Unmaps a range of a client's for all devices, or for some if it fails; called with the space
    /// locked.
    pub(crate) fn unmap(&self, span: Span) -> Result<()> {
        let devices = self.page_tables();
        devices.iter().try_for_each(|tables| tables.unmap(span))
    }
}

/// The budget and the use of devices together, of those of each.
fn budget_of(devices: impl Iterator<Item = (u64, u64)> + Clone) -> (u64, u64) {
    let used: u64 = devices.clone().map(|(_, used)| used).sum();
    let rests = devices.map(|(budget, used)| i128::from(budget) - i128::from(used));
    let budget = i128::from(used) + rests.max().unwrap_or(0);
    (u64::try_from(budget.max(0)).unwrap_or(u64::MAX), used)
}

/// What memory is asked for (`D3DKMT_MEMORY_SEGMENT_GROUP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySegmentGroup {
    /// The GPU's own memory.
    Local,
    /// System memory.
    NonLocal,
}

/// What a process may use of a segment group, and does (`D3DKMT_QUERYVIDEOMEMORYINFO`), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoMemoryInfo {
    /// What it should not exceed: beyond that its work waits for others' in turn, or, in system
    /// memory, it gets nothing more.
    pub budget: u64,
    /// What it has: of video memory, what is resident and may not be in system memory.
    pub current_usage: u64,
    /// 0: nothing can be reserved.
    pub current_reservation: u64,
    /// 0: nothing can be reserved.
    pub available_for_reservation: u64,
}

impl PartialEq for Adapter {
    /// Whether they are the same opening of an adapter.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Of a call that takes no video memory ENOSPC says, as EMFILE, ENFILE and EOVERFLOW do, that there
/// are too many of something.
pub(crate) fn crowded(error: libskua::Error) -> Status {
    match error.errno() {
        Some(Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::OVERFLOW) => {
            Status::INSUFFICIENT_RESOURCES
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_several_devices_is_what_one_may_have_more() {
        let of = |devices: &[(u64, u64)]| budget_of(devices.iter().copied());
        assert_eq!(of(&[(16, 3)]), (16, 3));
        assert_eq!(of(&[(8, 12)]), (8, 12));
        // Of 16, another process has none.
        assert_eq!(of(&[(12, 3), (13, 4)]), (16, 7));
        assert_eq!(of(&[(8, 12), (8, 7)]), (20, 19));
        assert_eq!(of(&[(0, 5)]), (0, 5));
    }

    #[test]
    fn too_many_is_no_lack_of_memory() {
        for (errno, status) in [
            (Errno::NOSPC, Status::INSUFFICIENT_RESOURCES),
            (Errno::MFILE, Status::INSUFFICIENT_RESOURCES),
            (Errno::NFILE, Status::INSUFFICIENT_RESOURCES),
            (Errno::OVERFLOW, Status::INSUFFICIENT_RESOURCES),
            (Errno::NOMEM, Status::NO_MEMORY),
            (Errno::NODEV, Status::DEVICE_REMOVED),
        ] {
            let name = "SKUA_DEVICE_CREATE";
            let refused = libskua::Error::Ioctl { name, errno };
            assert_eq!(crowded(refused), status, "{errno}");
        }
        let refused = libskua::Error::OverBudget { bytes: 1 };
        assert_eq!(crowded(refused), Status::NO_MEMORY);
    }

    #[test]
    fn luids_name_pci_addresses() {
        let luid = |text| Luid::of_bus_id(text);
        assert_eq!(luid("0000:00:03.0"), Some(Luid { low: 0x18, high: 1 }));
        assert_eq!(
            luid("0001:ff:1f.7"),
            Some(Luid {
                low: 0xffff,
                high: 2
            })
        );
        assert_ne!(luid("0000:00:03.0"), luid("0000:00:03.1"));
        for bad in ["", "00:03.0", "0000:00:03", "x:y:z.w", "ffffffff:00:00.0"] {
            assert_eq!(luid(bad), None, "{bad}");
        }
    }
}
