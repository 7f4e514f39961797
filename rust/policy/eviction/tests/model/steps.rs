// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What clients and engines do, at random.

use super::*;

/// What a client does with an object of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Hold(Hold),
    Level(Level),
    Expect(NextUse),
    /// Work has used it so long ago, since it came to its place; or not.
    UseByWork(Option<u64>),
    Lock(bool),
    /// It is bound for the GPU to write, or not any more.
    Bind(bool),
    Offer(Offer),
    Reclaim,
    /// It does nothing: the shrinker wants the pages of what is out, and of copies.
    Shrink,
    /// Nobody but work that was submitted before has it any more.
    Destroy,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Makes an object of so many pages, for these segments, of this level.
    Make(u64, Sets, Level),
    /// Makes room for so many pages in VRAM, and no object.
    MakeRoom(u64, Need, Level),
    /// Uses an object.
    Use(usize),
    Change(usize, Change),
    /// What prefers VRAM comes there if there is room.
    ComeBack(usize),
    /// An object leaves VRAM, or the aperture; perhaps the CPU writes it just then.
    MoveOut(usize, bool),
    /// The CPU reads a page of it, or writes it.
    Fault(usize, u64, bool),
    /// Clients have too much of system memory, or not any more.
    Exceed(bool),
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
    /// The device is reset as a whole.
    ResetAdapter,
    /// One of those that move has.
    Arrive(usize),
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
        1 => prop::sample::select(&Level::ALL[..]).prop_map(Change::Level),
        3 => (0u64..9).prop_map(|uses| Change::Expect(NextUse::In(uses))),
        3 => (0u64..9).prop_map(|uses| Change::Expect(NextUse::NotFor(uses))),
        3 => prop::option::of(0u64..9).prop_map(Change::UseByWork),
        2 => any::<bool>().prop_map(Change::Lock),
        2 => any::<bool>().prop_map(Change::Bind),
        3 => prop::sample::select(&Offer::ALL[..]).prop_map(Change::Offer),
        1 => Just(Change::Reclaim),
        2 => Just(Change::Shrink),
        2 => Just(Change::Destroy),
    ]
}

/// All that there can be.
fn sets() -> Vec<Sets> {
    let all = segment_sets::tests::all().into_iter();
    let sets = all.map(|(supported, preferred, eviction, sets)| {
        let of = |set: u32| move |it: &Segment| set & it.bit() != 0;
        let rest = Segment::ALL.into_iter().filter(of(supported));
        let rest = rest.filter(|segment| !preferred.contains(segment));
        Sets {
            order: preferred.iter().copied().chain(rest).collect(),
            eviction: Segment::ALL.into_iter().filter(of(eviction)).collect(),
            word: sets.word(),
        }
    });
    sets.collect()
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let some = || prop::collection::vec(number(), 1..4);
    let need = prop::sample::select(vec![Need::Prefers, Need::Needs, Need::Own]);
    let level = || prop::sample::select(&Level::ALL[..]);
    let step = prop_oneof![
        8 => (1..PAGES / 2, prop::sample::select(sets()), level())
            .prop_map(|(pages, sets, level)| Step::Make(pages, sets, level)),
        2 => (1..PAGES, need, level())
            .prop_map(|(pages, need, level)| Step::MakeRoom(pages, need, level)),
        2 => number().prop_map(Step::Use),
        16 => (number(), changes()).prop_map(|(number, change)| Step::Change(number, change)),
        2 => number().prop_map(Step::ComeBack),
        2 => (number(), any::<bool>()).prop_map(|(number, late)| Step::MoveOut(number, late)),
        6 => (number(), 0..PAGES, any::<bool>())
            .prop_map(|(number, page, is_write)| Step::Fault(number, page, is_write)),
        1 => any::<bool>().prop_map(Step::Exceed),
        4 => (0..CLIENTS, some(), any::<bool>())
            .prop_map(|(client, some, beyond)| Step::MakeResident(client, some, beyond)),
        1 => (0..CLIENTS, some()).prop_map(|(client, some)| Step::Evict(client, some)),
        6 => (0..ENGINES, 0..CLIENTS).prop_map(|(engine, client)| Step::Submit(engine, client)),
        3 => (0..ENGINES, 0..6u64).prop_map(|(engine, ahead)| Step::Report(engine, ahead)),
        1 => (0..ENGINES, 2..4u64).prop_map(|(engine, number)| Step::Reset(engine, number)),
        1 => Just(Step::ResetAdapter),
        6 => number().prop_map(Step::Arrive),
    ];
    prop::collection::vec(step, 1..160)
}
