// SPDX-License-Identifier: MIT

//! A small run on two engines, from both records to what is shown of it.
//!
//! The client's packet 1 on engine 0 waits for a value, is preempted for packet 2 of another
//! context, and goes on as packet 3. Engine 1 copies for a move out of VRAM, for which packet 2
//! waits, as for a value of a monitored fence that the CPU has signalled. The last packet was held
//! for one that packet 2 signals. At last the device is given up.

use prost::Message;
use skua_trace::perfetto::{Kind, Trace, TrackEvent};
use skua_trace::{device, guest, page, perfetto, Instant, Packet, Timeline, Value};

/// The device's ticks are in thousands, the host's time in round numbers.
const DEVICE: &str = include_str!("sample/device.events");
/// The guest's clock is 5 ms ahead.
const GUEST: &str = include_str!("sample/trace.txt");

fn timeline() -> Timeline {
    Timeline::new(
        &device::parse(DEVICE).expect("a record"),
        &guest::parse(GUEST),
    )
}

fn find(timeline: &Timeline, engine: usize, id: u64) -> &Packet {
    let same = |packet: &&Packet| (packet.engine, packet.id) == (engine, id);
    timeline.packets.iter().find(same).expect("a packet")
}

fn ticks(packet: &Packet) -> [u64; 2] {
    [packet.from.ticks, packet.to.ticks]
}

#[test]
fn an_engine_goes_on_no_earlier_than_any_has_come() {
    let timeline = timeline();
    let packet = |engine, id| find(&timeline, engine, id);
    // The first of each: engine 1 begins when engine 0 has come to 5000.
    assert_eq!(ticks(packet(1, 1)), [6000, 14000]);
    // Engine 0 waited until then; what it does afterwards has its own length.
    assert_eq!(ticks(packet(0, 1)), [2000, 15000]);
    let wait = packet(0, 1).waits[0];
    assert_eq!((wait.from.ticks, wait.to.ticks), (5000, 14000));
    assert_eq!(ticks(packet(0, 2)), [15500, 16500]);
    assert_eq!(ticks(packet(0, 3)), [16600, 17700]);
    assert_eq!(packet(0, 3).own, [7600, 8700]);
    assert_eq!(ticks(packet(1, 2)), [17700, 18200]);
    // From 0 on, after the adapter's reset; it has no end.
    assert_eq!(
        (ticks(packet(1, 3)), &*packet(1, 3).ending),
        ([18900, 18900], "open")
    );
    // No engine worked any more when the device was given up.
    let end = Instant {
        ticks: 18900,
        ns: 20000,
    };
    assert_eq!(timeline.end, end);
}

#[test]
fn packets_find_their_submissions() {
    let timeline = timeline();
    let fence = |engine, id| {
        let packet = find(&timeline, engine, id);
        packet
            .submission
            .map(|at| timeline.submissions[at].fence.as_str())
    };
    assert_eq!(
        [fence(0, 1), fence(0, 2), fence(0, 3)],
        [Some("10:1"), Some("11:1"), Some("10:1")]
    );
    assert_eq!(
        [fence(1, 1), fence(1, 2), fence(1, 3)],
        [Some("12:1"), None, Some("13:1")]
    );
    let submission = |fence: &str| {
        let mut all = timeline.submissions.iter();
        all.find(|submission| submission.fence == fence)
            .expect("a submission")
    };
    let urgent = submission("11:1");
    assert_eq!(
        (urgent.task.as_str(), urgent.error, urgent.packets.len()),
        ("urgent", -14, 1)
    );
    assert_eq!(timeline.submissions[urgent.after[0]].fence, "12:1");
    assert_eq!(
        (urgent.after.len(), &urgent.foreign[..]),
        (1, &["99:5".to_owned()][..])
    );
    assert!(submission("12:1").paging && !urgent.paging);
    assert_eq!(submission("10:1").packets.len(), 2);
    let names: Vec<_> = timeline
        .contexts
        .iter()
        .map(|context| context.name.as_str())
        .collect();
    assert_eq!(names, ["slow A", "paging", "urgent C", "ring", "kworker E"]);
}

