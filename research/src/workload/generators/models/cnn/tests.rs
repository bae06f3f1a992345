use super::layers::ELEMENT_BYTES;
use super::*;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::models::training::Optimizer;

/// `allocated_bytes.all.peak` after each batch size of `resnet50_sweep.expandable`, in the recordings' steps.jsonl.
const RECORDED: [(u64, u64); 7] = [
    (1, 341_513_728),
    (2, 463_337_472),
    (4, 634_738_688),
    (8, 977_541_120),
    (16, 1_664_718_848),
    (32, 3_047_613_952),
    (64, 5_822_146_048),
];

#[test]
fn the_peaks_are_nearly_the_recorded_ones() {
    for (at, &(batch, recorded)) in RECORDED.iter().enumerate() {
        // A recorded peak counts from the end of the previous batch size; gradients exist from the first batch on.
        let batches = if at == 0 { vec![1] } else { vec![1, batch] };
        let load = Cnn { batches, ..Cnn::default() }.workload().unwrap().load_bytes(512);
        let error = load as f64 / recorded as f64 - 1.0;
        assert!(error.abs() < if batch < 32 { 0.022 } else { 1e-9 }, "{batch}: {load}, recorded {recorded}: {error}");
        let row = format!("//! | {batch} | {recorded} | {load} | {:+.2} % |", 100.0 * error);
        assert!(include_str!("mod.rs").contains(&row), "the module's table lacks {row}");
    }
}

#[test]
fn a_resnet_has_the_parameters_that_it_has() {
    let parameters = |name| Cnn::preset(name).unwrap().plan(1).unwrap().parameters().sum::<u64>() / ELEMENT_BYTES;
    assert_eq!((parameters("resnet50"), parameters("resnet101"), parameters("resnet152")), (25_557_032, 44_549_160, 60_192_808));
    assert_eq!(Cnn::preset("resnet51"), None);
    assert_eq!(Cnn::default().normalized_channels().iter().sum::<u64>(), 26_560);
}

#[test]
fn the_peak_is_linear_in_the_batch() {
    let load = |batch| Cnn { batches: vec![1, batch], ..Cnn::default() }.workload().unwrap().load_bytes(1) as i64;
    let sample = load(32) - load(31);
    assert!((86_000_000..88_000_000).contains(&sample), "{sample}");
    assert_eq!(load(64) - load(32), 32 * sample);
}

#[test]
fn programs_are_well_formed_with_every_option() {
    for (mixed, optimizer) in [(false, Optimizer::Sgd), (true, Optimizer::Adam), (true, Optimizer::Momentum)] {
        let cnn = Cnn { mixed, optimizer, batches: vec![2, 5, 1], repeats: 2, ..Cnn::preset("resnet101").unwrap() };
        let workload = cnn.workload().unwrap();
        assert_eq!(workload.check(), Ok(()));
        assert_eq!(Ok(workload), cnn.workload());
    }
}

#[test]
fn bad_options_are_errors() {
    let refused = |cnn: Cnn| cnn.workload().unwrap_err().to_string();
    assert_eq!(refused(Cnn { batches: vec![], ..Cnn::default() }), "batches is 0; allowed: 1 to 1048576");
    assert_eq!(refused(Cnn { batches: vec![4, 0], ..Cnn::default() }), format!("batches is 0; allowed: 1 to {}", 1_u64 << 32));
    assert_eq!(refused(Cnn { image: 7, ..Cnn::default() }), "image is 7; allowed: 32 to 65536");
    let large = Cnn { batches: vec![1 << 32], image: 1 << 16, ..Cnn::default() };
    assert_eq!(large.workload(), Err(WorkloadError::TooLarge { what: "an activation" }));
    let deep = Cnn { stages: [1 << 16; 4], ..Cnn::default() };
    assert_eq!(refused(deep), "stages is 65536; allowed: 1 to 1024");
}
