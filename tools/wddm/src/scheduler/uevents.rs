// SPDX-License-Identifier: MIT

//! What the kernel tells everybody: that devices come, change and go.
//!
//! These are the messages that udev listens to, which need no privilege. Here they are only a
//! reason to look at the GPU, so that nobody reads them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::Errno,
    net::{
        bind,
        netlink::{SocketAddrNetlink, KOBJECT_UEVENT},
        recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType,
    },
};

/// The kernel's own messages, and not those that udev makes of them.
const KERNEL: u32 = 1;

/// A socket that gets a message when any device comes, changes or goes.
#[derive(Debug)]
pub(super) struct Uevents(OwnedFd);

impl Uevents {
    pub(super) fn new() -> Result<Self, Errno> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(KOBJECT_UEVENT),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Self(socket))
    }

    /// Drops the messages that have come; whether there were any. Some that were lost count.
    pub(super) fn drain(&self) -> bool {
        let mut any = false;
        loop {
            match recv(&self.0, &mut [0_u8; 64], RecvFlags::TRUNC) {
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_messages_there_is_nothing_to_drain() {
        let (Ok(quiet), Ok(_other)) = (Uevents::new(), Uevents::new()) else {
            // A sandbox without netlink.
            return;
        };
        while quiet.drain() {}
        assert!(!quiet.drain());
    }
}
