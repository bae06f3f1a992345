//! A file without a trace: what was held at its end, and what that says about other amounts of memory.

use std::io;
use std::io::Write;

use parkade_analysis::advise::{Held, MemoryBudget};
use parkade_recording::Recording;

use super::Advised;
use crate::terminal::json_struct::{all, view};
use crate::terminal::recording::{self, short_name};
use crate::terminal::size;

fn available(space: &MemoryBudget) -> Option<u64> {
    space.capacity_bytes.into_iter().chain(space.limit_bytes).min()
}

/// Whether the live memory of every device fits, which is all that can be said.
pub(super) fn fits(recording: &Recording, space: &MemoryBudget) -> bool {
    let most = recording.devices.iter().map(|device| Held::at_end(device).live_bytes).max().unwrap_or(0);
    available(space).is_none_or(|available| most <= available)
}

pub(super) fn print(out: &mut dyn Write, advised: &Advised, space: &MemoryBudget) -> io::Result<()> {
    writeln!(out, "{} has no trace, so only what was held at its end is known", short_name(&advised.file))?;
    for device in &advised.recording.devices {
        let held = Held::at_end(device);
        writeln!(
            out,
            "device {}: {} in use, {} waiting for other streams, {} free in the cache (largest hole {}), {} free in private pools; \
             {} reserved",
            device.device,
            size::show_bytes(held.live_bytes),
            size::show_bytes(held.pending_bytes),
            size::show_bytes(held.free_bytes),
            size::show_bytes(held.largest_free_bytes),
            size::show_bytes(held.private_pools_bytes),
            size::show_bytes(held.reserved_bytes)
        )?;
        match available(space) {
            Some(available) if held.live_bytes > available => {
                let short = held.live_bytes - available;
                writeln!(out, "no setting helps: what is in use exceeds the memory by {}", size::show_bytes(short))?;
            }
            Some(available) if held.reserved_bytes > available => {
                let over = held.reserved_bytes - available;
                writeln!(out, "what is in use would fit, but {} of the cache would not", size::show_bytes(over))?;
            }
            _ => {}
        }
    }
    for note in notes(advised) {
        writeln!(out, "{note}")?;
    }
    writeln!(out, "\nfor an answer, {}", recording::RECORD_IT)
}

/// That what is named is not tried.
fn notes(advised: &Advised) -> Vec<String> {
    let named = advised.not_tried.join(" and ");
    let are = if advised.not_tried.len() == 1 { "is" } else { "are" };
    let note = || format!("{named} {are} not tried: without a trace the requests are not known");
    if advised.not_tried.is_empty() { Vec::new() } else { vec![note()] }
}

view! {
    pub(super) struct Object(advised: &Advised, space: &MemoryBudget) {
        file: String = advised.file.display().to_string(),
        capacity_bytes: Option<u64> = available(space),
        verified: bool = false,
        outcome: &'static str = if fits(&advised.recording, space) { "unknown" } else { "does_not_fit" },
        verdict: Option<&'static str> = (!fits(&advised.recording, space)).then_some("capacity"),
        options: [(); 0] = [],
        policies: [(); 0] = [],
        recommendation: Option<()> = None,
        held: Vec<HeldByDevice> = all(&advised.recording.devices, |device| HeldByDevice::of(device.device, Held::at_end(device))),
        not_in_file: &'static str = "the trace",
        notes: Vec<String> = notes(advised),
        seconds: f64 = advised.seconds,
    }
}

view! {
    struct HeldByDevice(device: u32, held: Held) {
        device: u32 = device,
        reserved_bytes: u64 = held.reserved_bytes,
        live_bytes: u64 = held.live_bytes,
        pending_bytes: u64 = held.pending_bytes,
        free_bytes: u64 = held.free_bytes,
        largest_free_bytes: u64 = held.largest_free_bytes,
        private_pools_bytes: u64 = held.private_pools_bytes,
    }
}
