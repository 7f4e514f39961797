// SPDX-License-Identifier: GPL-2.0

//! Bringing back what a submission needs: what is mapped in its address space, may be in VRAM
//! alone, is wanted by its [device](super::device), and is [out](super::evicted).
//!
//! ```text
//! submission   lock the address space's reservation ─▶ nothing is out? ──yes──▶ publish its fence
//!                          ▲                              │ no
//!                          └── published moves ◀── room ◀─┘ unlock
//! ```
//!
//! From the emptiness of the list until its own fence is published the submission holds the lock
//! that a move takes, too: what is in VRAM then stays there until the work is done. The work waits
//! for the moves, as for all of its address space.
//!
//! Room that is free is taken at once. Who has to make some takes the [`Turn`], of which a device
//! has one: what its holder needs is no victim until its work is published. So nobody loses what
//! they have just brought in before they could use it. Who has the next one is
//! [`policy::turns`](crate::policy::turns)'s to say: users have one in each round, and of each its
//! clients. Who takes long while others wait gives it up, and comes again behind them.

use crate::{
    ext::{
        device,
        gem::{
            self,
            GemExt,
            Placement, //
        },
        resv::Reserved, //
    },
    gpu::{
        self,
        SkuaDevice, //
    },
    kernel_heap::client_flags,
    memory::{
        bo::{
            self,
            BoData,
            BoRef,
            SystemSite,
            REGION_APERTURE, //
        },
        device::ClientDevice,
        eviction::{
            self,
            Wish, //
        },
        gart,
        moves::UnderWay,
        relocation::{
            relocate,
            Reason, //
        },
        vm::Vm,
        vram::{
            Part,
            VramRange, //
        }, //
    },
    policy::{
        eviction::Need,
        segment_sets::{
            Attempt,
            Segment, //
        },
        turns::{
            self,
            Seat, //
        }, //
    },
    quota::{
        Quota,
        QuotaId, //
    },
    spec::number::Asid, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    new_condvar,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// Who makes room for what is mapped in an address space, and who waits for that.
#[pin_data]
pub(crate) struct Pager {
    /// Whose turn it is, and who waits for one.
    #[pin]
    state: Mutex<State>,
    /// Notified when the turn is free.
    #[pin]
    free: CondVar,
}

struct State {
    /// The address space whose turn it is, and its device.
    holder: Option<(Asid, Arc<ClientDevice>)>,
    /// Threads that wait for their turn, by number.
    waiting: RBTree<u64, Seat<QuotaId>>,
    /// Whose turn is the next.
    first: Option<turns::Turn<QuotaId>>,
    /// The number of who comes next.
    next: u64,
}

/// How long one has the turn and goes on bringing in when not less is out than there was before.
const TURN: Delta = Delta::from_secs(20);

/// How often who waits for the turn looks whether it is still wanted, in milliseconds.
const LOOK_MS: u32 = 1000;

/// How long one waits, without the turn, for room that is just being cleared, in milliseconds.
const MOMENT_MS: u32 = 10;

/// How long one has the turn in all while others wait.
const LONG_TURN: Delta = Delta::from_secs(60);

/// The right to make room for an address space; nobody takes from that what it needs.
pub(crate) struct Turn<'a>(&'a Pager);

impl Pager {
    /// A queue in which nobody waits, and nobody makes room.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_mutex!(State {
                holder: None,
                waiting: RBTree::new(),
                first: None,
                next: 0,
            }),
            free <- new_condvar!("Pager::free"),
        })
    }

    /// Waits for the turn of `vm`, while `wanted` says so. `ENOMEM`; `EINTR` if a signal arrives;
    /// what `wanted` says.
    fn take_turn(&self, vm: &Vm, wanted: impl Fn() -> Result) -> Result<Turn<'_>> {
        let room = RBTreeNodeReservation::new(client_flags())?;
        let mut state = self.state.lock();
        let number = state.enter(room, vm);
        let is_first = |state: &State| {
            state.holder.is_none() && state.first.is_some_and(|it| it.number() == number)
        };
        let mut waited = wanted();
        while !is_first(&state) && waited.is_ok() {
            // A worker gets no signal, and nobody tells it that its context was closed.
            let moment = msecs_to_jiffies(LOOK_MS);
            waited = match self.free.wait_interruptible_timeout(&mut state, moment) {
                CondVarTimeoutResult::Signal { .. } => Err(EINTR),
                _ => wanted(),
            };
        }
        let entry = state.leave(number, waited.is_ok());
        if waited.is_ok() {
            state.holder = Some((vm.asid(), vm.device().clone()));
        }
        drop(state);
        // Not under the lock.
        drop(entry);
        if waited.is_err() {
            // It may have been the first.
            self.free.notify_all();
        }
        waited.map(|()| Turn(self))
    }

    /// Whether others than `vm`'s client wait for their turn.
    fn others_wait(&self, vm: &Vm) -> bool {
        let state = self.state.lock();
        let others = state
            .waiting
            .values()
            .any(|it| it.client() != vm.client().id());
        others
    }

    /// Whether it is somebody's turn.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.lock().holder.is_some()
    }

    /// Whether `bo` has to stay in VRAM, since whose turn it is needs it there.
    pub(crate) fn protects(&self, bo: &BoRef) -> bool {
        let state = self.state.lock();
        state.holder.as_ref().is_some_and(|(asid, device)| {
            bo.needs_vram() && bo.sites.is_user(*asid) && device.wants(bo)
        })
    }
}

