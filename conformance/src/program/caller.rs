//! The caller: performs steps on the allocator under test and on its device, and keeps what the allocator hands out.
//!
//! The steps are also kept as a script for `parkade ops`. Free-memory callbacks each perform one action when the allocator calls
//! them, and record the answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parkade::checkpoint::{PoolCheckpoint, SavedState};
use parkade::device::BackendError;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, BlockView, CheckpointError, FreeError, FreeMemoryCallback, PoolFilter};
use parkade_sim::{CallName, FaultError, FaultPlan};

use super::answer::{Answer, Held};
use super::changed::changed;
use super::script::Script;
use super::step::{CALLBACKS, OUT_OF_MEMORY, Order, POOLS, Setup, Spot, Step, pool_id};
use super::watched::{Core, Tested, Watched};
use crate::backend::{
    AnyBackend, AnyDevice, BrokenHandle, Holdings, MadeCall, Needs, Simulation, TestDevice, Unable, WitnessedDevice,
};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Reference;
use crate::reference_model::allocator::Deed;

/// The maximum number of void allocations to remember.
const MOST_VOID: usize = 100;

/// The allocator under test, its device, and everything that the program holds.
pub(crate) struct Caller {
    pub(crate) core: Core,
    pub(crate) device: WitnessedDevice<AnyDevice>,
    pub(super) streams: [StreamId; 4],
    pub(super) setup: Setup,
    pub(crate) held: Vec<Held>,
    /// Allocations that have been freed.
    freed: Vec<Allocation>,
    /// Allocations that are void forever: a restore took them back, or their segment is gone.
    gone: Vec<Allocation>,
    pub(super) callbacks: Callbacks,
    pub(super) checkpoints: Vec<PoolCheckpoint>,
    /// The number of steps so far.
    pub(super) steps: u64,
    /// The number of trace entries before the current step.
    before: usize,
    /// The address for which the newest [`Step::AllocateAt`] asked.
    pub(super) asked_at: DeviceAddress,
    /// The device calls that the allocator made in the current step.
    pub(super) calls: Vec<MadeCall>,
    /// The handles that it broke in the current step.
    pub(super) broken: Vec<BrokenHandle>,
    /// The number of words that memory was filled with so far.
    pub(super) words: u32,
    pub(super) script: Script,
}

impl Caller {
    /// Creates an empty allocator on an idle device.
    ///
    /// # Errors
    /// If such a device is not available.
    pub(super) fn new(
        backend: &AnyBackend,
        setup: &Setup,
        (policy, name): (Tested, Option<&str>),
        is_watched: bool,
    ) -> Result<Caller, Unable> {
        let Setup { timing, places, free_waits, capacity, .. } = *setup;
        let needs = Needs { capacity: Some(Bytes(capacity)), simulation: Simulation { timing, places, free_waits } };
        let device = backend.open(&needs)?;
        let streams = device.streams();
        let device = WitnessedDevice::new(device);
        // A real device reports its full size even if a ballast holds most of it, so a policy that takes a fraction of the
        // total would keep requesting memory that is not available.
        let device = if !matches!(policy, Tested::PyTorch(_)) { device.claiming(Bytes(capacity)) } else { device };
        let _ = device.list_calls();
        let policy = Watched::new(policy, is_watched);
        let script = Script::new(setup, &policy, name);
        let mut core = Allocator::new(device.clone(), policy, Vec::new());
        let callbacks = if setup.has_callbacks { Callbacks::register(&mut core) } else { Callbacks::default() };
        let (held, freed, gone, checkpoints) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (calls, broken) = (Vec::new(), Vec::new());
        let (setup, steps, before, words) = (*setup, 0, 0, 0);
        Ok(Caller {
            core,
            device,
            streams,
            setup,
            held,
            freed,
            gone,
            callbacks,
            checkpoints,
            steps,
            before,
            asked_at: DeviceAddress(0),
            calls,
            broken,
            words,
            script,
        })
    }

    /// Returns a clone of the allocator, on a copy of the device, with everything that the program holds; `None` if the device
    /// cannot be copied. Callbacks are not cloned.
    pub(super) fn duplicate(&self) -> Option<Caller> {
        let device = self.device.duplicate()?;
        let mut core = self.core.clone();
        *core.device_mut() = device.clone();
        let again = |list: &[Allocation]| list.iter().map(Allocation::in_a_clone).collect();
        Some(Caller {
            core,
            device,
            streams: self.streams,
            setup: self.setup,
            held: self.held.clone(),
            freed: again(&self.freed),
            gone: again(&self.gone),
            callbacks: Callbacks::default(),
            checkpoints: self.checkpoints.clone(),
            steps: self.steps,
            before: self.before,
            asked_at: self.asked_at,
            calls: self.calls.clone(),
            broken: self.broken.clone(),
            words: self.words,
            script: self.script.of_clone(),
        })
    }

