//! The arguments of an export.

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::commands::simulated::UnderPolicy;
use crate::terminal::args::{self, Force, Json};
use crate::terminal::outputs::Target;

/// Write the replay of a snapshot as a snapshot or a Perfetto trace.
///
/// The file opens wherever PyTorch's own files do: https://pytorch.org/memory_viz, torch/cuda/_memory_viz.py, parkade verify.
/// The requests are the recording's, with their stacks, times and annotations; every decision is made again, as in parkade
/// replay. If its oldest entries are missing, the blocks in use before its first entry are requested first.
///
/// Without --settings the trace equals the recording's, entry by entry, if the recording has its oldest entries and its settings,
/// verifies, and had no memory limit or is given the same one by --limit. Under other conditions, requests that failed or were
/// retried for lack of memory may succeed, which the command reports. Addresses of expandable segments may differ.
///
/// With --format perfetto the result is a trace for https://ui.perfetto.dev and chrome://tracing: counters of allocated, active
/// and reserved bytes, blocks named after what they hold, out-of-memory errors, driver calls, annotations. Without --settings,
/// --limit, --capacity and --stop-at-oom it is the recorded run itself.
///
/// With --format requests the result is the program's requests and frees, which any simulator can read and which parkade sweep
/// -w trace.jsonl runs under any policy; docs/trace.md describes the lines.
///
/// With --policy the result is a simulation: the policy serves the requests of the recording, of a request trace or of a workload.
/// The file states the policy, and PyTorch's viewers show its heap.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade export snapshot.pickle --settings expandable_segments:True -o expandable.pickle
  parkade export snapshot.pickle --settings '' --limit 12GiB --stop-at-oom -o oom.pickle
  parkade verify oom.pickle --limit 12GiB
  parkade export snapshot.pickle --format perfetto -o trace.json
  parkade export snapshot.pickle --format requests -o trace.jsonl
  parkade export snapshot.pickle --policy bfc -o bfc.pickle
  parkade export -w gpt2 --policy compaction -o compaction.pickle
  parkade export snapshot.pickle --format perfetto --blocks 1000 --settings expandable_segments:True -o trace.json

Exit code: 0 the file is written (even if the run ran out of memory), 2 could not run.")]
pub(crate) struct Args {
    /// The recording.
    #[arg(required_unless_present = "workload")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) under: UnderPolicy,
    #[command(flatten)]
    pub(super) replay: args::Replay,
    /// The file to write, uncompressed; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Target,
    /// What to write: a snapshot, a trace for Perfetto, or the requests alone.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
    /// With --format perfetto: the number of blocks of each device to show as slices, the largest first. The counters include all
    /// blocks.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(super) blocks: usize,
    /// Only this device [default: all].
    #[arg(long, value_name = "NUMBER")]
    pub(super) device: Option<u32>,
    /// Stop at the first out-of-memory error, as a program that does not catch it would. Without this option the replay continues with
    /// the other requests.
    #[arg(long)]
    pub(super) stop_at_oom: bool,
    #[command(flatten)]
    pub(super) force: Force,
    #[command(flatten)]
    pub(super) json: Json,
}

/// A format to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// A snapshot file, as PyTorch writes.
    #[default]
    Snapshot,
    /// A trace file in Chrome's JSON format.
    Perfetto,
    /// The requests alone, one JSON object per line, for any simulator of allocators (docs/trace.md).
    Requests,
}

impl Args {
    /// The recording; empty if the program is a workload.
    pub(super) fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }

    /// The recording or the workload, as it was given.
    pub(super) fn program_name(&self) -> String {
        self.file.as_ref().map_or_else(|| self.under.workload_name(), |file| file.display().to_string())
    }

    /// Whether the run must be replayed under other settings or in other memory.
    pub(super) const fn replays(&self) -> bool {
        let args = &self.replay;
        args.settings.is_some() || args.limit.is_some() || args.capacity.is_some() || self.stop_at_oom
    }
}
