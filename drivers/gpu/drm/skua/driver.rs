// SPDX-License-Identifier: GPL-2.0

//! Probe and unbind, and what the DRM core is told of the driver.
//!
//! # Order of things
//!
//! Probe, from the inside out ([`ext::pci`]):
//!
//! 1. The PCI device is enabled, registers are mapped and capabilities read, VRAM is mapped, and
//!    the CPU host aperture.
//! 2. [`Gpu::new`]: the memory that is shared with the device, and the sets of pages and numbers.
//! 3. The DRM device, then interrupts.
//! 4. [`Gpu::start`]: the adapter is reset, and only then may it access memory; it is told of the
//!    shared memory; engines, the paging context, alarms.
//! 5. The registration, after which userspace comes: who opens a node before it is over waits.
//!
//! Unbind, and a probe that fails, undo it from the other end. They wait for no work of the GPU and
//! for no file to be closed; they do wait for the GPU to become quiet, up to a second, and for
//! ioctls under way, of which none waits for long once all fences have signalled:
//!
//! 1. [`Gpu::stop`]: alarms end; the device is made quiet; no more work; all fences signal, so
//!    whoever waits wakes up; what work held is freed.
//! 2. Registration: `drm_dev_unplug()` waits for ioctls under way and removes the CPU's mappings;
//!    the next access to one maps the object's dummy page.
//! 3. The BARs of VRAM and of the CPU host aperture, interrupts.
//! 4. Device-managed resources: registers, shared memory, page tables, DMA mappings; but those that
//!    a device may still reach that did not become quiet, which are kept.
//!
//! Files, buffer objects and exported dma-bufs may outlive all that.
//!
//! What happens when the system sleeps is in [`power`].

use crate::{
    ext::{
        self,
        bar::MemoryBar,
        device::BusMaster,
        devres::DevresSet,
        dmem,
        drm_driver::{
            DebugfsFile,
            DriverExt,
            Vtable, //
        },
        fence::Signalling,
        pages::Caching,
        pci::{
            Parts,
            PciDriver,
            Probe, //
        },
        printer::Printer, //
    },
    gpu::{
        self,
        Gpu,
        RegistrationData,
        Settings,
        SkuaDevice, //
    },
    hardware::{
        caps::Caps,
        registers::Registers, //
    },
    ioctl::file::{
        File,
        SkuaFile, //
    },
    memory::{
        bo::{
            self,
            Bo,
            BoData, //
        },
        eviction, //
    },
    module_parameters,
    observe::{
        debugfs,
        fdinfo, //
    },
    spec::{
        self,
        number::EngineIndex,
        pci::BAR_HOST_APERTURE, //
    },
    submit::{
        adapter_reset::Limits,
        power, //
    }, //
};
use kernel::{
    device,
    drm::{
        self,
        ioctl, //
    },
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Relaxed, //
    }, //
};

/// The driver's name as a type: what PCI core and DRM core call.
pub(crate) struct SkuaDriver;

kernel::pci_device_table!(
    PCI_TABLE,
    (),
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, spec::pci::DEVICE as u32),
        ()
    )]
);

/// What the module's parameters say. `EINVAL` with a line in the log for what is not there:
/// `TdrLevelOff`, and time-outs that never end, would leave waits without end, and there is no
/// screen for `TdrLevelRecoverVGA`.
pub(crate) fn settings() -> Result<Settings> {
    let recovers = match module_parameters::tdr_level.value() {
        1 => false,
        3 => true,
        level => {
            pr_err!("tdr_level is 1 or 3, not {}\n", level);
            return Err(EINVAL);
        }
    };
    for (name, timeout) in [
        ("job_timeout_ms", module_parameters::job_timeout_ms.value()),
        (
            "preempt_timeout_ms",
            module_parameters::preempt_timeout_ms.value(),
        ),
        (
            "tdr_ddi_delay_ms",
            module_parameters::tdr_ddi_delay_ms.value(),
        ),
    ] {
        if timeout == 0 {
            pr_err!("{} is 1 or more\n", name);
            return Err(EINVAL);
        }
    }
    let resets = match recovers {
        true => module_parameters::tdr_limit_count.value(),
        false => 0,
    };
    Ok(Settings {
        preempts: module_parameters::preemption.value() != 0,
        evicts: module_parameters::evict.value() != 0,
        job_ms: module_parameters::job_timeout_ms.value(),
        acknowledge_ms: module_parameters::tdr_ddi_delay_ms.value(),
        system_limit: system_limit(module_parameters::system_limit_mb.value()),
        recovers,
        resets: Limits {
            count: resets,
            within_s: module_parameters::tdr_limit_time.value(),
        },
    })
}

