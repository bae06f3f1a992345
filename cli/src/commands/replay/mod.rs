//! `parkade replay`: what would a recorded program have needed under other settings or a policy of parkade, and would it have fitted?

mod json;
mod judged;
mod policy;
mod policy_table;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade_analysis::advise;
use parkade_analysis::ranks::{Failure, RankRun};
use parkade_recording::Recording;
use parkade_replay::recognition::Recognition;
use parkade_replay::{Outlook, OutlookOptions, ReplaySettings, TimingsThatFit, replay_device, timings_that_fit};

use self::judged::{Judged, Known};
use self::policy::UnderPolicy;
use crate::commands::policy_names;
use crate::each::OnEach;
use crate::recordings::Inputs;
use crate::terminal::args::{self, Files, Json};
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};
use crate::terminal::{progress, recording, release};

/// Replay a recorded program's requests under other settings or a policy of parkade, with another limit, or on a smaller device.
///
/// Every decision of PyTorch's allocator is made again on a simulated device. Segments lie where the recorded process's driver would
/// have put them, as far as the recording shows. Calls of empty_cache are found in the trace. An out-of-memory error does not end
/// the replay, as some programs catch it and continue. If the recording lost its beginning, blocks in use before its first entry are
/// requested first.
///
/// If the recorded run died of an out-of-memory error, what it would have done next is not in the file. It is estimated from the steps
/// that came before, as by parkade advise; and without --limit and --capacity the memory is assumed that advise assumes.
///
/// With --policy a policy of parkade serves the same requests, in place of PyTorch's allocator and its settings, and segments lie where
/// NVIDIA's driver was seen to place them in any process. A request that the policy refuses ends the replay. Nothing is estimated then of
/// the rest of a run that died, so it gets past the error at best.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade replay snapshot.pickle --settings expandable_segments:True
  parkade replay snapshot.pickle --settings max_split_size_mb:128,garbage_collection_threshold:0.7 --limit 16GiB
  parkade replay snapshot.pickle --settings '' --capacity 24GiB --json
  parkade replay snapshot.pickle --policy floating-handles --limit 16GiB
  parkade replay snapshot.pickle --policy floating-handles:handle=32MiB
  parkade replay snapshots/ --settings expandable_segments:True --limit 16GiB

Exit code: 0 it fits, or no limit is known and nothing was refused; 1 it does not fit; 2 could not run; 3 not known: it gets past the \
failure of a run that died, or the file lost the part that needed most. Of several recordings the worst: 2, then 1, then 3.")]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// The one of them that is replayed.
    #[arg(skip)]
    file: PathBuf,
    #[command(flatten)]
    replay: args::Replay,
    /// Serve the requests under a policy of parkade, as breaking-handles or floating-handles, in place of PyTorch's allocator. Not with
    /// --settings and --profile, which are PyTorch's. parkade sweep --list names all.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    #[command(flatten)]
    json: Json,
}

/// A replayed recording.
pub enum Replayed {
    /// Under settings of PyTorch's allocator.
    Settings(Box<UnderSettings>),
    /// Under a policy of parkade.
    Policy(Box<UnderPolicy>),
}

/// A recording that was replayed under settings.
pub struct UnderSettings {
    settings: ReplaySettings,
    /// The limit of each device.
    limits: Vec<Option<u64>>,
    /// They were not given, but assumed.
    is_assumed: bool,
    /// The recorded run's own limit, if garbage collection shows it.
    found_limit: Option<u64>,
    recording: Recording,
    own: ReplaySettings,
    /// The rules under which it was replayed.
    profile: &'static Rules,
    made_by: Recognition,
    devices: Vec<Outlook>,
    /// With how many other timings each device fits.
    timings: Vec<Option<TimingsThatFit>>,
    answer: Judged,
    seconds: f64,
}

impl UnderSettings {
    /// Whether the memory is known, given or assumed.
    fn is_limited(&self, args: &Args) -> bool {
        self.limits.iter().any(Option::is_some) || args.replay.capacity.is_some()
    }

    /// The limit of all devices, if it is one.
    fn limit(&self) -> Option<u64> {
        let first = *self.limits.first()?;
        first.filter(|_| self.limits.iter().all(|limit| *limit == first))
    }

    fn fits(&self) -> bool {
        (0..self.devices.len()).all(|place| self.answer.fits(place))
    }
}

impl Args {
    /// Refuses what a policy has no use for.
    fn check(&self) -> Result<()> {
        if self.policy.is_none() {
            return Ok(());
        }
        if self.replay.settings.is_some() {
            bail!(
                "--settings and --policy exclude each other: settings are those of PyTorch's allocator, in whose place the policy is; \
                 leave one out"
            );
        }
        if self.replay.profile.is_some() {
            bail!(
                "--profile and --policy exclude each other: a profile is a release of PyTorch's allocator, in whose place the policy is; \
                 leave one out"
            );
        }
        Ok(())
    }

