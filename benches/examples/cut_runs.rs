//! Measures how reliable the advice on runs that died is: cuts complete recordings at the point where a lower limit
//! would kill them, asks for advice on the part before the cut, and compares the advice with the entire recording.
//!
//! `cargo run --release -p parkade-benches --example cut_runs -- [--limits 0.9,0.95,0.98,1.02,1.04,1.08,1.12,1.16,1.25] RECORDING...`
//!
//! Limits are multiples of the recording's live peak. No settings can complete a run in less than that peak; below it,
//! only those runs count whose estimated rest needs more than the limit. For each recording and limit, the run under
//! the recording's own settings is exported up to its first out-of-memory error, which is what a program that dies
//! from the error leaves behind. `completes` shows whether the recommended settings complete the entire recorded
//! program within that limit, `likely` is the probability that the advice states, `policy` shows the same two values
//! for `pytorch-rescue`, and `any` shows whether any of the remedies completes it.
//!
//! The output ends with the figures for docs/predictions.md, and the table for `analysis/src/advise/completion.rs`. The Brier
//! scores use a table that leaves out the runs from the same recording.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{
    Advice, AdviseOptions, CompletedRuns, KnownSteps, Means, MemoryBudget, Outcome, Rest, RunLike, advise,
};
use parkade_policies::{Named, named};
use parkade_recording::{Action, DeviceRecording, Recording, read_file};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{
    AfterFailure, PredictOptions, ReplaySettings, Requests, Timing, VerifyOptions, device_like, learned_addresses, predict,
};
use parkade_research::study::{self, RunOptions, make_for, smallest_capacity};
use parkade_research::workload::recorded::of_requests;
use rayon::prelude::*;

const LIMITS: [f64; 9] = [0.9, 0.95, 0.98, 1.02, 1.04, 1.08, 1.12, 1.16, 1.25];
/// The policy that the advice recommends.
const POLICY: &str = "pytorch-rescue";

type Failure = Box<dyn Error + Send + Sync>;

/// A remedy tried on a run that died, and the result.
#[derive(Clone, Copy)]
struct Tried {
    like: RunLike,
    gets_past: bool,
    completes: bool,
}

/// A run that died.
struct Cut {
    recording: usize,
    factor: f64,
    died_at: usize,
    steps: Option<usize>,
    outcome: Outcome,
    settings: Option<(String, Tried)>,
    policy: Option<Tried>,
    any_settings: usize,
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut limits = LIMITS.to_vec();
    if arguments.first().is_some_and(|argument| argument == "--limits") {
        limits = arguments.get(1).ok_or("--limits needs numbers")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
        arguments.drain(..2);
    }
    if arguments.is_empty() {
        return Err("usage: cut_runs [--limits 0.9,1.02,...] RECORDING...".into());
    }
    let cuts = |(recording, file): (usize, &String)| cut(Path::new(file), recording, &limits);
    let cuts: Vec<Vec<Cut>> = arguments.par_iter().enumerate().map(cuts).collect::<Result<_, _>>()?;
    let cuts: Vec<Cut> = cuts.into_iter().flatten().collect();
    println!(
        "{:<44}{:>7}{:>10}{:>7}{:>14}{:>11}{:>8}{:>14}{:>6}  recommended",
        "recording", "limit", "died at", "steps", "outcome", "completes", "likely", "policy", "any"
    );
    for cut in &cuts {
        let name = Path::new(&arguments[cut.recording]).file_name().unwrap_or_default().to_string_lossy();
        print_cut(&name, cut);
    }
    print_sums(&cuts);
    print_table(&cuts);
    Ok(())
}

