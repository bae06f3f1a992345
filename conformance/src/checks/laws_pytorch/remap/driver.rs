//! Handles moved by hand between positions in two reservations.

use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use proptest::prelude::*;

use super::pattern::{Pattern, failed};
use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, Needs, TestDevice};
use crate::checks::laws_pytorch::campaign::Stopped;
use crate::law::{Broken, Law, ensure};
use serde::{Deserialize, Serialize};

/// Size of each of the two reservations, in pages.
const PAGES: u64 = 24;
/// Bytes per distinct fill word.
const STRETCH: u64 = 4096;

/// An action on a handle, given by its index, wrapping around.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Move {
    /// Unmaps it at its first address, and maps it at this page of the two reservations taken as one.
    Remap(usize, u64),
    /// Maps it at this page as well.
    Alias(usize, u64),
    /// Unmaps everything, and maps it again side by side in the opposite order.
    Reverse,
    /// Writes it again, through its newest address.
    Rewrite(usize),
    /// Releases its handle; its mappings keep the memory.
    Release(usize),
}

/// The size of each handle in pages, and the actions on them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pages: Vec<u64>,
    moves: Vec<Move>,
}

/// Random plans.
pub(super) fn plans() -> impl Strategy<Value = Plan> {
    let (which, place) = (0..8_usize, 0..2 * PAGES);
    let step = prop_oneof![
        5 => (which.clone(), place.clone()).prop_map(|(which, place)| Move::Remap(which, place)),
        3 => (which.clone(), place).prop_map(|(which, place)| Move::Alias(which, place)),
        1 => Just(Move::Reverse),
        2 => which.clone().prop_map(Move::Rewrite),
        1 => which.prop_map(Move::Release),
    ];
    let pages = prop::collection::vec(prop_oneof![3 => Just(1), 2 => 2..6_u64], 1..7);
    (pages, prop::collection::vec(step, 1..16)).prop_map(|(pages, moves)| Plan { pages, moves })
}

/// A piece of memory: its handle, where it is mapped, and what it holds.
struct Piece<P> {
    memory: Option<P>,
    bytes: u64,
    pattern: Pattern,
    at: Vec<DeviceAddress>,
}

struct Mover {
    device: AnyDevice,
    /// Size of a page, and of each reservation, in bytes.
    page: u64,
    size: Bytes,
    bases: [DeviceAddress; 2],
    pieces: Vec<Piece<AnyPhysical>>,
}

/// Runs a plan; returns its number of calls.
pub(super) fn run(backend: &AnyBackend, plan: &Plan) -> Result<u64, Stopped> {
    let device = backend.open(&Needs::default()).map_err(Stopped::Unable)?;
    let mut script = format!("# handles of {:?} pages, side by side in one of two reservations of {PAGES} pages\n", plan.pages);
    let outcome = Mover::new(device, backend.facts().page.get(), &plan.pages).and_then(|mut mover| {
        for &step in &plan.moves {
            script += &format!("# {step:?}\n");
            mover.step(step).map_err(|broken| broken.during(format!("{step:?}")))?;
        }
        mover.finish()
    });
    outcome.map(|()| 4 * (plan.pages.len() + plan.moves.len()) as u64).map_err(|broken| Stopped::Broken(broken, script))
}

impl Mover {
    fn new(mut device: AnyDevice, page: u64, pages: &[u64]) -> Result<Mover, Broken> {
        let size = Bytes(PAGES * page);
        let bases = [device.reserve(size).map_err(failed)?, device.reserve(size).map_err(failed)?];
        let mut mover = Mover { device, page, size, bases, pieces: Vec::new() };
        let mut place = 0;
        for (name, &pages) in (1..).zip(pages) {
            let (bytes, pattern) = (pages * page, Pattern { name, version: 0, stretch_bytes: STRETCH });
            let memory = mover.device.create(Bytes(bytes)).map_err(failed)?;
            mover.pieces.push(Piece { memory: Some(memory), bytes, pattern, at: Vec::new() });
            let which = mover.pieces.len() - 1;
            if mover.map(which, place)? {
                place += pages;
                mover.write(which)?;
            }
        }
        Ok(mover)
    }

