//! One run: a workload's events, one after another, on a new allocator with a new simulated device.
//!
//! [`RunOptions`] describe the device. The host spends no time between events: only driver calls and work that the host waits
//! for advance the device's clock. A refused request ends the run, as it would end most programs. [`curves`] samples
//! reserved, allocated and live bytes over its course. [`make_for`] provides the first step of a workload to a policy that plans
//! ahead.

use std::sync::Arc;

use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError, PoolError, PoolFilter};
use parkade_policies::{FirstStep, Named, Plan, Stalloc, Traced, pools_are_allocators};
use parkade_sim::address::{Ascending, Descending, ObservedDriver, Reuse};
use parkade_sim::{SimDevice, SimOptions};

use crate::workload::{Event, Workload};

/// More memory than any workload needs: 4 TiB.
pub const PLENTY_BYTES: u64 = 1 << 42;

/// The way in which the device places `cudaMalloc`'s memory, which matters if a policy breaks ties by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Addresses {
    /// At the address where NVIDIA's driver was observed to place it ([`ObservedDriver`]), in a process without other
    /// allocations.
    #[default]
    Driver,
    /// Each range above the previous one.
    Ascending,
    /// Each range below the previous one.
    Descending,
    /// In the lowest hole that is large enough.
    LowestHole,
}

impl Addresses {
    /// All address models.
    pub const ALL: [Addresses; 4] = [Addresses::Driver, Addresses::Ascending, Addresses::Descending, Addresses::LowestHole];

    /// Returns its name: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Addresses::Driver => "driver",
            Addresses::Ascending => "ascending",
            Addresses::Descending => "descending",
            Addresses::LowestHole => "lowest-hole",
        }
    }

    /// Returns a short description of where this model places segments.
    #[must_use]
    pub const fn says(self) -> &'static str {
        match self {
            Addresses::Driver => "where NVIDIA's driver was observed to place them",
            Addresses::Ascending => "each above the previous one",
            Addresses::Descending => "each below the previous one",
            Addresses::LowestHole => "in the lowest hole that is large enough",
        }
    }

    /// Returns the model with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Addresses> {
        Addresses::ALL.into_iter().find(|model| model.name() == name)
    }
}

/// Searches find the smallest memory to within one part in this many of the load, unless the options say more.
pub(super) const PRECISION: u64 = 256;

/// Options for running a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The device's memory. Only whole 2 MiB pages can be used, and no more than [`PLENTY_BYTES`].
    pub capacity_bytes: u64,
    /// The most that the allocator may take from the device (PyTorch's memory fraction); `None` means no limit.
    pub limit_bytes: Option<u64>,
    /// Where segments are placed.
    pub addresses: Addresses,
    /// If not 0, the size of a request on the default stream before the workload, which is freed immediately, so that memory
    /// is taken early.
    pub preallocated_bytes: u64,
    /// Whether a private pool that is dropped immediately releases its cached memory, as a MemPool does. If false, only a
    /// policy whose pools are separate allocators does this; PyTorch's rules keep the memory until the cache is released, as
    /// for graph pools.
    pub destroys_pools: bool,
    /// A search for the smallest memory finds it to within one part in this many of the load, or to within one page if that is
    /// more ([`smallest_capacity`](super::smallest_capacity)).
    pub precision: u64,
}

impl RunOptions {
    /// Creates a device with this much memory whose addresses follow the measured driver.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> RunOptions {
        let addresses = Addresses::default();
        RunOptions {
            capacity_bytes,
            limit_bytes: None,
            addresses,
            preallocated_bytes: 0,
            destroys_pools: false,
            precision: PRECISION,
        }
    }

    /// Returns options with more memory than is needed: [`PLENTY_BYTES`].
    #[must_use]
    pub fn plenty() -> RunOptions {
        RunOptions::new(PLENTY_BYTES)
    }

    /// Returns the same options with a different amount of memory.
    #[must_use]
    pub fn with_capacity(self, capacity_bytes: u64) -> RunOptions {
        RunOptions { capacity_bytes, ..self }
    }

    fn device(&self) -> SimDevice {
        // Some policies request a share of the device's memory, or size their cache by it, and no request above 1 EB is served.
        let options = SimOptions::new(Bytes(self.capacity_bytes.min(PLENTY_BYTES)));
        SimDevice::new(match self.addresses {
            Addresses::Driver => options.address_model(ObservedDriver::new()),
            Addresses::Ascending => options.address_model(Ascending::new()),
            Addresses::Descending => options.address_model(Descending::new()),
            Addresses::LowestHole => options.address_model(Reuse::new()),
        })
    }
}

/// Stream handles are multiples of this, as the simulated device's own are.
const STREAM_STEP: u64 = 0x1000;

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every request was served.
    Fits,
    /// A request was refused for lack of memory.
    OutOfMemory,
    /// The policy returned an invalid answer, the policy or the device refused a request for a different reason, or the
    /// workload is malformed, for example because it frees a buffer twice. The text is one line.
    Fault(String),
}

