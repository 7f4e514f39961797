// SPDX-License-Identifier: GPL-2.0

//! Making room in VRAM: objects move to system memory ([`relocation`]), where the GPU reaches them
//! or from where they are brought back when it needs them ([`paging_in`]).
//!
//! Objects that no client has made resident ([`residency`]) go first; of them, those of the lowest
//! priority; of these, those that are idle, and of these, those that were not used for longest.
//!
//! Control groups come before all that ([`dmem`]): what they protect (`min`) stays, or goes behind
//! all others (`low`); and who may have no more (`max`) makes room among what is charged for their
//! own group.

use crate::{
    driver::SkuaDriver,
    ext::{
        dmem::{
            self,
            Evictor,
            Protection,
            Refusal, //
        },
        fence::Fence,
        gem::Placement,
        lru,
        resv::{
            self,
            Usage, //
        }, //
    },
    gpu::SkuaDevice,
    memory::{
        bo::{
            self,
            BoData,
            BoRef,
            Memory,
            REGION_VRAM, //
        },
        relocation::relocate,
        vm::for_each_user,
        vram::{
            Lack,
            Part,
            VramRange, //
        }, //
    },
    policy::{
        buddy::PAGE_BYTES,
        priority::Level, //
    },
    quota::Quota,
    reaper, //
};
use core::cell::Cell;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    drm::gem::BaseObject,
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};

/// How long, in all, a client waits for room.
const PATIENCE_MS: u32 = 10_000;
/// How long a client waits that has not waited yet.
pub(crate) fn patience() -> Jiffies {
    msecs_to_jiffies(PATIENCE_MS)
}

/// How long who needs room waits for those that were chosen to leave, before it chooses others,
/// too.
const FIRST_MS: u32 = 1000;

/// In how many steps, at most, a control group's memory leaves for an object.
const LIMIT_STEPS: u64 = 8;

/// How often it looks whether what was being cleared is free.
const CLEAR_WAITS: u32 = 5;

/// Allocates `bytes` bytes of a `part` of VRAM, a multiple of the page size, not cleared yet; if
/// there is no room, some is made.
///
/// It is for a client with `quota`, and is charged for the running process. `ENOSPC` if what is there
/// has to stay, which is what is resident but in `need`, is protected by [who has the
/// turn](super::paging_in) or by its control group, or is in use for long; if the process' group may
/// have no more, what is charged for that; `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn allocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    part: Part,
    bytes: u64,
    need: bool,
    patience: &mut Jiffies,
) -> Result<Arc<VramRange>> {
    // To ask what is protected it has to stay.
    let region = dev.vram_region()?;
    let mut waits = 0;
    let mut charge = None;
    loop {
        let over = dev.moves.over();
        match VramRange::try_new(dev, quota, part, bytes, &mut charge) {
            Err(Lack::Room | Lack::Limit(_)) => (),
            Err(Lack::Error(error)) => return Err(error),
            Ok(range) => return Ok(range),
        }
        // Perhaps there is room in what is about to be freed.
        reaper::flush();
        let lack = match VramRange::try_new(dev, quota, part, bytes, &mut charge) {
            Err(Lack::Error(error)) => return Err(error),
            Err(lack) => lack,
            Ok(range) => return Ok(range),
        };
        let made = match (&lack, &charge) {
            (Lack::Limit(pool), _) => {
                // How much too much it is nobody says: a part at a time.
                let some = (bytes / LIMIT_STEPS).max(PAGE_BYTES);
                let evictor = Some(Evictor::Limit(pool));
                let leave = Leave::new(victims(need), need, evictor);
                leave_group(dev, parent, some, &leave, patience)?
            }
            (_, charge) => {
                let evictor = charge.as_ref().map(|it| Evictor::Charge(&region, it));
                let leave = Leave::new(victims(need), need, evictor);
                make_room(dev, parent, part, bytes, &leave, patience)?
            }
        };
        if made {
            continue;
        }
        // Or in what leaves just now, or what arrives and can leave after that.
        if need && *patience > 0 {
            let others = dev.moves.wait(over, patience)?;
            dev.check_health()?;
            if others {
                // They may never end to come.
                *patience = patience.saturating_sub(1);
                continue;
            }
        }
        // Or in what is to be destroyed when the work before that is done; who can do without does
        // not wait for that.
        if let Some(fence) = dev.destroyer.obstacle(part).filter(|_| need) {
            wait(&fence, patience)?;
            continue;
        }
        // Or in what nobody has any more, but that is still being cleared.
        let Some(fence) = dev.last_clear().filter(|_| waits < CLEAR_WAITS) else {
            return Err(ENOSPC);
        };
        wait(&fence, patience)?;
        waits += 1;
    }
}

