//! Advice as text: by default in twelve lines, or as a verdict and a table with a row for each option, then notes, and last the
//! recommendation.
//!
//! The twelve lines are the verdict, the best remedy and its effect, the reason, what to check, other remedies, and last the line to
//! paste. In the table, each rank of a job has a row with its own best settings and with the one setting for all. For a file without a
//! trace, the table shows what was held at its end, and what that means for other amounts of memory.

use parkade_analysis::advise::{
    Advice, AdvisedOption, DeviceMemory, DeviceOutcome, Held, MemoryBudget, Outcome, Outcome as Fit, Program, Verdict, paste_line,
};
use parkade_analysis::caution::Caution;
use parkade_analysis::holders::Kind;
use parkade_recording::DeviceRecording;
use parkade_replay::SettingsOrigin;
use parkade_replay::recognition::Basis;

use super::advised::{Advised, Job, Otherwise, available, fits};
use super::names::{self, on_it, smallest_on_tightest};
use super::remedies::{self, Remedy};
use super::words::{self, notes_without_trace};
use crate::commands::beside::{self, Needs};
use crate::terminal::answer::{Answer, capitalised};
use crate::terminal::output::{self, Tone};
use crate::terminal::recording::{self, short_name};
use crate::terminal::run_words;
use crate::terminal::size::{show, show_apart, show_bytes};
use crate::terminal::table::{Mark, Table};

const HEADS: [&str; 9] =
    ["settings", "fits", "fails at", "oom", "peak reserved", "headroom", "smallest memory", "retries", "driver time"];
/// The note below the table of several devices.
const OF_SEVERAL_DEVICES: &str = "sizes are for the worst device (--json lists each device)";

pub(super) fn full_answer(advised: &Advised, report: &Advice) -> Answer {
    let mut answer = Answer::new();
    let verdict = headline(advised, report);
    answer.headline(tone(advised, report), capitalised(&output::one_line(&verdict)));
    answer.toned(Tone::Dim, format!("{}: {}", short_name(&advised.file), header(advised, report)));
    if let Some(failed) = words::self_check_failed(report) {
        answer.toned(Tone::Bad, failed);
    }
    options(&mut answer, report);
    answer.paragraphs(advised.policies.iter().map(Needs::words));
    answer.paragraphs(measure(advised, report));
    let notes = words::notes(advised, report);
    if !notes.is_empty() {
        answer.gap();
    }
    answer.paragraphs(notes);
    answer.gap();
    end(&mut answer, advised, report);
    answer
}

fn header(advised: &Advised, report: &Advice) -> String {
    let requests: usize = report.programs.iter().map(Program::recorded_operations).sum();
    let mismatches: u64 = report.programs.iter().map(|program| program.requests.mismatches).sum();
    let inferred_on = |device: &DeviceRecording| device.left_out.as_ref().and_then(|left_out| left_out.inferred_entries);
    let inferred: usize = advised.recording.devices.iter().filter_map(inferred_on).sum();
    let exact = if !advised.recording.devices.iter().any(recording::has_history) {
        recording::NO_HISTORY.to_owned()
    } else if mismatches == 0 && inferred > 0 {
        format!("every decision in the file verified, {} inferred", output::count(inferred as u64, "entry"))
    } else if mismatches == 0 {
        "every decision verified".to_owned()
    } else {
        format!("{} differ from the recording", output::count(mismatches, "decision"))
    };
    let (live, device) = names::fullest(report).map_or((0, 0), |(program, _)| (program.live.bytes, program.device));
    let memory = match names::available_bytes(report, device) {
        Some(available) => format!("{} of memory", show_bytes(available)),
        None => "no memory limit".to_owned(),
    };
    let (requests, on) = (output::count(requests, "request"), names::on(report, device));
    format!(
        "{requests}, {exact}; {on}at most {} live with minimal rounding, {memory}; {} settings tried",
        show_bytes(live),
        report.options.len()
    )
}

