//! The first step of a workload, for policies that plan it ahead ([`make_for`]).
//!
//! A framework says where its steps begin; a workload does not. So the step is looked for in the whole workload: the
//! requests that come again and again. What is planned is only the program's start and that step once.

use std::sync::Arc;

use parkade::policy::Policy;
use parkade::units::{Bytes, StreamId};
use parkade_policies::{FirstStep, Named, Plan, Stalloc, Traced};

use super::run::handle;
use crate::workload::{Event, Workload};

/// Of the requests that are compared with those one step later, at most one in this many may differ.
const ONE_DIFFERS_IN: usize = 20;

/// Makes policies of this name for runs of this workload. `stalloc` gets a plan of the workload's first step; all
/// others know nothing of the workload.
#[must_use]
pub fn make_for(policy: &Named, workload: &Workload) -> Box<dyn Fn() -> Box<dyn Policy + Send> + Send + Sync> {
    let make = policy.make;
    if policy.name != "stalloc" {
        return Box::new(make);
    }
    let plan = Arc::new(first_step(workload).map(|step| Plan::of(&step)).unwrap_or_default());
    Box::new(move || Box::new(Stalloc::with_plan(Arc::clone(&plan))))
}

/// A request, and what is known of it afterwards.
struct Seen {
    buffer: u32,
    traced: Traced,
    /// Bytes live before it.
    live: u64,
}

/// What a trace of the workload's first step has: all requests up to its end, with the frees up to the end of the
/// second. `None` if no step repeats. Requests to private pools are left out.
#[must_use]
pub fn first_step(workload: &Workload) -> Option<FirstStep> {
    let seen = requests(workload);
    let length = step_length(&seen)?;
    let begin = first_begin(&seen, length);
    let end = begin + length;
    let known = |traced: &Traced| traced.freed_after.filter(|&after| after <= end + length);
    let requests = seen[..end].iter().map(|seen| Traced { freed_after: known(&seen.traced), ..seen.traced }).collect();
    Some(FirstStep { requests, repeats_from: begin })
}

/// The requests that do not go to private pools, in order.
fn requests(workload: &Workload) -> Vec<Seen> {
    let (mut seen, mut live, mut routed): (Vec<Seen>, u64, u32) = (Vec::new(), 0, 0);
    for event in &workload.events {
        match *event {
            Event::Allocate { buffer, bytes, stream } if routed == 0 => {
                let traced = Traced { bytes: Bytes(bytes), stream: handle(stream), freed_after: None };
                seen.push(Seen { buffer, traced, live });
                live = live.saturating_add(bytes);
            }
            Event::Free { buffer } => {
                let after = seen.len();
                if let Ok(place) = seen.binary_search_by_key(&buffer, |seen| seen.buffer) {
                    seen[place].traced.freed_after = Some(after);
                    live = live.saturating_sub(seen[place].traced.bytes.get());
                }
            }
            Event::BeginPool { .. } => routed += 1,
            Event::EndPool { .. } => routed = routed.saturating_sub(1),
            _ => {}
        }
    }
    seen
}

fn key(seen: &Seen) -> (Bytes, StreamId) {
    (seen.traced.bytes, seen.traced.stream)
}

/// Whether the requests from `from` up to `to` are those one step later, but for a few.
fn repeats(seen: &[Seen], from: usize, to: usize, length: usize) -> bool {
    let mut allowed = (to - from) / ONE_DIFFERS_IN;
    (from..to).all(|at| {
        let is_same = key(&seen[at]) == key(&seen[at + length]);
        let is_allowed = is_same || allowed > 0;
        allowed -= usize::from(!is_same && allowed > 0);
        is_allowed
    })
}

