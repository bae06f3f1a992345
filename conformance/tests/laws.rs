//! Tests the coverage of the suite's random sequences: they reach every rung of the ladder.

use parkade::stats::Family;
use parkade_conformance::backend::AnyBackend;
use parkade_conformance::checks::laws_pytorch::operation::{Operation, operations, setup};
use parkade_conformance::checks::laws_pytorch::trial::{Outcome, Trial};
use proptest::strategy::{Strategy, ValueTree};

/// Random sequences prove little if they never reach the interesting cases, so this test counts how
/// many do.
#[test]
fn the_random_operations_reach_the_whole_ladder() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (setup(), operations(80..120));
    let (mut ooms, mut served, mut retries, mut collected, mut pending) = (0, 0, 0, 0, 0);
    for _ in 0..60 {
        let (setup, operations) = strategy.new_tree(&mut runner).expect("a case").current();
        let mut trial = Trial::new(&AnyBackend::simulated(), &setup).expect("a simulated device is available");
        for operation in &operations {
            let segments_given_back = trial.core().stats().num_device_free;
            let outcome = trial.apply(operation).expect("the laws hold");
            let stats = trial.core().stats();
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
        retries += trial.core().stats().num_alloc_retries;
        trial.finish().expect("nothing is left");
    }
    let reached = format!(
        "{served} requests served, {ooms} refused, {retries} retries, {collected} served after releases, {pending} with pending blocks"
    );
    assert!(served > 500 && ooms > 50 && retries > 50 && collected > 20 && pending > 300, "{reached}");
}
