//! A map from page numbers to values, for numbers that lie together, as those of the pages that are mapped into a range of addresses do.
//!
//! A tree of chunks of 64 pages, each with a bit for every page that has a value: a look-up is one in a tree that is 64 times
//! smaller than one of pages would be.

use std::collections::BTreeMap;

/// How many pages a chunk has: one for each bit of its mask.
const CHUNK: u64 = u64::BITS as u64;

#[derive(Clone, Debug)]
struct Chunk<V> {
    /// Which places have a value.
    mask: u64,
    values: [Option<V>; CHUNK as usize],
}

impl<V: Copy> Chunk<V> {
    /// The first of some places that has a value: its page, in the chunk of this number.
    #[inline]
    fn first(&self, number: u64, places: u64) -> Option<(u64, V)> {
        self.value(number, (self.mask & places).trailing_zeros())
    }

    /// The last of them.
    #[inline]
    fn last(&self, number: u64, places: u64) -> Option<(u64, V)> {
        self.value(number, (self.mask & places).checked_ilog2()?)
    }

    #[inline]
    fn value(&self, number: u64, place: u32) -> Option<(u64, V)> {
        let value = self.values.get(place as usize).copied().flatten()?;
        Some((number * CHUNK + u64::from(place), value))
    }
}

/// Values by page number.
#[derive(Clone, Debug)]
pub(super) struct PageMap<V> {
    /// Chunks with at least one value, by the number of their first page divided by 64.
    chunks: BTreeMap<u64, Box<Chunk<V>>>,
}

impl<V> Default for PageMap<V> {
    fn default() -> Self {
        PageMap { chunks: BTreeMap::new() }
    }
}

/// The chunk of a page, and its place there.
fn split(page: u64) -> (u64, usize) {
    (page / CHUNK, (page % CHUNK) as usize)
}

impl<V: Copy> PageMap<V> {
    /// Gives a page a value; the one that it had before is gone.
    pub(super) fn insert(&mut self, page: u64, value: V) {
        let (chunk, place) = split(page);
        let empty = || Box::new(Chunk { mask: 0, values: [None; CHUNK as usize] });
        let chunk = self.chunks.entry(chunk).or_insert_with(empty);
        chunk.mask |= 1 << place;
        chunk.values[place] = Some(value);
    }

    /// Takes a page's value.
    pub(super) fn remove(&mut self, page: u64) -> Option<V> {
        let (number, place) = split(page);
        let chunk = self.chunks.get_mut(&number)?;
        let value = chunk.values[place].take()?;
        chunk.mask &= !(1 << place);
        if chunk.mask == 0 {
            self.chunks.remove(&number);
        }
        Some(value)
    }

    /// A page's value, to change.
    pub(super) fn get_mut(&mut self, page: u64) -> Option<&mut V> {
        let (chunk, place) = split(page);
        self.chunks.get_mut(&chunk)?.values[place].as_mut()
    }

    /// The last page up to this one that has a value.
    #[inline]
    pub(super) fn last_up_to(&self, page: u64) -> Option<(u64, V)> {
        let (own, place) = split(page);
        // Mostly in the page's own chunk, where it takes no walk to find it.
        let up_to = u64::MAX >> (CHUNK as usize - 1 - place);
        let here = self.chunks.get(&own).and_then(|chunk| chunk.last(own, up_to));
        here.or_else(|| self.chunks.range(..own).next_back().and_then(|(&number, chunk)| chunk.last(number, u64::MAX)))
    }

    /// The first page that has a value, of those from `from` to before `to`.
    #[inline]
    pub(super) fn first_in(&self, from: u64, to: u64) -> Option<(u64, V)> {
        if from >= to {
            return None;
        }
        let ((own, place), (last, _)) = (split(from), split(to - 1));
        let here = self.chunks.get(&own).and_then(|chunk| chunk.first(own, u64::MAX << place));
        let further = || self.chunks.range(own + 1..=last).next().and_then(|(&number, chunk)| chunk.first(number, u64::MAX));
        let found = if own == last { here } else { here.or_else(further) };
        found.filter(|&(page, _)| page < to)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The answers are those of a tree, for pages that lie together, apart, and at the ends of chunks.
        #[test]
        fn as_a_tree(
            steps in vec((prop_oneof![0_u64..8, 60_u64..70, 120_u64..400, 5000_u64..5010], any::<bool>()), 1..200),
            asked in vec((0_u64..5200, 0_u64..200), 20),
        ) {
            let (mut pages, mut plain) = (PageMap::default(), BTreeMap::new());
            for (number, (page, enters)) in steps.into_iter().enumerate() {
                if enters {
                    pages.insert(page, number);
                    plain.insert(page, number);
                } else {
                    prop_assert_eq!(pages.remove(page), plain.remove(&page));
                }
                prop_assert_eq!(pages.get_mut(page).copied(), plain.get(&page).copied());
            }
            for (page, length) in asked {
                let owned = |(&page, &value)| (page, value);
                prop_assert_eq!(pages.last_up_to(page), plain.range(..=page).next_back().map(owned));
                prop_assert_eq!(pages.first_in(page, page + length), plain.range(page..page + length).next().map(owned));
            }
        }
    }
}
