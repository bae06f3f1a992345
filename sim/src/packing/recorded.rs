//! The buffers of a recorded program: its requests as the allocator rounded them, for as long as they could not be used again.

use parkade::policy::{Policy, PyTorch};
use parkade::units::Bytes;
use rustc_hash::FxHashMap;

use super::Buffer;
use crate::replay::{Completion, Operation, Requests};

/// The buffers of a recording's requests, in the order of asking; their times are numbers of operations.
///
/// A buffer lives from its request until its memory became free in the recording, so the time that other streams still used it counts.
/// Streams and private pools are no obstacle here: any memory may be used for any buffer. Requests that were out of memory got none
/// and are left out; so are those that the policy cannot round.
#[must_use]
pub fn recorded_buffers(requests: &Requests, policy: &PyTorch) -> Vec<Buffer> {
    let operations = &requests.operations;
    let end_of_all = operations.len() as u64 + 1;
    let mut buffers = Vec::new();
    let mut place_of: FxHashMap<usize, usize> = FxHashMap::default();
    for (now, &(_, operation)) in operations.iter().enumerate() {
        match operation {
            Operation::Allocate { id, bytes, failed: false, .. } => {
                if let Some(Bytes(size)) = policy.round(Bytes(bytes)) {
                    place_of.insert(id, buffers.len());
                    buffers.push(Buffer { start: now as u64, end: end_of_all, size, alignment: 1 });
                }
            }
            Operation::Free { id, completion } => {
                let end = match completion {
                    Completion::AtOnce => now,
                    Completion::AtEntry(entry) => operations.partition_point(|&(at, _)| at < entry as usize).max(now),
                    Completion::Never => continue,
                };
                if let Some(&buffer) = place_of.get(&id) {
                    let buffer: &mut Buffer = &mut buffers[buffer];
                    buffer.end = (end as u64).max(buffer.start + 1);
                }
            }
            _ => {}
        }
    }
    buffers
}

#[cfg(test)]
mod tests {
    use parkade::settings::Settings;
    use parkade::units::PoolId;

    use super::*;

    fn allocate(id: usize, bytes: u64, failed: bool) -> Operation {
        Operation::Allocate { id, bytes, stream: id as u64, pool: PoolId::DEFAULT, failed }
    }

    #[test]
    fn a_buffer_lives_until_its_memory_could_be_used_again() {
        let free = |id, completion| Operation::Free { id, completion };
        let operations = vec![
            (0, allocate(0, 700, false)),
            (1, allocate(1, 1, false)),
            (2, allocate(2, 1 << 30, true)),
            (3, free(0, Completion::AtOnce)),
            (5, free(1, Completion::AtEntry(7))),
            (6, allocate(3, 512, false)),
            (9, allocate(4, 513, false)),
            (10, free(3, Completion::Never)),
        ];
        let buffers = recorded_buffers(&Requests { operations, ..Requests::default() }, &PyTorch::new(Settings::default()));
        let told: Vec<_> = buffers.iter().map(|buffer| (buffer.start, buffer.end, buffer.size)).collect();
        // That at entry 7 became free before what came at entry 9, the seventh operation.
        assert_eq!(told, [(0, 3, 1024), (1, 6, 512), (5, 9, 512), (6, 9, 1024)]);
    }
}
