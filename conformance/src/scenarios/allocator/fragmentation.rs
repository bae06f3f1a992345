//! A4, A5 and A13: memory that is free in pieces, under the settings that are said to help.
//!
//! The figures are those of PyTorch 2.11 on an H200 (facts: Experiments with PyTorch).

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_replay::{OutlookOptions, replay_device};

use crate::scenarios::recordings::recording;
use crate::scenarios::story::{Figures, Story, claim, failed, gib_hundredths, mib, scenario};

/// Settings, and their names in entries.
pub(crate) const SETTINGS: [(&str, &str); 5] = [
    ("default", ""),
    ("split128", "max_split_size_mb:128"),
    ("split2048", "max_split_size_mb:2048"),
    ("gc", "garbage_collection_threshold:0.8"),
    ("expandable", "expandable_segments:True"),
];

/// Programs, and their `reserved_bytes.all.peak` under PyTorch 2.11 on the H200, by default and with expandable segments (from the
/// recordings' statistics).
const EXPANDABLE: [(&str, i64, i64); 3] = [
    ("gpt2_varlen", 21_986_541_568, 15_875_440_640),
    ("resnet50_sweep", 7_113_539_584, 5_876_219_904),
    ("deep_mlp", 2_778_726_400, 2_795_503_616),
];

/// 0.0137 GiB: room for 12 MiB, but not for another segment.
const BELOW_A_SEGMENT: Bytes = Bytes((137 << 30) / 10_000);

pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (name, settings, limit) in [("limited", "", Some(BELOW_A_SEGMENT)), ("unlimited", "", None)] {
        let says = "6 MiB are free in pieces of 2 MiB: 4 MiB are refused only where a limit forbids a new segment";
        entries.push(scenario(format!("A4/{name}"), says, move |backend: &AnyBackend| comb(backend, settings, limit)));
    }
    let says = "6 MiB are free in pieces of 2 MiB, and 4 MiB are served, since the page of 20 MiB has room";
    entries.push(scenario("A4/expandable", says, |backend: &AnyBackend| {
        comb(backend, "expandable_segments:True", Some(BELOW_A_SEGMENT))
    }));
    for (name, settings) in SETTINGS {
        let says = "three separate holes of 1 GiB in 6 GiB: the settings decide whether 2 GiB fit";
        entries.push(scenario(format!("A5/{name}"), says, move |backend: &AnyBackend| six(backend, name, settings)));
    }
    entries.push(scenario("A13", "expandable segments serve what fragmentation refuses", compare));
    if backend.is_simulated() {
        // No device takes part in the replay of a recording.
        let says = "recorded runs, replayed with expandable segments, reserve what PyTorch reserved with them";
        entries.push(scenario("A13/recordings", says, |_: &AnyBackend| recordings()));
    }
    entries
}

/// Six blocks of this size, cut from one segment, every other one freed.
fn make_comb(story: &mut Story, piece: Bytes) -> Result<(), Trouble> {
    story.alloc("all", Bytes(6 * piece.get()))?;
    story.free("all")?;
    for number in 1..=6 {
        story.alloc(&format!("piece {number}"), piece)?;
    }
    for number in [2, 4, 6] {
        story.free(&format!("piece {number}"))?;
    }
    Ok(())
}

fn comb(backend: &AnyBackend, settings: &str, limit: Option<Bytes>) -> Verdict {
    let mut story = Story::new(backend, settings, limit)?;
    make_comb(&mut story, mib(2))?;
    let is_expandable = !settings.is_empty();
    let holes =
        if is_expandable { [6_291_456, 20_971_520, 0, 0, 0, 0, 1, 0] } else { [6_291_456, 12_582_912, 6_291_456, 0, 0, 1, 1, 0] };
    story.expect("with holes", holes)?;
    story.show("before");
    let _ = story.stage.calls();
    if is_expandable {
        story.alloc("4 MiB", mib(4))?;
        story.expect_calls("4 MiB", &[])?;
        story.expect("served", [10_485_760, 20_971_520, 0, 0, 0, 0, 1, 0])?;
    } else if limit.is_some() {
        story.refuse("4 MiB", mib(4))?;
        // The allocator enforces the limit itself: the driver is only asked how much is free, for the message.
        story.expect_calls("4 MiB", &["cudaMemGetInfo"])?;
        story.expect("refused", [6_291_456, 12_582_912, 6_291_456, 1, 1, 1, 1, 0])?;
    } else {
        story.alloc("4 MiB", mib(4))?;
        story.expect_calls("4 MiB", &["cudaMalloc 20.00 MiB"])?;
        story.expect("served", [10_485_760, 33_554_432, 23_068_672, 0, 0, 2, 2, 0])?;
    }
    story.show("after");
    story.finish()
}

/// PyTorch's statistics before and after the 2 GiB.
fn six_on_the_h200(name: &str) -> ([i64; 8], [i64; 8]) {
    let split = [3_221_225_472, 6_442_450_944, 3_221_225_472, 0, 0, 1, 1, 0];
    let whole = [3_221_225_472, 6_442_450_944, 0, 0, 0, 6, 7, 1];
    match name {
        "split128" => (whole, [5_368_709_120, 6_442_450_944, 0, 0, 0, 5, 8, 3]),
        "split2048" => (whole, [5_368_709_120, 5_368_709_120, 0, 1, 0, 4, 8, 4]),
        "expandable" => ([3_221_225_472, 6_459_228_160, 0, 0, 0, 0, 1, 0], [5_368_709_120, 5_431_623_680, 0, 1, 0, 0, 2, 3]),
        _ => (split, [3_221_225_472, 6_442_450_944, 3_221_225_472, 1, 1, 1, 1, 0]),
    }
}

