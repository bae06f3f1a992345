//! Compares the texts with those of the real PyTorch 2.11.

use parkade::stats::Stats;
use parkade::texts::{MORE_THAN_ONE_EXABYTE, format_bytes, format_double, invalid_fraction_message};
use proptest::prelude::*;

include!("common/oom_row.rs");

#[test]
fn entries_and_from_entries_are_inverse() {
    let empty = Stats::default();
    let numbered: Vec<(String, i64)> = empty.entries().into_iter().zip(1..).map(|((key, _), value)| (key, value)).collect();
    let stats = Stats::from_entries(numbered.iter().map(|(key, value)| (key.as_str(), *value))).unwrap();
    assert_eq!(stats.entries(), numbered);
    for wrong in [
        "",
        "num_ooms.all",
        "allocation",
        "allocation.all",
        "allocation.all.current.x",
        "allocated.all.current",
        "segment.medium_pool.peak",
    ] {
        assert_eq!(Stats::from_entries([(wrong, 1)]).unwrap_err().key, wrong);
    }
}

#[test]
fn out_of_memory_messages_are_the_real_ones() {
    let mut count = 0;
    for line in include_str!("data/oom_messages.tsv").lines() {
        let (report, message) = oom_row(line);
        assert_eq!(report.to_string(), message);
        count += 1;
    }
    assert!(count > 20);
}

/// From a real H200; the sizes are only known as precisely as the message shows them.
#[test]
fn a_message_of_a_real_device_is_reproduced() {
    let gib = |size: f64| Bytes((size * 1_073_741_824.0) as u64);
    let report = OutOfMemory {
        segment_bytes: gib(2.0),
        device: 0,
        device_total: gib(139.80),
        device_free: gib(133.29),
        processes: vec![ProcessMemory { pid: None, used: gib(6.51) }],
        limit: Some(gib(6.5)),
        allocated_bytes: 3_221_225_472,
        reserved_bytes: 6_442_450_944,
        private_cached_bytes: Bytes::ZERO,
        hint: parkade::texts::Hint::ExpandableSegments,
        words: &parkade::texts::OomWords::PYTORCH_2_11,
        rescue: None,
    };
    assert_eq!(
        report.to_string(),
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 133.29 GiB is free. \
         Including non-PyTorch memory, this process has 6.51 GiB memory in use. 6.50 GiB allowed; Of the allocated memory 3.00 GiB \
         is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large \
         try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory \
         Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    );
}

/// Each text was printed by the real allocator's `setMemoryFraction`.
#[test]
fn messages_about_fractions_are_the_real_ones() {
    for (fraction, shown) in [
        (-0.5, "-0.5"),
        (1.000_000_1, "1"),
        (1e10, "1e+10"),
        (-1e-300, "-1e-300"),
        (123_456.5, "123456"),
        (1_234_565.0, "1.23456e+06"),
        (1_234_567.0, "1.23457e+06"),
        (999_999.5, "1e+06"),
        (99_999.95, "99999.9"),
        (100_000.5, "100000"),
        (100_001.5, "100002"),
        (-0.000_01, "-1e-05"),
        (-0.0001, "-0.0001"),
        (-0.000_099_999_99, "-0.0001"),
        (1.071_508_607_186_267_3e301, "1.07151e+301"),
        (f64::NAN, "nan"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(invalid_fraction_message(fraction), format!("invalid fraction:{shown}. Please set within [0, 1]."));
    }
    assert_eq!(MORE_THAN_ONE_EXABYTE, "CUDA out of memory. Tried to allocate more than 1EB memory.");
}

proptest! {
    #[test]
    fn no_number_makes_a_report_panic(value in any::<i64>(), other in any::<i64>(), bits in any::<u64>()) {
        let _ = format_bytes(bits);
        let shown = format_double(f64::from_bits(bits));
        prop_assert!(shown.len() <= 13, "{}", shown);
        let report = OutOfMemory {
            segment_bytes: Bytes(bits),
            device: 0,
            device_total: Bytes(bits),
            device_free: Bytes(bits),
            processes: Vec::new(),
            limit: None,
            allocated_bytes: value,
            reserved_bytes: other,
            private_cached_bytes: Bytes(bits),
            hint: parkade::texts::Hint::ExpandableSegments,
            words: &parkade::texts::OomWords::PYTORCH_2_11,
            rescue: None,
        };
        let _ = report.to_string();
    }
}
