// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that lies: what it says, or does not do, to order (`Documentation/gpu/skua/lies.rst`).
//!
//! A driver must not be brought down by a device, so its tests need one that tries. [`Lies`] sits
//! at the device's edges alone: what registers read as, what is written to the status page, which
//! interrupts are raised, and whether a reset is begun. The engines know nothing of it and go on
//! working honestly, which is the worst that a device can do that says otherwise. What a lie needs
//! beyond that, a thread does that runs while there are lies: storms, floods, what comes late.
//!
//! [`TABLE`] has all of them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use skua_spec::fault::{Access, Reason, Record, RecordWords, Space};
use skua_spec::number::{Asid, EngineIndex};
use skua_spec::pci::MAX_ENGINES;
use skua_spec::register::Half;
use skua_spec::regs::{Decoded, DeviceRegister, EngineRegister};
use skua_spec::status;

use crate::counters::Tally;
use crate::device::Hub;
use crate::engine::{Engine, Ring};
use crate::interrupt::Interrupts;
use crate::memory::Memory;
use crate::mmu::{self, Mmu};

/// Defines [`Kind`] and [`TABLE`]: one line for each lie.
macro_rules! lies {
    ($($kind:ident $name:literal $(= $default:expr)?, $what:literal;)*) => {
        /// What is lied about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $what] $kind,)*
        }

        /// All lies: kind, name, the value that is meant without one (`None`: it takes none), and
        /// what the device says or does.
        pub const TABLE: &[(Kind, &str, Option<u64>, &str)] = &[
            $((Kind::$kind, $name, lies!(@default $($default)?), $what),)*
        ];
    };
    (@default) => { None };
    (@default $default:expr) => { Some($default) };
}

