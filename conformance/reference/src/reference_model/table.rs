//! The order of PyTorch's hash tables (spec 13.1), worked out from the keys in their order and from nothing else.
//!
//! A key's home is given by its hash. Keys are walked in the order of their homes, and each is at its home or, if that is taken,
//! right behind the key before it. What is not told by the homes is the order of keys with one home, which insertions turn.

/// How far a key may be from home before a small table grows.
const LEAST_REACH: u64 = 4;

/// Keys in the order of the table that PyTorch would have.
#[derive(Clone, Debug)]
pub(super) struct Table<K> {
    /// 0, or the logarithm of the buckets.
    bits: u32,
    keys: Vec<(u64, K)>,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { bits: 0, keys: Vec::new() }
    }
}

impl<K: Copy + Eq> Table<K> {
    pub(super) fn keys(&self) -> Vec<K> {
        self.keys.iter().map(|&(_, key)| key).collect()
    }

    pub(super) fn first(&self) -> Option<K> {
        self.keys.first().map(|&(_, key)| key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.keys.iter().any(|&(_, other)| other == key)
    }

    pub(super) fn remove(&mut self, key: K) {
        self.keys.retain(|&(_, other)| other != key);
    }

    /// Inserts a key, unless it is there.
    pub(super) fn insert(&mut self, hash: u64, key: K) {
        if self.contains(key) {
            return;
        }
        let mut homeless = (hash, key);
        while let Err(other) = self.try_insert(homeless) {
            homeless = other;
            self.bits = 2.max(self.bits + 1);
            for key in std::mem::take(&mut self.keys) {
                self.insert(key.0, key.1);
            }
        }
    }

    fn home(&self, hash: u64) -> u64 {
        let product = u128::from(hash) * 11_400_714_819_323_198_485;
        (product as u64 as u128 * (1 << self.bits) >> 64) as u64
    }

    fn places(&self) -> Vec<u64> {
        let mut next = 0;
        let place = |&(hash, _): &(u64, K)| {
            let place = self.home(hash).max(next);
            next = place + 1;
            place
        };
        self.keys.iter().map(place).collect()
    }

    /// Inserts a key, or returns the one that is left without a place.
    fn try_insert(&mut self, new: (u64, K)) -> Result<(), (u64, K)> {
        if self.bits == 0 || (self.keys.len() as u64 + 1) * 2 > 1 << self.bits {
            return Err(new);
        }
        let (home, places, reach) = (self.home(new.0), self.places(), LEAST_REACH.max(u64::from(self.bits)));
        let at = self.keys.partition_point(|&(hash, _)| self.home(hash) <= home);
        let mut place = at.checked_sub(1).map_or(home, |before| home.max(places[before] + 1));
        if place - home == reach {
            return Err(new);
        }
        let mut carried = new;
        for number in at..self.keys.len() {
            if places[number] > place {
                self.keys.insert(number, carried);
                return Ok(());
            }
            let (here, there) = (self.home(self.keys[number].0), self.home(carried.0));
            if here > there {
                std::mem::swap(&mut self.keys[number], &mut carried);
            } else if place + 1 - there == reach {
                std::mem::swap(&mut self.keys[at], &mut carried);
                return Err(carried);
            }
            place += 1;
        }
        self.keys.push(carried);
        Ok(())
    }
}
