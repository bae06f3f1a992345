//! Compares `memory_summary()` with the output of the real PyTorch 2.11.

use std::fs;
use std::path::Path;

use parkade::stats::Stats;
use parkade_recording::memory_summary;
use proptest::prelude::*;

/// Returns the statistics in a `memory_stats()` dictionary as JSON: one flat object of integers.
fn stats_from_json(json: &str) -> Stats {
    let entries = json.trim().trim_matches(['{', '}']).split(',').map(|entry| {
        let (key, value) = entry.split_once(':').unwrap();
        (key.trim().trim_matches('"'), value.trim().parse().unwrap())
    });
    Stats::from_entries(entries).unwrap()
}

#[test]
fn pinned_summaries_are_reproduced() {
    for (json, summary) in [
        (
            include_str!("summaries/gpt2_varlen.limit12_oom.stats.json"),
            include_str!("summaries/gpt2_varlen.limit12_oom.summary.txt"),
        ),
        (include_str!("summaries/llm_serving.default.stats.json"), include_str!("summaries/llm_serving.default.summary.txt")),
        (
            include_str!("summaries/resnet50_sweep.limit5_oom.stats.json"),
            include_str!("summaries/resnet50_sweep.limit5_oom.summary.txt"),
        ),
    ] {
        assert_eq!(memory_summary(0, &stats_from_json(json), false), summary);
    }
}

/// Checks every recording in the folder `PARKADE_RECORDINGS`, if set.
#[test]
fn all_summaries_of_a_folder_are_reproduced() {
    let Some(folder) = std::env::var_os("PARKADE_RECORDINGS") else { return };
    let mut count = 0;
    for file in fs::read_dir(Path::new(&folder)).unwrap() {
        let path = file.unwrap().path();
        let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".summary.txt")) else { continue };
        let stats = stats_from_json(&fs::read_to_string(format!("{name}.stats.json")).unwrap());
        assert_eq!(memory_summary(0, &stats, false), fs::read_to_string(&path).unwrap(), "{name}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn an_abbreviated_summary_has_no_rows_of_pools() {
    let stats = stats_from_json(include_str!("summaries/gpt2_varlen.limit12_oom.stats.json"));
    let expected: String = include_str!("summaries/gpt2_varlen.limit12_oom.summary.txt")
        .split_inclusive('\n')
        .filter(|line| !line.contains(" from "))
        .collect();
    assert_eq!(memory_summary(0, &stats, true), expected);
}

/// Python's `//` rounds down: -1 byte is -1 KiB where the column is in KiB.
#[test]
fn negative_numbers_round_down() {
    let stats = Stats::from_entries([
        ("allocated_bytes.all.current", 1 << 20),
        ("allocated_bytes.large_pool.current", -1),
        ("allocation.all.peak", 750_000),
        ("allocation.small_pool.peak", -1),
        ("segment.all.freed", 750_000_000),
    ])
    .unwrap();
    let summary = memory_summary(12, &stats, false);
    let has_line = |line: &str| assert!(summary.contains(line), "{line}\n{summary}");
    has_line("|                  PyTorch CUDA memory summary, device ID 12                |\n");
    has_line("| Allocated memory      |   1024 KiB |      0 B   |      0 B   |      0 B   |\n");
    has_line("|       from large pool |     -1 KiB |      0 B   |      0 B   |      0 B   |\n");
    has_line("| Allocations           |       0    |     750 K  |       0    |       0    |\n");
    has_line("|       from small pool |       0    |      -1 K  |       0    |       0    |\n");
    has_line("| GPU reserved segments |       0    |       0    |       0    |     750 M  |\n");
}

proptest! {
    #[test]
    fn no_number_makes_a_summary_panic(value in any::<i64>(), other in any::<i64>()) {
        let keys = Stats::default().entries();
        let entries = keys.iter().enumerate().map(|(index, (key, _))| (key.as_str(), if index % 3 == 0 { value } else { other }));
        let _ = memory_summary(u32::MAX, &Stats::from_entries(entries).unwrap(), false);
    }
}