/// The outcome of a run. If the workload did not fit, all numbers describe the state at the end of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// The event at which it ended early, counted from 0; a preallocation that fails counts as event 0.
    pub failed_at_event: Option<usize>,
    /// The peak of bytes taken from the device.
    pub peak_reserved_bytes: u64,
    /// The peak of bytes in allocated blocks.
    pub peak_allocated_bytes: u64,
    /// The peak of bytes in device pages in use: the memory that the device must have. Without a limit, this is at least the
    /// reserved bytes, and more if small segments leave part of a page empty.
    pub peak_device_bytes: u64,
    /// The number of times that the allocator asked the device again after releasing the entire cache (PyTorch's
    /// `num_alloc_retries`).
    pub retries: u64,
    /// Driver calls, including failed calls and calls about events.
    pub driver_calls: u64,
    /// The cost of the driver calls, in nanoseconds, without waiting.
    pub driver_ns: u64,
    /// The time that driver calls waited for work on the device, in nanoseconds. The workload's own waits do not count.
    pub waited_ns: u64,
    /// Driver calls that return only when work on the device is done, whether or not there was any to wait for: cudaFree and the
    /// synchronizing calls.
    pub waiting_calls: u64,
    /// The driver's work in the later half of the workload ([`Workload::later_half`]). It is small for a policy that is slow
    /// only at the beginning. It is boxed because an outcome may be the error of a search.
    pub later: Box<DriverCost>,
    /// The number of events carried out.
    pub events: usize,
}

/// The cost of the driver calls in a part of a run. The fields are those of [`Outcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverCost {
    /// Driver calls.
    pub calls: u64,
    /// Their cost in nanoseconds, without waiting.
    pub ns: u64,
    /// The time that they waited, in nanoseconds.
    pub waited_ns: u64,
    /// The driver calls that return only when work on the device is done.
    pub waiting_calls: u64,
}

impl DriverCost {
    fn of(device: &SimDevice) -> DriverCost {
        DriverCost {
            calls: device.driver_calls(),
            ns: device.driver_ns(),
            waited_ns: device.waited_ns(),
            waiting_calls: device.waiting_calls(),
        }
    }

    fn since(self, earlier: DriverCost) -> DriverCost {
        DriverCost {
            calls: self.calls - earlier.calls,
            ns: self.ns - earlier.ns,
            waited_ns: self.waited_ns - earlier.waited_ns,
            waiting_calls: self.waiting_calls - earlier.waiting_calls,
        }
    }
}

impl Outcome {
    /// Returns whether every request was served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.ending == Ending::Fits
    }
}

/// Runs a workload under a policy. It never panics, regardless of the workload and the policy, unless the policy itself does.
#[must_use]
pub fn run(workload: &Workload, policy: Box<dyn Policy + Send>, options: &RunOptions) -> Outcome {
    watch(workload, policy, options, |_| ())
}

/// Does the same as [`run`], but `see` receives the state after each event, including an event that fails.
pub fn watch(
    workload: &Workload,
    policy: Box<dyn Policy + Send>,
    options: &RunOptions,
    mut see: impl FnMut(&Moment<'_>),
) -> Outcome {
    // The box itself is not a PyTorch policy, but the policy inside it may be.
    match policy.as_ref().as_pytorch() {
        Some(pytorch) => {
            let run = Run::new(pytorch.clone(), options, ());
            run.through(workload, options, |run, event, has_failed| see(&run.moment(event, has_failed))).0
        }
        None => {
            let run = Run::new(policy, options, ());
            run.through(workload, options, |run, event, has_failed| see(&run.moment(event, has_failed))).0
        }
    }
}

/// The state of a run after an event.
pub struct Moment<'a> {
    /// The event's number, from 0.
    pub event: usize,
    /// Whether the event failed, which ends the run.
    pub has_failed: bool,
    core: &'a dyn State,
    live: &'a [Option<Allocation>],
}

impl Moment<'_> {
    /// Returns the allocator's statistics, counted from the first event.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.core.stats()
    }

    /// Returns all segments with their blocks, by address.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.core.segments()
    }

    /// Returns the first byte of each live buffer, by the buffer's number.
    pub fn live(&self) -> impl Iterator<Item = (u32, u64)> {
        let live = self.live.iter().zip(0_u32..);
        live.filter_map(|(allocation, buffer)| Some((buffer, allocation.as_ref()?.address().get())))
    }
}

/// The parts of an allocator that can be seen, whatever its policy.
trait State {
    fn stats(&self) -> &Stats;
    fn segments(&self) -> Vec<SegmentInfo>;
}

impl<P: Policy, O: Observer> State for Allocator<SimDevice, P, O> {
    fn stats(&self) -> &Stats {
        Allocator::stats(self)
    }

    fn segments(&self) -> Vec<SegmentInfo> {
        Allocator::segments(self)
    }
}

/// The reason why a run ended early.
enum Stop {
    OutOfMemory,
    Fault(String),
}

