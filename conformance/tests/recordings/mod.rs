//! Tests on the recordings of real runs: verification, prediction, export, advice and diagnosis, and the real
//! allocator's answers. Without the recordings, a test fails with the reason.

mod advise;
mod caution;
mod diagnose;
mod digests;
mod export;
mod golden;
mod packing;
mod placements;
mod predictions;
mod releases;
mod self_check;
mod settings_change;
mod several_runs;
mod verified;
mod workloads;

use parkade_conformance::shipped::{self, Shipped, ShippedError};

fn loaded<T>(result: Result<T, ShippedError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The names of the recordings in `conformance/recordings`.
fn names() -> Vec<String> {
    loaded(shipped::names())
}

/// Reads one of these recordings.
fn read(name: &str) -> Shipped {
    loaded(shipped::read(name))
}

/// Reads a recording in `conformance/recordings/pools`: programs that drop private pools while they run.
fn read_with_pools(name: &str) -> Shipped {
    loaded(shipped::read_from(&shipped::folder().join("pools"), name))
}

/// Reads all recordings in that folder.
fn all_with_pools() -> Vec<Shipped> {
    let names = loaded(shipped::names_in(&shipped::folder().join("pools")));
    names.iter().map(|name| read_with_pools(name)).collect()
}

/// Reads the recordings in `conformance/recordings/workloads`: kinds of programs for studies of policies.
fn all_workloads() -> Vec<Shipped> {
    let folder = shipped::folder().join("workloads");
    loaded(shipped::names_in(&folder)).iter().map(|name| loaded(shipped::read_from(&folder, name))).collect()
}
