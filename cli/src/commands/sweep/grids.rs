//! The tables of a sweep, each workload first, then the means; and a table as text, Markdown, LaTeX and HTML.
//!
//! The smallest memory is shown by workload and policy, over seeds, and as means; the driver's work as time, time per step and
//! in the later half, and waiting.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parkade_policies::{BESIDE, CATALOGUE};
use parkade_research::study::sweep::{
    AblatedValue, Ablation, BoundRatios, Capacity, Cell, Course, CourseOfAll, Level, Plan, PlannedWorkload, PolicySummary,
    SeedComparison, Without,
};

use super::rows::Finished;
use crate::commands::enable::Usable;
use crate::terminal::answer::Answer;
use crate::terminal::markup::{escape, grouped};
use crate::terminal::table::Table;
use crate::terminal::{output, size};

/// Driver time is also shown for the capacity nearest to this factor.
const TIGHT: f64 = 1.1;
/// Shown in place of a missing number.
const NONE: &str = "–";
/// Shown after the smallest memory of a program that fails with a little more.
const FAILS_WITH_MORE: &str = "†";
/// A p value that is not above this is called significant.
const SIGNIFICANT: f64 = 0.05;
/// Shown in place of every number of a policy that broke.
const FAULT: &str = "fault";

/// The tables for a terminal with `--all`. Those by workload show policies as numbers, which [`key`] explains.
pub(super) fn short(finished: &Finished) -> Vec<Grid> {
    let (plan, timed) = (&finished.plan, timed(&finished.plan));
    let mut means = vec![memory(finished)];
    // A table has one memory, so that no column must name its memory.
    means.extend(timed.iter().map(|&place| driver(finished, &[place])));
    means.extend(given_or_plenty(plan).into_iter().map(|place| course(finished, &[place])));
    for (number, row) in means.iter_mut().flat_map(|grid| grid.rows.iter_mut().take(plan.policies.len()).enumerate()) {
        if let Some(name) = row.first_mut() {
            // Spaces at which lines do not break.
            *name = format!("{:\u{a0}>2}\u{a0}{name}", number + 1);
        }
    }
    [memory_of_cells(finished)].into_iter().chain(excess_of_cells(finished)).chain(means).collect()
}

/// The policies by the numbers that head their columns on a terminal.
pub(super) fn key(finished: &Finished) -> String {
    let numbered = finished.plan.policies.iter().enumerate().map(|(place, name)| format!("{}\u{a0}{name}", place + 1));
    format!("Columns: {}", numbered.collect::<Vec<_>>().join(", "))
}

/// The need and the cost of each policy in a few named columns, starting with the policy that needs the least.
pub(super) fn brief(finished: &Finished) -> Grid {
    let (plan, summary) = (&finished.plan, &finished.summary);
    let baseline = &plan.policies[summary.baseline];
    let bytes = smallest_bytes(finished);
    // The share of the workloads that fit says nothing about one of them.
    let tight = tightest(plan).filter(|_| bytes.is_none());
    let plenty = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty);
    let mut header: Vec<Head> = vec![Head::from("policy")];
    header.extend(bytes.iter().map(|_| Head::from("memory")));
    header.push(Head::from(if bytes.is_some() { "over LOAD" } else { "memory over LOAD" }));
    if plan.policies.len() > 1 {
        header.push(Head::from(&*format!("against {baseline}")));
    }
    header.extend(tight.map(|place| Head::from(&*format!("fits in {}", capacity(plan.capacities[place])))));
    header.extend(plenty.map(|_| Head::from("driver ms")));
    header.push(Head::from("in PyTorch"));
    let mut policies: Vec<&PolicySummary> = summary.policies.iter().collect();
    policies.sort_by(|one, other| mean(one).total_cmp(&mean(other)));
    let row = |policy: &&PolicySummary| {
        let mut row = vec![policy.name.clone()];
        row.extend(bytes.iter().map(|bytes| bytes.get(policy.name.as_str()).map_or_else(none, |&bytes| size::show_bytes(bytes))));
        row.push(policy.ratio.map_or_else(none, |level| ratio(level.mean)));
        if plan.policies.len() > 1 {
            row.push(policy.versus.as_ref().and_then(|versus| versus.ratio).map_or_else(none, |level| ratio(level.mean)));
        }
        row.extend(tight.map(|place| share(policy, place)));
        row.extend(plenty.map(|place| policy.driver_ns[place].map_or_else(none, |level| number(level.mean / 1e6))));
        row = row_of(policy, row);
        row.push(Usable::of(&policy.name).word().to_owned());
        row
    };
    let rows = policies.iter().map(row).collect();
    let title = match plan.workloads.as_slice() {
        [one] => format!("The smallest memory in which the workload \"{}\" fits", one.name),
        _ => "Geometric means over the workloads".to_owned(),
    };
    Grid { title, note: String::new(), header, rows, key: None }
}

/// The smallest memory in which the only workload fits, by policy; `None` for several workloads or seeds.
fn smallest_bytes(finished: &Finished) -> Option<BTreeMap<&str, u64>> {
    let [PlannedWorkload { seeds: 1, .. }] = finished.plan.workloads.as_slice() else { return None };
    let smallest = finished.rows.iter().filter(|row| row.capacity == Capacity::Smallest && row.fits);
    Some(smallest.filter_map(|row| Some((row.policy.as_str(), row.capacity_bytes?))).collect())
}

