//! Replays the requests of a recording under settings of PyTorch's allocator, as a table with notes and as one JSON object; and decides
//! whether a replay fits, under settings or a policy: for a run that died, as `advise` does.

use std::path::Path;

use anyhow::{Result, anyhow};
use parkade::profile::Profile as Rules;
use parkade_analysis::advise::{self, Advice, AdviseOptions, DeviceOutcome, MemoryBudget, Outcome, fit_as_recorded};
use parkade_analysis::continuation::Doubt;
use parkade_analysis::ending::Ending;
use parkade_analysis::ranks::{Failure, RankRun};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::Recognition;
use parkade_replay::{
    Extreme, LostBeginning, Operation, Outlook, OutlookOptions, ReplaySettings, Requests, SelfCheck, SettingsOrigin, TIMINGS,
    TimingRange, TimingsThatFit, learned_addresses, read_otherwise, replay_device, timings_that_fit,
};

use crate::terminal::answer::Answer;
use crate::terminal::args::Replay;
use crate::terminal::json_struct::{Word, all, one_of, view};
use crate::terminal::output::{self, Tone};
use crate::terminal::recording::{self, MadeBy, short_name};
use crate::terminal::run_words::{self, Checked, OtherReading, ReadFlush};
use crate::terminal::surroundings::Start;
use crate::terminal::table::{Mark, Table};
use crate::terminal::{progress, size};

/// A recording that was replayed under settings.
pub struct UnderSettings {
    settings: ReplaySettings,
    /// The limit of each device.
    limits: Vec<Option<u64>>,
    /// Whether the limits were assumed and not given.
    is_assumed: bool,
    /// The recorded run's own limit, if garbage collection reveals it.
    found_limit: Option<u64>,
    recording: Recording,
    own: ReplaySettings,
    /// The rules under which it was replayed.
    profile: &'static Rules,
    made_by: Recognition,
    devices: Vec<Outlook>,
    /// The number of other timings with which each device fits.
    timings: Vec<Option<TimingsThatFit>>,
    /// Whether a replay under the run's own settings needs what each device needed.
    checks: Vec<Option<SelfCheck>>,
    /// How each device fares if doubtful entries are interpreted the other way.
    otherwise: Vec<Option<Extreme>>,
    pub(super) answer: Judged,
    seconds: f64,
}

impl UnderSettings {
    /// Whether the memory is known, given or assumed.
    pub(super) fn is_limited(&self, args: &Replay) -> bool {
        self.limits.iter().any(Option::is_some) || args.capacity.is_some()
    }

    /// The limit of all devices, if they have the same.
    fn limit(&self) -> Option<u64> {
        let first = *self.limits.first()?;
        first.filter(|_| self.limits.iter().all(|limit| *limit == first))
    }

    fn fits(&self) -> bool {
        (0..self.devices.len()).all(|place| self.answer.fits(place))
    }

    /// The replayed runs, with their failures as judged. If no memory is known, nothing was refused, and the recorded errors stand.
    pub(super) fn rank_runs(&self, args: &Replay) -> Vec<RankRun> {
        let UnderSettings { recording, own, answer, made_by, .. } = self;
        let of_device = |(place, (device, outlook))| {
            let fails = answer.fails_at(place);
            let recorded = || answer.endings.get(place)?.death().map(|death| death.entry).filter(|_| !self.is_limited(args));
            let failure = fails.or_else(recorded).map(|entry| Failure::of(device, entry));
            let ooms = match self.is_limited(args) {
                true => u64::try_from(answer.ooms(place, outlook)).unwrap_or(0),
                false => outlook.requests.ooms,
            };
            RankRun { failure, ooms, ..RankRun::of_outlook(device, own, outlook).made_by(made_by) }
        };
        let traced = recording::traced(recording).into_iter().zip(&self.devices);
        traced.enumerate().map(of_device).collect()
    }
}

