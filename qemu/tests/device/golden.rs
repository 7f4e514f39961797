// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The golden vectors of the manual, given to the device as bytes.

use skua_asm::assemble;
use skua_gpu::vram;
use skua_spec::address::{BusAddr, GpuVa};
use skua_spec::command::Command;
use skua_spec::context::Image;
use skua_spec::fault::{Reason, Record};
use skua_spec::isa::{Form, Op};
use skua_spec::mmu::{index, Entry};
use skua_spec::number::EngineIndex;
use skua_spec::regs;
use skua_spec::status;
use skua_testbed::{
    Gpu, ASID, BUFFER_VA, BUS, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA, DATA_VA, ENGINES, SAVE,
    STATUS, SYSTEM_FREE,
};

/// The lines of a file, cut at the bars.
fn lines(name: &str) -> Vec<Vec<String>> {
    let path = format!(
        "{}/../Documentation/gpu/skua/golden/{name}.txt",
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

fn bytes(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).expect(text))
        .collect()
}

fn words(text: &str) -> Vec<u32> {
    bytes(text)
        .chunks(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn commands() {
    let from_the_command_alone = [
        Reason::BadOpcode,
        Reason::BadLength,
        Reason::BadFlags,
        Reason::BadOperand,
        Reason::Misaligned,
    ];
    for line in lines("commands") {
        let mut gpu = Gpu::new();
        gpu.clear_vram(DATA, 0x1000);
        // An end to every WAIT.
        gpu.set_vram64(DATA, u64::MAX);
        let words = words(&line[0]);
        gpu.push_words(COMPUTE, &words);
        let (exec, fence) = gpu.exec_words(COPY, &words);
        gpu.push(COPY, &[exec]);
        // In the ring of the first engine and in a buffer on the second.
        gpu.doorbell(COMPUTE);
        gpu.doorbell(COPY);
        for engine in ENGINES {
            gpu.wait_for("an end", |gpu| {
                gpu.state(engine) == 4
                    || (gpu.state(engine) == 1 && gpu.head(engine) == gpu.tail(engine))
            });
        }
        // The state comes before the record.
        gpu.wait_for("the records", |gpu| {
            let faulted = ENGINES.iter().filter(|e| gpu.state(**e) == 4).count();
            gpu.fault_put() == faulted as u32
        });
        let records: Vec<Record> = (0..gpu.fault_put())
            .filter_map(|n| gpu.fault(n).map(|(r, _)| r))
            .collect();
        let reason = |engine: EngineIndex| {
            records
                .iter()
                // Not what a buffer that EXEC in the ring names is at fault for.
                .find(|r| r.engine == engine && r.asid.is_system() == (engine == COMPUTE))
                .map(|r| r.reason)
        };
        let in_buffers_only = matches!(words[0] >> 24, 0x22 | 0x23);
        if in_buffers_only {
            assert_eq!(reason(COMPUTE), Some(Reason::BadOpcode), "{line:?}");
        }
        if line[1].split_whitespace().count() > 1 || line[1] == "FLUSH_CACHE" {
            for engine in ENGINES {
                let runs_a_program = ["DISPATCH", "DRAW"].iter().any(|c| line[1].starts_with(c));
                assert!(
                    !reason(engine).is_some_and(|r| from_the_command_alone.contains(&r))
                        || engine == COPY && runs_a_program
                        || engine == COMPUTE && in_buffers_only,
                    "{line:?}: {records:?}"
                );
            }
        } else {
            if !in_buffers_only {
                assert_eq!(
                    format!("{:?}", reason(COMPUTE).unwrap()),
                    line[1],
                    "{line:?}"
                );
            }
            // The copy engine has neither DISPATCH nor DRAW.
            if !matches!(words[0] >> 24, 0x10 | 0x11) {
                assert_eq!(format!("{:?}", reason(COPY).unwrap()), line[1], "{line:?}");
            }
        }
        // Where it has an effect in the process' memory, it is this one.
        if line[1].starts_with("FILL pattern=0x4030201") {
            gpu.wait_fence(COPY, fence);
            assert_eq!(
                gpu.vram_bytes(DATA, 0x41),
                [[1, 2, 3, 4].repeat(16), vec![0]].concat()
            );
        }
        if line[1].starts_with("SIGNAL") {
            gpu.wait_fence(COPY, fence);
            assert_eq!(gpu.vram64(DATA + 8), 1 << 63);
        }
        if line[1].starts_with("FENCE fence=0x1ffffffff") {
            assert_eq!(
                gpu.engine64(COMPUTE, status::engine::COMPLETED_FENCE),
                0x1_ffff_ffff
            );
            gpu.wait_for("the interrupt", |gpu| gpu.lines.count(0) == 1);
        }
    }
}

#[test]
fn entries() {
    const VA: u64 = 0x1234_5678_9000;
    for line in lines("entries") {
        let mut gpu = Gpu::new();
        let level: u32 = line[0].parse().unwrap();
        let at = gpu.entry_at(VA, level);
        // Neighbours: a 64 KiB page is 16 equal entries.
        let entry = bytes(&line[1]);
        if line[2].starts_with("page 64K") {
            for i in 0..16 {
                let first = at & !0x7f;
                gpu.set_vram(first + i * 8, &entry);
            }
        } else {
            gpu.set_vram(at, &entry);
        }
        let parts: Vec<&str> = line[2].split_whitespace().collect();
        let signal = Command::Signal {
            address: VA + 16,
            value: 0x5151,
        };
        match parts[0] {
            "page" => {
                let size: u64 = match parts[1] {
                    "4K" => 0x1000,
                    "64K" => 0x1_0000,
                    _ => 0x20_0000,
                };
                let start = u64::from_str_radix(&parts[3][2..], 16).unwrap();
                let target = start + (VA & (size - 1)) + 16;
                if parts.contains(&"write") {
                    gpu.run_buffer(COMPUTE, &[signal]);
                    let value = if parts[2] == "vram" {
                        gpu.vram64(target - vram::BASE)
                    } else {
                        gpu.system64(target - BUS)
                    };
                    assert_eq!(value, 0x5151, "{line:?}");
                } else {
                    let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal]);
                    assert_eq!(fault.reason, Reason::ReadOnly, "{line:?}");
                }
            }
            "table" => {
                // A page under it, in the table that it names.
                let start = u64::from_str_radix(&parts[2][2..], 16).unwrap();
                let slot = index(GpuVa(VA), level - 1) as u64 * 8;
                if parts[1] == "vram" {
                    gpu.clear_vram(start - vram::BASE, 4096);
                    gpu.set_vram64(start - vram::BASE + slot, 0);
                } else {
                    gpu.set_system(start - BUS, &[0; 4096]);
                }
                let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal]);
                assert_eq!(
                    (fault.reason, fault.detail),
                    (Reason::NotPresent, level - 1)
                );
            }
            what => {
                let fault = gpu.run_buffer_to_fault(COMPUTE, &[signal]);
                let reason = if what == "absent" {
                    Reason::NotPresent
                } else {
                    Reason::BadEntry
                };
                assert_eq!((fault.reason, fault.detail), (reason, level), "{line:?}");
            }
        }
    }
}

