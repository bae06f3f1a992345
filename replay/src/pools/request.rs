//! Sending a request to a private pool.

use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};

/// Sends one request to a private pool.
///
/// # Errors
/// As a request to the core, and if the pool does not exist.
pub(crate) fn request_from<D: DeviceBackend, P: Policy, O: Observer>(
    core: &mut Allocator<D, P, O>,
    pool: PoolId,
    bytes: Bytes,
    stream: StreamId,
) -> Result<Allocation, AllocError> {
    // The core polls no events while requests are routed to a pool. What the
    // recording completes here completed before.
    core.process_events()?;
    core.begin_pool(pool, PoolFilter::All)?;
    let served = core.raw_allocate(bytes, stream);
    core.end_pool(pool)?;
    core.release_pool(pool)?;
    served
}
