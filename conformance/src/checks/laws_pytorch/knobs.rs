//! Monotone settings act monotonically: a larger limit never takes effect earlier than a smaller one, garbage collection has no
//! effect without a limit, and a larger request never gets less.

use parkade::stats::Stats;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::MIB;
use proptest::strategy::{Strategy, ValueTree};

use crate::backend::{AnyBackend, EventTiming};
use crate::checks::campaign::Subject;
use crate::drawn::runner;
use crate::law::{Broken, Law, ensure};
use crate::program::draw::{careful, sizes};
use crate::program::search::{Stopped, may_expand, run_cases};
use crate::program::step::{Setup, Step, texts};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Returns the entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "a larger limit never takes effect earlier than a smaller one";
    let limit = Entry::new(Group::Law, "monotone-knobs/limit", says, limit);
    let says = "garbage_collection_threshold has no effect without a limit";
    let mut entries = vec![limit, Entry::new(Group::Law, "monotone-knobs/garbage-collection", says, collection)];
    if backend.is_simulated() {
        let says = "a larger request never gets a smaller block, and gets at least what it requests";
        entries.push(Entry::new(Group::Law, "monotone-knobs/rounding", says, rounding));
    }
    entries
}

/// Checks the requests and frees of drawn programs.
fn check_cases(
    backend: &AnyBackend,
    effort: &Effort,
    salt: u64,
    check: impl Fn(&Setup, &[Step]) -> Result<(), Stopped>,
) -> Verdict {
    let cases = Effort { cases: (effort.cases / 4).max(1), ..*effort };
    let may_expand = may_expand(backend);
    let requests = |step: &Step| matches!(step, Step::Allocate(..) | Step::Free(_));
    let strategy = careful(EventTiming::Seeded(0), 120).prop_map(move |(setup, mut steps)| {
        steps.retain(requests);
        let setup = Setup { release: Setup::PLAIN.release, capacity: setup.capacity.min(300 * MIB), ..setup };
        let is_plain = may_expand || !setup.text(setup.settings).contains("expandable_segments:True");
        (Setup { settings: if is_plain { setup.settings } else { 0 }, ..setup }, steps)
    });
    run_cases(&cases, salt, strategy, |(setup, steps)| check(setup, steps).map(|()| steps.len() as u64))
}

/// Runs a program under a limit, up to the first sign of memory pressure. Returns the step that the run reached, the trace and
/// the statistics.
fn until_pressure(
    backend: &AnyBackend,
    setup: &Setup,
    steps: &[Step],
    limit: Option<u64>,
) -> Result<(usize, Vec<TraceEntry>, Stats), Stopped> {
    let mut player = Subject::pytorch().begin(backend, setup)?;
    player.play(&[Step::Limit(limit)])?;
    let mut done = steps.len();
    for number in 0..steps.len() {
        player.play(&steps[number..=number])?;
        // Oversize blocks are released before a retry is counted (spec 2.9).
        let stats = player.caller.core.stats();
        if stats.num_alloc_retries > 0 || stats.num_device_free > 0 || stats.num_ooms > 0 {
            done = number;
            break;
        }
    }
    let (trace, stats, script) = (player.caller.core.observer().clone(), player.caller.core.stats().clone(), player.script());
    player.abandon(None).map_err(|broken| Stopped::Broken(broken, script))?;
    Ok((done, trace, stats))
}

fn broken(seen: String) -> Stopped {
    Stopped::Broken(Broken::new(Law::MonotoneKnobs, seen), String::new())
}

/// A limit has no effect before memory runs short, so a larger limit cannot take effect earlier. Garbage collection is
/// excluded, because it depends on the limit itself.
fn limit(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 3, |setup, steps| {
        let collects = setup.text(setup.settings).contains("garbage_collection");
        let setup = Setup { settings: if collects { 0 } else { setup.settings }, ..*setup };
        let mut last = 0;
        for hundredths in [30, 60, 90] {
            let (done, ..) = until_pressure(backend, &setup, steps, Some(setup.capacity / 100 * hundredths))?;
            if done < last {
                return Err(broken(format!(
                    "a limit of {hundredths} % takes effect at operation {done}, a smaller one only at {last}"
                )));
            }
            last = done;
        }
        Ok(())
    })
}

fn collection(backend: &AnyBackend, effort: &Effort) -> Verdict {
    check_cases(backend, effort, 4, |setup, steps| {
        let with = |text: &str| until_pressure(backend, &setup.with_settings(text), steps, None);
        let (without, with) = (with("")?.1, with("garbage_collection_threshold:0.6")?.1);
        // On a real device the addresses of segments may differ, but not the actions and sizes.
        let acts =
            |trace: &[TraceEntry]| -> Vec<(TraceAction, u64)> { trace.iter().map(|entry| (entry.action, entry.size)).collect() };
        if acts(&without) != acts(&with) {
            return Err(broken("garbage_collection_threshold changed the decisions, although there is no limit".to_owned()));
        }
        Ok(())
    })
}

/// Checks that the block for a request, on an empty heap, is at least as large as the request and as the block for any smaller
/// request.
fn rounding(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let mut runner = runner(effort.cases, effort.seed, 5);
    let drawn = proptest::collection::vec(sizes(), 40).new_tree(&mut runner);
    let mut sizes = drawn.map_err(|reason| Trouble::fail(reason.to_string()))?.current();
    sizes.sort_unstable();
    let mut operations = 0;
    for settings in 0..texts(Setup::PLAIN.profile()).len() {
        let mut last = 0;
        for &size in &sizes {
            let setup = Setup { capacity: 512 * MIB, settings, ..Setup::PLAIN };
            let player = Subject::pytorch().play(backend, &setup, &[Step::Allocate(size, 0)])?;
            let segments = player.caller.core.segments();
            let got = segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.size.get()).next().unwrap_or(0);
            player.finish()?;
            operations += 1;
            ensure(Law::MonotoneKnobs, got >= size && got >= last, || {
                format!("a request for {size} bytes got {got} bytes; a smaller request got {last}")
            })?;
            last = got;
        }
    }
    Ok(Evidence { operations, ..Evidence::default() })
}
