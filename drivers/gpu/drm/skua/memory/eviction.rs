// SPDX-License-Identifier: GPL-2.0

//! Making room in VRAM: objects move to system memory ([`relocation`]), where the GPU reaches them
//! or from where they are brought back when it needs them ([`paging_in`]).
//!
//! Who leaves, and in which order, is [`policy::eviction`](crate::policy::eviction)'s to say: what
//! no client has made resident ([`residency`](super::residency)) goes first; of that, what its
//! client has [offered](super::offer), which is not copied, and then what is of the lowest
//! priority; of this, what is idle; and of these objects those that were not used for longest.
//! Here are the facts that it asks for, and what it decides is done.
//!
//! Control groups come before all that ([`dmem`]): what they protect (`min`) stays, or goes behind
//! all others (`low`); and who may have no more (`max`) makes room among what is charged for their
//! own group.

use crate::{
    ext::{
        dmem::{
            self,
            Charge,
            Evictor,
            Protection,
            Refusal,
            Region, //
        },
        fence::Fence,
        gem::{
            self,
            Placement, //
        },
        lru,
        resv::{
            self,
            Usage, //
        },
        shrinker::Shrink,
        trace, //
    },
    gpu::{
        SkuaDevice,
        SkuaDriver, //
    },
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::{
            self,
            BoData,
            BoRef,
            ContextUse,
            Memory,
            REGION_VRAM, //
        },
        clean_copy,
        gart,
        relocation::{
            self,
            relocate,
            Reason, //
        },
        uses,
        vm::for_each_user,
        vram::{
            BlockList,
            Lack,
            Part,
            VramRange, //
        }, //
    },
    policy::{
        eviction::{
            self as policy,
            Facts,
            Hold,
            Holders,
            Need,
            NextUse,
            Place,
            Uses, //
        },
        priority::{
            Level,
            Rank, //
        }, //
    },
    quota::Quota, //
};
use core::mem::replace;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
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

/// How long, in all, a client waits for room.
const PATIENCE_MS: u32 = 10_000;
/// How long a client waits that has not waited yet.
pub(crate) fn patience() -> Jiffies {
    msecs_to_jiffies(PATIENCE_MS)
}

/// How long who can do without room waits for what is about to be freed.
const MOMENT_MS: u32 = 100;
/// How long who has another way waits for what nothing uses any more.
pub(crate) fn moment() -> Jiffies {
    msecs_to_jiffies(MOMENT_MS)
}

/// Does `work`, and takes how long that was from `patience`.
pub(crate) fn spend<T>(patience: &mut Jiffies, work: impl FnOnce() -> T) -> T {
    let start = Instant::<Monotonic>::now();
    let result = work();
    let spent = u32::try_from(start.elapsed().as_millis()).unwrap_or(u32::MAX);
    *patience = patience.saturating_sub(msecs_to_jiffies(spent));
    result
}

/// Does `work`, which takes from its patience, with that of `patience` which is below `limit`.
pub(crate) fn within<T>(
    limit: Jiffies,
    patience: &mut Jiffies,
    work: impl FnOnce(&mut Jiffies) -> T,
) -> T {
    let limit = limit.min(*patience);
    let mut left = limit;
    let result = work(&mut left);
    *patience = patience.saturating_sub(limit.saturating_sub(left));
    result
}

/// How long who needs room waits before it takes the next way.
const FIRST_MS: u32 = 1000;
/// How long who needs room waits for what is about to be freed, before it has others leave, and for
/// those that were chosen, before it chooses others, too.
pub(crate) fn first() -> Jiffies {
    msecs_to_jiffies(FIRST_MS)
}

/// How often it looks whether what was being cleared is free.
const CLEAR_WAITS: u32 = 5;

/// What somebody asks for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// The part of VRAM that it has to be in.
    pub(crate) part: Part,
    /// A multiple of the page size.
    pub(crate) bytes: u64,
    /// Whether there is no other place for it.
    pub(crate) need: Need,
    /// For how many uses of any objects that was away which is to have it, if it is not new.
    pub(crate) reuse_distance: Option<u64>,
    /// Its priority, which counts if there is another place for it.
    pub(crate) level: Level,
}

