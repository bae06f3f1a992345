//! Runs a policy from the catalogue on a script of requests, and prints the results in the same format as the programs
//! for the real allocators in `conformance/other_allocators`.
//!
//! ```text
//! peer POLICY CAPACITY LIMIT|- SCRIPT [one] [stop] [fixed]
//! peer list                 the generated workloads
//! peer dump WORKLOAD        one of them as a script
//! peer bench POLICY         nanoseconds per pair of allocation and free
//! ```
//!
//! `one` treats all streams as one, and `stop` ends at the first request that is refused. `fixed` first maps the
//! entire device as one area; in this mode, the run counts as out of memory as soon as the policy would remap pages.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for people to read")]

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use parkade::policy::Policy;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_policies::named;
use parkade_research::workload::{CATALOGUE, Event};
use parkade_sim::{CallName, EventTiming, LogLevel, SimDevice, SimOptions};

const USAGE: &str = "usage: peer POLICY CAPACITY LIMIT|- SCRIPT [one] [stop] [fixed] | list | dump WORKLOAD | bench POLICY";

type Core = Allocator<SimDevice, Box<dyn Policy + Send>, ()>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["list"] => {
            CATALOGUE.iter().for_each(|named| println!("{}", named.name));
            Ok(())
        }
        ["dump", workload] => dump(workload),
        ["bench", policy] => bench(policy),
        [policy, capacity, limit, script, words @ ..] => run(policy, capacity, limit, script, words),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = done {
        eprintln!("peer: {error}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

/// An allocator under a policy, on a device whose addresses ascend.
fn core(policy: &str, capacity: Bytes) -> Result<Core, String> {
    let named = named(policy).map_err(|why| format!("there is no policy {policy}: {why}; docs/policies.md lists them"))?;
    let device = SimDevice::new(SimOptions::fake_driver(capacity).event_timing(EventTiming::Eager));
    Ok(Allocator::new(device, named.make(), ()))
}

/// A run of a script, with its answers so far.
struct Run {
    core: Core,
    live: HashMap<String, Allocation>,
    operations: u64,
    refused: u64,
    out: String,
}

fn run(policy: &str, capacity: &str, limit: &str, script: &str, words: &[&str]) -> Result<(), Box<dyn Error>> {
    if let Some(unknown) = words.iter().find(|word| !["one", "stop", "fixed"].contains(word)) {
        return Err(format!("unknown word {unknown}; {USAGE}").into());
    }
    let [one, stop, fixed] = ["one", "stop", "fixed"].map(|word| words.contains(&word));
    let mut core = core(policy, Bytes(capacity.parse()?))?;
    if limit != "-" {
        core.set_limit(Some(Bytes(limit.parse()?)));
    }
    core.device_mut().set_log_level(LogLevel::Events);
    if fixed {
        // Starts with a single area in which everything is mapped.
        let all = core.device().capacity().get() >> 21 << 21;
        let block = core.allocate(Bytes(all), StreamId::DEFAULT)?;
        core.free(block)?;
        core.device_mut().take_log();
    }
    let mut run = Run { core, live: HashMap::new(), operations: 0, refused: 0, out: String::new() };
    for line in std::fs::read_to_string(script)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["a", id, bytes, stream] => {
                let stream = if one { 0 } else { stream.parse::<u64>()? };
                run.allocate(id, Bytes(bytes.parse()?), StreamId(stream * 0x1000))?;
            }
            ["f", id] => run.free(id)?,
            _ => {}
        }
        if stop && run.refused > 0 {
            break;
        }
    }
    run.finish(fixed);
    print!("{}", run.out);
    Ok(())
}

impl Run {
    fn allocate(&mut self, id: &str, bytes: Bytes, stream: StreamId) -> Result<(), Box<dyn Error>> {
        self.operations += 1;
        let answer = match self.core.allocate(bytes, stream) {
            Ok(allocation) => {
                let name = self.core.device().name_address(allocation.address()).to_string();
                self.live.insert(id.to_owned(), allocation);
                name
            }
            Err(AllocError::OutOfMemory(_)) => {
                self.refused += 1;
                "oom".to_owned()
            }
            Err(other) => return Err(other.into()),
        };
        self.calls();
        writeln!(self.out, "a {id} {answer}")?;
        Ok(())
    }