/// The best policy of each kind of use: with PyTorch alone, then those that need less.
struct Best<'a> {
    /// With PyTorch's own settings, or none.
    alone: Option<&'a PolicySummary>,
    /// Through `parkade.enable`.
    enable: Option<&'a PolicySummary>,
    /// With a different release of PyTorch.
    release: Option<&'a PolicySummary>,
    /// Only in the simulator.
    simulator: Option<&'a PolicySummary>,
}

impl<'a> Best<'a> {
    fn of(finished: &'a Finished) -> Best<'a> {
        let alone = best(finished, |usable| matches!(usable, Usable::Default | Usable::Setting(_)));
        let is_less = |one: &&PolicySummary, than: Option<&PolicySummary>| than.is_none_or(|than| mean(one) < mean(than));
        let enable = best(finished, |usable| matches!(usable, Usable::Enable(_))).filter(|one| is_less(one, alone));
        let release = best(finished, |usable| *usable == Usable::Release).filter(|one| is_less(one, alone));
        let today = enable.or(alone);
        let simulator = best(finished, |usable| *usable == Usable::Simulator).filter(|one| is_less(one, today));
        Best { alone, enable, release, simulator }
    }
}

/// Which policy needs the least memory with PyTorch alone, which with parkade, and which in the simulator, each in a sentence.
pub(super) fn verdict(finished: &Finished) -> String {
    let best = Best::of(finished);
    let kinds = [
        ("With PyTorch alone", best.alone),
        ("With parkade.enable", best.enable),
        ("With a different release of PyTorch", best.release),
        ("Only in the simulator", best.simulator),
    ];
    let sentences: Vec<String> = kinds
        .into_iter()
        .filter_map(|(how, policy)| Some((how, policy?)))
        .enumerate()
        .map(|(place, (how, policy))| {
            let least = if place == 0 { "the least memory: " } else { "" };
            format!("{how}, {} needs {least}{}.", policy.name, amount(finished, policy))
        })
        .collect();
    if sentences.is_empty() {
        "No policy fits any workload in the memory that was tried.".to_owned()
    } else {
        sentences.join(" ")
    }
}

/// What the best policy of each kind needs and costs, with a label.
pub(super) fn best_rows(finished: &Finished) -> Vec<(&'static str, String)> {
    let Best { alone, enable, release, simulator } = Best::of(finished);
    let kinds = [("alone", alone), ("enable", enable), ("other", release), ("sim", simulator)];
    let mut rows: Vec<(&'static str, String)> =
        kinds.into_iter().filter_map(|(label, policy)| Some((label, needs(finished, policy?)))).collect();
    let load = load_bytes(finished).filter(|_| !rows.is_empty());
    rows.extend(load.map(|bytes| ("LOAD", format!("{} {IS_LOAD}", size::show_bytes(bytes)))));
    // Of one workload it says no more than that its policies need more than LOAD.
    rows.extend(too_small(finished).filter(|_| finished.plan.workloads.len() > 1).map(|none| ("none", none)));
    rows
}

/// Explains LOAD.
const IS_LOAD: &str = "is the most bytes live at once; no policy can need less";

/// Explains LOAD where its amount is not stated.
pub(super) fn about_load(finished: &Finished) -> Option<String> {
    load_bytes(finished).is_none().then(|| format!("LOAD {IS_LOAD}"))
}

/// The load of the only workload; `None` for several workloads or seeds.
fn load_bytes(finished: &Finished) -> Option<u64> {
    smallest_bytes(finished)?;
    Some(finished.rows.first()?.load_bytes)
}

/// The lines that make PyTorch use the best policies, each with the condition under which it works; PyTorch alone comes last.
pub(super) fn lines(finished: &Finished) -> Vec<(&'static str, String)> {
    let Best { alone, enable, .. } = Best::of(finished);
    let line = |policy: Option<&PolicySummary>| Usable::of(&policy?.name).line().map(str::to_owned);
    let enable =
        line(enable).map(|line| ("enable: with the Python package parkade and PyTorch 2.8 to 2.15, call this first:", line));
    let is_less = |policy: &&PolicySummary| {
        let versus = policy.versus.as_ref().and_then(|versus| versus.ratio);
        versus.is_none_or(|versus| versus.mean < 1.0)
    };
    let alone = line(alone.filter(is_less)).map(|line| ("alone: with nothing but PyTorch, set this:", line));
    enable.into_iter().chain(alone).collect()
}

/// The policy that needs the least memory of those that PyTorch can use in such a way. The first among equals.
fn best(finished: &Finished, is_wanted: impl Fn(&Usable) -> bool) -> Option<&PolicySummary> {
    let is_wanted = |policy: &&PolicySummary| is_wanted(&Usable::of(&policy.name)) && fails_in_more(finished, policy).is_empty();
    let policies = finished.summary.policies.iter().filter(|policy| policy.ratio.is_some()).filter(is_wanted);
    policies.min_by(|one, other| mean(one).total_cmp(&mean(other)))
}

/// The capacities in which the only workload fails under a policy, although it fits in less; empty for several workloads.
fn fails_in_more(finished: &Finished, policy: &PolicySummary) -> Vec<String> {
    if smallest_bytes(finished).is_none() {
        return Vec::new();
    }
    let capacities = finished.plan.capacities.iter().zip(&policy.fits);
    let fails = capacities.filter(|&(capacity, &fits)| match capacity {
        Capacity::Load(share) => share.value() > mean(policy) && fits == 0.0,
        _ => false,
    });
    fails.map(|(&of, _)| capacity(of)).collect()
}

/// The policies under which the only workload fails in more memory than it needs.
pub(super) fn not_monotone(finished: &Finished) -> Option<String> {
    let of = |policy: &PolicySummary| {
        let fails = fails_in_more(finished, policy);
        let fails: Vec<&str> = fails.iter().map(String::as_str).collect();
        (!fails.is_empty()).then(|| format!("{} (fails in {}, which is more)", policy.name, output::enumerated(&fails)))
    };
    let found: Vec<String> = finished.summary.policies.iter().filter_map(of).collect();
    (!found.is_empty()).then(|| format!("not recommended, although the workload fits in the memory above: {}", found.join(", ")))
}

fn mean(policy: &PolicySummary) -> f64 {
    policy.ratio.map_or(f64::INFINITY, |level| level.mean)
}

/// The smallest memory of a policy: in bytes for one workload, else over LOAD.
fn amount(finished: &Finished, policy: &PolicySummary) -> String {
    let bytes = smallest_bytes(finished).and_then(|bytes| bytes.get(policy.name.as_str()).copied());
    bytes.map_or_else(|| format!("{} times LOAD", ratio(mean(policy))), size::show_bytes)
}

/// Names the policies that `-p all` does not run, if it was all that was asked for.
pub(super) fn left_out(plan: &Plan) -> Option<String> {
    let is_run = |name: &str| plan.policies.iter().any(|policy| policy == name);
    let names: Vec<&str> = BESIDE.iter().map(|policy| &*policy.name).collect();
    let is_all = is_of_the_catalogue(plan) && !names.iter().any(|name| is_run(name));
    is_all.then(|| format!("not run: {}, which only -p NAME runs", output::enumerated(&names)))
}

/// The capacities in which nothing fits.
fn too_small(finished: &Finished) -> Option<String> {
    let (plan, policies) = (&finished.plan, &finished.summary.policies);
    let is_too_small = |&(place, _): &(usize, &Capacity)| policies.iter().all(|policy| policy.fits.get(place) == Some(&0.0));
    let capacities = plan.capacities.iter().enumerate().filter(is_too_small).map(|(_, &of)| capacity(of));
    let capacities: Vec<String> = capacities.collect();
    let names: Vec<&str> = capacities.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| format!("no policy fits any workload in {}", output::enumerated(&names)))
}

/// What a policy needs and costs, compared with the baseline.
fn needs(finished: &Finished, policy: &PolicySummary) -> String {
    let (plan, summary) = (&finished.plan, &finished.summary);
    let baseline = &summary.policies[summary.baseline];
    let load = format!("{} times LOAD", ratio(mean(policy)));
    let amount = if smallest_bytes(finished).is_some() { format!("{} ({load})", amount(finished, policy)) } else { load };
    let Some(versus) = policy.versus.as_ref().and_then(|versus| versus.ratio) else {
        let is_least = summary.policies.iter().all(|other| mean(other) >= mean(policy));
        let alone = if plan.policies.len() == 1 || !is_least { "" } else { "; no other policy needs less memory" };
        return format!("{}: {amount}{alone}", policy.name);
    };
    let less = (1.0 - versus.mean) * 100.0;
    let compared = if less < 0.0 { format!("{:.1} % more", -less) } else { format!("{less:.1} % less") };
    let times = |place: usize| Some(policy.driver_ns[place]?.mean / baseline.driver_ns[place]?.mean);
    let plenty = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty);
    let cost = plenty.and_then(times).filter(|times| times.is_finite());
    let cost = cost.map_or_else(String::new, |times| format!("; driver calls take {} times as long", number(times)));
    format!("{}: {amount}, {compared} memory than {}{cost}", policy.name, baseline.name)
}

