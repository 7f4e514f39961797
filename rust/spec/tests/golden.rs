// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The golden vectors of the manual (`Documentation/gpu/skua/golden`), made by hand: the crate must
//! read them as the manual does, and write the same bytes.

use skua_spec::aperture::{self, PageSize as AperturePageSize};
use skua_spec::command::Command;
use skua_spec::context::{Buffer, Descriptor, Image, Queue};
use skua_spec::fault::{Reason, Record};
use skua_spec::isa::{Instruction, Op};
use skua_spec::mmu::{Entry, PageSize, Target};
use skua_spec::preemption;

/// The lines of a file, cut at the bars.
fn lines(name: &str) -> Vec<Vec<String>> {
    let path = format!(
        "{}/../../Documentation/gpu/skua/golden/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).expect(&path);
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('|').map(|part| part.trim().to_owned()).collect())
        .collect();
    assert!(lines.len() > 2, "{path}");
    lines
}

/// Groups of four bytes in memory order, as little-endian words.
fn words(text: &str) -> Vec<u32> {
    text.split_whitespace()
        .map(|group| {
            assert_eq!(group.len(), 8, "{text}");
            u32::from_str_radix(group, 16).expect(text).swap_bytes()
        })
        .collect()
}

fn wide(text: &str) -> Vec<u64> {
    words(text)
        .chunks(2)
        .map(|pair| u64::from(pair[0]) | (u64::from(pair[1]) << 32))
        .collect()
}

fn list(values: &[u32]) -> String {
    let all: Vec<_> = values.iter().map(|v| format!("{v:#x}")).collect();
    all.join(",")
}

fn command(command: &Command) -> String {
    let interrupt_text = |interrupt| if interrupt { " interrupt" } else { "" };
    let fence_text = |fence: Option<u64>| fence.map_or(String::new(), |f| format!(" fence={f:#x}"));
    match *command {
        Command::Nop { words } => format!("NOP words={words:#x}"),
        Command::Fill {
            pattern,
            address,
            bytes,
        } => format!("FILL pattern={pattern:#x} address={address:#x} bytes={bytes:#x}"),
        Command::Copy {
            source,
            destination,
            bytes,
        } => format!("COPY source={source:#x} destination={destination:#x} bytes={bytes:#x}"),
        Command::Copy2d {
            source,
            destination,
            bytes,
            source_pitch,
            destination_pitch,
            rows,
        } => format!(
            "COPY_2D source={source:#x} destination={destination:#x} bytes={bytes:#x} \
             source_pitch={source_pitch:#x} destination_pitch={destination_pitch:#x} rows={rows:#x}"
        ),
        Command::Dispatch(d) => format!(
            "DISPATCH program={:#x} program_bytes={:#x} shared_bytes={:#x} groups={} threads={} \
             arguments={}",
            d.program,
            d.program_bytes,
            d.shared_bytes,
            list(&d.groups),
            list(&d.threads),
            list(&d.arguments[..d.argument_count]),
        ),
        Command::Draw(d) => format!(
            "DRAW blend={:?} program={:#x} program_bytes={:#x} attributes={:#x} vertices={:#x} \
             vertex_count={:#x} triangles={:#x}{} target={:#x} pitch={:#x} scissor={} arguments={}",
            d.blend,
            d.program,
            d.program_bytes,
            d.attributes,
            d.vertices,
            d.vertex_count,
            d.triangles,
            d.indices
                .map_or(String::new(), |indices| format!(" indices={indices:#x}")),
            d.target,
            d.pitch,
            list(
                &[
                    d.scissor.left,
                    d.scissor.top,
                    d.scissor.right,
                    d.scissor.bottom
                ]
                .map(u32::from)
            ),
            list(&d.arguments[..d.argument_count]),
        ),
        Command::Wait { address, value } => format!("WAIT address={address:#x} value={value:#x}"),
        Command::Signal { address, value } => {
            format!("SIGNAL address={address:#x} value={value:#x}")
        }
        Command::SetRegister { index, value } => {
            format!("SET_REGISTER index={index:#x} value={value:#x}")
        }
        Command::StoreRegister { index, address } => {
            format!("STORE_REGISTER index={index:#x} address={address:#x}")
        }
        Command::FlushTlb { asid: None } => "FLUSH_TLB all".to_owned(),
        Command::FlushTlb { asid: Some(asid) } => format!("FLUSH_TLB asid={:#x}", asid.get()),
        Command::FlushCache => "FLUSH_CACHE".to_owned(),
        Command::Invalidate { asid: None } => "INVALIDATE all".to_owned(),
        Command::Invalidate { asid: Some(asid) } => format!("INVALIDATE asid={:#x}", asid.get()),
        Command::Exec {
            context,
            base,
            start,
            end,
            fence,
            interrupt,
            resume,
        } => format!(
            "EXEC context={context:#x} base={base:#x} start={start:#x} end={end:#x}{}{}{}",
            fence_text(fence),
            interrupt_text(interrupt),
            if resume { " resume" } else { "" }
        ),
        Command::Switch { fence, interrupt } => format!(
            "EXEC switch{}{}",
            fence_text(fence),
            interrupt_text(interrupt)
        ),
        Command::Run {
            context,
            number,
            fence,
            interrupt,
            resume,
        } => format!(
            "RUN context={context:#x} number={number:#x}{}{}{}",
            fence_text(fence),
            interrupt_text(interrupt),
            if resume { " resume" } else { "" }
        ),
        Command::Fence { fence, interrupt } => {
            format!("FENCE fence={fence:#x}{}", interrupt_text(interrupt))
        }
    }
}

