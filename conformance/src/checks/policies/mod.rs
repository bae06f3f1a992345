//! The laws that hold for every policy, and the entries that check them: for each policy of the catalogue, for policies put
//! together by chance, and for one that answers at random.
//!
//! The laws of [`laws`](super::laws) are about PyTorch's rules: they know where a request must go. Here that is the policy's own
//! business; what holds all the same is in [`LAWS`]. A failure begins with the name of the law that was broken.

mod campaign;
mod check;
mod drawn;
mod faults;
mod fixed;
mod habits;
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
use parkade_policies::{CATALOGUE, Named};

use crate::backend::Backend;
use crate::checks::draw::{may_expand, timings};
use crate::law::Law;
use crate::suite::{Effort, Entry, Group, Requirement};
use drawn::Drawn;
pub use habits::Habits;
use subject::Subject;
use wrong::Wrong;

pub use check::{Report, check, check_with};

/// In a run of the whole suite a policy gets one random sequence where a law gets so many.
const SHARE: u32 = 10;
/// The policy that answers at random gets so many times what another one gets: it is asked for the most unlikely.
const WRONG_SHARE: u32 = 10;

/// What holds under every policy.
pub const LAWS: [(Law, &str); 16] = [
    (Law::NoOverlap, "no two live allocations share a byte"),
    (Law::Alignment, "addresses are multiples of 512, or of what the policy rounds to"),
    (Law::Accounting, "every reserved byte is live, rounding, pending, stranded or whole, and the statistics say so"),
    (Law::Counters, "what came minus what went is there, peaks are not below it, pools add up"),
    (Law::Coalescing, "free neighbours become one block as the policy's rule says, all of them and no others"),
    (
        Law::NoEarlyReuse,
        "nothing is reused or taken away before the work that used it is done, blocks that change streams included",
    ),
    (Law::Placement, "a request gets the block and the segment that the policy named, cut as it said"),
    (Law::NoFalseOutOfMemory, "a refused request is still refused when everything is waited for and given back"),
    (
        Law::Pools,
        "requests get the private pool that they are routed to, pools in use keep their memory, checkpoints bring back what was handed out, \
         and while a graph is captured nothing is waited for",
    ),
    (Law::Limit, "reserved memory does not grow beyond the limit"),
    (Law::Sweep, "the whole-heap sweep finds nothing"),
    (Law::History, "what the observer is told makes sense by itself"),
    (Law::Contents, "memory holds what was written until it is freed"),
    (Law::Endings, "a released heap returns every page, reservation and event"),
    (Law::Faults, "no step fails that nobody planned to fail"),
    (Law::Answers, "the policy never gives an answer that cannot be acted upon"),
];

/// How much of an effort is for policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of it, where policies are what is checked.
    Whole,
    /// A part, in a run of the whole suite.
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

/// The entries of one policy, or of all policies that are checked where none is named.
#[must_use]
pub fn entries<B: Backend + 'static>(backend: &B, only: Option<&'static Named>, share: Share) -> Vec<Entry<B>> {
    let named = CATALOGUE.iter().filter(|named| only.is_none_or(|only| only.name == named.name));
    let mut entries: Vec<Entry<B>> = Vec::new();
    for named in named {
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

/// Whether a policy takes memory by mapping pages.
fn maps_pages(policy: &impl Policy) -> bool {
    [PoolClass::Small, PoolClass::Large].into_iter().any(|class| policy.is_expandable(PoolSlot::default_pool(class)))
}

/// Policies put together by chance; without virtual memory, none whose segments are expandable.
fn drawn(may_expand: bool) -> Subject<Drawn> {
    Subject::new("drawn", move |seed| Drawn::new(seed).expandable_only_if(may_expand))
        .failing_with(Drawn::seeds_that_move_memory())
}

/// The entries of one policy.
fn entries_of<B: Backend + 'static, P: Policy + 'static>(backend: &B, subject: &Subject<P>, share: Share) -> Vec<Entry<B>> {
    let name = |what: &str| format!("policy/{}/{what}", subject.name);
    let mut entries = Vec::new();
    for (timing_name, timing) in timings(backend) {
        let subject = subject.clone();
        let says = "every law that no policy may break holds after every step of random programs";
        entries.push(Entry::new(Group::Law, name(timing_name), says, move |backend, effort| {
            campaign::every_law(&subject, backend, &share.of(effort), timing)
        }));
    }
    if backend.is_simulated() {
        let own = subject.clone();
        let says = "the same program makes the same decisions, byte for byte";
        entries.push(Entry::new(Group::Law, name("determinism"), says, move |backend, effort| {
            campaign::determinism(&own, backend, &share.of(effort))
        }));
    }
    let own = subject.clone();
    let says = "an allocator dropped as it is gives everything back";
    entries.push(Entry::new(Group::Law, name("dropped"), says, move |backend, effort| {
        campaign::dropped(&own, backend, &share.of(effort))
    }));
    let own = subject.clone();
    let says = "after the n-th driver call has failed, for n = 1, 2, ..., every law holds and nothing is lost";
    entries.push(Entry::new(Group::Law, name("faults"), says, move |backend, effort| {
        faults::every_call(&own, backend, &share.of(effort))
    }));
    entries
}

fn wrong_answers<B: Backend + 'static>(backend: &B, share: Share) -> Vec<Entry<B>> {
    let may_expand = may_expand(backend);
    let subject = Subject::new("wrong-answers", move |seed| Wrong::new(seed).expandable_only_if(may_expand)).expected_wrong();
    let says = "a wrong answer of a policy is an error that names it and loses nothing, whatever it answers";
    let entry = |(name, timing)| {
        let subject = subject.clone();
        Entry::new(Group::Law, format!("policy/wrong-answers/{name}"), says, move |backend, effort| {
            let part = share.of(effort);
            let effort = Effort { cases: part.cases * WRONG_SHARE, ..part };
            campaign::every_law(&subject, backend, &effort, timing)
        })
    };
    timings(backend).into_iter().map(entry).collect()
}
