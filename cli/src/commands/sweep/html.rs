//! The page of a sweep: three plots, five with `--series`, and the tables, without a script or network access.
//!
//! Plots are SVG in the page: axes, lines, a legend. Colours are classes of the page.

use std::fmt::Write as _;

use parkade_policies::Named;
use parkade_research::study::sweep::{Capacity, Plan, Source, Summary};
use parkade_research::study::{self, LOAD_UNIT_BYTES, Point, RunOptions, Series, curves, live_curve, make_for};
use parkade_research::workload::Workload;

use super::grids;
use super::rows::{Finished, plenty, subject};
use crate::terminal::markup::{escape, fill, point};
use crate::terminal::output::shorten;
use crate::terminal::size::show_bytes;

const PAGE: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/style.css");
/// Points of a curve.
const POINTS: usize = 400;
/// Programs that need more than this multiple of their load are drawn at the edge.
const WIDEST: f64 = 2.0;

pub(super) fn page(finished: &Finished, summary: &Summary, curve: Option<&str>) -> String {
    let plan = &finished.plan;
    let shown = ShownRuns::of(finished, summary, curve);
    let holes = shown.as_ref().filter(|_| finished.draws_holes).map_or_else(Vec::new, |shown| holes(finished, shown));
    let over_time = shown.map_or_else(String::new, |shown| over_time(finished, &shown));
    let plots = [vec![frontier(finished), over_time], holes, vec![cost(finished)]].concat();
    let tables: String = grids::all(finished).iter().map(grids::Grid::html).collect();
    let about_builds: String = finished
        .about_faults()
        .iter()
        .chain(&finished.about_builds())
        .map(|line| format!("<p class=\"meta warning\">{}</p>\n", escape(line)))
        .collect();
    let values = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("style", STYLE),
        ("subject", &escape(&subject(plan))),
        ("builds", &about_builds),
        ("plots", &plots.concat()),
        ("tables", &tables),
    ];
    fill(PAGE, &values)
}

fn card(title: &str, note: &str, plot: &Plot) -> String {
    let svg = plot.svg(title);
    format!("<section class=\"card\"><h2>{}</h2><p class=\"note\">{}</p>{svg}</section>\n", escape(title), escape(note))
}

/// The share of programs that fit, over the memory available.
fn frontier(finished: &Finished) -> String {
    let plan = &finished.plan;
    let mut ratios = vec![Vec::new(); plan.policies.len()];
    let mut programs = vec![0_usize; plan.policies.len()];
    for row in finished.rows.iter().filter(|row| row.capacity == Capacity::Smallest) {
        let Some(job) = plan.job(row.job) else { continue };
        programs[job.policy] += 1;
        ratios[job.policy].extend(row.capacity_bytes.map(|bytes| bytes as f64 / row.load_bytes.max(1) as f64));
    }
    let most = ratios.iter().flatten().copied().fold(1.02, f64::max);
    let to = (most * 1.01).min(WIDEST);
    let x =
        Axis { name: "memory over LOAD".to_owned(), from: 1.0, to, scale: Scale::Linear, show: |value| format!("{value:.2}") };
    let y = Axis {
        name: "programs that fit".to_owned(),
        from: 0.0,
        to: 1.0,
        scale: Scale::Linear,
        show: |value| format!("{:.0} %", value * 100.0),
    };
    let mut plot = Plot::new(x, y);
    for (number, name) in plan.policies.iter().enumerate() {
        let sorted = &mut ratios[number];
        sorted.sort_by(f64::total_cmp);
        let share = |count: usize| count as f64 / programs[number].max(1) as f64;
        let mut points = vec![(1.0, 0.0)];
        for (count, &ratio) in sorted.iter().enumerate().filter(|(_, ratio)| **ratio <= to) {
            points.extend([(ratio, share(count)), (ratio, share(count + 1))]);
        }
        let reached = points.last().map_or(0.0, |last| last.1);
        points.push((to, reached));
        plot.line(name, number, points);
    }
    let beyond =
        if most > to { format!(" Programs that need more than {to:.1} LOAD are beyond the right edge.") } else { String::new() };
    let note = format!(
        "The share of programs whose smallest memory (of those tried) is at most this. Further left and higher is better.{beyond}"
    );
    card("Fit frontier", &note, &plot)
}

/// The program that is drawn over its course, and the policies.
struct ShownRuns<'a> {
    source: &'a Source,
    workload: Workload,
    options: RunOptions,
    /// The policies that do not take a share of all memory, with their numbers.
    policies: Vec<(usize, &'a Named)>,
}

