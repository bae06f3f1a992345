//! Every known issue applies to what it is about, and to nothing else.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::PoolId;
use parkade_recording::{DeviceRecording, Segment};
use parkade_replay::{Completion, Operation, Requests};

use super::table::KNOWN_ISSUES;
use super::{Caution, Evidence, Feature, InUse, Severity, cautions};

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

/// Settings, what the program uses, the release, and the ids of all issues that apply.
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
    ("expandable_segments:True", &[Feature::GraphPools, Feature::CapturedCollectives], OLD, &["expandable-captured-collectives"]),
    ("expandable_segments:True", &[Feature::OtherProcesses], OLD, &["expandable-other-processes", "expandable-shared-tensors"]),
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
            assert!(sentence.ends_with('.') && !sentence.contains(". ") && !sentence.contains('\n'), "{}: {sentence}", issue.id);
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

fn segment(stream: u64, pool: Option<(u64, u64)>) -> Segment {
    Segment { address: 1 << 40, total_bytes: 2 << 20, stream, pool, ..Segment::new(Vec::new()) }
}

fn allocate(id: usize, stream: u64) -> (usize, Operation) {
    (id, Operation::Allocate { id, bytes: 512, stream, pool: PoolId::DEFAULT, failed: false })
}

fn device(pools: &[Option<(u64, u64)>]) -> DeviceRecording {
    DeviceRecording { segments: pools.iter().map(|&pool| segment(0, pool)).collect(), ..DeviceRecording::default() }
}

fn pools_of(in_use: &InUse) -> [Evidence; 4] {
    [Feature::PrivatePools, Feature::GraphPools, Feature::NoGraphPools, Feature::UserPools]
        .map(|feature| in_use.evidence(feature))
}

#[test]
fn pool_ids_tell_kinds_of_pools_apart_as_far_as_possible() {
    use Evidence::{NotShown, Shown, Unknown};
    let requests = Requests::default();
    let of = |pools: &[_]| pools_of(&InUse::of(&device(pools), Some(&requests)));
    assert_eq!(of(&[Some((0, 0))]), [NotShown, NotShown, Shown, NotShown]);
    assert_eq!(of(&[Some((0, 0)), Some((3, 0))]), [Shown, Shown, NotShown, NotShown]);
    // Such an id is a MemPool's, or that of a pool that captures share.
    assert_eq!(of(&[Some((0, 2))]), [Shown, Unknown, Unknown, Unknown]);
    assert_eq!(of(&[Some((0, 2)), Some((1, 0))]), [Shown, Shown, NotShown, Unknown]);
    assert_eq!(of(&[None]), [Unknown; 4], "an old file does not name pools");
    let gone = Requests { pools: vec![PoolId(0, 1)], ..Requests::default() };
    assert_eq!(pools_of(&InUse::of(&device(&[Some((0, 0))]), Some(&gone))), [Shown, Unknown, Unknown, Unknown]);
}

#[test]
fn what_a_file_without_a_trace_or_its_beginning_does_not_show_is_unknown() {
    let lists_only = InUse::of(&device(&[Some((0, 0)), Some((1, 0))]), None);
    assert_eq!(lists_only.evidence(Feature::GraphPools), Evidence::Shown);
    for feature in [Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache, Feature::PoolsGivenBack] {
        assert_eq!(lists_only.evidence(feature), Evidence::Unknown, "{feature:?}");
    }
    let cut = Requests { lost_beginning: Some(Default::default()), ..Requests::default() };
    assert_eq!(pools_of(&InUse::of(&device(&[Some((0, 0))]), Some(&cut))), [Evidence::Unknown; 4]);
}

#[test]
fn streams_and_calls_show_in_the_requests() {
    let free = |completion| (9, Operation::Free { id: 0, completion });
    let of = |operations: Vec<_>| InUse::of(&device(&[]), Some(&Requests { operations, ..Requests::default() }));
    let shown = |in_use: &InUse| {
        [Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache, Feature::PoolsGivenBack]
            .map(|feature| in_use.evidence(feature) == Evidence::Shown)
    };
    assert_eq!(shown(&of(vec![allocate(0, 0), allocate(1, 0), free(Completion::AtOnce)])), [false; 4]);
    assert_eq!(shown(&of(vec![allocate(0, 0), allocate(1, 7)])), [true, false, false, false]);
    assert_eq!(shown(&of(vec![allocate(0, 0), free(Completion::Never)])), [false, true, false, false]);
    assert_eq!(shown(&of(vec![allocate(0, 0), free(Completion::AtEntry(0))])), [false; 4], "its request may be lost");
    assert_eq!(shown(&of(vec![(0, Operation::EmptyCache)])), [false, false, true, false]);
    assert_eq!(shown(&of(vec![(0, Operation::AbandonPool(PoolId(1, 0)))])), [false, false, false, true]);
}

#[test]
fn the_caller_tells_how_many_devices_there_are_and_whether_there_is_a_limit() {
    let in_use = InUse::unknown().on_devices(2).limited(true);
    let known = |feature| in_use.evidence(feature);
    assert_eq!((known(Feature::SeveralDevices), known(Feature::NoLimit)), (Evidence::Shown, Evidence::NotShown));
    let in_use = InUse::unknown().on_devices(1).limited(false);
    let known = |feature| in_use.evidence(feature);
    assert_eq!((known(Feature::SeveralDevices), known(Feature::NoLimit)), (Evidence::NotShown, Evidence::Shown));
}
