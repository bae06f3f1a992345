//! A hash table with the same order as PyTorch's hash table (spec 13.1). The order decides which stream's events the
//! allocator checks first, and which of several private pools serves a request or is released.
//!
//! PyTorch keeps streams and pools in `ska::flat_hash_map` and `flat_hash_set`. Their order depends only on the keys'
//! hashes and on the history of insertions and removals, not on addresses or random numbers. These are the rules, from
//! the header `c10/util/flat_hash_map.h` of each release:
//!
//! - A table has no buckets at first, then 4, and doubles them whenever more than half would be in use.
//! - The upper bits of the hash, multiplied by 2^64 over the golden ratio, are the key's bucket: its home.
//! - A key is placed in the first position at or after its home that is empty or contains a key that is nearer to its
//!   own home. The displaced key moves on by the same rule, past keys that are as far from their homes as it is.
//! - If a key would be more than a few positions from its home (4 in small tables, the logarithm of the number of
//!   buckets in larger ones), the table grows, and all keys are inserted again, in order.
//! - Removing a key moves the keys after it back by one position, up to the first key that is at home or the first
//!   empty position.
//! - Iteration is by position.
//!
//! Keys with equal hashes can make the real table grow without end. This table does not grow while it is nearly empty,
//! and instead allows these keys to be farther from home.

use alloc::vec::Vec;
use core::mem;

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 11_400_714_819_323_198_485;

/// The multiplicative inverse of [`GOLDEN`], modulo 2^64.
const GOLDEN_INVERSE: u64 = 17428512612931826493;

/// The hash that sorts at a given position in the order, from 0 up to 2^64. If the positions of the keys are at least
/// one bucket apart, iteration follows the positions, regardless of when the keys were inserted.
pub(crate) fn hash_at(place: u64) -> u64 {
    place.wrapping_mul(GOLDEN_INVERSE)
}

/// The number of buckets after the first insertion.
const FEWEST_BUCKETS: usize = 4;

/// The distance from home that every table allows before it grows.
const LEAST_REACH: usize = 4;

/// A table with more buckets per key than this stops growing.
const MOST_BUCKETS_A_KEY: usize = 1 << 6;

#[derive(Clone, Debug)]
struct Entry<K, V> {
    hash: u64,
    /// The distance of the key from its home.
    distance: usize,
    key: K,
    value: V,
}

/// Keys with values, in the order of PyTorch's tables.
#[derive(Clone, Debug)]
pub(crate) struct FlatTable<K, V> {
    places: Vec<Option<Entry<K, V>>>,
    /// 0 or a power of two.
    buckets: usize,
    /// The number of keys.
    len: usize,
}

impl<K, V> Default for FlatTable<K, V> {
    fn default() -> FlatTable<K, V> {
        FlatTable { places: Vec::new(), buckets: 0, len: 0 }
    }
}

impl<K: Copy + PartialEq, V> FlatTable<K, V> {
    /// All keys and values in the table's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.places.iter().flatten().map(|entry| (entry.key, &entry.value))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of positions, some of which are empty. Iteration visits them from 0 up to this number.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// The value at a position.
    pub(crate) fn at(&self, place: usize) -> Option<&V> {
        self.places.get(place)?.as_ref().map(|entry| &entry.value)
    }

    /// A mutable reference to the value at a position.
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut V> {
        self.places.get_mut(place)?.as_mut().map(|entry| &mut entry.value)
    }

    /// The position of a key.
    pub(crate) fn find(&self, hash: u64, key: K) -> Option<usize> {
        let home = self.home(hash)?;
        let near = self.places.get(home..)?.iter().enumerate();
        let near = near.map_while(|(distance, entry)| entry.as_ref().filter(|entry| entry.distance >= distance));
        near.map(|entry| entry.key).position(|other| other == key).map(|distance| home + distance)
    }

