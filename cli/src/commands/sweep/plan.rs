//! The arguments of a sweep, the plan that they stand for, and the list of the names that they accept.
//!
//! Lists of workloads are split even though file names may contain commas, blanks and bytes that are not text.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_policies::{BESIDE, CATALOGUE as POLICIES, Named, Parameter, needs_serial_work};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::Asked;
use parkade_replay::{Requests, VerifyError, VerifyOptions};
use parkade_research::packing::COMPARED_STEPS;
use parkade_research::policies::policies as known_policies;
use parkade_research::study::Addresses;
use parkade_research::study::largest_batch::CONTEXT_BYTES;
use parkade_research::study::sweep::{Capacity, Plan, PlannedWorkload, Precision, PreparedWorkload, Share, Source};
use parkade_research::workload::recorded::of_requests;
use parkade_research::workload::{self, CATALOGUE, NamedWorkload, Workload};

use super::rows::Shard;
use super::show::Shown;
use super::traces;
use crate::commands::enable::Usable;
use crate::recordings::Inputs;
use crate::terminal::args::{grid, suggestion};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::progress::WrongArgument;
use crate::terminal::{output, recording, size};

/// The default capacities.
const CAPACITIES: &str = "1.0,1.02,1.05,1.1,1.25";

/// A plan, and what is needed to run it.
pub(super) struct Study {
    pub(super) plan: Plan,
    /// The plan's workloads, in its order.
    pub(super) sources: Vec<Source>,
    /// The plan's policies, in its order.
    pub(super) policies: Vec<Named>,
    /// The recordings that were read.
    pub(super) files: Vec<PathBuf>,
}

pub(super) fn study(args: &Args) -> Result<Study> {
    if args.seeds == 0 {
        return Err(WrongArgument("--seeds 0 leaves nothing to do: give at least 1".to_owned()).into());
    }
    let policies = policies(&args.policies)?;
    let default = [CAPACITIES.to_owned()];
    let capacities = capacities(if args.capacities.is_empty() { &default } else { &args.capacities })?;
    if Addresses::named(&args.addresses).is_none() {
        let known = Addresses::ALL.map(Addresses::name);
        let why = suggestion(&args.addresses, known);
        return Err(WrongArgument(format!("there is no address model {:?}{why}", args.addresses)).into());
    }
    let mut plan = Plan {
        workloads: Vec::new(),
        policies: policies.iter().map(|policy| policy.name.to_string()).collect(),
        capacities,
        addresses: args.addresses.clone(),
        preallocate: args.prealloc,
        precision: args.precision,
    };
    let (mut sources, mut files) = (Vec::new(), Vec::new());
    let given = args.given_workloads();
    let all = vec![OsString::from("all")];
    for found in chosen_workloads(if given.is_empty() { &all } else { &given })? {
        let seeds = if is_seeded(&found.source, args.seeds) { args.seeds } else { 1 };
        plan.workloads.push(PlannedWorkload { name: found.source.name.clone(), seeds, hash: found.hash });
        // Checked after each workload, because generating all of them takes time if there turn out to be too many jobs.
        plan.check()?;
        sources.push(found.source);
        files.extend(found.file);
    }
    plan.check()?;
    Ok(Study { plan, sources, policies, files })
}

/// Whether seeds change the workload; running the same program twice would count as evidence twice.
fn is_seeded(source: &Source, seeds: u64) -> bool {
    let hash = |seed| PreparedWorkload::new((source.make)(seed)).hash;
    source.is_seeded && seeds > 1 && hash(1) != hash(2)
}

/// Pairs of workloads that are the same program under two names.
pub(super) fn same_programs(sources: &[Source]) -> Vec<(&str, &str)> {
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    let mut same = Vec::new();
    for source in sources {
        let hash = PreparedWorkload::new((source.make)(1)).hash;
        match names.get(&hash) {
            Some(first) => same.push((*first, source.name.as_str())),
            None => drop(names.insert(hash, &source.name)),
        }
    }
    same
}

/// The non-empty items of comma-separated lists.
pub(super) fn items(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| parkade_policies::items(list))
}

