//! `parkade ops`: runs a script of operations on the core, and prints the answers in the format of the real allocator's harness.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};

use crate::terminal::args::{Profile, policy};
use crate::terminal::runner::{Command, Outcome};
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
  parkade ops script.txt --policy best-fit-remap --capacity 200MiB

Exit code: 0 the script ran, also if some of its operations failed; 1 the policy gave an answer that it must not give; 2 could not run.")]
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
    /// The first operation that a wrong answer of the policy made fail, and the reason.
    type Found = Option<String>;

    /// Prints each answer at once.
    fn compute(&self) -> Result<Option<String>> {
        run(self)
    }

    fn outcome(&self, fault: &Option<String>) -> Outcome {
        if fault.is_some() { Outcome::CheckFailed } else { Outcome::Good }
    }

    fn remarks(&self, fault: &Option<String>) -> Vec<String> {
        let said = |fault: &String| format!("{fault}; a policy must not give this answer, so the exit code is 1");
        fault.iter().map(said).collect()
    }
}

fn run(args: &Args) -> Result<Option<String>> {
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
    play(&mut runner, &mut input, &name.to_string(), args.digests, &mut output::stdout())
}

/// Runs each line of the script, and prints its answer. Returns the first fault of the policy.
fn play(
    runner: &mut OpsRunner,
    input: &mut dyn BufRead,
    name: &str,
    digests: bool,
    out: &mut dyn Write,
) -> Result<Option<String>> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = io::Read::take(&mut *input, LONGEST_LINE)
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
        let answer = if digests { runner.run_line_to_digest(text) } else { runner.run_line(text) };
        if let Some(answer) = answer {
            writeln!(out, "{answer}")?;
        }
    }
    out.flush()?;
    Ok(runner.fault().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use parkade::Heap;
    use parkade::policy::{Placement, Policy, Request};
    use parkade::units::{Bytes, PoolClass, StreamId};

    use super::*;

    /// Takes any free block, also one of a different stream.
    struct AnyStream;

    impl Policy for AnyStream {
        fn name(&self) -> &'static str {
            "any-stream"
        }

        fn round(&self, requested: Bytes) -> Option<Bytes> {
            requested.checked_round_up(Bytes(512))
        }

        fn classify(&self, _: Bytes) -> PoolClass {
            PoolClass::Large
        }

        fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
            let found = heap.first_at_least(request.pool, StreamId::DEFAULT, request.size);
            found.map_or(Placement::Segment(Bytes::mib(2)), |block| Placement::Reuse(block.id))
        }

        fn splits(&self, _: Bytes, _: &Request) -> bool {
            true
        }
    }

    fn played(script: &str) -> (Vec<String>, Option<String>) {
        let profile = &parkade::profile::Profile::PYTORCH_2_11;
        let options = OpsOptions { settings: String::new(), capacity_bytes: 1 << 30, addresses: Addresses::Up, profile };
        let mut runner = OpsRunner::under(&options, Box::new(AnyStream));
        let mut out = Vec::new();
        let fault = play(&mut runner, &mut script.as_bytes(), "script", false, &mut out).expect("it can be read");
        (String::from_utf8(out).expect("UTF-8").lines().map(str::to_owned).collect(), fault)
    }

    #[test]
    fn a_wrong_answer_of_the_policy_fails_the_command_and_the_script_goes_on() {
        let args = Args::parse_from(["ops", "-"]);
        let (answers, fault) = played("alloc a 512\nfree a\nalloc b 512\n");
        assert_eq!((answers.len(), &fault, args.outcome(&fault)), (3, &None, Outcome::Good));
        let (answers, fault) = played("alloc a 512\nfree a\nalloc b 512 1\nalloc c 512 2\nalloc d 512\n");
        let said = "alloc b 512 1: policy any-stream reuses a block of a different pool or stream";
        assert_eq!((fault.as_deref(), args.outcome(&fault)), (Some(said), Outcome::CheckFailed));
        assert!(args.remarks(&fault)[0].starts_with(said), "{:?}", args.remarks(&fault));
        assert!(answers[2].contains("\"ok\":0,\"err\":\"policy\"") && answers[4].contains("\"ok\":1"), "{answers:?}");
    }
}
