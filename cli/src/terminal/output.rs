//! Standard output and standard error: buffering, colours, wrapping, closed pipes, and escaping of control characters.

use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use textwrap::{WordSeparator, WordSplitter};

use super::surroundings::{self, Captured, Surroundings};

/// A stream that silently accepts everything once its reader has gone, so that a closed pipe does not change how a command ends.
pub struct Stream<W> {
    to: W,
    /// Its name in error messages; `None` if the caller adds it.
    name: Option<String>,
    is_unread: bool,
}

impl<W: Write> Stream<W> {
    /// Wraps a writer; the name is for error messages.
    pub fn named(to: W, name: impl Display) -> Stream<W> {
        Stream { to, name: Some(name.to_string()), is_unread: false }
    }

    pub(crate) const fn unnamed(to: W) -> Stream<W> {
        Stream { to, name: None, is_unread: false }
    }

    /// Returns whether the reader of the stream has gone.
    pub const fn is_unread(&self) -> bool {
        self.is_unread
    }

    fn unless_unread<T>(&mut self, done: io::Result<T>, unread: T) -> io::Result<T> {
        let error = match done {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        match (error.kind(), &self.name) {
            // Programs that read through a socket reset it.
            (io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset, _) => {
                self.is_unread = true;
                Ok(unread)
            }
            // The caller writes it again.
            (io::ErrorKind::Interrupted, _) | (_, None) => Err(error),
            (kind, Some(name)) => Err(io::Error::new(kind, format!("cannot write {name}: {error}"))),
        }
    }
}

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        self.unless_unread(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.unless_unread(flushed, ())
    }
}

/// Standard output, buffered.
pub fn stdout() -> BufWriter<Stream<Box<dyn Write>>> {
    let to: Box<dyn Write> = match surroundings::provided() {
        Some(here) => Box::new(Captured::output(here)),
        None => Box::new(io::stdout().lock()),
    };
    BufWriter::new(Stream::named(to, "standard output"))
}

/// The buffered stream for human-readable output: standard error if standard output is left to data. Colours are dropped if it is
/// not a terminal.
pub(crate) fn text() -> BufWriter<Box<dyn Write>> {
    let stream: Box<dyn Write> = if let Some(here) = surroundings::provided() {
        Box::new(anstream::StripStream::new(Box::new(Captured::text(here)) as Box<dyn Write>))
    } else if IS_STDOUT_TAKEN.load(Ordering::Relaxed) {
        Box::new(Stream::named(anstream::AutoStream::auto(io::stderr().lock()), "standard error"))
    } else {
        Box::new(Stream::named(anstream::AutoStream::auto(io::stdout().lock()), "standard output"))
    };
    BufWriter::new(stream)
}

/// Whether a file is written to standard output.
static IS_STDOUT_TAKEN: AtomicBool = AtomicBool::new(false);

/// Sends human-readable output to standard error from now on, because a file was requested on standard output.
pub(crate) fn leave_stdout_to_data() {
    match surroundings::provided() {
        Some(here) => here.leave_output_to_data(),
        None => IS_STDOUT_TAKEN.store(true, Ordering::Relaxed),
    }
}

/// Reports an error on standard error: wrapped on a terminal, elsewhere in one line, for programs that read it. A closed standard
/// error is ignored.
pub fn complain(message: &str) {
    match surroundings::provided() {
        Some(here) => here.complain(&complaint(message, None)),
        None => {
            let _ = writeln!(io::stderr(), "{}", complaint(message, Width::of_error_terminal()));
        }
    }
}

fn complaint(message: &str, width: Option<Width>) -> String {
    let message = format!("parkade: {}", one_line(message));
    width.map_or_else(|| message.clone(), |width| wrapped(&message, width.words).join("\n"))
}

/// The system's message for an error, without its number.
pub fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error ").map_or(text.as_str(), |(said, _)| said).to_owned()
}

