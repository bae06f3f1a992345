//! Ranges of device memory: cuMemAlloc and cuMemFree, the driver's counterparts of cudaMalloc and cudaFree.

use std::sync::Arc;

use super::call::{INVALID_VALUE, OUT_OF_MEMORY, call, size_of};
use super::context::Context;
use super::span::Span;
use crate::error::DriverError;

/// A range of device memory, freed when dropped.
pub(crate) struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range is not freed yet.
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

    /// Frees the range, once. After an error it is still held.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: allocated once and, as `held` says, not freed yet. The driver waits for the device first.
        unsafe { call!(context.cuMemFree_v2(self.address)) }?;
        self.held = false;
        Ok(())
    }

    /// A part of the range.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        let inside = self.held && end.is_some_and(|end| end <= self.bytes);
        if inside { Ok(Span::new(&self.context, address, bytes)) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // An error cannot be reported from here.
        let _: Result<(), DriverError> = self.give_back();
    }
}
