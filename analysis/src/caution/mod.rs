//! Collects what a setting may break: known issues with PyTorch's allocator settings in programs that use certain features.
//!
//! [`InUse`] holds the features that a recording shows in use, and [`cautions`] lists the known issues that therefore apply
//! to the settings. `known_issues` lists all issues, each with its source. A replay shows how much memory a program needs
//! under a setting; these issues are what no replay of one process can show: hangs, refused calls, memory of other libraries,
//! and settings that have no effect.

mod in_use;
mod known_issues;

pub use in_use::{Evidence, Feature, InUse};
pub use known_issues::Severity;

use std::cmp::Reverse;

use parkade::profile::Profile;
use parkade::settings::Settings;

use known_issues::{KNOWN_ISSUES, KnownIssue};

/// A known issue that applies to the settings and that the program does not rule out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caution {
    /// Identifies the issue in machine-readable output: words joined by hyphens, stable across releases.
    pub id: &'static str,
    /// The keys of the settings that the issue concerns, joined by `, `.
    pub setting: &'static str,
    /// Whether the program uses what the issue needs; never [`Evidence::NotShown`].
    pub in_use: Evidence,
    /// How bad the issue is if the program uses it.
    pub severity: Severity,
    /// What happens, in one sentence.
    pub what: &'static str,
    /// What to do instead, in one sentence.
    pub instead: &'static str,
    /// Where the issue is reported or documented: issues and pull requests as `owner/name#number`; `spec` and a number refer
    /// to a section of the behavioural specification, which was derived from running PyTorch's own library.
    pub source: &'static str,
}

impl Caution {
    /// Whether these settings need a warning: the program uses what the issue needs, and the issue is harmful.
    #[must_use]
    pub fn needs_warning(&self) -> bool {
        self.in_use == Evidence::Shown && self.severity > Severity::NoEffect
    }
}

/// The known issues that apply to `settings` under `profile` in a program that uses `in_use`. Issues whose features are shown
/// come before those whose features are unknown, then the more severe first, then in the order of the table.
#[must_use]
pub fn cautions(in_use: &InUse, settings: &Settings, profile: &Profile) -> Vec<Caution> {
    let applying = KNOWN_ISSUES.iter().filter(|issue| issue.applies_to(settings, profile));
    let mut found: Vec<Caution> = applying.filter_map(|issue| caution(issue, in_use)).collect();
    found.sort_by_key(|caution| Reverse((caution.in_use, caution.severity)));
    found
}

/// The caution for a program; `None` if the program is known not to use something that the issue needs. The caution is as
/// certain as the least certain of the needed features.
fn caution(issue: &KnownIssue, in_use: &InUse) -> Option<Caution> {
    let least = issue.uses.iter().map(|&feature| in_use.evidence(feature)).min().unwrap_or(Evidence::Shown);
    (least != Evidence::NotShown).then_some(Caution {
        id: issue.id,
        setting: issue.setting,
        in_use: least,
        severity: issue.severity,
        what: issue.what,
        instead: issue.instead,
        source: issue.source,
    })
}

#[cfg(test)]
mod tests {
    //! Tests that every known issue applies to the settings it concerns and to nothing else.

    use super::*;

    const NEW: Profile = Profile::PYTORCH_2_15;
    const OLD: Profile = Profile::PYTORCH_2_11;

    /// A program that uses only these features.
    fn only(features: &[Feature]) -> InUse {
        let nothing = Feature::ALL.into_iter().fold(InUse::unknown(), |in_use, feature| in_use.with(feature, Evidence::NotShown));
        features.iter().fold(nothing, |in_use, &feature| in_use.with(feature, Evidence::Shown))
    }

    fn found(in_use: &InUse, settings: &str, profile: &Profile) -> Vec<Caution> {
        let settings = Settings::from_environment_as(&profile.dialect, settings).expect("settings");
        cautions(in_use, &settings, profile)
    }

