//! The window law on a folder of recordings: each is cut at many places, and what does not verify is listed.
//!
//! `cargo run --release -p parkade-conformance --example windows -- FOLDER CUTS [NAME]`
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a tool for people")]

use std::path::Path;

use parkade_oracle::shipped::{describe, names_in, read_from};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, cuts, rest @ ..] = arguments.as_slice() else { return eprintln!("windows FOLDER CUTS [NAME]") };
    let folder = Path::new(folder);
    let cuts: usize = cuts.parse().unwrap_or(100);
    for name in names_in(folder).iter().filter(|name| rest.is_empty() || rest.contains(name)) {
        let shipped = read_from(folder, name);
        let entries = shipped.device().trace.len();
        let (mut tried, mut failed, mut first) = (0, Vec::new(), None);
        let start = std::time::Instant::now();
        for lost in (0..entries).step_by((entries / cuts).max(1)) {
            tried += 1;
            let verdict = shipped.verify(&shipped.without_beginning(lost));
            if !verdict.as_ref().is_ok_and(|verdict| verdict.mismatches == 0) {
                failed.push(lost);
                first.get_or_insert_with(|| format!("    from entry {lost}: {}", describe(&verdict)));
            }
        }
        println!(
            "{name}: {tried} cuts, {} fail, {:.1} s {:?}",
            failed.len(),
            start.elapsed().as_secs_f64(),
            &failed[..failed.len().min(12)]
        );
        if let Some(first) = first {
            println!("{first}");
        }
    }
}