lies! {
    Id "id" = 0, "ID reads as the value.";
    Version "version" = 0x2_0000, "VERSION reads as the value.";
    Engines "engines" = 8, "CAPS reads as the value.";
    EngineKind "engine-kind" = 7, "INFO of every engine reads as the value.";
    MmuCaps "mmu-caps" = 0, "MMU_CAPS reads as the value.";
    VramSize "vram-size" = 1 << 51, "VRAM_SIZE reads as the value.";
    VramBase "vram-base" = 0x800, "VRAM_BASE reads as the value.";
    VramVisible "vram-visible" = 1 << 40, "VRAM_VISIBLE reads as the value.";
    GartBase "gart-base" = crate::vram::BASE, "GART_BASE reads as the value.";
    GartPages "gart-pages" = 0, "GART_MAX_PAGES reads as the value.";
    TickHz "tick-hz" = 0, "TICK_HZ reads as the value.";
    ApertureCaps "aperture-caps" = 63, "APERTURE_CAPS reads as the value.";
    AperturePages "aperture-pages" = 1 << 20, "APERTURE_PAGES reads as the value.";
    PagingVa "paging-va" = 1 << 31, "PAGING_VA reads as the value.";
    Scheduling "scheduling" = 0x4, "SCHEDULING reads as the value.";
    NeverReady "never-ready", "READY is never set.";
    FenceAhead "fence-ahead" = 1000, "completed_fence is so much too high.";
    FenceBack "fence-back", "Every second completed_fence is two less than it should be.";
    FenceNever "fence-never", "completed_fence is not written.";
    FenceStays "fence-stays" = 0xffff,
        "completed_fence of each engine in the mask is not written until the adapter is reset.";
    EndLate "end-late" = 500,
        "An engine that ended a packet, or saved a state, stands for so many ms before it says so.";
    HeadNever "head-never", "head is not written.";
    HeadOut "head-out" = 0x10_0000, "head is the value.";
    TicksCreep "ticks-creep",
        "No fence, head or state is written; ticks grows by one each 10 ms, work or not.";
    InvalidateOther "invalidate-other" = 0xffff,
        "INVALIDATE of an address space but the system's drops that with the value for its number.";
    InvalidateAckLate "invalidate-ack-late" = 3000, "invalidate_ack comes so many ms late.";
    InvalidateAckNever "invalidate-ack-never", "invalidate_ack is not written.";
    InvalidateAckAhead "invalidate-ack-ahead" = 1000, "invalidate_ack is so much too high.";
    ResetAckLate "reset-ack-late" = 3000, "reset_ack comes so many ms late.";
    ResetAckNever "reset-ack-never", "reset_ack is not written.";
    ResetAckAhead "reset-ack-ahead" = 5, "reset_ack is so much too high.";
    SnapshotAckLate "snapshot-ack-late" = 3000, "snapshot_ack comes so many ms late.";
    SnapshotAckNever "snapshot-ack-never", "snapshot_ack is not written.";
    ApertureAckLate "aperture-ack-late" = 3000, "aperture_ack comes so many ms late.";
    ApertureAckNever "aperture-ack-never", "aperture_ack is not written.";
    EngineResetLate "engine-reset-late" = 3000,
        "A reset of an engine begins so many ms late; until then the engine goes on.";
    EngineResetNever "engine-reset-never", "Resets of engines do not begin; they go on.";
    AdapterResetLate "adapter-reset-late" = 3000,
        "The engines' part of an adapter reset begins so many ms late; until then they go on.";
    AdapterResetNever "adapter-reset-never",
        "The engines' part of an adapter reset does not begin; they go on.";
    PreemptLate "preempt-late" = 3000,
        "A preemption begins so many ms late; until then the engine goes on.";
    PreemptNever "preempt-never" = 0xffff,
        "Preemptions of the engines in the mask do not begin; these go on.";
    PreemptCompletedAhead "preempt-completed-ahead" = 1000,
        "preempt_completed is so much too high.";
    PreemptCompletedBehind "preempt-completed-behind" = 1000,
        "preempt_completed is so much too low.";
    PreemptFence "preempt-fence" = 1000, "preempt_fence is so much too high.";
    PreemptCause "preempt-cause" = 99, "preempt_cause is the value.";
    PreemptInterruptLost "preempt-interrupt-lost", "No interrupt is raised for a preemption.";
    PreemptInterruptDoubled "preempt-interrupt-doubled",
        "The interrupt for a preemption is raised twice.";
    FaultFlood "fault-flood",
        "Fault records of engine 0: as soon as one is read, there is another.";
    FaultStale "fault-stale", "The last fault's record once more, each 100 ms.";
    FaultNobody "fault-nobody", "A record of a context that does not exist, each 100 ms.";
    FaultGarbage "fault-garbage", "A record of random words, each 100 ms.";
    FaultAhead "fault-ahead" = 1000, "fault_put grows by the value each 100 ms, without records.";
    FaultReason "fault-reason" = 12, "Fault records have the value for their reason.";
    InterruptLost "interrupt-lost", "No interrupt is raised.";
    InterruptDoubled "interrupt-doubled", "Every interrupt is raised twice.";
    InterruptStorm "interrupt-storm", "All vectors are raised all the time.";
    StatusScribble "status-scribble", "The status page is overwritten with random words.";
    StatusStays "status-stays",
        "The status page cannot be switched off, and its counters are written all the time.";
    BusMasterStays "bus-master-stays", "Bus mastering cannot be turned off.";
    RingScribble "ring-scribble", "Enabled rings are overwritten with ones.";
}

/// Something untrue that the device says or does, as `name` or `name=value` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie {
    /// Which lie it is.
    pub kind: Kind,
    /// Its value; 0 where it takes none.
    pub value: u64,
}

/// A text that names no lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLie(String);

impl fmt::Display for UnknownLie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no such lie: {}", self.0)
    }
}

impl std::error::Error for UnknownLie {}

/// A number: decimal, hexadecimal with 0x, or a power as `2^n`.
fn parse_value(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix("2^") {
        Some(exponent) => 1u64.checked_shl(exponent.parse().ok()?),
        None => text.parse().ok(),
    }
}

impl FromStr for Lie {
    type Err = UnknownLie;

