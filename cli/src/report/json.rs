//! A report as one JSON object.

use std::path::Path;

use anyhow::Result;
use parkade_analysis::timeline::Curve;
use serde_json::{Value, json};

use super::gather::{Device, Report, curves};
use super::words;
use crate::verify::origin;

/// Buckets of the curves.
const BUCKETS: usize = 1000;

pub(super) fn report(report: &Report) -> Result<String> {
    let devices: Vec<Value> = report.devices.iter().map(|of| device(report, of)).collect();
    let object = json!({
        "file": report.file.display().to_string(),
        "settings": report.settings.settings.text,
        "settings_origin": origin(report.settings.origin),
        "profile": report.settings.profile.name,
        "limit_bytes": report.limit_bytes,
        "capacity_bytes": report.capacity_bytes,
        "devices": devices,
    });
    Ok(serde_json::to_string(&object)?)
}

/// The object of a recording that could not be shown.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Result<String> {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    Ok(serde_json::to_string(&json!({ "file": file.display().to_string(), "error": causes.join(": ") }))?)
}

fn device(report: &Report, device: &Device) -> Value {
    let curves = curves(&device.timeline.levels, BUCKETS);
    let tried = device.tried.iter().map(|(tried, curve)| {
        json!({
            "settings": tried.label,
            "is_own": tried.is_own,
            "fits": tried.fits(report.capacity_bytes),
            "fails_at_entry": tried.fails_at_entry,
            "peak_reserved_bytes": tried.peak_reserved_bytes,
            "retries": tried.retries,
            "driver_calls": tried.driver_calls,
            "driver_us": tried.driver_ns / 1000,
            "reserved_bytes": numbers(curve),
        })
    });
    let markers = device.timeline.markers.iter();
    let markers = markers.map(|marker| json!({ "entry": marker.moment, "kind": marker.kind.name(), "bytes": marker.bytes }));
    let phases = device.phases.iter();
    let phases = phases.map(|phase| json!({ "name": &*phase.name, "from": phase.from, "to": phase.to, "depth": phase.depth }));
    let holders = device.holders.iter().take(50);
    let holders = holders
        .map(|holder| json!({ "what": words::holder(report, holder.key), "bytes": holder.bytes, "blocks": holder.blocks }));
    json!({
        "device": device.number,
        "entries": device.timeline.entries,
        "what_happened": words::what_happened(report, device),
        "mismatches": device.verdict.as_ref().map(|verdict| verdict.mismatches),
        "peak_allocated_bytes": device.curves.allocated.peak(),
        "peak_active_bytes": device.curves.active.peak(),
        "peak_reserved_bytes": device.curves.reserved.peak(),
        "peak_allocated_entry": device.peak_allocated_moment,
        "peak_reserved_entry": device.peak_reserved_moment,
        "curves": {
            "allocated_bytes": numbers(&curves.allocated),
            "active_bytes": numbers(&curves.active),
            "reserved_bytes": numbers(&curves.reserved),
        },
        "markers": markers.collect::<Vec<_>>(),
        "phases": phases.collect::<Vec<_>>(),
        "holders_at_peak": holders.collect::<Vec<_>>(),
        "what_if": tried.collect::<Vec<_>>(),
        "notes": words::notes(report, device),
    })
}

/// Each bucket's least, most and last.
fn numbers(curve: &Curve) -> Value {
    let list = |of: fn(&parkade_analysis::timeline::Bucket) -> u64| curve.buckets.iter().map(of).collect::<Vec<u64>>();
    json!({ "min": list(|bucket| bucket.min), "max": list(|bucket| bucket.max), "last": list(|bucket| bucket.last) })
}
