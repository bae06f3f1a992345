//! Scenarios D, statistics and tools: the section's rows, and its entries on the facts that a program can learn about
//! its memory.
//!
//! D1, D2, D5 and D7 to D9 are statistics, the guide's helpers, and what the driver has handed out. D3, D4 and D6 are what a
//! recorded run shows: snapshot files, a diagnosis and a timeline; they use no device. `commands` runs the binary.

mod commands;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use parkade::device::DeviceBackend as _;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::diagnose::{DiagnoseOptions, Diagnosis, Limit, Verdict as Cause, diagnose_device};
use parkade_analysis::fragmentation::Fragmentation;
use parkade_analysis::timeline::{Curve, Timeline};
use parkade_recording::{Frame, Recording, Style, read, write};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{AfterFailure, ReplaySettings, Requests, VerifyOptions, verify_device};
use parkade_research::study::{Outcome, RunOptions, run};
use parkade_research::workload::generators::Optimizer;
use parkade_research::workload::generators::cnn::Cnn;
use parkade_research::workload::{Event, Workload, parse};

use super::story::{Finding, Row, Story, claim, failed, format_bytes, memory_summary, mib, recording, scenario};
use crate::backend::{AnyBackend, TestDevice, first_other_word};
use crate::shipped::Shipped;
use crate::suite::{Entry, Evidence, Trouble, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "D1",
        claim: "A program reads memory with `memory_allocated`, `memory_reserved`, `max_memory_*`, `memory_stats` and \
                `memory_summary`.",
        finding: Finding::Reproduced,
        found: "All 122 keys of PyTorch 2.11 exist, with the values that it wrote on the H200; `memory_summary` is the same \
                text.",
    },
    Row {
        id: "D2",
        claim: "Fragmentation is 1 - allocated / reserved; above 30 %, there is a risk of running out of memory.",
        finding: Finding::Different,
        found: "At 50 %, whether a 4 MiB request succeeds depends on where the free bytes are; it can also fail at 10 %. The \
                largest hole (2.00 or 6.00 MiB) decides, and parkade shows it next to the ratio.",
    },
    Row {
        id: "D3",
        claim: "`_dump_snapshot` writes a file that pytorch.org/memory_viz displays.",
        finding: Finding::Reproduced,
        found: "parkade reads these files; written out and read back, they are the same recording. A replayed run is written as \
                a file \
                with all the keys that the viewer reads, and it is verified with 0 differences.",
    },
    Row {
        id: "D4",
        claim: "An out-of-memory error is diagnosed in five steps: capacity, fragmentation, max_split_size_mb, \
                empty_cache, snapshot.",
        finding: Finding::Reproduced,
        found: "`parkade diagnose` answers all five: one run fails because of fragmentation (4.92 GiB would have fitted in \
                5.00 GiB), the other because of capacity (2.01 GiB in 2.00 GiB). `empty_cache` would return 0 bytes in both.",
    },
    Row {
        id: "D5",
        claim: "A script `memory_utils.py` has info, clear, reset, fraction, enable and \"kill all CUDA processes\"; helpers \
                print, clear and copy safely.",
        finding: Finding::Different,
        found: "Each is a command or a call, shown with its effect on the figures. `parkade kill` ends one process: the \
                process must be named by its id and hold memory on a GPU, and the command must be confirmed.",
    },
    Row {
        id: "D6",
        claim: "Memory during a training step: parameters, activations that rise in forward and fall in backward, then the \
                optimizer.",
        finding: Finding::Reproduced,
        found: "It is drawn from a recording of GPT-2 (from 1.93 to 14.68 GiB and back) and from a generated step.",
    },
    Row {
        id: "D7",
        claim: "`memory_stats()['num_oom_retries']` counts retries.",
        finding: Finding::Refuted,
        found: "The key does not exist, so the document's `get` always returns 0. The keys are `num_alloc_retries` and \
                `num_ooms`.",
    },
    Row {
        id: "D8",
        claim: "nvidia-smi shows reserved memory, not allocated memory.",
        finding: Finding::Different,
        found: "It follows reserved memory, but includes the CUDA context: 526.81 MiB on the H200. `parkade info` shows how \
                much memory the driver has handed out, how much of it processes hold, and the difference.",
    },
    Row {
        id: "D9",
        claim: "The cache should be cleared regularly, or after each save.",
        finding: Finding::Refuted,
        found: "For the program itself this only costs time: 80 calls to cudaMalloc and 80 to cudaFree, each of which waits \
                for the device, instead of 4 and none, for the same peak. 10 steps of ResNet-50 take 1698 driver calls \
                instead of 119, and use no less memory.",
    },
];

