//! The lines of a log, decoded and read in pieces of any size. They are joined into one text without prefixes, colours or line
//! breaks, of which only the part that is being searched is kept.
//!
//! On Windows, logs may be UTF-16 (`> log.txt` in PowerShell); the decoder converts it to UTF-8 as bytes arrive.
//!
//! A launcher or a logger puts a prefix before each line: the rank that wrote it and the time. The module knows the prefixes
//! of torchrun (`[rank3]:`, `[default3]:`), of `srun --label` (`3: `) and of `mpirun --tag-output` (`[1,3]<stderr>:`), the
//! prefixes that programs write themselves (`[Rank 3]`, `rank 3:`, `[GPU 3]`, `[3]:`), and the times that loggers print.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::patterns::{Stems, compiled};

/// The encoding that the first bytes of a log indicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Encoding {
    /// UTF-8, or bytes that are not text.
    Utf8,
    /// UTF-16, the low byte of a unit first.
    Little,
    /// UTF-16, the high byte of a unit first.
    Big,
}

/// Decodes a log piece by piece.
#[derive(Default)]
pub(super) struct Decoder {
    encoding: Option<Encoding>,
    /// The bytes that have arrived but have not been decoded yet: the first bytes of the log, or part of a character.
    kept: Vec<u8>,
}

impl Encoding {
    /// Determines the encoding. UTF-16 begins with a byte order mark or has letters in which every other byte is zero.
    fn of(first: &[u8]) -> Encoding {
        match first {
            [0xff, 0xfe, ..] => Encoding::Little,
            [0xfe, 0xff, ..] => Encoding::Big,
            [first, 0, second, 0, ..] if *first > 0 && *second > 0 => Encoding::Little,
            [0, first, 0, second, ..] if *first > 0 && *second > 0 => Encoding::Big,
            _ => Encoding::Utf8,
        }
    }
}

impl Decoder {
    /// Returns the next bytes, in UTF-8 if the log is UTF-16.
    pub(super) fn read<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        match self.encoding {
            Some(Encoding::Utf8) => return Cow::Borrowed(bytes),
            Some(_) => self.kept.extend_from_slice(bytes),
            None => {
                self.kept.extend_from_slice(bytes);
                if self.kept.len() < 4 {
                    return Cow::Borrowed(&[]);
                }
                self.encoding = Some(Encoding::of(&self.kept));
            }
        }
        self.decode(false)
    }

    /// Returns the remaining bytes at the end of the log.
    pub(super) fn end(&mut self) -> Cow<'static, [u8]> {
        self.encoding.get_or_insert_with(|| Encoding::of(&self.kept));
        self.decode(true)
    }

    fn decode(&mut self, is_end: bool) -> Cow<'static, [u8]> {
        if self.encoding == Some(Encoding::Utf8) {
            return Cow::Owned(std::mem::take(&mut self.kept));
        }
        let unit = |pair: &[u8]| match self.encoding {
            Some(Encoding::Big) => u16::from_be_bytes([pair[0], pair[1]]),
            _ => u16::from_le_bytes([pair[0], pair[1]]),
        };
        let mut units: Vec<u16> = self.kept.chunks_exact(2).map(unit).collect();
        // The second half of the character may still arrive.
        let is_open = !is_end && units.last().is_some_and(|unit| (0xd800..0xdc00).contains(unit));
        units.truncate(units.len() - usize::from(is_open));
        self.kept.drain(..2 * units.len());
        let characters = char::decode_utf16(units).map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER));
        let text: String = characters.filter(|&character| character != '\u{feff}').collect();
        Cow::Owned(text.into_bytes())
    }
}

/// A rank at the start of a line, captured in one of the groups.
static RANK: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?x)^(?:
            \[(?i:(?:global_)?rank|gpu)[\ :=]{0,2}([0-9]{1,9})\]:?
            |\[[A-Za-z_]*([0-9]{1,9})\]:
            |\[[0-9]{1,9},([0-9]{1,9})\]<std(?:err|out)>:
            |(?i:rank|gpu)[\ :=]?([0-9]{1,9}):
            |([0-9]{1,6}):\x20
        )",
    )
});
/// A rank within a line.
static NAMED_RANK: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"(?i)(?:^|[^a-z])(local[_ ]|global[_ ])?rank[\x22']?[ :=]{0,3}([0-9]{1,9})(?:[^0-9]|$)"));
/// Every match contains this stem. The stem leaves out the `k`, which has a third form in Unicode.
const STEM: Stems = Stems::of(&["ran"]);
/// A time at the start of a line: the parts of the date, the parts of the time, the fraction and the zone.
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?x)^\[?[EWIFD]?(
            (?:([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T_\ ]|([0-9]{2})/([0-9]{2})/([0-9]{4})[\ ]|([0-9]{1,2})([0-9]{2})[\ ])?
            ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?
            (Z|[+-][0-9]{2}:?[0-9]{2})?
        )\]?[\ |:-]*",
    )
});
/// A terminal's colours.
static COLOUR: LazyLock<Regex> = LazyLock::new(|| compiled(r"\x1b\[[0-9;]*[A-Za-z]"));

