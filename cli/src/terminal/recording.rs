//! Reads recordings, selects their devices, finds the PyTorch release that made them, and words the notes on recordings that several
//! commands share.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use parkade::profile::{Profile as Rules, RELEASES, Release};
use parkade_recording::{Action, DeviceRecording, Entry, LeftOut, ReadError, Recording, RunLimit, Simulated};
use parkade_replay::recognition::{
    Asked, Basis, Differing, Recognition, RecognitionError, RefutedLimit, most_reserved, recognise, reserved_at_start,
};

use super::json_struct::{Word, all, sections, view};
use super::{output, size, surroundings};

/// Returns the memory limit that the file records, unless the run reserved more; the limit then did not hold for the entire recording.
pub fn kept_limit(recording: &Recording) -> Option<RunLimit> {
    let limit = recording.run_limit?;
    recording.devices.iter().all(|device| most_reserved(device) <= limit.bytes).then_some(limit)
}

/// How to record a trace. Ends an error message.
pub const RECORD_IT: &str = "record it with torch.cuda.memory._record_memory_history()";

/// Explains why a recording has no trace. `needs` is the purpose for which a command needs it, such as `to replay`.
pub fn no_trace(recording: &Recording, needs: &str) -> anyhow::Error {
    match recording.devices.iter().find_map(|device| device.left_out.as_ref()) {
        Some(left_out) => anyhow!(
            "no trace entries {needs}: {}; parkade diagnose and report show the state at the end",
            left_out_words(left_out)
        ),
        None => anyhow!("the file has no trace entries {needs}: {RECORD_IT}"),
    }
}

/// Returns a note on what a recording leaves out, and the consequences.
pub fn left_out_words(left_out: &LeftOut) -> String {
    let kinds = kinds_left_out(left_out);
    match left_out.inferred_entries {
        Some(inferred) => format!(
            "not in the file: {kinds}, which the recording leaves out (skip_actions); {} inferred from the others and counted \
             in entry numbers",
            output::count(inferred as u64, "entry")
        ),
        None => format!(
            "the recording leaves out {kinds} (skip_actions), so its {} cannot be replayed; record without skip_actions",
            output::count(left_out.recorded_entries as u64, "other entry")
        ),
    }
}

view! {
    /// What a device's trace leaves out.
    pub struct DeviceLeftOut(device: u32, left_out: &LeftOut) {
        /// The device.
        device: u32 = device,
        /// The kinds.
        actions: Vec<Word<Action>> = all(&left_out.actions, Word::of),
        /// The number of entries in the file.
        recorded_entries: usize = left_out.recorded_entries,
        /// The number of entries that were inferred from those and added; null if they cannot be inferred, in which case
        /// nothing on the device was checked.
        inferred_entries: Option<usize> = left_out.inferred_entries,
    }
}

/// Returns what the devices' traces leave out.
pub fn left_out(recording: &Recording) -> Vec<DeviceLeftOut> {
    let of_device = |device: &DeviceRecording| Some(DeviceLeftOut::of(device.device, device.left_out.as_ref()?));
    recording.devices.iter().filter_map(of_device).collect()
}

/// Returns the kinds of entries that are left out: `segment_alloc and segment_free entries`.
pub fn kinds_left_out(left_out: &LeftOut) -> String {
    let names: Vec<&str> = left_out.actions.iter().map(|action| action.name()).collect();
    format!("{} entries", output::enumerated(&names))
}

/// A note for recordings without settings.
pub const ASSUMED_SETTINGS: &str = "not in the file: the settings; the default settings are assumed (--settings overrides them)";

/// Returns a note on an inferred limit. `option` is the option that sets it.
pub fn assumed_limit(bytes: u64, option: &str) -> String {
    format!("a limit of {} is assumed, which the recording allows ({option} sets it)", size::show_bytes(bytes))
}