    fn under_settings(&self) -> Result<UnderSettings> {
        let start = Instant::now();
        let args = &self.replay;
        // Before the file is read, so that mistyped settings fail at once.
        args.given(release::newest())?;
        let recording = recording::read(&self.file)?;
        // The requests are read under the rules of the release that recorded them, and replayed under those chosen.
        let (own, found_limit, made_by) = args.own_or_found(&recording)?;
        let recorded = own.settings.clone();
        let profile = args.rules(recorded.profile);
        let settings = args.given(recorded.profile)?.unwrap_or_else(|| recorded.clone());
        let limit_bytes = args.limit(settings.settings.per_process_memory_fraction, recorded.profile)?;
        let options =
            OutlookOptions { own, profile, settings: settings.settings.clone(), limit_bytes, capacity_bytes: args.capacity };
        let traced = recording::traced(&recording);
        if traced.is_empty() {
            bail!("the file has no trace entries to replay: {}", recording::RECORD_IT);
        }
        let bar = progress::entries(self.json.json);
        bar.set_length(recording::entries(&traced));
        let known = Known::of(&traced, &options)?;
        let (limits, is_assumed) = (known.limits.clone(), known.is_assumed);
        let (mut devices, mut timings, mut done) = (Vec::new(), Vec::new(), 0);
        for (device, &limit_bytes) in traced.iter().zip(&limits) {
            let options = OutlookOptions { limit_bytes, ..options.clone() };
            let outlook = replay_device(device, &options, &mut |entries| bar.set_position((done + entries) as u64));
            let outlook = recording::of_device(outlook, device.device, traced.len())?;
            done += device.trace.len();
            timings.push(timings_that_fit(device, &outlook, &options));
            devices.push(outlook);
        }
        bar.finish_and_clear();
        let answer = known.judge(&traced, &mut devices, &options);
        let seconds = start.elapsed().as_secs_f64();
        Ok(UnderSettings {
            answer,
            settings,
            limits,
            is_assumed,
            found_limit,
            own: recorded,
            profile,
            made_by,
            recording,
            devices,
            timings,
            seconds,
        })
    }
}

impl Command for Args {
    type Answer = Replayed;

    fn compute(&self) -> Result<Replayed> {
        self.check()?;
        Ok(match &self.policy {
            None => Replayed::Settings(Box::new(self.under_settings()?)),
            // A mistyped name fails before the file is read.
            Some(name) => Replayed::Policy(Box::new(policy::replay(self, policy_names::policy(name)?)?)),
        })
    }

    fn outcome(&self, replayed: &Replayed) -> Outcome {
        let (outcome, is_limited, any_died) = match replayed {
            Replayed::Settings(replayed) => (replayed.answer.outcome, replayed.is_limited(self), replayed.answer.any_died()),
            Replayed::Policy(replayed) => (replayed.outcome(), replayed.is_limited(), replayed.first_death().is_some()),
        };
        match outcome {
            advise::Outcome::Fits => Outcome::Good,
            advise::Outcome::GetsPast => Outcome::NotKnown,
            advise::Outcome::DoesNotFit => Outcome::CheckFailed,
            // Without an amount of memory nothing was asked that could fail.
            advise::Outcome::Unknown if !is_limited && !any_died => Outcome::Good,
            advise::Outcome::Unknown => Outcome::NotKnown,
        }
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn text(&self, replayed: &Replayed, out: &mut dyn Write) -> Result<()> {
        Ok(match replayed {
            Replayed::Settings(replayed) => table::print(out, self, replayed),
            Replayed::Policy(replayed) => policy_table::print(out, self, replayed),
        }?)
    }

    fn json(&self, replayed: &Replayed, lines: &mut Lines) -> Result<()> {
        match replayed {
            Replayed::Settings(replayed) => lines.add(&json::Object::of(self, replayed)),
            Replayed::Policy(replayed) => lines.add(&json::PolicyObject::of(self, replayed)),
        }
    }
}

impl OnEach for Args {
    type Kept = ();

    fn inputs(&self) -> &[PathBuf] {
        &self.files.files
    }

    fn on(&self, file: &Path, _: bool) -> Args {
        Args { file: file.to_owned(), ..self.clone() }
    }

    fn keep(&self, _: &Replayed) {}

    fn check_several(&self, _: &Inputs) -> Result<()> {
        self.check()
    }

    /// The runs as replayed, and where they fail as they are judged. Where no memory is known, nothing was refused, and the recorded errors
    /// stand.
    fn rank_runs(&self, replayed: &Replayed) -> Result<Vec<RankRun>> {
        let replayed = match replayed {
            Replayed::Settings(replayed) => &**replayed,
            Replayed::Policy(replayed) => return replayed.rank_runs(),
        };
        let UnderSettings { recording, own, answer, made_by, .. } = replayed;
        let of_device = |(place, (device, outlook))| {
            let fails = answer.fails_at(place);
            let recorded = || answer.endings.get(place)?.death().map(|death| death.entry).filter(|_| !replayed.is_limited(self));
            let failure = fails.or_else(recorded).map(|entry| Failure::of(device, entry));
            let ooms = match replayed.is_limited(self) {
                true => u64::try_from(answer.ooms(place, outlook)).unwrap_or(0),
                false => outlook.requests.ooms,
            };
            RankRun { failure, ooms, ..RankRun::of_outlook(device, own, outlook).made_by(made_by) }
        };
        let traced = recording::traced(recording).into_iter().zip(&replayed.devices);
        Ok(traced.enumerate().map(of_device).collect())
    }
}
