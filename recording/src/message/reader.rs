//! Reads a log of any size once, from its beginning to its end; no more than a part of it is in memory.

use std::io::{self, ErrorKind, Read};

use super::lines::Lines;
use super::log::MessageLog;
use super::scan::{AROUND, Scan};

/// So much of a log is searched at once.
const PART: usize = 64 << 10;
/// So much of a log is read at once.
const BUFFER: usize = 64 << 10;

impl MessageLog {
    /// Reads all messages of a text, which may be a message alone.
    #[must_use]
    pub fn read(text: &str) -> MessageLog {
        let mut reader = LogReader::default();
        reader.read(text.as_bytes());
        reader.end()
    }

    /// Reads all messages of a log of any size, to its end. Bytes that are not UTF-8 are taken for other characters.
    ///
    /// # Errors
    /// That of the source: what follows is not known then.
    pub fn read_from(mut source: impl Read) -> io::Result<MessageLog> {
        let (mut reader, mut buffer) = (LogReader::default(), vec![0; BUFFER]);
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(reader.end()),
                Ok(length) => reader.read(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reads a log piece by piece.
#[derive(Default)]
struct LogReader {
    lines: Lines,
    scan: Scan,
    /// How far the text that is kept has been searched.
    searched: usize,
}

impl LogReader {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = self.lines.read(bytes);
            while self.lines.view().text.len() - self.searched >= PART + AROUND {
                self.search();
                let end = self.lines.view().text.floor_char_boundary(self.searched.saturating_sub(AROUND));
                self.scan.forget(self.lines.view(), end);
                self.lines.forget(end);
                self.searched -= end;
            }
        }
    }

    /// Searches the next part.
    fn search(&mut self) {
        let view = self.lines.view();
        let end = view.text.floor_char_boundary(self.searched + PART);
        self.scan.part(view, self.searched..end);
        self.searched = end;
    }

    fn end(mut self) -> MessageLog {
        self.lines.end();
        while self.searched < self.lines.view().text.len() {
            self.search();
        }
        self.scan.end()
    }
}

#[cfg(test)]
mod reading_tests;
