//! Writing a recording with the pickle writer that can be wrong. The keys are those of spec 7.3 to 7.5.

use parkade_recording::{Action, Annotation, Block, Entry, RecordedSettings, Recording, Segment, StackId};

use crate::choices::Choices;
use crate::pickle::{Pickle, Spelling};

/// The pickle of a recording, of whose fields at most `spoils` are missing, repeated or of a wrong type.
pub(super) fn spell(recording: &Recording, spelling: Spelling, spoils: usize, choices: &mut Choices<'_>) -> Vec<u8> {
    let is_bare_list = choices.once_in(12);
    let mut pickle = Pickle::new(spelling, spoils, choices);
    let segments =
        || recording.devices.iter().flat_map(|device| device.segments.iter().map(move |segment| (device.device, segment)));
    if is_bare_list {
        pickle.list(segments(), |pickle, (device, segment)| self::segment(pickle, recording, device, segment));
        return pickle.finish();
    }
    pickle.dict(|pickle| {
        pickle.field("segments", |pickle| {
            pickle.list(segments(), |pickle, (device, segment)| self::segment(pickle, recording, device, segment));
        });
        pickle.field("device_traces", |pickle| {
            let devices = recording.devices.iter().map(|device| device.device + 1).max().unwrap_or(0);
            pickle.list(0..devices, |pickle, number| {
                let device = recording.devices.iter().find(|device| device.device == number);
                pickle.list(device.into_iter().flat_map(|device| &device.trace), |pickle, entry| {
                    self::entry(pickle, recording, entry, device.and_then(|device| device.pools.get(entry.pool)));
                });
            });
        });
        if let Some(settings) = &recording.settings {
            pickle.field("allocator_settings", |pickle| self::settings(pickle, settings));
        }
        pickle.field("external_annotations", |pickle| pickle.list(&recording.annotations, annotation));
    });
    pickle.finish()
}

type Spelled<'p, 'c, 'b> = &'p mut Pickle<'c, 'b>;

fn number(pickle: Spelled<'_, '_, '_>, key: &str, value: impl Into<i128>) {
    let value = value.into();
    pickle.field(key, |pickle| pickle.integer(value));
}

fn optional(pickle: Spelled<'_, '_, '_>, key: &str, value: Option<impl Into<i128>>) {
    if let Some(value) = value {
        number(pickle, key, value);
    }
}

fn flag(pickle: Spelled<'_, '_, '_>, key: &str, value: Option<bool>) {
    if let Some(value) = value {
        pickle.field(key, |pickle| pickle.boolean(value));
    }
}

fn segment(pickle: Spelled<'_, '_, '_>, recording: &Recording, device: u32, segment: &Segment) {
    pickle.dict(|pickle| {
        number(pickle, "device", device);
        number(pickle, "address", segment.address);
        number(pickle, "total_size", segment.total_bytes);
        optional(pickle, "allocated_size", segment.allocated_bytes);
        optional(pickle, "active_size", segment.active_bytes);
        optional(pickle, "requested_size", segment.requested_bytes);
        number(pickle, "stream", segment.stream);
        pickle.field("segment_type", |pickle| pickle.text(if segment.large { "large" } else { "small" }));
        if let Some(pool) = segment.pool {
            pickle.field("segment_pool_id", |pickle| pickle.pair(pool));
        }
        flag(pickle, "is_expandable", Some(segment.expandable));
        stack(pickle, recording, segment.stack);
        pickle.field("blocks", |pickle| pickle.list(&segment.blocks, |pickle, block| self::block(pickle, recording, block)));
    });
}

fn block(pickle: Spelled<'_, '_, '_>, recording: &Recording, block: &Block) {
    pickle.dict(|pickle| {
        number(pickle, "address", block.address);
        number(pickle, "size", block.size);
        optional(pickle, "requested_size", block.requested);
        pickle.field("state", |pickle| pickle.text(block.state.name()));
        stack(pickle, recording, block.stack);
    });
}

fn entry(pickle: Spelled<'_, '_, '_>, recording: &Recording, entry: &Entry, pool: Option<(u64, u64)>) {
    pickle.dict(|pickle| {
        pickle.field("action", |pickle| pickle.text(entry.action.name()));
        number(pickle, if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.address);
        number(pickle, "size", entry.size);
        number(pickle, "stream", entry.stream);
        optional(pickle, "time_us", entry.time());
        stack(pickle, recording, entry.stack);
        if let Some(pool) = pool {
            pickle.field("pool_id", |pickle| pickle.pair(pool));
        }
    });
}

fn stack(pickle: Spelled<'_, '_, '_>, recording: &Recording, stack: StackId) {
    if stack == StackId::NONE {
        return;
    }
    pickle.field("frames", |pickle| {
        pickle.list(recording.stacks.frames(stack), |pickle, frame| {
            pickle.dict(|pickle| {
                pickle.field("filename", |pickle| pickle.text(&frame.filename));
                number(pickle, "line", frame.line);
                pickle.field("name", |pickle| pickle.text(&frame.name));
            });
        });
    });
}

fn settings(pickle: Spelled<'_, '_, '_>, settings: &RecordedSettings) {
    pickle.dict(|pickle| {
        if let Some(text) = &settings.text {
            pickle.field("PYTORCH_CUDA_ALLOC_CONF", |pickle| pickle.text(text));
        }
        optional(pickle, "max_split_size", settings.max_split_size);
        if let Some(threshold) = settings.garbage_collection_threshold {
            pickle.field("garbage_collection_threshold", |pickle| pickle.float(threshold));
        }
        flag(pickle, "expandable_segments", settings.expandable_segments);
        flag(pickle, "release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc);
        flag(pickle, "graph_capture_record_stream_reuse", settings.graph_capture_record_stream_reuse);
        if settings.has_newer_keys {
            number(pickle, "max_round_threshold", 0);
        }
        if let Some(divisions) = settings.roundup_power2_divisions {
            pickle.field("roundup_power2_divisions", |pickle| {
                pickle.dict(|pickle| {
                    for (place, division) in divisions.into_iter().enumerate() {
                        number(pickle, &(1 << place).to_string(), division);
                    }
                });
            });
        }
    });
}

fn annotation(pickle: Spelled<'_, '_, '_>, annotation: &Annotation) {
    pickle.dict(|pickle| {
        pickle.field("stage", |pickle| pickle.text(&annotation.stage));
        pickle.field("name", |pickle| pickle.text(&annotation.name));
        optional(pickle, "device", annotation.device);
        optional(pickle, "time_us", annotation.time_us);
    });
}
