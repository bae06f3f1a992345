//! A verified recording as one JSON object.

use std::collections::BTreeMap;

use parkade_replay::{DeviceVerdict, Guess, StatsCheck};

use super::Verified;
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;

view! {
    /// With several devices the numbers are sums, and `devices` has each device's.
    pub(super) struct Object(verified: &Verified) {
        file: String = verified.file.display().to_string(),
        settings: String = verified.settings.settings.text.clone(),
        settings_refusal: Option<String> = verified.settings.refusal.as_ref().map(ToString::to_string),
        settings_origin: &'static str = origin(verified.settings.origin),
        profile: &'static str = verified.made_by.profile().name,
        profile_seen_from: Option<String> = verified.made_by.evidence_words(),
        made_by: MadeBy = MadeBy::of(&verified.made_by),
        limit_bytes: Option<u64> = verified.limit,
        assumed_limit_bytes: Option<u64> = verified.assumed_limit,
        fraction_of_unknown_memory: Option<f64> =
            verified.has_unknown_fraction().then_some(verified.settings.settings.per_process_memory_fraction),
        entries: u64 = sum(verified, |device| device.entries as u64),
        decisions: u64 = sum(verified, |device| device.decisions),
        mismatches: u64 = verified.mismatches(),
        first_mismatch: Option<Mismatch> = verified.devices.iter().find_map(Mismatch::first),
        peak_allocated_bytes: i64 = total(verified, DeviceVerdict::peak_allocated_bytes),
        peak_reserved_bytes: i64 = total(verified, DeviceVerdict::peak_reserved_bytes),
        ooms: u64 = sum(verified, |device| device.ooms),
        retries: i64 = verified.devices.iter().map(|device| device.stats.num_alloc_retries).sum(),
        seconds: f64 = verified.seconds,
        tolerated: Tolerated = Tolerated::of(verified),
        #[serde(skip_serializing_if = "Option::is_none")]
        not_in_file: Option<NotInFile> = only(verified).map(NotInFile::of),
        #[serde(skip_serializing_if = "Option::is_none")]
        statistics: Option<Option<Statistics>> = only(verified).map(|device| device.stats_check.as_ref().map(Statistics::of)),
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<Device>> = only(verified).is_none().then(|| all(&verified.devices, Device::of)),
    }
}

/// The recording's only device.
fn only(verified: &Verified) -> Option<&DeviceVerdict> {
    if let [device] = verified.devices.as_slice() { Some(device) } else { None }
}

fn sum(verified: &Verified, number: fn(&DeviceVerdict) -> u64) -> u64 {
    verified.devices.iter().map(number).sum()
}

/// A sum that does not overflow.
fn total(verified: &Verified, number: fn(&DeviceVerdict) -> i64) -> i64 {
    verified.devices.iter().map(number).fold(0, i64::saturating_add)
}

view! {
    struct Device(device: &DeviceVerdict) {
        device: u32 = device.device,
        entries: usize = device.entries,
        decisions: u64 = device.decisions,
        mismatches: u64 = device.mismatches,
        first_mismatch: Option<Mismatch> = Mismatch::first(device),
        peak_allocated_bytes: i64 = device.peak_allocated_bytes(),
        peak_reserved_bytes: i64 = device.peak_reserved_bytes(),
        ooms: u64 = device.ooms,
        retries: i64 = device.stats.num_alloc_retries,
        not_in_file: NotInFile = NotInFile::of(device),
    }
}

view! {
    struct Mismatch(device: u32, first: &parkade_replay::Mismatch) {
        device: u32 = device,
        entry: Option<usize> = first.entry,
        recorded: String = first.recorded.clone(),
        replayed: String = first.replayed.clone(),
    }
}

impl Mismatch {
    fn first(device: &DeviceVerdict) -> Option<Mismatch> {
        device.first.as_ref().map(|first| Mismatch::of(device.device, first))
    }
}

view! {
    struct NotInFile(device: &DeviceVerdict) {
        lost_beginning: Option<LostBeginning> = LostBeginning::find(device),
        empty_cache_calls: u64 = device.not_in_file.empty_caches,
        device_refusals: u64 = device.not_in_file.refusals,
        restored_checkpoints: u64 = device.not_in_file.restores,
        guessed_pools: Option<GuessedPools> = device.not_in_file.guess.as_ref().map(GuessedPools::of),
        gave_up_on_pools: bool = device.not_in_file.gave_up_on_pools,
        silent_empty_cache_calls: Option<i64> = device.stats_check.as_ref().map(|check| check.silent_empty_caches),
        peaks_reset_between_entries: Option<(usize, usize)> = device.stats_check.as_ref().and_then(|check| check.peaks_reset),
    }
}

#[derive(serde::Serialize)]
struct LostBeginning {
    segments: usize,
    blocks: usize,
    reserved_bytes: u64,
    assumed_sizes: usize,
    inferred_sizes: usize,
    unknown_ages: bool,
    assumed_collections: u64,
}

impl LostBeginning {
    fn find(device: &DeviceVerdict) -> Option<LostBeginning> {
        let not = &device.not_in_file;
        not.lost_beginning.map(|lost| LostBeginning {
            segments: lost.segments,
            blocks: lost.blocks,
            reserved_bytes: lost.reserved_bytes,
            assumed_sizes: lost.assumed_sizes,
            inferred_sizes: lost.inferred_sizes,
            unknown_ages: not.unknown_ages,
            assumed_collections: not.assumed_collections,
        })
    }
}

view! {
    /// Private pools inferred from the trace.
    struct GuessedPools(guess: &Guess) {
        pools: usize = guess.pools,
        requests: u64 = guess.requests,
        windows: u64 = guess.windows,
        contradictions: u64 = guess.contradictions,
        segments: Vec<GuessedSegment> = all(&guess.segments, GuessedSegment::of),
    }
}

view! {
    struct GuessedSegment(segment: &parkade_replay::GuessedSegment) {
        address: u64 = segment.address,
        pool: usize = segment.pool,
        made_at_entry: Option<usize> = segment.made_at,
        gone_at_entry: Option<usize> = segment.gone_at,
    }
}

view! {
    struct Statistics(check: &StatsCheck) {
        compared: usize = check.compared,
        unknowable: usize = check.unknowable,
        differences: Vec<StatisticDifference> = all(&check.differences, StatisticDifference::of),
        unknown_keys: Vec<String> = check.unknown_keys.clone(),
    }
}

view! {
    struct StatisticDifference(difference: &parkade_replay::StatsDifference) {
        key: String = difference.key.clone(),
        recorded: i64 = difference.recorded,
        replayed: i64 = difference.replayed,
    }
}

view! {
    /// Names in the file that are not known, with their counts.
    struct Tolerated(verified: &Verified) {
        unknown_top_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_top_keys.clone(),
        unknown_segment_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_segment_keys.clone(),
        unknown_block_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_block_keys.clone(),
        unknown_entry_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_entry_keys.clone(),
        unknown_actions: BTreeMap<String, u64> = verified.recording.tolerated.unknown_actions.clone(),
    }
}
