// SPDX-License-Identifier: GPL-2.0

//! An engine: its ring, what is in it, and whose turn it is.
//!
//! # Flow
//!
//! ```text
//!  submit ─▶ context's queue ─▶ ready list ─▶ ring + in flight ─▶ finished
//!            (in order)         (round robin   (at most             (by the fence id that the
//!                                of contexts)   IN_FLIGHT packets)   engine wrote to memory)
//! ```
//!
//! A context stands in the ready list while its first submission can start. The driver's own
//! contexts, for paging, go before all others.
//!
//! Two parties work here. A thread that submits fills the ring ([`Engine::submit`]): under a spin
//! lock, so it cannot be stopped on the way, and without signalling anything. Interrupt threads and
//! workers take out what has ended, signal it, and fill the ring again ([`Engine::process`]). No
//! client's thread ever holds what others' fences need.
//!
//! Decisions are [`crate::policy`]'s: which fence id is which packet, what has ended, whose fault a
//! reset is ([`Node`]).

use crate::{
    ext::{
        fence::Signalling,
        trace, //
    },
    fences::gate::Wake,
    gpu::SkuaDevice,
    hardware::miniport::{
        Hardware,
        Ring, //
    },
    kernel_heap::KernelHeap,
    policy::{
        node::{
            Node,
            NodeError, //
        },
        paging::MultipassOffset, //
    },
    spec::{
        command::EngineKind,
        number::EngineIndex,
        status::{
            self,
            EngineState, //
        }, //
    },
    submit::{
        busy::{
            EngineClock,
            Usage,
            Used, //
        },
        context::{
            Context,
            Due, //
        },
        packet::{
            Finished,
            Packet,
            IN_FLIGHT, //
        },
        submission::Submission, //
    }, //
};
use kernel::{
    list::{
        List,
        ListArc, //
    },
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic, //
        },
        Arc,
        Mutex,
        SpinLock, //
    }, //
};

/// Whether the engine takes work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It works: the ring is filled and emptied.
    Running,
    /// It is being reset; work waits.
    Recovering,
    /// The device is lost; work is refused.
    Lost,
}

impl From<NodeError<Error>> for Error {
    fn from(error: NodeError<Error>) -> Self {
        match error {
            NodeError::Bogus | NodeError::Full => EIO,
            NodeError::Miniport(error) => error,
        }
    }
}

/// What is under the engine's lock.
pub(crate) struct State {
    /// Changed by recovery and by loss only, under `turn` as well.
    pub(crate) mode: Mode,
    /// The ring and its packets, at most [`IN_FLIGHT`].
    pub(crate) node: Node<KernelHeap, Hardware, Packet>,
    /// Which client the time of the packet at the ring's head is counted to.
    clock: EngineClock,
    /// The driver's own contexts whose first submission can start: they go first.
    ready_system: List<Context>,
    /// Clients' contexts whose first submission can start, in turn, each once.
    ready: List<Context>,
}

/// One of the device's engines, as long as the device's data live.
#[pin_data]
pub(crate) struct Engine {
    /// Its number in registers, status page and uAPI.
    index: EngineIndex,
    /// What it can do.
    kind: EngineKind,
    /// Fault records with numbers before this one (modulo 2^32) are from before the last reset.
    pub(crate) stale_faults: Atomic<u32>,
    /// Held from taking packets out of the ring until their fences are signalled, so that fences
    /// signal in order. Interrupt threads, workers and recovery take it; ioctls do not.
    #[pin]
    pub(crate) turn: Mutex<()>,
    /// The ring, and who waits for room in it.
    #[pin]
    pub(crate) state: SpinLock<State>,
}

impl State {
    /// Counts a packet out of the ring.
    pub(crate) fn retire(&mut self, packet: &Packet) {
        let context = packet.submission.context();
        context.settle();
        self.look_at_head();
        self.attend(context, context.retire());
    }

    /// Tells the clock what is at the head of the ring.
    pub(crate) fn look_at_head(&mut self) {
        let head = self.node.head();
        self.clock.head_changed(head.map(|(id, _)| id), || {
            head?.1.submission.context().usage()
        });
    }