fn print_cut(name: &str, cut: &Cut) {
    let likely = |tried: &Tried| format!("{:.2}", tried.like.runs().probability());
    let does = |tried: &Tried| if tried.completes { "yes" } else { "no" };
    let settings = cut.settings.as_ref();
    println!(
        "{name:<44}{:>7}{:>10}{:>7}{:>14}{:>11}{:>8}{:>14}{:>6}  {}",
        cut.factor,
        cut.died_at,
        cut.steps.map_or_else(|| "-".to_owned(), |steps| steps.to_string()),
        cut.outcome.name(),
        settings.map_or("-", |(_, tried)| does(tried)),
        settings.map_or_else(|| "-".to_owned(), |(_, tried)| likely(tried)),
        cut.policy.as_ref().map_or_else(|| "-".to_owned(), |tried| format!("{}, {}", does(tried), likely(tried))),
        cut.any_settings,
        settings.map_or("-", |(text, _)| text)
    );
}

/// The recording's program, ready to run in an amount of memory.
struct Program<'a> {
    recording: &'a Recording,
    device: &'a DeviceRecording,
    own: VerifyOptions,
    requests: Requests,
    policy: Named,
}

fn cut(file: &Path, recording_number: usize, limits: &[f64]) -> Result<Vec<Cut>, Failure> {
    let recording = read_file(file)?;
    let Some(device) = recording.devices.iter().find(|device| !device.trace.is_empty()) else { return Ok(Vec::new()) };
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())?;
    let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let requests = Requests::of_recording(device, &own, &mut |_| ())?;
    let program =
        Program { recording: &recording, device, own, requests, policy: named(POLICY).map_err(|error| error.to_string())? };
    let peak = program.run(&program.own.settings.settings, None).1;
    let mut cuts = Vec::new();
    for &factor in limits {
        let limit = (peak as f64 * factor) as u64;
        if let Some((cut, died_at)) = program.cut_at(limit)? {
            cuts.push(Cut { recording: recording_number, factor, died_at, ..program.try_on(&cut, limit)? });
        }
    }
    Ok(cuts)
}

impl Program<'_> {
    /// Whether these settings complete the program within a limit, and the peak of allocated bytes.
    fn run(&self, settings: &Settings, limit_bytes: Option<u64>) -> (bool, i64) {
        let (settings, after_failure) = (settings.clone(), AfterFailure::Stop);
        let options =
            PredictOptions { profile: &Profile::PYTORCH_2_11, settings, limit_bytes, after_failure, timing: Timing::Recorded };
        let learned = learned_addresses(self.device, &self.requests);
        let prediction = predict(&self.requests, device_like(self.device.device, &learned, None), &options);
        (prediction.first_failure.is_none(), prediction.peak_allocated_bytes())
    }

    /// The recording that a run under this limit would leave behind, and the entry at which the run died; `None` if it
    /// does not die.
    fn cut_at(&self, limit: u64) -> Result<Option<(DeviceRecording, usize)>, Failure> {
        let options = ExportOptions {
            own: self.own.clone(),
            profile: &Profile::PYTORCH_2_11,
            settings: self.own.settings.settings.clone(),
            limit_bytes: Some(limit),
            capacity_bytes: None,
            after_failure: AfterFailure::Stop,
            device: Some(self.device.device),
        };
        let exported = export(self.recording, &options, &mut |_| ())?.recording;
        let cut = exported.devices.into_iter().find(|cut| cut.device == self.device.device);
        Ok(cut.and_then(|cut| {
            let died_at = cut.trace.iter().position(|entry| entry.action == Action::Oom)?;
            Some((cut, died_at))
        }))
    }

    /// Asks for advice on the part before the cut, and tries it on the entire recording.
    fn try_on(&self, cut: &DeviceRecording, limit: u64) -> Result<Cut, Failure> {
        let memory = MemoryBudget { capacity_bytes: None, limit_bytes: Some(limit) };
        let own = VerifyOptions { limit_bytes: Some(limit), ..self.own.clone() };
        let options =
            AdviseOptions { own, profile: &Profile::PYTORCH_2_11, memory, given: Vec::new(), only_given: false, devices_seen: 1 };
        let advice = advise(&[cut], &options, &|_| ()).map_err(|(_, error)| error)?;
        let completes = |settings: &Settings| self.run(settings, Some(limit)).0;
        let program = advice.programs.first().ok_or("no program")?;
        let like = |means, needed| RunLike::of(means, program.continuation.as_ref(), program.live.bytes, (needed, limit));
        let settings = advice.recommended().map(|option| {
            let like = like(Means::Settings, option.smallest_capacity_bytes());
            (option.settings.text.clone(), Tried { like, gets_past: option.gets_past(), completes: completes(&option.settings) })
        });
        Ok(Cut {
            recording: 0,
            factor: 0.0,
            died_at: 0,
            steps: program.continuation.as_ref().map(|continuation| continuation.steps),
            outcome: advice.outcome,
            settings,
            policy: self.try_policy(&advice, limit, &|needed| like(Means::Policy, needed)),
            any_settings: advice.options.iter().filter(|option| completes(&option.settings)).count(),
        })
    }

    fn try_policy(&self, advice: &Advice, limit: u64, like: &dyn Fn(u64) -> RunLike) -> Option<Tried> {
        let program = advice.programs.first()?;
        let (left, whole) = (of_requests("left", &program.requests), of_requests("whole", &self.requests));
        let options = RunOptions::plenty();
        let within = |recorded: &parkade_research::workload::recorded::RecordedWorkload| {
            study::run(&recorded.workload, make_for(&self.policy, &recorded.workload)(), &options.with_capacity(limit))
        };
        let failed = within(&left).failed_at_event.and_then(|event| left.entries.get(event).copied());
        let gets_past = failed.is_none_or(|entry| !program.is_recorded(entry as usize));
        let needed = smallest_capacity(&left.workload, &make_for(&self.policy, &left.workload), &options, &[limit]).ok()?;
        Some(Tried { like: like(needed.capacity_bytes), gets_past, completes: within(&whole).fits() })
    }
}

