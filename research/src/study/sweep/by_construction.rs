//! Measures the part of a policy's memory need that does not depend on the program: some policies use only part of the
//! device, or take memory before the program begins.

use parkade_policies::Named;

use crate::study::{PLENTY_BYTES, RunOptions, make_for, run, smallest_capacity};
use crate::workload::{Event, Workload};

/// The number and the size of equal buffers. Together they are 1 GiB.
const BUFFERS: u32 = 64;
const BUFFER_BYTES: u64 = 16 << 20;

fn equal_buffers(count: u32, bytes: u64) -> Workload {
    let events = (0..count).map(|buffer| Event::Allocate { buffer, bytes, stream: 0 }).collect();
    Workload { name: "equal-buffers".into(), says: "equal buffers that are kept".into(), events, ..Workload::default() }
}

/// The smallest memory in which a program that only allocates 64 buffers of 16 MiB fits, divided by their sum. This program
/// cannot cause fragmentation, so anything above 1 is due to the policy's construction, such as using only three quarters of
/// the device. `None` if the program does not fit in any amount of memory.
#[must_use]
pub fn needs_by_construction(policy: &Named) -> Option<f64> {
    let workload = equal_buffers(BUFFERS, BUFFER_BYTES);
    let found = smallest_capacity(&workload, &make_for(policy, &workload), &RunOptions::plenty(), &[]).ok()?;
    Some(found.capacity_bytes as f64 / (u64::from(BUFFERS) * BUFFER_BYTES) as f64)
}

/// Whether the policy takes a share of all memory for the first small request; its figures with plenty of memory then
/// describe the device rather than the program.
#[must_use]
pub fn takes_a_share_at_first(policy: &Named) -> bool {
    let small = equal_buffers(1, 1 << 20);
    run(&small, make_for(policy, &small)(), &RunOptions::plenty()).peak_reserved_bytes > PLENTY_BYTES / 100
}

#[cfg(test)]
mod tests {
    use parkade_policies::named;

    use super::*;

    #[test]
    fn what_a_policy_needs_by_construction_is_measured() {
        let needs = |name: &str| needs_by_construction(&named(name).expect("a policy")).expect("it fits");
        assert!((needs("pytorch") - 1.0).abs() < 1e-9 && (needs("best-fit-remap") - 1.0).abs() < 1e-9);
        assert!((needs("bfc:kind=xla") - 4.0 / 3.0).abs() < 0.03, "{}", needs("bfc:kind=xla"));
        assert!(needs("rmm-pool") < 1.1, "what grows in the end is not by construction: {}", needs("rmm-pool"));
    }

    #[test]
    fn some_take_a_share_of_all_memory_first() {
        for (name, takes) in
            [("pytorch", false), ("bfc", false), ("bfc:kind=xla", true), ("rmm-pool", true), ("bfc:kind=one-region", true)]
        {
            assert_eq!(takes_a_share_at_first(&named(name).expect("a policy")), takes, "{name}");
        }
    }
}
