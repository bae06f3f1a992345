//! The laws that hold for every policy, and the entries that check them: for each policy in the catalogue, for randomly
//! assembled policies, and for a policy that returns random answers.
//!
//! The checks in [`laws_pytorch`](super::laws_pytorch) know PyTorch's rules, and therefore where each request must be
//! placed. Here the policy decides on the placement, and [`LAWS`] lists what must hold in any case. A failure message
//! starts with the name of the broken law.
//!
//! Besides random programs there are fixed ones, which reach cases that random programs rarely reach; driver calls are made to
//! fail in them.

mod drawn;

use std::fmt;

use parkade::PoolSlot;
use parkade::policy::Policy;
use parkade::units::{MIB, PoolClass};
use parkade_policies::{BESIDE, CATALOGUE, Named};
use proptest::strategy::Strategy as _;

pub use super::campaign::Share;
use super::campaign::{self, Program, Subject, drawn_programs};
use super::policy_choices;
use crate::backend::{AnyBackend, EventTiming};
use crate::law::Law;
use crate::program::draw::careful;
pub use crate::program::player::Habits;
use crate::program::search::{may_expand, timings};
use crate::program::step::{Setup, Step};
use crate::suite::{self, Effort, Entry, Evidence, Group, Requirement, Row, Silent, Status, Trouble};
use drawn::{Drawn, Wrong};

/// The factor by which the policy with random answers gets more programs than the others, because it must reach
/// unlikely combinations.
const WRONG_SHARE: u32 = 10;
/// The number of policies with random answers that are also tested with failing driver calls, in the program that
/// climbs every rung.
const WRONG_FAULT_SEEDS: u64 = 24;

/// On a real device, one in this many randomly assembled policies is tested with failing driver calls.
const REAL_STRIDE: usize = 5;

/// The laws that hold under every policy.
pub const LAWS: [(Law, &str); 18] = [
    (Law::NoOverlap, "no two live allocations share a byte"),
    (Law::Alignment, "addresses are multiples of 512, or of the unit that the policy rounds to"),
    (
        Law::Accounting,
        "every reserved byte is accounted for: live, rounding, pending, or free in a split or entirely free segment; the \
         statistics agree, and the policy learns of every allocation and every free",
    ),
    (
        Law::Counters,
        "in each statistic, allocated minus freed equals current, the peak is at least current, and the pools add \
                     up to the total",
    ),
    (Law::Coalescing, "adjacent free blocks of the same stream are coalesced, unless the policy keeps them apart"),
    (Law::NoEarlyReuse, "no memory is reused or unmapped before the work that uses it is done, even when blocks change streams"),
    (Law::Placement, "a request gets the block or segment that the policy chose, split as the policy specified"),
    (Law::Choices, "a policy of the catalogue chooses what its documented rules say"),
    (
        Law::NoFalseOutOfMemory,
        "a refused request is still refused after all work is done and all cached memory has been \
                               released",
    ),
    (
        Law::Pools,
        "requests are served by the private pool they are routed to, pools in use keep their memory, checkpoints restore what \
         was handed out, and the allocator never waits while a graph is captured",
    ),
    (Law::Limit, "reserved memory does not grow beyond the limit"),
    (Law::Sweep, "a check of the entire heap finds no violation"),
    (Law::History, "the observer's trace is consistent"),
    (Law::Contents, "memory keeps its contents until it is freed"),
    (Law::NoRace, "a program that waits wherever it must never races"),
    (Law::Endings, "when the heap is emptied, every page, reservation and event is returned to the device"),
    (Law::Faults, "a step fails only if the test makes a driver call fail"),
    (Law::Answers, "the policy returns only valid answers"),
];

/// Returns the entries of one policy, or of all policies of the catalogue if `only` is `None`.
#[must_use]
pub fn entries(backend: &AnyBackend, only: Option<&Named>, share: Share) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    // A policy with parameters is not in the catalogue.
    let (all, beside) = only.map_or((CATALOGUE, BESIDE), |only| (std::slice::from_ref(only), &[]));
    for named in all.iter().chain(beside) {
        let subject = Subject::of(named);
        let maps_pages = maps_pages(&named.make());
        let list = entries_of(backend, &subject, share).into_iter();
        entries.extend(list.map(|entry| if maps_pages { entry.requires(Requirement::ExpandableSegments) } else { entry }));
        // PyTorch's own policy is judged by the reference allocator; a program's own policies have no reference.
        if backend.is_simulated() && (*named.make()).as_pytorch().is_none() && subject.has_reference_policy() {
            entries.push(policy_choices::entry(&subject, share));
        }
    }
    if only.is_none() {
        entries.extend(entries_of(backend, &drawn(may_expand(backend)), share));
        entries.extend(wrong_answers(backend, share));
        if backend.is_simulated() {
            entries.extend(policy_choices::entries(drawn(may_expand(backend)), share));
        }
    }
    entries
}

