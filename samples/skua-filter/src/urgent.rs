// SPDX-License-Identifier: MIT

//! A second client: short work that is urgent, beside the filter's, which is long.
//!
//! It has a context of the highest priority, to which it submits next to nothing, again and again.
//! Whenever the compute engine is at work, so that there is something to wait for, it is measured
//! how much the engine did from before the submission until its end was seen: in ticks of the
//! engine, of which a slow host makes no more. Every second time the driver is told to have no
//! engine make room (debugfs `preemption`), and what is urgent waits until the filter's packet has
//! ended.
//!
//! All this is for root alone. Without these rights there is no such client, and nothing to report.

use std::fs;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wddm::libskua::{CommandBuffer, Context, Device, EngineKind, Error, Vm};

/// The highest priority.
const PRIORITY: i32 = 7;
/// Where its commands are in its own address space.
const COMMANDS: u64 = 0x1_0000;
/// Longest wait for one submission: one packet of the filter, on a slow host.
const PATIENCE: Duration = Duration::from_secs(60);
/// From one submission to the next.
const PAUSE: Duration = Duration::from_millis(1);

/// Ticks that each submission has waited for, smallest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(Vec<u64>);

impl Latencies {
    /// How many there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What so many of a hundred did not exceed; `None` if there were none.
    pub fn percentile(&self, percent: usize) -> Option<u64> {
        let last = self.0.len().checked_sub(1)?;
        self.0.get((last * percent).div_ceil(100)).copied()
    }

    fn new(mut ticks: Vec<u64>) -> Self {
        ticks.sort_unstable();
        Self(ticks)
    }
}

/// The client at work; dropped, it ends.
pub struct Urgent {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<[Vec<u64>; 2], Error>>>,
}

impl Urgent {
    /// Starts a client of the GPU with this name on its bus; `None` without the rights for that.
    ///
    /// # Errors
    ///
    /// As [`Device::open_first`], [`Vm::create`], [`Context::create`], [`CommandBuffer::create`].
    pub fn start(bus_id: &str) -> Result<Option<Self>, Error> {
        let directory = PathBuf::from("/sys/kernel/debug/dri").join(bus_id);
        let device = Device::open_first()?;
        let vm = Vm::create(&device)?;
        let Some(engine) = device.engine(EngineKind::Compute) else {
            return Ok(None);
        };
        let context = Context::create(&vm, engine)?;
        let mut commands = CommandBuffer::create(&vm, COMMANDS, 4096)?;
        commands.nop(2)?;
        let engine = Engine { directory };
        if context.set_priority(PRIORITY).is_err() || engine.ticks().is_none() {
            return Ok(None);
        }
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread = thread::spawn(move || work(&engine, &context, &commands, &ended));
        Ok(Some(Self {
            end,
            thread: Some(thread),
        }))
    }

    /// Ends it; how long its submissions waited while engines were to make room, and while not.
    ///
    /// # Errors
    ///
    /// The first of a submission.
    pub fn finish(mut self) -> Result<[Latencies; 2], Error> {
        self.end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        let ticks = ended.unwrap_or_else(|| Ok(Ok(Default::default())));
        Ok(ticks
            .unwrap_or_else(|panic| resume_unwind(panic))?
            .map(Latencies::new))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // So that it leaves the driver as it was; what became of it nobody asks any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(
    engine: &Engine,
    context: &Context,
    commands: &CommandBuffer,
    end: &AtomicBool,
) -> Result<[Vec<u64>; 2], Error> {
    let mut ticks = [Vec::new(), Vec::new()];
    while !end.load(Ordering::Relaxed) {
        for (number, ticks) in ticks.iter_mut().enumerate() {
            let _off = (number == 1).then(|| Off::new(engine));
            let Some((before, true)) = engine.ticks() else {
                continue;
            };
            context.run(commands, PATIENCE)?;
            if let Some((after, _)) = engine.ticks() {
                ticks.push(after.saturating_sub(before));
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(ticks)
}

/// The compute engine, as debugfs shows it.
struct Engine {
    directory: PathBuf,
}

impl Engine {
    /// What it has done so far, and whether it is at work.
    fn ticks(&self) -> Option<(u64, bool)> {
        ticks(&fs::read_to_string(self.directory.join("rings")).ok()?)
    }

    /// Has the driver ask engines to stop, if it does not, or not any more, if it does.
    fn turn(&self) {
        // What cannot be read is seen by the latencies, which then are alike.
        let _ = fs::read_to_string(self.directory.join("preemption"));
    }
}

/// As long as it lives, no engine makes room.
struct Off<'a>(&'a Engine);

impl<'a> Off<'a> {
    fn new(engine: &'a Engine) -> Self {
        engine.turn();
        Self(engine)
    }
}

impl Drop for Off<'_> {
    fn drop(&mut self) {
        self.0.turn();
    }
}

/// Ticks of the compute engine in the debugfs file `rings`, and whether packets are in its ring.
fn ticks(text: &str) -> Option<(u64, bool)> {
    let line = text.lines().find(|line| line.contains("(compute)"))?;
    let number = |name| -> Option<u64> {
        let (_, number) = line.split_once(name)?;
        number.split_whitespace().next()?.parse().ok()
    };
    Some((number(" ticks ")?, number(" in flight ")? > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_the_compute_engines() {
        let text = "engine 1 (copy): device Idle head 0x0 tail 0x0 in flight 0 ticks 5\n\
                    engine 0 (compute): device Idle head 0x0 tail 0x0 in flight 2 ticks 71\n";
        assert_eq!(ticks(text), Some((71, true)));
        assert_eq!(
            ticks(&text.replace("flight 2", "flight 0")),
            Some((71, false))
        );
        assert_eq!(ticks("engine 0 (compute): gone\n"), None);
    }

    #[test]
    fn percentiles() {
        let latencies = Latencies::new(vec![9, 1, 5]);
        assert_eq!(
            [0, 50, 99].map(|n| latencies.percentile(n)),
            [1, 5, 9].map(Some)
        );
        assert_eq!(Latencies::default().percentile(50), None);
    }
}
