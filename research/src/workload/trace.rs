//! Traces of any allocator, as text: one event per line, as a JSON object or as a row of a CSV file. They make a workload, and
//! a workload can be written as one (docs/trace.md).
//!
//! Four other formats are recognized by their beginning: the log of RMM's logging resource, MiniMalloc's buffers, the JSON of
//! PyTorch's profiler, and XLA's buffer assignment.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Deserializer, Serialize};

pub use super::trace_error::TraceError;
use super::{Event, Workload, profile, xla};

/// A line that is longer than this is not read.
const LONGEST_LINE_BYTES: u64 = 64 << 10;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Allocate,
    Free,
    Use,
    Launch,
    Synchronize,
    EmptyCache,
    BeginPool,
    EndPool,
    DropPool,
    Step,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A line. Fields that it does not name are ignored, so a trace may also contain times and names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Line {
    op: Op,
    /// The buffer, by a number or a text that no other live buffer has.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "id")]
    id: Option<String>,
    /// The size of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The stream, by its handle or number; 0 is the default stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<u64>,
    /// The duration of the work, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    us: Option<u32>,
    /// The private pool, by any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<u64>,
}

/// A buffer's name: a number or a text.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id {
        Number(u64),
        Text(String),
    }
    Ok(Option::<Id>::deserialize(deserializer)?.map(|id| match id {
        Id::Number(number) => number.to_string(),
        Id::Text(text) => text,
    }))
}

/// Whether a file that begins with these bytes is a trace of another program that is recognized without the ending of its name:
/// of PyTorch's profiler or of XLA.
#[must_use]
pub fn is_recognized(head: &[u8]) -> bool {
    profile::is_profile(head) || xla::is_dump(head)
}

/// Returns what a file that begins with these bytes is, and what to do instead, if it is of a form that does not show the
/// lifetimes of buffers.
#[must_use]
pub fn without_lifetimes(head: &[u8]) -> Option<&'static str> {
    let has = |words: &str| head.windows(words.len()).any(|window| window == words.as_bytes());
    WITHOUT_LIFETIMES.iter().find(|(all, _)| all.iter().any(|words| has(words))).map(|&(_, says)| says)
}

/// Words by which such forms are recognized, and what they are.
const WITHOUT_LIFETIMES: [(&[&str], &str); 6] = [
    (
        &["BlockStored", "BlockRemoved", "AllBlocksCleared"],
        "contains vLLM's KV cache events, which have no sizes in bytes: record vLLM with its profiler or \
         as a PyTorch snapshot",
    ),
    (
        &["GPU KV cache size", "Available KV cache memory"],
        "is vLLM's log, which has totals but no buffers: record vLLM with its profiler or as a PyTorch snapshot",
    ),
    (
        &["used_by_n_values", "Allocations sorted by size:", "Used values:"],
        "is XLA's memory usage report or its list of values, which show no lifetimes: pass *-buffer-assignment.txt of the same \
         program",
    ),
    (
        &["Sum Total of in-use chunks"],
        "is the log of XLA's or TensorFlow's BFC allocator, which has the chunks in use at one time but no lifetimes: pass what \
         XLA writes with --xla_dump_to",
    ),
    (
        // Strings of a pprof profile, with their lengths.
        &["\u{b}allocations2\u{5}count2\u{5}space"],
        "is JAX's device memory profile, which has the buffers in use at one time but no lifetimes: pass what XLA writes with \
         --xla_dump_to",
    ),
    (
        &["/host:CPU", "/host:metadata"],
        "is a profile of JAX or TensorFlow, which parkade does not read: pass what XLA writes with --xla_dump_to",
    ),
];

/// Reads a trace in any of the formats. The workload gets this name; characters that names cannot have become `_`. A profile of
/// several devices makes a workload of each, whose name ends in the device's number.
///
/// XLA's two files are read one after the other.
///
/// # Errors
/// See [`TraceError`].
pub fn read(name: &str, mut from: impl BufRead) -> Result<Vec<Workload>, TraceError> {
    let head = from.fill_buf()?.to_owned();
    if profile::is_profile(&head) {
        let devices = profile::read(from)?;
        let is_one = devices.len() == 1;
        let named = |device| if is_one { name.to_owned() } else { format!("{name}.device{device}") };
        return devices.into_iter().map(|(device, requests)| of_requests(&named(device), requests)).collect();
    }
    let mut reader = Reader::default();
    let outcome = if xla::is_dump(&head) {
        xla::read(from).and_then(|found| lifetimes(&mut reader, found.iter().map(|one| (one.start, one.end, one.bytes))))
    } else if head.trim_ascii_start().starts_with(b"{") {
        json_lines(&mut reader, from)
    } else {
        rows(&mut reader, from)
    };
    outcome.map_err(|error| without_lifetimes(&head).map_or(error, TraceError::NoLifetimes))?;
    Ok(vec![finished(name, reader.workload)?])
}

