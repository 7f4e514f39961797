// SPDX-License-Identifier: GPL-2.0

//! Memory pressure: pages of idle objects go back to their inodes of shmem, where they can be
//! swapped, or to the system.
//!
//! # Model
//!
//! Objects with system pages are in some of the driver's lists, and those that have given them back
//! in another ([`lru`](super::lru)). When the kernel needs memory, a [`Shrinker`] goes through the
//! first, list by list, and asks each object whose reservation lock is free ([`Shrink::rest`]),
//! until it has looked at as many pages as it was asked for. The content stays with the inode,
//! unless nobody needs it: [`GemExt::rouse`] gets it from there when the object is needed again.
//!
//! Before that it asks objects in device memory for copies of them in system pages, which are there
//! for convenience alone ([`Shrink::drop_copy`]). These it also asks for when the memory of a
//! control group is short that pays for them: each [`Copies`] has lists by group. What else a group
//! has stays.
//!
//! # Locks
//!
//! Whoever allocates memory may get here, with any lock that they allocate under: locks are tried
//! only, nothing is allocated, nothing waited for. The device's `gem_lru_mutex` is held for each
//! call of [`Shrink::rest`].
//!
//! # Examples
//!
//! ```ignore
//! // As long as it is there, the kernel may ask for the pages of idle objects.
//! let shrinker = Shrinker::new(dev, c"drm-my-device")?;
//! // An object whose memory went to the device keeps its system pages as a copy.
//! let entry = shrinker.copies().and_then(|copies| CopyEntry::new(&copies, &pages));
//! ```
//!
//! C header: `include/linux/shrinker.h`.

