//! `parkade pack`: how little memory would a recorded program need if all its requests were known in advance?

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade_recording::Recording;
use parkade_replay::Requests;
use parkade_replay::recognition::Recognition;
use parkade_research::packing::{
    self, Buffer, CsvFile, DEFAULT_STEPS, Effort, Found, Instance, Recorded, Refused, is_csv, pack_watched, read_csv, write_csv,
};

use crate::commands::simulated::packing::not_converged;
use crate::terminal::answer::Answer;
use crate::terminal::args::{Force, Print, RecordedLimit};
use crate::terminal::json_struct::{all, one_of, sections, view};
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::recording::{self, MadeBy, short_name};
use crate::terminal::runner::{Command, Form, Lines, Subject};
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, progress};

/// Find the smallest memory into which a snapshot's requests fit.
///
/// The result is what an allocator that does not move memory can hope for; none can need less than the load, the most bytes live at
/// once. The file is a recording, whose requests are rounded up to 512 bytes (PyTorch's smallest block, whatever the settings), or a
/// CSV file with the columns id,lower,upper,size, where id is optional. Work is counted in steps, so the answer is the same on every
/// machine.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade pack snapshot.pickle
  parkade pack A.1048576.csv --budget 3000000000 -o placed.csv

Exit code: 0 packed and checked, 2 could not run.")]
pub(crate) struct Args {
    /// The recording, or the CSV file.
    file: PathBuf,
    /// The device, if the recording has several.
    #[arg(long)]
    device: Option<u32>,
    #[command(flatten)]
    recorded: RecordedLimit,
    /// The seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The approximate number of steps to work; one order is always tried. About ten million steps take a second.
    #[arg(long, value_name = "STEPS", default_value_t = DEFAULT_STEPS)]
    budget: u64,
    /// Write where each buffer lies: CSV with the columns id,lower,upper,size,offset, and alignment if the file has it; `-` is standard
    /// output. An existing file is not overwritten without --force.
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    print: Print,
}

/// One device's buffers, or a file's.
pub(crate) struct Packed {
    device: Option<u32>,
    /// The contents of its CSV file.
    listed: CsvFile,
    instance: Instance,
    found: Found,
    /// The steps that the packer was given.
    budget: u64,
    seconds: f64,
    /// Whether live memory before the first entry counts as requested before it.
    has_lost_beginning: bool,
    /// The requests of a recording that failed and are not packed.
    refused: Option<Refused>,
    /// Which release made the recording.
    made_by: Option<Recognition>,
}

impl Packed {
    /// The load with the last failed request, for a recording.
    fn load_with_last_refused(&self) -> Option<u64> {
        self.refused.map(|refused| refused.in_use_with_last.max(self.instance.load()))
    }

    fn ratio(&self) -> f64 {
        match self.instance.load() {
            0 => 1.0,
            load => self.found.packing.height as f64 / load as f64,
        }
    }

    /// Whether no packing can need less memory, which is proven.
    fn is_best(&self) -> bool {
        self.found.packing.height <= self.found.bound
    }
}

impl Command for Args {
    type Found = Vec<Packed>;

    fn compute(&self) -> Result<Vec<Packed>> {
        pack_file(self)
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::File(&self.file)
    }

    fn answer(&self, packed: &Vec<Packed>) -> Answer {
        answer(&self.file, packed)
    }

    fn json(&self, packed: &Vec<Packed>, lines: &mut Lines) -> Result<()> {
        lines.add(&Object::of(self, packed))
    }
}

fn pack_file(args: &Args) -> Result<Vec<Packed>> {
    let wanted = Wanted::new(args.force.force, args.form()).reads([&args.file]).writes("--output", args.output.as_ref());
    let outputs = wanted.check()?;
    let effort = Effort { steps: args.budget, seed: args.seed };
    let packed = match read_buffers(&args.file)? {
        Some(listed) => {
            if args.device.is_some() {
                bail!("--device is for recordings; a CSV file has no devices");
            }
            if args.recorded.recorded_limit.is_some() {
                bail!("--recorded-limit is for recordings; a CSV file has no recorded run");
            }
            let (instance, found, seconds) = solve(listed.buffers.clone(), effort, args.print.json)?;
            vec![Packed {
                device: None,
                listed,
                instance,
                found,
                budget: effort.steps,
                seconds,
                has_lost_beginning: false,
                refused: None,
                made_by: None,
            }]
        }
        None => pack_recording(args, &recording::read(&args.file)?, effort)?,
    };
    if let Some(target) = &args.output {
        let [one] = packed.as_slice() else { return Err(too_many_devices(packed.len())) };
        outputs.write(target, write_csv(&one.listed, &one.found.packing).as_bytes())?;
    }
    Ok(packed)
}