impl From<AllocError> for Stop {
    #[cold]
    fn from(error: AllocError) -> Stop {
        match error {
            AllocError::OutOfMemory(_) => Stop::OutOfMemory,
            error => Stop::Fault(error.to_string()),
        }
    }
}

impl From<PoolError> for Stop {
    #[cold]
    fn from(error: PoolError) -> Stop {
        Stop::Fault(error.to_string())
    }
}

impl From<FreeError> for Stop {
    #[cold]
    fn from(error: FreeError) -> Stop {
        Stop::Fault(error.to_string())
    }
}

/// A run in progress.
pub(super) struct Run<P: Policy, O: Observer> {
    pub(super) core: Allocator<SimDevice, P, O>,
    /// The live allocations by buffer number.
    live: Vec<Option<Allocation>>,
    /// The number of private pools that requests go to.
    routed: u32,
    destroys_pools: bool,
}

impl<P: Policy, O: Observer> Run<P, O> {
    pub(super) fn new(policy: P, options: &RunOptions, observer: O) -> Run<P, O> {
        let mut core = Allocator::new(options.device(), policy, observer);
        core.set_limit(options.limit_bytes.map(Bytes));
        Run { core, live: Vec::new(), routed: 0, destroys_pools: options.destroys_pools }
    }

    /// Runs the workload, and also returns the state at the end. After each event, `see` receives the state, the event's number,
    /// and whether the event failed.
    pub(super) fn through(
        mut self,
        workload: &Workload,
        options: &RunOptions,
        mut see: impl FnMut(&Self, usize, bool),
    ) -> (Outcome, Run<P, O>) {
        let mut ended = self.preallocate(options.preallocated_bytes).err();
        let mut done = 0;
        // The cost up to the later half, which a run that ends early may never reach.
        let mut earlier = None;
        if ended.is_none() {
            self.reserve_room(workload);
            let (first, later) = workload.events.split_at(workload.later_half().min(workload.events.len()));
            let mut carry_out = |events: &[Event]| {
                for event in events {
                    let carried_out = self.carry_out(event);
                    see(&self, done, carried_out.is_err());
                    carried_out?;
                    done += 1;
                }
                Ok(DriverCost::of(self.core.device()))
            };
            ended = carry_out(first)
                .and_then(|cost| {
                    earlier = Some(cost);
                    carry_out(later)
                })
                .err();
        }
        (self.outcome(ended, done, earlier), self)
    }

    fn moment(&self, event: usize, has_failed: bool) -> Moment<'_> {
        Moment { event, has_failed, core: &self.core, live: &self.live }
    }

    fn preallocate(&mut self, bytes: u64) -> Result<(), Stop> {
        if bytes > 0 {
            let block = self.core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?;
            self.core.free(block)?;
            self.core.reset_peak_stats();
        }
        Ok(())
    }

    /// Makes room for a buffer of each event in advance, so that no event has to. Memory that is not used costs nothing.
    fn reserve_room(&mut self, workload: &Workload) {
        self.live.reserve_exact(workload.events.len());
    }

    // Always inlined: in a function of its own, every event would pass its allocation and its result through memory.
    #[inline(always)]
    fn carry_out(&mut self, event: &Event) -> Result<(), Stop> {
        match *event {
            Event::Allocate { buffer, bytes, stream } => {
                if buffer as usize != self.live.len() {
                    return Err(malformed("is allocated out of order", buffer));
                }
                let block = self.core.raw_allocate(Bytes(bytes), handle(stream))?;
                self.live.push(Some(block));
            }
            Event::Free { buffer } => {
                let block = self.live.get_mut(buffer as usize).and_then(Option::take);
                self.core.free(block.ok_or_else(|| malformed("is freed but not live", buffer))?)?;
            }
            Event::Use { buffer, stream } => {
                let block = self.live.get(buffer as usize).and_then(Option::as_ref);
                self.core.record_stream(block.ok_or_else(|| malformed("is used but not live", buffer))?, handle(stream));
            }
            Event::Launch { stream, us } => self.core.device_mut().spin(handle(stream), u64::from(us) * 1000),
            Event::Synchronize { stream } => self.core.device_mut().wait_for(handle(stream)),
            Event::EmptyCache => self.core.release_cached()?,
            Event::BeginPool { pool } => self.begin_pool(pool_id(pool))?,
            Event::EndPool { pool } => self.end_pool(pool_id(pool))?,
            Event::DropPool { pool } => self.drop_pool(pool_id(pool))?,
        }
        Ok(())
    }

    fn begin_pool(&mut self, id: PoolId) -> Result<(), Stop> {
        self.core.begin_pool(id, PoolFilter::All)?;
        self.routed += 1;
        self.core.set_capturing(true);
        Ok(())
    }

    fn end_pool(&mut self, id: PoolId) -> Result<(), Stop> {
        self.core.end_pool(id)?;
        self.routed -= 1;
        self.core.set_capturing(self.routed > 0);
        Ok(())
    }

    /// Drops a pool. Every beginning counted as one use of it. A pool that is a separate allocator is destroyed, as are all
    /// pools if the options require it.
    fn drop_pool(&mut self, id: PoolId) -> Result<(), Stop> {
        while self.core.pool_use_count(id)? > 0 {
            self.core.release_pool(id)?;
        }
        if (self.destroys_pools || pools_are_allocators(self.core.policy().name())) && self.routed == 0 {
            self.core.release_cached_pool(id)?;
        }
        Ok(())
    }

    fn outcome(&self, ended: Option<Stop>, done: usize, earlier: Option<DriverCost>) -> Outcome {
        let (stats, cost) = (self.core.stats(), DriverCost::of(self.core.device()));
        let peak = |family| u64::try_from(stats.family(family).all.peak).unwrap_or(0);
        Outcome {
            failed_at_event: ended.is_some().then_some(done),
            ending: match ended {
                None => Ending::Fits,
                Some(Stop::OutOfMemory) => Ending::OutOfMemory,
                Some(Stop::Fault(fault)) => Ending::Fault(fault),
            },
            peak_reserved_bytes: peak(Family::ReservedBytes),
            peak_allocated_bytes: peak(Family::AllocatedBytes),
            peak_device_bytes: self.core.device().peak_used_bytes().get(),
            retries: u64::try_from(stats.num_alloc_retries).unwrap_or(0),
            driver_calls: cost.calls,
            driver_ns: cost.ns,
            waited_ns: cost.waited_ns,
            waiting_calls: cost.waiting_calls,
            later: Box::new(earlier.map_or_else(DriverCost::default, |earlier| cost.since(earlier))),
            events: done,
        }
    }
}

