// SPDX-License-Identifier: GPL-2.0

//! Destroying objects behind what is held (row 0.02).
//!
//! What a client's contexts [hold](crate::fences::hold) may use an object that can be mapped in
//! their address spaces, and has no fence that a [destruction](crate::memory::destruction) could
//! wait for. So the destruction has a place behind it, in the queue of the one context after the
//! other. As long as it has, the object is moved as before, and resident where it was: who waits
//! without end keeps nobody's room.
//!
//! ```text
//! ioctl    claim ─▶ the handle is gone ─▶ a place behind what the first context holds
//! then     released ─▶ behind what the next one holds ─▶ … ─▶ destruction::begin
//! ```

use crate::{
    ext::{
        gem,
        memcg::MemoryGroup, //
    },
    fences::hold,
    gpu::SkuaDevice,
    kernel_heap::client_flags,
    memory::{
        bo::BoRef,
        destruction::{
            self,
            Manner, //
        },
        device::ClientDevice,
        residency::Kept,
        vm::Vm, //
    },
    quota::{
        Quota,
        Share, //
    },
    submit::context::{
        Context,
        Status, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
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

/// The most destructions of a client, of objects that others may have, that are behind what its
/// contexts hold: these can be had and destroyed again and again.
pub(crate) const MAX_DEFERRALS: u64 = 4096;
/// How long one call waits: while it does, no DRM device is unplugged.
const PATIENCE_MS: u32 = 1000;

/// Destroys objects, each of which is named once, all or none, with their handles, which `close`
/// closes; behind what contexts of the client hold that may use them, unless nothing does. `client`
/// is the quota of the client's address spaces, `deferrals` that of its [`MAX_DEFERRALS`].
///
/// `ENOENT` for a handle, also if another thread destroys it just now; `ENOSPC` if too many are
/// behind what is held; `ENOMEM`; `EINTR` if a signal arrives; `EAGAIN` if it takes more than
/// [`PATIENCE_MS`]. Nothing has changed then.
pub(crate) fn destroy(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    deferrals: &Arc<Quota>,
    handles: &[(u32, BoRef)],
    manner: Manner,
    close: impl Fn(u32, &BoRef),
) -> Result {
    let mut patience = msecs_to_jiffies(PATIENCE_MS);
    if manner.synchronous && !manner.assume_not_in_use {
        patience = wait_for_held(dev, client, handles)?;
    } else if !manner.assume_not_in_use {
        if let Some(deferral) = Deferral::new(dev, client, deferrals, handles)? {
            let memory = hold::HeldMemory::new()?;
            for (handle, bo) in handles {
                close(*handle, bo);
            }
            deferral.go_behind(memory);
            return Ok(());
        }
    }
    destruction::destroy(dev, client, handles, manner, patience, close)
}

/// Whether a context of `client` holds work, whatever that uses.
fn holds_work(dev: &SkuaDevice, client: &Arc<Quota>) -> bool {
    let found = dev.contexts.find_by(|one| one.holds_work_of(client));
    let is_found = found.is_some();
    found
        .into_iter()
        .for_each(|one| dev.reapers.contexts.bury(one));
    is_found
}

/// Whether what `context` holds, if anything, is `client`'s and may use one of `handles`.
fn holds_users(context: &Context, client: &Arc<Quota>, handles: &[(u32, BoRef)]) -> bool {
    let may_use = |vm: &Arc<Vm>| {
        let mut objects = handles.iter().map(|(_, bo)| bo);
        objects.any(|bo| bo.may_be_mapped_in(vm.reservation()))
    };
    context.holds_work_of(client) && context.vm().is_some_and(may_use)
}

/// Waits until no context of `client` holds work that may use `handles`; what is left of
/// [`PATIENCE_MS`] then. `EAGAIN` if that is nothing; `ENODEV`, `EIO`; `EINTR` if a signal arrives.
fn wait_for_held(
    dev: &SkuaDevice,
    client: &Arc<Quota>,
    handles: &[(u32, BoRef)],
) -> Result<Jiffies> {
    let start = Instant::<Monotonic>::now();
    loop {
        let mut is_held = false;
        if holds_work(dev, client) {
            dev.contexts.for_each(|context| {
                is_held = is_held || holds_users(&context, client, handles);
                dev.reapers.contexts.bury(context);
            });
        }
        let waited = u32::try_from(start.elapsed().as_millis()).unwrap_or(u32::MAX);
        let left = PATIENCE_MS.checked_sub(waited).ok_or(EAGAIN)?;
        if !is_held {
            return Ok(msecs_to_jiffies(left));
        }
        dev.check_health()?;
        if current!().signal_pending() {
            return Err(EINTR);
        }
        fsleep(Delta::from_millis(1));
    }
}

/// Objects whose handles are gone, and that work which a client's contexts hold may use.
pub(crate) struct Deferral {
    /// The device that they are of.
    dev: ARef<SkuaDevice>,
    /// The quota of the address spaces of whose client they were.
    client: Arc<Quota>,
    /// What is to be destroyed, [claimed](destruction::claim).
    objects: KVVec<BoRef>,
    /// The control group that pays for what is allocated later.
    group: MemoryGroup,
    /// Contexts that held work, and behind which it has not been yet.
    contexts: KVVec<Arc<Context>>,
    /// What was resident is until then.
    _kept: KVVec<Kept>,
    /// When there was no memory first.
    refused: Option<Instant<Monotonic>>,
    /// Its part of its client's [`MAX_DEFERRALS`], if it is of what others may have: 1.
    _share: Option<Share>,
}

impl Deferral {
    /// The deferral of `handles`; none if no context of `client` holds work that may use them.
    /// `ENOENT` if another thread destroys one of them; `ENOSPC`, `ENOMEM`.
    fn new(
        dev: &SkuaDevice,
        client: &Arc<Quota>,
        deferrals: &Arc<Quota>,
        handles: &[(u32, BoRef)],
    ) -> Result<Option<Self>> {
        if !holds_work(dev, client) {
            return Ok(None);
        }
        let mut deferral = Self {
            dev: dev.into(),
            client: client.clone(),
            objects: KVVec::with_capacity(handles.len(), client_flags())?,
            group: MemoryGroup::of_current(),
            contexts: KVVec::new(),
            _kept: KVVec::new(),
            refused: None,
            _share: match handles.iter().any(|(_, bo)| gem::is_foreign(&**bo)) {
                true => Some(deferrals.take(dev, 1).ok_or(ENOSPC)?),
                false => None,
            },
        };
        for (_, bo) in handles {
            if !destruction::claim(bo) {
                return Err(ENOENT);
            }
            crate::warn_on_once!(deferral.objects.push_within_capacity(bo.clone()).is_err());
        }
        let mut kept = KVVec::new();
        let mut result = Ok(());
        dev.contexts.for_each(|context| {
            let wanted = result.is_ok() && holds_users(&context, client, handles);
            if let (true, Some(vm)) = (wanted, context.vm()) {
                result = keep_all(&mut kept, vm.device(), handles)
                    .and_then(|()| Ok(deferral.contexts.reserve(1, client_flags())?));
            }
            if wanted && result.is_ok() {
                crate::warn_on_once!(deferral.contexts.push_within_capacity(context).is_err());
            } else {
                dev.reapers.contexts.bury(context);
            }
        });
        result?;
        deferral._kept = kept;
        Ok((!deferral.contexts.is_empty()).then_some(deferral))
    }

    /// Waits for what the next context holds.
    fn go_behind(mut self, memory: hold::HeldMemory<Context>) {
        if let Some(context) = self.contexts.pop() {
            let dev = self.dev.clone();
            hold::defer(&context, memory, self);
            dev.reapers.contexts.bury(context);
        }
    }

    /// Lets go of the contexts, from the last one on, that hold nothing any more which will run.
    fn pass_empty(&mut self) {
        let is_empty = |context: &Arc<Context>| {
            !context.holds_work_of(&self.client) || context.status() != Status::Active
        };
        while self.contexts.last().is_some_and(is_empty) {
            if let Some(context) = self.contexts.pop() {
                self.dev.reapers.contexts.bury(context);
            }
        }
    }

    /// What it waited for is held no more: goes behind what the next context holds, or has the
    /// objects destroyed. Gives itself back if the system has no memory for that, for a while:
    /// then they go with their address spaces. Process context, in a worker.
    pub(crate) fn perform(mut self) -> Option<Self> {
        self.pass_empty();
        let result = match self.contexts.is_empty() {
            true => charge(&self.group, || {
                destruction::begin(&self.dev, &self.client, &mut self.objects)
            }),
            false => match charge(&self.group, hold::HeldMemory::new) {
                Ok(memory) => {
                    self.refused = None;
                    self.go_behind(memory);
                    return None;
                }
                Err(error) => Err(error),
            },
        };
        result.err()?;
        let since = *self.refused.get_or_insert_with(Instant::now);
        (since.elapsed() < Delta::from_millis(hold::PATIENCE_MS)).then_some(self)
    }
}

/// Charges to `group` what `work` allocates, or to nobody where the group has no more: to destroy
/// gives back more than it takes.
fn charge<T>(group: &MemoryGroup, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    group.charge(&mut work).or_else(|_| work())
}

impl Drop for Deferral {
    fn drop(&mut self) {
        self.objects.iter().for_each(|bo| bo.unclaim());
        while let Some(context) = self.contexts.pop() {
            self.dev.reapers.contexts.bury(context);
        }
    }
}

/// Has those of `handles` that are resident for `device` stay so, as long as there is `kept`.
/// `ENOMEM`.
fn keep_all(
    kept: &mut KVVec<Kept>,
    device: &Arc<ClientDevice>,
    handles: &[(u32, BoRef)],
) -> Result {
    kept.reserve(handles.len(), client_flags())?;
    for one in handles.iter().filter_map(|(_, bo)| Kept::new(device, bo)) {
        crate::warn_on_once!(kept.push_within_capacity(one).is_err());
    }
    Ok(())
}
