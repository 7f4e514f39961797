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
//! Each context has a fence, of which job `n` (a band in a stage) signals `n + 1`. An upload
//! is followed by the dispatches that wait for its value, and these by the download. Where the
//! plan lets two bands be under way, the CPU fills one band's input and empties its output while
//! the engines work on the other one: before it touches a slot's buffers again, it waits for the
//! last value of the job that used them. Uploads and downloads have a context each, so that the
//! next upload need not wait for a download that waits for a dispatch.
//!
//! **More than VRAM has.** The image is filtered many times over, in copies of its own, until their
//! buffers are as large together as they are asked to be (`working_set`): every copy's result has
//! to be the same. Each band of each copy has an allocation, which may be in VRAM or in system
//! memory; a job makes its own resident, has the engines wait for that, and evicts it when it is
//! done. Nothing has to be trimmed for them: what may be in system memory is in no budget.
//!
//! Programs, weights, histogram and table lie in one buffer in VRAM alone, which is resident all
//! the time, and which job 0 fills.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wddm::libskua::CommandBuffer;
use wddm::{
    Adapter, Allocation, AllocationDesc, Context, Device, DeviceState, EngineKind, EvictFlags,
    MakeResidentFlags, Mapping, MonitoredFence, PagingQueue, SegmentSet, Status,
};

use crate::picture::Picture;
use crate::plan::{Band, Layout, Plan};

/// Bytes of a GPU page, which buffers are made of.
const PAGE: u64 = 4096;
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
    /// Times that the image was filtered.
    pub copies: u64,
    /// Bytes of the copies' buffers.
    pub working_set: u64,
}

/// Bytes that the buffers of the bands under way may have: three quarters of the VRAM that nobody
/// uses.
///
/// # Errors
///
/// As [`Adapter::segments`].
pub fn budget(adapter: &Adapter) -> Result<u64, GpuError> {
    let vram = adapter.vram();
    let segments = adapter.segments()?.into_iter();
    let free = segments
        .filter(|segment| vram.contains(segment.id))
        .map(|segment| segment.size.saturating_sub(segment.used))
        .max();
    Ok(free.unwrap_or(0) / 4 * 3)
}

/// Four times the VRAM, or a quarter of what there can be in system memory if that is less.
///
/// # Errors
///
/// As [`Adapter::segments`].
pub fn working_set(adapter: &Adapter) -> Result<u64, GpuError> {
    let segments = adapter.segments()?;
    let size = |set: SegmentSet| -> u64 {
        let of = segments.iter().filter(|segment| set.contains(segment.id));
        of.map(|segment| segment.size).sum()
    };
    let most = size(adapter.system()) / 4;
    Ok(size(adapter.vram()).saturating_mul(4).min(most))
}

/// Filters an image, in so many copies that their buffers have `working_set` bytes; each copy's
/// result.
///
/// # Errors
///
/// [`GpuError`].
pub fn run(
    adapter: &Adapter,
    plan: &Plan,
    picture: &Picture,
    working_set: u64,
) -> Result<(Vec<Picture>, Work), GpuError> {
    let device = Device::create(adapter)?;
    let outcome = Run::new(&device, plan, working_set).and_then(|mut run| run.all(picture));
    match outcome {
        // The device knows more than who waited.
        Err(GpuError::Library(status)) if device.state() != DeviceState::Active => {
            let state = device.state();
            Err(GpuError::Work { state, status })
        }
        outcome => outcome,
    }
}

/// A context, and the fence that tells what it has done.
struct Queue {
    context: Context,
    /// Job *n* of the run signals *n*.
    fence: MonitoredFence,
}

impl Queue {
    fn new(device: &Device, kind: EngineKind) -> Result<Self, GpuError> {
        let node = device.adapter().node(kind).ok_or(Status::NOT_SUPPORTED)?;
        Ok(Self {
            context: Context::create(device, node)?,
            fence: MonitoredFence::create(device, 0)?,
        })
    }
}

/// Memory that the CPU and the GPU see.
struct Shared {
    /// Keeps the memory; it is locked all the time.
    allocation: Allocation,
    /// The CPU's view.
    memory: Arc<Mapping>,
}