/// Characters that people, web pages or boxes put before and after each line that they quote.
const QUOTES: [char; 7] = ['>', '#', '\u{2502}', '\u{2503}', '\u{2551}', ' ', '\t'];
/// The subset of these characters that may follow a line.
const BORDERS: [char; 4] = ['\u{2502}', '\u{2503}', '\u{2551}', ' '];

/// A line's time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogTime {
    /// The time as printed.
    pub text: String,
    /// Year, month and day; each is 0 if not stated.
    date: (u32, u32, u32),
    zone: String,
    /// The time since midnight.
    nanoseconds: u64,
}

impl LogTime {
    /// Reads a time such as torchrun's `2024-05-01_12:34:56`.
    pub(super) fn read(text: &str) -> Option<LogTime> {
        TIME.captures(text).map(|captures| LogTime::of(&captures))
    }

    fn of(captures: &Captures<'_>) -> LogTime {
        let number = |group: usize| captures.get(group).and_then(|digits| digits.as_str().parse::<u32>().ok());
        let date = |year: usize, month: usize, day: usize| Some((number(year).unwrap_or(0), number(month)?, number(day)?));
        let date = date(2, 3, 4).or_else(|| date(7, 5, 6)).or_else(|| date(0, 8, 9)).unwrap_or_default();
        let [hours, minutes, seconds] = [10, 11, 12].map(|group| u64::from(number(group).unwrap_or(0)));
        let fraction = captures.get(13).map_or("", |digits| digits.as_str());
        let nanoseconds = format!("{fraction:0<9}").parse::<u64>().unwrap_or(0);
        LogTime {
            text: captures.get(1).map_or("", |text| text.as_str()).to_owned(),
            date,
            zone: captures.get(14).map_or("", |zone| zone.as_str()).to_owned(),
            nanoseconds: ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanoseconds,
        }
    }

    /// Returns the parts that the time states: a year, a day, a zone. Times that state the same parts can be ordered.
    pub(super) fn form(&self) -> (bool, bool, &str) {
        (self.date.0 > 0, self.date.1 > 0, &self.zone)
    }

    /// Returns the date and the nanoseconds since midnight. Times of day alone do not show whether midnight is between them.
    pub(super) fn moment(&self) -> ((u32, u32, u32), u64) {
        (self.date, self.nanoseconds)
    }

    /// Returns the time of day, in nanoseconds since midnight, if no other part is stated.
    pub(super) fn time_of_day(&self) -> Option<u64> {
        (self.date.1 == 0).then_some(self.nanoseconds)
    }
}

/// The rank and the time before a line, and the line without them.
struct Prefix<'a> {
    rank: Option<u32>,
    time: Option<LogTime>,
    rest: &'a str,
}

/// Returns the line without terminal colours.
fn plain(line: &str) -> Cow<'_, str> {
    if line.contains('\x1b') { COLOUR.replace_all(line, "") } else { Cow::Borrowed(line) }
}

