//! The result of reading a log: the out-of-memory messages by rank, without repetitions, and which of them came first.
//!
//! The ranks of a run write to one log, each line after its rank's prefix. The same message may be printed several times: by
//! the traceback, by a logger, by the launcher. A message may be broken into lines, with lines from other ranks between them.
//!
//! The distinct messages are kept in a bounded amount of memory while `reader` reads the log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::figures::OutOfMemoryMessage;
use super::lines::LogTime;

/// The number of different messages in a log that are kept; these are the first ones, and later ones are only counted.
pub const MOST_MESSAGES: usize = 1 << 14;

/// A message in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedMessage {
    /// The rank that wrote it, if a prefix or the line states it.
    pub rank: Option<u32>,
    /// The time, if its line states it.
    pub time: Option<LogTime>,
    /// The number of the line on which it begins, from 1.
    pub line: usize,
    /// The number of times that it occurs.
    pub times: usize,
    /// The message.
    pub message: OutOfMemoryMessage,
}

/// A message from another framework, in a log that also has messages from PyTorch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherMessage {
    /// The rank that wrote it, if a prefix states it.
    pub rank: Option<u32>,
    /// The number of its line, from 1.
    pub line: usize,
    /// The source and the requested size.
    pub message: OutOfMemoryMessage,
}

/// The evidence for which message came first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToldBy {
    /// The times of all messages.
    Times,
    /// torchrun's summary of the failures.
    Launcher,
}

crate::names! {
    ToldBy {
        ToldBy::Times => "times",
        ToldBy::Launcher => "launcher",
    }
}

/// The first failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstFailure {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its time, as printed.
    pub time: String,
    /// The index of its message in [`MessageLog::messages`], if the log has one from that rank.
    pub message: Option<usize>,
    /// The evidence.
    pub told_by: ToldBy,
}

/// The out-of-memory messages in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageLog {
    /// The distinct messages from PyTorch's GPU allocator, by rank, in log order; if there are more than [`MOST_MESSAGES`],
    /// only the first ones. If there are none, the most informative message from another source.
    pub messages: Vec<LoggedMessage>,
    /// The number of later messages that differ from all of these.
    pub left_out: usize,
    /// The rank that failed first, if this is known and there are several ranks.
    pub first: Option<FirstFailure>,
    /// Messages from other frameworks besides those from PyTorch, one per rank.
    pub others: Vec<OtherMessage>,
}

impl MessageLog {
    /// Returns the message to explain: the first failure's message; if there is none, the first complete message; failing
    /// that, the first message.
    #[must_use]
    pub fn explained(&self) -> Option<usize> {
        let complete = |message: &LoggedMessage| message.message.is_complete;
        let first = self.first.as_ref().and_then(|first| first.message);
        let first_complete = || self.messages.iter().position(complete);
        first.or_else(first_complete).or_else(|| (!self.messages.is_empty()).then_some(0))
    }
}

/// The maximum number of complete messages with which a truncated message is compared.
const MOST_COMPARED: usize = 1000;

/// The messages read so far. Those that differ from all of the first [`MOST_MESSAGES`] are only counted.
#[derive(Default)]
pub(super) struct Messages {
    kept: HashMap<(Option<u32>, OutOfMemoryMessage), Kept>,
    left_out: LeftOut,
}

/// The position of a message; its rank and figures are the key.
struct Kept {
    order: usize,
    line: usize,
    times: usize,
    time: Option<LogTime>,
}

/// The messages that are only counted.
#[derive(Default)]
pub(super) struct LeftOut {
    /// The number of these messages.
    pub(super) messages: usize,
    /// The earliest and the latest of their times.
    times: Option<(LogTime, LogTime)>,
    /// Whether any of them has no time, or their times have different forms.
    is_open: bool,
}

impl Messages {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn add(&mut self, message: LoggedMessage) {
        let order = self.kept.len();
        let LoggedMessage { rank, time, line, times, message } = message;
        match self.kept.entry((rank, message)) {
            Entry::Occupied(kept) => kept.into_mut().repeat(times, line, time),
            Entry::Vacant(_) if order == MOST_MESSAGES => self.left_out.add(time),
            Entry::Vacant(place) => drop(place.insert(Kept { order, line, times, time })),
        }
    }

    /// Returns the distinct messages in log order, and the counts of the other messages.
    pub(super) fn end(self) -> (Vec<LoggedMessage>, LeftOut) {
        let mut kept: Vec<_> = self.kept.into_iter().collect();
        kept.sort_by_cached_key(|(_, kept)| kept.order);
        let logged = kept.into_iter().map(|((rank, message), Kept { line, times, time, .. })| LoggedMessage {
            rank,
            time,
            line,
            times,
            message,
        });
        (distinct(logged.collect()), self.left_out)
    }
}

