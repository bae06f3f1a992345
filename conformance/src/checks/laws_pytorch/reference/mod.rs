//! The reference law: PyTorch's allocator and the reference allocator run the same programs, and everything visible is
//! equal after every step: answers, errors with their texts, device calls with their arguments, trace entries,
//! statistics, segments, and the heap's answers to policies.
//!
//! Programs use every operation that callers have, under the rules of every release: private pools, captures,
//! checkpoints, callbacks, limits and settings. The law also holds while driver calls fail.
//!
//! Random programs reach some rules rarely. Fixed programs therefore exercise each rule in which releases differ, under
//! the rules of every release.

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::MIB;
use parkade_sim::{FaultError, FaultPlan, When};
use proptest::prelude::*;

use super::programs::{of_rungs, programs};
use crate::backend::{AnyBackend, EventTiming, Places};
use crate::program::bytes;
use crate::program::contents::Contents;
use crate::program::draw::{THRESHOLDS, captures, crowd, pool_program, program, released_pools, restores, setup, short_ranges};
use crate::program::player::{Cast, Habits, Player};
use crate::program::search::{Stopped, program_line, run_cases, timings};
use crate::program::step::{CALLBACKS, DEFAULT_POOL, Failing, LONGEST, OUT_OF_MEMORY, Order, Setup, Step, profiles, texts};
use crate::program::watched::Tested;
use crate::reference_policies::Choices;
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The maximum number of failing calls of a program.
const MOST_FAILURES: u64 = 300;

/// Programs with large numbers of free blocks are long, so there are fewer of them.
const CASES_PER_CROWD: u32 = 12;

/// With at least this many sequences per law, every pair of sizes is tried under every setting.
const ALL_PAIRS_FROM: u32 = 250;

/// Releases that each restore checkpoints of expandable segments in a different way: the first release that has such
/// checkpoints, the first that restores segments that have grown, and the newest, which has more settings.
const RESTORING: [&str; 3] = ["2.5", "2.11", "2.15"];

/// Each entry draws different programs; their numbers start here.
const SALT: u64 = 310;

