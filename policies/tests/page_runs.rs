//! Pages that the simulated device handles together: the results equal those of single pages, and a huge size from a
//! file costs neither time nor memory.

use parkade::policy::Policy;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_policies::{BESIDE, CATALOGUE};
use parkade_sim::{CallName, CallTotals, LogLevel, SimDevice, SimOptions};
use proptest::collection::vec;
use proptest::prelude::*;

const CAPACITY: Bytes = Bytes::mib(900);

#[derive(Clone, Copy, Debug)]
enum Step {
    Take {
        mib: u64,
        stream: u64,
    },
    Give {
        place: usize,
    },
    EmptyCache,
    /// Starts or stops logging each call of the other device.
    Look {
        is_looking: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop_oneof![1_u64..40, 100_u64..700], 0_u64..2).prop_map(|(mib, stream)| Step::Take { mib, stream }),
        5 => any::<usize>().prop_map(|place| Step::Give { place }),
        1 => Just(Step::EmptyCache),
        1 => any::<bool>().prop_map(|is_looking| Step::Look { is_looking }),
    ]
}

struct World {
    core: Allocator<SimDevice, Box<dyn Policy + Send>, Vec<TraceEntry>>,
    out: Vec<Allocation>,
}

/// The state of a device and its allocator that could differ.
#[derive(PartialEq, Debug)]
struct Seen {
    entries: Vec<TraceEntry>,
    totals: Vec<CallTotals>,
    now_ns: u64,
    used: [Bytes; 2],
    handles: usize,
}

impl World {
    fn new(policy: Box<dyn Policy + Send>, level: LogLevel) -> World {
        let mut device = SimDevice::new(SimOptions::new(CAPACITY));
        device.set_log_level(level);
        World { core: Allocator::new(device, policy, Vec::new()), out: Vec::new() }
    }

    fn act(&mut self, step: Step) -> Seen {
        match step {
            Step::Take { mib, stream } => {
                let taken = self.core.allocate(Bytes::mib(mib), StreamId(stream));
                self.out.extend(taken.ok());
            }
            Step::Give { place } if !self.out.is_empty() => {
                let given = self.out.swap_remove(place % self.out.len());
                self.core.free(given).expect("ours");
            }
            Step::EmptyCache => self.core.release_cached().expect("a device"),
            Step::Give { .. } | Step::Look { .. } => {}
        }
        self.core.check().expect("a sound heap");
        let device = self.core.device();
        Seen {
            totals: CallName::ALL.map(|name| device.totals(name)).to_vec(),
            now_ns: device.now_ns(),
            used: [device.used_bytes(), device.peak_used_bytes()],
            handles: device.live_physical(),
            entries: core::mem::take(self.core.observer_mut()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, max_shrink_iters: 512, ..ProptestConfig::default() })]

    /// Decisions, counts, prices, time and memory equal those with one call for each page, which the other device must
    /// make because of its log. This is also true if runs that were created together are released page by page.
    #[test]
    fn pages_taken_together_are_as_pages_taken_one_by_one(steps in vec(step(), 1..60)) {
        for named in CATALOGUE.iter().chain(BESIDE) {
            let mut single = World::new(named.make(), LogLevel::Memory);
            let mut together = World::new(named.make(), LogLevel::Off);
            for (at, &step) in steps.iter().enumerate() {
                if let Step::Look { is_looking } = step {
                    together.core.device_mut().set_log_level(if is_looking { LogLevel::Memory } else { LogLevel::Off });
                }
                prop_assert_eq!(together.act(step), single.act(step), "{}: step {} of {:?}", named.name, at, steps);
            }
            // It is dropped without freeing anything.
            drop(single.core);
        }
    }
}

/// Allocates one 64 TiB block on a device with one exbibyte: 33 million 2 MiB pages, in an instant.
#[test]
fn a_block_of_millions_of_pages_costs_nothing() {
    for named in CATALOGUE.iter().chain(BESIDE) {
        let device = SimDevice::new(SimOptions::new(Bytes(1 << 60)));
        let mut core = Allocator::new(device, named.make(), ());
        for _ in 0..3 {
            let served = core.allocate(Bytes(1 << 46), StreamId::DEFAULT);
            let served = served.unwrap_or_else(|error| panic!("{}: {error}", named.name));
            core.free(served).expect("ours");
            core.release_cached().expect("a device");
            core.check().expect("a sound heap");
        }
    }
}
