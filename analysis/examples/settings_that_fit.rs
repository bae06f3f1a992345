//! Finds settings that let a recorded run fit in a given amount of memory.
//!
//! `cargo run --release -p parkade-analysis --example settings_that_fit -- [SNAPSHOT [GIB]]`; without arguments it tries a
//! GPT-2 training run that ships with the repository, with 16 GiB of memory.

use std::error::Error;

use parkade::profile::Profile;
use parkade_analysis::advise::{AdviseOptions, MemoryBudget, advise};
use parkade_replay::{ReplaySettings, VerifyOptions};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.default.pickle.xz");

#[expect(clippy::print_stdout, reason = "an example")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| SHIPPED.to_owned());
    let gib: f64 = arguments.next().map_or(Ok(16.0), |gib| gib.parse())?;

    let recording = parkade_recording::read_file(&file)?;
    let traced: Vec<_> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let options = AdviseOptions {
        own: VerifyOptions { settings, limit_bytes: None, stats_file: None },
        profile: &Profile::PYTORCH_2_11,
        memory: MemoryBudget { capacity_bytes: Some((gib * f64::from(1 << 30)) as u64), limit_bytes: None },
        given: Vec::new(),
        only_given: false,
        devices_seen: recording.devices.len(),
    };
    let advice = advise(&traced, &options, &|_| ()).map_err(|(device, error)| format!("device {device}: {error}"))?;

    println!("{} settings tried in {gib} GiB; the run's own settings first, then the ten most useful:\n", advice.options.len());
    println!("{:>5} {:>10} {:>10} {:>8}  settings", "fits", "peak MiB", "needs MiB", "retries");
    for option in advice.options.iter().take(11) {
        let fits = if option.fits() { "yes" } else { "no" };
        let (peak_mib, needs_mib) = (option.peak_reserved_bytes() >> 20, option.smallest_capacity_bytes() >> 20);
        let name = if option.settings.text.is_empty() { "PyTorch's defaults" } else { &option.settings.text };
        println!("{fits:>5} {peak_mib:>10} {needs_mib:>10} {:>8}  {name}", option.retries());
        for caution in option.warnings() {
            println!("{:>38}beware: {}", "", caution.what);
        }
    }
    println!("\nthe run's own settings: {}", advice.verdict.name());
    match &advice.recommendation {
        Some(recommendation) => println!("recommended: {}", recommendation.line),
        None => println!("none of them fits"),
    }
    Ok(())
}
