//! Tests what happens to handles at the borders of what the addresses, the limit and the device allow: handles move into a gap that
//! is just large enough or one page too small, memory is mapped up to the limit exactly, and the device has no room to break a
//! handle until another one has been broken.
//!
//! Every case of a few pages is tried, and compared with a plain count of pages.

use std::cell::RefCell;
use std::rc::Rc;

use parkade::policy::{Attempt, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{Allocation, Heap, PoolFilter, PoolSlot};
use parkade_sim::{CallName, CallSubject, LogLevel, SimOptions};

use crate::core_laws::devices::{Paged, PagedCore as Core};
use crate::drawn::{Draws, Outcome};
use crate::law::{Broken, Law, ensure};

/// The size of a page in bytes.
const PAGE: u64 = 20 * MIB;
/// The stream whose request the cases are about.
const OWN: StreamId = StreamId(9);
/// The pages of a handle that is broken.
const WHOLE: u64 = 4;

/// What the policy answers.
#[derive(Debug, Default)]
struct Plan {
    /// The pages of the next handles.
    handle: u64,
    /// The pages that a segment grows by beyond those of the request.
    more: u64,
    /// The policy's own steps; after them, it asks for new memory.
    steps: Vec<Relief>,
    lends: bool,
}

/// PyTorch's rules, except for handles of the planned size, and the planned steps in place of the ladder.
#[derive(Debug)]
struct Planned(PyTorch, Rc<RefCell<Plan>>);

impl Wrapper for Planned {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, _: &Heap, _: &Request, turn: u32) -> Relief {
        let steps = &self.1.borrow().steps;
        match turn as usize {
            turn if turn < steps.len() => steps[turn].clone(),
            turn if turn == steps.len() => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            _ => Relief::Done,
        }
    }

    fn handle(&self, _: &Heap, _: &Request, _: Bytes) -> Option<Bytes> {
        Some(Bytes(self.1.borrow().handle * PAGE))
    }

    fn growth(&self, request: &Request) -> Bytes {
        Bytes(request.size.get() + self.1.borrow().more * PAGE)
    }

    fn lends_to_pools(&self) -> bool {
        self.1.borrow().lends
    }
}

/// An allocator on a device with this many pages, and what its policy answers.
struct Stage {
    core: Core,
    plan: Rc<RefCell<Plan>>,
}

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Reference, error)
}

impl Stage {
    fn new(pages: u64, lends: bool) -> Stage {
        let plan = Rc::new(RefCell::new(Plan { lends, ..Plan::default() }));
        let settings = Settings { expandable_segments: true, ..Settings::default() };
        let policy = Box::new(Planned(PyTorch::new(settings), Rc::clone(&plan)));
        Stage { core: Core::new(Paged::new(SimOptions::new(Bytes(pages * PAGE))), policy, Vec::new()), plan }
    }

    /// Requests pages, for which the policy first takes these steps, and new memory comes in handles of this many pages.
    fn request(&mut self, pages: u64, stream: StreamId, steps: Vec<Relief>, handle: u64) -> Option<Allocation> {
        let lends = self.plan.borrow().lends;
        *self.plan.borrow_mut() = Plan { handle, more: 0, steps, lends };
        self.allocate(pages, stream)
    }

    fn allocate(&mut self, pages: u64, stream: StreamId) -> Option<Allocation> {
        self.core.allocate(Bytes(pages * PAGE), stream).ok()
    }

    /// Requests pages that are a handle of their own.
    fn whole(&mut self, pages: u64, stream: StreamId) -> Result<Allocation, Broken> {
        self.request(pages, stream, Vec::new(), pages).ok_or_else(|| failed("there is no room for the first blocks"))
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), Broken> {
        self.core.free(allocation).map(drop).map_err(failed)
    }

    fn reserved_pages(&self) -> u64 {
        self.core.heap().reserved().get() / PAGE
    }

    /// Checks that the device has handed out what the heap counts, and nothing else.
    fn finish(&self) -> Result<(), Broken> {
        let (used, reserved) = (self.core.device().sim.used_bytes(), self.core.heap().reserved());
        ensure(Law::Accounting, used == reserved, || format!("the device has handed out {used}, but {reserved} are counted"))?;
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }
}

