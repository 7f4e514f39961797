// SPDX-License-Identifier: MIT

//! A timeline as a trace for Perfetto: its protocol buffers, as far as they are used here.
//!
//! A tick is shown as a nanosecond. Each engine and each segment of memory is a track; flows lead
//! from a submission to its packets and to its end, and from what it waits for to it, the CPU's
//! signals of monitored fences among that. Perfetto colours slices by their names without digits:
//! those of packets are their contexts'.

use prost::Message;

use crate::timeline::{Packet, Submission, Timeline};

/// `perfetto.protos.Trace`: a whole trace file.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Tracks first, then events in order of time.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// `TracePacket`: a track or an event.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Ticks of the page's axis, which are shown as nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Who writes: one sequence.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// What happens on a track; none in a packet of a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// `SEQ_INCREMENTAL_STATE_CLEARED` of the first one.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// What describes a track; none in a packet of an event.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// `TrackDescriptor`: a line of the display.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// The track's number, which no other track has; not 0.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The track's name, as it is shown.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The number of the track below which it is shown.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// What its values are, if it is a track of values.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// `CounterDescriptor`: what the values of a track are.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// Their unit: `UNIT_SIZE_BYTES`.
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

/// `TrackEvent`: the beginning or end of a slice, a moment, or a value.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// What is shown of the event when it is selected.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// What kind of event it is: a [`Kind`].
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// The number of the track that it is on.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// What is shown on a slice or a moment; none at a slice's end.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// The value from here on, on a track of values.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    /// Arrows lead from one event with the same number to the next.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
}

/// `DebugAnnotation`: a name with a number or a text.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// The number, if it is one.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// The text, if it is one.
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    /// What the number or text is of.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Of no kind; protobuf wants a zero.
    Unspecified = 0,
    /// The innermost slice from here on.
    SliceBegin = 1,
    /// The slice that was begun last on the track ends.
    SliceEnd = 2,
    /// A moment, without length.
    Instant = 3,
    /// The value of a track from here on.
    Counter = 4,
}

/// `CounterDescriptor.UNIT_SIZE_BYTES`.
const SIZE_BYTES: i32 = 3;
/// `TracePacket.SEQ_INCREMENTAL_STATE_CLEARED`.
const STATE_CLEARED: u32 = 1;

/// The track of all others, and that of what concerns no engine.
const DEVICE: u64 = 1;
/// The track of what is submitted and over.
const SUBMISSIONS: u64 = 2;
/// The track of the first engine; the others' numbers follow.
const ENGINES: u64 = 0x100;
/// The track of the first region; the others' numbers follow.
const REGIONS: u64 = 0x200;

/// A trace that is being written.
struct Writer(Vec<TracePacket>);

fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name.to_owned()),
        uint_value: Some(value),
        string_value: None,
    }
}

fn words(name: &str, value: impl Into<String>) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name.to_owned()),
        uint_value: None,
        string_value: Some(value.into()),
    }
}

impl Writer {
    fn track(&mut self, uuid: u64, name: &str, counts: bool) {
        self.0.push(TracePacket {
            trusted_packet_sequence_id: Some(1),
            sequence_flags: self.0.is_empty().then_some(STATE_CLEARED),
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(name.to_owned()),
                parent_uuid: (uuid != DEVICE).then_some(DEVICE),
                counter: counts.then_some(CounterDescriptor {
                    unit: Some(SIZE_BYTES),
                }),
            }),
            ..TracePacket::default()
        });
    }

    fn event(&mut self, ticks: u64, track: u64, kind: Kind) -> &mut TrackEvent {
        self.0.push(TracePacket {
            timestamp: Some(ticks),
            trusted_packet_sequence_id: Some(1),
            ..TracePacket::default()
        });
        let at = self.0.len() - 1;
        let event = self.0[at].track_event.get_or_insert_default();
        (event.track_uuid, event.r#type) = (Some(track), Some(kind as i32));
        event
    }

    fn packet(&mut self, timeline: &Timeline, packet: &Packet) {
        let track = ENGINES + packet.engine as u64;
        let submission = packet.submission.map(|at| (at, &timeline.submissions[at]));
        let begin = self.event(packet.from.ticks, track, Kind::SliceBegin);
        begin.name = Some(timeline.contexts[packet.context].name.clone());
        begin.debug_annotations = vec![
            number("packet", packet.id),
            number("resumed", packet.resumed.into()),
            words("ending", packet.ending.clone()),
            number("engine ticks from", packet.own[0]),
            number("engine ticks to", packet.own[1]),
        ];
        let bytes = packet.bytes.iter();
        begin
            .debug_annotations
            .extend(bytes.map(|(name, bytes)| number(name, *bytes)));
        if let Some((at, submission)) = submission {
            begin
                .debug_annotations
                .push(words("fence", submission.fence.clone()));
            begin.flow_ids = flows(timeline, at, submission);
        }
        for wait in &packet.waits {
            self.event(wait.from.ticks, track, Kind::SliceBegin).name = Some("WAIT".to_owned());
            self.event(wait.to.ticks, track, Kind::SliceEnd);
        }
        self.event(packet.to.ticks, track, Kind::SliceEnd);
    }
}

