// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory manager, and random steps of its clients.
//!
//! What the driver asks the policy the policy decides here, too: who leaves and what becomes of it,
//! which pages somebody gets, how much may be resident, what work is over, and what the CPU sees.
//! The model is lists of objects, work and mappings, in which all that is looked up afresh each
//! time; both must agree after every step. Memory is the tree's own allocator's.

use super::super::super::{
    buddy::{Buddy, PageCount, PageRange, Scattered},
    budget::{fair_share, level},
    heap::FallibleVec,
    host_aperture::{tests::reveal, HostAperture, Shown, Taken},
    in_flight::{InFlight, PushError},
    miniport::{Miniport, VRAM_SEGMENT},
    priority::Offer,
    recorder::Recorder,
    relocation::{self, way, Way},
};
use super::*;
use crate::std_heap::StdVec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Pages of VRAM.
const PAGES: u64 = 64;
/// Pages of the CPU host aperture.
const WINDOW: u32 = 8;
const CLIENTS: usize = 4;
const ENGINES: usize = 2;
/// What an engine is given at once.
const DEPTH: usize = 4;

const VRAM: relocation::Place = relocation::Place::Vram;
const SYSTEM: relocation::Place = relocation::Place::System;
const NOWHERE: relocation::Place = relocation::Place::Nowhere;

type Checked<T = ()> = Result<T, TestCaseError>;

/// What is known of an object beside what makes it leave.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Where it is in VRAM, if it is there.
    blocks: Vec<PageRange>,
    /// How often each client has made it resident.
    claims: [u32; CLIENTS],
    /// The CPU has it: what is out stays out.
    is_locked: bool,
    /// Its client has destroyed it, and it stays until work with it is over.
    is_dying: bool,
    /// It is nowhere, as its client is told who reclaims it.
    is_discarded: bool,
    /// Its content was thrown away.
    is_lost: bool,
}

impl State {
    /// Its pages of VRAM, in order.
    fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let blocks = self.blocks.iter();
        blocks.flat_map(|block| (block.start.0..).take(block.pages.0 as usize))
    }
}

/// What a client does with an object of its own.
#[derive(Clone, Copy, Debug)]
enum Change {
    Hold(Hold),
    Elsewhere(bool),
    Level(Level),
    Expect(Option<u32>),
    Lock(bool),
    Offer(Offer),
    Reclaim,
    /// It does nothing: the shrinker wants the pages of what is out.
    Shrink,
    /// Nobody but work that was submitted before has it any more.
    Destroy,
}

impl Object {
    fn is_offered(&self) -> bool {
        matches!(self.rank, Rank::Offered(_))
    }

    fn is_out(&self) -> bool {
        self.state.blocks.is_empty()
    }

    fn is_resident_for(&self, client: usize) -> bool {
        self.state.claims[client] > 0
    }

    /// Of a move of it.
    fn moving(&self, to: relocation::Place) -> relocation::Facts {
        let from = match self.state.is_discarded {
            true => NOWHERE,
            false if self.is_out() => SYSTEM,
            false => VRAM,
        };
        relocation::Facts {
            from,
            to,
            has_copy: false,
            same_pages: false,
            is_stale: false,
            is_settled: true,
            is_offered: self.is_offered(),
            // Nothing that is out can be locked in VRAM.
            is_held_out: self.state.is_locked && from != VRAM,
            is_arriving: false,
        }
    }

    /// Leaves where it is, or stays if it may not.
    fn go(&mut self, to: relocation::Place) -> Option<Way> {
        let way = way(&self.moving(to))?;
        self.state.is_discarded = to == NOWHERE;
        self.state.is_lost = way == Way::Discarded;
        self.state.blocks.clear();
        Some(way)
    }

