//! Reads a snapshot: finds its parts, reads each of them, and assembles the recording.
//!
//! The parts are its segments with their blocks (spec 7.3), in the form of every version (spec 7.8); the traces of its
//! devices (spec 7.4), which make up most of every recording; the allocator's settings and the annotations (spec 7.5); and
//! the stacks that these parts refer to (spec 7.3). Most stacks are shared: each list and each frame is read once.
//!
//! The `forward_frames` of an entry are calls in the form of Python's tracebacks, the outermost first: a string for each
//! call, ` File "model.py", line 12, in forward`, followed by the source line. They are the calls of the forward pass that
//! created the autograd node in which memory was allocated (spec 7.4). They only help to name a block, so the reader ignores
//! any other string.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::fields::{self, Fields, FormatError, FormatProblem, Place, optional};
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Loaded, Tag, Value};
use crate::recording::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, LimitSource, PoolId, PoolTable, RecordedSettings,
    Recording, RunLimit, Segment, Simulated, StackId, StackTable, Tolerated,
};

/// The parts of the snapshot's root.
struct Root<'l> {
    segments: &'l [Value],
    traces: &'l [Value],
    settings: Value,
    annotations: &'l [Value],
    added: Value,
    unknown: BTreeMap<String, u64>,
    dated: FileFields,
}

/// The lowest protocol of Python's own snapshots. C++'s snapshots use protocol 2 and gained some keys later than Python's, so
/// a missing key reveals nothing about the release.
const PYTHON_PROTOCOL: u8 = 3;

/// Builds a recording from a pickle.
///
/// # Errors
/// Returns [`FormatError`], with the segment, block or entry, for contents that no recording can represent.
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
    let added = optional(root.added, |value| read_added(loaded, value)).map_err(whole)?.unwrap_or_default();
    let Added { run_limit, simulated } = added;
    let (pools, unknown_entry_keys, unknown_actions) = traces.finish();
    let (unknown_segment_keys, unknown_block_keys) = segments.finish();
    let tolerated = Tolerated {
        unknown_top_keys: root.unknown,
        unknown_entry_keys,
        unknown_segment_keys,
        unknown_block_keys,
        unknown_actions,
        earlier_snapshots: loaded.earlier,
    };
    if loaded.protocol < PYTHON_PROTOCOL {
        fields = fields.without_absences();
    }
    let pools = Arc::new(pools);
    let devices = devices.into_values().map(|device| DeviceRecording { pools: Arc::clone(&pools), ..device }).collect();
    Ok(Recording { devices, settings, annotations, stacks: stacks.into_table(), run_limit, simulated, fields, tolerated })
}

/// The keys of a complete snapshot: PyTorch's keys, and the key under which parkade adds its own data.
const NAMES: [&str; 5] = ["segments", "device_traces", "allocator_settings", "external_annotations", "parkade"];

/// Returns whether a value is a complete snapshot rather than a segment.
fn is_snapshot(loaded: &Loaded, value: Value) -> bool {
    let found = Fields::of(Part::Snapshot, NAMES, &[]).look_up(loaded, value, "snapshot");
    found.is_ok_and(|[segments, traces, ..]| segments != Value::ABSENT || traces != Value::ABSENT)
}

/// Finds the parts: in the dict of a complete snapshot, or in the bare list of segments that `memory_snapshot()` returns.
fn root<'l>(loaded: &'l Loaded) -> Result<Root<'l>, FormatProblem> {
    if let Some(segments) = loaded.objects.as_items(loaded.root) {
        if segments.first().is_some_and(|&first| is_snapshot(loaded, first)) {
            return Err(FormatProblem::ListOfSnapshots { count: segments.len() });
        }
        if let Some(&first) = segments.first().filter(|&&first| loaded.objects.as_dict(first).is_none()) {
            let found = format!("a list whose first item is {}", fields::with_article(loaded.type_name(first)));
            return Err(FormatProblem::NotASnapshot { found });
        }
        let none: &[Value] = &[];
        return Ok(Root {
            segments,
            traces: none,
            settings: Value::ABSENT,
            annotations: none,
            added: Value::ABSENT,
            unknown: BTreeMap::new(),
            dated: FileFields::NONE,
        });
    }
    if loaded.objects.as_dict(loaded.root).is_none() {
        return Err(FormatProblem::NotASnapshot { found: fields::with_article(loaded.type_name(loaded.root)) });
    }
    let mut fields = Fields::of(Part::Snapshot, NAMES, &["host_segments", "host_traces"]);
    let [segments, traces, settings, annotations, added] = fields.look_up(loaded, loaded.root, "snapshot")?;
    let dated = fields.dated(loaded);
    let unknown = fields.into_unknown();
    if segments == Value::ABSENT && traces == Value::ABSENT {
        let keys: Vec<&str> = unknown.keys().take(5).map(String::as_str).collect();
        let found =
            if keys.is_empty() { "an empty dict".to_owned() } else { format!("a dict with the keys {}", keys.join(", ")) };
        return Err(FormatProblem::NotASnapshot { found });
    }
    let list = |value, key| Ok(optional(value, |value| fields::items(loaded, value, key))?.unwrap_or(&[]));
    Ok(Root {
        segments: list(segments, NAMES[0])?,
        traces: list(traces, NAMES[1])?,
        settings,
        annotations: list(annotations, NAMES[3])?,
        added,
        unknown,
        dated,
    })
}

