//! Finds the memory limit of a recorded run, which a recording does not state.
//!
//! The trace alone, without a replay, shows the reserved memory and therefore which limits to try if the limit is unknown. An
//! out-of-memory error shows how much memory the recorded run had.
//!
//! The decisions of a run that collected garbage depend on its limit, because garbage collection starts at a fraction of it.
//! If decisions differ without a limit, the limits that the out-of-memory errors allow are therefore tried. The run's limit
//! is the one under which every decision equals the recorded decision.

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::units::Bytes;
use parkade_recording::{Action, DeviceRecording, Entry};

use crate::{DeviceVerdict, ReplaySettings, VerifyError, VerifyOptions, verify_device};

const GIB: u64 = 1 << 30;
/// The maximum number of limits to try.
const MOST_GUESSES: usize = 8;

/// Returns the number of bytes that an entry adds to reserved memory; negative if the entry releases memory.
#[must_use]
pub fn growth_bytes(entry: &Entry) -> i128 {
    match entry.action {
        Action::SegmentAlloc | Action::SegmentMap => i128::from(entry.size),
        Action::SegmentFree | Action::SegmentUnmap => -i128::from(entry.size),
        _ => 0,
    }
}

/// Returns the bytes reserved before the first entry: the bytes in the final segments, traced back through the entries.
/// Negative only if the recording contradicts itself.
#[must_use]
pub fn reserved_at_start(recording: &DeviceRecording) -> i128 {
    let end: i128 = recording.segments.iter().map(|segment| i128::from(segment.total_bytes)).sum();
    end - recording.trace.iter().map(growth_bytes).sum::<i128>()
}

/// Returns the peak of reserved bytes.
#[must_use]
pub fn most_reserved(recording: &DeviceRecording) -> u64 {
    let mut reserved = reserved_at_start(recording);
    let mut most = reserved;
    for entry in &recording.trace {
        reserved += growth_bytes(entry);
        most = most.max(reserved);
    }
    u64::try_from(most.max(0)).unwrap_or(u64::MAX)
}

/// Returns the maximum number of bytes that a request would take from the device: a segment, or pages of an expandable
/// segment.
#[must_use]
pub fn segment_bytes(request: &Entry, policy: &PyTorch) -> u64 {
    let Some(size) = policy.round(Bytes(request.size)) else { return u64::MAX };
    let segment = policy.segment_for(size).unwrap_or(Bytes::MAX);
    if !policy.settings.expandable_segments {
        return segment.get();
    }
    let page = policy.page(PoolSlot::default_pool(policy.classify(size)));
    size.checked_round_up(page).unwrap_or(Bytes::MAX).max(segment).get()
}

/// Returns the whole gibibytes from `least_bytes` up to, but not including, `below_bytes`; at most [`MOST_GUESSES`] of them,
/// the smallest first. Users set limits in whole gibibytes, and never a limit of 0.
fn whole_gibibytes(least_bytes: u64, below_bytes: u64) -> impl Iterator<Item = u64> {
    let gibibytes = least_bytes.div_ceil(GIB).max(1)..below_bytes.div_ceil(GIB);
    gibibytes.take(MOST_GUESSES).map(|gibibytes| gibibytes.saturating_mul(GIB))
}

/// With a limit below the size of a small segment, no request could succeed (spec 1.3), so nobody sets a limit that low.
const LEAST_LIMIT_BYTES: u64 = 2 << 20;

/// The available memory, as far as a recording's out-of-memory errors show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityHint {
    /// The entry of the first error.
    pub entry: usize,
    /// At least this many bytes could be reserved.
    pub least_bytes: u64,
    /// Fewer than this many bytes could be reserved. Equal to `least_bytes` if the device itself was full, because then the
    /// size is known exactly.
    pub below_bytes: u64,
    /// The smallest number of reserved bytes that a refused request would have led to.
    pub refused_bytes: u64,
    /// The entry of the request that needed them.
    pub refused_entry: usize,
}

impl CapacityHint {
    /// Returns the size to assume: the smallest whole gibibyte in the interval, because users set limits in gibibytes. If
    /// there is none, or if the size is known exactly, it is `least_bytes`. It is at least 2 MiB, unless the error rules that
    /// out.
    #[must_use]
    pub fn assumed_bytes(&self) -> u64 {
        // This does not apply if the error rules it out or if the size is known.
        let least = if LEAST_LIMIT_BYTES < self.below_bytes { LEAST_LIMIT_BYTES } else { 0 };
        self.whole_gibibytes().next().unwrap_or(self.least_bytes.max(least))
    }