/// States that the recorded run cannot have had this limit, because it reserved more.
pub fn not_its_limit(reserved_bytes: u64, limit_bytes: u64) -> String {
    format!(
        "The recorded run reserved {}, more than the limit of {}, so that was not its limit: --limit is the limit of the recorded run, \
         --capacity the memory to try other settings with.",
        size::show_bytes(reserved_bytes),
        size::show_bytes(limit_bytes)
    )
}

/// States how many recorded decisions differ from the replay's.
pub fn differing(mismatches: u64, decisions: u64) -> String {
    let differ = if mismatches == 1 { "differs" } else { "differ" };
    format!("{mismatches} of {decisions} recorded decisions {differ}")
}

/// Returns a note on the requests of a recording that the replay does not reproduce.
pub fn uncertain_requests(mismatches: u64, decisions: u64) -> String {
    format!(
        "{} in a replay under the recording's own settings (see parkade verify; --recorded-limit sets its limit), so the requests are \
         less certain",
        differing(mismatches, decisions)
    )
}

/// Returns a note on requests that failed on the simulated device for a reason other than lack of memory.
pub fn other_failures(requests: u64) -> String {
    format!("{} failed for a reason other than memory", output::count(requests, "request"))
}

/// The error for a file that is text, such as a log, instead of a snapshot.
#[derive(Debug, thiserror::Error)]
#[error(
    "this is text, not a snapshot (the file that torch.cuda.memory._dump_snapshot writes); to explain the out-of-memory message in a \
     log, run parkade diagnose {diagnosed}"
)]
pub struct IsLog {
    /// What `diagnose` is given to read the file.
    diagnosed: String,
}

/// The input that `-` means.
const STDIN: &str = "/dev/stdin";

/// Reads a recording, or standard input for `-`, and looks for what `skip_actions` left out of it.
///
/// # Errors
/// The file cannot be read or is not a recording. The error does not name the file.
pub fn read(file: &Path) -> Result<Recording> {
    let is_stdin = file == Path::new("-");
    let path = if is_stdin { Path::new(STDIN) } else { file };
    let opened = surroundings::open(path).map_err(|cause| ReadError::File { path: path.to_owned(), cause });
    let read = opened.and_then(|(file, length)| parkade_recording::read_opened(path, file, length));
    let mut recording = read.map_err(|error| match error {
        // The caller names the file.
        ReadError::File { cause, .. } => anyhow!("cannot be read: {}", output::cause(&cause)),
        error if error.is_log() => IsLog { diagnosed: if is_stdin { "--message -".to_owned() } else { in_shell(file) } }.into(),
        error => error.into(),
    })?;
    parkade_replay::find_left_out(&mut recording);
    Ok(recording)
}

/// The error for a file that parkade simulated under a policy that is not PyTorch's, in a command that replays PyTorch's allocator.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}, so this command, which replays PyTorch's allocator, would show a different run: parkade stats, report, replay and export \
     show the file under its policy; parkade replay --settings '' replays its requests on PyTorch's allocator",
    is_simulation(.0)
)]
pub struct IsSimulation(pub Simulated);

/// States that parkade simulated a file.
pub fn is_simulation(simulated: &Simulated) -> String {
    format!("the file is parkade's simulation of the policy {}, not a run of PyTorch's allocator", simulated.policy)
}

/// Reads a recording whose decisions are to be replayed.
///
/// # Errors
/// Those of [`read`], and [`IsSimulation`].
pub fn read_run(file: &Path) -> Result<Recording> {
    let recording = read(file)?;
    recording.other_policy().map_or(Ok(()), |simulated| Err(IsSimulation(simulated.clone())))?;
    Ok(recording)
}

/// Returns these devices, or only the requested one.
///
/// # Errors
/// The file has no data on the requested device.
pub fn chosen<'r>(
    devices: impl IntoIterator<Item = &'r DeviceRecording>,
    wanted: Option<u32>,
) -> Result<Vec<&'r DeviceRecording>> {
    let mut devices: Vec<_> = devices.into_iter().collect();
    let known = output::list(devices.iter().map(|device| device.device));
    devices.retain(|device| wanted.is_none_or(|number| number == device.device));
    match wanted.filter(|_| devices.is_empty() && !known.is_empty()) {
        Some(number) => bail!("the file contains nothing about device {number}, only about {known}"),
        None => Ok(devices),
    }
}

