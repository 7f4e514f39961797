// SPDX-License-Identifier: MIT

//! Each ioctl of the driver once, with good arguments: what is said by a device that is gone, or
//! lost.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use crate::cases::Cases;
use crate::client::{map, Place};
use crate::moving::{both, movable};
use crate::raw::Errno;
use crate::rig::{Engine, Rig};
use skua_uapi::*;

const PAGE: u64 = 4096;
/// Where nothing of a [`Rig`] is.
const VA: u64 = 1 << 40;

/// What an ioctl does if the device is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfLost {
    /// It makes something, gives the device work, moves memory, or signals or waits for values.
    Refused,
    /// It tells, takes back or destroys.
    Answered,
}

/// What the arguments name, made while the device works.
#[derive(Debug)]
pub struct EveryCall {
    /// The client that calls.
    rig: Rig,
    /// Where objects may be, as a device that is gone does not say.
    placements: u32,
    /// An object in system memory, which the CPU finds there whatever becomes of the device.
    bo: u32,
    /// An object that was made resident.
    resident: u32,
    /// An object that was offered, with low priority.
    offered: u32,
    /// An object that was locked once.
    locked: u32,
    /// A device without explicit residency.
    device: u32,
    /// An address space of `device`, which nothing uses.
    vm: u32,
    /// A context of the rig's address space, whose work no engine has had.
    context: u32,
    /// A context allocation of `context`.
    allocation: u32,
    /// A monitored fence, of value 1.
    fence: u32,
    /// `fence`, exported.
    shared: OwnedFd,
    /// What FENCE_EVENTFD is given; nobody reads it.
    eventfd: EventFd,
}

impl EveryCall {
    /// Makes all that the ioctls are about.
    #[track_caller]
    pub fn new() -> Self {
        let rig = Rig::new();
        let placements = both(&rig);
        let bo = rig.bo(Place::System, PAGE);
        let resident = movable(&rig, PAGE);
        rig.make_resident(&[resident], &[]).expect("MAKE_RESIDENT");
        let offered = movable(&rig, PAGE);
        rig.offer(&[offered], DRM_SKUA_OFFER_LOW).expect("BO_OFFER");
        let locked = rig.bo(Place::System, PAGE);
        rig.lock(locked).expect("BO_LOCK");
        let device = rig.device_create(0).expect("DEVICE_CREATE");
        let vm = rig.vm_create_for(device).expect("VM_CREATE");
        let context = rig.new_context(Engine::Copy);
        let (allocation, _) = rig
            .context_alloc(rig.vm, context, PAGE, placements)
            .expect("CONTEXT_ALLOC");
        let fence = rig.fence(1);
        let shared = rig.fence_export(fence).expect("FENCE_EXPORT");
        Self {
            placements,
            bo,
            resident,
            offered,
            locked,
            device,
            vm,
            context,
            allocation,
            fence,
            shared,
            eventfd: EventFd::new().expect("eventfd"),
            rig,
        }
    }

