//! Remedies, in the order in which to try them: settings, parkade's own policy, and a lower peak of the program.
//!
//! For a run that died, the probability of each remedy is that of similar runs ([`CompletedRuns`]), and the most likely remedy is first.
//! Settings need no change to the code, so they precede a policy that is more likely by at most [`WORTH_CODE`]. Changes to the program are
//! last.

use parkade::profile::{Profile, RELEASES};
use parkade_analysis::advise::{Advice, CompletedRuns, DeviceOutcome, Means, MemoryRange, Outcome as Fit, Program, paste_line};
use parkade_analysis::holders::{Holders, Kind as BlockKind, KindUse};
use parkade_analysis::timeline::{Levels, Timeline};
use parkade_recording::Recording;
use parkade_replay::VerifyOptions;

use super::names;
use crate::commands::beside::Needs;
use crate::terminal::json_struct::{Word, view};
use crate::terminal::run_words;
use crate::terminal::size::show_bytes;

/// A policy precedes settings only if it is more likely by more than this, because it needs changes to the code.
const WORTH_CODE: f64 = 0.1;
/// Kinds of blocks that hold less than one part in this many of the live memory are not named.
const NAMED_PART: u64 = 10;
/// The maximum number of kinds that are named.
const NAMED: usize = 3;

/// The kind of a remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Settings of PyTorch's allocator.
    Settings,
    /// A parkade policy instead of PyTorch's allocator.
    Policy,
    /// A lower peak of the program.
    Program,
}

/// Something that may complete the program.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Remedy {
    kind: Kind,
    /// The line to paste, or what to do.
    pub(super) line: String,
    /// Whether the program fits with this remedy.
    outcome: Fit,
    /// The truncated runs similar to this one, if it died.
    completes: Option<CompletedRuns>,
    /// The part of the limit's range that is enough, if only the range is known and the assumed limit is too low.
    enough_part: f64,
    /// The amount by which the peak must be reduced.
    less_bytes: Option<u64>,
    /// Its requirements.
    asks: Vec<String>,
}

impl Remedy {
    /// Returns whether its line is for pasting into a shell or the program.
    pub(super) const fn is_pasted(&self) -> bool {
        !matches!(self.kind, Kind::Program)
    }

    /// Returns whether it is enough for every limit in the range.
    pub(super) fn is_enough(&self) -> bool {
        self.enough_part >= 1.0
    }

    /// Returns its requirements, each in a few words.
    pub(super) fn asks(&self) -> &[String] {
        &self.asks
    }

    /// Returns whether it is a policy.
    pub(super) fn is_policy(&self) -> bool {
        self.kind == Kind::Policy
    }

    /// Returns the probability that it completes the program, if that died.
    pub(super) fn completes_probability(&self) -> Option<f64> {
        self.completes.map(|runs| runs.probability() * self.enough_part)
    }

    fn probability(&self) -> f64 {
        self.completes_probability().unwrap_or(0.0)
    }

    /// Returns the largest holder of the memory that the program must give up.
    pub(super) fn largest_holder(&self) -> Option<&str> {
        let ask = self.asks.first().filter(|_| self.kind == Kind::Program)?;
        ask.split_once(": ").map(|(holder, _)| holder)
    }
}

/// The holders of memory at the peak of live memory, for the program of one device.
pub(super) struct AtPeak {
    device: u32,
    kinds: Vec<KindUse>,
}

impl AtPeak {
    /// Returns them for each device whose program died, except those whose recording cannot be replayed.
    pub(super) fn of_each(recording: &Recording, report: &Advice, own: &VerifyOptions) -> Vec<AtPeak> {
        let died = report.programs.iter().filter(|program| program.died());
        died.filter_map(|program| AtPeak::of(recording, program, own)).collect()
    }