/// Its own flow, that of each one for which it waits, and those of who waits for it have its own.
fn flows(timeline: &Timeline, at: usize, submission: &Submission) -> Vec<u64> {
    let known = |at: &&usize| !timeline.submissions[**at].packets.is_empty();
    let others = submission.after.iter().filter(known).copied();
    let signals = submission.values.iter().filter_map(|value| value.signal);
    let by_cpu = signals.filter(|signal| timeline.signals[*signal].submission.is_none());
    // Not 0.
    std::iter::once(at)
        .chain(others)
        .map(|at| at as u64 + 1)
        .chain(by_cpu.map(|signal| signal_flow(timeline, signal)))
        .collect()
}

/// That of a signal of the CPU: no submission's.
fn signal_flow(timeline: &Timeline, signal: usize) -> u64 {
    (timeline.submissions.len() + signal) as u64 + 1
}

/// The trace file for `timeline`: a `perfetto.protos.Trace`.
pub fn encode(timeline: &Timeline) -> Vec<u8> {
    let mut writer = Writer(Vec::new());
    writer.track(DEVICE, "Skua GPU (1 ns is a tick)", false);
    writer.track(SUBMISSIONS, "submissions", false);
    for (uuid, engine) in (ENGINES..).zip(&timeline.engines) {
        writer.track(uuid, &format!("engine {}", engine.name), false);
    }
    for (uuid, region) in (REGIONS..).zip(&timeline.regions) {
        writer.track(uuid, &format!("memory in {}", region.name), true);
    }
    let head = writer.0.len();
    for packet in &timeline.packets {
        writer.packet(timeline, packet);
    }
    for mark in &timeline.marks {
        let track = mark.engine.map_or(DEVICE, |engine| ENGINES + engine as u64);
        let event = writer.event(mark.at.ticks, track, Kind::Instant);
        event.name = Some(mark.what.clone());
        event
            .debug_annotations
            .push(words("detail", mark.detail.clone()));
    }
    for (index, submission) in timeline.submissions.iter().enumerate() {
        let ends = [("submit", submission.submitted), ("done", submission.done)];
        for (name, at) in ends {
            let Some(at) = at else { continue };
            let event = writer.event(at.ticks, SUBMISSIONS, Kind::Instant);
            event.name = Some(format!("{name} {}", submission.task));
            event.flow_ids = vec![index as u64 + 1];
            event
                .debug_annotations
                .push(words("fence", submission.fence.clone()));
            event
                .debug_annotations
                .push(words("error", submission.error.to_string()));
        }
    }
    for (index, signal) in timeline.signals.iter().enumerate() {
        if signal.submission.is_some() {
            continue;
        }
        let event = writer.event(signal.at.ticks, SUBMISSIONS, Kind::Instant);
        event.name = Some(format!("signal {}", signal.task));
        event.flow_ids = vec![signal_flow(timeline, index)];
        event.debug_annotations = vec![
            number("monitored fence", signal.fence),
            number("value", signal.value),
        ];
    }
    for moved in &timeline.moves {
        let event = writer.event(moved.at.ticks, DEVICE, Kind::Instant);
        event.name = Some(format!("{} to {}", moved.from, moved.to));
        event.flow_ids = vec![moved.submission as u64 + 1];
        event.debug_annotations.push(number("bytes", moved.bytes));
    }
    for (uuid, region) in (REGIONS..).zip(&timeline.regions) {
        for (at, used) in &region.used {
            let event = writer.event(at.ticks, uuid, Kind::Counter);
            event.counter_value = Some(i64::try_from(*used).unwrap_or(i64::MAX));
        }
    }
    // Stable: what is nested stays so.
    writer.0[head..].sort_by_key(|packet| packet.timestamp);
    Trace { packet: writer.0 }.encode_to_vec()
}