/// The policies of these names and grids, each once.
pub(super) fn policies(lists: &[String]) -> Result<Vec<Named>> {
    let mut policies: Vec<Named> = Vec::new();
    for item in items(lists) {
        let found: Vec<Named> = match item {
            "all" => POLICIES.iter().cloned().chain(known_policies().own()).collect(),
            name => grid(name)?,
        };
        policies.extend(found);
    }
    let mut seen = BTreeSet::new();
    policies.retain(|policy| seen.insert(policy.name.clone()));
    Ok(policies)
}

/// The capacities; the smallest and plenty always come first.
fn capacities(lists: &[String]) -> Result<Vec<Capacity>> {
    let mut capacities = vec![Capacity::Smallest, Capacity::Plenty];
    if items(lists).next().is_none() {
        return Err(WrongArgument("there is nothing to do: no capacities".to_owned()).into());
    }
    for item in items(lists) {
        let parsed = match item.bytes().last() {
            Some(last) if last.is_ascii_alphabetic() && !matches!(item, "smallest" | "plenty") => {
                size::parse(item).map(Capacity::Bytes)
            }
            _ => item.parse().map_err(|error: String| format!("{error}, or a size with its unit (80GiB)")),
        };
        let capacity = parsed.map_err(|why| WrongArgument(format!("--capacities {item}: {why}")))?;
        if !capacities.contains(&capacity) {
            capacities.push(capacity);
        }
    }
    Ok(capacities)
}

/// A workload, with its hash and file if it comes from one.
struct Found {
    source: Source,
    hash: Option<String>,
    file: Option<PathBuf>,
}

impl Found {
    /// Gives it another name.
    fn rename(&mut self, name: String) {
        let make = std::mem::replace(&mut self.source.make, Box::new(|_| Workload::default()));
        self.source.name.clone_from(&name);
        self.source.make = Box::new(move |seed| Workload { name: name.clone(), ..make(seed) });
    }
}

fn chosen_workloads(lists: &[OsString]) -> Result<Vec<Found>> {
    let mut chosen = Vec::new();
    for list in lists {
        for item in workload_items(list)? {
            match item.to_str() {
                Some("all") => chosen.extend(CATALOGUE.iter().map(of_catalogue)),
                _ if is_folder(&item) => chosen.extend(of_folder(Path::new(&item))?),
                _ => chosen.extend(workload(&item)?),
            }
        }
    }
    let mut seen = BTreeSet::new();
    chosen.retain(|found| seen.insert((found.source.name.clone(), found.hash.clone())));
    tell_apart(&mut chosen);
    Ok(chosen)
}

/// Makes names unique: recordings with the same name are distinguished by their folders or, if that is not enough, by numbers.
fn tell_apart(chosen: &mut [Found]) {
    let counts = |chosen: &[Found]| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        chosen.iter().for_each(|found| *counts.entry(found.source.name.clone()).or_default() += 1);
        counts
    };
    let at_first = counts(chosen);
    for found in chosen.iter_mut().filter(|found| at_first.get(&found.source.name).is_some_and(|&count| count > 1)) {
        let folder = found.file.as_deref().and_then(Path::parent).and_then(Path::file_name);
        if let Some(folder) = folder.map(|name| plain(&name.to_string_lossy())) {
            found.rename(format!("{folder}.{}", found.source.name));
        }
    }
    let mut taken: BTreeSet<String> = counts(chosen).into_keys().collect();
    let mut seen = BTreeSet::new();
    for found in chosen {
        if found.file.is_some() && seen.contains(&found.source.name) {
            let numbered = (2_u64..).map(|number| format!("{}.{number}", found.source.name));
            if let Some(free) = numbered.into_iter().find(|name| !taken.contains(name)) {
                found.rename(free);
            }
        }
        seen.insert(found.source.name.clone());
        taken.insert(found.source.name.clone());
    }
}

/// Replaces characters that names of workloads cannot have.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '_' }).collect()
}