/// Adds the table of options: the recorded run's own settings first, then the most useful ones.
fn options(answer: &mut Answer, report: &Advice) {
    let name = |option: &AdvisedOption| {
        let own = if option.is_own { " (the run's own)" } else { "" };
        let caution = if option.has_warnings() { " (!)" } else { "" };
        format!("{}{own}{caution}", names::in_full(&option.settings.text))
    };
    // Without a limit nothing fails and there is no headroom.
    let has_memory = report.own().available_bytes.is_some();
    let shown = |place: &usize| has_memory || !matches!(place, 1..=3 | 5);
    let columns =
        |cells: [String; HEADS.len()]| cells.into_iter().enumerate().filter(|(place, _)| shown(place)).map(|(_, cell)| cell);
    let mut table = Table::new(columns(HEADS.map(str::to_owned)));
    for (place, option) in report.options.iter().enumerate() {
        let fits = if has_memory { 1 } else { usize::MAX };
        table.marked(columns(cells(report, place, option, name(option))), fits, Mark::of(option.fits()));
    }
    answer.table(table);
    if report.programs.len() > 1 {
        answer.toned(Tone::Dim, OF_SEVERAL_DEVICES);
    }
    if report.programs.iter().any(|program| program.continuation.is_some()) {
        answer.toned(Tone::Dim, "peaks, memory, retries and times include the estimated rest");
    }
    if report.options.iter().any(|option| option.fits() && option.reaches_beyond()) {
        answer.paragraph(words::REACHES_BEYOND);
    }
}

fn cells(report: &Advice, place: usize, option: &AdvisedOption, name: String) -> [String; HEADS.len()] {
    let is_cut_short = !option.fits() && option.gets_past();
    let is_doubtful = option.fits() && (!report.doubts_with(place).is_empty() || report.outcome_with(place) == Outcome::GetsPast);
    let fits = match (option.fits(), option.is_close(), option.may_survive()) {
        _ if is_cut_short || is_doubtful => "gets past",
        (true, false, _) => "yes",
        (true, true, _) => "just",
        (false, _, true) => "may survive",
        (false, true, false) => "just not",
        (false, false, false) => "no",
    };
    [
        name,
        fits.to_owned(),
        match option.fails_at_entry() {
            Some(entry) => entry.to_string(),
            None if is_cut_short => "later".to_owned(),
            None => "-".to_owned(),
        },
        option.ooms().to_string(),
        show(option.peak_reserved_bytes()),
        option.headroom_bytes().map_or_else(|| "-".to_owned(), show_signed),
        show_bytes(option.smallest_capacity_bytes()),
        option.retries().to_string(),
        format!("{:.1} ms", option.driver_us() as f64 / 1000.0),
    ]
}

/// Formats a signed size.
fn show_signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", show_bytes(bytes.unsigned_abs()))
}

fn end(answer: &mut Answer, advised: &Advised, report: &Advice) {
    if report.verdict != Verdict::Fits {
        answer.alert(format!("{}:", report.verdict.name()), words::verdict(report));
    }
    let Some(option) = report.recommendation.as_ref().and(report.recommended()) else {
        return none(answer, advised, report);
    };
    for caution in option.warnings() {
        answer.alert("warning:", format!("{} {} [{}]", caution.what, caution.instead, caution.source));
    }
    let check = |caution: &&Caution| {
        format!("a recording cannot show this, so check first: {} {} [{}]", caution.what, caution.instead, caution.source)
    };
    let mut lines: Vec<String> = words::unknown(option).iter().map(check).collect();
    lines.extend(words::close(option));
    lines.extend(remedies::also(option.needs_limit()).map(str::to_owned));
    // Statements about settings do not apply to the policy that is named before them.
    let with = if advised.remedies.first().is_some_and(Remedy::is_policy) {
        format!("with {}: ", words::name(option))
    } else {
        String::new()
    };
    // The verdict says why, unless it is about how likely that is.
    let why = words::why(report);
    lines.extend(Some(format!("{with}{why}")).filter(|_| why != headline(advised, report)));
    lines.push(format!("{with}costs: {}", words::costs(report)));
    answer.paragraphs(lines);
    list(answer, &advised.remedies);
    last_line(answer, advised, report);
}