/// Replays a recording's requests under the requested settings.
pub(super) fn replay(file: &Path, args: &Replay, is_json: bool) -> Result<UnderSettings> {
    let start = Start::now();
    // Parsed before the file is read, so that mistyped settings fail immediately.
    args.given(recording::newest_release())?;
    // Settings replace the allocator in any case.
    let read = if args.settings.is_some() { recording::read } else { recording::read_run };
    let recording = read(file)?;
    // The requests are read under the rules of the release that recorded them, and replayed under those chosen.
    let (own, found_limit, made_by) = args.own_or_found(&recording)?;
    let recorded = own.settings.clone();
    let profile = args.rules(recorded.profile);
    let settings = args.given(recorded.profile)?.unwrap_or_else(|| recorded.clone());
    let limit_bytes = args.limit(settings.settings.per_process_memory_fraction, recorded.profile)?;
    let options =
        OutlookOptions { own, profile, settings: settings.settings.clone(), limit_bytes, capacity_bytes: args.capacity };
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        return Err(recording::no_trace(&recording, "to replay"));
    }
    let bar = progress::entries(is_json);
    bar.set_length(recording::entries(&traced));
    let known = Known::of(&traced, &options)?;
    let (limits, is_assumed) = (known.limits.clone(), known.is_assumed);
    let (mut devices, mut timings, mut done) = (Vec::new(), Vec::new(), 0);
    let (mut checks, mut otherwise) = (Vec::new(), Vec::new());
    for (device, &limit_bytes) in traced.iter().zip(&limits) {
        let options = OutlookOptions { limit_bytes, ..options.clone() };
        let outlook = replay_device(device, &options, &mut |entries| bar.set_position((done + entries) as u64));
        let outlook = recording::of_device(outlook, device.device, traced.len())?;
        done += device.trace.len();
        timings.push(timings_that_fit(device, &outlook, &options));
        checks.push(self_check(device, &outlook, &options));
        otherwise.push(read_otherwise(device, &outlook, &options));
        devices.push(outlook);
    }
    bar.finish_and_clear();
    let answer = known.judge(&traced, &mut devices, &options);
    let seconds = start.elapsed().as_secs_f64();
    Ok(UnderSettings {
        answer,
        settings,
        limits,
        is_assumed,
        found_limit,
        own: recorded,
        profile,
        made_by,
        recording,
        devices,
        timings,
        checks,
        otherwise,
        seconds,
    })
}

/// The self-check of a device. If the replay already ran under the run's own settings with plenty of memory, that run is
/// reused.
fn self_check(recording: &DeviceRecording, outlook: &Outlook, options: &OutlookOptions) -> Option<SelfCheck> {
    let OutlookOptions { own, profile, settings, limit_bytes: None, capacity_bytes: None } = options else {
        return SelfCheck::of(recording, &options.own, &outlook.requests);
    };
    let is_own = *settings == own.settings.settings && *profile == own.settings.profile;
    let learned = learned_addresses(recording, &outlook.requests);
    SelfCheck::reusing(recording, own, &outlook.requests, &learned, is_own.then_some(&outlook.prediction))
}

const HEADS: [&str; 8] = ["settings", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];
/// Why the content of the file does not decide the question.
pub(super) const HIDDEN: &str = "what came before its first entry needed more than is available";
/// The column that is coloured.
const FITS: usize = 1;

pub(super) fn answer(file: &Path, args: &Replay, replayed: &UnderSettings) -> Answer {
    let row = |(place, device): (usize, &Outlook)| {
        let fits = fits(args, replayed, place);
        let mark = if fits == "-" { Mark::Plain } else { Mark::of(replayed.answer.fails_at(place).is_none()) };
        Row {
            device: device.device,
            cells: cells(replayed, device, place, fits),
            mark,
            notes: notes(args, replayed, device, place),
        }
    };
    shown(file, said(args, replayed), &HEADS, replayed.devices.iter().enumerate().map(row).collect())
}

/// What a replay came to on one device.
pub(super) struct Row {
    pub(super) device: u32,
    pub(super) cells: [String; HEADS.len()],
    pub(super) mark: Mark,
    pub(super) notes: Vec<String>,
}

/// The answer, whether it is good news, and the figures: of several devices a row for each.
pub(super) fn shown(file: &Path, (is_good, said): (bool, String), heads: &[&str; HEADS.len()], rows: Vec<Row>) -> Answer {
    let mut answer = Answer::new();
    answer.headline(if is_good { Tone::Good } else { Tone::Bad }, said);
    answer.toned(Tone::Dim, short_name(file));
    if let [row] = rows.as_slice() {
        let mut table = Table::bare(2).with_left([0, 1]);
        for (place, (head, cell)) in heads.iter().zip(&row.cells).enumerate() {
            table.marked([*head, cell], 1, if place == FITS { row.mark } else { Mark::Plain });
        }
        answer.table(table);
        answer.paragraphs(&row.notes);
        return answer;
    }
    let mut table = Table::new(std::iter::once("device").chain(heads.iter().copied()));
    for row in &rows {
        table.marked(std::iter::once(&row.device.to_string()).chain(&row.cells), FITS + 1, row.mark);
    }
    answer.table(table);
    for row in rows.into_iter().filter(|row| !row.notes.is_empty()) {
        answer.gap();
        answer.title(format!("device {}", row.device));
        row.notes.into_iter().for_each(|note| answer.indented(2, note));
    }
    answer
}

