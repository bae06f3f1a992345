//! Diagnosis from messages only: one message, or a log with messages from several ranks, complete or cut.
//!
//! A message is explained in words in the same five steps as a recording, as far as its rounded figures allow: first the cause, then
//! the steps, what to try, and how certain the explanation is. If a message is cut, the remaining figures decide what they can, and the
//! text names the missing ones. The messages of a log become a table with one row for each different message of each rank, and in JSON
//! an array beside the explained message.

use anyhow::{Result, bail};
use parkade_analysis::diagnose::{Applies, Certainty, MessageDiagnosis, MessageVerdict, NO_DEVICE_BYTES, diagnose_message};
use parkade_recording::message::{
    FirstFailure, LoggedMessage, MOST_MESSAGES, MessageError, MessageLog, OtherMessage, OutOfMemoryMessage, Size, Source, ToldBy,
};

use super::parts::{self, POOLS_DO_NOT_SHARE, Step};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::output::{self, Tone, count};
use crate::terminal::run_words;
use crate::terminal::runner::Outcome;
use crate::terminal::size::{show_apart, show_bytes};
use crate::terminal::table::{Mark, Table};

/// What only a snapshot shows.
const SNAPSHOT_SHOWS: &str = "it shows what a message does not: where the free memory is, what holds the rest, and since when";
/// How to record a snapshot, first in one command, then in the program.
const RUN: &str = "parkade run PROGRAM.py";
const HISTORY: &str = "torch.cuda.memory._record_memory_history(stacks=\"python\")";
const DUMP: &str = "torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";
/// Why reserved but unallocated bytes did not serve the request: no message tells these reasons apart.
const IN_PIECES: &str = "but no free block was large enough, or it belonged to other streams";

/// A size, or a note that it is missing.
fn shown(size: Option<Size>) -> String {
    size.map_or_else(|| "an unknown amount".to_owned(), |size| size.to_string())
}

/// Whether the five steps can be answered from the message, which requires that PyTorch's allocator wrote it and that its
/// figures can be trusted.
fn has_steps(diagnosis: &MessageDiagnosis) -> bool {
    diagnosis.message.source == Source::PyTorch && diagnosis.verdict != MessageVerdict::ImpossibleFigures
}

/// The cause in a sentence.
fn headline(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let tried = message.tried.map_or_else(|| "the request".to_owned(), |tried| format!("the {tried} request"));
    match diagnosis.verdict {
        MessageVerdict::ImpossibleFigures => impossible(message),
        MessageVerdict::SpilledToHost => format!(
            "spilled to the host: {} is in use on a device of {}, so the driver has moved memory to the host; the program is \
             slow and close to running out of memory",
            shown(larger(message.reserved, message.allocated)),
            shown(message.total)
        ),
        MessageVerdict::Limit => limit(diagnosis),
        MessageVerdict::HeldByOthers => held(diagnosis),
        MessageVerdict::Capacity => run_words::no_cure(&capacity(diagnosis), None),
        MessageVerdict::Fragmentation => fragmentation(diagnosis),
        MessageVerdict::DeviceHadRoom => {
            let known = message.limit.map_or_else(String::new, |limit| format!(" and the limit of {limit} allowed it"));
            let free = message.free.map_or_else(
                || {
                    format!(
                        "of its {} only {} was reserved, and {tried} would fit",
                        shown(message.total.or(message.limit)),
                        reserved(message)
                    )
                },
                |free| format!("{free} was free for {tried}{known}"),
            );
            format!(
                "the device had room: {free}, so something else caused the refusal: a limit that the message does not print, \
                 such as the driver's for one allocation, a cap on the container or partition, or another process that has \
                 since released memory"
            )
        }
        MessageVerdict::OutsideAllocator => {
            let wanted = message.tried.map_or_else(String::new, |tried| format!(" ({tried} was requested)"));
            format!(
                "outside PyTorch's allocator: the message comes from {}{wanted}; the device had too little left besides what \
                 PyTorch and others hold",
                message.source.name()
            )
        }
        MessageVerdict::KnownDefect => {
            "a known defect: PyTorch's allocator failed while it counted or reported memory, so the message hides \
                                        an ordinary out-of-memory error"
                .to_owned()
        }
        MessageVerdict::HostMemory => {
            let wanted = message.tried.map_or_else(String::new, |tried| format!(" ({tried} was requested)"));
            format!("main memory, not the GPU's: the message comes from {}{wanted}", message.source.name())
        }
        MessageVerdict::Warning => format!(
            "a warning, not a failure: device {} refused {} with {} free; the allocator frees what it can and tries again",
            message.device.map_or_else(|| "?".to_owned(), |device| device.to_string()),
            shown(message.tried),
            shown(message.free)
        ),
        MessageVerdict::OtherFramework => {
            let wanted = message.tried.map_or_else(String::new, |tried| format!("; {tried} was requested"));
            format!("another framework: the message comes from {}{wanted}; its allocator is not PyTorch's", message.source.name())
        }
        MessageVerdict::Undecided => undecided(diagnosis),
    }
}

