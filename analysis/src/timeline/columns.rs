//! A log in few bytes: a column for each field, each number a variable-length integer, mostly a difference to the one before.
//!
//! A million entries take some megabytes, and columns of like numbers pack well once more with gzip. Numbers are little-endian base
//! 128, the high bit says that more follows; signed ones are folded (0, -1, 1, -2 ... are 0, 1, 2, 3 ...). Addresses and sizes count
//! `unit` bytes. Moments that may be [`NEVER`] are 0 for that, else one more than the difference.

use std::collections::BTreeMap;

use thiserror::Error;

use super::log::{BlockLife, HeapLog, NEVER, SegmentLife};
use parkade_recording::StackId;

/// One field of all blocks or segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The field's name.
    pub name: String,
    /// Its numbers.
    pub bytes: Vec<u8>,
}

/// A packed log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// The address that the others are relative to.
    pub base: u64,
    /// Bytes that addresses and sizes are counted in.
    pub unit: u64,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of segments.
    pub segments: usize,
    /// Handles of streams, by the numbers that segments use.
    pub streams: Vec<u64>,
    /// Private pools, by the numbers that segments use.
    pub pools: Vec<(u64, u64)>,
    /// Stacks, by the numbers that blocks use; block number 0 is none.
    pub stacks: Vec<StackId>,
    /// The fields.
    pub columns: Vec<Column>,
}

/// Why packed columns are no log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PackedError {
    /// There is no such column.
    #[error("the column {0:?} is missing")]
    Missing(&'static str),
    /// A column ends too early, or a number in it is beyond 64 bits or names nothing.
    #[error("the column {0:?} is damaged")]
    Damaged(&'static str),
}

const BLOCK_FIELDS: [&str; 7] =
    ["block_born", "block_address", "block_size", "block_requested", "block_freed", "block_gone", "block_stack"];
const SEGMENT_FIELDS: [&str; 7] =
    ["segment_born", "segment_address", "segment_size", "segment_stream", "segment_pool", "segment_expandable", "segment_gone"];
/// PyTorch's addresses and sizes of blocks are multiples of this.
const UNIT: u64 = 512;

impl HeapLog {
    /// What of the log shows at these moments, which are in order.
    #[must_use]
    pub fn only(&self, moments: &[u32]) -> HeapLog {
        let is_seen = |born: u32, gone: u32| {
            let next = moments.partition_point(|&moment| moment < born);
            moments.get(next).is_some_and(|&moment| moment < gone)
        };
        HeapLog {
            blocks: self.blocks.iter().filter(|block| is_seen(block.born, block.gone)).copied().collect(),
            segments: self.segments.iter().filter(|segment| is_seen(segment.born, segment.gone)).copied().collect(),
        }
    }

    /// Packs it.
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

    /// The log that was packed.
    ///
    /// # Errors
    /// [`PackedError`] if this is none.
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
            *reader = Reader { name, rest: &column.bytes };
        }
        Ok(readers)
    }
}

/// Numbers for values, counted from 0 in the order in which they are first met.
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

/// Appends a number.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A difference of two 64-bit numbers, modulo 2^64, as a signed one.
fn put_signed(bytes: &mut Vec<u8>, difference: u64) {
    put(bytes, difference << 1 ^ (difference.cast_signed() >> 63).cast_unsigned());
}

/// Numbers as one column: each as the difference to the one before, modulo 2^64, the first to 0.
#[must_use]
pub fn pack_numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for number in numbers {
        put_signed(&mut bytes, number.wrapping_sub(before));
        before = number;
    }
    bytes
}

fn put_moment(bytes: &mut Vec<u8>, moment: u32, since: u32) {
    put(bytes, if moment == NEVER { 0 } else { u64::from(moment.saturating_sub(since)) + 1 });
}

#[derive(Default)]
struct Reader<'a> {
    name: &'static str,
    rest: &'a [u8],
}

impl Reader<'_> {
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

    fn signed(&mut self, before: u64) -> Result<u64, PackedError> {
        let folded = self.number()?;
        Ok(before.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg()))
    }

    fn later(&mut self, before: u32) -> Result<u32, PackedError> {
        let later = u64::from(before).checked_add(self.number()?).and_then(|moment| u32::try_from(moment).ok());
        later.ok_or(PackedError::Damaged(self.name))
    }

    fn moment(&mut self, since: u32) -> Result<u32, PackedError> {
        match self.number()?.checked_sub(1) {
            None => Ok(NEVER),
            Some(after) => {
                let moment = u64::from(since).checked_add(after).and_then(|moment| u32::try_from(moment).ok());
                moment.ok_or(PackedError::Damaged(self.name))
            }
        }
    }

    fn look_up<T: Copy>(&self, number: u64, list: &[T]) -> Result<T, PackedError> {
        let value = usize::try_from(number).ok().and_then(|place| list.get(place));
        value.copied().ok_or(PackedError::Damaged(self.name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block() -> impl Strategy<Value = BlockLife> {
        let moments = prop::array::uniform3(prop_oneof![Just(NEVER), 0..5000_u32]);
        (any::<u64>(), any::<u64>(), any::<u64>(), moments, any::<bool>()).prop_map(
            |(address, size, requested, moments, even)| {
                let mut moments = moments;
                moments.sort_unstable();
                let (address, size) = if even { (address / 512 * 512, size / 512 * 512) } else { (address, size) };
                // A block that was never given back was never free again.
                let gone = if moments[1] == NEVER { NEVER } else { moments[2] };
                let born = if moments[0] == NEVER { 0 } else { moments[0] };
                BlockLife { address, size, requested, stack: StackId::NONE, born, freed: moments[1], gone }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out_again(mut blocks in prop::collection::vec(block(), 0..50)) {
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
    fn only_what_shows_at_the_chosen_moments_is_kept() {
        let block = |born, gone| BlockLife { address: 0, size: 512, requested: 5, stack: StackId::NONE, born, freed: gone, gone };
        let log = HeapLog { blocks: vec![block(0, 5), block(5, 9), block(6, 10), block(10, NEVER)], segments: Vec::new() };
        assert_eq!(log.only(&[4, 9]).blocks, [block(0, 5), block(6, 10)]);
        assert_eq!(log.only(&[10]).blocks, [block(10, NEVER)]);
    }
}
