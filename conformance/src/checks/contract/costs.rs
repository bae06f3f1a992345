//! What each call costs here, as a table to compare with the measured one (facts: Time of one call). Times are measured, never
//! asserted.

use parkade::device::DeviceBackend as _;
use std::fmt::Write;

use parkade::units::{Bytes, MIB};

use crate::backend::{AnyBackend, AnyDevice};
use crate::checks::contract::probe::{Watch, ends_empty, free_bytes, open};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Sizes of the first table's handles and the second table's ranges, in MiB.
const HANDLES_MIB: [u64; 4] = [2, 20, 128, 1024];
const RANGES_MIB: [u64; 4] = [2, 20, 256, 1024];
/// How often each call is made; the table shows the median.
const ROUNDS: usize = 21;

/// The entry of these rows.
pub(super) fn entries() -> Vec<Entry> {
    vec![Entry::new(Group::Contract, "costs", "every call of the cost tables succeeds; its time is measured", costs)]
}

fn costs(backend: &AnyBackend, _: &Effort) -> Verdict {
    let page = backend.facts().page;
    let handles: &[u64] = if backend.facts().has_virtual_memory { &HANDLES_MIB } else { &[] };
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let watch = Watch::new();
    let mut table = String::from("us, medians; handle: create, map, set access, unmap, release; range: malloc, free\n");
    for &mib in handles {
        let medians = handle_ns(&mut device, &watch, whole_pages(mib, page))?.map(micros);
        // Writing to a string does not fail.
        let _ = writeln!(table, "handle {mib:>4} MiB: {}", medians.join(", "));
    }
    for mib in RANGES_MIB {
        let medians = range_ns(&mut device, &watch, Bytes(mib * MIB))?.map(micros);
        let _ = writeln!(table, "range  {mib:>4} MiB: {}", medians.join(", "));
    }
    ends_empty(&mut device, before)?;
    let calls = ROUNDS as u64 * (5 * handles.len() as u64 + 2 * RANGES_MIB.len() as u64);
    let text = format!("handles of {handles:?} MiB, ranges of {RANGES_MIB:?} MiB: {calls} calls, all succeeded");
    Ok(Evidence { text, measured: table, operations: calls })
}

/// `mib` MiB, rounded up to whole pages.
fn whole_pages(mib: u64, page: Bytes) -> Bytes {
    Bytes(mib * MIB).checked_round_up(page).unwrap_or(page)
}

fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

fn median<const CALLS: usize>(mut rounds: Vec<[u64; CALLS]>) -> [u64; CALLS] {
    let middle = rounds.len() / 2;
    std::array::from_fn(|call| {
        rounds.sort_unstable_by_key(|round| round[call]);
        rounds.get(middle).map_or(0, |round| round[call])
    })
}

/// Create, map, set access, unmap, release.
fn handle_ns(device: &mut AnyDevice, watch: &Watch, size: Bytes) -> Result<[u64; 5], Trouble> {
    let base = device.reserve(size)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (memory, create) = watch.time(device, |device| device.create(size))?;
        let ((), map) = watch.time(device, |device| device.map(base, size, &memory))?;
        let ((), access) = watch.time(device, |device| device.set_access(base, size))?;
        let ((), unmap) = watch.time(device, |device| device.unmap(base, size))?;
        let ((), release) = watch.time(device, |device| device.release(memory).map_err(|(_, error)| error))?;
        rounds.push([create, map, access, unmap, release]);
    }
    device.unreserve(base, size)?;
    Ok(median(rounds))
}

/// Malloc, free.
fn range_ns(device: &mut AnyDevice, watch: &Watch, size: Bytes) -> Result<[u64; 2], Trouble> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (address, malloc) = watch.time(device, |device| device.malloc(size))?;
        let ((), free) = watch.time(device, |device| device.free(address))?;
        rounds.push([malloc, free]);
    }
    Ok(median(rounds))
}
