//! `parkade sweep --largest-batch` finds how large a batch fits, for each training of a transformer, device and policy.
//!
//! The workloads, policies and capacities of a sweep define the search; the capacities are devices. The results are shown as
//! tables, JSON and CSV.

use anyhow::{Result, anyhow, bail};
use parkade_research::study::largest_batch::{CARDS, Case, Grid as Search, Point, Training, Why, card};
use parkade_research::workload;
use serde::Serialize;

use super::grids::Grid;
use super::plan::{self, Args, threads, workload_items};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::outputs::Wanted;
use crate::terminal::size::{self, show_bytes};
use crate::terminal::table::Table;
use crate::terminal::{output, progress};

/// The default workload: a model of 6.7 billion parameters, with scratch memory.
pub(super) const WORKLOAD: &str = "transformer:preset=7b,mixed=on,steps=3";
/// The default devices.
const DEVICES: &str = "A100-40GB,H100-80GB,H200-141GB";

/// A device's memory, as given and in bytes.
struct Device {
    text: String,
    bytes: u64,
}

/// The result of the search.
pub struct Found {
    context_bytes: u64,
    most_batch: u64,
    devices: Vec<Device>,
    points: Vec<Point>,
}

/// Searches, and writes the file of --csv.
pub(super) fn find(args: &Args) -> Result<Found> {
    let asked = &args.asked;
    let devices = devices(&args.capacities)?;
    let search = Search {
        trainings: trainings(args)?,
        devices_bytes: devices.iter().map(|device| device.bytes).collect(),
        context_bytes: asked.context,
        policies: plan::policies(&args.policies)?,
        most_batch: asked.most_batch,
    };
    if args.force && !args.shown.writes() {
        bail!("--force has nothing to overwrite: with --largest-batch it applies only to --csv");
    }
    let outputs = args.shown.add_to(Wanted::new(args.force, args.shown.form())).check()?;
    let pool = threads(args, search.points())?;
    let bar = progress::of("combinations", args.shown.json.json);
    bar.set_length(search.points() as u64);
    let points = pool.install(|| search.walk(&|| bar.inc(1)));
    bar.finish_and_clear();
    let found = Found { context_bytes: asked.context, most_batch: asked.most_batch, devices, points: points? };
    if let Some(target) = args.shown.csv() {
        outputs.write(target, &csv_of(&found.points)?)?;
    }
    Ok(found)
}

/// The trainings of the requested workloads, each once. `all` means those of the catalogue.
fn trainings(args: &Args) -> Result<Vec<Training>> {
    let mut items: Vec<String> = Vec::new();
    let given = args.given_workloads();
    for list in &given {
        for item in workload_items(list)? {
            let item = item.to_string_lossy().into_owned();
            let meant = match item.as_str() {
                "all" => workload::CATALOGUE
                    .iter()
                    .filter(|known| workload::transformer(known.name).is_some())
                    .map(|it| it.name.into())
                    .collect(),
                _ => vec![item],
            };
            items.extend(meant);
        }
    }
    if given.is_empty() {
        items.push(WORKLOAD.to_owned());
    }
    let mut trainings: Vec<Training> = Vec::new();
    for item in items {
        if trainings.iter().any(|known| known.name == item) {
            continue;
        }
        let Some(read) = workload::transformer(&item) else {
            bail!(
                "{item:?} does not train a transformer, and --largest-batch works only for workloads that do: write \
                 {WORKLOAD}, transformer:layers=24,hidden=2048,heads=16, or a name like gpt2"
            );
        };
        let (transformer, steps) = read.map_err(|error| anyhow!("{item}: {error}"))?;
        trainings.push(Training { name: item, transformer, steps });
    }
    Ok(trainings)
}

/// Devices by card or size, each once.
fn devices(lists: &[String]) -> Result<Vec<Device>> {
    let default = [DEVICES.to_owned()];
    let mut devices: Vec<Device> = Vec::new();
    for text in plan::items(if lists.is_empty() { &default } else { lists }) {
        let bytes = match card(text) {
            Some(card) => card.total_bytes,
            None => size::parse(text).map_err(|error| {
                anyhow!(
                    "--capacities: {error}; with --largest-batch they are sizes, or cards by name: {}",
                    CARDS.map(|card| card.name).join(", ")
                )
            })?,
        };
        if devices.iter().all(|known| known.bytes != bytes) {
            devices.push(Device { text: text.to_owned(), bytes });
        }
    }
    Ok(devices)
}

impl Found {
    /// Whether some batch fits somewhere.
    pub(super) fn is_any(&self) -> bool {
        self.points.iter().any(|point| point.batch > 0)
    }

