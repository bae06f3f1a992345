//! Runs programs against the laws: random sequences of one kind under one event timing, run once for all laws that are
//! checked after every operation; sequences that random draws rarely produce; and random cases for laws that need their
//! own programs.
//!
//! The first law of a campaign runs the sequences; the others read the result. A sequence that breaks a law is shrunk and
//! becomes a script for `parkade ops`.
//!
//! The fixed sequences cover every pair of sizes at the rules' thresholds and every rung of the ladder.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::OnceLock;

use parkade::units::MIB;
use proptest::prelude::*;
use proptest::strategy::Strategy;
use proptest::test_runner::{TestCaseError, TestError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::operation::Operation::{Allocate, CompleteAll, Free, OthersHold, RecordStream, ReleaseCached, SetFraction};
use super::operation::{Operation, Setup, THRESHOLDS, operations_for, setup_under, virtual_setup_under};
use super::trial::Trial;
use crate::backend::{AnyBackend, EventTiming, Places, Unable};
use crate::law::{Broken, Law};
use crate::program::search::{hunt, program_line};
use crate::reference_model::SETTINGS;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// The maximum length of a sequence.
const LONGEST: usize = 120;

/// The findings of a campaign.
#[derive(Clone, Debug)]
struct Found {
    operations: u64,
    sequences: u32,
    broken: Option<(Broken, String)>,
}

/// Sequences of one kind under one event timing.
#[derive(Debug)]
pub(super) struct Campaign {
    timing: EventTiming,
    is_virtual: bool,
    found: OnceLock<Result<Found, Unable>>,
}

impl Campaign {
    pub(super) fn new(timing: EventTiming, is_virtual: bool) -> Campaign {
        Campaign { timing, is_virtual, found: OnceLock::new() }
    }

    /// Returns whether sequences of this kind check the law. The model knows the ladder only for ordinary segments, and
    /// private pools occur only where segments may be expandable.
    pub(super) fn checks(&self, law: Law) -> bool {
        law != if self.is_virtual { Law::Ladder } else { Law::Pools }
    }

    /// Returns the verdict of the sequences on one law.
    pub(super) fn verdict(&self, law: Law, backend: &AnyBackend, effort: &Effort) -> Verdict {
        let mut is_first = false;
        let found = self.found.get_or_init(|| {
            is_first = true;
            self.run(backend, effort)
        });
        let found = found.clone()?;
        let measured = format!("{} operations in {} sequences", found.operations, found.sequences);
        match found.broken {
            Some((broken, script)) if broken.law == law => Err(Trouble::Fail { reason: broken.seen, script: Some(script) }),
            // If a law without an entry here is broken (for example, the law about failing calls), that must not go
            // unnoticed.
            Some((broken, _)) => Err(Trouble::fail(format!("{measured} before a different law was broken: {broken}"))),
            // The operations are counted only for one law.
            None => Ok(Evidence { measured, operations: if is_first { found.operations } else { 0 }, text: String::new() }),
        }
    }

    fn run(&self, backend: &AnyBackend, effort: &Effort) -> Result<Found, Unable> {
        let (operations, sequences) = (Cell::new(0), Cell::new(0));
        let unable = Cell::new(None);
        let outcome = hunt(effort, self.is_virtual, &self.cases(), |(setup, sequence)| {
            sequences.set(sequences.get() + 1);
            match run_sequence(backend, &setup, &sequence) {
                Ok(()) => {
                    operations.set(operations.get() + sequence.len() as u64);
                    Ok(())
                }
                Err(Stopped::Broken(broken, _)) => Err(TestCaseError::fail(broken.to_string())),
                Err(Stopped::Unable(reason)) => {
                    unable.set(Some(reason));
                    Ok(())
                }
            }
        });
        if let Some(reason) = unable.take() {
            return Err(reason);
        }
        let broken = match outcome {
            Ok(()) => None,
            Err(TestError::Fail(reason, program)) => {
                let (broken, script) = match run_sequence(backend, &program.0, &program.1) {
                    Err(Stopped::Broken(broken, script)) => (broken, script),
                    // On a real device a failure may depend on timing.
                    _ => (
                        Broken::new(
                            Law::Determinism,
                            format!("a second run of the same sequence did not fail like the first: {reason}"),
                        ),
                        String::new(),
                    ),
                };
                Some((broken, script + &program_line(&program)))
            }
            Err(TestError::Abort(reason)) => Some((Broken::new(Law::Determinism, reason), String::new())),
        };
        Ok(Found { operations: operations.get(), sequences: sequences.get(), broken })
    }

    fn cases(&self) -> BoxedStrategy<(Setup, Vec<Operation>)> {
        let seed = match self.timing {
            EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
            other => Just(other).boxed(),
        };
        let is_virtual = self.is_virtual;
        let setup =
            seed.prop_flat_map(
                move |timing| {
                    if is_virtual { virtual_setup_under(timing).boxed() } else { setup_under(timing).boxed() }
                },
            );
        setup.prop_flat_map(|setup| (Just(setup), operations_for(&setup, 1..LONGEST))).boxed()
    }
}

/// The reason why a sequence did not reach its end.
pub(crate) enum Stopped {
    /// A law was broken, with the script that reproduces it.
    Broken(Broken, String),
    /// There is no device for the sequence.
    Unable(Unable),
}

/// Runs a sequence to its end and checks every law after every operation.
pub(crate) fn run_sequence(backend: &AnyBackend, setup: &Setup, sequence: &[Operation]) -> Result<(), Stopped> {
    let mut trial = Trial::new(backend, setup).map_err(Stopped::Unable)?;
    for (number, operation) in sequence.iter().enumerate() {
        if let Err(broken) = trial.apply(operation) {
            return Err(Stopped::Broken(broken.during(format!("operation {number}, {operation:?}")), trial.script()));
        }
    }
    let script = trial.script();
    trial.finish().map(drop).map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script))
}

