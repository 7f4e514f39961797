// SPDX-License-Identifier: GPL-2.0

//! Skua: a DRM driver for an emulated PCI GPU, with WDDM's ideas of memory and scheduling.
//!
//! The crate's table of contents. The way of a submission, one direction, no way back:
//!
//! ```text
//! uapi ─▶ ioctl (copy once, check) ─▶ hold ─▶ context (order, fence) ─▶ engine (turn) ─▶ ring
//!                    │                                │                     ▲
//!                    └─▶ hold ─▶ vm (binds)           └─ paging_in          └─ recovery
//!                                 └─▶ page_table         (what is out)
//!
//! in calls   ioctl::context submit ─▶ fences::hold::submit ─▶ Holder::submit ─▶ Context::submit ─▶
//!            Context::queue (paging_in::lock, Gate, the fence) ─▶ Engine::submit ─▶ fill ─▶
//!            Node::start ─▶ Miniport::submit_command
//! and back   interrupt ─▶ Engine::process ─▶ complete ─▶ Submission::finish ─▶ the fence
//! ```
//!
//! *Row 2.08* and the like are requirements, listed in `Documentation/gpu/skua/conformance.rst`.
//!
//! | room | what is in it | may use |
//! |---|---|---|
//! | [`driver`] | probe, unbind, what the DRM core is told | all |
//! | [`observe`] | what can be seen: fdinfo, debugfs | all below |
//! | [`ioctl`] | files, ioctls and their arguments | all below |
//! | [`submit`] | contexts, submissions and their packets, engines, recovery | memory, fences, hardware |
//! | [`memory`] | buffer objects, VRAM, address spaces, page tables | fences, hardware; [`submit::context::Context`] |
//! | [`fences`] | what work waits for and what it signals | none |
//! | [`hardware`] | the miniport: capabilities, registers, memory shared with the device | none |
//!
//! Between rooms arrows go one way, but for two types. [`driver::SkuaDriver`] is the parameter of
//! types of the kernel's that rooms name; of what it does, `ioctl` calls
//! [`before_ioctl`](ext::drm_driver::DriverExt::before_ioctl) itself, for SUBMIT. And memory names
//! `Context`: it has the driver's own contexts move it, and engines leave the contexts whose areas
//! move. It asks engines, which it finds through the trunk and does not name, whether they are idle
//! (`Engine::is_idle`) and whether they need the area of a context (`Engine::needs_area`). What is
//! no room stands beside them:
//!
//! | part | what is in it |
//! |---|---|
//! | [`gpu`] | the trunk: the data of the device, which holds a piece of each room below `ioctl` and is known to all but `hardware`; the order of all locks |
//! | [`reaper`] | frees what work lets go of, when the device cannot reach it |
//! | [`herald`] | tells userspace of losses, resets of the adapter and work that was cut, and publishes core dumps |
//! | [`slots`], [`few`], [`quota`], [`users`], [`kernel_heap`] | tables, short lists, limits, also of users, and the policy's memory |
//! | [`policy`] | decisions, free of kernel types: `rust/policy` |
//! | [`mod@spec`] | the hardware's numbers: `rust/spec` |
//! | [`ext`] | what the kernel crate lacks, and all `unsafe`: `rust/kernel` |

#![crate_name = "skua"]

use ext::queue::Nice;
use kernel::{
    prelude::*,
    InPlaceModule, //
};

mod driver;
#[path = "../../../../rust/kernel/ext.rs"]
mod ext;
mod fences;
mod few;
mod gpu;
mod hardware;
mod herald;
mod ioctl;
mod kernel_heap;
mod memory;
mod observe;
#[path = "../../../../rust/policy/mod.rs"]
#[expect(unreachable_pub, reason = "a crate of its own on the host")]
mod policy;
mod quota;
mod reaper;
mod slots;
// Public as in its crate on the host: what the driver does not use is not dead.
#[path = "../../../../rust/spec/mod.rs"]
pub mod spec;
mod submit;
mod users;

/// The module: what it registers, and what must be waited for when it goes.
#[pin_data]
struct Skua {
    /// Gone first: nothing new comes for what is below.
    #[pin]
    _driver: ext::pci::Registration<driver::SkuaDriver>,
    /// Before `_work`: held work that is let go of wakes its context there.
    _holds: ext::queue::OpenQueue,
    /// Before `_binds`, for the same reason.
    _updates: ext::queue::OpenQueue,
    /// Before the reapers: these workers give them contexts and address spaces.
    _work: ext::queue::OpenQueue,
    /// Likewise: they get the objects that a bind unmaps.
    _binds: ext::queue::OpenQueue,
    /// Frees what all of the above let go of.
    _reapers: ext::queue::OpenQueue,
    /// What signals fences tells eventfds: all of the above may.
    _eventfds: ext::queue::OpenQueue,
    /// Last, so that it waits when everything else is gone.
    _guard: ext::fence::ModuleGuard,
}

impl InPlaceModule for Skua {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _: {
                // Before any device is probed.
                driver::settings()?;
            },
            _holds: fences::hold::QUEUE.open(c"skua-holds", Nice::Normal)?,
            _updates: submit::context::updates::QUEUE.open(c"skua-updates", Nice::Normal)?,
            _work: gpu::QUEUE.open(c"skua", Nice::High)?,
            _binds: memory::vm::QUEUE.open(c"skua-binds", Nice::Normal)?,
            _reapers: reaper::QUEUE.open(c"skua-reapers", Nice::Normal)?,
            _eventfds: fences::sleep::QUEUE.open(c"skua-eventfds", Nice::Normal)?,
            _driver <- ext::pci::Registration::new(<Self as kernel::ModuleMetadata>::NAME, module),
            _guard: ext::fence::ModuleGuard::new(),
        })
    }
}

module! {
    type: Skua,
    name: "skua",
    authors: ["Skua developers"],
    description: "Skua GPU",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        job_timeout_ms: u32 {
            default: 10000,
            description: "Milliseconds that a job may run before it is cut",
        },
        evict: u8 {
            default: 0,
            description: "For tests: have all idle objects leave VRAM before each ioctl (0: no)",
        },
        preemption: u8 {
            default: 1,
            description: "Whether engines are asked to stop for more important work (0: never)",
        },
        preempt_timeout_ms: u32 {
            default: 2000,
            description: "Milliseconds that an engine may take to stop before it is reset",
        },
        system_limit_mb: u32 {
            default: 0,
            description: "MiB of system memory for buffer objects (0: half of the machine's)",
        },
        tdr_ddi_delay_ms: u32 {
            default: 5000,
            description: "Milliseconds that the device may take to acknowledge before it is reset",
        },
        tdr_level: u8 {
            default: 3,
            description: "What a time-out has done: the device is given up (1), or recovers (3)",
        },
        tdr_limit_count: u32 {
            default: 5,
            description: "Adapter resets in tdr_limit_time that are borne, at most 16",
        },
        tdr_limit_time: u32 {
            default: 60,
            description: "Seconds in which tdr_limit_count adapter resets are borne",
        },
    },
}
