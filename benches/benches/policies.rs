//! Measures the time of an allocation and its free under each policy in the catalogue:
//! `cargo bench -p parkade-benches --bench policies`.
//!
//! Each step replaces a random one of many blocks, as in the `pairs` benchmark. This exposes policies that slow down
//! when there are many free blocks.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use parkade::policy::Policy;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_benches::{NullDevice, Random};
use parkade_policies::CATALOGUE;

type Core = Allocator<NullDevice, Box<dyn Policy + Send>>;

fn allocate(core: &mut Core, bytes: u64) -> Allocation {
    core.raw_allocate(Bytes(bytes), StreamId::DEFAULT).expect("the device has enough memory")
}

fn policies(criterion: &mut Criterion) {
    for live in [100, 1_000] {
        let mut group = criterion.benchmark_group(format!("mix of {live} live"));
        group.throughput(Throughput::Elements(2));
        for named in CATALOGUE {
            let mut core = Core::new(NullDevice::default(), named.make(), ());
            let mut random = Random(1);
            let mut blocks: Vec<Option<Allocation>> = (0..live).map(|_| Some(allocate(&mut core, random.size()))).collect();
            let steps: Vec<(usize, u64)> = (0..200_000).map(|_| ((random.number() % live) as usize, random.size())).collect();
            let mut steps = steps.iter().cycle();
            group.bench_function(&*named.name, |bencher| {
                bencher.iter(|| {
                    let &(place, bytes) = steps.next().expect("the steps repeat");
                    if let Some(old) = blocks[place].take() {
                        core.free(old).expect("its own allocation");
                    }
                    blocks[place] = Some(allocate(&mut core, bytes));
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, policies);
criterion_main!(benches);
