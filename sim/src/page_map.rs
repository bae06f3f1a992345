//! A map from page numbers to values, optimised for numbers that are close together, such as those of the pages mapped
//! into one reservation.
//!
//! It is a sorted list of chunks of 64 pages, each with a bit mask of the pages that have a value. A lookup first tries
//! the chunk that was changed last, which is usually the right one. Otherwise it searches 64 times fewer entries than
//! there are pages.

/// The number of pages in a chunk: one for each bit in its mask.
const CHUNK: u64 = u64::BITS as u64;

#[derive(Clone, Debug)]
struct Chunk<V> {
    /// The positions that have a value.
    mask: u64,
    values: [Option<V>; CHUNK as usize],
}

impl<V: Copy> Chunk<V> {
    /// Returns the page of the first of `places` that has a value, if this is the chunk with this
    /// number.
    #[inline]
    fn first(&self, number: u64, places: u64) -> Option<(u64, V)> {
        self.value(number, (self.mask & places).trailing_zeros())
    }

    /// Returns the page of the last of `places` that has a value.
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
pub(crate) struct PageMap<V> {
    /// The numbers of the chunks in ascending order: the page numbers divided by 64.
    numbers: Vec<u64>,
    /// The chunks, each with at least one value. They are boxed so that inserting one in the middle moves little
    /// memory.
    chunks: Vec<Box<Chunk<V>>>,
    /// The index of the chunk that was changed last. It is only a guess: every use checks the chunk's number.
    changed_last: usize,
}

impl<V> Default for PageMap<V> {
    fn default() -> Self {
        PageMap { numbers: Vec::new(), chunks: Vec::new(), changed_last: 0 }
    }
}

/// Returns the number of the page's chunk, and the page's position in it.
fn split(page: u64) -> (u64, usize) {
    (page / CHUNK, (page % CHUNK) as usize)
}

impl<V: Copy> PageMap<V> {
    /// Returns the index of the first chunk with this number or a higher one, and whether it has exactly this number.
    #[inline]
    fn find(&self, number: u64) -> (usize, bool) {
        if self.numbers.get(self.changed_last) == Some(&number) {
            return (self.changed_last, true);
        }
        let place = self.numbers.partition_point(|&other| other < number);
        (place, self.numbers.get(place) == Some(&number))
    }

    /// Sets a page's value.
    pub(crate) fn insert(&mut self, page: u64, value: V) {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            self.numbers.insert(at, number);
            self.chunks.insert(at, Box::new(Chunk { mask: 0, values: [None; CHUNK as usize] }));
        }
        self.changed_last = at;
        let chunk = &mut self.chunks[at];
        chunk.mask |= 1 << place;
        chunk.values[place] = Some(value);
    }

    /// Removes a page's value.
    pub(crate) fn remove(&mut self, page: u64) -> Option<V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            return None;
        }
        self.changed_last = at;
        let chunk = &mut self.chunks[at];
        let value = chunk.values[place].take()?;
        chunk.mask &= !(1 << place);
        if chunk.mask == 0 {
            self.numbers.remove(at);
            self.chunks.remove(at);
        }
        Some(value)
    }

    /// Returns a page's value.
    #[inline]
    pub(crate) fn get(&self, page: u64) -> Option<V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if is_there { self.chunks[at].values[place] } else { None }
    }

    /// Returns a mutable reference to a page's value.
    pub(crate) fn get_mut(&mut self, page: u64) -> Option<&mut V> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        if !is_there {
            return None;
        }
        self.changed_last = at;
        self.chunks[at].values[place].as_mut()
    }

    /// Returns the last page up to this one that has a value.
    #[inline]
    pub(crate) fn last_up_to(&self, page: u64) -> Option<(u64, V)> {
        let (number, place) = split(page);
        let (at, is_there) = self.find(number);
        let up_to = u64::MAX >> (CHUNK as usize - 1 - place);
        let here = if is_there { self.chunks[at].last(number, up_to) } else { None };
        here.or_else(|| {
            let before = at.checked_sub(1)?;
            self.chunks[before].last(self.numbers[before], u64::MAX)
        })
    }

    /// Returns the first page in `from..to` that has a value.
    #[inline]
    pub(crate) fn first_in(&self, from: u64, to: u64) -> Option<(u64, V)> {
        let (number, place) = split(from);
        let (at, is_there) = self.find(number);
        let here = if is_there { self.chunks[at].first(number, u64::MAX << place) } else { None };
        let further = || {
            let after = at + usize::from(is_there);
            self.chunks.get(after)?.first(self.numbers[after], u64::MAX)
        };
        here.or_else(further).filter(|&(page, _)| page < to)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that the map returns the same answers as a `BTreeMap`, for pages that are close together, far apart,
        /// and at the ends of chunks.
        #[test]
        fn agrees_with_a_btree_map(
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
                prop_assert_eq!(pages.get(page), plain.get(&page).copied());
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
