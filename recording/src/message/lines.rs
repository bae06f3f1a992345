//! The lines of a log, read in pieces of any size: one text without prefixes, colours and line breaks, of which the part is kept that is
//! being searched.

use super::prefix::{LogTime, Prefix, plain};

/// The most of a line that is read at once. What is before a line and each of its colours is much shorter.
pub(super) const PIECE: usize = 64 << 10;
/// A colour is not longer than this; a longer sequence is a part of the text.
const LONGEST_COLOUR: usize = 4 << 10;

/// A line that is not empty.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Where it begins in the text that is kept; 0 if its beginning is no longer kept.
    pub(super) at: usize,
    /// Its number, from 1.
    pub(super) number: usize,
    /// The rank in its prefix.
    pub(super) rank: Option<u32>,
    /// The time in its prefix.
    pub(super) time: Option<LogTime>,
}

/// Reads lines. What it makes of a log does not depend on the pieces in which the log arrives.
#[derive(Default)]
pub(super) struct Lines {
    /// What has arrived of a line and is not in the text yet: less than [`PIECE`].
    unread: Vec<u8>,
    /// How many lines have ended.
    ended: usize,
    /// Whether the prefix of the line has been read.
    has_begun: bool,
    /// What the prefix says, until the line has a word.
    prefix: Option<(Option<u32>, Option<LogTime>)>,
    /// Whether the text ends within a word.
    is_in_word: bool,
    text: String,
    lines: Vec<Line>,
}

impl Lines {
    /// Reads a part of the bytes, up to the end of the line at most; returns the others.
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

    /// The log ends here.
    pub(super) fn end(&mut self) {
        self.end_line();
        // A message that ends the text is not cut.
        self.text.truncate(self.text.trim_end().len());
    }

    /// Puts a piece of a line into the text.
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
        words = if is_end { words.trim_end() } else { words };
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

    /// What is kept.
    pub(super) fn view(&self) -> View<'_> {
        View { text: &self.text, lines: &self.lines }
    }

    /// Forgets the text before a place, and the lines that end there.
    pub(super) fn forget(&mut self, end: usize) {
        self.text.drain(..end);
        let first = self.lines.partition_point(|line| line.at <= end).saturating_sub(1);
        self.lines.drain(..first);
        for line in &mut self.lines {
            line.at = line.at.saturating_sub(end);
        }
    }
}

/// Whether these are words of ASCII with single blanks between them: nearly all lines are.
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

/// Where to end a piece of a line: after a word, or where no character and no colour is divided.
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

/// A part of a log as one line, without prefixes and with single blanks, and where its lines were.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) text: &'a str,
    pub(super) lines: &'a [Line],
}

impl<'a> View<'a> {
    /// The line at a place of the text.
    pub(super) fn line_at(self, at: usize) -> usize {
        self.lines.partition_point(|line| line.at <= at).saturating_sub(1)
    }

    /// Where a line begins.
    pub(super) fn start_of(self, place: usize) -> usize {
        self.lines.get(place).map_or(0, |line| line.at)
    }

    /// Where a line ends.
    pub(super) fn end_of(self, place: usize) -> usize {
        self.lines.get(place + 1).map_or(self.text.len(), |next| next.at.min(self.text.len()))
    }

    /// The text of a line.
    pub(super) fn line(self, place: usize) -> &'a str {
        self.text.get(self.start_of(place)..self.end_of(place)).unwrap_or("")
    }
}

/// The beginning of a text, of so many bytes at most.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
