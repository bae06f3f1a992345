//! The messages of a log as one JSON object: the explained one, and all of them in an array.

use parkade_analysis::diagnose::{Certainty, MessageDiagnosis};
use parkade_recording::message::{FirstFailure, LoggedMessage, OtherMessage, Size, ToldBy};

use super::super::layout::Step;
use super::ranks::Figures;
use super::{Explained, LogDiagnosis};
use crate::terminal::json_struct::{all, view};

view! {
    pub(in super::super) struct Object(diagnosis: &LogDiagnosis) {
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
