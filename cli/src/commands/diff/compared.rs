//! The compared devices of one recording or of two, the bounds that are checked on them, and the words for changes and origins that the
//! parts of an answer share.
//!
//! A bound is the value of `--fail-above`: a percentage or a size.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_analysis::StackNames;
use parkade_analysis::diff::{Bound, Check, Comparison, Origin, Part, Phase, Run, Side, SizeClass, Which, diff, show};
use parkade_recording::{DeviceRecording, Recording, StackId};
use parkade_replay::VerifyOptions;
use parkade_replay::recognition::Recognition;

use crate::commands::diagnose::parts;
use crate::terminal::args::{Print, RecordedLimit};
use crate::terminal::output::{self, list};
use crate::terminal::progress::WrongArgument;
use crate::terminal::recording;
use crate::terminal::runner::Outcome;
use crate::terminal::size::{self, show_bytes};

/// Compare two snapshots or two folders, or the ranks of one folder.
///
/// Says what grew and by how much. A and B may be recordings before and after a change, under two settings, or at two points of
/// one run. With one file, diff shows its peaks and checks them. Blocks are paired by the stack that allocated them; without
/// stacks, by size.
///
/// A and B may be folders of ranks: each rank of A is compared with the rank of the same number in B; the numbers come from the
/// file names. All ranks are shown in a table, the worst one in full, and every rank is checked. With one folder, the rank whose
/// memory differs most from that of the others is compared with a typical one.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade diff before.pickle after.pickle
  parkade diff before.pickle after.pickle --fail-above 2%
  parkade diff snapshot.pickle --fail-above 14GiB
  parkade diff snapshot.pickle --steps 10:500
  parkade diff before.pickle after.pickle --json
  parkade diff before/ after/ --fail-above 2%

Exit code: 0 compared and within the bounds, 1 a peak of reserved memory is above a bound of --fail-above, 2 could not run, 3 \
not known. The answer is not known if a bound depends on the peak of a run that died, because that peak covers only what came \
before, or if a rank is in only one folder. For several ranks, the worst code: 2, then 1, then 3.")]
pub(crate) struct Args {
    /// The first recording, or a folder of ranks.
    pub(super) a: PathBuf,
    /// The second recording or folder. Without it, a file is shown and checked alone, and the ranks of a folder are compared with
    /// each other.
    pub(super) b: Option<PathBuf>,
    /// Fail if the peak of reserved memory is above this: a percentage is growth from A to B, a size is the peak of B, or of the
    /// only file. Allocated memory is not checked: a memory limit applies to reserved memory. May be repeated.
    #[arg(long, value_name = "PERCENT|SIZE", value_parser = Above::parse)]
    pub(super) fail_above: Vec<Above>,
    /// Compare this step of A with this step of B, or two steps of one file. Steps are counted from 0, as parkade stats --steps
    /// shows them; if the file marks no steps, they are found by repetition.
    #[arg(long, value_name = "A:B", value_parser = steps)]
    pub(super) steps: Option<(usize, usize)>,
    /// Only this device.
    #[arg(long, value_name = "NUMBER")]
    pub(super) device: Option<u32>,
    #[command(flatten)]
    pub(super) recorded: RecordedLimit,
    /// Show every stack or size class that changed, and every step; for folders, every rank.
    #[arg(long, conflicts_with = "json")]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) print: Print,
}

/// Reads the numbers of two steps.
fn steps(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once(':').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?} is not two numbers of steps: write 10:500"))
}

/// A recording and what was read from it.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) recording: Recording,
    /// The names of its stacks.
    pub(super) names: StackNames,
    pub(super) own: VerifyOptions,
    /// The recorded run's limit, if garbage collection reveals it.
    pub(super) found_limit: Option<u64>,
    pub(super) made_by: Recognition,
}

/// A device, shown or compared.
pub(super) enum Shown {
    One(Box<Run>),
    Two(Box<Comparison>),
}

impl Shown {
    /// The runs, the first one first.
    pub(super) fn runs(&self) -> Vec<&Run> {
        match self {
            Shown::One(run) => vec![run],
            Shown::Two(comparison) => vec![&comparison.a, &comparison.b],
        }
    }

    /// The run to check.
    pub(super) fn last(&self) -> &Run {
        match self {
            Shown::One(run) => run,
            Shown::Two(comparison) => &comparison.b,
        }
    }
}

/// A bound, checked on a device.
pub(super) struct Checked {
    pub(super) device: u32,
    pub(super) text: String,
    pub(super) check: Check,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    Exceeded,
    /// Unknown, because this run died: its peak covers only the time before that.
    Died(Which),
}

