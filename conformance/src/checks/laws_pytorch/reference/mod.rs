//! The reference law: PyTorch's allocator and the reference allocator play the same programs, and everything that can be seen of
//! them is the same after every step: answers, errors with their texts, device calls with their arguments, trace entries, statistics,
//! segments, and what the heap answers to policies.
//!
//! Programs use all that callers can do, under the rules of every release: private pools, captures, checkpoints, callbacks, limits,
//! settings. The same holds while driver calls fail.

mod adopted;
mod callback;
mod compare;
mod drive;
mod play;
mod releases;
mod step;

use std::fmt::Write;

use parkade::profile::Profile;
use parkade_sim::{FaultError, FaultPlan, When};
use proptest::prelude::*;

use super::campaign::{Stopped, run_cases};
use crate::backend::{AnyBackend, EventTiming};
use crate::checks::draw::timings;
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};
use play::Play;
use step::{CALLBACKS, DEFAULT_POOL, Order, Scene, Step, crowd, pool_program, profiles, program, restores, scene, texts};

/// The most steps of a program.
const LONGEST: usize = 140;

/// The most calls of a program that may fail.
const MOST_FAILURES: u64 = 300;

/// Which calls fail: from every n-th on this many, with this error.
type Failing = (u64, u64, u32);
/// The driver's code for "out of memory".
const OUT_OF_MEMORY: u32 = 2;

/// Programs with crowds of free blocks are long, so there are fewer of them.
const CASES_PER_CROWD: u32 = 8;

/// Releases that restore checkpoints of expandable segments each in their own way: the first that has any, the first that restores
/// those that have grown, and the newest, which has more settings.
const RESTORING: [&str; 3] = ["2.5", "2.11", "2.15"];

/// Each entry draws programs of its own, from this number on.
const SALT: u64 = 310;

/// The entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "every decision, device call, statistic, trace entry and error is that of the reference allocator";
    let mut entries: Vec<Entry> = timings(backend)
        .into_iter()
        .zip(SALT + 1..)
        .map(|((name, timing), salt)| {
            let run = move |backend: &AnyBackend, effort: &Effort| check(backend, effort, timing, salt);
            Entry::new(Group::Law, format!("reference/{name}"), says, run).requires(Requirement::ExpandableSegments)
        })
        .collect();
    let says = "the same with hundreds of free blocks, kept by size or by address";
    let crowds = Entry::new(Group::Law, "reference/crowds", says, check_crowds);
    entries.push(crowds.requires(Requirement::ExpandableSegments));
    let says = "the same where checkpoints of another allocator are restored, with other settings or on another device";
    let foreign = Entry::new(Group::Law, "reference/foreign-checkpoints", says, check_foreign);
    entries.push(foreign.requires(Requirement::ExpandableSegments));
    let says = "the same while every n-th driver call fails, and up to two calls behind it, for n from 1 to 12";
    let failing = Entry::new(Group::Law, "reference/every-nth-call-fails", says, check_failing);
    entries.push(failing.requires(Requirement::ExpandableSegments));
    let says = "the same where other streams use what a restore takes back, and calls about events fail meanwhile";
    let restores = Entry::new(Group::Law, "reference/restores-that-fail", says, check_restores);
    entries.push(restores.requires(Requirement::ExpandableSegments));
    let says = "the same where callbacks end the pool that a request is on its way to, and make requests of their own";
    let abandoned = Entry::new(Group::Law, "reference/abandoned-pools", says, |backend: &AnyBackend, _: &Effort| {
        check_default_pool(backend)?;
        check_abandoned(backend)
    });
    entries.push(abandoned.requires(Requirement::ExpandableSegments));
    let says = "the same in programs that meet each rule in which releases differ, under the rules of every release";
    let releases =
        Entry::new(Group::Law, "reference/each-release", says, |backend: &AnyBackend, _: &Effort| releases::check(backend));
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