/// Names and checks a workload.
fn finished(name: &str, mut workload: Workload) -> Result<Workload, TraceError> {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '_' };
    if workload.buffers() == 0 {
        return Err(TraceError::Empty);
    }
    workload.name = name.chars().map(allowed).collect();
    workload.says = format!("The requests of the trace {name}");
    // A step without an event is not one.
    let events = workload.events.len() as u32;
    workload.steps.dedup();
    workload.steps.retain(|&step| step < events);
    workload.check()?;
    Ok(workload)
}

fn json_lines(reader: &mut Reader, mut from: impl BufRead) -> Result<(), TraceError> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let problem = |problem: String| TraceError::Line { line, problem };
        let read = io::Read::take(&mut from, LONGEST_LINE_BYTES).read_until(b'\n', &mut text)?;
        if read == 0 {
            break;
        }
        if read as u64 == LONGEST_LINE_BYTES {
            return Err(problem(format!("is longer than {LONGEST_LINE_BYTES} bytes")));
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let event: Line = serde_json::from_slice(&text).map_err(|error| problem(error.to_string()))?;
        reader.add(&event).map_err(problem)?;
    }
    Ok(())
}

/// Reads a CSV file, whose first line names the columns.
fn rows(reader: &mut Reader, from: impl BufRead) -> Result<(), TraceError> {
    let mut file = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(from);
    let problem = |line: usize, problem: &dyn fmt::Display| TraceError::Line { line, problem: problem.to_string() };
    let header = file.headers().map_err(|error| problem(1, &error))?.clone();
    let has = |names: &[&str]| names.iter().all(|name| header.iter().any(|column| column == *name));
    if has(&["lower", "upper", "size"]) {
        return buffers(reader, &mut file);
    }
    let is_rmm = has(&["Action", "Pointer", "Size"]);
    if !is_rmm && !has(&["op"]) {
        let columns = "op (docs/trace.md), Action, Pointer and Size (RMM), or lower, upper and size (MiniMalloc)";
        return Err(problem(1, &format!("names none of these columns: {columns}")));
    }
    for (place, row) in file.records().enumerate() {
        let line = row.as_ref().ok().and_then(|row| row.position()).map_or(place + 2, |at| at.line() as usize);
        let mut row = row.map_err(|error| problem(line, &error))?;
        // The last cells of a row may be left out.
        (row.len()..header.len()).for_each(|_| row.push_field(""));
        let event = if is_rmm {
            of_rmm(&row.deserialize(Some(&header)).map_err(|error| problem(line, &error))?)
        } else {
            row.deserialize::<Line>(Some(&header)).map(Some).map_err(|error| error.to_string())
        };
        if let Some(event) = event.map_err(|error| problem(line, &error))? {
            reader.add(&event).map_err(|error| problem(line, &error))?;
        }
    }
    Ok(())
}

/// A row of RMM's log.
#[derive(Deserialize)]
struct RmmRow {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Pointer")]
    pointer: String,
    #[serde(rename = "Size")]
    bytes: u64,
    #[serde(rename = "Stream", default)]
    stream: Option<String>,
}

/// Returns the event of a row of RMM's log; `None` for a request that failed.
fn of_rmm(row: &RmmRow) -> Result<Option<Line>, String> {
    let op = match row.action.as_str() {
        "allocate" => Op::Allocate,
        "free" | "deallocate" => Op::Free,
        "allocate failure" => return Ok(None),
        other => return Err(format!("{other:?} is not one of RMM's actions: allocate, free, allocate failure")),
    };
    let text = row.stream.as_deref().unwrap_or("0").trim();
    let stream = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let stream = stream.map_err(|_| format!("{text:?} is not a stream"))?;
    // A free may name a stream on which the buffer was used last; the buffer still belongs to its own.
    let stream = Some(stream).filter(|_| op == Op::Allocate);
    Ok(Some(Line { op, id: Some(row.pointer.clone()), bytes: Some(row.bytes), stream, us: None, pool: None }))
}

