// SPDX-License-Identifier: GPL-2.0

//! What a client uses, for `/proc/<pid>/fdinfo/<fd>`: `Documentation/gpu/drm-usage-stats.rst`.
//!
//! `drm-engine-*` is the wall-clock time that an engine was busy with the client's work, which the
//! driver measures; `drm-cycles-*` are the ticks that the device counts, so they are exact, and the
//! same on a slow host as on a fast one. There is no `drm-total-cycles-*`: ticks pass while an
//! engine works, and then only. See [`crate::submit::busy`].
//!
//! Memory is summed over the objects to which the client has a handle, and those that only the
//! mappings of its address spaces keep.

use crate::{
    ext::{
        file,
        printer::{
            MemoryStats,
            Printer, //
        }, //
    },
    gpu::SkuaDevice,
    ioctl::file::SkuaFile,
    kernel_heap::client_flags,
    memory::{
        bo::{
            Bo,
            BoRef,
            REGION_VRAM, //
        },
        eviction,
        vm::Vm, //
    },
    spec::command::EngineKind,
    submit::busy::Used, //
};
use core::{
    fmt::Write as _,
    ptr, //
};
use kernel::{
    drm::{
        gem::BaseObject,
        Registered, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// Prints the keys of `file`.
pub(crate) fn show(
    dev: &SkuaDevice<Registered>,
    file: &SkuaFile,
    out: &mut Printer<'_>,
) -> core::fmt::Result {
    for kind in [EngineKind::Compute, EngineKind::Copy] {
        engines(dev, file, kind, out)?;
    }
    memory(dev, file, out);
    Ok(())
}

/// The keys of all engines of one kind, which have one name.
fn engines(
    dev: &SkuaDevice,
    file: &SkuaFile,
    kind: EngineKind,
    out: &mut Printer<'_>,
) -> core::fmt::Result {
    let file = file.inner();
    let mut sum = Used::default();
    let mut count = 0;
    let mut name = "";
    for (_, engine) in dev
        .client_engines()
        .filter(|(_, engine)| engine.kind() == kind)
    {
        let used = engine.used(&file.usage, file.contexts.lock().iter());
        sum.busy_ns = sum.busy_ns.saturating_add(used.busy_ns);
        sum.ticks = sum.ticks.saturating_add(used.ticks);
        count += 1;
        name = engine.name().to_str().unwrap_or("?");
    }
    if count == 0 {
        return Ok(());
    }
    writeln!(out, "drm-engine-{}:\t{} ns", name, sum.busy_ns)?;
    writeln!(out, "drm-cycles-{}:\t{}", name, sum.ticks)?;
    if count > 1 {
        writeln!(out, "drm-engine-capacity-{}:\t{}", name, count)?;
    }
    Ok(())
}

/// The memory of a client, by region.
#[derive(Default)]
struct Memory {
    /// `drm-*-memory`: what is in system memory, the aperture included.
    system: MemoryStats,
    /// `drm-*-vram0`: what is in VRAM.
    vram: MemoryStats,
}

impl Memory {
    /// Counts an object, once.
    fn add(&mut self, dev: &SkuaDevice, bo: &Bo, shared: bool) {
        let stats = if bo.region() == REGION_VRAM {
            &mut self.vram
        } else {
            &mut self.system
        };
        let size = bo.size() as u64;
        let add = |sum: &mut u64| *sum = sum.saturating_add(size);
        add(if shared {
            &mut stats.shared
        } else {
            &mut stats.private
        });
        if !bo.is_discarded() {
            add(&mut stats.resident);
            if bo.is_offered() {
                add(&mut stats.purgeable);
            }
        }
        let bo: ARef<Bo> = bo.into();
        if !eviction::is_idle(dev, &bo.into()) {
            add(&mut stats.active);
        }
    }
}

/// Prints `drm-*-memory` and `drm-*-vram0`.
fn memory(dev: &SkuaDevice, file: &SkuaFile, out: &mut Printer<'_>) {
    let mut memory = Memory::default();
    // What could not be looked at for want of memory is missing.
    let mut mapped = mapped(file).unwrap_or_default();
    file::for_each_object(file, |bo, shared| {
        memory.add(dev, bo, shared);
        // Counted: what is left has no handle.
        let place = mapped.binary_search_by_key(&ptr::from_ref(bo), |(bo, _)| ptr::from_ref(&**bo));
        if let Some((_, has_handle)) = place.ok().and_then(|place| mapped.get_mut(place)) {
            *has_handle = true;
        }
    });
    for (bo, has_handle) in &mapped {
        if !has_handle {
            memory.add(dev, bo, file::is_shared(&**bo));
        }
    }
    out.memory_stats(c"memory", &memory.system);
    out.memory_stats(c"vram0", &memory.vram);
}

/// The objects that are mapped in address spaces of `file`, by address and once each, and `false`.
/// `ENOMEM`.
fn mapped(file: &SkuaFile) -> Result<KVVec<(BoRef, bool)>> {
    let mut vms = KVec::<Arc<Vm>>::new();
    for vm in file.inner().vms.lock().iter() {
        vms.push(vm.clone(), client_flags())?;
    }
    // An address space without a handle lives as long as its contexts.
    for context in file.inner().contexts.lock().iter() {
        if let Some(vm) = context.vm() {
            vms.push(vm.clone(), client_flags())?;
        }
    }
    vms.sort_unstable_by_key(Arc::as_ptr);
    let mut all = KVVec::new();
    let mut last = ptr::null();
    for vm in &vms {
        if !ptr::eq(last, Arc::as_ptr(vm)) {
            vm.collect_objects(&mut all)?;
        }
        last = Arc::as_ptr(vm);
    }
    all.sort_unstable_by_key(|bo| ptr::from_ref(&**bo));
    let mut objects = KVVec::<(BoRef, bool)>::with_capacity(all.len(), client_flags())?;
    for bo in all {
        if objects
            .last()
            .is_none_or(|(last, _)| !ptr::eq(&**last, &*bo))
        {
            objects.push((bo, false), client_flags())?;
        }
    }
    Ok(objects)
}
