//! The reference law: PyTorch's allocator and the reference allocator run the same programs, and everything visible is
//! equal after every step: answers, errors with their texts, device calls with their arguments, trace entries,
//! statistics, segments, and the heap's answers to policies.
//!
//! Programs use every operation that callers have, under the rules of every release: private pools, captures,
//! checkpoints, callbacks, limits and settings. The law also holds while driver calls fail.
//!
//! Random programs reach some rules rarely. Fixed programs therefore exercise each rule in which releases differ, under
//! the rules of every release.

use std::fmt::Write;

use parkade::profile::Profile;
use parkade::units::MIB;
use parkade_sim::{FaultError, FaultPlan, When};
use proptest::prelude::*;

use super::campaign::{Stopped, run_cases};
use crate::backend::{AnyBackend, EventTiming, Places};
use crate::program::player::Play;
use crate::program::search::timings;
use crate::program::step::{
    CALLBACKS, DEFAULT_POOL, Order, Scene, Step, crowd, pool_program, profiles, program, restores, scene, texts,
};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The maximum number of steps of a program.
const LONGEST: usize = 140;

/// The maximum number of failing calls of a program.
const MOST_FAILURES: u64 = 300;

/// The failing calls: at every n-th call, this many calls in a row fail with this error.
type Failing = (u64, u64, u32);
/// The driver's code for "out of memory".
const OUT_OF_MEMORY: u32 = 2;

/// Programs with large numbers of free blocks are long, so there are fewer of them.
const CASES_PER_CROWD: u32 = 8;

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
    let says = "every decision matches the reference allocator when checkpoints are restored into an allocator with a different \
                origin, settings or device";
    let foreign = Entry::new(Group::Law, "reference/foreign-checkpoints", says, check_foreign);
    entries.push(foreign.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator while every n-th driver call and up to two calls after it fail, \
                for n from 1 to 12";
    let failing = Entry::new(Group::Law, "reference/every-nth-call-fails", says, check_failing);
    entries.push(failing.requires(Requirement::ExpandableSegments));
    let says = "every decision matches the reference allocator when a restore frees blocks that other streams use while event \
                calls fail";
    let restores = Entry::new(Group::Law, "reference/restores-that-fail", says, check_restores);
    entries.push(restores.requires(Requirement::ExpandableSegments));
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
    entries
}

fn check(backend: &AnyBackend, effort: &Effort, timing: EventTiming, salt: u64) -> Verdict {
    let strategy = (scene(timing), program(1..LONGEST));
    run_cases(effort, salt, &strategy, |(scene, steps)| play(backend, scene, steps, None))
}

fn check_crowds(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Eager } else { EventTiming::Clock };
    let effort = Effort { cases: effort.cases / CASES_PER_CROWD + 1, ..*effort };
    run_cases(&effort, SALT + 20, &(scene(timing), crowd()), |(scene, steps)| play(backend, scene, steps, None))
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
    let other = prop::option::of((scene(timing), any::<bool>()));
    let strategy = (scene(timing), other, pool_program(4..50), 0..50_usize, pool_program(1..50));
    run_cases(&effort, SALT + 21, &strategy, |(first, other, before, cut, rest)| {
        let second = match other {
            // The second program has the same release and addresses, but different sizes.
            Some((other, true)) => Scene { capacity: other.capacity, settings: other.settings, ..*first },
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
        let scene = Scene { release, ..Scene::PLAIN };
        let settings = 0..texts(scene.profile()).len();
        for (settings, other) in settings.clone().flat_map(|first| settings.clone().map(move |other| (first, other))) {
            for mib in [20, 40, 60] {
                let first = Scene { settings, ..scene };
                let second = Scene { settings: other, ..first };
                let begin = [Step::BeginPool(0, None), Step::Allocate(mib << 20, 0)];
                let (before, after) = ([begin[0], begin[1], Step::Save(0)], [begin[0], begin[1], Step::Restore(0)]);
                foreign(backend, (&first, &before), (&second, &after)).map_err(trouble)?;
            }
        }
    }
    Ok(())
}

/// Runs the first program, then the second one with the checkpoints of the first.
fn foreign(backend: &AnyBackend, first: (&Scene, &[Step]), second: (&Scene, &[Step])) -> Result<u64, Stopped> {
    let mut play = begin(backend, first.0)?;
    steps(&mut play, first.1, None)?;
    let checkpoints = std::mem::take(&mut play.checkpoints);
    drop(play);
    let mut play = begin(backend, second.0)?;
    play.checkpoints = checkpoints;
    steps(&mut play, second.1, None)?;
    play.finish().map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script(second.0, second.1, None)))?;
    Ok((first.1.len() + second.1.len()) as u64)
}

