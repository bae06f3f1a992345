//! Laws about repeated runs: the same sequence leads to the same decisions, a dropped allocator leaves nothing behind,
//! and monotone settings act monotonically.

use parkade::stats::Stats;
use parkade::trace::{TraceAction, TraceEntry};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestError};

use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::checks::laws_pytorch::operation::{Operation, Setup, operations, operations_for, setup_under, virtual_setup_under};
use crate::checks::laws_pytorch::trial::{Finished, Trial};
use crate::law::{Broken, Law, ensure};
use crate::program::search::{hunt, may_expand, program_line, runner};
use crate::reference_model::Rules;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Returns the entries of these laws.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        Entry::new(
            Group::Law,
            "endings/dropped-at-any-moment",
            "an allocator returns all its memory whenever it is dropped",
            dropped,
        ),
        Entry::new(Group::Law, "monotone-knobs/limit", "a larger limit never takes effect earlier than a smaller one", limit),
        Entry::new(
            Group::Law,
            "monotone-knobs/garbage-collection",
            "garbage_collection_threshold has no effect without a limit",
            collection,
        ),
    ];
    if backend.is_simulated() {
        let says = "the same sequence leads to the same decisions, byte for byte";
        entries.push(Entry::new(Group::Law, "determinism", says, determinism));
        let says = "a larger request is never rounded to a smaller size, and gets at least its rounded size";
        entries.push(Entry::new(Group::Law, "monotone-knobs/rounding", says, rounding));
    }
    entries
}

/// Draws cases (a fraction of a campaign's number) and checks each one.
fn check_cases(
    backend: &AnyBackend,
    effort: &Effort,
    salt: u64,
    check: impl Fn(&AnyBackend, &Setup, &[Operation]) -> Result<(), Why>,
) -> Verdict {
    let cases = Effort { cases: (effort.cases / 4).max(1), ..*effort };
    let may_expand = may_expand(backend);
    let strategy = any::<(bool, u64)>().prop_flat_map(move |(is_virtual, seed)| {
        let timing = EventTiming::Seeded(seed);
        let setup = if is_virtual && may_expand { virtual_setup_under(timing).boxed() } else { setup_under(timing).boxed() };
        setup.prop_flat_map(|setup| (Just(setup), operations_for(&setup, 1..80)))
    });
    let (unable, count) = (std::cell::Cell::new(None), std::cell::Cell::new(0));
    let outcome = hunt(&cases, salt, &strategy, |(setup, sequence)| match check(backend, &setup, &sequence) {
        Ok(()) => {
            count.set(count.get() + sequence.len() as u64);
            Ok(())
        }
        Err(Why::Unable(reason)) => {
            unable.set(Some(reason));
            Ok(())
        }
        Err(Why::Broken(broken)) => Err(TestCaseError::fail(broken.to_string())),
    });
    if let Some(reason) = unable.take() {
        return Err(reason.into());
    }
    match outcome {
        Ok(()) => Ok(Evidence { operations: count.get(), measured: format!("{} sequences", cases.cases), text: String::new() }),
        Err(TestError::Fail(reason, (setup, sequence))) => {
            let script = Trial::new(backend, &setup).ok().map(|mut trial| {
                for operation in &sequence {
                    // The script ends where the trial fails.
                    let _ = trial.apply(operation);
                }
                trial.script() + &program_line(&(setup, sequence))
            });
            Err(Trouble::Fail { reason: reason.to_string(), script })
        }
        Err(TestError::Abort(reason)) => Err(Trouble::fail(reason.to_string())),
    }
}

enum Why {
    Unable(Unable),
    Broken(Broken),
}

impl From<Unable> for Why {
    fn from(unable: Unable) -> Why {
        Why::Unable(unable)
    }
}

impl From<Broken> for Why {
    fn from(broken: Broken) -> Why {
        Why::Broken(broken)
    }
}

fn whole_run(backend: &AnyBackend, setup: &Setup, sequence: &[Operation]) -> Result<Finished, Why> {
    let mut trial = Trial::new(backend, setup)?;
    for operation in sequence {
        trial.apply(operation)?;
    }
    Ok(trial.finish()?)
}

fn determinism(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 1, |backend, setup, sequence| {
        let (first, second) = (whole_run(backend, setup, sequence)?, whole_run(backend, setup, sequence)?);
        Ok(ensure(Law::Determinism, first == second, || difference(&first, &second))?)
    })
}

/// Describes the difference between two runs.
fn difference(first: &Finished, second: &Finished) -> String {
    let place = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
    let pair = place.map(|place| (place, &first.trace[place], &second.trace[place]));
    format!(
        "two runs of the same program differ: first different entries {pair:?}, {} and {} entries in all; if the entries agree, \
         the statistics differ",
        first.trace.len(),
        second.trace.len()
    )
}

