//! All out-of-memory messages of a log: by rank, without repetitions, and which came first.
//!
//! The ranks of a run write into one log, each line behind its rank's prefix, and a message may be printed more than once: by the
//! traceback, by a logger, by the launcher. A message may be broken into lines, between which lines of other ranks may stand.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

use super::cuda_malloc_async::CudaMallocAsyncMessage;
use super::foreign::ForeignMessage;
use super::out_of_memory::{MessageError, OutOfMemoryMessage};
use super::parse::message;
use super::partial::PartialMessage;
use super::prefix::{LogTime, Prefix, compiled, named_rank, plain};

/// The words before every message.
const MARK: &str = "out of memory. ";
/// The words after them.
const TRIED: &str = "Tried to allocate ";
/// A message is not longer than this, even if many processes use the device.
const LONGEST: usize = 8 << 10;
/// A message that is broken into lines ends within so many lines of its rank and others.
const MOST_LINES: usize = 200;
/// So many messages of other frameworks are named.
const MOST_OTHERS: usize = 100;
/// A message that is cut is compared with so many that are not.
const MOST_COMPARED: usize = 1000;
/// The first failure as torchrun reports it: its time and rank.
static ROOT_CAUSE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"Root Cause \(first observed failure\): (?:\[[0-9]+\]: )?time : ([^ ]{1,40}) host : [^ ]{1,200} rank : ([0-9]{1,9})",
    )
});

/// What a message says, as far as it is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadMessage {
    /// It is complete.
    Complete(OutOfMemoryMessage),
    /// Parts are missing.
    Partial(PartialMessage),
}

/// A message in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedMessage {
    /// The rank that wrote it, if a prefix or the line tells.
    pub rank: Option<u32>,
    /// When, if its line tells.
    pub time: Option<LogTime>,
    /// The line on which it begins, from 1.
    pub line: usize,
    /// How often it is there.
    pub times: usize,
    /// What it says.
    pub message: ReadMessage,
}

/// A message of another framework, in a log that has messages of PyTorch too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherMessage {
    /// The rank that wrote it, if a prefix tells.
    pub rank: Option<u32>,
    /// Its line, from 1.
    pub line: usize,
    /// Who wrote it, and what it wanted.
    pub message: ForeignMessage,
}

/// How it is known which message came first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToldBy {
    /// The times of all messages.
    Times,
    /// torchrun's summary of the failures.
    Launcher,
}

/// The first failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstFailure {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its time, as it is printed.
    pub time: String,
    /// Its message in [`MessageLog::messages`], if the log has one of that rank.
    pub message: Option<usize>,
    /// How it is known.
    pub told_by: ToldBy,
}

/// The out-of-memory messages of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageLog {
    /// Each different message of each rank, in the order of the log.
    pub messages: Vec<LoggedMessage>,
    /// Which rank failed first, if that is known and there are several.
    pub first: Option<FirstFailure>,
    /// The first message of PyTorch's cudaMallocAsync backend, if there is none of its own allocator.
    pub cuda_malloc_async: Option<CudaMallocAsyncMessage>,
    /// The first message of another framework, if there is none of PyTorch's.
    pub foreign: Option<ForeignMessage>,
    /// Beside messages of PyTorch: those of other frameworks, one of each rank.
    pub others: Vec<OtherMessage>,
    /// What is wrong with the first message that has no figure; [`MessageError::NotFound`] if there is none.
    pub error: MessageError,
}