/// The larger of two sizes that may be missing.
fn larger(one: Option<Size>, other: Option<Size>) -> Option<Size> {
    [one, other].into_iter().flatten().max_by_key(|size| size.bytes)
}

fn reserved(message: &OutOfMemoryMessage) -> String {
    shown(message.reserved.or(message.allocated))
}

fn impossible(message: &OutOfMemoryMessage) -> String {
    let is_absurd = |size: &Size| size.bytes >= NO_DEVICE_BYTES;
    if let Some(tried) = message.tried.filter(is_absurd) {
        return format!(
            "impossible figures: {tried} was requested, which no device has: a size in the program is negative, has \
             overflowed, or counts bytes as elements"
        );
    }
    if message.processes.iter().any(|process| is_absurd(&process.used)) {
        return "impossible figures: the message says that a process uses 2^64 bytes, which is how the driver says that it does \
                not know; the other figures may be right, but what others hold is unknown"
            .to_owned();
    }
    let [free, total, allocated, reserved] = [message.free, message.total, message.allocated, message.reserved].map(shown);
    format!(
        "impossible figures: {free} free of {total}, {allocated} allocated of {reserved} reserved cannot all be true: the message was \
         changed, or put together from several"
    )
}

fn limit(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let used = message.reserved.or(message.allocated);
    match message.limit {
        None => format!(
            "the program's own limit: a request for {} would exceed the fraction that set_per_process_memory_fraction allows \
             it, so PyTorch did not ask the device",
            shown(message.tried)
        ),
        Some(limit) => format!(
            "the program's own limit: it may use {limit} of the device's {}, holds {}, and requested {}; the device had {} \
             free",
            shown(message.total),
            shown(used),
            shown(message.tried),
            shown(message.free)
        ),
    }
}

fn held(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let total = shown(message.total);
    let tried = message.tried.map_or_else(|| "the request".to_owned(), |tried| format!("the {tried} request"));
    let of_own = diagnosis.own_outside().zip(diagnosis.held_by_others);
    match of_own.map(|(own, held)| (own, held.minus(own))) {
        Some((own, others)) if others.bytes <= others.within => format!(
            "this process holds it outside PyTorch's allocator: {own} of the device's {total}; without that, {tried} would fit"
        ),
        _ => {
            let others = show_bytes(diagnosis.others_bytes().unwrap_or(0));
            format!(
                "others hold it: about {others} of the device's {total} is neither reserved by this allocator nor free; without \
                 it, {tried} would fit"
            )
        }
    }
}

fn capacity(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let bound = diagnosis.available.or(message.limit).or(message.total);
    let others = message.others.map_or_else(String::new, |others| format!(" (and {others} outside the allocator)"));
    let Some((needed, bound)) = diagnosis.needed.zip(bound) else { return format!("capacity: {}", amounts(diagnosis)) };
    let needed = needed.plus(message.others.unwrap_or(Size { bytes: 0, within: 0 }));
    match needed.bytes.checked_sub(bound.bytes).filter(|bytes| *bytes > 0) {
        Some(short) => format!("capacity: {needed} needed at once{others}, {bound} available, {} too little", show_bytes(short)),
        None => format!(
            "capacity: the device is full: of {} reserved only {} is unallocated; the program must hold at least {} less at once",
            shown(message.reserved),
            shown(message.unallocated),
            shown(message.tried)
        ),
    }
}

fn fragmentation(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let unallocated = shown(message.unallocated);
    if message.source == Source::Summary {
        let waiting = message.active.zip(message.allocated).map(|(active, allocated)| active.minus(allocated));
        return match waiting.filter(|waiting| waiting.bytes > 0) {
            Some(waiting) => format!(
                "waiting memory: of {} reserved, {waiting} is no longer allocated but still active, because other streams may \
                 be using it",
                shown(message.reserved)
            ),
            None => format!("fragmentation: {unallocated} of {} reserved is not allocated", shown(message.reserved)),
        };
    }
    let tried = message.tried.map_or_else(|| "the request".to_owned(), |tried| format!("the {tried} request"));
    if diagnosis.unallocated_suffices == Some(Certainty::Yes) {
        format!("fragmentation: {unallocated} was reserved but unallocated, enough for {tried}, {IN_PIECES}")
    } else if is_of_pools(diagnosis) {
        format!(
            "private pools: {} needed at once, {} available, but {} of that is cached by private pools for their own use",
            shown(diagnosis.needed),
            shown(diagnosis.available),
            shown(message.private_pools)
        )
    } else {
        format!(
            "fragmentation: {unallocated} unallocated plus {} free on the device would hold {tried}, {IN_PIECES}",
            shown(message.free)
        )
    }
}

/// Whether the request would fit only with the memory that private pools keep.
fn is_of_pools(diagnosis: &MessageDiagnosis) -> bool {
    let message = &diagnosis.message;
    let needed = message.allocated.zip(message.tried).map(|(allocated, tried)| allocated.plus(tried));
    let fits = diagnosis.available.zip(needed).map(|(available, needed)| Certainty::at_least(available, needed));
    message.private_pools.is_some() && fits != Some(Certainty::Yes) && diagnosis.unallocated_suffices != Some(Certainty::Yes)
}