#[test]
fn a_context_made_in_the_place_of_another_is_another() {
    let (mut device, mut guest) = ("# skua-events 1 engines=copy\n".to_owned(), String::new());
    // Of each packet: its context and address space as the device names them, and its fence.
    for (packet, (context, asid, fence)) in (1..).zip([
        (5, 3, Some("10:1")),
        (5, 3, Some("10:2")),
        (5, 3, None),
        (5, 3, Some("11:1")),
        (5, 3, None),
        (5, 4, None),
        (5, 4, Some("12:1")),
        (0, 1, Some("13:1")),
        (0, 1, Some("14:1")),
    ]) {
        let words = format!("packet={packet} context={context} asid={asid}");
        device += &format!(
            "{0}0 0 {0}0 begin {words} resume=0\n{0}5 0 {0}5 end {words}\n",
            packet
        );
        if let Some(fence) = fence {
            let at = format!("prog-7 [000] ..... 2.00000{packet}");
            guest += &format!(
                "{at}: skua_submit: dev=d, engine=0, fence={fence}\n\
                 {at}: skua_packet: dev=d, engine=0, fence={fence}, packet={packet}\n"
            );
        }
    }
    let timeline = Timeline::new(
        &device::parse(&device).expect("a record"),
        &guest::parse(&guest),
    );
    let of: Vec<_> = timeline.packets.iter().map(|one| one.context).collect();
    assert_eq!(of, [0, 0, 0, 1, 1, 2, 2, 3, 3]);
    let contexts = timeline.contexts.iter();
    let contexts: Vec<_> = contexts
        .map(|one| (one.id, one.asid, one.line.as_deref(), &*one.name))
        .collect();
    assert_eq!(
        contexts,
        [
            (Some(4), 3, Some("10"), "prog A"),
            (Some(4), 3, Some("11"), "prog B"),
            (Some(4), 4, Some("12"), "prog C"),
            // As many lines as it has moves.
            (None, 1, None, "paging")
        ]
    );
}

#[test]
fn values_of_monitored_fences_lead_to_who_signalled_them() {
    let timeline = timeline();
    let submission = |fence: &str| {
        let mut all = timeline.submissions.iter();
        all.position(|submission| submission.fence == fence)
            .expect("a submission")
    };
    let signals: Vec<_> = timeline
        .signals
        .iter()
        .map(|signal| (signal.fence, signal.value, &*signal.task, signal.submission))
        .collect();
    assert_eq!(
        signals,
        [
            (7, 3, "pacer", None),
            (7, 5, "urgent", Some(submission("11:1")))
        ]
    );
    assert_eq!(timeline.signals[0].at.ns, 2000);
    let value = |value, signal| Value {
        fence: 7,
        value,
        signal: Some(signal),
    };
    let urgent = &timeline.submissions[submission("11:1")];
    assert_eq!(
        (&urgent.values[..], urgent.held),
        (&[value(2, 0)][..], None)
    );
    // The least that is enough, and of what has the fence.
    let held = &timeline.submissions[submission("13:1")];
    assert_eq!(held.values, [value(4, 1)]);
    assert_eq!(held.after, [submission("11:1")]);
    let at = |ticks, ns| Some(Instant { ticks, ns });
    assert_eq!(
        (held.held, held.submitted),
        (at(17723, 10000), at(18200, 12000))
    );
    // What the CPU does is of no submission.
    assert!(timeline
        .submissions
        .iter()
        .all(|submission| submission.fence != "0:0"));
}