    /// Calls each ioctl. Those that the device answers end what was made: once is all.
    ///
    /// # Panics
    ///
    /// If one says something else than `expected` does of its kind; if the driver has one that is
    /// not here.
    #[track_caller]
    pub fn expect(&self, expected: impl Fn(IfLost) -> Result<(), Errno>) {
        use IfLost::{Answered, Refused};
        let Self {
            rig,
            fence,
            placements,
            ..
        } = self;
        let (mut cases, mut numbers) = (Cases::new(), BTreeSet::new());
        let mut said = |name: &str, number: u32, kind: IfLost, result: Result<(), Errno>| {
            numbers.insert(number & 0xff);
            cases.expect(name, result, expected(kind));
        };
        macro_rules! said {
            ($($number:ident $kind:ident $result:expr;)*) => {
                $(said(stringify!($number), $number, $kind, $result.map(drop));)*
            };
        }
        said! {
            DRM_IOCTL_SKUA_QUERY Answered rig.query_size(DRM_SKUA_QUERY_DEVICE);
            DRM_IOCTL_SKUA_BO_CREATE Refused rig.bo_create(PAGE, 0, *placements);
            DRM_IOCTL_SKUA_BO_MMAP_OFFSET Answered rig.mmap_offset(self.bo);
            DRM_IOCTL_SKUA_BO_INFO Answered rig.info(self.bo);
            DRM_IOCTL_SKUA_VM_CREATE Refused rig.vm_create();
            DRM_IOCTL_SKUA_VM_BIND Refused rig.bind(rig.vm, &[map(self.bo, 0, VA, PAGE)], &[]);
            DRM_IOCTL_SKUA_CONTEXT_CREATE Refused rig.context_create(rig.vm, 0);
            DRM_IOCTL_SKUA_CONTEXT_STATE Answered rig.state(self.context);
            DRM_IOCTL_SKUA_SUBMIT Refused rig.submit(rig.copy, &[], &[]);
            DRM_IOCTL_SKUA_MAKE_RESIDENT Refused rig.make_resident(&[self.resident], &[]);
            DRM_IOCTL_SKUA_EVICT Answered rig.evict(&[self.resident]);
            DRM_IOCTL_SKUA_BO_LOCK Answered rig.lock(self.bo);
            DRM_IOCTL_SKUA_BO_UNLOCK Answered rig.unlock(self.locked);
            DRM_IOCTL_SKUA_BO_SET_PRIORITY Answered
                rig.set_priority(&[self.resident], DRM_SKUA_PRIORITY_NORMAL);
            DRM_IOCTL_SKUA_BO_OFFER Answered
                rig.offer(&[self.resident], DRM_SKUA_OFFER_LOW);
            DRM_IOCTL_SKUA_BO_RECLAIM Refused rig.reclaim(&[self.offered]);
            DRM_IOCTL_SKUA_DEVICE_CREATE Refused rig.device_create(0);
            DRM_IOCTL_SKUA_DEVICE_STATE Answered rig.device_state(self.device);
            DRM_IOCTL_SKUA_DEVICE_MARK_ERROR Answered rig.device_mark_error(self.device);
            DRM_IOCTL_SKUA_FENCE_CREATE Refused rig.fence_create(0);
            DRM_IOCTL_SKUA_FENCE_EXPORT Answered rig.fence_export(*fence);
            DRM_IOCTL_SKUA_FENCE_IMPORT Refused rig.fence_import(&self.shared);
            DRM_IOCTL_SKUA_FENCE_SIGNAL Refused rig.fence_signal(*fence, 2);
            DRM_IOCTL_SKUA_FENCE_WAIT Refused rig.fence_wait(&[(*fence, 1)], 0, Duration::ZERO);
            DRM_IOCTL_SKUA_FENCE_EVENTFD Refused rig.fence_eventfd(*fence, 1, &self.eventfd);
            DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY Answered rig.prioritise(self.context, 0);
            DRM_IOCTL_SKUA_SET_PRIORITY_CLASS Answered
                rig.set_class(DRM_SKUA_PRIORITY_CLASS_NORMAL);
            DRM_IOCTL_SKUA_CONTEXT_ALLOC Refused
                rig.context_alloc(rig.vm, self.context, PAGE, *placements);
            DRM_IOCTL_SKUA_CONTEXT_FREE Answered rig.context_free(self.allocation);
            DRM_IOCTL_SKUA_CONTEXT_DESTROY Answered rig.context_destroy(self.context);
            DRM_IOCTL_SKUA_VM_DESTROY Answered rig.vm_destroy(self.vm);
            DRM_IOCTL_SKUA_DEVICE_DESTROY Answered rig.device_destroy(self.device);
            DRM_IOCTL_SKUA_FENCE_DESTROY Answered rig.fence_destroy(*fence);
            DRM_IOCTL_SKUA_BO_DESTROY Answered rig.destroy(&[self.bo], 0);
            // DRM's own, of the driver's objects.
            DRM_IOCTL_GEM_CLOSE Answered rig.close(self.resident);
        }
        // What is not there is the same for all: DRM answers.
        let first = DRM_IOCTL_SKUA_QUERY & 0xff;
        let next = DRM_IOCTL_SKUA_QUERY + numbers.range(first..).count() as u32;
        let unknown = rig.call(next, &mut drm_skua_query::default());
        let nobody = [Errno::EINVAL, Errno::ENODEV].map(Err);
        cases.holds(
            "the ioctl behind the last",
            nobody.contains(&unknown),
            unknown,
        );
        cases.finish();
    }
}

impl Default for EveryCall {
    fn default() -> Self {
        Self::new()
    }
}