    /// Reads `NAME` or `NAME=VALUE`.
    fn from_str(text: &str) -> Result<Self, UnknownLie> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let unknown = || UnknownLie(text.to_owned());
        let (kind, _, default, _) = TABLE
            .iter()
            .find(|(_, known, ..)| *known == name)
            .ok_or_else(unknown)?;
        let value = match (value, default) {
            (None, default) => default.unwrap_or(0),
            (Some(value), Some(_)) => parse_value(value).ok_or_else(unknown)?,
            (Some(_), None) => return Err(unknown()),
        };
        Ok(Self { kind: *kind, value })
    }
}

/// What a lie has the device do late: after a time, or when the lies end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// An acknowledgement is written to the status page.
    Acknowledge {
        /// Offset in the engine's block of the status page.
        offset: u64,
        /// The number that the engine acknowledges.
        value: u64,
    },
    /// The status page is switched off.
    SwitchOff,
    /// An engine begins its reset, unless the packet with this fence id has ended.
    ResetEngine(EngineIndex, u64),
    /// An engine begins its part of an adapter reset.
    ResetAdapter(EngineIndex),
    /// An engine is asked for a preemption, by its fence id.
    Preempt(EngineIndex, u64),
}

#[derive(Debug, Default)]
struct State {
    /// The lies that are told, as they were last set.
    lies: Vec<Lie>,
    /// How often each of them was told since.
    times: Vec<u64>,
    /// Withheld deeds and their times; without one it is the end of the lies.
    late: Vec<(Option<Instant>, Deed)>,
    /// The rings of engines that are enabled, for lies that write to them.
    rings: [Option<Ring>; MAX_ENGINES as usize],
    /// For [`Kind::FenceBack`]: each engine's last fence, what was said of it, and how many. For
    /// [`Kind::FenceStays`] the last that was withheld.
    fences: [(u64, u64, u64); MAX_ENGINES as usize],
    /// For [`Kind::FenceStays`]: which engines have begun an adapter reset since the lies are told.
    began_anew: [bool; MAX_ENGINES as usize],
    /// For [`Kind::TicksCreep`]: what was last said of each engine, or was true, if that is more.
    ticks: [u64; MAX_ENGINES as usize],
    /// For a record that is told again.
    last_fault: Option<Record>,
    /// The lies were changed, or the device ends.
    changed: bool,
    /// Whether the device ends: what lies wait for comes no more.
    shutdown: bool,
}

impl State {
    fn value(&self, kind: Kind) -> Option<u64> {
        let lie = self.lies.iter().find(|lie| lie.kind == kind)?;
        Some(lie.value)
    }

    fn has(&self, kind: Kind) -> bool {
        self.value(kind).is_some()
    }

    /// The value of a lie that is told now, which is counted.
    fn tells(&mut self, kind: Kind) -> Option<u64> {
        let index = self.lies.iter().position(|lie| lie.kind == kind)?;
        self.times[index] += 1;
        Some(self.lies[index].value)
    }

    /// Whether a lie whose value is a mask is about an engine.
    fn is_about(&self, kind: Kind, engine: EngineIndex) -> bool {
        let mask = self.value(kind).unwrap_or(0);
        mask >> engine.get() & 1 == 1
    }

    /// Whether a deed is to be withheld, for ever or for milliseconds; then it is kept.
    fn withholds(&mut self, never: Kind, late: Kind, deed: Deed) -> bool {
        let due = match self.tells(never) {
            Some(_) => None,
            None => match self.tells(late) {
                Some(ms) => Some(Instant::now() + Duration::from_millis(ms)),
                None => return false,
            },
        };
        self.late.push((due, deed));
        true
    }
}

/// The lies that the device tells now. None at first.
pub struct Lies {
    /// Whether there are any: honest devices look no further.
    told: AtomicBool,
    /// Let go before anything is done to the device.
    state: Mutex<State>,
    /// Of the liar's thread; goes with `state`.
    wake: Condvar,
    /// For those that nothing has caused.
    interrupts: Arc<dyn Interrupts>,
}

impl fmt::Debug for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lies").field(&self.lock().lies).finish()
    }
}