/// A workload of the catalogue, a generated one by its description, or the devices of a recording.
fn workload(item: &OsStr) -> Result<Vec<Found>> {
    let (text, path) = (item.to_string_lossy(), Path::new(item));
    let read = if traces::is_trace(path) { of_trace } else { of_recording };
    let of_file = || read(path).with_context(|| text.clone().into_owned());
    if let Some(known) = workload::named(&text) {
        return Ok(vec![of_catalogue(known)]);
    }
    let name = text.split(':').next().unwrap_or(&text);
    match workload::keys(name) {
        _ if path.is_file() => of_file(),
        Some(_) => described(&text).map(|found| vec![found]),
        None if path.exists() => of_file(),
        None => Err(unknown(&text)),
    }
}

/// Whether the item names a folder and no workload.
fn is_folder(item: &OsStr) -> bool {
    let text = item.to_string_lossy();
    let name = text.split(':').next().unwrap_or(&text);
    workload::named(&text).is_none() && workload::keys(name).is_none() && Path::new(item).is_dir()
}

/// The recordings in a folder.
fn of_folder(folder: &Path) -> Result<Vec<Found>> {
    let inputs = Inputs::of(&[folder.to_owned()]);
    inputs.remarks.iter().for_each(|remark| output::complain(remark));
    let mut found = Vec::new();
    for input in inputs.all {
        if let Some(refusal) = input.refusal {
            bail!("{}: {refusal}", input.path.display());
        }
        found.extend(of_recording(&input.path).with_context(|| input.path.display().to_string())?);
    }
    Ok(found)
}

fn of_catalogue(known: &'static NamedWorkload) -> Found {
    let (name, says) = (known.name.to_owned(), known.says.to_owned());
    Found { source: Source { name, says, is_seeded: true, make: Box::new(|seed| known.make(seed)) }, hash: None, file: None }
}

/// A workload by its description. If the description sets a seed, other seeds do not apply.
fn described(text: &str) -> Result<Found> {
    let workload = workload::parse(text).with_context(|| text.to_owned())?;
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let has_seed = options.split(',').any(|option| option.starts_with("seed="));
    let is_seeded = !has_seed && workload::keys(name).is_some_and(|keys| keys.contains(&"seed"));
    let with_seed = if options.is_empty() { format!("{name}:seed=") } else { format!("{text},seed=") };
    let source = Source {
        name: workload.name.clone(),
        says: workload.says.clone(),
        is_seeded,
        // A valid description stays valid with any seed.
        make: Box::new(move |seed| match workload::parse(&format!("{with_seed}{seed}")) {
            Ok(seeded) if is_seeded => seeded,
            _ => workload.clone(),
        }),
    };
    Ok(Found { source, hash: None, file: None })
}

/// The program of a name, a description or a trace, with the first seed of a sweep.
///
/// # Errors
/// There is no such program, or there are several.
pub(in crate::commands) fn only_workload(item: &OsStr) -> Result<Workload> {
    match workload(item)?.as_slice() {
        [one] => Ok((one.source.make)(1)),
        several => bail!("{} has {} programs: choose one", item.display(), several.len()),
    }
}

/// The programs of a trace.
fn of_trace(path: &Path) -> Result<Vec<Found>> {
    Ok(traces::read(path)?.into_iter().map(|workload| of_program(workload, path)).collect())
}

/// The program of a file, which is the same whatever the seed.
fn of_program(workload: Workload, path: &Path) -> Found {
    let program = PreparedWorkload::new(workload);
    let hash = Some(program.hash);
    let workload = program.workload;
    let (name, says) = (workload.name.clone(), workload.says.clone());
    let source = Source { name, says, is_seeded: false, make: Box::new(move |_| workload.clone()) };
    Found { source, hash, file: Some(path.to_owned()) }
}

/// The requests of one device of a recording, with the recording's steps.
///
/// # Errors
/// If the device's trace cannot be followed.
pub(in crate::commands) fn recorded_program(
    name: &str,
    recording: &Recording,
    device: &DeviceRecording,
    own: &VerifyOptions,
) -> Result<Workload, VerifyError> {
    let requests = Requests::of_recording(device, own, &mut |_| ())?;
    let mut recorded = of_requests(name, &requests);
    if let Ok(found) = parkade_analysis::annotations::steps(&recording.annotations, device, None) {
        recorded.mark_steps(found.steps.iter().map(|step| step.last_entry));
    }
    Ok(recorded.workload)
}

