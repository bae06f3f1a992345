//! A reading as a table, with what its figures mean.

use std::fmt::Write as _;

use crate::terminal::size::show_bytes;

use super::source::{Device, Process, Reading};
use crate::terminal::output;
use crate::terminal::table::Table;

const HEADS: [&str; 8] = ["gpu", "name", "total", "free", "used", "driver's own", "listed", "unlisted"];
/// The column of text; the others are numbers.
const NAME: usize = 1;

const USED: &str = "used: what the driver has allocated, as nvidia-smi shows it. It includes each process's CUDA context (about 500 MiB), so \
                    it exceeds an allocator's reserved memory.";
const UNLISTED: &str =
    "unlisted: used memory that no listed process holds: the driver's own, and that of processes it does not list.";
const HIDDEN: &str =
    "memory is in use but no process is listed: in a container NVML may see none (docker run --pid=host shows them)";
const BY_CUDA: &str =
    "used: everything that is not free, including parkade's own CUDA context. Only NVML shows what each process holds.";

/// The table, in whole lines.
pub(super) fn text(reading: &Reading) -> String {
    let mut text = String::new();
    let driver = match &reading.driver {
        Ok(version) => format!("driver {version}"),
        Err(refusal) => format!("driver version unknown: {refusal}"),
    };
    line(&mut text, &driver);
    if let Some(reason) = &reading.no_nvml {
        line(&mut text, &format!("from the CUDA driver: {reason}"));
    }
    let rows: Vec<[String; 8]> = reading.devices.iter().map(row).collect();
    let shown: Vec<usize> = (0..HEADS.len()).filter(|&column| rows.iter().any(|row| !row[column].is_empty())).collect();
    let columns = |cells: &[String; HEADS.len()]| shown.iter().map(|&column| cells[column].clone()).collect::<Vec<_>>();
    let mut table = Table::plain(0, columns(&HEADS.map(String::from)));
    for row in &rows {
        table.row(columns(row));
    }
    let name = shown.iter().position(|&column| column == NAME).unwrap_or(usize::MAX);
    let table = table.text_with_left(&[name]);
    let mut lines = table.lines();
    line(&mut text, lines.next().unwrap_or_default());
    // On a terminal so narrow that rows wrap, the details follow the table.
    let is_broken = lines.clone().count() > rows.len();
    if is_broken {
        lines.by_ref().for_each(|row| line(&mut text, row));
    }
    for device in &reading.devices {
        let row = lines.next().map_or_else(|| format!("gpu {}", device.index), str::to_owned);
        line(&mut text, &row);
        for detail in details(device) {
            line(&mut text, &format!("     {detail}"));
        }
    }
    for note in if reading.no_nvml.is_some() { &[BY_CUDA][..] } else { &[USED, UNLISTED] } {
        line(&mut text, note);
    }
    text
}

/// Adds a line with control characters escaped and no trailing blanks.
fn line(text: &mut String, content: &str) {
    let _ = writeln!(text, "{}", output::one_line(content).trim_end());
}

/// The cells of a device; unknown ones are empty.
fn row(device: &Device) -> [String; 8] {
    let size = |bytes: Option<u64>| bytes.map_or_else(String::new, show_bytes);
    let memory = device.memory.as_ref().ok();
    [
        device.index.to_string(),
        output::one_line(device.name.as_deref().unwrap_or("")),
        size(memory.map(|memory| memory.total_bytes)),
        size(memory.map(|memory| memory.free_bytes)),
        size(memory.map(|memory| memory.used_bytes)),
        size(memory.and_then(|memory| memory.reserved_bytes)),
        size(device.listed_bytes()),
        size(device.unlisted_bytes()),
    ]
}

/// The lines below a device: refusals, then processes.
fn details(device: &Device) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(device.name.as_ref().err().map(|refusal| format!("name unknown: {refusal}")));
    lines.extend(device.memory.as_ref().err().map(|refusal| format!("memory unknown: {refusal}")));
    match &device.processes {
        Some(Ok(processes)) => lines.extend(processes.iter().map(process)),
        Some(Err(refusal)) => lines.push(format!("processes unknown: {refusal}")),
        None => {}
    }
    if device.hides_processes() {
        lines.push(String::from(HIDDEN));
    }
    lines
}

fn process(process: &Process) -> String {
    let bytes = process.listed.used_bytes.map_or_else(|| String::from("bytes unknown"), show_bytes);
    let kind = match (process.listed.compute, process.listed.graphics) {
        (true, true) => "compute and graphics",
        (false, true) => "graphics",
        _ => "compute",
    };
    format!("pid {:<8} {bytes:>12}  {kind}  {}", process.listed.pid, process.name.as_deref().unwrap_or("(name unknown)"))
}