/// All tables.
pub(super) fn all(finished: &Finished) -> Vec<Grid> {
    let mut grids = vec![memory_of_cells(finished)];
    let places = given_or_plenty(&finished.plan);
    grids.extend(places.iter().map(|&place| driver_of_cells(finished, place)));
    grids.extend(places.iter().map(|&place| courses_of_cells(finished, place)));
    grids.extend(places.iter().map(|&place| waiting_of_cells(finished, place)));
    grids.extend(excess_of_cells(finished));
    grids.extend(over_seeds(finished));
    let plan = &finished.plan;
    grids.extend([memory(finished), driver(finished, &timed(plan)), course(finished, &given_or_plenty(plan))]);
    grids.extend(ablations(finished));
    grids
}

/// A table for each parameter whose values the sweep varies.
pub(super) fn ablations(finished: &Finished) -> impl Iterator<Item = Grid> {
    finished.ablations.all.iter().map(|ablation| of_parameter(finished, ablation))
}

/// The tables of parameters in the short answer, which has none for two policies, because it has compared them already, and none for the
/// entire catalogue, because nobody asked for its grids.
pub(super) fn brief_ablations(finished: &Finished) -> impl Iterator<Item = Grid> {
    let is_asked_for = finished.plan.policies.len() > 2 && !is_of_the_catalogue(&finished.plan);
    ablations(finished).filter(move |_| is_asked_for)
}

/// Whether a sweep runs the entire catalogue.
fn is_of_the_catalogue(plan: &Plan) -> bool {
    CATALOGUE.iter().all(|policy| plan.policies.iter().any(|name| *name == policy.name))
}

