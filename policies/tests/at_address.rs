//! Requests at an address under every policy in the catalogue: either a block begins there or nothing has changed, and
//! the heap is consistent.

use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade::{Allocation, Allocator};
use parkade_policies::{CATALOGUE, Named};
use parkade_sim::{SimDevice, SimOptions};

/// Pseudo-random numbers, the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The number of requests at an address that a policy served, and how many of these addresses were not those of freed
/// blocks.
fn served(named: &Named) -> (usize, usize) {
    let device = SimDevice::new(SimOptions::new(Bytes(2048 * MIB)));
    let mut allocator = Allocator::new(device, named.make(), ());
    let (mut draws, mut live, mut places) = (Draws(7), Vec::<Allocation>::new(), Vec::new());
    let (mut served, mut behind) = (0, 0);
    for step in 0..1500 {
        let stream = StreamId(draws.below(2) * 0x1000);
        let most = if draws.below(3) == 0 { 40 * MIB } else { 400_000 };
        let size = Bytes(1 + draws.below(most));
        if draws.below(2) == 0 && !live.is_empty() {
            let freed = live.swap_remove(draws.below(live.len() as u64) as usize);
            places.push(freed.address());
            allocator.free(freed).expect("the allocation belongs to this allocator");
        } else if draws.below(2) == 0 && !places.is_empty() {
            let newest = places.len().min(8) as u64;
            let base: DeviceAddress = places[places.len() - 1 - draws.below(newest) as usize];
            let offset = draws.below(4) * 512 * draws.below(64);
            let before = allocator.stats().clone();
            let at = DeviceAddress(base.get() + offset);
            match allocator.allocate_at(size, stream, at) {
                Ok(Some(allocation)) => {
                    assert_eq!(allocation.address(), at, "{}: step {step}", named.name);
                    (served, behind) = (served + 1, behind + usize::from(offset > 0));
                    live.push(allocation);
                }
                Ok(None) => assert_eq!(*allocator.stats(), before, "{}: step {step}", named.name),
                Err(error) => panic!("{}: step {step}: {error}", named.name),
            }
        } else {
            live.extend(allocator.allocate(size, stream));
        }
        allocator.check().unwrap_or_else(|violation| panic!("{}: step {step}: {violation}", named.name));
    }
    (served, behind)
}

#[test]
fn a_block_begins_at_the_address_or_nothing_has_changed() {
    let counts: Vec<_> = CATALOGUE.iter().map(|named| (&named.name, served(named))).collect();
    let serving = counts.iter().filter(|(_, (served, behind))| *served > 10 && *behind > 0).count();
    assert!(serving * 2 > counts.len(), "{counts:?}");
}
