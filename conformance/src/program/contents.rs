//! What a careful program does with its memory: it fills, copies and reads it, and every user waits for the last one. Memory
//! must keep its contents until it is freed.

use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, StreamId};

use super::caller::Caller;
use crate::backend::{TestDevice, first_other_word};
use crate::law::{Broken, Law, ensure};

/// Number of bytes read at the start and at the end of a run; reuse would overwrite one of them.
const READ_BYTES: u64 = 512;

/// How closely the contents are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// An allocation is filled with one word, and both ends of it are read.
    Ends,
    /// Each stretch of this many bytes has its own word, and every byte is read. Pages in the wrong order are then detected.
    Stretches(u64),
    /// They are written and read, but may be wrong: for programs that race.
    Unchecked,
}

fn device_failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Contents, format!("allocated memory cannot be used: {error}"))
}

impl Caller {
    /// Fills a live allocation with new words, on a stream.
    pub(super) fn fill(&mut self, which: usize, stream: StreamId, contents: Contents) -> Result<(), Broken> {
        let held = &mut self.held[which];
        let whole = held.whole_words();
        let stretch = if let Contents::Stretches(bytes) = contents { bytes } else { whole.max(1) };
        held.last = stream;
        held.holds.clear();
        let mut start = 0;
        while start < whole {
            let end = whole.min(start + stretch);
            self.words += 1;
            let word = self.words.wrapping_mul(0x9e37_79b1);
            held.holds.push((end, word));
            let address = held.allocation.address().offset(Bytes(start));
            self.device.steer().fill(address, Bytes(end - start), word, stream).map_err(device_failed)?;
            start = end;
        }
        Ok(())
    }

    /// Makes a stream wait for the last user of a live allocation.
    pub(super) fn wait_for_last_user(&mut self, which: usize, stream: StreamId) -> Result<(), Broken> {
        let held = &mut self.held[which];
        if stream != held.last {
            let mut device = self.device.steer();
            let mut event = device.create_event().map_err(device_failed)?;
            let ordered = device.record_event(&mut event, held.last).and_then(|()| device.stream_wait(stream, &event));
            device.destroy_event(event);
            ordered.map_err(device_failed)?;
            held.last = stream;
        }
        Ok(())
    }

    /// Copies as much of the first allocation as fits to the start of the second, on a stream that has waited for both.
    pub(super) fn copy(&mut self, from: usize, to: usize, stream: StreamId) -> Result<(), Broken> {
        let (source, target) = (&self.held[from], &self.held[to]);
        let size = source.whole_words().min(target.whole_words());
        if size == 0 {
            return Ok(());
        }
        let mut holds: Vec<(u64, u32)> = source.holds.iter().map(|&(end, word)| (end.min(size), word)).collect();
        let cut = holds.iter().position(|&(end, _)| end == size).map_or(holds.len(), |last| last + 1);
        holds.truncate(cut);
        holds.extend(target.holds.iter().filter(|&&(end, _)| end > size));
        let (source, target) = (source.address(), target.address());
        self.held[to].holds = holds;
        self.device.steer().copy(source, target, Bytes(size), stream).map_err(device_failed)
    }

    /// Waits for the last user of a live allocation and checks that the allocation still holds what was written.
    pub(super) fn read(&self, which: usize, contents: Contents) -> Result<(), Broken> {
        let held = &self.held[which];
        if held.holds.is_empty() {
            return Ok(());
        }
        let mut device = self.device.steer();
        device.synchronize_stream(held.last).map_err(device_failed)?;
        let mut start = 0;
        for &(end, word) in &held.holds {
            let piece = if matches!(contents, Contents::Stretches(_)) { end - start } else { READ_BYTES.min(end - start) };
            let mut offsets = vec![start, end - piece];
            offsets.dedup();
            for offset in offsets {
                let mut bytes = vec![0; piece as usize];
                device.read(held.address().offset(Bytes(offset)), &mut bytes).map_err(device_failed)?;
                let wrong = first_other_word(&bytes, word);
                ensure(Law::Contents, wrong.is_none() || contents == Contents::Unchecked, || {
                    let (name, at, size) = (held.name, held.address(), held.requested);
                    let place = offset + wrong.unwrap_or(0) as u64;
                    format!("a{name}, {size} bytes at {at}, should hold {word:#x} at byte {place}, but holds something else")
                })?;
            }
            start = end;
        }
        Ok(())
    }
}