/// How much of the machine's memory may be buffer objects, in bytes: half of it, or so many of the
/// MiB that it has.
fn system_limit(mb: u32) -> u64 {
    let total = ext::memory::total();
    let limit = match mb {
        0 => total / 2,
        mb => total.min(u64::from(mb) << 20),
    };
    limit / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl PciDriver for SkuaDriver {
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    fn probe<'bound>(probe: Probe<'bound, '_>) -> Result<Parts<'bound, Self>> {
        let regs = Registers::new(probe.map(spec::pci::BAR_REGS, c"skua-registers")?);
        let caps = Caps::read(probe.device(), &regs)?;
        let pdev = probe.limit_dma(caps.bus_bits)?;
        let parent = pdev.as_ref();

        // The CPU writes VRAM through clients' mappings only.
        let vram = match caps.vram_visible {
            0 => None,
            _ => Some(MemoryBar::new(
                pdev,
                spec::pci::BAR_VRAM,
                c"skua-vram",
                Caching::WriteCombined,
            )?),
        };
        let bar = vram.as_ref().map_or(0, MemoryBar::whole);
        if bar != caps.vram_visible {
            let visible = caps.vram_visible;
            dev_err!(
                parent,
                "VRAM's BAR has {:#x} bytes, not {:#x}\n",
                bar,
                visible
            );
            return Err(EINVAL);
        }
        let aperture = match &caps.aperture {
            None => None,
            Some(aperture) => {
                let (bar, bytes) = (pdev.resource_len(BAR_HOST_APERTURE)?, aperture.bytes());
                if bar != bytes {
                    dev_err!(
                        parent,
                        "the aperture's BAR has {:#x} bytes, not {:#x}\n",
                        bar,
                        bytes
                    );
                    return Err(EINVAL);
                }
                let caching = match caps.cached_aperture {
                    true => Caching::WriteBack,
                    false => Caching::WriteCombined,
                };
                let name = c"skua-aperture";
                Some(MemoryBar::new(pdev, BAR_HOST_APERTURE, name, caching)?)
            }
        };
        let vectors = u32::try_from(caps.engines.len())?
            .checked_add(1)
            .ok_or(EINVAL)?;

        let settings = settings()?;
        let bus = BusMaster::new(pdev);
        let gpu = Gpu::new(parent, bus, regs, caps, &settings)?;
        Ok(Parts {
            drm: drm::UnregisteredDevice::new(pdev, gpu)?,
            data: RegistrationData::new(parent, vram, aperture),
            vectors,
        })
    }

    fn start(dev: &SkuaDevice) -> Result {
        let job = module_parameters::job_timeout_ms.value();
        Gpu::start(dev, job, module_parameters::preempt_timeout_ms.value())
    }

    fn interrupt(dev: &SkuaDevice, vector: u32) {
        let _signalling = Signalling::begin();
        dev.counters.interrupts.fetch_add(1, Relaxed);
        match EngineIndex::new(vector).map(|index| dev.engine(index)) {
            Some(Ok(engine)) => engine.process(dev),
            // The vector behind the engines'.
            _ => dev.look_at_faults(),
        }
    }

    fn stop(dev: &SkuaDevice) {
        Gpu::stop(dev);
    }

    fn sleep(dev: &SkuaDevice) -> Result {
        power::sleep(dev)
    }

    fn wake(dev: &SkuaDevice) -> Result {
        power::wake(dev)
    }

    fn reset_prepare(dev: &SkuaDevice) {
        dev.resets.begin_by_bus();
    }

    fn reset_done(dev: &SkuaDevice) {
        dev.was_reset();
    }
}

static VTABLE: Vtable = Vtable::new();

impl DriverExt for SkuaDriver {
    type Gem = BoData;

    fn vtable() -> &'static Vtable {
        &VTABLE
    }

    const DEBUGFS: &'static [DebugfsFile<Self>] = debugfs::FILES;

    fn show_fdinfo(dev: &SkuaDevice<drm::Registered>, file: &SkuaFile, printer: &mut Printer<'_>) {
        // Output that does not fit is the caller's to repeat.
        let _ = fdinfo::show(dev, file, printer);
    }

    fn before_ioctl(dev: &SkuaDevice<drm::Registered>) {
        if dev.evicts {
            eviction::evict_idle(dev, gpu::parent(dev));
        }
    }

    fn resources(dev: &SkuaDevice) -> &DevresSet {
        &dev.resources
    }

    fn import(dev: &SkuaDevice, size: usize) -> Result<ARef<Bo>> {
        bo::import(dev, size)
    }
}

impl dmem::Reclaim for SkuaDriver {
    fn reclaim(dev: &SkuaDevice, pool: &dmem::Pool, bytes: u64) -> Result {
        let bound = ext::device::enter(dev).ok_or(ENODEV)?;
        // Perhaps there is memory at the next attempt; nobody is told that there was none.
        let again = |error| if error == ENOMEM { ENOSPC } else { error };
        eviction::reclaim(dev, gpu::parent(&bound), pool, bytes).map_err(again)
    }
}

const INFO: drm::DriverInfo = drm::DriverInfo {
    major: 1,
    minor: 0,
    patchlevel: 0,
    name: c"skua",
    desc: c"Skua GPU",
};

#[vtable]
impl drm::Driver for SkuaDriver {
    type Data = Gpu;
    type RegistrationData<'a> = RegistrationData<'a>;
    type File = File;
    type Object = Bo;
    type ParentDevice<Ctx: device::DeviceContext> = pci::Device<Ctx>;

