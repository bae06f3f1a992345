//! The orders that follow from hash tables: which stream's event is recorded or checked first, and which of several private
//! pools serves a request or is released. The reference allocator has a second implementation of the tables.
//!
//! Other programs have four streams and three pools, so their tables are small, and their keys are always the same. Here the
//! handles and the ids are drawn: numbers in a row, multiples of a page, any numbers, and numbers chosen so that many share a
//! bucket or have buckets side by side, in tables of 4 to 128 buckets.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem::discriminant;

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, PoolFilter};
use proptest::prelude::*;

use crate::core_laws::devices::{Completion, Paper, PaperCore as Core};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};
use crate::program::step::profiles;
use crate::reference_model::{Reference, hash_of_stream, home};

/// The maximum numbers of streams and pools in a program.
const MOST_STREAMS: usize = 40;
const MOST_POOLS: usize = 20;
/// The device's memory.
const TOTAL: u64 = 1 << 36;

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize),
    /// As many streams, beginning with this one, use an allocation.
    Record(usize, usize, usize),
    Free(usize),
    ProcessEvents,
    /// Whether all events are complete from now on.
    Idle(bool),
    /// The events of which streams are complete from now on.
    IdleStreams(u64),
    ReleaseCached,
    /// Adds a use of each of this many pools.
    Create(usize, usize),
    /// Serves a request from the pool.
    AllocateIn(usize, u64, usize),
    Release(usize, usize),
    ServeWhenOut(usize, usize, bool),
    /// Sets the limit to the reserved bytes, so that the next request without a free block runs out of memory, or removes it.
    Fill(bool),
}

/// How the numbers of a program's streams or pools are chosen.
#[derive(Clone, Debug)]
enum Numbers {
    Listed(Vec<u64>),
    Colliding(Colliding),
}

/// Numbers that collide in a table with two to the power of `bits` buckets.
#[derive(Clone, Copy, Debug)]
struct Colliding {
    count: usize,
    bits: u32,
    /// The first of the buckets in which they collide, and how many such buckets follow.
    bucket: u64,
    width: u64,
    /// The share of the numbers that have one of these buckets, in percent.
    share: u64,
    seed: u64,
}

impl Numbers {
    /// Returns different numbers.
    fn list(&self, hash: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut numbers = match self {
            Numbers::Listed(numbers) => numbers.clone(),
            Numbers::Colliding(colliding) => colliding.list(hash),
        };
        let mut seen = BTreeSet::new();
        numbers.retain(|number| seen.insert(*number));
        numbers
    }
}

impl Colliding {
    fn list(&self, hash: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut state = self.seed;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 20
        };
        let buckets = self.bucket..=self.bucket + self.width;
        let number = |_| {
            let collides = draw() % 100 < self.share;
            loop {
                let number = draw();
                if !collides || buckets.contains(&home(hash(number), self.bits)) {
                    return number;
                }
            }
        };
        (0..self.count).map(number).collect()
    }
}

