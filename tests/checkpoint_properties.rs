//! Random traffic in private pools with checkpoints in between: the heap is valid after every step, a
//! restored pool is as it was saved, and a refused restore has changed nothing.

use std::collections::BTreeMap;

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{Allocation, Allocator, CheckpointError, FreeError, PoolCheckpoint, PoolFilter};
use proptest::prelude::*;

type Core = Allocator<PlainDevice, PyTorch>;

const POOLS: [PoolId; 2] = [PoolId(1, 0), PoolId(0, 1)];

#[derive(Clone, Debug)]
enum Step {
    /// To the default pool if that pool does not exist.
    Allocate {
        pool: usize,
        size: u64,
        stream: u64,
    },
    Free(usize),
    Record(usize, u64),
    Complete,
    Save(usize),
    /// The checkpoint this many before the last.
    Restore(usize),
    /// Releases the pool and creates it again.
    Remake(usize),
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1_u64..4096, 4096_u64..2 << 20, 2_u64 << 20..40 << 20];
    let step = prop_oneof![
        10 => (0_usize..3, size, 0_u64..2).prop_map(|(pool, size, stream)| Step::Allocate { pool, size, stream }),
        7 => any::<usize>().prop_map(Step::Free),
        1 => (any::<usize>(), 0_u64..3).prop_map(|(place, stream)| Step::Record(place, stream)),
        1 => Just(Step::Complete),
        2 => (0_usize..2).prop_map(Step::Save),
        2 => (0_usize..4).prop_map(Step::Restore),
        1 => (0_usize..2).prop_map(Step::Remake),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    core: Core,
    live: Vec<Allocation>,
    saved: Vec<(PoolCheckpoint, Vec<SegmentInfo>)>,
}

fn segments_of(core: &Core, pool: PoolId) -> Vec<SegmentInfo> {
    core.segments().into_iter().filter(|segment| segment.pool == pool).collect()
}

/// The same blocks in the same states; the last free one may have grown, and a pending block behind it is not
/// in the checkpoint.
fn is_restored(saved: &SegmentInfo, now: &SegmentInfo) -> bool {
    let shape = |block: &BlockInfo| (block.address, block.size, block.state);
    let fixed = match saved.blocks.last() {
        Some(last) if saved.expandable && last.state == BlockActivity::Inactive => saved.blocks.len() - 1,
        _ => saved.blocks.len(),
    };
    let is_same = now.blocks.len() >= fixed && saved.blocks[..fixed].iter().map(shape).eq(now.blocks[..fixed].iter().map(shape));
    let rest_is_unused = now.blocks[fixed.min(now.blocks.len())..].iter().all(|block| block.state != BlockActivity::Allocated);
    let has_grown = saved.expandable && now.total >= saved.total;
    is_same && rest_is_unused && (has_grown || now.blocks.len() == fixed && now.total == saved.total)
}