/// The remedies tried on a run, if the run gets past the failure.
fn tried(cut: &Cut) -> impl Iterator<Item = Tried> {
    let counts = |tried: &Tried| tried.gets_past && (cut.factor >= 1.0 || tried.like.rest == Rest::Exceeds);
    cut.settings.as_ref().map(|(_, tried)| *tried).into_iter().chain(cut.policy).filter(counts)
}

/// Whether the recommended settings complete the run.
fn does(cut: &Cut) -> bool {
    cut.settings.as_ref().is_some_and(|(_, tried)| tried.completes)
}

fn print_sums(cuts: &[Cut]) {
    // No settings can complete a run whose tensors do not fit.
    let possible: Vec<&Cut> = cuts.iter().filter(|cut| cut.factor >= 1.0).collect();
    let count = |is_it: &dyn Fn(&Cut) -> bool| possible.iter().filter(|cut| is_it(cut)).count();
    let fits_wrong = cuts.iter().filter(|cut| cut.outcome == Outcome::Fits && !does(cut)).count();
    let policy_does = |cut: &Cut| cut.policy.is_some_and(|tried| tried.completes);
    let recordings = cuts.iter().map(|cut| cut.recording).collect::<std::collections::BTreeSet<_>>().len();
    let fits = cuts.iter().filter(|cut| cut.outcome == Outcome::Fits).count();
    println!(
        "\n{} runs of {recordings} recordings died, {} with room for their tensors; \"fits\" was stated for {fits}, of which {fits_wrong} fail later",
        cuts.len(),
        possible.len()
    );
    println!(
        "completed by some settings: {}, by the recommended ones: {}, by {POLICY}: {}, by either: {}, by the likelier of the two: {}",
        count(&|cut| cut.any_settings > 0),
        count(&does),
        count(&policy_does),
        count(&|cut| cut.any_settings > 0 || policy_does(cut)),
        count(&first_completes)
    );
    for (name, is_it) in [("settings", Some(Means::Settings)), (POLICY, Some(Means::Policy)), ("both", None)] {
        let mut squares = Vec::new();
        for cut in cuts {
            let others = Counts::of(cuts.iter().filter(|other| other.recording != cut.recording));
            for tried in tried(cut).filter(|tried| is_it.is_none_or(|is_it| is_it == tried.like.means)) {
                squares.push((others.runs(tried.like).probability(), f64::from(u8::from(tried.completes))));
            }
        }
        let number = squares.len() as f64;
        let brier = squares.iter().map(|(said, is)| (said - is).powi(2)).sum::<f64>() / number;
        let rate = squares.iter().map(|(_, is)| is).sum::<f64>() / number;
        println!("{name}: Brier score {brier:.3} over {number} (always {rate:.2}: {:.3})", rate * (1.0 - rate));
        print_bins(&squares);
    }
}

