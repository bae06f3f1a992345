//! The laws of PyTorch's policy as entries: random programs beside the reference allocator, laws that need their own programs,
//! and laws about the allocator only, which are the same on every backend.

mod faults;
mod knobs;
mod programs;
mod races;
mod reference;
mod remap;

pub use reference::against_reference;

use super::campaign::{self, Subject};
use proptest::strategy::Strategy as _;

use crate::backend::{AnyBackend, EventTiming};
use crate::core_laws::{CoreLaw, Draws, LAWS};
use crate::program::draw::{careful, program, setup};
use crate::program::search::timings;
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The entries of this group.
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = careful_entries(backend);
    entries.extend(knobs::entries(backend));
    entries.extend(faults::entries());
    entries.extend(races::entries(backend));
    entries.extend(remap::entries());
    entries.extend(reference::entries(backend));
    entries.extend(core_law_entries());
    entries.extend(faults::wrong_address_entries());
    entries
}

/// The entries whose programs touch their memory, under every release and setting.
fn careful_entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "every law holds after every step, and every decision matches the reference allocator, in programs that use their \
                memory";
    let mut entries: Vec<Entry> = timings(backend)
        .into_iter()
        .map(|(name, timing)| {
            Entry::new(Group::Law, format!("every-law/{name}"), says, move |backend: &AnyBackend, effort: &Effort| {
                campaign::every_law(&Subject::pytorch(), backend, effort, timing)
            })
        })
        .collect();
    let says = "an allocator returns all its memory whenever it is dropped";
    entries.push(Entry::new(Group::Law, "endings/dropped-at-any-moment", says, |backend: &AnyBackend, effort: &Effort| {
        campaign::dropped(&Subject::pytorch(), backend, effort)
    }));
    let says = "a clone continues as its original does, from any state, and so does a clone of a clone";
    entries.push(Entry::new(Group::Law, "endings/clones", says, |_: &AnyBackend, effort: &Effort| {
        campaign::clones(&Subject::pytorch(), effort, careful(EventTiming::Seeded(0), 80).boxed(), true)
    }));
    let says = "a clone can free what its originals held, is independent of them, and they refuse what it has handed out";
    entries.push(Entry::new(Group::Law, "reference/clones", says, |_: &AnyBackend, effort: &Effort| {
        let programs = (setup(EventTiming::Seeded(0)), program(1..80)).boxed();
        campaign::clones(&Subject::pytorch(), effort, programs, false)
    }));
    if backend.is_simulated() {
        let says = "the same program leads to the same decisions, byte for byte";
        entries.push(Entry::new(Group::Law, "determinism", says, |backend: &AnyBackend, effort: &Effort| {
            campaign::determinism(&Subject::pytorch(), backend, effort)
        }));
    }
    entries.into_iter().map(|entry| entry.requires(Requirement::ExpandableSegments)).collect()
}

/// The entries of these laws.
fn core_law_entries() -> Vec<Entry> {
    let entry = |law: CoreLaw| {
        Entry::new(Group::Law, law.name, law.says, move |_: &AnyBackend, effort: &Effort| check_core_law(law, effort))
    };
    LAWS.into_iter().map(entry).collect()
}

fn check_core_law(law: CoreLaw, effort: &Effort) -> Verdict {
    let draws = Draws { cases: effort.cases, seed: effort.seed };
    let operations = (law.check)(&draws).map_err(|failure| Trouble::Fail {
        reason: failure.broken.to_string(),
        script: Some(failure.script).filter(|script| !script.is_empty()),
    })?;
    Ok(Evidence { operations, measured: format!("{operations} operations"), text: String::new() })
}

#[cfg(test)]
mod tests {
    //! Tests the coverage of the random programs: they prove little if they never reach the interesting cases.

    use parkade::stats::Family;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    use crate::backend::{AnyBackend, EventTiming};
    use crate::checks::campaign::Subject;
    use crate::program::draw::careful;
    use crate::program::player::Outcome;
    use crate::program::step::Step;

    #[test]
    fn the_random_programs_reach_the_whole_ladder() {
        let mut runner = TestRunner::deterministic();
        let strategy = careful(EventTiming::Seeded(0), 120);
        let (mut ooms, mut served, mut retries, mut collected, mut pending) = (0, 0, 0, 0, 0);
        for _ in 0..120 {
            let (setup, steps) = strategy.new_tree(&mut runner).expect("a case").current();
            let mut player = Subject::pytorch().begin(&AnyBackend::simulated(), &setup).expect("a simulated device");
            for &step in &steps {
                let given_back = player.caller.core.stats().num_device_free;
                let outcome = player.apply(step).expect("the laws hold");
                let stats = player.caller.core.stats();
                match (step, outcome) {
                    (Step::Allocate(..), Outcome::Refused) => ooms += 1,
                    (Step::Allocate(..), Outcome::Done) => {
                        served += 1;
                        collected += u64::from(stats.num_device_free > given_back);
                    }
                    _ => {}
                }
                let active = stats.family(Family::Active).all.current;
                pending += u64::from(active > stats.family(Family::Allocation).all.current);
            }
            retries += player.caller.core.stats().num_alloc_retries;
            player.finish().expect("nothing is left");
        }
        let reached = format!(
            "{served} requests served, {ooms} refused, {retries} retries, {collected} served after releases, {pending} with \
             pending blocks"
        );
        assert!(served > 500 && ooms > 50 && retries > 50 && collected > 20 && pending > 300, "{reached}");
    }
}

