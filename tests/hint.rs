//! Tests, by release and settings, the hint in an out-of-memory error, and requests that are refused before the device is
//! asked (spec 2.13, 11).

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::{ReserveSize, Settings};
use parkade::texts::Hint;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocator};

/// The hint when 600 MiB are refused on a device of 1 GiB that really has 512 MiB.
fn hint(profile: &'static Profile, settings: Settings) -> Hint {
    let mut device = PlainDevice::new(Bytes::mib(1024), 1 << 44);
    device.capacity = 512 << 20;
    let mut core = Allocator::new(device, PyTorch::of(profile, settings), ());
    match core.allocate(Bytes::mib(600), StreamId::DEFAULT) {
        Err(AllocError::OutOfMemory(refusal)) => refusal.hint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hint_is_the_versions_and_the_settings() {
    let (old, new) = (&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_15);
    let expandable = Settings { expandable_segments: true, ..Settings::default() };
    let reserving = |size| Settings { expandable_segments_reserve: Some(size), ..expandable.clone() };
    assert_eq!(hint(old, Settings::default()), Hint::ExpandableSegments);
    assert_eq!(hint(old, expandable.clone()), Hint::ExpandableSegments);
    assert_eq!(hint(new, Settings::default()), Hint::ExpandableSegments);
    assert_eq!(hint(new, expandable.clone()), Hint::Addresses);
    // Addresses for half the device are fewer than the request; for three quarters they are not; nine eighths
    // are the usual number.
    assert_eq!(hint(new, reserving(ReserveSize::Fraction(0.5))), Hint::LargerReserve(Bytes::mib(512)));
    assert_eq!(hint(new, reserving(ReserveSize::Fraction(0.75))), Hint::Addresses);
    assert_eq!(hint(new, reserving(ReserveSize::Fraction(600.0 / 1024.0))), Hint::Addresses);
    assert_eq!(hint(new, reserving(ReserveSize::Gibibytes(2.0))), Hint::Addresses);
}

#[test]
fn a_request_beyond_the_settings_fraction_is_rejected() {
    let settings = Settings { throw_on_cudamalloc_oom: true, per_process_memory_fraction: 0.5, ..Settings::default() };
    let device = PlainDevice::new(Bytes::mib(1024), 1 << 44);
    let mut core = Allocator::new(device, PyTorch::of(&Profile::PYTORCH_2_15, settings), ());
    let half = core.allocate(Bytes::mib(512), StreamId::DEFAULT).expect("the fraction itself");
    let answer = core.allocate(Bytes(512), StreamId::DEFAULT).map(|_| ());
    assert_eq!(answer, Err(AllocError::Rejected { requested: Bytes(512) }));
    assert_eq!((core.stats().num_oom_rejections, core.stats().num_ooms), (1, 0));
    core.free(half).expect("ours");
    core.reset_accumulated_stats();
    assert_eq!(core.stats().num_oom_rejections, 0);
}
