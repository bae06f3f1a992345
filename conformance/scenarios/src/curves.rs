//! C5, C6 and A13's recordings: peaks of recorded runs, from their replay.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade::units::{Bytes, StreamId};
use parkade_conformance::backend::Backend;
use parkade_conformance::suite::{Entry, Evidence, Group, Trouble, Verdict};
use parkade_oracle::shipped::{self, Shipped, ShippedError};
use parkade_replay::{Operation, OutlookOptions, Requests, replay_device};

use super::story::{Story, claim};

/// Batch sizes of the recording resnet50_sweep and `allocated_bytes.all.peak` of each, reset before it, as PyTorch 2.11 had them on the
/// H200 (steps.jsonl of the recorded programs).
const RESNET50: [(u64, i64); 7] = [
    (1, 345_478_656),
    (2, 468_252_160),
    (4, 640_915_456),
    (8, 985_864_192),
    (16, 1_679_332_864),
    (32, 3_065_013_760),
    (64, 5_844_985_344),
];
/// The same of deep_mlp: without and with checkpointing.
const DEEP_MLP: [(&str, i64); 2] = [("without checkpointing", 2_755_265_536), ("with checkpointing", 2_756_314_112)];
/// Programs, and `reserved_bytes.all.peak` as PyTorch 2.11 had it on the H200 by default and with expandable segments (the recordings'
/// statistics).
const EXPANDABLE: [(&str, i64, i64); 3] = [
    ("gpt2_varlen", 21_986_541_568, 15_875_440_640),
    ("resnet50_sweep", 7_113_539_584, 5_876_219_904),
    ("deep_mlp", 2_778_726_400, 2_795_503_616),
];
/// Characters of the plot's longest bar.
const WIDTH: i64 = 60;

/// These are about recordings, in which no device takes part: they belong to the simulated backend, whose replay they use.
pub(super) fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    let entry = |name, says, check: fn(&B) -> Verdict| Entry::new(Group::Scenario, name, says, move |backend, _| check(backend));
    vec![
        entry("C5", "the peak of ResNet-50 is linear in the batch size from 2 on, 86 to 87 MB a sample", sweep),
        entry("A13/recordings", "recorded runs, replayed with expandable segments, need what they needed with them", expandable),
        entry("C6", "checkpointing does not lower the peak of a deep MLP whose weights outweigh its activations", checkpointing),
    ]
}

/// Reads a recording of the repository. Without a checkout, as in a published crate, the entry is skipped.
fn recording(name: &str) -> Result<Shipped, Trouble> {
    shipped::read(name).map_err(|error| match error {
        ShippedError::NoFolder { .. } => Trouble::Skip(error.to_string()),
        error => Trouble::fail(error.to_string()),
    })
}

/// The peaks of a recorded program's parts, between its calls of empty_cache.
fn peaks<B: Backend>(backend: &B, name: &str) -> Result<Vec<i64>, Trouble> {
    let shipped = recording(name)?;
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ());
    let requests = requests.map_err(|error| Trouble::fail(format!("{name}: {error}")))?;
    claim(requests.mismatches == 0, || format!("{name}: {} decisions differ", requests.mismatches))?;
    let mut story = Story::new(backend, "", None)?;
    let mut live = std::collections::BTreeMap::new();
    let mut peaks = Vec::new();
    for (_, operation) in requests.operations {
        let core = story.bench.core();
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
    peaks.push(story.bench.stats().family(Family::AllocatedBytes).all.peak);
    Ok(peaks)
}

/// A bar of at most [`WIDTH`] characters.
fn bar(value: i64, most: i64) -> String {
    "#".repeat(usize::try_from((value * WIDTH + most / 2) / most).unwrap_or(0))
}

fn sweep<B: Backend>(backend: &B) -> Verdict {
    let found = peaks(backend, "resnet50_sweep.default")?;
    let recorded = RESNET50.map(|(_, peak)| peak);
    claim(found == recorded, || format!("expected the peaks {recorded:?}, found {found:?}"))?;
    let most = found.iter().copied().max().unwrap_or(1);
    let mut text = format!("{:>5} {:>16} {:>26}\n", "batch", "peak", "more for each sample");
    let mut before: Option<(u64, i64)> = None;
    for (&(batch, _), &peak) in RESNET50.iter().zip(&found) {
        let slope = before.map(|(smaller, below)| (peak - below) as f64 / (batch - smaller) as f64 / 1e6);
        let told = slope.map_or_else(String::new, |slope| format!("{slope:.2} MB"));
        text.push_str(format!("{batch:>5} {peak:>14} B {told:>26}").trim_end());
        text.push('\n');
        // The first batch of all also makes the gradients and what the libraries keep for themselves.
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

fn checkpointing<B: Backend>(backend: &B) -> Verdict {
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

fn expandable<B: Backend>(_: &B) -> Verdict {
    let settings = Settings::from_environment("expandable_segments:True").map_err(|error| Trouble::fail(error.to_string()))?;
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
