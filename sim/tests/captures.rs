//! Graph captures: which streams take part, and what their next work waits for.

use std::collections::BTreeSet;

use parkade::device::{DeviceBackend, GraphNode};
use parkade::units::{Bytes, MIB, StreamId};
use parkade_sim::{SimDevice, SimOptions};

const A: StreamId = StreamId(0x1000);
const B: StreamId = StreamId(0x2000);
const C: StreamId = StreamId(0x3000);

fn device() -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes(64 * MIB)))
}

fn awaited(device: &mut SimDevice, stream: StreamId) -> BTreeSet<GraphNode> {
    let mut nodes = BTreeSet::new();
    device.add_awaited(stream, &mut nodes).expect("it always answers");
    nodes
}

#[test]
fn a_stream_waits_for_its_own_work_and_for_what_it_was_told_to() {
    let mut device = device();
    device.begin_capture(A);
    let first = device.capture_work(A).expect("captured");
    assert!(device.capture_wait(B, A));
    let (of_a, of_b) = (device.capture_work(A).expect("captured"), device.capture_work(B).expect("takes part"));
    assert_eq!(awaited(&mut device, A), BTreeSet::from([first, of_a]));
    assert_eq!(awaited(&mut device, B), BTreeSet::from([first, of_b]));
    assert!(device.capture_wait(A, B));
    assert_eq!(awaited(&mut device, A), BTreeSet::from([first, of_a, of_b]));
    // The new work is ordered after everything for which the stream waits, and is then the only
    // end.
    let join = device.capture_work(A).expect("captured");
    let ends = device.capture(A).expect("it always answers").expect("captured").ends;
    assert_eq!(ends, [join]);
    assert_eq!(awaited(&mut device, A).len(), 4);
}

#[test]
fn what_was_looked_at_is_not_looked_at_again() {
    let mut device = device();
    device.begin_capture(A);
    let (first, second) = (device.capture_work(A).expect("captured"), device.capture_work(A).expect("captured"));
    let mut nodes = BTreeSet::from([second]);
    device.add_awaited(A, &mut nodes).expect("it always answers");
    assert!(!nodes.contains(&first));
}

#[test]
fn a_capture_ends_on_all_its_streams_and_no_others() {
    let mut device = device();
    let (one, other) = (device.begin_capture(A), device.begin_capture(C));
    assert_ne!(one, other);
    assert!(device.capture_wait(B, A));
    assert!(!device.capture_wait(C, A), "it takes part in a different capture");
    assert!(!device.capture_wait(A, StreamId::DEFAULT), "that one is not captured");
    device.end_capture(B);
    assert_eq!([A, B, C].map(|stream| device.is_captured(stream)), [false, false, true]);
    assert_eq!(device.capture_work(A), None);
    assert_eq!(awaited(&mut device, A), BTreeSet::new());
}
