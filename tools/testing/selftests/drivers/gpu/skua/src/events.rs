// SPDX-License-Identifier: MIT

//! Tracepoints of the driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A trace of some of the driver's events, in an instance of its own.
pub struct Trace {
    dir: PathBuf,
}

impl Trace {
    /// Traces the events with these names from now on.
    #[track_caller]
    pub fn of(names: &[&str]) -> Self {
        let dir =
            Path::new("/sys/kernel/tracing/instances").join(format!("skua-{}", std::process::id()));
        fs::create_dir(&dir).expect("an instance of tracing");
        let trace = Self { dir };
        // The order in which all CPUs have come by, for which times are too coarse.
        fs::write(trace.dir.join("trace_clock"), "counter").expect("trace_clock");
        for name in names {
            let enable = trace.dir.join("events/skua").join(name).join("enable");
            fs::write(enable, "1").unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        fs::write(trace.dir.join("tracing_on"), "1").expect("tracing_on");
        trace
    }

    /// What was traced.
    #[track_caller]
    pub fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.dir.join("trace")).expect("trace");
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let at = line.find("skua_")?;
                let (name, fields) = line[at..].split_once(": ")?;
                Some(Event {
                    name: name.to_owned(),
                    fields: fields
                        .split(", ")
                        .filter_map(|field| field.split_once('='))
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .collect(),
                })
            })
            .collect()
    }

    /// The names of what was traced, in order.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        let events = self.events().into_iter();
        events.map(|event| event.name).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("events/skua/enable"), "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// With `skua_` before it.
    pub name: String,
    /// Texts of the event's fields, by the names of these.
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// What one of its fields says.
    #[track_caller]
    pub fn get(&self, field: &str) -> &str {
        self.fields
            .get(field)
            .unwrap_or_else(|| panic!("{} has no {field}: {self:?}", self.name))
    }
}
