//! A verified recording as one JSON object.

use std::path::Path;

use anyhow::Result;
use parkade_replay::{DeviceVerdict, Guess, ReleaseEvidence, SettingsOrigin, StatsCheck};
use serde_json::{Value, json};

use super::Verified;

/// The object of a verified recording. With several devices the numbers are sums, and `devices` has each one's.
pub(super) fn verified(verified: &Verified) -> Result<String> {
    let devices = &verified.devices;
    let sum = |number: fn(&DeviceVerdict) -> u64| devices.iter().map(number).sum::<u64>();
    let first = devices.iter().find(|device| device.first.is_some());
    let mut object = json!({
        "file": verified.file.display().to_string(),
        "settings": verified.settings.settings.text,
        "settings_refusal": verified.settings.refusal.as_ref().map(ToString::to_string),
        "settings_origin": origin(verified.settings.origin),
        "profile": verified.profile.name,
        "profile_seen_from": verified.evidence.map(ReleaseEvidence::words),
        "limit_bytes": verified.limit,
        "fraction_of_unknown_memory": fraction(verified),
        "entries": sum(|device| device.entries as u64),
        "decisions": sum(|device| device.decisions),
        "mismatches": verified.mismatches(),
        "first_mismatch": first.map_or(Value::Null, first_mismatch),
        "peak_allocated_bytes": total(devices, DeviceVerdict::peak_allocated_bytes),
        "peak_reserved_bytes": total(devices, DeviceVerdict::peak_reserved_bytes),
        "ooms": sum(|device| device.ooms),
        "retries": devices.iter().map(|device| device.stats.num_alloc_retries).sum::<i64>(),
        "seconds": verified.seconds,
        "tolerated": tolerated(verified),
    });
    if let [device] = devices.as_slice() {
        object["not_in_file"] = not_in_file(device);
        object["statistics"] = device.stats_check.as_ref().map_or(Value::Null, statistics);
    } else {
        object["devices"] = devices.iter().map(device_object).collect();
    }
    Ok(serde_json::to_string(&object)?)
}

/// The fraction of the device's memory that the settings allow, where nothing says how much that is.
fn fraction(verified: &Verified) -> Option<f64> {
    verified.has_unknown_fraction().then_some(verified.settings.settings.per_process_memory_fraction)
}

/// A sum that absurd sizes cannot break.
fn total(devices: &[DeviceVerdict], number: fn(&DeviceVerdict) -> i64) -> i64 {
    devices.iter().map(number).fold(0, i64::saturating_add)
}

/// The object of a recording that could not be verified.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Result<String> {
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    Ok(serde_json::to_string(&json!({ "file": file.display().to_string(), "error": causes.join(": ") }))?)
}

fn device_object(device: &DeviceVerdict) -> Value {
    json!({
        "device": device.device,
        "entries": device.entries,
        "decisions": device.decisions,
        "mismatches": device.mismatches,
        "first_mismatch": if device.first.is_some() { first_mismatch(device) } else { Value::Null },
        "peak_allocated_bytes": device.peak_allocated_bytes(),
        "peak_reserved_bytes": device.peak_reserved_bytes(),
        "ooms": device.ooms,
        "retries": device.stats.num_alloc_retries,
        "not_in_file": not_in_file(device),
    })
}

fn first_mismatch(device: &DeviceVerdict) -> Value {
    let first = device.first.as_ref();
    json!({
        "device": device.device,
        "entry": first.and_then(|first| first.entry),
        "recorded": first.map(|first| &first.recorded),
        "replayed": first.map(|first| &first.replayed),
    })
}

fn not_in_file(device: &DeviceVerdict) -> Value {
    let not = &device.not_in_file;
    let statistics = device.stats_check.as_ref();
    json!({
        "lost_beginning": not.lost_beginning.map(|lost| json!({
            "segments": lost.segments,
            "blocks": lost.blocks,
            "reserved_bytes": lost.reserved_bytes,
            "assumed_sizes": lost.assumed_sizes,
            "inferred_sizes": lost.inferred_sizes,
            "unknown_ages": not.unknown_ages,
            "assumed_collections": not.assumed_collections,
        })),
        "empty_cache_calls": not.empty_caches,
        "device_refusals": not.refusals,
        "guessed_pools": not.guess.as_ref().map(guess),
        "silent_empty_cache_calls": statistics.map(|check| check.silent_empty_caches),
        "peaks_reset_between_entries": statistics.and_then(|check| check.peaks_reset).map(|(from, to)| [from, to]),
    })
}

/// Private pools that were worked out from the trace.
fn guess(guess: &Guess) -> Value {
    let segments = guess.segments.iter().map(|segment| {
        json!({
            "address": segment.address,
            "pool": segment.pool,
            "made_at_entry": segment.made_at,
            "gone_at_entry": segment.gone_at,
        })
    });
    json!({
        "pools": guess.pools,
        "requests": guess.requests,
        "windows": guess.windows,
        "contradictions": guess.contradictions,
        "segments": segments.collect::<Vec<_>>(),
    })
}

fn statistics(check: &StatsCheck) -> Value {
    let differences = check.differences.iter();
    json!({
        "compared": check.compared,
        "unknowable": check.unknowable,
        "differences": differences
            .map(|difference| json!({ "key": difference.key, "recorded": difference.recorded, "replayed": difference.replayed }))
            .collect::<Vec<_>>(),
        "unknown_keys": check.unknown_keys,
    })
}

fn tolerated(verified: &Verified) -> Value {
    let tolerated = &verified.recording.tolerated;
    json!({
        "unknown_top_keys": tolerated.unknown_top_keys,
        "unknown_segment_keys": tolerated.unknown_segment_keys,
        "unknown_block_keys": tolerated.unknown_block_keys,
        "unknown_entry_keys": tolerated.unknown_entry_keys,
        "unknown_actions": tolerated.unknown_actions,
    })
}

pub(crate) const fn origin(origin: SettingsOrigin) -> &'static str {
    match origin {
        SettingsOrigin::Recorded => "recorded",
        SettingsOrigin::RecordedValues => "recorded values",
        SettingsOrigin::Assumed => "assumed",
        SettingsOrigin::Given => "given",
    }
}