impl Shared {
    fn new(device: &Device, bytes: u64) -> Result<Self, GpuError> {
        let allocation = allocate(device, bytes, device.adapter().system())?;
        Ok(Self {
            memory: allocation.lock2(0)?,
            allocation,
        })
    }

    fn va(&self) -> u64 {
        self.allocation.gpu_va()
    }
}

/// Where commands are recorded, and their memory.
struct Commands {
    recorder: CommandBuffer,
    _memory: Allocation,
}

impl Commands {
    fn new(device: &Device) -> Result<Self, GpuError> {
        let memory = allocate(device, COMMANDS, device.adapter().system())?;
        Ok(Self {
            recorder: memory.recorder()?,
            _memory: memory,
        })
    }
}

/// The buffers of a band of a copy: source, target and intermediate.
struct Buffers {
    allocation: Allocation,
    /// Addresses in it, and those that all have in common.
    layout: Layout,
}

/// What a band under way uses.
struct Slot {
    /// The band's pixels; the CPU writes them.
    input: Shared,
    /// The band's result; the CPU reads it.
    output: Shared,
    /// From `input` to VRAM.
    upload: Commands,
    /// The band's dispatches.
    compute: Commands,
    /// From VRAM to `output`.
    download: Commands,
    /// The band whose result will be in the output, and the point at which the slot is free.
    busy: Option<Busy>,
}

/// A job that uses a slot.
struct Busy {
    band: Band,
    /// Number of the copy.
    copy: usize,
    /// Number of its buffers.
    buffers: usize,
    /// The band has a result to read.
    writes: bool,
    /// Of the download's fence.
    point: u64,
}

/// One run of a plan, with all that the GPU needs for it.
struct Run<'a> {
    /// What is to be done.
    plan: &'a Plan,
    /// Copies from the slots' input to VRAM.
    uploads: Queue,
    /// Dispatches of the programs, each behind its upload.
    computes: Queue,
    /// Copies of results from VRAM to the slots' output.
    downloads: Queue,
    /// Makes buffers resident.
    paging: PagingQueue,
    /// What bands under way use, one after the other.
    slots: Vec<Slot>,
    /// Those of a copy follow each other, in the order of the bands.
    buffers: Vec<Buffers>,
    /// Programs and weights on their way to VRAM.
    constants: Shared,
    /// In VRAM: programs, weights, histogram and table.
    tables: Allocation,
    /// Bytes of these.
    length: u64,
    /// Jobs so far; points count from 1.
    jobs: u64,
    /// What was done so far.
    work: Work,
}

fn allocate(device: &Device, bytes: u64, segments: SegmentSet) -> Result<Allocation, GpuError> {
    let desc = AllocationDesc::new(bytes.max(PAGE), segments);
    let visible = segments == device.adapter().system();
    let desc = if visible { desc } else { desc.hidden() };
    Ok(Allocation::create(device, &desc)?)
}

/// Makes an allocation resident, and has a context wait for that.
fn make_resident(
    queue: &PagingQueue,
    context: &Context,
    allocation: &Allocation,
    flags: MakeResidentFlags,
) -> Result<(), Status> {
    let paging = queue.make_resident(&[allocation], flags)?;
    if paging.status == Status::PENDING {
        context.wait_from_gpu(&[(&**queue.fence(), paging.fence_value)])?;
    }
    Ok(())
}

