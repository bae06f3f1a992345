//! `parkade diagnose` explains why a program was out of memory, from a snapshot or from the message alone.

mod diagnosed;
mod json;
mod message;
pub(crate) mod parts;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_analysis::StackNames;
use parkade_analysis::advise::MemoryBudget;
use parkade_analysis::diagnose::{DiagnoseOptions, Diagnosis, diagnose_device};
use parkade_analysis::holders::{Holders, Kind};
use parkade_analysis::ranks::RankRun;
use parkade_analysis::timeline::Timeline;
use parkade_recording::Recording;
use parkade_recording::message::MessageLog;
use parkade_replay::recognition::Asked;
use parkade_replay::{Requests, VerifyOptions};

use self::diagnosed::{Diagnosed, refuting_bytes};
use crate::each::OnEach;
use crate::recordings::Inputs;
use crate::terminal::answer::Answer;
use crate::terminal::args::{self, Print, Profile};
use crate::terminal::json_struct::sections;
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};
use crate::terminal::{output, progress, recording, run_words, size, surroundings};

/// The number of fences that JSON lists; the text shows fewer.
const FENCES: usize = 20;

/// Explain why memory ran out, from a log, a snapshot or a folder.
///
/// Looks at the first out-of-memory error in a PyTorch memory snapshot. Every reserved byte is live, lost to rounding, or
/// stranded for exactly one cause. Without a failure it looks at the peak of reserved memory and explains why more was reserved
/// than allocated. The heap comes from a replay, which is first verified against the recording.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade diagnose snapshot.pickle --limit 16GiB
  parkade diagnose snapshot.pickle --entry 7268 --json
  parkade diagnose snapshots/ --limit 16GiB
  parkade diagnose --message 'CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; ...'
  parkade diagnose train.log

Exit code: 0 diagnosed, 2 could not run, 3 not known, because the message does not show the cause.")]
pub(crate) struct Args {
    /// The recordings, folders of them, or logs with out-of-memory messages. Numbered files, such as rank0.pickle and rank1.pickle, and the files of a folder are
    /// also compared as ranks of one job.
    #[arg(required_unless_present = "message", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// For ranks, show the answer about each of them, not only the comparison.
    #[arg(long)]
    all: bool,
    /// The recording to diagnose.
    #[arg(skip)]
    file: Option<PathBuf>,
    /// An out-of-memory message of any PyTorch version, or a log of any size with messages from several ranks, or the name of a
    /// file that contains either; - reads standard input. The message of the rank that failed first is explained, if the log
    /// shows which; if not, the first message.
    #[arg(long, value_name = "TEXT")]
    #[arg(conflicts_with_all = ["files", "entry", "device", "limit", "capacity", "settings", "profile"])]
    message: Option<String>,
    /// The memory limit of the run (set_per_process_memory_fraction), which the recording does not contain unless parkade run wrote it.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The device memory available to the allocator (excluding about 500 MiB for the driver).
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// The entry of the trace to look at, counted from 0.
    #[arg(long, value_name = "N")]
    entry: Option<usize>,
    /// The device to look at [default: all].
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// The settings of the run, if the recording does not state them or states them wrongly.
    #[arg(long)]
    settings: Option<String>,
    /// The PyTorch release that made the recording [default: each release that its contents allow is tried].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    #[command(flatten)]
    print: Print,
}

/// The object of a diagnosis: a recording, or messages alone.
pub(crate) enum Found {
    Recording(Box<Diagnosed>),
    Message(Box<message::LogDiagnosis>),
}

sections! {
    "diagnose": json::Object;
    "diagnose --message": message::Object;
}

impl Command for Args {
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        match (&self.message, &self.file) {
            (Some(text), _) => diagnose_text(text),
            (None, Some(file)) => match diagnose(self, file) {
                Ok(diagnosed) => Ok(Found::Recording(Box::new(diagnosed))),
                Err(error) if error.is::<recording::IsLog>() => diagnose_log(self, file),
                Err(error) => Err(error),
            }
            .with_context(|| file.display().to_string()),
            (None, None) => bail!("a recording or --message is needed"),
        }
    }

    fn outcome(&self, found: &Found) -> Outcome {
        match found {
            Found::Recording(_) => Outcome::Good,
            Found::Message(diagnosis) => diagnosis.outcome(),
        }
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Named(self.file.as_deref())
    }

    fn answer(&self, found: &Found) -> Answer {
        match found {
            Found::Recording(diagnosed) => diagnosed::answer(diagnosed, self.all),
            Found::Message(diagnosis) => message::answer(diagnosis),
        }
    }

    fn json(&self, found: &Found, lines: &mut Lines) -> Result<()> {
        match found {
            Found::Recording(diagnosed) => lines.add(&json::Object::of(diagnosed)),
            Found::Message(diagnosis) => lines.add(&message::Object::of(diagnosis)),
        }
    }
}

impl OnEach for Args {
    type Kept = ();

    fn inputs(&self) -> &[PathBuf] {
        &self.files
    }

    fn on(&self, file: &Path, _: bool) -> Args {
        Args { file: Some(file.to_owned()), ..self.clone() }
    }

    fn check_several(&self, inputs: &Inputs) -> Result<()> {
        let is_for_people = self.print.form() != Form::Json;
        if let Some(entry) = self.entry.filter(|_| is_for_people && !self.all && inputs.ranks().is_some()) {
            bail!(
                "--entry {entry} chooses an entry of one trace, so it does not apply to a comparison of ranks: give one file, \
                 or --all to diagnose that entry on each rank"
            );
        }
        Ok(())
    }

    fn shows_each_rank(&self) -> bool {
        self.all
    }

    fn keep(&self, _: &Found) {}