    fn change(&mut self, change: Change) {
        let is_used = self.state.is_locked || self.state.claims != [0; CLIENTS];
        match change {
            Change::Hold(hold) => self.hold = hold,
            Change::Elsewhere(is) => self.can_be_elsewhere = is,
            Change::Level(level) if !self.is_offered() => self.rank = Rank::Kept(level),
            Change::Expect(uses) => self.expected = uses,
            Change::Lock(is) => self.state.is_locked = is && !self.is_offered(),
            Change::Offer(offer) if !is_used => self.rank = Rank::Offered(offer),
            Change::Reclaim if self.is_offered() => {
                self.rank = Rank::Kept(Level::Normal);
                // What is gone is zero.
                (self.state.is_discarded, self.state.is_lost) = (false, false);
            }
            Change::Shrink if self.is_out() => drop(self.go(NOWHERE)),
            Change::Destroy => {
                (self.hold, self.state.is_dying) = (Hold::Pinned, true);
                self.state.claims = [0; CLIENTS];
            }
            Change::Level(_) | Change::Offer(_) | Change::Reclaim | Change::Shrink => (),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Makes an object of so many pages, of this level.
    Make(u64, Need, Level),
    /// Uses an object.
    Use(usize),
    Change(usize, Change),
    /// What is out comes back if there is room.
    ComeBack(usize),
    /// The CPU accesses a page of it.
    Fault(usize, u64),
    /// A client makes these resident once more; beyond its budget, too, if it cannot trim.
    MakeResident(usize, Vec<usize>, bool),
    /// Takes that back once.
    Evict(usize, Vec<usize>),
    /// An engine gets a client's work, which needs all that is resident for that.
    Submit(usize, usize),
    /// An engine reports an id, which may be late news.
    Report(usize, u64),
    /// An engine is reset; the work whose number can be divided by this is at fault.
    Reset(usize, u64),
}

fn changes() -> impl Strategy<Value = Change> {
    let holds = vec![
        Hold::Nothing,
        Hold::Nothing,
        Hold::Nothing,
        Hold::Low,
        Hold::Min,
        Hold::Turn { elsewhere: false },
        Hold::Turn { elsewhere: true },
        Hold::Pinned,
    ];
    prop_oneof![
        2 => prop::sample::select(holds).prop_map(Change::Hold),
        1 => any::<bool>().prop_map(Change::Elsewhere),
        1 => prop::sample::select(&Level::ALL[..]).prop_map(Change::Level),
        3 => prop::option::of(0u32..9).prop_map(Change::Expect),
        2 => any::<bool>().prop_map(Change::Lock),
        3 => prop::sample::select(&Offer::ALL[..]).prop_map(Change::Offer),
        1 => Just(Change::Reclaim),
        2 => Just(Change::Shrink),
        2 => Just(Change::Destroy),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let some = || prop::collection::vec(number(), 1..4);
    let need = prop::sample::select(vec![Need::Prefers, Need::Needs, Need::Own]);
    let level = prop::sample::select(&Level::ALL[..]);
    let step = prop_oneof![
        6 => (1..PAGES / 2, need, level)
            .prop_map(|(pages, need, level)| Step::Make(pages, need, level)),
        2 => number().prop_map(Step::Use),
        16 => (number(), changes()).prop_map(|(number, change)| Step::Change(number, change)),
        2 => number().prop_map(Step::ComeBack),
        6 => (number(), 0..PAGES).prop_map(|(number, page)| Step::Fault(number, page)),
        4 => (0..CLIENTS, some(), any::<bool>())
            .prop_map(|(client, some, beyond)| Step::MakeResident(client, some, beyond)),
        1 => (0..CLIENTS, some()).prop_map(|(client, some)| Step::Evict(client, some)),
        6 => (0..ENGINES, 0..CLIENTS).prop_map(|(engine, client)| Step::Submit(engine, client)),
        3 => (0..ENGINES, 0..6u64).prop_map(|(engine, ahead)| Step::Report(engine, ahead)),
        1 => (0..ENGINES, 2..4u64).prop_map(|(engine, number)| Step::Reset(engine, number)),
    ];
    prop::collection::vec(step, 1..160)
}

/// What leaves before all for which this is more: what is offered does before what is kept.
fn order(rank: Rank) -> (bool, u8) {
    match rank {
        Rank::Offered(offer) => (false, offer as u8),
        Rank::Kept(level) => (true, level as u8),
    }
}

/// Whether an object may leave, as the documentation has it, for one of `level`.
fn may_leave(object: &Object, need: Need, level: Level) -> bool {
    let is_lower = order(object.rank) < order(Rank::Kept(level));
    let gives_way = object.is_idle && object.can_be_elsewhere && is_lower;
    match object.hold {
        Hold::Pinned | Hold::Min => false,
        Hold::Turn { elsewhere } => need == Need::Own && elsewhere,
        Hold::Low => need == Need::Needs,
        Hold::Nothing if need == Need::Prefers => !object.is_resident || gives_way,
        Hold::Nothing => need == Need::Needs,
    }
}

/// How late an object leaves: before all for which this is more.
fn rank(object: &Object) -> (bool, bool, (bool, u8), bool) {
    let is_low = object.hold == Hold::Low;
    let order = order(object.rank);
    (is_low, object.is_resident, order, !object.is_idle)
}

/// A GPU, and all objects of its clients.
struct Gpu {
    pages: Buddy<StdHeap>,
    /// What is in VRAM.
    memory: Memory,
    /// What is not.
    out: Vec<Object>,
    /// Numbers of the work that engines were given.
    engines: [InFlight<StdHeap, u64>; ENGINES],
    /// Of each of them what it uses.
    work: BTreeMap<u64, BTreeSet<u64>>,
    /// What the CPU host aperture shows, and what the device was told of that.
    window: HostAperture<StdHeap>,
    device: Recorder,
    /// By the user of a page, which page of the aperture the CPU has mapped there.
    mapped: BTreeMap<u64, u32>,
    /// The next number of an object, or of work.
    next: u64,
}

impl Gpu {
    fn new() -> Self {
        Self {
            pages: Buddy::new(PageCount(PAGES)).expect("an allocator"),
            memory: Memory::default(),
            out: Vec::new(),
            engines: [(); ENGINES].map(|()| InFlight::new(DEPTH, 1).expect("memory")),
            work: BTreeMap::new(),
            window: HostAperture::new(WINDOW).expect("memory"),
            device: Recorder::default(),
            mapped: BTreeMap::new(),
            next: 1,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn all(&self) -> impl Iterator<Item = &Object> {
        self.memory.objects.iter().chain(&self.out)
    }

    /// All that their clients have.
    fn live(&mut self) -> impl Iterator<Item = &mut Object> {
        let all = self.memory.objects.iter_mut().chain(&mut self.out);
        all.filter(|object| !object.state.is_dying)
    }

    /// One of these, if there is any.
    fn one(&mut self, number: usize) -> Option<&mut Object> {
        let at = number.checked_rem(self.live().count())?;
        self.live().nth(at)
    }

    /// The numbers of some of these.
    fn some(&mut self, numbers: &[usize]) -> BTreeSet<u64> {
        let numbers = numbers.iter();
        let found = numbers.filter_map(|number| self.one(*number).map(|object| object.number));
        found.collect()
    }

    /// Whether work in flight uses an object, as the engines have it.
    fn is_busy(&self, number: u64) -> bool {
        let mut in_flight = self.engines.iter().flat_map(InFlight::iter);
        in_flight.any(|(_, work)| self.work[work].contains(&number))
    }

    /// `object` comes to VRAM, where there is room.
    fn arrive(&mut self, mut object: Object) -> Checked {
        let request = Scattered {
            pages: PageCount(object.bytes),
            granule: PageCount(1),
            within: PageRange::new(0, PAGES),
        };
        let (mut blocks, mut dirty) = (StdVec::new(), StdVec::new());
        let found = self.pages.alloc_scattered(request, &mut blocks, &mut dirty);
        prop_assert_eq!(found, Ok(()));
        object.state.blocks = blocks.as_slice().to_vec();
        self.memory.objects.push(object);
        Ok(())
    }

    /// What is out comes to VRAM, where there is room, unless it may not.
    fn come(&mut self, number: u64) -> Checked {
        let at = self.out.iter().position(|object| object.number == number);
        let at = at.expect("it is out");
        let object = &self.out[at];
        // Row 0.21: not what is locked where it is out. Nor what is to take nobody's room.
        let may = !object.state.is_locked && !object.is_offered();
        prop_assert_eq!(way(&object.moving(VRAM)), may.then_some(Way::Copied));
        if may {
            let object = self.out.remove(at);
            self.arrive(object)?;
        }
        Ok(())
    }

    /// What `object` has of VRAM is free, and the CPU does not see it any more.
    fn free(&mut self, object: &Object) -> Checked {
        for page in object.state.pages() {
            let Some(at) = self.window.find(page) else {
                continue;
            };
            let shown = self.window.hide(at);
            let mapped = shown.and_then(|shown| self.mapped.remove(&shown.user));
            prop_assert_eq!(mapped, Some(at));
            let told = self.device.unmap_cpu_host_aperture(VRAM_SEGMENT, &[at]);
            prop_assert!(told.is_ok());
        }
        for block in &object.state.blocks {
            prop_assert_eq!(self.pages.free(*block), Ok(()));
        }
        Ok(())
    }

    /// Makes room for `pages` pages in all, if it can be made.
    fn make_room(&mut self, pages: u64, need: Need, level: Level) -> Checked<bool> {
        for at in 0..self.memory.objects.len() {
            let is_busy = self.is_busy(self.memory.objects[at].number);
            let object = &mut self.memory.objects[at];
            object.is_idle = !is_busy;
            object.is_resident = object.state.claims != [0; CLIENTS];
        }
        self.memory.level = Some(level);
        let before = self.memory.objects.clone();
        let missing = pages.saturating_sub(self.pages.free_pages().0);
        let made = make_room(&mut self.memory, need, missing);
        self.check_left(&before, need, missing)?;
        // There is room if, and only if, it could be made.
        prop_assert_eq!(made, Ok(self.pages.free_pages().0 >= pages));
        Ok(made == Ok(true))
    }

    /// What has left is free, and out; checks who did, of those who were there `before`.
    fn check_left(&mut self, before: &[Object], need: Need, missing: u64) -> Checked {
        let left = core::mem::take(&mut self.memory.left);
        for object in &left {
            self.wait_for(object.number)?;
            self.free(object)?;
            let mut gone = object.clone();
            // Whether or not it is locked: under its address the CPU finds it elsewhere.
            let (to, way) = match object.is_offered() {
                true => (NOWHERE, Way::Discarded),
                false => (SYSTEM, Way::Copied),
            };
            prop_assert_eq!(gone.go(to), Some(way), "{:?}", object);
            self.out.push(gone);
        }
        let may_leave = |object: &Object| may_leave(object, need, self.memory.level());
        let may = || before.iter().filter(|object| may_leave(object));
        let supply: u64 = may().map(|object| object.bytes).sum();
        let bytes = |objects: &[Object]| objects.iter().map(|object| object.bytes).sum::<u64>();
        if supply < missing {
            prop_assert!(left.is_empty(), "{left:?} left in vain");
            return Ok(());
        }
        prop_assert!(bytes(&left) >= missing, "{left:?}, not {missing} bytes");
        prop_assert!(left.iter().all(may_leave), "{left:?}");
        // In order of rank, and none of a later rank as long as there was one of an earlier.
        prop_assert!(left.is_sorted_by_key(rank), "{left:?}");
        let last = left.last().map(rank);
        let stay = |object: &&Object| left.iter().all(|other| other.number != object.number);
        for object in may().filter(stay) {
            prop_assert!(Some(rank(object)) >= last, "{object:?} stayed, {left:?}");
        }
        // None that was not needed but the last, and of a rank what was used longest ago; unless
        // that is much too large.
        let mut needed = missing;
        for (n, object) in left.iter().enumerate() {
            prop_assert!(needed > 0, "{object:?} left without need");
            let gone = &left[..n];
            let there = may().filter(|other| gone.iter().all(|gone| gone.number != other.number));
            let peers = there.filter(|other| rank(other) == rank(object));
            let first = peers.clone().next().expect("itself");
            // Who would leave if nobody was expected.
            let fits = |other: &&Object| other.bytes / 2 <= needed;
            let near = || peers.clone().take(8).filter(|other| other.bytes >= needed);
            let by_age = match fits(&first) {
                true => first,
                false => near()
                    .find(fits)
                    .or_else(|| near().min_by_key(|other| other.bytes))
                    .unwrap_or(first),
            };
            // Who of those that were used last is expected so last; of those, who was used last.
            let list = before.iter().rev().filter(|other| {
                other.rank == object.rank && gone.iter().all(|gone| gone.number != other.number)
            });
            let last = list
                .take(8)
                .filter(|other| rank(other) == rank(object) && may_leave(other) && fits(other));
            let later = last.fold(by_age, |latest, other| {
                match by_age.expected.is_some() && other.expected > latest.expected {
                    true => other,
                    false => latest,
                }
            });
            prop_assert_eq!(object.number, later.number, "{:?}, {:?}", object, left);
            needed = needed.saturating_sub(object.bytes);
        }
        Ok(())
    }

    /// What an engine has reported is over, and all before.
    fn report(&mut self, engine: usize, id: u64) -> Checked {
        let queue = &mut self.engines[engine];
        let reported = queue.iter().find(|(other, _)| *other == id);
        let reported = reported.map(|(_, work)| *work);
        let over = queue.complete_up_to(id).map(|over| over.collect());
        let over: Vec<(u64, u64)> = over.unwrap_or_default();
        // It works in order; what is late news says nothing.
        prop_assert_eq!(over.last().map(|(_, work)| *work), reported);
        prop_assert!(queue.iter().all(|(_, work)| Some(*work) > reported));
        for (_, work) in over {
            self.work.remove(&work);
        }
        Ok(())
    }

    /// Work with an object is over.
    fn wait_for(&mut self, number: u64) -> Checked {
        for engine in 0..ENGINES {
            let uses = |work: &u64| self.work[work].contains(&number);
            let last = self.engines[engine].iter().filter(|(_, work)| uses(work));
            if let Some((id, _)) = last.last() {
                self.report(engine, id)?;
            }
        }
        Ok(())
    }

    /// What of VRAM the clients have made resident.
    fn wanted(&self) -> [u64; CLIENTS] {
        core::array::from_fn(|client| {
            let own = self.all().filter(|object| object.is_resident_for(client));
            own.map(|object| object.bytes).sum()
        })
    }

    fn budget(&self, client: usize) -> u64 {
        let wanted = self.wanted().into_iter().enumerate();
        let others = wanted.filter(|(other, _)| *other != client);
        fair_share(PAGES, others.map(|(_, wanted)| wanted))
    }

    /// Makes some resident for `client`, or none; brings them in, as far as there is room.
    fn make_resident(&mut self, client: usize, some: &BTreeSet<u64>, beyond: bool) -> Checked {
        let is_new = |object: &&Object| !object.is_resident_for(client);
        let those = || self.all().filter(|object| some.contains(&object.number));
        let more: u64 = those().filter(is_new).map(|object| object.bytes).sum();
        let bytes = self.wanted()[client] + more;
        let is_refused = bytes > self.budget(client) && more > 0 && !beyond;
        if those().any(Object::is_offered) || is_refused || bytes > PAGES {
            return Ok(());
        }
        for object in self.live().filter(|object| some.contains(&object.number)) {
            object.state.claims[client] += 1;
        }
        for number in some {
            let mut out = self.out.iter().filter(|object| !object.state.is_locked);
            let Some(object) = out.find(|object| object.number == *number) else {
                continue;
            };
            let Rank::Kept(level) = object.rank else {
                continue;
            };
            if self.make_room(object.bytes, Need::Prefers, level)? {
                self.come(*number)?;
            }
        }
        Ok(())
    }

    /// Brings back all that `client` has resident and that is out, behind what others have to
    /// leave, and gives `engine` work with it; or nothing, and nobody leaves.
    fn submit(&mut self, engine: usize, client: usize) -> Checked {
        let work = self.number();
        if self.engines[engine].is_full() {
            let refused = self.engines[engine].push(work);
            prop_assert_eq!(refused, Err(PushError::Full(work)));
            return Ok(());
        }
        let is_its = |object: &&Object| object.is_resident_for(client);
        let out = || self.out.iter().filter(is_its);
        if out().any(|object| object.state.is_locked) {
            return Ok(());
        }
        let numbers: Vec<u64> = out().map(|object| object.number).collect();
        let bytes = out().map(|object| object.bytes).sum();
        let own = self.memory.objects.iter_mut();
        let own = own.filter(|object| object.is_resident_for(client));
        let turn = Hold::Turn { elsewhere: false };
        let held: BTreeMap<u64, Hold> = own
            .map(|object| (object.number, core::mem::replace(&mut object.hold, turn)))
            .collect();
        let fits = self.make_room(bytes, Need::Needs, Level::Minimum)?;
        for object in &mut self.memory.objects {
            object.hold = held.get(&object.number).copied().unwrap_or(object.hold);
        }
        if fits {
            numbers.iter().try_for_each(|number| self.come(*number))?;
        }
        // All of it is there, or all is as it was.
        let own = self.memory.objects.iter().filter(is_its);
        let own: BTreeSet<u64> = own.map(|object| object.number).collect();
        prop_assert!(held.keys().all(|number| own.contains(number)));
        prop_assert_eq!(own.len(), held.len() + if fits { numbers.len() } else { 0 });
        if fits {
            self.work.insert(work, own);
            prop_assert!(self.engines[engine].push(work).is_ok());
        }
        Ok(())
    }

    /// The CPU accesses the page of an object that is in VRAM.
    fn fault(&mut self, object: usize, page: u64) -> Checked {
        let Some(object) = self.one(object).filter(|object| !object.is_offered()) else {
            return Ok(());
        };
        let page = page % object.bytes;
        let user = object.number * PAGES + page;
        let is_locked = object.state.is_locked;
        let Some(page) = object.state.pages().nth(page as usize) else {
            return Ok(());
        };
        let shown = Shown { page, user };
        let (at, old) = reveal(&mut self.window, &self.device, shown);
        if let Some(old) = old {
            prop_assert_eq!(self.mapped.remove(&old.user), Some(at));
        }
        self.mapped.insert(user, at);
        self.window.hold(at, is_locked);
        // No page is shown twice, shows two, or is behind the last one.
        let other = Shown { page: PAGES, user };
        for other in [(at, other), (WINDOW, other), ((at + 1) % WINDOW, shown)] {
            prop_assert_eq!(self.window.show(other.0, other.1), Err(Taken));
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Make(pages, need, level) => {
                if self.make_room(pages, need, level)? {
                    let number = self.number();
                    self.arrive(object(number, pages))?;
                }
            }
            Step::MakeResident(client, some, beyond) => {
                let some = self.some(&some);
                self.make_resident(client, &some, beyond)?;
            }
            Step::Evict(client, some) => {
                let some = self.some(&some);
                let those = self.live().filter(|object| some.contains(&object.number));
                let those: Vec<&mut Object> = those.collect();
                if those.iter().all(|object| object.is_resident_for(client)) {
                    for object in those {
                        object.state.claims[client] -= 1;
                    }
                }
            }
            Step::Submit(engine, client) => self.submit(engine, client)?,
            Step::Report(engine, ahead) => {
                let queue = &self.engines[engine];
                let first = queue.front().map_or(queue.next_id(), |(id, _)| id);
                self.report(engine, first.saturating_sub(2) + ahead)?;
            }
            Step::Reset(engine, number) => {
                let is_guilty = |_, work: &u64| work % number == 0;
                let queue = &mut self.engines[engine];
                queue.remove_if(is_guilty, |_, work| drop(self.work.remove(&work)));
                prop_assert_eq!(queue.renumber(|_| false), Ok(()));
                prop_assert!(!queue.iter().any(|(id, work)| is_guilty(id, work)));
            }
            Step::Fault(object, page) => self.fault(object, page)?,
            Step::ComeBack(number) => {
                let free = self.pages.free_pages().0;
                let fits = |object: &&mut Object| object.is_out() && object.bytes <= free;
                if let Some(number) = self.one(number).filter(fits).map(|object| object.number) {
                    self.come(number)?;
                }
            }
            Step::Use(number) => {
                let objects = &mut self.memory.objects;
                if let Some(at) = number.checked_rem(objects.len()) {
                    objects[at..].rotate_left(1);
                }
            }
            Step::Change(number, change) => {
                let Some(object) = self.one(number) else {
                    return Ok(());
                };
                object.change(change);
                let object = object.clone();
                for page in object.state.pages() {
                    if let Some(at) = self.window.find(page) {
                        self.window.hold(at, object.state.is_locked);
                    }
                }
            }
        }
        Ok(())
    }

    /// What was destroyed is free when work with it is over.
    fn bury(&mut self) -> Checked {
        let is_over = |object: &&Object| object.state.is_dying && !self.is_busy(object.number);
        let over: Vec<Object> = self.all().filter(is_over).cloned().collect();
        for object in over {
            self.free(&object)?;
            for list in [&mut self.memory.objects, &mut self.out] {
                list.retain(|other| other.number != object.number);
            }
        }
        Ok(())
    }

    /// Checks everything.
    fn check(&self) -> Checked {
        let mut numbers: Vec<u64> = self.all().map(|object| object.number).collect();
        numbers.sort_unstable();
        prop_assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        let holders = Holders::of(&self.memory).expect("no error");
        let users = self.users()?;
        let used = users.iter().flatten().count() as u64;
        prop_assert_eq!(self.pages.free_pages().0, PAGES - used);
        prop_assert_eq!(holders.sums().iter().sum::<u64>(), used);
        self.check_content()?;
        self.check_budgets()?;
        self.check_work()?;
        self.check_aperture(&users)
    }

    /// Who has each page of VRAM: by [`Shown::user`], if anybody; nobody has one that another has.
    fn users(&self) -> Checked<Vec<Option<u64>>> {
        let mut users = vec![None; PAGES as usize];
        for object in &self.memory.objects {
            let pages: Vec<u64> = object.state.pages().collect();
            prop_assert_eq!(pages.len() as u64, object.bytes);
            for (user, page) in (object.number * PAGES..).zip(pages) {
                prop_assert_eq!(users[page as usize].replace(user), None);
            }
        }
        Ok(users)
    }

    /// Nothing is lost that nobody has offered, and who reclaims is told what is.
    fn check_content(&self) -> Checked {
        for object in self.all() {
            let is_lost = object.state.is_lost;
            prop_assert!(object.is_offered() || !is_lost, "{object:?}");
            prop_assert_eq!(object.state.is_discarded, is_lost, "{:?}", object);
        }
        Ok(())
    }

    /// If all who are told to trim do, all fits; who is told exceeds its budget by as much.
    fn check_budgets(&self) -> Checked {
        let wanted = self.wanted();
        let level = level(PAGES, wanted.into_iter());
        prop_assert!(wanted.iter().map(|wanted| wanted.min(&level)).sum::<u64>() <= PAGES);
        for (client, wanted) in wanted.into_iter().enumerate() {
            let excess = wanted.saturating_sub(self.budget(client));
            prop_assert_eq!(excess, wanted.saturating_sub(level));
        }
        Ok(())
    }

    /// What work in flight uses is there; what was destroyed, only as long as work uses it.
    fn check_work(&self) -> Checked {
        let in_flight = self.engines.iter().flat_map(InFlight::iter);
        let in_flight: BTreeSet<u64> = in_flight.map(|(_, work)| *work).collect();
        prop_assert!(in_flight.iter().eq(self.work.keys()));
        for queue in &self.engines {
            prop_assert!(queue.iter().is_sorted_by(|one, next| one < next));
        }
        let used: BTreeSet<u64> = self.work.values().flatten().copied().collect();
        let there = self.memory.objects.iter();
        let (dying, live): (Vec<_>, Vec<_>) = there.partition(|object| object.state.is_dying);
        prop_assert!(dying.iter().all(|object| used.contains(&object.number)));
        let numbers = dying.iter().chain(&live).map(|object| object.number);
        prop_assert!(used.is_subset(&numbers.collect()));
        Ok(())
    }

    /// Each page of the aperture that shows something shows the CPU what it has mapped there, and
    /// what the CPU has locked is taken last.
    fn check_aperture(&self, users: &[Option<u64>]) -> Checked {
        let shown = self.device.aperture.borrow();
        prop_assert_eq!(shown.len(), self.window.used() as usize);
        prop_assert_eq!(shown.len(), self.mapped.len());
        for (at, page) in &*shown {
            prop_assert!(*at < WINDOW);
            prop_assert_eq!(self.window.find(*page), Some(*at));
            let user = users[*page as usize].expect("what nobody has is not shown");
            prop_assert_eq!(self.mapped.get(&user), Some(at));
            let is_locked = self.memory.find(&(user / PAGES)).state.is_locked;
            prop_assert_eq!(self.window.is_held(*at), is_locked);
        }
        let is_held = |at: &u32| self.window.is_held(*at);
        match self.window.next() {
            Some((at, None)) => prop_assert!(at < WINDOW && !shown.contains_key(&at)),
            Some((at, old)) => {
                prop_assert_eq!(shown.len(), WINDOW as usize);
                prop_assert_eq!(shown.get(&at).copied(), old.map(|old| old.page));
                prop_assert!(!is_held(&at) || shown.keys().all(is_held));
            }
            None => prop_assert!(false, "it has pages"),
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(crate::cases(4))]

    #[test]
    fn it_does_as_the_model(steps in steps()) {
        let mut gpu = Gpu::new();
        for step in steps {
            gpu.step(step)?;
            gpu.bury()?;
            gpu.check()?;
        }
    }
}
