//! The problem and its solution: the buffers to pack, their sections of time and their load; the packer's budget; a packing
//! of the buffers; and the check of a packing.
//!
//! [`check`] determines whether two buffers ever share a byte at the same time. It shares no code with the packer, and uses
//! the original times rather than sections.

use std::collections::BTreeMap;
use std::fmt;

/// Memory that is in use from one time until another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// The first time at which the memory is in use, in any unit.
    pub start: u64,
    /// The first time at which it is no longer in use; later than `start`.
    pub end: u64,
    /// Its size in bytes, more than 0.
    pub size: u64,
    /// Its address must be a multiple of this number of bytes, which is more than 0.
    pub alignment: u64,
}

/// The reason why buffers cannot be packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstanceError {
    /// A buffer's lifetime is empty.
    EmptyLifetime {
        /// Its index in the list.
        buffer: usize,
    },
    /// A buffer has a size or an alignment of 0.
    Empty {
        /// Its index in the list.
        buffer: usize,
    },
    /// All sizes and alignments together exceed 2^62 bytes.
    TooLarge,
    /// There are more than 2^31 buffers.
    TooMany,
}

impl fmt::Display for InstanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstanceError::EmptyLifetime { buffer } => write!(f, "buffer {buffer} ends before it begins"),
            InstanceError::Empty { buffer } => write!(f, "buffer {buffer} has a size or an alignment of 0"),
            InstanceError::TooLarge => write!(f, "the buffers' sizes add up to more than 2^62 bytes"),
            InstanceError::TooMany => write!(f, "there are more than 2^31 buffers"),
        }
    }
}

impl std::error::Error for InstanceError {}

/// Buffers to pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Instance {
    buffers: Vec<Buffer>,
    /// The first and the last section (exclusive) of each buffer.
    pub(super) spans: Vec<(u32, u32)>,
    /// The bytes live in each section.
    pub(super) loads: Vec<u64>,
}

impl Instance {
    /// Creates an instance from buffers in any order.
    ///
    /// # Errors
    /// Returns [`InstanceError`], which names the first invalid buffer.
    pub fn new(buffers: Vec<Buffer>) -> Result<Instance, InstanceError> {
        if buffers.len() > 1 << 31 {
            return Err(InstanceError::TooMany);
        }
        let mut total = 0_u64;
        for (buffer, b) in buffers.iter().enumerate() {
            if b.size == 0 || b.alignment == 0 {
                return Err(InstanceError::Empty { buffer });
            }
            if b.start >= b.end {
                return Err(InstanceError::EmptyLifetime { buffer });
            }
            let sum = total.checked_add(b.size).and_then(|sum| sum.checked_add(b.alignment - 1));
            total = sum.filter(|&sum| sum <= 1 << 62).ok_or(InstanceError::TooLarge)?;
        }
        let spans = sections(&buffers);
        let loads = loads(&buffers, &spans);
        Ok(Instance { buffers, spans, loads })
    }

    /// Returns the buffers.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Returns the load: the most bytes live at once. No packing needs less.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// Returns, for each buffer, the most bytes live at once during its lifetime, including its own.
    pub(super) fn crowds(&self) -> Vec<u64> {
        let most = |&(start, end): &(u32, u32)| self.loads[start as usize..end as usize].iter().copied().max().unwrap_or(0);
        self.spans.iter().map(most).collect()
    }

    /// Returns the periods that are not connected by any buffer, each as the indices of its buffers and a separate instance.
    /// The packing of one part does not affect the others. Without buffers, there are no parts.
    pub(super) fn parts(&self) -> Vec<(Vec<usize>, Instance)> {
        let mut by_start: Vec<usize> = (0..self.buffers.len()).collect();
        by_start.sort_by_key(|&buffer| self.spans[buffer].0);
        let mut parts = Vec::new();
        let (mut part, mut end) = (Vec::new(), 0);
        for buffer in by_start {
            if self.spans[buffer].0 >= end && !part.is_empty() {
                parts.push(self.part(std::mem::take(&mut part)));
            }
            end = end.max(self.spans[buffer].1);
            part.push(buffer);
        }
        if !part.is_empty() {
            parts.push(self.part(part));
        }
        parts
    }

    /// Returns some of the buffers, in their original order.
    fn part(&self, mut places: Vec<usize>) -> (Vec<usize>, Instance) {
        places.sort_unstable();
        let buffers: Vec<Buffer> = places.iter().map(|&place| self.buffers[place]).collect();
        let spans = sections(&buffers);
        let loads = loads(&buffers, &spans);
        (places, Instance { buffers, spans, loads })
    }

