// SPDX-License-Identifier: MIT

//! A timeline as a page that needs nothing but a browser: one file, its data inside.

use crate::timeline::Timeline;

/// The page but for its data, which [`PLACE`] stands for.
const PAGE: &str = include_str!("page.html");

/// What the data stands for in the page; it occurs there once.
const PLACE: &str = "@DATA@";

/// The page for `timeline`, as one HTML file.
///
/// # Errors
///
/// Those of JSON, of which none is known.
pub fn render(timeline: &Timeline) -> serde_json::Result<String> {
    // Nothing in it ends the element that it is in.
    let data = serde_json::to_string(timeline)?.replace('<', "\\u003c");
    Ok(PAGE.replacen(PLACE, &data, 1))
}
