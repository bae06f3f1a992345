//! The parser for the keys that all accelerators share (spec 8.3, 8.4).

use alloc::format;
use alloc::string::String;

use super::dialect::{Action, CommonAction, Dialect};
use super::error::SettingsError;
use super::roundup::{self, ROUNDUP_SLOTS};
use super::tokens::Tokens;
use super::values::Settings;
use crate::units::MIB;

/// The most MiB whose bytes fit into 64 bits; larger values become this one.
const MAX_MIB: u64 = u64::MAX / MIB;

/// Resets what every string resets, stores the string, and applies its keys from left to right.
pub(super) fn apply(settings: &mut Settings, text: &str, dialect: &Dialect) -> Result<(), SettingsError> {
    settings.max_split_bytes = u64::MAX;
    settings.roundup_power2_divisions = [0; ROUNDUP_SLOTS];
    settings.garbage_collection_threshold = 0.0;
    settings.text = String::from(text);
    let tokens = Tokens::new(text, dialect.asserts);
    apply_large_segment(settings, &tokens, dialect)?;
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        let last = match dialect.action(key) {
            Some(Action::Common(action)) => apply_key(settings, &tokens, index, action)?,
            Some(Action::Device(_)) => tokens.skip_key(index)?,
            None => return Err(SettingsError::value(format!("Unrecognized key '{key}' in Accelerator allocator config."))),
        };
        index = tokens.next_key(last);
    }
    Ok(())
}

/// The first pass: the size of large segments, which bounds other values. Looks at every token, not only at
/// keys.
fn apply_large_segment(settings: &mut Settings, tokens: &Tokens, dialect: &Dialect) -> Result<(), SettingsError> {
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        if dialect.action(token) == Some(Action::Common(CommonAction::LargeSegment)) {
            index = tokens.value_index(index)?;
            let size_mb = tokens.unsigned(index)?;
            if size_mb <= 10 {
                return Err(SettingsError::value("CachingAllocator option large_segment_size_mb must be > 10 MB"));
            }
            settings.large_segment_bytes = size_mb.min(MAX_MIB) * MIB;
        }
        index += 1;
    }
    // Without that key nothing resets it.
    if dialect.action("large_segment_size_mb").is_some() {
        settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
    }
    Ok(())
}

/// Applies one key. Returns the index of the last token of its value.
fn apply_key(settings: &mut Settings, tokens: &Tokens, key_index: usize, action: CommonAction) -> Result<usize, SettingsError> {
    match action {
        CommonAction::LargeSegment => return tokens.skip_key(key_index),
        CommonAction::RoundupPower2Divisions => {
            return roundup::parse(tokens, key_index, &mut settings.roundup_power2_divisions);
        }
        _ => {}
    }
    let value = tokens.value_index(key_index)?;
    match action {
        CommonAction::MaxSplit => {
            settings.max_split_bytes = size_at(settings, tokens, value, "max_split_size_mb")?;
        }
        CommonAction::MaxNonSplitRounding => {
            settings.max_non_split_rounding_bytes = size_at(settings, tokens, value, "max_non_split_rounding_mb")?;
        }
        CommonAction::GarbageCollectionThreshold => {
            settings.garbage_collection_threshold = threshold_at(tokens, value)?;
        }
        CommonAction::ExpandableSegments => settings.expandable_segments = tokens.boolean(value)?,
        CommonAction::PinnedUseBackgroundThreads => settings.pinned_use_background_threads = tokens.boolean(value)?,
        CommonAction::PinnedMaxRoundThreshold => settings.pinned_max_round_threshold_mb = tokens.unsigned(value)?,
        CommonAction::PinnedMaxCachedSize => settings.pinned_max_cached_size_mb = tokens.unsigned(value)?,
        CommonAction::LargeSegment | CommonAction::RoundupPower2Divisions => {}
    }
    Ok(value)
}

/// Reads a size in MiB, at least a large segment. Returns bytes.
fn size_at(settings: &Settings, tokens: &Tokens, index: usize, option: &str) -> Result<u64, SettingsError> {
    let size_mb = tokens.unsigned(index)?;
    let smallest_mb = settings.large_segment_bytes / MIB;
    if size_mb < smallest_mb {
        return Err(SettingsError::value(format!("CachingAllocator option {option} too small, must be >= {smallest_mb}")));
    }
    Ok(size_mb.min(MAX_MIB) * MIB)
}

fn threshold_at(tokens: &Tokens, index: usize) -> Result<f64, SettingsError> {
    let threshold = tokens.double(index)?;
    if threshold > 0.0 && threshold < 1.0 {
        Ok(threshold)
    } else {
        Err(SettingsError::value("garbage_collect_threshold is invalid, set it in (0.0, 1.0)"))
    }
}
