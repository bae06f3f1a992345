//! Packs a log into few bytes: one column for each field, and each number as a variable-length integer, usually the
//! difference from the previous number.
//!
//! A million entries take a few megabytes, and gzip compresses columns of this kind well. Addresses and sizes are counted in
//! `unit` bytes. The times of evenly spaced entries, from which a reader interpolates the others, are packed in the same way
//! ([`TimeSamples`]).
//!
//! Numbers are little-endian base 128; the high bit of a byte means that more bytes follow. Signed differences are
//! folded (zigzag) so that 0, -1, 1, -2 become 0, 1, 2, 3. A moment that may be [`NEVER`] is written as 0 if it is; if
//! not, it is written as one more than the difference from an earlier moment.

use std::collections::BTreeMap;

use parkade_recording::{DeviceRecording, StackId};
use thiserror::Error;

use super::log::{BlockLife, HeapLog, NEVER, SegmentLife};

/// One field, for all blocks or segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The field's name.
    pub name: String,
    /// Its numbers, packed.
    pub bytes: Vec<u8>,
}

/// A packed log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// The address that all others are relative to.
    pub base: u64,
    /// The unit of addresses and sizes, in bytes.
    pub unit: u64,
    /// The number of blocks.
    pub blocks: usize,
    /// The number of segments.
    pub segments: usize,
    /// Stream handles; segments refer to them by index.
    pub streams: Vec<u64>,
    /// Pools; segments refer to them by index.
    pub pools: Vec<(u64, u64)>,
    /// Stacks; blocks refer to them by index plus one, and 0 means no stack.
    pub stacks: Vec<StackId>,
    /// One column for each field.
    pub columns: Vec<Column>,
}

const BLOCK_FIELDS: [&str; 7] =
    ["block_born", "block_address", "block_size", "block_requested", "block_freed", "block_gone", "block_stack"];
const SEGMENT_FIELDS: [&str; 7] =
    ["segment_born", "segment_address", "segment_size", "segment_stream", "segment_pool", "segment_expandable", "segment_gone"];
/// PyTorch's block addresses and sizes are multiples of this (spec 1.1).
const UNIT: u64 = 512;

impl HeapLog {
    /// Returns the part of the log that exists at any of these moments, which must be in order, and the indices of its blocks
    /// in this log.
    #[must_use]
    pub fn only(&self, moments: &[u32]) -> (HeapLog, Vec<usize>) {
        let is_seen = |born: u32, gone: u32| {
            let next = moments.partition_point(|&moment| moment < born);
            moments.get(next).is_some_and(|&moment| moment < gone)
        };
        let seen = self.blocks.iter().enumerate().filter(|(_, block)| is_seen(block.born, block.gone));
        let (places, blocks) = seen.map(|(place, &block)| (place, block)).unzip();
        let log = HeapLog {
            blocks,
            segments: self.segments.iter().filter(|segment| is_seen(segment.born, segment.gone)).copied().collect(),
        };
        (log, places)
    }

