//! Memory survives remapping bit for bit, no matter where it is mapped next.
//!
//! A [`Mover`] moves handles directly between positions in two reservations: they are mapped elsewhere, in a different
//! order or at two addresses, and some keep their memory after the handle is released. In other programs, expandable segments
//! do the moving: neighbours of live allocations are unmapped, and their addresses are mapped again. Both fill memory with
//! patterns that identify every stretch, and read all bytes; the other laws read only the ends of blocks.

use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, Needs, TestDevice};
use crate::checks::campaign::Subject;
use crate::drawn::one_of;
use crate::law::{Broken, Law, ensure};
use crate::program::contents::Contents;
use crate::program::draw::remapping;
use crate::program::search::{Case, Stopped, run_cases};
use crate::suite::{Effort, Entry, Group, Requirement};

/// Returns the entries of this law.
pub(super) fn entries() -> Vec<Entry> {
    let says = "memory keeps every byte when it is unmapped, mapped elsewhere or mapped at two addresses";
    let driver = Entry::new(Group::Law, "contents/remapped-by-hand", says, |backend: &AnyBackend, effort: &Effort| {
        run_cases(&fewer(effort), 0x3e3a, plans(), |plan| run_plan(backend, plan))
    });
    let says = "live allocations keep every byte while neighbouring pages are unmapped and mapped again";
    let allocator =
        Entry::new(Group::Law, "contents/remapped-by-the-allocator", says, |backend: &AnyBackend, effort: &Effort| {
            let subject = Subject::pytorch().with_contents(Contents::Stretches(HELD_STRETCH));
            run_cases(&fewer(effort), 0x3e3b, remapping(), |(setup, steps)| {
                subject.whole_run(backend, setup, steps).map(|_| steps.len() as u64)
            })
        });
    vec![driver.requires(Requirement::VirtualMemory), allocator.requires(Requirement::ExpandableSegments)]
}

/// There are fewer cases than for other laws, because all bytes are read.
fn fewer(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(10), ..*effort }
}

/// Returns the word for a stretch of memory, from the memory's name and version and the stretch's
/// number.
fn word(name: u32, version: u32, stretch: u64) -> u32 {
    name.wrapping_mul(0x9e37_79b1) ^ version.wrapping_mul(0x85eb_ca6b) ^ (stretch as u32).wrapping_mul(0xc2b2_ae35)
}

/// A pattern of stretches, each with a distinct word.
#[derive(Clone, Copy)]
struct Pattern {
    name: u32,
    version: u32,
    stretch_bytes: u64,
}

impl Pattern {
    fn stretches(self, size: u64) -> impl Iterator<Item = (u64, u64, u32)> {
        let step = usize::try_from(self.stretch_bytes).unwrap_or(usize::MAX);
        (0..size)
            .step_by(step)
            .zip(0..)
            .map(move |(offset, number)| (offset, self.stretch_bytes.min(size - offset), word(self.name, self.version, number)))
    }

    /// Queues the writes on a stream.
    fn write(self, device: &mut AnyDevice, at: DeviceAddress, size: u64, stream: StreamId) -> Result<(), Broken> {
        for (offset, bytes, word) in self.stretches(size) {
            device.fill(at.offset(Bytes(offset)), Bytes(bytes), word, stream).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads and checks all bytes; queued work must be done.
    fn check(self, device: &mut AnyDevice, at: DeviceAddress, size: u64) -> Result<(), Broken> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        device.read(at, &mut bytes).map_err(failed)?;
        for (offset, length, word) in self.stretches(size) {
            let found = &bytes[offset as usize..(offset + length) as usize];
            ensure(Law::Contents, found == word.to_le_bytes().repeat(found.len() / 4), || {
                format!("{} at byte {offset}, {at}: should hold {word:#x}, but begins with {:x?}", self.name, &found[..4])
            })?;
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Faults, format!("the device failed without a planned fault: {error}"))
}

/// Size of each of the two reservations, in pages.
const PAGES: u64 = 24;
/// Bytes per distinct fill word, by hand.
const MOVED_STRETCH: u64 = 4096;
/// Bytes per distinct fill word in programs: less than a page, so that reordered pages are detected.
const HELD_STRETCH: u64 = 256 << 10;

/// An action on a handle, which is given as an index that wraps around.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum Move {
    /// Unmaps it at its first address, and maps it at this page, counted across both reservations.
    Remap(usize, u64),
    /// Also maps it at this page.
    Alias(usize, u64),
    /// Unmaps everything, and maps it again side by side in reverse order.
    Reverse,
    /// Writes it again, through its newest address.
    Rewrite(usize),
    /// Releases its handle; its mappings keep the memory.
    Release(usize),
}

/// The size of each handle in pages, and the actions on the handles.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    pages: Vec<u64>,
    moves: Vec<Move>,
}

impl Case for Plan {
    type Step = Move;

    fn steps(&mut self) -> &mut Vec<Move> {
        &mut self.moves
    }
}

/// Returns random plans.
fn plans() -> impl Strategy<Value = Plan> {
    let (which, place) = (0..8_usize, 0..2 * PAGES);
    let step = one_of![
        5 => (which.clone(), place.clone()).prop_map(|(which, place)| Move::Remap(which, place)),
        3 => (which.clone(), place).prop_map(|(which, place)| Move::Alias(which, place)),
        1 => Just(Move::Reverse),
        2 => which.clone().prop_map(Move::Rewrite),
        1 => which.prop_map(Move::Release),
    ];
    let pages = prop::collection::vec(one_of![3 => Just(1), 2 => 2..6_u64], 1..7);
    (pages, prop::collection::vec(step, 1..16)).prop_map(|(pages, moves)| Plan { pages, moves })
}

/// A piece of memory: its handle, where it is mapped and what it holds.
struct Piece<P> {
    memory: Option<P>,
    bytes: u64,
    pattern: Pattern,
    at: Vec<DeviceAddress>,
}

struct Mover {
    device: AnyDevice,
    /// The sizes of a page and of each reservation, in bytes.
    page: u64,
    size: Bytes,
    bases: [DeviceAddress; 2],
    pieces: Vec<Piece<AnyPhysical>>,
}

/// Runs a plan, and returns its number of calls.
fn run_plan(backend: &AnyBackend, plan: &Plan) -> Result<u64, Stopped> {
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
            let (bytes, pattern) = (pages * page, Pattern { name, version: 0, stretch_bytes: MOVED_STRETCH });
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
                // Memory that is mapped nowhere would rightly be lost.
                if !self.pieces[handle].at.is_empty() {
                    self.release(handle)?;
                }
                self.check(handle)
            }
        }
    }

    /// Returns the address of a position if the piece fits there and no mapping is in its way.
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

    /// If every piece has its handle, one call unmaps an entire reservation, gaps included.
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

    /// Reads all of a piece through all its addresses. A read waits for the default stream, on which all writes are
    /// queued. A piece for which there has been no room so far has never been written, so it has nothing to keep.
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
        ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))
    }
}
