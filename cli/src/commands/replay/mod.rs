//! `parkade replay` shows what a recorded program would have needed with other settings or a parkade policy, and whether it
//! would have fitted.

mod policy;
mod settings;

use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use clap::Parser;
use parkade_analysis::advise;
use parkade_analysis::ranks::RankRun;

use self::policy::UnderPolicy;
use crate::commands::simulated;
use crate::commands::simulated::Memory;
use crate::each::OnEach;
use crate::recordings::Inputs;
use crate::terminal::answer::Answer;
use crate::terminal::args::{self, Files, Print, Replay};
use crate::terminal::json_struct::sections;
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};

pub use self::settings::UnderSettings;

/// Replay a snapshot or a folder under other settings or limits.
///
/// Every decision of PyTorch's allocator is made again on a simulated device. Segments lie where the recorded process's driver
/// would have put them, as far as the recording shows. Calls of empty_cache are found in the trace. An out-of-memory error does
/// not end the replay, because some programs catch it and continue. If the oldest entries are missing from the
/// recording, blocks in use before its first entry are requested first.
///
/// If the recorded run died of an out-of-memory error, the file does not contain what it would have done next. The replay
/// estimates that from the earlier steps, as parkade advise does; without --limit and --capacity it assumes the same memory as
/// advise.
///
/// With --policy a parkade policy serves the same requests in place of PyTorch's allocator and its settings, and segments lie
/// where NVIDIA's driver was observed to place them in any process. A request that the policy refuses ends the replay. The rest
/// of a run that died is not estimated in this case, so the run gets past the error at best.
#[derive(Parser, Clone)]
#[command(after_help = "Examples:
  parkade replay snapshot.pickle --settings expandable_segments:True
  parkade replay snapshot.pickle --settings max_split_size_mb:128,garbage_collection_threshold:0.7 --limit 16GiB
  parkade replay snapshot.pickle --settings '' --capacity 24GiB --json
  parkade replay snapshot.pickle --policy compaction --limit 16GiB
  parkade replay snapshot.pickle --policy pytorch-rescue:reach=free
  parkade replay snapshots/ --settings expandable_segments:True --limit 16GiB

Exit code: 0 it fits, or no limit is known and nothing was refused; 1 it does not fit; 2 could not run; 3 not known: it gets past the \
failure of a run that died, or the file lacks the part that needed the most. For several recordings, the worst code: 2, then \
1, then 3.")]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// The recording to replay.
    #[arg(skip)]
    file: PathBuf,
    #[command(flatten)]
    replay: Replay,
    /// Serve the requests under a parkade policy, such as compaction or pytorch-rescue, in place of PyTorch's allocator.
    /// Cannot be combined with --settings and --profile, which apply to PyTorch's allocator. parkade sweep --list lists all
    /// policies.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    #[command(flatten)]
    print: Print,
}

/// A replayed recording.
pub enum Replayed {
    /// Under settings of PyTorch's allocator.
    Settings(Box<UnderSettings>),
    /// Under a parkade policy.
    Policy(Box<UnderPolicy>),
}

impl Args {
    /// The replay of a file under the policy that parkade simulated it with, if this is why its decisions cannot be replayed.
    fn simulation(&self, error: Error) -> Result<UnderPolicy> {
        let (_, policy, memory) = simulated::UnderPolicy::default().of_simulation(error)?;
        args::excluded_by(Some(&policy.name), "--profile", self.replay.profile.is_some())?;
        let memory = Memory { capacity_bytes: self.replay.capacity, limit_bytes: self.replay.limit }.or(memory);
        let replay = Replay { capacity: memory.capacity_bytes, limit: memory.limit_bytes, ..self.replay.clone() };
        policy::replay(&self.file, &replay, self.print.json, policy)
    }

    /// Refuses options that a policy cannot use.
    fn check(&self) -> Result<()> {
        args::excluded_by(self.policy.as_deref(), "--settings", self.replay.settings.is_some())?;
        args::excluded_by(self.policy.as_deref(), "--profile", self.replay.profile.is_some())
    }
}

sections! {
    "replay": settings::Object, policy::PolicyObject;
}

impl Command for Args {
    type Found = Replayed;

    fn compute(&self) -> Result<Replayed> {
        self.check()?;
        Ok(match &self.policy {
            None => match settings::replay(&self.file, &self.replay, self.print.json) {
                Ok(replayed) => Replayed::Settings(Box::new(replayed)),
                Err(error) => Replayed::Policy(Box::new(self.simulation(error)?)),
            },
            // A mistyped name fails before the file is read.
            Some(name) => {
                Replayed::Policy(Box::new(policy::replay(&self.file, &self.replay, self.print.json, args::policy(name)?)?))
            }
        })
    }

    fn outcome(&self, replayed: &Replayed) -> Outcome {
        let (outcome, is_limited, any_died) = match replayed {
            Replayed::Settings(replayed) => {
                (replayed.answer.outcome, replayed.is_limited(&self.replay), replayed.answer.any_died())
            }
            Replayed::Policy(replayed) => (replayed.outcome(), replayed.is_limited(), replayed.first_death().is_some()),
        };
        match outcome {
            advise::Outcome::Fits => Outcome::Good,
            advise::Outcome::GetsPast => Outcome::NotKnown,
            advise::Outcome::DoesNotFit => Outcome::CheckFailed,
            // Without a memory size, nothing can fail.
            advise::Outcome::Unknown if !is_limited && !any_died => Outcome::Good,
            advise::Outcome::Unknown => Outcome::NotKnown,
        }
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn answer(&self, replayed: &Replayed) -> Answer {
        match replayed {
            Replayed::Settings(replayed) => settings::answer(&self.file, &self.replay, replayed),
            Replayed::Policy(replayed) => policy::answer(&self.file, replayed),
        }
    }

    fn json(&self, replayed: &Replayed, lines: &mut Lines) -> Result<()> {
        match replayed {
            Replayed::Settings(replayed) => lines.add(&settings::Object::of(&self.file, &self.replay, replayed)),
            Replayed::Policy(replayed) => lines.add(&policy::PolicyObject::of(&self.file, &self.replay, replayed)),
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

    fn shows_each_rank(&self) -> bool {
        self.files.all
    }

    fn keep(&self, _: &Replayed) {}

    fn check_several(&self, _: &Inputs) -> Result<()> {
        self.check()
    }

    fn rank_runs(&self, replayed: &Replayed) -> Result<Vec<RankRun>> {
        match replayed {
            Replayed::Settings(replayed) => Ok(replayed.rank_runs(&self.replay)),
            Replayed::Policy(replayed) => replayed.rank_runs(),
        }
    }
}
