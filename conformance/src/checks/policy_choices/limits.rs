//! Checks limits that leave exactly what a request needs: whatever is served without a limit is served again under a limit of what is
//! then reserved.
//!
//! Policies that divide the limit among their segments are left out.

use parkade::PoolSlot;
use parkade::policy::Policy as _;
use parkade::trace::TraceAction;
use parkade::units::Bytes;
use parkade_policies::named;
use proptest::prelude::*;

use super::lending;
use super::programs::{self, SALT};
use crate::backend::AnyBackend;
use crate::checks::campaign::{Share, Subject};
use crate::drawn::one_of;
use crate::law::{Broken, Law, ensure};
use crate::program::player::Player;
use crate::program::search::run_cases;
use crate::program::step::{Setup, Step};
use crate::suite::{Effort, Entry, Evidence, Group, Verdict};

/// The policies whose choice of segments does not depend on the limit.
const NAMES: [&str; 7] =
    ["pytorch", "pytorch-expandable", "best-fit-remap", "best-fit-remap:fit=next", "gmlake-like", "pytorch-rescue", "compaction"];

pub(super) fn entry(drawn: Subject, share: Share) -> Entry {
    let says = "a limit of exactly the memory that a request leads to does not refuse the request";
    Entry::new(Group::Law, "policy/limits", says, move |backend, effort| {
        let known = NAMES.map(|name| Subject::of(&named(name).expect("a policy of the catalogue")));
        let mut operations = 0;
        for subject in known.iter().chain([&drawn]) {
            operations += check(subject, backend, &share.of(effort))?.operations;
        }
        let measured = format!("{operations} operations under {} policies", NAMES.len() + 1);
        Ok(Evidence { operations, measured, text: String::new() })
    })
}

fn check(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    let programs = one_of![lending::programs(), programs::deciding(40)];
    let strategy = (programs, any::<u8>()).prop_map(|((setup, steps), place)| {
        let setup = Setup { has_callbacks: false, ..setup };
        (setup, steps, usize::from(place))
    });
    run_cases(effort, SALT + 5, strategy, |(setup, steps, place)| {
        let mut player = subject.begin_as(backend, setup, false)?;
        let mut grown = Vec::new();
        for (number, &step) in steps.iter().enumerate() {
            let (held, before) = (player.caller.held.len(), reserved(&player));
            player.play(&[step])?;
            // Under a limit of the program, a rescue maps smaller handles than PyTorch's rules would under the limit that is set later.
            let Step::Allocate(bytes, _) = step else { continue };
            if player.caller.core.heap().limit().is_some() {
                continue;
            }
            let is_release = |action| matches!(action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
            let releases = player.caller.entries().iter().any(|entry| is_release(entry.action));
            if player.caller.held.len() > held && reserved(&player) > before && !releases {
                grown.extend(least(&player, before, bytes, !NAMES.contains(&&*subject.name)).map(|limit| (number, limit)));
            }
        }
        let Some(&(number, limit)) = grown.get(place % grown.len().max(1)) else { return Ok(0) };
        let mut again = subject.begin_as(backend, setup, false)?;
        again.play(&steps[..number])?;
        again.play(&[Step::Limit(Some(limit))])?;
        let held = again.caller.held.len();
        again.play(&steps[number..=number])?;
        served(&again, held, limit).map_err(|broken| again.stopped(broken))?;
        // A program in which nothing can be checked does not count.
        Ok(steps.len() as u64)
    })
}

fn reserved(player: &Player) -> u64 {
    player.caller.core.heap().reserved().get()
}

/// Returns the smallest limit under which a request must be served that was served from new memory. For a segment, this is what is
/// reserved now. If an expandable segment grew, the limit must allow for all of the request's pages, although some of them may have
/// had memory before; handles may be larger than what was missing, and are smaller if the limit is. `None` if the policy counts
/// more than the pages.
fn least(player: &Player, before: u64, bytes: u64, is_drawn: bool) -> Option<u64> {
    let (policy, now) = (player.caller.core.policy(), reserved(player));
    if player.caller.entries().iter().all(|entry| entry.action != TraceAction::SegmentMap) {
        return Some(now);
    }
    let size = policy.round(Bytes(bytes))?;
    let page = policy.page(PoolSlot::default_pool(policy.classify(size)));
    let whole = before.checked_add(size.checked_round_up(page)?.get())?;
    if policy.chooses_handles() { Some(whole.min(now)) } else { Some(whole.max(now)).filter(|_| !is_drawn) }
}

/// Checks that the newest request was served, within the limit.
fn served(player: &Player, held: usize, limit: u64) -> Result<(), Broken> {
    let reserved = reserved(player);
    ensure(Law::Limit, player.caller.held.len() > held && reserved <= limit, || {
        format!("a request needs no more than the limit of {limit} bytes, but it was refused; {reserved} bytes are reserved")
    })
}
