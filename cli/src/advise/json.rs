//! Advice as one JSON object.

use std::path::Path;

use anyhow::Result;
use parkade_analysis::advise::{Advice, AdvisedOption, FirstFailure, Program};
use parkade_analysis::caution::Caution;
use serde_json::{Value, json};

use super::{Advised, words};
use crate::verify::origin;

pub(super) fn report(advised: &Advised, report: &Advice) -> Result<String> {
    let own = report.own();
    let programs = &report.programs;
    let hint = report.hint.map(|(device, hint)| {
        json!({ "device": device, "entry": hint.entry, "least_bytes": hint.least_bytes, "below_bytes": hint.below_bytes })
    });
    let recommendation = report.recommendation.as_ref().zip(report.recommended()).map(|(recommendation, option)| {
        json!({
            "settings": option.settings.text,
            "line": recommendation.line,
            "why": words::why(report),
            "costs": words::costs(report),
            "also": words::also(option),
            "close": option.is_close(),
            "cautions": cautions(option),
        })
    });
    let sum = |count: fn(&Program) -> u64| programs.iter().map(count).sum::<u64>();
    let object = json!({
        "file": advised.file.display().to_string(),
        "profile": advised.profile.rules().name,
        "capacity_bytes": own.available_bytes,
        "limit_bytes": report.hint.is_none().then_some(report.memory.limit_bytes).flatten(),
        "recorded_limit_bytes": report.recorded_limit,
        "hides_more": report.hides_more,
        "capacity_hint": hint,
        "verified": sum(|program| program.requests.mismatches) == 0,
        "mismatches": sum(|program| program.requests.mismatches),
        "decisions": sum(|program| program.requests.decisions),
        "own_settings": own.settings.text,
        "own_settings_origin": origin(advised.own.origin),
        "verdict": report.verdict.name(),
        "close": report.recommended().unwrap_or(own).is_close(),
        "survives_oom": programs.iter().any(Program::survived),
        "cause": report.first_failure.as_ref().map(first_failure),
        "live": programs.iter().map(|program| live(advised, program)).collect::<Vec<_>>(),
        "recommendation": recommendation,
        "options": report.options.iter().enumerate().map(|(place, _)| option(report, place)).collect::<Vec<_>>(),
        "notes": words::notes(advised, report),
        "seconds": advised.seconds,
    });
    Ok(serde_json::to_string(&object)?)
}

/// The object of a recording that could not be advised on.
pub(super) fn failed(file: &Path, error: &anyhow::Error) -> Result<String> {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    Ok(serde_json::to_string(&json!({ "file": file.display().to_string(), "error": causes.join(": ") }))?)
}

fn first_failure(failure: &FirstFailure) -> Value {
    let held = failure.held;
    json!({
        "device": failure.device,
        "entry": failure.entry,
        "wanted_bytes": failure.wanted_bytes,
        "reserved_bytes": held.reserved_bytes,
        "live_bytes": held.live_bytes,
        "pending_bytes": held.pending_bytes,
        "free_bytes": held.free_bytes,
        "largest_free_bytes": held.largest_free_bytes,
        "other_streams_bytes": held.other_streams_bytes,
        "private_pools_bytes": held.private_pools_bytes,
    })
}

fn live(advised: &Advised, program: &Program) -> Value {
    let holders = program.live.holders.iter().take(words::HOLDERS).map(|holder| {
        let stack: Vec<String> = words::stack(advised, holder.stack).collect();
        json!({ "bytes": holder.bytes, "blocks": holder.blocks, "stack": stack })
    });
    json!({
        "device": program.device,
        "peak_bytes": program.live.bytes,
        "at_entry": program.live.entry,
        "holders": holders.collect::<Vec<_>>(),
        "lost_beginning_blocks": program.requests.lost_beginning.map(|lost| lost.blocks),
    })
}

fn cautions(option: &AdvisedOption) -> Vec<Value> {
    let caution = |caution: &Caution| {
        json!({
            "id": caution.id,
            "setting": caution.setting,
            "in_use": caution.in_use.name(),
            "severity": caution.severity.name(),
            "what": caution.what,
            "instead": caution.instead,
            "source": caution.source,
        })
    };
    option.cautions.iter().map(caution).collect()
}

fn option(report: &Advice, place: usize) -> Value {
    let option: &AdvisedOption = &report.options[place];
    let timing = report.timings.iter().find(|timing| timing.option == place).map(|timing| {
        json!({
            "fit": timing.fit,
            "of": timing.of,
            "least_peak_reserved_bytes": timing.least_peak_reserved_bytes,
            "most_peak_reserved_bytes": timing.most_peak_reserved_bytes,
        })
    });
    let mut object = json!({
        "settings": option.settings.text,
        "own": option.is_own,
        "given": option.is_given,
        "fits": option.fits(),
        "fails_at_entry": option.fails_at_entry(),
        "ooms": option.ooms(),
        "may_survive": option.may_survive(),
        "close": option.is_close(),
        "peak_reserved_bytes": option.peak_reserved_bytes(),
        "headroom_bytes": option.headroom_bytes(),
        "smallest_capacity_bytes": option.smallest_capacity_bytes(),
        "retries": option.retries(),
        "driver_calls": option.driver_calls(),
        "driver_us": option.driver_us(),
        "needs_limit": option.needs_limit(),
        "timings": timing,
        "cautions": cautions(option),
    });
    if let (Value::Object(object), true) = (&mut object, option.devices.len() > 1) {
        let devices = option.devices.iter().map(|device| {
            json!({
                "device": device.device,
                "fits": device.fits(),
                "fails_at_entry": device.prediction.first_failure,
                "peak_reserved_bytes": device.prediction.peak_reserved_bytes(),
                "smallest_bytes": device.smallest_bytes,
            })
        });
        object.insert("devices".to_owned(), devices.collect());
    }
    object
}
