//! Shows what a recorded run would have needed under other allocator settings.
//!
//! `cargo run -p parkade-replay --example what_if -- [FILE [LIMIT_MIB [SETTINGS...]]]`
//!
//! LIMIT_MIB is the memory limit of the recorded run, or 0 for none; a snapshot does not contain it. Without arguments, the
//! example uses a GPT-2 training run that ran out of memory under a 12 GiB limit.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::error::Error;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_replay::{OutlookOptions, ReplaySettings, VerifyOptions, replay_device, verify_device};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.limit12_oom.pickle.xz");
const SHIPPED_LIMIT_MIB: u64 = 12 << 10;
const TRIED: [&str; 4] = ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (path, limit_mib) = match arguments.next() {
        None => (SHIPPED.to_owned(), SHIPPED_LIMIT_MIB),
        Some(path) => (path, arguments.next().map_or(Ok(0), |mib| mib.parse())?),
    };
    let mut tried: Vec<String> = arguments.collect();
    if tried.is_empty() {
        tried = TRIED.map(str::to_owned).to_vec();
    }
    let limit_bytes = (limit_mib > 0).then_some(limit_mib << 20);
    let recording = parkade_recording::read_file(&path)?;
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes, stats_file: None };
    for device in recording.devices.iter().filter(|device| !device.trace.is_empty()) {
        let verdict = verify_device(device, &own, &mut |_| ())?;
        println!("device {}: {} decisions replayed, {} mismatches", device.device, verdict.decisions, verdict.mismatches);
        println!("{:40} {}", "as recorded", describe(verdict.peak_reserved_bytes(), verdict.ooms == 0));
        for text in &tried {
            let profile = &Profile::PYTORCH_2_11;
            let settings = Settings::from_environment(text)?;
            let options = OutlookOptions { own: own.clone(), profile, settings, limit_bytes, capacity_bytes: None };
            let outlook = replay_device(device, &options, &mut |_| ())?;
            let name = if text.is_empty() { "default settings" } else { text };
            println!("{name:40} {}", describe(outlook.prediction.peak_reserved_bytes(), outlook.fits()));
        }
    }
    Ok(())
}

fn describe(peak_reserved_bytes: i64, fits: bool) -> String {
    let gib = peak_reserved_bytes as f64 / (1_u64 << 30) as f64;
    format!("peak {gib:6.2} GiB reserved, {}", if fits { "fits" } else { "out of memory" })
}
