//! The frontier as one JSON object, or as CSV.

use std::io::Write;

use anyhow::Result;
use parkade_research::study::largest_batch::{Point, Why};
use serde::Serialize;

use super::Args;
use super::model::checkpointing_name;
use super::table::{not_monotone, why};
use parkade_terminal::json_struct::{all, view};

view! {
    pub(super) struct Object<'a>(args: &Args, points: &'a [Point]) {
        context_bytes: u64 = args.context,
        steps: u64 = args.steps,
        most_batch: u64 = args.most_batch,
        scratch: bool = !args.no_scratch,
        seed: u64 = args.seed,
        not_monotone: usize = not_monotone(points),
        points: Vec<WithNext<'a>> = all(points, |point| WithNext { row: Row::of(point), next: Next::of(&point.why) }),
    }
}

#[derive(Serialize)]
struct WithNext<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    next: Next,
}

view! {
    /// The columns shared by JSON and CSV.
    struct Row<'a>(point: &'a Point) {
        model: &'a str = &point.case.model,
        parameters: u64 = point.case.transformer.parameters(),
        device_bytes: u64 = point.case.device_bytes,
        usable_bytes: u64 = point.case.usable_bytes,
        precision: &'static str = point.case.numbers.name(),
        optimizer: String = format!("{:?}", point.case.transformer.optimizer).to_lowercase(),
        checkpointing: String = checkpointing_name(point.case.transformer.checkpointing),
        sequence: u64 = point.case.transformer.sequence,
        accumulation: u64 = point.case.transformer.accumulation,
        state_bytes: u64 = point.case.state_bytes(),
        policy: &'static str = point.policy,
        batch: u64 = point.batch,
        reserved_bytes: u64 = point.reserved_bytes,
        load_bytes: u64 = point.load_bytes,
        fails_below_batch: Option<u64> = point.fails_below_batch,
        bound_batch: u64 = point.bound.batch,
        bound_load_bytes: u64 = point.bound.load_bytes,
        runs: u32 = point.runs,
    }
}

/// Why the next batch does not fit.
#[derive(Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
enum Next {
    States { state_bytes: u64 },
    Load { batch: u64, load_bytes: u64 },
    Stranded { batch: u64, asked_bytes: u64, live_bytes: u64, reserved_bytes: u64 },
    Fault { batch: u64, reason: String },
    NotTried,
}

impl Next {
    fn of(why: &Why) -> Next {
        match *why {
            Why::States { state_bytes } => Next::States { state_bytes },
            Why::Load { batch, load_bytes } => Next::Load { batch, load_bytes },
            Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => {
                Next::Stranded { batch, asked_bytes, live_bytes, reserved_bytes }
            }
            Why::Fault { batch, ref reason } => Next::Fault { batch, reason: reason.clone() },
            Why::NotTried => Next::NotTried,
        }
    }

    /// The word for it.
    fn kind(&self) -> &'static str {
        match self {
            Next::States { .. } => "states",
            Next::Load { .. } => "load",
            Next::Stranded { .. } => "stranded",
            Next::Fault { .. } => "fault",
            Next::NotTried => "not-tried",
        }
    }
}

/// The columns, in words too.
pub(super) fn csv(out: &mut dyn Write, points: &[Point]) -> Result<()> {
    #[derive(Serialize)]
    struct InWords {
        next: &'static str,
        next_in_words: String,
    }
    let mut writer = csv::Writer::from_writer(out);
    for point in points {
        writer.serialize((Row::of(point), InWords { next: Next::of(&point.why).kind(), next_in_words: why(&point.why) }))?;
    }
    Ok(writer.flush()?)
}
