//! Tests offline packing of recordings of real runs: the height is the load or slightly more.

use parkade_replay::Requests;
use parkade_research::packing::{Effort, Instance, Recorded, check, pack};

use super::read;

/// Returns the height of the packing divided by the load, after this many steps of work.
fn ratio(name: &str, steps: u64) -> f64 {
    let shipped = read(name);
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
    let instance = Instance::new(Recorded::of(&requests).buffers).expect("buffers");
    let found = pack(&instance, &Effort { steps, seed: 1 });
    assert_eq!(check(&instance, &found.packing), Ok(()), "{name}");
    found.packing.height as f64 / instance.load() as f64
}

#[test]
fn a_simple_training_step_is_packed_as_low_as_its_load() {
    assert_eq!(ratio("deep_mlp.default", 1_000_000), 1.0);
}

#[test]
fn a_sweep_over_batch_sizes_and_one_of_several_streams_are_packed_within_a_twentieth() {
    for name in ["resnet50_sweep.default", "prefetch_streams.default"] {
        let ratio = ratio(name, 10_000_000);
        assert!((1.0..=1.05).contains(&ratio), "{name}: {ratio}");
    }
}

/// The load of the packer's buffers is the replay's peak of live bytes.
#[test]
fn the_load_is_the_recorded_peak_of_live_bytes() {
    let shipped = read("deep_mlp.default");
    let verdict = shipped.verify(shipped.device()).expect("a verdict");
    let requests = Requests::of_recording(shipped.device(), &shipped.options, &mut |_| ()).expect("requests");
    let load = Instance::new(Recorded::of(&requests).buffers).expect("buffers").load();
    // Blocks may be larger than the rounded requests: a remainder that is too small is not split off.
    let peak = verdict.peak_allocated_bytes().cast_unsigned();
    assert!(load <= peak && peak - load < 32 << 20, "{load} {peak}");
}
