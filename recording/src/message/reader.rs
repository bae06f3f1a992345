//! Reads a log of any size once, from beginning to end, and searches it part by part for messages. Only part of the log is in
//! memory at a time.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::encoding::Decoder;
use super::figures::{MARK, OutOfMemoryMessage, TRIED};
use super::lines::{Line, Lines, LogTime, NamedRank, View, beginning};
use super::log::{LoggedMessage, MessageLog, Messages, OtherMessage, by_launcher, by_times};
use super::patterns::{Stems, compiled};
use super::signs::{LONGEST_SIGN, Signs, order};
use super::source::Source;

/// The size of the parts in which a log is searched.
const PART: usize = 64 << 10;
/// The size of the pieces in which a log is read.
const BUFFER: usize = 64 << 10;

impl MessageLog {
    /// Reads all messages in a text, which may be a single message.
    #[must_use]
    pub fn read(text: &str) -> MessageLog {
        let mut reader = LogReader::default();
        reader.decode(text.as_bytes());
        reader.end()
    }

    /// Reads all messages in a log of any size, to its end. The log may be UTF-16; bytes that are not UTF-8 are replaced with
    /// other characters.
    ///
    /// # Errors
    /// Any error from the source; the rest of the log is then unknown.
    pub fn read_from(mut source: impl Read) -> io::Result<MessageLog> {
        let (mut reader, mut buffer) = (LogReader::default(), vec![0; BUFFER]);
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(reader.end()),
                Ok(length) => reader.decode(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reads a log piece by piece.
#[derive(Default)]
struct LogReader {
    decoder: Decoder,
    lines: Lines,
    scan: Scan,
    /// The position up to which the kept text has been searched.
    searched: usize,
}

impl LogReader {
    fn decode(&mut self, bytes: &[u8]) {
        let decoded = self.decoder.read(bytes);
        self.read(&decoded);
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = self.lines.read(bytes);
            while self.lines.view().text.len() - self.searched >= PART + AROUND {
                self.search();
                let end = self.lines.view().text.floor_char_boundary(self.searched.saturating_sub(AROUND));
                self.scan.forget(self.lines.view(), end);
                self.lines.forget(end);
                self.searched -= end;
            }
        }
    }

    /// Searches the next part.
    fn search(&mut self) {
        let view = self.lines.view();
        let end = view.text.floor_char_boundary(self.searched + PART);
        self.scan.part(view, self.searched..end);
        self.searched = end;
    }

    fn end(mut self) -> MessageLog {
        let decoded = self.decoder.end();
        self.read(&decoded);
        self.lines.end();
        while self.searched < self.lines.view().text.len() {
            self.search();
        }
        self.scan.end()
    }
}

/// The maximum length of a message, even if many processes use the device.
const LONGEST: usize = 8 << 10;
/// The amount of text that is kept around a part that is searched: after it, a message and more; and before it, the size that
/// another framework's message states before its sign.
const AROUND: usize = LONGEST + (2 << 10);
/// The maximum number of lines, of its rank and of others, within which a message that is broken into lines ends.
const MOST_LINES: usize = 200;
/// The maximum number of messages from other frameworks to name.
const MOST_OTHERS: usize = 100;
/// Every message, regardless of its source, contains one of these, as do the words before the end of a message and torchrun's
/// report.
const STEMS: Stems = Stems::of(&[
    "memory",
    "tried to",
    "root cause",
    "exhausted",
    "oom-kill",
    "oom_reap",
    "oom when",
    "rmm failure",
    "cpuallocator",
    "alloc_failed",
    "allocfailed",
    "allocation on",
    "internal assert",
    "killed by",
    "kv cache",
    "_out_of_",
    "workspace alloc",
    "npuworkspace",
]);
/// The first failure as torchrun reports it: its time and rank.
static ROOT_CAUSE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"Root Cause \(first observed failure\): (?:\[[0-9]+\]: )?time : ([^ ]{1,40}) host : [^ ]{1,200} rank : ([0-9]{1,9})",
    )
});