    fn free(&mut self, id: &str) -> Result<(), Box<dyn Error>> {
        self.operations += 1;
        let allocation = self.live.remove(id);
        let answer = if allocation.is_some() { "" } else { " none" };
        allocation.map(|allocation| self.core.free(allocation)).transpose()?;
        self.calls();
        writeln!(self.out, "f {id}{answer}")?;
        Ok(())
    }

    /// Prints the driver calls since the previous call.
    fn calls(&mut self) {
        for call in self.core.device_mut().take_log() {
            let _ = writeln!(self.out, "# {}", call.render());
        }
    }

    fn finish(&mut self, fixed: bool) {
        let device = self.core.device();
        let calls = |name: CallName| device.totals(name).calls;
        let refused = self.refused + if fixed { calls(CallName::MemUnmap) } else { 0 };
        let _ = writeln!(
            self.out,
            "= ops {} ooms {refused} peak {} mallocs {} waits {}",
            self.operations,
            device.peak_used_bytes().get(),
            calls(CallName::Malloc),
            calls(CallName::StreamWaitEvent)
        );
    }
}

/// A workload as a script. Events that a script cannot express (pools, work, use by other streams) are omitted; a
/// comment states how many.
fn dump(name: &str) -> Result<(), Box<dyn Error>> {
    let named = CATALOGUE.iter().find(|named| named.name == name);
    let named = named.ok_or_else(|| format!("there is no workload {name}: `peer list` lists them"))?;
    let mut left_out = 0;
    let mut out = String::new();
    for event in &named.make(1).events {
        match *event {
            Event::Allocate { buffer, bytes, stream } => writeln!(out, "a {buffer} {bytes} {stream}")?,
            Event::Free { buffer } => writeln!(out, "f {buffer}")?,
            _ => left_out += 1,
        }
    }
    println!("# {name}: {left_out} events left out");
    print!("{out}");
    Ok(())
}

/// Like `bench` in `conformance/other_allocators/src/common.hpp`, computes medians over rounds.
fn bench(policy: &str) -> Result<(), Box<dyn Error>> {
    let mut core = core(policy, Bytes(128 << 30))?;
    for bytes in [4096_u64, 2 << 20] {
        let mut rounds = Vec::new();
        for _ in 0..7 {
            let start = Instant::now();
            for _ in 0..200_000 {
                let block = core.allocate(Bytes(bytes), StreamId::DEFAULT)?;
                core.free(block)?;
            }
            rounds.push(start.elapsed().as_nanos() as f64 / 200_000.0);
        }
        println!("parkade {policy} hit {bytes}: {:.1} ns/pair", median(rounds));
    }
    for live in [100, 1000, 10_000] {
        println!("parkade {policy} mix 512B-8MiB, {live} live: {:.1} ns/pair", mix(&mut core, live)?);
    }
    Ok(())
}

/// Repeatedly replaces one of this many live blocks with a block of random size, from 512 B to 8 MiB.
fn mix(core: &mut Core, live: usize) -> Result<f64, Box<dyn Error>> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut size = || {
        let power = 1_u64 << (9 + next() % 14);
        Bytes(power + next() % power)
    };
    let mut blocks = Vec::new();
    for _ in 0..live {
        blocks.push(core.allocate(size(), StreamId::DEFAULT)?);
    }
    let mut pick = 1_u64;
    let pairs = if live >= 10_000 { 20_000 } else { 50_000 };
    let mut rounds = Vec::new();
    for round in 0..8 {
        let start = Instant::now();
        for _ in 0..pairs {
            pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = blocks.swap_remove((pick >> 33) as usize % live);
            core.free(block)?;
            blocks.push(core.allocate(size(), StreamId::DEFAULT)?);
        }
        // The first round is a warm-up.
        if round > 0 {
            rounds.push(start.elapsed().as_nanos() as f64 / f64::from(pairs));
        }
    }
    for block in blocks {
        core.free(block)?;
    }
    Ok(median(rounds))
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
