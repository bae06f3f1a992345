//! The reasons why a trace cannot be read.

use std::io;

use super::Malformed;

/// The reason why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not an event, or not one that may come next.
    #[error("line {line}: {problem}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The file has no request.
    #[error("has no request: a trace has a line such as {{\"op\": \"allocate\", \"id\": 1, \"bytes\": 1048576}} for each")]
    Empty,
    /// A profiler's trace contains no requests for a device's memory.
    #[error(
        "is a profiler's trace without requests for GPU memory: record it with profile_memory=True \
         (vLLM: \"torch_profiler_with_memory\": true in --profiler-config); profiles of JAX and TensorFlow have none, \
         so pass what XLA writes with --xla_dump_to instead (docs/trace.md)"
    )]
    NoMemoryEvents,
    /// The file is of a known form that does not show when buffers are requested and freed.
    #[error("{0} (docs/trace.md)")]
    NoLifetimes(&'static str),
    /// The workload that the trace makes breaks a rule.
    #[error("is not a program: {0}")]
    Malformed(#[from] Malformed),
}