/// The messages found in a log so far.
#[derive(Default)]
struct Scan {
    messages: Messages,
    /// The messages whose lines may continue.
    open: VecDeque<OpenMessage>,
    beginning: Beginning,
    /// The number of lines that have begun.
    lines: usize,
    /// The number of the line in which a rank was last looked for, and the ranks in that line.
    named: (usize, NamedRank),
    summary: Option<(u32, Option<LogTime>)>,
    signs: Signs,
    /// The first message from each source other than PyTorch's GPU allocator.
    foreign: Vec<LoggedMessage>,
    others: Others,
}

/// The text before the first message whose beginning is present; it may contain the end of an earlier message.
#[derive(Default)]
struct Beginning {
    has_ended: bool,
    /// The message in the first words of the log.
    first: Option<LoggedMessage>,
    /// Whether the words [`TRIED`] were found.
    is_tried: bool,
}

/// A message that is truncated unless the next lines of its rank continue it.
struct OpenMessage {
    line: Line,
    rank: u32,
    text: String,
    /// The last line so far that may belong to it.
    last: usize,
    is_beginning: bool,
}

/// The first message from each other framework and rank.
#[derive(Default)]
struct Others {
    found: Vec<OtherMessage>,
    /// The last line that was read for a message.
    line: usize,
}

impl Scan {
    /// Searches a part of the text for messages that begin in it.
    fn part(&mut self, view: View<'_>, part: Range<usize>) {
        if self.lines == 0 || STEMS.are_in(beginning(&view.text[part.start..], part.len() + LONGEST_SIGN)) {
            self.words(view, &part);
        } else {
            let first = view.lines.partition_point(|line| line.at < part.start);
            self.begin_lines(view, first, part.end);
        }
        self.rank_before(view, view.line_at(part.end), part.end);
    }

    fn words(&mut self, view: View<'_>, part: &Range<usize>) {
        self.beginning(view, part);
        self.messages(view, part);
        self.summary(view.text, part);
        let is_foreign = self.messages.is_empty() && self.open.is_empty();
        for (sign, source) in self.signs.read(view.text, part.clone(), is_foreign) {
            if is_foreign && !self.foreign.iter().any(|found| found.message.source == source) {
                let message = OutOfMemoryMessage::at(source, view.text, sign.clone());
                let logged = self.logged(view, sign.start, message);
                self.foreign.push(logged);
            }
            if !source.is_general() {
                self.others.read(view, view.line_at(sign.start));
            }
        }
    }

    /// Prepares for the text before this position to be dropped.
    fn forget(&mut self, view: View<'_>, end: usize) {
        if let Some(line) = view.lines.get(view.line_at(end)).filter(|line| line.number == self.named.0) {
            self.named.1.forget(end.saturating_sub(line.at));
        }
    }

    /// Returns the result for the entire log.
    fn end(mut self) -> MessageLog {
        self.end_beginning();
        while let Some(open) = self.open.pop_front() {
            self.end_message(open);
        }
        let (mut messages, left_out) = self.messages.end();
        let first = by_launcher(self.summary, &messages).or_else(|| by_times(&messages, &left_out));
        let others = if messages.is_empty() { Vec::new() } else { self.others.end() };
        if messages.is_empty() {
            messages.extend(self.foreign.into_iter().min_by_key(|found| order(found.message.source)));
        }
        MessageLog { messages, left_out: left_out.messages, first, others }
    }

