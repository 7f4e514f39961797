// SPDX-License-Identifier: MIT

//! Every filter's programs on the device model, against the CPU.

use std::time::Instant;

use skua_filter::compare::difference;
use skua_filter::filter::Filter;
use skua_filter::picture::Picture;
use skua_filter::plan::{Layout, Plan};
use skua_filter::{reference, sample};
use skua_spec::status::Counter;
use skua_testbed::machine::{Machine, DATA, VA};

/// Carries a plan out on the device; transfers are the CPU's.
fn run(machine: &mut Machine, filter: Filter, radius: u32, picture: &Picture) -> Picture {
    let plan = Plan::new(filter, radius, picture.width(), picture.height(), 40 << 20)
        .expect("the image can be planned");
    let bytes = picture.to_bytes();
    let pitch = plan.pitch() as usize;
    let mut result = vec![0; bytes.len()];
    // Offsets in VRAM; the layout has addresses.
    let mut at = DATA;
    let mut take = |bytes: u64| {
        let offset = at;
        at += bytes.next_multiple_of(8);
        offset
    };
    let programs: Vec<u64> = plan
        .programs()
        .iter()
        .map(|p| {
            let offset = take(p.bytes().len() as u64);
            machine.write(offset, &p.bytes());
            VA + offset
        })
        .collect();
    let weights: Vec<u8> = plan
        .weights()
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let sizes = *plan.sizes();
    let [weights_at, histogram, table, source, target, intermediate] = [
        weights.len() as u64,
        sizes.histogram,
        sizes.table,
        sizes.source,
        sizes.target,
        sizes.intermediate,
    ]
    .map(&mut take);
    machine.write(weights_at, &weights);
    machine.write(histogram, &vec![0; sizes.histogram as usize]);
    let layout = Layout {
        programs,
        source: VA + source,
        target: VA + target,
        intermediate: VA + intermediate,
        weights: VA + weights_at,
        histogram: VA + histogram,
        table: VA + table,
    };
    let range =
        |rows: &std::ops::Range<u32>| rows.start as usize * pitch..rows.end as usize * pitch;
    for (index, stage) in plan.stages().iter().enumerate() {
        let bands = if stage.banded {
            plan.bands()
        } else {
            &plan.bands()[..1]
        };
        for band in bands {
            machine.write(source, &bytes[range(&band.source)]);
            let dispatches = plan
                .dispatches(index, band, &layout)
                .expect("all arguments");
            machine.run(&dispatches).unwrap_or_else(|record| {
                let name = stage.passes[0].source.name;
                panic!("{name}: {record:?}");
            });
            if stage.writes {
                let target_range = range(&band.target);
                let got = machine.read(target, target_range.len());
                result[target_range].copy_from_slice(&got);
            }
        }
    }
    Picture::from_bytes(picture.width(), picture.height(), &result).expect("the same size")
}

#[track_caller]
fn check(machine: &mut Machine, filter: Filter, radius: u32, picture: &Picture) {
    let expected = reference::apply(filter, radius, picture);
    let got = run(machine, filter, radius, picture);
    if let Some(d) = difference(&expected, &got) {
        panic!("{} {radius} {picture:?}: {d}", filter.name());
    }
}

/// Pixels without a pattern, alpha included.
fn noise(width: u32, height: u32) -> Picture {
    let pixels = (0..width * height).map(|i| i.wrapping_mul(0x9e37_79b9).rotate_left(i % 31));
    Picture::new(width, height, pixels.collect()).expect("pixels")
}

#[test]
fn every_filter_on_the_device() {
    let mut machine = Machine::new(64 << 20);
    for filter in Filter::ALL {
        for (width, height) in [(1, 1), (1, 37), (37, 1), (33, 17), (65, 33), (259, 19)] {
            check(&mut machine, filter, 3, &noise(width, height));
        }
        check(&mut machine, filter, 64, &noise(70, 40));
        check(&mut machine, filter, 8, &sample::picture());
    }
}

/// How long a blur with radius 8 of an image of 1920x1080 takes: `--nocapture` shows it.
#[test]
fn a_large_blur_takes_seconds() {
    let mut machine = Machine::new(64 << 20);
    let picture = noise(1920, 1080);
    let expected = reference::apply(Filter::Blur, 8, &picture);
    let start = Instant::now();
    let got = run(&mut machine, Filter::Blur, 8, &picture);
    println!(
        "1920x1080, radius 8: {:?}, {} wave instructions",
        start.elapsed(),
        machine.device.counter(Counter::Instruction)
    );
    assert_eq!(difference(&expected, &got), None);
}