/// Returns the entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "every decision, device call, statistic, trace entry and error matches the reference allocator";
    let mut entries: Vec<Entry> = timings(backend)
        .into_iter()
        .zip(SALT + 1..)
        .map(|((name, timing), salt)| {
            let run = move |backend: &AnyBackend, effort: &Effort| check(backend, effort, timing, salt);
            Entry::new(Group::Law, format!("reference/{name}"), says, run).requires(Requirement::ExpandableSegments)
        })
        .collect();
    let says = "every decision matches the reference allocator with hundreds of free blocks, ordered by size or by address";
    let crowds = Entry::new(Group::Law, "reference/crowds", says, check_crowds);
    entries.push(crowds.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator while expandable segments reserve little address space";
    let short = Entry::new(Group::Law, "reference/short-ranges", says, check_short_ranges);
    entries.push(short.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator when checkpoints are restored into an allocator with a different \
                origin, settings or device";
    let foreign = Entry::new(Group::Law, "reference/foreign-checkpoints", says, check_foreign);
    entries.push(foreign.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator while graphs are captured, with the setting that reuses memory \
                by the graph";
    let captures = Entry::new(Group::Law, "reference/captures", says, check_captures);
    entries.push(captures.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator while every n-th driver call and up to two calls after it fail, \
                for n from 1 to 12";
    let failing = Entry::new(Group::Law, "reference/every-nth-call-fails", says, check_failing);
    entries.push(failing.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator when a restore frees blocks that other streams use while event \
                calls fail";
    let restores = Entry::new(Group::Law, "reference/restores-that-fail", says, check_restores);
    entries.push(restores.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator when the memory of a private pool is released while several of its \
                blocks wait for other streams";
    let released = Entry::new(Group::Law, "reference/released-pools", says, check_released_pools);
    entries.push(released.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator when callbacks make requests and end the pool that a request is \
                routed to";
    let abandoned = Entry::new(Group::Law, "reference/abandoned-pools", says, |backend: &AnyBackend, _: &Effort| {
        check_default_pool(backend)?;
        check_abandoned(backend)
    });
    entries.push(abandoned.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator under each release's rules, in programs that exercise every rule \
                that differs";
    let releases =
        Entry::new(Group::Law, "reference/each-release", says, |backend: &AnyBackend, _: &Effort| check_releases(backend));
    entries.push(releases.requires(Requirement::ExpandableSegments));
    let says = "each rung of the ladder releases exactly what it must, under every setting of every release";
    let rungs = Entry::new(Group::Law, "ladder/every-rung", says, |backend: &AnyBackend, _: &Effort| check_rungs(backend));
    entries.push(rungs.requires(Requirement::ExpandableSegments));
    // A real device is too slow for this number of pairs.
    if backend.is_simulated() {
        let says = "every pair of sizes at the thresholds is placed according to the rules, under every setting";
        entries.push(Entry::new(Group::Law, "placement/pairs-at-thresholds", says, check_pairs));
    }
    entries
}

fn check(backend: &AnyBackend, effort: &Effort, timing: EventTiming, salt: u64) -> Verdict {
    let strategy = (setup(timing), program(1..LONGEST));
    run_cases(effort, salt, strategy, |(setup, steps)| play(backend, setup, steps, None))
}

fn check_crowds(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Eager } else { EventTiming::Clock };
    let effort = Effort { cases: effort.cases / CASES_PER_CROWD + 1, ..*effort };
    run_cases(&effort, SALT + 20, (setup(timing), crowd()), |(setup, steps)| play(backend, setup, steps, None))
}

/// Expandable segments that are full, beside others of the same stream that can grow.
fn check_short_ranges(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(4) } else { EventTiming::Clock };
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    run_cases(&effort, SALT + 25, short_ranges(timing), |(setup, steps)| play(backend, setup, steps, None))
}

/// On a real device no graph is captured, and the programs run without.
fn check_captures(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(3) } else { EventTiming::Clock };
    run_cases(effort, SALT + 23, captures(timing), |(setup, steps)| play(backend, setup, steps, None))
}

/// One program saves a pool, and a second allocator that begins in the same way restores the
/// checkpoint.
fn check_foreign(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(1) } else { EventTiming::Clock };
    // On a real device the ranges have different addresses.
    if backend.is_simulated() {
        check_foreign_ranges(backend)?;
    }
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    let other = prop::option::of((setup(timing), any::<bool>()));
    let strategy = (setup(timing), pool_program(1..50), (other, pool_program(4..50), 0..50_usize));
    run_cases(&effort, SALT + 21, strategy, |(first, rest, (other, before, cut))| {
        let second = match other {
            // The second program has the same release and addresses, but different sizes.
            Some((other, true)) => Setup { capacity: other.capacity, settings: other.settings, ..*first },
            Some((other, false)) => *other,
            None => *first,
        };
        let after: Vec<Step> = before.iter().take(*cut).chain(rest).copied().collect();
        foreign(backend, (first, before), (&second, &after))
    })
}

/// A pool with one allocation, saved under each setting and restored under every other setting: ranges at the same
/// addresses are longer than, shorter than, or exactly as long as what was mapped.
fn check_foreign_ranges(backend: &AnyBackend) -> Result<(), Trouble> {
    for release in RESTORING {
        let setup = Setup { release, ..Setup::PLAIN };
        let settings = 0..texts(setup.profile()).len();
        for (settings, other) in settings.clone().flat_map(|first| settings.clone().map(move |other| (first, other))) {
            for mib in [20, 40, 60] {
                let first = Setup { settings, ..setup };
                let second = Setup { settings: other, ..first };
                let begin = [Step::BeginPool(0, None), Step::Allocate(mib << 20, 0)];
                let (before, after) = ([begin[0], begin[1], Step::Save(0)], [begin[0], begin[1], Step::Restore(0)]);
                foreign(backend, (&first, &before), (&second, &after))?;
            }
        }
    }
    Ok(())
}

/// Runs the first program, then the second one with the checkpoints of the first.
fn foreign(backend: &AnyBackend, first: (&Setup, &[Step]), second: (&Setup, &[Step])) -> Result<u64, Stopped> {
    let mut player = begin(backend, first.0)?;
    player.play(first.1)?;
    let checkpoints = player.take_checkpoints();
    drop(player);
    let mut player = begin(backend, second.0)?;
    player.give_checkpoints(checkpoints);
    player.play(second.1)?;
    player.finish()?;
    Ok((first.1.len() + second.1.len()) as u64)
}

fn check_failing(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock };
    let failing = (1..=12_u64, prop::sample::select(vec![1, 1, 2, 3]), prop::sample::select(vec![OUT_OF_MEMORY, 700, 1]));
    let strategy = (setup(timing), program(1..LONGEST), failing);
    run_cases(effort, SALT, strategy, |(setup, steps, failing)| play(backend, setup, steps, Some(*failing)))
}

/// Returns programs with a request to a pool in which callbacks end the routing, release the pool, empty caches and
/// make further requests, in every order.
fn check_abandoned(backend: &AnyBackend) -> Verdict {
    let (served, refused) = (Order::Allocate(3 << 20, 0), Order::Allocate(400 << 20, 0));
    let orders = [served, refused, Order::End(0), Order::Release(0), Order::ReleaseCached, Order::ReleaseCachedPool(0)];
    let triples = orders.into_iter().flat_map(|a| orders.into_iter().flat_map(move |b| orders.map(|c| [a, b, c])));
    // The number of releases is coprime to the number of programs per triple, so each release meets all of them.
    let mut profiles = profiles().collect::<Vec<_>>().into_iter().cycle();
    let mut done = 0;
    // A real device is slow, and the callbacks do not depend on it.
    for triple in triples.step_by(if backend.is_simulated() { 1 } else { 3 }) {
        // The pool may have no uses left before the request. The request may find the device empty, or be too large for
        // it.
        for (is_released, mib) in [(false, 5), (true, 5), (false, 5), (true, 400)] {
            let Some(profile) = profiles.next() else { break };
            let setup = Setup { release: profile.name, has_callbacks: true, ..Setup::PLAIN };
            let begin = [Step::BeginPool(0, None), Step::ReleasePool(0)];
            let mut program = begin[..1 + usize::from(is_released)].to_vec();
            program.extend(triple.into_iter().zip(0..CALLBACKS).map(|(order, callback)| Step::Command(callback, order, true)));
            program.extend([Step::Allocate(mib << 20, 0), Step::CreatePool(1), Step::Allocate(700, 0), Step::ReleaseCached]);
            done += play(backend, &setup, &program, None)?;
        }
    }
    Ok(Evidence::operations(done))
}

/// The default pool is never kept whole.
fn check_default_pool(backend: &AnyBackend) -> Result<(), Trouble> {
    for profile in profiles() {
        let program = [Step::NoSplit(DEFAULT_POOL), Step::Allocate(700, 0), Step::Allocate(3 << 20, 0), Step::Allocate(700, 0)];
        play(backend, &Setup { release: profile.name, ..Setup::PLAIN }, &program, None)?;
    }
    Ok(())
}

/// Pools that nothing uses any more, with blocks that other streams use.
fn check_released_pools(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(3) } else { EventTiming::Clock };
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    // Half of the programs have expandable segments, whose addresses a pool keeps although they have no memory.
    let setup = (setup(timing), any::<bool>()).prop_map(|(setup, expands)| {
        let text = "expandable_segments:True";
        let is_known = expands && texts(setup.profile()).contains(&text);
        if is_known { setup.with_settings(text) } else { setup }
    });
    run_cases(&effort, SALT + 24, (setup, released_pools()), |(setup, steps)| play(backend, setup, steps, None))
}

/// Checkpoints of pools whose blocks are used by other streams, while event calls fail.
fn check_restores(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(2) } else { EventTiming::Clock };
    let failing = prop::option::of((1..=9_u64, prop::sample::select(vec![1, 1, 2]), Just(700)));
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    run_cases(&effort, SALT + 22, (setup(timing), restores(), failing), |(setup, steps, failing)| {
        play(backend, setup, steps, *failing)
    })
}

