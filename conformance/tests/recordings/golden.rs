//! Compares the core's answers with the recorded answers of the real PyTorch allocator.

use std::collections::{BTreeMap, BTreeSet};

use parkade::profile::{Profile, RELEASES};
use parkade_conformance::golden::{Agreement, Comparison, GoldenRun, read};
use parkade_replay::ops::OpsOptions;

fn check_run(run: &GoldenRun) -> Agreement {
    run.check().unwrap_or_else(|error| panic!("{error}"))
}

fn compare(flavour: &str) -> Vec<Agreement> {
    let runs = read(flavour).unwrap_or_else(|error| panic!("{error}"));
    runs.iter().map(check_run).collect()
}

fn check(flavour: &str) {
    let agreements = compare(flavour);
    assert_eq!(agreements.len(), 12, "there is one run per configuration");
    assert!(agreements.iter().all(|agreement| *agreement == Agreement::Exact), "{flavour}: {agreements:?}");
}

macro_rules! flavours {
    ($($flavour:ident),*) => {
        $(#[test] fn $flavour() { check(stringify!($flavour)); })*
    };
}

flavours!(basic, streams, oom, frac, gc, boundary, large);

/// Pools and streams in the order of the real allocator's hash tables, in both versions.
#[test]
fn lend() {
    let runs = read("lend").expect("the file");
    assert_eq!(runs.len(), 4, "two versions, two configurations");
    for run in &runs {
        assert_eq!(check_run(run), Agreement::Exact, "{}", run.config);
    }
    // The purpose of the scripts: several pools that serve, several that are released at once, and several streams.
    let answers = || runs.iter().flat_map(|run| &run.answers);
    let count = |wanted: fn(&str) -> bool| answers().filter(|answer| wanted(answer)).count();
    let pools_that_go = |answer: &str| -> BTreeSet<String> {
        let gone = answer.split("[\"segment_free\",").skip(1).filter_map(|entry| entry.split(']').next());
        gone.filter_map(|entry| Some(entry.splitn(4, ',').nth(3)?.to_owned())).filter(|pool| pool != "0,0").collect()
    };
    assert!(answers().filter(|answer| pools_that_go(answer).len() > 1).count() > 5);
    assert!(count(|answer| answer.contains("\"op\":\"alloc ") && answer.contains("already recording to mempool_id")) > 5);
    assert!(count(|answer| answer.contains("use_count == 0 INTERNAL ASSERT")) > 0);
    assert!(count(|answer| answer.matches("free_completed").count() > 3) > 40);
}

/// Tests all other release series, each under settings and with a flavour for which its answers are distinctive.
#[test]
fn releases() {
    let runs = read("releases").expect("the file");
    let mut series = BTreeSet::new();
    for run in &runs {
        assert_eq!(check_run(run), Agreement::Exact, "{} {}", run.options.profile.name, run.config);
        series.insert(run.options.profile.name);
        let options = OpsOptions { profile: &Profile::PYTORCH_2_11, ..run.options.clone() };
        let is_told_apart = GoldenRun { options, ..run.clone() }.check().is_err();
        assert!(
            is_told_apart,
            "{} {}: 2.11 returns the same answers, so this run shows nothing",
            run.options.profile.name, run.config
        );
    }
    let missing = RELEASES.iter().map(|release| release.profile.name).filter(|name| !series.contains(name));
    assert_eq!(missing.collect::<BTreeSet<&str>>(), BTreeSet::from(["2.11", "2.15"]), "those releases have their own files");
}

/// Checkpoints of private pools, with segments of fixed size and expandable ones, in both versions.
#[test]
fn checkpoints() {
    let runs = read("checkpoints").expect("the file");
    let mut loads = BTreeMap::new();
    for run in &runs {
        let agreement = check_run(run);
        assert_ne!(agreement, Agreement::UpToHashOrder(0), "a hash order must have shown");
        let is_load = |answer: &&String| answer.contains("\"op\":\"ckpt_load") && answer.contains("\"allocd\":[\"ck_");
        *loads.entry((run.options.profile.name, run.config.clone())).or_insert(0) += run.answers.iter().filter(is_load).count();
    }
    assert_eq!(loads.len(), 8, "two versions, four configurations");
    assert!(loads.values().all(|&count| count >= 3), "{loads:?}");
}

/// Operations of the harness that the script does not use: pools, captures and other devices.
const NOT_USED: [&str; 12] = [
    "alloc_at",
    "capture_begin",
    "capture_end",
    "capture_wait",
    "capture_work",
    "pool_begin",
    "pool_create",
    "pool_end",
    "pool_release",
    "pool_use_count",
    "reserve_class",
    "expandable",
];

#[test]
fn every_operation() {
    let runs = read("every_operation").expect("the file");
    for run in &runs {
        assert_eq!(check_run(run), Agreement::Exact, "{}", run.config);
        let script = run.script().expect("operations");
        let names: BTreeSet<&str> = script.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        for name in "alloc rawalloc free rawfree record_stream complete complete_one sync empty_cache set_fraction get_fraction \
                     reset_peak reset_accumulated conf snapshot trace history stats cache_info base expandable_sizes meminfo name \
                     driver oom_free capacity external fail_next device free_all enable"
            .split_ascii_whitespace()
        {
            assert!(names.contains(name), "the script lacks {name}");
        }
        assert!(NOT_USED.iter().all(|name| !names.contains(name)));
    }
    assert_eq!(runs.len(), 3);
}

/// Blocks that are reused during a capture, once the graph makes their stream wait for the other streams that use them.
#[test]
fn graph_reuse() {
    let runs = read("graph_reuse").expect("the file");
    assert_eq!(runs.len(), 2, "two versions");
    for run in &runs {
        assert_eq!(check_run(run), Agreement::Exact, "{}", run.options.profile.name);
        let comes_back = |operation: &str| {
            let found = run.answers.iter().find(|answer| answer.contains(&format!("\"op\":\"alloc {operation} ")));
            found.unwrap_or_else(|| panic!("no {operation}")).contains("free_completed")
        };
        assert!(comes_back("reused") && comes_back("after_all") && comes_back("of_the_owner"), "{}", run.options.profile.name);
        assert!(
            !comes_back("too_early") && !comes_back("after_two") && !comes_back("after_mixed"),
            "{}",
            run.options.profile.name
        );
    }
}

/// Tests requests for given addresses, most of which find no room there.
#[test]
fn addresses() {
    let runs = read("addresses").expect("the file");
    assert_eq!(runs.len(), 2, "two versions");
    for run in &runs {
        assert_eq!(check_run(run), Agreement::Exact, "{}", run.options.profile.name);
        let asked = run.answers.iter().filter(|answer| answer.contains("\"op\":\"alloc_at"));
        let (served, refused): (Vec<&String>, Vec<&String>) = asked.partition(|answer| answer.contains("\"ok\":1"));
        let behind_others = served.iter().filter(|answer| answer.contains("free_requested")).count();
        assert!(
            served.len() > 20 && behind_others > 5 && refused.len() > 100,
            "{} {behind_others} {}",
            served.len(),
            refused.len()
        );
    }
}

#[test]
fn the_scripts_meet_what_they_are_for() {
    let count = |flavour: &str, text: &str| -> usize {
        let runs = read(flavour).expect("the file");
        runs.iter().flat_map(|run| &run.answers).filter(|answer| answer.contains(text)).count()
    };
    assert!(count("oom", "\"err\":\"oom\"") > 80);
    assert!(count("frac", "\"err\":\"oom\"") > 20);
    assert!(count("gc", "segment_free") > 60);
    assert!(count("streams", "cudaMalloc") > 100);
}

/// The order in which blocks become free depends on the streams' handles in a hash table, which the core also has.
#[test]
fn no_order_of_streams_is_tolerated() {
    let first = r#"{"i":0,"op":"alloc a 5","ok":1,"ptr":"c0+0","ev":[["free_completed","c0+0",1,0,0,0],["free_completed","c1+0",2,1,0,0],["alloc","c0+0",5,0,0,0]],"st":{"inactive_split.all":[1,4,9,8],"active.all":[1,1,1,0]}}"#;
    let other_order = first.replace(
        r#"["free_completed","c0+0",1,0,0,0],["free_completed","c1+0",2,1,0,0]"#,
        r#"["free_completed","c1+0",2,1,0,0],["free_completed","c0+0",1,0,0,0]"#,
    );
    let differs = |ours: &str| Comparison::default().line(first, ours).is_err();
    assert!(!differs(first));
    assert!(differs(&other_order), "an order of streams");
    assert!(differs(&first.replace("[1,4,9,8]", "[1,5,8,7]")), "counters of merging");
    assert!(differs(&first.replace("\"active.all\":[1,1,", "\"active.all\":[1,2,")), "a different statistic");
    assert!(differs(&first.replace("c0+0\",\"ev", "c1+0\",\"ev")), "a place");
    assert!(differs(&first.replace("[\"alloc\",\"c0+0\",5", "[\"alloc\",\"c0+0\",6")), "a different entry");
    assert!(differs(&first.replace("\"ok\":1", "\"ok\":0")), "a different answer");
}

/// A different order is tolerated only for restored checkpoints, because the order of their segments depends on
/// addresses.
#[test]
fn only_the_order_of_restored_segments_is_tolerated() {
    let line = |freed: &str, entries: &str, peak: u64| {
        format!(
            r#"{{"i":0,"op":"ckpt_load k","ok":1,"freed":[{freed}],"allocd":[],"ev":[{entries}],"st":{{"active.all":[1,{peak},5,4]}}}}"#
        )
    };
    let (a, a2, b) = (r#"["alloc","c0+0",1,0,1,0]"#, r#"["alloc","c0+512",1,0,1,0]"#, r#"["alloc","c1+0",1,0,1,0]"#);
    let first = line(r#""c0+0","c1+0""#, &[a, a2, b].join(","), 7);
    let other = line(r#""c1+0","c0+0""#, &[b, a, a2].join(","), 8);
    let mut comparison = Comparison::default();
    comparison.line(&first, &other).expect("a different order of segments");
    assert_eq!(comparison.tolerated, 1);
    let broken = |ours: &str| Comparison::default().line(&first, ours).is_err();
    assert!(broken(&line(r#""c0+0","c1+0""#, &[a, a2, b].join(","), 8)), "a peak without a visible difference in order");
    assert!(broken(&line(r#""c1+0","c0+0""#, &[b, a2, a].join(","), 7)), "an order within a segment");
    assert!(broken(&line(r#""c1+0""#, &[b, a, a2].join(","), 7)), "the freed blocks");
    assert!(broken(&other.replace("[1,8,5,4]", "[1,8,6,5]")), "a sum");
    let reset = |peak: u64| format!(r#"{{"i":1,"op":"reset_peak","ok":1,"st":{{"active.all":[1,{peak},5,4]}}}}"#);
    assert!(comparison.clone().line(&reset(1), &reset(2)).is_err(), "a peak after it was reset");
    comparison.line(&reset(1), &reset(1)).expect("equal");
}
