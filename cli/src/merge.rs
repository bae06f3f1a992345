//! `parkade merge`: the parts of a sweep, put together to what one machine would have written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use parkade_sim::study::sweep::{Plan, Row};

use crate::sweep::rows::{self, Contents, Header, Shard};
use crate::sweep::show::{self, Finished, Shown};
use crate::{Outcome, target};

/// Put the parts of a sweep together.
///
/// The files must be parts of the same sweep (parkade sweep --shard), finished, made by this build, and must not contradict each other. What is written is, byte
/// for byte, what one machine would have written alone.
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
    /// Merge although another build of parkade made some of the rows, which may decide otherwise.
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
    let (plan, rows) = put_together(parts)?;
    show::check(&args.shown, &plan)?;
    let mut bytes = Header::of(plan.clone(), Shard::WHOLE).line()?;
    for row in &rows {
        serde_json::to_writer(&mut bytes, row)?;
        bytes.push(b'\n');
    }
    target::write(&args.output, &bytes)?;
    show::show(&args.shown, &Finished { plan: &plan, rows: &rows, sources: &[], policies: &[], beside: &[] })
        .map(|()| Outcome::Good)
}

fn put_together(parts: Vec<(&Path, Contents)>) -> Result<(Plan, Vec<Row>)> {
    let Some((first, header)) = parts.first().map(|(file, part)| (*file, part.header.clone())) else { bail!("no files") };
    let mut all: BTreeMap<u64, (&Path, Row)> = BTreeMap::new();
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
            match all.get(&row.job) {
                // Who made a row is no contradiction.
                Some((other, known)) if Row { program: row.program.clone(), ..known.clone() } != row => {
                    bail!("{} and {} contradict each other about job {}", other.display(), file.display(), row.job)
                }
                Some(_) => {}
                None => drop(all.insert(row.job, (file, row))),
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
    Ok((header.plan, all.into_values().map(|(_, row)| row).collect()))
}
