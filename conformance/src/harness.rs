//! The suite as the main function of a test target, with the filters and options of `cargo test`.

use std::env::{VarError, var};
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::backend::{AnyBackend, Backend, Needs};
use crate::checks::entries;
use crate::suite::{Effort, Entry, Reference, Trouble, check};

/// The number of random sequences per law: few enough that all laws together take only seconds without optimisation.
/// `parkade conform` draws more.
const CASES: u32 = 60;

/// Runs the entire suite on a backend, as the main function of a test target with `harness =
/// false`.
///
/// Each entry is a test named `BACKEND::GROUP/NAME`. The arguments are those of `cargo test`: a filter, `--list`,
/// `--skip` and so on.
/// - An entry that requires something that the device lacks is ignored, with the reason.
/// - If there is no device, all entries are ignored with the reason. `PARKADE_REQUIRE_<NAME>=1`, with the backend's name in
///   capitals, makes them fail instead, so that a machine set up for its device cannot pass without it.
/// - `PARKADE_CASES` is the number of random sequences per law (default 60).
/// - An entry's evidence is compared with its evidence on the simulated device if both devices have the same facts.
///
/// Entries on a real device run one after another.
pub fn main<B: Backend<Device: 'static> + Send + Sync + 'static>(backend: B) -> ExitCode {
    match Harness::from_environment() {
        Ok(mut harness) => {
            harness.add(AnyBackend::new(backend));
            harness.run()
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The suite for several backends in one test target; for a single backend use [`main`].
pub struct Harness {
    arguments: Arguments,
    effort: Effort,
    trials: Vec<Trial>,
}

impl Harness {
    /// Reads the process's arguments, and the number of cases from its environment.
    ///
    /// # Errors
    /// If `PARKADE_CASES` is not a number above 0. Invalid arguments end the process.
    pub fn from_environment() -> Result<Harness, BadCases> {
        let cases = match var("PARKADE_CASES") {
            Err(VarError::NotPresent) => CASES,
            Err(VarError::NotUnicode(text)) => return Err(BadCases(text.to_string_lossy().into_owned())),
            Ok(text) => text.parse().ok().filter(|&cases| cases > 0).ok_or(BadCases(text))?,
        };
        Ok(Harness { arguments: Arguments::from_args(), effort: Effort::new(cases, 0), trials: Vec::new() })
    }

    /// Adds the entire suite for a backend.
    pub fn add(&mut self, backend: AnyBackend) {
        let list = entries(&backend);
        self.add_entries(backend, list);
    }

    /// Adds these entries for a backend.
    pub fn add_entries(&mut self, backend: AnyBackend, list: Vec<Entry>) {
        let absent = backend.open(&Needs::default()).err().map(|unable| unable.to_string());
        if absent.is_none() && !backend.is_simulated() {
            // Entries run one at a time because they measure the device's free memory.
            self.arguments.test_threads = Some(1);
        }
        let facts = backend.facts();
        let is_required = is_required(backend.name());
        let reference = (!backend.is_simulated()).then(|| Reference::new(AnyBackend::simulated(), on_simulated_device()));
        let shared = Arc::new((backend, reference, self.effort));
        for entry in list {
            let name = format!("{}::{}", shared.0.name(), entry.title());
            let trial = match (&absent, entry.unmet(&facts)) {
                (Some(reason), _) => cannot_run(name, reason, !is_required),
                (None, Some(reason)) => cannot_run(name, reason, true),
                (None, None) => {
                    let shared = Arc::clone(&shared);
                    Trial::ignorable_test(name, move || {
                        let (backend, reference, effort) = &*shared;
                        outcome(backend, &entry, reference.as_ref(), effort)
                    })
                }
            };
            self.trials.push(trial);
        }
    }

    /// Runs everything that was added and is not filtered out by the arguments.
    #[must_use]
    pub fn run(self) -> ExitCode {
        libtest_mimic::run(&self.arguments, self.trials).exit_code()
    }
}

/// The error: `PARKADE_CASES` is not a number above 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadCases(String);

impl fmt::Display for BadCases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PARKADE_CASES must be a number above 0, not {:?}", self.0)
    }
}

impl std::error::Error for BadCases {}

/// Returns every entry whose text must be the same on a real device.
fn on_simulated_device() -> Vec<Entry> {
    #[cfg(feature = "scenarios")]
    return crate::scenarios::everything(&AnyBackend::simulated(), None);
    #[cfg(not(feature = "scenarios"))]
    return entries(&AnyBackend::simulated());
}

/// Returns whether the environment requires this backend's device.
fn is_required(backend: &str) -> bool {
    let capitals = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    let name: String = backend.chars().map(capitals).collect();
    var(format!("PARKADE_REQUIRE_{name}")).is_ok_and(|value| value == "1")
}

/// Returns an ignored test whose kind states the reason; it fails with that reason if it is run
/// anyway.
fn cannot_run(name: String, reason: &str, is_ignored: bool) -> Trial {
    let says = format!("cannot run: {reason}");
    Trial::test(name, move || Err(Failed::from(says))).with_kind(format!("skipped: {reason}")).with_ignored_flag(is_ignored)
}

/// Checks an entry as a test.
fn outcome(backend: &AnyBackend, entry: &Entry, reference: Option<&Reference>, effort: &Effort) -> Result<Completion, Failed> {
    match check(backend, entry, reference, effort) {
        Ok(_) => Ok(Completion::Completed),
        Err(Trouble::Skip(reason)) if backend.is_simulated() => {
            Err(Failed::from(format!("skipped, although a simulated device is never absent: {reason}")))
        }
        // There is only one GPU but two are needed, or there is too little memory for this entry.
        Err(Trouble::Skip(reason)) => Ok(Completion::ignored_with(reason)),
        Err(Trouble::Fail { reason, script }) => Err(Failed::from(format!("{reason}\n{}", script.unwrap_or_default()))),
    }
}
