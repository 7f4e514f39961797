// SPDX-License-Identifier: MIT

//! The rows: what is measured, in which unit, and what it should be.
//!
//! A row's number is that of the measure it belongs to: 1 to 3 preemption, 4 loads of schedulers,
//! 5 urgent work, 6 shares of an engine, 7 an engine that has work, 8 submission, 9 waiting, 10 and
//! 11 moves, 12 moves beside work, 13 what exists, 15 page tables, 16 the host aperture, 18 work
//! without end, 19 fragmentation, 20 memory, 21 equal runs. A
//! **target** is what we set out to reach and may be missed, which is printed; a **limit** is what
//! physics or logic allow at best.

use std::fmt;

use serde::Serialize;

/// What a value should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The target is met by this value, and by lesser ones.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    /// The target is met by this value, and by greater ones.
    AtLeast(f64),
}

impl Target {
    /// Whether a value is what it should be.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::Below(bound) => value < bound,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {}", Number(*most)),
            Self::Below(bound) => write!(f, "< {}", Number(*bound)),
            Self::AtLeast(least) => write!(f, ">= {}", Number(*least)),
        }
    }
}

/// What is said of a value before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Of the measure it belongs to.
    pub measure: u32,
    /// Unique; `subject.case.what`.
    pub name: &'static str,
    /// Behind the value, where it is printed.
    pub unit: &'static str,
    /// What the value should be, if that was decided.
    pub target: Option<Target>,
    /// The best that is possible, if that is known.
    pub limit: Option<f64>,
    /// How much two runs of the same build may differ.
    pub repeats: Repeats,
}

/// How much two runs of the same build may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeats {
    /// Not at all.
    Exactly,
    /// By about a hundredth: where the kernel put things decides about a few instructions.
    Nearly,
    /// Something of it depends on when the device, which is a process of the host, gets to its
    /// work.
    Roughly,
}

impl Row {
    /// Finds a row in [`ROWS`].
    pub fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

const fn row(measure: u32, name: &'static str, unit: &'static str) -> Row {
    Row {
        measure,
        name,
        unit,
        target: None,
        limit: None,
        repeats: Repeats::Exactly,
    }
}

impl Row {
    const fn at_most(mut self, most: f64) -> Self {
        self.target = Some(Target::AtMost(most));
        self
    }

    const fn at_least(mut self, least: f64) -> Self {
        self.target = Some(Target::AtLeast(least));
        self
    }

    const fn below(mut self, bound: f64) -> Self {
        self.target = Some(Target::Below(bound));
        self
    }

    const fn limit(mut self, limit: f64) -> Self {
        self.limit = Some(limit);
        self
    }

    const fn nearly(mut self) -> Self {
        self.repeats = Repeats::Nearly;
        self
    }