/// Runs a program to its end; every n-th call fails if `failing` is given. Returns the number of steps.
fn play(backend: &AnyBackend, setup: &Setup, steps: &[Step], failing: Option<Failing>) -> Result<u64, Stopped> {
    play_as(setup.profile(), backend, setup, steps, failing)
}

/// Does the same with an allocator that has these rules.
fn play_as(
    profile: &'static Profile,
    backend: &AnyBackend,
    setup: &Setup,
    steps: &[Step],
    failing: Option<Failing>,
) -> Result<u64, Stopped> {
    let mut player = begin_as(profile, backend, setup)?;
    if let Some((n, calls, code)) = failing {
        let error = if code == OUT_OF_MEMORY { FaultError::OutOfMemory } else { FaultError::Code(code) };
        let places = (1..=MOST_FAILURES / n).flat_map(|turn| (0..calls.min(n)).map(move |more| turn * n + more));
        player.plan_faults(places.fold(FaultPlan::none(), |plan, place| plan.and(When::Nth(place), error)));
    }
    player.play(steps)?;
    player.finish()?;
    Ok(steps.len() as u64)
}

/// Runs the program that these bytes are on a simulated device. Every byte string is a program, so a fuzzer can change its
/// bytes.
///
/// # Errors
/// The first difference from the reference allocator, and the program in the form of a file of `conformance/corpus`.
pub fn against_reference(bytes: &[u8]) -> Result<u64, String> {
    let (setup, steps, failing) = bytes::program(bytes);
    play(&AnyBackend::simulated(), &setup, &steps, failing).map_err(|stopped| match stopped {
        Stopped::Unable(unable) => unable.to_string(),
        Stopped::Broken(broken, script) => {
            let (entry, program) = match failing {
                None => ("seeded", program_line(&(setup, steps))),
                Some(failing) => ("every-nth-call-fails", program_line(&(setup, steps, failing))),
            };
            format!("# entry law/reference/{entry}\n# {broken}\n{script}{program}")
        }
    })
}

