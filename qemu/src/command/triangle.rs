// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which pixels a triangle covers, and what its vertices' attributes are there (manual section 7,
//! "Drawing").
//!
//! All of it is exact: products of 32-bit coordinates in 128 bits. So whatever stands in a vertex
//! is a triangle, two that share an edge share no pixel and leave none out, and where a pixel is
//! computed makes no difference to it. No pixel outside a triangle is looked at: the edges say from
//! where to where a row is inside.

use std::ops::Range;

use skua_spec::command::{Blend, Rectangle, MAX_ATTRIBUTES, SUBPIXELS};

/// Most words of a vertex.
pub(crate) const VERTEX_WORDS: usize = 2 + MAX_ATTRIBUTES as usize;

/// A vertex: x and y in parts of a pixel, then attributes; those that it has not are 0.
pub(crate) type Vertex = [i32; VERTEX_WORDS];

/// The place in parts of a pixel at which the pixel `at` is looked at: its middle.
fn middle(at: u32) -> i128 {
    i128::from(at) * i128::from(SUBPIXELS) + i128::from(SUBPIXELS / 2)
}

/// A triangle whose vertices go round clockwise, as x goes right and y down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Triangle {
    /// They go round clockwise, but for an `area` of 0.
    vertices: [Vertex; 3],
    /// Twice its area, in square parts of a pixel; 0 covers nothing.
    area: i128,
}

/// The edge opposite of a vertex.
struct Edge {
    /// How far down it goes.
    dy: i128,
    /// Of the pixel in column 0: how far inside it is, at all others `dy` less for each part of a
    /// pixel to the right.
    inside: i128,
    /// 0 where the edge itself is inside, else 1: a top or left one is.
    least: i128,
}

impl Triangle {
    /// The triangle with these vertices, whichever way they go round.
    pub(crate) fn new(mut vertices: [Vertex; 3]) -> Self {
        let [a, b, c] = vertices.map(|[x, y, ..]| [i128::from(x), i128::from(y)]);
        let area = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
        if area < 0 {
            vertices.swap(1, 2);
        }
        Self {
            vertices,
            area: area.abs(),
        }
    }

    /// Its vertices, for another one that is the same.
    pub(crate) const fn vertices(&self) -> &[Vertex; 3] {
        &self.vertices
    }

    fn edge(&self, opposite: usize, row: u32) -> Edge {
        let [x, y, ..] = self.vertices[(opposite + 1) % 3].map(i128::from);
        let [to_x, to_y, ..] = self.vertices[(opposite + 2) % 3].map(i128::from);
        let (dx, dy) = (to_x - x, to_y - y);
        Edge {
            dy,
            inside: dx * (middle(row) - y) - dy * (middle(0) - x),
            least: i128::from(!(dy < 0 || (dy == 0 && dx > 0))),
        }
    }

    /// The rows that it may have pixels in, of those inside `scissor`.
    pub(crate) fn rows(&self, scissor: &Rectangle) -> Range<u32> {
        let ys = self.vertices.map(|[_, y, ..]| i128::from(y));
        let lowest = ys.into_iter().fold(i128::MAX, i128::min);
        let highest = ys.into_iter().fold(i128::MIN, i128::max);
        let part = i128::from(SUBPIXELS);
        let first = -(middle(0) - lowest).div_euclid(part);
        let end = (highest - middle(0)).div_euclid(part) + 1;
        if self.area == 0 {
            return 0..0;
        }
        within(first, end, scissor.top.into()..scissor.bottom.into())
    }

    /// The columns of `row` that it covers, of those in `columns`.
    pub(crate) fn columns(&self, row: u32, columns: Range<u32>) -> Range<u32> {
        let (mut first, mut end): (i128, i128) = (columns.start.into(), columns.end.into());
        for edge in [0, 1, 2].map(|opposite| self.edge(opposite, row)) {
            let room = edge.inside - edge.least;
            let slope = edge.dy * i128::from(SUBPIXELS);
            match slope {
                0 if room < 0 => return 0..0,
                0 => {}
                1.. => end = end.min(room.div_euclid(slope) + 1),
                _ => first = first.max(-room.div_euclid(-slope)),
            }
        }
        within(first, end, columns)
    }

    /// Attribute `number` of the pixels of `row` from `column` on, without end: rounded towards
    /// minus infinity.
    pub(crate) fn attribute(
        &self,
        number: usize,
        column: u32,
        row: u32,
    ) -> impl Iterator<Item = i32> {
        // Times the area; from a pixel to the next it changes by always the same.
        let (mut next, mut slope) = (0, 0);
        for (opposite, vertex) in self.vertices.iter().enumerate() {
            let edge = self.edge(opposite, row);
            let inside = edge.inside - edge.dy * (middle(column) - middle(0));
            next += inside * i128::from(vertex[2 + number]);
            slope -= edge.dy * i128::from(SUBPIXELS) * i128::from(vertex[2 + number]);
        }
        let area = self.area.max(1);
        std::iter::repeat_with(move || {
            let sum = next;
            next += slope;
            // CAST: inside the triangle it lies between those of the vertices; a state that says
            // that an outside pixel is drawn has its low bits.
            sum.div_euclid(area) as i32
        })
    }
}

/// `first..end` as far as it lies in `range`.
fn within(first: i128, end: i128, range: Range<u32>) -> Range<u32> {
    // CAST: it was held to the range.
    let held = |at: i128| at.clamp(range.start.into(), range.end.into()) as u32;
    if first < end {
        held(first)..held(end)
    } else {
        0..0
    }
}

/// What the target gets where it has `old` and a program computed `new`.
pub(crate) fn blend(mode: Blend, old: u32, new: u32) -> u32 {
    let (old, new) = (old.to_le_bytes(), new.to_le_bytes());
    let alpha = u32::from(new[3]);
    let channel = |at: usize| {
        let (old, new) = (u32::from(old[at]), u32::from(new[at]));
        // What it covers of itself: alpha is a share of all that there is.
        let share = if at == 3 { 255 } else { alpha };
        let value = match mode {
            Blend::Replace => new,
            Blend::Over => (new * share + old * (255 - alpha) + 127) / 255,
            Blend::Add => (new + old).min(255),
        };
        // CAST: at most 255.
        value as u8
    };
    u32::from_le_bytes([0, 1, 2, 3].map(channel))
}
