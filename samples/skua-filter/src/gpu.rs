// SPDX-License-Identifier: MIT

//! Carrying a plan out on the GPU.
//!
//! Every band of every stage goes through three contexts, each of which works in order:
//!
//! ```text
//!              CPU          copy engine        compute engine      copy engine        CPU
//!   image ─────────▶ input ─────────▶ source ─────────▶ target ─────────▶ output ─────────▶ image
//!            (system memory)  upload  (VRAM) dispatches (VRAM)  download (system memory)
//! ```
//!
//! Each context has a timeline, on which job `n` (a band in a stage) is point `n + 1`. An upload
//! is followed by the dispatches that wait for its point, and these by the download. Where the
//! plan lets two bands be under way, the CPU fills one band's input and empties its output while
//! the engines work on the other one: before it touches a slot's buffers again, it waits for the
//! last point of the job that used them. Uploads and downloads have a context each, so that the
//! next upload need not wait for a download that waits for a dispatch.
//!
//! Programs, weights, histogram and table lie in one buffer in VRAM, which job 0 fills.

use std::fmt;
use std::time::Duration;

use libskua::{
    Access, Bo, BoFlags, CommandBuffer, Context, ContextStatus, Device, EngineKind, Mapping,
    RegionKind, Syncobj, Vm,
};

use crate::picture::Picture;
use crate::plan::{Band, Layout, Plan};

/// Bytes of a GPU page, which buffers are made of.
const PAGE: u64 = 4096;
/// Alignment of buffers' addresses: the largest page.
const LARGE_PAGE: u64 = 2 << 20;
/// Bytes of a command buffer: more than the commands of any job.
const COMMANDS: u64 = PAGE;
/// Longest wait for a job. The driver cuts jobs that hang much earlier.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the GPU was given to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// To all three contexts.
    pub submissions: u64,
    /// One for each pass of each band.
    pub dispatches: u64,
    /// Bytes copied from system memory to VRAM.
    pub uploaded: u64,
    /// Bytes copied from VRAM to system memory.
    pub downloaded: u64,
}

/// Bytes that the buffers of bands may have: three quarters of the VRAM that nobody uses.
///
/// # Errors
///
/// As [`Device::regions`].
pub fn budget(device: &Device) -> libskua::Result<u64> {
    let free = device
        .regions()?
        .iter()
        .filter(|r| r.kind == RegionKind::Vram)
        .map(|r| r.size.saturating_sub(r.used))
        .max()
        .unwrap_or(0);
    Ok(free / 4 * 3)
}

/// Filters an image.
///
/// # Errors
///
/// [`GpuError`].
pub fn run(device: &Device, plan: &Plan, picture: &Picture) -> Result<(Picture, Work), GpuError> {
    let vm = Vm::create(device)?;
    let mut run = Run::new(device, &vm, plan)?;
    let outcome = run.all(picture);
    if let Err(GpuError::Library(error)) = outcome {
        // The context knows more than the fence.
        return Err(run.explain(error));
    }
    outcome
}

/// A context, and the timeline of what it does.
struct Queue {
    /// For errors.
    name: &'static str,
    context: Context,
    /// Job *n* of the run signals *n*.
    timeline: Syncobj,
}

impl Queue {
    fn new(vm: &Vm, name: &'static str, kind: EngineKind) -> Result<Self, GpuError> {
        let device = vm.device();
        let engine = device
            .engine(kind)
            .ok_or(GpuError::Library(libskua::Error::NoDevice))?;
        Ok(Self {
            name,
            context: Context::create(vm, engine)?,
            timeline: Syncobj::create(device)?,
        })
    }
}

/// Memory that the CPU and the GPU see.
struct Shared {
    /// The CPU's view.
    memory: Mapping,
    /// The GPU's address.
    va: u64,
}

/// What a band under way uses.
struct Slot {
    /// The band's pixels; the CPU writes them.
    input: Shared,
    /// The band's result; the CPU reads it.
    output: Shared,
    /// Addresses in VRAM.
    layout: Layout,
    /// From `input` to VRAM.
    upload: CommandBuffer,
    /// The band's dispatches.
    compute: CommandBuffer,
    /// From VRAM to `output`.
    download: CommandBuffer,
    /// The band whose result will be in the output, and the point at which the slot is free.
    busy: Option<Busy>,
}

/// A job that uses a slot.
struct Busy {
    band: Band,
    /// The band has a result to read.
    writes: bool,
    /// Of the download's timeline.
    point: u64,
}

struct Run<'a> {
    /// What is to be done.
    plan: &'a Plan,
    uploads: Queue,
    computes: Queue,
    downloads: Queue,
    /// Used in turn.
    slots: Vec<Slot>,
    /// Programs and weights on their way to VRAM.
    constants: Shared,
    /// Address in VRAM, and bytes, of programs, weights, histogram and table.
    tables: (u64, u64),
    /// Jobs so far; points count from 1.
    jobs: u64,
    /// What was done so far.
    work: Work,
}

