// SPDX-License-Identifier: MIT

//! Counting by the kernel's trace events: system calls, allocations, wake-ups.
//!
//! These come from the kernel's own trace points, not from the code that is measured. They are
//! recorded in a trace instance of our own, so that nobody's tracing is disturbed. An event that is
//! enabled costs instructions, recorded or not: while a [`Recorder`] is there, nothing is counted
//! by [`crate::clock`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use serde::Serialize;

use crate::event::Event;

/// Our instance.
const INSTANCE: &str = "/sys/kernel/tracing/instances/skua-bench";
/// KiB for each CPU: more than all that is ever recorded at a time.
const BUFFER: &str = "8192";
/// What is recorded.
const EVENTS: &[&str] = &[
    "raw_syscalls/sys_enter",
    "kmem/kmalloc",
    "kmem/kmem_cache_alloc",
    "sched/sched_waking",
];
/// The number of ioctl(), in x86-64's table and in that of other architectures.
const IOCTL: i64 = if cfg!(target_arch = "x86_64") { 16 } else { 29 };

/// The trace; nothing is recorded and no event enabled before [`Trace::enable`].
#[derive(Debug)]
pub struct Trace {
    /// Its own directory in tracefs, removed by drop.
    instance: PathBuf,
    /// What recording itself records.
    own: Activity,
}

/// The trace with its events enabled, which costs instructions even while nothing is recorded; they
/// are disabled when it is dropped.
#[derive(Debug)]
pub struct Recorder<'a> {
    trace: &'a Trace,
}

/// What happened while it was recorded, by all threads unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Calls of ioctl() by this thread.
    pub ioctls: u64,
    /// Allocations by this thread, outside of interrupts.
    pub own_allocations: u64,
    /// Bytes of these.
    pub own_bytes: u64,
    /// Allocations by others, and in interrupts.
    pub other_allocations: u64,
    /// How often this thread was woken.
    pub own_wakeups: u64,
    /// How often a thread was woken.
    pub wakeups: u64,
    /// Allocations by this thread, by the function that called the allocator.
    pub own_sites: BTreeMap<String, Site>,
    /// The same of the others.
    pub other_sites: BTreeMap<String, Site>,
}

/// What one function allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Site {
    /// How often.
    pub allocations: u64,
    /// Bytes, as the allocator rounds them.
    pub bytes: u64,
}

impl Trace {
    /// Makes the instance.
    ///
    /// # Errors
    ///
    /// If the kernel has no trace events, or does not let us.
    pub fn new() -> Result<Self> {
        let instance = PathBuf::from(INSTANCE);
        match fs::create_dir(&instance) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.with_context(|| instance.display().to_string())?,
        }
        let mut trace = Self {
            instance,
            own: Activity::default(),
        };
        trace.write("tracing_on", "0")?;
        trace.write("buffer_size_kb", BUFFER)?;
        let recorder = trace.enable()?;
        // Twice: the first time may pay for what the second finds done.
        recorder.record(|| Ok(()))?;
        let (own, ()) = recorder.record(|| Ok(()))?;
        drop(recorder);
        trace.own = own;
        Ok(trace)
    }

    /// Enables the events. Nothing is to be counted by a clock until they are disabled.
    ///
    /// # Errors
    ///
    /// If the kernel does not have one of them, or does not let us.
    pub fn enable(&self) -> Result<Recorder<'_>> {
        let recorder = Recorder { trace: self };
        for event in EVENTS {
            self.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(recorder)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, value).with_context(|| path.display().to_string())
    }
}

impl Recorder<'_> {
    /// What `f` did, and what others did meanwhile.
    ///
    /// # Errors
    ///
    /// Those of `f`; if the trace cannot be read, or did not hold all.
    pub fn record<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(Activity, T)> {
        let trace = self.trace;
        trace.write("trace", "")?;
        trace.write("tracing_on", "1")?;
        let result = f();
        trace.write("tracing_on", "0")?;
        let path = trace.instance.join("trace");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let activity = Activity::of(&text, thread)?.without(&trace.own);
        Ok((activity, result?))
    }
}

impl Drop for Recorder<'_> {
    /// Disables the events. Should that fail, all that follows shows more instructions.
    fn drop(&mut self) {
        if let Err(error) = self.trace.write("events/enable", "0") {
            eprintln!("skua-bench: {error:#}");
        }
    }
}

impl Drop for Trace {
    /// Removes the instance. An error has no consequence but a directory that stays.
    fn drop(&mut self) {
        let _ = fs::remove_dir(Path::new(&self.instance));
    }
}