#[test]
fn the_drivers_time_is_the_hosts_and_what_is_late_is_put_right() {
    let timeline = timeline();
    // The first packets of both were soonest on their engines: the shift is 1000 - 5001000.
    let submission = |fence: &str| {
        let mut all = timeline.submissions.iter();
        all.find(|submission| submission.fence == fence)
            .expect("a submission")
    };
    let at = |ticks, ns| Some(Instant { ticks, ns });
    // Before the record began.
    assert_eq!(submission("10:1").submitted, at(0, 0));
    assert_eq!(submission("11:1").submitted, at(6000, 3000));
    assert_eq!(
        timeline.moves[0].at,
        Instant {
            ticks: 5000,
            ns: 2000
        }
    );
    // Between two events of the device: 100 of 2100 ns behind 17700, of 500 ticks.
    assert_eq!(submission("11:1").done, at(17723, 10000));
    // An interrupt cannot be before its packet's end.
    let copied = find(&timeline, 1, 1).to;
    assert_eq!(submission("12:1").done, Some(copied));
    assert_eq!(submission("10:1").done, at(18900, 19000));
}

#[test]
fn a_number_that_came_again_does_not_shift_the_drivers_time() {
    // The driver does not tell of packet 7 until it was bound again.
    let device = "# skua-events 1 engines=copy\n\
                  1000000 0 0 begin packet=7 context=0 asid=1 resume=0\n\
                  1001000 0 9 end packet=7 context=0 asid=1\n\
                  2000000 0 20 begin packet=8 context=1 asid=2 resume=0\n\
                  2001000 0 29 end packet=8 context=1 asid=2\n\
                  9000000 0 40 begin packet=7 context=1 asid=2 resume=0\n\
                  9001000 0 49 end packet=7 context=1 asid=2\n";
    let guest = "prog-7 [000] ..... 5.002000: skua_packet: dev=d, engine=0, fence=9:1, packet=8\n\
                 prog-7 [000] ..... 5.003000: skua_lost: dev=d\n\
                 prog-7 [000] ..... 5.009000: skua_packet: dev=d, engine=0, fence=9:2, packet=7\n";
    let of = |device: &str| {
        let record = device::parse(device).expect("a record");
        Timeline::new(&record, &guest::parse(guest)).marks[0].at.ns
    };
    assert_eq!(of(device), 3_000_000);
    // Unless there are no others: the first one's then.
    assert_eq!(of(&device.replace("packet=8", "packet=6")), 0);
}

#[test]
fn what_is_told_of_memory_and_of_stops() {
    let timeline = timeline();
    let moved = &timeline.moves[0];
    assert_eq!(
        (moved.from.as_str(), moved.to.as_str(), moved.bytes),
        ("vram0", "system", 65536)
    );
    assert_eq!(timeline.submissions[moved.submission].fence, "12:1");
    let regions: Vec<_> = timeline
        .regions
        .iter()
        .map(|r| (r.name.as_str(), r.size))
        .collect();
    assert_eq!(regions, [("system", 8192), ("vram0", 262_144)]);
    let used: Vec<u64> = timeline.regions[1]
        .used
        .iter()
        .map(|(_, used)| *used)
        .collect();
    assert_eq!(used, [131_072, 65_536]);
    let bytes = |engine, id, name: &str| find(&timeline, engine, id).bytes.get(name).copied();
    assert_eq!(bytes(1, 1, "out"), Some(65_536));
    assert_eq!(
        (bytes(0, 1, "saved"), bytes(0, 3, "restored")),
        (Some(128), Some(128))
    );
    assert_eq!(find(&timeline, 0, 1).ending, "stop");
    assert!(find(&timeline, 0, 3).resumed);
    let marks: Vec<_> = timeline
        .marks
        .iter()
        .map(|mark| mark.what.as_str())
        .collect();
    assert_eq!(
        marks,
        [
            "preempt",
            "stop",
            "restore",
            "fault",
            "adapter-reset",
            "lost"
        ]
    );
    let lost = &timeline.marks[5];
    assert_eq!((lost.engine, lost.at.ns), (None, 20000));
    assert_eq!(timeline.lost, 2);
}

