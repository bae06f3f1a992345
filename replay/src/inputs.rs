//! The facts that a replay needs in addition to the trace: settings, memory limit, PyTorch release, and the stats at the end.
//!
//! A snapshot contains the settings string and some of the values in effect. The string contains more (the size of large
//! segments, for example). The values are more reliable, because PyTorch also stores a string that it refused. The replay
//! therefore parses the string first, and the values in the file then override the result.

use std::collections::BTreeMap;

use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use parkade::stats::Stats;
use parkade_recording::RecordedSettings;
use thiserror::Error;

use crate::error::VerifyError;

/// The conditions under which the run was recorded, and its stats if they are to be compared.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The settings of the run.
    pub settings: ReplaySettings,
    /// The memory limit of the run, in bytes, which a recording does not contain.
    pub limit_bytes: Option<u64>,
    /// The stats at the end of the run, to compare with.
    pub stats_file: Option<StatsFile>,
}

/// The source of a replay's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsOrigin {
    /// The recording states them.
    Recorded,
    /// The recording states values that differ from its settings string; the values are used.
    RecordedValues,
    /// The recording is too old to state them; PyTorch's defaults are assumed.
    Assumed,
    /// The caller specified them.
    Given,
}

parkade_recording::names! {
    SettingsOrigin {
        SettingsOrigin::Recorded => "recorded",
        SettingsOrigin::RecordedValues => "recorded values",
        SettingsOrigin::Assumed => "assumed",
        SettingsOrigin::Given => "given",
    }
}

/// The settings to replay under, and their source.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplaySettings {
    /// The settings.
    pub settings: Settings,
    /// The source of the settings.
    pub origin: SettingsOrigin,
    /// PyTorch's error, if it refuses the recording's settings string.
    pub refusal: Option<SettingsError>,
    /// The rules of the PyTorch release to replay as.
    pub profile: &'static Profile,
}

impl ReplaySettings {
    /// Returns the settings of a recording made by PyTorch 2.11.
    ///
    /// # Errors
    /// Fails in the same cases as [`ReplaySettings::of_recording_as`].
    pub fn of_recording(recorded: Option<&RecordedSettings>) -> Result<ReplaySettings, VerifyError> {
        ReplaySettings::of_recording_as(&Profile::PYTORCH_2_11, recorded)
    }

    /// Returns the settings of a recording made by the release with this profile.
    ///
    /// # Errors
    /// Returns [`VerifyError::Settings`] if PyTorch refuses the settings string and the file contains no values.
    pub fn of_recording_as(
        profile: &'static Profile,
        recorded: Option<&RecordedSettings>,
    ) -> Result<ReplaySettings, VerifyError> {
        let Some(recorded) = recorded else {
            return Ok(ReplaySettings { settings: Settings::default(), origin: SettingsOrigin::Assumed, refusal: None, profile });
        };
        let text = recorded.text.clone().unwrap_or_default();
        let mut settings = Settings::default();
        let parsed = settings.apply_as(&profile.dialect, &text);
        let states_values = recorded.max_split_size.is_some() && recorded.roundup_power2_divisions.is_some();
        let refusal = match parsed {
            Err(error) if !states_values => return Err(VerifyError::Settings { text, error }),
            parsed => parsed.err(),
        };
        let from_text = settings.clone();
        override_with_values(&mut settings, recorded);
        let agrees = refusal.is_none() && settings == from_text;
        let origin = if agrees { SettingsOrigin::Recorded } else { SettingsOrigin::RecordedValues };
        Ok(ReplaySettings { settings, origin, refusal, profile })
    }

    /// Returns a settings string specified by the caller, read as PyTorch 2.11 reads it.
    ///
    /// # Errors
    /// Fails in the same cases as [`ReplaySettings::given_as`].
    pub fn given(text: &str) -> Result<ReplaySettings, VerifyError> {
        ReplaySettings::given_as(&Profile::PYTORCH_2_11, text)
    }

