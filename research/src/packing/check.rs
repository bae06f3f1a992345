//! Checks a packing: no two buffers share a byte at any time. Shares no code with the packer, and uses the original times
//! rather than sections.

use std::collections::BTreeMap;

use super::instance::{Instance, Packing};

/// Why a packing is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The numbers of offsets and buffers differ.
    Count {
        /// The number of offsets.
        offsets: usize,
        /// The number of buffers.
        buffers: usize,
    },
    /// Two buffers share bytes while both are in use.
    Overlap {
        /// The buffer that begins later.
        later: usize,
        /// The earlier buffer whose bytes it shares.
        earlier: usize,
    },
    /// An offset is not a multiple of its buffer's alignment.
    Alignment {
        /// The buffer.
        buffer: usize,
    },
    /// A buffer ends beyond 64 bits.
    TooHigh {
        /// The buffer.
        buffer: usize,
    },
    /// The height is not the end of the highest buffer.
    Height {
        /// The packing's height.
        said: u64,
        /// The correct height.
        is: u64,
    },
}

/// Checks a packing: every offset is aligned, no two buffers overlap in time and memory, and the height is correct.
///
/// # Errors
/// The first [`Fault`] in chronological order.
pub fn check(instance: &Instance, packing: &Packing) -> Result<(), Fault> {
    let buffers = instance.buffers();
    if packing.offsets.len() != buffers.len() {
        return Err(Fault::Count { offsets: packing.offsets.len(), buffers: buffers.len() });
    }
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    let mut height = 0_u64;
    for (index, (buffer, &offset)) in buffers.iter().zip(&packing.offsets).enumerate() {
        if offset % buffer.alignment != 0 {
            return Err(Fault::Alignment { buffer: index });
        }
        let Some(top) = offset.checked_add(buffer.size) else { return Err(Fault::TooHigh { buffer: index }) };
        height = height.max(top);
        events.extend([(buffer.start, true, index), (buffer.end, false, index)]);
    }
    if height != packing.height {
        return Err(Fault::Height { said: packing.height, is: height });
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, begins, index) in events {
        let offset = packing.offsets[index];
        if !begins {
            live.remove(&offset);
            continue;
        }
        let end = offset + buffers[index].size;
        if let Some((&below, &earlier)) = live.range(..end).next_back()
            && below + buffers[earlier].size > offset
        {
            return Err(Fault::Overlap { later: index, earlier });
        }
        live.insert(offset, index);
    }
    Ok(())
}