#[test]
fn perfetto_has_a_track_for_each_engine_and_segment() {
    let timeline = timeline();
    let trace = Trace::decode(&*perfetto::encode(&timeline)).expect("a trace");
    let tracks: Vec<_> = trace
        .packet
        .iter()
        .filter_map(|p| p.track_descriptor.clone())
        .collect();
    let names: Vec<_> = tracks.iter().map(|track| track.name()).collect();
    assert_eq!(
        names[1..],
        [
            "submissions",
            "engine 0 (compute)",
            "engine 1 (copy)",
            "memory in system",
            "memory in vram0"
        ]
    );
    assert_eq!(trace.packet[0].sequence_flags, Some(1));
    let stamps: Vec<u64> = trace.packet.iter().filter_map(|p| p.timestamp).collect();
    assert!(stamps.is_sorted());
    let events = |track: usize, kind: Kind| -> Vec<(u64, TrackEvent)> {
        let all = trace.packet.iter();
        all.filter_map(|packet| Some((packet.timestamp?, packet.track_event.clone()?)))
            .filter(|(_, event)| event.track_uuid == tracks[track].uuid && event.r#type() == kind)
            .collect()
    };
    let begins = events(2, Kind::SliceBegin);
    let begun: Vec<_> = begins
        .iter()
        .map(|(at, event)| (*at, event.name()))
        .collect();
    assert_eq!(
        begun,
        [
            (2000, "slow A"),
            (5000, "WAIT"),
            (15500, "urgent C"),
            (16600, "slow A")
        ]
    );
    assert_eq!(events(2, Kind::SliceEnd).len(), begins.len());
    // What goes on is of the same flow; and who waits is of that of whom it waits for.
    let copy = &events(3, Kind::SliceBegin)[0].1;
    assert_eq!(begins[0].1.flow_ids, begins[3].1.flow_ids);
    assert!(begins[2].1.flow_ids.contains(&copy.flow_ids[0]));
    assert!(!begins[0].1.flow_ids.contains(&copy.flow_ids[0]));
    // So is who waits for a monitored fence's value of that of who signalled it, or of the CPU's.
    let held = &events(3, Kind::SliceBegin)[2].1;
    assert!(held.flow_ids.contains(&begins[2].1.flow_ids[0]));
    let points = events(1, Kind::Instant);
    let signals: Vec<_> = points
        .iter()
        .filter(|(_, event)| event.name().starts_with("signal"))
        .collect();
    assert_eq!(
        (signals.len(), signals[0].0, signals[0].1.name()),
        (1, 5000, "signal pacer")
    );
    let own = signals[0].1.flow_ids[0];
    let all = begins.iter().map(|(_, event)| event);
    let flow: Vec<_> = all.map(|event| event.flow_ids.contains(&own)).collect();
    assert_eq!(flow, [false, false, true, false]);
    let of_device: Vec<_> = events(0, Kind::Instant)
        .into_iter()
        .map(|(at, event)| (at, event.name().to_owned()))
        .collect();
    assert_eq!(
        of_device,
        [
            (5000, "vram0 to system".to_owned()),
            (18900, "lost".to_owned())
        ]
    );
    let used = events(5, Kind::Counter);
    let used: Vec<_> = used
        .iter()
        .map(|(_, event)| event.counter_value())
        .collect();
    assert_eq!(used, [131_072, 65_536]);
}

#[test]
fn a_page_has_the_run_in_it_and_nothing_that_ends_it() {
    let mut timeline = timeline();
    timeline.submissions[0].task = "</script><b>".to_owned();
    let page = page::render(&timeline).expect("a page");
    let (_, rest) = page
        .split_once(r#"<script type="application/json" id="data">"#)
        .expect("data");
    let (data, rest) = rest.split_once("</script>").expect("its end");
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data, serde_json::to_value(&timeline).expect("JSON"));
    assert_eq!(data["submissions"][0]["task"], "</script><b>");
    assert!(!rest.contains("@DATA@"));
    // Nothing is fetched from anywhere.
    for word in ["http:", "https:", "src=", "href=", "import "] {
        assert!(!page.contains(word), "{word}");
    }
}