#[test]
fn contexts() {
    let mut gpu = Gpu::new();
    gpu.set_image(SAVE, Image::default());
    for line in lines("contexts") {
        gpu.set_vram(CONTEXT + 0x1000, &bytes(&line[0]));
        let exec = Command::Exec {
            context: vram::BASE + CONTEXT + 0x1000,
            base: BUFFER_VA,
            start: 0,
            end: 8,
            fence: Some(1),
            interrupt: false,
            resume: false,
        };
        gpu.set_vram64(skua_testbed::BUFFER, 0xff);
        let fault = gpu.run_to_fault(COMPUTE, &[exec]);
        if line[1] == "BadContext" {
            assert_eq!(fault.reason, Reason::BadContext, "{line:?}");
        } else {
            // It got as far as the buffer, which has no command.
            assert_eq!(fault.reason, Reason::BadLength);
            let found = format!(
                "root=0x8000000040001 asid={:#x} context_id={:#x}",
                fault.asid.get(),
                fault.context_id
            );
            let identity = line[1].split(" save_base").next();
            assert_eq!(identity, Some(&*found), "{line:?}");
        }
        gpu.reset_engine(COMPUTE);
        gpu.start_engine(COMPUTE);
    }
}

#[test]
fn faults() {
    let vectors = lines("faults");
    let record = |gpu: &mut Gpu| {
        gpu.wait_fault();
        gpu.system_bytes(STATUS + status::FAULTS, 64)
    };
    let mut gpu = Gpu::new();
    let program = assemble("nop\n trap 0xabcd").unwrap();
    gpu.set_vram(DATA, &program.bytes());
    let dispatch = program.dispatch(DATA_VA, [1; 3], |_| None).unwrap();
    let (exec, _) = gpu.exec(COMPUTE, &[Command::Dispatch(dispatch)]);
    gpu.start(COMPUTE, &[exec]);
    assert_eq!(record(&mut gpu), bytes(&vectors[0][0]));

    let mut gpu = Gpu::new();
    let signal = Command::Signal {
        address: 0xabcd_eff8,
        value: 1,
    };
    gpu.start(COPY, &[Command::Nop { words: 2 }, signal]);
    assert_eq!(record(&mut gpu), bytes(&vectors[1][0]));

    let mut gpu = Gpu::new();
    let copy = Command::Copy {
        source: 0x3333_0000_0000,
        destination: DATA_VA,
        bytes: 1,
    };
    let (exec, _) = gpu.exec(COMPUTE, &[copy]);
    gpu.start(COMPUTE, &[exec]);
    assert_eq!(record(&mut gpu), bytes(&vectors[2][0]));
    assert_eq!(gpu.read(regs::FAULT_GET), 1);

    // A descriptor that can be read and not written.
    let mut gpu = Gpu::new();
    let context = gpu.set_gart(0, Entry::gart(BusAddr(BUS + SYSTEM_FREE), false, true));
    gpu.set_system64(SYSTEM_FREE, skua_testbed::root().0);
    gpu.set_system64(
        SYSTEM_FREE + 8,
        u64::from(ASID.get()) | u64::from(CONTEXT_ID) << 32,
    );
    let exec = Command::Exec {
        context,
        base: 0,
        start: 0,
        end: 0,
        fence: Some(0x39),
        interrupt: false,
        resume: false,
    };
    gpu.start(COMPUTE, &[exec]);
    assert_eq!(record(&mut gpu), bytes(&vectors[3][0]));
}