/// What parkade adds to a snapshot.
#[derive(Default)]
struct Added {
    run_limit: Option<RunLimit>,
    simulated: Option<Simulated>,
}

/// Returns what the program that wrote the snapshot added. If the source of the limit is unknown to this reader, so is the
/// meaning of its number.
fn read_added(loaded: &Loaded, dict: Value) -> Result<Added, FormatProblem> {
    const KEYS: [&str; 5] =
        ["limit_bytes", "limit_source", "simulated_policy", "simulated_capacity_bytes", "simulated_limit_bytes"];
    let mut fields = Fields::new(KEYS, &[]);
    let [bytes, source, policy, capacity, limit] = fields.look_up(loaded, dict, NAMES[4])?;
    let policy = optional(policy, |value| fields::text(loaded, value, KEYS[2]))?;
    let capacity_bytes = optional(capacity, |value| fields::positive(loaded, value, KEYS[3]))?;
    let limit_bytes = optional(limit, |value| fields::positive(loaded, value, KEYS[4]))?;
    let simulated =
        policy.map(|name| Simulated { policy: String::from_utf8_lossy(name).as_ref().into(), capacity_bytes, limit_bytes });
    let bytes = optional(bytes, |value| fields::positive(loaded, value, "limit_bytes"))?;
    let source = optional(source, |value| fields::text(loaded, value, "limit_source"))?.and_then(LimitSource::from_name);
    let run_limit = bytes.zip(source).map(|(bytes, source)| RunLimit { bytes, source });
    Ok(Added { run_limit, simulated })
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
    let list = fields::items(loaded, list, "device_traces").map_err(whole)?;
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

/// The length of a segment of the small pool (spec 1.6, `kSmallBuffer`), in bytes,
/// for files that do not name the pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// The reader of segments.
struct SegmentReader {
    fields: Fields<12>,
    block_fields: Fields<6>,
    history_fields: Fields<3>,
}

/// A segment whose blocks have not been read yet, and the value that contains them.
struct Head {
    device: u32,
    segment: Segment,
    blocks: Value,
}

impl SegmentReader {
    fn new() -> Self {
        const SEGMENT: [&str; 12] = [
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "requested_size",
            "stream",
            "segment_type",
            "segment_pool_id",
            "is_expandable",
            "frames",
            "blocks",
        ];
        const BLOCK: [&str; 6] = ["address", "size", "requested_size", "state", "frames", "history"];
        SegmentReader {
            fields: Fields::of(Part::Segment, SEGMENT, &["cpp_frames"]),
            block_fields: Fields::of(Part::Block, BLOCK, &["cpp_frames"]),
            history_fields: Fields::new(["real_size", "frames", "addr"], &["cpp_frames"]),
        }
    }

    /// Reads the list of segments, sorted by device and address.
    ///
    /// # Errors
    /// Returns [`FormatError`] at the first invalid segment or block, or if two segments overlap.
    fn read(
        &mut self,
        loaded: &Loaded,
        list: &[Value],
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<(u32, Segment)>, FormatError> {
        let whole = |problem| FormatError { place: Place::Snapshot, problem };
        budget.spend(list.len(), Budget::SEGMENT).map_err(whole)?;
        let mut heads = Vec::with_capacity(list.len());
        for (number, &dict) in list.iter().enumerate() {
            let head = self.head(loaded, dict, stacks);
            let head = head.map_err(|problem| FormatError { place: Place::Segment { segment: number }, problem })?;
            heads.push((number, head));
        }
        // This happens before the blocks are read, so that segments that share one list of blocks are refused instead of
        // expanded.
        heads.sort_by_key(|(_, head)| (head.device, head.segment.address));
        check_overlap(&heads)?;
        let mut segments = Vec::with_capacity(heads.len());
        for (number, head) in heads {
            let mut segment = head.segment;
            segment.blocks = self.blocks(loaded, number, &segment, head.blocks, stacks, budget)?;
            segments.push((head.device, segment));
        }
        Ok(segments)
    }

    fn head(&mut self, loaded: &Loaded, dict: Value, stacks: &mut StackReader) -> Result<Head, FormatProblem> {
        let [device, address, total, allocated, active, requested, stream, kind, pool, expandable, frames, blocks] =
            self.fields.look_up(loaded, dict, "segments")?;
        let size = |value, key| optional(value, |value| fields::unsigned(loaded, value, key));
        let address = fields::unsigned(loaded, address, "address")?;
        let total_bytes = fields::positive(loaded, total, "total_size")?;
        fields::check_end(address, total_bytes)?;
        let large = match optional(kind, |kind| fields::text(loaded, kind, "segment_type"))? {
            Some(b"large") => true,
            Some(b"small") => false,
            Some(other) => return Err(fields::unknown_name("segment_type", other, "large, small")),
            None => total_bytes > SMALL_SEGMENT,
        };
        let segment = Segment {
            address,
            total_bytes,
            stream: optional(stream, |stream| fields::bits(loaded, stream, "stream"))?.unwrap_or(0),
            large,
            pool: optional(pool, |pool| fields::pool(loaded, pool, "segment_pool_id"))?,
            expandable: optional(expandable, |yes| fields::boolean(loaded, yes, "is_expandable"))?.unwrap_or(false),
            allocated_bytes: size(allocated, "allocated_size")?,
            active_bytes: size(active, "active_size")?,
            requested_bytes: size(requested, "requested_size")?,
            stack: stacks.read(loaded, frames)?,
            blocks: Vec::new(),
        };
        let device = optional(device, |device| fields::device(loaded, device, "device"))?.unwrap_or(0);
        Ok(Head { device, segment, blocks })
    }

    fn blocks(
        &mut self,
        loaded: &Loaded,
        number: usize,
        segment: &Segment,
        list: Value,
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<Block>, FormatError> {
        let whole = |problem| FormatError { place: Place::Segment { segment: number }, problem };
        let list = fields::items(loaded, list, "blocks").map_err(whole)?;
        budget.spend(list.len(), Budget::BLOCK).map_err(whole)?;
        let mut blocks = Vec::with_capacity(list.len());
        let mut end = segment.address;
        for (index, &dict) in list.iter().enumerate() {
            let place = Place::Block { segment: number, block: index };
            let block = self.block(loaded, dict, end, stacks).map_err(|problem| FormatError { place, problem })?;
            end = block.address + block.size; // Checked when the block was read.
            blocks.push(block);
        }
        let (sum, total) = (end - segment.address, segment.total_bytes);
        if sum != total {
            return Err(whole(FormatProblem::WrongSum { blocks: sum, total }));
        }
        Ok(blocks)
    }

    /// Reads a block, which must begin at `expected`.
    fn block(&mut self, loaded: &Loaded, dict: Value, expected: u64, stacks: &mut StackReader) -> Result<Block, FormatProblem> {
        let [address, size, requested, state, frames, history] = self.block_fields.look_up(loaded, dict, "blocks")?;
        let size = fields::positive(loaded, size, "size")?;
        let address = optional(address, |address| fields::unsigned(loaded, address, "address"))?.unwrap_or(expected);
        if address != expected {
            return Err(FormatProblem::Gap { expected, found: address });
        }
        fields::check_end(address, size)?;
        let state = match fields::text(loaded, state, "state")? {
            b"active_allocated" => BlockState::ActiveAllocated,
            b"active_pending_free" | b"active_awaiting_free" => BlockState::ActivePendingFree,
            b"inactive" => BlockState::Inactive,
            other => {
                let known = "active_allocated, active_pending_free, active_awaiting_free, inactive";
                return Err(fields::unknown_name("state", other, known));
            }
        };
        let requested = optional(requested, |size| fields::unsigned(loaded, size, "requested_size"))?;
        let stack = stacks.read(loaded, frames)?;
        let (requested, stack) = match self.last_request(loaded, history, stacks)? {
            Some((old_requested, old_stack)) => {
                (requested.or(Some(old_requested)), if stack == StackId::NONE { old_stack } else { stack })
            }
            None => (requested, stack),
        };
        Ok(Block { address, size, requested, state, stack })
    }

    /// Returns the request that a block serves, in files of 1.x and 2.0: the first one in its `history`, as in PyTorch's
    /// viewers.
    fn last_request(
        &mut self,
        loaded: &Loaded,
        history: Value,
        stacks: &mut StackReader,
    ) -> Result<Option<(u64, StackId)>, FormatProblem> {
        let Some(history) = optional(history, |list| fields::items(loaded, list, "history"))? else {
            return Ok(None);
        };
        let Some(&first) = history.first() else {
            return Ok(None);
        };
        let [real_size, frames, _] = self.history_fields.look_up(loaded, first, "history")?;
        Ok(Some((fields::unsigned(loaded, real_size, "real_size")?, stacks.read(loaded, frames)?)))
    }

    /// Returns the dated keys of the segments and blocks.
    fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.fields.dated(loaded);
        dated.add(self.block_fields.dated(loaded));
        dated
    }

    /// Returns the unknown keys of segments, and those of blocks.
    fn finish(self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.fields.into_unknown(), self.block_fields.into_unknown())
    }
}

fn check_overlap(heads: &[(usize, Head)]) -> Result<(), FormatError> {
    for pair in heads.windows(2) {
        let [(other, before), (number, after)] = pair else {
            continue;
        };
        let end = before.segment.address + before.segment.total_bytes; // Checked when the head was read.
        if before.device == after.device && after.segment.address < end {
            let address = after.segment.address;
            let problem = FormatProblem::Overlap { other: *other, device: after.device, address };
            return Err(FormatError { place: Place::Segment { segment: *number }, problem });
        }
    }
    Ok(())
}

/// The reader of the traces of all devices.
struct TraceReader {
    fields: Fields<9>,
    pools: PoolTable,
    unknown_actions: BTreeMap<String, u64>,
    /// The actions that occurred, among those that only some releases have.
    actions: FileFields,
    /// The string objects most recently seen as `action`, and the actions that they name.
    recent: [(Value, Option<Action>); RECENT],
    next_recent: usize,
    /// The pool object most recently seen, and its index.
    last_pool: (Value, PoolId),
}

/// The number of action strings to remember. There are nine actions, and most files share one string object for each.
const RECENT: usize = 12;

/// An action added in 2.14: a note that the program attaches to an allocation and that affects no decision.
const ANNOTATE: &[u8] = b"annotate";

impl TraceReader {
    fn new() -> Self {
        const NAMES: [&str; 9] =
            ["action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id", "forward_frames"];
        const IGNORED: &[&str] = &["compile_context", "user_metadata", "internal_metadata", "cpp_frames"];
        TraceReader {
            fields: Fields::of(Part::Entry, NAMES, IGNORED),
            actions: FileFields::NONE,
            pools: PoolTable::default(),
            unknown_actions: BTreeMap::new(),
            recent: [(Value::ABSENT, None); RECENT],
            next_recent: 0,
            last_pool: (Value::ABSENT, PoolId::NONE),
        }
    }

    /// Reads one device's entries, except those with unknown actions.
    ///
    /// # Errors
    /// Returns [`FormatError`] for the first invalid entry.
    fn read(
        &mut self,
        loaded: &Loaded,
        device: usize,
        list: &[Value],
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<Entry>, FormatError> {
        budget.spend(list.len(), Budget::ENTRY).map_err(|problem| FormatError { place: Place::Trace { device }, problem })?;
        let mut trace = Vec::with_capacity(list.len());
        for (number, &dict) in list.iter().enumerate() {
            match self.entry(loaded, dict, stacks) {
                Ok(Some(entry)) => trace.push(entry),
                Ok(None) => {}
                Err(problem) => {
                    return Err(FormatError { place: Place::Entry { device, entry: number }, problem });
                }
            }
        }
        Ok(trace)
    }

    fn entry(&mut self, loaded: &Loaded, dict: Value, stacks: &mut StackReader) -> Result<Option<Entry>, FormatProblem> {
        let [action, addr, device_free, size, stream, time_us, frames, pool_id, forward_frames] =
            self.fields.look_up(loaded, dict, "device_traces")?;
        let Some(action) = self.action(loaded, action)? else {
            return Ok(None);
        };
        let size = match action {
            Action::Oom | Action::Snapshot => fields::unsigned(loaded, size, "size")?,
            _ => fields::positive(loaded, size, "size")?,
        };
        let address = match action {
            Action::Oom => optional(device_free, |free| fields::unsigned(loaded, free, "device_free"))?.unwrap_or(0),
            Action::Snapshot => optional(addr, |addr| fields::unsigned(loaded, addr, "addr"))?.unwrap_or(0),
            _ => {
                let address = fields::unsigned(loaded, addr, "addr")?;
                fields::check_end(address, size)?;
                address
            }
        };
        let mut entry = Entry::new(action, address, size, fields::bits(loaded, stream, "stream")?);
        entry.set_time(optional(time_us, |time| fields::unsigned(loaded, time, "time_us"))?);
        entry.stack = stacks.read(loaded, frames)?;
        if forward_frames != Value::ABSENT {
            entry.stack = stacks.with_forward(loaded, entry.stack, forward_frames);
        }
        entry.pool = self.pool(loaded, pool_id)?;
        Ok(Some(entry))
    }

    #[inline]
    fn action(&mut self, loaded: &Loaded, value: Value) -> Result<Option<Action>, FormatProblem> {
        match self.recent.iter().find(|(known, _)| *known == value) {
            Some((_, Some(action))) => Ok(Some(*action)),
            _ => self.new_action(loaded, value),
        }
    }

    fn new_action(&mut self, loaded: &Loaded, value: Value) -> Result<Option<Action>, FormatProblem> {
        let text = fields::text(loaded, value, "action")?;
        let action = Action::from_name(text);
        self.actions.note(Part::Action, text);
        match action {
            Some(_) => {
                self.recent[self.next_recent] = (value, action);
                self.next_recent = (self.next_recent + 1) % RECENT;
            }
            None if text == ANNOTATE => {}
            None => fields::count_name(&mut self.unknown_actions, fields::shown_name(text), 1),
        }
        Ok(action)
    }

    #[inline]
    fn pool(&mut self, loaded: &Loaded, value: Value) -> Result<PoolId, FormatProblem> {
        if value == self.last_pool.0 {
            return Ok(self.last_pool.1);
        }
        let pool = optional(value, |value| fields::pool(loaded, value, "pool_id"))?;
        let place = pool.map_or(PoolId::NONE, |id| self.pools.intern(id));
        self.last_pool = (value, place);
        Ok(place)
    }

    /// Returns the dated keys of the entries.
    fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.fields.dated(loaded);
        dated.add(self.actions);
        dated
    }

    /// Returns the pools, the unknown keys and the unknown actions that were seen.
    fn finish(self) -> (PoolTable, BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.pools, self.fields.into_unknown(), self.unknown_actions)
    }
}

