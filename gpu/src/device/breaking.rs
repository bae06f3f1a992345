//! A handle is broken: parts of it get memory of their own, with the same contents at the same addresses.
//!
//! The driver unmaps and releases whole handles only, and where this is done the device has no room for a copy. So contents wait in
//! the host's memory: wait for the device, copy out, unmap, release, create, map, open, copy back. The old memory is back at the
//! device before new memory is asked for, so that no more is held at any time than before.

use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress};

use super::backend::no_room;
use super::cuda_device::CudaDevice;
use crate::driver::{CudaPhysical, INVALID_VALUE, OUT_OF_MEMORY, STREAM_CAPTURE_CODES, Stage, granularity_bytes};
use crate::error::DriverError;

impl CudaDevice {
    /// Whether contents may be moved behind the back of whoever knows the addresses, and the driver can do it.
    pub(super) fn can_break(&self) -> bool {
        let is_serial = self.foreign_streams.is_none() || self.serial_work.is_some();
        is_serial && self.can_stage && self.peers.is_empty() && self.elsewhere.is_empty()
    }

    pub(super) fn break_mapped(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        mut memory: CudaPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<CudaPhysical>, (CudaPhysical, BackendError)> {
        // What another process has mapped would not be what is here. Others may serve the request.
        if self.reservation("cuMemUnmap", address, size).is_ok_and(|there| there.is_exported(address.get(), size.get())) {
            return Err((memory, BackendError::OutOfMemory { requested: size }));
        }
        if let Err(error) = self.put_on_stage(address, size, &memory, parts) {
            return Err((memory, stays(error, size)));
        }
        let (start, bytes) = (address.get(), size.get());
        let unmapped = self.reservation("cuMemUnmap", address, size).and_then(|reservation| reservation.unmap(start, bytes));
        if let Err(error) = unmapped {
            return Err((memory, error.into()));
        }
        if let Err(error) = memory.give_back() {
            return match self.map_open(address, size, &memory) {
                Ok(()) => Err((memory, error.into())),
                Err(_) => Err(self.stand_in(address, size, memory, error.into())),
            };
        }
        match self.take_from_stage(address, parts) {
            Ok(pieces) => Ok(pieces),
            Err((pieces, error)) => {
                let answer = self.stand_in(address, size, memory, error);
                drop(pieces);
                Err(answer)
            }
        }
    }

    /// Waits for all work, and copies the parts to the stage, each as far from its start as in the handle.
    fn put_on_stage(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: &CudaPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<(), DriverError> {
        let call = "cuMemUnmap";
        let is_whole = memory.bytes() == size.get();
        if !self.can_break() || !is_whole || !are_parts(size.get(), parts, granularity_bytes(&self.context)?) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        self.mapped_span(call, address, size)?;
        self.context.synchronize()?;
        let stage = self.stage_for(size.get())?;
        let copied = parts.iter().try_for_each(|&(offset, part)| {
            let from = self.mapped_span(call, DeviceAddress(address.get() + offset.get()), part)?;
            stage.span(offset.get(), part.get())?.copy_from(&from, None)
        });
        self.stage = Some(stage);
        // Also those copies that were queued before one failed.
        self.context.synchronize().and(copied)
    }

    /// Takes the stage, grown to this size. If the host gives no memory for it, no handle is broken any more unless it is only full.
    fn stage_for(&mut self, bytes: u64) -> Result<Box<Stage>, DriverError> {
        let grown = match self.stage.take() {
            Some(stage) => Ok(stage),
            None => Stage::new(&self.context).map(Box::new),
        };
        // A stage that could not grow is dropped, with all of its memory.
        let grown = grown.and_then(|mut stage| stage.grow(bytes).map(|()| stage));
        grown.map_err(|error| {
            self.can_stage &= error.code == OUT_OF_MEMORY;
            DriverError { code: OUT_OF_MEMORY, ..error }
        })
    }

    /// Gives each part memory of its own and copies it back. After an error: what was created, of which some may be mapped.
    fn take_from_stage(
        &mut self,
        address: DeviceAddress,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<CudaPhysical>, (Vec<CudaPhysical>, BackendError)> {
        let mut pieces = Vec::with_capacity(parts.len());
        let place = |offset: Bytes| DeviceAddress(address.get() + offset.get());
        for &(offset, part) in parts {
            match CudaPhysical::create(&self.context, part.get()) {
                Ok(piece) => pieces.push(piece),
                Err(error) => return Err((pieces, no_room(error, part))),
            }
            if let Err(error) = pieces.last().map_or(Ok(()), |piece| self.map_open(place(offset), part, piece)) {
                return Err((pieces, error.into()));
            }
        }
        let copied = parts.iter().try_for_each(|&(offset, part)| {
            let stage = self.stage.as_ref().ok_or(DriverError { call: "cuMemcpyDtoDAsync_v2", code: INVALID_VALUE })?;
            let to = self.mapped_span("cuMemcpyDtoDAsync_v2", place(offset), part)?;
            to.copy_from(&stage.span(offset.get(), part.get())?, None)
        });
        match self.context.synchronize().and(copied) {
            Ok(()) => Ok(pieces),
            Err(error) => Err((pieces, error.into())),
        }
    }

    /// Maps the stage itself where the contents came from, after all that is mapped there. If the driver refuses that too, its error
    /// takes the place of `error`, and the addresses may stay closed: then work that uses them fails. Others take the device's memory
    /// as soon as it is given back, so no handle is broken any more.
    fn stand_in(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: CudaPhysical,
        error: BackendError,
    ) -> (CudaPhysical, BackendError) {
        self.can_stage = false;
        let unmapped = self.reservation("cuMemUnmap", address, size).and_then(|range| range.unmap(address.get(), size.get()));
        let gone = DriverError { call: "cuMemMap", code: INVALID_VALUE };
        let taken = unmapped.and_then(|()| self.stage.as_mut().map_or(Err(gone), |stage| stage.take(size.get())));
        let host = match taken {
            Ok(host) => host,
            Err(worse) => return (memory, worse.into()),
        };
        match self.map_open(address, size, &host) {
            Ok(()) => (host, error),
            Err(worse) => (host, worse.into()),
        }
    }

    fn map_open(&mut self, address: DeviceAddress, size: Bytes, memory: &CudaPhysical) -> Result<(), DriverError> {
        let reservation = self.reservation("cuMemMap", address, size)?;
        reservation.map(address.get(), size.get(), memory)?;
        reservation.set_access(address.get(), size.get(), &[])
    }
}

/// Whether the parts are whole pages of so many bytes, in order.
fn are_parts(bytes: u64, parts: &[(Bytes, Bytes)], page_bytes: u64) -> bool {
    let mut end = 0;
    parts.iter().all(|&(offset, size)| {
        let follows = offset.get() >= end && size > Bytes::ZERO;
        let is_whole = offset.get().is_multiple_of(page_bytes) && size.get().is_multiple_of(page_bytes);
        end = offset.get().saturating_add(size.get());
        follows && is_whole && end <= bytes
    })
}

/// What stopped a handle from being broken before anything changed. Where the host has no room, or somebody captures a graph,
/// this handle stays and others may serve.
fn stays(error: DriverError, requested: Bytes) -> BackendError {
    let is_for_now = error.code == OUT_OF_MEMORY || STREAM_CAPTURE_CODES.contains(&error.code);
    if is_for_now { BackendError::OutOfMemory { requested } } else { error.into() }
}