/// Adds the list of remedies, if there are several or if their probability is known.
fn list(answer: &mut Answer, remedies: &[Remedy]) {
    let is_said_below = |remedy: &Remedy| remedy.is_pasted() && remedy.details().is_empty();
    if remedies.len() < 2 && remedies.iter().all(is_said_below) {
        return;
    }
    answer.paragraph("what to try, in this order:");
    for (place, remedy) in remedies.iter().enumerate() {
        answer.indented(2, format!("{}. {}", place + 1, remedy.line));
        remedy.details().into_iter().for_each(|detail| answer.indented(5, detail));
    }
}

/// Adds the end of an answer in which no setting helps.
fn none(answer: &mut Answer, advised: &Advised, report: &Advice) {
    let Some((fullest, _)) = names::fullest(report) else { return };
    let on = on_it(report, fullest.device);
    let holders = words::holders(advised, fullest);
    if !holders.is_empty() {
        answer.paragraph(format!("the largest holders{on} at entry {}:", fullest.live.entry));
    }
    holders.into_iter().for_each(|holder| answer.indented(2, holder));
    let mut lines = Vec::new();
    let smallest = |option: &AdvisedOption| {
        names::outcome(option, fullest.device).map_or(0, |outcome| option.smallest_capacity_bytes_of(outcome))
    };
    if let Some(least) = report.options.iter().min_by_key(|option| smallest(option)) {
        let bytes = show_bytes(smallest(least));
        lines.push(format!("the smallest memory that works: {bytes}{on} with {}", words::name(least)));
        lines.extend(words::close(least));
    }
    if report.options.iter().any(AdvisedOption::may_survive) {
        lines.push("the failing requests may be workspaces that a library such as cuDNN can do without".to_owned());
    }
    answer.paragraphs(lines);
    list(answer, &advised.remedies);
}

const RANK_HEADS: [&str; 7] = ["rank", "recording", "best alone", "needs", "one for all", "needs with it", "headroom"];
/// The column that is coloured.
const ONE_FOR_ALL: usize = 4;
const HEADROOM: usize = 6;

/// Returns the answer about a job: the verdict, the table, notes, and last the line to paste.
pub(super) fn job(job: &Job) -> Answer {
    // Without any memory nothing fails and there is no headroom.
    let has_memory = job.advice.ranks.iter().any(|rank| rank.available_bytes.is_some());
    let is_shown = |column: &usize| has_memory || ![ONE_FOR_ALL, HEADROOM].contains(column);
    let columns = |cells: [String; RANK_HEADS.len()]| {
        cells.into_iter().enumerate().filter(|(column, _)| is_shown(column)).map(|(_, cell)| cell)
    };
    let mut table = Table::new(columns(RANK_HEADS.map(str::to_owned)));
    for (rank, standing) in job.ranks.iter().zip(&job.advice.ranks) {
        let best = rank.advice.best();
        let cells = [
            rank.number.to_string(),
            short_name(&rank.file),
            best.map_or_else(|| "none".to_owned(), |best| names::in_full(&best.settings)),
            best.map_or_else(|| "-".to_owned(), |best| show_bytes(best.needs_bytes)),
            fit(standing.outcome).to_owned(),
            show_bytes(standing.needs_bytes),
            standing.margin_bytes().map_or_else(|| "-".to_owned(), show_signed),
        ];
        let mark = match standing.outcome {
            Fit::Fits => Mark::Good,
            Fit::DoesNotFit => Mark::Bad,
            Fit::GetsPast | Fit::Unknown => Mark::Plain,
        };
        table.marked(columns(cells), if has_memory { ONE_FOR_ALL } else { usize::MAX }, mark);
    }
    let sentences = words::sentences(job);
    let (conclusion, others) = sentences.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
    let is_served = job.advice.serves_all;
    let mut answer = Answer::new();
    let tone = match job.fit() {
        Fit::Fits => Tone::Good,
        Fit::DoesNotFit => Tone::Bad,
        Fit::GetsPast | Fit::Unknown => Tone::Open,
    };
    answer.headline(tone, capitalised(conclusion));
    answer.paragraphs(job.odd.as_ref().map(|odd| output::sentence(odd)));
    answer.gap();
    answer.table(table.with_left([0, 1, 2]));
    answer.paragraphs(job.policies.iter().map(|found| found.words(&words::ranks(found.worst_ranks()))));
    for warning in words::warnings(job) {
        answer.alert("warning:", warning);
    }
    answer.paragraphs(others);
    if is_served {
        if job.advice.is_own {
            keep_settings(&mut answer, &job.advice.settings);
        } else {
            if job.is_at_ease() {
                answer.paragraph("set this only if the ranks must fit in less memory (--limit SIZE checks a size):");
            }
            answer.code(Tone::Good, paste_line(&job.advice.settings));
        }
    }
    answer
}

