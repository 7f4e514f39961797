// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an engine does between steps, seen from its thread, for a record ([`crate::events`]).
//!
//! A packet begins and ends in steps of its own ([`Core::step`]), so nothing is missed by who looks
//! behind each.

use std::sync::Arc;

use skua_spec::context::Descriptor;
use skua_spec::number::EngineIndex;
use skua_spec::status::Counter;

use crate::counters::Tally;
use crate::engine::core::{Core, Outcome};
use crate::engine::packet::Packet;
use crate::events::{Events, Moment};

/// What is told of a packet's transfers and states, with the names of the fields: bytes.
const TOLD: [(Counter, &str); 4] = [
    (Counter::FillBytes, "fill"),
    (Counter::CopyBytes, "copy"),
    (Counter::CopySystemToVram, "in"),
    (Counter::CopyVramToSystem, "out"),
];

/// What [`Watch`] counts in a step: [`TOLD`], then what was saved and restored.
type Counts = [u64; TOLD.len() + 2];

/// What was counted since the tally was moved last.
fn counts(tally: &Tally) -> Counts {
    let mut counts = [0; TOLD.len() + 2];
    let told = TOLD.map(|(counter, _)| counter);
    let all = told
        .into_iter()
        .chain([Counter::SavedBytes, Counter::RestoredBytes]);
    for (count, counter) in counts.iter_mut().zip(all) {
        *count = tally.get(counter);
    }
    counts
}

/// A packet that has begun.
struct Running {
    /// The packet that is watched, as it began.
    packet: Packet,
    /// The moment at which it began.
    first: Moment,
    /// Its context, once that was read.
    context: Option<Descriptor>,
    /// Whether the record has an event for its beginning.
    told: bool,
}

/// One engine's part of a record.
pub(crate) struct Watch {
    /// The record that is made.
    events: Arc<Events>,
    /// The engine that is watched.
    engine: EngineIndex,
    /// The packet that the engine runs; none between packets.
    packet: Option<Running>,
    /// WAIT's value was not there when it looked last.
    waits: bool,
    /// Of the packet, or of the ring's commands since the last one.
    counts: Counts,
    /// What had been counted when the step began.
    before: Counts,
}

impl Watch {
    pub(crate) fn new(events: Arc<Events>, engine: EngineIndex) -> Self {
        Self {
            events,
            engine,
            packet: None,
            waits: false,
            counts: Counts::default(),
            before: Counts::default(),
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, tally: &Tally) {
        self.before = counts(tally);
    }

    /// A step has ended, when the engine's own time was `time`; nothing that it counted was moved.
    pub(crate) fn end(&mut self, time: Option<u64>, core: &Core, tally: &Tally, outcome: &Outcome) {
        let after = counts(tally);
        for (sum, (after, before)) in self.counts.iter_mut().zip(after.iter().zip(self.before)) {
            *sum += after - before;
        }
        let waits = *outcome == Outcome::Waiting;
        // What is owed is not over.
        if core.owes() {
            return;
        }
        let now = self.events.moment(time, core.shown().ticks);
        if let (Some(packet), None) = (core.progress.packet, &self.packet) {
            self.packet = Some(Running {
                packet,
                first: now,
                context: None,
                told: false,
            });
        }
        if let Some(running) = &mut self.packet {
            running.context = core.context;
            if running.context.is_some() {
                self.tell_begin();
            }
        }
        let [.., saved, restored] = self.counts;
        if restored != 0 {
            self.tell(now, &format!("restore{} bytes={restored}", self.name()));
            self.counts[TOLD.len() + 1] = 0;
        }
        if waits != self.waits {
            self.waits = waits;
            let what = if waits { "wait" } else { "go" };
            self.tell(now, &format!("{what}{}", self.name()));
        }
        match *outcome {
            Outcome::Preempted { fence, cause } => {
                let name = self.name();
                // CAST: a small number.
                let cause = cause as u32;
                self.close(
                    now,
                    &format!("stop{name} request={fence} cause={cause} saved={saved}"),
                );
            }
            Outcome::Faulted(record) => {
                let (name, reason) = (self.name(), record.reason as u32);
                let address = record.address;
                self.close(
                    now,
                    &format!("fault{name} reason={reason} address={address:#x}"),
                );
            }
            Outcome::Completed { .. } if self.packet.is_none() => {
                let fence = core.shown().completed_fence;
                self.close(now, &format!("fence packet={fence}{}", self.told()));
            }
            _ if self.packet.is_some() && core.progress.packet.is_none() => {
                self.close(now, &format!("end{}{}", self.name(), self.told()));
            }
            _ => {}
        }
    }

    /// The engine was asked to stop.
    pub(crate) fn preempt(&mut self, time: Option<u64>, core: &Core, request: u64) {
        let now = self.events.moment(time, core.shown().ticks);
        self.tell(now, &format!("preempt{} request={request}", self.name()));
    }

    /// The engine was reset when it had worked for `ticks`, by itself or with the adapter.
    pub(crate) fn reset(&mut self, time: Option<u64>, ticks: u64, adapter: bool) {
        let now = self.events.moment(time, ticks);
        let what = if adapter { "adapter-reset" } else { "reset" };
        self.close(now, &format!("{what}{}", self.name()));
        self.waits = false;
    }

    /// The fields that name the packet that runs.
    fn name(&self) -> String {
        let Some(running) = &self.packet else {
            return " packet=0".to_owned();
        };
        let fence = running.packet.fence.unwrap_or(0);
        let context = running.context.map_or_else(String::new, |descriptor| {
            let (id, asid) = (descriptor.context_id, descriptor.asid.get());
            format!(" context={id} asid={asid}")
        });
        format!(" packet={fence}{context}")
    }

    /// The fields of what was moved.
    fn told(&self) -> String {
        let told = TOLD
            .iter()
            .zip(self.counts)
            .filter(|(_, count)| *count != 0);
        told.map(|((_, name), count)| format!(" {name}={count}"))
            .collect()
    }

    fn tell(&self, when: Moment, what: &str) {
        self.events.add(self.engine, when, what);
    }

    /// Tells that the packet has begun, unless that was told: as soon as its context is known.
    fn tell_begin(&mut self) {
        if let Some(running) = self.packet.as_mut().filter(|running| !running.told) {
            running.told = true;
            let (first, resume) = (running.first, u32::from(running.packet.resume));
            self.tell(first, &format!("begin{} resume={resume}", self.name()));
        }
    }

    /// Tells how the packet, or the ring's commands, ended.
    fn close(&mut self, when: Moment, what: &str) {
        self.tell_begin();
        self.tell(when, what);
        (self.packet, self.counts) = (None, Counts::default());
    }
}
