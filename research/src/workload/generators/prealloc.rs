//! Preallocation: one large request before everything else, freed at once (A17).
//!
//! An allocator that caches keeps the memory, in one piece, for what follows.

use super::checks::within;
use super::error::{MAX_BYTES, MAX_EVENTS, WorkloadError};
use crate::workload::{Event, Workload};

/// The same workload after one request of `bytes` bytes that is freed at once.
///
/// # Errors
/// [`WorkloadError`] if the size is 0 or beyond [`MAX_BYTES`], or two more events would be more than [`MAX_EVENTS`].
pub fn preallocate(workload: &Workload, bytes: u64) -> Result<Workload, WorkloadError> {
    within("prealloc", bytes, 1, MAX_BYTES)?;
    if workload.events.len() + 2 > MAX_EVENTS {
        return Err(WorkloadError::TooManyEvents);
    }
    let moved = workload.events.iter().map(|&event| match event {
        Event::Allocate { buffer, bytes, stream } => Event::Allocate { buffer: buffer + 1, bytes, stream },
        Event::Free { buffer } => Event::Free { buffer: buffer + 1 },
        Event::Use { buffer, stream } => Event::Use { buffer: buffer + 1, stream },
        other => other,
    });
    let reservation = [Event::Allocate { buffer: 0, bytes, stream: 0 }, Event::Free { buffer: 0 }];
    Ok(Workload {
        name: format!("{}-prealloc", workload.name),
        says: format!("{}; after a request of {bytes} bytes that is freed at once", workload.says),
        events: reservation.into_iter().chain(moved).collect(),
        steps: workload.steps.iter().map(|step| step + 2).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::generators::transformer::Transformer;

    #[test]
    fn the_workload_after_it_is_the_same() {
        let model = Transformer { layers: 1, hidden: 8, heads: 1, sequence: 8, vocabulary: 10, ..Transformer::default() };
        let plain = model.workload(2).unwrap();
        let behind = preallocate(&plain, 1 << 30).unwrap();
        assert_eq!(behind.check(), Ok(()));
        assert_eq!(behind.load_bytes(1), 1 << 30);
        assert_eq!(behind.curve()[2..], plain.curve());
        assert_eq!(behind.steps, [plain.steps[0] + 2, plain.steps[1] + 2]);
        assert_eq!(behind.name, "transformer-prealloc");
        for bytes in [0, u64::MAX] {
            assert!(matches!(preallocate(&plain, bytes), Err(WorkloadError::Option { option: "prealloc", .. })));
        }
    }
}