/// A program that saves, and another allocator that begins in the same way and restores what was saved.
fn check_foreign(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(1) } else { EventTiming::Clock };
    // On a real device ranges have other addresses.
    if backend.is_simulated() {
        check_foreign_ranges(backend)?;
    }
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    let other = prop::option::of((scene(timing), any::<bool>()));
    let strategy = (scene(timing), other, pool_program(4..50), 0..50_usize, pool_program(1..50));
    run_cases(&effort, SALT + 21, &strategy, |(first, other, before, cut, rest)| {
        let second = match other {
            // The same release and addresses, but other sizes.
            Some((other, true)) => Scene { capacity: other.capacity, settings: other.settings, ..*first },
            Some((other, false)) => *other,
            None => *first,
        };
        let after: Vec<Step> = before.iter().take(*cut).chain(rest).copied().collect();
        foreign(backend, (first, before), (&second, &after))
    })
}

/// A pool of one allocation, saved under each setting and restored under each other one: ranges at the same addresses are longer,
/// shorter, or exactly as long as what was mapped.
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

/// Plays the first program, and the second one with the checkpoints of the first.
fn foreign(backend: &AnyBackend, first: (&Scene, &[Step]), second: (&Scene, &[Step])) -> Result<u64, Stopped> {
    let mut play = begin(backend, first.0)?;
    steps(&mut play, first.1, None)?;
    let checkpoints = std::mem::take(&mut play.checkpoints);
    drop(play);
    let mut play = begin(backend, second.0)?;
    play.checkpoints = checkpoints;
    steps(&mut play, second.1, None)?;
    play.finish().map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script(second.0, second.1, None)))?;
    Ok((first.1.len() + second.1.len()) as u64)
}

fn check_failing(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock };
    let failing = (1..=12_u64, prop::sample::select(vec![1, 1, 2, 3]), prop::sample::select(vec![OUT_OF_MEMORY, 700, 1]));
    let strategy = (scene(timing), program(1..LONGEST), failing);
    run_cases(effort, SALT, &strategy, |(scene, steps, failing)| play(backend, scene, steps, Some(*failing)))
}

/// A request of a pool whose callbacks finish its routing, release it, empty caches, and make requests of their own, in every order.
fn check_abandoned(backend: &AnyBackend) -> Verdict {
    let (served, refused) = (Order::Allocate(3 << 20, 0), Order::Allocate(400 << 20, 0));
    let orders = [served, refused, Order::End(0), Order::Release(0), Order::ReleaseCached, Order::ReleaseCachedPool(0)];
    let triples = orders.into_iter().flat_map(|a| orders.into_iter().flat_map(move |b| orders.map(|c| [a, b, c])));
    // Their number has no divisor in common with that of a triple's programs, so each release meets all of these.
    let mut profiles = profiles().collect::<Vec<_>>().into_iter().cycle();
    let mut done = 0;
    for triple in triples {
        // The pool may have no use left before. The request may find the device empty, or be too large for it.
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

/// Checkpoints of pools whose blocks other streams use, while calls about events fail.
fn check_restores(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let timing = if backend.is_simulated() { EventTiming::Seeded(2) } else { EventTiming::Clock };
    let failing = prop::option::of((1..=9_u64, prop::sample::select(vec![1, 1, 2]), Just(700)));
    let effort = Effort { cases: effort.cases / 2 + 1, ..*effort };
    run_cases(&effort, SALT + 22, &(scene(timing), restores(), failing), |(scene, steps, failing)| {
        play(backend, scene, steps, *failing)
    })
}

/// Plays a program to its end, with every n-th call failing if one is given. Returns the number of steps.
fn play(backend: &AnyBackend, scene: &Scene, steps: &[Step], failing: Option<Failing>) -> Result<u64, Stopped> {
    play_as(scene.profile(), backend, scene, steps, failing)
}

/// The same where the allocator has these rules.
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
    play.finish().map_err(|broken| Stopped::Broken(broken.during("giving everything back"), script(scene, steps, failing)))?;
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

/// A program in words. It may use what scripts of `parkade ops` cannot say, so every line is a comment.
fn script(scene: &Scene, steps: &[Step], failing: Option<Failing>) -> String {
    let mut text = format!("# {scene:?}\n# settings: {:?}\n", scene.text(scene.settings));
    if let Some((n, calls, code)) = failing {
        let _ = writeln!(text, "# {calls} calls from every call number {n} on fail with code {code}");
    }
    for step in steps {
        let _ = writeln!(text, "# {step:?}");
    }
    text
}