impl Kept {
    fn repeat(&mut self, times: usize, line: usize, time: Option<LogTime>) {
        self.times += times;
        self.line = self.line.min(line);
        self.time = self.time.take().or(time);
    }
}

impl LeftOut {
    fn add(&mut self, time: Option<LogTime>) {
        self.messages += 1;
        let Some(time) = time else { return self.is_open = true };
        let (earliest, latest) = self.times.get_or_insert_with(|| (time.clone(), time.clone()));
        self.is_open |= time.form() != earliest.form();
        if time.moment() < earliest.moment() {
            *earliest = time;
        } else if time.moment() > latest.moment() {
            *latest = time;
        }
    }

    /// Returns the times between which the other messages lie, or `None` if these times are unknown.
    fn times(&self) -> Option<Vec<&LogTime>> {
        let times = self.times.iter().flat_map(|(earliest, latest)| [earliest, latest]).collect();
        (!self.is_open).then_some(times)
    }
}

/// Returns the rank and the figures of a complete message.
fn of_whole(message: &LoggedMessage) -> Option<(Option<u32>, &OutOfMemoryMessage)> {
    message.message.is_complete.then_some((message.rank, &message.message))
}

/// Returns the messages without repetitions. A repetition without a rank counts towards a message from any rank with the same
/// figures. A truncated repetition counts towards a message whose figures include its own.
fn distinct(mut messages: Vec<LoggedMessage>) -> Vec<LoggedMessage> {
    messages.sort_by_cached_key(|message| (!message.message.is_complete, message.rank.is_none(), message.line));
    let firsts = first_of_each(&messages);
    let mut kept: Vec<Option<LoggedMessage>> = Vec::with_capacity(messages.len());
    for (place, message) in messages.into_iter().enumerate() {
        match kept.get_mut(firsts[place]).and_then(Option::as_mut) {
            Some(first) => {
                first.times += message.times;
                first.line = first.line.min(message.line);
                first.time = first.time.take().or(message.time);
                kept.push(None);
            }
            None => kept.push(Some(message)),
        }
    }
    let mut kept: Vec<LoggedMessage> = kept.into_iter().flatten().collect();
    kept.sort_by_cached_key(|message| message.line);
    kept
}

/// Returns, for each message, the position of the message that it repeats, or its own position if it repeats none.
fn first_of_each(messages: &[LoggedMessage]) -> Vec<usize> {
    let mut places: HashMap<(Option<u32>, &OutOfMemoryMessage), usize> = HashMap::new();
    let mut kept: Vec<usize> = Vec::new();
    let mut firsts = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate() {
        let figures = &message.message;
        let same = places.get(&(message.rank, figures)).copied().or_else(|| {
            let is_part = |(rank, whole): (Option<u32>, &OutOfMemoryMessage)| {
                figures.is_part_of(whole) && (message.rank.is_none() || message.rank == rank)
            };
            // Complete messages come first.
            let wholes = || kept.iter().take(MOST_COMPARED).map_while(|&place| of_whole(&messages[place]));
            let found = if figures.is_complete { None } else { wholes().position(is_part) };
            found.map(|number| kept[number])
        });
        firsts.push(same.unwrap_or(place));
        if same.is_none() {
            // The repetitions without a rank count towards the first rank with these figures.
            places.entry((None, figures)).or_insert(place);
            places.insert((message.rank, figures), place);
            kept.push(place);
        }
    }
    firsts
}

/// Returns the first failure that torchrun observed; its summary states the rank and the time.
pub(super) fn by_launcher(summary: Option<(u32, Option<LogTime>)>, messages: &[LoggedMessage]) -> Option<FirstFailure> {
    let (rank, time) = summary?;
    let message = messages.iter().position(|message| message.rank == Some(rank));
    Some(FirstFailure { rank: Some(rank), time: time?.text, message, told_by: ToldBy::Launcher })
}

/// Returns the first message, if all messages have times of the same form and one message precedes the others.
pub(super) fn by_times(messages: &[LoggedMessage], left_out: &LeftOut) -> Option<FirstFailure> {
    /// Times of day that are within half a day of each other are assumed to be on the same day, or on two consecutive days in
    /// this order.
    const HALF_A_DAY: u64 = 12 * 3600 * 1_000_000_000;
    let times: Vec<&LogTime> = messages.iter().map(|message| message.time.as_ref()).collect::<Option<_>>()?;
    let form = times.first()?.form();
    let others = left_out.times()?;
    let first = (0..times.len()).min_by_key(|&place| times[place].moment())?;
    let is_first = |(place, time): (usize, &&LogTime)| {
        let is_near = time
            .time_of_day()
            .zip(times[first].time_of_day())
            .is_none_or(|(later, first)| later.saturating_sub(first) < HALF_A_DAY);
        time.form() == form && is_near && (place == first || time.moment() > times[first].moment())
    };
    let is_known = times.len() > 1 && times.iter().chain(&others).enumerate().all(is_first);
    let time = times[first].text.clone();
    is_known.then(|| FirstFailure { rank: messages[first].rank, time, message: Some(first), told_by: ToldBy::Times })
}

