//! `parkade ops`: runs a script of operations on the core, and prints the answers in the format of the real allocator's harness.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};

use crate::terminal::args::{Profile, policy};
use crate::terminal::runner::Command;
use crate::terminal::{output, size};

/// The longest line that a script may have, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// Run a script of allocator operations on a simulated device.
///
/// The script has one operation per line (`alloc ID BYTES [STREAM]`, `free ID`, `record_stream ID STREAM`, `complete STREAM|all`,
/// `empty_cache`, `set_fraction F`, `conf STRING`, `snapshot`, `stats` ...); `#` begins a comment.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade ops script.txt --capacity 1GiB
  printf 'alloc a 1000\\nfree a\\nsnapshot\\n' | parkade ops - --settings max_split_size_mb:64
  parkade ops script.txt --addresses down > answers.jsonl
  parkade ops script.txt --policy best-fit-remap --capacity 200MiB")]
pub(crate) struct Args {
    /// The script; `-` reads standard input.
    script: PathBuf,
    /// The allocator's settings, as in PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, default_value = "", hide_default_value = true)]
    settings: String,
    /// The device's memory.
    #[arg(long, default_value = "8GiB", value_parser = size::parse_or_none, allow_hyphen_values = true)]
    capacity: u64,
    /// Where new segments go: each above or below the previous one.
    #[arg(long, value_enum, default_value_t)]
    addresses: AddressOrder,
    /// Let a parkade policy decide in place of PyTorch's allocator; it has no settings, so conf fails. parkade sweep --list lists
    /// all; PyTorch's own under settings is 'pytorch:settings=[max_split_size_mb:64]'.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["settings", "profile"])]
    policy: Option<String>,
    /// The PyTorch version whose allocator decides.
    #[arg(long, value_name = "RELEASE", default_value_t)]
    profile: Profile,
    /// Print 16 hexadecimal digits for each answer instead of its text, as the real allocator's program does with --digests.
    #[arg(long)]
    digests: bool,
}

#[derive(Clone, Copy, ValueEnum, Default)]
enum AddressOrder {
    #[default]
    Up,
    Down,
}

impl Command for Args {
    type Found = ();

    /// Prints each answer at once.
    fn compute(&self) -> Result<()> {
        run(self)
    }
}

fn run(args: &Args) -> Result<()> {
    let addresses = match args.addresses {
        AddressOrder::Up => Addresses::Up,
        AddressOrder::Down => Addresses::Down,
    };
    let profile = args.profile.rules();
    let options = OpsOptions { settings: args.settings.clone(), capacity_bytes: args.capacity, addresses, profile };
    let policy = args.policy.as_deref().map(policy).transpose()?;
    let mut runner = match policy.map_or_else(|| OpsRunner::new(&options), |policy| Ok(OpsRunner::under(&options, policy.make())))
    {
        Ok(runner) => runner,
        Err(error) => bail!(
            "the settings {:?} are refused: {}",
            output::shorten(&args.settings, 200),
            output::shorten(&error.to_string(), 500)
        ),
    };
    let name = args.script.display();
    let mut input: Box<dyn BufRead> = if args.script.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(&args.script).with_context(|| format!("cannot open the script {name}"))?))
    };
    let mut out = output::stdout();
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = io::Read::take(&mut input, LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .with_context(|| format!("cannot read {name}"))?;
        if read == 0 {
            break;
        }
        if read as u64 == LONGEST_LINE {
            bail!("line {number} of {name} is longer than {LONGEST_LINE} bytes: is it a script?");
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\r', '\n']);
        let answer = if args.digests { runner.run_line_to_digest(text) } else { runner.run_line(text) };
        if let Some(answer) = answer {
            writeln!(out, "{answer}")?;
        }
    }
    Ok(out.flush()?)
}
