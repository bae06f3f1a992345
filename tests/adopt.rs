//! Tests adopting segments: contradictory segments are refused, and the others behave as if the allocator had created them.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::BlockActivity;
use parkade::stats::Family;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, Allocator};

use AdoptedContent::{Allocated, Free, Unmapped};

type Core = Allocator<PlainDevice, PyTorch>;

const BASE: u64 = 1 << 40;
const PAGE: u64 = 2 * MIB;

fn core() -> Core {
    let settings = Settings { max_split_bytes: 32 * MIB, ..Settings::default() };
    let mut device = PlainDevice::new(Bytes::mib(256), 1 << 44);
    // The core releases what somebody else took from the device.
    device.hold(DeviceAddress(BASE), Bytes::mib(64));
    Allocator::new(device, PyTorch::new(settings), ())
}

fn segment(page: Option<u64>, blocks: &[(u64, AdoptedContent)]) -> AdoptedSegment {
    AdoptedSegment {
        address: DeviceAddress(BASE),
        stream: StreamId(7),
        pool: PoolId::DEFAULT,
        class: PoolClass::Large,
        page: page.map(Bytes),
        blocks: blocks.iter().map(|&(size, content)| AdoptedBlock { size: Bytes(size), content }).collect(),
    }
}

/// A segment of 32 PiB is one run of pages, and two runs around a gap; nothing is listed page by page.
#[test]
fn a_segment_of_any_length_costs_nothing() {
    const HUGE: u64 = 1 << 55;
    let mut core = core();
    let blocks = [(HUGE - 512, Allocated(Bytes(1))), (512, Free), (HUGE, Unmapped), (PAGE, Allocated(Bytes(7)))];
    let mut asked = Vec::new();
    let adopted = core.adopt(&segment(Some(PAGE), &blocks), &mut |address, pages| {
        asked.push((address.get() - BASE, pages));
        (Bytes::ZERO, pages)
    });
    assert_eq!(adopted.map(|allocations| allocations.len()), Ok(2));
    assert_eq!(asked, [(0, HUGE / PAGE), (2 * HUGE, 1)]);
    assert_eq!(core.expandable_segments(), [(StreamId(7), Bytes(PAGE), Bytes(HUGE + PAGE))]);
    core.check().expect("a sound heap");
}

/// Adopts a segment in which each page has 2 MiB of memory. Returns the addresses asked for, and the
/// allocations.
fn adopt(core: &mut Core, segment: &AdoptedSegment) -> Result<(Vec<u64>, Vec<Allocation>), AdoptError> {
    let mut asked = Vec::new();
    let out = core.adopt(segment, &mut |address, _| {
        asked.push(address.get());
        (Bytes(PAGE), 1)
    })?;
    core.check().expect("a sound heap");
    Ok((asked, out))
}

#[track_caller]
fn assert_refused(why: AdoptError, segment: &AdoptedSegment) {
    let mut core = core();
    let before = core.stats().clone();
    assert_eq!(adopt(&mut core, segment).map(|_| ()), Err(why));
    assert_eq!((core.segments(), core.stats()), (Vec::new(), &before), "nothing has changed");
    assert!(!why.to_string().is_empty());
}

#[test]
fn what_cannot_be_is_refused() {
    let some = Allocated(Bytes(1));
    assert_refused(AdoptError::Empty, &segment(None, &[]));
    assert_refused(AdoptError::Empty, &segment(None, &[(512, some), (0, Free)]));
    assert_refused(AdoptError::TooLarge, &segment(None, &[(u64::MAX, some), (512, some)]));
    assert_refused(AdoptError::TooLarge, &segment(None, &[(u64::MAX - BASE + 1, some)]));
    assert_refused(AdoptError::NotCoalesced, &segment(None, &[(512, some), (512, Free), (1024, Free)]));
    assert_refused(AdoptError::NotCoalesced, &segment(Some(PAGE), &[(PAGE, Unmapped), (PAGE, Unmapped)]));
    assert_refused(AdoptError::NotWholePages, &segment(None, &[(PAGE, some), (PAGE, Unmapped)]));
    assert_refused(AdoptError::NotWholePages, &segment(Some(PAGE), &[(512, some), (PAGE, Unmapped)]));
    assert_refused(AdoptError::NotWholePages, &segment(Some(PAGE), &[(PAGE, some), (PAGE + 512, Unmapped)]));
    assert_refused(AdoptError::NotWholePages, &segment(Some(0), &[(PAGE, some)]));
    assert_refused(AdoptError::NotWholePages, &segment(Some(PAGE), &[(PAGE + 512, some)]));
    assert_refused(AdoptError::TooMuch, &segment(None, &[(1 << 63, some)]));
    assert_refused(AdoptError::Misplaced, &AdoptedSegment { address: DeviceAddress(BASE + 1), ..segment(None, &[(512, some)]) });
    assert_refused(AdoptError::UnknownPool, &AdoptedSegment { pool: PoolId(0, 1), ..segment(None, &[(512, some)]) });
}

