//! Devices that fail: driver calls fail, one at a time. For n = 1, 2, ..., the n-th call fails, until a run has fewer
//! than n calls.
//!
//! After the failure the heap is valid, the statistics agree with it, the rest of the sequence runs, and nothing leaks
//! at the end. The player checks all of that after every step. The failing call never reaches the device, so this
//! works on every backend.
//!
//! A device may also return impossible addresses: the allocator must refuse them with an error that names the address, and
//! continue as if nothing had been requested.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{AllocError, Allocator};
use parkade_sim::{CallName, FaultError, When};
use proptest::strategy::{Strategy, ValueTree};

use super::programs::that_fail;
use crate::backend::{AnyBackend, AnyDevice, Core, EventTiming, Needs, TestDevice, WitnessedDevice};
use crate::checks::campaign::{self, Subject, run, trouble, untold};
use crate::drawn::runner;
use crate::law::{Broken, Law, ensure};
use crate::program::draw::careful;
use crate::program::search::may_expand;
use crate::program::step::{Setup, Step};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// A code that the allocator has no rule for ("an illegal memory access was encountered").
const ILLEGAL_ADDRESS: FaultError = FaultError::Code(700);

/// Device calls that can fail.
const CALLS: [CallName; 15] = [
    CallName::MemGetInfo,
    CallName::Malloc,
    CallName::Free,
    CallName::EventCreate,
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
    CallName::AddressReserve,
    CallName::AddressFree,
    CallName::MemCreate,
    CallName::MemMap,
    CallName::MemSetAccess,
    CallName::MemUnmap,
    CallName::MemRelease,
    CallName::StreamSynchronize,
];

/// The calls that only expandable segments make.
const EXPANDABLE_CALLS: [CallName; 8] = [
    CallName::AddressReserve,
    CallName::AddressFree,
    CallName::MemCreate,
    CallName::MemMap,
    CallName::MemSetAccess,
    CallName::MemUnmap,
    CallName::MemRelease,
    CallName::StreamSynchronize,
];

/// Returns the entries of this law: failures of every kind of call, out of memory reported by any call, and two
/// failures in a row.
pub(super) fn entries() -> Vec<Entry> {
    let says =
        "when the n-th call of the driver function in the entry's name fails, for every n, every law holds and nothing leaks";
    let mut entries: Vec<Entry> = CALLS
        .into_iter()
        .map(|call| {
            let entry = Entry::new(Group::Law, format!("faults/{}", call.as_str()), says, move |backend, effort| {
                fail_each(backend, effort, move |n| vec![(When::NthOf(call, n), ILLEGAL_ADDRESS)], Some(call))
            });
            match call {
                CallName::EventSynchronize => entry.requires(Requirement::PendingWork),
                _ if EXPANDABLE_CALLS.contains(&call) => entry.requires(Requirement::ExpandableSegments),
                _ => entry,
            }
        })
        .collect();
    let says = "when the n-th driver call reports out of memory, for every n, every law holds and nothing leaks";
    entries.push(Entry::new(Group::Law, "faults/out-of-memory", says, |backend, effort| {
        fail_each(backend, effort, |n| vec![(When::Nth(n), FaultError::OutOfMemory)], None)
    }));
    let says = "when the n-th driver call and the next one fail, for every n, every law holds and nothing leaks";
    entries.push(Entry::new(Group::Law, "faults/two-in-a-row", says, |backend, effort| {
        fail_each(backend, effort, |n| vec![(When::Nth(n), ILLEGAL_ADDRESS), (When::Nth(n + 1), ILLEGAL_ADDRESS)], None)
    }));
    let says = "when any driver call of a random program fails in any way, every law holds and nothing leaks";
    let anywhere = Entry::new(Group::Law, "faults/anywhere", says, |backend, effort| {
        let timing = if backend.is_simulated() { EventTiming::Seeded(0) } else { EventTiming::Clock };
        campaign::any_call(&Subject::pytorch(), backend, effort, timing)
    });
    entries.push(anywhere.requires(Requirement::ExpandableSegments));
    entries
}

/// Returns random programs, one more for every five hundred cases.
fn random(effort: &Effort) -> Vec<(Setup, Vec<Step>, bool)> {
    let mut runner = runner(effort.cases, effort.seed, 77);
    let strategy = careful(EventTiming::Lazy, 60);
    let drawn = (0..2 + effort.cases / 500).filter_map(|_| strategy.new_tree(&mut runner).ok().map(|tree| tree.current()));
    drawn.map(|(setup, steps)| (setup, steps, true)).collect()
}

