//! A table as text, Markdown, LaTeX and HTML.

use std::fmt::Write as _;

use crate::terminal::answer::Answer;
use crate::terminal::markup::escape;
use crate::terminal::output;
use crate::terminal::table::Table;

/// A table: the first column is text, the others are numbers.
pub(super) struct Grid {
    /// The title.
    pub(super) title: String,
    /// How to read the table, as one paragraph.
    pub(super) note: String,
    pub(super) header: Vec<Head>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A column's name.
pub(super) struct Head {
    pub(super) name: String,
    /// A short form for terminals.
    pub(super) short: String,
}

impl From<&str> for Head {
    fn from(name: &str) -> Head {
        Head { name: name.to_owned(), short: name.to_owned() }
    }
}

impl Head {
    pub(super) fn named(name: &str, short: &str) -> Head {
        Head { name: name.to_owned(), short: short.to_owned() }
    }
}

impl Grid {
    /// Adds it to an answer, with its title and short headings.
    pub(super) fn add_to(&self, answer: &mut Answer) {
        let mut table = Table::plain(0, self.header.iter().map(|head| output::one_line(&head.short)));
        for row in &self.rows {
            table.row(row.iter().map(|cell| output::one_line(cell)));
        }
        answer.title(&self.title);
        answer.table(table);
    }

    pub(super) fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("### {}\n\n{}\n\n", self.title, self.note);
        text += &line(self.header.iter().map(|head| cell(&head.name)).collect());
        text += "|---";
        text += &"|--:".repeat(self.header.len() - 1);
        text += "|\n";
        for row in &self.rows {
            text += &line(row.iter().map(|text| cell(text)).collect());
        }
        text
    }

    /// The table as a LaTeX environment; it needs the package booktabs.
    pub(super) fn latex(&self) -> String {
        let line = |cells: Vec<String>| format!("    {} \\\\\n", cells.join(" & "));
        let mut text = format!("\\begin{{table}}\n  \\centering\n  \\caption{{{}. {}}}\n", tex(&self.title), tex(&self.note));
        let _ = writeln!(text, "  \\begin{{tabular}}{{l{}}}\n    \\toprule", "r".repeat(self.header.len() - 1));
        text += &line(self.header.iter().map(|head| tex(&head.name)).collect());
        text += "    \\midrule\n";
        for row in &self.rows {
            text += &line(row.iter().map(|cell| tex(cell)).collect());
        }
        text + "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    }

    pub(super) fn html(&self) -> String {
        let mut text =
            format!("<section class=\"card\"><h2>{}</h2><p class=\"note\">{}</p>", escape(&self.title), escape(&self.note));
        text += "<div class=\"wide\"><table><thead><tr>";
        for head in &self.header {
            let _ = write!(text, "<th>{}</th>", escape(&head.name));
        }
        text += "</tr></thead><tbody>";
        for row in &self.rows {
            text += "<tr>";
            for cell in row {
                let _ = write!(text, "<td>{}</td>", escape(cell));
            }
            text += "</tr>";
        }
        text + "</tbody></table></div></section>\n"
    }
}

/// Escapes text for LaTeX.
fn tex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped += "\\textbackslash{}",
            '~' => escaped += "\\textasciitilde{}",
            '^' => escaped += "\\textasciicircum{}",
            '<' => escaped += "$<$",
            '>' => escaped += "$>$",
            '–' => escaped += "--",
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let header = vec!["policy".into(), Head { name: "a_long name".into(), short: "1".into() }];
        let rows = vec![vec!["first|fit".into(), "1.05".into()], vec!["b".into(), "–".into()]];
        Grid { title: "Memory".into(), note: "Over LOAD.".into(), header, rows }
    }

    #[test]
    fn one_table_in_four_notations() {
        let mut answer = Answer::new();
        grid().add_to(&mut answer);
        let text = anstream::adapter::strip_str(&answer.text(80)).to_string();
        assert_eq!(text, "Memory\npolicy        1\nfirst|fit  1.05\nb             –\n");
        assert!(grid().markdown().ends_with("| policy | a_long name |\n|---|--:|\n| first\\|fit | 1.05 |\n| b | – |\n"));
        assert!(
            grid()
                .latex()
                .contains("    policy & a\\_long name \\\\\n    \\midrule\n    first|fit & 1.05 \\\\\n    b & -- \\\\\n")
        );
        assert!(grid().html().contains("<tr><td>first|fit</td><td>1.05</td></tr>"));
    }
}
