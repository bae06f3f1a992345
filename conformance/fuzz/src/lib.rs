#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod capi;
mod case;
mod choices;
pub mod commands;
mod pickle;
pub mod printed;
mod recordings;
pub mod snapshot;
mod texts;

use std::io::Read;

use parkade::profile::RELEASES;
use parkade::settings::Settings;
use parkade_analysis::diagnose::diagnose_message;
use parkade_conformance::checks::against_reference;
use parkade_conformance::core_laws::check_settings;
use parkade_recording::message::{MessageLog, OutOfMemoryMessage};

use crate::choices::Choices;

/// Code that must survive every input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its program in `fuzz_targets` and of its folder in `corpus`.
    pub name: &'static str,
    /// Runs the code on an input. Returns whether the code accepted the input. Panics if the input is a failure.
    pub run: fn(&[u8]) -> bool,
    /// How many in a hundred random inputs the code must accept at least: fewer would mean that the generator of the inputs
    /// no longer makes what the code reads.
    pub least_accepted: usize,
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "steps", run: steps, least_accepted: 95 },
    Target { name: "settings", run: settings, least_accepted: 20 },
    Target { name: "snapshot", run: snapshot::run, least_accepted: 35 },
    Target { name: "message", run: message, least_accepted: 30 },
    Target { name: "capi", run: capi::run, least_accepted: 50 },
    Target { name: "commands", run: commands::run, least_accepted: 35 },
    Target { name: "printed", run: printed::run, least_accepted: 20 },
];

/// Target `steps`: programs on the allocator and the reference allocator, which must agree in everything that is visible.
///
/// Runs the program that the bytes are. Returns whether it has a step.
///
/// # Panics
/// If the allocators differ. The message is a file for `conformance/corpus`.
pub fn steps(data: &[u8]) -> bool {
    against_reference(data).unwrap_or_else(|difference| panic!("{difference}")) > 0
}

/// The most strings that are applied one after another.
const MOST_STRINGS: usize = 4;

/// Target `settings`: settings strings, read by parkade and by the second parsers of the reference model.
///
/// Reads strings: those in the bytes, separated by a byte that UTF-8 does not have, or those that the bytes choose. Returns
/// whether 2.11 accepts the first one.
///
/// # Panics
/// If a string does not have the effect or the error that the specification states, or if a release's parser panics.
pub fn settings(data: &[u8]) -> bool {
    let Some((first, rest)) = data.split_first() else { return false };
    let texts: Vec<String> = if first & 1 == 0 {
        rest.split(|byte| *byte == 0xff).take(MOST_STRINGS).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    } else {
        let mut choices = Choices::new(rest);
        (0..=choices.below(MOST_STRINGS)).map(|_| texts::settings(&mut choices)).collect()
    };
    // Each string has a bit that says whether a new process begins with it.
    let strings: Vec<(String, bool)> =
        texts.into_iter().enumerate().map(|(place, text)| (text, first >> (place + 2) & 1 == 1)).collect();
    for release in RELEASES {
        check_settings(release.profile, &strings).unwrap_or_else(|broken| panic!("{broken}"));
    }
    Settings::from_environment(&strings[0].0).is_ok()
}

/// Target `message`: the readers of out-of-memory messages and of logs that contain them.
///
/// Reads what the bytes describe: a message, a log, or the choices that make one. Returns whether there was a message.
///
/// # Panics
/// If a reader panics, or if a log is read differently in two parts.
pub fn message(data: &[u8]) -> bool {
    let Some((kind, rest)) = data.split_first() else { return false };
    let mut choices = Choices::new(rest);
    match kind % 4 {
        0 => read_message(&String::from_utf8_lossy(rest)),
        1 => read_log(rest),
        2 => read_message(&texts::message(&mut choices)),
        _ => read_log(texts::log(&mut choices).as_bytes()),
    }
}

fn read_message(text: &str) -> bool {
    OutOfMemoryMessage::parse(text).map(diagnose_message).is_ok()
}

fn read_log(bytes: &[u8]) -> bool {
    let log = MessageLog::read_from(bytes).expect("bytes can be read");
    let (begin, end) = bytes.split_at(bytes.len() / 2);
    assert!(MessageLog::read_from(begin.chain(end)).is_ok_and(|halves| halves == log));
    assert!(str::from_utf8(bytes).map_or(true, |text| MessageLog::read(text) == log));
    assert!(log.explained().is_none_or(|place| place < log.messages.len()));
    let has_messages = !log.messages.is_empty();
    for logged in log.messages {
        drop(diagnose_message(logged.message));
    }
    has_messages
}
