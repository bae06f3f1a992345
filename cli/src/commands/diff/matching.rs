//! Which file of one folder is compared with which of the other: those of one rank.

use std::path::{Path, PathBuf};

use crate::recordings::{RankNumbers, RanksFrom};
use crate::terminal::output::list;

/// A rank's files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    pub(super) number: u64,
    pub(super) a: PathBuf,
    /// None if only one folder is given.
    pub(super) b: Option<PathBuf>,
}

/// The ranks that are compared, and those that are not.
#[derive(Debug, Default)]
pub(super) struct Matched {
    pub(super) pairs: Vec<Pair>,
    pub(super) only_a: Vec<u64>,
    pub(super) only_b: Vec<u64>,
    /// Where the numbers come from.
    pub(super) from: &'static str,
    /// The files of the ranks that are in one folder only.
    pub(super) alone: Vec<(u64, PathBuf)>,
    /// What to say about it.
    pub(super) notes: Vec<String>,
}

impl Matched {
    /// Whether some rank is in one folder only.
    pub(super) fn are_alone(&self) -> bool {
        !(self.only_a.is_empty() && self.only_b.is_empty())
    }
}

/// Files of one rank belong together. If the names in a folder do not number them, the files are paired in their order.
pub(super) fn matched(a: &[PathBuf], b: Option<&[PathBuf]>) -> Matched {
    let mut notes = Vec::new();
    let mut numbers = [a, b.unwrap_or(&[])].map(|files| {
        let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        RankNumbers::of(&paths)
    });
    let are_names = numbers.iter().all(|numbers| numbers.from == RanksFrom::Names || numbers.of_files.is_empty());
    if !are_names {
        numbers = [a.len(), b.map_or(0, <[_]>::len)].map(RankNumbers::positions);
        notes.push("The files' names do not number the ranks, so the files are paired in their order.".to_owned());
    }
    let [numbers_a, numbers_b] = numbers;
    let file_b = |number: u64| {
        let place = numbers_b.of_files.iter().position(|&other| other == number)?;
        b?.get(place).cloned()
    };
    let mut found =
        Matched { from: if are_names { RanksFrom::Names } else { RanksFrom::Positions }.name(), ..Matched::default() };
    for (&number, file) in numbers_a.of_files.iter().zip(a) {
        match file_b(number) {
            None if b.is_some() => {
                found.only_a.push(number);
                found.alone.push((number, file.clone()));
            }
            other => found.pairs.push(Pair { number, a: file.clone(), b: other }),
        }
    }
    for (&number, file) in numbers_b.of_files.iter().zip(b.unwrap_or_default()) {
        if !numbers_a.of_files.contains(&number) {
            found.only_b.push(number);
            found.alone.push((number, file.clone()));
        }
    }
    let alone = |name: &str, alone: &[u64]| {
        let ranks = if alone.len() == 1 { "rank" } else { "ranks" };
        (!alone.is_empty()).then(|| format!("Only {name} has {ranks} {}, so nothing is compared there.", list(alone)))
    };
    notes.extend([alone("A", &found.only_a), alone("B", &found.only_b)].into_iter().flatten());
    found.pairs.sort_by_key(|pair| pair.number);
    Matched { notes, ..found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    fn pairs(matched: &Matched) -> Vec<(u64, &str, &str)> {
        let name = |path: &Path| path.to_str().map(str::to_owned).unwrap_or_default();
        let of = |pair: &Pair| (pair.number, name(&pair.a).leak() as &str, pair.b.as_deref().map_or("", |b| name(b).leak()));
        matched.pairs.iter().map(of).collect()
    }

    #[test]
    fn ranks_are_matched_by_their_numbers_whatever_else_the_names_say() {
        let (a, b) =
            (files(&["rank0.pickle", "rank10.pickle", "rank2.pickle"]), files(&["new_rank2_s5.pkl", "new_rank0_s9.pkl"]));
        let found = matched(&a, Some(&b));
        let expected = [(0, "rank0.pickle", "new_rank0_s9.pkl"), (2, "rank2.pickle", "new_rank2_s5.pkl")];
        assert_eq!((pairs(&found), &found.only_a, found.from), (expected.to_vec(), &vec![10], "names"));
        assert_eq!(found.notes, ["Only A has rank 10, so nothing is compared there."]);
    }

    #[test]
    fn without_numbers_the_order_pairs_them() {
        let (a, b) = (files(&["left.pickle", "right.pickle"]), files(&["rank4.pickle", "rank5.pickle", "rank6.pickle"]));
        let found = matched(&a, Some(&b));
        assert_eq!(pairs(&found), [(0, "left.pickle", "rank4.pickle"), (1, "right.pickle", "rank5.pickle")]);
        assert!(found.only_b == [2] && found.notes.len() == 2 && found.from == "positions", "{:?}", found.notes);
        let one = matched(&files(&["rank3.pickle", "rank1.pickle"]), None);
        assert_eq!((pairs(&one), one.are_alone()), (vec![(1, "rank1.pickle", ""), (3, "rank3.pickle", "")], false));
    }
}
