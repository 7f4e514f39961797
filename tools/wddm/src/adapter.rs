// SPDX-License-Identifier: MIT

//! Adapters: the GPUs of the machine, and this process on one of them.
//!
//! An open [`Adapter`] is what WDDM has as the pair of process and adapter: one open render node,
//! one GPU address space, shared by all devices that are made on it. It is cheap to clone, and is
//! closed when the last clone and the last object made on it are gone.

use std::{
    path::PathBuf,
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Mutex, MutexGuard,
    },
};

use libskua::{Bind, EngineKind, Placements, RegionInfo, Syncobj, Vm};

use crate::{
    address_space::AddressSpace,
    lock,
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
        let vm = Vm::create(&device).map_err(crowded)?;
        Ok(Adapter(Arc::new(Inner {
            info: self.clone(),
            vm,
            space: Mutex::new(AddressSpace::new(device.info())),
            binds: Binds::default(),
            bound: Syncobj::create(&device)?,
            device,
        })))
    }
}

/// An open adapter: what is made on it shares one GPU address space.
#[derive(Clone, Debug)]
pub struct Adapter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Queried once, when it was opened.
    info: AdapterInfo,
    /// Its render node.
    device: libskua::Device,
    /// What the GPU sees of this process.
    vm: Vm,
    /// Which addresses of `vm` are free.
    space: Mutex<AddressSpace>,
    /// Which changes of `vm` were asked for.
    binds: Binds,
    /// A timeline: point *n* is signalled when the *n*-th bind is performed.
    bound: Syncobj,
}

/// The number of the last bind.
#[derive(Debug, Default)]
struct Binds {
    /// Locked over a bind, so that points come in order.
    last: Mutex<u64>,
    /// The number of the last one that all work waits for; can be asked while another is under way.
    mapped: AtomicU64,
}

impl Binds {
    /// Makes the next bind; tells its number. Work that is submitted later waits for it if it is the
    /// library's `own`, and otherwise if the client says so.
    fn next(&self, own: bool, bind: impl FnOnce(u64) -> libskua::Result<()>) -> Result<u64> {
        let mut last = lock(&self.last);
        let point = *last + 1;
        bind(point)?;
        *last = point;
        if own {
            self.mapped.store(point, Ordering::Release);
        }
        Ok(point)
    }

    fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire)
    }
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

    /// As enumeration found it.
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

    /// The set of video memory's segments, for [`crate::AllocationDesc`].
    pub fn vram(&self) -> Placements {
        self.0.device.vram()
    }

    /// The set of system memory's segments, for [`crate::AllocationDesc`].
    pub fn system(&self) -> Placements {
        self.0.device.system()
    }

    /// The libskua device below, for what has no name in WDDM.
    pub fn libskua(&self) -> &libskua::Device {
        &self.0.device
    }

    pub(crate) fn vm(&self) -> &Vm {
        &self.0.vm
    }

    /// Maps in the address space, behind all binds before; it does not wait.
    pub(crate) fn bind<'a>(&'a self, operation: impl FnOnce(Bind<'a>) -> Bind<'a>) -> Result<()> {
        self.bind_for(true, operation).map(|_| ())
    }

    /// The same for a client, who says by itself what waits for it; tells its number.
    pub(crate) fn bind_for_client<'a>(
        &'a self,
        operation: impl FnOnce(Bind<'a>) -> Bind<'a>,
    ) -> Result<u64> {
        self.bind_for(false, operation)
    }

    fn bind_for<'a>(
        &'a self,
        own: bool,
        operation: impl FnOnce(Bind<'a>) -> Bind<'a>,
    ) -> Result<u64> {
        self.0.binds.next(own, |point| {
            operation(self.0.vm.bind())
                .signal(&self.0.bound, point)
                .submit()
        })
    }

    /// The timeline of binds.
    pub(crate) fn bound(&self) -> &Syncobj {
        &self.0.bound
    }

    /// The number of the last bind that all work waits for; does not wait for one under way.
    pub(crate) fn last_map(&self) -> u64 {
        self.0.binds.mapped()
    }

    /// Whether this process got the adapter from its parent by fork(), with all that was made on
    /// it: it is the parent's to destroy.
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.device.is_inherited()
    }

    /// Who has which addresses; locked over binds of clients' ranges, so that they come in order.
    pub(crate) fn space(&self) -> MutexGuard<'_, AddressSpace> {
        lock(&self.0.space)
    }

    pub(crate) fn take_addresses(&self, size: u64) -> Result<u64> {
        self.space().take(size)
    }

    pub(crate) fn give_addresses_back(&self, va: u64, size: u64) {
        self.space().give_back(va, size);
    }

    /// Gives back the addresses of memory that is destroyed, with the ranges that clients got for it.
    pub(crate) fn give_all_back(&self, va: u64, size: u64) {
        let mut space = self.space();
        for span in space.owned(va) {
            // Something else may be mapped there by now. Without memory for it the range stays
            // taken.
            let unmap = self.bind_for_client(|bind| bind.unmap(span.start, span.len()));
            if unmap.is_ok() {
                space.free(span);
            }
        }
        space.give_back(va, size);
    }
}

impl PartialEq for Adapter {
    /// Whether they are the same opening of an adapter.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// ENOSPC of what is not memory: too many objects of a kind.
pub(crate) fn crowded(error: libskua::Error) -> Status {
    match Status::from(error) {
        Status::GRAPHICS_NO_VIDEO_MEMORY => Status::INSUFFICIENT_RESOURCES,
        status => status,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_bind_under_way_keeps_nobody_from_asking_for_the_last() {
        let binds = Arc::new(Binds::default());
        let during = |expected| {
            // In a thread, which may be stuck.
            let (answer, answers) = mpsc::channel();
            let asked = binds.clone();
            std::thread::spawn(move || answer.send(asked.mapped()));
            let last = answers.recv_timeout(Duration::from_secs(60));
            assert_eq!(last, Ok(expected));
            Ok(())
        };
        assert_eq!(binds.next(true, |_| during(0)), Ok(1));
        assert_eq!(binds.next(true, |_| during(1)), Ok(2));
        let refused = binds.next(true, |_| Err(libskua::Error::NoDevice));
        assert_eq!(refused, Err(Status::OBJECT_NAME_INVALID));
        assert_eq!(binds.next(false, |_| during(2)), Ok(3));
        assert_eq!(binds.next(true, |_| during(2)), Ok(4));
        assert_eq!(binds.mapped(), 4);
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
