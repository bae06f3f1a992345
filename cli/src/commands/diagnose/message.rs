//! Diagnosis from messages alone: one message or a log with those of several ranks, complete or cut.
//!
//! A complete message says the same five steps, as far as its rounded figures go. Of one that is cut, the figures that are there decide what
//! they can, and it is said what is missing. The messages of a log are a table, one row for each different message of each rank, and in JSON
//! an array beside the explained one.

use std::io::{self, Write};

use anyhow::{Result, bail};
use parkade_analysis::diagnose::{
    Applies, Certainty, MessageDiagnosis, MessageVerdict, PartialDiagnosis, diagnose_message, diagnose_partial,
};
use parkade_recording::message::{
    FirstFailure, ForeignMessage, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ReadMessage, Size, ToldBy,
};

use super::layout::{POOLS_DO_NOT_SHARE, Step, hanging, step, width, wrapped};
use crate::terminal::json_struct::{all, view};
use crate::terminal::output::{self, count};
use crate::terminal::runner::Outcome;
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};

/// The messages of a log, each diagnosed.
pub(crate) struct LogDiagnosis {
    log: MessageLog,
    /// One for each message of the log.
    diagnoses: Vec<Explained>,
    /// The place of the message that is explained.
    explained: usize,
}

/// The diagnosis of a message.
enum Explained {
    Whole(MessageDiagnosis),
    Partial(PartialDiagnosis),
}

pub(super) fn diagnose(log: MessageLog) -> Result<LogDiagnosis> {
    let Some(explained) = log.explained() else {
        match log.foreign {
            Some(foreign) => {
                let wanted = wanted(foreign);
                bail!(
                    "an out-of-memory message of {}{wanted}. Only messages of PyTorch's GPU allocator (`out of memory. Tried to \
                     allocate`) are explained",
                    foreign.framework.name()
                )
            }
            None => return Err(log.error.into()),
        }
    };
    let diagnosed = |logged: &LoggedMessage| match logged.message.clone() {
        ReadMessage::Complete(message) => Explained::Whole(diagnose_message(message)),
        ReadMessage::Partial(message) => Explained::Partial(diagnose_partial(message)),
    };
    let diagnoses = log.messages.iter().map(diagnosed).collect();
    Ok(LogDiagnosis { log, diagnoses, explained })
}

/// How much a message of another framework wanted.
fn wanted(foreign: ForeignMessage) -> String {
    foreign.wanted_bytes.map_or_else(String::new, |bytes| format!("; {} was wanted", show_bytes(bytes)))
}

/// A message of another framework beside those of PyTorch.
fn other(other: &OtherMessage) -> String {
    let rank = other.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    let (line, name, wanted) = (other.line, other.message.framework.name(), wanted(other.message));
    format!("{rank}line {line}: an out-of-memory message of {name}, which is not explained{wanted}")
}

impl LogDiagnosis {
    fn explained(&self) -> &Explained {
        &self.diagnoses[self.explained]
    }

    fn logged(&self) -> &LoggedMessage {
        &self.log.messages[self.explained]
    }

    /// How sure the explanation is, and what the log has beside its messages.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.explained().notes();
        if self.log.left_out > 0 {
            notes.push(format!(
                "the log has {} behind the first {MOST_MESSAGES} different ones; they are counted, but not listed or compared",
                count(self.log.left_out, "more message")
            ));
        }
        notes
    }

    /// Not known if the message that is explained lacks what would decide.
    pub(super) fn outcome(&self) -> Outcome {
        let is_open = !self.explained().is_complete() && self.explained().verdict() == MessageVerdict::Undecided;
        if is_open { Outcome::NotKnown } else { Outcome::Good }
    }
}

impl Explained {
    fn is_complete(&self) -> bool {
        matches!(self, Explained::Whole(_))
    }

