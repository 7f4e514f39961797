// SPDX-License-Identifier: MIT

//! What tests draw.

use skua_spec::command::{Draw, Rectangle};

use crate::rig::Buffer;

/// Where in the scene of a [`square`] there is room for others.
pub const BEHIND: usize = 128;

/// A square of `size` pixels in a row, and as many rows, in a picture that begins at `picture`: two
/// triangles, by indices, that are written to `scene`. From left to right the attribute grows by 10
/// for each pixel.
pub fn square(
    (program, instructions): (&Buffer, &[u64]),
    scene: &Buffer,
    picture: u64,
    size: u16,
    arguments: &[u32],
) -> Draw {
    let (end, most) = (u32::from(size) << 8, u32::from(size) * 10);
    let corners = [[0, 0, 0], [end, 0, most], [0, end, 0], [end, end, most]];
    scene.cpu.write_words(0, corners.as_flattened());
    scene.cpu.write_words(64, &[0, 1, 2, 3, 2, 1]);
    let mut draw = Draw {
        program: program.va,
        // CAST: at most 64 KiB.
        program_bytes: size_of_val(instructions) as u32,
        attributes: 1,
        vertices: scene.va,
        vertex_count: 4,
        triangles: 2,
        indices: Some(scene.va + 64),
        target: picture,
        pitch: u32::from(size) * 4,
        scissor: Rectangle {
            left: 0,
            top: 0,
            right: size,
            bottom: size,
        },
        argument_count: arguments.len().next_multiple_of(2),
        ..Draw::default()
    };
    draw.arguments[..arguments.len()].copy_from_slice(arguments);
    draw
}