/// Whether a device's program fits, in one word; a dash if that is not known.
fn fits(args: &Replay, replayed: &UnderSettings, place: usize) -> &'static str {
    let answer = &replayed.answer;
    let is_unknown = answer.outcomes.get(place) == Some(&Outcome::Unknown);
    if answer.fails_at(place).is_some() {
        // The memory is known to be at least this much, but may have been more.
        if is_unknown && replayed.is_assumed { "-" } else { "no" }
    } else if !replayed.is_limited(args) || (is_unknown && !answer.fits(place)) {
        "-"
    } else if answer.fits(place) {
        "yes"
    } else {
        "gets past"
    }
}

fn cells(replayed: &UnderSettings, device: &Outlook, place: usize, fits: &str) -> [String; HEADS.len()] {
    let prediction = &device.prediction;
    let text = &replayed.settings.settings.text;
    let settings = if text.is_empty() { "default settings".to_owned() } else { output::one_line(text) };
    [
        settings,
        fits.to_owned(),
        replayed.answer.ooms(place, device).to_string(),
        size::show(prediction.peak_allocated_bytes()),
        size::show(prediction.peak_reserved_bytes()),
        prediction.stats.num_alloc_retries.to_string(),
        prediction.driver_calls.to_string(),
        format!("{:.1} ms", prediction.driver_ns as f64 / 1e6),
    ]
}

/// The answer, and whether it is good news.
fn said(args: &Replay, replayed: &UnderSettings) -> (bool, String) {
    let answer = &replayed.answer;
    let death = answer.endings.iter().find_map(Ending::death);
    let has_lost = replayed.devices.iter().any(|device| device.requests.lost_beginning.is_some());
    let limited = replayed.is_limited(args);
    match (answer.outcome, death) {
        (Outcome::GetsPast, Some(error)) => {
            let why = match answer.doubt {
                Some(doubt) => run_words::doubt(doubt),
                None => "its estimate does not fit".to_owned(),
            };
            let entry = error.entry;
            (false, format!("it gets past entry {entry}, where the run died; the rest is not in the file, and {why}"))
        }
        (Outcome::Fits, Some(_)) => (true, "it fits, including the estimated rest".to_owned()),
        (Outcome::Fits, None) => {
            let far = if has_lost { "judging by what is in the file, " } else { "" };
            let how = if answer.any_as_recorded { " as it is: the recorded run did" } else { "" };
            (true, format!("{far}it fits{how}{}{}", had_before(replayed), other_timings(replayed)))
        }
        (Outcome::Unknown, Some(error)) if !limited => (
            false,
            format!("not known: the run died at entry {}, and without --limit or --capacity nothing is refused", error.entry),
        ),
        (Outcome::Unknown, None) if !limited => {
            let peaks = replayed.devices.iter().map(|device| size::show(device.prediction.peak_reserved_bytes()));
            (true, format!("at most {} reserved; without --limit or --capacity nothing is refused", output::list(peaks)))
        }
        (Outcome::Unknown, _) if replayed.is_assumed => (false, format!("not known: {}", with_assumed(replayed))),
        (Outcome::Unknown, _) => (false, format!("not known: what is in the file fits, but {HIDDEN}")),
        (Outcome::GetsPast | Outcome::DoesNotFit, _) => (false, does_not_fit(replayed)),
    }
}

/// The memory that the recorded run had reserved before its first entry, if that exceeds the need of what is in the file.
fn had_before(replayed: &UnderSettings) -> String {
    let reserved = |device: &Outlook| {
        let lost = device.requests.lost_beginning?;
        (lost.reserved_bytes > device.prediction.peak_reserved_bytes().unsigned_abs()).then_some(lost.reserved_bytes)
    };
    replayed.devices.iter().filter_map(reserved).max().map_or_else(String::new, run_words::had_before)
}