impl MessageLog {
    /// Reads all messages of a text, which may be a message alone.
    #[must_use]
    pub fn read(text: &str) -> MessageLog {
        let log = Log::of(text);
        let (mut messages, mut error) = (log.headless().into_iter().collect::<Vec<_>>(), MessageError::NotFound);
        let mut marks = log.text.match_indices(MARK).map(|(at, _)| at).peekable();
        while let Some(at) = marks.next() {
            match log.message(at, marks.peek().copied().unwrap_or(log.text.len())) {
                Ok(found) => messages.push(found),
                Err(found) if error == MessageError::NotFound => error = found,
                Err(_) => {}
            }
        }
        let messages = distinct(messages);
        let first = by_launcher(&log.text, &messages).or_else(|| by_times(&messages));
        let is_foreign = messages.is_empty() && error == MessageError::NotFound;
        let cuda_malloc_async = is_foreign.then(|| CudaMallocAsyncMessage::find(&log.text)).flatten();
        let is_foreign = is_foreign && cuda_malloc_async.is_none();
        let foreign = is_foreign.then(|| ForeignMessage::find(&log.text)).flatten();
        let others = if messages.is_empty() { Vec::new() } else { log.others() };
        MessageLog { messages, first, cuda_malloc_async, foreign, others, error }
    }

    /// The message to explain: that of the first failure, else the first complete one, else the first.
    #[must_use]
    pub fn explained(&self) -> Option<usize> {
        let complete = |message: &LoggedMessage| matches!(message.message, ReadMessage::Complete(_));
        let first = self.first.as_ref().and_then(|first| first.message);
        let first_complete = || self.messages.iter().position(complete);
        first.or_else(first_complete).or_else(|| (!self.messages.is_empty()).then_some(0))
    }
}

/// A log as one line, without prefixes and with single blanks, and where the lines of the text were.
struct Log<'a> {
    source: &'a str,
    text: String,
    lines: Vec<Line>,
}

/// A line that is not empty.
#[derive(Clone, Copy)]
struct Line {
    /// Where it begins in the log's text.
    at: u32,
    /// Where it begins in the source.
    source: u32,
    /// Its number, from 1.
    number: u32,
    /// The rank in its prefix.
    rank: Option<u32>,
}