    /// Makes driver calls fail according to a plan that counts calls from now on.
    pub(super) fn plan_faults(&self, plan: FaultPlan) {
        self.device.plan_faults(plan);
    }

    /// Returns the trace entries of the current step.
    pub(crate) fn entries(&self) -> &[TraceEntry] {
        &self.core.observer()[self.before..]
    }

    /// Returns how often the allocator called this function with success in the current step.
    pub(super) fn done(&self, name: CallName) -> usize {
        self.calls.iter().filter(|call| call.name == name && call.done).count()
    }

    /// Returns the held allocation that a number selects.
    pub(super) fn pick(&self, which: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| which % self.held.len())
    }

    /// Does the same for a callback. A restore must not take the allocation back before the callback frees it, so the
    /// allocation is not one from a private pool.
    fn pick_for_stock(&self, which: usize) -> Option<usize> {
        self.pick(which).filter(|&which| self.held[which].pool == PoolId::DEFAULT)
    }

    pub(super) fn filter(&self, place: Option<usize>) -> PoolFilter {
        place.map_or(PoolFilter::All, |place| PoolFilter::Stream(self.streams[place]))
    }

    /// Returns what a callback does.
    pub(super) fn deed(&self, order: Order) -> Deed {
        match order {
            Order::Allocate(bytes, place) => Deed::Allocate(bytes, self.streams[place].get()),
            Order::ReleaseCached => Deed::ReleaseCached,
            Order::Create(pool) => Deed::Create(POOLS[pool]),
            Order::Begin(pool, place) => Deed::Begin(POOLS[pool], self.filter(place)),
            Order::End(pool) => Deed::End(POOLS[pool]),
            Order::Release(pool) => Deed::Release(POOLS[pool]),
            Order::ReleaseCachedPool(pool) => Deed::ReleaseCachedPool(POOLS[pool]),
            Order::Register => Deed::Register(CALLBACKS - 1),
        }
    }

    /// Returns the addresses of the program's allocations in a private pool, or of all but the first of them.
    pub(super) fn live_of(&self, pool: usize, all: bool) -> Vec<DeviceAddress> {
        let own = self.held.iter().filter(|held| held.pool == POOLS[pool]);
        own.map(Held::address).skip(usize::from(!all)).collect()
    }

    /// Performs a step on the allocator or on the device.
    ///
    /// # Errors
    /// If the device fails where the allocator is not involved or hands out a range twice, or the allocator accepts an invalid
    /// allocation.
    pub(super) fn perform(&mut self, step: Step) -> Result<Answer, Broken> {
        self.steps += 1;
        self.device.begin_operation();
        self.before = self.core.observer().len();
        if let Step::AllocateAt(bytes, _, which, spot) = step {
            self.asked_at = self.address_of(bytes, which, spot);
        }
        self.script.push(step, self.asked_at, &self.held, self.checkpoints.len());
        let ranges = self.device.reserved_ranges().into_keys().collect();
        self.core.policy_mut().begin(ranges);
        drop(self.device.list_calls());
        let answer = self.act(step)?;
        self.broken = self.device.broken_so_far();
        self.calls = self.device.list_calls();
        self.callbacks.listen();
        // Nothing can be expected of the allocator, or compared, on such a device.
        self.device.overlap().map_or(Ok(answer), |overlap| Err(Broken::new(Law::Device, overlap)))
    }

    /// The answer owns what the step hands out.
    fn act(&mut self, step: Step) -> Result<Answer, Broken> {
        let stream = |place: usize| self.streams[place];
        Ok(match step {
            Step::Allocate(bytes, place) => Answer::allocated(self.core.allocate(Bytes(bytes), stream(place))),
            Step::AllocateRaw(bytes, place) => Answer::allocated(self.core.raw_allocate(Bytes(bytes), stream(place))),
            Step::AllocateAt(bytes, place, ..) => {
                Answer::allocated_at(self.core.allocate_at(Bytes(bytes), stream(place), self.asked_at))
            }
            Step::Free(which) => match self.pick(which) {
                None => Answer::Nothing,
                Some(which) => {
                    let Held { allocation, .. } = self.held.remove(which);
                    let address = allocation.address().get();
                    self.freed.push(allocation.in_a_clone());
                    Answer::Freed(address, self.core.free(allocation).err())
                }
            },
            Step::FreeAgain(which) if !self.gone.is_empty() => {
                let which = which % self.gone.len();
                self.free_again(which, stream(which % 4))?
            }
            Step::Record(which, place) | Step::Use(which, place) => match self.pick(which) {
                None => Answer::Nothing,
                Some(which) => {
                    self.record(which, stream(place));
                    Answer::Recorded(self.held[which].address().get())
                }
            },
            Step::Stock(which, callback) if self.callbacks.has(callback) => match self.pick_for_stock(which) {
                None => Answer::Nothing,
                Some(which) => {
                    let Held { allocation, .. } = self.held.remove(which);
                    let address = allocation.address().get();
                    self.callbacks.stock(callback, allocation);
                    Answer::Stocked(callback, address)
                }
            },
            Step::Command(callback, order, says) if self.callbacks.has(callback) => {
                self.callbacks.command(callback, self.deed(order), says);
                Answer::Nothing
            }
            Step::ProcessEvents => Answer::Done(self.core.process_events().map_err(AllocError::Device)),
            Step::ReleaseCached => Answer::Done(self.core.release_cached()),
            Step::Fraction(thousandths) => Answer::Limited(self.core.set_memory_fraction(f64::from(thousandths) / 1000.0)),
            _ => return self.turn(step),
        })
    }

    /// Frees an allocation that is void: the allocator must refuse it.
    fn free_again(&mut self, which: usize, user: StreamId) -> Result<Answer, Broken> {
        self.refuse(&self.gone[which].in_a_clone(), user).map(|()| Answer::Nothing)
    }

    /// Offers an allocation that the allocator has not handed out, or has taken back: it must refuse it.
    pub(super) fn refuse(&mut self, strange: &Allocation, user: StreamId) -> Result<(), Broken> {
        self.core.record_stream(strange, user);
        let is_known = self.core.segment_of(strange).is_some();
        let answer = self.core.free(strange.in_a_clone());
        let refused = matches!(&answer, Err(FreeError::NotAllocated(again)) if again == strange) && !is_known;
        ensure(Law::Reference, refused, || format!("an invalid allocation was accepted: {answer:?}"))
    }

    /// Tells the allocator that a stream uses an allocation.
    pub(super) fn record(&mut self, which: usize, stream: StreamId) {
        let held = &mut self.held[which];
        self.core.record_stream(&held.allocation, stream);
        if stream != held.home {
            held.is_captured |= self.core.heap().is_deferring();
            if !held.told.contains(&stream.get()) {
                held.told.push(stream.get());
            }
        }
    }

    /// The steps that act on pools or on the device, or change how the allocator works.
    fn turn(&mut self, step: Step) -> Result<Answer, Broken> {
        match step {
            Step::CreatePool(pool) => return Ok(Answer::Pool(self.core.create_pool(POOLS[pool]))),
            Step::BeginPool(pool, place) => return Ok(Answer::Pool(self.core.begin_pool(POOLS[pool], self.filter(place)))),
            Step::BeginChosen(pool) => return Ok(Answer::Pool(self.core.begin_pool(POOLS[pool], PoolFilter::Chosen))),
            Step::Choose(pool) => self.core.choose_pool(pool.map(|pool| POOLS[pool])),
            Step::BeginGraph(_) | Step::EndGraph(_) | Step::GraphWork(_) | Step::GraphWait(..) => return Ok(self.capture(step)),
            Step::EndPool(pool) => return Ok(Answer::Pool(self.core.end_pool(POOLS[pool]))),
            Step::ReleasePool(pool) => return Ok(Answer::Pool(self.core.release_pool(POOLS[pool]))),
            Step::ReleaseCachedPool(pool) => return Ok(Answer::Done(self.core.release_cached_pool(POOLS[pool]))),
            Step::Save(pool) => {
                let answer = self.core.checkpoint_pool(POOLS[pool]);
                self.checkpoints.extend(answer.clone());
                return Ok(Answer::Saved(answer));
            }
            Step::Restore(_) | Step::RestoreChanged(..) => {
                let Some(checkpoint) = self.restored_by(step) else { return Ok(Answer::Nothing) };
                return Ok(Answer::restored(self.core.restore_pool(&checkpoint)));
            }
            Step::LiveAre(pool, all) => {
                let live = self.live_of(pool, all);
                return Ok(Answer::Asked(self.core.pool_live_allocations_are(POOLS[pool], &live)));
            }
            Step::Snapshot => return Ok(Answer::Seen(self.core.snapshot())),
            Step::SnapshotPool(pool) => return Ok(Answer::Seen(self.core.snapshot_pool(POOLS[pool]))),
            Step::UseOnOom(pool, serves) => self.core.set_pool_use_on_oom(POOLS[pool], serves),
            Step::NoSplit(pool) => self.core.set_pool_no_split(pool_id(pool)),
            Step::Capturing(is_capturing) => self.core.set_capturing(is_capturing),
            Step::Limit(bytes) => self.core.set_limit(bytes.map(Bytes)),
            Step::Apply(place) => {
                let setup = self.setup;
                if let Some(settings) = self.core.policy_mut().settings_mut() {
                    setup.apply(settings, place);
                }
            }
            Step::ResetPeaks => self.core.reset_peak_stats(),
            Step::ResetSums => self.core.reset_accumulated_stats(),
            // A real device captures nothing.
            Step::HideGraph(place, hidden) if self.device.steer().insight().is_some() => {
                self.device.hide_capture(self.streams[place], hidden);
                return Ok(Answer::Captured(false));
            }
            Step::FailNext(n, code) => {
                let error = if code == OUT_OF_MEMORY { FaultError::OutOfMemory } else { FaultError::Code(code) };
                self.device.fail_from_now(n, error);
            }
            _ => self.drive(step).map_err(|error| Broken::new(Law::Faults, format!("{step:?}: {error}")))?,
        }
        Ok(Answer::Nothing)
    }

    /// Advances the device, which the allocator does not control. A real device completes work without help, so this waits.
    fn drive(&self, step: Step) -> Result<(), BackendError> {
        let mut device = self.device.steer();
        match step {
            Step::Launch(place, duration) => return device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => return device.others_hold(Bytes(bytes)),
            Step::Pause(duration) => device.pause(duration),
            Step::Complete(_) | Step::CompleteOne(_) | Step::CompleteAll if device.insight().is_none() => device.settle(),
            _ => {
                let Some(device) = device.insight() else { return Ok(()) };
                match step {
                    Step::Complete(place) => device.complete(self.streams[place]),
                    Step::CompleteOne(place) => {
                        device.complete_one(self.streams[place]);
                    }
                    Step::CompleteAll => device.complete_all(),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the checkpoint that a step restores, if there is one.
    pub(super) fn restored_by(&self, step: Step) -> Option<PoolCheckpoint> {
        let (Step::Restore(which) | Step::RestoreChanged(which, _)) = step else { return None };
        let checkpoint = self.checkpoints.get(which % self.checkpoints.len().max(1))?;
        Some(if let Step::RestoreChanged(_, how) = step { changed(checkpoint, how) } else { checkpoint.clone() })
    }

    /// Returns the streams that the device captures, if it is simulated.
    pub(super) fn captured_streams(&self) -> Vec<StreamId> {
        let mut device = self.device.steer();
        let is_captured = |stream: &StreamId| device.insight().is_some_and(|device| device.is_captured(*stream));
        self.streams.iter().copied().filter(is_captured).collect()
    }

    /// Builds a captured graph, if the device is simulated.
    fn capture(&self, step: Step) -> Answer {
        let stream = |place: usize| self.streams[place];
        let mut device = self.device.steer();
        let Some(device) = device.insight() else { return Answer::Nothing };
        Answer::Captured(match step {
            Step::BeginGraph(place) => {
                device.begin_capture(stream(place));
                true
            }
            Step::GraphWork(place) => device.capture_work(stream(place)),
            Step::GraphWait(place, other) => device.capture_wait(stream(place), stream(other)),
            Step::EndGraph(place) => {
                device.end_capture(stream(place));
                false
            }
            _ => return Answer::Nothing,
        })
    }

    /// Returns the address that a spot is: in or beside one of the free blocks, or in no block if there are none.
    fn address_of(&self, bytes: u64, which: usize, spot: Spot) -> DeviceAddress {
        let heap = self.core.heap();
        let free: Vec<BlockView> = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool)).collect();
        let Some(block) = free.get(which % free.len().max(1)) else { return DeviceAddress(512) };
        let (start, size) = (block.address.get(), block.size.get());
        DeviceAddress(match spot {
            Spot::Start(more) => start.wrapping_add_signed(more),
            Spot::End(more) => (start + size).wrapping_sub(bytes.div_ceil(512).wrapping_mul(512)).wrapping_add_signed(more),
            Spot::Middle => start + size / 1024 * 512,
        })
    }

    /// Keeps the allocations that were handed out, and drops those that a restore took back.
    pub(super) fn take_over(&mut self, step: Step, seen: &Answer) {
        match seen {
            Answer::Allocated(allocation) => {
                let (bytes, place, is_raw) = match step {
                    Step::Allocate(bytes, place) => (bytes, place, false),
                    Step::AllocateRaw(bytes, place) => (bytes, place, true),
                    Step::AllocateAt(bytes, place, ..) => (bytes, place, false),
                    // A callback's allocation.
                    _ => (0, 0, false),
                };
                let address = allocation.address().get();
                let is_it = |entry: &&TraceEntry| entry.action == TraceAction::Alloc && entry.address == address;
                let pool = self.entries().iter().rfind(is_it).map_or(PoolId::DEFAULT, |entry| entry.pool);
                let home = self.streams[place];
                self.hold(allocation.in_a_clone(), is_raw, bytes, home, pool);
            }
            Answer::Restored(freed, allocations) => {
                self.drop_void(|held, _| freed.contains(&held.address().get()));
                if let Some(checkpoint) = self.restored_by(step) {
                    let (pool, saved) = (checkpoint.pool, saved_allocations(&checkpoint));
                    for (place, allocation) in allocations.iter().enumerate() {
                        let (size, home) =
                            saved.get(place).map_or((Bytes(0), StreamId::DEFAULT), |&(_, size, stream)| (size, stream));
                        self.hold(allocation.in_a_clone(), false, size.get(), home, pool);
                    }
                }
            }
            // The device failed midway: the pool's allocations have already been taken back.
            Answer::NotRestored(CheckpointError::Device(_)) => {
                self.drop_void(|held, core| core.segment_of(&held.allocation).is_none());
            }
            _ => {}
        }
    }

    /// Does the same for what callbacks got, and remembers what is void forever: freed allocations whose segments are gone.
    pub(super) fn end_step(&mut self) {
        for answer in std::mem::take(&mut self.callbacks.heard) {
            self.take_over(Step::Snapshot, &answer);
        }
        let entries = self.core.observer()[self.before..].iter();
        for entry in entries.filter(|entry| entry.action == TraceAction::SegmentFree) {
            let range = entry.address..entry.address + entry.size;
            self.gone.extend(self.freed.extract_if(.., |freed| range.contains(&freed.address().get())));
        }
        self.gone.truncate(MOST_VOID);
    }

    /// Adds a live allocation.
    pub(super) fn hold(&mut self, allocation: Allocation, is_raw: bool, requested: u64, home: StreamId, pool: PoolId) {
        let name = self.script.next_name();
        let (last, holds, told, is_captured) = (home, Vec::new(), Vec::new(), false);
        self.held.push(Held { allocation, name, is_raw, requested, home, pool, last, holds, told, is_captured });
    }

    fn drop_void(&mut self, is_void: impl Fn(&Held, &Core) -> bool) {
        let core = &self.core;
        let void = self.held.extract_if(.., |held| is_void(held, core)).map(|held| held.allocation);
        self.gone.extend(void);
    }

    /// Takes back what callbacks have not freed.
    pub(super) fn recall(&mut self) {
        for allocation in self.callbacks.leave() {
            self.hold(allocation, false, 0, StreamId::DEFAULT, PoolId::DEFAULT);
        }
    }

    /// Drops the allocator in its current state while driver calls fail according to a plan, and checks that everything was
    /// returned to the device, except the segments that it refused to take back. Returns the time of the driver calls in
    /// nanoseconds; 0 on a real device, which does not report it.
    ///
    /// # Errors
    /// If anything else is left on the device.
    pub(crate) fn abandon(self, plan: FaultPlan) -> Result<u64, Broken> {
        let Caller { core, device, held, .. } = self;
        device.plan_faults(plan);
        drop(device.list_calls());
        if device.steer().insight().is_none() {
            // Only a simulated device reports whether the allocator has waited for the work on what the program has not freed.
            device.steer().settle();
        }
        // Under other policies, blocks have changed streams, and ranges are shared.
        let is_pytorch = core.policy().pytorch().is_some();
        let has_ranges = !core.expandable_segments().is_empty();
        drop((core, held));
        let calls = device.list_calls();
        let mut waits: Vec<u64> =
            calls.iter().filter(|call| call.name == CallName::StreamSynchronize).map(|call| call.stream).collect();
        waits.sort_unstable();
        let is_needless = waits.windows(2).any(|pair| pair[0] == pair[1]) || (!has_ranges && !waits.is_empty());
        ensure(Law::Endings, !is_pytorch || !is_needless, || {
            format!("the drop waited for the streams {waits:x?}, which is more than it needs")
        })?;
        let refused = calls.iter().filter(|call| call.name == CallName::Free && !call.done).count();
        let left = device.look().holdings();
        ensure(Law::Endings, left == Holdings { ranges: refused, ..Holdings::default() }, || {
            format!("these were not returned to the device, which refused {refused} segments: {left:?}")
        })?;
        let mut device = device.steer();
        let Some(device) = device.insight() else { return Ok(0) };
        let used = device.used_bytes();
        ensure(Law::Endings, refused > 0 || used == Bytes::ZERO, || format!("{used} bytes were not returned to the device"))?;
        Ok(device.driver_and_wait_ns())
    }
}

/// The address, size and stream of each allocation in a checkpoint, in the checkpoint's order.
pub(super) fn saved_allocations(checkpoint: &PoolCheckpoint) -> Vec<(DeviceAddress, Bytes, StreamId)> {
    let mut found = Vec::new();
    for segment in &checkpoint.segments {
        let mut address = segment.address;
        for block in &segment.blocks {
            if block.state == SavedState::Allocated {
                found.push((address, block.size, segment.stream));
            }
            // Addresses without memory may have any size.
            address = DeviceAddress(address.get().wrapping_add(block.size.get()));
        }
    }
    found
}

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
fn callback(stock: &Stock, log: &Log, spare: &Stock) -> FreeMemoryCallback<WitnessedDevice<AnyDevice>, Watched, Vec<TraceEntry>> {
    let (stock, log, spare) = (Arc::clone(stock), Arc::clone(log), Arc::clone(spare));
    Box::new(move |core| {
        let next = lock(&stock).pop_front();
        let Some((doing, says)) = next else { return false };
        let answer = if let Doing::Order(Deed::Register(_)) = doing {
            core.register_free_memory_callback(callback(&spare, &log, &spare));
            Answer::Pool(Ok(()))
        } else {
            perform(core, doing)
        };
        lock(&log).push(answer);
        says
    })
}

fn perform(core: &mut Core, doing: Doing) -> Answer {
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

/// The callbacks of an allocator.
#[derive(Default)]
pub(super) struct Callbacks {
    stocks: Vec<Stock>,
    log: Log,
    /// The answers that they received during the step.
    pub(super) heard: Vec<Answer>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callbacks {
    /// Registers all callbacks but the last, which only callbacks register.
    fn register(core: &mut Core) -> Callbacks {
        let stocks: Vec<Stock> = (0..CALLBACKS).map(|_| Stock::default()).collect();
        let log = Log::default();
        if let Some((spare, first)) = stocks.split_last() {
            first.iter().for_each(|stock| core.register_free_memory_callback(callback(stock, &log, spare)));
        }
        Callbacks { stocks, log, heard: Vec::new() }
    }

    /// Gives the reference allocator the same callbacks.
    pub(super) fn describe_to(&self, reference: &mut Reference) {
        reference.stocks = vec![VecDeque::new(); self.stocks.len()];
        reference.registered = (0..self.stocks.len().saturating_sub(1)).collect();
    }

    /// Returns whether there is a callback with this number.
    fn has(&self, callback: usize) -> bool {
        callback < self.stocks.len()
    }

    /// Gives a callback an allocation, which it frees when called.
    fn stock(&self, callback: usize, allocation: Allocation) {
        lock(&self.stocks[callback]).push_back((Doing::Free(allocation), true));
    }

    /// Gives a callback an action, and the value that it reports.
    fn command(&self, callback: usize, deed: Deed, says: bool) {
        lock(&self.stocks[callback]).push_back((Doing::Order(deed), says));
    }

    /// Collects the answers that the callbacks received during the step.
    fn listen(&mut self) {
        self.heard = std::mem::take(&mut *lock(&self.log));
    }

    /// Returns the allocations that no callback has freed, and forgets all actions.
    fn leave(&self) -> Vec<Allocation> {
        self.stocks
            .iter()
            .flat_map(|stock| std::mem::take(&mut *lock(stock)))
            .filter_map(|(doing, _)| doing.allocation())
            .collect()
    }
}
