//! Who holds the memory at the peak, by kind: parameters, gradients, activations and so on, and how that was told.

use std::io::{self, Write};

use parkade::texts::format_bytes;
use parkade_analysis::holders::{Held, How, Kind, KindUse, WithoutStack};

use super::gather::Device;
use super::markup::{counted, grouped};
use crate::json_struct::{all, view};
use crate::output;

view! {
    pub(super) struct OfKind(used: &KindUse) {
        kind: &'static str = used.kind.name(),
        bytes: u64 = used.held.bytes,
        blocks: u64 = used.held.blocks,
        told_by: Vec<OfHow> = all(&used.told_by, OfHow::of),
    }
}

view! {
    struct OfHow(told: &(How, Held)) {
        how: &'static str = told.0.name(),
        bytes: u64 = told.1.bytes,
        blocks: u64 = told.1.blocks,
    }
}

view! {
    pub(super) struct NoStack(without: WithoutStack) {
        autograd_bytes: u64 = without.autograd.bytes,
        autograd_blocks: u64 = without.autograd.blocks,
        early_bytes: u64 = without.early.bytes,
        early_blocks: u64 = without.early.blocks,
    }
}

/// The live blocks at the peak of allocated memory, by kind.
pub(super) fn at_peak(device: &Device) -> Vec<KindUse> {
    device.told.at(&device.timeline.log, device.peak_allocated_moment)
}

/// Those of them that have no stack.
pub(super) fn without_stack(device: &Device) -> Option<WithoutStack> {
    device.told.without_stack(&device.timeline.log, device.peak_allocated_moment)
}

/// In fewer columns nothing is said of how a kind was told.
const LEAST: usize = 10;

/// The table for terminals. Files without a trace have none: their blocks have no lives.
pub(super) fn print(out: &mut dyn Write, device: &Device, columns: usize) -> io::Result<()> {
    let uses = at_peak(device);
    let total: u64 = uses.iter().map(|used| used.held.bytes).sum();
    if total == 0 || device.verdict.is_none() {
        return Ok(());
    }
    let passes = match device.told.passes {
        0 => "no forward pass with its backward pass was found".to_owned(),
        1 => "1 pass forward and back was found".to_owned(),
        passes => format!("{passes} passes forward and back were found"),
    };
    writeln!(out, "{}", output::wrapped(&format!("of what kind it is ({passes})"), columns).join("\n"))?;
    for used in &uses {
        let share = used.held.bytes as f64 / total as f64 * 100.0;
        let told: Vec<&str> = used.told_by.iter().map(|&(how, _)| words(how)).collect();
        let (bytes, blocks) = (format_bytes(used.held.bytes), grouped(used.held.blocks));
        let how = if used.kind == Kind::Unknown { String::new() } else { format!("  by {}", told.join(", ")) };
        // As much of how it was told as there is room for.
        let room = columns.saturating_sub(32 + name(used.kind).chars().count());
        let how = if room < LEAST { String::new() } else { output::fitted(&how, room) };
        writeln!(out, "{bytes:>12} {share:>5.1} %  {blocks:>6} x  {}{}", name(used.kind), output::dim(&how))?;
    }
    for line in without_stack(device).map(frameless).unwrap_or_default() {
        for line in output::wrapped(&line, columns) {
            writeln!(out, "{}", output::dim(&line))?;
        }
    }
    writeln!(out)
}

/// What the blocks without a stack are.
fn frameless(without: WithoutStack) -> Vec<String> {
    let line = |held: Held, what: &str| {
        let (bytes, blocks) = (format_bytes(held.bytes), counted(held.blocks, "block"));
        (held.blocks > 0).then(|| format!("without a stack: {bytes} in {blocks} {what}"))
    };
    let autograd =
        line(without.autograd, "made on threads without Python calls, as autograd's are, typically in a backward pass");
    let early = line(without.early, "from before the first entry");
    autograd.into_iter().chain(early).collect()
}

/// A kind in a table.
const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::OptimizerStates => "optimizer states",
        kind => kind.name(),
    }
}

/// How something was told, in words.
const fn words(how: How) -> &'static str {
    match how {
        How::Stack => "stack",
        How::Annotation => "the optimizer's annotation",
        How::Size => "size",
        How::Pairing => "the order of frees",
        How::Lifetime => "lifetime",
        How::Repetition => "the step before",
        How::NotTold => "nothing",
    }
}