#[cfg(test)]
mod tests {
    #[cfg(not(target_family = "wasm"))]
    use proptest::prelude::*;

    use super::*;
    use crate::message::{Size, Source};

    fn cut(bytes: u64, rank: u32, time: &str) -> LoggedMessage {
        let message = OutOfMemoryMessage { tried: Some(Size { bytes, within: 0 }), ..OutOfMemoryMessage::of(Source::PyTorch) };
        LoggedMessage { rank: Some(rank), time: LogTime::read(time), line: bytes as usize + 1, times: 1, message }
    }

    /// However many messages there are, only this many are kept; repetitions of these are still counted.
    #[test]
    fn the_first_messages_are_kept_and_the_others_counted() {
        let first = |last: &str| {
            let mut messages = Messages::default();
            for _ in 0..2 {
                (0..MOST_MESSAGES as u64).for_each(|bytes| messages.add(cut(bytes, 1, &format!("12:00:{:02}", bytes.min(5)))));
            }
            messages.add(cut(1 << 30, 2, "12:00:59"));
            messages.add(cut(0, 2, last));
            let (kept, left_out) = messages.end();
            assert_eq!((kept.len(), left_out.messages), (MOST_MESSAGES, 2));
            assert!(kept.iter().enumerate().all(|(place, one)| (one.line, one.times) == (place + 1, 2)));
            by_times(&kept, &left_out).map(|first| (first.time, first.message))
        };
        assert_eq!(first("12:00:07"), Some(("12:00:00".to_owned(), Some(0))));
        for last in ["11:59:00", "12:00:00", "2024-05-01 12:00:07", "no time"] {
            assert_eq!(first(last), None, "{last}");
        }
    }

    /// Returns the index of the first message, if the times show it: those of the kept messages, and those of the others.
    #[cfg(not(target_family = "wasm"))]
    fn first_of(kept: &[Option<LogTime>], others: &[Option<LogTime>]) -> Option<usize> {
        let all: Vec<&LogTime> = kept.iter().chain(others).map(Option::as_ref).collect::<Option<_>>()?;
        let precedes = |one: &LogTime, other: &LogTime| {
            let is_same_day = match (one.time_of_day(), other.time_of_day()) {
                (Some(one), Some(other)) => other < one + 12 * 3600 * 1_000_000_000,
                _ => true,
            };
            one.form() == other.form() && one.moment() < other.moment() && is_same_day
        };
        let is_first = |&one: &usize| (0..all.len()).all(|other| other == one || precedes(all[one], all[other]));
        (0..kept.len()).find(is_first).filter(|_| kept.len() > 1)
    }

    #[cfg(not(target_family = "wasm"))]
    proptest! {
        #[test]
        fn the_first_message_precedes_all_others(
            places in proptest::collection::vec(0..8_usize, 0..5),
            others in proptest::collection::vec(0..8_usize, 0..4),
            odd in (proptest::bool::weighted(0.2), 0..5_usize, 8..12_usize),
        ) {
            let texts = [
                "00:00:00", "00:00:01", "06:30:00", "11:59:59", "12:00:00", "12:00:01", "18:29:59.999", "18:30:00",
                "2024-05-01 06:30:00", "2024-05-02 00:00:00", "12:00:00Z", "no time",
            ];
            let (is_odd, place, text) = odd;
            let mut places = places;
            if let Some(place) = places.get_mut(place).filter(|_| is_odd) {
                *place = text;
            }
            let times = |places: &[usize]| places.iter().map(|&place| LogTime::read(texts[place])).collect::<Vec<_>>();
            let (kept, others) = (times(&places), times(&others));
            let message = |(place, time): (usize, &Option<LogTime>)| LoggedMessage { time: time.clone(), ..cut(place as u64, 3, "") };
            let messages: Vec<LoggedMessage> = kept.iter().enumerate().map(message).collect();
            let mut left_out = LeftOut::default();
            others.iter().cloned().for_each(|time| left_out.add(time));
            let found = by_times(&messages, &left_out);
            let expected = first_of(&kept, &others);
            prop_assert_eq!(found.as_ref().map(|first| first.message), expected.map(Some));
            let (time, rank) = (found.as_ref().map(|first| &first.time), found.as_ref().map(|first| first.rank));
            prop_assert_eq!(time, expected.and_then(|first| kept[first].as_ref()).map(|time| &time.text));
            prop_assert_eq!(rank, expected.map(|_| Some(3)));
        }
    }

