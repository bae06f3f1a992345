use parkade::policy::{Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap};
use parkade_policies::named;

use super::*;
use crate::workload::{Event, Workload};

const MIB: u64 = 1 << 20;

fn workload(events: Vec<Event>) -> Workload {
    Workload { name: "test".into(), says: "a test's".into(), events, ..Workload::default() }
}

fn allocate(buffer: u32, mib: u64) -> Event {
    Event::Allocate { buffer, bytes: mib * MIB, stream: 0 }
}

fn free(buffer: u32) -> Event {
    Event::Free { buffer }
}

fn pytorch() -> Box<dyn Policy + Send> {
    policy("pytorch")
}

fn policy(name: &str) -> Box<dyn Policy + Send> {
    (named(name).expect("a policy").make)()
}

fn plenty(events: Vec<Event>) -> Outcome {
    run(&workload(events), pytorch(), &RunOptions::plenty())
}

/// 60 and 40 MiB, the 60 MiB freed, then 30 and 60 MiB: fragmented by default, not with expandable segments.
fn hole() -> Workload {
    workload(vec![allocate(0, 60), allocate(1, 40), free(0), allocate(2, 30), allocate(3, 60)])
}

#[test]
fn a_run_that_fits_says_what_it_took() {
    let outcome = plenty(vec![allocate(0, 60), allocate(1, 40), free(0), allocate(2, 30)]);
    assert!(outcome.fits(), "{outcome:?}");
    assert_eq!((outcome.peak_reserved_bytes, outcome.peak_allocated_bytes), (100 * MIB, 100 * MIB));
    assert_eq!((outcome.driver_calls, outcome.retries, outcome.events, outcome.failed_at_event), (2, 0, 4, None));
    assert!(outcome.driver_ns > 2 * 28_000 && outcome.waited_ns == 0, "{outcome:?}");
}

#[test]
fn a_refused_request_ends_it() {
    let options = RunOptions::new(140 * MIB);
    let outcome = run(&hole(), pytorch(), &options);
    assert_eq!((outcome.ending, outcome.failed_at_event, outcome.events), (Ending::OutOfMemory, Some(4), 4));
    assert!(run(&hole(), policy("pytorch-expandable"), &options).fits());
    let limited = RunOptions { limit_bytes: Some(140 * MIB), ..RunOptions::plenty() };
    assert_eq!(run(&hole(), pytorch(), &limited).failed_at_event, Some(4), "a limit refuses as the device does");
}

#[test]
fn malformed_workloads_are_reported() {
    for (events, said) in [
        (vec![allocate(1, 1)], "buffer 1 is allocated out of order"),
        (vec![allocate(0, 1), free(0), free(0)], "buffer 0 is freed but not live"),
        (vec![Event::Use { buffer: 7, stream: 1 }], "buffer 7 is used but not live"),
        (vec![Event::EndPool { pool: 3 }], "pool"),
        (vec![Event::DropPool { pool: 3 }], "pool"),
        (vec![Event::Allocate { buffer: 0, bytes: 0, stream: 0 }], "0 bytes"),
    ] {
        let outcome = plenty(events);
        assert!(matches!(&outcome.ending, Ending::Fault(fault) if fault.contains(said)), "{said}: {outcome:?}");
        assert!(outcome.failed_at_event.is_some());
    }
}

/// Answers with an impossible segment size.
struct Wild;

impl Policy for Wild {
    fn name(&self) -> &'static str {
        "wild"
    }
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(requested)
    }
    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }
    fn place(&mut self, _: &Heap, _: &Request) -> Placement {
        Placement::Segment(Bytes(1))
    }
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        false
    }
    fn relieve(&mut self, _: &Heap, _: &Request, _: u32) -> Relief {
        Relief::Release { blocks: Vec::<BlockId>::new(), attempt: parkade::policy::Attempt::Ask }
    }
}

#[test]
fn a_policy_that_answers_wrongly_is_named() {
    let wild = || Box::new(Wild) as Box<dyn Policy + Send>;
    let outcome = run(&hole(), wild(), &RunOptions::plenty());
    assert!(matches!(&outcome.ending, Ending::Fault(fault) if fault.contains("policy wild")), "{outcome:?}");
    assert_eq!(smallest_capacity(&hole(), &wild, &RunOptions::plenty(), &[]).map_err(|outcome| outcome.events), Err(0));
}

