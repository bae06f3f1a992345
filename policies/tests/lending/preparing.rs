//! The preparation before requests are routed to a private pool, and where the pool's segments grow.

use std::cell::Cell;

use parkade::policy::{Request, Wrapper};
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator, Heap};
use parkade_sim::{CallName, SimDevice, SimOptions};

use super::{FIRST, HERE, THERE, Toy, begin, calls, end, give, on, segments, take};

/// [`Toy`], except that it waits for busy streams before requests are routed to a pool.
struct Patient(Toy);

impl Wrapper for Patient {
    type Inner = Toy;

    fn inner(&self) -> &Toy {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut Toy {
        &mut self.0
    }

    fn waits_for_pools(&self, _: &Heap) -> bool {
        true
    }
}

#[test]
fn a_pool_whose_end_is_free_grows_by_what_is_missing() {
    let mut core = on(32);
    let kept = take(&mut core, 10, HERE);
    begin(&mut core, FIRST);
    let first = take(&mut core, 12, HERE);
    let place = first.address();
    give(&mut core, first);
    // 12 MiB are free in the pool, and 10 MiB are left on the device.
    let longer = take(&mut core, 20, HERE);
    assert_eq!((longer.address(), segments(&core)), (place, vec![(0, 10), (1, 20)]));
    give(&mut core, longer);
    let too_long = core.allocate(Bytes::mib(23), HERE).unwrap_err();
    assert!(matches!(too_long, AllocError::OutOfMemory(_)), "{too_long}");
    core.check().unwrap();
    assert_eq!(segments(&core), [(0, 10), (1, 20)], "memory that would not be enough is not mapped");
    end(&mut core, FIRST);
    give(&mut core, kept);
}

#[test]
fn a_pool_on_another_stream_grows_where_its_end_is() {
    let mut core = on(32);
    let cached = take(&mut core, 8, HERE);
    give(&mut core, cached);
    begin(&mut core, FIRST);
    let part = take(&mut core, 8, THERE);
    let place = part.address();
    give(&mut core, part);
    let longer = take(&mut core, 30, THERE);
    assert_eq!((longer.address(), segments(&core)), (place, vec![(1, 30)]));
    end(&mut core, FIRST);
    give(&mut core, longer);
    core.release_pool(FIRST).unwrap();
    let whole = take(&mut core, 32, HERE);
    assert_eq!(segments(&core), [(0, 32)]);
    give(&mut core, whole);
}

/// [`Toy`] with handles of 4 MiB.
struct Fine(Toy);

impl Wrapper for Fine {
    type Inner = Toy;

    fn inner(&self) -> &Toy {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut Toy {
        &mut self.0
    }

    fn handle(&self, _: &Heap, _: &Request, _: Bytes) -> Option<Bytes> {
        Some(Bytes::mib(4))
    }
}

#[test]
fn beyond_the_limit_no_part_of_what_is_missing_is_mapped() {
    let mut core = Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(64))), Fine(Toy), ());
    core.set_limit(Some(Bytes::mib(32)));
    let kept = take(&mut core, 12, HERE);
    begin(&mut core, FIRST);
    let first = take(&mut core, 12, HERE);
    let created = calls(&core, CallName::MemCreate);
    let error = core.allocate(Bytes::mib(12), HERE).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    core.check().unwrap();
    assert_eq!((created, calls(&core, CallName::MemCreate)), (6, 6), "8 of the 12 MiB are left");
    let last = take(&mut core, 8, HERE);
    end(&mut core, FIRST);
    [kept, first, last].into_iter().for_each(|block| give(&mut core, block));
}

fn patient() -> Allocator<SimDevice, Patient> {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(32))), Patient(Toy), ())
}

#[test]
fn what_was_pending_serves_the_capture_once_it_was_waited_for() {
    let mut core = patient();
    let used = take(&mut core, 32, HERE);
    core.record_stream(&used, THERE);
    core.device_mut().spin(THERE, 1_000_000);
    give(&mut core, used);
    begin(&mut core, FIRST);
    let part = take(&mut core, 32, HERE);
    end(&mut core, FIRST);
    give(&mut core, part);
}

