//! The binary `parkade`; the commands are the library's.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGABRT;
use signal_hook::flag::register_conditional_shutdown;

/// It keeps pages that it got in large pieces. With the system's allocator, page faults took half the time of loading a large recording.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Where memory for an allocation cannot be had, the runtime says so and aborts. That is a command that could not run, as others are.
const COULD_NOT_RUN: i32 = 2;

fn main() -> ExitCode {
    // If it cannot be registered, an abort ends the process by its signal, as everywhere.
    let _registered = register_conditional_shutdown(SIGABRT, COULD_NOT_RUN, Arc::new(AtomicBool::new(true)));
    parkade_cli::main()
}
