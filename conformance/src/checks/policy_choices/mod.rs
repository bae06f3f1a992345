//! Checks that each policy of the catalogue follows its documented rules: in every program, the policy and its
//! [reference policy](crate::reference_policies) are asked the same questions.
//!
//! The programs here reach cases that other programs rarely reach: sizes that are exactly equal to thresholds, free blocks or
//! sums of them; full devices; parameters of policies; and STAlloc's plans, where programs follow the planned step and depart
//! from it.

mod grammar;
mod lending;
mod limits;
mod names;
mod programs;

use std::sync::{Arc, Mutex, PoisonError};

use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::units::{Bytes, MIB, PoolClass, StreamId};
use parkade::{Heap, LiveBlock, PoolSlot};
use parkade_policies::{
    CudaAsync, FirstStep, Fit, GmLake, GrowingRegion, Plan, Reach, Rescue, Stalloc, Traced, needs_serial_work, settings_to_rescue,
};
use proptest::prelude::*;

use self::programs::{play, timing};
use super::campaign::{Share, Subject};
use crate::backend::{AnyBackend, Places, STREAMS};
use crate::law::{Broken, Law, ensure};
use crate::program::search::{Draws, Stopped, run_cases};
use crate::program::step::{Setup, Step, profiles, texts};
use crate::reference_policies::{self as reference, pytorch};
use crate::suite::{Effort, Entry, Group, Verdict};

/// The maximum number of steps of a program.
const LONGEST: usize = 150;

/// Returns the entry of a policy in the catalogue.
pub(super) fn entry(subject: &Subject, share: Share) -> Entry {
    let says = "every choice of the policy follows its documented rules";
    let subject = subject.clone();
    Entry::new(Group::Law, format!("policy/{}/choices", subject.name), says, move |backend, effort| {
        let effort = share.of(effort);
        // Our own policies have more rules than others.
        let times = if needs_serial_work(&subject.name) { 3 } else { 1 };
        check(&subject, backend, &Effort { cases: effort.cases * times, ..effort })
    })
}

/// Returns the entries about parameters, plans, names and limits. `drawn` is a policy that is assembled at random.
pub(super) fn entries(drawn: Subject, share: Share) -> Vec<Entry> {
    let says = "whatever the policy's parameters are, its choices follow its documented rules";
    let with_parameters = [thresholds(), handles(), fragments(), rescues()].into_iter().map(|subject| {
        Entry::new(Group::Law, format!("policy/{}", subject.name), says, move |backend, effort| {
            check_extreme_handles()?;
            check(&subject, backend, &share.of(effort))
        })
    });
    with_parameters.chain([plan_entry(share), names::entry(share), lending::entry(share), limits::entry(drawn, share)]).collect()
}

fn check(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    let effort = Effort { cases: effort.cases * programs::TIMES, ..*effort };
    run_cases(&effort, programs::SALT, programs::deciding(LONGEST), |(setup, steps)| play(subject, backend, setup, steps))
}

/// Returns cudaMallocAsync's pool with any release threshold.
fn thresholds() -> Subject {
    let threshold = |seed: u64| {
        let mut draws = Draws::new(seed);
        let whole = draws.below(12) * 16 * MIB;
        [whole, whole.saturating_sub(1), whole + 1, draws.below(256 * MIB)][draws.below(4) as usize]
    };
    Subject::new("cuda-async/thresholds", move |seed| CudaAsync::new(Bytes(threshold(seed))))
        .beside(move |setup| Some(Box::new(reference::CudaAsync::new(threshold(setup.policy_seed)))))
}

/// Returns GMLake's rules with any smallest request for which blocks are stitched.
fn fragments() -> Subject {
    let smallest = |seed: u64| {
        let sizes = [2, 4, 8, 12, 16, 20, 32, 64, 128].map(|mib: u64| mib * MIB);
        sizes[Draws::new(seed).below(sizes.len() as u64) as usize]
    };
    Subject::new("gmlake-like/fragments", move |seed| GmLake::new(Bytes(smallest(seed))))
        .beside(move |setup| Some(Box::new(reference::GmLake::new(smallest(setup.policy_seed)))))
}

