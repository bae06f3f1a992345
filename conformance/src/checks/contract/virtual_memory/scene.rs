//! The scene from which every row here starts: two handles mapped side by side in a reservation, and a third, unmapped one.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, TestDevice};
use crate::checks::contract::probe::{ends_empty, free_bytes, open, pages};
use crate::suite::Trouble;

/// Size of the scene's large handles, in pages.
pub(super) const LARGE_PAGES: u64 = 10;
/// Size of the scene's reservation, in pages.
pub(super) const RESERVED_PAGES: u64 = 32;
/// The word that fills all of the scene's mapped memory.
pub(super) const WORD: u32 = 0x5eed_1e55;
/// Handles of the scene: a large one at the base, one of a page after it, and a large unmapped one. From page 11 on, nothing is
/// mapped.
pub(super) const FIRST: usize = 0;
pub(super) const SECOND: usize = 1;
pub(super) const SPARE: usize = 2;

/// A reservation with two handles mapped side by side and filled, and a spare handle.
pub(super) struct Scene {
    pub(super) device: AnyDevice,
    free_before: u64,
    pub(super) base: DeviceAddress,
    pub(super) handles: Vec<Option<AnyPhysical>>,
    /// The sizes of a page, of a large handle, and of the reservation.
    pub(super) page: Bytes,
    pub(super) large: Bytes,
    pub(super) reserved: Bytes,
}

impl Scene {
    pub(super) fn new(backend: &AnyBackend) -> Result<Scene, Trouble> {
        let facts = backend.facts();
        let [page, large, reserved] = [1, LARGE_PAGES, RESERVED_PAGES].map(|count| pages(&facts, count));
        let mut device = open(backend, None)?;
        let free_before = free_bytes(&mut device)?;
        let base = device.reserve(reserved)?;
        let mut scene = Scene { device, free_before, base, handles: Vec::new(), page, large, reserved };
        for size in [large, page, large] {
            let memory = scene.device.create(size)?;
            scene.handles.push(Some(memory));
        }
        scene.map(0, large, FIRST)?;
        scene.map(LARGE_PAGES, page, SECOND)?;
        scene.set_access(0, large + page)?;
        scene.device.fill(base, large + page, WORD, StreamId::DEFAULT)?;
        scene.device.settle();
        Ok(scene)
    }

    /// The address this many pages into the reservation.
    pub(super) fn at(&self, place: u64) -> DeviceAddress {
        self.base.offset(Bytes(place * self.page.get()))
    }

    pub(super) fn map_at(&mut self, address: DeviceAddress, size: Bytes, handle: usize) -> Result<(), BackendError> {
        let gone = BackendError::Driver { call: "the handle was released by the row itself", code: u32::MAX };
        let memory = self.handles[handle].as_ref().ok_or(gone)?;
        self.device.map(address, size, memory)
    }

    pub(super) fn map(&mut self, place: u64, size: Bytes, handle: usize) -> Result<(), BackendError> {
        self.map_at(self.at(place), size, handle)
    }

    pub(super) fn set_access(&mut self, place: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(self.at(place), size)
    }

    pub(super) fn unmap(&mut self, place: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.unmap(self.at(place), size)
    }

    pub(super) fn release(&mut self, handle: usize) -> Result<(), BackendError> {
        let Some(memory) = self.handles[handle].take() else { return Ok(()) };
        self.device.release(memory).map_err(|(memory, error)| {
            self.handles[handle] = Some(memory);
            error
        })
    }

    /// Whether all of these bytes hold the word.
    pub(super) fn holds(&mut self, place: u64, size: Bytes, word: u32) -> Result<bool, Trouble> {
        let mut bytes = vec![0; usize::try_from(size.get()).unwrap_or(0)];
        self.device.read(self.at(place), &mut bytes)?;
        Ok(bytes == word.to_le_bytes().repeat(bytes.len() / 4))
    }

    /// How many bytes have been taken from the device since the scene began.
    pub(super) fn taken(&mut self) -> Result<u64, Trouble> {
        Ok(self.free_before.saturating_sub(free_bytes(&mut self.device)?))
    }

    /// Gives everything back, with a single unmap of the whole reservation, and checks that nothing is left.
    pub(super) fn finish(mut self) -> Result<(), Trouble> {
        self.device.settle();
        self.device.unmap(self.base, self.reserved)?;
        (0..self.handles.len()).try_for_each(|handle| self.release(handle))?;
        self.device.unreserve(self.base, self.reserved)?;
        ends_empty(&mut self.device, self.free_before)
    }
}
