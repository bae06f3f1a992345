//! The buffers of a program with their lifetimes: when memory is in use, in numbers of events.

use rustc_hash::FxHashMap;

use crate::packing::Buffer;
use crate::workload::{Event, Workload};

/// The buffers of a program in the order of their allocation, each size rounded up to a multiple of `unit` bytes (at least 1).
///
/// Times are numbers of events. A buffer lives from its allocation until the event that gives it back, or to the end. Where another
/// stream still uses it then, its memory is free only later; the lifetime here is the shortest that there can be, so that bounds
/// hold whatever the work takes. What gives back a buffer that does not exist is passed over.
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