/// The keys of `roundup_power2_divisions`: the beginning of each interval, in MiB (spec 7.5).
pub(crate) const DIVISION_KEYS: [&str; 16] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];

/// Reads the allocator settings and which dated keys they have.
///
/// # Errors
/// Returns [`FormatError`] if a setting has the wrong type.
fn read_settings(loaded: &Loaded, dict: Value) -> Result<(RecordedSettings, FileFields), FormatError> {
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
    let flag = |value, key| optional(value, |value| fields::boolean(loaded, value, key));
    let text = optional(text, |text| fields::text(loaded, text, NAMES[0]))?;
    let settings = RecordedSettings {
        text: text.map(|text| String::from_utf8_lossy(text).into_owned()),
        max_split_size: optional(split, |value| fields::signed(loaded, value, NAMES[1]))?,
        garbage_collection_threshold: optional(threshold, |value| fields::float(loaded, value, NAMES[2]))?,
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
        *division = optional(value, |value| fields::unsigned(loaded, value, key))?.unwrap_or(0);
    }
    Ok(divisions)
}

/// Reads the annotations. Equal strings are stored once: a scope's name may occur a million times.
///
/// # Errors
/// Returns [`FormatError`] for the first invalid annotation.
fn read_annotations(loaded: &Loaded, list: &[Value], stacks: &mut StackReader) -> Result<Vec<Annotation>, FormatError> {
    let mut fields = Fields::new(["name", "stage", "device", "time_us"], &[]);
    let mut annotation = |dict: Value| -> Result<Annotation, FormatProblem> {
        let [name, stage, device, time_us] = fields.look_up(loaded, dict, "external_annotations")?;
        Ok(Annotation {
            name: stacks.text(loaded, name, "name")?,
            stage: stacks.text(loaded, stage, "stage")?,
            device: optional(device, |value| fields::signed(loaded, value, "device"))?,
            time_us: optional(time_us, |value| fields::signed(loaded, value, "time_us"))?,
        })
    };
    let read = |(number, &dict): (usize, &Value)| {
        annotation(dict).map_err(|problem| FormatError { place: Place::Annotation { annotation: number }, problem })
    };
    list.iter().enumerate().map(read).collect()
}

