//! Ranges of device memory: cuMemAlloc and cuMemFree, the driver's counterparts of cudaMalloc and cudaFree. It also
//! contains fills, copies and reads, which work on any accessible device memory, allocated or mapped.

use std::sync::Arc;

use super::context::Context;
use super::stream::{Stream, raw};
use super::table::{INVALID_VALUE, OUT_OF_MEMORY, call, size_of};
use crate::error::DriverError;

/// A range of device memory, which is freed when dropped.
pub(crate) struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range has not been freed yet.
    held: bool,
}

impl Memory {
    /// Allocates `bytes` of device memory. The contents are unspecified.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Memory, DriverError> {
        let size = size_of("cuMemAlloc_v2", bytes, OUT_OF_MEMORY)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer.
        unsafe { call!(context.cuMemAlloc_v2(&raw mut address, size)) }?;
        Ok(Memory { context: Arc::clone(context), address, bytes, held: true })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Frees the range once. After an error, it is still held.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: allocated once and, according to `held`, not freed yet. The driver waits for the device first.
        unsafe { call!(context.cuMemFree_v2(self.address)) }?;
        self.held = false;
        Ok(())
    }

    /// Returns a part of the range.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        let inside = self.held && end.is_some_and(|end| end <= self.bytes);
        if inside { Ok(Span::new(&self.context, address, bytes)) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _: Result<(), DriverError> = self.give_back();
    }
}

/// The size of the words that [`Span::fill`] writes, in bytes.
const WORD_BYTES: u64 = 4;

/// A part of a range of device memory. Only the owner of the range creates a span, and the span borrows the range:
/// while the span lives, the memory exists and the device has access to it.
pub(crate) struct Span<'a> {
    context: &'a Context,
    address: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    pub(super) fn new(context: &'a Context, address: u64, bytes: u64) -> Span<'a> {
        Span { context, address, bytes }
    }

    /// Queues a fill with `word`. Bytes after the last whole word do not change.
    pub(crate) fn fill(&self, word: u32, stream: Option<&Stream>) -> Result<(), DriverError> {
        let words = size_of("cuMemsetD32Async", self.bytes / WORD_BYTES, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: all words are in device memory that we own, and the stream is live.
        unsafe { call!(context.cuMemsetD32Async(self.address, word, words, raw(stream))) }
    }

    /// Queues a copy of another span into this one, on this span's device. Refuses spans of different sizes.
    pub(crate) fn copy_from(&self, from: &Span<'_>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        if from.bytes != self.bytes {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let size = size_of(call, self.bytes, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: both spans are in device memory that we own, and the stream is live. An overlap only makes contents
        // unspecified.
        unsafe { call!(context.cuMemcpyDtoDAsync_v2(self.address, from.address, size, raw(stream))) }
    }

    /// Reads the span into a slice of the same size, after the default stream's work. Does not wait for other
    /// streams.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), DriverError> {
        if into.len() as u64 != self.bytes {
            return Err(DriverError { call: "cuMemcpyDtoH_v2", code: INVALID_VALUE });
        }
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: writes exactly the slice's bytes, from device memory that we own, and returns when that is
        // done.
        unsafe { call!(context.cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.address, into.len())) }
    }
}
