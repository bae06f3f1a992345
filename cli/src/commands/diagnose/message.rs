//! Diagnosis from messages alone: one message, or a log with messages of several ranks, complete or cut.
//!
//! A message is explained in the same five steps as a recording, as far as its rounded figures allow. If a message is cut, the
//! remaining figures decide what they can, and the text names the missing ones. The messages of a log become a table with one
//! row for each different message of each rank, and in JSON an array beside the explained message.

use anyhow::{Result, bail};
use parkade_analysis::diagnose::{Certainty, MessageDiagnosis, MessageVerdict, diagnose_message};
use parkade_recording::message::{
    FirstFailure, LoggedMessage, MOST_MESSAGES, MessageError, MessageLog, OtherMessage, Size, Source, ToldBy,
};

use super::explanation;
use super::layout::{self, Step};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::output::{self, Tone, count};
use crate::terminal::runner::Outcome;
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};

/// The messages of a log, each diagnosed.
pub(crate) struct LogDiagnosis {
    log: MessageLog,
    /// One for each message of the log.
    diagnoses: Vec<MessageDiagnosis>,
    /// The index of the message that is explained.
    explained: usize,
}

pub(super) fn diagnose(log: MessageLog) -> Result<LogDiagnosis> {
    let Some(explained) = log.explained() else { bail!(MessageError::NotFound) };
    let diagnoses = log.messages.iter().map(|logged| diagnose_message(logged.message.clone())).collect();
    Ok(LogDiagnosis { log, diagnoses, explained })
}

/// Describes a message from a source other than PyTorch.
fn other(other: &OtherMessage) -> String {
    let rank = other.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    let wanted = other.message.tried.map_or_else(String::new, |tried| format!("; {} was requested", show_bytes(tried.bytes)));
    let (line, name) = (other.line, other.message.source.name());
    format!("{rank}line {line}: an out-of-memory message from {name}, which parkade does not explain{wanted}")
}

impl LogDiagnosis {
    fn explained(&self) -> &MessageDiagnosis {
        &self.diagnoses[self.explained]
    }

    fn logged(&self) -> &LoggedMessage {
        &self.log.messages[self.explained]
    }

    /// How certain the explanation is, and what else the log contains.
    fn notes(&self) -> Vec<String> {
        let mut notes = explanation::notes(self.explained());
        if self.log.left_out > 0 {
            notes.push(format!(
                "the log has {} after the first {MOST_MESSAGES} different ones; they are counted, but not listed or compared",
                count(self.log.left_out, "more message")
            ));
        }
        notes
    }

    /// Unknown if the explained message does not decide it.
    pub(super) fn outcome(&self) -> Outcome {
        if self.explained().verdict == MessageVerdict::Undecided { Outcome::NotKnown } else { Outcome::Good }
    }
}

/// Whether only a part of the message is present.
fn is_cut(diagnosis: &MessageDiagnosis) -> bool {
    !diagnosis.message.is_complete && matches!(diagnosis.message.source, Source::PyTorch | Source::CudaMallocAsync | Source::Mps)
}

pub(super) fn answer(diagnosis: &LogDiagnosis) -> Answer {
    let explained = diagnosis.explained();
    let mut answer = Answer::new();
    answer.headline(Tone::Bad, explanation::headline(explained));
    let device = explained.message.device.map_or_else(String::new, |device| format!(" from device {device}"));
    let cut = if is_cut(explained) { ", which is cut" } else { "" };
    let logged = diagnosis.logged();
    let of = match explained.message.source {
        Source::PyTorch => String::new(),
        source => format!(" from {}", source.name()),
    };
    let rank = logged.rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
    if diagnosis.log.messages.len() > 1 {
        answer.paragraph(heading(diagnosis));
        answer.toned(Tone::Dim, format!("explained: line {}{device}{rank}{cut}", logged.line));
    } else {
        answer.toned(Tone::Dim, format!("an out-of-memory message{of}{device}{rank}{cut}"));
    }
    let mut steps = layout::steps();
    for (place, (applies, finding)) in explanation::steps(explained).into_iter().enumerate() {
        layout::add_step(&mut steps, place, applies, finding);
    }
    if !steps.is_empty() {
        answer.gap();
    }
    answer.table(steps);
    if diagnosis.log.messages.len() > 1 {
        messages(&mut answer, diagnosis);
    }
    let notes: Vec<String> = diagnosis.notes().into_iter().chain(diagnosis.log.others.iter().map(other)).collect();
    if !notes.is_empty() {
        answer.gap();
        answer.title("how certain this is");
    }
    notes.into_iter().for_each(|note| answer.indented(2, note));
    if let Some((line, why)) = explanation::remedy(explained) {
        answer.gap();
        answer.paragraph(format!("to try: {why}"));
        answer.code(Tone::Good, line);
    }
    answer
}

/// The number of rows shown; JSON has all of them.
const SHOWN: usize = 40;