pub(crate) fn entries(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    [own_statistics(backend), recorded_runs(backend), helper_calls(), device_memory(backend), commands::entries(backend, parkade)]
        .into_iter()
        .flatten()
        .collect()
}

/// D1, D2 and D7: the statistics that PyTorch offers to a program, and what they show.
fn own_statistics(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        scenario(
            "D1",
            "memory_allocated and similar functions read keys from memory_stats, and memory_summary shows all of them",
            figures,
        ),
        scenario(
            "D2",
            "whether 4 MiB fits depends on the largest hole, not on whether 1 - allocated / reserved is above 30 %",
            ratio,
        ),
        scenario("D7", "memory_stats has no key num_oom_retries, so the guide's script always prints 0", no_such_key),
    ];
    if backend.is_simulated() {
        // This entry checks a file and uses no device.
        entries.push(scenario("D1/keys", "the keys are those that PyTorch 2.11 wrote on the H200", |_: &AnyBackend| keys()));
    }
    entries
}

/// `torch.cuda.memory_stats()`.
fn stats(story: &Story) -> BTreeMap<String, i64> {
    story.stage.stats().entries().into_iter().collect()
}

/// Causes a retry, an out-of-memory error and a small allocation, so that most statistics are not
/// 0.
fn some_work(story: &mut Story) -> Result<(), Trouble> {
    for (name, size) in [("first", mib(40)), ("second", mib(30)), ("small", parkade::units::Bytes(1000))] {
        story.alloc(name, size)?;
    }
    story.free("first")?;
    story.alloc("after a retry", mib(60))?;
    story.refuse("too large", mib(50))?;
    story.free("after a retry")
}

fn figures(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(100)))?;
    some_work(&mut story)?;
    let peak = (30 << 20) + 1024 + (60 << 20);
    let expected = [
        ("memory_allocated", "allocated_bytes.all.current", (30 << 20) + 1024),
        ("max_memory_allocated", "allocated_bytes.all.peak", peak),
        ("memory_reserved", "reserved_bytes.all.current", 92 << 20),
        ("max_memory_reserved", "reserved_bytes.all.peak", 92 << 20),
        ("(no function)", "num_alloc_retries", 2),
        ("(no function)", "num_ooms", 1),
    ];
    let found = stats(&story);
    for (function, key, value) in expected {
        claim(found.get(key) == Some(&value), || format!("{key}: expected {value}, found {:?}", found.get(key)))?;
        story.say(&format!("{function:<22} {key:<29} {value:>10}"));
    }
    story.say("memory_cached is the old name of memory_reserved");
    let text = memory_summary(0, story.stage.stats(), false);
    for needle in ["CUDA OOMs: 1 ", "cudaMalloc retries: 2 ", "Allocated memory", "GPU reserved memory"] {
        claim(text.contains(needle), || format!("the summary lacks {needle:?}:\n{text}"))?;
    }
    story.say(&format!("\n{text}"));
    story.stage.core().reset_peak_stats();
    let after = stats(&story);
    let (now, peak) = (after.get("allocated_bytes.all.current"), after.get("allocated_bytes.all.peak"));
    claim(now == peak, || format!("after the reset: {now:?} now, peak {peak:?}"))?;
    story.say("reset_peak_memory_stats: the peaks start again at the current values");
    story.finish()
}

fn keys() -> Verdict {
    let shipped = recording("deep_mlp.default")?;
    let Some(file) = &shipped.options.stats_file else { return Err(Trouble::fail("the recording has no statistics")) };
    // Reading the file fails if one of the core's keys is missing from it.
    claim(file.unknown.is_empty(), || format!("the core lacks the keys {:?}", file.unknown))?;
    let keys: Vec<String> = parkade::stats::Stats::default().entries().into_iter().map(|(key, _)| key).collect();
    let verdict = shipped.verify(shipped.device()).map_err(failed)?;
    let check = verdict.stats_check.ok_or_else(|| Trouble::fail("the statistics were not compared"))?;
    claim(check.compared == keys.len() && check.differences.is_empty(), || format!("{check:?}"))?;
    let text = format!("{} keys, with the values that PyTorch wrote at the end of deep_mlp:\n", keys.len());
    Ok(Evidence::text(text + &keys.join("\n") + "\n"))
}

