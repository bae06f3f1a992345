//! A packing as one JSON object.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{Args, Packed};

/// The object of a packed file. With several devices, `devices` has each one's numbers.
pub(super) fn packed(args: &Args, packed: &[Packed]) -> Result<String> {
    let mut object = Map::new();
    object.insert("file".to_owned(), args.file.display().to_string().into());
    object.insert("seed".to_owned(), args.seed.into());
    object.insert("budget".to_owned(), args.budget.into());
    match packed {
        [one] => object.extend(numbers(one)),
        many => {
            object.insert("devices".to_owned(), many.iter().map(|one| Value::Object(numbers(one))).collect());
        }
    }
    Ok(serde_json::to_string(&Value::Object(object))?)
}

/// The object of a file that could not be packed.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Result<String> {
    Ok(serde_json::to_string(&json!({ "file": file.display().to_string(), "error": format!("{error:#}") }))?)
}

fn numbers(packed: &Packed) -> Map<String, Value> {
    let value = json!({
        "buffers": packed.instance.buffers().len(),
        "load_bytes": packed.instance.load(),
        "bound_bytes": packed.found.bound,
        "packing_bytes": packed.found.packing.height,
        "ratio": packed.ratio(),
        "is_best": packed.is_best(),
        "steps": packed.found.steps,
        "seconds": packed.seconds,
        "lost_beginning": packed.has_lost_beginning,
    });
    let mut object = value.as_object().cloned().unwrap_or_default();
    if let (Some(refused), Some(load)) = (packed.refused, packed.load_with_last_refused()) {
        object.insert("refused_requests".to_owned(), refused.requests.into());
        object.insert("refused_bytes".to_owned(), refused.bytes.into());
        object.insert("load_with_last_refused_bytes".to_owned(), load.into());
    }
    if let Some(device) = packed.device {
        object.insert("device".to_owned(), device.into());
    }
    object
}
