// SPDX-License-Identifier: MIT

//! Driver and device on one axis of time.
//!
//! Each engine has ticks of its own, which stand still while it has nothing to do: no clock is
//! common to the device. The axis is made of them:
//!
//! - while an engine works, its ticks are the axis';
//! - an engine that begins, or goes on behind WAIT, does so no earlier than the latest time that
//!   any engine has reached in the order in which the host saw the events.
//!
//! So lengths are exact and effects are not before their causes, but what two engines do side by
//! side is where their own ticks put it. Time in which no engine works is not on the axis; the
//! host's is kept beside it.
//!
//! What the driver did has the guest's time. It is put on the host's with one shift, the largest
//! with which no packet begins before it was written; and from there on the axis between the two
//! events of the device next to it. Driver and device name a packet by its engine and the fence id
//! that the engine has for it.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use serde::Serialize;

use crate::device::{self, Record};
use crate::guest::{self, Trace};

/// A point of time, on the page's axis and on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Instant {
    /// On the axis, in ticks.
    pub ticks: u64,
    /// On the host, in nanoseconds since the record began.
    pub ns: u64,
}

impl Instant {
    /// The earlier of both.
    fn earlier(self, other: Self) -> Self {
        Self {
            ticks: self.ticks.min(other.ticks),
            ns: self.ns.min(other.ns),
        }
    }
}

/// An engine, which has a line of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Engine {
    /// Index and kind of the engine, as the page shows them.
    pub name: String,
}

/// A context, with the process that it works for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Context {
    /// Its place in the driver's table, one less than its number; `None` of what no context was
    /// read for, and of the paging process.
    pub id: Option<u64>,
    /// The address space, as the device names it.
    pub asid: u64,
    /// What its fences' names begin with, as no other context's do; `None` as long as the driver's
    /// trace has none of it, and of what is no client's.
    pub line: Option<String>,
    /// The task that submitted first, and a letter that no other context has.
    pub name: String,
}

/// A time in which a packet waited for a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// When the value was first looked for.
    pub from: Instant,
    /// When it was there, or the engine was stopped.
    pub to: Instant,
}

/// A packet on an engine, from its beginning, or resumption, to where it ended or was stopped; or
/// the commands of the ring up to a fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// Index of the engine that the packet ran on.
    pub engine: usize,
    /// The fence id that the engine has for it.
    pub id: u64,
    /// Index of its context.
    pub context: usize,
    /// Index of its submission, if the driver's trace has it.
    pub submission: Option<usize>,
    /// It goes on where it was preempted.
    pub resumed: bool,
    /// When the packet began, or was resumed.
    pub from: Instant,
    /// When the packet ended, or was stopped.
    pub to: Instant,
    /// The engine's own ticks at the beginning and at the end.
    pub own: [u64; 2],
    /// `end`, `fence`, `stop`, `fault`, `reset`, `adapter-reset`; `open` if the record ends before.
    pub ending: String,
    /// Times in which the packet waited for a value in memory.
    pub waits: Vec<Wait>,
    /// Bytes, by what was done with them: `copy`, `fill`, `in`, `out`, `saved`, `restored`.
    pub bytes: BTreeMap<String, u64>,
}

/// What was submitted with one fence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Submission {
    /// Context and number of the fence.
    pub fence: String,
    /// The task that submitted it.
    pub task: String,
    /// Whether it moves or clears memory for the driver.
    pub paging: bool,
    /// Since when it was held for values, if it was.
    pub held: Option<Instant>,
    /// When it was submitted, or let go.
    pub submitted: Option<Instant>,
    /// When the submission was over, if it was before the record's end.
    pub done: Option<Instant>,
    /// What its fence carries: 0, or a negative errno.
    pub error: i64,
    /// Indices of its packets.
    pub packets: Vec<usize>,
    /// Indices of the submissions for which it waits, or for values that they signalled.
    pub after: Vec<usize>,
    /// Values of monitored fences for which it has waited.
    pub values: Vec<Value>,
    /// Fences of others for which it waits.
    pub foreign: Vec<String>,
}