/// A row of MiniMalloc: a buffer with the half-open time in which it is in use.
#[derive(Deserialize)]
struct BufferRow {
    lower: u64,
    upper: u64,
    size: u64,
}

/// Reads MiniMalloc's buffers.
fn buffers<R: io::Read>(reader: &mut Reader, file: &mut csv::Reader<R>) -> Result<(), TraceError> {
    let mut found = Vec::new();
    for (place, row) in file.deserialize::<BufferRow>().enumerate() {
        let problem = |problem: String| TraceError::Line { line: place + 2, problem };
        let row = row.map_err(|error| problem(error.to_string()))?;
        if row.lower >= row.upper {
            return Err(problem(format!("ends at {}, but begins at {}", row.upper, row.lower)));
        }
        found.push((row.lower, row.upper, row.size));
    }
    lifetimes(reader, found.into_iter())
}

/// Adds buffers by their beginnings, ends and sizes. At equal times, buffers are freed before others are requested.
fn lifetimes(reader: &mut Reader, buffers: impl Iterator<Item = (u64, u64, u64)>) -> Result<(), TraceError> {
    let mut events = Vec::new();
    for (place, (lower, upper, bytes)) in buffers.enumerate() {
        events.extend([(upper, Op::Free, place, bytes), (lower, Op::Allocate, place, bytes)]);
    }
    events.sort_by_key(|&(time, op, place, _)| (time, op == Op::Allocate, place));
    for (_, op, place, bytes) in events {
        let event = Line { op, id: Some(place.to_string()), bytes: Some(bytes), stream: None, us: None, pool: None };
        reader.add(&event).map_err(|problem| TraceError::Line { line: place + 2, problem })?;
    }
    Ok(())
}

/// The program of a profiled device.
fn of_requests(name: &str, requests: Vec<profile::Request>) -> Result<Workload, TraceError> {
    let mut reader = Reader::default();
    for (place, request) in requests.into_iter().enumerate() {
        let (op, number, bytes) = match request {
            profile::Request::Allocate { number, bytes } => (Op::Allocate, number, Some(bytes)),
            profile::Request::Free { number } => (Op::Free, number, None),
        };
        let event = Line { op, id: Some(number.to_string()), bytes, stream: None, us: None, pool: None };
        // A profile's requests are made so that they can follow each other; only their number may be too large.
        reader.add(&event).map_err(|problem| TraceError::Line { line: place + 1, problem })?;
    }
    finished(name, reader.workload)
}

/// The workload so far, and the numbers of what is in use.
#[derive(Default)]
struct Reader {
    workload: Workload,
    /// The live buffers.
    live: BTreeMap<String, u32>,
    buffers: u32,
    streams: BTreeMap<u64, u16>,
    pools: BTreeMap<u64, u16>,
    last_pool: u16,
}

