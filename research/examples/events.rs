//! Events per second of a run under each policy, on one core.
//!
//! `cargo run --release -p parkade-research --example events [-- POLICY...]`
//!
//! The workload is random: 100,000 events, about 1,000 buffers live at once, sizes from 512 bytes to 64 MiB. After
//! the first growth few events reach the device, as in real programs. The policies take turns, round by round, so
//! that other load on the machine affects all of them alike; the median of each policy's rounds is shown.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::process::ExitCode;
use std::time::Instant;

use parkade_policies::{CATALOGUE, Named};
use parkade_research::study::{Outcome, RunOptions, run};
use parkade_research::workload::{Event, Workload};

const EVENTS: u32 = 100_000;
const LIVE: usize = 1_000;
const ROUNDS: usize = 11;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = names.iter().find(|name| CATALOGUE.iter().all(|policy| policy.name != name.as_str())) {
        eprintln!("there is no policy {unknown:?}");
        return ExitCode::from(2);
    }
    let is_wanted = |policy: &&Named| names.is_empty() || names.iter().any(|name| name == policy.name);
    let policies: Vec<&Named> = CATALOGUE.iter().filter(is_wanted).collect();
    let workload = random_workload();
    let mut rounds: Vec<Vec<(f64, Outcome)>> = vec![Vec::new(); policies.len()];
    for _ in 0..ROUNDS {
        for (policy, rounds) in policies.iter().zip(&mut rounds) {
            let start = Instant::now();
            let outcome = run(&workload, (policy.make)(), &RunOptions::plenty());
            rounds.push((start.elapsed().as_nanos() as f64 / workload.events.len() as f64, outcome));
        }
    }
    println!("{:<26}{:>14}{:>14}{:>16}", "policy", "events/s", "ns/event", "driver calls");
    for (policy, mut rounds) in policies.iter().zip(rounds) {
        rounds.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
        let (ns, outcome) = &rounds[ROUNDS / 2];
        println!("{:<26}{:>14.0}{:>14.1}{:>16}", policy.name, 1e9 / ns, ns, outcome.driver_calls);
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