/// The text with control characters escaped: file names and names inside files may contain anything.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) {
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Serialises a value as JSON on one line. Its strings are escaped so that nothing can control a terminal, even where JSON does not
/// require it; the parsed value is the same.
///
/// # Errors
/// The value cannot be serialised.
pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    if !text.contains(is_obeyed) {
        return Ok(text);
    }
    let mut escaped = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        if is_obeyed(c) {
            // All of them fit in 16 bits.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    Ok(escaped)
}

fn is_obeyed(c: char) -> bool {
    c.is_control() || is_layout(c)
}

/// Unicode line separators and direction marks.
const fn is_layout(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the first `longest` characters of a text, with `...` if that cuts it.
pub fn shorten(text: &str, longest: usize) -> String {
    text.char_indices().nth(longest).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

/// Returns a count with its noun: `1 hole`, `2 holes`, `2 entries`.
pub fn count(number: impl Copy + PartialEq + From<u8> + Display, thing: &str) -> String {
    match thing.strip_suffix('y') {
        _ if number == 1.into() => format!("{number} {thing}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {thing}s"),
    }
}

/// Joins parts for a sentence: `a`, `a and b`, `a, b and c`.
pub fn enumerated(parts: &[&str]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

/// Returns how often something happened: `never`, `once`, `twice`, `3 times`.
pub fn times(number: i64) -> String {
    match number {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{number} times"),
    }
}

/// Returns the text if it fits in this many columns, or else its beginning and `...`.
pub fn fitted(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns { text.to_owned() } else { shorten(text, columns.saturating_sub(3)) }
}

/// Joins items with commas: `0, 1`.
pub fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Styles text that reports success. The runner strips colours if standard output is not a terminal or `NO_COLOR` is set.
pub fn good(text: &str) -> String {
    styled(AnsiColor::Green.on_default(), text)
}

/// Styles text that reports a failure.
pub fn bad(text: &str) -> String {
    styled(AnsiColor::Red.on_default().bold(), text)
}

/// Styles text that reports something undecided.
pub fn open(text: &str) -> String {
    styled(AnsiColor::Yellow.on_default(), text)
}

/// Styles text that is less important.
pub fn dim(text: &str) -> String {
    styled(Style::new().dimmed(), text)
}

/// The tone of a text, which decides its style.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// Nothing special.
    Plain,
    /// Success.
    Good,
    /// Undecided or unknown.
    Open,
    /// Failure.
    Bad,
    /// Less important.
    Dim,
}

impl Tone {
    /// Returns the text with styles for a terminal.
    pub fn on(self, text: &str) -> String {
        match self {
            Tone::Plain => text.to_owned(),
            Tone::Good => good(text),
            Tone::Open => open(text),
            Tone::Bad => bad(text),
            Tone::Dim => dim(text),
        }
    }

    /// Returns its colour, which is readable on light and dark pages.
    pub(super) const fn colour(self) -> Option<&'static str> {
        match self {
            Tone::Plain | Tone::Open => None,
            Tone::Good => Some("rgb(30,150,70)"),
            Tone::Bad => Some("rgb(220,60,60)"),
            Tone::Dim => Some("rgb(128,128,128)"),
        }
    }
}

fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// The least columns in which text is readable.
const LEAST_COLUMNS: usize = 40;

/// The widths of the output, in columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Width {
    /// The width of tables.
    pub tables: usize,
    /// The width of sentences.
    pub words: usize,
}

impl Width {
    /// Returns the width of the terminal, with sentences narrow enough to read easily. Without a terminal, returns the variable COLUMNS or
    /// 80, so that files do not depend on the terminal in which they were made.
    pub fn of_output() -> Width {
        if let Some((columns, _)) = terminal() {
            return Width::of_terminal(columns);
        }
        if surroundings::are_provided() {
            return Width::from(Surroundings::COLUMNS);
        }
        let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        Width::from(asked.filter(|&columns| columns >= LEAST_COLUMNS).unwrap_or(80))
    }

