//! Settings in the form of a snapshot (spec 7.5).

use parkade::settings::Settings;
use parkade_recording::{FileFields, Part, RecordedSettings};

/// What a snapshot of a run under these settings says of them.
pub(crate) fn recorded(settings: &Settings, fields: FileFields) -> RecordedSettings {
    let has = |key| fields.has(Part::Settings, key);
    RecordedSettings {
        text: Some(settings.text.clone()),
        // Signed in the file: -1 means no limit.
        max_split_size: Some(settings.max_split_bytes.cast_signed()),
        garbage_collection_threshold: Some(settings.garbage_collection_threshold),
        expandable_segments: Some(settings.expandable_segments),
        roundup_power2_divisions: Some(settings.roundup_power2_divisions),
        release_lock_on_cudamalloc: Some(settings.release_lock_on_cudamalloc),
        graph_capture_record_stream_reuse: has("graph_capture_record_stream_reuse")
            .then_some(settings.graph_capture_record_stream_reuse),
        has_newer_keys: has("max_cached_size"),
    }
}