/// A segment that is split into 2 MiB pieces, some of which are freed before a request for 4 MiB.
struct Heap {
    name: &'static str,
    pieces: u64,
    freed: &'static [u64],
    /// Returns 1 - allocated / reserved, in percent.
    ratio: u64,
    is_served: bool,
}

const HEAPS: [Heap; 3] = [
    Heap { name: "every other piece is free", pieces: 6, freed: &[2, 4, 6], ratio: 50, is_served: false },
    Heap { name: "the last three are free", pieces: 6, freed: &[4, 5, 6], ratio: 50, is_served: true },
    Heap { name: "one in ten is free", pieces: 10, freed: &[5], ratio: 10, is_served: false },
];

fn ratio(backend: &AnyBackend) -> Verdict {
    let mut evidence = Evidence::default();
    let mut table =
        format!("{:<28} {:>8} {:>6} {:>14} {:>17}  4 MiB\n", "", "1 - a/r", "risk", "largest hole", "partial segments");
    for heap in HEAPS {
        let whole = mib(2 * heap.pieces);
        // This leaves no room for another segment.
        let mut story = Story::new(backend, "", Some(whole))?;
        story.alloc("all", whole)?;
        story.free("all")?;
        for number in 1..=heap.pieces {
            story.alloc(&format!("piece {number:02}"), mib(2))?;
        }
        for number in heap.freed {
            story.free(&format!("piece {number:02}"))?;
        }
        story.show(heap.name);
        let found = Fragmentation::of(&story.stage.segments());
        let percent = found.ratio().map(|part| (part * 100.0).round() as u64);
        claim(percent == Some(heap.ratio), || format!("{}: {percent:?} %", heap.name))?;
        let is_served = story.ask("4 MiB", mib(4))?;
        claim(is_served == heap.is_served, || format!("{}: 4 MiB served: {is_served}", heap.name))?;
        let [hole, partial] = [found.largest_hole_bytes, found.partial_segments_bytes].map(format_bytes);
        // The hole decides, no matter what the ratio is.
        claim(is_served == (found.largest_hole_bytes >= 4 << 20), || format!("{}: {found:?}", heap.name))?;
        let (risk, outcome) = (if heap.ratio > 30 { "yes" } else { "no" }, if is_served { "served" } else { "out of memory" });
        table += &format!("{:<28} {:>6} % {risk:>6} {hole:>14} {partial:>17}  {outcome}\n", heap.name, heap.ratio);
        let told = story.finish()?;
        evidence.text += &(told.text + "\n");
        evidence.measured += &told.measured;
        evidence.operations += told.operations;
    }
    evidence.text += &table;
    Ok(evidence)
}

fn no_such_key(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(100)))?;
    some_work(&mut story)?;
    let found = stats(&story);
    claim(!found.contains_key("num_oom_retries"), || "there is a key num_oom_retries".to_owned())?;
    story.say("stats.get('num_oom_retries', 0) is always 0, because the key does not exist");
    for (key, value) in [("num_alloc_retries", 2), ("num_ooms", 1)] {
        claim(found.get(key) == Some(&value), || format!("{key} is {:?}", found.get(key)))?;
        story.say(&format!("stats['{key}'] is {value}"));
    }
    story.finish()
}

/// D5: the guide's memory helpers, as calls to an allocator that the test runs.
fn helper_calls() -> Vec<Entry> {
    vec![scenario(
        "D5/helpers",
        "print, copy to the CPU, clear, reset, fraction and cleanup each have the expected effect on the figures",
        helpers,
    )]
}

/// Returns allocated and reserved bytes and their peaks, as the guide's `info` prints them.
fn info(story: &mut Story, after: &str) -> [i64; 4] {
    let stats = story.stage.stats();
    let [allocated, reserved] = [Family::AllocatedBytes, Family::ReservedBytes].map(|family| stats.family(family).all);
    let figures = [allocated.current, reserved.current, allocated.peak, reserved.peak];
    let [allocated, reserved, most_allocated, most_reserved] = figures.map(|bytes| format_bytes(bytes.unsigned_abs()));
    story.say(&format!("{after:<28} {allocated:>12} {reserved:>12} {most_allocated:>14} {most_reserved:>14}"));
    figures
}

