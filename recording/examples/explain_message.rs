//! Explains a PyTorch out-of-memory message: the figures, and whether fragmentation caused the error.
//!
//! `cargo run -p parkade-recording --example explain_message -- [FILE]`
//!
//! FILE is a log that contains the message; `-` reads standard input. Without FILE, it explains an example message.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use std::error::Error;
use std::fs::File;

use parkade_recording::message::{MessageError, MessageLog, Size};

/// A message from PyTorch 2.0, with a log's line breaks.
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
    let complete = log.messages.into_iter().map(|logged| logged.message).find(|message| message.is_complete);
    let message = complete.ok_or(MessageError::NotFound)?;
    let shown = |size: Option<Size>| size.map_or_else(|| "an unknown amount".to_owned(), |size| size.to_string());
    let device = message.device.map_or_else(|| "The device".to_owned(), |device| format!("GPU {device}"));
    println!("{device} has {}, of which {} was free.", shown(message.total), shown(message.free));
    if let Some(limit) = message.limit {
        println!("The process was limited to {limit}.");
    }
    let (reserved, allocated, unallocated) = (shown(message.reserved), shown(message.allocated), shown(message.unallocated));
    println!("PyTorch had reserved {reserved}: {allocated} allocated and {unallocated} unused.");
    let tried = shown(message.tried);
    for process in &message.processes {
        let name = process.pid.map_or("This process".to_owned(), |pid| format!("Process {pid}"));
        println!("{name} used {}.", process.used);
    }
    if message.is_fragmentation() {
        println!(
            "The request needed {tried}: less than the unused part, but no single piece of it was large enough and available."
        );
        println!("That is fragmentation; `parkade diagnose` explains its cause.");
    } else {
        println!("The request needed {tried}: more than the unused part in total, so this is not just fragmentation.");
    }
    Ok(())
}
