//! Arguments that cannot be understood: exit code 2, and with `--json` an object on standard output as for any other failure.

mod common;

use common::{Run, call};

fn error(run: &Run) -> String {
    let object: serde_json::Value =
        serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{error}: {}", run.out));
    object["error"].as_str().expect("a line").to_owned()
}

#[test]
fn usage_errors_are_json_where_it_is_asked_for() {
    for subcommand in ["verify", "replay", "advise", "diagnose", "stats", "export", "pack", "sweep", "merge", "frontier", "info"]
    {
        let plain = call(&[subcommand, "--no-such-option"]);
        assert_eq!((plain.code, plain.out.as_str()), (2, ""), "{subcommand}");
        let run = call(&[subcommand, "--json", "--no-such-option"]);
        assert_eq!((run.code, run.err.lines().next()), (2, plain.err.lines().next()), "{subcommand}: the same for people");
        let said = error(&run);
        assert!(
            said.starts_with("unexpected argument '--no-such-option' found") && !said.contains("Usage"),
            "{subcommand}: {said}"
        );
    }
    assert!(error(&call(&["verify", "--json"])).starts_with("the following required arguments were not provided"));
    assert!(error(&call(&["nosuch", "--json"])).starts_with("unrecognized subcommand 'nosuch'"));
}

#[test]
fn help_is_no_error_and_who_has_no_json_prints_none() {
    let help = call(&["verify", "--json", "--help"]);
    assert!(help.code == 0 && help.err.is_empty() && help.out.contains("Usage:"), "{}", help.err);
    // A shell evaluates what this one prints.
    let run = call(&["enable", "expandable_segments", "--json"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert_eq!(call(&["verify", "--", "--json"]).out, "", "the name of a file");
}