    /// Does what a context has become due for.
    fn attend(&mut self, context: &Arc<Context>, due: Due) {
        match due {
            Due::Nothing => (),
            Due::Turn if self.mode != Mode::Lost => {
                // Refused if it is in the list already.
                if let Ok(context) = ListArc::try_from_arc(context.clone()) {
                    if context.is_system() {
                        self.ready_system.push_back(context);
                    } else {
                        self.ready.push_back(context);
                    }
                }
            }
            Due::Turn | Due::Drain => Wake::wake(context),
        }
    }
}

impl Engine {
    /// Makes an engine that is not enabled. `ENOMEM`.
    pub(crate) fn new(index: EngineIndex, kind: EngineKind) -> Result<Pin<KBox<Self>>> {
        let node = Node::new(index, Ring::new()?, IN_FLIGHT)?;
        let clock = EngineClock::new(index);
        KBox::try_pin_init(
            try_pin_init!(Self {
                index,
                kind,
                stale_faults: Atomic::new(0),
                turn <- new_mutex!(()),
                state <- new_spinlock!(State {
                    mode: Mode::Running,
                    node,
                    clock,
                    ready_system: List::new(),
                    ready: List::new(),
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether it computes or copies.
    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Its name in fdinfo, traces and fences.
    pub(crate) fn name(&self) -> &'static CStr {
        match self.kind {
            EngineKind::Compute => c"compute",
            EngineKind::Copy => c"copy",
        }
    }

    /// Has it fetch, from an empty ring.
    pub(crate) fn enable(&self, dev: &SkuaDevice) -> Result {
        Ok(self.state.lock().node.enable(&dev.hw)?)
    }

    /// The state that the device last reported of the engine.
    pub(crate) fn reported_state(&self, dev: &SkuaDevice) -> Option<EngineState> {
        let shared = dev.hw.shared.try_access()?;
        let state = shared.engine32(self.index, status::engine::STATE).ok()?;
        EngineState::from_u32(state)
    }

    /// Engine time since the device was started, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self, dev: &SkuaDevice) -> u64 {
        let shared = dev.hw.shared.try_access();
        shared
            .and_then(|shared| shared.engine64(self.index, status::engine::TICKS).ok())
            .unwrap_or(0)
    }

    /// What the client of `usage`, to which `contexts` belong, used of it so far.
    pub(crate) fn used<'a>(
        &self,
        usage: &Arc<Usage>,
        contexts: impl Iterator<Item = &'a Arc<Context>>,
    ) -> Used {
        let state = self.state.lock();
        let mine = contexts.filter(|context| context.engine() == self.index);
        mine.for_each(|context| context.settle());
        // Also those that were destroyed and still run.
        let running = state.node.iter();
        running.for_each(|(_, packet)| packet.submission.context().settle());
        state.clock.read(usage)
    }

    /// Queues a published submission of `context` and starts what can be started.
    ///
    /// For clients' threads: takes spin locks only, and signals nothing.
    pub(crate) fn submit(
        &self,
        dev: &SkuaDevice,
        context: &Arc<Context>,
        submission: ListArc<Submission>,
    ) {
        let filled = {
            let mut state = self.state.lock();
            let due = context.push(submission);
            state.attend(context, due);
            self.fill(dev, &mut state)
        };
        if filled.is_err() {
            dev.lose_later();
        }
    }

    /// Looks at `context` again: a gate of it has opened, it was closed, or the device is lost.
    /// Process context, no locks held; signals fences.
    pub(crate) fn look_at(&self, dev: &SkuaDevice, context: &Arc<Context>) {
        let _signalling = Signalling::begin();
        self.drain(dev, context);
        {
            let mut state = self.state.lock();
            let due = context.due();
            // What is to be drained was: it comes back when it has left the ring.
            if let Due::Turn = due {
                state.attend(context, due);
            }
        }
        self.process(dev);
    }

    /// Cancels what is to be cancelled of the queue of `context`, in order, unless something of the
    /// context is in the ring: when that is over, it leads here again.
    pub(crate) fn drain(&self, dev: &SkuaDevice, context: &Context) {
        loop {
            let turn = self.turn.lock();
            let lost = self.state.lock().mode == Mode::Lost;
            let Some(submission) = context.pop_cancelled(lost) else {
                return;
            };
            let error = if lost { ENODEV } else { ECANCELED };
            submission.finish(dev, self.index, Err(error));
            drop(turn);
        }
    }

    /// Takes what is complete, starts what can be started, signals what is over. Process context,
    /// no locks held.
    pub(crate) fn process(&self, dev: &SkuaDevice) {
        let _signalling = Signalling::begin();
        let mut finished = Finished::new();
        let turn = self.turn.lock();
        let outcome = {
            let mut state = self.state.lock();
            let collected = match state.mode {
                Mode::Running => self.complete(dev, &mut state, &mut finished),
                Mode::Recovering | Mode::Lost => Ok(()),
            };
            collected.and_then(|()| self.fill(dev, &mut state))
        };
        finished.finish(dev, self.index);
        drop(turn);
        if outcome.is_err() {
            // What the device wrote cannot be, or it is unbound: in either case it is lost.
            dev.lose_later();
        }
    }

    /// Takes what the engine reports: moves packets that it has completed to `finished`, and frees
    /// their part of the ring.
    ///
    /// `EIO` if the device reports what cannot be; `ENODEV` if it is unbound.
    pub(crate) fn complete(
        &self,
        dev: &SkuaDevice,
        state: &mut State,
        finished: &mut Finished,
    ) -> Result {
        let ended = state
            .node
            .complete(&dev.hw, |packet| finished.push(packet, Ok(())));
        for (packet, _) in finished.iter() {
            state.retire(packet);
        }
        Ok(ended?)
    }

    /// Moves portions that can start into the ring, as far as there is room, and tells the engine.
    fn fill(&self, dev: &SkuaDevice, state: &mut State) -> Result {
        if state.mode != Mode::Running {
            return Ok(());
        }
        while !state.node.is_full() {
            let next = state.ready_system.pop_front();
            let Some(context) = next.or_else(|| state.ready.pop_front()) else {
                break;
            };
            let context = context.into_arc();
            let next = context.next(|task| {
                let fits = state.node.fits(&dev.hw, &task);
                fits.then(|| Ok(state.node.build(&dev.hw, &task)?))
            });
            let (packet, due, built) = match next {
                Ok((packet, due)) => (packet, due, Ok(())),
                Err(error) => (None, Due::Nothing, Err(error)),
            };
            let full = packet.is_none() && matches!(due, Due::Turn);
            state.attend(&context, due);
            dev.reapers.contexts.bury(context);
            built?;
            let Some(packet) = packet else {
                if full {
                    break;
                }
                continue;
            };
            if packet.from == MultipassOffset::default() {
                let id = packet.submission.context().id();
                packet
                    .submission
                    .with_fence(|fence| trace::start(dev, self.index.get(), id, fence));
            }
            let started = state.node.start(&dev.hw, packet);
            state.look_at_head();
            started?;
        }
        if state.node.notify(&dev.hw)? {
            dev.watch();
        }
        Ok(())
    }

    /// Takes no more work, and finishes with `ENODEV` what is in the ring. Of what waits in
    /// contexts' queues the caller takes care: it closes all contexts.
    pub(crate) fn lose(&self, dev: &SkuaDevice) {
        let mut finished = Finished::new();
        let turn = self.turn.lock();
        let (mut system, mut clients) = (List::new(), List::new());
        {
            let mut state = self.state.lock();
            state.mode = Mode::Lost;
            state
                .node
                .abandon(|packet| finished.push(packet, Err(ENODEV)));
            for (packet, _) in finished.iter() {
                state.retire(packet);
            }
            core::mem::swap(&mut state.ready_system, &mut system);
            core::mem::swap(&mut state.ready, &mut clients);
        }
        finished.finish(dev, self.index);
        drop(turn);
        for mut ready in [system, clients] {
            while let Some(context) = ready.pop_front() {
                let context = context.into_arc();
                self.drain(dev, &context);
                dev.reapers.contexts.bury(context);
            }
        }
    }
}
