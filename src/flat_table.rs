//! A hash table whose order is that of PyTorch's own (spec 13.1): the order decides which stream's events are
//! looked at first, and which of several private pools serves or goes back.
//!
//! PyTorch keeps streams and pools in `ska::flat_hash_map` and `flat_hash_set`. Their order follows from the
//! keys' hashes and from the history of insertions and removals, and from nothing else: no address, no random
//! number. The rules, which the header `c10/util/flat_hash_map.h` of each release has:
//!
//! - A table has no buckets at first, then 4, and twice as many whenever more than half would be in use.
//! - A hash times 2^64 over the golden ratio has the bucket in its upper bits: the key's home.
//! - A key goes into the first place from its home on that is empty or holds a key that is nearer to its own
//!   home. That one goes on in the same manner, past keys that are as far from theirs as it is.
//! - A key more than a few places from its home (4 in small tables, the logarithm of the buckets in larger ones)
//!   makes the table grow: all keys are inserted anew, in their order.
//! - Removing a key moves those behind it back by one place, up to the first that is at home or an empty place.
//! - Walking goes by place.
//!
//! Keys of equal hash can make the real table grow without end. This one stops growing while it is nearly
//! empty, and lets such keys be further from home.

use alloc::vec::Vec;
use core::mem;

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 11_400_714_819_323_198_485;

/// What undoes a multiplication by it, modulo 2^64.
const GOLDEN_INVERSE: u64 = 17428512612931826493;

/// The hash that comes at a place of the order, which runs from 0 up to 2^64. Keys whose places lie one bucket
/// apart are walked in the order of their places, whenever they were inserted.
pub(crate) fn hash_at(place: u64) -> u64 {
    place.wrapping_mul(GOLDEN_INVERSE)
}

/// The buckets of the first table that has any.
const FEWEST_BUCKETS: usize = 4;

/// How far from home a key may at least be before the table grows.
const LEAST_REACH: usize = 4;

/// With more buckets for each key than this, a table grows no more.
const MOST_BUCKETS_A_KEY: usize = 1 << 6;

#[derive(Clone, Debug)]
struct Entry<K, V> {
    hash: u64,
    /// How many places it is behind its home.
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

    /// The number of places, some of which are empty. Walking goes from 0 up to this.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// What is at a place.
    pub(crate) fn at(&self, place: usize) -> Option<&V> {
        self.places.get(place)?.as_ref().map(|entry| &entry.value)
    }

    /// The same, to change it.
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut V> {
        self.places.get_mut(place)?.as_mut().map(|entry| &mut entry.value)
    }

    /// The place of a key.
    pub(crate) fn find(&self, hash: u64, key: K) -> Option<usize> {
        let home = self.home(hash)?;
        let near = self.places.get(home..)?.iter().enumerate();
        let near = near.map_while(|(distance, entry)| entry.as_ref().filter(|entry| entry.distance >= distance));
        near.map(|entry| entry.key).position(|other| other == key).map(|distance| home + distance)
    }

    /// Inserts a key that is not there.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V) {
        self.seat(Entry { hash, distance: 0, key, value });
        self.len += 1;
    }

    /// Removes what is at a place.
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

    /// Removes a key. Returns its value, if it was there.
    pub(crate) fn remove(&mut self, hash: u64, key: K) -> Option<V> {
        self.find(hash, key).and_then(|place| self.remove_at(place))
    }

    fn home(&self, hash: u64) -> Option<usize> {
        let bits = self.buckets.checked_ilog2()?;
        Some((hash.wrapping_mul(GOLDEN) >> (u64::BITS - bits)) as usize)
    }

    /// How far from home a key may be; `None` for as far as it takes.
    fn reach(&self) -> Option<usize> {
        let may_grow = self.buckets / MOST_BUCKETS_A_KEY <= self.len;
        may_grow.then(|| reach_of(self.buckets))
    }

    /// Seats an entry, in a larger table if need be.
    fn seat(&mut self, mut entry: Entry<K, V>) {
        while let Err(homeless) = self.place(entry) {
            entry = homeless;
            self.grow();
        }
    }

    /// Finds a place for an entry. Gives back one for which the table must grow first: another one, if the entry
    /// has taken its place.
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
                    // The new key, which has the first place, gives it to the one that has none.
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

    /// Doubles the buckets and inserts all keys anew, in their order.
    fn grow(&mut self) {
        self.buckets = FEWEST_BUCKETS.max(2 * self.buckets);
        let mut places = Vec::new();
        places.resize_with(self.buckets + reach_of(self.buckets) - 1, || None);
        for entry in mem::replace(&mut self.places, places).into_iter().flatten() {
            self.seat(entry);
        }
    }
}

/// How far from home a key may be in a table with this many buckets.
fn reach_of(buckets: usize) -> usize {
    LEAST_REACH.max(buckets.checked_ilog2().map_or(0, |bits| bits as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &FlatTable<u64, ()>) -> Vec<u64> {
        table.iter().map(|(key, ())| key).collect()
    }

    /// The walks of a table after each of 4,000 random insertions and removals, as one number, and the keys at
    /// the end. Keys hash to themselves.
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

    /// What the real container, compiled from PyTorch's header, does with the same keys: ids of pools, handles of
    /// streams, many keys, and keys that are not consecutive.
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
