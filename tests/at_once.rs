//! What is served at once is what any request gets, and a request that is not has changed nothing.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{Allocation, Allocator, PoolFilter};
use proptest::prelude::*;

type Core = Allocator<PlainDevice, PyTorch>;

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: u64, stream: u64 },
    Free(usize),
    Record(usize, u64),
    Complete(bool),
    Route(bool),
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size =
        prop_oneof![1 => Just(0), 20 => 1_u64..4096, 9 => 4096_u64..2 << 20, 9 => 2_u64 << 20..40 << 20, 1 => Just(u64::MAX)];
    let step = prop_oneof![
        20 => (size, prop_oneof![4 => Just(0_u64), 1 => 0_u64..3]).prop_map(|(size, stream)| Step::Allocate { size, stream }),
        14 => any::<usize>().prop_map(Step::Free),
        1 => (any::<usize>(), 0_u64..3).prop_map(|(place, stream)| Step::Record(place, stream)),
        1 => any::<bool>().prop_map(Step::Complete),
        1 => any::<bool>().prop_map(Step::Route),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..120)
}

/// Everything that anyone can see of an allocator.
fn seen(core: &Core) -> String {
    format!("{:?} {:?}", core.segments(), core.stats())
}

/// Asks for a block at once. In a second allocator the same request must get the same block.
fn allocate(core: &mut Core, requested: Bytes, stream: StreamId) -> Option<Allocation> {
    let mut twin = core.clone();
    let before = seen(core);
    let at_once = core.raw_allocate_at_once(requested, stream);
    let Some(block) = at_once else {
        assert_eq!(seen(core), before, "not served, but something has changed");
        let block = core.raw_allocate(requested, stream).ok();
        assert_eq!(
            block.as_ref().map(Allocation::address),
            twin.raw_allocate(requested, stream).ok().map(|block| block.address())
        );
        return block;
    };
    let any = twin.raw_allocate(requested, stream).expect("served at once, but refused otherwise");
    assert_eq!((block.address(), seen(core)), (any.address(), seen(&twin)));
    Some(block)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn what_is_served_at_once_is_what_any_request_gets(
        steps in steps(),
        expandable_segments in any::<bool>(),
        max_split_mib in prop_oneof![Just(None), (21_u64..40).prop_map(Some)],
        limit in prop_oneof![Just(1.0), 0.2_f64..1.0],
    ) {
        const POOL: PoolId = PoolId(0, 1);
        let mut settings = Settings { expandable_segments, garbage_collection_threshold: 0.6, ..Settings::default() };
        if let Some(mib) = max_split_mib {
            settings.max_split_bytes = mib << 20;
        }
        let mut core = Allocator::new(PlainDevice::new(Bytes::mib(160), 1 << 44), PyTorch::new(settings), ());
        core.set_memory_fraction(limit).expect("a fraction");
        let (mut blocks, mut is_routed) = (Vec::new(), false);
        for step in steps {
            match step {
                Step::Allocate { size, stream } => blocks.extend(allocate(&mut core, Bytes(size), StreamId(stream))),
                Step::Free(_) | Step::Record(..) if blocks.is_empty() => {}
                Step::Free(place) => {
                    let place = place % blocks.len();
                    core.free(blocks.swap_remove(place)).expect("its own");
                }
                Step::Record(place, stream) => core.record_stream(&blocks[place % blocks.len()], StreamId(stream)),
                Step::Complete(is_idle) => core.device_mut().is_idle = is_idle,
                Step::Route(on) if on == is_routed => {}
                Step::Route(on) => {
                    if on { core.begin_pool(POOL, PoolFilter::All).expect("a pool") } else { core.end_pool(POOL).expect("routed to") }
                    is_routed = on;
                }
                Step::EmptyCache => core.release_cached().map(|_| ()).expect("the device does not fail"),
            }
        }
        core.check().expect("a sound heap");
    }
}

/// A pair of small blocks after the first one is served at once: the property above would also hold if nothing were.
#[test]
fn a_free_block_is_handed_out_at_once() {
    let mut core: Core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(Settings::default()), ());
    assert_eq!(core.allocate_at_once(Bytes(512), StreamId::DEFAULT), None, "there is no segment yet");
    let first = core.allocate(Bytes(512), StreamId::DEFAULT).expect("room");
    let second = core.allocate_at_once(Bytes(512), StreamId::DEFAULT).expect("the rest of the segment");
    assert_eq!(second.address().get(), first.address().get() + 512);
    assert_eq!(core.allocate_at_once(Bytes(512), StreamId(7)), None, "another stream");
    assert_eq!(core.allocate_at_once(Bytes(1 << 60), StreamId::DEFAULT), None, "too large to be served at once");
}
