// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A [`Heap`] on the host, which fails where a test wants it to.
//!
//! Each thread has a countdown: [`fail_at`] makes the n-th allocation from now on fail, once. A
//! test calls the operation with n = 0, 1, 2, … until it succeeds ([`until_enough`]) and checks
//! after each failure that nothing changed; so each allocation of the operation fails once.
//!
//! # Examples
//!
//! ```
//! use skua_policy::id_slots::IdSlots;
//! use skua_policy::std_heap::{until_enough, StdHeap};
//!
//! let ids = until_enough(|| IdSlots::<StdHeap>::new(0, 100));
//! # drop(ids);
//! ```

use super::heap::{FallibleVec, Heap, OutOfMemory};
use core::cell::Cell;
use std::boxed::Box;
use std::thread_local;
use std::vec::Vec;

thread_local! {
    static COUNTDOWN: Cell<Option<u64>> = const { Cell::new(None) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The heap of the host's standard library.
#[derive(Debug)]
pub struct StdHeap;

impl Heap for StdHeap {
    type Vec<T> = StdVec<T>;
    type Box<T> = Box<T>;

    fn boxed<T>(value: T) -> Result<Box<T>, OutOfMemory> {
        allocate()?;
        Ok(Box::new(value))
    }
}

/// Counts an allocation, and says whether it is to fail.
fn allocate() -> Result<(), OutOfMemory> {
    match COUNTDOWN.get() {
        Some(0) => {
            COUNTDOWN.set(None);
            return Err(OutOfMemory);
        }
        Some(n) => COUNTDOWN.set(Some(n - 1)),
        None => {}
    }
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    Ok(())
}

/// A `std` vector that grows only through `try_reserve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdVec<T>(Vec<T>);

/// Lets the `n`-th allocation of this thread fail, counted from 0; `None` lets all succeed.
pub fn fail_at(n: Option<u64>) {
    COUNTDOWN.set(n);
}

/// The allocations that this thread has made so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Runs `attempt` with its first allocation failing, then its second, and so on, until it gets by
/// without a failure, and returns what it then returned. `attempt` sees whether a failure was
/// injected only by its own result, and says by `Err` that it was.
pub fn until_enough<T, E>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let mut n = 0;
    loop {
        fail_at(Some(n));
        let result = attempt();
        let injected = COUNTDOWN.take().is_none();
        match result {
            Ok(value) if !injected => return value,
            Ok(_) => panic!("allocation {n} failed and nobody noticed"),
            Err(_) if injected => n += 1,
            Err(_) => panic!("failed for another reason than allocation {n}"),
        }
    }
}

impl<T> StdVec<T> {
    fn grow(&mut self, additional: usize) -> Result<(), OutOfMemory> {
        if self.0.capacity() - self.0.len() >= additional {
            return Ok(());
        }
        allocate()?;
        self.0.try_reserve(additional).map_err(|_| OutOfMemory)
    }
}

impl<T> FallibleVec<T> for StdVec<T> {
    fn new() -> Self {
        StdVec(Vec::new())
    }

    fn reserve(&mut self, additional: usize) -> Result<(), OutOfMemory> {
        self.grow(additional)
    }

    fn try_push(&mut self, value: T) -> Result<(), OutOfMemory> {
        self.grow(1)?;
        self.0.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    fn as_slice(&self) -> &[T] {
        &self.0
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}
