//! Counters: levels, peaks and sums.

use proptest::prelude::*;

use super::*;

/// What the counters must say: each value kept as it is.
fn change(set: &mut StatSet, class: PoolClass, amount: i64, grows: bool) {
    for stat in [&mut set.all, if class == PoolClass::Small { &mut set.small } else { &mut set.large }] {
        if grows { stat.increase(amount) } else { stat.decrease(amount) }
    }
}

fn stat() -> impl Strategy<Value = Stat> {
    let value = || prop_oneof![-9..9_i64, -(1 << 61)..1_i64 << 61];
    let sum = || prop_oneof![0..9_i64, any::<i64>()];
    (value(), value(), sum(), sum()).prop_map(|(current, peak, allocated, freed)| Stat { current, peak, allocated, freed })
}

proptest! {
    /// From any values, even such as no run has, and with sums beyond 63 bits: every value as if it were kept
    /// itself.
    #[test]
    fn counters_say_what_plain_values_say(
        (all, small, large) in (stat(), stat(), stat()),
        steps in prop::collection::vec((0..7_u8, any::<bool>(), prop_oneof![0..9_i64, 0..1_i64 << 55]), 0..40),
    ) {
        let mut plain = StatSet { all, small, large };
        let mut counters = Counters::of(&plain);
        prop_assert_eq!(counters.set(), plain);
        for (what, is_small, amount) in steps {
            let class = if is_small { PoolClass::Small } else { PoolClass::Large };
            match what {
                0 => {
                    counters.reset_peaks();
                    [&mut plain.all, &mut plain.small, &mut plain.large].into_iter().for_each(Stat::reset_peak);
                }
                1 => {
                    counters.reset_sums();
                    [&mut plain.all, &mut plain.small, &mut plain.large].into_iter().for_each(Stat::reset_accumulated);
                }
                2 | 3 => {
                    counters.subtract(class, amount);
                    change(&mut plain, class, amount, false);
                }
                4 => {
                    if counters.add(class, amount) < 0 {
                        counters.raise_peaks(class);
                    }
                    change(&mut plain, class, amount, true);
                }
                5 => {
                    if counters.change(class, amount) < 0 && amount > 0 {
                        counters.raise_peaks(class);
                    }
                    change(&mut plain, class, amount, amount > 0);
                }
                _ => {
                    counters.change(class, -amount);
                    change(&mut plain, class, amount, false);
                }
            }
            prop_assert_eq!(counters.set(), plain);
        }
    }
}
