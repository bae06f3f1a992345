//! Runs a program on the allocator and the reference allocator side by side: its requests, its use of the device, its
//! free-memory callbacks and its end, when everything is freed.
//!
//! Each callback performs one action when it is called, and records the answer.
//!
//! Some segments exist before the allocator does, as in a recording that begins in the middle of a run. Both allocators
//! adopt them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use parkade::device::DeviceBackend;
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{
    AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, AllocError, Allocation, Allocator, CheckpointError, FreeError,
    FreeMemoryCallback, InvalidFraction, PoolCheckpoint, PoolFilter,
};
use parkade_sim::FaultPlan;

use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, Needs, Simulation, TestDevice, Unable, WitnessedDevice};
use crate::law::{Broken, Law, ensure};
use crate::program::beside as compare;
use crate::program::beside::{Answer, Tested};
use crate::program::search::Draws;
use crate::program::step::{CALLBACKS, Order, POOLS, Scene, Step, pool_id};
use crate::reference_model::Reference;
use crate::reference_model::allocator::{Deed, Saved};

/// An action of a callback on the allocator.
#[derive(Debug)]
enum Doing {
    Free(Allocation),
    Order(Deed),
}

impl Doing {
    /// The allocation that the action would have freed.
    fn allocation(self) -> Option<Allocation> {
        match self {
            Doing::Free(allocation) => Some(allocation),
            Doing::Order(_) => None,
        }
    }
}

/// The actions of a callback, oldest first. Each is stored with whether the callback reports that it freed something.
type Stock = Arc<Mutex<VecDeque<(Doing, bool)>>>;

/// The answers that callbacks received.
type Log = Arc<Mutex<Vec<Answer>>>;

/// A callback that performs the oldest action in its stock. Callbacks that it registers take their actions from
/// `spare`.
fn callback(stock: &Stock, log: &Log, spare: &Stock) -> FreeMemoryCallback<WitnessedDevice<AnyDevice>, PyTorch, Vec<TraceEntry>> {
    let (stock, log, spare) = (Arc::clone(stock), Arc::clone(log), Arc::clone(spare));
    Box::new(move |core| {
        let next = stock.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some((doing, says)) = next else { return false };
        let answer = if let Doing::Order(Deed::Register(_)) = doing {
            core.register_free_memory_callback(callback(&spare, &log, &spare));
            Answer::Pool(Ok(()))
        } else {
            perform(core, doing)
        };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        says
    })
}

fn perform(core: &mut Tested<AnyDevice>, doing: Doing) -> Answer {
    match doing {
        Doing::Free(allocation) => {
            let address = allocation.address().get();
            Answer::Freed(address, core.free(allocation).err())
        }
        Doing::Order(Deed::Free(_) | Deed::Register(_)) => Answer::Nothing,
        Doing::Order(Deed::Allocate(bytes, stream)) => Answer::allocated(core.allocate(Bytes(bytes), StreamId(stream))),
        Doing::Order(Deed::ReleaseCached) => Answer::done(core.release_cached()),
        Doing::Order(Deed::Create(pool)) => Answer::Pool(core.create_pool(pool)),
        Doing::Order(Deed::Begin(pool, filter)) => Answer::Pool(core.begin_pool(pool, filter)),
        Doing::Order(Deed::End(pool)) => Answer::Pool(core.end_pool(pool)),
        Doing::Order(Deed::Release(pool)) => Answer::Pool(core.release_pool(pool)),
        Doing::Order(Deed::ReleaseCachedPool(pool)) => Answer::done(core.release_cached_pool(pool)),
    }
}

/// The maximum number of void allocations to remember.
const MOST_VOID: usize = 100;

/// Both allocators and the program's allocations.
pub(crate) struct Play {
    core: Tested<AnyDevice>,
    device: WitnessedDevice<AnyDevice>,
    reference: Reference,
    pub(crate) scene: Scene,
    streams: [StreamId; 4],
    held: Vec<Allocation>,
    /// Allocations that have been freed.
    freed: Vec<Allocation>,
    /// Allocations that are void forever: a restore took them back, or their segment is gone.
    gone: Vec<Allocation>,
    stocks: Vec<Stock>,
    log: Log,
    pub(crate) checkpoints: Vec<(PoolCheckpoint, Saved)>,
    followed: usize,
    steps: u64,
    expects_faults: bool,
}

