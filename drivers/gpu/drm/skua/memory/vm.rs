// SPDX-License-Identifier: GPL-2.0

//! Address spaces: what is mapped where for one process, and the queue of binds that change it.
//!
//! There are two views of an address space. The *map* says what will be mapped when all binds that
//! were accepted are done; an ioctl changes it at once, since binds are done in order. The *page
//! tables* say what the GPU translates now; a bind changes them when its turn comes.
//!
//! ```text
//! VM_BIND ioctl:  check ─▶ allocate tables, nodes ─▶ change the map ─▶ publish the fence ─▶ queue
//! its turn:       gate open? ─▶ write entries ─▶ flush TLBs and wait ─▶ give what was unmapped to
//!                 the reaper ─▶ signal the fence
//! ```
//!
//! An address space whose handle is gone stays in the device's table while it has binds that are
//! not done, so that a device that is lost ends them, too; and while contexts work in it, so that
//! who moves memory finds it.
//!
//! This file has what an address space is, how it begins and ends, and whose it is. In files of
//! their own are:
//!
//! | part | what is in it |
//! |---|---|
//! | [`requests`] | what clients ask of it, which may be held |
//! | [`bind`] | a bind: how it is accepted, and performed |
//! | [`copies`] | what of it copies what is mapped elsewhere |
//! | [`mod@queue`] | the queue of binds, and whose turn it is |
//! | [`map`] | the map, and what it is not to name any more |
//! | [`entries`] | what page tables lead to, for binds and for who moves and destroys |
//! | [`context_allocations`] | where and whose they are, and which are out |
//! | [`reached`] | what the GPU reaches, which may outlive the rest |

use crate::{
    ext::{
        fence::{
            FenceContext,
            Signalling, //
        },
        gem::{
            self,
            GemExt, //
        },
        queue::ModuleQueue,
        resv::Reservation, //
    },
    fences::hold::{
        Holder,
        Holds, //
    },
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            Bo,
            BoData,
            BoRef, //
        },
        clean_copy,
        device::ClientDevice,
        evicted::Evicted,
        installed::{
            Installed,
            Mapping,
            Site, //
        },
        page_table::PageTable,
        uses::LastUse,
        vm::{
            map::MapGuard,
            queue::Binds, //
        }, //
    },
    policy::interval_map::Span,
    quota::{
        count_out,
        Quota,
        Share, //
    },
    reaper::Reapable,
    spec::{
        address::VA_BITS,
        mmu::Entry,
        number::{
            Asid,
            ContextSlot, //
        }, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        List,
        ListLinks, //
    },
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::Atomic,
        Arc,
        Mutex,
        SpinLock, //
    },
    types::ScopeGuard,
    workqueue::Work, //
};

mod bind;
mod context_allocations;
mod copies;
mod entries;
mod map;
mod queue;
mod reached;
mod requests;

pub(crate) use bind::Bind;
pub(crate) use map::Gone;
pub(crate) use reached::Reached;
pub(crate) use requests::{
    BindRequest,
    Wanted, //
};

/// First address that can be bound: the first 64 KiB catch null pointers.
pub(crate) const VA_START: u64 = 0x1_0000;
/// Address behind the last that can be bound: the upper 4 GiB are the driver's.
pub(crate) const VA_END: u64 = (1 << VA_BITS) - (1 << 32);

/// Where binds are done that wait, or are behind others, and what has moved is installed: of its
/// own, as one may take long.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// Every GPU virtual address, those included that cannot be bound.
const ALL: Span = Span::new(0, 1 << VA_BITS);
/// The addresses that clients can bind something at.
const CLIENTS: Span = Span::new(VA_START, VA_END);
/// Where context allocations are that the driver has made.
pub(crate) const OWN: Span = Span::new(VA_END, VA_END + (1 << 31));
/// Where those are that clients have asked for.
pub(crate) const ASKED_FOR: Span = Span::new(OWN.end, ALL.end);