fn helpers(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    story.say(&format!("{:<28} {:>12} {:>12} {:>14} {:>14}", "", "allocated", "reserved", "max allocated", "max reserved"));
    for name in ["first", "live", "third"] {
        story.alloc(name, mib(64))?;
    }
    for name in ["first", "third"] {
        story.free(name)?;
    }
    expect(info(&mut story, "two of three tensors freed"), [64, 192, 192, 192])?;
    copy_to_the_cpu(&mut story)?;
    expect(info(&mut story, "safe_tensor_to_cpu"), [64, 192, 192, 192])?;
    story.stage.release_cached()?;
    expect(info(&mut story, "clear_cuda_memory"), [64, 64, 192, 192])?;
    story.stage.core().reset_peak_stats();
    expect(info(&mut story, "reset"), [64, 64, 64, 64])?;
    story.stage.core().set_memory_fraction(0.002).map_err(failed)?;
    let _ = story.stage.alloc("512 MiB", mib(512))?.refusal()?;
    claim(story.stage.core().set_memory_fraction(1.5).is_err(), || "a fraction of 1.5 was accepted".to_owned())?;
    expect(info(&mut story, "fraction 0.002: 512 MiB fail"), [64, 64, 64, 64])?;
    story.stage.core().set_memory_fraction(1.0).map_err(failed)?;
    story.alloc("512 MiB", mib(512))?;
    story.free("512 MiB")?;
    expect(info(&mut story, "fraction 1: requests succeed"), [64, 576, 576, 576])?;
    story.free("live")?;
    story.stage.release_cached()?;
    expect(info(&mut story, "cleanup_model_memory"), [0, 0, 576, 576])?;
    story.finish()
}

fn expect(found: [i64; 4], mib: [i64; 4]) -> Result<(), Trouble> {
    claim(found == mib.map(|count| count << 20), || format!("expected {mib:?} MiB, found {found:?} bytes"))
}

/// Copies every byte; nothing moves on the device.
fn copy_to_the_cpu(story: &mut Story) -> Result<(), Trouble> {
    const WORD: u32 = 0x600d_f00d;
    let (address, stream) = (story.stage.address("live")?, story.stage.streams()[0]);
    let mut copy = vec![0; 64 << 20];
    let mut device = story.stage.device().steer();
    device.fill(address, mib(64), WORD, stream)?;
    device.read(address, &mut copy)?;
    claim(first_other_word(&copy, WORD).is_none(), || "the copy does not contain the data that was written".to_owned())
}

/// D8 and D9: the memory that the driver has handed out, and the cost of releasing it on a schedule.
fn device_memory(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        scenario(
            "D8",
            "the memory that the driver has handed out is the reserved memory plus the CUDA context: it follows reserved, not \
             allocated memory",
            used,
        ),
        scenario(
            "D9",
            "emptying the cache after each step takes many driver calls that wait for the device, and does not lower the peak",
            schedule,
        ),
    ];
    if backend.is_simulated() {
        let says = "ResNet-50 is trained with its cache emptied never, every fifth step or every step: the driver calls and the \
                    time in the driver differ";
        entries.push(scenario("D9/training", says, |_: &AnyBackend| training()));
    }
    entries
}

/// The memory that the driver has handed out, as nvidia-smi shows it.
fn given_out(story: &mut Story) -> Result<i128, Trouble> {
    let memory = story.stage.device().steer().memory_info()?;
    Ok(i128::from(memory.total.get()) - i128::from(memory.free.get()))
}

fn used(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    let context = given_out(&mut story)?;
    story.measure(&format!("used before the first allocation: {}", format_bytes(context.unsigned_abs() as u64)));
    story.say(&format!("{:<24} {:>12} {:>12} {:>22}", "", "allocated", "reserved", "used by the driver"));
    for (what, allocated, reserved) in
        [("before", 0, 0), ("3 tensors of 200 MiB", 600, 600), ("two of them freed", 200, 600), ("empty_cache", 200, 200)]
    {
        match what {
            "before" => {}
            "empty_cache" => story.stage.release_cached()?,
            "two of them freed" => ["one", "three"].into_iter().try_for_each(|name| story.free(name))?,
            _ => ["one", "two", "three"].into_iter().try_for_each(|name| story.alloc(name, mib(200)))?,
        }
        let figures = story.figures();
        claim((figures.allocated, figures.reserved) == (allocated << 20, reserved << 20), || format!("{what}: {figures:?}"))?;
        let more = given_out(&mut story)? - context;
        claim(more == i128::from(figures.reserved), || format!("{what}: the driver has handed out {more} more bytes"))?;
        story.say(&format!("{what:<24} {allocated:>8} MiB {reserved:>8} MiB {:>22}", format!("context + {reserved} MiB")));
    }
    story.finish()
}

