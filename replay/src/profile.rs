//! Which version of PyTorch made a recording, as far as the file shows.

use parkade::profile::Profile;
use parkade::settings::Settings;

use super::statistics::StatisticsFile;
use parkade_recording::Recording;

/// What tells that a recording is newer than PyTorch 2.11.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileEvidence {
    /// Its settings have names that 2.11 does not have.
    SettingNames,
    /// Its settings string has keys that 2.11 refuses.
    SettingsText,
    /// Its trace entries name their pools.
    EntryPools,
    /// The statistics beside it have names that 2.11 does not have.
    StatisticNames,
}

impl ProfileEvidence {
    /// The evidence in words that complete "seen from".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            ProfileEvidence::SettingNames => "the names of its settings",
            ProfileEvidence::SettingsText => "a key of its settings string",
            ProfileEvidence::EntryPools => "the pools of its trace entries",
            ProfileEvidence::StatisticNames => "the names of the statistics",
        }
    }
}

/// What shows that 2.15 made the recording; `None` if nothing does, for then 2.11 or an older one may have.
#[must_use]
pub fn newer_profile(recording: &Recording, statistics: Option<&StatisticsFile>) -> Option<(&'static Profile, ProfileEvidence)> {
    let settings = recording.settings.as_ref();
    let is_newer_text = |text: &str| {
        let accepts = |profile: &Profile| Settings::default().apply_as(&profile.dialect, text).is_ok();
        !accepts(&Profile::PYTORCH_2_11) && accepts(&Profile::PYTORCH_2_15)
    };
    let evidence = if settings.is_some_and(|settings| settings.has_newer_keys) {
        ProfileEvidence::SettingNames
    } else if settings.and_then(|settings| settings.text.as_deref()).is_some_and(is_newer_text) {
        ProfileEvidence::SettingsText
    } else if !recording.pools.is_empty() {
        ProfileEvidence::EntryPools
    } else if statistics.is_some_and(StatisticsFile::has_newer_names) {
        ProfileEvidence::StatisticNames
    } else {
        return None;
    };
    Some((&Profile::PYTORCH_2_15, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::RecordedSettings;

    #[test]
    fn newer_settings_show_the_newer_version() {
        let of = |settings| newer_profile(&Recording { settings: Some(settings), ..Recording::default() }, None);
        let text = |text: &str| RecordedSettings { text: Some(text.to_owned()), ..RecordedSettings::default() };
        assert_eq!(of(RecordedSettings::default()), None);
        assert_eq!(of(text("max_split_size_mb:64")), None);
        let (profile, evidence) = of(text("throw_on_cudamalloc_oom:True")).expect("a newer key");
        assert_eq!((profile.name, evidence), ("2.15", ProfileEvidence::SettingsText));
        let newer = RecordedSettings { has_newer_keys: true, ..RecordedSettings::default() };
        assert_eq!(of(newer).map(|found| found.1), Some(ProfileEvidence::SettingNames));
    }
}