    fn of(recording: &Recording, program: &Program, own: &VerifyOptions) -> Option<AtPeak> {
        let device = recording.devices.iter().find(|device| device.device == program.device)?;
        let Timeline { log, levels, .. } = Timeline::of_device(device, own, &program.requests).ok()?;
        let told = Holders::of(&log, device, &recording.annotations, &recording.stacks);
        let kinds = told.at(&log, Levels::peak_moment(&levels.allocated) as u32);
        Some(AtPeak { device: program.device, kinds })
    }
}

/// Returns the remedies for a program that does not fit, in the order in which to try them.
pub(super) fn remedies(report: &Advice, needs: Option<&Needs>, peaks: &[AtPeak]) -> Vec<Remedy> {
    let (settings, policy) = (of_settings(report), needs.and_then(|needs| of_policy(report, needs)));
    let mut remedies = in_order(settings, policy);
    remedies.extend(of_program(report, peaks));
    remedies
}

/// Puts the more likely remedy first, but settings before a policy that is hardly more likely.
fn in_order(settings: Option<Remedy>, policy: Option<Remedy>) -> Vec<Remedy> {
    let is_policy_first = match (&settings, &policy) {
        (Some(settings), Some(policy)) => policy.probability() > settings.probability() + WORTH_CODE,
        _ => false,
    };
    let first = if is_policy_first { [policy, settings] } else { [settings, policy] };
    first.into_iter().flatten().collect()
}

fn of_settings(report: &Advice) -> Option<Remedy> {
    if report.recommendation.is_none() {
        return in_range(report);
    }
    let option = report.recommended().filter(|option| !option.is_own)?;
    let warnings = option.warnings().map(|caution| format!("{} {}", caution.what, caution.instead));
    let asks = warnings.chain(also(option.needs_limit()).map(str::to_owned)).collect();
    let line = report.recommendation.as_ref()?.line.clone();
    let (kind, completes) = (Kind::Settings, option.completes);
    Some(Remedy { kind, line, outcome: report.outcome, completes, enough_part: 1.0, less_bytes: None, asks })
}

/// Returns settings that are not enough for the assumed limit, but for a part of its range.
fn in_range(report: &Advice) -> Option<Remedy> {
    let enough = report.enough.first()?;
    let option = report.options.get(enough.option).filter(|option| !option.is_own)?;
    let (outcome, program) = (names::outcome(option, enough.device)?, names::program(report, enough.device)?);
    let part = Part::of(enough.range, enough.bytes)?;
    Some(Remedy {
        kind: Kind::Settings,
        line: paste_line(&option.settings.text),
        outcome: report.outcome,
        completes: program.completes(Means::Settings, outcome.smallest_bytes, Some(part.most_bytes)),
        enough_part: part.part,
        less_bytes: None,
        asks: vec![part.asks],
    })
}

/// The part of a limit's range that is enough.
struct Part {
    part: f64,
    /// The maximum possible limit.
    most_bytes: u64,
    asks: String,
}

impl Part {
    /// Returns the part; `None` if no limit in the range is enough or the range has no upper end.
    fn of(range: MemoryRange, needed_bytes: u64) -> Option<Part> {
        let MemoryRange { least_bytes, below_bytes } = range;
        let is_bounded = below_bytes < u64::MAX && least_bytes < below_bytes && needed_bytes < below_bytes;
        let part =
            is_bounded.then(|| (below_bytes - needed_bytes.max(least_bytes)) as f64 / (below_bytes - least_bytes) as f64)?;
        let (needed, least, below) = (show_bytes(needed_bytes), show_bytes(least_bytes), show_bytes(below_bytes));
        let asks = format!("a limit of at least {needed}: it was between {least} and {below}");
        Some(Part { part, most_bytes: below_bytes - 1, asks })
    }
}

/// Says what the option requires besides its settings.
pub(crate) fn also(needs_limit: bool) -> Option<&'static str> {
    needs_limit.then_some(
        "garbage_collection_threshold does nothing without a limit: first call torch.cuda.set_per_process_memory_fraction with \
         the fraction of memory that the process may use, such as 1.0",
    )
}

