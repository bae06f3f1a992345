//! A recorded run seen from inside: the heap and the stats after every operation.
//!
//! They come from the replay that verifies the recording, so they are as exact as its verdict says.

use parkade::policy::PyTorch;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Stats;
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;

use super::attempts::{make_runner, replay_to_end};
use super::position::Position;
use super::replay_core::ReplayCore;
use crate::error::VerifyError;
use crate::initial_state::Start;
use crate::inputs::VerifyOptions;

/// A recorded run between two operations.
pub struct Moment<'a> {
    /// How many entries of the trace are done; also the number of the next one.
    pub entries: usize,
    stats: &'a Stats,
    taken: &'a [(u64, PoolId)],
    segments: &'a dyn Fn() -> Vec<SegmentInfo>,
}

impl Moment<'_> {
    /// The heap: the segments in the order of their addresses, with their blocks.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        (self.segments)()
    }

    /// Where the operation took memory from the device, in the order in which it did, and for which pools: the first bytes of segments and
    /// of pages that were mapped.
    #[must_use]
    pub fn taken(&self) -> &[(u64, PoolId)] {
        self.taken
    }

    /// The stats so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.stats
    }
}

/// Replays one device of a recording and calls `visit` before its first entry and after every operation, which may be
/// several entries. `own` describes the recorded run.
///
/// # Errors
/// As [`verify_device`](crate::verify_device).
pub fn watch_device(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    visit: &mut dyn FnMut(&Moment<'_>),
) -> Result<(), VerifyError> {
    if recording.trace.is_empty() {
        return Err(VerifyError::NoTrace);
    }
    let mut start = Start::find(recording, &PyTorch::of(own.settings.profile, own.settings.settings.clone()))?;
    replay_to_end(recording, own, &mut start, &mut |_| {})?;
    watch(recording, own, &start, &mut |entries, core| {
        let taken = core.observer().taken.as_deref().unwrap_or(&[]);
        visit(&Moment { entries, stats: core.stats(), taken, segments: &|| core.segments() });
    })
}

/// Replays from a start that a replay to the end has settled, and visits the state after every operation.
fn watch(
    recording: &DeviceRecording,
    options: &VerifyOptions,
    start: &Start,
    visit: &mut dyn FnMut(usize, &ReplayCore<'_>),
) -> Result<(), VerifyError> {
    let position = Position::default();
    let mut runner = make_runner(recording, options, start, &position)?;
    runner.core.observer_mut().taken = Some(Vec::new());
    visit(0, &runner.core);
    while runner.step() {
        visit(runner.at(), &runner.core);
        runner.core.observer_mut().taken.iter_mut().for_each(Vec::clear);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use parkade::stats::Family;

    use super::*;
    use crate::ReplaySettings;
    use parkade_recording::{Action, Entry};

    #[test]
    fn the_heap_is_seen_after_every_operation() {
        let entry = |action, address, size| Entry::new(action, address, size, 7);
        const BASE: u64 = 1 << 40;
        const MIB: u64 = 1 << 20;
        let trace = vec![
            entry(Action::SegmentAlloc, BASE, 20 * MIB),
            entry(Action::Alloc, BASE, 5 * MIB),
            entry(Action::FreeRequested, BASE, 5 * MIB),
            entry(Action::FreeCompleted, BASE, 5 * MIB),
            entry(Action::SegmentFree, BASE, 20 * MIB),
        ];
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let own =
            VerifyOptions { settings: ReplaySettings::given("").expect("no settings"), limit_bytes: None, stats_file: None };
        let mut seen = Vec::new();
        watch_device(&recording, &own, &mut |moment| {
            let blocks: Vec<_> = moment.segments().iter().flat_map(|s| s.blocks.iter().map(|b| b.size.get() / MIB)).collect();
            seen.push((moment.entries, moment.stats().family(Family::ReservedBytes).all.current, blocks));
        })
        .expect("a whole trace");
        let reserved = 20 * MIB as i64;
        assert_eq!(seen, [(0, 0, vec![]), (2, reserved, vec![5, 15]), (4, reserved, vec![20]), (5, 0, vec![])]);
    }
}
