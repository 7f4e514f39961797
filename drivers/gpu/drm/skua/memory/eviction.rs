// SPDX-License-Identifier: GPL-2.0

//! Making room in VRAM: objects move to system memory ([`relocation`]), where the GPU reaches them
//! or from where they are brought back when it needs them ([`paging_in`]).
//!
//! Objects that no client has made resident ([`residency`]) go first; of them, those of the lowest
//! priority; of these, those that are idle, and of these, those that were not used for longest.

use crate::{
    ext::{
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

/// How often it looks whether what was being cleared is free.
const CLEAR_WAITS: u32 = 5;

/// Allocates `bytes` bytes of a `part` of VRAM, a multiple of the page size, not cleared yet; if
/// there is no room, some is made.
///
/// It is for a client with `quota`. `ENOSPC` if what is there has to stay, which is what is resident
/// but in `need`, is protected by [who has the turn](super::paging_in), or is in use for long;
/// `ENOMEM`, `ENODEV`; `EINTR` if a signal arrives.
pub(crate) fn allocate(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    quota: &Arc<Quota>,
    part: Part,
    bytes: u64,
    need: bool,
    patience: &mut Jiffies,
) -> Result<Arc<VramRange>> {
    let mut waits = 0;
    loop {
        let over = dev.moves.over();
        match VramRange::new(dev, quota, part, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        // Perhaps there is room in what is about to be freed.
        reaper::flush();
        match VramRange::new(dev, quota, part, bytes) {
            Err(error) if error == ENOSPC => (),
            result => return result,
        }
        if make_room(dev, parent, part, bytes, victims(need), patience)? {
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

/// Moves objects out of a `part` of VRAM, until there is room for `bytes` more, and waits until it is
/// there. Whether there may be more room now.
fn make_room(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    bytes: u64,
    groups: &[&[Victim]],
    patience: &mut Jiffies,
) -> Result<bool> {
    let mut missing = bytes.saturating_sub(part.free_bytes(dev));
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
    let mut moves = KVVec::new();
    for victims in groups {
        for level in Level::ALL {
            for victim in *victims {
                missing = sweep(dev, parent, part, level, *victim, missing, &mut moves)?;
            }
        }
    }
    // Who needs the room takes what comes first: those chosen may be in use for long, others not.
    let limit = match groups.contains(&&[Victim::Any][..]) {
        true => msecs_to_jiffies(FIRST_MS).min(*patience),
        false => *patience,
    };
    let mut left = limit;
    match finish(&moves, &mut left) {
        Err(error) if error == ENOSPC && limit < *patience => left = 0,
        result => result?,
    }
    *patience = patience.saturating_sub(limit.saturating_sub(left));
    Ok(!moves.is_empty())
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
    make_room(dev, parent, part, bytes, &[&[Victim::Own]], patience)
}

/// Has objects of `level` that are in `part` of VRAM and are `victim`s move, as many as it takes to
/// leave `missing` bytes; appends their fences. How many bytes are missing then. `ENOMEM`, `ENODEV`;
/// `EINTR` if a signal arrives.
fn sweep(
    dev: &SkuaDevice,
    parent: &Device<Bound>,
    part: Part,
    level: Level,
    victim: Victim,
    mut missing: u64,
    moves: &mut KVVec<Fence>,
) -> Result<u64> {
    let mut skipped: Option<BoRef> = None;
    // Others change the list, too.
    for _ in 0..lru::pages::<BoData>(dev, level as u8) {
        if missing == 0 {
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
        if !bo.sites.touches(part) || !victim.may_be(dev, &bo) {
            skipped.get_or_insert(bo);
            continue;
        }
        match evict(dev, parent, &bo, victim) {
            Ok(fence) => {
                moves.push(fence, GFP_KERNEL)?;
                missing = missing.saturating_sub(u64::try_from(bo.size())?);
            }
            Err(error) if error == EINTR || error == ENODEV => return Err(error),
            Err(_) => _ = skipped.get_or_insert(bo),
        }
    }
    Ok(missing)
}

/// Waits until `moves` are done and what they left is free, as long as there is patience.
fn finish(moves: &[Fence], patience: &mut Jiffies) -> Result {
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
    let mut moves = KVVec::new();
    for level in Level::ALL {
        sweep(
            dev,
            parent,
            Part::Any,
            level,
            Victim::Any,
            u64::MAX,
            &mut moves,
        )?;
    }
    finish(&moves, &mut patience())?;
    Ok(moves.len())
}
