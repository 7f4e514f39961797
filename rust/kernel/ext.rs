// SPDX-License-Identifier: GPL-2.0

//! What the `kernel` crate of Linux 7.3 lacks for a DRM driver.
//!
//! This folder is the only place of the module that says `unsafe` or `bindings::`. (Of userspace,
//! that is `tools/libskua/src/sys.rs`, and the kselftests' own system calls.) Each file wraps one
//! thing, is shaped like what upstream has or has posted, and goes when upstream has it.
//!
//! # Table of contents
//!
//! | file | what it gives |
//! |---|---|
//! | [`pci`] | [`pci::PciDriver`], [`pci::Probe`], [`pci::Parts`]: probe, interrupts, registration and unbind, in their order |
//! | [`drm_driver`] | [`drm_driver::DriverExt`]: syncobj features, fdinfo, debugfs, PRIME import |
//! | [`device`] | [`device::enter`] (a registration guard from anywhere), [`device::BusMaster`] |
//! | [`devres`] | [`devres::DevresSet`]: resources that end with the device's driver, in thousands |
//! | [`dmem`] | [`dmem::Region`], [`dmem::Charge`]: control groups that limit and protect device memory |
//! | [`ioctl`] | [`declare_skua_ioctls!`](crate::declare_skua_ioctls): the ioctl table over the local uAPI |
//! | [`uapi`] | `skua_drm.h` as Rust |
//! | [`user_array`] | [`user_array::UserArray`]: `{stride, count, pointer}` arrays |
//! | [`irq`] | MSI-X vectors with their handlers, for [`pci`] |
//! | [`file`] | walking a client's objects |
//! | [`event`] | [`event::PendingEvent`]: what a client reads from its file |
//! | [`eventfd`] | [`eventfd::EventFd`]: what a client polls |
//! | [`value_page`] | [`value_page::ValuePage`]: a value that clients map, read and share |
//! | [`gem`] | [`gem::GemExt`], [`gem::create`], [`gem::Backing`], [`gem::placement`], [`gem::replace`], [`gem::unmap`] |
//! | [`lru`] | [`lru::Lru`]: which objects were used last |
//! | [`shrinker`] | [`shrinker::Shrinker`]: pages of idle objects go back to shmem |
//! | [`attachment`] | [`attachment::ImportMap`]: another driver's memory, as the device sees it |
//! | [`fault`] | [`fault::VmFault`], [`fault::FaultError`]: page faults by TTM's rules |
//! | [`capability`] | [`capability::sys_nice`], [`capability::sys_resource`]: what the calling process may do |
//! | [`memory`] | [`memory::total`]: how much the machine has |
//! | [`memcg`] | [`memcg::MemoryGroup`]: charging a client where it is not at work |
//! | [`pages`] | [`pages::Pages`], [`pages::DmaMap`], [`pages::Segment`]: system memory of objects |
//! | [`resv`] | [`resv::lock`], [`resv::Reserved`], [`resv::Room`], [`resv::Reservation`], [`resv::Handle`]: reservation locks and their fences |
//! | [`exec`] | [`exec::Exec`]: many reservation locks at once |
//! | [`fence`] | [`fence::FenceContext`], [`fence::DriverFence`], [`fence::Fence`], [`fence::Callback`], [`fence::Signalling`], [`fence::ModuleGuard`] |
//! | [`syncobj`] | [`syncobj::find_fence`], [`syncobj::Syncobj`], [`syncobj::ChainNode`] |
//! | [`queue`] | [`queue::OwnedQueue`], [`queue::ModuleQueue`], [`queue::OpenQueue`], [`queue::Alarm`] (work with a time, that can be stopped) |
//! | [`bar`] | [`bar::MemoryBar`]: device memory that userspace maps |
//! | `bug` | [`warn_on_once!`](crate::warn_on_once): what cannot be, told once |
//! | [`printer`] | [`printer::Printer`] (fdinfo), [`printer::SeqPrinter`] (debugfs), [`printer::MemoryStats`] |
//! | [`trace`] | the tracepoints |
//! | [`coredump`] | handing userspace a dump of a device that failed |
//! | [`wedged`] | telling userspace of a device that failed |
//!
//! # How a driver uses it
//!
//! Its type implements [`pci::PciDriver`], and the module structure has a [`pci::Registration`] of
//! it. A [`fence::ModuleGuard`] is that structure's last field.
//!
//! Objects are made by [`gem::create`] and located by [`gem::replace`] under [`resv::lock`]. A
//! submission allocates [`fence::FenceMemory`] and [`syncobj::ChainNode`]s, finds its in-fences,
//! and then, when nothing can fail any more, makes and publishes its fence.
//!
//! # Lock order
//!
//! The driver's is written at the top of `drivers/gpu/drm/skua/gpu.rs`, and says where the locks of
//! this folder stand in it.

pub(crate) mod attachment;
pub(crate) mod bar;
mod bug;
pub(crate) mod capability;
pub(crate) mod coredump;
pub(crate) mod device;
pub(crate) mod devres;
pub(crate) mod dmem;
pub(crate) mod drm_driver;
pub(crate) mod event;
pub(crate) mod eventfd;
pub(crate) mod exec;
pub(crate) mod fault;
pub(crate) mod fence;
pub(crate) mod file;
pub(crate) mod gem;
pub(crate) mod ioctl;
mod irq;
pub(crate) mod lru;
pub(crate) mod memcg;
pub(crate) mod memory;
#[cfg(CONFIG_KUNIT = "y")]
mod mock;
pub(crate) mod pages;
pub(crate) mod pci;
pub(crate) mod printer;
pub(crate) mod queue;
pub(crate) mod resv;
mod shim;
pub(crate) mod shrinker;
pub(crate) mod syncobj;
pub(crate) mod trace;
pub(crate) mod uapi;
pub(crate) mod user_array;
pub(crate) mod value_page;
pub(crate) mod wedged;