impl Reader {
    fn add(&mut self, line: &Line) -> Result<(), String> {
        let op = line.op;
        let lacks = |field: &str| format!("{op:?} needs the field `{field}`").to_lowercase();
        let event = match op {
            Op::Allocate => {
                let (id, bytes) = (line.id.as_ref().ok_or_else(|| lacks("id"))?, line.bytes.ok_or_else(|| lacks("bytes"))?);
                let stream = self.stream(line.stream.unwrap_or(0))?;
                if bytes == 0 {
                    return Err(format!("buffer {id:?} has 0 bytes: leave the request out"));
                }
                let buffer = self.buffers;
                if self.live.insert(id.clone(), buffer).is_some() {
                    return Err(format!("buffer {id:?} is requested again before it is freed"));
                }
                self.buffers = buffer.checked_add(1).ok_or("more than 4 billion requests")?;
                Event::Allocate { buffer, bytes, stream }
            }
            Op::Free | Op::Use => {
                let id = line.id.as_ref().ok_or_else(|| lacks("id"))?;
                let unknown = || format!("buffer {id:?} is not in use");
                if op == Op::Free {
                    Event::Free { buffer: self.live.remove(id).ok_or_else(unknown)? }
                } else {
                    let buffer = *self.live.get(id).ok_or_else(unknown)?;
                    Event::Use { buffer, stream: self.stream(line.stream.ok_or_else(|| lacks("stream"))?)? }
                }
            }
            Op::Launch => {
                let us = line.us.filter(|&us| us > 0).ok_or_else(|| lacks("us"))?;
                Event::Launch { stream: self.stream(line.stream.unwrap_or(0))?, us }
            }
            Op::Synchronize => Event::Synchronize { stream: self.stream(line.stream.unwrap_or(0))? },
            Op::EmptyCache => Event::EmptyCache,
            Op::BeginPool => Event::BeginPool { pool: self.pool(line.pool.ok_or_else(|| lacks("pool"))?)? },
            Op::EndPool => Event::EndPool { pool: self.pool(line.pool.ok_or_else(|| lacks("pool"))?)? },
            Op::DropPool => {
                let id = line.pool.ok_or_else(|| lacks("pool"))?;
                // A later pool with the same number is a new one.
                Event::DropPool { pool: self.pools.remove(&id).ok_or_else(|| format!("pool {id} is not in use"))? }
            }
            Op::Step => {
                self.workload.steps.push(self.workload.events.len() as u32);
                return Ok(());
            }
        };
        self.workload.events.push(event);
        Ok(())
    }

    fn stream(&mut self, handle: u64) -> Result<u16, String> {
        if handle == 0 {
            return Ok(0);
        }
        let next = u16::try_from(self.streams.len() + 1).map_err(|_| "more than 65,535 streams".to_owned())?;
        Ok(*self.streams.entry(handle).or_insert(next))
    }

    fn pool(&mut self, id: u64) -> Result<u16, String> {
        if let Some(&known) = self.pools.get(&id) {
            return Ok(known);
        }
        self.last_pool = self.last_pool.checked_add(1).ok_or("more than 65,535 pools")?;
        self.pools.insert(id, self.last_pool);
        Ok(self.last_pool)
    }
}