/// Tests every case of a few pages.
pub(crate) fn check(_: &Draws) -> Outcome {
    let mut cases = 0;
    for case in Moving::cases() {
        moved(&case).map_err(|broken| broken.during(format_args!("{case:?}")))?;
        cases += 1;
    }
    for home in [Home::Default, Home::Private, Home::Lending] {
        for (free, wanted, handle) in triples(0..=2, 1..=3, 1..=4) {
            for more in [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
                // The limit is up to one page less than what is needed, or exactly that, or more.
                limited(home, free, free + wanted, handle, more).map_err(|broken| {
                    let limit = i128::from(more) - i128::from(PAGE);
                    broken.during(format_args!(
                        "{home:?}: {wanted} pages are missing behind {free}, the limit leaves {limit} bytes more"
                    ))
                })?;
                cases += 1;
            }
        }
    }
    for owner in [Owner::Default, Owner::Pool, Owner::PoolInUse] {
        for captured in [None, Some(StreamId(8)), Some(OWN), Some(StreamId(7))] {
            for is_touched in [false, true] {
                moved_in_captures(owner, captured, is_touched).map_err(|broken| {
                    let touched = if is_touched { "was once handed out" } else { "was never handed out" };
                    broken.during(format_args!(
                        "{owner:?}: a handle of stream 8 that {touched} moves while {captured:?} is captured"
                    ))
                })?;
                cases += 1;
            }
        }
    }
    for room in 0..=WHOLE {
        for (first, second, third) in triples(1..=WHOLE, 1..=WHOLE, 1..=WHOLE) {
            let used = [first, second, third];
            broken(room, used).map_err(|broken| {
                broken
                    .during(format_args!("handles with {used:?} of {WHOLE} pages in use are broken while {room} pages are free"))
            })?;
            cases += 1;
        }
    }
    Ok(cases)
}

/// Returns all combinations.
fn triples(
    first: std::ops::RangeInclusive<u64>,
    second: std::ops::RangeInclusive<u64>,
    third: std::ops::RangeInclusive<u64>,
) -> impl Iterator<Item = (u64, u64, u64)> {
    let pairs = first.flat_map(move |first| second.clone().map(move |second| (first, second)));
    pairs.flat_map(move |(first, second)| third.clone().map(move |third| (first, second, third)))
}

/// Handles of other streams that move into a gap for a request.
#[derive(Clone, Debug)]
struct Moving {
    /// The pages of the gap, of the request, and of each handle.
    gap: u64,
    wanted: u64,
    handles: Vec<u64>,
    /// Whether the device gets the handles back before new ones are taken.
    is_replaced: bool,
    /// The pages of each new handle.
    new: u64,
    /// The pages that the limit leaves beside those that stay where they are; `None` without a limit.
    left: Option<u64>,
}

/// A device call about memory, and its pages if it maps or creates any.
type Made = (CallName, u64);

impl Moving {
    /// Returns the cases.
    fn cases() -> impl Iterator<Item = Moving> {
        let sizes = (1..=4).flat_map(|gap| triples(1..=gap, 1..=4, 0..=3).map(move |sizes| (gap, sizes)));
        sizes.flat_map(|(gap, (wanted, first, second))| {
            let handles: Vec<u64> = [first, second].into_iter().filter(|&pages| pages > 0).collect();
            let all: u64 = handles.iter().sum();
            let lefts = [None, Some(wanted - 1), Some(wanted), Some(all.max(1) - 1), Some(all), Some(all + wanted)];
            // Nothing is kept if the handles are replaced, so larger limits make no difference then.
            let answers = [(false, 1, 6), (false, 3, 6), (true, 2, 3)];
            let pairs = answers.into_iter().flat_map(move |(is_replaced, new, count)| {
                lefts.into_iter().take(count).map(move |left| (left, (is_replaced, new)))
            });
            pairs.map(move |(left, (is_replaced, new))| Moving { gap, wanted, handles: handles.clone(), is_replaced, new, left })
        })
    }

    /// Takes handles for the request: first those of the kept ones that fit, then new ones. Kept ones that are too large are
    /// released, the last one first, while the limit leaves too little beside them. Returns the pages of the handles that were
    /// taken, and whether they are enough.
    fn take(&self, kept: &mut Vec<u64>, calls: &mut Vec<Made>) -> (Vec<u64>, bool) {
        let (mut taken, mut pages) = (Vec::new(), 0);
        kept.retain(|&own| {
            let fits = own <= self.gap - pages;
            if fits {
                taken.push(own);
                pages += own;
            }
            !fits
        });
        while pages < self.wanted {
            let mut left = u64::MAX;
            if let Some(limit) = self.left {
                let leaves = |kept: &[u64]| limit.saturating_sub(pages + kept.iter().sum::<u64>());
                while leaves(kept) < self.wanted - pages && kept.pop().is_some() {
                    calls.push((CallName::MemRelease, 0));
                }
                left = leaves(kept);
            }
            let new = self.new.min(self.gap - pages).min(left);
            if new == 0 {
                return (taken, false);
            }
            calls.push((CallName::MemCreate, new));
            taken.push(new);
            pages += new;
        }
        (taken, true)
    }

