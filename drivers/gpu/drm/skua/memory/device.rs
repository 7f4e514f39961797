// SPDX-License-Identifier: GPL-2.0

//! Devices (WDDM: device): what a client's address spaces and contexts are of. A device has a list
//! of what is resident for it, a mode that says what the list is for, and a state.
//!
//! | mode | what has to be in VRAM for work, of what is mapped and may be there alone |
//! |---|---|
//! | implicit | all |
//! | explicit | what is resident for the device, and its context allocations |
//!
//! That it is there whenever work runs is the business of [`paging_in`](super::paging_in) for both.
//! What an explicit device has made resident is to fit into its budget, its fair share of VRAM
//! ([`fair_share`]) by what all such devices have made resident. What else is in VRAM leaves for
//! that. A device that exceeds its budget because of others is told so once
//! ([`ClientDevice::set_notice`]).
//!
//! Locks: `Budgets::accounts`, a mutex, for which explicit devices there are; `Account::notice`, a
//! spin lock, for the notice that a device may still be sent.

use crate::{
    ext::{
        event::{
            Event,
            PendingEvent, //
        },
        uapi::{
            drm_event,
            drm_skua_event_trim,
            DRM_SKUA_CONTEXT_LOST,
            DRM_SKUA_EVENT_TRIM, //
        }, //
    },
    gpu::{
        SkuaDevice,
        SkuaDriver, //
    },
    kernel_heap::own_flags,
    memory::{
        bo::{
            Bo,
            BoData,
            BoRef, //
        },
        claims::Claims,
        vm::for_each_user,
        vram::Part, //
    },
    policy::budget::{
        fair_share,
        level, //
    },
    quota::Share, //
};
use kernel::{
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLock, //
    }, //
};

/// Number of the next device.
static NEXT: Atomic<u64> = Atomic::new(0);

/// Devices with explicit residency, of all clients.
pub(crate) const MAX_EXPLICIT: u32 = 1024;

impl Event for drm_skua_event_trim {
    const TYPE: u32 = DRM_SKUA_EVENT_TRIM;

    fn header(&mut self) -> &mut drm_event {
        &mut self.base
    }
}

/// The notice that a device is to trim, for which its client's file has room.
pub(crate) type Notice = PendingEvent<SkuaDriver, drm_skua_event_trim>;

/// What an explicit device has of VRAM, for others' budgets.
#[pin_data]
struct Account {
    /// Objects that MAKE_RESIDENT has made resident for it, by how often.
    #[pin]
    residents: Claims,
    /// The notice that it may still be sent: none before [`ClientDevice::set_notice`], and from
    /// when it was sent.
    #[pin]
    notice: SpinLock<Option<Notice>>,
}

/// All devices with explicit residency.
#[pin_data]
pub(crate) struct Budgets {
    /// All devices that count what is resident for them.
    #[pin]
    accounts: Mutex<KVVec<Arc<Account>>>,
}

impl Budgets {
    /// Of a GPU that no client has a device of yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            accounts <- new_mutex!(KVVec::new()),
        })
    }
}

/// A device of a client's: the client's handle holds it, and each of its address spaces.
#[pin_data(PinnedDrop)]
pub(crate) struct ClientDevice {
    /// The GPU whose memory its objects are in.
    dev: ARef<SkuaDevice>,
    /// A number that no other device has, ever: [`Self::id`].
    id: u64,
    /// With explicit residency also among [`Budgets`].
    account: Arc<Account>,
    /// Whether it has explicit residency: that it counts as one of its client's and its user's.
    explicit: Option<Share>,
    /// Whether one context that fails is the end of all.
    shares_fate: bool,
    /// `DRM_SKUA_CONTEXT_*` of the first failure; 0 before.
    failure: Atomic<u32>,
}

impl ClientDevice {
    /// The device that each file has.
    pub(crate) fn of_file(dev: &SkuaDevice) -> Result<Arc<Self>> {
        Self::make(dev, None, false)
    }

    /// One that a client asks for; with explicit residency if it counts as one more that has.
    /// `ENOMEM`.
    pub(crate) fn new(dev: &SkuaDevice, explicit: Option<Share>) -> Result<Arc<Self>> {
        Self::make(dev, explicit, true)
    }

