//! Tests which features are seen in use in recordings of real runs, and which cautions follow.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::caution::{Caution, Evidence, Feature, InUse, Severity, cautions};
use parkade_conformance::shipped::Shipped;
use parkade_replay::Requests;

use super::{read, read_with_pools};

fn in_use(shipped: &Shipped) -> InUse {
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
    InUse::of(shipped.device(), Some(&requests)).on_devices(shipped.recording.devices.len())
}

fn found(in_use: &InUse, settings: &str) -> Vec<Caution> {
    cautions(in_use, &Settings::from_environment(settings).expect("settings"), &Profile::PYTORCH_2_11)
}

fn warned_of(in_use: &InUse, settings: &str) -> Vec<&'static str> {
    found(in_use, settings).iter().filter(|caution| caution.needs_warning()).map(|caution| caution.id).collect()
}

#[test]
fn training_on_one_stream_shows_nothing_that_a_setting_breaks() {
    let training = in_use(&read("gpt2_varlen.default"));
    for feature in
        [Feature::PrivatePools, Feature::GraphPools, Feature::SeveralStreams, Feature::OtherStreams, Feature::SeveralDevices]
    {
        assert_eq!(training.evidence(feature), Evidence::NotShown, "{feature:?}");
    }
    for settings in ["expandable_segments:True", "max_split_size_mb:128,garbage_collection_threshold:0.7"] {
        assert_eq!(warned_of(&training, settings), [""; 0], "{settings}");
    }
    assert_eq!(warned_of(&training, "expandable_segments:True,max_split_size_mb:128"), ["max-split-expandable"]);
}

#[test]
fn prefetching_shows_its_streams() {
    let prefetch = in_use(&read("prefetch_streams.default"));
    assert_eq!(prefetch.evidence(Feature::SeveralStreams), Evidence::Shown);
    assert_eq!(prefetch.evidence(Feature::OtherStreams), Evidence::Shown);
    assert_eq!(prefetch.evidence(Feature::PrivatePools), Evidence::NotShown);
}

#[test]
fn graphs_show_by_their_pools_and_shared_handles_may_be_graphs() {
    let reset = in_use(&read_with_pools("graph_reset.expandable.1"));
    assert_eq!(reset.evidence(Feature::GraphPools), Evidence::Shown);
    assert_eq!(reset.evidence(Feature::PoolsGivenBack), Evidence::Shown);
    assert_eq!(warned_of(&reset, "expandable_segments:True"), ["expandable-pools-given-back"]);
    let hang = found(&reset, "expandable_segments:True");
    let hang = hang.iter().find(|caution| caution.id == "expandable-captured-collectives").expect("a note");
    assert_eq!((hang.in_use, hang.severity), (Evidence::Unknown, Severity::Breaks), "no trace shows what NCCL does");
    let shared = in_use(&read_with_pools("graph_shared.default.2"));
    assert_eq!(shared.evidence(Feature::PrivatePools), Evidence::Shown);
    assert_eq!(shared.evidence(Feature::GraphPools), Evidence::Unknown);
}

#[test]
fn pools_that_were_gone_before_the_end_show_without_their_kind() {
    let pools = in_use(&read_with_pools("mempool.default.2"));
    assert_eq!(pools.evidence(Feature::PrivatePools), Evidence::Shown);
    assert_eq!(pools.evidence(Feature::UserPools), Evidence::Unknown);
}

#[test]
fn features_that_a_cut_recording_does_not_show_are_unknown() {
    let cut = in_use(&read("gpt2_varlen.frames_tail20k"));
    assert_eq!(cut.evidence(Feature::GraphPools), Evidence::Unknown);
    assert_eq!(cut.evidence(Feature::OtherStreams), Evidence::Unknown);
}

#[test]
fn garbage_collection_without_a_limit_is_said_to_have_no_effect() {
    let training = in_use(&read("gpt2_varlen.default"));
    let told =
        |in_use: &InUse| found(in_use, "garbage_collection_threshold:0.8").first().map(|caution| (caution.id, caution.in_use));
    assert_eq!(told(&training), Some(("collection-without-limit", Evidence::Unknown)), "a recording does not contain the limit");
    assert_eq!(told(&training.clone().limited(false)), Some(("collection-without-limit", Evidence::Shown)));
    assert_eq!(told(&training.limited(true)), None);
}
