//! The sizes that a program requests, which tell programs apart where nothing else does: few recordings have stacks.

use std::hash::{Hash, Hasher};

use parkade_recording::{Action, DeviceRecording};
use rustc_hash::FxHasher;

/// How many counts are kept. Sizes with the same hash share one.
const COUNTS: usize = 1024;

/// How often a program requests which sizes; a sketch of fixed size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestSizes {
    counts: Vec<u32>,
    total: u64,
}

impl RequestSizes {
    /// Those of a device's trace.
    #[must_use]
    pub fn of(device: &DeviceRecording) -> RequestSizes {
        let mut sizes = RequestSizes { counts: vec![0; COUNTS], total: 0 };
        let requests = device.trace.iter().filter(|entry| entry.action == Action::Alloc);
        requests.for_each(|entry| sizes.add(entry.size));
        sizes
    }

    fn add(&mut self, size: u64) {
        let mut hasher = FxHasher::default();
        size.hash(&mut hasher);
        let count = &mut self.counts[hasher.finish() as usize % COUNTS];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// The share that two programs have in common, from 0 to 1: of each size the smaller of its shares in the requests of either. 1 if one of
    /// them has no requests, as nothing tells them apart then.
    #[must_use]
    pub fn in_common(&self, other: &RequestSizes) -> f64 {
        if self.total == 0 || other.total == 0 {
            return 1.0;
        }
        let share = |count: u32, total: u64| f64::from(count) / total as f64;
        let both = self.counts.iter().zip(&other.counts);
        both.map(|(&own, &others)| share(own, self.total).min(share(others, other.total))).sum()
    }
}
