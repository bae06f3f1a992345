//! A1 to A5, A11, A13, A15 to A17 and A19: how the allocator reuses the memory that it keeps, and the settings that change
//! this.

use parkade::device::DeviceBackend;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use parkade::units::{Bytes, MIB};
use parkade_replay::{OutlookOptions, replay_device};

use crate::backend::AnyBackend;
use crate::scenarios::story::{Figures, Story, claim, failed, format_bytes, gib_hundredths, mib, recording, scenario};
use crate::suite::{Entry, Evidence, Trouble, Verdict};

/// A1 to A3: memory reuse, segment sizes, splitting and coalescing.
pub(super) fn whole_blocks() -> Vec<Entry> {
    vec![
        scenario("A1", "256 MB is freed and requested again: the second request does not reach the driver", reuse),
        scenario(
            "A2",
            "there are two pools; segments are 2 MiB, 20 MiB or larger multiples of 2 MiB; blocks are multiples of 512 bytes",
            segments,
        ),
        scenario(
            "A3",
            "a 3 MB request splits a free 8 MB block into 3 and 5 MB; when the 3 MB block is freed, the two coalesce into 8 MB",
            split_and_merge,
        ),
    ]
}

fn reuse(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    story.show("before");
    story.alloc("first", mib(256))?;
    story.expect_calls("256 MiB", &["cudaMalloc 256.00 MiB"])?;
    let place = story.stage.address("first")?;
    story.free("first")?;
    story.expect_calls("freed", &[])?;
    story.show("between");
    story.alloc("second", mib(256))?;
    story.expect_calls("256 MiB again", &[])?;
    story.expect_same_place(place, "second", true)?;
    story.expect("at the end", [256 << 20, 256 << 20, 0, 0, 0, 1, 1, 0])?;
    story.show("after");
    story.finish()
}

/// Requests, with the sizes of the block and of the segment that each one gets.
const SIZES: [(&str, u64, u64, u64); 8] = [
    ("256 B", 256, 512, 2 * MIB),
    ("512 B", 512, 512, 2 * MIB),
    ("768 B", 768, 1024, 2 * MIB),
    ("1 MiB", MIB, MIB, 2 * MIB),
    ("1 MiB + 1 B", MIB + 1, MIB + 512, 20 * MIB),
    // 9.99 MiB.
    ("9.99 MiB", 10_475_274, 10_475_520, 20 * MIB),
    ("10 MiB", 10 * MIB, 10 * MIB, 10 * MIB),
    ("512 MiB", 512 * MIB, 512 * MIB, 512 * MIB),
];

fn segments(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    for (name, bytes, block, segment) in SIZES {
        // The cache is empty at each request, so each one gets a new segment.
        story.alloc(name, Bytes(bytes))?;
        let made: Vec<SegmentInfo> = story.stage.segments();
        let live = made.iter().flat_map(|segment| &segment.blocks).find(|block| block.state == BlockActivity::Allocated);
        let found = (live.map_or(0, |block| block.size.get()), made.first().map_or(0, |segment| segment.total.get()));
        claim(made.len() == 1 && found == (block, segment), || {
            format!("{name}: expected a block of {block} in a segment of {segment} bytes, found {made:?}")
        })?;
        let class = made[0].class.name();
        story.say(&format!("{name:<12} a block of {block:>9} B in a segment of {segment:>9} B of the {class} pool"));
        story.free(name)?;
        story.stage.release_cached()?;
    }
    for (name, bytes, _, _) in SIZES {
        story.alloc(name, Bytes(bytes))?;
    }
    story.show("all of them together");
    story.finish()
}

fn split_and_merge(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    // Requests below 10 MiB get a 20 MiB segment: freeing the second one leaves an 8 MiB hole.
    for (name, size) in [("before", 6), ("8 MiB", 8), ("behind", 6)] {
        story.alloc(name, mib(size))?;
    }
    story.free("8 MiB")?;
    story.show("a free 8 MiB block");
    let free = |story: &Story| -> Vec<u64> {
        let segments = story.stage.segments();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockActivity::Inactive).map(|block| block.size.get() / MIB).collect()
    };
    claim(free(&story) == [8], || format!("free before: {:?} MiB", free(&story)))?;
    story.alloc("3 MiB", mib(3))?;
    story.show("3 MiB of it in use");
    claim(free(&story) == [5], || format!("free between: {:?} MiB", free(&story)))?;
    story.expect("between", [15 << 20, 20 << 20, 5 << 20, 0, 0, 1, 1, 0])?;
    story.free("3 MiB")?;
    story.show("freed again");
    claim(free(&story) == [8], || format!("free after: {:?} MiB", free(&story)))?;
    story.expect("after", [12 << 20, 20 << 20, 8 << 20, 0, 0, 1, 1, 0])?;
    story.finish()
}