    fn rank_runs(&self, found: &Found) -> Result<Vec<RankRun>> {
        let Found::Recording(diagnosed) = found else { return Ok(Vec::new()) };
        let Diagnosed { recording, settings, limit, made_by, .. } = &**diagnosed;
        let own = VerifyOptions { settings: settings.clone(), limit_bytes: *limit, stats_file: None };
        let chosen = recording::chosen(&recording.devices, self.device)?;
        chosen.into_iter().map(|device| Ok(RankRun::of_recording(device, &own)?.made_by(made_by))).collect()
    }
}

impl Args {
    /// The first option that only a snapshot can answer.
    fn of_a_snapshot(&self) -> Option<&'static str> {
        let given = [
            ("--entry", self.entry.is_some()),
            ("--device", self.device.is_some()),
            ("--limit", self.limit.is_some()),
            ("--capacity", self.capacity.is_some()),
            ("--settings", self.settings.is_some()),
            ("--profile", self.profile.is_some()),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

fn diagnose_log(args: &Args, file: &Path) -> Result<Found> {
    if let Some(option) = args.of_a_snapshot() {
        bail!("this is a log, and {option} applies only to a snapshot");
    }
    Ok(Found::Message(Box::new(message::diagnose(MessageLog::read_from(surroundings::open(file)?.0)?)?)))
}

fn diagnose_text(text: &str) -> Result<Found> {
    let log = match text {
        "-" => MessageLog::read_from(std::io::stdin().lock()).context("standard input")?,
        file if surroundings::exists(Path::new(file)) => {
            let opened = surroundings::open(Path::new(file));
            opened.and_then(|(log, _)| MessageLog::read_from(log)).with_context(|| file.to_owned())?
        }
        text => MessageLog::read(text),
    };
    if log.explained().is_none()
        && text != "-"
        && !text.is_empty()
        && !text.contains(char::is_whitespace)
        && !surroundings::exists(Path::new(text))
    {
        bail!("{} is not an out-of-memory message, and there is no such file", output::shorten(text, 200));
    }
    Ok(Found::Message(Box::new(message::diagnose(log)?)))
}

fn diagnose(args: &Args, file: &Path) -> Result<Diagnosed> {
    // Parsed before the file is read, so that mistyped settings fail immediately.
    let named = args.profile.map(Profile::rules);
    let early = |text| args::given_settings(named.unwrap_or_else(recording::newest_release), text);
    args.settings.as_deref().map(early).transpose()?;
    let mut recording = recording::read_run(file)?;
    if args.entry.is_none() {
        recording::remove_lone_entries(&mut recording);
    }
    let MemoryBudget { capacity_bytes, limit_bytes } = args::memory(args.capacity, args.limit, &recording);
    let asked = Asked { profile: named, settings: args.settings.as_deref(), limit_bytes, ..Asked::default() };
    let made_by = recording::made_by(&recording, &asked)?;
    let settings = made_by.settings.clone();
    let own = VerifyOptions { settings: settings.clone(), limit_bytes, stats_file: None };
    let options = DiagnoseOptions { own, capacity_bytes, entry: args.entry, fences: FENCES };
    let without = DiagnoseOptions { own: VerifyOptions { limit_bytes: None, ..options.own.clone() }, ..options.clone() };
    let chosen = recording::chosen(recording::telling(&recording.devices), args.device)?;
    if chosen.is_empty() {
        bail!("the file has neither trace entries nor segments: nothing to diagnose");
    }
    if args.entry.is_some() && chosen.len() > 1 {
        let numbers = output::list(chosen.iter().map(|device| device.device));
        bail!("--entry needs a single device, but the file has {numbers}: choose one with --device");
    }
    let bar = progress::entries(args.print.json);
    bar.set_length(recording::entries(&chosen));
    let (mut devices, mut done) = (Vec::new(), 0);
    for device in &chosen {
        let mut diagnosis = diagnose_device(device, &options, &mut |entries| bar.set_position((done + entries) as u64));
        let is_refuted = |diagnosis: &Diagnosis| refuting_bytes(limit_bytes, diagnosis).is_some();
        if diagnosis.as_ref().is_ok_and(is_refuted) {
            // Under a limit that the run did not have, the replay shows a run that never happened.
            diagnosis = diagnose_device(device, &without, &mut |entries| bar.set_position((done + entries) as u64));
        }
        done += device.trace.len();
        devices.push(recording::of_device(diagnosis, device.device, chosen.len())?);
    }
    bar.finish_and_clear();
    let holders =
        devices.iter().filter_map(|diagnosis| Some((diagnosis.device, holder(&recording, diagnosis, &without.own)?))).collect();
    let names = StackNames::of(&recording.stacks);
    Ok(Diagnosed { file: file.to_owned(), recording, names, made_by, settings, limit: limit_bytes, devices, holders })
}

/// The kind of blocks that holds the most at a failure that no setting can prevent.
fn holder(recording: &Recording, diagnosis: &Diagnosis, own: &VerifyOptions) -> Option<String> {
    let device = recording.devices.iter().find(|device| device.device == diagnosis.device)?;
    let entry = diagnosis.entry.filter(|_| diagnosed::is_beyond_settings(diagnosis))?;
    let requests = Requests::of_recording(device, own, &mut |_| ()).ok()?;
    let Timeline { log, .. } = Timeline::of_device(device, own, &requests).ok()?;
    let holders = Holders::of(&log, device, &recording.annotations, &recording.stacks);
    let kinds = holders.at(&log, entry as u32);
    let live_bytes = kinds.iter().map(|used| used.held.bytes).sum();
    Some(run_words::holder(kinds.first().filter(|used| used.kind != Kind::Unknown)?, live_bytes))
}