impl State {
    /// Has one more thread that works for `vm` wait; its number.
    fn enter(&mut self, room: RBTreeNodeReservation<u64, Seat<QuotaId>>, vm: &Vm) -> u64 {
        let number = self.next;
        // No wrap: there are not so many turns.
        self.next = number.wrapping_add(1);
        let seat = Seat::new(
            vm.user().id(),
            vm.client().id(),
            number,
            self.waiting.values(),
        );
        self.waiting.insert(room.into_node(number, seat));
        self.choose();
        number
    }

    /// The thread waits no more; it is the first one, and has its turn, or it had none.
    fn leave(&mut self, number: u64, is_served: bool) -> Option<RBTreeNode<u64, Seat<QuotaId>>> {
        let seat = self.waiting.get(&number).copied();
        let entry = self.waiting.remove_node(&number);
        match (self.first, seat) {
            (Some(first), _) if is_served => first.is_served(self.waiting.values_mut()),
            (_, Some(seat)) => seat.is_gone(self.waiting.values_mut()),
            _ => (),
        }
        self.choose();
        entry
    }

    fn choose(&mut self) {
        self.first = turns::next(|| self.waiting.values());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Not the last reference to the device: the address space has one.
        self.0.state.lock().holder = None;
        self.0.free.notify_all();
    }
}

/// Locks the reservation of `vm` when nothing that is mapped there is out; with the turn, if that
/// was needed, to be held until a submission is published. Brings back what is out while `wanted`
/// says so.
///
/// `ENOMEM` if it does not fit all together, what is in its way is in use for long, or more and
/// more is out for [`TURN`]; `EBUSY` if the CPU has locked what is out
/// (row 0.21); `ENODEV`; `EINTR` if a signal arrives; what `wanted` says.
pub(crate) fn lock<'a>(
    dev: &'a SkuaDevice,
    vm: &'a Vm,
    wanted: impl Fn() -> Result,
) -> Result<(Reserved<'a>, Option<Turn<'a>>)> {
    let mut turn: Option<(Turn<'_>, Instant<Monotonic>)> = None;
    let mut taken = Instant::<Monotonic>::now();
    let mut patience = eviction::patience();
    let mut is_first = true;
    let mut least = usize::MAX;
    let is_long =
        |taken: Instant<Monotonic>| taken.elapsed() > LONG_TURN && dev.pager.others_wait(vm);
    loop {
        let reserved = vm.reservation().lock()?;
        let out = vm.evicted.wanted();
        if out == 0 {
            return Ok((reserved, turn.map(|(turn, _)| turn)));
        }
        drop(reserved);
        wanted()?;
        // Nobody leaves for what cannot come.
        vm.evicted.check_locks()?;
        if turn.is_some() && is_long(taken) {
            // It comes again behind them.
            turn = None;
        }
        if let Some((_, since)) = &mut turn {
            if out < least {
                // However long all of it takes: it comes.
                *since = Instant::now();
                patience = eviction::patience();
            } else if since.elapsed() > TURN {
                // Others bind what is out, or wait for their turn.
                return Err(ENOMEM);
            }
        }
        least = least.min(out);
        if current!().signal_pending() {
            return Err(EINTR);
        }
        // Not for long beside an unplug that began while others had their turn.
        let bound = device::enter(dev).ok_or(ENODEV)?;
        let parent = gpu::parent(&bound);
        let brought = match &turn {
            // What was brought in may leave again before all is there: only the turn stops that.
            None if dev.pager.is_busy() || !core::mem::take(&mut is_first) => Err(ENOSPC),
            None => {
                // Who has the turn does not see what is taken here before it is in its place.
                let _under_way = UnderWay::new(dev);
                let room = |incoming: &Incoming<'_>| incoming.free_room(dev, parent);
                bring_in(dev, parent, vm, || true, room)
            }
            Some(_) => check_size(dev, parent, vm).and_then(|()| {
                let goes_on = || !is_long(taken);
                let room = |incoming: &Incoming<'_>| incoming.make_room(dev, parent, &mut patience);
                bring_in(dev, parent, vm, goes_on, room)
            }),
        };
        match (brought, &turn) {
            (Err(error), None) if error == ENOSPC => {
                // Others' turns may take long.
                drop(bound);
                // What was unmapped is not needed any more.
                dev.destroyer.settle(dev, &mut eviction::patience())?;
                turn = Some((dev.pager.take_turn(vm, &wanted)?, Instant::now()));
                taken = Instant::now();
                // Others may have taken what had come.
                (least, patience) = (usize::MAX, eviction::patience());
            }
            (Err(error), Some(_)) if error == ENOSPC && vm.evicted.wanted() >= least => {
                return Err(ENOMEM)
            }
            (Err(error), Some(_)) if error == ENOSPC => (),
            (result, _) => result?,
        }
    }
}

/// An object that is to be brought in.
struct Incoming<'a> {
    /// The object, which was out when this was made.
    bo: &'a BoRef,
    /// Its client's quota of system memory, for when it leaves VRAM again.
    quota: Arc<Quota>,
    /// The part of VRAM that it has to be in.
    part: Part,
    /// Its size, a whole number of pages.
    bytes: u64,
}