/// A file's name without the endings of recordings.
pub(in crate::commands) fn stem(path: &Path) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let stem = ["xz", "gz", "zst", "pickle", "pkl"]
        .iter()
        .fold(&*file, |name, end| name.strip_suffix(end).and_then(|name| name.strip_suffix('.')).unwrap_or(name));
    stem.to_owned()
}

/// Each device of a recording is a workload.
fn of_recording(path: &Path) -> Result<Vec<Found>> {
    let recording = recording::read(path).map_err(|error| traces::why_unread(path, error))?;
    let made_by = recording::made_by(&recording, &Asked::default())?;
    let own = VerifyOptions { settings: made_by.settings, limit_bytes: None, stats_file: None };
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        return Err(recording::no_trace(&recording, "to replay"));
    }
    let stem = stem(path);
    let of_device = |device: &&DeviceRecording| {
        let name = if traced.len() > 1 { format!("{stem}.device{}", device.device) } else { stem.clone() };
        Ok(of_program(recorded_program(&name, &recording, device, &own)?, path))
    };
    traced.iter().map(of_device).collect()
}

fn unknown(item: &str) -> anyhow::Error {
    let known = CATALOGUE.iter().map(|known| known.name).chain(workload::generator_names());
    WrongArgument(format!("there is no workload and no file {item:?}{}", suggestion(item, known))).into()
}

/// The items of a list of workloads. An existing file is one item, whatever its name; options stay with their description:
/// `gpt2,mlp:batch=8,layers=4` has two items.
pub(super) fn workload_items(list: &OsStr) -> Result<Vec<OsString>> {
    if Path::new(list).exists() {
        return Ok(vec![list.to_owned()]);
    }
    let Some(text) = list.to_str() else {
        bail!("there is no file {list:?}; a file whose name is not UTF-8 needs its own --workloads option");
    };
    let parts: Vec<&str> = text.split(',').collect();
    let mut items: Vec<String> = Vec::new();
    let mut place = 0;
    while place < parts.len() {
        if let Some((file, length)) = longest_file(&parts[place..]) {
            items.push(file);
            place += length;
            continue;
        }
        let part = parts[place].trim();
        place += 1;
        let is_option = part.contains('=') && !part.contains(':');
        // Brackets keep together the settings of a policy that an adversary is made against.
        let continues = |last: &str| is_option || last.matches('[').count() > last.matches(']').count();
        match items.last_mut().filter(|last| continues(last) && last.contains(':') && !Path::new(last).is_file()) {
            Some(last) => *last = format!("{last},{part}"),
            None if part.is_empty() => {}
            None => items.push(part.to_owned()),
        }
    }
    Ok(items.into_iter().map(OsString::from).collect())
}

/// The file with the most commas in its name that these parts begin with, and the number of parts that it takes.
fn longest_file(parts: &[&str]) -> Option<(String, usize)> {
    /// No file name has more commas.
    const MOST_PARTS: usize = 256;
    let lengths = (1..=parts.len().min(MOST_PARTS)).rev();
    let mut files = lengths.map(|length| (parts[..length].join(","), length));
    // A single part may be the name of a workload, and a folder of that name does not matter.
    files.find(|(name, _)| Path::new(name).is_file())
}

