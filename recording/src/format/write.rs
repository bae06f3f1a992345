//! Converts a [`Recording`] back to a snapshot, in the form written by PyTorch 2.11 (spec 7.3 to 7.5), with the keys of the
//! recording's release ([`FileFields`](crate::FileFields)) where these differ from 2.11's keys.
//!
//! Reading the result produces an equal recording, except for the parts that [`Tolerated`](crate::Tolerated) counts.

use std::collections::HashMap;

use super::snapshot;
use super::snapshot::DIVISION_KEYS;
use crate::dated_keys::Part;
use crate::pickle::{Pickler, Style};
use crate::recording::{
    Action, Annotation, Block, DeviceRecording, Entry, RecordedSettings, Recording, Segment, StackId, StackTable,
};

/// Writes a recording as a pickle, uncompressed.
///
/// PyTorch's device numbers go up to 127; the trace of a device with a higher number is not written. If the recording has
/// settings newer than 2.11, of which only their presence is known, `max_round_threshold` and `max_cached_size` are written
/// as 0.
pub fn write(recording: &Recording, style: Style) -> Vec<u8> {
    let pickler = Pickler::new(style);
    let texts = [("compile_context", "N/A"), ("user_metadata", "")];
    let texts = texts.map(|(key, value)| (key, value, recording.fields.has(Part::Entry, key)));
    let (stacks, forwards, frames, pools) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let mut writer = Writer { pickler, recording, texts, stacks, forwards, frames, pools };
    writer.snapshot();
    writer.pickler.finish()
}

/// The pickle so far, and the memo slots of shared objects.
struct Writer<'r> {
    pickler: Pickler,
    recording: &'r Recording,
    /// Strings that this reader does not keep: their keys, the value to write, and whether the release writes the keys.
    texts: [(&'static str, &'static str, bool); 2],
    stacks: HashMap<StackId, u32>,
    forwards: HashMap<StackId, u32>,
    frames: HashMap<u32, u32>,
    pools: HashMap<(u64, u64), u32>,
}

impl<'r> Writer<'r> {
    fn snapshot(&mut self) {
        let recording = self.recording;
        self.pickler.begin_dict();
        self.pickler.text("segments");
        let all = |device: &'r DeviceRecording| device.segments.iter().map(move |segment| (device.device, segment));
        let segments: Vec<(u32, &Segment)> = recording.devices.iter().flat_map(all).collect();
        self.list(&segments, |writer, &(device, segment)| writer.segment(device, segment));
        self.pickler.text("device_traces");
        self.list(&self.traces(), |writer, trace| {
            let entries = trace.map_or(&[][..], |device| &device.trace);
            writer.list(entries, |writer, entry| writer.entry(entry, trace.and_then(|device| device.pools.get(entry.pool))));
        });
        if let Some(settings) = &recording.settings {
            self.pickler.text("allocator_settings");
            self.settings(settings);
        }
        if recording.fields.has(Part::Snapshot, "external_annotations") || !recording.annotations.is_empty() {
            self.pickler.text("external_annotations");
            self.list(&recording.annotations, Writer::annotation);
        }
        if recording.run_limit.is_some() || recording.simulated.is_some() {
            self.pickler.text("parkade");
            self.pickler.begin_dict();
            if let Some(limit) = recording.run_limit {
                self.number("limit_bytes", limit.bytes);
                self.pickler.text("limit_source");
                self.pickler.text(limit.source.name());
            }
            if let Some(simulated) = &recording.simulated {
                self.pickler.text("simulated_policy");
                self.pickler.text(&simulated.policy);
                self.optional_number("simulated_capacity_bytes", simulated.capacity_bytes);
                self.optional_number("simulated_limit_bytes", simulated.limit_bytes);
            }
            self.pickler.end_dict();
        }
        self.pickler.end_dict();
    }

