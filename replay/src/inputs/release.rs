//! Guessing which release of PyTorch made a recording, from what only newer ones write.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::Recording;

use super::stats_file::StatsFile;

/// What shows that a release after PyTorch 2.11 made a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseEvidence {
    /// It has settings that 2.11 does not have.
    SettingNames,
    /// Its settings string has a key that 2.11 refuses.
    SettingsText,
    /// Its trace entries name their pools.
    EntryPools,
    /// Its stats file has keys that 2.11 does not have.
    StatNames,
}

impl ReleaseEvidence {
    /// The evidence as the end of a sentence: "seen from the pools of its trace entries".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            ReleaseEvidence::SettingNames => "the names of its settings",
            ReleaseEvidence::SettingsText => "a key of its settings string",
            ReleaseEvidence::EntryPools => "the pools of its trace entries",
            ReleaseEvidence::StatNames => "the names of the statistics",
        }
    }
}

/// The rules of PyTorch 2.15 and what shows that a release with these made the recording.
///
/// `None` if nothing does: then 2.11 or an older release may have.
#[must_use]
pub fn newer_release(recording: &Recording, stats_file: Option<&StatsFile>) -> Option<(&'static Profile, ReleaseEvidence)> {
    let settings = recording.settings.as_ref();
    let is_newer_text = |text: &str| {
        let accepts = |profile: &Profile| Settings::default().apply_as(&profile.dialect, text).is_ok();
        !accepts(&Profile::PYTORCH_2_11) && accepts(&Profile::PYTORCH_2_15)
    };
    let evidence = if settings.is_some_and(|settings| settings.has_newer_keys) {
        ReleaseEvidence::SettingNames
    } else if settings.and_then(|settings| settings.text.as_deref()).is_some_and(is_newer_text) {
        ReleaseEvidence::SettingsText
    } else if !recording.pools.is_empty() {
        ReleaseEvidence::EntryPools
    } else if stats_file.is_some_and(StatsFile::has_newer_names) {
        ReleaseEvidence::StatNames
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
    fn newer_settings_show_the_newer_release() {
        let of = |settings| newer_release(&Recording { settings: Some(settings), ..Recording::default() }, None);
        let text = |text: &str| RecordedSettings { text: Some(text.to_owned()), ..RecordedSettings::default() };
        assert_eq!(of(RecordedSettings::default()), None);
        assert_eq!(of(text("max_split_size_mb:64")), None);
        let (profile, evidence) = of(text("throw_on_cudamalloc_oom:True")).expect("a newer key");
        assert_eq!((profile.name, evidence), ("2.15", ReleaseEvidence::SettingsText));
        let newer = RecordedSettings { has_newer_keys: true, ..RecordedSettings::default() };
        assert_eq!(of(newer).map(|found| found.1), Some(ReleaseEvidence::SettingNames));
    }
}
