// SPDX-License-Identifier: MIT

//! A first program: fills VRAM with a pattern, copies it to where the CPU sees it, and looks.
//!
//! `make shell` has it on the PATH, as all examples of `tools/`.

use std::time::Duration;

use libskua::{Access, Bo, BoFlags, CommandBuffer, Context, Device, EngineKind, Error, Vm};

fn main() -> Result<(), Error> {
    let device = Device::open_first()?;

    // Memory: one buffer object in VRAM, and one in system memory that the CPU can map.
    let size = 1 << 20;
    let vram = Bo::create(&device, size, device.vram(), BoFlags::empty())?;
    let result = Bo::create(&device, size, device.system(), BoFlags::CPU_ACCESS)?;

    // Addresses: the program chooses them.
    let vm = Vm::create(&device)?;
    let (vram_va, result_va, commands_va) = (0x1000_0000, 0x2000_0000, 0x3000_0000);
    vm.map(&vram, vram_va, Access::ReadWrite)?;
    vm.map(&result, result_va, Access::ReadWrite)?;

    // Commands.
    let mut commands = CommandBuffer::create(&vm, commands_va, 4096)?;
    commands
        .fill(vram_va, size, 0xcafe_f00d)?
        .copy(vram_va, result_va, size)?;

    // Work, and its end.
    let engine = device.engine(EngineKind::Copy).ok_or(Error::NoDevice)?;
    let context = Context::create(&vm, engine)?;
    context.run(&commands, Duration::from_secs(10))?;
    println!("{:#x}", result.map()?.read::<u32>(4096)?);
    Ok(())
}