    fn step(&mut self, step: Move) -> Result<(), Broken> {
        let which = |which: usize| which % self.pieces.len();
        // Queued work may use any of the mappings.
        self.device.settle();
        match step {
            Move::Remap(handle, place) => self.remap(which(handle), place),
            Move::Alias(handle, place) => {
                let handle = which(handle);
                self.map(handle, place)?;
                self.check(handle)
            }
            Move::Reverse => self.reverse(),
            Move::Rewrite(handle) => {
                let handle = which(handle);
                self.write(handle)?;
                self.check(handle)
            }
            Move::Release(handle) => {
                let handle = which(handle);
                // Memory that is mapped nowhere would be lost, and rightly so.
                if !self.pieces[handle].at.is_empty() {
                    self.release(handle)?;
                }
                self.check(handle)
            }
        }
    }

    /// The address of a position, if the piece fits there and nothing is mapped in its way.
    fn room_at(&self, place: u64, bytes: u64) -> Option<DeviceAddress> {
        let (base, page) = (self.bases[(place / PAGES % 2) as usize], place % PAGES);
        let start = base.get() + page * self.page;
        let is_free =
            |piece: &Piece<AnyPhysical>| piece.at.iter().all(|at| start + bytes <= at.get() || at.get() + piece.bytes <= start);
        (page * self.page + bytes <= self.size.get() && self.pieces.iter().all(is_free)).then_some(DeviceAddress(start))
    }

    /// Maps a piece that has a handle, if there is room; returns whether it did.
    fn map(&mut self, which: usize, place: u64) -> Result<bool, Broken> {
        let bytes = self.pieces[which].bytes;
        let (Some(at), Some(memory)) = (self.room_at(place, bytes), &self.pieces[which].memory) else { return Ok(false) };
        self.device.map(at, Bytes(bytes), memory).map_err(failed)?;
        self.device.set_access(at, Bytes(bytes)).map_err(failed)?;
        self.pieces[which].at.push(at);
        Ok(true)
    }

    /// Unmapping the last mapping of a piece without a handle would lose its memory, so only pieces with a handle are moved.
    fn remap(&mut self, which: usize, place: u64) -> Result<(), Broken> {
        let piece = &mut self.pieces[which];
        if piece.memory.is_none() {
            return Ok(());
        }
        if !piece.at.is_empty() {
            let at = piece.at.remove(0);
            self.device.unmap(at, Bytes(piece.bytes)).map_err(failed)?;
        }
        self.map(which, place)?;
        self.check(which)
    }

    /// If every piece has its handle, one call unmaps a whole reservation, gaps included.
    fn reverse(&mut self) -> Result<(), Broken> {
        if self.pieces.iter().all(|piece| piece.memory.is_some()) {
            self.bases.into_iter().try_for_each(|base| self.device.unmap(base, self.size)).map_err(failed)?;
            self.pieces.iter_mut().for_each(|piece| piece.at.clear());
        }
        for piece in self.pieces.iter_mut().filter(|piece| piece.memory.is_some()) {
            for at in std::mem::take(&mut piece.at) {
                self.device.unmap(at, Bytes(piece.bytes)).map_err(failed)?;
            }
        }
        let mut place = 0;
        for which in (0..self.pieces.len()).rev() {
            while place < 2 * PAGES && self.pieces[which].at.is_empty() && !self.map(which, place)? {
                place += 1;
            }
        }
        (0..self.pieces.len()).try_for_each(|which| self.check(which))
    }

    fn write(&mut self, which: usize) -> Result<(), Broken> {
        let piece = &mut self.pieces[which];
        let Some(&at) = piece.at.last() else { return Ok(()) };
        piece.pattern.version += 1;
        piece.pattern.write(&mut self.device, at, piece.bytes, StreamId::DEFAULT)
    }

    fn release(&mut self, which: usize) -> Result<(), Broken> {
        let Some(memory) = self.pieces[which].memory.take() else { return Ok(()) };
        self.device.release(memory).map_err(|(_, error)| failed(error))
    }

    /// Reads all of a piece through all its addresses. A read waits for the default stream, on which all writes are queued.
    /// A piece that found no room so far was never written, so it has nothing to keep.
    fn check(&mut self, which: usize) -> Result<(), Broken> {
        let piece = &self.pieces[which];
        if piece.pattern.version == 0 {
            return Ok(());
        }
        piece.at.iter().try_for_each(|&at| piece.pattern.check(&mut self.device, at, piece.bytes))
    }

    fn finish(mut self) -> Result<(), Broken> {
        (0..self.pieces.len()).try_for_each(|which| self.check(which))?;
        self.device.settle();
        for base in self.bases {
            self.device.unmap(base, self.size).map_err(failed)?;
        }
        (0..self.pieces.len()).try_for_each(|which| self.release(which))?;
        for base in self.bases {
            self.device.unreserve(base, self.size).map_err(failed)?;
        }
        let left = self.device.holdings();
        ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))
    }
}