impl Interrupts for Lies {
    fn raise(&self, vector: u32) {
        for _ in 0..self.raises(Kind::InterruptLost, Kind::InterruptDoubled) {
            self.interrupts.raise(vector);
        }
    }
}

impl Lies {
    /// An honest device, whose interrupts go to `interrupts`.
    pub fn new(interrupts: Arc<dyn Interrupts>) -> Self {
        Self {
            told: AtomicBool::new(false),
            state: Mutex::default(),
            wake: Condvar::new(),
            interrupts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the device is honest.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.told.load(Ordering::Acquire).then(|| self.lock())
    }

    /// How often something is raised that there are these two lies about.
    fn raises(&self, lost: Kind, doubled: Kind) -> u32 {
        let Some(mut state) = self.state() else {
            return 1;
        };
        if state.tells(lost).is_some() {
            0
        } else if state.tells(doubled).is_some() {
            2
        } else {
            1
        }
    }

    /// Tells these lies from now on, and no others. What others withheld is done at once.
    pub(crate) fn tell(&self, lies: &[Lie]) {
        let mut state = self.lock();
        state.lies = lies.to_vec();
        state.times = vec![0; lies.len()];
        state.began_anew = Default::default();
        for (due, _) in &mut state.late {
            *due = Some(Instant::now());
        }
        state.changed = true;
        self.told.store(true, Ordering::Release);
        self.wake.notify_all();
    }

    /// The lies that are told now, and how often each was since they are, by whatever gave occasion
    /// for it. What comes by itself, from time to time, is not counted.
    pub(crate) fn told(&self) -> Vec<(Kind, u64)> {
        let state = self.lock();
        let kinds = state.lies.iter().map(|lie| lie.kind);
        kinds.zip(state.times.iter().copied()).collect()
    }

    /// Ends [`Lies::run`].
    pub(crate) fn shut_down(&self) {
        self.lock().shutdown = true;
        self.wake.notify_all();
    }

    /// What a word of a register reads as.
    pub(crate) fn register(&self, register: Decoded, half: Half, word: u32) -> u32 {
        let Some(mut state) = self.state() else {
            return word;
        };
        let kind = match register {
            Decoded::Device(DeviceRegister::ID) => Kind::Id,
            Decoded::Device(DeviceRegister::VERSION) => Kind::Version,
            Decoded::Device(DeviceRegister::CAPS) => Kind::Engines,
            Decoded::Device(DeviceRegister::MMU_CAPS) => Kind::MmuCaps,
            Decoded::Device(DeviceRegister::VRAM_SIZE) => Kind::VramSize,
            Decoded::Device(DeviceRegister::VRAM_BASE) => Kind::VramBase,
            Decoded::Device(DeviceRegister::VRAM_VISIBLE) => Kind::VramVisible,
            Decoded::Device(DeviceRegister::GART_BASE) => Kind::GartBase,
            Decoded::Device(DeviceRegister::GART_MAX_PAGES) => Kind::GartPages,
            Decoded::Device(DeviceRegister::TICK_HZ) => Kind::TickHz,
            Decoded::Device(DeviceRegister::APERTURE_CAPS) => Kind::ApertureCaps,
            Decoded::Device(DeviceRegister::APERTURE_PAGES) => Kind::AperturePages,
            Decoded::Device(DeviceRegister::PAGING_VA) => Kind::PagingVa,
            Decoded::Device(DeviceRegister::SCHEDULING) => Kind::Scheduling,
            Decoded::Device(DeviceRegister::DEVICE_STATUS) => Kind::NeverReady,
            Decoded::Engine(_, EngineRegister::INFO) => Kind::EngineKind,
            _ => return word,
        };
        state.tells(kind).map_or(word, |lie| half.of(lie))
    }

    /// Whether bus mastering stays on.
    pub(crate) fn stays_master(&self) -> bool {
        let told = self
            .state()
            .and_then(|mut state| state.tells(Kind::BusMasterStays));
        told.is_some()
    }

    /// Whose translations are dropped where those of `asid` are to be.
    pub(crate) fn invalidated(&self, asid: Option<Asid>) -> Option<Asid> {
        let other = self
            .state()
            .and_then(|mut state| state.tells(Kind::InvalidateOther));
        match (asid, other) {
            // CAST: an identifier has 16 bits.
            (Some(asid), Some(other)) if asid != Asid::SYSTEM => Some(Asid(other as u16)),
            _ => asid,
        }
    }

    /// What is written to the field at `offset` of the status page instead of `value`; `None` if
    /// nothing is.
    pub(crate) fn field(&self, offset: u64, value: u64) -> Option<u64> {
        let Some(mut state) = self.state() else {
            return Some(value);
        };
        let mut late = |never, late| {
            let deed = Deed::Acknowledge { offset, value };
            (!state.withholds(never, late, deed)).then_some(value)
        };
        if offset == status::SNAPSHOT_ACK {
            return late(Kind::SnapshotAckNever, Kind::SnapshotAckLate);
        }
        if offset == status::APERTURE_ACK {
            return late(Kind::ApertureAckNever, Kind::ApertureAckLate);
        }
        let Some((engine, field)) = status::engine_field(offset) else {
            return Some(value);
        };
        match field {
            status::engine::INVALIDATE_ACK => {
                let value = late(Kind::InvalidateAckNever, Kind::InvalidateAckLate)?;
                let ahead = state.tells(Kind::InvalidateAckAhead).unwrap_or(0);
                Some(value.wrapping_add(ahead))
            }
            status::engine::RESET_ACK => {
                let value = late(Kind::ResetAckNever, Kind::ResetAckLate)?;
                let ahead = state.tells(Kind::ResetAckAhead).unwrap_or(0);
                Some(value.wrapping_add(ahead))
            }
            status::engine::PREEMPT_COMPLETED => {
                let ahead = state.tells(Kind::PreemptCompletedAhead).unwrap_or(0);
                let behind = state.tells(Kind::PreemptCompletedBehind).unwrap_or(0);
                Some(value.wrapping_add(ahead).wrapping_sub(behind))
            }
            status::engine::PREEMPT_FENCE => {
                let ahead = state.tells(Kind::PreemptFence).unwrap_or(0);
                Some(value.wrapping_add(ahead))
            }
            status::engine::PREEMPT_CAUSE => Some(state.tells(Kind::PreemptCause).unwrap_or(value)),
            field => state.progress(engine, field, value),
        }
    }

    /// Whether a reset of an engine is not to begin now. With it a preemption that was asked for is
    /// forgotten.
    pub(crate) fn withholds_engine_reset(&self, engine: EngineIndex, fence: u64) -> bool {
        let deed = Deed::ResetEngine(engine, fence);
        self.state().is_some_and(|mut state| {
            let lasts = |deed: &Deed| !matches!(deed, Deed::Preempt(of, _) if *of == engine);
            state.late.retain(|(_, deed)| lasts(deed));
            state.withholds(Kind::EngineResetNever, Kind::EngineResetLate, deed)
        })
    }

    /// Whether an engine's part of an adapter reset is not to begin now.
    pub(crate) fn withholds_adapter_reset(&self, engine: EngineIndex) -> bool {
        let deed = Deed::ResetAdapter(engine);
        self.state().is_some_and(|mut state| {
            let withheld = state.withholds(Kind::AdapterResetNever, Kind::AdapterResetLate, deed);
            state.began_anew[engine.index()] = !withheld;
            withheld
        })
    }

    /// Whether an engine is not to be asked for a preemption now.
    pub(crate) fn withholds_preemption(&self, engine: EngineIndex, fence: u64) -> bool {
        let deed = Deed::Preempt(engine, fence);
        self.state().is_some_and(|mut state| {
            let never = Kind::PreemptNever;
            let of_others = state.has(never) && !state.is_about(never, engine);
            !of_others && state.withholds(never, Kind::PreemptLate, deed)
        })
    }

    /// An engine has ended a packet, or saved a state, and has not said so: returns when it is to.
    pub(crate) fn wait_at_end(&self) {
        let late = self
            .state()
            .and_then(|mut state| state.tells(Kind::EndLate));
        if let Some(ms) = late {
            thread::sleep(Duration::from_millis(ms));
        }
    }

    /// How often the interrupt for a preemption is raised.
    pub(crate) fn preempt_interrupts(&self) -> u32 {
        self.raises(Kind::PreemptInterruptLost, Kind::PreemptInterruptDoubled)
    }

    /// Whether the status page is not to be switched off now.
    pub(crate) fn withholds_switch_off(&self) -> bool {
        let withheld = |mut state: MutexGuard<'_, State>| {
            let stays = state.tells(Kind::StatusStays).is_some();
            if stays {
                state.late.push((None, Deed::SwitchOff));
            }
            stays
        };
        self.state().is_some_and(withheld)
    }

