//! Where NVIDIA's driver placed the segments of real runs, and how many of these placements the observed rules explain.
//!
//! `placements.txt` holds the segments of some of the recordings in `conformance/recordings`. A test compares it with them. A line
//! with the recording's name and the number that the documentation of `sim/src/address/observed_driver.rs` gives is followed by
//! the steps: the request's place in the trace, `+` for a cudaMalloc or `-` for a cudaFree, the address in hexadecimal and the
//! length, both in units of 2 MiB.

use parkade_sim::PAGE_BYTES;
use parkade_sim::address::{LearnedAddressSpace, PlacementStep};

use crate::law::{Broken, Law, ensure};

const TEXT: &str = include_str!("placements.txt");

/// The placements of one recording.
struct Recorded {
    name: &'static str,
    explained: usize,
    steps: Vec<PlacementStep>,
}

fn step(word: &str) -> Option<PlacementStep> {
    let sign = word.find(['+', '-'])?;
    let (address, pages) = word[sign + 1..].split_once(',')?;
    Some(PlacementStep {
        moment: word[..sign].parse().ok()?,
        taken: &word[sign..=sign] == "+",
        address: u64::from_str_radix(address, 16).ok()? * PAGE_BYTES,
        bytes: pages.parse::<u64>().ok()? * PAGE_BYTES,
    })
}

fn recorded() -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    for line in TEXT.lines() {
        match (line.split_once(" explained "), all.last_mut()) {
            (Some((name, explained)), _) => {
                all.push(Recorded { name, explained: explained.parse().unwrap_or(0), steps: Vec::new() });
            }
            (None, Some(last)) => last.steps.extend(line.split(' ').filter_map(step)),
            (None, None) => {}
        }
    }
    all
}

/// Learns from each recording. `repeats` checks that the learned model repeats the steps.
pub(super) fn check(repeats: impl Fn(&LearnedAddressSpace, &[PlacementStep]) -> Result<(), Broken>) -> Result<u64, Broken> {
    let mut operations = 0;
    for Recorded { name, explained, steps } in recorded() {
        let learned = LearnedAddressSpace::from_steps(&steps);
        let seen = (learned.placements, learned.explained, learned.unexplained);
        let expected = (steps.iter().filter(|step| step.taken).count(), explained, 0);
        ensure(Law::Device, seen == expected, || {
            format!("{name}: placements, explained and unexplained ones are {seen:?}, expected {expected:?}")
        })?;
        repeats(&learned, &steps).map_err(|broken| broken.during(name))?;
        operations += steps.len() as u64;
    }
    Ok(operations)
}
