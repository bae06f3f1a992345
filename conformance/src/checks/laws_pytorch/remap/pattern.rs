//! Fill patterns that identify every stretch of memory, and reading them back.

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::backend::{AnyDevice, TestDevice};
use crate::law::{Broken, Law, ensure};

/// The word for a stretch of memory, from its name, its version and the stretch's number.
fn word(name: u32, version: u32, stretch: u64) -> u32 {
    name.wrapping_mul(0x9e37_79b1) ^ version.wrapping_mul(0x85eb_ca6b) ^ (stretch as u32).wrapping_mul(0xc2b2_ae35)
}

/// A pattern of stretches, each with a distinct word.
#[derive(Clone, Copy)]
pub(super) struct Pattern {
    pub(super) name: u32,
    pub(super) version: u32,
    pub(super) stretch_bytes: u64,
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
    pub(super) fn write(self, device: &mut AnyDevice, at: DeviceAddress, size: u64, stream: StreamId) -> Result<(), Broken> {
        for (offset, bytes, word) in self.stretches(size) {
            device.fill(at.offset(Bytes(offset)), Bytes(bytes), word, stream).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads and checks everything; queued work must be done.
    pub(super) fn check(self, device: &mut AnyDevice, at: DeviceAddress, size: u64) -> Result<(), Broken> {
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

pub(super) fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Faults, format!("the device failed without a planned fault: {error}"))
}
