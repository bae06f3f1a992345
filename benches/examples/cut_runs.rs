//! How far advice on runs that died can be trusted: cuts complete recordings where a tighter limit kills them, advises on what is left,
//! and compares with the whole recording.
//!
//! `cargo run --release -p parkade-benches --example cut_runs -- [--limits 1.015,1.04,1.08] RECORDING...`
//!
//! Limits are multiples of the recording's live peak. For each recording and limit the run under the recording's own settings is
//! exported up to its first out-of-memory error, as a program leaves it that dies of the error. `completes` says whether the recommended
//! settings complete the whole recorded program within that limit, `any` how many of the settings tried do.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::Path;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{Advice, AdviseOptions, MemoryBudget, Outcome, advise};
use parkade_recording::{Action, DeviceRecording, Recording, read_file};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{
    AfterFailure, PredictOptions, ReplaySettings, Requests, Timing, VerifyOptions, device_like, learned_addresses, predict,
};

/// Fewer steps than this before the end do not count in the shares.
const STEPS: usize = 4;

/// What came of the cuts.
#[derive(Default)]
struct Sums {
    cuts: usize,
    fits: usize,
    fits_wrong: usize,
    possible: usize,
    completes: usize,
    possible_after_steps: usize,
    completes_after_steps: usize,
    fits_after_steps: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut limits = vec![1.015, 1.04, 1.08];
    if arguments.first().is_some_and(|argument| argument == "--limits") {
        limits = arguments.get(1).ok_or("--limits needs numbers")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
        arguments.drain(..2);
    }
    if arguments.is_empty() {
        return Err("usage: cut_runs [--limits 1.015,1.04,1.08] RECORDING...".into());
    }
    println!(
        "{:<44}{:>7}{:>10}{:>7}{:>12}{:>11}{:>6}  recommended",
        "recording", "limit", "died at", "steps", "outcome", "completes", "any"
    );
    let mut sums = Sums::default();
    for file in &arguments {
        cut(Path::new(file), &limits, &mut sums)?;
    }
    let Sums { cuts, fits, fits_wrong, .. } = sums;
    println!("\n{cuts} runs died; \"fits\" was said of {fits}, of which {fits_wrong} fail later");
    println!("where some setting completes the program: the recommended one does in {} of {}", sums.completes, sums.possible);
    println!(
        "of these with {STEPS} steps before the end: it does in {} of {}, and \"fits\" is said of {}",
        sums.completes_after_steps, sums.possible_after_steps, sums.fits_after_steps
    );
    Ok(())
}

fn cut(file: &Path, limits: &[f64], sums: &mut Sums) -> Result<(), Box<dyn Error>> {
    let recording = read_file(file)?;
    let Some(device) = recording.devices.iter().find(|device| !device.trace.is_empty()) else { return Ok(()) };
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let requests = Requests::of_recording(device, &own, &mut |_| ())?;
    let learned = learned_addresses(device, &requests);
    let run = |settings: &Settings, limit_bytes: Option<u64>| {
        let (settings, after_failure) = (settings.clone(), AfterFailure::Stop);
        let options =
            PredictOptions { profile: &Profile::PYTORCH_2_11, settings, limit_bytes, after_failure, timing: Timing::Recorded };
        predict(&requests, device_like(device.device, &learned, None), &options)
    };
    let peak = run(&own.settings.settings, None).peak_allocated_bytes();
    for &factor in limits {
        let limit = (peak as f64 * factor) as u64;
        let Some((cut, died_at)) = cut_at(&recording, device, &own, limit)? else { continue };
        let memory = MemoryBudget { capacity_bytes: None, limit_bytes: Some(limit) };
        let own = VerifyOptions { limit_bytes: Some(limit), ..own.clone() };
        let options = AdviseOptions { own, profile: &Profile::PYTORCH_2_11, memory, given: Vec::new(), only_given: false };
        let advice = advise(&[&cut], &options, &|_| ()).map_err(|(_, error)| error)?;
        let completes = |settings: &Settings| run(settings, Some(limit)).first_failure.is_none();
        let any = advice.options.iter().filter(|option| completes(&option.settings)).count();
        let recommended = advice.recommended().map(|option| &option.settings);
        let does = recommended.is_some_and(completes);
        sums.note(&advice, does, any);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "{name:<44}{factor:>7}{died_at:>10}{:>7}{:>12}{:>11}{any:>6}  {}",
            steps(&advice),
            advice.outcome.name(),
            if does { "yes" } else { "no" },
            recommended.map_or("-", |settings| &settings.text)
        );
    }
    Ok(())
}

/// The recording as the run under this limit leaves it, and the entry of which it died; `None` if it does not die.
fn cut_at(
    recording: &Recording,
    device: &DeviceRecording,
    own: &VerifyOptions,
    limit: u64,
) -> Result<Option<(DeviceRecording, usize)>, Box<dyn Error>> {
    let options = ExportOptions {
        own: own.clone(),
        profile: &Profile::PYTORCH_2_11,
        settings: own.settings.settings.clone(),
        limit_bytes: Some(limit),
        capacity_bytes: None,
        after_failure: AfterFailure::Stop,
        device: Some(device.device),
    };
    let exported = export(recording, &options, &mut |_| ())?.recording;
    let cut = exported.devices.into_iter().find(|cut| cut.device == device.device);
    Ok(cut.and_then(|cut| {
        let died_at = cut.trace.iter().position(|entry| entry.action == Action::Oom)?;
        Some((cut, died_at))
    }))
}

fn steps(advice: &Advice) -> usize {
    advice.programs.iter().find_map(|program| program.continuation.as_ref()).map_or(0, |continuation| continuation.steps)
}

impl Sums {
    fn note(&mut self, advice: &Advice, completes: bool, any: usize) {
        let fits = advice.outcome == Outcome::Fits;
        let (is_possible, has_steps) = (any > 0, steps(advice) >= STEPS);
        self.cuts += 1;
        self.fits += usize::from(fits);
        self.fits_wrong += usize::from(fits && !completes);
        self.possible += usize::from(is_possible);
        self.completes += usize::from(is_possible && completes);
        self.possible_after_steps += usize::from(is_possible && has_steps);
        self.completes_after_steps += usize::from(is_possible && has_steps && completes);
        self.fits_after_steps += usize::from(is_possible && has_steps && fits);
    }
}