/// Returns whether a policy uses expandable segments.
fn maps_pages(policy: &impl Policy) -> bool {
    [PoolClass::Small, PoolClass::Large].into_iter().any(|class| policy.is_expandable(PoolSlot::default_pool(class)))
}

/// Returns randomly assembled policies, without expandable segments if the device has no virtual
/// memory.
fn drawn(may_expand: bool) -> Subject {
    Subject::new("drawn", move |seed| Drawn::new(seed).expandable_only_if(may_expand))
        .failing_with(Drawn::seeds_that_move_memory())
}

/// Returns the entries of one policy.
fn entries_of(backend: &AnyBackend, subject: &Subject, share: Share) -> Vec<Entry> {
    let name = |what: &str| format!("policy/{}/{what}", subject.name);
    let mut entries = Vec::new();
    for (timing_name, timing) in timings(backend) {
        let subject = subject.clone();
        let says = "every policy law holds after every step in random programs";
        entries.push(Entry::new(Group::Law, name(timing_name), says, move |backend, effort| {
            campaign::every_law(&subject, backend, &share.of(effort), timing)
        }));
    }
    if backend.is_simulated() {
        let own = subject.clone();
        let says = "the same program leads to the same decisions, byte for byte, also beside a second allocator";
        entries.push(Entry::new(Group::Law, name("determinism"), says, move |backend, effort| {
            campaign::determinism(&own, backend, &share.of(effort))
        }));
    }
    let own = subject.clone();
    let says = "an allocator returns all its memory whenever it is dropped";
    entries.push(Entry::new(Group::Law, name("dropped"), says, move |backend, effort| {
        campaign::dropped(&own, backend, &share.of(effort))
    }));
    let own = subject.clone();
    let says = "after the n-th driver call fails, for n = 1, 2, ..., every law holds and nothing leaks";
    entries.push(Entry::new(Group::Law, name("faults"), says, move |backend, effort| {
        let effort = share.of(effort);
        let fixed = campaign::every_call(&own, backend, &effort, programs_that_fail(&own, backend, &effort)?)?;
        let drawn = campaign::any_call(&own, backend, &effort, any_timing(backend))?;
        let measured = format!("{}; one failure in each of {} random programs", fixed.measured, effort.cases);
        Ok(Evidence { measured, operations: fixed.operations + drawn.operations, ..fixed })
    }));
    entries
}

/// Returns a timing of events under which work ends at any time, if the device is simulated.
fn any_timing(backend: &AnyBackend) -> EventTiming {
    if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock }
}

