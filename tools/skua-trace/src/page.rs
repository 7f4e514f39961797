// SPDX-License-Identifier: MIT

//! A timeline as a page that needs nothing but a browser: one file, its data inside.

use crate::timeline::Timeline;

/// Everything but the data.
const PAGE: &str = include_str!("page.html");

/// Where the data goes.
const PLACE: &str = "@DATA@";

/// The page.
///
/// # Errors
///
/// Those of JSON, of which none is known.
pub fn render(timeline: &Timeline) -> serde_json::Result<String> {
    // Nothing in it ends the element that it is in.
    let data = serde_json::to_string(timeline)?.replace('<', "\\u003c");
    Ok(PAGE.replacen(PLACE, &data, 1))
}