impl<'a> Prefix<'a> {
    /// Removes the prefixes from a line, in whatever order they occur. torchrun's own prefix (`[default3]:`) contains the
    /// local rank; a prefix that says "rank" (`[rank11]:`) takes precedence.
    fn of(line: &'a str) -> Prefix<'a> {
        let mut prefix = Prefix { rank: None, time: None, rest: line.trim_start().trim_start_matches(QUOTES) };
        let mut is_named = false;
        loop {
            // Nearly all lines begin with a letter that does not begin any prefix.
            let is_possible = prefix.rest.starts_with(|c: char| c == '[' || c.is_ascii_digit() || "rRgGEWIFD".contains(c));
            if !is_possible {
                return prefix;
            }
            if let Some(captures) = TIME.captures(prefix.rest).filter(|_| prefix.time.is_none()) {
                prefix.time = Some(LogTime::of(&captures));
                prefix.skip(&captures);
            } else if let Some(captures) =
                RANK.captures(prefix.rest).filter(|captures| prefix.rank.is_none() || (!is_named && captures.get(1).is_some()))
            {
                is_named = captures.get(1).is_some();
                prefix.rank = captures.iter().skip(1).flatten().next().and_then(|digits| digits.as_str().parse().ok());
                prefix.skip(&captures);
            } else {
                return prefix;
            }
        }
    }

    fn skip(&mut self, captures: &Captures<'_>) {
        self.rest = self.rest[captures[0].len()..].trim_start();
    }
}

/// The rank that a line names before a position, such as `rank=3`; a local rank is used only if the line names no other. In a
/// line with many messages, every part is read once.
#[derive(Default)]
pub(super) struct NamedRank {
    /// The length of the part of the line that has been read.
    read: usize,
    local: Option<u32>,
    global: Option<u32>,
}

impl NamedRank {
    /// The longest name.
    const LONGEST: usize = 64;

    /// Returns the rank that the line names up to this position. Earlier calls for the same line must have used positions
    /// before it.
    pub(super) fn before(&mut self, line: &str) -> Option<u32> {
        let named = |captures: &Captures<'_>| {
            let is_local = captures.get(1).is_some_and(|word| word.as_str().starts_with(['l', 'L']));
            captures[2].parse().ok().map(|rank: u32| if is_local { (Some(rank), None) } else { (None, Some(rank)) })
        };
        self.read = self.read.min(line.len());
        while self.global.is_none() {
            let captures = if STEM.are_in(&line[self.read..]) { NAMED_RANK.captures_at(line, self.read) } else { None };
            let end = captures.as_ref().and_then(|captures| captures.get(0)).map_or(line.len(), |found| found.end());
            let (local, global) = captures.as_ref().and_then(named).unwrap_or_default();
            if end == line.len() {
                // The number may continue.
                self.read = self.read.max(line.floor_char_boundary(line.len().saturating_sub(Self::LONGEST)));
                return global.or(self.local).or(local);
            }
            (self.read, self.local, self.global) = (end, self.local.or(local), global);
        }
        self.global
    }

    /// Adjusts for the part of the line's beginning that is no longer kept.
    pub(super) fn forget(&mut self, bytes: usize) {
        self.read = self.read.saturating_sub(bytes);
    }
}

/// The maximum length of a line that is read at once. A line's prefix and each colour sequence are much shorter.
pub(super) const PIECE: usize = 64 << 10;
/// The maximum length of a colour sequence; a longer sequence is part of the text.
const LONGEST_COLOUR: usize = 4 << 10;

/// A line that is not empty.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The line's position in the kept text; 0 if its beginning is no longer kept.
    pub(super) at: usize,
    /// Its number, from 1.
    pub(super) number: usize,
    /// The rank in its prefix.
    pub(super) rank: Option<u32>,
    /// The time in its prefix.
    pub(super) time: Option<LogTime>,
}

/// The reader of lines. Its result does not depend on how the log is split into pieces.
#[derive(Default)]
pub(super) struct Lines {
    /// The part of a line that has arrived but is not yet in the text: less than [`PIECE`].
    unread: Vec<u8>,
    /// The number of lines that have ended.
    ended: usize,
    /// Whether the line's prefix has been read.
    has_begun: bool,
    /// The rank and time from the prefix, kept until the line has a word.
    prefix: Option<(Option<u32>, Option<LogTime>)>,
    /// Whether the text ends inside a word.
    is_in_word: bool,
    text: String,
    lines: Vec<Line>,
}

