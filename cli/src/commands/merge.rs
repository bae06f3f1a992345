//! `parkade merge`: joins the parts of a sweep into what one machine would have written.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use parkade_research::study::sweep::{Plan, Row};

use super::sweep::rows::{Finished, Overlap};
use crate::commands::sweep::rows::{self, Contents, Header, Shard};
use crate::commands::sweep::show::{self, Shown};
use crate::terminal::answer::Answer;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Command, Form, Lines, Outcome};

/// Merge the parts of a sweep.
///
/// The files must be finished parts of the same sweep (parkade sweep --shard), made by this build, and must not contradict each other.
/// The result is byte for byte what one machine would have written alone.
///
/// Bounds and curves need the programs, which files of rows do not contain: parkade sweep with the same arguments and -o on the
/// merged file shows everything without running a job again.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl
  parkade merge part*.jsonl -o rows.jsonl --html study.html

Exit code: 0 merged, 1 merged, but a policy broke, 2 could not run.")]
pub struct Args {
    /// The files of rows.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write all rows here; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(short, long, value_name = "FILE")]
    output: Target,
    /// Overwrite existing files, but never an input. Also merge even if a different build of parkade made some of the rows and may decide differently. If several builds ran a job, the row of the
    /// first file is kept, and the number of rows that differ is reported.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    shown: Shown,
}

impl Command for Args {
    type Found = Finished;

    fn compute(&self) -> Result<Finished> {
        show::check_without_programs(&self.shown)?;
        let wanted = Wanted::new(self.force, self.form()).reads(&self.files).writes("--output", Some(&self.output));
        let outputs = self.shown.add_to(wanted).check()?;
        let parts = self.files.iter().map(|file| Ok((file.as_path(), rows::read(file)?))).collect::<Result<Vec<_>>>()?;
        let instead = "choose a different file, or accept them with --force";
        let checked = parts.iter().filter(|_| !self.force);
        checked.into_iter().try_for_each(|(file, part)| rows::check_program(file, &part.rows, instead))?;
        let Merged { plan, rows, overlap } = put_together(parts)?;
        show::check(&self.shown, &plan)?;
        let bytes = rows::text(&Header::of(plan.clone(), Shard::WHOLE), &rows)?;
        let finished = self.shown.finish(plan, rows, overlap)?;
        let made = self.shown.made(&finished)?;
        outputs.write(&self.output, &bytes)?;
        made.iter().try_for_each(|(target, bytes)| outputs.write(target, bytes))?;
        Ok(finished)
    }

    fn outcome(&self, finished: &Finished) -> Outcome {
        if finished.about_faults().is_empty() { Outcome::Good } else { Outcome::CheckFailed }
    }

    fn form(&self) -> Form {
        self.shown.form()
    }

    fn answer(&self, finished: &Finished) -> Answer {
        self.shown.answer(finished)
    }

    fn data(&self, finished: &Finished, out: &mut dyn Write) -> Result<()> {
        Ok(out.write_all(self.shown.tables(finished).as_bytes())?)
    }

    fn json(&self, finished: &Finished, lines: &mut Lines) -> Result<()> {
        Shown::json(finished, lines)
    }
}

/// All rows of a sweep.
struct Merged {
    plan: Plan,
    rows: Vec<Row>,
    overlap: Overlap,
}

fn put_together(parts: Vec<(&Path, Contents)>) -> Result<Merged> {
    let Some((first, header)) = parts.first().map(|(file, part)| (*file, part.header.clone())) else { bail!("no files") };
    // The first row of each build for each job, in the order of the files.
    let mut all: BTreeMap<u64, Vec<(&Path, Row)>> = BTreeMap::new();
    let mut programs: BTreeMap<(String, u64), (&Path, String)> = BTreeMap::new();
    for (file, part) in parts {
        if let Some(difference) = part.header.difference(&header) {
            bail!("{} {difference} than {}: they are not from the same sweep", file.display(), first.display());
        }
        for row in part.rows {
            let program = (row.workload.clone(), row.seed);
            let (other, hash) = programs.entry(program).or_insert_with(|| (file, row.hash.clone()));
            if *hash != row.hash {
                bail!("{} and {} disagree on what {} is", other.display(), file.display(), row.workload);
            }
            let known = all.entry(row.job).or_default();
            match known.iter().find(|(_, known)| known.build == row.build) {
                Some((other, known)) if *known != row => {
                    bail!("{} and {} contradict each other about job {}", other.display(), file.display(), row.job)
                }
                Some(_) => {}
                None => known.push((file, row)),
            }
        }
    }
    let jobs = header.plan.jobs();
    if let Some(missing) = (0..jobs).find(|job| !all.contains_key(job)) {
        let parts = header.shard.parts;
        let count = jobs - all.len() as u64;
        bail!(
            "{count} of {jobs} jobs are missing, the first one in part {}/{parts}: is that part in the list, and is it \
             finished?",
            missing % parts + 1
        );
    }
    let mut overlap = Overlap::default();
    let mut rows = Vec::new();
    for mut known in all.into_values() {
        let others = known.split_off(1);
        for (file, row) in known {
            if !others.is_empty() {
                overlap.add(file, others.iter().any(|(_, other)| !has_the_numbers_of(other, &row)));
            }
            rows.push(row);
        }
    }
    Ok(Merged { plan: header.plan, rows, overlap })
}

/// Whether two rows of a job agree, whichever build made them.
fn has_the_numbers_of(one: &Row, other: &Row) -> bool {
    Row { build: other.build.clone(), ..one.clone() } == *other
}
