//! Tests of the policy laws: the tutorials show the code that is tested, every policy in the catalogue has entries, and
//! random programs find seeded mistakes.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, FreePair, Heap, LiveBlock};
use parkade_conformance::backend::AnyBackend;
use parkade_conformance::checks::laws_any_policy::{Share, check};
use parkade_conformance::checks::{entries, laws_any_policy};
use parkade_conformance::suite;
use parkade_conformance::suite::{Effort, Status};
use parkade_policies::{BESIDE, CATALOGUE, Compaction, GrowingRegion, Reach, Rescue, RmmPool, Stalloc};
use parkade_research::study::{RunOptions, smallest_capacity};
use parkade_research::workload::{Event, Workload};

/// The maximum number of lines that the tutorial's policy may have.
const LONGEST_EXAMPLE: usize = 100;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    std::fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_tutorial_shows_the_policy_that_is_tested() {
    let (page, example) = (read("docs/writing-a-policy.md"), read("conformance/tests/own_policy.rs"));
    let block = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(block, Some(example.as_str()), "the page's first block of Rust equals the file, byte for byte");
    let lines = example.lines().count();
    assert!(lines <= LONGEST_EXAMPLE, "{lines} lines");
    for name in ["conformance/tests/lifetime_arenas.rs", "conformance/tests/lazy_coalescing.rs"] {
        assert!(page.contains(&format!("[`{name}`](../{name})")), "the page has a link to {name}");
        let lines = read(name).lines().count();
        assert!(lines <= 125 && page.contains("at most 125 lines"), "{name}: {lines} lines");
    }
}

#[test]
fn the_other_tutorial_shows_the_backend_that_is_tested() {
    let (page, example) = (read("docs/writing-a-backend.md"), read("conformance/tests/own_backend.rs"));
    let block = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(block, Some(example.as_str()), "the page's first block of Rust equals the file, byte for byte");
    let lines = example.lines().count();
    assert!(lines < 150 && page.contains(&format!("a device of {lines} lines")), "{lines} lines");
}

#[test]
fn the_tutorial_measures_a_policy_with_a_call_that_there_is() {
    let mut program = Workload::default();
    program.events.push(Event::Allocate { buffer: 0, bytes: 1 << 20, stream: 0 });
    let workload = program;
    // The call below is the same as in the tutorial, except for the policy.
    let smallest = smallest_capacity(&workload, &|| Box::new(Mistake::Rounds), &RunOptions::plenty(), &[]);
    assert_eq!(smallest.map(|found| found.capacity_bytes), Ok(2 << 20));
    let call = |policy: &str| {
        format!("let smallest = smallest_capacity(&workload, &|| Box::new({policy}), &RunOptions::plenty(), &[]);")
    };
    assert!(read("conformance/tests/policies.rs").contains(&call("Mistake::Rounds")));
    assert!(read("docs/writing-a-policy.md").contains(&call("FillFirst")));
}

#[test]
fn every_policy_of_the_catalogue_is_checked() {
    let titles: Vec<String> = entries(&AnyBackend::simulated()).iter().map(suite::Entry::title).collect();
    for policy in CATALOGUE.iter().chain(BESIDE) {
        for what in ["clock", "at-once", "when-waited-for", "seeded", "determinism", "dropped", "faults"] {
            let title = format!("law/policy/{}/{what}", policy.name);
            assert!(titles.contains(&title), "there is no {title}");
        }
        let is_chosen = titles.contains(&format!("law/policy/{}/choices", policy.name));
        assert_eq!(
            is_chosen,
            (*policy.make()).as_pytorch().is_none(),
            "{}: the reference allocator judges only PyTorch's",
            policy.name
        );
    }
    let named = laws_any_policy::entries(&AnyBackend::simulated(), CATALOGUE.first(), Share::Whole);
    assert_eq!(named.len(), 7, "the entries of only one policy");
    let with_option = laws_any_policy::entries(
        &AnyBackend::simulated(),
        parkade_policies::named("best-fit-remap:fit=first;handle=20MiB").ok().as_ref(),
        Share::Whole,
    );
    assert_eq!(with_option.len(), 8, "the entries of a policy that is not in the catalogue");
}

/// A policy with one mistake.
#[derive(Clone, Copy)]
enum Mistake {
    /// The policy reports out of memory without having waited.
    GivesUpEarly,
    /// The policy searches for free blocks only every other time.
    Overlooks(bool),
    /// The policy chooses blocks that are too small.
    TooSmall,
    /// The policy's blocks are not always multiples of 512 bytes.
    Rounds,
}

impl Policy for Mistake {
    fn name(&self) -> &'static str {
        "mistaken"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        let unit = if matches!(self, Mistake::Rounds) && requested.get() > 600 { 8 } else { 512 };
        requested.checked_round_up(Bytes(unit))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let least = if matches!(self, Mistake::TooSmall) { Bytes(request.size.get() / 2) } else { request.size };
        let found: Option<BlockId> = heap.first_at_least(request.pool, request.stream, least).map(|block| block.id);
        if let Mistake::Overlooks(is_blind) = self {
            *is_blind = !*is_blind;
            if *is_blind {
                return Placement::Segment(request.size);
            }
        }
        found.map_or(Placement::Segment(request.size), Placement::Reuse)
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, _: &Request, rung: u32) -> Relief {
        match rung {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            1 if matches!(self, Mistake::GivesUpEarly) => Relief::Done,
            1 => Relief::Wait,
            2 => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
            _ => Relief::Done,
        }
    }
}