fn six(backend: &AnyBackend, name: &str, settings: &str) -> Verdict {
    let mut story = Story::new(backend, settings, Some(gib_hundredths(650)))?;
    make_comb(&mut story, mib(1024))?;
    let (before, after) = six_on_the_h200(name);
    story.expect("with holes", before)?;
    story.show("before");
    let _ = story.stage.calls();
    let is_served = story.ask("2 GiB", mib(2048))?;
    let calls = story.stage.calls();
    // Each page of an expandable segment takes four calls: hundreds of them are only counted.
    if name == "expandable" {
        let count = |call: &str| calls.iter().filter(|made| made.starts_with(call)).count();
        let (created, released) = (count("cuMemCreate"), count("cuMemRelease"));
        story.say(&format!("2 GiB: {released} pages given back, {created} taken"));
        // Reserved falls from 308 pages to 259: the holes had 152 whole pages, and 103 new ones are needed.
        claim((released, created) == (152, 103), || format!("{released} pages given back, {created} taken"))?;
    } else {
        story.tell_calls("2 GiB", &calls);
    }
    claim(is_served == !matches!(name, "default" | "gc"), || format!("2 GiB served: {is_served}"))?;
    story.expect("after 2 GiB", after)?;
    story.show("after");
    story.finish()
}

/// A line of the comparison: whether the request was served, and the statistics at the end.
fn outcome(
    backend: &AnyBackend,
    settings: &str,
    limit: Bytes,
    run: fn(&mut Story) -> Result<bool, Trouble>,
) -> Result<(bool, Figures), Trouble> {
    let mut story = Story::new(backend, settings, Some(limit))?;
    let is_served = run(&mut story)?;
    let figures = story.figures();
    story.finish()?;
    Ok((is_served, figures))
}

fn compare(backend: &AnyBackend) -> Verdict {
    type Run = fn(&mut Story) -> Result<bool, Trouble>;
    let small: Run = |story| {
        make_comb(story, mib(2))?;
        story.ask("4 MiB", mib(4))
    };
    let large: Run = |story| {
        make_comb(story, mib(1024))?;
        story.ask("2 GiB", mib(2048))
    };
    // Sizes that grow each time, as with sequences of changing length: no cached segment is ever large enough.
    let growing: Run = |story| {
        for step in 0..20 {
            story.alloc("activations", mib(100 + 10 * step))?;
            story.free("activations")?;
        }
        Ok(true)
    };
    let mut evidence = Evidence::default();
    let mut line = |text: String| evidence.text.push_str(&(text + "\n"));
    line(format!("{:<34} {:>22} {:>22}", "", "default", "expandable"));
    for (name, limit, run, by_default) in [
        ("A4: 4 MiB beside 2 MiB holes", BELOW_A_SEGMENT, small, false),
        ("A5: 2 GiB beside 1 GiB holes", gib_hundredths(650), large, false),
        ("100, 110 ... 290 MiB in turn", gib_hundredths(800), growing, true),
    ] {
        let (served, figures) = outcome(backend, "", limit, run)?;
        let (served_expandable, expandable) = outcome(backend, "expandable_segments:True", limit, run)?;
        claim(served == by_default && served_expandable, || format!("{name}: served {served}, expandable {served_expandable}"))?;
        claim(!by_default || expandable.reserved < figures.reserved / 2, || {
            format!("{name}: reserved {} and, expandable, {}", figures.reserved, expandable.reserved)
        })?;
        let cell =
            |served: bool, figures: Figures| format!("{} {:>13} B", if served { "served " } else { "refused" }, figures.reserved);
        line(format!("{name:<34} {} {}", cell(served, figures), cell(served_expandable, expandable)));
    }
    Ok(evidence)
}

fn recordings() -> Verdict {
    let settings = Settings::from_environment("expandable_segments:True").map_err(failed)?;
    let mut text = format!("{:<16} {:>20} {:>20} {:>10}\n", "peak reserved", "default", "expandable", "change");
    for (name, by_default, with_expandable) in EXPANDABLE {
        let shipped = recording(&format!("{name}.default"))?;
        let (own, settings) = (shipped.options.clone(), settings.clone());
        let profile = &Profile::PYTORCH_2_11;
        let options = OutlookOptions { own, settings, limit_bytes: None, capacity_bytes: None, profile };
        let outlook = replay_device(shipped.device(), &options, &mut |_| ());
        let outlook = outlook.map_err(|error| Trouble::fail(format!("{name}: {error}")))?;
        let found = (outlook.requests.recorded_peak_reserved_bytes, outlook.prediction.peak_reserved_bytes());
        claim(found == (by_default, with_expandable), || {
            format!("{name}: expected {by_default} bytes by default and {with_expandable} expandable, found {found:?}")
        })?;
        let change = (found.1 - found.0) as f64 / found.0 as f64 * 100.0;
        text.push_str(&format!("{name:<16} {:>18} B {:>18} B {change:>+9.1}%\n", found.0, found.1));
    }
    text.push_str("where little is fragmented, whole pages cost a little more\n");
    Ok(Evidence::text(text))
}