fn dropped(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 2, |backend, setup, sequence| {
        let mut trial = Trial::new(backend, setup)?;
        for operation in sequence {
            trial.apply(operation)?;
        }
        Ok(trial.abandon()?)
    })
}

/// Runs only the requests and frees of a sequence, under a limit, up to the first sign of memory pressure. Returns the
/// point that the run reached, the trace and the statistics.
fn until_pressure(
    backend: &AnyBackend,
    setup: &Setup,
    sequence: &[Operation],
    fraction: u8,
) -> Result<(usize, Vec<TraceEntry>, Stats), Why> {
    let mut trial = Trial::new(backend, setup)?;
    trial.apply(&Operation::SetFraction(fraction))?;
    let mut done = sequence.len();
    for (number, operation) in sequence.iter().enumerate() {
        trial.apply(operation)?;
        // Oversize blocks are released before a retry is counted (spec 2.9).
        let stats = trial.core().stats();
        if stats.num_alloc_retries > 0 || stats.num_device_free > 0 {
            done = number;
            break;
        }
    }
    let (trace, stats) = (trial.core().observer().clone(), trial.core().stats().clone());
    trial.abandon()?;
    Ok((done, trace, stats))
}

fn requests_alone(sequence: &[Operation]) -> Vec<Operation> {
    let plain = |operation: &&Operation| matches!(operation, Operation::Allocate(..) | Operation::Free(_));
    sequence.iter().filter(plain).copied().collect()
}

/// A limit has no effect before memory runs short, so a larger limit cannot take effect earlier. Garbage collection is
/// excluded, because it depends on the limit itself.
fn limit(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 3, |backend, setup, sequence| {
        let setup = Setup { settings: if setup.is_virtual { 0 } else { setup.settings % 4 }, ..*setup };
        let sequence = requests_alone(sequence);
        let mut last = 0;
        for fraction in [30, 60, 90] {
            let (done, ..) = until_pressure(backend, &setup, &sequence, fraction)?;
            ensure(Law::MonotoneKnobs, done >= last, || {
                format!("a limit of {fraction} % takes effect at operation {done}, a smaller one only at {last}")
            })?;
            last = done;
        }
        Ok(())
    })
}

fn collection(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 4, |backend, setup, sequence| {
        let (plain, collecting) =
            (Setup { settings: 0, is_virtual: false, ..*setup }, Setup { settings: 4, is_virtual: false, ..*setup });
        let sequence = requests_alone(sequence);
        let (_, without, _) = until_pressure(backend, &plain, &sequence, 100)?;
        let (_, with, _) = until_pressure(backend, &collecting, &sequence, 100)?;
        // On a real device the addresses of segments may differ, but not the actions and sizes.
        let acts =
            |trace: &[TraceEntry]| -> Vec<(TraceAction, u64)> { trace.iter().map(|entry| (entry.action, entry.size)).collect() };
        Ok(ensure(Law::MonotoneKnobs, acts(&without) == acts(&with), || {
            "garbage_collection_threshold changed the decisions, although there is no limit".to_owned()
        })?)
    })
}

/// Checks that the core's rounding, as seen in the blocks that it hands out, grows with the request, never goes below
/// it, and follows the rules.
fn rounding(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let mut operations_done = 0;
    let sizes = operations(200..201);
    let mut runner = runner(effort, 5_u64);
    let drawn = sizes.new_tree(&mut runner).map_err(|reason| Trouble::fail(reason.to_string()))?.current();
    let mut sizes: Vec<u64> = drawn
        .iter()
        .filter_map(|operation| if let Operation::Allocate(size, _) = operation { Some(*size) } else { None })
        .collect();
    sizes.sort_unstable();
    for settings in 0..crate::reference_model::SETTINGS.len() {
        let rules = crate::reference_model::SETTINGS[settings].applied_to(Rules::default());
        let mut last = 0;
        for &size in &sizes {
            let rounded = rules.rounded(size);
            let setup = Setup {
                capacity: 512 << 20,
                timing: EventTiming::Eager,
                settings,
                places: crate::backend::Places::Ascending,
                free_waits: false,
                is_virtual: false,
            };
            let mut trial = Trial::new(backend, &setup)?;
            trial.apply(&Operation::Allocate(size, 0))?;
            let block =
                trial.core().segments().iter().flat_map(|segment| segment.blocks.clone()).map(|block| block.size.get()).next();
            trial.finish()?;
            operations_done += 1;
            let got = block.unwrap_or(0);
            if got < rounded || rounded < size || rounded < last {
                return Err(Trouble::fail(format!(
                    "a request for {size} bytes is rounded to {rounded} and got {got} bytes; a smaller request got {last}"
                )));
            }
            last = rounded;
        }
    }
    Ok(Evidence { operations: operations_done, ..Evidence::default() })
}
