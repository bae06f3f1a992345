//! What a sequence needs of a device beyond the core's trait: writing and reading memory, and letting all work finish.
//!
//! The simulated device has no bytes; there these do nothing, and a sequence runs on it for its decisions alone.

use std::error::Error;

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_gpu::CudaDevice;
use parkade_sim::device::SimDevice;

use super::ensure;

/// Up to this size a block is read whole; of a larger one, so much at its start, in its middle and at its end.
const READ_BYTES: u64 = 4 << 20;

pub(super) trait Subject: DeviceBackend {
    /// Waits until all work is done.
    fn settle(&mut self) -> Result<(), Box<dyn Error>>;

    /// Queues the writing of `word` over the block.
    fn write(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), Box<dyn Error>>;

    /// Looks whether the block still holds what was written, and returns how many bytes were looked at.
    fn verify(&mut self, address: DeviceAddress, size: Bytes, word: u32) -> Result<u64, Box<dyn Error>>;
}

impl Subject for CudaDevice {
    fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.synchronize()?)
    }

    fn write(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), Box<dyn Error>> {
        Ok(self.fill(address, size, word, stream)?)
    }

    fn verify(&mut self, address: DeviceAddress, size: Bytes, word: u32) -> Result<u64, Box<dyn Error>> {
        self.synchronize()?;
        let whole = size.get() / 4 * 4;
        let piece = whole.min(READ_BYTES);
        let offsets = if whole == piece { vec![0] } else { vec![0, (whole - piece) / 8 * 4, whole - piece] };
        let mut bytes = vec![0; usize::try_from(piece)?];
        for &offset in &offsets {
            self.read(address.offset(Bytes(offset)), &mut bytes)?;
            let wrong = bytes.chunks_exact(4).position(|found| found != word.to_le_bytes());
            ensure(wrong.is_none(), || {
                let at = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("the block of {size} bytes at {address} was written with {word:#x}; byte {at} says something else")
            })?;
        }
        Ok(piece * offsets.len() as u64)
    }
}

impl Subject for SimDevice {
    fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        self.synchronize();
        Ok(())
    }

    fn write(&mut self, _: DeviceAddress, _: Bytes, _: u32, _: StreamId) -> Result<(), Box<dyn Error>> {
        Ok(())
    }

    fn verify(&mut self, _: DeviceAddress, _: Bytes, _: u32) -> Result<u64, Box<dyn Error>> {
        Ok(0)
    }
}
