//! Tables of the driver's work: its time, the time for each step and in the later half, and waiting.

use parkade_research::study::sweep::{Capacity, Cell, Course, CourseOfAll, Level};

use super::finished::Finished;
use super::grid::{Grid, Head};
use super::grids::{NONE, by_workload, capacity, given_or_plenty, milliseconds, none, number, range, timed, with_range};

/// Driver time of each workload in one memory.
pub(super) fn driver_of_cells(finished: &Finished, place: usize) -> Grid {
    let cell = |cell: &Cell| cell.driver_ns[place].map_or_else(none, |level| with_range(milliseconds(level), number));
    let title = format!("Driver time, {}", name(finished, place));
    let note = format!("Milliseconds of driver calls in the whole run, without waiting. {}", about_none(finished, place));
    by_workload(finished, title, note, &cell)
}

/// Driver time of each workload for each of its steps, in one memory.
pub(super) fn courses_of_cells(finished: &Finished, place: usize) -> Grid {
    let ms = |level: Option<Level>| level.map_or_else(none, |level| number(level.mean / 1e6));
    let show = |course: Course| match course.ns_per_step {
        None => none(),
        Some(_) => format!("{} / {}", ms(course.ns_per_step), ms(course.later_ns_per_step)),
    };
    let title = format!("Driver time for each step, {}", name(finished, place));
    let note = format!(
        "Milliseconds of driver calls for each step of the workload, without waiting: in the whole run, and behind the slash in the later half of its steps. A policy \
         that is slow only in the beginning has little there. {NONE} also where a workload's steps are not known. {}",
        about_none(finished, place)
    );
    by_workload(finished, title, note, &|cell| cell.courses[place].map_or_else(none, show))
}

/// How long the driver's calls wait in each workload, in one memory.
pub(super) fn waiting_of_cells(finished: &Finished, place: usize) -> Grid {
    let show = |course: Course| match course.waited_ns {
        Some(waited) => with_range(milliseconds(waited), number),
        None => format!("{} calls", whole(course.waiting_calls.mean)),
    };
    let title = format!("Waiting, {}", name(finished, place));
    let note = format!(
        "Milliseconds that driver calls wait for work on the device. cudaFree waits for all of it, and the allocator synchronizes before it unmaps memory; cuMemUnmap and \
         cuMemRelease were measured not to wait. A workload that does not say how long its work takes, as recordings do not, has the number of calls that would wait \
         instead. {}",
        about_none(finished, place)
    );
    by_workload(finished, title, note, &|cell| cell.courses[place].map_or_else(none, show))
}

/// Means of driver time over the workloads.
pub(super) fn driver(finished: &Finished) -> Grid {
    let plan = &finished.plan;
    let mut header = vec![Head::from("policy")];
    for place in timed(plan) {
        let name = name(finished, place);
        header.push(Head { name: format!("driver ms, {name}"), short: format!("ms {name}") });
        header.extend(["range", "n"].map(Head::from));
    }
    let rows = finished.summary.policies.iter().map(|policy| {
        let mut row = vec![policy.name.clone()];
        for place in timed(plan) {
            match policy.driver_ns[place].map(milliseconds) {
                None => row.extend([none(), none(), "0".to_owned()]),
                Some(level) => row.extend([number(level.mean), range(level, number), level.count.to_string()]),
            }
        }
        row
    });
    let note = format!(
        "The cost of a program's driver calls as measured on an H200, without waiting: geometric means over the n workloads that fit in that memory, with the least and \
         the greatest value. Means over different workloads are not comparable. {NONE} where no workload fits.{}",
        about_shares(finished)
    );
    Grid { title: "Driver time: means".to_owned(), note, rows: rows.collect(), header }
}

/// Means of the driver's work over the course of the workloads.
pub(super) fn course(finished: &Finished) -> Grid {
    let plan = &finished.plan;
    let mut header = vec![Head::from("policy")];
    for place in given_or_plenty(plan) {
        let name = name(finished, place);
        let columns = [
            ("calls a step", "calls"),
            ("ms a step", "ms/step"),
            ("in the later half", "later"),
            ("waited ms", "waited"),
            ("waiting calls", "waits"),
        ];
        header.extend(columns.map(|(column, short)| Head { name: format!("{column}, {name}"), short: short.to_owned() }));
        header.push(Head { name: format!("n, {name}"), short: format!("n {name}") });
    }
    let rows = finished.summary.policies.iter().map(|policy| {
        let cells = given_or_plenty(plan).into_iter().flat_map(|place| course_cells(&policy.courses[place]));
        std::iter::once(policy.name.clone()).chain(cells).collect()
    });
    let note = format!(
        "Driver calls and their time for each step (geometric means over the workloads whose steps are known), the share of that time that falls into the later half of the run \
         (a half for a policy that is always as slow, nothing for one that is slow only in the beginning), how long calls wait for the device, in milliseconds (over the \
         workloads that say how long their work takes), and how many calls would wait: arithmetic means over the n workloads that fit.{}",
        about_shares(finished)
    );
    Grid { title: "Driver work over the run: means".to_owned(), note, rows: rows.collect(), header }
}

fn course_cells(course: &CourseOfAll) -> [String; 6] {
    let mean = |level: Option<Level>, show: fn(f64) -> String| level.map_or_else(none, |level| show(level.mean));
    [
        mean(course.calls_per_step, number),
        mean(course.ns_per_step, |ns| number(ns / 1e6)),
        mean(course.later_share, |share| format!("{:.0}%", share * 100.0)),
        mean(course.waited_ns, |ns| number(ns / 1e6)),
        mean(course.waiting_calls, number),
        course.waiting_calls.map_or(0, |level| level.count).to_string(),
    ]
}

fn name(finished: &Finished, place: usize) -> String {
    capacity(finished.plan.capacities[place])
}

/// Why a value is missing.
fn about_none(finished: &Finished, place: usize) -> String {
    let fits = format!("{NONE} where the workload does not fit.");
    if finished.plan.capacities[place] == Capacity::Plenty { fits + &about_shares(finished) } else { fits }
}

/// A sentence on the policies without values with plenty of memory; empty if there are none.
fn about_shares(finished: &Finished) -> String {
    let names: Vec<&str> = finished.taking_a_share().collect();
    let (what, they) = if names.len() == 1 { ("takes", "it") } else { ("take", "they") };
    let listed = match names.as_slice() {
        [] => return String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    format!(
        " {listed} {what} a share of all memory there is before the program begins, so with plenty {they} would be priced for the device and not for the program: {NONE}."
    )
}

fn whole(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { number(value) }
}