impl Verdict {
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Verdict::Holds => Outcome::Good,
            Verdict::Exceeded => Outcome::CheckFailed,
            Verdict::Died(_) => Outcome::NotKnown,
        }
    }
}

/// What was compared.
pub(crate) struct Compared {
    pub(super) a: File,
    /// The second file, if there is one.
    pub(super) b: Option<File>,
    pub(super) devices: Vec<Shown>,
    pub(super) checks: Vec<Checked>,
    /// Notes on the files as a whole.
    pub(super) notes: Vec<String>,
}

impl Compared {
    /// The file of the second side.
    pub(super) fn second(&self) -> &File {
        self.b.as_ref().unwrap_or(&self.a)
    }

    /// Whether a peak is above a bound.
    pub(super) fn is_exceeded(&self) -> bool {
        self.checks.iter().any(|checked| checked.check.is_exceeded())
    }

    /// The result of a check. A run dies on all devices at once.
    pub(super) fn verdict(&self, checked: &Checked) -> Verdict {
        let died = |run: fn(&Shown) -> &Run| self.devices.iter().any(|shown| run(shown).ending.death().is_some());
        let is_growth = matches!(checked.check.bound, Bound::Growth { .. });
        match checked.check.is_exceeded() {
            // Growth beyond the peak of a run that died may not be growth.
            true if is_growth && died(|shown| shown.runs()[0]) => Verdict::Died(Which::A),
            true => Verdict::Exceeded,
            false if died(Shown::last) => Verdict::Died(Which::B),
            false => Verdict::Holds,
        }
    }
}

pub(super) fn compare(args: &Args) -> Result<Compared> {
    args.check_bounds()?;
    let read = |path: &Path| read(path, &args.recorded).with_context(|| path.display().to_string());
    let (a, b) = match &args.b {
        None => (read(&args.a)?, None),
        Some(b) => {
            let (a, b) = rayon::join(|| read(&args.a), || read(b));
            (a?, Some(b?))
        }
    };
    let chosen = |file: &'_ File| {
        let devices =
            recording::chosen(&file.recording.devices, args.device).map(|devices| devices.iter().map(|of| of.device).collect());
        let devices: Vec<u32> = devices.with_context(|| file.path.display().to_string())?;
        if devices.is_empty() {
            bail!("{}: the file has neither segments nor trace entries", file.path.display());
        }
        Ok(devices)
    };
    let (numbers_a, numbers_b) = (chosen(&a)?, chosen(b.as_ref().unwrap_or(&a))?);
    let (pairs, notes) = pairs(&numbers_a, &numbers_b);
    let mut compared = Compared { a, b, devices: Vec::new(), checks: Vec::new(), notes };
    for pair in pairs {
        let shown = device(args, &compared, pair)?;
        compared.checks.extend(checks(args, &shown)?);
        compared.devices.push(shown);
    }
    Ok(compared)
}

impl Args {
    /// Whether one part of one file is shown without a comparison.
    fn is_alone(&self) -> bool {
        self.b.is_none() && self.steps.is_none()
    }

    /// Refuses bounds that cannot be checked, before files are read, which may take long.
    pub(super) fn check_bounds(&self) -> Result<()> {
        match self.fail_above.iter().find(|above| above.needs_two()).filter(|_| self.is_alone()) {
            None => Ok(()),
            Some(above) => {
                let why = "is growth from one recording to another, and only one is given; give a size, such as 14GiB";
                Err(WrongArgument(format!("--fail-above {} {why}", above.text)).into())
            }
        }
    }
}

fn read(path: &Path, limit: &RecordedLimit) -> Result<File> {
    let recording = recording::read_run(path)?;
    let (own, found_limit, made_by) = limit.own_or_found(&recording)?;
    let names = StackNames::of(&recording.stacks);
    Ok(File { path: path.to_owned(), recording, names, own, found_limit, made_by })
}

fn device(args: &Args, compared: &Compared, (number_a, number_b): (u32, u32)) -> Result<Shown> {
    let part = |step: Option<usize>| step.map_or(Part::Whole, Part::Step);
    let a = side(&compared.a, number_a, part(args.steps.map(|steps| steps.0)))?;
    if args.is_alone() {
        let run = recording::of_device(show(a), number_a, compared.a.recording.devices.len());
        let run = run.with_context(|| compared.a.path.display().to_string())?;
        return Ok(Shown::One(Box::new(run)));
    }
    let b = side(compared.second(), number_b, part(args.steps.map(|steps| steps.1)))?;
    let comparison = diff(a, b).or_else(|(which, error)| {
        let (file, number) = if which == Which::A { (&compared.a, number_a) } else { (compared.second(), number_b) };
        let failed = recording::of_device(Err(error), number, file.recording.devices.len());
        failed.with_context(|| file.path.display().to_string())
    })?;
    Ok(Shown::Two(Box::new(comparison)))
}