    /// Looks for the end of a message whose beginning was cut off, before the first complete message.
    fn beginning(&mut self, view: View<'_>, part: &Range<usize>) {
        if self.beginning.has_ended {
            return;
        }
        let mark = view.text[part.start..].find(MARK).map_or(view.text.len(), |at| part.start + at);
        if !self.beginning.is_tried
            && let Some(tried) = view.text[part.start..mark].find(TRIED).map(|at| part.start + at).filter(|at| *at < part.end)
        {
            self.beginning.is_tried = true;
            let rest = from(view.text, tried, mark);
            let found = OutOfMemoryMessage::after_mark(rest).filter(|message| message.is_complete).or_else(|| headless(rest));
            self.beginning.first = found.map(|found| self.logged(view, tried, found));
        }
        if self.lines == 0 && !self.beginning.is_tried {
            // A person would recognise a mark that has lost letters.
            self.beginning.first = headless(from(view.text, 0, mark)).map(|found| self.logged(view, 0, found));
        }
        if mark < part.end {
            self.end_beginning();
        }
    }

    fn end_beginning(&mut self) {
        self.beginning.has_ended = true;
        if let Some(first) = self.beginning.first.take() {
            self.messages.add(first);
        }
    }

    /// Reads the messages whose marks are in this part.
    fn messages(&mut self, view: View<'_>, part: &Range<usize>) {
        let mut marks = view.text[part.start..].match_indices(MARK).map(|(at, _)| part.start + at).peekable();
        let mut place = view.lines.partition_point(|line| line.at < part.start);
        while let Some(at) = marks.next_if(|&at| at < part.end) {
            place = self.begin_lines(view, place, at + 1);
            self.message(view, at, marks.peek().copied().unwrap_or(view.text.len()));
        }
        self.begin_lines(view, place, part.end);
    }

    /// Reads the message whose mark is at `at`, up to the next mark at `end`.
    fn message(&mut self, view: View<'_>, at: usize, end: usize) {
        let (start, place) = (at + MARK.len(), view.line_at(at));
        let following = from(view.text, start, end);
        if let Some(message) = OutOfMemoryMessage::after_mark(following).filter(|message| message.is_complete) {
            return self.add(view, at, message);
        }
        let line = view.text.get(start..view.end_of(place)).unwrap_or("");
        let is_beginning = is_beginning(line);
        // The next lines continue the last message on this line.
        if let Some((line_of, rank)) = view.lines.get(place).and_then(|line| Some((line, line.rank?)))
            && end >= view.end_of(place)
        {
            let (text, last) = (beginning(line, LONGEST).to_owned(), self.lines + MOST_LINES - 1);
            return self.open.push_back(OpenMessage { line: line_of.clone(), rank, text, last, is_beginning });
        }
        if let Some(found) = what_is_left(following, is_beginning) {
            self.add(view, at, found);
        }
    }

    /// Adds the lines that begin before a position to their ranks' messages. Returns the line after them.
    fn begin_lines(&mut self, view: View<'_>, first: usize, before: usize) -> usize {
        let mut place = first;
        while view.lines.get(place).is_some_and(|line| line.at < before) {
            self.lines += 1;
            while let Some(open) = self.open.pop_front_if(|open| open.last < self.lines) {
                self.end_message(open);
            }
            let rank = view.lines.get(place).and_then(|line| line.rank);
            let mut words = None;
            for open in self.open.iter_mut().filter(|open| Some(open.rank) == rank && open.text.len() < LONGEST) {
                let words = words.get_or_insert_with(|| beginning(view.line(place), LONGEST).split(MARK).next().unwrap_or(""));
                open.text.push_str(words);
            }
            place += 1;
        }
        place
    }

    /// Ends a message that has no further lines.
    fn end_message(&mut self, open: OpenMessage) {
        let OpenMessage { line, rank, text, is_beginning, .. } = open;
        if let Some(message) = what_is_left(&text, is_beginning) {
            self.messages.add(LoggedMessage { rank: Some(rank), time: line.time, line: line.number, times: 1, message });
        }
    }

    fn add(&mut self, view: View<'_>, at: usize, message: OutOfMemoryMessage) {
        let logged = self.logged(view, at, message);
        self.messages.add(logged);
    }

