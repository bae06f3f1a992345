//! One setting for all ranks of a job: what is best for one rank is tried on the others, then one is chosen.
//!
//! Files are read a second time only if something is to be tried on them, so that no more than a few are ever in memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::commands::beside::OnRanks;
use anyhow::Result;
use parkade_analysis::advise::Outcome as Fit;
use parkade_analysis::ranks::{JobAdvice, RankAdvice, one_setting, still_to_try};
use serde_json::Value;

use super::{Args, Found, Kept, job_json, job_table};
use crate::each::{Finished, OnEach, Together};
use crate::recordings::{Inputs, each};
use crate::terminal::output;
use crate::terminal::runner::{Command, Outcome};

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
    /// How policies fare on them, if any were named.
    pub(super) policies: Vec<OnRanks>,
    /// How many ranks could not be read.
    pub(super) unread: usize,
    /// Whether they are recordings of more than one program.
    pub(super) are_of_several_programs: bool,
}

/// Advises on the job, writes the answer as text, and returns it as an addition to the JSON of the ranks.
pub(super) fn advise(args: &Args, together: Together<'_, Kept>, out: &mut dyn Write) -> Result<Finished> {
    let traced = || together.kept.iter().filter_map(|(place, kept)| Some((*place, kept.as_ref()?)));
    let advised = traced().map(|(place, (advice, _))| (place, advice.clone())).collect();
    let Some(mut job) = Job::of(args, &together, advised)? else { return Ok(Finished::default()) };
    let number = |place: usize| together.numbers.of_files.get(place).copied();
    job.policies = OnRanks::of(traced().filter_map(|(place, (_, needs))| Some((number(place)?, needs.as_slice()))));
    job_table::print(out, &job)?;
    Ok(Finished { outcome: job.outcome(), addition: Some(job.addition()?) })
}

impl Job {
    /// The job of these ranks, each with the place of its file; `None` if they are no ranks, or only one. Ranks without a trace have no
    /// settings to compare.
    fn of<K>(args: &Args, together: &Together<'_, K>, advised: Vec<(usize, RankAdvice)>) -> Result<Option<Job>> {
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
        Ok(one_setting(&all).map(|advice| Job { ranks, advice, policies: Vec::new(), unread, are_of_several_programs }))
    }

    /// The same of ranks of which only some are advised on so far. Files that fail are left out: they were complained of before.
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
        let work = |path: &Path| Ok(args.on(path, true).compute()?.found);
        each(&Inputs::of(&paths), args.json.json, work, |place, found| {
            if let Ok(Found::Report(report)) = found {
                advised.push((places[place], RankAdvice::of(&report)));
            }
            Ok(())
        })?;
        Job::of(args, together, advised)
    }

    /// What it adds to the JSON object of the ranks.
    pub(crate) fn addition(&self) -> Result<(&'static str, Value)> {
        Ok(("one_setting", serde_json::to_value(job_json::Object::of(self))?))
    }
}

/// Tries on each rank what is useful for others.
fn try_the_others(args: &Args, ranks: &mut [Rank]) -> Result<()> {
    let all: Vec<RankAdvice> = ranks.iter().map(|rank| rank.advice.clone()).collect();
    let to_try = still_to_try(&all);
    let missing: Vec<(usize, &[String])> =
        to_try.iter().enumerate().filter(|(_, settings)| !settings.is_empty()).map(|(place, all)| (place, &all[..])).collect();
    let paths: Vec<PathBuf> = missing.iter().map(|&(place, _)| ranks[place].file.clone()).collect();
    let work = |path: &Path| {
        let settings = missing.iter().find(|&&(place, _)| ranks[place].file == path).map_or(&[][..], |&(_, settings)| settings);
        let again = Args { file: path.to_owned(), settings: settings.to_vec(), policy: Vec::new(), only: true, ..args.clone() };
        Ok(again.compute()?.found)
    };
    let mut found = Vec::new();
    each(&Inputs::of(&paths), args.json.json, work, |place, result| {
        match result {
            Ok(Found::Report(later)) => found.push((missing[place].0, later)),
            Ok(Found::OnlySegments(_)) => {}
            Err(error) => output::complain(&format!("{}: not every setting is tried on it: {error:#}", paths[place].display())),
        }
        Ok(())
    })?;
    found.iter().for_each(|(place, later)| ranks[*place].advice.add(later));
    Ok(())
}

impl Job {
    /// The worst of the ranks, with the one setting.
    fn outcome(&self) -> Outcome {
        let knows_memory = self.advice.ranks.iter().any(|rank| rank.available_bytes.is_some());
        let of = |fit: Fit| match fit {
            Fit::Fits => Outcome::Good,
            Fit::DoesNotFit => Outcome::CheckFailed,
            // Without an amount of memory nothing was asked that could fail.
            Fit::Unknown if !knows_memory => Outcome::Good,
            Fit::GetsPast | Fit::Unknown => Outcome::NotKnown,
        };
        self.advice.ranks.iter().map(|rank| of(rank.outcome)).fold(Outcome::Good, Outcome::worse)
    }

    /// The worst outcome's name in JSON.
    pub(super) fn fit(&self) -> Fit {
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast];
        let is_some = |fit: &Fit| self.advice.ranks.iter().any(|rank| rank.outcome == *fit);
        order.into_iter().find(is_some).unwrap_or(Fit::Fits)
    }
}
