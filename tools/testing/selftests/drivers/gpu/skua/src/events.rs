// SPDX-License-Identifier: MIT

//! Tracepoints of the driver.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::libc::O_NONBLOCK;

/// A trace of some of the driver's events, in an instance of its own.
pub struct Trace {
    /// What is read from here is whole; the file `trace` ends early where somebody writes just now
    /// (rb_iter_peek()).
    pipe: File,
    /// What was read before.
    text: Mutex<Vec<u8>>,
    /// Goes when the pipe is closed.
    _instance: Instance,
}

impl Trace {
    /// Traces the events with these names from now on.
    #[track_caller]
    pub fn of(names: &[&str]) -> Self {
        let dir =
            Path::new("/sys/kernel/tracing/instances").join(format!("skua-{}", std::process::id()));
        fs::create_dir(&dir).expect("an instance of tracing");
        let instance = Instance(dir.clone());
        // The order in which all CPUs have come by, for which times are too coarse.
        fs::write(dir.join("trace_clock"), "counter").expect("trace_clock");
        for name in names {
            let enable = dir.join("events/skua").join(name).join("enable");
            fs::write(enable, "1").unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        fs::write(dir.join("tracing_on"), "1").expect("tracing_on");
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open(dir.join("trace_pipe"))
            .expect("trace_pipe");
        Self {
            pipe,
            text: Mutex::default(),
            _instance: instance,
        }
    }

    /// What was traced.
    #[track_caller]
    pub fn events(&self) -> Vec<Event> {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.pipe).read_to_end(&mut text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => drop(read.expect("trace_pipe")),
        }
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("LOST"), "events are lost: {text}");
        text.lines()
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

/// Directory of an instance of tracing.
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("events/skua/enable"), "0");
        let _ = fs::remove_dir(&self.0);
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