    /// The adapter is about to be reset: what was asked of engines before is forgotten.
    pub(crate) fn note_adapter_reset(&self) {
        let lasts = |deed: &Deed| matches!(deed, Deed::SwitchOff | Deed::ResetAdapter(_));
        self.lock().late.retain(|(_, deed)| lasts(deed));
    }

    /// The status page was switched on.
    pub(crate) fn note_page(&self) {
        self.lock()
            .late
            .retain(|(_, deed)| *deed != Deed::SwitchOff);
    }

    /// An engine fetches from `ring` from now on, or from none. When this returns, nothing is
    /// written to its last one any more.
    ///
    /// The caller holds no [`crate::bus::BusGuard`].
    pub(crate) fn note_ring(&self, engine: EngineIndex, ring: Option<Ring>) {
        self.lock().rings[engine.index()] = ring;
    }

    /// What is written of a fault.
    pub(crate) fn fault_words(&self, mut words: [u64; 8]) -> [u64; 8] {
        if let Some(reason) = self
            .state()
            .and_then(|mut state| state.tells(Kind::FaultReason))
        {
            // CAST: a field of four bytes.
            words = RecordWords(words).with_reason(reason as u32).0;
        }
        words
    }

    /// There was a fault.
    pub(crate) fn note_fault(&self, record: Record) {
        self.lock().last_fault = Some(record);
    }

