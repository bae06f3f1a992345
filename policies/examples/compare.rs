//! Runs the same random program under every policy in the catalogue, on a simulated H200. Shows how much memory each
//! policy reserves for the same tensors, and the cost of its driver calls.
//!
//! `cargo run --release -p parkade-policies --example compare`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use parkade::stats::Family;
use parkade::texts::format_bytes;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_policies::{CATALOGUE, Named};
use parkade_sim::{SimDevice, SimOptions};

const TENSORS: usize = 400;
const STEPS: usize = 20_000;

/// A linear congruential generator, which produces the same numbers for every policy.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A size from 1 KiB to 64 MiB, spread evenly over the magnitudes.
    fn size(&mut self) -> Bytes {
        let magnitude = 1 << (10 + self.below(16));
        Bytes(magnitude + self.below(magnitude))
    }
}

/// Replaces one of many tensors at each step.
fn run(named: &Named) -> Result<(), AllocError> {
    let mut allocator = Allocator::new(SimDevice::new(SimOptions::h200()), named.make(), ());
    let mut draw = Draw(1);
    let mut tensors: Vec<Option<Allocation>> = (0..TENSORS).map(|_| None).collect();
    for _ in 0..STEPS {
        let (place, bytes) = (draw.below(TENSORS as u64) as usize, draw.size());
        if let Some(old) = tensors[place].take() {
            allocator.free(old).expect("the simulated device does not fail unless it is told to");
        }
        tensors[place] = Some(allocator.allocate(bytes, StreamId::DEFAULT)?);
    }
    let peak = |family| allocator.stats().family(family).all.peak;
    let (requested, reserved) = (peak(Family::RequestedBytes), peak(Family::ReservedBytes));
    let device = allocator.device();
    println!(
        "{:<23} {:>11} reserved, {:>4.1} % of it never requested, {:>5} driver calls, {:>8.1} ms",
        named.name,
        format_bytes(reserved.unsigned_abs()),
        100.0 * (reserved - requested) as f64 / reserved as f64,
        device.driver_calls(),
        device.driver_ns() as f64 / 1e6,
    );
    Ok(())
}

fn main() -> Result<(), AllocError> {
    CATALOGUE.iter().try_for_each(run)
}
