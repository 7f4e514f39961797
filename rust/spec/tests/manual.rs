// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The register tables of the manual (`Documentation/gpu/skua/hardware.rst`, sections 1 and 2), by
//! hand, and those of the crate say the same: neither has a register, field, access or reset value
//! that the other has not. So do the tables of counters (section 3), and those of all structures
//! in memory.

use skua_spec::command::{Header, Point};
use skua_spec::config::{self, ConfigRegister};
use skua_spec::context::{Buffer, Descriptor, Image, QueueWord};
use skua_spec::fault::{Reason, Record};
use skua_spec::layout::{self, used};
use skua_spec::pci::MAX_ENGINES;
use skua_spec::preemption::{self, HeaderWords};
use skua_spec::register::{Field, Info, Reset};
use skua_spec::regs::{Decoded, DeviceRegister, EngineRegister, ENGINE_BASE, ENGINE_STRIDE};
use skua_spec::status::{self, Counter};

fn manual() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../Documentation/gpu/skua/hardware.rst"
    );
    std::fs::read_to_string(path).expect(path)
}

/// The tables of registers: their rows, cut into cells, without the meaning.
fn tables(manual: &str) -> Vec<Vec<[&str; 5]>> {
    let mut lines = manual.lines();
    let mut tables = Vec::new();
    let mut above = "";
    while let Some(line) = lines.next() {
        if !line
            .split_whitespace()
            .eq(["offset", "name", "bits", "access", "reset", "meaning"])
        {
            above = line;
            continue;
        }
        // The line of `=` says where the cells are.
        let starts: Vec<usize> = above
            .char_indices()
            .filter(|(at, c)| *c == '=' && !above[..*at].ends_with('='))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(starts.len(), 6, "{above}");
        assert_eq!(lines.next(), Some(above));
        let rows = lines
            .by_ref()
            .take_while(|line| *line != above)
            // The rest of the row above.
            .filter(|line| !line.starts_with(' '))
            .map(|line| {
                // In characters: a dash is more than a byte.
                let at = |n: usize| {
                    line.char_indices()
                        .nth(starts[n])
                        .map_or(line.len(), |c| c.0)
                };
                std::array::from_fn(|n| line[at(n)..at(n + 1)].trim())
            });
        tables.push(rows.collect());
    }
    tables
}

/// The rows that the manual must have for a register.
fn rows(info: &Info) -> Vec<[String; 5]> {
    let reset = match info.reset {
        Reset::Value(value @ 0..=9) => value.to_string(),
        Reset::Value(value) => format!("{value:#x}"),
        Reset::Fixed => "fixed".to_owned(),
        Reset::Nothing => "—".to_owned(),
    };
    let mut rows = vec![[
        // Filled in by the caller: as many digits as the table has.
        String::new(),
        info.name.to_owned(),
        format!("{}:0", info.bits - 1),
        info.access.name().to_owned(),
        reset,
    ]];
    if let [field] = info.fields {
        if (field.high, field.low) == (info.bits - 1, 0) {
            assert_eq!(field.access, info.access, "{}", info.name);
            return rows;
        }
    }
    rows.extend(info.fields.iter().map(|field| {
        [
            "\\".to_owned(),
            field.name.to_uppercase(),
            match (field.high, field.low) {
                (high, low) if high == low => high.to_string(),
                (high, low) => format!("{high}:{low}"),
            },
            match field.access {
                access if access == info.access => String::new(),
                access => access.name().to_owned(),
            },
            String::new(),
        ]
    }));
    rows
}

fn compare<'a>(manual: &[[&str; 5]], table: impl Iterator<Item = &'a Info>, digits: usize) {
    let table = table.flat_map(|info| {
        let mut rows = rows(info);
        rows[0][0] = format!("{:#0width$x}", info.offset, width = digits + 2);
        rows
    });
    let mut manual = manual.iter();
    for row in table {
        let found = manual.next().unwrap_or_else(|| panic!("no {row:?}"));
        assert_eq!(*found, row.each_ref().map(String::as_str));
    }
    assert_eq!(manual.next(), None);
}

