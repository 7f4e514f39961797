// SPDX-License-Identifier: MIT

//! The driver's rooms name what the table at the top of its `skua_main.rs` lets them, and nothing
//! else of each other.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// What a room may name of the others: rooms, or single items of them.
type Arrows = BTreeMap<String, Vec<String>>;

/// The table: its rows are `| [`room`] | what is in it | what it may use |`, the highest first.
fn table(text: &str) -> Arrows {
    let rows: Vec<_> = text
        .lines()
        .skip_while(|line| !line.starts_with("//! | room |"))
        .skip(2)
        .map_while(|line| {
            let cells: Vec<_> = line.strip_prefix("//! |")?.split('|').collect();
            Some((cells[0].trim().trim_matches(['[', ']', '`']), cells[2]))
        })
        .collect();
    let name = |row: &(&str, &str)| row.0.to_owned();
    let below = |at: usize| rows[at + 1..].iter().map(name).collect();
    let arrows = rows.iter().enumerate().map(|(at, (room, uses))| {
        let uses = match uses.trim() {
            "all" | "all below" => below(at),
            "none" => Vec::new(),
            some => some
                .split([',', ';'])
                .map(|one| one.trim().trim_matches(['[', ']', '`']).to_owned())
                .collect(),
        };
        ((*room).to_owned(), uses)
    });
    arrows.collect()
}

/// The source without its comments.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| match line.find("//") {
        Some(at) => &line[..at],
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths that begin with `crate::`, with all that a tree of a `use` has.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, start) in text.match_indices("crate::") {
        let is_whole = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !is_whole {
            // What is before the braces that are open, the outermost first.
            let (mut open, mut path) = (Vec::new(), String::new());
            for c in text[at + start.len()..].chars() {
                match c {
                    _ if c.is_alphanumeric() || matches!(c, '_' | ':') => path.push(c),
                    '{' if path.is_empty() || path.ends_with("::") => open.push(path.clone()),
                    _ if c.is_whitespace() && !open.is_empty() => (),
                    ',' | '}' if !open.is_empty() => {
                        found.push(std::mem::take(&mut path));
                        if c == '}' {
                            open.pop();
                        }
                        path = open.last().cloned().unwrap_or_default();
                        if open.is_empty() {
                            break;
                        }
                    }
                    _ => break,
                }
            }
            found.push(path);
        }
    }
    found.retain(|path| !path.is_empty() && !path.ends_with("::"));
    found
}

/// All sources in a directory and those in it.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = read_dir(directory).expect("a directory");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The room whose file this is; what is beside the rooms has none.
fn room_of(driver: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(driver).expect("a file of the driver");
    let first = inside.iter().next().expect("a name").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn rooms_name_what_the_table_lets_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let driver = root.join("drivers/gpu/drm/skua");
    let main = read_to_string(driver.join("skua_main.rs")).expect("the table");
    let table = table(&main);
    assert_eq!(table.len(), 7, "{table:?}");
    let mut bad = Vec::new();
    let mut unused = table.clone();
    for file in sources(&driver) {
        let room = room_of(&driver, &file);
        let Some(may) = table.get(&room) else {
            continue;
        };
        let text = without_comments(&read_to_string(&file).expect("a source"));
        for path in paths(&text) {
            let other = path.split("::").next().unwrap_or_default();
            if other == room || !table.contains_key(other) {
                continue;
            }
            let names = |one: &String| {
                let rest = path.strip_prefix(&**one);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            match may.iter().any(names) {
                true => unused
                    .get_mut(&room)
                    .expect("it is there")
                    .retain(|one| !names(one)),
                false => bad.push(format!("{}: {path}", file.display())),
            }
        }
    }
    assert_eq!(bad, Vec::<String>::new(), "the table does not let them");
    // An exception that nobody needs is none.
    for (room, rest) in unused {
        let items = rest.iter().filter(|one| one.contains("::"));
        assert_eq!(items.count(), 0, "{room} does not name {rest:?}");
    }
}

#[test]
fn paths_are_found_in_trees() {
    let text = "use crate::{a::{self, B}, c::D};\nfn f(x: crate::e::F) { crate::g!() }\nmycrate::h";
    assert_eq!(paths(text), ["a::self", "a::B", "c::D", "e::F", "g"]);
    let rows = "//! | room | what | may use |\n//! |---|---|---|\n//! | [`x`] | it | all |\n\
        //! | [`y`] | it | z; [`x::T`] |\n//! | [`z`] | it | none |\n//!\n";
    let expected = [
        ("x", vec!["y", "z"]),
        ("y", vec!["z", "x::T"]),
        ("z", vec![]),
    ];
    let expected = expected.map(|(room, uses)| {
        (
            room.to_owned(),
            uses.into_iter().map(str::to_owned).collect(),
        )
    });
    assert_eq!(table(rows), Arrows::from(expected));
}
