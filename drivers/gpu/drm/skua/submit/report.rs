// SPDX-License-Identifier: GPL-2.0

//! What is said of engines and contexts, in debugfs and in [core dumps](super::coredump).

use crate::{
    fences::hold::Holder,
    gpu::SkuaDevice,
    hardware::shared::RING_SIZE,
    spec::{
        context::Buffer,
        number::Asid, //
    },
    submit::context::{
        Context,
        Status, //
    }, //
};
use core::fmt::{
    Result,
    Write, //
};

/// Words of a ring in a line, an even number: commands begin at even ones.
const LINE_WORDS: usize = 8;

/// Each engine: its packets, and the words of its ring that it has not worked on, as far as it is
/// known. Allocates nothing.
pub(crate) fn rings(dev: &SkuaDevice, out: &mut impl Write) -> Result {
    for (index, engine) in dev.engines() {
        let name = engine.name().to_str().unwrap_or("?");
        let reported = engine.reported_state(dev);
        let ticks = engine.ticks(dev);
        let (head, tail) = {
            let state = engine.state.lock();
            let ring = state.node.ring();
            let (head, tail) = ring.bounds();
            let in_flight = state.node.len();
            writeln!(
                out,
                "engine {index} ({name}): device {reported:?} head {head:#x} tail {tail:#x} \
                 in flight {in_flight} ticks {ticks}",
            )?;
            for (id, packet) in state.node.iter() {
                writeln!(
                    out,
                    " packet {id}: context {} priority {} from {} resumes {} last {}",
                    packet.submission.context().id(),
                    packet.level.priority(),
                    packet.from.piece,
                    packet.attempt.resume,
                    packet.is_last,
                )?;
            }
            (head as usize / 4, tail as usize / 4)
        };
        let Ok(shared) = dev.hw.shared() else {
            continue;
        };
        let (mut at, mut column) = (head, 0);
        while at != tail {
            if column == 0 {
                write!(out, " {:#x}:", at * 4)?;
            }
            if let Ok(value) = shared.ring_word(index, at) {
                write!(out, " {value:08x}")?;
            }
            at = at.wrapping_add(1);
            if at >= RING_SIZE as usize / 4 {
                at = 0;
            }
            column = (column + 1) % LINE_WORDS;
            if column == 0 || at == tail || at == 0 {
                column = 0;
                writeln!(out)?;
            }
        }
    }
    Ok(())
}

/// The packets of a context's queue that have not ended, whether or not they are in the ring.
fn queue(dev: &SkuaDevice, context: &Context, out: &mut impl Write) -> Result {
    let (Ok(shared), Some(slot)) = (dev.hw.shared(), context.slot()) else {
        return Ok(());
    };
    let mut number = 0;
    while let Ok(Some((next, packet))) = shared.queued(slot, number) {
        let Buffer { base, start, end } = packet;
        let base = base.0;
        writeln!(
            out,
            " queue {next}: base {base:#x} start {start:#x} end {end:#x}"
        )?;
        number = number.wrapping_add(1);
    }
    Ok(())
}

/// Each context of a client. Allocates nothing.
pub(crate) fn contexts(dev: &SkuaDevice, out: &mut impl Write) -> Result {
    let mut result = Ok(());
    dev.contexts.for_each(|context| {
        let status = match context.status() {
            Status::Active => "active",
            Status::Faulted(_) => "faulted",
            Status::TimedOut => "timed out",
            Status::Lost => "lost",
            Status::Reset => "reset",
            Status::Destroyed => "destroyed",
        };
        let line = writeln!(
            out,
            "context {}: engine {} vm {} status {} ended {} ticks {} priority {}/{} \
             queued {} updates {} held {}",
            context.id(),
            context.engine(),
            context.vm().map_or(Asid::SYSTEM, |vm| vm.asid()),
            status,
            context.finished(),
            context.ticks(),
            context.level().priority(),
            context.in_process().priority(),
            context.queued(),
            context.updates().map_or(0, |updates| updates.holds().len()),
            context.holds().len()
        );
        result = result.and(line);
        // What has failed runs nothing of it any more.
        if matches!(context.status(), Status::Active | Status::Destroyed) {
            result = result.and_then(|()| queue(dev, &context, out));
        }
        dev.reapers.contexts.bury(context);
    });
    result
}