#[test]
fn the_manual_has_every_register_and_no_other() {
    let manual = manual();
    let tables = tables(&manual);
    let [config, device, engine] = &*tables else {
        panic!("{} tables of registers", tables.len());
    };
    compare(config, ConfigRegister::ALL.iter().map(|r| r.info()), 3);
    compare(device, DeviceRegister::ALL.iter().map(|r| r.info()), 4);
    compare(engine, EngineRegister::ALL.iter().map(|r| r.info()), 2);
    let place = format!("at ``{ENGINE_BASE:#x} + e * {ENGINE_STRIDE:#x}``");
    assert!(manual.contains(&place), "{place}");
}

/// Looks whether the register lies behind those that end at `end`, and all it has in it.
fn expect_apart(info: &Info, offset: u32, end: u32) {
    assert!(offset >= end && info.offset % 4 == 0, "{info:?}");
    let mut all = 0;
    for field in info.fields {
        assert!(
            field.low <= field.high && field.high < info.bits,
            "{info:?}"
        );
        assert_eq!(all & field.mask(), 0, "{info:?}");
        all |= field.mask();
    }
    if let Reset::Value(value) = info.reset {
        assert_eq!(value & !all, 0, "{info:?}");
    }
}

#[test]
fn registers_and_fields_do_not_overlap() {
    let mut end = 0;
    for register in Decoded::all(MAX_ENGINES) {
        let info = register.info();
        expect_apart(info, register.offset(), end);
        end = register.offset() + info.bits / 8;
        // What there is to say of an offset is found there, and nowhere else.
        assert_eq!(Decoded::at(register.offset()).map(|d| d.0), Some(register));
    }
    assert!(end <= skua_spec::pci::MSIX_TABLE);
    let mut end = 0;
    for info in ConfigRegister::ALL.iter().map(|r| r.info()) {
        expect_apart(info, info.offset, end);
        end = info.offset + info.bits / 8;
    }
    assert!(end as usize <= config::SIZE);
}

#[test]
fn the_manual_has_every_counter_and_no_other() {
    let manual = manual();
    let mut lines = manual
        .lines()
        .skip_while(|line| !line.split_whitespace().eq(["c", "name", "counts"]));
    let found = lines
        .by_ref()
        .skip(2)
        .take_while(|line| !line.starts_with("=="))
        .filter(|line| !line.starts_with(' '))
        .map(|line| {
            line.split_whitespace()
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        });
    let expected = Counter::ALL.map(|(counter, name)| format!("{} {name}", counter as u32));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // There is room for them.
    assert!(status::COUNTERS + 8 * Counter::ALL.len() as u64 <= status::FAULTS);
}

#[test]
fn the_counter_of_a_reason_has_its_name() {
    for reason in Reason::ALL {
        let words: String = format!("{reason:?}")
            .chars()
            .flat_map(|c| {
                [
                    c.is_uppercase().then_some('_'),
                    Some(c.to_ascii_lowercase()),
                ]
            })
            .flatten()
            .collect();
        let counter = Counter::of_fault(reason);
        let (same, name) = Counter::ALL[counter as usize];
        assert_eq!((same, name), (counter, &*format!("fault{words}")));
    }
}

/// A structure in memory, and how many bytes it has.
type Layout = (&'static str, &'static [layout::Field], u64);

/// In the order of the manual.
const LAYOUTS: [Layout; 7] = [
    ("engine", status::engine::FIELDS, status::ENGINE_SIZE),
    ("status", status::FIELDS, status::SIZE),
    ("descriptor", Descriptor::FIELDS, Descriptor::SIZE),
    ("place of a queue", Buffer::FIELDS, Buffer::SIZE),
    ("image", Image::FIELDS, Image::WORDS as u64 * 8),
    ("fault record", Record::FIELDS, Record::SIZE),
    ("state", HeaderWords::FIELDS, 32),
];

