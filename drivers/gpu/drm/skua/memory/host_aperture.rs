// SPDX-License-Identifier: GPL-2.0

//! The CPU host aperture: how the CPU reaches VRAM that it does not see (rows 0.22 to 0.26).
//!
//! A page of it shows a page of VRAM from the first fault on that is about that, and until the page
//! is taken back for another fault, or the VRAM becomes free:
//!
//! ```text
//! fault       a page of the aperture that shows nothing, or the one that was mapped longest ago ─▶
//!             taken back, if it shows something ─▶ entry, flush ─▶ mapped
//! taken back  CPU's mappings removed ─▶ write barrier ─▶ entry, flush ─▶ what it wrote is in VRAM
//! VRAM freed  the same; the CPU's mappings went with the placement
//! ```
//!
//! Who loses a page loses nothing: the next access faults again, and waits its turn. So a fault
//! never fails for want of pages. What is mapped ahead takes pages only that show nothing; but of
//! who goes on where the last fault ended as many are wanted as are mapped ahead, and those are
//! taken back in one request, and mapped in another. The
//! engines see what the CPU writes at once, as through the other BAR.
//!
//! All of it is mapped write-combined, or cached where the device keeps the CPU's caches coherent,
//! also with what a page shows next (row 0.16): then the CPU sees in VRAM what is cached as well.
//!
//! An object that the CPU [locks](super::lock) in VRAM that it does not see has a part of the
//! aperture for that ([`claim`]): of what is locked so there is never more than the aperture has
//! pages for. Its pages are taken back when no others are left.
//!
//! Which page shows what, [`crate::policy::host_aperture`] knows.
//!
//! Lock: [`Gpu::host_aperture`](crate::gpu::Gpu), a mutex, held from the choice of a page until the
//! CPU's mapping of it is made, or removed: so nobody has a mapping of a page that shows something
//! else.
//! The device's acknowledgement is waited for under it, and under what a page fault holds.

use crate::{
    ext::{
        bar::{
            write_barrier,
            MemoryBar, //
        },
        fault::{
            self,
            FaultError,
            VmFault, //
        },
        gem, //
    },
    gpu::{
        SkuaDevice,
        WEDGED, //
    },
    hardware::{
        caps::{
            ApertureCaps,
            Caps, //
        },
        miniport::Request, //
    },
    kernel_heap::{
        client_flags,
        KernelHeap, //
    },
    memory::{
        bo::{
            Bo,
            Memory,
            FAULT_AHEAD,
            REGION_VRAM, //
        },
        vram::VramRange, //
    },
    policy::{
        buddy::PAGE_BYTES,
        host_aperture::{
            HostAperture,
            Shown, //
        },
        miniport::{
            AperturePage,
            Miniport, //
        }, //
    },
};
use kernel::{
    drm::gem::BaseObject,
    prelude::*,
    sync::atomic::Relaxed, //
};

/// Which page of the aperture shows which page of VRAM.
pub(crate) type Window = HostAperture<KernelHeap>;

/// Pages that one request of the device names at most.
const BATCH: usize = FAULT_AHEAD + 1;

/// Pages of VRAM that are looked at before others' faults have the window.
const AT_ONCE: usize = 1024;

/// What the aperture of a device with these capabilities shows at first: nothing. `ENOMEM`.
pub(crate) fn window(caps: &Caps) -> Result<Window> {
    let pages = caps.aperture.map_or(0, |aperture| aperture.pages);
    Ok(Window::new(pages)?)
}

/// Whether page `page` of `range` is where the CPU sees VRAM without an aperture.
pub(crate) fn is_visible(range: &VramRange, page: usize) -> bool {
    let visible = range.dev().hw.caps.vram_visible;
    range
        .page_offset(page)
        .and_then(|offset| u64::try_from(offset).ok())
        .is_some_and(|offset| offset < visible)
}

/// A page of an object that is in VRAM.
struct Spot {
    /// The page of VRAM that it is in, of the aperture's page size.
    page: u64,
    /// Bytes from the start of that page.
    inside: u64,
}

/// Where page `page` of `range` is, if the aperture can show it.
fn spot(aperture: &ApertureCaps, range: &VramRange, page: usize) -> Option<Spot> {
    if is_visible(range, page) {
        return None;
    }
    let offset = u64::try_from(range.page_offset(page)?).ok()?;
    let size = aperture.page.bytes();
    Some(Spot {
        page: offset >> aperture.page.shift(),
        inside: offset & (size - 1),
    })
}

