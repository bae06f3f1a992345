//! A diagnosis as text: the cause, the five steps, then the evidence.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use parkade_analysis::diagnose::{Applies, Breakdown, Diagnosis, Fence, Verdict, Why};
use parkade_recording::StackId;

use super::layout::{STEPS, hanging, step, width, wrapped};
use super::{Diagnosed, excess, stacks, words};
use crate::terminal::output::{self, count};
use crate::terminal::recording::{self, short_name};
use crate::terminal::size::show_bytes;

/// The number of stacks and fences shown.
const SHOWN: usize = 5;

pub(super) fn print(out: &mut dyn Write, diagnosed: &Diagnosed) -> io::Result<()> {
    for (place, diagnosis) in diagnosed.devices.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        device(out, diagnosed, diagnosis)?;
    }
    Ok(())
}

fn device(out: &mut dyn Write, diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> io::Result<()> {
    let number = if diagnosed.recording.devices.len() > 1 { format!(" device {}", diagnosis.device) } else { String::new() };
    let trace = diagnosed.recording.devices.iter().find(|device| device.device == diagnosis.device);
    let entries = trace.map_or(0, |device| device.trace.len());
    if let Some((reserved, limit)) = diagnosed.refuted(diagnosis) {
        hanging(out, "", 0, &recording::not_its_limit(reserved, limit))?;
        writeln!(out)?;
    }
    let occasion = words::occasion(diagnosis, entries);
    hanging(out, "", 0, &format!("{}{number}: {occasion}", short_name(&diagnosed.file)))?;
    let headline = words::headline(diagnosis);
    let is_good = diagnosis.verdict == Verdict::NoFailure;
    let headline = wrapped(&headline, width()).join("\n");
    writeln!(out, "\n{}", if is_good { headline } else { output::bad(&headline) })?;
    if let Some(warning) = words::warning(diagnosis) {
        writeln!(out, "{}", output::bad(&wrapped(&warning, width()).join("\n")))?;
    }
    if let Some(peaks) = excess::peaks(diagnosis).filter(|_| excess::is_asked(diagnosis)) {
        hanging(out, "", 0, &peaks)?;
    }
    let request = diagnosis.request.filter(|_| !excess::is_asked(diagnosis));
    let asked = request.and_then(|request| stacks::line(&diagnosed.recording, request.stack));
    if let Some(line) = asked {
        hanging(out, &format!("{} ", output::dim("requested by")), 13, &line)?;
    }
    writeln!(out)?;
    steps(out, diagnosed, diagnosis)?;
    bytes(out, diagnosis)?;
    fences(out, diagnosed, diagnosis)?;
    live(out, diagnosed, diagnosis)?;
    if let Some(onset) = &diagnosis.onset {
        writeln!(out, "\n{}", output::dim("when it began"))?;
        indented(out, &words::onset(&diagnosed.recording, diagnosis, onset))?;
    }
    writeln!(out, "\n{}", output::dim("how certain this is"))?;
    for note in words::notes(diagnosed, diagnosis) {
        indented(out, &output::one_line(&note))?;
    }
    Ok(())
}

fn steps(out: &mut dyn Write, diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> io::Result<()> {
    let steps = &diagnosis.steps;
    let answers = [steps.capacity, steps.fragmentation, steps.settings, steps.empty_cache];
    for (place, (finding, answer)) in words::findings(diagnosed, diagnosis).iter().zip(answers).enumerate() {
        let word = format!("{:<7}", answer.name());
        let word = if answer == Applies::Yes { output::bad(&word) } else { word };
        step(out, place, &word, finding)?;
    }
    writeln!(out, "  5 {:<13}  {:<7}  where the memory is, who holds it, since when:", STEPS[4], "below")
}

fn indented(out: &mut dyn Write, text: &str) -> io::Result<()> {
    hanging(out, "  ", 2, text)
}

fn bytes(out: &mut dyn Write, diagnosis: &Diagnosis) -> io::Result<()> {
    let heap = &diagnosis.heap;
    let title =
        format!("where the {} of reserved memory is ({})", show_bytes(heap.reserved_bytes), count(heap.segments, "segment"));
    writeln!(out, "\n{}", output::dim(&title))?;
    row(out, heap.requested_bytes, &format!("live, in {}", count(heap.live_blocks, "block")))?;
    row(out, heap.rounding_bytes, "lost to rounding in those blocks")?;
    if excess::is_asked(diagnosis) {
        for (bytes, text) in excess::rows(&diagnosis.excess) {
            row(out, bytes, &text)?;
        }
        return Ok(());
    }
    for strand in heap.strands.iter().filter(|strand| strand.bytes > 0) {
        let holes = match strand.holes {
            1 => count(1_u8, "hole"),
            holes => format!("{}, the largest {}", count(holes, "hole"), show_bytes(strand.largest_bytes)),
        };
        row(out, strand.bytes, &format!("{} ({holes})", words::cause(strand.cause, diagnosis.is_for_request)))?;
    }
    if let Some(request) = diagnosis.request.filter(|_| diagnosis.why != Why::OutOfMemory) {
        let given = diagnosis.given_back.bytes;
        let given = if given > 0 { format!(", {} was released", show_bytes(given)) } else { String::new() };
        let after = show_bytes(diagnosis.reserved_after_bytes);
        let requested = show_bytes(request.requested_bytes);
        indented(out, &format!("then {requested} was requested{given}, and {after} was reserved"))?;
    }
    if diagnosis.why == Why::OutOfMemory && diagnosis.met != diagnosis.heap {
        indented(out, &format!("before the allocator released what it could: {}", met(&diagnosis.met)))?;
    }
    Ok(())
}

fn met(met: &Breakdown) -> String {
    format!("{} reserved, {} of it free", show_bytes(met.reserved_bytes), show_bytes(met.stranded_bytes()))
}

fn row(out: &mut dyn Write, bytes: u64, text: &str) -> io::Result<()> {
    hanging(out, &format!("  {:>12}  ", show_bytes(bytes)), 16, text)
}

fn fences(out: &mut dyn Write, diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> io::Result<()> {
    if diagnosis.fences.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", output::dim("blocks that pin free memory"))?;
    for fence in diagnosis.fences.iter().take(SHOWN) {
        row(out, fence.bytes, &fence_text(diagnosis, fence))?;
        if let Some(line) = stacks::line(&diagnosed.recording, fence.owner.stack) {
            hanging(out, &format!("{:16}", ""), 16, &line)?;
        }
    }
    Ok(())
}

fn fence_text(diagnosis: &Diagnosis, fence: &Fence) -> String {
    let beside = show_bytes(fence.beside_bytes);
    let effect = if fence.frees_segment {
        format!("alone pins a segment of {}", show_bytes(fence.opens_bytes))
    } else if fence.is_enough {
        format!("has {beside} free beside it; freeing it would leave a hole of {}, enough", show_bytes(fence.opens_bytes))
    } else {
        format!("has {beside} free beside it")
    };
    let state = if fence.is_pending { ", and waits for events" } else { "" };
    let age = match (fence.owner.entry, diagnosis.entry) {
        (Some(entry), Some(now)) => {
            let times = fence.owner.time_us.zip(diagnosis.time_us);
            let time = times.map_or_else(String::new, |(then, now)| format!(", {}", words::duration(now.saturating_sub(then))));
            format!("; allocated at entry {entry}, {}{time} ago", count(now.saturating_sub(entry), "entry"))
        }
        (None, Some(_)) => "; allocated before the trace begins".to_owned(),
        (_, None) => String::new(),
    };
    format!("{effect}{state}{age}")
}

fn live(out: &mut dyn Write, diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> io::Result<()> {
    // A single row "no stack in the file" says nothing.
    if diagnosis.stacks.iter().all(|held| held.stack == StackId::NONE) {
        return Ok(());
    }
    writeln!(out, "\n{}", output::dim("stacks that hold the most live memory"))?;
    // Stacks that look the same in one line share a row.
    let mut rows: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for held in &diagnosis.stacks {
        let line = stacks::line(&diagnosed.recording, held.stack);
        let (bytes, blocks) = rows.entry(line.unwrap_or_else(|| "no stack in the file".to_owned())).or_default();
        *bytes = bytes.saturating_add(held.bytes);
        *blocks += held.blocks;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|&(_, (bytes, _))| Reverse(bytes));
    for (line, (bytes, blocks)) in rows.into_iter().take(SHOWN) {
        row(out, bytes, &format!("in {}: {line}", count(blocks, "block")))?;
    }
    Ok(())
}