#[test]
fn memory_that_another_stream_uses_is_free_when_its_work_is_done() {
    let used = |more: Vec<Event>| {
        let begin = [Event::Launch { stream: 1, us: 500 }, allocate(0, 50), Event::Use { buffer: 0, stream: 1 }, free(0)];
        plenty(begin.into_iter().chain(more).collect())
    };
    assert_eq!(used(vec![allocate(1, 50)]).peak_reserved_bytes, 100 * MIB);
    assert_eq!(
        used(vec![Event::Synchronize { stream: 0 }, allocate(1, 50)]).peak_reserved_bytes,
        100 * MIB,
        "the wait is for another stream"
    );
    let synchronized = used(vec![Event::Synchronize { stream: 1 }, allocate(1, 50)]);
    assert_eq!((synchronized.peak_reserved_bytes, synchronized.waited_ns), (50 * MIB, 0), "the workload waited, not the driver");
    let emptied = used(vec![Event::EmptyCache, allocate(1, 50)]);
    assert_eq!(emptied.peak_reserved_bytes, 50 * MIB, "empty_cache waits");
    assert!((400_000..500_000).contains(&emptied.waited_ns), "{emptied:?}");
}

#[test]
fn private_pools_share_nothing_until_they_are_dropped() {
    let pool = 1;
    let captured = [Event::BeginPool { pool }, allocate(0, 50), Event::EndPool { pool }, free(0)];
    let kept = captured.into_iter().chain([Event::EmptyCache, allocate(1, 50)]);
    assert_eq!(plenty(kept.collect()).peak_reserved_bytes, 100 * MIB);
    let dropped = captured.into_iter().chain([Event::DropPool { pool }, Event::EmptyCache, allocate(1, 50)]);
    assert_eq!(plenty(dropped.collect()).peak_reserved_bytes, 50 * MIB);
    let again = captured.into_iter().chain([Event::BeginPool { pool }, allocate(1, 50), Event::EndPool { pool }]);
    assert_eq!(plenty(again.collect()).peak_reserved_bytes, 50 * MIB, "a pool can be captured into twice");
}

/// As the end of a MemPool does, which calls empty_cache for its pool.
#[test]
fn a_pool_is_destroyed_when_it_is_dropped_if_the_options_say_so() {
    let pool = 1;
    let captured = [Event::BeginPool { pool }, allocate(0, 50), Event::EndPool { pool }, free(0)];
    let dropped: Vec<Event> = captured.into_iter().chain([Event::DropPool { pool }, allocate(1, 50)]).collect();
    assert_eq!(plenty(dropped.clone()).peak_reserved_bytes, 100 * MIB, "nothing releases the cache");
    let options = RunOptions { destroys_pools: true, ..RunOptions::plenty() };
    assert_eq!(run(&workload(dropped), pytorch(), &options).peak_reserved_bytes, 50 * MIB);
}

/// 16777215 TiB are the most that an argument can name.
#[test]
fn absurdly_much_memory_is_enough_for_every_policy() {
    for name in ["pytorch", "breaking-handles", "floating-handles", "bfc-one-region", "rmm-pool"] {
        for bytes in [16_777_215 << 40, u64::MAX] {
            let outcome = run(&hole(), policy(name), &RunOptions::new(bytes));
            assert!(outcome.fits(), "{name} in {bytes}: {outcome:?}");
        }
    }
}

#[test]
fn memory_taken_early_serves_later() {
    let options = RunOptions { preallocated_bytes: 130 * MIB, ..RunOptions::new(140 * MIB) };
    let outcome = run(&hole(), pytorch(), &options);
    assert!(outcome.fits(), "one segment holds it all: {outcome:?}");
    assert_eq!((outcome.peak_reserved_bytes, outcome.driver_calls), (130 * MIB, 1));
    assert_eq!(outcome.peak_allocated_bytes, 130 * MIB, "what is live at the end, not what was preallocated");
    let too_much = RunOptions { preallocated_bytes: 150 * MIB, ..options };
    assert_eq!(run(&hole(), pytorch(), &too_much).failed_at_event, Some(0));
}

#[test]
fn the_smallest_memory_is_a_border() {
    let options = RunOptions::plenty();
    let found = smallest_capacity(&hole(), &pytorch, &options, &[]).expect("it fits");
    // 60 + 40, and another 60, because the first 60 MiB are split for the 30.
    assert_eq!(found.capacity_bytes, 160 * MIB);
    assert!(found.outcome.fits() && found.runs < 32);
    assert!(!run(&hole(), pytorch(), &RunOptions::new(158 * MIB)).fits());
    let expandable = smallest_capacity(&hole(), &|| policy("pytorch-expandable"), &options, &[]).expect("it fits");
    assert_eq!(expandable.capacity_bytes, 140 * MIB, "one page of 20 MiB of the 30 MiB hole is released");
    let alone = smallest_capacity(&workload(vec![allocate(0, 30)]), &pytorch, &options, &[]).expect("it fits");
    assert_eq!((alone.capacity_bytes, alone.runs), (30 * MIB, 2), "the load itself");
}