impl Play {
    /// Creates both allocators, the first with these rules, the second with those of a release.
    pub(crate) fn new(backend: &AnyBackend, scene: &Scene, profile: &'static Profile) -> Result<Play, Unable> {
        let Scene { timing, places, free_waits, .. } = *scene;
        let needs = Needs { capacity: Some(Bytes(scene.capacity)), simulation: Simulation { timing, places, free_waits } };
        let device = backend.open(&needs)?;
        let streams = device.streams();
        let device = WitnessedDevice::new(device);
        let _ = device.list_calls();
        let text = scene.text(scene.settings);
        let settings = Settings::from_environment_as(&profile.dialect, text).expect("the strings in the table are valid");
        let mut reference = Reference::new(profile, settings.clone(), device.total_memory().get(), device.index());
        let rules = PyTorch::of(profile, settings);
        let mut core = Allocator::new(device.clone(), rules, Vec::new());
        let stocks: Vec<Stock> = (0..if scene.has_callbacks { CALLBACKS } else { 0 }).map(|_| Stock::default()).collect();
        let log = Log::default();
        reference.stocks = vec![VecDeque::new(); stocks.len()];
        if let Some((spare, first)) = stocks.split_last() {
            for (number, stock) in first.iter().enumerate() {
                core.register_free_memory_callback(callback(stock, &log, spare));
                reference.registered.push(number);
            }
        }
        let (held, freed, gone, checkpoints) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let scene = *scene;
        Ok(Play {
            core,
            device,
            reference,
            scene,
            streams,
            held,
            freed,
            gone,
            stocks,
            log,
            checkpoints,
            followed: 0,
            steps: 0,
            expects_faults: false,
        })
    }

