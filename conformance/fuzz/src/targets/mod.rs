//! The targets: every reader, and the core of every command.
//!
//! A target generates an input from choices and accepts any bytes, so inputs that once failed can be kept as plain
//! files. A command's options, apart from its file, are derived from a number: the case.
//!
//! | file | targets |
//! |---|---|
//! | `readers` | code that reads a file or a text |
//! | `commands` | the work of a command on a recording; sweep, merge, pack, ops |
//! | `printed` | the output and the files of a command, run as in the binary |
//! | `case` | the options of a command, and how far an input got |

mod case;
mod commands;
mod printed;
mod readers;

pub use case::{CASES, Reached};

use crate::choices::Choices;

/// The kind of code that a target runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Code that reads a file or a text.
    Reader,
    /// Code that does what a command does.
    Command,
}

/// Code that must survive any input.
pub struct Target {
    /// Its name in lower case.
    pub name: &'static str,
    /// The kind of code that it runs.
    pub kind: Kind,
    /// Makes an input.
    pub make: fn(&mut Choices<'_>) -> Vec<u8>,
    /// Runs the code on the input.
    pub run: fn(&[u8], u8) -> Reached,
    /// The file name extension of its inputs.
    pub ending: &'static str,
}

/// All targets: readers first, and fast ones before slow ones.
pub const TARGETS: &[Target] = &[
    Target { name: "recording", kind: Kind::Reader, make: readers::recording, run: readers::read_recording, ending: "pickle" },
    Target { name: "written", kind: Kind::Reader, make: readers::written, run: readers::read_again, ending: "pickle" },
    Target { name: "bytes", kind: Kind::Reader, make: readers::damaged, run: readers::read_recording, ending: "pickle" },
    Target { name: "opcodes", kind: Kind::Reader, make: readers::opcodes, run: readers::read_recording, ending: "pickle" },
    Target { name: "compressed", kind: Kind::Reader, make: readers::compressed, run: readers::read_recording, ending: "bin" },
    Target { name: "settings", kind: Kind::Reader, make: readers::settings, run: readers::read_settings, ending: "txt" },
    Target { name: "message", kind: Kind::Reader, make: readers::message, run: readers::read_message, ending: "txt" },
    Target { name: "log", kind: Kind::Reader, make: readers::log, run: readers::read_log, ending: "txt" },
    Target { name: "statistics", kind: Kind::Reader, make: readers::statistics, run: readers::read_statistics, ending: "json" },
    Target { name: "buffers", kind: Kind::Reader, make: readers::buffers, run: readers::read_buffers, ending: "csv" },
    Target { name: "size", kind: Kind::Reader, make: readers::size, run: readers::read_size, ending: "txt" },
    Target { name: "ops", kind: Kind::Command, make: commands::script, run: commands::ops, ending: "ops" },
    Target { name: "verify", kind: Kind::Command, make: commands::recording, run: commands::verify, ending: "pickle" },
    Target { name: "stats", kind: Kind::Command, make: commands::recording, run: commands::stats, ending: "pickle" },
    Target { name: "diagnose", kind: Kind::Command, make: commands::recording, run: commands::diagnose, ending: "pickle" },
    Target { name: "replay", kind: Kind::Command, make: commands::recording, run: commands::replay, ending: "pickle" },
    Target { name: "export", kind: Kind::Command, make: commands::recording, run: commands::export, ending: "pickle" },
    Target { name: "diff", kind: Kind::Command, make: commands::recording, run: commands::diff, ending: "pickle" },
    Target { name: "report", kind: Kind::Command, make: commands::recording, run: commands::report, ending: "pickle" },
    Target { name: "pack", kind: Kind::Command, make: commands::packable, run: commands::pack, ending: "bin" },
    Target { name: "merge", kind: Kind::Command, make: commands::rows, run: commands::merge, ending: "jsonl" },
    Target { name: "advise", kind: Kind::Command, make: commands::recording, run: commands::advise, ending: "pickle" },
    Target { name: "sweep", kind: Kind::Command, make: commands::recording, run: commands::sweep, ending: "pickle" },
    Target { name: "printed-verify", kind: Kind::Command, make: commands::recording, run: printed::verify, ending: "pickle" },
    Target { name: "printed-stats", kind: Kind::Command, make: commands::recording, run: printed::stats, ending: "pickle" },
    Target { name: "printed-diagnose", kind: Kind::Command, make: commands::recording, run: printed::diagnose, ending: "pickle" },
    Target { name: "printed-replay", kind: Kind::Command, make: commands::recording, run: printed::replay, ending: "pickle" },
    Target { name: "printed-export", kind: Kind::Command, make: commands::recording, run: printed::export, ending: "pickle" },
    Target { name: "printed-diff", kind: Kind::Command, make: commands::recording, run: printed::diff, ending: "pickle" },
    Target { name: "printed-report", kind: Kind::Command, make: commands::recording, run: printed::report, ending: "pickle" },
    Target { name: "printed-advise", kind: Kind::Command, make: commands::recording, run: printed::advise, ending: "pickle" },
    Target { name: "printed-pack", kind: Kind::Command, make: commands::packable, run: printed::pack, ending: "bin" },
    Target { name: "largest-batch", kind: Kind::Command, make: commands::arguments, run: commands::largest_batch, ending: "txt" },
];

/// Prepares what all inputs depend on, so that the first execution does not include its cost.
pub fn prepare() {
    crate::recordings::bases();
    commands::sound_rows();
}