fn begin(backend: &AnyBackend, setup: &Setup) -> Result<Player, Stopped> {
    begin_as(setup.profile(), backend, setup)
}

/// Begins a wild program beside the reference allocator, on an allocator that has these rules.
fn begin_as(profile: &'static Profile, backend: &AnyBackend, setup: &Setup) -> Result<Player, Stopped> {
    let settings = Settings::from_environment_as(&profile.dialect, setup.text(setup.settings));
    let policy = PyTorch::of(profile, settings.expect("the strings in the table are valid"));
    let cast = Cast {
        policy: Tested::PyTorch(Box::new(policy)),
        name: None,
        choices: Choices::default(),
        is_watched: false,
        has_reference: true,
        has_books: false,
        habits: Habits::default(),
        is_wrong: false,
        contents: Contents::Ends,
    };
    Player::new(backend, setup, cast)
}

/// Frees the first request before the second, so that the second finds the first one's memory free.
fn check_pairs(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let sizes: Vec<u64> = THRESHOLDS.iter().flat_map(|&size| [size - 511, size, size + 1]).collect();
    // With little effort each pair is tried under a third of the settings, which differs from pair to pair.
    let stride = if effort.cases < ALL_PAIRS_FROM { 3 } else { 1 };
    let mut done = 0;
    let settings = texts(Setup::PLAIN.profile()).len();
    for settings in 0..settings {
        let setup = Setup { settings, capacity: 1024 * MIB, ..Setup::PLAIN };
        for (row, &first) in sizes.iter().enumerate() {
            for (column, &second) in sizes.iter().enumerate() {
                if (settings + row + column).is_multiple_of(stride) {
                    let pair = [Step::Allocate(first, 0), Step::Free(0), Step::Allocate(second, 0)];
                    done += play(backend, &setup, &pair, None)?;
                }
            }
        }
    }
    let measured = format!("{} pairs of {} sizes, {settings} settings", done / 3, sizes.len());
    Ok(Evidence { operations: done, measured, text: String::new() })
}