    /// Returns a settings string specified by the caller, read as the release with this profile reads it.
    ///
    /// # Errors
    /// Returns [`VerifyError::GivenSettings`] with PyTorch's error, if it refuses the string.
    pub fn given_as(profile: &'static Profile, text: &str) -> Result<ReplaySettings, VerifyError> {
        let settings = Settings::from_environment_as(&profile.dialect, text)
            .map_err(|error| VerifyError::GivenSettings { text: text.to_owned(), error })?;
        Ok(ReplaySettings { settings, origin: SettingsOrigin::Given, refusal: None, profile })
    }
}

fn override_with_values(settings: &mut Settings, recorded: &RecordedSettings) {
    if let Some(max_split_size) = recorded.max_split_size {
        // Signed in the file: -1 means no limit (spec 7.5).
        settings.max_split_bytes = max_split_size.cast_unsigned();
    }
    if let Some(threshold) = recorded.garbage_collection_threshold {
        settings.garbage_collection_threshold = threshold;
    }
    if let Some(divisions) = recorded.roundup_power2_divisions {
        settings.roundup_power2_divisions = divisions;
    }
    if let Some(expandable) = recorded.expandable_segments {
        settings.expandable_segments = expandable;
    }
    if let Some(reuse) = recorded.graph_capture_record_stream_reuse {
        settings.graph_capture_record_stream_reuse = reuse;
    }
    if let Some(release_lock) = recorded.release_lock_on_cudamalloc {
        settings.release_lock_on_cudamalloc = release_lock;
    }
}

/// Keys that PyTorch 2.3 introduced.
const SINCE_2_3: [&str; 3] = ["num_sync_all_streams", "num_device_alloc", "num_device_free"];

/// A key that PyTorch 2.12 added.
pub(crate) const SINCE_2_12: &str = "num_oom_rejections";

/// The contents of a `memory_stats()` dictionary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsFile {
    /// The keys of PyTorch 2.11, and num_oom_rejections.
    pub(crate) known: BTreeMap<String, i64>,
    /// Keys that parkade does not know.
    pub unknown: Vec<String>,
}

/// The reason why a stats file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StatsFileError {
    /// A required key is missing.
    #[error("the key {0:?} is missing: is this the output of torch.cuda.memory_stats()?")]
    Missing(String),
}

impl StatsFile {
    /// Returns the stats in a dictionary; keys that parkade does not know are kept apart.
    ///
    /// # Errors
    /// Returns [`StatsFileError::Missing`] if one of the 119 keys that every release since 2.1 has is missing.
    pub fn new(mut entries: BTreeMap<String, i64>) -> Result<StatsFile, StatsFileError> {
        let mut known = BTreeMap::new();
        for (key, _) in Stats::default().entries() {
            match entries.remove(&key) {
                Some(value) => drop(known.insert(key, value)),
                None if SINCE_2_3.contains(&key.as_str()) => {}
                None => return Err(StatsFileError::Missing(key)),
            }
        }
        known.extend(entries.remove_entry(SINCE_2_12));
        Ok(StatsFile { known, unknown: entries.into_keys().collect() })
    }