/// Returns the programs in which driver calls are made to fail under a policy.
fn programs_that_fail(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Result<Vec<Program>, Trouble> {
    let (setup, steps) = every_rung();
    // A real device is slow: a few of the randomly assembled policies suffice.
    let stride = if backend.is_simulated() { 1 } else { REAL_STRIDE };
    let rungs = subject.fault_seeds.iter().step_by(stride).map(|&policy_seed| (Setup { policy_seed, ..setup }, steps.clone()));
    let mut list: Vec<Program> = rungs.chain([captures()]).chain(drawn_programs(effort)).collect();
    let stitching = stitching();
    // A long program, for policies that make use of it.
    if subject.whole_run(backend, &stitching.0, &stitching.1)?.remaps > 0 {
        list.push(stitching);
    }
    Ok(list)
}

/// Returns the entry that clones allocators with the policy.
fn clones(subject: Subject) -> Entry {
    let says = "a clone of an allocator continues with the same answers as its original, from any state";
    Entry::new(Group::Law, format!("policy/{}/clones", subject.name), says, move |_, effort| {
        campaign::clones(&subject, effort, careful(EventTiming::Seeded(0), 80).boxed(), true)
    })
}

fn wrong_answers(backend: &AnyBackend, share: Share) -> Vec<Entry> {
    let may_expand = may_expand(backend);
    let subject = Subject::new("wrong-answers", move |seed| Wrong::new(seed).expandable_only_if(may_expand))
        .expected_wrong()
        .failing_with((0..WRONG_FAULT_SEEDS).collect());
    let says = "every invalid answer from a policy causes an error that names the policy, and nothing leaks";
    let entry = |(name, timing)| {
        let subject = subject.clone();
        Entry::new(Group::Law, format!("policy/wrong-answers/{name}"), says, move |backend, effort| {
            let part = share.of(effort);
            let effort = Effort { cases: part.cases * WRONG_SHARE, ..part };
            campaign::every_law(&subject, backend, &effort, timing)
        })
    };
    let mut entries: Vec<Entry> = timings(backend).into_iter().map(entry).collect();
    let says = "whatever a policy answers and whichever driver call fails, the heap stays valid and nothing leaks";
    entries.push(Entry::new(Group::Law, "policy/wrong-answers/faults", says, move |backend, effort| {
        let part = share.of(effort);
        let effort = Effort { cases: part.cases * WRONG_SHARE, ..part };
        campaign::every_call(&subject, backend, &effort, programs_that_fail(&subject, backend, &effort)?)
    }));
    entries
}

/// The suite's report on a policy. It displays one line per entry; for failures, also the reason and the shortest
/// program found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// One row per entry.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns whether everything passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.status == Status::Pass)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            writeln!(f, "{}: {}: {}", row.name, row.status.name(), row.says)?;
            if row.status == Status::Pass {
                writeln!(f, "    {}", row.evidence.measured)?;
                continue;
            }
            writeln!(f, "    {}", row.reason)?;
            for line in row.script.iter().flat_map(|script| script.lines()) {
                writeln!(f, "        {line}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// Checks a policy on the simulated device against every policy law. `make` creates the policy in its initial state.
/// Clones of allocators clone the policy, so the policy must be [`Clone`], with all of its state.
///
/// # Errors
/// The report if anything failed.
pub fn check<P: Policy + Clone + 'static>(
    make: impl Fn() -> P + Clone + Send + Sync + 'static,
    effort: &Effort,
) -> Result<Report, Report> {
    check_with(Habits::default(), make, effort)
}

/// Like [`check`], but for a policy that keeps its memory or does not search again after waiting.
///
/// # Errors
/// The report if anything failed.
pub fn check_with<P: Policy + Clone + 'static>(
    habits: Habits,
    make: impl Fn() -> P + Clone + Send + Sync + 'static,
    effort: &Effort,
) -> Result<Report, Report> {
    let name = make().name();
    let again = make.clone();
    let subject = Subject::new(name, move |_| make()).with(habits);
    let backend = AnyBackend::simulated();
    let mut entries = entries_of(&backend, &subject, Share::Whole);
    entries.push(clones(Subject::clonable(name, again).with(habits)));
    let report = Report { rows: suite::run(&backend, &entries, None, effort, &Silent) };
    if report.passed() { Ok(report) } else { Err(report) }
}

/// Returns a program with a bit of everything: free blocks on three streams, running work, two requests for more memory
/// than the device has, and fragmented device memory.
fn every_rung() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free, Launch, Limit, ProcessEvents, ReleaseCached, Replace, Use};
    let fill = [Allocate(16 * MIB, 0), Allocate(12 * MIB, 1), Allocate(16 * MIB, 2), Launch(1, 4_000_000), Use(1, 2), Use(0, 1)];
    let pieces = (0..4).map(|_| Allocate(2 * MIB, 0)).chain([Free(0), Free(0)]);
    let rest = [
        Free(4),
        Allocate(700, 3),
        Free(2),
        Allocate(14 * MIB, 3),
        Launch(3, 4_000_000),
        Free(2),
        Allocate(11 * MIB, 0),
        Use(0, 3),
        Free(0),
        Allocate(24 * MIB, 1),
        ProcessEvents,
        Limit(Some(38 * MIB)),
        Allocate(40 * MIB, 2),
        Replace(1),
        Free(3),
        Free(3),
        Allocate(28 * MIB, 1),
        Limit(None),
        Allocate(100 * MIB, 0),
        ReleaseCached,
        Allocate(5 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, fill.into_iter().chain(pieces).chain(rest).collect())
}

/// Returns a program whose last request can be served only by remapping the pages of two separate blocks and is larger
/// than the requests of other programs.
fn stitching() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free};
    let fill = [400, 2, 300, 2].map(|mib| Allocate(mib * MIB, 0));
    let steps = fill.into_iter().chain([Free(0), Free(1), Allocate(600 * MIB, 0)]).collect();
    let setup = Setup { capacity: 1024 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, steps)
}

