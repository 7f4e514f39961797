// SPDX-License-Identifier: MIT

//! The driver's tracepoints: the text of a `trace` file of tracefs.

use std::collections::BTreeMap;

/// What is in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The driver's events, by the guest's time.
    pub events: Vec<Event>,
    /// How many events the guest's buffers had no room for, as far as it says.
    pub lost: u64,
}

/// A tracepoint that was passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of the guest's clock, of which the text has whole microseconds.
    pub ns: u64,
    /// Name of the task that passed it.
    pub task: String,
    /// The tracepoint's name, without `skua_`.
    pub name: String,
    /// Texts, by the names of the fields.
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// A field's text, empty if it is not there.
    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    /// A field's number, 0 if it is not there or is none.
    pub fn number(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap_or(0)
    }
}

/// Reads a trace. Events of others, and lines that were cut, are left out.
pub fn parse(text: &str) -> Trace {
    let mut trace = Trace::default();
    for line in text.lines() {
        // "# entries-in-buffer/entries-written: 5/7   #P:2"
        if let Some((_, counts)) = line.split_once("entries-written: ") {
            let counts = counts
                .split_whitespace()
                .next()
                .and_then(|word| word.split_once('/'));
            let numbers = counts.and_then(|(held, written)| {
                Some((held.parse::<u64>().ok()?, written.parse::<u64>().ok()?))
            });
            trace.lost = numbers.map_or(0, |(held, written)| written.saturating_sub(held));
        }
        trace.events.extend(event(line));
    }
    trace.events.sort_by_key(|event| event.ns);
    trace
}

/// "    task-name-17   [001] d..2.  12.000345: skua_start: dev=…, engine=1, …"
fn event(line: &str) -> Option<Event> {
    if line.starts_with('#') {
        return None;
    }
    // A task may be called anything, so what is like the rest of a line may be in its name; no
    // field has such a text.
    let (head, rest) = line.rsplit_once(": skua_")?;
    let (name, fields) = rest.split_once(": ")?;
    let (task, head) = head.rsplit_once(" [")?;
    let (task, _) = task.trim().rsplit_once('-')?;
    let (seconds, fraction) = head.split_whitespace().last()?.split_once('.')?;
    let micros: u64 = fraction.get(..6)?.parse().ok()?;
    let seconds: u64 = seconds.parse().ok()?;
    let pairs = fields.split(", ").map(|field| field.split_once('='));
    Some(Event {
        ns: seconds
            .checked_mul(1_000_000)?
            .checked_add(micros)?
            .checked_mul(1000)?,
        task: task.to_owned(),
        name: name.to_owned(),
        fields: pairs
            .map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned())))
            .collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_what_was_lost_is_counted() {
        let text = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 3/12   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
CPU:1 [LOST 9 EVENTS]
   kworker/u8:2-31      [001] d..2.     3.000120: skua_done: dev=0000:00:02.0, error=-5
     my-program-104     [000] .....     2.999999: skua_submit: dev=0000:00:02.0, engine=1, fence=7:2
     my-program-104     [000] .....     2.999999: sched_waking: comm=skua-x pid=3
     my-program-104     [000] .....     3.1: skua_submit: dev=0000:00:02.0
     my-program-104     [000] .....     3.200000: skua_submit: dev=0000:00:02.0, engi";
        let trace = parse(text);
        assert_eq!(trace.lost, 9);
        let names: Vec<_> = trace
            .events
            .iter()
            .map(|e| (e.ns, e.name.as_str()))
            .collect();
        assert_eq!(names, [(2_999_999_000, "submit"), (3_000_120_000, "done")]);
        let submit = &trace.events[0];
        assert_eq!(
            (submit.task.as_str(), submit.text("fence")),
            ("my-program", "7:2")
        );
        assert_eq!((submit.number("engine"), submit.number("none")), (1, 0));
        assert_eq!(trace.events[1].text("error"), "-5");
    }

    #[test]
    fn no_name_of_a_task_hides_an_event() {
        for task in [
            "a [b] c",
            "a: skua_b: c",
            "[0] 1.2: x",
            "a-1 [000]",
            "\u{fffd}-",
        ] {
            let line = format!("{task:>16}-104  [000] d..2.  3.000120: skua_done: dev=d, error=-5");
            let trace = parse(&line);
            assert_eq!(trace.events.len(), 1, "{task}");
            let event = &trace.events[0];
            assert_eq!((&*event.task, event.ns), (task, 3_000_120_000));
            assert_eq!((&*event.name, event.text("error")), ("done", "-5"));
        }
    }
}
