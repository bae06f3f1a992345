//! C5 and C6: peaks of recorded runs, from their replay.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::stats::Family;
use parkade::units::{Bytes, StreamId};
use parkade_replay::{Operation, Requests};

use crate::scenarios::recordings::recording;
use crate::scenarios::story::{Story, claim, scenario};

/// Batch sizes of the recording resnet50_sweep, and the `allocated_bytes.all.peak` that PyTorch 2.11 printed for each on the
/// H200; it was reset before each.
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
/// Length of the longest bar, in characters.
const WIDTH: i64 = 60;

/// No device takes part in a recording: these belong to the simulated backend, on which they are replayed.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    vec![
        scenario("C5", "from batch 2 on, the peak of ResNet-50 grows by 86 to 87 MB a sample", sweep),
        scenario(
            "C6",
            "checkpointing does not lower the peak of a deep perceptron whose weights outweigh its activations",
            checkpointing,
        ),
    ]
}

/// The peak between each two calls of empty_cache in a recorded program.
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

/// A bar of at most [`WIDTH`] characters.
fn bar(value: i64, most: i64) -> String {
    "#".repeat(usize::try_from((value * WIDTH + most / 2) / most).unwrap_or(0))
}

fn sweep(backend: &AnyBackend) -> Verdict {
    let found = peaks(backend, "resnet50_sweep.default")?;
    let recorded = RESNET50.map(|(_, peak)| peak);
    claim(found == recorded, || format!("expected the peaks {recorded:?}, found {found:?}"))?;
    let most = found.iter().copied().max().unwrap_or(1);
    let mut text = format!("{:>5} {:>16} {:>26}\n", "batch", "peak", "for each sample more");
    let mut before: Option<(u64, i64)> = None;
    for (&(batch, _), &peak) in RESNET50.iter().zip(&found) {
        let slope = before.map(|(smaller, below)| (peak - below) as f64 / (batch - smaller) as f64 / 1e6);
        let told = slope.map_or_else(String::new, |slope| format!("{slope:.2} MB"));
        text.push_str(format!("{batch:>5} {peak:>14} B {told:>26}").trim_end());
        text.push('\n');
        // The first batch also allocates the gradients and what the libraries keep.
        let is_linear = batch <= 2 || slope.is_some_and(|slope| (86.0..=87.0).contains(&slope));
        claim(is_linear, || format!("from the batch before to {batch} the peak grows by {told} a sample"))?;
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