/// Runs every program with the n-th call failing, for n = 1, 2, ... until no failure happens.
fn fail_each(
    backend: &AnyBackend,
    effort: &Effort,
    plan: impl Fn(u64) -> Vec<(When, FaultError)>,
    call: Option<CallName>,
) -> Verdict {
    let may_expand = may_expand(backend);
    let programs = that_fail().into_iter().chain(random(effort)).filter(|(.., expands)| may_expand || !expands);
    let (mut failures, mut operations, mut count) = (0, 0, 0);
    for (setup, steps, expands) in programs {
        count += 1;
        // A real device is slow: every second call of a function fails, or every fifth of all calls.
        let stride = match call {
            _ if backend.is_simulated() => 1,
            Some(_) => 2,
            None => 5,
        };
        for n in (1..).step_by(stride) {
            let faults = plan(n);
            let ran = run(&Subject::pytorch(), backend, &setup, &steps, &faults).map_err(|stopped| trouble(stopped, &faults))?;
            operations += steps.len() as u64;
            if ran.fired == 0 {
                break;
            }
            // An expandable segment may work around a failure.
            let is_one = faults.len() == 1 && faults[0].1 == ILLEGAL_ADDRESS && !expands;
            if is_one && ran.told.len() != 1 {
                return Err(trouble(untold(ran.fired, &ran.told, ran.script), &faults));
            }
            failures += ran.fired;
        }
    }
    if failures == 0 {
        let name = call.map_or("any", CallName::as_str);
        return Err(Trouble::fail(format!(
            "no program makes the driver call {name}, so none could fail; the allocator waits only for work that is still pending, so \
             check whether the device completes events too early"
        )));
    }
    Ok(Evidence { measured: format!("{failures} failures in {count} programs"), operations, text: String::new() })
}

/// Sizes whose requests take a new range from the device.
const SIZES: [u64; 3] = [700, 5 * MIB, 30 * MIB];

/// Returns the entries of this law.
pub(super) fn wrong_address_entries() -> Vec<Entry> {
    let says = "if the device returns an address that overlaps memory in use, is misaligned or does not exist, the request fails \
                with an error, and nothing changes";
    let kinds = [("segments", ""), ("reserved-ranges", "expandable_segments:True")];
    kinds
        .into_iter()
        .map(|(name, text)| {
            let entry =
                Entry::new(Group::Law, format!("faults/wrong-address/{name}"), says, move |backend: &AnyBackend, _: &Effort| {
                    check_wrong_addresses(backend, text)
                });
            if text.is_empty() { entry } else { entry.requires(Requirement::ExpandableSegments) }
        })
        .collect()
}

fn check_wrong_addresses(backend: &AnyBackend, text: &str) -> Verdict {
    let mut operations = 0;
    for size in SIZES {
        for lie in 0..6 {
            operations += one(backend, text, size, lie)?;
        }
    }
    Ok(Evidence::operations(operations))
}

/// An impossible address, given a range that is in use.
fn wrong_address(lie: usize, used: u64, bytes: u64) -> u64 {
    [used, used + bytes - 512, used.saturating_sub(512), used + 64 * bytes + 256, 0, u64::MAX - 511][lie]
}

fn one(backend: &AnyBackend, text: &str, size: u64, lie: usize) -> Result<u64, Trouble> {
    let device = WitnessedDevice::new(backend.open(&Needs { capacity: Some(Bytes(400 * MIB)), ..Needs::default() })?);
    let settings = Settings::from_environment(text).map_err(|error| Trouble::fail(error.to_string()))?;
    let mut core: Core<AnyDevice> = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
    let refused = |error: AllocError| Trouble::fail(format!("a valid request was refused: {error}"));
    let held = core.allocate(Bytes(size), StreamId::DEFAULT).map_err(refused)?;
    let (base, bytes) = core.segment_of(&held).ok_or_else(|| Trouble::fail("an allocation has no segment"))?;
    let (segments, stats, told) = (core.segments(), core.stats().clone(), core.observer().len());
    let wrong = wrong_address(lie, base.get(), bytes.get());
    device.answer_wrongly(wrong);
    let stream = device.look().streams()[1];
    let answer = core.allocate(Bytes(size), stream);
    let is_named = answer.as_ref().is_err_and(|error| error.to_string().contains(&format!("{wrong:#x}")) || wrong == 0);
    let is_other = matches!(answer, Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. } | AllocError::Device(_)));
    ensure(Law::Faults, is_named && !is_other, || {
        format!(
            "a device that returned {wrong:#x} for {size} bytes, beside {bytes} bytes at {base}, caused the answer {answer:?}"
        )
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    let same = core.segments() == segments && *core.stats() == stats && core.observer().len() == told;
    ensure(Law::Faults, same, || {
        format!("after {wrong:#x} was refused, the segments are {:?}; before, they were {segments:?}", core.segments())
    })?;
    let next = core.allocate(Bytes(size), stream).map_err(refused)?;
    for allocation in [held, next] {
        core.free(allocation).map_err(|error| Trouble::fail(error.to_string()))?;
    }
    core.release_cached().map_err(refused)?;
    drop(core);
    let left = device.look().holdings();
    ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
    Ok(6)
}
