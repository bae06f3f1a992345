//! A diagnosis as one JSON object.

use std::path::Path;

use anyhow::Result;
use parkade_analysis::annotations::phase_at;
use parkade_analysis::diagnose::{Breakdown, Diagnosis, Fence, Limit, Why};
use parkade_recording::Recording;
use serde_json::{Value, json};

use super::{Diagnosed, stacks, table, words};
use crate::verify::origin;

/// The object of a diagnosed recording: one part a device.
pub(super) fn diagnosed(diagnosed: &Diagnosed) -> Result<String> {
    let devices: Vec<Value> = diagnosed.devices.iter().map(|diagnosis| device(diagnosed, diagnosis)).collect();
    Ok(serde_json::to_string(&json!({
        "file": diagnosed.file.display().to_string(),
        "settings": diagnosed.settings.settings.text,
        "settings_origin": origin(diagnosed.settings.origin),
        "profile": diagnosed.settings.profile.name,
        "limit_bytes": diagnosed.limit,
        "devices": devices,
    }))?)
}

/// The object of what could not be diagnosed.
pub(super) fn failed(file: Option<&Path>, error: &anyhow::Error) -> Result<String> {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let file = file.map(|file| file.display().to_string());
    Ok(serde_json::to_string(&json!({ "file": file, "error": causes.join(": ") }))?)
}

fn device(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Value {
    let recording = &diagnosed.recording;
    let request = diagnosis.request.map(|request| {
        json!({
            "requested_bytes": request.requested_bytes,
            "block_bytes": request.asked.size.get(),
            "segment_bytes": request.segment_bytes,
            "stream": request.asked.stream.get(),
            "pool": [request.asked.pool.0, request.asked.pool.1],
            "stack": stacks::json(recording, request.stack),
        })
    });
    let exactness = diagnosis.exactness.as_ref().map(|verdict| {
        let lost = verdict.not_in_file.lost_beginning;
        let lost =
            lost.map(|lost| json!({ "segments": lost.segments, "blocks": lost.blocks, "reserved_bytes": lost.reserved_bytes }));
        json!({
            "entries": verdict.entries,
            "decisions": verdict.decisions,
            "mismatches": verdict.mismatches,
            "lost_beginning": lost,
        })
    });
    let held = diagnosis.stacks.iter();
    let held =
        held.map(|held| json!({ "bytes": held.bytes, "blocks": held.blocks, "stack": stacks::json(recording, held.stack) }));
    json!({
        "device": diagnosis.device,
        "verdict": diagnosis.verdict.name(),
        "moment": moment(diagnosis.why),
        "entry": diagnosis.entry,
        "time_us": diagnosis.time_us,
        "headline": words::headline(diagnosis),
        "request": request,
        "steps": steps(diagnosed, diagnosis),
        "needed_bytes": diagnosis.steps.needed_bytes,
        "short_bytes": diagnosis.steps.short_bytes,
        "unreserved_bytes": diagnosis.steps.unreserved_bytes,
        "limit": limit(diagnosis),
        "assumed_limit_bytes": diagnosis.assumed_limit_bytes,
        "heap_is_for_request": diagnosis.is_for_request,
        "heap": heap(&diagnosis.heap),
        "heap_before": heap(&diagnosis.met),
        "reserved_after_bytes": diagnosis.reserved_after_bytes,
        "given_back": {
            "bytes": diagnosis.given_back.bytes,
            "segments": diagnosis.given_back.segments,
            "entries": diagnosis.given_back.entries,
            "completed_frees": diagnosis.given_back.completed,
        },
        "ooms": diagnosis.ooms,
        "retries": diagnosis.retries,
        "onset": onset(recording, diagnosis),
        "stacks": held.collect::<Vec<_>>(),
        "fences": diagnosis.fences.iter().map(|fence| self::fence(recording, diagnosis, fence)).collect::<Vec<_>>(),
        "exactness": exactness,
        "notes": words::notes(diagnosed, diagnosis),
    })
}

fn moment(why: Why) -> &'static str {
    match why {
        Why::OutOfMemory => "out_of_memory",
        Why::Chosen => "chosen",
        Why::Peak => "peak_reserved",
        Why::End => "end",
    }
}