#[test]
fn mistakes_are_found_and_the_law_is_named() {
    let mistakes = [
        (Mistake::GivesUpEarly, "no-false-out-of-memory"),
        (Mistake::Overlooks(false), "no-false-out-of-memory"),
        (Mistake::TooSmall, "answers"),
        (Mistake::Rounds, "alignment"),
    ];
    for (mistake, law) in mistakes {
        let report = check(move || mistake, &Effort::new(100, 0)).expect_err(law);
        let found = report.rows.iter().any(|row| row.reason.contains(&format!("{law}: ")));
        assert!(found, "{law} should be violated: {report}");
        let shown = report.rows.iter().any(|row| row.script.as_ref().is_some_and(|script| script.contains("alloc ")));
        assert!(shown, "the shortest program is shown: {report}");
    }
}

/// Blocks in slabs of 2 MiB, which coalesce only when the allocator is about to release their slab. No step of the policy coalesces any.
#[derive(Clone)]
struct Slabs;

impl Policy for Slabs {
    fn name(&self) -> &'static str {
        "slabs"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if size < Bytes::mib(1) { PoolClass::Small } else { PoolClass::Large }
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        found.map_or(Placement::Segment(request.size.max(Bytes::mib(2))), |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, request: &Request) -> bool {
        request.size < Bytes::mib(1)
    }

    fn coalesces(&self, _: &FreePair) -> bool {
        false
    }
}

#[test]
fn releasing_the_cache_joins_what_a_policy_keeps_apart() {
    check(|| Slabs, &Effort::new(200, 0)).unwrap_or_else(|report| panic!("{report}"));
}

/// Where a policy keeps the number of frees of which it has learned. Every other one changes which block it chooses.
enum Memory {
    /// In the policy.
    Own(u64),
    /// In the policy, but a clone begins anew.
    Forgotten(u64),
    /// In a value that a clone shares with its original.
    Shared(Rc<Cell<u64>>),
    /// In a value that all policies of the process share.
    Global,
}

static FREES: AtomicU64 = AtomicU64::new(0);

impl Clone for Memory {
    fn clone(&self) -> Memory {
        match self {
            Memory::Own(frees) => Memory::Own(*frees),
            Memory::Forgotten(_) => Memory::Forgotten(0),
            Memory::Shared(frees) => Memory::Shared(Rc::clone(frees)),
            Memory::Global => Memory::Global,
        }
    }
}

impl Memory {
    fn frees(&self) -> u64 {
        match self {
            Memory::Own(frees) | Memory::Forgotten(frees) => *frees,
            Memory::Shared(frees) => frees.get(),
            Memory::Global => FREES.load(Ordering::Relaxed),
        }
    }
}

/// A policy with state: it takes the smallest block after an even number of frees, and the largest after an odd one.
#[derive(Clone)]
struct Alternating(Memory);

impl Policy for Alternating {
    fn name(&self) -> &'static str {
        "alternating"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let found = if self.0.frees().is_multiple_of(2) {
            heap.first_at_least(request.pool, request.stream, request.size)
        } else {
            heap.largest(request.pool, request.stream).filter(|block| block.size >= request.size)
        };
        found.map_or(Placement::Segment(request.size.max(Bytes::mib(2))), |block| Placement::Reuse(block.id))
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn freed(&mut self, _: &Heap, _: LiveBlock<'_>) {
        match &mut self.0 {
            Memory::Own(frees) | Memory::Forgotten(frees) => *frees += 1,
            Memory::Shared(frees) => frees.set(frees.get() + 1),
            Memory::Global => {
                FREES.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn a_clone_has_the_state_of_a_policy_of_the_catalogue() {
    let effort = Effort::new(8, 0);
    let reports = [
        check(GrowingRegion::default, &effort),
        check(RmmPool::default, &effort),
        check(Stalloc::default, &effort),
        check(Compaction::default, &effort),
        check(|| Rescue::new(PyTorch::new(Settings::default()), Some(Reach::Breaks)), &effort),
    ];
    for Ok(report) | Err(report) in reports {
        let clones = report.rows.iter().find(|row| row.name.ends_with("/clones")).map(|row| row.status);
        assert_eq!(clones, Some(Status::Pass), "{report}");
    }
}

/// The names of the entries that fail.
fn failures(make: fn() -> Memory) -> Vec<String> {
    let (Ok(report) | Err(report)) = check(move || Alternating(make()), &Effort::new(40, 0));
    report.rows.iter().filter(|row| row.status == Status::Fail).map(|row| row.name.clone()).collect()
}

#[test]
fn state_outside_of_a_policy_is_found() {
    let name = |what: &str| format!("policy/alternating/{what}");
    assert_eq!(failures(|| Memory::Own(0)), [""; 0], "its state is its own");
    assert_eq!(failures(|| Memory::Forgotten(0)), [name("clones")]);
    assert_eq!(failures(|| Memory::Shared(Rc::default())), [name("clones")]);
    let global = failures(|| Memory::Global);
    assert!(global.contains(&name("determinism")) && global.contains(&name("clones")), "{global:?}");
}
