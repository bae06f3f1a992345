//! Layout shared by the texts for a recording and for a message: wrapped lines, and the five steps.

use std::io::{self, Write};

use parkade_analysis::diagnose::Applies;

use crate::terminal::json_struct::{Word, view};
use crate::terminal::output;

/// The name of a step.
#[derive(Clone, Copy)]
pub(super) enum StepName {
    Capacity,
    Fragmentation,
    Settings,
    EmptyCache,
    Snapshot,
}

parkade_recording::names! {
    StepName {
        StepName::Capacity => "capacity",
        StepName::Fragmentation => "fragmentation",
        StepName::Settings => "settings",
        StepName::EmptyCache => "empty_cache",
        StepName::Snapshot => "snapshot",
    }
}

/// The five steps.
pub(super) const STEPS: [StepName; 5] =
    [StepName::Capacity, StepName::Fragmentation, StepName::Settings, StepName::EmptyCache, StepName::Snapshot];
/// The limit of what settings can change.
pub(super) const POOLS_DO_NOT_SHARE: &str =
    "no setting makes a private pool share its cached memory: free the CUDA graphs and MemPools you no longer need";

/// The width at which text wraps.
pub(super) fn width() -> usize {
    output::width().min(100)
}

/// One step: its number, name, answer and finding.
pub(super) fn step(out: &mut dyn Write, place: usize, word: &str, finding: &str) -> io::Result<()> {
    hanging(out, &format!("  {} {:<13}  {word}  ", place + 1, STEPS[place].name()), 28, finding)
}

/// Text beside a heading, wrapped at this indentation.
pub(super) fn hanging(out: &mut dyn Write, heading: &str, indent: usize, text: &str) -> io::Result<()> {
    let lines = wrapped(text, width() - indent).join(&format!("\n{:indent$}", ""));
    writeln!(out, "{heading}{lines}")
}

view! {
    /// One of the five steps.
    pub(super) struct Step(place: usize, applies: Applies, finding: String) {
        /// The step's name.
        step: Word<StepName> = Word::of(&STEPS[place]),
        /// Whether it applies.
        applies: Word<Applies> = Word::of(&applies),
        /// What was found.
        finding: String = finding,
    }
}

/// The units of sizes.
const UNITS: [&str; 4] = ["byte", "KiB", "MiB", "GiB"];

/// The text in lines of at most `width` characters, unless a word is longer; a command is never broken.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.split('\n') {
        if paragraph.starts_with("parkade ") {
            lines.push(paragraph.to_owned());
            continue;
        }
        // A number and its unit stay together.
        let paragraph =
            UNITS.iter().fold(paragraph.to_owned(), |text, unit| text.replace(&format!(" {unit}"), &format!("\u{a0}{unit}")));
        lines.extend(output::wrapped(&paragraph, width).iter().map(|line| line.replace('\u{a0}', " ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_between_words_and_commands_stay_whole() {
        let text = "one two three four:\nparkade advise a.pickle --limit 5";
        assert_eq!(wrapped(text, 9), ["one two", "three", "four:", "parkade advise a.pickle --limit 5"]);
        assert_eq!(wrapped("abcdefghij k", 3), ["abcdefghij", "k"]);
        assert_eq!(wrapped("it has 8.00 MiB, free", 11), ["it has", "8.00 MiB,", "free"]);
    }
}
