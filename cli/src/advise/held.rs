//! A file without trace: what was held when it was written, and what that says of another amount of memory.

use std::io::{self, Write};

use anyhow::Result;
use parkade_analysis::advise::{Held, MemoryBudget};
use parkade_recording::Recording;
use serde_json::json;

use super::{Advised, short_name};
use crate::size;

fn available(space: &MemoryBudget) -> Option<u64> {
    space.capacity_bytes.into_iter().chain(space.limit_bytes).min()
}

/// Whether the blocks in use of every device are less than the memory: all that can be said.
pub(super) fn fits(recording: &Recording, space: &MemoryBudget) -> bool {
    let most = recording.devices.iter().map(|device| Held::at_end(device).live_bytes).max().unwrap_or(0);
    available(space).is_none_or(|available| most <= available)
}

pub(super) fn print(out: &mut impl Write, advised: &Advised, space: &MemoryBudget) -> io::Result<()> {
    writeln!(out, "{} has no trace: only what was held when it was written can be said", short_name(&advised.file))?;
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
                writeln!(out, "no setting helps: what is in use is {} more than the memory", size::show_bytes(short))?;
            }
            Some(available) if held.reserved_bytes > available => {
                let over = held.reserved_bytes - available;
                writeln!(out, "what is in use would fit, but {} of the cache would not", size::show_bytes(over))?;
            }
            _ => {}
        }
    }
    writeln!(out, "\nfor an answer, record the way there: torch.cuda.memory._record_memory_history()")
}

pub(super) fn json(advised: &Advised, space: &MemoryBudget) -> Result<String> {
    let devices = advised.recording.devices.iter().map(|device| {
        let held = Held::at_end(device);
        json!({
            "device": device.device,
            "reserved_bytes": held.reserved_bytes,
            "live_bytes": held.live_bytes,
            "pending_bytes": held.pending_bytes,
            "free_bytes": held.free_bytes,
            "largest_free_bytes": held.largest_free_bytes,
            "private_pools_bytes": held.private_pools_bytes,
        })
    });
    let verdict = if fits(&advised.recording, space) { None } else { Some("capacity") };
    let object = json!({
        "file": advised.file.display().to_string(),
        "capacity_bytes": available(space),
        "verified": false,
        "verdict": verdict,
        "options": [],
        "recommendation": null,
        "held": devices.collect::<Vec<_>>(),
        "not_in_file": "the trace",
        "seconds": advised.seconds,
    });
    Ok(serde_json::to_string(&object)?)
}
