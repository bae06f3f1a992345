//! MiniMalloc's files: one buffer a line, `id,lower,upper,size`, columns in any order, times half open; `alignment` may be among them,
//! others are passed over. What is written has a column `offset` too.

use std::fmt::{self, Write};

use super::{Buffer, Packing};

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CsvError {
    /// The first line does not name this column.
    NoColumn(&'static str),
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
            CsvError::NoColumn(column) => write!(f, "line 1: there is no column `{column}`: the columns are id,lower,upper,size"),
            CsvError::NoNumber { line, column } => write!(f, "line {line}: `{column}` is no whole number below 2^64"),
        }
    }
}

impl std::error::Error for CsvError {}

/// Whether a text begins like such a file.
#[must_use]
pub fn is_csv(text: &[u8]) -> bool {
    let first = text.split(|&byte| byte == b'\n').next().unwrap_or(&[]);
    let names: Vec<&[u8]> = first.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).collect();
    [&b"lower"[..], b"upper", b"size"].iter().all(|name| names.contains(name))
}

/// Reads the buffers of a file, and their ids.
///
/// # Errors
/// [`CsvError`], naming the line.
pub fn read_csv(text: &str) -> Result<(Vec<String>, Vec<Buffer>), CsvError> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or("").split(',').map(str::trim).collect();
    let place = |name: &str| names.iter().position(|&other| other == name);
    let wanted = |name: &'static str| place(name).ok_or(CsvError::NoColumn(name));
    let (lower, upper, size) = (wanted("lower")?, wanted("upper")?, wanted("size")?);
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
        let alignment = place("alignment").map_or(Ok(1), |place| number(place, "alignment"))?;
        let id = place("id").and_then(|place| cells.get(place));
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
        assert!(!is_csv(b"\x80\x02}q\x00") && !is_csv(b"") && !is_csv(b"lower,upper\nsize"));
    }
}