    fn missing(&self) -> Vec<&'static str> {
        match self {
            Explained::Whole(_) => Vec::new(),
            Explained::Partial(diagnosis) => diagnosis.message.missing(),
        }
    }

    fn verdict(&self) -> MessageVerdict {
        match self {
            Explained::Whole(diagnosis) => diagnosis.verdict,
            Explained::Partial(diagnosis) => diagnosis.verdict,
        }
    }

    fn headline(&self) -> String {
        match self {
            Explained::Whole(diagnosis) => whole_headline(diagnosis),
            Explained::Partial(diagnosis) => partial_headline(diagnosis),
        }
    }

    fn steps(&self) -> [(Applies, String); 5] {
        match self {
            Explained::Whole(diagnosis) => whole_steps(diagnosis),
            Explained::Partial(diagnosis) => partial_steps(diagnosis),
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Explained::Whole(diagnosis) => whole_notes(diagnosis),
            Explained::Partial(diagnosis) => partial_notes(diagnosis),
        }
    }
}

pub(super) fn print(out: &mut dyn Write, diagnosis: &LogDiagnosis) -> io::Result<()> {
    let explained = diagnosis.explained();
    let device = Figures::of(explained).device.map_or_else(String::new, |device| format!(" from device {device}"));
    let cut = if explained.is_complete() { "" } else { ", which is cut" };
    if diagnosis.log.messages.len() > 1 {
        print_messages(out, diagnosis)?;
    } else {
        let rank = diagnosis.logged().rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
        writeln!(out, "an out-of-memory message{device}{rank}{cut}\n")?;
    }
    writeln!(out, "{}\n", output::bad(&wrapped(&explained.headline(), width()).join("\n")))?;
    for (place, (answer, finding)) in explained.steps().iter().enumerate() {
        let word = format!("{:<7}", answer.name());
        let word = if *answer == Applies::Yes { output::bad(&word) } else { word };
        step(out, place, &word, finding)?;
    }
    writeln!(out, "\n{}", output::dim("how certain this is"))?;
    for note in diagnosis.notes().into_iter().chain(diagnosis.log.others.iter().map(other)) {
        hanging(out, "  ", 2, &note)?;
    }
    Ok(())
}

/// What only a recording says.
const SNAPSHOT: &str = "a message does not say where the free memory is, who holds the rest, or since when: record a run with \
                                   torch.cuda.memory._record_memory_history(), then run parkade diagnose FILE";

/// Whether it is capacity, and whether it is fragmentation.
fn capacity_or_fragmentation(verdict: MessageVerdict, unallocated_suffices: Option<Certainty>) -> (Applies, Applies) {
    match verdict {
        MessageVerdict::Fragmentation | MessageVerdict::PrivatePools => (Applies::No, Applies::Yes),
        // Whatever the limit was, the reserved but unallocated bytes were enough.
        MessageVerdict::DeviceHadRoom if unallocated_suffices == Some(Certainty::Yes) => (Applies::No, Applies::Yes),
        MessageVerdict::Capacity => (Applies::Yes, Applies::No),
        MessageVerdict::DeviceHadRoom | MessageVerdict::Undecided => (Applies::Unknown, Applies::Unknown),
    }
}

/// The answers and findings of the five steps.
fn whole_steps(diagnosis: &MessageDiagnosis) -> [(Applies, String); 5] {
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
        (is_capacity, whole_capacity(diagnosis)),
        (is_fragmentation, whole_fragmentation(diagnosis)),
        (is_settings, settings.to_owned()),
        (Applies::No, empty_cache.to_owned()),
        (Applies::Yes, SNAPSHOT.to_owned()),
    ]
}

