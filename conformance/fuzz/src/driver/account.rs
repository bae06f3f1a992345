//! The account that workers keep, in a file: for each thread and target, where it is and what it has seen.
//!
//! A row is written before each execution, so after an abort it tells which inputs were being executed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a thread has done for a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Row {
    /// 0 not begun, 1 an execution is running, 2 finished.
    pub(super) state: u64,
    /// The number of the execution that is running, or of the next one.
    pub(super) number: u64,
    /// Executions that ended.
    pub(super) executions: u64,
    /// Of these, those whose input was read.
    pub(super) read: u64,
    /// Inputs that were not survived.
    pub(super) failures: u64,
    /// The most memory that one took at once, in bytes.
    pub(super) peak_bytes: u64,
    /// The longest processor time, in microseconds.
    pub(super) slowest_us: u64,
    /// All bytes of all inputs.
    pub(super) input_bytes: u64,
    /// The wall-clock time that was spent, in milliseconds.
    pub(super) spent_ms: u64,
}

impl Row {
    pub(super) const RUNNING: u64 = 1;
    pub(super) const FINISHED: u64 = 2;
    const WORDS: usize = 9;
    const BYTES: usize = Row::WORDS * 8;

    fn words(self) -> [u64; Row::WORDS] {
        let Row { state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms } = self;
        [state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms]
    }

    fn of_words(words: [u64; Row::WORDS]) -> Row {
        let [state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms] = words;
        Row { state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms }
    }

    /// What two threads have done together.
    pub(super) fn and(self, other: Row) -> Row {
        Row {
            state: self.state.min(other.state),
            number: self.number.max(other.number),
            executions: self.executions + other.executions,
            read: self.read + other.read,
            failures: self.failures + other.failures,
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            slowest_us: self.slowest_us.max(other.slowest_us),
            input_bytes: self.input_bytes + other.input_bytes,
            spent_ms: self.spent_ms.max(other.spent_ms),
        }
    }
}

/// The file.
pub(super) struct Account {
    file: File,
    targets: usize,
}

impl Account {
    /// Opens the account, which is empty if the file is.
    pub(super) fn open(path: &Path, targets: usize) -> io::Result<Account> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Account { file, targets })
    }

    fn place(&self, thread: usize, target: usize) -> u64 {
        ((thread * self.targets + target) * Row::BYTES) as u64
    }

    pub(super) fn write(&self, thread: usize, target: usize, row: Row) -> io::Result<()> {
        let mut bytes = [0; Row::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(row.words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all_at(&bytes, self.place(thread, target))
    }

    /// A row; an empty one where none was written.
    pub(super) fn read(&self, thread: usize, target: usize) -> io::Result<Row> {
        let mut bytes = [0; Row::BYTES];
        match self.file.read_exact_at(&mut bytes, self.place(thread, target)) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        let mut words = [0; Row::WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        Ok(Row::of_words(words))
    }
}