    /// Returns the messages that are drawn: two whole ones, and truncated ones that belong to both, to one or to none of them.
    #[cfg(not(target_family = "wasm"))]
    fn forms() -> Vec<OutOfMemoryMessage> {
        let size = |bytes| Some(Size { bytes, within: 0 });
        let of = |tried, free, total| {
            let is_complete = total > 0;
            let (tried, free) = (size(tried), (free > 0).then_some(free).and_then(size));
            OutOfMemoryMessage { tried, free, total: size(total), is_complete, ..OutOfMemoryMessage::of(Source::PyTorch) }
        };
        let cut = |tried, free| OutOfMemoryMessage { total: None, ..of(tried, free, 0) };
        vec![of(8, 2, 99), of(8, 3, 99), cut(8, 0), cut(8, 2), cut(8, 3), cut(8, 4), cut(9, 0)]
    }

    /// Returns the groups of messages that count as one, from the description of [`distinct`].
    #[cfg(not(target_family = "wasm"))]
    fn groups(messages: &[LoggedMessage]) -> Vec<Vec<&LoggedMessage>> {
        let mut ordered: Vec<&LoggedMessage> = messages.iter().collect();
        ordered.sort_by_key(|message| (!message.message.is_complete, message.rank.is_none(), message.line));
        let mut groups: Vec<Vec<&LoggedMessage>> = Vec::new();
        for message in ordered {
            let of_its_rank = |group: &Vec<&LoggedMessage>| message.rank.is_none() || message.rank == group[0].rank;
            let is_same = |group: &Vec<&LoggedMessage>| of_its_rank(group) && group[0].message == message.message;
            let is_part = |group: &Vec<&LoggedMessage>| {
                let (part, whole) = (&message.message, &group[0].message);
                of_its_rank(group) && !part.is_complete && whole.is_complete && part.is_part_of(whole)
            };
            match groups.iter().position(is_same).or_else(|| groups.iter().position(is_part)) {
                Some(group) => groups[group].push(message),
                None => groups.push(vec![message]),
            }
        }
        groups
    }

    #[cfg(not(target_family = "wasm"))]
    proptest! {
        /// In any order of whole and truncated messages, each occurrence counts exactly once.
        #[test]
        fn each_occurrence_counts_towards_the_message_that_it_repeats(
            drawn in proptest::collection::vec((0..3_u32, 0..7_usize, 1..4_usize, any::<bool>()), 0..14),
        ) {
            let forms = forms();
            let (mut messages, mut logged) = (Messages::default(), Vec::new());
            for (place, (rank, form, times, is_timed)) in drawn.into_iter().enumerate() {
                let time = is_timed.then(|| LogTime::read(&format!("12:00:{place:02}"))).flatten();
                let message = forms[form].clone();
                logged.push(LoggedMessage { rank: rank.checked_sub(1), time, line: place + 1, times, message });
            }
            logged.iter().cloned().for_each(|message| messages.add(message));
            let (found, left_out) = messages.end();
            let mut expected = groups(&logged);
            expected.sort_by_key(|group| group.iter().map(|message| message.line).min());
            let shown = |message: &LoggedMessage| (message.rank, message.message.clone(), message.line, message.times);
            let of_group = |group: &Vec<&LoggedMessage>| {
                let line = group.iter().map(|message| message.line).min().unwrap_or(0);
                let times = group.iter().map(|message| message.times).sum();
                (group[0].rank, group[0].message.clone(), line, times)
            };
            prop_assert_eq!(found.iter().map(shown).collect::<Vec<_>>(), expected.iter().map(of_group).collect::<Vec<_>>());
            prop_assert_eq!(left_out.messages, 0);
            for (message, group) in found.iter().zip(&expected) {
                // A message's own time is better than the time of a part of it.
                let own = group.iter().filter(|one| (one.rank, &one.message) == (group[0].rank, &group[0].message));
                match own.clone().find_map(|one| one.time.as_ref()) {
                    Some(first) => prop_assert_eq!(message.time.as_ref(), Some(first)),
                    None => prop_assert!(group.iter().map(|one| &one.time).any(|time| *time == message.time)),
                }
                prop_assert_eq!(message.time.is_some(), group.iter().any(|one| one.time.is_some()));
            }
        }
    }
}