#[cfg(all(test, feature = "scenarios"))]
mod scripts {
    //! Tests the scripts of programs: `parkade ops` runs them.

    use parkade::profile::Profile;
    use parkade::units::MIB;
    use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use crate::backend::{AnyBackend, EventTiming};
    use crate::checks::campaign::Subject;
    use crate::drawn::one_of;
    use crate::program::draw::{careful, program, setup};
    use crate::program::step::{Setup, Step};

    /// Runs a program, and then its script, and returns the answers of the script.
    fn answers(setup: &Setup, steps: &[Step], is_careful: bool) -> (Vec<String>, u64) {
        let mut player = Subject::pytorch().begin_as(&AnyBackend::simulated(), setup, is_careful).expect("a device");
        player.play(steps).expect("the laws hold");
        let options = OpsOptions {
            settings: setup.text(setup.settings).to_owned(),
            capacity_bytes: setup.capacity,
            addresses: Addresses::Up,
            profile: Profile::of(setup.release).expect("a release"),
        };
        let mut runner = OpsRunner::new(&options).expect("legal settings");
        let script = player.script();
        (script.lines().filter_map(|line| runner.run_line(line)).collect(), player.caller.core.stats().num_ooms as u64)
    }

    /// The first line of a script has the options for `parkade ops`.
    #[test]
    fn a_script_under_a_policy_leads_to_the_same_addresses_under_ops() {
        let policy = parkade_policies::named("best-fit-remap:handle=20MiB").expect("a policy");
        let subject = Subject::of(&policy);
        let mib = |count: u64| Step::Allocate(count * MIB, 0);
        let steps = [mib(30), mib(3), Step::Free(0), mib(12), mib(70), mib(200)];
        let setup = Setup { capacity: 128 * MIB, timing: EventTiming::Lazy, ..Setup::PLAIN };
        let player = subject.play(&AnyBackend::simulated(), &setup, &steps).expect("the laws hold");
        let script = player.script();
        let first = script.lines().next().expect("a line");
        assert_eq!(
            first,
            format!("# parkade ops SCRIPT --policy '{}' --capacity {} --addresses up", policy.name, setup.capacity)
        );
        let options = OpsOptions {
            settings: String::new(),
            capacity_bytes: setup.capacity,
            addresses: Addresses::Up,
            profile: &Profile::PYTORCH_2_11,
        };
        let mut runner = OpsRunner::under(&options, policy.make());
        let answers: Vec<String> = script.lines().filter_map(|line| runner.run_line(line)).collect();
        let refused = answers.iter().filter(|answer| answer.contains("\"err\":\"oom\"")).count();
        let served = answers.iter().filter(|answer| answer.contains("\"ptr\"")).count();
        // A refused request is repeated after the cache has been released.
        assert_eq!((served, refused as i64), (4, player.caller.core.stats().num_ooms), "{answers:?}");
        assert!(refused > 0, "{script}");
    }

    #[test]
    fn ops_knows_every_word_of_a_script() {
        let mut runner = TestRunner::deterministic();
        for _ in 0..40 {
            let wild = (setup(EventTiming::Lazy), program(1..140)).new_tree(&mut runner).expect("a case").current();
            let tame = careful(EventTiming::Lazy, 100).new_tree(&mut runner).expect("a case").current();
            for (answers, _) in [answers(&wild.0, &wild.1, false), answers(&tame.0.for_careful_programs(), &tame.1, true)] {
                for wrong in ["unknown op", "missing argument", "\"stoull\"", "\"stol\"", "\"stod\""] {
                    let found = answers.iter().find(|answer| answer.contains(wrong));
                    assert_eq!(found, None, "{wrong}");
                }
            }
        }
    }

    #[test]
    fn a_script_of_requests_leads_to_the_same_decisions() {
        let mut runner = TestRunner::deterministic();
        let sizes = prop::sample::select(vec![700, MIB, 3 * MIB, 12 * MIB, 30 * MIB]);
        let step = one_of![
            6 => (sizes, 0..4_usize).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
            4 => any::<usize>().prop_map(Step::Free),
            1 => (any::<usize>(), 0..4_usize).prop_map(|(which, stream)| Step::Record(which, stream)),
            1 => (0..4_usize).prop_map(Step::Complete),
            1 => Just(Step::ReleaseCached),
        ];
        let strategy = prop::collection::vec(step, 20..60);
        let mut refused = 0;
        for _ in 0..30 {
            let steps = strategy.new_tree(&mut runner).expect("a case").current();
            let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, ..Setup::PLAIN };
            let (answers, ooms) = answers(&setup, &steps, false);
            assert_eq!(answers.iter().filter(|answer| answer.contains("\"err\":\"oom\"")).count() as u64, ooms, "{steps:?}");
            refused += ooms;
        }
        assert!(refused > 20, "{refused} requests were refused");
    }
}
