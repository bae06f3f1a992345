//! D1, D2 and D7: the statistics that PyTorch gives a program, and what can be read off them.

use std::collections::BTreeMap;

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade_analysis::fragmentation::Fragmentation;

use crate::scenarios::recordings::recording;
use crate::scenarios::story::{Story, claim, failed, format_bytes, memory_summary, mib, scenario};

pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        scenario("D1", "memory_allocated and its like are keys of memory_stats, and memory_summary shows them all", figures),
        scenario(
            "D2",
            "whether 4 MiB fit depends on the largest hole, not on whether 1 - allocated / reserved is above 30 %",
            ratio,
        ),
        scenario("D7", "memory_stats has no key num_oom_retries: the guide's script always prints 0", no_such_key),
    ];
    if backend.is_simulated() {
        // They are about a file, in which no device takes part.
        entries.push(scenario("D1/keys", "the keys are those that PyTorch 2.11 wrote on the H200", |_: &AnyBackend| keys()));
    }
    entries
}

/// `torch.cuda.memory_stats()`.
fn stats(story: &Story) -> BTreeMap<String, i64> {
    story.stage.stats().entries().into_iter().collect()
}

/// A retry, an out-of-memory error and a small allocation, so that most statistics are not 0.
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
    claim(now == peak, || format!("after the reset: {now:?} now, {peak:?} at most"))?;
    story.say("reset_peak_memory_stats: the peaks start again at what is in use now");
    story.finish()
}

fn keys() -> Verdict {
    let shipped = recording("deep_mlp.default")?;
    let Some(file) = &shipped.options.stats_file else { return Err(Trouble::fail("the recording has no statistics")) };
    // Reading the file fails if one of the core's keys is missing in it.
    claim(file.unknown.is_empty(), || format!("the core lacks the keys {:?}", file.unknown))?;
    let keys: Vec<String> = parkade::stats::Stats::default().entries().into_iter().map(|(key, _)| key).collect();
    let verdict = shipped.verify(shipped.device()).map_err(failed)?;
    let check = verdict.stats_check.ok_or_else(|| Trouble::fail("the statistics were not compared"))?;
    claim(check.compared == keys.len() && check.differences.is_empty(), || format!("{check:?}"))?;
    let text = format!("{} keys, all of them as PyTorch wrote them at the end of deep_mlp, with equal values:\n", keys.len());
    Ok(Evidence::text(text + &keys.join("\n") + "\n"))
}

/// A segment that is cut into pieces of 2 MiB, some of which are freed; then 4 MiB are asked for.
struct Heap {
    name: &'static str,
    pieces: u64,
    freed: &'static [u64],
    /// 1 - allocated / reserved, in percent.
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
        // No room for another segment.
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
        // The hole decides, whatever the ratio says.
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
    story.say("stats.get('num_oom_retries', 0) is 0, whatever has happened: there is no such key");
    for (key, value) in [("num_alloc_retries", 2), ("num_ooms", 1)] {
        claim(found.get(key) == Some(&value), || format!("{key} is {:?}", found.get(key)))?;
        story.say(&format!("stats['{key}'] is {value}"));
    }
    story.finish()
}