/// A value of a monitored fence that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// The driver's number of the fence.
    pub fence: u64,
    /// The value that the fence was to reach.
    pub value: u64,
    /// Index of the signal that has made it reach that, if the trace has it.
    pub signal: Option<usize>,
}

/// A value that a monitored fence got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signal {
    /// The driver's number of the fence.
    pub fence: u64,
    /// The value that the fence has then.
    pub value: u64,
    /// When it was promised; the CPU signals it then.
    pub at: Instant,
    /// The name of the task that promised or signalled it.
    pub task: String,
    /// Index of the submission at whose end it is there; none of the CPU's.
    pub submission: Option<usize>,
}

/// Memory that moved from one segment to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    /// When the move was decided.
    pub at: Instant,
    /// Index of the submission that makes it.
    pub submission: usize,
    /// Where it was: `vram0`, `system`, `aperture`.
    pub from: String,
    /// Where it went: as `from`, or `nowhere`.
    pub to: String,
    /// Bytes that moved.
    pub bytes: u64,
    /// Nothing had to be copied.
    pub clean: bool,
}

/// A point in time that is of interest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Index of the engine that did it, if one did.
    pub engine: Option<usize>,
    /// When that was.
    pub at: Instant,
    /// `preempt`, `stop`, `restore`, `reset`, `adapter-reset`, `fault`, `no_room`, `lost`.
    pub what: String,
    /// What is shown of it when it is selected.
    pub detail: String,
}

/// A segment of memory, and how much of it was in use from when on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// `system`, `vram0`, `aperture`.
    pub name: String,
    /// Bytes of the segment.
    pub size: u64,
    /// Bytes that are in use from a moment on, by time.
    pub used: Vec<(Instant, u64)>,
}

/// What driver and device recorded of a run, joined and put in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The engines, by their indices.
    pub engines: Vec<Engine>,
    /// In the order in which they came up.
    pub contexts: Vec<Context>,
    /// By when the host saw them begin.
    pub packets: Vec<Packet>,
    /// In the order in which the driver came to them.
    pub submissions: Vec<Submission>,
    /// The values that monitored fences got, by time.
    pub signals: Vec<Signal>,
    /// The moves between segments, by time.
    pub moves: Vec<Move>,
    /// What else happened: of each engine by time.
    pub marks: Vec<Mark>,
    /// The segments of memory, by name.
    pub regions: Vec<Region>,
    /// The end of the axis.
    pub end: Instant,
    /// Events that the guest's buffers had no room for.
    pub lost: u64,
    /// The device's record was full before the run was over.
    pub full: bool,
}

/// The axis, as it comes into being.
#[derive(Default)]
struct Axis {
    /// The latest time that any engine has reached.
    now: u64,
    /// Of each engine: its own ticks and its time at its last event, and whether it works since.
    engines: Vec<(u64, u64, bool)>,
    /// When the host saw `now` change.
    steps: Vec<Instant>,
}

impl Axis {
    /// The time of an event, and that of the engine before it.
    fn advance(&mut self, event: &device::Event) -> (u64, u64) {
        let (own, time, works) = self.engines[event.engine];
        let start = if works { time } else { time.max(self.now) };
        // An adapter reset sets an engine's ticks to 0.
        let passed = event.ticks.checked_sub(own).unwrap_or(event.ticks);
        let time = start.saturating_add(passed);
        let works = match event.name.as_str() {
            "begin" | "go" | "restore" => true,
            "preempt" => works,
            _ => false,
        };
        let own = if event.name == "adapter-reset" {
            0
        } else {
            event.ticks
        };
        self.engines[event.engine] = (own, time, works);
        self.now = self.now.max(time);
        self.steps.push(Instant {
            ticks: self.now,
            ns: event.ns,
        });
        (start, time)
    }

