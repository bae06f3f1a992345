//! `parkade replay`: what would a recorded program have needed under other settings, and would it have fitted?

mod json;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_analysis::advise::{self, AdviseOptions, MemoryBudget};
use parkade_analysis::continuation::Doubt;
use parkade_analysis::ending::Ending;
use parkade_analysis::ranks::RankRun;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::{Outlook, OutlookOptions, ReplaySettings, replay_device};

use crate::args::{self, Files, Json};
use crate::each::OnEach;
use crate::runner::{Command, Form, Lines, Outcome, Subject};
use crate::{progress, recording};

/// Replay a recorded program's requests under other settings, with another limit, or on a smaller device.
///
/// Every decision of PyTorch's allocator is made again on a simulated device. Segments lie where the recorded process's driver would
/// have put them, as far as the recording shows. Calls of empty_cache are found in the trace. An out-of-memory error does not end
/// the replay, as some programs catch it and continue. If the recording lost its beginning, blocks in use before its first entry are
/// requested first.
///
/// If the recorded run died of an out-of-memory error, what it would have done next is not in the file. It is estimated from the steps
/// that came before, as by parkade advise.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade replay snapshot.pickle --settings expandable_segments:True
  parkade replay snapshot.pickle --settings max_split_size_mb:128,garbage_collection_threshold:0.7 --limit 16GiB
  parkade replay snapshot.pickle --settings '' --capacity 24GiB --json
  parkade replay snapshots/ --settings expandable_segments:True --limit 16GiB

Exit code: 0 it fits, 1 it does not, 2 could not run, 3 not known: it gets past the failure of a run that died, or the file lost the part
that needed most. Of several recordings the worst: 2, then 1, then 3.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The one of them that is replayed.
    #[arg(skip)]
    file: PathBuf,
    #[command(flatten)]
    replay: args::Replay,
    #[command(flatten)]
    json: Json,
}

/// A replayed recording.
pub(crate) struct Replayed {
    settings: ReplaySettings,
    limit: Option<u64>,
    recording: Recording,
    own: ReplaySettings,
    devices: Vec<Outlook>,
    answer: Judged,
    seconds: f64,
}

/// Whether it fits.
struct Judged {
    outcome: advise::Outcome,
    /// How each device's run ended.
    endings: Vec<Ending>,
    /// Why the rest of a run that died cannot be told.
    doubt: Option<Doubt>,
}

impl Replayed {
    fn fits(&self) -> bool {
        match self.answer.outcome {
            advise::Outcome::Fits => true,
            advise::Outcome::GetsPast | advise::Outcome::DoesNotFit => false,
            advise::Outcome::Unknown => self.devices.iter().all(Outlook::fits),
        }
    }
}

impl Command for Args {
    type Answer = Replayed;

    fn compute(&self) -> Result<Replayed> {
        let start = Instant::now();
        let args = &self.replay;
        // Before the file is read, so that mistyped settings fail at once.
        let given = args.given()?;
        let recording = recording::read(&self.file)?;
        // The requests are read under the rules of the release that recorded them, and replayed under those chosen.
        let own = args.recorded.own(&recording)?;
        let recorded = own.settings.clone();
        let settings = given.unwrap_or_else(|| recorded.clone());
        let limit = args.limit(settings.settings.per_process_memory_fraction)?;
        let options = OutlookOptions {
            own,
            profile: args.profile.rules(),
            settings: settings.settings.clone(),
            limit_bytes: limit,
            capacity_bytes: args.capacity,
        };
        let traced = recording::traced(&recording);
        if traced.is_empty() {
            bail!("the file has no trace entries to replay: {}", recording::RECORD_IT);
        }
        let bar = progress::entries(self.json.json);
        bar.set_length(recording::entries(&traced));
        let (mut devices, mut done) = (Vec::new(), 0);
        for device in &traced {
            let outlook = replay_device(device, &options, &mut |entries| bar.set_position((done + entries) as u64));
            done += device.trace.len();
            devices.push(recording::of_device(outlook, device.device, traced.len())?);
        }
        bar.finish_and_clear();
        let memory = MemoryBudget { capacity_bytes: args.capacity, limit_bytes: limit };
        let answer = judged(&traced, &devices, &options, memory)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Replayed { answer, settings, limit, own: recorded, recording, devices, seconds })
    }

    fn outcome(&self, replayed: &Replayed) -> Outcome {
        match replayed.answer.outcome {
            advise::Outcome::Fits => Outcome::Good,
            advise::Outcome::GetsPast => Outcome::NotKnown,
            advise::Outcome::DoesNotFit => Outcome::CheckFailed,
            // Without an amount of memory nothing was asked that could fail.
            advise::Outcome::Unknown
                if self.replay.capacity.is_none()
                    && replayed.limit.is_none()
                    && replayed.answer.endings.iter().all(|ending| ending.death().is_none()) =>
            {
                Outcome::Good
            }
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
        Ok(table::print(out, &self.file, replayed)?)
    }

    fn json(&self, replayed: &Replayed, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(self, replayed))
    }
}

/// The outcome. If a run died, it is judged as `advise` does, with what is estimated of its rest.
fn judged(traced: &[&DeviceRecording], devices: &[Outlook], options: &OutlookOptions, memory: MemoryBudget) -> Result<Judged> {
    let endings: Vec<Ending> = traced.iter().map(|device| Ending::of(device)).collect();
    let available = memory.bytes(options.profile, &options.settings);
    let hides_more = |available: u64| {
        devices.iter().filter_map(|device| device.requests.lost_beginning).any(|lost| lost.reserved_bytes > available)
    };
    let simple = |outcome| Ok(Judged { outcome, endings: endings.clone(), doubt: None });
    match available {
        None => simple(advise::Outcome::Unknown),
        Some(_) if endings.iter().any(|ending| ending.death().is_some()) => {
            let (own, profile) = (options.own.clone(), options.profile);
            let given = vec![options.settings.clone()];
            let options = AdviseOptions { own, profile, memory, given, only_given: true };
            let advice = advise::advise(traced, &options, &|_| ()).map_err(|(_, error)| error)?;
            let place = advice.options.iter().position(|option| option.is_given).unwrap_or(0);
            let doubt = advice.doubts_with(place).first().map(|&(_, doubt)| doubt).filter(|_| advice.options[place].fits());
            Ok(Judged { outcome: advice.outcome_with(place), endings, doubt })
        }
        Some(_) if !devices.iter().all(Outlook::fits) => simple(advise::Outcome::DoesNotFit),
        Some(available) if hides_more(available) => simple(advise::Outcome::Unknown),
        Some(_) => simple(advise::Outcome::Fits),
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

    /// The runs as replayed.
    fn rank_runs(&self, replayed: &Replayed) -> Result<Vec<RankRun>> {
        let traced = recording::traced(&replayed.recording).into_iter().zip(&replayed.devices);
        let of_device = |(device, outlook)| RankRun::of_outlook(&replayed.recording, device, &replayed.own, outlook);
        Ok(traced.map(of_device).collect())
    }
}