/// The values of one parameter.
fn of_parameter(finished: &Finished, ablation: &Ablation) -> Grid {
    let Ablation { policy, key, reference, is_default, cases, values } = ablation;
    let base = &values[*reference].value;
    let has_seeds = values.iter().any(|value| value.over_seeds.is_some());
    let mut header = vec![Head { name: format!("value of {key}"), short: (*key).to_owned() }];
    header.extend(["memory/LOAD", "range"].map(Head::from));
    header.push(Head::named("driver ms, plenty", "ms plenty"));
    let kind = if *is_default { "default" } else { "first" };
    header.push(Head { name: format!("over {base}"), short: format!("ratio to {kind} {base}") });
    header.push(Head::from("less/same/more"));
    if has_seeds {
        header.extend([Head::named("over the seeds", "over seeds"), Head::from("p")]);
    }
    let which = if *is_default { "the default" } else { "the first value, because the default is not in the sweep" };
    let mut note = format!(
        "Geometric means over {} for each value of {key}, with the smallest and the largest value: each workload under each \
         combination of the other parameters of {policy}, where the workload fits with every value that fits at all. Driver \
         time is that with plenty of memory. Then against {key}={base}, {which}, case by case: the ratio of the memory, and \
         the number of cases in which a value needs less, as much, or more.",
        output::count(*cases as u64, "case")
    );
    if has_seeds {
        let all = finished.ablations.all.iter().flat_map(|ablation| &ablation.values);
        let comparisons = all.filter(|value| value.over_seeds.is_some()).count();
        let least = finished.ablations.least_p.map_or_else(String::new, |p| format!(" No p value can be below {}.", p_value(p)));
        let _ = write!(
            note,
            " Over the seeds: the same ratio for the workloads with the most seeds, its 95 % bootstrap interval (BCa), and the p \
             value of Wilcoxon's signed-rank test with one difference for each seed, corrected for all {comparisons} \
             comparisons of parameters (Holm).{least}"
        );
    }
    let rows = values.iter().map(|value| value_row(value, has_seeds)).collect();
    Grid { title: format!("The parameter {key} of {policy}"), note, header, rows, key: None }
}

fn value_row(value: &AblatedValue, has_seeds: bool) -> Vec<String> {
    let compared = value.versus.as_ref();
    let mut row = vec![
        value.value.clone(),
        value.ratio.map_or_else(none, |level| ratio(level.mean)),
        value.ratio.map_or_else(none, |level| range(level, ratio)),
        value.driver_ns.map_or_else(none, |level| number(level.mean / 1e6)),
        compared.and_then(|versus| versus.ratio).map_or_else(none, |level| ratio(level.mean)),
        compared.map_or_else(none, |versus| versus.counts.map(|count| count.to_string()).join("/")),
    ];
    if has_seeds {
        let over = value.over_seeds.as_ref();
        let level = over.and_then(|over| over.ratio);
        row.push(level.map_or_else(none, |level| format!("{} ({})", ratio(level.mean), range(level, ratio))));
        row.push(over.map_or_else(none, |over| p_value(over.corrected_p)));
    }
    if value.faults > 0 {
        row.iter_mut().skip(1).for_each(|cell| FAULT.clone_into(cell));
    }
    row
}

/// Explains the smallest memory.
pub(super) fn about_smallest(finished: &Finished) -> String {
    let programs: u64 = finished.plan.workloads.iter().map(|workload| workload.seeds).sum();
    let found = finished.summary.not_monotone();
    let marked = if found > 0 { format!(" (marked {FAILS_WITH_MORE})") } else { String::new() };
    format!(
        "The smallest memory is the smallest of those tried in which the program fits; a program that fits may fail with a \
         little more, which happened in {found} of {} searches{marked}.",
        programs * finished.plan.policies.len() as u64
    )
}

/// Says which p values the tables of parameters cannot reach, if no difference can be significant.
pub(super) fn about_least_p(finished: &Finished) -> Option<String> {
    let least = finished.ablations.least_p.filter(|&p| p > SIGNIFICANT)?;
    Some(format!(
        "With these seeds, no p value of a parameter can be below {}, so no difference can be significant; use more --seeds, or fewer \
         values",
        p_value(least)
    ))
}

/// A capacity in words.
fn capacity(capacity: Capacity) -> String {
    match capacity {
        Capacity::Smallest => "smallest".to_owned(),
        Capacity::Plenty => "plenty".to_owned(),
        Capacity::Load(share) => format!("{share} LOAD"),
        Capacity::Bytes(bytes) => size::show_bytes(bytes),
    }
}

/// The indices of the capacities that programs are given.
fn given(plan: &Plan) -> impl Iterator<Item = usize> {
    let is_given = |capacity: &Capacity| matches!(capacity, Capacity::Load(_) | Capacity::Bytes(_));
    plan.capacities.iter().enumerate().filter(move |(_, capacity)| is_given(capacity)).map(|(place, _)| place)
}