    /// Makes driver calls fail according to a plan that counts calls from now on.
    pub(crate) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expects_faults = true;
        self.device.plan_faults(plan);
    }

    /// Adopts the segments with which the scene begins.
    pub(crate) fn adopt(&mut self) -> Result<(), Broken> {
        let Some(seed) = self.scene.adopted else { return Ok(()) };
        self.held = adopt(&self.device, &mut self.core, &mut self.reference, self.streams, seed)?;
        compare::states(&self.core, &self.reference)
    }

    /// Performs one step on both, and compares everything.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<(), Broken> {
        self.steps += 1;
        let _ = self.device.list_calls();
        let seen = self.act(step)?;
        self.reference.begin(self.device.list_calls());
        let expected = self.expect(step, &seen);
        if let Some(wrong) = self.reference.end() {
            return Err(Broken::new(Law::Reference, wrong));
        }
        let failed = compare::device_error(&seen).filter(|_| !self.expects_faults);
        ensure(Law::Faults, failed.is_none(), || format!("the device failed without a planned fault: {failed:?}"))?;
        self.take_over(&seen);
        self.compare_callbacks()?;
        ensure(Law::Reference, seen.same_as(&expected), || format!("the answer is {seen:?}, expected {expected:?}"))?;
        seen.check_texts(self.core.policy().profile(), &self.device.newest_processes())?;
        compare::traces(&self.core.observer()[self.followed..], &self.reference.trace)?;
        self.void_released();
        self.followed = self.core.observer().len();
        compare::states(&self.core, &self.reference)?;
        compare::queries(&self.core, &self.reference, self.steps, self.streams[self.steps as usize % 4])?;
        if self.steps.is_multiple_of(4) {
            compare::private_blocks(&self.core, &self.reference)?;
        }
        let (seen, expected) = (self.core.policy().collection_target(self.core.heap()), self.reference.collection_target());
        ensure(Law::Reference, seen == expected, || format!("garbage collection would release {seen:?}, expected {expected:?}"))?;
        if let Some(allocation) = self.held.first() {
            let (seen, expected) = (self.core.segment_of(allocation), self.reference.segment_of(allocation.address().get()));
            ensure(Law::Reference, seen == Some(expected), || format!("segment_of is {seen:?}, expected {expected:?}"))?;
        }
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }

    /// Compares the answers that callbacks received during the step. The program keeps the blocks that they allocated.
    fn compare_callbacks(&mut self) -> Result<(), Broken> {
        let seen = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        let expected: Vec<Answer> = std::mem::take(&mut self.reference.callback_answers).into_iter().map(compare::made).collect();
        seen.iter().for_each(|answer| self.take_over(answer));
        let same = seen.len() == expected.len() && seen.iter().zip(&expected).all(|(seen, expected)| seen.same_as(expected));
        ensure(Law::Reference, same, || format!("callbacks received {seen:?}, expected {expected:?}"))
    }

    /// Freed allocations whose segments no longer exist are void forever.
    fn void_released(&mut self) {
        let entries = self.core.observer()[self.followed..].iter();
        for entry in entries.filter(|entry| entry.action == TraceAction::SegmentFree) {
            let range = entry.address..entry.address + entry.size;
            self.gone.extend(self.freed.extract_if(.., |freed| range.contains(&freed.address().get())));
        }
        self.gone.truncate(MOST_VOID);
    }

    fn deed(&self, order: Order) -> Deed {
        let filter = |place: Option<usize>| place.map_or(PoolFilter::All, |place| PoolFilter::Stream(self.streams[place]));
        match order {
            Order::Allocate(bytes, place) => Deed::Allocate(bytes, self.streams[place].get()),
            Order::ReleaseCached => Deed::ReleaseCached,
            Order::Create(pool) => Deed::Create(POOLS[pool]),
            Order::Begin(pool, place) => Deed::Begin(POOLS[pool], filter(place)),
            Order::End(pool) => Deed::End(POOLS[pool]),
            Order::Release(pool) => Deed::Release(POOLS[pool]),
            Order::ReleaseCachedPool(pool) => Deed::ReleaseCachedPool(POOLS[pool]),
            Order::Register => Deed::Register(CALLBACKS - 1),
        }
    }

    /// Returns the held allocation that a number selects.
    fn pick(&self, which: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| which % self.held.len())
    }

    /// Does the same for a callback. A restore must not take the allocation back before the callback frees it, so the
    /// allocation is not one from a private pool.
    fn pick_for_stock(&self, which: usize) -> Option<usize> {
        self.pick(which).filter(|&which| self.reference.pool_of(self.held[which].address().get()) == PoolId::DEFAULT)
    }

    /// Performs the step on the allocator. The answer owns what the step hands out until both have answered.
    fn act(&mut self, step: &Step) -> Result<Answer, Broken> {
        let stream = |place: usize| self.streams[place];
        Ok(match *step {
            Step::Allocate(bytes, place) => Answer::allocated(self.core.allocate(Bytes(bytes), stream(place))),
            Step::AllocateRaw(bytes, place) => Answer::allocated(self.core.raw_allocate(Bytes(bytes), stream(place))),
            Step::Free(which) => match self.pick(which) {
                None => Answer::Nothing,
                Some(which) => {
                    let allocation = self.held.remove(which);
                    let address = allocation.address().get();
                    self.freed.push(allocation.in_a_clone());
                    Answer::Freed(address, self.core.free(allocation).err())
                }
            },
            Step::FreeAgain(which) if !self.gone.is_empty() => {
                let which = which % self.gone.len();
                let again = self.gone[which].in_a_clone();
                self.core.record_stream(&again, stream(which % 4));
                let is_known = self.core.segment_of(&again).is_some();
                let answer = self.core.free(again);
                let refused = answer == Err(FreeError::NotAllocated) && !is_known;
                ensure(Law::Reference, refused, || format!("an invalid allocation was accepted: {answer:?}"))?;
                Answer::Nothing
            }
            Step::Record(which, place) => match self.pick(which) {
                None => Answer::Nothing,
                Some(which) => {
                    self.core.record_stream(&self.held[which], stream(place));
                    Answer::Recorded(self.held[which].address().get())
                }
            },
            Step::Stock(which, callback) if callback < self.stocks.len() => match self.pick_for_stock(which) {
                None => Answer::Nothing,
                Some(which) => {
                    let allocation = self.held.remove(which);
                    let address = allocation.address().get();
                    self.stocks[callback]
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push_back((Doing::Free(allocation), true));
                    Answer::Stocked(callback, address)
                }
            },
            Step::Command(callback, order, says) if callback < self.stocks.len() => {
                let doing = Doing::Order(self.deed(order));
                self.stocks[callback].lock().unwrap_or_else(PoisonError::into_inner).push_back((doing, says));
                Answer::Nothing
            }
            Step::ProcessEvents => Answer::done(self.core.process_events().map_err(AllocError::Device)),
            Step::ReleaseCached => Answer::done(self.core.release_cached()),
            Step::Fraction(thousandths) => Answer::Limited(self.core.set_memory_fraction(f64::from(thousandths) / 1000.0)),
            Step::Limit(bytes) => {
                self.core.set_limit(bytes.map(Bytes));
                Answer::Nothing
            }
            Step::Apply(place) => {
                self.scene.apply(&mut self.core.policy_mut().settings, place);
                Answer::Nothing
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                Answer::Nothing
            }
            Step::ResetSums => {
                self.core.reset_accumulated_stats();
                Answer::Nothing
            }
            _ => return self.act_on_pools(step),
        })
    }

    /// The steps of [`Play::act`] that act on pools or on the device.
    fn act_on_pools(&mut self, step: &Step) -> Result<Answer, Broken> {
        let filter = |place: Option<usize>| place.map_or(PoolFilter::All, |place| PoolFilter::Stream(self.streams[place]));
        Ok(match *step {
            Step::CreatePool(pool) => Answer::Pool(self.core.create_pool(POOLS[pool])),
            Step::BeginPool(pool, place) => Answer::Pool(self.core.begin_pool(POOLS[pool], filter(place))),
            Step::EndPool(pool) => Answer::Pool(self.core.end_pool(POOLS[pool])),
            Step::ReleasePool(pool) => Answer::Pool(self.core.release_pool(POOLS[pool])),
            Step::ReleaseCachedPool(pool) => Answer::done(self.core.release_cached_pool(POOLS[pool])),
            Step::UseOnOom(pool, serves) => {
                self.core.set_pool_use_on_oom(POOLS[pool], serves);
                Answer::Nothing
            }
            Step::NoSplit(pool) => {
                self.core.set_pool_no_split(pool_id(pool));
                Answer::Nothing
            }
            Step::Capturing(is_capturing) => {
                self.core.set_capturing(is_capturing);
                Answer::Nothing
            }
            Step::Save(pool) => Answer::Saved(self.core.checkpoint_pool(POOLS[pool])),
            Step::Restore(which) if !self.checkpoints.is_empty() => {
                let which = which % self.checkpoints.len();
                Answer::restored(self.core.restore_pool(&self.checkpoints[which].0))
            }
            Step::LiveAre(pool, all) => {
                let live = self.live_of(pool, all);
                Answer::Asked(self.core.pool_live_allocations_are(POOLS[pool], &live))
            }
            Step::Snapshot => Answer::Seen(self.core.snapshot()),
            Step::SnapshotPool(pool) => Answer::Seen(self.core.snapshot_pool(POOLS[pool])),
            _ => {
                self.drive(step)?;
                Answer::Nothing
            }
        })
    }

    /// Returns the answer according to the rules.
    fn expect(&mut self, step: &Step, seen: &Answer) -> Answer {
        let reference = &mut self.reference;
        let stream = |place: usize| self.streams[place];
        let filter = |place: Option<usize>| place.map_or(PoolFilter::All, |place| PoolFilter::Stream(self.streams[place]));
        match (*step, seen) {
            (Step::Allocate(bytes, place), _) => Answer::expected(reference.allocate(bytes, stream(place).get(), false)),
            (Step::AllocateRaw(bytes, place), _) => Answer::expected(reference.allocate(bytes, stream(place).get(), true)),
            (Step::Free(_), Answer::Freed(address, _)) => {
                Answer::Freed(*address, reference.free(*address).err().map(FreeError::Device))
            }
            (Step::Record(_, place), Answer::Recorded(address)) => {
                reference.record_stream(*address, stream(place).get());
                Answer::Recorded(*address)
            }
            (Step::Stock(..), Answer::Stocked(callback, address)) => {
                reference.stocks[*callback].push_back((Deed::Free(*address), true));
                Answer::Stocked(*callback, *address)
            }
            (Step::Command(callback, order, says), _) if callback < self.stocks.len() => {
                let deed = self.deed(order);
                self.reference.stocks[callback].push_back((deed, says));
                Answer::Nothing
            }
            (Step::ProcessEvents, _) => Answer::done(reference.process_events().map_err(AllocError::Device)),
            (Step::ReleaseCached, _) => Answer::done(reference.release_cached()),
            (Step::Fraction(thousandths), _) => {
                let fraction = f64::from(thousandths) / 1000.0;
                Answer::Limited(if reference.set_fraction(fraction) { Ok(()) } else { Err(InvalidFraction(fraction)) })
            }
            (Step::ReleaseCachedPool(pool), _) => Answer::done(reference.release_cached_pool(POOLS[pool])),
            (Step::CreatePool(pool), _) => Answer::Pool(reference.create_pool(POOLS[pool])),
            (Step::BeginPool(pool, place), _) => Answer::Pool(reference.begin_pool(POOLS[pool], filter(place))),
            (Step::EndPool(pool), _) => Answer::Pool(reference.end_pool(POOLS[pool])),
            (Step::ReleasePool(pool), _) => Answer::Pool(reference.release_pool(POOLS[pool])),
            (Step::Save(pool), _) => {
                let answer = reference.save(POOLS[pool]);
                if let (Answer::Saved(Ok(checkpoint)), Ok(saved)) = (seen, &answer) {
                    self.checkpoints.push((checkpoint.clone(), saved.clone()));
                }
                compare::saved(answer)
            }
            (Step::Restore(which), Answer::Restored(..) | Answer::NotRestored(_)) => {
                let which = which % self.checkpoints.len();
                compare::restored(reference.restore(&self.checkpoints[which].1))
            }
            (Step::LiveAre(pool, all), _) => {
                let live: Vec<u64> = self.live_of(pool, all).into_iter().map(DeviceAddress::get).collect();
                Answer::Asked(self.reference.live_are(POOLS[pool], &live))
            }
            (Step::Snapshot, _) => Answer::Seen(reference.snapshot(None)),
            (Step::SnapshotPool(pool), _) => Answer::Seen(reference.snapshot(Some(POOLS[pool]))),
            _ => {
                self.turn(step);
                Answer::Nothing
            }
        }
    }

    /// Changes the reference allocator in ways that produce no answer.
    fn turn(&mut self, step: &Step) {
        let reference = &mut self.reference;
        match *step {
            Step::Limit(bytes) => reference.set_limit(bytes),
            Step::Apply(_) => reference.settings = self.core.policy().settings.clone(),
            Step::ResetPeaks => reference.reset_peaks(),
            Step::ResetSums => reference.reset_sums(),
            Step::UseOnOom(pool, serves) => reference.serve_when_out(POOLS[pool], serves),
            Step::NoSplit(pool) => reference.keep_whole(pool_id(pool)),
            Step::Capturing(is_capturing) => reference.set_capturing(is_capturing),
            _ => {}
        }
    }

    /// Keeps the allocations that were handed out, and drops those that a restore took back.
    fn take_over(&mut self, seen: &Answer) {
        match seen {
            Answer::Allocated(allocation) => self.held.push(allocation.in_a_clone()),
            Answer::Restored(freed, allocations) => {
                let (void, left): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut self.held).into_iter().partition(|held| freed.contains(&held.address().get()));
                self.held = left;
                self.gone.extend(void);
                self.held.extend(allocations.iter().map(Allocation::in_a_clone));
            }
            // The device failed midway: the pool's allocations have already been taken back.
            Answer::NotRestored(CheckpointError::Device(_)) => {
                let core = &self.core;
                let (left, void) = std::mem::take(&mut self.held).into_iter().partition(|held| core.segment_of(held).is_some());
                self.held = left;
                self.gone.extend::<Vec<_>>(void);
            }
            _ => {}
        }
    }

    /// Returns the program's allocations in a private pool, or all but the first of them.
    fn live_of(&self, pool: usize, all: bool) -> Vec<DeviceAddress> {
        let addresses = self.held.iter().map(Allocation::address);
        addresses.filter(|address| self.reference.pool_of(address.get()) == POOLS[pool]).skip(usize::from(!all)).collect()
    }

    /// Advances the device, which the allocators do not control.
    fn drive(&self, step: &Step) -> Result<(), Broken> {
        let mut device = self.device.steer();
        let answer = match *step {
            Step::Launch(place, duration) => device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => device.others_hold(Bytes(bytes)),
            Step::Pause(duration) => {
                device.pause(duration);
                Ok(())
            }
            _ => {
                self.complete(&mut device, step);
                Ok(())
            }
        };
        answer.map_err(|error| Broken::new(Law::Faults, format!("{step:?}: {error}")))
    }

    /// Completes work. A real device completes it without help, so this only waits.
    fn complete(&self, device: &mut AnyDevice, step: &Step) {
        let Some(device) = device.insight() else {
            if matches!(step, Step::Complete(_) | Step::CompleteOne(_) | Step::CompleteAll) {
                device.settle();
            }
            return;
        };
        match *step {
            Step::Complete(place) => device.complete(self.streams[place]),
            Step::CompleteOne(place) => device.complete_one(self.streams[place]),
            Step::CompleteAll => device.complete_all(),
            _ => {}
        }
    }

    /// Frees everything if the scene requires it, and drops the allocator. All memory must then be back on the device.
    pub(crate) fn finish(mut self) -> Result<(), Broken> {
        if self.scene.is_finished {
            self.give_everything_back()?;
        }
        let Play { core, device, held, .. } = self;
        device.plan_faults(FaultPlan::none());
        drop((core, held));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
        let used = device.steer().insight().map_or(Bytes::ZERO, |device| device.used_bytes());
        ensure(Law::Endings, used == Bytes::ZERO, || format!("{used} bytes were not returned to the device"))
    }

    fn give_everything_back(&mut self) -> Result<(), Broken> {
        self.apply(&Step::Capturing(false))?;
        for (pool, id) in POOLS.into_iter().enumerate() {
            self.apply(&Step::EndPool(pool))?;
            while self.core.pool_use_count(id).is_ok_and(|uses| uses > 0) {
                self.apply(&Step::ReleasePool(pool))?;
            }
        }
        while !self.held.is_empty() {
            self.apply(&Step::Free(0))?;
        }
        for stock in &self.stocks.clone() {
            let left = stock.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect::<Vec<_>>();
            self.held.extend(left.into_iter().filter_map(|(deed, _)| deed.allocation()));
        }
        self.reference.stocks.iter_mut().for_each(VecDeque::clear);
        while !self.held.is_empty() {
            self.apply(&Step::Free(0))?;
        }
        self.apply(&Step::CompleteAll)?;
        for _ in 0..4 {
            self.apply(&Step::ReleaseCached)?;
        }
        let reserved = self.core.heap().reserved();
        let may_stay = self.expects_faults || self.reference.keeps_memory();
        ensure(Law::Endings, may_stay || reserved == Bytes::ZERO, || format!("{reserved} bytes are still reserved"))
    }
}

