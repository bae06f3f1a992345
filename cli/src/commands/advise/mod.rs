//! `parkade advise`: under which settings would a recorded program have fitted, in how much memory, and at what cost?

mod held;
pub(crate) mod job;
mod job_json;
mod job_table;
pub(crate) mod job_words;
mod json;
mod otherwise;
mod table;
pub(crate) mod words;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::{ArgGroup, Parser};
use parkade::profile::Profile as Rules;
use parkade::settings::Settings;
use parkade_analysis::advise::{self, Advice, AdviseOptions, MemoryBudget, Progress};
use parkade_analysis::ranks::{RankAdvice, RankRun};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::Recognition;
use parkade_replay::{ReplaySettings, VerifyOptions};

use otherwise::Otherwise;

use crate::commands::beside::{self, Needs};
use crate::commands::policy_names;
use crate::each::{Finished, OnEach, Together};
use crate::terminal::args::{Files, Json, Profile, RecordedLimit};
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};
use crate::terminal::{progress, recording, release, size};
use parkade_policies::Named;

pub(crate) use crate::terminal::run_words::shows_no_limit;

/// Find the settings under which a recorded run fits, or what it lacks.
///
/// The recording is verified, then its requests are replayed under about eighty settings: PyTorch's defaults, expandable_segments, and
/// max_split_size_mb, garbage_collection_threshold and roundup_power2_divisions in many values and combinations, refined around the best.
/// Each shows whether every request is served, the peak of reserved memory, how often the cache had to be emptied, what the driver
/// calls cost, and the least memory with which it fits. Without --capacity or --limit, an out-of-memory error in the recording shows
/// roughly how much there was; if there is none, the settings that need the least memory are recommended.
///
/// If the recorded run died of an out-of-memory error, what it would have done next is not in the file. It is estimated from the steps
/// that came before: settings fit if they serve that too and nothing makes the estimate doubtful; otherwise they get past the failure.
///
/// Of several ranks, each is advised on alone, and then one setting is chosen for all of them: the one under which every rank completes
/// with the widest margin.
#[derive(Parser, Clone)]
#[command(group(ArgGroup::new("named").args(["settings", "policy"]).multiple(true)))]
#[command(after_help = "Examples:
  parkade advise snapshot.pickle --capacity 16GiB
  parkade advise snapshot.pickle --limit 12GiB --settings max_split_size_mb:200
  parkade advise snapshot.pickle --capacity 24GiB --settings expandable_segments:True --only --json
  parkade advise snapshot.pickle --capacity 16GiB --policy floating-handles
  parkade advise snapshots/ --capacity 80GiB

Exit code: 0 some settings fit, 1 none do, 2 could not run, 3 not known.
0 also where no memory is given or known: there is nothing to fit in.
Not known: the settings get past the failure of a run that died, but the rest is not in the file.
Or the limit was in a range of which only a part is enough, the file has no trace, or it lost the part that needed most.
Of several recordings the worst, each alone and with the one setting for all ranks: 2, then 1, then 3.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The one of them that is advised on.
    #[arg(skip)]
    file: PathBuf,
    /// The device memory available to the allocator (without the driver's own, about 500 MiB), treated as a limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction). If both are given, the smaller applies.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// Also try these settings, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated. '' means PyTorch's defaults.
    #[arg(long, value_name = "SETTINGS")]
    settings: Vec<String>,
    /// Try only the settings and policies that are given, and the recording's own settings.
    #[arg(long, requires = "named")]
    only: bool,
    /// Only this device of the recording [default: all, with one setting for all].
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Also say what a policy of parkade would need in place of PyTorch's allocator, as floating-handles; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = policy_names::policy)]
    policy: Vec<&'static Named>,
    #[command(flatten)]
    recorded: RecordedLimit,
    /// The PyTorch release whose allocator decisions are made, as 2.11 or 2.11.0 [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    /// Show all settings tried, not only the most useful.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    json: Json,
}

impl Args {
    /// What a page of several ranks asks: with so much memory, or what the files show.
    pub(crate) fn of_page(capacity: Option<u64>, recorded_limit: Option<u64>, settings: &[String], device: Option<u32>) -> Args {
        Args {
            files: Files { files: Vec::new() },
            file: PathBuf::new(),
            capacity,
            limit: None,
            settings: settings.to_vec(),
            only: false,
            policy: Vec::new(),
            device,
            recorded: RecordedLimit { recorded_limit },
            profile: None,
            all: false,
            json: Json { json: false },
        }
    }

    /// The settings to try, as a release reads them.
    fn given(&self, profile: &'static Rules) -> Result<Vec<Settings>> {
        self.settings.iter().map(|text| Ok(ReplaySettings::given_as(profile, text)?.settings)).collect()
    }

    /// The options that name what to try.
    fn named(&self) -> Vec<&'static str> {
        let all = [("--settings", !self.settings.is_empty()), ("--policy", !self.policy.is_empty())];
        all.into_iter().filter(|&(_, is_given)| is_given).map(|(option, _)| option).collect()
    }

    /// The same under the rules of a release, if one is given.
    pub(crate) fn under(self, profile: Option<Profile>) -> Args {
        Args { profile: profile.or(self.profile), ..self }
    }
}

/// The advice about a recording.
pub(crate) struct Advised {
    file: PathBuf,
    recording: Recording,
    own: ReplaySettings,
    /// The rules under which it was searched.
    profile: &'static Rules,
    made_by: Recognition,
    /// What other releases advise that explain the recording too.
    otherwise: Vec<Otherwise>,
    found: Found,
    /// What policies need.
    policies: Vec<Needs>,
    /// Options that name what to try, if the file has no requests to try it on.
    not_tried: Vec<&'static str>,
    seconds: f64,
}

