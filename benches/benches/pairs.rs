//! Measures the time of an allocation and its free in the core: `cargo bench -p parkade-benches --bench pairs`.
//!
//! The cases are those of the real PyTorch allocator's benchmark: allocating one size repeatedly, and replacing a
//! random one of many blocks.

use criterion::{Criterion, criterion_group, criterion_main};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_benches::{NullDevice, Random};

type Core = Allocator<NullDevice, PyTorch>;

fn core() -> Core {
    Allocator::new(NullDevice::default(), PyTorch::new(Settings::default()), ())
}

fn allocate(core: &mut Core, bytes: u64) -> Allocation {
    core.raw_allocate(Bytes(bytes), StreamId::DEFAULT).expect("the device has enough memory")
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    for (name, bytes) in [("4 KiB", 4 << 10), ("2 MiB", 2 << 20), ("32 MiB", 32 << 20)] {
        let mut core = core();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let allocation = allocate(&mut core, bytes);
                core.free(allocation).expect("its own allocation");
            });
        });
    }
    for live in [100, 1_000, 10_000] {
        let (mut core, mut random) = (core(), Random(1));
        let mut blocks: Vec<Option<Allocation>> = (0..live).map(|_| Some(allocate(&mut core, random.size()))).collect();
        let steps: Vec<(usize, u64)> = (0..200_000).map(|_| ((random.number() % live) as usize, random.size())).collect();
        let mut steps = steps.iter().cycle();
        group.bench_function(format!("mix of {live} live"), |bencher| {
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

criterion_group!(benches, pairs);
criterion_main!(benches);
