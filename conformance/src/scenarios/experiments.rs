//! Scenarios C: the experiments and the log in the documents.

use parkade::stats::Family;
use parkade::texts::format_bytes;
use parkade::units::{Bytes, StreamId};
use parkade_recording::message::{OutOfMemoryMessage, Size};
use parkade_replay::{Operation, Requests};

use crate::backend::AnyBackend;
use crate::scenarios::allocator::SETTINGS;
use crate::scenarios::story::{Finding, Row, Story, claim, gib_hundredths, mib, recording, scenario};
use crate::suite::{Entry, Evidence, Trouble, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "C1",
        claim: "Of 39 tensors of 1 GB on a 39.59 GiB device, six are deleted; 2 GB then fits because the allocator combines the \
                deleted tensors' cached blocks.",
        finding: Finding::Different,
        found: "2 GB fits without a retry, but in a 40th segment from the driver: reserved memory grows from 39,994,785,792 to \
                42,043,703,296 bytes. Blocks in different segments are never combined.",
    },
    Row {
        id: "C2",
        claim: "Tensors of 0.9, 1.1, 0.5 and 2 GB are allocated in turn until the memory is full; three are deleted; a 3.4 GiB \
                request then fails because of fragmentation.",
        finding: Finding::Refuted,
        found: "35 tensors fit. The 3.4 GiB request then succeeds after one retry: each deleted tensor was an entire segment, \
                and \
                cudaFree returns all of them.",
    },
    Row {
        id: "C3",
        claim: "Of 100 tensors of 4 MB, every other one is freed; a 100 MB request then fails because of fragmentation.",
        finding: Finding::Different,
        found: "209,715,200 bytes are free in pieces, none of which is large enough for 100 MB, but the device has room for a \
                new segment. \
                The request fails only under a limit of 409.60 MiB.",
    },
    Row {
        id: "C4",
        claim: "\"Tried to allocate 4.88 GiB (39.59 GiB total; 28.60 GiB allocated; 3.92 GiB free; 33.95 GiB reserved)\" is a \
                sign of fragmentation.",
        finding: Finding::Reproduced,
        found: "5.35 GiB is reserved but not allocated, more than the 4.88 GiB that was requested. parkade reads both this \
                old form of the message and today's.",
    },
    Row {
        id: "C5",
        claim: "Is ResNet-50's peak, forward and backward, linear in the batch size (1 to 64)?",
        finding: Finding::Reproduced,
        found: "Yes, from batch size 2 upwards: 86 to 87 MB per sample. The recorded peaks are reproduced to the byte.",
    },
    Row {
        id: "C6",
        claim: "Checkpointing lowers the peak of a perceptron with 20 layers, each 4096 wide.",
        finding: Finding::Refuted,
        found: "2,755,265,536 bytes without checkpointing, 2,756,314,112 with it: 20 activations of 1 MiB are small compared \
                with the weights and their gradients.",
    },
];

pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [holes(), messages(), recorded_peaks(backend)].into_iter().flatten().collect()
}

/// The memory of the GPU in the documents, as a limit.
const LIMIT: Bytes = gib_hundredths(3959);

/// C1 to C3: the experiments of the documents under 39.59 GiB, with the figures of PyTorch 2.11 on an H200 for each
/// setting (facts: Experiments with PyTorch).
fn holes() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (name, settings) in SETTINGS {
        let mut add = |row: &str, says, check: fn(&AnyBackend, &str, &str) -> Verdict| {
            entries.push(scenario(format!("{row}/{name}"), says, move |backend: &AnyBackend| check(backend, name, settings)));
        };
        add(
            "C1",
            "39 tensors of 1 GB are allocated, and six of them are freed: a request for 2 GB is served by a new segment, not by \
             combining the six",
            equal,
        );
        add(
            "C2",
            "tensors of 0.9, 1.1, 0.5 and 2 GB in turn fill the device, and three are freed: a request for 3.4 GiB is served, \
             because the three were entire segments",
            mixed,
        );
        add(
            "C3",
            "100 tensors of 4 MB are allocated, and every other one is freed: a request for 100 MB is served by a new segment",
            alternating,
        );
    }
    let says = "experiment C3 with a limit of 0.4 GiB: 0.195 GiB is free in pieces, and the 100 MB request fails";
    entries.push(scenario("C3/limited", says, alternating_limited));
    entries
}

/// Returns the original positions of the elements that `del tensors[i]` deletes for each i, while the list gets
/// shorter.
fn deleted(count: usize, indices: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    indices.into_iter().map(|index| left.remove(index)).collect()
}

