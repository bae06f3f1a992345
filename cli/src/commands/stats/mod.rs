//! `parkade stats`: a run's statistics, summary and fragmentation, at its end, at an entry, or step by step.
//!
//! As text, it is a verdict with measures of fragmentation and PyTorch's summary, or a row for each state. `recorded` has the
//! arguments and shows the recorded run, `simulated` a run under a policy, and `lifetimes` how long the program's buffers live.

mod lifetimes;
mod recorded;
mod simulated;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, bail};
use parkade_analysis::ranks::RankRun;

use self::simulated::Simulated;
use crate::commands::simulated::Memory;
use crate::each::OnEach;
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::sections;
use crate::terminal::recording;
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};

pub(crate) use self::recorded::Args;

/// What to show.
pub(crate) enum Found {
    /// The recorded run, or its replay under settings.
    Recorded(Box<recorded::Shown>),
    /// A run under a policy.
    Simulated(Box<Simulated>),
    /// The lifetimes of the buffers.
    Lifetimes(Box<lifetimes::Found>),
}

impl Command for Args {
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        if self.lifetimes {
            return lifetimes::find(self).map(|found| Found::Lifetimes(Box::new(found)));
        }
        match self.under.policy_for(&self.file)? {
            Some(policy) => simulated::simulate(self, policy).map(|found| Found::Simulated(Box::new(found))),
            None => match recorded::read(self) {
                Ok(shown) => Ok(Found::Recorded(Box::new(shown))),
                Err(error) => self.of_simulation(error)?.compute(),
            },
        }
    }

    fn outcome(&self, found: &Found) -> Outcome {
        // Under other settings the figures are the replay's in any case.
        let differs = matches!(found, Found::Recorded(shown) if self.settings.is_none() && shown.mismatches() > 0);
        if differs { Outcome::CheckFailed } else { Outcome::Good }
    }

    fn form(&self) -> Form {
        if self.csv { Form::Data } else { self.print.form() }
    }

    fn subject(&self) -> Subject<'_> {
        if self.under.is_workload() { Subject::None } else { Subject::File(&self.file) }
    }

    fn answer(&self, found: &Found) -> Answer {
        match found {
            Found::Recorded(shown) => recorded::answer(self, shown),
            Found::Simulated(simulated) => simulated::answer(self, simulated),
            Found::Lifetimes(found) => lifetimes::answer(self, found),
        }
    }

    fn data(&self, found: &Found, out: &mut dyn Write) -> Result<()> {
        match found {
            Found::Recorded(shown) if shown.devices.iter().all(|device| device.end.is_some()) => {
                bail!("the file has no trace, so --csv has no rows to print; without --csv, the state at the end is shown")
            }
            Found::Recorded(shown) => recorded::csv(out, self, &shown.devices),
            Found::Simulated(simulated) => recorded::csv(out, self, &simulated.devices),
            Found::Lifetimes(found) => lifetimes::csv(out, found),
        }
    }

    fn json(&self, found: &Found, lines: &mut Lines) -> Result<()> {
        match found {
            Found::Recorded(shown) => lines.add(&recorded::Object::of(self, shown)),
            Found::Simulated(simulated) => lines.add(&simulated::SimulatedObject::of(simulated)),
            Found::Lifetimes(found) => lines.add(&lifetimes::Object::of(found)),
        }
    }

    fn remarks(&self, found: &Found) -> Vec<String> {
        match found {
            // CSV has no place for them.
            Found::Recorded(shown) if self.csv => shown.remarks(self),
            _ => Vec::new(),
        }
    }
}

impl Args {
    /// The arguments that show a file under the policy that parkade simulated it with.
    fn of_simulation(&self, error: Error) -> Result<Args> {
        let (under, _, memory) = self.under.of_simulation(error)?;
        let memory = Memory { capacity_bytes: self.capacity, limit_bytes: self.limit }.or(memory);
        Ok(Args { under, capacity: memory.capacity_bytes, limit: memory.limit_bytes, ..self.clone() })
    }
}

impl OnEach for Args {
    type Kept = ();

    fn inputs(&self) -> &[PathBuf] {
        &self.files.files
    }

    fn on(&self, file: &Path, is_one_of_several: bool) -> Args {
        Args { file: file.to_owned(), is_one_of_several, ..self.clone() }
    }

    fn shows_each_rank(&self) -> bool {
        self.files.all || self.entry.is_some() || self.keys || self.is_series()
    }

    fn keep(&self, _: &Found) {}

    /// The recorded runs; under other settings, and under a policy, only points in time are known, not the entire run.
    fn rank_runs(&self, found: &Found) -> Result<Vec<RankRun>> {
        let Found::Recorded(shown) = found else { return Ok(Vec::new()) };
        if self.settings.is_some() {
            return Ok(Vec::new());
        }
        let chosen = recording::chosen(&shown.recording.devices, self.device)?;
        chosen.into_iter().map(|device| Ok(RankRun::of_recording(device, &shown.own)?.made_by(&shown.made_by))).collect()
    }
}

sections! {
    "stats": recorded::Object<'_>;
    "stats --policy": simulated::SimulatedObject<'_>;
    "stats --lifetimes": lifetimes::Object;
}
