//! The scenarios that run commands of the binary, which tests of the library skip.

mod common;

use std::process::ExitCode;

use common::call;
use common::trials::{self, Needs};
use serde_json::Value;

fn main() -> ExitCode {
    trials::run(&[
        ("enable", Needs::Nothing, || passes("scenario/D5/enable")),
        ("kill", Needs::Compiler, || passes("scenario/D5/kill")),
        ("info", Needs::Compiler, || passes("scenario/D8/info")),
    ])
}

fn passes(name: &str) {
    let run = call(&["conform", "--filter", name, "--json"]);
    let line = run.out.lines().next().unwrap_or_default();
    let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err));
    assert_eq!((run.code, object["status"].as_str()), (0, Some("pass")), "{name}: {}", run.out);
}