    /// Packs the log.
    #[must_use]
    pub fn pack(&self) -> Packed {
        let ranges = || {
            let blocks = self.blocks.iter().map(|block| (block.address, block.size));
            blocks.chain(self.segments.iter().map(|segment| (segment.address, segment.size)))
        };
        let base = ranges().map(|(address, _)| address).min().unwrap_or(0);
        let is_even = |(address, size): (u64, u64)| (address - base).is_multiple_of(UNIT) && size.is_multiple_of(UNIT);
        let unit = if ranges().all(is_even) { UNIT } else { 1 };
        let mut packed = Packed { base, unit, blocks: self.blocks.len(), segments: self.segments.len(), ..Packed::default() };
        let mut fields = BLOCK_FIELDS.map(|_| Vec::new());
        let (mut last, mut stacks) = ((0, 0), Numbers::default());
        for block in &self.blocks {
            let address = (block.address - base) / unit;
            put(&mut fields[0], u64::from(block.born - last.0));
            put_signed(&mut fields[1], address.wrapping_sub(last.1));
            put(&mut fields[2], block.size / unit);
            put_signed(&mut fields[3], block.size.wrapping_sub(block.requested));
            put_moment(&mut fields[4], block.freed, block.born);
            put_moment(&mut fields[5], block.gone, block.freed);
            put(&mut fields[6], if block.stack == StackId::NONE { 0 } else { 1 + stacks.of(block.stack) });
            last = (block.born, address);
        }
        packed.add(BLOCK_FIELDS, fields);
        let mut fields = SEGMENT_FIELDS.map(|_| Vec::new());
        let (mut last, mut streams, mut pools) = ((0, 0), Numbers::default(), Numbers::default());
        for segment in &self.segments {
            let address = (segment.address - base) / unit;
            put(&mut fields[0], u64::from(segment.born - last.0));
            put_signed(&mut fields[1], address.wrapping_sub(last.1));
            put(&mut fields[2], segment.size / unit);
            put(&mut fields[3], streams.of(segment.stream));
            put(&mut fields[4], pools.of(segment.pool));
            put(&mut fields[5], u64::from(segment.expandable));
            put_moment(&mut fields[6], segment.gone, segment.born);
            last = (segment.born, address);
        }
        packed.add(SEGMENT_FIELDS, fields);
        (packed.stacks, packed.streams, packed.pools) = (stacks.list, streams.list, pools.list);
        packed
    }
}

