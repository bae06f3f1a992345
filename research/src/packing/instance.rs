//! What is to be packed, with its times made small, and the load: a bound that no packing undercuts.

use std::fmt;

/// Memory that is in use from one time on until another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// The first time at which it is in use, in any unit.
    pub start: u64,
    /// The first time at which it is not any more; after `start`.
    pub end: u64,
    /// Bytes, more than 0.
    pub size: u64,
    /// Its address is a multiple of this, in bytes, more than 0.
    pub alignment: u64,
}

/// Why buffers are no instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstanceError {
    /// A buffer's lifetime is empty.
    EmptyLifetime {
        /// Its place in the list.
        buffer: usize,
    },
    /// A buffer has no bytes, or an alignment of 0.
    Empty {
        /// Its place in the list.
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
    /// First and last section (exclusive) of each buffer.
    pub(super) spans: Vec<(u32, u32)>,
    /// The bytes that live in each section.
    pub(super) loads: Vec<u64>,
}

impl Instance {
    /// Takes buffers, in any order.
    ///
    /// # Errors
    /// [`InstanceError`], naming the first buffer that cannot be one.
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

    /// The buffers.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The most bytes that live at once: no packing needs less.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// For each buffer the most bytes that live at once while it does, itself included.
    pub(super) fn crowds(&self) -> Vec<u64> {
        let most = |&(start, end): &(u32, u32)| self.loads[start as usize..end as usize].iter().copied().max().unwrap_or(0);
        self.spans.iter().map(most).collect()
    }

    /// The parts of time across which no buffer lives, each as the places of its buffers and an instance of its own: the packing
    /// of one is nothing to the others. Without buffers there is none.
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

    /// Some of the buffers, in their order.
    fn part(&self, mut places: Vec<usize>) -> (Vec<usize>, Instance) {
        places.sort_unstable();
        let buffers: Vec<Buffer> = places.iter().map(|&place| self.buffers[place]).collect();
        let spans = sections(&buffers);
        let loads = loads(&buffers, &spans);
        (places, Instance { buffers, spans, loads })
    }

    /// The same with one buffer for all that live from the same section to the same one, and for each buffer its place in that.
    /// Who packs it puts them side by side, where they are in nobody's way. Only what needs no gap is put together: sizes that
    /// are multiples of an alignment that is the same.
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

    /// How many pairs of buffers live at the same time, which is what placing all of them costs.
    pub(super) fn pairs(&self) -> u64 {
        let mut starts: Vec<u32> = self.spans.iter().map(|span| span.0).collect();
        let mut ends: Vec<u32> = self.spans.iter().map(|span| span.1).collect();
        starts.sort_unstable();
        ends.sort_unstable();
        // Of those that begin no later, all live with a buffer that have not ended when it begins; each pair counts once, for the later.
        let alive = |(place, start): (usize, &u32)| place as u64 - ends.partition_point(|end| end <= start) as u64;
        starts.iter().enumerate().map(alive).sum()
    }

    pub(super) fn overlap(&self, a: usize, b: usize) -> bool {
        let ((a_start, a_end), (b_start, b_end)) = (self.spans[a], self.spans[b]);
        a_start < b_end && b_start < a_end
    }
}

/// Each buffer's lifetime in sections: stretches of time in which buffers begin, and then buffers end. Two buffers live at the
/// same time exactly if they share a section.
fn sections(buffers: &[Buffer]) -> Vec<(u32, u32)> {
    // At one time ends come before beginnings: lifetimes are half open.
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

/// An address for each buffer, from 0 on, and the memory that they need together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// The address of each buffer, in the order of the instance.
    pub offsets: Vec<u64>,
    /// The end of the highest buffer, in bytes.
    pub height: u64,
}

impl Packing {
    /// Everything at address 0, to begin with.
    pub(super) fn of(instance: &Instance) -> Packing {
        Packing { offsets: vec![0; instance.buffers().len()], height: 0 }
    }
}