const fn fit(outcome: Fit) -> &'static str {
    match outcome {
        Fit::Fits => "fits",
        Fit::GetsPast => "gets past",
        Fit::DoesNotFit => "no",
        Fit::Unknown => "not known",
    }
}

/// Returns the answer about a file without a trace: what was held at its end.
pub(super) fn held(advised: &Advised, space: &MemoryBudget) -> Answer {
    let mut answer = Answer::new();
    let (tone, verdict) = match available(space) {
        Some(_) if !fits(&advised.recording, space) => (
            Tone::Bad,
            "Capacity: the memory in use at the end exceeds the memory available; no setting helps; the file has no history",
        ),
        _ => (Tone::Open, "Not known: the file has no history, only the memory held at the end"),
    };
    answer.headline(tone, verdict);
    answer.toned(Tone::Dim, short_name(&advised.file));
    for device in &advised.recording.devices {
        let held = Held::at_end(device);
        answer.paragraph(format!(
            "device {}: {} in use, {} waiting for other streams, {} free in the cache (largest hole {}), {} free in private pools; \
             {} reserved",
            device.device,
            show_bytes(held.live_bytes),
            show_bytes(held.pending_bytes),
            show_bytes(held.free_bytes),
            show_bytes(held.largest_free_bytes),
            show_bytes(held.private_pools_bytes),
            show_bytes(held.reserved_bytes)
        ));
        match available(space) {
            Some(available) if held.live_bytes > available => {
                let short = show_bytes(held.live_bytes - available);
                answer.paragraph(format!("what is in use exceeds the memory by {short}"));
            }
            Some(available) if held.reserved_bytes > available => {
                let over = show_bytes(held.reserved_bytes - available);
                answer.paragraph(format!("what is in use would fit, but {over} of the cache would not"));
            }
            _ => {}
        }
    }
    let left_out = advised.recording.devices.iter().filter_map(|device| device.left_out.as_ref()).map(recording::left_out_words);
    answer.paragraphs(left_out.chain(notes_without_trace(advised)));
    answer.gap();
    answer.paragraph(format!("to get an answer, {}", recording::RECORD_IT));
    answer
}

/// At or above this probability, a run that died probably completes; below the next one, it probably does not.
const PROBABLE: f64 = 0.6;
const IMPROBABLE: f64 = 0.4;
/// The maximum number of notes in a short answer.
const NOTES: usize = 2;