/// Adopts up to three segments, drawn at random from a seed. Returns their allocations.
pub(crate) fn adopt(
    device: &WitnessedDevice<AnyDevice>,
    core: &mut Tested<AnyDevice>,
    reference: &mut Reference,
    streams: [StreamId; 4],
    seed: u64,
) -> Result<Vec<Allocation>, Broken> {
    let (mut draws, mut held) = (Draws::new(seed), Vec::new());
    for _ in 0..=draws.below(3) {
        let class = if draws.below(2) == 0 { PoolClass::Small } else { PoolClass::Large };
        let pool = if draws.below(3) == 0 { POOLS[0] } else { PoolId::DEFAULT };
        if pool != PoolId::DEFAULT && reference.uses(pool).is_err() {
            let answers = (core.create_pool(pool), reference.create_pool(pool));
            ensure(Law::Reference, answers.0 == answers.1, || format!("create_pool returned {answers:?}"))?;
        }
        let stream = streams[draws.below(4) as usize];
        let page = (draws.below(2) == 0).then_some(match class {
            PoolClass::Small => 2 * MIB,
            PoolClass::Large => reference.settings.large_segment_bytes,
        });
        let blocks = match page {
            None if class == PoolClass::Small => filled(&mut draws, 2 * MIB, MIB / 2, MIB),
            None => {
                let size = (6 + draws.below(10)) * 2 * MIB;
                filled(&mut draws, size, 9 * MIB, 2 * MIB)
            }
            Some(page) => expandable(&mut draws, page),
        };
        let mut handles = VecDeque::new();
        let Some(address) = take(device, &blocks, page, &mut handles) else { return Ok(held) };
        let segment = AdoptedSegment { address, stream, pool, class, page: page.map(Bytes), blocks };
        for (wrong, error) in wrong(&segment) {
            let answer = core.adopt(&wrong, &mut |_, _| unreachable!("a refused segment asks for no memory"));
            ensure(Law::Reference, answer == Err(error), || format!("{wrong:?} returned {answer:?}, expected {error:?}"))?;
        }
        let mut asked = Vec::new();
        let answer = core.adopt(&segment, &mut |address, pages| {
            asked.push((address.get(), pages));
            (handles.pop_front().expect("there is one handle for each mapped page"), 1)
        });
        let runs = page.map_or(Vec::new(), |page| asked_for(&segment, page));
        ensure(Law::Reference, asked == runs, || {
            format!("memory for {segment:?} was requested at {asked:x?}, expected {runs:x?}")
        })?;
        let expected = reference.adopt(&segment);
        let allocations = answer.map_err(|error| Broken::new(Law::Reference, format!("{segment:?}: {error}")))?;
        let same = allocations.iter().map(|allocation| allocation.address().get()).eq(expected.iter().copied());
        ensure(Law::Reference, same && handles.is_empty(), || format!("{segment:?} has the allocations {allocations:?}"))?;
        held.extend(allocations);
        misplaced(core, &segment)?;
    }
    Ok(held)
}