    const INFO: drm::DriverInfo = INFO;
    const FEAT_RENDER: bool = true;

    crate::declare_skua_ioctls! {
        (SKUA_QUERY, drm_skua_query, ioctl::RENDER_ALLOW, File::query),
        (SKUA_BO_CREATE, drm_skua_bo_create, ioctl::RENDER_ALLOW, File::bo_create),
        (SKUA_BO_MMAP_OFFSET, drm_skua_bo_mmap_offset, ioctl::RENDER_ALLOW, File::bo_mmap_offset),
        (SKUA_BO_INFO, drm_skua_bo_info, ioctl::RENDER_ALLOW, File::bo_info),
        (SKUA_VM_CREATE, drm_skua_vm_create, ioctl::RENDER_ALLOW, File::vm_create),
        (SKUA_VM_DESTROY, drm_skua_vm_destroy, ioctl::RENDER_ALLOW, File::vm_destroy),
        (SKUA_VM_BIND, drm_skua_vm_bind, ioctl::RENDER_ALLOW, File::vm_bind),
        (SKUA_CONTEXT_CREATE, drm_skua_context_create, ioctl::RENDER_ALLOW, File::context_create),
        (
            SKUA_CONTEXT_DESTROY, drm_skua_context_destroy, ioctl::RENDER_ALLOW,
            File::context_destroy
        ),
        (SKUA_CONTEXT_STATE, drm_skua_context_state, ioctl::RENDER_ALLOW, File::context_state),
        (SKUA_SUBMIT, drm_skua_submit, ioctl::RENDER_ALLOW, File::submit, waits),
        (SKUA_BO_DESTROY, drm_skua_bo_destroy, ioctl::RENDER_ALLOW, File::bo_destroy),
        (SKUA_MAKE_RESIDENT, drm_skua_make_resident, ioctl::RENDER_ALLOW, File::make_resident),
        (SKUA_EVICT, drm_skua_evict, ioctl::RENDER_ALLOW, File::evict),
        (SKUA_BO_LOCK, drm_skua_bo_lock, ioctl::RENDER_ALLOW, File::bo_lock),
        (SKUA_BO_UNLOCK, drm_skua_bo_unlock, ioctl::RENDER_ALLOW, File::bo_unlock),
        (
            SKUA_BO_SET_PRIORITY, drm_skua_bo_set_priority, ioctl::RENDER_ALLOW,
            File::bo_set_priority
        ),
        (SKUA_DEVICE_CREATE, drm_skua_device_create, ioctl::RENDER_ALLOW, File::device_create),
        (SKUA_DEVICE_DESTROY, drm_skua_device_destroy, ioctl::RENDER_ALLOW, File::device_destroy),
        (SKUA_DEVICE_STATE, drm_skua_device_state, ioctl::RENDER_ALLOW, File::device_state),
        (SKUA_BO_OFFER, drm_skua_bo_offer, ioctl::RENDER_ALLOW, File::bo_offer),
        (SKUA_BO_RECLAIM, drm_skua_bo_reclaim, ioctl::RENDER_ALLOW, File::bo_reclaim),
        (SKUA_FENCE_CREATE, drm_skua_fence_create, ioctl::RENDER_ALLOW, File::fence_create),
        (SKUA_FENCE_DESTROY, drm_skua_fence_destroy, ioctl::RENDER_ALLOW, File::fence_destroy),
        (SKUA_FENCE_EXPORT, drm_skua_fence_export, ioctl::RENDER_ALLOW, File::fence_export),
        (SKUA_FENCE_IMPORT, drm_skua_fence_import, ioctl::RENDER_ALLOW, File::fence_import),
        (SKUA_FENCE_SIGNAL, drm_skua_fence_signal, ioctl::RENDER_ALLOW, File::fence_signal),
        (SKUA_FENCE_WAIT, drm_skua_fence_wait, ioctl::RENDER_ALLOW, File::fence_wait, waits),
        (SKUA_FENCE_EVENTFD, drm_skua_fence_eventfd, ioctl::RENDER_ALLOW, File::fence_eventfd),
        (
            SKUA_CONTEXT_SET_PRIORITY,
            drm_skua_context_set_priority,
            ioctl::RENDER_ALLOW,
            File::context_set_priority
        ),
        (
            SKUA_DEVICE_MARK_ERROR,
            drm_skua_device_mark_error,
            ioctl::RENDER_ALLOW,
            File::device_mark_error
        ),
        (
            SKUA_SET_PRIORITY_CLASS,
            drm_skua_set_priority_class,
            ioctl::RENDER_ALLOW,
            File::set_priority_class
        ),
        (SKUA_CONTEXT_ALLOC, drm_skua_context_alloc, ioctl::RENDER_ALLOW, File::context_alloc),
        (SKUA_CONTEXT_FREE, drm_skua_context_free, ioctl::RENDER_ALLOW, File::context_free),
    }
}