/// Stacks longer than this are not paired (one from a backward pass with one from a forward pass). If they were, a file with
/// only a few bytes for each pair could make the reader process the same stacks again and again.
const MOST_PAIRED: usize = 1000;

/// The reader of stacks, which collects them in a table.
struct StackReader {
    fields: Fields<3>,
    /// Stacks by list object, frames by dict object, and strings by string object.
    lists: HashMap<Value, StackId>,
    frames: HashMap<Value, u32>,
    texts: HashMap<Value, Arc<str>>,
    /// Stacks of the forward pass by list object, and their calls by string object.
    forward_lists: HashMap<Value, StackId>,
    forward_calls: HashMap<Value, Option<u32>>,
    table: StackTable,
}

impl StackReader {
    fn new() -> Self {
        const IGNORED: &[&str] = &["fx_node_op", "fx_node_name", "fx_original_trace", "fx_node_info"];
        StackReader {
            fields: Fields::new(["filename", "line", "name"], IGNORED),
            lists: HashMap::new(),
            frames: HashMap::new(),
            texts: HashMap::new(),
            forward_lists: HashMap::new(),
            forward_calls: HashMap::new(),
            table: StackTable::default(),
        }
    }

    /// Returns the stacks read so far.
    fn into_table(self) -> StackTable {
        self.table
    }