    /// Returns the whole gibibytes that may have been the limit, the smallest first.
    pub fn whole_gibibytes(&self) -> impl Iterator<Item = u64> {
        whole_gibibytes(self.least_bytes, self.below_bytes)
    }
}

/// Derives the hint from a device's trace; `None` if the run never ran out of memory. `own` are the recorded run's settings,
/// which determine how large a segment a request needs.
///
/// An out-of-memory entry states how much memory the device had free. If that is less than the request, the device was full:
/// the allocator could have reserved what it had plus the remaining free memory, or its earlier peak if that was larger. If
/// not, a limit refused the request. The limit is at least the peak of reserved bytes and less than what the request would
/// have led to.
#[must_use]
pub fn hint(recording: &DeviceRecording, own: &ReplaySettings) -> Option<CapacityHint> {
    let policy = PyTorch::of(own.profile, own.settings.clone());
    let mut reserved = reserved_at_start(recording).max(0);
    let mut most = reserved;
    let mut found: Option<CapacityHint> = None;
    for (entry, line) in recording.trace.iter().enumerate() {
        reserved += growth_bytes(line);
        most = most.max(reserved);
        if line.action == Action::Oom {
            let (free, wanted) = (i128::from(line.address), i128::from(segment_bytes(line, &policy)));
            let is_full = free < wanted;
            let refused_bytes = clamped(reserved + wanted);
            // A full device may have had more memory before: another process has taken it since.
            let had = most.max(reserved + free);
            let (least, below) = if is_full { (had, had) } else { (most, reserved + wanted) };
            let (least, below) = (clamped(least), clamped(below.max(least)));
            let alone = CapacityHint { entry, least_bytes: least, below_bytes: below, refused_bytes, refused_entry: entry };
            let first = found.unwrap_or(alone);
            let below_bytes = first.below_bytes.min(below);
            let least_bytes = first.least_bytes.max(least).min(below_bytes);
            let (refused_bytes, refused_entry) = (first.refused_bytes, first.refused_entry).min((refused_bytes, entry));
            found = Some(CapacityHint { entry: first.entry, least_bytes, below_bytes, refused_bytes, refused_entry });
        }
    }
    found
}

fn clamped(bytes: i128) -> u64 {
    u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
}