pub(super) fn short_answer(advised: &Advised, report: &Advice) -> Answer {
    let mut answer = Answer::short(tone(advised, report), headline(advised, report));
    answer.row("warn", words::self_check_failed(report).unwrap_or_default());
    let ways = ways(advised, report);
    answer.row(if words::is_at_ease(report) { "less" } else { "best" }, ways.first().map_or("", String::as_str));
    answer.row("why", why(report));
    if report.recommendation.is_none() {
        answer.optional("holder", largest_holder(advised, report));
    }
    answer.optional("check", check(advised, report));
    for asked in asked_for(advised, report) {
        answer.row("asked", asked);
    }
    let notes = notes(advised, report);
    for note in notes.iter().take(NOTES) {
        answer.optional("note", note);
    }
    for (place, other) in ways.iter().enumerate().skip(1) {
        // If the first remedy probably fails, the second says what the program must give up.
        if place == 1 && probability(advised).is_some_and(|likely| likely < IMPROBABLE) {
            answer.row("or", other);
        } else {
            answer.optional("or", other);
        }
    }
    answer.optional("cost", costs(report));
    answer.hint("--all shows every setting that was tried, every caution and every note");
    last_line(&mut answer, advised, report);
    answer
}

fn tone(advised: &Advised, report: &Advice) -> Tone {
    match report.outcome {
        Fit::Fits => Tone::Good,
        Fit::DoesNotFit => Tone::Bad,
        Fit::GetsPast if probability(advised).is_some_and(|likely| likely < IMPROBABLE) => Tone::Bad,
        Fit::GetsPast | Fit::Unknown => Tone::Open,
    }
}

/// Returns the probability that the first remedy completes a run that died.
fn probability(advised: &Advised) -> Option<f64> {
    advised.remedies.first().filter(|remedy| remedy.is_pasted())?.completes_probability()
}

/// The kind of blocks that holds the most, for a run that needs a smaller peak.
fn holder(advised: &Advised) -> Option<&str> {
    let is_known = |holder: &&str| !holder.starts_with(run_words::plural(Kind::Unknown));
    advised.remedies.iter().find_map(Remedy::largest_holder).filter(is_known)
}

fn headline(advised: &Advised, report: &Advice) -> String {
    let is_known = !report.hides_more && report.enough.is_empty();
    match (&report.recommendation, report.recommended()) {
        (None, _) | (_, None) => match advised.remedies.first().filter(|remedy| remedy.is_policy()) {
            Some(policy) => {
                let gets = if policy.is_enough() { "gets" } else { "may get" };
                format!("{}; parkade's own policy {gets} past the failure", words::no_setting(report, holder(advised)))
            }
            None => words::no_setting(report, holder(advised)),
        },
        (Some(_), Some(option)) if !report.hides_more && exceeds_range(report, option) => {
            let needed = show_bytes(smallest_on_tightest(option));
            let below = report.enough.iter().map(|enough| enough.range.below_bytes).max().unwrap_or(0);
            let (with, who) = others(advised, option);
            format!(
                "probably not enough memory, even with {with}: {who} need about {needed}, and the limit was below {}",
                show_bytes(below)
            )
        }
        (Some(_), Some(option)) if is_known && report.outcome == Fit::GetsPast => past(advised, report, option),
        _ => words::why(report),
    }
}

/// Returns whether the estimated rest needs more than the limit can have been.
fn exceeds_range(report: &Advice, option: &AdvisedOption) -> bool {
    let needed = smallest_on_tightest(option);
    let below = report.enough.iter().map(|enough| enough.range.below_bytes).max();
    below.is_some_and(|below| needed >= below) && report.programs.iter().any(|program| program.continuation.is_some())
}