    /// The driver has made room for fault records.
    pub(crate) fn note_fault_get(&self, hub: &Hub) {
        if self
            .state()
            .is_some_and(|state| state.has(Kind::FaultFlood))
        {
            hub.flood();
        }
    }

    /// Does what lies need from time to time, until [`Lies::shut_down`].
    pub(crate) fn run(&self, hub: &Hub) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0u64.. {
            let state = self.lock();
            let period = Duration::from_micros(if state.has(Kind::InterruptStorm) {
                200
            } else {
                1000
            });
            // Without lies there is nothing to do, but what was withheld.
            let idle = state.lies.is_empty() && state.late.is_empty();
            let wait = |state: &mut State| !state.changed && !state.shutdown;
            let mut state = if idle {
                self.wake
                    .wait_while(state, wait)
                    .unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.wake.wait_timeout_while(state, period, wait);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
            if state.shutdown {
                return;
            }
            let changed = std::mem::take(&mut state.changed);
            if state.lies.is_empty() {
                self.told.store(false, Ordering::Release);
            }
            let now = Instant::now();
            let (due, late) = std::mem::take(&mut state.late)
                .into_iter()
                .partition(|(due, _)| due.is_some_and(|due| due <= now));
            state.late = late;
            let lies = state.lies.clone();
            let last_fault = state.last_fault;
            let ticks = state.has(Kind::TicksCreep) && round % 10 == 0;
            if ticks {
                for ticks in &mut state.ticks {
                    *ticks = ticks.wrapping_add(1);
                }
            }
            let creep = ticks.then_some(state.ticks);
            drop(state);

            for (_, deed) in due {
                if let Deed::ResetAdapter(engine) = deed {
                    self.lock().began_anew[engine.index()] = true;
                }
                hub.do_late(deed);
            }
            if changed && lies.is_empty() {
                // What was said last was perhaps not true.
                hub.publish_engines();
            }
            if let Some(ticks) = creep {
                hub.with_page(|page| {
                    for (engine, ticks) in EngineIndex::ALL.into_iter().zip(ticks) {
                        let field = status::of_engine(engine, status::engine::TICKS);
                        page.tell_u64(field, ticks);
                    }
                });
            }
            let told = Told {
                hub,
                slow: round % 100 == 0,
                last_fault,
            };
            for lie in lies {
                told.act(lie, &mut random);
            }
        }
    }
}

