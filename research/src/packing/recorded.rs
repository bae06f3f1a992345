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
    use proptest::collection::vec;
    use proptest::prelude::*;

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

    /// Returns the operations of a drawn program: what each does, how many entries follow it, and the request or the entry that it
    /// names.
    fn drawn(program: &[(u8, usize, usize, usize)]) -> Vec<(usize, Operation)> {
        let (mut operations, mut live, mut entry, mut requests) = (Vec::new(), Vec::new(), 0, 0);
        for &(kind, entries, choice, lag) in program {
            let operation = match kind {
                0..4 => {
                    let failed = kind == 0;
                    live.extend((!failed).then_some(requests));
                    requests += 1;
                    allocate(requests - 1, [1, 512, 513, 5000][choice % 4], failed)
                }
                4..8 if !live.is_empty() => {
                    let completion = match kind {
                        4 => Completion::AtOnce,
                        5 => Completion::Never,
                        _ => Completion::AtEntry((entry + lag) as u32),
                    };
                    free(live.remove(choice % live.len()), completion)
                }
                _ => Operation::EmptyCache,
            };
            operations.push((entry, operation));
            entry += entries;
        }
        operations
    }

    proptest! {
        /// Asks for each request, which operations could not use its memory.
        #[test]
        fn memory_is_in_use_from_its_request_to_the_operation_that_could_use_it_again(
            program in vec((0..9_u8, 0..3_usize, 0..8_usize, 0..7_usize), 0..16),
        ) {
            let operations = drawn(&program);
            let recorded = recorded(operations.clone());
            let freed = |id: usize| {
                operations.iter().enumerate().find_map(|(place, (_, operation))| match operation {
                    Operation::Free { id: freed, completion } if *freed == id => Some((place, *completion)),
                    _ => None,
                })
            };
            let is_free = |id: usize, at: usize| match freed(id) {
                Some((place, Completion::AtOnce)) => place <= at,
                Some((place, Completion::AtEntry(entry))) => place <= at && entry as usize <= operations[at].0,
                Some((_, Completion::Never)) | None => false,
            };
            let (mut expected, mut refused) = (Vec::new(), Refused::default());
            for (start, &(_, operation)) in operations.iter().enumerate() {
                let Operation::Allocate { id, bytes, failed, .. } = operation else { continue };
                let size = bytes.next_multiple_of(512);
                if failed {
                    let live = expected.iter().filter(|&&(id, _, _)| !is_free(id, start)).map(|&(_, _, size)| size);
                    let in_use_with_last = live.sum::<u64>() + size;
                    refused = Refused { requests: refused.requests + 1, bytes: refused.bytes + size, in_use_with_last };
                } else {
                    expected.push((id, start, size));
                }
            }
            let ends = |id: usize, start: usize| {
                let is_never = freed(id).is_none_or(|(_, completion)| completion == Completion::Never);
                let last = operations.len() + usize::from(is_never);
                (start + 1..operations.len()).find(|&at| is_free(id, at)).unwrap_or(last)
            };
            let lives = expected.iter().map(|&(id, start, size)| (start as u64, ends(id, start) as u64, size));
            let found = recorded.buffers.iter().map(|buffer| (buffer.start, buffer.end, buffer.size));
            prop_assert_eq!(found.collect::<Vec<_>>(), lives.collect::<Vec<_>>());
            prop_assert_eq!(recorded.refused, refused);
        }
    }
}