/// A note that it does not fit with some other timings of the streams.
fn other_timings(replayed: &UnderSettings) -> String {
    match replayed.timings.iter().flatten().filter(|timings| timings.fit < timings.of).min_by_key(|timings| timings.fit) {
        Some(TimingsThatFit { fit, of }) => format!(
            "; this depends on when the other streams finish: it fits with the recorded timing, but with {} of {of} other \
             timings that were tried",
            if *fit == 0 { "none".to_owned() } else { format!("only {fit}") },
        ),
        None => String::new(),
    }
}

/// What happens in the assumed memory.
fn with_assumed(replayed: &UnderSettings) -> String {
    let limit = match replayed.limit() {
        Some(bytes) => size::show_bytes(bytes),
        None => "the memory of each device".to_owned(),
    };
    let found = match replayed.answer.first_failure() {
        Some((place, entry)) => {
            let runs = runs(replayed, place);
            format!("in {limit} {runs} out of memory at entry {entry}, but the limit may have been higher")
        }
        None if replayed.answer.hides_more => format!("in {limit} what is in the file fits, but {HIDDEN}"),
        None => format!("in {limit} what is in the file fits, but the limit may have been lower"),
    };
    format!("{found} (--limit sets it)")
}

/// Names the device that runs out of memory, if there are several.
fn runs(replayed: &UnderSettings, place: usize) -> String {
    match replayed.devices.as_slice() {
        [_] => "it runs".to_owned(),
        devices => format!("device {} runs", devices.get(place).map_or(0, |device| device.device)),
    }
}

fn does_not_fit(replayed: &UnderSettings) -> String {
    let answer = &replayed.answer;
    let Some((place, entry)) = answer.first_failure() else { return "it does not fit".to_owned() };
    let is_one_of_many = replayed.devices.len() > 1;
    if answer.fails_as_recorded == Some(place) {
        let of_device = if is_one_of_many { format!(" of device {}", replayed.devices[place].device) } else { String::new() };
        return format!(
            "it does not fit: the run{of_device} itself died at entry {entry} with this limit and these settings; the replay \
             succeeds only because the beginning of the run is not in the file"
        );
    }
    let of_device = runs(replayed, place);
    let first = if is_one_of_many { " first," } else { "" };
    let errors = replayed.devices.get(place).map_or(0, |device| device.requests.ooms);
    let goes_on = answer.endings.get(place).and_then(|ending| run_words::goes_on(ending, errors));
    let goes_on = goes_on.map_or_else(String::new, |said| format!("; {said}"));
    format!("it does not fit: {of_device} out of memory{first} at entry {entry}{goes_on}")
}

fn show(extreme: Extreme) -> String {
    let outcome = if extreme.fits { "" } else { " (out of memory)" };
    format!("{}{outcome}", size::show(extreme.peak_reserved_bytes))
}

/// What the file has lost, and what the replay uses instead.
pub(super) fn before_first_entry(lost: LostBeginning) -> String {
    format!(
        "not in the file: everything before the first entry; the {} live at that point count as requested before it",
        output::count(lost.blocks, "block")
    )
}

