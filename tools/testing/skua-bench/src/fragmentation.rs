// SPDX-License-Identifier: MIT

//! Measure 19: what becomes of free memory, by the driver's allocator of VRAM and by the kernel's.
//!
//! Both get the same requests. The driver's is a part of the policy that runs anywhere, so that it
//! runs here; the kernel's runs in a module beside the driver (`kernel/skua_bench.c`).

use std::env;
use std::fs::{self, File};
use std::io;

use anyhow::{ensure, Context, Result};
use rustix::system::finit_module;
use serde_json::json;
use skua_policy::buddy::{Buddy, BuddyError, PageCount, PageRange, Request, Scattered, PAGE_BYTES};
use skua_policy::heap::FallibleVec;
use skua_policy::std_heap::{StdHeap, StdVec};

use crate::replay::Random;
use crate::report::Report;

/// What the kernel's allocator does with a trace.
const THEIRS: &str = "/sys/kernel/debug/skua_bench/gpu_buddy";
/// Pages of memory.
const PAGES: u64 = 1 << 18;
/// Traces of each kind, and steps of each.
const TRACES: u64 = 16;
const STEPS: usize = 6000;

/// A step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A request of so many pages.
    Alloc(u64),
    /// Gives back what the request of this number got.
    Free(usize),
}

/// What became of a trace, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Requests that failed though so much was free.
    failed: u64,
    /// Blocks that the others got.
    blocks: u64,
    /// Pages of the largest free block at the end.
    largest: u64,
    /// Pages that are free then.
    free: u64,
}

/// Requests of all sizes, most of them small, until memory is nearly full; then any are given back
/// and made, and at the end half of all is.
fn trace(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let (mut steps, mut live, mut used, mut count) = (Vec::new(), Vec::new(), 0, 0);
    let give_back = |random: &mut Random, live: &mut Vec<(usize, u64)>, used: &mut u64| {
        let (number, pages) = live.swap_remove(random.below(live.len()));
        *used -= pages;
        Step::Free(number)
    };
    while steps.len() < STEPS {
        let most = 1 << random.below(12);
        // CAST: at most 2048.
        let pages = 1 + random.below(most) as u64;
        if used + pages <= PAGES * 9 / 10 {
            steps.push(Step::Alloc(pages));
            live.push((count, pages));
            used += pages;
            count += 1;
        } else {
            steps.push(give_back(&mut random, &mut live, &mut used));
        }
    }
    while used > PAGES / 2 {
        steps.push(give_back(&mut random, &mut live, &mut used));
    }
    steps
}

/// How the driver's allocator is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// For any blocks.
    Scattered,
    /// For one range.
    Contiguous,
    /// For one block, of a power of two of pages, as buddy allocators have them.
    Block,
}

/// What the driver's allocator does.
fn ours(steps: &[Step], kind: Kind) -> Result<Outcome, BuddyError> {
    let mut memory = Buddy::<StdHeap>::new(PageCount(PAGES))?;
    let mut held: Vec<Vec<PageRange>> = Vec::new();
    let mut outcome = Outcome::default();
    for step in steps {
        let pages = match *step {
            Step::Alloc(pages) => PageCount(pages),
            Step::Free(number) => {
                for block in std::mem::take(&mut held[number]) {
                    memory.free(block)?;
                }
                continue;
            }
        };
        let free = memory.free_pages();
        let mut one = |pages, align| memory.alloc(Request { pages, align }).map(|one| vec![one]);
        let blocks = match kind {
            Kind::Contiguous => one(pages, PageCount(1)),
            Kind::Block => {
                let whole = PageCount(pages.0.next_power_of_two());
                one(whole, whole)
            }
            Kind::Scattered => {
                let (mut blocks, mut unclean) = (StdVec::new(), StdVec::new());
                let request = Scattered {
                    pages,
                    granule: PageCount(1),
                    within: PageRange::new(0, PAGES),
                };
                let result = memory.alloc_scattered(request, &mut blocks, &mut unclean);
                result.map(|()| blocks.as_slice().to_vec())
            }
        };
        let blocks = match blocks {
            Err(BuddyError::NoSpace) => {
                outcome.failed += u64::from(free >= pages);
                Vec::new()
            }
            other => other?,
        };
        outcome.blocks += blocks.len() as u64;
        held.push(blocks);
    }
    outcome.largest = memory.largest_free_block().0;
    outcome.free = memory.free_pages().0;
    Ok(outcome)
}

