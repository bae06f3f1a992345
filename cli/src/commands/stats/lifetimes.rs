//! `parkade stats --lifetimes`: how long the buffers of a program live, by size and phase.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::Result;
use parkade_research::workload::lifetimes::{Lifetime, Lifetimes, Lives, OfSize, StepsFrom};

use super::recorded::Args;
use crate::commands::simulated::packing::spread;
use crate::commands::simulated::program::{Asked, Kind, Program, Programs};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::markup::grouped;
use crate::terminal::output::{self, Tone};
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;

/// The classes that are shown without `--all`.
const SHOWN: usize = 16;

/// The exact sizes that are shown without `--all`.
const SIZES_SHOWN: usize = 8;

/// The lifetimes of programs.
pub(crate) struct Found {
    programs: Programs,
    each: Vec<Lifetimes>,
}

pub(super) fn find(args: &Args) -> Result<Found> {
    let programs =
        args.under.programs(&args.file, &Asked { device: args.device, recorded_limit: args.recorded_limit.or(args.limit) })?;
    let of_program = |program: &Program| Lifetimes::of(&program.workload, program.steps_end);
    let each = programs.all.iter().map(of_program).collect();
    Ok(Found { programs, each })
}

fn steps(found: &Lifetimes) -> String {
    let count = output::count(found.steps as u64, "step");
    match found.steps_from {
        StepsFrom::Marks => format!("{count}, as marked"),
        StepsFrom::Repetition => format!("{count}, found by repetition"),
        StepsFrom::Nothing => "no steps are known".to_owned(),
    }
}

fn sizes(lives: &Lives) -> String {
    match lives.up_to_bytes {
        Some(up_to) => format!("up to {}", show_bytes(up_to)),
        None => format!("above {}", show_bytes(lives.above_bytes)),
    }
}

fn lived(lives: &Lives) -> &'static str {
    match lives.lifetime {
        Lifetime::BeforeTheNext => "freed before the next request",
        Lifetime::UpTo10 => "up to 10 requests",
        Lifetime::UpTo100 => "up to 100 requests",
        Lifetime::UpTo1000 => "up to 1,000 requests",
        Lifetime::Longer => "more requests",
        Lifetime::NextStep => "into the next step",
        Lifetime::LaterStep => "into a later step",
        Lifetime::Kept => "never freed",
    }
}

pub(super) fn answer(args: &Args, found: &Found) -> Answer {
    let mut answer = Answer::new();
    for (place, (program, lifetimes)) in found.programs.all.iter().zip(&found.each).enumerate() {
        if place > 0 {
            answer.gap();
        }
        let (places, peak) = (program.places(), grouped(program.place(lifetimes.peak_event) as u64));
        let (device, live) = (program.device, show_bytes(lifetimes.peak_bytes));
        answer.headline(
            Tone::Plain,
            format!("Device {device}: at most {live} live, first at {places} {peak}; {}", steps(lifetimes)),
        );
        let mut rows: Vec<&Lives> = lifetimes.rows.iter().collect();
        rows.sort_by_key(|lives| (Reverse(lives.at_peak_bytes), Reverse(lives.bytes)));
        let shown = if args.files.all { rows.len() } else { SHOWN };
        let mut table = Table::new(["phase", "size", "lifetime", "requests", "bytes", "live at the peak"]).with_left([0, 1, 2]);
        for lives in rows.iter().take(shown) {
            let numbers = [grouped(lives.requests), show_bytes(lives.bytes), show_bytes(lives.at_peak_bytes)];
            table.row([lives.phase.name().to_owned(), sizes(lives), lived(lives).to_owned()].into_iter().chain(numbers));
        }
        answer.table(table);
        let left_out = rows.len().saturating_sub(shown);
        if left_out > 0 {
            answer.toned(Tone::Dim, format!("{} left out (--all)", output::count(left_out as u64, "smaller group")));
        }
        exact_sizes(&mut answer, &lifetimes.sizes, if args.files.all { lifetimes.sizes.len() } else { SIZES_SHOWN });
    }
    answer.toned(Tone::Dim, "phase: where the buffer is requested; lifetime: in requests within the step, or in steps");
    answer.toned(
        Tone::Dim,
        "exact sizes: median lifetime (least–greatest) of those that are freed, in requests, whatever the step",
    );
    answer
}