/// Returns every fit with handles of any size.
fn handles() -> Subject {
    let drawn = |seed: u64| {
        let mut draws = Draws::new(seed);
        let fit = [Fit::Best, Fit::First, Fit::Next, Fit::Worst][draws.below(4) as usize];
        let sizes = [0, 1, 2 * MIB, 2 * MIB + 1, 4 * MIB, 6 * MIB - 1, 20 * MIB, 64 * MIB, 1 << 40];
        (fit, sizes[draws.below(sizes.len() as u64) as usize])
    };
    let tested = move |seed| {
        let (fit, page) = drawn(seed);
        GrowingRegion::new(fit).with_page(Bytes(page))
    };
    Subject::new("best-fit-remap/handles", tested).beside(move |setup| {
        let (fit, page) = drawn(setup.policy_seed);
        Some(Box::new(reference::GrowingRegion::new(fit, page)))
    })
}

/// Checks sizes of handles that no device supports.
fn check_extreme_handles() -> Result<(), Broken> {
    let pool = PoolSlot::default_pool(PoolClass::Large);
    for bytes in [u64::MAX, u64::MAX - 2 * MIB + 1, u64::MAX - 2 * MIB, u64::MAX / 2 + 2] {
        let tested = GrowingRegion::new(Fit::Best).with_page(Bytes(bytes)).page(pool);
        let reference = reference::GrowingRegion::new(Fit::Best, bytes).page(pool);
        ensure(Law::Choices, tested == reference, || {
            format!("handles of {bytes} bytes become {tested} instead of {reference} bytes")
        })?;
    }
    Ok(())
}

/// Returns the rescue under the rules of any release, with any settings, reach and maximum, in programs that may switch expandable
/// segments off and on.
fn rescues() -> Subject {
    Subject::new("pytorch-rescue/rules", |seed| {
        let drawn = DrawnRescue::new(seed);
        let rules = pytorch(Some(drawn.release), drawn.text);
        let settings = match settings_to_rescue(Policy::profile(&rules), drawn.text) {
            Ok(Some(settings)) => settings,
            // The settings disable expandable segments, so nothing is ever rescued.
            _ => rules.settings.clone(),
        };
        let rescue = Rescue::new(PyTorch::of(Policy::profile(&rules), settings), drawn.reach).at_most(drawn.most);
        Switching { rescue, every: drawn.switched_every, allocations: 0 }
    })
    .beside(|setup| {
        let drawn = DrawnRescue::new(setup.policy_seed);
        let disables = drawn.text.contains("expandable_segments:False");
        let prefix = if disables { "" } else { "expandable_segments:True," };
        let rules = pytorch(Some(drawn.release), &format!("{prefix}{}", drawn.text));
        let rescue = reference::Rescue::new(rules, drawn.reach, drawn.most);
        Some(Box::new(Switching { rescue, every: drawn.switched_every, allocations: 0 }))
    })
}

/// A rescue in a program that switches expandable segments off or on after every few allocations; never, if `every` is 0.
struct Switching<R> {
    rescue: R,
    every: u64,
    allocations: u64,
}

impl<R: Wrapper<Inner = PyTorch>> Wrapper for Switching<R> {
    type Inner = R;

    fn inner(&self) -> &R {
        &self.rescue
    }

    fn inner_mut(&mut self) -> &mut R {
        &mut self.rescue
    }

    fn allocated(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        Wrapper::allocated(&mut self.rescue, heap, block);
        self.allocations += 1;
        if self.every > 0 && self.allocations.is_multiple_of(self.every) {
            let settings = &mut self.rescue.inner_mut().settings;
            settings.expandable_segments = !settings.expandable_segments;
        }
    }
}

/// The parameters of a rescue.
struct DrawnRescue {
    release: &'static str,
    text: &'static str,
    reach: Option<Reach>,
    most: u64,
    /// The number of allocations after which the program switches expandable segments off or on.
    switched_every: u64,
}

impl DrawnRescue {
    fn new(seed: u64) -> DrawnRescue {
        let mut draws = Draws::new(seed);
        let mut any = |bound: usize| draws.below(bound as u64) as usize;
        let profile = profiles().nth(any(profiles().count())).expect("the number is below the count");
        let known = texts(profile);
        DrawnRescue {
            release: profile.name,
            text: if any(2) == 0 { "" } else { known[any(known.len())] },
            reach: [None, Some(Reach::Free), Some(Reach::Breaks), Some(Reach::Breaks)][any(4)],
            most: [0, 1, 2, 2, 3, u64::MAX][any(6)],
            switched_every: [0, 0, 0, 2, 5, 9][any(6)],
        }
    }
}