    /// Returns the stack of a `frames` value, or [`StackId::NONE`] if the value is absent, None or empty.
    #[inline]
    fn read(&mut self, loaded: &Loaded, frames: Value) -> Result<StackId, FormatProblem> {
        if frames == Value::ABSENT {
            return Ok(StackId::NONE);
        }
        self.read_list(loaded, frames)
    }

    fn read_list(&mut self, loaded: &Loaded, frames: Value) -> Result<StackId, FormatProblem> {
        let Some(items) = optional(frames, |list| fields::items(loaded, list, "frames"))? else {
            return Ok(StackId::NONE);
        };
        if items.is_empty() {
            return Ok(StackId::NONE);
        }
        if let Some(&stack) = self.lists.get(&frames) {
            return Ok(stack);
        }
        let calls = items.iter().map(|&frame| self.read_frame(loaded, frame)).collect::<Result<Vec<u32>, _>>()?;
        let stack = self.table.intern_stack(&calls);
        self.lists.insert(frames, stack);
        Ok(stack)
    }

    /// Returns a stack, extended by its `forward_frames`. Ignores any values there that are not calls, because they only help
    /// to name a block.
    fn with_forward(&mut self, loaded: &Loaded, stack: StackId, list: Value) -> StackId {
        if self.table.calls(stack).len() > MOST_PAIRED {
            return stack;
        }
        let forward = match self.forward_lists.get(&list) {
            Some(&known) => known,
            None => {
                let texts = loaded.objects.as_items(list).unwrap_or_default();
                let calls = texts.iter().rev().filter_map(|&text| self.forward_call(loaded, text));
                let calls: Vec<u32> = calls.take(MOST_PAIRED).collect();
                let forward = self.table.intern_stack(&calls);
                self.forward_lists.insert(list, forward);
                forward
            }
        };
        self.table.intern_with_forward(stack, forward)
    }