fn side(file: &File, number: u32, part: Part) -> Result<Side<'_>> {
    let of_number = |device: &&DeviceRecording| device.device == number;
    let device = file.recording.devices.iter().find(of_number).with_context(|| format!("there is no device {number}"))?;
    Ok(Side { recording: &file.recording, device, own: &file.own, part })
}

/// Checks the bounds. A peak that the file does not contain cannot pass a check.
fn checks(args: &Args, shown: &Shown) -> Result<Vec<Checked>> {
    let run = shown.last();
    let before = match shown {
        Shown::One(_) => None,
        Shown::Two(comparison) => Some(comparison.a.peak_reserved.bytes),
    };
    let checked = args.fail_above.iter().filter_map(|above| {
        // A size bounds everything in the file; growth bounds only what both files have.
        let peak_bytes = if above.needs_two() { run.peak_reserved.bytes } else { run.whole_peak_reserved_bytes };
        let check = above.bound.check(before, peak_bytes)?;
        Some(Checked { device: run.device, text: above.text.clone(), check })
    });
    let checked: Vec<Checked> = checked.collect();
    let has_peak = shown.runs().iter().all(|run| run.entries > 0);
    if !has_peak && checked.iter().any(|checked| !checked.check.is_exceeded()) {
        bail!("without a trace in every file the peak is not known, so --fail-above cannot be checked: {}", recording::RECORD_IT);
    }
    Ok(checked)
}

/// The number of decimal places of a percentage that count.
const DIGITS: usize = 6;

/// A bound as it was given.
#[derive(Clone)]
pub(super) struct Above {
    text: String,
    bound: Bound,
}

impl Above {
    /// Reads `2%`, `0.5 %` or a size.
    ///
    /// # Errors
    /// A line that names the text and what is accepted, if the text is neither.
    fn parse(text: &str) -> Result<Above, String> {
        let bound = match text.trim().strip_suffix('%') {
            Some(percent) => {
                let micro_percent = micro_percent(percent.trim());
                let refused = || format!("{text:?} is not a percentage: write 2% or 0.5%");
                Bound::Growth { micro_percent: micro_percent.ok_or_else(refused)? }
            }
            None => {
                let refused = |error: String| match error.strip_suffix('?') {
                    Some(question) => format!("{question}, or a percentage (2%)?"),
                    None => format!("{error}, or a percentage (2%)"),
                };
                Bound::Peak { bytes: size::parse(text).map_err(refused)? }
            }
        };
        Ok(Above { text: text.trim().to_owned(), bound })
    }

    /// Whether the bound compares two runs.
    fn needs_two(&self) -> bool {
        matches!(self.bound, Bound::Growth { .. })
    }
}

/// A decimal number of percent in millionths; further digits are cut off.
fn micro_percent(number: &str) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(DIGITS).collect();
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    whole.checked_mul(1_000_000)?.checked_add(fraction.parse().ok()?)
}

/// The pairs of devices, and notes on devices that have no counterpart. Devices with the same number form a pair; if no number
/// is in both files, the devices are paired in order.
fn pairs(a: &[u32], b: &[u32]) -> (Vec<(u32, u32)>, Vec<String>) {
    let both: Vec<(u32, u32)> = a.iter().filter(|number| b.contains(number)).map(|&number| (number, number)).collect();
    if both.is_empty() {
        let pairs: Vec<(u32, u32)> = a.iter().copied().zip(b.iter().copied()).collect();
        let said = list(pairs.iter().map(|(a, b)| format!("{a} with {b}")));
        let note = format!(
            "The files are from different devices (A has {}, B has {}), so they are compared in order: {said}.",
            list(a),
            list(b)
        );
        return (pairs, vec![note]);
    }
    let alone = |name: &str, own: &[u32], other: &[u32]| {
        let alone: Vec<u32> = own.iter().filter(|number| !other.contains(number)).copied().collect();
        let devices = if alone.len() == 1 { "device" } else { "devices" };
        (!alone.is_empty()).then(|| format!("Only {name} has {devices} {}, so nothing is compared there.", list(alone)))
    };
    let notes = [alone("A", a, b), alone("B", b, a)].into_iter().flatten().collect();
    (both, notes)
}

