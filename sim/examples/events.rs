//! How many events a second a run carries out, policy by policy, on one core:
//! `cargo run --release -p parkade-sim --example events`.
//!
//! The workload is drawn: 100,000 events, some 1,000 buffers live at once, sizes from 512 bytes to 64 MiB. Between the first
//! growth and the end few events reach the device, as in programs.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::time::Instant;

use parkade::policy::catalogue::CATALOGUE;
use parkade_sim::study::{RunOptions, run};
use parkade_sim::workload::{Event, Workload};

const EVENTS: u32 = 100_000;
const LIVE: usize = 1_000;

fn main() {
    let workload = drawn();
    println!("{:<26}{:>14}{:>14}{:>10}", "policy", "events/s", "ns/event", "outcome");
    for policy in CATALOGUE {
        let rounds = 10;
        let start = Instant::now();
        let mut outcome = None;
        for _ in 0..rounds {
            outcome = Some(run(&workload, (policy.make)(), &RunOptions::plenty()));
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(rounds) / workload.events.len() as f64;
        let calls = outcome.map_or(0, |outcome| outcome.driver_calls);
        println!("{:<26}{:>14.0}{:>14.1}{:>7} calls", policy.name, 1e9 / ns, ns, calls);
    }
}

fn drawn() -> Workload {
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
    Workload { name: "drawn".into(), says: "random sizes and lifetimes".into(), events }
}