impl<'a> ShownRuns<'a> {
    fn of(finished: &'a Finished, summary: &Summary, curve: Option<&str>) -> Option<ShownRuns<'a>> {
        let plan = &finished.plan;
        let chosen = match curve {
            Some(name) => plan.workloads.iter().position(|workload| workload.name == name),
            None => most_different(plan, summary),
        };
        let source = finished.sources.get(chosen?)?;
        let workload = (source.make)(1);
        let left_out: Vec<&str> = finished.taking_a_share().collect();
        let policies = finished.policies.iter().enumerate().filter(|(_, policy)| !left_out.contains(&&*policy.name)).collect();
        Some(ShownRuns { source, options: plenty(plan, &workload), workload, policies })
    }

    /// The horizontal axis.
    fn events(&self) -> Axis {
        let to = (self.workload.events.len() as f64).max(1.0);
        Axis { name: "events of the program".to_owned(), from: 0.0, to, scale: Scale::Linear, show: counted }
    }
}

/// A vertical axis of bytes, and the bytes of its unit.
fn memory_axis(name: &str, top: u64) -> (Axis, f64) {
    let (top, gib) = (top.max(1) as f64, f64::from(1 << 30));
    let (unit, bytes) = if top >= gib { ("GiB", gib) } else { ("MiB", f64::from(1 << 20)) };
    let axis = Axis { name: format!("{name}, {unit}"), from: 0.0, to: top * 1.04 / bytes, scale: Scale::Linear, show: decimal };
    (axis, bytes)
}

/// Reserved memory over the course of one program.
fn over_time(finished: &Finished, shown: &ShownRuns<'_>) -> String {
    let ShownRuns { source, workload, options, policies } = shown;
    let load = live_curve(workload, LOAD_UNIT_BYTES, POINTS);
    let of_policy = |policy: &Named| curves(workload, make_for(policy, workload)(), options, POINTS).reserved_bytes;
    let reserved: Vec<(usize, &str, Vec<u64>)> =
        policies.iter().map(|&(number, policy)| (number, &*policy.name, of_policy(policy))).collect();
    let all = reserved.iter().flat_map(|(_, _, curve)| curve);
    let (y, unit) = memory_axis("memory", all.chain(&load).copied().max().unwrap_or(1));
    let events = workload.events.len() as f64;
    let x = shown.events();
    let mut plot = Plot::new(x, y);
    let points = |curve: &[u64]| -> Vec<(f64, f64)> {
        let width = events / load.len().max(1) as f64;
        curve.iter().enumerate().map(|(place, &bytes)| ((place as f64 + 0.5) * width, bytes as f64 / unit)).collect()
    };
    plot.area("live bytes", &points(&load));
    for (number, name, curve) in &reserved {
        plot.line(name, *number, points(curve));
    }
    let says = said(source);
    let peak = show_bytes(load.iter().copied().max().unwrap_or(0));
    let note = format!(
        "{}{says} LOAD is {peak}. With plenty of memory, so nothing is released for lack of it; each point is the maximum of \
         its part.{}",
        source.name,
        about_left_out(finished)
    );
    card("Reserved over time", &note, &plot)
}

/// The largest hole and the number of holes over the course of the same program.
fn holes(finished: &Finished, shown: &ShownRuns<'_>) -> Vec<String> {
    let ShownRuns { source, workload, options, policies } = shown;
    let found: Vec<(usize, &str, Series)> = policies
        .iter()
        .map(|&(number, policy)| (number, &*policy.name, study::series(workload, policy, options, None)))
        .collect();
    let points = || found.iter().flat_map(|(_, _, series)| &series.points);
    let (largest, unit) = memory_axis("largest hole", points().map(|point| point.all.largest_hole_bytes).max().unwrap_or(0));
    let most = points().map(|point| point.all.holes).max().unwrap_or(0).max(1) as f64;
    let count = Axis { name: "holes".to_owned(), from: 0.0, to: most * 1.04, scale: Scale::Linear, show: counted };
    let plot = |y: Axis, value: &dyn Fn(&Point) -> f64| {
        let mut plot = Plot::new(shown.events(), y);
        for (number, name, series) in &found {
            plot.line(name, *number, series.points.iter().map(|point| (point.event as f64, value(point))));
        }
        plot
    };
    let note = format!(
        "{}, with plenty of memory, at the peaks of each part. Free memory in many small holes serves no large request.{}",
        source.name,
        about_left_out(finished)
    );
    let largest = plot(largest, &|point| point.all.largest_hole_bytes as f64 / unit);
    let count = plot(count, &|point| point.all.holes as f64);
    vec![card("Largest hole over time", &note, &largest), card("Holes over time", &note, &count)]
}

fn said(source: &Source) -> String {
    if source.says.is_empty() { ".".to_owned() } else { format!(": {}.", source.says.trim_end_matches('.')) }
}

/// The workload whose smallest memory depends most on the policy.
fn most_different(plan: &Plan, summary: &Summary) -> Option<usize> {
    let spread = |workload: &usize| {
        let ratios = || summary.cells.iter().filter_map(|cells| cells[*workload].ratio).map(|ratio| ratio.mean);
        ratios().fold(1.0, f64::max) / ratios().fold(f64::INFINITY, f64::min)
    };
    (0..plan.workloads.len()).max_by(|one, other| spread(one).total_cmp(&spread(other)))
}

/// A sentence on the policies that are not drawn; empty if there are none.
fn about_left_out(finished: &Finished) -> String {
    let names: Vec<&str> = finished.taking_a_share().collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" Left out, because they would take a share of the device's entire memory: {}.", names.join(", "))
    }
}

