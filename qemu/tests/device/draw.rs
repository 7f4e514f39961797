// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DRAW (manual section 7): every pixel is where the reference has it, which asks each one for
//! itself, and is drawn once.

use proptest::prelude::*;
use skua_asm::{assemble, Program};
use skua_gpu::engine::core::Outcome;
use skua_reference::draw::draw as reference;
use skua_reference::Buffers;
use skua_spec::command::{Blend, Command, Draw, Rectangle};
use skua_spec::fault::{Access, Reason, Record};
use skua_spec::status::Counter;
use skua_spec::ticks;
use skua_testbed::{Stepped, BUFFER_VA, COMPUTE, COPY, DATA, DATA_VA};

/// Where everything lies, from [`DATA`] and [`DATA_VA`] on; the program first.
pub(crate) const VERTICES: u64 = 0x1_0000;
const INDICES: u64 = 0x1_8000;
const TARGET: u64 = 0x2_0000;
/// A counter of each pixel.
pub(crate) const COUNTS: u64 = 0x3_0000;
/// Pixels of the target.
pub(crate) const WIDTH: u32 = 64;
pub(crate) const HEIGHT: u32 = 40;
/// Bytes from a row to the next.
const PITCH: u32 = WIDTH * 4 + 8;

/// Counts the pixel, and computes its colour from all that there is, in a number of rounds that
/// depends on where it is. Some pixels are discarded, some end early.
const PIXEL: &str = ".arg64 counts
        arg r20, counts
        arg r21, counts.hi
        mul r22, r3, 64
        add r22, r22, r2
        lea r20, r20, r22, 2
        mov r23, 1
        atom.add r24, [r20], r23
        mul r25, r4, 0x3010201
        add r0, r8, r25
        shl r26, r9, 16
        xor r0, r0, r26
        add r26, r2, r3
        and r27, r26, 3
    again:
        bz r27, out
        mul r0, r0, 0x2010101
        sub r27, r27, 1
        bra again
    out:
        and r28, r26, 15
        seq r1, r28, 7
        bnz r1, end
        bar
        shl r24, r24, 20
        add r0, r0, r24
    end:
        exit";

pub(crate) fn pixel_program() -> Program {
    assemble(PIXEL).unwrap()
}

/// Parts of a pixel.
fn at(x: f64, y: f64) -> [i32; 2] {
    [x, y].map(|at| (at * 256.0) as i32)
}

/// A vertex with two attributes.
pub(crate) type Point = [i32; 4];

/// Puts everything into memory, and makes a DRAW of the whole target.
pub(crate) fn scene(stepped: &Stepped, vertices: &[Point], indices: Option<&[u32]>) -> Draw {
    let program = pixel_program();
    stepped.set_vram(DATA, &program.bytes());
    let bytes = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let words: Vec<u32> = vertices.iter().flatten().map(|word| *word as u32).collect();
    stepped.set_vram(DATA + VERTICES, &bytes(&words));
    if let Some(indices) = indices {
        stepped.set_vram(DATA + INDICES, &bytes(indices));
    }
    for pixel in 0..u64::from(PITCH * HEIGHT) / 4 {
        let colour = (pixel as u32).wrapping_mul(0x9e37_79b9);
        stepped.set_vram(DATA + TARGET + pixel * 4, &colour.to_le_bytes());
    }
    stepped.clear_vram(DATA + COUNTS, u64::from(WIDTH * HEIGHT * 4));
    let corners = indices.map_or(vertices.len(), <[u32]>::len);
    let draw = Draw {
        attributes: 2,
        vertices: DATA_VA + VERTICES,
        vertex_count: vertices.len() as u32,
        triangles: corners as u32 / 3,
        indices: indices.map(|_| DATA_VA + INDICES),
        target: DATA_VA + TARGET,
        pitch: PITCH,
        scissor: Rectangle {
            left: 0,
            top: 0,
            right: WIDTH as u16,
            bottom: HEIGHT as u16,
        },
        ..Draw::default()
    };
    program
        .draw(DATA_VA, draw, |_| Some(DATA_VA + COUNTS))
        .unwrap()
}

/// Target and counters.
pub(crate) fn seen(stepped: &Stepped) -> [Vec<u8>; 2] {
    [
        stepped.vram_bytes(DATA + TARGET, (PITCH * HEIGHT) as usize),
        stepped.vram_bytes(DATA + COUNTS, (WIDTH * HEIGHT * 4) as usize),
    ]
}

