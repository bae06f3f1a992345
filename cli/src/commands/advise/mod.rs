//! `parkade advise`: with which settings would a recorded program have fitted, in how much memory, and at what cost?

pub(crate) mod advised;
mod json;
mod names;
mod remedies;
mod text;
pub(crate) mod words;

use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade_analysis::ranks::{RankAdvice, RankRun};
use parkade_replay::VerifyOptions;

use self::advised::{Advised, Found, Job, Kept};
use super::beside::OnRanks;
use crate::each::{Finished, OnEach, Together};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::sections;
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};

pub(crate) use self::advised::{Args, search};
pub(crate) use self::json::Addition;
pub(crate) use self::remedies::also;
pub(crate) use crate::terminal::run_words::shows_no_limit;

sections! {
    "advise": json::Object<'_>;
    "advise without a trace": json::HeldObject;
}

impl Command for Args {
    type Found = Advised;

    fn compute(&self) -> Result<Advised> {
        self.advised()
    }

    fn outcome(&self, advised: &Advised) -> Outcome {
        advised.outcome()
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn answer(&self, advised: &Advised) -> Answer {
        match &advised.found {
            Found::Report(report) if self.files.all => text::full_answer(advised, report),
            Found::Report(report) => text::short_answer(advised, report),
            Found::OnlySegments(space) => text::held(advised, space),
        }
    }

    fn everything(&self, advised: &Advised) -> Option<Answer> {
        match &advised.found {
            Found::Report(report) if !self.files.all => Some(text::full_answer(advised, report)),
            _ => None,
        }
    }

    fn json(&self, advised: &Advised, lines: &mut Lines) -> Result<()> {
        match &advised.found {
            Found::Report(report) => lines.add(&json::Object::of(advised, report)),
            Found::OnlySegments(space) => lines.add(&json::HeldObject::of(advised, space)),
        }
    }
}

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

    fn shows_each_rank(&self) -> bool {
        self.files.all
    }

    fn finish(&self, together: Together<'_, Kept>) -> Result<Finished> {
        advise_on_job(self, together)
    }

    fn rank_runs(&self, advised: &Advised) -> Result<Vec<RankRun>> {
        let limit_bytes = self.recorded.bytes(&advised.recording);
        let own = VerifyOptions { settings: advised.own.clone(), limit_bytes, stats_file: None };
        let of_device = |device| Ok(RankRun::of_recording(device, &own)?.made_by(&advised.made_by));
        advised.recording.devices.iter().map(of_device).collect()
    }
}

/// Makes the answer about all ranks of the job.
fn advise_on_job(args: &Args, together: Together<'_, Kept>) -> Result<Finished> {
    let traced = || together.kept.iter().filter_map(|(place, kept)| Some((*place, kept.as_ref()?)));
    let advised = traced().map(|(place, (advice, _))| (place, advice.clone())).collect();
    let Some(mut job) = Job::of(args, &together, advised)? else {
        let mut answer = Answer::new();
        if together.are_ranks && !args.files.all {
            let read = traced().count();
            answer.paragraph(format!(
                "no setting can be chosen for the job: {} of {} ranks {} a trace; parkade advise FILE advises on a single rank",
                read,
                together.files.len(),
                if read == 1 { "has" } else { "have" }
            ));
        }
        return Ok(Finished { answer, ..Finished::default() });
    };
    let number = |place: usize| together.numbers.of_files.get(place).copied();
    job.policies = OnRanks::of(traced().filter_map(|(place, (_, needs))| Some((number(place)?, needs.as_slice()))));
    Ok(Finished { outcome: job.outcome(), answer: text::job(&job), addition: Some(serde_json::to_value(Addition::of(&job))?) })
}
