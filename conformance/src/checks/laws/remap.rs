//! Memory survives remapping bit for bit: what was written is there, whichever addresses it is mapped at next.
//!
//! `driver` moves handles themselves: unmapped and mapped elsewhere, in another order, at two addresses, without their handle.
//! `allocator` lets expandable segments do it: neighbours of live allocations are unmapped and their addresses filled anew. Both
//! read all bytes, where the random sequences of the other laws read the ends of blocks.

mod allocator;
mod driver;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::cases;
use crate::backend::{Backend, TestDevice};
use crate::law::{Broken, Law, ensure};
use crate::suite::{Effort, Entry, Group, Requirement};

/// The entries of this law.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let says = "memory keeps every byte when it is unmapped, mapped elsewhere and seen through two addresses";
    let driver = Entry::new(Group::Law, "contents/remapped-by-hand", says, |backend: &B, effort: &Effort| {
        cases::run(&fewer(effort), 0x3e3a, &driver::plans(), |plan| driver::run(backend, plan))
    });
    let says = "live allocations keep every byte while their neighbours' pages are unmapped and mapped anew";
    let allocator = Entry::new(Group::Law, "contents/remapped-by-the-allocator", says, |backend: &B, effort: &Effort| {
        cases::run(&fewer(effort), 0x3e3b, &allocator::programs(), |steps| allocator::run(backend, steps))
    });
    vec![driver.requires(Requirement::VirtualMemory), allocator.requires(Requirement::ExpandableSegments)]
}

/// All bytes are read, so there are fewer cases than of other laws.
fn fewer(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(6), ..*effort }
}

/// A word for each stretch of written memory: by its name, how often it was written, and the stretch's number.
fn word(name: u32, version: u32, stretch: u64) -> u32 {
    name.wrapping_mul(0x9e37_79b1) ^ version.wrapping_mul(0x85eb_ca6b) ^ (stretch as u32).wrapping_mul(0xc2b2_ae35)
}

/// Bytes that are written in stretches, each with a word of its own.
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

    /// Queues the writing.
    fn write<D: TestDevice>(self, device: &mut D, at: DeviceAddress, size: u64, stream: StreamId) -> Result<(), Broken> {
        for (offset, bytes, word) in self.stretches(size) {
            device.fill(at.offset(Bytes(offset)), Bytes(bytes), word, stream).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads all of it; what was queued must be done.
    fn check<D: TestDevice>(self, device: &mut D, at: DeviceAddress, size: u64) -> Result<(), Broken> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        device.read(at, &mut bytes).map_err(failed)?;
        for (offset, length, word) in self.stretches(size) {
            let found = &bytes[offset as usize..(offset + length) as usize];
            ensure(Law::Contents, found == word.to_le_bytes().repeat(found.len() / 4), || {
                format!("{} at byte {offset}, {at}: should hold {word:#x}, begins with {:x?}", self.name, &found[..4])
            })?;
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Faults, format!("the device failed, which nobody had planned: {error}"))
}
