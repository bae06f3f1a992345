//! `parkade merge`: the parts of a sweep, put together to what one machine would have written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use parkade_research::study::sweep::{Plan, Row};

use crate::sweep::builds::Overlap;
use crate::sweep::rows::{self, Contents, Header, Shard};
use crate::sweep::show::{self, Finished, Shown};
use crate::{Outcome, target};

/// Put the parts of a sweep together.
///
/// The files must be parts of the same sweep (parkade sweep --shard), finished, made by this build, and must not contradict each other. What is written is, byte
/// for byte, what one machine would have written alone.
///
/// Bounds and curves need the programs, which files of rows do not hold: parkade sweep, with the same arguments and -o on what was merged,
/// shows everything without doing a job again.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl
  parkade merge part*.jsonl -o rows.jsonl --html study.html

Exit code: 0 merged, 2 it could not be.")]
pub(crate) struct Args {
    /// The files of rows.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write all rows here.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Merge although another build of parkade made some of the rows, which may decide otherwise. Of a job that several builds did, the row of the first
    /// file is kept, and how many say otherwise is said.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    shown: Shown,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    merge(args).map_err(|error| args.shown.say_failed(error))
}

fn merge(args: &Args) -> Result<Outcome> {
    show::check_without_programs(&args.shown)?;
    show::check_files(&args.shown, Some(&args.output), &args.files)?;
    let parts = args.files.iter().map(|file| Ok((file.as_path(), rows::read(file)?))).collect::<Result<Vec<_>>>()?;
    parts.iter().try_for_each(|(file, part)| rows::check_program(file, &part.rows, args.force))?;
    let Merged { plan, rows, overlap } = put_together(parts)?;
    show::check(&args.shown, &plan)?;
    let mut bytes = Header::of(plan.clone(), Shard::WHOLE).line()?;
    for row in &rows {
        serde_json::to_writer(&mut bytes, row)?;
        bytes.push(b'\n');
    }
    target::write(&args.output, &bytes)?;
    let finished = Finished { plan: &plan, rows: &rows, sources: &[], policies: &[], beside: &[], overlap: &overlap };
    show::show(&args.shown, &finished).map(|()| Outcome::Good)
}

/// All rows of a sweep.
struct Merged {
    plan: Plan,
    rows: Vec<Row>,
    overlap: Overlap,
}

fn put_together(parts: Vec<(&Path, Contents)>) -> Result<Merged> {
    let Some((first, header)) = parts.first().map(|(file, part)| (*file, part.header.clone())) else { bail!("no files") };
    // Of each job the first row of every build, in the order of the files.
    let mut all: BTreeMap<u64, Vec<(&Path, Row)>> = BTreeMap::new();
    let mut programs: BTreeMap<(String, u64), (&Path, String)> = BTreeMap::new();
    for (file, part) in parts {
        if let Some(difference) = part.header.difference(&header) {
            bail!("{} {difference} than {}: they are not of one sweep", file.display(), first.display());
        }
        for row in part.rows {
            let program = (row.workload.clone(), row.seed);
            let (other, hash) = programs.entry(program).or_insert_with(|| (file, row.hash.clone()));
            if *hash != row.hash {
                bail!("{} and {} disagree about what {} is", other.display(), file.display(), row.workload);
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
            "{count} of {jobs} jobs are missing, the first one in part {}/{parts}: is it there, and finished?",
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

/// Whether two rows of a job say the same, whoever made them.
fn has_the_numbers_of(one: &Row, other: &Row) -> bool {
    Row { build: other.build.clone(), ..one.clone() } == *other
}