#[test]
fn commands() {
    for line in lines("commands") {
        let words = words(&line[0]);
        let found = match Command::decode(&words) {
            Ok((decoded, len)) => {
                assert_eq!(len, words.len(), "{line:?}");
                // What stands behind the header of a NOP means nothing.
                let compared = match decoded {
                    Command::Nop { .. } => 1,
                    _ => len,
                };
                assert_eq!(decoded.encode().words()[..compared], words[..compared]);
                command(&decoded)
            }
            Err(reason) => format!("{reason:?}"),
        };
        assert_eq!(found, line[1]);
    }
}

#[test]
fn entries() {
    for line in lines("entries") {
        let level: u32 = line[0].parse().expect(&line[0]);
        let entry = Entry(wide(&line[1])[0]);
        let (kind, address) = match entry.target() {
            Target::Vram(a) => ("vram", a.0),
            Target::System(a) => ("system", a.0),
        };
        let found = if !entry.is_valid() {
            "absent".to_owned()
        } else if entry.is_malformed(level) {
            "malformed".to_owned()
        } else if level > 1 || (level == 1 && !entry.is_large()) {
            assert_eq!(Entry::table(entry.target()), entry);
            format!("table {kind} {address:#x}")
        } else {
            let (size, name) = match (level, entry.is_large()) {
                (_, false) => (PageSize::Size4K, "4K"),
                (0, true) => (PageSize::Size64K, "64K"),
                (_, true) => (PageSize::Size2M, "2M"),
            };
            let (write, snoop) = (entry.is_writable(), entry.0 & Entry::SNOOP != 0);
            assert_eq!(Entry::page(entry.target(), size, write, snoop), entry);
            let bit = |set, name| if set { name } else { "" };
            format!(
                "page {name} {kind} {address:#x}{}{}",
                bit(write, " write"),
                bit(snoop, " snoop")
            )
        };
        assert_eq!(found, line[2], "{line:?}");
    }
}

#[test]
fn aperture() {
    for line in lines("aperture") {
        let entry = aperture::Entry(wide(&line[0])[0]);
        let sizes = [AperturePageSize::Size4K, AperturePageSize::Size64K];
        for (size, expected) in sizes.into_iter().zip(&line[1..]) {
            let found = match entry.offset() {
                None => "nothing".to_owned(),
                Some(_) if entry.is_malformed(size) => "malformed".to_owned(),
                Some(offset) => {
                    assert_eq!(aperture::Entry::page(offset), entry);
                    format!("vram {:#x}", offset.0)
                }
            };
            assert_eq!(found, *expected, "{line:?}");
        }
    }
}

#[test]
fn contexts() {
    for line in lines("contexts") {
        let words: [u64; 4] = wide(&line[0]).try_into().expect(&line[0]);
        let found = match Descriptor::from_words(words) {
            Some(d) => {
                assert_eq!(d.to_words(), words);
                let save = d.save.map_or(String::new(), |area| {
                    format!(" save_base={:#x} save_size={:#x}", area.base.0, area.bytes)
                });
                format!(
                    "root={:#x} asid={:#x} context_id={:#x}{save}",
                    d.root.0,
                    d.asid.get(),
                    d.context_id
                )
            }
            None => format!("{:?}", Reason::BadContext),
        };
        assert_eq!(found, line[1], "{line:?}");
    }
}

#[test]
fn queues() {
    for line in lines("queues") {
        let words = wide(&line[1]);
        let found = if line[0] == "queue" {
            Queue::from_word(words[0]).map_or("none".to_owned(), |queue| {
                assert_eq!(queue.to_word(), words[0]);
                format!("base={:#x} packets={:#x}", queue.base.0, queue.packets)
            })
        } else {
            let words = words.try_into().expect(&line[1]);
            Buffer::from_words(words).map_or_else(
                |reason| format!("{reason:?}"),
                |buffer| {
                    assert_eq!(buffer.to_words(), words);
                    let Buffer { base, start, end } = buffer;
                    format!("base={:#x} start={start:#x} end={end:#x}", base.0)
                },
            )
        };
        assert_eq!(found, line[2], "{line:?}");
    }
}

