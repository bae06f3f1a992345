//! The phase of a step in which memory was requested, as far as annotations tell: forward, backward, optimizer.
//!
//! Scopes are placed by time, so a backward pass counts although its allocations come from autograd's own threads. The innermost scope
//! whose name says a phase decides; without one, the innermost scope of another name does. Marks of whole steps say nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade_recording::{DeviceRecording, Recording};

use super::side::Replayed;
use crate::annotations::{Scope, scopes};

/// A phase.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// A scope whose name contains "forward".
    Forward,
    /// A scope whose name contains "backward".
    Backward,
    /// An optimizer's step: PyTorch's own mark, or a scope whose name contains "optimizer".
    Optimizer,
    /// An optimizer's `zero_grad`, which PyTorch marks.
    ZeroGrad,
    /// Another scope of the program, by its name without a number at its end.
    Scope(Arc<str>),
    /// In none of the scopes.
    Outside,
    /// Before the first entry of the trace.
    BeforeTrace,
}

impl Phase {
    /// Its name in JSON: that of the scope for [`Phase::Scope`].
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::ZeroGrad => "zero_grad",
            Phase::Scope(name) => name,
            Phase::Outside => "outside",
            Phase::BeforeTrace => "before_trace",
        }
    }

    /// The phase that a scope's name says; `None` for marks of whole steps.
    fn of_scope(name: &str) -> Option<Phase> {
        const STEP: &str = "ProfilerStep#";
        let lower = name.to_ascii_lowercase();
        if name.starts_with(STEP) {
            None
        } else if lower.contains("zero_grad") {
            Some(Phase::ZeroGrad)
        } else if lower.contains("backward") {
            Some(Phase::Backward)
        } else if lower.contains("forward") {
            Some(Phase::Forward)
        } else if lower.contains("optimizer") {
            Some(Phase::Optimizer)
        } else {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['#', '_', '-', ' ', ':']);
            Some(Phase::Scope(if stem.is_empty() { name.into() } else { stem.into() }))
        }
    }
}

/// What happened in a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseUse {
    /// Bytes that are live at the peak of allocated memory and were requested in this phase.
    pub held_at_peak_bytes: u64,
    /// The most bytes that were allocated at once during this phase.
    pub peak_allocated_bytes: u64,
}

/// A phase on both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhaseChange {
    /// The phase.
    pub phase: Phase,
    /// On the first side.
    pub a: PhaseUse,
    /// On the second side.
    pub b: PhaseUse,
}

/// The phase of every entry of a trace.
pub(super) struct Phases {
    known: Vec<Phase>,
    /// For each entry its phase, as an index in `known`; empty if the file has no scopes.
    of_entry: Vec<u32>,
}

impl Phases {
    /// The phases of a device's trace.
    pub(super) fn of(recording: &Recording, device: &DeviceRecording) -> Phases {
        let scopes = scopes(&recording.annotations, device);
        let mut numbers: BTreeMap<Phase, u32> = BTreeMap::from([(Phase::Outside, 0)]);
        let mut known = vec![Phase::Outside];
        let of_scope: Vec<Option<u32>> = scopes
            .iter()
            .map(|scope| {
                let phase = Phase::of_scope(&scope.name)?;
                Some(*numbers.entry(phase.clone()).or_insert_with(|| {
                    known.push(phase);
                    known.len() as u32 - 1
                }))
            })
            .collect();
        if of_scope.iter().all(Option::is_none) {
            return Phases { known, of_entry: Vec::new() };
        }
        let is_named: Vec<bool> = known.iter().map(|phase| matches!(phase, Phase::Scope(_))).collect();
        Phases { of_entry: paint(&scopes, &of_scope, &is_named, device.trace.len()), known }
    }

    /// Whether the file tells phases apart.
    pub(super) fn are_known(&self) -> bool {
        !self.of_entry.is_empty()
    }

    /// The phase of the entry that leads to a moment.
    pub(super) fn at(&self, moment: u32) -> Option<Phase> {
        match moment.checked_sub(1) {
            _ if !self.are_known() => None,
            None => Some(Phase::BeforeTrace),
            Some(entry) => self.of_entry.get(entry as usize).and_then(|&number| self.known.get(number as usize)).cloned(),
        }
    }
}

