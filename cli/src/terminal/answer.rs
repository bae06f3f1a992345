//! A human-readable answer: one structure, written as text, Markdown or HTML.
//!
//! A command decides which parts its answer has and in which order; this module decides how they look. A short answer has a maximum
//! number of lines: if it would be longer, optional rows are dropped, the last one first.

use crate::terminal::markup::{escape, marked};
use crate::terminal::output::{self, Tone, Width};
use crate::terminal::table::Table;

/// The width of a row's label, including the blanks after it.
const LABEL: usize = 7;
/// The maximum number of lines of a short answer.
const SHORT: usize = 12;

/// An answer: its parts, in reading order.
#[derive(Clone, Default)]
pub struct Answer {
    parts: Vec<Part>,
    most_lines: Option<usize>,
}

#[derive(Clone)]
enum Part {
    /// The verdict.
    Headline(Tone, String),
    /// A line with a label. `may_go` means that it may be dropped if there is no room.
    Row {
        label: &'static str,
        text: String,
        may_go: bool,
    },
    /// The way to see more on a terminal.
    Hint(String),
    /// A paragraph with an indentation, in blanks.
    Text {
        tone: Tone,
        indent: usize,
        text: String,
    },
    /// A paragraph that begins with a red word.
    Alert {
        word: String,
        text: String,
    },
    /// A title for the parts that follow.
    Title(String),
    Table(Table),
    /// A line to paste. It is never wrapped.
    Code(Tone, String),
    /// Preformatted lines, which may contain styles for a terminal.
    Drawing(String),
    /// A blank line.
    Gap,
}

impl Answer {
    /// Returns an empty answer that may have any length.
    pub fn new() -> Answer {
        Answer::default()
    }

    /// Returns a short answer that begins with this verdict.
    pub fn short(tone: Tone, verdict: impl Into<String>) -> Answer {
        let mut answer = Answer { most_lines: Some(SHORT), ..Answer::default() };
        answer.headline(tone, capitalised(&output::one_line(&verdict.into())));
        answer
    }

    /// Returns whether the answer has no parts.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a verdict.
    pub fn headline(&mut self, tone: Tone, verdict: impl Into<String>) {
        self.parts.push(Part::Headline(tone, verdict.into()));
    }

    /// Adds a line with a label, unless the text is empty.
    pub fn row(&mut self, label: &'static str, text: impl Into<String>) {
        self.add_row(label, text.into(), false);
    }

    /// Adds a line with a label that a short answer may drop, unless the text is empty.
    pub fn optional(&mut self, label: &'static str, text: impl Into<String>) {
        self.add_row(label, text.into(), true);
    }

    fn add_row(&mut self, label: &'static str, text: String, may_go: bool) {
        if !text.is_empty() {
            self.parts.push(Part::Row { label, text, may_go });
        }
    }

    /// Adds a hint on how to see more, which a short answer may drop.
    pub fn hint(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Hint(text.into()));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.toned(Tone::Plain, text);
    }

    /// Adds paragraphs.
    pub fn paragraphs(&mut self, texts: impl IntoIterator<Item = impl Into<String>>) {
        texts.into_iter().for_each(|text| self.paragraph(text));
    }

    /// Adds an indented paragraph.
    pub fn indented(&mut self, indent: usize, text: impl Into<String>) {
        self.parts.push(Part::Text { tone: Tone::Plain, indent, text: text.into() });
    }

    /// Adds a paragraph in this tone.
    pub fn toned(&mut self, tone: Tone, text: impl Into<String>) {
        self.parts.push(Part::Text { tone, indent: 0, text: text.into() });
    }

    /// Adds a paragraph that begins with a red word.
    pub fn alert(&mut self, word: impl Into<String>, text: impl Into<String>) {
        self.parts.push(Part::Alert { word: word.into(), text: text.into() });
    }

    /// Adds a title.
    pub fn title(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Title(text.into()));
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, table: Table) {
        if !table.is_empty() {
            self.parts.push(Part::Table(table));
        }
    }

    /// Adds a line to paste.
    pub fn code(&mut self, tone: Tone, line: impl Into<String>) {
        self.parts.push(Part::Code(tone, line.into()));
    }

    /// Adds preformatted lines, which may contain styles for a terminal.
    pub fn drawing(&mut self, lines: impl Into<String>) {
        self.parts.push(Part::Drawing(lines.into()));
    }

    /// Adds a blank line.
    pub fn gap(&mut self) {
        self.parts.push(Part::Gap);
    }

    /// Adds all parts of another answer.
    pub fn append(&mut self, other: Answer) {
        self.parts.extend(other.parts);
    }

    /// Returns the answer without hints, for a reader who has no command line.
    #[must_use]
    pub fn without_hints(mut self) -> Answer {
        self.parts.retain(|part| !matches!(part, Part::Hint(_)));
        self
    }

    /// Returns the answer as styled text of this width. Only lines to paste and tables of wide numbers may be wider.
    pub fn text(&self, width: impl Into<Width>) -> String {
        let width = width.into();
        self.kept(width).into_iter().map(|part| part.text(width)).collect()
    }

    /// Returns the parts that a short answer has room for.
    fn kept(&self, width: Width) -> Vec<&Part> {
        let mut kept: Vec<(&Part, usize)> = self.parts.iter().map(|part| (part, part.text(width).lines().count())).collect();
        let may_go = |part: &Part| matches!(part, Part::Row { may_go: true, .. });
        let is_hint = |part: &Part| matches!(part, Part::Hint(_));
        while let Some(most) = self.most_lines
            && kept.iter().map(|(_, lines)| lines).sum::<usize>() > most
            // The hint is dropped last, because it states that there is more.
            && let Some(place) = kept.iter().rposition(|(part, _)| may_go(part)).or(kept.iter().position(|(part, _)| is_hint(part)))
        {
            kept.remove(place);
        }
        kept.into_iter().map(|(part, _)| part).collect()
    }

    /// Returns the answer as Markdown.
    pub fn markdown(&self) -> String {
        let is_row = |part: &&Part| matches!(part, Part::Row { .. });
        let (mut text, mut before) = (String::new(), None);
        for part in &self.parts {
            let block = part.markdown();
            if block.is_empty() {
                continue;
            }
            text += match before {
                None => "",
                // Consecutive rows form one list.
                Some(before) if is_row(&before) && is_row(&part) => "\n",
                Some(_) => "\n\n",
            };
            text += &block;
            before = Some(part);
        }
        if text.is_empty() { text } else { text + "\n" }
    }

    /// Returns the answer as an HTML fragment for notebooks, in the colours of the surrounding page. `everything` is added as a folded
    /// section.
    pub fn html(&self, everything: Option<&Answer>) -> String {
        // Half-transparent grey is visible on white and on black.
        const STYLE: &str =
            "text-align:left;max-width:70em;border:1px solid rgba(128,128,128,.4);border-radius:4px;padding:.6em .9em";
        let pieces = |answer: &Answer| answer.parts.iter().map(Part::html).collect::<String>();
        let more =
            everything.map(|all| format!("<details><summary>everything that was found</summary>{}</details>", pieces(all)));
        format!("<div class=\"parkade\" style=\"{STYLE}\">{}{}</div>", pieces(self), more.unwrap_or_default())
    }
}