    /// The time when the host's was `ns`.
    fn at(&self, ns: u64) -> Instant {
        let behind = self.steps.partition_point(|step| step.ns <= ns);
        let before = behind
            .checked_sub(1)
            .map(|at| self.steps[at])
            .unwrap_or_default();
        let ticks = match self.steps.get(behind) {
            None => before.ticks,
            Some(next) => {
                let (passed, all) = (u128::from(ns - before.ns), u128::from(next.ns - before.ns));
                let between = u128::from(next.ticks - before.ticks) * passed / all.max(1);
                // CAST: at most what lies between two times.
                before.ticks + between as u64
            }
        };
        Instant { ticks, ns }
    }
}

/// The name of a letter: A, B, …, Z, AA, AB, …
fn letters(number: usize) -> String {
    // CAST: less than 26.
    let last = char::from(b'A' + (number % 26) as u8);
    match number / 26 {
        0 => last.to_string(),
        more => letters(more - 1) + &last.to_string(),
    }
}

impl Timeline {
    /// Joins what the device and the driver say of one run.
    pub fn new(record: &Record, trace: &Trace) -> Self {
        let engines = (0..).zip(&record.engines);
        let engine = |(index, kind): (usize, &String)| Engine {
            name: format!("{index} ({kind})"),
        };
        let mut timeline = Self {
            engines: engines.map(engine).collect(),
            lost: trace.lost,
            full: record.full,
            ..Self::default()
        };
        let axis = timeline.add_device(record);
        let written = timeline.join(trace);
        timeline.tell_apart();
        let shift = timeline.shift(&written);
        // What came before the record is at its beginning.
        let at = |ns: u64| axis.at(u64::try_from(i128::from(ns) + shift).unwrap_or(0));
        timeline.add_guest(trace, at);
        timeline.order();
        let ends = timeline
            .submissions
            .iter()
            .filter_map(|submission| submission.done);
        let ends = ends
            .chain(timeline.packets.iter().map(|packet| packet.to))
            .chain(timeline.marks.iter().map(|mark| mark.at));
        timeline.end = ends.fold(axis.steps.last().copied().unwrap_or_default(), |end, at| {
            Instant {
                ticks: end.ticks.max(at.ticks),
                ns: end.ns.max(at.ns),
            }
        });
        timeline
    }

    /// Index of the context that the device names so, which has no letter yet.
    fn context(&mut self, event: &device::Event) -> usize {
        let id = event.get("context").checked_sub(1);
        let asid = event.get("asid");
        let same = |context: &Context| (context.id, context.asid) == (id, asid);
        self.contexts.iter().position(same).unwrap_or_else(|| {
            let name = match id {
                Some(_) => "",
                // The paging process is no context of the driver's, and of no client.
                None if event.fields.contains_key("context") => "paging",
                None => "ring",
            };
            self.contexts.push(Context {
                id,
                asid,
                line: None,
                name: name.to_owned(),
            });
            self.contexts.len() - 1
        })
    }

    /// Tells contexts apart that the device names alike. The driver's numbers are used again, with
    /// other address spaces or the same one; no two contexts have fences of one line. What the
    /// driver's trace does not have is of the last of them.
    fn tell_apart(&mut self) {
        let named = mem::take(&mut self.contexts);
        for packet in &mut self.packets {
            let like = &named[packet.context];
            // The paging process has as many lines as it has moves.
            let submission = packet.submission.filter(|_| like.id.is_some());
            let line = submission.and_then(|at| self.submissions[at].fence.split(':').next());
            let same = |context: &Context| {
                (context.id, context.asid) == (like.id, like.asid)
                    && (line.is_none() || context.line.is_none() || context.line.as_deref() == line)
            };
            let contexts = &mut self.contexts;
            packet.context = contexts.iter().rposition(same).unwrap_or_else(|| {
                let mut context = like.clone();
                if context.id.is_some() {
                    context.name = letters(contexts.len());
                }
                contexts.push(context);
                contexts.len() - 1
            });
            if let Some(line) = line {
                contexts[packet.context].line = Some(line.to_owned());
            }
        }
    }