/// Maps the page that `fault` is about, of `bo`, which is in `range`, and some behind it, all of
/// them `writable` or none.
///
/// Waits for the device. [`FaultError::Sigbus`] if it is lost, too.
pub(crate) fn map(
    dev: &SkuaDevice,
    bar: &MemoryBar<'_>,
    bo: &Bo,
    range: &VramRange,
    fault: &VmFault<'_>,
    writable: bool,
) -> Result<(), FaultError> {
    let aperture = dev.hw.caps.aperture.ok_or(FaultError::Sigbus)?;
    let (first, count) = (fault.page(), fault::window(fault, bo.size(), BATCH));
    if count == 0 {
        return Err(FaultError::Sigbus);
    }
    let lists = Lists::new(count)?;
    let mut window = dev.host_aperture.lock();
    reveal(dev, &aperture, &mut window, bo, range, first, lists)?;
    for ahead in 0..count {
        let offset = spot(&aperture, range, first + ahead).and_then(|spot| {
            let page = u64::from(window.find(spot.page)?);
            usize::try_from(page * aperture.page.bytes() + spot.inside).ok()
        });
        match offset.map(|offset| fault.map_bar(ahead, bar, offset, writable)) {
            Some(Ok(())) => (),
            // What is mapped ahead is a guess.
            _ if ahead > 0 => break,
            Some(Err(error)) => return Err(error),
            None => return Err(FaultError::Sigbus),
        }
    }
    Ok(())
}

/// The pages of VRAM, of the aperture's page size, that `range` has a part of.
fn pages<'a>(aperture: &ApertureCaps, range: &'a VramRange) -> impl Iterator<Item = u64> + use<'a> {
    let (shift, size) = (aperture.page.shift(), aperture.page.bytes());
    range.blocks().iter().flat_map(move |block| {
        let start = block.start.0.saturating_mul(PAGE_BYTES);
        let end = start.saturating_add(block.pages.0.saturating_mul(PAGE_BYTES));
        start >> shift..end.div_ceil(size)
    })
}

/// Calls `f` with some pages at a time that `range` has a part of, until there are no more; others
/// have the window in between.
fn for_some(
    dev: &SkuaDevice,
    aperture: &ApertureCaps,
    range: &VramRange,
    mut f: impl FnMut(&mut Window, &mut dyn Iterator<Item = u64>),
) {
    let mut pages = pages(aperture, range).peekable();
    while pages.peek().is_some() {
        f(
            &mut dev.host_aperture.lock(),
            &mut pages.by_ref().take(AT_ONCE),
        );
    }
}

/// Pages of the aperture that `bo` takes at most.
fn pages_of(aperture: &ApertureCaps, bo: &Bo) -> u64 {
    // CAST: `usize` has 64 bits.
    (bo.size() as u64).div_ceil(aperture.page.bytes())
}

/// Has `bo`, which is locked, count against the pages of the aperture until it is not locked any
/// more, unless it does already; whether there are enough.
pub(crate) fn claim(dev: &SkuaDevice, bo: &Bo) -> bool {
    let Some(aperture) = dev.hw.caps.aperture else {
        return false;
    };
    let pages = pages_of(&aperture, bo);
    let claimed = &dev.host_aperture_claimed;
    let mut before = claimed.load(Relaxed);
    loop {
        if bo.has_host_aperture() {
            return true;
        }
        let now = before.saturating_add(pages);
        if now > aperture.pages.into() {
            return false;
        }
        match claimed.cmpxchg(before, now, Relaxed) {
            Ok(_) => break,
            Err(other) => before = other,
        }
    }
    if !bo.set_host_aperture() {
        // Somebody else was faster, or it was unlocked just now.
        unclaim(dev, bo);
    }
    true
}

/// `bo` is not locked any more: it does not count. Also under spin locks.
pub(crate) fn unclaim(dev: &SkuaDevice, bo: &Bo) {
    if let Some(aperture) = dev.hw.caps.aperture {
        // No wrap: claimed before.
        dev.host_aperture_claimed
            .fetch_sub(pages_of(&aperture, bo), Relaxed);
    }
}

/// Whether `bo` is locked has changed: its pages are the last to be taken back, or like others.
pub(crate) fn hold(dev: &SkuaDevice, bo: &Bo) {
    let (Some(aperture), Some(Memory::Vram(range))) = (dev.hw.caps.aperture, bo.sites.memory())
    else {
        return;
    };
    if range.is_shown() {
        for_some(dev, &aperture, &range, |window, pages| {
            // Under the lock: who has changed it since comes after this.
            let held = bo.is_locked();
            for page in pages {
                if let Some(at) = window.find(page) {
                    window.hold(at, held);
                }
            }
        });
    }
    // Perhaps the last reference: not under the lock.
    drop(range);
}

/// What a fault finds, for so many pages of it, in memory from before the lock is taken for which
/// others wait.
struct Lists {
    /// What pages of the aperture are to show.
    new: KVec<AperturePage>,
    /// Pages of it that showed something else.
    taken: KVec<u32>,
    /// Those that stay, as this fault is about them.
    own: KVec<u32>,
}

impl Lists {
    /// For `count` pages each. `ENOMEM`.
    fn new(count: usize) -> Result<Self> {
        Ok(Self {
            new: KVec::with_capacity(count, client_flags())?,
            taken: KVec::with_capacity(count, client_flags())?,
            own: KVec::with_capacity(count, client_flags())?,
        })
    }
}

