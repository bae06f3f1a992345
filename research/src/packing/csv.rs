//! Reads and writes MiniMalloc's CSV files: one buffer per line, `id,lower,upper,size`, with columns in any order and
//! half-open times. The column `alignment` is optional, `id` may be missing, and other columns are ignored. Written files
//! also have a column `offset`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::instance::{Buffer, Packing};

/// The buffers of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CsvFile {
    /// The name of each buffer: its id or, in a file without ids, its index, from 0.
    pub ids: Vec<String>,
    /// The buffers in line order; in a file without alignments, each alignment is 1.
    pub buffers: Vec<Buffer>,
    /// Whether the file has a column `alignment`, which is then written too.
    pub has_alignment: bool,
}

/// A line that describes a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CsvLine {
    /// The line's number, from 1.
    pub number: usize,
    /// The buffer's id, if the file has ids.
    pub id: Option<String>,
}

/// The reason why a file cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CsvError {
    /// The first line lacks this column.
    NoColumn(&'static str),
    /// The first line names this column twice.
    ColumnTwice(&'static str),
    /// The value is missing, or is not a whole number below 2^64.
    NoNumber {
        /// The line.
        line: CsvLine,
        /// The column.
        column: &'static str,
        /// The text that is there instead of a number, if the cell contains any.
        found: Option<String>,
    },
    /// A size or an alignment is 0.
    Zero {
        /// The line.
        line: CsvLine,
        /// The column.
        column: &'static str,
    },
    /// An earlier line has the same id, so the written file could not distinguish the two buffers.
    IdTwice {
        /// The line.
        line: CsvLine,
        /// The number of the earlier line.
        earlier: usize,
    },
    /// A buffer's end is not after its beginning.
    EmptyLifetime {
        /// The line.
        line: CsvLine,
        /// The first time at which it is in use.
        lower: u64,
        /// The first time at which it is no longer in use.
        upper: u64,
    },
}

impl fmt::Display for CsvLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.number)?;
        self.id.as_ref().map_or(Ok(()), |id| write!(f, ", id `{id}`"))
    }
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CsvError::NoColumn(column) => write!(
                f,
                "line 1 has no column `{column}`: the first line of a CSV file names its columns, separated by commas, as in \
                 id,lower,upper,size"
            ),
            CsvError::ColumnTwice(column) => write!(f, "line 1: the column `{column}` appears twice"),
            CsvError::NoNumber { line, column, found: Some(found) } => {
                write!(f, "{line}: `{column}` is `{found}`, which is not a whole number below 2^64")
            }
            CsvError::NoNumber { line, column, found: None } => write!(f, "{line} has too few columns: `{column}` is missing"),
            CsvError::Zero { line, column } => write!(f, "{line}: `{column}` is 0; it must be greater than 0"),
            CsvError::IdTwice { line, earlier } => {
                write!(f, "{line}: line {earlier} has the same id; give each buffer its own, or leave out the column `id`")
            }
            CsvError::EmptyLifetime { line, lower, upper } => {
                write!(
                    f,
                    "{line}: the buffer's range is empty or reversed: `upper` ({upper}) must be greater than `lower` ({lower})"
                )
            }
        }
    }
}

impl std::error::Error for CsvError {}

/// The UTF-8 byte order mark, which some programs write at the beginning of a text file.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Returns whether a file that begins with these bytes is meant to be CSV: it is text, and its first non-blank line contains
/// separators. The first line of a text pickle (protocol 0) contains none. Wrong columns are left for [`read_csv`] to report.
#[must_use]
pub fn is_csv(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The last character may be incomplete.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or(""),
        Err(_) => return false,
    };
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let is_printable = text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    let first = text.lines().find(|line| !line.trim().is_empty());
    is_printable && first.is_some_and(|line| line.contains([',', ';', '\t']))
}