    fn make(dev: &SkuaDevice, explicit: Option<Share>, shares_fate: bool) -> Result<Arc<Self>> {
        let account = Arc::pin_init(
            pin_init!(Account {
                residents <- Claims::new(BoData::count_residents),
                notice <- new_spinlock!(None),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        if explicit.is_some() {
            let mut accounts = dev.budgets.accounts.lock();
            // There are few, and others wait for the lock.
            accounts.push(account.clone(), own_flags())?;
        }
        let device = Self {
            dev: dev.into(),
            id: NEXT.fetch_add(1, Relaxed),
            account,
            explicit,
            shares_fate,
            failure: Atomic::new(0),
        };
        // If there is no memory, it is dropped, and takes its account along.
        Arc::pin_init(device, GFP_KERNEL_ACCOUNT)
    }

    /// A number that no other device has, ever.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Objects that MAKE_RESIDENT has made resident for it; closed from its end on.
    pub(crate) fn residents(&self) -> &Claims {
        &self.account.residents
    }

    /// Whether it has explicit residency.
    pub(crate) fn is_explicit(&self) -> bool {
        self.explicit.is_some()
    }

    /// Whether its work needs `bo`, which is mapped for that, to be where it is to be: not if
    /// nobody is to use it, and in any case if it is a [context allocation](super::save_areas).
    /// Nor while its residency is [pending](super::pending_residency): work that uses it waits for
    /// that, and other work need not. Also under spin locks.
    pub(crate) fn wants(&self, bo: &Bo) -> bool {
        !bo.is_offered()
            && (!self.is_explicit() || bo.saves_context() || self.residents().has_now(bo))
    }

    /// Whether `bo` is nothing to its work from here on, and the work so far that may use it is
    /// filed with `bo`'s own reservation: it has explicit residency, and `bo` is not resident for
    /// it. Who has that reservation locked finds all that was filed when this says so.
    pub(crate) fn has_evicted(&self, bo: &Bo) -> bool {
        // In this order: what says that something is not known was said before the claim went.
        self.is_explicit()
            && bo.is_reached_if_resident()
            && !self.residents().has(bo)
            && !bo.was_given_up()
            && self.failure() == 0
    }

    /// The bytes that may be resident for it: all of VRAM, unless it has explicit residency.
    pub(crate) fn budget(&self) -> u64 {
        let all = Part::Any.bytes(&self.dev);
        if !self.is_explicit() {
            return all;
        }
        let accounts = self.dev.budgets.accounts.lock();
        let others = accounts
            .iter()
            .filter(|account| !Arc::ptr_eq(account, &self.account));
        fair_share(all, others.map(|account| account.residents.bytes()))
    }

    /// Has the client be told, once, when others leave the device less of a budget than it has
    /// resident.
    pub(crate) fn set_notice(&self, notice: Notice) {
        // Dropped when the lock is free.
        let _old = self.account.notice.lock().replace(notice);
    }

    /// Whether the client would be told.
    pub(crate) fn has_notice(&self) -> bool {
        self.account.notice.lock().is_some()
    }

    /// More is resident for it: others may have to trim.
    pub(crate) fn tell_others(&self) {
        if !self.is_explicit() {
            return;
        }
        let accounts = self.dev.budgets.accounts.lock();
        let wanted = accounts.iter().map(|account| account.residents.bytes());
        // Of who has more, this is the budget.
        let level = level(Part::Any.bytes(&self.dev), wanted);
        for account in accounts.iter() {
            let excess = account.residents.bytes().saturating_sub(level);
            if excess == 0 || Arc::ptr_eq(account, &self.account) {
                continue;
            }
            let notice = account.notice.lock().take();
            if let Some(notice) = notice {
                notice.send(|event| event.bytes_to_trim = excess);
            }
        }
    }

    /// The first failure of one of its contexts, as `DRM_SKUA_CONTEXT_*`; 0 if there was none.
    pub(crate) fn failure(&self) -> u32 {
        self.failure.load(Relaxed)
    }

    /// One of its contexts has failed; whether that is the end of all.
    pub(crate) fn fail(&self, status: u32) -> bool {
        if self.shares_fate {
            // The first one counts.
            let _ = self.failure.cmpxchg(0, status, Full);
        }
        self.shares_fate
    }

    /// The client destroys it: nothing more is resident for it, and nothing runs.
    pub(crate) fn end(&self) {
        let _ = self.fail(DRM_SKUA_CONTEXT_LOST);
        self.residents().close();
    }

    /// Whether it takes work. `ECANCELED`.
    pub(crate) fn check(&self) -> Result {
        match self.failure() {
            0 => Ok(()),
            _ => Err(ECANCELED),
        }
    }
}

#[pinned_drop]
impl PinnedDrop for ClientDevice {
    fn drop(self: Pin<&mut Self>) {
        self.residents().close();
        if self.is_explicit() {
            let mut accounts = self.dev.budgets.accounts.lock();
            accounts.retain(|account| !Arc::ptr_eq(account, &self.account));
        }
    }
}

/// What wants `bo`, or what it is for, has changed: address spaces that map it look again whether
/// they need it back.
pub(crate) fn look_again(dev: &SkuaDevice, bo: &BoRef) {
    if !bo.needs_vram() && !bo.may_be_displaced() {
        return;
    }
    let all = for_each_user(dev, bo, |vm| {
        vm.list_for(bo).look_again(bo);
        Ok(())
    });
    crate::warn_on_once!(all.is_err());
}
