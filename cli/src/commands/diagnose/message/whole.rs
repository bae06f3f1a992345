//! What a complete message says: the same five steps, as far as its rounded figures go.

use parkade_analysis::diagnose::{Applies, Certainty, MessageDiagnosis, MessageVerdict};

use super::super::layout::POOLS_DO_NOT_SHARE;
use crate::terminal::size::show_bytes;

/// What only a recording says.
pub(super) const SNAPSHOT: &str = "a message does not say where the free memory is, who holds the rest, or since when: record a run with \
                                   torch.cuda.memory._record_memory_history(), then run parkade diagnose FILE";

/// Whether it is capacity, and whether it is fragmentation.
pub(super) fn capacity_or_fragmentation(verdict: MessageVerdict, unallocated_suffices: Option<Certainty>) -> (Applies, Applies) {
    match verdict {
        MessageVerdict::Fragmentation | MessageVerdict::PrivatePools => (Applies::No, Applies::Yes),
        // Whatever the limit was, the reserved but unallocated bytes were enough.
        MessageVerdict::DeviceHadRoom if unallocated_suffices == Some(Certainty::Yes) => (Applies::No, Applies::Yes),
        MessageVerdict::Capacity => (Applies::Yes, Applies::No),
        MessageVerdict::DeviceHadRoom | MessageVerdict::Undecided => (Applies::Unknown, Applies::Unknown),
    }
}

/// The answers and findings of the five steps.
pub(super) fn steps(diagnosis: &MessageDiagnosis) -> [(Applies, String); 5] {
    let message = &diagnosis.message;
    let (is_capacity, is_fragmentation) = capacity_or_fragmentation(diagnosis.verdict, Some(diagnosis.unallocated_suffices));
    let (is_settings, settings) = match diagnosis.verdict {
        MessageVerdict::Capacity => (Applies::No, "no setting reduces live memory"),
        MessageVerdict::PrivatePools => (Applies::No, POOLS_DO_NOT_SHARE),
        _ => (is_fragmentation, "only a snapshot shows which one: parkade advise FILE"),
    };
    let empty_cache = match message.private_pools {
        None => "the allocator released every wholly free segment before it failed",
        Some(_) => {
            "the allocator released every wholly free segment of the pools it may empty before it failed; what a private pool has \
             cached can be released once nothing uses the pool"
        }
    };
    [
        (is_capacity, capacity(diagnosis)),
        (is_fragmentation, fragmentation(diagnosis)),
        (is_settings, settings.to_owned()),
        (Applies::No, empty_cache.to_owned()),
        (Applies::Yes, SNAPSHOT.to_owned()),
    ]
}

fn capacity(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let of_limit = if message.limit == Some(diagnosis.available) { "its limit" } else { "reserved plus free on the device" };
    let live = match message.private_pools {
        None => format!("{} allocated", message.allocated),
        Some(private) => format!("{} live ({} allocated less {private} in private pools)", diagnosis.live, message.allocated),
    };
    format!(
        "{live} plus {} tried is {}; the process could have {} ({of_limit})",
        message.tried, diagnosis.needed, diagnosis.available
    )
}

fn fragmentation(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let compared = match diagnosis.unallocated_suffices {
        Certainty::Yes => "at least what was tried",
        Certainty::No => "less than was tried",
        Certainty::LastDigit => "equal to what was tried, to two decimals",
    };
    match message.private_pools {
        None => format!("{} reserved - {} allocated = {}, {compared}", message.reserved, message.allocated, message.unallocated),
        Some(private) => format!(
            "{} reserved - {} live = {}, of which private pools keep {private}; the other {} is {compared}",
            message.reserved, diagnosis.live, diagnosis.empty, message.unallocated
        ),
    }
}

pub(super) fn headline(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    match (diagnosis.verdict, diagnosis.unallocated_suffices) {
        (MessageVerdict::Fragmentation, Certainty::Yes) => format!(
            "fragmentation: {} was reserved but unallocated, enough for the {} tried, but not in one piece",
            message.unallocated, message.tried
        ),
        (MessageVerdict::Fragmentation, _) => format!(
            "fragmentation: {} unallocated plus {} free on the device would hold the {} tried, but not in one piece",
            message.unallocated, message.free, message.tried
        ),
        (MessageVerdict::Capacity, _) => {
            let short = show_bytes(diagnosis.needed.bytes.saturating_sub(diagnosis.available.bytes));
            format!("capacity: {} needed at once, {} available, {short} too little", diagnosis.needed, diagnosis.available)
        }
        (MessageVerdict::PrivatePools, _) => format!(
            "private pools: {} needed at once, {} available, but {} of that is cached by private pools for their own use",
            diagnosis.needed,
            diagnosis.available,
            message.private_pools.unwrap_or(diagnosis.empty)
        ),
        (MessageVerdict::DeviceHadRoom, _) => {
            let known = match message.limit {
                None => String::new(),
                Some(limit) => format!(" and the limit of {limit} allowed it"),
            };
            format!(
                "the device had room: {} was free for the {} tried{known}, so something else refused: a limit that the message \
                 does not print, a cap on the container or partition, or another process that has since released memory",
                message.free, message.tried
            )
        }
        (MessageVerdict::Undecided, _) => {
            let (least, most) = diagnosis.block_bytes;
            let why = if depends_on_last_digit(diagnosis) {
                "it depends on the last digit of the figures".to_owned()
            } else {
                let (least, most) = (show_bytes(least), show_bytes(most));
                format!("{} is tried for any request from {least} to {most}", message.tried)
            };
            format!("fragmentation or capacity, the message does not say which: {why}")
        }
    }
}

fn depends_on_last_digit(diagnosis: &MessageDiagnosis) -> bool {
    [diagnosis.unallocated_suffices, diagnosis.available_suffices].contains(&Certainty::LastDigit)
}

pub(super) fn notes(diagnosis: &MessageDiagnosis) -> Vec<String> {
    let message = &diagnosis.message;
    let digit = show_bytes(message.unallocated.within);
    let mut notes = vec![format!("figures are rounded to two decimals: reserved - allocated is known to within {digit}")];
    let named = message.processes.iter().filter_map(|process| Some((process.pid?, process.used)));
    let named: Vec<String> = named.map(|(pid, used)| format!("process {pid} has {used}")).collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    notes.push(format!(
        "of the device's {}, {} was neither reserved here nor free: other processes, and the driver's own memory (about 500 MiB){named}",
        message.total, diagnosis.held_by_others
    ));
    if let Some(private) = message.private_pools {
        notes.push(format!(
            "the {private} in private pools, which the message counts as allocated, is free, but only for requests in those pools"
        ));
    }
    notes
}