/// Returns the number of the workload's stream that an allocator knows by this handle.
#[must_use]
pub fn stream_number(handle: StreamId) -> u16 {
    u16::try_from(handle.get() / STREAM_STEP).unwrap_or(u16::MAX)
}

#[inline]
fn handle(stream: u16) -> StreamId {
    StreamId(u64::from(stream) * STREAM_STEP)
}

fn pool_id(pool: u16) -> PoolId {
    PoolId(u64::from(pool), 0)
}

#[cold]
fn malformed(what: &str, buffer: u32) -> Stop {
    Stop::Fault(format!("the workload is malformed: buffer {buffer} {what}"))
}

/// Bytes over the course of a workload: each point is the highest value in its part of the events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curves {
    /// Bytes taken from the device. A run that ends early has fewer points.
    pub reserved_bytes: Vec<u64>,
    /// Bytes of allocated blocks.
    pub allocated_bytes: Vec<u64>,
    /// The outcome of the run.
    pub outcome: Outcome,
}

/// Runs a workload and returns its curves, with at most `points` points (at least 1).
#[must_use]
pub fn curves(workload: &Workload, policy: Box<dyn Policy + Send>, options: &RunOptions, points: usize) -> Curves {
    let buckets = Buckets::new(workload, points);
    let (mut reserved_bytes, mut allocated_bytes) = (Vec::new(), Vec::new());
    let outcome = watch(workload, policy, options, |moment| {
        if !moment.has_failed {
            buckets.raise(&mut reserved_bytes, moment.event, level(moment.stats(), Family::ReservedBytes));
            buckets.raise(&mut allocated_bytes, moment.event, level(moment.stats(), Family::AllocatedBytes));
        }
    });
    Curves { reserved_bytes, allocated_bytes, outcome }
}

/// Returns the live bytes at the same points, with each request rounded up to a multiple of `unit`.
///
/// # Panics
/// Panics if `unit` is 0.
#[must_use]
pub fn live_curve(workload: &Workload, unit: u64, points: usize) -> Vec<u64> {
    let buckets = Buckets::new(workload, points);
    let (mut curve, mut sizes, mut live) = (Vec::new(), Vec::new(), 0_u64);
    for (number, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { bytes, .. } => {
                let size = bytes.div_ceil(unit).saturating_mul(unit);
                sizes.push(size);
                live = live.saturating_add(size);
            }
            Event::Free { buffer } => live -= sizes.get_mut(buffer as usize).map_or(0, std::mem::take),
            _ => {}
        }
        buckets.raise(&mut curve, number, live);
    }
    curve
}

/// Maps events to points.
struct Buckets {
    events: usize,
    points: usize,
}

impl Buckets {
    fn new(workload: &Workload, points: usize) -> Buckets {
        let events = workload.events.len();
        Buckets { events, points: points.clamp(1, events.max(1)) }
    }

    fn raise(&self, curve: &mut Vec<u64>, event: usize, value: u64) {
        let place = (event as u128 * self.points as u128 / self.events.max(1) as u128) as usize;
        if curve.len() <= place {
            curve.resize(place + 1, 0);
        }
        curve[place] = curve[place].max(value);
    }
}

pub(super) fn level(stats: &Stats, family: Family) -> u64 {
    u64::try_from(stats.family(family).all.current).unwrap_or(0)
}

