// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::super::{
    miniport::{
        AdapterInfo, Built, Completion, Flush, Miniport, Pass, Task, TransferPiece, SYSTEM_SEGMENT,
        VRAM_SEGMENT,
    },
    recorder::{Call, Gone, Recorder, Ring, What},
    segments::SegmentFlags,
};
use super::*;
use crate::spec::{
    address::GpuPhys,
    number::{Asid, EngineIndex},
};
use proptest::prelude::*;
use std::vec::Vec;

const GIB: u64 = 1 << 30;
const SYSTEM: Segment = Segment {
    id: SYSTEM_SEGMENT,
    flags: SegmentFlags::NONE,
    kind: SegmentKind::System,
};

fn local(bytes: u64) -> Segment {
    Segment {
        id: VRAM_SEGMENT,
        flags: SegmentFlags::NONE,
        kind: SegmentKind::Memory {
            base: GpuPhys(0),
            bytes,
            cpu_visible: 0,
            host_aperture: None,
        },
    }
}

#[test]
fn the_answer_is_in_megabytes() {
    let space = |answer: u32| space_bytes(Ok::<u32, ()>(answer), &[SYSTEM, local(GIB)], None);
    assert_eq!(space(1), Ok(Some(MIB)));
    assert_eq!(space(64), Ok(Some(64 * MIB)));
    // More than 32 bits have room for in bytes, and the most that there are addresses for.
    assert_eq!(space(5000), Ok(Some(5000 * MIB)));
    assert_eq!(space(1 << 28), Ok(Some(1 << VA_BITS)));
    assert_eq!(space((1 << 28) + 1), Err(BadSize));
    assert_eq!(space(u32::MAX), Err(BadSize));
    // An adapter behind the last of the link is an error, whatever its size would be.
    let hw = Recorder::default();
    assert_eq!(hw.query_paging_va(0), Ok(1));
    assert_eq!(hw.query_paging_va(1), Err(Gone));
}

#[test]
fn without_an_answer_the_core_decides() {
    let space = |answer: Result<u32, ()>| space_bytes(answer, &[SYSTEM, local(GIB)], None);
    assert_eq!(space(Err(())), Ok(Some(GIB / 4)));
    assert_eq!(space(Ok(0)), Ok(Some(GIB / 4)));
    assert_eq!(space(Ok(64)), Ok(Some(64 * MIB)));
}

#[test]
fn the_default_follows_from_memory_and_scheduling() {
    let with = |segments: &[Segment], logs| space_bytes(Err::<u32, ()>(()), segments, logs);
    let (none, one) = ([SYSTEM], [SYSTEM, local(GIB)]);
    assert_eq!(with(&none, None), Ok(None));
    assert_eq!(with(&none, Some(8 * MIB)), Ok(Some(8 * MIB)));
    assert_eq!(with(&one, None), Ok(Some(GIB / 4)));
    assert_eq!(with(&one, Some(8 * MIB)), Ok(Some(GIB / 4)));
    assert_eq!(with(&one, Some(GIB)), Ok(Some(GIB)));
    // The largest segment, in whole tables; a driver's own size needs no memory.
    let two = [SYSTEM, local(GIB), local(3 * GIB)];
    assert_eq!(with(&two, None), Ok(Some(768 * MIB)));
    assert_eq!(with(&[local(2 * MIB)], Some(1)), Ok(Some(2 * MIB)));
    assert_eq!(with(&[local(u64::MAX)], None), Err(BadSize));
    assert_eq!(space_bytes(Ok::<u32, ()>(1), &none, None), Ok(Some(MIB)));
}

#[test]
fn tables_follow_from_the_size() {
    for (bytes, tables) in [
        (MIB, [1, 1, 1, 1]),
        (16 * MIB, [8, 1, 1, 1]),
        (17 * MIB, [9, 1, 1, 1]),
        (GIB, [512, 1, 1, 1]),
        (GIB + MIB, [513, 2, 1, 1]),
        (513 * GIB, [513 * 512, 513, 2, 1]),
        (1 << VA_BITS, [1 << 27, 1 << 18, 512, 1]),
    ] {
        let space = PagingSpace::new(bytes).expect("a size");
        assert_eq!([0, 1, 2, 3].map(|level| space.tables(level)), tables);
        assert_eq!(space.table_bytes(), tables.iter().sum::<u64>() * 4096);
    }
    for bad in [0, MIB - 1, MIB + 4096, (1 << VA_BITS) + MIB, u64::MAX] {
        assert_eq!(PagingSpace::new(bad), None, "{bad:#x}");
    }
}

#[test]
fn windows_and_buffers_lie_apart() {
    for megabytes in (1..40).chain([255, 1 << 20, 1 << 28]) {
        let space = PagingSpace::new(megabytes * MIB).expect("a size");
        let mut end = 0;
        for window in (0..WINDOWS).map(|number| space.window(number)) {
            assert!(window.va.0 >= end && window.va.0 % window.unit == 0);
            assert!(window.bytes >= 3 << 16 && window.bytes % window.unit == 0);
            assert_eq!(window.buffer().0, window.va.0 + window.bytes);
            end = window.buffer().0 + BUFFER_BYTES;
        }
        assert!(end <= space.bytes());
    }
}