/// Compare allocation policies on snapshots and generated workloads.
///
/// Runs each workload under each policy in each capacity and with plenty of memory, and searches for the smallest memory in
/// which it fits. LOAD is the most bytes live at once, each request rounded up to 512 bytes; no allocator needs less. The
/// search goes in steps of 1/256 of LOAD (--precision; at least one page of 2 MiB) and takes the smallest memory tried in which the program
/// fits; a program that fits may still fail with slightly more memory, and the output says how often that happened. The tables
/// first show each workload, then geometric means over the workloads, also without the workload that contributes the most to
/// the excess. Workloads are chosen by hand, so there are no tests over them. With several seeds, policies are compared over
/// the seeds of each workload: bootstrap intervals (BCa, 95 %) and Wilcoxon's signed-rank test with Holm's correction. A
/// program that fits in no memory under a policy is left out of its means.
///
/// The tables also show a lower bound, LOAD with pools: a private pool is counted at its peak live bytes so far, until its
/// graphs are reset. Two more columns are results, not bounds: the need of an ideal allocator that remaps pages of 2 MiB at
/// will, and the best packing found offline, with every lifetime known in advance.
///
/// The policies are marked by how PyTorch can use them. The verdict names the best one with PyTorch alone, with parkade.enable
/// and in the simulator, and each line to paste states its condition.
///
/// A row depends only on its job, so any number of threads or machines produces the same bytes.
///
/// With --largest-batch the sweep answers a different question: how large a batch fits? For each training of a transformer,
/// device and policy, bisection finds the largest batch: it fits, and one more sample does not. Whether a batch fits need not
/// be monotone, so some larger batches are tried too, and the output says how often one fits although a smaller one does not.
/// The output also shows the largest batch whose live bytes fit at all, which no policy exceeds, and why the next one fails.
/// Cards have the total memory that a CUDA program sees: A100-40GB (42,298,834,944 bytes, 39.39 GiB, as reported), H100-80GB
/// (81,082 MiB, 79.18 GiB, as reported), H200-141GB (150,109,880,320 bytes, 139.80 GiB, measured). The memory of the driver's
/// context is subtracted from each device first.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade sweep snapshot.pickle
  parkade sweep --list
  parkade sweep
  parkade sweep --workloads all,snapshot.pickle --policies pytorch,pytorch-expandable --capacities 1.02,1.1,80GiB
  parkade sweep snapshot.pickle --policies pytorch-expandable,pytorch-rescue,compaction
  parkade sweep --policies 'bfc:kind=growth/xla-growth;waste=32MiB/128MiB/512MiB' --seeds 10
  parkade sweep --seeds 5 -o rows.jsonl --html study.html --csv rows.csv
  parkade sweep -w gpt2 -p pytorch,bfc,compaction --series series.csv --html why.html
  parkade sweep --shard 1/3 -o part1.jsonl
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl
  parkade sweep --largest-batch
  parkade sweep --largest-batch --workloads transformer:preset=7b,checkpointing=layer,steps=3 --capacities H100-80GB,24GB

A file of rows (-o) is continued: only the jobs that it lacks are run, after an interruption or if the command names more policies, \
workloads or seeds than before. Each row names the build that made it, by its version and hashes of the sources that affect the \
decisions of its policy, so an edit of one policy leaves the rows of the others valid. Rows from a different build are run again \
with --renew; with --force they are kept, and the result says how many rows each build made.

