//! Tests replays of recorded runs: under their own settings and under each other's, they need the memory that was
//! recorded.

use parkade::profile::Profile;
use parkade::units::Bytes;
use parkade_conformance::shipped::Shipped;
use parkade_recording::Action;
use parkade_replay::{
    AfterFailure, Operation, OutlookOptions, PredictOptions, Prediction, Requests, Timing, placed_steps, predict, replay_device,
};
use parkade_sim::address::{LearnedAddressSpace, ObservedDriver, Scripted};
use parkade_sim::{SimDevice, SimOptions};

use super::{names, read};

/// The recordings that begin at the start of the run.
fn complete() -> Vec<Shipped> {
    names().into_iter().filter(|name| !name.contains("tail")).map(|name| read(&name)).collect()
}

fn requests(shipped: &Shipped) -> Requests {
    Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests")
}

fn under(target: &Shipped, requests: &Requests, options: SimOptions) -> Prediction {
    let (settings, limit_bytes) = (target.options.settings.settings.clone(), target.options.limit_bytes);
    let after_failure = AfterFailure::Stop;
    let (profile, timing) = (&Profile::PYTORCH_2_11, Timing::Recorded);
    predict(requests, SimDevice::new(options), &PredictOptions { profile, settings, limit_bytes, after_failure, timing })
}

fn device() -> SimOptions {
    SimOptions::new(Bytes(1 << 40))
}

#[test]
fn with_its_own_settings_and_addresses_every_recording_needs_what_it_needed() {
    for shipped in complete() {
        let verdict = shipped.verify(shipped.device()).expect("a verdict");
        let requests = requests(&shipped);
        assert_eq!((requests.mismatches, requests.lost_beginning), (0, None), "{}", shipped.name);
        assert_eq!(requests.recorded_peak_reserved_bytes, verdict.peak_reserved_bytes(), "{}", shipped.name);
        let trace = &shipped.device().trace;
        let addresses: Vec<u64> =
            trace.iter().filter(|entry| entry.action == Action::SegmentAlloc).map(|entry| entry.address).collect();
        let learned = LearnedAddressSpace::from_steps(&placed_steps(shipped.device()));
        for options in
            [device().address_model(Scripted::new(addresses)), device().address_model(ObservedDriver::learned(&learned))]
        {
            let prediction = under(&shipped, &requests, options);
            assert_eq!(prediction.device_errors, 0, "{}", shipped.name);
            assert_eq!(prediction.peak_reserved_bytes(), verdict.peak_reserved_bytes(), "{}", shipped.name);
            assert_eq!(prediction.peak_allocated_bytes(), verdict.peak_allocated_bytes(), "{}", shipped.name);
            assert_eq!(prediction.first_failure.is_some(), verdict.ooms > 0, "{}", shipped.name);
        }
    }
}

#[test]
fn every_segment_of_a_recording_is_where_the_learned_model_puts_it() {
    for shipped in complete() {
        let learned = LearnedAddressSpace::from_steps(&placed_steps(shipped.device()));
        assert_eq!(learned.unexplained, 0, "{}", shipped.name);
        // Expandable segments are not allocated with cudaMalloc, so nothing can be learned from
        // their addresses.
        let places_any = shipped.device().trace.iter().any(|entry| entry.action == Action::SegmentAlloc);
        if !places_any {
            assert_eq!(learned.placements, 0, "{}", shipped.name);
            continue;
        }
        assert!(learned.explained * 3 > learned.placements * 2, "{}: {learned:?}", shipped.name);
    }
}

/// All of them use one stream, so the GPU's timing does not affect any decision.
#[test]
fn runs_of_one_program_predict_each_other() {
    let pairs = [
        ("gpt2_varlen.default", "gpt2_varlen.limit12_oom"),
        ("gpt2_varlen.default", "gpt2_varlen.limit16_gc"),
        ("gpt2_varlen.limit16_gc", "gpt2_varlen.limit12_oom"),
        ("resnet50_sweep.default", "resnet50_sweep.limit5_oom"),
    ];
    for (source, target) in pairs {
        let (source, target) = (read(source), read(target));
        let learned = LearnedAddressSpace::from_steps(&placed_steps(source.device()));
        let prediction = under(&target, &requests(&source), device().address_model(ObservedDriver::learned(&learned)));
        let verdict = target.verify(target.device()).expect("a verdict");
        assert_eq!(prediction.peak_reserved_bytes(), verdict.peak_reserved_bytes(), "{} -> {}", source.name, target.name);
        assert!(prediction.first_failure.is_some(), "{} -> {}", source.name, target.name);
    }
}

/// For a recording whose oldest entries are missing, the blocks in use at its first entry are requested first, then
/// everything after that in order.
#[test]
fn a_lost_beginning_leaves_all_later_requests() {
    for (name, lost) in [("deep_mlp.default", 500), ("prefetch_streams.default", 3_000), ("gpt2_varlen.limit12_oom", 5_000)] {
        let shipped = read(name);
        let whole = requests(&shipped);
        let cut = shipped.without_beginning(lost);
        let requests = Requests::of_recording(&cut, &shipped.options, &mut |_| ()).expect("requests");
        let asked = |requests: &Requests, from: usize| -> Vec<(usize, u64, u64)> {
            let of_request = |&(at, operation): &(usize, Operation)| match operation {
                Operation::Allocate { bytes, stream, .. } if at >= from => Some((at - from, bytes, stream)),
                _ => None,
            };
            requests.operations.iter().filter_map(of_request).collect()
        };
        let early = requests.lost_beginning.expect("the beginning is missing").blocks;
        assert_eq!(asked(&requests, 0)[early..], asked(&whole, lost), "{name}");
        let own = shipped.options.clone();
        let settings = own.settings.settings.clone();
        let options = OutlookOptions { profile: &Profile::PYTORCH_2_11, settings, limit_bytes: None, capacity_bytes: None, own };
        let outlook = replay_device(&cut, &options, &mut |_| ()).expect("an outlook");
        assert!(outlook.fits() && outlook.prediction.device_errors == 0, "{name}");
    }
}