    /// What the engines did.
    fn add_device(&mut self, record: &Record) -> Axis {
        let mut axis = Axis {
            engines: vec![(0, 0, false); record.engines.len()],
            ..Axis::default()
        };
        // Of each engine: the packet that runs, and since when it waits.
        let mut open: Vec<(Option<usize>, Option<Instant>)> =
            vec![(None, None); axis.engines.len()];
        for event in &record.events {
            let (start, time) = axis.advance(event);
            let at = Instant {
                ticks: time,
                ns: event.ns,
            };
            let (running, waiting) = open[event.engine];
            let name = event.name.as_str();
            match name {
                "begin" => {
                    open[event.engine].0 = Some(self.packets.len());
                    let context = self.context(event);
                    self.packets.push(packet(event, context, at));
                }
                "wait" => open[event.engine].1 = Some(at),
                "go" => {
                    open[event.engine].1 = None;
                    if let (Some(running), Some(from)) = (running, waiting) {
                        self.packets[running].waits.push(Wait { from, to: at });
                    }
                }
                "fence" => {
                    let from = Instant {
                        ticks: start,
                        ns: event.ns,
                    };
                    let context = self.context(event);
                    let mut packet = packet(event, context, from);
                    packet.own[0] = event.ticks.saturating_sub(time - start);
                    packet.close(event, at);
                    self.packets.push(packet);
                }
                "restore" | "preempt" => {
                    if let Some(running) = running.filter(|_| name == "restore") {
                        let bytes = &mut self.packets[running].bytes;
                        bytes.insert("restored".to_owned(), event.get("bytes"));
                    }
                    self.mark(event, at);
                }
                _ => {
                    if let Some(running) = running {
                        self.packets[running].close(event, at);
                    }
                    open[event.engine] = (None, None);
                    if name != "end" {
                        self.mark(event, at);
                    }
                }
            }
        }
        for (running, waiting) in open {
            let end = axis.steps.last().copied().unwrap_or_default();
            if let Some(running) = running {
                let packet = &mut self.packets[running];
                packet.to = Instant {
                    ticks: packet.from.ticks.max(end.ticks),
                    ns: end.ns,
                };
                let to = packet.to;
                packet.waits.extend(waiting.map(|from| Wait { from, to }));
            }
        }
        axis
    }

    fn mark(&mut self, event: &device::Event, at: Instant) {
        let fields = event
            .fields
            .iter()
            .map(|(name, value)| format!("{name} {value}"));
        self.marks.push(Mark {
            engine: Some(event.engine),
            at,
            what: event.name.clone(),
            detail: fields.collect::<Vec<_>>().join(", "),
        });
    }

    /// Index of the submission with this fence.
    fn submission(&mut self, known: &mut HashMap<String, usize>, fence: &str) -> usize {
        *known.entry(fence.to_owned()).or_insert_with(|| {
            self.submissions.push(Submission {
                fence: fence.to_owned(),
                ..Submission::default()
            });
            self.submissions.len() - 1
        })
    }

