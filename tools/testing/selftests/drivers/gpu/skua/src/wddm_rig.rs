// SPDX-License-Identifier: MIT

//! A device of `tools/wddm` ready to run work.
//!
//! Everything here panics if the driver refuses it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use skua_spec::command::Command;
use wddm::{
    Adapter, Allocation, AllocationDesc, Context, Device, DeviceState, EngineKind,
    MakeResidentFlags, MapDesc, Mapping, MonitoredFence, Paging, PagingQueue, ReserveDesc, Status,
};

use crate::client::PATIENCE;
use crate::moving::evict_all;
use crate::rig::{copy, wait_value, write};
use crate::suite;

/// The GPU's smallest page, in bytes.
pub const PAGE: u64 = 4096;
/// WDDM's unit of reservations.
pub const UNIT: u64 = 65536;
/// Bytes.
pub const MIB: u64 = 1 << 20;

/// A time limit: against hanging, not a measure.
pub fn patience() -> Duration {
    PATIENCE * suite::patience()
}

/// Commands of a test, one slot after the other.
#[derive(Debug)]
pub struct Rig {
    /// The device of all of it.
    pub device: Device,
    /// On the copy engine.
    pub copy: Context,
    /// On the compute engine.
    pub compute: Context,
    /// Slots of [`SLOT`] bytes.
    commands: Allocation,
    /// Number of the next slot of `commands`.
    slot: AtomicU64,
    /// A word for work to wait for.
    pub gate: Allocation,
    /// Makes resident.
    paging: PagingQueue,
}

const SLOT: u64 = 256;
const SLOTS: u64 = 4096;

impl Rig {
    /// A device on an adapter of its own.
    #[expect(clippy::new_without_default, reason = "it opens a device")]
    pub fn new() -> Self {
        Self::on(&Adapter::open_first().expect("an adapter"))
    }

    /// A device on an adapter.
    pub fn on(adapter: &Adapter) -> Self {
        let device = Device::create(adapter).expect("a device");
        let system =
            |size| Allocation::create(&device, &AllocationDesc::new(size, adapter.system()));
        Self {
            copy: context(&device, EngineKind::Copy),
            compute: context(&device, EngineKind::Compute),
            commands: system(SLOT * SLOTS).expect("commands"),
            slot: AtomicU64::new(0),
            gate: system(PAGE).expect("a gate"),
            paging: PagingQueue::create(&device).expect("a paging queue"),
            device,
        }
    }

    /// With the save areas of its contexts, which the first work of each takes.
    #[track_caller]
    pub fn having_worked(self) -> Self {
        for context in [&self.copy, &self.compute] {
            self.start(context, &[Command::Nop { words: 2 }]);
            self.finish(context);
        }
        self
    }

    /// One more context for a kind of engine.
    pub fn fresh(&self, kind: EngineKind) -> Context {
        context(&self.device, kind)
    }

    /// A fence of value 0.
    pub fn fence(&self) -> MonitoredFence {
        MonitoredFence::create(&self.device, 0).expect("a fence")
    }

    /// An allocation in system memory.
    pub fn system(&self, size: u64) -> Allocation {
        let desc = AllocationDesc::new(size, self.device.adapter().system());
        Allocation::create(&self.device, &desc).expect("an allocation")
    }

    /// An allocation in video memory, resident.
    #[track_caller]
    pub fn vram(&self, size: u64) -> Allocation {
        let allocation = self.vram_out(size);
        let flags = MakeResidentFlags::CANT_TRIM_FURTHER;
        let paging = self.paging.make_resident(&[&allocation], flags);
        let value = paging.expect("MakeResident").fence_value;
        assert_eq!(self.paging.fence().wait(value, patience()), Ok(()));
        allocation
    }

    /// An allocation for video memory that is not resident.
    #[track_caller]
    pub fn vram_out(&self, size: u64) -> Allocation {
        let desc = AllocationDesc::new(size, self.device.adapter().vram());
        Allocation::create(&self.device, &desc).expect("an allocation")
    }

    /// Writes commands where the GPU finds them.
    pub fn write(&self, commands: &[Command]) -> (u64, u32) {
        let words: Vec<u32> = commands
            .iter()
            .flat_map(|command| command.encode().words().to_vec())
            .collect();
        let bytes = size_of_val(&words[..]) as u64;
        assert!(bytes <= SLOT);
        let offset = self.slot.fetch_add(1, Ordering::Relaxed) % SLOTS * SLOT;
        let mapping = self.commands.lock2(0).expect("Lock2");
        mapping
            .copy_from_slice(usize::try_from(offset).expect("an offset"), &words)
            .expect("commands");
        self.commands.unlock2().expect("Unlock2");
        (
            self.commands.gpu_va() + offset,
            u32::try_from(bytes).expect("a size"),
        )
    }

    /// Queues commands.
    pub fn start(&self, context: &Context, commands: &[Command]) {
        let (va, bytes) = self.write(commands);
        context.submit(va, bytes).expect("SubmitCommand");
    }

    /// A command that is done when the gate is open.
    pub fn wait_for_gate(&self) -> Command {
        wait_value(self.gate.gpu_va(), 1)
    }

    /// Lets the work go on that waits for the gate.
    pub fn open_gate(&self) {
        let map = self.gate.lock2(0).expect("Lock2");
        map.write(0, 1_u64).expect("a value");
        self.gate.unlock2().expect("Unlock2");
    }

