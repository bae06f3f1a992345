//! Where output goes: standard output in one buffer, colours only on a terminal, a reader that went away is no error, and nothing
//! that a file says reaches the terminal but as text.

use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Standard output, buffered.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Says on standard error what went wrong, in one line. Nobody may be listening.
pub(crate) fn complain(error: &anyhow::Error) {
    let _ = writeln!(io::stderr(), "parkade: {}", one_line(&format!("{error:#}")));
}

/// The text with everything that a terminal would obey written out: names in files and names of files may hold anything.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_layout(c) {
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Line ends of Unicode, and what reverses the direction of writing.
const fn is_layout(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a text of unknown length.
pub(crate) fn shorten(text: &str, longest: usize) -> String {
    text.char_indices().nth(longest).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

/// So many of a thing: `1 hole`, `2 holes`.
pub(crate) fn count(number: impl Copy + PartialEq + From<u8> + Display, thing: &str) -> String {
    if number == 1.into() { format!("{number} {thing}") } else { format!("{number} {thing}s") }
}

/// Numbers in a sentence: `0, 1`.
pub(crate) fn list(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// True if the error is that nobody reads the output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

/// Colours, where a person looks on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Colours if standard output is a terminal and nobody has asked for none.
    pub(crate) fn for_stdout() -> Paint {
        Paint { on: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(one_line("a\nb\x1b[31m\u{202e}ü"), "a\\nb\\u{1b}[31m\\u{202e}ü");
    }

    #[test]
    fn one_of_a_thing_is_not_many() {
        assert_eq!([0_u64, 1, 2].map(|holes| count(holes, "hole")), ["0 holes", "1 hole", "2 holes"]);
        assert_eq!((count(1_usize, "block"), list(&[0, 1])), ("1 block".to_owned(), "0, 1".to_owned()));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("äöü", 2), "äö...");
        assert_eq!(shorten("äöü", 3), "äöü");
    }
}