/// The number of steps in the program, and the number of tensors in a step.
const STEPS: u64 = 20;
const TENSORS: [u64; 4] = [256, 128, 64, 32];
/// The duration of a step's kernels.
const STEP_NS: u64 = 2_000_000;

/// Runs the program. Returns the driver's memory calls and the time in microseconds.
fn run_steps(backend: &AnyBackend, empties: bool) -> Result<(usize, usize, f64, Evidence), Trouble> {
    let mut story = Story::new(backend, "", None)?;
    let stream = story.stage.streams()[1];
    story.alloc("weights", mib(512))?;
    let _ = story.stage.calls();
    let clock = |story: &Story| story.stage.device().steer().insight().map(|device| device.now_ns());
    let (start, start_ns) = (Instant::now(), clock(&story));
    for _ in 0..STEPS {
        for size in TENSORS {
            story.alloc(&format!("{size} MiB"), mib(size))?;
        }
        story.stage.device().steer().spin(stream, STEP_NS)?;
        for size in TENSORS {
            story.free(&format!("{size} MiB"))?;
        }
        if empties {
            story.stage.release_cached()?;
        }
    }
    story.stage.device().steer().settle();
    let took_ns = match (start_ns, clock(&story)) {
        (Some(start), Some(end)) => (end - start) as f64,
        _ => start.elapsed().as_nanos() as f64,
    };
    let calls = story.stage.calls();
    let count = |name: &str| calls.iter().filter(|call| call.split(' ').next() == Some(name)).count();
    let (mallocs, frees) = (count("cudaMalloc"), count("cudaFree"));
    let peak = story.stage.stats().family(Family::ReservedBytes).all.peak;
    claim(peak == 992 << 20, || format!("the peak of reserved bytes is {peak}"))?;
    Ok((mallocs, frees, took_ns / 1000.0, story.finish()?))
}

fn schedule(backend: &AnyBackend) -> Verdict {
    let (mallocs, frees, plain_us, plain) = run_steps(backend, false)?;
    let (more_mallocs, more_frees, emptied_us, emptied) = run_steps(backend, true)?;
    let tensors = TENSORS.len();
    claim((mallocs, frees) == (tensors, 0), || format!("{mallocs} mallocs and {frees} frees with the cache"))?;
    let each = STEPS as usize * tensors;
    claim((more_mallocs, more_frees) == (each, each), || format!("{more_mallocs} mallocs and {more_frees} frees without it"))?;
    let text = format!(
        "{STEPS} steps of {tensors} tensors next to 512 MiB of weights, peak reserved 992.00 MiB either way\n\
         never emptied:          {mallocs:>3} cudaMalloc, {frees:>3} cudaFree\n\
         emptied after each step:{more_mallocs:>4} cudaMalloc, {more_frees:>3} cudaFree, each of which waits for the device\n"
    );
    let measured = format!(
        "2 ms of kernels per step, in microseconds per step: {:.0} never emptied, {:.0} emptied after each step\n",
        plain_us / STEPS as f64,
        emptied_us / STEPS as f64
    );
    Ok(Evidence { text, measured, operations: plain.operations + emptied.operations })
}

/// Trains ResNet-50 on 32 images per step, and empties the cache after each step whose number is a multiple of `every`.
fn resnet(every: Option<usize>) -> Result<Workload, Trouble> {
    // The generator empties the cache before each batch size, so each step is a batch size of its own.
    let cnn = Cnn { batches: vec![32; 10], empties_cache: true, optimizer: Optimizer::Momentum, ..Cnn::default() };
    let mut workload = cnn.workload().map_err(failed)?;
    let mut step = 0;
    workload.events.retain(|event| {
        let is_emptying = *event == Event::EmptyCache;
        step += usize::from(is_emptying);
        // The first call is made before the first step, when nothing can be released.
        !is_emptying || every.is_some_and(|every| step > 1 && (step - 1) % every == 0)
    });
    Ok(workload)
}