Exit code: 0 done, 1 if a policy broke, or with --largest-batch if no batch fits anywhere, 2 could not run.")]
pub struct Args {
    /// Workloads: recordings, folders of recordings, traces (.jsonl, .csv, PyTorch's profiler, XLA: docs/trace.md), catalogue names,
    /// descriptions of generated workloads, or all. Recordings with the same name are distinguished by their folders.
    /// [default: all; with --largest-batch transformer:preset=7b,mixed=on,steps=3]
    #[arg(value_name = "WORKLOAD")]
    positional: Vec<OsString>,
    /// The same, separated by commas; may be given several times.
    #[arg(short, long, value_name = "LIST")]
    workloads: Vec<OsString>,
    /// Policies, or all, which leaves out pytorch-rescue and compaction. Some take parameters, which --list prints:
    /// 'best-fit-remap:fit=first;handle=20MiB', 'pytorch:release=2.15;settings=[expandable_segments:True]',
    /// pytorch-rescue:reach=free. Slashes make a grid, which is every combination of the values:
    /// 'best-fit-remap:fit=best/first;handle=2MiB/20MiB'.
    #[arg(short, long, value_name = "LIST", default_value = "all")]
    pub(super) policies: Vec<String>,
    /// The device's memory, as factors of LOAD (1.05) or sizes (80GiB). [default: 1.0,1.02,1.05,1.1,1.25; with --largest-batch all cards]
    #[arg(short, long, value_name = "LIST")]
    pub(super) capacities: Vec<String>,
    /// The number of seeds to generate each workload from (1, 2 and so on). A workload that ignores its seed runs once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seeds: u64,
    /// Before each program, reserve this many times LOAD in one piece and leave it in the allocator's cache.
    #[arg(long, value_name = "FACTOR")]
    prealloc: Option<Share>,
    /// The part of LOAD to within which the smallest memory is found, or one page of 2 MiB if that is more. Finer steps tell apart
    /// policies that need nearly the same, in a few more runs of each search.
    #[arg(long, value_name = "1/N", default_value_t)]
    precision: Precision,
    /// Steps spent on the packings shown beside the policies, for each program; 0 omits the ideal remapper and the offline packer.
    #[arg(long, value_name = "STEPS", default_value_t = COMPARED_STEPS)]
    pub(super) bounds: u64,
    /// Where the device places segments: driver (as measured with NVIDIA's), ascending, descending, lowest-hole.
    #[arg(long, value_name = "MODEL", default_value = "driver")]
    pub(super) addresses: String,
    /// Run only this part of the jobs: 2/3 is the second of three parts.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub(super) shard: Shard,
    /// Write the rows here, one line of JSON each, or continue the file, which may have fewer policies, workloads or seeds; `-` is
    /// standard output. Any other existing file stays as it is, even with --force.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<Target>,
    /// Overwrite existing files of --csv, --html and --series, but never an input. Also continue the file of --output even if another build of
    /// parkade made some of its rows.
    #[arg(long)]
    pub(super) force: bool,
    /// Run the jobs again whose rows in the file of --output another build of parkade made. The other rows stay.
    #[arg(long, requires = "output")]
    pub(super) renew: bool,
    /// The number of jobs to run at once, at most the number of processors [default: that number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    pub(super) asked: LargestBatch,
    #[command(flatten)]
    pub(super) shown: Shown,
    #[command(flatten)]
    pub(super) series: Series,
    /// List the workloads, generators, policies and address models; with --json as one object.
    #[arg(long)]
    pub(super) list: bool,
}

impl Args {
    /// The given workloads, in both forms.
    pub(super) fn given_workloads(&self) -> Vec<OsString> {
        self.positional.iter().chain(&self.workloads).cloned().collect()
    }
}

/// A pool with no more threads than jobs and processors.
pub(super) fn threads(args: &Args, jobs: usize) -> Result<rayon::ThreadPool> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = args.threads.map_or_else(rayon::current_num_threads, usize::from);
    Ok(rayon::ThreadPoolBuilder::new().num_threads(wanted.min(most).min(jobs).max(1)).build()?)
}

/// The options of the other search, for the largest batch.
#[derive(Parser)]
pub(super) struct LargestBatch {
    /// Find the largest batch that fits. The workloads are trainings of transformers, whose batch is replaced, and the capacities are
    /// devices: cards by name (A100-40GB, H100-80GB, H200-141GB), with the memory that a program sees, or sizes.
    #[arg(long, conflicts_with_all = ["seeds", "prealloc", "bounds", "addresses", "shard", "output", "baseline", "html", "list"])]
    pub(super) largest_batch: bool,
    /// The largest batch to try, with --largest-batch.
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "largest_batch")]
    pub(super) most_batch: u64,
    /// The device memory that the driver's context takes, with --largest-batch.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_none, allow_hyphen_values = true, default_value_t = CONTEXT_BYTES, requires = "largest_batch")]
    pub(super) context: u64,
}

/// The options of the series.
#[derive(Parser)]
pub(super) struct Series {
    /// Write the heap over the course of each run here, as CSV: live, reserved and mapped bytes, the largest hole and the number of
    /// holes, by pool and stream, for each workload, policy and seed, with plenty of memory. A run has at most about 1,000 points,
    /// which include every peak; --html then also draws the holes. `-` is standard output. An existing file is not overwritten
    /// without --force.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["largest_batch", "list"])]
    pub(super) series: Option<Target>,
    /// The number of events in each part of a run, with --series: a part has a point at its most reserved and at its most allocated
    /// bytes. 1 is a point for each event [default: a five-hundredth of the run].
    #[arg(long, value_name = "EVENTS", requires = "series", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) series_step: Option<u64>,
}

