//! Runs the allocator on a custom device: 64 MiB that exist only as numbers. A model is too large for it.
//!
//! `cargo run -p parkade --example own_device`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::texts::format_bytes;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocator, FreeError};

/// Hands out addresses in ascending order and never reuses one. All its work completes immediately, so events have nothing to
/// wait for.
struct Paper {
    total: u64,
    next: u64,
    segments: Vec<(DeviceAddress, u64)>,
}

impl Paper {
    fn free_bytes(&self) -> u64 {
        self.total - self.segments.iter().map(|(_, size)| size).sum::<u64>()
    }
}

/// The calls without a default implementation are the ones that every device has: cudaMalloc, cudaFree and events.
impl DeviceBackend for Paper {
    type Event = ();
    type Physical = ();

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        Bytes(self.total)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes(self.free_bytes()), total: Bytes(self.total) })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        if size.get() > self.free_bytes() {
            return Err(BackendError::OutOfMemory { requested: size });
        }
        let address = DeviceAddress(self.next);
        self.next += size.get();
        self.segments.push((address, size.get()));
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.segments.retain(|(own, _)| *own != address);
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}

fn main() -> Result<(), FreeError> {
    let device = Paper { total: 64 << 20, next: 1 << 40, segments: Vec::new() };
    let mut allocator = Allocator::new(device, PyTorch::new(Settings::default()), Vec::<TraceEntry>::new());
    let mut tensors = Vec::new();
    for bytes in [600, 3 << 20, 12 << 20, 20 << 20, 30 << 20] {
        match allocator.allocate(Bytes(bytes), StreamId::DEFAULT) {
            Ok(tensor) => tensors.push(tensor),
            Err(AllocError::OutOfMemory(refusal)) => println!("{refusal}\n"),
            Err(error) => println!("{error}"),
        }
    }
    for tensor in tensors {
        allocator.free(tensor)?;
    }
    println!("What the allocator did:");
    for entry in allocator.observer() {
        println!("  {:<14} {:#x} {}", entry.action.name(), entry.address, format_bytes(entry.size));
    }
    println!("\nWhat memory_stats() would be:");
    for (key, value) in allocator.stats().entries().iter().filter(|(key, value)| key.contains(".all.") && *value != 0) {
        println!("  {key} {value}");
    }
    Ok(())
}
