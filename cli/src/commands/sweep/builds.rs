//! The builds that made the rows of a result, and the choice among rows of one job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parkade_research::study::sweep::{BUILD, Row};

use crate::terminal::json_struct::{all, view};
use crate::terminal::output;

/// Longer names of builds are cut, in characters.
const LONGEST_NAME: usize = 60;

/// Jobs done by different builds in several files: the row of the first file is kept.
#[derive(Default)]
pub(crate) struct Overlap {
    /// The number of such jobs.
    pub(crate) jobs: u64,
    /// For each file, the number of kept rows that differ from another build's.
    pub(crate) kept: Vec<(PathBuf, u64)>,
}

impl Overlap {
    /// Counts a job whose row was kept from this file.
    pub(crate) fn add(&mut self, file: &Path, is_contradicted: bool) {
        self.jobs += 1;
        if !is_contradicted {
            return;
        }
        match self.kept.iter_mut().find(|(kept, _)| kept == file) {
            Some((_, rows)) => *rows += 1,
            None => self.kept.push((file.to_owned(), 1)),
        }
    }

    fn differing(&self) -> u64 {
        self.kept.iter().map(|(_, rows)| rows).sum()
    }

    fn line(&self) -> Option<String> {
        let files: Vec<String> = self.kept.iter().map(|(file, rows)| format!("{rows} of {}", file.display())).collect();
        match (self.jobs, self.differing()) {
            (0, _) => None,
            (jobs, 0) => Some(format!("{} made by different builds in several files, with the same numbers.", were(jobs))),
            (jobs, differing) => {
                let kept = format!("the rows of the first file were kept: {}", files.join(", "));
                Some(format!(
                    "{} made by different builds in several files, {differing} with different numbers; {kept}.",
                    were(jobs)
                ))
            }
        }
    }
}

fn were(jobs: u64) -> String {
    if jobs == 1 { "1 job was".to_owned() } else { format!("{jobs} jobs were") }
}

/// How many rows each build made: `{"0.1.0-0123456789abcdef": 11, ...}`.
pub(crate) fn rows_by_build(rows: &[Row]) -> BTreeMap<&str, u64> {
    let mut builds = BTreeMap::new();
    for row in rows {
        *builds.entry(row.build.as_str()).or_default() += 1;
    }
    builds
}

/// Notes on rows that are not all this build's, a line each.
pub(crate) fn lines(rows: &[Row], overlap: &Overlap) -> Vec<String> {
    let builds = rows_by_build(rows);
    let named = |(build, rows): (&&str, &u64)| {
        let this = if *build == BUILD { " (this one)" } else { "" };
        format!("{rows} by {}{this}", output::shorten(build, LONGEST_NAME))
    };
    let all = builds.iter().map(named).collect::<Vec<_>>().join(", ");
    let mixed = match builds.len() {
        0 => None,
        1 if builds.contains_key(BUILD) => None,
        1 => Some(format!("All rows were made by a build other than this {BUILD}, which may decide differently: {all}.")),
        _ => Some(format!("The rows come from different builds, which may decide differently: {all}.")),
    };
    mixed.into_iter().chain(overlap.line()).collect()
}

/// Whether more than one build made the rows.
pub(crate) fn are_mixed(rows: &[Row]) -> bool {
    rows_by_build(rows).len() > 1
}

view! {
    /// `{"jobs": 11, "differ": 2, "kept": [{"file": "a.jsonl", "rows": 2}]}`.
    pub(super) struct OfOverlap(overlap: &Overlap) {
        jobs: u64 = overlap.jobs,
        differ: u64 = overlap.differing(),
        kept: Vec<Kept> = all(&overlap.kept, Kept::of),
    }
}

view! {
    struct Kept(kept: &(PathBuf, u64)) {
        file: String = kept.0.display().to_string(),
        rows: u64 = kept.1,
    }
}
