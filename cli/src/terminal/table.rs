//! Tables that fit the terminal: text wraps, and columns that do not fit are in a second table below.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};

use crate::terminal::markup::{escape, marked};
use crate::terminal::output::{self, Tone};

/// Blanks between two columns.
const GAP: usize = 2;
/// The minimum width of a text column with longer words: enough for the longest setting, `roundup_power2_divisions:64,`.
const LEAST_TEXT: usize = 28;

/// A table. Columns of numbers are aligned to the right.
#[derive(Clone)]
pub struct Table {
    /// The headings; empty if the table has none.
    heads: Vec<String>,
    rows: Vec<Row>,
    /// The text columns, which are aligned to the left.
    left: Vec<usize>,
    indent: usize,
    is_styled: bool,
}

#[derive(Clone)]
struct Row {
    cells: Vec<String>,
    marked: usize,
    mark: Mark,
}

/// The marking of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nothing special.
    Plain,
    /// A good value.
    Good,
    /// A bad value.
    Bad,
}

impl Mark {
    /// Returns the mark for a good or bad value.
    pub fn of(is_good: bool) -> Mark {
        if is_good { Mark::Good } else { Mark::Bad }
    }

    fn tone(self) -> Tone {
        match self {
            Mark::Plain => Tone::Plain,
            Mark::Good => Tone::Good,
            Mark::Bad => Tone::Bad,
        }
    }
}

impl Table {
    /// Returns an empty table with these headings, which are dim.
    pub fn new(heads: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { is_styled: true, ..Table::plain(0, heads) }
    }

    /// Returns an empty table without styles and with this indentation.
    pub fn plain(indent: usize, heads: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { heads: heads.into_iter().map(Into::into).collect(), rows: Vec::new(), left: vec![0], indent, is_styled: false }
    }

    /// Returns an empty table without headings and with this indentation.
    pub fn bare(indent: usize) -> Table {
        Table::plain(indent, [""; 0])
    }

    /// Aligns these columns to the left and the others to the right. By default, only the first column is aligned to the left.
    pub fn with_left(mut self, left: impl IntoIterator<Item = usize>) -> Table {
        self.left = left.into_iter().collect();
        self
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.marked(cells, 0, Mark::Plain);
    }

    /// Adds a row with one marked cell.
    pub fn marked(&mut self, cells: impl IntoIterator<Item = impl Into<String>>, marked: usize, mark: Mark) {
        self.rows.push(Row { cells: cells.into_iter().map(Into::into).collect(), marked, mark });
    }

    /// Returns the table as lines of at most this width, if possible.
    pub fn text(&self, width: usize) -> String {
        let width = width.saturating_sub(self.indent);
        let least: Vec<usize> = (0..self.columns()).map(|column| self.least_width(column)).collect();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let (mut used, first) = (0, least.first().copied().unwrap_or(0));
        for (column, least) in least.iter().enumerate() {
            let is_full = used + GAP + least > width;
            match parts.last_mut() {
                Some(part) if !is_full || part.len() < 2 => part.push(column),
                None => parts.push(vec![column]),
                // The first column is repeated, because it names the row.
                Some(_) => {
                    used = first;
                    parts.push(vec![0, column]);
                }
            }
            used += GAP + least;
        }
        parts.iter().map(|part| self.part(part, &least, width)).collect::<Vec<_>>().join("\n")
    }

    fn columns(&self) -> usize {
        self.heads.len().max(self.rows.iter().map(|row| row.cells.len()).max().unwrap_or(0))
    }

