//! Advice on a recording and on the ranks of a job: the settings with which each would have fitted, and one setting for all.
//!
//! The best settings of one rank are tried on the others. Files are read a second time only if settings are to be tried on them, so that
//! only a few files are in memory at a time.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{ArgGroup, Parser};
use parkade::profile::{Profile as Rules, Release};
use parkade::settings::Settings;
use parkade_analysis::StackNames;
use parkade_analysis::advise::{self, Advice, AdviseOptions, Held, MemoryBudget, Outcome as Fit, Progress};
use parkade_analysis::ranks::{JobAdvice, RankAdvice, one_setting, still_to_try};
use parkade_policies::Named;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Recognition, in_words};
use parkade_replay::{ReplaySettings, VerifyOptions};

use super::remedies::{self, AtPeak, Remedy};
use crate::commands::beside::{self, Needs, OnRanks};
use crate::each::Together;
use crate::recordings::{Inputs, each};
use crate::terminal::args::{self, Files, Print, Profile, RecordedLimit};
use crate::terminal::runner::Outcome;
use crate::terminal::surroundings::Start;
use crate::terminal::{output, progress, recording, size};

/// Find settings that make a run fit, from a snapshot or a folder.
///
/// The recording is verified, then its requests are replayed under about eighty settings: the default settings, expandable_segments, and
/// max_split_size_mb, garbage_collection_threshold and roundup_power2_divisions in many values and combinations, refined around the best.
/// For each, the table shows whether every request is served, the peak of reserved memory, how often the cache had to be emptied, the cost
/// of driver calls, and the smallest memory in which it fits. Without --capacity or --limit, an out-of-memory error in the recording shows
/// roughly how much memory there was; if there is none, no setting has to change, and the answer names those that need the least
/// memory.
///
/// If the recorded run died of an out-of-memory error, the rest of the run is not in the file and is estimated from the steps
/// before the error. Settings fit if they serve the rest too and nothing makes the estimate doubtful; if not, they only get
/// past the failure.
///
/// For several ranks, parkade advises on each one separately and then chooses one setting for all: the one with which every rank completes
/// with the widest margin.
#[derive(Parser, Clone)]
#[command(group(ArgGroup::new("named").args(["settings", "policy"]).multiple(true)))]
#[command(after_help = "Examples:
  parkade advise snapshot.pickle --capacity 16GiB
  parkade advise snapshot.pickle --limit 12GiB --settings max_split_size_mb:200
  parkade advise snapshot.pickle --capacity 24GiB --settings expandable_segments:True --only --json
  parkade advise snapshot.pickle --capacity 16GiB --policy pytorch-rescue:reach=free
  parkade advise snapshots/ --capacity 80GiB

Exit code: 0 some settings fit, 1 none do, 2 could not run, 3 not known.
The code is also 0 if no memory size is given or known, because then there is no limit to exceed.
Not known: the settings get past the failure that ended the run, but what would have followed is not in the file.
The code is also 3 if only part of the limit's possible range is enough, if the file has no trace, or if it lacks the part \
that needed the most.
For several recordings, the worst code among those for each recording and for one setting on all ranks: 2, then 1, then 3.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) files: Files,
    /// The recording to advise on.
    #[arg(skip)]
    pub(super) file: PathBuf,
    /// The device memory available to the allocator (excluding the driver's own, about 500 MiB), treated as a limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction). If both are given, the smaller applies.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) limit: Option<u64>,
    /// Also try these settings, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated. '' means the default settings.
    #[arg(long, value_name = "SETTINGS")]
    pub(super) settings: Vec<String>,
    /// Try only the given settings and policies, and the recording's own settings.
    #[arg(long, requires = "named")]
    pub(super) only: bool,
    /// Only this device of the recording [default: all, with one setting for all].
    #[arg(long, value_name = "N")]
    pub(super) device: Option<u32>,
    /// Also say what one of parkade's policies, such as pytorch-rescue, would need in place of PyTorch's allocator; may be
    /// repeated.
    #[arg(long, value_name = "NAME", value_parser = args::policy)]
    pub(super) policy: Vec<Named>,
    #[command(flatten)]
    pub(super) recorded: RecordedLimit,
    /// The PyTorch release whose allocator decides, such as 2.11 or 2.11.0 [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    pub(super) profile: Option<Profile>,
    #[command(flatten)]
    pub(super) print: Print,
}

impl Args {
    /// Returns the arguments for a page of several ranks: with this capacity, or with the memory that the files show.
    pub(crate) fn of_page(capacity: Option<u64>, recorded_limit: Option<u64>, settings: &[String], device: Option<u32>) -> Args {
        Args {
            files: Files { files: Vec::new(), all: false },
            file: PathBuf::new(),
            capacity,
            limit: None,
            settings: settings.to_vec(),
            only: false,
            policy: Vec::new(),
            device,
            recorded: RecordedLimit { recorded_limit },
            profile: None,
            print: Print::default(),
        }
    }