fn undecided(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    match message.source {
        Source::PyTorch => {}
        Source::Kernel => {
            return "not the device's memory: a kernel needs more shared memory than a multiprocessor has; smaller tiles or \
                    fewer stages help, but no allocator can"
                .to_owned();
        }
        Source::Summary => {
            return format!("only a table of statistics: {}; it does not say what was requested", amounts(diagnosis));
        }
        Source::Plain => {
            return "undecided: the text says that memory ran out, but gives no figures; PyTorch's own message continues with \
                    `Tried to allocate`"
                .to_owned();
        }
        source => {
            return format!(
                "undecided: the message from {} does not show the cause: its figures are missing, or too close to each other",
                source.name()
            );
        }
    }
    if let Some((allocated, bound)) = beyond(diagnosis) {
        let tried = message.tried.unwrap_or(bound);
        let needed = allocated.plus(tried);
        return format!(
            "capacity, unless private pools keep at least {} of what counts as allocated: {allocated} allocated plus {tried} \
             requested is {needed}, and at most {bound} was available",
            needed.minus(bound)
        );
    }
    if let (Some(free), Some(tried), false) = (message.free, message.tried, message.is_limit_known())
        && Certainty::at_least(free, tried) == Certainty::Yes
    {
        return format!(
            "the device had {free} free for the {tried} request, so something else caused the refusal: perhaps a limit, which \
             the missing part would name"
        );
    }
    if message.tried.is_none() && message.unallocated.is_some() {
        return format!(
            "not decided: fragmentation if at most {} was requested, because that much was reserved but unallocated; the size \
             of the request is missing",
            shown(message.unallocated)
        );
    }
    let missing = message.missing();
    if message.tried.is_none() {
        return format!("not decided: this would take {}, which the message lacks", output::enumerated(&missing));
    }
    let why = if !missing.is_empty() {
        return format!(
            "fragmentation or capacity: what is left of the message does not show which, but {} would",
            output::enumerated(&missing)
        );
    } else if [diagnosis.unallocated_suffices, diagnosis.available_suffices].contains(&Some(Certainty::LastDigit)) {
        "it depends on the last digit of the figures".to_owned()
    } else {
        let (least, most) = diagnosis.block_bytes.unwrap_or_default();
        let [least, most] = show_apart(least, most);
        format!("PyTorch tries {} for any request from {least} to {most}", shown(message.tried))
    };
    format!("fragmentation or capacity, and the message does not show which: {why}")
}

/// The allocated bytes and the most that was available, if the allocated bytes and the size tried exceed it, but the message
/// does not show how much of the allocated bytes is free memory of private pools.
fn beyond(diagnosis: &MessageDiagnosis) -> Option<(Size, Size)> {
    let message = &diagnosis.message;
    let (allocated, tried) = (message.allocated?, message.tried?);
    let bound = [message.limit, message.total].into_iter().flatten().min_by_key(|bound| bound.bytes)?;
    let is_short = Certainty::at_least(bound, allocated.plus(tried)) == Certainty::No;
    (diagnosis.live.is_none() && is_short).then_some((allocated, bound))
}

/// The answers and findings of the five steps.
fn explained_steps(diagnosis: &MessageDiagnosis) -> Vec<(Applies, String)> {
    if !has_steps(diagnosis) {
        return Vec::new();
    }
    let (is_capacity, is_fragmentation) = match diagnosis.verdict {
        MessageVerdict::Capacity | MessageVerdict::SpilledToHost => (Applies::Yes, Applies::No),
        MessageVerdict::Fragmentation => (Applies::No, Applies::Yes),
        MessageVerdict::Limit | MessageVerdict::HeldByOthers | MessageVerdict::DeviceHadRoom => (Applies::No, Applies::No),
        _ => (Applies::Unknown, Applies::Unknown),
    };
    let (is_settings, settings) = match diagnosis.verdict {
        MessageVerdict::Capacity | MessageVerdict::SpilledToHost => (Applies::No, "no setting reduces live memory"),
        MessageVerdict::Fragmentation if is_of_pools(diagnosis) => (Applies::No, POOLS_DO_NOT_SHARE),
        MessageVerdict::Limit => (Applies::No, "the limit is the program's, not a setting of the allocator"),
        MessageVerdict::HeldByOthers => (Applies::No, "no setting frees memory that PyTorch's allocator does not hold"),
        MessageVerdict::DeviceHadRoom => (Applies::No, "no setting of the allocator caused the refusal"),
        _ => (is_fragmentation, "which ones can be computed only from a snapshot: parkade advise SNAPSHOT"),
    };
    let empty_cache = match diagnosis.message.private_pools {
        None => "the allocator released every wholly free segment before it failed",
        Some(_) => {
            "the allocator released every wholly free segment of the pools it may empty before it failed; what a private pool has \
             cached can be released once nothing uses the pool"
        }
    };
    let (mut capacity, mut pieces) = (amounts(diagnosis), in_pieces(diagnosis));
    if diagnosis.verdict == MessageVerdict::Capacity && diagnosis.available_suffices == Some(Certainty::Yes) {
        capacity.push_str(", but no program uses that to the last byte");
        pieces.push_str("; every program leaves that much between its blocks");
    }
    vec![
        (is_capacity, capacity),
        (is_fragmentation, pieces),
        (is_settings, settings.to_owned()),
        (Applies::No, empty_cache.to_owned()),
        (
            Applies::Yes,
            format!(
                "{SNAPSHOT_SHOWS}; to record one, run the program with {RUN}, or call {HISTORY} when it starts and {DUMP} in a \
                 finally: when it ends; then run parkade diagnose snapshot.pickle"
            ),
        ),
    ]
}

