// SPDX-License-Identifier: MIT

//! What the kernel tells of devices.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use rustix::net::netlink::{SocketAddrNetlink, KOBJECT_UEVENT};
use rustix::net::{bind, recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::client::PATIENCE;
use crate::suite::patience;

/// The kernel's own group of listeners (`include/linux/netlink.h`).
const KERNEL: u32 = 1;

/// Hears uevents from the moment at which it was made.
pub struct Uevents(OwnedFd);

impl Uevents {
    /// Begins to listen.
    ///
    /// # Panics
    ///
    /// If the kernel does not let it.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it opens a socket")]
    pub fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(kind.0, kind.1, flags, Some(KOBJECT_UEVENT)).expect("a socket");
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL)).expect("bind");
        Self(socket)
    }

    /// The variables of the next event that has this one, if it comes in time.
    ///
    /// # Panics
    ///
    /// If the socket fails.
    #[track_caller]
    pub fn next(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let end = Instant::now() + PATIENCE * patience();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, time).expect("poll") == 0 {
                return None;
            }
            let mut bytes = [0; 8192];
            let (read, _) = recv(&self.0, &mut bytes[..], RecvFlags::empty()).expect("an event");
            let text = String::from_utf8_lossy(&bytes[..read]);
            let variables = text.split('\0').filter_map(|line| line.split_once('='));
            let variables: BTreeMap<_, _> = variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            if variables.contains_key(name) {
                return Some(variables);
            }
        }
    }
}
