//! Finds the classic race of a caching allocator: a block is freed while another stream is still reading it, and is
//! reused immediately.
//!
//! The same program runs twice, first without and then with `record_stream`. The race detector reports a race in the
//! first run and names both kernels. Run it with `cargo run -p parkade-sim --example find_a_race`.
#![expect(clippy::print_stdout, reason = "a user runs this example")]

use std::error::Error;

use parkade::Allocator;
use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_sim::{Access, Kernel, SimDevice, SimOptions};

const BATCH: Bytes = Bytes::mib(64);
const MS_NS: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    for records_stream in [false, true] {
        let device = prefetch(records_stream)?;
        println!("{} record_stream:", if records_stream { "with" } else { "without" });
        println!("  races: {}, device memory: {} bytes", device.races().len(), device.used_bytes());
        for race in device.races() {
            println!("  {race}");
        }
    }
    Ok(())
}

/// Fills a batch on one stream and copies it out on another while the program continues with the next batch. Returns
/// the device.
fn prefetch(records_stream: bool) -> Result<SimDevice, Box<dyn Error>> {
    let mut allocator = Allocator::new(SimDevice::new(SimOptions::h200()), PyTorch::new(Settings::default()), ());
    let [compute, copy] = [(); 2].map(|()| allocator.device_mut().create_stream());

    let batch = allocator.allocate(BATCH, compute)?;
    let device = allocator.device_mut();
    device.fill(batch.address(), BATCH, 1, compute)?;
    let mut filled = device.create_event()?;
    device.record_event(&mut filled, compute)?;
    device.stream_wait(copy, &filled);
    let accesses = vec![Access::read(batch.address(), BATCH)];
    device.kernel(Kernel { stream: copy, duration_ns: 2 * MS_NS, label: "copy out".into(), accesses })?;

    if records_stream {
        allocator.record_stream(&batch, copy);
    }
    allocator.free(batch)?;
    let next = allocator.allocate(BATCH, compute)?;
    let accesses = vec![Access::write(next.address(), BATCH)];
    let kernel = Kernel { stream: compute, duration_ns: MS_NS, label: "next batch".into(), accesses };
    allocator.device_mut().kernel(kernel)?;
    Ok(allocator.device().clone())
}
