// SPDX-License-Identifier: MIT

//! Finds the kernel's complaints in its log. Each is a failure of the test that it came in.

/// What the first line of a complaint contains.
const SIGNS: &[&str] = &[
    "BUG: ",
    "WARNING: ",
    "Oops: ",
    "Oops!",
    "Kernel panic - not syncing",
    "kernel BUG at ",
    "general protection fault",
    "invalid opcode:",
    "KASAN: ",
    "KFENCE: ",
    "UBSAN: ",
    "DMA-API: ",
    "ODEBUG: ",
    "list_add corruption",
    "list_del corruption",
    "refcount_t: ",
    "possible circular locking dependency detected",
    "possible recursive locking detected",
    "possible irq lock inversion dependency detected",
    "possible deadlock",
    "inconsistent lock state",
    "trying to register non-static key",
    "suspicious RCU usage",
    "sleeping function called from invalid context",
    "scheduling while atomic",
    "new suspected memory leaks",
    "rust_kernel: panicked at",
    "nobody cared",
];

/// Complaints that time passed: the guest's fault only if it was allowed to run.
const STALLS: &[&str] = &[
    "blocked for more than ",
    "soft lockup",
    "hard LOCKUP",
    "rcu: INFO: ",
    "self-detected stall",
    "detected stalls on CPUs",
];

/// What a complaint of this kind need not be: said in the same words by a healthy kernel.
const HARMLESS: &[&str] = &[
    "DMA-API: preallocated",
    "DMA-API: debugging enabled",
    "DMA-API: debugging disabled on kernel command line",
    "ODEBUG: selftest passed",
    "ODEBUG: Out of memory. ODEBUG disabled",
];

/// Lines of the log that are kept with a complaint, for the report.
const CONTEXT: usize = 60;

/// Whether a line of the kernel log begins a complaint.
fn is_splat(line: &str) -> bool {
    let has = |signs: &[&str]| signs.iter().any(|sign| line.contains(sign));
    // SLUB's has no colon there; any name of a cache follows.
    let slub = line.starts_with("BUG ") || line.contains("] BUG ");
    (has(SIGNS) || has(STALLS) || slub) && !has(HARMLESS)
}

/// Whether it is about time that passed.
fn is_stall(line: &str) -> bool {
    STALLS.iter().any(|sign| line.contains(sign))
}

/// A complaint: where in the log, by the mark that follows it, and its first lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Splat {
    /// The mark that came next; one more than the last if none did.
    pub(crate) mark: u64,
    /// The first line and some of what followed.
    pub(crate) lines: Vec<String>,
}

/// Follows a kernel log.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// The last mark seen.
    mark: u64,
    /// Complaints of the kernel that nobody has taken yet, the oldest first.
    found: Vec<Splat>,
}

impl Detector {
    /// Takes a line of the log; `ran` says that the host let the guest run all the time. Returns
    /// whether it was taken for what it is: `false` for a stall that is the host's.
    pub(crate) fn line(&mut self, line: &str, ran: bool) -> bool {
        if let Some((_, number)) = line.split_once(skua_guest::wire::MARK) {
            if let Ok(number) = number.trim().parse::<u64>() {
                self.mark = self.mark.max(number);
                return true;
            }
        }
        let next = self.mark.saturating_add(1);
        match self.found.last_mut() {
            // What follows one within the same test is mostly its own register dump and trace.
            Some(last) if last.mark == next => {
                if last.lines.len() < CONTEXT {
                    last.lines.push(line.to_owned());
                }
            }
            _ if is_splat(line) && !ran && is_stall(line) => return false,
            _ if is_splat(line) => self.found.push(Splat {
                mark: next,
                lines: vec![line.to_owned()],
            }),
            _ => {}
        }
        true
    }

    /// The last mark that the log had.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Takes the complaint before this mark out of the log, if there is one.
    pub(crate) fn take(&mut self, mark: u64) -> Option<Splat> {
        let at = self.found.iter().position(|splat| splat.mark == mark)?;
        Some(self.found.remove(at))
    }

    /// The complaints that nobody took, in order.
    pub(crate) fn rest(&mut self) -> Vec<Splat> {
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_known() {
        for line in [
            "[    3.1] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[    3.1] BUG: KASAN: slab-use-after-free in skua_submit+0x10/0x20 [skua]",
            "[    3.1] WARNING: CPU: 0 PID: 7 at drivers/gpu/drm/drm_gem.c:100",
            "[    3.1] WARNING: possible circular locking dependency detected",
            "[    3.1] INFO: trying to register non-static key.",
            "[    3.1] BUG kmalloc-64 (Tainted: G           O       ): Left Redzone overwritten",
            "BUG skua_fence (Not tainted): Poison overwritten",
            "[    3.1] Oops: 0002 [#1] PREEMPT SMP",
            "[    3.1] INFO: task skua:12 blocked for more than 60 seconds.",
            "[    3.1] BUG: sleeping function called from invalid context at mm/slab.h:1",
            "[    3.1] Kernel panic - not syncing: Attempted to kill init!",
            "[    3.1] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "[    3.1] DMA-API: skua 0000:01:00.0: device driver frees DMA memory \
             with wrong function",
            "[    3.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[    3.1] rust_kernel: panicked at drivers/gpu/drm/skua/gem.rs:1:2:",
        ] {
            assert!(is_splat(line), "{line}");
        }
    }

    #[test]
    fn a_healthy_boot_is_quiet() {
        for line in [
            "[    0.0] Linux version 7.3.4",
            "[    0.1] DMA-API: preallocated 65536 debug entries",
            "[    0.1] DMA-API: debugging enabled by kernel config",
            "[    0.1] DMA-API: debugging disabled on kernel command line",
            "[    0.2] Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar",
            "[    0.3] kmemleak: Kernel memory leak detector initialized (mem pool available: 1)",
            "[    0.3] rcu: Preemptible hierarchical RCU implementation.",
            "[    0.4] Spectre V2 : WARNING",
            "[    0.5] a DEBUG kernel",
            "[    3.1] skua 0000:01:00.0: fault: compute engine, vm 3",
        ] {
            assert!(!is_splat(line), "{line}");
        }
    }

    #[test]
    fn a_complaint_belongs_to_the_mark_that_follows() {
        let mut log = Detector::default();
        for line in [
            "[1.0] skua-mark: 1",
            "[1.1] fine",
            "[1.2] BUG: bad",
            "[1.2] Call Trace:",
            "[1.3] skua-mark: 2",
            "[1.4] fine again",
            "[1.5] skua-mark: 3",
            "[1.6] WARNING: worse",
        ] {
            assert!(log.line(line, true));
        }
        let first = log.take(2).expect("a complaint");
        assert_eq!(first.lines, ["[1.2] BUG: bad", "[1.2] Call Trace:"]);
        assert_eq!(log.take(2), None);
        let marks: Vec<_> = log.rest().iter().map(|splat| splat.mark).collect();
        assert_eq!(marks, [4]);
    }
}