impl Wish {
    /// `bytes` bytes of `part`, a multiple of the page size, for what is new.
    pub(crate) fn new(part: Part, bytes: u64, need: Need) -> Self {
        Self {
            part,
            bytes,
            need,
            reuse_distance: None,
            level: Level::Minimum,
        }
    }
}

/// Allocates VRAM as it is wished; if there is no room, some is made. Tells what of it is not
/// clean.
///
/// It is for a client with `quota`, and is charged for the running process. `ENOSPC` if what is
/// there has to stay, which is what is resident but in `need`, is protected by [who has the
/// turn](super::paging_in) or by its control group, or is in use for long; if the process' group
/// may have no more, what is charged for that; `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn allocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    wish: Wish,
    patience: &mut Jiffies,
) -> Result<(Arc<VramRange>, BlockList)> {
    let Wish {
        part,
        bytes,
        need,
        reuse_distance,
        level,
    } = wish;
    // To ask what is protected it has to stay.
    let region = dev.vram_region()?;
    let (mut is_first, mut nobody_leaves, mut waits) = (true, false, 0);
    let (mut charge, mut limit, mut making) = (None, None, None);
    let mut find = || loop {
        let ended = dev.moves.ended();
        match VramRange::try_new(dev, quota, part, bytes, &mut charge, patience) {
            Err(Lack::Room | Lack::Limit(_)) => (),
            Err(Lack::Error(error)) => return Err(error),
            Ok(found) => return Ok(found),
        }
        making.get_or_insert_with(|| MakingRoom::new(dev));
        // Perhaps there is room in what is about to be freed; that may be others', and much.
        let longest = match need {
            Need::Needs if nobody_leaves => *patience,
            Need::Needs => first(),
            _ => moment(),
        };
        within(longest, patience, |left| dev.destroyer.settle(dev, left))?;
        let lack = match VramRange::try_new(dev, quota, part, bytes, &mut charge, patience) {
            Err(Lack::Error(error)) => return Err(error),
            Err(lack) => lack,
            Ok(found) => return Ok(found),
        };
        let clear = dev.last_clear();
        if let Some(fence) = clear.filter(|fence| is_first && !fence.is_signaled()) {
            is_first = false;
            // Or in what nobody has any more, but that is still being cleared: what is copied out
            // instead is so behind that.
            within(moment(), patience, |left| {
                match finish(dev, &[fence], left) {
                    Err(error) if error == ENOSPC => Ok(()),
                    done => done,
                }
            })?;
            continue;
        }
        limit = match lack {
            Lack::Limit(pool) => Some(pool),
            _ => None,
        };
        let evictor = evictor(&region, &limit, &charge);
        let (part, missing) = match &limit {
            // A group's limit counts what it has in any part.
            Some(pool) => (Part::Any, region.excess(pool, bytes)?),
            None => (part, bytes.saturating_sub(part.free_bytes(dev))),
        };
        let place = Vram {
            reuse_distance: reuse_distance.filter(|_| dev.expects_reuse.load(Relaxed)),
            level,
            ..Vram::new(dev, parent, part, evictor)
        };
        let made = make_room(place, missing, need, patience)?;
        // What is being cleared counts as free, and is for ever when the device is lost.
        dev.check_health()?;
        if current!().signal_pending() {
            return Err(EINTR);
        }
        if made && missing > 0 {
            // Somebody else may still have a reference to a move whose fence has signalled: what it
            // left is free soon, and nobody more is to leave for that.
            within(moment(), patience, |left| dev.moves.wait(ended, left))?;
        }
        if made && (missing > 0 || *patience > 0) {
            continue;
        }
        // Or in what leaves just now, or what arrives and can leave after that.
        if need == Need::Needs && *patience > 0 {
            let others = dev.moves.wait(ended, patience)?;
            dev.check_health()?;
            if others {
                // There may always be another such move.
                *patience = patience.saturating_sub(1);
                continue;
            }
        }
        // Or in what is to be destroyed when the work before that is done; who can do without does
        // not wait for that.
        let obstacle = dev.destroyer.obstacle(part);
        if let Some(fence) = obstacle.filter(|_| need == Need::Needs && *patience > 0) {
            match fence {
                Some(fence) => wait(&fence, patience)?,
                None => *patience = patience.saturating_sub(1),
            }
            continue;
        }
        if need == Need::Needs && *patience > 0 && !replace(&mut nobody_leaves, true) {
            continue;
        }
        // Or in what nobody has any more, but that is still being cleared.
        let Some(fence) = dev.last_clear().filter(|_| waits < CLEAR_WAITS) else {
            return Err(ENOSPC);
        };
        wait(&fence, patience)?;
        waits += 1;
    };
    let found = find();
    if found.as_ref().err() == Some(&ENOSPC) {
        let place = Vram::new(dev, parent, part, evictor(&region, &limit, &charge));
        tell_no_room(dev, &place, c"vram0", part.free_bytes(dev), bytes, need);
    }
    found
}

