//! `parkade diagnose --limit`: a limit that the recorded run exceeded.

use crate::common::*;
use serde_json::Value;

#[test]
fn a_limit_that_the_run_exceeded_was_not_its_limit() {
    let file = format!("{}/../conformance/recordings/prefetch_streams.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let object = |arguments: &[&str]| {
        let run = call(&[&["diagnose", "--json", &file], arguments].concat());
        serde_json::from_str::<Value>(&run.out).expect("JSON")["devices"][0].clone()
    };
    // The run is diagnosed as if no limit had been given.
    let (without, exceeded) = (object(&[]), object(&["--limit", "64.5MiB"]));
    assert!(exceeded["limit"]["contradicted_by"].as_str().is_some_and(|text| text.contains("was reserved")), "{exceeded}");
    for key in ["verdict", "entry", "peaks", "heap", "exactness"] {
        assert_eq!(exceeded[key], without[key], "{key}");
    }
    let text = call(&["diagnose", &file, "--limit", "64.5MiB"]).out;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.lines().nth(1).is_some_and(|line| line.starts_with("The recorded run reserved "))
            && words.contains("more than the limit of 64.50 MiB, so that"),
        "{text}"
    );
    assert!(words.contains(" --capacity 64.5MiB"), "what to try is given back as it was typed: {text}");
}
