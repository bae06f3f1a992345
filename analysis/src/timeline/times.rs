//! The times of evenly spaced entries, from which a reader interpolates the others.

use parkade_recording::DeviceRecording;

use super::varint::put;

/// The times of evenly spaced entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeSamples {
    /// The first entry's time, in microseconds since 1970.
    pub start_us: u64,
    /// There is a sample every this many entries.
    pub every: usize,
    /// Microseconds since the previous sample, packed as numbers of a column. Never negative: a clock that is set back counts as standing
    /// still.
    pub bytes: Vec<u8>,
    /// How many samples there are.
    pub count: usize,
    /// From the first entry to the last, in microseconds.
    pub duration_us: u64,
}

impl TimeSamples {
    /// At most so many samples of a device's trace, that of the last entry included; `None` if an entry has no time.
    #[must_use]
    pub fn of(recording: &DeviceRecording, most: usize) -> Option<TimeSamples> {
        let trace = &recording.trace;
        let start_us = trace.first()?.time()?;
        let every = trace.len().div_ceil(most.max(2) - 1).max(1);
        let (mut latest, mut bytes, mut count, mut before) = (start_us, Vec::new(), 0, start_us);
        for (at, entry) in trace.iter().enumerate() {
            latest = latest.max(entry.time()?);
            if at % every == 0 || at + 1 == trace.len() {
                put(&mut bytes, latest - before);
                before = latest;
                count += 1;
            }
        }
        Some(TimeSamples { start_us, every, bytes, count, duration_us: latest - start_us })
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry};

    use super::*;

    #[test]
    fn the_first_and_the_last_entry_are_among_the_samples() {
        let trace = [5, 7, 6, 9, 20].map(|time| {
            let mut entry = Entry::new(Action::Snapshot, 0, 0, 0);
            entry.set_time(Some(time));
            entry
        });
        let mut recording = DeviceRecording { trace: trace.to_vec(), ..DeviceRecording::default() };
        let all = TimeSamples::of(&recording, 100).expect("times");
        assert_eq!((all.start_us, all.every, all.count, all.duration_us), (5, 1, 5, 15));
        assert_eq!(all.bytes, [0, 2, 0, 2, 11], "a clock that was set back counts as standing still");
        let some = TimeSamples::of(&recording, 3).expect("times");
        assert_eq!((some.every, some.count, some.bytes), (3, 3, vec![0, 4, 11]));
        recording.trace[1].set_time(None);
        assert_eq!(TimeSamples::of(&recording, 100), None);
    }
}