    fn ids(in_use: &InUse, settings: &str, profile: &Profile) -> Vec<&'static str> {
        let mut ids: Vec<_> = found(in_use, settings, profile).iter().map(|caution| caution.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The settings, the features that the program uses, the release, and the ids of all issues that apply.
    type Case = (&'static str, &'static [Feature], Profile, &'static [&'static str]);

    const CASES: &[Case] = &[
        ("", &Feature::ALL, OLD, &[]),
        ("roundup_power2_divisions:4,large_segment_size_mb:40", &Feature::ALL, OLD, &[]),
        ("max_split_size_mb:128", &[], OLD, &[]),
        ("max_split_size_mb:21", &[], OLD, &[]),
        ("max_split_size_mb:20", &[], OLD, &["max-split-at-large-segment"]),
        ("large_segment_size_mb:32,max_split_size_mb:32", &[], OLD, &["max-split-at-large-segment"]),
        ("max_split_size_mb:128", &[Feature::ChangedSettings], OLD, &["max-split-set-late"]),
        ("max_split_size_mb:128", &[Feature::ChangedSettings], NEW, &[]),
        ("expandable_segments:True", &[], OLD, &[]),
        ("expandable_segments:True", &[Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache], OLD, &[]),
        ("expandable_segments:True", &[Feature::GraphPools, Feature::PrivatePools], OLD, &[]),
        (
            "expandable_segments:True",
            &[Feature::GraphPools, Feature::CapturedCollectives],
            OLD,
            &["expandable-captured-collectives"],
        ),
        (
            "expandable_segments:True",
            &[Feature::OtherProcesses],
            OLD,
            &["expandable-other-processes", "expandable-shared-tensors"],
        ),
        ("expandable_segments:True", &[Feature::Registrations], NEW, &["expandable-registrations"]),
        ("expandable_segments:True", &[Feature::PrivatePools, Feature::PoolsGivenBack], OLD, &["expandable-pools-given-back"]),
        ("expandable_segments:True", &[Feature::PrivatePools, Feature::PoolsGivenBack], NEW, &[]),
        ("expandable_segments:True", &[Feature::SeveralDevices, Feature::EmptyCache], OLD, &["expandable-several-devices"]),
        ("expandable_segments:True", &[Feature::SeveralDevices], OLD, &[]),
        ("expandable_segments:True", &[Feature::HostMemoryDevice], OLD, &["expandable-host-memory-device"]),
        ("expandable_segments:True", &[Feature::UserPools], OLD, &[]),
        ("expandable_segments:True", &[Feature::UserPools, Feature::PoolAllocators], OLD, &["expandable-pool-allocators"]),
        ("expandable_segments:True", &[Feature::NoMapping], OLD, &["expandable-no-mapping"]),
        ("expandable_segments:True,max_split_size_mb:128", &[], OLD, &["max-split-expandable"]),
        ("expandable_segments:True,max_split_size_mb:20", &[], NEW, &["max-split-expandable"]),
        ("garbage_collection_threshold:0.8", &[], OLD, &[]),
        ("garbage_collection_threshold:0.8", &[Feature::NoLimit], OLD, &["collection-without-limit"]),
        ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", &[Feature::NoLimit], OLD, &[]),
        ("garbage_collection_threshold:0.8", &[Feature::PrivatePools], OLD, &["collection-private-pools"]),
        ("garbage_collection_threshold:0.8,expandable_segments:True", &[], OLD, &["collection-expandable"]),
        ("roundup_power2_divisions:1", &[], OLD, &["one-division"]),
        ("roundup_power2_divisions:[64:8,>:1]", &[], OLD, &["one-division"]),
        ("max_non_split_rounding_mb:64", &[], OLD, &["rounding-without-max-split"]),
        ("max_non_split_rounding_mb:64,max_split_size_mb:128", &[], OLD, &[]),
        ("per_process_memory_fraction:0.5", &[], OLD, &[]),
        ("per_process_memory_fraction:0.5", &[Feature::ChangedSettings], OLD, &["fraction-set-late"]),
        ("graph_capture_record_stream_reuse:True", &[Feature::GraphPools], OLD, &[]),
        ("graph_capture_record_stream_reuse:True", &[Feature::NoGraphPools], OLD, &["capture-reuse-without-graphs"]),
        ("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", &[Feature::NoLimit], NEW, &["throw-before-release"]),
        ("throw_on_cudamalloc_oom:True", &[Feature::NoLimit], NEW, &["throw-before-release", "throw-without-fraction"]),
        ("expandable_segments_reserve:1", &[], NEW, &["reserve-without-expandable"]),
        ("expandable_segments_reserve:1,expandable_segments:True", &[], NEW, &[]),
        ("release_lock_on_cudamalloc:True", &[], OLD, &["release-lock"]),
        ("pinned_use_background_threads:True", &[], OLD, &["pinned"]),
        ("pinned_num_register_threads:4", &[], OLD, &["pinned"]),
        ("backend:cudaMallocAsync", &[], OLD, &[]),
        ("backend:cudaMallocAsync", &[Feature::UserPools], OLD, &["async-user-pools"]),
        ("backend:cudaMallocAsync", &[Feature::GraphPools], OLD, &["async-graph-trees"]),
        ("backend:cudaMallocAsync,max_split_size_mb:128", &[], OLD, &["async-native-keys"]),
    ];