/// Has `vm` use `bo` from byte `offset` on, a multiple of the page size; whether the GPU may write.
/// `ENOMEM`; `EBUSY` if it is offered; `EINTR` if a signal arrives.
pub(super) fn begin_mapping(vm: &Vm, bo: BoRef, offset: u64, write: bool) -> Result<Mapping> {
    let mut reserved = gem::lock_brought(&*bo)?;
    if bo.is_offered() {
        return Err(EBUSY);
    }
    bo::was_used(&bo);
    // From here on it has a user, and stays awake.
    BoData::rouse(&bo, &mut reserved)?;
    if write {
        // The GPU does not tell when it writes, so the clean copy goes now.
        clean_copy::drop_copy(&bo, &mut reserved)?;
    }
    Mapping::new(bo.clone(), vm, offset, write)
}

/// An address space. Userspace's handle holds it, and each of its contexts.
#[pin_data(PinnedDrop)]
pub(crate) struct Vm {
    /// The device that translates by it.
    dev: ARef<SkuaDevice>,
    /// What the GPU reaches through it, which a reaper gets.
    reached: ScopeGuard<Arc<Reached>, fn(Arc<Reached>)>,
    /// Names the root of its page tables, for context descriptors.
    root: Entry,
    /// Where submissions file that they use what is mapped: see [`Vm::reservation`].
    users: Arc<Reservation>,
    /// When work was submitted that uses what is mapped.
    pub(crate) last_use: LastUse,
    /// What of it has to be in VRAM and is not: to be brought back before a submission.
    #[pin]
    pub(crate) evicted: Evicted,
    /// What of it would rather be in VRAM, where there was no room for it.
    #[pin]
    pub(crate) displaced: Evicted,
    /// The line of its binds' fences, which signal in order.
    fences: FenceContext,
    /// Held by who records and writes what page tables lead to: a bind, for each of its operations,
    /// and a move. Whether a bind has cleared what TLBs may still know.
    #[pin]
    installing: Mutex<bool>,
    /// What is still to be done to the page tables.
    #[pin]
    binds: SpinLock<Binds>,
    /// What the map is not to name any more. Who has the map takes these out.
    #[pin]
    gone: SpinLock<List<Gone>>,
    /// Looks at the queue, in a worker.
    #[pin]
    work: Work<Self>,
    /// What is held, and so not in the map yet.
    #[pin]
    holds: Holds<Self>,
    /// Looks at that, in a worker.
    #[pin]
    hold_work: Work<Self, 1>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
    /// The [context allocations](super::save_areas) that clients have asked for, each of one
    /// context, until they are destroyed.
    #[pin]
    owners: Mutex<KVVec<(BoRef, ContextSlot)>>,
    /// How many context allocations moves have taken from where the GPU reached them, and not
    /// brought back. Changes under `installing`.
    absent: Atomic<u32>,
}

