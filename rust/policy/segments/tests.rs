// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::super::miniport::{APERTURE_SEGMENT, VRAM_SEGMENT};
use super::*;
use crate::spec::address::GpuPhys;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

const APERTURE: u32 = 1 << 0;
const CPU_VISIBLE: u32 = 1 << 2;
const COHERENT: u32 = 1 << 4;
const HOST: u32 = 1 << 13;
const CACHED_HOST: u32 = 1 << 14;

const SYSTEM: Segment = Segment {
    id: SYSTEM_SEGMENT,
    flags: SegmentFlags::NONE,
    kind: SegmentKind::System,
};

/// 4 MiB, of which the CPU sees so much, and what there is of an aperture for the rest.
fn vram(flags: u32, cpu_visible: u64, host_aperture: Option<HostAperture>) -> Segment {
    Segment {
        id: VRAM_SEGMENT,
        flags: SegmentFlags(flags),
        kind: SegmentKind::Memory {
            base: GpuPhys(0),
            bytes: 4 * MIB,
            cpu_visible,
            host_aperture,
        },
    }
}

fn window(flags: u32) -> Segment {
    Segment {
        id: APERTURE_SEGMENT,
        flags: SegmentFlags(flags),
        kind: SegmentKind::Aperture {
            base: GpuPhys(1 << 40),
            pages: 1024,
            own: 16,
        },
    }
}

fn host(pages: u32, page_bytes: u64) -> Option<HostAperture> {
    Some(HostAperture { pages, page_bytes })
}

#[test]
fn what_gpus_have_is_legal() {
    for vram in [
        vram(CPU_VISIBLE, 4 * MIB, None),
        vram(0, 0, None),
        vram(0, MIB, None),
        vram(HOST, 0, host(64, 4096)),
        vram(HOST, MIB, host(1, 65536)),
        vram(HOST | CACHED_HOST, 0, host(64, 4096)),
    ] {
        for flags in [APERTURE, APERTURE | COHERENT] {
            assert_eq!(check(&[SYSTEM, vram, window(flags)]), Ok(()), "{vram:?}");
        }
    }
    // Neither memory of its own nor an order is asked for.
    assert_eq!(check(&[window(APERTURE), SYSTEM]), Ok(()));
}

/// Each flag with each other, on memory that has what the flags say.
#[test]
fn flags_need_and_exclude_each_other() {
    for number in 0..8 {
        let flags = [CPU_VISIBLE, HOST, CACHED_HOST]
            .into_iter()
            .enumerate()
            .filter(|(at, _)| number >> at & 1 == 1)
            .map(|(_, flag)| flag)
            .sum::<u32>();
        let visible = if flags & CPU_VISIBLE != 0 { 4 * MIB } else { 0 };
        let aperture = host(64, 4096).filter(|_| flags & HOST != 0);
        let legal = [0, CPU_VISIBLE, HOST, HOST | CACHED_HOST].contains(&flags);
        let checked = check(&[SYSTEM, vram(flags, visible, aperture), window(APERTURE)]);
        assert_eq!(checked.is_ok(), legal, "{flags:#x}: {checked:?}");
        let coherent = vram(flags | COHERENT, visible, aperture);
        assert!(check(&[SYSTEM, coherent, window(APERTURE)]).is_err());
    }
}

#[test]
fn contradictions_are_told() {
    let good = vram(0, 0, None);
    let of = |segments: &[Segment]| match check(segments) {
        Ok(()) => panic!("{segments:?}"),
        Err(Contradiction { segment, what }) => (segment, what),
    };
    let told = |vram| of(&[SYSTEM, vram, window(APERTURE)]);
    let both = vram(HOST | CPU_VISIBLE, 4 * MIB, host(64, 4096));
    assert_eq!(
        told(both),
        (1, "has SupportsCpuHostAperture and CpuVisible")
    );
    assert_eq!(
        told(vram(CACHED_HOST, 0, None)),
        (
            1,
            "has SupportsCachedCpuHostAperture without SupportsCpuHostAperture"
        )
    );
    assert_eq!(
        told(vram(HOST | CACHED_HOST, MIB, host(64, 4096))),
        (
            1,
            "has SupportsCachedCpuHostAperture and is visible without, uncached"
        )
    );
    assert_eq!(
        told(vram(COHERENT, 0, None)),
        (1, "has CacheCoherent without Aperture")
    );
    assert_eq!(
        of(&[SYSTEM, good, window(APERTURE | HOST)]),
        (2, "has SupportsCpuHostAperture and Aperture")
    );
    // What flags say, and what there is.
    for wrong in [
        vram(CPU_VISIBLE, MIB, None),
        vram(0, 4 * MIB, None),
        vram(0, 5 * MIB, None),
        vram(HOST, 0, None),
        vram(0, 0, host(64, 4096)),
        vram(HOST, 0, host(0, 4096)),
        vram(HOST, 4096, host(64, 65536)),
        vram(APERTURE, 0, None),
    ] {
        assert_eq!(told(wrong).0, VRAM_SEGMENT, "{wrong:?}");
    }
    assert_eq!(of(&[SYSTEM, good, window(0)]).0, APERTURE_SEGMENT);
    // One implicit segment, which is nothing else, and one window.
    let flagged = Segment {
        flags: SegmentFlags::CPU_VISIBLE,
        ..SYSTEM
    };
    assert_eq!(of(&[flagged, good, window(APERTURE)]).0, SYSTEM_SEGMENT);
    let renamed = |segment: Segment, id| Segment { id, ..segment };
    for (segments, number) in [
        (Vec::from([good, window(APERTURE)]), 0),
        (Vec::from([SYSTEM, good]), 1),
        (Vec::from([SYSTEM, SYSTEM, window(APERTURE)]), 0),
        (Vec::from([SYSTEM, renamed(SYSTEM, 3), window(APERTURE)]), 3),
        (Vec::from([renamed(good, 0), window(APERTURE)]), 0),
        (Vec::from([SYSTEM, good, renamed(window(APERTURE), 1)]), 1),
        (
            Vec::from([SYSTEM, window(APERTURE), renamed(window(APERTURE), 3)]),
            3,
        ),
        (
            Vec::from([SYSTEM, good, renamed(good, 3), window(APERTURE)]),
            3,
        ),
        (Vec::new(), 0),
    ] {
        assert_eq!(of(&segments).0, number, "{segments:?}");
    }
}

#[test]
fn a_window_shows_what_is_cached_if_it_is_coherent() {
    for (segment, uncached, cached) in [
        (window(APERTURE | COHERENT), true, true),
        (window(APERTURE), true, false),
        (SYSTEM, false, false),
        (vram(0, 0, None), false, false),
    ] {
        assert_eq!(segment.may_show(false), uncached, "{segment:?}");
        assert_eq!(segment.may_show(true), cached, "{segment:?}");
    }
}