/// The memory needed, and the memory available.
fn amounts(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let live = match (diagnosis.live, message.private_pools) {
        (Some(live), Some(private)) => {
            format!("{live} live ({} allocated less {private} in private pools)", shown(message.allocated))
        }
        (Some(live), None) if message.is_complete => format!("{live} allocated"),
        (Some(live), None) => format!("{live} live"),
        (None, _) => match message.allocated {
            Some(allocated) => format!("{allocated} allocated, of which private pools may keep some,"),
            None => "an unknown amount".to_owned(),
        },
    };
    let needed = match (diagnosis.needed, message.tried) {
        (Some(needed), Some(tried)) => format!("{live} plus {tried} requested is {needed}"),
        (None, Some(tried)) => format!("{live} plus {tried} requested"),
        _ => live,
    };
    let of_limit = if message.limit == diagnosis.available { "its limit" } else { "reserved plus free on the device" };
    match (diagnosis.available, message.limit, message.total) {
        (Some(available), ..) => format!("{needed}; the process could have had at most {available} ({of_limit})"),
        (None, Some(limit), Some(total)) => format!("{needed}; the limit is {limit}, the device has {total}"),
        (None, Some(limit), None) => format!("{needed}; the limit is {limit}"),
        (None, None, Some(total)) => format!("{needed}; the device has {total}"),
        (None, None, None) => needed,
    }
}

/// The memory that is reserved but not allocated, compared with the size tried.
fn in_pieces(diagnosis: &MessageDiagnosis) -> String {
    let message = &diagnosis.message;
    let compared = match diagnosis.unallocated_suffices {
        Some(Certainty::Yes) => "enough for the request",
        Some(Certainty::No) => "less than was requested",
        Some(Certainty::LastDigit) => "as much as was requested, to two decimals",
        None => "for a request of unknown size",
    };
    match (message.reserved, message.allocated, message.unallocated, message.private_pools) {
        (Some(reserved), _, Some(rest), Some(private)) => format!(
            "{reserved} reserved - {} live = {}, of which private pools keep {private}; the other {rest} is {compared}",
            shown(diagnosis.live),
            shown(diagnosis.empty)
        ),
        (Some(reserved), Some(allocated), Some(rest), None) => {
            format!("{reserved} reserved - {allocated} allocated = {rest}, {compared}")
        }
        (_, _, Some(rest), _) => format!("{rest} reserved but unallocated, {compared}"),
        _ => "what PyTorch had reserved or allocated is missing".to_owned(),
    }
}

/// One line to try, from the message alone, and how likely it is to help; `None` if no line does.
fn remedy(diagnosis: &MessageDiagnosis) -> Option<(&'static str, String)> {
    let message = &diagnosis.message;
    Some(match diagnosis.verdict {
        MessageVerdict::Fragmentation if message.source != Source::PyTorch || is_of_pools(diagnosis) => return None,
        MessageVerdict::Fragmentation => (
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "run this line in the shell from which you start the program. It helps if the free memory is in blocks that are too \
             small, but not if it is cached for other streams or if another stream may still be using it; parkade advise SNAPSHOT \
             says whether it is enough. On AMD GPUs, the variable is PYTORCH_HIP_ALLOC_CONF"
                .to_owned(),
        ),
        MessageVerdict::Limit => (
            "torch.cuda.set_per_process_memory_fraction(1.0)",
            "the program, or a library or test that it runs, has set a smaller fraction; without that limit, it could use the \
             device's free memory"
                .to_owned(),
        ),
        MessageVerdict::HeldByOthers => (
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
            "this command lists the processes that use the GPU (rocm-smi --showpids on AMD, npu-smi info on Ascend); in a container their numbers \
             may differ from those in the message".to_owned(),
        ),
        MessageVerdict::SpilledToHost => (
            "CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback",
            "this setting in NVIDIA's control panel makes the program fail early instead of moving memory to the host; it \
             needs less live memory either way"
                .to_owned(),
        ),
        MessageVerdict::OutsideAllocator if message.source == Source::Server => (
            "--gpu-memory-utilization 0.95",
            "the server's share of the device decides how much its cache gets: raise it if the cache is too small, lower it if other \
             processes use the device; --max-model-len makes the cache smaller"
                .to_owned(),
        ),
        MessageVerdict::OutsideAllocator => (
            "torch.cuda.set_per_process_memory_fraction(0.9)",
            "it leaves a tenth of the device to the driver, cuBLAS, NCCL and CUDA graphs; a server has its own share \
             (gpu_memory_utilization, mem_fraction_static)"
                .to_owned(),
        ),
        _ => return None,
    })
}