    /// Returns the traces by device number: each position in the list is a device, and is empty for a device that is not in
    /// the recording.
    fn traces(&self) -> Vec<Option<&'r DeviceRecording>> {
        let mut traces = Vec::new();
        for device in self.recording.devices.iter().filter(|device| device.device < 128) {
            let index = device.device as usize;
            if traces.len() <= index {
                traces.resize(index + 1, None);
            }
            traces[index] = Some(device);
        }
        traces
    }

    fn segment(&mut self, device: u32, segment: &Segment) {
        self.pickler.begin_dict();
        self.number("device", device);
        self.number("address", segment.address);
        self.number("total_size", segment.total_bytes);
        self.optional_number("allocated_size", segment.allocated_bytes);
        self.optional_number("active_size", segment.active_bytes);
        self.optional_number("requested_size", segment.requested_bytes);
        self.number("stream", segment.stream);
        self.pickler.text("segment_type");
        self.pickler.text(if segment.large { "large" } else { "small" });
        if let Some(pool) = segment.pool {
            self.pickler.text("segment_pool_id");
            self.pickler.pair(pool);
        }
        self.flag("is_expandable", Some(segment.expandable));
        self.stack(segment.stack);
        self.pickler.text("blocks");
        self.list(&segment.blocks, Writer::block);
        self.pickler.end_dict();
    }

    fn block(&mut self, block: &Block) {
        self.pickler.begin_dict();
        self.number("address", block.address);
        self.number("size", block.size);
        self.optional_number("requested_size", block.requested);
        self.pickler.text("state");
        self.pickler.text(block.state.name());
        self.stack(block.stack);
        self.pickler.end_dict();
    }

    fn entry(&mut self, entry: &Entry, pool: Option<(u64, u64)>) {
        self.pickler.begin_dict();
        self.pickler.text("action");
        self.pickler.text(entry.action.name());
        self.number(if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.address);
        self.number("size", entry.size);
        self.number("stream", entry.stream);
        self.optional_number("time_us", entry.time());
        for (key, value, is_written) in self.texts {
            if is_written {
                self.pickler.text(key);
                self.pickler.text(value);
            }
        }
        if entry.stack != StackId::NONE {
            self.stack(entry.stack);
            self.forward(self.recording.stacks.forward(entry.stack));
        }
        if let Some(pool) = pool {
            self.pickler.text("pool_id");
            match self.pools.get(&pool) {
                Some(&slot) => self.pickler.again(slot),
                None => {
                    let slot = self.pickler.pair(pool);
                    self.pools.insert(pool, slot);
                }
            }
        }
        self.pickler.end_dict();
    }

    /// Writes the key `frames` and a stack. Equal stacks share one list object, and equal frames share one dict.
    fn stack(&mut self, stack: StackId) {
        self.pickler.text("frames");
        match self.stacks.get(&stack) {
            Some(&slot) => self.pickler.again(slot),
            None => {
                let stacks: &'r StackTable = &self.recording.stacks;
                let slot = self.list(stacks.calls(stack), |writer, &call| writer.frame(stacks, call));
                if stack != StackId::NONE {
                    self.stacks.insert(stack, slot);
                }
            }
        }
    }

    /// Writes the key `forward_frames`, if the calls of the forward pass are known.
    fn forward(&mut self, stack: StackId) {
        if stack == StackId::NONE {
            return;
        }
        self.pickler.text("forward_frames");
        if let Some(&slot) = self.forwards.get(&stack) {
            return self.pickler.again(slot);
        }
        let texts: Vec<String> = self.recording.stacks.frames(stack).map(snapshot::written).collect();
        let outermost_first: Vec<&String> = texts.iter().rev().collect();
        let slot = self.list(&outermost_first, |writer, text| writer.pickler.text(text));
        self.forwards.insert(stack, slot);
    }

    fn frame(&mut self, stacks: &'r StackTable, call: u32) {
        if let Some(&slot) = self.frames.get(&call) {
            return self.pickler.again(slot);
        }
        let slot = self.pickler.begin_dict();
        if let Some(frame) = stacks.frame(call) {
            self.pickler.text("filename");
            self.pickler.text(&frame.filename);
            self.number("line", frame.line);
            self.pickler.text("name");
            self.pickler.text(&frame.name);
        }
        self.pickler.end_dict();
        self.frames.insert(call, slot);
    }

    fn settings(&mut self, settings: &RecordedSettings) {
        self.pickler.begin_dict();
        if let Some(text) = &settings.text {
            self.pickler.text("PYTORCH_CUDA_ALLOC_CONF");
            self.pickler.text(text);
        }
        self.optional_number("max_split_size", settings.max_split_size);
        if let Some(threshold) = settings.garbage_collection_threshold {
            self.pickler.text("garbage_collection_threshold");
            self.pickler.float(threshold);
        }
        self.flag("expandable_segments", settings.expandable_segments);
        self.flag("release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc);
        self.flag("graph_capture_record_stream_reuse", settings.graph_capture_record_stream_reuse);
        if settings.has_newer_keys {
            self.number("max_round_threshold", 0);
            self.number("max_cached_size", 0);
        }
        if let Some(divisions) = &settings.roundup_power2_divisions {
            self.pickler.text("roundup_power2_divisions");
            self.pickler.begin_dict();
            for (key, &division) in DIVISION_KEYS.iter().zip(divisions) {
                self.number(key, division);
            }
            self.pickler.end_dict();
        }
        self.pickler.end_dict();
    }

    fn annotation(&mut self, annotation: &Annotation) {
        self.pickler.begin_dict();
        self.pickler.text("stage");
        self.pickler.text(&annotation.stage);
        self.pickler.text("name");
        self.pickler.text(&annotation.name);
        self.optional_number("device", annotation.device);
        self.optional_number("time_us", annotation.time_us);
        self.pickler.end_dict();
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) -> u32 {
        let slot = self.pickler.begin_list();
        for (index, value) in items.iter().enumerate() {
            self.pickler.before_item(index);
            item(self, value);
            self.pickler.after_item(index, items.len());
        }
        slot
    }

    fn number(&mut self, key: &str, value: impl Into<i128>) {
        self.pickler.text(key);
        self.pickler.integer(value);
    }

    fn optional_number(&mut self, key: &str, value: Option<impl Into<i128>>) {
        if let Some(value) = value {
            self.number(key, value);
        }
    }

    fn flag(&mut self, key: &str, value: Option<bool>) {
        if let Some(value) = value {
            self.pickler.text(key);
            self.pickler.boolean(value);
        }
    }
}
