// SPDX-License-Identifier: MIT

//! A first program for WDDM's model: fills video memory, copies it to where the CPU sees it, and
//! looks.
//!
//! `make shell` has it on the PATH, as all examples of `tools/`.

use std::time::Duration;

use wddm::{
    Access, Adapter, Allocation, AllocationDesc, Context, Device, EngineKind, MakeResidentFlags,
    MapFlags, MapMode, MonitoredFence, PagingQueue, Status,
};

fn main() -> Result<(), Status> {
    let adapter = Adapter::open_first()?;
    let device = Device::create(&adapter)?;
    let node = adapter
        .node(EngineKind::Copy)
        .ok_or(Status::NOT_SUPPORTED)?;
    let context = Context::create(&device, node)?;

    // Memory. Each allocation has its GPU virtual address already.
    let size = 1 << 20;
    let vram = AllocationDesc::new(size, adapter.vram());
    let system = AllocationDesc::new(size, adapter.system());
    let picture = Allocation::create(&device, &vram.hidden())?;
    let result = Allocation::create(&device, &system)?;

    // What is in video memory alone has to be resident for work to find it.
    let paging = PagingQueue::create(&device)?;
    let resident = paging.make_resident(&[&picture], MakeResidentFlags::CANT_TRIM_FURTHER)?;
    context.wait_from_gpu(&[(paging.fence(), resident.fence_value)])?;

    // Commands, in memory of their own.
    let room = AllocationDesc::new(4096, adapter.system());
    let commands = Allocation::create(&device, &room)?;
    let mut recorder = commands.recorder()?;
    recorder.fill(picture.gpu_va(), size, 0xcafe_f00d)?.copy(
        picture.gpu_va(),
        result.gpu_va(),
        size,
    )?;

    // Work. The kernel is not told what it uses; the library is, for its maps.
    let done = MonitoredFence::create(&device, 0)?;
    context
        .submission()
        .recorded(&recorder)
        .uses(&picture, Access::Write)
        .uses(&result, Access::Write)
        .signal(&done, 1)
        .submit()?;

    // Its end, in two ways: by the fence, and by a map that waits for what it needs.
    done.wait(1, Duration::from_secs(10))?;
    let map = result.map(MapMode::Read, MapFlags::empty())?;
    println!("{:#x}", map.read::<u32>(4096)?);
    Ok(())
}
