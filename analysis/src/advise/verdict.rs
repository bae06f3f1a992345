//! Why the recorded run's own settings fit or fail.

use parkade_replay::{AfterFailure, Operation};

use super::advised_option::AdvisedOption;
use super::held::Held;
use super::program::Program;
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

/// The verdict on the recorded run's own settings, and their first failure if there is one.
pub(super) fn verdict(programs: &[Program], own: &AdvisedOption, replays: &[Replay<'_>]) -> (Verdict, Option<FirstFailure>) {
    let Some(place) = own.devices.iter().position(|device| !device.fits()) else { return (Verdict::Fits, None) };
    let failure = first_failure(&replays[place], own.available_bytes);
    let holds_more = |program: &Program| own.available_bytes.is_some_and(|available| program.live.bytes > available);
    if programs.iter().any(holds_more) {
        return (Verdict::Capacity, failure);
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

fn first_failure(replay: &Replay<'_>, available_bytes: Option<u64>) -> Option<FirstFailure> {
    let program = replay.program;
    let mut run = replay.run(available_bytes, AfterFailure::GoOn);
    let entry = if let Some(entry) = program.dies_again(available_bytes) {
        // It died there, whatever it survived before.
        while run.done() < program.recorded_operations() && run.step() {}
        entry
    } else {
        while run.first_failure().is_none() && run.step() {}
        run.first_failure().filter(|&entry| program.is_recorded(entry))?
    };
    let &(_, Operation::Allocate { bytes, stream, pool, .. }) = replay.program.requests.operations.get(run.done() - 1)? else {
        return None;
    };
    let held = Held::seen_from(&run.segments(), stream, pool);
    Some(FirstFailure { device: replay.program.device, entry, wanted_bytes: bytes, held })
}