    /// Returns the device calls for the request, and whether it is served.
    fn expected(&self) -> (Vec<Made>, bool) {
        let released = |handles: &[u64]| vec![(CallName::MemRelease, 0); handles.len()];
        let mut calls: Vec<Made> = self.handles.iter().map(|&pages| (CallName::MemUnmap, pages)).collect();
        let mut kept = self.handles.clone();
        if self.is_replaced {
            calls.extend(released(&kept));
            kept.clear();
        }
        // The policy asks once more when the handles are not enough.
        for _ in 0..2 {
            let (taken, is_enough) = self.take(&mut kept, &mut calls);
            calls.extend(taken.iter().filter(|_| is_enough).map(|&pages| (CallName::MemMap, pages)));
            calls.extend(released(&taken).into_iter().filter(|_| !is_enough));
            calls.extend(released(&std::mem::take(&mut kept)));
            if is_enough {
                return (calls, true);
            }
        }
        (calls, false)
    }
}

/// Free handles of other streams move into a gap, under a limit: those that still fit there, in order, then new ones. What is
/// kept counts against the limit.
fn moved(case: &Moving) -> Result<(), Broken> {
    let mut stage = Stage::new(40, false);
    let before = stage.whole(1, OWN)?;
    let hole = stage.whole(case.gap, OWN)?;
    let behind = stage.whole(1, OWN)?;
    let (place, mut moving) = (hole.address(), Vec::new());
    stage.free(hole)?;
    let taken = stage.request(case.gap, StreamId(8), vec![Relief::Move { handles: vec![place] }], 1);
    let taken = taken.ok_or_else(|| failed("the first handle does not move"))?;
    for (&pages, stream) in case.handles.iter().zip(1..) {
        moving.push(stage.whole(pages, StreamId(stream))?);
    }
    let handles: Vec<DeviceAddress> = moving.iter().map(Allocation::address).collect();
    moving.into_iter().try_for_each(|allocation| stage.free(allocation))?;
    stage.core.set_limit(case.left.map(|left| Bytes((case.gap + 2 + left) * PAGE)));
    stage.core.device_mut().sim.set_log_level(LogLevel::Memory);
    let step = if case.is_replaced { Relief::Replace { handles } } else { Relief::Move { handles } };
    let served = stage.request(case.wanted, OWN, vec![step], case.new);
    let log = stage.core.device_mut().sim.take_log();
    let made = log.iter().filter_map(|call| match call.subject {
        CallSubject::Creation { bytes, .. } | CallSubject::Mapping { bytes, .. } => Some((call.name, bytes / PAGE)),
        _ if call.name == CallName::MemRelease => Some((call.name, 0)),
        _ => None,
    });
    let seen = (made.collect::<Vec<_>>(), served.as_ref().map(Allocation::address));
    let (calls, is_served) = case.expected();
    let expected = (calls, Some(place).filter(|_| is_served));
    ensure(Law::Answers, seen == expected, || format!("the calls and the address are {seen:x?}, expected {expected:x?}"))?;
    stage.finish()?;
    [Some(before), Some(behind), Some(taken), served].into_iter().flatten().try_for_each(|allocation| stage.free(allocation))
}

/// The pool that has a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Default,
    /// A private pool without uses.
    Pool,
    PoolInUse,
}

/// A handle of stream 8 moves to another stream while a stream is captured. In a pool in use, what was once handed out stays, because
/// a graph may write to it, and what was never handed out moves at once. Everything else moves after a wait for its stream, which is
/// impossible while that stream is captured.
fn moved_in_captures(owner: Owner, captured: Option<StreamId>, is_touched: bool) -> Result<(), Broken> {
    let (pool, home) = (PoolId(0, 1), StreamId(8));
    let mut stage = Stage::new(40, false);
    if owner != Owner::Default {
        stage.core.begin_pool(pool, PoolFilter::All).map_err(failed)?;
    }
    *stage.plan.borrow_mut() = Plan { handle: 1, more: 1, ..Plan::default() };
    let first = stage.allocate(1, home).ok_or_else(|| failed("there is no room for the first block"))?;
    let address = DeviceAddress(first.address().get() + PAGE);
    if is_touched {
        let second = stage.whole(1, home)?;
        stage.free(second)?;
    }
    if owner == Owner::Pool {
        stage.core.end_pool(pool).and_then(|()| stage.core.release_pool(pool)).map_err(failed)?;
    }
    if let Some(stream) = captured {
        stage.core.device_mut().sim.begin_capture(stream);
    }
    stage.core.device_mut().sim.set_log_level(LogLevel::Events);
    let served = stage.request(1, OWN, vec![Relief::Move { handles: vec![address] }], 1);
    let log = stage.core.device_mut().sim.take_log();
    let count = |name| log.iter().filter(|call| call.name == name).count();
    let [waits, unmapped, created] =
        [CallName::StreamSynchronize, CallName::MemUnmap, CallName::MemCreate].map(|name| count(name) as u64);
    let expected = match owner {
        Owner::PoolInUse if is_touched => (false, [0, 0, 0]),
        Owner::PoolInUse => (true, [0, 1, 0]),
        _ if captured == Some(home) => (true, [0, 0, 1]),
        _ => (true, [1, 1, 0]),
    };
    let seen = (served.is_some(), [waits, unmapped, created]);
    ensure(Law::Answers, seen == expected, || {
        format!("served, and the waits and the handles unmapped and created: {seen:?}, expected {expected:?}")
    })?;
    stage.finish()?;
    if let Some(stream) = captured {
        stage.core.device_mut().sim.end_capture(stream);
    }
    [Some(first), served].into_iter().flatten().try_for_each(|allocation| stage.free(allocation))
}

