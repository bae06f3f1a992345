//! A comparison as text: what changed in a sentence, then tables from the peaks to the steps, with the values of one run or of
//! two side by side.
//!
//! The sentences say what changed, how the recordings are related, and what they lack; notes say what was compared and how.

use parkade_analysis::diff::{
    Comparison, Grouping, Held, Measure, NoSteps, Origin, Part, Peak, Phase, REPETITION, Relation, Run, Steps, Which,
};
use parkade_analysis::fragmentation::Fragmentation;
use parkade_replay::SettingsOrigin;
use parkade_replay::recognition::in_words;

use super::begins;
use super::compared::{Checked, Compared, File, Shown, Verdict, change, percent, phase_words};
use crate::terminal::answer::Answer;
use crate::terminal::output::{self, Tone, count};
use crate::terminal::recording::{self, short_name};
use crate::terminal::run_words;
use crate::terminal::runner::Outcome;
use crate::terminal::size::{show_apart, show_bytes};
use crate::terminal::table::Table;

/// The parts of reserved memory, which add up to all of it.
pub(super) fn parts(heap: &Fragmentation) -> [(&'static str, u64); 4] {
    [
        ("in use, as requested", heap.requested_bytes),
        ("lost to rounding", heap.rounding_bytes()),
        ("free in whole segments", heap.free_segments_bytes),
        ("free beside blocks in use", heap.partial_segments_bytes),
    ]
}

/// The device of a verdict; nothing if there is only one.
fn on(compared: &Compared, shown: &Shown) -> String {
    let devices: Vec<u32> = shown.runs().iter().map(|run| run.device).collect();
    match devices.as_slice() {
        [a, b] if a != b => format!("Device {a} of A and device {b} of B: "),
        [device, ..] if compared.devices.len() > 1 => format!("Device {device}: "),
        _ => String::new(),
    }
}

/// The peaks of a run that is not compared.
fn headline_of_one(run: &Run) -> String {
    let (reserved, allocated) = (show_bytes(run.peak_reserved.bytes), show_bytes(run.peak_allocated.bytes));
    if run.part == Part::End || run.entries == 0 {
        return format!("At the end, {reserved} is reserved and {allocated} allocated.");
    }
    let at = |peak: &Peak| peak.entry.map_or_else(|| "before entry 0".to_owned(), |entry| format!("at entry {entry}"));
    let (at_reserved, at_allocated) = (at(&run.peak_reserved), at(&run.peak_allocated));
    format!(
        "Reserved memory first reaches its peak, {reserved}, {at_reserved}; allocated memory first reaches its peak, {allocated}, \
         {at_allocated}."
    )
}

/// What changed, in a sentence.
fn headline(comparison: &Comparison) -> String {
    let (a, b) = (&comparison.a, &comparison.b);
    let (reserved_a, reserved_b) = (a.peak_reserved.bytes, b.peak_reserved.bytes);
    let (allocated_a, allocated_b) = (a.peak_allocated.bytes, b.peak_allocated.bytes);
    let is_end = a.part == Part::End;
    let when = if is_end { "at the end" } else { "at its peak" };
    if reserved_a == reserved_b {
        let allocated = match change(allocated_a, allocated_b).as_str() {
            "same" => format!("and holds as much: {}", show_bytes(allocated_b)),
            change => {
                let percent = percent(allocated_a, allocated_b);
                format!("and what it holds {when} changes by {change} ({percent}) to {}", show_bytes(allocated_b))
            }
        };
        return format!("B reserves as much as A {when}: {}, {allocated}.", show_bytes(reserved_b));
    }
    let more = if reserved_b > reserved_a { "more" } else { "less" };
    format!(
        "B reserves {} {more} than A {when}: {} instead of {} ({}).",
        show_bytes(reserved_a.abs_diff(reserved_b)),
        show_bytes(reserved_b),
        show_bytes(reserved_a),
        percent(reserved_a, reserved_b)
    )
}

/// How the recordings are related; `None` if parts of one recording are compared.
pub(super) fn relation(compared: &Compared, comparison: &Comparison, [name_a, name_b]: [&str; 2]) -> Option<String> {
    let likeness = &comparison.likeness;
    if let (Part::Step(a), Part::Step(b)) = (comparison.a.part, comparison.b.part) {
        let is_one_run = likeness.relation == Relation::SameRun;
        return is_one_run
            .then(|| format!("A and B were recorded during one run; step {a} of A is compared with step {b} of B."));
    }
    let common = common(likeness.requests_in_common, likeness.stacks_in_common);
    Some(match likeness.relation {
        Relation::SameRecording => format!("{name_a} and {name_b} are the same recording, so nothing differs."),
        Relation::SameRun => format!("{name_a} and {name_b} were recorded during one run; --steps compares two of its steps."),
        Relation::SameRequests => same_requests(compared, comparison, [name_a, name_b]),
        Relation::Related => {
            let most = likeness.requests_in_common.into_iter().chain(likeness.stacks_in_common).fold(0.0, f64::max);
            let extent = if most > 0.5 { "Most" } else { "Only some" };
            format!("{extent} requests are in both {name_a} and {name_b}: {common}.")
        }
        Relation::LittleInCommon => format!(
            "The recordings have little in common: {common}. They are from different programs, or from one program with \
             different shapes (batch, sequence length); only totals can be compared."
        ),
        Relation::Unknown => return None,
    })
}

fn same_requests(compared: &Compared, comparison: &Comparison, [name_a, name_b]: [&str; 2]) -> String {
    let [a, b] = [&compared.a, compared.second()].map(|file| &file.made_by.releases);
    let is_other = !a.iter().any(|release| b.contains(release));
    let made = is_other.then(|| format!("the release ({name_a} is from PyTorch {}, {name_b} from {})", in_words(a), in_words(b)));
    match comparison.first_other_answer {
        None if has_same_memory(comparison) => {
            "Both make the same requests, and the allocator served them in the same way.".to_owned()
        }
        Some(entry) if has_same_memory(comparison) => format!(
            "Both make the same requests and need the same memory, but the allocator's decisions diverge at entry {entry}; {}.",
            made.map_or("its settings or the timing of streams differ".to_owned(), |made| format!("they differ in {made}"))
        ),
        first => {
            let made = made.map_or_else(String::new, |made| format!("{made}, "));
            let from = first.map_or_else(String::new, |entry| format!("; it begins at entry {entry}"));
            format!(
                "Both make the same requests, so the allocator makes the difference: {made}its settings, the memory limit, or \
                 the timing of streams{from}."
            )
        }
    }
}

/// Whether both took the same memory from the driver and held the same at their peaks.
fn has_same_memory(comparison: &Comparison) -> bool {
    let of = |run: &Run| (run.driver, run.peak_allocated.bytes, run.peak_reserved.heap);
    of(&comparison.a) == of(&comparison.b)
}

fn common(requests: Option<f64>, stacks: Option<f64>) -> String {
    let percent = |share: f64| match share * 100.0 {
        some if some > 99.95 && share < 1.0 => "99.9 %".to_owned(),
        some => format!("{some:.1} %"),
    };
    let requests = requests.map(|share| format!("{} of the requests in the shorter trace are also in the other", percent(share)));
    let stacks = stacks.map(|share| format!("{} of the stacks are in both", percent(share)));
    [requests, stacks].into_iter().flatten().collect::<Vec<_>>().join(", and ")
}

/// The settings and the extent of a run.
fn run_line(file: &File, run: &Run) -> String {
    let settings = match file.own.settings.settings.text.as_str() {
        _ if file.own.settings.origin == SettingsOrigin::Assumed => "settings not in the file",
        "" => "default settings",
        text => text,
    };
    let steps = run.steps.map_or_else(String::new, |steps| format!(", {}", count(steps, "step")));
    let part = match run.part {
        Part::Step(step) => format!("step {step}, entries {} to {}", run.part_entries.0, run.part_entries.1.saturating_sub(1)),
        _ if run.entries == 0 => "no trace".to_owned(),
        Part::End => format!("the end, after {}", count(run.entries, "entry")),
        _ => format!("{}{steps}", count(run.entries, "entry")),
    };
    output::one_line(&format!("{}; {part}", output::shorten(settings, 200)))
}

/// What the steps show as a whole.
fn steps_words(steps: &Steps) -> Option<String> {
    let (first, last) = (steps.pairs.first()?, steps.pairs.last()?);
    let by = |pair: &&parkade_analysis::diff::StepPair| pair.b.peak_reserved_bytes.abs_diff(pair.a.peak_reserved_bytes);
    // The first among equals.
    let largest = steps.pairs.iter().rev().max_by_key(by)?;
    let marks = steps.marks.as_ref().map_or_else(String::new, |(a, b)| {
        if a == REPETITION && b == REPETITION {
            return " (unmarked; inferred from what the runs repeat)".to_owned();
        }
        let marks = if a == b { a.clone() } else { format!("{a} and {b}") };
        format!(" (marked by {})", output::one_line(&output::shorten(&marks, 120)))
    });
    let extent =
        if first.step == last.step { format!("step {}", first.step) } else { format!("steps {} to {}", first.step, last.step) };
    let alone = |name: &str, alone: usize| {
        if alone > 0 { format!("; {} only in {name}", count(alone, "step")) } else { String::new() }
    };
    let most = if by(&largest) == 0 {
        "the peak of reserved memory is the same in each step".to_owned()
    } else {
        let change = change(largest.a.peak_reserved_bytes, largest.b.peak_reserved_bytes);
        format!("taking each step's own peak of reserved memory, step {} differs most: {change}", largest.step)
    };
    Some(format!("{extent} of both{marks}: {most}{}{}", alone("A", steps.only_a), alone("B", steps.only_b)))
}

/// The memory that stays allocated at the ends of steps, from the second on; the first one builds the optimizer's state.
fn kept(steps: &Steps) -> Option<String> {
    let (second, last) = (steps.pairs.get(1)?, steps.pairs.last()?);
    if last.step < second.step + 2 {
        return None;
    }
    let changes = |name: &str, from: u64, to: u64| match change(from, to).as_str() {
        "same" => format!("does not change in {name}"),
        change => format!("changes by {change} in {name}"),
    };
    let [a, b] =
        [(second.a, last.a), (second.b, last.b)].map(|(from, to)| (from.allocated_at_end_bytes, to.allocated_at_end_bytes));
    let said = if a.0 == a.1 && b.0 == b.1 {
        "changes in neither A nor B".to_owned()
    } else {
        format!("{} and {}", changes("A", a.0, a.1), changes("B", b.0, b.1))
    };
    Some(format!("from the end of step {} to the end of step {}, allocated memory {said}", second.step, last.step))
}

/// Notes beside the numbers.
pub(super) fn notes(compared: &Compared, shown: &Shown) -> Vec<String> {
    let files = [("A", &compared.a), ("B", compared.second())];
    let mut notes = Vec::new();
    if let Shown::Two(comparison) = shown {
        if comparison.a.part == Part::End {
            notes.push("A file without a trace has only the state at its end, so both are compared at their ends.".to_owned());
        }
        if let Part::Common { first, last } = comparison.a.part {
            let peaks = [&comparison.a, &comparison.b].map(|run| show_bytes(run.whole_peak_reserved_bytes));
            let died = [&comparison.a, &comparison.b].iter().any(|run| run.ending.death().is_some());
            let unfinished = if died { ", the last of which the run that died did not finish" } else { "" };
            notes.push(format!(
                "Not all steps are in both files: steps {first} to {last} are compared{unfinished}. Over all steps and what lies \
                 outside them, the peaks of reserved memory are {} and {}{}.",
                peaks[0],
                peaks[1],
                outside_the_common_steps(comparison)
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

/// Whether what lies outside the compared steps could change the verdict.
fn outside_the_common_steps(comparison: &Comparison) -> &'static str {
    let is_higher = |run: &Run| run.whole_peak_reserved_bytes > run.peak_reserved.bytes;
    match (is_higher(&comparison.a), is_higher(&comparison.b)) {
        (false, false) => ", the same as in the compared steps, so the verdict does not depend on the others",
        (true, false) => "; A's is outside the compared steps, and --fail-above PERCENT does not count it",
        (false, true) => "; B's is outside the compared steps: --fail-above SIZE counts it, --fail-above PERCENT does not",
        (true, true) => {
            "; both are outside the compared steps: --fail-above SIZE counts B's, --fail-above PERCENT counts neither"
        }
    }
}

/// A note that requests were out of memory: a peak below a bound is then not good news.
pub(super) fn out_of_memory(compared: &Compared, shown: &Shown) -> Vec<String> {
    let of_run = |(name, run): (&str, &Run)| {
        let entry = run.first_oom_entry?;
        let name = if matches!(shown, Shown::One(_)) { "" } else { name };
        let requests = count(run.ooms, "request");
        let what = format!("{name}{requests} ran out of memory, the first at entry {entry}");
        let ending = run_words::ending(&run.ending).unwrap_or_default();
        let peak = if run.ending.death().is_some() { "; its peak covers only the time before the error" } else { "" };
        Some(format!("{what}; {ending}{peak}"))
    };
    let names = if compared.b.is_none() { ["the first step: ", "the second step: "] } else { ["A: ", "B: "] };
    names.into_iter().zip(shown.runs()).filter_map(of_run).collect()
}

fn of_run(name: &str, file: &File, run: &Run) -> Vec<String> {
    let mut notes = vec![format!("{name}: {}.", recording::made_by_words(&file.made_by))];
    if file.own.settings.origin == SettingsOrigin::Assumed {
        notes.push(format!("{name} does not have its settings; the default settings are assumed."));
    }
    if let Some(bytes) = file.found_limit {
        notes.push(format!("{name}: {}.", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    if run.mismatches > 0 {
        notes.push(format!(
            "{name}: {} in its replay, so its allocated bytes, retries and calls to empty_cache may be off; its reserved bytes \
             are those in the file (--recorded-limit gives the memory limit of the run).",
            recording::differing(run.mismatches, run.decisions)
        ));
    }
    if let Some(bytes) = run.lost_beginning_bytes {
        notes.push(format!(
            "{name} lacks its oldest entries: {} was reserved before its first entry; an earlier, higher peak is not in the \
             file, and blocks from that time have no stacks unless they live to the end.",
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

/// Groups of blocks that are listed without --all.
const GROUPS: usize = 10;

/// The answer. `exit` is the outcome of the command, if this is its only answer.
pub(super) fn answer(compared: &Compared, all: bool, exit: Option<Outcome>) -> Answer {
    let mut answer = Answer::new();
    for checked in &compared.checks {
        verdict(&mut answer, compared, checked, exit);
    }
    // Below the verdict on the only device is where its change begins; several devices have their own lines.
    let is_first = !compared.checks.is_empty() && compared.devices.len() == 1;
    let begins = |answer: &mut Answer, shown: &Shown| {
        begins::rows(compared, shown, ["A", "B"]).into_iter().for_each(|(label, text)| answer.row(label, text));
    };
    if is_first {
        begins(&mut answer, &compared.devices[0]);
    }
    if !compared.checks.is_empty() {
        answer.gap();
    }
    for (place, shown) in compared.devices.iter().enumerate() {
        if place > 0 {
            answer.gap();
        }
        if let Shown::One(run) = shown {
            answer.headline(Tone::Plain, format!("{}{}", on(compared, shown), headline_of_one(run)));
        }
        if let Shown::Two(comparison) = shown {
            answer.headline(Tone::Plain, format!("{}{}", on(compared, shown), headline(comparison)));
        }
        if !is_first {
            begins(&mut answer, shown);
        }
        for text in out_of_memory(compared, shown) {
            answer.alert("out of memory:", text);
        }
        if let Shown::Two(comparison) = shown {
            answer.paragraphs(relation(compared, comparison, ["A", "B"]));
        }
        files(&mut answer, compared, shown);
        match shown {
            Shown::One(run) if all => {
                answer.gap();
                peaks(&mut answer, &[run]);
                details(&mut answer, &[run]);
            }
            Shown::One(_) => {}
            Shown::Two(comparison) => two(&mut answer, compared, comparison, all),
        }
        let notes = notes(compared, shown);
        if !notes.is_empty() {
            answer.gap();
        }
        answer.paragraphs(notes);
    }
    answer.paragraphs(&compared.notes);
    if !compared.checks.is_empty() {
        answer.paragraph("--fail-above checks the peak of reserved memory, not of allocated memory.");
    }
    if !all {
        let are_two = compared.devices.iter().any(|shown| matches!(shown, Shown::Two(_)));
        let more = if are_two { ", the driver calls, phases and steps" } else { " and the driver calls" };
        answer.hint(format!("--all also shows how memory is used at the peaks{more}"));
    }
    answer
}

/// A line for each side: its file, settings and extent.
fn files(answer: &mut Answer, compared: &Compared, shown: &Shown) {
    let runs = shown.runs();
    let has_several = compared.devices.len() > 1 || runs.iter().any(|run| run.device != runs[0].device);
    let files = [("A", &compared.a), ("B", compared.second())];
    for ((letter, file), run) in files.into_iter().zip(&runs) {
        let letter = if runs.len() > 1 { format!("{letter}: ") } else { String::new() };
        let device = if has_several { format!(" device {}", run.device) } else { String::new() };
        answer.toned(Tone::Dim, format!("{letter}{}{device}, {}", short_name(&file.path), run_line(file, run)));
    }
}

fn two(answer: &mut Answer, compared: &Compared, comparison: &Comparison, all: bool) {
    answer.gap();
    let runs = [&comparison.a, &comparison.b];
    peaks(answer, &runs);
    if all {
        details(answer, &runs);
    }
    let changed = comparison.onset.as_ref().map_or(Measure::Allocated, |onset| onset.measure);
    groups(answer, compared, comparison, changed, all);
    let other = if changed == Measure::Reserved { Measure::Allocated } else { Measure::Reserved };
    if all && has_trace(&runs) && runs.iter().any(|run| run.peak_allocated.entry != run.peak_reserved.entry) {
        groups(answer, compared, comparison, other, all);
    }
    // A phase or a step of one program says nothing about another program's.
    if all && comparison.likeness.relation != Relation::LittleInCommon {
        phases(answer, comparison);
        steps(answer, comparison);
    }
}

fn has_trace(runs: &[&Run]) -> bool {
    runs.iter().all(|run| run.entries > 0 && run.part != Part::End)
}

/// How high the peaks are, and where.
fn peaks(answer: &mut Answer, runs: &[&Run]) {
    let has_trace = has_trace(runs);
    let mut table = Columns::new("memory", runs);
    table.bytes("peak allocated", |run| run.peak_allocated.bytes);
    if has_trace {
        table.text("  first at", |run| place(&run.peak_allocated));
    }
    table.bytes("peak reserved", |run| run.peak_reserved.bytes);
    if has_trace {
        table.text("  first at", |run| place(&run.peak_reserved));
    }
    answer.table(table.table);
}

/// How reserved memory is used at the peaks, and the driver calls.
fn details(answer: &mut Answer, runs: &[&Run]) {
    if !has_trace(runs) {
        return heap(answer, "at the end", runs, |run| &run.peak_reserved);
    }
    let is_at_both = |run: &Run| run.peak_allocated.heap.reserved_bytes == run.peak_reserved.bytes;
    if runs.iter().all(|run| is_at_both(run)) {
        heap(answer, "at both peaks", runs, |run| &run.peak_allocated);
    } else {
        heap(answer, "at the peak of allocated memory", runs, |run| &run.peak_allocated);
        heap(answer, "at the peak of reserved memory", runs, |run| &run.peak_reserved);
    }
    let mut table = Columns::new("driver calls", runs);
    table.number("segments taken", |run| run.driver.segments_taken);
    table.number("segments given back", |run| run.driver.segments_given_back);
    table.rare_number("page mappings", |run| run.driver.maps);
    table.rare_number("page unmappings", |run| run.driver.unmaps);
    table.bytes("bytes taken", |run| run.driver.taken_bytes);
    table.rare_number("retries after a refusal", |run| run.retries);
    table.rare_number("calls to empty_cache", |run| run.empty_cache_calls);
    table.rare_number("requests out of memory", |run| run.ooms);
    answer.gap();
    answer.table(table.table);
}

/// How memory is used at a peak.
fn heap(answer: &mut Answer, title: &str, runs: &[&Run], peak: fn(&Run) -> &Peak) {
    let mut table = Columns::new(title, runs);
    table.bytes("reserved", |run| peak(run).heap.reserved_bytes);
    for (place, (name, _)) in parts(&runs[0].peak_reserved.heap).into_iter().enumerate() {
        table.bytes(&format!("  {name}"), |run| parts(&peak(run).heap)[place].1);
    }
    if runs.iter().any(|run| peak(run).heap.pending_bytes > 0) {
        table.bytes("freed, but in use by other streams", |run| peak(run).heap.pending_bytes);
    }
    table.bytes("largest hole", |run| peak(run).heap.largest_hole_bytes);
    table.number("holes", |run| peak(run).heap.holes);
    table.number("segments", |run| peak(run).segments as u64);
    table.text("1 - allocated / reserved", |run| {
        peak(run).heap.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
    });
    answer.gap();
    answer.table(table.table);
}

fn place(peak: &Peak) -> String {
    let entry = peak.entry.map_or_else(|| "before entry 0".to_owned(), |entry| format!("entry {entry}"));
    let step = peak.step.map_or_else(String::new, |step| format!(", step {step}"));
    format!("{entry}{step}")
}

/// What holds the memory at the peaks of this measure. Stacks that look the same in one line share a row; JSON lists each.
fn groups(answer: &mut Answer, compared: &Compared, comparison: &Comparison, measure: Measure, all: bool) {
    let rows = begins::rows_of_groups(compared, begins::growth(comparison, measure));
    if rows.is_empty() {
        return;
    }
    let (changed, same): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, [a, b])| a != b);
    let when = match measure {
        _ if comparison.a.part == Part::End || comparison.a.entries == 0 => "at the end",
        Measure::Allocated => "at the peak of allocated memory",
        Measure::Reserved => "at the peak of reserved memory",
    };
    answer.gap();
    if changed.is_empty() {
        answer.toned(Tone::Dim, format!("held {when}: the same in {}", count(same.len(), "group")));
    } else {
        let held = format!("held {when}");
        let mut table = Table::new(["change", "A (blocks)", "B (blocks)", held.as_str()]);
        let (shown, rest) = changed.split_at(if all { changed.len() } else { changed.len().min(GROUPS) });
        for (name, held) in shown {
            table.row(cells(name, *held));
        }
        if !rest.is_empty() {
            table.row(cells(&format!("{} that changed (--all shows them)", count(rest.len(), "more group")), sum(rest)));
        }
        if !same.is_empty() {
            table.row(cells(&format!("{} that did not change", count(same.len(), "group")), sum(&same)));
        }
        let [(a, b), (c, d)] = [sum(&changed), sum(&same)].map(|[a, b]| (a, b));
        table.row(cells("together", [a.and(c), b.and(d)]));
        if measure == Measure::Reserved {
            let [a, b] = begins::unused(comparison);
            table.row([change(a, b), show_bytes(a), show_bytes(b), begins::UNUSED.to_owned()]);
        }
        answer.table(table.with_left([3]));
    }
}

fn sum(rows: &[(String, [Held; 2])]) -> [Held; 2] {
    rows.iter().fold(<[Held; 2]>::default(), |[a, b], (_, held)| [a.and(held[0]), b.and(held[1])])
}

fn cells(name: &str, [a, b]: [Held; 2]) -> [String; 4] {
    let held = |held: Held| format!("{} ({})", show_bytes(held.bytes), held.blocks);
    [change(a.bytes, b.bytes), held(a), held(b), name.to_owned()]
}

fn phases(answer: &mut Answer, comparison: &Comparison) {
    if comparison.phases.is_empty() {
        return;
    }
    let of_optimizer = |phase: &Phase| matches!(phase, Phase::Optimizer | Phase::ZeroGrad | Phase::Outside | Phase::BeforeTrace);
    let has_others = comparison.phases.iter().any(|change| !of_optimizer(&change.phase));
    let heads = [
        "requested during",
        "A holds at the peak",
        "B holds at the peak",
        "change",
        "A's peak during it",
        "B's peak during it",
        "change of that peak",
    ];
    let mut table = Table::new(heads);
    for phase in &comparison.phases {
        let (a, b) = (&phase.a, &phase.b);
        table.row([
            phase_words(&phase.phase, has_others),
            show_bytes(a.held_at_peak_bytes),
            show_bytes(b.held_at_peak_bytes),
            change(a.held_at_peak_bytes, b.held_at_peak_bytes),
            show_bytes(a.peak_allocated_bytes),
            show_bytes(b.peak_allocated_bytes),
            change(a.peak_allocated_bytes, b.peak_allocated_bytes),
        ]);
    }
    answer.gap();
    answer.table(table);
}

fn steps(answer: &mut Answer, comparison: &Comparison) {
    let pairs = &comparison.steps.pairs;
    let Some(said) = steps_words(&comparison.steps) else { return };
    answer.gap();
    answer.paragraph(said);
    answer.paragraphs(kept(&comparison.steps));
    let heads = [
        "step",
        "A peak allocated",
        "B peak allocated",
        "change of allocated",
        "A peak reserved",
        "B peak reserved",
        "change of reserved",
    ];
    let mut table = Table::new(heads);
    for pair in pairs {
        let (a, b) = (&pair.a, &pair.b);
        table.row([
            pair.step.to_string(),
            show_bytes(a.peak_allocated_bytes),
            show_bytes(b.peak_allocated_bytes),
            change(a.peak_allocated_bytes, b.peak_allocated_bytes),
            show_bytes(a.peak_reserved_bytes),
            show_bytes(b.peak_reserved_bytes),
            change(a.peak_reserved_bytes, b.peak_reserved_bytes),
        ]);
    }
    answer.table(table.with_left([]));
}

/// Whether a bound holds, and what that makes of the exit code.
fn verdict(answer: &mut Answer, compared: &Compared, checked: &Checked, exit: Option<Outcome>) {
    let (check, verdict) = (&checked.check, compared.verdict(checked));
    let device = if compared.devices.len() > 1 { format!("device {}: ", checked.device) } else { String::new() };
    let [peak, allowed] = show_apart(check.peak_bytes, check.allowed_bytes);
    let allowed = format!("{allowed} (--fail-above {})", checked.text);
    let peak = format!("{device}the peak of reserved memory, {peak}{},", growth_of(compared, checked));
    let code =
        exit.filter(|exit| *exit == verdict.outcome()).map_or_else(String::new, |exit| format!("; exit code {}", exit as u8));
    match verdict {
        Verdict::Exceeded => answer.alert("too much:", format!("{peak} is above {allowed}{code}")),
        Verdict::Holds => answer.headline(Tone::Good, format!("holds: {peak} is not above {allowed}{code}")),
        Verdict::Died(which) => {
            let (is, run) = match which {
                Which::A => ("is above", "A"),
                Which::B if matches!(compared.devices[0], Shown::Two(_)) => ("is not above", "B"),
                Which::B => ("is not above", "the run"),
            };
            let because = format!("{run} died, and its peak covers only the time before the error");
            answer.alert("not known:", format!("{peak} {is} {allowed}, but {because}{code}"));
        }
    }
}

/// By how much the checked peak grew, in brackets; nothing if it is not the peak of what both files have.
fn growth_of(compared: &Compared, checked: &Checked) -> String {
    let of_device = |shown: &&Shown| shown.last().device == checked.device;
    let Some(Shown::Two(comparison)) = compared.devices.iter().find(of_device) else { return String::new() };
    let [a, b] = [&comparison.a, &comparison.b].map(|run| run.peak_reserved.bytes);
    match percent(a, b) {
        _ if b != checked.check.peak_bytes => String::new(),
        percent if percent.is_empty() => format!(" ({})", if a == b { "the same as A's".to_owned() } else { change(a, b) }),
        percent => format!(" ({}, {percent})", change(a, b)),
    }
}

/// A table with a column for each run and, for two, the change.
struct Columns<'r> {
    runs: &'r [&'r Run],
    table: Table,
}

impl<'r> Columns<'r> {
    fn new(title: &str, runs: &'r [&'r Run]) -> Columns<'r> {
        let heads: &[&str] = if runs.len() > 1 { &["A", "B", "change", "%"] } else { &["this run"] };
        Columns { runs, table: Table::new(std::iter::once(title).chain(heads.iter().copied())) }
    }

    fn row(
        &mut self,
        name: &str,
        value: impl Fn(&Run) -> u64,
        show: impl Fn(u64) -> String,
        change: impl Fn(u64, u64) -> String,
    ) {
        let values: Vec<u64> = self.runs.iter().map(|run| value(run)).collect();
        let mut cells = vec![name.to_owned()];
        cells.extend(values.iter().map(|&value| show(value)));
        if let [a, b] = values[..] {
            cells.extend([change(a, b), percent(a, b)]);
        }
        self.table.row(cells);
    }

    fn bytes(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, show_bytes, change);
    }

    fn number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, |number| number.to_string(), number_change);
    }

    /// Numbers that are mostly 0: adds a row only if one is not.
    fn rare_number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        if self.runs.iter().any(|run| value(run) > 0) {
            self.number(name, value);
        }
    }

    fn text(&mut self, name: &str, text: impl Fn(&Run) -> String) {
        let cells: Vec<String> = std::iter::once(name.to_owned()).chain(self.runs.iter().map(|run| text(run))).collect();
        self.table.row(cells);
    }
}

fn number_change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", b - a),
        std::cmp::Ordering::Less => format!("-{}", a - b),
    }
}