    /// A table for each training and device.
    fn grids(&self) -> impl Iterator<Item = Grid> {
        self.points.chunk_by(|a, b| a.case == b.case).map(|of_case| self.grid(of_case))
    }

    /// The same for documents.
    pub(super) fn tables(&self, args: &Args) -> String {
        self.grids().map(|grid| args.shown.noted(&grid)).collect::<Vec<_>>().join("\n")
    }

    /// The same in human-readable form.
    pub(super) fn answer(&self) -> Answer {
        let mut answer = Answer::new();
        answer.paragraph(format!("the driver's context takes {} of each device", show_bytes(self.context_bytes)));
        for grid in self.grids() {
            answer.gap();
            answer.title(grid.title);
            answer.indented(2, grid.note);
            let mut table = Table::plain(2, HEADS).with_left([0, HEADS.len() - 1]);
            grid.rows.into_iter().for_each(|row| table.row(row));
            answer.table(table);
        }
        let searched = self.points.iter().filter(|point| point.runs > 0).count();
        if searched > 0 {
            let count = self.not_monotone();
            answer.gap();
            answer.paragraph(format!(
                "the batch is the largest tried that fits; in {count} of {searched} searches a smaller one does not fit"
            ));
        }
        answer
    }

    /// The number of searches in which a batch below the one found does not fit.
    fn not_monotone(&self) -> usize {
        self.points.iter().filter(|point| point.fails_below_batch.is_some()).count()
    }

    /// The table of one training on one device, without rows if nothing fits under any policy.
    fn grid(&self, points: &[Point]) -> Grid {
        let first = &points[0];
        let Case { training, device_bytes, .. } = &first.case;
        let device = self.devices.iter().find(|device| device.bytes == *device_bytes);
        let device = device.map_or_else(|| device_bytes.to_string(), |device| output::one_line(&device.text));
        let billions = training.transformer.parameters() as f64 / 1e9;
        let name = output::one_line(&training.name);
        let title = format!("{name} on {device} ({}): {billions:.2} billion parameters", show_bytes(*device_bytes));
        let note = match &first.why {
            Why::States { state_bytes } => {
                let times = *state_bytes as f64 / training.parameter_bytes().max(1) as f64;
                let states = show_bytes(*state_bytes);
                format!(
                    "nothing fits: parameters, gradients and the optimizer's states alone need {states}, {times:.1} x the bytes of the parameters"
                )
            }
            _ if first.bound.batch == 0 => {
                format!("nothing fits: the smallest batch has {} live at once", show_bytes(first.bound.load_bytes))
            }
            _ => format!(
                "the load allows a batch of {}, with {} live at once",
                first.bound.batch,
                show_bytes(first.bound.load_bytes)
            ),
        };
        let rows = points.iter().filter(|point| point.bound.batch > 0).map(cells).collect();
        Grid { title, note, header: HEADS.map(Into::into).into(), rows, key: None }
    }
}

const HEADS: [&str; 5] = ["policy", "batch", "reserved", "live", "the next one"];

fn cells(point: &Point) -> Vec<String> {
    let (reserved, live) = match point.batch {
        0 => ("-".to_owned(), "-".to_owned()),
        _ => (show_bytes(point.reserved_bytes), show_bytes(point.load_bytes)),
    };
    vec![point.policy.to_string(), point.batch.to_string(), reserved, live, in_words(&point.why)]
}

/// Why the next batch does not fit.
fn in_words(why: &Why) -> String {
    match why {
        Why::States { state_bytes } => format!("the states alone need {}", show_bytes(*state_bytes)),
        Why::Load { batch, load_bytes: u64::MAX } => format!("{batch}: more than 1 PiB live"),
        Why::Load { batch, load_bytes } => format!("{batch}: {} live", show_bytes(*load_bytes)),
        Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => format!(
            "{batch}: {} live of {} reserved, {} more refused",
            show_bytes(*live_bytes),
            show_bytes(*reserved_bytes),
            show_bytes(*asked_bytes)
        ),
        Why::Fault { batch, reason } => format!("{batch}: {}", output::one_line(reason)),
        Why::NotTried => "not tried".to_owned(),
    }
}

view! {
    pub(super) struct Object<'a>(found: &'a Found) {
        /// The memory that the driver's context takes on each device.
        context_bytes: u64 = found.context_bytes,
        /// The largest batch tried.
        most_batch: u64 = found.most_batch,
        /// The number of searches that found that a batch fits although a smaller one does not.
        not_monotone: usize = found.not_monotone(),
        /// Each combination.
        points: Vec<BatchPoint<'a>> = all(&found.points, |point| BatchPoint { row: Row::of(point), next: Next::of(&point.why) }),
    }
}

