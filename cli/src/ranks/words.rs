//! What the comparison of ranks found, in sentences.

use parkade_analysis::ranks::{Difference, FailsFirst, LEAST_RANKS, Measure, Odd, Variant};

use super::Ranks;
use crate::terminal::{output, size};

/// How many of the runs that stand out, and of the variants of a difference, are named.
const NAMED: usize = 4;
/// How many ranks, or ranges of them, are listed.
const RANGES: usize = 8;

pub(super) fn sentences(ranks: &Ranks) -> Vec<String> {
    let mut sentences = vec![fails_first(ranks)];
    sentences.extend(odd(ranks));
    sentences.extend(ranks.comparison.differences.iter().map(|difference| differs(ranks, difference)));
    sentences
}

fn fails_first(ranks: &Ranks) -> String {
    let Some(FailsFirst { run, next, is_by_time, failed }) = ranks.comparison.fails_first else {
        let survived = ranks.runs.iter().filter(|ranked| ranked.run.ooms > 0).count();
        return match survived {
            0 => "no rank runs out of memory".to_owned(),
            _ => format!("no rank dies of an out-of-memory error; {survived} of {} survive some", ranks.runs.len()),
        };
    };
    let entry = ranks.runs[run].run.failure.map_or(0, |failure| failure.entry);
    let of = ranks.runs.len();
    let name = named(ranks, &[run]);
    match next {
        _ if failed == 1 => format!("{name} alone runs out of memory, at entry {entry}"),
        Some((next, later_us)) => {
            let later = later_us as f64 / 1e6;
            let next = named(ranks, &[next]);
            format!("{name} runs out of memory first, at entry {entry}, {later:.3} s before {next}; {failed} of {of} do")
        }
        None if is_by_time => format!("{name} runs out of memory first, at entry {entry}; {failed} of {of} do"),
        None => format!(
            "{name} runs out of memory after the fewest entries, {entry}; {failed} of {of} do, and which does so first is not known, as \
             not all files state times"
        ),
    }
}

fn odd(ranks: &Ranks) -> Vec<String> {
    let comparison = &ranks.comparison;
    if comparison.compared.len() < LEAST_RANKS {
        return Vec::new();
    }
    let [first, others @ ..] = comparison.odd.as_slice() else {
        return vec!["no rank stands out from the others".to_owned()];
    };
    let mut sentences = vec![format!("the odd one out is {}: {}", named(ranks, &[first.run]), deviation(*first))];
    let too = others.iter().take(NAMED - 1);
    sentences.extend(too.map(|odd| format!("{} stands out too: {}", named(ranks, &[odd.run]), deviation(*odd))));
    if comparison.odd.len() > NAMED {
        sentences.push(format!("and {} more stand out (--json lists all)", comparison.odd.len() - NAMED));
    }
    sentences
}

fn deviation(odd: Odd) -> String {
    let show = |value: i64| if odd.measure.is_bytes() { size::show(value) } else { value.to_string() };
    let what = match odd.measure {
        Measure::PeakAllocated => "peak allocated",
        Measure::PeakReserved => "peak reserved",
        Measure::Free => "free at the end",
        Measure::LargestHole => "largest hole at the end",
        Measure::Entries => "entries of its trace",
    };
    format!("{what} {}, where the median of the others is {}", show(odd.value), show(odd.median))
}

fn differs(ranks: &Ranks, difference: &Difference) -> String {
    let variants = difference.variants();
    let each = |says: &dyn Fn(&Variant) -> String| {
        let named: Vec<String> = variants.iter().take(NAMED).map(says).collect();
        let more = if variants.len() > NAMED { format!("; and {} more", variants.len() - NAMED) } else { String::new() };
        format!("{}{more}", named.join("; "))
    };
    match difference {
        Difference::Release(_) => {
            format!("the versions of PyTorch differ: {}", each(&|one| format!("{} in {}", one.value, named(ranks, &one.runs))))
        }
        Difference::Settings(_) => {
            let settings = |one: &Variant| if one.value.is_empty() { "default" } else { &one.value }.to_owned();
            let says = |one: &Variant| format!("{} in {}", output::shorten(&settings(one), 80), named(ranks, &one.runs));
            format!("the settings differ: {}", each(&says))
        }
        Difference::Program(_) if variants.iter().all(|one| one.runs.len() == 1) => {
            "these are recordings of different programs: the sizes that they request have little in common, so no odd one out is named"
                .to_owned()
        }
        Difference::Program(_) => {
            let others: Vec<usize> = variants.iter().skip(1).flat_map(|one| one.runs.iter().copied()).collect();
            format!(
                "{}: another program than the others', or another part of it: the sizes requested have little in common, so it is left \
                 out of the search for the odd one",
                named(ranks, &others)
            )
        }
        Difference::Copies(_) => {
            format!("nothing differs between these, as in copies of one recording, so they count once: {}", each(&|one| named(ranks, &one.runs)))
        }
    }
}

/// Runs by name: `rank 3`, `ranks 0-2, 5`, `rank 3 device 1`. Only the first are named if there are many.
fn named(ranks: &Ranks, runs: &[usize]) -> String {
    let word = if runs.len() == 1 { "rank" } else { "ranks" };
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    let names: Vec<String> = if ranks.have_devices() {
        runs.iter().map(|&run| format!("{} device {}", ranks.runs[run].rank, ranks.runs[run].run.device)).collect()
    } else {
        ranges(runs.iter().map(|&run| ranks.runs[run].rank))
    };
    let more = if names.len() > RANGES { " ..." } else { "" };
    format!("{word} {}{more}", output::list(names.iter().take(RANGES)))
}

/// Ascending numbers, consecutive ones together.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let show = |&(first, last): &(u64, u64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(show).collect()
}
