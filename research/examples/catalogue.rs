//! How long each workload of the catalogue takes to make: `cargo run --release -p parkade-sim --example catalogue`.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::time::Instant;

use parkade_research::workload::CATALOGUE;

fn main() {
    for named in &CATALOGUE {
        let ms = (1..=5)
            .map(|seed| {
                let begin = Instant::now();
                let events = (named.make)(seed).events.len();
                (begin.elapsed().as_secs_f64() * 1e3, events)
            })
            .min_by(|one, other| one.0.total_cmp(&other.0))
            .unwrap_or_default();
        println!("{:24} {:7} events {:6.2} ms", named.name, ms.1, ms.0);
    }
}
