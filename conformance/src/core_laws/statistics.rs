//! Statistics that come from a file: any values, also such as no run has, and what resets make of them.

use parkade::stats::{Stat, StatSet, Stats};
use parkade::units::PoolId;
use proptest::prelude::*;

use crate::core_laws::run::{Draws, Outcome, run};
use crate::law::{Broken, Law, ensure};

/// Counters that a reset of the sums sets to 0.
const COUNTERS: [&str; 5] = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"];

pub(crate) fn check(draws: &Draws) -> Outcome {
    check_unknown()?;
    let count = Stats::default().entries().len();
    let value = prop_oneof![-9..9_i64, -(1 << 61)..1_i64 << 61, Just(i64::MAX), Just(i64::MIN)];
    let strategy = (prop::collection::vec(value, count), prop::collection::vec(any::<bool>(), 1..4));
    run(&draws.each_for(4), 352, &strategy, |(values, resets)| {
        one(values, resets)?;
        check_stat(&values[..24])?;
        Ok(resets.len() as u64 + 1)
    })
}

fn one(values: &[i64], resets: &[bool]) -> Result<(), Broken> {
    let keys = Stats::default().entries();
    let mut expected: Vec<(String, i64)> = keys.into_iter().map(|(key, _)| key).zip(values.iter().copied()).collect();
    let mut stats = Stats::from_entries(expected.iter().map(|(key, value)| (key.as_str(), *value)))
        .map_err(|error| Broken::new(Law::Counters, error))?;
    compare(&stats, &expected, "as they were read")?;
    for &of_peaks in resets {
        if of_peaks {
            stats.reset_peaks();
        } else {
            stats.reset_accumulated();
        }
        let before = expected.clone();
        for (key, value) in &mut expected {
            let current = key.strip_suffix(".peak").map(|family| format!("{family}.current"));
            if of_peaks && let Some(current) = current {
                *value = before.iter().find(|(key, _)| *key == current).map_or(0, |(_, value)| *value);
            }
            if !of_peaks && (key.ends_with(".allocated") || key.ends_with(".freed") || COUNTERS.contains(&key.as_str())) {
                *value = 0;
            }
        }
        compare(&stats, &expected, if of_peaks { "after a reset of the peaks" } else { "after a reset of the sums" })?;
    }
    Ok(())
}

/// Keys with a word too many, too few or in the other case are unknown, and named as they are.
fn check_unknown() -> Result<(), Broken> {
    for (key, _) in Stats::default().entries() {
        let shorter = key.rsplit_once('.').map_or("", |(begin, _)| begin).to_owned();
        let spoiled = [format!("{key}.x"), format!("{key}."), format!("x.{key}"), format!(" {key}"), key.to_uppercase(), shorter];
        for text in spoiled {
            let answer = Stats::from_entries([(text.as_str(), 1)]).map_err(|error| error.key);
            ensure(Law::Counters, answer == Err(text.clone()), || format!("{text:?} is read as {answer:?}"))?;
        }
        // One alone: all others are 0, and only this one differs.
        let [one, two] = [1, 2].map(|value| Stats::from_entries([(key.as_str(), value)]));
        let differs = one.is_ok() && one != two && one == Stats::from_entries([(key.as_str(), 1)]);
        ensure(Law::Counters, differs, || format!("{key} of 1 and of 2 are {one:?} and {two:?}"))?;
        let listed = one.map(|stats| stats.entries()).unwrap_or_default();
        let others = listed.iter().find(|(other, value)| (*other == key) != (*value == 1));
        ensure(Law::Counters, others.is_none(), || format!("{key} alone is set, and {others:?}"))?;
    }
    let mut stats = Stats::default();
    stats.num_oom_rejections = 1;
    let mut differs = stats != Stats::default();
    stats = Stats::default();
    stats.reserved_by_pool.insert(PoolId(0, 1), StatSet::default());
    differs &= stats != Stats::default();
    ensure(Law::Counters, differs, || "statistics without a key do not differ".to_owned())
}

/// One statistic by itself counts as its four values say.
fn check_stat(amounts: &[i64]) -> Result<(), Broken> {
    let (mut stat, mut expected) = (Stat::default(), [0_i64; 4]);
    for (place, &amount) in amounts.iter().enumerate() {
        let [current, peak, allocated, freed] = &mut expected;
        match place % 4 {
            0 | 2 => {
                stat.increase(amount);
                (*current, *allocated) = (current.wrapping_add(amount), allocated.wrapping_add(amount));
                *peak = (*peak).max(*current);
            }
            1 => {
                stat.decrease(amount);
                (*current, *freed) = (current.wrapping_sub(amount), freed.wrapping_add(amount));
            }
            _ if amount % 2 == 0 => {
                stat.reset_peak();
                *peak = *current;
            }
            _ => {
                stat.reset_accumulated();
                (*allocated, *freed) = (0, 0);
            }
        }
        ensure(Law::Counters, stat.values() == expected, || format!("{stat:?}, expected {expected:?}"))?;
    }
    Ok(())
}

fn compare(stats: &Stats, expected: &[(String, i64)], when: &str) -> Result<(), Broken> {
    let seen = stats.entries();
    let wrong = seen.iter().zip(expected).find(|(seen, expected)| seen != expected);
    ensure(Law::Counters, wrong.is_none() && seen.len() == expected.len(), || format!("{when} there is {wrong:?}"))
}
