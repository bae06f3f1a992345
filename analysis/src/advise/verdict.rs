//! The outcome of the advice: whether the program fits, and why the recorded run's own settings succeed or fail.
//!
//! [`Held`] describes what the heap held at the first failure, and which of its free bytes the request could use.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::PoolId;
use parkade_recording::{BlockState, DeviceRecording};
use parkade_replay::{AfterFailure, Operation, VerifyOptions, watch_device};

use super::advised_option::{AdvisedOption, DeviceOutcome};
use super::memory::{DeviceMemory, MemoryBudget, MemoryRange};
use super::program::{Program, Replay};
use crate::continuation::Doubt;

/// Whether the program fits with the recommended settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program fits. If the recorded run died, its estimated rest fits too and is not in doubt.
    Fits,
    /// The request that the recorded run died on is served. The file does not contain what would have followed.
    GetsPast,
    /// None of the settings tried serves every recorded request.
    DoesNotFit,
    /// No answer is possible: the memory is unknown, or only part of its range is enough, or the part missing from the
    /// recording needed more than the available memory.
    Unknown,
}

parkade_recording::names! {
    Outcome {
        Outcome::Fits => "fits",
        Outcome::GetsPast => "gets_past",
        Outcome::DoesNotFit => "does_not_fit",
        Outcome::Unknown => "unknown",
    }
}

/// An amount of memory in which an option serves every recorded request of a device whose memory is known only as a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enough {
    /// The option's index in [`Advice::options`](super::Advice::options).
    pub option: usize,
    /// The device's number.
    pub device: u32,
    /// The bytes.
    pub bytes: u64,
    /// The range that contains the device's limit.
    pub range: MemoryRange,
}

impl Enough {
    /// Returns the amount by which `bytes` exceeds the lower end of the range; negative if it does not.
    pub(super) fn lacking_bytes(&self) -> i128 {
        i128::from(self.bytes) - i128::from(self.range.least_bytes)
    }
}

/// The facts by which an option's outcome is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    pub(super) programs: &'a [Program],
    pub(super) memories: &'a [DeviceMemory],
    /// Whether the part missing from the recording needed more than the available memory.
    pub(super) hides_more: bool,
    /// The options tried; the program fits if one of them serves every request.
    pub(super) tried: &'a [AdvisedOption],
}

/// Returns the devices whose program died and whose rest is in doubt under this option, with the reasons.
pub(super) fn doubts(programs: &[Program], option: &AdvisedOption) -> Vec<(u32, Doubt)> {
    let free = |device: u32| {
        let outcome = option.devices.iter().find(|outcome| outcome.device == device);
        outcome.map_or(0, |outcome| outcome.sure_bytes.unwrap_or(0).saturating_sub(outcome.smallest_bytes))
    };
    let of = |program: &Program| {
        Doubt::about(program.continuation.as_ref(), free(program.device)).map(|doubt| (program.device, doubt))
    };
    programs.iter().filter(|program| program.died()).filter_map(of).collect()
}

impl Judge<'_> {
    /// Returns the outcome with an option; `None` means that no option serves every recorded request in the memory that was
    /// tried. `enough` is the option's measured need for the recorded requests, on each device that may lack memory.
    pub(super) fn outcome(&self, option: Option<&AdvisedOption>, enough: &[Enough]) -> Outcome {
        if self.memories.iter().all(|memory| memory.budget == MemoryBudget::default()) {
            return Outcome::Unknown;
        }
        let Some(option) = option.filter(|option| option.gets_past()) else {
            return if self.is_short() { Outcome::DoesNotFit } else { Outcome::Unknown };
        };
        if self.hides_more {
            return Outcome::Unknown;
        }
        // The option was tried with the assumed memory and may need more than the lowest possible limit.
        let is_sure = |outcome: &DeviceOutcome, bytes: u64| outcome.sure_bytes.is_none_or(|sure| bytes <= sure);
        let serves = |(outcome, memory): (&DeviceOutcome, &DeviceMemory)| {
            let found = enough.iter().find(|enough| enough.device == outcome.device);
            let needed = found.map_or(outcome.smallest_bytes, |enough| enough.bytes.min(outcome.smallest_bytes));
            memory.range.is_none() || is_sure(outcome, needed)
        };
        let serves_rest = |(outcome, memory): (&DeviceOutcome, &DeviceMemory)| {
            memory.range.is_none() || is_sure(outcome, outcome.smallest_bytes)
        };
        let devices = || option.devices.iter().zip(self.memories);
        if !devices().all(serves) {
            Outcome::Unknown
        } else if !self.programs.iter().any(Program::died)
            || (option.fits() && devices().all(serves_rest) && doubts(self.programs, option).is_empty())
        {
            Outcome::Fits
        } else {
            Outcome::GetsPast
        }
    }

    /// Returns whether the memory is too small, even at the upper end if only a range is known.
    fn is_short(&self) -> bool {
        let is_short = |(program, memory): (&Program, &DeviceMemory)| {
            memory.range.is_some_and(|range| program.live.bytes >= range.below_bytes)
        };
        self.memories.iter().all(|memory| memory.range.is_none())
            || self.programs.iter().zip(self.memories).any(is_short)
            || !self.tried.iter().any(|option| self.serves_where_known(option))
    }

    /// Returns whether an option serves every recorded request of the devices whose memory is known.
    pub(super) fn serves_where_known(&self, option: &AdvisedOption) -> bool {
        let serves = |((outcome, memory), program): ((&DeviceOutcome, &DeviceMemory), &Program)| {
            // More bytes than this can be live only in the last page of an expandable segment.
            let holds = outcome.available_bytes.is_none_or(|available| program.live.bytes <= available);
            memory.range.is_some() || (outcome.gets_past && holds)
        };
        option.devices.iter().zip(self.memories).zip(self.programs).all(serves)
    }
}

