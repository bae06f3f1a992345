//! The arguments of `stats`.

use std::path::PathBuf;

use clap::Parser;

use crate::commands::simulated::{PackingSteps, UnderPolicy};
use crate::terminal::args::{Files, Print, Profile};
use crate::terminal::size;

/// Show memory_stats() at any entry, from a snapshot or a folder.
///
/// The recorded run is replayed under its own settings, so its statistics are known after every entry; with --settings the same requests
/// under others. Counting starts at the first entry, as if the counters had been reset there.
///
/// With --policy the run is simulated: the policy serves the requests of the recording, of a request trace or of a workload. The
/// answer then also says where the policy first needs more memory than the best packing found offline, and which live blocks are in
/// the way there.
#[derive(Parser, Clone)]
#[command(mut_arg("files", |files| files.required(false).required_unless_present("workload")))]
#[command(group(clap::ArgGroup::new("other_run").multiple(true)))]
#[command(after_help = "Examples:
  parkade stats snapshot.pickle
  parkade stats snapshot.pickle --entry 5000 --keys
  parkade stats snapshot.pickle --steps
  parkade stats snapshot.pickle --every 1000 --settings expandable_segments:True --csv
  parkade stats snapshots/
  parkade stats snapshot.pickle --policy bfc
  parkade stats -w gpt2 --policy pytorch --every 1000 --csv
  parkade stats snapshot.pickle --lifetimes
  parkade stats -w gpt2 --lifetimes

Exit code: 0 shown, 1 shown, but decisions differ from those of the recorded run, so the figures may be wrong (--limit sets \
the memory limit that the run had), 2 could not run. For several recordings, the worst code: 2, then 1.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) files: Files,
    /// The recording to show.
    #[arg(skip)]
    pub(super) file: PathBuf,
    /// Whether rows must name the recording, because there are several.
    #[arg(skip)]
    pub(super) is_one_of_several: bool,
    /// The state after this entry of the trace, counted from 0 [default: the last].
    #[arg(long, value_name = "NUMBER", group = "when")]
    pub(super) entry: Option<usize>,
    /// Show the state after each group of this many entries, and at the end.
    #[arg(long, value_name = "ENTRIES", group = "when", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) every: Option<u64>,
    /// The state after each step of the program: at the end of each annotation whose name begins with PREFIX. Without
    /// PREFIX, the profiler's or the optimizer's steps.
    #[arg(long, value_name = "PREFIX", group = "when", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "not given, given, given with a prefix")]
    pub(super) steps: Option<Option<String>>,
    /// Replay under these settings, as in PYTORCH_CUDA_ALLOC_CONF; '' means the default settings. Without this option, the run as recorded.
    #[arg(long, value_name = "SETTINGS", group = "other_run")]
    pub(super) settings: Option<String>,
    #[command(flatten)]
    pub(super) under: UnderPolicy,
    #[command(flatten)]
    pub(super) packing: PackingSteps,
    /// Show how long the program's buffers live: sizes, lifetimes, and whether they are requested before, in or after its steps.
    #[arg(long, conflicts_with_all = ["policy", "settings", "entry", "every", "steps", "keys"])]
    pub(super) lifetimes: bool,
    /// The device memory available to the allocator; with --settings or --policy.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "other_run")]
    pub(super) capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction): with --settings or --policy the one to run under, without them that of
    /// the recorded run.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub(super) limit: Option<u64>,
    /// With --settings or --policy: the memory limit of the recorded run, which the recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true, requires = "other_run")]
    pub(super) recorded_limit: Option<u64>,
    /// The PyTorch release whose allocator decides [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    pub(super) profile: Option<Profile>,
    /// Only this device [default: all].
    #[arg(long, value_name = "NUMBER")]
    pub(super) device: Option<u32>,
    /// Show all 122 keys of memory_stats() instead of the summary.
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(super) keys: bool,
    /// Print the rows as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,
    #[command(flatten)]
    pub(super) print: Print,
}

impl Args {
    /// Returns whether several states are requested.
    pub(super) fn is_series(&self) -> bool {
        self.every.is_some() || self.steps.is_some()
    }
}