/// The messages of a log with more than one.
fn messages(answer: &mut Answer, diagnosis: &LogDiagnosis) {
    let messages = &diagnosis.log.messages;
    answer.gap();
    let mut table = Table::new(["rank", "device", "line", "times", "tried", "allocated", "reserved", "free", "verdict"]);
    for (place, (logged, explained)) in messages.iter().zip(&diagnosis.diagnoses).enumerate().take(SHOWN) {
        let or_dash = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let size = |size: Option<Size>| size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let figures = &explained.message;
        let cut = if is_cut(explained) { " (cut)" } else { "" };
        let cells = [
            or_dash(logged.rank),
            or_dash(figures.device),
            logged.line.to_string(),
            logged.times.to_string(),
            size(figures.tried),
            size(figures.allocated),
            size(figures.reserved),
            size(figures.free),
            format!("{}{cut}", words(explained.verdict)),
        ];
        table.marked(cells, 0, if place == diagnosis.explained { Mark::Bad } else { Mark::Plain });
    }
    answer.table(table.with_left([8]));
    if let Some(more @ 1..) = messages.len().checked_sub(SHOWN) {
        answer.paragraph(format!("and {} more; --json lists all", count(more, "message")));
    }
}

/// The number of messages, and which rank failed first.
fn heading(diagnosis: &LogDiagnosis) -> String {
    let messages = &diagnosis.log.messages;
    let mut ranks: Vec<u32> = messages.iter().filter_map(|message| message.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let of = if ranks.is_empty() { String::new() } else { format!(" of {}", count(ranks.len(), "rank")) };
    let first = match &diagnosis.log.first {
        Some(first) => told(diagnosis, first),
        None => "which came first is not known, because their lines have no times that show it; the first in the log is \
                 explained"
            .to_owned(),
    };
    let found = count(messages.len(), "different out-of-memory message");
    match diagnosis.log.left_out {
        0 => format!("{found}{of}; {first}"),
        more => format!("the first {found}{of}, and {more} more after them that are only counted; {first}"),
    }
}

fn told(diagnosis: &LogDiagnosis, first: &FirstFailure) -> String {
    let rank = first.rank.map_or_else(
        || format!("that of line {}", diagnosis.log.messages[diagnosis.explained].line),
        |rank| format!("rank {rank}"),
    );
    let by = match first.told_by {
        ToldBy::Times => "judging by the times of the lines",
        ToldBy::Launcher => "as torchrun observed",
    };
    let without = match (first.message, diagnosis.log.left_out) {
        (Some(_), _) => "",
        (None, 0) => ", but the text contains no message of it",
        (None, _) => ", but none of its messages is among the first",
    };
    format!("{rank} failed first, at {}, {by}{without}", output::one_line(&first.time))
}

/// The verdict in words.
fn words(verdict: MessageVerdict) -> String {
    verdict.name().replace('_', " ")
}

view! {
    pub(super) struct Object(diagnosis: &LogDiagnosis) {
        /// The device.
        device: Option<u32> = diagnosis.explained().message.device,
        /// The rank that wrote the message, if a prefix of its line tells (`[rank3]:`, `3: `, `rank=3`).
        rank: Option<u32> = diagnosis.logged().rank,
        /// The line of the log on which the message begins, from 1.
        line: usize = diagnosis.logged().line,
        /// Whether no part of the message is missing.
        complete: bool = !is_cut(diagnosis.explained()),
        /// What a cut message lacks.
        missing: Vec<&'static str> = diagnosis.explained().message.missing(),
        /// The cause.
        verdict: Word<MessageVerdict> = Word::of(&diagnosis.explained().verdict),
        /// The cause in a sentence.
        headline: String = explanation::headline(diagnosis.explained()),
        /// Who wrote the message.
        source: &'static str = diagnosis.explained().message.source.name(),
        /// One line to try.
        to_try: Option<&'static str> = explanation::remedy(diagnosis.explained()).map(|(line, _)| line),
        /// The five steps; empty if the message is not that of PyTorch's GPU allocator.
        steps: Vec<Step> = all(explanation::steps(diagnosis.explained()).into_iter().enumerate(), |(place, (answer, finding))| {
            Step::of(place, answer, finding)
        }),
        /// The segment that was tried.
        tried: Option<Figure> = figure(diagnosis.explained().message.tried),
        /// The smallest block for which so much is tried.
        block_bytes_least: Option<u64> = diagnosis.explained().block_bytes.map(|(least, _)| least),
        /// The largest such block.
        block_bytes_most: Option<u64> = diagnosis.explained().block_bytes.map(|(_, most)| most),
        /// The device's memory.
        total: Option<Figure> = figure(diagnosis.explained().message.total),
        /// Free on the device.
        free: Option<Figure> = figure(diagnosis.explained().message.free),
        /// The process's limit, if the message has it.
        limit: Option<Figure> = figure(diagnosis.explained().message.limit),
        /// Allocated by PyTorch.
        allocated: Option<Figure> = figure(diagnosis.explained().message.allocated),
        /// Reserved by PyTorch.
        reserved: Option<Figure> = figure(diagnosis.explained().message.reserved),
        /// Reserved but not allocated.
        unallocated: Option<Figure> = figure(diagnosis.explained().message.unallocated),
        /// In private pools, if the message has it.
        private_pools: Option<Figure> = figure(diagnosis.explained().message.private_pools),
        /// Allocated, without what private pools have cached.
        live: Option<Figure> = figure(diagnosis.explained().live),
        /// Reserved minus live.
        empty: Option<Figure> = figure(diagnosis.explained().empty),
        /// Live and tried together.
        needed: Option<Figure> = figure(diagnosis.explained().needed),
        /// What the process could have.
        available: Option<Figure> = figure(diagnosis.explained().available),
        /// Neither reserved here nor free.
        held_by_others: Option<Figure> = figure(diagnosis.explained().held_by_others),
        /// Whether `unallocated` would hold `tried`: `yes`, `no`, `last_digit` (rounding decides).
        unallocated_suffices: Option<Word<Certainty>> = diagnosis.explained().unallocated_suffices.as_ref().map(Word::of),
        /// Whether `available` would hold `needed`.
        available_suffices: Option<Word<Certainty>> = diagnosis.explained().available_suffices.as_ref().map(Word::of),
        /// Whether `free` would hold `tried`.
        device_had_room: Option<Word<Certainty>> = diagnosis.explained().device_had_room.as_ref().map(Word::of),
        /// How sure this is.
        notes: Vec<String> = diagnosis.notes(),
        /// The rank that failed first; null if nothing tells.
        first_failure: Option<First> = diagnosis.log.first.as_ref().map(First::of),
        /// Each different message of each rank, in the order of the log; of more than 16,384, the first, and `notes` counts the
        /// others.
        messages: Vec<Message> = all(
            diagnosis.log.messages.iter().zip(&diagnosis.diagnoses).enumerate(),
            |(place, (logged, explained))| Message::of(logged, explained, place == diagnosis.explained),
        ),
        /// The out-of-memory messages of other frameworks, beside those of PyTorch; the first of each rank.
        other_frameworks: Vec<Other> = all(&diagnosis.log.others, Other::of),
    }
}

view! {
    struct Message(logged: &LoggedMessage, explained: &MessageDiagnosis, is_explained: bool) {
        /// The rank that wrote it, if a prefix of its line tells.
        rank: Option<u32> = logged.rank,
        /// The device.
        device: Option<u32> = explained.message.device,
        /// The line on which it first begins.
        line: usize = logged.line,
        /// How often the log has it.
        times: usize = logged.times,
        /// The time of its line.
        time: Option<String> = logged.time.as_ref().map(|time| time.text.clone()),
        /// Whether it is the one that is explained.
        explained: bool = is_explained,
        /// Who wrote it.
        source: &'static str = explained.message.source.name(),
        /// Whether no part of it is missing.
        complete: bool = !is_cut(explained),
        /// What a cut message lacks.
        missing: Vec<&'static str> = explained.message.missing(),
        /// The cause.
        verdict: Word<MessageVerdict> = Word::of(&explained.verdict),
        /// The segment that was tried.
        tried_bytes: Option<u64> = bytes(explained.message.tried),
        /// The device's memory.
        total_bytes: Option<u64> = bytes(explained.message.total),
        /// Free on the device.
        free_bytes: Option<u64> = bytes(explained.message.free),
        /// Allocated by PyTorch.
        allocated_bytes: Option<u64> = bytes(explained.message.allocated),
        /// Reserved by PyTorch.
        reserved_bytes: Option<u64> = bytes(explained.message.reserved),
    }
}

view! {
    struct Other(other: &OtherMessage) {
        /// The rank that wrote it, if a prefix tells.
        rank: Option<u32> = other.rank,
        /// The line of the log on which it begins, from 1.
        line: usize = other.line,
        /// Who wrote it.
        framework: &'static str = other.message.source.name(),
        /// How much was wanted, if the message states that.
        wanted_bytes: Option<u64> = bytes(other.message.tried),
    }
}

view! {
    struct First(first: &FirstFailure) {
        /// The rank's number.
        rank: Option<u32> = first.rank,
        /// When it failed, as the log prints it.
        time: String = first.time.clone(),
        /// Whether `messages` has one of that rank.
        has_message: bool = first.message.is_some(),
        /// What tells that it was first: `times` (of the lines) or `launcher` (torchrun's summary).
        told_by: Word<ToldBy> = Word::of(&first.told_by),
    }
}

view! {
    struct Figure(size: Size) {
        /// The figure.
        bytes: u64 = size.bytes,
        /// How far off it may be.
        within_bytes: u64 = size.within,
    }
}

fn figure(size: Option<Size>) -> Option<Figure> {
    size.map(Figure::of)
}

fn bytes(size: Option<Size>) -> Option<u64> {
    size.map(|size| size.bytes)
}
