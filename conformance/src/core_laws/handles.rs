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
use parkade_sim::{CallName, LogLevel, SimOptions};

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
        *self.plan.borrow_mut() = Plan { handle, steps, lends };
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
    for gap in 1..=4 {
        for (wanted, first, second) in triples(1..=gap, 1..=5, 0..=5) {
            let handles: Vec<u64> = [first, second].into_iter().filter(|&pages| pages > 0).collect();
            moved(gap, wanted, &handles).map_err(|broken| {
                broken.during(format_args!("handles of {handles:?} pages move for {wanted} pages into a gap of {gap}"))
            })?;
            cases += 1;
        }
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

/// Free handles of other streams move into a gap: those that still fit there, in order. Single pages are created for what is then
/// missing, and the other handles are released.
fn moved(gap: u64, wanted: u64, handles: &[u64]) -> Result<(), Broken> {
    let mut stage = Stage::new(40, false);
    let before = stage.whole(1, OWN)?;
    let hole = stage.whole(gap, OWN)?;
    let behind = stage.whole(1, OWN)?;
    let (place, mut moving) = (hole.address(), Vec::new());
    stage.free(hole)?;
    let taken = stage.request(gap, StreamId(8), vec![Relief::Move { handles: vec![place] }], 1);
    let taken = taken.ok_or_else(|| failed("the first handle does not move"))?;
    for (&pages, stream) in handles.iter().zip(1..) {
        moving.push(stage.whole(pages, StreamId(stream))?);
    }
    let addresses: Vec<DeviceAddress> = moving.iter().map(Allocation::address).collect();
    moving.into_iter().try_for_each(|allocation| stage.free(allocation))?;
    stage.core.device_mut().sim.set_log_level(LogLevel::Memory);
    let served = stage.request(wanted, OWN, vec![Relief::Move { handles: addresses }], 1);
    let log = stage.core.device_mut().sim.take_log();
    let [unmapped, mapped, created, released] = [CallName::MemUnmap, CallName::MemMap, CallName::MemCreate, CallName::MemRelease]
        .map(|name| log.iter().filter(|call| call.name == name).count() as u64);
    let (mut room, mut fitting) = (gap, 0);
    for &pages in handles {
        if pages <= room {
            (room, fitting) = (room - pages, fitting + 1);
        }
    }
    let missing = wanted.saturating_sub(gap - room);
    let count = handles.len() as u64;
    let (seen, expected) = ([unmapped, mapped, created, released], [count, fitting + missing, missing, count - fitting]);
    ensure(Law::Answers, seen == expected, || {
        format!("unmapped, mapped, created and released {seen:?} handles, expected {expected:?}")
    })?;
    let seen = served.as_ref().map(Allocation::address);
    ensure(Law::Placement, seen == Some(place), || format!("the request is at {seen:x?}, expected {place}"))?;
    stage.finish()?;
    [Some(before), Some(behind), Some(taken), served].into_iter().flatten().try_for_each(|allocation| stage.free(allocation))
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