/// The number of programs for every program that an entry of a policy otherwise gets.
const PLAN_TIMES: u32 = 8;
/// The maximum number of requests in a trace that is planned.
const MOST_REQUESTS: usize = 20_000;

fn plan_entry(share: Share) -> Entry {
    let says = "STAlloc plans a program's first step and serves the program by that plan, following its documented rules";
    Entry::new(Group::Law, "policy/stalloc/plans", says, move |backend, effort| {
        let effort = share.of(effort);
        check_length()?;
        let (tested, second) = (Planned::new(Plan::of), Planned::new(reference::Plan::of));
        let subject = Subject::new("stalloc/plans", move |seed| Stalloc::with_plan(Arc::new(tested.of(seed))))
            .beside(move |setup| Some(Box::new(reference::Stalloc::new(second.of(setup.policy_seed)))));
        let effort = Effort { cases: effort.cases * PLAN_TIMES, ..effort };
        let verdict: Verdict = run_cases(&effort, 0xc402, planned_programs(), |(setup, steps)| {
            check_bytes(&first_step(setup.policy_seed)).map_err(|broken| Stopped::Broken(broken, String::new()))?;
            if !setup.is_finished {
                return play(&subject, backend, setup, steps);
            }
            subject.whole_run(backend, setup, steps).map(|_| steps.len() as u64)
        });
        verdict
    })
}

/// A planner that keeps its newest plan, because many policies are created with the same plan.
struct Planned<P> {
    plan: fn(&FirstStep) -> P,
    newest: Mutex<Option<(u64, P)>>,
}

impl<P: Clone> Planned<P> {
    fn new(plan: fn(&FirstStep) -> P) -> Planned<P> {
        Planned { plan, newest: Mutex::new(None) }
    }

    fn of(&self, seed: u64) -> P {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.as_ref().is_none_or(|(known, _)| *known != seed) {
            *newest = Some((seed, (self.plan)(&first_step(seed))));
        }
        newest.as_ref().map(|(_, plan)| plan.clone()).expect("the plan has just been made")
    }
}

/// Checks that both planners need the same memory.
fn check_bytes(step: &FirstStep) -> Result<(), Broken> {
    let (tested, reference) = (Plan::of(step).bytes(), reference::Plan::of(step).bytes());
    ensure(Law::Choices, tested == reference, || {
        format!("the plan needs {tested} bytes, but its rules need {reference}, for {step:?}")
    })
}

/// Checks the longest trace that is planned, and a trace with one more request.
fn check_length() -> Result<(), Broken> {
    let other = Traced { bytes: Bytes(MIB), stream: StreamId::DEFAULT, freed_after: None, comes_again: false };
    for length in [MOST_REQUESTS, MOST_REQUESTS + 1] {
        let mut requests = vec![other; length];
        requests[length - 1].comes_again = true;
        check_bytes(&FirstStep { requests, repeats_from: length - 2 })?;
    }
    Ok(())
}

/// Returns a program's first step, which may begin after a few other requests.
fn first_step(seed: u64) -> FirstStep {
    let mut draws = Draws::new(seed);
    let sizes = [100, 512, 513, 1024, 3000, MIB, MIB + 1, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 10 * MIB, 12 * MIB];
    let repeats_from = [0, 0, 1, 2, 5][draws.below(5) as usize];
    // A few traces have no step, and a few have one that is longer than the range that is searched for an entry.
    let length = repeats_from + [0, 1, 2, 3, 5, 8, 8, 13, 13, 13, 21, 70][draws.below(12) as usize];
    let requests = (0..length).map(|number| {
        // Often exactly at the beginning or the end of the step, or at the end of the next one.
        let borders = [repeats_from, length, 2 * length - repeats_from];
        let freed = match draws.below(4) {
            0 => borders[draws.below(borders.len() as u64) as usize].max(number),
            _ => number + draws.below(3 + 2 * (length - repeats_from) as u64) as usize,
        };
        Traced {
            bytes: Bytes(sizes[draws.below(sizes.len() as u64) as usize]),
            stream: StreamId(STREAMS[usize::from(draws.below(5) == 0)]),
            freed_after: (draws.below(8) > 0).then_some(freed),
            comes_again: draws.below(8) > 0,
        }
    });
    FirstStep { requests: requests.collect(), repeats_from }
}

