//! A request that borrows from a private pool when the device is out of memory.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{Allocator, PoolFilter};

/// Ending the routing to the pool, which happens after each search, may free a block of the pool next to the block that
/// the search has found.
#[test]
fn a_neighbour_may_become_free_while_a_block_is_borrowed() {
    for profile in [&Profile::PYTORCH_2_12, &Profile::PYTORCH_2_15] {
        for is_after in [false, true] {
            let settings = Settings { graph_capture_record_stream_reuse: true, ..Settings::default() };
            let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::of(profile, settings), ());
            let pool = PoolId(0, 1);
            core.begin_pool(pool, PoolFilter::All).expect("a new pool");
            let mut out: Vec<_> = (0..4).map(|_| core.allocate(Bytes::mib(4), StreamId::DEFAULT).expect("room")).collect();
            core.end_pool(pool).expect("routed to");
            core.set_pool_use_on_oom(pool, true);
            core.device_mut().capacity = 20 << 20;

            let last = out.pop().expect("four");
            let found = out.remove(1);
            let address = found.address();
            let neighbour = out.remove(usize::from(is_after));
            core.free(found).expect("ours");
            core.set_capturing(true);
            core.record_stream(&neighbour, StreamId(7));
            core.free(neighbour).expect("ours");
            let borrowed = core.allocate(Bytes::mib(3), StreamId::DEFAULT).expect("a free block of the pool");
            assert_eq!(core.check(), Ok(()), "{}, after: {is_after}", profile.name);
            core.set_capturing(false);
            let held = core.segment_of(&borrowed).expect("ours");
            assert!(held.0 <= address && core.is_allocated(&borrowed));
            out.extend([last, borrowed]);
            for allocation in out {
                core.free(allocation).expect("ours");
            }
            assert_eq!(core.check(), Ok(()), "{}, after: {is_after}", profile.name);
        }
    }
}
