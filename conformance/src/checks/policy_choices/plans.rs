//! STAlloc with a plan: programs that follow the planned step and depart from it.

use std::sync::{Arc, Mutex, PoisonError};

use parkade::units::{Bytes, MIB, StreamId};
use parkade_policies::{FirstStep, Plan, Stalloc, Traced};
use proptest::prelude::*;

use super::programs::{play, timing};
use crate::backend::{Places, STREAMS};
use crate::checks::campaign::{Share, Subject};
use crate::law::{Law, ensure};
use crate::program::search::{Draws, Stopped, run_cases};
use crate::program::step::{Setup, Step};
use crate::reference_policies::{self as reference, plan};
use crate::suite::{Effort, Entry, Group, Verdict};

/// The number of programs for every program that an entry of a policy otherwise gets.
const TIMES: u32 = 8;
/// The maximum number of requests in a trace that is planned.
const MOST_REQUESTS: usize = 20_000;

pub(super) fn entry(share: Share) -> Entry {
    let says = "STAlloc plans a program's first step and serves the program by that plan, following its documented rules";
    Entry::new(Group::Law, "policy/stalloc/plans", says, move |backend, effort| {
        let effort = share.of(effort);
        check_length()?;
        let (tested, second) = (Planned::new(Plan::of), Planned::new(plan::Plan::of));
        let subject = Subject::new("stalloc/plans", move |seed| Stalloc::with_plan(Arc::new(tested.of(seed))))
            .beside(move |setup| Some(Box::new(reference::Stalloc::new(second.of(setup.policy_seed)))));
        let effort = Effort { cases: effort.cases * TIMES, ..effort };
        let verdict: Verdict = run_cases(&effort, 0xc402, programs(), |(setup, steps)| {
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
fn check_bytes(step: &FirstStep) -> Result<(), crate::law::Broken> {
    let (tested, reference) = (Plan::of(step).bytes(), plan::Plan::of(step).bytes());
    ensure(Law::Choices, tested == reference, || {
        format!("the plan needs {tested} bytes, but its rules need {reference}, for {step:?}")
    })
}

/// Checks the longest trace that is planned, and a trace with one more request.
fn check_length() -> Result<(), crate::law::Broken> {
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
        let freed = draws.below(3 + 2 * (length - repeats_from) as u64) as usize;
        Traced {
            bytes: Bytes(sizes[draws.below(sizes.len() as u64) as usize]),
            stream: StreamId(STREAMS[usize::from(draws.below(5) == 0)]),
            freed_after: (draws.below(8) > 0).then_some(number + freed),
            comes_again: draws.below(8) > 0,
        }
    });
    FirstStep { requests: requests.collect(), repeats_from }
}

/// Returns programs that run a step several times and depart from it at some requests.
fn programs() -> impl Strategy<Value = (Setup, Vec<Step>)> {
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