/// Somebody makes room in VRAM, who may find some at any time.
struct MakingRoom<'a>(&'a SkuaDevice);

impl<'a> MakingRoom<'a> {
    /// Until it is dropped.
    fn new(dev: &'a SkuaDevice) -> Self {
        dev.making_room.fetch_add(1, Relaxed);
        Self(dev)
    }
}

impl Drop for MakingRoom<'_> {
    fn drop(&mut self) {
        self.0.making_room.fetch_sub(1, Relaxed);
    }
}

/// Whether somebody makes room in VRAM: what is free is not for who can do without.
pub(crate) fn is_making_room(dev: &SkuaDevice) -> bool {
    dev.making_room.load(Relaxed) != 0
}

/// For whom room is made: the group of a `limit`, or who has a `charge`.
fn evictor<'a>(
    region: &'a Region<SkuaDriver>,
    limit: &'a Option<dmem::Pool>,
    charge: &'a Option<Charge>,
) -> Option<Evictor<'a, SkuaDriver>> {
    let limit = limit.as_ref().map(Evictor::Limit);
    limit.or_else(|| {
        charge
            .as_ref()
            .map(|charge| Evictor::Charge(region, charge))
    })
}

/// Tells who traces it what holds the memory of `place`, in which no room could be made for `bytes`
/// bytes.
pub(crate) fn tell_no_room(
    dev: &SkuaDevice,
    place: &impl Place,
    name: &CStr,
    free: u64,
    bytes: u64,
    need: Need,
) {
    if !trace::wants_no_room() {
        return;
    }
    // Unless it is interrupted.
    if let Ok(holders) = Holders::of(place) {
        let [pinned, turn, group, resident, busy, idle] = holders.sums();
        let held = [free, pinned, turn, group, resident, busy, idle];
        trace::no_room(dev, name, bytes, need == Need::Needs, &held);
    }
}

