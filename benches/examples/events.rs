//! Measures the events per second of a run under each policy, on one core.
//!
//! `cargo run --release -p parkade-benches --example events [-- POLICY...]`
//!
//! The workload is random: 100,000 events, about 1,000 buffers live at once, and sizes from 512 bytes to 64 MiB. After the
//! initial growth, few events reach the device, as in real programs. The policies take turns, round by round, so that other
//! load on the machine affects all of them equally; each policy's fastest round is shown, because other load can only slow it
//! down. The last column compares the policy with `pytorch`, which always runs.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::process::ExitCode;
use std::time::Instant;

use parkade_policies::{CATALOGUE, Named};
use parkade_research::study::{RunOptions, run};
use parkade_research::workload::{Event, Workload};

const EVENTS: u32 = 100_000;
const LIVE: usize = 1_000;
const ROUNDS: usize = 21;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = names.iter().find(|name| CATALOGUE.iter().all(|policy| policy.name != name.as_str())) {
        eprintln!("there is no policy {unknown:?}");
        return ExitCode::from(2);
    }
    let is_wanted =
        |policy: &&Named| names.is_empty() || policy.name == "pytorch" || names.iter().any(|name| *name == policy.name);
    let policies: Vec<&Named> = CATALOGUE.iter().filter(is_wanted).collect();
    let workload = random_workload();
    let mut fastest = vec![(f64::INFINITY, 0); policies.len()];
    for _ in 0..ROUNDS {
        for (policy, (ns, driver_calls)) in policies.iter().zip(&mut fastest) {
            let start = Instant::now();
            let outcome = run(&workload, policy.make(), &RunOptions::plenty());
            *ns = ns.min(start.elapsed().as_nanos() as f64 / workload.events.len() as f64);
            *driver_calls = outcome.driver_calls;
        }
    }
    // `pytorch` is the first in the catalogue.
    let (of_pytorch, _) = fastest[0];
    println!("{:<26}{:>14}{:>14}{:>16}{:>16}", "policy", "events/s", "ns/event", "driver calls", "time / pytorch");
    for (policy, (ns, driver_calls)) in policies.iter().zip(fastest) {
        println!("{:<26}{:>14.0}{:>14.1}{driver_calls:>16}{:>16.2}", policy.name, 1e9 / ns, ns, ns / of_pytorch);
    }
    ExitCode::SUCCESS
}

fn random_workload() -> Workload {
    let mut state = 1_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut live = Vec::new();
    let mut events = Vec::new();
    let mut buffer = 0;
    while events.len() < EVENTS as usize {
        if live.len() >= LIVE {
            let place = next() as usize % live.len();
            events.push(Event::Free { buffer: live.swap_remove(place) });
        }
        let bytes = 512 << (next() % 18);
        events.push(Event::Allocate { buffer, bytes: bytes + next() % bytes, stream: 0 });
        live.push(buffer);
        buffer += 1;
    }
    Workload { name: "random".into(), says: "random sizes and lifetimes".into(), events, ..Workload::default() }
}