fn check_failing(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock };
    let failing = (1..=12_u64, prop::sample::select(vec![1, 1, 2, 3]), prop::sample::select(vec![OUT_OF_MEMORY, 700, 1]));
    let strategy = (scene(timing), program(1..LONGEST), failing);
    run_cases(effort, SALT, &strategy, |(scene, steps, failing)| play(backend, scene, steps, Some(*failing)))
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
    for triple in triples {
        // The pool may have no uses left before the request. The request may find the device empty, or be too large for
        // it.
        for (is_released, mib) in [(false, 5), (true, 5), (false, 5), (true, 400)] {
            let Some(profile) = profiles.next() else { break };
            let scene = Scene { release: profile.name, has_callbacks: true, ..Scene::PLAIN };
            let begin = [Step::BeginPool(0, None), Step::ReleasePool(0)];
            let mut program = begin[..1 + usize::from(is_released)].to_vec();
            program.extend(triple.into_iter().zip(0..CALLBACKS).map(|(order, callback)| Step::Command(callback, order, true)));
            program.extend([Step::Allocate(mib << 20, 0), Step::CreatePool(1), Step::Allocate(700, 0), Step::ReleaseCached]);
            done += play(backend, &scene, &program, None).map_err(trouble)?;
        }
    }
    Ok(Evidence::operations(done))
}

/// The default pool is never kept whole.
fn check_default_pool(backend: &AnyBackend) -> Result<(), Trouble> {
    for profile in profiles() {
        let program = [Step::NoSplit(DEFAULT_POOL), Step::Allocate(700, 0), Step::Allocate(3 << 20, 0), Step::Allocate(700, 0)];
        play(backend, &Scene { release: profile.name, ..Scene::PLAIN }, &program, None).map_err(trouble)?;
    }
    Ok(())
}

fn trouble(stopped: Stopped) -> Trouble {
    match stopped {
        Stopped::Unable(unable) => unable.into(),
        Stopped::Broken(broken, script) => Trouble::Fail { reason: broken.to_string(), script: Some(script) },
    }
}

/// Checkpoints of pools whose blocks are used by other streams, while event calls fail.
fn check_restores(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(2) } else { EventTiming::Clock };
    let failing = prop::option::of((1..=9_u64, prop::sample::select(vec![1, 1, 2]), Just(700)));
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    run_cases(&effort, SALT + 22, &(scene(timing), restores(), failing), |(scene, steps, failing)| {
        play(backend, scene, steps, *failing)
    })
}

/// Runs a program to its end; every n-th call fails if `failing` is given. Returns the number of steps.
fn play(backend: &AnyBackend, scene: &Scene, steps: &[Step], failing: Option<Failing>) -> Result<u64, Stopped> {
    play_as(scene.profile(), backend, scene, steps, failing)
}

/// Does the same with an allocator that has these rules.
fn play_as(
    profile: &'static Profile,
    backend: &AnyBackend,
    scene: &Scene,
    steps: &[Step],
    failing: Option<Failing>,
) -> Result<u64, Stopped> {
    let mut play = begin_as(profile, backend, scene)?;
    if let Some((n, calls, code)) = failing {
        let error = if code == OUT_OF_MEMORY { FaultError::OutOfMemory } else { FaultError::Code(code) };
        let places = (1..=MOST_FAILURES / n).flat_map(|turn| (0..calls.min(n)).map(move |more| turn * n + more));
        let plan = places.fold(FaultPlan::none(), |plan, place| plan.and(When::Nth(place), error));
        play.plan_faults(plan);
    }
    self::steps(&mut play, steps, failing)?;
    play.finish().map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script(scene, steps, failing)))?;
    Ok(steps.len() as u64)
}

fn begin(backend: &AnyBackend, scene: &Scene) -> Result<Play, Stopped> {
    begin_as(scene.profile(), backend, scene)
}