impl Part {
    fn text(&self, Width { tables, words }: Width) -> String {
        match self {
            Part::Headline(tone, verdict) => wrapped(verdict, words, 0, *tone),
            Part::Row { label, text, .. } => {
                let lines = output::wrapped(&output::one_line(text), words.saturating_sub(LABEL));
                let label = |place: usize| format!("{:LABEL$}", if place == 0 { label } else { "" });
                lines.iter().enumerate().map(|(place, line)| format!("{}{line}\n", output::dim(&label(place)))).collect()
            }
            Part::Hint(text) => wrapped(text, words, 0, Tone::Dim),
            Part::Text { tone, indent, text } => wrapped(text, words, *indent, *tone),
            Part::Alert { word, text } => {
                wrapped(&format!("{word} {text}"), words, 0, Tone::Plain).replacen(word.as_str(), &output::bad(word), 1)
            }
            Part::Title(text) => wrapped(text, words, 0, Tone::Dim),
            Part::Table(table) => table.text(tables),
            Part::Code(tone, line) => format!("{}\n", tone.on(&output::one_line(line))),
            Part::Drawing(lines) => lines.clone(),
            Part::Gap => "\n".to_owned(),
        }
    }

    fn markdown(&self) -> String {
        let strong = |text: &str| format!("**{}**", marked(text));
        match self {
            Part::Headline(_, text) => strong(text),
            Part::Row { label, text, .. } => format!("- {}: {}", strong(label), marked(text)),
            Part::Text { text, .. } => marked(text),
            Part::Alert { word, text } => format!("{} {}", strong(word), marked(text)),
            Part::Title(text) => format!("#### {}", marked(text)),
            Part::Table(table) => table.markdown().trim_end().to_owned(),
            Part::Code(_, line) => format!("```{}\n{}\n```", language(line), output::one_line(line)),
            Part::Drawing(lines) => format!("```text\n{}\n```", anstream::adapter::strip_str(lines).to_string().trim_end()),
            Part::Hint(_) | Part::Gap => String::new(),
        }
    }

    fn html(&self) -> String {
        let colour = |tone: &Tone| tone.colour().map_or_else(String::new, |colour| format!(" style=\"color:{colour}\""));
        match self {
            Part::Headline(tone, text) => format!("<p><b{}>{}</b></p>", colour(tone), escape(text)),
            Part::Row { label, text, .. } => format!("<p style=\"margin:.2em 0\"><b>{}</b> {}</p>", escape(label), escape(text)),
            Part::Text { tone, text, .. } => format!("<p{}>{}</p>", colour(tone), escape(text)),
            Part::Alert { word, text } => format!("<p><b{}>{}</b> {}</p>", colour(&Tone::Bad), escape(word), escape(text)),
            Part::Title(text) => format!("<h4>{}</h4>", escape(text)),
            Part::Table(table) => table.html(),
            Part::Code(_, line) => format!("<pre>{}</pre>", escape(line)),
            Part::Drawing(lines) => {
                let plain = anstream::adapter::strip_str(lines).to_string();
                format!("<pre>{}</pre>", plain.lines().map(escape).collect::<Vec<_>>().join("\n"))
            }
            Part::Hint(_) | Part::Gap => String::new(),
        }
    }
}