/// All passes of an operation in a space of so many MiB, each with its offset.
fn passes(operation: &PagingOperation<'_>, megabytes: u64) -> Vec<(MultipassOffset, Vec<Step>)> {
    let space = PagingSpace::new(megabytes * MIB).expect("a size");
    let (mut passes, mut next) = (Vec::new(), Some(MultipassOffset::default()));
    while let Some(from) = next {
        let mut steps = [Vec::new(), Vec::new()];
        for (number, steps) in (0..).zip(&mut steps) {
            let window = space.window(number);
            next = operation
                .pass(from, window, |step| {
                    let from_window = step.va.0 - window.va.0;
                    assert!(from_window + step.bytes() <= window.bytes);
                    if let Action::Transfer(_, va) = step.action {
                        assert!(va.0 >= step.va.0 + step.bytes());
                        assert!(va.0 + step.bytes() <= window.buffer().0);
                    }
                    steps.push((step, from_window));
                    Ok::<(), ()>(())
                })
                .expect("a pass");
        }
        // In whichever window, it is the same.
        let [one, two] = steps;
        let parts = |steps: &[(Step, u64)]| -> Vec<_> {
            steps.iter().map(|(step, at)| (step.block, *at)).collect()
        };
        assert_eq!(parts(&one), parts(&two));
        passes.push((from, one.into_iter().map(|(step, _)| step).collect()));
    }
    passes
}

fn pieces(lengths: &[u64]) -> Vec<TransferPiece> {
    let mut at = 3;
    let pieces = lengths.iter().map(|&pages| {
        let start = at;
        at += pages + 1;
        TransferPiece {
            block: PageRange::new(start, pages),
            bus: BusAddr((GIB + start * 7) * PAGE_BYTES),
        }
    });
    pieces.collect()
}

proptest! {
    #![proptest_config(crate::cases(2))]

    /// Each page once, in order, and no pass that does nothing or more than it may.
    #[test]
    fn every_page_is_done_once(
        lengths in prop::collection::vec(prop_oneof![1u64..20, 1u64..3000], 1..300),
        megabytes in prop_oneof![1u64..5, 5u64..200],
        fill in any::<bool>(),
    ) {
        let pieces = pieces(&lengths);
        let blocks: Vec<_> = pieces.iter().map(|piece| piece.block).collect();
        let operation = if fill {
            PagingOperation::Fill { segment: VRAM_SEGMENT, blocks: &blocks }
        } else {
            PagingOperation::Transfer {
                segment: VRAM_SEGMENT,
                out: true,
                cached: true,
                pieces: &pieces,
            }
        };
        let passes = passes(&operation, megabytes);
        let most = if fill { FILL_PAGES } else { TRANSFER_PAGES };
        for (_, steps) in &passes {
            prop_assert!((1..=128).contains(&steps.len()));
            prop_assert!(steps.iter().map(|step| step.block.pages.0).sum::<u64>() <= most);
        }
        let steps = || passes.iter().flat_map(|(_, steps)| steps);
        let flags: Vec<_> = steps().map(|step| (step.start, step.end)).collect();
        let last = flags.len() - 1;
        prop_assert!(flags.iter().enumerate().all(|(n, flags)| *flags == (n == 0, n == last)));
        let done: Vec<_> = steps()
            .flat_map(|step| {
                let bus = match step.action {
                    Action::Transfer(bus, _) => Some(bus.0),
                    _ => None,
                };
                (0..step.block.pages.0)
                    .map(move |n| (step.block.start.0 + n, bus.map(|bus| bus + n * PAGE_BYTES)))
            })
            .collect();
        let all: Vec<_> = pieces
            .iter()
            .flat_map(|piece| {
                let bus = |n| (!fill).then_some(piece.bus.0 + n * PAGE_BYTES);
                (0..piece.block.pages.0).map(move |n| (piece.block.start.0 + n, bus(n)))
            })
            .collect();
        prop_assert_eq!(done, all);
    }
}

#[test]
fn what_is_aligned_is_mapped_by_large_pages() {
    // 16 MiB at the second page of 2 MiB, in windows of as much.
    let blocks = [PageRange::new(512, 4096)];
    let fill = PagingOperation::Fill {
        segment: VRAM_SEGMENT,
        blocks: &blocks,
    };
    let passes = passes(&fill, 16);
    assert_eq!(passes.len(), 8);
    for (_, steps) in &passes {
        let [step] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert_eq!(step.va.0 % PageSize::Size2M.bytes(), 0);
        assert_eq!(step.bytes(), PageSize::Size2M.bytes());
    }
}