/// The oldest release whose allocator a policy can replace (docs/pytorch-on-parkade.md).
const OLDEST: &Profile = &Profile::PYTORCH_2_8;

fn of_policy(report: &Advice, needs: &Needs) -> Option<Remedy> {
    let is_enough = needs.gets_past() == Some(true);
    let died = report.programs.iter().zip(&report.memories).find(|(program, _)| program.died());
    let part = died.filter(|_| !is_enough).and_then(|(_, memory)| Part::of(memory.range?, needs.smallest_bytes()?));
    if !is_enough && part.is_none() {
        return None;
    }
    let in_range = died.zip(part.as_ref()).zip(needs.smallest_bytes()).and_then(|(((program, _), part), smallest_bytes)| {
        program.completes(Means::Policy, smallest_bytes, Some(part.most_bytes))
    });
    let place = |profile: &Profile| RELEASES.iter().position(|release| release.profile == profile);
    let release = match place(report.profile) < place(OLDEST) {
        true => "it needs PyTorch 2.8 or later (the recording is from an older one) and a C++ compiler with CUDA's headers",
        false => "it needs PyTorch 2.8 or later and a C++ compiler with CUDA's headers",
    };
    let asks =
        ["call it before CUDA is first used", "only one thread at a time may use the GPU (serial=True promises that)", release];
    let limit = part.as_ref().map(|part| part.asks.clone());
    Some(Remedy {
        kind: Kind::Policy,
        line: needs.call(),
        outcome: needs.outcome(),
        completes: if is_enough { needs.completes() } else { in_range },
        enough_part: part.map_or(1.0, |part| part.part),
        less_bytes: None,
        asks: limit.into_iter().chain(asks.map(str::to_owned)).collect(),
    })
}

/// Returns the necessary reduction of the peak on each device that lacks memory: with the settings that need the least there, and with the
/// run's own.
fn of_program(report: &Advice, peaks: &[AtPeak]) -> Vec<Remedy> {
    let devices = report.programs.iter().zip(&report.own().devices);
    devices.filter_map(|(program, own)| on_device(report, (program, own), peaks)).collect()
}

fn on_device(report: &Advice, (program, own): (&Program, &DeviceOutcome), peaks: &[AtPeak]) -> Option<Remedy> {
    let available = own.available_bytes?;
    let lacking = |outcome: &DeviceOutcome| outcome.smallest_bytes.checked_sub(available).filter(|&bytes| bytes > 0);
    let own_less = lacking(own)?;
    let options = report.recommended().map_or_else(|| report.options.iter().collect(), |option| vec![option]);
    let outcomes = options.into_iter().filter_map(|option| Some((option, names::outcome(option, program.device)?)));
    let (option, best) = outcomes.min_by_key(|(_, outcome)| outcome.smallest_bytes)?;
    let on = if report.programs.len() > 1 { format!(" of device {}", program.device) } else { String::new() };
    let share = |less: u64, outcome: &DeviceOutcome| less as f64 / outcome.smallest_bytes.max(1) as f64 * 100.0;
    let (less, line) = match lacking(best).filter(|_| !option.is_own) {
        Some(less) => {
            let settings = names::the(&option.settings.text);
            let (bytes, own_bytes) = (show_bytes(less), show_bytes(own_less));
            let percent = share(less, best);
            (
                less,
                format!(
                    "reduce the peak{on} by {bytes} ({percent:.1} %) with {settings}, or by {own_bytes} with the run's own \
                     settings"
                ),
            )
        }
        None => {
            let (bytes, percent) = (show_bytes(own_less), share(own_less, own));
            (own_less, format!("reduce the peak{on} by {bytes} ({percent:.1} %) with the run's own settings"))
        }
    };
    let asks = peaks.iter().find(|peak| peak.device == program.device).map(AtPeak::asks).unwrap_or_default();
    let (kind, less_bytes) = (Kind::Program, Some(less));
    Some(Remedy { kind, line, outcome: Fit::Unknown, completes: None, enough_part: 1.0, less_bytes, asks })
}

