//! Tests messages that programs really printed: 75 messages and log excerpts from PyTorch, its ports and other allocators,
//! taken from public reports. Names, paths and addresses are replaced; everything else is unchanged.
//!
//! Each begins with `=== name; verdicts; device N; free BYTES`: the correct verdicts, and what else the message states.

use parkade_analysis::diagnose::diagnose_message;
use parkade_recording::message::MessageLog;

const MESSAGES: &str = include_str!("messages.txt");

/// Returns the mistake in the diagnosis of a message, if there is one.
fn mistake(head: &str, text: &str) -> Option<String> {
    let mut parts = head.split("; ").skip(1);
    let verdicts = parts.next().unwrap_or("");
    let log = MessageLog::read(text);
    let Some(place) = log.explained() else { return Some(format!("{head}: no message")) };
    let diagnosis = diagnose_message(log.messages[place].message.clone());
    let verdict = diagnosis.verdict.name();
    if !verdicts.split(' ').any(|right| right == verdict) {
        return Some(format!("{head}: {verdict}"));
    }
    let figures =
        [("device ", diagnosis.message.device.map(u64::from)), ("free ", diagnosis.message.free.map(|free| free.bytes))];
    parts.find_map(|part| {
        let (name, found) = figures.into_iter().find(|(name, _)| part.starts_with(name))?;
        let right: u64 = part[name.len()..].parse().ok()?;
        // The figures are rounded to two decimals.
        let is_right = found.is_some_and(|found| found.abs_diff(right) <= right / 100 + 1024);
        (!is_right).then(|| format!("{head}: {name}{found:?}"))
    })
}

#[test]
fn messages_of_the_field_are_understood() {
    let whole = format!("\n{MESSAGES}");
    let cases: Vec<(&str, &str)> =
        whole.split("\n=== ").skip(1).map(|case| case.split_once('\n').expect("a head and a text")).collect();
    assert_eq!(cases.len(), 75);
    let mistakes: Vec<String> = cases.into_iter().filter_map(|(head, text)| mistake(head, text)).collect();
    assert_eq!(mistakes, Vec::<String>::new());
}
