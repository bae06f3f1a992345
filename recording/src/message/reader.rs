//! Reads a log of any size once, from beginning to end, and searches it part by part for messages. Only part of the log is in
//! memory at a time.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::figures::{MARK, OutOfMemoryMessage, Source, TRIED};
use super::lines::{Decoder, Line, Lines, LogTime, NamedRank, View, beginning};
use super::log::{LoggedMessage, MessageLog, Messages, OtherMessage, by_launcher, by_times};
use super::patterns::{Stems, compiled};
use super::signs::{LONGEST_SIGN, Signs, order};

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
    /// Returns any error from the source; the rest of the log is then unknown.
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
/// The maximum number of lines, including those from other ranks, over which a message may be broken.
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
    /// The number of the line that was last searched for a rank, and the ranks in that line.
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
            // A person would recognise a mark with missing letters.
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

    /// Returns the rank that a line names before a position in the text.
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

/// Returns the text starting at a position, up to the maximum length of a message.
fn from(text: &str, start: usize, end: usize) -> &str {
    text.get(start..end.max(start)).map_or("", |rest| beginning(rest, LONGEST))
}

/// Returns the rest of a message; nothing if it has no figure.
fn what_is_left(rest: &str, is_beginning: bool) -> Option<OutOfMemoryMessage> {
    // This is either a message that is cut off before its first figure or not a message at all: other uses of the words do
    // not count.
    OutOfMemoryMessage::after_mark(rest).or_else(|| is_beginning.then(|| OutOfMemoryMessage::of(Source::PyTorch)))
}

/// Returns the figures of a message without its beginning.
fn headless(text: &str) -> Option<OutOfMemoryMessage> {
    let message = OutOfMemoryMessage { is_complete: false, ..OutOfMemoryMessage::read(Source::PyTorch, text) };
    // A single figure could come from any program; PyTorch's name or two figures could not.
    let is_of_pytorch = message.reserved.is_some() || message.unallocated.is_some() || message.missing().len() <= 4;
    let is_foreign = || OutOfMemoryMessage::find_foreign(text).is_some_and(|found| found.source.has_figures());
    (is_of_pytorch && !is_foreign()).then_some(message)
}

/// Returns whether this is all that is left of a message on its line, and whether it is cut off before the end of the failed
/// allocation's size.
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
mod tests {
    //! Tests logs from several ranks: prefixes, repetitions, broken lines, truncated messages, and times. Also tests logs of any
    //! size, in pieces of any size: no message is lost at a boundary, and every message takes the same time.

    use std::io::{self, ErrorKind, Read};
    use std::time::Instant;

    use parkade::texts::rejection_message;
    use parkade::units::Bytes;
    #[cfg(not(target_family = "wasm"))]
    use proptest::prelude::*;

    use super::*;
    #[cfg(not(target_family = "wasm"))]
    use crate::message::lines::PIECE;
    use crate::message::{OutOfMemoryMessage, Size, Source, ToldBy};

    /// Creates a message from PyTorch 2.1 or later, with a given size.
    fn new(device: u32, tried: &str) -> String {
        format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacity of 24.00 GiB of which 1.00 GiB is free. Process \
             7 has 23.00 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch \
             but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    }

