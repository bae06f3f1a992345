//! D3, D4 and D6: what a recorded run shows: snapshot files, a diagnosis and a timeline. These entries use no device.

use crate::backend::AnyBackend;
use crate::shipped::Shipped;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::diagnose::{DiagnoseOptions, Diagnosis, Limit, Verdict as Cause, diagnose_device};
use parkade_analysis::timeline::{Curve, Timeline};
use parkade_recording::{Frame, Recording, Style, read, write};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{AfterFailure, ReplaySettings, Requests, VerifyOptions, verify_device};
use parkade_research::workload::parse;

use crate::scenarios::story::{claim, failed, format_bytes, recording, scenario};

/// The width and height of a drawn timeline, in characters.
const COLUMNS: usize = 100;
const ROWS: usize = 12;

pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
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
            "the five steps on a recorded failure: the live bytes and the request would have fitted",
            |_: &AnyBackend| fragmented(),
        ),
        scenario("D4/capacity", "the five steps on a run that needs more than the limit: no setting helps", |_: &AnyBackend| {
            too_large()
        }),
        scenario(
            "D6/recorded",
            "a recorded training step: memory rises with the activations, falls in backward, and stays low in the optimizer's step",
            |_: &AnyBackend| recorded_step(),
        ),
        scenario(
            "D6/generated",
            "a generated training step: the same shape, and the optimizer's short-lived second copy",
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
        claim(again == *recorded, || format!("written in the style of {name} and read again, it is a different recording"))?;
        text += &format!("written in the style of {name} and read again: the same recording\n");
    }
    for settings in ["", "expandable_segments:True"] {
        let options = exporting(&shipped, settings)?;
        let exported = export(recorded, &options, &mut |_| ()).map_err(failed)?;
        let file = write(&exported.recording, Style::Python);
        for (what, keys) in VIEWER_KEYS {
            for key in keys {
                claim(has_text(&file, key), || format!("the exported file lacks the key {key:?} of a {what}"))?;
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
         2 fragmentation? {:<4} {} are reserved and free, the largest hole {}; num_alloc_retries {}\n\
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
            format!("{held} were requested by {file}:{} ({})", frame.line, frame.name)
        }
        None => format!("{held}; the recording has no stacks"),
    }
}

/// Returns a timeline as text, with its highest value.
fn drawn(level: &[u64]) -> String {
    let curve = Curve::of(level, COLUMNS);
    let peak = curve.peak().max(1);
    let height = |bytes: u64| (u128::from(bytes) * ROWS as u128).div_ceil(u128::from(peak)) as usize;
    let row =
        |row: usize| curve.buckets.iter().map(|bucket| if height(bucket.max) >= row { '#' } else { ' ' }).collect::<String>();
    (1..=ROWS).rev().map(|level| row(level).trim_end().to_owned() + "\n").collect()
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
    claim(optimizing.iter().all(|&bytes| bytes < most / 2), || format!("{optimizing:?} bytes during the optimizer's step"))?;
    let low = optimizing[0];
    let text = format!(
        "GPT-2 on sequences of changing length, the third step of the recording: {} entries\n\
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
    let drawing = workload.drawn(COLUMNS, ROWS);
    let most = curve.iter().copied().max().unwrap_or(0);
    claim(drawing.lines().count() == ROWS && most > 0, || drawing.clone())?;
    Ok(Evidence::text(format!("{}\n{drawing}peak live {}\n", workload.says, format_bytes(most))))
}
