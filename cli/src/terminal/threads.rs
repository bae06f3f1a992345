//! The threads on which commands compute: no more than the machine runs at once, whatever the environment asks for.

use std::thread;

use anyhow::{Result, anyhow};
use rayon::ThreadPoolBuilder;

/// What rayon reads; the second is its older name.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];

/// Starts them. With more threads than processors every wait of one on another takes longer, up to a standstill.
///
/// # Errors
/// The system allows no more threads or memory.
pub fn start() -> Result<()> {
    let threads = number();
    let started = ThreadPoolBuilder::new().num_threads(threads).build_global();
    started.map_err(|error| anyhow!("cannot start {threads} threads ({error}): allow more, or set {}=1", VARIABLES[0]))
}

/// How many: as asked for, up to the number of processors.
pub fn number() -> usize {
    let most = thread::available_parallelism().map_or(1, usize::from);
    // As rayon: what is not a number is ignored, and so is 0.
    let asked = VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    asked.filter(|&asked| asked > 0).map_or(most, |asked| asked.min(most))
}
