//! Why the recorded run's own settings fit or fail.

use parkade::snapshot::SegmentInfo;
use parkade_recording::DeviceRecording;
use parkade_replay::{AfterFailure, Operation, VerifyOptions, watch_device};

use super::advised_option::AdvisedOption;
use super::held::Held;
use super::memory::DeviceMemory;
use super::replay::Replay;

/// Why the recorded run's own settings fit or fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every request is served.
    Fits,
    /// The live blocks would fit, but free memory is split so that a request finds no place.
    Fragmentation,
    /// The live blocks alone exceed the memory: no setting helps.
    Capacity,
    /// Whether the live blocks exceed the memory depends on where in a range that was.
    Undecided,
    /// When the request fails, most of the free memory belongs to other streams or waits for them.
    Streams,
    /// When the request fails, most of the free memory is cached by private pools (CUDA graphs, MemPool).
    PrivatePools,
}

impl Verdict {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Fits => "fits",
            Verdict::Fragmentation => "fragmentation",
            Verdict::Capacity => "capacity",
            Verdict::Undecided => "undecided",
            Verdict::Streams => "streams",
            Verdict::PrivatePools => "private_pools",
        }
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
    /// What the heap held then, from the request's point of view.
    pub held: Held,
}

/// What the verdict is on: the recorded run's own settings on each device.
pub(super) struct OwnRun<'a> {
    pub(super) recordings: &'a [&'a DeviceRecording],
    pub(super) memories: &'a [DeviceMemory],
    pub(super) replays: &'a [Replay<'a>],
    /// How the run was recorded.
    pub(super) recorded: &'a VerifyOptions,
}

/// The verdict on the recorded run's own settings, and their first failure if there is one.
pub(super) fn verdict(run: &OwnRun<'_>, own: &AdvisedOption) -> (Verdict, Option<FirstFailure>) {
    let Some(place) = own.devices.iter().position(|device| !device.fits()) else { return (Verdict::Fits, None) };
    // A device that holds more than there is decides the verdict, so it is the one that is looked at.
    let short = own.devices.iter().position(|device| !device.fits() && run.holds_more(device.device));
    let failure = first_failure(run, short.unwrap_or(place), own);
    if short.is_some() {
        return (Verdict::Capacity, failure);
    }
    if own.devices.iter().any(|device| !device.fits() && run.may_hold_more(device.device)) {
        return (Verdict::Undecided, failure);
    }
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
    /// Whether a device's live blocks exceed its memory, however much of a range that is.
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

    /// Whether a device's live blocks exceed the least of a range.
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
        // It died there: what it held is recorded.
        recorded_heap(run.recordings[place], run.recorded, available_bytes, entry)?
    } else {
        let mut replayed = replay.run(available_bytes, AfterFailure::GoOn);
        while replayed.done() <= operation && replayed.step() {}
        replayed.segments()
    };
    Some(FirstFailure { device: program.device, entry, wanted_bytes, held: Held::seen_from(&segments, stream, pool) })
}

/// What the recorded run held when the request of this entry had failed.
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