/// Reads the buffers of a file, with their names.
///
/// # Errors
/// Returns [`CsvError`], which names the line and the buffer's id.
pub fn read_csv(text: &str) -> Result<CsvFile, CsvError> {
    let mut lines = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).lines();
    let names: Vec<&str> = lines.next().unwrap_or("").split(',').map(str::trim).collect();
    let place = |name: &'static str| {
        let mut places = (0..names.len()).filter(|&place| names[place] == name);
        let first = places.next();
        if places.next().is_some() { Err(CsvError::ColumnTwice(name)) } else { Ok(first) }
    };
    let wanted = |name: &'static str| place(name)?.ok_or(CsvError::NoColumn(name));
    let (lower, upper, size) = (wanted("lower")?, wanted("upper")?, wanted("size")?);
    let (id, alignment) = (place("id")?, place("alignment")?);
    let mut file = CsvFile { has_alignment: alignment.is_some(), ..CsvFile::default() };
    let mut lines_of: BTreeMap<String, usize> = BTreeMap::new();
    for (number, text) in (2..).zip(lines).filter(|(_, text)| !text.trim().is_empty()) {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let id = id.and_then(|place| cells.get(place)).map(|&id| id.to_owned());
        let cells = Cells { line: CsvLine { number, id }, cells };
        let (start, end) = (cells.number(lower, "lower")?, cells.number(upper, "upper")?);
        let size = cells.more_than_0(size, "size")?;
        let alignment = alignment.map_or(Ok(1), |place| cells.more_than_0(place, "alignment"))?;
        if start >= end {
            return Err(CsvError::EmptyLifetime { line: cells.line, lower: start, upper: end });
        }
        if let Some(id) = cells.line.id.as_ref().filter(|id| !id.is_empty())
            && let Some(earlier) = lines_of.insert(id.clone(), number)
        {
            return Err(CsvError::IdTwice { line: cells.line, earlier });
        }
        file.ids.push(cells.line.id.unwrap_or_else(|| file.buffers.len().to_string()));
        file.buffers.push(Buffer { start, end, size, alignment });
    }
    Ok(file)
}

/// The cells of a line.
struct Cells<'a> {
    line: CsvLine,
    cells: Vec<&'a str>,
}

impl Cells<'_> {
    fn number(&self, place: usize, column: &'static str) -> Result<u64, CsvError> {
        let found = self.cells.get(place);
        let number = found.and_then(|cell| cell.parse().ok());
        number.ok_or_else(|| CsvError::NoNumber { line: self.line.clone(), column, found: found.map(|&cell| cell.to_owned()) })
    }

    fn more_than_0(&self, place: usize, column: &'static str) -> Result<u64, CsvError> {
        match self.number(place, column)? {
            0 => Err(CsvError::Zero { line: self.line.clone(), column }),
            number => Ok(number),
        }
    }
}

