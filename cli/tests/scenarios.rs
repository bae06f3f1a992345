//! The scenarios that run commands of the binary, which tests of the library skip.
#![cfg(target_os = "linux")]

mod common;

use common::call;
use serde_json::Value;

#[test]
fn scenarios_that_run_commands_pass() {
    for name in ["scenario/D5/enable", "scenario/D5/kill", "scenario/D8/info"] {
        let run = call(&["conform", "--filter", name, "--json"]);
        let line = run.out.lines().next().unwrap_or_default();
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err));
        let is_without_compiler = object["reason"].as_str().is_some_and(|reason| reason.contains("no C compiler"));
        if is_without_compiler {
            eprintln!("skipped: {name}: {}", object["reason"]);
            continue;
        }
        assert_eq!((run.code, object["status"].as_str()), (0, Some("pass")), "{name}: {}", run.out);
    }
}