fn numbers(most: usize) -> impl Strategy<Value = Numbers> {
    let in_a_row = (0..200_u64).prop_map(|first| (first, 1));
    let pages =
        (0..64_u64, prop::sample::select(vec![0x200, 0x1000, 0x1_0000, 1 << 40])).prop_map(|(first, step)| (first * step, step));
    let steps = (one_of![in_a_row, pages], prop::collection::vec(0..64_u64, 1..most))
        .prop_map(|((first, step), places)| places.into_iter().map(|place| first + place * step).collect::<Vec<_>>());
    let anywhere = prop::collection::vec(one_of![any::<u64>(), (1_u64 << 47..1 << 48)], 1..most);
    let parts = (2..most, 2..8_u32, any::<u64>(), 0..4_u64, prop::sample::select(vec![50, 80, 100]), any::<u64>());
    let colliding = parts.prop_map(|(count, bits, bucket, width, share, seed)| {
        // More numbers in so few of many buckets would make a table so large that the core stops growing it (spec 13.1).
        let count = if bits > 5 { count.min(12) } else { count };
        Numbers::Colliding(Colliding { count, bits, bucket: bucket % (1 << bits), width, share, seed })
    });
    one_of![2 => steps.prop_map(Numbers::Listed), 1 => anywhere.prop_map(Numbers::Listed), 4 => colliding]
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    let many = |most: usize| one_of![3 => Just(1), 1 => 1..most];
    let size = || prop::sample::select(vec![512, MIB, 3 * MIB, 12 * MIB]);
    one_of![
        6 => (size(), which()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        16 => (which(), which(), many(MOST_STREAMS)).prop_map(|(which, stream, count)| Step::Record(which, stream, count)),
        5 => which().prop_map(Step::Free),
        4 => Just(Step::ProcessEvents),
        2 => any::<bool>().prop_map(Step::Idle),
        3 => any::<u64>().prop_map(Step::IdleStreams),
        1 => Just(Step::ReleaseCached),
        2 => (which(), many(MOST_POOLS)).prop_map(|(pool, count)| Step::Create(pool, count)),
        5 => (which(), size(), which()).prop_map(|(pool, size, stream)| Step::AllocateIn(pool, size, stream)),
        3 => (which(), many(MOST_POOLS)).prop_map(|(pool, count)| Step::Release(pool, count)),
        3 => (which(), many(MOST_POOLS), prop::bool::weighted(0.6))
            .prop_map(|(pool, count, serves)| Step::ServeWhenOut(pool, count, serves)),
        2 => any::<bool>().prop_map(Step::Fill),
    ]
}

/// Compares the order of device calls and of trace entries with the reference allocator's.
pub(crate) fn check(draws: &Draws) -> Outcome {
    let release = prop::sample::select(profiles().collect::<Vec<_>>());
    let pools = (numbers(MOST_POOLS), any::<u64>());
    let strategy = (release, 0..8_u32, numbers(MOST_STREAMS), pools, prop::collection::vec(step(), 1..120));
    run_law(&draws.each_for(2), 360, strategy, |(profile, index, streams, (pools, kinds), steps)| {
        let streams = streams.list(|handle| hash_of_stream(*index, handle));
        let pools: Vec<PoolId> =
            pools.list(|number| number).into_iter().zip(0..).map(|(number, place)| pool_id(number, kinds >> place)).collect();
        let mut play = Play::new(profile, *index, &streams, &pools);
        for (number, &step) in steps.iter().enumerate() {
            play.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        Ok(steps.len() as u64)
    })
}

/// Returns a user's pool or a graph's pool. The second number of some graphs' pools is not 0: it must not matter.
fn pool_id(number: u64, kind: u64) -> PoolId {
    let number = number.max(1);
    match kind % 4 {
        0 => PoolId(0, number),
        1 => PoolId(number, 0),
        _ => PoolId(number, number.reverse_bits() | 1),
    }
}

/// Both allocators, and the allocations that are held.
struct Play {
    core: Core,
    reference: Reference,
    streams: Vec<StreamId>,
    pools: Vec<PoolId>,
    held: Vec<Allocation>,
    told: usize,
}

impl Play {
    fn new(profile: &'static Profile, index: u32, streams: &[u64], pools: &[PoolId]) -> Play {
        let device = Paper::new(TOTAL).with_index(index);
        let reference = Reference::new(profile, Settings::default(), TOTAL, index);
        let core = Core::new(device, PyTorch::of(profile, Settings::default()), Vec::new());
        let streams = streams.iter().copied().map(StreamId).collect();
        Play { core, reference, streams, pools: pools.to_vec(), held: Vec::new(), told: 0 }
    }

    fn step(&mut self, step: Step) -> Result<(), Broken> {
        let stream = |place: usize| self.streams[place % self.streams.len()];
        let pool = |place: usize| self.pools[place % self.pools.len()];
        let _ = self.core.device_mut().take_calls();
        self.reference.begin(Vec::new());
        match step {
            Step::Allocate(size, place) => self.allocate(size, stream(place))?,
            Step::AllocateIn(place, size, user) => {
                let (id, user) = (pool(place), stream(user));
                self.of_pool(
                    "begin_pool",
                    |core| core.begin_pool(id, PoolFilter::All),
                    |reference| reference.begin_pool(id, PoolFilter::All),
                )?;
                self.allocate(size, user)?;
                self.compare()?;
                let _ = self.core.device_mut().take_calls();
                self.of_pool("end_pool", |core| core.end_pool(id), |reference| reference.end_pool(id))?;
            }
            Step::Record(which, place, count) if !self.held.is_empty() => {
                let held = &self.held[which % self.held.len()];
                for stream in (0..count).map(|more| stream(place.wrapping_add(more))) {
                    self.core.record_stream(held, stream);
                    self.reference.begin(self.core.device_mut().take_calls());
                    self.reference.record_stream(held.address().get(), stream.get());
                }
            }
            Step::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                let address = allocation.address().get();
                let answer = self.core.free(allocation);
                self.reference.begin(self.core.device_mut().take_calls());
                let expected = self.reference.free(address);
                ensure(Law::Reference, answer.is_ok() && expected.is_ok(), || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::ProcessEvents => {
                let answer = self.core.process_events();
                self.reference.begin(self.core.device_mut().take_calls());
                let expected = self.reference.process_events();
                ensure(Law::Reference, answer == expected, || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::ReleaseCached => {
                let answer = self.core.release_cached();
                self.reference.begin(self.core.device_mut().take_calls());
                let expected = self.reference.release_cached();
                ensure(Law::Reference, answer == expected, || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::Create(place, count) => {
                for id in (0..count).map(|more| pool(place.wrapping_add(more))).collect::<Vec<_>>() {
                    self.of_pool("create_pool", |core| core.create_pool(id), |reference| reference.create_pool(id))?;
                }
            }
            Step::Release(place, count) => {
                for id in (0..count).map(|more| pool(place.wrapping_add(more))).collect::<Vec<_>>() {
                    if self.core.pool_use_count(id).is_ok_and(|uses| uses > 0) {
                        self.of_pool("release_pool", |core| core.release_pool(id), |reference| reference.release_pool(id))?;
                    }
                }
            }
            _ => self.turn(step),
        }
        self.compare()
    }

    /// Changes both allocators, or the device, in ways that make no call.
    fn turn(&mut self, step: Step) {
        match step {
            Step::Idle(is_idle) => self.core.device_mut().completion = Completion::Together(is_idle),
            Step::IdleStreams(streams) => self.core.device_mut().completion = Completion::OfStreams(streams),
            Step::ServeWhenOut(place, count, serves) => {
                for place in (0..count).map(|more| place.wrapping_add(more)) {
                    let id = self.pools[place % self.pools.len()];
                    self.core.set_pool_use_on_oom(id, serves);
                    self.reference.serve_when_out(id, serves);
                }
            }
            Step::Fill(is_full) => {
                let limit = is_full.then(|| self.core.heap().reserved());
                self.core.set_limit(limit);
                self.reference.set_limit(limit.map(Bytes::get));
            }
            _ => {}
        }
    }

    /// Makes the same call on both allocators, and compares the answers and everything else.
    fn of_pool<T: PartialEq + Debug>(
        &mut self,
        call: &str,
        tested: impl FnOnce(&mut Core) -> T,
        reference: impl FnOnce(&mut Reference) -> T,
    ) -> Result<(), Broken> {
        let answer = tested(&mut self.core);
        self.reference.begin(self.core.device_mut().take_calls());
        let expected = reference(&mut self.reference);
        ensure(Law::Reference, answer == expected, || format!("{call} returned {answer:?}, expected {expected:?}"))?;
        self.compare()?;
        self.reference.begin(Vec::new());
        Ok(())
    }

    fn allocate(&mut self, size: u64, stream: StreamId) -> Result<(), Broken> {
        let answer = self.core.allocate(Bytes(size), stream);
        self.reference.begin(self.core.device_mut().take_calls());
        let expected = self.reference.allocate(size, stream.get(), false);
        let seen = answer.as_ref().map(|allocation| allocation.address().get());
        // Other laws compare what errors say.
        let is_same = match (&seen, &expected) {
            (Err(seen), Err(expected)) => discriminant(*seen) == discriminant(expected),
            (Ok(seen), Ok(expected)) => seen == expected,
            _ => false,
        };
        ensure(Law::Reference, is_same, || format!("the answer is {seen:?}, expected {expected:?}"))?;
        self.held.extend(answer);
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Broken> {
        if let Some(wrong) = self.reference.end().or_else(|| self.reference.difference_from(self.core.stats())) {
            return Err(Broken::new(Law::Reference, wrong));
        }
        let told = &self.core.observer()[self.told..];
        ensure(Law::Reference, told == self.reference.trace, || {
            format!("the observer received {told:?}, expected {:?}", self.reference.trace)
        })?;
        self.told = self.core.observer().len();
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }
}
