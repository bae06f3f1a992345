//! MiniMalloc's files: one buffer a line, `id,lower,upper,size`, columns in any order, times half open; `alignment` may be among them,
//! `id` may be missing, others are passed over. What is written has a column `offset` too.

use std::fmt::{self, Write};

use super::{Buffer, Packing};

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CsvError {
    /// The first line does not name this column.
    NoColumn(&'static str),
    /// The first line names this column twice.
    ColumnTwice(&'static str),
    /// A line has no such value, or none that is a whole number below 2^64.
    NoNumber {
        /// The line, counted from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CsvError::NoColumn(column) => write!(
                f,
                "line 1 has no column `{column}`: a CSV file's first line names its columns with commas between them, as in \
                 id,lower,upper,size"
            ),
            CsvError::ColumnTwice(column) => write!(f, "line 1: the column `{column}` is there twice"),
            CsvError::NoNumber { line, column } => write!(f, "line {line}: `{column}` is no whole number below 2^64"),
        }
    }
}

impl std::error::Error for CsvError {}

/// What some programs write before a text (the byte order mark in UTF-8).
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Whether a file that begins so is meant as such a file: it is text, and its first line that is not blank has separators. The first
/// line of a pickle that is text (protocol 0) has none. [`read_csv`] says what is wrong with the columns.
#[must_use]
pub fn is_csv(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The last character may be cut off.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or(""),
        Err(_) => return false,
    };
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let is_printable = text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    let first = text.lines().find(|line| !line.trim().is_empty());
    is_printable && first.is_some_and(|line| line.contains([',', ';', '\t']))
}

/// Reads the buffers of a file, and their ids.
///
/// # Errors
/// [`CsvError`], naming the line.
pub fn read_csv(text: &str) -> Result<(Vec<String>, Vec<Buffer>), CsvError> {
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
    let (mut ids, mut buffers) = (Vec::new(), Vec::new());
    for (line, text) in (2..).zip(lines) {
        if text.trim().is_empty() {
            continue;
        }
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let number = |place: usize, column| {
            let number = cells.get(place).and_then(|cell| cell.parse().ok());
            number.ok_or(CsvError::NoNumber { line, column })
        };
        let alignment = alignment.map_or(Ok(1), |place| number(place, "alignment"))?;
        let id = id.and_then(|place| cells.get(place));
        ids.push(id.map_or_else(|| buffers.len().to_string(), |&id| id.to_owned()));
        let (start, end) = (number(lower, "lower")?, number(upper, "upper")?);
        buffers.push(Buffer { start, end, size: number(size, "size")?, alignment });
    }
    Ok((ids, buffers))
}

/// A file with the buffers and where they lie.
#[must_use]
pub fn write_csv(ids: &[String], buffers: &[Buffer], packing: &Packing) -> String {
    let mut text = "id,lower,upper,size,offset\n".to_owned();
    for ((id, buffer), offset) in ids.iter().zip(buffers).zip(&packing.offsets) {
        let Buffer { start, end, size, .. } = buffer;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{id},{start},{end},{size},{offset}");
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
        let (ids, buffers) = read_csv(text).unwrap();
        let buffer = |start, end, size, alignment| Buffer { start, end, size, alignment };
        assert_eq!(
            (ids.as_slice(), buffers.as_slice()),
            (&["a".to_owned(), "b".to_owned()][..], &[buffer(2, 9, 4, 2), buffer(0, 3, 6, 1)][..])
        );
        let packing = Packing { offsets: vec![6, 0], height: 10 };
        assert_eq!(write_csv(&ids, &buffers, &packing), "id,lower,upper,size,offset\na,2,9,4,6\nb,0,3,6,0\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert_eq!(read_csv("id,lower,size\n"), Err(CsvError::NoColumn("upper")));
        for (line, column) in [("1,2,x", "size"), ("1,2", "size"), ("-1,2,3", "lower"), ("1,,3", "upper")] {
            let said = read_csv(&format!("lower,upper,size\n1,2,3\n{line}\n"));
            assert_eq!(said, Err(CsvError::NoNumber { line: 3, column }), "{line}");
        }
        for column in ["id", "lower", "size", "alignment"] {
            let said = read_csv(&format!("id,lower,upper,size,alignment,{column}\n"));
            assert!(matches!(said, Err(CsvError::ColumnTwice(twice)) if twice == column), "{said:?}");
        }
        assert!(read_csv("lower,upper,size,note,note,,\n").is_ok(), "only of columns that count");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_column() {
        let text = "\u{feff}id,lower,upper,size\na,0,1,2\n";
        assert!(is_csv(text.as_bytes()));
        assert_eq!(read_csv(text).map(|(ids, _)| ids), Ok(vec!["a".to_owned()]));
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