fn training() -> Verdict {
    let mut text = format!(
        "ResNet-50, 10 steps of 32 images\n{:<16} {:>14} {:>10} {:>16} {:>16}\n",
        "cache emptied", "peak reserved", "calls", "in the driver", "waiting"
    );
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (name, every) in [("never", None), ("every 5 steps", Some(5)), ("every step", Some(1))] {
        let policy = Box::new(PyTorch::new(Settings::default()));
        let outcome = run(&resnet(every)?, policy, &RunOptions::new(140 << 30));
        claim(outcome.fits(), || format!("{name}: {:?}", outcome.ending))?;
        let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
        let (reserved, calls) = (format_bytes(outcome.peak_reserved_bytes), outcome.driver_calls);
        let (driver, waited) = (ms(outcome.driver_ns), ms(outcome.waited_ns));
        text += &format!("{name:<16} {reserved:>14} {calls:>10} {driver:>16} {waited:>16}\n");
        outcomes.push(outcome);
    }
    let grows = |get: fn(&Outcome) -> u64| outcomes.windows(2).all(|pair| get(&pair[0]) < get(&pair[1]));
    claim(grows(|outcome| outcome.driver_calls) && grows(|outcome| outcome.driver_ns), || text.clone())?;
    Ok(Evidence::text(text))
}

/// The width and height of a drawn timeline, in characters.
const COLUMNS: usize = 100;
const HEIGHT: usize = 12;

fn recorded_runs(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    vec![
        scenario(
            "D3",
            "snapshot files can be read; files that parkade writes are verified without differences and have the keys that \
             PyTorch's viewer reads",
            |_: &AnyBackend| files(),
        ),
        scenario(
            "D4/fragmentation",
            "the five steps, applied to a recorded failure: the live bytes and the request together would have fitted",
            |_: &AnyBackend| fragmented(),
        ),
        scenario(
            "D4/capacity",
            "the five steps, applied to a run that needs more than the limit: no setting helps",
            |_: &AnyBackend| too_large(),
        ),
        scenario(
            "D6/recorded",
            "a recorded training step: memory rises with the activations, falls in backward, and stays low in the optimizer's \
             step",
            |_: &AnyBackend| recorded_step(),
        ),
        scenario(
            "D6/generated",
            "a generated training step has the same shape, and shows the optimizer's short-lived second copy",
            |_: &AnyBackend| generated_step(),
        ),
    ]
}

/// The keys that the page pytorch.org/memory_viz reads from a file, a segment, a block and a trace entry.
const VIEWER_KEYS: [(&str, &[&str]); 4] = [
    ("file", &["segments", "device_traces", "allocator_settings", "external_annotations"]),
    ("segment", &["address", "total_size", "stream", "segment_type", "segment_pool_id", "is_expandable", "blocks"]),
    ("block", &["size", "requested_size", "state", "frames"]),
    ("entry", &["action", "addr", "time_us"]),
];

fn files() -> Verdict {
    let shipped = recording("deep_mlp.default")?;
    let recorded = &shipped.recording;
    let mut text =
        format!("deep_mlp.default: {} entries, {} segments\n", shipped.device().trace.len(), shipped.device().segments.len());
    for (style, name) in [(Style::Python, "_dump_snapshot"), (Style::Cpp, "_memory_snapshot_pickled")] {
        let mut again = read(&write(recorded, style)).map_err(failed)?;
        if style == Style::Cpp {
            // C++ added some keys later than Python, so a file in the C++ style reveals less about its release.
            again.fields = recorded.fields;
        }
        claim(again == *recorded, || format!("written in {name}'s format and read back, the recording is different"))?;
        text += &format!("written in {name}'s format and read back: same recording\n");
    }
    for settings in ["", "expandable_segments:True"] {
        let options = exporting(&shipped, settings)?;
        let exported = export(recorded, &options, &mut |_| ()).map_err(failed)?;
        let file = write(&exported.recording, Style::Python);
        for (what, keys) in VIEWER_KEYS {
            for key in keys {
                claim(has_text(&file, key), || format!("the exported file lacks key {key:?} of a {what}"))?;
            }
        }
        let exported = read(&file).map_err(failed)?;
        let own = VerifyOptions { settings: replay_settings(&exported)?, limit_bytes: None, stats_file: None };
        let device = exported.devices.first().ok_or_else(|| Trouble::fail("nothing was exported"))?;
        let verdict = verify_device(device, &own, &mut |_| ()).map_err(failed)?;
        claim(verdict.mismatches == 0, || format!("{settings}: {} decisions differ", verdict.mismatches))?;
        let name = if settings.is_empty() { "the same settings" } else { settings };
        text += &format!("exported under {name}: {} decisions verified, 0 differ\n", verdict.decisions);
    }
    for (what, keys) in VIEWER_KEYS {
        text += &format!("keys: {what:<8} {}\n", keys.join(", "));
    }
    Ok(Evidence::text(text))
}