fn steps(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Vec<Value> {
    let steps = &diagnosis.steps;
    let answers = [steps.capacity, steps.fragmentation, steps.settings, steps.empty_cache];
    let findings = words::findings(diagnosed, diagnosis);
    let mut rows: Vec<Value> = answers
        .iter()
        .zip(findings)
        .zip(table::STEPS)
        .map(|((answer, finding), name)| json!({ "step": name, "applies": answer.name(), "finding": finding.replace('\n', " ") }))
        .collect();
    rows.push(json!({ "step": table::STEPS[4], "applies": "yes", "finding": "heap, fences, stacks, onset" }));
    rows
}

fn limit(diagnosis: &Diagnosis) -> Value {
    let evidence = |(bytes, entry): (u64, usize)| json!({ "bytes": bytes, "entry": entry });
    let served = diagnosis.evidence.served.map(|(bytes, entries)| (bytes, entries.saturating_sub(1)));
    let (kind, at_least, below) = match diagnosis.limit {
        Limit::Given { bytes } => ("given", Some(bytes), None),
        Limit::DeviceFull { bytes } => ("device_full", Some(bytes), None),
        Limit::Between { at_least_bytes, below_bytes } => ("between", Some(at_least_bytes), Some(below_bytes)),
        Limit::NotFixed { reserved_bytes, refused_bytes } => ("not_fixed", Some(reserved_bytes), Some(refused_bytes)),
        Limit::NeverReached { at_least_bytes } => ("never_reached", Some(at_least_bytes), None),
    };
    json!({
        "known": kind,
        "at_least_bytes": at_least,
        "below_bytes": below,
        "served": served.map(evidence),
        "refused": diagnosis.evidence.refused.map(evidence),
        "contradicted_by": words::contradiction(diagnosis),
        "device_free_bytes": diagnosis.evidence.device_free_bytes,
    })
}

fn heap(heap: &Breakdown) -> Value {
    let strands = heap.strands.iter().map(|strand| {
        json!({
            "cause": strand.cause.name(),
            "bytes": strand.bytes,
            "holes": strand.holes,
            "largest_bytes": strand.largest_bytes,
            "releasable_bytes": strand.releasable_bytes,
        })
    });
    json!({
        "reserved_bytes": heap.reserved_bytes,
        "requested_bytes": heap.requested_bytes,
        "rounding_bytes": heap.rounding_bytes,
        "allocated_bytes": heap.allocated_bytes(),
        "stranded_bytes": heap.stranded_bytes(),
        "largest_hole_bytes": heap.largest_hole_bytes(),
        "releasable_bytes": heap.releasable_bytes(),
        "kept_by_pools_bytes": heap.kept_by_pools_bytes,
        "live_blocks": heap.live_blocks,
        "segments": heap.segments,
        "stranded": strands.collect::<Vec<_>>(),
    })
}

fn onset(recording: &Recording, diagnosis: &Diagnosis) -> Option<Value> {
    let onset = diagnosis.onset?;
    let phase = onset.time_us.and_then(|time| phase_at(&recording.annotations, diagnosis.device, time));
    let phase = phase.map(|phase| json!({ "open": phase.open, "last_ended": phase.last_ended }));
    Some(json!({ "entry": onset.entry, "level_bytes": onset.level_bytes, "time_us": onset.time_us, "phase": phase }))
}

fn fence(recording: &Recording, diagnosis: &Diagnosis, fence: &Fence) -> Value {
    let owner = &fence.owner;
    json!({
        "address": fence.address,
        "bytes": fence.bytes,
        "pending": fence.is_pending,
        "beside_bytes": fence.beside_bytes,
        "opens_bytes": fence.opens_bytes,
        "enough": fence.is_enough,
        "frees_segment": fence.frees_segment,
        "entry": owner.entry,
        "age_entries": diagnosis.entry.zip(owner.entry).map(|(now, then)| now.saturating_sub(then)),
        "age_us": diagnosis.time_us.zip(owner.time_us).map(|(now, then)| now.saturating_sub(then)),
        "stack": stacks::json(recording, owner.stack),
    })
}
