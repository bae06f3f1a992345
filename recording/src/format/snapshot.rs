//! Reading a snapshot: finding its parts, handing each to its reader, and putting the recording together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::annotations::read_annotations;
use super::budget::Budget;
use super::error::{self, FormatError, FormatProblem, Place};
use super::fields::Fields;
use super::segments::SegmentReader;
use super::settings::read_settings;
use super::stacks::StackReader;
use super::trace::TraceReader;
use super::values::{self, optional};
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Loaded, Tag, Value};
use crate::recording::{DeviceRecording, Recording, Segment, Tolerated};

/// The parts of the snapshot's root.
struct Root<'l> {
    segments: &'l [Value],
    traces: &'l [Value],
    settings: Value,
    annotations: &'l [Value],
    unknown: BTreeMap<String, u64>,
    dated: FileFields,
}

/// The lowest protocol of Python's own snapshots. C++'s have 2, and got some keys later than Python's, so that a missing one
/// says nothing of their release.
const PYTHON_PROTOCOL: u8 = 3;

/// Makes a recording of a pickle.
///
/// # Errors
/// [`FormatError`], with the segment, block or entry, for anything that no recording can say.
pub(crate) fn read_snapshot(loaded: &Loaded) -> Result<Recording, FormatError> {
    let whole = |problem| FormatError { place: Place::Snapshot, problem };
    let root = root(loaded).map_err(whole)?;
    let mut budget = Budget::new(usize::try_from(loaded.length).unwrap_or(usize::MAX));
    let (mut stacks, mut segments, mut traces) = (StackReader::new(), SegmentReader::new(), TraceReader::new());
    let found = segments.read(loaded, root.segments, &mut stacks, &mut budget)?;
    let mut devices = by_device(found);
    for (device, &list) in root.traces.iter().enumerate() {
        read_trace(loaded, device, list, &mut devices, &mut traces, &mut stacks, &mut budget)?;
    }
    let mut fields = root.dated;
    fields.add(segments.dated(loaded));
    fields.add(traces.dated(loaded));
    let settings = match root.settings.tag() {
        Tag::Absent | Tag::None => None,
        _ => {
            let (settings, dated) = read_settings(loaded, root.settings)?;
            fields.add(dated);
            Some(settings)
        }
    };
    budget.spend(root.annotations.len(), Budget::BLOCK).map_err(whole)?;
    let annotations = read_annotations(loaded, root.annotations, &mut stacks)?;
    let (pools, unknown_entry_keys, unknown_actions) = traces.finish();
    let (unknown_segment_keys, unknown_block_keys) = segments.finish();
    let tolerated = Tolerated {
        unknown_top_keys: root.unknown,
        unknown_entry_keys,
        unknown_segment_keys,
        unknown_block_keys,
        unknown_actions,
    };
    if loaded.protocol < PYTHON_PROTOCOL {
        fields = fields.without_absences();
    }
    let pools = Arc::new(pools);
    let devices = devices.into_values().map(|device| DeviceRecording { pools: Arc::clone(&pools), ..device }).collect();
    Ok(Recording { devices, settings, annotations, stacks: stacks.into_table(), fields, tolerated })
}

/// Finds the parts: in the dict of a whole snapshot, or in the bare list of
/// segments that `memory_snapshot()` returns.
fn root<'l>(loaded: &'l Loaded) -> Result<Root<'l>, FormatProblem> {
    if let Some(segments) = loaded.objects.as_items(loaded.root) {
        let none: &[Value] = &[];
        return Ok(Root {
            segments,
            traces: none,
            settings: Value::ABSENT,
            annotations: none,
            unknown: BTreeMap::new(),
            dated: FileFields::NONE,
        });
    }
    if loaded.objects.as_dict(loaded.root).is_none() {
        return Err(FormatProblem::NotASnapshot { found: error::with_article(loaded.type_name(loaded.root)) });
    }
    const NAMES: [&str; 4] = ["segments", "device_traces", "allocator_settings", "external_annotations"];
    let mut fields = Fields::of(Part::Snapshot, NAMES, &["host_segments", "host_traces"]);
    let [segments, traces, settings, annotations] = fields.look_up(loaded, loaded.root, "snapshot")?;
    let dated = fields.dated(loaded);
    let unknown = fields.into_unknown();
    if segments == Value::ABSENT && traces == Value::ABSENT {
        let keys: Vec<&str> = unknown.keys().take(5).map(String::as_str).collect();
        let found = if keys.is_empty() { "an empty dict".to_owned() } else { format!("a dict with the keys {keys:?}") };
        return Err(FormatProblem::NotASnapshot { found });
    }
    let list = |value, key| Ok(optional(value, |value| values::items(loaded, value, key))?.unwrap_or(&[]));
    Ok(Root {
        segments: list(segments, NAMES[0])?,
        traces: list(traces, NAMES[1])?,
        settings,
        annotations: list(annotations, NAMES[3])?,
        unknown,
        dated,
    })
}

fn by_device(segments: Vec<(u32, Segment)>) -> BTreeMap<u32, DeviceRecording> {
    let mut devices = BTreeMap::new();
    for (device, segment) in segments {
        device_of(&mut devices, device).segments.push(segment);
    }
    devices
}

fn device_of(devices: &mut BTreeMap<u32, DeviceRecording>, device: u32) -> &mut DeviceRecording {
    devices.entry(device).or_insert_with(|| DeviceRecording { device, ..DeviceRecording::default() })
}

fn read_trace(
    loaded: &Loaded,
    device: usize,
    list: Value,
    devices: &mut BTreeMap<u32, DeviceRecording>,
    traces: &mut TraceReader,
    stacks: &mut StackReader,
    budget: &mut Budget,
) -> Result<(), FormatError> {
    let whole = |problem| FormatError { place: Place::Trace { device }, problem };
    let list = values::items(loaded, list, "device_traces").map_err(whole)?;
    if list.is_empty() {
        return Ok(());
    }
    let number = match u32::try_from(device) {
        Ok(number @ 0..=127) => number,
        _ => {
            let value = format!("a list with a trace of device {device}");
            return Err(whole(FormatProblem::OutOfRange { key: "device_traces", value, range: "of devices 0 to 127" }));
        }
    };
    let trace = traces.read(loaded, device, list, stacks, budget)?;
    if !trace.is_empty() {
        device_of(devices, number).trace = trace;
    }
    Ok(())
}