    /// Returns whether the file has this key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.known.contains_key(key) || self.unknown.iter().any(|unknown| unknown == key)
    }

    /// Returns the stats in the form that the core keeps.
    pub(crate) fn stats(&self) -> Stats {
        let entries = self.known.iter().map(|(key, &value)| (key.as_str(), value));
        // Cannot fail: the keys are the core's own.
        Stats::from_entries(entries).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_of_2_12_is_known() {
        let mut entries: BTreeMap<String, i64> = Stats::default().entries().into_iter().collect();
        entries.extend([(SINCE_2_12.to_owned(), 3), ("a_key_of_tomorrow".to_owned(), 4)]);
        let file = StatsFile::new(entries).expect("the stats of 2.12");
        assert_eq!((file.stats().num_oom_rejections, file.unknown), (3, vec!["a_key_of_tomorrow".to_owned()]));
    }

    #[test]
    fn the_counters_of_2_3_may_be_missing_and_no_others() {
        let entries: BTreeMap<String, i64> = Stats::default().entries().into_iter().collect();
        let without = |key: &str| {
            let mut entries = entries.clone();
            entries.remove(key).expect("a key");
            StatsFile::new(entries)
        };
        let older = without("num_device_alloc").expect("the stats of 2.2");
        assert!(!older.has("num_device_alloc") && older.has("num_ooms"));
        assert_eq!(without("num_ooms"), Err(StatsFileError::Missing("num_ooms".to_owned())));
    }

    /// Returns settings in which every value differs from the default, and from those of the strings of the test.
    fn other_values() -> Settings {
        Settings {
            max_split_bytes: 96 << 20,
            garbage_collection_threshold: 0.25,
            expandable_segments: false,
            roundup_power2_divisions: [2; 16],
            graph_capture_record_stream_reuse: true,
            release_lock_on_cudamalloc: true,
            ..Settings::default()
        }
    }

    /// Returns the values that a file states, if it states those of the six whose bits are set.
    fn stating(bits: u32, text: Option<&str>, values: &Settings) -> RecordedSettings {
        let has = |bit: u32| bits >> bit & 1 == 1;
        RecordedSettings {
            text: text.map(str::to_owned),
            max_split_size: has(0).then_some(values.max_split_bytes.cast_signed()),
            roundup_power2_divisions: has(1).then_some(values.roundup_power2_divisions),
            garbage_collection_threshold: has(2).then_some(values.garbage_collection_threshold),
            expandable_segments: has(3).then_some(values.expandable_segments),
            graph_capture_record_stream_reuse: has(4).then_some(values.graph_capture_record_stream_reuse),
            release_lock_on_cudamalloc: has(5).then_some(values.release_lock_on_cudamalloc),
            has_newer_keys: false,
        }
    }

    /// Returns the string's settings with those values that the file states.
    fn combined(bits: u32, of_text: &Settings, values: &Settings) -> Settings {
        let from = |bit: u32| if bits >> bit & 1 == 1 { values } else { of_text };
        Settings {
            max_split_bytes: from(0).max_split_bytes,
            roundup_power2_divisions: from(1).roundup_power2_divisions,
            garbage_collection_threshold: from(2).garbage_collection_threshold,
            expandable_segments: from(3).expandable_segments,
            graph_capture_record_stream_reuse: from(4).graph_capture_record_stream_reuse,
            release_lock_on_cudamalloc: from(5).release_lock_on_cudamalloc,
            ..of_text.clone()
        }
    }

    #[test]
    fn each_stated_value_counts_and_two_of_them_replace_a_refused_string() {
        let accepted = "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.5";
        for text in [None, Some(""), Some(accepted), Some("nonsense"), Some("expandable_segments:True,nonsense:1")] {
            let is_refused = text.is_some_and(|text| text.contains("nonsense"));
            let mut of_text = Settings::default();
            let parsed = of_text.apply_as(&Profile::PYTORCH_2_11.dialect, text.unwrap_or_default());
            assert_eq!(parsed.is_err(), is_refused, "{text:?}");
            for (bits, values) in (0..64).flat_map(|bits| [(bits, other_values()), (bits, of_text.clone())]) {
                let found = ReplaySettings::of_recording(Some(&stating(bits, text, &values)));
                if is_refused && bits & 0b11 != 0b11 {
                    let error = parsed.clone().expect_err("a refusal");
                    assert!(
                        matches!(&found, Err(VerifyError::Settings { error: why, .. }) if *why == error),
                        "{text:?} {bits:b}"
                    );
                    continue;
                }
                let settings = combined(bits, &of_text, &values);
                let is_own = !is_refused && settings == of_text;
                let origin = if is_own { SettingsOrigin::Recorded } else { SettingsOrigin::RecordedValues };
                let expected =
                    ReplaySettings { settings, origin, refusal: parsed.clone().err(), profile: &Profile::PYTORCH_2_11 };
                assert_eq!(found.expect("settings"), expected, "{text:?} {bits:b}");
            }
        }
    }
}
