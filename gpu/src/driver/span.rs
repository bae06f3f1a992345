//! Device memory that may be touched, whether it is allocated or mapped: fills, copies and reads are written
//! once, here.

use super::call::{INVALID_VALUE, call, size_of};
use super::context::Context;
use super::stream::{Stream, raw};
use crate::error::DriverError;

/// Bytes of the words that [`Span::fill`] writes.
const WORD_BYTES: u64 = 4;

/// A part of a range of device memory. Only the owner of the range creates one, and it borrows the range:
/// while it lives, the memory exists and the device has access.
pub(crate) struct Span<'a> {
    context: &'a Context,
    address: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    pub(super) fn new(context: &'a Context, address: u64, bytes: u64) -> Span<'a> {
        Span { context, address, bytes }
    }

    /// Queues a fill with `word`. Bytes after the last whole word stay as they are.
    pub(crate) fn fill(&self, word: u32, stream: Option<&Stream>) -> Result<(), DriverError> {
        let words = size_of("cuMemsetD32Async", self.bytes / WORD_BYTES, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: all words lie in device memory that we own, and the stream is live.
        unsafe { call!(context.cuMemsetD32Async(self.address, word, words, raw(stream))) }
    }

    /// Queues a copy of another span into this one, on this one's device. Refused if the sizes differ.
    pub(crate) fn copy_from(&self, from: &Span<'_>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        if from.bytes != self.bytes {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let size = size_of(call, self.bytes, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: both lie in device memory that we own, and the stream is live. An overlap only makes
        // contents unspecified.
        unsafe { call!(context.cuMemcpyDtoDAsync_v2(self.address, from.address, size, raw(stream))) }
    }

    /// Reads it into a slice of the same size, after the default stream's work. Other streams are not waited
    /// for.
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