fn block(size: u64, content: AdoptedContent) -> AdoptedBlock {
    AdoptedBlock { size: Bytes(size), content }
}

/// Checks that the allocator refuses a segment that already exists, or that begins or ends inside
/// another one.
fn misplaced(core: &mut Tested<AnyDevice>, segment: &AdoptedSegment) -> Result<(), Broken> {
    let bytes: u64 = segment.blocks.iter().map(|block| block.size.get()).sum();
    let (base, free) = (segment.address.get(), |size: u64| vec![block(size, AdoptedContent::Free)]);
    let at = |address: u64, size: u64| AdoptedSegment {
        address: DeviceAddress(address),
        page: None,
        blocks: free(size),
        ..segment.clone()
    };
    for wrong in
        [segment.clone(), at(base + bytes - 512, 1024), at(base - 512, 1024), at(base - 512, bytes + 1024), at(base + 512, 512)]
    {
        let answer = core.adopt(&wrong, &mut |_, _| unreachable!("a refused segment asks for no memory"));
        let expected = Err(AdoptError::Misplaced);
        ensure(Law::Reference, answer == expected, || format!("beside {segment:?}, {wrong:?} returned {answer:?}"))?;
    }
    Ok(())
}

/// Returns the memory requests for an expandable segment: for each mapped page, the number of consecutive mapped pages
/// from there.
fn asked_for(segment: &AdoptedSegment, page: u64) -> Vec<(u64, u64)> {
    let base = segment.address.get();
    let total: u64 = segment.blocks.iter().map(|block| block.size.get()).sum();
    let mut is_mapped = vec![true; (total / page) as usize];
    let mut offset = 0;
    for block in &segment.blocks {
        if block.content == AdoptedContent::Unmapped {
            is_mapped[(offset / page) as usize..((offset + block.size.get()) / page) as usize].fill(false);
        }
        offset += block.size.get();
    }
    let left = |place: usize| is_mapped[place..].iter().take_while(|mapped| **mapped).count() as u64;
    (0..is_mapped.len()).filter(|&place| is_mapped[place]).map(|place| (base + place as u64 * page, left(place))).collect()
}

