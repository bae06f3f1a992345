//! Statistics as one JSON object.

use std::path::Path;

use parkade_analysis::fragmentation::Fragmentation;
use serde_json::{Map, Value, json};

use super::{Args, Device, LeftOut, Moment, Shown};

/// The object of a recording's statistics.
pub(super) fn object(args: &Args, shown: &Shown) -> Value {
    json!({
        "file": args.file.display().to_string(),
        "settings": shown.settings,
        "replayed": args.settings.is_some(),
        "limit_bytes": args.limit,
        "mismatches": shown.mismatches(),
        "devices": shown.devices.iter().map(device).collect::<Vec<Value>>(),
        "left_out": shown.left_out.iter().map(left_out).collect::<Vec<Value>>(),
    })
}

/// The object of a recording that could not be read.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Value {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    json!({ "file": file.display().to_string(), "error": causes.join(": ") })
}

fn left_out(device: &LeftOut) -> Value {
    json!({ "device": device.number, "reason": device.reason })
}

fn device(device: &Device) -> Value {
    json!({
        "device": device.number,
        "entries": device.entries,
        "steps_marked_by": device.mark,
        "lost_steps": device.lost_steps,
        "mismatches": device.mismatches,
        "decisions": device.decisions,
        "assumed_limit_bytes": device.assumed_limit_bytes,
        "moments": device.moments.iter().map(moment).collect::<Vec<Value>>(),
        "end_without_trace": device.end.as_ref().map(measures),
    })
}

fn moment(moment: &Moment) -> Value {
    let sample = &moment.sample;
    let stats: Map<String, Value> = sample.stats.entries().into_iter().map(|(key, value)| (key, value.into())).collect();
    json!({
        "entry": sample.entry,
        "step": moment.step,
        "memory_stats": stats,
        "measures": measures(&sample.fragmentation),
        "peak_allocated_bytes_since_last": sample.peak_allocated_bytes,
        "peak_reserved_bytes_since_last": sample.peak_reserved_bytes,
    })
}

fn measures(measures: &Fragmentation) -> Value {
    json!({
        "reserved_bytes": measures.reserved_bytes,
        "allocated_bytes": measures.allocated_bytes,
        "pending_bytes": measures.pending_bytes,
        "requested_bytes": measures.requested_bytes,
        "rounding_bytes": measures.rounding_bytes(),
        "free_bytes": measures.free_bytes,
        "free_segments_bytes": measures.free_segments_bytes,
        "stranded_bytes": measures.stranded_bytes,
        "largest_hole_bytes": measures.largest_hole_bytes,
        "holes": measures.holes,
        "fragmentation": measures.ratio(),
    })
}