    fn logged(&mut self, view: View<'_>, at: usize, message: OutOfMemoryMessage) -> LoggedMessage {
        let place = view.line_at(at);
        let rank = self.rank_before(view, place, at);
        let (number, time) = view.lines.get(place).map_or((1, None), |line| (line.number, line.time.clone()));
        LoggedMessage { rank, time, line: number, times: 1, message }
    }

    /// The rank that a line names before a position in the text.
    fn rank_before(&mut self, view: View<'_>, place: usize, at: usize) -> Option<u32> {
        let line = view.lines.get(place)?;
        if line.rank.is_some() {
            return line.rank;
        }
        if self.named.0 != line.number {
            self.named = (line.number, NamedRank::default());
        }
        self.named.1.before(view.text.get(line.at..at)?)
    }

    fn summary(&mut self, text: &str, part: &Range<usize>) {
        if self.summary.is_none()
            && let Some(captures) = ROOT_CAUSE.captures_at(beginning(text, part.end + AROUND), part.start)
            && captures.get(0).is_some_and(|found| found.start() < part.end)
            && let Ok(rank) = captures[2].parse()
        {
            self.summary = Some((rank, LogTime::read(&captures[1])));
        }
    }
}

impl Others {
    /// Reads a line that contains another framework's message.
    fn read(&mut self, view: View<'_>, place: usize) {
        let Some(&Line { number, rank, .. }) = view.lines.get(place).filter(|line| line.number > self.line) else { return };
        self.line = number;
        let Some(message) = OutOfMemoryMessage::find_foreign(view.line(place)) else { return };
        let is_same = |other: &&OtherMessage| other.message.source == message.source;
        let mut same = self.found.iter().filter(is_same);
        if same.clone().count() < MOST_OTHERS && !same.any(|other| other.rank == rank) {
            self.found.push(OtherMessage { rank, line: number, message });
        }
    }

    fn end(mut self) -> Vec<OtherMessage> {
        self.found.sort_by_key(|other| order(other.message.source));
        self.found.truncate(MOST_OTHERS);
        self.found.sort_by_key(|other| other.line);
        self.found
    }
}

/// The text starting at a position, up to the maximum length of a message.
fn from(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end.max(start)).map_or("", |rest| beginning(rest, LONGEST))
}

/// The rest of a message; nothing if it has no figure.
fn what_is_left(rest: &str, is_beginning: bool) -> Option<OutOfMemoryMessage> {
    // This is a message cut before its first figure, or no message: other uses of the words do not count.
    OutOfMemoryMessage::after_mark(rest).or_else(|| is_beginning.then(|| OutOfMemoryMessage::of(Source::PyTorch)))
}

/// The figures of a message without its beginning.
fn headless(text: &str) -> Option<OutOfMemoryMessage> {
    let message = OutOfMemoryMessage { is_complete: false, ..OutOfMemoryMessage::read(Source::PyTorch, text) };
    // A single figure could come from any program; PyTorch's name or two figures could not.
    let is_of_pytorch = message.reserved.is_some() || message.unallocated.is_some() || message.missing().len() <= 4;
    let is_foreign = || OutOfMemoryMessage::find_foreign(text).is_some_and(|found| found.source.has_figures());
    (is_of_pytorch && !is_foreign()).then_some(message)
}

/// Whether this is all that is left of a message on its line, and it is cut before the end of the failed allocation's size.
fn is_beginning(rest: &str) -> bool {
    static CUT_SIZE: LazyLock<Regex> =
        LazyLock::new(|| compiled(r"^(?:[0-9]{1,20}(?:\.[0-9]{0,2})?(?: (?:[KMG]i?|b(?:y(?:t(?:e)?)?)?)?)?)?$"));
    let rest = rest.trim_end();
    match rest.strip_prefix(TRIED.trim_end()) {
        Some(size) => size.is_empty() || size.strip_prefix(' ').is_some_and(|size| CUT_SIZE.is_match(size)),
        None => !rest.is_empty() && TRIED.starts_with(rest),
    }
}

#[cfg(test)]
mod tests;