impl State {
    /// What is said of an engine's progress.
    fn progress(&mut self, engine: EngineIndex, field: u64, value: u64) -> Option<u64> {
        use status::engine::{COMPLETED_FENCE, HEAD, STATE, TICKS};
        let creeps = self.has(Kind::TicksCreep);
        match field {
            COMPLETED_FENCE | HEAD | STATE if creeps => None,
            TICKS if creeps => {
                let ticks = &mut self.ticks[engine.index()];
                *ticks = value.max(*ticks);
                None
            }
            COMPLETED_FENCE if self.tells(Kind::FenceNever).is_some() => None,
            COMPLETED_FENCE
                if self.is_about(Kind::FenceStays, engine) && !self.began_anew[engine.index()] =>
            {
                // Once for each, however often the engine says where it is.
                if std::mem::replace(&mut self.fences[engine.index()].0, value) != value {
                    self.tells(Kind::FenceStays);
                }
                None
            }
            COMPLETED_FENCE if self.tells(Kind::FenceBack).is_some() => {
                let (last, said, count) = &mut self.fences[engine.index()];
                if *last != value {
                    (*last, *count) = (value, count.wrapping_add(1));
                    *said = value.wrapping_sub(if *count % 2 == 0 { 2 } else { 0 });
                }
                Some(*said)
            }
            COMPLETED_FENCE => Some(value.wrapping_add(self.tells(Kind::FenceAhead).unwrap_or(0))),
            HEAD if self.tells(Kind::HeadNever).is_some() => None,
            HEAD => Some(self.tells(Kind::HeadOut).unwrap_or(value)),
            _ => Some(value),
        }
    }
}

/// Numbers without a pattern that a driver could take for meaning.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// What the liar's thread knows in one round.
struct Told<'a> {
    /// What all engines share, of which the lies are told.
    hub: &'a Hub,
    /// Whether it is a round of those that come each 100 ms.
    slow: bool,
    /// The record of the last fault that did happen, for [`Kind::FaultStale`]; none before one has.
    last_fault: Option<Record>,
}

impl Told<'_> {
    fn act(&self, lie: Lie, random: &mut Random) {
        match lie.kind {
            Kind::FaultFlood => self.hub.flood(),
            Kind::FaultStale if self.slow => {
                self.hub
                    .report_fault(self.last_fault.unwrap_or(record(Asid(7), 1)));
            }
            Kind::FaultNobody if self.slow => {
                self.hub.report_fault(record(Asid(0xfffe), u32::MAX - 1));
            }
            Kind::FaultGarbage if self.slow => {
                let words = std::array::from_fn(|_| random.next());
                self.hub.report_words(1, |_| words);
            }
            // CAST: what the field has room for.
            Kind::FaultAhead if self.slow => self.hub.report_words(lie.value as u32, |_| [0; 8]),
            Kind::InterruptStorm => {
                for vector in 0..=self.hub.engine_count() {
                    self.hub.raise(vector, None);
                }
            }
            Kind::StatusScribble => self.scribble(0, status::SIZE, random),
            Kind::StatusStays => self.scribble(status::COUNTERS, status::FAULTS, random),
            Kind::RingScribble => self.overwrite_rings(),
            _ => {}
        }
    }

    fn scribble(&self, from: u64, to: u64, random: &mut Random) {
        self.hub.with_page(|page| {
            for offset in (from..to).step_by(8) {
                page.tell_u64(offset, random.next());
            }
        });
    }

    fn overwrite_rings(&self) {
        let tally = Tally::default();
        let hub = self.hub;
        let (gart, bus) = (hub.gart.table(), hub.bus.enter());
        let vram = hub.vram.enter();
        let memory = Memory::new(&vram, *gart, &bus, &tally);
        // Locked behind the bus, as where the status page is written, and until all is written: an
        // engine whose ring is overwritten acknowledges no reset.
        let state = hub.lies.lock();
        for ring in state.rings.iter().flatten() {
            Self::overwrite(&memory, *ring);
        }
    }

    fn overwrite(memory: &Memory<'_>, ring: Ring) {
        let mut mmu = Mmu::default();
        for offset in (0..u64::from(ring.size)).step_by(4096) {
            let slice = mmu.slice(
                memory,
                mmu::Space::System,
                ring.base.wrapping_add(offset),
                4096,
                Access::Write,
            );
            if let Ok((slice, _)) = slice {
                slice.copy_from(&[0xff_u8; 4096]);
            }
        }
    }
}

