//! Reserved addresses, and what is mapped behind them.

use std::sync::Arc;

use cudarc::driver::sys::{CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType};

use super::context::Context;
use super::peer::Peer;
use super::span::Span;
use super::{CudaPhysical, INVALID_VALUE, call, size_of};
use crate::error::DriverError;
use crate::mappings::Mappings;

/// A range of reserved addresses with the mappings in it, given back when dropped.
///
/// Its calls stay inside the range, so that they touch nobody else's addresses; what the driver refuses inside is asked of it.
pub(crate) struct Reservation {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the driver still counts the range as ours.
    held: bool,
    mappings: Mappings,
}

impl Reservation {
    /// Reserves addresses, wherever the driver likes, on its own alignment.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Reservation, DriverError> {
        let size = size_of("cuMemAddressReserve", bytes, INVALID_VALUE)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer. An alignment and an address of 0 leave both to the driver; the flags
        // must be 0.
        unsafe { call!(context.cuMemAddressReserve(&raw mut address, size, 0, 0, 0)) }?;
        Ok(Reservation { context: Arc::clone(context), address, bytes, held: true, mappings: Mappings::default() })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many mappings it has.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Whether a range lies inside.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.bytes && bytes <= self.bytes - offset)
    }

    /// Puts memory behind addresses of the range.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, memory: &CudaPhysical) -> Result<(), DriverError> {
        self.contain("cuMemMap", address, bytes)?;
        memory.map(address, bytes)?;
        self.mappings.insert(address, bytes);
        Ok(())
    }

    /// Lets this device and the peers read and write what is mapped in a part of the range.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, peers: &[Peer]) -> Result<(), DriverError> {
        let devices: Vec<CUdevice> = std::iter::once(self.context.device).chain(peers.iter().map(Peer::device)).collect();
        self.give_access(address, bytes, &devices, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        self.mappings.open(address, bytes);
        Ok(())
    }

    /// Lets a peer read and write everything that the device itself may; nothing if that fails.
    pub(crate) fn open_to(&self, peer: &Peer) -> Result<(), DriverError> {
        let read_write = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let opened = self
            .mappings
            .open_runs()
            .iter()
            .try_for_each(|&(address, bytes)| self.give_access(address, bytes, &[peer.device()], read_write));
        if opened.is_err() {
            self.close_to(peer);
        }
        opened
    }

    /// Takes a peer's access away. An error is not told: this undoes a step that failed.
    pub(crate) fn close_to(&self, peer: &Peer) {
        for (address, bytes) in self.mappings.open_runs() {
            let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
            let _: Result<(), DriverError> = self.give_access(address, bytes, &[peer.device()], none);
        }
    }

    fn give_access(&self, address: u64, bytes: u64, devices: &[CUdevice], flags: CUmemAccess_flags) -> Result<(), DriverError> {
        let size = self.contain("cuMemSetAccess", address, bytes)?;
        let access = |&id| {
            let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id };
            CUmemAccessDesc { location, flags }
        };
        let accesses: Vec<CUmemAccessDesc> = devices.iter().map(access).collect();
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: reads as many descriptions through the pointer as it is told; the addresses are ours, and the driver checks
        // what is mapped there.
        unsafe { call!(context.cuMemSetAccess(address, size, accesses.as_ptr(), accesses.len())) }
    }

    /// Takes memory away from behind a part of the range. Does not wait for work that uses it.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemUnmap", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours. Work that still uses the memory fails on the device; it reaches no other memory.
        unsafe { call!(context.cuMemUnmap(address, size)) }?;
        self.mappings.remove(address, bytes);
        Ok(())
    }

    /// Gives the addresses back; the driver refuses all but the whole, and while something is mapped. After an error they are
    /// ours.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemAddressFree", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours and, as `held` says, not given back yet.
        unsafe { call!(context.cuMemAddressFree(address, size)) }?;
        self.held = false;
        Ok(())
    }

    /// A part of the range that the device may touch.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.contain(call, address, bytes)?;
        if !self.mappings.are_open(address, bytes) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        Ok(Span::new(&self.context, address, bytes))
    }

    /// Refuses what is not a part of the range.
    fn contain(&self, call: &'static str, address: u64, bytes: u64) -> Result<usize, DriverError> {
        let inside = self.held && self.contains(address, bytes);
        if inside { size_of(call, bytes, INVALID_VALUE) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Reservation {
    /// Unmaps everything, in one call, which may meet gaps (facts: Virtual memory calls), then gives the addresses back. Whoever
    /// drops it while work may use it waits for that first. Nobody is left to tell of an error.
    fn drop(&mut self) {
        if self.held {
            let (address, bytes) = (self.address, self.bytes);
            let _: Result<(), DriverError> = self.unmap(address, bytes);
            let _: Result<(), DriverError> = self.give_back(address, bytes);
        }
    }
}
