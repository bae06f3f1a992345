//! Explains a PyTorch out-of-memory message: the figures, and whether fragmentation caused the error.
//!
//! `cargo run -p parkade-recording --example explain_message -- [FILE]`
//!
//! FILE is a log that contains the message; `-` reads standard input. Without FILE an example message is explained.
#![allow(clippy::print_stdout, reason = "it is a program for people")]

use std::error::Error;
use std::fs::File;

use parkade_recording::message::{MessageLog, ReadMessage};

/// A message of PyTorch 2.0, with the line breaks of a log.
const EXAMPLE: &str = "\
OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59
GiB total capacity; 28.60 GiB already allocated; 3.92 GiB free; 33.95 GiB
reserved in total by PyTorch)";

fn main() -> Result<(), Box<dyn Error>> {
    let log = match std::env::args().nth(1) {
        None => {
            println!("{EXAMPLE}\n");
            MessageLog::read(EXAMPLE)
        }
        Some(path) if path == "-" => MessageLog::read_from(std::io::stdin().lock())?,
        Some(path) => MessageLog::read_from(File::open(path)?)?,
    };
    let complete = log.messages.into_iter().find_map(|logged| match logged.message {
        ReadMessage::Complete(message) => Some(message),
        ReadMessage::Partial(_) => None,
    });
    let message = complete.ok_or(log.error)?;
    println!("GPU {} has {}, of which {} was free.", message.device, message.total, message.free);
    if let Some(limit) = message.limit {
        println!("The process was limited to {limit}.");
    }
    println!("PyTorch had reserved {}: {} allocated and {} unused.", message.reserved, message.allocated, message.unallocated);
    for process in &message.processes {
        let name = process.pid.map_or("This process".to_owned(), |pid| format!("Process {pid}"));
        println!("{name} used {}.", process.used);
    }
    if message.is_fragmentation() {
        println!("The request needed {}: less than the unused part, but no single piece of it was large enough.", message.tried);
        println!("That is fragmentation; `parkade diagnose` says what causes it.");
    } else {
        println!("The request needed {}: more than the unused part in total, so this is not just fragmentation.", message.tried);
    }
    Ok(())
}