#[test]
fn a_captured_stream_is_not_waited_for() {
    for is_captured in [false, true] {
        let mut core = patient();
        let block = take(&mut core, 8, THERE);
        give(&mut core, block);
        core.device_mut().spin(THERE, 1_000_000);
        if is_captured {
            core.device_mut().begin_capture(THERE);
        }
        begin(&mut core, FIRST);
        assert_eq!(calls(&core, CallName::StreamSynchronize), u64::from(!is_captured));
        core.device_mut().end_capture(THERE);
        end(&mut core, FIRST);
    }
}

#[test]
fn several_busy_streams_are_one_wait() {
    let mut core = patient();
    let blocks: Vec<Allocation> = (0..4).map(|stream| take(&mut core, 8, StreamId(stream * 0x1000))).collect();
    begin(&mut core, FIRST);
    end(&mut core, FIRST);
    for _ in 0..40 {
        (0..4).for_each(|stream| core.device_mut().spin(StreamId(stream * 0x1000), 1_000_000 * (stream + 1)));
        begin(&mut core, FIRST);
        end(&mut core, FIRST);
    }
    assert_eq!(calls(&core, CallName::StreamSynchronize), 4 * 16);
    blocks.into_iter().for_each(|block| give(&mut core, block));
}

/// Returns a different number of bytes each time it is asked about the same request, unless its cell holds 0.
struct Fickle(Toy, Cell<u64>);

impl Wrapper for Fickle {
    type Inner = Toy;

    fn inner(&self) -> &Toy {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut Toy {
        &mut self.0
    }

    fn growth(&self, request: &Request) -> Bytes {
        self.1.set(self.1.get().wrapping_mul(6_364_136_223_846_793_005));
        request.size + Bytes::mib((self.1.get() >> 33) % 40)
    }

    fn reservation(&self, _: Bytes) -> Bytes {
        Bytes::mib(64)
    }
}

#[test]
fn a_policy_that_grows_by_different_sizes_is_at_fault_and_no_block_is_too_small() {
    let mut faults = 0;
    for start in (1..2000).step_by(2) {
        let mut core = Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(512))), Fickle(Toy, Cell::new(0)), ());
        begin(&mut core, FIRST);
        let first = take(&mut core, 12, HERE);
        give(&mut core, first);
        core.policy_mut().1.set(start);
        match core.allocate(Bytes::mib(40), HERE) {
            Ok(block) => {
                let blocks = core.segments().into_iter().flat_map(|segment| segment.blocks);
                let served = blocks.into_iter().find(|other| other.address == block.address()).expect("the block");
                assert!(served.size >= Bytes::mib(40), "{}", served.size);
            }
            Err(AllocError::Policy(_)) => faults += 1,
            Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        core.check().unwrap();
        core.policy_mut().1.set(0);
        end(&mut core, FIRST);
    }
    assert!(faults > 0);
}

#[test]
fn a_busy_stream_is_waited_for_if_the_policy_says_so_but_not_for_ever() {
    let mut core = patient();
    let cached = take(&mut core, 32, HERE);
    give(&mut core, cached);
    core.device_mut().spin(HERE, 1_000_000);
    begin(&mut core, FIRST);
    let part = take(&mut core, 16, HERE);
    assert!(core.device().now_ns() >= 1_000_000);
    give(&mut core, part);
    end(&mut core, FIRST);
    let before = calls(&core, CallName::StreamSynchronize);
    for _ in 0..40 {
        core.device_mut().spin(HERE, 1_000_000);
        begin(&mut core, FIRST);
        let part = take(&mut core, 16, HERE);
        give(&mut core, part);
        end(&mut core, FIRST);
    }
    assert_eq!(calls(&core, CallName::StreamSynchronize) - before, 16, "the pool needs no more memory");
}