fn notes(args: &Replay, replayed: &UnderSettings, device: &Outlook, place: usize) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: at most {} reserved", size::show(requests.recorded_peak_reserved_bytes))];
    notes.extend(run_words::failed_check(replayed.checks.get(place).copied().flatten()));
    if place == 0 {
        notes.push(recording::made_by_words(&replayed.made_by));
    }
    if let Some(range) = device.timing {
        let peaks = size::show_range(range.least_peak_reserved_bytes, range.most_peak_reserved_bytes);
        let between = if range.is_likely {
            format!("{peaks} is likely, judging by the times of the entries")
        } else {
            format!("{peaks} over all timings tried")
        };
        let fit = replayed.timings.get(place).copied().flatten();
        let fit = fit.map_or_else(String::new, |TimingsThatFit { fit, of }| {
            format!("; fits with {fit} of {of} timings of the other streams")
        });
        notes.push(format!(
            "frees wait for other streams: the peak of reserved memory is {} if each completes by the next request, {} if each \
             completes only where the allocator waits for it; {between}{fit}",
            show(range.earliest),
            show(range.latest),
        ));
    }
    if replayed.settings.origin == SettingsOrigin::Assumed {
        notes.push(recording::ASSUMED_SETTINGS.to_owned());
    }
    if let Some(bytes) = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed) {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    }
    if let Some(bytes) = replayed.found_limit {
        notes.push(format!("for the recorded run, {}", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    if !replayed.is_limited(args) && replayed.settings.settings.garbage_collection_threshold > 0.0 {
        notes.push("without a limit garbage_collection_threshold does nothing (--limit sets one)".to_owned());
    }
    notes.extend(requests.lost_beginning.map(before_first_entry));
    notes.extend(replayed.answer.endings.get(place).and_then(run_words::ending));
    notes.extend(run_words::readings(requests));
    let is_limited = replayed.is_limited(args);
    notes.extend(
        replayed.otherwise.get(place).copied().flatten().map(|otherwise| run_words::other_reading(otherwise, is_limited)),
    );
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    if device.prediction.device_errors > 0 {
        notes.push(recording::other_failures(device.prediction.device_errors));
    }
    notes
}

view! {
    /// With several devices the numbers are sums, and `devices` has the numbers of each device.
    pub(super) struct Object(file: &Path, args: &Replay, replayed: &UnderSettings) {
        /// The recording.
        file: String = file.display().to_string(),
        /// The settings it was replayed under.
        settings: String = replayed.settings.settings.text.clone(),
        /// Where they come from.
        settings_origin: Word<SettingsOrigin> = Word::of(&replayed.settings.origin),
        /// The PyTorch version whose rules the replay follows.
        profile: &'static str = replayed.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&replayed.made_by),
        /// `--capacity`.
        capacity_bytes: Option<u64> = args.capacity,
        /// The limit that was used; also null if the devices had different ones.
        limit_bytes: Option<u64> = replayed.limit(),
        /// The recorded run's limit, given or found.
        recorded_limit_bytes: Option<u64> = args.recorded.bytes(&replayed.recording).or(replayed.found_limit),
        /// `fits`, `gets_past`, `does_not_fit` or `unknown`, as for `advise`; `unknown` if neither a limit nor a capacity is
        /// known.
        outcome: Word<Outcome> = Word::of(&replayed.answer.outcome),
        /// How each device's recorded run ended.
        endings: Vec<Word<Ending>> = all(&replayed.answer.endings, Word::of),
        /// Why the rest of a run that died cannot be estimated, as for `advise`.
        doubt: Option<Word<Doubt>> = replayed.answer.doubt.as_ref().map(Word::of),
        /// The time taken.
        seconds: f64 = replayed.seconds,
        #[serde(flatten)]
        numbers: OneOrMany = match replayed.devices.as_slice() {
            [device] => OneOrMany::One(Box::new(Numbers::of(device, replayed, 0))),
            _ => OneOrMany::Many(Sums::of_settings(replayed)),
        },
    }
}

one_of! {
    pub(super) enum OneOrMany {
        One(Box<Numbers>),
        Many(Sums),
    }
}

view! {
    pub(super) struct Numbers(outlook: &Outlook, replayed: &UnderSettings, place: usize) {
        /// Whether every request is served; if the run died, including the estimated rest, without doubt.
        pub(super) fits: bool = replayed.answer.fits(place),
        /// The number of requests that fail; under a policy, the first one ends the replay, and the numbers cover the part up
        /// to it.
        pub(super) ooms: i64 = replayed.answer.ooms(place, outlook),
        /// The entry of the first request that fails; if the settings are those of a run that died, the request that ends it.
        pub(super) fails_at_entry: Option<usize> = replayed.answer.fails_at(place),
        /// The peak of allocated memory.
        pub(super) peak_allocated_bytes: i64 = outlook.prediction.peak_allocated_bytes(),
        /// The peak of reserved memory.
        pub(super) peak_reserved_bytes: i64 = outlook.prediction.peak_reserved_bytes(),
        /// `num_alloc_retries`.
        pub(super) retries: i64 = outlook.prediction.stats.num_alloc_retries,
        /// The number of memory calls to the driver.
        pub(super) driver_calls: u64 = outlook.prediction.driver_calls,
        /// What those calls cost.
        pub(super) driver_ns: u64 = outlook.prediction.driver_ns,
        /// The number of calls to empty_cache in the trace.
        pub(super) empty_cache_calls: usize = empty_cache_calls(&outlook.requests),
        /// The recorded run.
        pub(super) recorded: Recorded = Recorded::of(&outlook.requests),
        /// Whether a replay under the run's own settings needs as much as the run did.
        pub(super) self_check: Option<Checked> = replayed.checks.get(place).copied().flatten().map(Checked::of),
        /// Memory that was released right before requests that then took some: by a retry, because the device had refused the
        /// request, or by a call to `empty_cache`.
        pub(super) flushes: Vec<ReadFlush> = run_words::flushes(&outlook.requests),
        /// The result if the doubtful `flushes` are interpreted the other way, if it is different; null under a policy.
        pub(super) read_otherwise: Option<OtherReading> = replayed.otherwise.get(place).copied().flatten().map(OtherReading::of),
        /// The number of requests that failed for a reason other than memory.
        pub(super) device_errors: u64 = outlook.prediction.device_errors,
        /// The limit that was used, if neither a limit nor a capacity was given: what `advise` assumes for a run that died.
        pub(super) assumed_limit_bytes: Option<u64> = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed),
        #[serde(flatten)]
        pub(super) timing: Option<Timing> = outlook.timing.map(|range| Timing::of(range, replayed.timings.get(place).copied().flatten())),
    }
}

pub(super) fn empty_cache_calls(requests: &Requests) -> usize {
    requests.operations.iter().filter(|(_, operation)| *operation == Operation::EmptyCache).count()
}

view! {
    pub(super) struct Recorded(requests: &Requests) {
        /// The recorded run's peak of reserved memory.
        peak_reserved_bytes: i64 = requests.recorded_peak_reserved_bytes,
        /// The number of its requests that ran out of memory.
        ooms: u64 = requests.ooms,
        /// The number of its decisions that differ from the replay's.
        mismatches: u64 = requests.mismatches,
        /// What existed before the first entry of a file whose oldest entries are missing.
        lost_beginning: Option<Lost> = requests.lost_beginning.map(Lost::of),
    }
}

view! {
    struct Lost(lost: LostBeginning) {
        /// The number of segments.
        segments: usize = lost.segments,
        /// The number of blocks in use.
        blocks: usize = lost.blocks,
        /// The bytes in the segments. If they exceed the memory, `outcome` is `unknown` although what is in the file fits.
        reserved_bytes: u64 = lost.reserved_bytes,
    }
}

view! {
    /// How much the timing of other streams matters.
    pub(super) struct Timing(range: TimingRange, timings: Option<TimingsThatFit>) {
        /// The peak of reserved memory if other streams are done by the next request.
        peak_reserved_bytes_earliest: i64 = range.earliest.peak_reserved_bytes,
        /// Whether every request is served in that case.
        fits_earliest: bool = range.earliest.fits,
        /// The peak of reserved memory if other streams are never done before a wait.
        peak_reserved_bytes_latest: i64 = range.latest.peak_reserved_bytes,
        /// Whether every request is served in that case.
        fits_latest: bool = range.latest.fits,
        /// The lowest peak of reserved memory that is likely, judging by the times of the entries. The lowest over all timings
        /// tried if the entries have no times, if the file has private pools, or if requests of the recorded run waited for
        /// memory for more than a tenth of its time.
        peak_reserved_bytes_least: i64 = range.least_peak_reserved_bytes,
        /// The highest such peak.
        peak_reserved_bytes_most: i64 = range.most_peak_reserved_bytes,
        /// Whether these two are likely, judging by the times of the entries; if not, they are the extremes of all timings
        /// tried.
        peak_reserved_bytes_are_likely: bool = range.is_likely,
        /// The number of other timings of the streams that were tried.
        timings_tried: usize = TIMINGS.len(),
        /// The number of them with which every request is served; null without a limit or a capacity.
        timings_fit: Option<usize> = timings.map(|timings| timings.fit),
    }
}

view! {
    /// The numbers of a device.
    pub(super) struct Device {
        /// The device.
        pub(super) device: u32,
        #[serde(flatten)]
        pub(super) numbers: Numbers,
    }
}

view! {
    /// The sums over several devices. Their keys have the same meanings as in [`Numbers`].
    pub(super) struct Sums {
        ooms: i64,
        peak_allocated_bytes: i64,
        peak_reserved_bytes: i64,
        retries: i64,
        driver_calls: i64,
        driver_ns: i64,
        empty_cache_calls: i64,
        device_errors: i64,
        fits: bool,
        fails_at_entry: Option<usize>,
        self_check: Option<Checked>,
        /// Each device, if there are several.
        devices: Vec<Device>,
    }
}

impl Sums {
    fn of_settings(replayed: &UnderSettings) -> Sums {
        let of_device = |(place, outlook): (usize, &Outlook)| Device {
            device: outlook.device,
            numbers: Numbers::of(outlook, replayed, place),
        };
        let fails_at_entry = replayed.answer.first_failure().map(|(_, entry)| entry);
        let checks = replayed.checks.iter().copied().flatten();
        Sums::of(all(replayed.devices.iter().enumerate(), of_device), checks, replayed.fits(), fails_at_entry)
    }

    /// `checks` are the self-checks of the devices; the one that is furthest off represents all of them.
    pub(super) fn of(
        devices: Vec<Device>,
        checks: impl Iterator<Item = SelfCheck>,
        fits: bool,
        fails_at_entry: Option<usize>,
    ) -> Sums {
        // Sums that do not overflow.
        let sum = |number: &dyn Fn(&Numbers) -> i64| devices.iter().map(|one| number(&one.numbers)).fold(0, i64::saturating_add);
        let signed = |number: u64| i64::try_from(number).unwrap_or(0);
        Sums {
            ooms: sum(&|one| one.ooms),
            peak_allocated_bytes: sum(&|one| one.peak_allocated_bytes),
            peak_reserved_bytes: sum(&|one| one.peak_reserved_bytes),
            retries: sum(&|one| one.retries),
            driver_calls: sum(&|one| signed(one.driver_calls)),
            driver_ns: sum(&|one| signed(one.driver_ns)),
            empty_cache_calls: sum(&|one| signed(one.empty_cache_calls as u64)),
            device_errors: sum(&|one| signed(one.device_errors)),
            fits,
            fails_at_entry,
            self_check: SelfCheck::worst(checks).map(Checked::of),
            devices,
        }
    }
}

/// The judgement on a replay. The table, the words and the JSON object all show this.
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    /// The outcome of each device alone.
    pub(super) outcomes: Vec<Outcome>,
    /// How each device's recorded run ended.
    pub(super) endings: Vec<Ending>,
    /// Why the rest of a run that died is in doubt.
    pub(super) doubt: Option<Doubt>,
    /// The entry at which each device's replayed run fails.
    fails: Vec<Option<usize>>,
    /// The first device whose recorded run failed under these same settings in no less memory, although the replay serves it,
    /// because the oldest entries of the recording are missing.
    fails_as_recorded: Option<usize>,
    /// Whether some device fits because the recorded run did, against the result of its replay.
    any_as_recorded: bool,
    /// Whether the part before the first entry needed more than the available memory on some device.
    pub(super) hides_more: bool,
}