/// Returns programs that run a step several times and depart from it at some requests.
fn planned_programs() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let capacity = prop::sample::select(vec![24 * MIB, 40 * MIB, 64 * MIB, 128 * MIB, 512 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    let noise = prop::collection::vec(any::<u8>(), 0..150);
    (capacity, timing(), places, any::<u64>(), 1..5_usize, noise).prop_map(|(capacity, timing, places, seed, rounds, noise)| {
        // Some programs are careful, which takes longer.
        let is_careful = seed.is_multiple_of(8);
        let has_callbacks = !is_careful && seed % 8 < 3;
        let plain = Setup { has_callbacks, is_finished: is_careful, free_waits: is_careful, ..Setup::PLAIN };
        let setup = Setup { capacity, timing, places, policy_seed: seed, ..plain };
        (setup, follow(&first_step(seed), rounds, &noise))
    })
}

/// A program that follows a trace, while it is written.
struct Follower {
    steps: Vec<Step>,
    /// For each allocation that the program holds, in the player's order: the number of requests after which it is freed.
    held: Vec<usize>,
}

impl Follower {
    fn allocate(&mut self, bytes: u64, stream: StreamId, freed: usize) {
        let place = STREAMS.iter().position(|&known| known == stream.get()).unwrap_or(0);
        self.steps.push(Step::Allocate(bytes, place));
        self.held.push(freed);
    }

    fn free_those_due(&mut self, now: usize) {
        while let Some(which) = self.held.iter().position(|&freed| freed <= now) {
            self.held.remove(which);
            self.steps.push(Step::Free(which));
        }
    }

    /// Departs from the trace. Returns whether the program leaves out the traced request.
    fn depart(&mut self, kind: u8, request: &Traced, now: usize) -> bool {
        let other = [MIB / 2, 513, 2 * MIB, 3 * MIB, 6 * MIB][usize::from(kind) % 5];
        match kind {
            0..=9 => return true,
            10..=29 => self.allocate(other, StreamId(STREAMS[0]), now + usize::from(kind % 7)),
            30..=39 => self.allocate(request.bytes.get(), request.stream, now + usize::from(kind % 3)),
            40..=44 => self.steps.push(Step::ReleaseCached),
            45..=49 => self.steps.push(Step::OthersHold(u64::from(kind - 45) * 10 * MIB)),
            50..=52 => self.steps.push(Step::Record(usize::from(kind), 2)),
            // Another stream uses the newest allocation, which is then freed.
            83..=92 => {
                let newest = self.held.len().saturating_sub(1);
                self.steps.extend([Step::Launch(2, 50_000), Step::Record(newest, 2)]);
                self.held.last_mut().into_iter().for_each(|freed| *freed = now);
            }
            93..=95 if !self.held.is_empty() => {
                self.held.pop();
                self.steps.push(Step::Stock(self.held.len(), 0));
            }
            53..=55 => self.steps.push(Step::BeginPool(0, None)),
            56..=64 => self.steps.push(Step::EndPool(0)),
            65..=68 => self.steps.push(Step::CompleteAll),
            69..=71 => self.steps.push(Step::Launch(0, 5000)),
            72..=75 => self.steps.push(Step::Limit(Some(u64::from(kind - 70) * 8 * MIB))),
            76..=79 => self.steps.push(Step::Limit(None)),
            80..=82 => self.allocate(request.bytes.get(), StreamId(STREAMS[3]), now + 1),
            _ => {}
        }
        false
    }
}

fn follow(step: &FirstStep, rounds: usize, noise: &[u8]) -> Vec<Step> {
    let mut follower = Follower { steps: Vec::new(), held: Vec::new() };
    let mut now = 0;
    for round in 0..rounds {
        let first = if round == 0 { 0 } else { step.repeats_from };
        for (number, request) in step.requests.iter().enumerate().skip(first) {
            if round > 0 && !request.comes_again {
                continue;
            }
            let kind = noise.get(now).copied().unwrap_or(u8::MAX);
            let is_left_out = follower.depart(kind, request, now);
            now += 1;
            if !is_left_out {
                let lives = request.freed_after.map_or(usize::MAX / 2, |freed| freed.saturating_sub(number).max(1));
                follower.allocate(request.bytes.get(), request.stream, now - 1 + lives);
            }
            follower.free_those_due(now);
        }
    }
    follower.steps
}
