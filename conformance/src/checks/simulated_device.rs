//! The simulated device beside its second implementation: random programs of device calls, and the rules for prices and addresses
//! alone.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::backend::AnyBackend;
use crate::law::Broken;
use crate::program::search::{Case, Draws, Stopped, run_cases};
use crate::reference_device::draw::{Focus, program};
use crate::reference_device::player::Player;
use crate::reference_device::rules;
use crate::reference_device::setup::Setup;
use crate::reference_device::step::Step;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// A drawn program.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program(Setup, Vec<Step>);

impl Case for Program {
    type Step = Step;

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.1
    }
}

/// The first of the numbers that distinguish the draws of the kinds.
const SALT: u64 = 0xde_0000;

/// A kind of programs: name, focus, how many are drawn for each case, and a description.
type Kind = (&'static str, Focus, u32, &'static str);

/// The kinds of programs. The cheaper ones are drawn more often.
const KINDS: [Kind; 7] = [
    (
        "memory",
        Focus::Memory,
        3,
        "the simulated device answers as its second implementation does: cudaMalloc, cudaFree, other processes, faults, the log",
    ),
    (
        "virtual-memory",
        Focus::Virtual,
        4,
        "the simulated device answers as its second implementation does: reservations, created memory, mappings, access",
    ),
    (
        "page-runs",
        Focus::Runs,
        6,
        "a run of pages has the outcome, price and limits of single calls; breaking a handle fails early or keeps the contents",
    ),
    (
        "streams",
        Focus::Streams,
        5,
        "events complete, streams wait and the clock moves as in the second implementation, under every event timing",
    ),
    (
        "captures",
        Focus::Captures,
        2,
        "streams take part in captures, and nodes wait for each other, as in the second implementation",
    ),
    ("races", Focus::Races, 1, "the race detector reports exactly the pairs of uses that nothing orders"),
    ("contents", Focus::Contents, 2, "memory has the contents that were last written to it, byte by byte, wherever it is mapped"),
];

/// A rule: name, what draws and checks one case, and how many cases are drawn for each program of the other entries.
type RuleCheck = (&'static str, fn(u64) -> Result<u64, Broken>, u32, &'static str);

/// The rules that are also compared without a device.
const RULES: [RuleCheck; 3] = [
    ("prices", rules::prices, 4, "every call has the measured price, or lies on the line between two measured ones"),
    ("addresses", rules::addresses, 8, "every address model places ranges as its rule says"),
    (
        "learned-addresses",
        rules::learned,
        1,
        "what is learned from a process that follows the rules explains it, and repeats every placement that it explains",
    ),
];

/// The entries of this group.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    let entry = |(salt, (name, focus, share, says)): (u64, Kind)| {
        let check = move |_: &AnyBackend, effort: &Effort| beside(effort, share, salt, focus);
        Entry::new(Group::Law, format!("device/{name}"), says, check)
    };
    let rule = |(name, check, share, says): RuleCheck| {
        let check = move |_: &AnyBackend, effort: &Effort| cases(effort, share, check);
        Entry::new(Group::Law, format!("device/{name}"), says, check)
    };
    let says =
        "of the placements in recordings of real runs, exactly as many follow the rules as documented; learning repeats all";
    let recorded = Entry::new(Group::Law, "device/recorded-addresses", says, |_: &AnyBackend, _: &Effort| {
        rules::recorded().map(Evidence::operations).map_err(Trouble::from)
    });
    (SALT..).zip(KINDS).map(entry).chain(RULES.map(rule)).chain([recorded]).collect()
}

/// Checks cases that are drawn from a number each, until one fails.
fn cases(effort: &Effort, share: u32, check: fn(u64) -> Result<u64, Broken>) -> Verdict {
    let mut draws = Draws::new(effort.seed);
    let mut operations = 0;
    for _ in 0..effort.cases.saturating_mul(share) {
        operations += check(draws.below(u64::MAX)).map_err(Trouble::from)?;
    }
    Ok(Evidence { operations, measured: format!("{operations} operations"), text: String::new() })
}

/// Plays random programs on the simulated device and on the plain device.
fn beside(effort: &Effort, share: u32, salt: u64, focus: Focus) -> Verdict {
    let effort = Effort { cases: effort.cases.saturating_mul(share), ..*effort };
    let strategy = any::<u64>().no_shrink().prop_map(move |seed| {
        let (setup, steps) = program(focus, seed);
        Program(setup, steps)
    });
    run_cases(&effort, salt, strategy, |Program(setup, steps)| {
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
        for (salt, (name, focus, share, _)) in (SALT..).zip(KINDS) {
            let verdict = beside(&Effort::new(100, 0), share, salt, focus);
            assert!(verdict.is_ok(), "{name}: {verdict:#?}");
        }
    }

    #[test]
    fn real_runs_are_explained_as_documented() {
        let outcome = rules::recorded();
        assert!(outcome.as_ref().is_ok_and(|&operations| operations > 1000), "{outcome:?}");
    }

    #[test]
    fn rules_agree() {
        for (name, check, share, _) in RULES {
            let verdict = cases(&Effort::new(300, 0), share, check);
            assert!(verdict.is_ok(), "{name}: {verdict:#?}");
        }
    }
}
