//! Device memory that may be touched: what is done with it is written once, whether it was taken whole or mapped.

use super::context::Context;
use super::stream::{Stream, raw};
use super::{INVALID_VALUE, call, size_of};
use crate::error::DriverError;

/// Bytes of the words that [`Span::fill`] writes.
const WORD_BYTES: u64 = 4;

/// A part of a range of device memory. Only whoever owns the range makes one, and it borrows the range: while it lives, the
/// memory is there and open to the device.
pub(crate) struct Span<'a> {
    context: &'a Context,
    address: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    pub(super) fn new(context: &'a Context, address: u64, bytes: u64) -> Span<'a> {
        Span { context, address, bytes }
    }

    /// Queues the writing of `word` over it, in whole words: what is left stays as it is.
    pub(crate) fn fill(&self, word: u32, stream: Option<&Stream>) -> Result<(), DriverError> {
        let words = size_of("cuMemsetD32Async", self.bytes / WORD_BYTES, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: the words lie in device memory that is ours.
        unsafe { call!(context.cuMemsetD32Async(self.address, word, words, raw(stream))) }
    }

    /// Queues copying another span over it, on this one's device. Refused if they differ in size.
    pub(crate) fn copy_from(&self, from: &Span<'_>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        if from.bytes != self.bytes {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let size = size_of(call, self.bytes, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: both lie in device memory that is ours; where they overlap the contents are unspecified, nothing worse.
        unsafe { call!(context.cuMemcpyDtoDAsync_v2(self.address, from.address, size, raw(stream))) }
    }

    /// Reads it into a slice of its size, after the default stream's work; other streams are not waited for.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), DriverError> {
        if into.len() as u64 != self.bytes {
            return Err(DriverError { call: "cuMemcpyDtoH_v2", code: INVALID_VALUE });
        }
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: writes exactly the slice's bytes, from device memory that is ours, and returns when it is done.
        unsafe { call!(context.cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.address, into.len())) }
    }
}
