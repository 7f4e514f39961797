// SPDX-License-Identifier: GPL-2.0

//! Which user has how many of what a device has few of: address spaces, contexts, devices with
//! explicit residency, what waits for an unlock, and system memory.
//!
//! A limit of each file alone would leave all of them to who opens many. What a user has counts, by
//! the effective user that opened the file, whether or not the file is still open; how many that
//! may be [`Quota::of_user`] says.
//!
//! Lock: `known`, a mutex under which the list of users grows.

use crate::{
    kernel_heap::{
        client_flags,
        own_flags, //
    },
    quota::Quota, //
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

/// What there is few of: of all users, or of one.
pub(crate) struct Quotas {
    /// Address spaces of clients.
    pub(crate) vms: Arc<Quota>,
    /// Contexts of clients.
    pub(crate) contexts: Arc<Quota>,
    /// Devices of clients with explicit residency.
    pub(crate) explicit: Arc<Quota>,
    /// MAKE_RESIDENTs of clients that may wait for an unlock.
    pub(crate) pending: Arc<Quota>,
    /// Bytes of system memory that buffer objects and page tables have.
    pub(crate) system: Arc<Quota>,
}

impl Quotas {
    /// One user's, of all these. `ENOMEM`.
    fn of_user(&self) -> Result<Self> {
        Ok(Self {
            vms: self.vms.of_user()?,
            contexts: self.contexts.of_user()?,
            explicit: self.explicit.of_user()?,
            pending: self.pending.of_user()?,
            system: self.system.of_user()?,
        })
    }

    /// Whether nobody has anything of them, nor may get it: also what is in VRAM has its client's.
    fn are_over(&self) -> bool {
        let few = [&self.vms, &self.contexts, &self.explicit, &self.pending];
        self.system.is_over() && few.into_iter().all(|quota| quota.is_over())
    }
}

/// A user who has something, or files open.
struct User {
    /// The effective user of who opened its files; no other [`User`] of the device has it.
    uid: Kuid,
    /// Files that are open.
    files: Atomic<u32>,
    /// What it has with all files.
    quotas: Quotas,
}

/// An open file's user.
pub(crate) struct Opener(Arc<User>);

impl Opener {
    /// What its user has with all files.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.0.quotas
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // No wrap: counted before.
        self.0.files.fetch_sub(1, Relaxed);
    }
}

/// The users of a device, among whom what there is few of is divided.
#[pin_data]
pub(crate) struct Users {
    /// What all users together have, with the limits of the device.
    all: Quotas,
    /// Those who have something, each once; and others, until somebody opens a file.
    #[pin]
    known: Mutex<KVVec<Arc<User>>>,
}

impl Users {
    /// Of a device that has room for so many address spaces, contexts, devices with explicit
    /// residency and pending MAKE_RESIDENTs, and so much `system` memory. `ENOMEM`.
    pub(crate) fn new(
        system: &Arc<Quota>,
        vms: u32,
        contexts: u32,
        explicit: u32,
        pending: u64,
    ) -> Result<impl PinInit<Self> + use<>> {
        let all = Quotas {
            vms: Quota::of_all(c"vms", vms.into())?,
            contexts: Quota::of_all(c"contexts", contexts.into())?,
            explicit: Quota::of_all(c"explicit", explicit.into())?,
            pending: Quota::of_all(c"pending", pending)?,
            system: system.clone(),
        };
        Ok(pin_init!(Self {
            all,
            known <- new_mutex!(KVVec::new()),
        }))
    }

    /// The running process opens a file. `ENOMEM`.
    pub(crate) fn open(&self) -> Result<Opener> {
        // Before the lock, for which others wait: it is for the process, and mostly not needed.
        let new = User {
            uid: Kuid::current_euid(),
            files: Atomic::new(0),
            quotas: self.all.of_user()?,
        };
        let new = Arc::new(new, client_flags())?;
        let mut known = self.known.lock();
        known.retain(|user| user.files.load(Relaxed) > 0 || !user.quotas.are_over());
        let user = match known.iter().find(|user| user.uid == new.uid) {
            Some(user) => user.clone(),
            None => {
                known.push(new.clone(), own_flags())?;
                new.clone()
            }
        };
        // No wrap: there are not so many files.
        user.files.fetch_add(1, Relaxed);
        drop(known);
        Ok(Opener(user))
    }
}
