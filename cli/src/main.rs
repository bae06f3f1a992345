//! The binary `parkade`; the commands are in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// It keeps the pages that it has obtained, in large pieces. With the system's allocator, page faults took half the time of
/// loading a large recording.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    parkade_cli::main()
}