    /// Inserts a key that is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V) {
        self.seat(Entry { hash, distance: 0, key, value });
        self.len += 1;
    }

    /// Removes the entry at a position.
    pub(crate) fn remove_at(&mut self, place: usize) -> Option<V> {
        let removed = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        for behind in place + 1..self.places.len() {
            let Some(mut entry) = self.places[behind].take_if(|entry| entry.distance > 0) else { break };
            entry.distance -= 1;
            self.places[behind - 1] = Some(entry);
        }
        Some(removed.value)
    }

    /// Removes a key. Returns its value, if the key was in the table.
    pub(crate) fn remove(&mut self, hash: u64, key: K) -> Option<V> {
        self.find(hash, key).and_then(|place| self.remove_at(place))
    }

    fn home(&self, hash: u64) -> Option<usize> {
        let bits = self.buckets.checked_ilog2()?;
        Some((hash.wrapping_mul(GOLDEN) >> (u64::BITS - bits)) as usize)
    }

    /// The maximum distance of a key from its home; `None` if there is no limit.
    fn reach(&self) -> Option<usize> {
        let may_grow = self.buckets / MOST_BUCKETS_A_KEY <= self.len;
        may_grow.then(|| reach_of(self.buckets))
    }

    /// Places an entry, and grows the table if necessary.
    fn seat(&mut self, mut entry: Entry<K, V>) {
        while let Err(homeless) = self.place(entry) {
            entry = homeless;
            self.grow();
        }
    }

    /// Finds a position for an entry. If the table must grow first, returns the entry that has no position yet, which
    /// may be one that the new entry has displaced.
    fn place(&mut self, mut entry: Entry<K, V>) -> Result<(), Entry<K, V>> {
        let (Some(home), reach) = (self.home(entry.hash), self.reach()) else { return Err(entry) };
        let is_far = |place: usize| self.places.get(place)?.as_ref().filter(|other| other.distance >= place - home);
        entry.distance = (home..).take_while(|&place| is_far(place).is_some()).count();
        if Some(entry.distance) == reach || (self.len + 1) * 2 > self.buckets {
            return Err(entry);
        }
        let first = home + entry.distance;
        for place in first.. {
            if place == self.places.len() {
                if reach.is_some() {
                    break;
                }
                self.places.push(None);
            }
            match &mut self.places[place] {
                empty @ None => {
                    *empty = Some(entry);
                    return Ok(());
                }
                Some(other) if other.distance < entry.distance => mem::swap(other, &mut entry),
                Some(_) if Some(entry.distance + 1) == reach => {
                    // The new key has taken the first position, which now goes to the displaced key that has none.
                    if let Some(new) = &mut self.places[first] {
                        mem::swap(new, &mut entry);
                    }
                    break;
                }
                Some(_) => {}
            }
            entry.distance += 1;
        }
        Err(entry)
    }

    /// Doubles the buckets and inserts all keys again, in order.
    fn grow(&mut self) {
        self.buckets = FEWEST_BUCKETS.max(2 * self.buckets);
        let mut places = Vec::new();
        places.resize_with(self.buckets + reach_of(self.buckets) - 1, || None);
        for entry in mem::replace(&mut self.places, places).into_iter().flatten() {
            self.seat(entry);
        }
    }
}

/// The maximum distance of a key from its home in a table with this many buckets.
fn reach_of(buckets: usize) -> usize {
    LEAST_REACH.max(buckets.checked_ilog2().map_or(0, |bits| bits as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &FlatTable<u64, ()>) -> Vec<u64> {
        table.iter().map(|(key, ())| key).collect()
    }

    /// Returns the iteration orders of a table after each of 4,000 random insertions and removals, combined into one
    /// number, and the final keys. Keys hash to themselves.
    fn walks(seed: u64, key_of: impl Fn(u64) -> u64) -> (u64, usize, Vec<u64>) {
        let (mut random, mut digest) = (88_172_645_463_325_252 + seed, 14_695_981_039_346_656_037_u64);
        let mut note = |number: u64| digest = (digest ^ number).wrapping_mul(1_099_511_628_211);
        let mut table = FlatTable::default();
        for step in 0..4000 {
            for shift in [13, -7, 17] {
                random ^= if shift > 0 { random << shift } else { random >> -shift };
            }
            let key = key_of(random >> 8);
            let inserts = random & 7 < if step / 500 % 2 == 1 { 5 } else { 3 };
            match table.find(key, key) {
                None if inserts => table.insert(key, key, ()),
                Some(place) if !inserts => drop(table.remove_at(place)),
                _ => {}
            }
            assert_eq!(table.len(), keys(&table).len());
            keys(&table).into_iter().for_each(&mut note);
            note(0xffff);
        }
        (digest, table.buckets, keys(&table))
    }

    /// Compares the table with the real container, compiled from PyTorch's header, for the same keys: pool ids, stream
    /// handles, many keys, and keys that are not consecutive.
    #[test]
    fn the_order_is_that_of_the_real_container() {
        let few = (6_987_767_705_024_775_802, 32, [0, 5, 2, 7, 4, 9, 1, 6, 11, 8].to_vec());
        assert_eq!(walks(0, |draw| draw % 12), few);
        let (digest, buckets, _) = walks(1, |draw| 1 << 56 | (draw % 40 * 0x1000));
        assert_eq!((digest, buckets), (5_942_231_750_697_594_143, 128));
        let (digest, buckets, _) = walks(2, |draw| draw % 600);
        assert_eq!((digest, buckets), (3_616_071_499_932_729_414, 1024));
        let (digest, buckets, _) = walks(3, |draw| 1 << 56 | (draw % 30 * 0x9e37_79b1) << 20 & ((1 << 48) - 1));
        assert_eq!((digest, buckets), (3_604_625_880_227_976_249, 64));
    }

    #[test]
    fn keys_of_one_hash_do_not_make_it_grow_without_end() {
        let mut table = FlatTable::default();
        for key in 0..500_u64 {
            table.insert(7, key, key);
        }
        assert!(table.len() == 500 && table.buckets <= 2 * 500 * MOST_BUCKETS_A_KEY, "{} buckets", table.buckets);
        for key in (0..500).rev() {
            assert_eq!((table.remove(7, key), table.find(7, key)), (Some(key), None));
        }
        assert_eq!((table.len(), table.iter().count(), table.remove(7, 0)), (0, 0, None));
    }
}
