//! What the programs reach: a rung that no program gets to is not tested by any of them.

use parkade::policy::Coalescing;
use parkade::policy::catalogue::CATALOGUE;

use super::drawn;
use super::fixed::{captures, every_rung, stitching};
use super::step::Setup;
use super::subject::{Stopped, Subject};
use super::watched::Reached;
use crate::harness::Simulated;

fn reached(outcome: Result<Reached, Stopped>) -> Reached {
    match outcome {
        Ok(reached) => reached,
        Err(Stopped::Broken(broken, script)) => panic!("{broken}\n{script}"),
        Err(Stopped::Unable(unable)) => panic!("{unable}"),
    }
}

#[test]
fn blocks_change_streams_and_pages_their_places_under_policies_of_the_catalogue() {
    let mut total = Reached::default();
    for named in CATALOGUE {
        let make = named.make;
        let subject = Subject::new(named.name, move |_| make());
        for (setup, steps) in [every_rung(), stitching()] {
            total = total.and(reached(subject.whole_run(&Simulated, &setup, &steps)));
        }
    }
    assert!(total.transfers > 0 && total.remaps > 0, "{total:?}");
}

#[test]
fn the_policies_whose_calls_fail_move_memory_in_both_ways() {
    let (subject, (setup, steps)) = (drawn(), every_rung());
    let runs = subject.fault_seeds.iter().map(|&policy_seed| {
        let setup = Setup { policy_seed, ..setup };
        reached(subject.whole_run(&Simulated, &setup, &steps))
    });
    let runs: Vec<Reached> = runs.collect();
    let with = |count: fn(&Reached) -> u64| runs.iter().filter(|run| count(run) > 0).count();
    let (transfers, remaps) = (with(|run| run.transfers), with(|run| run.remaps));
    assert!(transfers >= 4 && remaps >= 4, "{transfers} policies of {} transfer, {remaps} remap", runs.len());
}

#[test]
fn private_pools_serve_under_every_policy_and_are_loaded_under_most_whose_neighbours_merge() {
    let (setup, steps) = captures();
    let (mut merge, mut load) = (0, 0);
    for named in CATALOGUE {
        let make = named.make;
        let subject = Subject::new(named.name, move |_| make());
        let run = reached(subject.whole_run(&Simulated, &setup, &steps));
        assert!(run.private > 0, "{}: {run:?}", named.name);
        merge += u32::from(make().coalescing() == Coalescing::Neighbours);
        load += u32::from(run.loads > 0);
    }
    // A pool that has changed streams cannot be loaded, nor one whose blocks are used elsewhere.
    assert!(merge > 8 && load * 3 >= merge * 2, "{load} of {merge} load");
}
