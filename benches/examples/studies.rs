//! Runs the small studies behind tables in docs/studies.md and docs/bounds.md: preallocation, the order of graph
//! captures, and the memory that adversaries force an allocator to use.
//!
//! `cargo run --release -p parkade-benches --example studies -- preallocation`, or `captures` or `adversaries`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::error::Error;

use parkade_policies::{BESIDE, CATALOGUE, Named};
use parkade_research::study::{LOAD_UNIT_BYTES, RunOptions, run, smallest_capacity};
use parkade_research::workload::generators::adversaries::{Robson, comb, fence, robson, stream_per_buffer};
use parkade_research::workload::{Workload, parse};
use rayon::prelude::*;

/// Training with mixed lifetimes, and with samples of different lengths.
const WORKLOADS: [&str; 2] = [
    "transformer:preset=gpt2-medium,batch=8,mixed=on,steps=6",
    "varlen:preset=gpt2,batch=16,lengths=lognormal/300/0.7,mixed=on,steps=12",
];

/// The preallocated memory, in percent of the load.
const EARLY_PERCENT: [u64; 4] = [0, 50, 90, 100];

/// A few batch sizes, so that a study takes only seconds.
const BATCHES: &str = "1/2/4/8/16/32/64/128/256";

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("preallocation") => preallocation(),
        Some("captures") => captures(),
        Some("adversaries") => adversaries(),
        _ => Err("name a study: preallocation, captures or adversaries".into()),
    }
}

fn preallocation() -> Result<(), Box<dyn Error>> {
    for text in WORKLOADS {
        let workload = parse(text)?;
        let load = workload.load_bytes(LOAD_UNIT_BYTES);
        println!("\n`{text}`, {} events, load {load} bytes\n", workload.events.len());
        println!("| policy | {} |", EARLY_PERCENT.map(|percent| format!("{percent} % early")).join(" | "));
        println!("|---|{}", "---|".repeat(EARLY_PERCENT.len()));
        for (policy, cells) in rows(|policy| EARLY_PERCENT.map(|percent| least(&workload, policy, load, percent))) {
            println!("| {policy} | {} |", cells.join(" | "));
        }
    }
    Ok(())
}

/// The smallest memory that suffices, and the memory reserved when there is plenty, both relative to the load.
fn least(workload: &Workload, policy: &Named, load: u64, percent: u64) -> String {
    let preallocated_bytes = (u128::from(load) * u128::from(percent) / 100) as u64;
    let options = RunOptions { preallocated_bytes, ..RunOptions::plenty() };
    let over = |bytes: u64| bytes as f64 / load as f64;
    match smallest_capacity(workload, &|| policy.make(), &options, &[]) {
        Ok(smallest) => {
            let plenty = run(workload, policy.make(), &options);
            format!("{:.3} ({:.3})", over(smallest.capacity_bytes), over(plenty.peak_reserved_bytes))
        }
        Err(outcome) => format!("{:?}", outcome.ending),
    }
}

fn captures() -> Result<(), Box<dyn Error>> {
    let orders = ["ascending", "descending", "shuffled"];
    let mut workloads = Vec::new();
    for shared in ["on", "off"] {
        for order in orders {
            workloads.push(parse(&format!("graphs:batches={BATCHES},order={order},shared={shared},eager_runs=0,warm_ups=0"))?);
        }
    }
    println!(
        "| policy | {} |",
        ["in one pool", "a pool each"].map(|pool| orders.map(|order| format!("{order}, {pool}")).join(" | ")).join(" | ")
    );
    println!("|---|{}", "---|".repeat(workloads.len()));
    let cell = |workload: &Workload, policy: &Named| {
        let outcome = run(workload, policy.make(), &RunOptions::plenty());
        match outcome.fits() {
            true => format!("{:.3}", outcome.peak_reserved_bytes as f64 / workload.load_bytes(LOAD_UNIT_BYTES) as f64),
            false => format!("{:?}", outcome.ending),
        }
    };
    for (policy, cells) in rows(|policy| workloads.iter().map(|workload| cell(workload, policy)).collect::<Vec<_>>()) {
        println!("| {policy} | {} |", cells.join(" | "));
    }
    Ok(())
}

fn adversaries() -> Result<(), Box<dyn Error>> {
    // A multiple of every policy's page size, so that no page is shared.
    let unit_bytes = 160 << 20;
    let numbers = Robson { unit_bytes, largest_units: 16, live_units: 256 };
    let plain = [comb(64, 20 << 20)?, fence(100)?, stream_per_buffer(100, 32, 1 << 30)?];
    println!("| policy | Robson's | {} |", plain.iter().map(|workload| workload.name.as_str()).collect::<Vec<_>>().join(" | "));
    println!("|---|---|{}", "---|".repeat(plain.len()));
    let row = |policy: &Named| {
        let attack = robson(policy.make(), numbers);
        let over = |reserved: u64, load: u64| format!("{:.2}", reserved as f64 / load as f64);
        let first = attack.map_or_else(|error| error.to_string(), |attack| over(attack.reserved_bytes, attack.load_bytes));
        let rest = plain.iter().map(|workload| {
            let outcome = run(workload, policy.make(), &RunOptions::plenty());
            if outcome.fits() {
                over(outcome.peak_reserved_bytes, workload.load_bytes(1))
            } else {
                format!("{:?}", outcome.ending)
            }
        });
        std::iter::once(first).chain(rest).collect::<Vec<_>>()
    };
    let beside = BESIDE.iter().map(|policy| (&*policy.name, row(policy)));
    for (policy, cells) in rows(row).into_iter().chain(beside) {
        println!("| {policy} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// One row for each policy, except those that take a fixed part of the device at the start, regardless of the
/// workload.
fn rows<T: Send>(row: impl Fn(&Named) -> T + Sync) -> Vec<(&'static str, T)> {
    let leaves_out = ["bfc:kind=one-region", "bfc:kind=xla", "rmm-pool"];
    let policies = CATALOGUE.par_iter().filter(|policy| !leaves_out.contains(&&*policy.name));
    policies.map(|policy| (&*policy.name, row(policy))).collect()
}
