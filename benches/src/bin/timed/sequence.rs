//! Reads a sequence of requests; `timed.hpp` describes the file.

use std::str::{FromStr, SplitWhitespace};

/// One step of a mix or a replay.
pub(crate) struct Replace {
    /// The block that the step is about, below [`Sequence::slots`].
    pub(crate) slot: usize,
    /// What is requested; 0 in a replay for a free.
    pub(crate) bytes: u64,
}

/// What is timed.
pub(crate) enum Sequence {
    /// A block is allocated and freed.
    Pairs { bytes: u64, steps: usize },
    /// The same, with another stream recorded in between.
    Recorded { bytes: u64, steps: usize },
    /// Pairs on several threads at once; the steps are those of one thread.
    Threads { threads: usize, bytes: u64, steps: usize },
    /// One of several live blocks is replaced.
    Mix { fill: Vec<u64>, steps: Vec<Replace> },
    /// Allocations and frees.
    Replay { slots: usize, steps: Vec<Replace> },
}

impl Sequence {
    /// The sequence of a file.
    ///
    /// # Errors
    ///
    /// The text is no sequence.
    pub(crate) fn parse(text: &str) -> Result<Sequence, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let sequence = match kind {
            "pairs" => Sequence::Pairs { bytes: next(&mut words)?, steps: next(&mut words)? },
            "recorded" => Sequence::Recorded { bytes: next(&mut words)?, steps: next(&mut words)? },
            "threads" => Sequence::Threads { threads: next(&mut words)?, bytes: next(&mut words)?, steps: next(&mut words)? },
            "mix" => {
                let (live, steps) = (next(&mut words)?, next(&mut words)?);
                let fill = (0..live).map(|_| next(&mut words)).collect::<Result<_, _>>()?;
                Sequence::Mix { fill, steps: replacements(&mut words, live, steps)? }
            }
            "replay" => {
                let (slots, steps) = (next(&mut words)?, next(&mut words)?);
                Sequence::Replay { slots, steps: replacements(&mut words, slots, steps)? }
            }
            _ => return Err(format!("unknown kind of sequence {kind:?}: benches/sequences.py writes the known ones")),
        };
        if sequence.steps() == 0 { Err("the sequence has no steps".to_owned()) } else { Ok(sequence) }
    }

    /// The sizes of the blocks that live before the first step.
    pub(crate) fn fill(&self) -> &[u64] {
        if let Sequence::Mix { fill, .. } = self { fill } else { &[] }
    }

    /// How many blocks the steps name.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Sequence::Mix { fill, .. } => fill.len(),
            Sequence::Replay { slots, .. } => *slots,
            Sequence::Pairs { .. } | Sequence::Recorded { .. } | Sequence::Threads { .. } => 0,
        }
    }

    /// The steps of a round, over all threads.
    pub(crate) fn steps(&self) -> usize {
        match self {
            Sequence::Pairs { steps, .. } | Sequence::Recorded { steps, .. } => *steps,
            Sequence::Threads { threads, steps, .. } => threads * steps,
            Sequence::Mix { steps, .. } | Sequence::Replay { steps, .. } => steps.len(),
        }
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    let word = words.next().ok_or("the sequence ends too early")?;
    word.parse().map_err(|_| format!("{word:?} is no number, where the sequence needs one"))
}

fn replacements(words: &mut SplitWhitespace<'_>, slots: usize, steps: usize) -> Result<Vec<Replace>, String> {
    let replacement = |_| {
        let step = Replace { slot: next(words)?, bytes: next(words)? };
        if step.slot < slots { Ok(step) } else { Err(format!("a step names slot {}, and there are {slots}", step.slot)) }
    };
    (0..steps).map(replacement).collect()
}

#[cfg(test)]
mod tests {
    use super::Sequence;

    #[test]
    fn steps_of_every_kind_are_counted() {
        for (text, steps, slots) in [
            ("pairs 4096 7", 7, 0),
            ("recorded 4096 7", 7, 0),
            ("threads 2 4096 7", 14, 0),
            ("mix 2 3\n512\n1024\n0 4096\n1 8192\n0 512\n", 3, 2),
            ("replay 2 2\n1 512\n1 0\n", 2, 2),
        ] {
            let sequence = Sequence::parse(text).expect(text);
            assert_eq!((sequence.steps(), sequence.slots()), (steps, slots), "{text}");
        }
    }

    #[test]
    fn what_is_no_sequence_is_refused() {
        for (text, said) in [
            ("", "unknown kind"),
            ("pears 4096 7", "unknown kind"),
            ("pairs 4096", "ends too early"),
            ("pairs 4 KiB", "is no number"),
            ("pairs 4096 0", "no steps"),
            ("mix 18446744073709551615 1 512", "ends too early"),
            ("replay 2 1\n2 512\n", "slot 2"),
        ] {
            let error = Sequence::parse(text).err().expect(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