/// What the reference makes of it, and how many pixels there are.
fn expected(stepped: &Stepped, draw: &Draw) -> ([Vec<u8>; 2], u64) {
    let mut memory = Buffers::default();
    for (at, bytes) in [
        (VERTICES, 0x8000),
        (INDICES, 0x8000),
        (TARGET, (PITCH * HEIGHT) as usize),
        (COUNTS, (WIDTH * HEIGHT * 4) as usize),
    ] {
        memory.add(DATA_VA + at, stepped.vram_bytes(DATA + at, bytes));
    }
    let program = pixel_program().bytes();
    let pixels = reference(&program, draw, &mut memory, u64::MAX).unwrap();
    let get = |at| memory.get(DATA_VA + at).unwrap().to_vec();
    ([get(TARGET), get(COUNTS)], pixels)
}

fn finish(stepped: &mut Stepped) -> Outcome {
    loop {
        let outcome = stepped.step(COMPUTE, 1000);
        if matches!(outcome, Outcome::Idle | Outcome::Faulted(_)) {
            return outcome;
        }
    }
}

/// Draws, and compares with the reference. How often each pixel was drawn.
fn compare(stepped: &mut Stepped, draw: &Draw) -> Vec<u32> {
    let (wanted, pixels) = expected(stepped, draw);
    let before = [Counter::Pixel, Counter::Triangle].map(|c| stepped.tally.get(c));
    let (exec, _) = stepped.exec(COMPUTE, &[Command::Draw(*draw)]);
    stepped.start(COMPUTE, &[exec]);
    assert_eq!(finish(stepped), Outcome::Idle);
    let found = seen(stepped);
    for (number, (found, wanted)) in found[0]
        .chunks_exact(4)
        .zip(wanted[0].chunks_exact(4))
        .enumerate()
    {
        let place = (number as u32 % (PITCH / 4), number as u32 / (PITCH / 4));
        assert_eq!(found, wanted, "the pixel at {place:?}");
    }
    assert!(found == wanted);
    let after = [Counter::Pixel, Counter::Triangle].map(|c| stepped.tally.get(c));
    assert_eq!(after[0] - before[0], pixels);
    assert_eq!(after[1] - before[1], u64::from(draw.triangles));
    let counts = found[1].chunks_exact(4);
    counts
        .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

/// Drawn by hand from the rules: which pixels of 8 by 6 a triangle covers.
#[test]
fn pixels_by_hand() {
    let cases = [
        // Half a square, whose long side goes through middles: it is a right one, and outside.
        (
            [at(0.0, 0.0), at(6.0, 0.0), at(0.0, 6.0)],
            [
                "#####   ", "####    ", "###     ", "##      ", "#       ", "        ",
            ],
        ),
        // The other half: there it is a left one, and inside.
        (
            [at(6.0, 0.0), at(6.0, 6.0), at(0.0, 6.0)],
            [
                "     #  ", "    ##  ", "   ###  ", "  ####  ", " #####  ", "######  ",
            ],
        ),
        // From middle to middle: top and left are inside, bottom and right are not.
        (
            [at(1.5, 1.5), at(5.5, 1.5), at(1.5, 5.5)],
            [
                "        ", " ####   ", " ###    ", " ##     ", " #      ", "        ",
            ],
        ),
        // The same, the other way round.
        (
            [at(1.5, 1.5), at(1.5, 5.5), at(5.5, 1.5)],
            [
                "        ", " ####   ", " ###    ", " ##     ", " #      ", "        ",
            ],
        ),
        // A bottom edge through middles, and a left one.
        (
            [at(1.5, 0.5), at(5.5, 4.5), at(1.5, 4.5)],
            [
                "        ", " #      ", " ##     ", " ###    ", "        ", "        ",
            ],
        ),
        // Too thin to have a middle inside, and a line.
        (
            [at(0.0, 1.6), at(8.0, 1.6), at(8.0, 2.4)],
            [""; 6].map(|_| "        "),
        ),
        (
            [at(0.0, 0.0), at(4.0, 4.0), at(8.0, 8.0)],
            [""; 6].map(|_| "        "),
        ),
    ];
    for (corners, rows) in cases {
        let mut stepped = Stepped::new();
        let points = corners.map(|[x, y]| [x, y, 1, 2]);
        let draw = scene(&stepped, &points, None);
        let counts = compare(&mut stepped, &draw);
        for (y, row) in rows.iter().enumerate() {
            let found: String = (0..8)
                .map(|x| {
                    if counts[y * WIDTH as usize + x] == 0 {
                        ' '
                    } else {
                        '#'
                    }
                })
                .collect();
            assert_eq!(found, *row, "{corners:?}, row {y}");
        }
    }
}

/// Attributes and colours by hand: a quarter from the left, an attribute is a quarter of the way.
#[test]
fn values_by_hand() {
    let program = assemble("mov r0, r8\n exit").unwrap();
    // Rounded down, also below zero: -7 + 7 * 1.5 / 4, and so on.
    let cases = [
        (
            Blend::Replace,
            [-7, 0],
            0,
            [-7, -5, -3, -1].map(|v: i32| v as u32),
        ),
        (Blend::Replace, [0, 400], 0, [50, 150, 250, 350]),
        // A half of 0x40 and of 0x20, and alpha of that half and all of the half that was.
        (
            Blend::Over,
            [0x8000_4080_u32 as i32; 2],
            0xff20_20ff,
            [0xff10_30bf; 4],
        ),
        (Blend::Over, [0x0012_3456; 2], 0x1122_3344, [0x1122_3344; 4]),
        (
            Blend::Over,
            [0xff12_3456_u32 as i32; 2],
            0x1122_3344,
            [0xff12_3456; 4],
        ),
        (Blend::Add, [0x01ff_8010; 2], 0x0102_8020, [0x02ff_ff30; 4]),
    ];
    for (blend, values, old, wanted) in cases {
        let mut stepped = Stepped::new();
        let [left, right] = values;
        let points = [
            at(0.0, 0.0),
            at(4.0, 0.0),
            at(0.0, 8.0),
            at(4.0, 0.0),
            at(4.0, 8.0),
            at(0.0, 8.0),
        ]
        .map(|[x, y]| [x, y, if x == 0 { left } else { right }, 0]);
        let draw = scene(&stepped, &points, None);
        stepped.set_vram(DATA, &program.bytes());
        for x in 0..4 {
            stepped.set_vram(DATA + TARGET + x * 4, &u32::to_le_bytes(old));
        }
        let mut draw = program.draw(DATA_VA, draw, |_| None).unwrap();
        draw.blend = blend;
        let (exec, _) = stepped.exec(COMPUTE, &[Command::Draw(draw)]);
        stepped.start(COMPUTE, &[exec]);
        assert_eq!(finish(&mut stepped), Outcome::Idle);
        let found = [0, 1, 2, 3].map(|x| stepped.vram32(DATA + TARGET + x * 4));
        assert_eq!(found, wanted, "{blend:?}, {values:?}");
    }
}

/// Triangles that share edges, all around points anywhere, share no pixel and leave none out.
fn mesh(points: &[[i32; 2]]) -> Vec<Point> {
    let (right, bottom) = (WIDTH as i32 * 256, HEIGHT as i32 * 256);
    // A fan in each cell: corners, and a point of the cell.
    let (columns, rows) = (4, 3);
    let corner = |x: i32, y: i32| [right * x / columns, bottom * y / rows];
    let mut vertices = Vec::new();
    let mut points = points.iter().cycle();
    for y in 0..rows {
        for x in 0..columns {
            let around = [(0, 0), (1, 0), (1, 1), (0, 1)].map(|(i, j)| corner(x + i, y + j));
            let [dx, dy] = points.next().unwrap();
            let low = corner(x, y);
            let high = corner(x + 1, y + 1);
            let middle = [
                low[0] + dx.rem_euclid(high[0] - low[0]),
                low[1] + dy.rem_euclid(high[1] - low[1]),
            ];
            for side in 0..4 {
                let (from, to) = (around[side], around[(side + 1) % 4]);
                vertices.extend([from, to, middle].map(|[x, y]| [x, y, x ^ y, y]));
            }
        }
    }
    vertices
}

fn coordinate() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => -0x800..0x5000,
        // On middles and borders.
        3 => (-4..140).prop_map(|half| half * 128),
        1 => any::<i32>(),
        1 => prop::sample::select(vec![i32::MIN, i32::MAX, 0]),
    ]
}

