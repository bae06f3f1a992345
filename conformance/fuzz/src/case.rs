//! How a target runs one of several commands, and the commands' options: a limit, a capacity, settings, a release, a point in
//! time.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::{Action, DeviceRecording, Recording};
use parkade_replay::recognition::{Asked, recognise};
use parkade_replay::{ReplaySettings, VerifyOptions};
use rayon::ThreadPoolBuilder;

use crate::choices::Choices;

/// A command: how to make its input, and how to run it on the input with the options of a case. It returns whether it
/// accepted the input.
pub(crate) struct Command(pub(crate) fn(&mut Choices<'_>) -> Vec<u8>, pub(crate) fn(&[u8], u8) -> bool);

impl Command {
    /// Runs the command. Work for several threads is done by this thread alone: a fuzzer runs one input at a time, and other
    /// runs may use the other processors.
    pub(crate) fn run(&self, input: &[u8], case: u8) -> bool {
        thread_local! {
            static ALONE: () = {
                let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
                // From here on, the thread belongs to the pool.
                std::mem::forget(pool.expect("the thread belongs to no other pool"));
            };
        }
        ALONE.with(|()| self.1(input, case))
    }
}

/// Runs the command and the case that the first two bytes select. The other bytes are its input, or the choices that make
/// it.
pub(crate) fn run_chosen(commands: &[Command], data: &[u8]) -> bool {
    let [chosen, case, rest @ ..] = data else { return false };
    let command = &commands[usize::from(chosen % 128) % commands.len()];
    if *chosen < 128 { command.run(&command.0(&mut Choices::new(rest)), *case) } else { command.run(rest, *case) }
}

/// The number of cases.
const CASES: u8 = 64;

const SETTINGS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64,garbage_collection_threshold:0.7",
    "roundup_power2_divisions:4",
    "per_process_memory_fraction:0.4",
    "expandable_segments:True,max_split_size_mb:21",
    "garbage_collection_threshold:0.3",
    "max_non_split_rounding_mb:40",
];

/// The options of one execution.
pub(crate) struct Case(u8);

impl Case {
    pub(crate) fn new(number: u8) -> Case {
        Case(number % CASES)
    }

    /// Returns the settings to replay under.
    pub(crate) fn settings(&self) -> Settings {
        let text = SETTINGS[usize::from(self.0 % 8)];
        ReplaySettings::given_as(self.profile(), text).map(|given| given.settings).unwrap_or_default()
    }

    /// Returns the release to replay under.
    pub(crate) fn profile(&self) -> &'static Profile {
        if self.0 % 5 == 4 { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 }
    }

    /// Returns a number that differs between cases, for choosing options.
    pub(crate) fn number(&self) -> usize {
        usize::from(self.0)
    }

    /// Returns the settings and the limit of the recorded run; `None` if the settings in the file are invalid.
    pub(crate) fn own(&self, recording: &Recording) -> Option<VerifyOptions> {
        let devices: Vec<_> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
        let settings = recognise(recording, &devices, &Asked::default()).ok()?.settings;
        let limit_bytes = if self.0 % 4 == 1 { recording.devices.first().map(peak_bytes) } else { None };
        Some(VerifyOptions { settings, limit_bytes, stats_file: None })
    }

    /// Returns a limit to replay under: none, less than was reserved, or exactly what was reserved.
    pub(crate) fn limit_bytes(&self, device: &DeviceRecording) -> Option<u64> {
        match self.0 % 7 {
            0 | 1 => None,
            2 => Some(0),
            3 => Some(peak_bytes(device)),
            part => Some(peak_bytes(device) / 8 * (8 - u64::from(part))),
        }
    }

    /// Returns a capacity to replay under.
    pub(crate) fn capacity_bytes(&self, device: &DeviceRecording) -> Option<u64> {
        match self.0 % 3 {
            0 => None,
            1 => Some(peak_bytes(device) / 4 * 3),
            _ => Some(80 << 30),
        }
    }
}

/// Returns the peak of reserved bytes according to the trace only.
fn peak_bytes(device: &DeviceRecording) -> u64 {
    let (mut bytes, mut peak) = (0_u64, 0);
    for entry in &device.trace {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => bytes = bytes.saturating_add(entry.size),
            Action::SegmentFree | Action::SegmentUnmap => bytes = bytes.saturating_sub(entry.size),
            _ => {}
        }
        peak = bytes.max(peak);
    }
    peak
}
