//! The buffers of a recording: its requests in the smallest possible blocks, each kept until its memory could be reused.

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_replay::{Completion, Operation, Requests};
use rustc_hash::FxHashMap;

use super::instance::Buffer;

/// The requests of the recorded program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recorded {
    /// The requests that were served, in order; times are numbers of operations.
    ///
    /// Sizes are rounded up to 512 bytes under any settings: no setting makes a block smaller (spec 1.1, 1.2), and
    /// `roundup_power2_divisions` would only make it larger. A buffer is live from its request until its memory became free
    /// in the recording, which includes the time in which other streams were still using it. Streams and private pools do not
    /// matter here: any memory may serve any buffer.
    pub buffers: Vec<Buffer>,
    /// The requests that failed, which are not among the buffers.
    pub refused: Refused,
}

/// A recording's requests that failed for lack of memory. Sizes are rounded like the sizes of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// The number of requests.
    pub requests: u64,
    /// The sum of their sizes, in bytes.
    pub bytes: u64,
    /// The size of the last of these requests plus all buffers live at that moment, in bytes; 0 if there are none.
    pub in_use_with_last: u64,
}

impl Recorded {
    /// Extracts buffers from a recording's requests.
    #[must_use]
    pub fn of(requests: &Requests) -> Recorded {
        let operations = &requests.operations;
        let end_of_all = operations.len() as u64 + 1;
        let mut recorded = Recorded::default();
        let mut place_of: FxHashMap<usize, usize> = FxHashMap::default();
        let mut last_refused = None;
        for (now, &(_, operation)) in operations.iter().enumerate() {
            match operation {
                Operation::Allocate { id, bytes, failed, .. } => {
                    let buffer = Buffer { start: now as u64, end: end_of_all, size: smallest_block(bytes), alignment: 1 };
                    if failed {
                        recorded.refused.requests += 1;
                        recorded.refused.bytes = recorded.refused.bytes.saturating_add(buffer.size);
                        last_refused = Some(buffer);
                    } else {
                        place_of.insert(id, recorded.buffers.len());
                        recorded.buffers.push(buffer);
                    }
                }
                Operation::Free { id, completion } => {
                    let end = match completion {
                        Completion::AtOnce => now,
                        Completion::AtEntry(entry) => operations.partition_point(|&(at, _)| at < entry as usize).max(now),
                        Completion::Never => continue,
                    };
                    if let Some(&place) = place_of.get(&id) {
                        let buffer = &mut recorded.buffers[place];
                        buffer.end = (end as u64).max(buffer.start + 1);
                    }
                }
                _ => {}
            }
        }
        if let Some(last) = last_refused {
            let live = recorded.buffers.iter().filter(|buffer| buffer.start < last.start && last.start < buffer.end);
            recorded.refused.in_use_with_last = live.fold(last.size, |sum, buffer| sum.saturating_add(buffer.size));
        }
        recorded
    }
}

/// Returns the size of a block if no setting makes it larger, in bytes; `u64::MAX`, which no instance accepts, if it exceeds
/// 64 bits.
fn smallest_block(bytes: u64) -> u64 {
    PyTorch::new(Settings::default()).round(Bytes(bytes)).map_or(u64::MAX, |Bytes(size)| size)
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;

    use super::*;
    use crate::packing::Instance;

    fn allocate(id: usize, bytes: u64, failed: bool) -> Operation {
        Operation::Allocate { id, bytes, stream: id as u64, pool: PoolId::DEFAULT, failed }
    }

    fn free(id: usize, completion: Completion) -> Operation {
        Operation::Free { id, completion }
    }

    fn recorded(operations: Vec<(usize, Operation)>) -> Recorded {
        Recorded::of(&Requests { operations, ..Requests::default() })
    }

    #[test]
    fn a_buffer_lives_until_its_memory_could_be_used_again() {
        let recorded = recorded(vec![
            (0, allocate(0, 700, false)),
            (1, allocate(1, 1, false)),
            (2, allocate(2, 1 << 30, true)),
            (3, free(0, Completion::AtOnce)),
            (5, free(1, Completion::AtEntry(7))),
            (6, allocate(3, 512, false)),
            (9, allocate(4, 513, false)),
            (10, free(3, Completion::Never)),
        ]);
        let told: Vec<_> = recorded.buffers.iter().map(|buffer| (buffer.start, buffer.end, buffer.size)).collect();
        // The block freed at entry 7 was free before entry 9, which is the seventh operation.
        assert_eq!(told, [(0, 3, 1024), (1, 6, 512), (5, 9, 512), (6, 9, 1024)]);
    }

    #[test]
    fn what_was_out_of_memory_is_counted_with_what_was_in_use_then() {
        let recorded = recorded(vec![
            (0, allocate(0, 4096, false)),
            (1, allocate(1, 2048, false)),
            (2, allocate(2, 1 << 20, true)),
            (3, free(0, Completion::AtOnce)),
            (4, allocate(3, 5000, true)),
            (5, free(1, Completion::AtOnce)),
        ]);
        assert_eq!(recorded.refused, Refused { requests: 2, bytes: (1 << 20) + 5120, in_use_with_last: 2048 + 5120 });
        assert_eq!(recorded.buffers.len(), 2);
    }

    #[test]
    fn a_size_beyond_64_bits_is_not_passed_over() {
        let recorded = recorded(vec![(0, allocate(0, u64::MAX, false)), (1, allocate(1, u64::MAX, true))]);
        assert_eq!(recorded.refused, Refused { requests: 1, bytes: u64::MAX, in_use_with_last: u64::MAX });
        assert!(Instance::new(recorded.buffers).is_err());
    }
}