fn point() -> impl Strategy<Value = Point> {
    let value = || prop_oneof![any::<i32>(), 0..256];
    (coordinate(), coordinate(), value(), value()).prop_map(|(x, y, a, b)| [x, y, a, b])
}

fn blends() -> impl Strategy<Value = Blend> {
    prop::sample::select(vec![Blend::Replace, Blend::Over, Blend::Add])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_triangles(
        points in prop::collection::vec(point(), 3..18),
        blend in blends(),
        [left, right] in [0..WIDTH as u16, 0..WIDTH as u16],
        [top, bottom] in [0..HEIGHT as u16, 0..HEIGHT as u16],
        indices in prop::collection::vec(any::<prop::sample::Index>(), 3..18),
    ) {
        let scissor = Rectangle {
            left: left.min(right), top: top.min(bottom),
            right: left.max(right) + 1, bottom: top.max(bottom) + 1,
        };
        let points = &points[..points.len() / 3 * 3];
        let mut stepped = Stepped::new();
        let plain = Draw { blend, scissor, ..scene(&stepped, points, None) };
        compare(&mut stepped, &plain);
        // The same by indices.
        let whole = seen(&stepped);
        let numbers: Vec<u32> = (0..points.len() as u32).collect();
        let indexed = Draw { blend, scissor, ..scene(&stepped, points, Some(&numbers)) };
        compare(&mut stepped, &indexed);
        prop_assert!(seen(&stepped) == whole);
        let numbers: Vec<u32> = indices[..indices.len() / 3 * 3]
            .iter()
            .map(|index| index.index(points.len()) as u32)
            .collect();
        let shuffled = Draw { blend, scissor, ..scene(&stepped, points, Some(&numbers)) };
        compare(&mut stepped, &shuffled);
    }

    #[test]
    fn edges_are_shared_without_gap_or_overlap(
        points in prop::collection::vec([any::<i32>(), any::<i32>()], 12),
    ) {
        let mut stepped = Stepped::new();
        let draw = scene(&stepped, &mesh(&points), None);
        let counts = compare(&mut stepped, &draw);
        prop_assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
    }
}