    /// Returns the table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let columns = self.columns();
        let heads = (0..columns).map(|column| marked(self.heads.get(column).map_or("", String::as_str))).collect();
        let rule: String = (0..columns).map(|column| if self.left.contains(&column) { "---|" } else { "--:|" }).collect();
        let rows = self.rows.iter().map(|row| {
            line((0..columns).map(|column| row.text(column).split('\n').map(marked).collect::<Vec<_>>().join("<br>")).collect())
        });
        format!("{}|{rule}\n{}", line(heads), rows.collect::<String>())
    }

    /// Returns the table as HTML.
    pub fn html(&self) -> String {
        let align = |column: usize| if self.left.contains(&column) { " style=\"text-align:left\"" } else { "" };
        let heads: String =
            self.heads.iter().enumerate().map(|(column, head)| format!("<th{}>{}</th>", align(column), escape(head))).collect();
        let head = if heads.is_empty() { heads } else { format!("<thead><tr>{heads}</tr></thead>") };
        let row = |row: &Row| -> String {
            let cell = |column: usize| {
                let colour = Some(row.mark.tone()).filter(|_| column == row.marked).and_then(Tone::colour);
                let colour = colour.map_or_else(String::new, |colour| format!(";color:{colour}"));
                let align = if self.left.contains(&column) { "left" } else { "right" };
                format!(
                    "<td style=\"text-align:{align}{colour}\">{}</td>",
                    row.text(column).split('\n').map(escape).collect::<Vec<_>>().join("<br>")
                )
            };
            format!("<tr>{}</tr>", (0..self.columns()).map(cell).collect::<String>())
        };
        format!("<table>{head}<tbody>{}</tbody></table>", self.rows.iter().map(row).collect::<String>())
    }

    /// Returns the minimum width of a column: numbers stay in one piece, and text wraps between words.
    fn least_width(&self, column: usize) -> usize {
        let is_text = self.left.contains(&column);
        let cells = || self.rows.iter().filter_map(|row| row.cells.get(column)).map(String::as_str);
        let longest_word = |text: &str| text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let head = self.heads.get(column).map_or(0, |head| longest_word(head));
        let body = if is_text {
            cells().map(longest_word).max().unwrap_or(0).min(LEAST_TEXT)
        } else {
            cells().map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        head.max(body)
    }

    /// Returns the width of each column. The columns that would wrap share the width that is left.
    fn widths(&self, columns: &[usize], least: &[usize], width: usize) -> Vec<usize> {
        let longest_line = |text: &str| text.split('\n').map(|line| line.chars().count()).max().unwrap_or(0);
        let wanted = |&column: &usize| {
            let head = self.heads.get(column).map_or(0, |head| longest_line(head));
            self.rows.iter().map(|row| longest_line(row.text(column))).max().unwrap_or(0).max(head)
        };
        let wanted: Vec<usize> = columns.iter().map(wanted).collect();
        let mut widths: Vec<usize> = columns.iter().map(|&column| least[column]).collect();
        let mut rest = width.saturating_sub(widths.iter().sum::<usize>() + GAP * (columns.len() - 1));
        let is_text = |place: &usize| self.left.contains(&columns[*place]);
        while rest > 0 {
            let short = (0..widths.len()).filter(is_text).filter(|&place| widths[place] < wanted[place]);
            let Some(narrowest) = short.min_by_key(|&place| widths[place]) else { break };
            widths[narrowest] += 1;
            rest -= 1;
        }
        // A column of numbers is widened only if that puts its heading in one line.
        for place in (0..widths.len()).filter(|place| !is_text(place)) {
            let more = wanted[place].saturating_sub(widths[place]);
            if more <= rest {
                widths[place] += more;
                rest -= more;
            }
        }
        widths
    }

    fn part(&self, columns: &[usize], least: &[usize], width: usize) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        styled_cell::enable(&mut table);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
        let head = |&column: &usize| {
            let cell = Cell::new(self.heads.get(column).map_or("", String::as_str));
            if self.is_styled { styled_cell::dim(cell) } else { cell }
        };
        if !self.heads.is_empty() {
            table.set_header(columns.iter().map(head));
        }
        let widths = self.widths(columns, least, width);
        for row in &self.rows {
            table.add_row(columns.iter().zip(&widths).map(|(&column, &width)| row.cell(column, width)));
        }
        for ((place, column), number) in table.column_iter_mut().enumerate().zip(columns) {
            let gap = if place + 1 == columns.len() { 0 } else { GAP };
            column.set_padding((0, gap as u16));
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed((widths[place] + gap) as u16)));
            if !self.left.contains(number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let indent = " ".repeat(self.indent);
        table.lines().map(|line| format!("{indent}{}\n", line.trim_end().replace('\u{a0}', " "))).collect()
    }
}

