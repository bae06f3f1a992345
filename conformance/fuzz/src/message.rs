//! Target `message`: the readers of out-of-memory messages and of logs that contain them.

use std::io::Read;

use parkade_analysis::diagnose::diagnose_message;
use parkade_recording::message::{MessageLog, OutOfMemoryMessage};

use crate::choices::Choices;
use crate::texts;

/// Reads what the bytes describe: a message, a log, or the choices that make one. Returns whether there was a message.
///
/// # Panics
/// If a reader panics, or if a log is read differently in two parts.
pub fn run(data: &[u8]) -> bool {
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
