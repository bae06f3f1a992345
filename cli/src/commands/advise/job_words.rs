//! Sentences about one setting for all ranks.

use parkade_analysis::advise::{Outcome as Fit, paste_line};

use super::job::{Job, Rank};
use super::words::{KEEP, also, shown};
use crate::terminal::output::list;
use crate::terminal::size::show_bytes;

/// How many ranks are named.
const NAMED: usize = 8;

/// What to do on all ranks, for a page: the line to paste, if there is one, and what is said of it.
pub(crate) fn what_to_do(job: &Job) -> (Option<String>, Vec<String>) {
    let is_new = job.advice.serves_all && !job.advice.is_own;
    let keep = job.advice.serves_all && job.advice.is_own;
    let lines = warnings(job).into_iter().map(|warning| format!("warning: {warning}")).chain(sentences(job));
    let lines = lines.chain(keep.then(|| KEEP.to_owned())).collect();
    (is_new.then(|| paste_line(&job.advice.settings)), lines)
}

/// What the setting breaks on some rank, each thing once.
pub(super) fn warnings(job: &Job) -> Vec<String> {
    let of = |rank: &Rank| rank.advice.with(&job.advice.settings).map_or_else(Vec::new, |tried| tried.warnings.clone());
    let mut said: Vec<String> = Vec::new();
    for caution in job.ranks.iter().flat_map(of) {
        let warning = format!("{} {} [{}]", caution.what, caution.instead, caution.source);
        if !said.contains(&warning) {
            said.push(warning);
        }
    }
    said
}

/// What came of it; the conclusion last.
pub(super) fn sentences(job: &Job) -> Vec<String> {
    let mut sentences = Vec::new();
    if job.are_of_several_programs {
        sentences.push(
            "these are recordings of different programs: one setting for all of them matters only if they run under one \
             PYTORCH_CUDA_ALLOC_CONF"
                .to_owned(),
        );
    }
    if let Some(assumed) = job.advice.assumed_bytes {
        sentences.push(format!(
            "some ranks do not show how much memory they had; the least that another one shows, {}, is assumed for them, or what they \
             reserved if that is more (--limit sets it)",
            show_bytes(assumed)
        ));
    }
    let needs_limit = job.ranks.iter().any(|rank| rank.advice.with(&job.advice.settings).is_some_and(|tried| tried.needs_limit));
    if job.advice.serves_all {
        sentences.extend(also(needs_limit).map(str::to_owned));
        sentences.push(serves_all(job));
    } else {
        sentences.extend(each_alone(job).filter(|_| job.fit() == Fit::DoesNotFit));
        sentences.push(serves_some(job));
    }
    sentences
}

fn serves_all(job: &Job) -> String {
    let advice = &job.advice;
    let (setting, tightest) = (shown(&advice.settings), &job.ranks[advice.tightest]);
    let standing = &advice.ranks[advice.tightest];
    let (number, all) = (job.ranks.len(), read(job));
    let does = match job.fit() {
        Fit::Fits => format!("every one of the {all} fits"),
        Fit::GetsPast => {
            let past = job.advice.ranks.iter().filter(|standing| standing.outcome == Fit::GetsPast).count();
            let names = named(job, |fit| fit == Fit::GetsPast);
            let others = if past == number { "" } else { "; the others fit" };
            match past {
                1 => format!("{names} gets past its failure, after which its file has no more{others}"),
                _ => format!("{names} get past their failures, after which their files have no more{others}"),
            }
        }
        Fit::Unknown if standing.available_bytes.is_some() => {
            let names = named(job, |fit| fit == Fit::Unknown);
            format!(
                "not known whether every one of the {all} fits; each recorded request is served in the memory that is assumed, but of \
                 {names} it may have been less, or the file lost the part that needed most"
            )
        }
        Fit::Unknown | Fit::DoesNotFit => format!("every recorded request of the {all} is served"),
    };
    let room = match (standing.available_bytes, standing.margin_bytes()) {
        (Some(available), Some(..0)) => format!(
            "for what is estimated of its rest, rank {} would need {}, more than the {} there is",
            tightest.number,
            show_bytes(standing.needs_bytes),
            show_bytes(available)
        ),
        (Some(available), Some(margin)) => format!(
            "rank {} is the tightest: it needs {} of {}, which leaves {}",
            tightest.number,
            show_bytes(standing.needs_bytes),
            show_bytes(available),
            show_bytes(margin.unsigned_abs())
        ),
        _ => format!("rank {} needs most, {}", tightest.number, show_bytes(standing.needs_bytes)),
    };
    format!("one setting for all ranks, {setting}: {does}; {room}")
}

/// Where each rank alone could be served: that a launcher can do so.
fn each_alone(job: &Job) -> Option<String> {
    job.advice.hopeless.is_empty().then(|| {
        "each rank is served by some setting, but they need different ones: a launcher can set PYTORCH_CUDA_ALLOC_CONF for each process"
            .to_owned()
    })
}

/// That no setting serves every rank, which ranks nothing serves, and the memory that would do.
fn serves_some(job: &Job) -> String {
    let advice = &job.advice;
    let left = named(job, |fit| fit == Fit::DoesNotFit);
    let (bytes, settings) = (show_bytes(advice.enough.0), shown(&advice.enough.1));
    let is_estimated = job.ranks.iter().any(|rank| rank.advice.is_estimated);
    let enough = if is_estimated {
        format!("by the estimate, at least {bytes} for each gets past the failures with {settings}")
    } else {
        format!("{bytes} for each is enough with {settings}")
    };
    let number = job.ranks.len();
    let all = match (job.unread, number) {
        (0, 2) => "both ranks".to_owned(),
        (0, _) => format!("all {}", read(job)),
        _ => format!("all of the {}", read(job)),
    };
    let failing = advice.ranks.iter().filter(|standing| standing.outcome == Fit::DoesNotFit).count();
    let short = match failing {
        1 => format!("; with {}, which serves the most, {left} fails", shown(&advice.settings)),
        _ if failing < number => format!("; with {}, which serves the most, {left} fail", shown(&advice.settings)),
        _ => String::new(),
    };
    if left.is_empty() {
        let names = named(job, |fit| fit == Fit::Unknown);
        return format!("not known whether one setting serves {all}: it depends on how much memory {names} had; {enough}");
    }
    let hopeless: Vec<u64> = advice.hopeless.iter().map(|&rank| job.ranks[rank].number).collect();
    let because =
        if hopeless.is_empty() { String::new() } else { format!(", as none that was tried serves {}", ranks(&hopeless)) };
    format!("no setting serves {all}{because}{short}; {enough}")
}

/// The ranks that are spoken of: all, or those that could be read.
fn read(job: &Job) -> String {
    let read = job.ranks.len();
    match job.unread {
        0 => format!("{read} ranks"),
        unread => format!("{read} of {} ranks that could be read", read + unread),
    }
}

/// The ranks with such an outcome.
fn named(job: &Job, is_such: impl Fn(Fit) -> bool) -> String {
    let such = job.ranks.iter().zip(&job.advice.ranks).filter(|(_, standing)| is_such(standing.outcome));
    ranks(&such.map(|(rank, _)| rank.number).collect::<Vec<_>>())
}

/// Ranks by their numbers.
pub(super) fn ranks(numbers: &[u64]) -> String {
    let more = numbers.len().saturating_sub(NAMED);
    match numbers {
        [] => String::new(),
        [one] => format!("rank {one}"),
        _ if more == 0 => format!("ranks {}", list(numbers)),
        _ => format!("ranks {} and {more} more", list(&numbers[..NAMED])),
    }
}
