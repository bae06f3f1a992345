//! The arguments of a sweep: workloads, policies, capacities and seeds, or how large a batch fits.

use std::ffi::OsString;

use anyhow::Result;
use clap::Parser;
use parkade_research::study::largest_batch::CONTEXT_BYTES;
use parkade_research::study::sweep::Share;

use super::rows::Shard;
use super::show::Shown;
use crate::terminal::outputs::Target;
use crate::terminal::size::{self};

/// Compare allocation policies on workloads: memory and driver time.
///
/// Runs each workload under each policy in each capacity and with plenty of memory, and searches for the smallest memory in
/// which it fits. LOAD is the most bytes live at once, each request rounded up to 512 bytes; no allocator needs less. The
/// search goes in steps of 1/256 of LOAD (at least one page of 2 MiB) and takes the smallest memory tried in which the program
/// fits; a program that fits may still fail with slightly more memory, and the output says how often that happened. The tables
/// first show each workload, then geometric means over the workloads, also without the workload that makes the largest part of
/// the excess. Workloads are chosen by hand, so there are no tests over them. With several seeds, policies are compared over
/// the seeds of each workload: bootstrap intervals (BCa, 95 %) and Wilcoxon's signed-rank test with Holm's correction. A
/// program that fits in no memory under a policy is left out of its means.
///
/// The tables also show a lower bound, LOAD with pools: a private pool counts at the most that has lived in it, until its
/// graphs are reset. Two more columns are results, not bounds: the need of an ideal allocator that remaps pages of 2 MiB at
/// will, and the best packing found offline, with every lifetime known in advance.
///
/// A row depends only on its job, so any number of threads or machines gives the same bytes.
///
/// With --largest-batch the sweep answers another question: how large a batch fits? For each training of a transformer, device
/// and policy, bisection finds the largest batch: it fits, and one more sample does not. Whether a batch fits need not be
/// monotone, so some larger batches are tried too, and the output says how often one fits although a smaller one does not. The
/// output also shows the largest batch whose live bytes fit at all, which no policy exceeds, and why the next one fails. Cards
/// have the total memory that a CUDA program sees: A100-40GB (42,298,834,944 bytes, 39.39 GiB, as reported), H100-80GB (81,082
/// MiB, 79.18 GiB, as reported), H200-141GB (150,109,880,320 bytes, 139.80 GiB, measured). The memory of the driver's context
/// is subtracted from each device first.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade sweep --list
  parkade sweep
  parkade sweep --workloads all,snapshot.pickle --policies pytorch,pytorch-expandable --capacities 1.02,1.1,80GiB
  parkade sweep --workloads snapshot.pickle --policies pytorch-expandable,pytorch-rescue,breaking-handles
  parkade sweep --seeds 5 -o rows.jsonl --html study.html --csv rows.csv
  parkade sweep --shard 1/3 -o part1.jsonl
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl
  parkade sweep --largest-batch
  parkade sweep --largest-batch --workloads transformer:preset=7b,checkpointing=layer,steps=3 --capacities H100-80GB,24GB

A file of rows (-o) is continued where it ends: after an interruption the same command does only what is missing. Each row names the \
build that made it, by its version and a hash of the sources that decide. Rows of a different build are not continued without --force; \
the result then says how many rows each build made.

Exit code: 0 done, 1 with --largest-batch if no batch fits anywhere, 2 could not run.")]
pub struct Args {
    /// Workloads: catalogue names, descriptions of generated workloads, recordings, or all. Separated by commas, or given several
    /// times. Recordings with the same name are distinguished by their folders. [default: all; with --largest-batch
    /// transformer:preset=7b,mixed=on,steps=3]
    #[arg(short, long, value_name = "LIST")]
    pub(super) workloads: Vec<OsString>,
    /// Policies, or all, which leaves out pytorch-rescue and breaking-handles. Some take parameters, which --list prints:
    /// 'best-fit-remap:fit=first;handle=20MiB', 'pytorch:release=2.15;settings=[expandable_segments:True]',
    /// pytorch-rescue:reach=free.
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
    pub(super) prealloc: Option<Share>,
    /// Steps spent on the packings shown beside the policies, for each program; 0 omits the ideal remapper and the offline packer.
    #[arg(long, value_name = "STEPS", default_value_t = 100_000_000)]
    pub(super) bounds: u64,
    /// Where the device places segments: driver (as measured with NVIDIA's), ascending, descending, lowest-hole.
    #[arg(long, value_name = "MODEL", default_value = "driver")]
    pub(super) addresses: String,
    /// Run only this part of the jobs: 2/3 is the second of three parts.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub(super) shard: Shard,
    /// Write the rows here, one line of JSON each, or continue the file; `-` is standard output. Any other existing file stays as
    /// it is, even with --force.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<Target>,
    /// Overwrite existing files of --csv and --html, but never an input. Also continue the file of --output even if another build of
    /// parkade made some of its rows.
    #[arg(long)]
    pub(super) force: bool,
    /// The number of jobs to run at once, at most the number of processors [default: that number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    pub(super) asked: Asked,
    #[command(flatten)]
    pub(super) shown: Shown,
    /// List the workloads, generators, policies and address models; with --json as one object.
    #[arg(long)]
    pub(super) list: bool,
}

/// A pool with no more threads than jobs and processors.
pub(super) fn threads(args: &Args, jobs: usize) -> Result<rayon::ThreadPool> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = args.threads.map_or_else(rayon::current_num_threads, usize::from);
    Ok(rayon::ThreadPoolBuilder::new().num_threads(wanted.min(most).min(jobs).max(1)).build()?)
}

/// The options of the other search, for the largest batch.
#[derive(Parser)]
pub(super) struct Asked {
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
