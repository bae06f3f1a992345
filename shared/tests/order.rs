//! Checks that several threads get the same results as a single thread that makes the same requests in the order in
//! which they took the lock: the same addresses, errors, trace, statistics and segments.
//!
//! Random programs run on several threads at the same time. One test records the order under the lock. The other test
//! uses the methods as programs do, and reads the order from the trace.

use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex, PoisonError};

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, Allocator};
use parkade_shared::{Error, Shared};
use parkade_sim::{EventTiming, SimDevice, SimOptions};
use proptest::prelude::*;

type Core = Allocator<SimDevice, PyTorch, Vec<TraceEntry>>;
type Answer = Result<DeviceAddress, Error>;

/// Creates a core with little memory, so that requests fail and segments are released.
fn core(settings: &Settings, seed: u64) -> Core {
    let device = SimDevice::new(SimOptions::new(Bytes::mib(160)).event_timing(EventTiming::Seeded(seed)));
    Allocator::new(device, PyTorch::new(settings.clone()), Vec::new())
}

/// A step of a thread's program. `place` chooses one of the thread's blocks.
#[derive(Clone, Debug)]
enum Step {
    Allocate {
        bytes: u64,
        stream: u64,
    },
    Free {
        place: usize,
    },
    /// Frees an address again that this thread has freed before, or the block that has since been handed out there.
    FreeAgain {
        place: usize,
    },
    FreeInside {
        place: usize,
    },
    RecordStream {
        place: usize,
        stream: u64,
    },
    /// Leaves a block to another thread.
    Leave {
        place: usize,
    },
    /// Takes over a block that another thread has left.
    TakeOver,
    ReleaseCached,
    ResetPeaks,
}

/// A request as the lock's holder sees it.
#[derive(Clone, Copy, Debug)]
enum Request {
    Allocate(Bytes, StreamId),
    Free(DeviceAddress),
    RecordStream(DeviceAddress, StreamId),
    ReleaseCached,
    ResetPeaks,
}

/// One thread's blocks, and those that it has freed.
#[derive(Default)]
struct Blocks {
    held: Vec<DeviceAddress>,
    freed: Vec<DeviceAddress>,
}

impl Blocks {
    /// Returns the request of a step; `None` if the step makes none.
    fn request(&mut self, step: &Step, left: &Mutex<Vec<DeviceAddress>>) -> Option<Request> {
        let chosen = |blocks: &[DeviceAddress], place: usize| (!blocks.is_empty()).then(|| place % blocks.len());
        match *step {
            Step::Allocate { bytes, stream } => Some(Request::Allocate(Bytes(bytes), StreamId(stream))),
            Step::Free { place } => {
                let address = self.held.swap_remove(chosen(&self.held, place)?);
                self.freed.push(address);
                Some(Request::Free(address))
            }
            Step::FreeAgain { place } => Some(Request::Free(self.freed[chosen(&self.freed, place)?])),
            Step::FreeInside { place } => Some(Request::Free(self.held[chosen(&self.held, place)?].offset(Bytes(256)))),
            Step::RecordStream { place, stream } => {
                Some(Request::RecordStream(self.held[chosen(&self.held, place)?], StreamId(stream)))
            }
            Step::Leave { place } => {
                let address = self.held.swap_remove(chosen(&self.held, place)?);
                left.lock().expect("no thread panics").push(address);
                None
            }
            Step::TakeOver => {
                self.held.extend(left.lock().expect("no thread panics").pop());
                None
            }
            Step::ReleaseCached => Some(Request::ReleaseCached),
            Step::ResetPeaks => Some(Request::ResetPeaks),
        }
    }
}

fn steps(streams: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![1_u64..4 << 10, 1_u64..2 << 20, 1_u64..40 << 20];
    let place = any::<usize>();
    let step = prop_oneof![
        8 => (bytes, streams.clone()).prop_map(|(bytes, stream)| Step::Allocate { bytes, stream }),
        6 => place.prop_map(|place| Step::Free { place }),
        1 => place.prop_map(|place| Step::FreeAgain { place }),
        1 => place.prop_map(|place| Step::FreeInside { place }),
        2 => (place, streams).prop_map(|(place, stream)| Step::RecordStream { place, stream }),
        1 => place.prop_map(|place| Step::Leave { place }),
        1 => Just(Step::TakeOver),
        1 => Just(Step::ReleaseCached),
        1 => Just(Step::ResetPeaks),
    ];
    proptest::collection::vec(step, 1..150)
}

/// Runs one closure per program, each on its own thread, all at the same time.
fn at_once(programs: &[Vec<Step>], run: impl Fn(usize, &[Step]) + Sync) {
    let start = Barrier::new(programs.len());
    std::thread::scope(|scope| {
        for (number, steps) in programs.iter().enumerate() {
            let (start, run) = (&start, &run);
            scope.spawn(move || {
                start.wait();
                run(number, steps);
            });
        }
    });
}

/// A core for a single thread. It receives the requests one by one, by handle.
struct Alone {
    core: Core,
    blocks: BTreeMap<DeviceAddress, Allocation>,
}

impl Alone {
    fn new(core: Core) -> Alone {
        Alone { core, blocks: BTreeMap::new() }
    }

