//! The two ways into the core: by handle on one thread, and by pointer through the wrapper for several.

use parkade::policy::PyTorch;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, Allocator};
use parkade_benches::NullDevice;
use parkade_shared::Shared;

use crate::Failure;

/// What the loops ask of an allocator.
pub(crate) trait Interface {
    /// How a block is named.
    type Block;

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Self::Block, Failure>;
    fn record_stream(&mut self, block: &Self::Block, stream: StreamId) -> Result<(), Failure>;
    fn free(&mut self, block: Self::Block) -> Result<(), Failure>;
}

impl Interface for Allocator<NullDevice, PyTorch> {
    type Block = Allocation;

    #[inline]
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Allocation, Failure> {
        Ok(self.raw_allocate(Bytes(bytes), stream)?)
    }

    #[inline]
    fn record_stream(&mut self, block: &Allocation, stream: StreamId) -> Result<(), Failure> {
        Allocator::record_stream(self, block, stream);
        Ok(())
    }

    #[inline]
    fn free(&mut self, block: Allocation) -> Result<(), Failure> {
        Ok(Allocator::free(self, block)?)
    }
}

impl Interface for Shared<NullDevice, PyTorch> {
    type Block = DeviceAddress;

    #[inline]
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddress, Failure> {
        Ok(self.raw_allocate(Bytes(bytes), stream)?)
    }

    #[inline]
    fn record_stream(&mut self, block: &DeviceAddress, stream: StreamId) -> Result<(), Failure> {
        Ok(Shared::record_stream(self, *block, stream)?)
    }

    #[inline]
    fn free(&mut self, block: DeviceAddress) -> Result<(), Failure> {
        Ok(Shared::free(self, block)?)
    }
}