/// How certain the explanation is, and what the message does not show.
fn notes(diagnosis: &MessageDiagnosis) -> Vec<String> {
    let message = &diagnosis.message;
    let mut notes = Vec::new();
    if !message.is_complete && matches!(message.source, Source::PyTorch | Source::CudaMallocAsync | Source::Mps) {
        notes.extend(cut_notes(message));
    } else if let Some(digit) = message.unallocated.filter(|_| has_steps(diagnosis)) {
        let digit = show_bytes(digit.within);
        notes.push(format!("figures are rounded to two decimals: reserved - allocated is known to within {digit}"));
    }
    notes.extend(own_use(diagnosis).or_else(|| not_ours(diagnosis)));
    for process in &message.processes {
        let who = match process.pid {
            _ if diagnosis.own_outside().is_some() && diagnosis.own_process() == Some(process) => continue,
            None => "this process".to_owned(),
            Some(pid) => format!("process {pid}"),
        };
        notes.push(output::one_line(&format!("{who} used {} of the device", process.used)));
    }
    if let Some(private) = message.private_pools {
        notes.push(format!(
            "the {private} in private pools, which the message counts as allocated, is free, but only for requests in those pools"
        ));
    }
    notes.extend(of_source(diagnosis).map(str::to_owned));
    notes
}

/// What this process used inside and outside of PyTorch's allocator, and what other processes used; `None` if the message does
/// not say what this process used.
fn own_use(diagnosis: &MessageDiagnosis) -> Option<String> {
    let (own, outside, reserved) = (diagnosis.own_process()?, diagnosis.own_outside()?, diagnosis.message.reserved?);
    let of = diagnosis.message.total.map_or_else(String::new, |total| format!("of the device's {total}, "));
    let id = own.pid.map_or_else(String::new, |pid| format!(" (on the host, its id is {pid})"));
    let others = match diagnosis.held_by_others.map(|held| held.minus(outside)) {
        None => String::new(),
        Some(others) if others.bytes <= others.within => "; other processes used nothing, to within rounding".to_owned(),
        Some(others) => format!("; other processes used {others}"),
    };
    Some(format!(
        "{of}this process{id} used {}: {reserved} reserved by PyTorch's allocator, and {outside} outside it (the driver's own memory \
         for a process, about 500 MiB, and libraries such as cuBLAS and NCCL){others}",
        own.used
    ))
}

/// The memory that is neither reserved by the allocator nor free, if the message does not say whose it is.
fn not_ours(diagnosis: &MessageDiagnosis) -> Option<String> {
    let (held, total) = (diagnosis.held_by_others?, diagnosis.message.total?);
    Some(format!(
        "of the device's {total}, {held} was neither reserved by this allocator nor free; it was held by other processes, by this \
         process outside the allocator, or by the driver (about 500 MiB)"
    ))
}

/// Which parts of a cut message are present, which are missing, and where the rest may be.
fn cut_notes(message: &OutOfMemoryMessage) -> Vec<String> {
    let named = [
        (message.tried, "requested"),
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
        notes.push(format!("missing: {}", output::enumerated(&missing)));
    }
    notes.push("the rest may be in a longer log, or in the log of the rank itself".to_owned());
    notes
}

/// A note on messages of this kind.
fn of_source(diagnosis: &MessageDiagnosis) -> Option<&'static str> {
    Some(match (diagnosis.message.source, diagnosis.verdict) {
        (Source::CudaMallocAsync, _) => {
            "the driver's pool, not PyTorch, caches memory under this backend: settings such as max_split_size_mb and \
             expandable_segments have no effect, and PyTorch records no history, so there is no snapshot to replay; to see whether \
             PyTorch's own allocator fits, run once without backend:cudaMallocAsync, record a snapshot, and give it to parkade advise"
        }
        (Source::Mps, _) => {
            "the limit is PYTORCH_MPS_HIGH_WATERMARK_RATIO; the GPU shares memory with the processor, so other programs count \
             too"
        }
        (Source::Assertion, _) => {
            "the assertion is in PyTorch's own accounting: it has failed where NVML is not available (Jetson, some containers, \
             WSL2) and under the cudaMallocAsync backend; a newer release may report the real error"
        }
        (Source::Retry, _) => {
            "if an out-of-memory error follows, pass that message to parkade; if none does, the request was served after the \
             cache was released, which costs time"
        }
        (Source::System, _) => {
            "the kernel's log (dmesg) says which process was killed and how much memory it had; fewer DataLoader workers use \
             less"
        }
        (Source::MainMemory, _) => {
            "no setting of the GPU's allocator matters; free -h shows main memory, and pinned memory counts towards it"
        }
        (_, MessageVerdict::Capacity) => {
            "less live memory at once: a smaller batch, shorter sequences, activation checkpointing, or an optimizer with less \
             state"
        }
        _ => return None,
    })
}