/// The length of the step in requests: the shortest distance at which the second half of the program, with its fullest
/// moment and a step before that, repeats.
fn step_length(seen: &[Seen]) -> Option<usize> {
    let count = seen.len();
    let fullest = (count / 2..count).max_by_key(|&at| (seen[at].live, std::cmp::Reverse(at)))?;
    let lengths = 1..=fullest.min(count / 2);
    lengths.into_iter().find(|&length| {
        let from = count.saturating_sub(3 * length).min(fullest - length);
        key(&seen[fullest - length]) == key(&seen[fullest]) && repeats(seen, from, count - length, length)
    })
}

/// Where the first step begins: where least is live in it, as early as it repeats.
fn first_begin(seen: &[Seen], length: usize) -> usize {
    let last = seen.len() - 2 * length;
    let emptiest = (last..last + length).min_by_key(|&at| seen[at].live).unwrap_or(last);
    let mut begin = emptiest;
    while begin >= length && repeats(seen, begin - length, begin, length) {
        begin -= length;
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{RunOptions, run, smallest_capacity};
    use crate::workload::parse;
    use parkade_policies::named;

    /// Two weights; then steps of three requests, the last of which lives on until the next step's.
    fn steps(count: u32) -> Workload {
        let mut events = Vec::new();
        let allocate = |events: &mut Vec<Event>, bytes: u64| {
            let buffer = events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count() as u32;
            events.push(Event::Allocate { buffer, bytes: bytes << 20, stream: 0 });
            buffer
        };
        allocate(&mut events, 5);
        allocate(&mut events, 7);
        let mut last = None;
        for _ in 0..count {
            let first = allocate(&mut events, 10);
            let second = allocate(&mut events, 20);
            events.extend(last.map(|buffer| Event::Free { buffer }));
            let third = allocate(&mut events, 30);
            events.extend([first, second].map(|buffer| Event::Free { buffer }));
            last = Some(third);
        }
        Workload { name: "steps".into(), says: "Steps.".into(), events }
    }

    #[test]
    fn the_step_is_found_with_its_lifetimes() {
        let step = first_step(&steps(6)).expect("it repeats");
        let traced = |mib: u64, freed_after| Traced { bytes: Bytes::mib(mib), stream: StreamId(0), freed_after };
        let requests = [traced(5, None), traced(7, None), traced(10, Some(5)), traced(20, Some(5)), traced(30, Some(7))];
        assert_eq!(step, FirstStep { requests: requests.into(), repeats_from: 2 });
    }

    #[test]
    fn what_does_not_repeat_has_no_step() {
        assert_eq!(first_step(&steps(1)), None);
        assert_eq!(first_step(&Workload::default()), None);
        let events = (0..50).map(|buffer| Event::Allocate { buffer, bytes: 1000 + u64::from(buffer), stream: 0 });
        assert_eq!(first_step(&Workload { events: events.collect(), ..steps(0) }), None);
    }

    #[test]
    fn a_planned_step_needs_no_more_than_its_plan() {
        let workload = steps(8);
        let make = make_for(named("stalloc").expect("in the catalogue"), &workload);
        assert_eq!(workload.load_bytes(1) >> 20, 72);
        let outcome = run(&workload, make(), &RunOptions::plenty());
        assert!(outcome.fits());
        assert_eq!(outcome.driver_calls, 1, "one cudaMalloc");
        let smallest = smallest_capacity(&workload, &make, &RunOptions::plenty(), &[]).expect("it fits");
        assert_eq!(smallest.capacity_bytes >> 20, 72);
    }

    #[test]
    fn a_generated_program_keeps_to_its_plan() {
        let workload = parse("gpt2:steps=4").expect("a workload");
        let load = workload.load_bytes(512);
        let step = first_step(&workload).expect("it repeats");
        let plan = Plan::of(&step);
        assert!(plan.bytes().get() as f64 <= 1.1 * load as f64, "{} for {load}", plan.bytes());
        let outcome = run(&workload, Box::new(Stalloc::with_plan(plan.into())), &RunOptions::plenty());
        assert!(outcome.peak_reserved_bytes as f64 <= 1.1 * load as f64, "{} for {load}", outcome.peak_reserved_bytes);
    }
}