    const fn roughly(mut self) -> Self {
        self.repeats = Repeats::Roughly;
        self
    }
}

/// All rows, in the order in which they are printed.
///
/// `one`: one submission with one buffer. `buffers`: one submission with 32 buffers. `queue`: 32
/// submissions with one buffer each. Each signals a point of a timeline; counts of the last two are
/// per buffer.
#[rustfmt::skip] // A table: a line for each row, or two.
pub const ROWS: &[Row] = &[
    row(1, "preemption.bytes", "of a full context per stop, largest group")
        .at_most(0.25).limit(0.0).roughly(),
    row(1, "preemption.filter.bytes", "of a full context per stop, blur")
        .at_most(0.1).limit(0.0).roughly(),
    row(1, "preemption.filter.live", "of its own groups' registers and shared memory").roughly(),
    row(1, "stop.idle.ticks", "ticks of an engine that has nothing to do").limit(0.0),
    row(1, "stop.idle.bytes", "bytes saved then").at_most(0.0).limit(0.0),
    row(1, "stop.copy.instruction.ticks", "ticks at most, stopped within a COPY"),
    row(1, "stop.copy.instruction.ticks.off",
        "ticks at most, stopped within a COPY, as much as there can be"),
    row(1, "stop.copy.instruction.bytes", "bytes saved at most"),
    row(1, "stop.copy.instruction.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.draw.primitive.ticks", "ticks at most, stopped between two DRAWs"),
    row(1, "stop.draw.primitive.ticks.off",
        "ticks at most, stopped between two DRAWs, as much as there can be"),
    row(1, "stop.draw.primitive.bytes", "bytes saved at most"),
    row(1, "stop.draw.primitive.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.draw.triangle.ticks", "ticks at most, stopped between two triangles"),
    row(1, "stop.draw.triangle.ticks.off",
        "ticks at most, stopped between two triangles, as much as there can be"),
    row(1, "stop.draw.triangle.bytes", "bytes saved at most"),
    row(1, "stop.draw.triangle.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.draw.pixel.ticks", "ticks at most, stopped between two waves of pixels"),
    row(1, "stop.draw.pixel.ticks.off",
        "ticks at most, stopped between two waves of pixels, as much as there can be"),
    row(1, "stop.draw.pixel.bytes", "bytes saved at most"),
    row(1, "stop.draw.pixel.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.draw.instruction.ticks", "ticks at most, stopped within such a wave"),
    row(1, "stop.draw.instruction.ticks.off",
        "ticks at most, stopped within such a wave, as much as there can be"),
    row(1, "stop.draw.instruction.bytes", "bytes saved at most"),
    row(1, "stop.draw.instruction.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.compute.dispatch.ticks", "ticks at most, stopped between two DISPATCHes"),
    row(1, "stop.compute.dispatch.ticks.off",
        "ticks at most, stopped between two DISPATCHes, as much as there can be"),
    row(1, "stop.compute.dispatch.bytes", "bytes saved at most"),
    row(1, "stop.compute.dispatch.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.compute.thread_group.ticks", "ticks at most, stopped between two groups"),
    row(1, "stop.compute.thread_group.ticks.off",
        "ticks at most, stopped between two groups, as much as there can be"),
    row(1, "stop.compute.thread_group.bytes", "bytes saved at most"),
    row(1, "stop.compute.thread_group.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.compute.thread.ticks",
        "ticks at most, stopped where a wave has come to a barrier"),
    row(1, "stop.compute.thread.ticks.off",
        "ticks at most, stopped where a wave has come to a barrier, as much as there can be"),
    row(1, "stop.compute.thread.bytes", "bytes saved at most"),
    row(1, "stop.compute.thread.bytes.off", "bytes saved at most, as much as there can be"),
    row(1, "stop.compute.instruction.ticks", "ticks at most, stopped within a wave"),
    row(1, "stop.compute.instruction.ticks.off",
        "ticks at most, stopped within a wave, as much as there can be"),
    row(1, "stop.compute.instruction.bytes", "bytes saved at most"),
    row(1, "stop.compute.instruction.bytes.off", "bytes saved at most, as much as there can be"),
    row(2, "preemption.latency", "times what the bytes take, all registers live")
        .at_most(1.25).limit(1.0),
    row(2, "preemption.latency.values", "times what the bytes take, two values of a thread live")
        .at_most(1.25).limit(1.0),
    row(2, "preemption.latency.copy", "times what the bytes take, within a COPY")
        .at_most(1.25).limit(1.0),
    row(3, "honesty.dma_buffer", "ticks of latency per tick of the ring").at_most(0.0).limit(0.0),
    row(3, "honesty.dispatch", "ticks of latency per tick of the packet").at_most(0.0).limit(0.0),
    row(3, "honesty.thread_group", "ticks of latency per tick of the DISPATCH")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.thread", "ticks of latency per tick of the threads").at_most(0.0).limit(0.0),
    row(3, "honesty.instruction", "ticks of latency per tick of the threads")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.draw.primitive", "ticks of latency per tick of the packet")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.draw.triangle", "ticks of latency per tick of the DRAW")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.draw.pixel", "ticks of latency per tick of the triangle")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.draw.instruction", "ticks of latency per tick of the triangle")
        .at_most(0.0).limit(0.0),
    row(3, "honesty.copy", "ticks of latency per tick of the COPY").at_most(0.0).limit(0.0),
    row(3, "honesty.none", "ticks of latency per tick of the work, without preemption"),
    row(4, "scheduler.overhead", "of the ticks of one context, by 4")
        .at_most(0.05).limit(0.0).roughly(),
    row(4, "scheduler.ping_pong", "of the ticks of one context, by 2 that wait for each other")
        .at_most(0.05).limit(0.0).roughly(),
    row(4, "scheduler.halves", "of a half, 2 clients").at_most(0.05).limit(0.0).roughly(),
    row(4, "scheduler.heavy", "of a half, a client with packets 200 times as long")
        .at_most(0.05).limit(0.0).roughly(),
    row(4, "scheduler.interactive", "of the ticks alone, while a hog has the engine, at most")
        .at_most(0.05).limit(0.0).roughly(),
    row(5, "urgent.alone", "ticks").nearly(),
    row(5, "urgent.alone.p99", "ticks, 99th percentile").nearly(),
    row(5, "urgent.alone.max", "ticks, the longest").nearly(),
    row(5, "urgent.hog", "ticks while other work has the engine, at most").roughly(),
    row(5, "urgent.hog.p99", "ticks, 99th percentile").roughly(),
    row(5, "urgent.hog.max", "ticks, the longest").roughly(),
    row(5, "urgent.ratio", "times alone, 99th percentiles").at_most(1.1).limit(1.0).roughly(),
    row(5, "urgent.large", "ticks while other work with a large state has the engine, at most")
        .roughly(),
    row(5, "urgent.large.p99", "ticks, 99th percentile").roughly(),
    row(5, "urgent.large.ratio", "times alone, 99th percentiles").at_most(1.1).limit(1.0).roughly(),
    row(5, "urgent.unpreempted", "ticks, preemption turned off, at most").roughly(),
    row(6, "fairness.jain", "of 4 equals, Jain's index").at_least(0.99).limit(1.0).roughly(),
    row(6, "fairness.share_error", "of an equal share, at most").at_most(0.03).limit(0.0).roughly(),
    row(7, "conservation.gaps", "times that an engine with work did nothing")
        .at_most(0.0).limit(0.0).roughly(),
    row(7, "conservation.idle", "of its ticks, in these").at_most(0.0).limit(0.0).roughly(),
    row(7, "conservation.stopped", "of its ticks, having stopped for others").roughly(),
    row(7, "conservation.stops", "times that it stopped for others").roughly(),
    row(8, "null.syscall.instructions", "instructions").nearly(),
    row(8, "null.ioctl.instructions", "instructions").nearly(),
    row(8, "null.driver.instructions", "instructions, an ioctl that looks a context up").nearly(),
    row(8, "submit.one.ioctls", "per submission").at_most(1.0).limit(1.0),
    row(8, "submit.one.doorbells", "per submission").at_most(1.0).limit(1.0),
    row(8, "submit.one.register_writes", "per submission").at_most(1.0).limit(1.0),
    row(8, "submit.one.register_reads", "per submission").at_most(0.0).limit(0.0),
    row(8, "submit.one.interrupts", "per submission").at_most(1.0).limit(0.0),
    row(8, "submit.one.allocations", "in the ioctl").at_most(4.0).limit(0.0),
    row(8, "submit.one.allocated", "bytes in the ioctl").limit(0.0),
    row(8, "submit.one.allocations_later", "by others, until it has ended").limit(0.0),
    row(8, "submit.one.instructions", "instructions").below(8000.0).nearly(),
    row(8, "submit.one.library", "instructions, built and submitted by libskua").nearly(),
    row(8, "submit.buffers.ioctls", "per buffer").at_most(1.0 / 32.0).limit(1.0 / 32.0),
    row(8, "submit.buffers.doorbells", "per buffer").at_most(1.0 / 32.0).limit(1.0 / 32.0),
    row(8, "submit.buffers.register_reads", "per buffer").at_most(0.0).limit(0.0),
    row(8, "submit.buffers.interrupts", "per buffer").at_most(1.0 / 32.0).limit(0.0),
    row(8, "submit.buffers.allocations", "in the ioctl, per buffer").limit(0.0),
    row(8, "submit.buffers.instructions", "instructions per buffer").nearly(),
    row(8, "submit.queue.ioctls", "per submission").at_most(1.0).limit(1.0),
    row(8, "submit.queue.doorbells", "per submission").at_most(1.0).limit(1.0 / 32.0).roughly(),
    row(8, "submit.queue.register_reads", "per submission").at_most(0.0).limit(0.0),
    row(8, "submit.queue.interrupts", "per submission").at_most(1.0).limit(0.0).roughly(),
    row(8, "submit.queue.allocations", "in the ioctl, per submission").limit(0.0),
    row(8, "submit.queue.instructions", "instructions per submission").nearly(),
    row(9, "wait.signalled.ioctls", "per wait").at_most(1.0).limit(0.0),
    row(9, "wait.signalled.allocations", "per wait").limit(0.0),
    row(9, "wait.signalled.instructions", "instructions").nearly(),
    row(9, "wait.signalled.library", "instructions, by libskua").nearly(),
    row(9, "wait.many.ioctls", "per point").at_most(1.0 / 32.0).limit(0.0),
    row(9, "wait.many.allocations", "per point").limit(0.0),
    row(9, "wait.many.instructions", "instructions per point").nearly(),
    row(9, "wait.memory.ioctls", "per wait, the GPU having written memory").at_most(0.0).limit(0.0),
    row(9, "wait.memory.instructions", "instructions").nearly(),
    row(9, "wait.blocking.ioctls", "per fence").at_most(1.0).limit(0.0),
    row(9, "wait.blocking.interrupts", "per fence").at_most(1.0).limit(0.0),
    row(9, "wait.blocking.wakeups", "of the waiter per fence").at_most(1.0).limit(0.0),
    row(9, "wait.blocking.wakeups_all", "of any thread per fence").limit(0.0).roughly(),
    row(9, "wait.blocking.instructions", "instructions of the waiter").roughly(),
    row(9, "wait.blocking.elsewhere", "instructions of all others per fence").roughly(),
    row(9, "wait.load.interrupts", "per fence, 32 at a time").below(1.0).limit(0.0).roughly(),
    row(9, "wait.load.raised", "raised by the device per fence").below(1.0).limit(0.0).roughly(),
    row(9, "wait.load.wakeups", "of the waiter per fence").below(1.0).limit(0.0),
    row(9, "wait.load.wakeups_all", "of any thread per fence").below(1.0).limit(0.0).roughly(),
    row(10, "eviction.scenes.bytes", "times the fewest, moved in").limit(1.0),
    row(10, "eviction.scenes.bytes.off", "times the fewest, moved in, if all leave by age"),
    row(10, "eviction.scenes.expected", "times the fewest that the past can tell").at_most(1.2),
    row(10, "eviction.scenes.by_age", "times those of leaving by age").at_most(1.0),
    row(10, "eviction.scenes.written_back", "bytes, of what nobody has written")
        .at_most(0.0).limit(0.0),
    row(10, "eviction.skewed.bytes", "times the fewest, moved in").limit(1.0),
    row(10, "eviction.skewed.bytes.off", "times the fewest, moved in, if all leave by age"),
    row(10, "eviction.skewed.expected", "times the fewest that the past can tell").at_most(1.2),
    row(10, "eviction.skewed.by_age", "times those of leaving by age").at_most(1.0),
    row(10, "eviction.skewed.written_back", "bytes, of what nobody has written")
        .at_most(0.0).limit(0.0),
    row(10, "eviction.loop.bytes", "times the fewest, moved in").at_most(1.2).limit(1.0),
    row(10, "eviction.loop.bytes.off", "times the fewest, moved in, if all leave by age"),
    row(10, "eviction.loop.by_age", "times those of leaving by age").at_most(1.0),
    row(10, "eviction.loop.written_back", "bytes, of what nobody has written")
        .at_most(0.0).limit(0.0),
    row(10, "eviction.loop.written_back.off", "bytes, of what somebody may have written"),
    row(10, "eviction.mixed.bytes", "times the fewest, moved in or out").limit(1.0),
    row(10, "eviction.mixed.bytes.off", "times the fewest, moved in or out, if all leave by age"),
    row(10, "eviction.rooms.bytes", "times the fewest, moved in").at_most(1.2).limit(1.0),
    row(10, "eviction.rooms.bytes.off", "times the fewest, moved in, if all leave by age"),
    row(10, "eviction.rooms.by_age", "times those of leaving by age").at_most(1.0),
    row(10, "eviction.rooms.written_back", "bytes, of what nobody has written")
        .at_most(0.0).limit(0.0),
    row(11, "eviction.out.bandwidth", "of a copy's").at_least(0.9).limit(1.0),
    row(11, "eviction.back.bandwidth", "of a copy's").at_least(0.9).limit(1.0),
    row(11, "eviction.clean.ticks", "of those of copying it, what nobody has written leaves")
        .at_most(0.01).limit(0.0),
    row(11, "eviction.clean.ticks.off", "of those of copying it, what somebody may have written"),
    row(12, "overlap.stream", "of the ticks of moves, while work goes on")
        .at_least(0.5).limit(1.0).roughly(),
    row(13, "residency.resident.instructions", "instructions, 1000 objects in VRAM").nearly(),
    row(13, "residency.resident.slope", "log by log, to 8000 objects")
        .at_most(0.1).limit(0.0).nearly(),
    row(13, "residency.out.instructions",
        "instructions of the submitter, 8 of 1000 objects are out").roughly(),
    row(13, "residency.out.instructions.off",
        "instructions of the submitter, all of 1000 objects are out").roughly(),
    row(13, "residency.out.slope", "log by log, to 8000 objects").at_most(0.1).limit(0.0).roughly(),
    row(13, "residency.all.slope", "log by log, 125 to 1000 objects, all of which are out")
        .at_most(1.1).limit(1.0).roughly(),
    row(15, "tables.page.map.flushes", "per ioctl, 1 page").at_most(1.0).limit(0.0),
    row(15, "tables.page.map.entries", "per page, 1 page").at_most(1.0).limit(1.0),
    row(15, "tables.page.unmap.flushes", "per ioctl, 1 page").at_most(1.0).limit(1.0),
    row(15, "tables.page.unmap.entries", "per page, 1 page").at_most(1.0).limit(1.0),
    row(15, "tables.pages.map.flushes", "per ioctl, 1024 pages").at_most(1.0).limit(0.0),
    row(15, "tables.pages.map.entries", "per page, 1024 pages").at_most(1.0).limit(1.0),
    row(15, "tables.pages.unmap.flushes", "per ioctl, 1024 pages").at_most(1.0).limit(1.0),
    row(15, "tables.pages.unmap.entries", "per page, 1024 pages").at_most(1.0).limit(1.0),
    row(15, "tables.vram.map.flushes", "per ioctl, 1024 pages of VRAM").at_most(1.0).limit(0.0),
    row(15, "tables.vram.map.entries", "per page, 1024 pages of VRAM")
        .at_most(1.0).limit(1.0 / 512.0),
    row(15, "tables.vram.map.entries.off", "per page, 1024 pages of VRAM, none of them large"),
    row(15, "tables.vram.unmap.flushes", "per ioctl, 1024 pages of VRAM").at_most(1.0).limit(1.0),
    row(15, "tables.vram.unmap.entries", "per page, 1024 pages of VRAM")
        .at_most(1.0).limit(1.0 / 512.0),
    row(15, "tables.vram.unmap.entries.off", "per page, 1024 pages of VRAM, none of them large"),
    row(16, "aperture.stream.maps", "per page, looked at in turn").at_most(1.0).limit(1.0),
    row(16, "aperture.stream.faults", "of the CPU per page mapped").at_most(1.0).roughly(),
    row(16, "aperture.stream.flushes", "of the aperture per page mapped").at_most(1.0).limit(1.0),
    row(16, "aperture.stream.flushes.off", "of the aperture per page mapped, none ahead"),
    row(16, "aperture.stream.register_writes", "per page mapped").at_most(1.0).limit(1.0),
    row(16, "aperture.stream.register_reads", "per page mapped").limit(0.0).roughly(),
    row(16, "aperture.copy", "of the speed of system memory, by the host's clock")
        .at_least(0.7).limit(1.0).roughly(),
    row(18, "tdr.asked.detection", "looks of the watchdog after the time-out, it stops when asked")
        .at_most(1.0).limit(0.0).roughly(),
    row(18, "tdr.asked.innocent", "of others' work ends well").at_least(1.0).limit(1.0),
    row(18, "tdr.asked.lost", "contexts lost beside the guilty one").at_most(0.0).limit(0.0),
    row(18, "tdr.asked.engine_resets", "for a hang").at_most(0.0).limit(0.0),
    row(18, "tdr.asked.adapter_resets", "for a hang").at_most(0.0).limit(0.0),
    row(18, "tdr.asked.instructions",
        "instructions of kernel threads, from 2 looks before the time-out").roughly(),
    row(18, "tdr.reset.detection", "looks of the watchdog after the time-out, it cannot be asked")
        .at_most(1.0).limit(0.0).roughly(),
    row(18, "tdr.reset.innocent", "of others' work ends well").at_least(1.0).limit(1.0),
    row(18, "tdr.reset.lost", "contexts lost beside the guilty one").at_most(0.0).limit(0.0),
    row(18, "tdr.reset.engine_resets", "for a hang").at_most(1.0).limit(1.0),
    row(18, "tdr.reset.adapter_resets", "for a hang").at_most(0.0).limit(0.0),
    row(18, "tdr.reset.instructions",
        "instructions of kernel threads, from 2 looks before the time-out").roughly(),
    row(19, "fragmentation.scattered.largest", "times gpu_buddy's largest free block")
        .at_least(1.0),
    row(19, "fragmentation.scattered.blocks", "times gpu_buddy's blocks").at_most(1.0),
    row(19, "fragmentation.contiguous.largest", "times gpu_buddy's largest free block")
        .at_least(1.0),
    row(19, "fragmentation.contiguous.failed", "times gpu_buddy's failures with so much free")
        .at_most(1.0),
    row(19, "fragmentation.contiguous.failed.off",
        "times gpu_buddy's failures, asked for whole blocks"),
    row(20, "memory.file", "bytes per file of shmem, beyond its 4 KiB").nearly(),
    row(20, "memory.file.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.bo.system", "bytes per BO of 4 KiB, beyond these").at_most(1843.0).nearly(),
    row(20, "memory.bo.system.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.bo.system.mapped",
        "bytes per BO of 4 KiB, mapped once, with page tables, beyond these")
        .at_most(1843.0).nearly(),
    row(20, "memory.bo.system.mapped.off", "bytes per such BO, none of which shares a page table")
        .nearly(),
    row(20, "memory.bo.system.mapped.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.bo.vram", "bytes per BO of 4 KiB").at_most(1843.0).nearly(),
    row(20, "memory.bo.vram.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.bo.vram.mapped",
        "bytes per BO of 4 KiB, mapped once, with page tables").at_most(1843.0).nearly(),
    row(20, "memory.bo.vram.mapped.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.vm", "bytes per address space").nearly(),
    row(20, "memory.vm.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.context", "bytes per context").nearly(),
    row(20, "memory.context.slab", "bytes of it in slabs").nearly(),
    row(20, "memory.job", "bytes per pending job").nearly(),
    row(20, "memory.job.slab", "bytes of it in slabs").nearly(),
    row(21, "determinism.counters", "counters that differ in 3 more runs").at_most(0.0).limit(0.0),
    row(21, "determinism.bytes", "bytes of VRAM that differ in 3 more runs")
        .at_most(0.0).limit(0.0),
];