#[test]
fn images() {
    for line in lines("images") {
        let words: [u64; Image::WORDS] = wide(&line[0]).try_into().expect(&line[0]);
        let found = Image::from_words(words).map_or(format!("{:?}", Reason::BadSave), |image| {
            assert_eq!(image.to_words(), words);
            let registers = (0..).zip(image.registers).filter(|(_, value)| *value != 0);
            let registers: Vec<_> = registers.map(|(i, v)| format!("{i}:{v:#x}")).collect();
            let (left, ticks) = (image.left, image.ticks);
            format!(
                "left={left:#x} ticks={ticks:#x} registers={}",
                registers.join(",")
            )
        });
        assert_eq!(found, line[1], "{line:?}");
    }
}

#[test]
fn preemption() {
    for line in lines("preemption") {
        let words = wide(&line[1]);
        let found = if line[0] == "record" {
            let words = words.try_into().expect(&line[1]);
            preemption::Record::from_words(words).map_or("no record".to_owned(), |r| {
                assert_eq!(r.to_words(), words);
                format!(
                    "fence={:#x} completed={:#x} cause={} seq={}",
                    r.fence, r.completed, r.cause as u32, r.number
                )
            })
        } else {
            let words = words.try_into().expect(&line[1]);
            preemption::Header::from_words(words).map_or(format!("{:?}", Reason::BadSave), |h| {
                assert_eq!(h.to_words(), words);
                let preemption::Header {
                    bytes,
                    base,
                    start,
                    end,
                } = h;
                format!(
                    "bytes={bytes:#x} base={:#x} start={start:#x} end={end:#x}",
                    base.0
                )
            })
        };
        assert_eq!(found, line[2], "{line:?}");
    }
}

#[test]
fn faults() {
    for line in lines("faults") {
        let words: [u64; 8] = wide(&line[0]).try_into().expect(&line[0]);
        let (r, number) = Record::from_words(words).expect(&line[0]);
        assert_eq!(r.to_words(number), words);
        let found = format!(
            "engine={} reason={:?} asid={:#x} context_id={:#x} access={:?} detail={:#x} \
             space={:?} address={:#x} fence={:#x} command={:#x} pc={:#x} number={number}",
            r.engine,
            r.reason,
            r.asid.get(),
            r.context_id,
            r.access,
            r.detail,
            r.space,
            r.address,
            r.fence,
            r.command,
            r.pc
        );
        assert_eq!(found, line[1]);
    }
}

#[test]
fn instructions() {
    for line in lines("instructions") {
        let bits = wide(&line[0])[0];
        let found = match Instruction::decode(bits) {
            Some(i) => {
                assert_eq!(i.encode(), bits);
                format!(
                    "{} rd={} ra={} rb={} imm={:#x}",
                    i.op.mnemonic(),
                    i.rd,
                    i.ra,
                    i.rb,
                    i.imm
                )
            }
            None => "undefined".to_owned(),
        };
        assert_eq!(found, line[1], "{line:?}");
    }
}

/// What the arithmetic vectors compute is the device's to check; here only that each operation
/// that computes something has one.
#[test]
fn arithmetic() {
    let named: Vec<String> = lines("arithmetic")
        .iter()
        .map(|line| line[0].split_whitespace().next().unwrap_or("").to_owned())
        .collect();
    for name in &named {
        assert!(Op::ALL.iter().any(|(_, text)| text == name), "{name}");
    }
    let computes = |op: Op| (0x10..0x50).contains(&(op as u8)) && op != Op::Lea;
    for (_, name) in Op::ALL.iter().filter(|(op, _)| computes(*op)) {
        assert!(named.iter().any(|n| n == name), "{name} has no vector");
    }
}

/// Bytes of a large page's entry and of one within it, made by hand from section 5.
#[test]
fn parts_of_a_large_page() {
    let entry = |text| Entry(wide(text)[0]);
    for (whole, page, size, part) in [
        // 2 MiB of VRAM, writable: pages of 64 KiB, the first and the second.
        (
            "13004000 00000800",
            0,
            PageSize::Size64K,
            "13004000 00000800",
        ),
        (
            "13004000 00000800",
            16,
            PageSize::Size64K,
            "13004100 00000800",
        ),
        // 2 MiB of system memory, read only: the last page of either size.
        (
            "19002000 01000000",
            496,
            PageSize::Size64K,
            "19003f00 01000000",
        ),
        (
            "19002000 01000000",
            511,
            PageSize::Size4K,
            "09f03f00 01000000",
        ),
        // 64 KiB of system memory that snoops: the first and the last page.
        (
            "1d002000 01000000",
            0,
            PageSize::Size4K,
            "0d002000 01000000",
        ),
        (
            "1d002000 01000000",
            15,
            PageSize::Size4K,
            "0df02000 01000000",
        ),
    ] {
        assert_eq!(
            entry(whole).part(page, size),
            entry(part),
            "{whole}, {page}"
        );
    }
}
