//! What is left of a message that is cut: the figures that are there, what they decide, and what is missing.

use parkade_analysis::diagnose::{Applies, Certainty, MessageVerdict, PartialDiagnosis};
use parkade_recording::message::Size;

use super::whole::{SNAPSHOT, capacity_or_fragmentation};
use crate::terminal::output;

/// Parts in a sentence: `a`, `a and b`, `a, b and c`.
fn enumerated(parts: &[&str]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

/// The verdict in a sentence.
pub(super) fn headline(diagnosis: &PartialDiagnosis) -> String {
    let message = &diagnosis.message;
    let tried = message.tried.map_or_else(|| "what was tried".to_owned(), |tried| format!("the {tried} tried"));
    match (diagnosis.verdict, message.tried) {
        (MessageVerdict::Capacity, _) => format!("capacity: {}", capacity(diagnosis)),
        (MessageVerdict::Fragmentation | MessageVerdict::PrivatePools, _) => {
            format!("{}: {}", name(diagnosis.verdict), fragmentation(diagnosis))
        }
        (MessageVerdict::DeviceHadRoom, _) => format!(
            "the device had room: {} was free for {tried}, so something else refused",
            message.free.map_or_else(String::new, |free| free.to_string())
        ),
        (MessageVerdict::Undecided, _) if diagnosis.device_had_room => format!(
            "the device had {} free for {tried}, so something else refused: perhaps a limit, which the missing part would name",
            message.free.map_or_else(String::new, |free| free.to_string())
        ),
        (MessageVerdict::Undecided, Some(tried)) if beyond(diagnosis).is_some() => {
            let (allocated, bound) = beyond(diagnosis).unwrap_or((tried, tried));
            let needed = allocated.plus(tried);
            format!(
                "capacity, unless private pools keep at least {} of what counts as allocated: {allocated} allocated plus {tried} tried is \
                 {needed}, and at most {bound} was to be had",
                needed.minus(bound)
            )
        }
        (MessageVerdict::Undecided, None) => match message.unallocated {
            Some(unallocated) => format!(
                "not decided: fragmentation if at most {unallocated} was tried, for so much was reserved but unallocated; the size \
                 that was tried is missing"
            ),
            None => format!("not decided: {} would be needed, but is missing", enumerated(&message.missing())),
        },
        (MessageVerdict::Undecided, Some(_)) => match message.missing().as_slice() {
            [] => "fragmentation or capacity, what is left of the message does not say which".to_owned(),
            missing => {
                format!(
                    "fragmentation or capacity, what is left of the message does not say which: {} would tell",
                    enumerated(missing)
                )
            }
        },
    }
}

/// What was allocated and the most that there was, if together with what was tried it is more, but it is missing how much of it is in fact
/// the free memory of private pools.
fn beyond(diagnosis: &PartialDiagnosis) -> Option<(Size, Size)> {
    let message = &diagnosis.message;
    let (allocated, tried) = (message.allocated?, message.tried?);
    let bound = [message.limit, message.total].into_iter().flatten().min_by_key(|bound| bound.bytes)?;
    let is_short = Certainty::at_least(bound, allocated.plus(tried)) == Certainty::No;
    (diagnosis.live.is_none() && is_short).then_some((allocated, bound))
}

fn name(verdict: MessageVerdict) -> &'static str {
    if verdict == MessageVerdict::PrivatePools { "private pools" } else { "fragmentation" }
}

/// The five steps, as in a complete message.
pub(super) fn steps(diagnosis: &PartialDiagnosis) -> [(Applies, String); 5] {
    let message = &diagnosis.message;
    let suffices = message.unallocated.zip(message.tried).map(|(left, right)| Certainty::at_least(left, right));
    let (is_capacity, is_fragmentation) = capacity_or_fragmentation(diagnosis.verdict, suffices);
    let settings = match diagnosis.verdict {
        MessageVerdict::Capacity => "no setting reduces live memory",
        _ => "only a snapshot shows which one: parkade advise FILE",
    };
    let is_settings = if diagnosis.verdict == MessageVerdict::PrivatePools { Applies::Unknown } else { is_fragmentation };
    [
        (is_capacity, capacity(diagnosis)),
        (is_fragmentation, fragmentation(diagnosis)),
        (is_settings, settings.to_owned()),
        (Applies::No, "the allocator released every wholly free segment before it failed".to_owned()),
        (Applies::Yes, SNAPSHOT.to_owned()),
    ]
}

fn capacity(diagnosis: &PartialDiagnosis) -> String {
    let message = &diagnosis.message;
    let bounds = [(message.limit, "the limit is"), (message.total, "the device has")];
    let bounds: Vec<String> = bounds.iter().filter_map(|(size, what)| Some(format!("{what} {}", (*size)?))).collect();
    let bounds = if bounds.is_empty() { "what there was is missing".to_owned() } else { bounds.join(", ") };
    match (diagnosis.live, message.tried) {
        (Some(live), Some(tried)) => format!("{live} live plus {tried} tried is {}; {bounds}", live.plus(tried)),
        (Some(live), None) => format!("{live} live, and the size that was tried is missing; {bounds}"),
        (None, Some(tried)) => match message.allocated {
            Some(allocated) => format!(
                "{allocated} allocated plus {tried} tried is {}; {bounds}; how much of it private pools keep is missing",
                allocated.plus(tried)
            ),
            None => format!("{tried} tried, and what was live is missing; {bounds}"),
        },
        (None, None) => format!("what was live and the size that was tried are missing; {bounds}"),
    }
}

fn fragmentation(diagnosis: &PartialDiagnosis) -> String {
    let message = &diagnosis.message;
    let tried =
        message.tried.map_or_else(|| "the size that was tried is missing".to_owned(), |tried| format!("{tried} was tried"));
    match (message.reserved, message.allocated, message.unallocated) {
        (Some(reserved), Some(allocated), Some(unallocated)) => {
            format!("{reserved} reserved - {allocated} allocated = {unallocated}; {tried}")
        }
        (_, _, Some(unallocated)) => format!("{unallocated} reserved but unallocated; {tried}"),
        _ if diagnosis.verdict == MessageVerdict::Capacity => "however the rest lay, it was not enough".to_owned(),
        _ => "what PyTorch had reserved or allocated is missing".to_owned(),
    }
}

/// What is there, what is missing, and where the rest may be.
pub(super) fn notes(diagnosis: &PartialDiagnosis) -> Vec<String> {
    let message = &diagnosis.message;
    let named = [
        (message.tried, "tried"),
        (message.total, "the device's memory"),
        (message.free, "free on the device"),
        (message.limit, "allowed"),
        (message.allocated, "allocated by PyTorch"),
        (message.private_pools, "of that in private pools"),
        (message.unallocated, "reserved but unallocated"),
    ];
    let there: Vec<String> = named.iter().filter_map(|(size, what)| Some(format!("{} {what}", (*size)?))).collect();
    let mut notes = vec![match there.as_slice() {
        [] => "the message is cut before its first figure".to_owned(),
        there => format!("the message is cut; it still says: {}", there.join(", ")),
    }];
    let missing = message.missing();
    if !missing.is_empty() {
        notes.push(format!("missing: {}", enumerated(&missing)));
    }
    notes.push("the rest may be in a longer log, or in the log of the rank itself".to_owned());
    for process in &message.processes {
        let who = process.pid.map_or_else(|| "this process".to_owned(), |pid| format!("process {pid}"));
        notes.push(output::one_line(&format!("{who} used {} of the device", process.used)));
    }
    notes
}
