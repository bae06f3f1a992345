//! Facts, Virtual memory calls: what each call answers, one cause at a time, and what it does.
//!
//! Every row begins with the same [`Scene`]. A refusal must leave it as it was: memory, holdings and contents.

mod effects;
mod rows;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use crate::backend::{Backend, TestDevice};
use crate::checks::contract::probe::{PAGE, code, ends_empty, ensure, free_bytes, open};
use crate::suite::{Entry, Evidence, Group, Trouble, Verdict};
use rows::Row;

const LARGE: Bytes = Bytes(20 * MIB);
/// What the scene reserves.
const RESERVED: Bytes = Bytes(64 * MIB);
/// The word that all mapped memory of the scene holds.
const WORD: u32 = 0x5eed_1e55;
/// Handles of the scene: one of 20 MiB at its base, one page behind it, and 20 MiB that are not mapped. Behind the page, from
/// 22 MiB, nothing is mapped.
const FIRST: usize = 0;
const SECOND: usize = 1;
const SPARE: usize = 2;

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let rows = rows::rows::<B::Device>().into_iter();
    let mut entries: Vec<Entry<B>> =
        rows.map(|row| Entry::new(Group::Contract, row.name, row.says, move |backend, _| check(backend, &row))).collect();
    entries.extend(effects::entries());
    entries
}

/// A reservation with two handles mapped side by side, written, and a spare handle.
struct Scene<D: DeviceBackend> {
    device: D,
    free_before: u64,
    base: DeviceAddress,
    handles: Vec<Option<D::Physical>>,
}

impl<D: TestDevice> Scene<D> {
    fn new<B: Backend<Device = D>>(backend: &B) -> Result<Scene<D>, Trouble> {
        let mut device = open(backend, None)?;
        let free_before = free_bytes(&mut device)?;
        let base = device.reserve(RESERVED)?;
        let mut scene = Scene { device, free_before, base, handles: Vec::new() };
        for size in [LARGE, PAGE, LARGE] {
            let memory = scene.device.create(size)?;
            scene.handles.push(Some(memory));
        }
        scene.map(0, LARGE, FIRST)?;
        scene.map(20, PAGE, SECOND)?;
        scene.set_access(0, LARGE + PAGE)?;
        scene.device.fill(base, LARGE + PAGE, WORD, StreamId::DEFAULT)?;
        scene.device.settle();
        Ok(scene)
    }

    /// The address so many MiB into the reservation.
    fn at(&self, mib: u64) -> DeviceAddress {
        self.base.offset(Bytes(mib * MIB))
    }

    fn map_at(&mut self, address: DeviceAddress, size: Bytes, handle: usize) -> Result<(), BackendError> {
        let gone = BackendError::Driver { call: "the handle was released by the row itself", code: u32::MAX };
        let memory = self.handles[handle].as_ref().ok_or(gone)?;
        self.device.map(address, size, memory)
    }

    fn map(&mut self, mib: u64, size: Bytes, handle: usize) -> Result<(), BackendError> {
        self.map_at(self.at(mib), size, handle)
    }

    fn set_access(&mut self, mib: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(self.at(mib), size)
    }

    fn unmap(&mut self, mib: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.unmap(self.at(mib), size)
    }

    fn release(&mut self, handle: usize) -> Result<(), BackendError> {
        let Some(memory) = self.handles[handle].take() else { return Ok(()) };
        self.device.release(memory).map_err(|(memory, error)| {
            self.handles[handle] = Some(memory);
            error
        })
    }

    /// Whether this many bytes there hold the word, from the first to the last.
    fn holds(&mut self, mib: u64, size: Bytes, word: u32) -> Result<bool, Trouble> {
        let mut bytes = vec![0; usize::try_from(size.get()).unwrap_or(0)];
        self.device.read(self.at(mib), &mut bytes)?;
        Ok(bytes == word.to_le_bytes().repeat(bytes.len() / 4))
    }

    /// How many bytes are taken from the device since the scene began.
    fn taken(&mut self) -> Result<u64, Trouble> {
        Ok(self.free_before.saturating_sub(free_bytes(&mut self.device)?))
    }

    /// Gives everything back, through one unmapping of the whole, and looks whether that is so.
    fn finish(mut self) -> Result<(), Trouble> {
        self.device.settle();
        self.device.unmap(self.base, RESERVED)?;
        (0..self.handles.len()).try_for_each(|handle| self.release(handle))?;
        self.device.unreserve(self.base, RESERVED)?;
        ends_empty(&mut self.device, self.free_before)
    }
}

/// Makes a row's call; a refusal must have changed nothing.
fn check<B: Backend>(backend: &B, row: &Row<B::Device>) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let before = (scene.device.holdings(), scene.taken()?);
    let found = code(&(row.call)(&mut scene));
    ensure(found == row.code, || format!("code {found}, not {}", row.code))?;
    if found != 0 {
        let after = (scene.device.holdings(), scene.taken()?);
        ensure(before == after, || format!("refused with {found}, and {before:?} became {after:?}"))?;
        ensure(scene.holds(0, LARGE + PAGE, WORD)?, || format!("refused with {found}, and contents changed"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: format!("code {found}"), operations: 12, ..Evidence::default() })
}
