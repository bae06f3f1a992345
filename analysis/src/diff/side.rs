//! One side of a comparison: a device of a recording, replayed, and the part of its run that is looked at.

use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::{Requests, VerifyError, VerifyOptions};
use thiserror::Error;

use super::phases::Phases;
use super::step_spans::{NoSteps, StepSpan, StepSpans, step_spans};
use crate::timeline::Timeline;

/// One side of a comparison.
#[derive(Clone, Copy)]
pub struct Side<'r> {
    /// The recording, for its stacks and annotations.
    pub recording: &'r Recording,
    /// The device in it.
    pub device: &'r DeviceRecording,
    /// The settings and the limit of the recorded run.
    pub own: &'r VerifyOptions,
    /// The part that is looked at.
    pub part: Part,
}

/// The first or the second of two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
}

/// The part of a run that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All that the file has.
    Whole,
    /// The state at the end: all that a file without a trace can be compared with.
    End,
    /// The step of this number, as its annotations count them from 0.
    Step(usize),
    /// The steps that both sides have, from the first of them to the last, which may be unfinished on one side.
    Common {
        /// The number of the first.
        first: usize,
        /// The number of the last.
        last: usize,
    },
}

/// Why a side cannot be shown.
#[derive(Debug, Error)]
pub enum DiffError {
    /// The recording contradicts itself.
    #[error(transparent)]
    Replay(#[from] VerifyError),
    /// A step was asked for, and there are none.
    #[error("there is no step {step}: {why}")]
    NoSteps {
        /// The step.
        step: usize,
        /// Why there are none.
        why: NoSteps,
    },
    /// A step was asked for that is not among those in the trace.
    #[error("there is no step {step}: the trace has the whole steps {first} to {last}")]
    NoSuchStep {
        /// The step.
        step: usize,
        /// The first in the trace.
        first: usize,
        /// The last in the trace.
        last: usize,
    },
}

/// A side, replayed.
pub(super) struct Replayed<'r> {
    pub(super) side: Side<'r>,
    pub(super) timeline: Timeline,
    pub(super) requests: Requests,
    pub(super) steps: Result<StepSpans, NoSteps>,
    pub(super) phases: Phases,
    /// The first moment that is looked at.
    pub(super) from: u32,
    /// The last moment that is looked at.
    pub(super) to: u32,
}

impl<'r> Replayed<'r> {
    /// Replays a side.
    pub(super) fn of(side: Side<'r>) -> Result<Replayed<'r>, DiffError> {
        let (recording, device) = (side.recording, side.device);
        let requests = match device.trace.as_slice() {
            [] => Requests::default(),
            _ => Requests::of_recording(device, side.own, &mut |_| ())?,
        };
        let timeline = Timeline::of_device(device, side.own, &requests)?;
        let steps = step_spans(recording, device, requests.lost_beginning.is_some());
        let end = timeline.entries as u32;
        let (from, to) = match side.part {
            // Which steps both sides have shows only when both are replayed.
            Part::Whole | Part::Common { .. } => (0, end),
            Part::End => (end, end),
            Part::Step(step) => {
                let steps = steps.as_ref().map_err(|&why| DiffError::NoSteps { step, why })?;
                let number = |span: Option<&StepSpan>| span.map_or(0, |span| span.number);
                let (first, last) = (number(steps.spans.first()), number(steps.spans.last()));
                let span = steps.numbered(step).ok_or(DiffError::NoSuchStep { step, first, last })?;
                (span.from, span.to)
            }
        };
        let phases = Phases::of(recording, device);
        Ok(Replayed { side, timeline, requests, steps, phases, from, to })
    }

    /// The entries that are looked at.
    pub(super) fn entries(&self) -> std::ops::Range<usize> {
        self.from as usize..self.to as usize
    }
}
