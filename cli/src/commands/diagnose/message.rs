//! Diagnosis from a message alone: the same five steps, as far as its rounded figures go.

use std::io::{self, Write};

use anyhow::Result;
use parkade_analysis::diagnose::{Applies, Certainty, MessageDiagnosis, MessageVerdict, diagnose_message};
use parkade_recording::message::{OutOfMemoryMessage, Size};

use super::json::Step;
use super::table::{hanging, step, width};
use super::words::{POOLS_DO_NOT_SHARE, wrapped};
use crate::json_struct::{all, view};
use crate::output;
use crate::size::show_bytes;

pub(super) fn diagnose(text: &str) -> Result<MessageDiagnosis> {
    Ok(diagnose_message(OutOfMemoryMessage::parse(text)?))
}

/// The answers and findings of the five steps.
fn steps(diagnosis: &MessageDiagnosis) -> [(Applies, String); 5] {
    let message = &diagnosis.message;
    let is_fragmentation = match diagnosis.verdict {
        MessageVerdict::Fragmentation | MessageVerdict::PrivatePools => Applies::Yes,
        // Whatever the limit was, the reserved but unallocated bytes were enough.
        MessageVerdict::DeviceHadRoom if diagnosis.unallocated_suffices == Certainty::Yes => Applies::Yes,
        MessageVerdict::Capacity => Applies::No,
        MessageVerdict::DeviceHadRoom | MessageVerdict::Undecided => Applies::Unknown,
    };
    let is_capacity = match is_fragmentation {
        Applies::Yes => Applies::No,
        Applies::No => Applies::Yes,
        Applies::Unknown => Applies::Unknown,
    };
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
    let snapshot = "a message does not say where the free memory is, who holds the rest, or since when: record a run with \
                    torch.cuda.memory._record_memory_history(), then run parkade diagnose FILE";
    [
        (is_capacity, capacity(diagnosis)),
        (is_fragmentation, fragmentation(diagnosis)),
        (is_settings, settings.to_owned()),
        (Applies::No, empty_cache.to_owned()),
        (Applies::Yes, snapshot.to_owned()),
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

fn headline(diagnosis: &MessageDiagnosis) -> String {
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

fn notes(diagnosis: &MessageDiagnosis) -> Vec<String> {
    let message = &diagnosis.message;
    let digit = show_bytes(message.unallocated.within);
    let mut notes = vec![format!("figures are rounded to two decimals: reserved - allocated is known to within {digit}")];
    let named = message.processes.iter().filter_map(|process| Some((process.pid?, process.used)));
    let named: Vec<String> = named.map(|(pid, used)| format!("process {pid} has {used}")).collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    notes.push(format!(
        "of the device's {}, {} was neither reserved here nor free: other processes, and about 500 MiB for CUDA itself{named}",
        message.total, diagnosis.held_by_others
    ));
    if let Some(private) = message.private_pools {
        notes.push(format!(
            "the {private} in private pools, which the message counts as allocated, is free, but only for requests in those pools"
        ));
    }
    notes
}

pub(super) fn print(out: &mut dyn Write, diagnosis: &MessageDiagnosis) -> io::Result<()> {
    writeln!(
        out,
        "an out-of-memory message from device {}\n\n{}\n",
        diagnosis.message.device,
        output::bad(&wrapped(&headline(diagnosis), width()).join("\n"))
    )?;
    for (place, (answer, finding)) in steps(diagnosis).iter().enumerate() {
        let word = format!("{:<7}", answer.name());
        let word = if *answer == Applies::Yes { output::bad(&word) } else { word };
        step(out, place, &word, finding)?;
    }
    writeln!(out, "\n{}", output::dim("how certain this is"))?;
    for note in notes(diagnosis) {
        hanging(out, "  ", 2, &note)?;
    }
    Ok(())
}

view! {
    pub(super) struct Object(diagnosis: &MessageDiagnosis) {
        device: u32 = diagnosis.message.device,
        verdict: &'static str = diagnosis.verdict.name(),
        headline: String = headline(diagnosis),
        steps: Vec<Step> =
            all(steps(diagnosis).into_iter().enumerate(), |(place, (answer, finding))| Step::of(place, answer.name(), finding)),
        tried: Figure = Figure::of(diagnosis.message.tried),
        block_bytes_least: u64 = diagnosis.block_bytes.0,
        block_bytes_most: u64 = diagnosis.block_bytes.1,
        total: Figure = Figure::of(diagnosis.message.total),
        free: Figure = Figure::of(diagnosis.message.free),
        limit: Option<Figure> = diagnosis.message.limit.map(Figure::of),
        allocated: Figure = Figure::of(diagnosis.message.allocated),
        reserved: Figure = Figure::of(diagnosis.message.reserved),
        unallocated: Figure = Figure::of(diagnosis.message.unallocated),
        private_pools: Option<Figure> = diagnosis.message.private_pools.map(Figure::of),
        live: Figure = Figure::of(diagnosis.live),
        empty: Figure = Figure::of(diagnosis.empty),
        needed: Figure = Figure::of(diagnosis.needed),
        available: Figure = Figure::of(diagnosis.available),
        held_by_others: Figure = Figure::of(diagnosis.held_by_others),
        unallocated_suffices: &'static str = diagnosis.unallocated_suffices.name(),
        available_suffices: &'static str = diagnosis.available_suffices.name(),
        device_had_room: &'static str = diagnosis.device_had_room.name(),
        notes: Vec<String> = notes(diagnosis),
    }
}

view! {
    struct Figure(size: Size) {
        bytes: u64 = size.bytes,
        within_bytes: u64 = size.within,
    }
}
