//! Reading `allocator_settings` (spec 7.5).

use super::error::{FormatError, FormatProblem, Place};
use super::fields::Fields;
use super::values::{self, optional};
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Loaded, Value};
use crate::recording::RecordedSettings;

/// The keys of `roundup_power2_divisions`: where each interval begins, in MiB (spec 7.5).
pub(crate) const DIVISION_KEYS: [&str; 16] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];

/// Reads the allocator settings, and which dated keys they have.
///
/// # Errors
/// [`FormatError`] if a setting has the wrong type.
pub(crate) fn read_settings(loaded: &Loaded, dict: Value) -> Result<(RecordedSettings, FileFields), FormatError> {
    settings(loaded, dict).map_err(|problem| FormatError { place: Place::Settings, problem })
}

fn settings(loaded: &Loaded, dict: Value) -> Result<(RecordedSettings, FileFields), FormatProblem> {
    const NAMES: [&str; 9] = [
        "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size",
        "garbage_collection_threshold",
        "expandable_segments",
        "roundup_power2_divisions",
        "release_lock_on_cudamalloc",
        "graph_capture_record_stream_reuse",
        "max_round_threshold",
        "max_cached_size",
    ];
    let mut fields = Fields::of(Part::Settings, NAMES, &[]);
    let [text, split, threshold, expandable, divisions, release_lock, capture_reuse, newer, newer_too] =
        fields.look_up(loaded, dict, "allocator_settings")?;
    let flag = |value, key| optional(value, |value| values::boolean(loaded, value, key));
    let text = optional(text, |text| values::text(loaded, text, NAMES[0]))?;
    let settings = RecordedSettings {
        text: text.map(|text| String::from_utf8_lossy(text).into_owned()),
        max_split_size: optional(split, |value| values::signed(loaded, value, NAMES[1]))?,
        garbage_collection_threshold: optional(threshold, |value| values::float(loaded, value, NAMES[2]))?,
        expandable_segments: flag(expandable, NAMES[3])?,
        roundup_power2_divisions: optional(divisions, |value| read_divisions(loaded, value, NAMES[4]))?,
        release_lock_on_cudamalloc: flag(release_lock, NAMES[5])?,
        graph_capture_record_stream_reuse: flag(capture_reuse, NAMES[6])?,
        has_newer_keys: newer != Value::ABSENT || newer_too != Value::ABSENT,
    };
    Ok((settings, fields.dated(loaded)))
}

fn read_divisions(loaded: &Loaded, dict: Value, key: &'static str) -> Result<[u64; 16], FormatProblem> {
    let found = Fields::new(DIVISION_KEYS, &[]).look_up(loaded, dict, key)?;
    let mut divisions = [0; 16];
    for (division, value) in divisions.iter_mut().zip(found) {
        *division = optional(value, |value| values::unsigned(loaded, value, key))?.unwrap_or(0);
    }
    Ok(divisions)
}