impl Incoming<'_> {
    /// Where it may be, in its order: not in VRAM if it is held out of that.
    fn attempts(&self, is_held_out: bool) -> impl Iterator<Item = Attempt> {
        let attempts = self.bo.sets().attempts();
        attempts.filter(move |attempt| attempt.segment != Segment::Vram || !is_held_out)
    }

    /// Room that is free in the first place of its order; none, and it has come to the aperture.
    /// `ENOSPC`, `ENOMEM`, `ENODEV`; `EBUSY` if it is locked and may be in VRAM alone.
    fn free_room(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
    ) -> Result<Option<Arc<VramRange>>> {
        let mut attempts = self.attempts(BoData::is_held_out(self.bo));
        match attempts.next().ok_or(EBUSY)?.segment {
            Segment::Vram => {
                let moment = &mut msecs_to_jiffies(MOMENT_MS);
                VramRange::new(dev, &self.quota, self.part, self.bytes, moment).map(Some)
            }
            _ => {
                bring_to_aperture(dev, parent, self.bo, Need::Prefers, true, &mut 0).map(|()| None)
            }
        }
    }

    /// Room in VRAM; or none, and it comes to the aperture. `ENOSPC` if none can be made; `ENOMEM`,
    /// `ENODEV`; `EBUSY` if it is locked; `EINTR` if a signal arrives.
    fn make_room(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        patience: &mut Jiffies,
    ) -> Result<Option<Arc<VramRange>>> {
        let (part, bytes) = (self.part, self.bytes);
        let is_held_out = BoData::is_held_out(self.bo);
        for Attempt { segment, need } in self.attempts(is_held_out) {
            if segment != Segment::Vram {
                match bring_to_aperture(dev, parent, self.bo, need, true, patience) {
                    Err(error) if error == ENOSPC => continue,
                    brought => return brought.map(|()| None),
                }
            }
            loop {
                let wish = Wish {
                    reuse_distance: self.bo.reuse_distance(dev),
                    ..Wish::new(part, bytes, need)
                };
                match eviction::allocate(dev, parent, &self.quota, wish, patience) {
                    Err(error) if error == ENOSPC => (),
                    found => return found.map(|(range, _)| Some(range)),
                }
                if need == Need::Prefers {
                    break;
                }
                // What might be in the aperture, too, would come back, and find this in its way.
                let is_either = self.bo.may_be_in_aperture();
                let place = eviction::Vram::own(dev, parent, part, !is_either);
                if !eviction::make_own_room(place, bytes, patience)? {
                    break;
                }
            }
        }
        Err(if is_held_out { EBUSY } else { ENOSPC })
    }
}