    /// Parses the given settings as a release does.
    fn given(&self, profile: &'static Rules) -> Result<Vec<Settings>> {
        self.settings.iter().map(|text| Ok(args::given_settings(profile, text)?.settings)).collect()
    }

    /// Returns the options that name something to try.
    fn named(&self) -> Vec<&'static str> {
        let all = [("--settings", !self.settings.is_empty()), ("--policy", !self.policy.is_empty())];
        all.into_iter().filter(|&(_, is_given)| is_given).map(|(option, _)| option).collect()
    }

    /// Sets the release, if one is given.
    pub(crate) fn under(self, profile: Option<Profile>) -> Args {
        Args { profile: profile.or(self.profile), ..self }
    }
}

/// The advice about a recording.
pub(crate) struct Advised {
    pub(super) file: PathBuf,
    pub(super) recording: Recording,
    /// The names of its stacks.
    pub(super) names: StackNames,
    pub(super) own: ReplaySettings,
    /// The rules under which it was searched.
    pub(super) profile: &'static Rules,
    pub(super) made_by: Recognition,
    /// The advice for other releases that explain the recording too.
    pub(super) otherwise: Vec<Otherwise>,
    pub(super) found: Found,
    /// The needs of policies.
    pub(super) policies: Vec<Needs>,
    /// The remedies, in the order in which to try them.
    pub(super) remedies: Vec<Remedy>,
    /// Options that name what to try, if the file has no requests to try it on.
    pub(super) not_tried: Vec<&'static str>,
    /// Whether only the given settings and policies were tried.
    pub(super) only: bool,
    pub(super) seconds: f64,
}

pub(super) enum Found {
    Report(Box<Advice>),
    /// The file has no trace, only the memory held at its end.
    OnlySegments(MemoryBudget),
}

impl Advised {
    pub(super) fn outcome(&self) -> Outcome {
        match &self.found {
            Found::Report(report) => match report.outcome {
                advise::Outcome::Fits => Outcome::Good,
                advise::Outcome::GetsPast => Outcome::NotKnown,
                advise::Outcome::DoesNotFit => Outcome::CheckFailed,
                // Without a memory size, nothing can fail.
                advise::Outcome::Unknown if report.own().available_bytes.is_none() => Outcome::Good,
                advise::Outcome::Unknown => Outcome::NotKnown,
            },
            Found::OnlySegments(space) if fits(&self.recording, space) => Outcome::NotKnown,
            Found::OnlySegments(_) => Outcome::CheckFailed,
        }
    }
}

impl Args {
    /// Reads the recording, verifies it and searches.
    pub(super) fn advised(&self) -> Result<Advised> {
        let start = Start::now();
        // Before the file is read, so that mistyped settings fail at once.
        let named = self.profile.map(Profile::rules);
        self.given(named.unwrap_or_else(recording::newest_release))?;
        let mut recording = recording::read_run(&self.file)?;
        let devices_seen = recording.devices.len();
        recording::remove_traces_without_requests(&mut recording);
        // The requests are read under the rules of the release that recorded them, and replayed under those chosen.
        let (verify, found) = self.recorded.own(&recording)?;
        if let Some(refuted) = found.refuted_limit.filter(|_| self.recorded.recorded_limit.is_some()) {
            bail!(
                "--recorded-limit {} contradicts the recording, because the run reserved {}: give the limit that the run had or leave the \
                 option out; --limit and --capacity set the memory to try",
                size::show_bytes(refuted.limit_bytes),
                size::show_bytes(refuted.reserved_bytes)
            );
        }
        let made_by = Recognition { decides_as: named, ..found };
        let own = verify.settings.clone();
        let profile = named.unwrap_or(own.profile);
        let given = self.given(profile)?;
        let chosen = recording::chosen(recording::telling(&recording.devices), self.device)?;
        let chosen: Vec<u32> = chosen.into_iter().map(|device| device.device).collect();
        recording.devices.retain(|device| chosen.contains(&device.device));
        let space = args::memory(self.capacity, self.limit, &recording);
        let traced = recording::traced(&recording);
        let (mut otherwise, mut needs, mut remedies) = (Vec::new(), Vec::new(), Vec::new());
        let found = if !traced.is_empty() {
            let options = AdviseOptions { own: verify, profile, memory: space, given, only_given: self.only, devices_seen };
            let report = search(&traced, &options, self.print.json)?;
            needs = beside::needs(&self.policy, &report);
            remedies = self.remedies(&recording, &report, (&options.own, &needs));
            if named.is_none() {
                otherwise = find_otherwise(&traced, &options, (&made_by, &report), self.print.json)?;
            }
            Found::Report(Box::new(report))
        } else if recording.devices.iter().any(|device| !device.segments.is_empty()) {
            Found::OnlySegments(space)
        } else {
            bail!("the file has no trace entries and no segments: {}", recording::RECORD_IT);
        };
        let not_tried = if matches!(found, Found::OnlySegments(_)) { self.named() } else { Vec::new() };
        let (file, seconds) = (self.file.clone(), start.elapsed().as_secs_f64());
        let names = StackNames::of(&recording.stacks);
        Ok(Advised {
            file,
            own,
            profile,
            made_by,
            otherwise,
            found,
            policies: needs,
            remedies,
            not_tried,
            only: self.only,
            seconds,
            recording,
            names,
        })
    }
}