/// The messages of a log, each diagnosed.
pub(crate) struct LogDiagnosis {
    log: MessageLog,
    /// One for each message of the log.
    diagnoses: Vec<MessageDiagnosis>,
    /// The index of the message that is explained.
    explained: usize,
}

pub(super) fn diagnose(log: MessageLog) -> Result<LogDiagnosis> {
    let Some(explained) = log.explained() else { bail!(MessageError::NotFound) };
    let diagnoses = log.messages.iter().map(|logged| diagnose_message(logged.message.clone())).collect();
    Ok(LogDiagnosis { log, diagnoses, explained })
}

/// Describes a message from a source other than PyTorch.
fn other(other: &OtherMessage) -> String {
    let rank = other.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    let wanted = other.message.tried.map_or_else(String::new, |tried| format!("; {} was requested", show_bytes(tried.bytes)));
    let (line, name) = (other.line, other.message.source.name());
    format!("{rank}line {line}: an out-of-memory message from {name}, which parkade does not explain{wanted}")
}

impl LogDiagnosis {
    fn explained(&self) -> &MessageDiagnosis {
        &self.diagnoses[self.explained]
    }

    fn logged(&self) -> &LoggedMessage {
        &self.log.messages[self.explained]
    }

    /// How certain the explanation is, and what else the log contains.
    fn notes(&self) -> Vec<String> {
        let mut notes = notes(self.explained());
        if self.log.left_out > 0 {
            notes.push(format!(
                "the log has {} after the first {MOST_MESSAGES} different ones; they are counted, but not listed or compared",
                count(self.log.left_out, "more message")
            ));
        }
        notes
    }

    /// Unknown if the explained message does not decide it.
    pub(super) fn outcome(&self) -> Outcome {
        if self.explained().verdict == MessageVerdict::Undecided { Outcome::NotKnown } else { Outcome::Good }
    }
}

/// Whether only a part of the message is present.
fn is_cut(diagnosis: &MessageDiagnosis) -> bool {
    !diagnosis.message.is_complete && matches!(diagnosis.message.source, Source::PyTorch | Source::CudaMallocAsync | Source::Mps)
}

pub(super) fn answer(diagnosis: &LogDiagnosis) -> Answer {
    let explained = diagnosis.explained();
    let mut answer = Answer::new();
    answer.headline(Tone::Bad, headline(explained));
    let device = explained.message.device.map_or_else(String::new, |device| format!(" from device {device}"));
    let cut = if is_cut(explained) { ", which is cut" } else { "" };
    let logged = diagnosis.logged();
    let of = match explained.message.source {
        Source::PyTorch => String::new(),
        source => format!(" from {}", source.name()),
    };
    let rank = logged.rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
    if diagnosis.log.messages.len() > 1 {
        answer.paragraph(heading(diagnosis));
        answer.toned(Tone::Dim, format!("explained: line {}{device}{rank}{cut}", logged.line));
    } else {
        answer.toned(Tone::Dim, format!("an out-of-memory message{of}{device}{rank}{cut}"));
    }
    let mut steps = parts::steps();
    for (place, (applies, finding)) in explained_steps(explained).into_iter().enumerate() {
        // How to record one needs longer lines than a column has.
        let is_about_snapshot = finding.starts_with(SNAPSHOT_SHOWS);
        let finding = if is_about_snapshot { format!("{SNAPSHOT_SHOWS} (to record one, see below)") } else { finding };
        parts::add_step(&mut steps, place, applies, finding);
    }
    if !steps.is_empty() {
        answer.gap();
        answer.table(steps);
        record(&mut answer);
    }
    if diagnosis.log.messages.len() > 1 {
        messages(&mut answer, diagnosis);
    }
    let notes: Vec<String> = diagnosis.notes().into_iter().chain(diagnosis.log.others.iter().map(other)).collect();
    if !notes.is_empty() {
        answer.gap();
        answer.title("how certain this is");
    }
    notes.into_iter().for_each(|note| answer.indented(2, note));
    if let Some((line, why)) = remedy(explained) {
        answer.gap();
        answer.paragraph(format!("To try: {why}."));
        answer.code(Tone::Good, line);
    }
    answer
}

/// Adds how to record a snapshot.
fn record(answer: &mut Answer) {
    answer.gap();
    answer.title("to record a snapshot of the next run");
    answer.indented(2, format!("either start the program with {RUN}"));
    answer.indented(2, format!("or call {HISTORY} when it starts"));
    answer.indented(2, format!("and {DUMP} in a finally: when it ends"));
    answer.indented(2, "then run parkade diagnose snapshot.pickle and parkade advise snapshot.pickle");
}

