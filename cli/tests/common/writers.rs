//! Every option with which a command writes a file. The unit tests of the binary compare this list with the definitions of its
//! commands.

/// A way to make a command write a file.
pub(crate) struct Writer {
    /// The command and its other arguments. `RECORDING` and `ROWS` are files that it reads, `OTHER` one that it writes too.
    pub(crate) line: &'static [&'static str],
    /// The option, without its hyphens.
    pub(crate) option: &'static str,
    /// Whether the command continues a file of its own, and leaves any other as it is.
    pub(crate) is_continued: bool,
}

impl Writer {
    pub(crate) fn command(&self) -> &'static str {
        self.line[0]
    }
}

const fn made(line: &'static [&'static str], option: &'static str) -> Writer {
    Writer { line, option, is_continued: false }
}

const EXPORT: &[&str] = &["export", "RECORDING"];
const REPORT: &[&str] = &["report", "RECORDING"];
const PACK: &[&str] = &["pack", "RECORDING", "--budget", "1000"];
const SWEEP: &[&str] = &["sweep", "-w", "RECORDING", "-p", "pytorch", "-c", "1.0", "--bounds", "0"];
const MERGE: &[&str] = &["merge", "ROWS"];
const MERGE_TO_OTHER: &[&str] = &["merge", "ROWS", "-o", "OTHER"];
const CONFORM: &[&str] = &["conform", "--filter", "contract/events", "--cases", "1"];

/// All of them except `parkade man -o`, which writes a folder.
pub(crate) const WRITERS: [Writer; 13] = [
    made(EXPORT, "output"),
    made(REPORT, "output"),
    made(REPORT, "svg"),
    made(REPORT, "flamegraph"),
    made(REPORT, "folded"),
    made(PACK, "output"),
    Writer { line: SWEEP, option: "output", is_continued: true },
    made(SWEEP, "csv"),
    made(SWEEP, "html"),
    made(SWEEP, "series"),
    made(MERGE, "output"),
    made(MERGE_TO_OTHER, "csv"),
    made(MERGE_TO_OTHER, "html"),
];

/// The one of a command that reads no file.
pub(crate) const WITHOUT_INPUT: [Writer; 1] = [made(CONFORM, "report")];

/// Path arguments to which nothing or a folder is written: (command, argument).
pub(crate) const OTHER_PATHS: [(&str, &str); 15] = [
    ("advise", "files"),
    ("conform", "script"),
    ("diagnose", "files"),
    ("diff", "a"),
    ("diff", "b"),
    ("export", "file"),
    ("man", "output"),
    ("merge", "files"),
    ("ops", "script"),
    ("pack", "file"),
    ("replay", "files"),
    ("report", "files"),
    ("stats", "files"),
    ("verify", "files"),
    ("verify", "stats"),
];