/// The change from one value to the other as a share of the first; `None` if the first is 0.
pub(super) fn share(a: u64, b: u64) -> Option<f64> {
    (a > 0).then(|| (b as f64 - a as f64) / a as f64)
}

/// The same in percent, with a sign.
pub(super) fn percent(a: u64, b: u64) -> String {
    match share(a, b) {
        _ if a == b => String::new(),
        Some(share) if share >= 10.0 => format!("x {:.0}", share + 1.0),
        Some(share) => format!("{:+.1} %", share * 100.0),
        None => String::new(),
    }
}

/// A change in bytes with its sign.
pub(super) fn change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", show_bytes(b - a)),
        std::cmp::Ordering::Less => format!("-{}", show_bytes(a - b)),
    }
}

/// The end of the name of blocks that are grouped by size.
pub(super) const WITHOUT_STACK: &str = " without a stack";

/// The origin of blocks, on one line.
pub(super) fn origin(compared: &Compared, origin: Origin) -> String {
    match origin {
        Origin::Sizes(SizeClass { least_bytes: 0, below_bytes }) => {
            format!("blocks of less than {}{WITHOUT_STACK}", power(below_bytes))
        }
        Origin::Sizes(class) => format!("blocks of {} to {}{WITHOUT_STACK}", power(class.least_bytes), power(class.below_bytes)),
        Origin::Stack { a, b } => {
            let (file, stack) = match b {
                Some(b) => (compared.second(), b),
                None => (&compared.a, a.unwrap_or(StackId::NONE)),
            };
            let (recording, names) = (&file.recording, &file.names);
            let is_named = names.has_native(&recording.stacks, stack);
            let innermost = recording.stacks.frames(stack).next().filter(|_| !is_named).map(|frame| frame.name.as_ref());
            let line = parts::stack_line(names, recording, stack).unwrap_or_else(|| "an empty stack".to_owned());
            // It distinguishes the requests of one line of the program.
            match innermost.filter(|name| !line.starts_with(&format!("{name} "))) {
                Some(name) => format!("{} in {line}", output::one_line(&output::shorten(name, 60))),
                None => line,
            }
        }
    }
}

/// A power of two that is at least 1 MiB, in the largest unit in which it is whole.
fn power(bytes: u64) -> String {
    let units = [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30)];
    let unit = units.into_iter().find(|(_, bits)| bytes >> bits > 0);
    let (name, bits) = unit.unwrap_or(("MiB", 20));
    format!("{} {name}", bytes >> bits)
}

/// A phase in words. `has_others` means that scopes other than the optimizer's are annotated.
pub(super) fn phase_words(phase: &Phase, has_others: bool) -> String {
    match phase {
        Phase::Outside if has_others => "outside of these".to_owned(),
        Phase::Outside => "outside the optimizer".to_owned(),
        Phase::BeforeTrace => "before the first entry".to_owned(),
        Phase::ZeroGrad => "zero_grad".to_owned(),
        Phase::Scope(name) => output::one_line(&output::shorten(name, 60)),
        Phase::Forward | Phase::Backward | Phase::Optimizer => phase.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_sizes() {
        let read = |text| Above::parse(text).map(|above| above.bound).ok();
        let growth = |micro_percent| Some(Bound::Growth { micro_percent });
        assert_eq!(read("2%"), growth(2_000_000));
        assert_eq!(read(" 0.5 % "), growth(500_000));
        assert_eq!(read(".1234567%"), growth(123_456));
        assert_eq!(read("0%"), growth(0));
        assert_eq!(read("14GiB"), Some(Bound::Peak { bytes: 14 << 30 }));
        for text in ["%", "-2%", "two%", "1.2.3%", "1e3%", ".%", "99999999999999999999%", "", "x"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn devices_of_one_number_belong_together() {
        assert_eq!(pairs(&[0, 1], &[0, 1]), (vec![(0, 0), (1, 1)], vec![]));
        let (found, notes) = pairs(&[0, 1, 2], &[1, 7]);
        assert_eq!(found, [(1, 1)]);
        assert!(notes[0].contains("Only A has devices 0, 2,") && notes[1].contains("Only B has device 7,"), "{notes:?}");
        let (found, notes) = pairs(&[0], &[3, 4]);
        assert_eq!(found, [(0, 3)]);
        assert!(notes[0].contains("A has 0, B has 3, 4") && notes[0].contains("0 with 3"), "{notes:?}");
    }
}
