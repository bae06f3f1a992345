//! Why the recorded program's own settings fit or fail, in one word.

use super::evaluate::Replay;
use super::held::Held;
use super::program::Program;
use super::search::AdvisedOption;
use parkade_replay::{AfterFailure, Operation};

/// The one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Under its own settings every request is served.
    Fits,
    /// The blocks in use would fit, but what is free is cut up so that a request does not.
    Fragmentation,
    /// The blocks in use alone are more than the memory: no setting helps.
    Capacity,
    /// What is free belongs to other streams, or waits for them: the largest part of what is free when the request fails.
    Streams,
    /// What is free is cached by private pools (CUDA graphs, MemPool): the largest part of what is free when the request fails.
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
pub struct Cause {
    /// The device.
    pub device: u32,
    /// The entry of the request.
    pub entry: usize,
    /// The request's bytes.
    pub wanted_bytes: u64,
    /// What the heap held then, seen from the request.
    pub held: Held,
}

/// The verdict on the recorded run's own settings, and the first failure if there is one.
pub(super) fn verdict(programs: &[Program], own: &AdvisedOption, replays: &[Replay<'_>]) -> (Verdict, Option<Cause>) {
    let Some(place) = own.devices.iter().position(|device| !device.fits()) else { return (Verdict::Fits, None) };
    let cause = cause(&replays[place], own.available_bytes);
    let holds_more = |program: &Program| own.available_bytes.is_some_and(|available| program.live.bytes > available);
    if programs.iter().any(holds_more) {
        return (Verdict::Capacity, cause);
    }
    let verdict = cause.map_or(Verdict::Fragmentation, |cause| {
        let Held { pending_bytes, free_bytes, other_streams_bytes, private_pools_bytes, .. } = cause.held;
        let streams = pending_bytes + other_streams_bytes;
        if private_pools_bytes > streams.max(free_bytes) {
            Verdict::PrivatePools
        } else if streams > free_bytes {
            Verdict::Streams
        } else {
            Verdict::Fragmentation
        }
    });
    (verdict, cause)
}

fn cause(replay: &Replay<'_>, available_bytes: Option<u64>) -> Option<Cause> {
    let mut run = replay.run(available_bytes, AfterFailure::Stop);
    while run.step() {}
    let entry = run.first_failure()?;
    let &(_, Operation::Allocate { bytes, stream, pool, .. }) = replay.program.requests.operations.get(run.done() - 1)? else {
        return None;
    };
    let held = Held::seen_from(&run.segments(), stream, pool);
    Some(Cause { device: replay.program.device, entry, wanted_bytes: bytes, held })
}