/// Waits for `fence`, as long as there is patience, and takes from that. `ENOSPC` if none is left.
fn wait(fence: &Fence, patience: &mut Jiffies) -> Result {
    match fence.wait_timeout(*patience) {
        Ok(left) => *patience = left,
        Err(error) if error == ETIME => return Err(ENOSPC),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Which objects leave VRAM, and in which order.
struct Leave<'a> {
    /// Those of a group level by level, group by group.
    groups: &'a [&'a [Victim]],
    /// Whether those go, too, behind all others, that are protected while there are others.
    need: bool,
    /// For whom, as far as control groups are concerned; none if that does not matter.
    evictor: Option<Evictor<'a, SkuaDriver>>,
    /// Whether one has stayed that goes behind all others.
    has_low: Cell<bool>,
}

impl<'a> Leave<'a> {
    fn new(
        groups: &'a [&'a [Victim]],
        need: bool,
        evictor: Option<Evictor<'a, SkuaDriver>>,
    ) -> Self {
        Self {
            groups,
            need,
            evictor,
            has_low: Cell::new(false),
        }
    }

    /// Whether the control group that is charged for `bo`, which is in VRAM, lets it go, in the
    /// first turn or the `last`.
    fn lets_go(&self, bo: &BoRef, last: bool) -> bool {
        let Some(evictor) = self.evictor else {
            return true;
        };
        let Some(Memory::Vram(range)) = bo.sites.memory() else {
            return false;
        };
        match range.charge().protection(evictor) {
            Protection::Nothing => true,
            Protection::Low => {
                self.has_low.set(true);
                last
            }
            Protection::Min => false,
        }
    }

    /// Has objects in a `part` of VRAM leave it, until there are `missing` bytes less; their fences.
    fn begin(
        &self,
        dev: &SkuaDevice,
        parent: &Device<Bound>,
        part: Part,
        missing: u64,
    ) -> Result<KVVec<Fence>> {
        let mut leaving = Leaving::new(missing);
        for last in [false, true] {
            if last && !(self.need && self.has_low.get()) {
                break;
            }
            for victims in self.groups {
                for level in Level::ALL {
                    for victim in *victims {
                        let lets_go = |bo: &BoRef| self.lets_go(bo, last);
                        sweep(dev, parent, part, level, *victim, lets_go, &mut leaving)?;
                    }
                }
            }
        }
        Ok(leaving.moves)
    }

    /// Waits until `moves` are done and what they left is free, as long as there is patience. Whether
    /// there were any.
    fn finish(&self, moves: &[Fence], patience: &mut Jiffies) -> Result<bool> {
        // Who needs the room takes what comes first: those chosen may be in use for long, others
        // not.
        let limit = match self.groups.contains(&&[Victim::Any][..]) {
            true => msecs_to_jiffies(FIRST_MS).min(*patience),
            false => *patience,
        };
        let mut left = limit;
        match finish(moves, &mut left) {
            Err(error) if error == ENOSPC && limit < *patience => left = 0,
            result => result?,
        }
        *patience = patience.saturating_sub(limit.saturating_sub(left));
        Ok(!moves.is_empty())
    }
}

/// Moves objects out of a `part` of VRAM, until there is room for `bytes` more, and waits until it is
/// there. Whether there may be more room now.
fn make_room(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    bytes: u64,
    leave: &Leave<'_>,
    patience: &mut Jiffies,
) -> Result<bool> {
    let missing = bytes.saturating_sub(part.free_bytes(dev));
    if missing == 0 {
        // Else what is free may be in too small pieces.
        return Ok(part.granule(dev).0 == 1);
    }
    let pages = |level: Level| lru::pages::<BoData>(dev, level as u8);
    let evictable = Level::ALL
        .into_iter()
        .map(pages)
        .fold(0, u64::saturating_add)
        .saturating_mul(PAGE_BYTES);
    if evictable < missing || part.bytes(dev) < bytes {
        // Nobody is to lose their place in vain.
        return Ok(false);
    }
    let moves = leave.begin(dev, parent, part, missing)?;
    leave.finish(&moves, patience)
}

