// SPDX-License-Identifier: MIT

//! A device: how to find it, and what it is.
//!
//! A [`Device`] is an open render node. It is cheap to clone; the clones and all objects made from
//! it share one open file, which is closed when the last of them is dropped. Handles mean something
//! in that file only.

use std::{
    collections::HashMap,
    fs, io,
    ops::BitOr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use skua_spec::{command::EngineKind, pci};
use skua_uapi as uapi;

use crate::{
    error::{Errno, Error, Result},
    sys::{self, Argument},
};

/// Where the kernel lists DRM nodes.
const SYSFS: &str = "/sys/class/drm";
/// Where udev puts DRM nodes.
const NODES: &str = "/dev/dri";

/// The open file, and which of its GEM handles are in use how often.
#[derive(Debug)]
pub(crate) struct File {
    /// The render node, open.
    fd: OwnedFd,
    /// The process that opened it. A forked child has the same file, whose handles are not its own
    /// to close.
    owner: u32,
    /// Held over every ioctl that finds or closes a GEM handle. Of these only an import of another
    /// GPU's buffer waits for anything, and the kernel has others wait for that as well.
    handles: Mutex<Handles>,
    /// Notified when one has been ended, or not.
    ended: Condvar,
}

/// The GEM handles of a file that are in use.
#[derive(Debug, Default)]
struct Handles {
    /// Who uses each handle, by its number; also one that is being closed.
    users: HashMap<u32, Users>,
    /// Ends that were begun so far: the number of the last.
    ends: u64,
}

/// Who uses a GEM handle. The kernel gives one for one buffer object however often it is imported,
/// and closes it the first time that it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// So many, at least one.
    Some(u32),
    /// Nobody any more: it is being ended, by the end of this number. The kernel may give the
    /// number to a new object before that says so, which may be ended in turn.
    Ending(u64),
}

impl File {
    /// Calls an ioctl until no signal comes first.
    pub(crate) fn call<T: Argument>(&self, argument: &mut T) -> Result<i32> {
        sys::restart(|| sys::call(self.fd.as_fd(), argument)).map_err(|errno| Error::Ioctl {
            name: T::NAME,
            errno,
        })
    }

    /// Calls an ioctl that destroys a handle, unless another process owns it. An error has no
    /// consequence: the handle goes with the file.
    pub(crate) fn destroy<T: Argument>(&self, mut argument: T) {
        if !self.is_inherited() {
            let _ = self.call(&mut argument);
        }
    }