/// Writes the buffers with their offsets.
#[must_use]
pub fn write_csv(file: &CsvFile, packing: &Packing) -> String {
    let mut text =
        if file.has_alignment { "id,lower,upper,size,alignment,offset\n" } else { "id,lower,upper,size,offset\n" }.to_owned();
    for ((id, buffer), offset) in file.ids.iter().zip(&file.buffers).zip(&packing.offsets) {
        let Buffer { start, end, size, alignment } = buffer;
        // Writing to a string cannot fail.
        let _ = write!(text, "{id},{start},{end},{size},");
        if file.has_alignment {
            let _ = write!(text, "{alignment},");
        }
        let _ = writeln!(text, "{offset}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_by_its_columns_and_written_with_offsets() {
        let text = "id, size,upper,lower,alignment\na,4,9,2,2\n\nb,6,3,0,1\r\n";
        assert!(is_csv(text.as_bytes()));
        let file = read_csv(text).unwrap();
        let buffer = |start, end, size, alignment| Buffer { start, end, size, alignment };
        let buffers = vec![buffer(2, 9, 4, 2), buffer(0, 3, 6, 1)];
        assert_eq!(file, CsvFile { ids: vec!["a".to_owned(), "b".to_owned()], buffers, has_alignment: true });
        let packing = Packing { offsets: vec![6, 0], height: 10 };
        let written = write_csv(&file, &packing);
        assert_eq!(written, "id,lower,upper,size,alignment,offset\na,2,9,4,2,6\nb,0,3,6,1,0\n");
        assert_eq!(read_csv(&written), Ok(file), "what is written is read again as it was");
        let file = read_csv("lower,upper,size\n2,9,4\n0,3,6\n").unwrap();
        assert_eq!(write_csv(&file, &packing), "id,lower,upper,size,offset\n0,2,9,4,6\n1,0,3,6,0\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_id() {
        assert_eq!(read_csv("id,lower,size\n"), Err(CsvError::NoColumn("upper")));
        for (line, said) in [
            ("1,2,x,8", "`size` is `x`, which is not a whole number below 2^64"),
            ("-1,2,3,8", "`lower` is `-1`, which is not a whole number below 2^64"),
            ("1,,3,8", "`upper` is ``, which is not a whole number below 2^64"),
            ("1,2,0,8", "`size` is 0; it must be greater than 0"),
            ("1,2,3,0", "`alignment` is 0; it must be greater than 0"),
            ("4,4,3,8", "the buffer's range is empty or reversed: `upper` (4) must be greater than `lower` (4)"),
        ] {
            let error = read_csv(&format!("id,lower,upper,size,alignment\na,1,2,3,8\n\nb,{line}\n")).unwrap_err();
            assert_eq!(error.to_string(), format!("line 4, id `b`: {said}"));
            let error = read_csv(&format!("lower,upper,size,alignment\n1,2,3,8\n{line}\n")).unwrap_err();
            assert_eq!(error.to_string(), format!("line 3: {said}"));
        }
        let error = read_csv("id,lower,upper,size\na,1,2,3\nb,1,2,3\na,4,5,6\n").unwrap_err();
        let own = "give each buffer its own, or leave out the column `id`";
        assert_eq!(error.to_string(), format!("line 4, id `a`: line 2 has the same id; {own}"));
        assert!(read_csv("id,lower,upper,size\n,1,2,3\n,1,2,3\n").is_ok(), "an id may be missing");
        let error = read_csv("id,lower,upper,size\na,1,2\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2, id `a` has too few columns: `size` is missing");
        for column in ["id", "lower", "size", "alignment"] {
            let said = read_csv(&format!("id,lower,upper,size,alignment,{column}\n"));
            assert!(matches!(said, Err(CsvError::ColumnTwice(twice)) if twice == column), "{said:?}");
        }
        assert!(read_csv("lower,upper,size,note,note,,\n").is_ok(), "only the columns that are used must be unique");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_column() {
        let text = "\u{feff}id,lower,upper,size\na,0,1,2\n";
        assert!(is_csv(text.as_bytes()));
        assert_eq!(read_csv(text).map(|file| file.ids), Ok(vec!["a".to_owned()]));
    }

    #[test]
    fn what_is_meant_as_a_csv_file_is_told_from_a_pickle() {
        for text in ["id;lower;upper;size\n", "\n\r\nid,lower,upper,size\n", "lower\tupper\tsize\n", "lower,upper\nsize"] {
            assert!(is_csv(text.as_bytes()), "{text:?}");
            assert!(matches!(read_csv(text), Err(CsvError::NoColumn(_))), "{text:?}");
        }
        let cut = "id,größe".as_bytes();
        assert!(is_csv(&cut[..6]), "in the middle of a character");
        let others: [&[u8]; 5] = [b"\x80\x02}q\x00", b"", b"(dp0\nVa,b;c\np1\n", b"\x1f\x8b\x08,;", b"id,\xff,size\n"];
        assert!(others.iter().all(|other| !is_csv(other)));
    }
}