/// Moves objects out of VRAM that are charged for a control group, which is `leave`'s evictor, until
/// that has `bytes` bytes less, and waits until they are free. Whether it may have less now.
fn leave_group(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bytes: u64,
    leave: &Leave<'_>,
    patience: &mut Jiffies,
) -> Result<bool> {
    let moves = leave.begin(dev, parent, Part::Any, bytes)?;
    leave.finish(&moves, patience)
}

/// Has `bytes` bytes of VRAM that are charged for a control group leave that: it may not have them
/// any more. `ENOSPC` if none can; `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn reclaim(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    pool: &dmem::Pool,
    bytes: u64,
) -> Result {
    let over = dev.moves.over();
    let patience = &mut patience();
    let evictor = Some(Evictor::Limit(pool));
    let leave = Leave::new(victims(true), true, evictor);
    let mut less = leave_group(dev, parent, bytes, &leave, patience)?;
    if !less {
        // Perhaps it leaves just now.
        less = dev.moves.wait(over, patience)?;
        reaper::flush();
    }
    less.then_some(()).ok_or(ENOSPC)
}

/// Has what is in a `part` of VRAM and could be elsewhere there leave it for `bytes` more, though
/// whose turn it is needs it. As [`make_room`].
pub(crate) fn make_own_room(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    bytes: u64,
    patience: &mut Jiffies,
) -> Result<bool> {
    if matches!(dev.vram_region()?.charge(bytes), Err(Refusal::Limit(_))) {
        // It is not room that is missing.
        return Ok(false);
    }
    let leave = Leave::new(&[&[Victim::Own]], true, None);
    make_room(dev, parent, part, bytes, &leave, patience)
}

/// What is on its way out of VRAM.
struct Leaving {
    /// How many bytes more are to leave.
    missing: u64,
    /// Of the objects that do.
    moves: KVVec<Fence>,
}

impl Leaving {
    fn new(missing: u64) -> Self {
        Self {
            missing,
            moves: KVVec::new(),
        }
    }
}

/// Has objects of `level` that are in `part` of VRAM, are `victim`s, and that somebody `lets_go` move,
/// as many as it takes. `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
fn sweep(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    level: Level,
    victim: Victim,
    lets_go: impl Fn(&BoRef) -> bool,
    leaving: &mut Leaving,
) -> Result {
    let mut skipped: Option<BoRef> = None;
    // Others change the list, too.
    for _ in 0..lru::pages::<BoData>(dev, level as u8) {
        if leaving.missing == 0 {
            // Who is asked for counts as used.
            break;
        }
        if current!().signal_pending() {
            return Err(EINTR);
        }
        let Some(bo) = lru::next::<BoData>(dev, level as u8) else {
            break;
        };
        match &skipped {
            // All were looked at.
            Some(first) if core::ptr::eq(&**first, &*bo) => break,
            // It is not in the list any more.
            Some(first) if first.region() != REGION_VRAM || first.level() != level as u8 => {
                skipped = None;
            }
            _ => (),
        }
        if !bo.sites.touches(part) || !victim.may_be(dev, &bo) || !lets_go(&bo) {
            skipped.get_or_insert(bo);
            continue;
        }
        match evict(dev, parent, &bo, victim) {
            Ok(fence) => {
                leaving.moves.push(fence, GFP_KERNEL)?;
                let bytes = u64::try_from(bo.size())?;
                leaving.missing = leaving.missing.saturating_sub(bytes);
            }
            Err(error) if error == EINTR || error == ENODEV => return Err(error),
            Err(_) => _ = skipped.get_or_insert(bo),
        }
    }
    Ok(())
}

/// Waits until `moves` are done and what they left is free, as long as there is patience.
pub(crate) fn finish(moves: &[Fence], patience: &mut Jiffies) -> Result {
    for fence in moves {
        wait(fence, patience)?;
    }
    reaper::flush();
    Ok(())
}