/// The manual's example, a line for each step.
#[test]
fn example() {
    let mut gpu = Gpu::new();
    gpu.reset_engine(COPY);
    gpu.clear_vram(0, 0x8000);
    for line in lines("example") {
        let data = bytes(&line[1]);
        let place: Vec<&str> = line[0].split_whitespace().collect();
        let at = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
        match place[..] {
            ["vram", offset] => gpu.set_vram(at(offset), &data),
            ["register", offset] => gpu.device.write(at(offset), &data),
            ["found", "vram", offset] => {
                assert_eq!(gpu.vram_bytes(at(offset), data.len()), data, "{line:?}");
            }
            ["found", "status", offset] => {
                gpu.wait_fence(COPY, 7);
                let found = gpu.system_bytes(STATUS + at(offset), data.len());
                assert_eq!(found, data, "{line:?}");
            }
            _ => panic!("{line:?}"),
        }
    }
    gpu.wait_for("the interrupt", |gpu| gpu.lines.count(1) == 1);
}

#[test]
fn instructions() {
    let mut gpu = Gpu::new();
    for line in lines("instructions") {
        // Behind an exit: it is decoded and not executed.
        gpu.set_vram64(DATA, 4);
        gpu.set_vram(DATA + 8, &bytes(&line[0]));
        let program = assemble("exit\n exit").unwrap();
        let dispatch = program.dispatch(DATA_VA, [1; 3], |_| None).unwrap();
        if line[1] == "undefined" {
            let fault = gpu.run_buffer_to_fault(COMPUTE, &[Command::Dispatch(dispatch)]);
            assert_eq!((fault.reason, fault.pc), (Reason::BadInstruction, 1));
            gpu.reset_engine(COMPUTE);
            gpu.start_engine(COMPUTE);
        } else {
            gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
        }
    }
}

/// Each vector as a program of its own: with all sources in registers, and with B as an immediate
/// where the operation has one.
#[test]
fn arithmetic() {
    let mut gpu = Gpu::new();
    for line in lines("arithmetic") {
        let line = &line[0];
        let (left, result) = line.split_once('=').unwrap();
        let mut parts = left.split_whitespace();
        let name = parts.next().unwrap();
        let sources: Vec<u64> = parts.map(|p| u64::from_str_radix(p, 16).unwrap()).collect();
        let wide = result.trim().len() == 16;
        let result = u64::from_str_radix(result.trim(), 16).unwrap();
        let (op, _) = Op::ALL.iter().find(|(_, n)| *n == name).unwrap();
        let b = sources.get(1).unwrap_or(&sources[0]);
        let immediate = match op.form() {
            Form::Unary | Form::Binary | Form::Widen => Some(format!("{b:#x}")),
            Form::UnaryPair | Form::BinaryPair => {
                i32::try_from(*b as i64).ok().map(|b| b.to_string())
            }
            _ => None,
        };
        let mut sets = String::new();
        let mut names = Vec::new();
        for (i, source) in sources.iter().enumerate() {
            let register = 10 + 2 * i;
            sets += &format!("mov r{register}, {:#x}\n", *source as u32);
            sets += &format!("mov r{}, {:#x}\n", register + 1, source >> 32);
            names.push(format!("r{register}"));
        }
        let mut forms = vec![names.join(", ")];
        if let Some(immediate) = immediate {
            *names.last_mut().unwrap() = immediate;
            forms.push(names.join(", "));
        }
        for operands in forms {
            let source = format!(
                "{sets} mov r2, {}\n mov r3, {}\n {name} r4, {operands}\n st.64 [r2], r4\n exit",
                (DATA_VA + 0x1000) as u32,
                DATA_VA >> 32
            );
            let program = assemble(&source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
            gpu.set_vram(DATA, &program.bytes());
            let dispatch = program.dispatch(DATA_VA, [1; 3], |_| None).unwrap();
            gpu.run_buffer(COMPUTE, &[Command::Dispatch(dispatch)]);
            let found = gpu.vram64(DATA + 0x1000);
            let found = if wide { found } else { found & 0xffff_ffff };
            assert_eq!(found, result, "{line}: {operands}: {found:x}");
        }
    }
}