/// The phase of each entry. Scopes come in the order in which they began; those open at an entry form a stack.
fn paint(scopes: &[Scope], of_scope: &[Option<u32>], is_named: &[bool], entries: usize) -> Vec<u32> {
    // Each open scope with the phase inside it: its own, unless its name says no phase and one outside it does.
    let mut open: Vec<(u32, u32)> = Vec::new();
    let mut next = 0;
    let mut of_entry = Vec::with_capacity(entries);
    for entry in 0..entries as u32 {
        open.truncate(open.iter().rposition(|&(to, _)| to > entry).map_or(0, |place| place + 1));
        while let Some(scope) = scopes.get(next).filter(|scope| scope.from <= entry) {
            let outer = open.last().map_or(0, |&(_, phase)| phase);
            let says_phase = |number: u32| number != 0 && !is_named.get(number as usize).copied().unwrap_or(true);
            let phase = match of_scope.get(next).copied().flatten() {
                Some(own) if says_phase(own) || !says_phase(outer) => own,
                _ => outer,
            };
            if scope.to > entry {
                open.push((scope.to, phase));
            }
            next += 1;
        }
        of_entry.push(open.last().map_or(0, |&(_, phase)| phase));
    }
    of_entry
}

/// What happened in which phase; nothing unless both files tell phases apart.
pub(super) fn phase_changes(a: (&Replayed<'_>, u32), b: (&Replayed<'_>, u32)) -> Vec<PhaseChange> {
    if !a.0.phases.are_known() || !b.0.phases.are_known() {
        return Vec::new();
    }
    let (mut uses_a, mut uses_b) = (phase_uses(a.0, a.1), phase_uses(b.0, b.1));
    let mut phases: Vec<Phase> = uses_a.keys().chain(uses_b.keys()).cloned().collect();
    phases.sort();
    phases.dedup();
    let change = |phase: Phase| {
        let (a, b) = (uses_a.remove(&phase).unwrap_or_default(), uses_b.remove(&phase).unwrap_or_default());
        PhaseChange { phase, a, b }
    };
    phases.into_iter().map(change).collect()
}

fn phase_uses(replayed: &Replayed<'_>, peak: u32) -> BTreeMap<Phase, PhaseUse> {
    let mut uses: BTreeMap<Phase, PhaseUse> = BTreeMap::new();
    let phases = &replayed.phases;
    let mut highest = vec![0_u64; phases.known.len()];
    for entry in replayed.entries() {
        let level = replayed.timeline.levels.allocated.get(entry + 1).copied().unwrap_or(0);
        if let Some(highest) = phases.of_entry.get(entry).and_then(|&number| highest.get_mut(number as usize)) {
            *highest = level.max(*highest);
        }
    }
    for (phase, &bytes) in phases.known.iter().zip(&highest).filter(|&(_, &bytes)| bytes > 0) {
        uses.entry(phase.clone()).or_default().peak_allocated_bytes = bytes;
    }
    let live = |block: &&crate::timeline::BlockLife| block.born <= peak && peak < block.freed;
    for block in replayed.timeline.log.blocks.iter().filter(live) {
        let held = &mut uses.entry(phases.at(block.born).unwrap_or(Phase::Outside)).or_default().held_at_peak_bytes;
        *held = held.saturating_add(block.size);
    }
    uses
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Annotation, Entry};

    use super::*;

    #[test]
    fn the_innermost_scope_that_says_a_phase_decides() {
        let trace = (0..10)
            .map(|i| {
                let mut entry = Entry::new(Action::Snapshot, 0, 0, 0);
                entry.set_time(Some(100 + i));
                entry
            })
            .collect();
        let device = DeviceRecording { trace, ..DeviceRecording::default() };
        let scope = |name: &str, from: i64, to: i64| {
            let note =
                |stage: &str, time| Annotation { name: name.into(), stage: stage.into(), device: None, time_us: Some(time) };
            (note("START", from), note("END", to))
        };
        let scopes = [
            scope("ProfilerStep#3", 101, 109),
            scope("my_forward", 102, 106),
            scope("attention 12", 103, 104),
            scope("dataloader 7", 106, 109),
            scope("Optimizer.step#SGD.step", 107, 108),
        ];
        let mut annotations: Vec<Annotation> = scopes.into_iter().flat_map(|(start, end)| [start, end]).collect();
        annotations.sort_by_key(|annotation| annotation.time_us);
        let recording = Recording { annotations, ..Recording::default() };
        let phases = Phases::of(&recording, &device);
        let names: Vec<String> =
            (0..=10).map(|moment| phases.at(moment).map_or_else(String::new, |phase| phase.name().to_owned())).collect();
        let forward = ["forward"; 4].join(" ");
        assert_eq!(names.join(" "), format!("before_trace outside outside {forward} dataloader optimizer dataloader outside"));
        let without = Phases::of(&Recording::default(), &device);
        assert!(!without.are_known() && without.at(3).is_none());
    }
}