/// The buffers of a CSV file; `None` if it is not CSV.
fn read_buffers(file: &Path) -> Result<Option<CsvFile>> {
    use std::io::Read;
    let mut head = Vec::new();
    let cannot_be_read = |cause| anyhow!("cannot be read: {cause}");
    let opened = std::fs::File::open(file).map_err(cannot_be_read)?;
    opened.take(HEAD).read_to_end(&mut head).map_err(cannot_be_read)?;
    if !is_csv(&head) {
        return Ok(None);
    }
    Ok(Some(read_csv(&std::fs::read_to_string(file).map_err(cannot_be_read)?)?))
}

/// The bytes of a file that show its kind.
const HEAD: u64 = 1 << 12;

fn pack_recording(args: &Args, recording: &Recording, effort: Effort) -> Result<Vec<Packed>> {
    let (own, _, made_by) = args.recorded.own_or_found(recording)?;
    let traced = recording.devices.iter().filter(|device| !device.trace.is_empty());
    let chosen: Vec<_> = traced.clone().filter(|device| args.device.is_none_or(|wanted| wanted == device.device)).collect();
    if chosen.is_empty() {
        match args.device.filter(|_| traced.clone().next().is_some()) {
            Some(wanted) => {
                bail!(
                    "device {wanted} has no trace entries; those that have: {}",
                    output::list(traced.map(|device| device.device))
                )
            }
            None => return Err(recording::no_trace(recording, "to pack")),
        }
    }
    let is_one_of_several = chosen.len() > 1;
    if is_one_of_several && args.output.is_some() {
        return Err(too_many_devices(chosen.len()));
    }
    let each = chosen.into_iter().map(|device| {
        let (number, devices) = (device.device, if is_one_of_several { 2 } else { 1 });
        let bar = progress::entries(args.print.json);
        bar.set_length(device.trace.len() as u64);
        let requests = Requests::of_recording(device, &own, &mut |entries| bar.set_position(entries as u64));
        bar.finish_and_clear();
        let requests = recording::of_device(requests, number, devices)?;
        let Recorded { buffers, refused } = Recorded::of(&requests);
        let ids = (0..buffers.len()).map(|number| number.to_string()).collect();
        let listed = CsvFile { ids, buffers, has_alignment: false };
        let solved = solve(listed.buffers.clone(), effort, args.print.json);
        let (instance, found, seconds) = recording::of_device(solved, number, devices)?;
        let (device, has_lost_beginning) = (Some(device.device), requests.lost_beginning.is_some());
        let (refused, made_by) = (Some(refused), Some(made_by.clone()));
        Ok(Packed { device, listed, instance, found, budget: effort.steps, seconds, has_lost_beginning, refused, made_by })
    });
    each.collect()
}

fn too_many_devices(count: usize) -> anyhow::Error {
    anyhow!("the output is one file, but the recording has {count} devices: choose one with --device")
}

/// The checked packing, and how long it took in seconds.
fn solve(buffers: Vec<Buffer>, effort: Effort, is_hidden: bool) -> Result<(Instance, Found, f64)> {
    let start = Instant::now();
    let instance = Instance::new(buffers)?;
    let bar = progress::of("steps at most", is_hidden);
    bar.set_length(effort.steps);
    let found = pack_watched(&instance, &effort, &mut |steps| bar.set_position(steps));
    bar.finish_and_clear();
    packing::check(&instance, &found.packing)
        .map_err(|fault| anyhow!("the packing found is invalid, which is a bug in parkade: {fault:?}"))?;
    Ok((instance, found, start.elapsed().as_secs_f64()))
}

