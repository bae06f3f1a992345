//! parkade for a page in a browser: the arguments of a command and its files in, the answer out. The command is the one that the program
//! `parkade` runs; this crate only passes bytes between it and JavaScript (`web/page/parkade.js`).
#![cfg(target_family = "wasm")]

mod host;

use std::cell::RefCell;
use std::ffi::OsString;
use std::panic::PanicHookInfo;
use std::sync::Arc;

use parkade_cli::terminal::progress::Watch;
use parkade_cli::terminal::surroundings::{Medium, Surroundings};

use crate::host::HostFile;

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static FILES: RefCell<Vec<(String, HostFile)>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<[Vec<u8>; 2]> = const { RefCell::new([const { Vec::new() }; 2]) };
}

/// Returns where to write a text of this many bytes, for the next call of [`file`] or [`run`].
// SAFETY: no other function in the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn text(length: usize) -> *mut u8 {
    TEXT.with_borrow_mut(|text| {
        *text = vec![0; length];
        text.as_mut_ptr()
    })
}

fn take_text() -> String {
    String::from_utf8_lossy(&TEXT.take()).into_owned()
}

/// Adds a file, whose path is the text and which has this many bytes. The host reads it by its number, which counts from 0.
// SAFETY: no other function in the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn file(length: f64) {
    let path = take_text();
    FILES.with_borrow_mut(|files| {
        let number = files.len() as u32;
        files.push((path, HostFile { number, length: length as u64 }));
    });
}

/// Runs the command whose arguments are the lines of the text, and returns its exit code. Human-readable answers are HTML or plain text.
// SAFETY: no other function in the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn run(is_html: bool) -> i32 {
    std::panic::set_hook(Box::new(report_panic));
    let arguments: Vec<OsString> = take_text().split('\n').map(OsString::from).collect();
    let watch = Arc::new(Watch::with_listener(host::report_progress));
    let medium = if is_html { Medium::Html } else { Medium::Text };
    let surroundings = Surroundings::new(host::now, watch, medium);
    let surroundings = FILES.with_borrow(|files| {
        files.iter().fold(surroundings, |surroundings, (path, file)| surroundings.with_file(path, file.clone()))
    });
    let (outcome, written) = parkade_cli::run_within(surroundings, &arguments);
    ANSWER.set([written.output, written.error]);
    outcome as i32
}

/// Reports a bug, except when memory ran out: a vector that would be larger than half of the address space panics.
fn report_panic(panic: &PanicHookInfo<'_>) {
    if panic.payload_as_str() != Some("capacity overflow") {
        host::report_bug(&panic.to_string());
    }
}

/// Returns where a part of the answer is: 0 standard output, 1 standard error.
// SAFETY: no other function in the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn part(number: usize) -> *const u8 {
    ANSWER.with_borrow(|parts| parts[number].as_ptr())
}

/// Returns the length of that part, in bytes.
// SAFETY: no other function in the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn part_length(number: usize) -> usize {
    ANSWER.with_borrow(|parts| parts[number].len())
}