    /// Finds the submissions of packets. For each packet that was found, when it was written to the
    /// ring, in the guest's nanoseconds.
    fn join(&mut self, trace: &Trace) -> Vec<(usize, u64)> {
        let mut known = HashMap::new();
        let mut written: HashMap<(u64, u64), Vec<(usize, u64)>> = HashMap::new();
        for event in trace
            .events
            .iter()
            .filter(|event| !["", CPU].contains(&event.text("fence")))
        {
            // What is waited for alone may be somebody else's.
            let at = self.submission(&mut known, event.text("fence"));
            if event.name == "packet" {
                let name = (event.number("engine"), event.number("packet"));
                let list = written.entry(name).or_default();
                // Or once more as it was, when an engine was stopped or reset.
                if list.last().is_none_or(|(last, _)| *last != at) {
                    list.push((at, event.ns));
                }
            }
        }
        // The same number comes again when the driver was bound to the device again.
        written.values_mut().for_each(|list| list.reverse());
        let mut found = Vec::new();
        for (index, packet) in self.packets.iter_mut().enumerate() {
            // CAST: few.
            let list = written.get_mut(&(packet.engine as u64, packet.id));
            // It may have begun before it was written again.
            let last = list.and_then(|list| match list.len() {
                0 | 1 => list.last().copied(),
                _ => list.pop(),
            });
            let Some((at, ns)) = last else {
                continue;
            };
            packet.submission = Some(at);
            self.submissions[at].packets.push(index);
            found.push((index, ns));
        }
        found
    }

    /// What makes the host's nanoseconds of the guest's. A number that an engine met more than once
    /// says nothing if there are others: not all is in the driver's trace, so it may be another's.
    fn shift(&self, written: &[(usize, u64)]) -> i128 {
        let name = |packet: &Packet| (packet.engine, packet.id);
        let mut times: HashMap<_, usize> = HashMap::new();
        for packet in &self.packets {
            *times.entry(name(packet)).or_default() += 1;
        }
        let once = |(packet, _): &&(usize, u64)| times[&name(&self.packets[*packet])] == 1;
        let any_once = written.iter().any(|one| once(&one));
        let shifts = written
            .iter()
            .filter(|one| !any_once || once(one))
            .map(|(packet, ns)| i128::from(self.packets[*packet].from.ns) - i128::from(*ns));
        shifts.min().unwrap_or(0)
    }

    /// What the driver did.
    fn add_guest(&mut self, trace: &Trace, at: impl Fn(u64) -> Instant) {
        let mut known: HashMap<String, usize> = HashMap::new();
        let fences = self
            .submissions
            .iter()
            .map(|submission| submission.fence.clone());
        known.extend(fences.zip(0..));
        // Of each fence, by value; a higher one is reached by none before it.
        let mut signals: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        for event in &trace.events {
            let found = known.get(event.text("fence")).copied();
            match (event.name.as_str(), found) {
                ("submit", Some(found)) => {
                    let submission = &mut self.submissions[found];
                    submission.submitted = Some(at(event.ns));
                    submission.task.clone_from(&event.task);
                    if let Some(packet) = submission.packets.first() {
                        let context = &mut self.contexts[self.packets[*packet].context];
                        if context.id.is_some() && !context.name.contains(' ') {
                            context.name = format!("{} {}", event.task, context.name);
                        }
                    }
                }
                ("paging", Some(found)) => self.submissions[found].paging = true,
                ("depend", Some(found)) => {
                    let on = event.text("on");
                    let submission = &mut self.submissions[found];
                    match known.get(on) {
                        Some(on) if !submission.after.contains(on) => submission.after.push(*on),
                        Some(_) => {}
                        None => submission.foreign.push(on.to_owned()),
                    }
                }
                ("signal", submission) => {
                    let (fence, value) = (event.number("monitored"), event.number("value"));
                    signals.insert((fence, value), self.signals.len());
                    self.signals.push(Signal {
                        fence,
                        value,
                        at: at(event.ns),
                        task: event.task.clone(),
                        submission,
                    });
                }
                ("await", Some(found)) => {
                    let (fence, value) = (event.number("monitored"), event.number("value"));
                    let reached = signals.range((fence, value)..=(fence, u64::MAX)).next();
                    let signal = reached.map(|(_, signal)| *signal);
                    let by = signal.and_then(|signal| self.signals[signal].submission);
                    let submission = &mut self.submissions[found];
                    submission.values.push(Value {
                        fence,
                        value,
                        signal,
                    });
                    let by = by.filter(|by| !submission.after.contains(by));
                    submission.after.extend(by);
                    let held_ns = event.number("held").saturating_mul(1000);
                    if held_ns > 0 {
                        submission.held = Some(at(event.ns.saturating_sub(held_ns)));
                    }
                }
                ("done", Some(found)) => {
                    let submission = &mut self.submissions[found];
                    submission.done = Some(at(event.ns));
                    submission.error = event.text("error").parse().unwrap_or(0);
                }
                ("move", Some(submission)) => self.moves.push(Move {
                    at: at(event.ns),
                    submission,
                    from: event.text("from").to_owned(),
                    to: event.text("to").to_owned(),
                    bytes: event.number("bytes"),
                    clean: event.number("clean") != 0,
                }),
                ("memory", _) => self.add_use(event, at(event.ns)),
                ("no_room", _) => self.marks.push(Mark {
                    engine: None,
                    at: at(event.ns),
                    what: "no_room".to_owned(),
                    detail: format!("{} bytes in {}", event.text("bytes"), event.text("region")),
                }),
                ("lost", _) => self.marks.push(Mark {
                    engine: None,
                    at: at(event.ns),
                    what: "lost".to_owned(),
                    detail: "the device is given up".to_owned(),
                }),
                _ => {}
            }
        }
    }

