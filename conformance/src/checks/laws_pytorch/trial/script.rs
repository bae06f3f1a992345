//! A sequence as a script for `parkade ops`, so that a failure can be reproduced and run on the real allocator.

use super::Trial;
use crate::backend::Places;
use crate::checks::laws_pytorch::operation::Operation;
use crate::reference_model::SETTINGS;

/// `ops` numbers streams; the handle of stream k is k times this.
const HANDLE_STEP: u64 = 0x1000;

/// The script's name for one of [`STREAMS`](crate::backend::STREAMS), by its index.
pub(crate) fn stream_name(place: usize) -> u64 {
    crate::backend::STREAMS[place] / HANDLE_STEP
}

impl Trial {
    /// The operations so far, as a script for `parkade ops`, with the command line that runs it. What a script cannot express,
    /// such as letting time pass, is a comment.
    #[must_use]
    pub fn script(&self) -> String {
        let order = match self.setup.places {
            Places::Descending => "down",
            Places::Ascending | Places::Reuse => "up",
        };
        let settings = self.setup.settings_text();
        let head = format!("# parkade ops SCRIPT --capacity {} --settings '{settings}' --addresses {order}", self.setup.capacity);
        let places = (self.setup.places == Places::Reuse).then(|| "# new segments went into the lowest hole".to_owned());
        let timing = format!("# events: {:?}", self.setup.timing);
        [head, timing].into_iter().chain(places).chain(self.script.iter().cloned()).map(|line| line + "\n").collect()
    }

    /// An operation as a line of the script, before it is performed.
    pub(super) fn line_of(&self, operation: &Operation) -> Option<String> {
        let stream = stream_name;
        let name = |which: usize| (!self.held.is_empty()).then(|| self.held[which % self.held.len()].name);
        Some(match *operation {
            Operation::Allocate(bytes, place) => format!("alloc a{} {bytes} {}", self.names + 1, stream(place)),
            Operation::Free(which) => format!("free a{}", name(which)?),
            Operation::RecordStream(which, place) => format!("record_stream a{} {}", name(which)?, stream(place)),
            Operation::Launch(place, duration) => format!("# work of {duration} ns on stream {}", stream(place)),
            Operation::Advance(duration) => format!("# {duration} ns pass"),
            Operation::Complete(place) => format!("complete {}", stream(place)),
            Operation::CompleteOne(place) => format!("complete_one {}", stream(place)),
            Operation::CompleteAll => "complete all".to_owned(),
            Operation::ProcessEvents => "# process_events".to_owned(),
            Operation::ReleaseCached => "empty_cache".to_owned(),
            Operation::SetFraction(hundredths) => format!("set_fraction {}", f64::from(hundredths) / 100.0),
            Operation::ChangeSettings(place) => format!("conf {}", SETTINGS[place].text),
            Operation::OthersHold(bytes) => format!("external {bytes}"),
            Operation::ResetPeaks => "reset_peak".to_owned(),
            Operation::ResetSums => "reset_accumulated".to_owned(),
            Operation::Expandable(true) => "conf expandable_segments:True".to_owned(),
            Operation::Expandable(false) => "conf expandable_segments:False".to_owned(),
            Operation::BeginPool(pool, None) => format!("pool_begin 0 {pool} all"),
            Operation::BeginPool(pool, Some(place)) => format!("pool_begin 0 {pool} stream {}", stream(place)),
            Operation::EndPool(pool) => format!("pool_end 0 {pool}"),
            Operation::ReleasePool(pool) => format!("pool_release 0 {pool}"),
            Operation::ReleaseCachedPool(pool) => format!("empty_cache 0 {pool}"),
            Operation::UseOnOom(pool) => format!("# pool 0 {pool} serves when memory is out"),
            Operation::NoSplit(pool) => format!("# pool 0 {pool} is not split"),
        })
    }
}
