//! The iteration order of PyTorch's hash tables (spec 13.1), derived only from the keys and the order in which they
//! were inserted.
//!
//! A key's hash determines its home. In the order of their homes, each key is at its home or, if that is taken,
//! directly after the previous key. The homes do not determine the order of keys that share one; insertions change that
//! order.

/// The distance from its home at which a key makes a small table grow.
const LEAST_REACH: u64 = 4;

/// A table with at least this many buckets for each key, counting one more key, does not grow because of a key's distance. PyTorch's
/// table would grow without end if many keys have one hash.
const MOST_BUCKETS_A_KEY: usize = 64;

/// Returns the bucket of a key with this hash in a table with two to the power of `bits` buckets.
pub fn home(hash: u64, bits: u32) -> u64 {
    let product = u128::from(hash) * 11_400_714_819_323_198_485;
    ((u128::from(product as u64) << bits) >> 64) as u64
}

/// Returns a stream's hash: the device type (CUDA) and the device, followed by the last 48 bits of the stream's handle.
pub fn hash_of_stream(device: u32, stream: u64) -> u64 {
    (256 + u64::from(device)) * (1 << 48) + stream % (1 << 48)
}

/// Keys in the order in which PyTorch's table would have them.
#[derive(Clone, Debug)]
pub(super) struct Table<K> {
    /// 0, or the logarithm of the number of buckets.
    bits: u32,
    keys: Vec<(u64, K)>,
    /// The number of keys, including those that a growing table has not inserted again yet.
    count: usize,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { bits: 0, keys: Vec::new(), count: 0 }
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
        self.count = self.keys.len();
    }

    /// Inserts a key unless the table already has it.
    pub(super) fn insert(&mut self, hash: u64, key: K) {
        if !self.contains(key) {
            self.seat((hash, key));
            self.count = self.keys.len();
        }
    }

    fn seat(&mut self, mut homeless: (u64, K)) {
        while let Err(other) = self.try_insert(homeless) {
            homeless = other;
            self.bits = 2.max(self.bits + 1);
            for key in std::mem::take(&mut self.keys) {
                self.seat(key);
            }
        }
    }

    /// Returns the distance from its home at which a key makes the table grow.
    fn reach(&self) -> u64 {
        if 1 << self.bits >= MOST_BUCKETS_A_KEY * (self.count + 1) { u64::MAX } else { LEAST_REACH.max(self.bits.into()) }
    }

    fn home(&self, hash: u64) -> u64 {
        home(hash, self.bits)
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

    /// Inserts a key. The error is the key that is left without a bucket.
    fn try_insert(&mut self, new: (u64, K)) -> Result<(), (u64, K)> {
        if self.bits == 0 || (self.count + 1) * 2 > 1 << self.bits {
            return Err(new);
        }
        let (home, places, reach) = (self.home(new.0), self.places(), self.reach());
        let at = self.keys.partition_point(|&(hash, _)| self.home(hash) <= home);
        let first = at.checked_sub(1).map_or(home, |before| home.max(places[before] + 1));
        if first - home == reach {
            return Err(new);
        }
        let mut carried = new;
        for (number, &taken) in places.iter().enumerate().skip(at) {
            let place = first + (number - at) as u64;
            if taken > place {
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
        }
        self.keys.push(carried);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of 4,000 walks through the real container, compiled from PyTorch's header, with the same keys.
    #[test]
    fn the_order_is_that_of_the_real_container() {
        for (seed, digest, span, factor) in [
            (0, 6_987_767_705_024_775_802, 12, 0),
            (1, 5_942_231_750_697_594_143, 40, 0x1000),
            (2, 3_616_071_499_932_729_414, 600, 0),
        ] {
            let (mut random, mut seen) = (88_172_645_463_325_252_u64 + seed, 14_695_981_039_346_656_037_u64);
            let mut table = Table::default();
            for step in 0..4000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let draw = (random >> 8) % span;
                let key = if factor == 0 { draw } else { (1 << 56) + draw * factor };
                if random % 8 < [3, 5][step / 500 % 2] {
                    table.insert(key, key)
                } else {
                    table.remove(key)
                }
                for key in table.keys().into_iter().chain([0xffff]) {
                    seen = (seen ^ key).wrapping_mul(1_099_511_628_211);
                }
            }
            assert_eq!(seen, digest, "{span} keys");
        }
    }
}