fn equal(backend: &AnyBackend, name: &str, settings: &str) -> Verdict {
    // Statistics when the memory is full, with holes, and with the 2 GB.
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
    // The document's shapes of 4-byte floats: (int(0.9 * 1024 * 256), 1024) and so on.
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
    // No segment is entirely free, so nothing can be released.
    story.expect_calls("100 MB", &["cudaMemGetInfo"])?;
    story.expect("refused", [209_715_200, 419_430_400, 209_715_200, 1, 1, 20, 20, 0])?;
    story.show_figures("after");
    story.finish()
}

/// The log as it is in the documents, including line breaks.
const LOG: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59
GiB total capacity; 28.60 GiB already allocated; 3.92 GiB free; 33.95 GiB
reserved in total by PyTorch). If reserved memory is substantially greater than allocated memory, consider
setting max_split_size_mb to counteract fragmentation. Refer to PyTorch's Memory
Management and PYTORCH_CUDA_ALLOC_CONF documentation.";

/// C4: the out-of-memory message in the documents and today's message.
fn messages() -> Vec<Entry> {
    vec![
        scenario(
            "C4",
            "in the documents' log, 5.35 GiB is reserved but not allocated, more than the 4.88 GiB that was requested",
            |_| log(),
        ),
        scenario("C4/today", "today's message for a heap with 60 MiB free in pieces leads to the same diagnosis", today),
    ]
}

fn read(text: &str) -> Result<OutOfMemoryMessage, Trouble> {
    OutOfMemoryMessage::parse(text).map_err(|error| Trouble::fail(format!("{text}: {error}")))
}

/// Returns a figure; every complete message has the figures that are shown.
fn shown(size: Option<Size>) -> String {
    size.map_or_else(|| "missing".to_owned(), |size| size.to_string())
}

fn diagnosis(message: &OutOfMemoryMessage) -> String {
    let verdict = if message.is_fragmentation() {
        "at least the size that was tried: fragmentation"
    } else {
        "less than the size that was tried: capacity"
    };
    format!(
        "tried         {:>12}\nallocated     {:>12}\nreserved      {:>12}\nfragmentation {:>12}, {verdict}\n",
        shown(message.tried),
        shown(message.allocated),
        shown(message.reserved),
        shown(message.unallocated),
    )
}

fn log() -> Verdict {
    let message = read(LOG)?;
    let gib = |hundredths: u64| format_bytes((hundredths << 30).div_ceil(100));
    let figures = [message.tried, message.total, message.allocated, message.free, message.reserved, message.unallocated];
    let expected = [488, 3959, 2860, 392, 3395, 535].map(gib);
    claim(figures.map(shown) == expected, || format!("{message:?}"))?;
    claim(message.device == Some(2) && message.is_fragmentation(), || format!("{message:?}"))?;
    Ok(Evidence::text(format!("GPU 2 of {}, {} free\n{}", shown(message.total), shown(message.free), diagnosis(&message))))
}

fn today(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(120)))?;
    story.alloc("all", mib(120))?;
    story.free("all")?;
    for number in 1..=6 {
        story.alloc(&format!("piece {number}"), mib(20))?;
    }
    for number in [1, 3, 5] {
        story.free(&format!("piece {number}"))?;
    }
    story.show("60 MiB free in pieces");
    let text = story.stage.alloc("40 MiB", mib(40))?.refusal()?;
    story.measure(&text);
    let message = read(&text)?;
    let figures = [message.tried, message.allocated, message.reserved, message.unallocated]
        .map(|size| size.map_or(0, |size| size.bytes >> 20));
    claim(figures == [40, 60, 120, 60] && message.limit.is_some_and(|limit| limit.bytes == 120 << 20), || {
        format!("{message:?}")
    })?;
    claim(message.is_fragmentation(), || format!("{message:?}"))?;
    story.say(&diagnosis(&message));
    story.finish()
}

/// The batch sizes in the recording resnet50_sweep, and the `allocated_bytes.all.peak` that PyTorch 2.11 printed for
/// each on the H200; the peak was reset before each batch size.
const RESNET50: [(u64, i64); 7] = [
    (1, 345_478_656),
    (2, 468_252_160),
    (4, 640_915_456),
    (8, 985_864_192),
    (16, 1_679_332_864),
    (32, 3_065_013_760),
    (64, 5_844_985_344),
];
/// The same for deep_mlp, without and with checkpointing.
const DEEP_MLP: [(&str, i64); 2] = [("without checkpointing", 2_755_265_536), ("with checkpointing", 2_756_314_112)];
/// The length of the longest bar in characters.
const WIDTH: i64 = 60;