fn begin_as(profile: &'static Profile, backend: &AnyBackend, scene: &Scene) -> Result<Play, Stopped> {
    let mut play = Play::new(backend, scene, profile).map_err(Stopped::Unable)?;
    play.adopt().map_err(|broken| Stopped::Broken(broken.during("adopting segments"), script(scene, &[], None)))?;
    Ok(play)
}

fn steps(play: &mut Play, steps: &[Step], failing: Option<Failing>) -> Result<(), Stopped> {
    for (number, step) in steps.iter().enumerate() {
        play.apply(step).map_err(|broken| {
            Stopped::Broken(broken.during(format!("step {number}, {step:?}")), script(&play.scene, &steps[..=number], failing))
        })?;
    }
    Ok(())
}

/// Describes a program. It may use steps that `parkade ops` scripts cannot express, so every line is a comment.
fn script(scene: &Scene, steps: &[Step], failing: Option<Failing>) -> String {
    let mut text = format!("# {scene:?}\n# settings: {:?}\n", scene.text(scene.settings));
    if let Some((n, calls, code)) = failing {
        let _ = writeln!(text, "# {calls} calls in a row fail with code {code} from call number {n} on, for every n");
    }
    for step in steps {
        let _ = writeln!(text, "# {step:?}");
    }
    text
}

const EXPANDABLE: &str = "expandable_segments:True";
const OVERSIZE: &str = "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5";
const REUSE: &str = "graph_capture_record_stream_reuse:True";
const REUSE_EXPANDABLE: &str = "graph_capture_record_stream_reuse:True,expandable_segments:True";

/// A request on the default stream.
const fn allocate(mib: u64) -> Step {
    Step::Allocate(mib * MIB, 0)
}

/// Runs every program under the rules of every release that understands its settings.
fn check_releases(backend: &AnyBackend) -> Verdict {
    let done = profiles().map(|profile| check_release_as(backend, profile)).sum::<Result<u64, Stopped>>();
    Ok(Evidence::operations(done.map_err(trouble)?))
}

/// Runs the programs with an allocator that has these rules, which should be those of the release that the rules name.
/// Returns the number of steps.
fn check_release_as(backend: &AnyBackend, profile: &'static Profile) -> Result<u64, Stopped> {
    let mut done = 0;
    for (settings, steps) in programs() {
        let Some(settings) = texts(profile).iter().position(|text| *text == settings) else { continue };
        for (places, capacity) in [(Places::Ascending, 64 * MIB), (Places::Descending, 200 * MIB)] {
            let scene = Scene { release: profile.name, settings, places, capacity, ..Scene::PLAIN };
            done += play_as(profile, backend, &scene, &steps, None)?;
        }
    }
    Ok(done)
}

/// Returns programs, each with its settings.
fn programs() -> Vec<(&'static str, Vec<Step>)> {
    let mut programs = programs_of_requests();
    programs.extend(programs_of_releasing());
    for settings in ["", EXPANDABLE, REUSE, REUSE_EXPANDABLE] {
        programs.extend(programs_of_captures(settings));
    }
    programs
}

/// Returns programs with requests, some of them routed to pools.
fn programs_of_requests() -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    vec![
        // Equal free blocks: first parts of one segment, then entire segments.
        ("", vec![allocate(5), allocate(5), allocate(5), allocate(5), Step::Free(0), Step::Free(2), allocate(5), allocate(5)]),
        ("", vec![allocate(20), allocate(20), Step::Free(0), Step::Free(0), allocate(20), allocate(20)]),
        ("roundup_power2_divisions:1", vec![Step::Allocate(1_000_001, 0), Step::Allocate(3_000_001, 0)]),
        ("", vec![Step::Fraction(333), allocate(400), Step::Fraction(1000), allocate(400), Step::Fraction(1001)]),
        // Calls on pools that fail, and other calls that fail after a pool has been released too
        // often.
        (
            "",
            vec![
                Step::ReleasePool(1),
                begin,
                begin,
                Step::EndPool(0),
                allocate(2),
                Step::Record(0, 1),
                Step::Free(0),
                allocate(2),
            ],
        ),
        (
            "",
            vec![
                Step::CreatePool(0),
                Step::ReleasePool(0),
                begin,
                Step::ReleasePool(0),
                Step::ReleaseCached,
                Step::ReleaseCachedPool(0),
            ],
        ),
        // Two pools to which requests of stream 1 are routed.
        (
            "",
            vec![
                begin,
                Step::BeginPool(1, Some(1)),
                Step::Allocate(700, 1),
                Step::Allocate(700, 0),
                Step::EndPool(0),
                Step::Allocate(700, 1),
                begin,
                Step::Allocate(700, 1),
            ],
        ),
    ]
}