/// The index of the given capacity nearest to [`TIGHT`].
fn tightest(plan: &Plan) -> Option<usize> {
    let distance = |place: &usize| match plan.capacities[*place] {
        Capacity::Load(share) => (share.value() - TIGHT).abs(),
        _ => f64::INFINITY,
    };
    given(plan).min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

/// The indices of the capacities whose driver times are shown.
fn timed(plan: &Plan) -> Vec<usize> {
    let tight = tightest(plan);
    let at = |wanted| plan.capacities.iter().position(|capacity| *capacity == wanted);
    [at(Capacity::Smallest), tight, at(Capacity::Plenty)].into_iter().flatten().collect()
}

/// Those of the timed capacities that are the same for all policies.
fn given_or_plenty(plan: &Plan) -> Vec<usize> {
    timed(plan).into_iter().filter(|&place| plan.capacities[place] != Capacity::Smallest).collect()
}

/// A table of workloads and policies.
fn by_workload(finished: &Finished, title: String, note: String, cell: &dyn Fn(&Cell) -> String) -> Grid {
    let plan = &finished.plan;
    let mut header = vec![Head::from("workload")];
    let numbered = plan.policies.iter().enumerate();
    header.extend(numbered.map(|(place, name)| Head { name: name.clone(), short: (place + 1).to_string() }));
    let rows = plan.workloads.iter().enumerate().map(|(place, workload)| {
        let shown = |of: &Cell| if of.faults > 0 { FAULT.to_owned() } else { cell(of) };
        let cells = finished.summary.cells.iter().map(|cells| shown(&cells[place]));
        std::iter::once(workload.name.clone()).chain(cells).collect()
    });
    Grid { title, note, rows: rows.collect(), header, key: Some(key(finished)) }
}

/// The row of a policy, without its numbers if it broke.
fn row_of(policy: &PolicySummary, mut row: Vec<String>) -> Vec<String> {
    if policy.faults > 0 {
        row.iter_mut().skip(1).for_each(|cell| FAULT.clone_into(cell));
    }
    row
}

/// The share of a policy's programs that fit, if it did not break.
fn share(policy: &PolicySummary, capacity: usize) -> String {
    policy.fits.get(capacity).map_or_else(none, |share| format!("{:.0}%", share * 100.0))
}

fn none() -> String {
    NONE.to_owned()
}

fn milliseconds(level: Level) -> Level {
    Level { mean: level.mean / 1e6, low: level.low / 1e6, high: level.high / 1e6, ..level }
}

/// A single value has no range.
fn range(level: Level, show: impl Fn(f64) -> String) -> String {
    if level.count < 2 { none() } else { format!("{}–{}", show(level.low), show(level.high)) }
}

/// With the range over seeds, if they differ.
fn with_range(level: Level, show: impl Fn(f64) -> String) -> String {
    let [mean, low, high] = [level.mean, level.low, level.high].map(show);
    if low == high { mean } else { format!("{mean} ({low}–{high})") }
}

/// Three decimals, for ratios.
fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

/// Three digits.
fn number(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}

/// Explains the columns and rows that are not policies.
const ABOUT_BOUNDS: &str = "Like LOAD, LOAD with pools is a lower bound: until a private pool's graphs are reset, the pool is \
                            counted at its peak live bytes so far. The ideal remapper and the offline packer are not \
                            bounds but results: the memory that an ideal allocator needs if it remaps 2 MiB pages at will, \
                            and the best packing found when every lifetime is known in advance and nothing is moved. An \
                            allocator that learns of requests one by one \
                            may need less memory than either. Both ignore private pools, so they may lie below LOAD with pools. \
                            A result with * is not converged: the search ran out of steps (--bounds) before it was proven that \
                            nothing needs less.";

/// The smallest memory of each workload, beside the values that it is compared with.
fn memory_of_cells(finished: &Finished) -> Grid {
    let note = format!(
        "The smallest memory tried in which the workload fits, over LOAD, the most bytes that live at once; with several seeds their \
         geometric mean and range. {} {ABOUT_BOUNDS}",
        about_smallest(finished)
    );
    let show = |level: Option<Level>| level.map_or_else(none, |level| with_range(level, ratio));
    let mut grid = by_workload(finished, "Smallest memory over LOAD".to_owned(), note, &|cell| {
        if cell.not_monotone > 0 { show(cell.ratio) + FAILS_WITH_MORE } else { show(cell.ratio) }
    });
    grid.header.push(Head::named("LOAD with pools", "pools"));
    for (row, level) in grid.rows.iter_mut().zip(&finished.summary.load_with_pools) {
        row.push(show(*level));
    }
    if !finished.beside.is_empty() {
        grid.header
            .extend([("ideal remapper", "remapped"), ("offline packer", "packed")].map(|(name, short)| Head::named(name, short)));
        for (row, beside) in grid.rows.iter_mut().zip(&finished.beside) {
            let marked = |cell: String, is_converged: Option<bool>| if is_converged == Some(false) { cell + "*" } else { cell };
            row.extend([
                marked(show(beside.map(|beside| beside.page_ideal)), beside.map(|beside| beside.is_page_ideal_converged)),
                marked(show(beside.map(|beside| beside.packing)), beside.map(|beside| beside.is_packing_converged)),
            ]);
        }
    }
    grid
}

/// Where each policy first needs more than the offline packing; `None` without packings.
fn excess_of_cells(finished: &Finished) -> Option<Grid> {
    if finished.excesses.is_empty() {
        return None;
    }
    let note = "The first event, with the first seed, at which a policy cannot serve a request in the memory of the offline packing, \
                and the requested bytes; a dash if it serves all. parkade stats --policy packs in as many steps (--bounds), and lists the live \
                blocks that are in the way there.";
    let mut grid = by_workload(finished, "First request beyond the packing".to_owned(), note.to_owned(), &|_| none());
    for (workload, row) in grid.rows.iter_mut().enumerate() {
        for (cell, of_policy) in row.iter_mut().skip(1).zip(&finished.excesses) {
            if let Some(Some(excess)) = of_policy.get(workload).filter(|_| *cell != FAULT) {
                *cell = format!("{}: {}", grouped(excess.event as u64), size::show_bytes(excess.requested_bytes));
            }
        }
    }
    Some(grid)
}

/// The policies against the baseline over the seeds of each workload; `None` if no workload has several seeds.
fn over_seeds(finished: &Finished) -> Option<Grid> {
    let (plan, summary) = (&finished.plan, &finished.summary);
    if !summary.compares_seeds() {
        return None;
    }
    let baseline = &plan.policies[summary.baseline];
    let comparisons = summary.cells.iter().flatten().filter(|cell| cell.versus.is_some()).count();
    let least =
        summary.least_p(plan).map_or_else(String::new, |p| format!(" No p value in this table can be below {}.", p_value(p)));
    let note = format!(
        "The smallest memory over that of {baseline}: the geometric mean over the workload's seeds, its 95 % bootstrap interval (BCa), and the p value of \
         Wilcoxon's signed-rank test over the seeds, corrected for all {comparisons} comparisons of this table (Holm).{least} \
         The tests apply to the programs that a generator makes from other seeds, not to other \
         programs. Workloads with one seed are left out."
    );
    let show = |versus: SeedComparison| match versus.ratio {
        None => none(),
        Some(level) => format!("{} ({}), p {}", ratio(level.mean), range(level, ratio), p_value(versus.corrected_p)),
    };
    let mut grid =
        by_workload(finished, format!("Over the seeds, against {baseline}"), note, &|cell| cell.versus.map_or_else(none, show));
    let mut has_several = plan.workloads.iter().map(|workload| workload.seeds > 1);
    grid.rows.retain(|_| has_several.next().unwrap_or(false));
    Some(grid)
}

/// The means over the workloads.
fn memory(finished: &Finished) -> Grid {
    let (plan, summary) = (&finished.plan, &finished.summary);
    let mut header: Vec<Head> = ["policy", "memory/LOAD", "range", "n"].map(Head::from).into();
    let mut note = format!(
        "Geometric means of the table by workload over n of {}, with the smallest and the largest \
         value. The workloads are chosen, not sampled, so \
         there are no intervals and no tests over them.",
        output::count(plan.workloads.len() as u64, "workload")
    );
    if let Some(outlier) = outlier(finished) {
        header.push(Head { name: format!("without {outlier}"), short: "without".to_owned() });
        header.push(Head { name: format!("{outlier}'s part"), short: "its part".to_owned() });
        let _ = write!(
            note,
            " Of all workloads, {outlier} contributes the most to the excess over LOAD, so the means are repeated without it, \
             and its share is shown (in logarithms, which geometric means add up)."
        );
    }
    header.push(Head::named("equal buffers", "equal"));
    note += " Equal buffers: the memory that a program needs to allocate only 64 buffers of 16 MiB, over their sum. Nothing \
             can be fragmented there, so a value above 1 is due to the policy's design: it uses only part of the device, or \
             takes memory in large pieces.";
    header.extend(given(plan).map(|place| {
        let name = capacity(plan.capacities[place]);
        Head { short: name.replace(" LOAD", "x"), name: format!("fits in {name}") }
    }));
    note += " Then the share of workloads that fit in a given memory (each workload counts the same, whatever its seeds).";
    if plan.policies.len() > 1 {
        let baseline = &plan.policies[summary.baseline];
        header.push(Head { name: format!("over {baseline}"), short: format!("ratio to {baseline}") });
        header.extend(["range", "less/same/more"].map(Head::from));
        let _ = write!(
            note,
            " Then against {baseline}, workload by workload: the ratio, and the number of workloads in which a policy needs \
             less, as much, or more."
        );
    }
    let mut rows: Vec<Vec<String>> =
        summary.policies.iter().zip(&finished.equal_buffers).map(|(policy, one)| policy_row(finished, policy, *one)).collect();
    rows.extend(beside(finished).into_iter().map(|row| padded(row, header.len())));
    Grid { title: "Memory: means".to_owned(), note: format!("{note} {ABOUT_BOUNDS}"), header, rows, key: None }
}

/// The name of the sweep's outlier.
fn outlier(finished: &Finished) -> Option<&str> {
    finished.summary.outlier.map(|place| finished.plan.workloads[place].name.as_str())
}

fn policy_row(finished: &Finished, policy: &PolicySummary, equal_buffers: Option<f64>) -> Vec<String> {
    let plan = &finished.plan;
    let mut row = mean_cells(&policy.name, policy.ratio, policy.without_outlier);
    row.push(equal_buffers.map_or_else(none, ratio));
    row.extend(given(plan).map(|place| share(policy, place)));
    match &policy.versus {
        None if plan.policies.len() == 1 => {}
        None => row.extend((0..3).map(|_| none())),
        Some(versus) => {
            row.push(versus.ratio.map_or_else(none, |level| ratio(level.mean)));
            row.push(versus.ratio.map_or_else(none, |level| range(level, ratio)));
            row.push(versus.counts.map(|count| count.to_string()).join("/"));
        }
    }
    row_of(policy, row)
}

/// The rows that are not policies: the lower bound first.
fn beside(finished: &Finished) -> Vec<Vec<String>> {
    let pools = finished.summary.load_with_pools.iter().map(|level| level.map(|level| level.mean)).collect();
    let ideal = |which: fn(&BoundRatios) -> Level| {
        finished.beside.iter().map(|beside| beside.as_ref().map(|beside| which(beside).mean)).collect()
    };
    let mut rows = vec![("(LOAD with pools, a lower bound)".to_owned(), pools)];
    if !finished.beside.is_empty() {
        let name = |name: &str, is_converged: fn(&BoundRatios) -> bool| {
            let open = finished.beside.iter().flatten().filter(|beside| !is_converged(beside)).count();
            if open == 0 {
                format!("({name})")
            } else {
                format!("({name}, not converged in {})", output::count(open as u64, "workload"))
            }
        };
        rows.push((name("ideal remapper", |beside| beside.is_page_ideal_converged), ideal(|beside| beside.page_ideal)));
        rows.push((name("offline packer", |beside| beside.is_packing_converged), ideal(|beside| beside.packing)));
    }
    rows.into_iter()
        .map(|(name, ratios): (String, Vec<Option<f64>>)| {
            let without = finished.summary.outlier.map(|outlier| Without::of(&ratios, outlier));
            mean_cells(&name, Level::over_workloads(&ratios), without)
        })
        .collect()
}

fn mean_cells(name: &str, level: Option<Level>, without: Option<Without>) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.push(level.map_or_else(none, |level| ratio(level.mean)));
    row.push(level.map_or_else(none, |level| range(level, ratio)));
    row.push(level.map_or(0, |level| level.count).to_string());
    if let Some(Without { mean, share }) = without {
        row.push(mean.map_or_else(none, ratio));
        row.push(share.map_or_else(none, |share| format!("{:.0}%", share * 100.0)));
    }
    row
}

