// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What segments a GPU has, as its miniport says it once, and what of that contradicts itself.
//!
//! ```text
//! number 0      system memory, which nobody has to describe
//! one segment   Aperture ── CacheCoherent
//! the others    memory ─┬─ CpuVisible: all of it, all the time
//!                       └─ SupportsCpuHostAperture ── SupportsCachedCpuHostAperture
//! ```
//!
//! # Examples
//!
//! ```
//! use skua_policy::segments::SegmentFlags;
//!
//! let flags = SegmentFlags::APERTURE.with(SegmentFlags::CACHE_COHERENT);
//! assert!(flags.has(SegmentFlags::APERTURE) && !flags.has(SegmentFlags::CPU_VISIBLE));
//! ```

use super::miniport::{HostAperture, Segment, SegmentKind, SYSTEM_SEGMENT};
use core::ops::Range;

#[cfg(test)]
mod tests;

/// Flags of a segment (`DXGK_SEGMENTFLAGS`), those of which the core makes something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentFlags(u32);

impl SegmentFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// It is a window of the GPU that shows system memory.
    pub const APERTURE: Self = Self(1 << 0);
    /// The CPU reaches all of it by its address on the bus.
    pub const CPU_VISIBLE: Self = Self(1 << 2);
    /// The GPU snoops the CPU's caches there, where it is told to: it may show what the CPU has
    /// cached (row 0.28).
    pub const CACHE_COHERENT: Self = Self(1 << 4);
    /// The CPU reaches it through a CPU host aperture.
    pub const SUPPORTS_CPU_HOST_APERTURE: Self = Self(1 << 13);
    /// What that aperture shows the CPU maps cached, and in no other way (row 0.16).
    pub const SUPPORTS_CACHED_CPU_HOST_APERTURE: Self = Self(1 << 14);

    /// These flags and `others`.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether all of `others` are among them.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Why segments cannot be those of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The number of the segment.
    pub segment: u32,
    /// What is wrong with it, to be said of it.
    pub what: &'static str,
}

/// What a flag excludes (`true`), or needs.
const RULES: [(SegmentFlags, bool, SegmentFlags, &str); 4] = [
    (
        SegmentFlags::SUPPORTS_CPU_HOST_APERTURE,
        true,
        SegmentFlags::CPU_VISIBLE,
        "has SupportsCpuHostAperture and CpuVisible",
    ),
    (
        SegmentFlags::SUPPORTS_CPU_HOST_APERTURE,
        true,
        SegmentFlags::APERTURE,
        "has SupportsCpuHostAperture and Aperture",
    ),
    (
        SegmentFlags::SUPPORTS_CACHED_CPU_HOST_APERTURE,
        false,
        SegmentFlags::SUPPORTS_CPU_HOST_APERTURE,
        "has SupportsCachedCpuHostAperture without SupportsCpuHostAperture",
    ),
    (
        SegmentFlags::CACHE_COHERENT,
        false,
        SegmentFlags::APERTURE,
        "has CacheCoherent without Aperture",
    ),
];

/// Checks what a miniport says of its segments (row 0.15).
///
/// # Errors
///
/// The first thing that contradicts another, or what every GPU has: such a device is not set up.
pub fn check(segments: &[Segment]) -> Result<(), Contradiction> {
    for (at, segment) in segments.iter().enumerate() {
        let refuse = |what| {
            let segment = segment.id;
            Err(Contradiction { segment, what })
        };
        for (flag, excludes, other, what) in RULES {
            if segment.flags.has(flag) && segment.flags.has(other) == excludes {
                return refuse(what);
            }
        }
        if let Some(what) = segment.contradiction() {
            return refuse(what);
        }
        let before = segments.get(..at).unwrap_or_default();
        if before.iter().any(|other| other.id == segment.id) {
            return refuse("is there twice");
        }
        if before.iter().any(|other| overlap(other, segment)) {
            return refuse("lies within another");
        }
    }
    let count = |is: fn(&SegmentKind) -> bool| segments.iter().filter(|it| is(&it.kind)).count();
    let refuse = |segment, what| Err(Contradiction { segment, what });
    if count(|kind| matches!(kind, SegmentKind::System)) != 1 {
        return refuse(SYSTEM_SEGMENT, "is missing");
    }
    match count(|kind| matches!(kind, SegmentKind::Aperture { .. })) {
        1 => Ok(()),
        _ => {
            let last = segments.iter().map(|segment| segment.id).max();
            refuse(
                last.unwrap_or(SYSTEM_SEGMENT),
                "is the last, and not one is the aperture",
            )
        }
    }
}

/// Whether an address leads to both.
fn overlap(one: &Segment, other: &Segment) -> bool {
    match (one.range(), other.range()) {
        (Some(one), Some(other)) => one.start < other.end && other.start < one.end,
        _ => false,
    }
}

impl Segment {
    /// Where the GPU sees it, if that is one place: by its own addresses.
    fn range(&self) -> Option<Range<u64>> {
        let (base, bytes) = match self.kind {
            SegmentKind::System => return None,
            SegmentKind::Memory { base, bytes, .. } => (base, bytes),
            SegmentKind::Aperture { base, pages, .. } => (base, pages.saturating_mul(4096)),
        };
        Some(base.0..base.0.saturating_add(bytes))
    }

    /// Whether it is a window that may show system memory, which the CPU has `cached` or not.
    pub fn may_show(&self, cached: bool) -> bool {
        let coherent = self.flags.has(SegmentFlags::CACHE_COHERENT);
        self.flags.has(SegmentFlags::APERTURE) && (coherent || !cached)
    }

    /// What its flags say that its memory does not, or the other way round.
    fn contradiction(&self) -> Option<&'static str> {
        let has = |flag| self.flags.has(flag);
        let is_aperture = matches!(self.kind, SegmentKind::Aperture { .. });
        if has(SegmentFlags::APERTURE) != is_aperture {
            return Some("has Aperture and is no window, or is one without");
        }
        if (self.id == SYSTEM_SEGMENT) != (self.kind == SegmentKind::System) {
            return Some("is system memory with another number than 0, or 0 and something else");
        }
        let SegmentKind::Memory {
            bytes,
            cpu_visible,
            host_aperture,
            ..
        } = self.kind
        else {
            let has_flags = self.kind == SegmentKind::System && self.flags != SegmentFlags::NONE;
            return has_flags.then_some("is system memory, and has flags");
        };
        let page = |aperture: HostAperture| aperture.page_bytes.max(1);
        let is_whole = host_aperture.is_none_or(|aperture| cpu_visible % page(aperture) == 0);
        let is_empty = host_aperture.is_some_and(|aperture| aperture.pages == 0);
        if bytes == 0 || cpu_visible > bytes {
            return Some("shows the CPU more than it has, or has nothing");
        }
        if has(SegmentFlags::CPU_VISIBLE) != (cpu_visible == bytes) {
            return Some("has CpuVisible and is not visible whole, or is without");
        }
        if has(SegmentFlags::SUPPORTS_CACHED_CPU_HOST_APERTURE) && cpu_visible > 0 {
            return Some("has SupportsCachedCpuHostAperture and is visible without, uncached");
        }
        if has(SegmentFlags::SUPPORTS_CPU_HOST_APERTURE) != host_aperture.is_some() {
            return Some("has SupportsCpuHostAperture and no aperture, or one without");
        }
        (!is_whole || is_empty)
            .then_some("has a CPU host aperture of no pages, or visible ones cut")
    }
}
