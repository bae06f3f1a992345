//! The simulated device beside its second implementation: random programs of device calls, and the rules for prices and addresses
//! alone.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::backend::AnyBackend;
use crate::program::search::{Case, Stopped, run_cases};
use crate::reference_device::draw::{Focus, program};
use crate::reference_device::player::Player;
use crate::reference_device::setup::Setup;
use crate::reference_device::step::Step;
use crate::suite::{Effort, Entry, Group, Verdict};

/// A drawn program.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program(Setup, Vec<Step>);

impl Case for Program {
    type Step = Step;

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.1
    }
}

/// The kinds of programs: name, focus, description.
const KINDS: [(&str, Focus, &str); 7] = [
    (
        "memory",
        Focus::Memory,
        "the simulated device answers as its second implementation does: cudaMalloc, cudaFree, other processes, faults, the log",
    ),
    (
        "virtual-memory",
        Focus::Virtual,
        "the simulated device answers as its second implementation does: reservations, created memory, mappings, access",
    ),
    (
        "page-runs",
        Focus::Runs,
        "a run of pages has the outcome, price and limits of single calls; breaking a handle fails early or keeps the contents",
    ),
    (
        "streams",
        Focus::Streams,
        "events complete, streams wait and the clock moves as in the second implementation, under every event timing",
    ),
    (
        "captures",
        Focus::Captures,
        "streams take part in captures, and nodes wait for each other, as in the second implementation",
    ),
    ("races", Focus::Races, "the race detector reports exactly the pairs of uses that nothing orders"),
    ("contents", Focus::Contents, "memory has the contents that were last written to it, byte by byte, wherever it is mapped"),
];

/// The entries of this group.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    let entry = |(salt, (name, focus, says)): (u64, (&str, Focus, &'static str))| {
        let check = move |_: &AnyBackend, effort: &Effort| beside(effort, salt, focus);
        Entry::new(Group::Law, format!("device/{name}"), says, check)
    };
    (0xde_0000..).zip(KINDS).map(entry).collect()
}

/// Plays random programs on the simulated device and on the plain device.
fn beside(effort: &Effort, salt: u64, focus: Focus) -> Verdict {
    let strategy = any::<u64>().no_shrink().prop_map(move |seed| {
        let (setup, steps) = program(focus, seed);
        Program(setup, steps)
    });
    run_cases(effort, salt, &strategy, |Program(setup, steps)| {
        let mut player = Player::new(setup);
        match player.play(steps) {
            Ok(()) => Ok(steps.len() as u64),
            Err(broken) => Err(Stopped::Broken(broken, script(setup, steps))),
        }
    })
}

/// Returns a program as comments of a script: `parkade ops` has no device calls.
fn script(setup: &Setup, steps: &[Step]) -> String {
    let lines = steps.iter().map(|step| format!("# {step:?}\n"));
    std::iter::once(format!("# {setup:?}\n")).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_devices_agree() {
        for (salt, (name, focus, _)) in (0xde_0000..).zip(KINDS) {
            let begin = std::time::Instant::now();
            let verdict = beside(&Effort::new(300, 0), salt, focus);
            eprintln!("{name} {:?}", begin.elapsed());
            assert!(verdict.is_ok(), "{name}: {verdict:#?}");
        }
    }
}