/// The reason why the recorded run's own settings succeed or fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every request is served.
    Fits,
    /// The live blocks would fit, but free memory is so fragmented that no free block can hold the request.
    Fragmentation,
    /// The live blocks alone exceed the memory, so no setting helps.
    Capacity,
    /// Whether the live blocks exceed the memory depends on where the limit was within its range.
    Undecided,
    /// When the request fails, most of the free memory belongs to other streams or waits for them.
    Streams,
    /// When the request fails, most of the free memory is cached by private pools (CUDA graphs, MemPool).
    PrivatePools,
}

parkade_recording::names! {
    Verdict {
        Verdict::Fits => "fits",
        Verdict::Fragmentation => "fragmentation",
        Verdict::Capacity => "capacity",
        Verdict::Undecided => "undecided",
        Verdict::Streams => "streams",
        Verdict::PrivatePools => "private_pools",
    }
}

/// The first failure under the recorded run's own settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstFailure {
    /// The device's number.
    pub device: u32,
    /// The recording's entry of the request that failed.
    pub entry: usize,
    /// The bytes requested.
    pub wanted_bytes: u64,
    /// The contents of the heap at that time, from the request's point of view.
    pub held: Held,
}

/// The run that the verdict judges: the recorded run's own settings on each device.
pub(super) struct OwnRun<'a> {
    pub(super) recordings: &'a [&'a DeviceRecording],
    pub(super) memories: &'a [DeviceMemory],
    pub(super) replays: &'a [Replay<'a>],
    /// The conditions under which the run was recorded.
    pub(super) recorded: &'a VerifyOptions,
}

/// Returns the verdict on the recorded run's own settings, and their first failure if there is one.
pub(super) fn verdict(run: &OwnRun<'_>, own: &AdvisedOption) -> (Verdict, Option<FirstFailure>) {
    let failing =
        |is_such: &dyn Fn(&DeviceOutcome) -> bool| own.devices.iter().position(|device| !device.fits() && is_such(device));
    let Some(place) = failing(&|device| device.fails_at_entry().is_some()).or_else(|| failing(&|_| true)) else {
        return (Verdict::Fits, None);
    };
    // A device whose live blocks exceed its memory decides the verdict, so it comes first; next comes a device whose live
    // blocks may exceed it.
    if let Some(short) = failing(&|device| run.holds_more(device.device)) {
        return (Verdict::Capacity, first_failure(run, short, own));
    }
    if let Some(undecided) = failing(&|device| run.may_hold_more(device.device)) {
        return (Verdict::Undecided, first_failure(run, undecided, own));
    }
    let failure = first_failure(run, place, own);
    let verdict = failure.map_or(Verdict::Fragmentation, |failure| {
        let Held { pending_bytes, free_bytes, other_streams_bytes, private_pools_bytes, .. } = failure.held;
        let streams = pending_bytes + other_streams_bytes;
        if private_pools_bytes > streams.max(free_bytes) {
            Verdict::PrivatePools
        } else if streams > free_bytes {
            Verdict::Streams
        } else {
            Verdict::Fragmentation
        }
    });
    (verdict, failure)
}

impl OwnRun<'_> {
    /// Returns whether a device's live blocks exceed even the upper end of the range for its memory.
    fn holds_more(&self, device: u32) -> bool {
        let mut of_device = self.replays.iter().zip(self.memories).filter(|(_, memory)| memory.device == device);
        of_device.any(|(replay, memory)| {
            let live_bytes = replay.program.live.bytes;
            match memory.range {
                Some(range) => live_bytes >= range.below_bytes,
                None => memory.budget.bytes(replay.profile, replay.settings).is_some_and(|bytes| live_bytes > bytes),
            }
        })
    }

    /// Returns whether a device's live blocks exceed the lower end of the range for its memory.
    fn may_hold_more(&self, device: u32) -> bool {
        let mut of_device = self.replays.iter().zip(self.memories).filter(|(_, memory)| memory.device == device);
        of_device.any(|(replay, memory)| memory.range.is_some_and(|range| replay.program.live.bytes > range.least_bytes))
    }
}