/// Returns a program with private pools: requests are routed to one pool while blocks are pending, that pool runs out
/// of memory, another serves requests when memory runs out, a checkpoint is loaded twice, and a pool is no longer used.
fn captures() -> (Setup, Vec<Step>) {
    use Step::{
        Allocate, BeginPool, CompleteAll, CreatePool, EndPool, Free, Launch, ProcessEvents, ReleaseCached, ReleaseCachedPool,
        ReleasePool, Restore, Save, Use, UseOnOom,
    };
    let steps = vec![
        Allocate(6 * MIB, 0),
        Launch(1, 4_000_000),
        Use(0, 1),
        Allocate(3 * MIB, 0),
        Use(1, 1),
        // Free in the heap, although the stream still writes to it: a different stream must not get it.
        Allocate(4 * MIB, 1),
        Use(2, 1),
        Free(2),
        CreatePool(0),
        Free(1),
        BeginPool(0, Some(0)),
        // Another stream used the block earlier: its events are recorded once the capture has
        // ended.
        Free(0),
        Allocate(4 * MIB, 0),
        Allocate(700, 0),
        Allocate(2 * MIB, 1),
        Use(2, 2),
        ProcessEvents,
        Free(0),
        // This is more than the device has, and no wait is allowed during the capture.
        Allocate(60 * MIB, 0),
        ReleaseCached,
        Allocate(3 * MIB, 0),
        EndPool(0),
        Save(0),
        Allocate(8 * MIB, 0),
        BeginPool(0, None),
        Allocate(5 * MIB, 0),
        EndPool(0),
        CompleteAll,
        Free(0),
        Restore(0),
        UseOnOom(0, true),
        Allocate(48 * MIB, 1),
        Allocate(600, 0),
        Free(0),
        ReleasePool(0),
        Free(0),
        Free(0),
        Free(0),
        ReleaseCachedPool(0),
        BeginPool(1, Some(1)),
        Allocate(20 * MIB, 1),
        Free(0),
        ReleasePool(1),
        EndPool(1),
        Allocate(30 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, steps)
}

#[cfg(test)]
mod tests {
    //! Tests the coverage of the programs: a rung that no program reaches is not tested.

    use parkade::Heap;
    use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
    use parkade::units::{Bytes, PoolClass};
    use parkade_policies::{BESIDE, CATALOGUE};

    use super::drawn;
    use super::drawn::Wrong;
    use super::{Setup, Share, Subject, captures, entries_of, every_rung, stitching};
    use crate::backend::{AnyBackend, EventTiming};
    use crate::program::draw::careful;
    use crate::program::search::{Failure, Stopped, search};
    use crate::program::step::Step;
    use crate::program::watched::Reached;
    use crate::suite::{self, Again, Effort, Row, Silent, Status};

    #[test]
    fn a_failure_runs_again_from_its_script() {
        let backend = AnyBackend::simulated();
        // Its answers are invalid.
        let subject = Subject::new("wrong", |_| Wrong::new(7));
        let rows = suite::run(&backend, &entries_of(&backend, &subject, Share::Whole), None, &Effort::new(60, 1), &Silent);
        let mut again = 0;
        for row in rows.iter().filter(|row| row.script.is_some()) {
            let Again { title, effort } = Again::read(row.script.as_deref().unwrap_or("")).expect("a script");
            let mut entries = entries_of(&backend, &subject, Share::Whole);
            entries.retain(|entry| entry.title() == title);
            let rows = suite::run(&backend, &entries, None, &effort, &Silent);
            let law = |row: &Row| row.reason.split(':').next().map(str::to_owned);
            assert_eq!((rows.len(), rows[0].status, law(&rows[0])), (1, Status::Fail, law(row)), "{}", row.name);
            again += usize::from(effort.program.is_some());
        }
        assert!(again > 0, "{rows:?}");
    }

    fn reached(outcome: Result<Reached, Stopped>) -> Reached {
        match outcome {
            Ok(reached) => reached,
            Err(Stopped::Broken(broken, script)) => panic!("{broken}\n{script}"),
            Err(Stopped::Unable(unable)) => panic!("{unable}"),
        }
    }

    #[test]
    fn blocks_change_streams_and_pages_their_places_under_policies_of_the_catalogue() {
        let mut total = Reached::default();
        for named in CATALOGUE.iter().chain(BESIDE) {
            let subject = Subject::of(named);
            for (setup, steps) in [every_rung(), stitching()] {
                total = total.and(reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps)));
            }
        }
        assert!(total.transfers > 0 && total.remaps > 0, "{total:?}");
    }

    #[test]
    fn the_policies_whose_calls_fail_move_memory_in_both_ways() {
        let (subject, (setup, steps)) = (drawn(true), every_rung());
        let runs = subject.fault_seeds.iter().map(|&policy_seed| {
            let setup = Setup { policy_seed, ..setup };
            reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps))
        });
        let runs: Vec<Reached> = runs.collect();
        let with = |count: fn(&Reached) -> u64| runs.iter().filter(|run| count(run) > 0).count();
        let (transfers, remaps) = (with(|run| run.transfers), with(|run| run.remaps));
        assert!(transfers >= 4 && remaps >= 4, "{transfers} policies of {} transfer, {remaps} remap", runs.len());
    }

    /// Its only region takes up the entire limit, so nothing is left for private pools.
    const ONE_AREA: &str = "bfc:kind=one-region";

    #[test]
    fn private_pools_serve_under_every_policy_that_leaves_memory_and_are_loaded_under_most() {
        let (setup, steps) = captures();
        let mut load = 0;
        for named in CATALOGUE.iter().chain(BESIDE) {
            let subject = Subject::of(named);
            let run = reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps));
            assert_eq!(run.private > 0, named.name != ONE_AREA, "{}: {run:?}", named.name);
            load += usize::from(run.loads > 0);
        }
        // A pool whose blocks have changed streams or are used elsewhere cannot be loaded.
        let all = CATALOGUE.len() + BESIDE.len();
        assert!(load * 3 >= all * 2, "{load} of {all} pools load");
    }

    /// A policy that never waits and never releases anything, so it runs out of memory too early.
    struct Stubborn;

    impl Policy for Stubborn {
        fn name(&self) -> &'static str {
            "stubborn"
        }

        fn round(&self, requested: Bytes) -> Option<Bytes> {
            requested.checked_round_up(Bytes(512))
        }

        fn classify(&self, _size: Bytes) -> PoolClass {
            PoolClass::Large
        }

        fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
            match heap.first_at_least(request.pool, request.stream, request.size) {
                Some(block) => Placement::Reuse(block.id),
                None => Placement::Segment(request.size.checked_round_up(Bytes::mib(2)).unwrap_or(Bytes::MAX)),
            }
        }

        fn splits(&self, _whole: Bytes, _request: &Request) -> bool {
            true
        }

        fn ladder(&self) -> &'static [Rung] {
            &[Rung::Own]
        }

        fn relieve(&mut self, _heap: &Heap, _request: &Request, rung: u32) -> Relief {
            match rung {
                0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
                _ => Relief::Done,
            }
        }
    }

    /// Finds a failing program for a faulty policy and checks that no step can be left out. Returns the program's
    /// length.
    fn no_step_can_go(subject: &Subject, seed: u64) -> usize {
        let one = |setup: &Setup, steps: &[Step]| subject.whole_run(&AnyBackend::simulated(), setup, steps).map(drop);
        let law = |setup: &Setup, steps: &[Step]| match one(setup, steps) {
            Err(Stopped::Broken(broken, _)) => Some(broken.law),
            _ => None,
        };
        let case = |(setup, steps): &(Setup, Vec<Step>)| one(setup, steps).map(|()| steps.len() as u64);
        let found = search(&Effort::new(200, seed), 0x901c, careful(EventTiming::Seeded(0), 100), &case);
        let Err(Failure::Case { case: (setup, steps), .. }) = found else {
            panic!("{}, seed {seed}: nothing found", subject.name)
        };
        let broken = law(&setup, &steps);
        assert!(broken.is_some(), "{}, seed {seed}: {steps:?} violate no law", subject.name);
        for place in 0..steps.len() {
            let without = [&steps[..place], &steps[place + 1..]].concat();
            assert_ne!(law(&setup, &without), broken, "{}, seed {seed}: step {place} in {steps:?} has no effect", subject.name);
        }
        steps.len()
    }

    #[test]
    fn no_step_of_a_failing_program_can_go() {
        let lengths: Vec<usize> = (0..4)
            .flat_map(|seed| {
                [
                    no_step_can_go(&Subject::new("stubborn", |_| Stubborn), seed),
                    no_step_can_go(&Subject::new("wrong", Wrong::new), seed),
                ]
            })
            .collect();
        assert!(lengths.iter().any(|&steps| steps > 2), "each failure is one step: {lengths:?}");
    }
}