impl Packed {
    fn add(&mut self, names: [&'static str; 7], fields: [Vec<u8>; 7]) {
        let columns = names.into_iter().zip(fields).map(|(name, bytes)| Column { name: name.to_owned(), bytes });
        self.columns.extend(columns);
    }

    /// Unpacks the log.
    ///
    /// # Errors
    /// Fails if a column is missing or damaged.
    pub fn unpack(&self) -> Result<HeapLog, PackedError> {
        let mut log = HeapLog::default();
        let mut fields = self.readers(BLOCK_FIELDS)?;
        let mut last = (0, 0);
        for _ in 0..self.blocks {
            let [born, address, size, requested, freed, gone, stack] = &mut fields;
            let born = born.later(last.0)?;
            last = (born, address.signed(last.1)?);
            let size = size.number()?.wrapping_mul(self.unit);
            let requested = size.wrapping_sub(requested.signed(0)?);
            let freed = freed.moment(born)?;
            let gone = gone.moment(freed)?;
            let stack = match stack.number()?.checked_sub(1) {
                None => StackId::NONE,
                Some(number) => stack.look_up(number, &self.stacks)?,
            };
            let address = last.1.wrapping_mul(self.unit).wrapping_add(self.base);
            log.blocks.push(BlockLife { address, size, requested, stack, born, freed, gone });
        }
        let mut fields = self.readers(SEGMENT_FIELDS)?;
        let mut last = (0, 0);
        for _ in 0..self.segments {
            let [born, address, size, stream, pool, expandable, gone] = &mut fields;
            let born = born.later(last.0)?;
            last = (born, address.signed(last.1)?);
            let size = size.number()?.wrapping_mul(self.unit);
            let number = stream.number()?;
            let stream = stream.look_up(number, &self.streams)?;
            let number = pool.number()?;
            let pool = pool.look_up(number, &self.pools)?;
            let expandable = expandable.number()? != 0;
            let gone = gone.moment(born)?;
            let address = last.1.wrapping_mul(self.unit).wrapping_add(self.base);
            log.segments.push(SegmentLife { address, size, stream, pool, expandable, born, gone });
        }
        Ok(log)
    }

    fn readers<const N: usize>(&self, names: [&'static str; N]) -> Result<[Reader<'_>; N], PackedError> {
        let mut readers = [(); N].map(|()| Reader::default());
        for (reader, name) in readers.iter_mut().zip(names) {
            let column = self.columns.iter().find(|column| column.name == name).ok_or(PackedError::Missing(name))?;
            *reader = Reader::of(name, &column.bytes);
        }
        Ok(readers)
    }
}

/// Numbers values from 0 in the order of their first occurrence.
struct Numbers<T> {
    list: Vec<T>,
    places: BTreeMap<T, u64>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers { list: Vec::new(), places: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Numbers<T> {
    fn of(&mut self, value: T) -> u64 {
        let next = self.list.len() as u64;
        let number = *self.places.entry(value).or_insert(next);
        if number == next {
            self.list.push(value);
        }
        number
    }
}

/// The reason why packed columns cannot be read as a log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PackedError {
    /// This column is missing.
    #[error("the column {0:?} is missing")]
    Missing(&'static str),
    /// A column ends too early, or contains a number that exceeds 64 bits or is an invalid reference.
    #[error("the column {0:?} is damaged")]
    Damaged(&'static str),
}

/// Appends a number.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a difference of two 64-bit numbers, taken modulo 2^64, as a signed number.
fn put_signed(bytes: &mut Vec<u8>, difference: u64) {
    put(bytes, difference << 1 ^ (difference.cast_signed() >> 63).cast_unsigned());
}

/// Packs numbers into one column, each as the difference from the previous number, modulo 2^64; the first as the difference
/// from 0.
#[must_use]
pub fn pack_numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for number in numbers {
        put_signed(&mut bytes, number.wrapping_sub(before));
        before = number;
    }
    bytes
}

/// Appends a moment that is not before `since`, or [`NEVER`].
fn put_moment(bytes: &mut Vec<u8>, moment: u32, since: u32) {
    put(bytes, if moment == NEVER { 0 } else { u64::from(moment.saturating_sub(since)) + 1 });
}

/// Reads a column.
#[derive(Default)]
struct Reader<'a> {
    name: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn of(name: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { name, rest: bytes }
    }

    fn number(&mut self) -> Result<u64, PackedError> {
        let (mut number, mut shift) = (0_u64, 0);
        while let Some((&byte, rest)) = self.rest.split_first().filter(|_| shift < 64) {
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
        Err(PackedError::Damaged(self.name))
    }

    /// Reads a number stored as the difference from `before`.
    fn signed(&mut self, before: u64) -> Result<u64, PackedError> {
        let folded = self.number()?;
        Ok(before.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg()))
    }

    /// Reads a moment stored as the difference from `before`.
    fn later(&mut self, before: u32) -> Result<u32, PackedError> {
        let later = u64::from(before).checked_add(self.number()?).and_then(|moment| u32::try_from(moment).ok());
        later.ok_or(PackedError::Damaged(self.name))
    }

    /// Reads a moment stored by [`put_moment`].
    fn moment(&mut self, since: u32) -> Result<u32, PackedError> {
        match self.number()?.checked_sub(1) {
            None => Ok(NEVER),
            Some(after) => {
                let moment = u64::from(since).checked_add(after).and_then(|moment| u32::try_from(moment).ok());
                moment.ok_or(PackedError::Damaged(self.name))
            }
        }
    }

    /// Returns the element of `list` to which a number read from this column refers.
    fn look_up<T: Copy>(&self, number: u64, list: &[T]) -> Result<T, PackedError> {
        let value = usize::try_from(number).ok().and_then(|place| list.get(place));
        value.copied().ok_or(PackedError::Damaged(self.name))
    }
}

/// The times of evenly spaced entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeSamples {
    /// The first entry's time, in microseconds since 1970.
    pub start_us: u64,
    /// A sample is taken every this many entries.
    pub every: usize,
    /// Microseconds since the previous sample, packed as the numbers of a column are. They are never negative: a clock that
    /// is set back counts as standing still.
    pub bytes: Vec<u8>,
    /// The number of samples.
    pub count: usize,
    /// The time from the first entry to the last, in microseconds.
    pub duration_us: u64,
}

impl TimeSamples {
    /// Takes at most this many samples of a device's trace, including one of the last entry. Returns `None` if an entry has
    /// no time.
    #[must_use]
    pub fn of(recording: &DeviceRecording, most: usize) -> Option<TimeSamples> {
        let trace = &recording.trace;
        let start_us = trace.first()?.time()?;
        let every = trace.len().div_ceil(most.max(2) - 1).max(1);
        let (mut latest, mut bytes, mut count, mut before) = (start_us, Vec::new(), 0, start_us);
        for (at, entry) in trace.iter().enumerate() {
            latest = latest.max(entry.time()?);
            if at % every == 0 || at + 1 == trace.len() {
                put(&mut bytes, latest - before);
                before = latest;
                count += 1;
            }
        }
        Some(TimeSamples { start_us, every, bytes, count, duration_us: latest - start_us })
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry};
    use proptest::prelude::*;

    use super::*;

    fn block() -> impl Strategy<Value = BlockLife> {
        let moments = prop::array::uniform3(prop_oneof![Just(NEVER), 0..5000_u32]);
        (any::<u64>(), any::<u64>(), any::<u64>(), moments, any::<bool>()).prop_map(
            |(address, size, requested, moments, even)| {
                let mut moments = moments;
                moments.sort_unstable();
                let (address, size) = if even { (address / 512 * 512, size / 512 * 512) } else { (address, size) };
                // A block that was never freed never became free again.
                let gone = if moments[1] == NEVER { NEVER } else { moments[2] };
                let born = if moments[0] == NEVER { 0 } else { moments[0] };
                BlockLife { address, size, requested, stack: StackId::NONE, born, freed: moments[1], gone }
            },
        )
    }

    proptest! {
        #[test]
        fn unpacking_returns_what_was_packed(mut blocks in prop::collection::vec(block(), 0..50)) {
            blocks.sort_by_key(|block| block.born);
            let segment = |block: &BlockLife| SegmentLife {
                address: block.address, size: block.size, stream: block.requested % 3, pool: (block.requested % 2, 0),
                expandable: block.size.is_multiple_of(2), born: block.born, gone: block.gone,
            };
            let log = HeapLog { segments: blocks.iter().map(segment).collect(), blocks };
            prop_assert_eq!(log.pack().unpack(), Ok(log));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let block = BlockLife { address: 1 << 40, size: 512, requested: 5, stack: StackId::NONE, born: 3, freed: 4, gone: 9 };
        let log = HeapLog { blocks: vec![block], segments: Vec::new() };
        let mut packed = log.pack();
        packed.columns[1].bytes.clear();
        assert_eq!(packed.unpack(), Err(PackedError::Damaged("block_address")));
        packed.columns.remove(0);
        assert_eq!(packed.unpack(), Err(PackedError::Missing("block_born")));
    }

    #[test]
    fn only_what_exists_at_the_chosen_moments_is_kept() {
        let block = |born, gone| BlockLife { address: 0, size: 512, requested: 5, stack: StackId::NONE, born, freed: gone, gone };
        let log = HeapLog { blocks: vec![block(0, 5), block(5, 9), block(6, 10), block(10, NEVER)], segments: Vec::new() };
        let (kept, places) = log.only(&[4, 9]);
        assert_eq!((kept.blocks, places), (vec![block(0, 5), block(6, 10)], vec![0, 2]));
        assert_eq!(log.only(&[10]).0.blocks, [block(10, NEVER)]);
    }

    #[test]
    fn the_first_and_the_last_entry_are_among_the_samples() {
        let trace = [5, 7, 6, 9, 20].map(|time| {
            let mut entry = Entry::new(Action::Snapshot, 0, 0, 0);
            entry.set_time(Some(time));
            entry
        });
        let mut recording = DeviceRecording { trace: trace.to_vec(), ..DeviceRecording::default() };
        let all = TimeSamples::of(&recording, 100).expect("times");
        assert_eq!((all.start_us, all.every, all.count, all.duration_us), (5, 1, 5, 15));
        assert_eq!(all.bytes, [0, 2, 0, 2, 11], "a clock that was set back counts as standing still");
        let some = TimeSamples::of(&recording, 3).expect("times");
        assert_eq!((some.every, some.count, some.bytes), (3, 3, vec![0, 4, 11]));
        recording.trace[1].set_time(None);
        assert_eq!(TimeSamples::of(&recording, 100), None);
    }
}
