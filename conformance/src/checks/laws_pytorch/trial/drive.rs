//! What a sequence does apart from requests: settings, work and time on the device, and contents of memory.

use parkade::device::BackendError;
use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::{Outcome, Trial};
use crate::backend::{AnyDevice, TestDevice};
use crate::checks::laws_pytorch::operation::Operation;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::SETTINGS;

/// Bytes read back at the start and at the end of a block: reuse would overwrite one of them.
const READ_BYTES: usize = 512;

impl Trial {
    /// Stops writing and reading memory, for runs that check decisions only.
    pub fn without_contents(&mut self) {
        self.checks_contents = false;
    }

    pub(super) fn turn_knob(&mut self, operation: &Operation) -> Result<(), Broken> {
        match *operation {
            Operation::SetFraction(hundredths) => {
                let fraction = f64::from(hundredths) / 100.0;
                self.limit = (hundredths < 100).then_some((fraction * self.setup.capacity as f64) as u64);
                if self.core.device().look().total_memory().get() == self.setup.capacity {
                    self.core.set_memory_fraction(fraction).map_err(|error| Broken::new(Law::Limit, error))?;
                    for illegal in [fraction + 1.01, fraction - 1.01, f64::NAN] {
                        let answer = self.core.set_memory_fraction(illegal);
                        ensure(Law::Limit, answer.is_err(), || format!("an illegal fraction of {illegal} was accepted"))?;
                    }
                } else {
                    // A real device reports more memory than the ballast leaves.
                    self.core.set_limit(self.limit.map(Bytes));
                }
                let limit = self.core.heap().limit().map(Bytes::get);
                ensure(Law::Limit, limit == self.limit, || {
                    format!("a fraction of {fraction} means a limit of {:?}, but it became {limit:?}", self.limit)
                })?;
            }
            Operation::ChangeSettings(place) => {
                let settings = &mut self.core.policy_mut().settings;
                settings.apply(SETTINGS[place].text).map_err(|error| Broken::new(Law::Placement, error))?;
                self.rules = SETTINGS[place].applied_to(self.rules);
                self.settings_changed = true;
            }
            Operation::Expandable(on) => {
                self.core.policy_mut().settings.expandable_segments = on;
                self.expandable = on;
            }
            _ => {}
        }
        Ok(())
    }

    /// Operations on the device alone. A real device completes work by itself, so work that the sequence completes is waited for.
    pub(super) fn drive(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        let mut device = self.device.steer();
        let answer = match *operation {
            Operation::Launch(place, duration) => device.spin(self.streams[place], duration),
            Operation::OthersHold(bytes) => {
                self.others_hold = bytes;
                device.others_hold(Bytes(bytes))
            }
            Operation::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            _ => complete(&mut device, &self.streams, operation),
        };
        answer.map(|()| Outcome::Done).map_err(|error| Broken::new(Law::Faults, format!("{operation:?}: {error}")))
    }

    /// Fills a new allocation, on its own stream.
    pub(super) fn write(&mut self, address: DeviceAddress, bytes: u64, word: u32, stream: StreamId) -> Result<(), Broken> {
        let whole = bytes / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let answer = self.device.steer().fill(address, Bytes(whole), word, stream);
        answer.map_err(|error| Broken::new(Law::Contents, format!("{bytes} bytes at {address} cannot be written: {error}")))
    }

    /// Checks that an allocation still holds what was written.
    pub(super) fn read_back(&mut self, which: usize) -> Result<(), Broken> {
        let (address, word) = (self.held[which].allocation.address(), self.held[which].word);
        let live = &self.model.live[which];
        let whole = live.requested / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let mut device = self.device.steer();
        if device.insight().is_none() {
            let answer = device.synchronize_stream(StreamId(live.stream));
            answer.map_err(|error| Broken::new(Law::Contents, error))?;
        }
        let piece = whole.min(READ_BYTES as u64);
        let mut bytes = [0; READ_BYTES];
        let bytes = &mut bytes[..piece as usize];
        for offset in [0, whole - piece] {
            let place = address.offset(Bytes(offset));
            device.read(place, bytes).map_err(|error| Broken::new(Law::Contents, format!("{place} cannot be read: {error}")))?;
            let wrong = bytes.chunks_exact(4).position(|found| found != word.to_le_bytes());
            ensure(Law::Contents, wrong.is_none(), || {
                let at = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("{live:?} was filled with {word:#x}, but holds something else at byte {at}")
            })?;
        }
        Ok(())
    }
}

/// Completes the work that the operation says.
fn complete(device: &mut AnyDevice, streams: &[StreamId; 4], operation: &Operation) -> Result<(), BackendError> {
    if let Some(device) = device.insight() {
        match *operation {
            Operation::Complete(place) => device.complete(streams[place]),
            Operation::CompleteOne(place) => {
                device.complete_one(streams[place]);
            }
            Operation::CompleteAll => device.complete_all(),
            _ => {}
        }
        return Ok(());
    }
    match *operation {
        Operation::Complete(place) | Operation::CompleteOne(place) => device.synchronize_stream(streams[place])?,
        Operation::CompleteAll => device.settle(),
        _ => {}
    }
    Ok(())
}
