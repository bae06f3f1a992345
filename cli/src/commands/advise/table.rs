//! Advice as a verdict and a table with a row for each option, then notes, and last the recommendation.
//!
//! Each rank of a job has a row with its own best settings and with the one setting for all. For a file without a trace, this shows what
//! was held at its end, and what that means for other amounts of memory.

use parkade_analysis::advise::{
    Advice, AdvisedOption, Held, MemoryBudget, Outcome, Outcome as Fit, Program, Verdict, paste_line,
};
use parkade_analysis::caution::Caution;
use parkade_recording::DeviceRecording;

use super::advised::{Advised, Job, available, fits};
use super::devices;
use super::names;
use super::remedies::{self, Remedy};
use super::short;
use super::words::{self, notes_without_trace};
use crate::commands::beside::Needs;
use crate::terminal::answer::{Answer, capitalised};
use crate::terminal::output::{self, Tone};
use crate::terminal::recording::{self, short_name};
use crate::terminal::size::{show, show_bytes};
use crate::terminal::table::{Mark, Table};

const HEADS: [&str; 9] =
    ["settings", "fits", "fails at", "oom", "peak reserved", "headroom", "smallest memory", "retries", "driver time"];
/// The note below the table of several devices.
const OF_SEVERAL_DEVICES: &str = "sizes are those of the device where they are worst (--json has each device)";

pub(super) fn answer(advised: &Advised, report: &Advice) -> Answer {
    let mut answer = Answer::new();
    let verdict = short::headline(advised, report);
    answer.headline(short::tone(advised, report), capitalised(&output::one_line(&verdict)));
    answer.toned(Tone::Dim, format!("{}: {}", short_name(&advised.file), header(advised, report)));
    if let Some(failed) = words::self_check_failed(report) {
        answer.toned(Tone::Bad, failed);
    }
    options(&mut answer, report);
    answer.paragraphs(advised.policies.iter().map(Needs::words));
    answer.paragraphs(short::measure(advised, report));
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
    let (live, device) = devices::fullest(report).map_or((0, 0), |(program, _)| (program.live.bytes, program.device));
    let memory = match devices::available_bytes(report, device) {
        Some(available) => format!("{} of memory", show_bytes(available)),
        None => "no memory limit".to_owned(),
    };
    let (requests, on) = (output::count(requests, "request"), devices::on(report, device));
    format!("{requests}, {exact}; {on}at most {} live, {memory}; {} settings tried", show_bytes(live), report.options.len())
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
    // What is said of settings is not meant of the policy that is named before them.
    let with = if advised.remedies.first().is_some_and(Remedy::is_policy) {
        format!("with {}: ", words::name(option))
    } else {
        String::new()
    };
    // The verdict says why, unless it is about how likely that is.
    let why = words::why(report);
    lines.extend(Some(format!("{with}{why}")).filter(|_| why != short::headline(advised, report)));
    lines.push(format!("{with}costs: {}", words::costs(report)));
    answer.paragraphs(lines);
    list(answer, &advised.remedies);
    short::last_line(answer, advised, report);
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
    let Some((fullest, _)) = devices::fullest(report) else { return };
    let on = devices::on_it(report, fullest.device);
    let holders = words::holders(advised, fullest);
    if !holders.is_empty() {
        answer.paragraph(format!("the largest holders{on} at entry {}:", fullest.live.entry));
    }
    holders.into_iter().for_each(|holder| answer.indented(2, holder));
    let mut lines = Vec::new();
    let smallest = |option: &AdvisedOption| {
        devices::outcome(option, fullest.device).map_or(0, |outcome| option.smallest_capacity_bytes_of(outcome))
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
            short::keep_settings(&mut answer, &job.advice.settings);
        } else {
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
            "No setting helps: the memory in use at the end exceeds the memory available; the history is not in the file",
        ),
        _ => (Tone::Open, "Not known: the history is not in the file, only the memory held at its end"),
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
