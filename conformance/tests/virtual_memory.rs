//! Laws of expandable segments and private pools: random sequences, with every driver call failing in turn.
//!
//! After every operation the whole heap is checked and the trace makes sense as a history of its own; at the end everything can be
//! given back, and a device without an allocator holds nothing.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, Allocator, PoolFilter};
use parkade_conformance::device::WitnessedDevice;
use parkade_conformance::history::History;
use parkade_conformance::operation::sizes;
use parkade_conformance::{Broken, ensure, property_settings};
use parkade_sim::device::{Adversary, CallName, FaultError, FaultPlan, NoCost, SimDevice, SimOptions, When};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64, u64),
    Free(usize),
    RecordStream(usize, u64),
    CompleteAll,
    ReleaseCached,
    Expandable(bool),
    BeginPool(u64, Option<u64>),
    EndPool(u64),
    ReleasePool(u64),
    UseOnOom(u64),
    NoSplit(u64),
    Limit(Option<u64>),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        Allocate, BeginPool, CompleteAll, EndPool, Expandable, Free, Limit, NoSplit, RecordStream, ReleaseCached, ReleasePool,
        UseOnOom,
    };
    prop_oneof![
        12 => (sizes(), 0..3_u64).prop_map(|(size, stream)| Allocate(size, stream)),
        10 => any::<usize>().prop_map(Free),
        3 => (any::<usize>(), 0..3_u64).prop_map(|(which, stream)| RecordStream(which, stream)),
        1 => Just(CompleteAll),
        2 => Just(ReleaseCached),
        1 => any::<bool>().prop_map(Expandable),
        2 => (1..4_u64, prop::option::of(0..3_u64)).prop_map(|(pool, stream)| BeginPool(pool, stream)),
        2 => (1..4_u64).prop_map(EndPool),
        2 => (1..4_u64).prop_map(ReleasePool),
        1 => (1..4_u64).prop_map(UseOnOom),
        1 => (3..4_u64).prop_map(NoSplit),
        1 => prop::option::of(20..120_u64).prop_map(Limit),
    ]
}

type Core = Allocator<WitnessedDevice, PyTorch, Vec<TraceEntry>>;

struct Run {
    device: WitnessedDevice,
    core: Option<Core>,
    live: Vec<Allocation>,
    history: History,
}

impl Run {
    fn new(settings: &str, adversary: Adversary, faults: FaultPlan) -> Run {
        let options = SimOptions::new(Bytes(160 * MIB)).cost_model(NoCost).adversary(adversary);
        let mut sim = SimDevice::new(options);
        sim.set_fault_plan(faults);
        let device = WitnessedDevice::new(sim);
        let settings = Settings::from_environment(settings).expect("settings");
        let core = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
        Run { device, core: Some(core), live: Vec::new(), history: History::default() }
    }

    /// Carries one operation out, whether it succeeds or not, and checks everything.
    fn step(&mut self, operation: &Operation) -> Result<(), Broken> {
        let core = self.core.as_mut().expect("the core lives until the end");
        let pool = |pool| PoolId(0, pool);
        match *operation {
            Operation::Allocate(size, stream) => self.live.extend(core.allocate(Bytes(size), StreamId(stream))),
            Operation::Free(which) if !self.live.is_empty() => {
                let allocation = self.live.swap_remove(which % self.live.len());
                // A device that fails to record an event leaves the block pending.
                let _ = core.free(allocation);
            }
            Operation::RecordStream(which, stream) if !self.live.is_empty() => {
                core.record_stream(&self.live[which % self.live.len()], StreamId(stream));
            }
            Operation::CompleteAll => self.device.steer().complete_all(),
            Operation::ReleaseCached => drop(core.release_cached()),
            Operation::Expandable(on) => core.policy_mut().settings.expandable_segments = on,
            Operation::BeginPool(id, stream) => {
                let filter = stream.map_or(PoolFilter::All, |stream| PoolFilter::Stream(StreamId(stream)));
                let _ = core.begin_pool(pool(id), filter);
            }
            Operation::EndPool(id) => {
                let _ = core.end_pool(pool(id));
            }
            Operation::ReleasePool(id) if core.pool_use_count(pool(id)).is_ok_and(|uses| uses > 0) => {
                let _ = core.release_pool(pool(id));
            }
            Operation::UseOnOom(id) => core.set_pool_use_on_oom(pool(id), true),
            Operation::NoSplit(id) => core.set_pool_no_split(pool(id)),
            Operation::Limit(mib) => core.set_limit(mib.map(Bytes::mib)),
            Operation::Free(_) | Operation::RecordStream(..) | Operation::ReleasePool(_) => {}
        }
        core.check().map_err(|violation| Broken(format!("{operation:?}: {violation}")))?;
        for entry in std::mem::take(core.observer_mut()) {
            self.history.follow(&entry)?;
        }
        let reserved = core.heap().reserved().get();
        let used = self.device.look().used_bytes().get();
        ensure(used >= reserved, || format!("{operation:?}: {reserved} bytes reserved, the device has given {used}"))
    }

