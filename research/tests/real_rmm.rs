//! Tests that RMM's pool decides as the real library did: each placement, growth, wait, release and refusal, on one, three
//! and eight streams.
//!
//! `conformance/other_allocators/recorded/rmm.txt.xz` contains the requests to librmm 26.10.0 and its answers; the top of
//! `conformance/other_allocators/record_run.py` describes how it is written.

use std::path::Path;

use parkade::policy::Policy;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_policies::named;
use parkade_recording::compression;
use parkade_sim::{AddressName, CallName, CallSubject, EventTiming, LogLevel, SimDevice, SimOptions};

type Core = Allocator<SimDevice, Box<dyn Policy + Send>, ()>;

/// Returns the policy named by a line `run POLICY CAPACITY LIMIT`, on its device.
fn core(header: &str) -> Core {
    let words: Vec<&str> = header.split(' ').collect();
    let &["run", policy, capacity, limit] = words.as_slice() else { panic!("{header} is no header") };
    let options = SimOptions::fake_driver(Bytes(capacity.parse().expect("bytes"))).event_timing(EventTiming::Eager);
    let policy = named(policy).expect("a policy of the catalogue").make();
    let mut core = Allocator::new(SimDevice::new(options), policy, ());
    core.set_limit(limit.parse().ok().map(Bytes));
    core.device_mut().set_log_level(LogLevel::Events);
    core
}

/// Returns the driver calls since this function was last called, in the file's notation.
fn calls(core: &mut Core) -> Vec<String> {
    let calls = core.device_mut().take_log();
    let said = calls.into_iter().filter_map(|call| match (call.name, call.subject) {
        (CallName::Malloc, CallSubject::Allocation { bytes, range }) => {
            Some(format!("{}{bytes}", if range.is_some() { '+' } else { '!' }))
        }
        (CallName::Free, CallSubject::Release { name: AddressName::InRange { ordinal, .. }, .. }) => Some(format!("-{ordinal}")),
        (CallName::StreamWaitEvent, _) => Some("w".to_owned()),
        _ => None,
    });
    said.collect()
}

/// Makes the request on a line and returns the answers to it.
fn answer(core: &mut Core, held: &mut Vec<Option<Allocation>>, request: &str) -> Vec<String> {
    let words: Vec<&str> = request.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let place = match words.as_slice() {
        ["a", bytes, stream] => match core.allocate(Bytes(number(bytes)), StreamId(number(stream) * 0x1000)) {
            Ok(allocation) => {
                let place = core.device().name_address(allocation.address());
                held.push(Some(allocation));
                Some(place.trim_start_matches('c').to_owned())
            }
            Err(AllocError::OutOfMemory(_)) => {
                held.push(None);
                Some("oom".to_owned())
            }
            Err(other) => panic!("{request}: {other}"),
        },
        ["f", which] => {
            let allocation = held[number(which) as usize - 1].take().expect("it is held");
            core.free(allocation).expect("ours");
            None
        }
        _ => panic!("{request} is no request"),
    };
    let mut said = calls(core);
    said.extend(place);
    said
}

#[test]
fn rmm_decides_as_the_real_one_did() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/other_allocators/recorded/rmm.txt.xz");
    let packed = std::fs::read(path).expect("the recorded answers");
    let text = compression::decompress(&packed).expect("xz");
    let text = std::str::from_utf8(&text).expect("text");
    let (mut runs, mut seen) = (0, [0; 4]);
    for run in text.split("run ").filter(|run| !run.is_empty()) {
        let mut lines = run.lines();
        let header = format!("run {}", lines.next().expect("a header"));
        let (mut core, mut held) = (core(&header), Vec::new());
        for (number, line) in lines.enumerate() {
            let (request, expected) = line.split_once(" =").expect("a request and its answer");
            let said = answer(&mut core, &mut held, request).join(" ");
            assert_eq!(said, expected.trim_start(), "{header}, request {number}: {request}");
            for (count, what) in seen.iter_mut().zip(["+", "w", "-", "oom"]) {
                *count += usize::from(said.split(' ').any(|word| word.starts_with(what)));
            }
        }
        core.check().expect("a sound heap");
        runs += 1;
    }
    assert_eq!(runs, 9);
    assert!(seen.iter().all(|&count| count >= 20), "growth, waits, releases and refusals: {seen:?}");
}