    fn forward_call(&mut self, loaded: &Loaded, text: Value) -> Option<u32> {
        if let Some(&known) = self.forward_calls.get(&text) {
            return known;
        }
        let call = loaded.texts.get(text).and_then(read).map(|frame| self.table.intern_frame(frame));
        self.forward_calls.insert(text, call);
        call
    }

    fn read_frame(&mut self, loaded: &Loaded, frame: Value) -> Result<u32, FormatProblem> {
        if let Some(&number) = self.frames.get(&frame) {
            return Ok(number);
        }
        let [filename, line, name] = self.fields.look_up(loaded, frame, "frames")?;
        let line = optional(line, |line| fields::bits(loaded, line, "line"))?.unwrap_or(0);
        let read = Frame {
            filename: self.text(loaded, filename, "filename")?,
            // Unknown lines are 0, -1 or 2^64 - 1, as in code that torch.compile generated; no source file has 2^32
            // lines.
            line: u32::try_from(line).unwrap_or(0),
            name: self.text(loaded, name, "name")?,
        };
        let number = self.table.intern_frame(read);
        self.frames.insert(frame, number);
        Ok(number)
    }

    /// Returns a string, shared with equal strings; empty if absent. File names need not be UTF-8: invalid bytes are
    /// replaced.
    fn text(&mut self, loaded: &Loaded, value: Value, key: &'static str) -> Result<Arc<str>, FormatProblem> {
        if let Some(text) = self.texts.get(&value) {
            return Ok(Arc::clone(text));
        }
        let bytes = optional(value, |value| fields::text(loaded, value, key))?.unwrap_or(b"");
        let text: Arc<str> = String::from_utf8_lossy(bytes).into();
        self.texts.insert(value, Arc::clone(&text));
        Ok(text)
    }
}