    /// Returns the answer to a request; `None` for an address that no block has.
    fn answer(&mut self, request: Request) -> Option<Answer> {
        let none = Ok(DeviceAddress(0));
        Some(match request {
            Request::Allocate(bytes, stream) => self.core.allocate(bytes, stream).map_err(Error::Refused).map(|allocation| {
                let address = allocation.address();
                assert_eq!(self.blocks.insert(address, allocation), None, "{address} was handed out twice");
                address
            }),
            Request::Free(address) => {
                self.core.free(self.blocks.remove(&address)?).expect("the device records events");
                none
            }
            Request::RecordStream(address, stream) => {
                self.core.record_stream(self.blocks.get(&address)?, stream);
                none
            }
            Request::ReleaseCached => self.core.release_cached().map_err(Error::Refused).and(none),
            Request::ResetPeaks => {
                self.core.reset_peak_stats();
                none
            }
        })
    }
}

fn assert_same(shared: Shared<SimDevice, PyTorch, Vec<TraceEntry>>, alone: &Alone) {
    let shared = shared.into_inner().expect("no thread panicked");
    let (shared, alone) = (shared.allocator(), &alone.core);
    assert_eq!(shared.observer(), alone.observer(), "trace");
    assert_eq!(shared.stats().entries(), alone.stats().entries(), "statistics");
    assert_eq!(shared.segments(), alone.segments(), "segments");
    shared.check().expect("the heap is valid");
}

proptest! {
    // A program that fails once may not fail again, so shrinking and saving it would be of little use.
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_those_of_one_core_in_the_order_of_the_lock(
        programs in proptest::collection::vec(steps(0..3), 2..5),
        expandable_segments in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let settings = Settings { expandable_segments, ..Settings::default() };
        let shared = Shared::new(core(&settings, seed));
        let (order, left) = (Mutex::new(Vec::new()), Mutex::default());
        at_once(&programs, |_, steps| {
            let mut blocks = Blocks::default();
            for step in steps {
                let Some(request) = blocks.request(step, &left) else { continue };
                let answer = shared.with(|core| {
                    let none = DeviceAddress(0);
                    let answer: Answer = match request {
                        Request::Allocate(bytes, stream) => core.allocate(bytes, stream).map_err(Error::Refused),
                        Request::Free(address) => core.free(address).map(|()| none),
                        Request::RecordStream(address, stream) => {
                            core.record_stream(address, stream).map_err(Error::Address).map(|()| none)
                        }
                        Request::ReleaseCached => core.allocator_mut().release_cached().map_err(Error::Refused).map(|()| none),
                        Request::ResetPeaks => {
                            core.allocator_mut().reset_peak_stats();
                            Ok(none)
                        }
                    };
                    order.lock().unwrap_or_else(PoisonError::into_inner).push((request, answer.clone()));
                    answer
                });
                if let (Request::Allocate(..), Ok(address)) = (request, answer.expect("no thread panics")) {
                    blocks.held.push(address);
                }
            }
        });
        let mut alone = Alone::new(core(&settings, seed));
        for (request, answer) in order.into_inner().expect("no thread panics") {
            match alone.answer(request) {
                Some(expected) => prop_assert_eq!(answer, expected, "{:?}", request),
                None => prop_assert!(matches!(answer, Err(Error::Address(_))), "{:?}: {:?}", request, answer),
            }
        }
        assert_same(shared, &alone);
    }

    #[test]
    fn calls_without_a_closure_are_in_the_order_of_the_trace(
        programs in proptest::collection::vec(steps(0..1), 2..5),
        seed in any::<u64>(),
    ) {
        let settings = Settings::default();
        let shared = Shared::new(core(&settings, seed));
        let (answers, left) = (Mutex::new(Vec::new()), Mutex::default());
        at_once(&programs, |number, steps| {
            let mut blocks = Blocks::default();
            for step in steps {
                match blocks.request(step, &left) {
                    Some(Request::Allocate(bytes, _)) => {
                        let stream = StreamId(number as u64);
                        let answer = shared.allocate(bytes, stream);
                        blocks.held.extend(answer.as_ref().ok());
                        answers.lock().expect("no thread panics").push((stream, bytes, answer.ok()));
                    }
                    Some(Request::Free(address)) => {
                        // Another thread may already have freed it: an address may be freed twice.
                        let freed = shared.free(address);
                        assert!(matches!(freed, Ok(()) | Err(Error::Address(_))), "{freed:?}");
                    }
                    // The other requests produce no entry.
                    _ => {}
                }
            }
        });
        let mut alone = Alone::new(core(&settings, seed));
        let mut expected = Vec::new();
        let trace = shared.with(|core| core.allocator().observer().clone()).expect("no thread panics");
        for entry in trace {
            let request = match entry.action {
                TraceAction::Alloc | TraceAction::Oom => Request::Allocate(Bytes(entry.size), entry.stream),
                TraceAction::FreeRequested => Request::Free(DeviceAddress(entry.address)),
                _ => continue,
            };
            let answer = alone.answer(request).expect("only blocks are freed");
            if entry.action == TraceAction::Alloc {
                expected.push((entry.stream, Bytes(entry.size), answer.ok()));
            }
        }
        let mut answers = answers.into_inner().expect("no thread panics");
        answers.retain(|(_, _, address)| address.is_some());
        answers.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(answers, expected);
        assert_same(shared, &alone);
    }
}
