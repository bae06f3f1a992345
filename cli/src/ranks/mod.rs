//! The ranks of one job beside each other, as text and as JSON; what is compared is decided by `parkade_analysis::ranks`.

mod json;
mod table;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade_analysis::ranks::{Comparison, RankRun, compare};

use crate::output;
use crate::recordings::{RankNumbers, RanksFrom};
use crate::runner::Lines;

/// The compared runs, in the order of their ranks.
pub(crate) struct Ranks {
    runs: Vec<Ranked>,
    comparison: Comparison,
    from: RanksFrom,
}

/// One device's run.
struct Ranked {
    rank: u64,
    file: PathBuf,
    run: RankRun,
}

impl Ranks {
    /// Compares runs, each with the place of its file; `None` if they are of fewer than two files.
    pub(crate) fn of(numbers: &RankNumbers, files: &[&Path], runs: Vec<(usize, RankRun)>) -> Option<Ranks> {
        let first = runs.first()?.0;
        if runs.iter().all(|(file, _)| *file == first) {
            return None;
        }
        let ranked = |(file, run): (usize, RankRun)| {
            Some(Ranked { rank: *numbers.of_files.get(file)?, file: files.get(file)?.to_path_buf(), run })
        };
        let mut runs: Vec<Ranked> = runs.into_iter().filter_map(ranked).collect();
        runs.sort_by_key(|ranked| (ranked.rank, ranked.run.device));
        let comparison = compare(&runs.iter().map(|ranked| ranked.run.clone()).collect::<Vec<_>>());
        Some(Ranks { runs, comparison, from: numbers.from })
    }

    /// Prints a table and what it shows.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{}", table::table(self).text_with_left(&[0, 1]))?;
        for sentence in words::sentences(self) {
            write!(out, "{}", output::paragraph(&sentence, 0))?;
        }
        Ok(())
    }

    /// Adds the comparison as one line.
    pub(crate) fn add_to(&self, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(self))
    }

    /// Whether some file has several devices, so that a rank's number does not name a run.
    fn have_devices(&self) -> bool {
        self.runs.windows(2).any(|pair| pair[0].rank == pair[1].rank)
    }
}