/// Driver time with plenty of memory over the smallest memory.
fn cost(finished: &Finished) -> String {
    let plan = &finished.plan;
    let Some(plenty) = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty) else { return String::new() };
    // Each policy's number, its memory over the load, and its driver time in milliseconds.
    let points: Vec<(usize, f64, f64)> = finished
        .summary
        .policies
        .iter()
        .enumerate()
        .filter_map(|(number, policy)| Some((number, policy.ratio?.mean, policy.driver_ns[plenty]?.mean / 1e6)))
        .collect();
    let right = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let costs = || points.iter().map(|point| point.2).filter(|cost| *cost > 0.0);
    let (low, high) = (costs().fold(f64::INFINITY, f64::min), costs().fold(0.0, f64::max));
    if high <= 0.0 {
        return String::new();
    }
    let x = Axis {
        name: "smallest memory over LOAD (mean)".to_owned(),
        from: 1.0,
        to: (1.0 + (right - 1.0) * 1.06).max(1.02),
        scale: Scale::Linear,
        show: |value| format!("{value:.2}"),
    };
    let y = Axis {
        name: "mean driver time with ample memory, ms".to_owned(),
        from: low / 1.3,
        to: high * 1.3,
        scale: Scale::Logarithmic,
        show: decimal,
    };
    let mut plot = Plot::new(x, y);
    let mut drawn: Vec<(f64, f64)> = Vec::new();
    for &(number, ratio, cost) in &points {
        let pixel = plot.pixel((ratio, cost));
        let touching = drawn.iter().filter(|other| (other.0 - pixel.0).hypot(other.1 - pixel.1) < 6.0).count();
        let radius = [9.0, 6.0, 3.5][touching.min(2)];
        plot.dot(&plan.policies[number], number, (ratio, cost), radius);
        drawn.push(pixel);
    }
    let note = format!(
        "Each policy once: geometric means over the workloads. Further left needs less memory, lower costs less of the driver’s time.{}",
        about_left_out(finished)
    );
    card("Cost against fit", &note, &plot)
}

/// As many decimals as a tick needs.
fn decimal(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn counted(value: f64) -> String {
    crate::terminal::markup::grouped(value as u64)
}

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 800.0;
const TOP: f64 = 16.0;
/// Height of the plot itself.
const HEIGHT: f64 = 330.0;
/// The space below the plot: the numbers and the name of the horizontal axis.
const BELOW: f64 = 54.0;
const LEGEND_STEP: f64 = 21.0;
/// The number of letters of a name that fit beside a plot; a tooltip shows the whole name.
const LEGEND_LETTERS: usize = 34;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    Logarithmic,
}

/// An axis and the format of its numbers.
struct Axis {
    name: String,
    from: f64,
    to: f64,
    scale: Scale,
    show: fn(f64) -> String,
}