/// A command of the ring draws as well, at GPU-physical addresses.
#[test]
fn in_the_ring() {
    let mut stepped = Stepped::new();
    let points = [[0, 0, 5, 6], [0x2000, 0, 7, 8], [0, 0x2000, 9, 10]];
    let draw = scene(&stepped, &points, None);
    let (wanted, _) = expected(&stepped, &draw);
    let physical = |va: u64| va - DATA_VA + DATA + skua_gpu::vram::BASE;
    let mut ring = Draw {
        program: physical(draw.program),
        vertices: physical(draw.vertices),
        target: physical(draw.target),
        ..draw
    };
    let counts = physical(DATA_VA + COUNTS);
    (ring.arguments[0], ring.arguments[1]) = (counts as u32, (counts >> 32) as u32);
    stepped.start(COMPUTE, &[Command::Draw(ring)]);
    assert_eq!(finish(&mut stepped), Outcome::Idle);
    assert!(seen(&stepped) == wanted);
}

/// A triangle of four pixels in a row and two in the next takes what the manual says.
#[test]
fn time() {
    let program = assemble("mov r0, 1\n exit").unwrap();
    let points = [at(0.0, 0.0), at(40.0, 0.0), at(0.0, 2.0)].map(|[x, y]| [x, y, 0, 0]);
    let time = |triangles: usize| {
        let mut stepped = Stepped::new();
        let points: Vec<Point> = points.iter().copied().cycle().take(triangles * 3).collect();
        let draw = scene(&stepped, &points, None);
        stepped.set_vram(DATA, &program.bytes());
        let draw = program.draw(DATA_VA, draw, |_| None).unwrap();
        let (exec, _) = stepped.exec(COMPUTE, &[Command::Draw(draw)]);
        stepped.start(COMPUTE, &[exec]);
        assert_eq!(finish(&mut stepped), Outcome::Idle);
        stepped.cores[0].shown().ticks
    };
    // 30 pixels in the first row and 10 in the second; each row is looked through once more.
    let wave = 2 * ticks::INSTRUCTION + ticks::PIXELS;
    let one = ticks::TRIANGLE + 4 * ticks::ROW + 2 * wave;
    assert_eq!(time(3) - time(2), one);
}