/// Runs a program for each rung under every setting of every release; on a real device, which is slow and does not know the
/// release, of a few releases.
fn check_rungs(backend: &AnyBackend) -> Verdict {
    let timings = if backend.is_simulated() { vec![EventTiming::Lazy, EventTiming::Eager] } else { vec![EventTiming::Clock] };
    let mut done = 0;
    for profile in profiles().filter(|profile| backend.is_simulated() || RESTORING.contains(&profile.name)) {
        // A real device is slow, and most of these settings are combinations of others.
        for settings in (0..texts(profile).len()).step_by(if backend.is_simulated() { 1 } else { 2 }) {
            for &timing in &timings {
                let setup = Setup { release: profile.name, settings, timing, ..Setup::PLAIN };
                for steps in of_rungs() {
                    done += play(backend, &setup, &steps, None)?;
                }
            }
        }
    }
    Ok(Evidence::operations(done))
}

/// Runs every program under the rules of every release that understands its settings.
fn check_releases(backend: &AnyBackend) -> Verdict {
    let done = profiles().map(|profile| check_release_as(backend, profile)).sum::<Result<u64, Stopped>>();
    Ok(Evidence::operations(done?))
}

/// Runs the programs with an allocator that has these rules, which should be those of the release that the rules name.
/// Returns the number of steps.
fn check_release_as(backend: &AnyBackend, profile: &'static Profile) -> Result<u64, Stopped> {
    let mut done = 0;
    for (settings, steps) in programs() {
        let Some(settings) = texts(profile).iter().position(|text| *text == settings) else { continue };
        // A real device places segments by its own rule.
        let kinds = [(Places::Ascending, 64 * MIB), (Places::Descending, 200 * MIB)];
        for (places, capacity) in kinds.into_iter().take(if backend.is_simulated() { 2 } else { 1 }) {
            let setup = Setup { release: profile.name, settings, places, capacity, ..Setup::PLAIN };
            done += play_as(profile, backend, &setup, &steps, None)?;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::AnyBackend;

    /// Takes one rule from a different release.
    type Take = fn(&mut Profile, &Profile);

    macro_rules! rules {
        ($($field:ident)*) => { [$((stringify!($field), (|own, other| own.$field = other.$field) as Take)),*] };
    }

    /// The rules that the laws can observe. The settings dialect has separate laws; the other fields decide what is
    /// shown or what is requested from a device.
    const RULES: [(&str, Take); 22] = rules![
        tie_break rounds_by_one_division limit_rounding limits_whole_memory asks_for_total deferral asks_after_refusal oom_words
        expandable_hint gives_short_ranges_back counts_private_pools restores_grown_segments expands_private_pools
        forgets_captured_uses flushes_before_saving flushes_at_pool_end borrows_last borrows_expandable oldest_routing_decides
        counts_failed_routings forgets_no_split keeps_cache_in_captures
    ];
    const OTHERS: [(&str, Take); 5] = rules![name dialect handle_types counts_rejections shows];

    /// Returns whether the programs detect that these are not the rules of the release that they
    /// name.
    fn is_found(rules: Profile) -> bool {
        match check_release_as(&AnyBackend::simulated(), Box::leak(Box::new(rules))) {
            Ok(_) => false,
            Err(Stopped::Broken(..)) => true,
            Err(Stopped::Unable(reason)) => panic!("{reason}"),
        }
    }

    /// Wherever a rule differs between two successive releases, the programs detect either release when it has the
    /// other's rule.
    #[test]
    fn a_rule_of_a_neighbour_is_found() {
        let all: Vec<&Profile> = profiles().collect();
        let neighbours = all.windows(2).flat_map(|pair| [(pair[0], pair[1]), (pair[1], pair[0])]);
        let mut missed = Vec::new();
        for (own, other) in neighbours {
            for (name, take) in RULES {
                let mut rules = *own;
                take(&mut rules, other);
                if rules != *own && !is_found(rules) {
                    missed.push(format!("{} with {name} from {}", own.name, other.name));
                }
            }
            // The remaining differences are source lines, and which asserts exist.
            let mut rules = *other;
            RULES.iter().chain(&OTHERS).for_each(|(_, take)| take(&mut rules, own));
            if !is_found(rules) {
                missed.push(format!("{} with the asserts from {}", own.name, other.name));
            }
        }
        assert!(missed.is_empty(), "not detected: {missed:#?}");
    }

    #[test]
    fn every_release_has_its_own_rules() {
        assert!(profiles().all(|profile| !is_found(*profile)));
    }
}