/// Runs drawn cases, each of which returns its number of operations. The smallest case found that breaks the law is
/// reported with its script.
pub(super) fn run_cases<S>(effort: &Effort, salt: u64, strategy: &S, one: impl Fn(&S::Value) -> Result<u64, Stopped>) -> Verdict
where
    S: Strategy,
    S::Value: Debug + Serialize + DeserializeOwned,
{
    let (operations, unable, broken) = (Cell::new(0), RefCell::new(None), RefCell::new(None));
    let outcome = hunt(effort, salt, strategy, |case| match one(&case) {
        Ok(done) => {
            operations.set(operations.get() + done);
            Ok(())
        }
        Err(Stopped::Unable(reason)) => {
            unable.replace(Some(reason));
            Ok(())
        }
        Err(Stopped::Broken(found, script)) => {
            // The last failing case is the smallest.
            let message = found.to_string();
            broken.replace(Some((found, script)));
            Err(TestCaseError::fail(message))
        }
    });
    if let Some(reason) = unable.take() {
        return Err(reason.into());
    }
    match (outcome, broken.take()) {
        (Ok(()), _) => {
            let measured = format!("{} operations in {} programs", operations.get(), effort.cases);
            Ok(Evidence { operations: operations.get(), measured, text: String::new() })
        }
        (Err(TestError::Fail(_, program)), Some((found, script))) => {
            Err(Trouble::Fail { reason: found.to_string(), script: Some(script + &program_line(&program)) })
        }
        (Err(error), _) => Err(Trouble::fail(error.to_string())),
    }
}

/// With at least this many sequences per law, every pair of sizes is tried under every setting.
const ALL_PAIRS_FROM: u32 = 250;

/// Returns the entries of these sequences. A real device is too slow for this number of pairs.
pub(super) fn fixed_entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "each rung of the ladder releases exactly what it must, under every setting";
    let mut entries = vec![Entry::new(Group::Law, "ladder/every-rung", says, every_rung)];
    if backend.is_simulated() {
        let says = "every pair of sizes at the thresholds is placed according to the rules, under every setting";
        entries.push(Entry::new(Group::Law, "placement/pairs-at-thresholds", says, pairs));
    }
    entries
}

fn fixed_setup(settings: usize, capacity_mib: u64, timing: EventTiming) -> Setup {
    let places = Places::Ascending;
    Setup { capacity: capacity_mib * MIB, timing, settings, places, free_waits: false, is_virtual: false }
}

fn check_sequence(backend: &AnyBackend, setup: &Setup, sequence: &[Operation]) -> Result<(), Trouble> {
    run_sequence(backend, setup, sequence).map_err(|stopped| match stopped {
        Stopped::Unable(unable) => unable.into(),
        Stopped::Broken(broken, script) => Trouble::Fail { reason: format!("{setup:?}: {broken}"), script: Some(script) },
    })
}

/// Frees the first request before the second, so that the second finds the first one's memory free.
fn pairs(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let sizes: Vec<u64> = THRESHOLDS.iter().flat_map(|&size| [size - 511, size, size + 1]).collect();
    // With little effort each pair is tried under a third of the settings, which differs from pair to pair.
    let stride = if effort.cases < ALL_PAIRS_FROM { 3 } else { 1 };
    let mut tried = 0;
    for settings in 0..SETTINGS.len() {
        let setup = fixed_setup(settings, 1024, EventTiming::Eager);
        for (row, &first) in sizes.iter().enumerate() {
            for (column, &second) in sizes.iter().enumerate() {
                if !(settings + row + column).is_multiple_of(stride) {
                    continue;
                }
                tried += 1;
                check_sequence(backend, &setup, &[Allocate(first, 0), Free(0), Allocate(second, 0)])?;
            }
        }
    }
    let measured = format!("{tried} pairs of {} sizes, {} settings", sizes.len(), SETTINGS.len());
    Ok(Evidence { operations: 3 * tried, measured, text: String::new() })
}

/// Allocates segments of these sizes in MiB, then frees all of them.
fn freed(sizes: &[u64]) -> Vec<Operation> {
    let taken = sizes.iter().map(|&mib| Allocate(mib * MIB, 0));
    taken.chain(sizes.iter().map(|_| Free(0))).collect()
}

/// Returns a program for each rung, on a device of 200 MiB.
fn programs() -> Vec<Vec<Operation>> {
    let others = |mut program: Vec<Operation>, rest: &[Operation]| {
        program.extend_from_slice(rest);
        program
    };
    vec![
        // Oversize segments: cases where one is enough, where several are enough and some may stay, and where even all
        // of them are not enough.
        others(freed(&[34, 36, 44, 50]), &[Allocate(42 * MIB, 0), Allocate(45 * MIB, 0)]),
        others(freed(&[34, 36, 44, 50, 20]), &[Allocate(90 * MIB, 0)]),
        others(freed(&[34, 36, 44, 50]), &[Allocate(180 * MIB, 0)]),
        others(freed(&[34, 36, 66, 60]), &[Allocate(72 * MIB, 1), Allocate(110 * MIB, 0)]),
        // Garbage with different ages.
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
        // Waiting for two streams, and then still having too little memory.
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
        // The limit, reached exactly and exceeded by one page; other processes take memory and
        // release it.
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
                check_sequence(backend, &fixed_setup(settings, 200, timing), program)?;
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