/// A record of a fault that did not happen.
fn record(asid: Asid, context_id: u32) -> Record {
    Record {
        engine: EngineIndex::default(),
        reason: Reason::NotPresent,
        asid,
        context_id,
        access: Access::Read,
        detail: 3,
        space: Space::Virtual,
        address: 0xdead_0000,
        fence: 0,
        command: 0xdead_0000,
        pc: Record::NO_PC,
    }
}

impl Hub {
    /// Leaves no room for fault records.
    fn flood(&self) {
        for _ in 0..status::FAULT_RECORDS {
            self.report_fault(record(Asid(7), 1));
        }
    }

    /// Does what was withheld.
    fn do_late(&self, deed: Deed) {
        match deed {
            // CAST: a field of four bytes.
            Deed::Acknowledge { offset, value } => {
                self.with_page(|page| page.tell_u32(offset, value as u32));
            }
            Deed::SwitchOff => self.status.set(None),
            Deed::ResetEngine(engine, fence) => {
                self.with_engine(engine, |engine| engine.reset(fence));
            }
            Deed::ResetAdapter(engine) => self.with_engine(engine, Engine::reset_adapter),
            Deed::Preempt(engine, fence) => {
                self.with_engine(engine, |engine| self.preempt(engine, fence));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Interrupts for Nobody {
        fn raise(&self, _vector: u32) {}
    }

    #[test]
    fn fences_stay_until_the_adapter_is_reset() {
        let lies = Lies::new(Arc::new(Nobody));
        lies.tell(&["fence-stays=2".parse().unwrap()]);
        let field = status::engine::COMPLETED_FENCE;
        let [first, second, ..] = EngineIndex::ALL;
        let said = |engine, value| lies.field(status::of_engine(engine, field), value);
        assert_eq!(
            [(first, 5), (second, 5), (second, 5), (second, 6)].map(|(e, v)| said(e, v)),
            [Some(5), None, None, None]
        );
        assert_eq!(lies.told(), [(Kind::FenceStays, 2)]);
        assert!(!lies.withholds_adapter_reset(second));
        assert_eq!([0, 7].map(|value| said(second, value)), [Some(0), Some(7)]);
    }

    #[test]
    fn names_and_values() {
        let lie = |text: &str| text.parse::<Lie>().map(|lie| (lie.kind, lie.value));
        assert_eq!(lie("vram-size=2^42"), Ok((Kind::VramSize, 1 << 42)));
        assert_eq!(lie("vram-size"), Ok((Kind::VramSize, 1 << 51)));
        assert_eq!(lie("id=0x10"), Ok((Kind::Id, 16)));
        assert_eq!(lie("reset-ack-late=20"), Ok((Kind::ResetAckLate, 20)));
        for bad in [
            "",
            "ID",
            "id=",
            "id=-1",
            "id=2^64",
            "fence-never=1",
            "truth",
        ] {
            assert!(lie(bad).is_err(), "{bad}");
        }
    }
}
