// SPDX-License-Identifier: MIT

//! A table of bad arguments of one ioctl: value, errno, and proof that nothing changed.

use std::fmt::Debug;

use crate::cases::Cases;
use crate::client::Client;
use crate::moving::evict_all;
use crate::raw::Errno;
use crate::suite::evicts;
use crate::witness::Witness;

/// A table. Each case is a good argument with one thing changed; it must fail with its errno, leave
/// the argument as it was, and change nothing that can be seen.
#[derive(Debug)]
pub struct Table<'a, T> {
    client: &'a Client,
    /// Number of the ioctl that is called (`DRM_IOCTL_SKUA_*`).
    number: u32,
    /// What succeeds as it is.
    good: T,
    /// What must not change.
    before: Witness,
    /// The cases that were tried so far, and which of them failed.
    cases: Cases,
}

impl<'a, T: Copy + PartialEq + Debug> Table<'a, T> {
    /// A table for the ioctl of this number. The good argument is not called here.
    #[track_caller]
    pub fn new(client: &'a Client, number: u32, good: T) -> Self {
        let before = if evicts() {
            // What is bad brings nothing back: all stays where it is then.
            evict_all();
            Witness::settled(client)
        } else {
            Witness::of(client)
        };
        Self {
            client,
            number,
            good,
            before,
            cases: Cases::new(),
        }
    }

    /// The good argument with a change.
    pub fn case(&mut self, name: &str, errno: Errno, change: impl FnOnce(&mut T)) {
        let mut argument = self.good;
        change(&mut argument);
        let passed = argument;
        let result = self.client.call(self.number, &mut argument);
        self.cases.expect(name, result, Err(errno));
        self.cases.expect(
            &format!("{name}: the argument after the call"),
            argument,
            passed,
        );
        let changes = self.before.changes(self.client);
        self.cases
            .expect(&format!("{name}: what can be seen"), changes, None);
    }

    /// Every bit of a 32-bit member but those in `known`, set in addition.
    pub fn bits(&mut self, name: &str, known: u32, member: impl Fn(&mut T) -> &mut u32) {
        for bit in (0..32).filter(|bit| known & (1 << bit) == 0) {
            self.case(&format!("{name} with bit {bit}"), Errno::EINVAL, |good| {
                *member(good) |= 1 << bit;
            });
        }
    }

    /// The end of the table: the good argument still works.
    #[track_caller]
    pub fn finish(mut self) -> T {
        let mut argument = self.good;
        let result = self.client.call(self.number, &mut argument);
        self.cases
            .expect("the good argument, at the end", result, Ok(()));
        self.cases.finish();
        argument
    }
}