/// Returns blocks that fill these bytes: allocated ones, and free ones that are not adjacent. Some of them end at a
/// multiple of `round`.
fn filled(draws: &mut Draws, bytes: u64, largest: u64, round: u64) -> Vec<AdoptedBlock> {
    let (mut blocks, mut left): (Vec<AdoptedBlock>, u64) = (Vec::new(), bytes);
    while left > 0 {
        let size = match draws.below(4) {
            0 => round - (bytes - left) % round,
            1 => 2 * round - (bytes - left) % round,
            _ => (1 + draws.below(largest / 512)) * 512,
        };
        let size = size.min(left);
        let may_be_free = blocks.last().is_none_or(|last| last.content != AdoptedContent::Free);
        let content = if may_be_free && draws.below(2) == 0 {
            AdoptedContent::Free
        } else {
            AdoptedContent::Allocated(Bytes(size - draws.below(512)))
        };
        blocks.push(block(size, content));
        left -= size;
    }
    blocks
}

/// Returns stretches of one or two pages, alternately with and without memory.
fn expandable(draws: &mut Draws, page: u64) -> Vec<AdoptedBlock> {
    let (mut blocks, mut is_mapped) = (Vec::new(), draws.below(2) == 0);
    for _ in 0..2 + draws.below(4) {
        let bytes = page * (1 + draws.below(3));
        if is_mapped {
            blocks.extend(filled(draws, bytes, page / 2, page));
        } else {
            blocks.push(block(bytes, AdoptedContent::Unmapped));
        }
        is_mapped = !is_mapped;
    }
    blocks
}