/// Returns the devices with data: entries about memory, or reserved memory at the end. PyTorch adds a snapshot entry to the trace of every
/// device, used or not. If no device has data, returns all of them.
pub fn telling(devices: &[DeviceRecording]) -> Vec<&DeviceRecording> {
    let is_about_memory = |entry: &Entry| entry.action != Action::Snapshot;
    let tells = |device: &&DeviceRecording| !device.segments.is_empty() || device.trace.iter().any(is_about_memory);
    let telling: Vec<&DeviceRecording> = devices.iter().filter(tells).collect();
    if telling.is_empty() { devices.iter().collect() } else { telling }
}

/// Returns whether the trace shows more than the state at its end. A single entry whose predecessors are missing does not.
pub fn has_history(device: &DeviceRecording) -> bool {
    device.trace.len() > 1 || (device.trace.len() == 1 && reserved_at_start(device) <= 0)
}

/// The note on a recording without a history.
pub const NO_HISTORY: &str = "nothing to verify: the history is not in the file";

/// Removes single entries that show no more than the state at the end. An out-of-memory error shows more.
pub fn remove_lone_entries(recording: &mut Recording) {
    let is_oom = |device: &DeviceRecording| device.trace.iter().any(|entry| entry.action == Action::Oom);
    let lone = recording.devices.iter_mut().filter(|device| !has_history(device) && !is_oom(device));
    lone.for_each(|device| device.trace.clear());
}

/// Does the same, and also removes traces that contain only out-of-memory errors: no settings can be tried on them.
pub fn remove_traces_without_requests(recording: &mut Recording) {
    remove_lone_entries(recording);
    for device in &mut recording.devices {
        if device.trace.iter().all(|entry| entry.action == Action::Oom) {
            device.trace.clear();
        }
    }
}

/// Returns notes on the file: inferred entries, a simulation, and earlier snapshots.
pub fn of_file(recording: &Recording) -> Vec<String> {
    let is_one_of_many = recording.devices.len() > 1;
    let inferred = recording.devices.iter().filter_map(|device| {
        let left_out = device.left_out.as_ref().filter(|left_out| left_out.inferred_entries.is_some())?;
        let number = if is_one_of_many { format!("device {}: ", device.device) } else { String::new() };
        Some(number + &left_out_words(left_out))
    });
    let simulated = recording.simulated.as_ref().map(is_simulation);
    let earlier = recording.tolerated.earlier_snapshots;
    let earlier = (earlier > 0).then(|| {
        format!(
            "the file contains {}, dumped one after another; this answer uses the last one",
            output::count(earlier + 1, "snapshot")
        )
    });
    inferred.chain(simulated).chain(earlier).collect()
}

/// Returns the devices with a trace.
pub fn traced(recording: &Recording) -> Vec<&DeviceRecording> {
    recording.devices.iter().filter(|device| !device.trace.is_empty()).collect()
}

/// Returns the number of entries in these traces.
pub fn entries(devices: &[&DeviceRecording]) -> u64 {
    devices.iter().map(|device| device.trace.len() as u64).sum()
}

/// Adds the device to an error if there are several devices.
///
/// # Errors
/// The error of `result`.
pub fn of_device<T, E: Into<anyhow::Error>>(result: Result<T, E>, device: u32, devices: usize) -> Result<T> {
    result.map_err(|error| {
        let error = error.into();
        if devices > 1 { error.context(format!("device {device}")) } else { error }
    })
}

/// Returns the path as a shell takes it, in one line.
pub fn in_shell(file: &Path) -> String {
    let file = file.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c);
    let file = if file.chars().all(is_plain) { file } else { format!("'{}'", file.replace('\'', "'\\''")) };
    output::one_line(&file)
}

/// Returns the name of the file without its folder.
pub fn short_name(file: &Path) -> String {
    output::one_line(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}

/// Returns the rules of the newest release. It knows the most settings, so that mistyped ones are found before a file is read.
pub fn newest_release() -> &'static Rules {
    RELEASES.last().map_or(&Rules::PYTORCH_2_11, |release| release.profile)
}