impl Args {
    /// Returns the remedies for a program that does not fit. `own` says how the run was recorded; `needs` are the needs of the requested
    /// policies.
    fn remedies(&self, recording: &Recording, report: &Advice, (own, needs): (&VerifyOptions, &[Needs])) -> Vec<Remedy> {
        if report.own().fits() {
            return Vec::new();
        }
        let policy = if self.only { needs.first().cloned() } else { beside::own_policy(report, needs) };
        remedies::remedies(report, policy.as_ref(), &AtPeak::of_each(recording, report, own))
    }
}

/// The part of a rank's advice that the job needs; `None` if the rank has no trace.
pub(super) type Kept = Option<(RankAdvice, Vec<Needs>)>;

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

/// Different advice for other releases that explain the recording too.
pub(super) struct Otherwise {
    pub(super) releases: Vec<&'static Release>,
    pub(super) outcome: Fit,
    pub(super) line: Option<String>,
}

/// Searches under the rules of each release that explains the recording, except the first, and keeps advice that differs.
fn find_otherwise(
    traced: &[&DeviceRecording],
    options: &AdviseOptions,
    (made_by, advice): (&Recognition, &Advice),
    is_hidden: bool,
) -> Result<Vec<Otherwise>> {
    let mut found: Vec<Otherwise> = Vec::new();
    for profile in made_by.rules().into_iter().skip(1) {
        let mut settings = options.own.settings.clone();
        settings.profile = profile;
        let own = VerifyOptions { settings, ..options.own.clone() };
        let other = search(traced, &AdviseOptions { own, profile, given: options.given.clone(), ..*options }, is_hidden)?;
        if line_of(&other) != line_of(advice) || other.outcome != advice.outcome {
            let (releases, outcome) = (made_by.with_rules(profile), other.outcome);
            found.push(Otherwise { releases, outcome, line: line_of(&other).map(str::to_owned) });
        }
    }
    Ok(found)
}

fn line_of(advice: &Advice) -> Option<&str> {
    advice.recommendation.as_ref().map(|recommendation| recommendation.line.as_str())
}

impl Otherwise {
    pub(super) fn words(&self) -> String {
        let says = match &self.line {
            Some(line) => format!("recommends {line}"),
            None => "recommends nothing".to_owned(),
        };
        let outcome = self.outcome.name().replace('_', " ");
        format!("the run may also be from PyTorch {}; for that release, parkade {says} ({outcome})", in_words(&self.releases))
    }
}

pub(super) fn available(space: &MemoryBudget) -> Option<u64> {
    space.capacity_bytes.into_iter().chain(space.limit_bytes).min()
}

/// Returns whether the live memory of every device fits; nothing more is known.
pub(super) fn fits(recording: &Recording, space: &MemoryBudget) -> bool {
    let most = recording.devices.iter().map(|device| Held::at_end(device).live_bytes).max().unwrap_or(0);
    available(space).is_none_or(|available| most <= available)
}

/// One rank's advice.
pub(super) struct Rank {
    pub(super) number: u64,
    pub(super) file: PathBuf,
    pub(super) advice: RankAdvice,
}

/// The ranks, in their order, and one setting for all of them.
pub(crate) struct Job {
    pub(super) ranks: Vec<Rank>,
    pub(super) advice: JobAdvice,
    /// The results of the named policies.
    pub(super) policies: Vec<OnRanks>,
    /// The number of ranks that could not be read.
    pub(super) unread: usize,
    /// Whether they are recordings of more than one program.
    pub(super) are_of_several_programs: bool,
    /// A sentence on the rank that differs most from the others.
    pub(super) odd: Option<String>,
}