/// Returns the language of a line to paste.
fn language(line: &str) -> &'static str {
    let is_python = ["parkade.", "torch."].iter().any(|module| line.starts_with(module)) && line.ends_with(')');
    if is_python { "python" } else { "sh" }
}

/// Wraps a text in lines, each with a line break.
fn wrapped(text: &str, columns: usize, indent: usize, tone: Tone) -> String {
    // Later lines of a numbered item are aligned with its text.
    let number = text.split_once(". ").filter(|(number, _)| number.len() < 3 && number.parse::<u8>().is_ok());
    let hang = number.map_or(0, |(number, _)| number.len() + 2);
    let (first, text) = text.split_at(hang);
    let lines = output::wrapped(&output::one_line(text), columns.saturating_sub(indent + hang));
    let blanks = |place: usize| format!("{}{}", " ".repeat(indent), if place == 0 { first.to_owned() } else { " ".repeat(hang) });
    lines.iter().enumerate().map(|(place, line)| format!("{}{}\n", blanks(place), tone.on(line))).collect()
}

/// Returns the sentence with an initial capital, unless its first word is a name.
pub fn capitalised(text: &str) -> String {
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

    fn plain(answer: &Answer, columns: usize) -> Vec<String> {
        let text = anstream::adapter::strip_str(&answer.text(columns)).to_string();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rows_are_wrapped_below_their_text() {
        let mut answer = Answer::short(Tone::Good, "it fits");
        answer.row("why", "one two three four");
        answer.row("note", "");
        assert_eq!(plain(&answer, LABEL + 9), ["It fits", "why    one two", "       three", "       four"]);
    }

    #[test]
    fn rows_that_may_go_go_from_the_end_until_the_rest_has_room() {
        let mut answer = Answer::short(Tone::Open, "not known");
        answer.row("why", "a a a a a a a");
        for alternative in ["first", "second", "third"] {
            answer.optional("or", alternative);
        }
        answer.row("note", "stays");
        answer.code(Tone::Good, "export X=1");
        let lines = plain(&answer, LABEL + 1);
        let labels: Vec<&str> = lines.iter().filter_map(|line| line.get(..LABEL)).map(str::trim).collect();
        let labels: Vec<&str> = labels.into_iter().filter(|label| ["why", "or", "note"].contains(label)).collect();
        assert_eq!((labels, lines.len()), (vec!["why", "or", "note"], 12), "the headline has two lines: {lines:?}");
    }

    #[test]
    fn one_answer_in_three_notations() {
        let mut answer = Answer::short(Tone::Bad, "does not fit");
        answer.row("why", "a_b < c");
        let mut table = Table::new(["settings", "needs"]);
        table.row(["a|b", "1 GiB"]);
        answer.table(table);
        answer.code(Tone::Good, "export X='1'");
        assert_eq!(plain(&answer, 80), ["Does not fit", "why    a_b < c", "settings  needs", "a|b       1 GiB", "export X='1'"]);
        let markdown = "**Does not fit**\n\n- **why**: a\\_b \\< c\n\n| settings | needs |\n|---|--:|\n| a\\|b | 1 GiB |\n\n\
                        ```sh\nexport X='1'\n```\n";
        assert_eq!(answer.markdown(), markdown);
        let html = answer.html(None);
        assert!(html.contains("<b>why</b> a_b &lt; c") && html.contains(">a|b</td>"), "{html}");
        assert!(html.contains("<pre>export X=&#39;1&#39;</pre>"), "{html}");
    }

    #[test]
    fn in_markdown_one_blank_line_is_between_blocks_and_code_has_its_language() {
        let mut answer = Answer::new();
        answer.title("rank 0");
        answer.gap();
        answer.headline(Tone::Plain, "fits");
        answer.paragraph("a");
        let mut table = Table::new(["settings"]);
        table.row(["x"]);
        answer.table(table);
        answer.code(Tone::Good, "parkade.enable(policy=\"x\")");
        let expected =
            "#### rank 0\n\n**fits**\n\na\n\n| settings |\n|---|\n| x |\n\n```python\nparkade.enable(policy=\"x\")\n```\n";
        assert_eq!(answer.markdown(), expected);
        assert_eq!(["export A=1", "torch.f(1.0)", "parkade advise f"].map(language), ["sh", "python", "sh"]);
    }

    #[test]
    fn text_from_a_file_obeys_nothing() {
        let mut answer = Answer::new();
        answer.paragraph("a\x1b[31m\n<script>`*");
        assert_eq!(plain(&answer, 80), ["a\\u{1b}[31m\\n<script>`*"]);
        assert!(!answer.html(None).contains("<script>") && answer.markdown().contains("\\<script>\\`\\*"));
    }
}