/// Writes a workload as JSON lines.
///
/// # Errors
/// Any error of `to`.
pub fn write(workload: &Workload, to: &mut dyn Write) -> io::Result<()> {
    let mut steps = workload.steps.iter().peekable();
    let none = Line { op: Op::Step, id: None, bytes: None, stream: None, us: None, pool: None };
    let mut line = |line: &Line| {
        serde_json::to_writer(&mut *to, line)?;
        to.write_all(b"\n")
    };
    for (at, &event) in workload.events.iter().enumerate() {
        if steps.next_if(|&&step| step as usize == at).is_some() {
            line(&none)?;
        }
        let id = |buffer: u32| Some(buffer.to_string());
        let on = |stream: u16| Some(u64::from(stream)).filter(|&stream| stream > 0);
        let with_pool = |op, pool: u16| Line { op, pool: Some(pool.into()), ..none.clone() };
        line(&match event {
            Event::Allocate { buffer, bytes, stream } => {
                Line { op: Op::Allocate, id: id(buffer), bytes: Some(bytes), stream: on(stream), ..none.clone() }
            }
            Event::Free { buffer } => Line { op: Op::Free, id: id(buffer), ..none.clone() },
            Event::Use { buffer, stream } => Line { op: Op::Use, id: id(buffer), stream: Some(stream.into()), ..none.clone() },
            Event::Launch { stream, us } => Line { op: Op::Launch, stream: on(stream), us: Some(us), ..none.clone() },
            Event::Synchronize { stream } => Line { op: Op::Synchronize, stream: on(stream), ..none.clone() },
            Event::EmptyCache => Line { op: Op::EmptyCache, ..none.clone() },
            Event::BeginPool { pool } => with_pool(Op::BeginPool, pool),
            Event::EndPool { pool } => with_pool(Op::EndPool, pool),
            Event::DropPool { pool } => with_pool(Op::DropPool, pool),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::CATALOGUE;

    fn of(text: &str) -> Result<Workload, String> {
        let read = read("a trace", text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(<[Workload; 1]>::try_from(read).expect("one device")[0].clone())
    }

    const ALLOCATE: Event = Event::Allocate { buffer: 0, bytes: 700, stream: 0 };

    #[test]
    fn a_workload_is_what_its_trace_says() {
        for known in CATALOGUE {
            let workload = known.make(1);
            if workload.events.len() > 20_000 {
                continue;
            }
            let mut text = Vec::new();
            write(&workload, &mut text).expect("memory");
            let again = read(&workload.name, &text[..]).expect("a trace").remove(0);
            // Streams and pools are numbered in the order of their first use.
            assert_eq!(again.events.len(), workload.events.len(), "{}", known.name);
            assert_eq!((&again.steps, again.load_bytes(512)), (&workload.steps, workload.load_bytes(512)), "{}", known.name);
            let mut twice = Vec::new();
            write(&again, &mut twice).expect("memory");
            assert_eq!(read(&workload.name, &twice[..]).expect("a trace")[0].events, again.events, "{}", known.name);
        }
    }

    #[test]
    fn json_and_csv_are_the_same_trace() {
        let json = "{\"op\":\"step\"}\n{\"op\":\"allocate\",\"id\":\"x\",\"bytes\":700,\"ns\":5}\n\n{\"op\": \"use\", \"id\": \"x\", \
                    \"stream\": 4096}\n{\"op\":\"free\",\"id\":\"x\"}\n{\"op\":\"step\"}\n{\"op\":\"empty_cache\"}\n";
        let csv = "op,id,bytes,stream,ns\nstep,,,,\nallocate,x,700,,5\nuse,x,,4096,\nfree,x\nstep\nempty_cache,,,,9\n";
        let workload = of(json).expect("a trace");
        assert_eq!(
            workload.events,
            [ALLOCATE, Event::Use { buffer: 0, stream: 1 }, Event::Free { buffer: 0 }, Event::EmptyCache]
        );
        assert_eq!((workload.steps.as_slice(), workload.name.as_str()), (&[0, 3][..], "a_trace"));
        assert_eq!(of(csv), Ok(workload));
    }

    #[test]
    fn rmms_log_and_minimallocs_buffers_are_traces() {
        let rmm = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00,allocate,0x7f00,700,0\n1,10:01,allocate failure,0x0,9,0x3000\n\
                   1,10:02,allocate,0x7f10,800,0x3000\n1,10:03,free,0x7f00,700,0x3000\n1,10:04,allocate,0x7f00,1,0\n";
        let second = Event::Allocate { buffer: 1, bytes: 800, stream: 1 };
        let third = Event::Allocate { buffer: 2, bytes: 1, stream: 0 };
        assert_eq!(of(rmm).expect("a log").events, [ALLOCATE, second, Event::Free { buffer: 0 }, third]);
        let buffers = "id,lower,upper,size\nb,3,9,800\na,0,3,700\n";
        let freed = Event::Free { buffer: 0 };
        let second = Event::Allocate { buffer: 1, bytes: 800, stream: 0 };
        assert_eq!(of(buffers).expect("buffers").events, [ALLOCATE, freed, second, Event::Free { buffer: 1 }]);
    }

    /// A memory event of PyTorch's profiler.
    fn profiled(us: u32, address: u32, bytes: i32, device: u32) -> String {
        format!(
            r#"{{"ph":"i","name":"[memory]","ts":{us}.5,"args":{{"Bytes":{bytes},"Addr":{address},"Device Id":{device},"Device Type":1}}}}"#
        )
    }

    #[test]
    fn profiles_and_xlas_buffers_are_traces() {
        let profile = |events: &[String]| format!("{{\"schemaVersion\":1,\"traceEvents\":[{}]}}", events.join(","));
        let one = profile(&[profiled(1, 8, 700, 0), profiled(3, 8, -700, 0)]);
        assert_eq!(of(&one).expect("a profile").events, [ALLOCATE, Event::Free { buffer: 0 }]);
        let two = profile(&[profiled(1, 8, 700, 0), profiled(2, 8, 800, 5)]);
        let names: Vec<String> = read("a b", two.as_bytes()).expect("a profile").into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["a_b.device0", "a_b.device5"]);
        let xla = "BufferAssignment:\nallocation 0: size 1500, preallocated-temp:\n value: <1 a @0> (size=700,offset=0): x\n \
                   value: <2 b @0> (size=800,offset=700): x\nHloLiveRange (max 4):\n  BufferLiveRange:\n    a{}:0-1\n    b{}:2-4\n";
        let second = Event::Allocate { buffer: 1, bytes: 800, stream: 0 };
        assert_eq!(of(xla).expect("buffers").events, [ALLOCATE, Event::Free { buffer: 0 }, second, Event::Free { buffer: 1 }]);
        assert!([&one, xla].iter().all(|text| is_recognized(text.as_bytes())));
    }

    #[test]
    fn a_form_without_lifetimes_is_named() {
        for (text, says) in [
            ("[1.5,[[\"BlockStored\",[7],null,[1,2],16]]]\n", "contains vLLM's KV cache events"),
            ("{\"type\":\"BlockRemoved\",\"block_hashes\":[7]}\n", "contains vLLM's KV cache events"),
            ("INFO 11-29 GPU KV cache size: 1,000 tokens\n", "is vLLM's log"),
            (
                "Total bytes: 9 (9B)\n  cumulative_size; size; offset; used_by_n_values; shapes_list\n",
                "pass *-buffer-assignment.txt",
            ),
            ("Total bytes used: 9 (9B)\nAllocations sorted by size:\n", "pass *-buffer-assignment.txt of the same program"),
            ("\n\u{4}2\u{0}2\u{b}allocations2\u{5}count2\u{5}space", "is JAX's device memory profile"),
            ("\n\u{9}\u{12}\u{7}/host:CPU", "is a profile of JAX or TensorFlow"),
            ("I0000 Sum Total of in-use chunks: 9B\n", "pass what XLA writes with --xla_dump_to"),
        ] {
            let found = of(text).expect_err(text);
            assert!(found.contains(says), "{text}: {found}");
        }
        let named = "{\"op\":\"allocate\",\"id\":1,\"bytes\":700,\"name\":\"BlockStored\"}\n";
        assert_eq!(of(named).expect("a trace").events, [ALLOCATE], "a trace may contain such words");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let begin = "{\"op\":\"allocate\",\"id\":1,\"bytes\":700}\n";
        for (line, says) in [
            ("{\"op\":\"allocate\",\"id\":1,\"bytes\":7}", "line 2: buffer \"1\" is requested again before it is freed"),
            ("{\"op\":\"allocate\",\"id\":2}", "line 2: allocate needs the field `bytes`"),
            ("{\"op\":\"allocate\",\"id\":2,\"bytes\":0}", "line 2: buffer \"2\" has 0 bytes"),
            ("{\"op\":\"allocate\",\"id\":2,\"bytes\":-1}", "line 2: invalid value"),
            ("{\"op\":\"free\",\"id\":2}", "line 2: buffer \"2\" is not in use"),
            ("{\"op\":\"use\",\"id\":1}", "line 2: use needs the field `stream`"),
            ("{\"op\":\"launch\",\"us\":0}", "line 2: launch needs the field `us`"),
            ("{\"op\":\"drop_pool\",\"pool\":4}", "line 2: pool 4 is not in use"),
            ("{\"op\":\"grow\"}", "line 2: unknown variant `grow`"),
            ("nothing", "line 2: expected"),
            ("{\"op\":\"end_pool\",\"pool\":4}", "is not a program"),
        ] {
            let found = of(&format!("{begin}{line}\n")).expect_err(line);
            assert!(found.contains(says), "{line}: {found}");
        }
        assert!(of(&format!("{begin}{}", "x".repeat(70_000))).expect_err("long").contains("line 2: is longer than 65536 bytes"));
        for (text, says) in [
            ("", "line 1: names none of these columns: op"),
            ("a,b\n1,2\n", "line 1: names none of these columns: op"),
            ("op,id,bytes\nfree,1,\n", "line 2: buffer \"1\" is not in use"),
            ("op,id,bytes\nempty_cache,,\n", "has no request"),
            ("op,id,bytes\nallocate,1,x\n", "line 2: "),
            ("lower,upper,size\n3,3,7\n", "line 2: ends at 3, but begins at 3"),
            ("lower,upper,size\n3,4,0\n", "line 2: buffer \"0\" has 0 bytes"),
            ("Action,Pointer,Size\nresize,0x1,7\n", "line 2: \"resize\" is not one of RMM's actions"),
        ] {
            let found = of(text).expect_err(text);
            assert!(found.contains(says), "{text}: {found}");
        }
    }
}
