//! The program's use of its memory and the device: fills, reads, waits, work and time.

use parkade::device::BackendError;
use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, StreamId};

use super::super::step::Step;
use super::Trial;
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

/// Bytes read back at the start and at the end of an allocation: reuse would overwrite one of them.
const READ_BYTES: u64 = 512;

fn device_failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Contents, format!("allocated memory cannot be used: {error}"))
}

impl Trial {
    pub(super) fn drive(&mut self, step: Step) -> Result<(), BackendError> {
        let mut device = self.device.steer();
        match step {
            Step::Launch(place, duration) => device.spin(self.streams[place], duration),
            Step::OthersHold(bytes) => device.others_hold(Bytes(bytes)),
            Step::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            Step::CompleteOne(place) => match device.insight() {
                Some(device) => {
                    device.complete_one(self.streams[place]);
                    Ok(())
                }
                None => device.synchronize_stream(self.streams[place]),
            },
            _ => {
                device.settle();
                Ok(())
            }
        }
    }

    /// Fills a live allocation with a new word, on a stream.
    pub(super) fn fill(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
        self.words += 1;
        let word = self.words.wrapping_mul(0x9e37_79b1);
        let live = &mut self.book.live[which];
        (live.word, live.last) = (word, stream);
        let whole = live.whole_words();
        if whole == 0 {
            return Ok(());
        }
        self.device.steer().fill(live.address(), Bytes(whole), word, stream).map_err(device_failed)
    }

    /// Lets a stream fill a live allocation after its last user, and tells the allocator.
    pub(super) fn use_by(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
        let live = &mut self.book.live[which];
        if stream != live.last {
            let mut device = self.device.steer();
            let mut event = device.create_event().map_err(device_failed)?;
            let ordered = device.record_event(&mut event, live.last).and_then(|()| device.stream_wait(stream, &event));
            device.destroy_event(event);
            ordered.map_err(device_failed)?;
        }
        self.core.record_stream(&live.allocation, stream);
        if stream != live.home {
            live.is_captured |= self.core.heap().is_deferring();
            if !live.told.contains(&stream.get()) {
                live.told.push(stream.get());
            }
        }
        self.fill(which, stream)
    }

    /// Waits for the last user of a live allocation and checks that it still holds what was written.
    pub(super) fn read(&mut self, which: usize) -> Result<(), Broken> {
        let live = &self.book.live[which];
        let whole = live.whole_words();
        let piece = whole.min(READ_BYTES);
        if piece == 0 {
            return Ok(());
        }
        let mut device = self.device.steer();
        device.synchronize_stream(live.last).map_err(device_failed)?;
        let mut bytes = vec![0; piece as usize];
        for offset in [0, whole - piece] {
            let place = live.address().offset(Bytes(offset));
            device.read(place, &mut bytes).map_err(device_failed)?;
            let wrong = bytes.chunks_exact(4).position(|found| found != live.word.to_le_bytes());
            ensure(Law::Contents, wrong.is_none(), || {
                let (at, size, word) = (live.address(), live.requested, live.word);
                let place = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("{size} bytes at {at} were filled with {word:#x}, but hold something else at byte {place}")
            })?;
        }
        Ok(())
    }
}
