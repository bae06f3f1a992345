//! `parkade info`: what the driver has given out on every device, and to whom.

mod json;
mod source;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use serde_json::json;

use crate::{Outcome, output};
use source::Source;

/// Seconds between two looks, where they are not given.
const EVERY_SECOND: &str = "1";

/// Show every GPU with its memory and the processes that hold it.
///
/// NVML, the driver's management library, is asked; without it the CUDA driver, which tells neither processes nor what they hold, and
/// takes a context's memory (some 500 MiB a device) while it is asked. Exit code: 0, or 2 if neither is here.
///
/// "used" is what the driver has given out, as nvidia-smi shows it. It is more than an allocator's "reserved"
/// (torch.cuda.memory_reserved): the process's CUDA context is in it, and libraries' own memory. "listed" is what the listed processes
/// hold of it, "unlisted" the difference.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade info
  parkade info --watch               again every second, until Ctrl-C
  parkade info --watch 10 --json >> memory.jsonl")]
pub(crate) struct Args {
    /// Look again every so many seconds, until interrupted: in place on a terminal, else one block after the other.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = EVERY_SECOND, value_parser = interval,
          allow_hyphen_values = true)]
    watch: Option<Duration>,
    /// Print one JSON object a look, with exact bytes.
    #[arg(long)]
    json: bool,
}

/// Reads a number of seconds, none of which is an eternity.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("{text:?} is no number of seconds from 0.01 to 86400"))
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut out = output::stdout();
    let looked = Source::open().and_then(|mut source| {
        let is_terminal = io::stdout().is_terminal();
        let look = Look { json: args.json, in_place: args.watch.is_some() && is_terminal && !args.json };
        look.show(&mut source, &mut out, || args.watch.map(std::thread::sleep).is_some())
    });
    if let Err(error) = &looked
        && args.json
        && !output::is_broken_pipe(error)
    {
        writeln!(out, "{}", json!({ "error": format!("{error:#}") }))?;
        out.flush()?;
    }
    looked.map(|()| Outcome::Good)
}

/// How it is shown.
struct Look {
    json: bool,
    in_place: bool,
}

impl Look {
    /// Looks and shows, again for as long as `pause` answers yes.
    fn show(&self, source: &mut Source, out: &mut impl Write, mut pause: impl FnMut() -> bool) -> Result<()> {
        let mut is_first = true;
        loop {
            let reading = source.read()?;
            if self.json {
                writeln!(out, "{}", json::object(&reading))?;
            } else if self.in_place {
                // Over the text before, line by line: clearing first would flicker. Nothing is left to undo when it is interrupted.
                let clear = if is_first { "\x1b[2J" } else { "" };
                let text = table::text(&reading).replace('\n', "\x1b[K\n");
                write!(out, "{clear}\x1b[H{text}\x1b[J")?;
            } else {
                write!(out, "{}{}", if is_first { "" } else { "\n" }, table::text(&reading))?;
            }
            out.flush()?;
            is_first = false;
            if !pause() {
                return Ok(());
            }
        }
    }
}
