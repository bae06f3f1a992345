//! Shows which lines of a program allocate the most memory, from the trace of a snapshot.
//!
//! `cargo run -p parkade-recording --example hot_stacks -- [FILE]`
//!
//! Without FILE, it reads a recording of GPT-2 training that ships with parkade.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::collections::BTreeMap;
use std::error::Error;

use parkade_recording::{Action, Recording, StackId, read_file};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.frames_tail20k.pickle.xz");
/// The number of stacks to show, and the number of frames to show for each.
const SHOWN: (usize, usize) = (5, 3);

/// The totals of all requests with the same stack.
#[derive(Default)]
struct Requests {
    count: u64,
    bytes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| SHIPPED.to_owned());
    let recording = read_file(&path)?;
    for device in &recording.devices {
        let mut by_stack: BTreeMap<StackId, Requests> = BTreeMap::new();
        for entry in device.trace.iter().filter(|entry| entry.action == Action::Alloc) {
            let requests = by_stack.entry(entry.stack).or_default();
            requests.count += 1;
            requests.bytes = requests.bytes.saturating_add(entry.size);
        }
        println!("device {}: {} trace entries, {} stacks that allocate", device.device, device.trace.len(), by_stack.len());
        let mut ranking: Vec<(StackId, Requests)> = by_stack.into_iter().collect();
        ranking.sort_by_key(|(_, requests)| std::cmp::Reverse(requests.bytes));
        for (stack, requests) in ranking.iter().take(SHOWN.0) {
            println!("\n{:.1} MiB in {} allocations, from", requests.bytes as f64 / (1 << 20) as f64, requests.count);
            show(&recording, *stack);
        }
    }
    Ok(())
}

/// Prints the innermost frames in Python files.
fn show(recording: &Recording, stack: StackId) {
    let mut frames = recording.stacks.frames(stack).filter(|frame| frame.filename.ends_with(".py")).peekable();
    if frames.peek().is_none() {
        println!("  (no Python stack was recorded)");
    }
    for frame in frames.take(SHOWN.1) {
        println!("  {}:{} in {}", frame.filename, frame.line, frame.name);
    }
}
