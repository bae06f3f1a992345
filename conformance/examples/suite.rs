//! The suite without the documents' scenarios, as a program that builds quickly. `conformance/mutants/run.py --lean`
//! uses it to judge mutants.
//!
//! `cargo run --release -p parkade-conformance --example suite -- conform --cases 250 --filter law/`
//!
//! It takes the options of `parkade conform` shown above and prints the same JSON for each entry that fails.

use std::process::ExitCode;

use parkade_conformance::backend::AnyBackend;
use parkade_conformance::checks;
use parkade_conformance::suite::{Effort, Silent, Status, Summary, run};

/// Returns a text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            letter if letter < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|place| arguments.get(place + 1));
    let number = |name: &str| after(name).and_then(|text| text.parse::<u64>().ok());
    let filter = after("--filter").map_or("", String::as_str);
    let mut entries = checks::entries(&AnyBackend::simulated());
    entries.retain(|entry| entry.title().contains(filter));
    let effort = Effort::new(number("--cases").unwrap_or(800) as u32, number("--seed").unwrap_or(0));
    let rows = run(&AnyBackend::simulated(), &entries, None, &effort, &Silent);
    for row in rows.iter().filter(|row| row.status == Status::Fail) {
        let script = row.script.as_deref().unwrap_or_default();
        let [group, name, reason, script] = [row.group.name(), &row.name, &row.reason, script].map(quoted);
        println!("{{\"group\":{group},\"name\":{name},\"status\":\"fail\",\"reason\":{reason},\"script\":{script}}}");
    }
    let mut slowest: Vec<_> = rows.iter().map(|row| (row.took, row.name.as_str())).collect();
    slowest.sort();
    if arguments.iter().any(|argument| argument == "--times") {
        slowest.iter().rev().take(20).for_each(|(took, name)| println!("{:8} ms {name}", took.as_millis()));
    }
    let Summary { passed, failed, skipped, operations } = Summary::of(&rows);
    println!("{passed} passed, {failed} failed, {skipped} skipped, {operations} operations");
    ExitCode::from(u8::from(failed > 0))
}
