//! `parkade info`: the memory of every GPU and the processes that hold it.

mod json;
mod source;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::terminal::args::{Json, interval};
use crate::terminal::output;
use crate::terminal::runner::{Command, Form, Lines};
use source::Source;

/// The default number of seconds between two readings.
const EVERY_SECOND: &str = "1";

/// Show every GPU with its memory and the processes that hold it.
///
/// The figures come from NVML, the driver's management library; without it from the CUDA driver, which lists no processes and uses a
/// context's memory (about 500 MiB on each device) meanwhile. Exit code: 0, or 2 if neither is present.
///
/// "used" is what the driver has allocated, as nvidia-smi shows it. It exceeds an allocator's "reserved"
/// (torch.cuda.memory_reserved) by the process's CUDA context and libraries' own memory. "listed" is what the listed processes hold of
/// it, "unlisted" the difference.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade info
  parkade info --watch               again every second, until Ctrl-C
  parkade info --watch 10 --json >> memory.jsonl")]
pub(crate) struct Args {
    /// Repeat after this many seconds until interrupted: in place on a terminal, else one block after the other.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = EVERY_SECOND, value_parser = interval,
          allow_hyphen_values = true)]
    watch: Option<Duration>,
    #[command(flatten)]
    json: Json,
}

impl Command for Args {
    type Answer = ();

    /// Prints each reading at once.
    fn compute(&self) -> Result<()> {
        let in_place = self.watch.is_some() && io::stdout().is_terminal() && !self.json.json;
        let look = Look { json: self.json.json, in_place };
        look.show(&mut Source::open()?, &mut output::stdout(), |out| {
            // Until interrupted, or until nobody reads.
            self.watch.filter(|_| !out.get_ref().is_unread()).map(std::thread::sleep).is_some()
        })
    }

    fn form(&self) -> Form {
        self.json.form()
    }
}

/// How readings are shown.
struct Look {
    json: bool,
    in_place: bool,
}

impl Look {
    /// Reads and shows, again for as long as `pause` returns true.
    fn show<W: Write>(&self, source: &mut Source, out: &mut W, mut pause: impl FnMut(&W) -> bool) -> Result<()> {
        let mut is_first = true;
        loop {
            let reading = source.read()?;
            if self.json {
                let mut lines = Lines::default();
                lines.add(&json::Object::of(&reading))?;
                write!(out, "{}", lines.text())?;
            } else if self.in_place {
                // Overwrites the previous text line by line, as clearing it first would flicker. An interruption leaves nothing to undo.
                let clear = if is_first { "\x1b[2J" } else { "" };
                let text = table::text(&reading).replace('\n', "\x1b[K\n");
                write!(out, "{clear}\x1b[H{text}\x1b[J")?;
            } else {
                write!(out, "{}{}", if is_first { "" } else { "\n" }, table::text(&reading))?;
            }
            out.flush()?;
            is_first = false;
            if !pause(out) {
                return Ok(());
            }
        }
    }
}
