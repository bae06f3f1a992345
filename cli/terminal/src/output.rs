//! Standard output and standard error: buffering, colours, wrapping, closed pipes, and escaping of control characters.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use textwrap::{WordSeparator, WordSplitter};

/// Standard output, buffered.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Whether a file is written to standard output.
static IS_STDOUT_TAKEN: AtomicBool = AtomicBool::new(false);

/// From now on text for people goes to standard error, as a file was asked for on standard output.
pub(crate) fn leave_stdout_to_data() {
    IS_STDOUT_TAKEN.store(true, Ordering::Relaxed);
}

/// Whether text for people goes to standard error.
pub(crate) fn is_stdout_left_to_data() -> bool {
    IS_STDOUT_TAKEN.load(Ordering::Relaxed)
}

/// Reports an error on standard error, in one line. A closed standard error is ignored.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "parkade: {}", one_line(message));
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

/// A value as JSON on one line. What a terminal would obey is escaped in its strings, also where JSON itself would not: it reads the same.
///
/// # Errors
/// It cannot be serialised.
pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    if !text.contains(is_obeyed) {
        return Ok(text);
    }
    let mut escaped = String::with_capacity(text.len() + 32);
    for c in text.chars() {
        if is_obeyed(c) {
            // None of them is beyond 16 bits.
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

/// The first `longest` characters of a text.
pub fn shorten(text: &str, longest: usize) -> String {
    text.char_indices().nth(longest).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

/// A number of things: `1 hole`, `2 holes`, `2 entries`.
pub fn count(number: impl Copy + PartialEq + From<u8> + Display, thing: &str) -> String {
    match thing.strip_suffix('y') {
        _ if number == 1.into() => format!("{number} {thing}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {thing}s"),
    }
}

/// A number of times: `never`, `once`, `2 times`.
pub fn times(number: i64) -> String {
    match number {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        _ => format!("{number} times"),
    }
}

/// The text if it fits in so many columns, else its beginning and `...`.
pub fn fitted(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns { text.to_owned() } else { shorten(text, columns.saturating_sub(3)) }
}

/// A list in a sentence: `0, 1`.
pub fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Whether the error is a closed pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

/// Text that reports success. The runner strips colours if standard output is not a terminal or `NO_COLOR` is set.
pub fn good(text: &str) -> String {
    styled(AnsiColor::Green.on_default(), text)
}

/// Text that reports a failure.
pub fn bad(text: &str) -> String {
    styled(AnsiColor::Red.on_default().bold(), text)
}

/// Text that matters less.
pub fn dim(text: &str) -> String {
    styled(Style::new().dimmed(), text)
}

fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// The columns of the terminal; a fixed number elsewhere, so that output in files does not depend on where it was made.
pub fn width() -> usize {
    const ELSEWHERE: usize = 200;
    terminal().map_or(ELSEWHERE, |(columns, _)| columns)
}

/// The columns, at least 40, and the lines of the terminal; `None` if standard output is not one.
pub fn terminal() -> Option<(usize, usize)> {
    let size = io::stdout().is_terminal().then(|| terminal_size::terminal_size_of(io::stdout())).flatten();
    size.map(|(columns, lines)| (usize::from(columns.0).max(40), usize::from(lines.0)))
}

/// An indented line of text, wrapped on a terminal.
pub fn paragraph(text: &str, indent: usize) -> String {
    let blanks = " ".repeat(indent);
    let width = if io::stdout().is_terminal() { width() } else { usize::MAX };
    let lines = wrapped(&one_line(text), width.saturating_sub(indent));
    lines.iter().map(|line| format!("{blanks}{line}\n")).collect()
}

/// A wrapped line of text that begins with a red word.
pub fn alert(word: &str, text: &str) -> String {
    paragraph(&format!("{word} {text}"), 0).replacen(word, &bad(word), 1)
}

/// The text wrapped between words, in lines of at most `width` characters.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(one_line("a\nb\x1b[31m\u{202e}ü"), "a\\nb\\u{1b}[31m\\u{202e}ü");
    }

    #[test]
    fn json_reads_the_same_and_has_nothing_to_obey() {
        let text = "a\n\u{1b}\u{7f}\u{9b}\u{2028}\u{202e}ü😀\"\\";
        let line = json(text).expect("JSON");
        assert_eq!(line, "\"a\\n\\u001b\\u007f\\u009b\\u2028\\u202eü😀\\\"\\\\\"");
        assert_eq!(serde_json::from_str::<String>(&line).expect("a string"), text);
    }

    #[test]
    fn counts_have_a_plural() {
        assert_eq!([0_u64, 1, 2].map(|holes| count(holes, "hole")), ["0 holes", "1 hole", "2 holes"]);
        assert_eq!([1_u64, 2].map(|entries| count(entries, "entry")), ["1 entry", "2 entries"]);
        assert_eq!((count(1_usize, "block"), list([0, 1])), ("1 block".to_owned(), "0, 1".to_owned()));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("äöü", 2), "äö...");
        assert_eq!(shorten("äöü", 3), "äöü");
    }
}
