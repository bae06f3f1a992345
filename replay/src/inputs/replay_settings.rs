//! The settings that a recording was made under.
//!
//! A snapshot has the settings string and some of the values in force. The string says more (the size of large
//! segments, for example); the values are more reliable, as PyTorch stores a string that it refused too. So the
//! string is parsed first, and the values in the file then override the result.

use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use parkade_recording::RecordedSettings;

use crate::error::VerifyError;

/// Where the settings of a replay come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsOrigin {
    /// The recording states them.
    Recorded,
    /// The recording states values that differ from its settings string; the values are used.
    RecordedValues,
    /// The recording is too old to state them; PyTorch's defaults are assumed.
    Assumed,
    /// The caller gave them.
    Given,
}

/// The settings to replay under, and where they come from.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplaySettings {
    /// The settings.
    pub settings: Settings,
    /// Where they come from.
    pub origin: SettingsOrigin,
    /// PyTorch's error, if it refuses the recording's settings string.
    pub refusal: Option<SettingsError>,
    /// The rules of the PyTorch release to replay as.
    pub profile: &'static Profile,
}

impl ReplaySettings {
    /// The settings of a recording made by PyTorch 2.11.
    ///
    /// # Errors
    /// As [`ReplaySettings::of_recording_as`].
    pub fn of_recording(recorded: Option<&RecordedSettings>) -> Result<ReplaySettings, VerifyError> {
        ReplaySettings::of_recording_as(&Profile::PYTORCH_2_11, recorded)
    }

    /// The settings of a recording made by the release with this profile.
    ///
    /// # Errors
    /// [`VerifyError::Settings`] if PyTorch refuses the settings string and the file has no values either.
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

    /// A settings string given by the caller, read as PyTorch 2.11 does.
    ///
    /// # Errors
    /// As [`ReplaySettings::given_as`].
    pub fn given(text: &str) -> Result<ReplaySettings, VerifyError> {
        ReplaySettings::given_as(&Profile::PYTORCH_2_11, text)
    }

    /// A settings string given by the caller, read as the release with this profile does.
    ///
    /// # Errors
    /// [`VerifyError::GivenSettings`] with PyTorch's error, if it refuses the string.
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
