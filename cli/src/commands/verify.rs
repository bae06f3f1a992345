//! `parkade verify`: does a replay reproduce every decision of a recorded run?

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_analysis::ranks::RankRun;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Asked, Recognition, in_words};
use parkade_replay::{Decision, DeviceVerdict, Guess, ReplaySettings, SettingsOrigin, StatsCheck, StatsFile};

use crate::ranks::Ranks;
use crate::recordings::{Inputs, each};
use crate::terminal::answer::Answer;
use crate::terminal::args::{Files, Print, Profile};
use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::output::Tone;
use crate::terminal::progress::{self, Bar};
use crate::terminal::recording::{DeviceLeftOut, MadeBy};
use crate::terminal::runner::{self, Command, Form, Lines, Outcome, Subject};
use crate::terminal::surroundings::Start;
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, recording, size, surroundings};

/// Check that the replay of a snapshot makes every recorded decision.
///
/// A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), plain or compressed with gzip, xz or Zstandard. Every
/// address, segment, release and out-of-memory point is compared, as are the segments and blocks at the end.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade verify snapshot.pickle
  parkade verify snapshot.pickle --limit 16GiB --stats memory_stats.json
  parkade verify recordings/*.pickle.xz --json
  parkade verify snapshots/

Exit code: 0 nothing differs, 1 something differs, 2 a file could not be verified, 3 the history is not in the file, or not enough of it.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// The memory limit of the run (set_per_process_memory_fraction), which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The PyTorch release that made the recording [default: each that its contents allow is tried].
    #[arg(long, value_name = "RELEASE")]
    profile: Option<Profile>,
    /// The output of torch.cuda.memory_stats() at the end of the run, as JSON, to compare too. For one recording.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The settings of the run, where the recording does not state them or states them wrongly.
    #[arg(long)]
    settings: Option<String>,
    #[command(flatten)]
    print: Print,
}

/// A verified recording.
struct Verified {
    file: PathBuf,
    recording: Recording,
    settings: ReplaySettings,
    limit: Option<u64>,
    /// The limit that garbage collection shows, if none was given.
    assumed_limit: Option<u64>,
    /// Which release made it.
    made_by: Recognition,
    devices: Vec<DeviceVerdict>,
    seconds: f64,
}

impl Verified {
    fn mismatches(&self) -> u64 {
        self.devices.iter().map(|device| device.mismatches).sum()
    }

    /// What is compared between ranks.
    fn rank_runs(&self) -> Vec<RankRun> {
        let devices = recording::traced(&self.recording).into_iter().zip(&self.devices);
        devices.map(|(device, verdict)| RankRun::of_verdict(device, &self.settings, verdict).made_by(&self.made_by)).collect()
    }

    /// Whether its garbage collection needs a limit, which is neither given nor shown by what it released.
    fn lacks_limit(&self) -> bool {
        let collects = self.settings.settings.garbage_collection_threshold > 0.0;
        collects && self.limit.is_none() && self.assumed_limit.is_none()
    }

    /// Whether the settings limit memory to a fraction of the device's, which a recording does not contain, and no limit was given.
    fn has_unknown_fraction(&self) -> bool {
        self.limit.is_none() && self.settings.settings.per_process_memory_fraction < 1.0
    }
}

/// The results of a verified recording. The recording itself is dropped, so that not all of them are in memory at once.
pub(crate) struct Report {
    differs: bool,
    json: serde_json::Value,
    part: Part,
    /// What is compared between ranks, if the files are ranks of one job.
    runs: Vec<RankRun>,
}

/// What was given, and the results in its order.
pub(crate) struct Reports {
    inputs: Inputs,
    all: Vec<Result<Report>>,
    ranks: Option<Ranks>,
}

impl Reports {
    /// Each with its file.
    fn with_files(&self) -> impl Iterator<Item = (&Path, &Result<Report>)> {
        self.inputs.paths().into_iter().zip(&self.all)
    }
}

impl Command for Args {
    type Found = Reports;

    fn compute(&self) -> Result<Reports> {
        let inputs = Inputs::of(&self.files.files);
        if self.stats.is_some() && inputs.are_several() {
            bail!("--stats applies to one recording, but {} are given", inputs.all.len());
        }
        let statistics = self.stats.as_deref().map(read_statistics).transpose()?;
        let bar = progress::entries(self.print.json);
        let done = AtomicU64::new(0);
        let paths = inputs.paths();
        let names = ShortNames::of(&paths);
        let numbers = inputs.ranks();
        let of_file = |file: &Path| {
            let verified = verify(file, self, statistics.as_ref(), &bar, &done)?;
            let part = Part::of(&verified, &names.of_file(file));
            let json = serde_json::to_value(Object::of(&verified))?;
            let runs = if numbers.is_some() { verified.rank_runs() } else { Vec::new() };
            Ok(Report { differs: verified.mismatches() > 0, json, part, runs })
        };
        let mut all = Vec::new();
        each(&inputs, true, of_file, |_, report| {
            all.push(report);
            Ok(())
        })?;
        bar.finish_and_clear();
        let ranks = numbers.and_then(|numbers| Ranks::of(&numbers, &paths, rank_runs(&mut all)));
        drop(paths);
        Ok(Reports { inputs, all, ranks })
    }

    fn outcome(&self, reports: &Reports) -> Outcome {
        let of_file = |report: &Result<Report>| match report {
            Ok(report) if report.differs => Outcome::CheckFailed,
            Ok(report) if report.part.not_checked.is_some() || !report.part.has_history => Outcome::NotKnown,
            Ok(_) => Outcome::Good,
            Err(_) => Outcome::CouldNotRun,
        };
        reports.all.iter().map(of_file).fold(Outcome::Good, Outcome::worse)
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Command
    }

    fn answer(&self, reports: &Reports) -> Answer {
        let parts: Vec<_> = reports.all.iter().flatten().map(|report| &report.part).collect();
        let failed = reports.all.len() - parts.len();
        if self.files.all { whole(&parts, failed, reports.ranks.as_ref()) } else { short(&parts, failed, self.stats.is_some()) }
    }

    fn json(&self, reports: &Reports, lines: &mut Lines) -> Result<()> {
        reports.with_files().try_for_each(|(file, report)| match report {
            Ok(report) => lines.add(&report.json),
            Err(error) => lines.add(&runner::failure(Subject::File(file), &format!("{error:#}"))),
        })?;
        reports.ranks.iter().try_for_each(|ranks| ranks.add_to(lines, None))
    }

    fn remarks(&self, reports: &Reports) -> Vec<String> {
        let failed = reports.with_files().filter_map(|(file, report)| Some((file, report.as_ref().err()?)));
        let failed = failed.map(|(file, error)| format!("{}: {error:#}", file.display()));
        reports.inputs.remarks.iter().cloned().chain(failed).collect()
    }
}

/// Takes the runs out of the reports, each with the place of its file.
fn rank_runs(reports: &mut [Result<Report>]) -> Vec<(usize, RankRun)> {
    let of_file = |(place, report): (usize, &mut Result<Report>)| {
        let runs = report.as_mut().map_or_else(|_| Vec::new(), |report| std::mem::take(&mut report.runs));
        runs.into_iter().map(move |run| (place, run))
    };
    reports.iter_mut().enumerate().flat_map(of_file).collect()
}

/// The files' own names, or their full paths if another file has the same name.
struct ShortNames<'f>(HashMap<Option<&'f OsStr>, usize>);

impl<'f> ShortNames<'f> {
    fn of(files: &[&'f Path]) -> ShortNames<'f> {
        let mut counts = HashMap::new();
        files.iter().for_each(|file| *counts.entry(file.file_name()).or_default() += 1);
        ShortNames(counts)
    }

    fn of_file(&self, file: &Path) -> String {
        let is_unique = self.0.get(&file.file_name()) == Some(&1);
        let name = file.file_name().filter(|_| is_unique).unwrap_or(file.as_os_str());
        output::one_line(&name.to_string_lossy())
    }
}

fn verify(file: &Path, args: &Args, statistics: Option<&StatsFile>, bar: &Bar, done: &AtomicU64) -> Result<Verified> {
    let start = Start::now();
    let recording = recording::read(file)?;
    let traced = recording::traced(&recording);
    if recording.devices.is_empty() {
        return Err(recording::no_trace(&recording, "to verify"));
    }
    if statistics.is_some() && traced.len() > 1 {
        bail!("--stats applies to one device, but the recording has {}", traced.len());
    }
    bar.inc_length(recording::entries(&traced));
    let asked = Asked {
        profile: args.profile.map(Profile::rules),
        settings: args.settings.as_deref(),
        limit_bytes: args.limit,
        stats_file: statistics,
    };
    if traced.is_empty() {
        let made_by = recording::made_by(&recording, &asked)?;
        let settings = made_by.settings.clone();
        let (file, limit, seconds) = (file.to_owned(), args.limit, start.elapsed().as_secs_f64());
        return Ok(Verified { file, recording, settings, limit, assumed_limit: None, made_by, devices: Vec::new(), seconds });
    }
    let mut reported = vec![0; traced.len()];
    let mut progress = |place: usize, entries: usize| {
        // A replay may start over with another reading of the file, or as another release: the furthest one counts.
        let reported = &mut reported[place];
        done.fetch_add(entries.saturating_sub(*reported) as u64, Ordering::Relaxed);
        *reported = entries.max(*reported);
        bar.set_position(done.load(Ordering::Relaxed));
    };
    let verified = parkade_replay::recognition::verify(&recording, &traced, &asked, &mut progress);
    traced.iter().enumerate().for_each(|(place, device)| progress(place, device.trace.len()));
    let (made_by, verified) = verified.map_err(|error| recording::explain_unrecognised(error, &traced))?;
    let assumed_limit = verified.iter().find_map(|(_, limit)| *limit);
    let devices = verified.into_iter().map(|(verdict, _)| verdict).collect();
    let seconds = start.elapsed().as_secs_f64();
    let (file, limit, settings) = (file.to_owned(), args.limit, made_by.settings.clone());
    Ok(Verified { file, recording, settings, limit, assumed_limit, made_by, devices, seconds })
}

fn read_statistics(file: &Path) -> Result<StatsFile> {
    let name = || format!("the statistics {}", file.display());
    let text = surroundings::read(file).with_context(name)?;
    let value: serde_json::Value = serde_json::from_slice(&text).with_context(name)?;
    let mut entries = BTreeMap::new();
    flatten("", &value, &mut entries).with_context(name)?;
    StatsFile::new(entries).with_context(name)
}

/// Accepts both of PyTorch's forms: flat keys with dots, and nested dictionaries. The JSON parser limits the depth.
fn flatten(prefix: &str, value: &serde_json::Value, entries: &mut BTreeMap<String, i64>) -> Result<()> {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, entries)?;
            }
            Ok(())
        }
        serde_json::Value::Number(number) if number.is_i64() && !prefix.is_empty() => {
            entries.insert(prefix.to_owned(), number.as_i64().unwrap_or_default());
            Ok(())
        }
        _ if prefix.is_empty() => bail!("it is not a JSON object: is this the output of torch.cuda.memory_stats()?"),
        _ => bail!("{prefix:?} is not a 64-bit integer: is this the output of torch.cuda.memory_stats()?"),
    }
}

/// The number of entries of a block's history, or of names in a list, that is shown.
const HISTORY: usize = 6;

/// One recording: a row and notes for each device.
struct Part {
    /// Whether the file has a history to verify: entries that follow one another.
    has_history: bool,
    /// Why it, or one of its devices, could not be checked.
    not_checked: Option<String>,
    /// Whether its settings do something only with a limit, which is not known.
    lacks_limit: bool,
    /// The recorded decisions that were compared.
    decisions: u64,
    /// The releases that explain it.
    releases: String,
    rows: Vec<Row>,
    notes: Vec<(String, Vec<String>)>,
}

struct Row {
    cells: [String; HEADS.len()],
    is_good: bool,
}

const HEADS: [&str; 8] = ["recording", "entries", "decisions", "mismatches", "oom", "peak allocated", "peak reserved", "seconds"];
/// The column that is coloured.
const MISMATCHES: usize = 3;

impl Part {
    fn of(verified: &Verified, name: &str) -> Part {
        let has_history = verified.devices.iter().any(has_history);
        let mut part = Part {
            has_history,
            not_checked: None,
            lacks_limit: verified.has_unknown_fraction() || verified.lacks_limit(),
            decisions: verified.devices.iter().map(|device| device.decisions).sum(),
            releases: in_words(&verified.made_by.releases),
            rows: Vec::new(),
            notes: Vec::new(),
        };
        for (place, device) in verified.devices.iter().enumerate() {
            let is_one_of_many = verified.devices.len() > 1;
            let name = if is_one_of_many { format!("{name} device {}", device.device) } else { name.to_owned() };
            let seconds = if place == 0 { format!("{:.2}", verified.seconds) } else { String::new() };
            let cells = [
                name.clone(),
                device.entries.to_string(),
                device.decisions.to_string(),
                device.mismatches.to_string(),
                device.ooms.to_string(),
                size::show(device.peak_allocated_bytes()),
                size::show(device.peak_reserved_bytes()),
                seconds,
            ];
            part.rows.push(Row { cells, is_good: device.mismatches == 0 });
            let notes: Vec<String> = notes(verified, device);
            if !notes.is_empty() {
                part.notes.push((name, notes));
            }
        }
        part.add_unchecked(verified, name);
        part
    }

    /// Adds the devices whose entries cannot be replayed, because some kinds are left out; and those that have none, if no
    /// device has any.
    fn add_unchecked(&mut self, verified: &Verified, name: &str) {
        for device in verified.recording.devices.iter().filter(|device| device.trace.is_empty()) {
            if device.left_out.is_none() && !verified.devices.is_empty() {
                continue;
            }
            let is_one_of_many = verified.recording.devices.len() > 1;
            let name = if is_one_of_many { format!("{name} device {}", device.device) } else { name.to_owned() };
            let entries = device.left_out.as_ref().map_or(0, |left_out| left_out.recorded_entries);
            let mut cells = [const { String::new() }; HEADS.len()];
            cells[2..].fill_with(|| "-".to_owned());
            (cells[0], cells[1]) = (name.clone(), entries.to_string());
            self.rows.push(Row { cells, is_good: true });
            let Some(left_out) = &device.left_out else { continue };
            self.notes.push((name, vec![recording::left_out_words(left_out)]));
            let words = format!("not checked: the recording leaves out {} (skip_actions)", recording::kinds_left_out(left_out));
            self.not_checked.get_or_insert(words);
        }
    }

    fn is_good(&self) -> bool {
        self.rows.iter().all(|row| row.is_good)
    }
}

/// One sentence, and only the recordings that differ, that could not be checked, or for which more was requested.
fn short(parts: &[&Part], failed: usize, is_more_asked: bool) -> Answer {
    let mut answer = Answer::new();
    if parts.is_empty() {
        return answer;
    }
    let is_open = |part: &&Part| is_more_asked || !part.is_good() || part.not_checked.is_some();
    let open: Vec<&Part> = parts.iter().copied().filter(is_open).collect();
    verdict(&mut answer, parts, failed);
    notes_of(&mut answer, &open);
    let unknown_limits = parts.iter().filter(|part| part.lacks_limit && part.is_good()).count();
    if unknown_limits > 0 {
        let of = if parts.len() == 1 { "the file".to_owned() } else { output::count(unknown_limits, "file") };
        answer.paragraph(format!("not checked: a memory limit, which {of} cannot show (--limit sets it)"));
    }
    answer
}

fn notes_of(answer: &mut Answer, parts: &[&Part]) {
    for (name, notes) in parts.iter().flat_map(|part| &part.notes) {
        answer.gap();
        answer.title(name);
        for note in notes {
            answer.indented(2 + note.len() - note.trim_start().len(), note.trim_start());
        }
    }
}

/// The verified recordings, their comparison as ranks, and the number of those that could not be verified.
fn whole(parts: &[&Part], failed: usize, ranks: Option<&Ranks>) -> Answer {
    let mut answer = Answer::new();
    if parts.is_empty() {
        return answer;
    }
    verdict(&mut answer, parts, failed);
    answer.gap();
    let mut table = Table::new(HEADS);
    for row in parts.iter().flat_map(|part| &part.rows) {
        table.marked(&row.cells, MISMATCHES, Mark::of(row.is_good));
    }
    answer.table(table);
    notes_of(&mut answer, parts);
    if let Some(ranks) = ranks {
        answer.gap();
        answer.append(ranks.answer());
    }
    answer
}

fn verdict(answer: &mut Answer, parts: &[&Part], failed: usize) {
    let verified = parts.len();
    let different = parts.iter().filter(|part| !part.is_good()).count();
    let (tone, found) = match (different, verified) {
        (0, 1) if let Some(words) = parts[0].not_checked.as_ref() => (Tone::Open, words.clone()),
        (0, _) if !parts.iter().any(|part| part.has_history) => (
            Tone::Open,
            "nothing to verify: the history is not in this file; record it with torch.cuda.memory._record_memory_history()"
                .to_owned(),
        ),
        (0, _) => (Tone::Good, all_same(parts)),
        (1, 1) => (Tone::Bad, "the recording differs".to_owned()),
        (1, _) => (Tone::Bad, format!("1 of {verified} recordings differs")),
        _ => (Tone::Bad, format!("{different} of {verified} recordings differ")),
    };
    let unchecked = parts.iter().filter(|part| part.not_checked.is_some()).count();
    let without = parts.iter().filter(|part| !part.has_history && part.not_checked.is_none()).count();
    let found = match without {
        0 => found,
        _ if without == verified => found,
        1 => format!("{found}; 1 file has no history to verify"),
        files => format!("{found}; {files} files have no history to verify"),
    };
    let found = match unchecked {
        0 => found,
        _ if verified == 1 => found,
        unchecked => format!("{found}; {unchecked} not checked, because they leave out kinds of entries (skip_actions)"),
    };
    answer.headline(tone, if failed == 0 { found } else { format!("{found}; {failed} could not be verified") });
}

/// Says that nothing differs, and how much was compared: files without a history, and those that could not be checked, do not
/// count.
fn all_same(parts: &[&Part]) -> String {
    let compared: Vec<&Part> = parts.iter().copied().filter(|part| part.has_history && part.not_checked.is_none()).collect();
    let decisions: u64 = compared.iter().map(|part| part.decisions).sum();
    let of = if parts.len() == 1 { String::new() } else { format!(" in {}", output::count(compared.len() as u64, "recording")) };
    let releases = compared.first().map_or("", |part| &part.releases);
    let is_one_release = !releases.is_empty() && compared.iter().all(|part| part.releases == releases);
    let by = if is_one_release { format!("PyTorch {releases}") } else { "PyTorch".to_owned() };
    format!("every decision is the same: all {decisions}{of}, as {by} made them")
}

/// Whether there is more to verify than the state in which the recording ends: a single entry of many is as good as none.
fn has_history(device: &DeviceVerdict) -> bool {
    device.entries > 1 || (device.entries > 0 && device.not_in_file.lost_beginning.is_none())
}

fn notes(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let mut notes = settings(verified);
    notes.extend(recording::of_file(&verified.recording));
    notes.extend(not_in_file(device));
    notes.extend(statistics(verified, device));
    notes.extend(divergence(verified, device));
    notes.extend(tolerated(verified));
    notes
}

fn settings(verified: &Verified) -> Vec<String> {
    let settings = &verified.settings.settings;
    let mut notes = vec![recording::made_by_words(&verified.made_by)];
    match verified.settings.origin {
        SettingsOrigin::Assumed => {
            notes.push(recording::ASSUMED_SETTINGS.to_owned());
        }
        SettingsOrigin::RecordedValues => {
            let said = match &verified.settings.refusal {
                Some(refusal) => format!(
                    "is refused ({}); the values in the file are used instead",
                    output::shorten(&refusal.to_string(), 200)
                ),
                None => "does not match the values in the file, which are used instead".to_owned(),
            };
            notes.push(format!("the settings string {:?} {said}", output::shorten(&settings.text, 100)));
        }
        SettingsOrigin::Recorded | SettingsOrigin::Given => {}
    }
    if let Some(bytes) = verified.assumed_limit {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    } else if verified.lacks_limit() {
        notes.push(
            "not in the file: the memory limit, without which garbage_collection_threshold does nothing (--limit sets it)"
                .to_owned(),
        );
    }
    if verified.has_unknown_fraction() {
        notes.push(format!(
            "not in the file: the device's memory, of which per_process_memory_fraction allows {}; no limit is checked (--limit sets one)",
            settings.per_process_memory_fraction
        ));
    }
    notes
}

fn not_in_file(device: &DeviceVerdict) -> Vec<String> {
    let mut notes = Vec::new();
    let not = &device.not_in_file;
    if let Some(lost) = not.lost_beginning {
        notes.push(format!(
            "not in the file: everything before the first entry; rebuilt from the end: {} segments ({}), {} live blocks",
            lost.segments,
            size::show(lost.reserved_bytes.cast_signed()),
            lost.blocks
        ));
        if lost.assumed_sizes > 0 {
            notes.push(format!(
                "  the sizes of {} of these blocks are unknown; they are assumed to be the rounded requests",
                lost.assumed_sizes
            ));
        }
        if lost.inferred_sizes > 0 {
            notes.push(format!(
                "  the sizes of {} of these blocks are the smallest that explain why later requests did not fit behind them",
                lost.inferred_sizes
            ));
        }
        if not.assumed_collections > 0 {
            notes.push(format!(
                "not in the file: the ages of free blocks; {} garbage collections released what the recording released",
                not.assumed_collections
            ));
        } else if not.unknown_ages {
            notes.push(
                "  the ages of free blocks, which garbage collection uses, are unknown and counted from the first entry"
                    .to_owned(),
            );
        }
    }
    if let Some(guess) = &not.guess {
        notes.extend(guessed(guess));
    }
    if not.gave_up_on_pools {
        notes.push(
            "not in the file: private pools that were gone by the end; the search for them stopped early because there are too \
             many possibilities, so the recording may differ only because of them"
                .to_owned(),
        );
    }
    if not.restores > 0 {
        notes.push(format!(
            "not in the file: when the state of a private pool was restored; inferred: {}, where no requests explain the blocks",
            output::count(not.restores, "time")
        ));
    }
    if not.refusals > 0 {
        notes.push(format!(
            "not in the file: why the device refused {} for a segment; the replay follows the recording (--limit checks a \
             limit)",
            output::count(not.refusals, "request")
        ));
    }
    notes
}

/// Private pools that the file does not name, inferred from the trace.
fn guessed(guess: &Guess) -> Vec<String> {
    let mut notes = vec![format!(
        "not in the file: private pools that were gone by the end; inferred: {} segments in {} pools, {} requests in {} windows \
         (without them {} requests differ)",
        guess.segments.len(),
        guess.pools,
        guess.requests,
        guess.windows,
        guess.contradictions
    )];
    let place = |entry: Option<usize>, otherwise: &str| entry.map_or(otherwise.to_owned(), |entry| format!("entry {entry}"));
    notes.extend(guess.segments.iter().take(HISTORY).map(|segment| {
        let (from, to) = (place(segment.made_at, "before the first entry"), place(segment.gone_at, "the end"));
        format!("  inferred: {:#x}, from {from} to {to}, pool {}", segment.address, segment.pool)
    }));
    if guess.segments.len() > HISTORY {
        notes.push(format!("  and {} more (--json lists all)", guess.segments.len() - HISTORY));
    }
    notes
}

fn statistics(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let Some(check) = &device.stats_check else { return Vec::new() };
    let mut notes = Vec::new();
    let unknowable =
        if check.unknowable > 0 { format!(", {} unknowable from the file", check.unknowable) } else { String::new() };
    notes.push(format!("statistics: {} keys compared, {} differ{unknowable}", check.compared, check.differences.len()));
    for difference in check.differences.iter().take(HISTORY) {
        notes.push(format!("  {}: recorded {}, replayed {}", difference.key, difference.recorded, difference.replayed));
    }
    if let Some((from, to)) = check.peaks_reset {
        let when = if from == to { format!("at entry {from}") } else { format!("between entries {from} and {to}") };
        notes.push(format!("not in the file: a call to reset_peak_memory_stats; one {when} explains every peak"));
    }
    if check.silent_empty_caches > 0 {
        notes.push(format!("not in the file: {} calls to empty_cache that freed nothing", check.silent_empty_caches));
    }
    if !check.unknown_keys.is_empty() {
        let shown: Vec<&str> = check.unknown_keys.iter().take(HISTORY).map(String::as_str).collect();
        let more = check.unknown_keys.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!(
            "ignored: statistics that PyTorch {} does not have: {}{more}",
            verified.made_by.profile().name,
            shown.join(", ")
        ));
    }
    notes
}

/// The first difference, with the histories of the blocks concerned, which are the same on both sides up to there.
fn divergence(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let Some(first) = &device.first else { return Vec::new() };
    let place = first.entry.map_or("at the end".to_owned(), |entry| format!("entry {entry}"));
    let mut notes = vec![
        format!("first difference, {place}:"),
        format!("  recorded  {}", first.recorded),
        format!("  replayed  {}", first.replayed),
    ];
    let recording = verified.recording.devices.iter().find(|recording| recording.device == device.device);
    let Some(recording) = recording else { return notes };
    for &address in &first.addresses {
        notes.extend(history(recording, address, first.entry.unwrap_or(recording.trace.len())));
    }
    notes
}

fn history(recording: &DeviceRecording, address: u64, until: usize) -> Vec<String> {
    let of_block = recording.trace[..until].iter().enumerate().filter(|(_, entry)| entry.address == address);
    let mut lines: Vec<String> =
        of_block.rev().take(HISTORY).map(|(n, entry)| format!("    entry {n}: {}", Decision::from(entry))).collect();
    lines.reverse();
    let end = if lines.is_empty() { " nothing" } else { "" };
    lines.insert(0, format!("  before that, on both sides, at {address:#x}:{end}"));
    lines
}

fn tolerated(verified: &Verified) -> Vec<String> {
    let tolerated = &verified.recording.tolerated;
    let kinds = [
        ("keys", &tolerated.unknown_top_keys),
        ("segment keys", &tolerated.unknown_segment_keys),
        ("block keys", &tolerated.unknown_block_keys),
        ("entry keys", &tolerated.unknown_entry_keys),
        ("actions", &tolerated.unknown_actions),
    ];
    let found = kinds.iter().filter(|(_, names)| !names.is_empty());
    found
        .map(|(kind, names)| {
            let list: Vec<String> = names.iter().take(HISTORY).map(|(name, count)| format!("{name} ({count})")).collect();
            let more = if names.len() > HISTORY { format!(" and {} more", names.len() - HISTORY) } else { String::new() };
            format!("ignored: unknown {kind}: {}{more}", list.join(", "))
        })
        .collect()
}

view! {
    /// With several devices the numbers are sums, and `devices` has each device's.
    struct Object(verified: &Verified) {
        /// The recording.
        file: String = verified.file.display().to_string(),
        /// The settings it was replayed under.
        settings: String = verified.settings.settings.text.clone(),
        /// Why PyTorch's parser refuses the file's string.
        settings_refusal: Option<String> = verified.settings.refusal.as_ref().map(ToString::to_string),
        /// Where they come from.
        settings_origin: Word<SettingsOrigin> = Word::of(&verified.settings.origin),
        /// The PyTorch version.
        profile: &'static str = verified.made_by.profile().name,
        /// What in the file excludes other releases.
        profile_seen_from: Option<String> = verified.made_by.evidence_words(),
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&verified.made_by),
        /// `--limit`.
        limit_bytes: Option<u64> = verified.limit,
        /// Without `--limit`: the limit under which garbage collection is as recorded.
        assumed_limit_bytes: Option<u64> = verified.assumed_limit,
        /// The setting `per_process_memory_fraction`, where the device's memory is unknown.
        fraction_of_unknown_memory: Option<f64> =
            verified.has_unknown_fraction().then_some(verified.settings.settings.per_process_memory_fraction),
        /// The number of entries in the trace.
        entries: u64 = sum(verified, |device| device.entries as u64),
        /// The number of decisions compared.
        decisions: u64 = sum(verified, |device| device.decisions),
        /// How many decisions differ.
        mismatches: u64 = verified.mismatches(),
        /// The first decision that differs.
        first_mismatch: Option<Mismatch> = verified.devices.iter().find_map(Mismatch::first),
        /// The peak of allocated memory.
        peak_allocated_bytes: i64 = total(verified, DeviceVerdict::peak_allocated_bytes),
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = total(verified, DeviceVerdict::peak_reserved_bytes),
        /// The number of requests that run out of memory.
        ooms: u64 = sum(verified, |device| device.ooms),
        /// `num_alloc_retries`.
        retries: i64 = verified.devices.iter().map(|device| device.stats.num_alloc_retries).sum(),
        /// The time taken.
        seconds: f64 = verified.seconds,
        /// The parts of the file that are not known, with their counts.
        tolerated: Tolerated = Tolerated::of(verified),
        /// The devices whose trace leaves out kinds of entries (`skip_actions`).
        left_out: Vec<DeviceLeftOut> = recording::left_out(&verified.recording),
        /// What the file does not show; with several devices, each of `devices` has its own.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_in_file: Option<NotInFile> = only(verified).map(NotInFile::of),
        /// With `--stats`: the comparison of PyTorch's statistics with the replay's.
        #[serde(skip_serializing_if = "Option::is_none")]
        statistics: Option<Option<Statistics>> = only(verified).map(|device| device.stats_check.as_ref().map(Statistics::of)),
        /// Each device, if there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<Device>> = only(verified).is_none().then(|| all(&verified.devices, Device::of)),
    }
}

/// The recording's only device.
fn only(verified: &Verified) -> Option<&DeviceVerdict> {
    if let [device] = verified.devices.as_slice() { Some(device) } else { None }
}

fn sum(verified: &Verified, number: fn(&DeviceVerdict) -> u64) -> u64 {
    verified.devices.iter().map(number).sum()
}

/// A sum that does not overflow.
fn total(verified: &Verified, number: fn(&DeviceVerdict) -> i64) -> i64 {
    verified.devices.iter().map(number).fold(0, i64::saturating_add)
}

sections! {
    "verify": Object;
}

view! {
    struct Device(device: &DeviceVerdict) {
        /// The device.
        device: u32 = device.device,
        /// The number of entries in its trace.
        entries: usize = device.entries,
        /// The number of decisions compared.
        decisions: u64 = device.decisions,
        /// How many decisions differ.
        mismatches: u64 = device.mismatches,
        /// The first decision that differs.
        first_mismatch: Option<Mismatch> = Mismatch::first(device),
        /// The peak of allocated memory.
        peak_allocated_bytes: i64 = device.peak_allocated_bytes(),
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = device.peak_reserved_bytes(),
        /// The number of requests that run out of memory.
        ooms: u64 = device.ooms,
        /// `num_alloc_retries`.
        retries: i64 = device.stats.num_alloc_retries,
        /// What the file does not show.
        not_in_file: NotInFile = NotInFile::of(device),
    }
}

view! {
    struct Mismatch(device: u32, first: &parkade_replay::Mismatch) {
        /// The device.
        device: u32 = device,
        /// The entry; null at the end.
        entry: Option<usize> = first.entry,
        /// What the recording has.
        recorded: String = first.recorded.clone(),
        /// What the replay did.
        replayed: String = first.replayed.clone(),
    }
}

impl Mismatch {
    fn first(device: &DeviceVerdict) -> Option<Mismatch> {
        device.first.as_ref().map(|first| Mismatch::of(device.device, first))
    }
}

view! {
    struct NotInFile(device: &DeviceVerdict) {
        /// What existed before the first entry of a file whose oldest entries are missing.
        lost_beginning: Option<LostBeginning> = LostBeginning::find(device),
        /// The number of calls to empty_cache found in the trace.
        empty_cache_calls: u64 = device.not_in_file.empty_caches,
        /// The number of refusals by the device that were taken from the recording.
        device_refusals: u64 = device.not_in_file.refusals,
        /// The number of restored checkpoints of private pools that were inferred from the trace.
        restored_checkpoints: u64 = device.not_in_file.restores,
        /// The private pools that were gone before the end, inferred from the trace.
        guessed_pools: Option<GuessedPools> = device.not_in_file.guess.as_ref().map(GuessedPools::of),
        /// Whether the search for such pools stopped early, because there are too many possibilities.
        gave_up_on_pools: bool = device.not_in_file.gave_up_on_pools,
        /// With `--stats`: the number of calls to empty_cache that released nothing.
        silent_empty_cache_calls: Option<i64> = device.stats_check.as_ref().map(|check| check.silent_empty_caches),
        /// With `--stats`: the entries between which a call to reset_peak_memory_stats explains every peak.
        peaks_reset_between_entries: Option<(usize, usize)> = device.stats_check.as_ref().and_then(|check| check.peaks_reset),
    }
}

view! {
    /// What existed before the first entry of a file whose oldest entries are missing.
    struct LostBeginning {
        /// The number of segments.
        segments: usize,
        /// The number of blocks in use.
        blocks: usize,
        /// How much was reserved.
        reserved_bytes: u64,
        /// The number of blocks whose size appears nowhere.
        assumed_sizes: usize,
        /// The number of blocks whose size can be inferred only from requests that did not fit behind them.
        inferred_sizes: usize,
        /// Whether garbage collection needed ages that are unknown.
        unknown_ages: bool,
        /// The number of collections whose victims were taken from the recording.
        assumed_collections: u64,
    }
}

impl LostBeginning {
    fn find(device: &DeviceVerdict) -> Option<LostBeginning> {
        let not = &device.not_in_file;
        not.lost_beginning.map(|lost| LostBeginning {
            segments: lost.segments,
            blocks: lost.blocks,
            reserved_bytes: lost.reserved_bytes,
            assumed_sizes: lost.assumed_sizes,
            inferred_sizes: lost.inferred_sizes,
            unknown_ages: not.unknown_ages,
            assumed_collections: not.assumed_collections,
        })
    }
}

view! {
    /// Private pools inferred from the trace.
    struct GuessedPools(guess: &Guess) {
        /// The number of pools.
        pools: usize = guess.pools,
        /// The number of requests they served.
        requests: u64 = guess.requests,
        /// The number of windows of the trace in which they were used.
        windows: u64 = guess.windows,
        /// The number of requests that differ without them.
        contradictions: u64 = guess.contradictions,
        /// Their segments.
        segments: Vec<GuessedSegment> = all(&guess.segments, GuessedSegment::of),
    }
}

view! {
    struct GuessedSegment(segment: &parkade_replay::GuessedSegment) {
        /// The address.
        address: u64 = segment.address,
        /// The pool.
        pool: usize = segment.pool,
        /// When it was reserved; null if that was before the first entry.
        made_at_entry: Option<usize> = segment.made_at,
        /// When it was released; null if that was at the end.
        gone_at_entry: Option<usize> = segment.gone_at,
    }
}

view! {
    struct Statistics(check: &StatsCheck) {
        /// The number of keys compared.
        compared: usize = check.compared,
        /// The number of keys whose values the file cannot show.
        unknowable: usize = check.unknowable,
        /// The keys that differ.
        differences: Vec<StatisticDifference> = all(&check.differences, StatisticDifference::of),
        /// The keys that this PyTorch version does not have.
        unknown_keys: Vec<String> = check.unknown_keys.clone(),
    }
}

view! {
    struct StatisticDifference(difference: &parkade_replay::StatsDifference) {
        /// The key.
        key: String = difference.key.clone(),
        /// PyTorch's value.
        recorded: i64 = difference.recorded,
        /// The replay's value.
        replayed: i64 = difference.replayed,
    }
}

view! {
    /// Names in the file that are not known, with their counts.
    struct Tolerated(verified: &Verified) {
        /// The keys of the snapshot that are not known.
        unknown_top_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_top_keys.clone(),
        /// The keys of segments that are not known.
        unknown_segment_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_segment_keys.clone(),
        /// The keys of blocks that are not known.
        unknown_block_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_block_keys.clone(),
        /// The keys of trace entries that are not known.
        unknown_entry_keys: BTreeMap<String, u64> = verified.recording.tolerated.unknown_entry_keys.clone(),
        /// The actions of trace entries that are not known.
        unknown_actions: BTreeMap<String, u64> = verified.recording.tolerated.unknown_actions.clone(),
        /// The number of snapshots before this one in the same file.
        earlier_snapshots: u64 = verified.recording.tolerated.earlier_snapshots,
    }
}