#[test]
fn the_manual_has_every_field_in_memory_and_no_other() {
    let manual = manual();
    let mut lines = manual.lines();
    for (what, fields, _) in LAYOUTS {
        let head = ["offset", "bytes", "name", "meaning"];
        lines
            .by_ref()
            .find(|line| line.split_whitespace().eq(head))
            .unwrap_or_else(|| panic!("no table of {what}"));
        let rows = lines
            .by_ref()
            .skip(1)
            .take_while(|line| !line.starts_with("=="))
            .filter(|line| line.starts_with("0x"));
        let rows: Vec<Vec<_>> = rows
            .map(|line| line.split_whitespace().take(3).collect())
            .filter(|row: &Vec<_>| row[2] != "—")
            .collect();
        let digits = rows[0][0].len();
        let expected = fields.iter().filter(|field| field.name != "RESERVED");
        let expected = expected.map(|field| {
            vec![
                format!("{:#0digits$x}", field.offset),
                match field.count {
                    1 => field.bytes.to_string(),
                    count => format!("{}·{count}", field.bytes),
                },
                field.name.to_lowercase(),
            ]
        });
        assert_eq!(rows, expected.collect::<Vec<_>>(), "{what}");
    }
    let rest = lines.find(|line| line.starts_with("offset bytes"));
    assert_eq!(rest, None, "a table that is not looked at");
}

#[test]
fn fields_in_memory_do_not_overlap() {
    for (what, fields, bytes) in LAYOUTS {
        let mut end = 0;
        for field in fields {
            assert!(field.offset >= end, "{what}: {field:?}");
            assert_eq!(field.offset % field.bytes.min(8), 0, "{what}: {field:?}");
            end = field.end();
        }
        assert!(end <= bytes, "{what} ends at {end:#x}");
    }
    assert!(status::FIELDS[0].offset >= u64::from(MAX_ENGINES) * status::ENGINE_SIZE);
    // The record is a part of the block.
    let [.., fence, completed, cause, number] = status::engine::FIELDS else {
        panic!("a block is larger");
    };
    let block = [fence, completed, cause, number].map(|f| (f.offset - fence.offset, f.bytes));
    let record = preemption::Record::FIELDS.iter();
    assert_eq!(
        record.map(|f| (f.offset, f.bytes)).collect::<Vec<_>>(),
        block
    );
    assert_eq!(used(Image::FIELDS, 0), 0xffff_ffff);
    assert_eq!(used(Image::FIELDS, 3), 0);
    assert_eq!(used(Image::FIELDS, 23), u64::MAX);
}

/// A field's bits as the manual has them.
fn range(fields: &[Field], name: &str) -> String {
    let field = fields.iter().find(|field| field.name == name);
    let field = field.unwrap_or_else(|| panic!("no {name}"));
    format!("{}:{}", field.high, field.low)
}

#[test]
fn the_manual_has_the_bits_of_words() {
    let manual = manual().split_whitespace().collect::<Vec<_>>().join(" ");
    let header = |name| range(Header::FIELDS, name);
    let (x, y) = (range(Point::FIELDS, "x"), range(Point::FIELDS, "y"));
    let queue = |name| range(QueueWord::FIELDS, name);
    for sentence in [
        format!(
            "opcode {}, flags {}, length",
            header("opcode"),
            header("flags")
        ),
        format!("in words with the header {}.", header("words")),
        format!("16 left {x} and top {y} of the scissor; 17 right {x} and bottom {y};"),
        format!(
            "{0} bits {0} of the queue's GPU-physical address;",
            queue("base")
        ),
        format!("{} log2 of its places", queue("log2")),
    ] {
        assert!(manual.contains(&sentence), "{sentence}");
    }
    for (bits, fields) in [
        (Header::BITS, Header::FIELDS),
        (Point::BITS, Point::FIELDS),
        (QueueWord::BITS, QueueWord::FIELDS),
    ] {
        let all = fields.iter().fold(0, |all, field| {
            assert!(field.high < bits && all & field.mask() == 0, "{field:?}");
            all | field.mask()
        });
        assert_eq!(all, u64::MAX >> (64 - bits), "nothing is reserved");
    }
}
