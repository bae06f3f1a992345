//! The ranks of one job beside each other, as text and as JSON; what is compared is decided by `parkade_analysis::ranks`.

mod json;
mod rows;
mod table;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use parkade_analysis::ranks::{Comparison, Difference, RankRun, compare};
pub use rows::{Row, Standing};
use serde_json::Value;

use crate::recordings::{RankNumbers, RanksFrom};
use crate::terminal::output;
use crate::terminal::runner::Lines;

/// The compared runs, in the order of their ranks.
pub struct Ranks {
    runs: Vec<Ranked>,
    comparison: Comparison,
    from: RanksFrom,
}

/// One device's run.
struct Ranked {
    rank: u64,
    /// The place of its file among those given.
    place: usize,
    file: PathBuf,
    run: RankRun,
}

impl Ranks {
    /// Compares runs, each with the place of its file; `None` if they are of fewer than two files.
    pub fn of(numbers: &RankNumbers, files: &[&Path], runs: Vec<(usize, RankRun)>) -> Option<Ranks> {
        Some(Ranks::of_any(numbers, files, runs)).filter(Ranks::are_of_several_files)
    }

    /// The same of any number of files.
    pub fn of_any(numbers: &RankNumbers, files: &[&Path], runs: Vec<(usize, RankRun)>) -> Ranks {
        let ranked = |(place, run): (usize, RankRun)| {
            Some(Ranked { rank: *numbers.of_files.get(place)?, place, file: files.get(place)?.to_path_buf(), run })
        };
        let mut runs: Vec<Ranked> = runs.into_iter().filter_map(ranked).collect();
        runs.sort_by_key(|ranked| (ranked.rank, ranked.run.device));
        let comparison = compare(&runs.iter().map(|ranked| ranked.run.clone()).collect::<Vec<_>>());
        Ranks { runs, comparison, from: numbers.from }
    }

    /// Whether there are at least two files with runs.
    pub fn are_of_several_files(&self) -> bool {
        self.runs.windows(2).any(|pair| pair[0].place != pair[1].place)
    }

    /// Prints a table and what it shows.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{}", table::table(self).text_with_left(&[0, 1]))?;
        for sentence in self.sentences() {
            write!(out, "{}", output::paragraph(&sentence, 0))?;
        }
        Ok(())
    }

    /// What the comparison found.
    pub fn sentences(&self) -> Vec<String> {
        words::sentences(self)
    }

    /// Adds the comparison as one line, with one more key if there is one.
    pub fn add_to(&self, lines: &mut Lines, addition: Option<(&'static str, Value)>) -> Result<()> {
        let mut object = serde_json::to_value(json::Object::of(self))?;
        if let (Some(keys), Some((key, value))) = (object.as_object_mut(), addition) {
            keys.insert(key.to_owned(), value);
        }
        lines.add(&object)
    }

    /// Whether the files are recordings of more than one program.
    pub fn are_of_several_programs(&self) -> bool {
        self.comparison.differences.iter().any(|difference| matches!(difference, Difference::Program(_)))
    }

    /// Whether some file has several devices, so that a rank's number does not name a run.
    fn have_devices(&self) -> bool {
        self.runs.windows(2).any(|pair| pair[0].rank == pair[1].rank)
    }
}