/// Returns the release that made a recording, and the recording's settings as that release parses them.
///
/// # Errors
/// The settings are invalid, or no release could have made the recording.
pub fn made_by(recording: &Recording, asked: &Asked<'_>) -> Result<Recognition> {
    let traced = traced(recording);
    let devices = if traced.is_empty() { recording.devices.iter().collect() } else { traced };
    recognise(recording, &devices, asked).map_err(|error| explain_unrecognised(error, &devices))
}

/// Adds the device to an error if there are several.
pub fn explain_unrecognised(error: RecognitionError, devices: &[&DeviceRecording]) -> anyhow::Error {
    let RecognitionError { device, error } = error;
    match device {
        Some(device) if devices.len() > 1 => anyhow::Error::from(error).context(format!("device {device}")),
        _ => error.into(),
    }
}

/// States the release, in a sentence without its full stop, and, if this is so, that the given limit was not the run's.
pub fn made_by_words(found: &Recognition) -> String {
    let mut words = found.words();
    if let Some(RefutedLimit { limit_bytes, reserved_bytes }) = found.refuted_limit {
        let (reserved, limit) = (size::show_bytes(reserved_bytes), size::show_bytes(limit_bytes));
        words +=
            &format!("; the recorded run reserved {reserved}, more than the given limit of {limit}, so that was not its limit");
    }
    words
}

view! {
    /// What was found out about the release.
    pub struct MadeBy(found: &Recognition) {
        /// The releases, oldest first, with full names such as `2.11.0`: those that explain the recording, or that its contents
        /// allow. If none explains it, those that differ least.
        releases: Vec<&'static str> = names(&found.releases),
        /// `given` (`--profile`), `contents` (there is no trace to replay, only what the file has), `replay` (every recorded
        /// decision was made again under their rules) or `nearest` (no release explains every decision).
        basis: Word<Basis> = Word::of(&found.basis),
        /// What in the file excludes other releases.
        judging_by: Option<String> = found.evidence_words(),
        /// What in the file excludes some of `releases`, although they explain every decision and no others do: the file was
        /// changed, or another program wrote it.
        contradicted_by: Option<String> = found.contradiction_words(),
        /// The other releases that were tried and do not explain the recording.
        differing: Vec<DifferingReleases> = all(&found.differing, DifferingReleases::of),
        /// The release whose rules were used, such as `2.11`, if `--profile` chose it.
        replayed_as: Option<&'static str> = found.decides_as.map(|rules| rules.name),
        /// The limit that was given, if it was not the recorded run's: decisions differ under it, and the run had reserved
        /// more. The releases are those that explain the recording without it.
        refuted_limit: Option<Refuted> = found.refuted_limit.map(Refuted::of),
        /// Whether no release explains the recording, and its trace maps memory although its settings have
        /// `expandable_segments` off: the settings changed, or another allocator decided, as a policy of parkade does.
        maps_while_off: bool = found.maps_while_off,
        /// The same in a sentence.
        words: String = made_by_words(found),
    }
}

sections! {
    "made_by": MadeBy;
}

view! {
    /// A limit that the recorded run exceeded.
    pub struct Refuted(refuted: RefutedLimit) {
        /// The limit.
        limit_bytes: u64 = refuted.limit_bytes,
        /// The most that the run had reserved on one device.
        reserved_bytes: u64 = refuted.reserved_bytes,
    }
}

view! {
    /// Releases that do not explain the recording.
    struct DifferingReleases(differing: &Differing) {
        /// The releases.
        releases: Vec<&'static str> = names(&differing.releases),
        /// The device whose replay differs.
        device: u32 = differing.device,
        /// The entry of the first difference; null if it is at the end.
        entry: Option<usize> = differing.entry,
    }
}

fn names(releases: &[&'static Release]) -> Vec<&'static str> {
    releases.iter().map(|release| release.name).collect()
}