/// Says whether the memory is enough for a run that died, as far as that is known.
fn past(advised: &Advised, report: &Advice, option: &AdvisedOption) -> String {
    let died = report.programs.iter().filter(|program| program.died());
    let tightest = died.filter_map(|program| Some((program, names::outcome(option, program.device)?))).min_by_key(spare);
    let Some((program, outcome)) = tightest else { return words::why(report) };
    let Some(available) = outcome.available_bytes else { return words::why(report) };
    let on = on_it(report, program.device);
    // With what it may be enough, and whose need is stated.
    let (means, who) = match advised.remedies.first().filter(|remedy| remedy.is_pasted()) {
        Some(remedy) if remedy.is_policy() => ("parkade's own policy".to_owned(), "settings alone"),
        _ if option.is_own => ("the run's own settings".to_owned(), "they"),
        _ => others(advised, option),
    };
    let (is_enough, is_improbable) = match probability(advised) {
        Some(likely) if likely >= PROBABLE => ("is probably enough", false),
        Some(likely) if likely < IMPROBABLE => ("is probably not enough, even", true),
        _ => ("may be enough", false),
    };
    // If the better settings are not enough, its own are not enough either.
    let own = if !option.is_own && report.own().gets_past() && !is_improbable { ", perhaps also with the run's own" } else { "" };
    let (memory, needed) = (show_bytes(available), show_bytes(option.smallest_capacity_bytes_of(outcome)));
    let because = match &program.continuation {
        Some(rest) => format!("{who} need about {needed}, estimated from {}", output::count(rest.steps, "step")),
        None => format!("{needed} serves what is recorded, but how much the rest needs is not in the file"),
    };
    format!("{}{memory}{on} {is_enough} with {means}{own}: {because}", words::if_all(report).unwrap_or_default())
}

/// Returns the words for the recommended settings, and their pronoun. With `--only`, they are named.
fn others(advised: &Advised, option: &AdvisedOption) -> (String, &'static str) {
    if advised.only { (words::name(option), "these settings") } else { ("other settings".to_owned(), "they") }
}

fn spare((_, outcome): &(&Program, &DeviceOutcome)) -> i128 {
    i128::from(outcome.available_bytes.unwrap_or(0)) - i128::from(outcome.smallest_bytes)
}

/// Returns the remedies, the best first: first lines to paste, then changes to the program. If the first remedy probably does not complete
/// the program, changes to the program are second.
fn ways(advised: &Advised, report: &Advice) -> Vec<String> {
    let is_policy = advised.remedies.first().is_some_and(Remedy::is_policy);
    let mut pasted: Vec<String> = advised.remedies.iter().filter(|way| way.is_policy()).map(remedy).collect();
    let settings = report.recommended().filter(|option| !option.is_own).map(|option| recommended(advised, report, option));
    pasted.splice(if is_policy { pasted.len()..pasted.len() } else { 0..0 }, settings);
    let second = pasted.len().min(1);
    pasted.splice(second..second, other_settings(report));
    let reduced = advised.remedies.iter().filter(|way| !way.is_pasted()).map(remedy);
    let is_improbable = probability(advised).is_some_and(|likely| likely < IMPROBABLE);
    let next = if is_improbable { second } else { pasted.len() };
    pasted.splice(next..next, reduced);
    pasted
}

/// Describes the recommended settings and their effect.
fn recommended(advised: &Advised, report: &Advice, option: &AdvisedOption) -> String {
    let likely = advised.remedies.iter().find(|remedy| remedy.is_pasted() && !remedy.is_policy()).and_then(Remedy::likely);
    let gives = [Some(gives(report, option)), likely, words::close(option)].into_iter().flatten();
    let own = &report.own().settings.text;
    let instead = if own.is_empty() { String::new() } else { format!(" (instead of {})", names::shown(own)) };
    format!("{}{instead}: {}", words::name(option), gives.collect::<Vec<_>>().join("; "))
}

