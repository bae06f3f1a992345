//! `parkade-fuzz`: tests parkade's readers and commands with hostile input.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_fuzz::driver::{Execution, Options, bound_address_space, execute, input, prepare_thread, run_kept, watch, work};
use parkade_fuzz::targets::{Target, prepare};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    if let Some(account) = &options.account {
        work(options, account)?;
        return Ok(true);
    }
    if options.file.is_none() && options.number.is_none() {
        return watch(options);
    }
    let targets = options.targets().map_err(anyhow::Error::msg)?;
    let [target] = targets[..] else { bail!("--file and --number need exactly one target, but {} are chosen", targets.len()) };
    bound_address_space(options)?;
    prepare_thread();
    prepare();
    match (&options.file, options.number) {
        (Some(file), _) => run_file(target, file),
        (None, number) => {
            let input = input(target, options.seed, number.unwrap_or(0));
            Ok(say(input.case, &execute(target, &input.bytes, input.case)))
        }
    }
}

fn run_file(target: &Target, file: &Path) -> Result<bool> {
    let mut is_survived = true;
    for (case, execution) in run_kept(target, file)? {
        is_survived &= say(case, &execution);
    }
    Ok(is_survived)
}

fn say(case: u8, execution: &Execution) -> bool {
    let Execution { reached, peak_bytes, time } = execution;
    eprintln!("case {case}: {reached:?}, peak {peak_bytes} bytes, {:.3} s", time.as_secs_f64());
    reached.is_ok()
}