/// The number of bytes in the file that are not yet accounted for.
///
/// Every segment, block, entry and annotation uses up the minimum number of bytes that it can take in a pickle. Without this,
/// a file that refers to the same dict or list a million times, at a few bytes each, would expand to far more than its
/// length.
struct Budget {
    left: usize,
}

impl Budget {
    /// The minimum number of bytes for a segment: a dict of three keys, two bytes for each key and value, and a list of one
    /// block.
    const SEGMENT: usize = 29;
    /// The minimum number of bytes for a block (size, state) and for an annotation (name, stage).
    const BLOCK: usize = 11;
    /// The minimum number of bytes for a trace entry (action, address, size, stream).
    const ENTRY: usize = 19;

    /// Returns the budget for a file of this length, in bytes.
    fn new(length: usize) -> Self {
        Budget { left: length.saturating_add(1 << 16) }
    }

    /// Uses up the bytes for `dicts` dicts of one kind.
    ///
    /// # Errors
    /// Returns [`FormatProblem::Repeated`] if the file is too short to contain them all.
    fn spend(&mut self, dicts: usize, bytes_each: usize) -> Result<(), FormatProblem> {
        let left = self.left.checked_sub(dicts.saturating_mul(bytes_each));
        self.left = left.ok_or(FormatProblem::Repeated)?;
        Ok(())
    }
}

/// Returns the call that a string describes, or `None` if it describes none.
pub(super) fn read(text: &[u8]) -> Option<Frame> {
    let line = text.split(|&byte| byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (filename, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (number, name) = rest.split_once(", in ").unwrap_or((rest, ""));
    let line = number.parse().ok()?;
    Some(Frame { filename: filename.into(), line, name: name.into() })
}

/// Returns the text of a call, without the source line.
pub(super) fn written(frame: &Frame) -> String {
    format!("  File \"{}\", line {}, in {}\n", frame.filename, frame.line, frame.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_read_and_written() {
        let frame = Frame { filename: "/home/u/model.py".into(), line: 12, name: "forward".into() };
        let text = "  File \"/home/u/model.py\", line 12, in forward\n    return self.linear(x)\n";
        assert_eq!(read(text.as_bytes()).as_ref(), Some(&frame));
        assert_eq!(read(written(&frame).as_bytes()), Some(frame));
        let shell = read(b"  File \"<stdin>\", line 3").expect("a call without a function");
        assert_eq!((&*shell.filename, shell.line, &*shell.name), ("<stdin>", 3, ""));
    }

    #[test]
    fn what_is_no_call_is_none() {
        for text in ["", "\n", "  [Previous line repeated 3 more times]\n", "File \"a.py\"", "  File \"a.py\", line x, in f\n"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read(b"\xff\xfe"), None);
    }
}