impl Row {
    fn text(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    fn cell(&self, column: usize, width: usize) -> Cell {
        let lines: Vec<String> =
            self.text(column).split('\n').flat_map(|line| output::wrapped(&output::one_line(line), width)).collect();
        let cell = Cell::new(lines.join("\n").replace(' ', "\u{a0}"));
        match self.mark {
            Mark::Good if column == self.marked => styled_cell::good(cell),
            Mark::Bad if column == self.marked => styled_cell::bad(cell),
            _ => cell,
        }
    }
}

/// Styles the cells of tables on a terminal.
#[cfg(feature = "native")]
mod styled_cell {
    use comfy_table::{Attribute, Cell, Color, Table};

    /// Keeps styles even if standard output is not a terminal: the stream removes them.
    pub(super) fn enable(table: &mut Table) {
        table.enforce_styling().style_text_only();
    }

    pub(super) fn dim(cell: Cell) -> Cell {
        cell.add_attribute(Attribute::Dim)
    }

    pub(super) fn good(cell: Cell) -> Cell {
        cell.fg(Color::DarkGreen)
    }

    pub(super) fn bad(cell: Cell) -> Cell {
        cell.fg(Color::DarkRed).add_attribute(Attribute::Bold)
    }
}

/// A build without the feature `native` has no terminal, so its tables have no styles.
#[cfg(not(feature = "native"))]
mod styled_cell {
    use comfy_table::{Cell, Table};

    pub(super) fn enable(_: &mut Table) {}

    pub(super) fn dim(cell: Cell) -> Cell {
        cell
    }

    pub(super) fn good(cell: Cell) -> Cell {
        cell
    }

    pub(super) fn bad(cell: Cell) -> Cell {
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::plain(0, ["recording", "peak reserved", "driver time"]);
        table.row(["deep mlp", "12.00 GiB", "1.5 ms"]);
        table
    }

    #[test]
    fn a_row_stays_in_one_line_where_there_is_room() {
        assert_eq!(table().text(80), "recording  peak reserved  driver time\ndeep mlp       12.00 GiB       1.5 ms\n");
    }

    #[test]
    fn headings_are_wrapped_before_numbers_are() {
        let text = table().text(30);
        assert!(text.lines().all(|line| line.chars().count() <= 30) && text.contains("12.00 GiB"), "{text}");
    }

    #[test]
    fn long_names_are_wrapped_where_they_have_separators() {
        let mut table = Table::plain(0, ["settings", "fits"]);
        table.row(["max_split_size_mb:32,garbage_collection_threshold:0.8,roundup_power2_divisions:64", "yes"]);
        table.row(["a/long_folder/of_recordings/gpt2_varlen.limit12_oom.pickle.xz", "yes"]);
        let column = |line: &str| line.split("  ").next().unwrap_or_default().to_owned();
        let lines: Vec<String> = table.text(34).lines().skip(1).map(column).collect();
        let expected = [
            "max_split_size_mb:32,",
            "garbage_collection_",
            "threshold:0.8,",
            "roundup_power2_divisions:64",
            "a/long_folder/of_recordings/",
            "gpt2_varlen.limit12_oom.",
            "pickle.xz",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_does_not_fit_stands_below() {
        let text = table().text(22);
        assert!(text.lines().all(|line| line.chars().count() <= 22), "{text}");
        assert!(text.contains("\n\nrecording") && text.contains("12.00 GiB") && text.contains("1.5 ms"), "{text}");
    }
}