/// Has the aperture show page `first` of `bo`, which is in `range`, and those from there on, as
/// many as the `lists` are for, for which there are pages that show nothing, or, if it goes on
/// where the last one ended, that can be taken back. `ENOMEM`, `EIO`, `ENODEV`.
fn reveal(
    dev: &SkuaDevice,
    aperture: &ApertureCaps,
    window: &mut Window,
    bo: &Bo,
    range: &VramRange,
    first: usize,
    lists: Lists,
) -> Result {
    dev.check_health()?;
    // Who frees it gives back what is shown from now on.
    range.set_shown();
    let start = bo.create_mmap_offset()?;
    let before = first.checked_sub(1);
    let before = before.and_then(|page| window.find(spot(aperture, range, page)?.page));
    let goes_on = before.is_some_and(|at| window.is_last(at));
    let Lists {
        mut new,
        mut taken,
        mut own,
    } = lists;
    let count = own.capacity();
    let mut choose = || -> Result {
        for page in (first..).take(count) {
            let Some(spot) = spot(aperture, range, page) else {
                break;
            };
            if let Some(at) = window.find(spot.page) {
                window.touch(at);
                own.push(at, client_flags())?;
                continue;
            }
            let at = match window.next() {
                Some((at, None)) => at,
                Some((at, _)) if page > first && (own.contains(&at) || window.is_held(at)) => break,
                Some((at, Some(old))) if page == first || goes_on => {
                    gem::unmap_at(dev, old.user, aperture.page.bytes())?;
                    taken.push(at, client_flags())?;
                    window.hide(at);
                    at
                }
                _ => break,
            };
            // Blocks begin where pages of the aperture do: so does the object's part of this one.
            let user = u64::try_from(page)?
                .saturating_mul(PAGE_BYTES)
                .saturating_sub(spot.inside)
                .saturating_add(start);
            let shown = Shown {
                page: spot.page,
                user,
            };
            own.push(at, client_flags())?;
            let page = AperturePage {
                aperture: at,
                segment: spot.page,
            };
            new.push(page, client_flags())?;
            crate::warn_on_once!(window.show(at, shown).is_err());
            window.hold(at, bo.is_locked());
        }
        Ok(())
    };
    let chosen = choose();
    taken.sort_unstable();
    new.sort_unstable_by_key(|page| page.aperture);
    // What was chosen to show something else shows nothing, also if not all could be chosen.
    let shown = take_back(dev, &taken)
        .and(chosen)
        .and_then(|()| show(dev, &new));
    if shown.is_err() {
        for page in &new {
            window.hide(page.aperture);
        }
    }
    shown
}

/// Has the device show `pages`, and waits until it does. `EIO` if it refuses to, and is to be lost
/// then; `ENODEV`.
fn show(dev: &SkuaDevice, pages: &[AperturePage]) -> Result {
    if pages.is_empty() {
        return Ok(());
    }
    let request = dev.hw.map_cpu_host_aperture(REGION_VRAM, pages)?;
    wait(dev, request)?;
    dev.counters
        .aperture_maps
        .fetch_add(u64::try_from(pages.len())?, Relaxed);
    Ok(())
}

/// Takes `pages` of the aperture back, which the CPU has no mapping of: what was written through
/// them is in VRAM. `EIO`, `ENODEV`.
fn take_back(dev: &SkuaDevice, pages: &[u32]) -> Result {
    if pages.is_empty() {
        return Ok(());
    }
    hide(dev, pages)?;
    dev.counters
        .aperture_reclaims
        .fetch_add(u64::try_from(pages.len())?, Relaxed);
    Ok(())
}

/// Has pages of the aperture, which the CPU has no mapping of, show nothing, and waits until they
/// do. `EIO`, `ENODEV`.
fn hide(dev: &SkuaDevice, pages: &[u32]) -> Result {
    dev.check_health()?;
    // What the CPU has combined leaves it.
    write_barrier();
    let request = dev.hw.unmap_cpu_host_aperture(REGION_VRAM, pages)?;
    wait(dev, request)
}

/// Waits until the device has done `request`. `EIO` if it refuses to, and is to be lost then;
/// `ENODEV`.
fn wait(dev: &SkuaDevice, request: Request) -> Result {
    let done = dev.wait_for(|| dev.hw.is_done(request));
    if done == Err(EIO) {
        dev.doubt(WEDGED);
    }
    done
}

/// The aperture shows nothing of `range` any more, which is no object's now: no CPU has a mapping.
/// Waits for the device; if that is lost, nobody reaches the range that way either.
pub(crate) fn give_back(range: &VramRange) {
    let dev = range.dev();
    let Some(aperture) = dev.hw.caps.aperture else {
        return;
    };
    for_some(dev, &aperture, range, |window, pages| {
        let mut hidden = [0; BATCH];
        let mut count = 0;
        for page in pages {
            let Some(at) = window.find(page) else {
                continue;
            };
            window.hide(at);
            if let Some(place) = hidden.get_mut(count) {
                *place = at;
                count += 1;
            }
            if count == BATCH {
                // A device that does not acknowledge is reset, and told of what `window` has alone.
                let _ = hide(dev, &hidden);
                count = 0;
            }
        }
        // Before others have the window; as above.
        if count > 0 {
            let _ = hide(dev, hidden.get(..count).unwrap_or_default());
        }
    });
}