impl_has_work! {
    impl HasWork<Self> for Vm { self.work }
    impl HasWork<Self, 1> for Vm { self.hold_work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Vm { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Vm { using ListLinks { self.links }; }
}

impl Reapable for Vm {
    fn bytes(&self) -> u64 {
        self.reached.bytes()
    }
}

impl Vm {
    /// Makes an address space in which nothing is mapped.
    ///
    /// Its page tables count against `system`, the client's quota of system memory; `place` is its
    /// own among the client's address spaces. `ENOSPC` if there are too many; `ENOMEM`.
    pub(crate) fn new(
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        device: &Arc<ClientDevice>,
        place: Share,
        system: &Arc<Quota>,
    ) -> Result<Arc<Self>> {
        let tables = PageTable::new(dev, parent, system)?;
        let tables = dev.resources.insert(parent, tables)?;
        let root = tables.access(parent)?.entry();
        let users = Reservation::new()?;
        let asid = dev.reserve_asid()?;
        let reached = Reached::new(dev, asid, tables, place);
        let reached = reached.inspect_err(|_| dev.release_asid(asid))?;
        let let_go: fn(Arc<Reached>) = Reached::let_go;
        let vm = Arc::pin_init(
            try_pin_init!(Self {
                dev: dev.into(),
                reached: ScopeGuard::new_with_data(reached, let_go),
                root,
                users,
                last_use: LastUse::new(dev),
                evicted <- Evicted::new(device),
                displaced <- Evicted::new(device),
                fences: FenceContext::new(c"skua", c"bind"),
                installing <- new_mutex!(false),
                binds <- new_spinlock!(Binds::new()),
                gone <- new_spinlock!(List::new()),
                work <- new_work!("Vm::work"),
                holds <- Holds::new(),
                hold_work <- new_work!("Vm::hold_work"),
                links <- ListLinks::new(),
                owners <- new_mutex!(KVVec::new()),
                absent: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let vm: Arc<Self> = vm?;
        dev.vms.fill(asid, vm.clone());
        // A device that is lost looks at the table once: before this, or it is seen here.
        if let Err(error) = dev.check_health() {
            vm.end(error);
        }
        Ok(vm)
    }

    /// Its number in the hardware; the system's is not among them.
    pub(crate) fn asid(&self) -> Asid {
        self.reached.asid
    }

    /// The device that says what has to be resident for its work, and whose failure ends that.
    pub(crate) fn device(&self) -> &Arc<ClientDevice> {
        self.evicted.device()
    }

    /// The list that `bo` is in if it is not where it is to be.
    pub(crate) fn list_for(&self, bo: &Bo) -> &Evicted {
        match bo.needs_vram() {
            true => &self.evicted,
            false => &self.displaced,
        }
    }

    /// The root table, for context descriptors.
    pub(crate) fn root(&self) -> Entry {
        self.root
    }

    /// Userspace has no handle of it any more; contexts and submissions may. What is queued is
    /// done, and what is held cancelled.
    pub(crate) fn destroy(self: &Arc<Self>) {
        let over = {
            let mut binds = self.binds.lock();
            binds.destroyed = true;
            binds.is_over()
        };
        Self::look_again(self.clone());
        if over {
            self.leave();
        }
    }

    /// Whether it counts against `quota`.
    pub(crate) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        self.reached.place.is_of(quota)
    }

    /// Takes it out of the device's table.
    fn leave(&self) {
        if let Some(vm) = self.dev.vms.empty(self.reached.asid) {
            self.dev.reapers.vms.bury(vm);
        }
    }

    /// Appends each object that something is mapped of, once for each mapping. `ENOMEM`.
    pub(crate) fn collect_objects(&self, objects: &mut KVVec<BoRef>) -> Result {
        collect(&self.map(), objects)
    }

    /// As [`Self::collect_objects`], and whether it did: not if somebody has the map, perhaps for
    /// long. `ENOMEM`.
    pub(crate) fn try_collect_objects(&self, objects: &mut KVVec<BoRef>) -> Result<bool> {
        match self.try_map() {
            Some(locked) => collect(&locked, objects).map(|()| true),
            None => Ok(false),
        }
    }

    /// Mappings, bytes mapped, mappings that are installed, and tables, for debugfs.
    pub(crate) fn usage(&self, parent: &Device<Bound>) -> (u32, u64, usize, usize) {
        let MapGuard { map, .. } = &self.map();
        let (count, bytes) = map
            .iter(CLIENTS)
            .fold((0u32, 0u64), |(count, bytes), (span, _)| {
                (count.saturating_add(1), bytes.saturating_add(span.len()))
            });
        let is_installed = |(span, mapping): &(Span, &Mapping)| {
            let wanted = Installed::new(*span, mapping.offset(), mapping.may_write());
            mapping.bo().sites.get(self.site(span.start)) == Some(wanted)
        };
        let installed = map.iter(CLIENTS).filter(is_installed).count();
        let tables = self
            .reached
            .tables
            .access(parent)
            .map_or(0, PageTable::count);
        (count, bytes, installed, tables)
    }

    /// The quota of address spaces that it counts in, which is its client's.
    pub(crate) fn client(&self) -> &Arc<Quota> {
        self.reached.place.quota()
    }

    /// What its client's user has of address spaces.
    pub(crate) fn user(&self) -> &Arc<Quota> {
        let client = self.client();
        client.whole().unwrap_or(client)
    }

    /// The quota of system memory that its page tables count in. `ENODEV`.
    pub(crate) fn system_quota(&self, parent: &Device<Bound>) -> Result<Arc<Quota>> {
        Ok(self.reached.tables.access(parent)?.quota().clone())
    }

    /// Calls `f` with each page's entry, for debugfs. `ENODEV`.
    pub(crate) fn each_page(
        &self,
        parent: &Device<Bound>,
        most: u32,
        f: &mut impl FnMut(u64, u64, Entry),
    ) -> Result {
        self.reached
            .tables
            .access(parent)?
            .each_page(&self.dev, most, f)
    }

    /// The reservation of those who use what is mapped here: each submission files its fence with
    /// it, under [`Usage::Bookkeep`], before it lets the lock go. That is one fence for all that is
    /// mapped. Who moves an object learns from its [`Sites`](super::installed::Sites) in which
    /// address spaces it is, and here who uses them.
    ///
    /// Lock: a reservation lock. Room for the fence ([`Reserved::reserve`]) is made while the
    /// submission can still fail.
    ///
    /// [`Usage::Bookkeep`]: crate::ext::resv::Usage
    /// [`Reserved::reserve`]: crate::ext::resv::Reserved::reserve
    pub(crate) fn reservation(&self) -> &Arc<Reservation> {
        &self.users
    }

    /// The place of an address of this address space in an object's records.
    fn site(&self, start: u64) -> Site {
        self.reached.site(start)
    }
}

/// Calls `f` with each address space that uses `bo` and in which something can run.
pub(crate) fn for_each_user(
    dev: &SkuaDevice,
    bo: &BoRef,
    mut f: impl FnMut(&Arc<Vm>) -> Result,
) -> Result {
    let mut from = Asid::SYSTEM;
    while let Some(asid) = bo.sites.next_user(from) {
        if let Some(vm) = dev.vms.find(asid) {
            let done = f(&vm);
            dev.reapers.vms.bury(vm);
            done?;
        }
        match asid.0.checked_add(1) {
            Some(next) => from = Asid(next),
            None => break,
        }
    }
    Ok(())
}

#[pinned_drop]
impl PinnedDrop for Vm {
    fn drop(self: Pin<&mut Self>) {
        crate::warn_on_once!(Signalling::is_inside());
        for list in [&self.evicted, &self.displaced] {
            list.clear(|bo| {
                bo.sites.set_listed(self.reached.asid, false);
            });
        }
    }
}

/// A context's use of its address space, which stays in the device's table as long: what moves is
/// found there by whom it has to wait for.
pub(crate) struct VmUse(Arc<Vm>);

impl VmUse {
    /// One use more of `vm`. `ENOENT` if its handle is gone.
    pub(crate) fn new(vm: &Arc<Vm>) -> Result<Self> {
        let mut binds = vm.binds.lock();
        if binds.destroyed {
            return Err(ENOENT);
        }
        // No wrap: there are fewer contexts.
        binds.contexts = binds.contexts.wrapping_add(1);
        Ok(Self(vm.clone()))
    }

    /// The address space; also one whose handle is gone, with all that is bound in it.
    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.0
    }
}

impl Drop for VmUse {
    fn drop(&mut self) {
        let over = {
            let mut binds = self.0.binds.lock();
            count_out(&mut binds.contexts, 1);
            binds.is_over()
        };
        if over {
            self.0.leave();
        }
    }
}

/// Appends each object that something in a map is of, once for each mapping. `ENOMEM`.
fn collect(MapGuard { map, .. }: &MapGuard<'_>, objects: &mut KVVec<BoRef>) -> Result {
    objects.reserve(usize::try_from(map.len())?, client_flags())?;
    for (_, mapping) in map.iter(ALL) {
        objects.push(mapping.bo().clone(), client_flags())?;
    }
    Ok(())
}