use super::{
    device,
    drm_driver::DriverExt,
    gem::GemExt,
    lru::{
        self,
        Listed, //
    },
    pages::Pages,
    resv::Reserved,
    shim, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr::{
        from_ref,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    drm::{
        self,
        gem::{
            IntoGEMObject,
            Object, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// A control group whose memory is short.
///
/// # Invariants
///
/// It is valid as long as this value.
pub(crate) struct Group<'a>(NonNull<shim::mem_cgroup>, PhantomData<&'a ()>);

impl Group<'_> {
    /// Whether it pays for `pages`, as far as the first one tells.
    pub(crate) fn pays_for(&self, pages: &Pages) -> bool {
        // SAFETY: The page is valid as long as `pages`; the group is only compared.
        let pays = |page| unsafe { shim::skua_page_is_paid_by(page, self.0.as_ptr()) };
        pages.page(0).is_some_and(pays)
    }
}

/// The copies that a caller wants freed.
pub(crate) enum Meant<'a, O> {
    /// All: the machine has no memory.
    All,
    /// Copies that a memory cgroup pays for.
    Of(Group<'a>),
    /// Copies that belong to an owner.
    Owned(&'a O),
}

/// Objects that can give back their pages.
pub(crate) trait Shrink: Listed + GemExt
where
    Self::Driver: DriverExt<Gem = Self>,
{
    /// The [ranks](Listed::lru) of objects that have system pages, in the order in which they give
    /// them back.
    const AWAKE: &'static [u8];
    /// The rank of those that have given them back.
    const RESTING: u8;

    /// The ranks of objects that may have a copy in system pages of what they are.
    const KEEPERS: Range<u8>;

    /// Whose copies [`Meant::Owned`] is about.
    type Owner;

    /// How many pages the objects of `dev` have as such copies, at about this moment.
    fn copies(dev: &drm::Device<Self::Driver>) -> u64;

    /// Has `obj` free such a copy, if it is `meant`; how many pages it was. As [`Shrink::rest`].
    fn drop_copy(
        obj: &Object<Self>,
        reserved: &mut Reserved<'_>,
        meant: &Meant<'_, Self::Owner>,
    ) -> usize;

    /// Has `obj` give back its pages if it is idle and nobody has their addresses; how many pages
    /// it had. Not to take the lists' lock; see the [locks](self#locks).
    fn rest(obj: &Object<Self>, reserved: &mut Reserved<'_>) -> usize;
}

/// The copies that objects of one device have in system pages, by the groups that pay for them.
///
/// # Invariants
///
/// The pointer is what `skua_copies_new()` returned, and not freed yet.
pub(crate) struct Copies(NonNull<shim::skua_copies>);

// SAFETY: All that is done with it is synchronised by the C code.
unsafe impl Send for Copies {}
// SAFETY: As above.
unsafe impl Sync for Copies {}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Each entry holds it: there is none any more.
        unsafe { shim::skua_copies_free(self.0.as_ptr()) };
    }
}

/// One object's copy, in the list of [`Copies`].
///
/// # Invariants
///
/// `raw` is an entry of `copies`, and this value's.
pub(crate) struct CopyEntry {
    /// What C code has in its list; owned.
    raw: NonNull<shim::skua_copy>,
    /// The list that it is in.
    copies: Arc<Copies>,
}

// SAFETY: What is there is only ever dropped, from any thread.
unsafe impl Send for CopyEntry {}
// SAFETY: As above.
unsafe impl Sync for CopyEntry {}

impl CopyEntry {
    /// `pages` are one, as long as this is. [`None`] if the group that pays for them has no memory
    /// for that.
    pub(crate) fn new(copies: &Arc<Copies>, pages: &Pages) -> Option<Self> {
        let page = pages.page(0)?;
        // SAFETY: `copies` is valid by the type invariant, the page as long as `pages`.
        let raw = unsafe { shim::skua_copy_new(copies.0.as_ptr(), page, pages.count()) };
        // INVARIANT: As just made.
        Some(Self {
            raw: NonNull::new(raw)?,
            copies: copies.clone(),
        })
    }
}

impl Drop for CopyEntry {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { shim::skua_copy_free(self.copies.0.as_ptr(), self.raw.as_ptr()) };
    }
}

/// The claim of the kernel on the objects of one device, until it is dropped.
///
/// It holds the device, so the device gives it up when it is unbound.
///
/// # Invariants
///
/// `raw` is registered, or about to be, with `owner` as its private data, which has the addresses
/// of `dev` and, when it is registered, of what is in `copies`.
pub(crate) struct Shrinker<D: drm::Driver> {
    /// Registered, until this is dropped.
    raw: NonNull<bindings::shrinker>,
    /// What the kernel's callbacks are called with.
    owner: KBox<shim::skua_shrinker_owner>,
    /// Clean copies that it drops first, if it has such.
    copies: Option<Arc<Copies>>,
    /// The device whose address `owner` has.
    _dev: ARef<drm::Device<D>>,
}

// SAFETY: What is there is only ever dropped, from any thread.
unsafe impl<D: drm::Driver> Send for Shrinker<D> {}
// SAFETY: As above.
unsafe impl<D: drm::Driver> Sync for Shrinker<D> {}

impl<D: DriverExt> Shrinker<D>
where
    D::Gem: Shrink,
{
    /// Lets the kernel have the pages of idle objects of `dev`. `ENOMEM`.
    pub(crate) fn new(dev: &drm::Device<D>, name: &CStr) -> Result<Self> {
        let mut owner = KBox::new(
            shim::skua_shrinker_owner {
                count: Some(count_callback::<D>),
                scan: Some(scan_callback::<D>),
                dev: device::as_raw(dev).cast(),
                copies: core::ptr::null_mut(),
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The name is used in the call. The owner is boxed, and freed behind the end of the
        // registration, which waits for calls that use it.
        let raw = unsafe { shim::skua_shrinker_new(name.as_char_ptr(), &mut *owner) };
        // INVARIANT: As just made. From here on it takes itself back.
        let mut shrinker = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            owner,
            copies: None,
            _dev: dev.into(),
        };
        // SAFETY: The shrinker is valid.
        let copies = unsafe { shim::skua_copies_new(raw) };
        // INVARIANT: As just made.
        let copies = Copies(NonNull::new(copies).ok_or(ENOMEM)?);
        shrinker.owner.copies = copies.0.as_ptr();
        shrinker.copies = Some(Arc::new(copies, GFP_KERNEL)?);
        // SAFETY: It is valid, not registered, and what its callbacks use is there.
        unsafe { shim::skua_shrinker_register(raw) };
        Ok(shrinker)
    }

    /// The copies that it asks for.
    pub(crate) fn copies(&self) -> Option<Arc<Copies>> {
        self.copies.clone()
    }
}

impl<D: drm::Driver> Drop for Shrinker<D> {
    fn drop(&mut self) {
        // SAFETY: It is registered, or about to be, by the type invariant, and this is the end of
        // it.
        unsafe { shim::skua_shrinker_free(self.raw.as_ptr()) };
    }
}

/// `shrinker.count_objects`: how many pages there are, at most.
///
/// # Safety
///
/// To be called for a [`Shrinker`] of `D`, with the device that it has registered.
unsafe extern "C" fn count_callback<D: DriverExt>(dev: *mut c_void) -> usize
where
    D::Gem: Shrink,
{
    // SAFETY: The device is held by the shrinker, whose registration waits for the end of this call
    // before it ends.
    let dev: &drm::Device<D> = unsafe { drm::Device::from_raw(dev.cast()) };
    let pages = |rank: &u8| lru::pages_about::<D::Gem>(dev, *rank);
    let all = D::Gem::AWAKE.iter().map(pages).fold(0, u64::saturating_add);
    usize::try_from(all.saturating_add(D::Gem::copies(dev))).unwrap_or(0)
}

/// `shrinker.scan_objects`: how many pages objects have given back, of `pages`, which become those
/// that were looked at: none if somebody has the lists. For a `group`, unless that is null, of what
/// it pays for.
///
/// # Safety
///
/// As [`count_callback`]; `pages` must be valid and nobody else's, `group` null or valid.
unsafe extern "C" fn scan_callback<D: DriverExt>(
    dev: *mut c_void,
    group: *mut shim::mem_cgroup,
    pages: *mut usize,
) -> usize
where
    D::Gem: Shrink,
{
    // SAFETY: As in `count_callback()`.
    let dev: &drm::Device<D> = unsafe { drm::Device::from_raw(dev.cast()) };
    // SAFETY: By the safety requirements.
    let pages = unsafe { &mut *pages };
    let wanted = *pages;
    let group = NonNull::new(group);
    // INVARIANT: Valid in this call.
    let meant = group.map_or(Meant::All, |group| Meant::Of(Group(group, PhantomData)));
    let mut freed = drop_copies_by::<D::Gem>(dev, wanted, false, &meant);
    *pages = freed;
    if group.is_some() {
        return freed;
    }
    let to = D::Gem::lru(dev, D::Gem::RESTING).as_raw();
    for rank in D::Gem::AWAKE {
        let mut some = wanted.saturating_sub(*pages);
        let from = D::Gem::lru(dev, *rank).as_raw();
        // SAFETY: Device and lists are valid, and have only objects of `D`.
        let now = unsafe {
            shim::skua_gem_lru_shrink(
                device::as_raw(dev),
                from,
                to,
                &mut some,
                Some(rest_callback::<D::Gem>),
            )
        };
        freed = freed.saturating_add(now);
        *pages = pages.saturating_add(some);
    }
    freed
}

/// Has objects of `dev` free copies of `pages` pages that are an `owner`'s ([`Shrink::drop_copy`]),
/// if there are so many and nobody is using the objects just now; how many it was. Takes the lists'
/// lock.
pub(crate) fn drop_copies<T: Shrink>(
    dev: &drm::Device<T::Driver>,
    pages: usize,
    owner: &T::Owner,
) -> usize
where
    T::Driver: DriverExt<Gem = T>,
{
    drop_copies_by::<T>(dev, pages, true, &Meant::Owned(owner))
}

fn drop_copies_by<T: Shrink>(
    dev: &drm::Device<T::Driver>,
    pages: usize,
    wait: bool,
    meant: &Meant<'_, T::Owner>,
) -> usize
where
    T::Driver: DriverExt<Gem = T>,
{
    let mut dropped = 0;
    for rank in T::KEEPERS {
        if T::copies(dev) == 0 || dropped >= pages {
            break;
        }
        let list = T::lru(dev, rank).as_raw();
        // SAFETY: Device and list are valid, and that has only objects of `T`; the callback gets
        // what it expects.
        dropped += unsafe {
            shim::skua_gem_lru_drop(
                device::as_raw(dev),
                list,
                pages - dropped,
                wait,
                from_ref(meant).cast(),
                Some(copy_callback::<T>),
            )
        };
    }
    dropped
}

/// How many pages an object has freed.
///
/// # Safety
///
/// As [`rest_callback`]; `meant` must be a valid `Meant<T::Owner>`.
unsafe extern "C" fn copy_callback<T: Shrink>(
    raw: *mut bindings::drm_gem_object,
    meant: *const c_void,
) -> usize
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: As in `rest_callback()`.
    let (obj, mut reserved) = unsafe {
        (
            <Object<T> as IntoGEMObject>::from_raw(raw),
            Reserved::borrowed((*raw).resv),
        )
    };
    // SAFETY: By the safety requirements.
    T::drop_copy(obj, &mut reserved, unsafe { &*meant.cast() })
}

/// How many pages an object has given back.
///
/// # Safety
///
/// To be called with the lists' and the object's reservation lock held, on an `Object<T>` that is
/// in one of these lists: it is whole.
unsafe extern "C" fn rest_callback<T: Shrink>(raw: *mut bindings::drm_gem_object) -> usize
where
    T::Driver: DriverExt<Gem = T>,
{
    // SAFETY: By the safety requirements. Who frees it takes it out of its list first.
    let (obj, mut reserved) = unsafe {
        (
            <Object<T> as IntoGEMObject>::from_raw(raw),
            Reserved::borrowed((*raw).resv),
        )
    };
    T::rest(obj, &mut reserved)
}
