// SPDX-License-Identifier: GPL-2.0

//! Binds that are held in the order of a context, and not in that of their address space (WDDM:
//! UpdateGpuVirtualAddress): what waits for values there is in the way of no other bind.
//!
//! ```text
//! VM_BIND ─▶ held in the address space ─────────────────┐
//! VM_BIND ─▶ held in the order of a context (Updates) ──┴─▶ Vm::submit_bind ─▶ map, queue of binds
//! ```
//!
//! Locks: `holds` of the [`Updates`], a mutex, for what is held.

use crate::{
    ext::queue::ModuleQueue,
    fences::{
        hold::{
            self,
            Holder,
            Holds,
            Workers, //
        },
        monitored::{
            End,
            Over,
            Target,
            Wait, //
        },
        signals::Signals, //
    },
    gpu::SkuaDevice,
    memory::vm::{
        BindRequest,
        Vm, //
    },
    quota::Quota,
    reaper::Reapable,
    spec::number::ContextSlot,
    submit::{
        context::Status,
        recovery, //
    }, //
};
use core::convert::Infallible;
use kernel::{
    impl_has_work,
    list::{
        impl_list_arc_safe,
        impl_list_item,
        ListLinks, //
    },
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

/// Where they are let go: of their own, as those of one client may all wait for its map, and there
/// are as many as contexts. It belongs to the module: the work may hold the last reference to the
/// device.
pub(crate) static QUEUE: ModuleQueue = ModuleQueue::new();

/// Binds are held, and let go.
const ACTIVE: u32 = 0;
/// What is held is cancelled: the client has destroyed the context.
const DESTROYED: u32 = 1;
/// What is held is cancelled: the context takes no more work.
const FAILED: u32 = 2;

/// The binds that are held in the order of one context, which has it, as have those.
#[pin_data]
pub(crate) struct Updates {
    /// What they change.
    vm: Arc<Vm>,
    /// Where the device's table has the context, until that is destroyed.
    slot: ContextSlot,
    /// [`ACTIVE`], or the first reason why not.
    state: Atomic<u32>,
    /// What is held, and so not in the map yet.
    #[pin]
    holds: Holds<Self>,
    /// Looks at that, in a worker.
    #[pin]
    work: Work<Self>,
    /// Its place in the reaper's list.
    #[pin]
    links: ListLinks,
}

impl_has_work! {
    impl HasWork<Self> for Updates { self.work }
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Updates { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Updates { using ListLinks { self.links }; }
}

impl Reapable for Updates {}

impl Updates {
    /// Of the new context in `slot`, which works in `vm`. `ENOMEM`.
    pub(crate) fn new(vm: &Arc<Vm>, slot: ContextSlot) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                vm: vm.clone(),
                slot,
                state: Atomic::new(ACTIVE),
                holds <- Holds::new(),
                work <- new_work!("Updates::work"),
                links <- ListLinks::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// What is held is cancelled, as the context has `failed` or was destroyed; the first reason
    /// counts. In any context.
    pub(crate) fn end(self: &Arc<Self>, failed: bool) {
        let state = if failed { FAILED } else { DESTROYED };
        // Ordered before the worker's look by that it is queued.
        _ = self.state.cmpxchg(ACTIVE, state, Relaxed);
        Self::look_again(self.clone());
    }
}

impl Holder for Updates {
    type Request = BindRequest;
    type Deferred = Infallible;

    fn device(&self) -> &SkuaDevice {
        Holder::device(&*self.vm)
    }

    fn client(&self) -> Option<&Arc<Quota>> {
        Some(self.vm.client())
    }

    fn holds(&self) -> &Holds<Self> {
        &self.holds
    }

    fn queued(&self) -> u32 {
        self.vm.queued()
    }

    fn is_active(&self) -> bool {
        self.state.load(Relaxed) == ACTIVE && self.vm.is_active()
    }

    fn submit(
        this: &Arc<Self>,
        request: &mut BindRequest,
        _values: &[Wait],
        held: Option<Instant<Monotonic>>,
    ) -> Result {
        // Who has destroyed the context, and binds something then, comes behind this, or it is not
        // done.
        let check = || match this.is_active() {
            true => Ok(()),
            false => Err(ECANCELED),
        };
        this.vm.submit_bind(request, held.is_some(), check)
    }

    /// What waits for the bind, held or not, would go on without it.
    fn fail(this: &Arc<Self>, error: Error) -> Error {
        if error == ENODEV {
            return error;
        }
        let dev = this.device();
        // Or it is destroyed already, and this with it.
        if let Some(context) = dev.contexts.find(this.slot) {
            if context.updates().is_some_and(|of| Arc::ptr_eq(of, this)) {
                recovery::fail(&context, Status::Lost);
            }
            dev.reapers.contexts.bury(context);
        }
        ECANCELED
    }

    fn perform(deferred: Infallible) -> Option<Infallible> {
        match deferred {}
    }

    fn signals(request: &mut BindRequest) -> &mut Signals {
        &mut request.signals
    }

    fn ended(&self, result: Result) -> End {
        match result {
            Err(ECANCELED) if self.state.load(Relaxed) == FAILED => End::Failed,
            result => self.vm.ended(result),
        }
    }

    fn look_again(this: Arc<Self>) {
        let dev: ARef<SkuaDevice> = this.device().into();
        if let Err(updates) = Workers::enqueue_in::<_, 0>(&QUEUE, &dev, this) {
            Self::bury(updates);
        }
    }

    fn bury(this: Arc<Self>) {
        let dev: ARef<SkuaDevice> = this.device().into();
        dev.reapers.updates.bury(this);
    }
}

impl Target for Updates {
    fn wake(self: Arc<Self>, _index: u32, _over: Over) {
        Self::look_again(self);
    }
}

impl WorkItem for Updates {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        hold::run(this);
    }
}