fn padded(mut row: Vec<String>, length: usize) -> Vec<String> {
    row.resize_with(length, none);
    row
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "<0.0001".to_owned() } else { format!("{p:.4}") }
}

/// Driver time of each workload in one memory.
fn driver_of_cells(finished: &Finished, place: usize) -> Grid {
    let cell = |cell: &Cell| cell.driver_ns[place].map_or_else(none, |level| with_range(milliseconds(level), number));
    let title = format!("Driver time, {}", name(finished, place));
    let note = format!("Milliseconds of driver calls in the whole run, without waiting. {}", about_none(finished, place, ""));
    by_workload(finished, title, note, &cell)
}

/// Driver time of each workload per step, in one memory.
fn courses_of_cells(finished: &Finished, place: usize) -> Grid {
    let ms = |level: Option<Level>| level.map_or_else(none, |level| number(level.mean / 1e6));
    let show = |course: Course| match course.ns_per_step {
        None => none(),
        Some(_) => format!("{} / {}", ms(course.ns_per_step), ms(course.later_ns_per_step)),
    };
    let title = format!("Driver time for each step, {}", name(finished, place));
    let note = format!(
        "Milliseconds of driver calls for each step of the workload, without waiting: in the entire run and, after the slash, \
         in the later half of its steps. A policy that is slow only at the beginning has a small value \
         there. {}",
        about_none(finished, place, " or that its steps are not known")
    );
    by_workload(finished, title, note, &|cell| cell.courses[place].map_or_else(none, show))
}

