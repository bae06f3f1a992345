//! Fails each driver call of a program in turn, and checks after each failure that the allocator's heap is consistent.
//!
//! This tests an allocator's error paths without a broken GPU: a plan names the call that fails, the program
//! encounters the failure, and then the heap must be consistent and it must be possible to free everything. Run it
//! with `cargo run -p parkade-sim --example fail_every_call`.
#![expect(clippy::print_stdout, reason = "a user runs this example")]

use std::collections::BTreeMap;
use std::error::Error;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_sim::{CallName, FaultError, FaultPlan, SimDevice, SimOptions, When};

/// A driver code other than out of memory: illegal instruction.
const CODE: u32 = 715;

type Heap = Allocator<SimDevice, PyTorch>;
/// For each call name: the number of calls that the example made fail, and how many of these failures the program saw.
type Rows = BTreeMap<&'static str, (u32, u32)>;

fn main() -> Result<(), Box<dyn Error>> {
    for settings in ["", "expandable_segments:True"] {
        println!("settings {settings:?}");
        println!("  {:<24} {:>6} {:>14}", "failing call", "failed", "seen by caller");
        for (name, (failures, errors)) in fail_each(settings)? {
            println!("  {name:<24} {failures:>6} {errors:>14}");
        }
    }
    println!("the heap was consistent after every failure");
    Ok(())
}

/// Runs the program once for each of its driver calls, and fails that call.
fn fail_each(settings: &str) -> Result<Rows, Box<dyn Error>> {
    let mut rows = Rows::new();
    for nth in 1.. {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(256)));
        device.set_fault_plan(FaultPlan::none().and(When::Nth(nth), FaultError::Code(CODE)));
        let mut heap = Allocator::new(device, PyTorch::new(Settings::from_environment(settings)?), ());
        let mut live = Vec::new();
        let ended = program(&mut heap, &mut live).is_err();
        if heap.device().fault_plan().fired() == 0 {
            return Ok(rows); // the program makes fewer calls than this
        }
        let failed = CallName::ALL.into_iter().find(|&name| heap.device().totals(name).failures > 0);
        let row = rows.entry(failed.map_or("?", CallName::as_str)).or_default();
        *row = (row.0 + 1, row.1 + u32::from(ended));
        heap.check()?;
        for allocation in live {
            heap.free(allocation)?;
        }
        heap.release_cached()?;
        heap.check()?;
    }
    Ok(rows)
}

/// Two streams share a block, the cache is emptied, and a larger block replaces it.
fn program(heap: &mut Heap, live: &mut Vec<Allocation>) -> Result<(), Box<dyn Error>> {
    let [first, second] = [(); 2].map(|()| heap.device_mut().create_stream());
    let shared = heap.allocate(Bytes::mib(30), first)?;
    heap.device_mut().spin(second, 1_000_000);
    heap.record_stream(&shared, second);
    heap.free(shared)?;
    live.push(heap.allocate(Bytes::mib(50), StreamId::DEFAULT)?);
    heap.release_cached()?;
    live.push(heap.allocate(Bytes::mib(150), first)?);
    Ok(())
}
