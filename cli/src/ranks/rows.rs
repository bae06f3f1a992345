//! The compared runs as rows of a page, and which of them say most.

use std::path::Path;

use parkade_analysis::ranks::{Difference, Measure};

use super::Ranks;
use super::table::{COLUMNS, OUT_OF_MEMORY, cells};

/// One device's run.
pub struct Row<'a> {
    /// The rank.
    pub rank: u64,
    /// The place of its file among those given.
    pub place: usize,
    /// Its file.
    pub file: &'a Path,
    /// The device, if some file has several.
    pub device: Option<u32>,
    /// What is in the columns, and whether it stands out.
    pub cells: Vec<(String, Standing)>,
    /// Whether it runs out of memory first.
    pub fails_first: bool,
    /// Whether it is unlike the others.
    pub is_odd: bool,
}

/// How a cell is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// As others.
    Ordinary,
    /// Unlike the others.
    Odd,
    /// Out of memory.
    Failed,
}

impl Ranks {
    /// The columns of [`Row::cells`].
    pub const COLUMNS: [&str; COLUMNS.len()] = COLUMNS;

    /// The runs, in the order of their ranks.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let has_devices = self.have_devices();
        (0..self.runs.len()).map(|run| self.row(run, has_devices)).collect()
    }

    fn row(&self, run: usize, has_devices: bool) -> Row<'_> {
        let ranked = &self.runs[run];
        let odd = self.comparison.odd.iter().find(|odd| odd.run == run).map(|odd| column(odd.measure));
        let standing = |place: usize| match place {
            _ if odd == Some(place) => Standing::Odd,
            OUT_OF_MEMORY if ranked.run.failure.is_some() => Standing::Failed,
            _ => Standing::Ordinary,
        };
        Row {
            rank: ranked.rank,
            place: ranked.place,
            file: &ranked.file,
            device: has_devices.then_some(ranked.run.device),
            cells: cells(ranked).into_iter().enumerate().map(|(place, cell)| (cell, standing(place))).collect(),
            fails_first: self.comparison.fails_first.is_some_and(|first| first.run == run),
            is_odd: odd.is_some(),
        }
    }

    /// The runs, those that say most first: the first to fail, those unlike the others, one of each other version, settings and program,
    /// then all in the order of their ranks.
    pub fn by_weight(&self) -> Vec<usize> {
        let comparison = &self.comparison;
        let first = comparison.fails_first.iter().map(|first| first.run);
        let odd = comparison.odd.iter().map(|odd| odd.run);
        let differing = comparison.differences.iter().filter(|difference| !matches!(difference, Difference::Copies(_)));
        let variants = differing.flat_map(|difference| difference.variants().iter().skip(1));
        let differing = variants.filter_map(|variant| variant.runs.first().copied());
        let mut seen = vec![false; self.runs.len()];
        let all = first.chain(odd).chain(differing).chain(0..self.runs.len());
        all.filter(|&run| !std::mem::replace(&mut seen[run], true)).collect()
    }
}

/// The column of a measure.
const fn column(measure: Measure) -> usize {
    match measure {
        Measure::Entries => 0,
        Measure::PeakAllocated => 3,
        Measure::PeakReserved => 4,
        Measure::Free => 5,
        Measure::LargestHole => 6,
    }
}