/// Takes the segment's memory from the device without the allocator's knowledge. Returns `None` if the device has no
/// room for it.
fn take(
    device: &WitnessedDevice<AnyDevice>,
    blocks: &[AdoptedBlock],
    page: Option<u64>,
    handles: &mut VecDeque<AnyPhysical>,
) -> Option<DeviceAddress> {
    let mut device = device.steer();
    let total = blocks.iter().map(|block| block.size.get()).sum();
    let Some(page) = page else { return device.malloc(Bytes(total)).ok() };
    let base = device.reserve(Bytes(total)).ok()?;
    let mut offset = 0;
    let mut taken: Vec<u64> = Vec::new();
    for block in blocks {
        let end = offset + block.size.get();
        if block.content != AdoptedContent::Unmapped {
            for place in offset / page..end.div_ceil(page) {
                if taken.last().is_none_or(|&last| last < place) {
                    taken.push(place);
                }
            }
        }
        offset = end;
    }
    for place in &taken {
        let address = base.offset(Bytes(place * page));
        let Ok(handle) = device.create(Bytes(page)) else {
            return give_back(&mut device, base, total, &taken, page, handles);
        };
        device.map(address, Bytes(page), &handle).and_then(|()| device.set_access(address, Bytes(page))).ok()?;
        handles.push_back(handle);
    }
    Some(base)
}

