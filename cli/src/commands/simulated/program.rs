//! The programs that a policy serves: the requests of each device of a recording, a request trace, or a generated workload.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade::units::PoolId;
use parkade_analysis::annotations::steps;
use parkade_analysis::ending::Ending;
use parkade_recording::{DeviceRecording, Recording, Simulated, StackId};
use parkade_replay::export::early_stacks;
use parkade_replay::recognition::{Recognition, most_reserved};
use parkade_replay::{Completion, Operation, Requests, VerifyError, VerifyOptions};
use parkade_research::workload::Workload;
use parkade_research::workload::recorded::{RecordedWorkload, of_requests};

use crate::terminal::args::RecordedLimit;
use crate::terminal::recording;

/// The choice among a file's programs.
pub(crate) struct Asked {
    /// The only device.
    pub(crate) device: Option<u32>,
    /// The limit of the recorded run.
    pub(crate) recorded_limit: Option<u64>,
}

/// The source of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A recorded run.
    Recording,
    /// A request trace.
    Trace,
    /// A workload of the catalogue or a generator.
    Workload,
}

parkade_recording::names! {
    Kind {
        Kind::Recording => "recording",
        Kind::Trace => "trace",
        Kind::Workload => "workload",
    }
}

/// Programs, and the recording that they are from.
pub(crate) struct Programs {
    /// The file, or the workload.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// The release that made the recording.
    pub(crate) made_by: Option<Recognition>,
    /// The recording; empty for other programs.
    pub(crate) recording: Recording,
    /// One program for each device with a trace.
    pub(crate) all: Vec<Program>,
}

/// The program of one device.
pub(crate) struct Program {
    /// The device's number.
    pub(crate) device: u32,
    /// Its requests.
    pub(crate) workload: Workload,
    /// The event after the last step, if the end of that step is known.
    pub(crate) steps_end: Option<usize>,
    /// What a recording contains in addition to the requests.
    pub(crate) recorded: Option<Recorded>,
}

/// What a recording contains in addition to its requests.
pub(crate) struct Recorded {
    /// The entry of each event.
    pub(crate) entries: Vec<u32>,
    /// The number of entries in the recording's trace.
    pub(crate) length: usize,
    /// The handle of each stream.
    pub(crate) streams: Vec<u64>,
    /// The private pools.
    pub(crate) pools: Vec<PoolId>,
    /// The stacks of buffers that are older than the recording, as far as they are known.
    pub(crate) early_stacks: BTreeMap<u32, StackId>,
    /// The number of buffers that are older than the recording.
    pub(crate) early: usize,
    /// Frees that waited for other streams.
    pub(crate) late_frees: u64,
    /// Requests whose stream or pool a study cannot number.
    pub(crate) unnamed_requests: u64,
    /// The entry at which the recorded run died.
    pub(crate) died_at: Option<usize>,
    /// How parkade simulated the run, if it did, and the most that was reserved.
    pub(crate) simulated: Option<(Simulated, u64)>,
}

impl Programs {
    /// Returns the programs of a recording or a request trace.
    ///
    /// # Errors
    /// The file cannot be read, or it has no trace.
    pub(crate) fn of_file(file: &Path, asked: &Asked) -> Result<Programs> {
        #[cfg(feature = "native")]
        if is_request_trace(file) {
            return Programs::of_workload(file.as_os_str(), asked);
        }
        let recording = recording::read(file);
        #[cfg(feature = "native")]
        let recording = recording.map_err(|error| crate::commands::sweep::traces::why_unread(file, error));
        let recording = recording?;
        let limit = RecordedLimit { recorded_limit: asked.recorded_limit };
        let (own, _, made_by) = limit.own_or_found(&recording)?;
        let chosen = recording::chosen(recording::traced(&recording), asked.device)?;
        if chosen.is_empty() {
            return Err(recording::no_trace(&recording, "to run under a policy"));
        }
        let of_device = |device: &&DeviceRecording| {
            recording::of_device(Program::of_device(&recording, device, &own), device.device, chosen.len())
        };
        let all = chosen.iter().map(of_device).collect::<Result<_>>()?;
        // No release made what a policy did.
        let made_by = recording.other_policy().is_none().then_some(made_by);
        Ok(Programs { path: file.to_owned(), kind: Kind::Recording, made_by, recording, all })
    }

    /// Returns the program of a workload or a request trace.
    #[cfg(feature = "native")]
    pub(crate) fn of_workload(item: &std::ffi::OsStr, asked: &Asked) -> Result<Programs> {
        use crate::commands::sweep::plan;

        let path = Path::new(item);
        let kind = if is_request_trace(path) { Kind::Trace } else { Kind::Workload };
        if path.is_file() && kind == Kind::Workload {
            return Programs::of_file(path, asked);
        }
        if let Some(device) = asked.device {
            anyhow::bail!("--device {device} chooses a device of a recording, and this program has only one: leave it out");
        }
        let workload = plan::only_workload(item)?;
        let all = vec![Program { device: 0, workload, steps_end: None, recorded: None }];
        Ok(Programs { path: path.to_owned(), kind, made_by: None, recording: Recording::default(), all })
    }
}

