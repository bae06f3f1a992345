//! Sequences that random draws rarely produce: every pair of sizes at the rules' thresholds, and every rung of the ladder.

use parkade::units::MIB;

use super::campaign::{Stopped, run_sequence};
use crate::backend::{AnyBackend, EventTiming, Places};
use crate::checks::laws_pytorch::operation::Operation::{
    Allocate, CompleteAll, Free, OthersHold, RecordStream, ReleaseCached, SetFraction,
};
use crate::checks::laws_pytorch::operation::{Operation, Setup, THRESHOLDS};
use crate::reference_model::SETTINGS;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// With at least this many sequences per law, every pair of sizes is tried under every setting.
const ALL_PAIRS_FROM: u32 = 250;

/// The entries of these sequences. There are too many pairs for a real device.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "each rung gives back exactly what it must, under every setting";
    let mut entries = vec![Entry::new(Group::Law, "ladder/every-rung", says, every_rung)];
    if backend.is_simulated() {
        let says = "every pair of sizes at the thresholds is placed as the rules say, under every setting";
        entries.push(Entry::new(Group::Law, "placement/pairs-at-thresholds", says, pairs));
    }
    entries
}

fn setup(settings: usize, capacity_mib: u64, timing: EventTiming) -> Setup {
    let places = Places::Ascending;
    Setup { capacity: capacity_mib * MIB, timing, settings, places, free_waits: false, is_virtual: false }
}

fn check(backend: &AnyBackend, setup: &Setup, sequence: &[Operation]) -> Result<(), Trouble> {
    run_sequence(backend, setup, sequence).map_err(|stopped| match stopped {
        Stopped::Unable(unable) => unable.into(),
        Stopped::Broken(broken, script) => Trouble::Fail { reason: format!("{setup:?}: {broken}"), script: Some(script) },
    })
}

/// Frees the first request before the second, so that the second finds its memory free.
fn pairs(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let sizes: Vec<u64> = THRESHOLDS.iter().flat_map(|&size| [size - 511, size, size + 1]).collect();
    // With little effort each pair is tried under a third of the settings, which differs from pair to pair.
    let stride = if effort.cases < ALL_PAIRS_FROM { 3 } else { 1 };
    let mut tried = 0;
    for settings in 0..SETTINGS.len() {
        let setup = setup(settings, 1024, EventTiming::Eager);
        for (row, &first) in sizes.iter().enumerate() {
            for (column, &second) in sizes.iter().enumerate() {
                if !(settings + row + column).is_multiple_of(stride) {
                    continue;
                }
                tried += 1;
                check(backend, &setup, &[Allocate(first, 0), Free(0), Allocate(second, 0)])?;
            }
        }
    }
    let measured = format!("{tried} pairs of {} sizes, {} settings", sizes.len(), SETTINGS.len());
    Ok(Evidence { operations: 3 * tried, measured, text: String::new() })
}

/// Allocates segments of these sizes in MiB, then frees them all.
fn freed(sizes: &[u64]) -> Vec<Operation> {
    let taken = sizes.iter().map(|&mib| Allocate(mib * MIB, 0));
    taken.chain(sizes.iter().map(|_| Free(0))).collect()
}

/// A program for each rung, on a device of 200 MiB.
fn programs() -> Vec<Vec<Operation>> {
    let others = |mut program: Vec<Operation>, rest: &[Operation]| {
        program.extend_from_slice(rest);
        program
    };
    vec![
        // Oversize segments: one is enough; several are, and some may stay; all of them are not enough.
        others(freed(&[34, 36, 44, 50]), &[Allocate(42 * MIB, 0), Allocate(45 * MIB, 0)]),
        others(freed(&[34, 36, 44, 50, 20]), &[Allocate(90 * MIB, 0)]),
        others(freed(&[34, 36, 44, 50]), &[Allocate(180 * MIB, 0)]),
        others(freed(&[34, 36, 66, 60]), &[Allocate(72 * MIB, 1), Allocate(110 * MIB, 0)]),
        // Garbage of different ages.
        others(
            freed(&[22, 30, 26]),
            &[
                SetFraction(90),
                Allocate(24 * MIB, 1),
                Allocate(40 * MIB, 2),
                Free(0),
                Allocate(50 * MIB, 1),
                Allocate(60 * MIB, 2),
            ],
        ),
        // Waiting for two streams, and then still not enough.
        vec![
            Allocate(80 * MIB, 0),
            Allocate(700, 0),
            RecordStream(0, 1),
            RecordStream(0, 2),
            Free(0),
            Allocate(150 * MIB, 0),
            CompleteAll,
            Allocate(60 * MIB, 3),
        ],
        // The limit, reached exactly and exceeded by one page; others take memory and give it back.
        vec![SetFraction(60), Allocate(100 * MIB, 0), Allocate(20 * MIB, 0), Allocate(512, 0), Free(0), Allocate(102 * MIB, 1)],
        vec![
            Allocate(20 * MIB, 0),
            OthersHold(170 * MIB),
            Allocate(30 * MIB, 0),
            OthersHold(0),
            Allocate(30 * MIB, 0),
            ReleaseCached,
        ],
    ]
}

fn every_rung(backend: &AnyBackend, _: &Effort) -> Verdict {
    let programs = programs();
    let timings = if backend.is_simulated() { vec![EventTiming::Lazy, EventTiming::Eager] } else { vec![EventTiming::Clock] };
    for &timing in &timings {
        for settings in 0..SETTINGS.len() {
            for program in &programs {
                check(backend, &setup(settings, 200, timing), program)?;
            }
        }
    }
    let operations = (timings.len() * SETTINGS.len()) as u64 * programs.iter().map(|program| program.len() as u64).sum::<u64>();
    Ok(Evidence {
        operations,
        measured: format!("{} programs, {} settings", programs.len(), SETTINGS.len()),
        text: String::new(),
    })
}
