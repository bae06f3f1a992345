//! Provides the first step of a workload to a policy that plans ahead ([`make_for`]).

use std::sync::Arc;

use parkade::policy::Policy;
use parkade::units::Bytes;
use parkade_policies::{FirstStep, Named, Plan, Stalloc, Traced};

use super::run::handle;
use crate::workload::Workload;

/// Creates policies with this name for runs of this workload. `stalloc` receives a plan of the workload's first step; all
/// others are the catalogue's policies.
#[must_use]
pub fn make_for(policy: &Named, workload: &Workload) -> Box<dyn Fn() -> Box<dyn Policy + Send> + Send + Sync> {
    if policy.name != "stalloc" {
        let policy = policy.clone();
        return Box::new(move || policy.make());
    }
    let plan = Arc::new(first_step(workload).map(|step| Plan::of(&step)).unwrap_or_default());
    Box::new(move || Box::new(Stalloc::with_plan(Arc::clone(&plan))))
}

/// The contents of a trace of the workload's first step: all requests up to its end, with the frees up to the end of the
/// second step, and whether the second step also frees them. `None` if no step repeats ([`Workload::repeating_step`]).
/// Requests to private pools are left out.
#[must_use]
pub fn first_step(workload: &Workload) -> Option<FirstStep> {
    let step = workload.repeating_step()?;
    let end = step.begin + step.length;
    let comes_again = |at: usize| at.checked_sub(step.begin).is_none_or(|at| step.comes_again[at]);
    let requests = step.requests[..end].iter().enumerate().map(|(at, request)| Traced {
        bytes: Bytes(request.bytes),
        stream: handle(request.stream),
        freed_after: request.freed_after.filter(|&after| after <= end + step.length),
        comes_again: comes_again(at),
    });
    Some(FirstStep { requests: requests.collect(), repeats_from: step.begin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{RunOptions, run, smallest_capacity};
    use crate::workload::{Event, parse};
    use parkade::units::StreamId;
    use parkade_policies::named;

    /// Two weights, and then steps of three requests, the last of which stays live until the next step's last request.
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
            let first = allocate(&mut events, 12);
            let second = allocate(&mut events, 20);
            events.extend(last.map(|buffer| Event::Free { buffer }));
            let third = allocate(&mut events, 30);
            events.extend([first, second].map(|buffer| Event::Free { buffer }));
            last = Some(third);
        }
        Workload { name: "steps".into(), says: "Steps.".into(), events, steps: Vec::new() }
    }

    #[test]
    fn the_step_is_found_with_its_lifetimes() {
        let step = first_step(&steps(6)).expect("it repeats");
        let traced =
            |mib: u64, freed_after| Traced { bytes: Bytes::mib(mib), stream: StreamId(0), freed_after, comes_again: true };
        let requests = [traced(5, None), traced(7, None), traced(12, Some(5)), traced(20, Some(5)), traced(30, Some(7))];
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
        let make = make_for(&named("stalloc").expect("in the catalogue"), &workload);
        assert_eq!(workload.load_bytes(1) >> 20, 74);
        let outcome = run(&workload, make(), &RunOptions::plenty());
        assert!(outcome.fits());
        assert_eq!(outcome.driver_calls, 1, "one cudaMalloc");
        let smallest = smallest_capacity(&workload, &make, &RunOptions::plenty(), &[]).expect("it fits");
        assert_eq!(smallest.capacity_bytes >> 20, 74);
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