/// The pool that a request is for.
#[derive(Clone, Copy, Debug)]
enum Home {
    Default,
    /// A private pool with segments of its own.
    Private,
    /// A private pool that takes memory of the default pool.
    Lending,
}

/// A request grows a segment under a limit that leaves `more` bytes minus one page beyond what is missing. It is served if and only
/// if that is not negative.
fn limited(home: Home, free: u64, wanted: u64, handle: u64, more: u64) -> Result<(), Broken> {
    let mut stage = Stage::new(40, matches!(home, Home::Lending));
    let other = stage.whole(2, OWN)?;
    if !matches!(home, Home::Default) {
        stage.core.begin_pool(PoolId(0, 1), PoolFilter::All).map_err(failed)?;
    }
    if free > 0 {
        let first = stage.whole(free, OWN)?;
        stage.free(first)?;
    }
    let missing = wanted - free;
    let limit = (stage.reserved_pages() + missing - 1) * PAGE + more;
    stage.core.set_limit(Some(Bytes(limit)));
    let served = stage.request(wanted, OWN, Vec::new(), handle);
    // Handles are as large as the policy says, but not larger than what the limit leaves.
    let mut left = (limit - (2 + free) * PAGE) / PAGE;
    let mut taken = 0;
    while taken < missing && left > 0 {
        let pages = handle.min(left);
        (taken, left) = (taken + pages, left - pages);
    }
    let expected = (more >= PAGE, 2 + free + if more >= PAGE { taken } else { 0 });
    let seen = (served.is_some(), stage.reserved_pages());
    ensure(Law::Limit, seen == expected, || format!("served, and the pages reserved then: {seen:?}, expected {expected:?}"))?;
    stage.finish()?;
    [Some(other), served].into_iter().flatten().try_for_each(|allocation| stage.free(allocation))
}

/// Three handles are broken while the device has `room` free pages. The pages in use need new memory before the handle is
/// released. Handles for which there is no room are tried again until no further one breaks.
fn broken(room: u64, used: [u64; 3]) -> Result<(), Broken> {
    let mut stage = Stage::new(3 * WHOLE + room, false);
    let mut held = Vec::new();
    for (&pages, stream) in used.iter().zip(1..) {
        let block = stage.request(pages, StreamId(stream), Vec::new(), WHOLE);
        held.push(block.ok_or_else(|| failed("there is no room for the first blocks"))?);
    }
    let handles = held.iter().map(Allocation::address).collect();
    let served = stage.request(4 * WHOLE, OWN, vec![Relief::Break { handles }], 1);
    ensure(Law::Limit, served.is_none(), || "a request larger than the device was served".to_owned())?;
    let (mut whole, mut free) = (used.to_vec(), room);
    loop {
        let breaks = |pages: u64| pages < WHOLE && pages <= free;
        let Some(place) = whole.iter().position(|&pages| breaks(pages)) else { break };
        free += WHOLE - whole.remove(place);
    }
    let copied: u64 = used.iter().sum::<u64>() - whole.iter().sum::<u64>();
    let (seen, expected) = (stage.core.stats().copied_bytes, (copied * PAGE) as i64);
    ensure(Law::Ladder, seen == expected, || format!("{seen} bytes have moved out of broken handles, expected {expected}"))?;
    let (seen, expected) = (stage.reserved_pages(), 3 * WHOLE + room - free);
    ensure(Law::Accounting, seen == expected, || format!("{seen} pages are reserved, expected {expected}"))?;
    let slot = PoolSlot::default_pool(PoolClass::Large);
    let seen = stage.core.heap().partly_free(slot, Bytes(PAGE)).len();
    let expected = whole.iter().filter(|&&pages| pages < WHOLE).count();
    ensure(Law::Ladder, seen == expected, || format!("{seen} handles are still partly free, expected {expected}"))?;
    stage.finish()?;
    held.into_iter().try_for_each(|allocation| stage.free(allocation))
}