enum Found {
    Report(Box<Advice>),
    /// The file has no trace, only what was held at its end.
    OnlySegments(MemoryBudget),
}

impl Advised {
    fn outcome(&self) -> Outcome {
        match &self.found {
            Found::Report(report) => match report.outcome {
                advise::Outcome::Fits => Outcome::Good,
                advise::Outcome::GetsPast => Outcome::NotKnown,
                advise::Outcome::DoesNotFit => Outcome::CheckFailed,
                // Without an amount of memory nothing was asked that could fail.
                advise::Outcome::Unknown if report.own().available_bytes.is_none() => Outcome::Good,
                advise::Outcome::Unknown => Outcome::NotKnown,
            },
            Found::OnlySegments(space) if held::fits(&self.recording, space) => Outcome::NotKnown,
            Found::OnlySegments(_) => Outcome::CheckFailed,
        }
    }
}

impl Command for Args {
    type Answer = Advised;

    fn compute(&self) -> Result<Advised> {
        let start = Instant::now();
        // Before the file is read, so that mistyped settings fail at once.
        let named = self.profile.map(Profile::rules);
        self.given(named.unwrap_or_else(release::newest))?;
        let mut recording = recording::read(&self.file)?;
        // The requests are read under the rules of the release that recorded them, and replayed under those chosen.
        let (verify, found) = self.recorded.own(&recording)?;
        let made_by = Recognition { decides_as: named, ..found };
        let own = verify.settings.clone();
        let profile = named.unwrap_or(own.profile);
        let given = self.given(profile)?;
        recording::chosen(&recording.devices, self.device)?;
        recording.devices.retain(|device| self.device.is_none_or(|number| number == device.device));
        let space = MemoryBudget { capacity_bytes: self.capacity, limit_bytes: self.limit };
        let traced = recording::traced(&recording);
        let (mut otherwise, mut needs) = (Vec::new(), Vec::new());
        let found = if !traced.is_empty() {
            let options = AdviseOptions { own: verify, profile, memory: space, given, only_given: self.only };
            let report = search(&traced, &options, self.json.json)?;
            needs = beside::needs(&self.policy, &report);
            if named.is_none() {
                otherwise = otherwise::find(&traced, &options, (&made_by, &report), self.json.json)?;
            }
            Found::Report(Box::new(report))
        } else if recording.devices.iter().any(|device| !device.segments.is_empty()) {
            Found::OnlySegments(space)
        } else {
            bail!("the file has no trace entries and no segments: {}", recording::RECORD_IT);
        };
        let not_tried = if matches!(found, Found::OnlySegments(_)) { self.named() } else { Vec::new() };
        let (file, seconds) = (self.file.clone(), start.elapsed().as_secs_f64());
        Ok(Advised { file, own, profile, made_by, otherwise, found, policies: needs, not_tried, seconds, recording })
    }

    fn outcome(&self, advised: &Advised) -> Outcome {
        advised.outcome()
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn text(&self, advised: &Advised, out: &mut dyn Write) -> Result<()> {
        Ok(match &advised.found {
            Found::Report(report) => table::print(out, advised, report, self.all),
            Found::OnlySegments(space) => held::print(out, advised, space),
        }?)
    }

    fn json(&self, advised: &Advised, lines: &mut Lines) -> Result<()> {
        match &advised.found {
            Found::Report(report) => lines.add(&json::Object::of(advised, report)),
            Found::OnlySegments(space) => lines.add(&held::Object::of(advised, space)),
        }
    }
}

/// What of a rank's advice is needed for the job; nothing if it has no trace.
type Kept = Option<(RankAdvice, Vec<Needs>)>;

impl OnEach for Args {
    type Kept = Kept;

    fn inputs(&self) -> &[PathBuf] {
        &self.files.files
    }

    fn on(&self, file: &Path, _: bool) -> Args {
        Args { file: file.to_owned(), ..self.clone() }
    }

    fn keep(&self, advised: &Advised) -> Kept {
        match &advised.found {
            Found::Report(report) => Some((RankAdvice::of(report), advised.policies.clone())),
            Found::OnlySegments(_) => None,
        }
    }

    fn finish(&self, together: Together<'_, Kept>, out: &mut dyn Write) -> Result<Finished> {
        job::advise(self, together, out)
    }

    fn rank_runs(&self, advised: &Advised) -> Result<Vec<RankRun>> {
        let limit_bytes = self.recorded.recorded_limit;
        let own = VerifyOptions { settings: advised.own.clone(), limit_bytes, stats_file: None };
        let of_device = |device| Ok(RankRun::of_recording(device, &own)?.made_by(&advised.made_by));
        advised.recording.devices.iter().map(of_device).collect()
    }
}

/// Searches the settings, with progress on standard error.
pub(crate) fn search(traced: &[&DeviceRecording], options: &AdviseOptions, is_hidden: bool) -> Result<Advice> {
    let reading = progress::entries(is_hidden);
    reading.set_length(recording::entries(traced));
    let trying = progress::of("settings", is_hidden);
    let report = advise::advise(traced, options, &|progress| match progress {
        Progress::Read { device, entries } => {
            let before: usize = traced[..device].iter().map(|device| device.trace.len()).sum();
            reading.set_position((before + entries) as u64);
        }
        Progress::Tried { options, of } => {
            reading.finish_and_clear();
            trying.set_length(of as u64);
            trying.set_position(options as u64);
        }
    });
    reading.finish_and_clear();
    trying.finish_and_clear();
    report.map_err(|(device, error)| if traced.len() > 1 { anyhow!("device {device}: {error}") } else { error.into() })
}