/// Creates policies with this name for runs of this workload. `stalloc` receives a plan of the workload's first step; all
/// others are the catalogue's policies.
#[must_use]
pub fn make_for(policy: &Named, workload: &Workload) -> Box<dyn Fn() -> Box<dyn Policy + Send> + Send + Sync> {
    if policy.name != "stalloc" {
        let policy = policy.clone();
        return Box::new(move || policy.make());
    }
    let plan = Arc::new(first_step(workload).map(|step| Plan::of(&step)).unwrap_or_default());
    Box::new(move || Box::new(Stalloc::with_plan(Arc::clone(&plan))))
}

/// Returns the contents of a trace of the workload's first step: all requests up to its end, with the frees up to the end of
/// the second step, and whether the second step also frees them. Returns `None` if no step repeats
/// ([`Workload::repeating_step`]). Requests to private pools are left out.
#[must_use]
pub fn first_step(workload: &Workload) -> Option<FirstStep> {
    let step = workload.repeating_step()?;
    let end = step.begin + step.length;
    let comes_again = |at: usize| at.checked_sub(step.begin).is_none_or(|at| step.comes_again[at]);
    let requests = step.requests[..end].iter().enumerate().map(|(at, request)| Traced {
        bytes: Bytes(request.bytes),
        stream: handle(request.stream),
        freed_after: request.freed_after.filter(|&after| after <= end + step.length),
        comes_again: comes_again(at),
    });
    Some(FirstStep { requests: requests.collect(), repeats_from: step.begin })
}

#[cfg(test)]
mod tests {
    use parkade::policy::{Placement, PyTorch, Relief, Request, Rung, Wrapper};
    use parkade::settings::Settings;
    use parkade::units::{PoolClass, StreamId};
    use parkade::{BlockId, Heap};
    use parkade_policies::named;

    use super::*;
    use crate::study::smallest_capacity;
    use crate::workload::parse;

    const MIB: u64 = 1 << 20;

    fn workload(events: Vec<Event>) -> Workload {
        Workload { name: "test".into(), says: "a test's".into(), events, ..Workload::default() }
    }

    fn allocate(buffer: u32, mib: u64) -> Event {
        Event::Allocate { buffer, bytes: mib * MIB, stream: 0 }
    }

    fn free(buffer: u32) -> Event {
        Event::Free { buffer }
    }

    fn pytorch() -> Box<dyn Policy + Send> {
        policy("pytorch")
    }

    fn policy(name: &str) -> Box<dyn Policy + Send> {
        named(name).expect("a policy").make()
    }

    fn plenty(events: Vec<Event>) -> Outcome {
        run(&workload(events), pytorch(), &RunOptions::plenty())
    }

    /// Returns a workload of 60 and 40 MiB, the 60 MiB freed, then 30 and 60 MiB: fragmented by default, but not with
    /// expandable segments.
    fn hole() -> Workload {
        workload(vec![allocate(0, 60), allocate(1, 40), free(0), allocate(2, 30), allocate(3, 60)])
    }

    #[test]
    fn a_run_that_fits_says_what_it_took() {
        let outcome = plenty(vec![allocate(0, 60), allocate(1, 40), free(0), allocate(2, 30)]);
        assert!(outcome.fits(), "{outcome:?}");
        assert_eq!((outcome.peak_reserved_bytes, outcome.peak_allocated_bytes), (100 * MIB, 100 * MIB));
        assert_eq!((outcome.driver_calls, outcome.retries, outcome.events, outcome.failed_at_event), (2, 0, 4, None));
        assert!(outcome.driver_ns > 2 * 28_000 && outcome.waited_ns == 0, "{outcome:?}");
    }

    #[test]
    fn a_refused_request_ends_it() {
        let options = RunOptions::new(140 * MIB);
        let outcome = run(&hole(), pytorch(), &options);
        assert_eq!((outcome.ending, outcome.failed_at_event, outcome.events), (Ending::OutOfMemory, Some(4), 4));
        assert!(run(&hole(), policy("pytorch-expandable"), &options).fits());
        let limited = RunOptions { limit_bytes: Some(140 * MIB), ..RunOptions::plenty() };
        assert_eq!(run(&hole(), pytorch(), &limited).failed_at_event, Some(4), "a limit refuses as the device does");
    }

    #[test]
    fn malformed_workloads_are_reported() {
        for (events, said) in [
            (vec![allocate(1, 1)], "buffer 1 is allocated out of order"),
            (vec![allocate(0, 1), free(0), free(0)], "buffer 0 is freed but not live"),
            (vec![Event::Use { buffer: 7, stream: 1 }], "buffer 7 is used but not live"),
            (vec![Event::EndPool { pool: 3 }], "pool"),
            (vec![Event::DropPool { pool: 3 }], "pool"),
            (vec![Event::Allocate { buffer: 0, bytes: 0, stream: 0 }], "0 bytes"),
        ] {
            let outcome = plenty(events);
            assert!(matches!(&outcome.ending, Ending::Fault(fault) if fault.contains(said)), "{said}: {outcome:?}");
            assert!(outcome.failed_at_event.is_some());
        }
    }

