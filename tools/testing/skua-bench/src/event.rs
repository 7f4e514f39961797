// SPDX-License-Identifier: MIT

//! One line of the kernel's trace.
//!
//! ```text
//!       skua-bench-91      [000] ...1.     3.147483: kmalloc: call_site=… bytes_alloc=64 …
//!       task, its id       CPU   flags     time      name     arguments
//! ```
//!
//! Of the flags, the third says in which context the CPU was: `.` in the task's own, `h` and `s` in
//! an interrupt that only happened to come while the task ran (`Documentation/trace/ftrace.rst`).

/// The parts of an event's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The thread that ran.
    pub thread: i32,
    /// Whether an interrupt had the CPU.
    pub in_interrupt: bool,
    /// The tracepoint, without its system.
    pub name: &'a str,
    /// `key=value`, or as the event likes.
    pub arguments: &'a str,
}

impl<'a> Event<'a> {
    /// Reads a line; `None` if it is a comment or no event.
    pub fn parse(line: &'a str) -> Option<Self> {
        if line.trim_start().starts_with('#') {
            return None;
        }
        // A task's name may have anything in it but ends before the first CPU number in brackets.
        let (task, rest) = line.split_once(" [")?;
        let (_, thread) = task.trim_end().rsplit_once('-')?;
        let (_cpu, rest) = rest.split_once("] ")?;
        let (flags, rest) = rest.trim_start().split_once(' ')?;
        let (_time, rest) = rest.trim_start().split_once(": ")?;
        let (name, arguments) = rest.split_once(':')?;
        Some(Self {
            thread: thread.parse().ok()?,
            in_interrupt: flags.chars().nth(2).is_some_and(|c| c != '.'),
            name: name.trim(),
            arguments: arguments.trim(),
        })
    }

    /// The value of `key=value` among the arguments.
    pub fn argument(&self, key: &str) -> Option<&'a str> {
        self.arguments
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Bytes that the kernel allocated, if that is what happened.
    pub fn allocated(&self) -> Option<u64> {
        match self.name {
            "kmalloc" | "kmem_cache_alloc" => self.argument("bytes_alloc")?.parse().ok(),
            _ => None,
        }
    }

    /// The number of the system call that began, if that is what happened.
    pub fn system_call(&self) -> Option<i64> {
        if self.name != "sys_enter" {
            return None;
        }
        let rest = self.arguments.strip_prefix("NR ")?;
        rest.split_whitespace().next()?.parse().ok()
    }

    /// The thread that was woken, if that is what happened.
    pub fn woken(&self) -> Option<i32> {
        match self.name {
            "sched_waking" => self.argument("pid")?.parse().ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let line = "      skua-bench-91      [000] ...1.     3.147483: kmalloc: \
             call_site=drm_ioctl+0x1/0x2 ptr=00000000c bytes_req=40 bytes_alloc=64 \
             gfp_flags=GFP_KERNEL node=-1";
        let event = Event::parse(line).expect("an event");
        assert_eq!((event.thread, event.in_interrupt), (91, false));
        assert_eq!(event.allocated(), Some(64));
        assert_eq!(event.argument("call_site"), Some("drm_ioctl+0x1/0x2"));
        assert_eq!(event.woken(), None);
    }

    #[test]
    fn names_of_tasks_may_be_odd() {
        let line = " irq/24-s kua: -7-33 [001] d.h2. 3.1: sched_waking: comm=a b pid=12 \
             prio=120 target_cpu=000";
        let event = Event::parse(line).expect("an event");
        assert_eq!((event.thread, event.in_interrupt), (33, true));
        assert_eq!(event.woken(), Some(12));
    }

    #[test]
    fn system_calls_have_numbers() {
        let line = "  a-1 [000] ..... 3.1: sys_enter: NR 16 (3, c0206446, 7ff, 0, 0, 0)";
        let event = Event::parse(line).expect("an event");
        assert_eq!(event.system_call(), Some(16));
        let line = "  a-1 [000] ..... 3.1: sys_exit: NR 16 = 0";
        assert_eq!(Event::parse(line).and_then(|e| e.system_call()), None);
    }

    #[test]
    fn what_is_no_event_is_none() {
        for line in [
            "",
            "# tracer: nop",
            "#  TASK-PID [CPU] x y: z: w",
            "CPU:0 [LOST 3 EVENTS]",
        ] {
            assert_eq!(Event::parse(line), None, "{line}");
        }
    }
}
