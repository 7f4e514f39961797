// SPDX-License-Identifier: GPL-2.0

//! Which user has how many of what a device has few of: address spaces, contexts, and devices with
//! explicit residency.
//!
//! A limit of each file alone would leave all of them to who opens many. What a user has counts, by
//! the effective user that opened the file, whether or not the file is still open; how many that
//! may be [`crate::policy::fair_share`] says. Who may override limits of resources
//! (`CAP_SYS_RESOURCE`) takes from all.
//!
//! Lock: `known`, a mutex under which a user is allocated.

use crate::{
    ext::capability,
    kernel_heap::client_flags,
    policy::fair_share::may_have_one_more,
    quota::{
        Quota,
        Share, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    task::Kuid, //
};

/// How many of one kind there are, a user's and everybody's.
#[derive(Clone)]
struct Count {
    user: Arc<Quota>,
    all: Arc<Quota>,
}

impl Count {
    fn of_user(all: &Arc<Quota>) -> Result<Self> {
        Ok(Self {
            user: Quota::new(all.limit())?,
            all: all.clone(),
        })
    }

    /// One more for a client that has its `own` quota, too. `ENOSPC`.
    fn take(&self, own: &Arc<Quota>) -> Result<Place> {
        let place = Place {
            own: own.take(1).ok_or(ENOSPC)?,
            user: self.user.take(1).ok_or(ENOSPC)?,
            _all: self.all.take(1).ok_or(ENOSPC)?,
        };
        // Without this one, which others see already: of two at a time both may be refused.
        let used = self.user.used().saturating_sub(1);
        let others = self.all.used().saturating_sub(1);
        let free = self.all.limit().saturating_sub(others);
        match may_have_one_more(used, free) || capability::sys_resource() {
            true => Ok(place),
            false => Err(ENOSPC),
        }
    }
}

/// That one of these counts, until it is gone.
pub(crate) struct Place {
    /// In its client's quota.
    own: Share,
    /// In its user's, of all clients.
    user: Share,
    _all: Share,
}

impl Place {
    /// What it is of its client's quota.
    pub(crate) fn own(&self) -> &Share {
        &self.own
    }

    /// Of what it is a part for its user.
    pub(crate) fn user(&self) -> &Arc<Quota> {
        self.user.quota()
    }
}

/// A user who has something, or files open.
struct User {
    uid: Kuid,
    /// Files that are open.
    files: Atomic<u32>,
    vms: Count,
    contexts: Count,
    explicit: Count,
}

impl User {
    fn is_over(&self) -> bool {
        let is_none = |count: &Count| count.user.used() == 0;
        let counts = [&self.vms, &self.contexts, &self.explicit];
        self.files.load(Relaxed) == 0 && counts.into_iter().all(is_none)
    }
}

/// An open file's user.
pub(crate) struct Opener(Arc<User>);

impl Opener {
    /// One address space more, for a client with this quota. `ENOSPC`.
    pub(crate) fn take_vm(&self, own: &Arc<Quota>) -> Result<Place> {
        self.0.vms.take(own)
    }

    /// One context more, likewise.
    pub(crate) fn take_context(&self, own: &Arc<Quota>) -> Result<Place> {
        self.0.contexts.take(own)
    }

    /// One device with explicit residency more, likewise.
    pub(crate) fn take_explicit(&self, own: &Arc<Quota>) -> Result<Place> {
        self.0.explicit.take(own)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // No wrap: counted before.
        self.0.files.fetch_sub(1, Relaxed);
    }
}

/// All users of a device.
#[pin_data]
pub(crate) struct Users {
    /// Address spaces of clients.
    vms: Arc<Quota>,
    /// Contexts of clients.
    contexts: Arc<Quota>,
    /// Devices of clients with explicit residency.
    explicit: Arc<Quota>,
    /// Those who have something, each once; and others, until somebody opens a file.
    #[pin]
    known: Mutex<KVVec<Arc<User>>>,
}

impl Users {
    /// Of a device that has room for so many address spaces, contexts and devices with explicit
    /// residency. `ENOMEM`.
    pub(crate) fn new(vms: u32, contexts: u32, explicit: u32) -> Result<impl PinInit<Self>> {
        let (vms, contexts) = (Quota::new(vms.into())?, Quota::new(contexts.into())?);
        let explicit = Quota::new(explicit.into())?;
        Ok(pin_init!(Self {
            vms,
            contexts,
            explicit,
            known <- new_mutex!(KVVec::new()),
        }))
    }

    /// The running process opens a file. `ENOMEM`.
    pub(crate) fn open(&self) -> Result<Opener> {
        let uid = Kuid::current_euid();
        let mut known = self.known.lock();
        known.retain(|user| !user.is_over());
        let user = match known.iter().find(|user| user.uid == uid) {
            Some(user) => user.clone(),
            None => {
                let user = User {
                    uid,
                    files: Atomic::new(0),
                    vms: Count::of_user(&self.vms)?,
                    contexts: Count::of_user(&self.contexts)?,
                    explicit: Count::of_user(&self.explicit)?,
                };
                let user = Arc::new(user, client_flags())?;
                known.push(user.clone(), client_flags())?;
                user
            }
        };
        // No wrap: there are not so many files.
        user.files.fetch_add(1, Relaxed);
        Ok(Opener(user))
    }
}