/// Has what `vm` needs in VRAM and is out move there, each to where `room` says, if that does not
/// have it elsewhere, as long as it `goes_on`. `ENOMEM`, `ENODEV`; `EBUSY` if some of it is locked;
/// `EINTR` if a signal arrives.
fn bring_in(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Vm,
    goes_on: impl Fn() -> bool,
    mut room: impl FnMut(&Incoming<'_>) -> Result<Option<Arc<VramRange>>>,
) -> Result {
    // What the CPU maps first: it has less room, and the rest leaves it alone where it can.
    for part in [Part::Visible, Part::Any] {
        let mut last = None;
        while let Some((bo, wanted)) = vm.evicted.next(last.as_ref()) {
            if wanted && bo::part_of(dev, bo.flags(), bo.sets()) == part {
                if !goes_on() {
                    return Ok(());
                }
                bring_one(dev, parent, vm, &bo, part, &mut room)?;
            }
            last = Some(bo);
        }
    }
    Ok(())
}

fn bring_one(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    vm: &Vm,
    bo: &BoRef,
    part: Part,
    room: impl FnOnce(&Incoming<'_>) -> Result<Option<Arc<VramRange>>>,
) -> Result {
    if bo.is_dying() {
        // Whether it is destroyed is being decided: look again.
        fsleep(Delta::from_millis(1));
        return Ok(());
    }
    let Some(quota) = bo::quota_of(bo)? else {
        return Ok(());
    };
    let incoming = Incoming {
        bo,
        quota,
        part,
        bytes: u64::try_from(bo.size())?,
    };
    let range = match room(&incoming) {
        // Unmapped meanwhile.
        Err(error) if error == ENOSPC && !vm.evicted.has(bo) => return Ok(()),
        range => match range? {
            Some(range) => range,
            None => return Ok(()),
        },
    };
    let new = Placement::Device(range.into());
    match relocate(dev, parent, bo, new, None, true, Reason::Other) {
        // Somebody else was faster, or it is to be destroyed.
        Err(error) if error == EBUSY => Ok(()),
        result => result.map(|_| bo.last_use.count(dev)),
    }
}

/// Has `bo`, which is in system memory and may be there, be in the aperture; if it may not wait,
/// and is in use, it stays. `ENOSPC` if there is no room ([`gart::map`]); `ENOMEM`, `ENODEV`;
/// `EINTR` if a signal arrives.
pub(crate) fn bring_to_aperture(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    need: Need,
    may_wait: bool,
    patience: &mut Jiffies,
) -> Result {
    let (pages, memory) = {
        let mut reserved = gem::lock_brought(&**bo)?;
        BoData::rouse(bo, &mut reserved)?;
        match gem::placement(bo, &reserved)? {
            Placement::System(pages, SystemSite::Direct(memory)) => (pages.clone(), memory.clone()),
            // Somebody else was faster.
            _ => return Ok(()),
        }
    };
    let bytes = u64::try_from(bo.size())?;
    let range = gart::map(dev, parent, &memory, bytes, need, patience)?;
    let site = SystemSite::Aperture(range);
    let new = Placement::System(pages, site);
    match relocate(dev, parent, bo, new, None, may_wait, Reason::Other) {
        Err(error) if error == EBUSY => Ok(()),
        result => {
            if result.is_ok() && BoData::is_held_out(bo) {
                // There was no room for it before: who waits for an unlock waits no longer.
                dev.pending_residency.look_at_all();
            }
            result.map(drop)
        }
    }
}

/// How many bytes an address space needs in a part of VRAM.
#[derive(Default)]
struct Needed {
    /// Bytes of objects that may be nowhere but there.
    alone: u64,
    /// Bytes of objects that may be in the aperture instead.
    either: u64,
}

impl Needed {
    fn add(&mut self, bo: &BoRef, bytes: u64) {
        let sum = match bo.may_be_in_aperture() {
            true => &mut self.either,
            false => &mut self.alone,
        };
        *sum = sum.saturating_add(bytes);
    }

    /// Whether so much VRAM and a `window` of the aperture are enough.
    fn fits(&self, vram: u64, window: u64) -> bool {
        self.alone <= vram && self.alone.saturating_add(self.either) <= vram.saturating_add(window)
    }
}

/// `ENOMEM` if what `vm` needs in VRAM does not fit there all together, nor in the aperture what
/// may be in that: nobody is to leave for that.
fn check_size(dev: &SkuaDevice, parent: &Device<Bound>, vm: &Vm) -> Result {
    let mut objects = KVVec::new();
    // Who has the map may have it for as long as a client's control group has that wait, and all
    // others wait for the turn.
    if !vm.try_collect_objects(&mut objects)? {
        return Ok(());
    }
    objects.retain(|bo| bo.needs_vram() && !bo.is_dying() && vm.device().wants(bo));
    let key = |bo: &BoRef| core::ptr::from_ref(&**bo).addr();
    objects.sort_unstable_by_key(key);
    let (mut any, mut visible, mut last) = (Needed::default(), Needed::default(), 0);
    for bo in &objects {
        // Mapped more than once.
        if core::mem::replace(&mut last, key(bo)) == key(bo) {
            continue;
        }
        let bytes = u64::try_from(bo.size())?;
        any.add(bo, bytes);
        if bo::part_of(dev, bo.flags(), bo.sets()) == Part::Visible {
            visible.add(bo, bytes);
        }
    }
    let (window, _) = dev.region_usage(REGION_APERTURE);
    for (part, needed) in [(Part::Any, any), (Part::Visible, visible)] {
        if !needed.fits(part.bytes(dev), window) {
            let bytes = needed.alone.saturating_add(needed.either);
            let place = eviction::Vram::new(dev, parent, part, None);
            let free = part.free_bytes(dev);
            eviction::tell_no_room(dev, &place, c"vram0", free, bytes, Need::Needs);
            return Err(ENOMEM);
        }
    }
    Ok(())
}