#[test]
fn curves_keep_the_peaks() {
    let events: Vec<Event> = (0..100).flat_map(|n| [allocate(n, 30 + u64::from(n % 7)), free(n)]).collect();
    let workload = workload(events);
    let curves = curves(&workload, pytorch(), &RunOptions::plenty(), 20);
    assert_eq!((curves.reserved_bytes.len(), curves.allocated_bytes.len()), (20, 20));
    assert_eq!(curves.reserved_bytes.iter().max(), Some(&curves.outcome.peak_reserved_bytes));
    assert_eq!(live_curve(&workload, 512, 20).iter().max(), Some(&(36 * MIB)));
    assert_eq!(live_curve(&workload, 512, 100_000).len(), 200, "no more points than events");
}

#[test]
fn the_address_models_have_names() {
    for model in Addresses::ALL {
        assert_eq!(Addresses::named(model.name()), Some(model));
        assert!(run(&hole(), pytorch(), &RunOptions { addresses: model, ..RunOptions::plenty() }).fits());
    }
    assert_eq!(Addresses::named("best-hole"), None);
}

#[test]
fn a_policy_that_is_slow_only_in_the_beginning_has_nothing_in_the_later_half() {
    let step = |first: u32| [allocate(first, 50), allocate(first + 1, 30), free(first), free(first + 1)];
    let events: Vec<Event> = (0..6).flat_map(|number| step(2 * number)).collect();
    let steps: Vec<u32> = (0..6).map(|number| 4 * number).collect();
    let kept = run(&Workload { steps: steps.clone(), ..workload(events.clone()) }, pytorch(), &RunOptions::plenty());
    assert_eq!((kept.driver_calls, *kept.later), (2, DriverCost::default()));
    // With empty_cache at the end of each step it is as slow in the end as in the beginning.
    let emptied = events.chunks(4).flat_map(|step| [step, &[Event::EmptyCache]].concat()).collect();
    let emptied = Workload { steps: steps.iter().map(|step| step / 4 * 5).collect(), ..workload(emptied) };
    let outcome = run(&emptied, pytorch(), &RunOptions::plenty());
    assert_eq!((outcome.driver_calls, outcome.later.calls, outcome.waiting_calls), (24, 12, 12));
    assert_eq!((2 * outcome.later.ns, outcome.waited_ns), (outcome.driver_ns, 0), "the workload has no work to wait for");
    let ended = run(&emptied, pytorch(), &RunOptions::new(60 * MIB));
    assert_eq!(*ended.later, DriverCost::default(), "it ended before the later half");
}

#[test]
fn waiting_in_the_later_half_is_counted_there() {
    let launch = Event::Launch { stream: 0, us: 500 };
    let first = [allocate(0, 50), free(0), launch, Event::EmptyCache];
    let later = [allocate(1, 50), free(1), launch, Event::EmptyCache];
    let outcome = plenty([first, later].concat());
    assert!((outcome.later.waited_ns, outcome.later.waiting_calls) == (outcome.waited_ns / 2, 1), "{outcome:?}");
    assert!((800_000..=1_000_000).contains(&outcome.waited_ns), "{outcome:?}");
}

/// A graph's pool of 40 MiB, dropped, and another one, where both have no room. PyTorch's rules give nothing back while a
/// graph is captured; who destroys an allocator has its memory before.
#[test]
fn a_pool_that_is_an_allocator_of_its_own_is_destroyed_when_it_is_dropped() {
    let graph = |pool, buffer| [Event::BeginPool { pool }, allocate(buffer, 40), Event::EndPool { pool }, free(buffer)];
    let drop = Event::DropPool { pool: 1 };
    let events: Vec<Event> = graph(1, 0).into_iter().chain([drop]).chain(graph(2, 1)).collect();
    for (name, fits) in [("rmm-pool", true), ("bfc", true), ("bfc-one-region", true), ("pytorch", false)] {
        let outcome = run(&workload(events.clone()), policy(name), &RunOptions::new(72 * MIB));
        assert_eq!(outcome.fits(), fits, "{name}: {outcome:?}");
    }
}