impl World {
    fn new(expandable: bool, profile: &'static Profile) -> World {
        let settings = Settings { expandable_segments: expandable, ..Settings::default() };
        let mut core = Allocator::new(PlainDevice::new(Bytes::mib(400), 1 << 44), PyTorch::of(profile, settings), ());
        for pool in POOLS {
            core.create_pool(pool).expect("a new pool");
        }
        World { core, live: Vec::new(), saved: Vec::new() }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let core = &mut self.core;
        match *step {
            Step::Allocate { pool, size, stream } => {
                let pool = POOLS.get(pool);
                if let Some(&pool) = pool {
                    core.begin_pool(pool, PoolFilter::All).expect("not routed to");
                }
                self.live.extend(core.allocate(Bytes(size), StreamId(stream)));
                if let Some(&pool) = pool {
                    core.end_pool(pool).and_then(|()| core.release_pool(pool)).expect("routed to");
                }
            }
            Step::Free(place) if !self.live.is_empty() => {
                let place = place % self.live.len();
                prop_assert_eq!(core.free(self.live.swap_remove(place)), Ok(()));
            }
            Step::Record(place, stream) if !self.live.is_empty() => {
                core.record_stream(&self.live[place % self.live.len()], StreamId(stream));
            }
            Step::Complete => {
                core.device_mut().is_idle = true;
                core.process_events().expect("a device");
                core.device_mut().is_idle = false;
            }
            Step::Save(pool) => match core.checkpoint_pool(POOLS[pool]) {
                Ok(checkpoint) => self.saved.push((checkpoint, segments_of(core, POOLS[pool]))),
                Err(error) => prop_assert!(matches!(error, CheckpointError::EventsPending(_)), "{error}"),
            },
            Step::Restore(age) if age < self.saved.len() => self.restore(self.saved.len() - 1 - age)?,
            Step::Remake(pool) => {
                core.release_pool(POOLS[pool]).expect("in use");
                core.release_cached().expect("a device");
                // While any of its blocks is allocated it stays, without uses.
                match core.create_pool(POOLS[pool]) {
                    Ok(()) => {}
                    Err(_) => self.free_all()?,
                }
            }
            Step::EmptyCache => core.release_cached().expect("a device"),
            _ => {}
        }
        Ok(())
    }

    /// Gives everything back, so that pools without uses disappear, and creates those again.
    fn free_all(&mut self) -> Result<(), TestCaseError> {
        for allocation in self.live.drain(..) {
            prop_assert_eq!(self.core.free(allocation), Ok(()));
        }
        self.core.release_cached().expect("a device");
        for pool in POOLS {
            if self.core.pool_use_count(pool).is_err() {
                self.core.create_pool(pool).expect("a new pool");
            }
        }
        Ok(())
    }

    fn restore(&mut self, place: usize) -> Result<(), TestCaseError> {
        let core = &mut self.core;
        let (checkpoint, saved) = &self.saved[place];
        let pool = checkpoint.pool;
        let (segments, stats) = (core.segments(), core.stats().clone());
        let restored = match core.restore_pool(checkpoint) {
            Ok(restored) => restored,
            Err(_) => {
                prop_assert_eq!((core.segments(), core.stats()), (segments, &stats));
                return Ok(());
            }
        };
        let mut now: BTreeMap<_, _> = segments_of(core, pool).into_iter().map(|segment| (segment.address, segment)).collect();
        for saved in saved {
            let now = now.remove(&saved.address);
            prop_assert!(now.as_ref().is_some_and(|now| is_restored(saved, now)), "saved {saved:?}\nnow {now:?}");
        }
        let others = now.values().flat_map(|segment| &segment.blocks);
        prop_assert!(others.into_iter().all(|block| block.state != BlockActivity::Allocated), "{now:?}");
        prop_assert_eq!(core.stats().num_device_alloc, stats.num_device_alloc, "no memory is requested from the device");
        // Exactly the old allocations of the pool are void.
        let mut void = Vec::new();
        for allocation in std::mem::take(&mut self.live) {
            if core.segment_of(&allocation).is_some() {
                self.live.push(allocation);
            } else {
                void.push(allocation.address());
                prop_assert!(matches!(core.free(allocation), Err(FreeError::NotAllocated(_))));
            }
        }
        let mut freed = restored.freed;
        freed.sort_unstable();
        void.sort_unstable();
        prop_assert_eq!(freed, void);
        let addresses: Vec<_> = restored.allocations.iter().map(Allocation::address).collect();
        prop_assert!(core.pool_live_allocations_are(pool, &addresses).expect("a pool"));
        self.live.extend(restored.allocations);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_pool_is_as_it_was_saved(steps in steps(), expandable: bool, newer: bool) {
        let profile = if newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let mut world = World::new(expandable, profile);
        for step in &steps {
            world.step(step)?;
            prop_assert_eq!(world.core.check(), Ok(()), "after {:?}", step);
        }
    }
}