/// A number as it is printed: whole if it is, else with three digits, and no zeroes at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number(pub f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3}", self.0);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.write_str(if text == "-0" { "0" } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name));
            assert_eq!(Row::named(row.name), Some(row));
        }
        assert_eq!(Row::named("nothing"), None);
    }

    #[test]
    fn no_target_is_beyond_its_limit() {
        for row in ROWS {
            match (row.target, row.limit) {
                (Some(Target::AtMost(bound) | Target::Below(bound)), Some(limit)) => {
                    assert!(limit <= bound, "{}", row.name);
                }
                (Some(Target::AtLeast(bound)), Some(limit)) => {
                    assert!(limit >= bound, "{}", row.name);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn instructions_and_bytes_repeat_nearly_at_best() {
        for row in ROWS {
            let counted = row.unit.starts_with("instructions") || row.measure == 20;
            assert!(!counted || row.repeats != Repeats::Exactly, "{}", row.name);
        }
    }

    #[test]
    fn targets_have_edges() {
        assert!(Target::AtMost(1.0).is_met(1.0) && !Target::AtMost(1.0).is_met(1.001));
        assert!(Target::Below(1.0).is_met(0.999) && !Target::Below(1.0).is_met(1.0));
        assert!(Target::AtLeast(1.0).is_met(1.0) && !Target::AtLeast(1.0).is_met(0.999));
        assert_eq!(Target::Below(1.0).to_string(), "< 1");
        assert_eq!(Target::AtMost(1.0 / 32.0).to_string(), "<= 0.031");
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0001, "0"),
            (1.0, "1"),
            (0.03125, "0.031"),
            (2.5, "2.5"),
            (1200.0, "1200"),
        ] {
            assert_eq!(Number(number).to_string(), text);
        }
    }
}
