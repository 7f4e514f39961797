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
//! A context stands in the ready list while its first submission can start. The system's context,
//! for paging, goes before all others.
//!
//! Two parties work here. A thread that submits fills the ring ([`Engine::submit`]): under a spin
//! lock, so it cannot be stopped on the way, and without signalling anything. Interrupt threads and
//! workers take out what has ended, signal it, and fill the ring again ([`Engine::process`]). No
//! client's thread ever holds what others' fences need.
//!
//! Decisions are [`crate::policy`]'s: where in the ring ([`RingSpace`]), which fence id is which
//! packet ([`InFlight`]).

use crate::{
    ext::{
        fence::Signalling,
        trace, //
    },
    fences::gate::Wake,
    gpu::SkuaDevice,
    hardware::shared::{
        Shared,
        RING_SIZE, //
    },
    kernel_heap::KernelHeap,
    policy::{
        in_flight::InFlight,
        ring_space::RingSpace, //
    },
    spec::{
        command::{
            Command,
            EngineKind, //
        },
        number::EngineIndex,
        regs::engine as regs,
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
    /// It does.
    Running,
    /// It is being reset; work waits.
    Recovering,
    /// The device is lost; work is refused.
    Lost,
}

/// What is under the engine's lock.
pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) ring: RingSpace,
    pub(crate) in_flight: InFlight<KernelHeap, Packet>,
    /// Whose time it is.
    clock: EngineClock,
    /// The system's context, if it is ready.
    ready_system: List<Context>,
    /// Clients' contexts that are ready, in turn.
    ready: List<Context>,
    /// The fence id that was last taken from the status page.
    completed: u64,
    /// Resets since a packet last ended for which nobody in the ring was to blame.
    pub(crate) blameless: u32,
}

/// An engine.
#[pin_data]
pub(crate) struct Engine {
    index: EngineIndex,
    kind: EngineKind,
    /// Fault records with numbers before this one (modulo 2^32) are from before the last reset.
    pub(crate) stale_faults: Atomic<u32>,
    /// Held from taking packets out of the ring until their fences are signalled, so that fences
    /// signal in order. Interrupt threads, workers and recovery take it; ioctls do not.
    #[pin]
    pub(crate) turn: Mutex<()>,
    #[pin]
    pub(crate) state: SpinLock<State>,
}

impl State {
    /// Puts a packet into the ring as the newest in flight. The caller has seen that there is room.
    fn start(
        &mut self,
        dev: &SkuaDevice,
        shared: &Shared,
        engine: EngineIndex,
        mut packet: Packet,
    ) -> Result {
        let id = self.in_flight.next_id();
        packet.start = self.ring.tail();
        let ring = &mut self.ring;
        let emitted = packet
            .submission
            .commands(dev, packet.portion, id, |encoded| {
                let words = encoded.words();
                let bytes = u32::try_from(words.len() * 4)?;
                let slot = ring.place(bytes).map_err(|_| EIO)?;
                if slot.pad > 0 {
                    let nop = Command::Nop {
                        words: u16::try_from(slot.pad / 4)?,
                    };
                    let nop = nop.encode();
                    let header = nop.words().get(..2).ok_or(EIO)?;
                    shared.write_ring(engine, slot.pad_at, header)?;
                }
                shared.write_ring(engine, slot.at, words)?;
                ring.commit(slot).map_err(|_| EIO)?;
                Ok(())
            });
        packet.end = self.ring.tail();
        // Also one that could not be written: whoever ends the device finishes it.
        if kernel::warn_on!(self.in_flight.push(packet).is_err()) {
            return Err(EIO);
        }
        self.look_at_head();
        emitted
    }

    /// Whether the ring takes portion `portion` of `submission` now.
    fn fits(&self, submission: &Submission, portion: u32) -> bool {
        !self.in_flight.is_full() && self.ring.space() >= submission.ring_bytes(portion)
    }

    /// Counts a packet out of the ring.
    pub(crate) fn retire(&mut self, packet: &Packet) {
        let context = packet.submission.context();
        context.settle();
        self.look_at_head();
        self.attend(context, context.retire());
    }

