//! The contents of physical memory, as a list of all writes. To find a byte's value, the list is searched backwards.

use parkade_sim::UNWRITTEN;

use super::gaps::Range;

/// Something that changed bytes.
#[derive(Clone, Debug)]
enum Entry {
    /// A word was written to these bytes, again and again from the first one.
    Word(Vec<Range>, [u8; 4]),
    /// The bytes were lost, or written by a kernel.
    Unknown(Vec<Range>),
    /// The bytes of the first ranges, as they were before the entry with this index, were written to the second ones.
    Copy(usize, Vec<Range>, Vec<Range>),
}

/// All that was written to the physical bytes of a device.
#[derive(Clone, Default, Debug)]
pub(super) struct Journal(Vec<Entry>);

impl Journal {
    pub(super) fn fill(&mut self, ranges: Vec<Range>, word: u32) {
        self.0.push(Entry::Word(ranges, word.to_le_bytes()));
    }

    pub(super) fn lose(&mut self, ranges: Vec<Range>) {
        self.0.push(Entry::Unknown(ranges));
    }

    /// Returns the index of the next entry, with which [`Journal::copy`] can find the present contents later.
    pub(super) fn now(&self) -> usize {
        self.0.len()
    }

    pub(super) fn copy(&mut self, since: usize, from: Vec<Range>, to: Vec<Range>) {
        self.0.push(Entry::Copy(since, from, to));
    }

    /// Returns a physical byte's value.
    pub(super) fn byte(&self, byte: u64) -> u8 {
        self.before(self.0.len(), byte)
    }

    /// Returns the borders of everything that was written, as physical bytes.
    pub(super) fn borders(&self) -> Vec<u64> {
        let ranges = self.0.iter().flat_map(|entry| match entry {
            Entry::Word(ranges, _) | Entry::Unknown(ranges) | Entry::Copy(_, _, ranges) => ranges,
        });
        ranges.flat_map(|&(start, end)| [start, end]).collect()
    }

    /// Returns a byte's value before the entry with this index was written.
    fn before(&self, index: usize, byte: u64) -> u8 {
        for entry in self.0[..index].iter().rev() {
            match entry {
                Entry::Word(ranges, word) => {
                    if let Some(offset) = last_offset(ranges, byte) {
                        return word[(offset % 4) as usize];
                    }
                }
                Entry::Unknown(ranges) => {
                    if last_offset(ranges, byte).is_some() {
                        return UNWRITTEN;
                    }
                }
                Entry::Copy(since, from, to) => {
                    if let Some(source) = last_offset(to, byte).and_then(|offset| at(from, offset)) {
                        return self.before(*since, source);
                    }
                }
            }
        }
        UNWRITTEN
    }
}

/// Returns the offset of a byte in ranges that are one sequence. If it occurs several times, the last one counts.
fn last_offset(ranges: &[Range], byte: u64) -> Option<u64> {
    let (mut offset, mut found) = (0, None);
    for &(start, end) in ranges {
        if (start..end).contains(&byte) {
            found = Some(offset + (byte - start));
        }
        offset += end - start;
    }
    found
}

/// Returns the byte at an offset in ranges that are one sequence.
fn at(ranges: &[Range], mut offset: u64) -> Option<u64> {
    for &(start, end) in ranges {
        if offset < end - start {
            return Some(start + offset);
        }
        offset -= end - start;
    }
    None
}