/// The facts known before the replay: how the runs ended and, for a run that died, what `advise` says about the settings.
pub(super) struct Known {
    endings: Vec<Ending>,
    advice: Option<Advice>,
    /// The limit of each device: the given one or, if a run died and none was given, the one that `advise` assumes.
    pub(super) limits: Vec<Option<u64>>,
    /// Whether any limit was assumed.
    pub(super) is_assumed: bool,
}

impl Known {
    pub(super) fn of(traced: &[&DeviceRecording], options: &OutlookOptions) -> Result<Known> {
        let endings: Vec<Ending> = traced.iter().map(|device| Ending::of(device)).collect();
        let given = MemoryBudget { capacity_bytes: options.capacity_bytes, limit_bytes: options.limit_bytes };
        if endings.iter().all(|ending| ending.death().is_none()) {
            return Ok(Known { limits: vec![given.limit_bytes; endings.len()], endings, advice: None, is_assumed: false });
        }
        let (own, profile) = (options.own.clone(), options.profile);
        let asked = AdviseOptions {
            own,
            profile,
            memory: given,
            given: vec![options.settings.clone()],
            only_given: true,
            devices_seen: traced.len(),
        };
        let advice = advise::advise(traced, &asked, &|_| ()).map_err(|(device, error)| match traced.len() {
            1 => error.into(),
            _ => anyhow!("device {device}: {error}"),
        })?;
        let is_given = given != MemoryBudget::default();
        let limits = if is_given { vec![given.limit_bytes; endings.len()] } else { assumed_limits(&advice) };
        let is_assumed = !is_given && limits.iter().any(Option::is_some);
        Ok(Known { endings, advice: Some(advice), limits, is_assumed })
    }