fn first_failure(run: &OwnRun<'_>, place: usize, own: &AdvisedOption) -> Option<FirstFailure> {
    let (replay, available_bytes) = (&run.replays[place], own.devices[place].available_bytes);
    let program = replay.program;
    let entry = own.devices[place].fails_at_entry()?;
    let wanted = |(operation, &(at, wanted)): (usize, &(usize, Operation))| match wanted {
        Operation::Allocate { bytes, stream, pool, .. } if at == entry => Some((operation, bytes, stream, pool)),
        _ => None,
    };
    let (operation, wanted_bytes, stream, pool) = program.requests.operations.iter().enumerate().rev().find_map(wanted)?;
    let segments = if program.dies_again(available_bytes) == Some(entry) {
        // The run died there, so the recording contains the heap.
        recorded_heap(run.recordings[place], run.recorded, available_bytes, entry)?
    } else {
        let mut replayed = replay.run(available_bytes, AfterFailure::GoOn);
        while replayed.done() <= operation && replayed.step() {}
        replayed.segments()
    };
    Some(FirstFailure { device: program.device, entry, wanted_bytes, held: Held::seen_from(&segments, stream, pool) })
}

/// Returns the recorded run's heap just after the request of this entry failed.
fn recorded_heap(
    recording: &DeviceRecording,
    recorded: &VerifyOptions,
    available_bytes: Option<u64>,
    entry: usize,
) -> Option<Vec<SegmentInfo>> {
    let own = VerifyOptions { limit_bytes: recorded.limit_bytes.or(available_bytes), ..recorded.clone() };
    let mut segments = None;
    let mut look = |moment: &parkade_replay::Moment<'_>| {
        if moment.entries > entry && segments.is_none() {
            segments = Some(moment.segments());
        }
    };
    watch_device(recording, &own, &mut look).ok()?;
    segments
}

/// A heap's bytes by state. Free bytes are divided by whether a request from one stream and pool could use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Reserved.
    pub reserved_bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// Freed by the program, but still in use by other streams.
    pub pending_bytes: u64,
    /// Free, in the request's own pool and stream; without a request, anywhere in the default pool.
    pub free_bytes: u64,
    /// Free, in segments of other streams.
    pub other_streams_bytes: u64,
    /// Free, in private pools other than the request's.
    pub private_pools_bytes: u64,
    /// The largest block among `free_bytes`.
    pub largest_free_bytes: u64,
}

impl Held {
    /// Returns a heap's contents, from the point of view of a request from this stream and pool.
    fn seen_from(segments: &[SegmentInfo], stream: u64, pool: PoolId) -> Held {
        let mut held = Held::default();
        for segment in segments {
            held.reserved_bytes += segment.total.get();
            for block in &segment.blocks {
                let bytes = block.size.get();
                match block.state {
                    BlockActivity::Allocated => held.live_bytes += bytes,
                    BlockActivity::PendingFree => held.pending_bytes += bytes,
                    BlockActivity::Inactive if segment.pool != pool && segment.pool != PoolId::DEFAULT => {
                        held.private_pools_bytes += bytes;
                    }
                    BlockActivity::Inactive if segment.stream.0 != stream => held.other_streams_bytes += bytes,
                    BlockActivity::Inactive => held.add_free(bytes),
                }
            }
        }
        held
    }

    /// Returns the contents of a device when its recording was written, which is all that a file without a trace shows.
    #[must_use]
    pub fn at_end(recording: &DeviceRecording) -> Held {
        let mut held = Held::default();
        for segment in &recording.segments {
            held.reserved_bytes = held.reserved_bytes.saturating_add(segment.total_bytes);
            for block in &segment.blocks {
                match block.state {
                    BlockState::ActiveAllocated => held.live_bytes = held.live_bytes.saturating_add(block.size),
                    BlockState::ActivePendingFree => held.pending_bytes = held.pending_bytes.saturating_add(block.size),
                    BlockState::Inactive if segment.pool.is_some_and(|pool| pool != (0, 0)) => {
                        held.private_pools_bytes = held.private_pools_bytes.saturating_add(block.size);
                    }
                    BlockState::Inactive => held.add_free(block.size),
                }
            }
        }
        held
    }

    fn add_free(&mut self, bytes: u64) {
        self.free_bytes = self.free_bytes.saturating_add(bytes);
        self.largest_free_bytes = self.largest_free_bytes.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Block, Segment, StackId};

    use super::*;

    #[test]
    fn a_file_without_a_trace_shows_what_was_held() {
        let block = |size, state| Block { address: 0, size, requested: None, state, stack: StackId::NONE };
        let blocks = vec![block(3, BlockState::ActiveAllocated), block(4, BlockState::Inactive), block(6, BlockState::Inactive)];
        let segment = |pool| Segment { pool: Some(pool), ..Segment::new(blocks.clone()) };
        let recording = DeviceRecording { segments: vec![segment((0, 0)), segment((0, 2))], ..DeviceRecording::default() };
        let held = Held::at_end(&recording);
        assert_eq!((held.reserved_bytes, held.live_bytes, held.free_bytes, held.largest_free_bytes), (26, 6, 10, 6));
        assert_eq!((held.private_pools_bytes, held.pending_bytes), (10, 0));
    }
}