#[test]
fn a_plain_segment_is_counted_and_can_be_given_back() {
    let mut core = core();
    let blocks =
        [(2 * MIB, Allocated(Bytes(MIB + 1))), (6 * MIB, Free), (40 * MIB, Allocated(Bytes(40 * MIB))), (16 * MIB, Free)];
    let (asked, mut out) = adopt(&mut core, &segment(None, &blocks)).expect("it can be adopted");
    assert_eq!((asked, out.len()), (Vec::new(), 2));
    assert_eq!(out.iter().map(|allocation| allocation.address().get() - BASE).collect::<Vec<_>>(), [0, 8 * MIB]);
    let now = |core: &Core, family| core.stats().family(family).large.current as u64;
    let families = [
        (Family::Segment, 1),
        (Family::ReservedBytes, 64 * MIB),
        (Family::Allocation, 2),
        (Family::AllocatedBytes, 42 * MIB),
        (Family::Active, 2),
        (Family::ActiveBytes, 42 * MIB),
        (Family::RequestedBytes, 41 * MIB + 1),
        (Family::InactiveSplit, 2),
        (Family::InactiveSplitBytes, 22 * MIB),
    ];
    for (family, value) in families {
        assert_eq!(now(&core, family), value, "{}", family.name());
    }
    let oversize = (core.stats().oversize_allocations.current, core.stats().oversize_segments.current);
    assert_eq!(oversize, (1, 1), "of 32 MiB or more");
    assert_eq!(core.stats().num_device_alloc, 0, "no memory was requested from the device");
    let states = core.segments()[0].blocks.iter().map(|block| block.state).collect::<Vec<_>>();
    let [free, taken] = [BlockActivity::Inactive, BlockActivity::Allocated];
    assert_eq!(states, [taken, free, taken, free]);
    // Its free blocks serve requests of its stream.
    let served = core.allocate(Bytes(5 * MIB + 512), StreamId(7)).expect("free there");
    assert_eq!(served.address().get(), BASE + 2 * MIB);
    out.push(served);
    for allocation in out {
        core.free(allocation).expect("ours");
    }
    core.release_cached().expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::ZERO);
    core.check().expect("a sound heap");
}

#[test]
fn a_whole_free_segment_is_no_split_one() {
    let mut core = core();
    adopt(&mut core, &segment(None, &[(64 * MIB, Free)])).expect("it can be adopted");
    assert_eq!(core.stats().family(Family::InactiveSplit).all.current, 0);
}

#[test]
fn pages_of_an_expandable_segment_are_taken_over_each_once() {
    let mut core = core();
    let some = Allocated(Bytes(512));
    // The third page holds the end of one block and the beginning of the next; there is a gap of two pages.
    let blocks = [
        (PAGE, Unmapped),
        (PAGE + 512, some),
        (PAGE - 512, Free),
        (2 * PAGE, Unmapped),
        (512, some),
        (2 * PAGE - 512, Free),
        (4 * PAGE, Unmapped),
    ];
    let (asked, out) = adopt(&mut core, &segment(Some(PAGE), &blocks)).expect("it can be adopted");
    assert_eq!(asked.iter().map(|address| (address - BASE) / PAGE).collect::<Vec<_>>(), [1, 2, 5, 6]);
    assert_eq!(core.expandable_segments(), [(StreamId(7), Bytes(PAGE), Bytes(4 * PAGE))]);
    assert_eq!(core.heap().reserved(), Bytes(4 * PAGE));
    let stats = core.stats();
    assert_eq!((stats.family(Family::Segment).all.current, stats.family(Family::InactiveSplit).all.current), (0, 0));
    for allocation in out {
        core.free(allocation).expect("ours");
    }
    core.release_cached().expect("a device");
    assert_eq!((core.heap().reserved(), core.expandable_segments()), (Bytes::ZERO, Vec::new()));
    core.check().expect("a sound heap");
}
