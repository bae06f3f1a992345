//! Statistics that come from a file: any values, also such as no run has, and what resets make of them.

use parkade::stats::Stats;
use proptest::prelude::*;

use crate::run::{Draws, Outcome, run};
use parkade_reference::law::{Broken, Law, ensure};

/// Counters that a reset of the sums sets to 0.
const COUNTERS: [&str; 5] = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"];

pub(crate) fn check(draws: &Draws) -> Outcome {
    let count = Stats::default().entries().len();
    let value = prop_oneof![-9..9_i64, -(1 << 61)..1_i64 << 61, Just(i64::MAX), Just(i64::MIN)];
    let strategy = (prop::collection::vec(value, count), prop::collection::vec(any::<bool>(), 1..4));
    run(&draws.each_for(4), 352, &strategy, |(values, resets)| {
        one(values, resets)?;
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

fn compare(stats: &Stats, expected: &[(String, i64)], when: &str) -> Result<(), Broken> {
    let seen = stats.entries();
    let wrong = seen.iter().zip(expected).find(|(seen, expected)| seen != expected);
    ensure(Law::Counters, wrong.is_none() && seen.len() == expected.len(), || format!("{when} there is {wrong:?}"))
}
