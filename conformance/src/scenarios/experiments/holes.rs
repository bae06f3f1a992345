//! C1 to C3: the experiments of the documents under 39.59 GiB, with PyTorch 2.11's figures on an H200 for each setting
//! (facts: Experiments with PyTorch).

use crate::backend::AnyBackend;
use crate::suite::{Entry, Trouble, Verdict};
use parkade::units::Bytes;

use crate::scenarios::allocator::SETTINGS;
use crate::scenarios::story::{Story, claim, gib_hundredths, scenario};

/// The memory of the documents' GPU, as a limit.
const LIMIT: Bytes = gib_hundredths(3959);

pub(super) fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (name, settings) in SETTINGS {
        let mut add = |row: &str, says, check: fn(&AnyBackend, &str, &str) -> Verdict| {
            entries.push(scenario(format!("{row}/{name}"), says, move |backend: &AnyBackend| check(backend, name, settings)));
        };
        add("C1", "39 tensors of 1 GB, six of them freed, then 2 GB: served by a new segment, not by combining the six", equal);
        add(
            "C2",
            "0.9, 1.1, 0.5 and 2 GB in turn until full, three freed, then 3.4 GiB: served, since the three were whole segments",
            mixed,
        );
        add("C3", "100 tensors of 4 MB, every other one freed, then 100 MB: served by a new segment", alternating);
    }
    let says = "C3 under 0.4 GiB: 0.195 GiB are free in pieces, and 100 MB are refused";
    entries.push(scenario("C3/limited", says, alternating_limited));
    entries
}

/// The original positions of what `del tensors[i]` deletes for each i, while the list gets shorter.
fn deleted(count: usize, indices: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    indices.into_iter().map(|index| left.remove(index)).collect()
}

fn equal(backend: &AnyBackend, name: &str, settings: &str) -> Verdict {
    // Filled, with holes, and with the 2 GB.
    let (filled, holes, done) = match name {
        "expandable" => (
            [39_936_000_000, 39_950_745_600, 0, 0, 0, 0, 39, 0],
            [33_792_000_000, 39_950_745_600, 0, 0, 0, 0, 39, 0],
            [35_840_000_000, 41_984_983_040, 0, 0, 0, 0, 40, 0],
        ),
        "split128" => (
            [39_994_785_792, 39_994_785_792, 0, 0, 0, 39, 39, 0],
            [33_841_741_824, 39_994_785_792, 0, 0, 0, 39, 39, 0],
            [35_890_659_328, 42_043_703_296, 0, 0, 0, 40, 40, 0],
        ),
        _ => (
            [39_936_000_000, 39_994_785_792, 58_785_792, 0, 0, 39, 39, 0],
            [33_792_000_000, 39_994_785_792, 49_741_824, 0, 0, 39, 39, 0],
            if name == "gc" {
                [35_840_917_504, 35_890_659_328, 49_741_824, 0, 0, 34, 40, 6]
            } else {
                [35_840_917_504, 42_043_703_296, 49_741_824, 0, 0, 40, 40, 0]
            },
        ),
    };
    let mut story = Story::new(backend, settings, Some(LIMIT))?;
    for number in 0..39 {
        story.alloc(&format!("tensor {number:02}"), Bytes(1_024_000_000))?;
    }
    story.expect("filled", filled)?;
    story.show_figures("filled");
    for place in deleted(39, (5..35).step_by(5)) {
        story.free(&format!("tensor {place:02}"))?;
    }
    story.expect("with holes", holes)?;
    story.show("with holes");
    let _ = story.stage.calls();
    story.alloc("tensor of 2 GB", Bytes(2_048_000_000))?;
    if name != "expandable" {
        let frees = if name == "gc" { 6 } else { 0 };
        let mut expected = vec!["cudaFree"; frees];
        expected.push("cudaMalloc 1.91 GiB");
        story.expect_calls("2 GB", &expected)?;
    }
    story.expect("with 2 GB", done)?;
    story.show("with 2 GB");
    story.finish()
}

