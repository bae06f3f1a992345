//! What of some settings decides anything: options that differ only in the rest have the same outcome and are tried once.

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;

use super::program::Program;

/// The settings without what decides nothing for these programs in any amount of memory: how they are written, and a `max_split_size`
/// above every segment (spec 2.5, 2.9, 3.1: it is only compared with requests and free blocks, which are parts of segments).
pub(super) fn decisive(settings: &Settings, profile: &'static Profile, programs: &[Program]) -> Settings {
    let mut decisive = Settings { text: String::new(), ..settings.clone() };
    // Expandable segments grow to any size.
    if !settings.expandable_segments && largest_segment(settings, profile, programs) < settings.max_split_bytes {
        decisive.max_split_bytes = Settings::default().max_split_bytes;
    }
    decisive
}

/// The largest segment that these programs may have, in bytes.
fn largest_segment(settings: &Settings, profile: &'static Profile, programs: &[Program]) -> u64 {
    let policy = PyTorch::of(profile, settings.clone());
    let segment =
        |&bytes: &u64| policy.round(Bytes(bytes)).and_then(|block| policy.segment_for(block)).map_or(u64::MAX, Bytes::get);
    programs.iter().flat_map(|program| &program.sizes).map(segment).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::evaluate::evaluate;
    use crate::advise::replay::Replay;
    use crate::advise::sample_programs::{MIB, cut};

    fn settings(text: &str) -> Settings {
        Settings::from_environment(text).unwrap()
    }

    #[test]
    fn only_a_split_size_above_every_segment_is_left_out() {
        let programs = [cut()];
        let of = |text: &str| decisive(&settings(text), &Profile::PYTORCH_2_11, &programs);
        let plain = of("");
        assert_eq!(of("max_split_size_mb:101"), plain);
        assert_ne!(of("max_split_size_mb:100"), plain, "the segment of 100 MiB would not be split");
        assert_ne!(of("max_split_size_mb:101,garbage_collection_threshold:0.5"), plain);
        assert_ne!(of("max_split_size_mb:101,expandable_segments:True"), of("expandable_segments:True"), "they grow");
        let rounded = of("roundup_power2_divisions:2");
        assert_ne!(of("max_split_size_mb:128,roundup_power2_divisions:2"), rounded, "100 MiB are rounded to 128 MiB");
        assert_eq!(of("max_split_size_mb:129,roundup_power2_divisions:2"), rounded);
    }

    #[test]
    fn settings_that_decide_the_same_have_the_same_outcome() {
        let program = cut();
        for available_mib in [120, 150, 180, 200, 219, 220, 300] {
            let outcome = |text: &str| {
                let settings = settings(text);
                let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
                let mut outcome = evaluate(&replay, Some(available_mib * MIB));
                outcome.prediction.stats.max_split_size = 0;
                format!("{outcome:?}")
            };
            assert_eq!(outcome("max_split_size_mb:101"), outcome(""), "{available_mib} MiB");
        }
    }
}