    /// Answers with an impossible segment size.
    struct Wild;

    impl Policy for Wild {
        fn name(&self) -> &'static str {
            "wild"
        }
        fn round(&self, requested: Bytes) -> Option<Bytes> {
            Some(requested)
        }
        fn classify(&self, _: Bytes) -> PoolClass {
            PoolClass::Large
        }
        fn place(&mut self, _: &Heap, _: &Request) -> Placement {
            Placement::Segment(Bytes(1))
        }
        fn splits(&self, _: Bytes, _: &Request) -> bool {
            false
        }
        fn ladder(&self) -> &'static [Rung] {
            &[Rung::Own]
        }

        fn relieve(&mut self, _: &Heap, _: &Request, _: u32) -> Relief {
            Relief::Release { blocks: Vec::<BlockId>::new(), attempt: parkade::policy::Attempt::Ask }
        }
    }

    #[test]
    fn a_policy_that_answers_wrongly_is_named() {
        let wild = || Box::new(Wild) as Box<dyn Policy + Send>;
        let outcome = run(&hole(), wild(), &RunOptions::plenty());
        assert!(matches!(&outcome.ending, Ending::Fault(fault) if fault.contains("policy wild")), "{outcome:?}");
        assert_eq!(smallest_capacity(&hole(), &wild, &RunOptions::plenty(), &[]).map_err(|outcome| outcome.events), Err(0));
    }

    /// PyTorch's policy until memory is short; its own steps then never end.
    struct WildWhenShort(PyTorch);

    impl Wrapper for WildWhenShort {
        type Inner = PyTorch;

        fn inner(&self) -> &PyTorch {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut PyTorch {
            &mut self.0
        }

        fn ladder(&self) -> &'static [Rung] {
            &[Rung::Grow, Rung::Own]
        }

        fn relieve(&mut self, _: &Heap, _: &Request, _: u32) -> Relief {
            Relief::Release { blocks: Vec::new(), attempt: parkade::policy::Attempt::No }
        }
    }

    #[test]
    fn a_policy_that_breaks_when_memory_is_short_has_no_smallest_memory() {
        let wild = || Box::new(WildWhenShort(PyTorch::new(Settings::default()))) as Box<dyn Policy + Send>;
        assert!(run(&hole(), wild(), &RunOptions::plenty()).fits());
        let found = smallest_capacity(&hole(), &wild, &RunOptions::plenty(), &[]).map_err(|outcome| outcome.ending);
        assert!(matches!(&found, Err(Ending::Fault(fault)) if fault.contains("never gives up")), "{found:?}");
    }

    #[test]
    fn memory_that_another_stream_uses_is_free_when_its_work_is_done() {
        let used = |more: Vec<Event>| {
            let begin = [Event::Launch { stream: 1, us: 500 }, allocate(0, 50), Event::Use { buffer: 0, stream: 1 }, free(0)];
            plenty(begin.into_iter().chain(more).collect())
        };
        assert_eq!(used(vec![allocate(1, 50)]).peak_reserved_bytes, 100 * MIB);
        assert_eq!(
            used(vec![Event::Synchronize { stream: 0 }, allocate(1, 50)]).peak_reserved_bytes,
            100 * MIB,
            "the wait is for another stream"
        );
        let synchronized = used(vec![Event::Synchronize { stream: 1 }, allocate(1, 50)]);
        assert_eq!(
            (synchronized.peak_reserved_bytes, synchronized.waited_ns),
            (50 * MIB, 0),
            "the workload waited, not the driver"
        );
        let emptied = used(vec![Event::EmptyCache, allocate(1, 50)]);
        assert_eq!(emptied.peak_reserved_bytes, 50 * MIB, "empty_cache waits");
        assert!((400_000..500_000).contains(&emptied.waited_ns), "{emptied:?}");
    }

    #[test]
    fn private_pools_share_nothing_until_they_are_dropped() {
        let pool = 1;
        let captured = [Event::BeginPool { pool }, allocate(0, 50), Event::EndPool { pool }, free(0)];
        let kept = captured.into_iter().chain([Event::EmptyCache, allocate(1, 50)]);
        assert_eq!(plenty(kept.collect()).peak_reserved_bytes, 100 * MIB);
        let dropped = captured.into_iter().chain([Event::DropPool { pool }, Event::EmptyCache, allocate(1, 50)]);
        assert_eq!(plenty(dropped.collect()).peak_reserved_bytes, 50 * MIB);
        let again = captured.into_iter().chain([Event::BeginPool { pool }, allocate(1, 50), Event::EndPool { pool }]);
        assert_eq!(plenty(again.collect()).peak_reserved_bytes, 50 * MIB, "a pool can be captured into twice");
    }

    /// This matches the end of a MemPool, which calls empty_cache for its pool.
    #[test]
    fn a_pool_is_destroyed_when_it_is_dropped_if_the_options_say_so() {
        let pool = 1;
        let captured = [Event::BeginPool { pool }, allocate(0, 50), Event::EndPool { pool }, free(0)];
        let dropped: Vec<Event> = captured.into_iter().chain([Event::DropPool { pool }, allocate(1, 50)]).collect();
        assert_eq!(plenty(dropped.clone()).peak_reserved_bytes, 100 * MIB, "nothing releases the cache");
        let options = RunOptions { destroys_pools: true, ..RunOptions::plenty() };
        assert_eq!(run(&workload(dropped), pytorch(), &options).peak_reserved_bytes, 50 * MIB);
    }

    /// 16777215 TiB is the most that an argument can specify.
    #[test]
    fn absurdly_much_memory_is_enough_for_every_policy() {
        for name in ["pytorch", "compaction", "pytorch-rescue:reach=free", "bfc:kind=one-region", "rmm-pool"] {
            for bytes in [16_777_215 << 40, u64::MAX] {
                let outcome = run(&hole(), policy(name), &RunOptions::new(bytes));
                assert!(outcome.fits(), "{name} in {bytes}: {outcome:?}");
            }
        }
    }

    #[test]
    fn memory_taken_early_serves_later() {
        let options = RunOptions { preallocated_bytes: 130 * MIB, ..RunOptions::new(140 * MIB) };
        let outcome = run(&hole(), pytorch(), &options);
        assert!(outcome.fits(), "one segment holds it all: {outcome:?}");
        assert_eq!((outcome.peak_reserved_bytes, outcome.driver_calls), (130 * MIB, 1));
        assert_eq!(outcome.peak_allocated_bytes, 130 * MIB, "what is live at the end, not what was preallocated");
        let too_much = RunOptions { preallocated_bytes: 150 * MIB, ..options };
        assert_eq!(run(&hole(), pytorch(), &too_much).failed_at_event, Some(0));
    }

    #[test]
    fn the_smallest_memory_is_a_border() {
        let options = RunOptions::plenty();
        let found = smallest_capacity(&hole(), &pytorch, &options, &[]).expect("it fits");
        // 60 + 40, and another 60, because the first 60 MiB are split for the 30.
        assert_eq!(found.capacity_bytes, 160 * MIB);
        assert!(found.outcome.fits() && found.runs < 32);
        assert!(!run(&hole(), pytorch(), &RunOptions::new(158 * MIB)).fits());
        let expandable = smallest_capacity(&hole(), &|| policy("pytorch-expandable"), &options, &[]).expect("it fits");
        assert_eq!(expandable.capacity_bytes, 140 * MIB, "one 20 MiB page of the 30 MiB hole is released");
        let alone = smallest_capacity(&workload(vec![allocate(0, 30)]), &pytorch, &options, &[]).expect("it fits");
        assert_eq!((alone.capacity_bytes, alone.runs), (30 * MIB, 2), "the load itself");
    }

    #[test]
    fn curves_keep_the_peaks() {
        let events: Vec<Event> = (0..100).flat_map(|n| [allocate(n, 30 + u64::from(n % 7)), free(n)]).collect();
        let workload = workload(events);
        let curves = curves(&workload, pytorch(), &RunOptions::plenty(), 20);
        assert_eq!((curves.reserved_bytes.len(), curves.allocated_bytes.len()), (20, 20));
        assert_eq!(curves.reserved_bytes.iter().max(), Some(&curves.outcome.peak_reserved_bytes));
        assert_eq!(live_curve(&workload, 512, 20).iter().max(), Some(&(36 * MIB)));
        assert_eq!(live_curve(&workload, 512, 100_000).len(), 200, "no more points than events");
    }

    #[test]
    fn the_address_models_have_names() {
        for model in Addresses::ALL {
            assert_eq!(Addresses::named(model.name()), Some(model));
            assert!(run(&hole(), pytorch(), &RunOptions { addresses: model, ..RunOptions::plenty() }).fits());
        }
        assert_eq!(Addresses::named("best-hole"), None);
    }

    #[test]
    fn a_policy_that_is_slow_only_in_the_beginning_has_nothing_in_the_later_half() {
        let step = |first: u32| [allocate(first, 50), allocate(first + 1, 30), free(first), free(first + 1)];
        let events: Vec<Event> = (0..6).flat_map(|number| step(2 * number)).collect();
        let steps: Vec<u32> = (0..6).map(|number| 4 * number).collect();
        let kept = run(&Workload { steps: steps.clone(), ..workload(events.clone()) }, pytorch(), &RunOptions::plenty());
        assert_eq!((kept.driver_calls, *kept.later), (2, DriverCost::default()));
        // With `empty_cache` at the end of each step, the end is as slow as the beginning.
        let emptied = events.chunks(4).flat_map(|step| [step, &[Event::EmptyCache]].concat()).collect();
        let emptied = Workload { steps: steps.iter().map(|step| step / 4 * 5).collect(), ..workload(emptied) };
        let outcome = run(&emptied, pytorch(), &RunOptions::plenty());
        assert_eq!((outcome.driver_calls, outcome.later.calls, outcome.waiting_calls), (24, 12, 12));
        assert_eq!((2 * outcome.later.ns, outcome.waited_ns), (outcome.driver_ns, 0), "the workload has no work to wait for");
        let ended = run(&emptied, pytorch(), &RunOptions::new(60 * MIB));
        assert_eq!(*ended.later, DriverCost::default(), "it ended before the later half");
    }

    #[test]
    fn waiting_in_the_later_half_is_counted_there() {
        let launch = Event::Launch { stream: 0, us: 500 };
        let first = [allocate(0, 50), free(0), launch, Event::EmptyCache];
        let later = [allocate(1, 50), free(1), launch, Event::EmptyCache];
        let outcome = plenty([first, later].concat());
        assert!((outcome.later.waited_ns, outcome.later.waiting_calls) == (outcome.waited_ns / 2, 1), "{outcome:?}");
        assert!((800_000..=1_000_000).contains(&outcome.waited_ns), "{outcome:?}");
    }

    /// A graph pool of 40 MiB that is dropped, and then a second one, on a device with no room for both. PyTorch's rules
    /// release nothing while a graph is captured; a policy that destroys the pool's allocator recovers its memory before
    /// that.
    #[test]
    fn a_pool_that_is_an_allocator_of_its_own_is_destroyed_when_it_is_dropped() {
        let graph = |pool, buffer| [Event::BeginPool { pool }, allocate(buffer, 40), Event::EndPool { pool }, free(buffer)];
        let drop = Event::DropPool { pool: 1 };
        let events: Vec<Event> = graph(1, 0).into_iter().chain([drop]).chain(graph(2, 1)).collect();
        for (name, fits) in [("rmm-pool", true), ("bfc", true), ("bfc:kind=one-region", true), ("pytorch", false)] {
            let outcome = run(&workload(events.clone()), policy(name), &RunOptions::new(72 * MIB));
            assert_eq!(outcome.fits(), fits, "{name}: {outcome:?}");
        }
    }

    /// Returns a workload of two weights, and then steps of three requests, the last of which stays live until the next
    /// step's last request.
    fn steps(count: u32) -> Workload {
        let mut events = Vec::new();
        let allocate = |events: &mut Vec<Event>, bytes: u64| {
            let buffer = events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count() as u32;
            events.push(Event::Allocate { buffer, bytes: bytes << 20, stream: 0 });
            buffer
        };
        allocate(&mut events, 5);
        allocate(&mut events, 7);
        let mut last = None;
        for _ in 0..count {
            let first = allocate(&mut events, 12);
            let second = allocate(&mut events, 20);
            events.extend(last.map(|buffer| Event::Free { buffer }));
            let third = allocate(&mut events, 30);
            events.extend([first, second].map(|buffer| Event::Free { buffer }));
            last = Some(third);
        }
        Workload { name: "steps".into(), says: "Steps.".into(), events, steps: Vec::new() }
    }

    #[test]
    fn the_step_is_found_with_its_lifetimes() {
        let step = first_step(&steps(6)).expect("it repeats");
        let traced =
            |mib: u64, freed_after| Traced { bytes: Bytes::mib(mib), stream: StreamId(0), freed_after, comes_again: true };
        let requests = [traced(5, None), traced(7, None), traced(12, Some(5)), traced(20, Some(5)), traced(30, Some(7))];
        assert_eq!(step, FirstStep { requests: requests.into(), repeats_from: 2 });
    }

    #[test]
    fn what_does_not_repeat_has_no_step() {
        assert_eq!(first_step(&steps(1)), None);
        assert_eq!(first_step(&Workload::default()), None);
        let events = (0..50).map(|buffer| Event::Allocate { buffer, bytes: 1000 + u64::from(buffer), stream: 0 });
        assert_eq!(first_step(&Workload { events: events.collect(), ..steps(0) }), None);
    }

    #[test]
    fn a_planned_step_needs_no_more_than_its_plan() {
        let workload = steps(8);
        let make = make_for(&named("stalloc").expect("in the catalogue"), &workload);
        assert_eq!(workload.load_bytes(1) >> 20, 74);
        let outcome = run(&workload, make(), &RunOptions::plenty());
        assert!(outcome.fits());
        assert_eq!(outcome.driver_calls, 1, "one cudaMalloc");
        let smallest = smallest_capacity(&workload, &make, &RunOptions::plenty(), &[]).expect("it fits");
        assert_eq!(smallest.capacity_bytes >> 20, 74);
    }

    #[test]
    fn a_generated_program_keeps_to_its_plan() {
        let workload = parse("gpt2:steps=4").expect("a workload");
        let load = workload.load_bytes(512);
        let step = first_step(&workload).expect("it repeats");
        let plan = Plan::of(&step);
        assert!(plan.bytes().get() as f64 <= 1.1 * load as f64, "{} for {load}", plan.bytes());
        let outcome = run(&workload, Box::new(Stalloc::with_plan(plan.into())), &RunOptions::plenty());
        assert!(outcome.peak_reserved_bytes as f64 <= 1.1 * load as f64, "{} for {load}", outcome.peak_reserved_bytes);
    }
}
