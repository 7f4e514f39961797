// SPDX-License-Identifier: MIT

//! What driver and device did in one run, on one axis of time, to be looked at.
//!
//! ```text
//! the driver's tracepoints ─▶ guest ───┐
//!                                      ├─▶ timeline ─┬─▶ perfetto   trace.pftrace
//! the device's record ──────▶ device ──┘             └─▶ page       trace.html
//! ```
//!
//! [`Timeline::new`] says how the two are joined and what the axis is;
//! `Documentation/gpu/skua/trace.rst` has it for users.
//!
//! # Examples
//!
//! ```
//! use skua_trace::{device, guest, Timeline};
//!
//! let device = "# skua-events 1 engines=compute\n\
//!               9000 0 40 begin packet=1 context=5 asid=3 resume=0\n\
//!               9900 0 1040 end packet=1 context=5 asid=3\n";
//! let guest = "prog-7 [000] ..... 2.000001: \
//!              skua_packet: dev=d, engine=0, context=4, fence=9:1, packet=1\n";
//! let timeline = Timeline::new(&device::parse(device)?, &guest::parse(guest));
//! let packet = &timeline.packets[0];
//! assert_eq!((packet.from.ticks, packet.to.ticks), (40, 1040));
//! assert_eq!(timeline.submissions[packet.submission.unwrap()].fence, "9:1");
//! # Ok::<(), device::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod device;
pub mod guest;
pub mod page;
pub mod perfetto;
mod timeline;

pub use timeline::{
    Context, Engine, Instant, Mark, Move, Packet, Region, Signal, Submission, Timeline, Value, Wait,
};