/// How long the driver's calls wait in each workload, in one memory.
fn waiting_of_cells(finished: &Finished, place: usize) -> Grid {
    let show = |course: Course| match course.waited_ns {
        Some(waited) => with_range(milliseconds(waited), number),
        None => format!("{} calls", whole(course.waiting_calls.mean)),
    };
    let title = format!("Waiting, {}", name(finished, place));
    let note = format!(
        "Milliseconds that driver calls wait for work on the device. cudaFree waits for all of it, and the allocator synchronizes before it unmaps memory; cuMemUnmap and \
         cuMemRelease were measured not to wait. For a workload that does not say how long its work takes, such as a \
         recording, the number of calls that would wait is shown instead. {}",
        about_none(finished, place, "")
    );
    by_workload(finished, title, note, &|cell| cell.courses[place].map_or_else(none, show))
}

/// Means of driver time over the workloads, in these memories.
fn driver(finished: &Finished, places: &[usize]) -> Grid {
    let mut header = vec![Head::from("policy")];
    for &place in places {
        header.push(Head { name: format!("driver ms, {}", name(finished, place)), short: "driver ms".to_owned() });
        header.extend(["range", "n"].map(Head::from));
    }
    let rows = finished.summary.policies.iter().map(|policy| {
        let mut row = vec![policy.name.clone()];
        for &place in places {
            match policy.driver_ns[place].map(milliseconds) {
                None => row.extend([none(), none(), "0".to_owned()]),
                Some(level) => row.extend([number(level.mean), range(level, number), level.count.to_string()]),
            }
        }
        row_of(policy, row)
    });
    let note = format!(
        "The cost of a program's driver calls as measured on an H200, without waiting: geometric means over the n workloads that \
         fit in that memory, with the smallest and the largest \
         value. Means over different workloads are not comparable. A dash ({NONE}) means that no workload fits.{}",
        about_shares(finished)
    );
    Grid { title: format!("Driver time{}: means", only(finished, places)), note, rows: rows.collect(), header, key: None }
}

/// The only memory of a table, in its title.
fn only(finished: &Finished, places: &[usize]) -> String {
    if let [place] = places { format!(", {}", name(finished, *place)) } else { String::new() }
}