impl<'a> Log<'a> {
    /// Reads the lines of a text, of which no more than 4 GiB are used.
    fn of(source: &'a str) -> Log<'a> {
        let mut log = Log { source, text: String::with_capacity(source.len()), lines: Vec::new() };
        let mut at = 0;
        for (number, line) in (1..u32::MAX).zip(source.split('\n')) {
            let Ok(source) = u32::try_from(at) else { break };
            at += line.len() + 1;
            let line = plain(line);
            let prefix = Prefix::of(&line);
            log.lines.push(Line { at: log.text.len() as u32, source, number, rank: prefix.rank });
            for word in prefix.rest.split_whitespace() {
                log.text.push_str(word);
                log.text.push(' ');
            }
            if log.lines.last().is_some_and(|line| line.at as usize == log.text.len()) {
                log.lines.pop();
            }
        }
        // A message that ends the text is not cut.
        log.text.truncate(log.text.trim_end().len());
        log
    }

    /// The line at a place of the text.
    fn line_at(&self, at: usize) -> usize {
        self.lines.partition_point(|line| line.at as usize <= at).saturating_sub(1)
    }

    /// The text of a line.
    fn line(&self, place: usize) -> &str {
        let end = self.lines.get(place + 1).map_or(self.text.len(), |next| next.at as usize);
        self.lines.get(place).and_then(|line| self.text.get(line.at as usize..end.min(self.text.len()))).unwrap_or("")
    }

    /// The text from a place on, as much of it as a message may have.
    fn from(&self, start: usize, end: usize) -> &str {
        let mut end = end.min(start.saturating_add(LONGEST)).min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        self.text.get(start..end).unwrap_or("")
    }

    /// The message whose mark is here; the next one's is at `end`.
    fn message(&self, at: usize, end: usize) -> Result<LoggedMessage, MessageError> {
        let (start, place) = (at + MARK.len(), self.line_at(at));
        let following = self.from(start, end);
        let error = match message(following) {
            Ok(message) => return Ok(self.logged(place, at, ReadMessage::Complete(message))),
            Err(error) => error,
        };
        let own = self.own(place, start);
        if let Some(Ok(message)) = own.as_deref().map(message) {
            return Ok(self.logged(place, at, ReadMessage::Complete(message)));
        }
        // A message without its figures, and other uses of the words, are no parts of one.
        let rest = own.as_deref().unwrap_or(following);
        let partial = Some(rest).filter(|rest| rest.starts_with(TRIED)).map(PartialMessage::find);
        match partial.filter(|partial| !partial.is_empty()) {
            Some(partial) => Ok(self.logged(place, at, ReadMessage::Partial(partial))),
            // Cut before its first figure.
            None if is_beginning(self.line(place).get(start - self.start_of(place)..).unwrap_or("")) => {
                Ok(self.logged(place, at, ReadMessage::Partial(PartialMessage::default())))
            }
            None => Err(error),
        }
    }

    /// Where a line begins.
    fn start_of(&self, place: usize) -> usize {
        self.lines.get(place).map_or(0, |line| line.at as usize)
    }

    /// The first message of each other framework and rank, line by line.
    fn others(&self) -> Vec<OtherMessage> {
        let mut others: Vec<OtherMessage> = Vec::new();
        for at in ForeignMessage::named(&self.text) {
            let place = self.line_at(at);
            let Some(message) = ForeignMessage::find(self.line(place)) else { continue };
            let Some(&Line { number, rank, .. }) = self.lines.get(place) else { continue };
            let is_known = |other: &OtherMessage| {
                other.line == number as usize || (other.rank == rank && other.message.framework == message.framework)
            };
            if others.len() < MOST_OTHERS && !others.iter().any(is_known) {
                others.push(OtherMessage { rank, line: number as usize, message });
            }
        }
        others.sort_by_key(|other| other.line);
        others
    }

    /// What the rank of this line wrote from here on; `None` if its rank is not known.
    fn own(&self, place: usize, start: usize) -> Option<String> {
        let line = self.lines.get(place).filter(|line| line.rank.is_some())?;
        let skipped = start.saturating_sub(line.at as usize);
        let mut text = self.line(place).get(skipped..).unwrap_or("").to_owned();
        for next in place + 1..(place + MOST_LINES).min(self.lines.len()) {
            if self.lines[next].rank == line.rank && text.len() < LONGEST {
                let words = self.line(next);
                text.push_str(words.split(MARK).next().unwrap_or(words));
            }
        }
        Some(text)
    }

    /// The end of a message whose beginning was cut off, before the first whole one.
    fn headless(&self) -> Option<LoggedMessage> {
        let end = self.text.find(MARK).unwrap_or(self.text.len());
        let tried = self.text[..end].find(TRIED);
        // A mark that lost letters is one that a person sees.
        let start = tried.unwrap_or(0);
        let rest = self.from(start, end);
        if tried.is_some()
            && let Ok(message) = message(rest)
        {
            return Some(self.logged(self.line_at(start), start, ReadMessage::Complete(message)));
        }
        let partial = PartialMessage::find(rest);
        // One figure may be anybody's; PyTorch's name or two figures are not.
        let is_of_pytorch = partial.reserved.is_some() || partial.unallocated.is_some() || partial.missing().len() <= 4;
        is_of_pytorch.then(|| self.logged(self.line_at(start), start, ReadMessage::Partial(partial)))
    }

    fn logged(&self, place: usize, at: usize, message: ReadMessage) -> LoggedMessage {
        let line = self.lines.get(place);
        let before = line.and_then(|line| self.text.get(line.at as usize..at)).unwrap_or("");
        let source = line.and_then(|line| self.source.get(line.source as usize..)).and_then(|rest| rest.split('\n').next());
        let time = source.and_then(|line| Prefix::of(&plain(line)).time);
        let rank = line.and_then(|line| line.rank).or_else(|| named_rank(before));
        LoggedMessage { rank, time, line: line.map_or(1, |line| line.number as usize), times: 1, message }
    }
}

/// Whether this is all that is left of a message on its line, cut before the end of the size that was tried.
fn is_beginning(rest: &str) -> bool {
    static CUT_SIZE: LazyLock<Regex> =
        LazyLock::new(|| compiled(r"^(?:[0-9]{1,20}(?:\.[0-9]{0,2})?(?: (?:[KMG]i?|b(?:y(?:t(?:e)?)?)?)?)?)?$"));
    let rest = rest.trim_end();
    match rest.strip_prefix(TRIED.trim_end()) {
        Some(size) => size.is_empty() || size.strip_prefix(' ').is_some_and(|size| CUT_SIZE.is_match(size)),
        None => !rest.is_empty() && TRIED.starts_with(rest),
    }
}

/// The messages without repetitions. A repetition that does not tell its rank is one of any rank's message with the same figures, and one
/// that is cut is one of a message whose figures include its own.
fn distinct(mut messages: Vec<LoggedMessage>) -> Vec<LoggedMessage> {
    let mut places: HashMap<(Option<u32>, String), usize> = HashMap::new();
    let mut kept: Vec<LoggedMessage> = Vec::new();
    messages.sort_by_key(|message| (matches!(message.message, ReadMessage::Partial(_)), message.rank.is_none(), message.line));
    for message in messages {
        let figures = format!("{:?}", message.message);
        let same = places.get(&(message.rank, figures.clone())).copied().or_else(|| match &message.message {
            ReadMessage::Partial(partial) => kept.iter().take(MOST_COMPARED).position(|kept| {
                let is_whole = matches!(&kept.message, ReadMessage::Complete(whole) if partial.is_part_of(whole));
                is_whole && (message.rank.is_none() || message.rank == kept.rank)
            }),
            ReadMessage::Complete(_) => None,
        });
        if let Some(place) = same {
            let first = &mut kept[place];
            first.times += 1;
            first.line = first.line.min(message.line);
            first.time = first.time.take().or(message.time);
            continue;
        }
        // The first rank with these figures takes the repetitions without a rank.
        places.entry((None, figures.clone())).or_insert(kept.len());
        places.insert((message.rank, figures), kept.len());
        kept.push(message);
    }
    kept.sort_by_key(|message| message.line);
    kept
}

/// The first failure that torchrun observed.
fn by_launcher(text: &str, messages: &[LoggedMessage]) -> Option<FirstFailure> {
    let captures = ROOT_CAUSE.captures(text)?;
    let rank = captures[2].parse().ok()?;
    let message = messages.iter().position(|message| message.rank == Some(rank));
    let time = LogTime::read(&captures[1])?.text;
    Some(FirstFailure { rank: Some(rank), time, message, told_by: ToldBy::Launcher })
}

/// The first message, if all have times of one form and one is before the others.
fn by_times(messages: &[LoggedMessage]) -> Option<FirstFailure> {
    /// Times of day within half a day are on one day, or on two in this order.
    const HALF_A_DAY: u64 = 12 * 3600 * 1_000_000_000;
    let times: Vec<&LogTime> = messages.iter().map(|message| message.time.as_ref()).collect::<Option<_>>()?;
    let form = times.first()?.form();
    let first = (0..times.len()).min_by_key(|&place| times[place].moment())?;
    let is_first = |(place, time): (usize, &&LogTime)| {
        let is_near = time.time_of_day().zip(times[first].time_of_day()).is_none_or(|(later, first)| later - first < HALF_A_DAY);
        time.form() == form && is_near && (place == first || time.moment() > times[first].moment())
    };
    let is_known = times.len() > 1 && times.iter().enumerate().all(is_first);
    let time = times[first].text.clone();
    is_known.then(|| FirstFailure { rank: messages[first].rank, time, message: Some(first), told_by: ToldBy::Times })
}