/// Has `bo`, which may be there, move to system memory, and waits until it is there: another device
/// is to use it. `ENOMEM`, `ENODEV`; `ENOSPC` if it is in use for long; `EINTR` if a signal arrives.
pub(crate) fn move_out(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    bo: &BoRef,
    patience: &mut Jiffies,
) -> Result {
    while bo.is_arriving() {
        // What it left may be kept, as long as the device is not known to be quiet.
        dev.check_health()?;
        if current!().signal_pending() {
            return Err(EINTR);
        }
        *patience = match resv::wait(&**bo, Usage::Kernel, *patience) {
            Err(error) if error == ETIME => return Err(ENOSPC),
            left => left?,
        };
        reaper::flush();
    }
    match evict(dev, parent, bo, Victim::Attached) {
        Ok(fence) => wait(&fence, patience),
        // Somebody else has moved it; who maps it waits for that.
        Err(error) if error == EBUSY => Ok(()),
        Err(error) => Err(error),
    }
}

/// Which objects may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One that nobody is working with.
    Idle,
    /// Any that is resident for nobody.
    Unwanted,
    /// Any.
    Any,
    /// One that is needed by whose turn it is to bring in what they need, but not in the part that
    /// the CPU sees.
    Own,
    /// This one, for another device that is to use it.
    Attached,
}

impl Victim {
    /// Whether `bo` can be such a one, whoever works with it.
    fn may_be(self, dev: &SkuaDevice, bo: &BoRef) -> bool {
        let protected = dev.pager.protects(bo);
        match self {
            Self::Idle | Self::Unwanted => !protected && !bo.is_resident(),
            Self::Any | Self::Attached => !protected,
            Self::Own => protected && bo::part_of(dev, bo.flags(), bo.placements()) == Part::Any,
        }
    }
}

/// Who leaves for a client, in this order, if it has `need` of the room or merely prefers it; those
/// of a group level by level. Of a level, what is idle goes first: it can go at once.
fn victims(need: bool) -> &'static [&'static [Victim]] {
    match need {
        true => &[&[Victim::Idle, Victim::Unwanted], &[Victim::Any]],
        false => &[&[Victim::Idle, Victim::Unwanted]],
    }
}

/// Whether nobody works with `bo`, as it looks without any lock.
fn is_idle(dev: &SkuaDevice, bo: &BoRef) -> bool {
    let busy_user = for_each_user(dev, bo, |vm| {
        match vm.reservation().is_idle(Usage::Bookkeep) {
            true => Ok(()),
            false => Err(EBUSY),
        }
    });
    busy_user.is_ok() && resv::is_idle(&**bo, Usage::Bookkeep)
}

/// Has `bo` move from VRAM to system memory; the fence of that.
///
/// `EBUSY` if it is not in VRAM, or arriving, pinned, about to be destroyed, or no `victim`;
/// `ENOMEM`, also if all clients together, or of an attached one its own, have too much system
/// memory; `ENODEV`; `EINTR` if a signal arrives. Nothing has changed then.
fn evict(dev: &SkuaDevice, parent: &Device<Bound>, bo: &BoRef, victim: Victim) -> Result<Fence> {
    // Not before it is worth the memory.
    if bo.region() != REGION_VRAM
        || bo.is_arriving()
        || bo.is_doomed()
        || (victim == Victim::Idle && !is_idle(dev, bo))
    {
        return Err(EBUSY);
    }
    let bytes = u64::try_from(bo.size())?;
    let Some(Memory::Vram(range)) = bo.sites.memory() else {
        return Err(EBUSY);
    };
    let quota = range.quota().clone();
    // When the move is over, the memory is free.
    drop(range);
    let own = match victim {
        Victim::Attached => quota.take(bytes).ok_or(ENOMEM)?,
        // The client did not ask for it: its own quota does not keep it in VRAM.
        _ => quota.charge(bytes),
    };
    let shares = [own, dev.system.take(bytes).ok_or(ENOMEM)?];
    let (pages, system) = bo::system_memory(dev, parent, bo, shares)?;
    let new = Placement::System(pages, system);
    relocate(dev, parent, bo, new, victim != Victim::Idle)
}

/// Has everything move out of VRAM that may just now, and waits until it has; how many objects did.
/// For debugfs.
pub(crate) fn evict_all(dev: &SkuaDevice, parent: &Device<Bound>) -> Result<usize> {
    // What has arrived just now may leave again.
    reaper::flush();
    let mut leaving = Leaving::new(u64::MAX);
    for level in Level::ALL {
        let any = Victim::Any;
        sweep(dev, parent, Part::Any, level, any, |_| true, &mut leaving)?;
    }
    finish(&leaving.moves, &mut patience())?;
    Ok(leaving.moves.len())
}
