//! Contents of physical memory, byte for byte: what fills and copies wrote.
//!
//! They belong to the physical bytes: visible through every address where the memory is mapped, moving with
//! it to its next address, and lost when it is returned. They are stored as stretches of one repeated 4-byte
//! pattern, so a fill of a gigabyte is one entry.

use super::page::ByteRange;
use crate::range_maps::Pieces;

/// The value of a byte that was not written since its memory was taken, or that a kernel wrote.
pub const UNWRITTEN: u8 = 0xdb;

/// Four bytes that repeat. The first is at multiples of 4: of the physical byte's number in [`Contents`], of
/// the offset in a [`Stretch`].
pub(crate) type Pattern = [u8; 4];

/// A part of a sequence of bytes in which one pattern repeats. Offsets count from the start of the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `None` for bytes that are not written.
    pub(crate) pattern: Option<Pattern>,
}

/// The contents of all physical bytes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Contents {
    patterns: Pieces<Pattern>,
}

impl Contents {
    /// Whether no byte is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Drops the contents of physical bytes.
    pub(crate) fn forget(&mut self, start: u64, bytes: u64) {
        if !self.patterns.is_empty() {
            self.patterns.update(start, start.saturating_add(bytes), |_| None);
        }
    }

    /// The contents of these ranges, as one sequence of bytes.
    pub(crate) fn get(&self, ranges: &[ByteRange]) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        let mut offset = 0;
        for range in ranges {
            let turn = range.start.wrapping_sub(offset);
            let mut at = range.start;
            for (start, end, &pattern) in self.patterns.overlapping(range.start, range.end()) {
                push(&mut stretches, start - at, None);
                push(&mut stretches, end - start, Some(turned(pattern, turn)));
                at = end;
            }
            push(&mut stretches, range.end() - at, None);
            offset += range.bytes;
        }
        stretches
    }

    /// Writes stretches into these ranges, which together are as long as the stretches.
    pub(crate) fn put(&mut self, ranges: &[ByteRange], stretches: &[Stretch]) {
        let mut offset = 0;
        for range in ranges {
            let turn = offset_turn(offset, range.start);
            let range_end = offset + range.bytes;
            let first = stretches.partition_point(|stretch| stretch.end <= offset);
            for stretch in stretches.iter().skip(first).take_while(|stretch| stretch.start < range_end) {
                let (start, end) = (stretch.start.max(offset), stretch.end.min(range_end));
                let pattern = stretch.pattern.map(|pattern| turned(pattern, turn));
                self.patterns.update(range.start + (start - offset), range.start + (end - offset), |_| pattern);
            }
            offset = range_end;
        }
    }
}

impl Stretch {
    /// Writes the stretch's bytes into its place in a whole sequence.
    pub(crate) fn write_to(&self, into: &mut [u8]) {
        // The sequence is in host memory, so offsets fit.
        let part = into.get_mut(self.start as usize..self.end as usize).unwrap_or_default();
        let pattern = turned(self.pattern.unwrap_or([UNWRITTEN; 4]), self.start);
        let mut done = part.len().min(pattern.len());
        part[..done].copy_from_slice(&pattern[..done]);
        // What is done so far is whole patterns, so it can be copied on; only the last copy may cut one.
        while done < part.len() {
            let more = done.min(part.len() - done);
            part.copy_within(..more, done);
            done += more;
        }
    }
}

fn push(stretches: &mut Vec<Stretch>, bytes: u64, pattern: Option<Pattern>) {
    if bytes > 0 {
        let start = stretches.last().map_or(0, |last| last.end);
        stretches.push(Stretch { start, end: start + bytes, pattern });
    }
}

/// The pattern rotated so that its byte at `by` comes first.
fn turned(mut pattern: Pattern, by: u64) -> Pattern {
    pattern.rotate_left((by % 4) as usize);
    pattern
}

/// By how much a pattern turns when the byte at `offset` of a sequence is stored at a physical byte. Exact
/// modulo 4, even if the difference wraps.
fn offset_turn(offset: u64, physical: u64) -> u64 {
    offset.wrapping_sub(physical)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> ByteRange {
        ByteRange { start, bytes, address: 0 }
    }

    fn bytes(contents: &Contents, ranges: &[ByteRange]) -> Vec<u8> {
        let mut into = vec![0; ranges.iter().map(|range| range.bytes as usize).sum()];
        contents.get(ranges).iter().for_each(|stretch| stretch.write_to(&mut into));
        into
    }

    #[test]
    fn a_copy_to_an_odd_place_keeps_every_byte() {
        let mut contents = Contents::default();
        let word = |start, end, pattern| Stretch { start, end, pattern: Some(pattern) };
        contents.put(&[range(8, 8)], &[word(0, 8, [1, 2, 3, 4])]);
        contents.put(&[range(101, 3), range(202, 9)], &contents.get(&[range(6, 12)]));
        let copied = [UNWRITTEN, UNWRITTEN, 1, 2, 3, 4, 1, 2, 3, 4, UNWRITTEN, UNWRITTEN];
        assert_eq!(bytes(&contents, &[range(6, 12)]), copied);
        assert_eq!(bytes(&contents, &[range(101, 3), range(202, 9)]), copied);
        assert_eq!(bytes(&contents, &[range(203, 5)]), copied[4..9]);
        contents.forget(203, 1);
        assert_eq!(bytes(&contents, &[range(202, 3)]), [2, UNWRITTEN, 4]);
    }

    #[test]
    fn random_copies_agree_with_an_array() {
        let (mut contents, mut naive, mut state) = (Contents::default(), [UNWRITTEN; 64], 7_u64);
        for step in 0..2000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            let (from, to, length) = (draw % 48, draw / 48 % 48, draw / 5000 % 16);
            if step % 3 == 0 {
                let (to, length) = (to / 4 * 4, length / 4 * 4);
                let word = (draw as u32).to_le_bytes();
                contents.put(&[range(to, length)], &[Stretch { start: 0, end: length, pattern: Some(word) }]);
                for (offset, byte) in (0..length).zip(word.into_iter().cycle()) {
                    naive[(to + offset) as usize] = byte;
                }
            } else {
                let cut = length / 2;
                let source = contents.get(&[range(from, cut), range(from + cut, length - cut)]);
                contents.put(&[range(to, length / 3), range(to + length / 3, length - length / 3)], &source);
                naive.copy_within(from as usize..(from + length) as usize, to as usize);
            }
            assert_eq!(bytes(&contents, &[range(0, 64)]), naive);
        }
    }

    #[test]
    fn a_large_fill_is_one_piece() {
        let mut contents = Contents::default();
        let whole = Stretch { start: 0, end: 1 << 40, pattern: Some([1, 1, 1, 2]) };
        contents.put(&[range(0, 1 << 39), range(1 << 39, 1 << 39)], &[whole]);
        assert_eq!(contents.patterns.count(), 1);
        assert_eq!(bytes(&contents, &[range((1 << 39) - 1, 2)]), [2, 1]);
    }
}