/// The sizes with the most bytes.
fn exact_sizes(answer: &mut Answer, sizes: &[OfSize], shown: usize) {
    let mut table = Table::new(["exact size", "bytes each", "requests", "bytes", "never freed", "lifetime of the others"]);
    for size in sizes.iter().take(shown) {
        table.row([
            show_bytes(size.each_bytes),
            grouped(size.each_bytes),
            grouped(size.requests),
            show_bytes(size.bytes()),
            grouped(size.kept),
            size.lifetimes.map_or_else(|| "-".to_owned(), spread),
        ]);
    }
    answer.gap();
    answer.table(table);
    let left_out = sizes.len().saturating_sub(shown);
    if left_out > 0 {
        answer.toned(Tone::Dim, format!("{} left out (--all)", output::count(left_out as u64, "size with fewer bytes")));
    }
}

/// The same classes as rows.
pub(super) fn csv(out: &mut dyn Write, found: &Found) -> Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(["device", "phase", "above_bytes", "up_to_bytes", "lifetime", "requests", "bytes", "at_peak_bytes"])?;
    for (program, lifetimes) in found.programs.all.iter().zip(&found.each) {
        for lives in &lifetimes.rows {
            writer.write_record([
                program.device.to_string(),
                lives.phase.name().to_owned(),
                lives.above_bytes.to_string(),
                lives.up_to_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
                lives.lifetime.name().to_owned(),
                lives.requests.to_string(),
                lives.bytes.to_string(),
                lives.at_peak_bytes.to_string(),
            ])?;
        }
    }
    Ok(writer.flush()?)
}

view! {
    /// The lifetimes of a program's buffers, with `--lifetimes`.
    pub(super) struct Object(found: &Found) {
        /// The recording, the request trace or the workload.
        file: String = found.programs.path.display().to_string(),
        /// `recording`, `trace` or `workload`.
        program: Word<Kind> = Word::of(&found.programs.kind),
        /// The lifetimes on each device.
        lifetimes: Vec<OfProgram> =
            all(found.programs.all.iter().zip(&found.each), |(program, lifetimes)| OfProgram::of(program, lifetimes)),
    }
}

view! {
    /// The lifetimes on a device.
    struct OfProgram(program: &Program, lifetimes: &Lifetimes) {
        /// The device.
        device: u32 = program.device,
        /// The number of steps.
        steps: usize = lifetimes.steps,
        /// `marks` (the program or its annotations mark them), `repetition` (its requests repeat) or `nothing`.
        steps_from: &'static str = lifetimes.steps_from.name(),
        /// The first event with the most live bytes; for a recording, the entry.
        peak_at: usize = program.place(lifetimes.peak_event),
        /// The most live bytes, as requested.
        peak_live_bytes: u64 = lifetimes.peak_bytes,
        /// The classes that have buffers.
        classes: Vec<Class> = all(&lifetimes.rows, Class::of),
        /// Each exact size, those with the most bytes in total first.
        sizes: Vec<ExactSize> = all(&lifetimes.sizes, ExactSize::of),
    }
}

view! {
    /// The buffers of one exact size. A lifetime counts the requests that follow a buffer's own until it is freed.
    struct ExactSize(size: &OfSize) {
        /// The size of each, as requested.
        each_bytes: u64 = size.each_bytes,
        /// Their number.
        requests: u64 = size.requests,
        /// Their bytes.
        bytes: u64 = size.bytes(),
        /// The number of those that are never freed.
        kept: u64 = size.kept,
        /// The least lifetime of the others; null if none is freed.
        least_requests: Option<u64> = size.lifetimes.map(|lifetimes| lifetimes.least),
        /// The median.
        median_requests: Option<u64> = size.lifetimes.map(|lifetimes| lifetimes.median),
        /// The greatest.
        greatest_requests: Option<u64> = size.lifetimes.map(|lifetimes| lifetimes.greatest),
    }
}

view! {
    /// The buffers of one phase, one class of sizes and one class of lifetimes.
    struct Class(lives: &Lives) {
        /// Where they are requested: `setup`, `steps`, `end`, or `unknown` if no steps are known.
        phase: &'static str = lives.phase.name(),
        /// Their sizes are above this.
        above_bytes: u64 = lives.above_bytes,
        /// Their sizes are at most this; null in the class of the largest.
        up_to_bytes: Option<u64> = lives.up_to_bytes,
        /// When they are freed: `before-the-next-request`, `up-to-10-requests`, `up-to-100-requests`, `up-to-1000-requests` or
        /// `more-requests` in the same step, `next-step`, `later-step`, or `kept`.
        lifetime: &'static str = lives.lifetime.name(),
        /// Their number.
        requests: u64 = lives.requests,
        /// Their bytes, as requested.
        bytes: u64 = lives.bytes,
        /// The part of these bytes that is live at the peak.
        at_peak_bytes: u64 = lives.at_peak_bytes,
    }
}
