//! One setting for all ranks of a job: what is best for one rank is tried on the others, then one is chosen.
//!
//! Files are read a second time only if something is to be tried on them, so that no more than a few are ever in memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade_analysis::advise::Outcome as Fit;
use parkade_analysis::ranks::{JobAdvice, RankAdvice, one_setting, still_to_try};

use super::{Args, Found, job_json, job_table};
use crate::each::{Finished, Together};
use crate::output;
use crate::recordings::{Inputs, each};
use crate::runner::{Command, Outcome};

/// One rank's advice.
pub(super) struct Rank {
    pub(super) number: u64,
    pub(super) file: PathBuf,
    pub(super) advice: RankAdvice,
}

/// The ranks, in their order, and one setting for all of them.
pub(super) struct Job {
    pub(super) ranks: Vec<Rank>,
    pub(super) advice: JobAdvice,
    /// Whether they are recordings of more than one program.
    pub(super) are_of_several_programs: bool,
}

/// Advises on the job, writes the answer as text, and returns it as an addition to the JSON of the ranks. Ranks without a trace have no
/// settings to compare.
pub(super) fn advise(args: &Args, together: Together<'_, Option<RankAdvice>>, out: &mut dyn Write) -> Result<Finished> {
    let rank = |(place, advice): (usize, Option<RankAdvice>)| {
        let (number, file) = (*together.numbers.of_files.get(place)?, together.files.get(place)?.to_path_buf());
        Some(Rank { number, file, advice: advice? })
    };
    let mut ranks: Vec<Rank> = together.kept.into_iter().filter_map(rank).collect();
    if !together.are_ranks || ranks.len() < 2 {
        return Ok(Finished::default());
    }
    ranks.sort_by_key(|rank| rank.number);
    try_the_others(args, &mut ranks)?;
    let all: Vec<RankAdvice> = ranks.iter().map(|rank| rank.advice.clone()).collect();
    let Some(advice) = one_setting(&all) else { return Ok(Finished::default()) };
    let job = Job { ranks, advice, are_of_several_programs: together.ranks.are_of_several_programs() };
    job_table::print(out, &job)?;
    Ok(Finished { outcome: job.outcome(), addition: Some(("one_setting", serde_json::to_value(job_json::Object::of(&job))?)) })
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
        let again = Args { file: path.to_owned(), settings: settings.to_vec(), only: true, ..args.clone() };
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
