//! Runs a script from standard input as `parkade ops` does, in a program that builds in a fraction of the time. It is
//! used to compare an unfinished profile with the real allocator (docs/releases.md).
//!
//! ```text
//! cargo build -p parkade-conformance --example ops
//! conformance/oracle/differential/run.py --parkade target/debug/examples/ops --release 2.15.0 --seeds 1 --n 300
//! ```
//!
//! It takes the options of `parkade ops` that `run.py` passes, with sizes in bytes: `ops - --settings STRING --capacity N
//! --addresses up|down --profile RELEASE`. Its exit status is 2 if it does not understand them.
#![allow(clippy::print_stderr, reason = "a user runs this example")]

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;

use parkade::profile::Profile;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};

fn main() -> ExitCode {
    let done = options().and_then(|options| OpsRunner::new(&options).map_err(|error| error.to_string())).and_then(run);
    done.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::from(2)
        },
        |()| ExitCode::SUCCESS,
    )
}

fn options() -> Result<OpsOptions, String> {
    let mut options = OpsOptions {
        settings: String::new(),
        capacity_bytes: 8 << 30,
        addresses: Addresses::Up,
        profile: &Profile::PYTORCH_2_11,
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "ops" && word != "-");
    while let Some(name) = words.next() {
        let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
        match (name.as_str(), value.as_str()) {
            ("--settings", _) => options.settings = value,
            ("--capacity", _) => {
                options.capacity_bytes = value.parse().map_err(|error| format!("--capacity {value}: {error}"))?
            }
            ("--addresses", "up") => options.addresses = Addresses::Up,
            ("--addresses", "down") => options.addresses = Addresses::Down,
            ("--profile", _) => options.profile = Profile::of(&value).map_err(|error| error.to_string())?,
            _ => return Err(format!("this example has no option {name} {value}")),
        }
    }
    Ok(options)
}

fn run(mut runner: OpsRunner) -> Result<(), String> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&line);
        if let Some(answer) = runner.run_line(text.trim_end_matches('\r')) {
            writeln!(out, "{answer}").map_err(|error| error.to_string())?;
        }
    }
    out.flush().map_err(|error| error.to_string())
}