    #[test]
    fn each_issue_applies_to_what_it_is_about_and_to_nothing_else() {
        for (settings, uses, profile, expected) in CASES {
            assert_eq!(ids(&only(uses), settings, profile), *expected, "{settings} {uses:?} {}", profile.name);
        }
    }

    #[test]
    fn no_issue_is_missing_above_and_ids_are_unique() {
        let mut names: Vec<_> = KNOWN_ISSUES.iter().map(|issue| issue.id).collect();
        for name in &names {
            assert!(CASES.iter().any(|(_, _, _, expected)| expected.contains(name)), "{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN_ISSUES.len());
    }

    #[test]
    fn every_issue_states_in_one_sentence_what_happens_and_names_its_source_and_setting() {
        for issue in KNOWN_ISSUES {
            let keys = NEW.dialect.keys();
            let known: Vec<_> = keys.collect();
            assert!(issue.setting.split(", ").all(|key| known.contains(&key) || key == "pinned_*"), "{}", issue.id);
            for sentence in [issue.what, issue.instead] {
                assert!(
                    sentence.ends_with('.') && !sentence.contains(". ") && !sentence.contains('\n'),
                    "{}: {sentence}",
                    issue.id
                );
            }
            let is_reference = |part: &str| part.contains('#') || part.starts_with("spec ");
            assert!(issue.source.split(", ").all(is_reference), "{}: {}", issue.id, issue.source);
        }
    }

    #[test]
    fn a_caution_is_as_certain_as_the_least_certain_feature_it_needs() {
        let graphs = InUse::unknown().with(Feature::GraphPools, Evidence::Shown);
        let collectives = |in_use: &InUse| {
            found(in_use, "expandable_segments:True", &OLD)
                .into_iter()
                .find(|caution| caution.id == "expandable-captured-collectives")
        };
        let caution = collectives(&graphs).expect("a caution");
        assert_eq!((caution.in_use, caution.needs_warning()), (Evidence::Unknown, false));
        let caution = collectives(&graphs.clone().with(Feature::CapturedCollectives, Evidence::Shown)).expect("a caution");
        assert_eq!((caution.in_use, caution.needs_warning()), (Evidence::Shown, true));
        assert_eq!(collectives(&graphs.with(Feature::GraphPools, Evidence::NotShown)), None);
    }

    #[test]
    fn what_is_shown_and_severe_comes_first() {
        let settings = "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8";
        let all = found(&InUse::unknown().limited(true), settings, &OLD);
        let order: Vec<_> = all.iter().map(|caution| (caution.in_use, caution.severity)).collect();
        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
        assert_eq!(order[..2], [(Evidence::Shown, Severity::MayBreak), (Evidence::Shown, Severity::NoEffect)]);
        assert_eq!(order[2], (Evidence::Unknown, Severity::Breaks));
    }
}
