//! What the detector keeps and drops, tested without a device.

use super::*;
use crate::kernel::Access;

const AT: Span = Span { start_ns: 0, end_ns: 0 };

fn touched(kind: AccessKind, start: u64, bytes: u64) -> [PhysicalAccess; 1] {
    let access = Access { address: DeviceAddress(1000 + start), size: Bytes(bytes), kind };
    [PhysicalAccess { access, ranges: vec![ByteRange { start, bytes, address: 1000 + start }] }]
}

fn launch(detector: &mut Detector, stream: u64, kind: AccessKind, start: u64, bytes: u64) {
    detector.launched(StreamId(stream), Cow::Borrowed("test"), AT, &touched(kind, start, bytes));
}

fn pairs(detector: &Detector) -> Vec<(u64, u64)> {
    detector.found().iter().map(|race| (race.first.number, race.second.number)).collect()
}

#[test]
fn only_bytes_that_both_touch_count() {
    let mut detector = Detector::default();
    launch(&mut detector, 1, AccessKind::Write, 100, 100);
    launch(&mut detector, 2, AccessKind::Write, 200, 100);
    launch(&mut detector, 2, AccessKind::Read, 0, 100);
    assert_eq!(pairs(&detector), []);
    launch(&mut detector, 2, AccessKind::Read, 199, 1);
    launch(&mut detector, 1, AccessKind::Read, 99, 2);
    assert_eq!(pairs(&detector), [(1, 4)]);
    launch(&mut detector, 3, AccessKind::Write, 0, 300);
    assert_eq!(pairs(&detector)[1..], [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6)]);
}

#[test]
fn a_write_is_not_hidden_by_a_later_read() {
    let mut detector = Detector::default();
    launch(&mut detector, 1, AccessKind::Write, 0, 100);
    launch(&mut detector, 1, AccessKind::Read, 0, 100);
    launch(&mut detector, 2, AccessKind::Read, 0, 100);
    assert_eq!(pairs(&detector), [(1, 3)]);
    launch(&mut detector, 1, AccessKind::Write, 0, 100);
    launch(&mut detector, 3, AccessKind::Read, 0, 100);
    assert_eq!(pairs(&detector)[1..], [(3, 4), (4, 5)], "the later write stands for all before it on its stream");
}

#[test]
fn without_any_wait_a_byte_keeps_two_accesses_a_stream() {
    let mut detector = Detector::default();
    for round in 0..1000 {
        let kind = if round % 3 == 0 { AccessKind::Write } else { AccessKind::Read };
        launch(&mut detector, round % 5, kind, 0, 100);
    }
    let most = detector.kept.overlapping(0, 100).map(|(_, _, kept)| kept.len()).max();
    assert_eq!(detector.kept.count(), 1);
    assert!(most <= Some(10), "{most:?}");
}

#[test]
fn what_the_host_knows_to_be_done_is_dropped() {
    let mut detector = Detector::default();
    for round in 0..50_000 {
        // Every access has its own bytes.
        launch(&mut detector, round % 4, AccessKind::Write, round * 200, 100);
        if round % 8 == 7 {
            (0..4).for_each(|stream| detector.host_waits_for(stream));
        }
        assert!(detector.kept.count() <= MIN_SWEEP_PIECES + 1, "round {round}");
    }
    detector.host_waits_for_all();
    assert!(detector.kept.is_empty());
    assert_eq!(pairs(&detector), []);
}