/// Describes the effect of an option in a few words.
fn gives(report: &Advice, option: &AdvisedOption) -> String {
    let needed = show_bytes(smallest_on_tightest(option));
    let on = option.tightest().map_or_else(String::new, |device| on_it(report, device.device));
    match option.fails_at_entry() {
        _ if option.available_bytes.is_none() => format!("needs {needed}{on}"),
        None if report.outcome != Fit::Fits && report.programs.iter().any(Program::died) => {
            format!("gets past the failure, needs {needed}{on}")
        }
        None if option.fits() => format!("fits, needs {needed}{on}"),
        None => format!("gets past the failure, needs {needed}{on}"),
        Some(_) if option.may_survive() => format!("may survive, needs {needed}{on}"),
        Some(entry) => format!("fails at entry {entry}, needs {needed}{on}"),
    }
}

/// Compares the cost of driver calls with the recommended settings and with the run's own.
fn costs(report: &Advice) -> String {
    let Some(option) = report.recommended().filter(|option| !option.is_own) else { return String::new() };
    let ms = |option: &AdvisedOption| format!("{:.1} ms", option.driver_us() as f64 / 1000.0);
    format!("driver calls take {} instead of {}", ms(option), ms(report.own()))
}

fn why(report: &Advice) -> String {
    let says_as_much = report.verdict == Verdict::Capacity && report.recommendation.is_none();
    let said = words::verdict(report);
    let own = report.own();
    if let Some(caution) = own.warnings().next().filter(|_| own.fits() && report.recommended().is_some_and(|best| !best.is_own)) {
        return format!(
            "the run's own settings fit too and are replaced only because of a risk: {} If that cannot happen in this program, keep \
             them",
            caution.what
        );
    }
    if report.verdict == Verdict::Fits || says_as_much || said.is_empty() {
        return String::new();
    }
    format!("{}: {said}", report.verdict.name().replace('_', " "))
}

fn largest_holder(advised: &Advised, report: &Advice) -> String {
    let Some((fullest, _)) = names::fullest(report) else { return String::new() };
    words::holders(advised, fullest).into_iter().next().unwrap_or_default()
}

/// Says what the policy requires, or what the recommended settings break or may break.
fn check(advised: &Advised, report: &Advice) -> String {
    if let Some(policy) = advised.remedies.first().filter(|remedy| remedy.is_policy()) {
        return policy.asks().join("; ");
    }
    let Some(option) = report.recommended().filter(|option| !option.is_own) else { return String::new() };
    let unknown = words::unknown(option);
    let all: Vec<_> = option.warnings().chain(unknown.iter().copied()).collect();
    let Some(worst) = all.first() else { return remedies::also(option.needs_limit()).unwrap_or_default().to_owned() };
    let breaks = if worst.needs_warning() { "this program is affected: " } else { "" };
    let more = match all.len() - 1 {
        0 => String::new(),
        more => format!(" ({})", output::count(more, "more caution")),
    };
    let limit = remedies::also(option.needs_limit()).map_or_else(String::new, |limit| format!(" {limit}"));
    format!("{breaks}{}{more}{limit}", worst.what)
}

/// Describes the results of the requested settings and policies, unless they are the best ones.
fn asked_for(advised: &Advised, report: &Advice) -> Vec<String> {
    let recommended = report.recommendation.as_ref().map(|recommendation| recommendation.option);
    let given = report.options.iter().enumerate().filter(|&(place, option)| option.is_given && recommended != Some(place));
    let settings = given.map(|(_, option)| format!("{}: {}", words::name(option), gives(report, option)));
    settings.chain(advised.policies.iter().map(Needs::words)).chain(measure(advised, report)).collect()
}

/// Compares the figures of policies with those of expandable segments, unless only other settings were requested.
fn measure(advised: &Advised, report: &Advice) -> Option<String> {
    let is_asked = report.options.iter().any(|option| option.is_given && option.settings.expandable_segments);
    beside::measure(&advised.policies).filter(|_| is_asked || !advised.only)
}