impl Series {
    /// Whether the series is wanted.
    pub(super) const fn is_wanted(&self) -> bool {
        self.series.is_some()
    }

    /// Refuses a series of a part of the sweep.
    pub(super) fn check(&self, parts: u64) -> Result<()> {
        if self.is_wanted() && parts > 1 {
            bail!("--series describes all runs of a sweep, whatever --shard selects: leave --shard out");
        }
        Ok(())
    }

    /// Adds the file to those that the command writes.
    pub(super) fn add_to<'a>(&'a self, wanted: Wanted<'a>) -> Wanted<'a> {
        wanted.writes("--series", self.series.as_ref())
    }
}

/// Where the descriptions begin.
const COLUMN: usize = 29;

/// The names, each with its description beside it, in lines of this many columns.
pub(super) fn names_text(columns: usize) -> String {
    let mut text = String::new();
    let out = &mut text;
    let _ = writeln!(out, "workloads");
    for known in &CATALOGUE {
        add_name(out, columns, known.name, known.says);
    }
    add_name(out, columns, "FILE", "the requests of a recorded program (a PyTorch memory snapshot)");
    let _ = writeln!(out, "\ngenerators and their options (NAME:option=value,...)");
    for name in workload::generator_names() {
        add_name(out, columns, name, &workload::keys(name).unwrap_or_default().join(", "));
    }
    let _ = writeln!(out, "\npolicies");
    POLICIES.iter().for_each(|policy| add_policy(out, columns, policy));
    let _ = writeln!(out, "\npolicies that are not part of `all`");
    BESIDE.iter().for_each(|policy| add_policy(out, columns, policy));
    if known_policies().own().next().is_some() {
        let _ = writeln!(out, "\npolicies of this program");
        known_policies().own().for_each(|policy| add_policy(out, columns, &policy));
    }
    let _ = writeln!(out, "\nparameters of policies (NAME:key=value;key=value; a grid: key=value/value)");
    for entry in known_policies().entries() {
        for Parameter { key, says, usual, accepts } in entry.parameters {
            let usual = if usual.is_empty() { String::new() } else { format!("; {usual} unless given") };
            add_name(out, columns, &format!("{}:{key}=", entry.name), &format!("{says}{usual}"));
            add_name(out, columns, "", &accepts.to_string());
        }
    }
    let _ = writeln!(out, "\naddress models: where the device places segments (--addresses)");
    for model in Addresses::ALL {
        add_name(out, columns, model.name(), model.says());
    }
    text
}

fn add_name(out: &mut String, columns: usize, name: &str, says: &str) {
    out.push_str(&output::listed(&format!("  {name}"), COLUMN, says, columns));
}

fn add_policy(out: &mut String, columns: usize, policy: &Named) {
    let serial = if needs_serial_work(&policy.name) { "; needs serial work (serial=True of parkade.enable)" } else { "" };
    add_name(out, columns, &policy.name, &policy.says);
    add_name(out, columns, "", &format!("from {}{serial}", policy.source));
}

view! {
    pub(super) struct NamesObject() {
        /// The catalogue.
        workloads: Vec<ListedWorkload> = all(&CATALOGUE, ListedWorkload::of),
        /// The generators.
        generators: Vec<Generator> = all(workload::generator_names(), Generator::of),
        /// The policies.
        policies: Vec<ListedPolicy> = all(POLICIES.iter().chain(BESIDE).cloned().chain(known_policies().own()), ListedPolicy::of),
        /// Where a device places segments.
        address_models: Vec<Model> = all(Addresses::ALL, Model::of),
    }
}

view! {
    struct ListedWorkload(known: &'static NamedWorkload) {
        /// The workload's name.
        name: &'static str = known.name,
        /// What it is.
        says: &'static str = known.says,
        /// The description that generates it.
        description: &'static str = known.text,
    }
}

