//! Tests workloads made from recordings of real runs, and compares a generated workload with its
//! recording.

use parkade_conformance::shipped;
use parkade_policies::{BESIDE, CATALOGUE};
use parkade_replay::Requests;
use parkade_research::packing::{Instance, Recorded};
use parkade_research::study::{RunOptions, make_for, run};
use parkade_research::workload::generators::mlp::Mlp;
use parkade_research::workload::{Event, recorded};
use rayon::prelude::*;

use super::{all_with_pools, all_workloads, names, read};

/// Two separate pieces of code create the workload and the packer's buffers from a recording; the lifetimes in the two
/// must agree.
#[test]
fn the_workload_of_a_recording_has_the_load_that_the_packer_knows() {
    let with_pools = all_with_pools().into_iter().map(|shipped| (shipped, true));
    let all: Vec<_> = names().into_iter().map(|name| (read(&name), false)).chain(with_pools).collect();
    assert_eq!(all.len(), 23);
    for (shipped, has_pools) in all {
        let name = &shipped.name;
        let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
        let made = recorded::of_requests(name, &requests);
        assert_eq!(made.workload.check(), Ok(()), "{name}");
        assert_eq!((made.failed_requests, made.unnamed_requests), (requests.ooms, 0), "{name}");
        let packed = Recorded::of(&requests);
        let load = Instance::new(packed.buffers).expect("buffers").load();
        assert_eq!(made.workload.load_bytes(512), load, "{name}");
        let is_late = made.late_frees + made.missing_frees > 0;
        assert_eq!(is_late, requests.has_deferred_frees(), "{name}");
        let begun = made.workload.events.iter().any(|event| matches!(event, Event::BeginPool { .. }));
        assert_eq!(begun, has_pools, "{name}");
    }
}

/// The generated perceptron makes the requests of the recorded program.
#[test]
fn the_generated_perceptron_asks_as_the_recorded_program() {
    let shipped = read("deep_mlp.default");
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
    let sizes = |events: &[Event]| -> Vec<u64> {
        events.iter().filter_map(|event| if let Event::Allocate { bytes, .. } = *event { Some(bytes) } else { None }).collect()
    };
    let recorded = sizes(&recorded::of_requests("deep_mlp", &requests).workload.events);
    let generated = sizes(&Mlp::default().workload(1).expect("a workload").events);
    // The weights, the batch and the forward pass without its sum, before which cuBLAS requests its workspaces.
    let large = |sizes: &[u64]| sizes.iter().copied().filter(|&bytes| bytes > 128).take(40 + 1 + 40 + 2).collect::<Vec<_>>();
    let sorted = |mut sizes: Vec<u64>| {
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sorted(large(&recorded)), sorted(large(&generated)));
    assert_eq!(recorded[..41], generated[..41]);
}

/// The largest packed recording in `conformance/recordings/workloads`, in bytes; `record_on_gpu/workloads.py` has the same number.
const MOST_BYTES: u64 = 300_000;

/// The programs in `conformance/recordings/workloads` verify, with all their statistics, and are small.
#[test]
fn recorded_workloads_verify_and_are_small() {
    let all = all_workloads();
    assert_eq!(all.len(), 8);
    for shipped in all {
        let name = &shipped.name;
        let verdict = shipped.verify(shipped.device()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verdict.mismatches, 0, "{name}: {:?}", verdict.first);
        assert!(verdict.not_in_file.lost_beginning.is_none(), "{name}: the recording is complete");
        let statistics = verdict.stats_check.expect("statistics were given");
        assert_eq!((&statistics.differences[..], statistics.compared), (&[][..], 122), "{name}");
        let file = shipped::folder().join(format!("workloads/{name}.pickle.xz"));
        let packed_bytes = std::fs::metadata(file).expect("a file").len();
        assert!(packed_bytes <= MOST_BYTES, "{name} has {packed_bytes} bytes");
    }
}

/// Every policy serves every one of these programs.
#[test]
fn recorded_workloads_run_under_every_policy() {
    all_workloads().into_par_iter().for_each(|shipped| {
        let name = &shipped.name;
        let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
        let workload = recorded::of_requests(name, &requests).workload;
        assert_eq!(workload.check(), Ok(()), "{name}");
        assert!(workload.events.len() > 30_000, "{name} has {} events", workload.events.len());
        for policy in CATALOGUE.iter().chain(BESIDE) {
            let outcome = run(&workload, make_for(policy, &workload)(), &RunOptions::plenty());
            assert!(outcome.fits(), "{name} under {}: {outcome:?}", policy.name);
            assert!(outcome.peak_reserved_bytes >= workload.load_bytes(1), "{name} under {}", policy.name);
        }
    });
}