/// The number of rows shown; JSON has all of them.
const SHOWN: usize = 40;

/// The messages of a log with more than one.
fn messages(answer: &mut Answer, diagnosis: &LogDiagnosis) {
    let messages = &diagnosis.log.messages;
    answer.gap();
    let mut table = Table::new(["rank", "device", "line", "times", "tried", "allocated", "reserved", "free", "verdict"]);
    for (place, (logged, explained)) in messages.iter().zip(&diagnosis.diagnoses).enumerate().take(SHOWN) {
        let or_dash = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let size = |size: Option<Size>| size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let figures = &explained.message;
        let cut = if is_cut(explained) { " (cut)" } else { "" };
        let cells = [
            or_dash(logged.rank),
            or_dash(figures.device),
            logged.line.to_string(),
            logged.times.to_string(),
            size(figures.tried),
            size(figures.allocated),
            size(figures.reserved),
            size(figures.free),
            format!("{}{cut}", words(explained.verdict)),
        ];
        table.marked(cells, 0, if place == diagnosis.explained { Mark::Bad } else { Mark::Plain });
    }
    answer.table(table.with_left([8]));
    if let Some(more @ 1..) = messages.len().checked_sub(SHOWN) {
        answer.paragraph(format!("and {} more; --json lists all", count(more, "message")));
    }
}