    pub(crate) fn is_inherited(&self) -> bool {
        std::process::id() != self.owner
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the user of the GEM handle of a new object.
    pub(crate) fn adopt(&self, handle: u32) {
        // What had the number has been ended, whoever is about to say so.
        self.handles().users.insert(handle, Users::Some(1));
    }

    /// Counts one user more of the GEM handle that `find` finds of an object, or makes.
    pub(crate) fn share(&self, find: impl Fn() -> Result<u32>) -> Result<u32> {
        let mut handles = self.handles();
        loop {
            let handle = find()?;
            match handles.users.entry(handle).or_insert(Users::Some(0)) {
                Users::Some(users) => {
                    *users += 1;
                    return Ok(handle);
                }
                // The object's own, which is about to go, or one that was ended.
                Users::Ending(_) => {
                    let waited = self.ended.wait(handles);
                    handles = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Has `destroy` end a GEM handle whose only user is the caller; not with the lock held, since
    /// it may take long.
    pub(crate) fn end(&self, handle: u32, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_inherited() {
            return Err(Error::Argument("it is the parent's"));
        }
        let begun = {
            let mut handles = self.handles();
            handles.ends += 1;
            let begun = Users::Ending(handles.ends);
            match handles.users.get_mut(&handle) {
                Some(users) if *users == Users::Some(1) => *users = begun,
                Some(_) => return Err(Error::Argument("another has it, too")),
                // The kernel says that there is none.
                None => (),
            }
            begun
        };
        let result = destroy();
        {
            let mut handles = self.handles();
            // It may be the number of something new by now.
            if handles.users.get(&handle) == Some(&begun) {
                match &result {
                    Ok(()) => handles.users.remove(&handle),
                    Err(_) => handles.users.insert(handle, Users::Some(1)),
                };
            }
        }
        self.ended.notify_all();
        result
    }

    /// Closes a GEM handle when its last user is gone.
    pub(crate) fn release(&self, handle: u32) {
        // Before the lock, which another thread may have held when this process was forked.
        if self.is_inherited() {
            return;
        }
        let mut handles = self.handles();
        if let Some(Users::Some(users)) = handles.users.get_mut(&handle) {
            *users -= 1;
            if *users == 0 {
                handles.users.remove(&handle);
                self.destroy(uapi::drm_gem_close { handle, pad: 0 });
            }
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A render node, open; clones share it.
#[derive(Clone, Debug)]
pub struct Device {
    /// Shared by all objects of the device, which keep it open.
    file: Arc<File>,
    /// Queried once, when it was opened.
    info: Arc<Info>,
}

/// What does not change while the device is open.
#[derive(Debug)]
struct Info {
    /// Of the device as a whole.
    device: DeviceInfo,
    /// In the order of their indices.
    engines: Vec<Engine>,
    /// As they were then: sizes hold, use does not.
    regions: Vec<RegionInfo>,
}

impl Device {
    /// Opens the first device that [`Device::enumerate`] finds and that can be opened.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if there is none; otherwise why the first one could not be opened.
    pub fn open_first() -> Result<Self> {
        let mut first = None;
        for node in Self::enumerate()? {
            match node.open() {
                Ok(device) => return Ok(device),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or(Error::NoDevice))
    }

    /// Finds the render nodes of all Skua GPUs by their PCI ids, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] if sysfs cannot be read; nodes that go away meanwhile are left out.
    pub fn enumerate() -> Result<Vec<Node>> {
        enumerate_in(Path::new(SYSFS), Path::new(NODES))
    }

    /// Opens a node by its path.
    ///
    /// # Errors
    ///
    /// [`Error::Path`]; [`Error::OtherDriver`]; what [`Device::from_fd`] returns.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            // Events are read by whoever comes first. CAST: one bit, a low one.
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .map_err(path_error(path))?;
        Self::from_fd(file.into())
    }

    /// Takes over an open node.
    ///
    /// Handles belong to what was opened and not to the descriptor: use no handles of this crate's
    /// objects through another duplicate of it.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDriver`] if the node is not one of the skua driver; [`Error::Answer`] if the
    /// driver is newer in a way that does not fit.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let driver = sys::driver_name(fd.as_fd()).map_err(|errno| Error::Ioctl {
            name: "VERSION",
            errno,
        })?;
        if driver != "skua" {
            return Err(Error::OtherDriver { driver });
        }
        let device = query_device(fd.as_fd())?;
        let engines = query_engines(fd.as_fd())?;
        let regions = query_regions(fd.as_fd())?;
        Ok(Self {
            file: Arc::new(File {
                fd,
                owner: std::process::id(),
                handles: Mutex::default(),
                ended: Condvar::new(),
            }),
            info: Arc::new(Info {
                device,
                engines,
                regions,
            }),
        })
    }

    /// Whether this process got it from its parent by fork(). All that was made on it is the
    /// parent's then, and dropping it destroys nothing.
    pub fn is_inherited(&self) -> bool {
        self.file.is_inherited()
    }

    pub(crate) const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What the device is and which limits it has.
    pub fn info(&self) -> &DeviceInfo {
        &self.info.device
    }

    /// In the order of their indices.
    pub fn engines(&self) -> &[Engine] {
        &self.info.engines
    }

    /// The first engine of a kind.
    pub fn engine(&self, kind: EngineKind) -> Option<Engine> {
        self.engines().iter().copied().find(|e| e.kind == kind)
    }

    /// The memory regions as they are now.
    ///
    /// # Errors
    ///
    /// ENODEV, EIO.
    pub fn regions(&self) -> Result<Vec<RegionInfo>> {
        query_regions(self.as_fd())
    }

    /// System memory, for [`crate::Bo::create`].
    pub fn system(&self) -> Placements {
        self.placements(RegionKind::System)
    }

    /// The GPU's own memory, for [`crate::Bo::create`].
    pub fn vram(&self) -> Placements {
        self.placements(RegionKind::Vram)
    }

    /// System memory behind the GPU's window, for [`crate::Bo::create`].
    pub fn aperture(&self) -> Placements {
        self.placements(RegionKind::Aperture)
    }

    /// A placement for each region of `kind`: an object may be in any of them.
    pub fn placements(&self, kind: RegionKind) -> Placements {
        self.info
            .regions
            .iter()
            .filter(|r| r.kind == kind)
            .filter_map(|r| Placements::of_region(r.id))
            .fold(Placements::NONE, BitOr::bitor)
    }

    /// Says how important the work of all contexts is that are made on it, there already or not:
    /// one of `DRM_SKUA_PRIORITY_CLASS_…`, which moves their priorities
    /// ([`Context::set_priority`](crate::Context::set_priority)) up or down.
    ///
    /// # Errors
    ///
    /// EINVAL for another class; EACCES for one above normal without `CAP_SYS_NICE`.
    pub fn set_priority_class(&self, class: u32) -> Result<()> {
        self.file.call(&mut uapi::drm_skua_set_priority_class {
            priority_class: class,
            flags: 0,
        })?;
        Ok(())
    }

    /// A capability of the DRM core, one of `DRM_CAP_…`.
    ///
    /// # Errors
    ///
    /// EINVAL if the kernel does not know it.
    pub fn capability(&self, capability: u32) -> Result<u64> {
        let mut argument = uapi::drm_get_cap {
            capability: capability.into(),
            value: 0,
        };
        self.file.call(&mut argument)?;
        Ok(argument.value)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A render node that was found, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node, like `/dev/dri/renderD128`.
    pub path: PathBuf,
    /// The device's name on its bus, like `0000:00:03.0`; the name of its debugfs directory, too.
    pub bus_id: String,
}

impl Node {
    /// Opens the render node and asks the driver for what [`Device::info`] tells.
    ///
    /// # Errors
    ///
    /// As [`Device::open`].
    pub fn open(&self) -> Result<Device> {
        Device::open(&self.path)
    }
}

/// See [`Device::enumerate`]; with sysfs and nodes elsewhere.
fn enumerate_in(sysfs: &Path, nodes: &Path) -> Result<Vec<Node>> {
    let entries = match fs::read_dir(sysfs) {
        Ok(entries) => entries,
        // A kernel without DRM.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(path_error(sysfs)(error)),
    };
    let id = |device: &Path, file: &str| {
        let text = fs::read_to_string(device.join(file)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(path_error(sysfs))?;
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("renderD") {
            continue;
        }
        let device = entry.path().join("device");
        if id(&device, "vendor") == Some(pci::VENDOR) && id(&device, "device") == Some(pci::DEVICE)
        {
            if let Ok(device) = fs::canonicalize(&device) {
                found.push(Node {
                    path: nodes.join(&name),
                    bus_id: device
                        .file_name()
                        .map(|n| n.to_string_lossy().into_owned())
                        .unwrap_or_default(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn path_error(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |error| Error::Path {
        path: path.to_owned(),
        errno: Errno::from_io_error(&error).unwrap_or(Errno::INVAL),
    }
}

/// What the device is and which limits it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Hardware version, major and minor.
    pub version: (u16, u16),
    /// GPU virtual addresses that can be bound: from the first up to, not including, the second.
    pub va: std::ops::Range<u64>,
    /// Sizes of GPU pages in bytes, increasing.
    pub page_sizes: Vec<u64>,
    /// Ticks of engine time in a nominal second.
    pub tick_hz: u64,
    /// Most threads of a thread group.
    pub max_group_threads: u32,
    /// Threads that share one instruction.
    pub wave_threads: u32,
    /// Most bytes of shared memory of a thread group.
    pub max_shared_bytes: u32,
    /// Most operations of one bind.
    pub max_bind_ops: u32,
    /// Most buffers of one submission.
    pub max_buffers: u32,
    /// Most syncobjs of one bind or submission.
    pub max_syncs: u32,
    /// How finely commands that draw can be preempted, as WDDM counts: 0 not at all, 500 behind
    /// each instruction.
    pub graphics_preemption: u32,
    /// The same of all other commands.
    pub compute_preemption: u32,
}

/// What a context is created on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Its number, for [`crate::Context::create`].
    pub index: u32,
    /// Whether it computes or copies.
    pub kind: EngineKind,
}

/// Kind of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// System memory, cached and coherent.
    System,
    /// The GPU's own memory.
    Vram,
    /// System memory as the GPU sees it through a window, in one piece.
    Aperture,
}

/// Memory that buffer objects may be placed in, and how full it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Number of its bit in [`Placements`].
    pub id: u32,
    /// Whose memory it is, and how the GPU reaches it.
    pub kind: RegionKind,
    /// Bytes that buffer objects can have here together.
    pub size: u64,
    /// Bytes that buffer objects have here now, of all clients.
    pub used: u64,
    /// Bytes of `size`, from the first on, that the CPU reaches all the time.
    pub cpu_visible_size: u64,
    /// Bytes of the CPU host aperture, through which it reaches the rest; 0 if there is none.
    pub aperture_size: u64,
    /// Bytes of a page of that; 0 if there is none.
    pub aperture_page_size: u32,
    /// The granularity of placement in bytes.
    pub page_size: u32,
}

/// A set of memory regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Placements(u32);

impl Placements {
    /// No region.
    pub const NONE: Self = Self(0);

    /// The region with this number, if numbers go that far.
    pub const fn of_region(id: u32) -> Option<Self> {
        match 1_u32.checked_shl(id) {
            Some(bit) => Some(Self(bit)),
            None => None,
        }
    }

    /// The set with these bits, one for each region's number.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// One bit for each region's number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether a region is in the set.
    pub const fn contains(self, id: u32) -> bool {
        match Self::of_region(id) {
            Some(region) => self.0 & region.0 != 0,
            None => false,
        }
    }

    /// Whether no region is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Placements {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Asks for the size of an answer, then for the answer, and tells how many bytes came.
fn query(fd: BorrowedFd<'_>, kind: u32) -> Result<Vec<u8>> {
    let error = |errno| Error::Ioctl {
        name: "SKUA_QUERY",
        errno,
    };
    let size = sys::restart(|| sys::query(fd, kind, 0, None)).map_err(error)?;
    let mut answer = vec![0; size as usize];
    let written = sys::restart(|| sys::query(fd, kind, size, Some(&mut answer))).map_err(error)?;
    answer.truncate(written as usize);
    Ok(answer)
}

/// Reads a 32-bit member of an answer; zero where an older driver does not have it.
fn u32_at(answer: &[u8], at: usize) -> u32 {
    let bytes = answer.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

/// Reads a 64-bit member of an answer; zero where an older driver does not have it.
fn u64_at(answer: &[u8], at: usize) -> u64 {
    let bytes = answer.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

macro_rules! member {
    ($read:ident, $answer:expr, $type:ident.$member:ident) => {
        $read($answer, std::mem::offset_of!(uapi::$type, $member))
    };
}

fn query_device(fd: BorrowedFd<'_>) -> Result<DeviceInfo> {
    let a = query(fd, uapi::DRM_SKUA_QUERY_DEVICE)?;
    Ok(device_info(&a))
}

fn device_info(a: &[u8]) -> DeviceInfo {
    let version = member!(u32_at, a, drm_skua_device_info.hw_version);
    let page_sizes = member!(u64_at, a, drm_skua_device_info.page_size_mask);
    DeviceInfo {
        // CAST: halves of a word.
        version: ((version >> 16) as u16, version as u16),
        va: member!(u64_at, a, drm_skua_device_info.va_start)
            ..member!(u64_at, a, drm_skua_device_info.va_end),
        page_sizes: (0..64)
            .map(|bit| 1 << bit)
            .filter(|size| page_sizes & size != 0)
            .collect(),
        tick_hz: member!(u64_at, a, drm_skua_device_info.tick_hz),
        max_group_threads: member!(u32_at, a, drm_skua_device_info.max_group_threads),
        wave_threads: member!(u32_at, a, drm_skua_device_info.wave_threads),
        max_shared_bytes: member!(u32_at, a, drm_skua_device_info.max_shared_bytes),
        max_bind_ops: member!(u32_at, a, drm_skua_device_info.max_bind_ops),
        max_buffers: member!(u32_at, a, drm_skua_device_info.max_buffers),
        max_syncs: member!(u32_at, a, drm_skua_device_info.max_syncs),
        graphics_preemption: member!(u32_at, a, drm_skua_device_info.graphics_preemption),
        compute_preemption: member!(u32_at, a, drm_skua_device_info.compute_preemption),
    }
}

fn query_engines(fd: BorrowedFd<'_>) -> Result<Vec<Engine>> {
    engines(&query(fd, uapi::DRM_SKUA_QUERY_ENGINES)?)
}

fn engines(answer: &[u8]) -> Result<Vec<Engine>> {
    answer
        .chunks_exact(size_of::<uapi::drm_skua_engine_info>())
        .map(|a| {
            let kind = member!(u32_at, a, drm_skua_engine_info.kind);
            Ok(Engine {
                index: member!(u32_at, a, drm_skua_engine_info.index),
                kind: EngineKind::from_u32(kind).ok_or(Error::Answer("kind of an engine"))?,
            })
        })
        .collect()
}

fn query_regions(fd: BorrowedFd<'_>) -> Result<Vec<RegionInfo>> {
    regions(&query(fd, uapi::DRM_SKUA_QUERY_REGIONS)?)
}

fn regions(answer: &[u8]) -> Result<Vec<RegionInfo>> {
    answer
        .chunks_exact(size_of::<uapi::drm_skua_region_info>())
        .map(|a| {
            Ok(RegionInfo {
                id: member!(u32_at, a, drm_skua_region_info.id),
                kind: match member!(u32_at, a, drm_skua_region_info.kind) {
                    uapi::DRM_SKUA_REGION_SYSTEM => RegionKind::System,
                    uapi::DRM_SKUA_REGION_VRAM => RegionKind::Vram,
                    uapi::DRM_SKUA_REGION_APERTURE => RegionKind::Aperture,
                    _ => return Err(Error::Answer("kind of a memory region")),
                },
                size: member!(u64_at, a, drm_skua_region_info.size),
                used: member!(u64_at, a, drm_skua_region_info.used),
                cpu_visible_size: member!(u64_at, a, drm_skua_region_info.cpu_visible_size),
                page_size: member!(u32_at, a, drm_skua_region_info.page_size),
                aperture_size: member!(u64_at, a, drm_skua_region_info.aperture_size),
                aperture_page_size: member!(u32_at, a, drm_skua_region_info.aperture_page_size),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use super::*;

    fn file() -> File {
        File {
            fd: fs::File::open("/dev/null").unwrap().into(),
            owner: std::process::id(),
            handles: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Handles, and how many use each; none of one that is being ended.
    fn users(file: &File) -> Vec<(u32, u32)> {
        let count = |users: &Users| match users {
            Users::Some(users) => *users,
            Users::Ending(_) => 0,
        };
        let handles = file.handles();
        let users = handles.users.iter();
        users
            .map(|(handle, users)| (*handle, count(users)))
            .collect()
    }

    #[test]
    fn who_finds_what_is_being_ended_looks_again() {
        let (file, found) = (file(), AtomicU32::new(0));
        let find = || {
            // Another number, once the object is another.
            Ok(7 + found.fetch_add(1, Ordering::Relaxed))
        };
        file.adopt(7);
        let (entered, enters) = mpsc::channel();
        let (leave, leaves) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (file, find) = (&file, &find);
            let ends = scope.spawn(move || {
                file.end(7, || {
                    entered.send(()).unwrap();
                    leaves.recv().unwrap();
                    Ok(())
                })
            });
            enters.recv().unwrap();
            let shares = scope.spawn(move || file.share(find));
            while found.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            assert!(!shares.is_finished(), "it has what is about to go");
            leave.send(()).unwrap();
            assert_eq!(ends.join().unwrap(), Ok(()));
            assert_eq!(shares.join().unwrap(), Ok(8));
        });
        assert_eq!(users(&file), [(8, 1)]);
        assert_eq!(file.share(|| Ok(8)), Ok(8));
        assert!(file.end(8, || panic!("another has it")).is_err());
        assert_eq!(users(&file), [(8, 2)]);
    }

    #[test]
    fn what_is_ended_may_name_something_new_or_stay() {
        let file = file();
        let refused = Error::Argument("no");
        assert_eq!(file.end(7, || Err(refused.clone())), Err(refused.clone()));
        assert_eq!(users(&file), []);
        file.adopt(7);
        assert_eq!(file.end(7, || Err(refused.clone())), Err(refused));
        assert_eq!(users(&file), [(7, 1)]);
        let ended = file.end(7, || {
            file.adopt(7);
            Ok(())
        });
        assert_eq!((ended, users(&file)), (Ok(()), vec![(7, 1)]));
        assert_eq!(file.end(7, || Ok(())), Ok(()));
        assert_eq!(users(&file), []);
    }

    #[test]
    fn who_has_ended_something_leaves_what_another_is_ending() {
        let file = Arc::new(file());
        let (begun, is_begun) = mpsc::channel();
        let (finish, to_finish) = mpsc::channel::<()>();
        file.adopt(7);
        let mut other = None;
        let ended = file.end(7, || {
            // The kernel has given the number to something new, which is being ended, too.
            file.adopt(7);
            let theirs = Arc::clone(&file);
            other = Some(thread::spawn(move || {
                theirs.end(7, || {
                    begun.send(()).expect("the test");
                    to_finish.recv().expect("the test");
                    Err(Error::Argument("no"))
                })
            }));
            is_begun.recv().expect("the other");
            Ok(())
        });
        assert_eq!((ended, users(&file)), (Ok(()), vec![(7, 0)]));
        finish.send(()).expect("the other");
        let refused = other.map(|other| other.join().expect("no panic"));
        assert_eq!(refused, Some(Err(Error::Argument("no"))));
        assert_eq!(users(&file), [(7, 1)]);
    }

    #[test]
    fn nodes_are_found_by_their_pci_ids() {
        let root = std::env::temp_dir().join(format!("libskua-sysfs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let node = |name: &str, slot: &str, vendor: &str, device: &str| {
            let pci = root.join("devices").join(slot);
            fs::create_dir_all(&pci).unwrap();
            fs::write(pci.join("vendor"), vendor).unwrap();
            fs::write(pci.join("device"), device).unwrap();
            let class = root.join("class").join(name);
            fs::create_dir_all(&class).unwrap();
            std::os::unix::fs::symlink(&pci, class.join("device")).unwrap();
        };
        node("renderD130", "0000:00:05.0", "0x1af4\n", "0x10f5\n");
        node("renderD128", "0000:00:03.0", "0x1af4\n", "0x10f5\n");
        node("renderD129", "0000:00:04.0", "0x1af4\n", "0x1050\n");
        node("card0", "0000:00:03.0", "0x1af4\n", "0x10f5\n");
        fs::create_dir_all(root.join("class/renderD131")).unwrap();

        let found = enumerate_in(&root.join("class"), Path::new("/n")).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|n| (n.path.to_str().unwrap(), n.bus_id.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("/n/renderD128", "0000:00:03.0"),
                ("/n/renderD130", "0000:00:05.0")
            ]
        );
        assert!(enumerate_in(&root.join("none"), Path::new("/n"))
            .unwrap()
            .is_empty());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn no_other_driver_is_taken() {
        let null = fs::File::open("/dev/null").unwrap();
        let error = Device::from_fd(null.into()).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOTTY));
    }

    #[test]
    fn answers_may_be_shorter_or_longer() {
        let mut answer = vec![0; 72];
        answer[..4].copy_from_slice(&0x0001_0002_u32.to_ne_bytes());
        answer[24..32].copy_from_slice(&((1_u64 << 12) | (1 << 21)).to_ne_bytes());
        answer[60..64].copy_from_slice(&9_u32.to_ne_bytes());
        let info = device_info(&answer);
        assert_eq!(info.version, (1, 2));
        assert_eq!(info.page_sizes, [4096, 1 << 21]);
        assert_eq!(info.max_syncs, 9);
        assert_eq!(device_info(&answer[..60]).max_syncs, 0);
        assert_eq!(device_info(&answer[..64]).compute_preemption, 0);
        assert_eq!(regions(&answer[..39]).unwrap(), []);
        answer[4] = 7;
        assert!(regions(&answer).is_err());
        assert!(engines(&answer).is_err());
    }

    #[test]
    fn placements_are_sets() {
        let both = Placements::of_region(0).unwrap() | Placements::of_region(1).unwrap();
        assert_eq!(both.bits(), 3);
        assert!(both.contains(1) && !both.contains(2) && !both.contains(99));
        assert_eq!(Placements::of_region(32), None);
        assert!(Placements::NONE.is_empty());
    }
}