/// How a DRAW faults, and that what was drawn before stays.
#[test]
fn faults() {
    let points = [[0, 0, 5, 6], [0x2000, 0, 7, 8], [0, 0x2000, 9, 10]];
    // The address has another root entry than all that is mapped: level 3 has nothing.
    let plain = |reason, access, address| {
        let level = if reason == Reason::NotPresent { 3 } else { 0 };
        (reason, access, level, address, Record::NO_PC)
    };
    let nowhere = 0x1234_5678_9000;
    type Change<'a> = &'a dyn Fn(&mut Draw, &Stepped);
    let program = |stepped: &Stepped, text: &str| {
        stepped.set_vram(DATA, &assemble(text).unwrap().bytes());
    };
    let cases: [(Change<'_>, _, u32); 10] = [
        (
            &|d, _| d.vertices = nowhere,
            plain(Reason::NotPresent, Access::Read, nowhere),
            0,
        ),
        (
            &|d, _| d.indices = Some(nowhere),
            plain(Reason::NotPresent, Access::Read, nowhere),
            0,
        ),
        (
            &|d, _| d.program = nowhere,
            plain(Reason::NotPresent, Access::Fetch, nowhere),
            0,
        ),
        (
            &|d, _| d.target = nowhere,
            plain(Reason::NotPresent, Access::Write, nowhere),
            0,
        ),
        (
            &|d, _| (d.target, d.blend) = (nowhere, Blend::Add),
            plain(Reason::NotPresent, Access::Read, nowhere),
            0,
        ),
        (
            &|d, _| d.target = BUFFER_VA,
            plain(Reason::ReadOnly, Access::Write, BUFFER_VA),
            0,
        ),
        // The second triangle.
        (
            &|d, s| {
                (d.indices, d.triangles, d.vertex_count) = (Some(DATA_VA + INDICES), 2, 3);
                for (i, index) in [0_u32, 1, 2, 2, 3, 0].into_iter().enumerate() {
                    s.set_vram(DATA + INDICES + i as u64 * 4, &index.to_le_bytes());
                }
            },
            (Reason::BadIndex, Access::None, 3, 0, Record::NO_PC),
            1,
        ),
        (
            &|_, s| program(s, "trap 9"),
            (Reason::Trap, Access::None, 9, 0, 0),
            0,
        ),
        (
            &|_, s| program(s, "mov r5, 0\n lds.32 r0, [r5]\n exit"),
            (Reason::SharedRange, Access::None, 0, 0, 1),
            0,
        ),
        (
            &|_, s| program(s, "arg r0, 2\n exit"),
            (Reason::ArgumentRange, Access::None, 2, 0, 0),
            0,
        ),
    ];
    for (change, (reason, access, detail, address, pc), triangles) in cases {
        let mut stepped = Stepped::new();
        let mut draw = scene(&stepped, &points, None);
        change(&mut draw, &stepped);
        let (exec, fence) = stepped.exec(COMPUTE, &[Command::Draw(draw)]);
        stepped.start(COMPUTE, &[exec]);
        let wanted = Record {
            detail,
            pc,
            fence,
            ..stepped.expect(COMPUTE, reason, access, address)
        };
        assert_eq!(finish(&mut stepped), Outcome::Faulted(wanted), "{reason:?}");
        assert_eq!(stepped.tally.get(Counter::Triangle), u64::from(triangles));
        let drawn = seen(&stepped)[1].iter().any(|byte| *byte != 0);
        let outside =
            matches!(access, Access::Write) || address == nowhere && draw.blend == Blend::Add;
        assert_eq!(drawn, triangles > 0 || outside, "{reason:?}");
    }
    // A copy engine has no programs.
    let mut stepped = Stepped::new();
    let draw = scene(&stepped, &points, None);
    let (exec, _) = stepped.exec(COPY, &[Command::Draw(draw)]);
    stepped.start(COPY, &[exec]);
    let outcome = loop {
        let outcome = stepped.step(COPY, 1000);
        if outcome != Outcome::Busy {
            break outcome;
        }
    };
    assert!(
        matches!(outcome, Outcome::Faulted(record) if record.reason == Reason::BadOpcode),
        "{outcome:?}"
    );
}
