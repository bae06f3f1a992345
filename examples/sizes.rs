//! Shows how PyTorch handles a request under given settings: the size of the block, its pool, and the segment that it would
//! take from the device.
//!
//! `cargo run -p parkade --example sizes -- "roundup_power2_divisions:4,large_segment_size_mb:32"`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::process::ExitCode;

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::texts::format_bytes;
use parkade::units::Bytes;

/// Requests on both sides of the thresholds in PyTorch's rules.
const REQUESTS: [u64; 9] = [1, 513, 3000, 1 << 20, (1 << 20) + 1, 5_000_000, 10 << 20, 100_000_000, 3 << 30];

fn main() -> ExitCode {
    let text = std::env::args().nth(1).unwrap_or_default();
    let settings = match Settings::from_environment(&text) {
        Ok(settings) => settings,
        Err(error) => {
            println!("PyTorch refuses {text:?}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let policy = PyTorch::new(settings);
    println!("{:>15}  {:>15}  {:<5}  {:>15}  {:>15}", "requested", "block", "pool", "new segment", "wasted");
    for requested in REQUESTS.map(Bytes) {
        // Both are `None` only for sizes near 2^64.
        let Some(block) = policy.round(requested) else { continue };
        let Some(segment) = policy.segment_for(block) else { continue };
        let sizes = [requested, block, segment, block - requested].map(|bytes| format_bytes(bytes.get()));
        let [requested, rounded, segment, wasted] = sizes;
        println!("{requested:>15}  {rounded:>15}  {:<5}  {segment:>15}  {wasted:>15}", policy.classify(block).name());
    }
    ExitCode::SUCCESS
}