/// Settings and their names in entries.
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

/// 0.0137 GiB: room for 12 MiB, but not for one more segment.
const BELOW_A_SEGMENT: Bytes = Bytes((137 << 30) / 10_000);

/// A4, A5 and A13: fragmented free memory, under the settings that the documents recommend as a cure.
///
/// The figures were recorded with PyTorch 2.11 on an H200 (facts: Experiments with PyTorch).
pub(super) fn pieces(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (name, settings, limit) in [("limited", "", Some(BELOW_A_SEGMENT)), ("unlimited", "", None)] {
        let says = "6 MiB is free in 2 MiB pieces: a 4 MiB request fails only where a limit forbids a new segment";
        entries.push(scenario(format!("A4/{name}"), says, move |backend: &AnyBackend| comb(backend, settings, limit)));
    }
    let says = "6 MiB is free in 2 MiB pieces, and a 4 MiB request succeeds because the 20 MiB page has room";
    entries.push(scenario("A4/expandable", says, |backend: &AnyBackend| {
        comb(backend, "expandable_segments:True", Some(BELOW_A_SEGMENT))
    }));
    for (name, settings) in SETTINGS {
        let says = "three separate 1 GiB holes in 6 GiB: the settings decide whether a 2 GiB request fits";
        entries.push(scenario(format!("A5/{name}"), says, move |backend: &AnyBackend| six(backend, name, settings)));
    }
    entries.push(scenario(
        "A13",
        "expandable segments serve requests that would otherwise fail because of fragmentation",
        compare,
    ));
    if backend.is_simulated() {
        // Replaying a recording uses no device.
        let says = "recorded runs that are replayed with expandable segments reserve as much memory as PyTorch did with \
                    expandable segments";
        entries.push(scenario("A13/recordings", says, |_: &AnyBackend| recordings()));
    }
    entries
}

/// Allocates six blocks of this size from one segment, and frees every other one.
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
        // The allocator enforces the limit itself and asks the driver only how much is free, for the message.
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
    // Each page of an expandable segment takes four calls; hundreds of them are only counted.
    if name == "expandable" {
        let count = |call: &str| calls.iter().filter(|made| made.starts_with(call)).count();
        let (created, released) = (count("cuMemCreate"), count("cuMemRelease"));
        story.say(&format!("the 2 GiB request: {released} pages were released and {created} were taken"));
        // Reserved falls from 308 pages to 259: the holes contained 152 whole pages, and 103 new ones are needed.
        claim((released, created) == (152, 103), || format!("{released} pages were released and {created} were taken"))?;
    } else {
        story.tell_calls("2 GiB", &calls);
    }
    claim(is_served == !matches!(name, "default" | "gc"), || format!("2 GiB served: {is_served}"))?;
    story.expect("after 2 GiB", after)?;
    story.show("after");
    story.finish()
}

