//! Diagnosis from messages alone: one message or a log with those of several ranks, complete or cut.

pub(super) mod cuda_malloc_async;
mod json;
mod partial;
mod ranks;
mod whole;

use std::io::{self, Write};

use anyhow::{Result, bail};
use parkade_analysis::diagnose::{
    Applies, MessageDiagnosis, MessageVerdict, PartialDiagnosis, diagnose_message, diagnose_partial,
};
use parkade_recording::message::{ForeignMessage, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ReadMessage};

pub(super) use self::json::Object;
use super::layout::{hanging, step, width, wrapped};
use crate::terminal::output;
use crate::terminal::runner::Outcome;
use crate::terminal::size::show_bytes;

/// The messages of a log, each diagnosed.
pub(crate) struct LogDiagnosis {
    log: MessageLog,
    /// One for each message of the log.
    diagnoses: Vec<Explained>,
    /// The place of the message that is explained.
    explained: usize,
}

/// The diagnosis of a message.
enum Explained {
    Whole(MessageDiagnosis),
    Partial(PartialDiagnosis),
}

pub(super) fn diagnose(log: MessageLog) -> Result<LogDiagnosis> {
    let Some(explained) = log.explained() else {
        match log.foreign {
            Some(foreign) => {
                let wanted = wanted(foreign);
                bail!(
                    "an out-of-memory message of {}{wanted}. Only messages of PyTorch's GPU allocator (`out of memory. Tried to \
                     allocate`) are explained",
                    foreign.framework.name()
                )
            }
            None => return Err(log.error.into()),
        }
    };
    let diagnosed = |logged: &LoggedMessage| match logged.message.clone() {
        ReadMessage::Complete(message) => Explained::Whole(diagnose_message(message)),
        ReadMessage::Partial(message) => Explained::Partial(diagnose_partial(message)),
    };
    let diagnoses = log.messages.iter().map(diagnosed).collect();
    Ok(LogDiagnosis { log, diagnoses, explained })
}

/// How much a message of another framework wanted.
fn wanted(foreign: ForeignMessage) -> String {
    foreign.wanted_bytes.map_or_else(String::new, |bytes| format!("; {} was wanted", show_bytes(bytes)))
}

/// A message of another framework beside those of PyTorch.
fn other(other: &OtherMessage) -> String {
    let rank = other.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    let (line, name, wanted) = (other.line, other.message.framework.name(), wanted(other.message));
    format!("{rank}line {line}: an out-of-memory message of {name}, which is not explained{wanted}")
}

impl LogDiagnosis {
    fn explained(&self) -> &Explained {
        &self.diagnoses[self.explained]
    }

    fn logged(&self) -> &LoggedMessage {
        &self.log.messages[self.explained]
    }

    /// How sure the explanation is, and what the log has beside its messages.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.explained().notes();
        if self.log.left_out > 0 {
            notes.push(format!(
                "the log has {} behind the first {MOST_MESSAGES} different ones; they are counted, but not listed or compared",
                output::count(self.log.left_out, "more message")
            ));
        }
        notes
    }

    /// Not known if the message that is explained lacks what would decide.
    pub(super) fn outcome(&self) -> Outcome {
        let is_open = !self.explained().is_complete() && self.explained().verdict() == MessageVerdict::Undecided;
        if is_open { Outcome::NotKnown } else { Outcome::Good }
    }
}

impl Explained {
    fn is_complete(&self) -> bool {
        matches!(self, Explained::Whole(_))
    }

    fn missing(&self) -> Vec<&'static str> {
        match self {
            Explained::Whole(_) => Vec::new(),
            Explained::Partial(diagnosis) => diagnosis.message.missing(),
        }
    }

    fn verdict(&self) -> MessageVerdict {
        match self {
            Explained::Whole(diagnosis) => diagnosis.verdict,
            Explained::Partial(diagnosis) => diagnosis.verdict,
        }
    }

    fn headline(&self) -> String {
        match self {
            Explained::Whole(diagnosis) => whole::headline(diagnosis),
            Explained::Partial(diagnosis) => partial::headline(diagnosis),
        }
    }

    fn steps(&self) -> [(Applies, String); 5] {
        match self {
            Explained::Whole(diagnosis) => whole::steps(diagnosis),
            Explained::Partial(diagnosis) => partial::steps(diagnosis),
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Explained::Whole(diagnosis) => whole::notes(diagnosis),
            Explained::Partial(diagnosis) => partial::notes(diagnosis),
        }
    }
}

pub(super) fn print(out: &mut dyn Write, diagnosis: &LogDiagnosis) -> io::Result<()> {
    let explained = diagnosis.explained();
    let device = ranks::Figures::of(explained).device.map_or_else(String::new, |device| format!(" from device {device}"));
    let cut = if explained.is_complete() { "" } else { ", which is cut" };
    if diagnosis.log.messages.len() > 1 {
        ranks::print(out, diagnosis)?;
    } else {
        let rank = diagnosis.logged().rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
        writeln!(out, "an out-of-memory message{device}{rank}{cut}\n")?;
    }
    writeln!(out, "{}\n", output::bad(&wrapped(&explained.headline(), width()).join("\n")))?;
    for (place, (answer, finding)) in explained.steps().iter().enumerate() {
        let word = format!("{:<7}", answer.name());
        let word = if *answer == Applies::Yes { output::bad(&word) } else { word };
        step(out, place, &word, finding)?;
    }
    writeln!(out, "\n{}", output::dim("how certain this is"))?;
    for note in diagnosis.notes().into_iter().chain(diagnosis.log.others.iter().map(other)) {
        hanging(out, "  ", 2, &note)?;
    }
    Ok(())
}