    /// Returns the width of the terminal that shows standard error; `None` if it is not a terminal.
    fn of_error_terminal() -> Option<Width> {
        size_of(Standard::Error).map(|(columns, _)| Width::of_terminal(columns))
    }

    fn of_terminal(columns: usize) -> Width {
        const EASY_TO_READ: usize = 100;
        Width { tables: columns, words: columns.min(EASY_TO_READ) }
    }
}

impl From<usize> for Width {
    fn from(columns: usize) -> Width {
        Width { tables: columns, words: columns }
    }
}

/// Returns the columns (at least 40) and the lines of the terminal; `None` if standard output is not a terminal.
pub fn terminal() -> Option<(usize, usize)> {
    if surroundings::are_provided() { None } else { size_of(Standard::Output) }
}

/// A stream of the process.
#[derive(Clone, Copy)]
enum Standard {
    Output,
    Error,
}

/// Returns the columns (at least 40) and the lines of a stream that is a terminal.
#[cfg(feature = "native")]
fn size_of(stream: Standard) -> Option<(usize, usize)> {
    use std::io::IsTerminal;

    use terminal_size::terminal_size_of;

    let size = match stream {
        Standard::Output => io::stdout().is_terminal().then(|| terminal_size_of(io::stdout())),
        Standard::Error => io::stderr().is_terminal().then(|| terminal_size_of(io::stderr())),
    };
    size.flatten().map(|(columns, lines)| (usize::from(columns.0).max(LEAST_COLUMNS), usize::from(lines.0)))
}

/// A build without the feature `native` has no terminal.
#[cfg(not(feature = "native"))]
fn size_of(_: Standard) -> Option<(usize, usize)> {
    None
}

/// Wraps text between words, in lines of at most `width` characters. Longer words are wrapped after separators: settings after a comma,
/// paths after a slash.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false);
    let text = with_units_held(text);
    let lines = textwrap::wrap(&text, options).into_iter().flat_map(|line| pieces(&line, width));
    lines.map(|line| line.replace('\u{a0}', " ")).collect()
}

/// Returns the line; if it is a word that is longer than the width, in pieces.
fn pieces(line: &str, width: usize) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), line);
    while let Some(end) = break_within(rest, width) {
        let (piece, after) = rest.split_at(end);
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces.push(rest.to_owned());
    pieces
}

/// Returns the byte after which a too long word is broken: after the last separator of the strongest kind that fits.
fn break_within(word: &str, width: usize) -> Option<usize> {
    const SEPARATORS: [&[char]; 4] = [&[',', ';'], &['/'], &[':', '='], &['_', '-', '.']];
    // Shorter lines are hard to read.
    let least = width / 3;
    let end = word.char_indices().nth(width).map(|(end, _)| end)?;
    let is_within_number = |place: usize| word[place + 1..].starts_with(|c: char| c.is_ascii_digit());
    let after = |separators: &[char]| {
        let ends =
            word[..end].char_indices().filter(|&(place, c)| separators.contains(&c) && !(c == '.' && is_within_number(place)));
        let mut ends = ends.map(|(place, c)| place + c.len_utf8()).filter(|&place| word[..place].chars().count() > least);
        ends.next_back()
    };
    SEPARATORS.into_iter().find_map(after)
}

/// Returns a name with its description beside it, wrapped in a column that begins at `column`. A longer name gets its own line.
pub fn listed(name: &str, column: usize, says: &str, columns: usize) -> String {
    let is_long = name.chars().count() >= column;
    let mut text = if is_long { format!("{name}\n") } else { String::new() };
    for (place, line) in wrapped(says, columns.saturating_sub(column)).into_iter().enumerate() {
        let name = if place == 0 && !is_long { name } else { "" };
        text += &format!("{name:column$}{line}\n");
    }
    text
}

