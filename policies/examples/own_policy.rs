//! Defines a policy that wraps another one: PyTorch's rules, except that blocks of 8 MiB or more are never split.
//! Compares it with PyTorch's own policy.
//!
//! `cargo run -p parkade-policies --example own_policy`
#![expect(clippy::print_stdout, reason = "its output is for people to read")]

use parkade::policy::{Policy, PyTorch, Request, Wrapper};
use parkade::settings::Settings;
use parkade::texts::format_bytes;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocator};
use parkade_sim::{SimDevice, SimOptions};

/// Blocks of at least this size are never split.
const KEPT_WHOLE: Bytes = Bytes::mib(8);

/// Delegates every decision to PyTorch's rules, except those made here.
struct LargeBlocksWhole(PyTorch);

impl Wrapper for LargeBlocksWhole {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn name(&self) -> &'static str {
        "large-blocks-whole"
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        whole < KEPT_WHOLE && self.0.splits(whole, request)
    }
}

/// Runs batches of growing length. The activations of a batch are freed before the next batch, and one result of each
/// batch is kept.
fn train(policy: impl Policy) -> Result<(), AllocError> {
    let name = policy.name();
    let mut allocator = Allocator::new(SimDevice::new(SimOptions::h200()), policy, ());
    let mut kept = Vec::new();
    for batch in 1..=24_u64 {
        let activations: Result<Vec<_>, _> =
            (0..6).map(|layer| allocator.allocate(Bytes(batch * 900_000 + layer * 70_000), StreamId::DEFAULT)).collect();
        kept.push(allocator.allocate(Bytes(1_500_000), StreamId::DEFAULT)?);
        for activation in activations? {
            // Freeing an allocation can only fail if the device fails.
            allocator.free(activation).expect("the simulated device does not fail unless it is told to");
        }
    }
    let live: u64 = allocator.segments().iter().map(|segment| segment.allocated.get()).sum();
    let reserved = allocator.heap().reserved().get();
    let calls = allocator.device().driver_calls();
    println!("{name:<20} {:>12} handed out {:>12} reserved {calls:>4} driver calls", format_bytes(live), format_bytes(reserved));
    Ok(())
}

fn main() -> Result<(), AllocError> {
    train(PyTorch::new(Settings::default()))?;
    train(LargeBlocksWhole(PyTorch::new(Settings::default())))
}