    /// Tells the clock what is at the head of the ring.
    fn look_at_head(&mut self) {
        let head = self.in_flight.front();
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
        let ring = RingSpace::new(RING_SIZE, 8).map_err(|_| EINVAL)?;
        let in_flight = InFlight::new(IN_FLIGHT, 1)?;
        let clock = EngineClock::new(index.get());
        KBox::try_pin_init(
            try_pin_init!(Self {
                index,
                kind,
                stale_faults: Atomic::new(0),
                turn <- new_mutex!(()),
                state <- new_spinlock!(State {
                    mode: Mode::Running,
                    ring,
                    in_flight,
                    clock,
                    ready_system: List::new(),
                    ready: List::new(),
                    completed: 0,
                    blameless: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// What it can do.
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

    /// Programs the ring and starts fetching, from an empty ring.
    pub(crate) fn enable(&self, dev: &SkuaDevice) -> Result {
        let ring = Shared::ring_address(&dev.caps, self.index)?;
        dev.regs
            .write_engine(self.index, regs::RING_BASE::new().with_address(ring))?;
        dev.regs
            .write_engine(self.index, regs::RING_SIZE::new().with_bytes(RING_SIZE))?;
        dev.regs
            .write_engine(self.index, regs::CTRL::new().with_enable(true))
    }

    /// The state that the device last reported of the engine.
    pub(crate) fn reported_state(&self, dev: &SkuaDevice) -> Option<EngineState> {
        let shared = dev.shared.try_access()?;
        let state = shared.engine32(self.index, status::engine::STATE).ok()?;
        EngineState::from_u32(state)
    }

    /// Engine time since the device was started, in ticks; 0 when the device is unbound.
    pub(crate) fn ticks(&self, dev: &SkuaDevice) -> u64 {
        let shared = dev.shared.try_access();
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
        let mine = contexts.filter(|context| context.engine() == self.index.get());
        mine.for_each(|context| context.settle());
        // Also those that were destroyed and still run.
        let running = state.in_flight.iter();
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
            dev.reapers.submissions.bury(submission);
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
        finished.signal(dev, self.index);
        drop(turn);
        finished.bury(&dev.reapers.submissions);
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
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let completed = shared.engine64(self.index, status::engine::COMPLETED_FENCE)?;
        if completed == state.completed {
            return Ok(());
        }
        let mut end = None;
        for (_, packet) in state.in_flight.complete_up_to(completed).map_err(|_| EIO)? {
            end = Some(packet.end);
            finished.push(packet, Ok(()));
        }
        if let Some(end) = end {
            state.ring.advance(end).map_err(|_| EIO)?;
        }
        state.completed = completed;
        state.blameless = 0;
        for (packet, _) in finished.iter() {
            state.retire(packet);
        }
        Ok(())
    }

    /// Moves portions that can start into the ring, as far as there is room, and tells the engine.
    fn fill(&self, dev: &SkuaDevice, state: &mut State) -> Result {
        if state.mode != Mode::Running {
            return Ok(());
        }
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let tail = state.ring.tail();
        while !state.in_flight.is_full() {
            let next = state.ready_system.pop_front();
            let Some(context) = next.or_else(|| state.ready.pop_front()) else {
                break;
            };
            let context = context.into_arc();
            let (packet, due) = context.next(|submission, portion| state.fits(submission, portion));
            let full = packet.is_none() && matches!(due, Due::Turn);
            state.attend(&context, due);
            dev.reapers.contexts.bury(context);
            let Some(packet) = packet else {
                if full {
                    break;
                }
                continue;
            };
            if packet.portion == 0 {
                let id = packet.submission.context().id();
                packet
                    .submission
                    .with_fence(|fence| trace::start(dev, self.index.get(), id, fence));
            }
            state.start(dev, &shared, self.index, packet)?;
        }
        self.ring_doorbell(dev, state, tail)
    }

    /// Tells the engine of what was written to the ring since the tail was `before`.
    fn ring_doorbell(&self, dev: &SkuaDevice, state: &State, before: u32) -> Result {
        if state.ring.tail() != before {
            let doorbell = regs::DOORBELL::new().with_tail(state.ring.tail());
            dev.regs.write_engine(self.index, doorbell)?;
            dev.watch();
        }
        Ok(())
    }

    /// Writes all packets in flight into the empty ring again, with new fence ids, and starts the
    /// engine.
    pub(crate) fn replay(&self, dev: &SkuaDevice, state: &mut State) -> Result {
        let shared = dev.shared.try_access().ok_or(ENODEV)?;
        let mut packets = [const { None }; IN_FLIGHT];
        let mut places = packets.iter_mut();
        state.in_flight.remove_if(
            |_, _| true,
            |_, packet| match places.next() {
                Some(place) => *place = Some(packet),
                None => _ = kernel::warn_on!(true),
            },
        );
        state.ring.reset();
        for packet in packets.into_iter().flatten() {
            state.start(dev, &shared, self.index, packet)?;
        }
        self.enable(dev)?;
        self.ring_doorbell(dev, state, 0)
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
                .in_flight
                .remove_if(|_, _| true, |_, packet| finished.push(packet, Err(ENODEV)));
            for (packet, _) in finished.iter() {
                state.retire(packet);
            }
            core::mem::swap(&mut state.ready_system, &mut system);
            core::mem::swap(&mut state.ready, &mut clients);
        }
        finished.signal(dev, self.index);
        drop(turn);
        finished.bury(&dev.reapers.submissions);
        for mut ready in [system, clients] {
            while let Some(context) = ready.pop_front() {
                let context = context.into_arc();
                self.drain(dev, &context);
                dev.reapers.contexts.bury(context);
            }
        }
    }
}
