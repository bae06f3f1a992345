//! A replayed recording as one JSON object.

use std::path::Path;

use anyhow::Result;
use parkade_replay::{Operation, Outlook};
use serde_json::{Map, Value, json};

use super::Replayed;
use crate::verify::origin;

/// The object of a replayed recording. With several devices the numbers are sums, and `devices` has each one's.
pub(super) fn replayed(replayed: &Replayed) -> Result<String> {
    let devices = &replayed.devices;
    let mut object = json!({
        "file": replayed.file.display().to_string(),
        "settings": replayed.settings.settings.text,
        "settings_origin": origin(replayed.settings.origin),
        "profile": replayed.profile.rules().name,
        "capacity_bytes": replayed.capacity,
        "limit_bytes": replayed.limit,
        "seconds": replayed.seconds,
    });
    if let Value::Object(object) = &mut object {
        match devices.as_slice() {
            [device] => object.extend(numbers(device)),
            devices => {
                let each: Vec<Map<String, Value>> = devices.iter().map(numbers).collect();
                object.extend(sums(&each));
                object.insert("fits".to_owned(), replayed.fits().into());
                let first = devices.iter().find_map(|device| device.prediction.first_failure);
                object.insert("fails_at_entry".to_owned(), json!(first));
                let named = devices.iter().zip(each).map(|(device, mut numbers)| {
                    numbers.insert("device".to_owned(), device.device.into());
                    Value::Object(numbers)
                });
                object.insert("devices".to_owned(), named.collect());
            }
        }
    }
    Ok(serde_json::to_string(&object)?)
}

/// The object of a recording that could not be replayed.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Result<String> {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    Ok(serde_json::to_string(&json!({ "file": file.display().to_string(), "error": causes.join(": ") }))?)
}

fn numbers(outlook: &Outlook) -> Map<String, Value> {
    let Outlook { requests, prediction, .. } = outlook;
    let empty_caches = requests.operations.iter().filter(|(_, operation)| *operation == Operation::EmptyCache).count();
    let lost = requests.lost_beginning.map(|lost| json!({ "segments": lost.segments, "blocks": lost.blocks }));
    let object = json!({
        "fits": outlook.fits(),
        "ooms": prediction.stats.num_ooms,
        "fails_at_entry": prediction.first_failure,
        "peak_allocated_bytes": prediction.peak_allocated_bytes(),
        "peak_reserved_bytes": prediction.peak_reserved_bytes(),
        "retries": prediction.stats.num_alloc_retries,
        "driver_calls": prediction.driver_calls,
        "driver_ns": prediction.driver_ns,
        "empty_cache_calls": empty_caches,
        "recorded": {
            "peak_reserved_bytes": requests.recorded_peak_reserved_bytes,
            "ooms": requests.ooms,
            "mismatches": requests.mismatches,
            "lost_beginning": lost,
        },
        "device_errors": prediction.device_errors,
    });
    let mut object = if let Value::Object(object) = object { object } else { Map::new() };
    if let Some(range) = outlook.timing {
        for (name, extreme) in [("earliest", range.earliest), ("latest", range.latest)] {
            object.insert(format!("peak_reserved_bytes_{name}"), extreme.peak_reserved_bytes.into());
            object.insert(format!("fits_{name}"), extreme.fits.into());
        }
        object.insert("peak_reserved_bytes_least".to_owned(), range.least_peak_reserved_bytes.into());
        object.insert("peak_reserved_bytes_most".to_owned(), range.most_peak_reserved_bytes.into());
    }
    object
}

/// The sums of those numbers that add up; absurd sizes cannot break them.
fn sums(each: &[Map<String, Value>]) -> Map<String, Value> {
    let keys = [
        "ooms",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "retries",
        "driver_calls",
        "driver_ns",
        "empty_cache_calls",
        "device_errors",
    ];
    let sum = |key| each.iter().filter_map(|numbers| numbers.get(key)?.as_i64()).fold(0, i64::saturating_add);
    keys.into_iter().map(|key| (key.to_owned(), sum(key).into())).collect()
}
