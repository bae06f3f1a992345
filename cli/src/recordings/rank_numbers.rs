//! The ranks that files are of, as their names number them.

use std::collections::BTreeSet;
use std::path::Path;

/// Words before the number of a rank, and of a device, which stands for the rank where no name has one.
const RANK_WORDS: [&str; 1] = ["rank"];
const DEVICE_WORDS: [&str; 4] = ["device", "dev", "gpu", "cuda"];
/// Words before a number that is a moment's of one run.
const MOMENT_WORDS: [&str; 6] = ["step", "iter", "iteration", "epoch", "batch", "entry"];

/// Where the numbers come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RanksFrom {
    /// The files' names.
    Names,
    /// Their order, as the names do not number them, or not differently.
    Positions,
}

impl RanksFrom {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            RanksFrom::Names => "names",
            RanksFrom::Positions => "positions",
        }
    }
}

/// The rank of each file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankNumbers {
    /// In the order of the files.
    pub of_files: Vec<u64>,
    /// Where they come from.
    pub from: RanksFrom,
}

impl RankNumbers {
    /// The ranks of these files: the first rule that gives every file a number of its own, else their positions.
    pub fn of(paths: &[&Path]) -> RankNumbers {
        let stems: Vec<String> = paths.iter().map(|path| stem(path)).collect();
        let rules: [fn(&str) -> Option<u64>; 3] =
            [|stem| after(stem, &RANK_WORDS), |stem| after(stem, &DEVICE_WORDS), last_number];
        for rule in rules {
            let numbers: Option<Vec<u64>> = stems.iter().map(|stem| rule(stem)).collect();
            let numbers = numbers.filter(|numbers| numbers.iter().collect::<BTreeSet<_>>().len() == numbers.len());
            if let Some(of_files) = numbers {
                return RankNumbers { of_files, from: RanksFrom::Names };
            }
        }
        RankNumbers::positions(paths.len())
    }

    /// The positions of so many files.
    pub fn positions(files: usize) -> RankNumbers {
        RankNumbers { of_files: (0..files as u64).collect(), from: RanksFrom::Positions }
    }
}

/// The file's name in lower case, up to its ending.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let end = [".pickle", ".pkl"].iter().filter_map(|ending| name.rfind(ending)).min().unwrap_or(name.len());
    name[..end].to_owned()
}

/// The number after one of the words: `rank3`, `rank_3`, `rank-3`, `rank=3`. The word begins the name or follows something other than a
/// letter.
fn after(stem: &str, words: &[&str]) -> Option<u64> {
    let of_word = |word: &&str| {
        stem.match_indices(word).find_map(|(at, _)| {
            let begins = !stem[..at].ends_with(|c: char| c.is_alphabetic());
            let rest = &stem[at + word.len()..];
            let rest = rest.strip_prefix(['_', '-', '.', '=', ' ']).unwrap_or(rest);
            begins.then(|| leading_number(rest)).flatten()
        })
    };
    words.iter().find_map(of_word)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The number that ends the name after a separator, as in `snapshot_3`, unless it numbers the moments of a run.
fn last_number(stem: &str) -> Option<u64> {
    let start =
        stem.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + stem[at..].chars().next().map_or(1, char::len_utf8));
    let before = &stem[..start];
    let separated = before.is_empty() || before.ends_with(['_', '-', '.']);
    let word = before.trim_end_matches(['_', '-', '.']);
    let is_moment = MOMENT_WORDS.iter().any(|moment| word.ends_with(moment));
    if separated && !is_moment { stem[start..].parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(names: &[&str]) -> (Vec<u64>, RanksFrom) {
        let paths: Vec<&Path> = names.iter().map(Path::new).collect();
        let found = RankNumbers::of(&paths);
        (found.of_files, found.from)
    }

    #[test]
    fn names_number_ranks_in_many_ways() {
        for names in [
            ["a/rank3.pickle", "a/rank12.pickle"],
            ["Rank_3_step_100.pickle", "Rank_12_step_100.pickle"],
            ["rank3_memory_snapshot.pickle", "rank12_memory_snapshot.pickle.xz"],
            ["run.rank-3.pkl", "run.rank-12.pkl.gz"],
            ["node0_gpu7_rank3.pickle", "node1_gpu7_rank12.pickle"],
            ["dev3.pickle", "dev12.pickle"],
            ["snapshot_3.pickle", "snapshot_12.pickle"],
            ["3.pickle", "12.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![3, 12], RanksFrom::Names), "{names:?}");
        }
    }

    #[test]
    fn else_the_position_does() {
        for names in [
            ["before.pickle", "after.pickle"],
            ["rank0.pickle", "rank0.pickle"],
            ["rank0.pickle", "other.pickle"],
            ["step_100.pickle", "step_200.pickle"],
            ["gpt2.pickle", "gpt3.pickle"],
            ["crank3.pickle", "frank4.pickle"],
            ["x_99999999999999999999999.pickle", "x_1.pickle"],
            ["ü.pickle", "ö.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![0, 1], RanksFrom::Positions), "{names:?}");
        }
    }
}