    /// Gives everything back: then nothing is reserved, and without the allocator the device holds nothing.
    fn end(mut self) -> Result<(), Broken> {
        self.device.steer().set_fault_plan(FaultPlan::none());
        for id in 1..4 {
            let core = self.core.as_mut().expect("the core lives until the end");
            let _ = core.end_pool(PoolId(0, id));
            while core.pool_use_count(PoolId(0, id)).is_ok_and(|uses| uses > 0) {
                core.release_pool(PoolId(0, id)).map_err(|error| Broken(error.to_string()))?;
            }
        }
        while !self.live.is_empty() {
            self.step(&Operation::Free(0))?;
        }
        self.step(&Operation::ReleaseCached)?;
        let core = self.core.take().expect("the core lives until the end");
        let reserved = core.stats().family(Family::ReservedBytes).all.current;
        ensure(reserved == 0, || format!("{reserved} bytes stay reserved"))?;
        ensure(self.history.is_empty(), || format!("the history does not end empty: {:?}", self.history))?;
        drop(core);
        let device = self.device.look();
        let (used, events) = (device.used_bytes(), device.live_events());
        ensure(used == Bytes::ZERO && events == 0, || format!("the device still has {used} bytes and {events} events out"))
    }
}

fn run(settings: &str, adversary: Adversary, faults: FaultPlan, operations: &[Operation]) -> Result<u64, Broken> {
    let mut run = Run::new(settings, adversary, faults);
    for operation in operations {
        run.step(operation)?;
    }
    let fired = run.device.look().fault_plan().fired();
    run.end().map(|()| fired)
}

fn settings() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5",
        "expandable_segments:True,large_segment_size_mb:12",
        "",
    ])
}

proptest! {
    #![proptest_config(property_settings(200))]

    #[test]
    fn the_heap_stays_whole(
        settings in settings(),
        lazy in any::<bool>(),
        operations in prop::collection::vec(operation(), 1..150),
    ) {
        let adversary = if lazy { Adversary::Lazy } else { Adversary::Eager };
        prop_assert_eq!(run(settings, adversary, FaultPlan::none(), &operations).map_err(|broken| broken.0), Ok(0));
    }

    #[test]
    fn a_failing_call_loses_nothing(
        settings in settings(),
        which in 1..60_u64,
        out_of_memory in any::<bool>(),
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let error = if out_of_memory { FaultError::OutOfMemory } else { FaultError::Code(700) };
        let plan = FaultPlan::none().and(When::Nth(which), error);
        prop_assert!(run(settings, Adversary::Lazy, plan, &operations).is_ok_and(|fired| fired <= 1));
    }
}

/// Growing, holes, unmapping of whole pages, refilling from the lowest address; with every call of each kind failing in turn.
#[test]
fn every_call_of_virtual_memory_may_fail() {
    use Operation::{Allocate, Free, ReleaseCached};
    let operations = [
        Allocate(3 * MIB, 0),
        Allocate(30 * MIB, 0),
        Allocate(45 * MIB, 0),
        Allocate(700, 1),
        Free(1),
        ReleaseCached,
        Allocate(25 * MIB, 0),
        Allocate(200 * MIB, 0),
        Free(0),
        Free(0),
        ReleaseCached,
        Allocate(12 * MIB, 2),
    ];
    let kinds = [
        CallName::AddressReserve,
        CallName::MemCreate,
        CallName::MemMap,
        CallName::MemSetAccess,
        CallName::MemUnmap,
        CallName::MemRelease,
        CallName::AddressFree,
        CallName::StreamSynchronize,
    ];
    for kind in kinds {
        let mut reached = false;
        for n in 1.. {
            let plan = FaultPlan::none().and(When::NthOf(kind, n), FaultError::Code(700));
            let fired = run("expandable_segments:True", Adversary::Eager, plan, &operations)
                .unwrap_or_else(|broken| panic!("{kind:?} {n}: {}", broken.0));
            if fired == 0 {
                break;
            }
            reached = true;
        }
        assert!(reached || kind == CallName::AddressFree, "{kind:?} is never called before the end");
    }
}