impl Lines {
    /// Reads some of the bytes, at most up to the end of the line. Returns the remaining bytes.
    pub(super) fn read<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (part, rest) = bytes.split_at(bytes.len().min(PIECE - self.unread.len()));
        if let Some(end) = part.iter().position(|&byte| byte == b'\n') {
            self.unread.extend_from_slice(&part[..end]);
            self.end_line();
            return &bytes[end + 1..];
        }
        self.unread.extend_from_slice(part);
        if self.unread.len() == PIECE {
            let mut piece = std::mem::take(&mut self.unread);
            let end = end_of_piece(&piece);
            self.unread.extend_from_slice(&piece[end..]);
            piece.truncate(end);
            self.piece(&piece, false);
        }
        rest
    }

    fn end_line(&mut self) {
        if !self.unread.is_empty() || self.is_in_word {
            let mut piece = std::mem::take(&mut self.unread);
            self.piece(&piece, true);
            piece.clear();
            self.unread = piece;
        }
        self.ended = self.ended.saturating_add(1);
        (self.has_begun, self.prefix) = (false, None);
    }

    /// Ends the log.
    pub(super) fn end(&mut self) {
        self.end_line();
        // A message at the end of the text is not truncated.
        self.text.truncate(self.text.trim_end().len());
    }

    /// Appends a piece of a line to the text.
    fn piece(&mut self, bytes: &[u8], is_end: bool) {
        let decoded = String::from_utf8_lossy(bytes);
        let plain = plain(&decoded);
        let mut words = &*plain;
        if !self.has_begun && (is_end || !words.trim_start().is_empty()) {
            let Prefix { rank, time, rest } = Prefix::of(&plain);
            (self.has_begun, self.prefix, words) = (true, Some((rank, time)), rest);
        }
        if self.is_in_word && words.starts_with(char::is_whitespace) {
            self.text.push(' ');
            self.is_in_word = false;
        }
        let kept = self.text.len();
        words = if is_end { words.trim_end().trim_end_matches(BORDERS) } else { words };
        if is_normal(words) {
            self.text.push_str(words);
            self.text.push(' ');
        } else {
            for word in words.split_whitespace() {
                self.text.push_str(word);
                self.text.push(' ');
            }
        }
        if self.text.len() > kept {
            if let Some((rank, time)) = self.prefix.take() {
                self.lines.push(Line { at: kept, number: self.ended.saturating_add(1), rank, time });
            }
            self.is_in_word = !is_end && !words.ends_with(char::is_whitespace);
            self.text.truncate(self.text.len() - usize::from(self.is_in_word));
        } else if is_end && self.is_in_word {
            self.text.push(' ');
            self.is_in_word = false;
        }
    }

    /// Returns a view of the kept text.
    pub(super) fn view(&self) -> View<'_> {
        View { text: &self.text, lines: &self.lines }
    }

    /// Forgets the text before a position and the lines that end there.
    pub(super) fn forget(&mut self, end: usize) {
        self.text.drain(..end);
        let first = self.lines.partition_point(|line| line.at <= end).saturating_sub(1);
        self.lines.drain(..first);
        for line in &mut self.lines {
            line.at = line.at.saturating_sub(end);
        }
    }
}

/// Returns whether these bytes are ASCII words separated by single spaces, as nearly all lines are.
fn is_normal(words: &str) -> bool {
    let mut is_after_blank = true;
    for byte in words.bytes() {
        let is_blank = byte == b' ';
        if !byte.is_ascii_graphic() && (is_after_blank || !is_blank) {
            return false;
        }
        is_after_blank = is_blank;
    }
    !is_after_blank
}

/// Returns the position at which to end a piece of a line: after a word, or at a point where no character or colour sequence
/// is cut.
fn end_of_piece(piece: &[u8]) -> usize {
    let half = piece.len() / 2;
    if let Some(blank) = piece[half..].iter().rposition(u8::is_ascii_whitespace) {
        return half + blank;
    }
    let near = piece.len() - LONGEST_COLOUR;
    let escape = piece[near..].iter().rposition(|&byte| byte == 0x1b).map(|at| near + at);
    let is_open = |tail: &[u8]| match tail {
        [_] => true,
        [_, b'[', digits @ ..] => digits.iter().all(|byte| byte.is_ascii_digit() || *byte == b';'),
        _ => false,
    };
    if let Some(escape) = escape.filter(|&at| is_open(&piece[at..])) {
        return escape;
    }
    let continued = piece.iter().rev().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
    let first = piece.len() - continued - 1;
    let is_cut = match piece[first] {
        0xc0..=0xdf => continued < 1,
        0xe0..=0xef => continued < 2,
        0xf0..=0xff => continued < 3,
        _ => false,
    };
    if is_cut { first } else { piece.len() }
}

/// Part of a log as one line, without prefixes and with single spaces, and the positions of its lines.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) text: &'a str,
    pub(super) lines: &'a [Line],
}

impl<'a> View<'a> {
    /// Returns the line at a position in the text.
    pub(super) fn line_at(self, at: usize) -> usize {
        self.lines.partition_point(|line| line.at <= at).saturating_sub(1)
    }