/// Returns notes on how far the answer can be trusted, the most important first.
fn notes(advised: &Advised, report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    if advised.made_by.basis == Basis::Nearest || advised.made_by.contradiction_words().is_some() {
        notes.push(recording::made_by_words(&advised.made_by));
    }
    if advised.own.origin == SettingsOrigin::Assumed {
        notes.push("the file does not contain the run's settings; the default settings are assumed".to_owned());
    }
    if report.given != MemoryBudget::default() {
        notes.extend(run_words::memory(report));
    } else if report.enough.is_empty() {
        notes.extend(report.memories.iter().zip(&report.own().devices).filter_map(assumed));
    }
    if report.programs.iter().any(|program| program.requests.lost_beginning.is_some()) {
        notes.push("the oldest entries are missing from the file, so the run probably needs more".to_owned());
    }
    notes.extend(advised.otherwise.iter().map(Otherwise::words));
    notes.extend(recording::of_file(&advised.recording));
    notes
}

/// Says that the limit is not in the file, and what is assumed.
fn assumed((memory, outcome): (&DeviceMemory, &DeviceOutcome)) -> Option<String> {
    let bytes = outcome.available_bytes?;
    let Some(shown) = memory.shown else { return Some(run_words::shows_no_limit(memory, bytes)) };
    let [least, below] = show_apart(shown.least_bytes, shown.below_bytes);
    let is_exact = shown.least_bytes == shown.below_bytes;
    (!is_exact).then(|| {
        format!(
            "judging by the error, the limit was between {least} and {below}; {} is assumed (--limit sets it)",
            show_bytes(bytes)
        )
    })
}

/// Returns the best settings that differ from the recommended ones in more than a number: with expandable segments if those have none, and
/// vice versa.
fn other_settings(report: &Advice) -> Option<String> {
    let best = report.recommended().filter(|option| !option.is_own)?;
    let is_other = |option: &&AdvisedOption| {
        let differs = best.settings.expandable_segments != option.settings.expandable_segments;
        differs && !option.is_own && !option.is_given && option.gets_past() && !option.has_warnings()
    };
    let others = report.options.iter().filter(is_other).filter(|_| !report.own().fits());
    let other = others.min_by_key(|option| (option.smallest_capacity_bytes(), option.keys()))?;
    Some(format!("{}: {}", words::name(other), gives(report, other)))
}

/// Describes a remedy in a line: what to do, how likely it completes the program, and what holds the most memory.
fn remedy(remedy: &Remedy) -> String {
    let likely = remedy.likely();
    let holds = remedy.largest_holder().map(str::to_owned);
    let gives: Vec<String> = likely.into_iter().chain(holds).collect();
    if gives.is_empty() { remedy.line.clone() } else { format!("{}: {}", remedy.line, gives.join("; ")) }
}

/// Adds the line to paste, or the advice to keep the settings.
fn last_line(answer: &mut Answer, advised: &Advised, report: &Advice) {
    if let Some(option) = report.recommended().filter(|option| option.is_own) {
        return keep_settings(answer, &option.settings.text);
    }
    let first = advised.remedies.first().filter(|remedy| remedy.is_pasted()).map(|remedy| &remedy.line);
    if let Some(line) = first.or(report.recommendation.as_ref().map(|recommendation| &recommendation.line)) {
        let is_cure = report.outcome == Outcome::Fits || probability(advised).is_none_or(|likely| likely >= IMPROBABLE);
        if !is_cure {
            answer.paragraph("this line gets past the failure, but is probably not enough by itself:");
        }
        if words::is_at_ease(report) {
            let needed = show_bytes(smallest_on_tightest(report.own()));
            answer.paragraph(format!("set this only if the run must fit in less than {needed} (--limit SIZE checks a size):"));
        }
        answer.code(if is_cure { Tone::Good } else { Tone::Open }, line);
    }
}

/// Adds the advice to keep the settings.
fn keep_settings(answer: &mut Answer, settings: &str) {
    answer.toned(Tone::Good, format!("keep the settings as they are ({})", names::shown(settings)));
}
