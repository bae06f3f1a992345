//! Random sequences of one kind under one event timing, run once for all laws that are checked after every operation.
//!
//! The first law to ask runs them; the others read the result. A sequence that breaks a law is shrunk and becomes a script for
//! `parkade ops`.

use std::cell::Cell;
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError};

use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::checks::draw::{hunt, program_line};
use crate::checks::laws_pytorch::operation::{Operation, Setup, operations_for, setup_under, virtual_setup_under};
use crate::checks::laws_pytorch::trial::Trial;
use crate::law::{Broken, Law};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// The maximum length of a sequence.
const LONGEST: usize = 120;

/// What a campaign found.
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

    /// Whether sequences of this kind check the law: the model knows the ladder of ordinary segments only, and private pools
    /// occur only where segments may be expandable.
    pub(super) fn checks(&self, law: Law) -> bool {
        law != if self.is_virtual { Law::Ladder } else { Law::Pools }
    }

    /// The verdict of the sequences on one law.
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
            // A law without an entry here, such as that of failing calls, must not break unnoticed.
            Some((broken, _)) => Err(Trouble::fail(format!("{measured}, until {broken}"))),
            // The operations are counted only once.
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
                    _ => (Broken::new(Law::Determinism, format!("seen only once: {reason}")), String::new()),
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

/// Why a sequence did not reach its end.
pub(crate) enum Stopped {
    /// A law was broken, with the script that shows it.
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
    trial.finish().map(drop).map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script))
}