/// Returns the replay of a recording under these settings.
fn exporting(shipped: &Shipped, settings: &str) -> Result<ExportOptions, Trouble> {
    Ok(ExportOptions {
        own: shipped.options.clone(),
        profile: &Profile::PYTORCH_2_11,
        settings: Settings::from_environment(settings).map_err(failed)?,
        limit_bytes: None,
        capacity_bytes: None,
        after_failure: AfterFailure::GoOn,
        device: None,
    })
}

fn replay_settings(recording: &Recording) -> Result<ReplaySettings, Trouble> {
    ReplaySettings::of_recording(recording.settings.as_ref()).map_err(failed)
}

/// Returns whether a pickle contains this text in Python's form for short texts: an opcode, the length and the bytes.
fn has_text(pickle: &[u8], text: &str) -> bool {
    const SHORT_TEXT: u8 = 0x8c;
    let wanted: Vec<u8> = [[SHORT_TEXT, text.len() as u8].as_slice(), text.as_bytes()].concat();
    pickle.windows(wanted.len()).any(|window| window == wanted)
}

/// A recorded failure.
fn fragmented() -> Verdict {
    let shipped = recording("resnet50_sweep.limit5_oom")?;
    five_steps(&shipped.name, &shipped.recording, &shipped.options, Cause::Fragmentation)
}

/// A recorded run, replayed under a limit that is smaller than its live bytes.
fn too_large() -> Verdict {
    let shipped = recording("deep_mlp.default")?;
    let options = ExportOptions { limit_bytes: Some(2 << 30), after_failure: AfterFailure::Stop, ..exporting(&shipped, "")? };
    let exported = export(&shipped.recording, &options, &mut |_| ()).map_err(failed)?.recording;
    let own = VerifyOptions { settings: replay_settings(&exported)?, limit_bytes: Some(2 << 30), stats_file: None };
    five_steps("deep_mlp under a limit", &exported, &own, Cause::Capacity)
}

fn five_steps(name: &str, recording: &Recording, own: &VerifyOptions, expected: Cause) -> Verdict {
    let device = recording.devices.first().ok_or_else(|| failed("the recording has no device"))?;
    let options = DiagnoseOptions { own: own.clone(), capacity_bytes: None, entry: None, fences: 1 };
    let found = diagnose_device(device, &options, &mut |_| ()).map_err(failed)?;
    claim(found.verdict == expected, || format!("expected {}, found {}", expected.name(), found.verdict.name()))?;
    let Limit::Given { bytes: limit } = found.limit else { return Err(Trouble::fail(format!("the limit: {:?}", found.limit))) };
    let asked = found.request.map_or(0, |request| request.asked.size.get());
    claim((found.steps.needed_bytes <= limit) == (expected == Cause::Fragmentation), || format!("{:?} of {limit}", found.steps))?;
    let text = format!(
        "{name}: entry {} asks for {}, limit {}\n\
         1 capacity?      {:<4} live bytes and the request are {}\n\
         2 fragmentation? {:<4} {} is reserved and free, the largest hole {}; num_alloc_retries {}\n\
         3 max_split_size_mb or other settings? {}\n\
         4 empty_cache?   {:<4} would return {}\n\
         5 the snapshot:  {}\n\
         verdict: {}\n",
        found.entry.unwrap_or(0),
        format_bytes(asked),
        format_bytes(limit),
        found.steps.capacity.name(),
        format_bytes(found.steps.needed_bytes),
        found.steps.fragmentation.name(),
        format_bytes(found.heap.stranded_bytes()),
        format_bytes(found.heap.largest_hole_bytes()),
        found.retries,
        found.steps.settings.name(),
        found.steps.empty_cache.name(),
        format_bytes(found.heap.releasable_bytes()),
        culprit(recording, &found),
        found.verdict.name()
    );
    Ok(Evidence::text(text))
}

