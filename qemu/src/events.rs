// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A record of what the engines do, for `skua-trace`: text, a line for each event.
//!
//! ```text
//! # skua-events 1 engines=compute,copy,copy
//! 81240 0 17 begin packet=3 context=2 asid=2 resume=0
//! 95310 0 9250 end packet=3 context=2 asid=2 copy=4096 out=4096
//! ```
//!
//! A line has the nanoseconds of the host since the record began, or the engine's own time where
//! the device keeps its clock, the engine, its ticks, the event, and fields of it;
//! `Documentation/gpu/skua/trace.rst` says which. Lines of one engine are in
//! order of its ticks but for an adapter reset, which sets these to 0; those of several may be
//! interleaved in any order. A record that is full ends with a line `# full`.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use skua_spec::command::EngineKind;
use skua_spec::number::EngineIndex;

/// When something happened on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Nanoseconds of the host since the record began, or the engine's own time.
    at: u128,
    /// How long the engine has worked.
    ticks: u64,
}

/// Where the lines of a record are written, and how many more may be.
struct Sink {
    /// Where lines go.
    writer: BufWriter<Box<dyn Write + Send>>,
    /// Bytes that it may still grow by; 0 once it is full, or could not be written.
    left: u64,
}

/// A record that is being made. What could not be written yet is when it is dropped.
pub struct Events {
    /// What nanoseconds are counted from.
    start: Instant,
    /// Where lines go; locked for one line at a time.
    sink: Mutex<Sink>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// A record of a device with these `engines`, of about `most` bytes at most.
    ///
    /// # Errors
    ///
    /// Those of `writer`.
    pub fn new(
        writer: Box<dyn Write + Send>,
        most: u64,
        engines: &[EngineKind],
    ) -> io::Result<Self> {
        let mut writer = BufWriter::new(writer);
        let name = |kind: &EngineKind| match kind {
            EngineKind::Compute => "compute",
            EngineKind::Copy => "copy",
        };
        let names: Vec<_> = engines.iter().map(name).collect();
        writeln!(writer, "# skua-events 1 engines={}", names.join(","))?;
        Ok(Self {
            start: Instant::now(),
            sink: Mutex::new(Sink { writer, left: most }),
        })
    }

    /// Now, with the ticks of an engine: at its own `time`, if that is kept.
    pub(crate) fn moment(&self, time: Option<u64>, ticks: u64) -> Moment {
        let at = time.map_or_else(|| self.start.elapsed().as_nanos(), u128::from);
        Moment { at, ticks }
    }

    /// Adds a line: `what` happened on `engine` at `when`.
    pub(crate) fn add(&self, engine: EngineIndex, when: Moment, what: impl Display) {
        let Moment { at, ticks } = when;
        let line = format!("{at} {engine} {ticks} {what}\n");
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if sink.left == 0 {
            return;
        }
        let (line, left) = match sink.left.checked_sub(line.len() as u64) {
            Some(left) => (line.as_str(), left),
            None => ("# full\n", 0),
        };
        // Nobody is there to be told; the device goes on without a record.
        let written = sink.writer.write_all(line.as_bytes());
        sink.left = if written.is_ok() { left } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_is_bounded_and_says_so() {
        let text = Text::default();
        let writer = Box::new(text.clone());
        let events = Events::new(writer, 30, &[EngineKind::Compute, EngineKind::Copy]).unwrap();
        let when = Moment { at: 5, ticks: 7 };
        for _ in 0..3 {
            events.add(EngineIndex::ALL[1], when, "wait packet=0");
        }
        drop(events);
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let expected = "# skua-events 1 engines=compute,copy\n5 1 7 wait packet=0\n# full\n";
        assert_eq!(text, expected);
    }
}
