//! The shipped recordings of real runs: reading them, cutting them, forging them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parkade_recording::{Action, DeviceRecording, Recording};
use parkade_replay::{DeviceVerdict, ReplaySettings, StatsFile, VerifyError, VerifyOptions, verify_device};

const GIB: u64 = 1 << 30;

/// A shipped recording, with what belongs to it.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// Its file's name without the endings.
    pub name: String,
    /// What the file says.
    pub recording: Recording,
    /// How to verify it: its own settings, its limit, its statistics.
    pub options: VerifyOptions,
}

/// The folder of recordings.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recordings")
}

/// The memory limit of a run, which its recording does not contain, but its name does.
#[must_use]
pub fn limit_of(name: &str) -> Option<u64> {
    if name == "cuda_graph.limit1" {
        // 1.15 GiB, which is no whole number of 2 MiB.
        return Some(GIB * 115 / 100);
    }
    if name.starts_with("mempool_oom") {
        // 400 MiB, which a fraction of the card's memory gives less one byte.
        return Some((400 << 20) - 1);
    }
    if name.contains("_gc.") {
        return Some(260 << 20);
    }
    let (_, after) = name.split_once("limit")?;
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    Some(after[..digits].parse::<u64>().ok()? * GIB)
}

/// The names of all shipped recordings, sorted.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn names() -> Vec<String> {
    names_in(&folder())
}

/// The names of all recordings of a folder, sorted.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn names_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("the folder of recordings");
    let names = files.map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter_map(|name| name.strip_suffix(".pickle.xz").map(str::to_owned)).collect();
    names.sort();
    names
}

/// Reads a shipped recording.
///
/// # Panics
/// If it cannot be read: it is part of this repository.
#[must_use]
pub fn read(name: &str) -> Shipped {
    read_from(&folder(), name)
}

/// Reads a recording of a folder.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn read_from(folder: &Path, name: &str) -> Shipped {
    let recording = parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording");
    let text = std::fs::read(folder.join(format!("{name}.stats.json"))).expect("the statistics");
    let entries: BTreeMap<String, i64> = serde_json::from_slice(&text).expect("a dictionary of numbers");
    let statistics = StatsFile::new(entries).expect("all keys");
    let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("settings");
    let options = VerifyOptions { settings, limit_bytes: limit_of(name), stats_file: Some(statistics) };
    Shipped { name: name.to_owned(), recording, options }
}

impl Shipped {
    /// The one device with a trace.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn device(&self) -> &DeviceRecording {
        self.recording.devices.iter().find(|device| !device.trace.is_empty()).expect("a device with a trace")
    }

    /// Verifies a device of it, or a changed copy of one, as the recording itself would be.
    ///
    /// # Errors
    /// As [`verify_device`].
    pub fn verify(&self, device: &DeviceRecording) -> Result<DeviceVerdict, VerifyError> {
        verify_device(device, &self.options, &mut |_| ())
    }

    /// The recording as it would be if the ring buffer had lost its first `lost` entries.
    #[must_use]
    pub fn without_beginning(&self, lost: usize) -> DeviceRecording {
        let device = self.device();
        DeviceRecording { device: device.device, segments: device.segments.clone(), trace: device.trace[lost..].to_vec() }
    }

    /// A copy whose trace was changed.
    #[must_use]
    pub fn forged(&self, forge: impl FnOnce(&mut Vec<parkade_recording::Entry>)) -> DeviceRecording {
        let mut device = self.device().clone();
        forge(&mut device.trace);
        device
    }

    /// Places right before and inside every run of entries that belong to one operation: a ladder, an `empty_cache`, events that
    /// complete.
    #[must_use]
    pub fn places_inside_operations(&self) -> Vec<usize> {
        let inner = |action| matches!(action, Action::SegmentAlloc | Action::SegmentFree | Action::FreeCompleted | Action::Oom);
        let trace = &self.device().trace;
        (1..trace.len()).filter(|&at| inner(trace[at - 1].action) && trace[at - 1].action != Action::FreeCompleted).collect()
    }
}

/// What a verdict says, in one line, for messages.
#[must_use]
pub fn describe(verdict: &Result<DeviceVerdict, VerifyError>) -> String {
    match verdict {
        Ok(verdict) => format!(
            "{} mismatches, first {:?}, {:?}, statistics {:?}",
            verdict.mismatches,
            verdict.first,
            verdict.not_in_file,
            verdict.stats_check.as_ref().map(|check| &check.differences)
        ),
        Err(error) => error.to_string(),
    }
}
