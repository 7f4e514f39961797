// SPDX-License-Identifier: MIT

//! Fences of another driver, which signal when the test says so.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;

use crate::client::own;
use crate::raw::ioctl;
use crate::skip;

/// A software timeline: `drivers/dma-buf/sw_sync.c`.
#[derive(Debug)]
pub struct SoftwareTimeline(File);

impl SoftwareTimeline {
    /// One at 0; skips the test if the kernel has none.
    #[expect(clippy::new_without_default, reason = "it may skip the test")]
    pub fn new() -> Self {
        let path = "/sys/kernel/debug/sync/sw_sync";
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => Self(file),
            Err(_) => skip("the kernel has no sw_sync"),
        }
    }

    /// A sync file that signals at a value.
    #[track_caller]
    pub fn fence(&self, value: u32) -> OwnedFd {
        #[repr(C)]
        struct Create {
            value: u32,
            name: [u8; 32],
            fence: i32,
        }
        let mut argument = Create {
            value,
            name: [0; 32],
            fence: -1,
        };
        // _IOWR('W', 0, struct sw_sync_create_fence_data)
        ioctl(&self.0, 0xc028_5700, &mut argument).expect("CREATE_FENCE");
        own(argument.fence)
    }

    /// Moves it on by `by`.
    #[track_caller]
    pub fn advance(&self, by: u32) {
        let mut by = by;
        // _IOW('W', 1, __u32)
        ioctl(&self.0, 0x4004_5701, &mut by).expect("INC");
    }
}
