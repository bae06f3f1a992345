//! A short answer: the verdict, then labelled lines, in the width of the terminal.
//!
//! What matters most is added first. Where the answer would be too long, the lines that may be left out go, the last one first.

use std::io::{self, Write};

use crate::terminal::output;

/// The most lines of a short answer.
const MOST_LINES: usize = 12;
/// The columns of text that goes to a file or a pipe, and the most on a wide terminal, where longer lines are hard to read.
const COLUMNS: [usize; 2] = [80, 100];
/// The columns of a label and the blanks after it.
const LABEL: usize = 7;

/// How the verdict reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// All is well.
    Good,
    /// It depends, or is not known.
    Open,
    /// It fails.
    Bad,
}

/// A short answer.
pub struct Brief {
    headline: String,
    tone: Tone,
    rows: Vec<Row>,
    last: Option<String>,
}

struct Row {
    label: &'static str,
    text: String,
    may_go: bool,
}

impl Brief {
    /// An answer with this verdict.
    pub fn new(tone: Tone, headline: impl Into<String>) -> Brief {
        Brief { headline: headline.into(), tone, rows: Vec::new(), last: None }
    }

    /// Adds a line that always stands; nothing if the text is empty.
    pub fn row(&mut self, label: &'static str, text: impl Into<String>) {
        self.add(label, text.into(), false);
    }

    /// Adds a line that may be left out for want of room.
    pub fn optional(&mut self, label: &'static str, text: impl Into<String>) {
        self.add(label, text.into(), true);
    }

    fn add(&mut self, label: &'static str, text: String, may_go: bool) {
        if !text.is_empty() {
            self.rows.push(Row { label, text, may_go });
        }
    }

    /// Sets the last line. It is pasted, so it is not wrapped.
    pub fn paste(&mut self, line: impl Into<String>) {
        self.last = Some(line.into());
    }

    /// Prints it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = output::terminal().map_or(COLUMNS[0], |(columns, _)| columns.min(COLUMNS[1]));
        let (headline, rows) = self.lines(width);
        for line in headline {
            writeln!(out, "{}", self.toned(&line))?;
        }
        for (label, line) in rows {
            writeln!(out, "{}{line}", output::dim(&format!("{label:LABEL$}")))?;
        }
        match &self.last {
            Some(line) => writeln!(out, "{}", output::good(&output::one_line(line))),
            None => Ok(()),
        }
    }

    /// The lines of the verdict, and the others each with its label.
    fn lines(&self, width: usize) -> (Vec<String>, Vec<(&'static str, String)>) {
        let headline = output::wrapped(&capitalised(&output::one_line(&self.headline)), width);
        let wrapped = |row: &Row| output::wrapped(&output::one_line(&row.text), width.saturating_sub(LABEL));
        let mut rows: Vec<(&Row, Vec<String>)> = self.rows.iter().map(|row| (row, wrapped(row))).collect();
        let room = MOST_LINES.saturating_sub(headline.len() + usize::from(self.last.is_some()));
        while rows.iter().map(|(_, lines)| lines.len()).sum::<usize>() > room
            && let Some(place) = rows.iter().rposition(|(row, _)| row.may_go)
        {
            rows.remove(place);
        }
        let labelled = |(row, lines): (&Row, Vec<String>)| {
            let label = row.label;
            lines.into_iter().enumerate().map(move |(place, line)| (if place == 0 { label } else { "" }, line))
        };
        (headline, rows.into_iter().flat_map(labelled).collect())
    }

    fn toned(&self, line: &str) -> String {
        match self.tone {
            Tone::Good => output::good(line),
            Tone::Open => output::open(line),
            Tone::Bad => output::bad(line),
        }
    }
}

/// The sentence with a capital letter, unless it begins with a name that is written as it is.
fn capitalised(text: &str) -> String {
    let first_word = text.split(' ').next().unwrap_or_default();
    match text.chars().next() {
        Some(first) if first_word.chars().all(|c| c.is_ascii_lowercase() || c == ':') => {
            first.to_uppercase().chain(text.chars().skip(1)).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_below_their_text() {
        let mut brief = Brief::new(Tone::Good, "it fits");
        brief.row("why", "one two three four");
        brief.row("note", "");
        let (headline, rows) = brief.lines(LABEL + 9);
        assert_eq!(headline, ["It fits"]);
        assert_eq!(rows, [("why", "one two".to_owned()), ("", "three".to_owned()), ("", "four".to_owned())]);
    }

    #[test]
    fn what_may_go_goes_from_the_end_until_the_rest_has_room() {
        let mut brief = Brief::new(Tone::Open, "not known");
        brief.row("why", "a a a a a a a");
        for alternative in ["first", "second", "third"] {
            brief.optional("or", alternative);
        }
        brief.row("note", "stays");
        brief.paste("export X=1");
        let (_, rows) = brief.lines(LABEL + 1);
        let labels: Vec<&str> = rows.iter().map(|&(label, _)| label).filter(|label| !label.is_empty()).collect();
        assert_eq!((labels, rows.len()), (vec!["why", "or", "note"], 9), "the headline has two lines: {rows:?}");
    }
}