/// The number of messages, and which rank failed first.
fn heading(diagnosis: &LogDiagnosis) -> String {
    let messages = &diagnosis.log.messages;
    let mut ranks: Vec<u32> = messages.iter().filter_map(|message| message.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let from = if ranks.is_empty() { String::new() } else { format!(" from {}", count(ranks.len(), "rank")) };
    let first = match &diagnosis.log.first {
        Some(first) => told(diagnosis, first),
        None => "which came first is unknown, because their lines have no times to show it; the first in the log is explained"
            .to_owned(),
    };
    let found = count(messages.len(), "different out-of-memory message");
    match diagnosis.log.left_out {
        0 => format!("{found}{from}; {first}"),
        more => format!("the first {found}{from}, and {more} more after them that are only counted; {first}"),
    }
}

fn told(diagnosis: &LogDiagnosis, first: &FirstFailure) -> String {
    let rank = first.rank.map_or_else(
        || format!("that of line {}", diagnosis.log.messages[diagnosis.explained].line),
        |rank| format!("rank {rank}"),
    );
    let by = match first.told_by {
        ToldBy::Times => "judging by the times of the lines",
        ToldBy::Launcher => "as torchrun observed",
    };
    let without = match (first.message, diagnosis.log.left_out) {
        (Some(_), _) => "",
        (None, 0) => ", but the text contains no message from it",
        (None, _) => ", but none of its messages is among the first",
    };
    format!("{rank} failed first, at {}, {by}{without}", output::one_line(&first.time))
}

/// The verdict in words.
fn words(verdict: MessageVerdict) -> String {
    verdict.name().replace('_', " ")
}

view! {
    pub(super) struct Object(diagnosis: &LogDiagnosis) {
        /// The device.
        device: Option<u32> = diagnosis.explained().message.device,
        /// The rank that wrote the message, if a prefix of its line shows it (`[rank3]:`, `3: `, `rank=3`).
        rank: Option<u32> = diagnosis.logged().rank,
        /// The line of the log on which the message begins, from 1.
        line: usize = diagnosis.logged().line,
        /// Whether no part of the message is missing.
        complete: bool = !is_cut(diagnosis.explained()),
        /// What a cut message lacks.
        missing: Vec<&'static str> = diagnosis.explained().message.missing(),
        /// The cause.
        verdict: Word<MessageVerdict> = Word::of(&diagnosis.explained().verdict),
        /// The cause in a sentence.
        headline: String = headline(diagnosis.explained()),
        /// Who wrote the message.
        source: &'static str = diagnosis.explained().message.source.name(),
        /// One line to try.
        to_try: Option<&'static str> = remedy(diagnosis.explained()).map(|(line, _)| line),
        /// The five steps; empty if the message is not that of PyTorch's GPU allocator.
        steps: Vec<Step> = all(explained_steps(diagnosis.explained()).into_iter().enumerate(), |(place, (answer, finding))| {
            Step::of(place, answer, finding)
        }),
        /// The segment that was tried.
        tried: Option<Figure> = figure(diagnosis.explained().message.tried),
        /// The smallest block for which that much is tried.
        block_bytes_least: Option<u64> = diagnosis.explained().block_bytes.map(|(least, _)| least),
        /// The largest such block.
        block_bytes_most: Option<u64> = diagnosis.explained().block_bytes.map(|(_, most)| most),
        /// The device's memory.
        total: Option<Figure> = figure(diagnosis.explained().message.total),
        /// Free on the device.
        free: Option<Figure> = figure(diagnosis.explained().message.free),
        /// The process's limit, if the message has it.
        limit: Option<Figure> = figure(diagnosis.explained().message.limit),
        /// Allocated by PyTorch.
        allocated: Option<Figure> = figure(diagnosis.explained().message.allocated),
        /// Reserved by PyTorch.
        reserved: Option<Figure> = figure(diagnosis.explained().message.reserved),
        /// Reserved but not allocated.
        unallocated: Option<Figure> = figure(diagnosis.explained().message.unallocated),
        /// In private pools, if the message has it.
        private_pools: Option<Figure> = figure(diagnosis.explained().message.private_pools),
        /// Allocated, without what private pools have cached.
        live: Option<Figure> = figure(diagnosis.explained().live),
        /// Reserved minus live.
        empty: Option<Figure> = figure(diagnosis.explained().empty),
        /// Live and tried together.
        needed: Option<Figure> = figure(diagnosis.explained().needed),
        /// The most memory that the process could have had.
        available: Option<Figure> = figure(diagnosis.explained().available),
        /// Neither reserved here nor free.
        held_by_others: Option<Figure> = figure(diagnosis.explained().held_by_others),
        /// Whether `unallocated` would hold `tried`: `yes`, `no`, `last_digit` (rounding decides).
        unallocated_suffices: Option<Word<Certainty>> = diagnosis.explained().unallocated_suffices.as_ref().map(Word::of),
        /// Whether `available` would hold `needed`.
        available_suffices: Option<Word<Certainty>> = diagnosis.explained().available_suffices.as_ref().map(Word::of),
        /// Whether `free` would hold `tried`.
        device_had_room: Option<Word<Certainty>> = diagnosis.explained().device_had_room.as_ref().map(Word::of),
        /// How sure this is.
        notes: Vec<String> = diagnosis.notes(),
        /// The rank that failed first; null if that is unknown.
        first_failure: Option<First> = diagnosis.log.first.as_ref().map(First::of),
        /// Each different message of each rank, in the order of the log; of more than 16,384, the first, and `notes` counts the
        /// others.
        messages: Vec<Message> = all(
            diagnosis.log.messages.iter().zip(&diagnosis.diagnoses).enumerate(),
            |(place, (logged, explained))| Message::of(logged, explained, place == diagnosis.explained),
        ),
        /// The out-of-memory messages of other frameworks, beside those of PyTorch; the first of each rank.
        other_frameworks: Vec<Other> = all(&diagnosis.log.others, Other::of),
    }
}

view! {
    struct Message(logged: &LoggedMessage, explained: &MessageDiagnosis, is_explained: bool) {
        /// The rank that wrote it, if a prefix of its line shows it.
        rank: Option<u32> = logged.rank,
        /// The device.
        device: Option<u32> = explained.message.device,
        /// The line on which it first begins.
        line: usize = logged.line,
        /// How often it occurs in the log.
        times: usize = logged.times,
        /// The time of its line.
        time: Option<String> = logged.time.as_ref().map(|time| time.text.clone()),
        /// Whether it is the one that is explained.
        explained: bool = is_explained,
        /// Who wrote it.
        source: &'static str = explained.message.source.name(),
        /// Whether no part of it is missing.
        complete: bool = !is_cut(explained),
        /// What a cut message lacks.
        missing: Vec<&'static str> = explained.message.missing(),
        /// The cause.
        verdict: Word<MessageVerdict> = Word::of(&explained.verdict),
        /// The segment that was tried.
        tried_bytes: Option<u64> = bytes(explained.message.tried),
        /// The device's memory.
        total_bytes: Option<u64> = bytes(explained.message.total),
        /// Free on the device.
        free_bytes: Option<u64> = bytes(explained.message.free),
        /// Allocated by PyTorch.
        allocated_bytes: Option<u64> = bytes(explained.message.allocated),
        /// Reserved by PyTorch.
        reserved_bytes: Option<u64> = bytes(explained.message.reserved),
    }
}

view! {
    struct Other(other: &OtherMessage) {
        /// The rank that wrote it, if a prefix shows it.
        rank: Option<u32> = other.rank,
        /// The line of the log on which it begins, from 1.
        line: usize = other.line,
        /// Who wrote it.
        framework: &'static str = other.message.source.name(),
        /// The amount requested, if the message states it.
        wanted_bytes: Option<u64> = bytes(other.message.tried),
    }
}

view! {
    struct First(first: &FirstFailure) {
        /// The rank's number.
        rank: Option<u32> = first.rank,
        /// When it failed, as the log prints it.
        time: String = first.time.clone(),
        /// Whether `messages` contains one from that rank.
        has_message: bool = first.message.is_some(),
        /// The evidence that it was first: `times` (of the lines) or `launcher` (torchrun's summary).
        told_by: Word<ToldBy> = Word::of(&first.told_by),
    }
}

view! {
    struct Figure(size: Size) {
        /// The figure.
        bytes: u64 = size.bytes,
        /// How far off it may be.
        within_bytes: u64 = size.within,
    }
}

fn figure(size: Option<Size>) -> Option<Figure> {
    size.map(Figure::of)
}

fn bytes(size: Option<Size>) -> Option<u64> {
    size.map(|size| size.bytes)
}