    fn old(device: u32, tried: &str) -> String {
        format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU {device}; 39.59 GiB total capacity; 28.60 GiB already allocated; 3.92 GiB \
             free; 33.95 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
        )
    }

    /// Returns the rank, the line, the number of occurrences, and whether the message is complete.
    fn found(log: &MessageLog) -> Vec<(Option<u32>, usize, usize, bool)> {
        log.messages.iter().map(|one| (one.rank, one.line, one.times, one.message.is_complete)).collect()
    }

    #[test]
    fn the_messages_of_all_ranks_are_read_without_repetitions() {
        let text = format!(
            "step 1\n[rank3]: Traceback (most recent call last):\n[rank3]: torch.OutOfMemoryError: {three}\n[rank1]: {one}\n[rank3]: {three}\n\
             {one}\nsrun: error\n2: {three}\nERROR trainer rank=5: {three}\n{alone}\n{alone}\n",
            three = new(3, "2.00 GiB"),
            one = old(1, "20.00 MiB"),
            alone = new(0, "64.00 MiB"),
        );
        let log = MessageLog::read(&text);
        let expected =
            [(Some(3), 3, 2, true), (Some(1), 4, 2, true), (Some(2), 8, 1, true), (Some(5), 9, 1, true), (None, 10, 2, true)];
        assert_eq!(found(&log), expected);
        assert_eq!((log.first.clone(), log.explained()), (None, Some(0)), "no times");
    }

    /// On AMD GPUs, the same messages begin with HIP and name a different variable.
    #[test]
    fn messages_of_hip_are_read_as_those_of_cuda() {
        let whole = new(3, "2.00 GiB");
        for cuda in
            [format!("[rank3]: torch.OutOfMemoryError: {whole}"), old(0, "512.00 MiB"), whole[..whole.len() / 2].to_owned()]
        {
            let hip = cuda
                .replace("CUDA out of memory", "HIP out of memory")
                .replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF");
            assert_ne!(hip, cuda);
            let [hip, cuda] = [hip, cuda].map(|text| MessageLog::read(&text));
            assert_eq!((found(&hip), &hip.messages[0].message), (found(&cuda), &cuda.messages[0].message));
        }
    }

    #[test]
    fn a_message_may_be_broken_between_lines_of_other_ranks() {
        let lines = |rank: u32| {
            let words: Vec<String> = new(rank, "2.00 GiB").split(' ').map(str::to_owned).collect();
            words.chunks(7).map(|words| format!("[rank{rank}]: {}", words.join(" "))).collect::<Vec<_>>()
        };
        let (one, two) = (lines(1), lines(2));
        let mixed: Vec<String> = one.into_iter().zip(two).flat_map(|(one, two)| [one, two]).collect();
        let log = MessageLog::read(&mixed.join("\r\n"));
        assert_eq!(found(&log), [(Some(1), 1, 1, true), (Some(2), 2, 1, true)]);
        // Without prefixes, broken as by a terminal.
        let log = MessageLog::read(&format!("RuntimeError: {}", new(0, "2.00 GiB").replace(' ', "\n  ")));
        assert_eq!(found(&log), [(None, 2, 1, true)]);
        let colours = format!("\u{1b}[31m[rank4]:\u{1b}[0m {}", new(0, "2.00 GiB"));
        assert_eq!(found(&MessageLog::read(&colours)), [(Some(4), 1, 1, true)]);
    }

    #[test]
    fn times_tell_which_rank_failed_first() {
        let text = |first: &str, second: &str| {
            format!("{first} [rank3]: {}\n{second} [rank1]: {}\n", new(3, "2.00 GiB"), new(1, "2.00 GiB"))
        };
        let first = |text: &str| {
            let log = MessageLog::read(text);
            let explained = log.explained();
            log.first.map(|first| (first.rank, first.time, first.told_by, explained))
        };
        let told = |rank, time: &str, by, place| Some((Some(rank), time.to_owned(), by, Some(place)));
        let times = text("2024-05-01 12:00:01,500", "2024-05-01 12:00:01,499");
        assert_eq!(first(&times), told(1, "2024-05-01 12:00:01,499", ToldBy::Times, 1));
        // Equal times, times in different forms, and times around midnight show nothing.
        assert_eq!(first(&text("12:00:01", "12:00:01")), None);
        assert_eq!(first(&text("12:00:01", "2024-05-01 12:00:00")), None);
        assert_eq!(first(&text("23:59:59", "00:00:01")), None);
        assert_eq!(first(&new(3, "2.00 GiB")), None);
        let summary = "Root Cause (first observed failure):\n[0]:\n  time      : 2024-05-01_12:00:02\n  host      : node0\n  rank      : 1 \
                       (local_rank: 1)\n  exitcode  : 1 (pid: 712)\n";
        let text = format!("[rank3]: {}\n[rank1]: {}\n{summary}", new(3, "2.00 GiB"), new(1, "2.00 GiB"));
        assert_eq!(first(&text), told(1, "2024-05-01_12:00:02", ToldBy::Launcher, 1));
    }

    #[test]
    fn what_is_left_of_a_message_is_read() {
        let whole = new(2, "4.88 GiB");
        let cut = |text: &str| {
            let log = MessageLog::read(text);
            let first = log.messages.first().map(|one| one.message.clone());
            first.filter(|message| !message.is_complete).map(|message| (log.messages.len(), message))
        };
        let (count, end) = cut(&whole[..whole.find("Of the").expect("words")]).expect("a part");
        assert_eq!((count, end.missing()), (1, vec!["PyTorch's allocated memory", "PyTorch's reserved memory"]));
        let (_, beginning) = cut(&whole[whole.find("of which").expect("words")..]).expect("a part");
        assert_eq!(beginning.missing(), ["the size tried", "the device", "the device's memory"]);
        assert!(beginning.is_limit_known() && beginning.is_private_known());
        // Only the mark is truncated.
        let log = MessageLog::read(whole.trim_start_matches("CUDA out of"));
        assert!(log.messages[0].message.is_complete, "{log:?}");
        // A truncated repetition of a complete message is not a separate message.
        let log = MessageLog::read(&format!("[rank2]: {whole}\n{}\n", &whole[..90]));
        assert_eq!(found(&log), [(Some(2), 1, 2, true)]);
        // A truncated message from another rank is.
        let log = MessageLog::read(&format!("[rank2]: {whole}\n[rank3]: {}\n", &whole[..90]));
        assert_eq!(found(&log), [(Some(2), 1, 1, true), (Some(3), 2, 1, false)]);
    }

    /// Other uses of the words are not messages. Messages from other sources are, if PyTorch's GPU allocator wrote none.
    #[test]
    fn without_a_message_of_pytorch_those_of_others_count() {
        for text in ["", "WARNING: out of memory. Retrying", "CUDA: out of memory. Tried to allocate 4.8 cups"] {
            let sources: Vec<Source> = MessageLog::read(text).messages.iter().map(|one| one.message.source).collect();
            assert!(sources.iter().all(|source| *source == Source::Plain), "{text}: {sources:?}");
        }
        let one = |text: &str| {
            let log = MessageLog::read(text);
            let [one] = &log.messages[..] else { panic!("{text}: {log:?}") };
            (one.message.source, one.message.tried.map(|tried| tried.bytes), one.rank, one.line)
        };
        assert_eq!(one(&rejection_message(Bytes(5))), (Source::Fraction, Some(5), None, 1));
        let jax = "step 1\n[rank3]: RESOURCE_EXHAUSTED: Out of memory while trying to\nallocate 8589934592 bytes.";
        assert_eq!(one(jax), (Source::Jax, Some(8 << 30), Some(3), 2));
        let warning = "[rank1]:[W812 16:00:28.6 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 1 while trying to \
                       allocate 20971520 bytes (free: 15794176, total: 150111977472).";
        assert_eq!(one(warning), (Source::Retry, Some(20 << 20), Some(1), 1));
        let both = format!("{warning}\nRuntimeError: CUDA error: out of memory");
        assert_eq!(one(&both).0, Source::Cuda, "an error is more informative than a warning");
        assert_eq!(one(&format!("{both}\n{}", old(0, "2.00 GiB"))).0, Source::PyTorch);
    }

    /// PowerShell writes UTF-16; people use quote marks, and some programs draw boxes of characters around their output.
    #[test]
    fn a_message_is_read_however_it_was_quoted() {
        let whole = new(1, "2.00 GiB");
        let expected = &MessageLog::read(&whole).messages[0].message;
        let words: Vec<&str> = whole.split(' ').collect();
        let lines = |before: &str, behind: &str| {
            let lines = words.chunks(7).map(|line| format!("{before}{}{behind}\n", line.join(" ")));
            lines.collect::<String>()
        };
        for text in [
            lines("> ", ""),
            lines("# ", ""),
            lines(">> ", "\r"),
            lines("\u{2502} ", "   \u{2502}"),
            lines("\u{1b}[31m", "\u{1b}[0m"),
        ] {
            let log = MessageLog::read(&text);
            assert_eq!(log.messages.iter().map(|one| &one.message).collect::<Vec<_>>(), [expected], "{text}");
        }
        let utf_16: Vec<u8> = [0xfeff].into_iter().chain(whole.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let log = MessageLog::read_from(&utf_16[..]).expect("a log");
        assert_eq!(log.messages.iter().map(|one| &one.message).collect::<Vec<_>>(), [expected]);
    }

    /// The time is linear in the number of lines, ranks and beginnings of messages in a log.
    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "there is no clock")]
    fn a_long_log_takes_linear_time() {
        let mut text = String::new();
        for rank in 0..10_000 {
            text.push_str(&format!(
                "[rank{rank}]: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of\n"
            ));
            text.push_str(&format!("[rank{}]: step\n", rank % 7));
        }
        let before = Instant::now();
        assert_eq!(MessageLog::read(&text).messages.len(), 10_000);
        assert!(before.elapsed().as_secs() < 60, "{:?}", before.elapsed());
    }

    #[cfg(not(target_family = "wasm"))]
    proptest! {
        /// The result for a message does not depend on the log around it.
        #[test]
        fn a_message_alone_is_read_as_before(device in 0..9_u32, whole in 0..99_u32, cut in 0..400_usize, is_old in any::<bool>()) {
            let size = format!("{whole}.25 GiB");
            let text = if is_old { old(device, &size) } else { new(device, &size) };
            let part = &text[..cut.min(text.len())];
            let log = MessageLog::read(part);
            match OutOfMemoryMessage::parse(part) {
                Ok(message) => prop_assert_eq!(&log.messages[0].message, &message),
                Err(_) => {
                    let of_pytorch = || log.messages.iter().filter(|one| one.message.source == Source::PyTorch);
                    prop_assert!(of_pytorch().all(|one| !one.message.is_complete), "{:?}", log);
                    prop_assert_eq!(of_pytorch().count() == 0, cut <= text.find("Tried").unwrap_or(0));
                }
            }
        }

        #[test]
        fn no_text_makes_it_panic(
            lines in proptest::collection::vec("(\\[rank[0-9]{1,12}\\]: |[0-9:. -]{0,24}|\u{1b}\\[3)?(CUDA )?(out of memory\\. )?(Tried to allocate )?[0-9.]{0,24} ?(GiB|MiB|bytes)?.{0,40}", 0..6),
        ) {
            let log = MessageLog::read(&lines.join("\n"));
            prop_assert!(log.explained().is_none_or(|place| place < log.messages.len()));
        }
    }

    #[test]
    fn a_message_cut_before_its_first_figure_is_one_of_its_rank() {
        let cuts = [
            "Tried",
            "Tried to",
            "Tried to allocate",
            "Tried to allocate 2",
            "Tried to allocate 2.0",
            "Tried to allocate 2.00 Gi",
        ];
        for cut in cuts {
            let alone = MessageLog::read(&format!("torch.OutOfMemoryError: CUDA out of memory. {cut}"));
            assert!(matches!(&alone.messages[..], [one] if one.message == OutOfMemoryMessage::of(Source::PyTorch)), "{cut}");
            let log = MessageLog::read(&format!(
                "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB\n[rank6]: CUDA out of \
                 memory. {cut}\n[rank7]: NCCL timeout"
            ));
            assert_eq!(
                log.messages.iter().map(|one| (one.rank, one.line)).collect::<Vec<_>>(),
                [(Some(3), 1), (Some(6), 2)],
                "{cut}"
            );
        }
        for other in ["Tried to find more", "Tried to allocate 2.00 XB"] {
            let log = MessageLog::read(&format!("CUDA out of memory. {other}"));
            assert!(log.messages.iter().all(|one| one.message.source == Source::Plain), "{other}");
        }
    }

    #[test]
    fn messages_of_other_frameworks_beside_those_of_pytorch_are_named() {
        let log = MessageLog::read(
            "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB\n[rank9]: \
             jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n[rank9]: \
             RESOURCE_EXHAUSTED: Out of memory again",
        );
        let [other] = &log.others[..] else { panic!("{log:?}") };
        assert_eq!((other.rank, other.line, other.message.source), (Some(9), 2, Source::Jax));
        assert_eq!(other.message.tried.map(|tried| tried.bytes), Some(16 << 30));
        assert_eq!(log.messages.len(), 1);
    }

    /// Returns a different message for each number.
    fn message(number: usize) -> String {
        format!(
            "CUDA out of memory. Tried to allocate {}.{:02} GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Of the \
             allocated memory 19.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch but unallocated.",
            number / 100,
            number % 100
        )
    }

    /// Returns this many bytes of words that are not a message.
    fn words(bytes: usize) -> String {
        "epoch 7, loss 0.25 ".repeat(bytes / 19 + 1)[..bytes].to_owned()
    }

    /// Returns this many bytes at a time, using the lengths in turn, and is interrupted before each.
    struct Pieces<'a> {
        rest: &'a [u8],
        lengths: &'a [usize],
        turn: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.turn += 1;
            if self.turn % 2 == 1 {
                return Err(ErrorKind::Interrupted.into());
            }
            let most = self.lengths[self.turn / 2 % self.lengths.len()].min(buffer.len());
            self.rest.read(&mut buffer[..most])
        }
    }

    fn in_pieces(bytes: &[u8], lengths: &[usize]) -> MessageLog {
        MessageLog::read_from(Pieces { rest: bytes, lengths, turn: 0 }).expect("it can be read")
    }

    /// Wherever a message is in a log, in one line or across lines, reading the log produces the same result as reading the
    /// message alone.
    #[test]
    fn a_message_is_found_across_every_border() {
        let alone = MessageLog::read(&message(7)).messages.remove(0).message;
        for border in [PART, 2 * PART] {
            for before in (0..message(7).len() + 40).step_by(29).map(|place| border - place) {
                let rank = "step rank=3 ";
                let line = format!("{rank}{} {}", words(before - rank.len()), message(7));
                for log in [line.clone() + &words(100), line.replace(", ", ",\n  ") + "\n"] {
                    let found = MessageLog::read(&log).messages;
                    assert!(matches!(&found[..], [one] if one.message == alone && one.times == 1), "{before}: {found:?}");
                    assert!(log.contains('\n') || (found[0].rank, found[0].line) == (Some(3), 1), "{before}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn a_line_without_an_end_is_read_to_its_end() {
        let alone = MessageLog::read(&message(7)).messages;
        let fillers = ["x", "\0", "\u{1b}[", "\u{1b}[3", "\u{1b}[31m", "é", "\u{3000}", " ", "\r", "[rank3]: ", "2024-05-01 "];
        for filler in fillers {
            let text = filler.repeat((1 << 18) / filler.len());
            for log in [format!("{text} {}", message(7)), format!("[rank1]: {} {text}", message(7))] {
                let mut reader = LogReader::default();
                reader.read(log.as_bytes());
                let kept = reader.lines.view();
                assert!(kept.text.len() <= 4 * PART && kept.lines.len() <= 1, "{filler:?}: {} bytes", kept.text.len());
                let found = reader.end().messages;
                assert!(found.len() == 1 && found[0].message == alone[0].message, "{filler:?}: {found:?}");
            }
        }
        let bytes = [&[0xff, 0xe2].repeat(1 << 16), message(7).as_bytes()].concat();
        assert_eq!(in_pieces(&bytes, &[1 << 14]).messages, alone);
    }

    /// Logs whose line breaks are spaces: the messages are the same as those in the lines, and a rank named in the line applies
    /// to all messages after it.
    #[test]
    fn the_messages_of_one_line_are_all_read() {
        let log: Vec<String> = (0..500).map(message).collect();
        let of_lines = MessageLog::read(&log.join("\n"));
        let mut of_line = MessageLog::read(&format!("{} rank=5 {}", log[..250].join(" "), log[250..].join(" ")));
        assert_eq!((of_lines.messages.len(), of_lines.left_out), (500, 0));
        // In a single line, the messages of ranks come first.
        of_line.messages.rotate_left(250);
        for (number, (one, other)) in of_line.messages.iter().zip(&of_lines.messages).enumerate() {
            assert_eq!((one.rank, one.line, &one.message), ((number >= 250).then_some(5), 1, &other.message));
            assert_eq!(other.line, number + 1);
        }
        // A truncated message does not take the figures of the next one.
        let cut = MessageLog::read(&format!("[rank3]: {} {}", &message(1)[..60], message(2)));
        assert!(!cut.messages[1].message.is_complete && cut.messages[1].message.free.is_none(), "{cut:?}");
    }

    /// Signs from other frameworks and from torchrun are found even after many words that the search skips.
    #[test]
    fn other_messages_are_found_at_the_end_of_a_log() {
        let signs = [
            ("OOM when allocating tensor with shape[2]", Source::TensorFlow),
            ("tf.errors.ResourceExhaustedError", Source::TensorFlow),
            ("cupy.cuda.memory.OutOfMemoryError", Source::CuPy),
            ("RESOURCE_EXHAUSTED: no", Source::Jax),
            ("XlaRuntimeError: INTERNAL: Ran out of memory", Source::Jax),
            ("Allocator (GPU_0_bfc) ran out of memory", Source::Bfc),
            ("RMM failure at", Source::Rmm),
            ("std::bad_alloc: out_of_memory", Source::Rmm),
            ("MPS backend out of memory (", Source::Mps),
            ("DefaultCPUAllocator: can't", Source::MainMemory),
            ("oom-kill:constraint", Source::System),
            ("Out of memory: Killed process 7", Source::System),
            ("CUBLAS_STATUS_ALLOC_FAILED", Source::Library),
            ("cudaErrorMemoryAllocation", Source::Cuda),
            ("HIPBLAS_STATUS_ALLOC_FAILED", Source::Library),
            ("hipErrorOutOfMemory", Source::Hip),
            ("rocblas_status_memory_error", Source::Library),
            ("out of GPU memory", Source::Plain),
            ("NPUWorkspaceAllocator tried to allocate", Source::Driver),
            ("INTERNAL ASSERT FAILED at \"c10/cuda/CUDACachingAllocator.cpp\"", Source::Assertion),
            ("(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", Source::LevelZero),
            ("No available memory for the cache blocks", Source::Server),
            ("worker (pid 7) is killed by signal: Killed", Source::System),
            ("Allocation on device 5 would exceed allowed memory", Source::CudaMallocAsync),
        ];
        let before = words(PART + 2 * AROUND);
        for (sign, source) in signs {
            for blank in ["\n", " "] {
                let log = MessageLog::read(&format!("{before}{blank}{sign}"));
                assert_eq!(log.messages.first().map(|one| one.message.source), Some(source), "{sign}");
            }
        }
        let report = "Root Cause (first observed failure): [0]: time : 2024-05-01_12:00:02 host : a rank : 1 (";
        let log = MessageLog::read(&format!("{}\n{before}\n{report}", message(1)));
        assert_eq!(log.first.map(|first| (first.rank, first.told_by)), Some((Some(1), ToldBy::Launcher)));
        let log = MessageLog::read(&format!("{before}\nTried to allocate 2.00 GiB (GPU 1; 24.00 GiB total capacity;"));
        assert!(matches!(&log.messages[..], [one] if one.line == 2), "{log:?}");
    }

    #[test]
    fn a_source_that_fails_is_no_log_without_messages() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(ErrorKind::TimedOut.into())
            }
        }
        let source = words(1000);
        assert!(MessageLog::read_from(source.as_bytes().chain(Failing)).is_err());
    }

    /// The processor time that this thread has used.
    #[cfg(unix)]
    fn used_time() -> std::time::Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// Eight times as many messages take at most 16 times as much processor time, wherever they are. A reader whose time grew with
    /// the square of their number would take 64 times as much, and other programs change a thread's processor time by less than a
    /// factor of two.
    #[test]
    #[cfg(unix)]
    fn the_time_grows_with_the_number_of_messages() {
        let whole = |separator: &str, number| (0..number).map(message).collect::<Vec<_>>().join(separator);
        let cut =
            |separator: &str, number| (0..number).map(|one| message(one)[..80].to_owned()).collect::<Vec<_>>().join(separator);
        let jax = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.";
        let kinds: [(&str, &dyn Fn(usize) -> String); 6] = [
            ("on lines", &|number| whole("\n", number)),
            ("on one line", &|number| whole(" ", number)),
            ("of a rank on one line", &|number| "[rank3]: ".to_owned() + &whole(" ", number)),
            ("cut on lines", &|number| cut("\n", number / 2)),
            ("cut, of a rank on one line", &|number| "[rank3]: ".to_owned() + &cut(" ", number / 2)),
            ("of another framework on one line", &|number| format!("{} {}", message(1), vec![jax; 4 * number].join(" "))),
        ];
        for (name, log) in kinds {
            let logs = [log(400), log(3200)];
            let mut least = [u64::MAX; 2];
            // Takes the minimum of several rounds, because other programs only add to the time. More rounds are run only if they
            // disturb the measurement.
            for round in 0..40 {
                for (log, least) in logs.iter().zip(&mut least) {
                    let start = used_time();
                    let read = MessageLog::read(log);
                    *least = (*least).min((used_time() - start).as_nanos() as u64);
                    assert!(!read.messages.is_empty(), "{name}");
                }
                if round >= 2 && least[1] <= least[0] * 16 {
                    break;
                }
            }
            assert!(least[1] <= least[0] * 16, "{name}: {least:?} ns");
        }
    }

    #[cfg(not(target_family = "wasm"))]
    fn part_of_a_log() -> impl Strategy<Value = Vec<u8>> {
        let texts = [
            "\n",
            "\r\n",
            " ",
            "\0",
            "\u{1b}[31m",
            "\u{1b}[",
            "[rank3]: ",
            "2: ",
            "rank=1 ",
            "2024-05-01 12:00:01 ",
            "é",
            "\u{2028}",
        ];
        prop_oneof![
            4 => proptest::sample::select(texts.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
            3 => (0..3_usize, 0..300_usize).prop_map(|(number, end)| message(number).as_bytes()[..end.min(message(0).len())].to_vec()),
            1 => (0..3_usize).prop_map(|number| message(number).replace(' ', "\n  ").into_bytes()),
            1 => Just(b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes".to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..6),
            1 => (PIECE - 100..PIECE + 100).prop_map(|length| words(length).replace(' ', "_").into_bytes()),
        ]
    }

    #[cfg(not(target_family = "wasm"))]
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Splitting a log changes nothing, regardless of where it is split, even inside a character.
        #[test]
        fn a_log_in_pieces_says_what_it_says_whole(
            parts in proptest::collection::vec(part_of_a_log(), 0..8),
            lengths in proptest::collection::vec(prop_oneof![1..4_usize, 1..400_usize, 1..70_000_usize], 1..4),
        ) {
            let log = parts.concat();
            prop_assert_eq!(in_pieces(&log, &lengths), MessageLog::read(&String::from_utf8_lossy(&log)));
        }
    }

    fn cuda_malloc_async_message(allocated: &str, requested: &str, free: &str, limit: &str) -> String {
        format!(
            "torch.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : {allocated}\n\
             Requested               : {requested}\n\
             Device limit            : 79.35 GiB\n\
             Free (according to CUDA): {free}\n\
             PyTorch limit (set by user-supplied memory fraction)\n\
             \x20                       : {limit}\n"
        )
    }

    #[test]
    fn all_figures_of_cuda_malloc_async_are_read_however_the_lines_are_laid_out() {
        let text = cuda_malloc_async_message("54.14 GiB", "686.41 MiB", "0 bytes", "17179869184.00 GiB");
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let prefixed: String = text.lines().map(|line| format!("[rank3]: {line}\n")).collect();
        for text in [&text, &joined, &prefixed] {
            let log = MessageLog::read(text);
            let [one] = &log.messages[..] else { panic!("{text}") };
            let found = &one.message;
            let bytes = |size: Option<Size>| size.map(|size| size.bytes >> 20);
            assert_eq!((found.source, found.is_complete), (Source::CudaMallocAsync, true), "{text}");
            assert_eq!((found.device, found.limit), (Some(5), None), "{text}");
            let figures = [found.allocated, found.tried, found.total, found.free].map(bytes);
            assert_eq!(figures, [Some(55_439), Some(686), Some(81_254), Some(0)], "{text}");
        }
        let limited = MessageLog::read(&cuda_malloc_async_message("1.00 GiB", "512 bytes", "2.00 GiB", "1.00 GiB"));
        assert_eq!(limited.messages[0].message.limit.map(|limit| limit.bytes), Some(1 << 30));
    }

    #[test]
    fn a_cut_message_of_cuda_malloc_async_has_what_is_left() {
        let text = cuda_malloc_async_message("54.14 GiB", "686.41 MiB", "27.19 MiB", "17179869184.00 GiB");
        let first = text.lines().next().expect("a line");
        let found = &MessageLog::read(first).messages[0].message;
        assert_eq!((found.device, found.allocated, found.is_complete), (Some(5), None, false));
        for cut in 0..text.len() {
            let _ = MessageLog::read(&text[..cut]);
        }
        let absurd = MessageLog::read(&cuda_malloc_async_message("99999999999999999999 GiB", "1.00 GiB", "0 bytes", "x"));
        assert!(absurd.messages[0].message.allocated.is_none() && absurd.messages[0].message.tried.is_some(), "{absurd:?}");
    }
}