    /// Returns the same instance with a single buffer replacing all that have the same sections, and each buffer's group
    /// index. Packing this instance puts the buffers of a group side by side. Only buffers that need no gap between them are
    /// merged: their sizes are multiples of the same alignment.
    pub(super) fn merged(&self) -> (Vec<u32>, Instance) {
        let kind = |b: usize| {
            let Buffer { size, alignment, .. } = self.buffers[b];
            (self.spans[b], alignment, if size % alignment == 0 { 0 } else { b + 1 })
        };
        let mut order: Vec<usize> = (0..self.buffers.len()).collect();
        order.sort_by_key(|&b| kind(b));
        let mut buffers: Vec<Buffer> = Vec::new();
        let mut groups = vec![0; self.buffers.len()];
        for (at, &b) in order.iter().enumerate() {
            match buffers.last_mut().filter(|_| kind(order[at.saturating_sub(1)]) == kind(b)) {
                Some(group) => group.size += self.buffers[b].size,
                None => {
                    let (start, end) = self.spans[b];
                    buffers.push(Buffer { start: start.into(), end: end.into(), ..self.buffers[b] });
                }
            }
            groups[b] = buffers.len() as u32 - 1;
        }
        let spans = buffers.iter().map(|buffer| (buffer.start as u32, buffer.end as u32)).collect();
        (groups, Instance { buffers, spans, loads: self.loads.clone() })
    }

    /// Returns the number of pairs of buffers that are live at the same time: the cost of placing all buffers.
    pub(super) fn pairs(&self) -> u64 {
        let mut starts: Vec<u32> = self.spans.iter().map(|span| span.0).collect();
        let mut ends: Vec<u32> = self.spans.iter().map(|span| span.1).collect();
        starts.sort_unstable();
        ends.sort_unstable();
        // A buffer overlaps all buffers that begin no later and have not ended when it begins. Each pair counts once, for the later
        // buffer.
        let alive = |(place, start): (usize, &u32)| place as u64 - ends.partition_point(|end| end <= start) as u64;
        starts.iter().enumerate().map(alive).sum()
    }

    pub(super) fn overlap(&self, a: usize, b: usize) -> bool {
        let ((a_start, a_end), (b_start, b_end)) = (self.spans[a], self.spans[b]);
        a_start < b_end && b_start < a_end
    }
}

/// Returns each buffer's lifetime in sections: stretches of time in which buffers first begin and then end. Two buffers are
/// live at the same time if and only if they share a section.
fn sections(buffers: &[Buffer]) -> Vec<(u32, u32)> {
    // At equal times, ends come before beginnings, because lifetimes are half-open.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
    for (index, buffer) in buffers.iter().enumerate() {
        events.push((buffer.start, true, index));
        events.push((buffer.end, false, index));
    }
    events.sort_unstable();
    let mut spans = vec![(0, 0); buffers.len()];
    let (mut section, mut has_ended) = (0_u32, false);
    for (_, begins, index) in events {
        if begins {
            section += u32::from(has_ended);
            has_ended = false;
            spans[index].0 = section;
        } else {
            has_ended = true;
            spans[index].1 = section + 1;
        }
    }
    spans
}

fn loads(buffers: &[Buffer], spans: &[(u32, u32)]) -> Vec<u64> {
    let count = spans.iter().map(|&(_, end)| end as usize).max().unwrap_or(0);
    let mut changes = vec![0_i64; count + 1];
    for (buffer, &(start, end)) in buffers.iter().zip(spans) {
        changes[start as usize] += buffer.size.cast_signed();
        changes[end as usize] -= buffer.size.cast_signed();
    }
    let mut live = 0_i64;
    changes[..count]
        .iter()
        .map(|change| {
            live += change;
            live.cast_unsigned()
        })
        .collect()
}

/// An address for each buffer, starting at 0, and the total memory needed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// The address of each buffer, in the instance's order.
    pub offsets: Vec<u64>,
    /// The end of the highest buffer, in bytes.
    pub height: u64,
}

impl Packing {
    /// Creates a packing with all buffers at address 0, as a starting point.
    pub(super) fn of(instance: &Instance) -> Packing {
        Packing { offsets: vec![0; instance.buffers().len()], height: 0 }
    }
}

/// The budget of the packer, and the seed of its random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// The number of steps: roughly, the number of buffers visited. Ten million or more take a second.
    pub steps: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Enough for all instances that were measured; takes less than a minute.
pub const DEFAULT_STEPS: u64 = 1_000_000_000;
/// Steps of a packing with which policies are compared: a few seconds. All comparisons take as many, so that they find the same
/// packing.
pub const COMPARED_STEPS: u64 = 100_000_000;

impl Default for Effort {
    fn default() -> Effort {
        Effort { steps: DEFAULT_STEPS, seed: 1 }
    }
}

/// The best packing found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The packing.
    pub packing: Packing,
    /// A proven lower bound for all packings, in bytes: the load, or more if a search has shown this.
    pub bound: u64,
    /// The number of steps taken. It may exceed the budget by one order, which takes about four steps for every two buffers
    /// live at the same time. If more than 500 buffers are packed and the budget is not enough for one order, each buffer is
    /// placed as it begins instead and counts as one step.
    pub steps: u64,
}

/// The reason why a packing is invalid.
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
/// Returns the first [`Fault`] in chronological order.
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