/// Returns the text with a non-breaking space between each number and its unit.
pub(super) fn with_units_held(text: &str) -> String {
    const UNITS: [&str; 9] = ["byte", "KiB", "MiB", "GiB", "TiB", "%", "us ", "ms", "s "];
    let after_number = |text: &str, place: usize| text[..place].ends_with(|c: char| c.is_ascii_digit());
    let mut held = String::with_capacity(text.len());
    for (place, c) in text.char_indices() {
        let is_unit = || UNITS.iter().any(|unit| text[place + 1..].starts_with(unit));
        held.push(if c == ' ' && after_number(text, place) && is_unit() { '\u{a0}' } else { c });
    }
    held
}

/// Returns the text with an initial capital and a full stop.
pub fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), rest.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(one_line("a\nb\x1b[31m\u{202e}ü"), "a\\nb\\u{1b}[31m\\u{202e}ü");
    }

    #[test]
    fn errors_are_wrapped_only_for_a_terminal() {
        let message = "train.log: this is text,\nnot a snapshot";
        assert_eq!(complaint(message, None), "parkade: train.log: this is text,\\nnot a snapshot");
        assert_eq!(complaint(message, Some(Width::from(26))), "parkade: train.log: this\nis text,\\nnot a snapshot");
    }

    #[test]
    fn json_reads_the_same_and_has_nothing_to_obey() {
        let text = "a\n\u{1b}\u{7f}\u{9b}\u{2028}\u{202e}ü😀\"\\";
        let line = json(text).expect("JSON");
        assert_eq!(line, "\"a\\n\\u001b\\u007f\\u009b\\u2028\\u202eü😀\\\"\\\\\"");
        assert_eq!(serde_json::from_str::<String>(&line).expect("a string"), text);
    }

    /// A writer that always fails with this error.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_stream_without_a_reader_takes_everything() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
            let mut stream = Stream::named(Failing(kind), "it");
            assert!(!stream.is_unread());
            assert!(stream.write(b"text").is_ok_and(|bytes| bytes == 4) && stream.flush().is_ok() && stream.is_unread());
        }
        let mut full = Stream::named(Failing(io::ErrorKind::StorageFull), "it");
        let error = full.write(b"text").expect_err("a failure");
        assert_eq!((error.kind(), full.is_unread()), (io::ErrorKind::StorageFull, false));
        assert!(error.to_string().starts_with("cannot write it: "), "{error}");
    }

    #[test]
    fn counts_have_a_plural() {
        assert_eq!([0_u64, 1, 2].map(|holes| count(holes, "hole")), ["0 holes", "1 hole", "2 holes"]);
        assert_eq!([1_u64, 2].map(|entries| count(entries, "entry")), ["1 entry", "2 entries"]);
        assert_eq!((count(1_usize, "block"), list([0, 1])), ("1 block".to_owned(), "0, 1".to_owned()));
    }

    #[test]
    fn words_that_are_too_long_are_wrapped_at_separators() {
        let settings = "best max_split_size_mb:24,garbage_collection_threshold:0.8,roundup_power2_divisions:16: fits";
        let lines = ["best", "max_split_size_mb:24,garbage_collection_threshold:0.8,", "roundup_power2_divisions:16:", "fits"];
        assert_eq!(wrapped(settings, 60), lines);
        assert_eq!(
            wrapped("in /usr/lib/python3/site-packages/a.py:12 f", 20),
            ["in", "/usr/lib/python3/", "site-packages/", "a.py:12", "f"]
        );
        assert_eq!(wrapped("18446744073709551615", 8), ["18446744073709551615"], "nothing divides a number");
    }

    #[test]
    fn what_is_said_of_a_name_stays_in_its_column() {
        assert_eq!(listed("a", 4, "one two three", 11), "a   one two\n    three\n");
        assert_eq!(listed("long", 4, "one two", 11), "long\n    one two\n");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("äöü", 2), "äö...");
        assert_eq!(shorten("äöü", 3), "äöü");
    }
}