/// Returns to the device the memory that was taken for a segment before memory ran out.
fn give_back(
    device: &mut AnyDevice,
    base: DeviceAddress,
    total: u64,
    taken: &[u64],
    page: u64,
    handles: &mut VecDeque<AnyPhysical>,
) -> Option<DeviceAddress> {
    for (handle, place) in handles.drain(..).zip(taken) {
        device.unmap(base.offset(Bytes(place * page)), Bytes(page)).ok()?;
        device.release(handle).ok()?;
    }
    device.unreserve(base, Bytes(total)).ok()?;
    None
}

/// Returns segments like this one that cannot be adopted, each with its error.
fn wrong(segment: &AdoptedSegment) -> Vec<(AdoptedSegment, AdoptError)> {
    let with = |blocks: Vec<AdoptedBlock>| AdoptedSegment { blocks, ..segment.clone() };
    let free = |size: u64| block(size, AdoptedContent::Free);
    let hole = |size: u64| block(size, AdoptedContent::Unmapped);
    let page = segment.page.map_or(2 * MIB, Bytes::get);
    let mut wrong = vec![
        (with(Vec::new()), AdoptError::Empty),
        (with(vec![free(page), block(0, AdoptedContent::Allocated(Bytes(0)))]), AdoptError::Empty),
        (with(vec![free(512), free(page - 512)]), AdoptError::NotCoalesced),
        (with(vec![hole(page), hole(page)]), AdoptError::NotCoalesced),
        (with(vec![free(u64::MAX), block(page, AdoptedContent::Allocated(Bytes(1)))]), AdoptError::TooLarge),
        (AdoptedSegment { address: DeviceAddress(u64::MAX - page + 512), ..with(vec![free(page)]) }, AdoptError::TooLarge),
        (with(vec![free(512), hole(page), free(page - 512)]), AdoptError::NotWholePages),
        (AdoptedSegment { page: None, ..with(vec![hole(page)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { pool: PoolId(9, 9), ..segment.clone() }, AdoptError::UnknownPool),
    ];
    wrong.extend([
        (with(vec![hole(page - 512), free(512)]), AdoptError::NotWholePages),
        (with(vec![free(512), hole(page - 512)]), AdoptError::NotWholePages),
        (with(vec![free(page), hole(512), free(page - 512)]), AdoptError::NotWholePages),
        (AdoptedSegment { page: Some(Bytes(0)), ..with(vec![free(page)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { page: Some(Bytes(page)), ..with(vec![free(page + 512)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { page: None, ..with(vec![free(1 << 63)]) }, AdoptError::TooMuch),
        (AdoptedSegment { address: DeviceAddress(segment.address.get() + 256), ..with(vec![free(page)]) }, AdoptError::Misplaced),
        (AdoptedSegment { address: DeviceAddress(0), ..with(vec![free(page)]) }, AdoptError::Misplaced),
    ]);
    wrong
}
