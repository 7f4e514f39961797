// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The record of what the engines do.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use skua_gpu::events::Events;
use skua_spec::command::{Command, EngineKind};
use skua_spec::fault::Reason;
use skua_spec::number::EngineIndex;
use skua_spec::preemption::{Cause, Level};
use skua_spec::regs;
use skua_spec::status::{Counter, EngineState};
use skua_testbed::{resumed, Gpu, ASID, COMPUTE, CONTEXT, CONTEXT_ID, COPY, DATA_VA};

use crate::preemption::{at_level, AREA};

/// Where a record goes, and is read when the device is gone.
#[derive(Clone, Default)]
pub(crate) struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    /// What was written: all of it, when the device is gone.
    pub(crate) fn read(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn record(gpu: &Gpu) -> Text {
    let (text, engines) = (Text::default(), [EngineKind::Compute, EngineKind::Copy]);
    let events = Events::new(Box::new(text.clone()), 1 << 20, &engines).unwrap();
    gpu.device.record(events);
    text
}

/// The lines of one engine, without nanoseconds: its ticks, and what happened.
fn lines(text: &Text, engine: EngineIndex) -> Vec<(u64, String)> {
    let text = text.read();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("# skua-events 1 engines=compute,copy"));
    let lines = lines.map(|line| line.splitn(4, ' ').collect::<Vec<_>>());
    lines
        .filter(|words| words[1] == engine.to_string())
        .map(|words| (words[2].parse().unwrap(), words[3].to_owned()))
        .collect()
}

#[test]
fn what_engines_do_is_recorded() {
    let mut gpu = Gpu::with_preemption(at_level(Level::Instruction));
    gpu.set_save_area(CONTEXT, Some(AREA));
    let text = record(&gpu);
    gpu.set_vram64(skua_testbed::DATA, 0);
    let commands = [
        Command::Fill {
            pattern: 7,
            address: DATA_VA + 0x1000,
            bytes: 0x800,
        },
        Command::Wait {
            address: DATA_VA,
            value: 1,
        },
    ];
    let (exec, fence) = gpu.exec(COMPUTE, &commands);
    gpu.start(COMPUTE, &[exec]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    let began = gpu.ticks(COMPUTE);
    assert_eq!(gpu.preempt(COMPUTE, 5).cause, Cause::Waiting);
    let stopped = gpu.ticks(COMPUTE);
    gpu.start(COMPUTE, &[resumed(exec)]);
    gpu.wait_state(COMPUTE, EngineState::Waiting);
    gpu.set_vram64(skua_testbed::DATA, 1);
    gpu.wait_fence(COMPUTE, fence);
    let ended = gpu.ticks(COMPUTE);
    let fence_of_ring = Command::Fence {
        fence: 99,
        interrupt: false,
    };
    gpu.run(COPY, &[fence_of_ring]);
    let (bad, number) = gpu.exec_words(COPY, &[u32::MAX, 0]);
    gpu.run_to_fault(COPY, &[bad]);
    gpu.reset_engine(COPY);
    gpu.start_engine(COPY);
    let (saved, restored) = (
        gpu.counter(Counter::SavedBytes),
        gpu.counter(Counter::RestoredBytes),
    );
    assert!(saved > 0 && saved == restored);
    drop(gpu);
    let (ticks, told): (Vec<u64>, Vec<String>) = lines(&text, COMPUTE).into_iter().unzip();
    let context = format!("context={CONTEXT_ID} asid={}", ASID.get());
    let name = format!("packet={fence} {context}");
    let expected = [
        format!("begin {name} resume=0"),
        format!("wait {name}"),
        format!("preempt {name} request=5"),
        format!("go {name}"),
        format!("stop {name} request=5 cause=3 saved={saved}"),
        format!("begin {name} resume=1"),
        format!("restore {name} bytes={saved}"),
        format!("wait {name}"),
        format!("go {name}"),
        format!("end {name}"),
    ];
    assert_eq!(told, expected);
    assert!(ticks.is_sorted(), "{ticks:?}");
    assert_eq!((ticks[1], ticks[4], ticks[9]), (began, stopped, ended));
    let told: Vec<String> = lines(&text, COPY)
        .into_iter()
        .map(|(_, what)| what)
        .collect();
    let (name, reason) = (
        format!("packet={number} {context}"),
        Reason::BadOpcode as u32,
    );
    let expected = [
        "fence packet=99".to_owned(),
        format!("begin {name} resume=0"),
        format!("fault {name} reason={reason} address=0x0"),
        "reset packet=0".to_owned(),
    ];
    assert_eq!(told, expected);
}

#[test]
fn an_adapter_reset_is_recorded_and_transfers_are_counted() {
    let mut gpu = Gpu::new();
    let text = record(&gpu);
    let command = Command::Copy {
        source: DATA_VA,
        destination: DATA_VA + 0x1000,
        bytes: 0x340,
    };
    gpu.run_buffer(COPY, &[command, command]);
    gpu.set(regs::DEVICE_CTRL::new().with_reset(true));
    gpu.wait_for("READY", |gpu| gpu.get(regs::DEVICE_STATUS).ready());
    drop(gpu);
    let lines = lines(&text, COPY);
    let told: Vec<&str> = lines.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(told[0].split(' ').next(), Some("begin"));
    assert!(
        told[1].starts_with("end ") && told[1].ends_with(" copy=1664"),
        "{told:?}"
    );
    // When it was reset, not the time that it has then.
    assert_eq!(
        (told[2], lines[2].0),
        ("adapter-reset packet=0", lines[1].0)
    );
}
