// SPDX-License-Identifier: MIT

//! Every filter's programs on the reference, against the CPU.

use skua_filter::compare::difference;
use skua_filter::filter::Filter;
use skua_filter::picture::Picture;
use skua_filter::plan::{Layout, Plan};
use skua_filter::reference;
use skua_reference::Buffers;

/// Addresses far apart: what lies between is not mapped, so that an access outside is found.
fn address(number: u64) -> u64 {
    0x7f00_0000_0000 + (number << 32)
}

/// Carries a plan out on the reference.
fn run(filter: Filter, radius: u32, picture: &Picture, budget: u64) -> Picture {
    let plan = Plan::new(filter, radius, picture.width(), picture.height(), budget)
        .expect("the image can be planned");
    let bytes = picture.to_bytes();
    let pitch = plan.pitch() as usize;
    let mut result = vec![0xaa; bytes.len()];
    let sizes = plan.sizes();
    let layout = Layout {
        programs: vec![0; plan.programs().len()],
        source: address(1),
        target: address(2),
        intermediate: address(3),
        weights: address(4),
        histogram: address(5),
        table: address(6),
    };
    let weights: Vec<u8> = plan
        .weights()
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let mut tables = Buffers::default();
    tables.add(layout.histogram, vec![0; sizes.histogram as usize]);
    tables.add(layout.table, vec![0; sizes.table as usize]);
    let mut number = 0;
    for (index, stage) in plan.stages().iter().enumerate() {
        let bands = if stage.banded {
            plan.bands()
        } else {
            &plan.bands()[..1]
        };
        for band in bands {
            // Exactly the band, so that reading beyond it is found as well.
            let rows = band.source.start as usize * pitch..band.source.end as usize * pitch;
            let target = band.target.start as usize * pitch..band.target.end as usize * pitch;
            let mut memory = Buffers::default();
            memory.add(layout.source, bytes[rows.clone()].to_vec());
            memory.add(layout.intermediate, vec![0xbb; rows.len()]);
            memory.add(layout.target, vec![0xcc; target.len()]);
            memory.add(layout.weights, weights.clone());
            for address in [layout.histogram, layout.table] {
                memory.add(address, tables.get(address).expect("it was added").to_vec());
            }
            let dispatches = plan
                .dispatches(index, band, &layout)
                .expect("all arguments");
            for (i, dispatch) in dispatches.iter().enumerate() {
                let program = &plan.programs()[number + i];
                let stop = skua_reference::run(&program.bytes(), dispatch, &mut memory, 1 << 32);
                if let Err(stop) = stop {
                    let line = match stop {
                        skua_reference::Stop::Fault { pc, .. } => program.line(pc),
                        skua_reference::Stop::Limit => None,
                    };
                    panic!("{}, line {line:?}: {stop:?}", stage.passes[i].source.name);
                }
            }
            if stage.writes {
                let got = memory.get(layout.target).expect("it was added");
                result[target].copy_from_slice(got);
            }
            let mut next = Buffers::default();
            for address in [layout.histogram, layout.table] {
                next.add(address, memory.get(address).expect("it was added").to_vec());
            }
            tables = next;
        }
        number += stage.passes.len();
    }
    Picture::from_bytes(picture.width(), picture.height(), &result).expect("the same size")
}

/// Pixels without a pattern, alpha included; few values where `seed` is even, so that histograms
/// have gaps.
fn noise(width: u32, height: u32, seed: u32) -> Picture {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let pixels = (0..u64::from(width) * u64::from(height))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            if seed % 2 == 0 {
                state & 0xffc0_c0c0
            } else {
                state
            }
        })
        .collect();
    Picture::new(width, height, pixels).expect("pixels")
}

#[track_caller]
fn check(filter: Filter, radius: u32, picture: &Picture, budget: u64) {
    let expected = reference::apply(filter, radius, picture);
    let got = run(filter, radius, picture, budget);
    if let Some(d) = difference(&expected, &got) {
        panic!(
            "{} {radius} {picture:?} in {budget} bytes: {d}",
            filter.name()
        );
    }
}

const SIZES: [(u32, u32); 10] = [
    (1, 1),
    (1, 37),
    (37, 1),
    (2, 2),
    (31, 9),
    (32, 8),
    (33, 17),
    (64, 16),
    (65, 33),
    (259, 19),
];

#[test]
fn every_filter_at_every_size() {
    for filter in Filter::ALL {
        for (width, height) in SIZES {
            for seed in [1, 2] {
                check(filter, 3, &noise(width, height, seed), 1 << 24);
            }
        }
    }
}

#[test]
fn blur_at_the_ends_of_its_radius() {
    for radius in [0, 1, 7, 63, 64] {
        for (width, height) in [(1, 1), (1, 50), (50, 1), (70, 40)] {
            check(Filter::Blur, radius, &noise(width, height, 7), 1 << 24);
        }
    }
}

#[test]
fn bands_make_no_difference() {
    let picture = noise(45, 40, 5);
    for filter in Filter::ALL {
        for rows in [1, 3, 8, 13] {
            // Two slots of source and target with that many rows, and the halos.
            let radius = 5;
            let halo = u64::from(filter.halo(radius));
            let buffers = if filter == Filter::Blur { 3 } else { 2 };
            let budget = 2 * 45 * 4 * (buffers * rows + (buffers - 1) * 2 * halo);
            check(filter, radius, &picture, budget);
        }
    }
}

#[test]
fn extreme_pixels() {
    for filter in Filter::ALL {
        for pixel in [0, u32::MAX, 0x00ff_00ff, 0xff00_ff00] {
            let even = Picture::new(40, 20, vec![pixel; 800]).expect("pixels");
            check(filter, 64, &even, 1 << 24);
        }
        let board = (0..40 * 20).map(|i| if (i / 40 + i) % 2 == 0 { u32::MAX } else { 0 });
        let board = Picture::new(40, 20, board.collect()).expect("pixels");
        check(filter, 2, &board, 1 << 24);
    }
}