    /// Waits until a context has done all that was queued.
    #[track_caller]
    pub fn finish(&self, context: &Context) {
        let fence = self.fence();
        context.signal_from_gpu(&[(&fence, 1)]).expect("a signal");
        assert_eq!(fence.wait(1, patience()), Ok(()));
    }

    /// Good commands, for a device that takes none.
    pub fn write_dead(&self) -> (u64, u32) {
        (self.commands.gpu_va(), 24)
    }

    /// Bytes of video memory that are used, by all.
    pub fn vram_used(&self) -> u64 {
        vram_used(self.device.adapter())
    }
}

/// A context on the first engine of a kind.
pub fn context(device: &Device, kind: EngineKind) -> Context {
    let node = device.adapter().node(kind).expect("a node");
    Context::create(device, node).expect("a context")
}

/// Bytes of video memory that are used, by all.
pub fn vram_used(adapter: &Adapter) -> u64 {
    vram(adapter).iter().map(|segment| segment.used).sum()
}

/// Bytes of video memory.
pub fn vram_size(adapter: &Adapter) -> u64 {
    vram(adapter).iter().map(|segment| segment.size).sum()
}

/// The segments of video memory.
pub fn vram(adapter: &Adapter) -> Vec<libskua::RegionInfo> {
    let set = adapter.vram();
    let mut segments = adapter.segments().expect("segments");
    segments.retain(|segment| set.contains(segment.id));
    segments
}

/// What the CPU reads there.
pub fn read(allocation: &Allocation, offset: usize) -> u64 {
    let map = allocation.lock2(0).expect("Lock2");
    let value = map.read(offset).expect("a value");
    allocation.unlock2().expect("Unlock2");
    value
}

/// A paging queue of its device.
#[track_caller]
pub fn queue(rig: &Rig) -> PagingQueue {
    PagingQueue::create(&rig.device).expect("a paging queue")
}

/// An allocation that may be in either place.
pub fn movable(rig: &Rig, size: u64) -> Allocation {
    let adapter = rig.device.adapter();
    let both = adapter.vram() | adapter.system();
    Allocation::create(&rig.device, &AllocationDesc::new(size, both)).expect("an allocation")
}

/// Addresses that nothing is mapped at.
#[track_caller]
pub fn reserve(rig: &Rig, size: u64) -> u64 {
    let desc = ReserveDesc {
        size,
        ..ReserveDesc::default()
    };
    let adapter = rig.device.adapter();
    adapter.reserve_gpu_virtual_address(&desc).expect("a range")
}

/// Maps, and waits until it is done; tells where.
#[track_caller]
pub fn map(queue: &PagingQueue, desc: &MapDesc<&Allocation>) -> u64 {
    let (va, paging) = queue.map_gpu_virtual_address(desc).expect("a mapping");
    finish(queue, paging);
    va
}

/// Waits until a paging operation is done.
#[track_caller]
pub fn finish(queue: &PagingQueue, paging: Paging) {
    assert!([Status::SUCCESS, Status::PENDING].contains(&paging.status));
    assert_eq!(queue.fence().wait(paging.fence_value, patience()), Ok(()));
}

/// All of an allocation, mapped from `base` on.
pub fn at(base: u64, allocation: &Allocation) -> MapDesc<&Allocation> {
    MapDesc {
        base,
        ..MapDesc::all_of(allocation)
    }
}

/// Has the GPU write a word, and waits.
#[track_caller]
pub fn gpu_write(rig: &Rig, va: u64, value: u64) {
    rig.start(&rig.copy, &[write(va, value)]);
    rig.finish(&rig.copy);
}

/// What the GPU reads there.
#[track_caller]
pub fn gpu_read(rig: &Rig, va: u64) -> u64 {
    let out = rig.system(PAGE);
    rig.start(&rig.copy, &[copy(va, out.gpu_va(), PAGE)]);
    rig.finish(&rig.copy);
    read(&out, 0)
}

/// Has the GPU access an address, and expects the device to be lost for that.
#[track_caller]
pub fn expect_fault(rig: &Rig, va: u64, value: u64) {
    rig.start(&rig.copy, &[write(va, value)]);
    let fence = MonitoredFence::create(&rig.device, 0);
    // The device may be in error by now.
    let ended = fence.and_then(|fence| {
        rig.copy.signal_from_gpu(&[(&fence, 1)])?;
        fence.wait(1, patience())
    });
    assert_eq!(ended, Err(Status::DEVICE_REMOVED));
    match rig.device.state() {
        DeviceState::PageFault(fault) => assert_eq!(fault.address, va),
        state => panic!("{state:?}"),
    }
}

/// A rig, and 4 MiB more than half of video memory that is not resident: 4 MiB at first.
pub fn more_than_half(rig: Rig) -> (Rig, PagingQueue, [Allocation; 2]) {
    let half = vram_size(rig.device.adapter()) / 2;
    let allocations = [4 * MIB, half].map(|size| {
        let desc = AllocationDesc::new(size, rig.device.adapter().vram()).hidden();
        Allocation::create(&rig.device, &desc).expect("an allocation")
    });
    let queue = queue(&rig);
    (rig, queue, allocations)
}

/// What may be in video memory alone, and is locked while it is not there.
#[track_caller]
pub fn locked_out(rig: &Rig) -> (Allocation, Arc<Mapping>) {
    let desc = AllocationDesc::new(MIB, rig.device.adapter().vram()).hidden();
    let hidden = Allocation::create(&rig.device, &desc).expect("an allocation");
    let cpu = suite::eventually(|| {
        evict_all();
        hidden.lock2(0).ok()
    });
    (hidden, cpu.expect("Lock2 of what is out"))
}
