//! The laws that hold for every policy, and the entries that check them: for each policy of the catalogue, for randomly
//! assembled policies, and for one that gives random answers.
//!
//! The checks in [`laws_pytorch`](super::laws_pytorch) know PyTorch's rules, and so where a request must go. Here the policy decides that, and
//! [`LAWS`] lists what must hold anyway. A failure starts with the name of the broken law.

mod campaign;
mod check;
mod drawn;
mod faults;
mod fixed;
mod pool_step;
mod shrink;
mod step;
mod subject;
#[cfg(test)]
mod tests;
mod trial;
mod watched;
mod wrong;

use parkade::PoolSlot;
use parkade::policy::Policy;
use parkade::units::PoolClass;
use parkade_policies::{BESIDE, CATALOGUE, Named};

use crate::backend::AnyBackend;
use crate::checks::draw::{may_expand, timings};
use crate::law::Law;
use crate::suite::{Effort, Entry, Group, Requirement};
use drawn::Drawn;
use subject::Subject;
pub use trial::Habits;
use wrong::Wrong;

pub use check::{Report, check, check_with};

/// In a run of the whole suite, a law gets this many random sequences for each one that a policy gets.
const SHARE: u32 = 10;
/// How many times more programs the policy with random answers gets than others: it must reach unlikely combinations.
const WRONG_SHARE: u32 = 10;
/// How many policies with random answers also see driver calls fail in the program that climbs every rung.
const WRONG_FAULT_SEEDS: u64 = 24;

/// What holds under every policy.
pub const LAWS: [(Law, &str); 16] = [
    (Law::NoOverlap, "no two live allocations share a byte"),
    (Law::Alignment, "addresses are multiples of 512, or of the unit that the policy rounds to"),
    (Law::Accounting, "every reserved byte is live, rounding, pending, inactive split or whole, and the statistics agree"),
    (Law::Counters, "allocated minus freed equals current, peaks are not below it, and pools add up to the totals"),
    (Law::Coalescing, "no two adjacent free blocks of one stream are left"),
    (Law::NoEarlyReuse, "nothing is reused or unmapped before the work that used it is done, even when blocks change streams"),
    (Law::Placement, "a request gets the block or segment that the policy chose, split as it said"),
    (Law::NoFalseOutOfMemory, "a refused request is still refused after waiting for all work and giving everything back"),
    (
        Law::Pools,
        "requests go to the private pool they are routed to, pools in use keep their memory, checkpoints restore what was handed out, \
         and nothing waits while a graph is captured",
    ),
    (Law::Limit, "reserved memory does not grow beyond the limit"),
    (Law::Sweep, "the whole-heap sweep finds no violation"),
    (Law::History, "the observer's trace is consistent"),
    (Law::Contents, "memory keeps what was written until it is freed"),
    (Law::Endings, "an emptied heap returns every page, reservation and event"),
    (Law::Faults, "no step fails without a planned fault"),
    (Law::Answers, "the policy gives only valid answers"),
];

/// How much of the effort goes to policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of it: policies are what is being checked.
    Whole,
    /// A part of it, in a run of the whole suite.
    Part,
}

impl Share {
    fn of(self, effort: &Effort) -> Effort {
        match self {
            Share::Whole => *effort,
            Share::Part => Effort { cases: effort.cases.div_ceil(SHARE), ..*effort },
        }
    }
}

/// The entries of one policy, or of all policies if `only` is `None`.
#[must_use]
pub fn entries(backend: &AnyBackend, only: Option<&'static Named>, share: Share) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    // A policy with an option is not in the catalogue.
    let (all, beside) = only.map_or((CATALOGUE, BESIDE), |only| (std::slice::from_ref(only), &[]));
    for named in all.iter().chain(beside) {
        let make = named.make;
        let subject = Subject::new(named.name, move |_| make()).with(Habits::of(named));
        let maps_pages = maps_pages(&make());
        let list = entries_of(backend, &subject, share).into_iter();
        entries.extend(list.map(|entry| if maps_pages { entry.requires(Requirement::ExpandableSegments) } else { entry }));
    }
    if only.is_none() {
        entries.extend(entries_of(backend, &drawn(may_expand(backend)), share));
        entries.extend(wrong_answers(backend, share));
    }
    entries
}

/// Whether a policy uses expandable segments.
fn maps_pages(policy: &impl Policy) -> bool {
    [PoolClass::Small, PoolClass::Large].into_iter().any(|class| policy.is_expandable(PoolSlot::default_pool(class)))
}

/// Randomly assembled policies; without virtual memory, none with expandable segments.
fn drawn(may_expand: bool) -> Subject {
    Subject::new("drawn", move |seed| Drawn::new(seed).expandable_only_if(may_expand))
        .failing_with(Drawn::seeds_that_move_memory())
}

/// The entries of one policy.
fn entries_of(backend: &AnyBackend, subject: &Subject, share: Share) -> Vec<Entry> {
    let name = |what: &str| format!("policy/{}/{what}", subject.name);
    let mut entries = Vec::new();
    for (timing_name, timing) in timings(backend) {
        let subject = subject.clone();
        let says = "every policy law holds after every step of random programs";
        entries.push(Entry::new(Group::Law, name(timing_name), says, move |backend, effort| {
            campaign::every_law(&subject, backend, &share.of(effort), timing)
        }));
    }
    if backend.is_simulated() {
        let own = subject.clone();
        let says = "the same program leads to the same decisions, byte for byte";
        entries.push(Entry::new(Group::Law, name("determinism"), says, move |backend, effort| {
            campaign::determinism(&own, backend, &share.of(effort))
        }));
    }
    let own = subject.clone();
    let says = "an allocator dropped at any moment gives everything back";
    entries.push(Entry::new(Group::Law, name("dropped"), says, move |backend, effort| {
        campaign::dropped(&own, backend, &share.of(effort))
    }));
    let own = subject.clone();
    let says = "after the n-th driver call fails, for n = 1, 2, ..., every law holds and nothing leaks";
    entries.push(Entry::new(Group::Law, name("faults"), says, move |backend, effort| {
        faults::every_call(&own, backend, &share.of(effort))
    }));
    entries
}

fn wrong_answers(backend: &AnyBackend, share: Share) -> Vec<Entry> {
    let may_expand = may_expand(backend);
    let subject = Subject::new("wrong-answers", move |seed| Wrong::new(seed).expandable_only_if(may_expand))
        .expected_wrong()
        .failing_with((0..WRONG_FAULT_SEEDS).collect());
    let says = "any invalid answer of a policy gives an error that names the policy, and nothing leaks";
    let entry = |(name, timing)| {
        let subject = subject.clone();
        Entry::new(Group::Law, format!("policy/wrong-answers/{name}"), says, move |backend, effort| {
            let part = share.of(effort);
            let effort = Effort { cases: part.cases * WRONG_SHARE, ..part };
            campaign::every_law(&subject, backend, &effort, timing)
        })
    };
    let mut entries: Vec<Entry> = timings(backend).into_iter().map(entry).collect();
    let says = "whatever a policy answers and whichever driver call fails, the heap stays valid and nothing leaks";
    entries.push(Entry::new(Group::Law, "policy/wrong-answers/faults", says, move |backend, effort| {
        let part = share.of(effort);
        faults::every_call(&subject, backend, &Effort { cases: part.cases * WRONG_SHARE, ..part })
    }));
    entries
}
