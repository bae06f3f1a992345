//! A stage: memory of the host at addresses of the device, where contents wait while the device's memory is replaced.
//!
//! It needs no room on the device, which has none when this is done. Taking the host's memory is slow (0.5 ms for a MiB on an
//! H100, driver 580.159.04), so it is kept; copies then go at the speed of the bus (55 GB/s there). It has one handle for each 2 MiB, so
//! that as much of it as is needed can be mapped at the addresses where contents came from, if the device does not give memory for them again.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute;

use super::call::INVALID_VALUE;
use super::context::Context;
use super::physical::{CudaPhysical, granularity_bytes};
use super::reservation::Reservation;
use super::span::Span;
use crate::error::DriverError;

/// The host's memory and the addresses at which it is mapped, from the first on.
pub(crate) struct Stage {
    context: Arc<Context>,
    /// The host's node that is nearest to the device.
    node: i32,
    /// As long as the device's memory, so that no handle is larger.
    addresses: Reservation,
    pages: CudaPhysical,
    page_bytes: u64,
}

impl Stage {
    /// Whether the device can use memory of the host in the place of its own.
    pub(crate) fn is_possible(context: &Context) -> bool {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        context.attribute(supported).is_ok_and(|answer| answer != 0)
    }

    /// A stage without memory.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stage, DriverError> {
        // -1 where the host is not divided into nodes.
        let node = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?.max(0);
        let page_bytes = granularity_bytes(context)?;
        let bytes = context.total_memory_bytes()?.next_multiple_of(page_bytes);
        let addresses = Reservation::take(context, bytes)?;
        Ok(Stage { context: Arc::clone(context), node, addresses, pages: CudaPhysical::none(context), page_bytes })
    }

    /// How many handles it holds.
    pub(crate) fn handles(&self) -> usize {
        self.pages.handles()
    }

    /// Takes memory up to this size. After an error it cannot be used any more, and is to be dropped.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), DriverError> {
        let start = self.bytes();
        if bytes <= start {
            return Ok(());
        }
        self.add_pages(bytes)?;
        self.addresses.set_access(self.addresses.address() + start, self.bytes() - start, &[])
    }

    fn add_pages(&mut self, bytes: u64) -> Result<(), DriverError> {
        while self.bytes() < bytes {
            let page = CudaPhysical::create_on_host(&self.context, self.page_bytes, self.node)?;
            self.addresses.map(self.addresses.address() + self.bytes(), self.page_bytes, &page)?;
            self.pages.append(page);
        }
        Ok(())
    }

    /// A part of it, from an offset on.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.addresses.span("cuMemcpyDtoDAsync_v2", self.addresses.address() + offset, bytes)
    }

    /// Takes the first bytes out of it, to be mapped somewhere else with what is in them. The others are given back.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<CudaPhysical, DriverError> {
        if bytes > self.bytes() {
            return Err(DriverError { call: "cuMemMap", code: INVALID_VALUE });
        }
        self.addresses.unmap(self.addresses.address(), self.bytes())?;
        let mut pages = std::mem::replace(&mut self.pages, CudaPhysical::none(&self.context));
        Ok(pages.split_off_first(usize::try_from(bytes / self.page_bytes).unwrap_or(usize::MAX)))
    }

    fn bytes(&self) -> u64 {
        self.pages.handles() as u64 * self.page_bytes
    }
}
