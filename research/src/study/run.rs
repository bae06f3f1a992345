//! One run: a workload's events, one after the other, on a new allocator with a new simulated device.
//!
//! The host takes no time between two events: only driver calls, and work that the host waits for, advance the
//! device's clock. A refused request ends the run, as it ends most programs.

use parkade::policy::Policy;
use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError, PoolError, PoolFilter};
use parkade_policies::pools_are_allocators;
use parkade_sim::SimDevice;

use super::options::RunOptions;
use crate::workload::{Event, Workload};

/// Stream handles are multiples of this, as the simulated device's own are.
const STREAM_STEP: u64 = 0x1000;

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every request was served.
    Fits,
    /// A request was refused for lack of memory.
    OutOfMemory,
    /// The policy gave an invalid answer; or the policy or the device refused a request for another reason; or the
    /// workload is malformed, such as one that frees a buffer twice. In one line.
    Fault(String),
}

/// The outcome of a run. If the workload did not fit, all numbers are those of the end of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// The event at which it ended early, counted from 0; a preallocation that fails counts as event 0.
    pub failed_at_event: Option<usize>,
    /// The most bytes taken from the device at once.
    pub peak_reserved_bytes: u64,
    /// The most bytes of blocks allocated at once.
    pub peak_allocated_bytes: u64,
    /// The most bytes of device pages in use at once: what the device must have. Without a limit that is at least
    /// the reserved bytes, and more if small segments leave a part of a page empty.
    pub peak_device_bytes: u64,
    /// How many times the device was asked again after the whole cache had been released (PyTorch's
    /// `num_alloc_retries`).
    pub retries: u64,
    /// Driver calls, including failed calls and calls about events.
    pub driver_calls: u64,
    /// The cost of the driver calls in nanoseconds, without waiting.
    pub driver_ns: u64,
    /// How long driver calls waited for work on the device, in nanoseconds. The workload's own waits do not count.
    pub waited_ns: u64,
    /// Driver calls that return only when work on the device is done, whether there was any to wait for: cudaFree and
    /// the synchronizing calls.
    pub waiting_calls: u64,
    /// What of this the driver did in the later half of the workload ([`Workload::later_half`]). A policy that is slow
    /// only in the beginning has little in it. Boxed, since an outcome may be the error of a search.
    pub later: Box<DriverCost>,
    /// The number of events carried out.
    pub events: usize,
}

/// What driver calls cost in a part of a run. The fields are those of [`Outcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverCost {
    /// Driver calls.
    pub calls: u64,
    /// Their cost in nanoseconds, without waiting.
    pub ns: u64,
    /// How long they waited, in nanoseconds.
    pub waited_ns: u64,
    /// Those that return only when work on the device is done.
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
    /// Every request was served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.ending == Ending::Fits
    }
}

/// Runs a workload under a policy. It never panics, whatever the workload and the policy, unless the policy itself
/// does.
#[must_use]
pub fn run(workload: &Workload, policy: Box<dyn Policy + Send>, options: &RunOptions) -> Outcome {
    run_watched(workload, policy, options, |_, _| ())
}

/// The same; `watch` gets the number of each event and the stats after it.
pub(super) fn run_watched(
    workload: &Workload,
    policy: Box<dyn Policy + Send>,
    options: &RunOptions,
    watch: impl FnMut(usize, &Stats),
) -> Outcome {
    // The box is no PyTorch policy, what is in it may be.
    match policy.as_ref().as_pytorch() {
        Some(pytorch) => run_policy(workload, pytorch.clone(), options, watch),
        None => run_policy(workload, policy, options, watch),
    }
}

fn run_policy<P: Policy>(workload: &Workload, policy: P, options: &RunOptions, mut watch: impl FnMut(usize, &Stats)) -> Outcome {
    let mut run = Run::new(policy, options);
    let mut ended = run.preallocate(options.preallocated_bytes).err();
    let mut done = 0;
    // The cost up to the later half, which a run that ends early may not reach.
    let mut earlier = None;
    if ended.is_none() {
        run.reserve_room(workload);
        let (first, later) = workload.events.split_at(workload.later_half().min(workload.events.len()));
        let mut carry_out = |events: &[Event]| {
            for event in events {
                run.carry_out(event)?;
                watch(done, run.core.stats());
                done += 1;
            }
            Ok(DriverCost::of(run.core.device()))
        };
        ended = carry_out(first)
            .and_then(|cost| {
                earlier = Some(cost);
                carry_out(later)
            })
            .err();
    }
    run.outcome(ended, done, earlier)
}

/// Why a run ended early.
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

struct Run<P: Policy> {
    core: Allocator<SimDevice, P, ()>,
    /// The live allocations by buffer number.
    live: Vec<Option<Allocation>>,
    /// The number of private pools that requests go to.
    routed: u32,
    destroys_pools: bool,
}

impl<P: Policy> Run<P> {
    fn new(policy: P, options: &RunOptions) -> Run<P> {
        let mut core = Allocator::new(options.device(), policy, ());
        core.set_limit(options.limit_bytes.map(Bytes));
        Run { core, live: Vec::new(), routed: 0, destroys_pools: options.destroys_pools }
    }

    fn preallocate(&mut self, bytes: u64) -> Result<(), Stop> {
        if bytes > 0 {
            let block = self.core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?;
            self.core.free(block)?;
            self.core.reset_peak_stats();
        }
        Ok(())
    }

    /// Makes room for all buffers, so that no event has to.
    fn reserve_room(&mut self, workload: &Workload) {
        self.live.reserve_exact(workload.buffers());
    }

    #[inline]
    fn carry_out(&mut self, event: &Event) -> Result<(), Stop> {
        match *event {
            Event::Allocate { buffer, bytes, stream } => {
                if buffer as usize != self.live.len() {
                    return Err(malformed("is allocated out of order", buffer));
                }
                // Twice, because a block that is served at once goes from registers to its place.
                if let Some(block) = self.core.raw_allocate_at_once(Bytes(bytes), handle(stream)) {
                    self.live.push(Some(block));
                } else {
                    let block = self.core.raw_allocate(Bytes(bytes), handle(stream))?;
                    self.live.push(Some(block));
                }
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

    /// Every beginning counted as one use. A pool that is an allocator of its own is destroyed, as all are if the options say so.
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

#[inline]
pub(super) fn handle(stream: u16) -> StreamId {
    StreamId(u64::from(stream) * STREAM_STEP)
}

fn pool_id(pool: u16) -> PoolId {
    PoolId(u64::from(pool), 0)
}

#[cold]
fn malformed(what: &str, buffer: u32) -> Stop {
    Stop::Fault(format!("the workload is malformed: buffer {buffer} {what}"))
}