/// 64 MiB whose pages all lie apart: what decides is how many commands a paging buffer holds.
#[test]
fn a_transfer_takes_as_many_paging_buffers_as_it_takes() {
    let commands = (BUFFER_BYTES / COMMAND_BYTES) as usize;
    let pages = (64 * MIB / PAGE_BYTES) as usize;
    let pieces = pieces(&std::vec![1; pages]);
    let transfer = PagingOperation::Transfer {
        segment: VRAM_SEGMENT,
        out: true,
        cached: true,
        pieces: &pieces,
    };
    let offset = |piece| MultipassOffset { piece, page: 0 };
    let large = passes(&transfer, 64);
    assert_eq!(large.len(), pages / commands);
    for (number, (from, steps)) in large.iter().enumerate() {
        assert_eq!((*from, steps.len()), (offset(number * commands), commands));
    }

    // In an address space of 1 MiB it is the window: 64 KiB of each side.
    let hw = Recorder::default();
    let (node, mut ring) = (EngineIndex::ALL[0], Ring::new(8));
    let (mut from, mut fence) = (MultipassOffset::default(), 0);
    loop {
        fence += 1;
        let (operation, interrupt) = (transfer, true);
        let pass = Pass {
            operation,
            from,
            idle: fence == 1,
        };
        let built = hw.build_paging_buffer(node, &mut ring, &pass).unwrap();
        let task = Task::Paging(pass, Flush::All.before(from));
        let completion = Completion { fence, interrupt };
        let place = hw.submit_command(node, &mut ring, &task, completion, false);
        hw.retire(node, &mut ring, place.unwrap(), fence).unwrap();
        match built {
            Built::Full(next) => from = next,
            built => break assert_eq!(built, Built::Last),
        }
    }
    let calls = hw.calls.borrow();
    let built = calls.iter().filter_map(|call| match call {
        Call::Build {
            from, built, steps, ..
        } => Some((*from, *built, steps.len())),
        _ => None,
    });
    let expected = (0..pages / 16).map(|number| {
        let rest = Some(offset((number + 1) * 16)).filter(|rest| rest.piece < pages);
        (
            offset(number * 16),
            rest.map_or(Built::Last, Built::Full),
            16,
        )
    });
    assert!(built.eq(expected));
    // Behind one flush, which is before all of it.
    let flushes = calls.iter().filter_map(|call| match call {
        Call::Submit {
            what: What::Transfer(_, _, _, flush),
            ..
        } => Some(*flush),
        _ => None,
    });
    assert!(flushes.eq([Flush::All]
        .into_iter()
        .chain([Flush::Nothing; 16384 / 16 - 1])));
}

#[test]
fn what_is_discarded_takes_one_paging_buffer_and_nothing_in_it() {
    let blocks = [PageRange::new(512, 4096), PageRange::new(8192, 1)];
    let hw = Recorder::default();
    let (node, mut ring) = (EngineIndex::ALL[0], Ring::new(8));
    let pass = Pass {
        operation: PagingOperation::Discard {
            segment: VRAM_SEGMENT,
            blocks: &blocks,
        },
        from: MultipassOffset::default(),
        idle: true,
    };
    // So nobody takes it for something by which an engine leaves its context.
    assert!(!pass.operation.has_steps());
    let fill = PagingOperation::Fill {
        segment: VRAM_SEGMENT,
        blocks: &blocks,
    };
    assert!(fill.has_steps());
    let built = hw.build_paging_buffer(node, &mut ring, &pass).unwrap();
    assert_eq!(built, Built::Last);
    let completion = Completion {
        fence: 1,
        interrupt: true,
    };
    let task = Task::Paging(pass, Flush::All);
    hw.submit_command(node, &mut ring, &task, completion, false)
        .unwrap();
    let calls = hw.calls.borrow();
    let [Call::Build { steps, .. }, Call::Submit { what, .. }] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(*steps, []);
    // It is told of all of it.
    let told = What::Discard(VRAM_SEGMENT, blocks.to_vec(), Flush::All);
    assert_eq!(*what, told);
}

#[test]
fn a_flush_is_of_one_address_space_or_of_all() {
    let [one, other] = [Asid(3), Asid(4)];
    assert_eq!(Flush::Nothing.and(one), Flush::Of(one));
    assert_eq!(Flush::Of(one).and(one), Flush::Of(one));
    assert_eq!(Flush::Of(one).and(other), Flush::All);
    assert_eq!(Flush::All.and(one), Flush::All);
}

#[test]
fn nonsense_ends() {
    let none = PagingOperation::Fill {
        segment: VRAM_SEGMENT,
        blocks: &[],
    };
    assert_eq!(passes(&none, 1), [(MultipassOffset::default(), Vec::new())]);
    let odd = [PageRange::new(0, 0), PageRange::new(u64::MAX, 1)];
    let odd = PagingOperation::Fill {
        segment: VRAM_SEGMENT,
        blocks: &odd,
    };
    assert_eq!(passes(&odd, 1).len(), 1);
    let window = PagingSpace::new(MIB).expect("a size").window(0);
    let far = MultipassOffset {
        piece: 1,
        page: u64::MAX,
    };
    assert_eq!(odd.pass(far, window, |_| Err(())), Ok(None));
}