impl Axis {
    /// The position of a value from 0 to 1, clamped.
    fn share(&self, value: f64) -> f64 {
        let along = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(f64::MIN_POSITIVE).ln(),
        };
        let (from, to) = (along(self.from), along(self.to));
        if to > from { ((along(value) - from) / (to - from)).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Five to ten round values; on a logarithmic axis 1, 2, 5, 10 and so on.
    fn ticks(&self) -> Vec<f64> {
        if self.to <= self.from {
            return vec![self.from];
        }
        if self.scale == Scale::Logarithmic {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let steps: &[f64] = if self.to / self.from > 2000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let values = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
            return values.filter(|value| (self.from..=self.to).contains(value)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough).unwrap_or(power);
        let first = (self.from / step - 1e-9).ceil();
        (0..20).map(|number| (first + f64::from(number)) * step).take_while(|value| *value <= self.to + step * 1e-9).collect()
    }
}

/// A plot under construction.
struct Plot {
    x: Axis,
    y: Axis,
    body: String,
    legend: Vec<(String, String)>,
}

impl Plot {
    fn new(x: Axis, y: Axis) -> Plot {
        Plot { x, y, body: String::new(), legend: Vec::new() }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (LEFT + self.x.share(x) * (RIGHT - LEFT), TOP + (1.0 - self.y.share(y)) * HEIGHT)
    }

    fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (number, (x, y)) in points.into_iter().enumerate() {
            let (x, y) = self.place(x, y);
            point(&mut path, if number == 0 { 'M' } else { 'L' }, x, y);
        }
        path
    }

    /// An area below a line.
    fn area(&mut self, name: &str, points: &[(f64, f64)]) {
        let ends = points.first().zip(points.last()).map(|(first, last)| [(last.0, self.y.from), (first.0, self.y.from)]);
        let path = self.path(points.iter().copied().chain(ends.into_iter().flatten()));
        let _ = writeln!(self.body, "<path class=\"area\" d=\"{path}Z\"><title>{}</title></path>", escape(name));
        self.legend.push((name.to_owned(), "<rect class=\"area\" y=\"-9\" width=\"22\" height=\"11\"/>".to_owned()));
    }

    /// A line in the colour of this number.
    fn line(&mut self, name: &str, number: usize, points: impl IntoIterator<Item = (f64, f64)>) {
        let path = self.path(points);
        let class = class(number);
        // Later lines are thinner, so that identical lines below them still show.
        let width = (4.2 - 0.7 * number as f64).max(1.4);
        let _ = writeln!(
            self.body,
            "<path class=\"line {class}\" stroke-width=\"{width:.1}\" d=\"{path}\"><title>{}</title></path>",
            escape(name)
        );
        self.legend.push((name.to_owned(), format!("<path class=\"line {class}\" stroke-width=\"{width:.1}\" d=\"M0 -4h22\"/>")));
    }

    /// A dot. A smaller `radius` makes a dot visible on top of another.
    fn dot(&mut self, name: &str, number: usize, at: (f64, f64), radius: f64) {
        let class = class(number);
        let (x, y) = self.place(at.0, at.1);
        let _ = writeln!(
            self.body,
            "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{}</title></circle>",
            escape(name)
        );
        self.legend.push((name.to_owned(), format!("<circle class=\"dot {class}\" cx=\"11\" cy=\"-4\" r=\"6\"/>")));
    }

    /// The position of a point in the picture.
    fn pixel(&self, at: (f64, f64)) -> (f64, f64) {
        self.place(at.0, at.1)
    }

    /// The picture.
    fn svg(&self, title: &str) -> String {
        let height = (TOP + HEIGHT + BELOW).max(TOP + 20.0 + LEGEND_STEP * self.legend.len() as f64);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n", escape(title));
        let (bottom, middle) = (TOP + HEIGHT, TOP + HEIGHT / 2.0);
        for value in self.y.ticks() {
            let (_, y) = self.place(self.x.from, value);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                (self.y.show)(value)
            );
        }
        for value in self.x.ticks() {
            let (x, _) = self.place(value, self.y.from);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 4.0,
                bottom + 20.0,
                (self.x.show)(value)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{RIGHT}\"/>\
             <text class=\"name\" x=\"{:.0}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"name\" transform=\"translate(16 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            bottom + 44.0,
            escape(&self.x.name),
            escape(&self.y.name)
        );
        svg += &self.body;
        for (place, (name, symbol)) in self.legend.iter().enumerate() {
            let y = TOP + 14.0 + LEGEND_STEP * place as f64;
            let _ = writeln!(
                svg,
                "<g transform=\"translate({} {y:.0})\"><title>{}</title>{symbol}<text x=\"32\">{}</text></g>",
                RIGHT + 26.0,
                escape(name),
                escape(&shorten(name, LEGEND_LETTERS))
            );
        }
        svg + "</svg>\n"
    }
}

/// Twelve colours; further lines are dashed.
fn class(number: usize) -> String {
    format!("c{} d{}", number % 12, (number / 12) % 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64, scale: Scale) -> Axis {
        Axis { name: "bytes".to_owned(), from, to, scale, show: |value| format!("{value:.1}") }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(axis(0.0, 100.0, Scale::Linear).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let ticks = axis(0.98, 1.3, Scale::Linear).ticks();
        assert!(ticks.len() >= 3 && (ticks[0] - 1.0).abs() < 1e-9, "{ticks:?}");
        assert_eq!(axis(0.3, 30.0, Scale::Logarithmic).ticks(), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(axis(1.0, 1.0, Scale::Linear).ticks(), [1.0]);
    }

    #[test]
    fn outliers_are_clamped() {
        let mut plot = Plot::new(axis(0.0, 10.0, Scale::Linear), axis(0.0, 1.0, Scale::Linear));
        plot.line("a <b>", 13, [(-5.0, 0.0), (20.0, 1.0)]);
        let svg = plot.svg("title");
        assert!(
            svg.contains(
                "<path class=\"line c1 d1\" stroke-width=\"1.4\" d=\"M78.0 346.0L800.0 16.0\"><title>a &lt;b&gt;</title>"
            ),
            "{svg}"
        );
    }
}