    /// Returns the position at which a line begins.
    fn start_of(self, place: usize) -> usize {
        self.lines.get(place).map_or(0, |line| line.at)
    }

    /// Returns the position at which a line ends.
    pub(super) fn end_of(self, place: usize) -> usize {
        self.lines.get(place + 1).map_or(self.text.len(), |next| next.at.min(self.text.len()))
    }

    /// Returns the text of a line.
    pub(super) fn line(self, place: usize) -> &'a str {
        self.text.get(self.start_of(place)..self.end_of(place)).unwrap_or("")
    }
}

/// Returns at most this many bytes from the beginning of a text.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the decoder makes of bytes that arrive in pieces of this length.
    fn decoded(bytes: &[u8], length: usize) -> Vec<u8> {
        let mut decoder = Decoder::default();
        let mut read: Vec<u8> = bytes.chunks(length).flat_map(|piece| decoder.read(piece).into_owned()).collect();
        read.extend_from_slice(&decoder.end());
        read
    }

    /// The characters are those next to the surrogates, and the first and the last of those that take two units.
    #[test]
    fn utf_16_is_decoded_in_pieces_of_any_length() {
        let text = "epoch 1\r\nCUDA out of memory \u{1f697} é\u{d7ff}\u{e000}\u{10000}\u{10ffff}";
        let plain: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let marked: Vec<u8> = [0xff, 0xfe].into_iter().chain(plain.clone()).collect();
        let plain_big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let big: Vec<u8> = [0xfe, 0xff].into_iter().chain(plain_big.clone()).collect();
        for bytes in [text.as_bytes().to_vec(), plain, marked, plain_big, big] {
            assert_eq!(String::from_utf8_lossy(&decoded(&bytes, 1)), text);
            for end in 0..=bytes.len() {
                let whole = decoded(&bytes[..end], bytes.len());
                let cut = String::from_utf8_lossy(&whole).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
                assert!(end < 4 || text.starts_with(&cut), "{end}: {cut:?}");
                for length in 1..9 {
                    assert_eq!(decoded(&bytes[..end], length), whole, "{end} bytes in pieces of {length}");
                }
            }
        }
    }

    /// Characters of 1 to 4 bytes, incomplete ones, colours and blanks: wherever a piece ends among them, both parts read as the
    /// whole does.
    #[test]
    fn a_piece_ends_where_it_cuts_nothing() {
        let read = |bytes: &[u8]| plain(&String::from_utf8_lossy(bytes)).into_owned();
        let texts = ["x", " ", "é", "€", "\u{1f697}", "\u{10ffff}", "\u{1b}[m", "\u{1b}[1;31m", "\u{1b}", "\u{1b}[é"];
        let broken: [&[u8]; 6] = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x9a", b"\x80\x80\x80\x80", b"\xed\xa0\x80"];
        let all: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).chain(broken).collect();
        for tail in all.iter().flat_map(|one| all.iter().map(|other| [*one, *other].concat())) {
            for inside in 0..=tail.len() {
                let line = [&vec![b'x'; LONGEST_COLOUR - inside], &tail[..], b"yy"].concat();
                let end = end_of_piece(&line[..LONGEST_COLOUR]);
                assert!((LONGEST_COLOUR - inside..=LONGEST_COLOUR).contains(&end), "{tail:?}, {inside} bytes: ends at {end}");
                assert_eq!(read(&line[..end]) + &read(&line[end..]), read(&line), "{tail:?}, {inside} bytes");
            }
        }
    }

    /// The lines of a text that arrives in pieces of this length.
    fn lines(bytes: &[u8], length: usize) -> Lines {
        let mut lines = Lines::default();
        for mut piece in bytes.chunks(length) {
            while !piece.is_empty() {
                piece = lines.read(piece);
            }
        }
        lines.end();
        lines
    }

    #[test]
    fn a_line_of_many_pieces_is_read_as_a_short_one() {
        for unit in ["é", "€", "\u{1f697}", "\u{1b}[31mé", "é x\t "] {
            for shift in 0..unit.len() {
                let line = "x".repeat(shift) + &unit.repeat(2 * PIECE / unit.len() + 9) + "end";
                let expected = plain(&line).split_whitespace().collect::<Vec<_>>().join(" ");
                for length in [1000, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE] {
                    assert!(
                        lines(line.as_bytes(), length).text == expected,
                        "{unit:?} after {shift} bytes, in pieces of {length}"
                    );
                }
            }
        }
    }

    /// Wherever the kept text begins, the rest of it belongs to the same lines as before.
    #[test]
    fn what_is_forgotten_moves_no_line() {
        let log = "[rank1]: one two\n\n  three\n[rank2]: four\nx\nfive six\n";
        let whole = lines(log.as_bytes(), log.len());
        let number = |view: View<'_>, at: usize| view.lines[view.line_at(at)].number;
        assert_eq!(whole.text, "one two three four x five six");
        for end in 0..whole.text.len() {
            let mut rest = lines(log.as_bytes(), log.len());
            rest.forget(end);
            assert_eq!(rest.text, whole.text[end..]);
            assert_eq!(rest.lines[0].number, number(whole.view(), end), "the lines before it are gone, at {end}");
            for at in end..whole.text.len() {
                assert_eq!(number(rest.view(), at - end), number(whole.view(), at), "{at} after {end}");
            }
            let parts: String = (0..rest.lines.len()).map(|place| rest.view().line(place)).collect();
            assert_eq!(parts, rest.text);
        }
    }

    #[test]
    fn ranks_and_times_before_a_line_are_read_in_any_order() {
        let read = |line: &str| {
            let Prefix { rank, time, rest } = Prefix::of(line);
            (rank, time.map(|time| time.text), rest.to_owned())
        };
        let is = |rank: u32, time: Option<&str>| (Some(rank), time.map(str::to_owned), "CUDA".to_owned());
        assert_eq!(read("[default3]:[rank11]: CUDA"), is(11, None));
        for line in ["[rank3]: CUDA", "[Rank 3] CUDA", "[default3]:CUDA", "[3]: CUDA", "  3: CUDA", "[1,3]<stderr>:CUDA"] {
            assert_eq!(read(line), is(3, None), "{line}");
        }
        for line in ["rank 3: CUDA", "RANK=3: CUDA", "[GPU 3] CUDA", "[gpu3]: CUDA", "[rank: 3] CUDA"] {
            assert_eq!(read(line), is(3, None), "{line}");
        }
        let times = [
            "2024-05-01 12:34:56,789",
            "2024-05-01T12:34:56.789Z",
            "05/01/2024 12:34:56",
            "12:34:56.7",
            "0501 12:34:56.7",
            "501 12:34:56.7",
        ];
        for time in times {
            assert_eq!(read(&format!("{time} [rank3]: CUDA")), is(3, Some(time)));
            assert_eq!(read(&format!("[rank3]: [{time}] CUDA")), is(3, Some(time)));
        }
        assert_eq!(read("GPU 3 has a total"), (None, None, "GPU 3 has a total".to_owned()));
        assert_eq!(read("12.44 MiB free"), (None, None, "12.44 MiB free".to_owned()));
    }

    #[test]
    fn times_of_one_form_are_ordered() {
        let key = |text: &str| LogTime::read(text).map(|time| (time.moment(), time.time_of_day().is_some()));
        assert!(key("2024-05-01 12:34:56,789") < key("2024-05-01 12:34:56.79"));
        assert!(key("12/31/2023 23:00:00") < key("01/01/2024 01:00:00"));
        assert_eq!(key("0501 00:00:01").map(|(_, is_alone)| is_alone), Some(false));
        assert_eq!(key("00:00:01.5").map(|((_, nanoseconds), is_alone)| (nanoseconds, is_alone)), Some((1_500_000_000, true)));
    }

    #[test]
    fn a_line_may_name_its_rank() {
        let named_rank = |line: &str| {
            let whole = NamedRank::default().before(line);
            let mut onwards = NamedRank::default();
            let ends = (0..=line.len()).filter(|&end| line.is_char_boundary(end));
            assert_eq!(ends.map(|end| onwards.before(&line[..end])).last(), Some(whole), "{line}");
            whole
        };
        assert_eq!(named_rank("ERROR rank=3 step 7"), Some(3));
        assert_eq!(named_rank("local_rank: 1, global_rank: 9:"), Some(9));
        assert_eq!(named_rank("local rank 1"), Some(1));
        assert_eq!(named_rank("(Worker pid=712, ip=10.0.0.1) [rank5]: "), Some(5));
        assert_eq!((named_rank("ranked 3"), named_rank("frank 3"), named_rank("rank")), (None, None, None));
    }
}