impl Job {
    /// Returns the job of these ranks, each with the index of its file; `None` if they are not ranks or there is only one. Ranks without a
    /// trace have no settings to compare.
    pub(super) fn of<K>(args: &Args, together: &Together<'_, K>, advised: Vec<(usize, RankAdvice)>) -> Result<Option<Job>> {
        let rank = |(place, advice): (usize, RankAdvice)| {
            let (number, file) = (*together.numbers.of_files.get(place)?, together.files.get(place)?.to_path_buf());
            Some(Rank { number, file, advice })
        };
        let mut ranks: Vec<Rank> = advised.into_iter().filter_map(rank).collect();
        if !together.are_ranks || ranks.len() < 2 {
            return Ok(None);
        }
        ranks.sort_by_key(|rank| rank.number);
        try_the_others(args, &mut ranks)?;
        let all: Vec<RankAdvice> = ranks.iter().map(|rank| rank.advice.clone()).collect();
        let are_of_several_programs = together.ranks.are_of_several_programs();
        let unread = together.failures.len();
        let odd = together.ranks.odd_one();
        Ok(one_setting(&all).map(|advice| Job { ranks, advice, policies: Vec::new(), unread, are_of_several_programs, odd }))
    }

    /// Does the same for ranks of which only some have advice. Files that failed are left out, because their errors have been reported.
    pub(crate) fn of_files<K>(args: &Args, together: &Together<'_, K>, known: Vec<(PathBuf, RankAdvice)>) -> Result<Option<Job>> {
        if !together.are_ranks {
            return Ok(None);
        }
        let has_failed = |path: &Path| together.failures.iter().any(|(failed, _)| *failed == path);
        let (mut advised, mut places, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for (place, &path) in together.files.iter().enumerate().filter(|(_, path)| !has_failed(path)) {
            match known.iter().find(|(known, _)| known == path) {
                Some((_, advice)) => advised.push((place, advice.clone())),
                None => {
                    places.push(place);
                    paths.push(path.to_path_buf());
                }
            }
        }
        let work = |path: &Path| Ok(Args { file: path.to_owned(), ..args.clone() }.advised()?.found);
        each(&Inputs::of(&paths), args.print.json, work, |place, found| {
            if let Ok(Found::Report(report)) = found {
                advised.push((places[place], RankAdvice::of(&report)));
            }
            Ok(())
        })?;
        Job::of(args, together, advised)
    }
}

/// Tries the useful settings of each rank on the others.
fn try_the_others(args: &Args, ranks: &mut [Rank]) -> Result<()> {
    let all: Vec<RankAdvice> = ranks.iter().map(|rank| rank.advice.clone()).collect();
    let to_try = still_to_try(&all);
    let missing: Vec<(usize, &[String])> =
        to_try.iter().enumerate().filter(|(_, settings)| !settings.is_empty()).map(|(place, all)| (place, &all[..])).collect();
    let paths: Vec<PathBuf> = missing.iter().map(|&(place, _)| ranks[place].file.clone()).collect();
    let work = |path: &Path| {
        let settings = missing.iter().find(|&&(place, _)| ranks[place].file == path).map_or(&[][..], |&(_, settings)| settings);
        let again = Args { file: path.to_owned(), settings: settings.to_vec(), policy: Vec::new(), only: true, ..args.clone() };
        Ok(again.advised()?.found)
    };
    let mut found = Vec::new();
    each(&Inputs::of(&paths), args.print.json, work, |place, result| {
        match result {
            Ok(Found::Report(later)) => found.push((missing[place].0, later)),
            Ok(Found::OnlySegments(_)) => {}
            Err(error) => {
                output::complain(&format!("{}: not every setting could be tried on it: {error:#}", paths[place].display()))
            }
        }
        Ok(())
    })?;
    found.iter().for_each(|(place, later)| ranks[*place].advice.add(later));
    Ok(())
}

impl Job {
    /// Returns the worst outcome of the ranks with the one setting.
    pub(super) fn outcome(&self) -> Outcome {
        let knows_memory = self.advice.ranks.iter().any(|rank| rank.available_bytes.is_some());
        let of = |fit: Fit| match fit {
            Fit::Fits => Outcome::Good,
            Fit::DoesNotFit => Outcome::CheckFailed,
            // Without a memory size, nothing can fail.
            Fit::Unknown if !knows_memory => Outcome::Good,
            Fit::GetsPast | Fit::Unknown => Outcome::NotKnown,
        };
        self.advice.ranks.iter().map(|rank| of(rank.outcome)).fold(Outcome::Good, Outcome::worse)
    }

    /// Returns whether no rank met a limit, so that none needs other settings.
    pub(super) fn is_at_ease(&self) -> bool {
        self.advice.serves_all && self.advice.ranks.iter().all(|rank| rank.available_bytes.is_none())
    }

    /// Returns the worst outcome, as JSON names it.
    pub(super) fn fit(&self) -> Fit {
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast];
        let is_some = |fit: &Fit| self.advice.ranks.iter().any(|rank| rank.outcome == *fit);
        order.into_iter().find(is_some).unwrap_or(Fit::Fits)
    }
}