/// Waits for `fence`, as long as there is patience, and takes from that. `ENOSPC` if none is left.
pub(crate) fn wait(fence: &Fence, patience: &mut Jiffies) -> Result {
    match fence.wait_timeout(*patience) {
        Ok(left) => *patience = left,
        Err(error) if error == ETIME => {
            *patience = 0;
            return Err(ENOSPC);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A part of VRAM, for who needs room there.
pub(crate) struct Vram<'a> {
    /// The GPU whose VRAM it is.
    dev: &'a SkuaDevice,
    /// The PCI device of `dev`, which stays bound meanwhile.
    parent: &'a Device<Bound>,
    /// What of VRAM will do.
    part: Part,
    /// For whom, as far as control groups are concerned; none if that does not matter.
    evictor: Option<Evictor<'a, SkuaDriver>>,
    /// Whether what whose turn it is needs may leave for the aperture, if it may be there.
    is_aperture_other: bool,
    /// For how many uses what needs it was away, if it is not new.
    reuse_distance: Option<u64>,
    /// The priority of what needs room: what is more important stays.
    level: Level,
    /// Why others leave.
    reason: Reason<'a>,
    /// Fences of the moves under way that make this room, in the order begun.
    moves: KVVec<Fence>,
    /// How many of these are [context allocations](super::save_areas).
    own: usize,
}

impl<'a> Vram<'a> {
    /// For who has the turn, and needs room for what may be in the aperture, or not.
    pub(crate) fn own(
        dev: &'a SkuaDevice,
        parent: &'a Device<Bound>,
        part: Part,
        is_aperture_other: bool,
    ) -> Self {
        Self {
            is_aperture_other,
            ..Self::new(dev, parent, part, None)
        }
    }

    /// For who empties it for another reason than that room is needed.
    pub(crate) fn whole(dev: &'a SkuaDevice, parent: &'a Device<Bound>) -> Self {
        Self {
            reason: Reason::Other,
            ..Self::new(dev, parent, Part::Any, None)
        }
    }

    /// Nobody has left yet.
    pub(crate) fn new(
        dev: &'a SkuaDevice,
        parent: &'a Device<Bound>,
        part: Part,
        evictor: Option<Evictor<'a, SkuaDriver>>,
    ) -> Self {
        Self {
            dev,
            parent,
            part,
            evictor,
            is_aperture_other: true,
            reuse_distance: None,
            level: Level::Minimum,
            reason: Reason::NoRoom,
            moves: KVVec::new(),
            own: 0,
        }
    }

    /// What keeps `bo` in VRAM.
    fn hold(&self, bo: &BoRef) -> Hold {
        if bo.region() != REGION_VRAM || bo.is_arriving() || bo.is_dying() {
            return Hold::Pinned;
        }
        if self.dev.pager.protects(bo) {
            // What the CPU does not map may be in the way of what it does.
            let part = bo::part_of(self.dev, bo.flags(), bo.sets());
            let there = self.part == Part::Visible && part == Part::Any;
            return Hold::Turn {
                elsewhere: there || (self.is_aperture_other && bo.may_be_in_aperture()),
            };
        }
        let Some(evictor) = self.evictor else {
            return Hold::Nothing;
        };
        let Some(Memory::Vram(range)) = bo.sites.memory() else {
            return Hold::Pinned;
        };
        match range.charge().protection(evictor) {
            Protection::Nothing => Hold::Nothing,
            Protection::Low => Hold::Low,
            Protection::Min => Hold::Min,
        }
    }
}

impl<'a> Place for Vram<'a> {
    type Object = BoRef;
    type Error = Error;
    type Heap = KernelHeap;
    type Walk = lru::Walk<'a, BoData>;

    fn walk(&self, rank: Rank) -> Self::Walk {
        lru::walk(self.dev, bo::vram_rank(rank))
    }

    fn walk_back(&self, rank: Rank, many: usize) -> Self::Walk {
        // CAST: few.
        lru::walk_back(self.dev, bo::vram_rank(rank), many as u64)
    }

    fn level(&self) -> Level {
        self.level
    }

    fn used_since(&self, bo: &BoRef) -> Option<u64> {
        used_since(self.dev, bo)
    }

    fn renew(&self, bo: &BoRef) {
        renew(self.dev, bo);
    }

    fn next_use(&self, bo: &BoRef) -> NextUse {
        next_use(self.dev, bo, self.reuse_distance)
    }

    fn facts(&self, bo: &BoRef) -> Result<Facts> {
        if current!().signal_pending() {
            return Err(EINTR);
        }
        // What is chosen by age alone costs the same.
        let is_asked = self.dev.expects_reuse.load(Relaxed);
        Ok(Facts {
            bytes: bo.sites.bytes_in(self.part),
            copied: match is_asked && !bo.is_clean() && !bo.is_offered() {
                // CAST: `usize` has 64 bits.
                true => bo.size() as u64,
                false => 0,
            },
            hold: self.hold(bo),
            is_resident: bo.is_resident(),
            can_be_elsewhere: !bo.needs_vram(),
        })
    }

    fn is_idle(&self, bo: &BoRef) -> bool {
        is_idle(self.dev, bo)
    }

    fn leave(&mut self, bo: &BoRef, bytes: u64, may_wait: bool) -> Result<Option<u64>> {
        let victim = match may_wait {
            true => Victim::Any,
            false => Victim::Idle,
        };
        note_use_by_work(self.dev, bo);
        let moves = evict(self.dev, self.parent, bo, victim, self.reason);
        let leaves = left(moves, &mut self.moves)?;
        if leaves && bo.saves_context() {
            // No overflow: as many moves are in memory.
            self.own = self.own.saturating_add(1);
        }
        Ok(leaves.then_some(bytes))
    }
}

/// Adds the fence of an object that leaves to `moves`, if it does. `ENOMEM`, `ENODEV`; `EINTR` if a
/// signal arrives.
pub(crate) fn left(leaves: Result<Fence>, moves: &mut KVVec<Fence>) -> Result<bool> {
    match leaves {
        Ok(fence) => {
            moves.push(fence, client_flags())?;
            Ok(true)
        }
        Err(error) if error == EINTR || error == ENODEV => Err(error),
        Err(_) => Ok(false),
    }
}

/// Waits until `moves`, which make room for `need`, are done and what they left is free, as long as
/// there is patience. Whether there were any.
pub(crate) fn wait_for_all(
    dev: &SkuaDevice,
    moves: &[Fence],
    need: Need,
    patience: &mut Jiffies,
) -> Result<bool> {
    // Who needs the room takes what comes first: those chosen may be in use for long, others not.
    let limit = match need {
        Need::Needs => first().min(*patience),
        Need::Prefers | Need::Own => *patience,
    };
    let is_part = limit < *patience;
    within(limit, patience, |left| match finish(dev, moves, left) {
        Err(error) if error == ENOSPC && is_part => Ok(()),
        result => result,
    })?;
    Ok(!moves.is_empty())
}

/// Moves objects out of `place` that have the `missing` bytes there, if there are such, and waits
/// until these are free. Whether there may be more room now.
fn make_room(
    mut place: Vram<'_>,
    missing: u64,
    need: Need,
    patience: &mut Jiffies,
) -> Result<bool> {
    if missing == 0 {
        // Somebody was faster.
        return Ok(true);
    }
    policy::make_room(&mut place, need, missing)?;
    wait_for_all(place.dev, &place.moves, need, patience)
}

/// Has `bytes` bytes of VRAM that are charged for a control group leave that: it may not have them
/// any more. `ENOSPC` if none can, or leaves just now; `ENOMEM`, `ENODEV`, `EIO`; `EINTR` if a
/// signal arrives.
pub(crate) fn reclaim(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    pool: &dmem::Pool,
    bytes: u64,
) -> Result {
    let mut patience = patience();
    let mut place = Vram::new(dev, parent, Part::Any, Some(Evictor::Limit(pool)));
    policy::leave(&mut place, Need::Needs, bytes)?;
    if wait_for_all(dev, &place.moves, Need::Needs, &mut patience)? {
        return Ok(());
    }
    // With the device lost no move ends.
    dev.check_health()?;
    let moving = moving(dev, pool)?.ok_or(ENOSPC)?;
    let usage = match moving.context_of() {
        // As moves of such an object are filed.
        Some(ContextUse::Engine) => Usage::Bookkeep,
        _ => Usage::Kernel,
    };
    let waited = resv::wait(&*moving, usage, patience);
    dev.reap();
    match waited {
        Err(error) if error == ETIME => Err(ENOSPC),
        waited => waited.map(drop),
    }
}

/// An object that moves to VRAM or out of it just now and is charged for `pool` there. `EINTR` if a
/// signal arrives.
fn moving(dev: &SkuaDevice, pool: &dmem::Pool) -> Result<Option<BoRef>> {
    let evictor = Evictor::<SkuaDriver>::Limit(pool);
    let there = Rank::ALL.into_iter().map(bo::vram_rank);
    let segment = Level::ALL.into_iter().map(gart::rank);
    let awake = BoData::AWAKE.iter().copied();
    let others = Iterator::chain(Iterator::chain(segment, awake), [BoData::RESTING]);
    let ranks = Iterator::chain(there, others);
    for bo in ranks.flat_map(|rank| lru::walk::<BoData>(dev, rank)) {
        let range = match bo.sites.memory() {
            Some(Memory::Vram(range)) if bo.region() != REGION_VRAM => range,
            _ if bo.is_arriving() => match gem::placement(&bo, &resv::lock(&*bo)?)? {
                Placement::Device(site) => site.range.clone(),
                _ => continue,
            },
            _ => continue,
        };
        if range.charge().protection(evictor) != Protection::Min {
            return Ok(Some(bo));
        }
    }
    Ok(None)
}

/// Has what is in `place` and could be elsewhere leave it for `bytes` more, though whose turn it is
/// needs it. As [`make_room`].
pub(crate) fn make_own_room(place: Vram<'_>, bytes: u64, patience: &mut Jiffies) -> Result<bool> {
    if matches!(
        place.dev.vram_region()?.charge(bytes),
        Err(Refusal::Limit(_))
    ) {
        // It is not room that is missing.
        return Ok(false);
    }
    let missing = bytes.saturating_sub(place.part.free_bytes(place.dev));
    make_room(place, missing, Need::Own, patience)
}

/// Waits until `moves` are done and what they left is free, as long as there is patience.
pub(crate) fn finish(dev: &SkuaDevice, moves: &[Fence], patience: &mut Jiffies) -> Result {
    for fence in moves {
        wait(fence, patience)?;
    }
    if !moves.is_empty() {
        spend(patience, || dev.reap());
    }
    Ok(())
}

/// Has `bo`, which may be there, leave VRAM for the first of its eviction set that has room, and
/// waits until it has: the CPU or another device is to use it. It stays if somebody else moves it,
/// or several clients have it, and it is in use again. `ENOMEM`, `ENODEV`; `ENOSPC` if it is in use
/// for long; `EINTR` if a signal arrives.
pub(crate) fn move_out(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    patience: &mut Jiffies,
) -> Result {
    while bo.is_arriving() {
        // What it left may be kept, as long as the device is not known to be quiet.
        dev.wait_for_resets()?;
        dev.check_health()?;
        if current!().signal_pending() {
            return Err(EINTR);
        }
        bo::wait_a_moment(bo, patience)?;
        *patience = patience.saturating_sub(1);
        spend(patience, || dev.reap());
    }
    let victim = match is_several_clients(dev, bo) {
        true => {
            // What the others submit is not to wait for a move that waits for one's work.
            wait(&relocation::work(dev, bo)?, patience)?;
            Victim::Idle
        }
        false => Victim::Any,
    };
    match evict(dev, parent, bo, victim, Reason::Other) {
        Ok(fence) => wait(&fence, patience),
        // Somebody else has moved it, and who maps it waits for that; or is about to; or uses it.
        Err(error) if error == EBUSY => {
            if bo.region() == REGION_VRAM {
                fsleep(Delta::from_millis(1));
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// How an object may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// Only if nobody works with it.
    Idle,
    /// Even if somebody works with it.
    Any,
}

/// Whether address spaces of several clients have `bo`, as it looks without any lock.
fn is_several_clients(dev: &SkuaDevice, bo: &BoRef) -> bool {
    let mut one = None;
    let others = for_each_user(dev, bo, |vm| {
        let client = vm.client().id();
        let is_it = *one.get_or_insert(client) == client;
        is_it.then_some(()).ok_or(EBUSY)
    });
    others.is_err()
}

/// Whether nobody works with `bo`, as it looks without any lock.
pub(crate) fn is_idle(dev: &SkuaDevice, bo: &BoRef) -> bool {
    let busy_user = for_each_user(dev, bo, |vm| {
        let is_idle = || vm.reservation().is_idle(Usage::Bookkeep);
        let is_over = vm.device().has_evicted(bo) || is_idle();
        is_over.then_some(()).ok_or(EBUSY)
    });
    busy_user.is_ok() && resv::is_idle(&**bo, Usage::Bookkeep)
}

/// When `bo` was used last, also by work of address spaces that needs it to be where it is to be.
fn last_use(dev: &SkuaDevice, bo: &BoRef) -> Uses {
    let mut last = bo.last_use.get();
    let all = for_each_user(dev, bo, |vm| {
        if vm.device().wants(bo) {
            last = last.with(vm.last_use.get());
        }
        Ok(())
    });
    crate::warn_on_once!(all.is_err());
    last
}

/// As [`Place::used_since`].
pub(crate) fn used_since(dev: &SkuaDevice, bo: &BoRef) -> Option<u64> {
    let last = last_use(dev, bo);
    let is_since = bo.last_use.get().is_before(last);
    is_since.then(|| last.age(uses::now(dev)))
}

/// Has `bo` know when work used it last, where nobody can ask its address spaces any more, or not
/// for its place.
fn note_use_by_work(dev: &SkuaDevice, bo: &BoRef) {
    bo.last_use.set(bo.last_use.get().until(last_use(dev, bo)));
}

/// As [`Place::renew`]; not while somebody has its reservation locked.
pub(crate) fn renew(dev: &SkuaDevice, bo: &BoRef) {
    if let Some(_reserved) = resv::trylock(&**bo) {
        note_use_by_work(dev, bo);
        bo::renew(bo);
    }
}

/// When `bo` is used again ([`Uses::next_use`]).
pub(crate) fn next_use(dev: &SkuaDevice, bo: &BoRef, reuse_distance: Option<u64>) -> NextUse {
    last_use(dev, bo).next_use(uses::now(dev), reuse_distance)
}

/// Has `bo` move from VRAM to system memory, or to nowhere if it is offered; the fence of that.
///
/// `EBUSY` if it is not in VRAM, or arriving, pinned, about to be destroyed, no `victim`, or just
/// being moved by somebody else; `ENOMEM`; `ENODEV`; `EINTR` if a signal arrives. Nothing has
/// changed then.
fn evict(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    victim: Victim,
    reason: Reason<'_>,
) -> Result<Fence> {
    let bytes = u64::try_from(bo.size())?;
    let Some(Memory::Vram(range)) = bo.sites.memory() else {
        return Err(EBUSY);
    };
    let (from, quota) = (range.number(), range.quota().clone());
    // When the move is over, the memory is free.
    drop(range);
    // In this order: the pages that it had before it came are discarded when it has arrived. And
    // before memory is allocated for it.
    if bo.region() != REGION_VRAM || bo.is_arriving() || bo.is_dying() {
        return Err(EBUSY);
    }
    let may_wait = victim != Victim::Idle;
    if let Some((pages, memory)) = clean_copy::find(bo, may_wait)? {
        let new = Placement::System(pages, gart::site(dev, parent, bo, memory)?);
        return relocate(dev, parent, bo, new, Some(from), may_wait, reason);
    }
    // No quota keeps it in VRAM, whoever has used that up. It is no more than VRAM has: where a
    // quota is exceeded nothing new comes there.
    let share = quota.charge(bytes);
    let new = if bo.is_offered() {
        Placement::Resting(Arc::new(share, GFP_KERNEL_ACCOUNT)?)
    } else {
        let (pages, system) = bo::system_memory(dev, parent, bo, share)?;
        Placement::System(pages, system)
    };
    relocate(dev, parent, bo, new, Some(from), may_wait, reason)
}

/// Where objects are that the driver has leave.
pub(crate) trait Segment: Place<Error = Error> {
    /// Fences of the moves under way that make this room, in the order begun.
    fn moves(&self) -> &[Fence];

    /// How many of them are the driver's own.
    fn own(&self) -> usize {
        0
    }
}

impl Segment for Vram<'_> {
    fn moves(&self) -> &[Fence] {
        &self.moves
    }

    fn own(&self) -> usize {
        self.own
    }
}

/// Has what nobody works with, and may leave, begin to leave VRAM and the aperture. For tests,
/// where it may be noticed: whatever fails, stays.
pub(crate) fn evict_idle(dev: &SkuaDevice, parent: &Device<Bound>) {
    let place = Vram::whole(dev, parent);
    for bo in Rank::ALL.into_iter().flat_map(|rank| place.walk(rank)) {
        if place.hold(&bo) == Hold::Nothing && is_idle(dev, &bo) {
            drop(evict(dev, parent, &bo, Victim::Idle, place.reason));
        }
    }
    gart::evict_idle(dev, parent);
}

/// Has everything leave `place` that may just now, and waits until it has; how many objects of
/// clients did. For debugfs.
pub(crate) fn evict_all(dev: &SkuaDevice, mut place: impl Segment) -> Result<usize> {
    // What has arrived just now may leave again.
    dev.reap();
    policy::leave(&mut place, Need::Needs, u64::MAX)?;
    finish(dev, place.moves(), &mut patience())?;
    Ok(place.moves().len().saturating_sub(place.own()))
}
