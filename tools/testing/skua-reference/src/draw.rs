// SPDX-License-Identifier: MIT

//! A plain reference of DRAW, written from the manual (section 7, "Drawing").
//!
//! It has nothing of the device's: no rows, no spans, no waves. Each pixel of the scissor is asked
//! for itself whether it is in the triangle, one triangle after the other. A middle that lies on an
//! edge is moved a little: to the right, and, by less than any part of a pixel that decides there,
//! down. This is the rule of top and left edges.

use skua_spec::command::{Blend, Dispatch, Draw, MAX_ARGUMENTS};
use skua_spec::fault::{Access, Reason};
use skua_spec::isa::REGISTERS;

use crate::{decode, fault, low, plain, Group, Memory, State, Stop, Thread};

/// Where faults of no program are.
const NO_PC: u32 = u32::MAX;

/// A vertex, as wide as what is computed of it.
struct Vertex {
    x: i128,
    y: i128,
    attributes: Vec<i128>,
}

/// Draws; `program` is what lies at its address. Returns how many pixels there were, discarded ones
/// included.
///
/// # Errors
///
/// [`Stop`]; `limit` bounds the instructions of all pixels together. What was written stays.
pub fn draw(program: &[u8], draw: &Draw, memory: &mut dyn Memory, limit: u64) -> Result<u64, Stop> {
    let instructions = decode(program)?;
    let mut arguments = [0; MAX_ARGUMENTS];
    for (to, from) in arguments.iter_mut().zip(draw.arguments) {
        *to = from;
    }
    let dispatch = Dispatch {
        program: draw.program,
        program_bytes: draw.program_bytes,
        shared_bytes: 0,
        groups: [1; 3],
        threads: [32, 1, 1],
        arguments,
        argument_count: draw.argument_count,
    };
    let (mut left, mut pixels) = (limit, 0);
    for triangle in 0..draw.triangles {
        let vertices = vertices(draw, triangle, memory)?;
        let scissor = draw.scissor;
        for row in scissor.top..scissor.bottom {
            for column in scissor.left..scissor.right {
                let Some(attributes) = inside(&vertices, column, row) else {
                    continue;
                };
                pixels += 1;
                let mut registers = [0; REGISTERS as usize];
                registers[2] = column.into();
                registers[3] = row.into();
                registers[4] = triangle;
                registers[8..8 + attributes.len()].copy_from_slice(&attributes);
                let mut group = Group {
                    instructions: &instructions,
                    dispatch: &dispatch,
                    memory: &mut *memory,
                    group: [0; 3],
                    shared: Vec::new(),
                    left: &mut left,
                };
                let thread = Thread {
                    position: [0; 3],
                    flat: 0,
                    registers,
                    pc: 0,
                    state: State::Ready,
                };
                let [thread] = <[Thread; 1]>::try_from(group.finish(vec![thread])?)
                    .map_err(|_| plain(Reason::BadInstruction, NO_PC))?;
                if thread.get(1) == 0 {
                    put(draw, column, row, thread.get(0), memory)?;
                }
            }
        }
    }
    Ok(pixels)
}

fn word(memory: &dyn Memory, address: u64) -> Result<u32, Stop> {
    let mut bytes = [0; 4];
    memory
        .read(address, &mut bytes)
        .map_err(|reason| fault(reason, Access::Read, address, NO_PC))?;
    Ok(u32::from_le_bytes(bytes))
}

fn vertices(draw: &Draw, triangle: u32, memory: &dyn Memory) -> Result<Vec<Vertex>, Stop> {
    let stride = 4 * u64::from(draw.attributes + 2);
    (0..3)
        .map(|corner| {
            let place = u64::from(triangle) * 3 + corner;
            let number = match draw.indices {
                Some(indices) => u64::from(word(memory, indices + place * 4)?),
                None => place,
            };
            if number >= draw.vertex_count.into() {
                return Err(Stop::Fault {
                    reason: Reason::BadIndex,
                    access: Access::None,
                    address: 0,
                    detail: low(number),
                    pc: NO_PC,
                });
            }
            let at = draw.vertices + number * stride;
            let value = |field: u64| {
                let word = word(memory, at + field * 4)?;
                Ok(i128::from(i32::from_le_bytes(word.to_le_bytes())))
            };
            Ok(Vertex {
                x: value(0)?,
                y: value(1)?,
                attributes: (0..u64::from(draw.attributes))
                    .map(|number| value(2 + number))
                    .collect::<Result<_, Stop>>()?,
            })
        })
        .collect()
}

/// The attributes of a pixel that lies in the triangle.
fn inside(vertices: &[Vertex], column: u16, row: u16) -> Option<Vec<u32>> {
    let [a, b, c] = vertices else { return None };
    let area = (b.x - a.x) * (c.y - a.y) - (c.x - a.x) * (b.y - a.y);
    let way = area.signum();
    let (x, y) = (i128::from(column) * 256 + 128, i128::from(row) * 256 + 128);
    // Twice the area of the triangle that the middle makes with an edge, and how it changes when
    // the middle moves right, and down.
    let part = |from: &Vertex, to: &Vertex| {
        let at = (to.x - from.x) * (y - from.y) - (x - from.x) * (to.y - from.y);
        [at * way, (from.y - to.y) * way, (to.x - from.x) * way]
    };
    let parts = [part(b, c), part(c, a), part(a, b)];
    // Compared from the first one on.
    if way == 0 || parts.iter().any(|part| *part <= [0, 0, 0]) {
        return None;
    }
    let attribute = |number: usize| {
        let sum: i128 = parts
            .iter()
            .zip(vertices)
            .map(|(part, vertex)| part[0] * vertex.attributes[number])
            .sum();
        let whole = area * way;
        // Rounded down.
        let value = (sum - (sum % whole + whole) % whole) / whole;
        u32::from_le_bytes(i32::try_from(value).ok()?.to_le_bytes()).into()
    };
    (0..a.attributes.len()).map(attribute).collect()
}

/// Blends and writes a pixel.
fn put(draw: &Draw, column: u16, row: u16, new: u32, memory: &mut dyn Memory) -> Result<(), Stop> {
    let at = draw.target + u64::from(row) * u64::from(draw.pitch) + u64::from(column) * 4;
    let new = new.to_le_bytes().map(u32::from);
    let value = if draw.blend == Blend::Replace {
        new
    } else {
        let old = word(memory, at)?.to_le_bytes().map(u32::from);
        let alpha = new[3];
        let nearest = |product: u32| (product + 127) / 255;
        std::array::from_fn(|channel| match draw.blend {
            Blend::Add => (old[channel] + new[channel]).min(255),
            _ if channel == 3 => alpha + nearest(old[3] * (255 - alpha)),
            _ => nearest(new[channel] * alpha + old[channel] * (255 - alpha)),
        })
    };
    let bytes = value.map(|channel: u32| channel.to_le_bytes()[0]);
    memory
        .write(at, &bytes)
        .map_err(|reason| fault(reason, Access::Write, at, NO_PC))
}
