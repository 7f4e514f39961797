// SPDX-License-Identifier: MIT

//! The Skua uAPI in Rust, generated from the header.
//!
//! `include/uapi/drm/skua_drm.h` is the interface's one specification: bindgen makes this crate of
//! it at build time, comments included, as it makes the driver's own bindings. What of the DRM
//! core, of sync files and of dma-bufs a client of a render node needs comes along from the
//! kernel's headers.
//!
//! - Structures keep their C names; members too, except `type`, which is `type_` here.
//! - Enumerations are `u32`: any value may stand in a structure, those with a meaning are the
//!   constants.
//! - Numbers of ioctls (`DRM_IOCTL_…`, `SYNC_IOC_…`) are `u32` with direction and size encoded.
//! - Every structure is [`Default`]: all bytes zero.
//!
//! The layout is asserted twice at compile time: by bindgen against what the C compiler says, and
//! by [`layout`] against numbers written down by hand, so that no change of the header goes
//! unnoticed.
//!
//! Nothing here does anything; `libskua` does.

#[expect(
    missing_docs,
    non_camel_case_types,
    clippy::undocumented_unsafe_blocks,
    reason = "generated: names and comments are the headers', unsafe is for Default"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/uapi.rs"));
}

pub mod layout;

pub use generated::*;
