//! The steps of a run as ranges of moments, as annotations mark them, or else as the run repeats itself. Everything in this folder that
//! needs steps asks here.

use parkade_recording::{DeviceRecording, Recording};
use thiserror::Error;

use crate::annotations::{StepError, steps};
use crate::repeated_steps::repeated_steps;

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
    /// What marks them: an annotation's name, or [`REPETITION`].
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
    /// Nothing marks them, and nothing repeats.
    #[error(
        "the file marks no steps (PyTorch's optimizers and profiler do, where annotations are recorded), and none are told by repetition"
    )]
    NoMark,
    /// The trace's entries have no times, which are needed to place the marks, and nothing repeats.
    #[error("the trace has no times, so its annotations cannot be placed, and no steps are told by repetition")]
    NoTimes,
    /// Nothing marks them, and a beginning is lost, so which step of one run is which of the other is not known.
    #[error("the file marks no steps, and a beginning is lost, so what is told by repetition cannot be numbered")]
    NotNumbered,
    /// The trace is shorter than a step.
    #[error("no whole step is in the trace")]
    NoneWhole,
}

/// What stands for a mark where steps are told by repetition.
pub const REPETITION: &str = "repetition";

/// The steps of one device. `lost_beginning`: memory was in use before the first entry, so the first step that ends in the trace may
/// have begun before it and is left out.
pub(super) fn step_spans(recording: &Recording, device: &DeviceRecording, lost_beginning: bool) -> Result<StepSpans, NoSteps> {
    if device.trace.is_empty() {
        return Err(NoSteps::NoTrace);
    }
    let found = match steps(&recording.annotations, device, None) {
        Ok(found) => found,
        Err(error) => {
            return repeated_spans(device, lost_beginning).map_err(|_| match error {
                StepError::NoMark(_) => NoSteps::NoMark,
                StepError::NoTimes => NoSteps::NoTimes,
            });
        }
    };
    let ends = found.steps.iter().map(|step| (step.number, step.last_entry as u32 + 1));
    spans(found.mark, ends, found.lost == 0 && !lost_beginning)
}

/// The same as the run repeats itself, whatever is marked.
pub(super) fn repeated_spans(device: &DeviceRecording, lost_beginning: bool) -> Result<StepSpans, NoSteps> {
    let ends = repeated_steps(device);
    if ends.is_empty() {
        return Err(NoSteps::NoMark);
    }
    spans(REPETITION.to_owned(), ends.into_iter().enumerate(), !lost_beginning)
}

/// The steps with these numbers that end at these moments. `has_first`: the first is whole.
fn spans(mark: String, ends: impl Iterator<Item = (usize, u32)>, has_first: bool) -> Result<StepSpans, NoSteps> {
    let mut spans = Vec::new();
    let mut from = 0;
    for (place, (number, to)) in ends.enumerate() {
        // Marks of nested or repeated scopes may end at one entry.
        if (place > 0 || has_first) && to > from {
            spans.push(StepSpan { number, from, to });
        }
        from = to;
    }
    if spans.is_empty() { Err(NoSteps::NoneWhole) } else { Ok(StepSpans { mark, spans }) }
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