/// Verifies a device and finds its limit, if none is specified and garbage collection reveals it. Returns the verdict under
/// that limit and the limit in bytes: the smallest one in whole gibibytes that explains every decision. The limit is `None`
/// if the search was not necessary or found none.
///
/// It calls `progress` periodically with the number of entries done so far. The number starts over at 0 for each limit that
/// is tried.
///
/// # Errors
/// Fails if the recording cannot be replayed.
pub fn verify_finding_limit(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<(DeviceVerdict, Option<u64>), VerifyError> {
    finding_limit(recording, own, |verdict: &DeviceVerdict| verdict.mismatches, |own| verify_device(recording, own, progress))
}

/// Runs the search for any way of replaying the device: `replay` replays it under a limit, and `mismatches` returns the
/// number of decisions that differ.
///
/// # Errors
/// Returns any error that `replay` returns.
pub fn finding_limit<T>(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    mismatches: impl Fn(&T) -> u64,
    mut replay: impl FnMut(&VerifyOptions) -> Result<T, VerifyError>,
) -> Result<(T, Option<u64>), VerifyError> {
    let replayed = replay(own)?;
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if mismatches(&replayed) == 0 || !collects || own.limit_bytes.is_some() {
        return Ok((replayed, None));
    }
    for bytes in hint(recording, &own.settings).iter().flat_map(CapacityHint::whole_gibibytes) {
        let explained = replay(&VerifyOptions { limit_bytes: Some(bytes), ..own.clone() })?;
        if mismatches(&explained) == 0 {
            return Ok((explained, Some(bytes)));
        }
    }
    Ok((replayed, None))
}

/// Returns only the limit of [`verify_finding_limit`]. If the run collected no garbage, this replays nothing.
///
/// # Errors
/// Fails if the recording cannot be replayed.
pub fn find_limit(recording: &DeviceRecording, own: &VerifyOptions) -> Result<Option<u64>, VerifyError> {
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if collects { Ok(verify_finding_limit(recording, own, &mut |_| ())?.1) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_gibibytes_within_the_interval_are_tried() {
        let tried = |least, below| whole_gibibytes(least, below).map(|bytes| bytes / GIB).collect::<Vec<_>>();
        assert_eq!(tried(15 * GIB + 1, 17 * GIB + 1), [16, 17]);
        assert_eq!(tried(15 * GIB, 17 * GIB), [15, 16]);
        assert!(tried(15 * GIB + 1, 16 * GIB).is_empty());
        assert_eq!(tried(0, 2 * GIB), [1], "no limit is 0");
        assert_eq!(tried(0, u64::MAX).len(), MOST_GUESSES);
    }

    const MIB: u64 = 1 << 20;

    fn own() -> ReplaySettings {
        ReplaySettings::given_as(&parkade::profile::Profile::PYTORCH_2_11, "").expect("settings")
    }

    fn after(free_mib: u64, wanted_mib: u64) -> Option<CapacityHint> {
        let entry = |action, address, mib| Entry::new(action, address, mib * MIB, 0);
        let trace = vec![
            entry(Action::SegmentAlloc, 1 << 40, 100),
            entry(Action::SegmentAlloc, 2 << 40, 60),
            entry(Action::SegmentFree, 1 << 40, 100),
            entry(Action::Oom, free_mib * MIB, wanted_mib),
        ];
        hint(&DeviceRecording { trace, ..DeviceRecording::default() }, &own())
    }

    #[test]
    fn a_full_device_states_its_size_and_a_limit_lies_in_an_interval() {
        // The empty list of final segments contradicts the 60 MiB that are never freed, so the count starts at 0.
        let bounds = |found: Option<CapacityHint>| {
            found.map(|hint| (hint.entry, hint.least_bytes / MIB, hint.below_bytes / MIB, hint.refused_bytes / MIB))
        };
        assert_eq!(bounds(after(120, 130)), Some((3, 180, 180, 190)));
        assert_eq!(bounds(after(30, 50)), Some((3, 160, 160, 110)), "160 were reserved before something else took 70");
        assert_eq!(bounds(after(500, 150)), Some((3, 160, 210, 210)));
        assert_eq!(hint(&DeviceRecording::default(), &own()), None);
        let (refused_bytes, refused_entry) = (u64::MAX, 0);
        let hint = |least_bytes, below_bytes| CapacityHint { entry: 0, least_bytes, below_bytes, refused_bytes, refused_entry };
        let assumed = |least_bytes, below_bytes| hint(least_bytes, below_bytes).assumed_bytes();
        let gib = 1 << 30;
        assert_eq!(assumed(gib - 1, 3 * gib), gib, "a whole gibibyte");
        assert_eq!(assumed(gib + 1, 2 * gib), gib + 1, "there is none below two");
        assert_eq!(assumed(gib + 1, gib + 1), gib + 1, "known");
        assert_eq!(assumed(0, 3 << 29), gib, "0 is no limit");
        assert_eq!((assumed(0, 20 << 20), assumed(0, 2 << 20), assumed(0, 0)), (2 << 20, 0, 0), "the least that serves anything");
    }

    /// The bytes reserved before the first entry of [`every_short_trace`].
    const BEFORE: u64 = 100 * MIB;

    /// Returns every trace of at most three entries that reserve or release memory or run out of it, with the bytes reserved
    /// before its first entry and after each of its entries. The device has about as much free memory as is wanted.
    fn every_short_trace() -> Vec<(DeviceRecording, Vec<u64>)> {
        let policy = PyTorch::of(own().profile, own().settings);
        let mut kinds = vec![
            Entry::new(Action::SegmentAlloc, 1 << 40, 20 * MIB, 0),
            Entry::new(Action::SegmentMap, 2 << 40, 40 * MIB, 0),
            Entry::new(Action::SegmentFree, 1 << 40, 30 * MIB, 0),
            Entry::new(Action::SegmentUnmap, 2 << 40, 20 * MIB, 0),
        ];
        for request in [1, 5 * MIB, 30 * MIB] {
            let wanted = segment_bytes(&Entry::new(Action::Oom, 0, request, 0), &policy);
            let free = [0, wanted - 1, wanted, wanted + 1, 500 * MIB];
            kinds.extend(free.map(|free| Entry::new(Action::Oom, free, request, 0)));
        }
        let mut traces = vec![Vec::new()];
        for length in 0..3 {
            let longer = |trace: &Vec<Entry>| kinds.iter().map(|&entry| [&trace[..], &[entry]].concat()).collect::<Vec<_>>();
            let longest: Vec<Vec<Entry>> = traces.iter().filter(|trace| trace.len() == length).flat_map(longer).collect();
            traces.extend(longest);
        }
        let with_levels = |trace: Vec<Entry>| {
            let mut levels = vec![BEFORE];
            for entry in &trace {
                let level = levels[levels.len() - 1];
                levels.push(match entry.action {
                    Action::SegmentAlloc | Action::SegmentMap => level + entry.size,
                    Action::SegmentFree | Action::SegmentUnmap => level - entry.size,
                    _ => level,
                });
            }
            let size = levels[levels.len() - 1];
            let state = parkade_recording::BlockState::Inactive;
            let stack = parkade_recording::StackId::NONE;
            let block = parkade_recording::Block { address: 3 << 40, size, requested: None, state, stack };
            let segments = vec![parkade_recording::Segment::new(vec![block])];
            (DeviceRecording { trace, segments, ..DeviceRecording::default() }, levels)
        };
        traces.into_iter().map(with_levels).collect()
    }

    /// Returns the hint, from the definitions of its fields.
    fn defined(recording: &DeviceRecording, levels: &[u64]) -> Option<CapacityHint> {
        let policy = PyTorch::of(own().profile, own().settings);
        let errors: Vec<usize> = (0..recording.trace.len()).filter(|&at| recording.trace[at].action == Action::Oom).collect();
        let wanted = |at: usize| segment_bytes(&recording.trace[at], &policy);
        let free = |at: usize| recording.trace[at].address;
        let peak = |at: usize| levels[..=at].iter().copied().max().expect("the level before the first entry");
        let is_full = |at: usize| free(at) < wanted(at);
        // What one error shows alone: at least this many bytes, and fewer than this many.
        let least = |at: usize| if is_full(at) { peak(at).max(levels[at] + free(at)) } else { peak(at) };
        let below = |at: usize| if is_full(at) { least(at) } else { least(at).max(levels[at] + wanted(at)) };
        let below_bytes = errors.iter().map(|&at| below(at)).min()?;
        let least_bytes = errors.iter().map(|&at| least(at)).max()?.min(below_bytes);
        let (refused_bytes, refused_entry) = errors.iter().map(|&at| (levels[at] + wanted(at), at)).min()?;
        Some(CapacityHint { entry: errors[0], least_bytes, below_bytes, refused_bytes, refused_entry })
    }

    #[test]
    fn a_hint_is_what_all_errors_show_together() {
        let traces = every_short_trace();
        assert_eq!(traces.len(), 1 + 19 + 19 * 19 + 19 * 19 * 19);
        for (recording, levels) in traces {
            let shown: Vec<(Action, u64, u64)> =
                recording.trace.iter().map(|entry| (entry.action, entry.address, entry.size)).collect();
            assert_eq!(hint(&recording, &own()), defined(&recording, &levels), "{shown:?}");
            assert_eq!(Some(most_reserved(&recording)), levels.iter().copied().max(), "{shown:?}");
        }
    }

    /// A run whose decisions one limit alone explains, for every limit around those that are tried.
    #[test]
    fn the_first_limit_that_explains_every_decision_is_found() {
        let trace = vec![Entry::new(Action::SegmentAlloc, 1 << 40, 3 * GIB, 0), Entry::new(Action::Oom, 9 * GIB, 2 * GIB, 0)];
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let given = |settings, limit_bytes| {
            let settings = ReplaySettings::given_as(&parkade::profile::Profile::PYTORCH_2_11, settings).expect("settings");
            VerifyOptions { settings, limit_bytes, stats_file: None }
        };
        let found = |own: &VerifyOptions, explains: &dyn Fn(Option<u64>) -> bool| {
            let mut tried = Vec::new();
            let replay = |own: &VerifyOptions| {
                tried.push(own.limit_bytes.map(|bytes| bytes / GIB));
                Ok(own.limit_bytes)
            };
            let (under, limit) = finding_limit(&recording, own, |&limit| u64::from(!explains(limit)), replay).expect("a limit");
            (under.map(|bytes| bytes / GIB), limit.map(|bytes| bytes / GIB), tried)
        };
        let collects = given("garbage_collection_threshold:0.5", None);
        for gib in 1..8 {
            let (limit, tried) = match gib {
                3 => (Some(3), vec![None, Some(3)]),
                4 => (Some(4), vec![None, Some(3), Some(4)]),
                _ => (None, vec![None, Some(3), Some(4)]),
            };
            assert_eq!(found(&collects, &|limit| limit == Some(gib * GIB)), (limit, limit, tried), "{gib} GiB");
        }
        assert_eq!(found(&collects, &|limit| limit.is_some()), (Some(3), Some(3), vec![None, Some(3)]), "the smallest");
        assert_eq!(found(&collects, &|_| true), (None, None, vec![None]), "no limit is needed");
        assert_eq!(found(&given("", None), &|_| false), (None, None, vec![None]), "nothing was collected");
        let limited = given("garbage_collection_threshold:0.5", Some(7 * GIB));
        assert_eq!(found(&limited, &|_| false), (Some(7), None, vec![Some(7)]), "the caller knows it");
    }
}