/// Whether a file is a request trace (docs/trace.md).
#[cfg(feature = "native")]
pub(crate) fn is_request_trace(file: &Path) -> bool {
    crate::commands::sweep::traces::is_trace(file)
}

/// Only the program on a machine reads request traces.
#[cfg(not(feature = "native"))]
pub(crate) const fn is_request_trace(_: &Path) -> bool {
    false
}

impl Program {
    /// Returns the requests of a recording's device, up to the error of which the recorded run died.
    pub(crate) fn of_device(
        recording: &Recording,
        device: &DeviceRecording,
        own: &VerifyOptions,
    ) -> Result<Program, VerifyError> {
        let requests = Requests::of_recording(device, own, &mut |_| ())?;
        let ending = Ending::of(device);
        let mut recorded = workload_of(&requests, &ending);
        let found = steps(&recording.annotations, device, None).map(|found| found.steps).unwrap_or_default();
        recorded.mark_steps(found.iter().map(|step| step.last_entry));
        let after = |last: usize| recorded.entries.partition_point(|&entry| entry as usize <= last);
        let steps_end = found.last().map(|step| after(step.last_entry)).filter(|_| !recorded.workload.steps.is_empty());
        let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
        let RecordedWorkload { workload, entries, late_frees, unnamed_requests, streams, pools, .. } = recorded;
        let numbers = if unnamed_requests == 0 { numbers_of(&requests) } else { BTreeMap::new() };
        let early_stacks = early_stacks(device, &requests, early);
        let early_stacks = early_stacks.into_iter().filter_map(|(id, stack)| Some((*numbers.get(&id)?, stack))).collect();
        let died_at = ending.death().map(|death| death.entry);
        let length = device.trace.len();
        let simulated = recording.simulated.clone().map(|simulated| (simulated, most_reserved(device)));
        let recorded =
            Recorded { entries, length, streams, pools, early_stacks, early, late_frees, unnamed_requests, died_at, simulated };
        Ok(Program { device: device.device, workload, steps_end, recorded: Some(recorded) })
    }

    /// Returns the number under which an event is shown: the entry of a recording, or the event itself.
    pub(crate) fn place(&self, event: usize) -> usize {
        self.recorded.as_ref().map_or(event, |recorded| recorded.entries.get(event).map_or(0, |&entry| entry as usize))
    }

    /// Returns what these numbers count.
    pub(crate) const fn places(&self) -> &'static str {
        if self.recorded.is_some() { "entry" } else { "event" }
    }
}

/// Returns the number of the buffer of each request.
fn numbers_of(requests: &Requests) -> BTreeMap<usize, u32> {
    let served = requests.operations.iter().filter_map(|(_, operation)| match operation {
        Operation::Allocate { id, failed: false, .. } => Some(*id),
        _ => None,
    });
    served.zip(0..).collect()
}

/// Returns the workload that a policy receives: the requests up to the error that ended the run. A request that failed is
/// repeated and freed immediately.
pub(crate) fn workload_of(requests: &Requests, ending: &Ending) -> RecordedWorkload {
    of_requests("recording", &asked(requests, ending))
}

/// The requests that a policy receives: up to the error that ended the run, including every request that failed.
fn asked(requests: &Requests, ending: &Ending) -> Requests {
    let end = ending.death().map(|death| death.entry);
    let recorded = requests.operations.iter().take_while(|(at, _)| end.is_none_or(|end| *at <= end));
    let again = recorded.flat_map(|&(at, operation)| match operation {
        Operation::Allocate { id, bytes, stream, pool, failed: true } => {
            let request = Operation::Allocate { id, bytes, stream, pool, failed: false };
            [Some((at, request)), Some((at, Operation::Free { id, completion: Completion::AtOnce }))]
        }
        operation => [Some((at, operation)), None],
    });
    Requests { operations: again.flatten().collect(), ..Requests::default() }
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;
    use parkade_analysis::ending::AfterError;

    use super::*;

    #[test]
    fn a_run_that_died_is_asked_up_to_its_error() {
        let pool = PoolId::DEFAULT;
        let allocate = |id, failed| Operation::Allocate { id, bytes: 1 << 20, stream: 0, pool, failed };
        let freed = |id| Operation::Free { id, completion: Completion::AtOnce };
        let operations = vec![(1, allocate(0, false)), (2, allocate(1, true)), (4, allocate(2, true)), (6, allocate(3, false))];
        let requests = Requests { operations, ..Requests::default() };
        let (first, again) =
            ((1, allocate(0, false)), [(2, allocate(1, false)), (2, freed(1)), (4, allocate(2, false)), (4, freed(2))]);
        let survived = asked(&requests, &Ending::NoError).operations;
        assert_eq!(survived, [&[first][..], &again, &[(6, allocate(3, false))]].concat());
        let error = AfterError {
            entry: 4,
            wanted_bytes: 1 << 20,
            served: 1,
            served_bytes: 0,
            telling_bytes: 0,
            asked_again_at: None,
            goes_on_bytes: 0,
        };
        assert_eq!(asked(&requests, &Ending::Died(error)).operations, [&[first][..], &again].concat());
    }
}
