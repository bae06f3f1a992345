//! The frontier for programs: one JSON object, or comma-separated values.

use std::io::{self, Write};

use anyhow::Result;
use parkade_research::frontier::{Point, Why};
use serde_json::{Value, json};

use super::Args;
use super::model::checkpointing_name;
use super::table::{not_monotone, why};

pub(super) fn points(args: &Args, points: &[Point]) -> Result<String> {
    let object = json!({
        "context_bytes": args.context,
        "steps": args.steps,
        "most_batch": args.most_batch,
        "scratch": !args.no_scratch,
        "seed": args.seed,
        "not_monotone": not_monotone(points),
        "points": points.iter().map(point).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string(&object)?)
}

/// The object of a search that could not be made.
pub(super) fn failed(error: &anyhow::Error) -> Result<String> {
    Ok(serde_json::to_string(&json!({ "error": format!("{error:#}") }))?)
}

fn point(point: &Point) -> Value {
    let (case, transformer) = (&point.case, &point.case.transformer);
    json!({
        "model": case.model,
        "parameters": transformer.parameters(),
        "device_bytes": case.device_bytes,
        "usable_bytes": case.usable_bytes,
        "precision": case.numbers.name(),
        "optimizer": optimizer(point),
        "checkpointing": checkpointing_name(transformer.checkpointing),
        "sequence": transformer.sequence,
        "accumulation": transformer.accumulation,
        "state_bytes": case.state_bytes(),
        "policy": point.policy,
        "batch": point.batch,
        "reserved_bytes": point.reserved_bytes,
        "load_bytes": point.load_bytes,
        "fails_below_batch": point.fails_below_batch,
        "bound_batch": point.bound.batch,
        "bound_load_bytes": point.bound.load_bytes,
        "runs": point.runs,
        "next": next(&point.why),
    })
}

fn optimizer(point: &Point) -> String {
    format!("{:?}", point.case.transformer.optimizer).to_lowercase()
}

fn kind(why: &Why) -> &'static str {
    match why {
        Why::States { .. } => "states",
        Why::Load { .. } => "load",
        Why::Stranded { .. } => "stranded",
        Why::Fault { .. } => "fault",
        Why::NotTried => "not-tried",
    }
}

fn next(reason: &Why) -> Value {
    let kind = kind(reason);
    match reason {
        Why::States { state_bytes } => json!({ "why": kind, "state_bytes": state_bytes }),
        Why::Load { batch, load_bytes } => json!({ "why": kind, "batch": batch, "load_bytes": load_bytes }),
        Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => json!({
            "why": kind,
            "batch": batch,
            "asked_bytes": asked_bytes,
            "live_bytes": live_bytes,
            "reserved_bytes": reserved_bytes,
        }),
        Why::Fault { batch, reason } => json!({ "why": kind, "batch": batch, "reason": reason }),
        Why::NotTried => json!({ "why": kind }),
    }
}

pub(super) fn csv(out: &mut impl Write, points: &[Point]) -> io::Result<()> {
    writeln!(
        out,
        "model,parameters,device_bytes,usable_bytes,precision,optimizer,checkpointing,sequence,accumulation,state_bytes,policy,batch,\
         reserved_bytes,load_bytes,fails_below_batch,bound_batch,bound_load_bytes,runs,next,next_in_words"
    )?;
    for point in points {
        let (case, transformer) = (&point.case, &point.case.transformer);
        let Point { policy, batch, reserved_bytes, load_bytes, bound, runs, .. } = point;
        let fails_below = point.fails_below_batch.map_or_else(String::new, |batch| batch.to_string());
        write!(out, "{},{},{},{}", quoted(&case.model), transformer.parameters(), case.device_bytes, case.usable_bytes)?;
        let checkpointing = checkpointing_name(transformer.checkpointing);
        write!(out, ",{},{},{checkpointing}", case.numbers.name(), optimizer(point))?;
        write!(out, ",{},{},{}", transformer.sequence, transformer.accumulation, case.state_bytes())?;
        write!(out, ",{policy},{batch},{reserved_bytes},{load_bytes},{fails_below}")?;
        write!(out, ",{},{},{runs}", bound.batch, bound.load_bytes)?;
        writeln!(out, ",{},{}", kind(&point.why), quoted(&why(&point.why)))?;
    }
    Ok(())
}

/// A field of a CSV file, in quotation marks where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
