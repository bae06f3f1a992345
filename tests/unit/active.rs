//! Active blocks and bytes: levels and peaks.

use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::stats::{Family, Stat, StatSet, Stats};
use crate::units::PoolClass;

/// The two families of allocated blocks and the two of active ones, each value kept as it is.
const FAMILIES: [Family; 4] = [Family::Allocation, Family::AllocatedBytes, Family::Active, Family::ActiveBytes];

fn change(sets: &mut [StatSet], class: PoolClass, amounts: [i64; 2], change: fn(&mut Stat, i64)) {
    for (set, amount) in sets.iter_mut().zip(amounts) {
        set.each_of(class, |stat| change(stat, amount));
    }
}

/// Statistics from a file, with these values in the four families.
fn from_file(values: &[i64]) -> Stats {
    let keys: Vec<_> = Stats::default().entries().into_iter().map(|(key, _)| key).collect();
    let is_of = |key: &&String| FAMILIES.iter().any(|family| key.split('.').next() == Some(family.name()));
    let keys = keys.iter().filter(is_of).map(String::as_str);
    Stats::from_entries(keys.zip(values.iter().copied())).expect("its own keys")
}

proptest! {
    #[test]
    fn active_blocks_as_if_kept_themselves(
        values in prop_oneof![Just(Vec::new()), prop::collection::vec(-9..9_i64, 48)],
        steps in prop::collection::vec((0..9_u8, any::<bool>(), 1..9_i64), 0..40),
    ) {
        let mut stats = from_file(&values);
        let mut plain = FAMILIES.map(|family| stats.family(family));
        prop_assert_eq!(&Stats::from_entries(stats.entries().iter().map(|(key, value)| (key.as_str(), *value))), &Ok(stats.clone()));
        // Sizes of blocks that are allocated and that wait.
        let (mut allocated, mut waiting) = (Vec::new(), Vec::new());
        for (what, is_small, size) in steps {
            let class = if is_small { PoolClass::Small } else { PoolClass::Large };
            match what {
                0 => {
                    stats.reset_peaks();
                    plain.iter_mut().flat_map(StatSet::all_mut).for_each(Stat::reset_peak);
                }
                1 => {
                    stats.reset_accumulated();
                    plain.iter_mut().flat_map(StatSet::all_mut).for_each(Stat::reset_accumulated);
                }
                2 => {
                    let place = size as usize % 4;
                    stats.increase(FAMILIES[place], class, size);
                    change(&mut plain[place..=place], class, [size; 2], Stat::increase);
                }
                3 => {
                    let place = size as usize % 4;
                    stats.decrease(FAMILIES[place], class, size);
                    change(&mut plain[place..=place], class, [size; 2], Stat::decrease);
                }
                4 => {
                    if let Some((class, size)) = allocated.pop() {
                        stats.count_freed(class, size, size);
                        change(&mut plain[..2], class, [1, size], Stat::decrease);
                        change(&mut plain[2..], class, [1, size], Stat::decrease);
                    }
                }
                5 => {
                    if let Some((class, size)) = allocated.pop() {
                        stats.count_waiting(class, size);
                        change(&mut plain[..2], class, [1, size], Stat::decrease);
                        waiting.push((class, size));
                    }
                }
                6 => {
                    if let Some((class, size)) = waiting.pop() {
                        stats.count_settled(class, size, size);
                        change(&mut plain[2..], class, [1, size], Stat::decrease);
                    }
                }
                _ => {
                    stats.count_handed_out(class, size, size);
                    change(&mut plain[..2], class, [1, size], Stat::increase);
                    change(&mut plain[2..], class, [1, size], Stat::increase);
                    allocated.push((class, size));
                }
            }
            prop_assert_eq!(FAMILIES.map(|family| stats.family(family)), plain);
        }
    }
}