impl Activity {
    /// Counts the events of a trace from the view of a thread.
    ///
    /// # Errors
    ///
    /// If events were lost.
    pub fn of(text: &str, thread: i32) -> Result<Self> {
        let mut activity = Self::default();
        for line in text.lines() {
            // "# entries-in-buffer/entries-written: 7/7   #P:1"
            if let Some((_, counts)) = line.split_once("entries-written: ") {
                let counts = counts.split_whitespace().next().unwrap_or_default();
                match counts.split_once('/') {
                    Some((held, written)) if held == written => {}
                    _ => bail!("the trace lost events: {counts}"),
                }
            }
            let Some(event) = Event::parse(line) else {
                continue;
            };
            let own = event.thread == thread && !event.in_interrupt;
            if own && event.system_call() == Some(IOCTL) {
                activity.ioctls += 1;
            }
            if let Some(bytes) = event.allocated() {
                let sites = if own {
                    activity.own_allocations += 1;
                    activity.own_bytes += bytes;
                    &mut activity.own_sites
                } else {
                    activity.other_allocations += 1;
                    &mut activity.other_sites
                };
                let name = event.argument("call_site").unwrap_or("?");
                let name = name.split('+').next().unwrap_or(name);
                let site = sites.entry(name.to_owned()).or_default();
                site.allocations += 1;
                site.bytes += bytes;
            }
            if let Some(woken) = event.woken() {
                activity.wakeups += 1;
                activity.own_wakeups += u64::from(woken == thread);
            }
        }
        Ok(activity)
    }

    /// The same without what happens when nothing does.
    fn without(mut self, own: &Self) -> Self {
        self.ioctls = self.ioctls.saturating_sub(own.ioctls);
        self.own_allocations = self.own_allocations.saturating_sub(own.own_allocations);
        self.own_bytes = self.own_bytes.saturating_sub(own.own_bytes);
        self.other_allocations = self.other_allocations.saturating_sub(own.other_allocations);
        self.own_wakeups = self.own_wakeups.saturating_sub(own.own_wakeups);
        self.wakeups = self.wakeups.saturating_sub(own.wakeups);
        subtract(&mut self.own_sites, &own.own_sites);
        subtract(&mut self.other_sites, &own.other_sites);
        self
    }

    /// Adds what another recording saw.
    pub fn add(&mut self, other: &Self) {
        self.ioctls += other.ioctls;
        self.own_allocations += other.own_allocations;
        self.own_bytes += other.own_bytes;
        self.other_allocations += other.other_allocations;
        self.own_wakeups += other.own_wakeups;
        self.wakeups += other.wakeups;
        add(&mut self.own_sites, &other.own_sites);
        add(&mut self.other_sites, &other.other_sites);
    }
}

fn add(sums: &mut BTreeMap<String, Site>, sites: &BTreeMap<String, Site>) {
    for (name, site) in sites {
        let sum = sums.entry(name.clone()).or_default();
        sum.allocations += site.allocations;
        sum.bytes += site.bytes;
    }
}

fn subtract(sites: &mut BTreeMap<String, Site>, others: &BTreeMap<String, Site>) {
    for (name, other) in others {
        if let Some(site) = sites.get_mut(name) {
            site.allocations = site.allocations.saturating_sub(other.allocations);
            site.bytes = site.bytes.saturating_sub(other.bytes);
        }
    }
    sites.retain(|_, site| site.allocations > 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 6/6   #P:1
#
      skua-bench-91 [000] ..... 3.1: sys_enter: NR 16 (3, 4, 5, 0, 0, 0)
      skua-bench-91 [000] ..... 3.1: kmalloc: call_site=f+0x1/0x9 ptr=a bytes_req=9 bytes_alloc=16
      skua-bench-91 [000] ..s1. 3.1: kmalloc: call_site=g+0x1/0x9 ptr=b bytes_req=9 bytes_alloc=32
   kworker/0:1-12 [000] ..... 3.1: kmem_cache_alloc: call_site=f+0x5/0x9 bytes_req=9 bytes_alloc=64
   kworker/0:1-12 [000] d..2. 3.1: sched_waking: comm=skua-bench pid=91 prio=120 target_cpu=000
        <idle>-0 [000] d.h2. 3.1: sched_waking: comm=irq/24-skua pid=55 prio=49 target_cpu=000
";

    fn site(allocations: u64, bytes: u64) -> Site {
        Site { allocations, bytes }
    }

    #[test]
    fn events_are_counted_by_whose_they_are() {
        let activity = Activity::of(TEXT, 91).expect("a trace");
        assert_eq!(activity.ioctls, 1);
        assert_eq!((activity.own_allocations, activity.own_bytes), (1, 16));
        assert_eq!(activity.other_allocations, 2);
        assert_eq!((activity.own_wakeups, activity.wakeups), (1, 2));
        assert_eq!(activity.own_sites, [("f".to_owned(), site(1, 16))].into());
        assert_eq!(
            activity.other_sites,
            [("f".to_owned(), site(1, 64)), ("g".to_owned(), site(1, 32))].into()
        );
    }

    #[test]
    fn recordings_add_up_and_what_recording_does_is_taken_off() {
        let one = Activity::of(TEXT, 91).expect("a trace");
        let mut two = one.clone();
        two.add(&one);
        assert_eq!((two.ioctls, two.other_allocations), (2, 4));
        assert_eq!(two.other_sites["g"], site(2, 64));
        assert_eq!(two.without(&one), one);
        assert_eq!(one.clone().without(&one), Activity::default());
    }

    #[test]
    fn lost_events_are_noticed() {
        assert!(Activity::of("# entries-in-buffer/entries-written: 6/9   #P:1", 1).is_err());
    }
}