/// Returns a line of the comparison: whether the request was served, and the final statistics.
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
    // Requests sizes that grow each time, as with sequences of varying length: no cached segment is ever large enough.
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
        ("A4: 4 MiB next to 2 MiB holes", BELOW_A_SEGMENT, small, false),
        ("A5: 2 GiB next to 1 GiB holes", gib_hundredths(650), large, false),
        ("100, 110 ... 290 MiB in turn", gib_hundredths(800), growing, true),
    ] {
        let (served, figures) = outcome(backend, "", limit, run)?;
        let (served_expandable, expandable) = outcome(backend, "expandable_segments:True", limit, run)?;
        claim(served == by_default && served_expandable, || {
            format!("{name}: served = {served} by default and {served_expandable} with expandable segments")
        })?;
        claim(!by_default || expandable.reserved < figures.reserved / 2, || {
            format!("{name}: reserved {} bytes by default and {} with expandable segments", figures.reserved, expandable.reserved)
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
    text.push_str("where there is little fragmentation, expandable segments cost slightly more, because they map whole pages\n");
    Ok(Evidence::text(text))
}

/// A11, A15, A16 and A19: settings and calls about which the documents are wrong.
pub(super) fn settings() -> Vec<Entry> {
    vec![
        scenario(
            "A11",
            "an oversize block serves only requests within 20 MiB of its size, and those get the entire block",
            oversize,
        ),
        scenario("A11/values", "with a higher max_split_size_mb, more blocks are split, not fewer", higher_is_not_better),
        scenario(
            "A15",
            "empty_cache releases segments that are entirely free; live blocks stay, and so do free blocks that share a \
             segment with one",
            empty_cache,
        ),
        scenario(
            "A16",
            "a cached block does not serve a different stream; its memory must be returned to the driver first",
            streams_do_not_share,
        ),
        scenario(
            "A19",
            "CUDA_VISIBLE_DEVICES does not limit memory and is not a setting of the \
             allocator; the memory fraction is the limit",
            visible_devices,
        ),
    ]
}

fn oversize(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "max_split_size_mb:128", None)?;
    story.alloc("200 MiB", mib(200))?;
    story.free("200 MiB")?;
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("4 MiB", mib(4))?;
    story.expect_calls(
        "a request for 4 MiB is not served from the 200 MiB block, so none of that block is wasted",
        &["cudaMalloc 20.00 MiB"],
    )?;
    story.alloc("180 MiB", mib(180))?;
    story.expect_calls(
        "a request for 180 MiB is not served either: the block is 20 MiB larger, which is too much",
        &["cudaMalloc 180.00 MiB"],
    )?;
    story.alloc("180.5 MiB", Bytes(361 * MIB / 2))?;
    story.expect_calls("a request for 180.5 MiB takes the entire 200 MiB block", &[])?;
    // 4 MiB in a 20 MiB segment, 180 MiB in a separate one, and 180.5 MiB in the 200 MiB block.
    story.expect("after", [384 << 20, 400 << 20, 16 << 20, 0, 0, 3, 3, 0])?;
    story.show("after");
    story.finish()
}

fn higher_is_not_better(backend: &AnyBackend) -> Verdict {
    let mut evidence = Evidence::default();
    for (settings, reserved, split) in [
        ("max_split_size_mb:128", 220_i64 << 20, 16_i64 << 20),
        ("max_split_size_mb:256", 400 << 20, 196 << 20),
        ("", 400 << 20, 196 << 20),
    ] {
        let mut story = Story::new(backend, settings, None)?;
        story.alloc("200 MiB", mib(200))?;
        story.free("200 MiB")?;
        story.alloc("4 MiB", mib(4))?;
        story.alloc("200 MiB again", mib(200))?;
        let found = story.figures();
        claim((found.reserved, found.split_free) == (reserved, split), || format!("{settings}: {found:?}"))?;
        story.show("200 MiB, freed, then 4 and 200 MiB");
        let told = story.finish()?;
        evidence.text.push_str(&told.text);
        evidence.text.push('\n');
        evidence.operations += told.operations;
    }
    Ok(evidence)
}

fn empty_cache(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    for (name, size) in [("whole", 100), ("live", 64), ("part 1", 6), ("part 2", 6), ("part 3", 8)] {
        story.alloc(name, mib(size))?;
    }
    for name in ["whole", "part 1", "part 3"] {
        story.free(name)?;
    }
    story.expect("before", [70 << 20, 184 << 20, 14 << 20, 0, 0, 3, 3, 0])?;
    story.show("before");
    let _ = story.stage.calls();
    let (live, part) = (story.stage.address("live")?, story.stage.address("part 2")?);
    story.stage.release_cached()?;
    story.expect_calls("empty_cache", &["cudaFree"])?;
    story.expect("after", [70 << 20, 84 << 20, 14 << 20, 0, 0, 2, 3, 1])?;
    story.expect_same_place(live, "live", true)?;
    story.expect_same_place(part, "part 2", true)?;
    story.show("after");
    story.finish()
}

fn streams_do_not_share(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(300)))?;
    let [_, first, second, _] = story.stage.streams();
    story.stage.alloc_on("on stream 1", mib(200), first)?.served()?;
    story.free("on stream 1")?;
    story.show("before");
    let _ = story.stage.calls();
    story.stage.alloc_on("on stream 2", mib(100), second)?.served()?;
    story.expect_calls("a request for 100 MiB on stream 2 while 200 MiB is cached on stream 1", &["cudaMalloc 100.00 MiB"])?;
    story.show("between");
    story.stage.alloc_on("more on stream 2", mib(150), second)?.served()?;
    story.expect_calls(
        "a request for 150 MiB more, at the limit: memory moves from one stream to the other only through the driver",
        &["cudaFree", "cudaMalloc 150.00 MiB"],
    )?;
    story.expect("after", [250 << 20, 250 << 20, 0, 1, 0, 2, 3, 1])?;
    story.show("after");
    story.count(4);
    story.finish()
}

fn visible_devices(backend: &AnyBackend) -> Verdict {
    let mut text = String::new();
    let Err(error) = Settings::from_environment("CUDA_VISIBLE_DEVICES:0") else {
        return Err(Trouble::fail("CUDA_VISIBLE_DEVICES was accepted as a setting of the allocator"));
    };
    text.push_str(&format!("CUDA_VISIBLE_DEVICES:0 as a setting: {error}\n"));
    let mut story = Story::new(backend, "", None)?;
    let fraction = story.stage.core().memory_fraction();
    claim(fraction >= 1.0, || format!("with no setting the fraction is {fraction}"))?;
    story.say("with no setting the memory fraction is 1: no limit");
    story.stage.core().set_memory_fraction(0.8).map_err(|error| Trouble::fail(format!("{error:?}")))?;
    let total = story.stage.device().look().total_memory().get();
    let limit = story.stage.core().heap().limit();
    let is_right = limit.is_some_and(|limit| limit.get().abs_diff(total / 5 * 4) <= 8);
    claim(is_right, || format!("with {total} bytes in total, the limit is {limit:?}"))?;
    story.say("after set_per_process_memory_fraction(0.8) the limit is 8/10 of the device");
    let mut evidence = story.finish()?;
    evidence.text.insert_str(0, &text);
    Ok(evidence)
}