fn whole_capacity(diagnosis: &MessageDiagnosis) -> String {
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

fn whole_fragmentation(diagnosis: &MessageDiagnosis) -> String {
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

fn whole_headline(diagnosis: &MessageDiagnosis) -> String {
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

fn whole_notes(diagnosis: &MessageDiagnosis) -> Vec<String> {
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

/// Parts in a sentence: `a`, `a and b`, `a, b and c`.
fn enumerated(parts: &[&str]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

/// The verdict in a sentence.
fn partial_headline(diagnosis: &PartialDiagnosis) -> String {
    let message = &diagnosis.message;
    let tried = message.tried.map_or_else(|| "what was tried".to_owned(), |tried| format!("the {tried} tried"));
    match (diagnosis.verdict, message.tried) {
        (MessageVerdict::Capacity, _) => format!("capacity: {}", partial_capacity(diagnosis)),
        (MessageVerdict::Fragmentation | MessageVerdict::PrivatePools, _) => {
            format!("{}: {}", name(diagnosis.verdict), partial_fragmentation(diagnosis))
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
fn partial_steps(diagnosis: &PartialDiagnosis) -> [(Applies, String); 5] {
    let message = &diagnosis.message;
    let suffices = message.unallocated.zip(message.tried).map(|(left, right)| Certainty::at_least(left, right));
    let (is_capacity, is_fragmentation) = capacity_or_fragmentation(diagnosis.verdict, suffices);
    let settings = match diagnosis.verdict {
        MessageVerdict::Capacity => "no setting reduces live memory",
        _ => "only a snapshot shows which one: parkade advise FILE",
    };
    let is_settings = if diagnosis.verdict == MessageVerdict::PrivatePools { Applies::Unknown } else { is_fragmentation };
    [
        (is_capacity, partial_capacity(diagnosis)),
        (is_fragmentation, partial_fragmentation(diagnosis)),
        (is_settings, settings.to_owned()),
        (Applies::No, "the allocator released every wholly free segment before it failed".to_owned()),
        (Applies::Yes, SNAPSHOT.to_owned()),
    ]
}

fn partial_capacity(diagnosis: &PartialDiagnosis) -> String {
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

fn partial_fragmentation(diagnosis: &PartialDiagnosis) -> String {
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
fn partial_notes(diagnosis: &PartialDiagnosis) -> Vec<String> {
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

/// So many rows are shown; JSON has all.
const SHOWN: usize = 40;

/// The messages of a log with more than one, before the first is explained.
fn print_messages(out: &mut dyn Write, diagnosis: &LogDiagnosis) -> io::Result<()> {
    let messages = &diagnosis.log.messages;
    hanging(out, "", 0, &heading(diagnosis))?;
    writeln!(out)?;
    let mut table = Table::new(["rank", "device", "line", "times", "tried", "allocated", "reserved", "free", "verdict"]);
    for (place, (logged, explained)) in messages.iter().zip(&diagnosis.diagnoses).enumerate().take(SHOWN) {
        let or_dash = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let size = |size: Option<Size>| size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let figures = Figures::of(explained);
        let cut = if matches!(explained, Explained::Partial(_)) { " (cut)" } else { "" };
        let cells = [
            or_dash(logged.rank),
            or_dash(figures.device),
            logged.line.to_string(),
            logged.times.to_string(),
            size(figures.tried),
            size(figures.allocated),
            size(figures.reserved),
            size(figures.free),
            format!("{}{cut}", words(explained.verdict())),
        ];
        table.marked(cells, 0, if place == diagnosis.explained { Mark::Bad } else { Mark::Plain });
    }
    write!(out, "{}", table.text_with_left(&[8]))?;
    if let Some(more @ 1..) = messages.len().checked_sub(SHOWN) {
        writeln!(out, "and {} more; --json lists all", count(more, "message"))?;
    }
    let logged = &messages[diagnosis.explained];
    let rank = logged.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    writeln!(out, "\nexplained: {rank}line {}\n", logged.line)
}

/// How many there are and who failed first.
fn heading(diagnosis: &LogDiagnosis) -> String {
    let messages = &diagnosis.log.messages;
    let mut ranks: Vec<u32> = messages.iter().filter_map(|message| message.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let of = if ranks.is_empty() { String::new() } else { format!(" of {}", count(ranks.len(), "rank")) };
    let first = match &diagnosis.log.first {
        Some(first) => told(diagnosis, first),
        None => "which came first is not known, because their lines have no times that tell; the first in the log is explained"
            .to_owned(),
    };
    let found = count(messages.len(), "different out-of-memory message");
    match diagnosis.log.left_out {
        0 => format!("{found}{of}; {first}"),
        more => format!("the first {found}{of}, and {more} more behind them that are only counted; {first}"),
    }
}

fn told(diagnosis: &LogDiagnosis, first: &FirstFailure) -> String {
    let rank = first.rank.map_or_else(
        || format!("that of line {}", diagnosis.log.messages[diagnosis.explained].line),
        |rank| format!("rank {rank}"),
    );
    let by = match first.told_by {
        ToldBy::Times => "by the times of the lines",
        ToldBy::Launcher => "as torchrun observed",
    };
    let without = match (first.message, diagnosis.log.left_out) {
        (Some(_), _) => "",
        (None, 0) => ", but no message of it is in the text",
        (None, _) => ", but no message of it is among the first",
    };
    format!("{rank} failed first, at {}, {by}{without}", output::one_line(&first.time))
}

/// The verdict in words.
fn words(verdict: MessageVerdict) -> &'static str {
    match verdict {
        MessageVerdict::Capacity => "capacity",
        MessageVerdict::Fragmentation => "fragmentation",
        MessageVerdict::PrivatePools => "private pools",
        MessageVerdict::DeviceHadRoom => "the device had room",
        MessageVerdict::Undecided => "undecided",
    }
}

/// The figures that a message has.
struct Figures {
    device: Option<u32>,
    tried: Option<Size>,
    total: Option<Size>,
    free: Option<Size>,
    limit: Option<Size>,
    allocated: Option<Size>,
    reserved: Option<Size>,
    unallocated: Option<Size>,
    private_pools: Option<Size>,
}

impl Figures {
    fn of(explained: &Explained) -> Figures {
        match explained {
            Explained::Whole(diagnosis) => {
                let message = &diagnosis.message;
                Figures {
                    device: Some(message.device),
                    tried: Some(message.tried),
                    total: Some(message.total),
                    free: Some(message.free),
                    limit: message.limit,
                    allocated: Some(message.allocated),
                    reserved: Some(message.reserved),
                    unallocated: Some(message.unallocated),
                    private_pools: message.private_pools,
                }
            }
            Explained::Partial(diagnosis) => {
                let message = &diagnosis.message;
                Figures {
                    device: message.device,
                    tried: message.tried,
                    total: message.total,
                    free: message.free,
                    limit: message.limit,
                    allocated: message.allocated,
                    reserved: message.reserved,
                    unallocated: message.unallocated,
                    private_pools: message.private_pools,
                }
            }
        }
    }
}

view! {
    pub(super) struct Object(diagnosis: &LogDiagnosis) {
        device: Option<u32> = Figures::of(diagnosis.explained()).device,
        rank: Option<u32> = diagnosis.logged().rank,
        line: usize = diagnosis.logged().line,
        complete: bool = diagnosis.explained().is_complete(),
        missing: Vec<&'static str> = diagnosis.explained().missing(),
        verdict: &'static str = diagnosis.explained().verdict().name(),
        headline: String = diagnosis.explained().headline(),
        steps: Vec<Step> = all(diagnosis.explained().steps().into_iter().enumerate(), |(place, (answer, finding))| {
            Step::of(place, answer.name(), finding)
        }),
        tried: Option<Figure> = figure(Figures::of(diagnosis.explained()).tried),
        block_bytes_least: Option<u64> = whole(diagnosis).map(|whole| whole.block_bytes.0),
        block_bytes_most: Option<u64> = whole(diagnosis).map(|whole| whole.block_bytes.1),
        total: Option<Figure> = figure(Figures::of(diagnosis.explained()).total),
        free: Option<Figure> = figure(Figures::of(diagnosis.explained()).free),
        limit: Option<Figure> = figure(Figures::of(diagnosis.explained()).limit),
        allocated: Option<Figure> = figure(Figures::of(diagnosis.explained()).allocated),
        reserved: Option<Figure> = figure(Figures::of(diagnosis.explained()).reserved),
        unallocated: Option<Figure> = figure(Figures::of(diagnosis.explained()).unallocated),
        private_pools: Option<Figure> = figure(Figures::of(diagnosis.explained()).private_pools),
        live: Option<Figure> = figure(match diagnosis.explained() {
            Explained::Whole(whole) => Some(whole.live),
            Explained::Partial(partial) => partial.live,
        }),
        empty: Option<Figure> = figure(whole(diagnosis).map(|whole| whole.empty)),
        needed: Option<Figure> = figure(whole(diagnosis).map(|whole| whole.needed)),
        available: Option<Figure> = figure(whole(diagnosis).map(|whole| whole.available)),
        held_by_others: Option<Figure> = figure(whole(diagnosis).map(|whole| whole.held_by_others)),
        unallocated_suffices: Option<&'static str> = certainty(diagnosis, |whole| whole.unallocated_suffices),
        available_suffices: Option<&'static str> = certainty(diagnosis, |whole| whole.available_suffices),
        device_had_room: Option<&'static str> = certainty(diagnosis, |whole| whole.device_had_room),
        notes: Vec<String> = diagnosis.notes(),
        first_failure: Option<First> = diagnosis.log.first.as_ref().map(First::of),
        messages: Vec<Message> = all(
            diagnosis.log.messages.iter().zip(&diagnosis.diagnoses).enumerate(),
            |(place, (logged, explained))| Message::of(logged, explained, place == diagnosis.explained),
        ),
        other_frameworks: Vec<Other> = all(&diagnosis.log.others, Other::of),
    }
}

view! {
    struct Message(logged: &LoggedMessage, explained: &Explained, is_explained: bool) {
        rank: Option<u32> = logged.rank,
        device: Option<u32> = Figures::of(explained).device,
        line: usize = logged.line,
        times: usize = logged.times,
        time: Option<String> = logged.time.as_ref().map(|time| time.text.clone()),
        explained: bool = is_explained,
        complete: bool = explained.is_complete(),
        missing: Vec<&'static str> = explained.missing(),
        verdict: &'static str = explained.verdict().name(),
        tried_bytes: Option<u64> = bytes(Figures::of(explained).tried),
        total_bytes: Option<u64> = bytes(Figures::of(explained).total),
        free_bytes: Option<u64> = bytes(Figures::of(explained).free),
        allocated_bytes: Option<u64> = bytes(Figures::of(explained).allocated),
        reserved_bytes: Option<u64> = bytes(Figures::of(explained).reserved),
    }
}

view! {
    struct Other(other: &OtherMessage) {
        rank: Option<u32> = other.rank,
        line: usize = other.line,
        framework: &'static str = other.message.framework.name(),
        wanted_bytes: Option<u64> = other.message.wanted_bytes,
    }
}

view! {
    struct First(first: &FirstFailure) {
        rank: Option<u32> = first.rank,
        time: String = first.time.clone(),
        has_message: bool = first.message.is_some(),
        told_by: &'static str = match first.told_by {
            ToldBy::Times => "times",
            ToldBy::Launcher => "launcher",
        },
    }
}

view! {
    struct Figure(size: Size) {
        bytes: u64 = size.bytes,
        within_bytes: u64 = size.within,
    }
}

fn figure(size: Option<Size>) -> Option<Figure> {
    size.map(Figure::of)
}

fn bytes(size: Option<Size>) -> Option<u64> {
    size.map(|size| size.bytes)
}

/// The diagnosis of a complete message.
fn whole(diagnosis: &LogDiagnosis) -> Option<&MessageDiagnosis> {
    match diagnosis.explained() {
        Explained::Whole(whole) => Some(whole),
        Explained::Partial(_) => None,
    }
}

fn certainty(diagnosis: &LogDiagnosis, of: fn(&MessageDiagnosis) -> Certainty) -> Option<&'static str> {
    whole(diagnosis).map(|whole| of(whole).name())
}