impl AtPeak {
    /// Returns the largest holders, with ways to reduce them.
    fn asks(&self) -> Vec<String> {
        let live: u64 = self.kinds.iter().map(|used| used.held.bytes).sum();
        let named = self.kinds.iter().filter(|used| used.held.bytes >= live / NAMED_PART).take(NAMED);
        let ask = |used: &KindUse| format!("{}: {}", run_words::holder(used, live), less(used.kind));
        named.map(ask).collect()
    }
}

/// Returns ways to reduce the blocks of a kind.
const fn less(kind: BlockKind) -> &'static str {
    match kind {
        BlockKind::Parameters => "lower precision, or sharding the model across devices",
        BlockKind::Gradients => "zero_grad(set_to_none=True) before the forward pass, or sharding them across devices",
        BlockKind::OptimizerStates => {
            "an optimizer that keeps less for each parameter, lower precision, or sharding them across devices"
        }
        BlockKind::Activations => {
            "a smaller batch (accumulate gradients over several), shorter sequences or smaller images, or activation checkpointing"
        }
        BlockKind::Inputs => "a smaller batch",
        BlockKind::Temporaries => "a smaller batch, or the largest operation split into chunks, such as the loss",
        BlockKind::Workspaces => "a smaller CUBLAS_WORKSPACE_CONFIG",
        BlockKind::Caches => "fewer or shorter sequences at a time",
        BlockKind::Unknown => "parkade report shows where the largest of them are requested",
    }
}

/// Says how likely a similar run completes.
pub(super) fn likely(like: CompletedRuns) -> String {
    let CompletedRuns { completed, runs } = like;
    let tenths = (like.probability() * 10.0).round() as u32;
    match (completed, tenths) {
        (0, _) => format!("completed none of {runs} similar runs in tests"),
        (all, _) if all == runs => format!("completed all of {runs} similar runs in tests"),
        (_, 0) => format!("completed fewer than 1 in 10 similar runs in tests: {completed} of {runs}"),
        (_, 10) => format!("completed more than 9 in 10 similar runs in tests: {completed} of {runs}"),
        _ => format!("completed about {tenths} in 10 similar runs in tests: {completed} of {runs}"),
    }
}

impl Remedy {
    /// Says how likely it completes the program, with the runs behind that number. `None` if the program did not die.
    pub(super) fn likely(&self) -> Option<String> {
        let does = likely(self.completes?);
        let percent = self.enough_part * 100.0;
        let enough = if self.enough_part < 1.0 {
            format!(", if the limit is in the upper {percent:.0} % of its range")
        } else {
            String::new()
        };
        Some(does + &enough)
    }

    /// Returns its details: its probability and its requirements.
    pub(super) fn details(&self) -> Vec<String> {
        let asks = match self.kind {
            Kind::Program => self.asks.clone(),
            Kind::Settings | Kind::Policy if self.asks.is_empty() => Vec::new(),
            Kind::Settings | Kind::Policy => vec![format!("requires: {}", self.asks.join("; "))],
        };
        self.likely().into_iter().chain(asks).collect()
    }
}

