//! Reserved addresses and the mappings in them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType};

use super::call::{INVALID_VALUE, call, size_of};
use super::context::Context;
use super::peer::Peer;
use super::physical::CudaPhysical;
use super::shared::export;
use super::span::Span;
use crate::error::DriverError;
use crate::mappings::Mappings;

/// A range of reserved addresses with its mappings, freed when dropped.
///
/// Its calls stay inside the range, so they touch nobody else's addresses. What to refuse inside the range is
/// left to the driver.
pub(crate) struct Reservation {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range is not freed yet.
    held: bool,
    mappings: Mappings,
    /// The file descriptors of mapped handles that were exported, by address. Each keeps the memory at the device, so it is
    /// closed when the handle is unmapped.
    exported: BTreeMap<u64, OwnedFd>,
}

impl Reservation {
    /// Reserves addresses. The driver chooses the place and the alignment.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Reservation, DriverError> {
        let size = size_of("cuMemAddressReserve", bytes, INVALID_VALUE)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer. Alignment 0 and address 0 leave both to the driver;
        // the flags must be 0.
        unsafe { call!(context.cuMemAddressReserve(&raw mut address, size, 0, 0, 0)) }?;
        Ok(Reservation {
            context: Arc::clone(context),
            address,
            bytes,
            held: true,
            mappings: Mappings::default(),
            exported: BTreeMap::new(),
        })
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

    /// Whether a range lies in this one.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.bytes && bytes <= self.bytes - offset)
    }

    /// Maps memory at addresses in the range.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, memory: &CudaPhysical) -> Result<(), DriverError> {
        self.contain("cuMemMap", address, bytes)?;
        memory.map(address, bytes)?;
        self.mappings.insert(address, bytes);
        Ok(())
    }

    /// Gives this device and the peers read and write access to the mappings in a part of the range.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, peers: &[Peer]) -> Result<(), DriverError> {
        let devices: Vec<CUdevice> = std::iter::once(self.context.device).chain(peers.iter().map(Peer::device)).collect();
        self.give_access(address, bytes, &devices, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        self.mappings.open(address, bytes);
        Ok(())
    }

    /// Gives a peer read and write access to all mappings that the device may touch; to none if that fails.
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

    /// Takes a peer's access away. Errors are ignored, because this undoes a step that failed.
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
        // SAFETY: reads `accesses.len()` descriptions through the pointer. The addresses are ours, and the
        // driver checks what is mapped there.
        unsafe { call!(context.cuMemSetAccess(address, size, accesses.as_ptr(), accesses.len())) }
    }

    /// Unmaps a part of the range. Does not wait for work that uses it.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemUnmap", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours. Work that still uses the memory fails on the device and reaches no
        // other memory.
        unsafe { call!(context.cuMemUnmap(address, size)) }?;
        self.mappings.remove(address, bytes);
        self.exported.retain(|place, _| !(address..address.saturating_add(bytes)).contains(place));
        Ok(())
    }

    /// The handles under a part of the range, lowest first, as other processes may open them: address, bytes, and a file descriptor
    /// that stays open for as long as the handle is mapped there.
    pub(crate) fn export(&mut self, address: u64, bytes: u64) -> Result<Vec<(u64, u64, BorrowedFd<'_>)>, DriverError> {
        let call = "cuMemExportToShareableHandle";
        self.contain(call, address, bytes)?;
        // After a reset the descriptors are of memory that is no more.
        let context = Arc::clone(&self.context);
        let _entered = context.enter()?;
        let handles = self.mappings.under(address, bytes).ok_or(DriverError { call, code: INVALID_VALUE })?;
        for &(place, _) in &handles {
            if !self.exported.contains_key(&place) {
                self.exported.insert(place, export(&self.context, place)?);
            }
        }
        let described = |(place, bytes)| Some((place, bytes, self.exported.get(&place)?.as_fd()));
        Ok(handles.into_iter().filter_map(described).collect())
    }

    /// Whether another process may have opened a handle that is mapped in a part of the range.
    pub(crate) fn is_exported(&self, address: u64, bytes: u64) -> bool {
        self.exported.range(address..address.saturating_add(bytes)).next().is_some()
    }

    /// Frees the addresses. The driver refuses a part of the range, and a range with mappings. After an error
    /// they are still held.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemAddressFree", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours and, as `held` says, not freed yet.
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

    /// Refuses addresses outside the range. Returns the size as the driver takes it.
    fn contain(&self, call: &'static str, address: u64, bytes: u64) -> Result<usize, DriverError> {
        let inside = self.held && self.contains(address, bytes);
        if inside { size_of(call, bytes, INVALID_VALUE) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Reservation {
    /// Unmaps everything in one call, which may cross gaps (facts: Virtual memory calls), then frees the
    /// addresses. The owner waits first for work that may use them. An error cannot be reported from here.
    fn drop(&mut self) {
        if self.held {
            let (address, bytes) = (self.address, self.bytes);
            let _: Result<(), DriverError> = self.unmap(address, bytes);
            let _: Result<(), DriverError> = self.give_back(address, bytes);
        }
    }
}