    /// Judges the replay of each device. If the recorded run fitted, its own outcome replaces the replay's.
    fn judge(self, traced: &[&DeviceRecording], outlooks: &mut [Outlook], options: &OutlookOptions) -> Judged {
        let capacity_bytes = options.capacity_bytes;
        let bytes =
            |&limit_bytes: &Option<u64>| MemoryBudget { capacity_bytes, limit_bytes }.bytes(options.profile, &options.settings);
        let available: Option<Vec<u64>> = self.limits.iter().map(bytes).collect();
        let mut any_as_recorded = false;
        for ((outlook, recording), &bytes) in outlooks.iter_mut().zip(traced).zip(available.iter().flatten()) {
            let asked = (options.profile, &options.settings);
            any_as_recorded |= fit_as_recorded(&mut outlook.prediction, recording, &options.own, asked, bytes);
        }
        match (self.advice, available) {
            (Some(advice), Some(_)) => died(&advice, self.endings, outlooks),
            (_, available) => Judged { any_as_recorded, ..complete(self.endings, outlooks, available.as_deref()) },
        }
    }
}

/// The limit of each device that `advise` assumes.
fn assumed_limits(advice: &Advice) -> Vec<Option<u64>> {
    advice.memories.iter().map(|memory| memory.budget.limit_bytes).collect()
}