view! {
    /// The same as a JSON object.
    pub(super) struct RemedyObject<'a>(remedy: &'a Remedy) {
        /// `settings`, `policy` (of parkade, in place of PyTorch's allocator) or `program`.
        kind: Word<Kind> = Word::of(&remedy.kind),
        /// What to paste into a shell or a program, or what to do.
        line: &'a str = &remedy.line,
        /// With this remedy: `fits`, `gets_past`, `does_not_fit` or `unknown` (also of a program that is changed).
        outcome: Word<Fit> = Word::of(&remedy.outcome),
        /// How likely it completes a program that died: one more than `completed` of two more than `runs`. Where the limit is
        /// known only roughly and what is assumed of it is too little, this is multiplied by the part of the range that is
        /// enough. Null if the program did not die, if the memory is not known, and for `program`.
        completes_probability: Option<f64> = remedy.completes_probability().map(|likely| (likely * 1000.0).round() / 1000.0),
        /// The [runs like it](predictions.md) that were cut where they died and continued with such a remedy.
        completes_base: Option<Base> = remedy.completes.map(Base::of),
        /// Of `program`: by how much the peak must be reduced.
        less_bytes: Option<u64> = remedy.less_bytes,
        /// What it asks for; of `program`, the kinds of blocks that hold the most and what makes them less.
        asks: &'a [String] = &remedy.asks,
    }
}

view! {
    /// The cut runs that are like this one.
    pub(super) struct Base(runs: CompletedRuns) {
        /// How many of the runs were completed.
        completed: u32 = runs.completed,
        /// How many runs there were.
        runs: u32 = runs.runs,
    }
}

parkade_recording::names! {
    Kind {
        Kind::Settings => "settings",
        Kind::Policy => "policy",
        Kind::Program => "program",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(kind: Kind, completed: u32, runs: u32) -> Remedy {
        Remedy {
            kind,
            line: String::new(),
            outcome: Fit::GetsPast,
            completes: Some(CompletedRuns { completed, runs }),
            enough_part: 1.0,
            less_bytes: None,
            asks: Vec::new(),
        }
    }

    #[test]
    fn a_policy_comes_first_only_where_it_is_likelier_by_more_than_ten_points() {
        let first = |settings, policy| {
            let all = in_order(Some(remedy(Kind::Settings, settings, 98)), Some(remedy(Kind::Policy, policy, 98)));
            all.iter().map(|remedy| remedy.kind).collect::<Vec<_>>()
        };
        assert_eq!(first(80, 90), [Kind::Settings, Kind::Policy], "0.81 and 0.91");
        assert_eq!(first(79, 90), [Kind::Policy, Kind::Settings], "0.80 and 0.91");
        assert_eq!(first(90, 10), [Kind::Settings, Kind::Policy]);
        assert_eq!(in_order(None, Some(remedy(Kind::Policy, 0, 9))).len(), 1);
    }

    #[test]
    fn where_a_limit_is_known_roughly_the_part_of_its_range_that_is_enough_counts() {
        let part = |needed| Part::of(MemoryRange { least_bytes: 100, below_bytes: 200 }, needed).map(|part| part.part);
        assert_eq!([90, 100, 150, 200].map(part), [Some(1.0), Some(1.0), Some(0.5), None]);
        assert!(Part::of(MemoryRange { least_bytes: 100, below_bytes: u64::MAX }, 150).is_none(), "nothing bounds it");
        let half = Remedy { enough_part: 0.5, ..remedy(Kind::Settings, 89, 98) };
        assert!((half.probability() - 0.45).abs() < 1e-9);
        let words = "completed about 9 in 10 similar runs in tests: 89 of 98, if the limit is in the upper 50 % of its range";
        assert_eq!(half.likely().as_deref(), Some(words));
    }

    #[test]
    fn how_likely_it_is_has_its_base() {
        let words = |completed, runs| remedy(Kind::Settings, completed, runs).likely().expect("words");
        assert_eq!(words(214, 268), "completed about 8 in 10 similar runs in tests: 214 of 268");
        assert_eq!(words(0, 16), "completed none of 16 similar runs in tests");
        assert_eq!(words(40, 40), "completed all of 40 similar runs in tests");
        assert_eq!(words(99, 100), "completed more than 9 in 10 similar runs in tests: 99 of 100");
        assert_eq!(words(1, 100), "completed fewer than 1 in 10 similar runs in tests: 1 of 100");
    }
}