/// Returns the program line that holds the most memory, if the recording has stacks.
fn culprit(recording: &Recording, found: &Diagnosis) -> String {
    let Some(most) = found.stacks.first() else { return "nothing is in use".to_owned() };
    let frames: Vec<&Frame> = recording.stacks.frames(most.stack).collect();
    let is_own = |frame: &&&Frame| frame.filename.ends_with(".py") && !frame.filename.contains("site-packages/");
    let held = format!("{} in {} blocks", format_bytes(most.bytes), most.blocks);
    match frames.iter().find(is_own) {
        Some(frame) => {
            let file = frame.filename.rsplit('/').next().unwrap_or_default();
            format!("{held} was requested by {file}:{} ({})", frame.line, frame.name)
        }
        None => format!("{held}; the recording has no stacks"),
    }
}

/// Returns a timeline as text, with its highest value.
fn drawn(level: &[u64]) -> String {
    let curve = Curve::of(level, COLUMNS);
    let peak = curve.peak().max(1);
    let height = |bytes: u64| (u128::from(bytes) * HEIGHT as u128).div_ceil(u128::from(peak)) as usize;
    let row =
        |row: usize| curve.buckets.iter().map(|bucket| if height(bucket.max) >= row { '#' } else { ' ' }).collect::<String>();
    (1..=HEIGHT).rev().map(|level| row(level).trim_end().to_owned() + "\n").collect()
}

/// A step of a recorded run: from the end of one optimizer step to the end of the next.
fn recorded_step() -> Verdict {
    let shipped = recording("gpt2_varlen.limit16_gc")?;
    let device = shipped.device();
    let requests = Requests::of_recording(device, &shipped.options, &mut |_| ()).map_err(failed)?;
    claim(requests.mismatches == 0, || format!("{} decisions differ", requests.mismatches))?;
    let timeline = Timeline::of_device(device, &shipped.options, &requests).map_err(failed)?;
    let optimizer: Vec<Scope> = scopes(&shipped.recording.annotations, device)
        .into_iter()
        .filter(|scope| scope.name.starts_with("Optimizer.step"))
        .collect();
    let [_, first, second, ..] = &optimizer[..] else {
        return Err(Trouble::fail(format!("{} optimizer steps", optimizer.len())));
    };
    let step = &timeline.levels.allocated[first.to as usize..=second.to as usize];
    let (top, most) = step.iter().enumerate().max_by_key(|&(_, &bytes)| bytes).map_or((0, 0), |(at, &bytes)| (at, bytes));
    let (start, end) = (step[0], step[step.len() - 1]);
    let optimizing = &timeline.levels.allocated[second.from as usize..=second.to as usize];
    claim(most > 2 * start && top > step.len() / 10 && top < step.len() * 9 / 10, || {
        format!("from {start} to {most} bytes at {top} of {}", step.len())
    })?;
    claim(optimizing.iter().all(|&bytes| bytes < most / 2), || {
        format!("{optimizing:?} bytes are live during the optimizer's step")
    })?;
    let low = optimizing[0];
    let text = format!(
        "GPT-2 on sequences of varying length, the third step of the recording: {} entries\n\
         {}\
         parameters, gradients and optimizer states at its start  {:>9}\n\
         at most, between forward and backward                    {:>9}\n\
         when the optimizer begins                                {:>9}\n\
         at its end                                               {:>9}\n",
        step.len(),
        drawn(step),
        format_bytes(start),
        format_bytes(most),
        format_bytes(low),
        format_bytes(end),
    );
    Ok(Evidence::text(text))
}

/// The step has so few tokens that the optimizer's copies are visible next to the activations.
const STEP: &str = "transformer:layers=6,hidden=256,heads=4,sequence=128,batch=4,vocabulary=1000,steps=2,optimizer_copy=on";

fn generated_step() -> Verdict {
    let workload = parse(STEP).map_err(failed)?;
    let curve = workload.curve();
    let drawing = workload.drawn(COLUMNS, HEIGHT);
    let most = curve.iter().copied().max().unwrap_or(0);
    claim(drawing.lines().count() == HEIGHT && most > 0, || drawing.clone())?;
    Ok(Evidence::text(format!("{}\n{drawing}peak live {}\n", workload.says, format_bytes(most))))
}