fn complete(endings: Vec<Ending>, outlooks: &[Outlook], available: Option<&[u64]>) -> Judged {
    let lost = |device: &Outlook| device.requests.lost_beginning.map_or(0, |lost| lost.reserved_bytes);
    let hides_more = outlooks.iter().zip(available.unwrap_or_default()).any(|(device, available)| lost(device) > *available);
    let outcome = |all_fit: bool| match available {
        None => Outcome::Unknown,
        Some(_) if !all_fit => Outcome::DoesNotFit,
        Some(_) if hides_more => Outcome::Unknown,
        Some(_) => Outcome::Fits,
    };
    let fails = outlooks.iter().map(|device| device.prediction.first_failure).collect();
    let outcomes = outlooks.iter().map(|device| outcome(device.fits())).collect();
    let outcome = outcome(outlooks.iter().all(Outlook::fits));
    Judged { outcome, outcomes, endings, doubt: None, fails, fails_as_recorded: None, any_as_recorded: false, hides_more }
}

fn died(advice: &Advice, endings: Vec<Ending>, outlooks: &[Outlook]) -> Judged {
    let place = advice.options.iter().position(|option| option.is_given).unwrap_or(0);
    let option = &advice.options[place];
    let doubt = advice.doubts_with(place).first().map(|&(_, doubt)| doubt).filter(|_| option.fits());
    let fails: Vec<Option<usize>> = option.devices.iter().map(DeviceOutcome::fails_at_entry).collect();
    let is_served = |(fails, outlook): (&Option<usize>, &Outlook)| fails.is_some() && outlook.fits();
    let fails_as_recorded = fails.iter().zip(outlooks).position(is_served);
    let (outcome, hides_more) = (advice.outcome_with(place), advice.hides_more);
    let of_device = |device: &DeviceOutcome| advice.outcome_on_device(place, device.device).unwrap_or(outcome);
    let outcomes = option.devices.iter().map(of_device).collect();
    Judged { outcome, outcomes, endings, doubt, fails, fails_as_recorded, any_as_recorded: false, hides_more }
}

impl Judged {
    /// The entry at which a device (an index among those replayed) runs out of memory.
    pub(super) fn fails_at(&self, place: usize) -> Option<usize> {
        self.fails.get(place).copied().flatten()
    }

    /// The first device that runs out of memory, and the entry.
    pub(super) fn first_failure(&self) -> Option<(usize, usize)> {
        self.fails.iter().enumerate().find_map(|(place, entry)| Some((place, (*entry)?)))
    }

    /// Whether some device's recorded run died.
    pub(super) fn any_died(&self) -> bool {
        self.endings.iter().any(|ending| ending.death().is_some())
    }

    /// Whether every request of a device is served and, if its run died, so is the estimated rest, without doubt.
    pub(super) fn fits(&self, place: usize) -> bool {
        let died = self.endings.get(place).is_some_and(|ending| ending.death().is_some());
        self.fails_at(place).is_none() && (!died || self.outcomes.get(place) == Some(&Outcome::Fits))
    }

    /// The number of requests of a device that fail. Requests of a dying run after its error do not count, because a surviving run
    /// would not have made them.
    pub(super) fn ooms(&self, place: usize, outlook: &Outlook) -> i64 {
        let died = self.endings.get(place).is_some_and(|ending| ending.death().is_some());
        match self.fails_at(place) {
            Some(_) => outlook.prediction.stats.num_ooms.max(1),
            None if died => 0,
            None => outlook.prediction.stats.num_ooms,
        }
    }
}
