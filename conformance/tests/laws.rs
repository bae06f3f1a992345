//! What the suite's random sequences are worth: that they reach every rung of the ladder, and every threshold of the rules.

use parkade::stats::Family;
use parkade_conformance::Broken;
use parkade_conformance::harness::Simulated;
use parkade_conformance::operation::{Operation, Places, Setup, THRESHOLDS, operations, setup};
use parkade_conformance::rules::SETTINGS;
use parkade_conformance::world::{Finished, Outcome, World};
use parkade_sim::device::Adversary;
use proptest::strategy::{Strategy, ValueTree};

fn run(setup: &Setup, operations: &[Operation]) -> Result<Finished, Broken> {
    let mut world = World::new(&Simulated, setup).expect("a simulated device");
    for (number, operation) in operations.iter().enumerate() {
        world.apply(operation).map_err(|broken| broken.during(format!("operation {number}, {operation:?}")))?;
    }
    world.finish()
}

/// The random sequences would be worth little if they never met the interesting cases. This counts how many do.
#[test]
fn the_random_operations_reach_the_whole_ladder() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (setup(), operations(80..120));
    let (mut ooms, mut served, mut retries, mut collected, mut pending) = (0, 0, 0, 0, 0);
    for _ in 0..60 {
        let (setup, operations) = strategy.new_tree(&mut runner).expect("a case").current();
        let mut world = World::new(&Simulated, &setup).expect("a simulated device");
        for operation in &operations {
            let segments_given_back = world.core().stats().num_device_free;
            let outcome = world.apply(operation).expect("the laws hold");
            let stats = world.core().stats();
            match (operation, outcome) {
                (Operation::Allocate(..), Outcome::OutOfMemory) => ooms += 1,
                (Operation::Allocate(..), Outcome::Done) => {
                    served += 1;
                    collected += u64::from(stats.num_device_free > segments_given_back);
                }
                _ => {}
            }
            let active = stats.family(Family::Active).all.current;
            pending += u64::from(active > stats.family(Family::Allocation).all.current);
        }
        retries += world.core().stats().num_alloc_retries;
        world.finish().expect("nothing is left");
    }
    let reached = format!(
        "{served} requests served, {ooms} refused, {retries} retries, {collected} served by giving back, {pending} with pending blocks"
    );
    assert!(served > 500 && ooms > 50 && retries > 50 && collected > 20 && pending > 300, "{reached}");
}

/// Random sizes rarely meet the one byte at which a rule changes: here every pair of sizes around the thresholds does, the second
/// request finding the first one's memory free, under every setting.
#[test]
fn every_pair_of_sizes_at_the_thresholds() {
    let sizes: Vec<u64> = THRESHOLDS.iter().flat_map(|&size| [size - 511, size, size + 1]).collect();
    for settings in 0..SETTINGS.len() {
        let setup = Setup {
            capacity: 1 << 30,
            adversary: Adversary::Eager,
            settings,
            places: Places::Ascending,
            free_waits: false,
            is_virtual: false,
        };
        for &first in &sizes {
            for &second in &sizes {
                let operations = [Operation::Allocate(first, 0), Operation::Free(0), Operation::Allocate(second, 0)];
                run(&setup, &operations).unwrap_or_else(|broken| panic!("{setup:?}, {operations:?}: {broken}"));
            }
        }
    }
}