fn answer(file: &Path, packed: &[Packed]) -> Answer {
    let (name, mut answer) = (short_name(file), Answer::new());
    for one in packed {
        let device = one.device.filter(|_| packed.len() > 1).map_or_else(String::new, |device| format!(" device {device}"));
        let found = &one.found;
        answer.title(format!("{name}{device}: {}", output::count(one.instance.buffers().len(), "buffer")));
        let (verdict, mark) = if one.is_best() {
            ("no packing needs less".to_owned(), Mark::Good)
        } else {
            (not_converged(found, one.budget, "--budget"), Mark::Plain)
        };
        let mut table = Table::bare(2).with_left([0, 2]);
        table.row(["load".to_owned(), show_bytes(one.instance.load()), "the most live bytes at once".to_owned()]);
        let height = show_bytes(found.packing.height);
        table.marked(["packing".to_owned(), height, format!("{:.4} of the load: {verdict}", one.ratio())], 2, mark);
        answer.table(table);
        answer.indented(2, format!("{} steps, {:.1} s", found.steps, one.seconds));
        refused(one).into_iter().for_each(|line| answer.indented(2, line));
        if one.has_lost_beginning {
            answer.indented(
                2,
                "The oldest entries are missing: blocks that were live at the first entry count as requested before its first \
                 entry.",
            );
        }
    }
    if let Some(made_by) = packed.iter().find_map(|one| one.made_by.as_ref()) {
        answer.indented(2, recording::made_by_words(made_by));
    }
    answer
}

/// The requests of the recorded run that failed.
fn refused(packed: &Packed) -> Option<String> {
    let (refused, load) = (packed.refused?, show_bytes(packed.load_with_last_refused()?));
    let bytes = show_bytes(refused.bytes);
    match refused.requests {
        0 => None,
        1 => Some(format!("Left out: 1 request for {bytes} that ran out of memory; with it the load is {load}.")),
        count => Some(format!(
            "Left out: {count} requests for {bytes} in all that ran out of memory; with the last of them the load is {load}."
        )),
    }
}

view! {
    /// With several devices, `devices` has the numbers of each.
    struct Object(args: &Args, packed: &[Packed]) {
        /// The recording or CSV file.
        file: String = args.file.display().to_string(),
        /// The seed.
        seed: u64 = args.seed,
        /// The steps allowed.
        budget: u64 = args.budget,
        #[serde(flatten)]
        numbers: OneOrMany = match packed {
            [one] => OneOrMany::One(Box::new(Numbers::of(one))),
            many => OneOrMany::Many(Devices::of(many)),
        },
    }
}

one_of! {
    enum OneOrMany {
        One(Box<Numbers>),
        Many(Devices),
    }
}

view! {
    struct Devices(packed: &[Packed]) {
        /// Each device, if there are several.
        devices: Vec<Numbers> = all(packed, Numbers::of),
    }
}

sections! {
    "pack": Object;
}

view! {
    struct Numbers(packed: &Packed) {
        /// The number of buffers packed.
        buffers: usize = packed.instance.buffers().len(),
        /// The most bytes live at once.
        load_bytes: u64 = packed.instance.load(),
        /// The lower bound for every packing.
        bound_bytes: u64 = packed.found.bound,
        /// The memory that the packing found needs.
        packing_bytes: u64 = packed.found.packing.height,
        /// The memory of the packing over the load.
        ratio: f64 = packed.ratio(),
        /// Whether it is proven that no packing needs less memory. If not, the result is not converged: the search ran out of
        /// steps.
        is_best: bool = packed.is_best(),
        /// The number of steps of work.
        steps: u64 = packed.found.steps,
        /// The time taken.
        seconds: f64 = packed.seconds,
        /// Whether the oldest entries of the recording are missing.
        lost_beginning: bool = packed.has_lost_beginning,
        /// The release that made the recording; null for a CSV file.
        made_by: Option<MadeBy> = packed.made_by.as_ref().map(MadeBy::of),
        #[serde(flatten)]
        refused: Option<LeftOut> =
            packed.refused.zip(packed.load_with_last_refused()).map(|(refused, load)| LeftOut::of(refused, load)),
        /// The device of a recording.
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<u32> = packed.device,
    }
}

view! {
    /// Requests of a recording that failed.
    struct LeftOut(refused: Refused, load: u64) {
        /// The number of requests of a recording that are left out because they ran out of memory.
        refused_requests: u64 = refused.requests,
        /// The total bytes of those requests.
        refused_bytes: u64 = refused.bytes,
        /// The load with the last of those requests.
        load_with_last_refused_bytes: u64 = load,
    }
}