view! {
    /// A combination.
    struct BatchPoint<'a> {
        #[serde(flatten)]
        row: Row<'a>,
        /// Why the next batch does not fit.
        next: Next,
    }
}

view! {
    /// The columns shared by JSON and CSV.
    struct Row<'a>(point: &'a Point) {
        /// The training as given.
        workload: &'a str = &point.case.training.name,
        /// The model's parameters.
        parameters: u64 = point.case.training.transformer.parameters(),
        /// Training steps.
        steps: u64 = point.case.training.steps,
        /// The bytes of parameters, gradients and optimizer states.
        state_bytes: u64 = point.case.training.state_bytes(),
        /// The device's memory.
        device_bytes: u64 = point.case.device_bytes,
        /// The device's memory without the context.
        usable_bytes: u64 = point.case.usable_bytes,
        /// The policy.
        policy: &'a str = &point.policy,
        /// The largest batch tried that fits; 0 if none does.
        batch: u64 = point.batch,
        /// Reserved with that batch.
        reserved_bytes: u64 = point.reserved_bytes,
        /// Live at once with that batch.
        load_bytes: u64 = point.load_bytes,
        /// A smaller batch that does not fit.
        fails_below_batch: Option<u64> = point.fails_below_batch,
        /// The largest batch whose live bytes fit.
        bound_batch: u64 = point.bound.batch,
        /// Live at once with that batch.
        bound_load_bytes: u64 = point.bound.load_bytes,
        /// The number of runs simulated.
        runs: u32 = point.runs,
    }
}

/// The kind of reason why the next batch does not fit.
enum Kind {
    States,
    Load,
    Stranded,
    Fault,
    NotTried,
}

parkade_recording::names! {
    Kind {
        Kind::States => "states",
        Kind::Load => "load",
        Kind::Stranded => "stranded",
        Kind::Fault => "fault",
        Kind::NotTried => "not-tried",
    }
}

impl Kind {
    const fn of(why: &Why) -> Kind {
        match why {
            Why::States { .. } => Kind::States,
            Why::Load { .. } => Kind::Load,
            Why::Stranded { .. } => Kind::Stranded,
            Why::Fault { .. } => Kind::Fault,
            Why::NotTried => Kind::NotTried,
        }
    }
}

view! {
    /// Why the next batch does not fit.
    struct Next {
        /// The reason.
        why: Word<Kind>,
        /// `states`: these bytes alone are more than there is.
        #[serde(skip_serializing_if = "Option::is_none")]
        state_bytes: Option<u64>,
        /// The batch.
        #[serde(skip_serializing_if = "Option::is_none")]
        batch: Option<u64>,
        /// `load`: its live bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        load_bytes: Option<u64>,
        /// `stranded`: the request that fails.
        #[serde(skip_serializing_if = "Option::is_none")]
        asked_bytes: Option<u64>,
        /// `stranded`: live bytes then.
        #[serde(skip_serializing_if = "Option::is_none")]
        live_bytes: Option<u64>,
        /// `stranded`: reserved bytes then.
        #[serde(skip_serializing_if = "Option::is_none")]
        reserved_bytes: Option<u64>,
        /// `fault`: what the policy did wrong.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
}

impl Next {
    fn of(why: &Why) -> Next {
        let none = Next {
            why: Word::of(&Kind::of(why)),
            state_bytes: None,
            batch: None,
            load_bytes: None,
            asked_bytes: None,
            live_bytes: None,
            reserved_bytes: None,
            reason: None,
        };
        match *why {
            Why::States { state_bytes } => Next { state_bytes: Some(state_bytes), ..none },
            Why::Load { batch, load_bytes } => Next { batch: Some(batch), load_bytes: Some(load_bytes), ..none },
            Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => Next {
                batch: Some(batch),
                asked_bytes: Some(asked_bytes),
                live_bytes: Some(live_bytes),
                reserved_bytes: Some(reserved_bytes),
                ..none
            },
            Why::Fault { batch, ref reason } => Next { batch: Some(batch), reason: Some(reason.clone()), ..none },
            Why::NotTried => none,
        }
    }
}

/// One row for each point; the reason why the next batch does not fit is also given in words.
fn csv_of(points: &[Point]) -> Result<Vec<u8>> {
    #[derive(Serialize)]
    struct InWords {
        next: &'static str,
        next_in_words: String,
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    for point in points {
        writer.serialize((Row::of(point), InWords { next: Kind::of(&point.why).name(), next_in_words: in_words(&point.why) }))?;
    }
    Ok(writer.into_inner()?)
}
