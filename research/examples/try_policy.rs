//! Tries a policy: prints the smallest memory that it needs for some workloads, next to the figures for PyTorch's policy and
//! best fit.
//!
//! ```text
//! cargo run --profile try -p parkade-research --example try_policy
//! cargo run --profile try -p parkade-research --example try_policy -- bfc best-fit-remap gpt2:steps=4 serving-blocks:requests=60
//! ```
//!
//! Without arguments, it tries `FillFirst` below; edit it, or replace it with your own policy. Arguments are names of policies
//! (from the catalogue, or of those here), which replace `FillFirst`, and descriptions of workloads, which replace the four
//! below. A cell shows
//! the smallest device memory in which the workload fits and, in parentheses, what the policy reserves with plenty of memory,
//! both divided by the workload's load. If the policy breaks, the cell says so, the reason follows, and the exit code is 1.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockView, Heap};
use parkade_policies::{Unknown, named};
use parkade_research::study::{Ending, LOAD_UNIT_BYTES, Outcome, RunOptions, make_for, run, smallest_capacity};
use parkade_research::workload::generators::WorkloadError;
use parkade_research::workload::{Workload, parse};
use rayon::prelude::*;

use lazy_coalescing::LazyCoalescing;
use lifetime_arenas::LifetimeArenas;

#[path = "../../conformance/tests/lazy_coalescing.rs"]
mod lazy_coalescing;
#[path = "../../conformance/tests/lifetime_arenas.rs"]
mod lifetime_arenas;

/// Short workloads of different kinds: training, changing lengths, a server's growing caches, and batches copied ahead.
const WORKLOADS: [&str; 4] = ["gpt2-mixed:steps=8", "varlen-gpt2:steps=8", "serving-reallocate:requests=80", "prefetch:steps=12"];

/// Requests of at least this size get their own segment.
const LARGE: Bytes = Bytes::mib(16);
/// Smaller requests share segments of this size.
const SHARED: Bytes = Bytes::mib(32);

/// Fills segments that are in use before it takes an entirely free one, so that more segments can be released.
struct FillFirst;

impl FillFirst {
    fn find(heap: &Heap, request: &Request) -> Option<BlockView> {
        let tightest = heap.first_at_least(request.pool, request.stream, request.size)?;
        if request.size >= LARGE {
            return (tightest.size.get() - request.size.get() <= tightest.size.get() / 8).then_some(tightest);
        }
        let mut free = heap.at_least(request.pool, request.stream, request.size);
        Some(free.find(|block| block.is_split).unwrap_or(tightest))
    }
}

impl Policy for FillFirst {
    fn name(&self) -> &'static str {
        "fill-first"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if size >= LARGE { PoolClass::Large } else { PoolClass::Small }
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let segment = if request.size >= LARGE { request.size.checked_round_up(Bytes::mib(2)) } else { Some(SHARED) };
        match FillFirst::find(heap, request) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(segment.unwrap_or(Bytes::MAX)),
        }
    }

    fn splits(&self, _whole: Bytes, request: &Request) -> bool {
        request.size < LARGE
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Grow, Rung::WaitForEvents, Rung::ReuseFreed, Rung::ReleaseAll, Rung::GrowAgain, Rung::Own]
    }

    fn relieve(&mut self, _heap: &Heap, request: &Request, turn: u32) -> Relief {
        match turn {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(request.size) },
            _ => Relief::Done,
        }
    }
}

/// A policy's name, and a function that creates the policy for a workload.
type Tried = (String, Box<dyn Fn(&Workload) -> Maker + Sync>);
type Maker = Box<dyn Fn() -> Box<dyn Policy + Send> + Send + Sync>;

fn main() -> ExitCode {
    try_all(std::env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("try_policy: {error}");
        ExitCode::from(2)
    })
}

/// Tries the policies on the workloads that the arguments name, and prints the table.
fn try_all(arguments: impl Iterator<Item = String>) -> Result<ExitCode, Box<dyn Error>> {
    let (mut policies, mut texts) = (Vec::new(), Vec::new());
    for argument in arguments {
        match find(&argument)? {
            Some(policy) => policies.push(policy),
            None => texts.push(argument),
        }
    }
    if policies.is_empty() {
        policies.extend(find("fill-first")?);
    }
    let baselines = find("pytorch")?.into_iter().chain(find("best-fit-remap")?);
    let tried: Vec<Tried> = baselines.chain(policies).collect();
    if texts.is_empty() {
        texts = WORKLOADS.map(str::to_owned).into();
    }
    let of = |text: &String| match parse(text) {
        Err(WorkloadError::UnknownWorkload { .. }) => {
            Err(format!("{text:?} is neither a policy nor a workload; parkade sweep --list lists both"))
        }
        parsed => parsed.map_err(|error| error.to_string()),
    };
    let workloads = texts.iter().map(of).collect::<Result<Vec<Workload>, _>>()?;
    let start = Instant::now();
    let rows: Vec<Vec<Result<String, String>>> = tried
        .par_iter()
        .map(|(_, make)| workloads.par_iter().map(|workload| cell(workload, &make(workload))).collect())
        .collect();
    print!("{:<22}", "policy");
    texts.iter().for_each(|text| print!("{:>32}", text.split(',').next().unwrap_or(text)));
    for ((name, _), cells) in tried.iter().zip(&rows) {
        print!("\n{name:<22}");
        cells.iter().for_each(|cell| print!("{:>32}", cell.as_deref().unwrap_or("fault")));
    }
    println!("\n{:.1} s", start.elapsed().as_secs_f64());
    let faults: Vec<&String> = rows.iter().flatten().filter_map(|cell| cell.as_ref().err()).collect();
    faults.iter().for_each(|fault| println!("{fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds a policy by its name: one of those here, or one of the catalogue. A text that is no policy's name describes a workload.
fn find(name: &str) -> Result<Option<Tried>, String> {
    let make: Option<fn() -> Box<dyn Policy + Send>> = match name {
        "fill-first" => Some(|| Box::new(FillFirst)),
        "lifetime-arenas" => Some(|| Box::new(LifetimeArenas::default())),
        "lazy-coalescing" => Some(|| Box::new(LazyCoalescing)),
        _ => None,
    };
    match (make, named(name)) {
        (None, Ok(policy)) => Ok(Some((name.to_owned(), Box::new(move |workload| make_for(&policy, workload))))),
        (None, Err(Unknown::Name)) => Ok(None),
        (None, Err(why)) => Err(format!("there is no policy {name:?}: {why}")),
        (Some(make), Err(Unknown::Name)) => Ok(Some((name.to_owned(), Box::new(move |_| Box::new(make))))),
        (Some(_), _) => Err(format!("{name} names a policy of the catalogue and one of this example: rename one of them")),
    }
}

/// Returns the smallest memory in which the workload fits, and the memory reserved with plenty of memory; or how the policy
/// broke.
fn cell(workload: &Workload, make: &Maker) -> Result<String, String> {
    let load = workload.load_bytes(LOAD_UNIT_BYTES) as f64;
    match smallest_capacity(workload, make, &RunOptions::plenty(), &[]) {
        Ok(smallest) => {
            let plenty = run(workload, make(), &RunOptions::plenty());
            Ok(format!("{:.3} ({:.3})", smallest.capacity_bytes as f64 / load, plenty.peak_reserved_bytes as f64 / load))
        }
        Err(Outcome { ending: Ending::Fault(fault), failed_at_event, .. }) => {
            Err(format!("{} broke in {}, event {}: {fault}", make().name(), workload.name, failed_at_event.unwrap_or(0)))
        }
        Err(_) => Ok("does not fit".to_owned()),
    }
}
