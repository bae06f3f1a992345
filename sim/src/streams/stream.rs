//! One stream: its pending marks in order, and the marks of other streams that it waits for.

use std::collections::VecDeque;

use super::event_timing::Draws;

/// The place of a recorded event in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Mark {
    pub(super) stream: u64,
    pub(super) sequence: u64,
}

/// A recorded mark that is not done yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) sequence: u64,
    /// When the work before the mark ends.
    pub(super) ready_at_ns: u64,
    /// Marks of other streams that the stream has waited for since its previous mark.
    pub(super) waits: Waits,
}

/// Marks that are waited for: only the newest of each stream.
#[derive(Clone, Default, Debug)]
pub(super) struct Waits(pub(super) Vec<Mark>);

impl Waits {
    pub(super) fn add(&mut self, mark: Mark) {
        match self.0.iter_mut().find(|other| other.stream == mark.stream) {
            Some(other) => other.sequence = other.sequence.max(mark.sequence),
            None => self.0.push(mark),
        }
    }

    pub(super) fn append(&mut self, other: Waits) {
        if self.0.is_empty() {
            *self = other;
        } else {
            other.0.into_iter().for_each(|mark| self.add(mark));
        }
    }
}

/// One stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Its newest mark; before it has one, the newest mark of any stream when this stream was created.
    pub(super) recorded: u64,
    pub(super) done: u64,
    pub(super) pending: VecDeque<Pending>,
    /// When all work queued so far ends; in the past for an idle stream.
    pub(super) busy_until_ns: u64,
    /// What it has waited for since its newest mark.
    pub(super) waits: Waits,
    pub(super) is_destroyed: bool,
    pub(super) draws: Option<Draws>,
}

impl Stream {
    /// Completes the oldest pending mark. Returns what the stream had waited for before it.
    pub(super) fn pop_oldest(&mut self) -> Option<Waits> {
        let oldest = self.pending.pop_front()?;
        self.done = oldest.sequence;
        Some(oldest.waits)
    }

    /// Completes marks up to a number. Returns what is therefore done in other streams.
    pub(super) fn complete_through(&mut self, sequence: u64) -> Waits {
        let mut waits = Waits::default();
        while self.pending.front().is_some_and(|oldest| oldest.sequence <= sequence) {
            waits.append(self.pop_oldest().unwrap_or_default());
        }
        waits
    }

    /// Completes all marks and ends all work. Returns what is therefore done in other streams.
    pub(super) fn complete_all(&mut self, now_ns: u64) -> Waits {
        let mut waits = self.complete_through(self.recorded);
        waits.append(std::mem::take(&mut self.waits));
        self.busy_until_ns = self.busy_until_ns.min(now_ns);
        waits
    }

    /// Makes finished marks visible, as the event timing decides. Returns what is therefore done in other
    /// streams.
    pub(super) fn settle(&mut self, now_ns: u64) -> Waits {
        let mut waits = Waits::default();
        while self.pending.front().is_some_and(|oldest| oldest.ready_at_ns <= now_ns) {
            if self.draws.as_mut().is_some_and(|draws| !draws.succeeds()) {
                break;
            }
            waits.append(self.pop_oldest().unwrap_or_default());
        }
        waits
    }

    /// Whether it was destroyed and has neither pending marks nor running work.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        self.is_destroyed && self.pending.is_empty() && self.busy_until_ns <= now_ns
    }
}