/// The number of steps in the workload.
const STEPS: u64 = 16;
/// The peak of live memory: the weights and the last step's activations.
const MOST_LIVE: u64 = 256 + activations(STEPS - 1) * 3 + 6;

/// The size in MiB of a step's first activation; sequences grow from step to step.
const fn activations(step: u64) -> u64 {
    40 + 12 * step
}

/// A17: the same workload with and without reserving its memory first.
pub(super) fn reserved_first() -> Vec<Entry> {
    let says = "reserving memory before the workload needs fewer driver calls and less reserved memory, but none of it can be \
                released while the workload runs";
    vec![scenario("A17", says, warm_up)]
}

/// Allocates weights that stay, then runs steps with three growing activations each.
fn work(story: &mut Story) -> Result<(), Trouble> {
    story.alloc("weights", mib(256))?;
    for step in 0..STEPS {
        for number in 1..=3 {
            story.alloc(&format!("activation {number}"), mib(activations(step) + 2 * (number - 1)))?;
        }
        for number in 1..=3 {
            story.free(&format!("activation {number}"))?;
        }
    }
    Ok(())
}

/// The cost of one way of running the workload.
struct Cost {
    peak_reserved: i64,
    mallocs: i64,
    frees: i64,
    retries: i64,
    kept: i64,
}

fn run(
    backend: &AnyBackend,
    settings: &str,
    limit: Option<Bytes>,
    reserve: Option<Bytes>,
    evidence: &mut Evidence,
) -> Result<Cost, Trouble> {
    let mut story = Story::new(backend, settings, limit)?;
    if let Some(bytes) = reserve {
        story.alloc("reservation", bytes)?;
        story.free("reservation")?;
        story.say(&format!("{} reserved before the workload", format_bytes(bytes.get())));
    }
    work(&mut story)?;
    story.show("after the workload");
    let stats = story.stage.stats();
    let reserved = stats.family(Family::ReservedBytes).all.peak;
    let (mallocs, frees, retries) = (stats.num_device_alloc, stats.num_device_free, stats.num_alloc_retries);
    story.stage.release_cached()?;
    let kept = story.figures().reserved;
    let told = story.finish()?;
    evidence.text.push_str(&told.text);
    evidence.text.push('\n');
    evidence.operations += told.operations;
    Ok(Cost { peak_reserved: reserved, mallocs, frees, retries, kept })
}

fn warm_up(backend: &AnyBackend) -> Verdict {
    let mut evidence = Evidence::default();
    let limit = Some(mib(1500));
    let ways = [
        ("on the fly", "", None, None),
        ("on the fly, limit 1500 MiB", "", limit, None),
        ("reserved before", "", limit, Some(mib(MOST_LIVE))),
        ("expandable, on the fly", "expandable_segments:True", limit, None),
    ];
    let mut table = format!(
        "{:<28} {:>18} {:>8} {:>6} {:>8} {:>30}\n",
        "", "peak reserved", "mallocs", "frees", "retries", "reserved after empty_cache"
    );
    let mut costs = Vec::new();
    for (name, settings, limit, reserve) in ways {
        let cost = run(backend, settings, limit, reserve, &mut evidence)?;
        let Cost { peak_reserved, mallocs, frees, retries, kept } = cost;
        table.push_str(&format!("{name:<28} {peak_reserved:>16} B {mallocs:>8} {frees:>6} {retries:>8} {kept:>28} B\n"));
        costs.push(cost);
    }
    let [plain, limited, reserved, _] = &costs[..] else { return Err(Trouble::fail("four ways were run")) };
    claim(reserved.mallocs == 1 && reserved.retries == 0, || {
        format!("{} cudaMallocs were made with the reservation", reserved.mallocs)
    })?;
    claim(reserved.peak_reserved == mib(MOST_LIVE).get() as i64, || format!("{} reserved", reserved.peak_reserved))?;
    claim(plain.mallocs == 1 + 3 * STEPS as i64 && plain.peak_reserved > 5 * reserved.peak_reserved, || table.clone())?;
    claim(limited.retries > 0, || "the limit was never reached".to_owned())?;
    // The downside is that the weights keep the entire reservation; without it, only the weights stay reserved.
    claim(reserved.kept > plain.kept, || table.clone())?;
    evidence.text.push_str(&table);
    Ok(evidence)
}
