//! The steps of a run as ranges of moments. Everything in this folder that needs steps asks here.

use parkade_recording::{DeviceRecording, Recording};
use thiserror::Error;

use crate::annotations::{StepError, steps};

/// A step of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StepSpan {
    /// Its number, from 0, among all that the file marks.
    pub(super) number: usize,
    /// Its first moment; moment `n` is the state after `n` entries.
    pub(super) from: u32,
    /// Its last moment.
    pub(super) to: u32,
}

/// The whole steps of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StepSpans {
    /// What marks them.
    pub(super) mark: String,
    /// The steps in order. The first begins with the trace if the trace has the run's beginning.
    pub(super) spans: Vec<StepSpan>,
}

/// Why a run has no steps to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoSteps {
    /// There is no trace.
    #[error("there is no trace")]
    NoTrace,
    /// Nothing marks them.
    #[error("the file marks no steps: PyTorch's optimizers and profiler mark them where annotations are recorded")]
    NoMark,
    /// The trace's entries have no times, which are needed to place the marks.
    #[error("the trace has no times, so its annotations cannot be placed")]
    NoTimes,
    /// The trace is shorter than a step.
    #[error("no whole step is in the trace")]
    NoneWhole,
}

/// The steps of one device. `lost_beginning`: memory was in use before the first entry, so the first step that ends in the trace may
/// have begun before it and is left out.
pub(super) fn step_spans(recording: &Recording, device: &DeviceRecording, lost_beginning: bool) -> Result<StepSpans, NoSteps> {
    if device.trace.is_empty() {
        return Err(NoSteps::NoTrace);
    }
    let found = steps(&recording.annotations, device, None).map_err(|error| match error {
        StepError::NoMark(_) => NoSteps::NoMark,
        StepError::NoTimes => NoSteps::NoTimes,
    })?;
    let mut spans = Vec::new();
    let mut from = 0;
    for (place, step) in found.steps.iter().enumerate() {
        let to = step.last_entry as u32 + 1;
        let is_whole = place > 0 || (found.lost == 0 && !lost_beginning);
        // Marks of nested or repeated scopes may end at one entry.
        if is_whole && to > from {
            spans.push(StepSpan { number: step.number, from, to });
        }
        from = to;
    }
    if spans.is_empty() { Err(NoSteps::NoneWhole) } else { Ok(StepSpans { mark: found.mark, spans }) }
}

impl StepSpans {
    /// The step at a moment.
    pub(super) fn at(&self, moment: u32) -> Option<StepSpan> {
        let place = self.spans.partition_point(|span| span.to < moment);
        self.spans.get(place).copied().filter(|span| span.from <= moment)
    }

    /// The step of this number.
    pub(super) fn numbered(&self, number: usize) -> Option<StepSpan> {
        self.spans.binary_search_by_key(&number, |span| span.number).ok().and_then(|place| self.spans.get(place)).copied()
    }
}