/// Returns programs about which memory is kept and which is released.
fn programs_of_releasing() -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    vec![
        // "Never split", then a new pool with the same id.
        ("", [&[begin, Step::NoSplit(0)], &held_and_released()[..], &[begin], &held_and_released()].concat()),
        // The error message with a limit and with memory cached in a private pool.
        ("", vec![Step::Fraction(600), begin, allocate(10), Step::EndPool(0), Step::Free(0), allocate(400)]),
        // The release of oversize blocks reaches one in an expandable segment.
        (
            OVERSIZE,
            vec![
                allocate(34),
                Step::Free(0),
                Step::OthersHold(20 * MIB),
                allocate(60),
                Step::Allocate(33 * MIB, 1),
                allocate(190),
            ],
        ),
        (EXPANDABLE, vec![allocate(300), Step::Limit(Some(40 * MIB)), allocate(50)]),
        // Releasing the cache during a routing and during a capture.
        (
            "",
            vec![
                allocate(3),
                Step::Free(0),
                begin,
                Step::ReleaseCached,
                Step::EndPool(0),
                Step::Capturing(true),
                Step::ReleaseCached,
            ],
        ),
        // A request on a stream that is not captured.
        (
            REUSE,
            vec![begin, allocate(1), Step::Capturing(true), allocate(1), Step::EndPool(0), Step::Capturing(false), allocate(1)],
        ),
    ]
}

/// Returns programs with captures, checkpoints and pools that serve when memory runs out, under these settings.
fn programs_of_captures(settings: &'static str) -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    let end = [Step::EndPool(0), Step::Capturing(false), Step::CompleteAll, Step::ProcessEvents];
    let mut programs = Vec::new();
    // Blocks freed during a capture that other streams used before it, during it, or both.
    for (before, during) in [(true, false), (false, true), (true, true)] {
        let used = [Step::Record(0, 1)].repeat(usize::from(before));
        let used_in_capture = [Step::Record(0, 2)].repeat(usize::from(during));
        let capture = [Step::Capturing(true), begin, allocate(2), Step::EndPool(0)];
        let given_back = [&used[..], &[begin], &used_in_capture, &[Step::Free(0), allocate(2)]].concat();
        for more in [Step::Save(0), Step::EndPool(0), Step::ProcessEvents] {
            programs.push((settings, [&capture[..], &given_back, &[more], &end].concat()));
        }
    }
    // A checkpoint restored before and after the pool has grown.
    let saved = [Step::Capturing(true), begin, allocate(12), Step::Save(0)];
    programs.push((settings, [&saved[..], &[Step::Free(0), Step::Restore(0), allocate(30), Step::Restore(0)], &end].concat()));
    programs.push((settings, [&saved[..], &[allocate(3), Step::Free(0), allocate(20), Step::Restore(0)], &end].concat()));
    // A pool that serves when memory runs out: once when releasing the cache would help, and once when nothing else
    // helps.
    let lender = [begin, allocate(30), Step::EndPool(0), Step::Free(0), Step::UseOnOom(0, true)];
    let cached = [Step::Allocate(20 * MIB, 1), Step::Free(0)];
    for room in [0, 140] {
        let others = [Step::OthersHold(room * MIB)];
        programs.push((settings, [&lender[..], &cached, &others, &[allocate(30)]].concat()));
        programs.push((settings, [&lender[..], &cached[..1], &others, &[allocate(28)]].concat()));
    }
    programs
}

/// Allocations and frees in a pool before it ends.
fn held_and_released() -> [Step; 7] {
    let small = Step::Allocate(700, 0);
    [small, small, Step::EndPool(0), Step::Free(0), Step::Free(0), Step::ReleasePool(0), Step::ReleaseCached]
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