view! {
    struct Generator(name: &'static str) {
        /// The generator's name.
        name: &'static str = name,
        /// The options of its descriptions.
        options: Option<Vec<&'static str>> = workload::keys(name).map(|keys| keys.to_vec()),
    }
}

view! {
    struct ListedPolicy(policy: Named) {
        /// The policy's name.
        name: String = policy.name.to_string(),
        /// What it does.
        says: String = policy.says.to_string(),
        /// Where it comes from.
        source: &'static str = policy.source,
        /// Whether `all` of `sweep` includes it.
        is_among_all: bool = BESIDE.iter().all(|known| known.name != policy.name),
        /// Whether only one thread at a time may use the GPU under PyTorch (`serial=True`).
        needs_serial_work: bool = needs_serial_work(&policy.name),
        /// How PyTorch can use it: `default`, `setting` (`PYTORCH_CUDA_ALLOC_CONF`), `release` (a different one of PyTorch),
        /// `enable` (`parkade.enable`) or `simulator` (not).
        under_pytorch: Word<Usable> = Word::of(&Usable::of(&policy.name)),
        /// What its name takes as `key=value`.
        parameters: Vec<Taken> = all(policy.own_parameters(), Taken::of),
    }
}

view! {
    struct Taken(parameter: &'static Parameter) {
        /// The key.
        key: &'static str = parameter.key,
        /// What it sets.
        says: &'static str = parameter.says,
        /// The default value; empty if it is not one of the values.
        usual: &'static str = parameter.usual,
        /// The values; empty if there are too many to list.
        values: Vec<&'static str> = parameter.choices().to_vec(),
        /// The accepted values in words: their range, or all of them.
        accepts: String = parameter.accepts.to_string(),
    }
}

view! {
    struct Model(model: Addresses) {
        /// The model's name.
        name: &'static str = model.name(),
        /// What it does.
        says: &'static str = model.says(),
    }
}

#[cfg(test)]
mod tests {
    use parkade_research::workload::trace;

    use super::*;

    #[test]
    fn capacities_are_factors_or_sizes() {
        let shown = |list: Vec<Capacity>| list[2..].iter().map(ToString::to_string).collect::<Vec<String>>();
        let parsed = |text: &str| capacities(&[text.to_owned()]).map(shown);
        assert_eq!(parsed("1.05, 80GiB,3MB").expect("capacities"), ["1.05", "85899345920B", "3000000B"]);
        assert_eq!(parsed("1.1,1.10,plenty").expect("capacities"), ["1.1"]);
        for text in ["0", "0GiB", "16apples", "-1"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_requests_of_a_recording_are_the_same_program_as_a_trace() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings/prefetch_streams.limit6.pickle.xz");
        let [recorded] = &of_recording(&file).expect("a recording")[..] else { panic!("one device") };
        let workload = (recorded.source.make)(1);
        let trace = std::env::temp_dir().join(format!("prefetch_streams.limit6-{}.jsonl", std::process::id()));
        let mut text = Vec::new();
        trace::write(&workload, &mut text).expect("memory");
        std::fs::write(&trace, text).expect("a file");
        let found = workload_of_file(&trace);
        std::fs::remove_file(&trace).expect("the file is there");
        let again = (found.expect("a trace").remove(0).source.make)(1);
        assert!(again.events == workload.events && again.steps == workload.steps);
    }

    fn workload_of_file(path: &Path) -> Result<Vec<Found>> {
        workload(path.as_os_str())
    }

    #[test]
    fn options_stay_with_their_description() {
        let items = |list: &str| workload_items(OsStr::new(list)).expect("text");
        assert_eq!(items("gpt2, mlp:batch=8,layers=4,x"), ["gpt2", "mlp:batch=8,layers=4", "x"]);
        let against = "robson:against=pytorch:settings=[max_split_size_mb:20,expandable_segments:True],live_units=64";
        assert_eq!(items(&format!("{against},comb")), [against, "comb"]);
        assert_eq!(items(",,"), [""; 0]);
    }
}