/// Compares the predicted probabilities with the fraction of predictions that came true.
fn print_bins(squares: &[(f64, f64)]) {
    let mut bins: BTreeMap<u8, (f64, f64, u32)> = BTreeMap::new();
    for &(said, is) in squares {
        let bin = bins.entry((said * 10.0).min(9.0) as u8).or_default();
        *bin = (bin.0 + said, bin.1 + is, bin.2 + 1);
    }
    for (said, is, number) in bins.values() {
        let of = f64::from(*number);
        println!("    predicted {:.2}, observed {:.2} of {number}", said / of, is / of);
    }
}

/// Whether the first remedy in the advice completes the run: the settings, unless the policy's probability is at least
/// ten percentage points higher.
fn first_completes(cut: &Cut) -> bool {
    let likely = |tried: &Tried| tried.like.runs().probability();
    let by = |means| tried(cut).find(|tried| tried.like.means == means);
    let (settings, policy) = (by(Means::Settings), by(Means::Policy));
    let first = match (settings, policy) {
        (Some(settings), Some(policy)) => Some(if likely(&settings) >= likely(&policy) - 0.1 { settings } else { policy }),
        (one, other) => one.or(other),
    };
    first.is_some_and(|tried| tried.completes)
}

/// Completed and cut runs, grouped by similarity.
struct Counts(BTreeMap<Cell, CompletedRuns>);

/// The means, the rest, the steps and the band.
type Cell = (usize, usize, usize, usize);

impl Counts {
    fn of<'a>(cuts: impl Iterator<Item = &'a Cut>) -> Counts {
        let mut counts = BTreeMap::new();
        for tried in cuts.flat_map(tried) {
            let count = counts.entry(Counts::key(tried.like)).or_insert(CompletedRuns { completed: 0, runs: 0 });
            *count = CompletedRuns { completed: count.completed + u32::from(tried.completes), runs: count.runs + 1 };
        }
        Counts(counts)
    }

    fn key(like: RunLike) -> Cell {
        (like.means as usize, like.rest as usize, like.steps as usize, like.band)
    }

    fn of_cell(&self, key: Cell) -> CompletedRuns {
        self.0.get(&key).copied().unwrap_or(CompletedRuns { completed: 0, runs: 0 })
    }

    fn runs(&self, like: RunLike) -> CompletedRuns {
        like.runs_of(|like| self.of_cell(Counts::key(like)))
    }
}

fn print_table(cuts: &[Cut]) {
    let counts = Counts::of(cuts.iter());
    println!("\nconst TABLE:");
    for means in [Means::Settings, Means::Policy] {
        println!("    [");
        for rest in [Rest::Served, Rest::Short, Rest::Exceeds] {
            println!("        [");
            for steps in KnownSteps::ALL {
                let cell = |band| {
                    let CompletedRuns { completed, runs } = counts.of_cell((means as usize, rest as usize, steps as usize, band));
                    format!("of({completed}, {runs})")
                };
                println!("            [{}],", (0..RunLike::BANDS).map(cell).collect::<Vec<_>>().join(", "));
            }
            println!("        ],");
        }
        println!("    ],");
    }
}
