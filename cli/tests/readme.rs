//! Tests that the README shows what the commands print.

use std::path::Path;

use crate::common::parkade;

/// The command lines of the README's console blocks that read a shipped recording, with the lines shown below each.
fn shown() -> Vec<(Vec<String>, Vec<String>)> {
    let text = include_str!("../../README.md");
    let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.flat_map(|block| block.split("$ ").skip(1)).filter_map(|part| {
        let mut lines = part.lines().map(str::to_owned);
        let line = lines.next()?;
        let arguments = line.strip_prefix("cargo run --release -- ").or(line.strip_prefix("parkade "))?;
        let words: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        (words.iter().any(|word| word.starts_with("conformance/recordings/")) && !lines.is_empty()).then_some((words, lines))
    });
    commands.collect()
}

/// The line without the last column of `verify`, which is the time that it took.
fn timeless(line: &str) -> &str {
    let line = line.trim_end();
    line.rsplit_once(' ').filter(|(_, last)| last.parse::<f64>().is_ok()).map_or(line, |(rest, _)| rest.trim_end())
}

/// `cargo run` refuses to choose between the binaries of several packages, unless exactly one of them names its own.
#[test]
fn cargo_run_knows_which_binary_the_readme_means() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let members = manifest.lines().find_map(|line| line.strip_prefix("default-members = ")).expect("default members");
    let named = members.split('"').skip(1).step_by(2).filter_map(|member| {
        let own = std::fs::read_to_string(root.join(member).join("Cargo.toml")).expect("a member's manifest");
        own.lines().find_map(|line| line.strip_prefix("default-run = ")).map(str::to_owned)
    });
    assert_eq!(named.collect::<Vec<_>>(), ["\"parkade\""]);
}

#[test]
fn the_readme_shows_what_is_printed() {
    let shown = shown();
    let commands: Vec<&str> = shown.iter().map(|(words, _)| words[0].as_str()).collect();
    assert_eq!(commands, ["advise"], "each is run below");
    for (words, lines) in &shown {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = parkade(&arguments).env_remove("COLUMNS").current_dir(root).output().expect("the binary runs");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        let mut left = printed.lines().map(timeless);
        for line in lines.iter().filter(|line| *line != "...") {
            assert!(left.any(|printed| printed == timeless(line)), "{arguments:?} does not print {line:?} there:\n{printed}");
        }
    }
}
