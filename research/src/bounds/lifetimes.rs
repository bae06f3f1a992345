//! The buffers of a workload with their lifetimes, in numbers of events.

use rustc_hash::FxHashMap;

use crate::packing::Buffer;
use crate::workload::{Event, Workload};

/// The buffers of a workload in the order of their allocation, each size rounded up to a multiple of `unit` bytes.
///
/// Times are numbers of events. A buffer is live from its allocation until the event that frees it, or to the end.
/// If another stream still uses it then, its memory becomes free later; the lifetime here is the shortest
/// possible, so that bounds hold however long the work takes. An event that frees a buffer that does not exist is
/// skipped.
///
/// # Panics
/// If `unit` is 0.
#[must_use]
pub fn buffers(workload: &Workload, unit: u64) -> Vec<Buffer> {
    let end_of_all = workload.events.len() as u64;
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut place_of: FxHashMap<u32, usize> = FxHashMap::default();
    for (now, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { buffer, bytes, .. } => {
                place_of.insert(buffer, buffers.len());
                let size = bytes.div_ceil(unit).saturating_mul(unit);
                buffers.push(Buffer { start: now as u64, end: end_of_all, size, alignment: 1 });
            }
            Event::Free { buffer } => {
                if let Some(place) = place_of.remove(&buffer) {
                    buffers[place].end = now as u64;
                }
            }
            _ => {}
        }
    }
    buffers
}
