//! Ranges of device memory, taken with the driver's counterparts of cudaMalloc and cudaFree.

use std::sync::Arc;

use super::context::Context;
use super::stream::{Stream, raw};
use super::{INVALID_VALUE, OUT_OF_MEMORY, call};
use crate::error::DriverError;

/// Bytes of the words that [`Memory::fill`] writes.
const WORD_BYTES: u64 = 4;

/// A range of device memory, given back when dropped.
pub(crate) struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the driver still counts the range as ours.
    held: bool,
}

impl Memory {
    /// Takes `bytes` of device memory. Its contents are whatever was there.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Memory, DriverError> {
        let too_large = DriverError { call: "cuMemAlloc_v2", code: OUT_OF_MEMORY };
        let size = usize::try_from(bytes).map_err(|_| too_large)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer.
        unsafe { call!(context.cuMemAlloc_v2(&raw mut address, size)) }?;
        Ok(Memory { context: Arc::clone(context), address, bytes, held: true })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Gives the range back, once; after an error it is still ours.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: taken once and, as `held` says, not given back yet. The driver waits for the device first.
        unsafe { call!(context.cuMemFree_v2(self.address)) }?;
        self.held = false;
        Ok(())
    }

    /// Queues the writing of `word` over a part of the range, in whole words: what is left of `bytes` stays as it is.
    pub(crate) fn fill(&self, offset: u64, bytes: u64, word: u32, stream: Option<&Stream>) -> Result<(), DriverError> {
        let call = "cuMemsetD32Async";
        self.contain(call, offset, bytes)?;
        let Ok(words) = usize::try_from(bytes / WORD_BYTES) else { return Err(DriverError { call, code: INVALID_VALUE }) };
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the words lie in device memory that is ours.
        unsafe { call!(context.cuMemsetD32Async(self.address + offset, word, words, raw(stream))) }
    }

    /// Reads a part of the range. Waits for the default stream, not for others.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DriverError> {
        self.contain("cuMemcpyDtoH_v2", offset, into.len() as u64)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: writes exactly the slice's bytes, from device memory that is ours, and returns when it is done.
        unsafe { call!(context.cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.address + offset, into.len())) }
    }

    /// Refuses what is not a part of the range.
    fn contain(&self, call: &'static str, offset: u64, bytes: u64) -> Result<(), DriverError> {
        let inside = self.held && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if inside { Ok(()) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Nobody is left to tell of an error.
        let _: Result<(), DriverError> = self.give_back();
    }
}
