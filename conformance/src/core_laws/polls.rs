//! Devices whose events complete in the order of their streams' handles: an allocator that stops at the first incomplete event
//! decides as one that asks every stream.

use std::collections::BTreeMap;

use crate::law::{Broken, Law, ensure};
use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade::{Allocation, Allocator};
use proptest::prelude::*;

use crate::core_laws::paper::Paper;
use crate::core_laws::run::{Draws, Outcome, run};

/// Handles of streams, lowest first. That is also their order in PyTorch's hash tables, in which the other device is asked.
const STREAMS: [u64; 4] = [0, 7, 0x1000, u64::MAX];

/// A device that says or keeps to itself that its events complete by handle.
#[derive(Debug)]
struct Device {
    says_so: bool,
    paper: Paper,
    /// Events recorded and complete so far, by stream.
    events: BTreeMap<StreamId, (u64, u64)>,
}

impl Device {
    /// Completes this many events, those of streams with lower handles first.
    fn complete(&mut self, mut count: u64) {
        for (recorded, done) in self.events.values_mut() {
            let more = count.min(*recorded - *done);
            *done += more;
            count -= more;
        }
    }
}

impl DeviceBackend for Device {
    type Event = (StreamId, u64);
    type Physical = ();

    fn completes_by_handle(&self) -> bool {
        self.says_so
    }

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        self.paper.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.paper.memory_info()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.paper.malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.paper.free(address)
    }

    fn create_event(&mut self) -> Result<(StreamId, u64), BackendError> {
        Ok((StreamId::DEFAULT, 0))
    }

    fn record_event(&mut self, event: &mut (StreamId, u64), stream: StreamId) -> Result<(), BackendError> {
        let (recorded, _) = self.events.entry(stream).or_default();
        *recorded += 1;
        *event = (stream, *recorded);
        Ok(())
    }

    fn is_complete(&mut self, &(stream, number): &(StreamId, u64)) -> Result<bool, BackendError> {
        let is_before = self.events.range(..stream).all(|(_, (recorded, done))| recorded == done);
        Ok(is_before && self.events.get(&stream).is_some_and(|(_, done)| number <= *done))
    }

    fn wait(&mut self, &(stream, number): &(StreamId, u64)) -> Result<(), BackendError> {
        self.events.range_mut(..stream).for_each(|(_, (recorded, done))| *done = *recorded);
        let (_, done) = self.events.entry(stream).or_default();
        *done = number.max(*done);
        Ok(())
    }

    fn destroy_event(&mut self, _: (StreamId, u64)) {}
}

/// One step; numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize),
    Record(usize, usize),
    Free(usize),
    Complete(u64),
    ProcessEvents,
    ReleaseCached,
}

struct Side {
    core: Allocator<Device, PyTorch, Vec<TraceEntry>>,
    held: Vec<Allocation>,
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![512, 4096, MIB, 3 * MIB, 12 * MIB]);
    let step = prop_oneof![
        8 => (sizes, which()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        10 => (which(), which()).prop_map(|(what, stream)| Step::Record(what, stream)),
        7 => which().prop_map(Step::Free),
        4 => (1..6_u64).prop_map(Step::Complete),
        2 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
    ];
    run(&draws.each_for(4), 359, &(any::<bool>(), prop::collection::vec(step, 1..80)), |(is_newer, steps)| {
        let (mut says_so, mut silent) = (Side::new(*is_newer, true), Side::new(*is_newer, false));
        for (number, step) in steps.iter().enumerate() {
            says_so.step(step)?;
            silent.step(step)?;
            let same = says_so.core.segments() == silent.core.segments()
                && says_so.core.stats() == silent.core.stats()
                && says_so.core.observer() == silent.core.observer();
            ensure(Law::Determinism, same, || {
                let [seen, expected] = [says_so.core.segments(), silent.core.segments()];
                format!("after step {number}, {step:?}, the segments are {seen:?}, expected {expected:?}")
            })?;
            says_so.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(steps.len() as u64)
    })
}

impl Side {
    fn new(is_newer: bool, says_so: bool) -> Side {
        let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let device = Device { says_so, paper: Paper::new(1 << 36), events: BTreeMap::new() };
        Side { core: Allocator::new(device, PyTorch::of(profile, Settings::default()), Vec::new()), held: Vec::new() }
    }

    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        let stream = |place: usize| StreamId(STREAMS[place % STREAMS.len()]);
        let failed = |error: &dyn std::error::Error| Broken::new(Law::Reference, error);
        match *step {
            Step::Allocate(size, place) => {
                self.held.push(self.core.allocate(Bytes(size), stream(place)).map_err(|error| failed(&error))?);
            }
            Step::Record(what, place) if !self.held.is_empty() => {
                self.core.record_stream(&self.held[what % self.held.len()], stream(place));
            }
            Step::Free(what) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(what % self.held.len());
                self.core.free(allocation).map_err(|error| failed(&error))?;
            }
            Step::Complete(count) => self.core.device_mut().complete(count),
            Step::ProcessEvents => self.core.process_events().map_err(|error| failed(&error))?,
            Step::ReleaseCached => self.core.release_cached().map_err(|error| failed(&error))?,
            Step::Record(..) | Step::Free(_) => {}
        }
        Ok(())
    }
}
