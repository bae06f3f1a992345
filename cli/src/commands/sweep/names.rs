//! Turns arguments into a plan: workloads, policies and capacities by name.
//!
//! Splits lists of workloads even though file names may contain commas, blanks and bytes that are not text.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use parkade_policies::{CATALOGUE as POLICIES, Named};
use parkade_recording::DeviceRecording;
use parkade_replay::recognition::Asked;
use parkade_replay::{Requests, VerifyOptions};
use parkade_research::study::Addresses;
use parkade_research::study::sweep::{Capacity, Plan, PlannedWorkload, PreparedWorkload, Source};
use parkade_research::workload::recorded::of_requests;
use parkade_research::workload::{self, CATALOGUE, NamedWorkload, Workload};

use super::args::Args;
use crate::terminal::args::{policy, suggestion};
use crate::terminal::progress::WrongArgument;
use crate::terminal::{recording, size};

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
        bail!("there is nothing to do: --seeds 0");
    }
    let policies = policies(&args.policies)?;
    let default = [CAPACITIES.to_owned()];
    let capacities = capacities(if args.capacities.is_empty() { &default } else { &args.capacities })?;
    if Addresses::named(&args.addresses).is_none() {
        let known = Addresses::ALL.map(Addresses::name);
        bail!("there is no address model {:?}{}", args.addresses, suggestion(&args.addresses, known));
    }
    let mut plan = Plan {
        workloads: Vec::new(),
        policies: policies.iter().map(|policy| policy.name.to_string()).collect(),
        capacities,
        addresses: args.addresses.clone(),
        preallocate: args.prealloc,
    };
    let (mut sources, mut files) = (Vec::new(), Vec::new());
    let all = [OsString::from("all")];
    for found in chosen_workloads(if args.workloads.is_empty() { &all } else { &args.workloads })? {
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

/// The policies of these names, each once.
pub(super) fn policies(lists: &[String]) -> Result<Vec<Named>> {
    let mut policies: Vec<Named> = Vec::new();
    for item in items(lists) {
        let found: Vec<Named> = match item {
            "all" => POLICIES.to_vec(),
            name => vec![policy(name)?],
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
        bail!("there is nothing to do: no capacities");
    }
    for item in items(lists) {
        let capacity = match item.bytes().last() {
            Some(last) if last.is_ascii_alphabetic() && !matches!(item, "smallest" | "plenty") => {
                Capacity::Bytes(size::parse(item).map_err(|error| anyhow!(error))?)
            }
            _ => item.parse().map_err(|error: String| anyhow!("{error}, or a size with its unit (80GiB)"))?,
        };
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
    let of_file = || of_recording(path).with_context(|| text.clone().into_owned());
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

/// Each device of a recording is a workload.
fn of_recording(path: &Path) -> Result<Vec<Found>> {
    let recording = recording::read(path)?;
    let made_by = recording::made_by(&recording, &Asked::default())?;
    let own = VerifyOptions { settings: made_by.settings, limit_bytes: None, stats_file: None };
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        return Err(recording::no_trace(&recording, "to replay"));
    }
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let stem = ["xz", "gz", "zst", "pickle", "pkl"]
        .iter()
        .fold(&*file, |name, end| name.strip_suffix(end).and_then(|name| name.strip_suffix('.')).unwrap_or(name));
    let of_device = |device: &&DeviceRecording| {
        let requests = Requests::of_recording(device, &own, &mut |_| ())?;
        let name = if traced.len() > 1 { format!("{stem}.device{}", device.device) } else { stem.to_owned() };
        let mut recorded = of_requests(&name, &requests);
        if let Ok(found) = parkade_analysis::annotations::steps(&recording.annotations, device, None) {
            recorded.mark_steps(found.steps.iter().map(|step| step.last_entry));
        }
        let program = PreparedWorkload::new(recorded.workload);
        let hash = Some(program.hash);
        let workload = program.workload;
        let (name, says) = (workload.name.clone(), workload.says.clone());
        let source = Source { name, says, is_seeded: false, make: Box::new(move |_| workload.clone()) };
        Ok(Found { source, hash, file: Some(path.to_owned()) })
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

#[cfg(test)]
mod tests {
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
    fn options_stay_with_their_description() {
        let items = |list: &str| workload_items(OsStr::new(list)).expect("text");
        assert_eq!(items("gpt2, mlp:batch=8,layers=4,x"), ["gpt2", "mlp:batch=8,layers=4", "x"]);
        let against = "robson:against=pytorch:settings=[max_split_size_mb:20,expandable_segments:True],live_units=64";
        assert_eq!(items(&format!("{against},comb")), [against, "comb"]);
        assert_eq!(items(",,"), [""; 0]);
    }
}