fn mixed(backend: &AnyBackend, name: &str, settings: &str) -> Verdict {
    let (filled, holes, done) = match name {
        "expandable" => (
            [41_339_023_360, 41_355_837_440, 0, 1, 1, 0, 35, 0],
            [37_688_303_616, 41_355_837_440, 0, 1, 1, 0, 35, 0],
            [41_339_023_360, 41_397_780_480, 0, 2, 1, 0, 36, 3],
        ),
        "split128" => (
            [41_357_934_592, 41_357_934_592, 0, 1, 1, 35, 35, 0],
            [37_706_792_960, 41_357_934_592, 0, 1, 1, 35, 35, 0],
            [41_357_934_592, 41_357_934_592, 0, 1, 1, 33, 36, 3],
        ),
        _ => (
            [41_342_820_352, 41_357_934_592, 15_114_240, 1, 1, 35, 35, 0],
            [37_691_678_720, 41_357_934_592, 15_114_240, 1, 1, 35, 35, 0],
            // Garbage collection releases the three before anything is refused, so there is no retry.
            [41_342_820_352, 41_357_934_592, 15_114_240, if name == "gc" { 1 } else { 2 }, 1, 33, 36, 3],
        ),
    };
    // The document's shapes, of 4-byte floats: (int(0.9 * 1024 * 256), 1024) and so on.
    let sizes = [235_929 * 1024 * 4, 288_358 * 1024 * 4, 262_144 * 512 * 4, 262_144 * 2048 * 4];
    let mut story = Story::new(backend, settings, Some(LIMIT))?;
    let mut count = 0;
    while story.ask(&format!("tensor {count:02}"), Bytes(sizes[count % 4]))? {
        count += 1;
    }
    claim(count == 35, || format!("{count} tensors fit"))?;
    story.expect("filled", filled)?;
    story.show_figures("filled");
    for place in deleted(count, [0, 10, 20]) {
        story.free(&format!("tensor {place:02}"))?;
    }
    story.expect("with holes", holes)?;
    story.show("with holes");
    let _ = story.stage.calls();
    story.alloc("tensor of 3.4 GiB", Bytes(891_289 * 1024 * 4))?;
    if name != "expandable" {
        story.expect_calls("3.4 GiB", &["cudaFree", "cudaFree", "cudaFree", "cudaMalloc 3.40 GiB"])?;
    }
    story.expect("with 3.4 GiB", done)?;
    story.show("with 3.4 GiB");
    story.finish()
}

/// 100 tensors of 1000 x 1000 floats, every other one freed.
fn fill_and_free(story: &mut Story) -> Result<(), Trouble> {
    for number in 0..100 {
        story.alloc(&format!("tensor {number:02}"), Bytes(4_000_000))?;
    }
    for number in (0..100).step_by(2) {
        story.free(&format!("tensor {number:02}"))?;
    }
    Ok(())
}

fn alternating(backend: &AnyBackend, name: &str, settings: &str) -> Verdict {
    let (holes, done) = if name == "expandable" {
        ([200_012_800, 419_430_400, 0, 0, 0, 0, 20, 0], [300_013_056, 503_316_480, 0, 0, 0, 0, 21, 0])
    } else {
        ([209_715_200, 419_430_400, 209_715_200, 0, 0, 20, 20, 0], [310_378_496, 520_093_696, 209_715_200, 0, 0, 21, 21, 0])
    };
    let mut story = Story::new(backend, settings, Some(LIMIT))?;
    fill_and_free(&mut story)?;
    story.expect("with holes", holes)?;
    story.show("with holes");
    let _ = story.stage.calls();
    story.alloc("tensor of 100 MB", Bytes(100_000_000))?;
    if name != "expandable" {
        story.expect_calls("100 MB", &["cudaMalloc 96.00 MiB"])?;
    }
    story.expect("with 100 MB", done)?;
    story.show("with 100 MB");
    story.finish()
}

fn alternating_limited(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(gib_hundredths(40)))?;
    fill_and_free(&mut story)?;
    story.show("with holes");
    let _ = story.stage.calls();
    story.refuse("tensor of 100 MB", Bytes(100_000_000))?;
    // No segment is free as a whole, so there is nothing to release.
    story.expect_calls("100 MB", &["cudaMemGetInfo"])?;
    story.expect("refused", [209_715_200, 419_430_400, 209_715_200, 1, 1, 20, 20, 0])?;
    story.show_figures("after");
    story.finish()
}