    fn add_use(&mut self, event: &guest::Event, at: Instant) {
        let (name, used) = (event.text("region"), event.number("used"));
        let place = self
            .regions
            .binary_search_by(|region| region.name.as_str().cmp(name));
        let place = place.unwrap_or_else(|place| {
            let region = Region {
                name: name.to_owned(),
                size: 0,
                used: Vec::new(),
            };
            self.regions.insert(place, region);
            place
        });
        let region = &mut self.regions[place];
        region.size = event.number("size");
        if region.used.last().is_none_or(|(_, last)| *last != used) {
            region.used.push((at, used));
        }
    }

    /// Nothing is held after it was submitted, done before that, nor over before its packets are:
    /// one shift is not right for all of a long run.
    fn order(&mut self) {
        for submission in &mut self.submissions {
            let packets = || {
                submission
                    .packets
                    .iter()
                    .map(|packet| &self.packets[*packet])
            };
            if let (Some(at), Some(first)) = (
                &mut submission.submitted,
                packets().map(|packet| packet.from).min(),
            ) {
                *at = at.earlier(first);
            }
            if let (Some(held), Some(at)) = (&mut submission.held, submission.submitted) {
                *held = held.earlier(at);
            }
            if let (Some(at), Some(last)) = (
                &mut submission.done,
                packets().map(|packet| packet.to).max(),
            ) {
                *at = Instant {
                    ticks: at.ticks.max(last.ticks),
                    ns: at.ns.max(last.ns),
                };
            }
        }
    }
}

/// What the driver's trace has for the fence of what the CPU does.
const CPU: &str = "0:0";

/// A packet that begins with `event`.
fn packet(event: &device::Event, context: usize, from: Instant) -> Packet {
    Packet {
        engine: event.engine,
        id: event.get("packet"),
        context,
        submission: None,
        resumed: event.get("resume") != 0,
        from,
        to: from,
        own: [event.ticks; 2],
        ending: "open".to_owned(),
        waits: Vec::new(),
        bytes: BTreeMap::new(),
    }
}

impl Packet {
    /// Ends the attempt that is open with `event`, at the time `at`.
    fn close(&mut self, event: &device::Event, at: Instant) {
        (self.to, self.own[1]) = (at, event.ticks);
        self.ending.clone_from(&event.name);
        for name in ["copy", "fill", "in", "out", "saved"] {
            if let Some(bytes) = event.fields.get(name).filter(|bytes| **bytes != 0) {
                self.bytes.insert(name.to_owned(), *bytes);
            }
        }
    }
}
