// SPDX-License-Identifier: MIT

//! The device's record: what `skua-gpu --events` writes.

use std::collections::BTreeMap;
use std::fmt;

/// What the first line begins with.
const MAGIC: &str = "# skua-events 1 engines=";

/// What a record has: all that engines did in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The kinds of the engines, by their indices.
    pub engines: Vec<String>,
    /// What the engines did, in the order of the host's time.
    pub events: Vec<Event>,
    /// Whether it was full before the run was over.
    pub full: bool,
}

/// Something that an engine did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of the host since the record began.
    pub ns: u64,
    /// Index of the engine that the event is of.
    pub engine: usize,
    /// Busy ticks of that engine at the event.
    pub ticks: u64,
    /// `begin`, `end`, `wait`, …
    pub name: String,
    /// Numbers, by the names of the fields.
    pub fields: BTreeMap<String, u64>,
}

impl Event {
    /// A field, 0 if it is not there.
    pub fn get(&self, field: &str) -> u64 {
        self.fields.get(field).copied().unwrap_or(0)
    }
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Its first line is not that of a record of this version.
    NoRecord,
    /// The line with this number cannot be understood.
    BadLine(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord => write!(f, "not a record of skua-gpu, version 1"),
            Self::BadLine(number) => write!(f, "line {number} is not understood"),
        }
    }
}

impl std::error::Error for Error {}

/// Reads a record. A last line without its end, of a device that was killed, is left out.
///
/// # Errors
///
/// See [`Error`].
pub fn parse(text: &str) -> Result<Record, Error> {
    let mut lines = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    let engines = lines.next().and_then(|line| line.strip_prefix(MAGIC));
    let engines = engines
        .ok_or(Error::NoRecord)?
        .split(',')
        .map(str::to_owned);
    let mut record = Record {
        engines: engines.collect(),
        ..Record::default()
    };
    for (number, line) in (2..).zip(lines) {
        if line == "# full" {
            record.full = true;
            continue;
        }
        let event = event(line).filter(|event| event.engine < record.engines.len());
        record.events.push(event.ok_or(Error::BadLine(number))?);
    }
    // A beginning is told when the context is known.
    record.events.sort_by_key(|event| event.ns);
    Ok(record)
}

fn event(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let event = Event {
        ns: words.next()?.parse().ok()?,
        engine: words.next()?.parse().ok()?,
        ticks: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
        fields: words.map(field).collect::<Option<_>>()?,
    };
    Some(event)
}

fn field(word: &str) -> Option<(String, u64)> {
    let (name, value) = word.split_once('=')?;
    let value = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => value.parse().ok()?,
    };
    Some((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_by_the_hosts_time() {
        let text = "# skua-events 1 engines=compute,copy\n\
                    20 1 7 begin packet=2\n10 0 5 fault packet=0 address=0x10\n# full\n30 0";
        let record = parse(text).expect("a record");
        assert_eq!(record.engines, ["compute", "copy"]);
        assert!(record.full);
        let events: Vec<_> = record
            .events
            .iter()
            .map(|e| (e.ns, e.name.as_str()))
            .collect();
        assert_eq!(events, [(10, "fault"), (20, "begin")]);
        assert_eq!(
            (
                record.events[0].get("address"),
                record.events[0].get("none")
            ),
            (16, 0)
        );
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert_eq!(parse(""), Err(Error::NoRecord));
        assert_eq!(
            parse("# skua-events 2 engines=copy\n"),
            Err(Error::NoRecord)
        );
        for line in [
            "x 0 0 end",
            "1 1 0 end",
            "1 0 0 end packet",
            "1 0 0 end packet=y",
            "1 0",
        ] {
            let text = format!("# skua-events 1 engines=copy\n{line}\n");
            assert_eq!(parse(&text), Err(Error::BadLine(2)), "{line}");
        }
    }
}