/// Loads the modules with the kernel's allocator, which are beside this program.
fn load() -> Result<()> {
    let program = env::current_exe()?;
    let products = program.ancestors().nth(2).context("no directory")?;
    for name in ["skua_gpu_buddy.ko", "skua_bench.ko"] {
        let path = products.join(name);
        let file = match File::open(&path) {
            // The kernel has it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.with_context(|| path.display().to_string())?,
        };
        match finit_module(&file, c"", 0) {
            Err(rustix::io::Errno::EXIST) => {}
            result => result.with_context(|| name.to_owned())?,
        }
    }
    Ok(())
}

/// What the kernel's allocator does.
fn theirs(steps: &[Step], contiguous: bool) -> Result<Outcome> {
    let steps = steps.iter().map(|step| match *step {
        // CAST: at most 8 MiB, and far below 2^63.
        Step::Alloc(pages) => (pages * PAGE_BYTES) as i64,
        Step::Free(number) => !(number as i64),
    });
    let head = [(PAGES * PAGE_BYTES) as i64, i64::from(contiguous)];
    let words: Vec<u8> = head
        .into_iter()
        .chain(steps)
        .flat_map(i64::to_ne_bytes)
        .collect();
    fs::write(THEIRS, words).context(THEIRS)?;
    let text = fs::read_to_string(THEIRS).context(THEIRS)?;
    let mut words = text.split_whitespace();
    let mut number = |name: &str| -> Result<u64> {
        ensure!(words.next() == Some(name), "{THEIRS}: {text}");
        Ok(words.next().context("a number")?.parse()?)
    };
    Ok(Outcome {
        failed: number("failed")?,
        blocks: number("blocks")?,
        largest: number("largest")? / PAGE_BYTES,
        free: number("free")? / PAGE_BYTES,
    })
}

/// Fills the rows of measure 19.
///
/// # Errors
///
/// If something cannot be measured.
pub fn measure(report: &mut Report) -> Result<()> {
    load()?;
    for (name, kind) in [
        ("scattered", Kind::Scattered),
        ("contiguous", Kind::Contiguous),
    ] {
        let contiguous = kind == Kind::Contiguous;
        let mut sums = [Outcome::default(); 3];
        for seed in 1..=TRACES {
            let steps = trace(seed);
            let ours = |kind| ours(&steps, kind).map_err(|error| anyhow::anyhow!("{error:?}"));
            let blocks = ours(Kind::Block)?;
            let all = [ours(kind)?, theirs(&steps, contiguous)?, blocks];
            for (sum, outcome) in sums.iter_mut().zip(all) {
                sum.failed += outcome.failed;
                sum.blocks += outcome.blocks;
                sum.largest += outcome.largest;
                sum.free += outcome.free;
            }
        }
        let [ours, theirs, blocks] = sums;
        let detail = json!({ "ours": format!("{ours:?}"), "theirs": format!("{theirs:?}") });
        // CAST: far below 2^53.
        let part = |outcome: Outcome| outcome.largest as f64 / outcome.free as f64;
        report.detailed(
            &format!("fragmentation.{name}.largest"),
            part(ours) / part(theirs),
            detail,
        )?;
        let (row, [mine, other]) = match contiguous {
            true => ("failed", [ours.failed, theirs.failed]),
            false => ("blocks", [ours.blocks, theirs.blocks]),
        };
        report.ratio(&format!("fragmentation.{name}.{row}"), mine, other)?;
        if contiguous {
            report.ratio("fragmentation.contiguous.failed.off", blocks.failed, other)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_the_same_each_time_and_fits() {
        assert_eq!(trace(3), trace(3));
        assert_ne!(trace(3), trace(4));
        let steps = trace(3);
        let requests = steps.iter().filter(|step| matches!(step, Step::Alloc(_)));
        assert!(requests.count() > STEPS / 2);
        let outcome = ours(&steps, Kind::Scattered).expect("memory");
        assert_eq!(outcome.failed, 0);
        assert!(
            outcome.free >= PAGES / 2 && outcome.largest > 0,
            "{outcome:?}"
        );
    }

    #[test]
    fn one_block_for_each_fails_at_times() {
        let outcome = ours(&trace(3), Kind::Contiguous).expect("memory");
        assert!(outcome.failed > 0 && outcome.blocks > 0, "{outcome:?}");
    }
}