impl<'a> Run<'a> {
    fn new(device: &Device, plan: &'a Plan, working_set: u64) -> Result<Self, GpuError> {
        let adapter = device.adapter();
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
        let constants = Shared::new(device, length)?;
        constants.memory.write_bytes(0, &bytes)?;
        let tables = allocate(device, length, adapter.vram())?;
        let paging = PagingQueue::create(device)?;
        let uploads = Queue::new(device, EngineKind::Copy)?;
        // All jobs need them.
        let flags = MakeResidentFlags::CANT_TRIM_FURTHER;
        make_resident(&paging, &uploads.context, &tables, flags)?;
        let at = |i: usize| tables.gpu_va() + offsets.get(i).copied().unwrap_or(0);
        let programs = plan.programs().len();
        let common = Layout {
            programs: (0..programs).map(at).collect(),
            weights: at(programs),
            histogram: at(programs + 1),
            table: at(programs + 2),
            ..Layout::default()
        };

        // One allocation, in which the three start at pages.
        let [source, target, intermediate] =
            [sizes.source, sizes.target, sizes.intermediate].map(|b| b.next_multiple_of(PAGE));
        let size = source + target + intermediate;
        let bands = plan.bands().len();
        let copies = working_set.div_ceil(size * bands as u64).max(1);
        let both = adapter.vram() | adapter.system();
        let count = usize::try_from(copies).map_err(|_| GpuError::Size)? * bands;
        let buffers = (0..count)
            .map(|_| {
                let allocation = allocate(device, size, both)?;
                let va = allocation.gpu_va();
                let layout = Layout {
                    source: va,
                    target: va + source,
                    intermediate: va + source + target,
                    ..common.clone()
                };
                Ok(Buffers { allocation, layout })
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        let slots = (0..count.min(2))
            .map(|_| {
                Ok(Slot {
                    input: Shared::new(device, sizes.source)?,
                    output: Shared::new(device, sizes.target)?,
                    upload: Commands::new(device)?,
                    compute: Commands::new(device)?,
                    download: Commands::new(device)?,
                    busy: None,
                })
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        Ok(Self {
            plan,
            uploads,
            computes: Queue::new(device, EngineKind::Compute)?,
            downloads: Queue::new(device, EngineKind::Copy)?,
            paging,
            slots,
            buffers,
            constants,
            tables,
            length,
            jobs: 0,
            work: Work {
                copies,
                working_set: size * count as u64,
                ..Work::default()
            },
        })
    }

    /// Runs all stages over all bands of all copies.
    fn all(&mut self, picture: &Picture) -> Result<(Vec<Picture>, Work), GpuError> {
        let plan = self.plan;
        let copies = self.buffers.len() / plan.bands().len();
        let mut results = vec![vec![0; picture.pixels().len()]; copies];
        for (index, stage) in plan.stages().iter().enumerate() {
            let bands = if stage.banded {
                plan.bands()
            } else {
                plan.bands().get(..1).unwrap_or(&[])
            };
            // What a stage makes for all of them it makes once.
            for copy in 0..if stage.writes { copies } else { 1 } {
                for (n, band) in bands.iter().enumerate() {
                    let number = usize::try_from(self.jobs).unwrap_or(0) % self.slots.len();
                    self.finish(number, &mut results)?;
                    let buffers = copy * plan.bands().len() + n;
                    self.start(number, index, band, picture, (copy, buffers))?;
                }
            }
        }
        for number in 0..self.slots.len() {
            self.finish(number, &mut results)?;
        }
        let picture = |pixels| Picture::new(picture.width(), picture.height(), pixels);
        let results: Option<Vec<_>> = results.into_iter().map(picture).collect();
        Ok((results.ok_or(GpuError::Size)?, self.work))
    }

    /// Bytes of some rows, and the indices of their pixels.
    fn rows(&self, rows: &std::ops::Range<u32>) -> (u64, std::ops::Range<usize>) {
        let pitch = self.plan.pitch();
        let pixel = |row: u32| usize::try_from(u64::from(row) * pitch / 4).unwrap_or(usize::MAX);
        let bytes = u64::from(rows.end - rows.start) * pitch;
        (bytes, pixel(rows.start)..pixel(rows.end))
    }

    /// Submits one stage on one band of a copy, with a slot that is free.
    fn start(
        &mut self,
        number: usize,
        stage_index: usize,
        band: &Band,
        picture: &Picture,
        (copy, buffers): (usize, usize),
    ) -> Result<(), GpuError> {
        let stage = &self.plan.stages()[stage_index];
        let (source_bytes, source_pixels) = self.rows(&band.source);
        let (target_bytes, _) = self.rows(&band.target);
        let slot = &mut self.slots[number];
        let point = self.jobs + 1;

        let Buffers { allocation, layout } = &self.buffers[buffers];
        let none = MakeResidentFlags::empty();
        make_resident(&self.paging, &self.uploads.context, allocation, none)?;

        let upload = &mut slot.upload.recorder;
        upload.reset();
        if self.jobs == 0 {
            upload.copy(self.constants.va(), self.tables.gpu_va(), self.length)?;
            self.work.uploaded += self.length;
        }
        if stage.banded {
            let pixels = picture.pixels().get(source_pixels).ok_or(GpuError::Size)?;
            slot.input.memory.copy_from_slice(0, pixels)?;
            upload.copy(slot.input.va(), layout.source, source_bytes)?;
            self.work.uploaded += source_bytes;
        }
        let mut submission = self.uploads.context.submission();
        if upload.bytes() > 0 {
            submission = submission.recorded(upload);
        }
        submission.signal(&self.uploads.fence, point).submit()?;

        let compute = &mut slot.compute.recorder;
        compute.reset();
        for dispatch in self
            .plan
            .dispatches(stage_index, band, layout)
            .map_err(GpuError::Program)?
        {
            // Each pass sees what the one before it wrote.
            compute.dispatch(&dispatch)?.flush_cache()?;
            self.work.dispatches += 1;
        }
        let Queue { context, fence } = &self.computes;
        context.wait_from_gpu(&[(&self.uploads.fence, point)])?;
        let submission = context.submission().recorded(compute);
        submission.signal(fence, point).submit()?;

        let Queue { context, fence } = &self.downloads;
        context.wait_from_gpu(&[(&self.computes.fence, point)])?;
        let mut submission = context.submission().signal(fence, point);
        if stage.writes {
            let download = &mut slot.download.recorder;
            download
                .reset()
                .copy(layout.target, slot.output.va(), target_bytes)?;
            submission = submission.recorded(download);
            self.work.downloaded += target_bytes;
        }
        submission.submit()?;

        self.work.submissions += 3;
        slot.busy = Some(Busy {
            band: band.clone(),
            copy,
            buffers,
            writes: stage.writes,
            point,
        });
        self.jobs = point;
        Ok(())
    }

    /// Waits for the job that uses a slot, if there is one, and takes its result.
    fn finish(&mut self, number: usize, results: &mut [Vec<u32>]) -> Result<(), GpuError> {
        let Some(busy) = self.slots[number].busy.take() else {
            return Ok(());
        };
        self.downloads.fence.wait(busy.point, PATIENCE)?;
        let allocation = &self.buffers[busy.buffers].allocation;
        let device = self.paging.device();
        device.evict(&[allocation], EvictFlags::empty())?;
        if busy.writes {
            let (_, pixels) = self.rows(&busy.band.target);
            let pixels = results[busy.copy].get_mut(pixels).ok_or(GpuError::Size)?;
            self.slots[number].output.memory.copy_to_slice(0, pixels)?;
        }
        Ok(())
    }
}

/// The GPU did not filter the image.
#[derive(Debug)]
pub enum GpuError {
    /// A call failed.
    Library(Status),
    /// Work failed.
    Work {
        /// What the device tells.
        state: DeviceState,
        /// What the waiting call returned.
        status: Status,
    },
    /// A program wants an argument that there is none of: a mistake in this crate.
    Program(skua_asm::BindError),
    /// The plan is not one of this image.
    Size,
}

impl From<Status> for GpuError {
    fn from(status: Status) -> Self {
        Self::Library(status)
    }
}

impl From<wddm::libskua::Error> for GpuError {
    fn from(error: wddm::libskua::Error) -> Self {
        Self::Library(error.into())
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(status) => write!(f, "{status}"),
            Self::Work { state, status } => write!(f, "the device failed: {status}; {state:?}"),
            Self::Program(error) => write!(f, "{error}"),
            Self::Size => write!(f, "the plan was made for an image of another size"),
        }
    }
}

impl std::error::Error for GpuError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Library(status) | Self::Work { status, .. } => Some(status),
            Self::Program(error) => Some(error),
            Self::Size => None,
        }
    }
}
