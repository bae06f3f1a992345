//! Sending a request to a private pool.

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};

/// Sends one request to a private pool.
pub(crate) fn request_from<D: DeviceBackend, P: Policy, O: Observer>(
    core: &mut Allocator<D, P, O>,
    pool: PoolId,
    bytes: Bytes,
    stream: StreamId,
) -> Result<Allocation, AllocError> {
    // While a pool is routed to nothing is polled; what the recording completes here was so before.
    core.process_events()?;
    core.begin_pool(pool, PoolFilter::All)?;
    let served = core.raw_allocate(bytes, stream);
    core.end_pool(pool)?;
    core.release_pool(pool)?;
    served
}
