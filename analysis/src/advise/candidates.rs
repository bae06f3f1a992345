//! Settings to try: a coarse grid, and the neighbours of a setting that turned out well.

use parkade::profile::Profile;
use parkade::settings::Settings;

/// The keys that the search sets; every other key of the recording's own settings is kept.
const SEARCHED: [&str; 4] =
    ["expandable_segments", "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions"];
/// The smallest `max_split_size_mb` worth trying. PyTorch accepts 20 (spec 8.4), but whole free segments are then oversize (spec 10.18).
const LEAST_SPLIT_MB: u64 = 21;
const SPLITS_MB: [u64; 8] = [32, 64, 96, 128, 256, 512, 1024, 2048];
const THRESHOLDS: [u32; 2] = [60, 80];
const DIVISIONS: [u64; 4] = [4, 8, 16, 32];

/// One combination of the settings that are searched.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Candidate {
    /// `expandable_segments:True`.
    pub(super) expandable: bool,
    /// `max_split_size_mb`.
    pub(super) split_mb: Option<u64>,
    /// `garbage_collection_threshold`, in percent.
    pub(super) threshold: Option<u32>,
    /// `roundup_power2_divisions`, the same for all sizes.
    pub(super) divisions: Option<u64>,
}

impl Candidate {
    fn split(split_mb: u64) -> Candidate {
        Candidate { split_mb: Some(split_mb), ..Candidate::default() }
    }

    fn with_threshold(&self, percent: u32) -> Candidate {
        Candidate { threshold: Some(percent), ..self.clone() }
    }

    fn with_divisions(&self, divisions: u64) -> Candidate {
        Candidate { divisions: Some(divisions), ..self.clone() }
    }

    /// The coarse grid, which is tried first.
    pub(super) fn coarse() -> Vec<Candidate> {
        let plain = Candidate::default();
        let expandable = Candidate { expandable: true, ..Candidate::default() };
        let mut all = vec![plain.clone(), expandable.clone()];
        all.extend(DIVISIONS.map(|divisions| expandable.with_divisions(divisions)));
        all.extend(DIVISIONS.map(|divisions| plain.with_divisions(divisions)));
        all.extend([50, 60, 70, 80, 90].map(|percent| plain.with_threshold(percent)));
        for split in SPLITS_MB.map(Candidate::split) {
            all.extend(THRESHOLDS.map(|percent| split.with_threshold(percent)));
            all.push(split);
        }
        let rounded = [128, 512].map(Candidate::split);
        all.extend(rounded.iter().flat_map(|split| [4, 8, 16].map(|divisions| split.with_divisions(divisions))));
        all
    }

    /// What to try next if this one is among the best: values close to its own, and one more key.
    pub(super) fn neighbours(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        if let Some(split_mb) = self.split_mb {
            for near in [split_mb * 5 / 8, split_mb * 3 / 4, split_mb * 7 / 8, split_mb * 5 / 4, split_mb * 3 / 2] {
                all.push(Candidate { split_mb: Some(near.max(LEAST_SPLIT_MB)), ..self.clone() });
            }
        }
        match self.threshold {
            Some(percent) => {
                let near = [percent.saturating_sub(10), percent.saturating_sub(5), percent + 5, percent + 10];
                all.extend(
                    near.into_iter().filter(|percent| (20..=95).contains(percent)).map(|percent| self.with_threshold(percent)),
                );
            }
            None if !self.expandable => all.extend([65, 75, 85].map(|percent| self.with_threshold(percent))),
            None => {}
        }
        match self.divisions {
            Some(divisions) => {
                let near = [divisions / 2, divisions * 2];
                all.extend(near.into_iter().filter(|near| (2..=64).contains(near)).map(|near| self.with_divisions(near)));
            }
            None => all.extend([8, 32, 64].map(|divisions| self.with_divisions(divisions))),
        }
        all
    }

    /// The settings string, followed by `kept`.
    pub(super) fn text(&self, kept: &str) -> String {
        let mut parts = Vec::new();
        if self.expandable {
            parts.push("expandable_segments:True".to_owned());
        }
        if let Some(split_mb) = self.split_mb {
            parts.push(format!("max_split_size_mb:{split_mb}"));
        }
        if let Some(percent) = self.threshold {
            let digits = format!("{percent:02}");
            parts.push(format!("garbage_collection_threshold:0.{}", digits.trim_end_matches('0')));
        }
        if let Some(divisions) = self.divisions {
            parts.push(format!("roundup_power2_divisions:{divisions}"));
        }
        if !kept.is_empty() {
            parts.push(kept.to_owned());
        }
        parts.join(",")
    }

    /// The settings; `None` if this PyTorch release refuses them, which can only be because of `kept`.
    pub(super) fn settings(&self, profile: &Profile, kept: &str) -> Option<Settings> {
        Settings::from_environment_as(&profile.dialect, &self.text(kept)).ok()
    }
}

/// The parts of a settings string whose keys the search does not set.
pub(super) fn kept(text: &str) -> String {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    let key = |part: &str| part.split(':').next().unwrap_or_default().trim().to_owned();
    let is_kept = |part: &&str| !part.trim().is_empty() && !SEARCHED.contains(&key(part).as_str());
    parts.filter(is_kept).map(str::trim).collect::<Vec<_>>().join(",")
}

/// How many of the searched keys are set.
pub(super) fn keys(settings: &Settings) -> usize {
    let unset = Settings::default();
    usize::from(settings.expandable_segments)
        + usize::from(settings.max_split_bytes != unset.max_split_bytes)
        + usize::from(settings.garbage_collection_threshold > 0.0)
        + usize::from(settings.roundup_power2_divisions != unset.roundup_power2_divisions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorch_accepts_every_candidate_and_its_text_says_what_it_sets() {
        let coarse = Candidate::coarse();
        for candidate in coarse.iter().flat_map(|candidate| [vec![candidate.clone()], candidate.neighbours()].concat()) {
            let settings = candidate.settings(&Profile::PYTORCH_2_11, "").expect("settings");
            assert_eq!(settings.max_split_bytes, candidate.split_mb.map_or(u64::MAX, |mb| mb << 20));
            let percent = candidate.threshold.map_or(0.0, |percent| f64::from(percent) / 100.0);
            assert!((settings.garbage_collection_threshold - percent).abs() < 1e-9, "{}", candidate.text(""));
            assert_eq!(settings.expandable_segments, candidate.expandable);
            assert_eq!(settings.roundup_power2_divisions[5], candidate.divisions.unwrap_or(0));
        }
        assert!(coarse.len() >= 40);
    }

    #[test]
    fn keys_that_are_not_searched_are_kept() {
        let text = "roundup_power2_divisions:[256:1,>:4], pinned_use_cuda_host_register:True,max_split_size_mb:64,backend:native";
        assert_eq!(kept(text), "pinned_use_cuda_host_register:True,backend:native");
        assert_eq!(kept(""), "");
        let candidate = Candidate::split(128);
        assert_eq!(candidate.text("backend:native"), "max_split_size_mb:128,backend:native");
        assert!(candidate.settings(&Profile::PYTORCH_2_11, "backend:none").is_none());
    }
}
