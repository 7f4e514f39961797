// SPDX-License-Identifier: GPL-2.0

//! From probe to unbind: what there is as long as the device is bound, how it is started, and how
//! all that has begun ends.

use crate::{
    ext::{
        bar::MemoryBar,
        dmem::Region,
        fence::Signalling,
        shrinker::Shrinker, //
    },
    fences::retry::Retries,
    gpu::{
        Gpu,
        SkuaDevice,
        QUEUE, //
    },
    memory::{
        clearer::Clearer,
        eviction,
        offer::Discarder,
        vram::Part, //
    },
    policy::miniport::Miniport,
    submit::{
        context::Context,
        recovery::Alarms, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm,
    prelude::*,
    str::CString,
    sync::atomic::Release, //
};

/// What ioctls and faults get while the device is bound.
pub(crate) struct RegistrationData<'a> {
    /// The PCI device, for DMA mappings; [`RegistrationData::parent`] hands it out.
    parent: &'a Device<Bound>,
    /// The BAR of visible VRAM, of which page faults map pages; none if nothing is visible.
    pub(crate) vram: Option<MemoryBar<'a>>,
    /// The BAR of the CPU host aperture, likewise.
    pub(crate) aperture: Option<MemoryBar<'a>>,
}

impl<'a> RegistrationData<'a> {
    /// What a device is registered with whose memory the CPU finds in `vram` and `aperture`.
    pub(crate) fn new(
        parent: &'a Device<Bound>,
        vram: Option<MemoryBar<'a>>,
        aperture: Option<MemoryBar<'a>>,
    ) -> Self {
        Self {
            parent,
            vram,
            aperture,
        }
    }

    /// The PCI device: what DMA mappings and device-managed resources belong to.
    pub(crate) fn parent(&self) -> &Device<Bound> {
        self.parent
    }
}

/// The PCI device that `dev` is on, bound as long as that is registered.
pub(crate) fn parent(dev: &SkuaDevice<drm::Registered>) -> &Device<Bound> {
    let parent: &kernel::pci::Device<Bound> = dev.as_ref();
    parent.as_ref()
}

impl Gpu {
    /// Starts the device: VRAM in control groups, what throws offers away, the shrinker, a reset,
    /// its access to memory, its engines, the driver's own contexts, and its alarms, which from now
    /// on look after the engines. `job_ms` is how long a packet may work, `preempt_ms` how long an
    /// engine may take to stop.
    ///
    /// `ETIMEDOUT`, with a line in the log, if the reset does not end or the status page is not
    /// written; `ENOMEM`, `ENODEV`.
    pub(crate) fn start(dev: &SkuaDevice, job_ms: u32, preempt_ms: u32) -> Result {
        let parent: &Device = dev.as_ref().as_ref();
        let name = CString::try_from_fmt(fmt!("drm/{}/vram0", parent.name()))?;
        let region = Region::new(dev, &name, Part::Any.bytes(dev))?;
        *dev.vram_region.lock() = Some(region);
        let discarder = Discarder::new(dev)?;
        *dev.discarder.lock() = Some(discarder);
        let name = CString::try_from_fmt(fmt!("drm-skua:{}", parent.name()))?;
        let shrinker = Shrinker::new(dev, &name)?;
        *dev.shrinker.lock() = Some(shrinker);
        dev.hw.reset_from_timeout()?;
        let ready = dev.wait_until_reset();
        if ready == Err(ETIMEDOUT) {
            dev_err!(
                dev.as_ref(),
                "the device does not get ready after a reset\n"
            );
        }
        ready?;
        dev.bus.turn_on();
        dev.hw.restart_from_timeout()?;
        let restarted = dev.wait_briefly(|| dev.hw.has_restarted());
        if restarted == Err(ETIMEDOUT) {
            dev_err!(dev.as_ref(), "the device does not write its status page\n");
        }
        restarted?;
        dev.vram_generation.store(dev.hw.generation(), Release);
        for (_, engine) in dev.engines() {
            engine.enable(dev)?;
        }
        let paging = Context::new_system(dev, dev.paging_engine()?)?;
        *dev.paging.lock() = Some(paging);
        let alarms = Alarms::new(dev, job_ms, preempt_ms)?;
        *dev.alarms.lock() = Some(alarms);
        Retries::start(dev)?;
        Clearer::start(dev)
    }

    /// The device is unbound, or its probe has failed: ends all that [`Gpu::start`] has begun.
    pub(crate) fn stop(dev: &SkuaDevice) {
        // Nothing more is charged from here on.
        let region = dev.vram_region.lock().take();
        let shrinker = dev.shrinker.lock().take();
        drop(shrinker);
        let discarder = dev.discarder.lock().take();
        drop(discarder);
        dev.clearer.stop();
        // Not inside a signalling section: waits for the alarms, which are.
        drop(dev.detach());
        let signalling = Signalling::begin();
        Gpu::lose(dev, true);
        drop(signalling);
        dev.retries.stop();
        // What waits in the queues looks, finds nothing to do, and lets go of the device.
        dev.hold_workers.wait();
        QUEUE.flush();
        crate::memory::vm::QUEUE.flush();
        // What waited for binds and moves.
        QUEUE.flush();
        // What still waits for a worker that has not run.
        dev.destroyer.end();
        // A move may have found that it cannot be installed, and doubted.
        Gpu::lose(dev, true);
        if !dev.reapers.is_quiet() {
            Gpu::keep(dev);
        }
        // What takes longer is freed later: it touches the device no more.
        let _ = dev.reap_all(&mut eviction::patience());
        // Waits for who makes room for a group, and that for work: all of it is over.
        drop(region);
    }
}