/// Means of the driver's work over the course of the workloads, in these memories.
fn course(finished: &Finished, places: &[usize]) -> Grid {
    let mut header = vec![Head::from("policy")];
    for &place in places {
        let name = name(finished, place);
        let columns = [
            ("calls a step", "calls/step"),
            ("ms a step", "ms/step"),
            ("in the later half", "later half"),
            ("waited ms", "waited ms"),
            ("waiting calls", "waiting calls"),
        ];
        header.extend(columns.map(|(column, short)| Head { name: format!("{column}, {name}"), short: short.to_owned() }));
        header.push(Head { name: format!("n, {name}"), short: "n".to_owned() });
    }
    let rows = finished.summary.policies.iter().map(|policy| {
        let cells = places.iter().flat_map(|&place| course_cells(&policy.courses[place]));
        row_of(policy, std::iter::once(policy.name.clone()).chain(cells).collect())
    });
    let note = format!(
        "Driver calls and their time for each step (geometric means over the workloads whose steps are known), the share of \
         that time that falls in the later half of the run (half for a policy that is equally slow throughout, zero for one \
         that is slow only at the beginning), how long calls wait for the device, in milliseconds (over the workloads that \
         say how long their work takes), and how many calls would wait: arithmetic means over the n workloads that fit.{}",
        about_shares(finished)
    );
    let title = format!("Driver work over the run{}: means", only(finished, places));
    Grid { title, note, rows: rows.collect(), header, key: None }
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

/// Says why a value is missing.
fn about_none(finished: &Finished, place: usize, or_that: &str) -> String {
    let fits = format!("A dash ({NONE}) means that the workload does not fit{or_that}.");
    if finished.plan.capacities[place] == Capacity::Plenty { fits + &about_shares(finished) } else { fits }
}

/// A sentence on the policies without values with plenty of memory; empty if there are none.
fn about_shares(finished: &Finished) -> String {
    let names: Vec<&str> = finished.taking_a_share().collect();
    let what = if names.len() == 1 { "takes" } else { "take" };
    let listed = match names.as_slice() {
        [] => return String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    format!(
        " {listed} {what} a share of the device's entire memory before the program begins, so with plenty of memory the cost \
         would depend on the device, not on the program; a dash ({NONE}) stands in its place."
    )
}

fn whole(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { number(value) }
}

/// A table: the first column is text, the others are numbers.
pub(super) struct Grid {
    /// The title.
    pub(super) title: String,
    /// How to read the table, as one paragraph.
    pub(super) note: String,
    pub(super) header: Vec<Head>,
    pub(super) rows: Vec<Vec<String>>,
    /// What the short names of columns stand for.
    pub(super) key: Option<String>,
}

/// A column's name.
pub(super) struct Head {
    pub(super) name: String,
    /// A short form for terminals.
    pub(super) short: String,
}

impl From<&str> for Head {
    fn from(name: &str) -> Head {
        Head { name: name.to_owned(), short: name.to_owned() }
    }
}

impl Head {
    pub(super) fn named(name: &str, short: &str) -> Head {
        Head { name: name.to_owned(), short: short.to_owned() }
    }
}

impl Grid {
    /// Adds it to an answer, with its title and short headings.
    pub(super) fn add_to(&self, answer: &mut Answer) {
        let mut table = Table::plain(0, self.header.iter().map(|head| output::one_line(&head.short)));
        for row in &self.rows {
            table.row(row.iter().map(|cell| output::one_line(cell)));
        }
        answer.title(&self.title);
        answer.paragraphs(self.key.clone());
        answer.table(table);
    }

    pub(super) fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("### {}\n\n{}\n\n", self.title, self.note);
        text += &line(self.header.iter().map(|head| cell(&head.name)).collect());
        text += "|---";
        text += &"|--:".repeat(self.header.len() - 1);
        text += "|\n";
        for row in &self.rows {
            text += &line(row.iter().map(|text| cell(text)).collect());
        }
        text
    }

    /// The table as a LaTeX environment; it needs the package booktabs.
    pub(super) fn latex(&self) -> String {
        let line = |cells: Vec<String>| format!("    {} \\\\\n", cells.join(" & "));
        let mut text = format!("\\begin{{table}}\n  \\centering\n  \\caption{{{}. {}}}\n", tex(&self.title), tex(&self.note));
        let _ = writeln!(text, "  \\begin{{tabular}}{{l{}}}\n    \\toprule", "r".repeat(self.header.len() - 1));
        text += &line(self.header.iter().map(|head| tex(&head.name)).collect());
        text += "    \\midrule\n";
        for row in &self.rows {
            text += &line(row.iter().map(|cell| tex(cell)).collect());
        }
        text + "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    }

    pub(super) fn html(&self) -> String {
        let mut text =
            format!("<section class=\"card\"><h2>{}</h2><p class=\"note\">{}</p>", escape(&self.title), escape(&self.note));
        text += "<div class=\"wide\"><table><thead><tr>";
        for head in &self.header {
            let _ = write!(text, "<th>{}</th>", escape(&head.name));
        }
        text += "</tr></thead><tbody>";
        for row in &self.rows {
            text += "<tr>";
            for cell in row {
                let _ = write!(text, "<td>{}</td>", escape(cell));
            }
            text += "</tr>";
        }
        text + "</tbody></table></div></section>\n"
    }
}

/// Escapes text for LaTeX.
fn tex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped += "\\textbackslash{}",
            '~' => escaped += "\\textasciitilde{}",
            '^' => escaped += "\\textasciicircum{}",
            '<' => escaped += "$<$",
            '>' => escaped += "$>$",
            '–' => escaped += "--",
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let header = vec!["policy".into(), Head { name: "a_long name".into(), short: "1".into() }];
        let rows = vec![vec!["first|fit".into(), "1.05".into()], vec!["b".into(), "–".into()]];
        Grid { title: "Memory".into(), note: "Over LOAD.".into(), header, rows, key: Some("Columns: 1\u{a0}a_long name".into()) }
    }

    #[test]
    fn one_table_in_four_notations() {
        let mut answer = Answer::new();
        grid().add_to(&mut answer);
        let text = anstream::adapter::strip_str(&answer.text(80)).to_string();
        assert_eq!(text, "Memory\nColumns: 1 a_long name\npolicy        1\nfirst|fit  1.05\nb             –\n");
        assert!(grid().markdown().ends_with("| policy | a_long name |\n|---|--:|\n| first\\|fit | 1.05 |\n| b | – |\n"));
        assert!(
            grid()
                .latex()
                .contains("    policy & a\\_long name \\\\\n    \\midrule\n    first|fit & 1.05 \\\\\n    b & -- \\\\\n")
        );
        assert!(grid().html().contains("<tr><td>first|fit</td><td>1.05</td></tr>"));
    }
}
