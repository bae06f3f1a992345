//! The table has the order of the real one.

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
