//! What there is to know beside the numbers: what was compared and how, and what the files lack.

use parkade_analysis::diff::{Comparison, Grouping, NoSteps, Origin, Part, Run, Steps};
use parkade_replay::SettingsOrigin;

use super::{Compared, File, Shown};
use crate::terminal::output::count;
use crate::terminal::size::show_bytes;
use crate::terminal::{recording, release, run_words};

/// All there is to know beside the numbers.
pub(super) fn all(compared: &Compared, shown: &Shown) -> Vec<String> {
    let files = [("A", &compared.a), ("B", compared.second())];
    let mut notes = Vec::new();
    if let Shown::Two(comparison) = shown {
        if comparison.a.part == Part::End {
            notes.push("A file without a trace has only the state at its end, so both are compared at their ends.".to_owned());
        }
        if let Part::Common { first, last } = comparison.a.part {
            let peaks = [&comparison.a, &comparison.b].map(|run| show_bytes(run.whole_peak_reserved_bytes));
            notes.push(format!(
                "Not all steps are in both files: steps {first} to {last} are compared. All that is in the files peaks at {} and {} reserved.",
                peaks[0], peaks[1]
            ));
        }
        notes.extend(grouping(comparison));
        notes.extend(no_steps(&comparison.steps));
    }
    let is_one_file = compared.b.is_none();
    for ((name, file), run) in files.into_iter().zip(shown.runs()).take(if is_one_file { 1 } else { 2 }) {
        notes.extend(of_run(if is_one_file { "The file" } else { name }, file, run));
    }
    notes
}

/// That requests were out of memory: a peak below such a bound is no good news.
pub(super) fn out_of_memory(compared: &Compared, shown: &Shown) -> Vec<String> {
    let of_run = |(name, run): (&str, &Run)| {
        let entry = run.first_oom_entry?;
        let name = if matches!(shown, Shown::One(_)) { "" } else { name };
        let requests = count(run.ooms, "request");
        let what = format!("{name}{requests} ran out of memory, the first at entry {entry}");
        let ending = run_words::ending(&run.ending).unwrap_or_default();
        let peak = if run.ending.death().is_some() { "; its peak is that of what came before" } else { "" };
        Some(format!("{what}; {ending}{peak}"))
    };
    let names = if compared.b.is_none() { ["the first step: ", "the second step: "] } else { ["A: ", "B: "] };
    names.into_iter().zip(shown.runs()).filter_map(of_run).collect()
}

fn of_run(name: &str, file: &File, run: &Run) -> Vec<String> {
    let mut notes = vec![format!("{name}: {}.", release::words(&file.made_by))];
    if file.own.settings.origin == SettingsOrigin::Assumed {
        notes.push(format!("{name} does not say its settings; PyTorch's defaults are assumed."));
    }
    if let Some(bytes) = file.found_limit {
        notes.push(format!("{name}: {}.", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    if run.mismatches > 0 {
        notes.push(format!(
            "{name}: {} in its replay, so its allocated bytes, retries and calls of empty_cache may be off; its reserved bytes \
             are those of the file (--recorded-limit gives the memory limit of the run).",
            recording::differing(run.mismatches, run.decisions)
        ));
    }
    if let Some(bytes) = run.lost_beginning_bytes {
        notes.push(format!(
            "{name} lost its beginning: {} was reserved before its first entry; an earlier, higher peak is not in the file, and blocks \
             from then have no stacks unless they live to the end.",
            show_bytes(bytes)
        ));
    }
    if run.entries == 0 {
        notes.push(format!("{name} has no trace, so its peak, its steps and its driver calls are not known."));
    }
    notes
}

fn grouping(comparison: &Comparison) -> Option<String> {
    let has_sizes = comparison.growth.iter().any(|group| matches!(group.origin, Origin::Sizes(_)));
    match comparison.grouping {
        Grouping::Stacks if has_sizes => Some(
            "Blocks without a stack, such as those of autograd's threads, are grouped by the size that was requested.".to_owned(),
        ),
        Grouping::Stacks => None,
        Grouping::Sizes { a_has_stacks, b_has_stacks } => {
            let who = match (a_has_stacks, b_has_stacks) {
                (true, _) => "B has no stacks",
                (_, true) => "A has no stacks",
                _ => "Neither file has stacks",
            };
            Some(format!(
                "{who}, so blocks are grouped by the size that was requested \
                 (torch.cuda.memory._record_memory_history(stacks='python') records stacks)."
            ))
        }
    }
}

fn no_steps(steps: &Steps) -> Option<String> {
    let why = |name: &str, why: Option<NoSteps>| why.map(|why| format!("{name}: {why}"));
    let reasons = match (steps.none_in_a, steps.none_in_b) {
        (None, None) if steps.marks.is_some() && steps.pairs.is_empty() => vec!["no step is in both traces".to_owned()],
        (Some(a), Some(b)) if a == b => vec![format!("A and B: {a}")],
        (a, b) => [why("A", a), why("B", b)].into_iter().flatten().collect(),
    };
    (!reasons.is_empty()).then(|| format!("Steps are not compared. {}.", reasons.join("; ")))
}