/// C5 and C6: the peaks of recorded runs, from their replays.
///
/// A recording needs no device, so these entries belong to the simulated backend, on which the recordings are replayed.
fn recorded_peaks(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    vec![
        scenario("C5", "from batch size 2 upwards, ResNet-50's peak grows by 86 to 87 MB per sample", sweep),
        scenario(
            "C6",
            "checkpointing does not lower a deep perceptron's peak if the weights outweigh the activations",
            checkpointing,
        ),
    ]
}

/// Returns the peaks between consecutive calls to empty_cache in a recorded program.
fn peaks(backend: &AnyBackend, name: &str) -> Result<Vec<i64>, Trouble> {
    let shipped = recording(name)?;
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ());
    let requests = requests.map_err(|error| Trouble::fail(format!("{name}: {error}")))?;
    claim(requests.mismatches == 0, || format!("{name}: {} decisions differ", requests.mismatches))?;
    let mut story = Story::new(backend, "", None)?;
    let mut live = std::collections::BTreeMap::new();
    let mut peaks = Vec::new();
    for (_, operation) in requests.operations {
        let core = story.stage.core();
        match operation {
            Operation::Allocate { id, bytes, stream, .. } => {
                let allocation =
                    core.allocate(Bytes(bytes), StreamId(stream)).map_err(|error| Trouble::fail(error.to_string()))?;
                live.insert(id, allocation);
            }
            Operation::Free { id, .. } => {
                let freed = live.remove(&id).map(|allocation| core.free(allocation)).transpose();
                freed.map_err(|error| Trouble::fail(error.to_string()))?;
            }
            Operation::EmptyCache => {
                peaks.push(core.stats().family(Family::AllocatedBytes).all.peak);
                core.release_cached().map_err(|error| Trouble::fail(error.to_string()))?;
                core.reset_peak_stats();
            }
            Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
        }
    }
    peaks.push(story.stage.stats().family(Family::AllocatedBytes).all.peak);
    Ok(peaks)
}

/// Returns a bar of at most [`WIDTH`] characters.
fn bar(value: i64, most: i64) -> String {
    "#".repeat(usize::try_from((value * WIDTH + most / 2) / most).unwrap_or(0))
}

fn sweep(backend: &AnyBackend) -> Verdict {
    let found = peaks(backend, "resnet50_sweep.default")?;
    let recorded = RESNET50.map(|(_, peak)| peak);
    claim(found == recorded, || format!("expected the peaks {recorded:?}, found {found:?}"))?;
    let most = found.iter().copied().max().unwrap_or(1);
    let mut text = format!("{:>5} {:>16} {:>26}\n", "batch", "peak", "per additional sample");
    let mut before: Option<(u64, i64)> = None;
    for (&(batch, _), &peak) in RESNET50.iter().zip(&found) {
        let slope = before.map(|(smaller, below)| (peak - below) as f64 / (batch - smaller) as f64 / 1e6);
        let told = slope.map_or_else(String::new, |slope| format!("{slope:.2} MB"));
        text.push_str(format!("{batch:>5} {peak:>14} B {told:>26}").trim_end());
        text.push('\n');
        // The first batch size also allocates the gradients and the memory that the libraries keep.
        let is_linear = batch <= 2 || slope.is_some_and(|slope| (86.0..=87.0).contains(&slope));
        claim(is_linear, || format!("from the previous batch size to {batch}, the peak grows by {told} per sample"))?;
        before = Some((batch, peak));
    }
    text.push('\n');
    for (&(batch, _), &peak) in RESNET50.iter().zip(&found) {
        text.push_str(&format!("{batch:>5} |{}\n", bar(peak, most)));
    }
    Ok(Evidence::text(text))
}

fn checkpointing(backend: &AnyBackend) -> Verdict {
    let found = peaks(backend, "deep_mlp.default")?;
    let mut text = String::new();
    for ((name, recorded), &peak) in DEEP_MLP.into_iter().zip(&found) {
        claim(peak == recorded, || format!("{name}: expected a peak of {recorded} bytes, found {peak}"))?;
        text.push_str(&format!("{name:<22} {peak:>13} B\n"));
    }
    let [without, with, ..] = found[..] else { return Err(Trouble::fail(format!("two parts were recorded, not {found:?}"))) };
    claim(with >= without, || format!("checkpointing lowers the peak from {without} to {with}"))?;
    text.push_str(&format!("checkpointing adds {} B; it would save at most 20 activations of 1 MiB\n", with - without));
    Ok(Evidence::text(text))
}