/// Hands out GPU virtual addresses.
struct Addresses(u64);

impl Addresses {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 = at + bytes.next_multiple_of(LARGE_PAGE);
        at
    }
}

/// Makes a buffer object and maps it for the GPU.
fn map(
    vm: &Vm,
    addresses: &mut Addresses,
    bytes: u64,
    vram: bool,
    access: Access,
) -> Result<(Bo, u64), GpuError> {
    let device = vm.device();
    let size = bytes.next_multiple_of(PAGE).max(PAGE);
    let bo = if vram {
        Bo::create(device, size, device.vram(), BoFlags::empty())?
    } else {
        Bo::create(device, size, device.system(), BoFlags::CPU_ACCESS)?
    };
    let va = addresses.take(size);
    vm.map(&bo, va, access)?;
    Ok((bo, va))
}

impl<'a> Run<'a> {
    fn new(device: &Device, vm: &Vm, plan: &'a Plan) -> Result<Self, GpuError> {
        let start = device.info().va.start.next_multiple_of(LARGE_PAGE);
        let mut addresses = Addresses(start.max(LARGE_PAGE));
        let sizes = plan.sizes();

        // Programs first, then the tables, each at a multiple of 8.
        let mut bytes = Vec::new();
        let mut offsets = Vec::new();
        let weights: Vec<u8> = plan
            .weights()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        let zeroes = |bytes: u64| vec![0; usize::try_from(bytes).unwrap_or(0)];
        let pieces = plan.programs().iter().map(skua_asm::Program::bytes).chain([
            weights,
            zeroes(sizes.histogram),
            zeroes(sizes.table),
        ]);
        for piece in pieces {
            offsets.push(bytes.len() as u64);
            bytes.extend(piece);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let length = bytes.len() as u64;
        let (staging, staging_va) = map(vm, &mut addresses, length, false, Access::Read)?;
        let constants = Shared {
            memory: staging.map()?,
            va: staging_va,
        };
        constants.memory.write_bytes(0, &bytes)?;
        let (_, tables) = map(vm, &mut addresses, length, true, Access::ReadWrite)?;
        let at = |i: usize| tables + offsets.get(i).copied().unwrap_or(0);
        let programs = plan.programs().len();
        let common = Layout {
            programs: (0..programs).map(at).collect(),
            weights: at(programs),
            histogram: at(programs + 1),
            table: at(programs + 2),
            ..Layout::default()
        };

        let mut slots = Vec::new();
        for _ in 0..plan.slots() {
            let (input, input_va) = map(vm, &mut addresses, sizes.source, false, Access::Read)?;
            let (output, output_va) =
                map(vm, &mut addresses, sizes.target, false, Access::ReadWrite)?;
            // One buffer object, in which the three start at pages.
            let [source, target, intermediate] =
                [sizes.source, sizes.target, sizes.intermediate].map(|b| b.next_multiple_of(PAGE));
            let (_, va) = map(
                vm,
                &mut addresses,
                source + target + intermediate,
                true,
                Access::ReadWrite,
            )?;
            let mut commands = || {
                let va = addresses.take(COMMANDS);
                CommandBuffer::create(vm, va, COMMANDS)
            };
            slots.push(Slot {
                upload: commands()?,
                compute: commands()?,
                download: commands()?,
                input: Shared {
                    memory: input.map()?,
                    va: input_va,
                },
                output: Shared {
                    memory: output.map_read_only()?,
                    va: output_va,
                },
                layout: Layout {
                    source: va,
                    target: va + source,
                    intermediate: va + source + target,
                    ..common.clone()
                },
                busy: None,
            });
        }
        Ok(Self {
            plan,
            uploads: Queue::new(vm, "upload", EngineKind::Copy)?,
            computes: Queue::new(vm, "compute", EngineKind::Compute)?,
            downloads: Queue::new(vm, "download", EngineKind::Copy)?,
            slots,
            constants,
            tables: (tables, length),
            jobs: 0,
            work: Work::default(),
        })
    }

    /// Runs all stages over all bands.
    fn all(&mut self, picture: &Picture) -> Result<(Picture, Work), GpuError> {
        let mut result = vec![0; picture.pixels().len()];
        let plan = self.plan;
        for (index, stage) in plan.stages().iter().enumerate() {
            let bands = if stage.banded {
                plan.bands()
            } else {
                plan.bands().get(..1).unwrap_or(&[])
            };
            for band in bands {
                let number = usize::try_from(self.jobs).unwrap_or(0) % self.slots.len();
                self.finish(number, &mut result)?;
                self.start(number, index, band, picture)?;
            }
        }
        for number in 0..self.slots.len() {
            self.finish(number, &mut result)?;
        }
        let result = Picture::new(picture.width(), picture.height(), result);
        Ok((result.ok_or(GpuError::Size)?, self.work))
    }

    /// Bytes of some rows, and the indices of their pixels.
    fn rows(&self, rows: &std::ops::Range<u32>) -> (u64, std::ops::Range<usize>) {
        let pitch = self.plan.pitch();
        let pixel = |row: u32| usize::try_from(u64::from(row) * pitch / 4).unwrap_or(usize::MAX);
        let bytes = u64::from(rows.end - rows.start) * pitch;
        (bytes, pixel(rows.start)..pixel(rows.end))
    }

    /// Submits one stage on one band, with a slot that is free.
    fn start(
        &mut self,
        number: usize,
        stage_index: usize,
        band: &Band,
        picture: &Picture,
    ) -> Result<(), GpuError> {
        let stage = &self.plan.stages()[stage_index];
        let (source_bytes, source_pixels) = self.rows(&band.source);
        let (target_bytes, _) = self.rows(&band.target);
        let slot = &mut self.slots[number];
        let point = self.jobs + 1;

        slot.upload.reset();
        if self.jobs == 0 {
            let (tables, length) = self.tables;
            slot.upload.copy(self.constants.va, tables, length)?;
            self.work.uploaded += length;
        }
        if stage.banded {
            let pixels = picture.pixels().get(source_pixels).ok_or(GpuError::Size)?;
            slot.input.memory.copy_from_slice(0, pixels)?;
            slot.upload
                .copy(slot.input.va, slot.layout.source, source_bytes)?;
            self.work.uploaded += source_bytes;
        }
        let mut submission = self.uploads.context.submission();
        if slot.upload.bytes() > 0 {
            submission = submission.commands(&slot.upload);
        }
        submission.signal(&self.uploads.timeline, point).submit()?;

        slot.compute.reset();
        for dispatch in self
            .plan
            .dispatches(stage_index, band, &slot.layout)
            .map_err(GpuError::Program)?
        {
            // Each pass sees what the one before it wrote.
            slot.compute.dispatch(&dispatch)?.flush_cache()?;
            self.work.dispatches += 1;
        }
        self.computes
            .context
            .submission()
            .commands(&slot.compute)
            .wait(&self.uploads.timeline, point)
            .signal(&self.computes.timeline, point)
            .submit()?;

        slot.download.reset();
        let mut submission = self
            .downloads
            .context
            .submission()
            .wait(&self.computes.timeline, point)
            .signal(&self.downloads.timeline, point);
        if stage.writes {
            slot.download
                .copy(slot.layout.target, slot.output.va, target_bytes)?;
            submission = submission.commands(&slot.download);
            self.work.downloaded += target_bytes;
        }
        submission.submit()?;

        self.work.submissions += 3;
        slot.busy = Some(Busy {
            band: band.clone(),
            writes: stage.writes,
            point,
        });
        self.jobs = point;
        Ok(())
    }

    /// Waits for the job that uses a slot, if there is one, and takes its result.
    fn finish(&mut self, number: usize, result: &mut [u32]) -> Result<(), GpuError> {
        let Some(busy) = self.slots[number].busy.take() else {
            return Ok(());
        };
        self.downloads.timeline.wait_done(busy.point, PATIENCE)?;
        if busy.writes {
            let (_, pixels) = self.rows(&busy.band.target);
            let pixels = result.get_mut(pixels).ok_or(GpuError::Size)?;
            self.slots[number].output.memory.copy_to_slice(0, pixels)?;
        }
        Ok(())
    }

    /// What a context says about the fault behind an error, if there was one.
    fn explain(&self, error: libskua::Error) -> GpuError {
        for queue in [&self.uploads, &self.computes, &self.downloads] {
            if let Ok(state) = queue.context.state() {
                if state.status != ContextStatus::Active {
                    return GpuError::Work {
                        queue: queue.name,
                        status: format!("{:?}", state.status),
                        error,
                    };
                }
            }
        }
        GpuError::Library(error)
    }
}

/// The GPU did not filter the image.
#[derive(Debug)]
pub enum GpuError {
    /// A call failed.
    Library(libskua::Error),
    /// Work failed, and its context tells why.
    Work {
        /// The name of the context that it happened to.
        queue: &'static str,
        /// As the driver tells it.
        status: String,
        /// What the waiting call returned.
        error: libskua::Error,
    },
    /// A program wants an argument that there is none of: a mistake in this crate.
    Program(skua_asm::BindError),
    /// The plan is not one of this image.
    Size,
}

impl From<libskua::Error> for GpuError {
    fn from(error: libskua::Error) -> Self {
        Self::Library(error)
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => write!(f, "{error}"),
            Self::Work {
                queue,
                status,
                error,
            } => write!(f, "the {queue} context failed: {error}; {status}"),
            Self::Program(error) => write!(f, "{error}"),
            Self::Size => write!(f, "the plan was made for an image of another size"),
        }
    }
}

impl std::error::Error for GpuError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Library(error) | Self::Work { error, .. } => Some(error),
            Self::Program(error) => Some(error),
            Self::Size => None,
        }
    }
}
